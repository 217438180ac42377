/* tests/faults.h - system calls that fail at a chosen call, and counts of open resources, to find leaks.
 *
 *     faults_reset();                                  forwards to the system, counts and logs
 *     faults_at(FAULT_READ, 7, FAULT_ERROR, EIO);      the 7th read fails
 *     ...                                              run the tested code
 *     assert_true(faults_clean());                     nothing is open, mapped or allocated
 *     faults_off();
 *
 * Each kind of call has its own count, and FAULT_ANY counts all. A reader thread may make any
 * of them, so counters are atomic and the log has a lock; the number of a call may depend on
 * threads, the result may not. O_DIRECT is removed from a descriptor and its rules are checked
 * here instead (aligned buffer, offset and length, or EINVAL), so that the direct path runs on
 * every file system and can be refused on all. A reset does not change faults.in_pieces (reads
 * and writes are always short) and faults.most. */
#ifndef TESTS_FAULTS_H
#define TESTS_FAULTS_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core.h"

enum fault_kind {
    FAULT_ALLOC,
    FAULT_MAP,
    FAULT_OPEN,
    FAULT_SIZE,
    FAULT_STAT,
    FAULT_READ,
    FAULT_WRITE,
    FAULT_FORGET,
    FAULT_SYNC,
    FAULT_RESIZE,
    FAULT_RENAME,
    FAULT_ANY,
    FAULT_KINDS
};

enum fault_way {
    FAULT_NONE,
    FAULT_ERROR, /* NULL or -1, with errno */
    FAULT_LASTS, /* the n-th call and all after it */
    FAULT_OFTEN, /* every n-th call */
    FAULT_SHORT, /* a read gives one byte, a direct read 4095 */
    FAULT_EMPTY  /* a read gives 0 bytes: the end of the file */
};

enum fault_direct { DIRECT_WORKS, DIRECT_NO_OPEN, DIRECT_NO_READ, DIRECT_SHORT, DIRECT_ODD };

#define FAULTS_FD    1024
#define FAULTS_ALIGN 512u

static struct {
    _Atomic enum fault_kind kind;
    _Atomic enum fault_way way;
    enum fault_direct direct;
    atomic_long at;
    atomic_int error;
    atomic_long calls[FAULT_KINDS];
    atomic_long n_alloc, n_map, n_open, n_direct; /* outstanding; n_direct: successful direct reads */
    long n_own;                                   /* allocations of the test, which may stay (faults_own) */
    atomic_bool struck;                           /* the fault has happened */
    atomic_bool is_direct[FAULTS_FD];
    bool in_pieces;
    pthread_mutex_t lock;
    enum kn_level most;          /* log lines above this level are ignored */
    char line[1024], last[1024]; /* the first and the last line, and their number */
    int n_line;
} faults = { .lock = PTHREAD_MUTEX_INITIALIZER, .most = KN_LOG_WARN };

static inline enum fault_way faults_count(enum fault_kind kind)
{
    long nth = atomic_fetch_add(&faults.calls[kind], 1) + 1;
    long any = atomic_fetch_add(&faults.calls[FAULT_ANY], 1) + 1;
    enum fault_way way = faults.way;
    long at = faults.at;
    if (way == FAULT_NONE || (faults.kind != kind && faults.kind != FAULT_ANY))
        return FAULT_NONE;
    if (faults.kind == FAULT_ANY)
        nth = any;
    if (way == FAULT_LASTS ? nth < at : way == FAULT_OFTEN ? nth % at != 0 : nth != at)
        return FAULT_NONE;
    faults.struck = true;
    errno = faults.error;
    return way == FAULT_LASTS || way == FAULT_OFTEN ? FAULT_ERROR : way;
}

static inline void *faults_alloc(size_t bytes)
{
    if (faults_count(FAULT_ALLOC))
        return NULL;
    void *p = kn_io_system.alloc(bytes);
    faults.n_alloc += p != NULL;
    return p;
}

static inline void *faults_realloc(void *p, size_t bytes)
{
    if (faults_count(FAULT_ALLOC))
        return NULL;
    void *grown = kn_io_system.realloc(p, bytes);
    faults.n_alloc += (grown != NULL) - (p && (grown || !bytes));
    return grown;
}

static inline void faults_free(void *p)
{
    faults.n_alloc -= p != NULL;
    kn_io_system.free(p);
}

static inline void *faults_map(size_t bytes, int node)
{
    if (faults_count(FAULT_MAP))
        return NULL;
    void *p = kn_io_system.map(bytes, node);
    faults.n_map += p ? (long)bytes : 0;
    return p;
}

static inline void faults_unmap(void *p, size_t bytes)
{
    faults.n_map -= (long)bytes;
    kn_io_system.unmap(p, bytes);
}

static inline int faults_open(const char *path, int flags, int mode)
{
    if (faults_count(FAULT_OPEN))
        return -1;
    bool direct = flags & O_DIRECT;
    if (direct && faults.direct == DIRECT_NO_OPEN) {
        errno = EINVAL;
        return -1;
    }
    int fd = kn_io_system.open(path, flags & ~O_DIRECT, mode);
    faults.n_open += fd >= 0;
    if (fd >= 0 && fd < FAULTS_FD)
        faults.is_direct[fd] = direct;
    return fd;
}

static inline int faults_close(int fd)
{
    faults.n_open--;
    return kn_io_system.close(fd);
}

static inline int64_t faults_size(int fd) { return faults_count(FAULT_SIZE) ? -1 : kn_io_system.size(fd); }

static inline int faults_stat(int fd, struct kn_stat *out)
{
    return faults_count(FAULT_STAT) ? -1 : kn_io_system.stat(fd, out);
}

