//! Effects of advice, read-ahead and released copies on memory, as the kernel counts it.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{Owned, bytes_of};
use safealign::dtype::Dtype;
use safealign::map::{Advice, File, MapMode, OpenOptions, Origin, ReadAhead, View};
use safealign::writer::write_aligned;

const LEN: usize = 24 << 20;

/// Anonymous memory is counted for the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file on the disk, so that its pages can be evicted: a temporary directory may be in memory.
struct OnDisk(PathBuf);

impl OnDisk {
    fn new(name: &str, write: impl FnOnce(&Path)) -> OnDisk {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("residency-{name}-{}", std::process::id()));
        write(&path);
        OnDisk(path)
    }

    /// A file with one aligned tensor `w`.
    fn aligned(name: &str) -> OnDisk {
        OnDisk::new(name, |path| {
            let owned = Owned::new("w", Dtype::U8, &[LEN as u64]);
            write_aligned(path, &[owned.tensor()], &[], Default::default()).expect("writes");
        })
    }

    /// Drops its pages from the page cache.
    fn evict(&self) {
        let file = fs::File::open(&self.0).expect("opens");
        file.sync_all().expect("syncs");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("evicts");
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A number of bytes that `/proc/self/status` gives in kB.
fn status(field: &str) -> usize {
    let text = fs::read_to_string("/proc/self/status").expect("reads");
    let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

/// Resident bytes of the mapping that an address is in.
fn resident(address: *const u8) -> usize {
    let text = fs::read_to_string("/proc/self/smaps").expect("reads");
    let mut inside = false;
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let parsed = range
            .and_then(|(from, to)| Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?)));
        if let Some((from, to)) = parsed {
            inside = (from..to).contains(&address.addr());
        } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| inside) {
            return size.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10;
        }
    }
    0
}

/// Bytes of a file in the page cache, by the pages of a view of it.
fn cached(view: &View) -> usize {
    let (start, len) = view.span();
    let page = 4096;
    let first = start.addr() / page * page;
    let mut pages = vec![0u8; (start.addr() + len - first).div_ceil(page)];
    // SAFETY: the range is that of the view, rounded to its pages, and there is a byte for each page.
    let done = unsafe { libc::mincore(first as *mut libc::c_void, pages.len() * page, pages.as_mut_ptr()) };
    assert_eq!(done, 0);
    pages.iter().filter(|&&page| page & 1 == 1).count() * page
}

/// Waits for another thread or the kernel, at most a minute.
fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let start = std::time::Instant::now();
    while !holds() {
        if start.elapsed().as_secs() >= 60 {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn touch(view: &View) -> u64 {
    bytes_of(view).iter().step_by(4096).map(|&byte| u64::from(byte)).sum()
}

#[test]
fn do_not_need_evicts_the_pages_of_the_view() {
    let _alone = alone();
    let file = OnDisk::aligned("evicted");
    let view = File::open(&file.0, &OpenOptions::default()).expect("opens").map("w").expect("maps");
    let sum = touch(&view);
    let start = view.span().0;
    assert!(resident(start) >= LEN, "{} are resident", resident(start));
    view.advise(Advice::DoNotNeed).expect("advises");
    assert!(resident(start) < LEN / 8, "{} are still resident", resident(start));
    assert_eq!(touch(&view), sum);
}

#[test]
fn will_need_reads_the_file_ahead() {
    let _alone = alone();
    let file = OnDisk::aligned("needed");
    file.evict();
    let view = File::open(&file.0, &OpenOptions::default()).expect("opens").map("w").expect("maps");
    if cached(&view) > LEN / 2 {
        eprintln!("SKIPPED: this file system does not evict pages");
        return;
    }
    view.advise(Advice::WillNeed).expect("advises");
    // Linux reads ahead only as much as the device allows in one call. It has to be more than opening the file reads.
    assert!(eventually(|| cached(&view) >= 128 << 10), "{} of {LEN} are cached", cached(&view));
}

#[test]
fn populate_maps_the_whole_file_and_the_default_does_not() {
    let _alone = alone();
    let file = OnDisk::aligned("populated");
    let expected = Owned::new("w", Dtype::U8, &[LEN as u64]).data;
    for map in [MapMode::Shared, MapMode::CopyOnWrite] {
        for read_ahead in [ReadAhead::None, ReadAhead::Populate, ReadAhead::Background] {
            let options = OpenOptions { map, read_ahead, ..OpenOptions::default() };
            let view = File::open(&file.0, &options).expect("opens").map("w").expect("maps");
            let resident = || resident(view.span().0);
            match read_ahead {
                // Control.
                ReadAhead::None => assert!(resident() < LEN / 8, "{} are resident", resident()),
                ReadAhead::Populate => assert!(resident() >= LEN, "{} are resident", resident()),
                ReadAhead::Background => assert!(eventually(|| resident() >= LEN), "{} are resident", resident()),
            }
            assert!(bytes_of(&view) == expected);
        }
    }
}

#[test]
fn a_copy_is_freed_with_its_last_view() {
    let _alone = alone();
    let file = OnDisk::new("copied", |path| {
        let tensors = [Owned::new("odd", Dtype::U8, &[1]), Owned::new("w", Dtype::F32, &[LEN as u64 / 4])];
        let mut bytes = common::packed(&tensors);
        if bytes.len().is_multiple_of(4) {
            let tensors = [Owned::new("odd", Dtype::U8, &[2]), Owned::new("w", Dtype::F32, &[LEN as u64 / 4])];
            bytes = common::packed(&tensors);
        }
        fs::write(path, bytes).expect("writes");
    });
    let open = File::open(&file.0, &OpenOptions::default()).expect("opens");
    let before = status("RssAnon");
    for _ in 0..4 {
        let view = open.map("w").expect("maps");
        assert_eq!(view.origin(), Origin::Copied);
        let other = open.map("w").expect("maps");
        let with_copy = status("RssAnon");
        assert!(with_copy >= before + LEN && with_copy < before + 2 * LEN, "{before} and {with_copy}");
        drop(view);
        assert!(status("RssAnon") >= before + LEN);
        drop(other);
        assert!(status("RssAnon") < before + LEN / 8, "{before} and {}", status("RssAnon"));
    }
}
