/* Two copies of the model: each drive reads its share; a partial or failing second copy changes no byte and fails no
 * read; and a file that is not a copy is not read.
 *
 * Shares are tested over simulated drives on a simulated clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/internal.h"
#include "tests/offload/experts.h"

#define FILE_BYTES (((size_t)5 << 20) + 777)
#define PIECE      ((size_t)1 << 20)
#define MAX_HELD   64

static char folder[2][64], path[2][2][80]; /* [copy]; [copy][file] */
static const char *name[2];
static uint8_t *data[2];
static int fd[2];
static struct off_files files = { 2, fd, name, NULL };

static void write_copy(int copy, int file, size_t bytes)
{
    FILE *f = fopen(path[copy][file], "wb");
    if (!f || fwrite(data[file], 1, bytes, f) != bytes || fclose(f))
        abort();
}

static int make_files(void **state)
{
    (void)state;
    for (int copy = 0; copy < 2; copy++) {
        snprintf(folder[copy], sizeof folder[copy], "/tmp/spillway-mirror-%d-%d", getpid(), copy);
        if (mkdir(folder[copy], 0700))
            return 1;
        for (int i = 0; i < 2; i++)
            snprintf(path[copy][i], sizeof path[copy][i], "%s/%c", folder[copy], 'a' + i);
    }
    for (int i = 0; i < 2; i++) {
        data[i] = malloc(FILE_BYTES);
        for (size_t at = 0; at < FILE_BYTES; at++)
            data[i][at] = (uint8_t)kn_mix(at * 2 + (size_t)i);
        write_copy(0, i, FILE_BYTES);
        name[i] = path[0][i];
        fd[i] = open(name[i], O_RDONLY);
    }
    return fd[0] < 0 || fd[1] < 0;
}

static void remove_second(void)
{
    for (int i = 0; i < 2; i++)
        unlink(path[1][i]);
}

static int remove_files(void **state)
{
    (void)state;
    remove_second();
    for (int i = 0; i < 2; i++) {
        close(fd[i]);
        unlink(path[0][i]);
        free(data[i]);
    }
    return rmdir(folder[0]) || rmdir(folder[1]);
}

/* ---- jobs -------------------------------------------------------------------------------------------- */

static struct off_job new_job(int file, uint64_t offset, size_t bytes)
{
    struct off_job j = { .file = file, .offset = offset, .bytes = bytes, .urgency = OFF_NOW };
    j.to = aligned_alloc(OFF_PAGE, kn_align_up(offset % OFF_PAGE + bytes, OFF_PAGE));
    return j;
}

static bool is_right(const struct off_job *j)
{
    return j->status == 0 && !memcmp(j->to + j->offset % OFF_PAGE, data[j->file] + j->offset, j->bytes);
}

static int open_io(struct off_io **io, struct off_mirror *m, enum off_io_kind kind, struct off_mover *mover)
{
    struct off_files both = files;
    both.mirror = m;
    return off_io_open(io, &both, &(struct off_io_options){ .kind = kind, .mover = mover });
}

static struct off_mirror *open_mirror(void)
{
    struct off_mirror *m = NULL;
    assert_int_equal(off_mirror_open(&m, folder[1], &files, NULL), 0);
    return m;
}

/* Reads both files completely. The first job has several pieces, pushed at once before any rate is known, so both
 * copies are read. */
static void read_whole(struct off_io *io, int first)
{
    for (int i = 0; i < 2; i++) {
        struct off_job j = new_job(i ^ first, 5, FILE_BYTES - 5);
        off_io_post(io, &j);
        off_io_await(io, &j);
        assert_true(is_right(&j));
        free(j.to);
    }
}

/* ---- shares of the drives ---------------------------------------------------------------------------- */

/* Drives that carry out one transfer after another, each at its rate; the clock advances to each transfer's end. */
struct drives {
    struct off_mover mover;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool go, woken;
    double ns_per_byte[2], free_at[2];
    uint64_t read[2];
    struct {
        struct off_transfer *t;
        double ends;
    } held[MAX_HELD];
    int n_held;
};

static atomic_uint_fast64_t now_ns;
static uint64_t clock_now(void) { return now_ns; }

static void drives_push(struct off_mover *m, struct off_transfer *t)
{
    struct drives *d = (struct drives *)m;
    int drive = t->file / 4;
    double begins = d->free_at[drive] > (double)now_ns ? d->free_at[drive] : (double)now_ns;
    assert_true(d->n_held < MAX_HELD);
    d->free_at[drive] = begins + d->ns_per_byte[drive] * (double)t->bytes;
    d->held[d->n_held].t = t;
    d->held[d->n_held++].ends = d->free_at[drive];
    d->read[drive] += t->bytes;
}

