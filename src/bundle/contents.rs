//! The tensors of several files, compared with each other and with an index. Pure: headers in, positions out.

use std::hash::BuildHasher;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::Index;
use crate::header::Header;

/// Something that is wrong with the tensors of a bundle. Shards are positions in the list that was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding<'a> {
    /// Two shards have a tensor of this name.
    Duplicate { tensor: &'a str, shards: [usize; 2] },
    /// The index lists a tensor in a shard that does not have it.
    Absent { tensor: &'a str, shard: usize },
    /// A shard has a tensor that the index does not list. It is not part of the bundle.
    Unlisted { tensor: &'a str, shard: usize },
}

/// The tensors of a bundle by position and by name. Names stay in the headers.
pub(super) struct Contents {
    /// Shard and index in the shard of each tensor, in that order.
    places: Vec<(u32, u32)>,
    by_name: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// Compares the tensors of shards with each other and with an index, if there is one. A shard whose header is not known
/// is left out of the comparison. `headers` are in the order of [`Index::shards`].
///
/// Unlisted tensors come first, in the order of the shards, then duplicates, then absent tensors in the order of the
/// index.
pub fn compare<'a>(headers: &[Option<&'a Header>], index: Option<&'a Index>) -> Vec<Finding<'a>> {
    Contents::of(headers, index).1
}

impl Contents {
    pub(super) fn of<'a>(headers: &[Option<&'a Header>], index: Option<&'a Index>) -> (Contents, Vec<Finding<'a>>) {
        let mut findings = Vec::new();
        let (listed, absent) = index.map_or_else(Default::default, |index| listed(headers, index));
        let mut contents = Contents {
            places: Vec::with_capacity(headers.iter().flatten().map(|header| header.len()).sum()),
            by_name: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        };
        let mut duplicates = Vec::new();
        let mut all = contents.table(headers);
        for (shard, header) in headers.iter().enumerate() {
            for (at, tensor) in header.iter().flat_map(|header| header.iter()).enumerate() {
                if let Some(first) = contents.add(&mut all, headers, (shard as u32, at as u32), tensor.name) {
                    duplicates.push(Finding::Duplicate { tensor: tensor.name, shards: [first, shard] });
                }
                if index.is_some() && !listed[shard][at] {
                    findings.push(Finding::Unlisted { tensor: tensor.name, shard });
                }
            }
        }
        if index.is_some() && !findings.is_empty() {
            contents.places.retain(|&(shard, at)| listed[shard as usize][at as usize]);
            let places = std::mem::take(&mut contents.places);
            all = contents.table(headers);
            for place in places {
                let name = name_at(headers, place);
                contents.add(&mut all, headers, place, name);
            }
        }
        contents.by_name = all;
        findings.append(&mut duplicates);
        findings.extend(absent);
        (contents, findings)
    }

    fn table(&self, headers: &[Option<&Header>]) -> HashTable<u32> {
        HashTable::with_capacity(headers.iter().flatten().map(|header| header.len()).sum())
    }

    /// Adds a tensor, unless one of that name is there: then returns the shard of that one.
    fn add(
        &mut self,
        table: &mut HashTable<u32>,
        headers: &[Option<&Header>],
        place: (u32, u32),
        name: &str,
    ) -> Option<usize> {
        let Contents { places, hasher, .. } = self;
        let entry = table.entry(
            hasher.hash_one(name.as_bytes()),
            |&other| name_at(headers, places[other as usize]) == name,
            |&other| hasher.hash_one(name_at(headers, places[other as usize]).as_bytes()),
        );
        match entry {
            Entry::Occupied(known) => Some(places[*known.get() as usize].0 as usize),
            Entry::Vacant(vacant) => {
                vacant.insert(places.len() as u32);
                places.push(place);
                None
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The shard of a tensor, and its index in that shard.
    pub(super) fn get(&self, index: usize) -> Option<(usize, usize)> {
        self.places.get(index).map(|&(shard, at)| (shard as usize, at as usize))
    }

    /// The tensor of that name. `header_of` gives the header of a shard.
    pub(super) fn find<'a>(&self, name: &str, header_of: impl Fn(usize) -> &'a Header) -> Option<usize> {
        let is_it = |&index: &u32| {
            let (shard, at) = self.places[index as usize];
            header_of(shard as usize).get(at as usize).is_some_and(|tensor| tensor.name == name)
        };
        self.by_name.find(self.hasher.hash_one(name.as_bytes()), is_it).map(|&index| index as usize)
    }
}

fn name_at<'a>(headers: &[Option<&'a Header>], (shard, at): (u32, u32)) -> &'a str {
    headers[shard as usize].and_then(|header| header.get(at as usize)).map_or("", |tensor| tensor.name)
}

