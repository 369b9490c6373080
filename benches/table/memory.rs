//! Anonymous memory, as the kernel counts it, in a process of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use safealign::map::{File, OpenOptions, View};
use safealign::repair::{RepairOptions, repair};
use safealign::writer::Durability;

/// A field of `/proc/self/<file>` in KiB.
fn kib(file: &str, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).expect("this needs Linux");
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("the field");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

fn anonymous() -> u64 {
    kib("smaps_rollup", "Anonymous")
}

/// Runs this program again to measure a piece of work on a file, and returns the KiB that it prints.
pub fn measure(what: &str, path: &Path) -> u64 {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).arg("--memory").arg(what).arg(path).output().expect("runs");
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

/// The other side of [`measure`].
pub fn child(arguments: &[String]) {
    let [what, path] = arguments else { panic!("two arguments") };
    let path = Path::new(path);
    let grown = match &what[..] {
        "ours" => touch_ours(path),
        "crate" => touch_crate(path),
        "repair" => peak_of_repair(path),
        _ => panic!("{what}?"),
    };
    println!("{grown}");
}

/// Reads a byte of every page.
pub fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(4096).map(|&byte| u64::from(byte)).sum()
}

/// The bytes of a view of a file that the benchmark does not modify.
pub fn mapped(view: &View) -> &[u8] {
    // SAFETY: the files are this program's own, and nothing changes them while they are mapped.
    unsafe { view.bytes() }
}

fn touch_ours(path: &Path) -> u64 {
    let before = anonymous();
    let file = File::open(path, &OpenOptions::default()).expect("opens");
    let views: Vec<_> = (0..file.len()).map(|index| file.map_at(index).expect("maps")).collect();
    std::hint::black_box(views.iter().map(|view| touch(mapped(view))).sum::<u64>());
    anonymous() - before
}

fn touch_crate(path: &Path) -> u64 {
    let before = anonymous();
    let file = fs::File::open(path).expect("opens");
    // SAFETY: the file is this program's own, and nothing changes it.
    let map = unsafe { memmap2::Mmap::map(&file) }.expect("maps");
    let tensors = safetensors::SafeTensors::deserialize(&map).expect("opens");
    let views = tensors.tensors();
    std::hint::black_box(views.iter().map(|(_, view)| touch(view.data())).sum::<u64>());
    anonymous() - before
}

/// How much the high-water mark of resident memory grew.
fn peak_of_repair(path: &Path) -> u64 {
    let out = path.with_extension("repaired");
    let before = kib("status", "VmHWM");
    let mut options = RepairOptions { durability: Durability::NotDurable, force: true, ..RepairOptions::default() };
    repair(path, Some(&out), &mut options).expect("repairs");
    let grown = kib("status", "VmHWM") - before;
    let _ = fs::remove_file(out);
    grown
}
