/* The number of prompt rows in a pass (engine/prefill_share.c), on simulated machines. Decoding sessions are delayed up
 * to the allowed slowdown and no further; prompts prefill as fast as this limit permits. Checked: limits for linear and
 * for expensive rows, how often long passes are tried, percentiles of time between tokens, and robustness to noise.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/internal.h"

/* Nanoseconds of a pass: n_due decode rows, n prompt rows at row_ns each, and once_ns for the first prompt row. */
static double pass_ns(int n_due, int n, double row_ns, double once_ns)
{
    return 1e6 * (n_due ? 1 + 0.02 * n_due : 0) + row_ns * n + (n ? once_ns : 0);
}

static int settled(double stretch, int n_due, int most, double row_ns, double once_ns)
{
    struct eng_prefill_share p;
    int n = 0;
    eng_prefill_share_init(&p, stretch, false);
    eng_prefill_share_learn(&p, n_due, 0, 0, pass_ns(n_due, 0, 0, 0));
    eng_prefill_share_learn(&p, n_due + 1, 0, 0, pass_ns(n_due + 1, 0, 0, 0));
    for (int i = 0; i < 200; i++) {
        int now = eng_prefill_share_rows(&p, n_due, 1, most);
        assert_in_range(now, 0, most);
        eng_prefill_share_learn(&p, n_due, 0, now, pass_ns(n_due, now, row_ns, once_ns));
        n = now ? now : n; /* 0: a pass that measures decode alone */
        if (i % 10 == 0)   /* now and then no session decodes, and a whole chunk is prefilled */
            eng_prefill_share_learn(&p, 0, 0, most, pass_ns(0, most, row_ns, once_ns));
    }
    return n;
}

static void prompts_stretch_a_pass_so_far(void **state)
{
    (void)state;
    struct eng_prefill_share fresh;
    eng_prefill_share_init(&fresh, 2, false);
    assert_int_equal(eng_prefill_share_rows(&fresh, 0, 1, 512), 512); /* no decoding session */
    assert_int_equal(eng_prefill_share_rows(&fresh, 3, 1, 512), 0);   /* no measurement: decode alone first, */
    eng_prefill_share_learn(&fresh, 3, 0, 0, 1e6);
    assert_int_equal(eng_prefill_share_rows(&fresh, 3, 1, 512), 4); /* then MIN_PREFILL_ROWS */
    assert_int_equal(eng_prefill_share_rows(&fresh, 3, 1, 3), 3);
    assert_int_equal(eng_prefill_share_rows(&fresh, 3, 1, 0), 0);
    for (int n_due = 2; n_due <= 64; n_due *= 4) { /* each prompt row costs the same */
        double base = pass_ns(n_due, 0, 0, 0), then = pass_ns(n_due + 1, 0, 0, 0), row = 20000;
        int n = settled(1.8, n_due, 512, row, 0);
        assert_true(base + n * row <= 1.81 * then && base + n * row >= 1.4 * then);
    }
    assert_int_equal(settled(1.8, 4, 512, 1e7, 0), 4); /* expensive rows of equal cost: MIN_PREFILL_ROWS */
    struct eng_prefill_share always;                   /* with prompts in every pass */
    eng_prefill_share_init(&always, 1.6, false);
    eng_prefill_share_learn(&always, 1, 0, 0, 0.4e6);
    int rows = 0;
    for (int i = 0; i < 200; i++) {
        int n = eng_prefill_share_rows(&always, 8, 24, 512);
        eng_prefill_share_learn(&always, 8, 0, n, pass_ns(8, n, 60000, 0));
        rows = n ? n : rows;
    }
    assert_in_range(rows * 60000, 2 * pass_ns(8, 0, 0, 0), 4.5 * pass_ns(8, 0, 0, 0));
    struct eng_prefill_share crowd; /* prefilling sessions count too */
    eng_prefill_share_init(&crowd, 1.6, false);
    for (int i = 0; i < 200; i++) {
        int n = i % 2 ? eng_prefill_share_rows(&crowd, 8, 24, 512) : 0;
        eng_prefill_share_learn(&crowd, 8, 0, n, pass_ns(8, n, 20000, 0));
    }
    assert_in_range(eng_prefill_share_rows(&crowd, 8, 24, 512) * 20000, 2.5 * pass_ns(8, 0, 0, 0),
                    3.1 * pass_ns(8, 0, 0, 0));
    assert_true(settled(1.8, 4, 512, 1e5, 1e8) >= 256); /* the first row costs nearly as much as all */
}

