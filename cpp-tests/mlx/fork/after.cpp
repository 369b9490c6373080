// The save path of a fork. In before.cpp it works as MLX's does: the header as long as its JSON, the tensors behind it in
// the order of the map. In after.cpp it is changed as docs/mlx-fork.md says. A test counts the lines between the two.

#include "fork.hpp"

#include <mlx/mlx.h>
#include <safealign_mlx.hpp>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

using namespace mlx::core;

namespace forked {

void save_safetensors(std::shared_ptr<io::Writer> out, std::unordered_map<std::string, array> arrays,
                      std::unordered_map<std::string, std::string> metadata) {
    safealign::mlx::save_safetensors(std::move(out), std::move(arrays), std::move(metadata));
}

void save_safetensors(std::string file, std::unordered_map<std::string, array> arrays,
                      std::unordered_map<std::string, std::string> metadata) {
    safealign::mlx::save_safetensors(std::move(file), std::move(arrays), std::move(metadata));
}

SafetensorsLoad load_safetensors(const std::string& file, StreamOrDevice s) {
    return safealign::mlx::load_safetensors(file, s);
}

}  // namespace forked
