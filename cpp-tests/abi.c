/*
 * Runs with an older or newer library than its header. scripts/abi.sh compiles it against the public header and against
 * one in which every struct has one more field (SAFEALIGN_GROWN_PROGRAM), and runs both with a library of either kind:
 *
 *     abi DIRECTORY plain|grown
 *
 * The second argument says which library it is. Every struct is on the heap, in a block of exactly its size, so that
 * valgrind and ASan see an access beyond it, and on the stack between canaries, so that the program sees it by itself.
 */

#include "check.h"
#include "safealign.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const unsigned char CANARY = 0xa5;
static int library_is_grown;
static sa_error error;

#if defined(SAFEALIGN_GROWN_PROGRAM)
#define GROW(p) ((p)->grown = 1)
static const int program_is_grown = 1;
#else
#define GROW(p) ((void)(p))
static const int program_is_grown = 0;
#endif

/* Calls with a struct of that type as VALUE: in a block of exactly its size, and on the stack between canaries. */
#define WITH(type, VALUE, call)                                          \
    do {                                                                 \
        struct {                                                         \
            unsigned char before[64];                                    \
            type value;                                                  \
            unsigned char after[64];                                     \
        } stack;                                                         \
        type *VALUE = malloc(sizeof *VALUE);                             \
        size_t at;                                                       \
        SA_INIT(VALUE);                                                  \
        check_ok((call), #call, __LINE__);                               \
        CHECK(VALUE->struct_size == sizeof *VALUE);                      \
        free(VALUE);                                                     \
        memset(&stack, CANARY, sizeof stack);                            \
        VALUE = &stack.value;                                            \
        SA_INIT(VALUE);                                                  \
        check_ok((call), #call, __LINE__);                               \
        CHECK(VALUE->struct_size == sizeof *VALUE);                      \
        for (at = 0; at < sizeof stack.before; at++) {                   \
            CHECK(stack.before[at] == CANARY && stack.after[at] == CANARY); \
        }                                                                \
    } while (0)

/* The same for options, and again with the option that only a grown header has: a library that does not know it says so. */
#define WITH_OPTIONS(type, VALUE, call)                                                         \
    do {                                                                                        \
        type *VALUE = malloc(sizeof *VALUE);                                                    \
        sa_status status;                                                                       \
        WITH(type, VALUE, call);                                                                \
        SA_INIT(VALUE);                                                                         \
        GROW(VALUE);                                                                            \
        status = (call);                                                                        \
        if (program_is_grown && !library_is_grown) {                                            \
            CHECK(status == SA_ERR_INVALID_ARGUMENT && strstr(error.message, "`" #type "`") != NULL); \
        } else {                                                                                \
            CHECK(status == SA_OK);                                                             \
        }                                                                                       \
        free(VALUE);                                                                            \
    } while (0)

static void check_ok(sa_status status, const char *call, int line) {
    if (!check_that(status == SA_OK, call, __FILE__, line)) {
        fprintf(stderr, "%s\n", error.message);
    }
}

static sa_tensor tensor(void) {
    static const unsigned char bytes[4] = {1, 2, 3, 4};
    static const uint64_t shape[1] = {4};
    sa_tensor out = {0};
    out.name = "t";
    out.name_len = 1;
    out.dtype = SA_DTYPE_U8;
    out.rank = 1;
    out.shape = shape;
    out.data = bytes;
    out.nbytes = sizeof bytes;
    return out;
}

static sa_status plan_with(const sa_plan_options *options, sa_placement *placement) {
    const sa_tensor one = tensor();
    sa_plan *plan = NULL;
    sa_status status = sa_plan_new(&one, 1, NULL, 0, options, &plan, &error);
    if (status == SA_OK && placement != NULL) {
        status = sa_plan_at(plan, 0, placement, &error);
        CHECK(placement->nbytes == 4 && placement->offset % 64 == 0);
    }
    sa_plan_free(plan);
    return status;
}

static sa_status write_in_pieces(const sa_write_options *options, sa_write_report *report, sa_placement *placement) {
    const sa_tensor one = tensor();
    sa_writer *writer = NULL;
    sa_status status = sa_writer_open("pieces.safetensors", &one, 1, NULL, 0, options, &writer, &error);
    if (status == SA_OK) {
        status = sa_writer_put(writer, 0, one.data, one.nbytes, &error);
    }
    if (status == SA_OK && placement != NULL) {
        status = sa_writer_at(writer, 0, placement, &error);
        CHECK(placement->nbytes == 4);
    }
    if (status == SA_OK) {
        status = sa_writer_finish(writer, report, &error);
    }
    sa_writer_free(writer);
    return status;
}

static sa_status open_with(const sa_open_options *options, sa_tensor_info *info, sa_stats *stats, sa_view *view) {
    sa_file *file = NULL;
    sa_status status = sa_file_open("model.safetensors", options, &file, &error);
    if (status == SA_OK && info != NULL) {
        status = sa_file_at(file, 0, info, &error);
        CHECK(info->name_len == 1 && info->name[0] == 't' && info->nbytes == 4);
    }
    if (status == SA_OK && view != NULL) {
        status = sa_map_tensor(file, "t", 1, view, &error);
        if (status == SA_OK) {
            CHECK(view->nbytes == 4 && ((const unsigned char *)view->data)[3] == 4);
            CHECK(sa_view_advise(view, SA_ADVICE_WILL_NEED, &error) == SA_OK);
            sa_view_release(view->owner);
            status = sa_map_tensor_at(file, 0, view, &error);
            sa_view_release(view->owner);
        }
    }
    if (status == SA_OK && stats != NULL) {
        status = sa_file_stats(file, stats, &error);
        CHECK(stats->tensors == 1);
    }
    sa_file_free(file);
    return status;
}

static sa_status scan_with(const sa_scan_options *options, sa_scan_report *report, sa_scan_dtype *row) {
    sa_scan *scan = NULL;
    sa_status status = sa_scan_file("model.safetensors", options, &scan, &error);
    if (status == SA_OK && report != NULL) {
        status = sa_scan_get(scan, report, &error);
        CHECK(report->tensors == 1 && report->conforms == 1);
    }
    if (status == SA_OK && row != NULL) {
        status = sa_scan_dtype_at(scan, 0, row, &error);
        CHECK(row->tensors == 1 && row->dtype == SA_DTYPE_U8);
    }
    sa_scan_free(scan);
    return status;
}

static sa_status cache_with(const sa_aligned_cache_options *options, sa_aligned_cache_report *report) {
    sa_aligned_cache *cache = NULL;
    sa_status status = sa_aligned_cache_write("model.safetensors", "cache", options, &cache, &error);
    if (status == SA_OK && report != NULL) {
        status = sa_aligned_cache_get(cache, report, &error);
        CHECK(report->tensors == 0 && report->file_size > 0);
    }
    sa_aligned_cache_free(cache);
    return status;
}

static sa_status write_sharded(const sa_sharded_options *options, sa_sharded_report *report) {
    const sa_tensor one = tensor();
    sa_sharded_options replace;
    if (options == NULL || options->replace == 0) {
        SA_INIT(&replace);
        if (options != NULL) {
            memcpy(&replace, options, sizeof replace);
        }
        replace.replace = 1;
        options = &replace;
    }
    return sa_write_sharded("bundle", "model", 5, 1000, &one, 1, NULL, 0, options, report, &error);
}

static sa_status bundle_with(const sa_open_options *options, sa_tensor_info *info, sa_stats *stats, sa_view *view) {
    sa_bundle *bundle = NULL;
    sa_status status = sa_bundle_open("bundle", options, &bundle, &error);
    if (status == SA_OK && info != NULL) {
        status = sa_bundle_at(bundle, 0, info, NULL, &error);
        CHECK(info->nbytes == 4);
    }
    if (status == SA_OK && stats != NULL) {
        status = sa_bundle_stats(bundle, stats, &error);
        CHECK(stats->tensors == 1);
    }
    if (status == SA_OK && view != NULL) {
        status = sa_bundle_map(bundle, "t", 1, view, &error);
        sa_view_release(view->owner);
        status = status == SA_OK ? sa_bundle_map_at(bundle, 0, view, &error) : status;
        sa_view_release(view->owner);
    }
    sa_bundle_free(bundle);
    return status;
}

int main(int argc, char **argv) {
    const sa_tensor one = tensor();
    if (argc != 3 || chdir(argv[1]) != 0) {
        return 2;
    }
    library_is_grown = strcmp(argv[2], "grown") == 0;

    WITH_OPTIONS(sa_write_options, v, sa_write_aligned("model.safetensors", &one, 1, NULL, 0, v, NULL, &error));
    WITH(sa_write_report, v, sa_write_aligned("model.safetensors", &one, 1, NULL, 0, NULL, v, &error));
    WITH_OPTIONS(sa_write_options, v, write_in_pieces(v, NULL, NULL));
    WITH(sa_write_report, v, write_in_pieces(NULL, v, NULL));
    WITH(sa_placement, v, write_in_pieces(NULL, NULL, v));
    WITH_OPTIONS(sa_plan_options, v, plan_with(v, NULL));
    WITH(sa_placement, v, plan_with(NULL, v));
    WITH_OPTIONS(sa_open_options, v, open_with(v, NULL, NULL, NULL));
    WITH(sa_tensor_info, v, open_with(NULL, v, NULL, NULL));
    WITH(sa_stats, v, open_with(NULL, NULL, v, NULL));
    WITH(sa_view, v, open_with(NULL, NULL, NULL, v));
    WITH_OPTIONS(sa_scan_options, v, scan_with(v, NULL, NULL));
    WITH(sa_scan_report, v, scan_with(NULL, v, NULL));
    WITH(sa_scan_dtype, v, scan_with(NULL, NULL, v));
    WITH_OPTIONS(sa_repair_options, v, sa_repair_in_place("model.safetensors", v, NULL, &error));
    WITH(sa_repair_report, v, sa_repair_file("model.safetensors", "copy.safetensors", NULL, v, &error));
    WITH_OPTIONS(sa_aligned_cache_options, v, cache_with(v, NULL));
    WITH(sa_aligned_cache_report, v, cache_with(NULL, v));
    WITH_OPTIONS(sa_overlay_options, v, sa_overlay_bundle("cache", "overlay", v, NULL, &error));
    WITH(sa_overlay_report, v, sa_overlay_bundle("cache", "overlay", NULL, v, &error));
    CHECK(mkdir("bundle", 0700) == 0);
    WITH_OPTIONS(sa_sharded_options, v, write_sharded(v, NULL));
    WITH(sa_sharded_report, v, write_sharded(NULL, v));
    WITH_OPTIONS(sa_open_options, v, bundle_with(v, NULL, NULL, NULL));
    WITH(sa_tensor_info, v, bundle_with(NULL, v, NULL, NULL));
    WITH(sa_stats, v, bundle_with(NULL, NULL, v, NULL));
    WITH(sa_view, v, bundle_with(NULL, NULL, NULL, v));
    return check_report();
}
