/*
 * safealign: writes safetensors files whose every tensor maps without a copy, and maps them.
 *
 * Generated from the Rust source by cbindgen: do not edit. C99 and C++17.
 *
 * Conventions
 *
 *  1. Every call that can fail returns an sa_status, 0 for success, and takes as its last argument an sa_error *: a
 *     512-byte struct of the caller's that says what went wrong, or null. Nothing to free, nothing thread-local. If
 *     nothing else is said, a call returns SA_ERR_INVALID_ARGUMENT for a null or senseless argument, and
 *     SA_ERR_INTERNAL for a defect of the library.
 *  2. Outputs are written only on success. A null argument is an error that names it, never a crash, unless the
 *     function says that it may be null.
 *  3. Enums are passed as int32_t and checked.
 *  4. Structs of options and reports begin with struct_size and have an init function, so that they can grow: call it
 *     first. A program may run with an older or a newer library than its header.
 *  5. Texts are UTF-8; paths are the system's own bytes. Texts handed out end with a NUL and carry their length.
 *  6. Handles are opaque and freed by the function named in their comment, which takes null. A handle that is read from
 *     may be used by several threads at once; where more is allowed or less, the comment says so.
 *  7. Sizes and offsets are in bytes, shapes in elements. Offsets count from the start of the file.
 *
 * Caveats
 *
 *  - A file that somebody truncates or overwrites in place while it is mapped changes under its views; touching a page
 *    that is gone raises SIGBUS. A file that is replaced by a rename, as every write of this library does it, is safe.
 *  - Some network file systems cannot map. The file is then read into memory; sa_stats.is_mapped says so.
 *  - Tested on Linux. Written for macOS too, but not run there. Windows is not supported.
 *
 * The format: https://github.com/huggingface/safetensors#format
 */


#ifndef SAFEALIGN_H
#define SAFEALIGN_H

#include <stddef.h>
#include <stdint.h>

/**
 * Bytes of the message in an `sa_error`, the NUL included.
 */
#define SA_ERROR_MESSAGE_SIZE 504

/**
 * The version of this header.
 */
#define SA_VERSION_MAJOR 0

/**
 * The version of this header.
 */
#define SA_VERSION_MINOR 2

/**
 * The version of this header.
 */
#define SA_VERSION_PATCH 0

/**
 * What a call came to. The values never change; later versions may add some.
 */
enum sa_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Success.
   */
  SA_OK = 0,
  /**
   * An argument that no file could make right: null, a bad enum value, a size that disagrees with its shape.
   */
  SA_ERR_INVALID_ARGUMENT = 1,
  /**
   * A system call failed (`os_error` says how), or the path is not that of a regular file.
   */
  SA_ERR_IO = 2,
  /**
   * The disk or the quota is full, seen before anything was written where the file system can tell.
   */
  SA_ERR_NO_SPACE = 3,
  /**
   * No tensor of that name or number.
   */
  SA_ERR_NOT_FOUND = 4,
  /**
   * The file breaks the format.
   */
  SA_ERR_FORMAT = 5,
  /**
   * The file is shorter than its header says: an incomplete download.
   */
  SA_ERR_TRUNCATED = 6,
  /**
   * The header is, or would be, longer than readers accept. When reading this mostly means that the file is
   * something else; the message says what it looks like.
   */
  SA_ERR_TOO_LARGE = 7,
  /**
   * A dtype that the format does not know.
   */
  SA_ERR_UNSUPPORTED = 8,
  /**
   * The tensor is misaligned, and the file was opened with `SA_UNALIGNED_ERROR`.
   */
  SA_ERR_UNALIGNED = 9,
  /**
   * Opened with `strict`: the reference reader would refuse the file.
   */
  SA_ERR_NONCONFORMING = 10,
  /**
   * The operation could harm something, and says what to do instead.
   */
  SA_ERR_REFUSED = 11,
  /**
   * The file changed while it was read.
   */
  SA_ERR_CHANGED = 12,
  /**
   * The progress callback asked to stop.
   */
  SA_ERR_CANCELLED = 13,
  /**
   * A defect of this library; please report it.
   */
  SA_ERR_INTERNAL = 14,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_status sa_status;
#else
typedef int32_t sa_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * An element type. The values never change; 0 is none of them.
 *
 * Names and sizes are those of the safetensors reference implementation, version 0.8.0.
 */
enum sa_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  SA_DTYPE_BOOL = 1,
  SA_DTYPE_U8 = 2,
  SA_DTYPE_I8 = 3,
  SA_DTYPE_F8_E5M2 = 4,
  SA_DTYPE_F8_E4M3 = 5,
  SA_DTYPE_F8_E8M0 = 6,
  SA_DTYPE_F8_E4M3FNUZ = 7,
  SA_DTYPE_F8_E5M2FNUZ = 8,
  SA_DTYPE_I16 = 9,
  SA_DTYPE_U16 = 10,
  SA_DTYPE_F16 = 11,
  SA_DTYPE_BF16 = 12,
  SA_DTYPE_I32 = 13,
  SA_DTYPE_U32 = 14,
  SA_DTYPE_F32 = 15,
  SA_DTYPE_I64 = 16,
  SA_DTYPE_U64 = 17,
  SA_DTYPE_F64 = 18,
  /**
   * Two F32: real, imaginary.
   */
  SA_DTYPE_C64 = 19,
  /**
   * 4 bits an element, packed.
   */
  SA_DTYPE_F4 = 20,
  /**
   * 6 bits an element, packed.
   */
  SA_DTYPE_F6_E2M3 = 21,
  /**
   * 6 bits an element, packed.
   */
  SA_DTYPE_F6_E3M2 = 22,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_dtype sa_dtype;
#else
typedef int32_t sa_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How tensors are made to stand on aligned offsets.
 */
