// Errors: the status, and a message that names the file, the tensor and the numbers. A failed call writes neither to an
// output nor to the disk.

#include "check.h"
#include "samples.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include <sys/stat.h>

using namespace samples;

namespace {

constexpr const char* path = "errors.safetensors";
constexpr std::uint64_t four[1] = {4};
constexpr unsigned char bytes[64] = {1, 2, 3, 4};

template <typename T, typename = void>
struct IsSized : std::false_type {};
template <typename T>
struct IsSized<T, std::void_t<decltype(T::struct_size)>> : std::true_type {};

/// An output that shows whether it was written to.
template <typename T>
struct Untouched {
    Untouched() { fill(&value); }
    ~Untouched() {
        T expected;
        fill(&expected);
        CHECK(std::memcmp(&value, &expected, sizeof value) == 0);
    }
    static void fill(T* out) {
        std::memset(static_cast<void*>(out), 0xa5, sizeof *out);
        if constexpr (IsSized<T>::value) {
            out->struct_size = sizeof *out;
        }
    }
    T* get() { return &value; }
    T value;
};

/// The status is that one, in the return value and in the struct, and every text is in the message.
bool check_error(sa_status returned, const sa_error& error, sa_status expected,
                 std::initializer_list<const char*> texts, int line) {
    bool right = check_that(returned == expected && error.status == expected, sa_status_name(error.status), __FILE__,
                            line) != 0;
    right &= check_that(std::memchr(error.message, '\0', sizeof error.message) != nullptr, "ends", __FILE__, line) != 0;
    for (const char* text : texts) {
        const bool there = std::strstr(error.message, text) != nullptr;
        const std::string shown = std::string("\"") + text + "\" in: " + error.message;
        right &= check_that(there, shown.c_str(), __FILE__, line) != 0;
    }
    return right;
}

#define CHECK_ERROR(call, status, ...) check_error((call), error, (status), {__VA_ARGS__}, __LINE__)
#define CHECK_NULL(call, argument) CHECK_ERROR(call, SA_ERR_INVALID_ARGUMENT, "`" argument "` is null")

/// A struct without SA_INIT.
template <typename T>
T* uninitialised() {
    static T value{};
    return &value;
}

sa_tensor tensor(const char* name = "t") {
    sa_tensor out{};
    out.name = name;
    out.name_len = name == nullptr ? 0 : SA_NUL_TERMINATED;
    out.dtype = SA_DTYPE_U8;
    out.rank = 1;
    out.shape = four;
    out.data = bytes;
    out.nbytes = 4;
    return out;
}

sa_file* opened() {
    const sa_tensor one = tensor();
    sa_write_options options;
    SA_INIT(&options);
    options.durability = SA_NOT_DURABLE;
    sa_file* file = nullptr;
    CHECK(sa_write_aligned(path, &one, 1, nullptr, 0, &options, nullptr, nullptr) == SA_OK);
    CHECK(sa_file_open(path, nullptr, &file, nullptr) == SA_OK);
    return file;
}

void null_arguments() {
    sa_error error;
    const sa_tensor one = tensor();
    const sa_metadata entry = {"k", SA_NUL_TERMINATED, "v", SA_NUL_TERMINATED};
    sa_file* file = opened();

    // info
    {
        Untouched<std::int32_t> dtype;
        CHECK_NULL(sa_dtype_from_name(nullptr, SA_NUL_TERMINATED, dtype.get(), &error), "name");
        CHECK_ERROR(sa_dtype_from_name("F32", 0, dtype.get(), &error), SA_ERR_INVALID_ARGUMENT, "`name`", "length 0");
        CHECK_NULL(sa_dtype_from_name("F32", SA_NUL_TERMINATED, nullptr, &error), "dtype");
    }
    // write
    CHECK_NULL(sa_write_aligned(nullptr, &one, 1, nullptr, 0, nullptr, nullptr, &error), "path");
    CHECK_NULL(sa_write_aligned("null.safetensors", nullptr, 1, nullptr, 0, nullptr, nullptr, &error), "tensors");
    CHECK_NULL(sa_write_aligned("null.safetensors", &one, 1, nullptr, 1, nullptr, nullptr, &error), "metadata");
    // plan
    {
        Untouched<sa_plan*> plan;
        CHECK_NULL(sa_plan_new(nullptr, 1, nullptr, 0, nullptr, plan.get(), &error), "tensors");
        CHECK_NULL(sa_plan_new(&one, 1, nullptr, 3, nullptr, plan.get(), &error), "metadata");
        CHECK_NULL(sa_plan_new(&one, 1, &entry, 1, nullptr, nullptr, &error), "plan");
    }
    {
        sa_plan* plan = nullptr;
        CHECK(sa_plan_new(&one, 1, nullptr, 0, nullptr, &plan, &error) == SA_OK);
        Untouched<const std::uint8_t*> header;
        Untouched<std::size_t> nbytes;
        Untouched<sa_placement> placement;
        CHECK_NULL(sa_plan_header(nullptr, header.get(), nbytes.get(), &error), "plan");
        CHECK_NULL(sa_plan_header(plan, nullptr, nbytes.get(), &error), "bytes");
        CHECK_NULL(sa_plan_header(plan, header.get(), nullptr, &error), "nbytes");
        CHECK_NULL(sa_plan_at(nullptr, 0, placement.get(), &error), "plan");
        CHECK_NULL(sa_plan_at(plan, 0, nullptr, &error), "placement");
        CHECK_ERROR(sa_plan_at(plan, 1, placement.get(), &error), SA_ERR_NOT_FOUND, "1");
        CHECK_ERROR(sa_plan_at(plan, SIZE_MAX, placement.get(), &error), SA_ERR_NOT_FOUND, "18446744073709551615");
        CHECK_ERROR(sa_plan_at(plan, 0, uninitialised<sa_placement>(), &error), SA_ERR_INVALID_ARGUMENT,
                    "`sa_placement`", "SA_INIT");
        sa_plan_free(plan);
    }
    CHECK(sa_plan_len(nullptr) == 0 && sa_plan_file_size(nullptr) == 0);
    sa_plan_free(nullptr);
    // writer
    {
        Untouched<sa_writer*> writer;
        CHECK_NULL(sa_writer_open(nullptr, &one, 1, nullptr, 0, nullptr, writer.get(), &error), "path");
        CHECK_NULL(sa_writer_open("null.safetensors", nullptr, 1, nullptr, 0, nullptr, writer.get(), &error),
                   "tensors");
        CHECK_NULL(sa_writer_open("null.safetensors", &one, 1, nullptr, 1, nullptr, writer.get(), &error), "metadata");
        CHECK_NULL(sa_writer_open("null.safetensors", &one, 1, nullptr, 0, nullptr, nullptr, &error), "writer");
    }
    {
        sa_writer* writer = nullptr;
        CHECK(sa_writer_open("null.safetensors", &one, 1, nullptr, 0, nullptr, &writer, &error) == SA_OK);
        CHECK_NULL(sa_writer_put(nullptr, 0, bytes, 4, &error), "writer");
        CHECK_NULL(sa_writer_put(writer, 0, nullptr, 4, &error), "data");
        CHECK_NULL(sa_writer_put_at(nullptr, 0, 0, bytes, 4, &error), "writer");
        CHECK_NULL(sa_writer_put_at(writer, 0, 0, nullptr, 4, &error), "data");
        CHECK_NULL(sa_writer_finish(nullptr, nullptr, &error), "writer");
        Untouched<std::size_t> index;
        Untouched<std::uint64_t> offset;
        Untouched<std::uint64_t> nbytes;
        Untouched<sa_placement> placement;
        CHECK_NULL(sa_writer_find(nullptr, "t", 1, index.get(), &error), "writer");
        CHECK_NULL(sa_writer_find(writer, nullptr, 1, index.get(), &error), "name");
        CHECK_NULL(sa_writer_find(writer, "t", 1, nullptr, &error), "index");
        CHECK_ERROR(sa_writer_find(writer, "u", 1, index.get(), &error), SA_ERR_NOT_FOUND, "null.safetensors", "`u`");
        CHECK_NULL(sa_writer_at(nullptr, 0, placement.get(), &error), "writer");
        CHECK_NULL(sa_writer_at(writer, 0, nullptr, &error), "placement");
        CHECK_ERROR(sa_writer_at(writer, 1, placement.get(), &error), SA_ERR_NOT_FOUND, "null.safetensors", "1");
        CHECK_ERROR(sa_writer_put(writer, 1, bytes, 4, &error), SA_ERR_NOT_FOUND, "null.safetensors", "1");
        CHECK_ERROR(sa_writer_put_at(writer, SIZE_MAX, 0, bytes, 4, &error), SA_ERR_NOT_FOUND, "null.safetensors");
        CHECK_NULL(sa_writer_first_missing(nullptr, index.get(), offset.get(), nbytes.get(), &error), "writer");
        CHECK_NULL(sa_writer_first_missing(writer, nullptr, offset.get(), nbytes.get(), &error), "index");
        CHECK_NULL(sa_writer_first_missing(writer, index.get(), nullptr, nbytes.get(), &error), "offset");
        CHECK_NULL(sa_writer_first_missing(writer, index.get(), offset.get(), nullptr, &error), "nbytes");
        CHECK(sa_writer_bytes_missing(writer) == 4 && sa_writer_bytes_missing(nullptr) == 0);
        CHECK_ERROR(sa_writer_finish(writer, nullptr, &error), SA_ERR_INVALID_ARGUMENT, "`t`", "missing");
        CHECK_ERROR(sa_writer_finish(writer, uninitialised<sa_write_report>(), &error), SA_ERR_INVALID_ARGUMENT,
                    "`sa_write_report`");
        CHECK(sa_writer_put_at(writer, 0, 4, nullptr, 0, &error) == SA_OK);
        sa_writer_free(writer);
    }
    sa_writer_free(nullptr);
    // file
    {
        Untouched<sa_file*> out;
        CHECK_NULL(sa_file_open(nullptr, nullptr, out.get(), &error), "path");
        CHECK_NULL(sa_file_open(path, nullptr, nullptr, &error), "file");
        CHECK_NULL(sa_file_open_descriptor(0, 0, SA_TO_END, nullptr, nullptr, &error), "file");
        CHECK_ERROR(sa_file_open_descriptor(-1, 0, SA_TO_END, nullptr, out.get(), &error), SA_ERR_INVALID_ARGUMENT,
                    "`descriptor`", "-1");
        CHECK_ERROR(sa_file_open_descriptor(999, 0, SA_TO_END, nullptr, out.get(), &error), SA_ERR_IO, "999");
        CHECK(error.os_error == EBADF);
        CHECK_NULL(sa_file_open_memory(nullptr, 8, nullptr, nullptr, nullptr, out.get(), &error), "data");
        CHECK_NULL(sa_file_open_memory(bytes, 8, nullptr, nullptr, nullptr, nullptr, &error), "file");
        CHECK_ERROR(sa_file_open_memory(nullptr, 0, nullptr, nullptr, nullptr, out.get(), &error), SA_ERR_TRUNCATED,
                    "memory");
    }
    {
        Untouched<int> descriptor;
        Untouched<std::uint64_t> offset;
        Untouched<std::int32_t> current;
        CHECK(sa_file_path(nullptr) == nullptr && std::strcmp(sa_file_path(file), path) == 0);
        CHECK_NULL(sa_file_descriptor(nullptr, descriptor.get(), offset.get(), &error), "file");
        CHECK_NULL(sa_file_descriptor(file, nullptr, offset.get(), &error), "descriptor");
        CHECK_NULL(sa_file_descriptor(file, descriptor.get(), nullptr, &error), "offset");
        CHECK_NULL(sa_file_is_current(nullptr, current.get(), &error), "file");
        CHECK_NULL(sa_file_is_current(file, nullptr, &error), "is_current");
    }
    CHECK(sa_file_len(nullptr) == 0 && sa_file_metadata_len(nullptr) == 0);
    sa_file_free(nullptr);
    {
        Untouched<sa_tensor_info> info;
        Untouched<std::size_t> index;
        Untouched<sa_metadata> metadata;
        Untouched<const void*> base;
        Untouched<std::size_t> nbytes;
        Untouched<std::uint64_t> start;
        CHECK_NULL(sa_file_at(nullptr, 0, info.get(), &error), "file");
        CHECK_NULL(sa_file_at(file, 0, nullptr, &error), "info");
        CHECK_ERROR(sa_file_at(file, 1, info.get(), &error), SA_ERR_NOT_FOUND, path, "1");
        CHECK_ERROR(sa_file_at(file, SIZE_MAX, info.get(), &error), SA_ERR_NOT_FOUND, path);
        CHECK_NULL(sa_file_find(nullptr, "t", SA_NUL_TERMINATED, index.get(), &error), "file");
        CHECK_NULL(sa_file_find(file, nullptr, SA_NUL_TERMINATED, index.get(), &error), "name");
        CHECK_NULL(sa_file_find(file, nullptr, 1, index.get(), &error), "name");
        CHECK_ERROR(sa_file_find(file, "t", 0, index.get(), &error), SA_ERR_INVALID_ARGUMENT, "`name`", "length 0");
        CHECK_ERROR(sa_file_find(file, nullptr, 0, index.get(), &error), SA_ERR_NOT_FOUND, path);
        CHECK_ERROR(sa_file_find(file, "tail", 2, index.get(), &error), SA_ERR_NOT_FOUND, "`ta`");
        CHECK_NULL(sa_file_find(file, "t", SA_NUL_TERMINATED, nullptr, &error), "index");
        CHECK_ERROR(sa_file_find(file, "missing", SA_NUL_TERMINATED, index.get(), &error), SA_ERR_NOT_FOUND, path, "`missing`");
        CHECK_ERROR(sa_file_find(file, "\xff", SA_NUL_TERMINATED, index.get(), &error), SA_ERR_INVALID_ARGUMENT, "`name`", "UTF-8");
        CHECK_NULL(sa_file_metadata_at(nullptr, 0, metadata.get(), &error), "file");
        CHECK_NULL(sa_file_metadata_at(file, 0, nullptr, &error), "entry");
        CHECK_ERROR(sa_file_metadata_at(file, 0, metadata.get(), &error), SA_ERR_NOT_FOUND, "metadata");
        CHECK_NULL(sa_file_base(nullptr, base.get(), nbytes.get(), start.get(), &error), "file");
        CHECK_NULL(sa_file_base(file, nullptr, nbytes.get(), start.get(), &error), "base");
        CHECK_NULL(sa_file_base(file, base.get(), nullptr, start.get(), &error), "nbytes");
        CHECK_NULL(sa_file_base(file, base.get(), nbytes.get(), nullptr, &error), "data_start");
        sa_stats stats;
        SA_INIT(&stats);
        CHECK_NULL(sa_file_stats(nullptr, &stats, &error), "file");
        CHECK_NULL(sa_file_stats(file, nullptr, &error), "stats");
    }
    // view
    {
        Untouched<sa_view> view;
        CHECK_NULL(sa_map_tensor(nullptr, "t", SA_NUL_TERMINATED, view.get(), &error), "file");
        CHECK_NULL(sa_map_tensor(file, nullptr, SA_NUL_TERMINATED, view.get(), &error), "name");
        CHECK_NULL(sa_map_tensor(file, "t", SA_NUL_TERMINATED, nullptr, &error), "view");
        CHECK_ERROR(sa_map_tensor(file, "missing", SA_NUL_TERMINATED, view.get(), &error), SA_ERR_NOT_FOUND, path, "`missing`");
        CHECK_NULL(sa_map_tensor_at(nullptr, 0, view.get(), &error), "file");
        CHECK_NULL(sa_map_tensor_at(file, 0, nullptr, &error), "view");
        CHECK_ERROR(sa_map_tensor_at(file, 1, view.get(), &error), SA_ERR_NOT_FOUND, path);
        CHECK_ERROR(sa_map_tensor_at(file, 0, uninitialised<sa_view>(), &error), SA_ERR_INVALID_ARGUMENT, "`sa_view`",
                    "SA_INIT");
        Untouched<void*> data;
        sa_view empty;
        SA_INIT(&empty);
        CHECK_NULL(sa_view_advise(nullptr, SA_ADVICE_RANDOM, &error), "view");
        CHECK_NULL(sa_view_advise(&empty, SA_ADVICE_RANDOM, &error), "view.owner");
        CHECK_NULL(sa_view_writable(nullptr, data.get(), &error), "view");
        CHECK_NULL(sa_view_writable(&empty, data.get(), &error), "view.owner");
        sa_view mapped;
        SA_INIT(&mapped);
        CHECK(sa_map_tensor_at(file, 0, &mapped, &error) == SA_OK);
        CHECK_NULL(sa_view_writable(&mapped, nullptr, &error), "data");
        CHECK_ERROR(sa_view_writable(&mapped, data.get(), &error), SA_ERR_INVALID_ARGUMENT, path, "copy-on-write");
        mapped.data = bytes;
        CHECK_ERROR(sa_view_advise(&mapped, SA_ADVICE_RANDOM, &error), SA_ERR_INVALID_ARGUMENT, path, "view");
        sa_view_release(mapped.owner);
    }
    sa_view_release(nullptr);
    sa_view_retain(nullptr);
    // scan
    {
        Untouched<sa_scan*> out;
        CHECK_NULL(sa_scan_file(nullptr, nullptr, out.get(), &error), "path");
        CHECK_NULL(sa_scan_file(path, nullptr, nullptr, &error), "scan");
        sa_scan* scan = nullptr;
        CHECK(sa_scan_file(path, nullptr, &scan, &error) == SA_OK);
        Untouched<sa_scan_report> report;
        Untouched<sa_scan_dtype> row;
        CHECK_NULL(sa_scan_get(nullptr, report.get(), &error), "scan");
        CHECK_NULL(sa_scan_get(scan, nullptr, &error), "report");
        CHECK_NULL(sa_scan_dtype_at(nullptr, 0, row.get(), &error), "scan");
        CHECK_NULL(sa_scan_dtype_at(scan, 0, nullptr, &error), "row");
        CHECK_ERROR(sa_scan_dtype_at(scan, 1, row.get(), &error), SA_ERR_NOT_FOUND, "1");
        sa_scan_free(scan);
        sa_scan_free(nullptr);
    }
    // repair
    {
        Untouched<sa_repair_report> report;
        CHECK_NULL(sa_repair_file(nullptr, "null.safetensors", nullptr, report.get(), &error), "source");
        CHECK_NULL(sa_repair_file(path, nullptr, nullptr, report.get(), &error), "destination");
        CHECK_NULL(sa_repair_in_place(nullptr, nullptr, report.get(), &error), "path");
        CHECK_ERROR(sa_repair_file(path, "", nullptr, report.get(), &error), SA_ERR_INVALID_ARGUMENT, "`destination`");
    }
    // aligned cache
    {
        Untouched<sa_aligned_cache*> out;
        Untouched<sa_aligned_cache_report> report;
        CHECK_NULL(sa_aligned_cache_write(nullptr, "null", nullptr, out.get(), &error), "source");
        CHECK_NULL(sa_aligned_cache_write(path, nullptr, nullptr, out.get(), &error), "directory");
        CHECK_NULL(sa_aligned_cache_write(path, "null", nullptr, nullptr, &error), "cache");
        CHECK_NULL(sa_aligned_cache_get(nullptr, report.get(), &error), "cache");
        sa_aligned_cache* cache = nullptr;
        CHECK(sa_aligned_cache_write(path, "cache", nullptr, &cache, &error) == SA_OK);
        CHECK_NULL(sa_aligned_cache_get(cache, nullptr, &error), "report");
        CHECK(sa_aligned_cache_path(cache) != nullptr && sa_aligned_cache_path(nullptr) == nullptr);
        sa_aligned_cache_free(cache);
        sa_aligned_cache_free(nullptr);
        CHECK(!std::filesystem::exists("null"));
    }
    // bundle
    {
        Untouched<sa_bundle*> out;
        CHECK_NULL(sa_bundle_open(nullptr, nullptr, out.get(), &error), "path");
        CHECK_NULL(sa_bundle_open(path, nullptr, nullptr, &error), "bundle");
        CHECK_ERROR(sa_bundle_open("missing", nullptr, out.get(), &error), SA_ERR_IO, "missing");
        CHECK(sa_bundle_len(nullptr) == 0 && sa_bundle_metadata_len(nullptr) == 0 && sa_bundle_shard_len(nullptr) == 0);
        CHECK(sa_bundle_shard(nullptr, 0) == nullptr);
        sa_bundle_free(nullptr);
        sa_bundle* bundle = nullptr;
        CHECK(sa_bundle_open(path, nullptr, &bundle, &error) == SA_OK && sa_bundle_len(bundle) == 1);
        CHECK(sa_bundle_shard_len(bundle) == 1 && sa_file_len(sa_bundle_shard(bundle, 0)) == 1);
        CHECK(sa_bundle_shard(bundle, 1) == nullptr && sa_bundle_shard(bundle, SIZE_MAX) == nullptr);
        Untouched<sa_tensor_info> info;
        Untouched<std::size_t> index;
        Untouched<sa_metadata> metadata;
        Untouched<sa_stats> stats;
        Untouched<sa_view> view;
        Untouched<std::int32_t> current;
        CHECK_NULL(sa_bundle_at(nullptr, 0, info.get(), nullptr, &error), "bundle");
        CHECK_NULL(sa_bundle_at(bundle, 0, nullptr, nullptr, &error), "info");
        CHECK_ERROR(sa_bundle_at(bundle, 1, info.get(), index.get(), &error), SA_ERR_NOT_FOUND, path, "1");
        CHECK_NULL(sa_bundle_find(nullptr, "t", 1, index.get(), &error), "bundle");
        CHECK_NULL(sa_bundle_find(bundle, nullptr, 1, index.get(), &error), "name");
        CHECK_NULL(sa_bundle_find(bundle, "t", 1, nullptr, &error), "index");
        CHECK_ERROR(sa_bundle_find(bundle, "u", 1, index.get(), &error), SA_ERR_NOT_FOUND, path, "`u`");
        CHECK_NULL(sa_bundle_map(nullptr, "t", 1, view.get(), &error), "bundle");
        CHECK_NULL(sa_bundle_map(bundle, nullptr, 1, view.get(), &error), "name");
        CHECK_NULL(sa_bundle_map(bundle, "t", 1, nullptr, &error), "view");
        CHECK_ERROR(sa_bundle_map(bundle, "u", 1, view.get(), &error), SA_ERR_NOT_FOUND, path, "`u`");
        CHECK_NULL(sa_bundle_map_at(nullptr, 0, view.get(), &error), "bundle");
        CHECK_NULL(sa_bundle_map_at(bundle, 0, nullptr, &error), "view");
        CHECK_ERROR(sa_bundle_map_at(bundle, 1, view.get(), &error), SA_ERR_NOT_FOUND, path);
        CHECK_NULL(sa_bundle_metadata_at(nullptr, 0, metadata.get(), &error), "bundle");
        CHECK_NULL(sa_bundle_metadata_at(bundle, 0, nullptr, &error), "entry");
        CHECK_ERROR(sa_bundle_metadata_at(bundle, 0, metadata.get(), &error), SA_ERR_NOT_FOUND, "metadata");
        CHECK_NULL(sa_bundle_stats(nullptr, stats.get(), &error), "bundle");
        CHECK_NULL(sa_bundle_stats(bundle, nullptr, &error), "stats");
        CHECK_NULL(sa_bundle_is_current(nullptr, current.get(), &error), "bundle");
        CHECK_NULL(sa_bundle_is_current(bundle, nullptr, &error), "is_current");
        Untouched<sa_bundle_slot*> no_slot;
        CHECK_NULL(sa_bundle_slot_new(nullptr, no_slot.get(), &error), "bundle");
        CHECK_NULL(sa_bundle_slot_new(bundle, nullptr, &error), "slot");
        sa_bundle_slot* slot = nullptr;
        CHECK(sa_bundle_slot_new(bundle, &slot, &error) == SA_OK);
        CHECK_NULL(sa_bundle_slot_get(nullptr, out.get(), &error), "slot");
        CHECK_NULL(sa_bundle_slot_get(slot, nullptr, &error), "bundle");
        CHECK_NULL(sa_bundle_slot_set(nullptr, bundle, &error), "slot");
        CHECK_NULL(sa_bundle_slot_set(slot, nullptr, &error), "bundle");
        sa_bundle_free(bundle);
        sa_bundle_slot_free(slot);
        sa_bundle_slot_free(nullptr);
        Untouched<sa_sharded_report> report;
        const auto sharded = [&](const char* directory, const char* prefix, std::uint64_t most,
                                 const sa_sharded_options* options) {
            return sa_write_sharded(directory, prefix, SA_NUL_TERMINATED, most, &one, 1, nullptr, 0, options,
                                    report.get(), &error);
        };
        CHECK_NULL(sharded(nullptr, "model", 9, nullptr), "directory");
        CHECK_NULL(sharded(".", nullptr, 9, nullptr), "prefix");
        CHECK_NULL(sa_write_sharded(".", "m", 1, 9, nullptr, 1, nullptr, 0, nullptr, report.get(), &error), "tensors");
        CHECK_NULL(sa_write_sharded(".", "m", 1, 9, &one, 1, nullptr, 1, nullptr, report.get(), &error), "metadata");
        CHECK_ERROR(sharded(".", "model", 0, nullptr), SA_ERR_INVALID_ARGUMENT, "0 bytes");
        CHECK_ERROR(sharded(".", "a/b", 9, nullptr), SA_ERR_INVALID_ARGUMENT, "prefix", "a/b");
        CHECK_ERROR(sharded(".", ".hidden", 9, nullptr), SA_ERR_INVALID_ARGUMENT, "prefix");
        CHECK_ERROR(sharded("missing", "model", 9, nullptr), SA_ERR_IO, "missing");
        sa_sharded_options options;
        SA_INIT(&options);
        options.reserved = 1;
        CHECK_ERROR(sharded(".", "model", 9, &options), SA_ERR_INVALID_ARGUMENT, "options.reserved");
        SA_INIT(&options);
        options.layout = 2;
        CHECK_ERROR(sharded(".", "model", 9, &options), SA_ERR_INVALID_ARGUMENT, "options.layout");
    }
    // overlay
    {
        Untouched<sa_overlay_report> report;
        CHECK_NULL(sa_overlay_bundle(nullptr, "null", nullptr, report.get(), &error), "bundle");
        CHECK_NULL(sa_overlay_bundle(".", nullptr, nullptr, report.get(), &error), "output");
        CHECK(!std::filesystem::exists("null"));
    }

    // The error argument may be null.
    CHECK(sa_file_find(file, nullptr, SA_NUL_TERMINATED, nullptr, nullptr) == SA_ERR_INVALID_ARGUMENT);
    CHECK(sa_write_aligned(nullptr, nullptr, 0, nullptr, 0, nullptr, nullptr, nullptr) == SA_ERR_INVALID_ARGUMENT);
    CHECK(!std::filesystem::exists("null.safetensors"));
    sa_file_free(file);
}

/// Checks that all three functions that take tensors refuse them and write nothing.
void check_refused(const std::vector<sa_tensor>& tensors, sa_status status, std::initializer_list<const char*> texts,
                   int line) {
    const char* target = "refused.safetensors";
    sa_error error;
    Untouched<sa_plan*> plan;
    Untouched<sa_writer*> writer;
    check_error(sa_write_aligned(target, tensors.data(), tensors.size(), nullptr, 0, nullptr, nullptr, &error), error,
                status, texts, line);
    CHECK(std::strstr(error.message, target) != nullptr);
    check_error(sa_plan_new(tensors.data(), tensors.size(), nullptr, 0, nullptr, plan.get(), &error), error, status,
                texts, line);
    check_error(sa_writer_open(target, tensors.data(), tensors.size(), nullptr, 0, nullptr, writer.get(), &error),
                error, status, texts, line);
    check_that(!std::filesystem::exists(target), "nothing written", __FILE__, line);
}

#define CHECK_REFUSED(tensors, ...) check_refused(tensors, SA_ERR_INVALID_ARGUMENT, {__VA_ARGS__}, __LINE__)

void bad_tensors() {
    sa_tensor bad = tensor("wte");
    for (const std::int32_t dtype : {0, -1, 23, INT32_MIN, INT32_MAX}) {
        bad.dtype = dtype;
        CHECK_REFUSED({bad}, "`wte`", "dtype", std::to_string(dtype).c_str());
    }
    for (const std::size_t nbytes : {std::size_t{0}, std::size_t{3}, std::size_t{5}, SIZE_MAX}) {
        bad = tensor("wte");
        bad.nbytes = nbytes;
        CHECK_REFUSED({bad}, "`wte`", std::to_string(nbytes).c_str(), "expected 4");
    }
    bad = tensor(nullptr);
    bad.name_len = 3;
    CHECK_REFUSED({bad}, "name", "null");
    bad.name_len = SA_NUL_TERMINATED;
    CHECK_REFUSED({bad}, "name", "null");
    // A forgotten length must not result in the name "".
    bad = tensor("wte");
    bad.name_len = 0;
    CHECK_REFUSED({bad}, "name", "length 0", "SA_NUL_TERMINATED");
    bad = tensor("wte");
    bad.reserved_0 = 1;
    CHECK_REFUSED({bad}, "`wte`", "reserved", "`sa_tensor`");
    for (std::uint64_t& reserved : bad.reserved) {
        bad = tensor("wte");
        reserved = 1;
        CHECK_REFUSED({bad}, "`wte`", "reserved", "`sa_tensor`");
    }
    bad = tensor("__metadata__");
    CHECK_REFUSED({bad}, "`__metadata__`", "reserved");
    CHECK_REFUSED((std::vector{tensor("a"), tensor("twice"), tensor("twice")}), "`twice`");
    bad = tensor("a\0b");
    bad.name_len = 3;
    CHECK_REFUSED({bad}, "NUL");
    bad = tensor("a\xff\xfe");
    CHECK_REFUSED({bad}, "UTF-8");
    bad = tensor("\xed\xa0\x80");  // a lone surrogate
    CHECK_REFUSED({bad}, "UTF-8");
    bad = tensor("t");
    bad.name_len = SIZE_MAX - 1;
    CHECK_REFUSED({bad}, "18446744073709551614");

    // A rank, a shape that no memory could hold.
    bad = tensor("wte");
    bad.shape = nullptr;
    CHECK_REFUSED({bad}, "`wte`", "null");
    for (const std::size_t rank : {SIZE_MAX, std::size_t{1} << 61, SIZE_MAX / 8 + 1}) {
        bad = tensor("wte");
        bad.rank = rank;
        CHECK_REFUSED({bad}, "`wte`", std::to_string(rank).c_str());
    }
    const std::uint64_t overflowing[2] = {std::uint64_t{1} << 32, std::uint64_t{1} << 32};
    bad = tensor("wte");
    bad.rank = 2;
    bad.shape = overflowing;
    CHECK_REFUSED({bad}, "`wte`");
    bad.dtype = SA_DTYPE_F64;
    const std::uint64_t wide[1] = {std::uint64_t{1} << 61};
    bad.rank = 1;
    bad.shape = wide;
    bad.nbytes = 0;
    CHECK_REFUSED({bad}, "`wte`");
    // Not a whole number of bytes.
    const std::uint64_t three[1] = {3};
    bad = tensor("wte");
    bad.dtype = SA_DTYPE_F4;
    bad.shape = three;
    bad.nbytes = 1;
    CHECK_REFUSED({bad}, "`wte`");

    // Only by the function that reads the data.
    sa_error error;
    bad = tensor("wte");
    bad.data = nullptr;
    CHECK_ERROR(sa_write_aligned("refused.safetensors", &bad, 1, nullptr, 0, nullptr, nullptr, &error),
                SA_ERR_INVALID_ARGUMENT, "refused.safetensors", "`wte`", "null");
    // Counts that are too large for memory are refused before anything is read.
    const sa_tensor good = tensor("t");
    for (const std::size_t count : {SIZE_MAX, std::size_t{1} << 61, SIZE_MAX / sizeof(sa_tensor) + 1}) {
        CHECK_ERROR(sa_write_aligned("refused.safetensors", &good, count, nullptr, 0, nullptr, nullptr, &error),
                    SA_ERR_INVALID_ARGUMENT, "`tensors`", std::to_string(count).c_str());
        Untouched<sa_plan*> plan;
        CHECK_ERROR(sa_plan_new(&good, count, nullptr, 0, nullptr, plan.get(), &error), SA_ERR_INVALID_ARGUMENT,
                    "`tensors`");
        const sa_metadata entry = {"k", SA_NUL_TERMINATED, "v", SA_NUL_TERMINATED};
        CHECK_ERROR(sa_plan_new(&good, 1, &entry, std::max(count, SIZE_MAX / sizeof(sa_metadata) + 1), nullptr,
                                plan.get(), &error), SA_ERR_INVALID_ARGUMENT, "`metadata`");
    }
    CHECK(!std::filesystem::exists("refused.safetensors"));
}

void bad_metadata() {
    sa_error error;
    const sa_tensor one = tensor();
    Untouched<sa_plan*> plan;
    const sa_metadata twice[2] = {{"key", SA_NUL_TERMINATED, "1", SA_NUL_TERMINATED}, {"key", SA_NUL_TERMINATED, "2", SA_NUL_TERMINATED}};
    CHECK_ERROR(sa_plan_new(&one, 1, twice, 2, nullptr, plan.get(), &error), SA_ERR_INVALID_ARGUMENT, "`key`");
    const sa_metadata no_key = {nullptr, SA_NUL_TERMINATED, "v", SA_NUL_TERMINATED};
    CHECK_ERROR(sa_plan_new(&one, 1, &no_key, 1, nullptr, plan.get(), &error), SA_ERR_INVALID_ARGUMENT, "key", "null");
    const sa_metadata no_value = {"k", SA_NUL_TERMINATED, nullptr, SA_NUL_TERMINATED};
    CHECK_ERROR(sa_plan_new(&one, 1, &no_value, 1, nullptr, plan.get(), &error), SA_ERR_INVALID_ARGUMENT, "value",
                "null");
    const sa_metadata latin = {"k", SA_NUL_TERMINATED, "\xe4", SA_NUL_TERMINATED};
    CHECK_ERROR(sa_plan_new(&one, 1, &latin, 1, nullptr, plan.get(), &error), SA_ERR_INVALID_ARGUMENT, "UTF-8");
    const sa_metadata endless = {"k", 1, "v", SIZE_MAX - 1};
    CHECK_ERROR(sa_plan_new(&one, 1, &endless, 1, nullptr, plan.get(), &error), SA_ERR_INVALID_ARGUMENT,
                "18446744073709551614");
    const sa_metadata forgotten = {"k", 1, "v", 0};
    CHECK_ERROR(sa_plan_new(&one, 1, &forgotten, 1, nullptr, plan.get(), &error), SA_ERR_INVALID_ARGUMENT, "value",
                "length 0");
    const sa_metadata empty = {nullptr, 0, nullptr, 0};
    sa_plan* made = nullptr;
    CHECK(sa_plan_new(&one, 1, &empty, 1, nullptr, &made, &error) == SA_OK);
    sa_plan_free(made);
}

void bad_options() {
    sa_error error;
    const sa_tensor one = tensor();
    const char* target = "options.safetensors";
    const auto refused = [&](const sa_write_options* options, std::initializer_list<const char*> texts, int line) {
        Untouched<sa_writer*> writer;
        check_error(sa_write_aligned(target, &one, 1, nullptr, 0, options, nullptr, &error), error,
                    SA_ERR_INVALID_ARGUMENT, texts, line);
        check_error(sa_writer_open(target, &one, 1, nullptr, 0, options, writer.get(), &error), error,
                    SA_ERR_INVALID_ARGUMENT, texts, line);
    };
    for (const std::uint64_t alignment : {std::uint64_t{1}, std::uint64_t{4}, std::uint64_t{48},
                                          std::uint64_t{4} << 20, UINT64_MAX}) {
        sa_write_options options;
        SA_INIT(&options);
        options.alignment = alignment;
        refused(&options, {"alignment", std::to_string(alignment).c_str()}, __LINE__);
    }
    for (const std::int32_t value : {-1, 2, INT32_MIN, INT32_MAX}) {
        sa_write_options options;
        SA_INIT(&options);
        options.layout = value;
        refused(&options, {"options.layout", std::to_string(value).c_str()}, __LINE__);
        SA_INIT(&options);
        options.durability = value;
        refused(&options, {"options.durability", std::to_string(value).c_str()}, __LINE__);
    }

    sa_file* file = opened();
    Untouched<sa_file*> out;
    Untouched<sa_plan*> no_plan;
    sa_plan_options plan_options;
    SA_INIT(&plan_options);
    plan_options.layout = 2;
    CHECK_ERROR(sa_plan_new(&one, 1, nullptr, 0, &plan_options, no_plan.get(), &error), SA_ERR_INVALID_ARGUMENT,
                "options.layout");
    SA_INIT(&plan_options);
    plan_options.reserved = 1;
    CHECK_ERROR(sa_plan_new(&one, 1, nullptr, 0, &plan_options, no_plan.get(), &error), SA_ERR_INVALID_ARGUMENT,
                "options.reserved");
    sa_repair_options repair;
    SA_INIT(&repair);
    repair.alignment = 3;
    CHECK_ERROR(sa_repair_in_place(path, &repair, nullptr, &error), SA_ERR_INVALID_ARGUMENT, "alignment 3");
    sa_overlay_options overlay;
    SA_INIT(&overlay);
    overlay.layout = -1;
    CHECK_ERROR(sa_overlay_bundle(".", "overlay", &overlay, nullptr, &error), SA_ERR_INVALID_ARGUMENT, "options.layout");
    sa_scan_options scan;
    SA_INIT(&scan);
    scan.alignment = 24;
    Untouched<sa_scan*> no_scan;
    CHECK_ERROR(sa_scan_file(path, &scan, no_scan.get(), &error), SA_ERR_INVALID_ARGUMENT, "alignment 24");
    for (const std::int32_t value : {-1, 4, INT32_MIN, INT32_MAX}) {
        sa_open_options options;
        SA_INIT(&options);
        options.map_mode = value;
        CHECK_ERROR(sa_file_open(path, &options, out.get(), &error), SA_ERR_INVALID_ARGUMENT, "options.map_mode",
                    std::to_string(value).c_str());
        SA_INIT(&options);
        options.unaligned = value;
        CHECK_ERROR(sa_file_open(path, &options, out.get(), &error), SA_ERR_INVALID_ARGUMENT, "options.unaligned");
        SA_INIT(&options);
        options.read_ahead = value;
        CHECK_ERROR(sa_file_open(path, &options, out.get(), &error), SA_ERR_INVALID_ARGUMENT, "options.read_ahead");
        sa_view view;
        SA_INIT(&view);
        CHECK(sa_map_tensor(file, "t", SA_NUL_TERMINATED, &view, &error) == SA_OK);
        CHECK_ERROR(sa_view_advise(&view, value, &error), SA_ERR_INVALID_ARGUMENT, "`advice`");
        sa_view_release(view.owner);
    }
    CHECK(std::strcmp(sa_status_name(-1), "unknown") == 0 && std::strcmp(sa_status_name(15), "unknown") == 0);
    CHECK(std::strcmp(sa_dtype_name(0), "unknown") == 0 && std::strcmp(sa_dtype_name(23), "unknown") == 0);
    CHECK(sa_dtype_bits(0) == 0 && sa_dtype_bits(INT32_MIN) == 0);
    Untouched<std::int32_t> dtype;
    CHECK_ERROR(sa_dtype_from_name("f32", SA_NUL_TERMINATED, dtype.get(), &error), SA_ERR_UNSUPPORTED, "`f32`");
    CHECK_ERROR(sa_dtype_from_name("", SA_NUL_TERMINATED, dtype.get(), &error), SA_ERR_UNSUPPORTED, "dtype");
    CHECK_ERROR(sa_dtype_from_name("F32x", 4, dtype.get(), &error), SA_ERR_UNSUPPORTED, "`F32x`");
    sa_file_free(file);
    CHECK(!std::filesystem::exists(target));
}

/// A struct of a newer header than the library's.
template <typename T>
struct Larger {
    T known;
    unsigned char tail[32];
};

/// Whether calls with a struct of any size that no header has fail, with a message that names it. `call` makes a call with
/// the struct and returns its status.
template <typename T, typename Call>
void bad_sizes(const char* name, bool is_input, const sa_error& error, Call call) {
    Larger<T> value;
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, sizeof(std::size_t) - 1, sizeof(std::size_t), sizeof(T) - 8, sizeof(T) - 1,
          sizeof(T) + 1, sizeof(T) + 4, std::size_t{4104}, SIZE_MAX}) {
        if (size == sizeof(T) || (size == sizeof(std::size_t) && sizeof(T) == size)) {
            continue;
        }
        std::memset(static_cast<void*>(&value), 0, sizeof value);
        value.known.struct_size = size;
        const std::string shown = "`" + std::string(name) + "`: struct_size is " + std::to_string(size) + ",";
        CHECK_ERROR(call(&value.known), SA_ERR_INVALID_ARGUMENT, shown.c_str(), "SA_INIT");
    }
    // A newer program: what it leaves at zero does not matter, an option that it sets would be ignored.
    if (is_input) {
        std::memset(static_cast<void*>(&value), 0, sizeof value);
        value.known.struct_size = sizeof value;
        for (const std::size_t at : {std::size_t{0}, sizeof value.tail - 1}) {
            value.tail[at] = 1;
            const std::string shown = "`" + std::string(name) + "`: byte " + std::to_string(sizeof(T) + at) + " is set";
            CHECK_ERROR(call(&value.known), SA_ERR_INVALID_ARGUMENT, shown.c_str());
            value.tail[at] = 0;
        }
    }
    // Nothing is written after the end of the caller's struct.
    std::memset(static_cast<void*>(&value), 0, sizeof value.known);
    std::memset(value.tail, 0xa5, sizeof value.tail);
    value.known.struct_size = sizeof value.known;
    CHECK(call(&value.known) == SA_OK);
    CHECK(value.known.struct_size == sizeof value.known);
    for (const unsigned char byte : value.tail) {
        CHECK(byte == 0xa5);
    }
}

