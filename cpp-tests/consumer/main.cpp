// Saves and loads, with the library that was found; its version is the first argument.

#include <safealign.hpp>

#include <cstdio>
#include <string_view>
#include <vector>

#ifdef UTIL_OF_THE_CONSUMER
#error "linked a target of this project in the place of a system library"
#endif

int main(int argc, char** argv) {
    if (argc != 2 || std::string_view(argv[1]) != sa_version_string()) {
        std::fprintf(stderr, "version %s\n", sa_version_string());
        return 1;
    }
    const std::vector<float> weights = {1, 2, 3, 4};
    const auto saved = safealign::write_aligned(
        "consumer.safetensors", {{"weights", safealign::Dtype::F32, {2, 2}, safealign::bytes_of(weights)}});
    if (!saved) {
        std::fprintf(stderr, "%s\n", saved.error().message.c_str());
        return 1;
    }
    const auto file = safealign::File::open("consumer.safetensors");
    if (!file) {
        std::fprintf(stderr, "%s\n", file.error().message.c_str());
        return 1;
    }
    const auto view = file->map("weights").value_or_throw();
    return view.as<float>().value_or_throw()[3] == 4.0f ? 0 : 1;
}