enum sa_layout
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * No holes, so every reader opens the file. Tensors are sorted, stably, by the largest power of two that divides
   * their size in bytes (at most the alignment), largest first and empty ones before all. Every tensor then stands on
   * a multiple of that power, hence of its dtype width; one whose size is a multiple of the alignment stands on the
   * alignment.
   */
  SA_LAYOUT_COMPACT = 0,
  /**
   * The caller's order, every tensor on a multiple of the alignment, zero bytes between (at most alignment - 1 a
   * tensor). MLX and its forks open such a file; the reference reader (the `safetensors` package) refuses it.
   */
  SA_LAYOUT_PADDED = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_layout sa_layout;
#else
typedef int32_t sa_layout;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Whether a write waits until the file is on the disk.
 */
enum sa_durability
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * The new file survives a power failure once the call has returned.
   */
  SA_DURABLE = 0,
  /**
   * The replacement is still atomic, the syncs are skipped.
   */
  SA_NOT_DURABLE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_durability sa_durability;
#else
typedef int32_t sa_durability;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How a file is mapped.
 */
enum sa_map_mode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Read-only, and shared with every process that maps the file. Writing to it is a fault.
   */
  SA_MAP_SHARED = 0,
  /**
   * Private and writable, with no swap reserved: a page that is written becomes this process's own, the file stays as
   * it is. For engines that may reuse an input's buffer, as MLX's donation does.
   */
  SA_MAP_COPY_ON_WRITE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_map_mode sa_map_mode;
#else
typedef int32_t sa_map_mode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What mapping a misaligned tensor gives: one that is not empty and whose absolute offset is not a multiple of its dtype
 * width.
 */
enum sa_unaligned
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * An aligned copy in anonymous memory. It is made when the tensor is first mapped, shared by all views that exist at
   * the same time, freed with the last, and counted in `sa_stats`.
   */
  SA_UNALIGNED_COPY = 0,
  /**
   * `SA_ERR_UNALIGNED`.
   */
  SA_UNALIGNED_ERROR = 1,
  /**
   * The misaligned bytes of the mapping.
   */
  SA_UNALIGNED_BORROW = 2,
  /**
   * Decided for the whole file when it is opened: where a tensor is misaligned, an aligned twin of the file in
   * `overlay_dir` is mapped in its place, and written there first if it is missing or stale, which takes the disk space
   * of the file and the time of a copy. Its memory belongs to a file and can be evicted, unlike a copy's. The tensors
   * are the same, their order may differ. Two processes at once: one writes, the other waits.
   */
  SA_UNALIGNED_OVERLAY = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_unaligned sa_unaligned;
#else
typedef int32_t sa_unaligned;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What opening does about the pages of the file that are not in memory yet.
 */
enum sa_read_ahead
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Nothing: each page is read when it is touched.
   */
  SA_READ_AHEAD_NONE = 0,
  /**
   * Opening returns when the whole file is in memory and mapped.
   */
  SA_READ_AHEAD_POPULATE = 1,
  /**
   * A thread of the library does that while the caller goes on. It ends early when nobody has the file or a view of it
   * any more.
   */
  SA_READ_AHEAD_BACKGROUND = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_read_ahead sa_read_ahead;
#else
typedef int32_t sa_read_ahead;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What stands between the end of the JSON and the data section.
 */
enum sa_header_padding
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  SA_HEADER_PADDING_NONE = 0,
  SA_HEADER_PADDING_SPACES = 1,
  /**
   * White space of other kinds too; every reader accepts it.
   */
  SA_HEADER_PADDING_WHITESPACE = 2,
  /**
   * NUL bytes: MLX opens the file, the reference reader does not.
   */
  SA_HEADER_PADDING_NUL = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_header_padding sa_header_padding;
#else
typedef int32_t sa_header_padding;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Where a view's bytes are.
 */
enum sa_origin
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * In the mapping of the file.
   */
  SA_ORIGIN_MAPPED = 0,
  /**
   * In an aligned copy in anonymous memory.
   */
  SA_ORIGIN_COPIED = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_origin sa_origin;
#else
typedef int32_t sa_origin;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How a view's bytes will be used.
 */
enum sa_advice
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Read them from the disk ahead of use.
   */
  SA_ADVICE_WILL_NEED = 0,
  /**
   * They may leave this process's memory; they come back from the file when touched. Ignored where memory holds the only
   * copy: for a view that is a copy, with `SA_MAP_COPY_ON_WRITE`, and where the file could not be mapped.
   */
  SA_ADVICE_DO_NOT_NEED = 1,
  /**
   * In no order: reading ahead is of no use.
   */
  SA_ADVICE_RANDOM = 2,
  /**
   * From the first to the last.
   */
  SA_ADVICE_SEQUENTIAL = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_advice sa_advice;
#else
typedef int32_t sa_advice;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What came of a repair.
 */
enum sa_repair_action
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Nothing was wrong: the file was not written to.
   */
  SA_REPAIR_UNTOUCHED = 0,
  /**
   * Nothing was wrong: the destination is the source, byte for byte.
   */
  SA_REPAIR_COPIED = 1,
  /**
   * The tensors were laid out anew.
   */
  SA_REPAIR_REWRITTEN = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sa_repair_action sa_repair_action;
#else
typedef int32_t sa_repair_action;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * An open file.
 *
 * Freed by `sa_file_free`. Views outlive it: they keep the mapping for themselves. Safe to use from several threads at
 * once.
 */
typedef struct sa_file sa_file;

/**
 * Where everything of a file goes, without the file: the header's bytes, and the order, offset and padding of each
 * tensor. For a program that writes through a stream of its own.
 *
 * Freed by `sa_plan_free`. Never changes once made: safe to use from several threads at once.
 */
typedef struct sa_plan sa_plan;

/**
 * What a scan found.
 *
 * Freed by `sa_scan_free`. Never changes once made, and keeps no file open: safe to use from several threads at once.
 */
typedef struct sa_scan sa_scan;

/**
 * A file that is written in pieces, for tensors that do not all fit in memory.
 *
 * Freed by `sa_writer_finish` when it succeeds, otherwise by `sa_writer_abort`. `sa_writer_put` and
 * `sa_writer_put_at` may be called from several threads at once; finish and abort only when no other call runs.
 */
