/*
 * safealign for MLX: save and load functions of the same signatures as MLX's own, header only.
 *
 *     safealign::mlx::save_safetensors(file or writer, arrays, metadata)
 *     safealign::mlx::load_safetensors(file, stream)
 *
 * Files saved with it map without a copy and every reader opens them. Arrays loaded with it share the mapping of the
 * file wherever the file's alignment allows it, on this process's own pages once they are written to, so that MLX may
 * reuse an input's memory and the file stays as it is.
 *
 * C++17 for safealign, C++20 for MLX's headers. Include it in a program that links MLX and safealign. Tested with MLX
 * 0.31.2 and 0.32.4 on Linux (CPU). It compiles against the same public headers for Metal, where it takes the mapping
 * by make_buffer, but it has not run there.
 *
 * Errors are std::runtime_error, with texts in MLX's style. The functions may be called from several threads at once.
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

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace safealign::mlx {

namespace core = ::mlx::core;

/// Arrays by name.
using Arrays = std::unordered_map<std::string, core::array>;
/// Metadata, string to string.
using StringMap = std::unordered_map<std::string, std::string>;

/// How the arrays of a load came to be.
struct LoadReport {
    /// Tensors in the file.
    std::size_t tensors = 0;
    /// Arrays that share the file's mapping. Empty ones count here: they have no bytes.
    std::size_t zero_copy = 0;
    /// Arrays that MLX reads into memory of its own when they are evaluated, because their offset is not a multiple of
    /// their dtype's width, or because this build of MLX takes no memory but its own.
    std::size_t copied = 0;
    /// Bytes of those.
    std::uint64_t bytes_copied = 0;
};

namespace detail {

inline std::runtime_error failure(const char* function, const std::string& what) {
    return std::runtime_error("[" + std::string(function) + "] " + what);
}

/// MLX's dtype as the format names it. MLX saves no float64, and neither does this.
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
            throw failure("save_safetensors", std::string("received invalid dtype ") +
                                                  (dtype == core::float64 ? "float64" : "of a newer MLX") +
                                                  " for array '" + name + "'.");
    }
}

/// The format's dtype as MLX loads it: 8-bit floats without a type in MLX come as their bytes.
inline core::Dtype loaded_dtype(Dtype dtype) {
    switch (dtype) {
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
            throw std::runtime_error("[safetensor] unsupported dtype " + std::string(name(dtype)));
    }
}

/// Arrays in the order of their names and as they will be written, and what describes them to safealign.
struct Prepared {
    std::vector<std::pair<std::string, core::array>> arrays;
    std::vector<Tensor> tensors;
    Metadata metadata;

    Prepared(const Arrays& named, const StringMap& texts) : metadata(texts.begin(), texts.end()) {
        std::sort(metadata.begin(), metadata.end());
        arrays.reserve(named.size());
        std::vector<core::array> to_evaluate;
        to_evaluate.reserve(named.size());
        for (const auto& [name, array] : named) {
            (void)saved_dtype(name, array.dtype());  // before anything is computed
            arrays.emplace_back(name, core::contiguous(array));
            to_evaluate.push_back(arrays.back().second);
        }
        core::eval(std::move(to_evaluate));
        std::sort(arrays.begin(), arrays.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
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
        throw failure("save_safetensors", "Failed to open " + out.label());
    }
}

/// An MLX buffer over the mapping of a file, and the array that owns it. Other arrays take their part of it.
class Mapping {
public:
    explicit Mapping(const File& file) : bytes_(file.bytes()) {
        if (file.size() == 0) {
            return;
        }
        Result<View> view = file.map_at(0);
        if (!view) {
            return;
        }
        auto* base = const_cast<std::byte*>(bytes_.data());
        // Metal: no copy of memory that begins and ends on a page, as a mapping does.
        constexpr std::size_t page = 16384;
        core::allocator::Buffer made =
            core::allocator::make_buffer(base, (bytes_.size() + page - 1) / page * page);
        const bool from_allocator = made.ptr() != nullptr;
        if (!from_allocator) {
            if (!buffers_are_sized_memory()) {
                return;
            }
            // A buffer of the CPU build is memory that begins with its size in 8 bytes. A file begins with the length of
            // its header in 8 bytes, so it is one as it stands.
            made = core::allocator::Buffer(base);
        }
        skip_ = from_allocator ? 0 : sizeof(std::size_t);
        void* owner = view.value().release().owner;
        auto release = [owner, from_allocator](core::allocator::Buffer buffer) {
            if (from_allocator) {
                core::allocator::release(buffer);
            }
            sa_view_release(owner);
        };
#if MLX_VERSION_NUMERIC >= 32000
        array_.emplace(core::allocator::Data(made, std::move(release)), core::Shape{1}, core::uint8);
#else
        array_.emplace(made, core::Shape{1}, core::uint8, std::move(release));
#endif
        // Asked and not assumed: another build of MLX may lay its buffers out differently.
        if (array_->data<std::byte>() != base + skip_) {
            array_.reset();
        }
    }

    /// The array of a tensor, if MLX takes the mapping and the tensor is aligned.
    std::optional<core::array> share(const TensorInfo& info, const core::Shape& shape, core::Dtype dtype) const {
        if (!array_ || info.is_misaligned || info.offset < skip_) {
            return std::nullopt;
        }
        const std::size_t width = core::size_of(dtype);
        core::array out(shape, dtype, nullptr, {});
        core::Strides strides(shape.size(), 1);
        std::int64_t stride = 1;
        std::size_t long_dimensions = 0;
        for (std::size_t at = shape.size(); at-- > 0;) {
            strides[at] = stride;
            stride *= shape[at];
            long_dimensions += shape[at] > 1 ? 1 : 0;
        }
        core::array::Flags flags{};
        flags.contiguous = true;
        flags.row_contiguous = true;
        flags.col_contiguous = long_dimensions <= 1;
        out.copy_shared_buffer(*array_, strides, flags, out.size(),
                               static_cast<std::int64_t>((info.offset - skip_) / width));
        out.set_status(core::array::Status::available);
        if (out.data<std::byte>() != bytes_.data() + info.offset) {
            return std::nullopt;
        }
        return out;
    }

private:
    /// Whether a buffer of this build is a pointer to its size, followed by its memory: seen on one of MLX's own.
    static bool buffers_are_sized_memory() {
        constexpr std::size_t size = 4321;
        // Freed by hand: what MLX 0.31 gives has no owner.
        const core::allocator::Buffer probe = core::allocator::allocator().malloc(size);
        core::allocator::Buffer raw = probe;
        const auto* start = static_cast<const std::byte*>(raw.ptr());
        const bool sized = start != nullptr && static_cast<const std::byte*>(raw.raw_ptr()) == start + sizeof(std::size_t);
        core::allocator::allocator().free(probe);
        return sized;
    }

    Bytes bytes_;
    std::size_t skip_ = 0;
    std::optional<core::array> array_;
};

inline core::Shape loaded_shape(const TensorInfo& info) {
    core::Shape shape;
    for (const std::uint64_t dimension : info.shape) {
        if (dimension > static_cast<std::uint64_t>(std::numeric_limits<core::ShapeElem>::max())) {
            throw failure("load_safetensors", "Tensor '" + std::string(info.name) + "' has a dimension of " +
                                                  std::to_string(dimension) + ", more than MLX can count.");
        }
        shape.push_back(static_cast<core::ShapeElem>(dimension));
    }
    return shape;
}

/// `load_safetensors`, with MLX's own function for the arrays that cannot share the mapping as an argument.
template <typename OwnLoad>
core::SafetensorsLoad load(const std::string& path, LoadReport* report, OwnLoad&& own_load) {
    OpenOptions options;
    // MLX may write a result into the memory of an input that it needs no more.
    options.map_mode = MapMode::CopyOnWrite;
    options.unaligned = Unaligned::Borrow;
    Result<File> opened = File::open(path, options);
    if (!opened) {
        const Error& error = opened.error();
        throw failure("load_safetensors",
                      error.status == Status::Io ? "Failed to open file " + error.message : error.message);
    }
    const File& file = opened.value();
    const Mapping mapping(file);
    core::SafetensorsLoad loaded;
    std::vector<std::string> unshared;
    LoadReport counted;
    counted.tensors = file.size();
    for (std::size_t index = 0; index < file.size(); ++index) {
        const TensorInfo info = file.at(index).value_or_throw();
        const core::Dtype dtype = loaded_dtype(info.dtype);
        const core::Shape shape = loaded_shape(info);
        if (info.nbytes == 0) {
            loaded.first.emplace(info.name, core::array(static_cast<const std::uint8_t*>(nullptr), shape, dtype));
        } else if (std::optional<core::array> shared = mapping.share(info, shape, dtype)) {
            loaded.first.emplace(info.name, *std::move(shared));
        } else {
            unshared.emplace_back(info.name);
            counted.bytes_copied += info.nbytes;
        }
    }
    if (!unshared.empty()) {
        core::SafetensorsLoad own = own_load();
        for (const std::string& name : unshared) {
            loaded.first.insert(own.first.extract(name));
        }
    }
    for (const auto& [key, value] : file.metadata()) {
        loaded.second.emplace(key, value);
    }
    counted.copied = unshared.size();
    counted.zero_copy = counted.tensors - counted.copied;
    if (report != nullptr) {
        *report = counted;
    }
    return loaded;
}

}  // namespace detail

/// Saves arrays through a writer of MLX's, in one pass: nothing is ever sought, so that a pipe or a Python file object
/// will do. What is written is what the function below writes to a file.
inline void save_safetensors(std::shared_ptr<core::io::Writer> out, Arrays arrays, StringMap metadata = {},
                             const WriteOptions& options = {}) {
#if MLX_VERSION_NUMERIC < 32000
    detail::require_open(*out);
#endif
    const detail::Prepared prepared(arrays, metadata);
    const Result<Plan> planned = Plan::make(prepared.tensors, prepared.metadata, options);
    if (!planned) {
        throw detail::failure("save_safetensors", planned.error().message);
    }
    const Plan& plan = planned.value();
#if MLX_VERSION_NUMERIC >= 32000
    // Opened only now, as MLX does it: lazy arrays may have been read from the same file.
    out->open();
    detail::require_open(*out);
#endif
    const Bytes header = plan.header();
    out->write(reinterpret_cast<const char*>(header.data()), header.size());
    for (std::size_t position = 0; position < plan.size(); ++position) {
        const Placement placement = plan.at(position).value_or_throw();
        detail::write_zeros(*out, placement.padding_before);
        const Bytes data = prepared.tensors[placement.input_index].data;
        if (data.size() > 0) {
            out->write(reinterpret_cast<const char*>(data.data()), data.size());
        }
    }
}

/// Saves arrays to a file, `.safetensors` appended to its name where that is missing, so that every tensor maps without a
/// copy. The file that is there stays until the new one is whole. Arrays are sorted by name: equal input gives equal
/// bytes. Arrays that are not contiguous are made so; empty and rank-0 arrays are saved; float64 is refused, as by MLX.
inline void save_safetensors(std::string file, Arrays arrays, StringMap metadata = {}, const WriteOptions& options = {}) {
    constexpr std::string_view extension = ".safetensors";
    if (file.size() < extension.size() || file.compare(file.size() - extension.size(), extension.size(), extension) != 0) {
        file += extension;
    }
    const detail::Prepared prepared(arrays, metadata);
    const Result<WriteReport> written = write_aligned(file, prepared.tensors, prepared.metadata, options);
    if (!written) {
        const Error& error = written.error();
        throw detail::failure("save_safetensors",
                              error.status == Status::Io ? "Failed to open file " + error.message : error.message);
    }
}

/// Loads a file: arrays that share its mapping, and its metadata. An array that cannot share it (see LoadReport) is the
/// one that MLX's own function makes: read lazily, when it is evaluated.
///
/// The mapping lives as long as any of the arrays. A file that is replaced meanwhile keeps its old values in them; one
/// that is overwritten in place changes under them.
///
/// @param report  Null, or receives how the arrays came to be.
inline core::SafetensorsLoad load_safetensors(const std::string& file, core::StreamOrDevice s = {},
                                              LoadReport* report = nullptr) {
    return detail::load(file, report, [&] { return core::load_safetensors(file, s); });
}

}  // namespace safealign::mlx

#endif  // SAFEALIGN_MLX_HPP
