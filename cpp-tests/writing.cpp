// The Writer and the progress callback through the C++ header: threads, lifetimes, and what a callback throws.

#include "check.h"
#include "samples.hpp"

#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace samples;
using safealign::File;
using safealign::Status;
using safealign::Writer;

namespace {

/// An empty directory for each test, so that leftover files show.
std::string directory(const std::string& name) {
    std::filesystem::remove_all(name);
    std::filesystem::create_directories(name);
    return name;
}

std::size_t entries(const std::string& directory) {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) {
        count += 1;
    }
    return count;
}

void check_contents(const std::string& path, const std::vector<Sample>& samples) {
    const auto file = File::open(path);
    REQUIRE(file);
    CHECK_EQ(file->size(), samples.size());
    for (const Sample& one : samples) {
        const auto view = file->map(one.name);
        CHECK(view && same_bytes(view->bytes(), one.bytes));
        CHECK(view && view->origin() == safealign::Origin::Mapped);
    }
}

/// Pieces of 7 bytes, from four threads at once, the last pieces first.
void pieces_from_several_threads() {
    const std::string in = directory("pieces");
    const std::string path = in + "/model.safetensors";
    const std::vector<Sample> samples = hostile();
    safealign::WriteOptions options = fast();
    options.layout = safealign::Layout::Padded;
    options.alignment = 8;
    Writer writer = Writer::open(path, specs(samples), {{"k", "v"}}, options).value();
    std::vector<std::thread> threads;
    for (std::size_t number = 0; number < 4; ++number) {
        threads.emplace_back([&, number] {
            for (std::size_t index = 0; index < samples.size(); ++index) {
                const std::vector<unsigned char>& bytes = samples[index].bytes;
                for (std::size_t piece = (bytes.size() + 6) / 7; piece-- > 0;) {
                    if (piece % 4 == number) {
                        const std::size_t at = piece * 7;
                        const std::size_t count = std::min<std::size_t>(7, bytes.size() - at);
                        CHECK(writer.put_at(index, at, safealign::bytes_of(bytes.data() + at, count)));
                    }
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    const auto report = writer.finish();
    REQUIRE(report);
    CHECK_EQ(report->tensors, samples.size());
    CHECK(report->gap_bytes > 0);
    check_contents(path, samples);
    CHECK_EQ(File::open(path).value().metadata().size(), 1u);
    CHECK_EQ(entries(in), 1u);
    // An empty object.
    CHECK(writer.get() == nullptr && !writer.finish());
}

void a_refused_call_leaves_the_writer_usable() {
    const std::string path = directory("missing") + "/model.safetensors";
    const Sample first = sample("first", Dtype::F32, {4});
    const Sample second = sample("second", Dtype::U8, {20});
    Writer writer = Writer::open(path, specs({first, second}), {}, fast()).value();
    CHECK_EQ(writer.find("second").value(), 1u);
    CHECK_EQ(writer.at(1).value().nbytes, 20u);
    CHECK(writer.put("first", safealign::bytes_of(first.bytes)));
    CHECK(writer.put_at(1, 0, safealign::bytes_of(second.bytes.data(), 9)));
    CHECK(writer.put_at(1, 10, safealign::bytes_of(second.bytes.data() + 10, 10)));

    const auto bad = [](const safealign::Result<void>& result) {
        return !result && result.error().status == Status::InvalidArgument;
    };
    CHECK(writer.put(SIZE_MAX, safealign::bytes_of(first.bytes)).error().status == Status::NotFound);
    CHECK(bad(writer.put(1, safealign::bytes_of(first.bytes))));
    CHECK(bad(writer.put_at(1, UINT64_MAX, safealign::bytes_of(second.bytes))));
    // A length that is not read.
    CHECK(bad(writer.put_at(1, 0, safealign::bytes_of(second.bytes.data(), SIZE_MAX))));
    const auto refused = writer.finish();
    CHECK(!refused && refused.error().status == Status::InvalidArgument);
    CHECK(!refused && refused.error().message.find("`second`") != std::string::npos);
    const auto missing = writer.first_missing();
    REQUIRE(missing);
    CHECK(missing->index == 1 && missing->offset == 9 && missing->nbytes == 1);
    CHECK_EQ(writer.bytes_missing(), 1u);

    CHECK(writer.put_at(1, 9, safealign::bytes_of(second.bytes.data() + 9, 1)));
    CHECK(!writer.first_missing() && writer.bytes_missing() == 0);
    CHECK(writer.finish());
    check_contents(path, {first, second});
}

void an_unfinished_writer_leaves_nothing() {
    const std::string in = directory("aborted");
    const std::string path = in + "/model.safetensors";
    const std::vector<Sample> samples = hostile();
    {
        Writer writer = Writer::open(path, specs(samples), {}, fast()).value();
        CHECK(writer.put(0, safealign::bytes_of(samples[0].bytes)));
        writer.discard();
        CHECK(writer.get() == nullptr);
        CHECK_EQ(entries(in), 0u);
    }
    {
        const Writer forgotten = Writer::open(path, specs(samples), {}, fast()).value();
        CHECK(forgotten.put(0, safealign::bytes_of(samples[0].bytes)));
    }
    CHECK_EQ(entries(in), 0u);

    CHECK(safealign::write_aligned(path, tensors(samples), {}, fast()));
    const std::string before = read_file(path);
    {
        Writer writer = Writer::open(path, specs(every_dtype()), {}, fast()).value();
        Writer moved = std::move(writer);
        CHECK(writer.get() == nullptr && !writer.finish());
        CHECK(!moved.finish());
    }
    CHECK(read_file(path) == before);
    CHECK_EQ(entries(in), 1u);
}

/// More than one step of progress: steps are 16 MiB.
std::vector<Sample> large() {
    return {sample("large", Dtype::F32, {10, 1 << 20})};
}

/// A relative path is resolved when the writer is opened. A change of the directory affects all threads of a process,
/// which is why this is not a Rust test.
void the_current_directory_may_change() {
    namespace fs = std::filesystem;
    const std::string work = directory("directories");
    const std::vector<std::uint8_t> data = {1, 2, 3};
    Writer writer = Writer::open(work + "/relative.safetensors", {{"w", Dtype::U8, {3}, 3}}).value();
    CHECK(writer.put(0, safealign::bytes_of(data)));
    const fs::path start = fs::current_path();
    fs::create_directories(work + "/other");
    fs::current_path(work + "/other");
    CHECK(writer.finish());
    fs::current_path(start);
    CHECK(fs::exists(work + "/relative.safetensors"));
    CHECK_EQ(entries(work + "/other"), 0U);
}

void progress_is_reported_on_the_calling_thread() {
    const std::string path = directory("progress") + "/model.safetensors";
    const std::vector<Sample> samples = large();
    safealign::WriteOptions options = fast();
    std::uint64_t calls = 0;
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    const std::thread::id here = std::this_thread::get_id();
    options.progress = [&](std::uint64_t bytes_done, std::uint64_t bytes_total) {
        CHECK(std::this_thread::get_id() == here);
        ++calls;
        done = bytes_done;
        total = bytes_total;
        return true;
    };
    const auto report = safealign::write_aligned(path, tensors(samples), {}, options);
    REQUIRE(report);
    CHECK(calls > 1);
    CHECK_EQ(done, total);
    CHECK_EQ(total, report->file_size);
    check_contents(path, samples);
}

void a_callback_cancels_or_throws() {
    const std::string in = directory("cancelled");
    const std::string path = in + "/model.safetensors";
    const std::vector<Sample> samples = large();
    safealign::WriteOptions options = fast();

    int calls = 0;
    options.progress = [&](std::uint64_t, std::uint64_t) { return ++calls < 2; };
    const auto cancelled = safealign::write_aligned(path, tensors(samples), {}, options);
    CHECK(!cancelled && cancelled.error().status == Status::Cancelled);
    CHECK_EQ(calls, 2);

    // An exception of the callback cancels too. The C++ header passes it on.
    options.progress = [](std::uint64_t, std::uint64_t) -> bool { throw std::logic_error("of the callback"); };
    try {
        (void)safealign::write_aligned(path, tensors(samples), {}, options);
        CHECK(!"thrown");
    } catch (const std::logic_error& thrown) {
        CHECK_EQ(std::string(thrown.what()), "of the callback");
    }
    CHECK_EQ(entries(in), 0u);
}

}  // namespace

int main() {
    work_in("writing.work");
    pieces_from_several_threads();
    a_refused_call_leaves_the_writer_usable();
    an_unfinished_writer_leaves_nothing();
    the_current_directory_may_change();
    progress_is_reported_on_the_calling_thread();
    a_callback_cancels_or_throws();
    return check_report();
}