typedef struct sa_writer sa_writer;

/**
 * What went wrong, in 512 bytes of the caller's: nothing to free. On success `status` is `SA_OK` and the message
 * empty.
 */
typedef struct sa_error {
  /**
   * An `sa_status`.
   */
  int32_t status;
  /**
   * The system's error number (`errno`), 0 where no system call failed.
   */
  int32_t os_error;
  /**
   * Lower case, NUL-terminated UTF-8; names the file, the tensor in backticks, and the numbers.
   */
  char message[SA_ERROR_MESSAGE_SIZE];
} sa_error;

/**
 * Called while a file is written, on the thread that writes.
 *
 * @param context      The `progress_context` of the options.
 * @param bytes_done   Bytes written so far.
 * @param bytes_total  Bytes in all.
 * @return 0 to go on; anything else cancels, and the target stays as it was. Must not throw or jump out.
 */
typedef int (*sa_progress)(void *context, uint64_t bytes_done, uint64_t bytes_total);

/**
 * How to write. Initialise with `sa_write_options_init`, then change what you want.
 */
typedef struct sa_write_options {
  /**
   * Bytes of this struct, as the caller's header has it.
   */
  size_t struct_size;
  /**
   * In bytes: a power of two from 8 to 2097152. 64 by default, a cache line; 8 covers every dtype, 256 what GPU
   * libraries ask for, 16384 a page of Apple silicon.
   */
  uint64_t alignment;
  /**
   * An `sa_layout`; `SA_LAYOUT_COMPACT` by default.
   */
  int32_t layout;
  /**
   * An `sa_durability`; `SA_DURABLE` by default.
   */
  int32_t durability;
  /**
   * Null by default. Not called by `sa_writer_*`.
   */
  sa_progress progress;
  /**
   * Given to `progress`.
   */
  void *progress_context;
} sa_write_options;

/**
 * What was written. Set `struct_size`, or call `sa_write_report_init`, before the call that fills it.
 */
typedef struct sa_write_report {
  /**
   * Bytes of this struct, as the caller's header has it.
   */
  size_t struct_size;
  /**
   * Bytes of the file.
   */
  uint64_t file_size;
  /**
   * Where the data section starts, in bytes.
   */
  uint64_t data_start;
  /**
   * Zero bytes between tensors, in all; 0 in the compact layout.
   */
  uint64_t padding;
  /**
   * Number of tensors.
   */
  uint64_t tensors;
  /**
   * Tensors whose place in the file is not their place in the input.
   */
  uint64_t tensors_moved;
} sa_write_report;

/**
 * A tensor to be written. Borrowed for the call: the library keeps neither the struct nor what it points to.
 *
 * May be initialised in this order, or by field name; what is left out has to be zero.
 */
typedef struct sa_tensor {
  /**
   * UTF-8, without a NUL byte, not `__metadata__`, unlike every other name of the file. May be empty.
   */
  const char *name;
  /**
   * An `sa_dtype`.
   */
  int32_t dtype;
  /**
   * Number of dimensions; 0 for a scalar.
   */
  size_t rank;
  /**
   * Elements in each dimension; `rank` of them, may be null for rank 0.
   */
  const uint64_t *shape;
  /**
   * The elements in row-major order, little-endian, at any address; may be null where `nbytes` is 0. Not looked at
   * by `sa_plan_new` and `sa_writer_open`.
   */
  const void *data;
  /**
   * Bytes of data; has to be what dtype and shape make.
   */
  size_t nbytes;
  /**
   * Bytes of the name, or 0 if it ends with a NUL.
   */
  size_t name_len;
} sa_tensor;

/**
 * An entry of the metadata, to be written or as read.
 */
typedef struct sa_metadata {
  /**
   * UTF-8, unlike every other key of the file.
   */
  const char *key;
  /**
   * UTF-8.
   */
  const char *value;
  /**
   * Bytes of the key, or 0 if it ends with its first NUL. As read: its bytes, and a NUL behind them.
   */
  size_t key_len;
  /**
   * The same for the value.
   */
  size_t value_len;
} sa_metadata;

/**
 * Where one tensor goes.
 */
typedef struct sa_placement {
  /**
   * Position of the tensor in the array that the plan was made from.
   */
  size_t input_index;
  /**
   * Its first byte, counted from the start of the file.
   */
  uint64_t offset;
  /**
   * Bytes of data.
   */
  uint64_t nbytes;
  /**
   * Zero bytes to write before it; always 0 in the compact layout.
   */
  uint64_t padding_before;
} sa_placement;

/**
 * How to open a file. Initialise with `sa_open_options_init`, then change what you want.
 */
typedef struct sa_open_options {
  /**
   * Bytes of this struct, as the caller's header has it.
   */
  size_t struct_size;
  /**
   * An `sa_map_mode`; `SA_MAP_SHARED` by default.
   */
  int32_t map_mode;
  /**
   * An `sa_unaligned`; `SA_UNALIGNED_COPY` by default.
   */
  int32_t unaligned;
  /**
   * Not 0 to refuse everything that the reference reader refuses: holes, trailing bytes, a header padded with NUL.
   */
  int32_t strict;
  /**
   * An `sa_read_ahead`; `SA_READ_AHEAD_NONE` by default.
   */
  int32_t read_ahead;
  /**
   * The folder of the twins of `SA_UNALIGNED_OVERLAY`, NUL-terminated, in the system's encoding; made where it is
   * missing. Null by default, and not looked at otherwise. Twins of files that changed are removed when the next is
   * written; those of files that are gone are the caller's to remove.
   */
  const char *overlay_dir;
} sa_open_options;

/**
 * What is known of an open file, and what was handed out of it so far. Set `struct_size`, or call `sa_stats_init`, before
 * `sa_file_stats`.
 */
