/* Bulk loading: matrices from files into interleaved memory, at the rate the disk reads.
 *
 * The work is cut into pieces of whole panels, a few MiB of file each.  Reader threads of our own pread
 * pieces, in order, into a ring of landing buffers (O_DIRECT when the file system has it: aligned
 * supersets of the piece); the calling thread collects what has landed and lets the team repack it, a
 * panel group per item.  Landing memory is bounded by the ring, whatever the model's size.
 *
 *   piece i lands in buffer i % N_BUFFER, once piece i - N_BUFFER has been collected.  The mutex guards
 *   the counters and what has landed; a buffer's bytes are its reader's until then, the collector's after.
 *
 * Cost: file bytes / disk rate against the same bytes / repack rate (over 3 GB/s per core, so that the
 * disk binds).  16 panels of a 2048-wide Q4_K row are 288 KiB; pieces of 4 MiB keep a queue of 4 deep
 * and O_DIRECT at its rate. */
#include "offload/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>

#define ALIGN        4096u
#define PIECE_BYTES  ((size_t)4 << 20)
#define N_BUFFER     8
#define N_READER     4

struct piece {                          /* rows row0.. of one load */
    int load, panel0, n_panel;
    uint64_t offset;
    size_t bytes;
};

struct buffer {
    bool landed, whole;                 /* whole: all of the piece is there */
    uint8_t *data;                      /* PIECE_BYTES + slack, ALIGN-aligned */
    size_t head;                        /* where the piece starts in data */
};

struct loader {
    const struct off_files *files;
    const struct off_load *load;
    const struct piece *piece;
    int n_piece;
    int next, collected;                /* pieces claimed, and done with; under lock */
    int direct_fd[OFF_MAX_FILES];       /* -1: read plainly */
    int64_t file_bytes[OFF_MAX_FILES];
    bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct buffer buffer[N_BUFFER];
    size_t buffer_bytes;
};

static size_t panel_bytes(const struct off_source *s)
{
    return KN_PANEL * kn_row_bytes(s->format, s->n_in);
}

/* ---- reading ----------------------------------------------------------------------------------- */

/* All of a range, in transfers of whole multiples.  Says nothing: a reader that fails leaves the words to
 * the collector. */
static bool read_range(int fd, uint8_t *to, size_t bytes, uint64_t offset, size_t multiple)
{
    for (size_t done = 0; done < bytes; ) {
        ssize_t n = kn_io()->pread(fd, to + done, bytes - done, (int64_t)(offset + done));
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0 || (size_t)n % multiple)
            return false;
        done += (size_t)n;
    }
    return true;
}

/* The aligned superset through the direct descriptor; the file's unaligned tail, and everything where
 * O_DIRECT is refused, plainly. */
static bool read_piece(const struct loader *l, const struct piece *p, struct buffer *b)
{
    int file = l->load[p->load].source.file;
    uint64_t from = p->offset & ~(uint64_t)(ALIGN - 1), end = p->offset + p->bytes;
    b->head = (size_t)(p->offset - from);
    uint64_t want = kn_align_up((size_t)(end - from), ALIGN);
    if (l->direct_fd[file] >= 0 && from + want <= (uint64_t)l->file_bytes[file] &&
        read_range(l->direct_fd[file], b->data, want, from, ALIGN))
        return true;
    return read_range(l->files->fd[file], b->data + b->head, p->bytes, p->offset, 1);
}

/* What a reader could not get, once more and in order: so that what is wrong is said once, and of the first
 * piece that has it. */
static int read_again(const struct loader *l, const struct piece *p, struct buffer *b)
{
    int file = l->load[p->load].source.file;
    return kn_file_read(l->files->fd[file], l->files->path[file], b->data + b->head, p->bytes, p->offset);
}

