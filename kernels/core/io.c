/* struct kn_io of the operating system, and the file calls above it.
 *
 * kn_io_system is the table in use unless a test sets another: malloc, mmap with huge pages, nodes as libnuma reports
 * them, and system calls.  The kn_file_* calls retry after EINTR and short transfers, and log which path failed and
 * why. */
#include "kernels/core.h"

#include <errno.h>
#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <linux/fs.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* Binds by preference, not strictly: when the node is full, pages come from the next one. */
static void system_bind(void *p, size_t bytes, int node)
{
    unsigned long mask[16] = { 0 };
    if (node < 0 || node >= (int)(sizeof mask * 8))
        return;
    mask[node / 64] = 1ul << node % 64;
    (void)mbind(p, bytes, MPOL_PREFERRED, mask, sizeof mask * 8 + 1, 0);
}

/* A node may have no memory, or a cpuset may exclude its memory: node[] of its CPUs is then the nearest node with
 * memory. */
static void system_cpu_nodes(int *node, int n_cpu)
{
    int with[64], n = 0;
    struct bitmask *may = numa_available() < 0 ? NULL : numa_get_mems_allowed();
    for (int i = 0; may && i <= numa_max_node() && n < 64; i++)
        if (numa_bitmask_isbitset(may, (unsigned)i) && numa_node_size64(i, NULL) > 0)
            with[n++] = i;
    if (may)
        numa_bitmask_free(may);
    for (int cpu = 0; cpu < n_cpu; cpu++) {
        int own = n > 1 ? numa_node_of_cpu(cpu) : -1, best = 0;
        for (int i = 1; i < n && own >= 0; i++)
            if (numa_distance(own, with[i]) < numa_distance(own, with[best]))
                best = i;
        node[cpu] = n > 1 ? with[best] : -1;
    }
}

/* The address is aligned to a huge page if `bytes` is at least one. */
static void *system_map(size_t bytes, int node)
{
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *p = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (align) {
        uint8_t *start = (uint8_t *)kn_align_up((uintptr_t)p, HUGE_PAGE);
        size_t head = (size_t)(start - p), page = (size_t)sysconf(_SC_PAGESIZE);
        size_t end = kn_align_up(head + bytes, page);
        if (head)
            munmap(p, head);
        if (end < bytes + align)
            munmap(p + end, bytes + align - end);
        p = start;
        madvise(p, bytes, MADV_HUGEPAGE);
    }
    system_bind(p, bytes, node);
    return p;
}

/* The first touch of a page makes the kernel clear it; this call clears all of them.  No effect before Linux 5.14. */
static void system_touch(void *p, size_t bytes) { (void)madvise(p, bytes, MADV_POPULATE_WRITE); }

static void system_sparse(void *p, size_t bytes) { (void)madvise(p, bytes, MADV_NOHUGEPAGE); }

static void system_drop(void *p, size_t bytes) { (void)madvise(p, bytes, MADV_DONTNEED); }

static void system_unmap(void *p, size_t bytes) { munmap(p, bytes); }
static int system_open(const char *path, int flags, int mode) { return open(path, flags, mode); }

static int64_t system_size(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -1;
    if (S_ISREG(st.st_mode))
        return st.st_size;
    uint64_t bytes;
    if (S_ISBLK(st.st_mode) && ioctl(fd, BLKGETSIZE64, &bytes) == 0 && bytes <= INT64_MAX)
        return (int64_t)bytes;
    errno = S_ISDIR(st.st_mode) ? EISDIR : ESPIPE;
    return -1;
}

