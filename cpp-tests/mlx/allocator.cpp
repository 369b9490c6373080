// The code path for Metal, with an allocator that enforces the rules of MLX's Metal allocator. Nothing here runs on
// Metal. The rules are those of mlx/backend/metal/allocator.cpp and resident.cpp, and of XNU:
//
// - A buffer over external memory starts at a page and has whole pages.
// - It is not longer than max_buffer_length.
// - It counts as a whole in the active memory, and is wired as a whole if it fits below the wired limit, or not at all.
// - Wiring makes a private copy of every page of a private writable mapping.
// - A buffer is an object, not its memory.
//
// For each rule there is a control in which one buffer for the whole file, or another mapping, breaks it.

#include "../check.h"
#include "arrays.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <variant>

namespace {

namespace mx = ::mlx::core;
using mx::allocator::Allocator;
using mx::allocator::Buffer;

std::size_t page_size() {
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// The permissions of the mapping with this address, such as "r--s".
std::string permissions_at(const void* memory) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        unsigned long long begin = 0;
        unsigned long long end = 0;
        char permissions[5] = {};
        if (std::sscanf(line.c_str(), "%llx-%llx %4s", &begin, &end, permissions) == 3 && begin <= address &&
            address < end) {
            return permissions;
        }
    }
    return "";
}

/// What make_buffer does.
enum class Answer { as_metal, refuse, other_memory };

class StandIn : public Allocator {
public:
    struct Handle {
        void* contents;
        std::size_t size;
        bool is_wired;
        Buffer own;
    };

    Buffer malloc(std::size_t size) override {
        ++allocated;
        Buffer own_buffer = own().malloc(size);
        void* contents = static_cast<char*>(own_buffer.ptr()) + sizeof(std::size_t);
        return Buffer(new Handle{contents, size, false, own_buffer});
    }
    void free(Buffer buffer) override {
        const auto* handle = static_cast<Handle*>(buffer.ptr());
        if (handle == nullptr) {
            return;
        }
        CHECK(!is_made(handle));
        own().free(handle->own);
        delete handle;
    }
    std::size_t size(Buffer buffer) const override { return static_cast<const Handle*>(buffer.ptr())->size; }

    Buffer make_buffer(void* memory, std::size_t size) override {
        const bool is_pages = reinterpret_cast<std::uintptr_t>(memory) % page_size() == 0 && size % page_size() == 0;
        if (answer == Answer::refuse || !is_pages || size > max_buffer_length) {
            ++refused;
            return Buffer(nullptr);
        }
        static char other[64];
        auto* handle = new Handle{answer == Answer::as_metal ? memory : other, size, false, Buffer(nullptr)};
        const std::lock_guard lock(mutex_);
        active += size;
        if (wired + size <= wired_limit) {
            wired += size;
            handle->is_wired = true;
            wire(memory, size);
        }
        made_.emplace(handle, size);
        return Buffer(handle);
    }
    void release(Buffer buffer) override {
        auto* handle = static_cast<Handle*>(buffer.ptr());
        CHECK(is_made(handle));
        const std::lock_guard lock(mutex_);
        active -= handle->size;
        wired -= handle->is_wired ? handle->size : 0;
        made_.erase(handle);
        delete handle;
    }

    std::size_t living() const {
        const std::lock_guard lock(mutex_);
        return made_.size();
    }
    std::size_t longest() const {
        const std::lock_guard lock(mutex_);
        std::size_t out = 0;
        for (const auto& [handle, size] : made_) {
            out = std::max(out, size);
        }
        return out;
    }

    Answer answer = Answer::as_metal;
    std::size_t max_buffer_length = std::size_t{1} << 40;
    std::size_t wired_limit = 0;
    int refused = 0;
    std::atomic<int> allocated = 0;
    std::size_t active = 0;
    std::size_t wired = 0;
    /// Pages that became private because they were wired.
    std::size_t privatised = 0;

private:
    static Allocator& own() {
        using Function = Allocator& (*)();
        static const auto function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZN3mlx4core9allocator9allocatorEv"));
        return function();
    }
    bool is_made(const Handle* handle) const {
        const std::lock_guard lock(mutex_);
        return made_.count(handle) != 0;
    }
    void wire(void* memory, std::size_t size) {
        if (permissions_at(memory) != "rw-p") {
            return;
        }
        // The last pages may be beyond the end of the file: nothing is there.
        for (std::size_t at = 0; at < size; at += page_size()) {
            volatile char* byte = static_cast<char*>(memory) + at;
            *byte = *byte;
            ++privatised;
        }
    }

    mutable std::mutex mutex_;
    std::map<const Handle*, std::size_t> made_;
};

StandIn& stand_in() {
    static StandIn* allocator = new StandIn;  // MLX frees until the process ends
    return *allocator;
}

}  // namespace