static inline int faults_forget(int fd, int64_t at, int64_t bytes)
{
    return faults_count(FAULT_FORGET) ? -1 : kn_io_system.forget(fd, at, bytes);
}

static inline ssize_t faults_pread_direct(int fd, void *buf, size_t bytes, int64_t at)
{
    if (faults.direct == DIRECT_NO_READ || (uintptr_t)buf % FAULTS_ALIGN || bytes % FAULTS_ALIGN || at % FAULTS_ALIGN) {
        errno = EINVAL;
        return -1;
    }
    if (faults.direct == DIRECT_SHORT && bytes > 8192) /* whole pages, but short */
        bytes = 4096 + bytes / 2 / 4096 * 4096;
    if (faults.direct == DIRECT_ODD && bytes > 4096) /* as some file systems do */
        bytes -= 1000;
    faults.n_direct++;
    return kn_io_system.pread(fd, buf, bytes, at);
}

static inline ssize_t faults_pread(int fd, void *buf, size_t bytes, int64_t at)
{
    bool direct = fd < FAULTS_FD && faults.is_direct[fd];
    switch (faults_count(FAULT_READ)) {
    case FAULT_NONE:
        break;
    case FAULT_SHORT:
        return kn_io_system.pread(fd, buf, direct && bytes > 4095 ? 4095 : 1, at);
    case FAULT_EMPTY:
        return 0;
    default:
        return -1;
    }
    return direct ? faults_pread_direct(fd, buf, bytes, at)
                  : kn_io_system.pread(fd, buf, faults.in_pieces && bytes > 4092 ? bytes - bytes / 3 : bytes, at);
}

static inline ssize_t faults_pwrite(int fd, const void *buf, size_t bytes, int64_t at)
{
    size_t n = faults.in_pieces && bytes > 1 ? bytes - bytes / 3 : bytes;
    return faults_count(FAULT_WRITE) ? -1 : kn_io_system.pwrite(fd, buf, n, at);
}

static inline int faults_sync(int fd) { return faults_count(FAULT_SYNC) ? -1 : kn_io_system.sync(fd); }

static inline int faults_resize(int fd, int64_t bytes)
{
    return faults_count(FAULT_RESIZE) ? -1 : kn_io_system.resize(fd, bytes);
}

static inline int faults_rename(const char *from, const char *to)
{
    return faults_count(FAULT_RENAME) ? -1 : kn_io_system.rename(from, to);
}

static inline void faults_line(enum kn_level level, const char *line)
{
    if (level > faults.most)
        return;
    pthread_mutex_lock(&faults.lock);
    if (faults.n_line++ == 0)
        snprintf(faults.line, sizeof faults.line, "%s", line);
    snprintf(faults.last, sizeof faults.last, "%s", line);
    pthread_mutex_unlock(&faults.lock);
}

/* Clears the fault, the counts of calls and the log; outstanding resources stay counted. */
static inline void faults_reset(void)
{
    static struct kn_io io;
    io = kn_io_system;
    io.alloc = faults_alloc;
    io.realloc = faults_realloc;
    io.free = faults_free;
    io.map = faults_map;
    io.unmap = faults_unmap;
    io.open = faults_open;
    io.close = faults_close;
    io.size = faults_size;
    io.stat = faults_stat;
    io.forget = faults_forget;
    io.pread = faults_pread;
    io.pwrite = faults_pwrite;
    io.sync = faults_sync;
    io.resize = faults_resize;
    io.rename = faults_rename;
    kn_io_set(&io);
    kn_log_set(faults_line, KN_LOG_INFO);
    faults.way = FAULT_NONE;
    faults.direct = DIRECT_WORKS;
    faults.struck = false;
    faults.n_direct = 0;
    for (int i = 0; i < FAULT_KINDS; i++)
        faults.calls[i] = 0;
    faults.line[0] = '\0';
    faults.n_line = 0;
}

/* Like faults_at() after a reset, but while threads run. */
static inline void faults_now(enum fault_kind kind, long at, enum fault_way way, int error)
{
    faults.kind = kind;
    faults.at = at;
    faults.error = error;
    faults.way = way;
}

static inline void faults_at(enum fault_kind kind, long at, enum fault_way way, int error)
{
    faults_reset();
    faults_now(kind, at, way, error);
}

/* The next calls are counted from 1 again, and one of them fails; for use while threads run. */
static inline void faults_again(enum fault_kind kind, long at, enum fault_way way, int error)
{
    faults.way = FAULT_NONE;
    faults.struck = false;
    for (int i = 0; i < FAULT_KINDS; i++)
        faults.calls[i] = 0;
    pthread_mutex_lock(&faults.lock);
    faults.line[0] = 0;
    faults.n_line = 0;
    pthread_mutex_unlock(&faults.lock);
    faults_now(kind, at, way, error);
}

/* The test itself owns all allocations so far. */
static inline void faults_own(void) { faults.n_own = faults.n_alloc; }

static inline bool faults_clean(void)
{
    return faults.n_alloc == faults.n_own && faults.n_map == 0 && faults.n_open == 0;
}

/* Only collects the log: for use while threads run, when system calls must not be replaced. */
static inline void faults_listen(void)
{
    faults.line[0] = '\0';
    faults.n_line = 0;
    kn_log_set(faults_line, KN_LOG_INFO);
}

static inline void faults_listen_off(void) { kn_log_set(NULL, KN_LOG_INFO); }

static inline void faults_off(void)
{
    kn_io_set(NULL);
    kn_log_set(NULL, KN_LOG_INFO);
}

#endif
