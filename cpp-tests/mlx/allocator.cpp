// The branch that Metal takes: there the allocator makes a buffer of memory that is not its own, without a copy, if it
// begins and ends on a page. Metal is not here, so a stand-in for the allocator answers as it does; MLX's own, in this
// build, answers null.

#include "../check.h"
#include "arrays.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>

namespace {

namespace mx = ::mlx::core;
using mx::allocator::Allocator;
using mx::allocator::Buffer;

/// What make_buffer answers.
enum class Answer { no_buffer, the_memory, other_memory };

class StandIn : public Allocator {
public:
    Buffer malloc(std::size_t size) override {
        ++allocated;
        return own().malloc(size);
    }
    void free(Buffer buffer) override {
        CHECK(!is_made(buffer));
        own().free(buffer);
    }
    std::size_t size(Buffer buffer) const override {
        const std::lock_guard lock(mutex_);
        const auto found = made_.find(buffer.ptr());
        return found == made_.end() ? own().size(buffer) : found->second;
    }
    Buffer make_buffer(void* memory, std::size_t size) override {
        if (answer == Answer::no_buffer) {
            return Buffer(nullptr);
        }
        ++asked;
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        CHECK_EQ(reinterpret_cast<std::uintptr_t>(memory) % page, 0u);
        CHECK_EQ(size % page, 0u);
        // Of this build's buffers the memory begins 8 bytes behind the pointer.
        static char other[64];
        void* pointer = answer == Answer::the_memory ? static_cast<char*>(memory) - 8 : other;
        const std::lock_guard lock(mutex_);
        made_.emplace(pointer, size);
        return Buffer(pointer);
    }
    void release(Buffer buffer) override {
        CHECK(is_made(buffer));
        const std::lock_guard lock(mutex_);
        made_.erase(buffer.ptr());
    }

    std::size_t living() const {
        const std::lock_guard lock(mutex_);
        return made_.size();
    }

    Answer answer = Answer::no_buffer;
    int asked = 0;
    std::atomic<int> allocated = 0;

private:
    static Allocator& own() {
        using Function = Allocator& (*)();
        static const auto function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZN3mlx4core9allocator9allocatorEv"));
        return function();
    }
    bool is_made(Buffer buffer) const {
        const std::lock_guard lock(mutex_);
        return made_.count(buffer.ptr()) != 0;
    }

    mutable std::mutex mutex_;
    std::map<const void*, std::size_t> made_;
};

StandIn& stand_in() {
    static StandIn* allocator = new StandIn;  // MLX frees until the very end
    return *allocator;
}

}  // namespace

// Takes the place of MLX's for MLX itself too.
namespace mlx::core::allocator {
Allocator& allocator() {
    return stand_in();
}
}  // namespace mlx::core::allocator

using namespace arrays;

int main() {
    mx::set_default_device(mx::Device::cpu);
    samples::work_in("allocator-files");
    Arrays saved = all_kinds();
    saved.insert_or_assign("large", counted({128, 128}, mx::float32));
    safealign::mlx::save_safetensors("all", saved);
    const auto load = [&](Answer answer) {
        stand_in().answer = answer;
        safealign::mlx::LoadReport report;
        Arrays loaded = safealign::mlx::load_safetensors("all.safetensors", {}, report).first;
        stand_in().answer = Answer::no_buffer;
        CHECK_EQ(loaded.size(), saved.size());
        return std::pair(std::move(loaded), report);
    };
    const auto check = [&](const Arrays& loaded) {
        for (const auto& [name, array] : saved) {
            CHECK(same(loaded.at(name), array));
        }
    };

    {
        auto [loaded, report] = load(Answer::the_memory);
        CHECK_EQ(stand_in().asked, 1);
        CHECK_EQ(report.copied, 0u);
        CHECK_EQ(stand_in().living(), 1u);
        for (const auto& [name, array] : loaded) {
            CHECK(array.size() == 0 || is_mapped(array, "all.safetensors"));
        }
        check(loaded);
        // Saving them again must not copy them, though each is a small part of its buffer.
        const int allocated = stand_in().allocated;
        safealign::mlx::save_safetensors("again", loaded);
        CHECK_EQ(stand_in().allocated, allocated);
        CHECK(samples::read_file("again.safetensors") == samples::read_file("all.safetensors"));
        // The last array keeps the buffer, and the mapping behind it.
        const mx::array last = loaded.at("F32");
        loaded.clear();
        CHECK_EQ(stand_in().living(), 1u);
        CHECK(same(last, saved.at("F32")));
    }
    CHECK_EQ(stand_in().living(), 0u);

    // A buffer whose data is elsewhere is seen and given back; what it would have held is copied.
    {
        const auto [loaded, report] = load(Answer::other_memory);
        CHECK_EQ(stand_in().asked, 2);
        CHECK_EQ(stand_in().living(), 0u);
        CHECK(report.copied > 0);
        check(loaded);
    }
    return check_report();
}
