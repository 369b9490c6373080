#include <safealign.hpp>

#include <cstdio>
#include <vector>

int main() {
    const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
    const std::vector<std::uint8_t> mask = {1, 0, 1};
    safealign::write_aligned("model.safetensors",
                             {{"mask", safealign::Dtype::U8, {3}, safealign::bytes_of(mask)},
                              {"weight", safealign::Dtype::F32, {2, 3}, safealign::bytes_of(weight)}},
                             {{"format", "pt"}})
        .value_or_throw();

    const auto file = safealign::File::open("model.safetensors").value_or_throw();
    const auto view = file.map("weight").value_or_throw();  // the file's own pages, no copy
    for (float value : view.as<float>().value_or_throw()) {
        std::printf("%g ", value);
    }
    std::printf("\n%llu tensors copied\n", static_cast<unsigned long long>(file.stats().tensors_copied));
}