static int system_stat(int fd, struct kn_stat *out)
{
    struct statx x;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_MTIME | STATX_CTIME | STATX_DIOALIGN, &x) < 0)
        return -1;
    bool known = x.stx_mask & STATX_DIOALIGN;
    *out = (struct kn_stat){ .device = (uint64_t)x.stx_dev_major << 32 | x.stx_dev_minor,
                             .inode = x.stx_ino,
                             .direct_align = !known                                         ? 0
                                             : x.stx_dio_mem_align > x.stx_dio_offset_align ? x.stx_dio_mem_align
                                                                                            : x.stx_dio_offset_align,
                             .mtime_ns = x.stx_mtime.tv_sec * 1000000000 + x.stx_mtime.tv_nsec,
                             .ctime_ns = x.stx_ctime.tv_sec * 1000000000 + x.stx_ctime.tv_nsec };
    return 0;
}

static int64_t system_room(int fd)
{
    struct statvfs st;
    return fstatvfs(fd, &st) < 0 ? -1 : (int64_t)(st.f_bavail * st.f_frsize);
}

static ssize_t system_pread(int fd, void *buf, size_t n, int64_t at) { return pread(fd, buf, n, at); }
static ssize_t system_pwrite(int fd, const void *buf, size_t n, int64_t at) { return pwrite(fd, buf, n, at); }

static int system_forget(int fd, int64_t at, int64_t n) { return posix_fadvise(fd, at, n, POSIX_FADV_DONTNEED); }
static int system_resize(int fd, int64_t bytes) { return ftruncate(fd, bytes); }

static uint64_t system_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const struct kn_io kn_io_system = {
    .alloc = malloc,
    .realloc = realloc,
    .free = free,
    .map = system_map,
    .unmap = system_unmap,
    .bind = system_bind,
    .cpu_nodes = system_cpu_nodes,
    .open = system_open,
    .close = close,
    .size = system_size,
    .stat = system_stat,
    .room = system_room,
    .pread = system_pread,
    .pwrite = system_pwrite,
    .forget = system_forget,
    .sync = fsync,
    .resize = system_resize,
    .rename = rename,
    .unlink = unlink,
    .now_ns = system_now_ns,
    .touch = system_touch,
    .sparse = system_sparse,
    .drop = system_drop,
};

static const struct kn_io *seam = &kn_io_system;

void kn_io_set(const struct kn_io *io) { seam = io ? io : &kn_io_system; }
const struct kn_io *kn_io(void) { return seam; }

/* ---- files ------------------------------------------------------------------------------------- */

int kn_file_open(int *fd, const char *path, int flags)
{
    int got = seam->open(path, flags | O_CLOEXEC, 0644);
    if (got < 0)
        return kn_fail(errno == ENOENT ? KN_ENOENT : KN_EIO, "%s: %s", path, strerror(errno));
    *fd = got;
    return 0;
}

int kn_file_open_read(int *fd, const char *path) { return kn_file_open(fd, path, O_RDONLY | O_NONBLOCK); }

void kn_file_close(int fd)
{
    if (fd >= 0)
        seam->close(fd);
}

int kn_file_refuse_folder(const char *path)
{
    int fd = seam->open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    kn_file_close(fd);
    return kn_fail(KN_EINVAL, "%s: it is a folder; name a file to write", path);
}

int kn_file_refuse_target(const char *path)
{
    if (kn_file_refuse_folder(path))
        return KN_EINVAL;
    int fd = seam->open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    bool plain = seam->size(fd) >= 0;
    kn_file_close(fd);
    return plain ? 0
                 : kn_fail(KN_EINVAL,
                           "%s: this is a link or a device, which a file would replace; name another "
                           "file to write",
                           path);
}

int kn_file_refuse_other(const char *path, const char *magic, const char *what)
{
    char begins[4];
    if (kn_file_refuse_target(path))
        return KN_EINVAL;
    int fd = seam->open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    ssize_t n = seam->pread(fd, begins, sizeof begins, 0);
    kn_file_close(fd);
    if (n == 0 || (n == sizeof begins && !memcmp(begins, magic, sizeof begins)))
        return 0;
    return kn_fail(KN_EINVAL, "%s: exists and is not a %s: remove it, or name another file to write", path, what);
}

