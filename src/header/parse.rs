//! The serde visitors that fill a [`Header`] from JSON.

use std::fmt;
use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Header, HeaderPadding, METADATA_KEY, Record, Text, Texts};
use crate::dtype::Dtype;
use crate::error::{Error, Name, Reason, Result};

/// Maximum nesting inside an unknown field. serde_json, and thus the reference reader, allows a depth of 127, which
/// includes the header and the object of the tensor.
const MAX_NESTING: usize = 125;

/// Parses a JSON object that is followed by white space only.
pub(super) fn object(text: &str) -> Result<Parser> {
    let mut parser = Parser::default();
    // Memory that is reserved but not accessed costs nothing, while growing a buffer copies it. Names take somewhat
    // less than half of a header, and a tensor takes about a hundred bytes.
    parser.texts.0.reserve(text.len() / 2);
    parser.records.reserve(text.len() / 96);
    parser.shapes.reserve(text.len() / 48);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let outcome = (&mut deserializer).deserialize_map(HeaderVisitor(&mut parser)).and_then(|()| deserializer.end());
    match outcome {
        Ok(()) => Ok(parser),
        Err(error) => Err(parser.explain(&error)),
    }
}

/// Filled by the visitors. An error with a reason is kept in `failure`, because an error that passes through serde
/// keeps only its message.
#[derive(Default)]
pub(super) struct Parser {
    texts: Texts,
    shapes: Vec<u64>,
    records: Vec<Record>,
    metadata: Vec<(Text, Text)>,
    unknown_dtypes: Vec<(u32, Text)>,
    has_metadata: bool,
    place: Place,
    /// Depth of nesting inside an unknown field.
    nesting: usize,
    failure: Option<Error>,
}

/// What is being parsed, for the message of a type error.
#[derive(Default, Clone, Copy, PartialEq)]
enum Place {
    #[default]
    Top,
    Metadata,
    Info,
    Shape,
}

impl Parser {
    /// Keeps an error with a reason, and returns a placeholder for serde.
    fn fail<E: de::Error>(&mut self, reason: Reason, message: String) -> E {
        self.failure.get_or_insert(Error::format(reason, message));
        E::custom("")
    }

    fn current(&self) -> Name<'_> {
        Name(self.records.last().map_or("", |record| self.texts.get(record.name)))
    }

    fn explain(mut self, error: &serde_json::Error) -> Error {
        if let Some(failure) = self.failure.take() {
            return failure;
        }
        // The limit of serde_json, whose error has no kind of its own.
        if self.nesting == MAX_NESTING {
            let message = format!("tensor {}: an unknown field is nested too deeply: {error}", self.current());
            return Error::format(Reason::BadTensorInfo, message);
        }
        if !error.is_data() {
            return Error::format(Reason::HeaderNotJson, format!("the header is not valid JSON: {error}"));
        }
        let (reason, about) = match self.place {
            Place::Top => (Reason::HeaderNotObject, "the header is not a JSON object".to_owned()),
            Place::Metadata => (Reason::BadMetadata, format!("`{METADATA_KEY}` is not an object of strings")),
            Place::Info => (Reason::BadTensorInfo, format!("tensor {}: invalid tensor info", self.current())),
            Place::Shape => (Reason::BadShape, format!("tensor {}: invalid shape", self.current())),
        };
        Error::format(reason, format!("{about}: {error}"))
    }

    pub(super) fn finish(mut self, json_len: u64, padding: HeaderPadding) -> Result<Header> {
        let place = |record: &Record| (record.begin, record.end);
        if !self.records.is_sorted_by_key(place) {
            self.sort_by_offset();
        }
        let hasher = DefaultHashBuilder::default();
        let mut index: HashTable<u32> = HashTable::with_capacity(self.records.len());
        let hash = |record: &Record| hasher.hash_one(self.texts.get(record.name).as_bytes());
        for (number, record) in self.records.iter().enumerate() {
            let name = self.texts.get(record.name);
            let entry = index.entry(
                hash(record),
                |&other| self.texts.get(self.records[other as usize].name) == name,
                |&other| hash(&self.records[other as usize]),
            );
            match entry {
                Entry::Vacant(vacant) => vacant.insert(number as u32),
                Entry::Occupied(_) => {
                    return Err(Error::format(
                        Reason::DuplicateKey,
                        format!("tensor {}: duplicate name in the header", Name(name)),
                    ));
                }
            };
        }
        let Parser { texts, shapes, records, metadata, unknown_dtypes, .. } = self;
        let duplicate = super::first_duplicate(metadata.iter().map(|&(key, _)| texts.get(key)));
        if let Some(key) = duplicate {
            return Err(Error::format(
                Reason::DuplicateKey,
                format!("metadata {}: duplicate key in the header", Name(key)),
            ));
        }
        Ok(Header { json_len, padding, texts, shapes, records, metadata, unknown_dtypes, index, hasher })
    }

    fn sort_by_offset(&mut self) {
        let mut order: Vec<u32> = (0..self.records.len() as u32).collect();
        order.sort_by_key(|&number| {
            let record = &self.records[number as usize];
            (record.begin, record.end)
        });
        self.records = order.iter().map(|&number| self.records[number as usize]).collect();
        if !self.unknown_dtypes.is_empty() {
            let mut moved = vec![0u32; order.len()];
            for (new, &old) in order.iter().enumerate() {
                moved[old as usize] = new as u32;
            }
            for (number, _) in &mut self.unknown_dtypes {
                *number = moved[*number as usize];
            }
            self.unknown_dtypes.sort_unstable_by_key(|&(number, _)| number);
        }
    }
}

