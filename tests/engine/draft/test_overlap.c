/* Drafting that overlaps a pass (engine/draft/overlap.c). With drafters that are right, wrong, late or failing, every
 * session gives the same answer as without, to the bit of its logprobs; correct drafts are verified in the next pass.
 * The mode may change, and a drafter be unloaded, at any step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine/same_answers.h"

#define ROUNDS SHARE(6)

static struct eng_engine *open_ahead(const char *draft, struct eng_options o, int n_block)
{
    o.gamma = ENG_GAMMA_AUTO;
    o.dsi = o.dsi ? o.dsi : ENG_DSI_ON;
    o.n_draft = o.n_draft ? o.n_draft : 1;
    assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
    return open_engine_with(o, n_block);
}

static const char *itself(void)
{
    static char wish[96];
    snprintf(wish, sizeof wish, "model:%s", path);
    return wish;
}

/* ---- a drafter for tests ---------------------------------------------------------------------------- */

static struct {
    int right, most_us;
    bool fails, stays;
    long n_guess;
} worst; /* stays: ignores `stop` */

static void ignore_commit(struct eng_drafter *d, struct eng_seq *s, const struct spec_verify *v, int n_new, int n_kept)
{
    (void)d, (void)v;
    assert_true(n_new >= 1 && n_kept <= n_new && s->draft->chain.n >= 0);
}

/* Drafts chains of random tokens, `right` percent of them correct, each after a random delay. Writes only after
 * n_token. */
static int guess(struct eng_drafter *d, struct eng_seq **s, const int *n_more, int n, const atomic_bool *stop,
                 int *n_pass)
{
    (void)d;
    *n_pass = 0;
    for (int k = 0; k < 64 && (worst.stays || !(k && atomic_load(stop))); k++, ++*n_pass) {
        if (worst.most_us)
            usleep((useconds_t)below(worst.most_us));
        if (worst.fails)
            return KN_EIO;
        for (int i = 0; i < n; i++) {
            struct eng_chain *c = &s[i]->draft->chain;
            int said = s[i]->n_token - s[i]->n_prompt + c->n;
            if (k >= n_more[i])
                continue;
            int32_t token = below(100) < worst.right && said < s[i]->n_oracle ? s[i]->oracle[said] : below(n_vocab);
            s[i]->token[s[i]->n_token + c->n] = token;
            eng_chain_add(c, token, 0.5f);
            worst.n_guess++;
        }
    }
    return 0;
}

/* Replaces the functions of the model drafter, so that its memory exists. */
static struct eng_engine *open_worst(struct eng_options o, int n_block, int right, int most_us)
{
    static struct eng_drafter_kind kind;
    struct eng_engine *e = open_ahead(itself(), o, n_block);
    kind = *e->drafting->drafter[0]->kind;
    kind.overlap = guess;
    kind.commit = ignore_commit;
    e->drafting->drafter[0]->kind = &kind;
    worst.right = right;
    worst.most_us = most_us;
    worst.fails = worst.stays = false;
    worst.n_guess = 0;
    return e;
}

static void guesses_change_nothing(void **state)
{
    (void)state;
    static const int chunks[] = { 7, 64, 512 }, rights[] = { 0, 50, 90, 100 }, most_us[] = { 0, 0, 300 };
    uint64_t n_kept = 0, n_preempted = 0, n_guess = 0, n_wrong = 0, n_lucky = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct eng_engine *e = open_worst((struct eng_options){ .n_parallel = 1 + below(5),
                                                                .n_chunk = chunks[round % 3],
                                                                .n_thread = 1 + below(2),
                                                                .lookahead = 1 + below(12) },
                                          round % 3 ? 5 + below(8) : 0, rights[round % 4], most_us[round % 3]);
        worst.stays = round % 2 && !most_us[round % 3]; /* number of drafts independent of timing */
        run_crowd(e, SHARE(16));
        n_guess += worst.n_guess > 0;
        assert_true(e->stats.n_draft_kept <= e->stats.n_draft);
        if (rights[round % 4] == 0) {
            n_wrong += e->stats.n_draft;
            n_lucky += e->stats.n_draft_kept;
        }
        n_kept += e->stats.n_draft_kept;
        n_preempted += e->stats.n_preempted;
        close_engine(e);
    }
    if (n_lucky * 20 > n_wrong + 100) /* the number depends on timing; a few are right by chance */
        fail_msg("%d kept of %d guesses at random", (int)n_lucky, (int)n_wrong);
    if (WHOLE && (!n_guess || !n_kept || !n_preempted))
        fail_msg("%d rounds with guesses, %d kept, %d preempted", (int)n_guess, (int)n_kept, (int)n_preempted);
}

/* The first of `lookahead` drafts beside each pass is the token of that pass itself, so a pass yields `lookahead`
 * tokens. */
