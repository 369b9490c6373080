/*
 * safealign for MLX: save and load functions with the signatures of MLX's own functions, header only.
 *
 *     safealign::mlx::save_safetensors(file or writer, arrays, metadata)
 *     safealign::mlx::load_safetensors(file, stream)
 *
 * Saved files map without a copy, and every safetensors reader opens them. Loaded arrays share the mapping of the file
 * if they are aligned. The mapping is copy-on-write: MLX may reuse the memory of an array without changing the file.
 *
 * Requires C++20, as MLX's headers do. Include it in a program that links MLX and safealign, or in MLX itself
 * (docs/mlx-fork.md). Tested with MLX 0.31.2 and 0.32.4 on Linux (CPU). The code path for Metal, make_buffer on the
 * mapping, is tested with an allocator that behaves like that of Metal, but was not run on Metal.
 *
 * Errors are std::runtime_error, with messages in MLX's style. The functions may be called from several threads at
 * once.
 */

#ifndef SAFEALIGN_MLX_HPP
#define SAFEALIGN_MLX_HPP

#include "safealign.hpp"

#include <mlx/allocator.h>
#include <mlx/array.h>
#include <mlx/dtype.h>
#include <mlx/io.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>
#include <mlx/version.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <ios>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace safealign::mlx {

namespace core = ::mlx::core;

/// Arrays by name.
using Arrays = std::unordered_map<std::string, core::array>;
/// Metadata: keys and values.
using StringMap = std::unordered_map<std::string, std::string>;

/// Describes a load.
struct LoadReport {
    /// Tensors in the file.
    std::size_t tensors = 0;
    /// Arrays that share the mapping of the file, and empty arrays.
    std::size_t zero_copy = 0;
    /// Arrays that MLX copies when they are evaluated, because they are misaligned, or because this build of MLX does
    /// not accept external memory.
    std::size_t copied = 0;
    /// Their total size in bytes.
    std::uint64_t bytes_copied = 0;
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

/// An MLX buffer over the mapping of a file, and the array that owns it. Other arrays share parts of it.
class Mapping {
public:
    /// @param view  A view of any tensor of the file, which keeps the mapping alive.
    Mapping(const File& file, const View& view) : bytes_(file.bytes()) {
        auto* base = const_cast<std::byte*>(bytes_.data());
        // Metal makes no copy of memory that starts and ends at a page boundary, as a mapping does.
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        core::allocator::Buffer made = core::allocator::make_buffer(base, (bytes_.size() + page - 1) / page * page);
        const bool from_allocator = made.ptr() != nullptr;
        if (!from_allocator) {
            if (!buffers_are_sized_memory()) {
                return;
            }
            // A buffer of the CPU build starts with its size in 8 bytes. A file starts with the length of its header in
            // 8 bytes, so the mapping can be used as a buffer.
            made = core::allocator::Buffer(base);
        }
        skip_ = from_allocator ? 0 : sizeof(std::size_t);
        auto release = [view, from_allocator](core::allocator::Buffer buffer) {
            if (from_allocator) {
                core::allocator::release(buffer);
            }
        };
#if MLX_VERSION_NUMERIC >= 32004  // the first with allocator::Data
        array_.emplace(core::allocator::Data(made, std::move(release)), core::Shape{1}, core::uint8);
#else
        array_.emplace(made, core::Shape{1}, core::uint8, std::move(release));
#endif
        // Check the address, because another build of MLX may use another layout of buffers.
        if (array_->data<std::byte>() != base + skip_) {
            array_.reset();
        }
    }

    /// The array of a tensor, if MLX takes the mapping and the tensor is aligned.
    std::optional<core::array> share(const TensorInfo& info, const core::Shape& shape, core::Dtype dtype) const {
        if (!array_ || info.is_misaligned || info.offset < skip_) {
            return std::nullopt;
        }
        core::array out(shape, dtype, nullptr, {});
        core::array::Flags flags{};
        flags.contiguous = true;
        flags.row_contiguous = true;
        flags.col_contiguous = std::count_if(shape.begin(), shape.end(), [](auto length) { return length > 1; }) <= 1;
        out.copy_shared_buffer(*array_, core::Strides(out.strides()), flags, out.size(),
                               static_cast<std::int64_t>((info.offset - skip_) / core::size_of(dtype)));
        out.set_status(core::array::Status::available);
        if (out.data<std::byte>() != bytes_.data() + info.offset) {
            return std::nullopt;
        }
        return out;
    }

private:
    /// Whether a buffer of this build is a pointer to its size, followed by the data. Checked with a buffer of MLX.
    static bool buffers_are_sized_memory() {
        constexpr std::size_t size = 4321;
        // Freed explicitly: in MLX 0.31 a buffer has no owner.
        const core::allocator::Buffer probe = core::allocator::allocator().malloc(size);
        core::allocator::Buffer raw = probe;
        const auto* start = static_cast<const std::byte*>(raw.ptr());
        const bool sized =
            start != nullptr && static_cast<const std::byte*>(raw.raw_ptr()) == start + sizeof(std::size_t);
        core::allocator::allocator().free(probe);
        return sized;
    }

    Bytes bytes_;
    std::size_t skip_ = 0;
    std::optional<core::array> array_;
};

/// The tensors that cannot share the mapping, as a file for MLX's own load function: a header with only these tensors,
/// named by their index, followed by the data section of the mapped file. They are therefore read from the same file as
/// the others, even if another file is at the path by now, and MLX does not parse the rest of the header.
class MappingReader final : public core::io::Reader {
public:
    MappingReader(std::string path, const File& file, View view)
        : path_(std::move(path)), data_(file.bytes().data() + file.data_start()),
          data_size_(file.bytes().size() - static_cast<std::size_t>(file.data_start())), data_start_(file.data_start()),
          view_(std::move(view)) {}

