// Writes files for readers.py, and their content as a JSON object of file, tensor, dtype, shape and bytes in hex.

#include "check.h"
#include "samples.hpp"

using namespace samples;

namespace {

std::string described(const std::vector<Sample>& samples) {
    std::string out = "{";
    for (const Sample& one : samples) {
        out += (out.size() > 1 ? ",\n    " : "\n    ") + json_text(one.name) + ": {\"dtype\": " +
               json_text(safealign::name(one.dtype)) + ", \"shape\": [";
        for (std::size_t at = 0; at < one.shape.size(); ++at) {
            out += (at > 0 ? ", " : "") + std::to_string(one.shape[at]);
        }
        out += "], \"hex\": \"";
        for (const unsigned char byte : one.bytes) {
            constexpr std::string_view digits = "0123456789abcdef";
            out += digits[byte >> 4];
            out += digits[byte & 15];
        }
        out += "\"}";
    }
    return out + "}";
}

/// MLX 0.32.4 loads neither F64 nor floats of less than 16 bits.
bool mlx_has(Dtype dtype) {
    const std::string_view name = safealign::name(dtype);
    return dtype != Dtype::F64 && name.substr(0, 2) != "F8" && name.substr(0, 2) != "F6" && dtype != Dtype::F4;
}

}  // namespace

int main() {
    work_in("samples");
    const safealign::Metadata metadata = {{"format", "mlx"}, {"\xc3\xa4 \"key\"", ""}};
    std::vector<Sample> for_mlx;
    for (const std::vector<Sample>& some : {hostile(), every_dtype()}) {
        for (const Sample& one : some) {
            if (mlx_has(one.dtype)) {
                for_mlx.push_back(one);
            }
        }
    }

    CHECK(safealign::write_aligned("hostile.safetensors", tensors(hostile()), metadata));
    CHECK(safealign::write_aligned("every dtype.safetensors", tensors(every_dtype()), metadata));
    CHECK(safealign::write_aligned("mlx.safetensors", tensors(for_mlx), metadata));
    CHECK(safealign::write_aligned("nothing.safetensors", {}, {}));
    safealign::WriteOptions padded;
    padded.layout = safealign::Layout::Padded;
    padded.alignment = 8;
    CHECK(safealign::write_aligned("padded.safetensors", tensors(for_mlx), metadata, padded));
    // Control for the check in readers.py.
    write_packed("packed.safetensors", for_mlx);
    write_file("samples.json", "{\"hostile.safetensors\": " + described(hostile()) +
                                   ",\n\"every dtype.safetensors\": " + described(every_dtype()) +
                                   ",\n\"mlx.safetensors\": " + described(for_mlx) +
                                   ",\n\"nothing.safetensors\": {},\n\"padded.safetensors\": " + described(for_mlx) +
                                   ",\n\"packed.safetensors\": " + described(for_mlx) + "}\n");
    return check_report();
}
