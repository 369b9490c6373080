/* Strict C99: finds a misaligned file, mends it, opens it through a cache of twins, all through the C ABI. */

#include "check.h"
#include "safealign.h"

#include <stdio.h>
#include <string.h>

static const char path[] = "mend.safetensors";

/* A header that is a multiple of 8 bytes long and one more: the F32 stands on an odd offset. */
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
    sa_scan_report_init(&report);
    sa_scan_dtype_init(&row);
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
    sa_error error;
    uint64_t bytes = 0;
    int calls = 0;

    if (!write_misaligned(path)) {
        return check_report();
    }
    CHECK(misaligned(path, &bytes) == 1 && bytes == 8);

    /* Opened through a cache, it maps without a copy, and stays as it is. */
    sa_open_options_init(&open);
    open.unaligned = SA_UNALIGNED_OVERLAY;
    CHECK(sa_file_open(path, &open, &file, &error) == SA_ERR_INVALID_ARGUMENT && file == NULL);
    CHECK(strstr(error.message, "overlay_dir") != NULL);
    open.overlay_dir = "mend-twins";
    if (CHECK(sa_file_open(path, &open, &file, &error) == SA_OK)) {
        sa_stats_init(&stats);
        CHECK(sa_map_tensor(file, "w", &view, &error) == SA_OK);
        CHECK(view.origin == SA_ORIGIN_MAPPED && ((const float *)view.data)[0] == 1.5f);
        CHECK(sa_file_stats(file, &stats, &error) == SA_OK && stats.misaligned_tensors == 0);
        sa_view_release(view.owner);
        sa_file_free(file);
    }
    CHECK(misaligned(path, &bytes) == 1);

    /* Cancelled, nothing changes; a dry run says what would be done. */
    sa_repair_options_init(&options);
    sa_repair_report_init(&report);
    options.durability = SA_NOT_DURABLE;
    options.progress = cancel;
    options.progress_context = &calls;
    CHECK(sa_repair_file(path, NULL, &options, &report, &error) == SA_ERR_CANCELLED && calls == 1);
    options.progress = NULL;
    options.dry_run = 1;
    CHECK(sa_repair_file(path, NULL, &options, &report, &error) == SA_OK);
    CHECK(report.action == SA_REPAIR_REWRITTEN && report.bytes_compared == 0);
    CHECK(misaligned(path, &bytes) == 1);

    options.dry_run = 0;
    if (!CHECK(sa_repair_file(path, NULL, &options, &report, &error) == SA_OK)) {
        fprintf(stderr, "%s\n", error.message);
    }
    CHECK(report.action == SA_REPAIR_REWRITTEN && report.misaligned_tensors == 1 && report.bytes_compared == 8);
    CHECK(misaligned(path, &bytes) == 0 && bytes == 0);
    CHECK(sa_repair_file(path, NULL, NULL, &report, NULL) == SA_OK && report.action == SA_REPAIR_UNTOUCHED);
    CHECK(sa_repair_file(path, "mended.safetensors", NULL, &report, NULL) == SA_OK);
    CHECK(report.action == SA_REPAIR_COPIED);

    /* The folder of twins is a bundle like any other, whose files are aligned. */
    sa_overlay_report_init(&overlay);
    if (!CHECK(sa_overlay_bundle("mend-twins", "mend-overlay", NULL, &overlay, &error) == SA_OK)) {
        fprintf(stderr, "%s\n", error.message);
    }
    CHECK(overlay.written == 0 && overlay.linked == 2 && overlay.warnings == 0);
    CHECK(sa_overlay_bundle("mend-twins", "mend-twins/inner", NULL, NULL, &error) == SA_ERR_REFUSED);
    options.force = 1;
    CHECK(sa_overlay_bundle("mend-twins", "mend-overlay", &options, NULL, &error) == SA_ERR_INVALID_ARGUMENT);
    CHECK(sa_overlay_bundle(NULL, "mend-overlay", NULL, NULL, &error) == SA_ERR_INVALID_ARGUMENT);

    CHECK(sa_repair_file(NULL, NULL, NULL, NULL, &error) == SA_ERR_INVALID_ARGUMENT);
    CHECK(sa_repair_file("missing.safetensors", NULL, NULL, NULL, &error) == SA_ERR_IO);
    CHECK(sa_scan_file("missing.safetensors", NULL, &scan, &error) == SA_ERR_IO && scan == NULL);
    CHECK(sa_scan_file(path, NULL, NULL, &error) == SA_ERR_INVALID_ARGUMENT);
    sa_scan_free(NULL);
    return check_report();
}
