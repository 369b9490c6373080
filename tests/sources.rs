//! Files that are opened by path, by descriptor and from memory, and whether they are still current.

mod common;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use common::{Owned, bytes_of, hostile, packed, temporary_directory};
use safealign::dtype::Dtype;
use safealign::error::Status;
use safealign::map::{File, MapMode, OpenOptions, Origin};

fn check_content(file: &File) {
    for owned in hostile() {
        let view = file.map(&owned.name).expect("maps");
        assert_eq!(bytes_of(&view), owned.data, "{}", owned.name);
        assert!(view.span().0.addr().is_multiple_of(owned.dtype.width() as usize), "{}", owned.name);
    }
}

#[test]
fn a_model_inside_another_file_opens_at_any_offset() {
    let root = temporary_directory();
    let (path, model) = (root.path().join("archive"), packed(&hostile()));
    for before in [0, 1, 7, 64, 4095, 4096, 10_001] {
        let content = [&vec![0xee; before][..], &model, b"after"].concat();
        fs::write(&path, content).expect("writes");
        let archive = fs::File::open(&path).expect("opens");
        let (offset, len) = (before as u64, model.len() as u64);
        for map in [MapMode::Shared, MapMode::CopyOnWrite] {
            let options = OpenOptions { map, ..OpenOptions::default() };
            let file = File::open_descriptor(archive.as_fd(), offset, Some(len), &options).expect("opens");
            check_content(&file);
            assert_eq!((file.stats().file_size, file.stats().trailing_bytes, file.path()), (len, 0, None));
            // The bytes that are read through the descriptor are those at the offsets of the header.
            let (descriptor, start) = file.descriptor().expect("a descriptor");
            let reader = fs::File::from(descriptor.try_clone_to_owned().expect("dup"));
            let wide = file.get(file.find("wide").expect("is there")).expect("is there");
            let mut read = vec![0; wide.nbytes() as usize];
            reader.read_exact_at(&mut read, start + file.header().data_start() + wide.begin).expect("reads");
            assert_eq!(read, hostile()[6].data);
        }
        let rest = File::open_descriptor(archive.as_fd(), offset, None, &OpenOptions::default()).expect("opens");
        assert_eq!(rest.stats().trailing_bytes, 5);
        for (offset, len, status) in [
            (offset, Some(len + 6), Status::Truncated),
            (offset + len + 6, None, Status::Truncated),
            (u64::MAX, Some(1), Status::Truncated),
        ] {
            let error = File::open_descriptor(archive.as_fd(), offset, len, &OpenOptions::default()).err();
            assert_eq!(error.map(|error| error.status()), Some(status), "{offset} {len:?}");
        }
    }
}

#[test]
fn an_odd_offset_makes_aligned_tensors_misaligned() {
    let root = temporary_directory();
    let path = root.path().join("archive");
    let aligned = {
        let owned = [Owned::new("w", Dtype::F32, &[64])];
        let path = root.path().join("model");
        let tensors: Vec<_> = owned.iter().map(Owned::tensor).collect();
        safealign::writer::write_aligned(&path, &tensors, &[], Default::default()).expect("writes");
        fs::read(path).expect("reads")
    };
    for (before, origin) in [(64, Origin::Mapped), (65, Origin::Copied)] {
        fs::write(&path, [&vec![0; before][..], &aligned].concat()).expect("writes");
        let archive = fs::File::open(&path).expect("opens");
        let file = File::open_descriptor(archive.as_fd(), before as u64, None, &OpenOptions::default()).expect("opens");
        assert_eq!(file.map("w").expect("maps").origin(), origin);
        assert_eq!(file.stats().misaligned_tensors, u64::from(origin == Origin::Copied));
    }
}

