// Runs MLX: reads one command per line, and prints nanoseconds, or KiB of anonymous memory.

#include <mlx/mlx.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace mx = mlx::core;
using Arrays = std::unordered_map<std::string, mx::array>;

static std::uint64_t anonymous_kib() {
    std::ifstream rollup("/proc/self/smaps_rollup");
    for (std::string word; rollup >> word;) {
        if (word == "Anonymous:") {
            std::uint64_t kib = 0;
            rollup >> kib;
            return kib;
        }
    }
    return 0;
}

static Arrays model(const std::string& recipe) {
    const std::unordered_map<std::string, mx::Dtype> dtypes = {
        {"F32", mx::float32}, {"BF16", mx::bfloat16}, {"U32", mx::uint32}, {"U8", mx::uint8}};
    Arrays arrays;
    std::ifstream lines(recipe);
    std::string name, dtype;
    int rows = 0, columns = 0;
    while (lines >> name >> dtype >> rows >> columns) {
        const auto [at, added] = arrays.emplace(name, mx::ones({rows, columns}, dtypes.at(dtype)));
        mx::eval(at->second);
    }
    return arrays;
}

static std::uint64_t touch(const std::string& path) {
    const std::uint64_t before = anonymous_kib();
    const auto loaded = mx::load_safetensors(path);
    std::vector<mx::array> held;
    for (const auto& [name, array] : loaded.first) {
        held.push_back(array);
    }
    mx::eval(held);
    std::uint64_t total = 0;
    for (const auto& array : held) {
        const auto* bytes = array.data<std::uint8_t>();
        for (std::size_t at = 0; at < array.nbytes(); at += 4096) {
            total += bytes[at];
        }
    }
    const std::uint64_t grown = anonymous_kib() - before;
    return total == UINT64_MAX ? 0 : grown;
}

int main() {
    Arrays arrays;
    for (std::string line; std::getline(std::cin, line);) {
        // Released before the clock starts.
        std::optional<mx::SafetensorsLoad> loaded;
        std::istringstream words(line);
        std::string command, path;
        words >> command >> path;
        const auto start = std::chrono::steady_clock::now();
        if (command == "quit") {
            return 0;
        }
        if (command == "model") {
            arrays = model(path);
        } else if (command == "write") {
            mx::save_safetensors(path, arrays);
        } else if (command == "open") {
            loaded.emplace(mx::load_safetensors(path));
        } else if (command == "touch") {
            std::cout << touch(path) << std::endl;
            continue;
        } else {
            std::cerr << "unknown command " << command << '\n';
            return 2;
        }
        const auto took = std::chrono::steady_clock::now() - start;
        std::cout << std::chrono::duration_cast<std::chrono::nanoseconds>(took).count() << std::endl;
    }
}
