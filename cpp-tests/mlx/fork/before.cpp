// The save path of a fork. In before.cpp it works as MLX's does: the header as long as its JSON, the tensors behind it in
// the order of the map. In after.cpp it is changed as docs/mlx-fork.md says. A test counts the lines between the two.

#include "fork.hpp"

#include <mlx/mlx.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

using namespace mlx::core;

namespace forked {

namespace {

std::string name_of(Dtype dtype) {
    static const std::vector<std::pair<Dtype, std::string>> names = {
        {bool_, "BOOL"}, {uint8, "U8"},   {uint16, "U16"},   {uint32, "U32"},    {uint64, "U64"},  {int8, "I8"},
        {int16, "I16"},  {int32, "I32"},  {int64, "I64"},    {float16, "F16"},   {bfloat16, "BF16"},
        {float32, "F32"}, {complex64, "C64"},
    };
    for (const auto& [known, name] : names) {
        if (known == dtype) {
            return name;
        }
    }
    throw std::runtime_error("[save_safetensors] no name for this dtype.");
}

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char letter : text) {
        if (letter == '"' || letter == '\\') {
            out += '\\';
        }
        out += letter;
    }
    return out + "\"";
}

}  // namespace

void save_safetensors(std::shared_ptr<io::Writer> out, std::unordered_map<std::string, array> arrays,
                      std::unordered_map<std::string, std::string> metadata) {
    std::vector<array> in_order;
    for (auto& [name, value] : arrays) {
        value = contiguous(value);
        in_order.push_back(value);
    }
    eval(in_order);
#if MLX_VERSION_NUMERIC >= 32003
    out->open();
#endif
    if (!out->good() || !out->is_open()) {
        throw std::runtime_error("[save_safetensors] cannot open " + out->label());
    }
    std::string json = "{\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
        json += (json.back() == '{' ? "" : ",") + quoted(key) + ":" + quoted(value);
    }
    json += "}";
    std::size_t offset = 0;
    for (const auto& [name, value] : arrays) {
        json += "," + quoted(name) + ":{\"dtype\":\"" + name_of(value.dtype()) + "\",\"shape\":[";
        for (const auto length : value.shape()) {
            json += (json.back() == '[' ? "" : ",") + std::to_string(length);
        }
        json += "],\"data_offsets\":[" + std::to_string(offset) + ",";
        offset += value.nbytes();
        json += std::to_string(offset) + "]}";
    }
    json += "}";
    const std::uint64_t length = json.size();
    out->write(reinterpret_cast<const char*>(&length), sizeof length);
    out->write(json.data(), json.size());
    for (const auto& [name, value] : arrays) {
        out->write(value.data<char>(), value.nbytes());
    }
}

void save_safetensors(std::string file, std::unordered_map<std::string, array> arrays,
                      std::unordered_map<std::string, std::string> metadata) {
    const std::string extension = ".safetensors";
    if (file.size() < extension.size() || file.substr(file.size() - extension.size()) != extension) {
        file += extension;
    }
    forked::save_safetensors(std::make_shared<io::FileWriter>(file), std::move(arrays), std::move(metadata));
}

SafetensorsLoad load_safetensors(const std::string& file, StreamOrDevice s) {
    return mlx::core::load_safetensors(file, s);
}

}  // namespace forked
