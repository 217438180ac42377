/* The forward pass against independent code: logits of tiny models of every supported family, from
 * the transformers package in float32 (tests/fixtures), position by position.
 *
 * Rows without logits leave out a part of the last layer: the other rows' logits and features are the same to the bit.
 *
 * Tolerance: 1e-4 of the largest logit; transformers' float32 is within 3.7e-5 of its float64.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/pass/pass.h"
#include "tests/emulated/late.h"
#include "tests/moe/golden.h"
#include "tests/moe/load.h"

#define TOLERANCE 1e-4

static double run(const struct golden *g, struct moe_context *c, int n_chunk, float *all)
{
    struct moe_row *row = calloc((size_t)n_chunk, sizeof *row);
    int32_t *slot = calloc((size_t)g->n_tok, sizeof *slot);
    double worst = 0;
    for (int i = 0; i < g->n_tok; i++)
        slot[i] = (i * 7 + 3) % g->n_tok; /* slot numbers in arbitrary order */
    for (int done = 0; done < g->n_tok; done += n_chunk) {
        struct moe_result result;
        int n = kn_min(n_chunk, g->n_tok - done);
        for (int i = 0; i < n; i++)
            row[i] = (struct moe_row){
                .token = g->token[done + i], .position = done + i, .want_logits = true, .base = slot, .n_base = g->n_tok
            };
        assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
        memcpy(all + (size_t)done * (size_t)g->n_vocab, result.logits, (size_t)n * (size_t)g->n_vocab * sizeof *all);
        for (int i = 0; i < n; i++)
            worst = fmax(worst, golden_apart(g, &g->row[done + i], result.logits + (size_t)i * (size_t)g->n_vocab));
    }
    free(row);
    free(slot);
    return worst;
}

/* Rows without logits leave the others as they are: the tokens again, in chunks, with the logits of each third row
 * only, which alone store features of the last layer if features_of_wanted. all: the logits of all rows. */
static void third_of_rows(const struct golden *g, struct moe_context *c, int n_chunk, const float *all,
                          bool features_of_wanted)
{
    struct moe_row *row = calloc((size_t)n_chunk, sizeof *row);
    int32_t *slot = calloc((size_t)g->n_tok, sizeof *slot);
    for (int i = 0; i < g->n_tok; i++)
        slot[i] = features_of_wanted ? i : g->n_tok - 1 - i;
    for (int done = 0; done < g->n_tok; done += n_chunk) {
        struct moe_result result;
        int n = kn_min(n_chunk, g->n_tok - done), n_want = 0;
        for (int i = 0; i < n; i++)
            row[i] = (struct moe_row){ .token = g->token[done + i],
                                       .position = done + i,
                                       .want_logits = (done + i) % 3 == 2,
                                       .base = slot,
                                       .n_base = g->n_tok };
        assert_int_equal(moe_forward(c, &(struct moe_batch){ row, n, features_of_wanted }, &result), 0);
        assert_int_equal(moe_rows_status(&result, 0, n), 0);
        for (int i = 0; i < n; i++)
            if (row[i].want_logits)
                assert_memory_equal(result.logits + (size_t)n_want++ * (size_t)g->n_vocab,
                                    all + (size_t)(done + i) * (size_t)g->n_vocab, (size_t)g->n_vocab * sizeof *all);
        assert_int_equal(result.n_want, n_want);
    }
    free(row);
    free(slot);
}

static void some_rows(const struct golden *g, struct moe_context *c, int n_chunk, const float *all)
{
    third_of_rows(g, c, n_chunk, all, false);
}

static float *features_of(struct moe_context *c, int n_tok)
{
    int32_t *slot = calloc((size_t)n_tok, sizeof *slot);
    float *out = calloc((size_t)n_tok * (size_t)c->model->desc.d_model, sizeof *out);
    for (int i = 0; i < n_tok; i++)
        slot[i] = i;
    moe_context_features(c, slot, n_tok, out);
    free(slot);
    return out;
}

/* Features of the last layer, of all rows, then in other slots of each third: they are the same, and the slots of the others are
 * as before. A recurrent last layer computes all rows. */
