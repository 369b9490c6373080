#include <safealign_mlx.hpp>

#include <cstdio>

int main() {
    safealign::mlx::save_safetensors("consumer", {{"x", mlx::core::array({1.0f, 2.0f})}});
    safealign::mlx::LoadReport report;
    const auto loaded = safealign::mlx::load_safetensors("consumer.safetensors", {}, {}, report).first;
    const bool right = report.zero_copy == 1 && loaded.at("x").data<float>()[1] == 2.0f;
    std::puts(right ? "right" : "wrong");
    return right ? 0 : 1;
}
