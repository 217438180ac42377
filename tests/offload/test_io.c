/* Reading: for every answer of a disk and every order of answers, a job ends with the file's bytes or with a reported
 * error; urgency decides the order of jobs; and the ring and the reader threads give the same results.
 *
 * The rules are tested over a fake mover, which reads real files and answers as the test sets it: short, late,
 * out of order, with any errno. The clock is the test's. */
#include <dlfcn.h>
#include <liburing.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <cmocka.h>

#include "tests/offload/mover.h"

/* ---- bytes --------------------------------------------------------------------------------------- */

static void read_many(struct off_io *io, int n_round)
{
    struct off_job job[MAX_JOB];
    for (int round = 0; round < n_round; round++) {
        for (int i = 0; i < MAX_JOB; i++) {
            job[i] = random_job();
            off_io_post(io, &job[i]);
        }
        for (int i = 0; i < MAX_JOB; i++) {
            await(io, &job[i]);
            assert_true(is_right(&job[i]));
            free(job[i].to);
        }
    }
}

static void bytes_are_the_files_in_any_order(void **state)
{
    (void)state;
    static struct fake f;
    for (int depth = 1; depth <= 33; depth += 8) {
        random_state = (uint64_t)depth;
        struct off_io *io = open_fake(&f, depth, -1);
        read_many(io, 3);
        off_io_close(io);
    }
}

static void threads_and_ring_give_the_same(void **state)
{
    (void)state;
    for (enum off_io_kind kind = OFF_IO_AUTO; kind <= OFF_IO_PREAD; kind++) {
        random_state = 77;
        struct off_io *io = open_kind(kind);
        if (!io && kind == OFF_IO_URING)
            continue; /* this kind is refused here, with a message */
        assert_true(io != NULL);
        if (kind != OFF_IO_AUTO)
            assert_string_equal(off_io_name(io), kind == OFF_IO_URING ? "io_uring" : "pread");
        read_many(io, 4);
        off_io_close(io);
    }
}

/* ---- answers ------------------------------------------------------------------------------------- */

/* The n-th answer of a few jobs is an error or short, for all n. */
static void whatever_is_answered_bytes_are_right_or_one_job_fails(void **state)
{
    (void)state;
    static struct fake f;
    static const struct {
        int64_t result;
        bool lasts;
        int status; /* final status of the struck job */
        int n_push; /* expected pushes, if the answer repeats */
    } ways[] = {
        { 1, false, 0, 0 },
        { 4095, false, 0, 0 },
        { 4096, false, 0, 0 },
        { 777777, false, 0, 0 },
        { 0, false, KN_ESHORT, 0 },
        { 5000, true, 0, 0 },
        { -EINTR, false, 0, 0 },
        { -EAGAIN, false, 0, 0 },
        { -EINTR, true, KN_EIO, 101 },
        { -EAGAIN, true, KN_EIO, 101 },
        { -EIO, false, 0, 0 },
        { -ENXIO, false, 0, 0 },
        { -ENOMEM, false, 0, 0 },
        { -EIO, true, KN_EIO, 3 },
        { -ENODATA, true, KN_EIO, 3 },
        { -EREMOTEIO, true, KN_EIO, 3 },
        { -EISDIR, true, KN_EIO, 3 },
        { -EINVAL, false, 0, 0 },
        { -EINVAL, true, KN_EIO, 4 },
    };
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        bool struck = true;
        for (long n = 1; struck; n++) {
            struct off_job job[5];
            long fair = 0;
            faults_reset();
            random_state = 5;
            struct off_io *io = open_fake(&f, 4, -1);
            f.at = n;
            f.lasts = ways[w].lasts;
            f.result = ways[w].result;
            for (int i = 0; i < 5; i++) {
                job[i] = i == 2 ? new_job(1, 4000, 3 * TRANSFER, OFF_NOW) : random_job();
                fair += (long)((room_of(&job[i]) + TRANSFER - 1) / TRANSFER);
                off_io_post(io, &job[i]);
            }
            int n_failed = 0, status = 0;
            for (int i = 0; i < 5; i++) {
                await(io, &job[i]);
                if (job[i].status)
                    n_failed++, status = job[i].status;
                else if (!is_right(&job[i]))
                    fail_msg("way %zu, answer %ld: wrong bytes", w, n);
                free(job[i].to);
            }
            off_io_close(io);
            struck = f.struck;
            int want = struck ? ways[w].status : 0;
            if (n_failed != (want != 0) || status != want || faults.n_line != (want != 0) || f.direct_after ||
                !faults_clean())
                fail_msg("way %zu, answer %ld: %d failed with %d, %d lines (%s)", w, n, n_failed, status, faults.n_line,
                         faults.line);
            if (struck && ways[w].n_push)
                assert_true(f.n_push <= fair + ways[w].n_push - 1);
            assert_true(n < 1000);
        }
    }
    faults_off();
}