// These replace MLX's own functions for MLX too.
namespace mlx::core {

bool is_available(const Device&) {
    return true;
}

const std::unordered_map<std::string, std::variant<std::string, std::size_t>>& device_info(const Device&) {
    static std::unordered_map<std::string, std::variant<std::string, std::size_t>> info;
    info["max_buffer_length"] = stand_in().max_buffer_length;
    return info;
}

namespace allocator {

Allocator& allocator() {
    return stand_in();
}

void* Buffer::raw_ptr() {
    return ptr_ == nullptr ? nullptr : static_cast<StandIn::Handle*>(ptr_)->contents;
}

}  // namespace allocator
}  // namespace mlx::core

using namespace arrays;
using safealign::MapMode;
using safealign::mlx::LoadOptions;
using safealign::mlx::LoadReport;

namespace {

struct Loaded {
    Arrays arrays;
    LoadReport report;
};

Loaded load(const std::string& file, const LoadOptions& options = {}) {
    LoadReport report;
    Arrays arrays = safealign::mlx::load_safetensors(file, {}, options, report).first;
    return {std::move(arrays), report};
}

void check_values(const Arrays& loaded, const Arrays& saved) {
    CHECK_EQ(loaded.size(), saved.size());
    for (const auto& [name, array] : saved) {
        CHECK(same(loaded.at(name), array));
    }
}

std::size_t anonymous_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.rfind("RssAnon:", 0) == 0) {
            return std::stoul(line.substr(8));
        }
    }
    return 0;
}

Arrays large() {
    Arrays out;
    for (int layer = 0; layer < 24; ++layer) {
        out.insert_or_assign("layer." + std::to_string(layer), counted({64, 1024}, mx::float32, layer));
    }
    return out;
}

void every_kind_is_shared_at_multiples_of_16() {
    Arrays saved = all_kinds();
    saved.insert_or_assign("large", counted({128, 128}, mx::float32));
    safealign::mlx::save_safetensors("all", saved);
    auto [loaded, report] = load("all.safetensors");
    check_values(loaded, saved);
    CHECK_EQ(report.copied, report.below_gpu_alignment.tensors);
    CHECK_EQ(report.bytes_copied, report.below_gpu_alignment.nbytes);
    CHECK(report.copied > 0);
    CHECK_EQ(stand_in().living(), 1u);
    const auto file = safealign::File::open("all.safetensors").value_or_throw();
    for (std::size_t index = 0; index < file.size(); ++index) {
        const safealign::TensorInfo info = file.at(index).value_or_throw();
        const mx::array& array = loaded.at(std::string(info.name));
        CHECK(array.size() == 0 || is_mapped(array, "all.safetensors") == (info.offset % 16 == 0));
    }
    // The control: a CPU shares them all, because the width of the dtype is enough.
    CHECK_EQ(file.stats().misaligned_tensors, 0u);

    // Saving shared arrays again allocates nothing, though each is a small part of its buffer.
    Arrays shared;
    for (const auto& [name, array] : loaded) {
        if (array.size() > 0 && is_mapped(array, "all.safetensors")) {
            shared.insert_or_assign(name, array);
        }
    }
    const int allocated = stand_in().allocated;
    safealign::mlx::save_safetensors("again", shared);
    CHECK_EQ(stand_in().allocated, allocated);
    shared.clear();

    // The last array keeps the buffer and the mapping.
    const mx::array last = loaded.at("large");
    loaded.clear();
    CHECK_EQ(stand_in().living(), 1u);
    CHECK(same(last, saved.at("large")));
}

void misaligned_tensors_are_counted() {
    std::vector<samples::Sample> packed = samples::hostile();
    std::erase_if(packed, [](const samples::Sample& one) { return one.dtype == safealign::Dtype::F64; });
    samples::write_packed("packed.safetensors", packed);
    const auto [loaded, report] = load("packed.safetensors");
    for (const samples::Sample& one : packed) {
        CHECK(arrays::bytes_of(loaded.at(one.name)) == one.bytes);
    }
    CHECK_EQ(report.misaligned.tensors,
             safealign::File::open("packed.safetensors").value_or_throw().stats().misaligned_tensors);
    CHECK(report.misaligned.tensors > 0);
    CHECK_EQ(report.copied, report.misaligned.tensors + report.below_gpu_alignment.tensors);
}

