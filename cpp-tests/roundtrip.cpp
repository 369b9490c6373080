// Files written, planned and opened through the C++ header: every option, field and type arrives on the other side.
// The layouts themselves are tested in tests/layout.rs and tests/write.rs.

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
        // By the widths of samples.hpp, not those of the library.
        CHECK(one.bytes.empty() || info->offset % width_of(one.dtype) == 0);
        CHECK(one.bytes.empty() || info->offset % alignment == 0);

        const auto view = file.map(one.name);
        REQUIRE(view);
        CHECK(view->origin() == safealign::Origin::Mapped);
        CHECK(view->dtype() == one.dtype);
        CHECK(std::equal(view->shape().begin(), view->shape().end(), one.shape.begin(), one.shape.end()));
        CHECK(same_bytes(view->bytes(), one.bytes));
        CHECK(reinterpret_cast<std::uintptr_t>(view->bytes().data()) % width_of(one.dtype) == 0);
        // Not copied: the address is in the mapping.
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

    // The default options write what the option `strict` accepts.
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

void padded(const std::vector<Sample>& samples) {
    safealign::WriteOptions options = fast();
    options.layout = safealign::Layout::Padded;
    options.alignment = 4096;
    const auto report = safealign::write_aligned("padded.safetensors", tensors(samples), {}, options);
    REQUIRE(report);
    CHECK_EQ(report->tensors_moved, 0u);
    CHECK(report->gap_bytes > 0);

    const auto file = File::open("padded.safetensors");
    REQUIRE(file);
    check_contents(*file, samples, options.alignment);
    check_everything_maps(*file, samples.size());
    CHECK_EQ(file->stats().gap_bytes, report->gap_bytes);
    CHECK(file->stats().gaps > 0);
    CHECK_EQ(file->bytes().size(), report->file_size);

    safealign::OpenOptions strict;
    strict.strict = true;
    const auto refused = File::open("padded.safetensors", strict);
    CHECK(!refused && refused.error().status == safealign::Status::Nonconforming);
}

/// Control: the same tensors in the given order, after a header that is not padded. Some must be misaligned.
void packed(const std::vector<Sample>& samples) {
    write_packed("packed.safetensors", samples);
    const auto file = File::open("packed.safetensors");
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
}

/// Header, padding and tensors put together from the plan are the file that write_aligned writes.
void plan_makes_the_same_file() {
    const std::vector<Sample> samples = hostile();
    for (const auto layout : {safealign::Layout::Compact, safealign::Layout::Padded}) {
        safealign::WriteOptions options = fast();
        options.layout = layout;
        options.alignment = 512;
        const safealign::Metadata metadata = {{"key", "value"}};
        const safealign::Plan plan = safealign::Plan::make(tensors(samples), metadata, {options.alignment, layout}).value();
        CHECK_EQ(plan.header().size() % options.alignment, 0u);
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

/// Null pointers with a length of 0 at the C boundary.
void empty_lists_are_written() {
    CHECK(safealign::write_aligned("empty.safetensors", {}, {}, fast()));
    const auto file = File::open("empty.safetensors");
    REQUIRE(file);
    CHECK_EQ(file->size(), 0u);
    CHECK(file->metadata().empty());
    CHECK(safealign::write_aligned("empty.safetensors", {}, {{"", ""}}, fast()));
    CHECK_EQ(File::open("empty.safetensors").value().metadata().size(), 1u);
}

}  // namespace

int main() {
    work_in("roundtrip.work");
    compact("hostile", hostile());
    compact("dtypes", every_dtype());
    padded(hostile());
    packed(hostile());
    plan_makes_the_same_file();
    typed_access();
    empty_lists_are_written();
    return check_report();
}
