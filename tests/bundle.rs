//! Tests of bundles: opening the cases in `tests/bundles`, a download cache, and writing shards.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::{Owned, packed};
use safealign::bundle::{Bundle, write_sharded};
use safealign::dtype::Dtype;
use safealign::error::{Error, Status};
use safealign::header::HeaderPadding;
use safealign::layout::{Layout, LayoutOptions};
use safealign::map::{File, OpenOptions, Origin, Unaligned};
use safealign::writer::{Durability, Tensor, WriteOptions};

const INDEX: &str = "model.safetensors.index.json";

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bundles").join(name)
}

fn open(path: &Path) -> Bundle {
    Bundle::open(path, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(path: &Path) -> Error {
    match Bundle::open(path, &OpenOptions::default()) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    }
}

fn names(bundle: &Bundle) -> Vec<String> {
    (0..bundle.len()).map(|index| bundle.get(index).expect("is in range").1.name.to_owned()).collect()
}

/// The bytes of each tensor by name.
fn bytes(bundle: &Bundle) -> BTreeMap<String, Vec<u8>> {
    let tensor = |index| {
        let view = bundle.map_at(index).expect("maps");
        // SAFETY: nothing writes to the files of a test while they are read.
        (view.info().name.to_owned(), unsafe { view.bytes() }.to_vec())
    };
    (0..bundle.len()).map(tensor).collect()
}

fn is_misaligned(bundle: &Bundle, index: usize) -> bool {
    let (shard, at) = bundle.location(index).expect("is in range");
    bundle.shards()[shard].is_misaligned(at)
}

/// A file of one-byte tensors.
fn write_model(path: &Path, tensors: &[&str]) {
    let tensors: Vec<Owned> = tensors.iter().map(|name| Owned::new(name, Dtype::U8, &[1])).collect();
    fs::create_dir_all(path.parent().expect("a directory")).expect("creates");
    fs::write(path, packed(&tensors)).expect("writes");
}

fn write_index(path: &Path, entries: &[(&str, &str)]) {
    let map: serde_json::Map<_, _> = entries.iter().map(|&(name, file)| (name.to_owned(), file.into())).collect();
    fs::write(path, serde_json::json!({ "metadata": {}, "weight_map": map }).to_string()).expect("writes");
}

#[test]
fn the_index_decides_which_files_belong_to_a_bundle() {
    for name in ["good", "stray", "consolidated", "variants"] {
        for path in [case(name), case(name).join(INDEX)] {
            let bundle = open(&path);
            assert_eq!(names(&bundle), ["m.a", "m.b", "m.c", "m.d"], "{name}");
            assert_eq!((bundle.shards().len(), bundle.is_empty()), (2, false));
            for (shard, file) in
                ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"].iter().enumerate()
            {
                assert_eq!(bundle.shard_path(shard), Some(&*case(name).join(file)));
            }
            assert_eq!((bundle.path(), bundle.index_path()), (&*path, Some(&*case(name).join(INDEX))));
            assert_eq!(bundle.metadata().collect::<Vec<_>>(), [("total_size", "1")]);
        }
    }
}

#[test]
fn tensors_are_those_of_their_shards() {
    let bundle = open(&case("good"));
    for (index, name) in names(&bundle).iter().enumerate() {
        assert_eq!(bundle.find(name).expect("is found"), index);
        let (shard, at) = bundle.location(index).expect("is in range");
        let file = File::open(bundle.shard_path(shard).expect("a path"), &OpenOptions::default()).expect("opens");
        let (view, alone) = (bundle.map(name).expect("maps"), file.map(name).expect("maps"));
        assert_eq!((bundle.get(index).expect("is in range"), view.info()), ((shard, alone.info()), alone.info()));
        assert_eq!(at, file.find(name).expect("is found"));
        // SAFETY: nothing writes to the files.
        unsafe { assert_eq!(view.bytes(), alone.bytes()) };
        assert_eq!(view.origin(), if file.is_misaligned(at) { Origin::Copied } else { Origin::Mapped });
    }
    for (error, message) in [
        (bundle.find("m.e").expect_err("there is none"), "tensor `m.e`: not found among 4 tensors"),
        (bundle.location(4).expect_err("there is none"), "tensor index 4 is out of range: there are 4 tensors"),
        (bundle.get(4).map(drop).expect_err("there is none"), "tensor index 4 is out of range: there are 4 tensors"),
    ] {
        assert_eq!((error.status(), error.message(), error.path()), (Status::NotFound, message, Some(bundle.path())));
    }
}

#[test]
fn counts_are_sums_over_all_shards() {
    let bundle = open(&case("good"));
    let sizes = bundle.shards().iter().map(|shard| shard.stats().file_size).sum::<u64>();
    let stats = bundle.stats();
    let misaligned: Vec<usize> = (0..4).filter(|&index| is_misaligned(&bundle, index)).collect();
    assert_eq!((stats.tensors, stats.misaligned_tensors, stats.tensors_copied), (4, 2, 0));
    assert_eq!(misaligned.len(), 2);
    assert!(stats.file_size == sizes && stats.is_mapped && stats.header_padding != HeaderPadding::Nul);
    let view = bundle.map_at(misaligned[1]).expect("maps");
    let stats = bundle.stats();
    assert_eq!((stats.tensors_copied, stats.bytes_copied), (1, view.info().nbytes()));
    // A view keeps its shard open.
    let before = bytes(&bundle)[view.info().name].clone();
    drop(bundle);
    // SAFETY: nothing writes to the files.
    assert_eq!(unsafe { view.bytes() }, before);
    let options = OpenOptions { unaligned: Unaligned::Error, ..OpenOptions::default() };
    let strict = Bundle::open(&case("good"), &options).expect("opens");
    let error = strict.map_at(misaligned[0]).err().expect("is misaligned");
    assert_eq!(error.status(), Status::Unaligned);
}

#[test]
fn a_variant_is_a_bundle_of_its_own() {
    let bundle = open(&case("variants/model.safetensors.index.fp16.json"));
    assert_eq!((bundle.len(), bundle.metadata_len()), (4, 0));
    assert!(bundle.shard_path(0).is_some_and(|path| path.ends_with("model.fp16-00001-of-00002.safetensors")));
    // Without a base, the directory is ambiguous.
    let root = directory();
    for variant in ["fp16", "bf16"] {
        write_model(&root.path().join(format!("m.{variant}.safetensors")), &["a"]);
        let file = format!("m.{variant}.safetensors");
        write_index(&root.path().join(format!("m.safetensors.index.{variant}.json")), &[("a", &file)]);
    }
    let error = refused(root.path());
    assert_eq!((error.status(), error.path()), (Status::InvalidArgument, Some(root.path())));
    assert!(error.message().contains("`m.safetensors.index.bf16.json`, `m.safetensors.index.fp16.json`"), "{error}");
}

#[test]
fn a_missing_shard_is_named() {
    for path in [case("missing"), case("missing").join(INDEX)] {
        let error = refused(&path);
        assert_eq!((error.status(), error.os_error()), (Status::Io, libc::ENOENT));
        assert_eq!(error.path(), Some(&*case("missing").join(INDEX)));
        assert!(error.message().starts_with("shard `model-00002-of-00002.safetensors` is missing"), "{error}");
    }
    // Without an index, the names say how many there are.
    let root = directory();
    write_model(&root.path().join("m-00002-of-00003.safetensors"), &["b"]);
    write_model(&root.path().join("m-00003-of-00003.safetensors"), &["c"]);
    let error = refused(root.path());
    assert_eq!((error.status(), error.path()), (Status::Io, Some(root.path())));
    assert!(error.message().starts_with("shard `m-00001-of-00003.safetensors` is missing"), "{error}");
    write_model(&root.path().join("m-00001-of-00003.safetensors"), &["a"]);
    assert_eq!(names(&open(root.path())), ["a", "b", "c"]);
    // A shard that cannot be read is not missing.
    fs::write(root.path().join("m-00002-of-00003.safetensors"), b"short").expect("writes");
    let error = refused(root.path());
    assert_eq!(error.status(), Status::Truncated);
    assert!(error.path().is_some_and(|path| path.ends_with("m-00002-of-00003.safetensors")), "{error}");
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let error = refused(&case("duplicate"));
    assert_eq!((error.status(), error.path()), (Status::Format, Some(&*case("duplicate"))));
    let message = "tensor `m.a`: is in `model-00001-of-00002.safetensors` and in `model-00002-of-00002.safetensors`";
    assert_eq!(error.message(), message);
    // Also if the index names one of them: other loaders take either.
    let root = directory();
    write_model(&root.path().join("1.safetensors"), &["a", "b"]);
    write_model(&root.path().join("2.safetensors"), &["b", "c"]);
    let entries = [("a", "1.safetensors"), ("b", "2.safetensors"), ("c", "2.safetensors")];
    write_index(&root.path().join(INDEX), &entries);
    assert!(refused(root.path()).message().contains("tensor `b`: is in `1.safetensors` and in `2.safetensors`"));
}

#[test]
fn an_index_entry_without_its_tensor_is_refused() {
    let root = directory();
    write_model(&root.path().join("1.safetensors"), &["a"]);
    write_model(&root.path().join("2.safetensors"), &["b", "unlisted"]);
    write_index(&root.path().join(INDEX), &[("a", "1.safetensors"), ("b", "2.safetensors")]);
    let bundle = open(root.path());
    assert_eq!((names(&bundle), bundle.stats().tensors), (vec!["a".to_owned(), "b".to_owned()], 3));
    assert!(bundle.find("unlisted").is_err());
    write_index(&root.path().join(INDEX), &[("a", "1.safetensors"), ("b", "1.safetensors"), ("u", "2.safetensors")]);
    let error = refused(root.path());
    assert_eq!((error.status(), error.path()), (Status::Format, Some(&*root.path().join(INDEX))));
    assert_eq!(error.message(), "tensor `b`: is not in `1.safetensors`, as the index says");
}

#[test]
fn a_malformed_index_is_named() {
    let error = refused(&case("badindex"));
    assert_eq!((error.status(), error.path()), (Status::Format, Some(&*case("badindex").join(INDEX))));
    let root = directory();
    write_model(&root.path().join("model.safetensors"), &["a"]);
    let index = root.path().join(INDEX);
    let file = fs::File::create(&index).expect("creates");
    file.set_len(safealign::bundle::MAX_INDEX_LEN + 1).expect("a sparse file");
    let error = refused(root.path());
    assert_eq!((error.status(), error.path()), (Status::TooLarge, Some(&*index)));
    fs::write(&index, r#"{"weight_map": {"a": "model.safetensors", "a": "model.safetensors"}}"#).expect("writes");
    assert!(refused(root.path()).message().contains("tensor `a` occurs twice"));
    fs::remove_file(&index).expect("removes");
    symlink("nowhere", &index).expect("links");
    let error = refused(root.path());
    assert_eq!((error.status(), error.path()), (Status::Io, Some(&*index)));
}

#[test]
fn an_entry_outside_the_directory_is_refused_before_any_file_is_opened() {
    let error = refused(&case("escape"));
    assert_eq!((error.status(), error.path()), (Status::Format, Some(&*case("escape").join(INDEX))));
    assert!(error.message().contains("`m.b`") && error.message().contains("../good/model-00001"), "{error}");
    let root = directory();
    let inside = root.path().join("inside");
    write_model(&root.path().join("outside.safetensors"), &["a"]);
    write_model(&inside.join("sub/model.safetensors"), &["a"]);
    let absolute = root.path().join("outside.safetensors").to_string_lossy().into_owned();
    for entry in
        ["../outside.safetensors", "sub/../../outside.safetensors", &absolute, "..\\outside.safetensors", "", "a\0"]
    {
        // The first shard does not exist: it would be reported if it were opened.
        write_index(&inside.join(INDEX), &[("0", "missing.safetensors"), ("a", entry)]);
        let error = refused(&inside);
        assert_eq!(error.status(), Status::Format, "{entry}: {error}");
        assert!(error.message().starts_with("tensor `a`: index entry `"), "{error}");
    }
    // Control: below the directory is allowed, and a link may lead anywhere.
    write_index(&inside.join(INDEX), &[("a", "./sub//model.safetensors")]);
    assert_eq!(names(&open(&inside)), ["a"]);
    symlink("../outside.safetensors", inside.join("link.safetensors")).expect("links");
    write_index(&inside.join(INDEX), &[("a", "link.safetensors")]);
    assert_eq!(names(&open(&inside)), ["a"]);
}

#[test]
fn a_snapshot_of_a_download_cache_is_opened_through_its_links() {
    let root = directory();
    let cache = root.path().join("models--org--name");
    let snapshot = cache.join("snapshots/0123456789abcdef0123456789abcdef01234567");
    fs::create_dir_all(cache.join("blobs")).expect("creates");
    fs::create_dir_all(&snapshot).expect("creates");
    fs::create_dir_all(cache.join("refs")).expect("creates");
    let mut entries: Vec<_> = fs::read_dir(case("good")).expect("lists").map(|entry| entry.expect("one")).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for (number, entry) in entries.iter().enumerate() {
        let hash = format!("{number:064x}");
        fs::copy(entry.path(), cache.join("blobs").join(&hash)).expect("copies");
        symlink(Path::new("../../blobs").join(&hash), snapshot.join(entry.file_name())).expect("links");
    }
    let expected = bytes(&open(&case("good")));
    for path in [snapshot.clone(), snapshot.join(INDEX)] {
        assert_eq!(bytes(&open(&path)), expected);
    }
    // A link to the snapshot, and without the index.
    symlink(&snapshot, root.path().join("link")).expect("links");
    assert_eq!(bytes(&open(&root.path().join("link"))), expected);
    fs::remove_file(snapshot.join(INDEX)).expect("removes");
    assert_eq!(bytes(&open(&snapshot)), expected);
    // The repository is not a bundle, but it has one.
    let error = refused(&cache);
    assert_eq!((error.status(), error.path()), (Status::InvalidArgument, Some(&*cache)));
    assert!(error.message().contains("snapshots/0123456789abcdef"), "{error}");
    // A blob that is gone is a missing shard.
    symlink("../../blobs/index", snapshot.join(INDEX)).expect("links");
    fs::copy(case("good").join(INDEX), cache.join("blobs/index")).expect("copies");
    fs::remove_file(cache.join("blobs").join(format!("{:064x}", 0))).expect("removes");
    assert!(refused(&snapshot).message().starts_with("shard `model-00001-of-00002.safetensors` is missing"));
}

#[test]
fn without_an_index_a_directory_must_have_one_set_of_files() {
    let root = directory();
    let error = refused(root.path());
    assert_eq!((error.status(), error.path()), (Status::NotFound, Some(root.path())));
    let shards = ["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"];
    write_model(&root.path().join(shards[0]), &["z"]);
    write_model(&root.path().join(shards[1]), &["a"]);
    fs::write(root.path().join("._m-00001-of-00002.safetensors"), b"AppleDouble").expect("writes");
    fs::write(root.path().join("x.safetensors.incomplete"), b"a part").expect("writes");
    fs::create_dir(root.path().join("directory.safetensors")).expect("creates");
    assert_eq!(names(&open(root.path())), ["z", "a"]);
    for other in ["consolidated.safetensors", "m.safetensors", "m.fp16-00001-of-00001.safetensors"] {
        write_model(&root.path().join(other), &["z", "a"]);
        let error = refused(root.path());
        assert_eq!((error.status(), error.path()), (Status::InvalidArgument, Some(root.path())));
        assert!(error.message().contains("`m-*-of-00002.safetensors` (2 files)"), "{error}");
        assert_eq!(names(&open(&root.path().join(other))), ["z", "a"]);
        fs::remove_file(root.path().join(other)).expect("removes");
    }
    let missing = refused(&root.path().join("nothing"));
    assert_eq!((missing.status(), missing.os_error()), (Status::Io, libc::ENOENT));
}

#[test]
fn a_single_file_is_a_bundle() {
    let root = directory();
    let path = root.path().join("model.safetensors");
    let owned = Owned::new("a", Dtype::F32, &[2]);
    let options = WriteOptions::default();
    safealign::writer::write_aligned(&path, &[owned.tensor()], &[("format", "pt")], options).expect("writes");
    for opened in [&path, root.path()] {
        let bundle = open(opened);
        assert_eq!((names(&bundle), bundle.shards().len(), bundle.index_path()), (vec!["a".to_owned()], 1, None));
        assert_eq!(bundle.metadata().collect::<Vec<_>>(), [("format", "pt")]);
        assert_eq!(bytes(&bundle)["a"], owned.data);
    }
    assert_eq!(open(&case("metadata_empty_object.safetensors")).metadata_len(), 0);
    // A name that is not that of an index is a model file, which then is malformed.
    fs::write(root.path().join("config.json"), "{\"a\": 1}").expect("writes");
    assert!(refused(&root.path().join("config.json")).message().contains("looks like JSON"));
}

#[test]
fn a_bundle_is_used_from_several_threads() {
    let bundle = open(&case("good"));
    let expected = bytes(&bundle);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(bytes(&bundle), expected));
        }
    });
    assert_eq!((bundle.stats().tensors_mapped, bundle.stats().tensors_copied), (2, 2));
}