static struct off_transfer *drives_pull(struct off_mover *m, uint64_t wait_ns)
{
    struct drives *d = (struct drives *)m;
    (void)wait_ns;
    pthread_mutex_lock(&d->lock);
    while (!d->woken && (!d->go || !d->n_held))
        pthread_cond_wait(&d->changed, &d->lock);
    bool go = d->go && d->n_held;
    d->woken = false;
    pthread_mutex_unlock(&d->lock);
    if (!go)
        return NULL;
    int at = 0;
    for (int i = 1; i < d->n_held; i++)
        if (d->held[i].ends < d->held[at].ends)
            at = i;
    struct off_transfer *t = d->held[at].t;
    now_ns = (uint64_t)d->held[at].ends;
    d->held[at] = d->held[--d->n_held];
    t->result = pread(t->fd, t->to, t->bytes, (off_t)t->offset);
    t->next = NULL;
    return t;
}

static void drives_wake(struct off_mover *m)
{
    struct drives *d = (struct drives *)m;
    pthread_mutex_lock(&d->lock);
    d->woken = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

static void drives_go(struct drives *d)
{
    pthread_mutex_lock(&d->lock);
    d->go = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

static void drives_close(struct off_mover *m) { (void)m; }

/* The second drive's share of all bytes. */
static double part_of_second(double first, double second)
{
    enum { N = 400 };
    static const struct off_mover_ops ops = { "drives", drives_close, drives_push, drives_pull, drives_wake };
    struct drives d = { .mover = { &ops, 40, 0 },
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .changed = PTHREAD_COND_INITIALIZER,
                        .ns_per_byte = { 1 / first, 1 / second } };
    struct kn_io io = kn_io_system;
    struct off_io *reader;
    struct off_job job[N];
    io.now_ns = clock_now;
    kn_io_set(&io);
    struct off_mirror *m = open_mirror();
    assert_int_equal(open_io(&reader, m, OFF_IO_AUTO, &d.mover), 0);
    for (int i = 0; i < N; i++) {
        job[i] = new_job(0, PIECE * (size_t)(i % 5), PIECE);
        off_io_post(reader, &job[i]);
    }
    drives_go(&d);
    for (int i = 0; i < N; i++) {
        assert_int_equal(off_io_await(reader, &job[i]), 0);
        assert_true(is_right(&job[i]));
        free(job[i].to);
    }
    off_io_close(reader);
    assert_int_equal(off_mirror_read(m), d.read[1]);
    off_mirror_close(m);
    kn_io_set(NULL);
    return (double)d.read[1] / (double)(d.read[0] + d.read[1]);
}

static void each_drive_gives_its_part(void **state)
{
    (void)state;
    static const double rate[][2] = { { 1, 1 }, { 3, 1 }, { 1, 3 }, { 2, 0.5 }, { 0.2, 0.3 } };
    write_copy(1, 0, FILE_BYTES);
    for (size_t i = 0; i < sizeof rate / sizeof *rate; i++) {
        double want = rate[i][1] / (rate[i][0] + rate[i][1]), got = part_of_second(rate[i][0], rate[i][1]);
        if (got < want - 0.06 || got > want + 0.06)
            fail_msg("rates %g and %g: the second gave %g", rate[i][0], rate[i][1], got);
    }
    assert_true(part_of_second(2, 0.02) < 0.03);
    remove_second();
}

/* ---- a partial copy ----------------------------------------------------------------------------------- */

static void whole_cut_short_or_not_there(void **state)
{
    (void)state;
    static const struct {
        size_t bytes[2];
        bool reads;
    } ways[] = {
        { { FILE_BYTES, FILE_BYTES }, true }, { { FILE_BYTES, 0 }, true }, { { 0, FILE_BYTES }, true },
        { { (3 << 20) + 100, 0 }, true },     { { 0, 2 << 20 }, true },    { { 0, 0 }, false },
    };
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        for (enum off_io_kind kind = OFF_IO_AUTO; kind <= OFF_IO_PREAD; kind += 2) {
            struct off_io *io;
            faults_reset();
            for (int i = 0; i < 2; i++)
                if (ways[w].bytes[i])
                    write_copy(1, i, ways[w].bytes[i]);
            struct off_mirror *m = open_mirror();
            assert_int_equal(faults.n_line, !ways[w].reads);
            assert_true(ways[w].reads || strstr(faults.line, folder[1]));
            faults.n_line = 0;
            assert_int_equal(open_io(&io, m, kind, NULL), 0);
            faults.n_line = 0; /* the message about the ring, where it is refused */
            read_whole(io, !ways[w].bytes[0]);
            assert_int_equal(off_mirror_read(m) > 0, ways[w].reads);
            assert_true(off_mirror_read(m) <= ways[w].bytes[0] + ways[w].bytes[1]);
            assert_int_equal(faults.n_line, 0);
            off_io_close(io);
            off_mirror_close(m);
            assert_true(faults_clean());
            faults_off();
            remove_second();
        }
}

static void what_is_no_copy_is_not_read(void **state)
{
    (void)state;
    static const char *const says[] = { "other bytes", "other bytes",       "longer",
                                        "empty",       "first copy itself", "cannot be compared" };
    for (int way = 0; way < 6; way++) {
        faults_reset();
        if (way < 4)
            write_copy(1, 0, way == 3 ? 0 : FILE_BYTES);
        if (way == 2)
            assert_int_equal(truncate(path[1][0], (off_t)FILE_BYTES + 1), 0);
        if (way == 4)
            assert_int_equal(link(path[0][0], path[1][0]), 0);
        if (way == 5)
            assert_int_equal(mkdir(path[1][0], 0700), 0);
        int one = open(path[1][0], O_WRONLY);
        if (way < 2) /* the first byte differs, the last byte differs */
            assert_int_equal(
                pwrite(one, &(char){ (char)~data[0][way ? FILE_BYTES - 1 : 0] }, 1, way ? (off_t)FILE_BYTES - 1 : 0),
                1);
        close(one);
        write_copy(1, 1, FILE_BYTES);
        struct off_mirror *m = open_mirror();
        struct off_io *io;
        assert_int_equal(faults.n_line, 1);
        if (!strstr(faults.line, path[1][0]) || (way < 5 && !strstr(faults.line, says[way])))
            fail_msg("way %d: %s", way, faults.line);
        assert_int_equal(open_io(&io, m, OFF_IO_PREAD, NULL), 0);
        assert_int_equal(off_mirror_fd(m, 0), -1);
        read_whole(io, 1);
        assert_true(off_mirror_read(m) > 0); /* the other file is still read from the copy */
        off_io_close(io);
        off_mirror_close(m);
        assert_true(faults_clean());
        faults_off();
        rmdir(path[1][0]);
        remove_second();
    }
}

static void opening_fails_cleanly(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        int error;
    } ways[] = {
        { FAULT_ALLOC, ENOMEM }, { FAULT_OPEN, EACCES }, { FAULT_SIZE, EIO }, { FAULT_STAT, EIO }, { FAULT_READ, EIO },
    };
    write_copy(1, 0, FILE_BYTES);
    write_copy(1, 1, FILE_BYTES);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        bool struck = true;
        for (long n = 1; struck; n += 1 + n / 8) {
            struct off_mirror *m = NULL;
            faults_at(ways[w].kind, n, FAULT_ERROR, ways[w].error);
            int got = off_mirror_open(&m, folder[1], &files, NULL);
            struck = faults.struck;
            assert_int_equal(got, struck && ways[w].kind == FAULT_ALLOC ? KN_ENOMEM : 0);
            assert_int_equal(faults.n_line, struck);
            off_mirror_close(m);
            assert_true(faults_clean());
        }
    }
    faults_off();
    remove_second();
}