/* Prompts of all lengths. Each length is a separate size to try, yet all together delay decoding as rarely as one. */
static void what_is_long_is_tried_seldom(void **state)
{
    (void)state;
    struct eng_prefill_share p;
    uint64_t random = 8;
    int n_large = 0;
    eng_prefill_share_init(&p, 1.6, false);
    for (int i = 0; i < 4096; i++) {
        int most = 16 << kn_mix(random += KN_GOLDEN) % 6, n = eng_prefill_share_rows(&p, 4, 2, most);
        eng_prefill_share_learn(&p, 4, 0, n, pass_ns(4, n, 1e5, 0));
        n_large += i >= 2048 && n >= 16;
    }
    assert_in_range(n_large, 1, 5);
}

/* Users that send the next request at once, 15 % of them with long prompts; cost() gives the time of a pass. */
struct crowd {
    int left[32], told[32];
}; /* prompt rows to prefill; answer tokens still to decode */
struct waits {
    double p99, most, row_ns;
}; /* p99 and maximum over the median token time; ns per prompt row */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct waits live(int n_user, bool never_alone, double (*cost)(int n_due, int n))
{
    enum { N_PASS = 4096 };
    static double gap[32 * N_PASS];
    struct crowd c = { .told = { never_alone ? N_PASS : 0 } }; /* user 0 decodes in every pass */
    struct eng_prefill_share p;
    uint64_t random = 9;
    int n_gap = 0, n_read = 0, n_answered = 0;
    double reads_ns = 0;
    eng_prefill_share_init(&p, 1.5, false);
    for (int pass = 0; pass < N_PASS; pass++) {
        int n_due = 0, most = 0;
        for (int i = 0; i < n_user; i++) {
            if (!c.told[i] && !c.left[i]) {
                c.left[i] = kn_mix(random += KN_GOLDEN) % 100 < 15 ? 1500 : 96;
                c.told[i] = 1 + (int)(kn_mix(random += KN_GOLDEN) % 128); /* users out of phase with each other */
            }
            n_due += !c.left[i];
            most += c.left[i];
        }
        most = kn_min(most, 512 - n_due);
        int n = eng_prefill_share_rows(&p, n_due, n_user - n_due, most), rest = n;
        double ns = cost(n_due, n);
        for (int i = 0; i < n_user; i++) {
            int reads = kn_min(rest, c.left[i]);
            if (!c.left[i]) {
                c.told[i]--;
                gap[n_gap++] = ns;
            }
            c.left[i] -= reads;
            rest -= reads;
        }
        eng_prefill_share_learn(&p, n_due, 0, n, ns);
        n_read += n;
        n_answered += n_due;
        reads_ns += ns - cost(n_due, 0);
    }
    assert_true(n_answered > 0 && n_read > 0);
    qsort(gap, (size_t)n_gap, sizeof *gap, by_size);
    return (struct waits){ gap[n_gap - n_gap / 100 - 1] / gap[n_gap / 2], gap[n_gap - 1] / gap[n_gap / 2],
                           reads_ns / n_read };
}

/* Experts in memory: the cost of a row falls slightly with the number of prompt rows. */
static double in_memory(int n_due, int n) { return 1.7e5 + 1.2e5 * n_due + n * (5.2e4 + 8e4 * 8 / (n + 8)); }

/* Experts on disk: each row uses 8 of 128 experts, a quarter of them in memory; each missing one takes 1 ms to read. */
static double from_disk(int n_due, int n)
{
    double others = 1;
    for (int i = 0; i < n_due + n; i++)
        others *= 1 - 8 / 128.0;
    return 1e6 * (n_due + n) + 96 * 1e6 * (1 - others);
}

/* Where prompt rows cost as much as decode rows, no session is delayed by a full chunk just to measure it. Where rows
 * get cheaper in long passes, this is discovered even if a session decodes in every pass. */
static void who_waits_for_what_is_learnt(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        int n_user = 4 << i / 2;
        struct waits w = live(n_user, i % 2, in_memory);
        assert_true(w.p99 < 2);
        assert_true(w.most < (i % 2 ? 6 : 4)); /* without passes of prompt rows alone: one more step to learn */
        w = live(n_user, i % 2, from_disk);
        assert_true(w.row_ns < 1.5 * (from_disk(n_user, 256) - from_disk(n_user, 0)) / 256);
    }
}

/* With random delays from other work on the machine, from the first pass on: at most one pass in a hundred takes more
 * than twice the decode time because of its prompt rows. */
