/* The fit that is kept beside the model: passes of requests make it, the next start reads it, another setup does not, and
 * the tokens of the answers stay the same.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/draft/internal.h"
#include "engine/engine.h"
#include "engine/internal.h"
#include "tests/faults.h"

#define FOLDER  "evals/train/models/"
#define DRAFT   "model:" FOLDER "demo-draft-q8_0.gguf"
#define N_TOKEN 120
#define N_SEQ   3

static char folder[] = "/tmp/spillway-fit-XXXXXX";
static char model[96], fit[112];

static struct eng_engine *open_demo(const char *option, enum kn_kv kv, bool keep)
{
    struct eng_options o = { .model = model,
                             .isa = KN_ISA_COUNT - 1,
                             .kv = kv,
                             .n_thread = 1,
                             .n_parallel = N_SEQ,
                             .n_ctx = 256,
                             .n_chunk = 64,
                             .gamma = ENG_GAMMA_AUTO,
                             .fit = option,
                             .keep_heat = keep,
                             .n_draft = 1 };
    struct eng_engine *e;
    assert_int_equal(eng_draft_parse(&o.draft[0], DRAFT), 0);
    assert_int_equal(eng_open(&e, &o), 0);
    return e;
}

/* Runs N_SEQ sequences of N_TOKEN tokens; rests: the engine rests in between. */
static void generate(struct eng_engine *e, int32_t out[N_SEQ][N_TOKEN], bool rests)
{
    struct eng_event *event = calloc((size_t)eng_event_room(e), sizeof *event);
    struct eng_session *session[N_SEQ];
    int n[N_SEQ] = { 0 }, n_end = 0;
    for (int i = 0; i < N_SEQ; i++) {
        int32_t prompt[4] = { 1, 20 + i, 300 + i, 40 };
        struct eng_request r = { .token = prompt, .n_token = 4, .n_predict = N_TOKEN, .ignore_eos = true };
        spec_params_default(&r.sampling);
        r.sampling.seed = 5;
        assert_int_equal(eng_session_open(&session[i], e), 0);
        assert_int_equal(eng_session_start(session[i], &r), 0);
    }
    while (n_end < N_SEQ) {
        int got = eng_step(e, event);
        assert_true(got >= 0);
        for (int k = 0; k < got; k++) {
            int i = 0;
            while (session[i] != event[k].session)
                i++;
            if (n[i] < N_TOKEN && event[k].token >= 0)
                out[i][n[i]++] = event[k].token;
            n_end += event[k].finish != ENG_RUNNING;
        }
        if (rests)
            eng_rest(e);
    }
    for (int i = 0; i < N_SEQ; i++)
        eng_session_close(session[i]);
    free(event);
}

static struct eng_drafts report(struct eng_engine *e)
{
    struct eng_drafts d;
    eng_drafts_get(e, &d);
    return d;
}

static void passes_are_kept_and_read(void **state)
{
    (void)state;
    static int32_t first[N_SEQ][N_TOKEN], second[N_SEQ][N_TOKEN];
    char line[768];
    struct eng_engine *e = open_demo(NULL, KN_KV_F16, true);
    assert_false(report(e).fitted);
    generate(e, first, false);
    assert_true(report(e).n_fit_pass > 40);
    assert_true(access(fit, F_OK) != 0); /* nothing is written during passes */
    eng_close(e);
    assert_true(access(fit, R_OK) == 0);

    e = open_demo("auto", KN_KV_F16, true);
    assert_true(report(e).fitted && report(e).fit_error > 0 && report(e).fit_error < 1);
    assert_true(e->drafting->cost.fixed_ns == e->drafting->fit.fitted.cost.fixed_ns);
    generate(e, second, true);
    assert_memory_equal(first, second, sizeof first);
    eng_explain(e, line, sizeof line);
    assert_non_null(strstr(line, "target efficiency"));
    assert_non_null(strstr(line, "N(t)"));
    assert_true(report(e).target.predicted > 0 && report(e).target.predicted <= 1);
    assert_true(report(e).target.full_rows == 23);
    eng_close(e);
}

/* Options that change the time of a pass, --fit none and --fit FILE do not take the kept fit; the first says so. */
static void other_setups_measure_again(void **state)
{
    (void)state;
    faults_listen();
    faults.most = KN_LOG_INFO;
    struct eng_engine *e = open_demo(NULL, KN_KV_F32, true);
    assert_false(report(e).fitted);
    assert_int_equal(faults.n_line, 1);
    assert_non_null(strstr(faults.line, "another machine or with other options"));
    eng_close(e);
    faults_listen();
    faults.most = KN_LOG_INFO;
    e = open_demo("none", KN_KV_F16, true);
    assert_false(report(e).fitted);
    eng_close(e);
    e = open_demo(NULL, KN_KV_F16, false);
    assert_false(report(e).fitted);
    eng_close(e);
    e = open_demo(fit, KN_KV_F16, true);
    assert_true(report(e).fitted);
    assert_false(e->drafting->fit.collects);
    eng_close(e);
    assert_int_equal(faults.n_line, 0);
    faults.most = KN_LOG_WARN;
    faults_listen_off();
}

static int make_link(void **state)
{
    char target[4096], here[3072];
    (void)state;
    if (!mkdtemp(folder) || !getcwd(here, sizeof here))
        return -1;
    snprintf(target, sizeof target, "%s/" FOLDER "demo-target-q8_0.gguf", here);
    snprintf(model, sizeof model, "%s/m.gguf", folder);
    snprintf(fit, sizeof fit, "%s.fit", model);
    return symlink(target, model);
}

static int remove_link(void **state)
{
    char heat[112];
    (void)state;
    snprintf(heat, sizeof heat, "%s.heat", model);
    unlink(fit);
    unlink(heat);
    unlink(model);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_are_kept_and_read),
        cmocka_unit_test(other_setups_measure_again),
    };
    return cmocka_run_group_tests(tests, make_link, remove_link);
}