/// Of each tensor of each shard, whether the index lists it there; and the entries whose tensor is absent.
fn listed<'a>(headers: &[Option<&'a Header>], index: &'a Index) -> (Vec<Vec<bool>>, Vec<Finding<'a>>) {
    let mut listed: Vec<Vec<bool>> =
        headers.iter().map(|header| vec![false; header.map_or(0, |header| header.len())]).collect();
    let mut absent = Vec::new();
    for (tensor, shard) in index.entries() {
        let Some(header) = headers[shard] else { continue };
        match header.find(tensor) {
            Some(at) => listed[shard][at] = true,
            None => absent.push(Finding::Absent { tensor, shard }),
        }
    }
    (listed, absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(names: &[&str]) -> Header {
        let tensors: serde_json::Map<_, _> = (0..)
            .zip(names)
            .map(|(at, name)| {
                let info = serde_json::json!({ "dtype": "U8", "shape": [1], "data_offsets": [at, at + 1] });
                ((*name).to_owned(), info)
            })
            .collect();
        Header::parse(&serde_json::to_vec(&tensors).expect("JSON")).expect("a header")
    }

    fn index(json: &str) -> Index {
        Index::parse(json.as_bytes()).expect("an index")
    }

    #[test]
    fn tensors_come_in_the_order_of_the_shards() {
        let (a, b) = (header(&["z", "y"]), header(&["x"]));
        let headers = [Some(&a), None, Some(&b)];
        let (contents, findings) = Contents::of(&headers, None);
        assert_eq!((contents.len(), findings.as_slice()), (3, &[][..]));
        assert_eq!([0, 1, 2].map(|index| contents.get(index)), [Some((0, 0)), Some((0, 1)), Some((2, 0))]);
        assert_eq!(contents.get(3), None);
        let find = |name| contents.find(name, |shard| [&a, &a, &b][shard]);
        assert_eq!(["z", "y", "x", "w"].map(find), [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn duplicates_absent_and_unlisted_tensors_are_found() {
        let (a, b) = (header(&["p", "q"]), header(&["q", "r"]));
        let index = index(r#"{"weight_map": {"q": "b", "s": "a", "p": "a"}}"#);
        let (contents, findings) = Contents::of(&[Some(&a), Some(&b)], Some(&index));
        assert_eq!(
            findings,
            [
                Finding::Unlisted { tensor: "q", shard: 0 },
                Finding::Unlisted { tensor: "r", shard: 1 },
                Finding::Duplicate { tensor: "q", shards: [0, 1] },
                Finding::Absent { tensor: "s", shard: 0 },
            ]
        );
        assert!(contents.len() < 4);
        let (_, findings) = Contents::of(&[Some(&a), Some(&b)], None);
        assert_eq!(findings, [Finding::Duplicate { tensor: "q", shards: [0, 1] }]);
    }

    #[test]
    fn the_index_decides_which_tensors_there_are() {
        let (a, b) = (header(&["p", "q"]), header(&["r", "s"]));
        let index = index(r#"{"weight_map": {"q": "a", "r": "b"}}"#);
        let (contents, findings) = Contents::of(&[Some(&a), Some(&b)], Some(&index));
        assert_eq!((contents.len(), findings.len()), (2, 2));
        let find = |name| contents.find(name, |shard| [&a, &b][shard]);
        assert_eq!(["p", "q", "r", "s"].map(find), [None, Some(0), Some(1), None]);
        assert_eq!(contents.get(1), Some((1, 0)));
    }
}
