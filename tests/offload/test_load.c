/* Bulk loading: for all sizes, formats, offsets and orders of arrival, the loaded memory equals the
 * repacked bytes of the file; a failure is reported once and leaves no memory or thread
 * behind.
 *
 * Bytes are random: repacking moves them and does not interpret them. The reference is the specification's
 * repack on one thread; loading uses the best instruction set and a team.
 *
 * Its threads are those of test_store.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/offload.h"
#include "tests/faults.h"

#ifdef __SANITIZE_THREAD__ /* instrumented bytes are slow, and one thread has no races */
#define FIRST_TEAM 2
#define SHARE(n)   ((n) / 3 + 1)
#else
#define FIRST_TEAM 1
#define SHARE(n)   (n)
#endif
#define MAX_LOAD 512
#define GUARD    64 /* guard bytes after each matrix */

struct files {
    char path[2][64];
    const char *name[2];
    int fd[2];
    uint8_t *data[2];
    size_t n[2];
};

struct set { /* matrices, and their expected bytes */
    struct files files;
    struct off_load load[MAX_LOAD];
    uint8_t *want[MAX_LOAD];
    size_t bytes[MAX_LOAD];
    int n;
};

static uint64_t random_state;
static int random_below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

/* ---- making sets ----------------------------------------------------------------------------- */

static void *take(size_t bytes)
{
    void *p = aligned_alloc(4096, kn_align_up(bytes, 4096));
    if (!p)
        abort();
    return p;
}

/* A stride permutation of rows or parts of rows after a first part in plain order; or none. */
static struct off_stride_permutation turn_of(int n_out, size_t row)
{
    struct off_stride_permutation t = { .bytes = row };
    if (random_below(3) == 0) { /* a permutation of the parts within every row */
        for (t.n = 12; row % (size_t)t.n; t.n--)
            ;
        t.bytes = row / (size_t)t.n;
    } else {
        int first = random_below(n_out), most = n_out - first;
        for (t.n = 1 + random_below(most < 64 ? most : 64); most % t.n; t.n--)
            ;
        t.first = (uint64_t)first * row;
    }
    for (t.by = 1 + random_below(t.n); t.n % t.by; t.by--)
        ;
    return t;
}

/* Undoes the permutation: the n units are stored as `by` lists, and unit i is entry i / by of list i % by. */
static uint8_t *in_order(const uint8_t *rows, size_t bytes, const struct off_stride_permutation *t)
{
    uint8_t *out = malloc(bytes + 1);
    memcpy(out, rows, bytes);
    for (uint64_t at = t->first; t->n && at < bytes; at += (uint64_t)t->n * t->bytes)
        for (int list = 0, lying = 0; list < t->by; list++)
            for (int i = list; i < t->n; i += t->by, lying++)
                memcpy(out + at + (size_t)i * t->bytes, rows + at + (size_t)lying * t->bytes, t->bytes);
    return out;
}

/* A matrix at the file's next free offset, never on a page, and memory for it. */
static void add_matrix(struct set *s, enum kn_format f, int n_out, int n_block)
{
    int n_in = n_block * kn_format_info(f)->block_values, file = random_below(2), i = s->n++;
    size_t bytes = (size_t)n_out * kn_row_bytes(f, n_in);
    struct files *to = &s->files;
    size_t offset = kn_align_up(to->n[file], 8) + 8 * (size_t)random_below(25);
    to->data[file] = realloc(to->data[file], offset + bytes);
    for (size_t at = to->n[file]; at < offset + bytes; at++)
        to->data[file][at] = (uint8_t)kn_mix(at * 7 + (size_t)file);
    to->n[file] = offset + bytes;
    s->bytes[i] = kn_mat_bytes(f, n_out, n_in);
    s->want[i] = take(s->bytes[i]);
    struct off_stride_permutation turn = { 0 };
    if (random_below(3) == 0)
        turn = turn_of(n_out, kn_row_bytes(f, n_in));
    uint8_t *rows = in_order(to->data[file] + offset, bytes, &turn);
    kn_ops(KN_ISA_SCALAR)->repack(f, rows, n_out, n_in, s->want[i], 0, kn_ceil_div(n_out, KN_PANEL));
    free(rows);
    s->load[i].source = (struct off_source){
        .file = file, .offset = offset, .format = f, .n_out = n_out, .n_in = n_in, .turn = turn
    };
    s->load[i].place = take(off_place_bytes(&s->load[i].source) + GUARD);
}

