//! The index of a bundle: which shard holds which tensor.
//!
//! `{"metadata": {"total_size": 44}, "weight_map": {"tensor": "model-00001-of-00002.safetensors"}}`

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::names::check_entry;
use crate::error::{Error, Name, Reason, Result, Status};
use crate::header::first_duplicate;
use crate::source;

/// The largest index that is read, in bytes.
pub const MAX_INDEX_LEN: u64 = 100_000_000;

/// A parsed index.
#[derive(Debug, Default)]
pub struct Index {
    /// File names relative to the directory of the index, sorted by their bytes.
    shards: Vec<String>,
    /// Every tensor name, one after the other.
    names: String,
    /// Of each tensor, in the order of the index: where its name ends in `names`, and its shard.
    entries: Vec<(u32, u32)>,
    /// Each key and value is followed by a NUL byte.
    metadata: Vec<(String, String)>,
    outside: Vec<OutsideEntry>,
}

/// An index entry whose file is not within the directory of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideEntry {
    pub tensor: String,
    /// The file that the entry names.
    pub file: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl OutsideEntry {
    /// The error that opening such a bundle gives, without the path of the index.
    pub fn error(&self) -> Error {
        let message = format!("tensor {}: index entry {} {}", Name(&self.tensor), Name(&self.file), self.problem);
        Error::new(Status::Format, message)
    }
}

impl Index {
    /// Reads and parses an index. Follows symbolic links. Errors name `path`; see [`Index::parse`].
    pub fn read(path: &Path) -> Result<Index> {
        let read = || {
            let (file, found) = source::open_regular(path)?;
            let mut json = Vec::new();
            // The file may have grown since its size was read.
            let read = file.take(MAX_INDEX_LEN + 1).read_to_end(&mut json);
            read.map_err(|error| Error::io("read", &error))?;
            if json.len() as u64 > MAX_INDEX_LEN {
                let len = found.len().max(json.len() as u64);
                let message = format!("the index has {len} bytes, above the limit of {MAX_INDEX_LEN}");
                return Err(Error::new(Status::TooLarge, message));
            }
            Index::parse(&json)
        };
        read().map_err(|error: Error| error.at(path))
    }

    /// Parses an index.
    ///
    /// Entries that name a file outside the directory of the index are no error here; see [`Index::outside`].
    ///
    /// Errors: [`Status::Format`] for bytes that are not UTF-8 or not JSON, for a missing `weight_map`, for one that is
    /// not an object of strings, for `metadata` that is not an object, and for a key that occurs twice.
    pub fn parse(json: &[u8]) -> Result<Index> {
        let invalid = |message: String| Error::new(Status::Format, format!("invalid index: {message}"));
        let text = std::str::from_utf8(json)
            .map_err(|error| invalid(format!("invalid UTF-8 at byte {} of {}", error.valid_up_to(), json.len())))?;
        let mut parser = Parser::default();
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let parsed = deserializer.deserialize_map(TopVisitor(&mut parser)).and_then(|()| deserializer.end());
        if let Err(error) = parsed {
            return Err(parser.failure.unwrap_or_else(|| invalid(error.to_string())));
        }
        if !parser.has_weight_map {
            return Err(invalid("it has no `weight_map`".to_owned()));
        }
        let index = parser.finish();
        match first_duplicate(index.names()) {
            Some(name) => Err(twice("tensor", name)),
            None => Ok(index),
        }
    }

    /// The shards, sorted by the bytes of their names. They are relative to the directory of the index.
    pub fn shards(&self) -> &[String] {
        &self.shards
    }

