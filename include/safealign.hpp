/*
 * safealign for C++17: owning types over safealign.h, header only. It adds nothing to the ABI.
 *
 * Conventions, beside those of safealign.h
 *
 *  1. What can fail returns a Result, which says why. Nothing here throws but value_or_throw(), an allocation that
 *     finds no memory, and what a progress callback of yours throws. All of it also compiles with -fno-exceptions and
 *     -fno-rtti; value_or_throw() and Exception are then not there.
 *  2. File, Plan and Writer are move-only. One that was moved from, or made by no open(), is empty: it counts 0 tensors
 *     and its calls give Status::InvalidArgument. A View is counted: a copy costs one atomic increment.
 *  3. Texts and spans handed out belong to the object that they came from; each comment says how long they live.
 *  4. Const calls on one object are safe from several threads at once; other calls are not, unless the comment says so.
 */

#ifndef SAFEALIGN_HPP
#define SAFEALIGN_HPP

#include "safealign.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// A program may have source files with and without exceptions: what differs between them gets names that differ.
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
#endif

namespace safealign {

/// What a call came to; see sa_status.
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

/// How tensors are made to stand on aligned offsets; see sa_layout.
enum class Layout : std::int32_t { Compact = SA_LAYOUT_COMPACT, Padded = SA_LAYOUT_PADDED };

/// Whether a write waits until the file is on the disk; see sa_durability.
enum class Durability : std::int32_t { Durable = SA_DURABLE, NotDurable = SA_NOT_DURABLE };

/// How a file is mapped; see sa_map_mode.
enum class MapMode : std::int32_t { Shared = SA_MAP_SHARED, CopyOnWrite = SA_MAP_COPY_ON_WRITE };

/// What mapping a misaligned tensor gives; see sa_unaligned.
enum class Unaligned : std::int32_t {
    Copy = SA_UNALIGNED_COPY,
    Error = SA_UNALIGNED_ERROR,
    Borrow = SA_UNALIGNED_BORROW,
    /// Needs an overlay_dir.
    Overlay = SA_UNALIGNED_OVERLAY,
};

/// What opening does about the pages of the file that are not in memory yet; see sa_read_ahead.
enum class ReadAhead : std::int32_t {
    None = SA_READ_AHEAD_NONE,
    Populate = SA_READ_AHEAD_POPULATE,
    Background = SA_READ_AHEAD_BACKGROUND,
};

/// What stands between the end of the JSON and the data section; see sa_header_padding.
enum class HeaderPadding : std::int32_t {
    None = SA_HEADER_PADDING_NONE,
    Spaces = SA_HEADER_PADDING_SPACES,
    Whitespace = SA_HEADER_PADDING_WHITESPACE,
    Nul = SA_HEADER_PADDING_NUL,
};

/// What came of a repair; see sa_repair_action.
enum class RepairAction : std::int32_t {
    Untouched = SA_REPAIR_UNTOUCHED,
    Copied = SA_REPAIR_COPIED,
    Rewritten = SA_REPAIR_REWRITTEN,
};

/// Where a view's bytes are; see sa_origin.
enum class Origin : std::int32_t { Mapped = SA_ORIGIN_MAPPED, Copied = SA_ORIGIN_COPIED };

/// How a view's bytes will be used; see sa_advice.
enum class Advice : std::int32_t {
    WillNeed = SA_ADVICE_WILL_NEED,
    DoNotNeed = SA_ADVICE_DO_NOT_NEED,
    Random = SA_ADVICE_RANDOM,
    Sequential = SA_ADVICE_SEQUENTIAL,
};

/// The name of the status in the C header, such as "SA_ERR_FORMAT". Never freed.
[[nodiscard]] inline std::string_view name(Status status) noexcept {
    return sa_status_name(static_cast<std::int32_t>(status));
}

/// The name of the dtype as it stands in a file, such as "BF16". Never freed.
[[nodiscard]] inline std::string_view name(Dtype dtype) noexcept {
    return sa_dtype_name(static_cast<std::int32_t>(dtype));
}

/// Bits of an element: 4, 6, 8, 16, 32 or 64.
[[nodiscard]] inline std::uint32_t bits(Dtype dtype) noexcept {
    return sa_dtype_bits(static_cast<std::int32_t>(dtype));
}

/// Why a call failed.
struct Error {
    Status status = Status::Ok;
    /// The system's error number (errno), 0 where no system call failed.
    int os_error = 0;
    /// Lower case; names the file, the tensor in backticks, and the numbers.
    std::string message;
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

namespace detail {

// Asking a failure for its value has no answer, and going on would be undefined.
[[noreturn]] inline void no_value(const Error& error) noexcept {
    std::fprintf(stderr, "safealign: value() of a failed call: %s\n", error.message.c_str());
    std::abort();
}

[[noreturn]] inline void no_error() noexcept {
    std::fputs("safealign: error() of a call that succeeded\n", stderr);
    std::abort();
}

}  // namespace detail

/// A value, or why there is none.
///
/// Ask it first: value() of a failure and error() of a success end the program with a message.
template <typename T>
class [[nodiscard]] Result {
public:
    Result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : held_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] bool has_value() const noexcept { return held_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

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

#if SAFEALIGN_EXCEPTIONS
    /// The value; throws Exception where there is none.
    T& value_or_throw() & {
        throw_error();
        return value();
    }
    const T& value_or_throw() const& {
        throw_error();
        return value();
    }
    T value_or_throw() && {
        throw_error();
        return std::move(value());
    }
#endif

private:
#if SAFEALIGN_EXCEPTIONS
    void throw_error() const {
        if (!has_value()) {
            throw Exception(error());
        }
    }
#endif

    std::variant<T, Error> held_;
};

/// Success, or why not.
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

#if SAFEALIGN_EXCEPTIONS
    void value_or_throw() const {
        if (error_) {
            throw Exception(*error_);
        }
    }
#endif

private:
    std::optional<Error> error_;
};

/// Elements that belong to somebody else: a pointer and a count. Becomes a std::span where there is one.
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

