//! The C ABI: one file for each section of the header, and [`boundary`] for what they share.
//!
//! It converts and decides nothing: null and length checks, enum validation, a call, a status. The documentation of
//! the exported items becomes `include/safealign.h`, without the `# Safety` parts, which speak to Rust.
#![allow(non_camel_case_types)]

mod aligned_cache;
mod boundary;
mod bundle;
mod file;
mod info;
mod overlay;
mod plan;
mod repair;
mod scan;
mod status;
mod types;
mod view;
mod write;
mod writer;

pub use aligned_cache::*;
pub use bundle::*;
pub use file::*;
pub use info::*;
pub use overlay::*;
pub use plan::*;
pub use repair::*;
pub use scan::*;
pub use status::*;
pub use types::*;
pub use view::*;
pub use write::*;
pub use writer::*;
