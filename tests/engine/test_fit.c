/* `spillway fit` on the demo model and its drafters: what is printed holds together, whatever the times are; what is
 * written prices the drafter that was measured, and no other; and what cannot be measured is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/fit_file.h"
#include "engine/internal.h"
#include "speculative/internal.h"

#define FOLDER "evals/train/models/"
#define MODEL  FOLDER "demo-target-q8_0.gguf"
#define DRAFT  "model:" FOLDER "demo-draft-q8_0.gguf"
#define HEAD   "eagle:" FOLDER "demo-eagle-f16.gguf"

static char path[64];
static int n_other;                             /* lines that say that another drafter was measured */

static void hear(enum kn_level level, const char *line)
{
    n_other += level <= KN_LOG_INFO && strstr(line, "has measured drafts of") != NULL;
}

/* ---- whom it prices -------------------------------------------------------------------------------------------- */

static const struct spec_cost_model fitted = {
    .fixed_ns = 4e6, .dense_ns = 2e5, .load_ns = 1e5, .expert_ns = 1e4, .ridge = 6, .growth = 1.5, .wait = 1,
    .choose_ns = 1e4, .choose_row_ns = 1e3, .draft_ns = 7e6, .draft_row_ns = 3e6, .n_expert = 16, .n_used = 2 };

static struct eng_engine *open_priced(const char *measured, const char *first, const char *second)
{
    struct eng_options o = { .model = MODEL, .isa = KN_ISA_COUNT - 1, .n_thread = 1, .n_parallel = 4, .n_ctx = 256,
                             .n_chunk = 16, .gamma = ENG_GAMMA_AUTO, .fit = path, .n_draft = 3 };
    struct eng_engine *e;
    assert_int_equal(eng_fit_write(path, MODEL, &(struct spec_fit){ .cost = fitted }, measured), 0);
    assert_int_equal(eng_draft_parse(&o.draft[0], "none"), 0);
    assert_int_equal(eng_draft_parse(&o.draft[1], first), 0);
    assert_int_equal(eng_draft_parse(&o.draft[2], second), 0);
    n_other = 0;
    kn_log_set(hear, KN_LOG_INFO);
    assert_int_equal(eng_open(&e, &o), 0);
    kn_log_set(NULL, KN_LOG_INFO);
    return e;
}

/* One draft pass of a drafter that was not measured reads what it is made of. */
static double by_size(const struct eng_engine *e, int drafter)
{
    struct eng_extra its = eng_drafter_need(e->drafter[drafter]);
    return fitted.fixed_ns * (double)its.weights / (double)moe_model_shape(e->model)->pass_bytes;
}

static void near_to(double x, double expected)
{
    if (!(fabs(x - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.10g is not %.10g", x, expected);
}

static void who_was_measured_is_priced_by_it(void **state)
{
    (void)state;
    struct eng_engine *e = open_priced("model:demo-draft-q8_0.gguf", HEAD, DRAFT);
    for (int n = 1; n <= 4; n++) {
        double its = spec_cost_draft_ns(&fitted, n);
        near_to(spec_control_draft_ns(e->control, 0, n), by_size(e, 0));
        near_to(spec_control_draft_ns(e->control, 1, n), its);
        near_to(spec_control_draft_ns(e->control, 2, n), its + by_size(e, 0));
    }
    assert_int_equal(n_other, 0);
    eng_close(e);
    e = open_priced("eagle:demo-eagle-f16.gguf,tree=chain", HEAD ",tree=chain", "suffix");
    near_to(spec_control_draft_ns(e->control, 0, 3), spec_cost_draft_ns(&fitted, 3));
    near_to(spec_control_draft_ns(e->control, 1, 3), 0);
    eng_close(e);
}

/* Another file, another tree, an old file that has measured nobody. */
static void nobody_else_is(void **state)
{
    (void)state;
    static const struct { const char *measured, *first, *second; int n_told; } tries[] = {
        { "model:demo-boost-q8_0.gguf", DRAFT, "suffix", 1 }, { "", DRAFT, HEAD, 0 },
        { "eagle:demo-eagle-f16.gguf,tree=chain", HEAD, "ngram", 1 },
        { "model:demo-draft-q8_0.gguf", "ngram", "none", 0 },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct eng_engine *e = open_priced(tries[i].measured, tries[i].first, tries[i].second);
        for (int k = 0; k < e->n_drafter; k++)
            near_to(spec_control_draft_ns(e->control, k, 4), by_size(e, k));
        assert_int_equal(n_other, tries[i].n_told);
        eng_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_was_measured_is_priced_by_it),
        cmocka_unit_test(nobody_else_is),
    };
    snprintf(path, sizeof path, "/tmp/spillway-fitted-%d", getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