    /// Each tensor and the position of its shard in [`Index::shards`], in the order of the index.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        self.names().zip(self.entries.iter().map(|&(_, shard)| shard as usize))
    }

    fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.entries.len()).map(|at| {
            let start = at.checked_sub(1).map_or(0, |before| self.entries[before].0);
            &self.names[start as usize..self.entries[at].0 as usize]
        })
    }

    /// The entries of the `metadata` object, in the order of the index. Values other than strings are JSON, as it is
    /// written. In memory each key and each value is followed by a NUL byte.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.metadata.iter().map(|(key, value)| (without_nul(key), without_nul(value)))
    }

    /// The entries that name a file outside the directory of the index, each file once. They are in neither
    /// [`Index::shards`] nor [`Index::entries`].
    pub fn outside(&self) -> &[OutsideEntry] {
        &self.outside
    }

    pub(super) fn into_metadata(self) -> Vec<(String, String)> {
        self.metadata
    }
}

/// A string that [`with_nul`] made, as it was before.
pub(super) fn without_nul(text: &str) -> &str {
    &text[..text.len() - 1]
}

fn with_nul(mut text: String) -> String {
    text.push('\0');
    text
}

fn twice(what: &str, key: &str) -> Error {
    let message = format!("invalid index: {what} {} occurs twice", Name(key));
    Error::format(Reason::DuplicateKey, message)
}

/// The JSON of an index, as the Hugging Face libraries write it: sorted, with an indent of two spaces and a line break
/// at the end. `metadata` goes beside `total_size`.
pub(super) fn emit<'a>(
    total_size: u64,
    metadata: &[(&str, &str)],
    weight_map: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<u8>> {
    // Sorted here: whether the map of `serde_json` is depends on its features.
    let mut object: BTreeMap<&str, Value> = metadata.iter().map(|&(key, value)| (key, value.into())).collect();
    object.insert("total_size", total_size.into());
    let weight_map: BTreeMap<&str, &str> = weight_map.collect();
    let index = serde_json::json!({ "metadata": object, "weight_map": weight_map });
    let json = serde_json::to_vec_pretty(&index);
    let mut json = json.map_err(|error| Error::new(Status::Internal, format!("write the index: {error}")))?;
    json.push(b'\n');
    if json.len() as u64 > MAX_INDEX_LEN {
        let message = format!("the index takes {} bytes, above the limit of {MAX_INDEX_LEN}", json.len());
        return Err(Error::new(Status::TooLarge, message));
    }
    Ok(json)
}

/// What the visitors fill. A failure that is more than a message is left in `failure`: an error that passes through
/// serde keeps only its text.
#[derive(Default)]
struct Parser {
    index: Index,
    /// The position in `index.shards` of each file, as the entries spell it. `None` for one outside the directory.
    files: HashMap<String, Option<u32>>,
    /// The position in `index.shards` of each shard.
    shards: HashMap<String, u32>,
    has_weight_map: bool,
    has_metadata: bool,
    failure: Option<Error>,
}

impl Parser {
    fn fail<E: de::Error>(&mut self, error: Error) -> E {
        let message = E::custom(error.message());
        self.failure = Some(error);
        message
    }

    /// Adds a tensor of the `weight_map`.
    fn entry(&mut self, name_start: usize, file: &str) {
        let shard = match self.files.get(file) {
            Some(shard) => *shard,
            None => {
                let shard = self.file(name_start, file);
                self.files.insert(file.to_owned(), shard);
                shard
            }
        };
        match shard {
            // An index has at most `MAX_INDEX_LEN` bytes, so 32 bits are enough.
            Some(shard) => self.index.entries.push((self.index.names.len() as u32, shard)),
            None => self.index.names.truncate(name_start),
        }
    }

    /// The position in `index.shards` of a file that is named for the first time.
    fn file(&mut self, name_start: usize, file: &str) -> Option<u32> {
        match check_entry(file) {
            Ok(shard) => {
                let next = self.shards.len() as u32;
                let shards = &mut self.index.shards;
                Some(*self.shards.entry(shard).or_insert_with_key(|shard| {
                    shards.push(shard.clone());
                    next
                }))
            }
            Err(problem) => {
                let tensor = self.index.names[name_start..].to_owned();
                self.index.outside.push(OutsideEntry { tensor, file: file.to_owned(), problem });
                None
            }
        }
    }

