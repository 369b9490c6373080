// The adapter with the real MLX: what it saves it loads, without a copy, and as MLX would.
//
//     adapter            checks, and leaves files for readers.py in samples/
//     adapter dump FILE  loads a file and prints its arrays, for stock_files.py

#include "../check.h"
#include "arrays.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <thread>

using namespace arrays;
using safealign::mlx::LoadReport;

namespace {

// The types of MLX's own functions: what takes the address of one can take that of the other.
using SaveToFile = void (*)(std::string, Arrays, safealign::mlx::StringMap);
using SaveToWriter = void (*)(std::shared_ptr<mx::io::Writer>, Arrays, safealign::mlx::StringMap);
using LoadFile = mx::SafetensorsLoad (*)(const std::string&, mx::StreamOrDevice);
[[maybe_unused]] constexpr SaveToFile save_to_file = &safealign::mlx::save_safetensors;
[[maybe_unused]] constexpr SaveToWriter save_to_writer = &safealign::mlx::save_safetensors;
[[maybe_unused]] constexpr LoadFile load_file = &safealign::mlx::load_safetensors;
[[maybe_unused]] constexpr SaveToFile own_save_to_file = &mx::save_safetensors;
[[maybe_unused]] constexpr SaveToWriter own_save_to_writer = &mx::save_safetensors;
[[maybe_unused]] constexpr LoadFile own_load_file = &mx::load_safetensors;

/// A writer that cannot seek, like a pipe.
class Pipe : public mx::io::Writer {
public:
    bool is_open() const override { return open_; }
    bool good() const override { return true; }
    std::size_t tell() override { throw std::runtime_error("tell"); }
    void seek(std::int64_t, std::ios_base::seekdir) override { throw std::runtime_error("seek"); }
    void write(const char* data, std::size_t count) override {
        if (written.size() + count > limit) {
            throw std::runtime_error("the reader went away");
        }
        written.append(data, count);
    }
    std::string label() const override { return "a pipe"; }
#if MLX_VERSION_NUMERIC >= 32003
    void open() override { open_ = opens_; }
    bool opens_ = true;
    bool open_ = false;
#else
    bool open_ = true;
#endif
    std::string written;
    std::size_t limit = std::string::npos;
};

template <typename Call>
std::string error_of(Call call) {
    try {
        call();
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "no error";
}

bool contains(const std::string& text, const std::string& part) {
    const bool found = text.find(part) != std::string::npos;
    if (!found) {
        std::fprintf(stderr, "`%s` is not in `%s`\n", part.c_str(), text.c_str());
    }
    return found;
}

bool same(const Arrays& left, const Arrays& right) {
    return left.size() == right.size() && std::all_of(left.begin(), left.end(), [&](const auto& one) {
               const auto other = right.find(one.first);
               return other != right.end() && arrays::same(one.second, other->second);
           });
}

std::string saved_through_writer(const Arrays& named, const safealign::mlx::StringMap& metadata) {
    auto pipe = std::make_shared<Pipe>();
    safealign::mlx::save_safetensors(pipe, named, metadata);
    return pipe->written;
}

void round_trip() {
    const Arrays saved = all_kinds();
    const safealign::mlx::StringMap metadata = {{"format", "mlx"}, {"\xc3\xa4 \"key\"", ""}, {"a", "b"}};
    // The extension is appended where it is missing, and only there.
    safealign::mlx::save_safetensors("all", saved, metadata);
    safealign::mlx::save_safetensors("again.safetensors", saved, metadata);
    const std::string bytes = samples::read_file("all.safetensors");
    CHECK(bytes.size() > 1000);
    // Equal input, equal bytes; and the writer gets what the file gets.
    CHECK(bytes == samples::read_file("again.safetensors"));
    CHECK(bytes == saved_through_writer(saved, metadata));

    LoadReport report;
    const auto [loaded, texts] = safealign::mlx::load_safetensors("all.safetensors", {}, {}, report);
    CHECK(same(loaded, saved));
    CHECK(texts == metadata);
    CHECK_EQ(report.tensors, saved.size());
    CHECK_EQ(report.zero_copy, saved.size());
    CHECK_EQ(report.copied, 0u);
    CHECK_EQ(report.bytes_copied, 0u);
    for (const auto& [name, array] : loaded) {
        CHECK(array.status() == mx::array::Status::available);
        CHECK(array.size() == 0 || is_mapped(array, "all.safetensors"));
    }

    // By MLX's own functions the same, and what MLX's operations look at is the same too.
    const auto [own, own_texts] = mx::load_safetensors("all.safetensors");
    CHECK(same(own, saved));
    CHECK(own_texts == metadata);
    for (auto [name, array] : own) {
        array.eval();
        const mx::array& ours = loaded.at(name);
        CHECK_EQ(ours.flags().contiguous, array.flags().contiguous);
        CHECK_EQ(ours.flags().row_contiguous, array.flags().row_contiguous);
        CHECK_EQ(ours.flags().col_contiguous, array.flags().col_contiguous);
        CHECK(ours.strides() == array.strides());
        CHECK_EQ(ours.data_size(), array.data_size());
    }

    // Equal input is equal whatever the order of the map.
    std::map<std::string, mx::array> sorted(saved.begin(), saved.end());
    Arrays other_order(sorted.rbegin(), sorted.rend(), 1000);
    safealign::mlx::save_safetensors("other order", other_order, metadata);
    CHECK(bytes == samples::read_file("other order.safetensors"));

    // What was mapped can be saved, over the file that it is mapped from too.
    safealign::mlx::save_safetensors("all.safetensors", loaded, texts);
    CHECK(bytes == samples::read_file("all.safetensors"));
    CHECK(same(loaded, saved));
}

void without() {
    safealign::mlx::save_safetensors("nothing", {});
    LoadReport report;
    report.copied = 3;
    const auto [loaded, texts] = safealign::mlx::load_safetensors("nothing.safetensors", {}, {}, report);
    CHECK(loaded.empty() && texts.empty());
    CHECK_EQ(report.tensors + report.copied + report.zero_copy, 0u);

    safealign::mlx::save_safetensors("no metadata", {{"a", mx::array(1.5f)}});
    CHECK(samples::read_file("no metadata.safetensors").find("__metadata__") == std::string::npos);
    CHECK(safealign::mlx::load_safetensors("no metadata.safetensors").second.empty());

    safealign::mlx::save_safetensors("empty only", {{"a", mx::zeros({0}, mx::float32)}, {"b", mx::zeros({3, 0}, mx::int8)}});
    const auto empty = safealign::mlx::load_safetensors("empty only.safetensors").first;
    CHECK_EQ(empty.size(), 2u);
    CHECK(empty.at("b").shape() == mx::Shape({3, 0}) && empty.at("b").dtype() == mx::int8);
    CHECK(arrays::same(mx::concatenate({empty.at("a"), mx::array({2.0f})}), mx::array({2.0f})));
}

void options() {
    safealign::WriteOptions padded = samples::fast();
    padded.layout = safealign::Layout::Padded;
    padded.alignment = 256;
    const Arrays saved = all_kinds();
    safealign::mlx::save_safetensors("padded", saved, {}, padded);
    auto pipe = std::make_shared<Pipe>();
    safealign::mlx::save_safetensors(pipe, saved, {}, safealign::PlanOptions{padded.alignment, padded.layout});
    CHECK(pipe->written == samples::read_file("padded.safetensors"));
    LoadReport report;
    CHECK(same(safealign::mlx::load_safetensors("padded.safetensors", {}, {}, report).first, saved));
    CHECK_EQ(report.copied, 0u);
}

void bytes_of_8_bit_floats() {
    const std::vector<samples::Sample> floats = {samples::sample("e4m3", safealign::Dtype::F8_E4M3, {3, 4}),
                                                 samples::sample("e8m0", safealign::Dtype::F8_E8M0, {5})};
    CHECK(safealign::write_aligned("floats.safetensors", samples::tensors(floats)).has_value());
    const Arrays loaded = safealign::mlx::load_safetensors("floats.safetensors").first;
    for (const samples::Sample& one : floats) {
        CHECK(loaded.at(one.name).dtype() == mx::uint8);
        CHECK(arrays::bytes_of(loaded.at(one.name)) == one.bytes);
    }
#if MLX_VERSION_NUMERIC >= 32000  // before, MLX did not know F8_E8M0
    CHECK(same(loaded, mx::load_safetensors("floats.safetensors").first));
#endif

    // Beside a tensor that MLX has to read.
    std::vector<samples::Sample> mixed = floats;
    for (const char* name : {"one", "two", "three", "four"}) {  // one of them is misaligned wherever the data starts
        mixed.push_back(samples::sample(name, safealign::Dtype::F32, {5}));
        mixed.push_back(samples::sample(std::string(name) + " byte", safealign::Dtype::U8, {1}));
    }
    samples::write_packed("mixed.safetensors", mixed);
    LoadReport report;
    const Arrays both = safealign::mlx::load_safetensors("mixed.safetensors", {}, {}, report).first;
    CHECK(report.copied >= 3);
    for (const samples::Sample& one : mixed) {
        CHECK(arrays::bytes_of(both.at(one.name)) == one.bytes);
    }
}

void errors() {
    const auto save = [](const std::string& file, const Arrays& named) {
        return error_of([&] { safealign::mlx::save_safetensors(file, named); });
    };
    const auto load = [](const std::string& file) {
        return error_of([&] { safealign::mlx::load_safetensors(file); });
    };
    const mx::array doubles = mx::astype(mx::array(1.0f), mx::float64, mx::Device::cpu);
    CHECK_EQ(save("doubles", {{"weight", doubles}, {"a", mx::array(1)}}),
             "[save_safetensors] received invalid dtype float64 for array 'weight'.");
    CHECK_EQ(access("doubles.safetensors", F_OK), -1);
    CHECK(contains(save("missing/directory", {{"a", mx::array(1)}}),
                   "[save_safetensors] Failed to open file missing/directory.safetensors"));
    CHECK(contains(save("nul", {{std::string("a\0b", 3), mx::array(1)}}), "[save_safetensors] "));
    CHECK(contains(save("reserved", {{"__metadata__", mx::array(1)}}), "[save_safetensors] "));
    CHECK(contains(load("absent.safetensors"), "[load_safetensors] Failed to open file absent.safetensors"));
    samples::write_file("short.safetensors", "abc");
    CHECK(contains(load("short.safetensors"), "[load_safetensors] short.safetensors"));
    const samples::Sample f64 = samples::sample("w", safealign::Dtype::F64, {2});
    CHECK(safealign::write_aligned("f64.safetensors", {f64.tensor()}).has_value());
    CHECK_EQ(load("f64.safetensors"), "[safetensor] unsupported dtype F64 of tensor 'w'.");
    const samples::Sample wide = samples::sample("wide", safealign::Dtype::U8, {0, 1ull << 31});
    CHECK(safealign::write_aligned("wide.safetensors", {wide.tensor()}).has_value());
    CHECK(contains(load("wide.safetensors"), "Tensor 'wide' has a dimension of 2147483648"));

    // A writer that throws: the exception is passed on unchanged.
    auto pipe = std::make_shared<Pipe>();
    pipe->limit = 100;
    CHECK_EQ(error_of([&] { safealign::mlx::save_safetensors(pipe, {{"a", counted({100}, mx::float32)}}); }),
             "the reader went away");
    auto closed = std::make_shared<Pipe>();
#if MLX_VERSION_NUMERIC >= 32003
    closed->opens_ = false;
#else
    closed->open_ = false;
#endif
    CHECK_EQ(error_of([&] { safealign::mlx::save_safetensors(closed, {}); }),
             "[save_safetensors] Failed to open a pipe");
    CHECK(closed->written.empty());
}

bool is_open(const std::string& file) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;  // as the handle of the directory itself
        if (std::filesystem::read_symlink(entry.path(), gone).filename() == file) {
            return true;
        }
    }
    return false;
}

