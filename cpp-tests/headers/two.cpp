#include <safealign.hpp>
#include <safealign.h>

std::size_t tensors_in_two(const safealign::File& file);

std::size_t tensors_in_two(const safealign::File& file) {
    return file.map("t").value().nbytes() == 1 ? file.size() : 0;
}