typedef struct sa_stats {
  /**
   * Bytes of this struct, as the caller's header has it.
   */
  size_t struct_size;
  /**
   * Bytes of the file.
   */
  uint64_t file_size;
  /**
   * Number of tensors.
   */
  uint64_t tensors;
  /**
   * Tensors that are not empty and whose absolute offset is not a multiple of their dtype width.
   */
  uint64_t misaligned_tensors;
  /**
   * Bytes of those: what a loader that maps has to copy.
   */
  uint64_t misaligned_bytes;
  /**
   * Tensors handed out without a copy so far, each counted once.
   */
  uint64_t tensors_mapped;
  /**
   * Bytes of those.
   */
  uint64_t bytes_mapped;
  /**
   * Tensors of which an aligned copy was made so far, each counted once.
   */
  uint64_t tensors_copied;
  /**
   * Bytes of those.
   */
  uint64_t bytes_copied;
  /**
   * Holes before or between tensors; the reference reader refuses a file that has one.
   */
  uint64_t gaps;
  /**
   * Bytes in those holes.
   */
  uint64_t gap_bytes;
  /**
   * Bytes after the last tensor; the reference reader refuses a file that has any.
   */
  uint64_t trailing_bytes;
  /**
   * An `sa_header_padding`.
   */
  int32_t header_padding;
  /**
   * 1 if the file is mapped; 0 if its file system cannot map (it answered ENODEV) and the whole file was read into
   * anonymous memory.
   */
  int32_t is_mapped;
} sa_stats;

/**
 * A tensor as the header describes it. The pointers are into the file, valid until it and its views are gone.
 */
typedef struct sa_tensor_info {
  /**
   * NUL-terminated UTF-8.
   */
  const char *name;
  /**
   * Bytes of the name, without the NUL.
   */
  size_t name_len;
  /**
   * An `sa_dtype`.
   */
  int32_t dtype;
  /**
   * 1 if a loader that maps has to copy the tensor, 0 if not.
   */
  int32_t is_misaligned;
  /**
   * Number of dimensions; 0 for a scalar.
   */
  size_t rank;
  /**
   * Elements in each dimension; `rank` of them, never null.
   */
  const uint64_t *shape;
  /**
   * First byte, counted from the start of the file.
   */
  uint64_t offset;
  /**
   * Bytes of data.
   */
  uint64_t nbytes;
} sa_tensor_info;

/**
 * A tensor's bytes. It keeps the mapping alive, also when the file is closed before it.
 *
 * Give `owner` to `sa_view_release` once for each view made, and once for each `sa_view_retain`; nothing of the view is
 * valid afterwards. May be released on any thread. Several threads may read through it at once.
 */
typedef struct sa_view {
  /**
   * `nbytes` bytes, elements in row-major order, little-endian; never null, and aligned for the dtype unless the file was
   * opened with `SA_UNALIGNED_BORROW`. To be written to only with `SA_MAP_COPY_ON_WRITE`; all views of the tensor then
   * see it.
   */
  void *data;
  /**
   * Bytes of data.
   */
  size_t nbytes;
  /**
   * An `sa_dtype`.
   */
  int32_t dtype;
  /**
   * An `sa_origin`.
   */
  int32_t origin;
  /**
   * Number of dimensions; 0 for a scalar.
   */
  size_t rank;
  /**
   * Elements in each dimension; `rank` of them, never null.
   */
  const uint64_t *shape;
  /**
   * What keeps the bytes alive.
   */
  void *owner;
} sa_view;

/**
 * What to look for. Initialise with `sa_scan_options_init`, then change what you want.
 */
typedef struct sa_scan_options {
  /**
   * Bytes of this struct, as the caller's header has it.
   */
  size_t struct_size;
  /**
   * The alignment that `tensors_below_alignment` is about, in bytes: a power of two from 8 to 2097152, 64 by default.
   * Which tensors are misaligned does not depend on it.
   */
  uint64_t alignment;
} sa_scan_options;

/**
 * What the header says of a file. Set `struct_size`, or call `sa_scan_report_init`, before `sa_scan_get`.
 */
typedef struct sa_scan_report {
  /**
   * Bytes of this struct, as the caller's header has it.
   */
  size_t struct_size;
  /**
   * Bytes of the file.
   */
  uint64_t file_size;
  /**
   * Bytes of the JSON header with its padding, without the 8-byte length.
   */
  uint64_t header_len;
  /**
   * Where the data section starts, in bytes from the start of the file.
   */
  uint64_t data_start;
  /**
   * Number of tensors.
   */
  uint64_t tensors;
  /**
   * Bytes of those.
   */
  uint64_t tensor_bytes;
  /**
   * Tensors that are not empty and whose absolute offset is not a multiple of their dtype width.
   */
  uint64_t misaligned_tensors;
  /**
   * Bytes of those: what a loader that maps has to copy.
   */
  uint64_t misaligned_bytes;
  /**
   * Tensors that are not empty and whose absolute offset is not a multiple of the alignment of the options. Loaders
   * can map them, but not on that boundary.
   */
  uint64_t tensors_below_alignment;
  /**
   * Holes before or between tensors.
   */
  uint64_t gaps;
  /**
   * Bytes in those holes.
   */
  uint64_t gap_bytes;
  /**
   * Bytes after the last tensor.
   */
  uint64_t trailing_bytes;
  /**
   * Tensors whose dtype the format does not know; their sizes cannot be checked, and they count as aligned.
   */
  uint64_t unknown_dtype_tensors;
  /**
   * Rows for `sa_scan_dtype_at`.
   */
  size_t dtypes;
  /**
   * An `sa_header_padding`.
   */
  int32_t header_padding;
  /**
   * 1 if the reference reader would open the file, 0 if not.
   */
  int32_t conforms;
  /**
   * Why the reference reader would not open the file: a message; null if it would. Valid until the scan is freed.
   */
  const char *nonconforming;
  /**
   * The same in a word: `"HOLE"`, `"TRAILING_BYTES"`, `"HEADER_TRAILING_NUL"`, `"UNKNOWN_DTYPE"`, `"SIZE_OVERFLOW"`;
   * null if it would. Valid until the scan is freed.
   */
  const char *nonconforming_reason;
} sa_scan_report;