#[test]
fn a_bundle_with_a_replaced_file_is_not_current() {
    for name in ["1.safetensors", INDEX] {
        let root = directory();
        write_model(&root.path().join("0.safetensors"), &["a"]);
        write_model(&root.path().join("1.safetensors"), &["b"]);
        write_index(&root.path().join(INDEX), &[("a", "0.safetensors"), ("b", "1.safetensors")]);
        let bundle = open(root.path());
        assert!(bundle.is_current().expect("compares"));
        let (path, new) = (root.path().join(name), root.path().join("new"));
        fs::copy(&path, &new).expect("copies");
        fs::rename(&new, &path).expect("renames");
        assert!(!bundle.is_current().expect("compares"), "{name}");
        fs::remove_file(&path).expect("removes");
        assert!(!bundle.is_current().expect("compares"), "{name}");
    }
}

/// Tensors of 4 KiB, a large one, an odd one and an empty one.
fn tensors() -> Vec<Owned> {
    let mut tensors: Vec<Owned> =
        (0..6).map(|layer| Owned::new(&format!("layer.{layer}"), Dtype::F32, &[1024])).collect();
    tensors.insert(3, Owned::new("large", Dtype::Bf16, &[64, 256]));
    tensors.insert(1, Owned::new("odd", Dtype::U8, &[3]));
    tensors.push(Owned::new("empty", Dtype::F32, &[0, 4]));
    tensors
}

