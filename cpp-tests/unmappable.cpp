// On a file system without mmap, files are read into memory, and the stats report this. Run with no_mmap preloaded.

#include "check.h"
#include "samples.hpp"

#include <algorithm>

using namespace samples;

namespace {

void read_instead_of_mapped(safealign::MapMode mode) {
    const std::vector<Sample> samples = hostile();
    CHECK(safealign::write_aligned("aligned.safetensors", tensors(samples), {}, fast()));
    write_packed("packed.safetensors", samples);
    safealign::OpenOptions options;
    options.map_mode = mode;
    for (const char* path : {"aligned.safetensors", "packed.safetensors"}) {
        const auto file = safealign::File::open(path, options);
        REQUIRE(file);
        CHECK(!file->stats().is_mapped);
        for (const Sample& one : samples) {
            const safealign::View view = file->map(one.name).value();
            CHECK(same_bytes(view.bytes(), one.bytes));
            CHECK(reinterpret_cast<std::uintptr_t>(view.bytes().data()) % width_of(one.dtype) == 0);
            // The only copy must not be dropped.
            CHECK(view.advise(safealign::Advice::DoNotNeed));
            CHECK(same_bytes(view.bytes(), one.bytes));
            if (const auto bytes = view.mutable_bytes()) {
                std::fill(bytes->begin(), bytes->end(), std::byte{1});
            } else {
                CHECK(mode == safealign::MapMode::Shared);
            }
        }
        const safealign::Stats stats = file->stats();
        CHECK_EQ(stats.tensors_mapped + stats.tensors_copied, samples.size());
        CHECK_EQ(stats.tensors_copied, stats.misaligned_tensors);
        CHECK_EQ(reinterpret_cast<std::uintptr_t>(file->bytes().data()) % 4096, 0u);
    }
}

}  // namespace

int main() {
    work_in("unmappable.work");
    read_instead_of_mapped(safealign::MapMode::Shared);
    read_instead_of_mapped(safealign::MapMode::CopyOnWrite);
    return check_report();
}
