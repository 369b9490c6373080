//! The file of an aligned cache: which sources it was written for, and where it has their tensors.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result, Status};
use crate::header::Header;
use crate::source::{self, Identity};

/// The metadata key of the source records.
pub(crate) const SOURCES: &str = "safealign.aligned_cache.sources";
/// The largest size of the source records in bytes: parsed, they take many times that.
pub(crate) const MAX_SOURCES_LEN: usize = 4 << 20;
/// A source file: what tells whether a cache file was written for it.
pub(crate) struct Identified<'a> {
    pub path: &'a Path,
    pub identity: &'a Identity,
    pub file: &'a File,
    /// Where the model starts in the file, in bytes.
    pub offset: u64,
    pub header: &'a Header,
}

/// An open cache file, and where the tensors are in it.
pub(crate) struct Found {
    pub file: File,
    pub len: u64,
    /// For each tensor that was asked for, its offset from the start of the file, in bytes.
    pub offsets: Vec<usize>,
}

/// Opens the cache file at `path`, and finds in it the tensors of a source with those indices.
///
/// A file that was not written for this source, or for an earlier version of it, is an error that names both.
pub(crate) fn open(path: &Path, source: &Identified, tensors: &[u32]) -> Result<Found> {
    let found = || {
        let (file, found) = source::open_regular(path)?;
        let header = source::read_header(&file, found.len())?;
        let survey = header.survey(found.len() - header.data_start())?;
        let is_ours = |&(key, value): &(&str, &str)| key == SOURCES && value.len() <= MAX_SOURCES_LEN;
        let records = header.metadata().find(is_ours);
        let records = records.and_then(|(_, value)| serde_json::from_str::<Vec<Value>>(value).ok());
        let Some(records) = records else {
            let message = format!("is not an aligned cache, so it cannot be used for {}", source.path.display());
            return Err(Error::new(Status::InvalidArgument, message));
        };
        if survey.misaligned_tensors > 0 {
            return Err(Error::new(Status::Format, "is not aligned: write the aligned cache again"));
        }
        let wanted = source.record()?;
        let is_same = |record: &Value| {
            let keys = ["device", "inode", "size", "offset", "mtime", "header_sha256"];
            keys.iter().all(|key| record[key] == wanted[key])
        };
        if !records.iter().any(is_same) {
            let is_known = records.iter().any(|record| {
                record["path"] == wanted["path"]
                    || (record["device"] == wanted["device"] && record["inode"] == wanted["inode"])
            });
            let source = source.path.display();
            return Err(if is_known {
                let message = format!("is stale: {source} was modified since; write the aligned cache again");
                Error::new(Status::Changed, message)
            } else {
                Error::new(Status::InvalidArgument, format!("was not written for {source}"))
            });
        }
        let offset = |&index: &u32| {
            let tensor = source.header.get(index as usize)?;
            let cached = header.find(tensor.name).and_then(|at| header.get(at))?;
            let same = cached.dtype == tensor.dtype && cached.shape == tensor.shape;
            same.then_some((header.data_start() + cached.begin) as usize)
        };
        match tensors.iter().map(offset).collect::<Option<Vec<usize>>>() {
            Some(offsets) => Ok(Found { file, len: found.len(), offsets }),
            None => {
                let message = format!("lacks a tensor of {}: write the aligned cache again", source.path.display());
                Err(Error::new(Status::Changed, message))
            }
        }
    };
    found().map_err(|error: Error| error.at(path))
}

impl Identified<'_> {
    /// What the cache file says of its source. The path is there for people; it is not compared.
    pub(crate) fn record(&self) -> Result<Value> {
        let mut header = vec![0; (self.header.data_start()) as usize];
        self.file.read_exact_at(&mut header, self.offset).map_err(|error| source::read_error(&error).at(self.path))?;
        let Identity { device, inode, size, mtime, .. } = *self.identity;
        Ok(json!({
            "path": self.path.to_string_lossy(),
            "device": device,
            "inode": inode,
            "size": size,
            "offset": self.offset,
            "mtime": [mtime.0, mtime.1],
            "header_sha256": hex(&header),
        }))
    }
}

/// The SHA-256 of some bytes, in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
