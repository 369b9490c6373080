// Scan, repair, overlay and aligned cache through the C++ header: options, reports and callbacks. What they do to files is
// tested in tests/scan.rs, repair.rs, overlay.rs and aligned_cache.rs.

#include "check.h"
#include "samples.hpp"

#include <filesystem>
#include <stdexcept>
#include <string>

using namespace std::string_literals;
using safealign::Dtype;
using safealign::RepairAction;
using safealign::RepairOptions;
using safealign::Status;

namespace {

/// Writes the length field, the header padded to an odd length, and the data.
void write_file(const std::string& path, std::string json, const std::string& data) {
    json.resize((json.size() + 7) / 8 * 8 + 1, ' ');
    std::string prefix(8, '\0');
    prefix[0] = static_cast<char>(json.size() & 0xff);
    prefix[1] = static_cast<char>(json.size() >> 8);
    std::ofstream(path, std::ios::binary) << prefix << json << data;
}

void write_misaligned(const std::string& path) {
    write_file(path,
               R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
               "\0\0\xc0\x3f\0\0\0\xc0"s + "abc");
}

std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

RepairOptions fast() {
    RepairOptions options;
    options.durability = safealign::Durability::NotDurable;
    return options;
}

void scan_reports_the_layout() {
    write_misaligned("scan.safetensors");
    const auto report = safealign::scan("scan.safetensors", 256);
    REQUIRE(report);
    CHECK_EQ(report->tensors, 2u);
    CHECK_EQ(report->misaligned_tensors, 1u);
    CHECK_EQ(report->misaligned_bytes, 8u);
    CHECK_EQ(report->tensors_below_alignment, 2u);
    CHECK_EQ(report->file_size, contents("scan.safetensors").size());
    CHECK(report->header_padding == safealign::HeaderPadding::Spaces);
    CHECK(report->conforms() && report->nonconforming.empty());
    REQUIRE(report->dtypes.size() == 2);
    CHECK_EQ(report->dtypes[0].name, "F32");
    CHECK(report->dtypes[0].dtype == Dtype::F32);
    CHECK_EQ(report->dtypes[0].misaligned_bytes, 8u);
    CHECK(report->dtypes[1].dtype == Dtype::U8 && report->dtypes[1].misaligned_tensors == 0);

    write_file("unknown.safetensors", R"({"w":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}})", std::string(16, 'x'));
    const auto unknown = safealign::scan("unknown.safetensors");
    REQUIRE(unknown);
    CHECK(!unknown->conforms());
    CHECK_EQ(unknown->nonconforming_reason, "UNKNOWN_DTYPE");
    CHECK_EQ(unknown->unknown_dtype_tensors, 1u);
    CHECK(unknown->dtypes.size() == 1 && unknown->dtypes[0].name == "F128" && !unknown->dtypes[0].dtype);

    CHECK(safealign::scan("scan.safetensors", 3).error().status == Status::InvalidArgument);
    CHECK(safealign::scan("missing").error().status == Status::Io);
    CHECK(safealign::scan("scan.safetensors\0x"s).error().status == Status::InvalidArgument);
}

void repair_aligns() {
    write_misaligned("old.safetensors");
    const std::string before = contents("old.safetensors");
    RepairOptions options = fast();
    options.dry_run = true;
    const auto would = safealign::repair_in_place("old.safetensors", options);
    CHECK(would && would->action == RepairAction::Rewritten && would->bytes_verified == 0);
    options.dry_run = false;

    // Cancelled by the callback, and by an exception of the callback.
    options.progress = [](std::uint64_t, std::uint64_t) { return false; };
    CHECK(safealign::repair_in_place("old.safetensors", options).error().status == Status::Cancelled);
    options.progress = [](std::uint64_t, std::uint64_t) -> bool { throw std::logic_error("of the callback"); };
    try {
        (void)safealign::repair_in_place("old.safetensors", options);
        CHECK(!"thrown");
    } catch (const std::logic_error& thrown) {
        CHECK_EQ(std::string(thrown.what()), "of the callback");
    }
    CHECK(contents("old.safetensors") == before);

    // An empty or invalid destination does not mean "in place".
    CHECK(safealign::repair("old.safetensors", "old.safetensors", fast()).error().status == Status::Refused);
    CHECK(safealign::repair("old.safetensors", "", fast()).error().status == Status::InvalidArgument);
    CHECK(safealign::repair("old.safetensors", "x\0y"s, fast()).error().status == Status::InvalidArgument);
    CHECK(contents("old.safetensors") == before);

    std::uint64_t last = 0;
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
        last = done;
        return done <= total;
    };
    const auto report = safealign::repair("old.safetensors", "new.safetensors", options);
    REQUIRE(report);
    CHECK(report->action == RepairAction::Rewritten);
    CHECK_EQ(report->misaligned_tensors, 1u);
    CHECK_EQ(report->bytes_verified, 11u);
    CHECK_EQ(report->file_size, last);
    CHECK(contents("old.safetensors") == before);
    CHECK_EQ(safealign::scan("new.safetensors").value().misaligned_tensors, 0u);