/* ---- failures during a read --------------------------------------------------------------------------- */

static struct {
    int error;
    atomic_bool fails, flips;
    atomic_bool is_second[FAULTS_FD], is_direct[FAULTS_FD];
} drive;

static int second_open(const char *p, int flags, int mode)
{
    int got = kn_io_system.open(p, flags & ~O_DIRECT, mode);
    if (got >= 0 && got < FAULTS_FD) {
        drive.is_second[got] = strstr(p, folder[1]) != NULL;
        drive.is_direct[got] = flags & O_DIRECT;
    }
    return got;
}

static ssize_t second_pread(int from, void *buf, size_t bytes, int64_t at)
{
    bool second = drive.is_second[from];
    if (second && drive.fails) {
        errno = drive.error;
        return drive.error ? -1 : 0;
    }
    ssize_t n = kn_io_system.pread(from, buf, bytes, at);
    if (second && drive.flips && drive.is_direct[from] && n > 0)
        ((uint8_t *)buf)[n / 2] ^= 1;
    return n;
}

static void set_drive(bool flips, int error)
{
    static struct kn_io io;
    io = kn_io_system;
    io.open = second_open;
    io.pread = second_pread;
    kn_io_set(&io);
    drive.flips = flips;
    drive.fails = false;
    drive.error = error;
    faults_listen();
}

