/* tests/offload/mover.h - two files of random bytes, jobs that read them, and a fake mover (off_mover) that answers as
 * the test sets it: short, late, out of order, with any errno. Include cmocka first. */
#ifndef TESTS_OFFLOAD_MOVER_H
#define TESTS_OFFLOAD_MOVER_H

#include <stdlib.h>
#include <unistd.h>

#include "offload/internal.h"
#include "tests/faults.h"

#define FILE_BYTES (((size_t)5 << 20) + 777)
#define MAX_JOB    64
#define MAX_HELD   256
#define TRANSFER   ((size_t)1 << 20)

static struct {
    char path[2][64];
    const char *name[2];
    int fd[2];
    uint8_t *data[2];
    struct off_files files;
} disk;

static uint64_t random_state;
static uint64_t random_of(uint64_t *random, uint64_t n) { return kn_mix(*random += KN_GOLDEN) % n; }
static uint64_t random_below(uint64_t n) { return random_of(&random_state, n); }

static void write_file(int i)
{
    FILE *f = fopen(disk.path[i], "wb");
    if (!f || fwrite(disk.data[i], 1, FILE_BYTES, f) != FILE_BYTES || fclose(f))
        abort();
}

static int make_disk(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        snprintf(disk.path[i], sizeof disk.path[i], "/tmp/spillway-io-%d-%d", getpid(), i);
        disk.name[i] = disk.path[i];
        disk.data[i] = malloc(FILE_BYTES);
        for (size_t at = 0; at < FILE_BYTES; at++)
            disk.data[i][at] = (uint8_t)kn_mix(at * 2 + (size_t)i);
        write_file(i);
        disk.fd[i] = open(disk.path[i], O_RDONLY);
    }
    disk.files = (struct off_files){ 2, disk.fd, disk.name, NULL };
    return disk.fd[0] < 0 || disk.fd[1] < 0;
}

static int remove_disk(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        close(disk.fd[i]);
        unlink(disk.path[i]);
        free(disk.data[i]);
    }
    return 0;
}

/* ---- jobs ---------------------------------------------------------------------------------------- */

static size_t room_of(const struct off_job *j) { return kn_align_up(j->offset % OFF_PAGE + j->bytes, OFF_PAGE); }

static struct off_job new_job(int file, uint64_t offset, size_t bytes, enum off_urgency urgency)
{
    struct off_job j = { .file = file, .offset = offset, .bytes = bytes, .urgency = urgency };
    j.to = aligned_alloc(OFF_PAGE, room_of(&j) + OFF_PAGE);
    memset(j.to, 0xa5, room_of(&j) + OFF_PAGE);
    return j;
}

/* Small and large jobs, at the end of the file and inside it, at odd offsets and on pages. */
static struct off_job random_job(void)
{
    size_t most = random_below(4) ? 20000 : (size_t)3 << 20, bytes = 1 + random_below(most);
    uint64_t offset = random_below(4) ? random_below(FILE_BYTES - bytes + 1) : FILE_BYTES - bytes;
    if (random_below(4) == 0)
        offset &= ~(uint64_t)(OFF_PAGE - 1);
    return new_job((int)random_below(2), offset, bytes, (enum off_urgency)random_below(OFF_URGENCIES));
}

static void await(struct off_io *io, const struct off_job *j)
{
    uint64_t seen = off_io_events(io);
    while (j->state != OFF_JOB_DONE)
        seen = off_io_wait(io, seen);
}

/* The job's bytes are right, and none after its last page was written. */
static bool is_right(const struct off_job *j)
{
    if (memcmp(j->to + j->offset % OFF_PAGE, disk.data[j->file] + j->offset, j->bytes) != 0)
        return false;
    for (size_t i = 0; i < OFF_PAGE; i++)
        if (j->to[room_of(j) + i] != 0xa5)
            return false;
    return j->status == 0;
}

/* ---- a mover with prescribed answers ----------------------------------------------------------------- */

struct fake {
    struct off_mover mover;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t random;
    struct off_transfer *held[MAX_HELD]; /* pushed, not yet answered */
    int n_held, n_free;                  /* n_free: transfers that may be answered; -1: all */
    bool woken, pulling, time_runs, free_when_woken, in_order;
    long n_push, at; /* the push number `at` is answered with `result` .. */
    bool lasts;      /* .. and so are all later pushes of the same job */
    int64_t result;  /* below 0: -errno; otherwise the largest byte count */
    int struck_file;
    const uint8_t *struck_end;          /* end of the struck transfer in memory */
    bool struck, refused, direct_after; /* O_DIRECT is refused; O_DIRECT was tried after that */
    struct {
        int file;
        uint64_t offset;
    } log[4096];
};

