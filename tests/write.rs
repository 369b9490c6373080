//! Writing: the files that are written, and that the old file stays if a call fails.

mod common;

use std::fs::{self, Permissions};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use common::{Owned, hostile, temporary_directory};
use safealign::dtype::Dtype;
use safealign::error::Status;
use safealign::layout::{Layout, LayoutOptions, TensorSpec};
use safealign::map::{Advice, File, MapMode, OpenOptions, Origin};
use safealign::writer::{Durability, Tensor, WriteOptions, Writer, WriterOptions, write_aligned};

fn tensors(owned: &[Owned]) -> Vec<Tensor<'_>> {
    owned.iter().map(Owned::tensor).collect()
}

fn write(path: &Path, owned: &[Owned]) {
    let options = WriteOptions { durability: Durability::NotDurable, ..WriteOptions::default() };
    write_aligned(path, &tensors(owned), &[("format", "pt")], options).expect("writes");
}

fn assert_holds(path: &Path, owned: &[Owned]) -> File {
    let file = File::open(path, &OpenOptions::default()).expect("opens");
    assert_eq!(file.len(), owned.len());
    for tensor in owned {
        let view = file.map(&tensor.name).expect("maps");
        assert_eq!((view.info().dtype, view.info().shape), (Some(tensor.dtype), &tensor.shape[..]));
        assert_eq!(common::bytes_of(&view), tensor.data, "{}", tensor.name);
    }
    file
}

/// The directory has exactly these entries: no temporary file is left.
fn assert_only(directory: &Path, names: &[&str]) {
    let mut found: Vec<_> =
        fs::read_dir(directory).expect("lists").map(|entry| entry.expect("an entry").file_name()).collect();
    found.sort();
    assert_eq!(found, names);
}

#[test]
fn every_tensor_shares_the_mapping() {
    let root = temporary_directory();
    let owned = hostile();
    for (layout, alignment) in
        [(Layout::Compact, 64), (Layout::Compact, 8), (Layout::Padded, 8), (Layout::Padded, 4096)]
    {
        let path = root.path().join("m.safetensors");
        let options = WriteOptions { layout: LayoutOptions { layout, alignment }, ..WriteOptions::default() };
        let report = write_aligned(&path, &tensors(&owned), &[], options).expect("writes");
        let file = assert_holds(&path, &owned);
        let stats = file.stats();
        assert_eq!((stats.misaligned_tensors, stats.tensors_copied), (0, 0));
        assert_eq!(stats.tensors_mapped, owned.len() as u64);
        assert_eq!(report.file_size, fs::metadata(&path).expect("stat").len());
        assert_eq!((report.gap_bytes, report.tensors), (stats.gap_bytes, owned.len() as u64));
        assert_eq!(report.tensors_moved > 0, layout == Layout::Compact);
        let reference = safetensors::SafeTensors::deserialize(&fs::read(&path).expect("reads")).map(|_| ());
        assert_eq!(reference.is_ok(), layout == Layout::Compact, "{reference:?}");
        let strict = File::open(&path, &OpenOptions { strict: true, ..OpenOptions::default() });
        assert_eq!(
            strict.map(|_| ()).map_err(|error| error.status()),
            match layout {
                Layout::Compact => Ok(()),
                Layout::Padded => Err(Status::Nonconforming),
            }
        );
    }
    // Control: the same tensors, written without alignment.
    let path = root.path().join("packed.safetensors");
    fs::write(&path, common::packed(&owned)).expect("writes");
    let file = assert_holds(&path, &owned);
    let stats = file.stats();
    assert!(stats.misaligned_tensors > 5);
    assert_eq!((stats.tensors_copied, stats.bytes_copied), (stats.misaligned_tensors, stats.misaligned_bytes));
}