static void write_file(const struct files *f, int i)
{
    FILE *out = fopen(f->path[i], "wb");
    if (!out || fwrite(f->data[i], 1, f->n[i], out) != f->n[i] || fclose(out))
        abort();
}

static void save(struct files *f)
{
    for (int i = 0; i < 2; i++) {
        snprintf(f->path[i], sizeof f->path[i], "/tmp/spillway-load-%d-%d", getpid(), i);
        f->name[i] = f->path[i];
        write_file(f, i);
        f->fd[i] = open(f->path[i], O_RDONLY);
        assert_true(f->fd[i] >= 0);
    }
}

static struct set *make_tiny(int n)
{
    struct set *s = calloc(1, sizeof *s);
    static const int rows[] = { 1, 15, 16, 17, 31, 33, 48, 100 };
    random_state = 1;
    for (int i = 0; i < n; i++)
        add_matrix(s, (enum kn_format)(i % KN_FORMAT_COUNT), rows[random_below(8)], 1 + random_below(3));
    save(&s->files);
    return s;
}

/* Matrices of several pieces each, one with panels larger than a piece, and tiny ones between. */
static struct set *make_large(void)
{
    struct set *s = calloc(1, sizeof *s);
    random_state = 2;
    add_matrix(s, KN_Q4_K, 1001, 32);
    add_matrix(s, KN_F32, 3, 5);
    add_matrix(s, KN_F32, 40, 70000);
    add_matrix(s, KN_Q8_0, 2000, 128);
    add_matrix(s, KN_Q6_K, 17, 1);
    add_matrix(s, KN_Q6_K, 333, 80);
    add_matrix(s, KN_BF16, 1, 1);
    add_matrix(s, KN_F16, 2200, 1000);
    save(&s->files);
    return s;
}

static void free_set(struct set *s)
{
    for (int i = 0; i < 2; i++) {
        close(s->files.fd[i]);
        unlink(s->files.path[i]);
        free(s->files.data[i]);
    }
    for (int i = 0; i < s->n; i++) {
        free(s->want[i]);
        free(s->load[i].place);
    }
    free(s);
}

/* ---- loading them ---------------------------------------------------------------------------- */

static int load_by(struct set *s, struct kn_team *team, enum off_io_kind kind, struct off_progress *progress)
{
    struct off_files files = { 2, s->files.fd, s->files.name, NULL };
    struct off_hands hands = { .ops = kn_ops(KN_ISA_COUNT - 1), .team = team };
    for (int i = 0; i < s->n; i++) {
        size_t bytes = off_scratch_bytes(&s->load[i].source, kn_team_size(team));
        hands.scratch_bytes = bytes > hands.scratch_bytes ? bytes : hands.scratch_bytes;
        memset(s->load[i].place, 0xa5, off_place_bytes(&s->load[i].source) + GUARD);
    }
    hands.scratch = take(hands.scratch_bytes * (size_t)kn_team_size(team));
    int error = off_load(&files, kind, s->load, s->n, &hands, progress);
    free(hands.scratch);
    return error;
}

static int load(struct set *s, struct kn_team *team, struct off_progress *progress)
{
    return load_by(s, team, OFF_IO_PREAD, progress);
}