    /// Adds a tensor to the header and returns its name in this header: its index.
    std::string add(const TensorInfo& info) {
        std::string index = std::to_string(count_++);
        const bool is_bytes = loaded_dtype(info) == core::uint8;
        json_.append(json_.empty() ? "{\"" : ",\"").append(index).append("\":{\"dtype\":\"");
        json_.append(name(is_bytes ? Dtype::U8 : info.dtype)).append("\",\"shape\":[");
        for (std::size_t at = 0; at < info.shape.size(); ++at) {
            json_.append(at > 0 ? "," : "").append(std::to_string(info.shape[at]));
        }
        const std::uint64_t begin = info.offset - data_start_;
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
        const std::size_t size = header_.size() + data_size_;
        const std::size_t start = from == std::ios_base::beg ? 0 : from == std::ios_base::end ? size : at_;
        at_ = start + static_cast<std::size_t>(offset);
    }

    void read(char* data, std::size_t count) override {
        read(data, count, at_);
        at_ += count;
    }

    // Called from several threads at once.
    void read(char* data, std::size_t count, std::size_t offset) override {
        const std::size_t size = header_.size() + data_size_;
        if (offset > size || count > size - offset) {
            throw failure("read", "Unable to read ", std::to_string(count), " bytes from ", label(), ".");
        }
        if (offset < header_.size()) {
            const std::size_t step = std::min(count, header_.size() - offset);
            std::memcpy(data, header_.data() + offset, step);
            data += step;
            count -= step;
            offset += step;
        }
        if (count == 0) {
            return;
        }
        const std::byte* start = data_ + (offset - header_.size());
        // Without this advice, pages that are not in memory are read a few at a time.
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        const std::size_t before = reinterpret_cast<std::uintptr_t>(start) % page;
        (void)posix_madvise(const_cast<std::byte*>(start) - before, count + before, POSIX_MADV_WILLNEED);
        std::memcpy(data, start, count);
    }

    std::string label() const override { return std::string("file ").append(path_); }

private:
    std::string path_;
    const std::byte* data_;
    std::size_t data_size_;
    std::uint64_t data_start_;
    View view_;
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

inline core::SafetensorsLoad load(const std::string& path, core::StreamOrDevice s, LoadReport& report) {
    OpenOptions options;
    // MLX may write a result to the memory of an input that is no longer needed.
    options.map_mode = MapMode::CopyOnWrite;
    options.unaligned = Unaligned::Borrow;
    const Result<File> opened = File::open(path, options);
    if (!opened) {
        throw failed("load_safetensors", opened.error());
    }
    const File& file = *opened;
    core::SafetensorsLoad loaded;
    for (const auto& [key, value] : file.metadata()) {
        loaded.second.emplace(key, value);
    }
    report = {};
    report.tensors = file.size();
    if (file.size() == 0) {
        return loaded;
    }
    const View view = file.map_at(0).value_or_throw();
    const Mapping mapping(file, view);
    const auto reader = std::make_shared<MappingReader>(path, file, view);
    // The tensors that it reads: their names in it, and their names in the file.
    std::vector<std::pair<std::string, std::string>> unshared;
    for (std::size_t index = 0; index < file.size(); ++index) {
        const TensorInfo info = file.at(index).value_or_throw();
        const core::Dtype dtype = loaded_dtype(info);
        const core::Shape shape = loaded_shape(info);
        if (info.nbytes == 0) {
            loaded.first.emplace(info.name, core::array(static_cast<const std::uint8_t*>(nullptr), shape, dtype));
        } else if (std::optional<core::array> shared = mapping.share(info, shape, dtype)) {
            loaded.first.emplace(info.name, *std::move(shared));
        } else {
            unshared.emplace_back(reader->add(info), info.name);
            report.bytes_copied += info.nbytes;
        }
    }
    if (!unshared.empty()) {
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

inline void save(core::io::Writer& out, Arrays arrays, const StringMap& metadata, const PlanOptions& options) {
#if MLX_VERSION_NUMERIC < 32003  // in which writers open the file on construction
    require_open(out);
#endif
    const Prepared prepared(std::move(arrays), metadata);
    const Result<Plan> plan = Plan::make(prepared.tensors, prepared.metadata, options);
    if (!plan) {
        throw failed("save_safetensors", plan.error());
    }
#if MLX_VERSION_NUMERIC >= 32003
    // Opened only now, as in MLX: lazy arrays may have been read from the same file.
    out.open();
    require_open(out);
#endif
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
/// LoadReport) is loaded by MLX's own function, which copies it when it is evaluated.
///
/// The mapping lives as long as any of the arrays. If the file is replaced, for example by saving to its path, the
/// arrays keep their values. If it is truncated in place, for example by opening it for writing, accessing them raises
/// SIGBUS.
inline core::SafetensorsLoad load_safetensors(const std::string& file, core::StreamOrDevice s = {}) {
    LoadReport report;
    return detail::load(file, s, report);
}

/// The same, with a report.
///
/// @param report  Receives the report.
inline core::SafetensorsLoad load_safetensors(const std::string& file, core::StreamOrDevice s, LoadReport& report) {
    return detail::load(file, s, report);
}

}  // namespace safealign::mlx

#endif  // SAFEALIGN_MLX_HPP