/// A file as MLX writes it, with some tensors on their width and some not.
void save_misaligned(const std::string& file, const Arrays& named) {
    mx::save_safetensors(file, named, {{"note", ""}});
    for (std::size_t length = 1; length < 9; ++length) {
        const auto opened = safealign::File::open(file).value_or_throw();
        if (opened.data_start() % 4 == 2) {
            return;
        }
        mx::save_safetensors(file, named, {{"note", std::string(length, 'x')}});
    }
    CHECK(!"no header length that makes it misaligned");
}

void outliving() {
    const Arrays before = {{"a", counted({1000}, mx::float32)}, {"b", counted({500}, mx::float16)}};
    const Arrays after = {{"a", mx::zeros({1000}, mx::float32)}, {"b", mx::zeros({500}, mx::float16)}};

    safealign::mlx::save_safetensors("kept.safetensors", before);

    // Every array outlives the file's handle, which is closed before the load returns, and the others.
    safealign::mlx::save_safetensors("lives.safetensors", before);
    Arrays loaded = safealign::mlx::load_safetensors("lives.safetensors").first;
    const mx::array last = loaded.at("a");
    loaded.clear();
    CHECK(arrays::same(last, before.at("a")));

    // Replaced while loaded, by saving and by hand: the old values stay.
    loaded = safealign::mlx::load_safetensors("lives.safetensors").first;
    safealign::mlx::save_safetensors("lives.safetensors", after);
    CHECK(same(loaded, before));
    CHECK(same(safealign::mlx::load_safetensors("lives.safetensors").first, after));
    CHECK_EQ(unlink("lives.safetensors"), 0);
    CHECK(same(loaded, before));

    // The control: MLX keeps a handle for what it has yet to read.
    const Arrays lazy = mx::load_safetensors("kept.safetensors").first;
    CHECK(is_open("kept.safetensors"));

    // Misaligned tensors are copied when they are evaluated. By then the file may be another.
    save_misaligned("old.safetensors", before);
    LoadReport report;
    loaded = safealign::mlx::load_safetensors("old.safetensors", {}, {}, report).first;
    CHECK_EQ(report.copied, 1u);
    CHECK_EQ(report.bytes_copied, 4000u);
    CHECK(loaded.at("a").status() == mx::array::Status::unscheduled);
    CHECK(is_mapped(loaded.at("b"), "old.safetensors"));
    // Read from the file that was opened, as by MLX.
    CHECK(is_open("old.safetensors"));
    safealign::mlx::save_safetensors("old.safetensors", after);
    CHECK(same(loaded, before));
    CHECK(!is_mapped(loaded.at("a"), "old.safetensors"));

    // Lazy arrays of a file are saved over it.
    save_misaligned("same.safetensors", before);
    loaded = safealign::mlx::load_safetensors("same.safetensors").first;
    safealign::mlx::save_safetensors("same.safetensors", loaded);
    CHECK(same(safealign::mlx::load_safetensors("same.safetensors", {}, {}, report).first, before));
    CHECK_EQ(report.copied, 0u);

    // A mapping is released with its last array.
    loaded.clear();
    const std::string mapped = samples::read_file("/proc/self/maps");
    CHECK(mapped.find("same.safetensors") == std::string::npos);
    CHECK(mapped.find("lives.safetensors") != std::string::npos);  // the control: `last` holds this one
}