struct HeaderVisitor<'p>(&'p mut Parser);

impl<'de> Visitor<'de> for HeaderVisitor<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let parser = self.0;
        while let Some(key) = map.next_key_seed(KeySeed(parser))? {
            match key {
                Key::Metadata => {
                    if parser.has_metadata {
                        let message = format!("duplicate key `{METADATA_KEY}` in the header");
                        return Err(parser.fail(Reason::DuplicateKey, message));
                    }
                    parser.has_metadata = true;
                    parser.place = Place::Metadata;
                    map.next_value_seed(MetadataSeed(parser))?;
                }
                Key::Tensor(name) => {
                    parser.place = Place::Info;
                    map.next_value_seed(InfoSeed { parser, name })?;
                }
            }
            parser.place = Place::Top;
        }
        Ok(())
    }
}

enum Key {
    Metadata,
    Tensor(Text),
}

/// Reads a key of the header into the parser's buffer.
struct KeySeed<'p>(&'p mut Parser);

impl<'de> de::DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Key;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed<'_> {
    type Value = Key;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a name")
    }

    /// A name without escapes. It has no NUL, because JSON strings contain control characters only as escapes.
    fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> std::result::Result<Key, E> {
        if name == METADATA_KEY { Ok(Key::Metadata) } else { Ok(Key::Tensor(self.0.texts.push(name))) }
    }

    fn visit_str<E: de::Error>(self, name: &str) -> std::result::Result<Key, E> {
        if name == METADATA_KEY {
            return Ok(Key::Metadata);
        }
        if name.as_bytes().contains(&0) {
            let message = format!("tensor {}: the name has a NUL byte", Name(name));
            return Err(self.0.fail(Reason::BadName, message));
        }
        Ok(Key::Tensor(self.0.texts.push(name)))
    }
}

struct MetadataSeed<'p>(&'p mut Parser);

impl<'de> de::DeserializeSeed<'de> for MetadataSeed<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        // MLX writes null if there is no metadata, and the reference reader accepts it.
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("an object of strings, or null")
    }

    fn visit_none<E: de::Error>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let parser = self.0;
        while let Some(key) = map.next_key_seed(TextSeed(&mut parser.texts))? {
            let value = map.next_value_seed(TextSeed(&mut parser.texts))?;
            parser.metadata.push((key, value));
        }
        Ok(())
    }
}

/// Reads a string into the parser's buffer.
struct TextSeed<'p>(&'p mut Texts);

impl<'de> de::DeserializeSeed<'de> for TextSeed<'_> {
    type Value = Text;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Text, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for TextSeed<'_> {
    type Value = Text;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Text, E> {
        Ok(self.0.push(text))
    }
}

struct InfoSeed<'p> {
    parser: &'p mut Parser,
    name: Text,
}

impl<'de> de::DeserializeSeed<'de> for InfoSeed<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        // Push the record first, so that a message can name the tensor.
        self.parser.records.push(Record { begin: 0, end: 0, name: self.name, shape_start: 0, rank: 0, dtype: None });
        deserializer.deserialize_map(InfoVisitor(self.parser))
    }
}

struct InfoVisitor<'p>(&'p mut Parser);

