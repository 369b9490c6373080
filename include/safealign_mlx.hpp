/*
 * safealign for MLX: save and load functions with the signatures of MLX's own functions, header only.
 *
 *     safealign::mlx::save_safetensors(file or writer, arrays, metadata)
 *     safealign::mlx::load_safetensors(file, stream)
 *
 * Saved files map without a copy, and every safetensors reader opens them. Loaded arrays share the mapping of the file
 * where the device allows it. MLX never writes to this memory: it reuses the memory of an array only if the array owns
 * it. What is shared and what is copied on each device: docs/devices.md.
 *
 * Requires C++20, as MLX's headers do. Include it in a program that links MLX and safealign, or in MLX itself
 * (docs/mlx-fork.md). Tested with MLX 0.31.2 and 0.32.4 on Linux (CPU). The code path for Metal is tested with an
 * allocator that enforces Metal's rules, but was not run on Metal.
 *
 * Errors are std::runtime_error, with messages in MLX's style. The functions may be called from several threads at
 * once.
 */

#ifndef SAFEALIGN_MLX_HPP
#define SAFEALIGN_MLX_HPP

#include "safealign.hpp"

#include <mlx/allocator.h>
#include <mlx/array.h>
#include <mlx/device.h>
#include <mlx/dtype.h>
#include <mlx/io.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <future>
#include <iterator>
#include <ios>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace safealign::mlx {

namespace core = ::mlx::core;

/// Arrays by name.
using Arrays = std::unordered_map<std::string, core::array>;
/// Metadata: keys and values.
using StringMap = std::unordered_map<std::string, std::string>;

/// How a file is loaded.
struct LoadOptions {
    /// How the file is mapped. By default MapMode::CopyOnWrite with the CPU build of MLX on Linux, and MapMode::Shared
    /// with every other.
    ///
    /// In a copy-on-write mapping, programs may write to arrays through NumPy, memoryview or DLPack views; in a shared
    /// mapping, which is read-only, such a write is a SIGSEGV. MLX itself writes in neither. A device that pins or
    /// wires memory makes a private copy of a copy-on-write mapping, and so does macOS when the memory is read.
    std::optional<MapMode> map_mode = std::nullopt;
    /// What loading does about the pages of the file that are not in memory yet.
    ReadAhead read_ahead = ReadAhead::None;
    /// The size up to which tensors share a buffer of a device, in bytes. No buffer is longer than the device allows.
    std::uint64_t buffer_bytes = std::uint64_t{256} << 20;
};

/// A number of tensors and their total size in bytes.
struct Count {
    std::size_t tensors = 0;
    std::uint64_t nbytes = 0;
};

/// Describes a load.
struct LoadReport {
    /// Tensors in the file.
    std::size_t tensors = 0;
    /// Arrays that share the mapping of the file, and empty arrays.
    std::size_t zero_copy = 0;
    /// Arrays that are read into memory of MLX when they are evaluated, for one of the reasons below.
    std::size_t copied = 0;
    /// Their total size in bytes.
    std::uint64_t bytes_copied = 0;
    /// Misaligned: the offset in the file is not a multiple of the dtype's width. `safealign repair` aligns the file.
    Count misaligned;
    /// On a GPU: the offset in the file is not a multiple of 16 bytes.
    Count below_gpu_alignment;
    /// Longer than the longest buffer of the device, in whole pages.
    Count too_large;
    /// The allocator of MLX does not accept the memory: no build for CUDA does.
    Count refused;
};