fn write(
    directory: &Path,
    owned: &[Owned],
    max_shard_bytes: u64,
    replace: bool,
) -> Result<safealign::bundle::ShardedReport, Error> {
    let tensors: Vec<Tensor> = owned.iter().map(Owned::tensor).collect();
    let options = WriteOptions { durability: Durability::NotDurable, ..WriteOptions::default() };
    write_sharded(directory, "model", max_shard_bytes, &tensors, &[("format", "pt")], options, replace)
}

/// The names and contents of a directory.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).expect("lists").map(|entry| entry.expect("an entry"));
    let content = |entry: fs::DirEntry| {
        (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).expect("reads"))
    };
    entries.map(content).collect()
}

#[test]
fn tensors_are_written_to_shards_and_read_back() {
    let (root, owned) = (directory(), tensors());
    let report = write(root.path(), &owned, 9000, false).expect("writes");
    let shards = [&["layer.0", "odd", "layer.1"][..], &["layer.2"], &["large"], &["layer.3", "layer.4"]];
    let shards: Vec<&[&str]> = shards.into_iter().chain([&["layer.5", "empty"][..]]).collect();
    assert_eq!(report.shards.len(), shards.len());
    for (number, (path, tensors)) in (1..).zip(report.shards.iter().zip(&shards)) {
        assert_eq!(*path, root.path().join(format!("model-{number:05}-of-00005.safetensors")));
        let file = File::open(path, &OpenOptions { strict: true, ..OpenOptions::default() }).expect("opens");
        let mut found: Vec<&str> = file.header().iter().map(|tensor| tensor.name).collect();
        let mut expected = tensors.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!((found, file.stats().misaligned_tensors), (expected, 0));
        assert_eq!(file.header().metadata().collect::<Vec<_>>(), [("format", "pt")]);
    }
    let size: u64 = owned.iter().map(|tensor| tensor.data.len() as u64).sum();
    let files: u64 = report.shards.iter().map(|path| fs::metadata(path).expect("exists").len()).sum();
    assert_eq!((report.tensors, report.tensor_bytes, report.file_bytes), (9, size, files));
    assert_eq!((report.removed, report.gap_bytes), (0, 0));
    let index = report.index.expect("an index");
    assert_eq!(index, root.path().join(INDEX));
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&index).expect("reads")).expect("JSON");
    assert_eq!(json["metadata"], serde_json::json!({ "format": "pt", "total_size": size }));
    assert_eq!(json["weight_map"]["large"], "model-00003-of-00005.safetensors");
    let expected: BTreeMap<String, Vec<u8>> = owned.iter().map(|t| (t.name.clone(), t.data.clone())).collect();
    for path in [root.path(), &index] {
        assert_eq!(bytes(&open(path)), expected);
    }
    // The same input gives the same bytes.
    let again = directory();
    write(again.path(), &owned, 9000, false).expect("writes");
    assert_eq!(contents(again.path()), contents(root.path()));
}

