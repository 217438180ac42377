/* The memory of drafters goes to the expert cache and comes back (engine/draft/unload.c): answers stay the same, the split
 * and the store agree, and the drafter drafts again; by itself if its drafts promise more than the memory.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine/quick.h"
#include "tests/engine/same_answers.h"

/* ---- memory ---------------------------------------------------------------------------------------------- */

/* An engine with a model drafter and a suffix index, and memory for a part of the experts. */
static struct eng_engine *open_tight(void)
{
    struct eng_options o = { .n_parallel = 4, .n_chunk = 100, .gamma = ENG_GAMMA_AUTO, .n_draft = 2 };
    struct eng_engine *e;
    snprintf(o.draft[0].file, sizeof o.draft[0].file, "%s", path);
    o.draft[0].kind = ENG_DRAFT_MODEL;
    o.draft[1].kind = ENG_DRAFT_SUFFIX;
    e = open_engine_with(o, 12);
    o.host_mem = e->memory.split.total - e->memory.split.spare - moe_model_shape(e->assets.model)->expert_bytes / 2;
    close_engine(e);
    e = open_engine_with(o, 12);
    assert_true(e->memory.split.n_resident < e->memory.split.n_expert);
    return e;
}

static uint64_t n_slot(const struct eng_engine *e)
{
    struct off_stats s;
    off_stats_get(moe_model_store(e->assets.model), &s);
    return s.n_slot;
}

static uint64_t taken(const struct eng_engine *e)
{
    const struct eng_split *s = &e->memory.split;
    return s->fixed + s->dense + s->step + s->kv + s->expert;
}

/* Unloading a drafter gives its memory to experts, and loading it takes it back; answers stay the same. */
static void a_drafter_gives_its_memory_and_takes_it_back(void **state)
{
    (void)state;
    struct eng_engine *e = open_tight();
    uint64_t slots = n_slot(e), bytes = taken(e);
    struct eng_split before = e->memory.split;
    assert_int_equal(bytes, e->memory.split.total - e->memory.split.spare);
    e->drafting->cost.disk_ns = 0; /* it is not unloaded by itself, */
    for (int round = 0; round < 2; round++) {
        run_crowd(e, SHARE(12));
        for (int i = 0; i < 40; i++) /* in the middle of answers */
            eng_step(e, event);
        eng_draft_unload(e->drafting, 0);
        e->drafting->drafter[0]->upkeep.lost = 1e9; /* nor loaded */
        assert_null(e->drafting->drafter[0]->context);
        assert_true(n_slot(e) > slots);
        assert_int_equal(e->memory.split.n_resident, e->memory.split.n_expert);
        assert_int_equal(taken(e), bytes);
        run_crowd(e, SHARE(12));
        for (int i = 0; i < 40; i++)
            eng_step(e, event);
        while (!eng_draft_load_again(e->drafting, 0)) /* an expert is being read */
            eng_step(e, event);
        assert_non_null(e->drafting->drafter[0]->context);
        assert_int_equal(n_slot(e), slots);
        assert_memory_equal(&e->memory.split, &before, sizeof before);
        assert_false(eng_draft_load_again(e->drafting, 0));
    }
    uint64_t n = e->stats.n_draft_kept;
    eng_draft_unload(e->drafting, 0);
    eng_set_gamma(e, 4); /* loads it */
    assert_int_equal(n_slot(e), slots);
    run_crowd(e, SHARE(6));
    assert_true(e->stats.n_draft_kept > n);
    close_engine(e);
}

/* When each further resident expert shortens passes, a drafter that gains less is unloaded with a line of log. The
 * model drafts for itself here, so each drafted token costs as much as a decode pass. */
static void a_drafter_not_worth_its_memory_is_unloaded(void **state)
{
    (void)state;
    struct eng_engine *e = open_tight();
    uint64_t slots = n_slot(e);
    e->drafting->cost.disk_ns = 1e3 * e->drafting->cost.fixed_ns;
    while (WHOLE && n_slot(e) == slots) {
        run_crowd(e, 4);
        assert_true(e->stats.n_pass < 100000);
    }
    assert_true(!WHOLE || e->drafting->drafter[0]->upkeep.unloaded);
    close_engine(e);
}

/* It comes back by itself when its drafts promise more than its memory, and only then. Drafts cost nothing here. */
static void a_promising_drafter_is_loaded(void **state)
{
    (void)state;
    struct eng_drafts d;
    set_quick_clock();
    struct eng_engine *e = open_tight();
    struct eng_drafter *model = e->drafting->drafter[0];
    make_quick(e);
    run_crowd(e, SHARE(12));
    eng_draft_unload(e->drafting, 0);
    struct spec_cost_model cost = e->drafting->cost;
    e->drafting->cost.disk_ns = 1e6 * cost.fixed_ns;
    run_crowd(e, SHARE(12));
    assert_true(model->upkeep.unloaded);
    eng_drafts_get(e, &d);
    assert_true(d.choice[0].state == ENG_DRAFTER_UNLOADED && d.choice[0].depth == 0);
    e->drafting->cost.disk_ns = 0;
    while (WHOLE && model->upkeep.unloaded) {
        run_crowd(e, 4);
        assert_true(e->stats.n_pass < 100000);
    }
    uint64_t n = e->stats.n_draft;
    while (WHOLE && e->stats.n_draft == n) {
        run_crowd(e, 4);
        assert_true(e->stats.n_pass < 100000);
    }
    kn_io_set(NULL);
    close_engine(e);
}

/* A drafter that cannot be loaded again fails for good, wherever loading it fails: its memory stays with the experts. */
static void a_drafter_that_cannot_be_loaded_stays_unloaded(void **state)
{
    (void)state;
    bool back = false;
    for (int i = 1; !back; i++) {
        struct eng_engine *e = open_tight();
        run_crowd(e, SHARE(4));
        eng_draft_unload(e->drafting, 0);
        uint64_t slots = n_slot(e), bytes = taken(e);
        faults_reset();
        faults_at(FAULT_MAP, i, FAULT_ERROR, ENOMEM);
        back = eng_draft_load_again(e->drafting, 0);
        faults_off();
        if (!back) {
            assert_true(e->drafting->drafter[0]->broken && e->drafting->drafter[0]->upkeep.unloaded);
            assert_int_equal(n_slot(e), slots);
            assert_int_equal(taken(e), bytes);
            assert_false(eng_draft_load_again(e->drafting, 0));
        }
        assert_true(back ? i > 2 : i < 50);
        run_crowd(e, SHARE(4));
        close_engine(e);
    }
}

static int setup_all(void **state) { return setup_asked(state, 21); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drafter_gives_its_memory_and_takes_it_back),
        cmocka_unit_test(a_drafter_not_worth_its_memory_is_unloaded),
        cmocka_unit_test(a_promising_drafter_is_loaded),
        cmocka_unit_test(a_drafter_that_cannot_be_loaded_stays_unloaded),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_asked);
}
