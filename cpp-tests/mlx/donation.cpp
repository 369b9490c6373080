// MLX may write a result to the memory of an input that has no other owner. It must not do that with a mapped file.
//
//     donation                       checks
//     donation MODE FILE USE [bare]  one use of an array of the file, in a process of its own; with `bare`, the array
//                                    has no second owner

#include "../check.h"
#include "arrays.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

using namespace arrays;
using safealign::MapMode;

namespace {

constexpr int size = 4096;

mx::array loaded_one(const std::string& file, MapMode mode) {
    safealign::mlx::LoadOptions options;
    options.map_mode = mode;
    Arrays loaded = safealign::mlx::load_safetensors(file, {}, options).first;
    return loaded.extract("x").mapped();
}

struct Use {
    const char* name;
    /// Takes the array, so that its only owner is the graph.
    mx::array (*of)(mx::array&&);
};

mx::array taken(mx::array& x) {
    return std::exchange(x, mx::array(0));
}

mx::array plus_one(mx::array&& x) {
    const mx::array held = taken(x);
    return mx::add(held, mx::array(1, held.dtype()));
}

const Use uses[] = {
    {"eager",
     [](mx::array&& x) {
         mx::array y = plus_one(std::move(x));
         y.eval();
         return y;
     }},
    {"lazy", [](mx::array&& x) { return mx::square(mx::square(plus_one(std::move(x)))); }},
    {"unary", [](mx::array&& x) { return mx::square(taken(x)); }},
    {"compiled",
     [](mx::array&& x) {
         static const auto function = mx::compile([](const std::vector<mx::array>& in) {
             return std::vector<mx::array>{mx::square(mx::add(in[0], mx::array(1, in[0].dtype())))};
         });
         const std::vector<mx::array> in = {taken(x)};
         return function(in)[0];
     }},
    {"captured",
     [](mx::array&& x) {
         const auto function = mx::compile([held = taken(x)](const std::vector<mx::array>& in) {
             return std::vector<mx::array>{mx::add(held, in[0]), held};
         });
         const std::vector<mx::array> out = function({mx::zeros({size}, mx::uint8)});
         return mx::maximum(out[0], out[1]);
     }},
    {"slice update",
     [](mx::array&& x) {
         const mx::array held = taken(x);
         return mx::slice_update(held, mx::astype(mx::array({7, 8}), held.dtype()), mx::Shape{3}, mx::Shape{5});
     }},
    {"scatter",
     [](mx::array&& x) {
         const mx::array held = taken(x);
         return mx::scatter_add(held, mx::array({1, 5}), mx::ones({2, 1}, held.dtype()), 0);
     }},
    {"reshape", [](mx::array&& x) { return mx::square(mx::reshape(taken(x), {-1, 2})); }},
};

// Only for floating-point arrays.
const Use float_uses[] = {
    {"softmax", [](mx::array&& x) { return mx::softmax(taken(x), -1); }},
    {"gradient",
     [](mx::array&& x) {
         const mx::array held = taken(x);
         const auto loss = [](const mx::array& in) { return mx::sum(mx::square(in)); };
         return mx::subtract(held, mx::grad(std::function<mx::array(const mx::array&)>(loss))(held));
     }},
    {"vmap",
     [](mx::array&& x) {
         return mx::vmap([](const mx::array& in) { return mx::exp(mx::negative(in)); })(taken(x));
     }},
};

const Use* use_named(const char* name) {
    for (const Use& use : uses) {
        if (std::strcmp(use.name, name) == 0) {
            return &use;
        }
    }
    return nullptr;
}

/// Whether a result is in the memory of the array, which is that of the file.
bool is_in_place(const char* file, MapMode mode, const Use& use, const mx::array& expected) {
    mx::array x = loaded_one(file, mode);
    const void* before = x.data<char>();
    CHECK(is_mapped(x, file));
    mx::array y = use.of(std::move(x));
    y.eval();
    CHECK(same(y, expected));
    return y.data<char>() == before;
}

int one_use(char** argv) {
    mx::array x = loaded_one(argv[2], std::strcmp(argv[1], "shared") == 0 ? MapMode::Shared : MapMode::CopyOnWrite);
    if (argv[4] != nullptr) {
        x.siblings().clear();
    }
    mx::array y = use_named(argv[3])->of(std::move(x));
    y.eval();
    return 0;
}

/// The status of this program, run with these arguments: a fork alone would lack MLX's threads.
int status_of(const std::string& self, const char* mode, const char* use, const char* bare) {
    const pid_t child = fork();
    if (child == 0) {
        execl(self.c_str(), self.c_str(), mode, "zeros.safetensors", use, bare, static_cast<char*>(nullptr));
        _exit(4);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

}  // namespace

int main(int argc, char** argv) {
    mx::set_default_device(mx::Device::cpu);
    if (argc >= 4) {
        return one_use(argv);
    }
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    samples::work_in("donation-files");

    // The only array of its file and one of several, in both modes, for every dtype.
    for (const mx::Dtype dtype : dtypes) {
        const mx::array original = counted({size}, dtype);
        safealign::mlx::save_safetensors("alone", {{"x", original}});
        safealign::mlx::save_safetensors("among", {{"x", original}, {"y", counted({3}, mx::uint8)}});
        // MLX 0.31 takes the 8 bytes before the data for the size of the buffer: here they are 0.
        safealign::mlx::save_safetensors("zeros", {{"x", original}, {"a", mx::zeros({1 << 17}, mx::uint8)}});
        for (const char* file : {"alone.safetensors", "among.safetensors", "zeros.safetensors"}) {
            const std::string bytes = samples::read_file(file);
            int in_place = 0;
            const auto check = [&](const Use& use) {
                const mx::array expected = use.of(mx::array(original));
                for (const MapMode mode : {MapMode::Shared, MapMode::CopyOnWrite}) {
                    for (int round = 0; round < 3; ++round) {
                        in_place += is_in_place(file, mode, use, expected) ? 1 : 0;
                    }
                }
            };
            std::for_each(std::begin(uses), std::end(uses), check);
            if (mx::issubdtype(dtype, mx::floating)) {
                std::for_each(std::begin(float_uses), std::end(float_uses), check);
            }
            CHECK_EQ(in_place, 0);
            CHECK(samples::read_file(file) == bytes);
            CHECK(same(loaded_one(file, MapMode::Shared), original));
        }
    }
    // A mapping goes with its last array and what was computed from it. With MLX before 0.32.4, the mapping of a view
    // that outlived its array goes with the next array or load.
    safealign::mlx::load_safetensors("alone.safetensors");
    CHECK(samples::read_file("/proc/self/maps").find(".safetensors") == std::string::npos);
    {
        mx::array view = mx::reshape(loaded_one("zeros.safetensors", MapMode::Shared), {-1, 2});
        view.eval();
        CHECK(is_mapped(view, "zeros.safetensors"));
        safealign::mlx::load_safetensors("alone.safetensors");
        CHECK(is_mapped(view, "zeros.safetensors"));
    }
    safealign::mlx::load_safetensors("alone.safetensors");
    CHECK(samples::read_file("/proc/self/maps").find(".safetensors") == std::string::npos);

    // The control: without the second owner, MLX before 0.32.4 writes to the mapping, which is read-only.
    safealign::mlx::save_safetensors("zeros", {{"x", counted({size}, mx::float32)}, {"a", mx::zeros({1 << 17}, mx::uint8)}});
    const std::string bytes = samples::read_file("zeros.safetensors");
    for (const char* use : {"eager", "unary", "slice update"}) {
        CHECK_EQ(status_of(self, "shared", use, nullptr), 0);
        CHECK_EQ(status_of(self, "private", use, "bare"), 0);
        const int status = status_of(self, "shared", use, "bare");
        if (safealign::mlx::detail::ReusesOnlyOwnMemory<mx::array>) {
            CHECK_EQ(status, 0);
        } else {
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        }
    }
    CHECK(samples::read_file("zeros.safetensors") == bytes);
    return check_report();
}