namespace detail {

// Only appends: gcc 12 falsely warns about an overlap if a literal is prepended to a string.
template <typename... Parts>
std::runtime_error failure(std::string_view function, const Parts&... parts) {
    std::string what = "[";
    what.append(function).append("] ");
    (what.append(std::string_view(parts)), ...);
    return std::runtime_error(what);
}

/// The dtype of the format for a dtype of MLX. Like MLX, this does not save float64.
inline Dtype saved_dtype(const std::string& name, core::Dtype dtype) {
    switch (dtype.val()) {
        case core::Dtype::Val::bool_:
            return Dtype::Bool;
        case core::Dtype::Val::uint8:
            return Dtype::U8;
        case core::Dtype::Val::uint16:
            return Dtype::U16;
        case core::Dtype::Val::uint32:
            return Dtype::U32;
        case core::Dtype::Val::uint64:
            return Dtype::U64;
        case core::Dtype::Val::int8:
            return Dtype::I8;
        case core::Dtype::Val::int16:
            return Dtype::I16;
        case core::Dtype::Val::int32:
            return Dtype::I32;
        case core::Dtype::Val::int64:
            return Dtype::I64;
        case core::Dtype::Val::float16:
            return Dtype::F16;
        case core::Dtype::Val::bfloat16:
            return Dtype::BF16;
        case core::Dtype::Val::float32:
            return Dtype::F32;
        case core::Dtype::Val::complex64:
            return Dtype::C64;
        default:
            throw failure("save_safetensors", "received invalid dtype ",
                          dtype == core::float64 ? "float64" : "of a newer MLX", " for array '", name, "'.");
    }
}

/// The dtype of MLX for a dtype of the format. 8-bit floats that MLX has no type for are loaded as bytes.
inline core::Dtype loaded_dtype(const TensorInfo& info) {
    switch (info.dtype) {
        case Dtype::Bool:
            return core::bool_;
        case Dtype::U8:
        case Dtype::F8_E4M3:
        case Dtype::F8_E8M0:
            return core::uint8;
        case Dtype::U16:
            return core::uint16;
        case Dtype::U32:
            return core::uint32;
        case Dtype::U64:
            return core::uint64;
        case Dtype::I8:
            return core::int8;
        case Dtype::I16:
            return core::int16;
        case Dtype::I32:
            return core::int32;
        case Dtype::I64:
            return core::int64;
        case Dtype::F16:
            return core::float16;
        case Dtype::BF16:
            return core::bfloat16;
        case Dtype::F32:
            return core::float32;
        case Dtype::C64:
            return core::complex64;
        default:
            throw failure("safetensor", "unsupported dtype ", name(info.dtype), " of tensor '", info.name, "'.");
    }
}

/// Contiguous arrays, sorted by name, and their descriptions for safealign.
struct Prepared {
    std::vector<std::pair<std::string, core::array>> arrays;
    std::vector<Tensor> tensors;
    Metadata metadata;

