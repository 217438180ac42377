/* Bulk loading: reads matrices from files to their places at the disk's rate.
 *
 * Every matrix is a job, or up to three with separate scales; all are posted at the start, in the files' order.  The team
 * interleaves each matrix in place when it has been read, while the next ones are read.  Matrices are read to
 * their final places, so no read waits for a free buffer.
 *
 * Time: the larger of file bytes / disk rate and file bytes / interleave rate.  A core interleaves over 2 GB/s, so
 * the disk is the bound. */
#include "offload/internal.h"

#include <stdlib.h>

#define TOUCH_BYTES ((size_t)2 << 20)

struct touch {
    uint8_t *place;
    size_t bytes;
};

static void touch_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct touch *t = arg;
    size_t end = (size_t)(item + 1) * TOUCH_BYTES;
    for (size_t at = (size_t)item * TOUCH_BYTES; at < end && at < t->bytes; at += OFF_PAGE)
        ((volatile uint8_t *)t->place)[at] = 0;
}

/* Touches the pages of a matrix's place.  The kernel zeroes new memory at the first touch, which takes about a quarter
 * of the time of a read into it: the team does this, so that the I/O thread keeps the disk busy. */
static void touch_place(const struct off_hands *hands, const struct off_load *l)
{
    struct touch t = { l->place, off_place_bytes(&l->source) };
    kn_parallel_for(hands->team, (int)((t.bytes + TOUCH_BYTES - 1) / TOUCH_BYTES), touch_item, &t);
}

static bool is_stopped(struct off_progress *p) { return p && atomic_load_explicit(&p->stop, memory_order_relaxed); }

struct task { /* a matrix and its reads */
    struct off_load load;
    struct off_job job[OFF_PARTS];
};

static int by_place_in_files(const void *a, const void *b)
{
    const struct off_source *x = &((const struct task *)a)->load.source, *y = &((const struct task *)b)->load.source;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

int off_load(const struct off_files *files, enum off_io_kind kind, const struct off_load *loads, int n,
             const struct off_hands *hands, struct off_progress *progress)
{
    struct off_io *io;
    if (n == 0)
        return 0;
    struct task *task = kn_calloc((size_t)n, sizeof *task);
    if (!task)
        return kn_fail(KN_ENOMEM, "no memory to list %d matrices", n);
    for (int i = 0; i < n; i++)
        task[i].load = loads[i];
    qsort(task, (size_t)n, sizeof *task, by_place_in_files);
    int error = off_io_open(&io, files, &(struct off_io_options){ .kind = kind });
    if (error)
        goto done;
    for (int i = 0; i < n && !is_stopped(progress); i++) {
        const struct off_load *l = &task[i].load;
        off_place_jobs(&l->source, l->place, task[i].job, 1);
        touch_place(hands, l);
        for (int k = 0; k < OFF_PARTS; k++)
            if (task[i].job[k].bytes)
                off_io_post(io, &task[i].job[k]);
    }
    for (int i = 0; i < n; i++) {
        const struct off_load *l = &task[i].load;
        error = is_stopped(progress) ? KN_ECANCELLED : 0;
        for (int k = 0; k < OFF_PARTS && !error; k++)
            if (task[i].job[k].bytes)
                error = off_io_await(io, &task[i].job[k]);
        if (error)
            break;
        if (l->source.turn.n)
            off_turn_team(hands, &l->source, l->place);
        off_interleave_team(hands, &l->source, l->place);
        if (progress)
            atomic_fetch_add(&progress->done_bytes, off_file_bytes(&l->source));
    }
    off_io_close(io);
done:
    kn_free(task);
    return error;
}
