// The steps of scripts/mlx_table.sh, each a process of its own:
//
//     mlx_table write DIRECTORY           27 files with 2,999 tensors, by MLX's own save function
//     mlx_table align FROM TO          the same files through sa_write_aligned
//     mlx_table evict DIRECTORY           out of the page cache
//     mlx_table load mlx|safealign DIRECTORY
//         loads all, touches every byte, and prints: tensors, those of them that share a mapping, growth of anonymous memory
//         in KiB, minor and major faults, milliseconds until loaded and until touched, bytes, and a sum over the bytes

#include <safealign_mlx.hpp>

#include <mlx/mlx.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace mx = mlx::core;
using safealign::mlx::Arrays;

namespace {

constexpr int files = 27;
constexpr int tensors = 2999;

std::vector<std::filesystem::path> files_in(const std::string& directory) {
    std::vector<std::filesystem::path> out;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
        if (entry.path().extension() == ".safetensors") {
            out.push_back(entry.path());
        }
    }
    std::sort(out.begin(), out.end());
    return out;
}

/// As a 4-bit quantised model has them: packed weights, their scales and biases, norms.
struct Kind {
    const char* name;
    mx::Dtype dtype;
    mx::Shape shape;
};

const Kind kinds[] = {
    {"mlp.down_proj.weight", mx::uint32, {1152, 512}},      {"mlp.down_proj.scales", mx::bfloat16, {1152, 64}},
    {"mlp.down_proj.biases", mx::bfloat16, {1152, 64}},     {"self_attn.q_proj.weight", mx::uint32, {1152, 512}},
    {"self_attn.q_proj.scales", mx::float16, {1152, 64}},   {"self_attn.q_proj.biases", mx::float16, {1152, 64}},
    {"input_layernorm.weight", mx::float32, {4096}},
};

std::uint64_t random_state = 1;

mx::array filled(const Kind& kind) {
    std::size_t bytes = mx::size_of(kind.dtype);
    for (const auto length : kind.shape) {
        bytes *= static_cast<std::size_t>(length);
    }
    mx::array words = mx::zeros({static_cast<int>(bytes / 8)}, mx::uint64);
    words.eval();
    auto* data = words.data<std::uint64_t>();
    for (std::size_t at = 0; at < bytes / 8; ++at) {
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        data[at] = random_state;
    }
    return mx::reshape(mx::view(words, kind.dtype), kind.shape);
}

void write(const std::string& directory) {
    std::filesystem::create_directories(directory);
    constexpr int kind_count = sizeof kinds / sizeof *kinds;
    int number = 0;
    for (int file = 0; file < files; ++file) {
        Arrays arrays;
        for (const int end = tensors * (file + 1) / files; number < end; ++number) {
            const Kind& kind = kinds[number % kind_count];
            arrays.insert_or_assign("model.layers." + std::to_string(number / kind_count) + "." + kind.name, filled(kind));
        }
        char name[64];
        std::snprintf(name, sizeof name, "/model-%05d-of-%05d.safetensors", file + 1, files);
        mx::save_safetensors(directory + name, arrays, {{"format", "mlx"}});
    }
}

void align(const std::string& from, const std::string& to) {
    std::filesystem::create_directories(to);
    safealign::OpenOptions options;
    options.unaligned = safealign::Unaligned::Borrow;
    for (const auto& path : files_in(from)) {
        const auto file = safealign::File::open(path.native(), options).value_or_throw();
        std::vector<safealign::View> views;
        std::vector<safealign::Tensor> list;
        for (std::size_t at = 0; at < file.size(); ++at) {
            const auto info = file.at(at).value_or_throw();
            views.push_back(file.map_at(at).value_or_throw());
            list.push_back({info.name, info.dtype, {info.shape.begin(), info.shape.end()}, views.back().bytes()});
        }
        safealign::Metadata metadata;
        for (const auto& [key, value] : file.metadata()) {
            metadata.emplace_back(key, value);
        }
        (void)safealign::write_aligned((to / path.filename()).native(), list, metadata).value_or_throw();
    }
}

void evict(const std::string& directory) {
    for (const auto& path : files_in(directory)) {
        const int file = open(path.c_str(), O_RDONLY);
        fsync(file);
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
    }
}

std::int64_t anonymous_kib() {
    std::ifstream rollup("/proc/self/smaps_rollup");
    for (std::string word; rollup >> word;) {
        if (word == "Anonymous:") {
            std::int64_t kib = 0;
            rollup >> kib;
            return kib;
        }
    }
    return -1;
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// Does not depend on the order of the tensors.
std::uint64_t touched(const mx::array& array) {
    const char* data = array.data<char>();
    std::uint64_t sum = 0;
    for (std::size_t at = 0; at + 8 <= array.nbytes(); at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, data + at, sizeof word);
        sum += word ^ (sum << 1);
    }
    return sum;
}

void load(bool by_mlx, const std::string& directory) {
    mx::eval(mx::zeros({1}));  // threads that are there once
    const std::vector<std::filesystem::path> paths = files_in(directory);
    rusage before{};
    getrusage(RUSAGE_SELF, &before);
    const std::int64_t anonymous = anonymous_kib();
    const auto start = std::chrono::steady_clock::now();
    std::vector<mx::array> all;
    std::size_t zero_copy = 0;
    for (const auto& path : paths) {
        safealign::mlx::LoadReport report;
        const Arrays loaded = by_mlx ? mx::load_safetensors(path.native()).first
                                     : safealign::mlx::load_safetensors(path.native(), {}, {}, report).first;
        zero_copy += report.zero_copy;
        for (const auto& [name, array] : loaded) {
            all.push_back(array);
        }
    }
    mx::eval(all);
    const double loaded_after = milliseconds_since(start);
    std::uint64_t sum = 0;
    std::uint64_t bytes = 0;
    for (const mx::array& array : all) {
        sum += touched(array);
        bytes += array.nbytes();
    }
    const double touched_after = milliseconds_since(start);
    rusage after{};
    getrusage(RUSAGE_SELF, &after);
    std::printf("%zu %zu %" PRId64 " %ld %ld %.0f %.0f %" PRIu64 " %" PRIx64 "\n", all.size(), zero_copy,
                anonymous_kib() - anonymous, after.ru_minflt - before.ru_minflt, after.ru_majflt - before.ru_majflt,
                loaded_after, touched_after, bytes, sum);
}

}  // namespace

int main(int argc, char** argv) {
    mx::set_default_device(mx::Device::cpu);
    const std::string step = argc > 2 ? argv[1] : "";
    try {
        if (step == "write") {
            write(argv[2]);
        } else if (step == "align" && argc == 4) {
            align(argv[2], argv[3]);
        } else if (step == "evict") {
            evict(argv[2]);
        } else if (step == "load" && argc == 4) {
            load(argv[2] == std::string("mlx"), argv[3]);
        } else {
            std::fputs("usage: mlx_table write|align|evict|load ...; see the source\n", stderr);
            return 2;
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "mlx_table: %s\n", error.what());
        return 1;
    }
    return 0;
}
