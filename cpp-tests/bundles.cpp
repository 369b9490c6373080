// Bundles through the C++ header: types and options, concurrent writers and readers, and swapped bundles.

#include "check.h"
#include "samples.hpp"

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

using namespace samples;
using safealign::Bundle;
using safealign::BundleSlot;
using safealign::Status;

namespace {

namespace fs = std::filesystem;

safealign::ShardedOptions quick(bool replace = false) {
    safealign::ShardedOptions options;
    options.durability = safealign::Durability::NotDurable;
    options.replace = replace;
    return options;
}

void check_contents(const Bundle& bundle, const std::vector<Sample>& expected) {
    CHECK_EQ(bundle.size(), expected.size());
    for (const Sample& one : expected) {
        const auto index = bundle.find(one.name);
        REQUIRE(index);
        const safealign::View view = bundle.map(one.name).value();
        CHECK(view.origin() == safealign::Origin::Mapped && same_bytes(view.bytes(), one.bytes));
        CHECK(same_bytes(bundle.map_at(*index).value().bytes(), one.bytes));
        const safealign::TensorInfo info = bundle.at(*index).value();
        CHECK(info.name == one.name && info.dtype == one.dtype && info.nbytes == one.bytes.size());
        const sa_file* shard = bundle.shard(bundle.shard_of(*index).value());
        std::size_t in_shard = 0;
        CHECK(sa_file_find(shard, one.name.empty() ? nullptr : one.name.data(), one.name.size(), &in_shard, nullptr) ==
              SA_OK);
    }
    CHECK_EQ(bundle.names().size(), expected.size());
    CHECK(bundle.map("not there").error().status == Status::NotFound);
    CHECK(bundle.at(expected.size()).error().status == Status::NotFound);
}

void written_in_shards() {
    const std::vector<Sample> samples = hostile();
    fs::create_directories("sharded");
    const auto report = safealign::write_sharded("sharded", "model", 64, tensors(samples), {{"k", "v"}}, quick());
    REQUIRE(report);
    CHECK(report->shards > 2 && report->tensors == samples.size());
    const Bundle old = Bundle::open("sharded").value();
    check_contents(old, samples);
    CHECK_EQ(old.shard_count(), report->shards);
    CHECK_EQ(old.stats().tensors, samples.size());
    CHECK_EQ(old.stats().misaligned_tensors, 0u);
    CHECK_EQ(old.stats().file_size, report->file_bytes);
    bool has_size = false;
    for (const auto& [key, value] : old.metadata()) {
        has_size |= key == "total_size" && value == std::to_string(report->tensor_bytes);
    }
    CHECK(has_size);
    CHECK(old.is_current().value());

    // Each option has its effect.
    CHECK(safealign::write_sharded("sharded", "model", 64, {}, {}, quick()).error().status == Status::Refused);
    safealign::ShardedOptions cancelling = quick(true);
    cancelling.progress = [](std::uint64_t, std::uint64_t) { return false; };
    CHECK(safealign::write_sharded("sharded", "model", 64, tensors(samples), {}, cancelling).error().status == Status::Cancelled);
    const std::vector<Sample> other = every_dtype();
    const auto replaced = safealign::write_sharded("sharded", "model", 1 << 20, tensors(other), {}, quick(true));
    REQUIRE(replaced);
    CHECK_EQ(replaced->shards, 1u);
    CHECK(replaced->removed >= report->shards);
    check_contents(Bundle::open("sharded").value(), other);
    // The old files stay mapped.
    CHECK(!old.is_current().value());
    check_contents(old, samples);
}

/// A relative path is resolved when the call begins. A change of the directory affects all threads of a process, which
/// is why this is not a Rust test.
void the_current_directory_may_change() {
    fs::create_directories("here/model");
    fs::create_directories("there/model");
    const std::vector<Sample> old = hostile();
    for (const char* directory : {"here/model", "there/model"}) {
        CHECK(safealign::write_sharded(directory, "m", 64, tensors(old), {}, quick()));
    }
    const fs::path start = fs::current_path();
    fs::current_path("here");
    safealign::ShardedOptions options = quick(true);
    options.progress = [&](std::uint64_t, std::uint64_t) {
        fs::current_path(start / "there");
        return true;
    };
    CHECK(safealign::write_sharded("model", "m", 64, tensors(every_dtype()), {}, options));
    fs::current_path(start);
    check_contents(Bundle::open("here/model").value(), every_dtype());
    check_contents(Bundle::open("there/model").value(), old);
}

/// Each call is complete before the next one begins.
void concurrent_writers_do_not_mix() {
    fs::create_directories("written");
    const auto model = [](unsigned char number) {
        std::vector<Sample> out;
        for (int at = 0; at < 6; ++at) {
            out.push_back({"t" + std::to_string(at), Dtype::U8, {8}, std::vector<unsigned char>(8, number)});
        }
        return out;
    };
    std::vector<std::thread> writers;
    for (unsigned char number = 1; number <= 3; ++number) {
        writers.emplace_back([&, number] {
            const std::vector<Sample> samples = model(number);
            for (int round = 0; round < 20; ++round) {
                CHECK(safealign::write_sharded("written", "m", 8, tensors(samples), {}, quick(true)));
            }
        });
    }
    for (std::thread& writer : writers) {
        writer.join();
    }
    const Bundle bundle = Bundle::open("written").value();
    const auto first = std::to_integer<unsigned char>(bundle.map("t0").value().bytes()[0]);
    check_contents(bundle, model(first));
    CHECK_EQ(std::distance(fs::directory_iterator("written"), fs::directory_iterator()), 7);
}

/// A single file exists at all times while it is replaced.
void a_single_file_is_replaced_by_one_rename() {
    fs::create_directories("single");
    CHECK(safealign::write_sharded("single", "m", 1 << 20, tensors(hostile()), {}, quick()));
    std::atomic<bool> stop = false;
    std::atomic<int> missing = 0;
    std::thread reader([&] {
        while (!stop) {
            missing += safealign::File::open("single/m.safetensors") ? 0 : 1;
        }
    });
    for (int round = 0; round < 100; ++round) {
        CHECK(safealign::write_sharded("single", "m", 1 << 20, tensors(hostile()), {}, quick(true)));
    }
    stop = true;
    reader.join();
    CHECK_EQ(missing.load(), 0);
    CHECK_EQ(std::distance(fs::directory_iterator("single"), fs::directory_iterator()), 1);
}

void errors_and_empty_objects() {
    const auto missing = Bundle::open("missing");
    CHECK(!missing && missing.error().status == Status::Io && missing.error().os_error == 2);
    CHECK(!missing && missing.error().message.find("missing") == 0);
    CHECK(Bundle::open(std::string_view("x\0y", 3)).error().status == Status::InvalidArgument);

    const Bundle empty;
    CHECK(empty.size() == 0 && empty.metadata().empty() && empty.shard_count() == 0 && empty.shard(0) == nullptr);
    CHECK(empty.map("t").error().status == Status::InvalidArgument);
    CHECK(BundleSlot::make(empty).error().status == Status::InvalidArgument);
    CHECK(BundleSlot().get().error().status == Status::InvalidArgument);
}

/// While one thread swaps two bundles, each reader sees the tensors of one or of the other.
void swapped_in_one_step() {
    fs::create_directories("one");
    fs::create_directories("two");
    const std::vector<Sample> one = {sample("a", Dtype::U8, {1}), sample("b", Dtype::U8, {8})};
    const std::vector<Sample> two = {sample("a", Dtype::U8, {2}), sample("b", Dtype::U8, {16})};
    CHECK(safealign::write_sharded("one", "model", 8, tensors(one), {}, quick()));
    CHECK(safealign::write_sharded("two", "model", 8, tensors(two), {}, quick()));
    const BundleSlot slot = BundleSlot::make(Bundle::open("one").value()).value();
    std::atomic<bool> stop = false;
    std::atomic<int> mixed = 0;
    std::vector<std::thread> readers;
    for (int at = 0; at < 2; ++at) {
        readers.emplace_back([&] {
            while (!stop) {
                const Bundle bundle = slot.get().value();
                if (bundle.map("b")->nbytes() != 8 * bundle.map("a")->nbytes()) {
                    ++mixed;
                }
            }
        });
    }
    for (int round = 0; round < 200; ++round) {
        CHECK(slot.set(Bundle::open(round % 2 == 0 ? "two" : "one").value()));
    }
    stop = true;
    for (std::thread& reader : readers) {
        reader.join();
    }
    CHECK_EQ(mixed.load(), 0);
    CHECK_EQ(slot.get().value().map("a")->nbytes(), 1u);
}

}  // namespace

int main() {
    work_in("bundles.work");
    written_in_shards();
    the_current_directory_may_change();
    concurrent_writers_do_not_mix();
    a_single_file_is_replaced_by_one_rename();
    errors_and_empty_objects();
    swapped_in_one_step();
    return check_report();
}