    /// From anything contiguous: a vector, an array, a std::span. It has to outlive the span.
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
    /// Not checked: the index has to be less than size().
    [[nodiscard]] constexpr T& operator[](std::size_t index) const { return data_[index]; }

private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

/// Bytes that belong to somebody else.
using Bytes = Span<const std::byte>;

/// The bytes of an object's elements: of a vector, an array, a std::span of numbers. It has to outlive them.
template <typename Container>
[[nodiscard]] Bytes bytes_of(const Container& elements) noexcept {
    using Element = std::remove_reference_t<decltype(*std::data(elements))>;
    static_assert(std::is_trivially_copyable_v<Element>, "only plain elements are their bytes");
    return {reinterpret_cast<const std::byte*>(std::data(elements)), std::size(elements) * sizeof(Element)};
}

/// `nbytes` bytes from `data` on.
[[nodiscard]] inline Bytes bytes_of(const void* data, std::size_t nbytes) noexcept {
    return {static_cast<const std::byte*>(data), nbytes};
}

/// A tensor to be written. The name and the data are borrowed, and have to last until the call returns.
struct Tensor {
    /// UTF-8, without a NUL byte, not `__metadata__`, unlike every other name of the file. May be empty.
    std::string_view name;
    Dtype dtype = Dtype::U8;
    /// Elements in each dimension; empty for a scalar. Owned, so that a braced list does not dangle.
    std::vector<std::uint64_t> shape;
    /// The elements in row-major order, little-endian, at any address; as many bytes as dtype and shape make.
    Bytes data;
};

/// A tensor whose data comes later, or through a stream of the caller's. The name is borrowed for the call.
struct TensorSpec {
    /// As in Tensor.
    std::string_view name;
    Dtype dtype = Dtype::U8;
    /// Elements in each dimension; empty for a scalar.
    std::vector<std::uint64_t> shape;
    /// Bytes of data; has to be what dtype and shape make.
    std::size_t nbytes = 0;
};

/// Keys and values, in order.
using Metadata = std::vector<std::pair<std::string, std::string>>;

/// Called while a file is written, on the thread that writes, with the bytes done and the bytes in all. True to go on;
/// false cancels, and the target stays as it was.
///
/// What it throws cancels too, and comes out of write_aligned(), repair() or overlay_bundle() once the library's frames are gone.
using Progress = std::function<bool(std::uint64_t bytes_done, std::uint64_t bytes_total)>;

namespace detail {

template <typename Options, void (*init)(Options*)>
Options initialised() noexcept {
    Options options;
    init(&options);
    return options;
}

inline sa_write_options write_defaults() noexcept {
    return initialised<sa_write_options, sa_write_options_init>();
}

inline sa_open_options open_defaults() noexcept {
    return initialised<sa_open_options, sa_open_options_init>();
}

inline sa_scan_options scan_defaults() noexcept {
    return initialised<sa_scan_options, sa_scan_options_init>();
}

inline sa_repair_options repair_defaults() noexcept {
    return initialised<sa_repair_options, sa_repair_options_init>();
}

}  // namespace detail

/// How to write.
struct WriteOptions {
    /// In bytes: a power of two from 8 to 2097152; 64 by default.
    std::uint64_t alignment = detail::write_defaults().alignment;
    Layout layout = static_cast<Layout>(detail::write_defaults().layout);
    Durability durability = static_cast<Durability>(detail::write_defaults().durability);
    /// Not called by Writer.
    Progress progress = nullptr;
};

/// What was written; sizes in bytes.
struct WriteReport {
    std::uint64_t file_size = 0;
    /// Where the data section starts.
    std::uint64_t data_start = 0;
    /// Zero bytes between tensors, in all; 0 in the compact layout.
    std::uint64_t padding = 0;
    std::uint64_t tensors = 0;
    /// Tensors whose place in the file is not their place in the input.
    std::uint64_t tensors_moved = 0;
};

/// Where one tensor goes; in bytes.
struct Placement {
    /// Position of the tensor in the list that the plan was made from.
    std::size_t input_index = 0;
    /// Its first byte, counted from the start of the file.
    std::uint64_t offset = 0;
    std::uint64_t nbytes = 0;
    /// Zero bytes to write before it.
    std::uint64_t padding_before = 0;
};

/// How to open a file.
struct OpenOptions {
    MapMode map_mode = static_cast<MapMode>(detail::open_defaults().map_mode);
    Unaligned unaligned = static_cast<Unaligned>(detail::open_defaults().unaligned);
    ReadAhead read_ahead = static_cast<ReadAhead>(detail::open_defaults().read_ahead);
    /// Refuse everything that the reference reader refuses.
    bool strict = detail::open_defaults().strict != 0;
    /// The folder of the twins of Unaligned::Overlay.
    std::string overlay_dir = {};
};

/// What is known of an open file, and what was handed out of it so far; see sa_stats.
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
    /// False if the file system cannot map, and the file was read into memory.
    bool is_mapped = false;
};

