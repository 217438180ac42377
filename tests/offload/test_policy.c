/* Eviction: the predicted order of eviction for given uses, and its misses in a cache compared with
 * the optimum.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "offload/internal.h"
#include "tests/faults.h"

#define MOST 2048

static uint64_t random_state;
static int random_below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

/* n_group groups of n experts; group numbers are multiples of `step`, as in a model with dense layers. */
static struct off_policy *open_groups(int n_group, int n, int step)
{
    static struct off_expert expert[MOST];
    struct off_policy *p;
    for (int e = 0; e < n_group * n; e++)
        expert[e].group = 2 + e / n * step;
    random_state = 4;
    assert_int_equal(off_policy_open(&p, expert, n_group * n), 0);
    return p;
}

static void use_one(struct off_policy *p, int32_t expert) { off_policy_use(p, &expert, 1, 1); }

/* ---- order ---------------------------------------------------------------------------------------- */

static void test_further_away_goes_first(void **state)
{
    (void)state;
    struct off_policy *p = open_groups(4, 3, 5);
    for (int32_t e = 0; e < 12; e++)
        off_policy_set_share(p, e, 0.5f);
    for (int turn = 0; turn < 4; turn++) {
        int32_t all[] = { 3 * turn, 3 * turn + 1, 3 * turn + 2 };
        off_policy_use(p, all, 3, 3); /* a turn that uses all experts carries no information */
        for (int32_t e = 0; e < 12; e++) {
            int ahead = (e / 3 - turn + 3) % 4 + 1;
            assert_true(off_policy_wait(p, e) == (float)ahead / 0.5f);
            assert_true(off_policy_share(p, e) == 0.5f);
        }
    }
    off_policy_close(p);
}

static void test_less_likely_goes_first(void **state)
{
    (void)state;
    struct off_policy *p = open_groups(1, 4, 1);
    for (int turn = 0; turn < 400; turn++) { /* shares 1, 1/2, 1/8, 0 */
        int32_t used[3] = { 0 };
        int n = 1;
        if (random_below(2))
            used[n++] = 1;
        if (!random_below(8))
            used[n++] = 2;
        off_policy_use(p, used, n, n);
    }
    for (int32_t e = 0; e < 3; e++)
        assert_true(off_policy_wait(p, e) < 0.7f * off_policy_wait(p, e + 1));
    assert_true(off_policy_share(p, 0) > 0.99f && off_policy_share(p, 3) < 0.01f);
    assert_true(off_policy_share(p, 1) > 0.4f && off_policy_share(p, 1) < 0.6f);
    off_policy_close(p);
}

/* 600 turns of one expert each: the previous one again with probability `again` %, else any other or, with -1, any.
 * Returns the predicted wait of the last one used, relative to the mean of the others. */
static float wait_after_use(int again)
{
    struct off_policy *p = open_groups(1, 64, 1);
    float others = 0;
    for (int turn = 0, e = 0; turn < 600; turn++) {
        bool stays = again >= 0 && random_below(100) < again;
        use_one(p, e = stays ? e : again < 0 ? random_below(64) : (e + 1 + random_below(63)) % 64);
    }
    use_one(p, 7);
    for (int32_t e = 0; e < 64; e++)
        others += e == 7 ? 0 : off_policy_wait(p, e) / 63;
    float ratio = off_policy_wait(p, 7) / others;
    off_policy_close(p);
    return ratio;
}

/* A repeated use soon after a use is learnt from the data, not assumed. */
static void test_recency_counts_for_what_it_tells(void **state)
{
    (void)state;
    assert_true(wait_after_use(75) < 0.05f);
    assert_true(wait_after_use(0) > 1);
    assert_true(wait_after_use(-1) > 0.5f); /* the recency estimate alone would give 1/32 */
}

static void test_what_was_learnt_can_be_kept(void **state)
{
    (void)state;
    struct off_policy *p = open_groups(2, 32, 1), *q;
    for (int turn = 0; turn < 400; turn++) {
        int32_t first = turn % 2 * 32, a = first + random_below(8), b = first + 8 + random_below(24);
        off_policy_use(p, (int32_t[]){ a, b }, 2, 2);
    }
    q = open_groups(2, 32, 1);
    for (int32_t e = 0; e < 64; e++)
        off_policy_set_share(q, e, off_policy_share(p, e));
    for (int32_t hot = 0; hot < 8; hot++)
        for (int32_t cold = 8; cold < 32; cold++)
            assert_true(off_policy_wait(q, hot) < off_policy_wait(q, cold));
    use_one(q, 20); /* one turn does not change the estimate */
    assert_true(off_policy_wait(q, 20) > off_policy_wait(q, 3));
    off_policy_set_share(q, 5, 0);
    assert_true(off_policy_wait(q, 5) > 0 && off_policy_wait(q, 5) < 1e6f);
    off_policy_close(p);
    off_policy_close(q);
}

/* No sequence of uses makes a wait NaN, infinite or 0. */
static void test_waits_are_numbers(void **state)
{
    (void)state;
    struct off_policy *p = open_groups(3, 16, 2);
    for (int turn = 0; turn < 3000; turn++) {
        int32_t used[16], n = 0, group = random_below(3), most = random_below(17);
        for (int i = 0; i < 16; i++)
            if (turn % 500 < 200 ? i < most : random_below(16) < most)
                used[n++] = group * 16 + i;
        off_policy_use(p, used, n, n);
        for (int32_t e = 0; e < 48; e++)
            assert_true(off_policy_wait(p, e) >= 1 && off_policy_wait(p, e) < 1e7f);
    }
    off_policy_close(p);
}

/* ---- in a cache ------------------------------------------------------------------------------------ */

