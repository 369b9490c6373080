//! The model files and indexes of a directory, and which of them form a bundle.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::names::{self, ModelName, is_ignored, is_index, is_model, set_of_index};
use crate::error::{Error, Name, Result, Status};

/// The model files and indexes of a directory.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    models: Vec<OsString>,
    indexes: Vec<String>,
}

/// The model files of a directory that belong together by their names: the shards of one model, or a single file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The common name, with the variant: `model.fp16`.
    pub name: String,
    /// The number of shards that their names state; `None` for a single file.
    pub total: Option<u32>,
    /// The names of the files that exist, sorted by their bytes.
    pub files: Vec<OsString>,
}

impl Listing {
    /// Lists a directory. Names that are ignored ([`is_ignored`]) and directories are left out; links are not followed
    /// any further, so that a dangling link is listed.
    pub fn read(directory: &Path) -> Result<Listing> {
        let list = || {
            let mut names = Vec::new();
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let name = entry.file_name();
                if (is_model(&name) || is_index(&name)) && !entry.path().is_dir() {
                    names.push(name);
                }
            }
            Ok(Listing::of(names))
        };
        list().map_err(|error| Error::io("list", &error).at(directory))
    }

    /// The listing of a directory with files of these names.
    pub fn of(names: impl IntoIterator<Item = OsString>) -> Listing {
        let mut listing = Listing::default();
        for name in names.into_iter().filter(|name| !is_ignored(name)) {
            if is_model(&name) {
                listing.models.push(name);
            } else if let Some(name) = name.to_str().filter(|name| set_of_index(name).is_some()) {
                listing.indexes.push(name.to_owned());
            }
        }
        listing.models.sort();
        listing.indexes.sort();
        listing
    }

    /// The names of the model files, sorted by their bytes.
    pub fn models(&self) -> &[OsString] {
        &self.models
    }

    /// The names of the indexes, sorted by their bytes.
    pub fn indexes(&self) -> &[String] {
        &self.indexes
    }

    /// The sets that the model files form by their names, sorted by name and number of shards.
    pub fn sets(&self) -> Vec<Set> {
        let mut sets: Vec<Set> = Vec::new();
        let mut numbered: Vec<(String, Option<u32>, &OsString)> = self
            .models
            .iter()
            .map(|name| match name.to_str().and_then(ModelName::parse) {
                Some(ModelName { set, shard }) => (set, shard.map(|shard| shard.total), name),
                None => (name.to_string_lossy().into_owned(), None, name),
            })
            .collect();
        numbered.sort();
        for (name, total, file) in numbered {
            match sets.last_mut() {
                Some(set) if total.is_some() && set.name == name && set.total == total => set.files.push(file.clone()),
                _ => sets.push(Set { name, total, files: vec![file.clone()] }),
            }
        }
        sets
    }

    /// The index that is opened for the directory: the only one, or the one without a variant. `None` if
    /// there is no index.
    ///
    /// Fails if there are several and none of them is that of all others' base ([`Status::InvalidArgument`]).
    pub fn main_index(&self) -> Result<Option<&str>> {
        let is_base = |set: &str| {
            let others = self.indexes.iter().filter_map(|index| set_of_index(index));
            others.filter(|other| other != set).all(|other| {
                let variant = other.strip_prefix(set).and_then(|rest| rest.strip_prefix('.'));
                variant.is_some()
            })
        };
        let mut bases = self.indexes.iter().filter(|index| set_of_index(index).is_some_and(|set| is_base(&set)));
        match (bases.next(), bases.next()) {
            (Some(index), None) => Ok(Some(index)),
            _ if self.indexes.is_empty() => Ok(None),
            _ => {
                let names = self.indexes.iter().map(|index| Name(index).to_string());
                let message = format!("has several indexes: {}; open one of them", list(names));
                Err(Error::new(Status::InvalidArgument, message))
            }
        }
    }

    /// The set that is opened for a directory without an index.
    ///
    /// Fails if there is no model file ([`Status::NotFound`]), and if there are several sets
    /// ([`Status::InvalidArgument`]).
    pub fn main_set(&self) -> Result<Set> {
        let mut sets = self.sets();
        match (sets.pop(), sets.is_empty()) {
            (Some(set), true) => Ok(set),
            (None, _) => Err(Error::new(Status::NotFound, "no safetensors files found in the directory")),
            (Some(last), false) => {
                sets.push(last);
                let message = format!(
                    "has no index and {} sets of model files: {}; open one file, or one index",
                    sets.len(),
                    list(sets.iter().map(Set::describe))
                );
                Err(Error::new(Status::InvalidArgument, message))
            }
        }
    }
}