static void features_of_some_rows(const struct golden *g, struct moe_context *c, const float *all)
{
    const struct moe_desc *d = &c->model->desc;
    size_t n = (size_t)d->d_model;
    third_of_rows(g, c, 64, all, false);
    float *before = features_of(c, g->n_tok);
    third_of_rows(g, c, 7, all, true);
    float *after = features_of(c, g->n_tok);
    for (int i = 0; i < g->n_tok; i++) {
        int from = i % 3 == 2 || moe_is_delta(d, d->n_layer - 1) ? g->n_tok - 1 - i : i;
        assert_memory_equal(after + (size_t)i * n, before + (size_t)from * n, n * sizeof *after);
    }
    free(before);
    free(after);
}

static void load_twice(struct moe_model *m, struct kn_team *team)
{
    struct moe_load_options lo = { .team = team, .again = true };
    assert_int_equal(moe_model_load(m, &lo), 0);
    moe_model_unload(m);
    assert_null(m->store);
    assert_int_equal(m->vectors.bytes + m->matrices.bytes, 0);
    assert_int_equal(moe_model_load(m, &lo), 0);
}

/* A model that was unloaded and loaded again computes the same bytes. */
static void compare_again(const struct golden *g, struct moe_file *file, const struct moe_context_options *co,
                          const float *all)
{
    struct moe_model *m;
    struct moe_context *context;
    assert_int_equal(moe_model_open(&m, file, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 }), 0);
    load_twice(m, co->team);
    assert_int_equal(moe_context_open(&context, m, co), 0);
    some_rows(g, context, 64, all);
    moe_context_close(context);
    struct moe_context_options with = *co;
    with.features.last = true;
    assert_int_equal(moe_context_open(&context, m, &with), 0);
    features_of_some_rows(g, context, all);
    moe_context_close(context);
    moe_model_close(m);
}

/* The same bytes on devices that run operations late: one with memory of its own, in chunks with few rows of logits, which
 * keeps half of the experts, then all; and one that shares the host's, in one chunk. */
static void compare_devices(const struct golden *g, struct moe_file *file, const struct moe_model *model,
                            struct moe_context_options co, const float *all)
{
    struct late_device late = late_device(kn_isa_best(), 1), own = late_device_apart(kn_isa_best(), 2);
    struct moe_model_options mo = { .isa = KN_ISA_COUNT - 1, .device = &own.base };
    struct moe_model *apart;
    struct moe_context *context;
    assert_int_equal(moe_model_open(&apart, file, &mo), 0);
    load_twice(apart, co.team);
    for (size_t part = 2; part > 0; part--) {
        co.resident_bytes = moe_model_shape(apart)->device_expert_bytes / part;
        assert_int_equal(moe_context_open(&context, apart, &co), 0);
        context->residents.where.plans = MOE_PLANS_RANDOM;
        late_n_wait = 0;
        some_rows(g, context, 5, all);
        if (part == 1 || !moe_model_shape(apart)->n_expert) /* the host waits for nothing but the logits */
            assert_int_equal(late_n_wait, (g->n_tok + 4) / 5);
        moe_context_close(context);
    }
    co.features.last = true;
    assert_int_equal(moe_context_open(&context, apart, &co), 0);
    features_of_some_rows(g, context, all);
    moe_context_close(context);
    co.features.last = false;
    moe_model_close(apart);
    co.resident_bytes = 0;
    co.device = &late.base;
    assert_int_equal(moe_context_open(&context, model, &co), 0);
    some_rows(g, context, 64, all);
    moe_context_close(context);
    if (late_found())
        fail_msg("%s", late_found());
}

/* With AddressSanitizer a third of the families: the same code lays out the memory of all. */
static bool goes_to_devices(const char *name)
{
#ifdef __SANITIZE_ADDRESS__
    return strlen(name) % 3 == 0;
#else
    return name;
#endif
}

