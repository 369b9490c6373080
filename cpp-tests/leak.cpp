// Leaks a view: the control of the runs with a leak checker.

#include "check.h"
#include "samples.hpp"

namespace {

[[gnu::noinline]] void leak(const char* path) {
    sa_file* file = nullptr;
    sa_view view{};
    SA_INIT(&view);
    CHECK(sa_file_open(path, nullptr, &file, nullptr) == SA_OK);
    CHECK(sa_map_tensor_at(file, 0, &view, nullptr) == SA_OK);
    sa_file_free(file);
    // Overwrites the pointer, so that it is neither on the stack nor in a register.
    volatile unsigned char* bytes = reinterpret_cast<volatile unsigned char*>(&view);
    for (std::size_t at = 0; at < sizeof view; ++at) {
        bytes[at] = 0;
    }
}

}  // namespace

int main() {
    samples::work_in("leak.work");
    samples::write_packed("leak.safetensors", samples::hostile());
    leak("leak.safetensors");
    // Overwrites old values on the stack.
    CHECK(safealign::File::open("leak.safetensors"));
    return check_report();
}
