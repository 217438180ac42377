/* Distributed speculative inference with real worker threads. Workers are delayed and fail at random; the tokens must
 * equal those of plain decoding. Also: an error when all targets fail, and a request closed or replaced at any time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/dsi.h"
#include "speculative/dsi.h"
#include "tests/engine/same_answers.h"

static char other[96]; /* file of a drafter that is often wrong */

static struct eng_engine *open_with(const char *draft)
{
    struct eng_options o = { .n_parallel = 1, .n_draft = 1 };
    snprintf(o.draft[0].file, sizeof o.draft[0].file, "%s", draft);
    o.draft[0].kind = ENG_DRAFT_MODEL;
    return open_engine_with(o, 0);
}

/* ---- slow and failing workers ------------------------------------------------------------------------- */

static struct trouble {
    atomic_uint_fast64_t n;
    int most_us, lose_one_in;
    bool lose_all;
    int safe;
    atomic_int n_task[SPEC_DSI_WORKERS];
} trouble;

static int meddle(void *arg, int worker, int n_drafted)
{
    struct trouble *t = arg;
    if (n_drafted)
        return 0;
    uint64_t x = kn_mix(atomic_fetch_add(&t->n, 1) * KN_GOLDEN + (uint64_t)worker);
    atomic_fetch_add(&t->n_task[worker], 1);
    if (t->most_us)
        usleep((useconds_t)(x % (uint64_t)t->most_us));
    if (t->lose_all || (t->lose_one_in && worker != t->safe && (x >> 32) % (uint64_t)t->lose_one_in == 0))
        return KN_EIO;
    return 0;
}

static struct eng_dsi_stats say(struct eng_dsi *d, const struct asked *a)
{
    int32_t token[7];
    int n = 0, got;
    struct eng_dsi_stats stats;
    assert_int_equal(eng_dsi_begin(d, &a->request), 0);
    while ((got = eng_dsi_wait(d, token, 1 + below(7))) > 0) {
        assert_true(n + got <= a->n_said);
        assert_memory_equal(token, a->said + n, (size_t)got * sizeof *token);
        n += got;
    }
    assert_int_equal(got, 0);
    assert_int_equal(n, a->n_said);
    assert_int_equal(eng_dsi_wait(d, token, 7), 0);
    eng_dsi_stats(d, &stats);
    return stats;
}

static void run_with(struct eng_engine *e, int n_target, int lookahead)
{
    struct eng_dsi *d;
    uint64_t n_verify = 0, n_draft = 0;
    assert_int_equal(eng_dsi_open(&d, e,
                                  &(struct eng_dsi_options){ .n_target = n_target,
                                                             .lookahead = lookahead,
                                                             .n_thread = 1,
                                                             .meddle = meddle,
                                                             .meddle_arg = &trouble }),
                     0);
    for (int i = 0; i < SHARE(N_REQUEST); i++) {
        struct eng_request r = asked[i].request;
        if (r.grammar)
            continue;
        struct eng_dsi_stats stats = say(d, &asked[i]);
        n_verify += stats.n_verify;
        n_draft += stats.n_draft;
    }
    assert_true(n_verify > 0 && n_draft > 0);
    eng_dsi_close(d);
    close_engine(e);
}

static void run_all(const char *draft, int n_target, int lookahead) { run_with(open_with(draft), n_target, lookahead); }

static void the_text_is_that_of_plain_decoding(void **state)
{
    (void)state;
    trouble = (struct trouble){ 0 };
    for (int n_target = 1; n_target <= 4; n_target++)
        for (int lookahead = n_target % 2; lookahead <= 8; lookahead += 3 * n_target)
            run_all(n_target % 2 ? path : other, n_target, lookahead);
}

static bool all_had_tasks(int n_worker)
{
    int n = 0;
    while (n < n_worker && trouble.n_task[n] > 0)
        n++;
    return n == n_worker;
}

/* Each draft model has a worker: a good one and one that is often wrong, in both orders. */
static void several_draft(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        trouble = (struct trouble){ 0 };
        struct eng_options o = { .n_parallel = 1, .n_draft = 2 };
        for (int k = 0; k < 2; k++) {
            snprintf(o.draft[k].file, sizeof o.draft[k].file, "%s", i == k ? path : other);
            o.draft[k].kind = ENG_DRAFT_MODEL;
        }
        for (int again = 0; again < 20 && !all_had_tasks(4); again++) { /* a thread may sleep through a run */
            struct eng_engine *e = open_engine_with(o, 0);
            assert_non_null(eng_draft_chain_model(e->drafting, 1));
            assert_null(eng_draft_chain_model(e->drafting, 2));
            run_with(e, 2, 3 * i);
        }
        assert_true(all_had_tasks(4)); /* two targets, two drafters */
        assert_int_equal(trouble.n_task[4], 0);
    }
}

static void whoever_is_slow(void **state)
{
    (void)state;
    trouble = (struct trouble){ .most_us = 1500 };
    run_all(path, 3, 2);
    run_all(other, 2, 3);
}

/* Target 0 never fails. */
static void whoever_is_lost(void **state)
{
    (void)state;
    trouble = (struct trouble){ .lose_one_in = 8, .safe = 0 };
    for (int lookahead = 1; lookahead <= 4; lookahead++) {
        struct eng_engine *e = open_with(lookahead % 2 ? path : other);
        struct eng_dsi *d;
        assert_int_equal(
            eng_dsi_open(
                &d, e,
                &(struct eng_dsi_options){
                    .n_target = 3, .lookahead = lookahead, .n_thread = 1, .meddle = meddle, .meddle_arg = &trouble }),
            0);
        uint64_t lost = 0;
        for (int i = 0; i < N_REQUEST; i++)
            if (!asked[i].request.grammar)
                lost += say(d, &asked[i]).n_lost;
        assert_true(!WHOLE || lost > 0);
        eng_dsi_close(d);
        close_engine(e);
    }
}