    CHECK(safealign::repair_in_place("old.safetensors", fast()).value().action == RepairAction::Rewritten);
    CHECK(safealign::repair_in_place("old.safetensors", fast()).value().action == RepairAction::Untouched);
    CHECK(safealign::repair("old.safetensors", "copy.safetensors", fast()).value().action == RepairAction::Copied);

    // Each option has its effect.
    RepairOptions some = fast();
    some.alignment = 3;
    CHECK(safealign::repair_in_place("old.safetensors", some).error().status == Status::InvalidArgument);
    some.alignment = 4096;
    some.layout = safealign::Layout::Padded;
    some.force = true;
    some.verify = false;
    const auto padded = safealign::repair_in_place("old.safetensors", some);
    REQUIRE(padded);
    CHECK(padded->action == RepairAction::Rewritten && padded->bytes_verified == 0);
    CHECK_EQ(padded->gap_bytes, 4096u - 8);
    CHECK_EQ(padded->file_size, 4096u + 4096 + 3);
    std::ofstream("trailing.safetensors", std::ios::binary) << before << "trailing";
    RepairOptions trailing = fast();
    CHECK(safealign::repair_in_place("trailing.safetensors", trailing).error().status == Status::Refused);
    trailing.drop_trailing = true;
    CHECK_EQ(safealign::repair_in_place("trailing.safetensors", trailing).value().source_trailing_bytes, 8u);
}

void overlays_are_made() {
    std::filesystem::create_directories("bundle");
    write_misaligned("bundle/model.safetensors");
    std::ofstream("bundle/config.json") << "{}";
    int calls = 0;
    std::string warned;
    safealign::OverlayOptions options;
    options.durability = safealign::Durability::NotDurable;
    options.progress = [&](std::uint64_t, std::uint64_t) { return ++calls > 0; };
    options.warning = [&](std::string_view path, std::string_view message) {
        warned.append(path).append(": ").append(message).append("\n");
    };
    const auto made = safealign::overlay_bundle("bundle", "overlay", options);
    REQUIRE(made);
    CHECK(made->written == 1 && made->linked == 1 && made->kept == 0 && made->warnings == 0 && calls > 0);
    CHECK_EQ(safealign::scan("overlay/model.safetensors").value().misaligned_tensors, 0u);
    CHECK(std::filesystem::is_symlink("overlay/config.json"));
    CHECK(warned.empty());
    std::ofstream("bundle/broken.safetensors") << "<html>";
    const auto again = safealign::overlay_bundle("bundle", "overlay", options);
    CHECK(again && again->written == 0 && again->kept == 1 && again->warnings == 1);
    CHECK(warned.find("broken.safetensors: linked as it is: ") != std::string::npos);
}

void aligned_caches_are_used() {
    write_misaligned("cached.safetensors");
    std::uint64_t last = 0;
    safealign::AlignedCacheOptions options;
    options.durability = safealign::Durability::NotDurable;
    options.progress = [&](std::uint64_t, std::uint64_t) { return false; };
    CHECK(safealign::write_aligned_cache("cached.safetensors", "cache", options).error().status == Status::Cancelled);
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
        last = done;
        return done <= total;
    };
    const auto cache = safealign::write_aligned_cache("cached.safetensors", "cache", options);
    REQUIRE(cache);
    CHECK(cache->is_new && cache->tensors == 1 && cache->tensor_bytes == 8 && cache->file_size == last);
    CHECK(!safealign::write_aligned_cache("cached.safetensors", "cache", options).value().is_new);

    safealign::OpenOptions open;
    open.aligned_cache = cache->path;
    const safealign::File file = safealign::File::open("cached.safetensors", open).value();
    const safealign::View w = file.map("w").value();
    CHECK(w.origin() == safealign::Origin::Cached && w.as<float>().value()[0] == 1.5f);
    CHECK(file.map("b").value().origin() == safealign::Origin::Mapped);
    CHECK_EQ(file.stats().tensors_copied, 0u);
    // Control.
    CHECK(safealign::File::open("cached.safetensors")->map("w")->origin() == safealign::Origin::Copied);

    open.aligned_cache.push_back('\0');
    CHECK(safealign::File::open("cached.safetensors", open).error().status == Status::InvalidArgument);
}

}  // namespace

int main() {
    samples::work_in("repairing");
    scan_reports_the_layout();
    repair_aligns();
    overlays_are_made();
    aligned_caches_are_used();
    return check_report();
}