#define BAD_SIZES(type, is_input, call) bad_sizes<type>(#type, is_input, error, [&](type* value) { return call; })

void struct_sizes() {
    sa_error error;
    const sa_tensor one = tensor();
    const char* target = "sizes.safetensors";
    sa_file* file = opened();
    sa_scan* scan = nullptr;
    CHECK(sa_scan_file(path, nullptr, &scan, nullptr) == SA_OK);
    const auto view_of = [&](sa_view* view) {
        const sa_status status = sa_map_tensor(file, "t", 1, view, &error);
        if (status == SA_OK) {
            sa_view_release(view->owner);
        }
        return status;
    };
    const auto plan_of = [&](const sa_plan_options* options, sa_placement* placement) {
        sa_plan* plan = nullptr;
        sa_status status = sa_plan_new(&one, 1, nullptr, 0, options, &plan, &error);
        if (status == SA_OK && placement != nullptr) {
            status = sa_plan_at(plan, 0, placement, &error);
        }
        sa_plan_free(plan);
        return status;
    };
    const auto open_with = [&](const sa_open_options* options) {
        sa_file* out = nullptr;
        const sa_status status = sa_file_open(path, options, &out, &error);
        sa_file_free(out);
        return status;
    };
    const auto scan_with = [&](const sa_scan_options* options) {
        sa_scan* out = nullptr;
        const sa_status status = sa_scan_file(path, options, &out, &error);
        sa_scan_free(out);
        return status;
    };
    const auto cache_with = [&](const sa_aligned_cache_options* options, sa_aligned_cache_report* report) {
        sa_aligned_cache* cache = nullptr;
        sa_status status = sa_aligned_cache_write(path, "cache", options, &cache, &error);
        if (status == SA_OK && report != nullptr) {
            status = sa_aligned_cache_get(cache, report, &error);
        }
        sa_aligned_cache_free(cache);
        return status;
    };
    std::filesystem::create_directories("empty");
    BAD_SIZES(sa_write_options, true, sa_write_aligned(target, &one, 1, nullptr, 0, value, nullptr, &error));
    BAD_SIZES(sa_write_report, false, sa_write_aligned(target, &one, 1, nullptr, 0, nullptr, value, &error));
    BAD_SIZES(sa_plan_options, true, plan_of(value, nullptr));
    BAD_SIZES(sa_placement, false, plan_of(nullptr, value));
    BAD_SIZES(sa_open_options, true, open_with(value));
    BAD_SIZES(sa_stats, false, sa_file_stats(file, value, &error));
    BAD_SIZES(sa_tensor_info, false, sa_file_at(file, 0, value, &error));
    BAD_SIZES(sa_view, false, view_of(value));
    BAD_SIZES(sa_scan_options, true, scan_with(value));
    BAD_SIZES(sa_scan_report, false, sa_scan_get(scan, value, &error));
    BAD_SIZES(sa_scan_dtype, false, sa_scan_dtype_at(scan, 0, value, &error));
    BAD_SIZES(sa_repair_options, true, sa_repair_in_place(path, value, nullptr, &error));
    BAD_SIZES(sa_repair_report, false, sa_repair_in_place(path, nullptr, value, &error));
    BAD_SIZES(sa_aligned_cache_options, true, cache_with(value, nullptr));
    BAD_SIZES(sa_aligned_cache_report, false, cache_with(nullptr, value));
    std::filesystem::create_directories("bundle");
    const auto sharded = [&](const sa_sharded_options* options, sa_sharded_report* report) {
        std::filesystem::remove("bundle/model.safetensors");
        return sa_write_sharded("bundle", "model", 5, 9, &one, 1, nullptr, 0, options, report, &error);
    };
    BAD_SIZES(sa_sharded_options, true, sharded(value, nullptr));
    BAD_SIZES(sa_sharded_report, false, sharded(nullptr, value));
    BAD_SIZES(sa_overlay_options, true, sa_overlay_bundle("empty", "overlaid", value, nullptr, &error));
    BAD_SIZES(sa_overlay_report, false, sa_overlay_bundle("empty", "overlaid", nullptr, value, &error));

    // Each failed call checked its arguments before any work.
    std::filesystem::remove(target);
    sa_write_report report{};
    CHECK(sa_write_aligned(target, &one, 1, nullptr, 0, nullptr, &report, &error) == SA_ERR_INVALID_ARGUMENT);
    CHECK(!std::filesystem::exists(target));
    sa_scan_free(scan);
    sa_file_free(file);
}

