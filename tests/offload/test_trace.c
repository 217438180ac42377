/* Traces: Belady's miss count against an exhaustive search over all cache contents, and that of a cache without foresight.
 * Expert statistics (heat): they are read back exactly as written, or not at all.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/internal.h"
#include "tests/faults.h"

static uint64_t random_state;
static int random_below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

/* ---- the least number of misses ----------------------------------------------------------------- */

#define N_EXPERT 6
#define MOST     100

/* best[set] is the least number of misses so far if `set` is cached after the turn. */
static int search(const uint8_t *turn, int n_turn, unsigned counts, int n_slot)
{
    int best[1 << N_EXPERT], after[1 << N_EXPERT];
    for (unsigned set = 0; set < 1u << N_EXPERT; set++) /* the initial contents cost nothing */
        best[set] = (set & ~counts) || __builtin_popcount(set) > n_slot ? MOST : 0;
    for (int i = 0; i < n_turn; i++) {
        unsigned used = turn[i] & counts;
        for (unsigned to = 0; to < 1u << N_EXPERT; to++) {
            after[to] = MOST;
            for (unsigned from = 0; from < 1u << N_EXPERT && __builtin_popcount(to) <= n_slot; from++)
                if (!(to & ~(from | used)))
                    after[to] = kn_min(after[to], best[from] + __builtin_popcount(used & ~from));
        }
        memcpy(best, after, sizeof best);
    }
    int least = MOST;
    for (unsigned set = 0; set < 1u << N_EXPERT; set++)
        least = kn_min(least, best[set]);
    return least;
}

static void no_cache_reads_less(void **state)
{
    (void)state;
    random_state = 5;
    for (int round = 0; round < 300; round++) {
        int32_t item[128];
        uint8_t turn[10];
        bool counts[N_EXPERT];
        unsigned mask = 0;
        int n_turn = 1 + random_below(10), n_slot = 1 + random_below(4);
        struct off_trace t = { .item = item, .room = 128 };
        for (int e = 0; e < N_EXPERT; e++)
            mask |= (unsigned)(counts[e] = round % 3 || random_below(3)) << e;
        for (int i = 0; i < n_turn; i++) {
            int32_t list[N_EXPERT];
            int n = 0;
            turn[i] = (uint8_t)(random_below(1 << N_EXPERT) & random_below(1 << N_EXPERT));
            for (int e = 0; e < N_EXPERT; e++)
                if (turn[i] >> e & 1)
                    list[n++] = e;
            off_trace_add(&t, list, n);
        }
        uint64_t misses;
        assert_false(t.full);
        assert_int_equal(off_trace_least(&t, counts, N_EXPERT, n_slot, &misses), 0);
        assert_int_equal(misses, search(turn, n_turn, mask, n_slot));
    }
}

/* Three groups of four experts; `uses` says how many of the 20 turns use the i-th of a group. */
static uint64_t misses_by_share(const int uses[4], int n_slot, bool optimal)
{
    enum { GROUPS = 3, EACH = 4, TURNS = 20, N = GROUPS * EACH };
    static int32_t item[TURNS * GROUPS * (EACH + 1)];
    struct off_expert expert[N] = { { .group = 0 } };
    bool counts[N];
    struct off_trace t = { .item = item, .room = sizeof item / sizeof *item };
    uint64_t misses = 0;
    for (int e = 0; e < N; e++) {
        expert[e].group = 2 + 3 * (e / EACH);
        counts[e] = true;
    }
    for (int i = 0; i < TURNS * GROUPS; i++) {
        int32_t list[EACH];
        int n = 0;
        for (int e = 0; e < EACH; e++)
            if (i / GROUPS * uses[e] % TURNS < uses[e])
                list[n++] = i % GROUPS * EACH + e;
        off_trace_add(&t, list, n);
    }
    assert_int_equal(optimal ? off_trace_least(&t, counts, N, n_slot, &misses)
                             : off_trace_by_share(&t, expert, counts, N, n_slot, &misses),
                     0);
    return misses;
}

/* All used in every turn: one slot serves all misses, the others keep theirs.  Experts that are used in every turn stay
 * beside those used in one turn of four, and an expert used in no turn has no slot. */
