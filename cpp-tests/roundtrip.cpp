// What is written maps, without a copy, with every byte in its place; and the control: written the old way it does not.

#include "check.h"
#include "samples.hpp"

#include <algorithm>
#include <complex>
#include <string>
#include <vector>

using namespace samples;
using safealign::File;

namespace {

/// Every tensor is found by name, has its dtype, shape and bytes, and starts at a multiple of its width.
void check_contents(const File& file, const std::vector<Sample>& expected, std::uint64_t alignment) {
    CHECK_EQ(file.size(), expected.size());
    const auto* base = file.bytes().data();
    for (const Sample& one : expected) {
        const auto index = file.find(one.name);
        REQUIRE(index);
        const auto info = file.at(*index);
        REQUIRE(info);
        CHECK_EQ(info->name, one.name);
        CHECK_EQ(info->nbytes, one.bytes.size());
        CHECK(!info->is_misaligned);
        // Computed here, not asked of the library.
        CHECK(one.bytes.empty() || info->offset % width_of(one.dtype) == 0);
        CHECK(one.bytes.empty() || info->offset % alignment == 0);

        const auto view = file.map(one.name);
        REQUIRE(view);
        CHECK(view->origin() == safealign::Origin::Mapped);
        CHECK(view->dtype() == one.dtype);
        CHECK(std::equal(view->shape().begin(), view->shape().end(), one.shape.begin(), one.shape.end()));
        CHECK(same_bytes(view->bytes(), one.bytes));
        CHECK(reinterpret_cast<std::uintptr_t>(view->bytes().data()) % width_of(one.dtype) == 0);
        // No copy: the address is that of the mapping.
        CHECK(one.bytes.empty() || view->bytes().data() == base + info->offset);
        CHECK(same_bytes(file.map_at(*index).value().bytes(), one.bytes));
    }
}

void check_everything_maps(const File& file, std::size_t tensors) {
    const safealign::Stats stats = file.stats();
    CHECK_EQ(stats.tensors, tensors);
    CHECK_EQ(stats.tensors_mapped, tensors);
    CHECK_EQ(stats.misaligned_tensors, 0u);
    CHECK_EQ(stats.tensors_copied, 0u);
    CHECK_EQ(stats.bytes_copied, 0u);
    CHECK(stats.is_mapped);
}

void compact(const std::string& name, const std::vector<Sample>& samples) {
    const std::string path = name + ".safetensors";
    const safealign::Metadata metadata = {{"format", "pt"}, {"a \"quoted\" key", ""}, {"\xc3\xa4", "line\nfeed"}};
    const auto report = safealign::write_aligned(path, tensors(samples), metadata, fast());
    REQUIRE(report);
    CHECK_EQ(report->tensors, samples.size());
    CHECK_EQ(report->gap_bytes, 0u);
    CHECK_EQ(report->data_start % 64, 0u);

    // The default options write what the strictest reader takes.
    safealign::OpenOptions strict;
    strict.strict = true;
    const auto file = File::open(path, strict);
    REQUIRE(file);
    check_contents(*file, samples, 1);
    check_everything_maps(*file, samples.size());
    CHECK_EQ(file->stats().gaps, 0u);
    CHECK_EQ(file->data_start(), report->data_start);
    CHECK_EQ(file->bytes().size(), report->file_size);
    const auto found = file->metadata();
    REQUIRE(found.size() == metadata.size());
    for (std::size_t at = 0; at < found.size(); ++at) {
        CHECK_EQ(found[at].first, metadata[at].first);
        CHECK_EQ(found[at].second, metadata[at].second);
    }
}

void padded(const std::string& name, const std::vector<Sample>& samples, std::uint64_t alignment) {
    const std::string path = name + "-padded-" + std::to_string(alignment) + ".safetensors";
    safealign::WriteOptions options = fast();
    options.layout = safealign::Layout::Padded;
    options.alignment = alignment;
    const auto report = safealign::write_aligned(path, tensors(samples), {}, options);
    REQUIRE(report);
    CHECK_EQ(report->tensors_moved, 0u);
    CHECK(report->gap_bytes <= (alignment - 1) * samples.size());

    const auto file = File::open(path);
    REQUIRE(file);
    check_contents(*file, samples, alignment);
    check_everything_maps(*file, samples.size());
    // The caller's order, and each tensor behind the one before it by less than the alignment.
    std::uint64_t end = file->data_start();
    std::uint64_t padding = 0;
    for (std::size_t index = 0; index < file->size(); ++index) {
        const safealign::TensorInfo info = file->at(index).value();
        CHECK_EQ(info.name, samples[index].name);
        CHECK(info.offset >= end && info.offset - end < alignment);
        padding += info.offset - end;
        end = info.offset + info.nbytes;
    }
    CHECK_EQ(padding, report->gap_bytes);
    CHECK_EQ(end, report->file_size);
    CHECK(padding > 0);

    safealign::OpenOptions strict;
    strict.strict = true;
    const auto refused = File::open(path, strict);
    CHECK(!refused && refused.error().status == safealign::Status::Nonconforming);
}

/// The same tensors, packed as they come behind a header that is not padded. If this did not show misaligned tensors,
/// the checks above would prove nothing.
void control(const std::string& name, const std::vector<Sample>& samples) {
    const std::string path = name + "-packed.safetensors";
    write_packed(path, samples);
    const auto file = File::open(path);
    REQUIRE(file);
    REQUIRE(file->size() == samples.size());

    std::uint64_t misaligned = 0;
    std::uint64_t misaligned_bytes = 0;
    for (const Sample& one : samples) {
        const safealign::TensorInfo info = file->at(file->find(one.name).value()).value();
        const bool off = info.nbytes > 0 && info.offset % width_of(one.dtype) != 0;
        misaligned += off ? 1 : 0;
        misaligned_bytes += off ? info.nbytes : 0;
        CHECK_EQ(info.is_misaligned, off);
        const safealign::View view = file->map(one.name).value();
        CHECK(view.origin() == (off ? safealign::Origin::Copied : safealign::Origin::Mapped));
        CHECK(same_bytes(view.bytes(), one.bytes));
        CHECK(reinterpret_cast<std::uintptr_t>(view.bytes().data()) % width_of(one.dtype) == 0);
    }
    CHECK(misaligned > 0);
    const safealign::Stats stats = file->stats();
    CHECK_EQ(stats.misaligned_tensors, misaligned);
    CHECK_EQ(stats.misaligned_bytes, misaligned_bytes);
    CHECK_EQ(stats.tensors_copied, misaligned);
    CHECK_EQ(stats.bytes_copied, misaligned_bytes);
    CHECK_EQ(stats.tensors_mapped, samples.size() - misaligned);

    // And a repair is no more than writing the views out again.
    std::vector<safealign::View> views;
    std::vector<safealign::Tensor> again;
    for (const Sample& one : samples) {
        views.push_back(file->map(one.name).value());
        again.push_back({one.name, one.dtype, one.shape, views.back().bytes()});
    }
    CHECK(safealign::write_aligned(path, again, {}, fast()));
    const auto repaired = File::open(path);
    REQUIRE(repaired);
    check_contents(*repaired, samples, 1);
    check_everything_maps(*repaired, samples.size());
}

void every_alignment() {
    const std::vector<Sample> samples = hostile();
    for (std::uint64_t alignment = 8; alignment <= 2u << 20; alignment *= 2) {
        for (const auto layout : {safealign::Layout::Compact, safealign::Layout::Padded}) {
            safealign::PlanOptions options;
            options.alignment = alignment;
            options.layout = layout;
            const auto plan = safealign::Plan::make(specs(samples), {}, options);
            REQUIRE(plan);
            CHECK_EQ(plan->header().size() % alignment, 0u);
            std::uint64_t end = plan->header().size();
            for (std::size_t at = 0; at < plan->size(); ++at) {
                const safealign::Placement place = plan->at(at).value();
                CHECK_EQ(place.offset, end + place.gap_before);
                CHECK(place.nbytes == 0 || place.offset % width_of(samples[place.input_index].dtype) == 0);
                end = place.offset + place.nbytes;
            }
            CHECK_EQ(plan->file_size(), end);
        }
    }
}

/// Header, padding and tensors written by the caller, by the plan alone, are the file that write_aligned makes.
void plan_makes_the_same_file() {
    const std::vector<Sample> samples = hostile();
    for (const auto layout : {safealign::Layout::Compact, safealign::Layout::Padded}) {
        safealign::WriteOptions options = fast();
        options.layout = layout;
        const safealign::Metadata metadata = {{"key", "value"}};
        const safealign::Plan plan = safealign::Plan::make(tensors(samples), metadata, {options.alignment, layout}).value();
        std::string bytes(reinterpret_cast<const char*>(plan.header().data()), plan.header().size());
        for (std::size_t at = 0; at < plan.size(); ++at) {
            const safealign::Placement place = plan.at(at).value();
            const std::vector<unsigned char>& data = samples[place.input_index].bytes;
            bytes.append(static_cast<std::size_t>(place.gap_before), '\0');
            bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
        }
        CHECK_EQ(bytes.size(), plan.file_size());
        CHECK(safealign::write_aligned("planned.safetensors", tensors(samples), metadata, options));
        CHECK(read_file("planned.safetensors") == bytes);
    }
}

void typed_access() {
    const float floats[] = {1.5f, -2.0f, 0.25f};
    const std::complex<float> pair(3, 4);
    const std::uint16_t halves[] = {0x3c00, 0xc000};
    const std::int64_t wide = -7;
    CHECK(safealign::write_aligned("typed.safetensors",
                                   {{"f32", Dtype::F32, {3}, safealign::bytes_of(floats)},
                                    {"c64", Dtype::C64, {1}, safealign::bytes_of(&pair, sizeof pair)},
                                    {"f16", Dtype::F16, {2}, safealign::bytes_of(halves)},
                                    {"f4", Dtype::F4, {4}, safealign::bytes_of(halves, 2)},
                                    {"i64", Dtype::I64, {}, safealign::bytes_of(&wide, sizeof wide)}},
                                   {}, fast()));
    const File file = File::open("typed.safetensors").value();
    const safealign::View f32 = file.map("f32").value();
    const auto elements = f32.as<float>();
    REQUIRE(elements && elements->size() == 3);
    CHECK((*elements)[0] == 1.5f && (*elements)[1] == -2.0f && (*elements)[2] == 0.25f);
    CHECK_EQ(elements->size_bytes(), f32.nbytes());
    CHECK(file.map("c64").value().as<std::complex<float>>().value()[0] == pair);
    CHECK(file.map("i64").value().as<std::int64_t>().value()[0] == -7);
    CHECK(file.map("f16").value().as<std::uint16_t>().value()[1] == 0xc000);

    CHECK(f32.as<std::uint32_t>().has_value());
    CHECK(!f32.as<double>());
    CHECK(!f32.as<std::uint8_t>());
    CHECK(!f32.as_mutable<float>());
    CHECK(!f32.mutable_bytes());
    CHECK(!file.map("i64").value().as<double>());
    CHECK(!file.map("f4").value().as<std::uint8_t>());
    const auto wrong = f32.as<double>();
    CHECK(!wrong && wrong.error().status == safealign::Status::InvalidArgument);
    CHECK(!wrong && wrong.error().message.find("F32") != std::string::npos);
    CHECK(!safealign::View().as<float>());

    CHECK(safealign::dtype_from_name("BF16").value() == Dtype::BF16);
    CHECK(safealign::dtype_from_name("bf16").error().status == safealign::Status::Unsupported);
    for (const Dtype dtype : all_dtypes) {
        CHECK(safealign::dtype_from_name(safealign::name(dtype)).value() == dtype);
        CHECK_EQ(safealign::bits(dtype), bits_of(dtype));
    }
    CHECK_EQ(safealign::name(safealign::Status::Truncated), "SA_ERR_TRUNCATED");
}

/// Buffers at odd addresses, and one buffer for many tensors.
void any_input_address() {
    std::vector<unsigned char> pool(64);
    for (std::size_t at = 0; at < pool.size(); ++at) {
        pool[at] = static_cast<unsigned char>(at * 7);
    }
    std::vector<Sample> expected;
    std::vector<safealign::Tensor> overlapping;
    for (std::size_t at = 0; at < 9; ++at) {
        const auto* start = pool.data() + at;
        expected.push_back({"at " + std::to_string(at), Dtype::F64, {2}, {start, start + 16}});
    }
    for (std::size_t at = 0; at < 9; ++at) {
        overlapping.push_back({expected[at].name, Dtype::F64, {2}, safealign::bytes_of(pool.data() + at, 16)});
    }
    CHECK(safealign::write_aligned("overlapping.safetensors", overlapping, {}, fast()));
    const auto file = File::open("overlapping.safetensors");
    REQUIRE(file);
    check_contents(*file, expected, 1);
}

void nothing_at_all() {
    CHECK(safealign::write_aligned("nothing.safetensors", {}, {}, fast()));
    const auto file = File::open("nothing.safetensors");
    REQUIRE(file);
    CHECK_EQ(file->size(), 0u);
    CHECK(file->metadata().empty());
    CHECK(safealign::write_aligned("nothing.safetensors", {}, {{"", ""}}, fast()));
    CHECK_EQ(File::open("nothing.safetensors").value().metadata().size(), 1u);
}

}  // namespace

int main() {
    work_in("roundtrip.work");
    compact("hostile", hostile());
    compact("dtypes", every_dtype());
    for (const std::uint64_t alignment : {8u, 64u, 4096u}) {
        padded("hostile", hostile(), alignment);
        padded("dtypes", every_dtype(), alignment);
    }
    control("hostile", hostile());
    control("dtypes", every_dtype());
    every_alignment();
    plan_makes_the_same_file();
    typed_access();
    any_input_address();
    nothing_at_all();
    return check_report();
}