void threads() {
    const Arrays saved = {{"a", counted({300}, mx::float32)}, {"b", counted({7}, mx::uint8)}};
    safealign::mlx::save_safetensors("shared", saved);
    std::vector<std::thread> running;
    for (int thread = 0; thread < 4; ++thread) {
        running.emplace_back([] {
            for (int round = 0; round < 50; ++round) {
                const Arrays loaded = safealign::mlx::load_safetensors("shared.safetensors").first;
                bool right = loaded.at("b").data<std::uint8_t>()[6] == 7;
                for (int at = 0; at < 300; ++at) {
                    right = right && loaded.at("a").data<float>()[at] == static_cast<float>(at + 1);
                }
                CHECK(right);
                // Of arrays that are there already, so that only the adapter runs.
                safealign::mlx::save_safetensors("shared", loaded, {}, samples::fast());
            }
        });
    }
    for (std::thread& one : running) {
        one.join();
    }
}

std::string hex(const std::vector<unsigned char>& bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string out;
    for (const unsigned char byte : bytes) {
        out += digits[byte >> 4];
        out += digits[byte & 15];
    }
    return out;
}

std::string described(const Arrays& named) {
    std::string out = "{";
    for (const auto& [name, array] : named) {
        out += (out.size() > 1 ? ",\n " : "") + samples::json_text(name) + ": {\"dtype\": \"" + format_name(array.dtype()) +
               "\", \"shape\": [";
        for (std::size_t at = 0; at < array.ndim(); ++at) {
            out += (at > 0 ? ", " : "") + std::to_string(array.shape(static_cast<int>(at)));
        }
        out += "], \"hex\": \"" + hex(arrays::bytes_of(array)) + "\"}";
    }
    return out + "}";
}

