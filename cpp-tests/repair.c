/* Strict C99: finds a misaligned file, opens it with an aligned cache, and repairs it, all through the C ABI. */

#include "check.h"
#include "safealign.h"

#include <stdio.h>
#include <string.h>

static const char path[] = "repair.safetensors";

/* A header that is a multiple of 8 bytes long and one more: the F32 starts at an odd offset. */
static int write_misaligned(const char *name) {
    static const char json[] = "{\"__metadata__\":{\"k\":\"v\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    const float data[2] = {1.5f, -2};
    unsigned char prefix[8] = {0};
    size_t length = (sizeof json - 1 + 7) / 8 * 8 + 1;
    size_t at;
    FILE *file = fopen(name, "wb");
    if (!CHECK(file != NULL)) {
        return 0;
    }
    prefix[0] = (unsigned char)length;
    fwrite(prefix, 1, sizeof prefix, file);
    fwrite(json, 1, sizeof json - 1, file);
    for (at = sizeof json - 1; at < length; at++) {
        fputc(' ', file);
    }
    fwrite(data, 1, sizeof data, file);
    return CHECK(fclose(file) == 0);
}

static uint64_t misaligned(const char *name, uint64_t *bytes) {
    sa_scan *scan = NULL;
    sa_scan_report report;
    sa_scan_dtype row;
    sa_error error;
    SA_INIT(&report);
    SA_INIT(&row);
    if (!CHECK(sa_scan_file(name, NULL, &scan, &error) == SA_OK)) {
        fprintf(stderr, "%s\n", error.message);
        return 99;
    }
    CHECK(sa_scan_get(scan, &report, &error) == SA_OK);
    CHECK(report.tensors == 1 && report.tensor_bytes == 8 && report.dtypes == 1);
    CHECK(report.conforms == 1 && report.nonconforming == NULL && report.nonconforming_reason == NULL);
    CHECK(sa_scan_dtype_at(scan, 0, &row, &error) == SA_OK);
    CHECK(strcmp(row.name, "F32") == 0 && row.name_len == 3 && row.dtype == SA_DTYPE_F32 && row.tensors == 1);
    CHECK(row.misaligned_bytes == report.misaligned_bytes);
    CHECK(sa_scan_dtype_at(scan, 1, &row, &error) == SA_ERR_NOT_FOUND);
    sa_scan_free(scan);
    *bytes = report.misaligned_bytes;
    return report.misaligned_tensors;
}

static int cancel(void *context, uint64_t done, uint64_t total) {
    ++*(int *)context;
    return done <= total;
}

int main(void) {
    sa_repair_options options;
    sa_repair_report report;
    sa_overlay_report overlay;
    sa_open_options open;
    sa_stats stats;
    sa_view view;
    sa_file *file = NULL;
    sa_scan *scan = NULL;
    sa_aligned_cache *cache = NULL;
    sa_aligned_cache_report cached;
    sa_overlay_options overlay_options;
    sa_error error;
    uint64_t bytes = 0;
    int calls = 0;

    if (!write_misaligned(path)) {
        return check_report();
    }
    CHECK(misaligned(path, &bytes) == 1 && bytes == 8);

    /* Opened with an aligned cache, it maps without a copy. The file stays as it is. */
    SA_INIT(&view);
    SA_INIT(&stats);
    SA_INIT(&cached);
    if (CHECK(sa_aligned_cache_write(path, "repair-cache", NULL, &cache, &error) == SA_OK)) {
        CHECK(sa_aligned_cache_get(cache, &cached, &error) == SA_OK);
        CHECK(cached.tensors == 1 && cached.tensor_bytes == 8 && cached.is_new == 1);
        SA_INIT(&open);
        open.aligned_cache = sa_aligned_cache_path(cache);
        CHECK(sa_file_open(path, &open, &file, &error) == SA_OK);
        CHECK(sa_map_tensor(file, "w", 1, &view, &error) == SA_OK);
        CHECK(view.origin == SA_ORIGIN_CACHED && ((const float *)view.data)[0] == 1.5f);
        CHECK(sa_file_stats(file, &stats, &error) == SA_OK && stats.tensors_copied == 0 && stats.tensors_mapped == 1);
        sa_view_release(view.owner);
        sa_file_free(file);
        file = NULL;
        CHECK(sa_file_open("repair-cache", &open, &file, &error) == SA_ERR_IO && file == NULL);
        sa_aligned_cache_free(cache);
    } else {
        fprintf(stderr, "%s\n", error.message);
    }
    CHECK(misaligned(path, &bytes) == 1);

    /* Cancelled, nothing changes; a dry run says what would be done. */
    SA_INIT(&options);
    SA_INIT(&report);
    options.durability = SA_NOT_DURABLE;
    options.progress = cancel;
    options.progress_context = &calls;
    CHECK(sa_repair_in_place(path, &options, &report, &error) == SA_ERR_CANCELLED && calls == 1);
    options.progress = NULL;
    options.dry_run = 1;
    CHECK(sa_repair_in_place(path, &options, &report, &error) == SA_OK);
    CHECK(report.action == SA_REPAIR_REWRITTEN && report.bytes_verified == 0);
    CHECK(misaligned(path, &bytes) == 1);

    options.dry_run = 0;
    if (!CHECK(sa_repair_in_place(path, &options, &report, &error) == SA_OK)) {
        fprintf(stderr, "%s\n", error.message);
    }
    CHECK(report.action == SA_REPAIR_REWRITTEN && report.misaligned_tensors == 1 && report.bytes_verified == 8);
    CHECK(misaligned(path, &bytes) == 0 && bytes == 0);
    CHECK(sa_repair_in_place(path, NULL, &report, NULL) == SA_OK && report.action == SA_REPAIR_UNTOUCHED);
    CHECK(sa_repair_file(path, "repaired.safetensors", NULL, &report, NULL) == SA_OK);
    CHECK(report.action == SA_REPAIR_COPIED);

    /* The cache directory is a bundle like any other, whose files are aligned. */
    SA_INIT(&overlay);
    SA_INIT(&overlay_options);
    overlay_options.durability = SA_NOT_DURABLE;
    if (!CHECK(sa_overlay_bundle("repair-cache", "repair-overlay", &overlay_options, &overlay, &error) == SA_OK)) {
        fprintf(stderr, "%s\n", error.message);
    }
    CHECK(overlay.written == 0 && overlay.linked == 2 && overlay.warnings == 0);
    CHECK(sa_overlay_bundle("repair-cache", "repair-cache/inner", NULL, NULL, &error) == SA_ERR_REFUSED);

    /* Without a destination nothing is repaired: a forgotten one must not replace the source. */
    CHECK(sa_repair_file(path, NULL, NULL, NULL, &error) == SA_ERR_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "`destination` is null") != NULL);
    CHECK(sa_repair_file(path, path, NULL, NULL, &error) == SA_ERR_REFUSED);
    CHECK(sa_repair_in_place(NULL, NULL, NULL, &error) == SA_ERR_INVALID_ARGUMENT);
    CHECK(sa_repair_in_place("missing.safetensors", NULL, NULL, &error) == SA_ERR_IO);
    CHECK(sa_scan_file("missing.safetensors", NULL, &scan, &error) == SA_ERR_IO && scan == NULL);
    CHECK(sa_scan_file(path, NULL, NULL, &error) == SA_ERR_INVALID_ARGUMENT);
    sa_scan_free(NULL);
    return check_report();
}