/**
 * What a file has of one dtype. Set `struct_size`, or call `sa_scan_dtype_init`, before `sa_scan_dtype_at`.
 */
typedef struct sa_scan_dtype {
  /**
   * Bytes of this struct, as the caller's header has it.
   */
  size_t struct_size;
  /**
   * As it stands in the header, NUL-terminated. Valid until the scan is freed.
   */
  const char *name;
  /**
   * Bytes of the name, without the NUL.
   */
  size_t name_len;
  /**
   * Number of tensors.
   */
  uint64_t tensors;
  /**
   * Bytes of those.
   */
  uint64_t bytes;
  /**
   * Tensors that a loader that maps has to copy.
   */
  uint64_t misaligned_tensors;
  /**
   * Bytes of those.
   */
  uint64_t misaligned_bytes;
  /**
   * An `sa_dtype`; 0 for one that the format does not know.
   */
  int32_t dtype;
  /**
   * 0.
   */
  int32_t reserved;
} sa_scan_dtype;

/**
 * How to repair. Initialise with `sa_repair_options_init`, then change what you want.
 */
typedef struct sa_repair_options {
  /**
   * Bytes of this struct, as the caller's header has it.
   */
  size_t struct_size;
  /**
   * In bytes: a power of two from 8 to 2097152; 64 by default.
   */
  uint64_t alignment;
  /**
   * An `sa_layout`; `SA_LAYOUT_COMPACT` by default.
   */
  int32_t layout;
  /**
   * An `sa_durability`; `SA_DURABLE` by default.
   */
  int32_t durability;
  /**
   * Not 0, the default, to read back every tensor and compare it with the source's before the file is put in place.
   */
  int32_t compare;
  /**
   * Not 0 to leave out the bytes after the last tensor. Without it, a file that has some is refused where it would
   * have to be written anew: they are somebody's data.
   */
  int32_t drop_trailing;
  /**
   * Not 0 to lay the file out anew even where nothing is wrong with it.
   */
  int32_t force;
  /**
   * Not 0 to check everything, report what would be done, and do nothing.
   */
  int32_t dry_run;
  /**
   * Null by default.
   */
  sa_progress progress;
  /**
   * Given to `progress`.
   */
  void *progress_context;
} sa_repair_options;

/**
 * What a repair did. Set `struct_size`, or call `sa_repair_report_init`, before the call that fills it.
 */
typedef struct sa_repair_report {
  /**
   * Bytes of this struct, as the caller's header has it.
   */
  size_t struct_size;
  /**
   * An `sa_repair_action`.
   */
  int32_t action;
  /**
   * 0.
   */
  int32_t reserved;
  /**
   * Number of tensors.
   */
  uint64_t tensors;
  /**
   * Tensors that stand at another place in the order than before.
   */
  uint64_t tensors_moved;
  /**
   * Tensors of the source that a loader that maps has to copy. None is left.
   */
  uint64_t misaligned_tensors;
  /**
   * Bytes of those.
   */
  uint64_t misaligned_bytes;
  /**
   * Bytes of the source.
   */
  uint64_t source_size;
  /**
   * Bytes in holes before or between tensors of the source.
   */
  uint64_t source_gap_bytes;
  /**
   * Bytes after the last tensor of the source.
   */
  uint64_t source_trailing_bytes;
  /**
   * Bytes of the file as it is now: at the destination, or in place.
   */
  uint64_t file_size;
  /**
   * Where its data section starts, in bytes.
   */
  uint64_t data_start;
  /**
   * Bytes in holes that it has; 0 in the compact layout.
   */
  uint64_t padding;
  /**
   * Bytes that were compared with the source's.
   */
  uint64_t bytes_compared;
} sa_repair_report;

/**
 * What an overlay has. Set `struct_size`, or call `sa_overlay_report_init`, before the call that fills it.
 */
typedef struct sa_overlay_report {
  /**
   * Bytes of this struct, as the caller's header has it.
   */
  size_t struct_size;
  /**
   * Files that were written repaired.
   */
  uint64_t written;
  /**
   * Bytes of those.
   */
  uint64_t bytes_written;
  /**
   * Repaired files that were there already and up to date.
   */
  uint64_t kept;
  /**
   * Bytes of those.
   */
  uint64_t bytes_kept;
  /**
   * Files and folders that are links.
   */
  uint64_t linked;
  /**
   * What was there for files that the bundle no longer has.
   */
  uint64_t removed;
  /**
   * Files that could not be mended and were linked as they are, left out, or left in the output; scan the bundle to
   * learn which.
   */
  uint64_t warnings;
} sa_overlay_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library that runs: `major * 1000000 + minor * 1000 + patch`.
 */
uint32_t sa_version(void);

/**
 * The version of the library that runs, as text: `"0.1.0"`. Never null, never freed.
 */
const char *sa_version_string(void);

/**
 * The name of a status: `"SA_ERR_FORMAT"`, or `"unknown"` for a number that is none. Never null, never freed.
 */
const char *sa_status_name(int32_t status);

/**
 * The name of a dtype as it stands in a file: `"BF16"`, or `"unknown"` for a number that is none. Never null, never
 * freed.
 */
const char *sa_dtype_name(int32_t dtype);

/**
 * The dtype of a name such as `"BF16"`; case matters.
 *
 * @param name   NUL-terminated.
 * @param dtype  Receives an `sa_dtype`.
 * @return `SA_ERR_UNSUPPORTED` if the format has no such dtype.
 */
sa_status sa_dtype_from_name(const char *name, int32_t *dtype, struct sa_error *error);

/**
 * Bits of an element: 4, 6, 8, 16, 32 or 64; 0 for a number that is no dtype. The width in bytes that a tensor's
 * offset has to be a multiple of is an eighth of it, at least 1.
 */
