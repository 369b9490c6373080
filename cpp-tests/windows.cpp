// Windows over a mapping, for buffers of a device.

#include "check.h"
#include "samples.hpp"

#include <cstdint>
#include <limits>
#include <vector>

using safealign::ByteRange;
using safealign::cut_windows;
using safealign::Window;

namespace {

constexpr std::uint64_t page = 16384;
constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

/// Checks what every result has in common, and returns the number of tensors in windows.
std::size_t check_windows(const std::vector<ByteRange>& tensors, const std::vector<Window>& windows,
                          std::uint64_t page_size, std::uint64_t max_bytes, std::uint64_t preferred) {
    std::size_t next = 0;
    std::size_t covered = 0;
    for (const Window& window : windows) {
        CHECK_EQ(window.offset % page_size, 0u);
        CHECK_EQ(window.nbytes % page_size, 0u);
        CHECK(window.nbytes <= max_bytes);
        CHECK(window.nbytes <= preferred || window.count == 1);
        CHECK(window.count > 0 && window.first >= next);
        // Tensors between the windows are too large.
        for (; next < window.first; ++next) {
            CHECK(tensors[next].nbytes + 2 * page_size > max_bytes);
        }
        for (; next < window.first + window.count; ++next) {
            CHECK(tensors[next].offset >= window.offset);
            CHECK(tensors[next].offset + tensors[next].nbytes <= window.offset + window.nbytes);
        }
        // No page that no tensor of the window is on.
        const ByteRange& last = tensors[next - 1];
        CHECK(tensors[window.first].offset < window.offset + page_size);
        CHECK(last.offset + last.nbytes + page_size > window.offset + window.nbytes);
        covered += window.count;
    }
    return covered;
}

void one_window_if_everything_fits() {
    const std::vector<ByteRange> tensors = {{100, 50}, {160, 20000}, {20160, 1}, {20168, 8}};
    const std::vector<Window> windows = cut_windows(tensors, page, no_limit, no_limit);
    CHECK_EQ(windows.size(), 1u);
    CHECK_EQ(windows[0].offset, 0u);
    CHECK_EQ(windows[0].nbytes, 2 * page);
    CHECK_EQ(windows[0].count, 4u);
    CHECK(cut_windows({}, page, no_limit, no_limit).empty());
}

void cut_at_tensors_and_pages() {
    // The second tensor starts in the last page of the first: both windows have this page.
    const std::vector<ByteRange> tensors = {{64, page}, {page + 64, page}, {3 * page, page}};
    const std::vector<Window> windows = cut_windows(tensors, page, no_limit, 2 * page);
    CHECK_EQ(windows.size(), 3u);
    CHECK_EQ(windows[0].nbytes, 2 * page);
    CHECK_EQ(windows[1].offset, page);
    CHECK_EQ(windows[1].nbytes, 2 * page);
    CHECK_EQ(windows[2].offset, 3 * page);
    CHECK_EQ(windows[2].nbytes, page);
}

void large_tensors() {
    const std::vector<ByteRange> tensors = {{0, 8}, {8, 6 * page}, {6 * page + 8, 16 * page}, {22 * page + 8, 8}};
    // Above what is preferred: a window of its own. Above the limit: none.
    const std::vector<Window> windows = cut_windows(tensors, page, 8 * page, 4 * page);
    CHECK_EQ(windows.size(), 3u);
    CHECK_EQ(windows[1].first, 1u);
    CHECK_EQ(windows[1].nbytes, 7 * page);
    CHECK_EQ(windows[2].first, 3u);
    CHECK_EQ(check_windows(tensors, windows, page, 8 * page, 4 * page), 3u);
    // The limit counts whole pages: 8 bytes on each side of a boundary need two.
    const std::vector<ByteRange> two_pages = {{page - 8, 16}};
    CHECK(cut_windows(two_pages, page, page, page).empty());
    // A preference above the limit is no more than the limit.
    CHECK_EQ(check_windows(tensors, cut_windows(tensors, page, 2 * page, no_limit), page, 2 * page, no_limit), 2u);
    // Offsets near the end of the largest file.
    const std::vector<ByteRange> far = {{no_limit / 2 - 7, 7}};
    CHECK_EQ(cut_windows(far, page, no_limit, no_limit).at(0).nbytes, page);
}

void many_sizes() {
    std::uint32_t state = 1;
    const auto random = [&state](std::uint32_t below) {
        state = state * 1664525u + 1013904223u;
        return (state >> 8) % below;
    };
    for (int round = 0; round < 2000; ++round) {
        std::vector<ByteRange> tensors;
        std::uint64_t offset = random(3000);
        for (std::uint32_t count = random(40); count > 0; --count) {
            const std::uint64_t nbytes = 1 + random(random(4) == 0 ? 100000 : 3000);
            tensors.push_back({offset, nbytes});
            offset += nbytes + (random(3) == 0 ? random(40000) : 0);
        }
        const std::uint64_t page_size = random(2) == 0 ? 4096 : page;
        const std::uint64_t max_bytes = page_size * (1 + random(10));
        const std::uint64_t preferred = page_size * random(12);
        const std::vector<Window> windows = cut_windows(tensors, page_size, max_bytes, preferred);
        const std::size_t covered = check_windows(tensors, windows, page_size, max_bytes, preferred);
        std::size_t fitting = 0;
        for (const ByteRange& tensor : tensors) {
            const std::uint64_t begin = tensor.offset / page_size;
            const std::uint64_t end = (tensor.offset + tensor.nbytes + page_size - 1) / page_size;
            fitting += (end - begin) * page_size <= max_bytes ? 1 : 0;
        }
        CHECK_EQ(covered, fitting);
    }
}

}  // namespace

int main() {
    one_window_if_everything_fits();
    cut_at_tensors_and_pages();
    large_tensors();
    many_sizes();
    return check_report();
}
