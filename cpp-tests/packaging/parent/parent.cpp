#include "parent.h"

#include <safealign.hpp>

#include <vector>

const char* parent_version() {
    const std::vector<float> weights = {1, 2, 3, 4};
    safealign::write_aligned("parent.safetensors",
                             {{"weights", safealign::Dtype::F32, {4}, safealign::bytes_of(weights)}})
        .value_or_throw();
    const auto file = safealign::File::open("parent.safetensors").value_or_throw();
    const auto view = file.map("weights").value_or_throw();
    return view.as<float>().value_or_throw()[3] == 4.0f ? sa_version_string() : "";
}
