// Replaces MLX's save_safetensors and load_safetensors in a program that was not built with safealign, such as an
// unmodified Python `mlx`: LD_PRELOAD=libsafealign_mlx_interpose.so. See docs/mlx-interpose.md.
//
// It is loaded before MLX, and into programs that never load MLX. Therefore it does not link MLX. At the first call, it
// finds the libmlx.so that the program has loaded, and compares its version with that of the headers. Before that,
// symbols of MLX cannot be resolved. Functions are bound when they are called, but data symbols of MLX, such as
// vtables, must not be used here or in safealign_mlx.hpp. A test checks the relocations.

#include <safealign_mlx.hpp>

#include <mlx/version.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

namespace core = mlx::core;
using safealign::mlx::Arrays;
using safealign::mlx::StringMap;
using Writer = std::shared_ptr<core::io::Writer>;

namespace {

#define SAFEALIGN_STRING(value) #value
#define SAFEALIGN_VERSION_STRING(major, minor, patch) \
    SAFEALIGN_STRING(major) "." SAFEALIGN_STRING(minor) "." SAFEALIGN_STRING(patch)
constexpr const char* built_for = SAFEALIGN_VERSION_STRING(MLX_VERSION_MAJOR, MLX_VERSION_MINOR, MLX_VERSION_PATCH);

// The functions at the ABI level: in the C++ ABI of Linux, an argument that is not trivially copyable is passed by its
// address and is destroyed by the caller. Passing references therefore forwards the caller's arguments without running
// code of MLX's headers, which may be of another version.
using SaveToWriter = void (*)(Writer&, Arrays&, StringMap&);
using SaveToFile = void (*)(std::string&, Arrays&, StringMap&);
using LoadFile = core::SafetensorsLoad (*)(const std::string&, core::StreamOrDevice);

bool switched_off(const char* variable) {
    const char* value = std::getenv(variable);
    return value != nullptr && std::strcmp(value, "0") == 0;
}

// The options that the environment selects. Prints a warning for a value that has no meaning.
safealign::mlx::LoadOptions load_options() {
    safealign::mlx::LoadOptions options;
    constexpr const char* variable = "SAFEALIGN_MLX_MAP";
    const char* value = std::getenv(variable);
    if (value == nullptr || *value == '\0') {
        return options;
    }
    if (std::strcmp(value, "shared") == 0) {
        options.map_mode = safealign::MapMode::Shared;
    } else if (std::strcmp(value, "private") == 0) {
        options.map_mode = safealign::MapMode::CopyOnWrite;
    } else {
        std::fprintf(stderr, "safealign: %s is '%s', but must be 'shared' or 'private': using the default\n", variable,
                     value);
    }
    return options;
}

// The reasons for copies, such as "; copied: 3 misaligned (24 bytes)".
std::string reasons(const safealign::mlx::LoadReport& report) {
    std::string text;
    const auto add = [&text](const safealign::mlx::Count& count, const char* reason) {
        if (count.tensors > 0) {
            text.append(text.empty() ? "; copied: " : ", ");
            text.append(std::to_string(count.tensors)).append(" ").append(reason);
            text.append(" (").append(std::to_string(count.nbytes)).append(" bytes)");
        }
    };
    add(report.misaligned, "misaligned");
    add(report.below_gpu_alignment, "not at a multiple of 16 bytes");
    add(report.too_large, "larger than a buffer of the device");
    add(report.refused, "refused by the allocator");
    return text;
}

// The MLX that the program has loaded.
struct Program {
    void* library;
    bool same_version;
    bool saves;
    bool loads;
    bool verbose;
    safealign::mlx::LoadOptions options;

    static const Program& get() {
        static const Program program;
        return program;
    }

