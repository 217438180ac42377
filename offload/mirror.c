/* A second copy of the model's files on another drive: finds it and checks that it is a copy.
 *
 * For each file of the model it looks in the mirror's folder for a file of the same name.  The copy may be the
 * whole file or only its beginning; in this case only the beginning is read from it.  Some pages are compared:
 * the first, the last, and others at pseudo-random positions.  A file that is no copy is not used, and this is
 * logged.
 *
 * One mirror is shared by all readers of the model's files.  After the first failure no reader uses the mirror:
 * this is logged once, and all reads go to the first copy.  reader.c does the reading. */
#include "offload/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define N_PAGE 64 /* pages compared per file */

struct copy {
    int fd;
    char *path;
    uint64_t bytes;
}; /* fd -1: no copy */

struct off_mirror {
    struct copy *copy; /* [n_file] */
    int n_file;
    atomic_bool gone;
    atomic_uint_fast64_t read_bytes;
};

/* ---- checks ------------------------------------------------------------------------------------------ */

/* NULL, or the reason that the first `bytes` of fd are no copy of those of `first`. */
static const char *compare(int fd, int first, uint64_t bytes)
{
    uint8_t page[2][OFF_PAGE];
    uint64_t n_page = (bytes + OFF_PAGE - 1) / OFF_PAGE;
    for (uint64_t i = 0; i < N_PAGE; i++) {
        uint64_t at = (i == 0 ? 0 : i == 1 ? n_page - 1 : kn_mix(i) % n_page) * OFF_PAGE;
        size_t n = bytes - at < OFF_PAGE ? (size_t)(bytes - at) : OFF_PAGE;
        if (!off_read_all(first, page[0], n, at) || !off_read_all(fd, page[1], n, at))
            return "it cannot be compared with the first copy";
        if (memcmp(page[0], page[1], n))
            return "it is not a copy: it has other bytes than the first copy";
    }
    return NULL;
}

static const char *judge(struct copy *c, int first)
{
    struct kn_stat x, y;
    int64_t bytes = kn_io()->size(c->fd), whole = kn_io()->size(first);
    if (bytes < 0 || whole < 0 || kn_io()->stat(c->fd, &x) < 0 || kn_io()->stat(first, &y) < 0)
        return strerror(errno);
    if (x.device == y.device && x.inode == y.inode)
        return "it is the first copy itself";
    if (bytes > whole)
        return "it is not a copy: it is longer than the first copy";
    c->bytes = bytes == whole ? (uint64_t)bytes : (uint64_t)bytes & ~(uint64_t)(OFF_PAGE - 1);
    return c->bytes ? compare(c->fd, first, c->bytes) : "it is empty";
}

/* ---- opening ----------------------------------------------------------------------------------------- */

/* Opens dir's copy of path, which is open as `first`; c->fd stays -1 if there is no usable copy.  Fails only with
 * KN_ENOMEM. */
static int open_copy(struct copy *c, const char *dir, const char *path, int first)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t bytes = strlen(dir) + strlen(name) + 2;
    c->path = kn_alloc(bytes);
    if (!c->path)
        return kn_fail(KN_ENOMEM, "no memory for the name of a copy of %s", path);
    snprintf(c->path, bytes, "%s/%s", dir, name);
    c->fd = kn_io()->open(c->path, O_RDONLY | O_CLOEXEC, 0);
    if (c->fd < 0 && errno == ENOENT)
        return 0;
    const char *why = c->fd < 0 ? strerror(errno) : judge(c, first);
    if (!why)
        return 0;
    kn_say(KN_LOG_WARN, "%s is not used: %s", c->path, why);
    kn_file_close(c->fd);
    c->fd = -1;
    return 0;
}

static int open_pack_copy(struct copy *c, const char *dir, const char *pack_path)
{
    int first = kn_io()->open(pack_path, O_RDONLY | O_CLOEXEC, 0);
    int error = first < 0 ? 0 : open_copy(c, dir, pack_path, first);
    if (first >= 0 && !error && c->fd < 0)
        kn_say(KN_LOG_INFO, "%s has no copy of %s: experts are read from the first copy only", dir, pack_path);
    kn_file_close(first);
    return error;
}

int off_mirror_open(struct off_mirror **out, const char *dir, const struct off_files *files, const char *pack_path)
{
    struct off_mirror *m = kn_calloc(1, sizeof *m);
    size_t n = (size_t)files->n_file + 1;
    int error = 0, n_copy = 0;
    if (!m || !(m->copy = kn_calloc(n, sizeof *m->copy))) {
        kn_free(m);
        return kn_fail(KN_ENOMEM, "no memory for copies of %zu files", n);
    }
    m->n_file = (int)n;
    for (size_t i = 0; i < n; i++)
        m->copy[i].fd = -1;
    for (int i = 0; i < files->n_file && !error; i++)
        error = open_copy(&m->copy[i], dir, files->path[i], files->fd[i]);
    if (!error && pack_path)
        error = open_pack_copy(&m->copy[n - 1], dir, pack_path);
    if (error) {
        off_mirror_close(m);
        return error;
    }
    for (size_t i = 0; i < n; i++)
        n_copy += m->copy[i].fd >= 0;
    if (!n_copy)
        kn_say(KN_LOG_WARN, "%s has no usable copy of %s: all files are read from the first copy", dir, files->path[0]);
    *out = m;
    return 0;
}

void off_mirror_close(struct off_mirror *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_file; i++) {
        kn_file_close(m->copy[i].fd);
        kn_free(m->copy[i].path);
    }
    kn_free(m->copy);
    kn_free(m);
}

/* ---- use --------------------------------------------------------------------------------------------- */

int off_mirror_fd(const struct off_mirror *m, int file) { return m ? m->copy[file].fd : -1; }
const char *off_mirror_path(const struct off_mirror *m, int file) { return m->copy[file].path; }
uint64_t off_mirror_bytes(const struct off_mirror *m, int file) { return m ? m->copy[file].bytes : 0; }
bool off_mirror_lives(const struct off_mirror *m) { return m && !atomic_load_explicit(&m->gone, memory_order_relaxed); }

void off_mirror_drop(struct off_mirror *m, int file, const char *why)
{
    if (!atomic_exchange(&m->gone, true))
        kn_say(KN_LOG_WARN, "%s: %s: from now on all files are read from the first copy", m->copy[file].path, why);
}

void off_mirror_count(struct off_mirror *m, size_t bytes)
{
    atomic_fetch_add_explicit(&m->read_bytes, bytes, memory_order_relaxed);
}

uint64_t off_mirror_read(const struct off_mirror *m)
{
    return m ? atomic_load_explicit(&m->read_bytes, memory_order_relaxed) : 0;
}