    Prepared(Arrays named, const StringMap& strings)
        : arrays(named.begin(), named.end()), metadata(strings.begin(), strings.end()) {
        named.clear();  // so that an array that is made contiguous below can be freed
        std::sort(metadata.begin(), metadata.end());
        std::sort(arrays.begin(), arrays.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
        std::vector<core::array> pending;
        for (const auto& [name, array] : arrays) {
            (void)saved_dtype(name, array.dtype());  // before anything is computed
            pending.push_back(array);
        }
        core::eval(std::exchange(pending, {}));
        // The memory layout is known only after evaluation. MLX's contiguous() also copies an array that is a small
        // part of a large buffer, such as the mapping of a file.
        for (auto& [name, array] : arrays) {
            if (array.size() > 0 && !array.flags().row_contiguous) {
                array = core::contiguous(array);
                pending.push_back(array);
            }
        }
        core::eval(std::move(pending));
        tensors.reserve(arrays.size());
        for (const auto& [name, array] : arrays) {
            const auto& shape = array.shape();
            tensors.push_back({name, saved_dtype(name, array.dtype()), {shape.begin(), shape.end()},
                               bytes_of(array.nbytes() == 0 ? nullptr : array.data<char>(), array.nbytes())});
        }
    }
};

inline void write_zeros(core::io::Writer& out, std::uint64_t count) {
    static constexpr std::array<char, 4096> zeros{};
    while (count > 0) {
        const std::size_t step = static_cast<std::size_t>(std::min<std::uint64_t>(count, zeros.size()));
        out.write(zeros.data(), step);
        count -= step;
    }
}

inline void require_open(const core::io::Writer& out) {
    if (!out.good() || !out.is_open()) {
        throw failure("save_safetensors", "Failed to open ", out.label());
    }
}

/// Alignment in bytes of what a GPU reads. MLX selects kernels by the offset modulo 8, and vector loads take 16 bytes:
/// at other offsets, results may differ in the last bits.
inline constexpr std::uint64_t gpu_alignment = 16;

inline std::uint64_t page_size() {
    return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

/// Whether a buffer of this build is a pointer to its size in 8 bytes, followed by the data, as in MLX's CPU builds.
/// Checked with a buffer of MLX.
inline bool buffers_are_sized_memory() {
    constexpr std::size_t size = 4321;
    // Freed explicitly: in MLX 0.31 a buffer has no owner.
    const core::allocator::Buffer probe = core::allocator::allocator().malloc(size);
    core::allocator::Buffer raw = probe;
    const auto* start = static_cast<const std::byte*>(raw.ptr());
    const bool sized = start != nullptr && static_cast<const std::byte*>(raw.raw_ptr()) == start + sizeof(std::size_t);
    core::allocator::allocator().free(probe);
    return sized;
}

/// The longest buffer of the device in bytes.
inline std::uint64_t longest_buffer() {
    constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();
    if (!core::is_available(core::Device::gpu)) {
        return no_limit;
    }
    const auto& info = core::device_info(core::Device::gpu);
    const auto found = info.find("max_buffer_length");
    const auto* length = found == info.end() ? nullptr : std::get_if<std::size_t>(&found->second);
    return length == nullptr ? no_limit : *length;
}

// MLX reuses the memory of an input that has no other owner (array::is_donatable). From 0.32.4, only memory that its
// allocator owns. Features are detected, because forks call themselves by the version before.
template <typename Array>
concept ReusesOnlyOwnMemory = requires(const Array& array) { array.data_shared_ptr()->is_owned(); };

/// An array of memory that is not MLX's. `release` is called with the buffer when no array uses it.
template <typename Array = core::array, typename Release>
Array array_over(core::allocator::Buffer buffer, core::Shape shape, core::Dtype dtype, Release release) {
    if constexpr (std::is_constructible_v<Array, core::allocator::Buffer, core::Shape, core::Dtype, Release>) {
        return Array(buffer, std::move(shape), dtype, std::move(release));
    } else {
        return Array(typename Array::Data(buffer, std::move(release)), std::move(shape), dtype);
    }
}

/// A part of the buffer of an array. `offset` in elements of `dtype`.
inline core::array part_of(const core::array& whole, const core::Shape& shape, core::Dtype dtype, std::int64_t offset) {
    core::array out(shape, dtype, nullptr, {});
    core::array::Flags flags{};
    flags.contiguous = true;
    flags.row_contiguous = true;
    flags.col_contiguous = std::count_if(shape.begin(), shape.end(), [](auto length) { return length > 1; }) <= 1;
    out.copy_shared_buffer(whole, core::Strides(out.strides()), flags, out.size(), offset);
    out.set_status(core::array::Status::available);
    return out;
}

/// Memory of files that has a view, such as a reshaped array, but no array of the file any more.
class Orphans {
public:
    using Owner = std::shared_ptr<core::array::Data>;

    static Orphans& get() {
        static Orphans* orphans = new Orphans;  // MLX frees arrays until the process ends
        return *orphans;
    }

    void add(Owner owner) {
        const std::lock_guard lock(mutex_);
        owners_.push_back(std::move(owner));
    }

    /// Frees the memory that has no view any more.
    void prune() {
        std::vector<Owner> unused;  // freed after the lock
        const std::lock_guard lock(mutex_);
        const auto end = std::partition(owners_.begin(), owners_.end(),
                                        [](const Owner& owner) { return owner.use_count() > 1; });
        unused.assign(std::make_move_iterator(end), std::make_move_iterator(owners_.end()));
        owners_.erase(end, owners_.end());
    }

private:
    std::mutex mutex_;
    std::vector<Owner> owners_;
};

/// A second owner of the memory of arrays: with it, MLX does not reuse this memory. It lives as long as these arrays and
/// their views, since it is in the deleter of a sibling of each array. MLX looks at the siblings of an array that has no
/// primitive only to free them with it.
class SecondOwner {
public:
    explicit SecondOwner(Orphans::Owner owner) : owner_(std::move(owner)) {}
    SecondOwner(const SecondOwner&) = delete;
    SecondOwner& operator=(const SecondOwner&) = delete;

    ~SecondOwner() {
        // This and the last array, which is being freed. Views would be the only owners afterwards.
        constexpr long without_views = 2;
        Orphans::get().prune();
        if (owner_.use_count() > without_views) {
            Orphans::get().add(std::move(owner_));
        }
    }

    /// Null for a version of MLX that reuses only memory of its own.
    static std::shared_ptr<SecondOwner> of(const core::array& array) {
        if constexpr (ReusesOnlyOwnMemory<core::array>) {
            return nullptr;
        } else {
            return std::make_shared<SecondOwner>(array.data_shared_ptr());
        }
    }

    static void attach(const std::shared_ptr<SecondOwner>& second, core::array& array) {
        if (second != nullptr) {
            const auto release = [second](core::allocator::Buffer) {};
            array.set_siblings({array_over(array.buffer(), core::Shape{1}, core::uint8, release)}, 0);
        }
    }

private:
    Orphans::Owner owner_;
};

/// Makes arrays that share the mapping of a file, where MLX accepts its memory.
class Mapping {
public:
    /// @param view      A view of any tensor of the file, which keeps the mapping alive.
    /// @param is_sized  See buffers_are_sized_memory().
    Mapping(const File& file, View view, bool is_sized)
        : bytes_(file.bytes()), view_(std::move(view)), is_sized_(is_sized) {}

    /// Makes the arrays of tensors that the device can use; the others are null. Adds the reasons to the report.
    std::vector<std::optional<core::array>> share(const std::vector<TensorInfo>& tensors,
                                                  const std::vector<core::Shape>& shapes, const LoadOptions& options,
                                                  LoadReport& report) const {
        std::vector<std::optional<core::array>> out(tensors.size());
        std::vector<std::size_t> aligned;
        for (std::size_t index = 0; index < tensors.size(); ++index) {
            const TensorInfo& info = tensors[index];
            if (info.nbytes == 0) {
                continue;
            }
            if (info.is_misaligned) {
                add(report.misaligned, info);
            } else if (!is_sized_ && info.offset % gpu_alignment != 0) {
                add(report.below_gpu_alignment, info);
            } else {
                aligned.push_back(index);
            }
        }
        if (is_sized_) {
            for (const std::size_t index : aligned) {
                out[index] = single(tensors[index], shapes[index]);
                if (!out[index]) {
                    add(report.refused, tensors[index]);
                }
            }
            return out;
        }
        std::vector<ByteRange> ranges;
        for (const std::size_t index : aligned) {
            ranges.push_back({tensors[index].offset, tensors[index].nbytes});
        }
        std::size_t next = 0;
        for (const Window& window : cut_windows(ranges, page_size(), longest_buffer(), options.buffer_bytes)) {
            for (; next < window.first; ++next) {
                add(report.too_large, tensors[aligned[next]]);
            }
            const std::optional<core::array> whole = buffer_over(window);
            const std::shared_ptr<SecondOwner> second = whole ? SecondOwner::of(*whole) : nullptr;
            for (; next < window.first + window.count; ++next) {
                const std::size_t index = aligned[next];
                out[index] = whole ? in_window(*whole, window, tensors[index], shapes[index]) : std::nullopt;
                if (!out[index]) {
                    add(report.refused, tensors[index]);
                    continue;
                }
                SecondOwner::attach(second, *out[index]);
            }
        }
        for (; next < aligned.size(); ++next) {
            add(report.too_large, tensors[aligned[next]]);
        }
        return out;
    }

private:
    static void add(Count& count, const TensorInfo& info) {
        ++count.tensors;
        count.nbytes += info.nbytes;
    }

    std::byte* at(std::uint64_t offset) const { return const_cast<std::byte*>(bytes_.data()) + offset; }

    /// An array with a buffer of its own that starts at its data, as arrays have that MLX made: then the offset in the
    /// buffer is 0, which some users of DLPack ignore. A buffer of a CPU build starts with its size in 8 bytes. Nothing
    /// uses this size but array::buffer_size(), so whatever precedes the data stands in for it. A file starts with the
    /// length of its header in 8 bytes, so these bytes exist.
    std::optional<core::array> single(const TensorInfo& info, const core::Shape& shape) const {
        std::byte* data = at(info.offset);
        auto release = [view = view_](core::allocator::Buffer) {};
        core::array out = array_over(core::allocator::Buffer(data - sizeof(std::size_t)), shape, loaded_dtype(info),
                                     std::move(release));
        // Check the address, because another build of MLX may use another layout of buffers.
        if (out.data<std::byte>() != data) {
            return std::nullopt;
        }
        SecondOwner::attach(SecondOwner::of(out), out);
        return out;
    }

    /// The array of a buffer over a window, if the allocator accepts the memory. Metal does for whole pages.
    std::optional<core::array> buffer_over(const Window& window) const {
        core::allocator::Buffer made =
            core::allocator::make_buffer(at(window.offset), static_cast<std::size_t>(window.nbytes));
        if (made.ptr() == nullptr) {
            return std::nullopt;
        }
        auto release = [view = view_](core::allocator::Buffer buffer) { core::allocator::release(buffer); };
        core::array whole = array_over(made, core::Shape{1}, core::uint8, std::move(release));
        return whole.data<std::byte>() == at(window.offset) ? std::optional(whole) : std::nullopt;
    }

    std::optional<core::array> in_window(const core::array& whole, const Window& window, const TensorInfo& info,
                                         const core::Shape& shape) const {
        const core::Dtype dtype = loaded_dtype(info);
        const std::uint64_t offset = (info.offset - window.offset) / core::size_of(dtype);
        core::array out = part_of(whole, shape, dtype, static_cast<std::int64_t>(offset));
        if (out.data<std::byte>() != at(info.offset)) {
            return std::nullopt;
        }
        return out;
    }

    Bytes bytes_;
    View view_;
    bool is_sized_;
};

/// The tensors that are not shared, as a file for MLX's own load function: a header with only these tensors, named by
/// their index, followed by the data section of the file. They are read from the file that was opened, even if another
/// one is at the path by now, and MLX does not parse the rest of the header. Nothing is read through the mapping, so a
/// truncated file and an I/O error are exceptions.
class FileReader final : public core::io::Reader {
public:
    /// @param descriptor  That of the file, and the start of the model in it.
    FileReader(std::string path, File file, std::pair<int, std::uint64_t> descriptor)
        : path_(std::move(path)), file_(std::move(file)), descriptor_(descriptor.first),
          data_start_(descriptor.second + file_.data_start()),
          data_size_(file_.stats().file_size - file_.data_start()) {}

    /// Adds a tensor to the header and returns its name in this header: its index.
    std::string add(const TensorInfo& info) {
        std::string index = std::to_string(count_++);
        const bool is_bytes = loaded_dtype(info) == core::uint8;
        json_.append(json_.empty() ? "{\"" : ",\"").append(index).append("\":{\"dtype\":\"");
        json_.append(name(is_bytes ? Dtype::U8 : info.dtype)).append("\",\"shape\":[");
        for (std::size_t at = 0; at < info.shape.size(); ++at) {
            json_.append(at > 0 ? "," : "").append(std::to_string(info.shape[at]));
        }
        const std::uint64_t begin = info.offset - file_.data_start();
        json_.append("],\"data_offsets\":[").append(std::to_string(begin)).append(",");
        json_.append(std::to_string(begin + info.nbytes)).append("]}");
        return index;
    }

    /// Call this after the last tensor, before reading.
    void finish() {
        json_.append("}");
        for (unsigned at = 0; at < 8; ++at) {
            header_.push_back(static_cast<char>(json_.size() >> (8 * at) & 0xff));
        }
        header_.append(json_);
    }

    bool is_open() const override { return true; }
    bool good() const override { return true; }
    std::size_t tell() override { return at_; }

    void seek(std::int64_t offset, std::ios_base::seekdir from) override {
        const std::size_t size = header_.size() + static_cast<std::size_t>(data_size_);
        const std::size_t start = from == std::ios_base::beg ? 0 : from == std::ios_base::end ? size : at_;
        at_ = start + static_cast<std::size_t>(offset);
    }

    void read(char* data, std::size_t count) override {
        read(data, count, at_);
        at_ += count;
    }

    // Called from several threads at once.
    void read(char* data, std::size_t count, std::size_t offset) override {
        const std::size_t size = header_.size() + static_cast<std::size_t>(data_size_);
        if (offset > size || count > size - offset) {
            throw unreadable(count, "is out of range");
        }
        if (offset < header_.size()) {
            const std::size_t step = std::min(count, header_.size() - offset);
            std::memcpy(data, header_.data() + offset, step);
            data += step;
            count -= step;
            offset += step;
        }
        const std::uint64_t start = data_start_ + (offset - header_.size());
        // As MLX's own reader: large reads in parallel. One part is read by this thread.
        constexpr std::size_t part = std::size_t{32} << 20;
        constexpr std::size_t most_threads = 4;
        const std::size_t parts = count / part + (count % part == 0 ? 0 : 1);
        const std::size_t threads = std::min(parts, most_threads);
        const auto read_parts = [=, this](std::size_t first) {
            for (std::size_t index = first; index < parts; index += threads) {
                const std::size_t begin = index * part;
                read_file(data + begin, std::min(part, count - begin), start + begin);
            }
        };
        std::vector<std::future<void>> running;
        for (std::size_t thread = 1; thread < threads; ++thread) {
            running.push_back(std::async(std::launch::async, read_parts, thread));
        }
        read_parts(0);
        for (std::future<void>& one : running) {
            one.get();
        }
    }

    std::string label() const override { return std::string("file ").append(path_); }

private:
    std::runtime_error unreadable(std::size_t count, std::string_view why) const {
        return failure("read", "Unable to read ", std::to_string(count), " bytes from ", label(), ": ", why, ".");
    }

    void read_file(char* data, std::size_t count, std::uint64_t offset) const {
        while (count > 0) {
            // More than 2 GiB at once is an error on macOS.
            const std::size_t step = std::min(count, std::size_t{1} << 30);
            const ssize_t read = pread(descriptor_, data, step, static_cast<off_t>(offset));
            if (read < 0 && errno == EINTR) {
                continue;
            }
            if (read <= 0) {
                throw unreadable(count, read == 0 ? "the file was truncated" : std::strerror(errno));
            }
            const auto done = static_cast<std::size_t>(read);
            data += done;
            offset += done;
            count -= done;
        }
    }

    std::string path_;
    File file_;
    int descriptor_;
    // Of the data section: in the file of the descriptor, in bytes.
    std::uint64_t data_start_;
    std::uint64_t data_size_;
    std::string json_;
    std::string header_;
    std::size_t count_ = 0;
    std::size_t at_ = 0;
};

inline core::Shape loaded_shape(const TensorInfo& info) {
    core::Shape shape;
    for (const std::uint64_t dimension : info.shape) {
        if (dimension > static_cast<std::uint64_t>(std::numeric_limits<core::ShapeElem>::max())) {
            throw failure("load_safetensors", "Tensor '", info.name, "' has a dimension of ", std::to_string(dimension),
                          ", which exceeds the limit of MLX.");
        }
        shape.push_back(static_cast<core::ShapeElem>(dimension));
    }
    return shape;
}

inline std::runtime_error failed(std::string_view function, const Error& error) {
    return failure(function, error.status == Status::Io ? "Failed to open file " : "", error.message);
}

/// Null if the file was replaced during the call.
inline std::optional<core::SafetensorsLoad> try_load(const std::string& path, core::StreamOrDevice s,
                                                     const LoadOptions& options, LoadReport& report) {
    const bool is_sized = buffers_are_sized_memory();
#if defined(__APPLE__)
    constexpr bool is_apple = true;
#else
    constexpr bool is_apple = false;
#endif
    OpenOptions open_options;
    open_options.map_mode = options.map_mode.value_or(is_sized && !is_apple ? MapMode::CopyOnWrite : MapMode::Shared);
    open_options.unaligned = Unaligned::Borrow;
    open_options.read_ahead = options.read_ahead;
    Result<File> opened = File::open(path, open_options);
    if (!opened) {
        throw failed("load_safetensors", opened.error());
    }
    File& file = *opened;
    core::SafetensorsLoad loaded;
    for (const auto& [key, value] : file.metadata()) {
        loaded.second.emplace(key, value);
    }
    report = {};
    report.tensors = file.size();
    if (file.size() == 0) {
        return loaded;
    }
    // Keeps the names and shapes in `tensors`.
    const View view = file.map_at(0).value_or_throw();
    std::vector<TensorInfo> tensors;
    std::vector<core::Shape> shapes;
    for (std::size_t index = 0; index < file.size(); ++index) {
        const TensorInfo& info = tensors.emplace_back(file.at(index).value_or_throw());
        (void)loaded_dtype(info);
        shapes.push_back(loaded_shape(info));
    }
    const Mapping mapping(file, view, is_sized);
    std::vector<std::optional<core::array>> shared = mapping.share(tensors, shapes, options, report);
    std::shared_ptr<FileReader> reader;
    // The tensors that it reads: their names in it, and their names in the file.
    std::vector<std::pair<std::string, std::string>> unshared;
    for (std::size_t index = 0; index < tensors.size(); ++index) {
        const TensorInfo& info = tensors[index];
        if (info.nbytes == 0) {
            const auto* none = static_cast<const std::uint8_t*>(nullptr);
            loaded.first.emplace(info.name, core::array(none, shapes[index], loaded_dtype(info)));
        } else if (shared[index]) {
            loaded.first.emplace(info.name, *std::move(shared[index]));
        } else {
            if (reader == nullptr) {
                const Result<std::pair<int, std::uint64_t>> descriptor = file.descriptor();
                if (!descriptor && descriptor.error().status == Status::Changed) {
                    return std::nullopt;
                }
                if (!descriptor) {
                    throw failed("load_safetensors", descriptor.error());
                }
                reader = std::make_shared<FileReader>(path, std::move(file), *descriptor);
            }
            unshared.emplace_back(reader->add(info), info.name);
            report.bytes_copied += info.nbytes;
        }
    }
    if (reader != nullptr) {
        reader->finish();
        const Arrays own = core::load_safetensors(reader, s).first;
        for (const auto& [index, name] : unshared) {
            loaded.first.emplace(name, own.at(index));
        }
    }
    report.copied = unshared.size();
    report.zero_copy = report.tensors - report.copied;
    return loaded;
}

/// Whether writers open the file when they are told to, as from MLX 0.32.3, and not on construction.
template <typename Writer>
concept OpensLater = requires(Writer& writer) { writer.open(); };

/// Opens the file of a writer, if that is left to the caller.
template <typename Writer>
void open_writer(Writer& out) {
    if constexpr (OpensLater<Writer>) {
        out.open();
    }
}

inline core::SafetensorsLoad load(const std::string& path, core::StreamOrDevice s, const LoadOptions& options,
                                  LoadReport& report) {
    Orphans::get().prune();
    for (int attempt = 0; attempt < 10; ++attempt) {
        if (std::optional<core::SafetensorsLoad> loaded = try_load(path, s, options, report)) {
            return *std::move(loaded);
        }
    }
    throw failure("load_safetensors", "The file ", path, " was replaced while it was loaded.");
}

inline void save(core::io::Writer& out, Arrays arrays, const StringMap& metadata, const PlanOptions& options) {
    if (!OpensLater<core::io::Writer>) {
        require_open(out);
    }
    const Prepared prepared(std::move(arrays), metadata);
    const Result<Plan> plan = Plan::make(prepared.tensors, prepared.metadata, options);
    if (!plan) {
        throw failed("save_safetensors", plan.error());
    }
    // Opened only now, as in MLX: lazy arrays may have been read from the same file.
    open_writer(out);
    require_open(out);
    const Bytes header = plan->header();
    out.write(reinterpret_cast<const char*>(header.data()), header.size());
    for (std::size_t position = 0; position < plan->size(); ++position) {
        const Placement placement = plan->at(position).value_or_throw();
        write_zeros(out, placement.gap_before);
        const Bytes data = prepared.tensors[placement.input_index].data;
        if (data.size() > 0) {
            out.write(reinterpret_cast<const char*>(data.data()), data.size());
        }
    }
}

inline void save(std::string file, Arrays arrays, const StringMap& metadata, const WriteOptions& options) {
    constexpr std::string_view extension = ".safetensors";
    if (file.size() < extension.size() ||
        file.compare(file.size() - extension.size(), extension.size(), extension) != 0) {
        file += extension;
    }
    const Prepared prepared(std::move(arrays), metadata);
    const Result<WriteReport> written = write_aligned(file, prepared.tensors, prepared.metadata, options);
    if (!written) {
        throw failed("save_safetensors", written.error());
    }
}

}  // namespace detail

/// Saves arrays through a writer of MLX, without a seek: the writer may be a pipe or a Python file object. The bytes
/// are those that the function below writes to a file.
inline void save_safetensors(std::shared_ptr<core::io::Writer> out, Arrays arrays, StringMap metadata = {}) {
    detail::save(*out, std::move(arrays), metadata, {});
}

/// The same, with options.
inline void save_safetensors(std::shared_ptr<core::io::Writer> out, Arrays arrays, StringMap metadata,
                             const PlanOptions& options) {
    detail::save(*out, std::move(arrays), metadata, options);
}

/// Saves arrays to a file in which every tensor can be mapped without a copy. Appends `.safetensors` to the name if it
/// is missing. The file is replaced atomically. Arrays are sorted by name, so the same input gives the same bytes.
/// Empty and rank-0 arrays are saved. float64 is an error, as in MLX.
inline void save_safetensors(std::string file, Arrays arrays, StringMap metadata = {}) {
    detail::save(std::move(file), std::move(arrays), metadata, {});
}

/// The same, with options.
inline void save_safetensors(std::string file, Arrays arrays, StringMap metadata, const WriteOptions& options) {
    detail::save(std::move(file), std::move(arrays), metadata, options);
}

/// Loads a file: arrays that share its mapping, and its metadata. An array that cannot share the mapping (see
/// LoadReport) is loaded by MLX's own function, which reads it when it is evaluated.
///
/// The mapping lives as long as any of the arrays. If the file is replaced, for example by saving to its path, the
/// arrays keep their values. If it is truncated in place, for example by opening it for writing, accessing them raises
/// SIGBUS.
inline core::SafetensorsLoad load_safetensors(const std::string& file, core::StreamOrDevice s = {}) {
    LoadReport report;
    return detail::load(file, s, {}, report);
}

/// The same, with options.
inline core::SafetensorsLoad load_safetensors(const std::string& file, core::StreamOrDevice s,
                                              const LoadOptions& options) {
    LoadReport report;
    return detail::load(file, s, options, report);
}

/// The same, with options and a report.
///
/// @param report  Receives the report.
inline core::SafetensorsLoad load_safetensors(const std::string& file, core::StreamOrDevice s,
                                              const LoadOptions& options, LoadReport& report) {
    return detail::load(file, s, options, report);
}

}  // namespace safealign::mlx

#endif  // SAFEALIGN_MLX_HPP