static bool is_right(const struct set *s)
{
    for (int i = 0; i < s->n; i++) {
        const struct off_source *m = &s->load[i].source;
        const uint8_t *behind = (uint8_t *)s->load[i].place + off_place_bytes(m);
        if (memcmp(off_place_panels(m, s->load[i].place), s->want[i], s->bytes[i]) != 0)
            return false;
        for (size_t k = 0; k < GUARD; k++)
            if (behind[k] != 0xa5)
                return false;
    }
    return true;
}

static void shuffle(struct set *s)
{
    for (int i = s->n - 1; i > 0; i--) {
        int k = random_below(i + 1);
        struct off_load l = s->load[i];
        uint8_t *w = s->want[i];
        size_t b = s->bytes[i];
        s->load[i] = s->load[k], s->want[i] = s->want[k], s->bytes[i] = s->bytes[k];
        s->load[k] = l, s->want[k] = w, s->bytes[k] = b;
    }
}

static struct kn_team *open_team(int n)
{
    struct kn_team *team;
    assert_int_equal(kn_team_open(&team, n), 0);
    return team;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static void many_small_matrices_arrive_in_any_order(void **state)
{
    (void)state;
    struct set *s = make_tiny(300);
    for (int n_thread = FIRST_TEAM; n_thread <= 3; n_thread++) {
        struct kn_team *team = open_team(n_thread);
        for (int i = 0; i < SHARE(60 / n_thread / n_thread); i++) {
            struct off_progress progress = { 0 };
            size_t bytes = 0;
            shuffle(s);
            assert_int_equal(load(s, team, &progress), 0);
            assert_true(is_right(s));
            for (int k = 0; k < s->n; k++)
                bytes += (size_t)s->load[k].source.n_out *
                         kn_row_bytes(s->load[k].source.format, s->load[k].source.n_in);
            assert_int_equal(progress.done_bytes, bytes);
        }
        kn_team_close(team);
    }
    free_set(s);
}

/* A load with progress.stop set ends: nothing is repacked, and no message is printed. */
static void a_load_that_is_stopped_ends(void **state)
{
    (void)state;
    struct set *s = make_tiny(20);
    struct kn_team *team = open_team(2);
    struct off_progress progress = { 0 };
    atomic_store(&progress.stop, true);
    assert_int_equal(load(s, team, &progress), KN_ECANCELLED);
    assert_int_equal(progress.done_bytes, 0);
    atomic_store(&progress.stop, false);
    assert_int_equal(load(s, team, &progress), 0);
    assert_true(is_right(s));
    kn_team_close(team);
    free_set(s);
}

static void large_matrices_are_cut_and_joined(void **state)
{
    (void)state;
    struct set *s = make_large();
    struct kn_team *team = open_team(2);
    static const enum fault_direct ways[] = { DIRECT_WORKS, DIRECT_NO_OPEN, DIRECT_NO_READ, DIRECT_SHORT, DIRECT_ODD };
    for (int i = 0; i < SHARE(5); i++) {
        faults_reset();
        faults.direct = ways[i];
        assert_int_equal(load(s, team, NULL), 0);
        assert_true(is_right(s));
        assert_true(faults.n_direct > 0 || ways[i] == DIRECT_NO_OPEN || ways[i] == DIRECT_NO_READ);
        assert_int_equal(faults.n_line, 0);
        assert_true(faults_clean());
    }
    faults_off();
    for (enum off_io_kind kind = OFF_IO_AUTO; kind <= OFF_IO_PREAD; kind += 2) {
        assert_int_equal(load_by(s, team, kind, NULL), 0); /* and with this file system's own O_DIRECT */
        assert_true(is_right(s));
    }
    kn_team_close(team);
    free_set(s);
}

static void nothing_to_load_is_no_error(void **state)
{
    (void)state;
    struct kn_team *team = open_team(2);
    faults_reset();
    assert_int_equal(off_load(&(struct off_files){ 0 }, OFF_IO_AUTO, NULL, 0, &(struct off_hands){ 0 }, NULL), 0);
    assert_true(faults_clean());
    faults_off();
    kn_team_close(team);
}

/* The file is cut at its start, in the middle, around a page, before the last byte, at a matrix. */
static void a_short_file_is_said_once(void **state)
{
    (void)state;
    struct set *s = make_tiny(100);
    struct kn_team *team = open_team(2);
    size_t whole = s->files.n[0], page = whole / 4096 * 4096;
    int inner = s->n / 2;
    while (s->load[inner].source.file != 0)
        inner++;
    size_t cuts[] = { 0, 1, whole / 2, page, page - 1, page + 1, whole - 1, s->load[inner].source.offset };
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        faults_reset();
        assert_int_equal(truncate(s->files.path[0], (off_t)cuts[i]), 0);
        int got = load(s, team, NULL);
        if (got != KN_ESHORT || faults.n_line != 1 || !strstr(faults.line, s->files.path[0]))
            fail_msg("cut at %zu of %zu: %d, %d lines: %s", cuts[i], whole, got, faults.n_line, faults.line);
        assert_true(faults_clean());
        faults_off();
        write_file(&s->files, 0);
    }
    assert_int_equal(load(s, team, NULL), 0);
    assert_true(is_right(s));
    kn_team_close(team);
    free_set(s);
}