/// What a file has of one dtype; sizes in bytes.
struct DtypeUse {
    /// As it stands in the header.
    std::string name;
    /// Nothing for one that the format does not know.
    std::optional<Dtype> dtype;
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;
    std::uint64_t misaligned_tensors = 0;
    std::uint64_t misaligned_bytes = 0;
};

/// What the header says of a file; sizes in bytes. See sa_scan_report.
struct ScanReport {
    std::uint64_t file_size = 0;
    std::uint64_t header_len = 0;
    std::uint64_t data_start = 0;
    std::uint64_t tensors = 0;
    std::uint64_t tensor_bytes = 0;
    std::uint64_t misaligned_tensors = 0;
    /// What a loader that maps has to copy.
    std::uint64_t misaligned_bytes = 0;
    /// Tensors that do not stand on a multiple of the alignment that was asked about.
    std::uint64_t tensors_below_alignment = 0;
    std::uint64_t gaps = 0;
    std::uint64_t gap_bytes = 0;
    std::uint64_t trailing_bytes = 0;
    std::uint64_t unknown_dtype_tensors = 0;
    HeaderPadding header_padding = HeaderPadding::None;
    /// Why the reference reader would not open the file, and the same in a word such as "HOLE"; empty if it would.
    std::string nonconforming;
    std::string nonconforming_reason;
    /// Most bytes first.
    std::vector<DtypeUse> dtypes;

    /// Whether the reference reader would open the file.
    [[nodiscard]] bool conforms() const noexcept { return nonconforming_reason.empty(); }
};

/// How to repair, and how an overlay is made.
struct RepairOptions {
    /// In bytes: a power of two from 8 to 2097152; 64 by default.
    std::uint64_t alignment = detail::repair_defaults().alignment;
    Layout layout = static_cast<Layout>(detail::repair_defaults().layout);
    Durability durability = static_cast<Durability>(detail::repair_defaults().durability);
    /// Read back every tensor and compare it with the source's before the file is put in place.
    bool compare = detail::repair_defaults().compare != 0;
    /// Leave out bytes after the last tensor; without it a file that would lose some is refused.
    bool drop_trailing = detail::repair_defaults().drop_trailing != 0;
    /// Lay the file out anew even where nothing is wrong with it. Not for overlays.
    bool force = detail::repair_defaults().force != 0;
    /// Check everything, report what would be done, and do nothing. Not for overlays.
    bool dry_run = detail::repair_defaults().dry_run != 0;
    Progress progress = nullptr;
};

/// What a repair did; sizes in bytes. See sa_repair_report.
struct RepairReport {
    RepairAction action = RepairAction::Untouched;
    std::uint64_t tensors = 0;
    std::uint64_t tensors_moved = 0;
    /// Of the source. None is left.
    std::uint64_t misaligned_tensors = 0;
    std::uint64_t misaligned_bytes = 0;
    std::uint64_t source_size = 0;
    std::uint64_t source_gap_bytes = 0;
    std::uint64_t source_trailing_bytes = 0;
    /// Of the file as it is now: at the destination, or in place.
    std::uint64_t file_size = 0;
    std::uint64_t data_start = 0;
    std::uint64_t padding = 0;
    std::uint64_t bytes_compared = 0;
};

/// What an overlay has; sizes in bytes. See sa_overlay_report.
struct OverlayReport {
    std::uint64_t written = 0;
    std::uint64_t bytes_written = 0;
    std::uint64_t kept = 0;
    std::uint64_t bytes_kept = 0;
    std::uint64_t linked = 0;
    std::uint64_t removed = 0;
    /// Files that could not be mended and were linked, left out, or left in the output; scan the bundle to learn which.
    std::uint64_t warnings = 0;
};

