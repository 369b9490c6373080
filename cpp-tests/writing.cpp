// Writing in pieces, cancelling, and what is left behind: the old file or the new one, and nothing else.

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

/// A folder of its own for each test, so that what is left behind shows.
std::string folder(const std::string& name) {
    std::filesystem::remove_all(name);
    std::filesystem::create_directories(name);
    return name;
}

std::size_t entries(const std::string& folder) {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) {
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
    const std::string in = folder("pieces");
    const std::string path = in + "/model.safetensors";
    const std::vector<Sample> samples = hostile();
    for (const auto layout : {safealign::Layout::Compact, safealign::Layout::Padded}) {
        safealign::WriteOptions options = fast();
        options.layout = layout;
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
        check_contents(path, samples);
        CHECK_EQ(entries(in), 1u);
        // Used up.
        CHECK(writer.get() == nullptr && !writer.finish());

        // The same bytes as in one call.
        const std::string pieces = read_file(path);
        CHECK(safealign::write_aligned(path, tensors(samples), {{"k", "v"}}, options));
        CHECK(read_file(path) == pieces);
    }
}

void a_missing_byte_is_refused() {
    const std::string in = folder("missing");
    const std::string path = in + "/model.safetensors";
    const Sample whole = sample("whole", Dtype::F32, {4});
    const Sample holed = sample("holed", Dtype::U8, {20});
    Writer writer = Writer::open(path, specs({whole, holed}), {}, fast()).value();
    const auto refused = [&](const char* name, const char* range) {
        const auto outcome = writer.finish();
        CHECK(!outcome && outcome.error().status == Status::InvalidArgument);
        CHECK(!outcome && outcome.error().message.find(name) != std::string::npos);
        CHECK(!outcome && outcome.error().message.find(range) != std::string::npos);
        CHECK(!outcome && outcome.error().message.find(path) != std::string::npos);
        CHECK(!std::filesystem::exists(path));
    };
    refused("`whole`", "0 to 16");
    CHECK(writer.put(0, safealign::bytes_of(whole.bytes)));
    refused("`holed`", "0 to 20");
    CHECK(writer.put_at(1, 0, safealign::bytes_of(holed.bytes.data(), 9)));
    CHECK(writer.put_at(1, 10, safealign::bytes_of(holed.bytes.data() + 10, 10)));
    refused("`holed`", "9 to 10");

    // Pieces that do not fit change nothing.
    const auto bad = [](const safealign::Result<void>& outcome) {
        return !outcome && outcome.error().status == Status::InvalidArgument;
    };
    for (const std::size_t index : {std::size_t{2}, SIZE_MAX}) {
        CHECK(writer.put(index, safealign::bytes_of(whole.bytes)).error().status == Status::NotFound);
    }
    CHECK(bad(writer.put(1, safealign::bytes_of(whole.bytes))));
    CHECK(bad(writer.put_at(1, 1, safealign::bytes_of(holed.bytes))));
    CHECK(bad(writer.put_at(1, 21, {})));
    CHECK(bad(writer.put_at(1, UINT64_MAX, safealign::bytes_of(holed.bytes))));
    CHECK(bad(writer.put_at(1, 0, safealign::bytes_of(holed.bytes.data(), SIZE_MAX))));
    refused("`holed`", "9 to 10");

    CHECK(writer.put_at(1, 9, safealign::bytes_of(holed.bytes.data() + 9, 1)));
    CHECK(writer.finish());
    check_contents(path, {whole, holed});
    CHECK_EQ(entries(in), 1u);
}

void abort_leaves_nothing() {
    const std::string in = folder("aborted");
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

/// The path is that of the day the writer was opened; what stands there is looked at on the day it is finished.
void the_world_changes_meanwhile() {
    namespace fs = std::filesystem;
    const std::string work = folder("meanwhile");
    const std::vector<std::uint8_t> data = {1, 2, 3};
    const auto open = [&](const std::string& path) {
        Writer writer = Writer::open(path, {{"w", safealign::Dtype::U8, {3}, 3}}).value_or_throw();
        writer.put(0, safealign::bytes_of(data)).value_or_throw();
        return writer;
    };

    Writer moved = open(work + "/relative.safetensors");
    const fs::path here = fs::current_path();
    fs::create_directories(work + "/elsewhere");
    fs::current_path(work + "/elsewhere");
    CHECK(moved.finish());
    fs::current_path(here);
    CHECK(fs::exists(work + "/relative.safetensors"));
    CHECK_EQ(entries(work + "/elsewhere"), 0U);

    const std::string secret = work + "/private.safetensors";
    Writer replacing = open(secret);
    write_file(secret, "a private file, made meanwhile");
    fs::permissions(secret, fs::perms::owner_read | fs::perms::owner_write);
    CHECK(replacing.finish());
    CHECK(fs::status(secret).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
    CHECK(File::open(secret));

    const std::string taken = work + "/directory.safetensors";
    Writer refused = open(taken);
    fs::create_directories(taken);
    const auto finished = refused.finish();
    CHECK(!finished && finished.error().status == Status::Io);
    CHECK(fs::is_directory(taken));
    refused.discard();
    CHECK_EQ(entries(work), 4U);
}

void progress_is_told() {
    const std::string in = folder("progress");
    const std::vector<Sample> samples = large();
    safealign::WriteOptions options = fast();
    std::vector<std::uint64_t> done;
    std::uint64_t total = 0;
    const std::thread::id here = std::this_thread::get_id();
    options.progress = [&](std::uint64_t bytes_done, std::uint64_t bytes_total) {
        CHECK(std::this_thread::get_id() == here);
        CHECK(done.empty() || bytes_done > done.back());
        done.push_back(bytes_done);
        total = bytes_total;
        return true;
    };
    const auto report = safealign::write_aligned(in + "/model.safetensors", tensors(samples), {}, options);
    REQUIRE(report);
    CHECK(done.size() > 1);
    CHECK(!done.empty() && done.back() == total);
    CHECK_EQ(total, report->file_size);
    check_contents(in + "/model.safetensors", samples);
}

void progress_cancels() {
    const std::string in = folder("cancelled");
    const std::string path = in + "/model.safetensors";
    CHECK(safealign::write_aligned(path, tensors(hostile()), {}, fast()));
    const std::string before = read_file(path);
    const std::vector<Sample> samples = large();
    safealign::WriteOptions options = fast();

    int calls = 0;
    options.progress = [&](std::uint64_t, std::uint64_t) { return ++calls < 2; };
    const auto cancelled = safealign::write_aligned(path, tensors(samples), {}, options);
    CHECK(!cancelled && cancelled.error().status == Status::Cancelled);
    CHECK(!cancelled && cancelled.error().message.find(path) != std::string::npos);
    CHECK_EQ(calls, 2);
    CHECK(read_file(path) == before);
    CHECK_EQ(entries(in), 1u);

    // What a callback throws cancels as well, and arrives on this side of the library.
    options.progress = [](std::uint64_t, std::uint64_t) -> bool { throw std::logic_error("of the callback"); };
    try {
        (void)safealign::write_aligned(path, tensors(samples), {}, options);
        CHECK(!"thrown");
    } catch (const std::logic_error& thrown) {
        CHECK_EQ(std::string(thrown.what()), "of the callback");
    }
    CHECK(read_file(path) == before);
    CHECK_EQ(entries(in), 1u);
}

}  // namespace

int main() {
    work_in("writing.work");
    pieces_from_several_threads();
    a_missing_byte_is_refused();
    abort_leaves_nothing();
    the_world_changes_meanwhile();
    progress_is_told();
    progress_cancels();
    return check_report();
}