static void a_job_that_fails_is_not_read_on(void **state)
{
    (void)state;
    static struct fake f;
    for (int depth = 1; depth <= 2; depth++) {
        faults_reset();
        struct off_io *io = open_fake(&f, depth, 0);
        struct off_job j = new_job(0, 0, 4 * TRANSFER, OFF_NOW);
        f.in_order = true;
        f.at = 1;
        f.result = 0;
        off_io_post(io, &j);
        settle(&f);
        fake_free(&f, 1, false);
        settle(&f);
        assert_int_equal(j.state, depth == 1 ? OFF_JOB_DONE : OFF_JOB_READING);
        fake_free(&f, -1, false);
        await(io, &j);
        assert_int_equal(j.status, KN_ESHORT);
        assert_int_equal(f.n_push, depth);
        assert_int_equal(faults.n_line, 1);
        off_io_post(io, &j); /* the job's memory is free for reuse */
        await(io, &j);
        assert_true(is_right(&j));
        off_io_close(io);
        free(j.to);
        faults_off();
    }
}

static void a_disk_that_stalls_is_said_and_waited_for(void **state)
{
    (void)state;
    static struct fake f;
    struct kn_io io_table = kn_io_system;
    io_table.now_ns = fake_clock;
    faults_reset();
    kn_io_set(&io_table);
    random_state = 9;
    struct off_io *io = open_fake(&f, 8, 0);
    struct off_job a = new_job(0, 8, 3 * TRANSFER, OFF_NOW), b = new_job(0, 88, 100, OFF_NOW);
    off_io_post(io, &a);
    settle(&f);
    fake_now += 29000000000u;
    off_io_post(io, &b);
    settle(&f);
    uint64_t seen = off_io_events(io);
    fake_free(&f, 0, true); /* up to the first deadline: of a, not of b */
    assert_int_equal(off_io_wait(io, seen), seen + 1);
    settle(&f);
    assert_true(a.late && !b.late && a.state == OFF_JOB_READING);
    assert_int_equal(fake_now, 30000000000u);
    assert_int_equal(faults.n_line, 1);
    assert_non_null(strstr(faults.line, disk.path[0]));
    fake_free(&f, 0, true);
    assert_int_equal(off_io_wait(io, seen + 1), seen + 2);
    settle(&f);
    assert_true(b.late);
    assert_int_equal(faults.n_line, 1); /* a repeated error is reported once */
    fake_free(&f, -1, false);
    await(io, &a);
    await(io, &b);
    assert_true(is_right(&a) && is_right(&b));
    fake_free(&f, 0, false);
    off_io_post(io, &a);
    settle(&f);
    fake_now += 300000000000u; /* a stopped process: not the disk's time; */
    off_io_post(io, &b);
    settle(&f);
    assert_true(!a.late && !b.late && faults.n_line == 1);
    fake_free(&f, 0, true); /* half a minute after it continues */
    settle(&f);
    assert_true(a.late && b.late && faults.n_line == 2);
    fake_free(&f, -1, false);
    off_io_close(io);
    free(a.to);
    free(b.to);
    faults_off();
}

/* ---- urgency ------------------------------------------------------------------------------------- */

/* The most bytes of a rank in flight, in transfers. */
static int most_of(enum off_urgency u) { return (int)(off_reader_most[u] / TRANSFER); }