    /// Sorts the shards.
    fn finish(self) -> Index {
        let mut index = self.index;
        let mut order: Vec<u32> = (0..index.shards.len() as u32).collect();
        order.sort_by(|&a, &b| index.shards[a as usize].cmp(&index.shards[b as usize]));
        let mut position = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            position[old as usize] = new as u32;
        }
        index.shards.sort();
        index.entries.iter_mut().for_each(|(_, shard)| *shard = position[*shard as usize]);
        index
    }
}

struct TopVisitor<'p>(&'p mut Parser);

impl<'de> Visitor<'de> for TopVisitor<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("an object with a `weight_map`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let parser = self.0;
        while let Some(key) = map.next_key::<String>()? {
            let is_known = match key.as_str() {
                "weight_map" => std::mem::replace(&mut parser.has_weight_map, true),
                "metadata" => std::mem::replace(&mut parser.has_metadata, true),
                _ => false,
            };
            if is_known {
                return Err(parser.fail(twice("key", &key)));
            }
            match key.as_str() {
                "weight_map" => map.next_value_seed(WeightMapSeed(parser))?,
                "metadata" => map.next_value_seed(MetadataSeed(parser))?,
                _ => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }
}

struct WeightMapSeed<'p>(&'p mut Parser);

impl<'de> DeserializeSeed<'de> for WeightMapSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMapSeed<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("`weight_map`, an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let parser = self.0;
        loop {
            let start = parser.index.names.len();
            if map.next_key_seed(Appended(&mut parser.index.names))?.is_none() {
                return Ok(());
            }
            map.next_value_seed(FileSeed(parser, start))?;
        }
    }
}

/// Appends a string to a buffer.
struct Appended<'p>(&'p mut String);

impl<'de> DeserializeSeed<'de> for Appended<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Appended<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("the name of a tensor")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<(), E> {
        self.0.push_str(text);
        Ok(())
    }
}

/// Reads the file of the tensor whose name starts there in the buffer.
struct FileSeed<'p>(&'p mut Parser, usize);

impl<'de> DeserializeSeed<'de> for FileSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FileSeed<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "a file name for tensor {}", Name(&self.0.index.names[self.1..]))
    }

    fn visit_str<E: de::Error>(self, file: &str) -> std::result::Result<(), E> {
        self.0.entry(self.1, file);
        Ok(())
    }
}

struct MetadataSeed<'p>(&'p mut Parser);