uint32_t sa_dtype_bits(int32_t dtype);

/**
 * Sets every option to its default. Null is ignored.
 */
void sa_write_options_init(struct sa_write_options *options);

/**
 * Sets `struct_size`, and every number to 0. Null is ignored.
 */
void sa_write_report_init(struct sa_write_report *report);

/**
 * Writes a file whose tensors all stand on multiples of their dtype width, so that a loader can map every one.
 *
 * The data goes from the tensors' buffers straight to the file. Whatever fails, the file at `path` is the old one or the
 * new one, whole; a file that is mapped may be saved over. A symbolic link at `path` is replaced, not followed. The mode
 * of a replaced file is kept, a new file follows the umask.
 *
 * @param path        NUL-terminated, in the system's encoding; where a regular file, a symbolic link or nothing may be.
 * @param tensors     `n_tensors` of them; null if there are none. May share buffers.
 * @param metadata    `n_metadata` entries; null if there are none. Their order is kept.
 * @param options     Null for the defaults.
 * @param report      Null, or a report to fill.
 * @return `SA_ERR_INVALID_ARGUMENT` for what nobody could read back (a name twice, a reserved name, a size that disagrees
 *         with its shape), `SA_ERR_TOO_LARGE` for a header of 100000000 bytes or more, `SA_ERR_NO_SPACE`, `SA_ERR_IO`,
 *         `SA_ERR_CANCELLED`.
 */
sa_status sa_write_aligned(const char *path,
                           const struct sa_tensor *tensors,
                           size_t n_tensors,
                           const struct sa_metadata *metadata,
                           size_t n_metadata,
                           const struct sa_write_options *options,
                           struct sa_write_report *report,
                           struct sa_error *error);

/**
 * Lays out a file: pure arithmetic, no I/O. The same input gives the same plan, byte for byte.
 *
 * @param tensors   `n_tensors` of them; null if there are none. `data` is not looked at, `nbytes` is.
 * @param metadata  `n_metadata` entries; null if there are none.
 * @param options   Null for the defaults; of it, `layout` and `alignment`.
 * @param plan      Receives the plan; free it with `sa_plan_free`. It borrows nothing.
 * @return `SA_ERR_INVALID_ARGUMENT` or `SA_ERR_TOO_LARGE`, as `sa_write_aligned`.
 */
sa_status sa_plan_new(const struct sa_tensor *tensors,
                      size_t n_tensors,
                      const struct sa_metadata *metadata,
                      size_t n_metadata,
                      const struct sa_write_options *options,
                      struct sa_plan **plan,
                      struct sa_error *error);

/**
 * The first bytes of the file: the 8-byte length, the JSON, the padding. The data section starts behind them.
 *
 * @param bytes   Receives a pointer into the plan, valid until the plan is freed.
 * @param nbytes  Receives the number of bytes: a multiple of the alignment.
 */
sa_status sa_plan_header(const struct sa_plan *plan,
                         const uint8_t **bytes,
                         size_t *nbytes,
                         struct sa_error *error);

/**
 * Number of tensors; 0 for null.
 */
size_t sa_plan_len(const struct sa_plan *plan);

/**
 * The tensor at a position of the file. Written from position 0 on, each behind its padding, the tensors follow on the
 * header and on each other without a seek.
 *
 * @param position   From 0 to `sa_plan_len` - 1.
 * @param placement  Receives where the tensor goes.
 * @return `SA_ERR_NOT_FOUND` for a position that is not there.
 */
sa_status sa_plan_at(const struct sa_plan *plan,
                     size_t position,
                     struct sa_placement *placement,
                     struct sa_error *error);

/**
 * Bytes of the whole file; 0 for null.
 */
uint64_t sa_plan_file_size(const struct sa_plan *plan);

/**
 * Frees a plan. Null is ignored.
 */
void sa_plan_free(struct sa_plan *plan);

/**
 * Lays out a file, reserves its space beside `path` and writes its header. The file at `path` stays as it is until
 * `sa_writer_finish`.
 *
 * @param path      NUL-terminated, in the system's encoding.
 * @param tensors   `n_tensors` of them; null if there are none. `data` is not looked at, `nbytes` is.
 * @param metadata  `n_metadata` entries; null if there are none.
 * @param options   Null for the defaults.
 * @param writer    Receives the writer, which borrows nothing.
 * @return As `sa_write_aligned`.
 */
sa_status sa_writer_open(const char *path,
                         const struct sa_tensor *tensors,
                         size_t n_tensors,
                         const struct sa_metadata *metadata,
                         size_t n_metadata,
                         const struct sa_write_options *options,
                         struct sa_writer **writer,
                         struct sa_error *error);

/**
 * Writes a whole tensor.
 *
 * @param index   Position of the tensor in the array given to `sa_writer_open`.
 * @param data    `nbytes` bytes, at any address; null only for 0 bytes.
 * @param nbytes  Has to be the tensor's size.
 * @return `SA_ERR_INVALID_ARGUMENT`, `SA_ERR_IO`, `SA_ERR_NO_SPACE`. The writer stays usable.
 */
sa_status sa_writer_put(const struct sa_writer *writer,
                        size_t index,
                        const void *data,
                        size_t nbytes,
                        struct sa_error *error);

/**
 * Writes a piece of a tensor. Pieces may come in any order and from any thread; where two overlap, what was written last
 * stays.
 *
 * @param index   Position of the tensor in the array given to `sa_writer_open`.
 * @param offset  Where the piece goes, in bytes from the start of the tensor.
 * @param data    `nbytes` bytes, at any address; null only for 0 bytes.
 * @param nbytes  Bytes of the piece; it has to end within the tensor.
 * @return `SA_ERR_INVALID_ARGUMENT`, `SA_ERR_IO`, `SA_ERR_NO_SPACE`. The writer stays usable.
 */
