/* Prefetch of experts for drafted tokens (engine/draft/prefetch.c). Answers stay the same at every memory budget. The
 * experts that draft nodes are said to need are not in memory, and no row of the sequence itself needs them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine/same_answers.h"

#define BUDGETS 5

static uint64_t n_early, n_used;

/* budget 0: the least memory; BUDGETS - 1: all experts fit. */
static struct eng_engine *open_budget(const char *draft, int gamma, int budget)
{
    struct eng_options o = { .n_parallel = 4,
                             .n_chunk = 100,
                             .n_thread = 1 + budget % 2,
                             .gamma = gamma,
                             .n_draft = 1,
                             .io = budget % 2 ? OFF_IO_PREAD : OFF_IO_AUTO };
    assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
    o = asked_options(o, 0);
    o.host_mem = budget == BUDGETS - 1 ? 0 : asked_memory(&o, (size_t)budget, BUDGETS);
    return open_engine_with(o, 0);
}

static void no_budget_changes_a_byte(void **state)
{
    (void)state;
    char itself[128];
    snprintf(itself, sizeof itself, "model:%s", path);
    for (int budget = 0; budget < BUDGETS; budget++)
        for (int way = 0; way < 3; way++) {
            struct off_stats stats;
            struct eng_engine *e = open_budget(way ? itself : "oracle:0.7", way == 2 ? ENG_GAMMA_AUTO : 5, budget);
            run_crowd(e, SHARE(4));
            off_stats_get(moe_model_store(e->assets.model), &stats);
            assert_true(stats.early_used_bytes + stats.early_wasted_bytes <= stats.early_bytes);
            n_early += stats.early_bytes;
            n_used += stats.early_used_bytes;
            close_engine(e);
        }
    assert_true(!WHOLE || (n_early > 0 && n_used > 0));
}

/* Is the expert absent from memory? */
static bool is_missing(struct eng_engine *e, int32_t expert)
{
    return off_store_absent(moe_model_store(e->assets.model), &expert, 1, &expert) == 1;
}

static void nodes_need_what_is_not_there(void **state)
{
    (void)state;
    const struct moe_shape *shape;
    struct eng_engine *e = open_budget("oracle:0.7", 5, 1);
    struct eng_session *s[4];
    int n_need = 0;
    shape = moe_model_shape(e->assets.model);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(eng_session_open(&s[i], e), 0);
        assert_int_equal(eng_session_start(s[i], &asked[0].request), 0);
        eng_session_set_oracle(s[i], asked[0].said, asked[0].n_said);
    }
    for (int step = 0; step < 16; step++) {
        int32_t text[64];
        assert_true(eng_step(e, event) >= 0);
        moe_context_expect(e->assets.context, NULL, 0);
        if (e->pass.n_due < 4)
            continue; /* a prefill pass: its many rows need all experts */
        struct spec_need first[SPEC_NODES];
        for (int again = 0; again < 2; again++) { /* a second call gives the same */
            for (int i = 0; i < e->pass.n_due; i++)
                e->drafting->cut[i] = (struct spec_cut){ .tree = e->pass.due[i]->seq.tree };
            assert_true(eng_prefetch_needs(e->drafting, e->drafting->cut));
            for (int i = 0, at = 0; i < e->pass.n_due; i++)
                for (int j = 0; j < e->drafting->cut[i].tree->n; j++, at++) {
                    struct spec_need *need = &e->drafting->prefetch.need[at];
                    assert_true(e->drafting->cut[i].need + j == need && need->n >= 0);
                    assert_true(need->n <= shape->n_layer * shape->n_used);
                    if (again)
                        assert_int_equal(first[at].n, need->n);
                    first[at] = *need;
                    for (int k = 0; k < need->n && need->expert; k++, n_need++)
                        assert_true(is_missing(e, need->expert[k]));
                }
        }
        for (int i = 0; i < e->drafting->prefetch.n_text; i++) { /* no row of the sequence needs them */
            int n = moe_context_missing(e->assets.context, e->drafting->prefetch.token[i], text);
            for (int at = 0; at < e->drafting->prefetch.n - e->drafting->prefetch.n_text; at++)
                for (int k = 0; k < e->drafting->prefetch.need[at].n && e->drafting->prefetch.need[at].expert; k++)
                    for (int m = 0; m < n; m++)
                        assert_int_not_equal(e->drafting->prefetch.need[at].expert[k], text[m]);
        }
    }
    assert_true(n_need > 0);
    for (int i = 0; i < 4; i++)
        eng_session_close(s[i]);
    close_engine(e);
}

static int setup_all(void **state) { return setup_asked(state, 31); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_budget_changes_a_byte),
        cmocka_unit_test(nodes_need_what_is_not_there),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_asked);
}