static struct off_job *post_jobs(struct off_io *io, int n, size_t bytes, enum off_urgency urgency)
{
    struct off_job *job = calloc((size_t)n, sizeof *job);
    for (int i = 0; i < n; i++) {
        job[i] = new_job((int)urgency % 2, (uint64_t)(i % 100) * OFF_PAGE, bytes, urgency);
        off_io_post(io, &job[i]);
    }
    return job;
}

static void end_jobs(struct off_io *io, struct off_job *job, int n)
{
    for (int i = 0; i < n; i++) {
        if (job[i].state != OFF_JOB_IDLE) {
            await(io, &job[i]);
            assert_true(is_right(&job[i]));
        }
        free(job[i].to);
    }
    free(job);
}

static void what_is_needed_now_goes_first(void **state)
{
    (void)state;
    static struct fake f;
    int idle = most_of(OFF_IDLE), soon = most_of(OFF_SOON), now = most_of(OFF_NOW), n = idle + soon;
    struct off_io *io = open_fake(&f, MAX_HELD, 0);
    struct off_job *a = post_jobs(io, idle + 2, TRANSFER, OFF_IDLE);
    settle(&f);
    assert_int_equal(f.n_push, idle);
    struct off_job *b = post_jobs(io, soon + 2, TRANSFER, OFF_SOON);
    settle(&f);
    assert_int_equal(f.n_push, n);
    off_io_raise(io, &b[soon + 1]);
    off_io_raise(io, &b[0]); /* already begun: no effect */
    settle(&f);
    assert_int_equal(f.n_push, n + 1);
    assert_int_equal(f.log[n].offset, b[soon + 1].offset);
    struct off_job *c = post_jobs(io, now + 1, TRANSFER, OFF_NOW);
    settle(&f);
    assert_int_equal(f.n_push, n + now);
    for (int i = 1; i < now; i++)
        assert_int_equal(f.log[n + i].offset, c[i - 1].offset);
    assert_false(off_io_cancel(io, &a[0])); /* already begun */
    assert_true(off_io_cancel(io, &a[idle]));
    assert_int_equal(a[idle].state, OFF_JOB_IDLE);
    assert_false(off_io_cancel(io, &a[idle]));
    fake_free(&f, -1, false);
    assert_int_equal(a[idle].to[0], 0xa5);
    end_jobs(io, a, idle + 2);
    end_jobs(io, b, soon + 2);
    end_jobs(io, c, now + 1);
    off_io_close(io);
}

/* A later rank does not use an earlier rank's unused share. */
static void later_ranks_do_not_fill_what_an_earlier_one_leaves(void **state)
{
    (void)state;
    static struct fake f;
    int now = most_of(OFF_NOW);
    struct off_io *io = open_fake(&f, MAX_HELD, 0);
    struct off_job *a = post_jobs(io, now + 2, TRANSFER, OFF_NOW);
    struct off_job *b = post_jobs(io, 1, TRANSFER, OFF_SOON);
    settle(&f);
    fake_free(&f, 1, false);
    settle(&f);
    assert_int_equal(f.n_push, now + 1);
    fake_free(&f, -1, false);
    end_jobs(io, a, now + 2);
    end_jobs(io, b, 1);
    off_io_close(io);
}

/* An early read waits behind a soon one although its own rank has capacity. */
static void early_stands_behind_soon(void **state)
{
    (void)state;
    static struct fake f;
    int early = most_of(OFF_EARLY), soon = most_of(OFF_SOON);
    struct off_io *io = open_fake(&f, MAX_HELD, 0);
    f.in_order = true;
    struct off_job *a = post_jobs(io, early + 1, TRANSFER, OFF_EARLY);
    settle(&f);
    assert_int_equal(f.n_push, early);
    struct off_job *b = post_jobs(io, soon + 1, TRANSFER, OFF_SOON);
    settle(&f);
    assert_int_equal(f.n_push, early + soon);
    fake_free(&f, early, false);
    settle(&f);
    assert_int_equal(f.n_push, early + soon);
    fake_free(&f, -1, false);
    end_jobs(io, a, early + 1);
    end_jobs(io, b, soon + 1);
    off_io_close(io);
}