void bad_paths() {
    sa_error error;
    const sa_tensor one = tensor();
    Untouched<sa_file*> file;
    CHECK_ERROR(sa_file_open("", nullptr, file.get(), &error), SA_ERR_INVALID_ARGUMENT, "`path`");
    CHECK_ERROR(sa_file_open("missing.safetensors", nullptr, file.get(), &error), SA_ERR_IO, "missing.safetensors");
    CHECK(error.os_error == ENOENT);
    CHECK_ERROR(sa_file_open(".", nullptr, file.get(), &error), SA_ERR_IO, "directory");

    // Opening a FIFO would block until its other end is opened. A test that hangs here has failed.
    std::filesystem::remove("fifo.safetensors");
    CHECK(mkfifo("fifo.safetensors", 0600) == 0);
    CHECK_ERROR(sa_file_open("fifo.safetensors", nullptr, file.get(), &error), SA_ERR_IO, "fifo.safetensors", "FIFO");
    CHECK_ERROR(sa_write_aligned("fifo.safetensors", &one, 1, nullptr, 0, nullptr, nullptr, &error), SA_ERR_IO, "FIFO");
    CHECK_ERROR(sa_file_open("/dev/null", nullptr, file.get(), &error), SA_ERR_IO, "device");

    std::filesystem::create_directories("directory.safetensors");
    CHECK_ERROR(sa_write_aligned("directory.safetensors", &one, 1, nullptr, 0, nullptr, nullptr, &error), SA_ERR_IO,
                "directory.safetensors", "directory");
    CHECK_ERROR(sa_write_aligned("no/such/directory/x.safetensors", &one, 1, nullptr, 0, nullptr, nullptr, &error),
                SA_ERR_IO, "no/such/directory/x.safetensors: create: no such file or directory");
    CHECK(error.os_error == ENOENT);
    CHECK_ERROR(sa_write_aligned("", &one, 1, nullptr, 0, nullptr, nullptr, &error), SA_ERR_INVALID_ARGUMENT, "`path`");
    CHECK_ERROR(sa_write_aligned("directory/", &one, 1, nullptr, 0, nullptr, nullptr, &error), SA_ERR_INVALID_ARGUMENT,
                "directory/");

    // A message that is too long is cut and NUL-terminated.
    const std::string deep = std::string(4000, 'd') + ".safetensors";
    CHECK_ERROR(sa_file_open(deep.c_str(), nullptr, file.get(), &error), SA_ERR_IO, "...");
}