#[test]
fn files_without_tensors_can_be_written() {
    let root = temporary_directory();
    let path = root.path().join("empty.safetensors");
    write_aligned(&path, &[], &[], WriteOptions::default()).expect("writes");
    assert_eq!(fs::metadata(&path).expect("stat").len(), 64);
    write_aligned(&path, &[], &[("a", "b\0c"), ("", "")], WriteOptions::default()).expect("writes");
    let file = File::open(&path, &OpenOptions::default()).expect("opens");
    assert_eq!(file.header().metadata().collect::<Vec<_>>(), [("a", "b\0c"), ("", "")]);
    assert!(file.is_empty());
}

#[test]
fn the_mode_of_a_replaced_file_is_kept_and_a_new_file_follows_the_umask() {
    let root = temporary_directory();
    let path = root.path().join("m.safetensors");
    // A file created by other means has the mode that the umask gives.
    let other = root.path().join("other");
    fs::File::create(&other).expect("creates");
    let mode = |path: &Path| fs::metadata(path).expect("stat").mode() & 0o7777;
    write(&path, &hostile());
    assert_eq!(mode(&path), mode(&other));
    for kept in [0o600, 0o640, 0o666, 0o444, 0o755] {
        fs::set_permissions(&path, Permissions::from_mode(kept)).expect("chmod");
        write(&path, &hostile());
        assert_eq!(mode(&path), kept);
    }
    assert_only(root.path(), &["m.safetensors", "other"]);
}

#[test]
fn a_symbolic_link_is_replaced_and_its_target_stays() {
    let root = temporary_directory();
    let (blob, link) = (root.path().join("blob"), root.path().join("m.safetensors"));
    fs::write(&blob, "a blob named by its hash").expect("writes");
    symlink(&blob, &link).expect("links");
    write(&link, &hostile());
    assert!(!fs::symlink_metadata(&link).expect("stat").is_symlink());
    assert_eq!(fs::read_to_string(&blob).expect("reads"), "a blob named by its hash");
    symlink(root.path().join("nowhere"), root.path().join("dangling")).expect("links");
    write(&root.path().join("dangling"), &hostile());
    assert_holds(&root.path().join("dangling"), &hostile());
}

#[test]
fn files_that_are_not_regular_are_refused() {
    let root = temporary_directory();
    let (fifo, directory) = (root.path().join("fifo.safetensors"), root.path().join("dir.safetensors"));
    fs::create_dir(&directory).expect("mkdir");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success());
    let socket = root.path().join("socket.safetensors");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("binds");
    for (path, what) in
        [(&*fifo, "a FIFO"), (&*directory, "a directory"), (&*socket, "a socket"), (Path::new("/dev/zero"), "a device")]
    {
        let read = File::open(path, &OpenOptions::default()).err().expect("no file");
        let write = write_aligned(path, &[], &[], WriteOptions::default()).expect_err("no file");
        for error in [read, write] {
            assert_eq!(error.status(), Status::Io);
            assert!(error.to_string().contains(what) && error.path() == Some(path), "{error}");
        }
    }
    for path in ["", "/", "..", "no such directory/m.safetensors", "a\0b"] {
        let error = write_aligned(Path::new(path), &[], &[], WriteOptions::default()).expect_err(path);
        assert!(matches!(error.status(), Status::InvalidArgument | Status::Io), "{path}: {error}");
    }
    let trailing = format!("{}/new/", root.path().display());
    let error = write_aligned(Path::new(&trailing), &[], &[], WriteOptions::default()).expect_err("a slash");
    assert_eq!(error.status(), Status::InvalidArgument);
    assert_only(root.path(), &["dir.safetensors", "fifo.safetensors", "socket.safetensors"]);
}