static void what_is_right_saves_passes(void **state)
{
    (void)state;
    for (int lookahead = 2; lookahead <= 8; lookahead += 3) {
        struct eng_engine *e = open_worst(
            (struct eng_options){ .n_parallel = 1, .n_chunk = 512, .lookahead = lookahead }, 0, 100, 0);
        struct eng_session *s;
        int n = 0;
        worst.stays = true;
        assert_int_equal(eng_session_open(&s, e), 0);
        assert_int_equal(eng_session_start(s, &asked[0].request), 0);
        eng_session_set_oracle(s, asked[0].said, asked[0].n_said);
        while (eng_session_runs(s))
            n += eng_step(e, event);
        assert_int_equal(n, asked[0].n_said);
        if (e->stats.n_pass != (uint64_t)(1 + kn_ceil_div(n - 1, lookahead)))
            fail_msg("%d ahead: %d passes for %d tokens", lookahead, (int)e->stats.n_pass, n);
        close_engine(e);
    }
}

static void a_drafter_that_fails_is_left_alone(void **state)
{
    (void)state;
    struct eng_engine *e = open_worst((struct eng_options){ .n_parallel = 3, .n_chunk = 64, .lookahead = 3 }, 0, 50, 0);
    worst.fails = true;
    run_crowd(e, SHARE(10));
    assert_true(e->drafting->drafter[0]->broken);
    assert_int_equal(e->stats.n_draft, 0);
    close_engine(e);
}

/* ---- real drafters ---------------------------------------------------------------------------------- */

/* The number of drafts in time depends on the machine; answers must not. */
static void run_real(const char *draft, int lookahead, int n_block)
{
    struct eng_engine *e = open_ahead(
        draft, (struct eng_options){ .n_parallel = 4, .n_chunk = 100, .n_thread = 2, .lookahead = lookahead }, n_block);
    run_crowd(e, SHARE(16));
    assert_true(e->stats.n_draft_kept <= e->stats.n_draft && e->drafting->times.overlap_ns > 0);
    close_engine(e);
}

static void models_draft_ahead(void **state)
{
    (void)state;
    run_real(itself(), 4, 0);
    run_real(itself(), 0, 9);
    run_real(itself(), 12, 9);
}

/* The real drafter, but never stopped by the end of a pass. */
static const struct eng_drafter_kind *hurried;
static int patient(struct eng_drafter *d, struct eng_seq **s, const int *n_more, int n, const atomic_bool *stop,
                   int *n_pass)
{
    static const atomic_bool never;
    (void)stop;
    return hurried->overlap(d, s, n_more, n, &never, n_pass);
}

/* The model drafts for itself and is always right, so each draft is accepted. This fails if a key or value of the
 * drafter is not that of the sequence. */
static void what_it_knows_is_true(void **state)
{
    (void)state;
    struct eng_engine *e = open_ahead(itself(), (struct eng_options){ .n_parallel = 2, .n_chunk = 100, .lookahead = 5 },
                                      0);
    struct eng_session *s;
    hurried = e->drafting->drafter[0]->kind;
    struct eng_drafter_kind kind = *hurried;
    kind.overlap = patient;
    e->drafting->drafter[0]->kind = &kind;
    for (int i = 0; i < N_REQUEST; i++) {
        if (asked[i].request.grammar)
            continue;
        assert_int_equal(eng_session_open(&s, e), 0);
        assert_int_equal(eng_session_start(s, &asked[i].request), 0);
        while (eng_session_runs(s))
            assert_true(eng_step(e, event) >= 0);
        eng_session_close(s);
    }
    assert_true(!WHOLE || e->stats.n_draft > 100);
    assert_int_equal(e->stats.n_draft_kept, e->stats.n_draft);
    close_engine(e);
}

/* Further crowds allowed: the controller decides by the clock, and may draft little at first on a busy machine. */
#define MORE 200

/* Sessions without an overlapped draft get drafts of the free drafter. */
static void others_fill_in(void **state)
{
    (void)state;
    struct eng_options o = { .n_parallel = 4, .n_chunk = 100, .lookahead = 4, .n_draft = 2 };
    assert_int_equal(eng_draft_parse(&o.draft[1], "oracle:1"), 0);
    struct eng_engine *e = open_ahead(itself(), o, 12);
    e->drafting->drafter[0]->broken = true;
    run_crowd(e, SHARE(16));
    for (int i = 0; WHOLE && i < MORE && e->stats.n_draft_kept <= 200; i++)
        run_crowd(e, 4);
    assert_true(!WHOLE || e->stats.n_draft_kept > 200);
    close_engine(e);
}

