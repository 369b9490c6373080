//! Writes [safetensors](https://github.com/huggingface/safetensors) files whose every tensor can be mapped without a
//! copy, and maps them.
//!
//! A loader that maps a file can share the mapping only with a tensor whose absolute offset is a multiple of its dtype
//! width; it copies the others into anonymous memory. [`writer::write_aligned`] writes files where no tensor has to be
//! copied and that every reader opens; [`map::File`] maps them. The C ABI is `include/safealign.h`.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod aligned_cache;
mod atomic_file;
pub mod bundle;
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
