/* tests/power.h - power cuts: a table of system calls that records which writes to a folder's files are synced.
 *
 *     power_on(folder, seed);                 sets the table; files in the folder count as being on the disk
 *     power_cut_at(n);                        the n-th changing call and all after it fail; n 0: no call
 *     ...                                     run the tested code until it fails or ends
 *     power_back();                           gives the files contents that the disk may have after the cut;
 *                                             or power_was_kill(): only the process has ended
 *     power_off();
 *
 * After a cut, each write since the file's last sync is kept, lost, or kept in some of its 512-byte sectors; the file may
 * have grown although the bytes are lost, and is then zero there, or has old bytes of the disk.  A change of size is kept
 * or lost by itself.  Of the folder's changes (new files, renames, removals) since its last sync, a beginning is kept, as
 * file systems with a journal do it.  The files are real, so that calls beside the seam (flock, lstat) work. */
#ifndef TESTS_POWER_H
#define TESTS_POWER_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core.h"

enum { POWER_FILES = 32, POWER_NAMES = 32, POWER_OPS = 4096, POWER_FDS = 1024, POWER_FOLDER = -1 };

struct power_image {
    char *data;
    size_t n;
};

struct power_op { /* a write, or a change of size (data NULL) */
    int file;
    char *data;
    size_t at, n;
};

struct power_change { /* of the folder: from is "" for a new file, to is "" for a removal */
    char from[128], to[128];
    int file;
};

static struct {
    pthread_mutex_t lock;
    const char *folder;
    uint64_t random;
    struct power_image disk[POWER_FILES]; /* contents at the last sync */
    uint64_t inode[POWER_FILES];
    int n_file, n_name, n_op, n_change;
    struct {
        char path[128];
        int file;
    } name[POWER_NAMES]; /* the folder at its last sync */
    struct power_op op[POWER_OPS];
    struct power_change change[POWER_OPS];
    int of_fd[POWER_FDS]; /* file + 1, or POWER_FOLDER */
    long left, n_call;    /* changing calls until the cut, and so far */
    bool cut;
    char filling; /* of sectors that a file has got and that were not written */
} power = { .lock = PTHREAD_MUTEX_INITIALIZER };

static inline uint64_t power_random(uint64_t below)
{
    power.random += KN_GOLDEN;
    return kn_mix(power.random) % below;
}

static inline bool power_is_ours(const char *path) { return !strncmp(path, power.folder, strlen(power.folder)); }

static inline struct power_image power_read(const char *path)
{
    struct power_image image = { 0 };
    FILE *f = fopen(path, "r");
    if (!f)
        return image;
    fseek(f, 0, SEEK_END);
    image.n = (size_t)ftell(f);
    rewind(f);
    image.data = malloc(image.n + 1);
    if (fread(image.data, 1, image.n, f) != image.n)
        abort();
    fclose(f);
    return image;
}

/* The file's number, a new one for a file that is not known. */
static inline int power_file(int fd, const char *path, bool is_new)
{
    struct stat st;
    if (fstat(fd, &st))
        abort();
    for (int i = 0; i < power.n_file; i++) {
        if (power.inode[i] == st.st_ino && !is_new)
            return i;
        if (power.inode[i] == st.st_ino) /* of a file that was removed */
            power.inode[i] = 0;
    }
    int i = power.n_file++;
    kn_assert(i < POWER_FILES);
    power.inode[i] = st.st_ino;
    power.disk[i] = is_new ? (struct power_image){ 0 } : power_read(path);
    return i;
}

/* Counts a changing call: false once the power is cut. */
static inline bool power_is_on(void)
{
    power.n_call++;
    if (power.left > 0 && --power.left == 0)
        power.cut = true;
    if (power.cut)
        errno = EIO;
    return !power.cut;
}

static inline void power_add_change(const char *from, const char *to, int file)
{
    kn_assert(power.n_change < POWER_OPS);
    struct power_change *c = &power.change[power.n_change++];
    snprintf(c->from, sizeof c->from, "%s", from);
    snprintf(c->to, sizeof c->to, "%s", to);
    c->file = file;
}

