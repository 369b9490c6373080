// Two translation units of one program, each with both headers; the other one is compiled without exceptions.
#include <safealign.h>
#include <safealign.hpp>

#include "../check.h"

std::size_t tensors_in_two(const safealign::File& file);
safealign::Status cancelled_in_two(const std::vector<safealign::Tensor>& tensors);

int main() {
    const unsigned char byte[1] = {7};
    const std::vector<safealign::Tensor> tensors = {{"t", safealign::Dtype::U8, {1}, safealign::bytes_of(byte)}};
    CHECK(safealign::write_aligned("two_units.safetensors", tensors));
    const auto file = safealign::File::open("two_units.safetensors");
    CHECK(file && tensors_in_two(*file) == 1);

    // Each has the write_aligned of its own: this one catches, whatever the linker finds first.
    CHECK(cancelled_in_two(tensors) == safealign::Status::Cancelled);
    safealign::WriteOptions options;
    options.progress = [](std::uint64_t, std::uint64_t) -> bool { throw 7; };
    int thrown = 0;
    try {
        (void)safealign::write_aligned("two_units.safetensors", tensors, {}, options);
    } catch (int number) {
        thrown = number;
    }
    CHECK(thrown == 7);
    return check_report();
}