#[test]
fn a_cancelled_write_leaves_the_old_file_and_nothing_else() {
    let root = temporary_directory();
    let path = root.path().join("m.safetensors");
    write(&path, &hostile());
    let before = fs::read(&path).expect("reads");
    let large = [Owned::new("large", Dtype::U8, &[40 << 20])];
    let mut seen = Vec::new();
    let mut progress = |done, total| {
        seen.push((done, total));
        if seen.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = WriteOptions { progress: Some(&mut progress), ..WriteOptions::default() };
    let error = write_aligned(&path, &tensors(&large), &[], options).expect_err("cancelled");
    assert_eq!(error.status(), Status::Cancelled);
    assert!(seen[0].0 < seen[1].0 && seen[1].0 < seen[1].1, "{seen:?}");
    assert_eq!(fs::read(&path).expect("reads"), before);
    assert_only(root.path(), &["m.safetensors"]);
    // Control: not cancelled, the progress reaches the file size and the file is replaced.
    let mut seen = Vec::new();
    let mut progress = |done, total| {
        seen.push((done, total));
        ControlFlow::Continue(())
    };
    let options = WriteOptions { progress: Some(&mut progress), ..WriteOptions::default() };
    let report = write_aligned(&path, &tensors(&large), &[], options).expect("writes");
    assert!(seen.is_sorted_by(|one, next| one.0 < next.0), "{seen:?}");
    assert_eq!(seen.last(), Some(&(report.file_size, report.file_size)));
    assert_holds(&path, &large);
}

#[test]
fn a_file_may_be_saved_over_while_it_is_mapped() {
    let root = temporary_directory();
    let path = root.path().join("m.safetensors");
    let owned = hostile();
    write(&path, &owned);
    let file = File::open(&path, &OpenOptions::default()).expect("opens");
    let wide = file.map("wide").expect("maps");
    let (from_itself, mut other) = (common::bytes_of(&wide), Owned::new("wide", Dtype::F32, &[16, 16]));
    // Saved from its own mapping, then with other bytes.
    let tensor = Tensor { name: "wide", dtype: Dtype::F32, shape: &[16, 16], data: from_itself };
    write_aligned(&path, &[tensor], &[], WriteOptions::default()).expect("writes");
    other.data.fill(7);
    write(&path, &[other]);
    let old = owned.iter().find(|tensor| tensor.name == "wide").expect("is there");
    assert_eq!(common::bytes_of(&wide), old.data);
    let new = File::open(&path, &OpenOptions::default()).expect("opens");
    assert_eq!(common::bytes_of(&new.map("wide").expect("maps")), [7; 1024]);
}

#[test]
fn buffers_may_overlap_and_have_any_address() {
    let root = temporary_directory();
    let path = root.path().join("m.safetensors");
    let buffer = common::bytes(4096 + 16, 5);
    let names: Vec<String> = (0..16).map(|number| format!("t{number}")).collect();
    let tensors: Vec<Tensor> = names
        .iter()
        .enumerate()
        .map(|(at, name)| Tensor { name, dtype: Dtype::F64, shape: &[512], data: &buffer[at..at + 4096] })
        .collect();
    write_aligned(&path, &tensors, &[], WriteOptions::default()).expect("writes");
    let file = File::open(&path, &OpenOptions::default()).expect("opens");
    for tensor in tensors {
        assert_eq!(common::bytes_of(&file.map(tensor.name).expect("maps")), tensor.data);
    }
}

#[test]
fn pieces_are_written_in_any_order_and_on_any_thread() {
    let root = temporary_directory();
    let path = root.path().join("m.safetensors");
    let owned = hostile();
    let specs: Vec<TensorSpec> = owned.iter().map(|tensor| tensor.tensor().spec()).collect();
    for layout in [Layout::Compact, Layout::Padded] {
        let options = WriteOptions {
            layout: LayoutOptions { layout, alignment: 64 },
            durability: Durability::NotDurable,
            progress: None,
        };
        let mut writer = Writer::open(
            &path,
            &specs,
            &[("k", "v")],
            WriterOptions { layout: options.layout, durability: options.durability, progress: None },
        )
        .expect("opens");
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (writer, owned) = (&writer, &owned);
                scope.spawn(move || {
                    for (index, tensor) in owned.iter().enumerate() {
                        for (piece, data) in tensor.data.chunks(7).enumerate().skip(worker).step_by(4) {
                            writer.put_at(index, piece as u64 * 7, data).expect("puts");
                        }
                    }
                });
            }
        });
        writer.finish().expect("finishes");
        assert_eq!(writer.finish().expect_err("twice").status(), Status::InvalidArgument);
        let in_pieces = fs::read(&path).expect("reads");
        write_aligned(&path, &tensors(&owned), &[("k", "v")], options).expect("writes");
        assert_eq!(fs::read(&path).expect("reads"), in_pieces);
    }
}

