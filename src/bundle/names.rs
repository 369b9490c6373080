//! What the name of a file says: model file, shard, index, or none of them. Pure: no file is looked at.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The extension of a model file, with its dot. Compared without regard to case.
const EXTENSION: &str = ".safetensors";

/// Whether a file is left out of every search: AppleDouble files, which macOS writes on other file systems, and
/// incomplete downloads.
pub fn is_ignored(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"._") || name.as_bytes().ends_with(b".incomplete")
}

/// Whether a file is named like a model file.
pub fn is_model(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let extension = name.len().checked_sub(EXTENSION.len()).filter(|&stem| stem > 0).map(|stem| &name[stem..]);
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case(EXTENSION.as_bytes()))
}

/// Whether a file is named like an index: `model.safetensors.index.json`, or with a variant as in [`set_of_index`].
pub fn is_index(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| set_of_index(name).is_some())
}

/// The set that an index belongs to: `model` for `model.safetensors.index.json`; `model.fp16` for
/// `model.safetensors.index.fp16.json`, `model.fp16.safetensors.index.json` and, from older versions of diffusers,
/// `model.safetensors.fp16.index.json`. `None` if it is not named like an index.
pub fn set_of_index(name: &str) -> Option<String> {
    let (stem, rest) = name.strip_suffix(".json")?.split_once(".safetensors")?;
    let variant = rest.strip_suffix(".index").or_else(|| rest.strip_prefix(".index"))?;
    let is_variant = variant.strip_prefix('.').is_some_and(|variant| !variant.is_empty());
    (!stem.is_empty() && (variant.is_empty() || is_variant)).then(|| format!("{stem}{variant}"))
}

/// What the name of a model file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// The name without shard number and extension. It includes the variant: `model.fp16`.
    pub set: String,
    /// `None` if the name has no shard number.
    pub shard: Option<ShardNumber>,
}

/// `00001-of-00002` in the name of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardNumber {
    pub number: u32,
    pub total: u32,
}

impl ModelName {
    /// Parses the name of a model file. `None` if it is not named like one.
    ///
    /// The variant may come before the shard number, `model.fp16-00001-of-00002.safetensors`, or after it, as older
    /// versions of diffusers write it: `model-00001-of-00002.fp16.safetensors`.
    pub fn parse(name: &str) -> Option<ModelName> {
        if !is_model(OsStr::new(name)) {
            return None;
        }
        let stem = name.get(..name.len() - EXTENSION.len())?;
        Some(sharded(stem).unwrap_or_else(|| ModelName { set: stem.to_owned(), shard: None }))
    }
}

fn sharded(stem: &str) -> Option<ModelName> {
    let (before, after) = stem.rsplit_once("-of-")?;
    let (set, number) = before.rsplit_once('-')?;
    let (total, variant) = after.split_at(after.find('.').unwrap_or(after.len()));
    let digits = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?;
    let shard = ShardNumber { number: digits(number)?, total: digits(total)? };
    (!set.is_empty()).then(|| ModelName { set: format!("{set}{variant}"), shard: Some(shard) })
}

/// The file name of a shard. Numbers start at 1.
pub fn shard_name(set: &str, number: usize, total: usize) -> String {
    format!("{set}-{number:05}-of-{total:05}{EXTENSION}")
}

/// The file name of a model that is not sharded.
pub fn model_name(set: &str) -> String {
    format!("{set}{EXTENSION}")
}

/// The file name of the index of a set.
pub fn index_name(set: &str) -> String {
    format!("{set}{EXTENSION}.index.json")
}

/// What ends the name of an old file while it is being replaced. The name begins with a dot.
const SET_ASIDE: &str = ".safealign-old";

/// The name of an old file while it is being replaced. `attempt` starts at 1: names of earlier calls may be taken.
pub fn set_aside_name(name: &str, attempt: u32) -> String {
    match attempt {
        1 => format!(".{name}{SET_ASIDE}"),
        _ => format!(".{name}~{attempt}{SET_ASIDE}"),
    }
}

/// The name that the file had before it was set aside, if this is a name of [`set_aside_name`].
pub fn original_name(name: &str) -> Option<&str> {
    let name = name.strip_prefix('.')?.strip_suffix(SET_ASIDE)?;
    let (first, attempt) = name.rsplit_once('~').unwrap_or((name, ""));
    let is_attempt = !attempt.is_empty() && attempt.bytes().all(|byte| byte.is_ascii_digit());
    Some(if is_attempt { first } else { name })
}