static inline void power_apply(const struct power_change *c)
{
    int from = -1, to = -1, file = c->file;
    for (int i = 0; i < power.n_name; i++) {
        from = !strcmp(power.name[i].path, c->from) ? i : from;
        to = !strcmp(power.name[i].path, c->to) ? i : to;
    }
    if (from >= 0) {
        file = power.name[from].file;
        power.name[from].path[0] = 0;
    }
    if (!c->to[0])
        return;
    if (to < 0) {
        to = power.n_name++;
        kn_assert(to < POWER_NAMES);
        snprintf(power.name[to].path, sizeof power.name[to].path, "%s", c->to);
    }
    power.name[to].file = file;
}

static inline int power_open(const char *path, int flags, int mode)
{
    if (!(flags & O_CREAT) && !power_is_ours(path))
        return kn_io_system.open(path, flags, mode);
    pthread_mutex_lock(&power.lock);
    bool is_new = flags & O_CREAT && access(path, F_OK) != 0;
    int fd = is_new && !power_is_on() ? -1 : kn_io_system.open(path, flags, mode);
    if (fd >= 0 && flags & O_DIRECTORY) {
        power.of_fd[fd] = POWER_FOLDER;
    } else if (fd >= 0 && !(flags & O_PATH)) {
        int file = power_file(fd, path, is_new);
        power.of_fd[fd] = file + 1;
        if (is_new)
            power_add_change("", path, file);
    }
    pthread_mutex_unlock(&power.lock);
    return fd;
}

static inline int power_close(int fd)
{
    pthread_mutex_lock(&power.lock);
    power.of_fd[fd] = 0;
    pthread_mutex_unlock(&power.lock);
    return kn_io_system.close(fd);
}

static inline void power_add_op(int fd, const void *data, size_t n, size_t at)
{
    kn_assert(power.n_op < POWER_OPS && power.of_fd[fd] > 0);
    struct power_op *op = &power.op[power.n_op++];
    *op = (struct power_op){ power.of_fd[fd] - 1, data ? malloc(n + 1) : NULL, at, n };
    if (data)
        memcpy(op->data, data, n);
}

static inline ssize_t power_pwrite(int fd, const void *data, size_t n, int64_t at)
{
    pthread_mutex_lock(&power.lock);
    bool on = power_is_on();
    if (on || power_random(2)) /* the call during which the power is cut may have begun */
        power_add_op(fd, data, n, (size_t)at);
    ssize_t done = on ? kn_io_system.pwrite(fd, data, n, at) : -1;
    pthread_mutex_unlock(&power.lock);
    return done;
}

static inline int power_resize(int fd, int64_t bytes)
{
    pthread_mutex_lock(&power.lock);
    bool on = power_is_on();
    if (on)
        power_add_op(fd, NULL, (size_t)bytes, 0);
    int done = on ? kn_io_system.resize(fd, bytes) : -1;
    pthread_mutex_unlock(&power.lock);
    return done;
}

static inline void power_drop_ops(int file)
{
    int kept = 0;
    for (int i = 0; i < power.n_op; i++)
        if (power.op[i].file != file)
            power.op[kept++] = power.op[i];
        else
            free(power.op[i].data);
    power.n_op = kept;
}

static inline int power_sync(int fd)
{
    pthread_mutex_lock(&power.lock);
    bool on = power_is_on();
    if (on && power.of_fd[fd] == POWER_FOLDER) {
        for (int i = 0; i < power.n_change; i++)
            power_apply(&power.change[i]);
        power.n_change = 0;
    } else if (on && power.of_fd[fd] > 0) {
        char path[64];
        int file = power.of_fd[fd] - 1;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        free(power.disk[file].data);
        power.disk[file] = power_read(path);
        power_drop_ops(file);
    }
    pthread_mutex_unlock(&power.lock);
    return on ? 0 : -1;
}

static inline int power_rename(const char *from, const char *to)
{
    pthread_mutex_lock(&power.lock);
    bool on = power_is_on();
    if (on)
        power_add_change(from, to, -1);
    int done = on ? kn_io_system.rename(from, to) : -1;
    pthread_mutex_unlock(&power.lock);
    return done;
}

static inline int power_unlink(const char *path)
{
    pthread_mutex_lock(&power.lock);
    bool on = power_is_on();
    if (on)
        power_add_change(path, "", -1);
    int done = on ? kn_io_system.unlink(path) : -1;
    pthread_mutex_unlock(&power.lock);
    return done;
}