impl<'de> Visitor<'de> for InfoVisitor<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let parser = self.0;
        let mut dtype: Option<Option<Dtype>> = None;
        let mut shape: Option<Range<u32>> = None;
        let mut offsets: Option<(u64, u64)> = None;
        let mut others = hashbrown::HashSet::new();
        while let Some(field) = map.next_key_seed(FieldSeed)? {
            let is_duplicate = match field {
                Field::Dtype => dtype.replace(map.next_value_seed(DtypeSeed(parser))?).is_some(),
                Field::Shape => {
                    parser.place = Place::Shape;
                    let start = parser.shapes.len() as u32;
                    map.next_value_seed(ShapeSeed(parser))?;
                    parser.place = Place::Info;
                    shape.replace(start..parser.shapes.len() as u32).is_some()
                }
                Field::Offsets => offsets.replace(map.next_value_seed(OffsetsSeed)?).is_some(),
                Field::Other(name) => {
                    map.next_value_seed(SkipSeed(parser))?;
                    !others.insert(name)
                }
            };
            if is_duplicate {
                let message = format!("tensor {}: duplicate field", parser.current());
                return Err(parser.fail(Reason::DuplicateKey, message));
            }
        }
        let (Some(dtype), Some(shape), Some((begin, end))) = (dtype, shape, offsets) else {
            let message = format!("tensor {}: `dtype`, `shape` or `data_offsets` is missing", parser.current());
            return Err(parser.fail(Reason::BadTensorInfo, message));
        };
        if let Some(record) = parser.records.last_mut() {
            (record.begin, record.end) = (begin, end);
            (record.shape_start, record.rank) = (shape.start, shape.end - shape.start);
            record.dtype = dtype;
        }
        Ok(())
    }
}

enum Field {
    Dtype,
    Shape,
    Offsets,
    Other(String),
}

struct FieldSeed;

impl<'de> de::DeserializeSeed<'de> for FieldSeed {
    type Value = Field;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Field, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldSeed {
    type Value = Field;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a field name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> std::result::Result<Field, E> {
        Ok(match name {
            "dtype" => Field::Dtype,
            "shape" => Field::Shape,
            "data_offsets" => Field::Offsets,
            _ => Field::Other(name.to_owned()),
        })
    }
}

/// Reads a dtype. The string of one that is not part of the format is kept.
struct DtypeSeed<'p>(&'p mut Parser);

impl<'de> de::DeserializeSeed<'de> for DtypeSeed<'_> {
    type Value = Option<Dtype>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for DtypeSeed<'_> {
    type Value = Option<Dtype>;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a dtype string")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> std::result::Result<Self::Value, E> {
        let dtype = Dtype::from_name(name);
        if dtype.is_none() {
            let number = self.0.records.len() as u32 - 1;
            let text = self.0.texts.push(name);
            self.0.unknown_dtypes.push((number, text));
        }
        Ok(dtype)
    }
}

/// Reads a list of unsigned integers and appends it to the parser's shapes.
struct ShapeSeed<'p>(&'p mut Parser);

impl<'de> de::DeserializeSeed<'de> for ShapeSeed<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ShapeSeed<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a list of unsigned integers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        while let Some(dimension) = seq.next_element::<u64>()? {
            self.0.shapes.push(dimension);
        }
        Ok(())
    }
}

struct OffsetsSeed;

impl<'de> de::DeserializeSeed<'de> for OffsetsSeed {
    type Value = (u64, u64);
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(u64, u64), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for OffsetsSeed {
    type Value = (u64, u64);

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("two offsets")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(u64, u64), A::Error> {
        let begin = seq.next_element()?.ok_or_else(|| de::Error::invalid_length(0, &self))?;
        let end = seq.next_element()?.ok_or_else(|| de::Error::invalid_length(1, &self))?;
        if seq.next_element::<IgnoredAny>()?.is_some() {
            return Err(de::Error::invalid_length(3, &self));
        }
        Ok((begin, end))
    }
}

/// Skips the value of an unknown field with the checks of the reference reader: its nesting is limited, and its strings
/// and numbers are valid. (serde's `IgnoredAny` has no limit.)
struct SkipSeed<'p>(&'p mut Parser);

impl<'de> de::DeserializeSeed<'de> for SkipSeed<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for SkipSeed<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        self.0.nesting += 1;
        while seq.next_element_seed(SkipSeed(self.0))?.is_some() {}
        self.0.nesting -= 1;
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        self.0.nesting += 1;
        let mut seen = hashbrown::HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key) {
                let message = format!("tensor {}: duplicate key in an unknown field", self.0.current());
                return Err(self.0.fail(Reason::DuplicateKey, message));
            }
            map.next_value_seed(SkipSeed(self.0))?;
        }
        self.0.nesting -= 1;
        Ok(())
    }
}
