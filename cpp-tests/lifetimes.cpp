// Lifetimes: views and files released in any order, on any thread, while the file on the disk is replaced.

#include "check.h"
#include "samples.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

using namespace samples;
using safealign::File;
using safealign::View;

namespace {

const Sample& named(const std::vector<Sample>& samples, std::string_view name) {
    return *std::find_if(samples.begin(), samples.end(), [&](const Sample& one) { return one.name == name; });
}

File written(const std::string& path, const std::vector<Sample>& samples, const safealign::OpenOptions& options = {}) {
    CHECK(safealign::write_aligned(path, tensors(samples), {{"k", "v"}}, fast()));
    return File::open(path, options).value();
}

void views_outlive_their_file() {
    const std::vector<Sample> samples = hostile();
    File file = written("outlived.safetensors", samples);
    std::vector<View> views;
    for (const Sample& one : samples) {
        views.push_back(file.map(one.name).value());
    }
    const auto metadata = file.metadata();
    file.close();
    std::filesystem::remove("outlived.safetensors");
    for (std::size_t at = 0; at < samples.size(); ++at) {
        CHECK(same_bytes(views[at].bytes(), samples[at].bytes));
        CHECK(views[at].shape().size() == samples[at].shape.size());
    }
    // One view keeps the whole file alive.
    views.erase(views.begin() + 1, views.end());
    CHECK_EQ(metadata[0].second, "v");
}

void views_are_released_on_another_thread() {
    const std::vector<Sample> samples = hostile();
    write_packed("handed over.safetensors", samples);
    File file = File::open("handed over.safetensors").value();
    std::vector<View> views;
    for (const Sample& one : samples) {
        views.push_back(file.map(one.name).value());
    }
    std::thread([views = std::move(views), &samples]() mutable {
        for (std::size_t at = 0; at < samples.size(); ++at) {
            CHECK(same_bytes(views[at].bytes(), samples[at].bytes));
        }
        views.clear();
    }).join();
    std::thread([file = std::move(file)]() mutable { file.close(); }).join();
}

void retain_and_release() {
    const std::vector<Sample> samples = hostile();
    write_packed("retained.safetensors", samples);
    for (const char* name : {"three", "f32", "empty"}) {
        const Sample& expected = named(samples, name);
        sa_file* file = nullptr;
        sa_view view;
        SA_INIT(&view);
        REQUIRE(sa_file_open("retained.safetensors", nullptr, &file, nullptr) == SA_OK);
        REQUIRE(sa_map_tensor(file, name, SA_NUL_TERMINATED, &view, nullptr) == SA_OK);
        sa_view_retain(view.owner);
        sa_view_retain(view.owner);
        sa_file_free(file);
        for (int holds = 0; holds < 3; ++holds) {
            CHECK(same_bytes(safealign::bytes_of(view.data, view.nbytes), expected.bytes));
            sa_view_release(view.owner);
        }
    }

    // The C++ type uses the same calls.
    View view = File::open("retained.safetensors").value().map("f32").value();
    const Sample& expected = named(samples, "f32");
    View copy = view;
    View moved = std::move(view);
    CHECK(view.bytes().empty());
    CHECK(same_bytes(copy.bytes(), expected.bytes) && same_bytes(moved.bytes(), expected.bytes));
    copy = moved;
    copy = *&copy;
    moved = View();
    CHECK(same_bytes(copy.bytes(), expected.bytes));
    view = std::move(copy);
    CHECK(same_bytes(view.bytes(), expected.bytes));
}

void release_is_a_deleter() {
    const std::vector<Sample> samples = hostile();
    const File file = written("deleter.safetensors", samples);
    const Sample& expected = named(samples, "big");
    {
        const sa_view view = file.map("big").value().release();
        const std::unique_ptr<void, void (*)(void*)> owner(view.owner, sa_view_release);
        CHECK(same_bytes(safealign::bytes_of(view.data, view.nbytes), expected.bytes));
    }
    std::shared_ptr<const float> floats;
    {
        const sa_view view = file.map("big").value().release();
        const std::shared_ptr<void> owner(view.owner, sa_view_release);
        floats = std::shared_ptr<const float>(owner, static_cast<const float*>(view.data));
    }
    CHECK(same_bytes(safealign::bytes_of(floats.get(), expected.bytes.size()), expected.bytes));
    // And back.
    const View adopted(file.map("big").value().release());
    CHECK(same_bytes(adopted.bytes(), expected.bytes));
}

void a_copy_is_made_once() {
    const std::vector<Sample> samples = hostile();
    write_packed("copied.safetensors", samples);
    const File file = File::open("copied.safetensors").value();
    const Sample* misaligned = nullptr;
    for (const Sample& one : samples) {
        if (file.at(file.find(one.name).value())->is_misaligned) {
            misaligned = &one;
        }
    }
    REQUIRE(misaligned != nullptr);
    const std::uint64_t nbytes = misaligned->bytes.size();

    View first = file.map(misaligned->name).value();
    CHECK(first.origin() == safealign::Origin::Copied);
    {
        const View second = file.map(misaligned->name).value();
        CHECK(second.bytes().data() == first.bytes().data());
        const View third = second;
        first = View();
        CHECK(same_bytes(file.map(misaligned->name)->bytes(), misaligned->bytes));
        CHECK(file.map(misaligned->name)->bytes().data() == third.bytes().data());
    }
    CHECK_EQ(file.stats().tensors_copied, 1u);
    CHECK_EQ(file.stats().bytes_copied, nbytes);
    // Freed with its last view. Made again, it is counted once.
    CHECK(same_bytes(file.map(misaligned->name)->bytes(), misaligned->bytes));
    CHECK_EQ(file.stats().tensors_copied, 1u);
    CHECK_EQ(file.stats().tensors_mapped, 0u);
}

/// A program saves the tensors of a mapping over the mapped file.
void replaced_while_mapped() {
    const std::string path = "replaced.safetensors";
    const std::vector<Sample> samples = hostile();
    const File old = written(path, samples);
    std::vector<std::string> names;
    for (const Sample& one : samples) {
        names.push_back("new " + one.name);
    }
    std::vector<View> views;
    std::vector<safealign::Tensor> from_the_mapping;
    for (std::size_t at = 0; at < samples.size(); ++at) {
        views.push_back(old.map(samples[at].name).value());
        from_the_mapping.push_back({names[at], samples[at].dtype, samples[at].shape, views[at].bytes()});
    }
    CHECK(safealign::write_aligned(path, from_the_mapping, {}, fast()));
    const File saved = File::open(path).value();
    for (std::size_t at = 0; at < samples.size(); ++at) {
        CHECK(same_bytes(views[at].bytes(), samples[at].bytes));
        CHECK(same_bytes(old.map(samples[at].name)->bytes(), samples[at].bytes));
        CHECK(same_bytes(saved.map(names[at])->bytes(), samples[at].bytes));
        CHECK(!saved.find(samples[at].name));
    }
}

/// The option has its effect. What it does is tested in tests/write.rs.
void copy_on_write() {
    const std::string path = "cow.safetensors";
    safealign::OpenOptions options;
    options.map_mode = safealign::MapMode::CopyOnWrite;
    const File file = written(path, hostile(), options);
    const std::string before = read_file(path);
    const View view = file.map("big").value();
    const auto floats = view.as_mutable<float>();
    REQUIRE(floats);
    std::fill(floats->begin(), floats->end(), 1.25f);
    CHECK_EQ(file.map("big")->as<float>().value()[255], 1.25f);
    const auto bytes = view.mutable_bytes();
    CHECK(bytes && bytes->data() == view.bytes().data() && bytes->size() == view.nbytes());
    CHECK(read_file(path) == before);
    CHECK(!File::open(path)->map("big")->mutable_bytes());
}

void every_advice_is_accepted() {
    const View view = written("advised.safetensors", hostile()).map("big").value();
    for (const auto advice : {safealign::Advice::WillNeed, safealign::Advice::DoNotNeed, safealign::Advice::Random,
                              safealign::Advice::Sequential}) {
        CHECK(view.advise(advice));
    }
}

/// 8 threads map every tensor of one file, each starting with another one, and release some views on the way.
void eight_threads() {
    std::vector<Sample> samples = hostile();
    for (Sample& one : every_dtype()) {
        samples.push_back(std::move(one));
    }
    for (const bool aligned : {true, false}) {
        const std::string path = aligned ? "threads.safetensors" : "threads-packed.safetensors";
        if (aligned) {
            CHECK(safealign::write_aligned(path, tensors(samples), {}, fast()));
        } else {
            write_packed(path, samples);
        }
        const File file = File::open(path).value();
        std::vector<std::thread> threads;
        for (std::size_t number = 0; number < 8; ++number) {
            threads.emplace_back([&, number] {
                std::vector<View> held;
                for (std::size_t round = 0; round < 3; ++round) {
                    for (std::size_t step = 0; step < samples.size(); ++step) {
                        const Sample& one = samples[(step + number * 5) % samples.size()];
                        auto view = file.map(one.name);
                        REQUIRE(view);
                        CHECK(same_bytes(view->bytes(), one.bytes));
                        if (step % 2 == 0) {
                            held.push_back(std::move(*view));
                        }
                    }
                    held.clear();
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        const safealign::Stats stats = file.stats();
        CHECK_EQ(stats.tensors_mapped + stats.tensors_copied, samples.size());
        CHECK_EQ(stats.tensors_copied, stats.misaligned_tensors);
        CHECK_EQ(stats.bytes_copied, stats.misaligned_bytes);
        CHECK_EQ(stats.tensors_copied > 0, !aligned);
    }
}

/// The callback for lent memory is called once, by the thread that releases the last view, and not if the call fails.
void lent_memory_is_released() {
    const std::vector<Sample> samples = hostile();
    CHECK(safealign::write_aligned("lent.safetensors", tensors(samples), {}, fast()));
    const std::string bytes = read_file("lent.safetensors");
    int released = 0;
    std::thread::id thread;
    const auto release = [&] {
        ++released;
        thread = std::this_thread::get_id();
    };
    for (const auto read_ahead : {safealign::ReadAhead::None, safealign::ReadAhead::Background}) {
        released = 0;
        safealign::OpenOptions options;
        options.read_ahead = read_ahead;
        View view;
        {
            const File file = File::open_memory(safealign::bytes_of(bytes), release, options).value();
            CHECK(!file.stats().is_mapped && file.path().empty() && !file.descriptor());
            for (const Sample& one : samples) {
                CHECK(same_bytes(file.map(one.name).value().bytes(), one.bytes));
            }
            view = file.map("big").value();
        }
        CHECK_EQ(released, 0);
        CHECK(same_bytes(view.bytes(), named(samples, "big").bytes));
        view = View();
        CHECK_EQ(released, 1);
        CHECK(thread == std::this_thread::get_id());
    }
    CHECK(!File::open_memory(safealign::bytes_of(bytes.data(), 9), release));
    CHECK_EQ(released, 1);
}

/// A model inside another file.
void a_part_of_a_file_opens() {
    const std::vector<Sample> samples = hostile();
    CHECK(safealign::write_aligned("part.safetensors", tensors(samples), {}, fast()));
    write_file("archive", std::string(4096, 'x') + read_file("part.safetensors"));
    const int descriptor = ::open("archive", O_RDONLY);
    const File file = File::open_descriptor(descriptor, 4096).value();
    CHECK(File::open_descriptor(descriptor, 4096, 100).error().status == safealign::Status::Truncated);
    ::close(descriptor);
    const View view = file.map("big").value();
    CHECK(view.origin() == safealign::Origin::Mapped && same_bytes(view.bytes(), named(samples, "big").bytes));
    CHECK_EQ(file.descriptor().value().second, 4096u);
    CHECK(!file.is_current().has_value());
    const File by_path = File::open("part.safetensors").value();
    CHECK(by_path.is_current().value() && by_path.path() == "part.safetensors");
}

#if defined(__linux__)
/// Resident pages of files and shared memory of this process.
long shared_pages() {
    long size = 0, resident = 0, shared = 0;
    std::ifstream("/proc/self/statm") >> size >> resident >> shared;
    return shared;
}

/// After the advice the pages are not resident. They are read again with the same content.
void advice_evicts() {
    const std::vector<Sample> samples = {sample("large", Dtype::U8, {16 << 20})};
    const View view = written("advised.safetensors", samples).map("large").value();
    const auto touch = [&] {
        unsigned sum = 0;
        for (std::size_t at = 0; at < view.nbytes(); at += 4096) {
            sum += std::to_integer<unsigned>(view.bytes()[at]);
        }
        return sum;
    };
    const long pages = (16 << 20) / 4096;
    const long before = shared_pages();
    const unsigned sum = touch();
    CHECK(shared_pages() > before + pages / 2);
    CHECK(view.advise(safealign::Advice::DoNotNeed));
    CHECK(shared_pages() < before + pages / 4);
    CHECK_EQ(touch(), sum);
}
#endif

}  // namespace

int main() {
    work_in("lifetimes.work");
    views_outlive_their_file();
    views_are_released_on_another_thread();
    retain_and_release();
    release_is_a_deleter();
    a_copy_is_made_once();
    replaced_while_mapped();
    copy_on_write();
    every_advice_is_accepted();
    eight_threads();
    lent_memory_is_released();
    a_part_of_a_file_opens();
#if defined(__linux__)
    advice_evicts();
#endif
    return check_report();
}
