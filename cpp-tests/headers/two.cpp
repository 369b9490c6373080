#include <safealign.hpp>
#include <safealign.h>

std::size_t tensors_in_two(const safealign::File& file);
safealign::Status cancelled_in_two(const std::vector<safealign::Tensor>& tensors);

std::size_t tensors_in_two(const safealign::File& file) {
    return file.map("t").value().nbytes() == 1 ? file.size() : 0;
}

safealign::Status cancelled_in_two(const std::vector<safealign::Tensor>& tensors) {
    safealign::WriteOptions options;
    options.progress = [](std::uint64_t, std::uint64_t) { return false; };
    const auto outcome = safealign::write_aligned("two_units.safetensors", tensors, {}, options);
    return outcome ? safealign::Status::Ok : outcome.error().status;
}