static void one_that_fails_is_said_and_done_without(void **state)
{
    (void)state;
    static const int errors[] = { EIO, ENODEV, 0, EINTR, EAGAIN };
    write_copy(1, 0, FILE_BYTES);
    write_copy(1, 1, FILE_BYTES);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct off_io *io;
        set_drive(false, errors[i]);
        struct off_mirror *m = open_mirror();
        assert_int_equal(open_io(&io, m, OFF_IO_PREAD, NULL), 0);
        read_whole(io, 0);
        assert_int_equal(faults.n_line, 0);
        assert_true(off_mirror_read(m) > 0);
        off_io_close(io);
        for (int again = 0; again < 2; again++) { /* also by another reader */
            assert_int_equal(open_io(&io, m, OFF_IO_PREAD, NULL), 0);
            drive.fails = true;
            read_whole(io, 0);
            uint64_t read = off_mirror_read(m);
            read_whole(io, 0);
            assert_int_equal(off_mirror_read(m), read);
            assert_int_equal(faults.n_line, 1);
            assert_non_null(strstr(faults.line, path[1][0]));
            assert_non_null(strstr(faults.line, errors[i] ? strerror(errors[i]) : "shorter"));
            off_io_close(io);
        }
        off_mirror_close(m);
        faults_listen_off();
        kn_io_set(NULL);
    }
    remove_second();
}

/* A pack file has checksums: an expert damaged in the second copy is read from the first; the file stays in use. */
static void what_is_damaged_in_it_is_read_from_the_first(void **state)
{
    (void)state;
    struct model *m = open_model(1, 4, 2000);
    char pack[2][160];
    struct off_packed packed;
    struct off_store *s;
    struct off_stats stats;
    for (int copy = 0; copy < 2; copy++) {
        snprintf(pack[copy], sizeof pack[copy], "%s/p.experts", folder[copy]);
        assert_int_equal(off_pack(pack[copy],
                                  &(struct off_pack_options){ .files = { 1, &m->fd, &m->name, NULL },
                                                              .expert = m->expert,
                                                              .n_expert = m->n_expert,
                                                              .model_id = 7,
                                                              .io = OFF_IO_PREAD,
                                                              .ops = kn_ops(KN_ISA_COUNT - 1),
                                                              .team = m->team },
                                  &packed),
                         0);
    }
    for (int flips = 0; flips < 2; flips++) {
        struct off_files of = { 1, &m->fd, &m->name, NULL };
        set_drive(flips, 0);
        assert_int_equal(off_mirror_open(&of.mirror, folder[1], &of, pack[0]), 0);
        assert_int_equal(off_store_open(&s, &(struct off_store_options){ .files = of,
                                                                         .expert = m->expert,
                                                                         .n_expert = m->n_expert,
                                                                         .io = OFF_IO_PREAD,
                                                                         .pack_path = pack[0],
                                                                         .model_id = 7 }),
                         0);
        struct asker *a = open_asker(s, m);
        for (int e = 0; e < m->n_expert; e++)
            a->expert[e] = e;
        a->n = m->n_expert;
        ask(a, 0);
        ask(a, 0);
        assert_int_equal(a->n_wrong + a->n_failed, 0);
        off_stats_get(s, &stats);
        assert_int_equal(stats.n_packed, m->n_expert);
        assert_true(stats.mirror_bytes > 0);
        assert_int_equal(faults.n_line, flips);
        assert_true(!flips || strstr(faults.line, pack[1]));
        close_asker(a);
        off_store_close(s);
        off_mirror_close(of.mirror);
        faults_listen_off();
        kn_io_set(NULL);
    }
    for (int copy = 0; copy < 2; copy++)
        unlink(pack[copy]);
    close_model(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_drive_gives_its_part),
        cmocka_unit_test(whole_cut_short_or_not_there),
        cmocka_unit_test(what_is_no_copy_is_not_read),
        cmocka_unit_test(opening_fails_cleanly),
        cmocka_unit_test(one_that_fails_is_said_and_done_without),
        cmocka_unit_test(what_is_damaged_in_it_is_read_from_the_first),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