#[test]
fn a_missing_byte_is_named_and_can_be_written_later() {
    let root = temporary_directory();
    let path = root.path().join("m.safetensors");
    let (ten, data) = (TensorSpec { name: "ten", dtype: Dtype::U8, shape: &[10], nbytes: 10 }, common::bytes(10, 1));
    let mut writer = Writer::open(&path, &[ten], &[], WriterOptions::default()).expect("opens");
    let missing = |writer: &mut Writer| {
        let error = writer.finish().expect_err("a byte is missing");
        assert_eq!((error.status(), error.path()), (Status::InvalidArgument, Some(&*path)));
        assert!(!path.exists());
        let first = writer.first_missing().expect("a range");
        let range = format!("bytes {} to {} of", first.offset, first.offset + first.nbytes);
        assert!(first.index == 0 && error.message().contains(&range), "{error}, {first:?}");
        error.message().to_owned()
    };
    assert_eq!(missing(&mut writer), "tensor `ten`: bytes 0 to 10 of its 10 are missing");
    writer.put_at(0, 6, &data[6..]).expect("puts");
    // A piece that is written twice is counted once.
    writer.put_at(0, 6, &data[6..]).expect("puts");
    writer.put_at(0, 2, &[]).expect("puts");
    assert_eq!(missing(&mut writer), "tensor `ten`: bytes 0 to 6 of its 10 are missing");
    writer.put_at(0, 0, &data[..5]).expect("puts");
    assert_eq!(missing(&mut writer), "tensor `ten`: bytes 5 to 6 of its 10 are missing");
    for (index, offset, len) in [(1, 0, 1), (0, 10, 1), (0, 11, 0), (0, u64::MAX, 2), (0, 5, 6)] {
        let error = writer.put_at(index, offset, &data[..len]).expect_err("does not fit");
        let expected = if index == 1 { Status::NotFound } else { Status::InvalidArgument };
        assert_eq!(error.status(), expected, "{error}");
    }
    assert_eq!(writer.put(0, &data[..9]).expect_err("short").status(), Status::InvalidArgument);
    // A piece that does not fit changes nothing.
    assert_eq!(missing(&mut writer), "tensor `ten`: bytes 5 to 6 of its 10 are missing");
    assert_eq!(writer.bytes_missing(), 1);
    writer.put_at(0, 4, &data[4..7]).expect("puts");
    assert!(writer.bytes_missing() == 0 && writer.first_missing().is_none());
    writer.finish().expect("finishes");
    let file = File::open(&path, &OpenOptions::default()).expect("opens");
    assert_eq!(common::bytes_of(&file.map("ten").expect("maps")), data);
}

#[test]
fn a_dropped_writer_leaves_nothing() {
    let root = temporary_directory();
    let path = root.path().join("m.safetensors");
    let specs = [TensorSpec { name: "w", dtype: Dtype::U8, shape: &[10], nbytes: 10 }];
    let writer = Writer::open(&path, &specs, &[], WriterOptions::default()).expect("opens");
    writer.put(0, &[1; 10]).expect("puts");
    drop(writer);
    assert_only(root.path(), &[]);
}