/// Writes a file with this JSON and number of data bytes.
void make(const char* name, const std::string& json, std::size_t data) {
    std::string file(8, '\0');
    file[0] = static_cast<char>(json.size());
    file[1] = static_cast<char>(json.size() >> 8);
    write_file(name, file + json + std::string(data, 'x'));
}

void bad_files() {
    sa_error error;
    Untouched<sa_file*> file;
    const char* name = "bad.safetensors";
    const auto refused = [&](sa_status status, std::initializer_list<const char*> texts, int line) {
        check_error(sa_file_open(name, nullptr, file.get(), &error), error, status, texts, line);
        check_that(std::strstr(error.message, name) != nullptr, "names the file", __FILE__, line);
    };
    write_file(name, "");
    refused(SA_ERR_TRUNCATED, {}, __LINE__);
    write_file(name, "<!DOCTYPE html><html>not found</html>");
    refused(SA_ERR_TOO_LARGE, {"HTML"}, __LINE__);
    make(name, "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 7);
    refused(SA_ERR_TRUNCATED, {}, __LINE__);
    make(name, "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}", 8);
    refused(SA_ERR_FORMAT, {}, __LINE__);
    make(name, "{\"wte\":{\"dtype\":\"U9\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8);
    refused(SA_ERR_UNSUPPORTED, {"`wte`", "U9"}, __LINE__);
    make(name, "{\"wte\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,12]}}", 12);
    refused(SA_ERR_FORMAT, {"`wte`", "12", "16"}, __LINE__);
    make(name, "{\"wte\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
               "\"w\\u0074e\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2);
    refused(SA_ERR_FORMAT, {"`wte`"}, __LINE__);
    make(name, "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
               "\"wte\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3);
    refused(SA_ERR_FORMAT, {"`wte`"}, __LINE__);
}

void misaligned_and_refused() {
    write_packed("misaligned.safetensors", {sample("one", Dtype::U8, {1}), sample("wte", Dtype::F32, {2}),
                                            sample("two", Dtype::U8, {2}), sample("w2", Dtype::F32, {2})});
    sa_open_options options;
    SA_INIT(&options);
    options.unaligned = SA_UNALIGNED_ERROR;
    sa_file* file = nullptr;
    sa_error error;
    CHECK(sa_file_open("misaligned.safetensors", &options, &file, &error) == SA_OK);
    unsigned refusals = 0;
    for (std::size_t index = 0; index < sa_file_len(file); ++index) {
        sa_tensor_info info;
        SA_INIT(&info);
        CHECK(sa_file_at(file, index, &info, &error) == SA_OK);
        if (info.is_misaligned != 0) {
            Untouched<sa_view> view;
            const std::string name = std::string("`") + info.name + "`";
            CHECK_ERROR(sa_map_tensor_at(file, index, view.get(), &error), SA_ERR_UNALIGNED, "misaligned.safetensors",
                        name.c_str(), std::to_string(info.offset).c_str());
            refusals += 1;
        }
    }
    CHECK(refusals > 0);
    sa_file_free(file);

    // Borrowed misaligned on request. They cannot be accessed as floats.
    safealign::OpenOptions borrow;
    borrow.unaligned = safealign::Unaligned::Borrow;
    const safealign::File lent = safealign::File::open("misaligned.safetensors", borrow).value();
    unsigned borrowed = 0;
    for (const char* name : {"wte", "w2"}) {
        const safealign::View view = lent.map(name).value();
        CHECK(view.origin() == safealign::Origin::Mapped);
        CHECK(same_bytes(view.bytes(), sample(name, Dtype::F32, {2}).bytes));
        if (const auto floats = view.as<float>(); !floats) {
            CHECK(floats.error().status == safealign::Status::Unaligned);
            borrowed += 1;
        }
    }
    CHECK(borrowed == refusals);
    CHECK(lent.stats().tensors_copied == 0);
}

/// The C++ layer: a path with a NUL would name another file, and calls on empty objects fail.
void wrapper() {
    using safealign::Status;
    using namespace std::string_view_literals;
    sa_file_free(opened());
    const safealign::File file = safealign::File::open(path).value();
    CHECK(file.map("t\0x"sv).error().status == Status::NotFound);
    CHECK(file.find("t\0"sv).error().status == Status::NotFound);
    CHECK(file.find(std::string_view()).error().status == Status::NotFound);
    CHECK(safealign::File::open("errors.safetensors\0.bak"sv).error().status == Status::InvalidArgument);
    CHECK(safealign::write_aligned("x\0y"sv, {}).error().status == Status::InvalidArgument);
    CHECK(safealign::Writer::open("x\0y"sv, {}).error().status == Status::InvalidArgument);
    CHECK(safealign::dtype_from_name("F32\0"sv).error().status == Status::Unsupported);

    // A view of part of a string, and an empty one.
    const std::string text = "tensor";
    CHECK(file.map(std::string_view(text).substr(0, 1)));
    CHECK(safealign::write_aligned("unnamed.safetensors",
                                   {{"", Dtype::U8, {}, safealign::bytes_of("x", 1)}}, {}, fast()));
    CHECK_EQ(safealign::File::open("unnamed.safetensors").value().find("").value(), 0u);

    const auto missing = safealign::File::open("missing.safetensors");
    CHECK(!missing && missing.error().status == Status::Io && missing.error().os_error == ENOENT);
    CHECK(!missing && missing.error().message.find("missing.safetensors") != std::string::npos);
    try {
        (void)missing.value_or_throw();
        CHECK(!"thrown");
    } catch (const std::runtime_error& thrown) {
        CHECK_EQ(std::string(thrown.what()), missing.error().message);
        const auto* exact = dynamic_cast<const safealign::Exception*>(&thrown);
        CHECK(exact != nullptr && exact->error().status == Status::Io);
    }
    CHECK_EQ(safealign::File::open(path).value_or_throw().size(), 1u);
    safealign::Result<void>().value_or_throw();

    const safealign::File no_file;
    CHECK(no_file.size() == 0 && no_file.metadata().empty() && no_file.bytes().empty());
    CHECK(no_file.stats().tensors == 0 && no_file.data_start() == 0);
    CHECK(no_file.map("t").error().status == Status::InvalidArgument);
    CHECK(no_file.map_at(0).error().status == Status::InvalidArgument);
    CHECK(no_file.at(0).error().status == Status::InvalidArgument);
    CHECK(no_file.find("t").error().status == Status::InvalidArgument);
    const safealign::Plan no_plan;
    CHECK(no_plan.size() == 0 && no_plan.header().empty() && no_plan.file_size() == 0 && !no_plan.at(0));
    safealign::Writer no_writer;
    CHECK(!no_writer.put(0, {}) && !no_writer.put_at(0, 0, {}) && !no_writer.finish());
    const safealign::View no_view;
    CHECK(no_view.bytes().empty() && no_view.shape().empty() && !no_view.advise(safealign::Advice::Random));
}

}  // namespace

int main() {
    work_in("errors.work");
    null_arguments();
    bad_tensors();
    bad_metadata();
    bad_options();
    struct_sizes();
    bad_paths();
    bad_files();
    misaligned_and_refused();
    wrapper();
    return check_report();
}
