/* Two Rust archives, each with a standard library of its own, in one program. */

#include "../check.h"

#include <safealign.h>

uint32_t second_answer(uint32_t number);

int main(void) {
    const unsigned char bytes[5] = {1, 2, 3, 4, 5};
    const uint64_t shape[1] = {5};
    sa_tensor tensor = {0};
    sa_file *file = NULL;
    sa_error error;

    CHECK(second_answer(12) == 121);
    tensor.name = "t";
    tensor.name_len = SA_NUL_TERMINATED;
    tensor.dtype = SA_DTYPE_I8;
    tensor.rank = 1;
    tensor.shape = shape;
    tensor.data = bytes;
    tensor.nbytes = sizeof bytes;
    CHECK(sa_write_aligned("second_archive.safetensors", &tensor, 1, NULL, 0, NULL, NULL, &error) == SA_OK);
    CHECK(sa_file_open("second_archive.safetensors", NULL, &file, &error) == SA_OK);
    CHECK(sa_file_len(file) == 1);
    sa_file_free(file);
    CHECK(sa_file_open("no such file", NULL, &file, &error) == SA_ERR_IO);
    /* Panics; the message that it prints is part of the test. */
    CHECK(second_answer(0) == UINT32_MAX);
    return check_report();
}