impl<'de> DeserializeSeed<'de> for MetadataSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("`metadata`, an object or null")
    }

    fn visit_none<E: de::Error>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let parser = self.0;
        // Kept as it is written: a parsed value may take a hundred times the memory of its JSON.
        while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
            let value = match value.get().starts_with('"') {
                true => serde_json::from_str(value.get()).map_err(de::Error::custom)?,
                false => value.get().to_owned(),
            };
            parser.index.metadata.push((with_nul(key), with_nul(value)));
        }
        match first_duplicate(parser.index.metadata.iter().map(|(key, _)| without_nul(key))) {
            Some(key) => {
                let error = twice("metadata key", key);
                Err(parser.fail(error))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Index> {
        Index::parse(json.as_bytes())
    }

    #[test]
    fn shards_are_sorted_and_entries_keep_their_order() {
        let index = parse(
            r#"{"weight_map": {"z": "b", "é\n": "./a", "y": "sub/c", "x": "a"}, "more": [1, {"weight_map": 2}],
                "metadata": {"total_size": 18446744073709551615, "a": "b", "list": [1, null], "float": 1.5e3}}"#,
        )
        .expect("parses");
        assert_eq!(index.shards(), ["a", "b", "sub/c"]);
        assert_eq!(index.entries().collect::<Vec<_>>(), [("z", 1), ("é\n", 0), ("y", 2), ("x", 0)]);
        let metadata = [("total_size", "18446744073709551615"), ("a", "b"), ("list", "[1, null]"), ("float", "1.5e3")];
        assert_eq!(index.metadata().collect::<Vec<_>>(), metadata);
        assert!(index.outside().is_empty());
        let empty = parse(r#" {"weight_map": {}, "metadata": null} "#).expect("parses");
        assert_eq!((empty.shards().len(), empty.entries().len(), empty.metadata().len()), (0, 0, 0));
    }

    #[test]
    fn malformed_indexes_are_refused() {
        for (json, message) in [
            ("", "EOF"),
            (r#"{"weight_map": "#, "EOF"),
            (r#"{"weight_map": {"a": "b"}"#, "EOF"),
            (r#"{"weight_map": {}} x"#, "trailing"),
            ("[]", "expected an object with a `weight_map`"),
            ("{}", "it has no `weight_map`"),
            (r#"{"weight_map": null}"#, "an object of strings"),
            (r#"{"weight_map": []}"#, "an object of strings"),
            (r#"{"weight_map": {"a": 1}}"#, "expected a file name for tensor `a`"),
            (r#"{"weight_map": {}, "metadata": []}"#, "an object or null"),
            (r#"{"weight_map": {"a": "x", "b": "y", "a": "x"}}"#, "tensor `a` occurs twice"),
            (r#"{"weight_map": {"a": "x", "\u0061": "y"}}"#, "tensor `a` occurs twice"),
            (r#"{"weight_map": {}, "weight_map": {}}"#, "key `weight_map` occurs twice"),
            (r#"{"metadata": null, "weight_map": {}, "metadata": null}"#, "key `metadata` occurs twice"),
            (r#"{"weight_map": {}, "metadata": {"a": 1, "a": 1}}"#, "metadata key `a` occurs twice"),
        ] {
            let error = parse(json).expect_err(json);
            assert_eq!(error.status(), Status::Format, "{json}");
            assert!(error.message().starts_with("invalid index: "), "{error}");
            assert!(error.message().contains(message), "{json}: {error}");
        }
        let error = Index::parse(b"{\"weight_map\": {\"\xff\": \"a\"}}").expect_err("is not UTF-8");
        assert!(error.message().contains("invalid UTF-8 at byte 17 of 26"), "{error}");
        let deep = format!("{{\"metadata\": {{\"a\": {}1{}}}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(parse(&deep).expect_err("is nested too deeply").status(), Status::Format);
        let deep = format!("{{\"weight_map\": {{}}, \"a\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse(&deep).is_ok());
    }

    #[test]
    fn entries_outside_the_directory_are_kept_apart() {
        let index = parse(r#"{"weight_map": {"a": "../x", "b": "y", "c": "/x", "d": "../x", "e": "y"}}"#);
        let index = index.expect("parses");
        assert_eq!(index.shards(), ["y"]);
        assert_eq!(index.entries().collect::<Vec<_>>(), [("b", 0), ("e", 0)]);
        let outside: Vec<_> = index.outside().iter().map(|entry| (&*entry.tensor, &*entry.file)).collect();
        assert_eq!(outside, [("a", "../x"), ("c", "/x")]);
        let message = index.outside()[0].error().to_string();
        assert_eq!(message, "tensor `a`: index entry `../x` is outside the directory of the index: it contains `..`");
    }

    #[test]
    fn an_emitted_index_is_parsed() {
        let map = [("z", "s2"), ("a", "s1")];
        let json = emit(44, &[("format", "pt"), ("total_size", "1")], map.into_iter()).expect("emits");
        let expected = "{\n  \"metadata\": {\n    \"format\": \"pt\",\n    \"total_size\": 44\n  },\n  \
                        \"weight_map\": {\n    \"a\": \"s1\",\n    \"z\": \"s2\"\n  }\n}\n";
        assert_eq!(String::from_utf8_lossy(&json), expected);
        let index = Index::parse(&json).expect("parses");
        assert_eq!(index.entries().collect::<Vec<_>>(), [("a", 0), ("z", 1)]);
        assert_eq!(index.metadata().collect::<Vec<_>>(), [("format", "pt"), ("total_size", "44")]);
    }
}