/// Named as readers.py has them.
void leave_samples() {
    std::filesystem::create_directory("samples");
    const Arrays saved = all_kinds();
    const auto write = [](const std::string& name, const std::string& bytes) {
        samples::write_file("samples/" + name, bytes);
    };
    safealign::WriteOptions padded;
    padded.layout = safealign::Layout::Padded;
    padded.alignment = 8;
    safealign::mlx::save_safetensors("samples/mlx", saved, {{"format", "mlx"}});
    write("nothing.safetensors", saved_through_writer({}, {}));
    safealign::mlx::save_safetensors("samples/padded", saved, {}, padded);
    write("samples.json", "{\"mlx.safetensors\": " + described(saved) + ",\n\"padded.safetensors\": " + described(saved) +
                              ",\n\"nothing.safetensors\": {}}\n");
}

int dump(const char* file) {
    LoadReport report;
    const auto [loaded, metadata] = safealign::mlx::load_safetensors(file, {}, {}, report);
    std::string texts = "{";
    for (const auto& [key, value] : metadata) {
        texts += (texts.size() > 1 ? ", " : "") + samples::json_text(key) + ": " + samples::json_text(value);
    }
    std::printf("{\"tensors\": %s,\n\"metadata\": %s,\n\"report\": [%zu, %zu, %zu, %llu]}\n", described(loaded).c_str(),
                (texts + "}").c_str(), report.tensors, report.zero_copy, report.copied,
                static_cast<unsigned long long>(report.bytes_copied));
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    mx::set_default_device(mx::Device::cpu);
    if (argc == 3) {
        return dump(argv[2]);
    }
    samples::work_in("adapter-files");
    round_trip();
    without();
    options();
    bytes_of_8_bit_floats();
    errors();
    outliving();
    threads();
    leave_samples();
    return check_report();
}
