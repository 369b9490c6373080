//! The layout on its own, for programs that write by themselves.

use super::boundary::{Output, guard, required};
use super::status::{sa_error, sa_status};
use super::types::{sa_metadata, sa_tensor, specs};
use super::write::sa_write_options;
use crate::error::{Error, Status};
use crate::layout::Plan;

/// Where everything of a file goes, without the file: the header's bytes, and the order, offset and padding of each
/// tensor. For a program that writes through a stream of its own.
///
/// Freed by `sa_plan_free`. Never changes once made: safe to use from several threads at once.
pub struct sa_plan(Plan);

/// Where one tensor goes.
#[repr(C)]
pub struct sa_placement {
    /// Position of the tensor in the array that the plan was made from.
    pub input_index: usize,
    /// Its first byte, counted from the start of the file.
    pub offset: u64,
    /// Bytes of data.
    pub nbytes: u64,
    /// Zero bytes to write before it; always 0 in the compact layout.
    pub padding_before: u64,
}

/// Lays out a file: pure arithmetic, no I/O. The same input gives the same plan, byte for byte.
///
/// @param tensors   `n_tensors` of them; null if there are none. `data` is not looked at, `nbytes` is.
/// @param metadata  `n_metadata` entries; null if there are none.
/// @param options   Null for the defaults; of it, `layout` and `alignment`.
/// @param plan      Receives the plan; free it with `sa_plan_free`. It borrows nothing.
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
    options: *const sa_write_options,
    plan: *mut *mut sa_plan,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid, and arrays as long as their counts.
    unsafe {
        guard(error, || {
            let specs = specs(tensors, n_tensors)?;
            let metadata = super::types::metadata(metadata, n_metadata)?;
            let options = super::boundary::options(options, "options")?;
            let out = Output::new(plan, "plan")?;
            let plan = Plan::new(&specs, &metadata, &options.layout()?)?;
            out.set(Box::into_raw(Box::new(sa_plan(plan))));
            Ok(())
        })
    }
}

/// The first bytes of the file: the 8-byte length, the JSON, the padding. The data section starts behind them.
///
/// @param bytes   Receives a pointer into the plan, valid until the plan is freed.
/// @param nbytes  Receives the number of bytes: a multiple of the alignment.
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
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let header = required(plan, "plan")?.0.header();
            let (bytes, nbytes) = (Output::new(bytes, "bytes")?, Output::new(nbytes, "nbytes")?);
            bytes.set(header.as_ptr());
            nbytes.set(header.len());
            Ok(())
        })
    }
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

/// The tensor at a position of the file. Written from position 0 on, each behind its padding, the tensors follow on the
/// header and on each other without a seek.
///
/// @param position   From 0 to `sa_plan_len` - 1.
/// @param placement  Receives where the tensor goes.
/// @return `SA_ERR_NOT_FOUND` for a position that is not there.
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
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let placements = required(plan, "plan")?.0.placements();
            let out = Output::new(placement, "placement")?;
            let Some(found) = placements.get(position) else {
                let message = format!("position {position} of {}: there is no such tensor", placements.len());
                return Err(Error::new(Status::NotFound, message));
            };
            out.set(sa_placement {
                input_index: found.input_index,
                offset: found.offset,
                nbytes: found.nbytes,
                padding_before: found.padding_before,
            });
            Ok(())
        })
    }
}

/// Bytes of the whole file; 0 for null.
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