    // MLX's own function with the symbol of the replacement.
    template <typename Function>
    Function own(const char* symbol) const {
        void* found = dlsym(library, symbol);
        if (found == nullptr) {
            throw std::runtime_error(std::string("safealign: libmlx.so has no symbol ") + symbol);
        }
        return reinterpret_cast<Function>(found);
    }

private:
    Program() {
        // Python loads MLX with RTLD_LOCAL. RTLD_GLOBAL makes its symbols available to this library.
        library = dlopen("libmlx.so", RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
        if (library == nullptr) {
            library = RTLD_NEXT;
        }
        using Version = const char* (*)();
        const auto version = reinterpret_cast<Version>(dlsym(library, "_ZN3mlx4core7versionEv"));
        const char* found = version == nullptr ? "of an unknown version" : version();
        same_version = std::strcmp(found, built_for) == 0;
        if (!same_version) {
            std::fprintf(stderr, "safealign: built for MLX %s, but this is MLX %s: using MLX's own functions\n",
                         built_for, found);
        }
        saves = same_version && !switched_off("SAFEALIGN_MLX_SAVE");
        loads = same_version && !switched_off("SAFEALIGN_MLX_LOAD");
        verbose = std::getenv("SAFEALIGN_MLX_VERBOSE") != nullptr && !switched_off("SAFEALIGN_MLX_VERBOSE");
        if (loads) {
            options = load_options();
        }
    }
};

// The symbol of a function of this library, which is also that of MLX's own function.
const char* symbol_of(void* function) {
    Dl_info info{};
    if (dladdr(function, &info) == 0 || info.dli_sname == nullptr) {
        throw std::runtime_error("safealign: dladdr found no symbol");
    }
    return info.dli_sname;
}

template <typename Function>
void* address(Function* function) {
    return reinterpret_cast<void*>(function);
}

}  // namespace

namespace mlx::core {

__attribute__((visibility("default"))) void save_safetensors(Writer out, Arrays arrays, StringMap metadata) {
    const Program& program = Program::get();
    if (!program.saves) {
        using This = void(Writer, Arrays, StringMap);
        const char* symbol = symbol_of(address<This>(&save_safetensors));
        return program.own<SaveToWriter>(symbol)(out, arrays, metadata);
    }
    if (program.verbose) {
        std::fprintf(stderr, "safealign: saving %zu arrays to %s\n", arrays.size(), out->label().c_str());
    }
    safealign::mlx::save_safetensors(std::move(out), std::move(arrays), std::move(metadata));
}

__attribute__((visibility("default"))) void save_safetensors(std::string file, Arrays arrays, StringMap metadata) {
    const Program& program = Program::get();
    if (!program.saves) {
        using This = void(std::string, Arrays, StringMap);
        const char* symbol = symbol_of(address<This>(&save_safetensors));
        return program.own<SaveToFile>(symbol)(file, arrays, metadata);
    }
    if (program.verbose) {
        std::fprintf(stderr, "safealign: saving %zu arrays to file %s\n", arrays.size(), file.c_str());
    }
    safealign::mlx::save_safetensors(std::move(file), std::move(arrays), std::move(metadata));
}

__attribute__((visibility("default"))) SafetensorsLoad load_safetensors(const std::string& file, StreamOrDevice s) {
    const Program& program = Program::get();
    if (!program.loads) {
        using This = SafetensorsLoad(const std::string&, StreamOrDevice);
        return program.own<LoadFile>(symbol_of(address<This>(&load_safetensors)))(file, s);
    }
    safealign::mlx::LoadReport report;
    SafetensorsLoad loaded = safealign::mlx::load_safetensors(file, s, program.options, report);
    if (program.verbose) {
        std::fprintf(stderr, "safealign: loaded %s: %zu of %zu tensors share the mapping, %llu bytes copied%s\n",
                     file.c_str(), report.zero_copy, report.tensors,
                     static_cast<unsigned long long>(report.bytes_copied), reasons(report).c_str());
    }
    return loaded;
}

}  // namespace mlx::core

// The load function has three symbols in different versions of MLX, because the type of its last argument changed. The
// function above has the symbol of the version that this is built for. The other two are called only with other
// versions of MLX; they print the warning and call MLX's own function. The last argument is a trivially copyable
// variant of 16 bytes in all versions, and is passed on unread.
struct SixteenBytes {
    std::uint64_t halves[2];
};
static_assert(sizeof(core::StreamOrDevice) == sizeof(SixteenBytes) &&
              std::is_trivially_copyable_v<core::StreamOrDevice>);

#define SAFEALIGN_LOAD(rest)                                                                                 \
    "_ZN3mlx4core16load_safetensorsERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt7variantIJSt9"  \
    "monostateNS0_6Stream" rest
#define SAFEALIGN_LOAD_OF_031_0 SAFEALIGN_LOAD("ENS0_6DeviceEEE")
#define SAFEALIGN_LOAD_OF_031_2 SAFEALIGN_LOAD("ENS0_17ThreadLocalStreamENS0_6DeviceEEE")
#define SAFEALIGN_LOAD_OF_032_1 SAFEALIGN_LOAD("ENS0_17ThreadLocalStreamENS0_6DeviceENSD_10DeviceTypeEEE")

#define SAFEALIGN_OTHER_LOAD(function, symbol)                                                               \
    __attribute__((visibility("default"))) core::SafetensorsLoad function(const std::string&, SixteenBytes) \
        __asm__(symbol);                                                                                     \
    core::SafetensorsLoad function(const std::string& file, SixteenBytes s) {                               \
        using Own = core::SafetensorsLoad (*)(const std::string&, SixteenBytes);                            \
        return Program::get().own<Own>(symbol)(file, s);                                                    \
    }

#if MLX_VERSION_NUMERIC >= 32001
SAFEALIGN_OTHER_LOAD(safealign_load_of_031_0, SAFEALIGN_LOAD_OF_031_0)
SAFEALIGN_OTHER_LOAD(safealign_load_of_031_2, SAFEALIGN_LOAD_OF_031_2)
#elif MLX_VERSION_NUMERIC >= 31002
SAFEALIGN_OTHER_LOAD(safealign_load_of_031_0, SAFEALIGN_LOAD_OF_031_0)
SAFEALIGN_OTHER_LOAD(safealign_load_of_032_1, SAFEALIGN_LOAD_OF_032_1)
#else
SAFEALIGN_OTHER_LOAD(safealign_load_of_031_2, SAFEALIGN_LOAD_OF_031_2)
SAFEALIGN_OTHER_LOAD(safealign_load_of_032_1, SAFEALIGN_LOAD_OF_032_1)
#endif