/* The rest of a job in progress is pushed at once when it is raised, although its rank is full. */
static void a_job_half_begun_is_raised(void **state)
{
    (void)state;
    static struct fake f;
    int soon = most_of(OFF_SOON);
    struct off_io *io = open_fake(&f, MAX_HELD, 0);
    struct off_job *a = post_jobs(io, soon - 1, TRANSFER, OFF_SOON);
    struct off_job *b = post_jobs(io, 1, 2 * TRANSFER, OFF_SOON);
    settle(&f);
    assert_int_equal(f.n_push, soon);
    off_io_raise(io, b);
    settle(&f);
    assert_int_equal(f.n_push, soon + 1);
    assert_int_equal(f.log[soon].offset, TRANSFER);
    fake_free(&f, -1, false);
    end_jobs(io, a, soon - 1);
    end_jobs(io, b, 1);
    off_io_close(io);
}

/* With one transfer at a time every wait is visible: no later rank begins while an earlier one waits. */
static void later_ranks_wait_for_earlier_ones(void **state)
{
    (void)state;
    static struct fake f;
    struct off_job job[6];
    struct off_io *io = open_fake(&f, 1, 0);
    job[0] = new_job(0, 0, 100, OFF_NOW);
    off_io_post(io, &job[0]);
    settle(&f);
    for (int i = 1; i < 6; i++) {
        job[i] = new_job(0, (uint64_t)i * OFF_PAGE, 100, i == 5 ? OFF_NOW : i < 3 ? OFF_IDLE : OFF_SOON);
        off_io_post(io, &job[i]);
    }
    off_io_raise(io, &job[2]);
    fake_free(&f, -1, false);
    static const int order[] = { 0, 5, 2, 3, 4, 1 };
    for (int i = 0; i < 6; i++)
        await(io, &job[i]);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(f.log[i].offset, (size_t)order[i] * OFF_PAGE);
        free(job[i].to);
    }
    off_io_close(io);
}

static void a_nudge_is_an_event(void **state)
{
    (void)state;
    static struct fake f;
    struct off_io *io = open_fake(&f, 1, 0);
    uint64_t seen = off_io_events(io);
    off_io_nudge(io);
    assert_int_equal(off_io_wait(io, seen), seen + 1);
    off_io_close(io);
}

/* Transfers in flight complete, the rest is dropped, and no memory is written after close has returned. */
static void closing_ends_every_job(void **state)
{
    (void)state;
    static struct fake f;
    for (int kind = -1; kind <= OFF_IO_PREAD; kind++) {
        struct off_job job[MAX_JOB];
        random_state = 3;
        struct off_io *io = kind < 0 ? open_fake(&f, 8, 0) : open_kind((enum off_io_kind)kind);
        if (!io && kind == OFF_IO_URING)
            continue;
        int n_dropped = 0;
        for (int i = 0; i < MAX_JOB; i++) {
            job[i] = kind < 0 ? new_job(0, 8, TRANSFER, OFF_IDLE) : random_job();
            off_io_post(io, &job[i]);
        }
        if (kind < 0) { /* with free capacity, so that closing must wake the thread */
            settle(&f);
            f.free_when_woken = true;
        }
        off_io_close(io);
        for (int i = 0; i < MAX_JOB; i++) {
            assert_int_equal(job[i].state, OFF_JOB_DONE);
            n_dropped += job[i].status == KN_ECANCELLED;
            assert_true(job[i].status == KN_ECANCELLED || is_right(&job[i]));
            free(job[i].to);
        }
        if (kind < 0)
            assert_true(n_dropped > 0 && n_dropped < MAX_JOB);
    }
}

/* ---- several threads ----------------------------------------------------------------------------- */

struct poster {
    struct off_io *io;
    uint64_t seed;
    bool failed;
};

static void *post_many(void *arg)
{
    struct poster *p = arg;
    for (uint64_t i = 0; i < 60; i++) {
        uint64_t r = kn_mix(p->seed * 1000 + i);
        struct off_job a = new_job((int)(r % 2), r % 4000000, 1 + r % 9000, (enum off_urgency)(r % 3));
        struct off_job b = new_job(0, r % 100000, 2000, OFF_IDLE);
        off_io_post(p->io, &b);
        off_io_post(p->io, &a);
        if (r % 5 == 0)
            off_io_raise(p->io, &a);
        if (!off_io_cancel(p->io, &b))
            await(p->io, &b);
        await(p->io, &a);
        p->failed |= !is_right(&a) || (b.state == OFF_JOB_DONE && !is_right(&b));
        free(a.to);
        free(b.to);
    }
    return NULL;
}

