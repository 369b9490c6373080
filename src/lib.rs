//! Writes [safetensors](https://github.com/huggingface/safetensors) files in which every tensor can be mapped without a
//! copy, and maps them.
//!
//! A loader that maps a file can use a tensor in place only if the tensor's absolute offset is a multiple of its dtype
//! width. It copies every other tensor into anonymous memory. [`writer::write_aligned`] writes files in which no tensor
//! has to be copied, and [`map::File`] maps them. The C ABI is `include/safealign.h`; `docs/architecture.md` describes
//! the modules.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod aligned_cache;
mod atomic_file;
pub mod bundle;
mod cache_file;
#[doc(hidden)]
pub mod capi;
pub mod dtype;
pub mod error;
mod file_lock;
pub mod header;
pub mod layout;
pub mod map;
pub mod overlay;
pub mod repair;
pub mod scan;
mod source;
pub mod writer;