sa_status sa_writer_put_at(const struct sa_writer *writer,
                           size_t index,
                           uint64_t offset,
                           const void *data,
                           size_t nbytes,
                           struct sa_error *error);

/**
 * Puts the file in place, and frees the writer if that succeeds.
 *
 * After a failure the writer is still the caller's: where a byte was missing (`SA_ERR_INVALID_ARGUMENT`, naming the
 * tensor and the bytes) it can be put and the call repeated; after anything else only `sa_writer_abort` is left.
 *
 * @param report  Null, or a report to fill.
 */
sa_status sa_writer_finish(struct sa_writer *writer,
                           struct sa_write_report *report,
                           struct sa_error *error);

/**
 * Gives up: frees the writer and removes what it wrote; the file at the path stays as it was. Null is ignored.
 */
void sa_writer_abort(struct sa_writer *writer);

/**
 * Sets every option to its default. Null is ignored.
 */
void sa_open_options_init(struct sa_open_options *options);

/**
 * Sets `struct_size`, and every number to 0. Null is ignored.
 */
void sa_stats_init(struct sa_stats *stats);

/**
 * Opens and maps a file, and checks its header and every offset.
 *
 * Files with holes between tensors, bytes after the last one or a header padded with NUL are opened, as MLX opens them,
 * unless `strict` is set. Overlapping tensors, a name that stands twice and offsets past the end are always refused.
 *
 * @param path     NUL-terminated, in the system's encoding. Anything but a regular file is an error at once.
 * @param options  Null for the defaults.
 * @param file     Receives the file; free it with `sa_file_free`.
 * @return `SA_ERR_IO`, `SA_ERR_FORMAT`, `SA_ERR_TRUNCATED`, `SA_ERR_TOO_LARGE`, `SA_ERR_UNSUPPORTED`,
 *         `SA_ERR_NONCONFORMING` (only with `strict`), `SA_ERR_INVALID_ARGUMENT`; with `SA_UNALIGNED_OVERLAY` also what
 *         `sa_repair_file` returns when the twin cannot be written.
 */
sa_status sa_file_open(const char *path,
                       const struct sa_open_options *options,
                       struct sa_file **file,
                       struct sa_error *error);

/**
 * Closes a file. Its views stay valid: the mapping goes with the last of them. Null is ignored.
 */
void sa_file_free(struct sa_file *file);

/**
 * Number of tensors; 0 for null.
 */
size_t sa_file_len(const struct sa_file *file);

/**
 * What the header says of a tensor. Tensors are numbered in the order of their data in the file.
 *
 * @param index  From 0 to `sa_file_len` - 1.
 * @param info   Receives the description.
 * @return `SA_ERR_NOT_FOUND` for a number that is not there.
 */
sa_status sa_file_at(const struct sa_file *file,
                     size_t index,
                     struct sa_tensor_info *info,
                     struct sa_error *error);

/**
 * The number of a tensor, by its name. Takes the same time however many tensors there are.
 *
 * @param name   NUL-terminated UTF-8.
 * @param index  Receives the number, for `sa_file_at` and `sa_map_tensor_at`.
 * @return `SA_ERR_NOT_FOUND` if the file has no such tensor.
 */
sa_status sa_file_find(const struct sa_file *file, const char *name, size_t *index, struct sa_error *error);

/**
 * Number of metadata entries; 0 for null.
 */
size_t sa_file_metadata_len(const struct sa_file *file);

/**
 * A metadata entry, in the order of the header.
 *
 * @param index  From 0 to `sa_file_metadata_len` - 1.
 * @param entry  Receives pointers into the file, valid until it and its views are gone; both texts are NUL-terminated,
 *               and their lengths leave the NUL out.
 * @return `SA_ERR_NOT_FOUND` for a number that is not there.
 */
sa_status sa_file_metadata_at(const struct sa_file *file,
                              size_t index,
                              struct sa_metadata *entry,
                              struct sa_error *error);

/**
 * The whole mapping, for engines that make one buffer of it.
 *
 * @param base        Receives the address of the file's first byte, a multiple of the page size; valid until the file
 *                    and its views are gone. Writable only with `SA_MAP_COPY_ON_WRITE`.
 * @param nbytes      Receives the bytes of the file.
 * @param data_start  Receives where the data section starts, in bytes from the base.
 */
sa_status sa_file_base(const struct sa_file *file,
                       void **base,
                       size_t *nbytes,
                       uint64_t *data_start,
                       struct sa_error *error);

/**
 * Counts of what is in the file and of what was handed out of it.
 *
 * @param stats  Receives the counts; its `struct_size` has to be set.
 */
sa_status sa_file_stats(const struct sa_file *file, struct sa_stats *stats, struct sa_error *error);

/**
 * The bytes of a tensor, by its name: those of the mapping, with no copy, where its offset allows it.
 *
 * @param name  NUL-terminated UTF-8.
 * @param view  Receives the view; release its `owner` with `sa_view_release`.
 * @return `SA_ERR_NOT_FOUND`; `SA_ERR_UNALIGNED` only with `SA_UNALIGNED_ERROR`; `SA_ERR_IO` with `os_error` ENOMEM if there
 *         is no memory for a copy.
 */
sa_status sa_map_tensor(const struct sa_file *file,
                        const char *name,
                        struct sa_view *view,
                        struct sa_error *error);

/**
 * The bytes of a tensor, by its number, as `sa_map_tensor`.
 *
 * @param index  From 0 to `sa_file_len` - 1.
 * @param view   Receives the view; release its `owner` with `sa_view_release`.
 */
sa_status sa_map_tensor_at(const struct sa_file *file,
                           size_t index,
                           struct sa_view *view,
                           struct sa_error *error);

/**
 * Releases a view, or one retain of it. Null is ignored. Of this type so that it can be the deleter in somebody else's
 * array type.
 *
 * @param owner  The `owner` of the view.
 */
void sa_view_release(void *owner);

/**
 * Keeps a view's bytes for one more `sa_view_release`. Null is ignored.
 *
 * @param owner  The `owner` of a view that is not released yet.
 */
