// Arrays and files for the tests with MLX.

#ifndef ARRAYS_HPP
#define ARRAYS_HPP

#include "../samples.hpp"

#include <safealign_mlx.hpp>

#include <mlx/mlx.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace arrays {

namespace mx = ::mlx::core;
using safealign::mlx::Arrays;

inline const std::vector<mx::Dtype> dtypes = {
    mx::bool_, mx::uint8, mx::uint16,  mx::uint32,   mx::uint64,  mx::int8,      mx::int16,
    mx::int32, mx::int64, mx::float16, mx::bfloat16, mx::float32, mx::complex64,
};

/// The format's name for a dtype of MLX. Repeated here, so that the tests do not depend on the adapter for it.
inline std::string format_name(mx::Dtype dtype) {
    switch (dtype.val()) {
        case mx::Dtype::Val::bool_:
            return "BOOL";
        case mx::Dtype::Val::uint8:
            return "U8";
        case mx::Dtype::Val::uint16:
            return "U16";
        case mx::Dtype::Val::uint32:
            return "U32";
        case mx::Dtype::Val::uint64:
            return "U64";
        case mx::Dtype::Val::int8:
            return "I8";
        case mx::Dtype::Val::int16:
            return "I16";
        case mx::Dtype::Val::int32:
            return "I32";
        case mx::Dtype::Val::int64:
            return "I64";
        case mx::Dtype::Val::float16:
            return "F16";
        case mx::Dtype::Val::bfloat16:
            return "BF16";
        case mx::Dtype::Val::float32:
            return "F32";
        case mx::Dtype::Val::complex64:
            return "C64";
        default:
            return "F64";
    }
}

/// Elements that differ from each other, in every dtype.
inline mx::array counted(mx::Shape shape, mx::Dtype dtype, int from = 1) {
    int size = 1;
    for (const auto length : shape) {
        size *= length;
    }
    const mx::array numbers = mx::arange(from, from + size, mx::int32);
    mx::array out = dtype == mx::bool_ ? mx::equal(mx::remainder(numbers, mx::array(3)), mx::array(1))
                                       : mx::astype(numbers, dtype);
    if (dtype == mx::complex64) {
        out = mx::multiply(out, mx::array(mx::complex64_t{1.0f, 0.5f}));
    }
    return mx::reshape(out, std::move(shape));
}

/// The elements of an array in row-major order, through MLX's own operations.
inline std::vector<unsigned char> bytes_of(mx::array array) {
    array = mx::contiguous(array);
    array.eval();
    std::vector<unsigned char> out(array.nbytes());
    if (!out.empty()) {
        std::memcpy(out.data(), array.data<char>(), out.size());
    }
    return out;
}

/// Same dtype, shape and bytes: NaNs too.
inline bool same(const mx::array& left, const mx::array& right) {
    return left.dtype() == right.dtype() && left.shape() == right.shape() && bytes_of(left) == bytes_of(right);
}

/// Whether an array's memory is a part of a file's mapping.
inline bool is_mapped(const mx::array& array, const std::string& file) {
    const auto address = reinterpret_cast<std::uintptr_t>(array.data<char>());
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        unsigned long long begin = 0;
        unsigned long long end = 0;
        if (std::sscanf(line.c_str(), "%llx-%llx", &begin, &end) == 2 && begin <= address && address < end) {
            return line.find(file) != std::string::npos;
        }
    }
    return false;
}

/// Every dtype behind a tensor of one byte, empty, rank-0, transposed, sliced and broadcast arrays, names in other scripts.
inline Arrays all_kinds() {
    Arrays out;
    for (const mx::Dtype dtype : dtypes) {
        const std::string name = format_name(dtype);
        out.insert_or_assign("byte before " + name, counted({1}, mx::uint8));
        out.insert_or_assign(name, counted({4, 3}, dtype));
        out.insert_or_assign("scalar " + name, counted({}, dtype, 7));
        out.insert_or_assign("empty " + name, mx::zeros({0, 3}, dtype));
        out.insert_or_assign("transposed " + name, mx::transpose(counted({5, 3}, dtype)));
        out.insert_or_assign("sliced " + name, mx::slice(counted({6, 7}, dtype), {1, 2}, {6, 7}, {2, 3}));
    }
    out.insert_or_assign("empty in the middle", mx::zeros({2, 0, 2}, mx::float32));
    out.insert_or_assign("broadcast", mx::broadcast_to(mx::array(2.5f), {3, 5}));
    out.insert_or_assign("reversed", mx::slice(counted({9}, mx::int32), {8}, {-10}, {-1}));
    out.insert_or_assign("rows of a larger array", mx::slice(counted({64, 1024}, mx::float32), {3, 0}, {5, 1024}));
    out.insert_or_assign("\xe5\xb1\x82.\xd0\xb2\xd0\xb5\xd1\x81", counted({3}, mx::float32));
    out.insert_or_assign("\xf0\x9f\xa6\x80 \"\\ \n", counted({2}, mx::bfloat16));
    out.insert_or_assign("", counted({2}, mx::int64));
    return out;
}

}  // namespace arrays

#endif
