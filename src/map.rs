//! Maps files: one mapping for each file, views that keep it alive, aligned copies of the tensors that cannot be
//! shared.
//!
//! # Safety
//! A mapping shows the file as it is now. Another process, or this one, may write to the file while it is mapped, and
//! Rust does not allow a `&[u8]` whose bytes change. Opening a file is therefore safe, but views hand out raw pointers,
//! and [`View::bytes`] is `unsafe`: its caller promises that nobody writes to the file while the slice is used.
//! `memmap2` makes the opening `unsafe` instead. Here most callers never form a slice (they pass the pointer to C, to a
//! GPU or to an array type), so the promise is asked of those who do.
//!
//! A file that is truncated while it is mapped raises SIGBUS on access. A file that is replaced by a rename, as this
//! library does it, stays complete for those who have it mapped.

mod file;
mod memory;
mod view;

pub use file::File;
pub(crate) use file::Keeper;
pub(crate) use memory::Borrowed;
pub use view::View;

use std::path::PathBuf;

use crate::header::HeaderPadding;

/// How a file is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum MapMode {
    /// Read-only and shared with every other process that maps the file.
    #[default]
    Shared = 0,
    /// Private and writable, with no swap reserved: a page that is written becomes private to this process, and the
    /// file does not change.
    CopyOnWrite = 1,
}

/// What mapping a misaligned tensor gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Unaligned {
    /// An aligned copy in anonymous memory, shared by the views that exist at the same time.
    #[default]
    Copy = 0,
    /// An error of status [`Unaligned`](crate::error::Status::Unaligned).
    Error = 1,
    /// The misaligned bytes of the mapping.
    Borrow = 2,
}

/// What opening does about the pages of the file that are not in memory yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum ReadAhead {
    /// Nothing: each page is read when it is first accessed.
    #[default]
    None = 0,
    /// Opening returns when the whole file is in memory and mapped.
    Populate = 1,
    /// A thread of the library does that in the background. It ends early once the file and its views are gone.
    Background = 2,
}

/// How to open a file.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub map: MapMode,
    pub unaligned: Unaligned,
    pub read_ahead: ReadAhead,
    /// Refuse everything that the reference reader refuses.
    pub strict: bool,
    /// A file made by [`aligned_cache::write`](crate::aligned_cache::write): misaligned tensors are mapped from there.
    pub aligned_cache: Option<PathBuf>,
}

/// Where a view's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Origin {
    /// In the mapping of the file, or in the memory that the file was read into (see [`Stats::is_mapped`]).
    Mapped = 0,
    /// In an aligned copy in anonymous memory.
    Copied = 1,
    /// In the mapping of the [aligned cache](OpenOptions::aligned_cache).
    Cached = 2,
}

/// How a view's bytes will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Advice {
    /// Read the pages ahead of use.
    WillNeed = 0,
    /// The pages may be evicted. Ignored where memory holds the only copy of the data: in an aligned copy, in a
    /// copy-on-write mapping, and in a file that was read instead of mapped.
    DoNotNeed = 1,
    /// Random access: reading ahead is of no use.
    Random = 2,
    /// Sequential access.
    Sequential = 3,
}

/// Counts of an open file, and of what has been handed out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Size of the file in bytes.
    pub file_size: u64,
    /// Whether the file is mapped. Otherwise its file system cannot map, and the file was read into memory.
    pub is_mapped: bool,
    /// Number of tensors.
    pub tensors: u64,
    /// Tensors that are not empty and whose address is not a multiple of their dtype width.
    pub misaligned_tensors: u64,
    /// Their total size in bytes.
    pub misaligned_bytes: u64,
    /// Tensors handed out of a mapping so far, each counted once.
    pub tensors_mapped: u64,
    /// Their total size in bytes.
    pub bytes_mapped: u64,
    /// Tensors of which an aligned copy was made so far, each counted once.
    pub tensors_copied: u64,
    /// Their total size in bytes.
    pub bytes_copied: u64,
    /// Gaps before or between tensors.
    pub gaps: u64,
    /// Their total size in bytes.
    pub gap_bytes: u64,
    /// Bytes after the last tensor.
    pub trailing_bytes: u64,
    /// What pads the header.
    pub header_padding: HeaderPadding,
}