void sa_view_retain(void *owner);

/**
 * Says how a view's bytes will be used; whole pages are meant, so the neighbours in the file are touched too.
 *
 * @param view    A view that is not released yet.
 * @param advice  An `sa_advice`.
 * @return `SA_ERR_IO` if the system refuses.
 */
sa_status sa_view_advise(const struct sa_view *view, int32_t advice, struct sa_error *error);

/**
 * Sets every option to its default. Null is ignored.
 */
void sa_scan_options_init(struct sa_scan_options *options);

/**
 * Sets `struct_size`, every number to 0 and every pointer to null. Null is ignored.
 */
void sa_scan_report_init(struct sa_scan_report *report);

/**
 * Sets `struct_size`, every number to 0 and every pointer to null. Null is ignored.
 */
void sa_scan_dtype_init(struct sa_scan_dtype *row);

/**
 * Scans a file: reads its 8-byte prefix and its header, never the data.
 *
 * A dtype that the format does not know is reported and gone on from; everything else is checked as by `sa_file_open`.
 *
 * @param path     NUL-terminated, in the system's encoding. Anything but a regular file is an error at once.
 * @param options  Null for the defaults.
 * @param scan     Receives the scan; free it with `sa_scan_free`.
 * @return `SA_ERR_IO`, `SA_ERR_FORMAT`, `SA_ERR_TRUNCATED`, `SA_ERR_TOO_LARGE`, `SA_ERR_INVALID_ARGUMENT`.
 */
sa_status sa_scan_file(const char *path,
                       const struct sa_scan_options *options,
                       struct sa_scan **scan,
                       struct sa_error *error);

/**
 * What was found.
 *
 * @param report  Receives it; its `struct_size` has to be set. Its texts belong to the scan.
 */
sa_status sa_scan_get(const struct sa_scan *scan, struct sa_scan_report *report, struct sa_error *error);

/**
 * What the file has of one dtype; the rows are sorted, most bytes first.
 *
 * @param index  From 0 to `dtypes` of the report - 1.
 * @param row    Receives it; its `struct_size` has to be set. Its name belongs to the scan.
 * @return `SA_ERR_NOT_FOUND` for a number that is not there.
 */
sa_status sa_scan_dtype_at(const struct sa_scan *scan,
                           size_t index,
                           struct sa_scan_dtype *row,
                           struct sa_error *error);

/**
 * Frees a scan. Null is ignored.
 */
void sa_scan_free(struct sa_scan *scan);

/**
 * Sets every option to its default. Null is ignored.
 */
void sa_repair_options_init(struct sa_repair_options *options);

/**
 * Sets `struct_size`, and every number to 0. Null is ignored.
 */
void sa_repair_report_init(struct sa_repair_report *report);

/**
 * Writes a file anew so that every tensor maps without a copy; the bytes of every tensor stay the same.
 *
 * Mended are misaligned tensors, a header padded with NUL bytes, holes (in the compact layout) and, if asked for, bytes
 * after the last tensor. A file without any of these is left alone, or copied as it is where there is a destination.
 * Whatever fails, the file at the path is the old one or the new one, whole. Metadata and its order, mode and, where
 * permitted, owner are kept. Memory does not grow with the data: it stays below 8 MiB and five times the bytes of the
 * JSON header.
 *
 * @param source       NUL-terminated, in the system's encoding. A link is followed where there is a destination.
 * @param destination  The path of the repaired file; null to replace the source. A file that is there is replaced,
 *                     unless it is read-only. The source itself, by whatever name, is refused: in place has to be asked
 *                     for, by null.
 * @param options      Null for the defaults.
 * @param report       Null, or a report to fill.
 * @return `SA_ERR_REFUSED` for what could harm something, with the way out in the message: a symbolic link, a file with
 *         other hard links, an entry of a cache that names files by their content, a read-only file or folder, a
 *         destination that is the source, trailing bytes that would be lost, too little free space. `SA_ERR_UNSUPPORTED`
 *         for a file that has to be laid out anew and has a dtype that the format does not know. `SA_ERR_CHANGED` if somebody wrote to the source meanwhile;
 *         nothing was replaced. `SA_ERR_CANCELLED`, `SA_ERR_NO_SPACE`, `SA_ERR_IO`, and what `sa_file_open` returns
 *         for a file that is broken.
 */
sa_status sa_repair_file(const char *source,
                         const char *destination,
                         const struct sa_repair_options *options,
                         struct sa_repair_report *report,
                         struct sa_error *error);

/**
 * Sets `struct_size`, and every number to 0. Null is ignored.
 */
void sa_overlay_report_init(struct sa_overlay_report *report);

/**
 * Makes a folder that loads in place of a bundle, which stays as it is: every misaligned file is written repaired, and
 * everything else (aligned files, configuration, tokenizer, index, folders without misaligned files) is a symbolic link.
 *
 * Run again, it does only what is missing or stale. It replaces and removes nothing but its own links, and files that are
 * still those that it wrote. Two at once: the second waits for the first. For one file that is to
 * be opened there is `SA_UNALIGNED_OVERLAY`.
 *
 * @param bundle   The folder, NUL-terminated, in the system's encoding.
 * @param output   The folder to make, elsewhere: empty, missing, or an overlay of this bundle.
 * @param options  Null for the defaults; `force` and `dry_run` have to be 0.
 * @param report   Null, or a report to fill.
 * @return `SA_ERR_REFUSED` for an output with other content, or where something else has taken the place of a link or a
 *         file of the overlay, or within the bundle or around it, and for too little free space: nothing was touched; `SA_ERR_CANCELLED`, `SA_ERR_CHANGED`, `SA_ERR_NO_SPACE`, `SA_ERR_IO`.
 */
sa_status sa_overlay_bundle(const char *bundle,
                            const char *output,
                            const struct sa_repair_options *options,
                            struct sa_overlay_report *report,
                            struct sa_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SAFEALIGN_H */
