/*
 * safealign for C++17: owning types over safealign.h, header only. It adds nothing to the ABI.
 *
 * Conventions, in addition to those of safealign.h
 *
 *  1. A call that can fail returns a Result, which holds a value or an Error. Nothing here throws except
 *     value_or_throw(), an allocation that fails, and a progress callback of the caller. Everything compiles with
 *     -fno-exceptions and -fno-rtti; value_or_throw() and Exception are then not available. Result is the same type
 *     either way: translation units with and without exceptions may be linked together.
 *  2. File, Bundle, Plan and Writer are move-only. An object that was moved from, or default-constructed, is empty: it
 *     has 0 tensors, and its calls return Status::InvalidArgument. A View is reference-counted: a copy costs one atomic
 *     increment.
 *  3. Paths and names are passed as std::string_view, which must not be made from a null pointer: check what getenv()
 *     returns. Strings and spans that are handed out belong to the object that they came from; each comment says how
 *     long they are valid.
 *  4. Const calls on one object may be made from several threads at once. Other calls may not, unless the comment says
 *     so.
 */

#ifndef SAFEALIGN_HPP
#define SAFEALIGN_HPP

#include "safealign.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// A program may have translation units with and without exceptions: what differs between them has different names.
#if defined(__cpp_exceptions)
#define SAFEALIGN_EXCEPTIONS 1
#define SAFEALIGN_VARIANT with_exceptions
#include <exception>
#include <stdexcept>
#else
#define SAFEALIGN_EXCEPTIONS 0
#define SAFEALIGN_VARIANT without_exceptions
#endif

#if __cplusplus >= 202002L && defined(__has_include)
#if __has_include(<ranges>)
#include <ranges>
#endif
#if __has_include(<span>)
#include <span>
#endif
#endif

#if defined(__STDCPP_FLOAT16_T__) || defined(__STDCPP_BFLOAT16_T__)
#include <stdfloat>
#endif

namespace safealign {

/// The result of a call; see sa_status.
enum class Status : std::int32_t {
    Ok = SA_OK,
    InvalidArgument = SA_ERR_INVALID_ARGUMENT,
    Io = SA_ERR_IO,
    NoSpace = SA_ERR_NO_SPACE,
    NotFound = SA_ERR_NOT_FOUND,
    Format = SA_ERR_FORMAT,
    Truncated = SA_ERR_TRUNCATED,
    TooLarge = SA_ERR_TOO_LARGE,
    Unsupported = SA_ERR_UNSUPPORTED,
    Unaligned = SA_ERR_UNALIGNED,
    Nonconforming = SA_ERR_NONCONFORMING,
    Refused = SA_ERR_REFUSED,
    Changed = SA_ERR_CHANGED,
    Cancelled = SA_ERR_CANCELLED,
    Internal = SA_ERR_INTERNAL,
};

/// An element type; see sa_dtype.
enum class Dtype : std::int32_t {
    Bool = SA_DTYPE_BOOL,
    U8 = SA_DTYPE_U8,
    I8 = SA_DTYPE_I8,
    F8_E5M2 = SA_DTYPE_F8_E5M2,
    F8_E4M3 = SA_DTYPE_F8_E4M3,
    F8_E8M0 = SA_DTYPE_F8_E8M0,
    F8_E4M3FNUZ = SA_DTYPE_F8_E4M3FNUZ,
    F8_E5M2FNUZ = SA_DTYPE_F8_E5M2FNUZ,
    I16 = SA_DTYPE_I16,
    U16 = SA_DTYPE_U16,
    F16 = SA_DTYPE_F16,
    BF16 = SA_DTYPE_BF16,
    I32 = SA_DTYPE_I32,
    U32 = SA_DTYPE_U32,
    F32 = SA_DTYPE_F32,
    I64 = SA_DTYPE_I64,
    U64 = SA_DTYPE_U64,
    F64 = SA_DTYPE_F64,
    C64 = SA_DTYPE_C64,
    F4 = SA_DTYPE_F4,
    F6_E2M3 = SA_DTYPE_F6_E2M3,
    F6_E3M2 = SA_DTYPE_F6_E3M2,
};

/// The data layout of a file; see sa_layout.
enum class Layout : std::int32_t { Compact = SA_LAYOUT_COMPACT, Padded = SA_LAYOUT_PADDED };

/// Whether a write waits until the file is on the disk; see sa_durability.
enum class Durability : std::int32_t { Durable = SA_DURABLE, NotDurable = SA_NOT_DURABLE };

/// How a file is mapped; see sa_map_mode.
enum class MapMode : std::int32_t { Shared = SA_MAP_SHARED, CopyOnWrite = SA_MAP_COPY_ON_WRITE };

/// How a misaligned tensor is mapped; see sa_unaligned.
enum class Unaligned : std::int32_t {
    Copy = SA_UNALIGNED_COPY,
    Error = SA_UNALIGNED_ERROR,
    Borrow = SA_UNALIGNED_BORROW,
};

/// What opening does about the pages of the file that are not in memory yet; see sa_read_ahead.
enum class ReadAhead : std::int32_t {
    None = SA_READ_AHEAD_NONE,
    Populate = SA_READ_AHEAD_POPULATE,
    Background = SA_READ_AHEAD_BACKGROUND,
};

/// What is between the end of the JSON and the data section; see sa_header_padding.
enum class HeaderPadding : std::int32_t {
    None = SA_HEADER_PADDING_NONE,
    Spaces = SA_HEADER_PADDING_SPACES,
    Whitespace = SA_HEADER_PADDING_WHITESPACE,
    Nul = SA_HEADER_PADDING_NUL,
};

/// A repair outcome; see sa_repair_action.
enum class RepairAction : std::int32_t {
    Untouched = SA_REPAIR_UNTOUCHED,
    Copied = SA_REPAIR_COPIED,
    Rewritten = SA_REPAIR_REWRITTEN,
};

/// Where a view's bytes are; see sa_origin.
enum class Origin : std::int32_t {
    Mapped = SA_ORIGIN_MAPPED,
    Copied = SA_ORIGIN_COPIED,
    Cached = SA_ORIGIN_CACHED,
};

/// How a view's bytes will be used; see sa_advice.
enum class Advice : std::int32_t {
    WillNeed = SA_ADVICE_WILL_NEED,
    DoNotNeed = SA_ADVICE_DO_NOT_NEED,
    Random = SA_ADVICE_RANDOM,
    Sequential = SA_ADVICE_SEQUENTIAL,
};

/// The name of the status in the C header, such as "SA_ERR_FORMAT". Always valid.
[[nodiscard]] inline std::string_view name(Status status) noexcept {
    return sa_status_name(static_cast<std::int32_t>(status));
}

/// The name of the dtype as it is written in a file, such as "BF16". Always valid.
[[nodiscard]] inline std::string_view name(Dtype dtype) noexcept {
    return sa_dtype_name(static_cast<std::int32_t>(dtype));
}

/// Size of an element in bits: 4, 6, 8, 16, 32 or 64.
[[nodiscard]] inline std::uint32_t bits(Dtype dtype) noexcept {
    return sa_dtype_bits(static_cast<std::int32_t>(dtype));
}

/// Describes a failure.
struct Error {
    Status status = Status::Ok;
    /// The system's error number (errno); 0 if no system call failed.
    int os_error = 0;
    /// In lower case. Names the file and the tensor, and gives the numbers.
    std::string message = {};
};

#if SAFEALIGN_EXCEPTIONS
/// Thrown by value_or_throw(), and by nothing else.
class Exception : public std::runtime_error {
public:
    explicit Exception(const Error& error)
        : std::runtime_error(error.message), error_(std::make_shared<const Error>(error)) {}

    [[nodiscard]] const Error& error() const noexcept { return *error_; }

private:
    // Shared, because copying an exception must not throw.
    std::shared_ptr<const Error> error_;
};
#endif

inline namespace SAFEALIGN_VARIANT {
namespace detail_of_errors {

#if SAFEALIGN_EXCEPTIONS
struct Raise {
    [[noreturn]] static void raise(const Error& error) { throw Exception(error); }
};
#else
struct Raise;  // incomplete: value_or_throw() does not compile without exceptions
#endif

}  // namespace detail_of_errors
}  // namespace SAFEALIGN_VARIANT

namespace detail {

// The value of a failure: continuing would be undefined behaviour.
[[noreturn]] inline void no_value(const Error& error) noexcept {
    std::fprintf(stderr, "safealign: value() of a failed call: %s\n", error.message.c_str());
    std::abort();
}

[[noreturn]] inline void no_error() noexcept {
    std::fputs("safealign: error() of a call that succeeded\n", stderr);
    std::abort();
}

}  // namespace detail

/// A value, or the error that a call failed with.
///
/// Check it first: value() of a failure and error() of a success abort the program with a message.
template <typename T>
class [[nodiscard]] Result {
public:
    Result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : held_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] bool has_value() const noexcept { return held_.index() == 0; }
    /// Whether there is a value. Not for a bool, where the value would be meant.
    template <typename U = T, typename = std::enable_if_t<!std::is_same_v<U, bool>>>
    explicit operator bool() const noexcept {
        return has_value();
    }

    [[nodiscard]] T& value() & {
        if (T* value = std::get_if<0>(&held_)) {
            return *value;
        }
        detail::no_value(error());
    }
    [[nodiscard]] const T& value() const& {
        if (const T* value = std::get_if<0>(&held_)) {
            return *value;
        }
        detail::no_value(error());
    }
    /// By value, so that what is taken out of a temporary Result outlives it.
    [[nodiscard]] T value() && { return std::move(value()); }