/// Checks the file that an index entry names, by its text alone, and returns it without `.` components. The error says
/// what is wrong with it.
///
/// It has to be a path that stays within the directory of the index on every system. Subdirectories are allowed, as in
/// the Hugging Face libraries. A symbolic link in that directory may lead anywhere.
pub fn check_entry(entry: &str) -> Result<String, &'static str> {
    let has_drive = || matches!(entry.as_bytes(), [drive, b':', ..] if drive.is_ascii_alphabetic());
    if entry.is_empty() {
        return Err("is empty");
    }
    if entry.contains('\0') {
        return Err("contains a NUL byte");
    }
    if entry.starts_with('/') || has_drive() {
        return Err("is outside the directory of the index: it is an absolute path");
    }
    if entry.contains('\\') {
        return Err("contains a backslash");
    }
    if entry.split('/').any(|part| part == "..") {
        return Err("is outside the directory of the index: it contains `..`");
    }
    let parts: Vec<&str> = entry.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.is_empty() || entry.ends_with('/') {
        return Err("is a directory");
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_names_are_recognised() {
        for (name, model, index, ignored) in [
            ("model.safetensors", true, false, false),
            ("MODEL.SafeTensors", true, false, false),
            ("._model.safetensors", true, false, true),
            ("model.safetensors.incomplete", false, false, true),
            (".safetensors", false, false, false),
            ("safetensors", false, false, false),
            ("model.safetensors.index.json", false, true, false),
            ("model.safetensors.index.fp16.json", false, true, false),
            ("model.safetensors.fp16.index.json", false, true, false),
            ("model.fp16.safetensors.index.json", false, true, false),
            ("._model.safetensors.index.json", false, true, true),
            ("model.safetensors.indexes.json", false, false, false),
            ("model.safetensors.index..json", false, false, false),
            (".safetensors.index.json", false, false, false),
            ("model.bin.index.json", false, false, false),
            ("config.json", false, false, false),
        ] {
            let name_os = OsStr::new(name);
            assert_eq!((is_model(name_os), is_index(name_os), is_ignored(name_os)), (model, index, ignored), "{name}");
        }
        assert!(is_model(OsStr::from_bytes(b"\xff.safetensors")));
    }

    #[test]
    fn the_name_of_a_shard_has_set_index_and_total() {
        for (name, set, shard) in [
            ("model.safetensors", "model", None),
            ("model-00001-of-00002.safetensors", "model", Some((1, 2))),
            ("model.fp16-00001-of-00002.safetensors", "model.fp16", Some((1, 2))),
            ("model-00001-of-00002.fp16.safetensors", "model.fp16", Some((1, 2))),
            ("best-of-3.safetensors", "best-of-3", None),
            ("a-1-of-2-3-of-4.SAFETENSORS", "a-1-of-2", Some((3, 4))),
            ("-1-of-2.safetensors", "-1-of-2", None),
            ("m--of-.safetensors", "m--of-", None),
            ("m-+1-of-2.safetensors", "m-+1-of-2", None),
            ("m-1-of-99999999999.safetensors", "m-1-of-99999999999", None),
        ] {
            let shard = shard.map(|(number, total)| ShardNumber { number, total });
            assert_eq!(ModelName::parse(name), Some(ModelName { set: set.to_owned(), shard }), "{name}");
        }
        assert_eq!(ModelName::parse("model.bin"), None);
        let name = shard_name("model", 3, 12);
        assert_eq!(name, "model-00003-of-00012.safetensors");
        let parsed = ModelName::parse(&name).and_then(|name| name.shard);
        assert_eq!(parsed, Some(ShardNumber { number: 3, total: 12 }));
    }

    #[test]
    fn an_index_belongs_to_a_set() {
        for (name, set) in [
            ("model.safetensors.index.json", Some("model")),
            ("model.safetensors.index.fp16.json", Some("model.fp16")),
            ("model.safetensors.fp16.index.json", Some("model.fp16")),
            ("model.fp16.safetensors.index.json", Some("model.fp16")),
            ("model.safetensors", None),
        ] {
            assert_eq!(set_of_index(name).as_deref(), set, "{name}");
        }
        assert_eq!(set_of_index(&index_name("a.b")).as_deref(), Some("a.b"));
        assert_eq!(ModelName::parse(&model_name("a.b")).map(|name| name.set).as_deref(), Some("a.b"));
    }

    #[test]
    fn a_file_that_is_set_aside_keeps_its_name() {
        for name in ["m.safetensors", "a~b", "a~2x", "a~"] {
            for attempt in [1, 2, 12] {
                assert_eq!(original_name(&set_aside_name(name, attempt)), Some(name), "{name} {attempt}");
            }
        }
        for name in ["m.safetensors", ".m.safetensors", "m.safealign-old"] {
            assert_eq!(original_name(name), None);
        }
    }

    #[test]
    fn an_entry_outside_its_directory_is_refused() {
        for (entry, checked) in [
            ("a.safetensors", "a.safetensors"),
            ("./a.safetensors", "a.safetensors"),
            ("sub//./a.safetensors", "sub/a.safetensors"),
            ("..a/b..", "..a/b.."),
        ] {
            assert_eq!(check_entry(entry).as_deref(), Ok(checked), "{entry}");
        }
        for entry in ["", ".", "/a", "//a", "../a", "a/..", "a/../b", "..", "a\\..\\b", "\\a", "C:/a", "a\0", "a/"] {
            assert!(check_entry(entry).is_err(), "{entry:?}");
        }
    }
}