/// A tensor as the header describes it. Name and shape live as long as the file or any of its views.
struct TensorInfo {
    std::string_view name;
    Dtype dtype = Dtype::U8;
    Span<const std::uint64_t> shape;
    /// First byte, counted from the start of the file.
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

// C reads a length of 0 as "ends with a NUL", and an empty view need not point to one.
inline const char* start_of(std::string_view text) noexcept {
    return text.empty() ? "" : text.data();
}

// Where C takes a text that ends with a NUL. One inside would cut it short, and another file or tensor be meant.
inline Result<std::string> terminated(std::string_view text, const char* argument) {
    if (text.find('\0') != std::string_view::npos) {
        return invalid(std::string("`") + argument + "` has a NUL byte");
    }
    return std::string(text);
}

inline sa_tensor lowered(std::string_view name, Dtype dtype, const std::vector<std::uint64_t>& shape, const void* data,
                         std::size_t nbytes) noexcept {
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
        out.push_back(lowered(tensor.name, tensor.dtype, tensor.shape, nullptr, tensor.nbytes));
    }
    return out;
}

inline std::vector<sa_metadata> lowered(const Metadata& metadata) {
    std::vector<sa_metadata> out;
    out.reserve(metadata.size());
    for (const auto& [key, value] : metadata) {
        out.push_back({key.c_str(), value.c_str(), key.size(), value.size()});
    }
    return out;
}

inline sa_write_options lowered(const WriteOptions& options) noexcept {
    sa_write_options out = write_defaults();
    out.alignment = options.alignment;
    out.layout = static_cast<std::int32_t>(options.layout);
    out.durability = static_cast<std::int32_t>(options.durability);
    return out;
}

inline sa_repair_options lowered(const RepairOptions& options) noexcept {
    sa_repair_options out = repair_defaults();
    out.alignment = options.alignment;
    out.layout = static_cast<std::int32_t>(options.layout);
    out.durability = static_cast<std::int32_t>(options.durability);
    out.compare = options.compare ? 1 : 0;
    out.drop_trailing = options.drop_trailing ? 1 : 0;
    out.force = options.force ? 1 : 0;
    out.dry_run = options.dry_run ? 1 : 0;
    return out;
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
    out.padding = report.padding;
    out.bytes_compared = report.bytes_compared;
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
    return {report.file_size, report.data_start, report.padding, report.tensors, report.tensors_moved};
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
struct AbortWriter {
    void operator()(sa_writer* writer) const noexcept { sa_writer_abort(writer); }
};
struct ReleaseView {
    void operator()(void* owner) const noexcept { sa_view_release(owner); }
};

}  // namespace detail

/// The dtype of a name such as "BF16"; case matters. Status::Unsupported if the format has no such dtype.
[[nodiscard]] inline Result<Dtype> dtype_from_name(std::string_view name) {
    const Result<std::string> text = detail::terminated(name, "name");
    if (!text) {
        return text.error();
    }
    sa_error error;
    std::int32_t dtype = 0;
    if (sa_dtype_from_name(text->c_str(), &dtype, &error) != SA_OK) {
        return detail::taken(error);
    }
    return static_cast<Dtype>(dtype);
}