    [[nodiscard]] T& operator*() & { return value(); }
    [[nodiscard]] const T& operator*() const& { return value(); }
    [[nodiscard]] T operator*() && { return std::move(value()); }
    [[nodiscard]] T* operator->() { return &value(); }
    [[nodiscard]] const T* operator->() const { return &value(); }

    [[nodiscard]] const Error& error() const {
        if (const Error* error = std::get_if<1>(&held_)) {
            return *error;
        }
        detail::no_error();
    }

    /// The value; throws Exception if there is none. A template, so that Result is the same type without exceptions.
    template <typename Raise = detail_of_errors::Raise>
    T& value_or_throw() & {
        check<Raise>();
        return value();
    }
    template <typename Raise = detail_of_errors::Raise>
    const T& value_or_throw() const& {
        check<Raise>();
        return value();
    }
    template <typename Raise = detail_of_errors::Raise>
    T value_or_throw() && {
        check<Raise>();
        return std::move(value());
    }

private:
    template <typename Raise>
    void check() const {
        if (!has_value()) {
            Raise::raise(error());
        }
    }

    std::variant<T, Error> held_;
};

/// Success, or the error that a call failed with.
template <>
class [[nodiscard]] Result<void> {
public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    [[nodiscard]] bool has_value() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return has_value(); }

    void value() const {
        if (error_) {
            detail::no_value(*error_);
        }
    }

    [[nodiscard]] const Error& error() const {
        if (error_) {
            return *error_;
        }
        detail::no_error();
    }

    template <typename Raise = detail_of_errors::Raise>
    void value_or_throw() const {
        if (error_) {
            Raise::raise(*error_);
        }
    }

private:
    std::optional<Error> error_ = std::nullopt;
};

/// Elements that belong to another object: a pointer and a count. Converts to a std::span.
template <typename T>
class Span {
    template <typename Container>
    using PointerIn = decltype(std::data(std::declval<Container&>()));

public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using size_type = std::size_t;
    using iterator = T*;