static void threads_post_and_wait_at_once(void **state)
{
    (void)state;
    for (enum off_io_kind kind = OFF_IO_AUTO; kind <= OFF_IO_PREAD; kind += 2) {
        struct off_io *io = open_kind(kind);
        struct poster p[4];
        pthread_t thread[4];
        assert_true(io != NULL);
        for (uint64_t i = 0; i < 4; i++) {
            p[i] = (struct poster){ io, i, false };
            assert_int_equal(pthread_create(&thread[i], NULL, post_many, &p[i]), 0);
        }
        for (int i = 0; i < 4; i++) {
            pthread_join(thread[i], NULL);
            assert_false(p[i].failed);
        }
        off_io_close(io);
    }
}

/* ---- real files and systems ------------------------------------------------------------------------- */

static int read_one(struct off_io *io, int file, uint64_t offset, size_t bytes)
{
    struct off_job j = new_job(file, offset, bytes, OFF_NOW);
    off_io_post(io, &j);
    await(io, &j);
    if (!j.status)
        assert_true(is_right(&j));
    free(j.to);
    return j.status;
}

static void a_file_cut_short_fails_what_it_lacks(void **state)
{
    (void)state;
    static const size_t cuts[] = { 3 << 20, (3 << 20) + 777, 4096, 1, 0 };
    for (enum off_io_kind kind = OFF_IO_AUTO; kind <= OFF_IO_PREAD; kind += 2)
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            faults_reset();
            struct off_io *io = open_kind(kind);
            faults.n_line = 0; /* the message about the ring, where it is refused */
            assert_int_equal(read_one(io, 0, 4096, 4 << 20), 0);
            assert_int_equal(truncate(disk.path[0], (off_t)cuts[i]), 0);
            assert_int_equal(read_one(io, 0, 4096, 4 << 20), KN_ESHORT);
            assert_int_equal(read_one(io, 0, 2 << 20, 2 << 20), KN_ESHORT);
            assert_int_equal(faults.n_line, 1);
            assert_non_null(strstr(faults.line, disk.path[0]));
            assert_non_null(strstr(faults.line, "cut short"));
            assert_int_equal(read_one(io, 1, 4096, 4 << 20), 0); /* other reads still succeed */
            if (cuts[i] > 4096)
                assert_int_equal(read_one(io, 0, 100, cuts[i] - 100), 0);
            off_io_close(io);
            assert_true(faults_clean());
            faults_off();
            write_file(0);
        }
}

static void files_without_names_and_directories(void **state)
{
    (void)state;
    for (enum off_io_kind kind = OFF_IO_AUTO; kind <= OFF_IO_PREAD; kind += 2) {
        faults_reset();
        char gone[80];
        snprintf(gone, sizeof gone, "%s-gone", disk.path[0]);
        assert_int_equal(link(disk.path[0], gone), 0);
        int fd[3] = { open(gone, O_RDONLY), open("/", O_RDONLY), disk.fd[1] };
        const char *name[3] = { gone, "/", disk.path[0] }; /* the third path is another file now */
        struct off_io *io;
        unlink(gone);
        assert_int_equal(
            off_io_open(&io, &(struct off_files){ 3, fd, name, NULL }, &(struct off_io_options){ .kind = kind }), 0);
        faults.n_line = 0;
        assert_int_equal(read_one(io, 0, 99, 99999), 0);
        assert_int_equal(faults.n_line, 0);
        assert_int_equal(read_one(io, 1, 99, 999), KN_EIO);
        assert_int_equal(faults.n_line, 1);
        assert_non_null(strstr(faults.line, strerror(EISDIR)));
        struct off_job j = new_job(2, 8, 99999, OFF_NOW);
        off_io_post(io, &j);
        await(io, &j);
        j.file = 1; /* which holds the right bytes */
        assert_true(is_right(&j));
        free(j.to);
        off_io_close(io);
        assert_true(faults_clean());
        close(fd[0]);
        close(fd[1]);
        faults_off();
    }
}

