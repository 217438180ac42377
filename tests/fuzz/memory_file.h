/* tests/fuzz/memory_file.h - a fuzzer's input as the only file on the system.
 *
 * Every path opens it; some reads are short; O_DIRECT is refused, so that reads need no
 * alignment. Messages go through the usual formatting and must be one clean line. */
#ifndef TESTS_FUZZ_MEMORY_FILE_H
#define TESTS_FUZZ_MEMORY_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core.h"

static struct {
    const uint8_t *data;
    size_t n;
} memory_file;

static inline int memory_open(const char *path, int flags, int mode)
{
    (void)path;
    (void)mode;
    if (flags & O_DIRECT) {
        errno = EINVAL;
        return -1;
    }
    return 1000;
}

static inline int memory_close(int fd) { return fd == 1000 ? 0 : -1; }
static inline int64_t memory_size(int fd) { return fd == 1000 ? (int64_t)memory_file.n : -1; }

static inline ssize_t memory_pread(int fd, void *buf, size_t n, int64_t at)
{
    if (fd != 1000 || at < 0)
        abort(); /* never requested */
    size_t left = (size_t)at < memory_file.n ? memory_file.n - (size_t)at : 0;
    n = n < left ? n : left;
    n = n > 1000 ? n - n / 4 : n;
    memcpy(buf, memory_file.data + (left ? at : 0), n);
    return (ssize_t)n;
}

static inline void memory_log(enum kn_level level, const char *line)
{
    (void)level;
    for (; *line; line++)
        if ((unsigned char)*line < 0x20 || *line == 0x7f)
            abort(); /* unescaped bytes of a file in a message */
}

static inline void memory_file_set(const uint8_t *data, size_t n)
{
    static struct kn_io io;
    memory_file.data = data;
    memory_file.n = n;
    io = kn_io_system;
    io.open = memory_open;
    io.close = memory_close;
    io.size = memory_size;
    io.pread = memory_pread;
    kn_io_set(&io);
    kn_log_set(memory_log, KN_LOG_DEBUG);
}

#endif
