// Opens each file, rewrites it with safealign, opens the result, and prints the copies and the memory use of both.
//
//     demo DIRECTORY FILE...
//
// The rewritten files are written to DIRECTORY. Each file is opened in a separate process, which maps every tensor and
// reads every byte. The memory use is the growth of the process's anonymous memory (/proc/self/smaps_rollup).

#include <safealign.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace {

// The result of opening a file and reading every byte.
struct Cost {
    std::uint64_t tensors = 0;
    std::uint64_t zero_copy = 0;
    std::uint64_t bytes_copied = 0;
    std::uint64_t anonymous_kib = 0;
    // Keeps the reads from being optimised away, and is compared between the two files.
    std::uint64_t sum = 0;
};

// Anonymous memory of this process, in KiB.
std::uint64_t anonymous_kib() {
    std::ifstream rollup("/proc/self/smaps_rollup");
    for (std::string word; rollup >> word;) {
        if (word == "Anonymous:") {
            std::uint64_t kib = 0;
            rollup >> kib;
            return kib;
        }
    }
    std::fputs("demo: cannot read /proc/self/smaps_rollup; the demo requires Linux\n", stderr);
    std::exit(2);
}

Cost open_and_touch(const std::string& path) {
    Cost cost;
    const std::uint64_t before = anonymous_kib();
    const safealign::File file = safealign::File::open(path).value_or_throw();
    std::vector<safealign::View> views;
    views.reserve(file.size());
    for (std::size_t index = 0; index < file.size(); ++index) {
        views.push_back(file.map_at(index).value_or_throw());
        // Does not depend on the order of the tensors, which differs between the two files.
        std::uint64_t sum = 0;
        for (std::byte byte : views.back().bytes()) {
            sum = sum * 31 + static_cast<std::uint64_t>(byte);
        }
        cost.sum += sum;
    }
    cost.anonymous_kib = anonymous_kib() - before;
    const safealign::Stats stats = file.stats();
    cost.tensors = stats.tensors;
    cost.zero_copy = stats.tensors - stats.tensors_copied;
    cost.bytes_copied = stats.bytes_copied;
    return cost;
}

void rewrite(const std::string& from, const std::string& to) {
    const safealign::File file = safealign::File::open(from).value_or_throw();
    std::vector<safealign::View> views;
    std::vector<safealign::Tensor> tensors;
    for (std::size_t index = 0; index < file.size(); ++index) {
        const safealign::TensorInfo info = file.at(index).value_or_throw();
        views.push_back(file.map_at(index).value_or_throw());
        tensors.push_back(
            {std::string(info.name), info.dtype, {info.shape.begin(), info.shape.end()}, views.back().bytes()});
    }
    safealign::Metadata metadata;
    for (const auto& [key, value] : file.metadata()) {
        metadata.emplace_back(key, value);
    }
    (void)safealign::write_aligned(to, tensors, metadata).value_or_throw();
}

// Runs `work` in a separate process and returns its result.
template <typename Work>
Cost apart(Work work) {
    int ends[2];
    if (pipe(ends) != 0) {
        throw std::runtime_error("pipe");
    }
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        int code = 0;
        try {
            const Cost cost = work();
            code = write(ends[1], &cost, sizeof cost) == static_cast<ssize_t>(sizeof cost) ? 0 : 2;
        } catch (const std::exception& error) {
            std::fprintf(stderr, "demo: %s\n", error.what());
            code = 2;
        }
        _exit(code);
    }
    close(ends[1]);
    Cost cost;
    const bool complete = read(ends[0], &cost, sizeof cost) == static_cast<ssize_t>(sizeof cost);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (!complete || status != 0) {
        throw std::runtime_error("a child process failed");
    }
    return cost;
}

void print(const char* name, const char* when, const Cost& cost) {
    const std::string zero_copy = std::to_string(cost.zero_copy) + " / " + std::to_string(cost.tensors);
    std::printf("| %-34s | %-10s | %13s | %13" PRIu64 " | %8.2f MiB |\n", name, when, zero_copy.c_str(),
                cost.bytes_copied, static_cast<double>(cost.anonymous_kib) / 1024);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) {
        std::fputs("usage: demo DIRECTORY FILE...\n", stderr);
        return 2;
    }
    const std::string directory = argv[1];
    std::printf("| %-34s | %-10s | %13s | %13s | %12s |\n", "file", "", "zero-copy", "bytes copied", "anonymous");
    std::puts("|------------------------------------|------------|--------------:|--------------:|-------------:|");
    bool good = true;
    try {
        for (int at = 2; at < argc; ++at) {
            const std::string from = argv[at];
            const std::string name = from.substr(from.find_last_of('/') + 1);
            const std::string to = directory + "/" + name;
            const Cost before = apart([&] { return open_and_touch(from); });
            apart([&] {
                rewrite(from, to);
                return Cost{};
            });
            const Cost after = apart([&] { return open_and_touch(to); });
            print(name.c_str(), "as written", before);
            print("", "safealign", after);
            const bool all_mapped = after.zero_copy == after.tensors && after.bytes_copied == 0;
            if (!all_mapped || after.sum != before.sum || after.anonymous_kib >= 1024) {
                std::fprintf(stderr, "demo: %s: not every tensor is mapped, or the bytes differ\n", to.c_str());
                good = false;
            }
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "demo: %s\n", error.what());
        return 2;
    }
    return good ? 0 : 1;
}