static void opening_fails_cleanly(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        int error;
        bool harmless;
    } ways[] = {
        { FAULT_ALLOC, ENOMEM, false }, { FAULT_OPEN, EMFILE, true }, { FAULT_OPEN, EINVAL, true },
        { FAULT_SIZE, EIO, true },      { FAULT_STAT, EIO, true },    { FAULT_FORGET, EIO, true },
    };
    for (enum off_io_kind kind = OFF_IO_AUTO; kind <= OFF_IO_PREAD; kind += 2)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            bool struck = true;
            for (long n = 1; struck; n++) {
                struct off_io *io;
                faults_at(ways[w].kind, n, FAULT_ERROR, ways[w].error);
                int got = off_io_open(&io, &disk.files, &(struct off_io_options){ .kind = kind });
                struck = faults.struck;
                faults.direct = ways[w].kind == FAULT_FORGET ? DIRECT_NO_READ : DIRECT_WORKS;
                if (!got) {
                    assert_int_equal(read_one(io, 0, 8, 99999), 0);
                    off_io_close(io);
                }
                assert_true(got ? got == KN_ENOMEM && faults.n_line == 1 && !ways[w].harmless
                                : faults.n_line <= (kind == OFF_IO_AUTO));
                assert_true(faults_clean() && n < 100);
            }
        }
    faults_off();
}

/* A file for which stat fails is not read with O_DIRECT; pages cached by buffered reads are dropped. */
static void what_the_page_cache_has_is_dropped(void **state)
{
    (void)state;
    for (int n = 0; n <= 2; n++) {
        struct off_io *io;
        faults_at(FAULT_STAT, n, FAULT_ERROR, ENOSYS); /* of the first file */
        assert_int_equal(off_io_open(&io, &disk.files, &(struct off_io_options){ .kind = OFF_IO_PREAD }), 0);
        assert_int_equal(read_one(io, 0, 8, 99999), 0);
        assert_int_equal(faults.n_direct > 0, n == 0);
        assert_int_equal(faults.calls[FAULT_FORGET], n > 0);
        assert_int_equal(read_one(io, 1, 8, 99999), 0);
        assert_int_equal(faults.calls[FAULT_FORGET], n > 0);
        off_io_close(io);
        assert_true(faults_clean());
    }
    faults_off();
}

/* Replaces the library's call into the kernel: from a given call on it is refused. */
static struct {
    pthread_mutex_t lock;
    long left; /* calls until the refusal; 0: never refuse */
    int error;
    bool lasts, struck;
} refusal = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool is_refused(void)
{
    pthread_mutex_lock(&refusal.lock);
    bool refused = refusal.left == 1;
    refusal.struck |= refused;
    if (refusal.left > 1 || (refused && !refusal.lasts))
        refusal.left--;
    pthread_mutex_unlock(&refusal.lock);
    return refused;
}

static void refuse(long at, int error, bool lasts)
{
    pthread_mutex_lock(&refusal.lock);
    refusal.left = at;
    refusal.error = error;
    refusal.lasts = lasts;
    refusal.struck = false;
    pthread_mutex_unlock(&refusal.lock);
}

static void refuse_no_more(void)
{
    pthread_mutex_lock(&refusal.lock);
    refusal.left = 0;
    pthread_mutex_unlock(&refusal.lock);
}

/* Returns whether the refusal has happened, and disables it if not. */
static bool has_struck(void)
{
    pthread_mutex_lock(&refusal.lock);
    bool struck = refusal.struck;
    refusal.left = struck ? refusal.left : 0;
    pthread_mutex_unlock(&refusal.lock);
    return struck;
}

int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned n,
                                     struct __kernel_timespec *wait, sigset_t *mask)
{
    static int (*ask)(struct io_uring *, struct io_uring_cqe **, unsigned, struct __kernel_timespec *, sigset_t *);
    if (is_refused())
        return refusal.error;
    if (!ask)
        *(void **)&ask = dlsym(RTLD_NEXT, "io_uring_submit_and_wait_timeout");
    return ask(ring, cqe, n, wait, mask);
}

