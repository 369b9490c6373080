// Two translation units of one program, each with both headers.
#include <safealign.h>
#include <safealign.hpp>

#include "../check.h"

std::size_t tensors_in_two(const safealign::File& file);

int main() {
    const unsigned char byte[1] = {7};
    CHECK(safealign::write_aligned("two_units.safetensors",
                                   {{"t", safealign::Dtype::U8, {1}, safealign::bytes_of(byte)}}));
    const auto file = safealign::File::open("two_units.safetensors");
    CHECK(file && tensors_in_two(*file) == 1);
    return check_report();
}