#[test]
fn one_shard_has_no_index() {
    let (root, owned) = (directory(), tensors());
    let size: u64 = owned.iter().map(|tensor| tensor.data.len() as u64).sum();
    let report = write(root.path(), &owned, size, false).expect("writes");
    assert_eq!((report.shards, report.index), (vec![root.path().join("model.safetensors")], None));
    assert_eq!(contents(root.path()).into_keys().collect::<Vec<_>>(), ["model.safetensors"]);
    assert_eq!(open(root.path()).len(), owned.len());
    // Control: with a byte less there are two.
    assert_eq!(write(directory().path(), &owned, size - 1, false).expect("writes").shards.len(), 2);
    let empty = directory();
    assert_eq!(write(empty.path(), &[], 1, false).expect("writes").shards.len(), 1);
    assert!(open(empty.path()).is_empty());
}

#[test]
fn an_existing_bundle_is_replaced_only_on_request() {
    let (root, owned) = (directory(), tensors());
    write(root.path(), &owned, 9000, false).expect("writes");
    for other in ["config.json", "model.fp16-00001-of-00001.safetensors", "other.safetensors"] {
        fs::write(root.path().join(other), other).expect("writes");
    }
    fs::write(root.path().join(".model-00009-of-00009.safetensors.safealign-old"), b"left").expect("writes");
    let before = contents(root.path());
    let mapped = open(root.path());
    let expected = bytes(&mapped);
    for max in [9000, 20_000, u64::MAX] {
        let error = write(root.path(), &owned[..4], max, false).expect_err("is refused");
        assert_eq!((error.status(), error.path()), (Status::Refused, Some(root.path())));
        assert!(error.message().contains("already has 6 files of the prefix `model`"), "{error}");
        assert_eq!(contents(root.path()), before);
    }
    let report = write(root.path(), &owned[..4], 9000, true).expect("writes");
    assert_eq!((report.shards.len(), report.removed), (2, 5));
    let report = write(root.path(), &owned[..3], 9000, true).expect("writes");
    assert_eq!((report.shards, report.removed), (vec![root.path().join("model.safetensors")], 3));
    let report = write(root.path(), &owned, 9000, true).expect("writes");
    assert_eq!((report.shards.len(), report.removed), (5, 1));
    let report = write(root.path(), &owned, 9000, true).expect("writes");
    assert_eq!((report.shards.len(), report.removed), (5, 0));
    let mut after = contents(root.path());
    after.insert(".model-00009-of-00009.safetensors.safealign-old".to_owned(), b"left".to_vec());
    assert_eq!(after, before, "everything of the prefix is as after the first call, and nothing else was touched");
    assert_eq!(bytes(&mapped), expected, "a mapped bundle keeps its content");
}