impl Set {
    /// The name of the first shard that does not exist, and how many do not, according to the names of the others.
    pub fn missing(&self) -> Option<(String, usize)> {
        let total = self.total? as usize;
        let number = |name: &OsString| ModelName::parse(name.to_str()?)?.shard.map(|shard| shard.number as usize);
        let mut numbers: Vec<usize> = self.files.iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        // Some writers count from 0.
        let first = usize::from(numbers.first() != Some(&0));
        let expected = first..first + total;
        let known = numbers.iter().filter(|number| expected.contains(number)).count();
        let missing = expected.clone().find(|number| numbers.binary_search(number).is_err())?;
        Some((self.named_like(missing)?, total - known))
    }

    /// The name of another shard of the set, written as those that exist.
    fn named_like(&self, number: usize) -> Option<String> {
        let known = self.files.first()?.to_str()?;
        let at = known.rfind("-of-")?;
        let digits = known[..at].rfind('-')? + 1;
        Some(format!("{}{number:0width$}{}", &known[..digits], &known[at..], width = at - digits))
    }

    /// The set in a message.
    fn describe(&self) -> String {
        match (self.total, self.files.first()) {
            (None, Some(file)) => Name(&file.to_string_lossy()).to_string(),
            (total, _) => {
                let name = names::shard_name(&self.name, 0, total.unwrap_or(0) as usize).replacen("-00000-", "-*-", 1);
                let files = if self.files.len() == 1 { "file" } else { "files" };
                format!("{} ({} {files})", Name(&name), self.files.len())
            }
        }
    }
}

/// The first few items, and the number of the others.
pub(super) fn list(items: impl ExactSizeIterator<Item = String>) -> String {
    const MOST: usize = 4;
    let rest = items.len().saturating_sub(MOST);
    let mut text = items.take(MOST).collect::<Vec<String>>().join(", ");
    if rest > 0 {
        text.push_str(&format!(" and {rest} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        Listing::of(names.iter().map(OsString::from))
    }

    #[test]
    fn shards_form_a_set() {
        let found = listing(&["m-00002-of-00002.safetensors", "m-00001-of-00002.safetensors", "config.json"]);
        let set = found.main_set().expect("one set");
        assert_eq!((set.name.as_str(), set.total, set.files.len(), set.missing()), ("m", Some(2), 2, None));
        assert_eq!(set.files[0], "m-00001-of-00002.safetensors");
        for other in ["consolidated.safetensors", "m.safetensors", "m-00001-of-00003.safetensors", "m.fp16.safetensors"]
        {
            let mut names = vec!["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"];
            names.push(other);
            let error = listing(&names).main_set().expect_err(other);
            assert_eq!(error.status(), Status::InvalidArgument);
            assert!(error.message().contains("`m-*-of-00002.safetensors` (2 files)"), "{error}");
        }
        let plain = listing(&["b.safetensors", "a.safetensors", "._a.safetensors", "c.safetensors.incomplete"]);
        let error = plain.main_set().expect_err("two models");
        let message = "has no index and 2 sets of model files: `a.safetensors`, `b.safetensors`; open one file, or one \
                       index";
        assert_eq!(error.message(), message);
        assert_eq!(listing(&["config.json"]).main_set().expect_err("none").status(), Status::NotFound);
    }

    #[test]
    fn missing_shards_follow_from_the_names() {
        let missing = |names: &[&str]| listing(names).main_set().expect("one set").missing();
        assert_eq!(missing(&["m-2-of-3.safetensors"]), Some(("m-1-of-3.safetensors".to_owned(), 2)));
        let names = ["m-00001-of-00003.fp16.safetensors", "m-00003-of-00003.fp16.safetensors"];
        assert_eq!(missing(&names), Some(("m-00002-of-00003.fp16.safetensors".to_owned(), 1)));
        assert_eq!(missing(&["m-0-of-2.safetensors", "m-1-of-2.safetensors"]), None);
        assert_eq!(missing(&["m-1-of-4000000000.safetensors"]).map(|(_, count)| count), Some(3_999_999_999));
        assert_eq!(missing(&["m.safetensors"]), None);
    }

    #[test]
    fn the_index_without_a_variant_is_the_main_one() {
        let main = |names: &[&str]| listing(names).main_index().map(|index| index.map(str::to_owned));
        let (base, fp16) = ("m.safetensors.index.json", "m.safetensors.index.fp16.json");
        assert_eq!(main(&[base, fp16]).expect("is the base").as_deref(), Some(base));
        assert_eq!(main(&[fp16]).expect("is the only one").as_deref(), Some(fp16));
        assert_eq!(main(&["m.fp16.safetensors.index.json", base]).expect("is the base").as_deref(), Some(base));
        assert_eq!(main(&["m.safetensors", "._m.safetensors.index.json"]).expect("there is none"), None);
        for other in ["n.safetensors.index.json", "m.safetensors.index.bf16.json"] {
            let error = main(&[fp16, other]).expect_err(other);
            assert!(error.message().contains(other) && error.message().contains(fp16), "{error}");
        }
    }
}