static void shares_decide_without_foresight(void **state)
{
    (void)state;
    static const int all[4] = { 20, 20, 20, 20 }, some[4] = { 20, 20, 5, 0 };
    for (int n_slot = 2; n_slot <= 12; n_slot++) {
        uint64_t n = misses_by_share(all, n_slot, false);
        assert_in_range(n, 20 * (12 - (uint64_t)n_slot), 20 * (13 - (uint64_t)n_slot));
        assert_true(n >= misses_by_share(all, n_slot, true));
        assert_true(misses_by_share(some, n_slot, false) >= misses_by_share(some, n_slot, true));
    }
    assert_int_equal(misses_by_share(some, 9, false), 0);
    assert_in_range(misses_by_share(some, 7, false), 3 * 5 - 5 - 1, 3 * 5);
    assert_int_equal(misses_by_share(all, 12, false), 0);
}

static void a_full_recording_says_so(void **state)
{
    (void)state;
    int32_t item[4], list[3] = { 1, 2, 3 };
    struct off_trace t = { .item = item, .room = 4 };
    off_trace_add(&t, list, 3);
    assert_false(t.full);
    off_trace_add(&t, list, 0);
    assert_true(t.full && t.n == 4);
}

/* ---- expert statistics --------------------------------------------------------------------------- */

static char path[64];

static void change_file(long at, int with, long cut)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    if (cut >= 0)
        assert_int_equal(ftruncate(fileno(f), cut), 0);
    if (at >= 0) {
        fseek(f, at, SEEK_SET);
        int byte = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(byte ^ with, f);
    }
    fclose(f);
}

static struct off_file_id ids[2];
static float got[20];
static uint64_t got_check[20];

/* Reads the file as that of a model with n experts in two files; fills in got and got_check. */
static bool read_heat(uint64_t id, int n)
{
    struct off_file_id now[2] = { ids[0], ids[1] };
    struct off_heat h = { id, n, 2, now, got, got_check };
    memset(got_check, 0xff, sizeof got_check);
    return off_heat_read(path, &h);
}

static bool has_checks(int n)
{
    bool any = false, all = true;
    for (int i = 0; i < n; i++) {
        any |= got_check[i] != 0;
        all &= got_check[i] == (uint64_t)i * KN_GOLDEN + 1;
    }
    assert_true(any == all);
    return all;
}

static void write_heat(uint64_t id, float *share, int n)
{
    uint64_t check[20];
    for (int i = 0; i < n; i++)
        check[i] = (uint64_t)i * KN_GOLDEN + 1;
    off_heat_write(path, &(struct off_heat){ id, n, 2, ids, share, check });
}

/* True if the last read was refused with one line that contains `why`. */
static bool is_refused(uint64_t id, int n, const char *why)
{
    faults_listen();
    faults.most = KN_LOG_INFO;
    bool refused = !read_heat(id, n) && faults.n_line == 1 && strstr(faults.line, path) && strstr(faults.line, why);
    faults.most = KN_LOG_WARN;
    faults_listen_off();
    for (int i = 0; i < n; i++)
        refused &= got_check[i] == 0;
    return refused;
}

static void set_ids(void)
{
    ids[0] = (struct off_file_id){ 1000, 111, 222 };
    ids[1] = (struct off_file_id){ 2000, 333, 444 };
}

static void what_was_learnt_comes_back_or_not_at_all(void **state)
{
    (void)state;
    float share[20];
    const long bytes = 32 + 2 * 24 + 20 * (8 + 4) + 8;
    snprintf(path, sizeof path, "/tmp/spillway-heat-%d", getpid());
    set_ids();
    for (int i = 0; i < 20; i++)
        share[i] = (float)i / 19;
    assert_false(read_heat(7, 20));
    write_heat(7, share, 20);
    assert_true(read_heat(7, 20) && has_checks(20));
    assert_memory_equal(got, share, sizeof share);
    assert_true(is_refused(8, 20, "another model"));
    assert_true(is_refused(7, 19, "another model"));
    for (long at = 0; at < bytes; at++) { /* any byte of it changed */
        change_file(at, 1 << at % 8, -1);
        assert_true(is_refused(7, 20, at < 7 ? "no heat file" : at == 7 ? "another version" : "damaged"));
        change_file(at, 1 << at % 8, -1);
    }
    assert_true(read_heat(7, 20));
    for (long cut = bytes - 1; cut >= 0; cut -= 4) { /* truncated */
        change_file(-1, 0, cut);
        assert_true(is_refused(7, 20, ""));
    }
    share[3] = 2; /* complete, but not a share (above 1) */
    write_heat(7, share, 20);
    assert_true(is_refused(7, 20, "damaged"));
    unlink(path);
    off_heat_write("/nowhere/at/all", &(struct off_heat){ 7, 20, 2, ids, share, got_check }); /* no error */
}