#[test]
fn a_variant_is_replaced_with_its_index() {
    let (root, owned) = (directory(), tensors());
    let list: Vec<Tensor> = owned.iter().map(Owned::tensor).collect();
    let write = |tensors: &[Tensor]| {
        write_sharded(root.path(), "model.fp16", 9000, tensors, &[], WriteOptions::default(), true).expect("writes")
    };
    let index = write(&list).index.expect("an index");
    // The other name that the index of a variant may have.
    let renamed = root.path().join("model.safetensors.index.fp16.json");
    fs::rename(&index, &renamed).expect("renames");
    assert_eq!(open(root.path()).len(), owned.len());
    write(&list[..4]);
    assert_eq!(open(root.path()).len(), 4);
    assert!(index.exists() && !renamed.exists());
}

#[test]
fn the_mode_of_a_replaced_shard_is_kept_and_links_are_not_followed() {
    let (root, owned) = (directory(), tensors());
    let report = write(root.path(), &owned, 9000, false).expect("writes");
    fs::set_permissions(&report.shards[0], PermissionsExt::from_mode(0o640)).expect("chmod");
    let blob = root.path().join("blob");
    fs::rename(&report.shards[1], &blob).expect("renames");
    symlink("blob", &report.shards[1]).expect("links");
    let before = fs::read(&blob).expect("reads");
    write(root.path(), &owned[..4], 9000, true).map(drop).expect("writes");
    write(root.path(), &owned, 9000, true).map(drop).expect("writes");
    assert!(fs::symlink_metadata(&report.shards[1]).expect("exists").is_file());
    assert_eq!(fs::read(&blob).expect("reads"), before);
    fs::set_permissions(&report.shards[2], PermissionsExt::from_mode(0o640)).expect("chmod");
    write(root.path(), &owned, 9000, true).map(drop).expect("writes");
    assert_eq!(fs::metadata(&report.shards[2]).expect("exists").mode() & 0o777, 0o640);
}

