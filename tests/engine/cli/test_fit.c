/* `spillway fit` on the demo model and its drafters. The printed numbers are consistent for all measured times; the
 * file prices the measured drafter and no other; a drafter that cannot be measured is refused.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "engine/cli/cli.h"
#include "engine/plan/fit_file.h"
#include "engine/draft/internal.h"
#include "engine/internal.h"
#include "speculative/internal.h"
#include "tests/engine/cli/printed.h"
#include "tests/faults.h"

#define FOLDER "evals/train/models/"
#define MODEL  FOLDER "demo-target-q8_0.gguf"
#define DRAFT  "model:" FOLDER "demo-draft-q8_0.gguf"
#define HEAD   "eagle:" FOLDER "demo-eagle-f16.gguf"

static char path[64];
static int n_other; /* log lines about another measured drafter */

static void hear(enum kn_level level, const char *line)
{
    n_other += level <= KN_LOG_INFO && strstr(line, "has measured drafts of") != NULL;
}

/* ---- drafters priced by the file ------------------------------------------------------------------------------- */

static const struct spec_cost_model fitted = { .fixed_ns = 4e6,
                                               .dense_ns = 2e5,
                                               .load_ns = 1e5,
                                               .expert_ns = 1e4,
                                               .ridge = 6,
                                               .growth = 1.5,
                                               .wait = 1,
                                               .choose_ns = 1e4,
                                               .choose_row_ns = 1e3,
                                               .draft_ns = 7e6,
                                               .draft_row_ns = 3e6,
                                               .n_expert = 16,
                                               .n_used = 2 };

static uint64_t id_of_model(void)
{
    struct moe_file *file;
    uint64_t id;
    assert_int_equal(moe_file_open(&file, MODEL), 0);
    assert_int_equal(moe_file_id(file, &id), 0);
    moe_file_close(file);
    return id;
}

static struct eng_engine *open_priced(const char *measured, const char *first, const char *second)
{
    struct eng_options o = { .model = MODEL,
                             .isa = KN_ISA_COUNT - 1,
                             .n_thread = 1,
                             .n_parallel = 4,
                             .n_ctx = 256,
                             .n_chunk = 16,
                             .gamma = ENG_GAMMA_AUTO,
                             .fit = path,
                             .n_draft = 3 };
    struct eng_engine *e;
    struct eng_fitted file = { .cost = fitted, .miss_ratio = 1 };
    if (*measured) {
        file.n_drafter = 1;
        file.drafter[0] = (struct eng_fitted_drafter){ .ns = fitted.draft_ns, .row_ns = fitted.draft_row_ns };
        snprintf(file.drafter[0].name, sizeof file.drafter[0].name, "%s", measured);
    }
    assert_int_equal(eng_fit_write(path, MODEL, id_of_model(), &file), 0);
    assert_int_equal(eng_draft_parse(&o.draft[0], "none"), 0);
    assert_int_equal(eng_draft_parse(&o.draft[1], first), 0);
    assert_int_equal(eng_draft_parse(&o.draft[2], second), 0);
    n_other = 0;
    kn_log_set(hear, KN_LOG_INFO);
    assert_int_equal(eng_open(&e, &o), 0);
    kn_log_set(NULL, KN_LOG_INFO);
    return e;
}

/* The default price of a draft pass: from the bytes of the drafter's weights. */
static double by_size(const struct eng_engine *e, int drafter)
{
    struct eng_extra its = eng_drafter_need(e->drafting->drafter[drafter]);
    return fitted.fixed_ns * (double)its.weights / (double)moe_model_shape(e->assets.model)->pass_bytes;
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
        near_to(spec_control_draft_ns(e->drafting->control, 0, n, false), by_size(e, 0));
        near_to(spec_control_draft_ns(e->drafting->control, 1, n, false), its);
        near_to(spec_control_draft_ns(e->drafting->control, 2, n, false), its + by_size(e, 0));
    }
    assert_int_equal(n_other, 0);
    eng_close(e);
    e = open_priced("eagle:demo-eagle-f16.gguf,tree=chain", HEAD ",tree=chain", "suffix");
    near_to(spec_control_draft_ns(e->drafting->control, 0, 3, false), spec_cost_draft_ns(&fitted, 3));
    near_to(spec_control_draft_ns(e->drafting->control, 1, 3, false), 0);
    eng_close(e);
}

