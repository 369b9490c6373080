/*
 * Checks for the C and C++ tests. A failed check prints its place and the test continues. Checks are counted and may be
 * made on any thread.
 *
 * A program ends with `return check_report();`: it fails if a check failed or if none was made.
 */

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>

static int check_made;
static int check_failed;

static inline int check_that(int holds, const char *text, const char *file, int line) {
    __atomic_fetch_add(&check_made, 1, __ATOMIC_RELAXED);
    if (!holds) {
        __atomic_fetch_add(&check_failed, 1, __ATOMIC_RELAXED);
        fprintf(stderr, "%s:%d: check failed: %s\n", file, line, text);
    }
    return holds;
}

#define CHECK(condition) check_that((condition) ? 1 : 0, #condition, __FILE__, __LINE__)

/* Returns from the function if the check fails. */
#define REQUIRE(condition)       \
    do {                         \
        if (!CHECK(condition)) { \
            return;              \
        }                        \
    } while (0)

static inline int check_report(void) {
    const int made = __atomic_load_n(&check_made, __ATOMIC_RELAXED);
    const int failed = __atomic_load_n(&check_failed, __ATOMIC_RELAXED);
    printf("%d checks, %d failed\n", made, failed);
    return made == 0 || failed != 0;
}

#ifdef __cplusplus
#include <sstream>
#include <string>

template <typename Left, typename Right>
bool check_equal(const Left &left, const Right &right, const char *text, const char *file, int line) {
    const bool equal = left == right;
    std::string shown;
    if (!equal) {
        std::ostringstream out;
        out << text << ": " << left << " and " << right;
        shown = out.str();
    }
    return check_that(equal, shown.c_str(), file, line) != 0;
}

#define CHECK_EQ(left, right) check_equal((left), (right), #left " == " #right, __FILE__, __LINE__)
#endif

#endif