static void *reader_main(void *arg)
{
    struct loader *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->stop && l->next < l->n_piece) {
        int i = l->next++;
        struct buffer *b = &l->buffer[i % N_BUFFER];
        while (!l->stop && i >= l->collected + N_BUFFER)
            pthread_cond_wait(&l->changed, &l->lock);
        if (l->stop)
            break;
        pthread_mutex_unlock(&l->lock);
        bool whole = read_piece(l, &l->piece[i], b);
        pthread_mutex_lock(&l->lock);
        b->whole = whole;
        b->landed = true;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- repacking --------------------------------------------------------------------------------- */

struct repack_job {
    const struct kn_ops *ops;
    const struct off_load *load;
    const struct piece *piece;
    const uint8_t *rows;
};

/* A piece's rows look like a matrix of their own to the repack: it starts on a panel. */
static void repack_panel(void *arg, int item, int thread)
{
    (void)thread;
    const struct repack_job *j = arg;
    const struct off_source *s = &j->load->source;
    int row0 = j->piece->panel0 * KN_PANEL;
    int n_out = kn_min(s->n_out - row0, j->piece->n_panel * KN_PANEL);
    uint8_t *panels = (uint8_t *)j->load->panels + (size_t)j->piece->panel0 * panel_bytes(s);
    j->ops->repack(s->format, j->rows, n_out, s->n_in, panels, item, item + 1);
}

static int collect(struct loader *l, const struct kn_ops *ops, struct kn_team *team,
                   struct off_progress *progress)
{
    for (int i = 0; i < l->n_piece; i++) {
        struct buffer *b = &l->buffer[i % N_BUFFER];
        pthread_mutex_lock(&l->lock);
        while (!b->landed)
            pthread_cond_wait(&l->changed, &l->lock);
        pthread_mutex_unlock(&l->lock);
        const struct piece *p = &l->piece[i];
        int error = b->whole ? 0 : read_again(l, p, b);
        if (error)
            return error;
        struct repack_job job = { ops, &l->load[p->load], p, b->data + b->head };
        kn_parallel_for(team, p->n_panel, repack_panel, &job);
        if (progress)
            atomic_fetch_add(&progress->done_bytes, p->bytes);
        pthread_mutex_lock(&l->lock);
        b->landed = false;
        l->collected++;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
    }
    return 0;
}

/* ---- cutting ----------------------------------------------------------------------------------- */

static int panels_per_piece(const struct off_source *s)
{
    return kn_max(1, (int)(PIECE_BYTES / panel_bytes(s)));
}

static int count_pieces(const struct off_load *loads, int n, size_t *bytes, size_t *largest)
{
    int n_piece = 0;
    *bytes = *largest = 0;
    for (int i = 0; i < n; i++) {
        const struct off_source *s = &loads[i].source;
        int per = panels_per_piece(s);
        size_t piece_bytes = (size_t)per * panel_bytes(s);
        n_piece += kn_ceil_div(kn_ceil_div(s->n_out, KN_PANEL), per);
        *bytes += (size_t)s->n_out * kn_row_bytes(s->format, s->n_in);
        *largest = piece_bytes > *largest ? piece_bytes : *largest;
    }
    return n_piece;
}

static void cut(const struct off_load *loads, int n, struct piece *piece)
{
    for (int i = 0; i < n; i++) {
        const struct off_source *s = &loads[i].source;
        int n_panel = kn_ceil_div(s->n_out, KN_PANEL), per = panels_per_piece(s);
        size_t row = kn_row_bytes(s->format, s->n_in);
        for (int p = 0; p < n_panel; p += per) {
            int rows = kn_min(s->n_out - p * KN_PANEL, per * KN_PANEL);
            *piece++ = (struct piece){ .load = i, .panel0 = p, .n_panel = kn_min(per, n_panel - p),
                                       .offset = s->offset + (uint64_t)p * KN_PANEL * row,
                                       .bytes = (size_t)rows * row };
        }
    }
}

static void open_direct(struct loader *l)
{
    for (int i = 0; i < l->files->n_file; i++) {
        l->direct_fd[i] = kn_io()->open(l->files->path[i], O_RDONLY | O_DIRECT | O_CLOEXEC, 0);
        l->file_bytes[i] = kn_io()->size(l->files->fd[i]);
    }
}

static int run(struct loader *l, const struct kn_ops *ops, struct kn_team *team,
               struct off_progress *progress)
{
    pthread_t reader[N_READER];
    int n_reader = 0;
    while (n_reader < N_READER && pthread_create(&reader[n_reader], NULL, reader_main, l) == 0)
        n_reader++;
    int error = n_reader ? collect(l, ops, team, progress)
                         : kn_fail(KN_ENOMEM, "cannot start a reader thread");
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    while (n_reader > 0)
        pthread_join(reader[--n_reader], NULL);
    return error;
}

int off_load(const struct off_files *files, const struct off_load *loads, int n,
             const struct kn_ops *ops, struct kn_team *team, struct off_progress *progress)
{
    if (files->n_file > OFF_MAX_FILES)
        return kn_fail(KN_ELIMIT, "a model of %d files; at most %d are read", files->n_file, OFF_MAX_FILES);
    size_t bytes, largest;
    int n_piece = count_pieces(loads, n, &bytes, &largest);
    if (n_piece == 0)
        return 0;
    struct loader l = { .files = files, .load = loads, .n_piece = n_piece,
                        .buffer_bytes = kn_align_up(largest, ALIGN) + 2 * ALIGN };
    struct piece *piece = kn_calloc((size_t)n_piece, sizeof *piece);
    uint8_t *landing = kn_map(N_BUFFER * l.buffer_bytes, -1);
    int error = KN_ENOMEM;
    if (!piece || !landing) {
        kn_fail(KN_ENOMEM, "no memory for %.1f MiB of landing buffers",
                (double)(N_BUFFER * l.buffer_bytes) / (1 << 20));
        goto done;
    }
    cut(loads, n, piece);
    l.piece = piece;
    for (int i = 0; i < N_BUFFER; i++)
        l.buffer[i].data = landing + (size_t)i * l.buffer_bytes;
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.changed, NULL);
    open_direct(&l);
    error = run(&l, ops, team, progress);
    for (int i = 0; i < files->n_file; i++)
        kn_file_close(l.direct_fd[i]);
    pthread_cond_destroy(&l.changed);
    pthread_mutex_destroy(&l.lock);
done:
    kn_unmap(landing, N_BUFFER * l.buffer_bytes);
    kn_free(piece);
    return error;
}