static void without_a_target_it_says_so(void **state)
{
    (void)state;
    struct eng_engine *e = open_with(path);
    struct eng_dsi *d;
    int32_t token[8];
    trouble = (struct trouble){ .lose_all = true };
    assert_int_equal(
        eng_dsi_open(&d, e,
                     &(struct eng_dsi_options){
                         .n_target = 2, .lookahead = 2, .n_thread = 1, .meddle = meddle, .meddle_arg = &trouble }),
        0);
    assert_int_equal(eng_dsi_begin(d, &asked[0].request), 0);
    faults_listen();
    assert_int_equal(eng_dsi_wait(d, token, 8), KN_EIO);
    assert_int_equal(faults.n_line, 1);
    faults_listen_off();
    assert_int_equal(eng_dsi_wait(d, token, 8), 0);
    eng_dsi_close(d);
    close_engine(e);
}

/* Closes during a request, and begins a new request during one. */
static void it_can_be_left_at_any_time(void **state)
{
    (void)state;
    trouble = (struct trouble){ .most_us = 500 };
    for (int i = 0; i < 6; i++) {
        struct eng_engine *e = open_with(i % 2 ? path : other);
        struct eng_dsi *d;
        int32_t token[8];
        assert_int_equal(
            eng_dsi_open(&d, e,
                         &(struct eng_dsi_options){
                             .n_target = 2, .lookahead = 3, .n_thread = 1, .meddle = meddle, .meddle_arg = &trouble }),
            0);
        assert_int_equal(eng_dsi_begin(d, &asked[0].request), 0);
        for (int k = 0; k < i; k++)
            assert_true(eng_dsi_wait(d, token, 2) > 0);
        if (i >= 3)
            say(d, &asked[0]);
        eng_dsi_close(d);
        close_engine(e);
    }
}

/* ---- a draft ends at its first wrong token ---------------------------------------------------------------- */

enum { TARGET, DRAFTER, BLOCK = 16, MOST_POLLS = 500000 };

static struct {
    atomic_int n_task[2];       /* begun, by worker */
    atomic_bool ends;           /* soon: no further target task may come */
    atomic_int n_first, n_more; /* tokens of drafts: the first ones, and later ones */
} watched;

/* After each of its tokens the drafter waits until the target has begun two more tasks.  Before the second one the caller's thread has
 * passed on the token, and the target's own for its position, and so has cancelled a draft that is wrong. */
static int wait_for_target(void *arg, int worker, int n_drafted)
{
    (void)arg;
    if (!n_drafted)
        atomic_fetch_add(&watched.n_task[worker], 1);
    if (worker != DRAFTER || !n_drafted || atomic_load(&watched.ends))
        return 0;
    int n = atomic_load(&watched.n_task[TARGET]);
    for (int i = 0; atomic_load(&watched.n_task[TARGET]) < n + 2; i++) {
        if (i == MOST_POLLS) /* the target has failed, or hangs: the caller's thread may wait for this one */
            atomic_store(&watched.ends, true);
        if (atomic_load(&watched.ends))
            return 0;
        usleep(50);
    }
    atomic_fetch_add(n_drafted == 1 ? &watched.n_first : &watched.n_more, 1);
    return 0;
}

/* A drafter that is often wrong, with long blocks: it drafts few tokens behind a wrong one, and none that the caller's thread has
 * had the time to prevent. */
static void a_draft_ends_at_its_first_wrong_token(void **state)
{
    (void)state;
    struct asked *a = &asked[0];
    struct eng_engine *e = open_with(other);
    struct eng_dsi *d;
    int32_t token[1];
    int n = 0, got;
    memset(&watched, 0, sizeof watched);
    assert_int_equal(eng_dsi_open(&d, e,
                                  &(struct eng_dsi_options){
                                      .n_target = 1, .lookahead = BLOCK, .n_thread = 1, .meddle = wait_for_target }),
                     0);
    struct eng_request r = a->request;
    r.n_token = kn_min(r.n_token, 20);
    r.n_predict = 200;
    assert_int_equal(eng_dsi_begin(d, &r), 0);
    while ((got = eng_dsi_wait(d, token, 1)) > 0) {
        n += got;
        if (n + 4 * (BLOCK + 1) > r.n_predict)
            atomic_store(&watched.ends, true);
    }
    atomic_store(&watched.ends, true);
    assert_int_equal(got, 0);
    print_message("%d drafts, %d tokens behind their first\n", watched.n_first, watched.n_more);
    assert_true(watched.n_first >= 10 && watched.n_more < 3 * watched.n_first);
    eng_dsi_close(d);
    close_engine(e);
}

static int setup_all(void **state)
{
    struct kn_team *team;
    int error = setup(state);
    snprintf(other, sizeof other, "%s.other", path);
    if (error || kn_team_open(&team, 1))
        return -1;
    struct moe_synth_options so = {
        .shape = "tiny", .n_layer = 1, .n_vocab = n_vocab, .format = KN_Q4_K, .seed = 3, .team = team
    };
    error = moe_synth(other, &so);
    kn_team_close(team);
    random_state = 31;
    if (!error)
        make_requests();
    return error;
}

static int teardown_all(void **state)
{
    forget_requests();
    unlink(other);
    return teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_is_that_of_plain_decoding),
        cmocka_unit_test(several_draft),
        cmocka_unit_test(whoever_is_slow),
        cmocka_unit_test(whoever_is_lost),
        cmocka_unit_test(without_a_target_it_says_so),
        cmocka_unit_test(it_can_be_left_at_any_time),
        cmocka_unit_test(a_draft_ends_at_its_first_wrong_token),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