/* Reads parts of a few files over a ring that is refused from call number `at` on; true: it was refused. */
static bool read_refused(long at, int error, bool lasts, bool close_at_once)
{
    struct off_job job[12];
    faults_reset();
    random_state = 5;
    struct off_io *io = open_kind(OFF_IO_URING);
    if (!io)
        skip();
    refuse(at, error, lasts);
    for (int i = 0; i < 12; i++) {
        if (i == 6 && !close_at_once) /* the rest in at least one more call */
            await(io, &job[0]);
        job[i] = random_job();
        off_io_post(io, &job[i]);
    }
    for (int i = 1; i < 12 && !close_at_once; i++)
        await(io, &job[i]);
    bool struck = !close_at_once && has_struck();
    if (!close_at_once) {
        do /* a completion in the same call may hide a refusal once */
            assert_int_equal(read_one(io, 1, 8, 99999), 0);
        while (struck && lasts && strcmp(off_io_name(io), "pread"));
        refuse_no_more();
        assert_string_equal(off_io_name(io), struck && lasts ? "pread" : "io_uring");
        assert_int_equal(faults.n_line, struck && lasts);
    }
    off_io_close(io);
    refuse_no_more();
    for (int i = 0; i < 12; i++) {
        assert_true(is_right(&job[i]) || (close_at_once && job[i].status == KN_ECANCELLED));
        free(job[i].to);
    }
    assert_true(faults.n_line <= 1 && (!faults.n_line || strstr(faults.line, strerror(-error))));
    assert_true(faults_clean());
    faults_off();
    return struck;
}

/* The ring dies with any transfers inside, also while it is closed: reported, and reads continue without it. */
static void a_ring_that_dies_is_said_and_done_without(void **state)
{
    (void)state;
    static const int errors[] = { -EBADF, -EPERM, -EINVAL, -EFAULT, -EIO };
    static const int passing[] = { -EINTR, -EAGAIN, -EBUSY, -ENOMEM };
    int n_struck = 0;
    for (long at = 1; read_refused(at, errors[at % 5], true, false); at += 1 + at / 3)
        n_struck++;
    assert_true(n_struck >= 2);
    for (long at = 1; at < 9; at++)
        read_refused(at, errors[at % 5], true, true);
    for (long at = 1; at < 9; at++)
        read_refused(at, passing[at % 4], false, false);
    assert_true(read_refused(2, -EAGAIN, true, false)); /* a temporary error that does not end */
}

/* Write end of the ring's pipe, duplicated: while it is open the kernel still holds the transfer. */
static int kept_end = -1;
static bool keeps_end;

int pipe2(int end[2], int flags)
{
    int error = (int)syscall(SYS_pipe2, end, flags);
    if (!error && keeps_end)
        kept_end = dup(end[1]);
    return error;
}

/* The kernel may still write to the memory of transfers inside: jobs end only after it has released them. */
static void a_ring_that_dies_is_waited_for(void **state)
{
    (void)state;
    faults_reset();
    keeps_end = true;
    struct off_io *io = open_kind(OFF_IO_URING);
    keeps_end = false;
    if (!io)
        skip();
    struct off_job j = new_job(0, 8, 99999, OFF_NOW), k = new_job(1, 8, 99999, OFF_NOW);
    refuse(1, -EBADF, true);
    off_io_post(io, &j);
    usleep(20000); /* long enough to see a wrong early end */
    off_io_post(io, &k);
    usleep(20000);
    assert_true(j.state != OFF_JOB_DONE && k.state != OFF_JOB_DONE);
    close(kept_end);
    await(io, &j);
    await(io, &k);
    assert_true(is_right(&j) && is_right(&k));
    refuse_no_more();
    off_io_close(io);
    free(j.to);
    free(k.to);
    assert_true(faults_clean());
    faults_off();
}

