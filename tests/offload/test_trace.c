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

static void what_was_learnt_comes_back_or_not_at_all(void **state)
{
    (void)state;
    float share[20], got[20];
    const long bytes = 24 + 20 * 4 + 8;
    snprintf(path, sizeof path, "/tmp/spillway-heat-%d", getpid());
    for (int i = 0; i < 20; i++)
        share[i] = (float)i / 19;
    assert_false(off_heat_read(path, 7, got, 20));
    off_heat_write(path, 7, share, 20);
    assert_true(off_heat_read(path, 7, got, 20));
    assert_memory_equal(got, share, sizeof share);
    assert_false(off_heat_read(path, 8, got, 20)); /* another model's */
    assert_false(off_heat_read(path, 7, got, 19));
    for (long at = 0; at < bytes; at++) { /* any byte of it changed */
        change_file(at, 1 << at % 8, -1);
        assert_false(off_heat_read(path, 7, got, 20));
        change_file(at, 1 << at % 8, -1);
    }
    assert_true(off_heat_read(path, 7, got, 20));
    change_file(-1, 0, bytes - 1); /* truncated */
    assert_false(off_heat_read(path, 7, got, 20));
    share[3] = 2; /* complete, but not a share (above 1) */
    off_heat_write(path, 7, share, 20);
    assert_false(off_heat_read(path, 7, got, 20));
    unlink(path);
    off_heat_write("/nowhere/at/all", 7, share, 20); /* cannot be written; no error */
}

static void what_cannot_be_kept_leaves_the_last(void **state)
{
    (void)state;
    static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_OPEN, FAULT_WRITE };
    float old[5] = { 0.1f, 0.2f, 0.3f, 0.4f, 0.5f }, new[5] = { 1, 1, 1, 1, 1 }, got[5];
    char part[80];
    snprintf(path, sizeof path, "/tmp/spillway-heat-%d", getpid());
    snprintf(part, sizeof part, "%s.spillway.part", path);
    off_heat_write(path, 1, old, 5);
    for (int i = 0; i < 3; i++) {
        faults_at(kinds[i], 1, FAULT_ERROR, EIO);
        off_heat_write(path, 1, new, 5);
        assert_true(faults.struck && faults_clean());
        assert_int_equal(faults.n_line, 0);
        faults_off();
        assert_true(off_heat_read(path, 1, got, 5));
        assert_memory_equal(got, old, sizeof old);
        assert_int_not_equal(access(part, F_OK), 0);
    }
    faults_reset(); /* a link in the part file's place is not followed */
    char aside[100];
    snprintf(aside, sizeof aside, "%s.aside", path);
    assert_int_equal(symlink(aside, part), 0);
    off_heat_write(path, 1, new, 5);
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
        cmocka_unit_test(what_cannot_be_kept_leaves_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