static void logits_are_those_of_transformers(void **state)
{
    const char *name = *state;
    char path[128];
    struct golden g;
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *model = NULL;
    struct moe_context *context;
    assert_int_equal(golden_read(&g, name), 0);
    g.fuse_gate_up = !strcmp(name, "mistral4"); /* as published */
    snprintf(path, sizeof path, "/tmp/spillway-golden-%d.gguf", getpid());
    assert_int_equal(golden_write(&g, path), 0);
    assert_int_equal(kn_team_open(&team, 2), 0);
    assert_int_equal(moe_file_open(&file, path), 0);
    unlink(path);
    struct moe_context_options co = {
        .max_row = 64, .max_want = 64, .n_slot = g.n_tok, .max_pos = g.n_tok, .kv = KN_KV_F32, .team = team
    };
    assert_int_equal(load_model(&model, file, KN_ISA_COUNT - 1, team, OFF_IO_AUTO), 0);
    assert_int_equal(moe_model_shape(model)->n_vocab, g.n_vocab);
    assert_int_equal(moe_context_open(&context, model, &co), 0);
    float *all = calloc((size_t)g.n_tok * (size_t)g.n_vocab, sizeof *all);
    double worst = run(&g, context, 64, all);
    print_message("%s: largest difference / largest logit %.1e\n", name, worst);
    assert_true(worst < TOLERANCE);
    moe_context_close(context);
    compare_again(&g, file, &co, all);
    if (goes_to_devices(name))
        compare_devices(&g, file, model, co, all);
    free(all);
    moe_model_close(model);
    moe_file_close(file);
    kn_team_close(team);
    golden_free(&g);
}

/* A device with room for all experts, of which some cannot be read: it keeps the others, and rows that need the lost ones
 * fail. */
static void lost_experts_are_not_kept(void **state)
{
    enum { N = 8 };
    char path[128];
    struct golden g;
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct late_device own = late_device_apart(kn_isa_best(), 3);
    struct moe_row row[N];
    struct moe_result result;
    struct stat st;
    int32_t slot[N];
    int n_failed = 0;
    (void)state;
    assert_int_equal(golden_read(&g, "qwen3moe_norm"), 0);
    snprintf(path, sizeof path, "/tmp/spillway-golden-%d.gguf", getpid());
    assert_int_equal(golden_write(&g, path), 0);
    assert_int_equal(kn_team_open(&team, 2), 0);
    assert_int_equal(moe_file_open(&file, path), 0);
    struct moe_model_options mo = { .isa = KN_ISA_COUNT - 1, .device = &own.base };
    assert_int_equal(moe_model_open(&model, file, &mo), 0);
    struct moe_load_options lo = { .team = team, .expert_bytes = moe_model_shape(model)->expert_least };
    assert_int_equal(moe_model_load(model, &lo), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size / 2), 0);
    struct moe_context_options co = { .max_row = N,
                                      .max_want = N,
                                      .n_slot = N,
                                      .max_pos = N,
                                      .team = team,
                                      .resident_bytes = moe_model_shape(model)->device_expert_bytes };
    assert_int_equal(moe_context_open(&context, model, &co), 0);
    struct moe_device_stats kept = moe_context_device_stats(context);
    assert_int_equal(kept.n_slot, moe_model_shape(model)->n_expert_total);
    assert_true(kept.n_kept < kept.n_slot);
    for (int i = 0; i < N; i++) {
        slot[i] = i;
        row[i] = (struct moe_row){ .token = g.token[i], .position = i, .want_logits = true, .base = slot, .n_base = N };
    }
    assert_int_equal(moe_forward(context, &(struct moe_batch){ .row = row, .n_row = N }, &result), 0);
    for (int i = 0; i < N; i++)
        n_failed += result.status[i] != 0;
    assert_true(n_failed > 0);
    if (late_found())
        fail_msg("%s", late_found());
    moe_context_close(context);
    moe_model_close(model);
    moe_file_close(file);
    kn_team_close(team);
    golden_free(&g);
    unlink(path);
}

int main(void)
{
    static char *const name[] = { GOLDEN_NAMES, GOLDEN_FURTHER };
    enum { N = sizeof name / sizeof *name };
    struct CMUnitTest tests[N + 1] = { [N] = cmocka_unit_test(lost_experts_are_not_kept) };
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){ name[i], logits_are_those_of_transformers, NULL, NULL, name[i] };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
