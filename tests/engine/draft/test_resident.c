/* --draft resident: the model drafts for itself by its experts in memory. Every session gives the same answer as without
 * drafts, at every memory budget; and drafts are made, and some accepted, where a part of
 * the experts is on disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine/same_answers.h"

#define BUDGETS 4

/* budget 0: the least memory; BUDGETS - 1: all experts fit. */
static struct eng_engine *open_budget(int gamma, int budget)
{
    struct eng_options o = {
        .n_parallel = 4, .n_chunk = 100, .n_thread = 1 + budget % 2, .gamma = gamma, .n_draft = 1
    };
    assert_int_equal(eng_draft_parse(&o.draft[0], "resident"), 0);
    o = asked_options(o, 0);
    o.host_mem = budget == BUDGETS - 1 ? 0 : asked_memory(&o, (size_t)budget, BUDGETS);
    return open_engine_with(o, 0);
}

static void drafts_change_no_byte(void **state)
{
    (void)state;
    uint64_t n_draft = 0, n_kept = 0;
    for (int budget = 0; budget < BUDGETS; budget++)
        for (int way = 0; way < 3; way++) {
            struct eng_engine *e = open_budget(way == 0 ? 1 : way == 1 ? 6 : ENG_GAMMA_AUTO, budget);
            run_crowd(e, SHARE(8));
            if (budget == BUDGETS - 1)
                assert_int_equal(e->stats.n_draft, 0);
            n_draft += e->stats.n_draft;
            n_kept += e->stats.n_draft_kept;
            close_engine(e);
        }
    if (WHOLE && (n_kept * 20 < n_draft || n_draft < 100))
        fail_msg("%d of %d drafted tokens kept", (int)n_kept, (int)n_draft);
}

static void refuse(const char *shape)
{
    struct kn_team *team;
    struct eng_options o = { .n_parallel = 1, .n_chunk = 64, .n_draft = 1 };
    struct eng_engine *e;
    char other[80];
    snprintf(other, sizeof other, "%s.other", path);
    assert_int_equal(kn_team_open(&team, 1), 0);
    assert_int_equal(moe_synth(other,
                               &(struct moe_synth_options){
                                   .shape = shape, .n_vocab = 300, .format = KN_Q8_0, .seed = 1, .team = team }),
                     0);
    kn_team_close(team);
    assert_int_equal(eng_draft_parse(&o.draft[0], "resident"), 0);
    o.model = other;
    o.n_ctx = N_CTX;
    o.n_thread = 1;
    assert_int_equal(eng_describe(&e, &o), KN_EUNSUPPORTED);
    unlink(other);
}

static void other_models_are_refused(void **state)
{
    (void)state;
    struct eng_draft_option w;
    refuse("tiny-dense");
    refuse("tiny-qwen3next");
    assert_int_equal(eng_draft_parse(&w, "resident:x"), KN_EINVAL);
    assert_int_equal(eng_draft_parse(&w, "resident,tree=dynamic"), KN_EINVAL);
}

static int setup_all(void **state) { return setup_asked(state, 33); }

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_change_no_byte),
        cmocka_unit_test(other_models_are_refused),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown);
}
