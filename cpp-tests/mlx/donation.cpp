// MLX may write a result into the memory of an input that is not used any more. A mapped file must not change.
//
//     donation                checks
//     donation sealed FILE    the control: the same with the mapping made read-only, which MLX 0.31 faults on

#include "../check.h"
#include "arrays.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace arrays;

namespace {

constexpr int size = 4096;

mx::array extracted(Arrays& loaded) {
    return loaded.extract("x").mapped();
}

mx::array loaded_one(const char* file) {
    Arrays loaded = safealign::mlx::load_safetensors(file).first;
    return extracted(loaded);
}

struct Use {
    const char* name;
    /// Takes the array, so that its only owner is the graph.
    mx::array (*of)(mx::array&&);
};

mx::array plus_one(mx::array&& x) {
    const mx::array held = std::exchange(x, mx::array(0));
    return mx::add(held, mx::array(1.0f));
}

const Use uses[] = {
    {"eager",
     [](mx::array&& x) {
         mx::array y = plus_one(std::move(x));
         y.eval();
         return y;
     }},
    {"lazy",
     [](mx::array&& x) { return mx::multiply(mx::abs(mx::negative(plus_one(std::move(x)))), mx::array(2.0f)); }},
    {"compiled",
     [](mx::array&& x) {
         static const auto function = mx::compile([](const std::vector<mx::array>& in) {
             return std::vector<mx::array>{mx::exp(mx::negative(mx::add(in[0], mx::array(1.0f))))};
         });
         const std::vector<mx::array> in = {std::exchange(x, mx::array(0))};
         return function(in)[0];
     }},
    {"slice update",
     [](mx::array&& x) {
         const mx::array held = std::exchange(x, mx::array(0));
         return mx::slice_update(held, mx::array({7.0f, 8.0f}), mx::Shape{3}, mx::Shape{5});
     }},
};

/// Whether MLX wrote the result into the memory of the array, which is that of the file.
bool consumed_in_place(const char* file, const Use& use, const mx::array& expected) {
    Arrays others = safealign::mlx::load_safetensors(file).first;
    mx::array x = extracted(others);
    const void* before = x.data<char>();
    mx::array y = use.of(std::move(x));
    y.eval();
    CHECK(same(y, expected));
    return y.data<char>() == before;
}

int sealed(const char* file) {
    mx::array x = loaded_one(file);
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto start = reinterpret_cast<std::uintptr_t>(x.data<char>()) / page * page;
    if (mprotect(reinterpret_cast<void*>(start), x.nbytes(), PROT_READ) != 0) {
        return 3;
    }
    uses[0].of(std::move(x));
    return 0;
}

/// The status of this program, run with those arguments: a fork alone would lack MLX's threads.
int status_of(const char* self, const char* file) {
    const pid_t child = fork();
    if (child == 0) {
        execl(self, self, "sealed", file, static_cast<char*>(nullptr));
        _exit(4);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

}  // namespace

int main(int argc, char** argv) {
    mx::set_default_device(mx::Device::cpu);
    if (argc == 3) {
        return sealed(argv[2]);
    }
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    samples::work_in("donation-files");

    // The only array of its file owns the mapping alone, which is when MLX 0.31 donates it. Among others it does not.
    safealign::mlx::save_safetensors("alone", {{"x", counted({size}, mx::float32)}});
    safealign::mlx::save_safetensors("among", {{"x", counted({size}, mx::float32)}, {"y", counted({3}, mx::uint8)}});
    for (const char* file : {"alone.safetensors", "among.safetensors"}) {
        const std::string bytes = samples::read_file(file);
        int in_place = 0;
        for (const Use& use : uses) {
            const mx::array expected = use.of(counted({size}, mx::float32));
            for (int round = 0; round < 100; ++round) {
                in_place += consumed_in_place(file, use, expected) ? 1 : 0;
            }
        }
        // The control: the pages of the file's mapping were really written to, where MLX donates what is not its own.
        std::printf("%s: %d of 400 results in the memory of the mapping\n", file, in_place);
        const bool donated = MLX_VERSION_NUMERIC < 32004 && file == std::string("alone.safetensors");
        CHECK_EQ(in_place, donated ? 400 : 0);
        CHECK(samples::read_file(file) == bytes);
        CHECK(same(loaded_one(file), counted({size}, mx::float32)));
        // And by MLX, which reads.
        CHECK(same(mx::load_safetensors(file).first.at("x"), counted({size}, mx::float32)));
    }

    // The other control: were the mapping read-only, that would have been a fault.
    const int status = status_of(self.c_str(), "alone.safetensors");
#if MLX_VERSION_NUMERIC < 32004
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
#else
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#endif
    return check_report();
}
