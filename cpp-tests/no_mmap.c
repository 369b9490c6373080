/*
 * Preloaded, it makes mmap fail as on a file system without mmap, for files that end in .safetensors. Mappings of the
 * dynamic loader are not affected.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int refused(int fd) {
    static const char ending[] = ".safetensors";
    char link[32];
    char path[4096];
    ssize_t length;
    if (fd < 0) {
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path);
    return length >= (ssize_t)sizeof ending &&
           memcmp(path + length - (sizeof ending - 1), ending, sizeof ending - 1) == 0;
}

static void *map(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    if (refused(fd)) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    return map(address, length, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    return map(address, length, protection, flags, fd, offset);
}
