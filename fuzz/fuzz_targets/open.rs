//! Any bytes as a file on the disk: it opens or it does not, and every byte of every tensor can be read.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use safealign::map::{File, OpenOptions, Unaligned};

fuzz_target!(|bytes: &[u8]| {
    let mut file = tempfile_in_memory();
    file.1.write_all(bytes).expect("writes");
    for unaligned in [Unaligned::Copy, Unaligned::Borrow, Unaligned::Error] {
        let options = OpenOptions { unaligned, ..OpenOptions::default() };
        let Ok(opened) = File::open(&file.0, &options) else { continue };
        for index in 0..opened.len() {
            if let Ok(view) = opened.map_at(index) {
                // SAFETY: nothing else uses the file.
                let bytes = unsafe { view.bytes() };
                std::hint::black_box(bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>());
            }
        }
    }
    let _ = std::fs::remove_file(&file.0);
});

fn tempfile_in_memory() -> (std::path::PathBuf, std::fs::File) {
    let path = std::path::Path::new("/dev/shm").join(format!("safealign-fuzz-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("creates");
    (path, file)
}
