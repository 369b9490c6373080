// Tensors for the tests, and files written without alignment.

#ifndef SAMPLES_HPP
#define SAMPLES_HPP

#include <safealign.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace samples {

/// Creates an empty directory of this name and makes it the current directory.
inline void work_in(const std::string& directory) {
    std::filesystem::remove_all(directory);
    std::filesystem::create_directories(directory);
    std::filesystem::current_path(directory);
}

using safealign::Dtype;

inline constexpr Dtype all_dtypes[] = {
    Dtype::Bool,        Dtype::U8,  Dtype::I8,  Dtype::F8_E5M2, Dtype::F8_E4M3, Dtype::F8_E8M0, Dtype::F8_E4M3FNUZ,
    Dtype::F8_E5M2FNUZ, Dtype::I16, Dtype::U16, Dtype::F16,     Dtype::BF16,    Dtype::I32,     Dtype::U32,
    Dtype::F32,         Dtype::I64, Dtype::U64, Dtype::F64,     Dtype::C64,     Dtype::F4,      Dtype::F6_E2M3,
    Dtype::F6_E3M2,
};

/// Bytes that an offset has to be a multiple of. Repeated here intentionally, so that the tests do not depend on the
/// library for it.
inline std::size_t width_of(Dtype dtype) {
    switch (dtype) {
    case Dtype::I16: case Dtype::U16: case Dtype::F16: case Dtype::BF16:
        return 2;
    case Dtype::I32: case Dtype::U32: case Dtype::F32:
        return 4;
    case Dtype::I64: case Dtype::U64: case Dtype::F64: case Dtype::C64:
        return 8;
    default:
        return 1;
    }
}

inline std::uint64_t bits_of(Dtype dtype) {
    switch (dtype) {
    case Dtype::F4:
        return 4;
    case Dtype::F6_E2M3: case Dtype::F6_E3M2:
        return 6;
    default:
        return width_of(dtype) * 8;
    }
}

struct Sample {
    std::string name;
    Dtype dtype;
    std::vector<std::uint64_t> shape;
    std::vector<unsigned char> bytes;

    safealign::Tensor tensor() const { return {name, dtype, shape, safealign::bytes_of(bytes)}; }
    safealign::TensorSpec spec() const { return {name, dtype, shape, bytes.size()}; }
};

/// Bytes that differ from tensor to tensor and from place to place; of a BOOL 0 and 1 only.
inline Sample sample(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
    std::uint64_t bits = bits_of(dtype);
    for (const std::uint64_t length : shape) {
        bits *= length;
    }
    std::vector<unsigned char> bytes(static_cast<std::size_t>(bits / 8));
    std::uint32_t state = 2166136261u;
    for (const char letter : name) {
        state = (state ^ static_cast<unsigned char>(letter)) * 16777619u;
    }
    for (unsigned char& byte : bytes) {
        state = state * 1664525u + 1013904223u;
        byte = static_cast<unsigned char>(dtype == Dtype::Bool ? (state >> 24) & 1 : state >> 24);
    }
    return {std::move(name), dtype, std::move(shape), std::move(bytes)};
}

/// Tensors of 3, 10, 1 and 6 bytes before wider ones: packed in this order, nearly every wide one is misaligned.
inline std::vector<Sample> hostile() {
    return {
        sample("three", Dtype::U8, {3}),        sample("f32", Dtype::F32, {5}),
        sample("ten", Dtype::BF16, {5}),        sample("f64", Dtype::F64, {3}),
        sample("one", Dtype::Bool, {1}),        sample("i64", Dtype::I64, {2, 2}),
        sample("six", Dtype::F16, {3}),         sample("big", Dtype::F32, {16, 16}),
        sample("scalar", Dtype::F64, {}),       sample("empty", Dtype::F32, {0, 7}),
        sample("scalar u8", Dtype::U8, {}),     sample("u32", Dtype::U32, {7}),
        sample("", Dtype::I16, {2}),            sample("n\xc3\xa4me \"\\ \n", Dtype::I32, {1, 1, 3}),
    };
}

/// One tensor of every dtype, each behind a tensor of one byte.
inline std::vector<Sample> every_dtype() {
    std::vector<Sample> out;
    for (const Dtype dtype : all_dtypes) {
        const std::string name(safealign::name(dtype));
        out.push_back(sample("byte before " + name, Dtype::U8, {1}));
        out.push_back(sample(name, dtype, {4, 3}));
    }
    return out;
}

inline std::vector<safealign::Tensor> tensors(const std::vector<Sample>& samples) {
    std::vector<safealign::Tensor> out;
    for (const Sample& one : samples) {
        out.push_back(one.tensor());
    }
    return out;
}

inline std::vector<safealign::TensorSpec> specs(const std::vector<Sample>& samples) {
    std::vector<safealign::TensorSpec> out;
    for (const Sample& one : samples) {
        out.push_back(one.spec());
    }
    return out;
}

/// For names in which only quotes, backslashes and line feeds need escapes.
inline std::string json_text(std::string_view text) {
    std::string out = "\"";
    for (const char letter : text) {
        if (letter == '\n') {
            out += "\\n";
        } else {
            if (letter == '"' || letter == '\\') {
                out += '\\';
            }
            out += letter;
        }
    }
    return out + '"';
}

inline void write_file(const std::string& path, std::string_view bytes) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.flush();
    if (!out) {
        std::fprintf(stderr, "cannot write %s\n", path.c_str());
        std::abort();
    }
}

inline std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Writes a file without alignment: a header without padding, and the tensors without gaps in the given order.
inline void write_packed(const std::string& path, const std::vector<Sample>& samples) {
    std::string json = "{";
    std::string data;
    for (const Sample& one : samples) {
        if (json.size() > 1) {
            json += ",";
        }
        json += json_text(one.name) + ":{\"dtype\":\"" + std::string(safealign::name(one.dtype)) + "\",\"shape\":[";
        for (std::size_t at = 0; at < one.shape.size(); ++at) {
            json += (at > 0 ? "," : "") + std::to_string(one.shape[at]);
        }
        json += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
        data.append(reinterpret_cast<const char*>(one.bytes.data()), one.bytes.size());
        json += std::to_string(data.size()) + "]}";
    }
    json += "}";
    std::string file(8, '\0');
    for (std::size_t at = 0; at < 8; ++at) {
        file[at] = static_cast<char>(json.size() >> (8 * at) & 0xff);
    }
    write_file(path, file + json + data);
}

inline bool same_bytes(safealign::Bytes found, const std::vector<unsigned char>& expected) {
    return found.size() == expected.size() &&
           (expected.empty() || std::memcmp(found.data(), expected.data(), expected.size()) == 0);
}

inline safealign::WriteOptions fast() {
    safealign::WriteOptions options;
    options.durability = safealign::Durability::NotDurable;
    return options;
}

}  // namespace samples

#endif