    constexpr Span() noexcept = default;
    constexpr Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}

    /// From any contiguous container: a vector, an array, a std::span. It must outlive the span.
    template <typename Container,
              typename = std::enable_if_t<
                  !std::is_same_v<std::remove_cv_t<std::remove_reference_t<Container>>, Span> &&
                  std::is_convertible_v<std::remove_pointer_t<PointerIn<Container>> (*)[], T (*)[]>>>
    constexpr Span(Container&& container) noexcept : data_(std::data(container)), size_(std::size(container)) {}

    [[nodiscard]] constexpr T* data() const noexcept { return data_; }
    [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
    [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] constexpr T* begin() const noexcept { return data_; }
    [[nodiscard]] constexpr T* end() const noexcept { return data_ + size_; }
    /// Not checked: the index must be less than size().
    [[nodiscard]] constexpr T& operator[](std::size_t index) const { return data_[index]; }

    /// Whether both have the same number of elements, and equal ones.
    template <typename U>
    [[nodiscard]] friend constexpr bool operator==(const Span& a, const Span<U>& b) {
        if (a.size() != b.size()) {
            return false;
        }
        for (std::size_t index = 0; index < a.size(); ++index) {
            if (!(a[index] == b[index])) {
                return false;
            }
        }
        return true;
    }
    template <typename U>
    [[nodiscard]] friend constexpr bool operator!=(const Span& a, const Span<U>& b) {
        return !(a == b);
    }

private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

namespace detail {

// Whether a temporary of this type does not own its elements.
template <typename T>
struct IsView : std::false_type {};
template <typename T>
struct IsView<Span<T>> : std::true_type {};
template <typename T>
struct IsView<std::basic_string_view<T>> : std::true_type {};
template <typename T>
struct IsView<std::initializer_list<T>> : std::false_type {};
#if defined(__cpp_lib_span)
template <typename T, std::size_t extent>
struct IsView<std::span<T, extent>> : std::true_type {};
#endif

}  // namespace detail

/// Bytes that belong to another object.
using Bytes = Span<const std::byte>;

/// The bytes of a container's elements: a vector, an array or a std::span of numbers. It must outlive them.
template <typename Container>
[[nodiscard]] Bytes bytes_of(const Container& elements) noexcept {
    using Element = std::remove_reference_t<decltype(*std::data(elements))>;
    static_assert(std::is_trivially_copyable_v<Element>, "the elements must be trivially copyable");
    return {reinterpret_cast<const std::byte*>(std::data(elements)), std::size(elements) * sizeof(Element)};
}

/// Not for a temporary container, which would be destroyed before its bytes are used.
template <typename Container, typename = std::enable_if_t<!std::is_lvalue_reference_v<Container> &&
                                                          !detail::IsView<std::remove_cv_t<Container>>::value>>
Bytes bytes_of(Container&& elements) = delete;

/// `nbytes` bytes, starting at `data`.
[[nodiscard]] inline Bytes bytes_of(const void* data, std::size_t nbytes) noexcept {
    return {static_cast<const std::byte*>(data), nbytes};
}

/// A tensor to be written. It owns its name and shape. The data is borrowed and must be valid until the call returns.
struct Tensor {
    /// UTF-8 without a NUL byte; not `__metadata__`; unique in the file. May be empty.
    std::string name = {};
    Dtype dtype = Dtype::U8;
    /// Sizes in elements; empty for a scalar.
    std::vector<std::uint64_t> shape = {};
    /// The elements in row-major order, little-endian, at any address. Their size must match dtype and shape.
    Bytes data = {};
};

/// A tensor whose data is written later, or through a stream of the caller.
struct TensorSpec {
    /// As in Tensor.
    std::string name = {};
    Dtype dtype = Dtype::U8;
    /// Sizes in elements; empty for a scalar.
    std::vector<std::uint64_t> shape = {};
    /// Size of the data in bytes. If it is left out, it is computed from dtype and shape; otherwise it must match them.
    std::optional<std::size_t> nbytes = std::nullopt;
};

/// Keys and values, in order.
using Metadata = std::vector<std::pair<std::string, std::string>>;

/// Called while a file is written, on the thread that made the call, with the bytes done and the total. Return true to
/// continue; false cancels the call, and the file at the path stays as it was.
///
/// An exception that it throws also cancels the call, and is rethrown to the caller. For a Writer it must not throw.
using Progress = std::function<bool(std::uint64_t bytes_done, std::uint64_t bytes_total)>;

/// Called for each file that an overlay links or leaves out although it is misaligned, on the thread that made the
/// call, with the file's path and the reason. It must not throw.
using Warning = std::function<void(std::string_view path, std::string_view message)>;

namespace detail {

// A struct of the C API, initialised.
template <typename Struct>
Struct initialised() noexcept {
    Struct value;
    SA_INIT(&value);
    return value;
}

}  // namespace detail

/// Write options. Alignments are in bytes: a power of two from 8 to 2097152.
struct WriteOptions {
    std::uint64_t alignment = 64;
    Layout layout = Layout::Compact;
    Durability durability = Durability::Durable;
    Progress progress = nullptr;
};

/// Options of a Plan.
struct PlanOptions {
    std::uint64_t alignment = 64;
    Layout layout = Layout::Compact;
};

/// Describes a file that was written; sizes in bytes. See sa_write_report.
struct WriteReport {
    std::uint64_t file_size = 0;
    /// Start of the data section.
    std::uint64_t data_start = 0;
    /// Zero bytes in gaps between tensors; 0 in the compact layout.
    std::uint64_t gap_bytes = 0;
    std::uint64_t tensors = 0;
    /// Tensors whose position in the file is not their position in the input.
    std::uint64_t tensors_moved = 0;
};

/// The position of a tensor in a file; in bytes. See sa_placement.
struct Placement {
    /// Index of the tensor in the list that the plan or the writer was made from.
    std::size_t input_index = 0;
    /// From the start of the file.
    std::uint64_t offset = 0;
    std::uint64_t nbytes = 0;
    /// Zero bytes to write before it.
    std::uint64_t gap_before = 0;
};

/// Bytes of a tensor that have not been written yet.
struct Missing {
    /// Index of the tensor in the list given to Writer::open().
    std::size_t index = 0;
    /// In bytes from the start of the tensor.
    std::uint64_t offset = 0;
    std::uint64_t nbytes = 0;
};

/// Options for opening a file.
struct OpenOptions {
    MapMode map_mode = MapMode::Shared;
    Unaligned unaligned = Unaligned::Copy;
    ReadAhead read_ahead = ReadAhead::None;
    /// Reject everything that the reference reader rejects.
    bool strict = false;
    /// Path of a file made by write_aligned_cache(), or empty.
    std::string aligned_cache = {};
};

/// Counts of an open file, and of what has been handed out of it; see sa_stats.
struct Stats {
    std::uint64_t file_size = 0;
    std::uint64_t tensors = 0;
    std::uint64_t misaligned_tensors = 0;
    std::uint64_t misaligned_bytes = 0;
    std::uint64_t tensors_mapped = 0;
    std::uint64_t bytes_mapped = 0;
    std::uint64_t tensors_copied = 0;
    std::uint64_t bytes_copied = 0;
    std::uint64_t gaps = 0;
    std::uint64_t gap_bytes = 0;
    std::uint64_t trailing_bytes = 0;
    HeaderPadding header_padding = HeaderPadding::None;
    /// False if the file was read into memory because its file system cannot map, or was opened from memory.
    bool is_mapped = false;
};

/// The tensors of one dtype in a file; sizes in bytes.
struct DtypeUse {
    /// As it is written in the header.
    std::string name = {};
    /// Empty for a dtype that is not part of the format.
    std::optional<Dtype> dtype = std::nullopt;
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;
    std::uint64_t misaligned_tensors = 0;
    std::uint64_t misaligned_bytes = 0;
};

/// The layout of a file, from its header; sizes in bytes. See sa_scan_report.
struct ScanReport {
    std::uint64_t file_size = 0;
    std::uint64_t header_len = 0;
    std::uint64_t data_start = 0;
    std::uint64_t tensors = 0;
    std::uint64_t tensor_bytes = 0;
    std::uint64_t misaligned_tensors = 0;
    /// What a loader that maps has to copy.
    std::uint64_t misaligned_bytes = 0;
    /// Tensors whose offset is not a multiple of the alignment that was asked for.
    std::uint64_t tensors_below_alignment = 0;
    std::uint64_t gaps = 0;
    std::uint64_t gap_bytes = 0;
    std::uint64_t trailing_bytes = 0;
    std::uint64_t unknown_dtype_tensors = 0;
    HeaderPadding header_padding = HeaderPadding::None;
    /// Why the reference reader would reject the file, as a message and as a code such as "HOLE"; empty if it would
    /// not.
    std::string nonconforming = {};
    std::string nonconforming_reason = {};
    /// Most bytes first.
    std::vector<DtypeUse> dtypes = {};

    /// Whether the reference reader would open the file.
    [[nodiscard]] bool conforms() const noexcept { return nonconforming_reason.empty(); }
};

/// Repair options; see sa_repair_options.
struct RepairOptions {
    std::uint64_t alignment = 64;
    Layout layout = Layout::Compact;
    Durability durability = Durability::Durable;
    /// Read back every tensor and compare it with the source before the new file is put in place.
    bool verify = true;
    /// Drop the bytes after the last tensor. Otherwise a file that has such bytes and needs repair is refused.
    bool drop_trailing = false;
    /// Write a new layout even if the file needs no repair.
    bool force = false;
    /// Check everything and report what would be done, but write nothing.
    bool dry_run = false;
    Progress progress = nullptr;
};

/// Describes a repair; sizes in bytes. See sa_repair_report.
struct RepairReport {
    RepairAction action = RepairAction::Untouched;
    std::uint64_t tensors = 0;
    std::uint64_t tensors_moved = 0;
    /// Of the source. The new file has none.
    std::uint64_t misaligned_tensors = 0;
    std::uint64_t misaligned_bytes = 0;
    std::uint64_t source_size = 0;
    std::uint64_t source_gap_bytes = 0;
    std::uint64_t source_trailing_bytes = 0;
    /// Of the resulting file: at the destination, or in place.
    std::uint64_t file_size = 0;
    std::uint64_t data_start = 0;
    std::uint64_t gap_bytes = 0;
    std::uint64_t bytes_verified = 0;
};

/// Options of write_aligned_cache(); see sa_aligned_cache_options.
struct AlignedCacheOptions {
    std::uint64_t alignment = 64;
    Layout layout = Layout::Compact;
    Durability durability = Durability::Durable;
    Progress progress = nullptr;
};

/// Describes an aligned cache file; sizes in bytes. See sa_aligned_cache_report.
struct AlignedCache {
    /// For OpenOptions::aligned_cache.
    std::string path = {};
    std::uint64_t file_size = 0;
    /// Number of tensors in it: those of the source that are misaligned.
    std::uint64_t tensors = 0;
    std::uint64_t tensor_bytes = 0;
    /// False if the file existed already and was up to date.
    bool is_new = false;
};

/// Options of write_sharded(); see sa_sharded_options.
struct ShardedOptions {
    std::uint64_t alignment = 64;
    Layout layout = Layout::Compact;
    Durability durability = Durability::Durable;
    /// Replace the files of the same prefix. Otherwise they are refused.
    bool replace = false;
    Progress progress = nullptr;
};

/// Describes a bundle that was written; sizes in bytes. See sa_sharded_report.
struct ShardedReport {
    /// Number of model files. With one there is no index.
    std::uint64_t shards = 0;
    std::uint64_t tensors = 0;
    /// Total size of the tensors: total_size of the index.
    std::uint64_t tensor_bytes = 0;
    /// Total size of the model files, without the index.
    std::uint64_t file_bytes = 0;
    std::uint64_t gap_bytes = 0;
    std::uint64_t tensors_moved = 0;
    std::uint64_t removed = 0;
};

/// Overlay options; see sa_overlay_options.
struct OverlayOptions {
    std::uint64_t alignment = 64;
    Layout layout = Layout::Compact;
    Durability durability = Durability::Durable;
    /// Read back every tensor and compare it with the source.
    bool verify = true;
    /// Drop the bytes after the last tensor. Otherwise a misaligned file that has such bytes is linked, with a warning.
    bool drop_trailing = false;
    Progress progress = nullptr;
    Warning warning = nullptr;
};

/// Describes an overlay; sizes in bytes. See sa_overlay_report.
struct OverlayReport {
    std::uint64_t written = 0;
    std::uint64_t bytes_written = 0;
    std::uint64_t kept = 0;
    std::uint64_t bytes_kept = 0;
    std::uint64_t linked = 0;
    std::uint64_t removed = 0;
    /// Number of warnings; see OverlayOptions::warning.
    std::uint64_t warnings = 0;
};

/// A tensor as the header describes it. Name and shape are valid as long as the file or any of its views.
struct TensorInfo {
    std::string_view name = {};
    Dtype dtype = Dtype::U8;
    Span<const std::uint64_t> shape = {};
    /// In bytes from the start of the file.
    std::uint64_t offset = 0;
    std::uint64_t nbytes = 0;
    /// Whether a loader that maps has to copy the tensor.
    bool is_misaligned = false;
};

namespace detail {

inline Error taken(const sa_error& error) {
    return {static_cast<Status>(error.status), error.os_error, error.message};
}

inline Error invalid(std::string message) {
    return {Status::InvalidArgument, 0, std::move(message)};
}

// C takes the empty string as a null pointer.
inline const char* start_of(std::string_view text) noexcept {
    return text.empty() ? nullptr : text.data();
}

// A path for C, which ends with a NUL. One inside would cut it short, and name another file.
inline Result<std::string> terminated(std::string_view text, const char* argument) {
    if (text.find('\0') != std::string_view::npos) {
        return invalid(std::string("`") + argument + "` has a NUL byte");
    }
    return std::string(text);
}

// The size that dtype and shape make, in bytes; what cannot be counted is more than any size, so that the library
// reports it.
inline std::size_t size_of(Dtype dtype, const std::vector<std::uint64_t>& shape) noexcept {
    std::uint64_t elements = 1;
    for (const std::uint64_t dimension : shape) {
        if (dimension != 0 && elements > UINT64_MAX / 64 / dimension) {
            return std::find(shape.begin(), shape.end(), 0U) == shape.end() ? SIZE_MAX : 0;
        }
        elements *= dimension;
    }
    return static_cast<std::size_t>(elements * bits(dtype) / 8);
}

inline sa_tensor lowered(const std::string& name, Dtype dtype, const std::vector<std::uint64_t>& shape,
                         const void* data, std::size_t nbytes) noexcept {
    sa_tensor tensor{};
    tensor.name = start_of(name);
    tensor.name_len = name.size();
    tensor.dtype = static_cast<std::int32_t>(dtype);
    tensor.rank = shape.size();
    tensor.shape = shape.data();
    tensor.data = data;
    tensor.nbytes = nbytes;
    return tensor;
}

inline std::vector<sa_tensor> lowered(const std::vector<Tensor>& tensors) {
    std::vector<sa_tensor> out;
    out.reserve(tensors.size());
    for (const Tensor& tensor : tensors) {
        out.push_back(lowered(tensor.name, tensor.dtype, tensor.shape, tensor.data.data(), tensor.data.size()));
    }
    return out;
}

inline std::vector<sa_tensor> lowered(const std::vector<TensorSpec>& tensors) {
    std::vector<sa_tensor> out;
    out.reserve(tensors.size());
    for (const TensorSpec& tensor : tensors) {
        const std::size_t nbytes = tensor.nbytes ? *tensor.nbytes : size_of(tensor.dtype, tensor.shape);
        out.push_back(lowered(tensor.name, tensor.dtype, tensor.shape, nullptr, nbytes));
    }
    return out;
}

inline std::vector<sa_metadata> lowered(const Metadata& metadata) {
    std::vector<sa_metadata> out;
    out.reserve(metadata.size());
    for (const auto& [key, value] : metadata) {
        out.push_back({start_of(key), key.size(), start_of(value), value.size()});
    }
    return out;
}

// What the options of several calls have in common.
template <typename Lowered, typename Options>
Lowered lowered_layout(const Options& options) noexcept {
    Lowered out = initialised<Lowered>();
    out.alignment = options.alignment;
    out.layout = static_cast<std::int32_t>(options.layout);
    return out;
}

template <typename Lowered, typename Options>
Lowered lowered_write(const Options& options) noexcept {
    Lowered out = lowered_layout<Lowered>(options);
    out.durability = static_cast<std::int32_t>(options.durability);
    return out;
}

inline sa_repair_options lowered(const RepairOptions& options) noexcept {
    sa_repair_options out = lowered_write<sa_repair_options>(options);
    out.skip_verify = options.verify ? 0 : 1;
    out.drop_trailing = options.drop_trailing ? 1 : 0;
    out.force = options.force ? 1 : 0;
    out.dry_run = options.dry_run ? 1 : 0;
    return out;
}

inline sa_overlay_options lowered(const OverlayOptions& options) noexcept {
    sa_overlay_options out = lowered_write<sa_overlay_options>(options);
    out.skip_verify = options.verify ? 0 : 1;
    out.drop_trailing = options.drop_trailing ? 1 : 0;
    return out;
}

// The path is borrowed from the options.
inline sa_open_options lowered(const OpenOptions& options) noexcept {
    sa_open_options out = initialised<sa_open_options>();
    out.map_mode = static_cast<std::int32_t>(options.map_mode);
    out.unaligned = static_cast<std::int32_t>(options.unaligned);
    out.strict = options.strict ? 1 : 0;
    out.read_ahead = static_cast<std::int32_t>(options.read_ahead);
    out.aligned_cache = options.aligned_cache.empty() ? nullptr : options.aligned_cache.c_str();
    return out;
}

inline Result<void> outcome(sa_status status, const sa_error& error) {
    return status == SA_OK ? Result<void>() : Result<void>(taken(error));
}

inline RepairReport taken(const sa_repair_report& report) noexcept {
    RepairReport out;
    out.action = static_cast<RepairAction>(report.action);
    out.tensors = report.tensors;
    out.tensors_moved = report.tensors_moved;
    out.misaligned_tensors = report.misaligned_tensors;
    out.misaligned_bytes = report.misaligned_bytes;
    out.source_size = report.source_size;
    out.source_gap_bytes = report.source_gap_bytes;
    out.source_trailing_bytes = report.source_trailing_bytes;
    out.file_size = report.file_size;
    out.data_start = report.data_start;
    out.gap_bytes = report.gap_bytes;
    out.bytes_verified = report.bytes_verified;
    return out;
}

inline ScanReport taken(const sa_scan_report& report) {
    ScanReport out;
    out.file_size = report.file_size;
    out.header_len = report.header_len;
    out.data_start = report.data_start;
    out.tensors = report.tensors;
    out.tensor_bytes = report.tensor_bytes;
    out.misaligned_tensors = report.misaligned_tensors;
    out.misaligned_bytes = report.misaligned_bytes;
    out.tensors_below_alignment = report.tensors_below_alignment;
    out.gaps = report.gaps;
    out.gap_bytes = report.gap_bytes;
    out.trailing_bytes = report.trailing_bytes;
    out.unknown_dtype_tensors = report.unknown_dtype_tensors;
    out.header_padding = static_cast<HeaderPadding>(report.header_padding);
    out.nonconforming = report.nonconforming == nullptr ? "" : report.nonconforming;
    out.nonconforming_reason = report.nonconforming_reason == nullptr ? "" : report.nonconforming_reason;
    return out;
}

inline WriteReport taken(const sa_write_report& report) noexcept {
    return {report.file_size, report.data_start, report.gap_bytes, report.tensors, report.tensors_moved};
}

inline Placement taken(const sa_placement& found) noexcept {
    return {found.input_index, found.offset, found.nbytes, found.gap_before};
}

inline TensorInfo taken(const sa_tensor_info& found) noexcept {
    return {{found.name, found.name_len},
            static_cast<Dtype>(found.dtype),
            {found.shape, found.rank},
            found.offset,
            found.nbytes,
            found.is_misaligned != 0};
}

inline Stats taken(const sa_stats& found) noexcept {
    Stats stats;
    stats.file_size = found.file_size;
    stats.tensors = found.tensors;
    stats.misaligned_tensors = found.misaligned_tensors;
    stats.misaligned_bytes = found.misaligned_bytes;
    stats.tensors_mapped = found.tensors_mapped;
    stats.bytes_mapped = found.bytes_mapped;
    stats.tensors_copied = found.tensors_copied;
    stats.bytes_copied = found.bytes_copied;
    stats.gaps = found.gaps;
    stats.gap_bytes = found.gap_bytes;
    stats.trailing_bytes = found.trailing_bytes;
    stats.header_padding = static_cast<HeaderPadding>(found.header_padding);
    stats.is_mapped = found.is_mapped != 0;
    return stats;
}

struct FreeFile {
    void operator()(sa_file* file) const noexcept { sa_file_free(file); }
};
struct FreePlan {
    void operator()(sa_plan* plan) const noexcept { sa_plan_free(plan); }
};
struct FreeScan {
    void operator()(sa_scan* scan) const noexcept { sa_scan_free(scan); }
};
struct FreeWriter {
    void operator()(sa_writer* writer) const noexcept { sa_writer_free(writer); }
};
struct FreeBundle {
    void operator()(sa_bundle* bundle) const noexcept { sa_bundle_free(bundle); }
};
struct FreeBundleSlot {
    void operator()(sa_bundle_slot* slot) const noexcept { sa_bundle_slot_free(slot); }
};
struct FreeAlignedCache {
    void operator()(sa_aligned_cache* cache) const noexcept { sa_aligned_cache_free(cache); }
};
struct ReleaseView {
    void operator()(void* owner) const noexcept { sa_view_release(owner); }
};

}  // namespace detail

/// The dtype with a name such as "BF16". Case matters. Status::Unsupported if the format has no such dtype.
[[nodiscard]] inline Result<Dtype> dtype_from_name(std::string_view name) {
    sa_error error;
    std::int32_t dtype = 0;
    if (sa_dtype_from_name(detail::start_of(name), name.size(), &dtype, &error) != SA_OK) {
        return detail::taken(error);
    }
    return static_cast<Dtype>(dtype);
}

/// The layout of a file: which tensors a loader that maps has to copy, and what the reference reader would reject.
/// Reads the header, never the data.
///
/// @param alignment  For ScanReport::tensors_below_alignment, in bytes: a power of two from 8 to 2097152.
[[nodiscard]] inline Result<ScanReport> scan(std::string_view path, std::uint64_t alignment = 64) {
    const Result<std::string> source = detail::terminated(path, "path");
    if (!source) {
        return source.error();
    }
    auto options = detail::initialised<sa_scan_options>();
    options.alignment = alignment;
    sa_scan* made = nullptr;
    sa_error error;
    if (sa_scan_file(source->c_str(), &options, &made, &error) != SA_OK) {
        return detail::taken(error);
    }
    const std::unique_ptr<sa_scan, detail::FreeScan> scan(made);
    auto found = detail::initialised<sa_scan_report>();
    if (sa_scan_get(scan.get(), &found, &error) != SA_OK) {
        return detail::taken(error);
    }
    ScanReport report = detail::taken(found);
    report.dtypes.reserve(found.dtypes);
    for (std::size_t index = 0; index < found.dtypes; ++index) {
        auto row = detail::initialised<sa_scan_dtype>();
        if (sa_scan_dtype_at(scan.get(), index, &row, &error) != SA_OK) {
            return detail::taken(error);
        }
        DtypeUse use;
        use.name.assign(row.name, row.name_len);
        if (row.dtype != 0) {
            use.dtype = static_cast<Dtype>(row.dtype);
        }
        use.tensors = row.tensors;
        use.bytes = row.bytes;
        use.misaligned_tensors = row.misaligned_tensors;
        use.misaligned_bytes = row.misaligned_bytes;
        report.dtypes.push_back(std::move(use));
    }
    return report;
}

inline namespace SAFEALIGN_VARIANT {

namespace detail_of_progress {

// Carries a progress callback, and the exception that it throws, over the C frames between it and the caller.
struct ProgressCall {
    const Progress* progress = nullptr;
#if SAFEALIGN_EXCEPTIONS
    std::exception_ptr thrown = nullptr;
#endif

    static int step(void* context, std::uint64_t done, std::uint64_t total) noexcept {
        auto* call = static_cast<ProgressCall*>(context);
#if SAFEALIGN_EXCEPTIONS
        try {
            return (*call->progress)(done, total) ? 0 : 1;
        } catch (...) {
            call->thrown = std::current_exception();
            return 1;
        }
#else
        return (*call->progress)(done, total) ? 0 : 1;
#endif
    }

    // Puts the callback of some options into those of C. This object must outlive the call.
    template <typename Lowered>
    void attach(const Progress& callback, Lowered& options) noexcept {
        if (callback) {
            progress = &callback;
            options.progress = step;
            options.progress_context = this;
        }
    }

    void rethrow() const {
#if SAFEALIGN_EXCEPTIONS
        if (thrown) {
            std::rethrow_exception(thrown);
        }
#endif
    }
};

inline void warn(void* context, const char* path, const char* message) noexcept {
    (*static_cast<const Warning*>(context))(path, message);
}

// A repair to a destination, or in place without one.
inline Result<RepairReport> repair(std::string_view source, const std::string_view* destination,
                                   const RepairOptions& options) {
    const Result<std::string> from = detail::terminated(source, destination == nullptr ? "path" : "source");
    if (!from) {
        return from.error();
    }
    const Result<std::string> to = detail::terminated(destination ? *destination : "", "destination");
    if (!to) {
        return to.error();
    }
    sa_repair_options c_options = detail::lowered(options);
    ProgressCall call;
    call.attach(options.progress, c_options);
    auto report = detail::initialised<sa_repair_report>();
    sa_error error;
    const sa_status status = destination == nullptr
                                 ? sa_repair_in_place(from->c_str(), &c_options, &report, &error)
                                 : sa_repair_file(from->c_str(), to->c_str(), &c_options, &report, &error);
    call.rethrow();
    if (status != SA_OK) {
        return detail::taken(error);
    }
    return detail::taken(report);
}

}  // namespace detail_of_progress

/// Writes a file in which every tensor starts at a multiple of its dtype width, so that a loader can map all of them.
///
/// Whatever fails, the file at `path` is the old one or the new one, complete. A file may be replaced while it is
/// mapped. See sa_write_aligned for the statuses.
[[nodiscard]] inline Result<WriteReport> write_aligned(std::string_view path, const std::vector<Tensor>& tensors,
                                                       const Metadata& metadata = {},
                                                       const WriteOptions& options = {}) {
    const Result<std::string> target = detail::terminated(path, "path");
    if (!target) {
        return target.error();
    }
    const std::vector<sa_tensor> c_tensors = detail::lowered(tensors);
    const std::vector<sa_metadata> c_metadata = detail::lowered(metadata);
    auto c_options = detail::lowered_write<sa_write_options>(options);
    detail_of_progress::ProgressCall call;
    call.attach(options.progress, c_options);
    auto report = detail::initialised<sa_write_report>();
    sa_error error;
    const sa_status status = sa_write_aligned(target->c_str(), c_tensors.data(), c_tensors.size(), c_metadata.data(),
                                              c_metadata.size(), &c_options, &report, &error);
    call.rethrow();
    if (status != SA_OK) {
        return detail::taken(error);
    }
    return detail::taken(report);
}

/// Writes a bundle: shards and the index that says which shard holds which tensor, as the Hugging Face libraries name
/// them. Every file is complete before any name in the directory changes. See sa_write_sharded for the rules and the
/// statuses.
///
/// @param directory        An existing directory.
/// @param prefix           Such as "model".
/// @param max_shard_bytes  The largest size of the tensor data of a shard in bytes; not 0.
[[nodiscard]] inline Result<ShardedReport> write_sharded(std::string_view directory, std::string_view prefix,
                                                         std::uint64_t max_shard_bytes,
                                                         const std::vector<Tensor>& tensors,
                                                         const Metadata& metadata = {},
                                                         const ShardedOptions& options = {}) {
    const Result<std::string> target = detail::terminated(directory, "directory");
    if (!target) {
        return target.error();
    }
    const std::vector<sa_tensor> c_tensors = detail::lowered(tensors);
    const std::vector<sa_metadata> c_metadata = detail::lowered(metadata);
    auto c_options = detail::lowered_write<sa_sharded_options>(options);
    c_options.replace = options.replace ? 1 : 0;
    detail_of_progress::ProgressCall call;
    call.attach(options.progress, c_options);
    auto report = detail::initialised<sa_sharded_report>();
    sa_error error;
    const sa_status status = sa_write_sharded(target->c_str(), detail::start_of(prefix), prefix.size(), max_shard_bytes,
                                              c_tensors.data(), c_tensors.size(), c_metadata.data(), c_metadata.size(),
                                              &c_options, &report, &error);
    call.rethrow();
    if (status != SA_OK) {
        return detail::taken(error);
    }
    return ShardedReport{report.shards,    report.tensors,       report.tensor_bytes, report.file_bytes,
                         report.gap_bytes, report.tensors_moved, report.removed};
}

/// Writes a repaired copy of `source` to `destination`, in which every tensor maps without a copy.
///
/// Whatever fails, the file at the destination is the old one or the new one, complete. See sa_repair_file for what is
/// repaired and for the statuses. The message of Status::Refused says what to do instead.
[[nodiscard]] inline Result<RepairReport> repair(std::string_view source, std::string_view destination,
                                                 const RepairOptions& options = {}) {
    return detail_of_progress::repair(source, &destination, options);
}

/// Replaces a file by a repaired one, as repair(). A file that needs no repair is not written.
[[nodiscard]] inline Result<RepairReport> repair_in_place(std::string_view path, const RepairOptions& options = {}) {
    return detail_of_progress::repair(path, nullptr, options);
}

/// Writes the misaligned tensors of `source`, a file or a bundle, aligned, into a file in the directory `directory`.
/// Pass the path of that file as OpenOptions::aligned_cache. See sa_aligned_cache_write for the statuses.
[[nodiscard]] inline Result<AlignedCache> write_aligned_cache(std::string_view source, std::string_view directory,
                                                              const AlignedCacheOptions& options = {}) {
    const Result<std::string> from = detail::terminated(source, "source");
    if (!from) {
        return from.error();
    }
    const Result<std::string> to = detail::terminated(directory, "directory");
    if (!to) {
        return to.error();
    }
    auto c_options = detail::lowered_write<sa_aligned_cache_options>(options);
    detail_of_progress::ProgressCall call;
    call.attach(options.progress, c_options);
    sa_aligned_cache* made = nullptr;
    sa_error error;
    const sa_status status = sa_aligned_cache_write(from->c_str(), to->c_str(), &c_options, &made, &error);
    const std::unique_ptr<sa_aligned_cache, detail::FreeAlignedCache> cache(made);
    call.rethrow();
    auto report = detail::initialised<sa_aligned_cache_report>();
    if (status != SA_OK || sa_aligned_cache_get(cache.get(), &report, &error) != SA_OK) {
        return detail::taken(error);
    }
    return AlignedCache{sa_aligned_cache_path(cache.get()), report.file_size, report.tensors, report.tensor_bytes,
                        report.is_new != 0};
}

/// Makes `output` a directory that loads in place of the directory `bundle`: misaligned files are written repaired,
/// everything else is a symbolic link. A second call only writes what is missing or stale. See sa_overlay_bundle for
/// the statuses.
[[nodiscard]] inline Result<OverlayReport> overlay_bundle(std::string_view bundle, std::string_view output,
                                                          const OverlayOptions& options = {}) {
    const Result<std::string> from = detail::terminated(bundle, "bundle");
    if (!from) {
        return from.error();
    }
    const Result<std::string> to = detail::terminated(output, "output");
    if (!to) {
        return to.error();
    }
    sa_overlay_options c_options = detail::lowered(options);
    detail_of_progress::ProgressCall call;
    call.attach(options.progress, c_options);
    if (options.warning) {
        c_options.warning = detail_of_progress::warn;
        c_options.warning_context = const_cast<Warning*>(&options.warning);
    }
    auto report = detail::initialised<sa_overlay_report>();
    sa_error error;
    const sa_status status = sa_overlay_bundle(from->c_str(), to->c_str(), &c_options, &report, &error);
    call.rethrow();
    if (status != SA_OK) {
        return detail::taken(error);
    }
    return OverlayReport{report.written, report.bytes_written, report.kept,    report.bytes_kept,
                         report.linked,  report.removed,       report.warnings};
}

}  // namespace SAFEALIGN_VARIANT

/// A computed file layout, for programs that write a file through their own stream. Immutable.
class Plan {
public:
    Plan() noexcept = default;

    /// Computes a file layout. Pure arithmetic, no I/O. The plan keeps no reference to its input.
    [[nodiscard]] static Result<Plan> make(const std::vector<TensorSpec>& tensors, const Metadata& metadata = {},
                                           const PlanOptions& options = {}) {
        return make(detail::lowered(tensors), metadata, options);
    }
    [[nodiscard]] static Result<Plan> make(const std::vector<Tensor>& tensors, const Metadata& metadata = {},
                                           const PlanOptions& options = {}) {
        return make(detail::lowered(tensors), metadata, options);
    }

    /// The first bytes of the file: the 8-byte length, the JSON and its padding. They are valid as long as the plan.
    [[nodiscard]] Bytes header() const noexcept {
        const std::uint8_t* bytes = nullptr;
        std::size_t nbytes = 0;
        (void)sa_plan_header(plan_.get(), &bytes, &nbytes, nullptr);
        return bytes_of(bytes, nbytes);
    }

    /// Number of tensors.
    [[nodiscard]] std::size_t size() const noexcept { return sa_plan_len(plan_.get()); }

    /// The tensor at a position of the file, from 0 to size() - 1.
    [[nodiscard]] Result<Placement> at(std::size_t position) const {
        auto found = detail::initialised<sa_placement>();
        sa_error error;
        if (sa_plan_at(plan_.get(), position, &found, &error) != SA_OK) {
            return detail::taken(error);
        }
        return detail::taken(found);
    }

    /// Size of the file in bytes.
    [[nodiscard]] std::uint64_t file_size() const noexcept { return sa_plan_file_size(plan_.get()); }

    /// For calls of the C API. Still owned by this object.
    [[nodiscard]] const sa_plan* get() const noexcept { return plan_.get(); }

private:
    explicit Plan(sa_plan* plan) noexcept : plan_(plan) {}

    static Result<Plan> make(const std::vector<sa_tensor>& tensors, const Metadata& metadata,
                             const PlanOptions& options) {
        const std::vector<sa_metadata> c_metadata = detail::lowered(metadata);
        const auto c_options = detail::lowered_layout<sa_plan_options>(options);
        sa_plan* plan = nullptr;
        sa_error error;
        if (sa_plan_new(tensors.data(), tensors.size(), c_metadata.data(), c_metadata.size(), &c_options, &plan,
                        &error) != SA_OK) {
            return detail::taken(error);
        }
        return Plan(plan);
    }

    std::unique_ptr<sa_plan, detail::FreePlan> plan_ = nullptr;
};

/// A file that is written in pieces, for tensors that do not all fit in memory.
///
/// If it is destroyed before finish() has succeeded, it discards the unfinished file, and the file at the path stays as
/// it was. put(), put_at() and the queries may be called from several threads at once; finish(), discard() and moving
/// only when no other call runs.
class Writer {
public:
    Writer() noexcept = default;

    /// Lays out a file, reserves its space beside `path` and writes its header. The writer keeps no reference to the
    /// tensors.
    ///
    /// @param options  `progress` is called by put() and put_at(), on the thread that calls them. It must not throw.
    [[nodiscard]] static Result<Writer> open(std::string_view path, const std::vector<TensorSpec>& tensors,
                                             const Metadata& metadata = {}, const WriteOptions& options = {}) {
        const Result<std::string> target = detail::terminated(path, "path");
        if (!target) {
            return target.error();
        }
        const std::vector<sa_tensor> c_tensors = detail::lowered(tensors);
        const std::vector<sa_metadata> c_metadata = detail::lowered(metadata);
        auto c_options = detail::lowered_write<sa_write_options>(options);
        auto progress = std::make_unique<Progress>(options.progress);
        if (*progress) {
            c_options.progress = step;
            c_options.progress_context = progress.get();
        }
        sa_writer* writer = nullptr;
        sa_error error;
        if (sa_writer_open(target->c_str(), c_tensors.data(), c_tensors.size(), c_metadata.data(), c_metadata.size(),
                           &c_options, &writer, &error) != SA_OK) {
            return detail::taken(error);
        }
        return Writer(std::move(progress), writer);
    }

    /// The index of a tensor in the list given to open(); Status::NotFound if there is none of that name.
    [[nodiscard]] Result<std::size_t> find(std::string_view name) const {
        std::size_t index = 0;
        sa_error error;
        if (sa_writer_find(writer_.get(), detail::start_of(name), name.size(), &index, &error) != SA_OK) {
            return detail::taken(error);
        }
        return index;
    }

    /// Where the tensor with that index in the list given to open() is located in the file.
    [[nodiscard]] Result<Placement> at(std::size_t index) const {
        auto found = detail::initialised<sa_placement>();
        sa_error error;
        if (sa_writer_at(writer_.get(), index, &found, &error) != SA_OK) {
            return detail::taken(error);
        }
        return detail::taken(found);
    }

    /// Writes the whole tensor with that index in the list given to open().
    [[nodiscard]] Result<void> put(std::size_t index, Bytes data) const {
        sa_error error;
        return detail::outcome(sa_writer_put(writer_.get(), index, data.data(), data.size(), &error), error);
    }

    /// Writes the whole tensor of that name.
    [[nodiscard]] Result<void> put(std::string_view name, Bytes data) const {
        const Result<std::size_t> index = find(name);
        return index ? put(*index, data) : Result<void>(index.error());
    }

    /// Writes a piece of a tensor, `offset` bytes from the start of the tensor.
    [[nodiscard]] Result<void> put_at(std::size_t index, std::uint64_t offset, Bytes data) const {
        sa_error error;
        return detail::outcome(sa_writer_put_at(writer_.get(), index, offset, data.data(), data.size(), &error), error);
    }

    /// Total size in bytes of the tensor data that has not been written yet.
    [[nodiscard]] std::uint64_t bytes_missing() const noexcept { return sa_writer_bytes_missing(writer_.get()); }

    /// The first range of bytes that has not been written yet, if any.
    [[nodiscard]] std::optional<Missing> first_missing() const noexcept {
        Missing found;
        if (sa_writer_first_missing(writer_.get(), &found.index, &found.offset, &found.nbytes, nullptr) != SA_OK ||
            found.nbytes == 0) {
            return std::nullopt;
        }
        return found;
    }

    /// Puts the file in place and empties the writer. If bytes are missing (Status::InvalidArgument), they can be
    /// written and the call repeated.
    [[nodiscard]] Result<WriteReport> finish() {
        auto report = detail::initialised<sa_write_report>();
        sa_error error;
        if (sa_writer_finish(writer_.get(), &report, &error) != SA_OK) {
            return detail::taken(error);
        }
        writer_.reset();
        return detail::taken(report);
    }

    /// Discards the unfinished file, as the destructor does, and empties the writer.
    void discard() noexcept { writer_.reset(); }

    /// For calls of the C API. Still owned by this object.
    [[nodiscard]] sa_writer* get() const noexcept { return writer_.get(); }

private:
    Writer(std::unique_ptr<Progress> progress, sa_writer* writer) noexcept
        : progress_(std::move(progress)), writer_(writer) {}

    static int step(void* context, std::uint64_t done, std::uint64_t total) noexcept {
        return (*static_cast<const Progress*>(context))(done, total) ? 0 : 1;
    }

    // At an address that stays the same, and destroyed after the writer.
    std::unique_ptr<Progress> progress_ = nullptr;
    std::unique_ptr<sa_writer, detail::FreeWriter> writer_ = nullptr;
};

/// A tensor's bytes. A view keeps its mapping alive: the File may be closed first. May be destroyed on any thread.
class View {
public:
    /// Empty: no bytes.
    View() noexcept = default;

    /// Takes over a view of the C API, and one sa_view_release of its owner.
    explicit View(const sa_view& view) noexcept : view_(view), owner_(view.owner) {}

    View(const View& other) noexcept : view_(other.view_), owner_(other.owner_.get()) {
        sa_view_retain(owner_.get());
    }
    View(View&& other) noexcept : view_(other.view_), owner_(std::move(other.owner_)) { other.view_ = empty(); }
    View& operator=(const View& other) noexcept {
        View copy(other);
        swap(copy);
        return *this;
    }
    View& operator=(View&& other) noexcept {
        View moved(std::move(other));
        swap(moved);
        return *this;
    }
    ~View() = default;

    void swap(View& other) noexcept {
        std::swap(view_, other.view_);
        owner_.swap(other.owner_);
    }

    /// Elements in row-major order, little-endian. Valid as long as any view of the tensor.
    [[nodiscard]] Bytes bytes() const noexcept { return bytes_of(view_.data, view_.nbytes); }

    /// The first byte.
    [[nodiscard]] const void* data() const noexcept { return view_.data; }

    /// Size in bytes.
    [[nodiscard]] std::size_t nbytes() const noexcept { return view_.nbytes; }
    [[nodiscard]] Dtype dtype() const noexcept { return static_cast<Dtype>(view_.dtype); }
    [[nodiscard]] Origin origin() const noexcept { return static_cast<Origin>(view_.origin); }

    /// Sizes in elements; empty for a scalar. Valid as long as any view of the file.
    [[nodiscard]] Span<const std::uint64_t> shape() const noexcept { return {view_.shape, view_.rank}; }

    /// The elements. Status::InvalidArgument unless T has the size of the dtype and, if T is a floating-point type, is
    /// the type of the dtype: float, double, std::float16_t or std::bfloat16_t. Status::Unaligned if the bytes are not
    /// aligned for T, which happens only with Unaligned::Borrow.
    template <typename T>
    [[nodiscard]] Result<Span<const T>> as() const {
        if (std::optional<Error> error = mismatch<T>()) {
            return *std::move(error);
        }
        return Span<const T>(static_cast<const T*>(view_.data), view_.nbytes / sizeof(T));
    }

    /// The elements, for writing. Status::InvalidArgument unless the file was opened with MapMode::CopyOnWrite. The
    /// file stays as it is; every view of the tensor sees what is written.
    template <typename T>
    [[nodiscard]] Result<Span<T>> as_mutable() const {
        const Result<Span<std::byte>> writable = mutable_bytes();
        if (!writable) {
            return writable.error();
        }
        if (std::optional<Error> error = mismatch<T>()) {
            return *std::move(error);
        }
        void* data = writable->data();
        return Span<T>(static_cast<T*>(data), view_.nbytes / sizeof(T));
    }

    /// The bytes, for writing, as as_mutable().
    [[nodiscard]] Result<Span<std::byte>> mutable_bytes() const {
        void* data = nullptr;
        sa_error error;
        if (sa_view_writable(&view_, &data, &error) != SA_OK) {
            return detail::taken(error);
        }
        return Span<std::byte>(static_cast<std::byte*>(data), view_.nbytes);
    }

    /// Says how the bytes will be used; see sa_view_advise.
    [[nodiscard]] Result<void> advise(Advice advice) const {
        sa_error error;
        return detail::outcome(sa_view_advise(&view_, static_cast<std::int32_t>(advice), &error), error);
    }

    /// Empties the view and returns it: the caller passes its owner to sa_view_release. For an array type that takes a
    /// pointer and a deleter.
    [[nodiscard]] sa_view release() noexcept {
        (void)owner_.release();
        return std::exchange(view_, empty());
    }

    /// For calls of the C API. Still owned by this object.
    [[nodiscard]] const sa_view& get() const noexcept { return view_; }

private:
    static sa_view empty() noexcept { return detail::initialised<sa_view>(); }

    // Whether a T can be an element of that dtype.
    template <typename T>
    static bool is_element(Dtype dtype) noexcept {
        if (bits(dtype) != sizeof(T) * 8) {
            return false;
        }
#if defined(__STDCPP_FLOAT16_T__)
        if (std::is_same_v<T, std::float16_t>) {
            return dtype == Dtype::F16;
        }
#endif
#if defined(__STDCPP_BFLOAT16_T__)
        if (std::is_same_v<T, std::bfloat16_t>) {
            return dtype == Dtype::BF16;
        }
#endif
        return !std::is_floating_point_v<T> || dtype == Dtype::F32 || dtype == Dtype::F64;
    }

    template <typename T>
    std::optional<Error> mismatch() const {
        static_assert(std::is_trivially_copyable_v<T>, "the elements must be trivially copyable");
        if (!is_element<T>(dtype())) {
            return detail::invalid(std::string(name(dtype())) + " elements cannot be accessed as a " +
                                   (std::is_floating_point_v<T> ? "floating-point " : "") + "type of " +
                                   std::to_string(sizeof(T)) + " bytes");
        }
        const auto address = reinterpret_cast<std::uintptr_t>(view_.data);
        if (address % alignof(T) != 0) {
            return Error{Status::Unaligned, 0,
                         std::string(name(dtype())) + " elements are not at a multiple of " +
                             std::to_string(alignof(T)) + " bytes"};
        }
        return std::nullopt;
    }

    sa_view view_ = empty();
    std::unique_ptr<void, detail::ReleaseView> owner_ = nullptr;
};

/// An open file. Its views outlive it. Const calls are safe from several threads at once.
class File {
public:
    File() noexcept = default;

    /// Opens and maps a file, and checks its header and every offset; see sa_file_open for the statuses.
    [[nodiscard]] static Result<File> open(std::string_view path, const OpenOptions& options = {}) {
        const Result<std::string> source = detail::terminated(path, "path");
        if (!source) {
            return source.error();
        }
        return made(options, [&](const sa_open_options* c_options, sa_file** file, sa_error* error) {
            return sa_file_open(source->c_str(), c_options, file, error);
        });
    }

    /// Opens a model that is a part of a file. The descriptor is duplicated; see sa_file_open_descriptor.
    ///
    /// @param offset  Start of the model, in bytes from the start of the file.
    /// @param nbytes  Size of the model in bytes; by default it extends to the end of the file.
    [[nodiscard]] static Result<File> open_descriptor(int descriptor, std::uint64_t offset = 0,
                                                      std::uint64_t nbytes = SA_TO_END,
                                                      const OpenOptions& options = {}) {
        return made(options, [&](const sa_open_options* c_options, sa_file** file, sa_error* error) {
            return sa_file_open_descriptor(descriptor, offset, nbytes, c_options, file, error);
        });
    }

    /// Opens a model that is in memory, without a copy; see sa_file_open_memory.
    ///
    /// @param bytes    Must not change until the file and its views are gone.
    /// @param release  Empty, or called then, once. It must not throw. Not called if this call fails.
    [[nodiscard]] static Result<File> open_memory(Bytes bytes, std::function<void()> release = nullptr,
                                                  const OpenOptions& options = {}) {
        auto call = std::make_unique<std::function<void()>>(std::move(release));
        Result<File> file = made(options, [&](const sa_open_options* c_options, sa_file** out, sa_error* error) {
            return sa_file_open_memory(bytes.data(), bytes.size(), *call ? run : nullptr, call.get(), c_options, out,
                                       error);
        });
        if (file && *call) {
            (void)call.release();  // deleted by run
        }
        return file;
    }

    /// Number of tensors.
    [[nodiscard]] std::size_t size() const noexcept { return sa_file_len(file_.get()); }

    /// Describes a tensor. Tensors are indexed in the order of their data; Status::NotFound if the index is out of
    /// range.
    [[nodiscard]] Result<TensorInfo> at(std::size_t index) const {
        auto found = detail::initialised<sa_tensor_info>();
        sa_error error;
        if (sa_file_at(file_.get(), index, &found, &error) != SA_OK) {
            return detail::taken(error);
        }
        return detail::taken(found);
    }

    /// The index of a tensor; Status::NotFound if there is none of that name. Copies no string.
    [[nodiscard]] Result<std::size_t> find(std::string_view name) const {
        std::size_t index = 0;
        sa_error error;
        if (sa_file_find(file_.get(), detail::start_of(name), name.size(), &index, &error) != SA_OK) {
            return detail::taken(error);
        }
        return index;
    }

    /// The tensor of that name: without a copy, if its offset allows it.
    [[nodiscard]] Result<View> map(std::string_view name) const {
        auto view = detail::initialised<sa_view>();
        sa_error error;
        if (sa_map_tensor(file_.get(), detail::start_of(name), name.size(), &view, &error) != SA_OK) {
            return detail::taken(error);
        }
        return View(view);
    }

    /// The tensor with that index, as map().
    [[nodiscard]] Result<View> map_at(std::size_t index) const {
        auto view = detail::initialised<sa_view>();
        sa_error error;
        if (sa_map_tensor_at(file_.get(), index, &view, &error) != SA_OK) {
            return detail::taken(error);
        }
        return View(view);
    }

    /// The names of the tensors, in the order of their data. Valid as long as the file or any of its views.
    [[nodiscard]] std::vector<std::string_view> names() const {
        std::vector<std::string_view> out(size());
        for (std::size_t index = 0; index < out.size(); ++index) {
            auto found = detail::initialised<sa_tensor_info>();
            if (sa_file_at(file_.get(), index, &found, nullptr) == SA_OK) {
                out[index] = {found.name, found.name_len};
            }
        }
        return out;
    }

    /// The metadata in the order of the header. The strings are valid as long as the file or any of its views.
    [[nodiscard]] std::vector<std::pair<std::string_view, std::string_view>> metadata() const {
        std::vector<std::pair<std::string_view, std::string_view>> out(sa_file_metadata_len(file_.get()));
        for (std::size_t index = 0; index < out.size(); ++index) {
            sa_metadata entry{};
            if (sa_file_metadata_at(file_.get(), index, &entry, nullptr) == SA_OK) {
                out[index] = {{entry.key, entry.key_len}, {entry.value, entry.value_len}};
            }
        }
        return out;
    }

    /// Every byte of the file, for engines that make one buffer of it. Valid as long as the file or any of its views.
    [[nodiscard]] Bytes bytes() const noexcept { return whole().first; }

    /// Start of the data section, in bytes from the start of the file.
    [[nodiscard]] std::uint64_t data_start() const noexcept { return whole().second; }

    /// Counts of what is in the file and of what has been handed out of it.
    [[nodiscard]] Stats stats() const noexcept {
        auto found = detail::initialised<sa_stats>();
        (void)sa_file_stats(file_.get(), &found, nullptr);
        return detail::taken(found);
    }

    /// The path that the file was opened by; empty for a descriptor or memory. Valid as long as the file.
    [[nodiscard]] std::string_view path() const noexcept {
        const char* path = sa_file_path(file_.get());
        return path == nullptr ? std::string_view() : std::string_view(path);
    }

    /// A descriptor of the file, and where the model starts in it, in bytes. It belongs to this object: do not close
    /// it, and read with pread. Status::Changed if the path names another file by now; see sa_file_descriptor.
    [[nodiscard]] Result<std::pair<int, std::uint64_t>> descriptor() const {
        std::pair<int, std::uint64_t> found(-1, 0);
        sa_error error;
        if (sa_file_descriptor(file_.get(), &found.first, &found.second, &error) != SA_OK) {
            return detail::taken(error);
        }
        return found;
    }

    /// Whether the path that the file was opened by still names this file, unmodified; see sa_file_is_current.
    [[nodiscard]] Result<bool> is_current() const {
        std::int32_t found = 0;
        sa_error error;
        if (sa_file_is_current(file_.get(), &found, &error) != SA_OK) {
            return detail::taken(error);
        }
        return found != 0;
    }

    /// Closes the file, as the destructor does. Views stay valid.
    void close() noexcept { file_.reset(); }

    /// For calls of the C API. Still owned by this object.
    [[nodiscard]] const sa_file* get() const noexcept { return file_.get(); }

private:
    explicit File(sa_file* file) noexcept : file_(file) {}

    template <typename Open>
    static Result<File> made(const OpenOptions& options, const Open& open) {
        const Result<std::string> cache = detail::terminated(options.aligned_cache, "aligned_cache");
        if (!cache) {
            return cache.error();
        }
        const sa_open_options c_options = detail::lowered(options);
        sa_file* file = nullptr;
        sa_error error;
        if (open(&c_options, &file, &error) != SA_OK) {
            return detail::taken(error);
        }
        return File(file);
    }

    static void run(void* context) noexcept {
        const std::unique_ptr<std::function<void()>> call(static_cast<std::function<void()>*>(context));
        (*call)();
    }

    std::pair<Bytes, std::uint64_t> whole() const noexcept {
        const void* base = nullptr;
        std::size_t nbytes = 0;
        std::uint64_t data_start = 0;
        (void)sa_file_base(file_.get(), &base, &nbytes, &data_start, nullptr);
        return {bytes_of(base, nbytes), data_start};
    }

    std::unique_ptr<sa_file, detail::FreeFile> file_ = nullptr;
};

/// A range of bytes of a file or a mapping.
struct ByteRange {
    /// In bytes from the start of the file.
    std::uint64_t offset = 0;
    /// In bytes.
    std::uint64_t nbytes = 0;
};

/// A part of a mapping for one buffer of a device, and the tensors that are in it; see cut_windows().
struct Window {
    /// Start in bytes from the start of the mapping: a multiple of the page size.
    std::uint64_t offset = 0;
    /// Size in bytes: a multiple of the page size. The last page may extend beyond the end of the file.
    std::uint64_t nbytes = 0;
    /// Index of the first tensor in the window.
    std::size_t first = 0;
    /// Number of tensors in the window, which are consecutive.
    std::size_t count = 0;
};

/// Cuts a mapping into windows, each for one buffer of a device that takes whole pages and limits the length of a
/// buffer, such as a Metal or Vulkan buffer over external memory.
///
/// A window starts and ends at a page boundary and has whole tensors. Neighbouring windows may share a page. Consecutive
/// tensors share a window up to `preferred_bytes`; a larger tensor has a window of its own, up to `max_bytes`. A tensor
/// that needs more than `max_bytes` is in no window. Offsets within a window are congruent to those in the file modulo
/// the page size, so alignment up to a page is kept.
///
/// Pure arithmetic, in linear time. Not part of the C ABI.
///
/// @param tensors          The tensors to be shared, in the order of their offsets, as File::at() returns them. The
///                         mapping starts at offset 0. Leave out tensors that are empty or copied.
/// @param page_size        In bytes; a power of two.
/// @param max_bytes        The longest buffer of the device in bytes.
/// @param preferred_bytes  The size up to which tensors share a window, in bytes. Small windows become resident
///                         gradually; each costs a buffer.
/// @return The windows, in the order of their offsets.
[[nodiscard]] inline std::vector<Window> cut_windows(Span<const ByteRange> tensors, std::uint64_t page_size,
                                                     std::uint64_t max_bytes, std::uint64_t preferred_bytes) {
    std::vector<Window> windows;
    bool is_open = false;
    for (std::size_t index = 0; index < tensors.size(); ++index) {
        const std::uint64_t begin = tensors[index].offset / page_size * page_size;
        // Not rounded up by an addition that may overflow.
        const std::uint64_t last = tensors[index].offset + tensors[index].nbytes;
        const std::uint64_t end = last / page_size * page_size + (last % page_size == 0 ? 0 : page_size);
        if (end - begin > max_bytes) {
            is_open = false;
            continue;
        }
        if (is_open) {
            Window& open = windows.back();
            if (end - open.offset <= max_bytes && end - open.offset <= preferred_bytes) {
                open.nbytes = end - open.offset;
                ++open.count;
                continue;
            }
        }
        windows.push_back({begin, end - begin, index, 1});
        is_open = true;
    }
    return windows;
}

/// An open bundle: a model file, the shards of one model, or an index with its shards, as if their tensors were in one
/// file. Its views outlive it. Const calls are safe from several threads at once.
class Bundle {
public:
    Bundle() noexcept = default;

    /// Opens and maps the bundle at `path`: a directory, an index or a model file. See sa_bundle_open for the rules and
    /// the statuses.
    [[nodiscard]] static Result<Bundle> open(std::string_view path, const OpenOptions& options = {}) {
        const Result<std::string> source = detail::terminated(path, "path");
        if (!source) {
            return source.error();
        }
        const Result<std::string> cache = detail::terminated(options.aligned_cache, "aligned_cache");
        if (!cache) {
            return cache.error();
        }
        const sa_open_options c_options = detail::lowered(options);
        sa_bundle* bundle = nullptr;
        sa_error error;
        if (sa_bundle_open(source->c_str(), &c_options, &bundle, &error) != SA_OK) {
            return detail::taken(error);
        }
        return Bundle(bundle);
    }

    /// Takes over one reference of the C API.
    explicit Bundle(sa_bundle* bundle) noexcept : bundle_(bundle) {}

    /// Number of tensors.
    [[nodiscard]] std::size_t size() const noexcept { return sa_bundle_len(bundle_.get()); }

    /// Describes a tensor; its offset is in its shard. Status::NotFound if the index is out of range.
    [[nodiscard]] Result<TensorInfo> at(std::size_t index) const {
        auto found = detail::initialised<sa_tensor_info>();
        sa_error error;
        if (sa_bundle_at(bundle_.get(), index, &found, nullptr, &error) != SA_OK) {
            return detail::taken(error);
        }
        return detail::taken(found);
    }

    /// The shard that has the tensor with that index, from 0 to shard_count() - 1.
    [[nodiscard]] Result<std::size_t> shard_of(std::size_t index) const {
        auto found = detail::initialised<sa_tensor_info>();
        std::size_t shard = 0;
        sa_error error;
        if (sa_bundle_at(bundle_.get(), index, &found, &shard, &error) != SA_OK) {
            return detail::taken(error);
        }
        return shard;
    }

    /// The index of a tensor; Status::NotFound if there is none of that name. Copies no string.
    [[nodiscard]] Result<std::size_t> find(std::string_view name) const {
        std::size_t index = 0;
        sa_error error;
        if (sa_bundle_find(bundle_.get(), detail::start_of(name), name.size(), &index, &error) != SA_OK) {
            return detail::taken(error);
        }
        return index;
    }

    /// The tensor of that name: without a copy, if its offset allows it.
    [[nodiscard]] Result<View> map(std::string_view name) const {
        auto view = detail::initialised<sa_view>();
        sa_error error;
        if (sa_bundle_map(bundle_.get(), detail::start_of(name), name.size(), &view, &error) != SA_OK) {
            return detail::taken(error);
        }
        return View(view);
    }

    /// The tensor with that index, as map().
    [[nodiscard]] Result<View> map_at(std::size_t index) const {
        auto view = detail::initialised<sa_view>();
        sa_error error;
        if (sa_bundle_map_at(bundle_.get(), index, &view, &error) != SA_OK) {
            return detail::taken(error);
        }
        return View(view);
    }

    /// The names of the tensors, in the order of their indices. Valid as long as the bundle.
    [[nodiscard]] std::vector<std::string_view> names() const {
        std::vector<std::string_view> out(size());
        for (std::size_t index = 0; index < out.size(); ++index) {
            auto found = detail::initialised<sa_tensor_info>();
            if (sa_bundle_at(bundle_.get(), index, &found, nullptr, nullptr) == SA_OK) {
                out[index] = {found.name, found.name_len};
            }
        }
        return out;
    }

    /// The metadata of the index, or of the first shard if there is no index. The strings are valid as long as the
    /// bundle.
    [[nodiscard]] std::vector<std::pair<std::string_view, std::string_view>> metadata() const {
        std::vector<std::pair<std::string_view, std::string_view>> out(sa_bundle_metadata_len(bundle_.get()));
        for (std::size_t index = 0; index < out.size(); ++index) {
            sa_metadata entry{};
            if (sa_bundle_metadata_at(bundle_.get(), index, &entry, nullptr) == SA_OK) {
                out[index] = {{entry.key, entry.key_len}, {entry.value, entry.value_len}};
            }
        }
        return out;
    }

    /// The sums of the counts of all shards.
    [[nodiscard]] Stats stats() const noexcept {
        auto found = detail::initialised<sa_stats>();
        (void)sa_bundle_stats(bundle_.get(), &found, nullptr);
        return detail::taken(found);
    }

    /// Number of shards.
    [[nodiscard]] std::size_t shard_count() const noexcept { return sa_bundle_shard_len(bundle_.get()); }

    /// A shard, for calls of the C API; null if it is out of range. Valid as long as the bundle.
    [[nodiscard]] const sa_file* shard(std::size_t shard) const noexcept {
        return sa_bundle_shard(bundle_.get(), shard);
    }

    /// Whether every file of the bundle, and its index, is still the one that its path names, unmodified.
    [[nodiscard]] Result<bool> is_current() const {
        std::int32_t found = 0;
        sa_error error;
        if (sa_bundle_is_current(bundle_.get(), &found, &error) != SA_OK) {
            return detail::taken(error);
        }
        return found != 0;
    }

    /// Closes the bundle, as the destructor does. Views stay valid.
    void close() noexcept { bundle_.reset(); }

    /// For calls of the C API. Still owned by this object.
    [[nodiscard]] const sa_bundle* get() const noexcept { return bundle_.get(); }

private:
    std::unique_ptr<sa_bundle, detail::FreeBundle> bundle_ = nullptr;
};

/// A place that holds a bundle, for programs that reload a model while other threads use it. get() and set() are safe
/// to call from several threads at once.
class BundleSlot {
public:
    /// Empty until make().
    BundleSlot() noexcept = default;

    /// A slot that holds a bundle. The bundle stays usable by the caller.
    [[nodiscard]] static Result<BundleSlot> make(const Bundle& bundle) {
        sa_bundle_slot* slot = nullptr;
        sa_error error;
        if (sa_bundle_slot_new(bundle.get(), &slot, &error) != SA_OK) {
            return detail::taken(error);
        }
        return BundleSlot(slot);
    }

    /// The bundle that the slot holds. It stays valid after set().
    [[nodiscard]] Result<Bundle> get() const {
        sa_bundle* bundle = nullptr;
        sa_error error;
        if (sa_bundle_slot_get(slot_.get(), &bundle, &error) != SA_OK) {
            return detail::taken(error);
        }
        return Bundle(bundle);
    }

    /// Replaces the bundle in one step: every later get() returns the new one.
    [[nodiscard]] Result<void> set(const Bundle& bundle) const {
        sa_error error;
        return detail::outcome(sa_bundle_slot_set(slot_.get(), bundle.get(), &error), error);
    }

private:
    explicit BundleSlot(sa_bundle_slot* slot) noexcept : slot_(slot) {}

    std::unique_ptr<sa_bundle_slot, detail::FreeBundleSlot> slot_ = nullptr;
};

}  // namespace safealign

#if defined(__cpp_lib_ranges)
// A span does not own its elements: its iterators outlive it, and a temporary one converts to a std::span.
template <typename T>
inline constexpr bool std::ranges::enable_borrowed_range<safealign::Span<T>> = true;
template <typename T>
inline constexpr bool std::ranges::enable_view<safealign::Span<T>> = true;
#endif

#undef SAFEALIGN_EXCEPTIONS
#undef SAFEALIGN_VARIANT

#endif  // SAFEALIGN_HPP
