//! The layout on its own, for programs that write by themselves.

use super::boundary::{self, Call, SizedStruct, guard, sized_struct};
use super::status::{sa_error, sa_status};
use super::types::{sa_metadata, sa_tensor, specs};
use crate::error::{Error, Status};
use crate::layout::{Placement, Plan};

/// A computed file layout: the bytes of the header, and the order, the offsets and the gaps of the tensors. For
/// programs that write a file through their own stream.
///
/// Freed by `sa_plan_free`. Immutable, and safe to use from several threads at once.
pub struct sa_plan(Plan);

/// Options of `sa_plan_new`. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_plan_options {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// As in `sa_write_options`.
    pub alignment: u64,
    /// An `sa_layout`. The default is `SA_LAYOUT_COMPACT`.
    pub layout: i32,
    /// 0.
    pub reserved: i32,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_plan_options, reserved);

/// The position of a tensor in a file. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_placement {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// Index of the tensor in the array that the plan or the writer was made from.
    pub input_index: usize,
    /// Offset of the tensor, in bytes from the start of the file.
    pub offset: u64,
    /// Size of the tensor in bytes.
    pub nbytes: u64,
    /// Zero bytes to write before it; always 0 in the compact layout.
    pub gap_before: u64,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_placement, gap_before);

impl From<Placement> for sa_placement {
    fn from(placement: Placement) -> sa_placement {
        sa_placement {
            input_index: placement.input_index,
            offset: placement.offset,
            nbytes: placement.nbytes,
            gap_before: placement.gap_before,
            ..sa_placement::zeroed()
        }
    }
}

/// Computes a file layout. Pure arithmetic, no I/O. The same input gives the same plan, byte for byte.
///
/// @param tensors     Array of `n_tensors`; null if there are none. Their `data` is ignored.
/// @param n_tensors   Number of tensors.
/// @param metadata    Array of `n_metadata`; null if there are none.
/// @param n_metadata  Number of metadata entries.
/// @param options     Null for the defaults.
/// @param plan        Receives the plan, to be freed with `sa_plan_free`. It keeps no pointer to the input.
/// @param error       Null, or receives the error.
/// @return `SA_ERR_INVALID_ARGUMENT` or `SA_ERR_TOO_LARGE`, as `sa_write_aligned`.
///
/// # Safety
/// Pointers are null or valid for the call, and arrays as long as their counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_plan_new(
    tensors: *const sa_tensor,
    n_tensors: usize,
    metadata: *const sa_metadata,
    n_metadata: usize,
    options: *const sa_plan_options,
    plan: *mut *mut sa_plan,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let specs = specs(call, tensors, n_tensors)?;
        let metadata = super::types::metadata(call, metadata, n_metadata)?;
        let options = call.options(options)?;
        let out = call.output(plan, "plan")?;
        if options.reserved != 0 {
            return Err(boundary::invalid("`options.reserved` is not 0"));
        }
        let plan = Plan::new(&specs, &metadata, &super::write::layout(options.layout, options.alignment)?)?;
        out.set(Box::into_raw(Box::new(sa_plan(plan))));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid, and arrays as long as their counts.
    unsafe { guard(error, body) }
}

/// The first bytes of the file: the 8-byte length, the JSON and its padding. The data section follows.
///
/// @param plan    The plan.
/// @param bytes   Receives a pointer that is valid until the plan is freed.
/// @param nbytes  Receives their number, a multiple of the alignment.
/// @param error   Null, or receives the error.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_plan_header(
    plan: *const sa_plan,
    bytes: *mut *const u8,
    nbytes: *mut usize,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let header = call.required(plan, "plan")?.0.header();
        let (bytes, nbytes) = (call.output(bytes, "bytes")?, call.output(nbytes, "nbytes")?);
        bytes.set(header.as_ptr());
        nbytes.set(header.len());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Number of tensors; 0 for null.
///
/// # Safety
/// `plan` is null or a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_plan_len(plan: *const sa_plan) -> usize {
    // SAFETY: as the caller says.
    unsafe { plan.as_ref() }.map_or(0, |plan| plan.0.placements().len())
}

/// The tensor at a position of the file. Written in the order of their positions, each after its gap, the tensors
/// follow the header and each other without a seek.
///
/// @param plan       The plan.
/// @param position   From 0 to `sa_plan_len` - 1.
/// @param placement  Receives the placement.
/// @param error      Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if the position is out of range.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_plan_at(
    plan: *const sa_plan,
    position: usize,
    placement: *mut sa_placement,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let placements = call.required(plan, "plan")?.0.placements();
        let out = call.report(placement, "placement")?;
        let Some(found) = placements.get(position) else {
            let message = format!("position {position} is out of range: there are {} tensors", placements.len());
            return Err(Error::new(Status::NotFound, message));
        };
        out.set(&(*found).into());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Size of the file in bytes; 0 for null.
///
/// # Safety
/// `plan` is null or a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_plan_file_size(plan: *const sa_plan) -> u64 {
    // SAFETY: as the caller says.
    unsafe { plan.as_ref() }.map_or(0, |plan| plan.0.file_size())
}

/// Frees a plan. Null is ignored.
///
/// # Safety
/// `plan` is null or a plan that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_plan_free(plan: *mut sa_plan) {
    if !plan.is_null() {
        // SAFETY: it came from `Box::into_raw` in `sa_plan_new`.
        drop(unsafe { Box::from_raw(plan) });
    }
}
