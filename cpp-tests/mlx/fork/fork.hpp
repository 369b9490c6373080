// The functions of a fork of MLX that docs/mlx-fork.md is about, under names of their own: before.cpp and after.cpp both
// have them.

#ifndef FORK_HPP
#define FORK_HPP

#include <mlx/io.h>

#include <memory>
#include <string>
#include <unordered_map>

namespace forked {

void save_safetensors(std::shared_ptr<mlx::core::io::Writer> out,
                      std::unordered_map<std::string, mlx::core::array> arrays,
                      std::unordered_map<std::string, std::string> metadata = {});
void save_safetensors(std::string file, std::unordered_map<std::string, mlx::core::array> arrays,
                      std::unordered_map<std::string, std::string> metadata = {});
mlx::core::SafetensorsLoad load_safetensors(const std::string& file, mlx::core::StreamOrDevice s = {});

}  // namespace forked

#endif
