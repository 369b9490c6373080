//! Bundles: models that consist of several files, and the rules that say which files belong to a model.
//!
//! A *model file* has the extension `.safetensors`. A *shard* is a model file that holds a part of a model, named
//! `model-00001-of-00002.safetensors`. An *index*, `model.safetensors.index.json`, says which shard holds which tensor.
//! A *bundle* is an index with its shards, the shards of one set without an index, or a single model file. A *variant*,
//! such as `fp16`, is a bundle of its own in the same directory, with an index of its own
//! (`model.safetensors.index.fp16.json`). These are the conventions of the Hugging Face libraries.
//!
//! [`Bundle::open`] maps a bundle, and [`write_sharded`] writes one.

pub mod cache;
mod contents;
mod index;
mod listing;
pub mod names;
mod open;
mod write;

pub use contents::{Finding, compare};
pub use index::{Index, MAX_INDEX_LEN, OutsideEntry};
pub use listing::{Listing, Set};
pub use open::Bundle;
pub use write::{ShardedReport, write_sharded};