static void other_work_is_not_taken_for_a_prompts(void **state)
{
    (void)state;
    uint64_t random = 5;
    for (int n_due = 2; n_due <= 64; n_due *= 4) {
        struct eng_prefill_share p;
        int sum = 0, n_long = 0;
        eng_prefill_share_init(&p, 1.6, false);
        for (int i = 0; i < 2000; i++) {
            bool reads = i % 50 >= 20;
            int due = n_due + !reads; /* after its prefill the session decodes */
            int n = reads ? eng_prefill_share_rows(&p, due, 1, 512) : 0;
            double base = pass_ns(n_due, 0, 0, 0), mine = pass_ns(due, n, 20000, 0);
            double longer = (kn_mix(random += KN_GOLDEN) % 1000) * 2e-4 * base; /* at most a fifth, and */
            longer += kn_mix(random += KN_GOLDEN) % 20 == 0 ? 50 * base : 0;    /* in 5 % 50 times more */
            n_long += mine > 2 * base;
            eng_prefill_share_learn(&p, due, 0, n, mine + longer);
            sum += n;
        }
        assert_in_range(n_long, 0, 12);
        assert_true(sum / 1200.0 * 20000 >= 0.3 * pass_ns(n_due, 0, 0, 0)); /* prefill still proceeds */
    }
}

/* Rows that are cheap only in large numbers, as where each long pass copies all experts to a device: passes are long, and
 * decoding takes as much longer in the mean as the limit allows for one pass. */
static void long_passes_keep_the_pace(void **state)
{
    (void)state;
    for (int n_due = 2; n_due <= 32; n_due *= 4)
        for (int longest = 512; longest <= 4096; longest *= 8) {
            struct eng_prefill_share p;
            double all_ns = 0, row_ns = 0;
            int n_row = 0, n_pass = 20000;
            eng_prefill_share_init(&p, 1.5, true);
            eng_prefill_share_learn(&p, n_due + 2, 0, 0, pass_ns(n_due + 2, 0, 0, 0));
            for (int i = 0; i < n_pass; i++) {
                bool counts = i >= n_pass / 2;
                int n = eng_prefill_share_rows(&p, n_due, 2, longest);
                double ns = pass_ns(n_due, n, 1e4, 1e8); /* of the first row: as much as 50 to 100 passes */
                eng_prefill_share_learn(&p, n_due, 0, n, ns);
                all_ns += counts ? ns : 0;
                row_ns += counts && n ? ns - pass_ns(n_due, 0, 0, 0) : 0;
                n_row += counts ? n : 0;
            }
            double base = pass_ns(n_due, 0, 0, 0), limit = 1.5 * pass_ns(n_due + 2, 0, 0, 0),
                   mean = all_ns / (n_pass / 2);
            assert_true(mean > base + 0.8 * (limit - base) && mean < base + 1.1 * (limit - base));
            assert_true(row_ns / n_row < 1.2 * (1e4 + 1e8 / longest));
        }
}

/* Passes that other work makes longer: of at least `rows` prompt rows, more than `apart` passes after the last, `most` of them. */
struct accidents {
    int n_pass, rows, apart, most;
    double longer; /* times as long */
    int n_without; /* passes in a row without prompt rows, fewer than this */
};

static void endures(const struct accidents *a)
{
    struct eng_prefill_share p;
    int n_without = 0, n_accident = 0;
    eng_prefill_share_init(&p, 1.5, true);
    for (int i = 0; i < a->n_pass; i++) {
        int n = eng_prefill_share_rows(&p, 8, 2, 512);
        bool accident = n >= a->rows && n_accident < a->most && i > a->apart * (n_accident + 1);
        n_accident += accident;
        eng_prefill_share_learn(&p, 8, 0, n, pass_ns(8, n, 1e4, 1e7) * (accident ? a->longer : 1));
        n_without = n ? 0 : n_without + 1;
        assert_true(n_without < a->n_without);
    }
    assert_int_equal(n_accident, a->most);
}

/* A long pass that other work made a thousand times longer does not stop prefill for as long; and the few rows that each
 * pass may have are not held back. */
static void an_accident_is_not_owed(void **state)
{
    (void)state;
    endures(
        &(struct accidents){ .n_pass = 6000, .rows = 128, .apart = 1000, .most = 5, .longer = 1000, .n_without = 60 });
    endures(&(struct accidents){
        .n_pass = 2000, .rows = 16, .apart = -1, .most = 1, .longer = 1e5, .n_without = 600 }); /* at once */
    struct eng_prefill_share p;
    int n_without = 0;
    eng_prefill_share_init(&p, 1.5, true);
    for (int i = 0; i < 400; i++) {
        int n = eng_prefill_share_rows(&p, 8, 2, 512);
        eng_prefill_share_learn(&p, 8, 0, n, pass_ns(8, n, 3e5, 0));
        n_without += n == 0;
    }
    assert_true(n_without < 40);
}

/* Passes with prompt rows and due rows; without prompt rows; of all sessions without prompt rows, before the others. */
enum { SLOW_BOTH = 1, SLOW_PLAIN = 2, SLOW_ALL_DUE = 4 };