int kn_file_read(int fd, const char *path, void *buf, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = seam->pread(fd, (uint8_t *)buf + done, bytes - done, (int64_t)(offset + done));
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return kn_fail(KN_EIO, "%s: reading %zu bytes at %llu: %s", path, bytes, (unsigned long long)offset,
                           strerror(errno));
        if (n == 0)
            return kn_fail_short(path, offset + done, bytes - done);
        done += (size_t)n;
    }
    return 0;
}

int kn_file_write(int fd, const char *path, const void *buf, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = seam->pwrite(fd, (const uint8_t *)buf + done, bytes - done, (int64_t)(offset + done));
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return kn_fail(KN_EIO, "%s: writing %zu bytes at %llu: %s", path, bytes, (unsigned long long)offset,
                           n < 0 ? strerror(errno) : "nothing written");
        done += (size_t)n;
    }
    return 0;
}

void kn_file_sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    char *folder = kn_alloc(n + 2);
    int fd = -1;
    if (folder) {
        memcpy(folder, path, n);
        memcpy(folder + n, ".", 2);
        fd = seam->open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    }
    if (fd >= 0)
        (void)seam->sync(fd); /* some file systems do not support this, nor need it */
    kn_file_close(fd);
    kn_free(folder);
}

int kn_file_publish(int fd, const char *part, const char *path)
{
    if (seam->sync(fd) < 0)
        return kn_fail(KN_EIO, "%s: it could not be synced to the disk: %s", path, strerror(errno));
    if (seam->rename(part, path) < 0)
        return kn_fail(KN_EIO, "%s: %s could not be renamed to it: %s", path, part, strerror(errno));
    kn_file_sync_folder(path);
    return 0;
}

/* ---- new files ---------------------------------------------------------------------------------- */

/* 1: path is the open file, not a link to it; 0: it is not; -1: unknown. */
static int is_file_at(const char *path, int fd)
{
    struct kn_stat a, b;
    int other = seam->open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (other < 0)
        return errno == ENOENT ? 0 : -1;
    bool known = seam->stat(fd, &a) == 0 && seam->stat(other, &b) == 0;
    kn_file_close(other);
    return !known ? -1 : a.device == b.device && a.inode == b.inode;
}

/* Reports a failure, for an optional file at debug level only. */
__attribute__((format(printf, 3, 4))) static int fail(const struct kn_new_file *f, int code, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (!f->optional)
        return kn_fail(code, "%s", line);
    kn_say(KN_LOG_DEBUG, "%s", line);
    return code;
}

#define TRIES 8 /* other processes may remove or replace the part file between two calls */
#define AGAIN 1