/// What the header says of a file: which tensors a loader that maps has to copy, and what is odd. Never reads the data.
///
/// @param alignment  What ScanReport::tensors_below_alignment is about, in bytes: a power of two from 8 to 2097152.
[[nodiscard]] inline Result<ScanReport> scan(std::string_view path,
                                             std::uint64_t alignment = detail::scan_defaults().alignment) {
    const Result<std::string> source = detail::terminated(path, "path");
    if (!source) {
        return source.error();
    }
    sa_scan_options options = detail::scan_defaults();
    options.alignment = alignment;
    sa_scan* made = nullptr;
    sa_error error;
    if (sa_scan_file(source->c_str(), &options, &made, &error) != SA_OK) {
        return detail::taken(error);
    }
    const std::unique_ptr<sa_scan, detail::FreeScan> scan(made);
    sa_scan_report found;
    sa_scan_report_init(&found);
    if (sa_scan_get(scan.get(), &found, &error) != SA_OK) {
        return detail::taken(error);
    }
    ScanReport report = detail::taken(found);
    report.dtypes.reserve(found.dtypes);
    for (std::size_t index = 0; index < found.dtypes; ++index) {
        sa_scan_dtype row;
        sa_scan_dtype_init(&row);
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

// Carries a progress callback, and what it throws, over the C frames between it and the caller.
struct ProgressCall {
    const Progress* progress;
#if SAFEALIGN_EXCEPTIONS
    std::exception_ptr thrown;
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
};

}  // namespace detail_of_progress

/// Writes a file whose tensors all stand on multiples of their dtype width, so that a loader can map every one.
///
/// Whatever fails, the file at `path` is the old one or the new one, whole; a file that is mapped may be saved over. See
/// sa_write_aligned for the statuses.
[[nodiscard]] inline Result<WriteReport> write_aligned(std::string_view path, const std::vector<Tensor>& tensors,
                                                       const Metadata& metadata = {},
                                                       const WriteOptions& options = {}) {
    const Result<std::string> target = detail::terminated(path, "path");
    if (!target) {
        return target.error();
    }
    const std::vector<sa_tensor> c_tensors = detail::lowered(tensors);
    const std::vector<sa_metadata> c_metadata = detail::lowered(metadata);
    sa_write_options c_options = detail::lowered(options);
    detail_of_progress::ProgressCall call{};
    if (options.progress) {
        call.progress = &options.progress;
        c_options.progress = detail_of_progress::ProgressCall::step;
        c_options.progress_context = &call;
    }
    sa_write_report report;
    sa_write_report_init(&report);
    sa_error error;
    const sa_status status = sa_write_aligned(target->c_str(), c_tensors.data(), c_tensors.size(), c_metadata.data(),
                                              c_metadata.size(), &c_options, &report, &error);
#if SAFEALIGN_EXCEPTIONS
    if (call.thrown) {
        std::rethrow_exception(call.thrown);
    }
#endif
    if (status != SA_OK) {
        return detail::taken(error);
    }
    return detail::taken(report);
}

/// Writes a file anew so that every tensor maps without a copy: to `destination`, or in place where that is nullopt.
///
/// Whatever fails, the file at the path is the old one or the new one, whole. See sa_repair_file for what is mended and
/// for the statuses; Status::Refused comes with the way out in the message.
[[nodiscard]] inline Result<RepairReport> repair(std::string_view source, std::optional<std::string_view> destination,
                                                 const RepairOptions& options = {}) {
    const Result<std::string> from = detail::terminated(source, "source");
    if (!from) {
        return from.error();
    }
    const Result<std::string> to = detail::terminated(destination.value_or(std::string_view()), "destination");
    if (!to) {
        return to.error();
    }
    sa_repair_options c_options = detail::lowered(options);
    detail_of_progress::ProgressCall call{};
    if (options.progress) {
        call.progress = &options.progress;
        c_options.progress = detail_of_progress::ProgressCall::step;
        c_options.progress_context = &call;
    }
    sa_repair_report report;
    sa_repair_report_init(&report);
    sa_error error;
    const sa_status status =
        sa_repair_file(from->c_str(), destination ? to->c_str() : nullptr, &c_options, &report, &error);
#if SAFEALIGN_EXCEPTIONS
    if (call.thrown) {
        std::rethrow_exception(call.thrown);
    }
#endif
    if (status != SA_OK) {
        return detail::taken(error);
    }
    return detail::taken(report);
}

/// Makes `output` a folder that loads in place of the folder `bundle`, which stays as it is: misaligned files are written
/// repaired, everything else is a symbolic link. Run again, it does only what is missing or stale.
///
/// See sa_overlay_bundle for the statuses. For one file that is to be opened there is Unaligned::Overlay.
[[nodiscard]] inline Result<OverlayReport> overlay_bundle(std::string_view bundle, std::string_view output,
                                                          const RepairOptions& options = {}) {
    const Result<std::string> from = detail::terminated(bundle, "bundle");
    if (!from) {
        return from.error();
    }
    const Result<std::string> to = detail::terminated(output, "output");
    if (!to) {
        return to.error();
    }
    sa_repair_options c_options = detail::lowered(options);
    detail_of_progress::ProgressCall call{};
    if (options.progress) {
        call.progress = &options.progress;
        c_options.progress = detail_of_progress::ProgressCall::step;
        c_options.progress_context = &call;
    }
    sa_overlay_report report;
    sa_overlay_report_init(&report);
    sa_error error;
    const sa_status status = sa_overlay_bundle(from->c_str(), to->c_str(), &c_options, &report, &error);
#if SAFEALIGN_EXCEPTIONS
    if (call.thrown) {
        std::rethrow_exception(call.thrown);
    }
#endif
    if (status != SA_OK) {
        return detail::taken(error);
    }
    return OverlayReport{report.written, report.bytes_written, report.kept,    report.bytes_kept,
                         report.linked,  report.removed,       report.warnings};
}

}  // namespace SAFEALIGN_VARIANT

/// Where everything of a file goes, without the file, for a program that writes through a stream of its own. Never
/// changes once made.
class Plan {
public:
    Plan() noexcept = default;

    /// Lays out a file: pure arithmetic, no I/O. It borrows nothing. Of the options it takes layout and alignment.
    [[nodiscard]] static Result<Plan> make(const std::vector<TensorSpec>& tensors, const Metadata& metadata = {},
                                           const WriteOptions& options = {}) {
        return make(detail::lowered(tensors), metadata, options);
    }
    [[nodiscard]] static Result<Plan> make(const std::vector<Tensor>& tensors, const Metadata& metadata = {},
                                           const WriteOptions& options = {}) {
        return make(detail::lowered(tensors), metadata, options);
    }

