// With C++20 a span of ours is a std::span where one is wanted.
#include <safealign.hpp>

#include <numeric>
#include <ranges>
#include <span>

#include "../check.h"

static_assert(std::ranges::contiguous_range<safealign::Span<const float>>);
static_assert(std::ranges::borrowed_range<safealign::Span<float>>);
static_assert(std::ranges::view<safealign::Span<float>>);
static_assert(std::is_convertible_v<safealign::Bytes, std::span<const std::byte>>);
static_assert(std::is_convertible_v<std::span<const std::byte>, safealign::Bytes>);
static_assert(std::is_convertible_v<safealign::Span<float>, std::span<float>>);
static_assert(!std::is_convertible_v<safealign::Span<const float>, std::span<float>>);

static float sum(std::span<const float> values) {
    return std::accumulate(values.begin(), values.end(), 0.0f);
}

int main() {
    const std::vector<float> values = {1, 2, 3};
    const safealign::WriteOptions options = {.alignment = 256, .durability = safealign::Durability::NotDurable};
    CHECK(safealign::write_aligned("spans.safetensors",
                                   {{.name = "w", .dtype = safealign::Dtype::F32, .shape = {3},
                                     .data = std::as_bytes(std::span(values))}},
                                   {}, options));
    const safealign::File file =
        safealign::File::open("spans.safetensors", {.map_mode = safealign::MapMode::CopyOnWrite}).value();
    const safealign::View view = file.map("w").value();
    CHECK_EQ(file.data_start() % 256, 0u);
    CHECK_EQ(sum(view.as<float>().value()), 6.0f);
    const std::span<float> writable = view.as_mutable<float>().value();
    writable[0] = 5;
    CHECK_EQ(sum(view.as<float>().value()), 10.0f);
    return check_report();
}