struct cache {
    struct off_policy *policy; /* NULL: least recently used (LRU) */
    int n_expert, n_slot, n_there, turn;
    int last[MOST]; /* turn of the last use */
    bool there[MOST];
    uint64_t misses;
    struct off_trace trace;
};

static void evict_one(struct cache *c)
{
    int victim = -1;
    float most = -1;
    for (int e = 0; e < c->n_expert; e++) {
        float wait = c->policy ? off_policy_wait(c->policy, e) : (float)(c->turn - c->last[e]);
        if (c->there[e] && c->last[e] != c->turn && wait > most)
            most = wait, victim = e;
    }
    assert_true(victim >= 0);
    c->there[victim] = false;
    c->n_there--;
}

static void use(struct cache *c, const int32_t *expert, int n)
{
    c->turn++;
    if (c->policy)
        off_policy_use(c->policy, expert, n, n);
    off_trace_add(&c->trace, expert, n);
    for (int i = 0; i < n; i++)
        c->last[expert[i]] = c->turn;
    for (int i = 0; i < n; i++) {
        if (c->there[expert[i]])
            continue;
        if (c->n_there == c->n_slot)
            evict_one(c);
        c->there[expert[i]] = true;
        c->n_there++;
        c->misses++;
    }
}

/* Misses divided by the optimum's, over 300 passes of 8 groups of 32 with slots for half; a turn uses each of a
 * group's first n_hot experts with hot %, of the others with cold %; every scan-th pass uses all. */
static double to_optimum(bool ours, int n_hot, int hot, int cold, int scan)
{
    struct cache *c = calloc(1, sizeof *c);
    bool all[256];
    uint64_t least;
    struct off_policy *p = open_groups(8, 32, 1);
    *c = (struct cache){ .policy = ours ? p : NULL, .n_expert = 256, .n_slot = 128, .trace = { .room = 300 * 8 * 33 } };
    c->trace.item = malloc(c->trace.room * sizeof *c->trace.item);
    memset(all, true, sizeof all);
    for (int turn = 0; turn < 300 * 8; turn++) {
        int32_t used[32], n = 0;
        for (int i = 0; i < 32; i++)
            if (random_below(100) < (i < n_hot ? hot : cold) || (scan && turn / 8 % scan == scan - 1))
                used[n++] = turn % 8 * 32 + i;
        if (turn == 100 * 8) { /* statistics have settled */
            c->misses = 0;
            c->trace.n = 0;
        }
        use(c, used, n);
    }
    assert_int_equal(off_trace_least(&c->trace, all, 256, c->n_slot, &least), 0);
    double ratio = (double)c->misses / (double)least;
    off_policy_close(p);
    free(c->trace.item);
    free(c);
    return ratio;
}

static void test_a_sweep_leaves_something(void **state)
{
    (void)state;
    assert_true(to_optimum(true, 32, 100, 0, 0) < 1.2);  /* cyclic use of all: the optimum hits half */
    assert_true(to_optimum(false, 32, 100, 0, 0) > 1.8); /* and LRU never hits */
    assert_true(to_optimum(true, 32, 85, 0, 0) < 1.5);
    assert_true(to_optimum(false, 32, 85, 0, 0) > 2);
}

static void test_the_hot_stay(void **state)
{
    (void)state;
    double ours = to_optimum(true, 12, 90, 10, 0), lru = to_optimum(false, 12, 90, 10, 0);
    assert_true(ours < 1.75 && ours < 0.85 * lru);
    ours = to_optimum(true, 12, 90, 10, 10); /* a scan of all experts in between */
    lru = to_optimum(false, 12, 90, 10, 10);
    assert_true(ours < 1.45 && ours < 0.65 * lru);
}

/* ---- failing --------------------------------------------------------------------------------------- */

static void test_no_memory(void **state)
{
    (void)state;
    struct off_expert expert[4] = { { .group = 1 }, { .group = 1 }, { .group = 3 }, { .group = 3 } };
    struct off_policy *p = NULL;
    int n = 0;
    do {
        faults_at(FAULT_ALLOC, ++n, FAULT_ERROR, ENOMEM);
        if (off_policy_open(&p, expert, 4) == 0) {
            off_policy_close(p);
        } else {
            assert_null(p);
            assert_int_equal(faults.n_line, 1);
        }
        assert_true(faults_clean());
    } while (faults.struck);
    assert_true(n > 5);
    faults_off();
    off_policy_close(NULL);
}

/* An expert that the caller has elsewhere is evicted first, however hot, until it is fetched again. */
static void test_elsewhere_goes_first(void **state)
{
    (void)state;
    struct off_policy *p = open_groups(2, 4, 1);
    for (int turn = 0; turn < 40; turn++) {
        off_policy_use(p, (int32_t[]){ 1, 2, 0 }, 2, 3); /* 0 is elsewhere */
        use_one(p, 4 + turn % 4);
    }
    assert_true(off_policy_heat(p, 0) == off_policy_heat(p, 1) && off_policy_share(p, 0) == off_policy_share(p, 1));
    assert_true(off_policy_wait(p, 0) > 100 * off_policy_wait(p, 3)); /* 3 was never used */
    off_policy_use(p, (int32_t[]){ 0, 1 }, 2, 2);
    assert_true(off_policy_wait(p, 0) < off_policy_wait(p, 3));
    off_policy_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_further_away_goes_first),
        cmocka_unit_test(test_elsewhere_goes_first),
        cmocka_unit_test(test_less_likely_goes_first),
        cmocka_unit_test(test_recency_counts_for_what_it_tells),
        cmocka_unit_test(test_what_was_learnt_can_be_kept),
        cmocka_unit_test(test_waits_are_numbers),
        cmocka_unit_test(test_a_sweep_leaves_something),
        cmocka_unit_test(test_the_hot_stay),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