    /// The first bytes of the file: the 8-byte length, the JSON, the padding. They live as long as the plan.
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
        sa_placement found;
        sa_error error;
        if (sa_plan_at(plan_.get(), position, &found, &error) != SA_OK) {
            return detail::taken(error);
        }
        return Placement{found.input_index, found.offset, found.nbytes, found.padding_before};
    }

    /// Bytes of the whole file.
    [[nodiscard]] std::uint64_t file_size() const noexcept { return sa_plan_file_size(plan_.get()); }

    /// For calls of the C API. Still owned by this object.
    [[nodiscard]] const sa_plan* get() const noexcept { return plan_.get(); }

private:
    explicit Plan(sa_plan* plan) noexcept : plan_(plan) {}

    static Result<Plan> make(const std::vector<sa_tensor>& tensors, const Metadata& metadata,
                             const WriteOptions& options) {
        const std::vector<sa_metadata> c_metadata = detail::lowered(metadata);
        const sa_write_options c_options = detail::lowered(options);
        sa_plan* plan = nullptr;
        sa_error error;
        if (sa_plan_new(tensors.data(), tensors.size(), c_metadata.data(), c_metadata.size(), &c_options, &plan,
                        &error) != SA_OK) {
            return detail::taken(error);
        }
        return Plan(plan);
    }

    std::unique_ptr<sa_plan, detail::FreePlan> plan_;
};

/// A file that is written in pieces, for tensors that do not all fit in memory.
///
/// Destroyed before finish() has succeeded, it leaves nothing behind and the target as it was. put() and put_at() may be
/// called from several threads at once; finish(), abort() and moving only when no other call runs.
class Writer {
public:
    Writer() noexcept = default;

    /// Lays out a file, reserves its space beside `path` and writes its header. The writer borrows nothing.
    [[nodiscard]] static Result<Writer> open(std::string_view path, const std::vector<TensorSpec>& tensors,
                                             const Metadata& metadata = {}, const WriteOptions& options = {}) {
        const Result<std::string> target = detail::terminated(path, "path");
        if (!target) {
            return target.error();
        }
        const std::vector<sa_tensor> c_tensors = detail::lowered(tensors);
        const std::vector<sa_metadata> c_metadata = detail::lowered(metadata);
        const sa_write_options c_options = detail::lowered(options);
        sa_writer* writer = nullptr;
        sa_error error;
        if (sa_writer_open(target->c_str(), c_tensors.data(), c_tensors.size(), c_metadata.data(), c_metadata.size(),
                           &c_options, &writer, &error) != SA_OK) {
            return detail::taken(error);
        }
        return Writer(writer);
    }

    /// Writes the whole tensor of that position in the list given to open().
    [[nodiscard]] Result<void> put(std::size_t index, Bytes data) const {
        sa_error error;
        return outcome(sa_writer_put(writer_.get(), index, data.data(), data.size(), &error), error);
    }

    /// Writes a piece of it, `offset` bytes from the start of the tensor.
    [[nodiscard]] Result<void> put_at(std::size_t index, std::uint64_t offset, Bytes data) const {
        sa_error error;
        return outcome(sa_writer_put_at(writer_.get(), index, offset, data.data(), data.size(), &error), error);
    }

    /// Puts the file in place and empties the writer. Where it fails because a byte is missing
    /// (Status::InvalidArgument), that can be put and the call repeated.
    [[nodiscard]] Result<WriteReport> finish() {
        sa_write_report report;
        sa_write_report_init(&report);
        sa_error error;
        if (sa_writer_finish(writer_.get(), &report, &error) != SA_OK) {
            return detail::taken(error);
        }
        (void)writer_.release();  // freed by the call
        return detail::taken(report);
    }

    /// Gives up, as the destructor does, and empties the writer.
    void abort() noexcept { writer_.reset(); }

    /// For calls of the C API. Still owned by this object.
    [[nodiscard]] sa_writer* get() const noexcept { return writer_.get(); }

private:
    explicit Writer(sa_writer* writer) noexcept : writer_(writer) {}

    static Result<void> outcome(sa_status status, const sa_error& error) {
        return status == SA_OK ? Result<void>() : Result<void>(detail::taken(error));
    }

    std::unique_ptr<sa_writer, detail::AbortWriter> writer_;
};

/// A tensor's bytes, and a share in what keeps them alive: the File may be closed before it. May be destroyed on any
/// thread.
class View {
public:
    /// Empty: no bytes.
    View() noexcept = default;

    /// Takes over a view of the C API, and one sa_view_release of its owner. `writable` if its file was opened with
    /// SA_MAP_COPY_ON_WRITE.
    explicit View(const sa_view& view, bool writable = false) noexcept
        : view_(view), owner_(view.owner), writable_(writable) {}

