/* Reference texts of requests (the `prediction` of the API): answers are the same with any text, any drafter and any
 * batch; a text that the answer repeats saves passes; without one nothing is drafted, and the controller is not asked.
 * Limits of a request (eng_draft_limits) are kept, and change no answer either.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine/same_answers.h"

static int32_t reference[N_REQUEST][N_CTX];

/* Each request but every fourth gets its answer as reference text, with some tokens changed, or another answer. */
static void give_references(bool any)
{
    for (int i = 0; i < N_REQUEST; i++) {
        struct asked *a = &asked[i], *from = i % 4 == 2 ? &asked[below(N_REQUEST)] : a;
        int n = from->n_said - from->n_told;
        a->request.reference = NULL;
        a->request.n_reference = 0;
        if (!any || i % 4 == 3 || !n)
            continue;
        memcpy(reference[i], from->said + from->n_told, (size_t)n * sizeof **reference);
        for (int k = 0; k < n / 15; k++)
            reference[i][below(n)] = below(n_vocab);
        a->request.reference = reference[i];
        a->request.n_reference = n;
    }
}

static struct eng_engine *open_predicting(const char *draft, int gamma, enum eng_dsi_mode dsi, int n_block)
{
    struct eng_options o = {
        .n_parallel = 4, .n_chunk = 100, .n_thread = 2, .gamma = gamma, .dsi = dsi, .predictions = true
    };
    if (draft) {
        assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
        o.n_draft = 1;
    }
    return open_engine_with(o, n_block);
}

static uint64_t n_decision(const struct eng_engine *e)
{
    struct eng_drafts d;
    uint64_t n = 0;
    eng_drafts_get(e, &d);
    for (int i = 0; i < SPEC_WHY_COUNT; i++)
        n += d.n_decision[i];
    return n;
}

static void answers_are_the_same(void **state)
{
    (void)state;
    char model[96];
    snprintf(model, sizeof model, "model:%s", path);
    const struct {
        const char *draft;
        int gamma;
        enum eng_dsi_mode dsi;
        int n_block;
        bool keeps;
    } row[] = {
        { NULL, ENG_GAMMA_AUTO, ENG_DSI_OFF, 0, false },
        { NULL, 6, ENG_DSI_OFF, 9, true },
        { "ngram", 6, ENG_DSI_OFF, 9, true },
        { "suffix,shared", ENG_GAMMA_AUTO, ENG_DSI_OFF, 0, false },
        { model, 8, ENG_DSI_OFF, 9, true },
        { model, 4, ENG_DSI_ON, 0, true },
        { model, ENG_GAMMA_AUTO, ENG_DSI_AUTO, 9, false },
    };
    give_references(true);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct eng_engine *e = open_predicting(row[i].draft, row[i].gamma, row[i].dsi, row[i].n_block);
        assert_int_equal(eng_draft_count(e->drafting), row[i].draft == model ? 2 : 1);
        run_crowd(e, SHARE(24));
        assert_true(n_decision(e) > 0);
        if (row[i].keeps && WHOLE && e->stats.n_draft_kept < 50)
            fail_msg("row %d: %d of %d kept", (int)i, (int)e->stats.n_draft_kept, (int)e->stats.n_draft);
        close_engine(e);
    }
}

static void a_reference_saves_passes(void **state)
{
    (void)state;
    static const char *const drafts[] = { NULL, "ngram", "suffix" };
    for (int i = 0; i < 3; i++) {
        struct eng_engine *e = open_predicting(drafts[i], 8, ENG_DSI_OFF, 0);
        struct asked *a = &asked[0], b = *a;
        uint64_t before = 0;
        b.request.reference = NULL;
        b.request.n_reference = 0;
        say_in(e, &b);
        assert_true(drafts[i] || e->stats.n_draft == 0);
        before = e->stats.n_pass;
        b.request.reference = a->said + a->n_told;
        b.request.n_reference = a->n_said - a->n_told;
        say_in(e, &b);
        assert_int_equal(b.n_said, a->n_said);
        assert_memory_equal(b.said, a->said, (size_t)a->n_said * sizeof *a->said);
        assert_true((e->stats.n_pass - before) * 3 < (uint64_t)a->n_said);
        close_engine(e);
    }
}

/* The engine of a server without --draft: no request has a reference text. */
static void without_one_nothing_changes(void **state)
{
    (void)state;
    struct eng_drafts d;
    char line[256];
    struct eng_engine *e = open_predicting(NULL, ENG_GAMMA_AUTO, ENG_DSI_OFF, 9);
    give_references(false);
    run_crowd(e, SHARE(12));
    eng_drafts_get(e, &d);
    assert_true(!d.any && d.n_choice == 0 && e->stats.n_draft == 0 && n_decision(e) == 0 && d.loss_limit_ns == 0);
    assert_true(eng_explain(e, line, sizeof line) > 0 && strstr(line, "no drafter"));
    give_references(true);
    run_crowd(e, SHARE(12));
    eng_drafts_get(e, &d);
    assert_true(d.any && d.n_choice == 1 && !strcmp(d.choice[0].name, "prediction") && n_decision(e) > 0);
    close_engine(e);
}