static void whatever_fails_bytes_are_right_or_it_is_said(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error;
        bool harmless;
    } ways[] = {
        { FAULT_ALLOC, FAULT_ERROR, ENOMEM, false }, { FAULT_MAP, FAULT_ERROR, ENOMEM, false },
        { FAULT_OPEN, FAULT_ERROR, EMFILE, true },   { FAULT_SIZE, FAULT_ERROR, EIO, true },
        { FAULT_READ, FAULT_ERROR, EIO, false },     { FAULT_READ, FAULT_LASTS, EIO, false },
        { FAULT_READ, FAULT_ERROR, EINTR, true },    { FAULT_READ, FAULT_SHORT, 0, true },
        { FAULT_READ, FAULT_EMPTY, 0, false },
    };
    struct set *s = make_tiny(20);
    struct kn_team *team = open_team(2);
    for (int direct = DIRECT_WORKS; direct <= DIRECT_NO_OPEN; direct++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            bool struck = true;
            for (long n = 1; struck; n++) {
                faults_at(ways[i].kind, n, ways[i].way, ways[i].error);
                faults.direct = (enum fault_direct)direct;
                int got = load(s, team, NULL);
                struck = faults.struck;
                int most = ways[i].way == FAULT_LASTS ? 2 : 1; /* one for each file */
                bool fine = got == 0 ? is_right(s) && faults.n_line == 0 : faults.n_line >= 1 && faults.n_line <= most;
                if (!fine || (got && (!struck || ways[i].harmless)) || !faults_clean())
                    fail_msg("way %zu, call %ld: %d, %d lines (%s), %s", i, n, got, faults.n_line, faults.line,
                             faults_clean() ? "clean" : "something is left");
                assert_true(n < 10000);
            }
        }
    faults_off();
    kn_team_close(team);
    free_set(s);
}

static void too_many_files_are_refused(void **state)
{
    (void)state;
    struct kn_team *team = open_team(1);
    struct off_load l = { 0 };
    faults_reset();
    assert_int_equal(
        off_load(&(struct off_files){ .n_file = 1025 }, OFF_IO_AUTO, &l, 1, &(struct off_hands){ 0 }, NULL), KN_ELIMIT);
    assert_int_equal(faults.n_line, 1);
    faults_off();
    kn_team_close(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_small_matrices_arrive_in_any_order),
        cmocka_unit_test(a_load_that_is_stopped_ends),
        cmocka_unit_test(large_matrices_are_cut_and_joined),
        cmocka_unit_test(nothing_to_load_is_no_error),
        cmocka_unit_test(a_short_file_is_said_once),
        cmocka_unit_test(whatever_fails_bytes_are_right_or_it_is_said),
        cmocka_unit_test(too_many_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