/* Checksums hold for files of the same size and modification time; shares hold for the model. */
static void checksums_are_of_these_files(void **state)
{
    (void)state;
    float share[20] = { 0.5f };
    snprintf(path, sizeof path, "/tmp/spillway-heat-%d", getpid());
    set_ids();
    write_heat(7, share, 20);
    for (int way = 0; way < 8; way++) {
        struct off_file_id *id = &ids[way % 2];
        set_ids();
        if (way / 2 == 0)
            id->bytes++;
        else if (way / 2 == 1)
            id->mtime_ns--;
        else if (way / 2 == 2)
            id->ctime_ns++;
        else
            id->bytes = 0; /* not known */
        assert_true(read_heat(7, 20) && got[0] == 0.5f);
        assert_int_equal(has_checks(20), way / 2 == 2);
    }
    unlink(path);
}

static uint64_t old_check(const uint8_t *p, size_t bytes)
{
    uint64_t h = bytes;
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t word;
        memcpy(&word, p + i, 4);
        h = kn_mix(h + KN_GOLDEN + word);
    }
    return h;
}

/* Format 1: its shares are used and it has no checksums; damaged, it is refused; the next save is of format 2. */
static void an_old_file_is_upgraded(void **state)
{
    (void)state;
    uint8_t file[24 + 20 * 4 + 8] = "SPWHEAT1";
    float share[20];
    for (int i = 0; i < 20; i++)
        share[i] = (float)i / 40;
    memcpy(file + 8, &(uint64_t){ 7 }, 8);
    memcpy(file + 16, &(uint32_t){ 20 }, 4);
    memcpy(file + 24, share, sizeof share);
    memcpy(file + sizeof file - 8, &(uint64_t){ old_check(file, sizeof file - 8) }, 8);
    snprintf(path, sizeof path, "/tmp/spillway-heat-%d", getpid());
    set_ids();
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(file, 1, sizeof file, f) == sizeof file && fclose(f) == 0);
    faults_listen();
    faults.most = KN_LOG_INFO;
    assert_true(read_heat(7, 20) && !has_checks(20));
    assert_true(faults.n_line == 1 && strstr(faults.line, "older version"));
    faults.most = KN_LOG_WARN;
    faults_listen_off();
    assert_memory_equal(got, share, sizeof share);
    assert_true(is_refused(8, 20, "another model"));
    for (long at = 8; at < (long)sizeof file; at++) {
        change_file(at, 1 << at % 8, -1);
        assert_true(is_refused(7, 20, "damaged"));
        change_file(at, 1 << at % 8, -1);
    }
    write_heat(7, share, 20);
    assert_true(read_heat(7, 20) && has_checks(20));
    change_file(7, '2' ^ '1', -1); /* format 2 is not read as format 1 */
    assert_true(is_refused(7, 20, "damaged"));
    change_file(7, '1' ^ '3', -1);
    assert_true(is_refused(7, 20, "another version"));
    unlink(path);
}

static void what_cannot_be_kept_leaves_the_last(void **state)
{
    (void)state;
    static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_OPEN, FAULT_WRITE };
    float old[5] = { 0.1f, 0.2f, 0.3f, 0.4f, 0.5f }, new[5] = { 1, 1, 1, 1, 1 };
    char part[80];
    snprintf(path, sizeof path, "/tmp/spillway-heat-%d", getpid());
    snprintf(part, sizeof part, "%s.spillway.part", path);
    set_ids();
    write_heat(1, old, 5);
    for (int i = 0; i < 3; i++) {
        faults_at(kinds[i], 1, FAULT_ERROR, EIO);
        write_heat(1, new, 5);
        assert_true(faults.struck && faults_clean());
        assert_int_equal(faults.n_line, 0);
        faults_off();
        assert_true(read_heat(1, 5));
        assert_memory_equal(got, old, sizeof old);
        assert_int_not_equal(access(part, F_OK), 0);
    }
    faults_reset(); /* a link in the part file's place is not followed */
    char aside[100];
    snprintf(aside, sizeof aside, "%s.aside", path);
    assert_int_equal(symlink(aside, part), 0);
    write_heat(1, new, 5);
    assert_int_equal(faults.n_line, 0);
    faults_off();
    assert_int_not_equal(access(aside, F_OK), 0);
    unlink(part);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_cache_reads_less),
        cmocka_unit_test(shares_decide_without_foresight),
        cmocka_unit_test(a_full_recording_says_so),
        cmocka_unit_test(what_was_learnt_comes_back_or_not_at_all),
        cmocka_unit_test(checksums_are_of_these_files),
        cmocka_unit_test(an_old_file_is_upgraded),
        cmocka_unit_test(what_cannot_be_kept_leaves_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
