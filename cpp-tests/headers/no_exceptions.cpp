// Compiled without exceptions and without run-time types.
#include <safealign.hpp>

#include "../check.h"

using safealign::Dtype;

int main() {
    const float values[] = {1, 2, 3};
    const std::vector<safealign::Tensor> tensors = {{"w", Dtype::F32, {3}, safealign::bytes_of(values)}};
    safealign::WriteOptions options;
    options.durability = safealign::Durability::NotDurable;
    CHECK(safealign::write_aligned("no_exceptions.safetensors", tensors, {}, options));

    options.progress = [](std::uint64_t, std::uint64_t) { return false; };
    const auto cancelled = safealign::write_aligned("no_exceptions.safetensors", {}, {}, options);
    CHECK(!cancelled && cancelled.error().status == safealign::Status::Cancelled);

    const auto file = safealign::File::open("no_exceptions.safetensors");
    CHECK(file && file->map("w").value().as<float>().value()[2] == 3.0f);
    CHECK(!safealign::File::open("no such file"));
    return check_report();
}