/* ---- limits of a request ------------------------------------------------------------------------------ */

/* Random limits: answers are the same, with several drafters, during passes too. */
static void limits_change_nothing(void **state)
{
    (void)state;
    char model[96];
    snprintf(model, sizeof model, "model:%s", path);
    static const int gammas[] = { 8, ENG_GAMMA_AUTO, 4 };
    give_references(true);
    for (int i = 0; i < N_REQUEST; i++)
        asked[i].request.drafts = (struct eng_draft_limits){ .unused = (uint8_t)(i % 3 ? below(4) : 0),
                                                             .n_max = below(6),
                                                             .n_min = below(3),
                                                             .p_min = (float)below(3) / 4 };
    for (int i = 0; i < 3; i++) {
        struct eng_engine *e = open_predicting(model, gammas[i], i == 2 ? ENG_DSI_ON : ENG_DSI_OFF, i ? 0 : 9);
        run_crowd(e, SHARE(24));
        close_engine(e);
    }
    for (int i = 0; i < N_REQUEST; i++)
        asked[i].request.drafts = (struct eng_draft_limits){ 0 };
}

/* A step's draft for one request with these limits, by a model that drafts for itself and by its reference text. */
static struct spec_tree tree_with(struct eng_draft_limits limits)
{
    char model[96];
    struct spec_tree tree = { 0 };
    struct eng_session *s;
    struct asked *a = &asked[0];
    struct eng_request r = a->request;
    snprintf(model, sizeof model, "model:%s", path);
    struct eng_engine *e = open_predicting(model, 8, ENG_DSI_OFF, 0);
    r.drafts = limits;
    r.reference = a->said + a->n_told;
    r.n_reference = a->n_said - a->n_told;
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    for (int step = 0; step < 4 && eng_session_runs(s); step++) {
        eng_step(e, event);
        if (s->seq.tree && s->seq.tree->n)
            tree = *s->seq.tree;
    }
    close_engine(e);
    return tree;
}

static void limits_are_kept(void **state)
{
    (void)state;
    int from[2] = { 0 };
    struct spec_tree t = tree_with((struct eng_draft_limits){ 0 });
    for (int i = 0; i < t.n; i++) {
        from[0] += t.source[i] & 1;
        from[1] += t.source[i] >> 1 & 1;
    }
    assert_true(t.n > 3 && from[0] && from[1]);
    for (uint8_t unused = 1; unused <= 3; unused++) {
        t = tree_with((struct eng_draft_limits){ .unused = unused });
        assert_true((t.n == 0) == (unused == 3));
        assert_true(t.n > 4 || unused == 3); /* the others' share of the 8 nodes is its own */
        for (int i = 0; i < t.n; i++)
            assert_int_equal(t.source[i] & unused, 0);
    }
    t = tree_with((struct eng_draft_limits){ .n_max = 2 });
    assert_in_range(t.n, 1, 2);
    t = tree_with((struct eng_draft_limits){ .n_min = 60 });
    assert_int_equal(t.n, 0);
    t = tree_with((struct eng_draft_limits){ .p_min = 0.7f });
    for (int i = 0; i < t.n; i++)
        assert_true(t.survival[i] >= 0.7f * (t.parent[i] < 0 ? 1 : t.survival[t.parent[i]]));
}

/* Tokens outside the vocabulary are refused, and an engine without drafters takes the text and drafts nothing. */
static void odd_references(void **state)
{
    (void)state;
    struct eng_engine *e = open_engine(2, 64, 0);
    struct eng_session *s;
    struct asked b = asked[0];
    const int32_t bad[] = { 5, n_vocab + 1000 };
    b.request.reference = bad;
    b.request.n_reference = 1;
    say_in(e, &b);
    assert_memory_equal(b.said, asked[0].said, (size_t)asked[0].n_said * sizeof *b.said);
    assert_int_equal(e->stats.n_draft, 0);
    b.request.n_reference = 2;
    faults_listen();
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &b.request), KN_EINVAL);
    assert_non_null(strstr(faults.line, "in the prediction"));
    faults_listen_off();
    eng_session_close(s);
    close_engine(e);
}

static int start(void **state) { return setup_asked(state, 5); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reference_saves_passes),
        cmocka_unit_test(answers_are_the_same),
        cmocka_unit_test(without_one_nothing_changes),
        cmocka_unit_test(odd_references),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(limits_change_nothing),
    };
    return cmocka_run_group_tests(tests, start, teardown_asked);
}
