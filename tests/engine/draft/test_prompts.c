/* Drafters read prompts (engine/draft/prompts.c). With long prompts, sequences get as many drafts as with short ones. With
 * experts on disk a drafter reads beside the passes that read the prompt. A later sequence with the same prefix finds it
 * computed, also when the first was cancelled in the middle. Answers are the same as without drafts. Counts, no times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/draft/internal.h"
#include "engine/internal.h"

#define DEMO    "evals/train/models/demo-target-q8_0.gguf"
#define MODEL   "model:evals/train/models/demo-draft-q8_0.gguf"
#define HEAD    "eagle:evals/train/models/demo-eagle-f16.gguf"
#define USERS   4
#define N_GEN   32
#define GAMMA   4
#define LONGEST 512
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__ /* slow */
#define LONG 128
#else
#define LONG LONGEST
#endif
#define N_CTX    960                /* KV for two prompts at once, also with ON_DISK bytes */
#define ON_DISK  ((size_t)44 << 20) /* --host-mem with which most experts stay on disk */
#define IN_CHUNK 64

static struct eng_event *event;
static struct eng_session *session[USERS];
static int32_t prompt[USERS][LONGEST], said[USERS][N_GEN];

static struct eng_engine *open_demo(const char *draft, size_t host_mem, int n_chunk)
{
    struct eng_engine *e;
    struct eng_options o = { .model = DEMO,
                             .isa = KN_ISA_COUNT - 1,
                             .host_mem = host_mem,
                             .n_ctx = N_CTX,
                             .n_thread = 2,
                             .n_parallel = USERS,
                             .n_chunk = n_chunk,
                             .max_prefill_slowdown = 1e9, /* no limit by measured times */
                             .gamma = GAMMA,
                             .n_draft = 1 };
    assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
    assert_int_equal(eng_open(&e, &o), 0);
    event = calloc((size_t)eng_event_room(e), sizeof *event);
    assert_non_null(event);
    assert_true(!host_mem || !off_store_is_whole(moe_model_store(eng_model(e))));
    return e;
}

static void close_demo(struct eng_engine *e)
{
    eng_close(e);
    free(event);
}

static void make_prompts(void)
{
    for (int i = 0; i < USERS; i++)
        for (int k = 0; k < LONGEST; k++)
            prompt[i][k] = (int32_t)(3 + kn_mix((uint64_t)(i * LONGEST + k)) % 4000);
}

static void start(struct eng_engine *e, int user, int n_prompt, uint64_t salt)
{
    struct eng_request r = {
        .token = prompt[user], .n_token = n_prompt, .n_predict = N_GEN, .salt = salt, .ignore_eos = true
    };
    spec_params_default(&r.sampling);
    r.sampling.temperature = 0;
    assert_int_equal(eng_session_open(&session[user], e), 0);
    assert_int_equal(eng_session_start(session[user], &r), 0);
}

static int n_said(int user, int n_prompt)
{
    int n;
    eng_session_tokens(session[user], &n);
    return n - n_prompt;
}

static void step(struct eng_engine *e) { assert_true(eng_step(e, event) >= 0); }

/* All users, to the end of their answers. Returns the drafted tokens for each sequence and pass behind the first answer
 * token. keep: stores the answers; else they must be the stored ones. */
static double run_users(struct eng_engine *e, int n_prompt, uint64_t salt, bool keep)
{
    uint64_t before = e->stats.n_draft;
    int n_due = 0, n_left = USERS;
    for (int i = 0; i < USERS; i++)
        start(e, i, n_prompt, salt);
    for (; n_left > 0; step(e)) {
        n_left = 0;
        for (int i = 0; i < USERS; i++) {
            n_left += eng_session_runs(session[i]);
            n_due += eng_session_runs(session[i]) && n_said(i, n_prompt) > 0;
        }
    }
    for (int i = 0; i < USERS; i++) {
        const int32_t *token = session[i]->seq.token + n_prompt;
        assert_int_equal(n_said(i, n_prompt), N_GEN);
        if (keep)
            memcpy(said[i], token, sizeof said[i]);
        assert_memory_equal(said[i], token, sizeof said[i]);
        eng_session_close(session[i]);
    }
    return (double)(e->stats.n_draft - before) / n_due;
}

/* ---- as many drafts ------------------------------------------------------------------------------------- */

#ifndef __SANITIZE_THREAD__
static void long_prompts_get_as_many_drafts(void **state)
{
    struct eng_engine *e = open_demo(*state, 0, 512);
    double drafted[2];
    for (int i = 0; i < 2; i++) {
        int n_prompt = i ? LONG : 32;
        eng_set_gamma(e, 0);
        run_users(e, n_prompt, (uint64_t)(2 * i), true);
        eng_set_gamma(e, GAMMA);
        drafted[i] = run_users(e, n_prompt, (uint64_t)(2 * i + 1), false);
    }
    assert_true(drafted[0] > 0.8 * GAMMA);
    if (drafted[1] < 0.95 * drafted[0])
        fail_msg("prompts of %d tokens: %.2f drafted tokens a pass, of 32: %.2f", LONG, drafted[1], drafted[0]);
    close_demo(e);
}
#endif

/* ---- beside passes ---------------------------------------------------------------------------------------- */