/* Thread creation fails too, for a while. */
static void a_ring_that_dies_without_memory_fails_what_it_reads(void **state)
{
    (void)state;
    faults_reset();
    struct off_io *io = open_kind(OFF_IO_URING);
    if (!io)
        skip();
    assert_int_equal(read_one(io, 0, 8, 99999), 0);
    faults.kind = FAULT_ALLOC;
    faults.way = FAULT_LASTS;
    faults.at = 1;
    refuse(1, -EBADF, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(read_one(io, 0, 8, 99999), KN_ENOMEM);
    faults.way = FAULT_NONE;
    assert_int_equal(read_one(io, 0, 8, 99999), 0);
    assert_string_equal(off_io_name(io), "pread");
    refuse_no_more();
    off_io_close(io);
    assert_true(faults_clean());
    faults_off();
}

/* In a child process, because a seccomp filter stays: io_uring_setup fails with an errno, as in containers. */
static int refused_in_child(int sys, int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)sys, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof code / sizeof *code, code };
    struct off_io *io;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return 100;
    faults_reset();
    if (off_io_open(&io, &disk.files, &(struct off_io_options){ .kind = OFF_IO_URING }) != KN_EUNSUPPORTED ||
        faults.n_line != 1 || !strstr(faults.line, strerror(error)))
        return 1;
    faults_reset();
    for (int i = 0; i < 2; i++) { /* the message is printed once */
        if (!(io = open_kind(OFF_IO_AUTO)) || strcmp(off_io_name(io), "pread") != 0)
            return 2;
        if (read_one(io, 0, 8, 99999) || faults.n_line != 1 || !strstr(faults.line, strerror(error)))
            return 3;
        off_io_close(io);
    }
    faults_reset();
    if (!(io = open_kind(OFF_IO_PREAD)) || faults.n_line != 0)
        return 4;
    off_io_close(io);
    return faults_clean() ? 0 : 5;
}

static void a_refused_ring_is_said_and_done_without(void **state)
{
    (void)state;
    static const int calls[] = { SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register };
    static const int errors[] = { EPERM, ENOSYS, ENOMEM, EACCES, EINTR };
    for (int c = 0; c < 3; c++)
        for (int e = 0; e < 5; e++) {
            int status;
            pid_t child = fork();
            if (child == 0)
                _exit(refused_in_child(calls[c], errors[e]));
            assert_int_equal(waitpid(child, &status, 0), child);
            if (WIFEXITED(status) && WEXITSTATUS(status) == 100) {
                print_message("skipped: no seccomp filters here\n");
                skip();
            }
            if (!WIFEXITED(status) || WEXITSTATUS(status))
                fail_msg("call %d refused with %s: child says %x", c, strerror(errors[e]), status);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_ring_is_said_and_done_without), /* before threads are started */
        cmocka_unit_test(bytes_are_the_files_in_any_order),
        cmocka_unit_test(threads_and_ring_give_the_same),
        cmocka_unit_test(whatever_is_answered_bytes_are_right_or_one_job_fails),
        cmocka_unit_test(a_job_that_fails_is_not_read_on),
        cmocka_unit_test(a_disk_that_stalls_is_said_and_waited_for),
        cmocka_unit_test(what_is_needed_now_goes_first),
        cmocka_unit_test(later_ranks_do_not_fill_what_an_earlier_one_leaves),
        cmocka_unit_test(early_stands_behind_soon),
        cmocka_unit_test(a_job_half_begun_is_raised),
        cmocka_unit_test(later_ranks_wait_for_earlier_ones),
        cmocka_unit_test(a_nudge_is_an_event),
        cmocka_unit_test(closing_ends_every_job),
        cmocka_unit_test(threads_post_and_wait_at_once),
        cmocka_unit_test(a_file_cut_short_fails_what_it_lacks),
        cmocka_unit_test(files_without_names_and_directories),
        cmocka_unit_test(opening_fails_cleanly),
        cmocka_unit_test(a_ring_that_dies_is_said_and_done_without),
        cmocka_unit_test(a_ring_that_dies_is_waited_for),
        cmocka_unit_test(a_ring_that_dies_without_memory_fails_what_it_reads),
        cmocka_unit_test(what_the_page_cache_has_is_dropped),
    };
    return cmocka_run_group_tests(tests, make_disk, remove_disk);
}