#[test]
fn finish_checks_the_file_that_is_replaced() {
    let root = temporary_directory();
    let specs = [TensorSpec { name: "w", dtype: Dtype::U8, shape: &[3], nbytes: 3 }];
    let open = |path: &Path| {
        let writer = Writer::open(path, &specs, &[], WriterOptions::default()).expect("opens");
        writer.put(0, &[1, 2, 3]).expect("puts");
        writer
    };
    // A private file that was created after the writer was opened: its mode is kept.
    let private = root.path().join("private.safetensors");
    let mut writer = open(&private);
    fs::write(&private, "private").expect("writes");
    fs::set_permissions(&private, Permissions::from_mode(0o600)).expect("chmod");
    writer.finish().expect("finishes");
    assert_eq!(fs::metadata(&private).expect("stat").mode() & 0o7777, 0o600);
    assert!(File::open(&private, &OpenOptions::default()).is_ok());
    // A directory stays.
    let directory = root.path().join("directory.safetensors");
    let mut writer = open(&directory);
    fs::create_dir(&directory).expect("creates");
    assert_eq!(writer.finish().expect_err("is a directory").status(), Status::Io);
    drop(writer);
    assert_only(root.path(), &["directory.safetensors", "private.safetensors"]);
    assert!(directory.is_dir());
}

#[test]
fn copy_on_write_leaves_the_file_as_it_is() {
    let root = temporary_directory();
    let path = root.path().join("m.safetensors");
    write(&path, &hostile());
    let before = fs::read(&path).expect("reads");
    let options = OpenOptions { map: MapMode::CopyOnWrite, ..OpenOptions::default() };
    let file = File::open(&path, &options).expect("opens");
    let view = file.map("wide").expect("maps");
    assert_eq!(view.origin(), Origin::Mapped);
    let (_, len) = view.span();
    let start = view.writable().expect("copy-on-write");
    // SAFETY: the mapping is private and writable, the span lies in it, and nothing else accesses it.
    unsafe { start.write_bytes(0xab, len) };
    // The written pages are the only copy of their content and must not be dropped.
    view.advise(Advice::DoNotNeed).expect("advises");
    assert_eq!(common::bytes_of(&view), vec![0xab; len]);
    assert_eq!(common::bytes_of(&file.map("wide").expect("maps")), vec![0xab; len]);
    assert_eq!(fs::read(&path).expect("reads"), before);
    let shared = File::open(&path, &OpenOptions::default()).expect("opens").map("wide").expect("maps");
    assert_ne!(common::bytes_of(&shared), vec![0xab; len]);
    assert_eq!(shared.writable().expect_err("is read-only").status(), Status::InvalidArgument);
    // The copy of a misaligned tensor is writable too.
    fs::write(&path, common::packed(&hostile())).expect("writes");
    let file = File::open(&path, &options).expect("opens");
    for index in 0..file.len() {
        let view = file.map_at(index).expect("maps");
        let (start, len) = (view.writable().expect("copy-on-write"), view.span().1);
        // SAFETY: as above; a copy belongs to the file that is open.
        unsafe { start.write_bytes(0xcd, len) };
        assert_eq!(common::bytes_of(&file.map_at(index).expect("maps")), vec![0xcd; len]);
    }
    assert!(file.stats().tensors_copied > 0);
}

#[test]
fn advice_changes_no_byte() {
    let root = temporary_directory();
    let path = root.path().join("m.safetensors");
    let owned = hostile();
    fs::write(&path, common::packed(&owned)).expect("writes");
    let file = File::open(&path, &OpenOptions::default()).expect("opens");
    for tensor in &owned {
        let view = file.map(&tensor.name).expect("maps");
        for advice in [Advice::WillNeed, Advice::Random, Advice::Sequential, Advice::DoNotNeed] {
            view.advise(advice).expect("advises");
            assert_eq!(common::bytes_of(&view), tensor.data);
        }
    }
}

#[test]
fn a_copy_is_shared_by_its_views_and_counted_once() {
    let root = temporary_directory();
    let path = root.path().join("m.safetensors");
    let owned = hostile();
    fs::write(&path, common::packed(&owned)).expect("writes");
    let file = File::open(&path, &OpenOptions::default()).expect("opens");
    let misaligned = (0..file.len()).find(|&at| file.map_at(at).is_ok_and(|view| view.origin() == Origin::Copied));
    let index = misaligned.expect("one is misaligned");
    let copied = file.stats().tensors_copied;
    let (one, two) = (file.map_at(index).expect("maps"), file.map_at(index).expect("maps"));
    assert_eq!(one.span(), two.span());
    let expected = common::bytes_of(&one).to_vec();
    // Released with its last view and made again, it is counted once.
    drop((one, two));
    assert_eq!(common::bytes_of(&file.map_at(index).expect("maps")), expected);
    assert_eq!((copied, file.stats().tensors_copied, file.stats().bytes_copied), (1, 1, expected.len() as u64));
    let last = file.map_at(index).expect("maps");
    drop(file);
    assert_eq!(common::bytes_of(&last), expected);
}

