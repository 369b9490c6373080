//! A tensor of an open file.

use std::sync::Arc;

use super::file::Keeper;
use super::{Advice, Origin};
use crate::error::Result;
use crate::header::TensorInfo;

/// A tensor of an open file. It keeps the file's mapping alive: the [`File`](super::File) may be dropped first. Cheap
/// to clone; safe to use from several threads at once.
#[derive(Clone)]
pub struct View {
    keeper: Arc<Keeper>,
    index: usize,
}

impl View {
    pub(super) fn new(keeper: Arc<Keeper>, index: usize) -> View {
        View { keeper, index }
    }

    /// Name, dtype, shape and offsets.
    pub fn info(&self) -> TensorInfo<'_> {
        // The index was checked when the view was made, and headers do not change.
        self.keeper.opened().header().get(self.index).unwrap_or_else(|| unreachable!("a view has a tensor"))
    }

    /// Where the bytes are.
    pub fn origin(&self) -> Origin {
        self.keeper.origin(self.index)
    }

    /// The first byte and the size in bytes. The bytes are valid while a view of the tensor exists.
    pub fn span(&self) -> (*const u8, usize) {
        self.keeper.span(self.index)
    }

    /// The first byte, for writing. Every view of the tensor sees what is written; the file does not change.
    ///
    /// Fails unless the file was opened with [`MapMode::CopyOnWrite`](super::MapMode::CopyOnWrite)
    /// ([`Status::InvalidArgument`](crate::error::Status::InvalidArgument)).
    pub fn writable(&self) -> Result<*mut u8> {
        self.keeper.writable(self.span())
    }

    /// The bytes: elements in row-major order, little-endian.
    ///
    /// # Safety
    /// While the slice is used, nobody writes to the file, truncates it, or writes through [`View::writable`].
    pub unsafe fn bytes(&self) -> &[u8] {
        let (start, len) = self.span();
        // SAFETY: the keeper holds these bytes for as long as `self` lives, and the caller promises that they do not
        // change.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Says how the bytes will be used. Whole pages are affected, hence also neighbouring tensors.
    pub fn advise(&self, advice: Advice) -> Result<()> {
        let (start, len) = self.span();
        self.keeper.advise(advice, start, len)
    }

    /// Turns the view into what keeps its bytes alive.
    pub(crate) fn into_keeper(self) -> Arc<Keeper> {
        self.keeper
    }
}