/* Overlap on, off or auto, and mixed with drafts between passes, changed at any step. */
static void it_may_change_at_any_step(void **state)
{
    (void)state;
    static const enum eng_dsi_mode mode[] = { ENG_DSI_OFF, ENG_DSI_ON, ENG_DSI_AUTO };
    struct eng_engine *e = open_ahead(itself(),
                                      (struct eng_options){ .n_parallel = 4, .n_chunk = 100, .dsi = ENG_DSI_AUTO }, 12);
    for (int i = 0; i < SHARE(12); i++) {
        eng_set_gamma(e, below(3) ? below(5) : ENG_GAMMA_AUTO);
        eng_set_dsi(e, mode[below(3)], below(6));
        run_crowd(e, 2);
    }
    eng_set_gamma(e, ENG_GAMMA_AUTO);
    eng_set_dsi(e, ENG_DSI_AUTO, 0);
    run_crowd(e, SHARE(16));
    close_engine(e);
}

/* One drafter makes trees between passes and chains beside passes in turn, in the same memory. */
static void trees_take_turns_with_chains(void **state)
{
    (void)state;
    static const enum eng_dsi_mode mode[] = { ENG_DSI_OFF, ENG_DSI_ON, ENG_DSI_AUTO };
    char tree[128];
    snprintf(tree, sizeof tree, "%s,tree=dynamic", itself());
    struct eng_engine *e = open_ahead(tree,
                                      (struct eng_options){ .n_parallel = 4, .n_chunk = 100, .dsi = ENG_DSI_AUTO }, 12);
    uint64_t n_kept[2] = { 0 };
    for (int i = 0; i < SHARE(16) || (WHOLE && i < MORE && (n_kept[0] <= 20 || !n_kept[1])); i++) {
        /* even: fixed gamma, overlap off or on; odd: gamma auto, overlap on or auto */
        uint64_t before = e->stats.n_draft_kept;
        eng_set_gamma(e, i % 2 ? ENG_GAMMA_AUTO : 3 + below(5));
        eng_set_dsi(e, mode[i % 2 + below(2)], below(6));
        run_crowd(e, 2);
        n_kept[i % 2] += e->stats.n_draft_kept - before;
    }
    assert_true(!WHOLE || (n_kept[0] > 20 && n_kept[1] > 0));
    close_engine(e);
}

/* Overlap is always on, but its drafter is unloaded: sessions still run to their end. */
static void who_goes_is_not_waited_for(void **state)
{
    (void)state;
    struct eng_engine *e = open_ahead(itself(), (struct eng_options){ .n_parallel = 4 }, 12);
    run_crowd(e, SHARE(4));
    for (int i = 0; i < 10; i++) /* in the middle of answers */
        eng_step(e, event);
    eng_draft_unload(e->drafting, 0);
    run_crowd(e, SHARE(4));
    eng_set_dsi(e, ENG_DSI_ON, 3);
    run_crowd(e, SHARE(4));
    close_engine(e);
}

/* The forecast is made again, as it is at rest when passes were fitted, after the drafter was unloaded. */
static void who_goes_is_not_forecast(void **state)
{
    (void)state;
    struct eng_engine *e = open_ahead(itself(), (struct eng_options){ .n_parallel = 4, .dsi = ENG_DSI_AUTO }, 12);
    run_crowd(e, SHARE(4));
    eng_draft_unload(e->drafting, 0);
    eng_draft_set_forecast(e->drafting);
    run_crowd(e, SHARE(4));
    close_engine(e);
}

/* ---- refusals ------------------------------------------------------------------------------------------- */

static void who_cannot_is_told(void **state)
{
    (void)state;
    static const char *const tries[] = { "ngram", "suffix", "oracle:0.5" };
    struct eng_engine *e;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
        for (int on = 0; on < 2; on++) {
            struct eng_options o = { .model = path,
                                     .isa = KN_ISA_COUNT - 1,
                                     .n_ctx = N_CTX,
                                     .n_parallel = 1,
                                     .n_thread = 1,
                                     .gamma = ENG_GAMMA_AUTO,
                                     .n_draft = 1,
                                     .dsi = on ? ENG_DSI_ON : ENG_DSI_AUTO };
            assert_int_equal(eng_draft_parse(&o.draft[0], tries[i]), 0);
            faults_listen();
            int got = eng_open(&e, &o);
            if (got != (on ? KN_EUNSUPPORTED : 0) || faults.n_line != 1 || !strstr(faults.line, "model:FILE"))
                fail_msg("%s: %d, %d lines, '%s'", tries[i], got, faults.n_line, faults.line);
            faults_listen_off();
            if (!got)
                eng_close(e);
        }
}

static int setup_all(void **state) { return setup_asked(state, 41); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_change_nothing),
        cmocka_unit_test(what_is_right_saves_passes),
        cmocka_unit_test(a_drafter_that_fails_is_left_alone),
        cmocka_unit_test(models_draft_ahead),
        cmocka_unit_test(what_it_knows_is_true),
        cmocka_unit_test(others_fill_in),
        cmocka_unit_test(it_may_change_at_any_step),
        cmocka_unit_test(trees_take_turns_with_chains),
        cmocka_unit_test(who_goes_is_not_waited_for),
        cmocka_unit_test(who_goes_is_not_forecast),
        cmocka_unit_test(who_cannot_is_told),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_asked);
}