#[test]
fn a_descriptor_may_be_closed_and_must_be_a_regular_file() {
    let root = temporary_directory();
    let path = root.path().join("x");
    fs::write(&path, packed(&hostile())).expect("writes");
    let file = {
        let descriptor = fs::File::open(&path).expect("opens");
        File::open_descriptor(descriptor.as_fd(), 0, None, &OpenOptions::default()).expect("opens")
    };
    fs::remove_file(&path).expect("removes");
    check_content(&file);
    let directory = fs::File::open(root.path()).expect("opens");
    let error = File::open_descriptor(directory.as_fd(), 0, None, &OpenOptions::default()).err().expect("a directory");
    assert_eq!(error.status(), Status::Io);
    assert_eq!(file.is_current().expect_err("no path").status(), Status::InvalidArgument);
}

#[test]
fn bytes_in_memory_open_like_a_file() {
    let file = File::open_bytes(packed(&hostile()), &OpenOptions::default()).expect("opens");
    check_content(&file);
    assert!(!file.stats().is_mapped && file.path().is_none() && file.descriptor().is_err());
    let wide = file.map("wide").expect("maps");
    drop(file);
    assert_eq!(bytes_of(&wide), hostile()[6].data);
    for case in ["trunc_tail", "overlap_partial", "file_7_bytes", "file_empty", "len_u64max"] {
        let bytes = fs::read(common::cases().join(format!("{case}.safetensors"))).expect("reads");
        let path = common::cases().join(format!("{case}.safetensors"));
        let expected = File::open(&path, &OpenOptions::default()).err().expect("is malformed");
        let found = File::open_bytes(bytes, &OpenOptions::default()).err().expect("is malformed");
        assert_eq!((found.status(), found.message()), (expected.status(), expected.message()), "{case}");
    }
    let options = OpenOptions { map: MapMode::CopyOnWrite, ..OpenOptions::default() };
    let error = File::open_bytes(packed(&hostile()), &options).err().expect("read-only");
    assert_eq!(error.status(), Status::InvalidArgument);
}

#[test]
fn the_descriptor_of_a_replaced_file_is_an_error() {
    let root = temporary_directory();
    let path = root.path().join("x");
    fs::write(&path, packed(&hostile())).expect("writes");
    let open = || File::open(&path, &OpenOptions::default()).expect("opens");
    let (file, early) = (open(), open());
    let inode = |file: &File| {
        let owned = file.descriptor().expect("a descriptor").0.try_clone_to_owned().expect("dup");
        fs::File::from(owned).metadata().expect("stat").ino()
    };
    let before = inode(&early);
    fs::copy(&path, root.path().join("new")).expect("copies");
    fs::rename(root.path().join("new"), &path).expect("renames");
    assert_eq!(file.descriptor().expect_err("another file").status(), Status::Changed);
    assert_eq!(inode(&early), before);
}

#[test]
fn a_file_is_current_until_its_path_names_another_one() {
    let root = temporary_directory();
    let (path, new) = (root.path().join("x"), root.path().join("new"));
    fs::write(&path, packed(&hostile())).expect("writes");
    let open = || File::open(&path, &OpenOptions::default()).expect("opens");
    let file = open();
    assert!(file.is_current().expect("stat"));
    // Reading, and another name for the file, make no difference.
    check_content(&file);
    fs::hard_link(&path, &new).expect("links");
    assert!(file.is_current().expect("stat"));
    fs::remove_file(&new).expect("removes");
    // The same bytes in another file are another file.
    fs::copy(&path, &new).expect("copies");
    let before = fs::metadata(&path).expect("stat").ino();
    fs::rename(&new, &path).expect("renames");
    assert_ne!(fs::metadata(&path).expect("stat").ino(), before);
    assert!(!file.is_current().expect("stat"));
    check_content(&file);
    // Modified in place.
    let file = open();
    let handle = fs::File::options().write(true).open(&path).expect("opens");
    handle.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("sets");
    assert!(!file.is_current().expect("stat"));
    let file = open();
    fs::remove_file(&path).expect("removes");
    assert!(!file.is_current().expect("stat"));
}
