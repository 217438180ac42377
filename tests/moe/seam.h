/* tests/moe/seam.h - the machine made to fail on request, and the log made to be read.
 *
 * seam_set(what, n) makes the n-th call of a kind fail (0: none; SEAM_SHORT: the n-th read, and all
 * after it, find the end of the file), and counts the calls of that kind.  What is open or
 * allocated is counted too, so that a test can see that nothing was left behind. */
#ifndef TESTS_MOE_SEAM_H
#define TESTS_MOE_SEAM_H

#include <errno.h>
#include <string.h>

#include "kernels/core.h"

enum seam_kind {
    SEAM_NONE, SEAM_ALLOC, SEAM_OPEN, SEAM_SIZE, SEAM_READ, SEAM_SHORT, SEAM_WRITE, SEAM_SYNC,
    SEAM_RENAME,
};

static struct {
    enum seam_kind kind;
    long fail_at, calls;
    long n_alloc, n_open, n_read;
    char line[1024];                        /* the last thing said, and how many there were */
    int n_line;
} seam;

static inline bool seam_fails(enum seam_kind kind)
{
    bool counts = seam.kind == kind;
    if (counts && ++seam.calls == seam.fail_at) {
        errno = kind == SEAM_ALLOC ? ENOMEM : kind == SEAM_WRITE ? ENOSPC : EIO;
        return true;
    }
    return false;
}

static inline void *seam_alloc(size_t n)
{
    if (seam_fails(SEAM_ALLOC))
        return NULL;
    void *p = kn_io_system.alloc(n);
    seam.n_alloc += p != NULL;
    return p;
}

static inline void seam_free(void *p)
{
    seam.n_alloc -= p != NULL;
    kn_io_system.free(p);
}

static inline int seam_open(const char *path, int flags, int mode)
{
    if (seam_fails(SEAM_OPEN))
        return -1;
    int fd = kn_io_system.open(path, flags, mode);
    seam.n_open += fd >= 0;
    return fd;
}

static inline int seam_close(int fd)
{
    seam.n_open--;
    return kn_io_system.close(fd);
}

static inline int64_t seam_size(int fd)
{
    return seam_fails(SEAM_SIZE) ? -1 : kn_io_system.size(fd);
}

static inline ssize_t seam_pread(int fd, void *buf, size_t n, int64_t at)
{
    seam.n_read++;
    if (seam_fails(SEAM_READ))
        return -1;
    if (seam.kind == SEAM_SHORT && ++seam.calls >= seam.fail_at)
        return 0;
    return kn_io_system.pread(fd, buf, n < 4093 ? n : n - n / 3, at);      /* never all at once */
}

static inline ssize_t seam_pwrite(int fd, const void *buf, size_t n, int64_t at)
{
    return seam_fails(SEAM_WRITE) ? -1 : kn_io_system.pwrite(fd, buf, n > 1 ? n - n / 3 : n, at);
}

static inline int seam_sync(int fd) { return seam_fails(SEAM_SYNC) ? -1 : kn_io_system.sync(fd); }

static inline int seam_rename(const char *from, const char *to)
{
    return seam_fails(SEAM_RENAME) ? -1 : kn_io_system.rename(from, to);
}

static inline void seam_line(enum kn_level level, const char *line)
{
    (void)level;
    snprintf(seam.line, sizeof seam.line, "%s", line);
    seam.n_line++;
}

static inline void seam_set(enum seam_kind kind, long fail_at)
{
    static struct kn_io io;
    io = kn_io_system;
    io.alloc = seam_alloc;
    io.free = seam_free;
    io.open = seam_open;
    io.close = seam_close;
    io.size = seam_size;
    io.pread = seam_pread;
    io.pwrite = seam_pwrite;
    io.sync = seam_sync;
    io.rename = seam_rename;
    kn_io_set(&io);
    kn_log_set(seam_line, KN_LOG_INFO);
    seam.kind = kind;
    seam.fail_at = fail_at;
    seam.calls = seam.n_read = 0;
    seam.line[0] = '\0';
    seam.n_line = 0;
}

static inline bool seam_is_clean(void) { return seam.n_alloc == 0 && seam.n_open == 0; }

#endif