/* Opens the part file of a killed process, to find out whether its lock is free. */
static int open_left(struct kn_new_file *f)
{
    f->fd = seam->open(f->part, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (f->fd < 0 && errno == ENOENT)
        return AGAIN;
    if (f->fd >= 0 && seam->size(f->fd) >= 0)
        return 0;
    return fail(f, KN_EIO, "%s: %s is in the way (%s): remove it", f->path, f->part,
                f->fd < 0 ? strerror(errno) : "not a plain file");
}

/* Creates the part file and locks it.  An existing one is removed by the process that gets its lock and finds it still
 * under its name; then it is created by the next try.  Returns 0, AGAIN, or KN_E*. */
static int create_part(struct kn_new_file *f, int mode)
{
    f->fd = seam->open(f->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    bool left = f->fd < 0 && errno == EEXIST;
    if (f->fd < 0 && !left)
        return fail(f, errno == ENOENT ? KN_ENOENT : KN_EIO, "%s: cannot be written: %s", f->path, strerror(errno));
    int error = left ? open_left(f) : 0;
    if (error)
        return error;
    if (flock(f->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return fail(f, KN_EINVAL, "%s: another process is writing it", f->path);
    int same = is_file_at(f->part, f->fd);
    if (same == 1 && !left)
        return 0;
    if (left ? same == 1 : same < 0)
        seam->unlink(f->part);
    return same < 0 ? fail(f, KN_EIO, "%s: the system does not say whether %s is being written", f->path, f->part)
                    : AGAIN;
}

static int open_new(struct kn_new_file *f, const char *path, int mode, bool optional)
{
    static const char end[] = ".spillway.part";
    size_t n = strlen(path);
    *f = (struct kn_new_file){
        .fd = -1, .optional = optional, .path = kn_strdup(path), .part = kn_alloc(n + sizeof end)
    };
    int error = f->path && f->part ? AGAIN : fail(f, KN_ENOMEM, "%s: no memory to write it", path);
    if (error == AGAIN) {
        memcpy(f->part, path, n);
        memcpy(f->part + n, end, sizeof end);
    }
    for (int i = 0; i < TRIES && error == AGAIN; i++)
        if ((error = create_part(f, mode))) {
            kn_file_close(f->fd);
            f->fd = -1;
        }
    if (error == AGAIN)
        error = fail(f, KN_EIO, "%s: other processes replace %s all the time", path, f->part);
    if (error)
        kn_new_file_close(f);
    return error;
}

int kn_new_file_open(struct kn_new_file *f, const char *path, int mode) { return open_new(f, path, mode, false); }
int kn_new_file_try(struct kn_new_file *f, const char *path, int mode) { return open_new(f, path, mode, true); }

/* Fails if the part file is no longer the one that was written: a rename would publish another's bytes. */
static int check_part(const struct kn_new_file *f)
{
    return is_file_at(f->part, f->fd) == 1
               ? 0
               : fail(f, KN_EIO, "%s: %s was removed or replaced while it was written", f->path, f->part);
}

static int renamed(struct kn_new_file *f, int error)
{
    if (error)
        return error;
    kn_free(f->part);
    f->part = NULL;
    return 0;
}

int kn_new_file_commit(struct kn_new_file *f)
{
    int error = check_part(f);
    return renamed(f, error ? error : kn_file_publish(f->fd, f->part, f->path));
}

int kn_new_file_replace(struct kn_new_file *f)
{
    int error = check_part(f);
    if (!error && seam->rename(f->part, f->path) < 0)
        error = fail(f, KN_EIO, "%s: %s could not be renamed to it: %s", f->path, f->part, strerror(errno));
    return renamed(f, error);
}

void kn_new_file_close(struct kn_new_file *f)
{
    if (f->part && f->fd >= 0 && is_file_at(f->part, f->fd) != 0)
        seam->unlink(f->part);
    kn_file_close(f->fd);
    kn_free(f->part);
    kn_free(f->path);
    *f = (struct kn_new_file){ .fd = -1 };
}

int kn_file_save(const char *path, int mode, const void *data, size_t bytes)
{
    struct kn_new_file f;
    int error = kn_new_file_open(&f, path, mode);
    if (error)
        return error;
    if (!(error = kn_file_write(f.fd, path, data, bytes, 0)))
        error = kn_new_file_commit(&f);
    kn_new_file_close(&f);
    return error;
}

void kn_file_save_optional(const char *path, int mode, const void *data, size_t bytes)
{
    struct kn_new_file f;
    if (!kn_new_file_try(&f, path, mode) && seam->pwrite(f.fd, data, bytes, 0) == (ssize_t)bytes)
        (void)kn_new_file_replace(&f);
    kn_new_file_close(&f);
}

int kn_fail_size(const char *path)
{
    if (errno == ESPIPE)
        return kn_fail(KN_EINVAL, "%s: neither a file nor a folder, but a pipe or a device", path);
    return kn_fail(KN_EIO, "%s: cannot find out its size: %s", path, strerror(errno));
}

int kn_fail_short(const char *path, uint64_t end, uint64_t missing)
{
    return kn_fail(KN_ESHORT, "%s: the file ends at byte %llu, %llu bytes too early: an incomplete copy?", path,
                   (unsigned long long)end, (unsigned long long)missing);
}