/* Another file, another tree, or a file without a measured drafter: default prices. */
static void nobody_else_is(void **state)
{
    (void)state;
    static const struct {
        const char *measured, *first, *second;
        int n_told;
    } tries[] = {
        { "model:demo-boost-q8_0.gguf", DRAFT, "suffix", 1 },
        { "", DRAFT, HEAD, 0 },
        { "eagle:demo-eagle-f16.gguf,tree=chain", HEAD, "ngram", 1 },
        { "model:demo-draft-q8_0.gguf", "ngram", "none", 0 },
        { "model:demo-draft-q8_0.gguf", DRAFT ",tree=dynamic", "ngram", 1 },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct eng_engine *e = open_priced(tries[i].measured, tries[i].first, tries[i].second);
        for (int k = 0; k < e->drafting->n_drafter; k++)
            near_to(spec_control_draft_ns(e->drafting->control, k, 4, false), by_size(e, k));
        assert_int_equal(n_other, tries[i].n_told);
        eng_close(e);
    }
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static int fit(const char *arguments) { return print_command(ENG_fit, eng_cmd_fit, arguments); }

/* The n-th line of one kind, from 0; NULL: fewer lines. The caller frees it. */
static json_t *line(const char *what, int n)
{
    for (const char *at = printed; *at; at = strchr(at, '\n') + 1) {
        json_t *j = json_loadb(at, (size_t)(strchr(at, '\n') - at), 0, NULL);
        assert_non_null(j);
        if (!strcmp(json_string_value(json_object_get(j, "what")), what) && n-- == 0)
            return j;
        json_decref(j);
    }
    return NULL;
}

static bool has(const char *what, int n)
{
    json_t *j = line(what, n);
    json_decref(j);
    return j != NULL;
}

static double number(const char *what, int n, const char *name)
{
    json_t *j = line(what, n), *value = json_object_get(j, name);
    assert_non_null(j);
    double x = json_is_null(value) ? INFINITY : json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
    json_decref(j);
    return x;
}

static void about(double x, double expected, double error)
{
    if (!(fabs(x - expected) <= error) && !(isinf(x) && isinf(expected)))
        fail_msg("%.10g is not %.10g", x, expected);
}

#define SMALL "-q -m " MODEL " --host-mem 96M --kv-mem 3M --threads 1 --chunk 64 -o "

/* Points of 1, 2 and 4 sequences with 0, 1, 2, 4 and 8 drafts. */
static void points_hold_together(bool drafts)
{
    static const int depths[5] = { 0, 1, 2, 4, 8 };
    double ratio = 0;
    for (int i = 0; i < 15; i++) {
        int n_seq = 1 << i / 5, depth = depths[i % 5];
        double rows = number("point", i, "rows"), distinct = number("point", i, "distinct");
        assert_true(number("point", i, "n_seq") == n_seq && number("point", i, "depth") == depth);
        about(rows, n_seq * (1 + depth), 0);
        about(number("point", i, "even"), spec_cost_distinct(16, 2, rows), 0.006);
        assert_true(distinct > 1.99 && distinct < fmin(16, 2 * rows) + 0.01);
        assert_true(number("point", i, "measured_ms") > 0 && number("point", i, "model_ms") > 0);
        about(number("point", i, "held"), depth && (i / 5 * 4 + i % 5 - 1) % 3 == 2, 0);
        ratio += distinct / spec_cost_distinct(16, 2, rows) / 15;
    }
    assert_false(has("point", 15));
    about(number("experts", 0, "ratio"), ratio, 0.005);
    assert_true(number("experts", 0, "least") <= ratio && number("experts", 0, "most") >= ratio);
    assert_true(has("draft", 0) == drafts && has("draft_fit", 0) == drafts && has("pays_from", 0) == drafts);
}

static void drafts_hold_together(const struct spec_cost_model *c)
{
    for (int i = 0; i < 3; i++) {
        double n_seq = number("draft", i, "n_seq"), model = number("draft", i, "model_ms");
        about(n_seq, 1 << i, 0);
        about(model, spec_cost_draft_ns(c, n_seq) / 1e6, 1e-4);
        assert_true(number("draft", i, "measured_ms") > 0);
        about(number("draft", i, "held"), i == 2, 0);
    }
    assert_false(has("draft", 3));
    for (int i = 0; i < 12; i++) {
        int of = i / 4 * 5, at = of + 1 + i % 4;
        double depth = number("pays_from", i, "depth"), n_seq = number("pays_from", i, "n_seq");
        assert_true(depth == number("point", at, "depth") && n_seq == number("point", at, "n_seq"));
        double plain = number("point", of, "model_ms") * 1e6 + spec_cost_choose_ns(c, n_seq);
        double round = number("point", at, "model_ms") * 1e6 + spec_cost_choose_ns(c, n_seq * (1 + depth)) +
                       depth * spec_cost_draft_ns(c, n_seq);
        double accept = number("pays_from", i, "acceptance");
        if (fabs(round / plain - depth - 1) > 0.02 * depth) /* near the threshold both are right */
            about(accept, spec_cost_accept(round / plain, (int)depth), 0.03);
    }
    assert_false(has("pays_from", 12));
}

static void a_draft_model_is_measured(void **state)
{
    (void)state;
    struct moe_shape shape = { .n_expert = 16, .n_used = 2 };
    struct eng_fitted f;
    char words[512];
    snprintf(words, sizeof words, SMALL "%s --json --draft none --draft suffix --draft " DRAFT, path);
    faults_listen();
    assert_int_equal(fit(words), 0);
    assert_int_equal(faults.n_line, 0);
    faults_listen_off();
    assert_int_equal(eng_fit_read(path, &shape, id_of_model(), &f), 0);
    assert_int_equal(f.n_drafter, 1);
    assert_string_equal(f.drafter[0].name, "model:demo-draft-q8_0.gguf");
    json_t *j = line("draft_fit", 0);
    assert_string_equal(json_string_value(json_object_get(j, "drafter")), f.drafter[0].name);
    json_decref(j);
    points_hold_together(true);
    f.cost.draft_ns = f.drafter[0].ns;
    f.cost.draft_row_ns = f.drafter[0].row_ns;
    drafts_hold_together(&f.cost);
}

/* Without a network drafter the file names no drafter. */
static void nobody_is_measured(void **state)
{
    (void)state;
    struct moe_shape shape = { .n_expert = 16, .n_used = 2 };
    struct eng_fitted f;
    char words[512];
    snprintf(words, sizeof words, SMALL "%s --json --draft ngram", path);
    faults_listen();
    assert_int_equal(fit(words), 0);
    assert_int_equal(faults.n_line, 0);
    faults_listen_off();
    points_hold_together(false);
    assert_int_equal(eng_fit_read(path, &shape, id_of_model(), &f), 0);
    assert_int_equal(f.n_drafter, 0);
}

static void what_cannot_be_measured_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *words, *says;
    } tries[] = {
        { "--draft " DRAFT " --draft " HEAD, "one network at a time, model:demo-draft-q8_0.gguf or eagle:" },
        { "--draft " DRAFT " --draft " DRAFT, "one network at a time" },
        { "--draft mtp", "no MTP layer" },
        { "--draft oracle:1", "only in bench" },
        { "--draft model:/nowhere", "/nowhere" },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        char words[1024];
        unlink(path);
        snprintf(words, sizeof words, SMALL "%s %s", path, tries[i].words);
        faults_listen();
        int error = fit(words);
        faults_listen_off();
        if (!error || error == 1 || faults.n_line != 1 || !strstr(faults.line, tries[i].says))
            fail_msg("%s: %d, '%s'", tries[i].words, error, faults.line);
        assert_int_equal(access(path, F_OK), -1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_was_measured_is_priced_by_it), cmocka_unit_test(nobody_else_is),
        cmocka_unit_test(a_draft_model_is_measured),        cmocka_unit_test(nobody_is_measured),
        cmocka_unit_test(what_cannot_be_measured_is_told),
    };
    snprintf(path, sizeof path, "/tmp/spillway-fitted-%d", getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