void no_buffer_is_too_long() {
    const Arrays saved = large();
    safealign::mlx::save_safetensors("large", saved);
    const std::size_t size = std::filesystem::file_size("large.safetensors");
    stand_in().max_buffer_length = std::size_t{1} << 20;
    {
        const auto [loaded, report] = load("large.safetensors");
        CHECK_EQ(report.copied, 0u);
        CHECK(stand_in().longest() <= stand_in().max_buffer_length);
        CHECK(stand_in().living() > 5);
        check_values(loaded, saved);
    }
    CHECK_EQ(stand_in().living(), 0u);
    // The control: one buffer for the whole file is refused.
    const auto file = safealign::File::open("large.safetensors").value_or_throw();
    void* base = const_cast<std::byte*>(file.bytes().data());
    const std::size_t pages = (size + page_size() - 1) / page_size() * page_size();
    CHECK(stand_in().make_buffer(base, pages).ptr() == nullptr);
    CHECK(stand_in().make_buffer(static_cast<char*>(base) + 64, page_size()).ptr() == nullptr);
    CHECK(stand_in().make_buffer(base, page_size() + 64).ptr() == nullptr);
    stand_in().max_buffer_length = pages;
    const Buffer whole = stand_in().make_buffer(base, pages);
    CHECK(whole.ptr() != nullptr);
    stand_in().release(whole);

    // Tensors that fit in no buffer are read. They say so.
    stand_in().max_buffer_length = 64 << 10;
    {
        const auto [loaded, report] = load("large.safetensors");
        CHECK_EQ(report.copied, saved.size());
        CHECK_EQ(report.too_large.tensors, saved.size());
        CHECK_EQ(report.too_large.nbytes, report.bytes_copied);
        check_values(loaded, saved);
    }
    stand_in().max_buffer_length = std::size_t{1} << 40;
}

void windows_are_wired_one_by_one() {
    const std::size_t size = std::filesystem::file_size("large.safetensors");
    stand_in().wired_limit = size / 2;
    LoadOptions options;
    options.buffer_bytes = 1 << 20;
    {
        const Loaded loaded = load("large.safetensors", options);
        CHECK(stand_in().wired > size / 4);
        CHECK(stand_in().wired <= size / 2);
        // Windows share no more than a page with each neighbour.
        CHECK(stand_in().active >= size / page_size() * page_size());
        CHECK(stand_in().active <= size + 2 * page_size() * stand_in().living());
    }
    CHECK_EQ(stand_in().active, 0u);
    CHECK_EQ(stand_in().wired, 0u);
    // The control: as one buffer nothing is wired.
    options.buffer_bytes = size + page_size();
    {
        const Loaded loaded = load("large.safetensors", options);
        CHECK_EQ(stand_in().living(), 1u);
        CHECK_EQ(stand_in().wired, 0u);
    }
    stand_in().wired_limit = 0;
}

void wiring_makes_no_private_copy() {
    const std::size_t size = std::filesystem::file_size("large.safetensors");
    stand_in().wired_limit = 2 * size;
    LoadOptions options;
    {
        const std::size_t before = anonymous_kib();
        const Loaded loaded = load("large.safetensors", options);
        CHECK(stand_in().wired > 0);
        CHECK_EQ(stand_in().privatised, 0u);
        CHECK(anonymous_kib() < before + size / 2048);
        CHECK_EQ(permissions_at(loaded.arrays.at("layer.0").data<char>()), "r--s");
    }
    // The control: the mapping that the CPU build uses.
    options.map_mode = MapMode::CopyOnWrite;
    {
        const std::size_t before = anonymous_kib();
        const Loaded loaded = load("large.safetensors", options);
        CHECK_EQ(stand_in().privatised, stand_in().wired / page_size());
        CHECK(anonymous_kib() > before + size / 2048);
    }
    stand_in().wired_limit = 0;
}

void results_are_never_in_the_mapping() {
    const Arrays saved = {{"x", counted({4096}, mx::float32)}};
    safealign::mlx::save_safetensors("one", saved);
    const std::string bytes = samples::read_file("one.safetensors");
    for (int round = 0; round < 20; ++round) {
        mx::array x = load("one.safetensors").arrays.extract("x").mapped();
        const void* before = x.data<char>();
        mx::array y = mx::reshape(std::exchange(x, mx::array(0)), {-1, 2});
        y.eval();
        y = mx::softmax(mx::add(std::exchange(y, mx::array(0)), mx::array(1.0f)), -1);
        y.eval();  // would be a SIGSEGV in the memory of the mapping
        CHECK(y.data<char>() != before);
    }
    CHECK(samples::read_file("one.safetensors") == bytes);
}

void refusals_are_counted() {
    const Arrays saved = large();
    for (const Answer answer : {Answer::refuse, Answer::other_memory}) {
        stand_in().answer = answer;
        const auto [loaded, report] = load("large.safetensors");
        CHECK_EQ(report.refused.tensors, saved.size());
        CHECK_EQ(report.copied, saved.size());
        // A buffer whose data is elsewhere is released.
        CHECK_EQ(stand_in().living(), 0u);
        check_values(loaded, saved);
    }
    stand_in().answer = Answer::as_metal;
}

}  // namespace

int main() {
    mx::set_default_device(mx::Device::cpu);
    samples::work_in("allocator-files");
    every_kind_is_shared_at_multiples_of_16();
    CHECK_EQ(stand_in().living(), 0u);
    misaligned_tensors_are_counted();
    no_buffer_is_too_long();
    windows_are_wired_one_by_one();
    wiring_makes_no_private_copy();
    results_are_never_in_the_mapping();
    refusals_are_counted();
    safealign::mlx::load_safetensors("one.safetensors");  // frees what a view outlived
    CHECK_EQ(stand_in().living(), 0u);
    return check_report();
}