struct late {
    double rows, ns;
}; /* sums over the last passes: prompt rows, time */

/* Some of the first n_slow passes take ten times as long. */
static struct late after_slow_passes(int n_due, bool limits_mean, int n_slow, int which)
{
    enum { N_PASS = 9000, N_LAST = 3000 };
    struct eng_prefill_share p;
    struct late at_end = { 0 };
    eng_prefill_share_init(&p, 1.5, limits_mean);
    for (int i = 0; which & SLOW_ALL_DUE && i < n_slow; i++)
        eng_prefill_share_learn(&p, n_due + 2, 0, 0, 10 * pass_ns(n_due + 2, 0, 0, 0));
    for (int i = 0; i < N_PASS; i++) {
        int n = eng_prefill_share_rows(&p, n_due, 2, 512);
        double ns = pass_ns(n_due, n, 20000, 0);
        bool slow = i < n_slow && which & (n ? SLOW_BOTH : SLOW_PLAIN);
        eng_prefill_share_learn(&p, n_due, 0, n, ns * (slow ? 10 : 1));
        at_end.rows += i >= N_PASS - N_LAST ? n : 0;
        at_end.ns += i >= N_PASS - N_LAST ? ns : 0;
    }
    return at_end;
}

/* A start with cold caches, or beside other jobs, does not change later passes. */
static void a_slow_start_is_forgotten(void **state)
{
    (void)state;
    for (int limits_mean = 0; limits_mean < 2; limits_mean++)
        for (int n_due = 2; n_due <= 32; n_due *= 4) {
            struct late usual = after_slow_passes(n_due, limits_mean, 0, 0);
            for (int n_slow = 8; n_slow <= 512; n_slow *= 4)
                for (int which = SLOW_BOTH; which <= (SLOW_BOTH | SLOW_PLAIN | SLOW_ALL_DUE); which++) {
                    struct late x = after_slow_passes(n_due, limits_mean, n_slow, which);
                    assert_true(x.rows > 0.95 * usual.rows && x.rows < 1.05 * usual.rows);
                    assert_true(x.ns > 0.95 * usual.ns && x.ns < 1.05 * usual.ns);
                }
        }
}

struct delays {
    double mean; /* the time that prompt rows add to a pass, over its time without them: mean over passes with both */
    int n_both, n_none; /* passes with prompt rows; without them, though a prompt waits */
};

/* Each of n_user sessions drafts four rows in a third of the passes, for `on` of every 64 passes. */
static struct delays with_drafts(int n_user, int on)
{
    struct eng_prefill_share p;
    struct delays d = { 0 };
    uint64_t random = 3;
    int left = 0;
    eng_prefill_share_init(&p, 1.5, false);
    for (int i = 0; i < 4000; i++) {
        int n_drafted = 0;
        for (int j = 0; i % 64 < on && j < n_user; j++)
            n_drafted += kn_mix(random += KN_GOLDEN) % 3 ? 0 : 4;
        int n = left ? eng_prefill_share_rows(&p, n_user, 1, left) : 0;
        double base = in_memory(n_user + n_drafted, 0), ns = in_memory(n_user + n_drafted, n);
        eng_prefill_share_learn(&p, n_user, n_drafted, n, ns);
        if (i >= 1000) {
            d.mean += ns / base - 1;
            d.n_both += n > 0;
            d.n_none += left && !n;
        }
        left = i % 40 == 0 ? 400 : left - n;
    }
    assert_true(d.n_both > 100);
    d.mean /= d.n_both;
    return d;
}

/* The time of drafted rows is not taken for that of prompt rows: with drafts a prompt has as large a part of a pass, and
 * passes that measure the time without prompts stay rare. */
static void drafts_leave_prompts_their_part(void **state)
{
    (void)state;
    for (int n_user = 1; n_user <= 16; n_user *= 4) {
        double without = with_drafts(n_user, 0).mean;
        for (int on = 8; on <= 64; on *= 2) {
            struct delays d = with_drafts(n_user, on);
            assert_true(d.mean > 0.9 * without && d.mean < 1.4 * without);
            assert_true(d.n_none < 0.04 * d.n_both);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_stretch_a_pass_so_far),   cmocka_unit_test(what_is_long_is_tried_seldom),
        cmocka_unit_test(who_waits_for_what_is_learnt),    cmocka_unit_test(other_work_is_not_taken_for_a_prompts),
        cmocka_unit_test(long_passes_keep_the_pace),       cmocka_unit_test(an_accident_is_not_owed),
        cmocka_unit_test(drafts_leave_prompts_their_part), cmocka_unit_test(a_slow_start_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