    View(const View& other) noexcept : view_(other.view_), owner_(other.owner_.get()), writable_(other.writable_) {
        sa_view_retain(owner_.get());
    }
    View(View&& other) noexcept
        : view_(std::exchange(other.view_, sa_view{})), owner_(std::move(other.owner_)), writable_(other.writable_) {}
    View& operator=(View other) noexcept {
        view_ = other.view_;
        owner_ = std::move(other.owner_);
        writable_ = other.writable_;
        return *this;
    }
    ~View() = default;

    /// Elements in row-major order, little-endian. They live as long as any view of the tensor.
    [[nodiscard]] Bytes bytes() const noexcept { return bytes_of(view_.data, view_.nbytes); }

    [[nodiscard]] std::size_t nbytes() const noexcept { return view_.nbytes; }
    [[nodiscard]] Dtype dtype() const noexcept { return static_cast<Dtype>(view_.dtype); }
    [[nodiscard]] Origin origin() const noexcept { return static_cast<Origin>(view_.origin); }

    /// Elements in each dimension; empty for a scalar. They live as long as any view of the file.
    [[nodiscard]] Span<const std::uint64_t> shape() const noexcept { return {view_.shape, view_.rank}; }

    /// The elements. Status::InvalidArgument unless a T is as wide as the dtype, and the dtype's own type if it is a
    /// floating-point one (16-bit floats may be read as std::uint16_t); Status::Unaligned if the bytes are not aligned
    /// for a T, which happens only with Unaligned::Borrow.
    template <typename T>
    [[nodiscard]] Result<Span<const T>> as() const {
        if (std::optional<Error> error = mismatch<T>()) {
            return *std::move(error);
        }
        return Span<const T>(static_cast<const T*>(view_.data), view_.nbytes / sizeof(T));
    }

    /// The elements, to be written to: only with MapMode::CopyOnWrite, else Status::InvalidArgument. The file stays as
    /// it is; every view of the tensor sees what is written.
    template <typename T>
    [[nodiscard]] Result<Span<T>> as_mutable() const {
        std::optional<Error> error = writable_ ? mismatch<T>() : read_only();
        if (error) {
            return *std::move(error);
        }
        return Span<T>(static_cast<T*>(view_.data), view_.nbytes / sizeof(T));
    }

    /// The bytes, to be written to, as as_mutable().
    [[nodiscard]] Result<Span<std::byte>> mutable_bytes() const {
        if (!writable_) {
            return read_only();
        }
        return Span<std::byte>(static_cast<std::byte*>(view_.data), view_.nbytes);
    }

    /// Says how the bytes will be used; see sa_view_advise.
    [[nodiscard]] Result<void> advise(Advice advice) const {
        sa_error error;
        if (sa_view_advise(&view_, static_cast<std::int32_t>(advice), &error) != SA_OK) {
            return detail::taken(error);
        }
        return {};
    }

    /// Gives up the view: its owner is the caller's to hand to sa_view_release. For an array type that takes a pointer
    /// and a deleter.
    [[nodiscard]] sa_view release() noexcept {
        (void)owner_.release();
        return std::exchange(view_, sa_view{});
    }

    /// For calls of the C API. Still owned by this object.
    [[nodiscard]] const sa_view& get() const noexcept { return view_; }

private:
    static Error read_only() {
        return detail::invalid("the view is read-only: open the file with copy-on-write to write to it");
    }

    template <typename T>
    std::optional<Error> mismatch() const {
        static_assert(std::is_trivially_copyable_v<T>, "the bytes of a file make only plain elements");
        const bool own_type = !std::is_floating_point_v<T> || dtype() == Dtype::F32 || dtype() == Dtype::F64;
        if (bits(dtype()) != sizeof(T) * 8 || !own_type) {
            return detail::invalid(std::string(name(dtype())) + " elements asked for as a " +
                                   (std::is_floating_point_v<T> ? "floating-point " : "") + "type of " +
                                   std::to_string(sizeof(T)) + " bytes");
        }
        const auto address = reinterpret_cast<std::uintptr_t>(view_.data);
        if (address % alignof(T) != 0) {
            return Error{Status::Unaligned, 0,
                         std::string(name(dtype())) + " elements are not on a multiple of " +
                             std::to_string(alignof(T)) + " bytes"};
        }
        return std::nullopt;
    }

    sa_view view_{};
    std::unique_ptr<void, detail::ReleaseView> owner_;
    bool writable_ = false;
};

/// An open file. Its views outlive it. Safe to use from several threads at once, but for moving and closing.
class File {
public:
    File() noexcept = default;

