/*
 * safealign: writes safetensors files in which every tensor can be mapped without a copy, and maps them.
 *
 * Generated from the Rust source by cbindgen: do not edit. C99 and C++17.
 *
 * Conventions
 *
 *  1. Every call that can fail returns an sa_status, which is 0 for success, and takes an sa_error * as its last
 *     argument. It may be null. Otherwise it points to a 512-byte struct of the caller that receives the error. Nothing
 *     has to be freed, and nothing is thread-local. Every such call may return SA_ERR_INVALID_ARGUMENT for an invalid
 *     argument and SA_ERR_INTERNAL for a library bug; the comments list the other results.
 *  2. Outputs are written only on success. A null argument is an error that names the argument, unless the comment says
 *     that it may be null.
 *  3. Enums are passed as int32_t and checked.
 *  4. Structs that may grow begin with struct_size. Initialise each of them with SA_INIT, which clears it and sets
 *     struct_size; zero is the default of every option. A program may run with an older or a newer library than its
 *     header: the library never accesses more than struct_size bytes, and an option that it does not know is an error.
 *     The sizes of released headers stay valid.
 *  5. Strings are UTF-8 and are passed with their length in bytes, or SA_NUL_TERMINATED. The empty string is a null
 *     pointer with length 0; a length of 0 with any other pointer is an error. Paths are NUL-terminated and in the
 *     system's encoding. Strings that the library hands out are NUL-terminated and come with their length.
 *  6. Handles are opaque and are freed by the function that their comment names, which ignores null. Handles that are
 *     only read may be used by several threads at once; each comment says what is allowed.
 *  7. Sizes and offsets are in bytes, shapes in elements. Offsets are counted from the start of the file.
 *
 * Caveats
 *
 *  - If a file is truncated or overwritten in place while it is mapped, its views change, and accessing a page that no
 *    longer exists raises SIGBUS. Replacing a file by a rename, as this library does, is safe.
 *  - Some network file systems cannot map files. The file is then read into memory; see sa_stats.is_mapped.
 *  - Tested on Linux. Written for macOS too, but not run there. Windows is not supported.
 *
 * The format: https://github.com/huggingface/safetensors#format
 */


#ifndef SAFEALIGN_H
#define SAFEALIGN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/**
 * Initialises a struct that begins with `struct_size`: clears it and sets its size. `p` is a pointer to one struct; it
 * is evaluated more than once.
 */
#define SA_INIT(p) ((void)memset((p), 0, sizeof *(p)), (void)((p)->struct_size = sizeof *(p)))

/**
 * Pass this as the length of a string that ends with a NUL.
 */
#define SA_NUL_TERMINATED SIZE_MAX

/**
 * Size of the message in an `sa_error` in bytes, including the NUL.
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
 * Size of a model that extends to the end of its file.
 */
#define SA_TO_END UINT64_MAX

