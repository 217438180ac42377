/* Watches the model's files while they are in use, and tells their identity to the heat file.
 *
 * off_watch_look() compares size and times of each file with those at the open.  Times alone prove nothing: a link, a
 * new owner, a backup or `touch` changes them.  So after a change some pages of the file are compared with their
 * checksum at the open: the first, the last, and others at pseudo-random positions.  If they are the same, the new
 * times count from then on.  If they are not, or the size is another, the files have changed for good.
 *
 * Cost: a look is one stat per file.  Pages are read at the open and after a change: N_PAGE of them over all files. */
#include "offload/internal.h"

#include <pthread.h>

#define N_PAGE 64

struct watched {
    struct off_file_id id;
    uint64_t check; /* of its sampled pages */
    bool written;   /* its times are not those at the open, or at the end of the last process */
};

struct off_watch {
    struct off_files files;
    struct watched *file; /* [n_file] guarded by the lock */
    atomic_bool changed;
    pthread_mutex_t lock;
};

static bool identify(int fd, struct off_file_id *out)
{
    struct kn_stat st;
    int64_t bytes = kn_io()->size(fd);
    if (bytes <= 0 || kn_io()->stat(fd, &st) < 0)
        return false;
    *out = (struct off_file_id){ (uint64_t)bytes, st.mtime_ns, st.ctime_ns };
    return true;
}

/* Checksum of n pages of a file; false if one cannot be read. */
static bool sample(int fd, uint64_t bytes, uint64_t n, uint64_t *out)
{
    uint8_t page[OFF_PAGE];
    uint64_t n_page = (bytes + OFF_PAGE - 1) / OFF_PAGE, h = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = (i == 0 ? 0 : i == 1 ? n_page - 1 : kn_mix(i) % n_page) * OFF_PAGE;
        size_t size = bytes - at < OFF_PAGE ? (size_t)(bytes - at) : OFF_PAGE;
        if (!off_read_all(fd, page, size, at))
            return false;
        h = kn_mix(h + KN_GOLDEN + off_check(page, size));
    }
    *out = h;
    return true;
}

static uint64_t n_sample(const struct off_watch *w) { return (uint64_t)kn_max(2, N_PAGE / w->files.n_file); }

int off_watch_open(struct off_watch **out, const struct off_files *files)
{
    struct off_watch *w = kn_calloc(1, sizeof *w);
    if (w)
        w->file = kn_calloc((size_t)files->n_file, sizeof *w->file);
    if (!w || !w->file) {
        kn_free(w);
        return kn_fail(KN_ENOMEM, "no memory to watch %d files", files->n_file);
    }
    w->files = *files;
    pthread_mutex_init(&w->lock, NULL);
    for (int i = 0; i < files->n_file; i++) { /* a file that cannot be sampled is not watched: reads will tell */
        struct watched *f = &w->file[i];
        if (!identify(files->fd[i], &f->id) || !sample(files->fd[i], f->id.bytes, n_sample(w), &f->check))
            f->id = (struct off_file_id){ 0 };
    }
    *out = w;
    return 0;
}

void off_watch_close(struct off_watch *w)
{
    if (!w)
        return;
    pthread_mutex_destroy(&w->lock);
    kn_free(w->file);
    kn_free(w);
}

/* Looks at one file.  False: it has changed, which is logged. */
static bool look(struct off_watch *w, int i)
{
    struct watched *f = &w->file[i];
    struct off_file_id now;
    uint64_t check = 0;
    if (!f->id.bytes || !identify(w->files.fd[i], &now))
        return true;
    if (now.bytes == f->id.bytes && now.mtime_ns == f->id.mtime_ns && now.ctime_ns == f->id.ctime_ns)
        return true;
    f->written = true;
    if (now.bytes != f->id.bytes) {
        kn_say(KN_LOG_ERROR,
               "%s: changed while in use: %llu bytes now, %llu when it was opened; experts that are not known yet "
               "are not read any more: restore the file and start again",
               w->files.path[i], (unsigned long long)now.bytes, (unsigned long long)f->id.bytes);
        return false;
    }
    if (!sample(w->files.fd[i], now.bytes, n_sample(w), &check))
        return true;
    if (check == f->check) {
        f->id = now;
        return true;
    }
    kn_say(
        KN_LOG_ERROR,
        "%s: overwritten while in use: its bytes are not those that were read before; experts that are not known yet "
        "are not read any more: restore the file and start again",
        w->files.path[i]);
    return false;
}

bool off_watch_look(struct off_watch *w)
{
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->files.n_file && !atomic_load_explicit(&w->changed, memory_order_relaxed); i++)
        if (!look(w, i))
            atomic_store_explicit(&w->changed, true, memory_order_release);
    pthread_mutex_unlock(&w->lock);
    return off_watch_changed(w);
}

bool off_watch_changed(const struct off_watch *w) { return atomic_load_explicit(&w->changed, memory_order_acquire); }

void off_watch_id(struct off_watch *w, int file, struct off_file_id *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->file[file].id;
    pthread_mutex_unlock(&w->lock);
}

void off_watch_compare(struct off_watch *w, int file, const struct off_file_id *last)
{
    pthread_mutex_lock(&w->lock);
    w->file[file].written |= w->file[file].id.ctime_ns != last->ctime_ns;
    pthread_mutex_unlock(&w->lock);
}

bool off_watch_written(struct off_watch *w, int file)
{
    pthread_mutex_lock(&w->lock);
    bool written = w->file[file].written;
    pthread_mutex_unlock(&w->lock);
    return written;
}