    /// Opens and maps a file, and checks its header and every offset; see sa_file_open for the statuses.
    [[nodiscard]] static Result<File> open(std::string_view path, const OpenOptions& options = {}) {
        const Result<std::string> source = detail::terminated(path, "path");
        if (!source) {
            return source.error();
        }
        const Result<std::string> overlay_dir = detail::terminated(options.overlay_dir, "overlay_dir");
        if (!overlay_dir) {
            return overlay_dir.error();
        }
        sa_open_options c_options = detail::open_defaults();
        c_options.map_mode = static_cast<std::int32_t>(options.map_mode);
        c_options.unaligned = static_cast<std::int32_t>(options.unaligned);
        c_options.strict = options.strict ? 1 : 0;
        c_options.read_ahead = static_cast<std::int32_t>(options.read_ahead);
        c_options.overlay_dir = overlay_dir->empty() ? nullptr : overlay_dir->c_str();
        sa_file* file = nullptr;
        sa_error error;
        if (sa_file_open(source->c_str(), &c_options, &file, &error) != SA_OK) {
            return detail::taken(error);
        }
        return File(file, options.map_mode == MapMode::CopyOnWrite);
    }

    /// Number of tensors.
    [[nodiscard]] std::size_t size() const noexcept { return sa_file_len(file_.get()); }

    /// What the header says of a tensor, numbered from 0 in the order of the data; Status::NotFound past the last.
    [[nodiscard]] Result<TensorInfo> at(std::size_t index) const {
        sa_tensor_info found;
        sa_error error;
        if (sa_file_at(file_.get(), index, &found, &error) != SA_OK) {
            return detail::taken(error);
        }
        return TensorInfo{{found.name, found.name_len},
                          static_cast<Dtype>(found.dtype),
                          {found.shape, found.rank},
                          found.offset,
                          found.nbytes,
                          found.is_misaligned != 0};
    }

    /// The number of a tensor; Status::NotFound if there is none of that name.
    [[nodiscard]] Result<std::size_t> find(std::string_view name) const {
        const Result<std::string> text = detail::terminated(name, "name");
        if (!text) {
            return text.error();
        }
        std::size_t index = 0;
        sa_error error;
        if (sa_file_find(file_.get(), text->c_str(), &index, &error) != SA_OK) {
            return detail::taken(error);
        }
        return index;
    }

    /// The tensor of that name: the bytes of the mapping, with no copy, where its offset allows it.
    [[nodiscard]] Result<View> map(std::string_view name) const {
        const Result<std::string> text = detail::terminated(name, "name");
        if (!text) {
            return text.error();
        }
        sa_view view;
        sa_error error;
        if (sa_map_tensor(file_.get(), text->c_str(), &view, &error) != SA_OK) {
            return detail::taken(error);
        }
        return View(view, writable_);
    }

    /// The tensor of that number, as map().
    [[nodiscard]] Result<View> map_at(std::size_t index) const {
        sa_view view;
        sa_error error;
        if (sa_map_tensor_at(file_.get(), index, &view, &error) != SA_OK) {
            return detail::taken(error);
        }
        return View(view, writable_);
    }

    /// The metadata in the order of the header. The texts live as long as the file or any of its views.
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

    /// Every byte of the file, for engines that make one buffer of it. They live as long as the file or any of its
    /// views.
    [[nodiscard]] Bytes bytes() const noexcept { return whole().first; }

    /// Where the data section starts, in bytes from the start of the file.
    [[nodiscard]] std::uint64_t data_start() const noexcept { return whole().second; }

    /// Counts of what is in the file and of what was handed out of it.
    [[nodiscard]] Stats stats() const noexcept {
        sa_stats found;
        sa_stats_init(&found);
        (void)sa_file_stats(file_.get(), &found, nullptr);
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

    /// Closes the file, as the destructor does. Views stay valid.
    void close() noexcept { file_.reset(); }

    /// For calls of the C API. Still owned by this object.
    [[nodiscard]] const sa_file* get() const noexcept { return file_.get(); }

private:
    File(sa_file* file, bool writable) noexcept : file_(file), writable_(writable) {}

    std::pair<Bytes, std::uint64_t> whole() const noexcept {
        void* base = nullptr;
        std::size_t nbytes = 0;
        std::uint64_t data_start = 0;
        (void)sa_file_base(file_.get(), &base, &nbytes, &data_start, nullptr);
        return {bytes_of(base, nbytes), data_start};
    }

    std::unique_ptr<sa_file, detail::FreeFile> file_;
    bool writable_ = false;
};

}  // namespace safealign

#if defined(__cpp_lib_ranges)
// A span does not own its elements: iterators outlive it, and a temporary one becomes a std::span.
template <typename T>
inline constexpr bool std::ranges::enable_borrowed_range<safealign::Span<T>> = true;
template <typename T>
inline constexpr bool std::ranges::enable_view<safealign::Span<T>> = true;
#endif

#undef SAFEALIGN_EXCEPTIONS
#undef SAFEALIGN_VARIANT

#endif  // SAFEALIGN_HPP