/**
 * The result of a call. The values never change; later versions may add some.
 */
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_status : int32_t {
#else
enum {
#endif
  /**
   * Success.
   */
  SA_OK = 0,
  /**
   * Invalid argument: null, an unknown enum value, a size that does not match the shape.
   */
  SA_ERR_INVALID_ARGUMENT = 1,
  /**
   * A system call failed (see `os_error`), or the path does not name a regular file.
   */
  SA_ERR_IO = 2,
  /**
   * The disk or the quota is full. Detected before anything is written, if the file system can reserve space.
   */
  SA_ERR_NO_SPACE = 3,
  /**
   * No such tensor, or an index out of range.
   */
  SA_ERR_NOT_FOUND = 4,
  /**
   * The file is malformed.
   */
  SA_ERR_FORMAT = 5,
  /**
   * The file is shorter than its header says: an incomplete download.
   */
  SA_ERR_TRUNCATED = 6,
  /**
   * The header is, or would be, longer than readers accept. On reading, this usually means that the file is not a
   * safetensors file; the message says what it looks like.
   */
  SA_ERR_TOO_LARGE = 7,
  /**
   * A dtype that is not part of the format.
   */
  SA_ERR_UNSUPPORTED = 8,
  /**
   * The tensor is misaligned, and the file was opened with `SA_UNALIGNED_ERROR`.
   */
  SA_ERR_UNALIGNED = 9,
  /**
   * The file was opened with `strict`, and the reference reader would reject it.
   */
  SA_ERR_NONCONFORMING = 10,
  /**
   * The operation could lose data. The message says what to do instead.
   */
  SA_ERR_REFUSED = 11,
  /**
   * The source was modified during the call.
   */
  SA_ERR_CHANGED = 12,
  /**
   * The progress callback cancelled the call.
   */
  SA_ERR_CANCELLED = 13,
  /**
   * A library bug. Please report it.
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
 * An element type. The values never change; 0 is never valid.
 *
 * Names and sizes are those of the safetensors reference implementation, version 0.8.0.
 */
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_dtype : int32_t {
#else
enum {
#endif
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
   * 4 bits per element, packed.
   */
  SA_DTYPE_F4 = 20,
  /**
   * 6 bits per element, packed.
   */
  SA_DTYPE_F6_E2M3 = 21,
  /**
   * 6 bits per element, packed.
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
 * The data layout of a file.
 */
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_layout : int32_t {
#else
enum {
#endif
  /**
   * No gaps, so every reader opens the file. Tensors are sorted, stably, by the largest power of two that divides
   * their size in bytes (at most the alignment), largest first; empty tensors come before all others. Every tensor
   * then starts at a multiple of that power, hence at a multiple of its dtype width. A tensor whose size is a
   * multiple of the alignment starts at a multiple of the alignment.
   */
  SA_LAYOUT_COMPACT = 0,
  /**
   * The caller's order, with every tensor at a multiple of the alignment and zero bytes in the gaps (at most
   * alignment - 1 bytes for each tensor). MLX and its forks open such a file; the reference reader (the
   * `safetensors` package) rejects it.
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
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_durability : int32_t {
#else
enum {
#endif
  /**
   * The new file survives a power failure once the call has returned.
   */
  SA_DURABLE = 0,
  /**
   * The file is still replaced atomically, but nothing waits for the disk.
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
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_map_mode : int32_t {
#else
enum {
#endif
  /**
   * Read-only, and shared with every process that maps the file. Writing to it is a fault.
   */
  SA_MAP_SHARED = 0,
  /**
   * Private and writable (see `sa_view_writable`), with no swap reserved: a page that is written becomes private to
   * this process, and the file stays as it is. For programs on a Linux CPU that write through a view. On macOS, and
   * where a device pins the pages, such a mapping may be copied as a whole.
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
 * How a misaligned tensor is mapped: a tensor that is not empty and whose address is not a multiple of its dtype
 * width. The other way to handle misaligned tensors is an aligned cache; see `sa_open_options.aligned_cache`.
 */
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_unaligned : int32_t {
#else
enum {
#endif
  /**
   * As an aligned copy in anonymous memory. It is made when the tensor is first mapped, shared by all views that
   * exist at the same time, freed with the last, and counted in `sa_stats`.
   */
  SA_UNALIGNED_COPY = 0,
  /**
   * Not at all: mapping it fails with `SA_ERR_UNALIGNED`.
   */
  SA_UNALIGNED_ERROR = 1,
  /**
   * As the misaligned bytes of the mapping.
   */
  SA_UNALIGNED_BORROW = 2,
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
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_read_ahead : int32_t {
#else
enum {
#endif
  /**
   * Nothing: each page is read when it is first accessed.
   */
  SA_READ_AHEAD_NONE = 0,
  /**
   * Opening returns when the whole file is in memory and mapped.
   */
  SA_READ_AHEAD_POPULATE = 1,
  /**
   * A thread of the library reads the file in the background. It ends early once the file and its views are gone.
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
 * What is between the end of the JSON and the data section.
 */
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_header_padding : int32_t {
#else
enum {
#endif
  /**
   * Nothing.
   */
  SA_HEADER_PADDING_NONE = 0,
  /**
   * Spaces.
   */
  SA_HEADER_PADDING_SPACES = 1,
  /**
   * White space of other kinds too. Every reader accepts it.
   */
  SA_HEADER_PADDING_WHITESPACE = 2,
  /**
   * NUL bytes. MLX opens the file, the reference reader rejects it.
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
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_origin : int32_t {
#else
enum {
#endif
  /**
   * In the mapping of the file, or in the memory that the file was read into (see `sa_stats.is_mapped`).
   */
  SA_ORIGIN_MAPPED = 0,
  /**
   * In an aligned copy in anonymous memory.
   */
  SA_ORIGIN_COPIED = 1,
  /**
   * In the mapping of the aligned cache.
   */
  SA_ORIGIN_CACHED = 2,
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
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_advice : int32_t {
#else
enum {
#endif
  /**
   * Read the pages ahead of use.
   */
  SA_ADVICE_WILL_NEED = 0,
  /**
   * The pages may be evicted; they are read from the file again when they are accessed. Ignored where memory holds
   * the only copy: for an aligned copy, with `SA_MAP_COPY_ON_WRITE`, and where the file could not be mapped.
   */
  SA_ADVICE_DO_NOT_NEED = 1,
  /**
   * Random access: reading ahead is of no use.
   */
  SA_ADVICE_RANDOM = 2,
  /**
   * Sequential access.
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
 * A repair outcome.
 */
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
enum sa_repair_action : int32_t {
#else
enum {
#endif
  /**
   * The file needed no repair and was not written.
   */
  SA_REPAIR_UNTOUCHED = 0,
  /**
   * The file needed no repair: the destination is a copy of the source, byte for byte.
   */
  SA_REPAIR_COPIED = 1,
  /**
   * The file was written with a new layout.
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
 * An aligned cache file that is up to date.
 *
 * Freed by `sa_aligned_cache_free`, which leaves the file where it is. Immutable, and safe to use from several threads
 * at once.
 */
typedef struct sa_aligned_cache sa_aligned_cache;

/**
 * An open bundle: the tensors of several files as if they were in one.
 *
 * A bundle is a model file, the shards of one model, or an index (`model.safetensors.index.json`) with its shards, as
 * the Hugging Face libraries name them. Tensors are indexed in the order of the shards, which are sorted by file name,
 * and within a shard in the order of their data.
 *
 * Reference-counted: `sa_bundle_free` releases the reference that a call returned. Immutable, and safe to use from
 * several threads at once. Views keep the mapping of their shard alive on their own.
 */
typedef struct sa_bundle sa_bundle;

/**
 * A place that holds a bundle, for programs that reload a model while other threads use it: one thread opens the new
 * bundle and sets it; every other thread gets a reference before it uses the bundle, and releases it afterwards.
 *
 * Freed by `sa_bundle_slot_free`. `sa_bundle_slot_get` and `sa_bundle_slot_set` are safe to call from several threads
 * at once.
 */
typedef struct sa_bundle_slot sa_bundle_slot;

/**
 * An open file.
 *
 * Freed by `sa_file_free`. Views keep the mapping alive on their own. Safe to use from several threads at once.
 */
typedef struct sa_file sa_file;

/**
 * A computed file layout: the bytes of the header, and the order, the offsets and the gaps of the tensors. For
 * programs that write a file through their own stream.
 *
 * Freed by `sa_plan_free`. Immutable, and safe to use from several threads at once.
 */
typedef struct sa_plan sa_plan;

/**
 * The result of a scan.
 *
 * Freed by `sa_scan_free`. Immutable, keeps no file open, and is safe to use from several threads at once.
 */
typedef struct sa_scan sa_scan;

/**
 * A file that is written in pieces, for tensors that do not all fit in memory.
 *
 * Freed by `sa_writer_free`, whatever `sa_writer_finish` returned. `sa_writer_put`, `sa_writer_put_at` and the queries
 * may be called from several threads at once; finish and free only when no other call runs.
 */
typedef struct sa_writer sa_writer;

/**
 * Describes a failure, in 512 bytes of memory that the caller provides. Nothing has to be freed. On success `status`
 * is `SA_OK` and the message is empty. The struct never grows.
 */
typedef struct sa_error {
  /**
   * An `sa_status`.
   */
  int32_t status;
  /**
   * The system's error number (`errno`); 0 if no system call failed.
   */
  int32_t os_error;
  /**
   * NUL-terminated UTF-8 in lower case. Names the file and the tensor, and gives the numbers.
   */
  char message[SA_ERROR_MESSAGE_SIZE];
} sa_error;

/**
 * A tensor to be written. Borrowed for the call: the library keeps neither the struct nor what it points to.
 *
 * Initialise it with `{0}` (in C++ `{}`), then set its fields. The reserved fields must be 0.
 */
typedef struct sa_tensor {
  /**
   * UTF-8 without a NUL byte; not `__metadata__`; unique in the file. Null with `name_len` 0 for the empty name.
   */
  const char *name;
  /**
   * Length of the name in bytes, or `SA_NUL_TERMINATED`.
   */
  size_t name_len;
  /**
   * An `sa_dtype`.
   */
  int32_t dtype;
  /**
   * 0.
   */
  int32_t reserved_0;
  /**
   * Number of dimensions; 0 for a scalar.
   */
  size_t rank;
  /**
   * `rank` sizes in elements; may be null if `rank` is 0.
   */
  const uint64_t *shape;
  /**
   * The elements in row-major order, little-endian, at any address. May be null if `nbytes` is 0. Ignored by
   * `sa_plan_new` and `sa_writer_open`.
   */
  const void *data;
  /**
   * Size of the data in bytes. It must match dtype and shape.
   */
  size_t nbytes;
  /**
   * 0.
   */
  uint64_t reserved[3];
} sa_tensor;

/**
 * An entry of the metadata, to be written or as read. The struct never grows.
 */
typedef struct sa_metadata {
  /**
   * UTF-8, unique in the file. Null with `key_len` 0 for the empty key. As read: never null, followed by a NUL.
   */
  const char *key;
  /**
   * Length of the key in bytes, or `SA_NUL_TERMINATED`. As read: without the NUL.
   */
  size_t key_len;
  /**
   * UTF-8, as `key`.
   */
  const char *value;
  /**
   * Length of the value, as `key_len`.
   */
  size_t value_len;
} sa_metadata;

/**
 * Called while a file is written, on the thread that made the call. It must not throw or `longjmp`.
 *
 * @param context      The `progress_context` of the options.
 * @param bytes_done   Bytes written so far.
 * @param bytes_total  Bytes to write.
 * @return 0 to continue. Any other value cancels the call, and the file at the path stays as it was.
 */
typedef int (*sa_progress)(void *context, uint64_t bytes_done, uint64_t bytes_total);

/**
 * Options of `sa_write_aligned` and `sa_writer_open`. Initialise with `SA_INIT`.
 */
typedef struct sa_write_options {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * In bytes: a power of two from 8 to 2097152. 0 for the default of 64, a cache line. 8 covers every dtype, 256 GPU
   * libraries, 16384 a page of Apple silicon.
   */
  uint64_t alignment;
  /**
   * An `sa_layout`. The default is `SA_LAYOUT_COMPACT`.
   */
  int32_t layout;
  /**
   * An `sa_durability`. The default is `SA_DURABLE`.
   */
  int32_t durability;
  /**
   * Null, or called with the progress.
   */
  sa_progress progress;
  /**
   * Passed to `progress`.
   */
  void *progress_context;
} sa_write_options;

/**
 * Describes a file that was written. Initialise with `SA_INIT`.
 */
typedef struct sa_write_report {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * Size of the file in bytes.
   */
  uint64_t file_size;
  /**
   * Start of the data section, in bytes from the start of the file.
   */
  uint64_t data_start;
  /**
   * Zero bytes in gaps between tensors; 0 in the compact layout.
   */
  uint64_t gap_bytes;
  /**
   * Number of tensors.
   */
  uint64_t tensors;
  /**
   * Tensors whose position in the file is not their position in the input.
   */
  uint64_t tensors_moved;
} sa_write_report;

/**
 * Options of `sa_plan_new`. Initialise with `SA_INIT`.
 */
typedef struct sa_plan_options {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * As in `sa_write_options`.
   */
  uint64_t alignment;
  /**
   * An `sa_layout`. The default is `SA_LAYOUT_COMPACT`.
   */
  int32_t layout;
  /**
   * 0.
   */
  int32_t reserved;
} sa_plan_options;

/**
 * The position of a tensor in a file. Initialise with `SA_INIT`.
 */
typedef struct sa_placement {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * Index of the tensor in the array that the plan or the writer was made from.
   */
  size_t input_index;
  /**
   * Offset of the tensor, in bytes from the start of the file.
   */
  uint64_t offset;
  /**
   * Size of the tensor in bytes.
   */
  uint64_t nbytes;
  /**
   * Zero bytes to write before it; always 0 in the compact layout.
   */
  uint64_t gap_before;
} sa_placement;

/**
 * Options for opening a file. Initialise with `SA_INIT`.
 */
typedef struct sa_open_options {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * An `sa_map_mode`. The default is `SA_MAP_SHARED`.
   */
  int32_t map_mode;
  /**
   * An `sa_unaligned`. The default is `SA_UNALIGNED_COPY`.
   */
  int32_t unaligned;
  /**
   * If non-zero, reject everything that the reference reader rejects: gaps, trailing bytes, a header padded with
   * NUL.
   */
  int32_t strict;
  /**
   * An `sa_read_ahead`. The default is `SA_READ_AHEAD_NONE`.
   */
  int32_t read_ahead;
  /**
   * Null, or the path of a file made by `sa_aligned_cache_write` for this file or its bundle, NUL-terminated, in the
   * system's encoding. Both files are mapped, and each tensor is taken from where it is aligned.
   */
  const char *aligned_cache;
} sa_open_options;

/**
 * Called once when the library no longer uses memory that was lent to it, on the thread that released the last view or
 * freed the file. It must not throw or `longjmp`.
 *
 * @param context  The `release_context` of the call.
 */
typedef void (*sa_release)(void *context);

/**
 * A tensor as the header describes it. Initialise with `SA_INIT` before the call that fills it. The pointers are valid
 * until the file and its views are gone.
 */
typedef struct sa_tensor_info {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * UTF-8, NUL-terminated.
   */
  const char *name;
  /**
   * Length of the name in bytes, without the NUL.
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
   * `rank` sizes in elements; never null.
   */
  const uint64_t *shape;
  /**
   * Offset of the data, in bytes from the start of the file.
   */
  uint64_t offset;
  /**
   * Size of the data in bytes.
   */
  uint64_t nbytes;
} sa_tensor_info;

/**
 * Counts of an open file or bundle, and of what has been handed out of it. Initialise with `SA_INIT`.
 */
typedef struct sa_stats {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * Size of the file in bytes.
   */
  uint64_t file_size;
  /**
   * Number of tensors.
   */
  uint64_t tensors;
  /**
   * Tensors that are not empty and whose address is not a multiple of their dtype width.
   */
  uint64_t misaligned_tensors;
  /**
   * Their total size in bytes: what a loader that maps has to copy.
   */
  uint64_t misaligned_bytes;
  /**
   * Tensors handed out without a copy so far, each counted once.
   */
  uint64_t tensors_mapped;
  /**
   * Their total size in bytes.
   */
  uint64_t bytes_mapped;
  /**
   * Tensors of which an aligned copy was made so far, each counted once.
   */
  uint64_t tensors_copied;
  /**
   * Their total size in bytes.
   */
  uint64_t bytes_copied;
  /**
   * Gaps before or between tensors. The reference reader rejects a file with gaps.
   */
  uint64_t gaps;
  /**
   * Their total size in bytes.
   */
  uint64_t gap_bytes;
  /**
   * Bytes after the last tensor. The reference reader rejects a file with trailing bytes.
   */
  uint64_t trailing_bytes;
  /**
   * An `sa_header_padding`; for a bundle, the kind that the fewest readers accept.
   */
  int32_t header_padding;
  /**
   * 1 if the file is mapped; 0 if its file system cannot map and the file was read into anonymous memory, and for a
   * file that was opened from memory.
   */
  int32_t is_mapped;
} sa_stats;

/**
 * The bytes of a tensor. Initialise with `SA_INIT` before the call that fills it.
 *
 * A view keeps its mapping alive, even if the file is closed first. Pass `owner` to `sa_view_release` once for each
 * view that was made and once for each `sa_view_retain`. No field is valid after the last release. A view may be
 * released on any thread, and read by several threads at once.
 */
typedef struct sa_view {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * `nbytes` bytes: elements in row-major order, little-endian. Never null, and aligned for the dtype unless the
   * file was opened with `SA_UNALIGNED_BORROW`. Read-only; see `sa_view_writable`.
   */
  const void *data;
  /**
   * Size of the data in bytes.
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
   * `rank` sizes in elements; never null.
   */
  const uint64_t *shape;
  /**
   * Keeps the bytes alive; for `sa_view_release` and `sa_view_retain`.
   */
  void *owner;
} sa_view;

/**
 * Options of `sa_write_sharded`. Initialise with `SA_INIT`.
 */
typedef struct sa_sharded_options {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * As in `sa_write_options`.
   */
  uint64_t alignment;
  /**
   * An `sa_layout`, within each shard. The default is `SA_LAYOUT_COMPACT`.
   */
  int32_t layout;
  /**
   * An `sa_durability`. The default is `SA_DURABLE`.
   */
  int32_t durability;
  /**
   * If non-zero, replace the files of the same prefix. By default they are refused.
   */
  int32_t replace;
  /**
   * 0.
   */
  int32_t reserved;
  /**
   * Null, or called with the progress of all shards.
   */
  sa_progress progress;
  /**
   * Passed to `progress`.
   */
  void *progress_context;
} sa_sharded_options;

/**
 * Describes a bundle that was written. Initialise with `SA_INIT`.
 */
typedef struct sa_sharded_report {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * Number of model files. With one there is no index.
   */
  uint64_t shards;
  /**
   * Number of tensors.
   */
  uint64_t tensors;
  /**
   * Their total size in bytes: `total_size` of the index.
   */
  uint64_t tensor_bytes;
  /**
   * Total size of the model files in bytes, without the index.
   */
  uint64_t file_bytes;
  /**
   * Zero bytes in gaps between tensors; 0 in the compact layout.
   */
  uint64_t gap_bytes;
  /**
   * Tensors whose position in their shard is not the one that they were given in.
   */
  uint64_t tensors_moved;
  /**
   * Files of the same prefix that were removed and not replaced by one of the same name.
   */
  uint64_t removed;
} sa_sharded_report;

/**
 * Scan options. Initialise with `SA_INIT`.
 */
typedef struct sa_scan_options {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * The alignment for `tensors_below_alignment`, in bytes: a power of two from 8 to 2097152. 0 for the default of
   * 64. Which tensors are misaligned does not depend on it.
   */
  uint64_t alignment;
} sa_scan_options;

/**
 * The layout of a file, from its header. Initialise with `SA_INIT`. The strings are valid until the scan is freed.
 */
typedef struct sa_scan_report {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * Size of the file in bytes.
   */
  uint64_t file_size;
  /**
   * Size of the JSON header with its padding in bytes, without the 8-byte length.
   */
  uint64_t header_len;
  /**
   * Start of the data section, in bytes from the start of the file.
   */
  uint64_t data_start;
  /**
   * Number of tensors.
   */
  uint64_t tensors;
  /**
   * Their total size in bytes.
   */
  uint64_t tensor_bytes;
  /**
   * Tensors that are not empty and whose absolute offset is not a multiple of their dtype width.
   */
  uint64_t misaligned_tensors;
  /**
   * Their total size in bytes: what a loader that maps has to copy.
   */
  uint64_t misaligned_bytes;
  /**
   * Tensors that are not empty and whose absolute offset is not a multiple of the alignment of the options. A loader
   * can map them, but not at that alignment.
   */
  uint64_t tensors_below_alignment;
  /**
   * Gaps before or between tensors.
   */
  uint64_t gaps;
  /**
   * Their total size in bytes.
   */
  uint64_t gap_bytes;
  /**
   * Bytes after the last tensor.
   */
  uint64_t trailing_bytes;
  /**
   * Tensors with a dtype that is not part of the format. Their sizes cannot be checked, and they count as aligned.
   */
  uint64_t unknown_dtype_tensors;
  /**
   * Number of rows for `sa_scan_dtype_at`.
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
   * Why the reference reader would reject the file, as a message; null if it would open it.
   */
  const char *nonconforming;
  /**
   * The same as a code: `"HOLE"`, `"TRAILING_BYTES"`, `"HEADER_TRAILING_NUL"`, `"UNKNOWN_DTYPE"` or
   * `"SIZE_OVERFLOW"`; null if it would open the file.
   */
  const char *nonconforming_reason;
} sa_scan_report;

/**
 * The tensors of one dtype in a file. Initialise with `SA_INIT`.
 */
typedef struct sa_scan_dtype {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * The dtype as it is written in the header, NUL-terminated. Valid until the scan is freed.
   */
  const char *name;
  /**
   * Length of the name in bytes, without the NUL.
   */
  size_t name_len;
  /**
   * Number of tensors.
   */
  uint64_t tensors;
  /**
   * Their total size in bytes.
   */
  uint64_t bytes;
  /**
   * Tensors that a loader that maps has to copy.
   */
  uint64_t misaligned_tensors;
  /**
   * Their total size in bytes.
   */
  uint64_t misaligned_bytes;
  /**
   * An `sa_dtype`; 0 for a dtype that is not part of the format.
   */
  int32_t dtype;
  /**
   * 0.
   */
  int32_t reserved;
} sa_scan_dtype;

/**
 * Repair options. Initialise with `SA_INIT`.
 */
typedef struct sa_repair_options {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * As in `sa_write_options`.
   */
  uint64_t alignment;
  /**
   * An `sa_layout`. The default is `SA_LAYOUT_COMPACT`.
   */
  int32_t layout;
  /**
   * An `sa_durability`. The default is `SA_DURABLE`.
   */
  int32_t durability;
  /**
   * If non-zero, do not verify the new file. By default every tensor is read back and compared with the source
   * before the new file is put in place.
   */
  int32_t skip_verify;
  /**
   * If non-zero, drop the bytes after the last tensor. By default a file that has such bytes and needs repair is
   * refused, since they may be data.
   */
  int32_t drop_trailing;
  /**
   * If non-zero, write a new layout even if the file needs no repair.
   */
  int32_t force;
  /**
   * If non-zero, check everything and report what would be done, but write nothing.
   */
  int32_t dry_run;
  /**
   * Null, or called with the progress.
   */
  sa_progress progress;
  /**
   * Passed to `progress`.
   */
  void *progress_context;
} sa_repair_options;

/**
 * Describes a repair. Initialise with `SA_INIT`.
 */
typedef struct sa_repair_report {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
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
   * Tensors whose position in the file changed.
   */
  uint64_t tensors_moved;
  /**
   * Tensors of the source that a loader that maps has to copy. The new file has none.
   */
  uint64_t misaligned_tensors;
  /**
   * Their total size in bytes.
   */
  uint64_t misaligned_bytes;
  /**
   * Size of the source in bytes.
   */
  uint64_t source_size;
  /**
   * Bytes in gaps before or between tensors of the source.
   */
  uint64_t source_gap_bytes;
  /**
   * Bytes after the last tensor of the source.
   */
  uint64_t source_trailing_bytes;
  /**
   * Size in bytes of the resulting file: at the destination, or in place.
   */
  uint64_t file_size;
  /**
   * Start of its data section, in bytes from the start of the file.
   */
  uint64_t data_start;
  /**
   * Bytes in its gaps; 0 in the compact layout.
   */
  uint64_t gap_bytes;
  /**
   * Bytes that were compared with the source.
   */
  uint64_t bytes_verified;
} sa_repair_report;

/**
 * Options of `sa_aligned_cache_write`. Initialise with `SA_INIT`.
 */
typedef struct sa_aligned_cache_options {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * As in `sa_write_options`.
   */
  uint64_t alignment;
  /**
   * An `sa_layout`. The default is `SA_LAYOUT_COMPACT`.
   */
  int32_t layout;
  /**
   * An `sa_durability`. The default is `SA_DURABLE`.
   */
  int32_t durability;
  /**
   * Null, or called with the progress.
   */
  sa_progress progress;
  /**
   * Passed to `progress`.
   */
  void *progress_context;
} sa_aligned_cache_options;

/**
 * Describes an aligned cache file. Initialise with `SA_INIT`.
 */
typedef struct sa_aligned_cache_report {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * Size of the cache file in bytes.
   */
  uint64_t file_size;
  /**
   * Number of tensors in it: those of the source that are misaligned.
   */
  uint64_t tensors;
  /**
   * Their total size in bytes.
   */
  uint64_t tensor_bytes;
  /**
   * 1 if the file was written by this call, 0 if it existed already and was up to date.
   */
  int32_t is_new;
  /**
   * 0.
   */
  int32_t reserved;
} sa_aligned_cache_report;

/**
 * Called for each file that an overlay links or leaves out although it is misaligned, on the thread that made the
 * call, before the call returns. It must not throw or `longjmp`.
 *
 * @param context  The `warning_context` of the options.
 * @param path     The file, NUL-terminated, in the system's encoding; valid during the call.
 * @param message  The reason, NUL-terminated UTF-8; valid during the call.
 */
typedef void (*sa_warning)(void *context, const char *path, const char *message);

/**
 * Overlay options. Initialise with `SA_INIT`.
 */
typedef struct sa_overlay_options {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * As in `sa_write_options`.
   */
  uint64_t alignment;
  /**
   * An `sa_layout`. The default is `SA_LAYOUT_COMPACT`.
   */
  int32_t layout;
  /**
   * An `sa_durability`. The default is `SA_DURABLE`.
   */
  int32_t durability;
  /**
   * As in `sa_repair_options`.
   */
  int32_t skip_verify;
  /**
   * If non-zero, drop the bytes after the last tensor. By default a misaligned file that has such bytes is linked as
   * it is, with a warning.
   */
  int32_t drop_trailing;
  /**
   * Null, or called with the progress of all files that are written.
   */
  sa_progress progress;
  /**
   * Passed to `progress`.
   */
  void *progress_context;
  /**
   * Null, or called with each warning.
   */
  sa_warning warning;
  /**
   * Passed to `warning`.
   */
  void *warning_context;
} sa_overlay_options;

/**
 * Describes an overlay. Initialise with `SA_INIT`.
 */
typedef struct sa_overlay_report {
  /**
   * Size of this struct in bytes, set by `SA_INIT`.
   */
  size_t struct_size;
  /**
   * Repaired files that were written.
   */
  uint64_t written;
  /**
   * Their total size in bytes.
   */
  uint64_t bytes_written;
  /**
   * Repaired files that existed already and are up to date.
   */
  uint64_t kept;
  /**
   * Their total size in bytes.
   */
  uint64_t bytes_kept;
  /**
   * Files and directories that are symbolic links.
   */
  uint64_t linked;
  /**
   * Entries that were removed because the bundle no longer has them.
   */
  uint64_t removed;
  /**
   * Number of warnings; see `sa_overlay_options.warning`.
   */
  uint64_t warnings;
} sa_overlay_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library at run time: `major * 1000000 + minor * 1000 + patch`.
 */
uint32_t sa_version(void);

/**
 * The version of the library at run time as a string, such as `"0.2.0"`. Never null; not to be freed.
 */
const char *sa_version_string(void);

/**
 * The name of a status, such as `"SA_ERR_FORMAT"`; `"unknown"` for any other value. Never null; not to be freed.
 */
const char *sa_status_name(int32_t status);

/**
 * The name of a dtype as it is written in a file, such as `"BF16"`; `"unknown"` for any other value. Never null; not
 * to be freed.
 */
const char *sa_dtype_name(int32_t dtype);

/**
 * The dtype with a name such as `"BF16"`. Case matters.
 *
 * @param name      The name.
 * @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
 * @param dtype     Receives an `sa_dtype`.
 * @param error     Null, or receives the error.
 * @return `SA_ERR_UNSUPPORTED` if the format has no such dtype.
 */
sa_status sa_dtype_from_name(const char *name, size_t name_len, int32_t *dtype, struct sa_error *error);

/**
 * Size of an element in bits: 4, 6, 8, 16, 32 or 64; 0 for any other value. A tensor is aligned if its offset is a
 * multiple of an eighth of that, at least 1.
 */
uint32_t sa_dtype_bits(int32_t dtype);

/**
 * Writes a file in which every tensor starts at a multiple of its dtype width, so that a loader can map all of them.
 *
 * The file at `path` is replaced atomically: whatever fails, it is the old file or the new one, complete. A file may
 * be replaced while it is mapped. A symbolic link at `path` is replaced, not followed. The mode of a replaced file is
 * kept; a new file follows the umask.
 *
 * The data is written from the caller's buffers without a copy, except for a durable file of 512 MiB or more on Linux:
 * that is written past the page cache, through two staging buffers of 8 MiB.
 *
 * @param path        NUL-terminated, in the system's encoding. Names a regular file, a symbolic link or nothing.
 * @param tensors     Array of `n_tensors`; null if there are none. Their data may overlap.
 * @param n_tensors   Number of tensors.
 * @param metadata    Array of `n_metadata`; null if there are none. Their order is kept.
 * @param n_metadata  Number of metadata entries.
 * @param options     Null for the defaults.
 * @param report      Null, or receives the report.
 * @param error       Null, or receives the error.
 * @return `SA_ERR_INVALID_ARGUMENT` also for a duplicate or reserved name and for a size that does not match the
 *         shape; `SA_ERR_TOO_LARGE` for a header of 100000000 bytes or more; `SA_ERR_NO_SPACE`, `SA_ERR_IO`,
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
 * Computes a file layout. Pure arithmetic, no I/O. The same input gives the same plan, byte for byte.
 *
 * @param tensors     Array of `n_tensors`; null if there are none. Their `data` is ignored.
 * @param n_tensors   Number of tensors.
 * @param metadata    Array of `n_metadata`; null if there are none.
 * @param n_metadata  Number of metadata entries.
 * @param options     Null for the defaults.
 * @param plan        Receives the plan, to be freed with `sa_plan_free`. It keeps no pointer to the input.
 * @param error       Null, or receives the error.
 * @return `SA_ERR_INVALID_ARGUMENT` or `SA_ERR_TOO_LARGE`, as `sa_write_aligned`.
 */
sa_status sa_plan_new(const struct sa_tensor *tensors,
                      size_t n_tensors,
                      const struct sa_metadata *metadata,
                      size_t n_metadata,
                      const struct sa_plan_options *options,
                      struct sa_plan **plan,
                      struct sa_error *error);

/**
 * The first bytes of the file: the 8-byte length, the JSON and its padding. The data section follows.
 *
 * @param plan    The plan.
 * @param bytes   Receives a pointer that is valid until the plan is freed.
 * @param nbytes  Receives their number, a multiple of the alignment.
 * @param error   Null, or receives the error.
 */
sa_status sa_plan_header(const struct sa_plan *plan, const uint8_t **bytes, size_t *nbytes, struct sa_error *error);

/**
 * Number of tensors; 0 for null.
 */
size_t sa_plan_len(const struct sa_plan *plan);

/**
 * The tensor at a position of the file. Written in the order of their positions, each after its gap, the tensors
 * follow the header and each other without a seek.
 *
 * @param plan       The plan.
 * @param position   From 0 to `sa_plan_len` - 1.
 * @param placement  Receives the placement.
 * @param error      Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if the position is out of range.
 */
sa_status sa_plan_at(const struct sa_plan *plan,
                     size_t position,
                     struct sa_placement *placement,
                     struct sa_error *error);

/**
 * Size of the file in bytes; 0 for null.
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
 * @param path        NUL-terminated, in the system's encoding.
 * @param tensors     Array of `n_tensors`; null if there are none. Their `data` is ignored.
 * @param n_tensors   Number of tensors.
 * @param metadata    Array of `n_metadata`; null if there are none.
 * @param n_metadata  Number of metadata entries.
 * @param options     Null for the defaults. `progress` is called by `sa_writer_put` and `sa_writer_put_at`, on the
 *                    thread that calls them, after each piece. Concurrent calls of it are serialised. Cancelling makes
 *                    that call return `SA_ERR_CANCELLED`; the piece is written and the writer stays usable: to give
 *                    up, free it. It must not write to this writer.
 * @param writer      Receives the writer, which keeps no pointer to the arrays.
 * @param error       Null, or receives the error.
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
 * The index of a tensor in the array given to `sa_writer_open`, by its name.
 *
 * @param writer    The writer.
 * @param name      The name.
 * @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
 * @param index     Receives the index.
 * @param error     Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if there is no such tensor.
 */
sa_status sa_writer_find(const struct sa_writer *writer,
                         const char *name,
                         size_t name_len,
                         size_t *index,
                         struct sa_error *error);

/**
 * Where a tensor is located in the file.
 *
 * @param writer     The writer.
 * @param index      Index in the array given to `sa_writer_open`.
 * @param placement  Receives the placement.
 * @param error      Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if the index is out of range.
 */
sa_status sa_writer_at(const struct sa_writer *writer,
                       size_t index,
                       struct sa_placement *placement,
                       struct sa_error *error);

/**
 * Writes a whole tensor.
 *
 * @param writer  The writer.
 * @param index   Index in the array given to `sa_writer_open`; see `sa_writer_find` for a name.
 * @param data    `nbytes` bytes at any address; null only for 0 bytes.
 * @param nbytes  The size of the tensor in bytes.
 * @param error   Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if the index is out of range; `SA_ERR_INVALID_ARGUMENT`, `SA_ERR_IO`, `SA_ERR_NO_SPACE`,
 *         `SA_ERR_CANCELLED`. The writer stays usable.
 */
sa_status sa_writer_put(const struct sa_writer *writer,
                        size_t index,
                        const void *data,
                        size_t nbytes,
                        struct sa_error *error);

/**
 * Writes a piece of a tensor. Pieces may come in any order and from any thread. Where two overlap, the one that was
 * written last stays.
 *
 * @param writer  The writer.
 * @param index   Index in the array given to `sa_writer_open`.
 * @param offset  Where the piece starts, in bytes from the start of the tensor.
 * @param data    `nbytes` bytes at any address; null only for 0 bytes.
 * @param nbytes  Size of the piece in bytes. It must end within the tensor.
 * @param error   Null, or receives the error.
 * @return As `sa_writer_put`.
 */
sa_status sa_writer_put_at(const struct sa_writer *writer,
                           size_t index,
                           uint64_t offset,
                           const void *data,
                           size_t nbytes,
                           struct sa_error *error);

/**
 * Total size in bytes of the tensor data that has not been written yet; 0 for null.
 */
uint64_t sa_writer_bytes_missing(const struct sa_writer *writer);

/**
 * The first range of bytes that has not been written yet, in the order of the array given to `sa_writer_open`.
 *
 * @param writer  The writer.
 * @param index   Receives the index of the tensor in that array.
 * @param offset  Receives the start of the range, in bytes from the start of the tensor.
 * @param nbytes  Receives the size of the range in bytes; 0 if nothing is missing.
 * @param error   Null, or receives the error.
 */
sa_status sa_writer_first_missing(const struct sa_writer *writer,
                                  size_t *index,
                                  uint64_t *offset,
                                  uint64_t *nbytes,
                                  struct sa_error *error);

/**
 * Puts the file in place of the one at the path. The writer still has to be freed with `sa_writer_free`.
 *
 * If bytes are missing (`SA_ERR_INVALID_ARGUMENT`; the message names the tensor and the bytes), they can be written
 * and the call repeated. After any other result the writer can only be freed.
 *
 * @param writer  The writer.
 * @param report  Null, or receives the report.
 * @param error   Null, or receives the error.
 * @return `SA_ERR_INVALID_ARGUMENT`, `SA_ERR_IO`, `SA_ERR_NO_SPACE`.
 */
sa_status sa_writer_finish(struct sa_writer *writer, struct sa_write_report *report, struct sa_error *error);

/**
 * Frees a writer. If `sa_writer_finish` did not succeed, this discards the unfinished file, and the file at the path
 * stays as it was. Null is ignored.
 */
void sa_writer_free(struct sa_writer *writer);

/**
 * Opens and maps a file, and checks its header and every offset. Never writes anything.
 *
 * Files with gaps between tensors, trailing bytes or a header padded with NUL are opened, as MLX opens them, unless
 * `strict` is set. Overlapping tensors, duplicate names and offsets past the end are always rejected.
 *
 * @param path     NUL-terminated, in the system's encoding. Anything but a regular file is an error at once.
 * @param options  Null for the defaults.
 * @param file     Receives the file, to be freed with `sa_file_free`.
 * @param error    Null, or receives the error.
 * @return `SA_ERR_IO`, `SA_ERR_FORMAT`, `SA_ERR_TRUNCATED`, `SA_ERR_TOO_LARGE`, `SA_ERR_UNSUPPORTED`,
 *         `SA_ERR_NONCONFORMING` (only with `strict`), `SA_ERR_INVALID_ARGUMENT`. For an `aligned_cache` that was
 *         written for another file `SA_ERR_INVALID_ARGUMENT`, for a stale one `SA_ERR_CHANGED`.
 */
sa_status sa_file_open(const char *path,
                       const struct sa_open_options *options,
                       struct sa_file **file,
                       struct sa_error *error);

/**
 * Opens a model that is a part of a file, such as an archive or an app package, as `sa_file_open`.
 *
 * Tensors whose address is misaligned because of the offset count as misaligned.
 *
 * @param descriptor  Of a regular file that is open for reading. It is duplicated: the caller may close it. Its file
 *                    position is neither used nor changed.
 * @param offset      Start of the model, in bytes from the start of the file.
 * @param nbytes      Size of the model in bytes, or `SA_TO_END`.
 * @param options     Null for the defaults.
 * @param file        Receives the file, to be freed with `sa_file_free`.
 * @param error       Null, or receives the error.
 * @return As `sa_file_open`; `SA_ERR_TRUNCATED` also if the file ends before the model.
 */
sa_status sa_file_open_descriptor(int descriptor,
                                  uint64_t offset,
                                  uint64_t nbytes,
                                  const struct sa_open_options *options,
                                  struct sa_file **file,
                                  struct sa_error *error);

/**
 * Opens a model that is in memory, as `sa_file_open`. The library borrows the bytes: it neither copies nor writes
 * them.
 *
 * Tensors whose address is misaligned count as misaligned: an address that is a multiple of 64 avoids copies of
 * aligned files.
 *
 * @param data             The file's bytes. They must not change until `release` is called.
 * @param nbytes           Their number.
 * @param release          Null, or called when the file and its views are gone; not called if this call fails.
 * @param release_context  Passed to `release`.
 * @param options          Null for the defaults. `SA_MAP_COPY_ON_WRITE` and `aligned_cache` are errors here, and
 *                         `read_ahead` has no effect: the bytes are in memory.
 * @param file             Receives the file, to be freed with `sa_file_free`.
 * @param error            Null, or receives the error.
 * @return As `sa_file_open`.
 */
sa_status sa_file_open_memory(const void *data,
                              size_t nbytes,
                              sa_release release,
                              void *release_context,
                              const struct sa_open_options *options,
                              struct sa_file **file,
                              struct sa_error *error);

/**
 * Closes a file. Its views stay valid: the mapping is released with the last of them. Null is ignored.
 */
void sa_file_free(struct sa_file *file);

/**
 * Number of tensors; 0 for null.
 */
size_t sa_file_len(const struct sa_file *file);

/**
 * Describes a tensor. Tensors are indexed in the order of their data in the file.
 *
 * @param file   The file.
 * @param index  From 0 to `sa_file_len` - 1.
 * @param info   Receives the description.
 * @param error  Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if the index is out of range.
 */
sa_status sa_file_at(const struct sa_file *file, size_t index, struct sa_tensor_info *info, struct sa_error *error);

/**
 * The index of a tensor, by its name. Takes constant time and copies no string.
 *
 * @param file      The file.
 * @param name      The name.
 * @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
 * @param index     Receives the index, for `sa_file_at` and `sa_map_tensor_at`.
 * @param error     Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if the file has no such tensor.
 */
sa_status sa_file_find(const struct sa_file *file,
                       const char *name,
                       size_t name_len,
                       size_t *index,
                       struct sa_error *error);

/**
 * Number of metadata entries; 0 for null.
 */
size_t sa_file_metadata_len(const struct sa_file *file);

/**
 * A metadata entry, in the order of the header.
 *
 * @param file   The file.
 * @param index  From 0 to `sa_file_metadata_len` - 1.
 * @param entry  Receives the entry. Its pointers are valid until the file and its views are gone.
 * @param error  Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if the index is out of range.
 */
sa_status sa_file_metadata_at(const struct sa_file *file,
                              size_t index,
                              struct sa_metadata *entry,
                              struct sa_error *error);

/**
 * The whole mapping, for engines that make one buffer of it.
 *
 * @param file        The file.
 * @param base        Receives the address of the file's first byte: a multiple of the page size, unless the file was
 *                    opened from memory or at an offset. Valid until the file and its views are gone. Read-only.
 * @param nbytes      Receives the size of the file in bytes.
 * @param data_start  Receives the start of the data section, in bytes from `base`.
 * @param error       Null, or receives the error.
 */
sa_status sa_file_base(const struct sa_file *file,
                       const void **base,
                       size_t *nbytes,
                       uint64_t *data_start,
                       struct sa_error *error);

/**
 * Counts of what is in a file and of what has been handed out of it.
 *
 * @param file   The file.
 * @param stats  Receives the counts.
 * @param error  Null, or receives the error.
 */
sa_status sa_file_stats(const struct sa_file *file, struct sa_stats *stats, struct sa_error *error);

/**
 * The path that a file was opened by. Null for null, and for a file that was opened by descriptor or from memory.
 * Valid until the file is freed.
 */
const char *sa_file_path(const struct sa_file *file);

/**
 * A descriptor of the file, for engines that read to a device themselves. A tensor's data is at `offset` plus the
 * `offset` of its `sa_tensor_info`.
 *
 * A mapping needs no open file: a file that was opened by its path is opened again by the first call, and stays open
 * until the handle and its views are gone.
 *
 * @param file        The file.
 * @param descriptor  Receives a descriptor that is open for reading, valid until the file is freed. It belongs to the
 *                    file: do not close it, and read with `pread`.
 * @param offset      Receives the start of the model, in bytes from the start of that file.
 * @param error       Null, or receives the error.
 * @return `SA_ERR_CHANGED` if the path names another file by then; `SA_ERR_INVALID_ARGUMENT` for a file that was
 *         opened from memory; `SA_ERR_IO`.
 */
sa_status sa_file_descriptor(const struct sa_file *file, int *descriptor, uint64_t *offset, struct sa_error *error);

/**
 * Whether the path that a file was opened by still names this file, with the size and modification time that it had.
 * For programs that reload a model when it is replaced.
 *
 * @param file        The file.
 * @param is_current  Receives 1, or 0 if another file was renamed over it, if it was modified, or if the path is gone.
 * @param error       Null, or receives the error.
 * @return `SA_ERR_INVALID_ARGUMENT` for a file that was opened without a path; `SA_ERR_IO`.
 */
sa_status sa_file_is_current(const struct sa_file *file, int32_t *is_current, struct sa_error *error);

/**
 * Maps a tensor by its name: without a copy, if its offset allows it.
 *
 * @param file      The file.
 * @param name      The name.
 * @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
 * @param view      Receives the view. Release its `owner` with `sa_view_release`.
 * @param error     Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND`; `SA_ERR_UNALIGNED` only with `SA_UNALIGNED_ERROR`; `SA_ERR_IO` with `os_error` ENOMEM if
 *         there is no memory for an aligned copy.
 */
sa_status sa_map_tensor(const struct sa_file *file,
                        const char *name,
                        size_t name_len,
                        struct sa_view *view,
                        struct sa_error *error);

/**
 * Maps a tensor by its index, as `sa_map_tensor`.
 *
 * @param file   The file.
 * @param index  From 0 to `sa_file_len` - 1.
 * @param view   Receives the view. Release its `owner` with `sa_view_release`.
 * @param error  Null, or receives the error.
 * @return As `sa_map_tensor`; `SA_ERR_NOT_FOUND` if the index is out of range.
 */
sa_status sa_map_tensor_at(const struct sa_file *file, size_t index, struct sa_view *view, struct sa_error *error);

/**
 * Releases a view, or one retain of it. Null is ignored. The parameter is a `void *`, so that the function can be the
 * deleter of another library's array type.
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
 * A pointer through which a view's bytes may be written. All views of the tensor see what is written; the file stays
 * as it is. The caller synchronises writes with reads on other threads.
 *
 * @param view   A view that is not released yet.
 * @param data   Receives the address; the same as `data` of the view.
 * @param error  Null, or receives the error.
 * @return `SA_ERR_INVALID_ARGUMENT` unless the file was opened with `SA_MAP_COPY_ON_WRITE`.
 */
sa_status sa_view_writable(const struct sa_view *view, void **data, struct sa_error *error);

/**
 * Says how a view's bytes will be used. Whole pages are affected, hence also neighbouring tensors.
 *
 * @param view    A view that is not released yet.
 * @param advice  An `sa_advice`.
 * @param error   Null, or receives the error.
 * @return `SA_ERR_IO` if the system refuses.
 */
sa_status sa_view_advise(const struct sa_view *view, int32_t advice, struct sa_error *error);

/**
 * Opens and maps a bundle, and checks that its files belong together. Never writes anything.
 *
 * With an index, the index decides: model files that it does not list are not opened, and tensors that it does not
 * list are not part of the bundle. An entry is a path below the directory of the index. Symbolic links are followed
 * wherever they lead, as in a download cache.
 *
 * For a directory, its only index is opened or, if it has several, the one without a variant such as `fp16`. Without
 * an index, its one set of model files is opened. Files that start with `._` or end with
 * `.incomplete` are ignored.
 *
 * @param path     A directory, an index or a model file; NUL-terminated, in the system's encoding.
 * @param options  Null for the defaults. They apply to each shard.
 * @param bundle   Receives the bundle, to be freed with `sa_bundle_free`.
 * @param error    Null, or receives the error, which names the file at fault.
 * @return `SA_ERR_INVALID_ARGUMENT` for a directory with several bundles; the message lists them. `SA_ERR_NOT_FOUND`
 *         for a directory without model files. `SA_ERR_IO` with `os_error` ENOENT for a missing shard. `SA_ERR_FORMAT`
 *         for a tensor that is in two shards, a malformed index, an index entry whose shard lacks the tensor, and an
 *         entry outside the directory of the index, in which case nothing is opened. `SA_ERR_TOO_LARGE` for an index
 *         above 100000000 bytes. `SA_ERR_CHANGED` if a file was replaced during the call. Otherwise as `sa_file_open`.
 */
sa_status sa_bundle_open(const char *path,
                         const struct sa_open_options *options,
                         struct sa_bundle **bundle,
                         struct sa_error *error);

/**
 * Releases a reference to a bundle. With the last one it is closed; its views stay valid. Null is ignored.
 */
void sa_bundle_free(struct sa_bundle *bundle);

/**
 * Number of tensors; 0 for null.
 */
size_t sa_bundle_len(const struct sa_bundle *bundle);

/**
 * Describes a tensor. Its `offset` is in its shard.
 *
 * @param bundle  The bundle.
 * @param index   From 0 to `sa_bundle_len` - 1.
 * @param info    Receives the description. Its pointers are valid until the bundle and the views of the shard are
 *                gone.
 * @param shard   Null, or receives the shard, for `sa_bundle_shard`.
 * @param error   Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if the index is out of range.
 */
sa_status sa_bundle_at(const struct sa_bundle *bundle,
                       size_t index,
                       struct sa_tensor_info *info,
                       size_t *shard,
                       struct sa_error *error);

/**
 * The index of a tensor, by its name. Takes constant time and copies no string.
 *
 * @param bundle    The bundle.
 * @param name      The name.
 * @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
 * @param index     Receives the index, for `sa_bundle_at` and `sa_bundle_map_at`.
 * @param error     Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if the bundle has no such tensor.
 */
sa_status sa_bundle_find(const struct sa_bundle *bundle,
                         const char *name,
                         size_t name_len,
                         size_t *index,
                         struct sa_error *error);

/**
 * Maps a tensor by its name, as `sa_map_tensor`.
 *
 * @param bundle    The bundle.
 * @param name      The name.
 * @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
 * @param view      Receives the view. Release its `owner` with `sa_view_release`.
 * @param error     Null, or receives the error.
 * @return As `sa_map_tensor`.
 */
sa_status sa_bundle_map(const struct sa_bundle *bundle,
                        const char *name,
                        size_t name_len,
                        struct sa_view *view,
                        struct sa_error *error);

/**
 * Maps a tensor by its index, as `sa_map_tensor`.
 *
 * @param bundle  The bundle.
 * @param index   From 0 to `sa_bundle_len` - 1.
 * @param view    Receives the view. Release its `owner` with `sa_view_release`.
 * @param error   Null, or receives the error.
 * @return As `sa_map_tensor`; `SA_ERR_NOT_FOUND` if the index is out of range.
 */
sa_status sa_bundle_map_at(const struct sa_bundle *bundle, size_t index, struct sa_view *view, struct sa_error *error);

/**
 * Number of metadata entries; 0 for null.
 */
size_t sa_bundle_metadata_len(const struct sa_bundle *bundle);

/**
 * A metadata entry. With an index these are the entries of its `metadata` object, such as `total_size`; values other
 * than strings are JSON. Without an index they are those of the first shard. See `sa_file_metadata_at` for each shard.
 *
 * @param bundle  The bundle.
 * @param index   From 0 to `sa_bundle_metadata_len` - 1.
 * @param entry   Receives the entry. Its pointers are valid until the bundle is freed.
 * @param error   Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if the index is out of range.
 */
sa_status sa_bundle_metadata_at(const struct sa_bundle *bundle,
                                size_t index,
                                struct sa_metadata *entry,
                                struct sa_error *error);

/**
 * The sums of the counts of all shards. `is_mapped` is 1 if all of them are mapped; `header_padding` is the kind that
 * the fewest readers accept.
 *
 * @param bundle  The bundle.
 * @param stats   Receives the counts.
 * @param error   Null, or receives the error.
 */
sa_status sa_bundle_stats(const struct sa_bundle *bundle, struct sa_stats *stats, struct sa_error *error);

/**
 * Number of shards; 0 for null.
 */
size_t sa_bundle_shard_len(const struct sa_bundle *bundle);

/**
 * A shard, as a file. It may have tensors that are not part of the bundle.
 *
 * @param bundle  The bundle.
 * @param shard   From 0 to `sa_bundle_shard_len` - 1, in the order of the file names.
 * @return The file, valid until the bundle is freed; it belongs to the bundle. Null if the shard is out of range, and
 *         for null.
 */
const struct sa_file *sa_bundle_shard(const struct sa_bundle *bundle, size_t shard);

/**
 * Whether every file of a bundle, and its index, is still the one that its path names; see `sa_file_is_current`.
 *
 * @param bundle      The bundle.
 * @param is_current  Receives 1 or 0.
 * @param error       Null, or receives the error.
 * @return `SA_ERR_IO`.
 */
sa_status sa_bundle_is_current(const struct sa_bundle *bundle, int32_t *is_current, struct sa_error *error);

/**
 * Makes a slot that holds a bundle.
 *
 * @param bundle  The bundle. The slot keeps a reference of its own; the caller still has to free theirs.
 * @param slot    Receives the slot, to be freed with `sa_bundle_slot_free`.
 * @param error   Null, or receives the error.
 */
sa_status sa_bundle_slot_new(const struct sa_bundle *bundle, struct sa_bundle_slot **slot, struct sa_error *error);

/**
 * The bundle that a slot holds. It stays valid after the slot gets another one.
 *
 * @param slot    The slot.
 * @param bundle  Receives a reference, to be released with `sa_bundle_free`.
 * @param error   Null, or receives the error.
 */
sa_status sa_bundle_slot_get(const struct sa_bundle_slot *slot, struct sa_bundle **bundle, struct sa_error *error);

/**
 * Replaces the bundle that a slot holds, in one step: every later `sa_bundle_slot_get` returns the new one.
 *
 * @param slot    The slot.
 * @param bundle  The new bundle. The slot keeps a reference of its own; the caller still has to free theirs.
 * @param error   Null, or receives the error.
 */
sa_status sa_bundle_slot_set(const struct sa_bundle_slot *slot, const struct sa_bundle *bundle, struct sa_error *error);

/**
 * Frees a slot and its reference to the bundle. Null is ignored.
 */
void sa_bundle_slot_free(struct sa_bundle_slot *slot);

/**
 * Writes a bundle: shards named `PREFIX-00001-of-00002.safetensors` and the index `PREFIX.safetensors.index.json`, as
 * the Hugging Face libraries name them. If one shard is enough, it is named `PREFIX.safetensors` and there is no
 * index.
 *
 * The tensors are split in their order. A new shard begins where the next tensor would bring the tensor data of the
 * shard above `max_shard_bytes`; a larger tensor gets a shard of its own. The same input gives the same bytes.
 *
 * Space for all files is reserved first, and every file is complete before any name in the directory changes. Files of
 * the same prefix are refused unless `replace` is set. Then the shards get their names, the index last, and stale
 * files are removed. If no new shard has the name of an old one, the old bundle stays complete until the index is
 * replaced, in one step. If names collide (as many shards as before), the old files are first set aside under hidden
 * names, `.NAME.safealign-old`: a reader finds a missing file in between, never a mixture. Files that are open or
 * mapped keep their content. Concurrent calls for the same directory are serialised.
 *
 * If the process is killed while the old files have their hidden names, they are complete, the bundle does not open,
 * and the error of `sa_bundle_open` names one of them. Renaming each to its old name restores the old bundle. A later
 * call with `replace` writes the new bundle and then removes them.
 *
 * @param directory        An existing directory, NUL-terminated, in the system's encoding.
 * @param prefix           Such as `model`. Not empty, without a directory separator, and not starting with a dot.
 * @param prefix_len       Its length in bytes, or `SA_NUL_TERMINATED`.
 * @param max_shard_bytes  The largest size of the tensor data of a shard in bytes; not 0.
 * @param tensors          Array of `n_tensors`; null if there are none.
 * @param n_tensors        Number of tensors.
 * @param metadata         Array of `n_metadata`; null if there are none. Written to each shard and to the index, where
 *                         `total_size` is replaced by the size of all tensors.
 * @param n_metadata       Number of metadata entries.
 * @param options          Null for the defaults.
 * @param report           Null, or receives the report.
 * @param error            Null, or receives the error.
 * @return As `sa_write_aligned`; `SA_ERR_REFUSED` if files of the prefix exist. If the call fails, the old files are
 *         back under their names and no new file is left, except if only removing an old file failed: then the new
 *         bundle is in place, and the message says so.
 */
sa_status sa_write_sharded(const char *directory,
                           const char *prefix,
                           size_t prefix_len,
                           uint64_t max_shard_bytes,
                           const struct sa_tensor *tensors,
                           size_t n_tensors,
                           const struct sa_metadata *metadata,
                           size_t n_metadata,
                           const struct sa_sharded_options *options,
                           struct sa_sharded_report *report,
                           struct sa_error *error);

/**
 * Scans a file: reads its 8-byte prefix and its header, never the data.
 *
 * A dtype that is not part of the format is reported, not an error; everything else is checked as by `sa_file_open`.
 *
 * @param path     NUL-terminated, in the system's encoding. Anything but a regular file is an error at once.
 * @param options  Null for the defaults.
 * @param scan     Receives the scan, to be freed with `sa_scan_free`.
 * @param error    Null, or receives the error.
 * @return `SA_ERR_IO`, `SA_ERR_FORMAT`, `SA_ERR_TRUNCATED`, `SA_ERR_TOO_LARGE`, `SA_ERR_INVALID_ARGUMENT`.
 */
sa_status sa_scan_file(const char *path,
                       const struct sa_scan_options *options,
                       struct sa_scan **scan,
                       struct sa_error *error);

/**
 * The layout of the file that was scanned.
 *
 * @param scan    The scan.
 * @param report  Receives the report.
 * @param error   Null, or receives the error.
 */
sa_status sa_scan_get(const struct sa_scan *scan, struct sa_scan_report *report, struct sa_error *error);

/**
 * The tensors of one dtype. The rows are sorted, most bytes first.
 *
 * @param scan   The scan.
 * @param index  From 0 to `dtypes` of the report - 1.
 * @param row    Receives the row.
 * @param error  Null, or receives the error.
 * @return `SA_ERR_NOT_FOUND` if the index is out of range.
 */
sa_status sa_scan_dtype_at(const struct sa_scan *scan, size_t index, struct sa_scan_dtype *row, struct sa_error *error);

/**
 * Frees a scan. Null is ignored.
 */
void sa_scan_free(struct sa_scan *scan);

/**
 * Writes a repaired copy of a file, in which every tensor maps without a copy. The bytes of every tensor stay the
 * same.
 *
 * Repaired are misaligned tensors, a header padded with NUL bytes, gaps (in the compact layout) and, with
 * `drop_trailing`, bytes after the last tensor. A file without any of these is copied byte for byte. Whatever fails,
 * the file at the destination is the old one or the new one, complete. Metadata and its order, mode and, where
 * permitted, owner are kept. Memory use does not grow with the data: it stays below 8 MiB plus five times the size of
 * the header.
 *
 * @param source       NUL-terminated, in the system's encoding. A symbolic link is followed.
 * @param destination  Path of the repaired file, NUL-terminated, in the system's encoding. An existing file is
 *                     replaced unless it is read-only. The source itself, by whatever name, is refused; see
 *                     `sa_repair_in_place`.
 * @param options      Null for the defaults.
 * @param report       Null, or receives the report.
 * @param error        Null, or receives the error.
 * @return `SA_ERR_REFUSED`, with the alternative in the message, if the destination is the source, is read-only, is in
 *         a read-only directory or in a content-addressed cache, if trailing bytes would be lost, or if there is too
 *         little free space. `SA_ERR_UNSUPPORTED` for a file that needs a new layout and has a dtype that is not part
 *         of the format. `SA_ERR_CHANGED` if the source was modified during the call; then nothing was replaced.
 *         `SA_ERR_CANCELLED`, `SA_ERR_NO_SPACE`, `SA_ERR_IO`, and the results of `sa_file_open` for a malformed file.
 */
sa_status sa_repair_file(const char *source,
                         const char *destination,
                         const struct sa_repair_options *options,
                         struct sa_repair_report *report,
                         struct sa_error *error);

/**
 * Replaces a file by a repaired one, as `sa_repair_file`. A file that needs no repair is not written.
 *
 * @param path     NUL-terminated, in the system's encoding.
 * @param options  Null for the defaults.
 * @param report   Null, or receives the report.
 * @param error    Null, or receives the error.
 * @return As `sa_repair_file`. `SA_ERR_REFUSED` also for a symbolic link and for a file with other hard links.
 */
sa_status sa_repair_in_place(const char *path,
                             const struct sa_repair_options *options,
                             struct sa_repair_report *report,
                             struct sa_error *error);

/**
 * Writes the misaligned tensors of a model, aligned, into a file in a cache directory. The source is not changed.
 *
 * Pass the path of that file as `sa_open_options.aligned_cache` to open the model with both files mapped, each tensor
 * taken from where it is aligned. Unlike that of a copy, the memory then belongs to a file and can be evicted. The
 * cache file holds the misaligned tensors only, and is itself a valid safetensors file.
 *
 * The metadata of the cache file records the size, modification time, device and inode of the source and a hash of its
 * header, but no hash of its data. The name of the file depends on the path of the source only: a stale file is
 * replaced, one that is up to date is kept, and nothing else in the directory is touched. Concurrent calls for the
 * same source are serialised. Files for sources that no longer exist are left for the caller to remove.
 *
 * @param source     A file, or a bundle as for `sa_bundle_open`; NUL-terminated, in the system's encoding.
 * @param directory  The cache directory, not that of the source. It is created if it is missing.
 * @param options    Null for the defaults.
 * @param cache      Receives the cache, to be freed with `sa_aligned_cache_free`.
 * @param error      Null, or receives the error.
 * @return `SA_ERR_REFUSED` if the directory is that of the source, or has too little free space. `SA_ERR_CHANGED` if
 *         the source was modified during the call. `SA_ERR_CANCELLED`, `SA_ERR_NO_SPACE`, `SA_ERR_IO`, and the results
 *         of opening the source. Whatever fails, the cache file is the old one or the new one, complete.
 */
sa_status sa_aligned_cache_write(const char *source,
                                 const char *directory,
                                 const struct sa_aligned_cache_options *options,
                                 struct sa_aligned_cache **cache,
                                 struct sa_error *error);

/**
 * The path of the cache file, NUL-terminated, in the system's encoding; null for null. Valid until the cache is freed.
 */
const char *sa_aligned_cache_path(const struct sa_aligned_cache *cache);

/**
 * Describes the cache file.
 *
 * @param cache   The cache.
 * @param report  Receives the report.
 * @param error   Null, or receives the error.
 */
sa_status sa_aligned_cache_get(const struct sa_aligned_cache *cache,
                               struct sa_aligned_cache_report *report,
                               struct sa_error *error);

/**
 * Frees a cache. The file stays. Null is ignored.
 */
void sa_aligned_cache_free(struct sa_aligned_cache *cache);

/**
 * Makes a directory that loads in place of a bundle: every misaligned file is written repaired, and everything else
 * (aligned files, configuration, tokenizer, index, subdirectories without misaligned files) is a symbolic link. The
 * bundle is not changed. For loaders that do not use this library; see `sa_aligned_cache_write` otherwise.
 *
 * A second call only writes what is missing or stale. It replaces and removes nothing but its own links and the files
 * that it wrote and that were not modified since. Concurrent calls are serialised.
 *
 * @param bundle   The directory, NUL-terminated, in the system's encoding.
 * @param output   The directory to make: missing, empty, or an overlay of this bundle, and not inside the bundle.
 * @param options  Null for the defaults.
 * @param report   Null, or receives the report.
 * @param error    Null, or receives the error.
 * @return `SA_ERR_REFUSED` if the output has other content, is inside the bundle or contains it, or if there is too
 *         little free space; then nothing was changed. `SA_ERR_CANCELLED`, `SA_ERR_CHANGED`, `SA_ERR_NO_SPACE`,
 *         `SA_ERR_IO`.
 */
sa_status sa_overlay_bundle(const char *bundle,
                            const char *output,
                            const struct sa_overlay_options *options,
                            struct sa_overlay_report *report,
                            struct sa_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SAFEALIGN_H */