#[test]
fn cancelling_at_any_time_changes_nothing() {
    let (root, owned) = (directory(), tensors());
    write(root.path(), &owned[..3], 5000, false).expect("writes");
    let before = contents(root.path());
    let list: Vec<Tensor> = owned.iter().map(Owned::tensor).collect();
    let (mut calls, mut last) = (0, (0, 0));
    for stop in 1.. {
        calls = 0;
        let mut progress = |done, total| {
            calls += 1;
            assert!(done <= total && done >= if calls == 1 { 0 } else { last.0 });
            last = (done, total);
            if calls == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let options = WriteOptions { progress: Some(&mut progress), ..WriteOptions::default() };
        match write_sharded(root.path(), "model", 9000, &list, &[], options, true) {
            Err(error) => assert_eq!(error.status(), Status::Cancelled),
            Ok(report) => {
                assert_eq!(last, (report.file_bytes, report.file_bytes));
                break;
            }
        }
        assert_eq!(contents(root.path()), before, "after {stop} calls");
    }
    assert!(calls >= 5, "at least one call for each shard");
    assert_eq!(open(root.path()).len(), owned.len());
}

#[test]
fn invalid_arguments_are_named() {
    let (root, owned) = (directory(), tensors());
    let tensors: Vec<Tensor> = owned.iter().map(Owned::tensor).collect();
    let write = |prefix: &str, most, tensors: &[Tensor], metadata: &[(&str, &str)], layout| {
        let options = WriteOptions { layout, ..WriteOptions::default() };
        write_sharded(root.path(), prefix, most, tensors, metadata, options, true)
    };
    let layout = LayoutOptions::default();
    let odd = LayoutOptions { layout: Layout::Compact, alignment: 12 };
    let twice = [tensors[0], tensors[4], tensors[0]];
    let large = u64::MAX;
    for (outcome, message) in [
        (write("", large, &tensors, &[], layout), "prefix ``: is empty"),
        (write(".m", large, &tensors, &[], layout), "prefix `.m`: starts with a dot"),
        (write("../m", large, &tensors, &[], layout), "starts with a dot"),
        (write("a/m", large, &tensors, &[], layout), "contains `/`"),
        (write("a\0", large, &tensors, &[], layout), "contains `/`"),
        (write("m-00001-of-00002", large, &tensors, &[], layout), "ends with a shard number"),
        (write("m", 0, &tensors, &[], layout), "the largest size of a shard is 0 bytes"),
        (write("m", 5000, &twice, &[], layout), "tensor `layer.0`: two tensors have this name"),
        (write("m", 5000, &tensors, &[("a", ""), ("a", "")], layout), "`a`"),
        (write("m", 5000, &tensors, &[], odd), "12"),
    ] {
        let error = outcome.expect_err(message);
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
        assert!(error.message().contains(message), "{error}");
        assert!(contents(root.path()).is_empty());
    }
    // A directory in the place of a shard, and no directory at all.
    fs::create_dir(root.path().join("m-00001-of-00002.safetensors")).expect("creates");
    let error = write("m", 5000, &tensors, &[], layout).expect_err("is a directory");
    assert_eq!((error.status(), error.message()), (Status::Io, "is a directory, not a regular file"));
    assert_eq!(fs::read_dir(root.path()).expect("lists").count(), 1);
    let nowhere = root.path().join("nowhere");
    let outcome = write_sharded(&nowhere, "m", 5000, &tensors, &[], WriteOptions::default(), false);
    assert_eq!(outcome.expect_err("there is no directory").os_error(), libc::ENOENT);
    assert!(!nowhere.exists());
}