/* Forgets all records; the files in the folder count as being on the disk. */
static inline void power_forget(void)
{
    for (int i = 0; i < power.n_file; i++)
        free(power.disk[i].data);
    for (int i = 0; i < power.n_op; i++)
        free(power.op[i].data);
    power.n_file = power.n_op = power.n_change = power.n_name = 0;
    power.left = power.n_call = 0;
    power.cut = false;
    DIR *d = opendir(power.folder);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", power.folder, e->d_name);
        if (e->d_name[0] == '.')
            continue;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        snprintf(power.name[power.n_name].path, sizeof power.name[0].path, "%.127s", path);
        power.name[power.n_name++].file = power_file(fd, path, false);
        close(fd);
    }
    closedir(d);
}

static inline void power_on(const char *folder, uint64_t seed)
{
    static struct kn_io io;
    io = kn_io_system;
    io.open = power_open;
    io.close = power_close;
    io.pwrite = power_pwrite;
    io.resize = power_resize;
    io.sync = power_sync;
    io.rename = power_rename;
    io.unlink = power_unlink;
    power.folder = folder;
    power.random = seed;
    power_forget();
    kn_io_set(&io);
}

static inline void power_cut_at(long n) { power.left = n; }

/* It was only the process that ended at the call: the files stay as they are, synced or not. */
static inline void power_was_kill(void)
{
    power.cut = false;
    power.left = 0;
}

static inline void power_grow(struct power_image *m, size_t n)
{
    if (n <= m->n)
        return;
    m->data = realloc(m->data, n + 1);
    memset(m->data + m->n, power.filling, n - m->n);
    m->n = n;
}

/* Applies an operation to the image, or a part of it, or nothing. */
static inline void power_settle(struct power_image *m, const struct power_op *op)
{
    enum { SECTOR = 512 };
    uint64_t fate = power_random(3); /* 0: lost, 1: kept, 2: torn */
    if (!op->data) {
        power_grow(m, fate ? op->n : 0);
        m->n = fate ? op->n : m->n;
        return;
    }
    for (size_t i = 0, n; i < op->n; i += n) {
        n = SECTOR - (op->at + i) % SECTOR;
        n = n < op->n - i ? n : op->n - i;
        if (fate == 0 || (fate == 2 && power_random(2)))
            continue;
        power_grow(m, op->at + i + n);
        memcpy(m->data + op->at + i, op->data + i, n);
    }
    if (power_random(2))
        power_grow(m, op->at + op->n);
}

static inline void power_back(void)
{
    power.filling = power_random(4) ? 0 : '~';
    int n_change = power.n_change ? (int)power_random((uint64_t)power.n_change + 1) : 0;
    for (int i = 0; i < n_change; i++)
        power_apply(&power.change[i]);
    for (int i = 0; i < power.n_op; i++)
        power_settle(&power.disk[power.op[i].file], &power.op[i]);
    DIR *d = opendir(power.folder);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", power.folder, e->d_name);
        if (e->d_name[0] != '.')
            unlink(path);
    }
    closedir(d);
    for (int i = 0; i < power.n_name; i++) {
        if (!power.name[i].path[0])
            continue;
        const struct power_image *m = &power.disk[power.name[i].file];
        FILE *f = fopen(power.name[i].path, "w");
        if (!f || fwrite(m->data ? m->data : "", 1, m->n, f) != m->n || fclose(f))
            abort();
    }
    power_forget();
}

/* Runs the sed command that a refusal of a damaged output recommends; false if the line recommends none. */
static inline bool power_sed(const char *line)
{
    char command[512];
    const char *path = strstr(line, power.folder), *sed = strstr(line, "sed -i '"),
               *end = sed ? strchr(sed + 8, '\'') : NULL;
    if (!path || !end)
        return false;
    snprintf(command, sizeof command, "%.*s '%.*s'", (int)(end + 1 - sed), sed, (int)strcspn(path, ":"), path);
    if (system(command))
        abort();
    power_forget(); /* sed replaces the file */
    return true;
}

static inline void power_off(void)
{
    kn_io_set(NULL);
    power_forget();
}

#endif
