// Takes the place of MLX's save_safetensors and load_safetensors in a program that was not built with safealign, such as
// an unmodified Python `mlx`: LD_PRELOAD=libsafealign_mlx_interpose.so. See docs/mlx-interpose.md.
//
// It is loaded before MLX is, and into programs that never load it. So it does not link MLX: it finds the libmlx.so that
// the program has loaded at the first call, and checks that it is of the version whose headers it was built with. Until
// then nothing of MLX may be needed, which is why no data symbol of MLX's (such as a vtable) may be referred to here or
// in safealign_mlx.hpp: function symbols are bound when they are called. A test looks at the relocations.

#include <safealign_mlx.hpp>

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

#define SAFEALIGN_TEXT(number) #number
#define SAFEALIGN_VERSION_TEXT(major, minor, patch) \
    SAFEALIGN_TEXT(major) "." SAFEALIGN_TEXT(minor) "." SAFEALIGN_TEXT(patch)
constexpr const char* built_for = SAFEALIGN_VERSION_TEXT(MLX_VERSION_MAJOR, MLX_VERSION_MINOR, MLX_VERSION_PATCH);

// The functions as they are called: by the C++ ABI of Linux an argument that is more than its bytes is passed by its
// address, and belongs to the caller. Calling with references therefore hands on the caller's own arguments, without
// running any code of MLX's headers on them, which might be of another version.
using SaveToWriter = void (*)(Writer&, Arrays&, StringMap&);
using SaveToFile = void (*)(std::string&, Arrays&, StringMap&);
using LoadFile = core::SafetensorsLoad (*)(const std::string&, core::StreamOrDevice);

bool switched_off(const char* variable) {
    const char* value = std::getenv(variable);
    return value != nullptr && std::strcmp(value, "0") == 0;
}

// The MLX that the program has loaded.
struct Program {
    void* library;
    bool same_version;
    bool saves;
    bool loads;
    bool verbose;

    static const Program& get() {
        static const Program program;
        return program;
    }

    // MLX's own function, by the symbol of the one that stands before it.
    template <typename Function>
    Function own(const char* symbol) const {
        void* found = dlsym(library, symbol);
        if (found == nullptr) {
            throw std::runtime_error(std::string("safealign: MLX has no ") + symbol);
        }
        return reinterpret_cast<Function>(found);
    }

private:
    Program() {
        // Python loads MLX for one extension module alone; from here on its symbols are there for this library too.
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
    }
};

// The symbol of a function of this library, which is that of MLX's own.
const char* symbol_of(void* function) {
    Dl_info info{};
    if (dladdr(function, &info) == 0 || info.dli_sname == nullptr) {
        throw std::runtime_error("safealign: a function has no symbol");
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
    SafetensorsLoad loaded = safealign::mlx::load_safetensors(file, s, report);
    if (program.verbose) {
        std::fprintf(stderr, "safealign: loaded %s: %zu of %zu tensors share the mapping, %llu bytes are copied\n",
                     file.c_str(), report.zero_copy, report.tensors,
                     static_cast<unsigned long long>(report.bytes_copied));
    }
    return loaded;
}

}  // namespace mlx::core

// The load function has had three symbols, by what its last argument may be. The one above is that of the version that this
// is built for; the other two are never called under that version. Under theirs they are, and say why it is not ours that
// runs. That argument is a variant of small plain structs, in 16 bytes in all versions, which are handed on unread.
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
