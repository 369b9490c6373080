/* A program in strict C99: writes a file through the C ABI, maps it, and compares every byte. */

#include "check.h"
#include "safealign.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    static const char path[] = "smoke.safetensors";
    const uint8_t odd[3] = {1, 2, 3};
    const float weights[2][3] = {{1, 2, 3}, {4, 5, 6}};
    const uint64_t odd_shape[1] = {3};
    const uint64_t weights_shape[2] = {2, 3};
    sa_tensor tensors[2] = {{0}};
    sa_metadata metadata = {0};
    sa_write_options options;
    sa_write_report report;
    sa_error error;
    sa_file *file = NULL;
    sa_tensor_info info;
    sa_view view;
    sa_stats stats;
    size_t index = 99;

    SA_INIT(&info);
    SA_INIT(&view);
    CHECK(sizeof(sa_error) == 512);
    CHECK(sa_version() == SA_VERSION_MAJOR * 1000000 + SA_VERSION_MINOR * 1000 + SA_VERSION_PATCH);
    CHECK(strcmp(sa_version_string(), EXPECTED_VERSION) == 0);
    CHECK(strcmp(sa_status_name(SA_ERR_FORMAT), "SA_ERR_FORMAT") == 0);
    CHECK(strcmp(sa_dtype_name(SA_DTYPE_BF16), "BF16") == 0);

    tensors[0].name = "odd";
    tensors[0].name_len = SA_NUL_TERMINATED;
    tensors[0].dtype = SA_DTYPE_U8;
    tensors[0].rank = 1;
    tensors[0].shape = odd_shape;
    tensors[0].data = odd;
    tensors[0].nbytes = sizeof odd;
    tensors[1].name = "weights";
    tensors[1].name_len = SA_NUL_TERMINATED;
    tensors[1].dtype = SA_DTYPE_F32;
    tensors[1].rank = 2;
    tensors[1].shape = weights_shape;
    tensors[1].data = weights;
    tensors[1].nbytes = sizeof weights;
    metadata.key = "made by";
    metadata.key_len = SA_NUL_TERMINATED;
    metadata.value = "smoke.c";
    metadata.value_len = SA_NUL_TERMINATED;

    SA_INIT(&options);
    options.durability = SA_NOT_DURABLE;
    SA_INIT(&report);
    if (!CHECK(sa_write_aligned(path, tensors, 2, &metadata, 1, &options, &report, &error) == SA_OK)) {
        fprintf(stderr, "%s\n", error.message);
        return check_report();
    }
    CHECK(error.status == SA_OK && error.message[0] == '\0');
    CHECK(report.tensors == 2 && report.tensors_moved == 2 && report.gap_bytes == 0);
    CHECK(report.file_size == report.data_start + sizeof odd + sizeof weights);
    CHECK(report.data_start % 64 == 0);

    if (!CHECK(sa_file_open(path, NULL, &file, &error) == SA_OK)) {
        fprintf(stderr, "%s\n", error.message);
        return check_report();
    }
    CHECK(sa_file_len(file) == 2);
    CHECK(sa_file_find(file, "weights", SA_NUL_TERMINATED, &index, &error) == SA_OK && index == 0);
    CHECK(sa_file_at(file, index, &info, &error) == SA_OK);
    CHECK(strcmp(info.name, "weights") == 0 && info.name_len == 7 && info.dtype == SA_DTYPE_F32);
    CHECK(info.rank == 2 && info.shape[0] == 2 && info.shape[1] == 3 && info.nbytes == sizeof weights);
    CHECK(info.offset % sizeof(float) == 0 && !info.is_misaligned);

    CHECK(sa_map_tensor(file, "weights", SA_NUL_TERMINATED, &view, &error) == SA_OK);
    CHECK(view.origin == SA_ORIGIN_MAPPED && view.nbytes == sizeof weights);
    CHECK(memcmp(view.data, weights, sizeof weights) == 0);
    sa_view_release(view.owner);

    CHECK(sa_map_tensor(file, "odd", SA_NUL_TERMINATED, &view, NULL) == SA_OK);
    SA_INIT(&stats);
    CHECK(sa_file_stats(file, &stats, &error) == SA_OK);
    CHECK(stats.tensors_mapped == 2 && stats.bytes_mapped == sizeof odd + sizeof weights);
    CHECK(stats.tensors_copied == 0 && stats.misaligned_tensors == 0 && stats.is_mapped == 1);

    memset(&metadata, 0, sizeof metadata);
    CHECK(sa_file_metadata_len(file) == 1 && sa_file_metadata_at(file, 0, &metadata, &error) == SA_OK);
    CHECK(strcmp(metadata.key, "made by") == 0 && strcmp(metadata.value, "smoke.c") == 0);

    sa_file_free(file);
    CHECK(memcmp(view.data, odd, sizeof odd) == 0);
    sa_view_release(view.owner);
    return check_report();
}