static int n_read(struct eng_engine *e, int user)
{
    return eng_draft_first_uncomputed(e->drafting->drafter[0], &session[user]->seq, session[user]->seq.n_token);
}

/* While a prompt is read from disk, its drafter reads along: a model all but a pass's last tokens, a head one chunk
 * behind. So the first draft has a chunk to read at most. */
static void a_drafter_reads_beside_the_passes(void **state)
{
    struct eng_engine *e = open_demo(*state, ON_DISK, IN_CHUNK);
    struct eng_drafts d;
    int back = e->drafting->drafter[0]->position_offset * IN_CHUNK;
    start(e, 0, 400, 1);
    while (n_said(0, 400) == 0) {
        step(e);
        assert_true(n_read(e, 0) >= kn_min(session[0]->seq.n_kv, 399) / IN_CHUNK * IN_CHUNK - back);
    }
    eng_drafts_get(e, &d);
    assert_true(d.n_text_beside >= (uint64_t)(384 - back));
    assert_int_equal(d.n_text_before, 0);
    step(e);
    assert_int_equal(session[0]->seq.tree->n, GAMMA);
    assert_true(e->drafting->drafter[0]->n_text <= 400 - 384 + 1 + back);
    eng_session_close(session[0]);
    close_demo(e);
}

/* A sequence is cancelled in the middle of its prompt. Another one with the same prompt finds the blocks computed, for the
 * model and for its drafter; without a cancelled one it would compute them all. */
static void a_shared_prefix_is_found_computed(void **state)
{
    struct eng_engine *e = open_demo(*state, ON_DISK, IN_CHUNK);
    int back = e->drafting->drafter[0]->position_offset * IN_CHUNK;
    start(e, 0, 400, 1);
    for (int i = 0; i < 4; i++)
        step(e);
    eng_session_close(session[0]);
    start(e, 0, 400, 1);
    memcpy(prompt[1], prompt[0], sizeof prompt[1]);
    start(e, 1, 400, 2); /* another salt: nothing is shared */
    step(e);
    assert_int_equal(session[0]->n_cached, 4 * IN_CHUNK);
    assert_true(n_read(e, 0) >= 4 * IN_CHUNK - back && n_read(e, 1) <= IN_CHUNK);
    while (n_said(0, 400) == 0)
        step(e);
    eng_session_close(session[1]);
    eng_session_close(session[0]);
    start(e, 0, 400, 1);
    for (int i = 0; n_said(0, 400) == 0; i++) {
        assert_true(i == 0); /* the whole prompt was cached */
        step(e);
    }
    step(e);
    assert_int_equal(session[0]->seq.tree->n, GAMMA);
    assert_true(e->drafting->drafter[0]->n_text <= 2 * IN_CHUNK);
    eng_session_close(session[0]);
    assert_int_equal(e->kv.n_free, e->kv.n_block);
    close_demo(e);
    make_prompts();
}

/* Users that come, go in the middle and return, with experts on disk: the same answers as without drafts. */
static void answers_are_the_same_beside(void **state)
{
    struct eng_engine *e = open_demo(*state, ON_DISK, IN_CHUNK);
    eng_set_gamma(e, 0);
    run_users(e, 160, 1, true);
    eng_set_gamma(e, GAMMA);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < USERS; i++)
            start(e, i, 160, 2);
        for (int i = 0; i < 2 + 3 * round; i++)
            step(e);
        for (int i = 0; i < USERS; i++)
            eng_session_close(session[i]);
        run_users(e, 160, 2, false);
    }
    close_demo(e);
}

/* A drafter that fails beside a pass is not used again, and harms no answer. */
static void a_drafter_that_fails_beside_is_left_alone(void **state)
{
    struct eng_engine *e = open_demo(*state, ON_DISK, IN_CHUNK);
    eng_set_gamma(e, 0);
    run_users(e, 100, 1, true);
    eng_set_gamma(e, GAMMA);
    start(e, 0, 400, 2);
    e->drafting->prompts.error[0] = KN_EIO;
    step(e);
    assert_true(e->drafting->drafter[0]->broken);
    eng_session_close(session[0]);
    assert_true(run_users(e, 100, 3, false) == 0);
    close_demo(e);
}

int main(void)
{
    make_prompts();
    const struct CMUnitTest tests[] = {
#ifndef __SANITIZE_THREAD__ /* all in memory: the drafter does not run beside passes, as it does in the tests below */
        cmocka_unit_test_prestate(long_prompts_get_as_many_drafts, MODEL),
        cmocka_unit_test_prestate(long_prompts_get_as_many_drafts, MODEL ",tree=dynamic"),
        cmocka_unit_test_prestate(long_prompts_get_as_many_drafts, HEAD),
#endif
        cmocka_unit_test_prestate(a_drafter_reads_beside_the_passes, MODEL),
        cmocka_unit_test_prestate(a_drafter_reads_beside_the_passes, HEAD),
        cmocka_unit_test_prestate(a_shared_prefix_is_found_computed, MODEL),
        cmocka_unit_test_prestate(a_shared_prefix_is_found_computed, HEAD),
        cmocka_unit_test_prestate(answers_are_the_same_beside, MODEL),
        cmocka_unit_test_prestate(answers_are_the_same_beside, HEAD),
        cmocka_unit_test_prestate(a_drafter_that_fails_beside_is_left_alone, MODEL),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