/// Above 4 GiB 32-bit sizes overflow, and one `write` transfers at most 2 GiB.
#[test]
fn files_over_four_gib_are_written_completely() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on the disk");
    let path = root.path().join("large.safetensors");
    let len = (4 << 30) + 12_345;
    // Only the first and the last page are touched and use memory.
    let mut large = memmap2::MmapMut::map_anon(len).expect("maps");
    (large[0], large[len - 1]) = (1, 2);
    let small = common::bytes(1000, 3);
    let tensors = [
        Tensor { name: "large", dtype: Dtype::U8, shape: &[len as u64], data: &large },
        Tensor { name: "small", dtype: Dtype::U8, shape: &[1000], data: &small },
    ];
    let options = WriteOptions { durability: Durability::NotDurable, ..WriteOptions::default() };
    let report = write_aligned(&path, &tensors, &[], options).expect("writes");
    assert!(report.file_size > len as u64 + 1000);
    let file = File::open(&path, &OpenOptions::default()).expect("opens");
    let view = file.map("large").expect("maps");
    assert_eq!((common::bytes_of(&view)[0], common::bytes_of(&view)[1], common::bytes_of(&view)[len - 1]), (1, 0, 2));
    assert_eq!(common::bytes_of(&file.map("small").expect("maps")), small);
}

/// Direct I/O through staging buffers: every byte is at its offset, for sizes around those of a buffer and of a block.
#[test]
fn large_durable_files_are_written_completely() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on the disk");
    let path = root.path().join("large.safetensors");
    let large = common::bytes(8 << 20, 9).repeat(65);
    let sizes = [8 << 20, 4096, 1, (8 << 20) - 64, 4095, 12_345_678, 500 << 20];
    let names: Vec<String> = sizes.iter().map(|size| format!("{size} bytes")).collect();
    let shapes = sizes.map(|size| [size as u64]);
    let tensors: Vec<Tensor> = (0..sizes.len())
        .map(|at| Tensor {
            name: &names[at],
            dtype: Dtype::U8,
            shape: &shapes[at],
            data: &large[at * 7..][..sizes[at]],
        })
        .collect();
    let mut seen = Vec::new();
    let mut progress = |done, total| {
        seen.push((done, total));
        ControlFlow::Continue(())
    };
    let options = WriteOptions { progress: Some(&mut progress), ..WriteOptions::default() };
    let report = write_aligned(&path, &tensors, &[], options).expect("writes");
    assert!(report.file_size > 512 << 20 && !report.file_size.is_multiple_of(4096), "{report:?}");
    assert!(seen.is_sorted() && seen.len() > 60 && seen.last() == Some(&(report.file_size, report.file_size)));
    let file = File::open(&path, &OpenOptions { strict: true, ..OpenOptions::default() }).expect("opens");
    for tensor in &tensors {
        assert!(common::bytes_of(&file.map(tensor.name).expect("maps")) == tensor.data, "{}", tensor.name);
    }
    let mut stop = |done, _| if done > 100 << 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let options = WriteOptions { progress: Some(&mut stop), ..WriteOptions::default() };
    let before = fs::metadata(&path).expect("stat").ino();
    let error = write_aligned(&path, &tensors, &[], options).expect_err("cancelled");
    assert_eq!(error.status(), Status::Cancelled);
    assert_eq!(fs::metadata(&path).expect("stat").ino(), before);
    assert_only(root.path(), &["large.safetensors"]);
}