static atomic_uint_fast64_t fake_now;
static uint64_t fake_clock(void) { return fake_now; }

static void fake_push(struct off_mover *m, struct off_transfer *t)
{
    struct fake *f = (struct fake *)m;
    pthread_mutex_lock(&f->lock);
    bool direct = t->file < 2;
    assert_true(f->n_held < m->depth);
    assert_false(direct && ((uintptr_t)t->to % 4096 || t->bytes % 4096 || t->offset % 4096));
    assert_int_equal(t->fd == disk.fd[t->file % 2], !direct);
    if (f->n_push < 4096)
        f->log[f->n_push].file = t->file, f->log[f->n_push].offset = t->offset;
    f->held[f->n_held++] = t;
    f->n_push++;
    t->result = INT64_MIN;
    if (f->at && (f->n_push == f->at || (f->lasts && f->struck && t->to + t->bytes == f->struck_end))) {
        f->struck = true;
        f->struck_file = t->file % 2;
        f->struck_end = t->to + t->bytes;
        t->result = f->result;
    }
    f->direct_after |= f->refused && direct && t->file == f->struck_file;
    pthread_mutex_unlock(&f->lock);
}

static void answer(struct off_transfer *t)
{
    size_t most = t->bytes;
    if (t->result != INT64_MIN && t->result < 0)
        return;
    if (t->result != INT64_MIN && (size_t)t->result < most)
        most = (size_t)t->result;
    t->result = pread(disk.fd[t->file % 2], t->to, most, (off_t)t->offset);
}

static struct off_transfer *fake_pull(struct off_mover *m, uint64_t wait_ns)
{
    struct fake *f = (struct fake *)m;
    struct off_transfer *ended = NULL;
    pthread_mutex_lock(&f->lock);
    f->pulling = true;
    pthread_cond_broadcast(&f->changed);
    while (!f->woken && !f->time_runs && (f->n_held == 0 || f->n_free == 0))
        pthread_cond_wait(&f->changed, &f->lock);
    f->pulling = f->woken = false;
    if (f->time_runs && wait_ns != UINT64_MAX)
        fake_now += wait_ns;
    f->time_runs = false;
    for (int n = 1 + (int)random_of(&f->random, 3); n > 0 && f->n_held > 0 && f->n_free != 0; n--) {
        int i = f->in_order ? 0 : (int)random_of(&f->random, (uint64_t)f->n_held);
        struct off_transfer *t = f->held[i];
        f->n_held--;
        memmove(f->held + i, f->held + i + 1, (size_t)(f->n_held - i) * sizeof *f->held);
        f->n_free -= f->n_free > 0;
        answer(t);
        f->refused |= t->result == -EINVAL;
        t->next = ended;
        ended = t;
    }
    pthread_mutex_unlock(&f->lock);
    return ended;
}

static void fake_wake(struct off_mover *m)
{
    struct fake *f = (struct fake *)m;
    pthread_mutex_lock(&f->lock);
    f->woken = true;
    if (f->free_when_woken)
        f->n_free = -1;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void fake_close(struct off_mover *m) { assert_int_equal(((struct fake *)m)->n_held, 0); }

/* Sets the number of transfers to answer and the clock's mode, under the lock. */
static void fake_free(struct fake *f, int n, bool time_runs)
{
    pthread_mutex_lock(&f->lock);
    f->n_free = n;
    f->time_runs = time_runs;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* Waits until the I/O thread has handled everything it can and waits. */
static void settle(struct fake *f)
{
    pthread_mutex_lock(&f->lock);
    while (!f->pulling || f->woken || f->time_runs || (f->n_held > 0 && f->n_free != 0))
        pthread_cond_wait(&f->changed, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

static struct off_io *open_fake(struct fake *f, int depth, int n_free)
{
    static const struct off_mover_ops ops = { "fake", fake_close, fake_push, fake_pull, fake_wake };
    struct off_io *io;
    *f = (struct fake){ .mover = { .ops = &ops, .depth = depth }, .n_free = n_free };
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    assert_int_equal(off_io_open(&io, &disk.files, &(struct off_io_options){ .mover = &f->mover }), 0);
    return io;
}

static struct off_io *open_kind(enum off_io_kind kind)
{
    struct off_io *io;
    return off_io_open(&io, &disk.files, &(struct off_io_options){ .kind = kind }) ? NULL : io;
}

#endif
