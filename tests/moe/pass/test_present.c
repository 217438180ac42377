/* Passes by the experts in memory (moe_forward_present); on a device: test_tiers. With all experts in memory they are the passes of moe_forward, to
 * the bit. With a third of them they read nothing and count as no use; and the passes of moe_forward after them, over the same
 * slots, have the same bytes as ever. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/pass/pass.h"

#define N_TOKEN 24
#define N_VOCAB 400

struct run {
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    int32_t slot[N_TOKEN];
};

/* part: of the experts that memory has room for; 0: all. */
static void open_run(struct run *r, const char *path, size_t part)
{
    struct moe_context_options o = {
        .max_row = 2, .max_want = 2, .n_slot = N_TOKEN, .max_pos = N_TOKEN, .kv = KN_KV_F16
    };
    assert_int_equal(kn_team_open(&r->team, 1), 0);
    assert_int_equal(moe_file_open(&r->file, path), 0);
    assert_int_equal(moe_model_open(&r->model, r->file, &(struct moe_model_options){ .isa = kn_isa_best() }), 0);
    const struct moe_shape *s = moe_model_shape(r->model);
    size_t bytes = part ? s->expert_bytes / part : 0;
    bytes = part && bytes < s->expert_least ? s->expert_least : bytes;
    assert_int_equal(moe_model_load(r->model, &(struct moe_load_options){ .team = r->team, .expert_bytes = bytes }), 0);
    o.team = r->team;
    assert_int_equal(moe_context_open(&r->context, r->model, &o), 0);
    for (int i = 0; i < N_TOKEN; i++)
        r->slot[i] = N_TOKEN - 1 - i;
}

static void close_run(struct run *r)
{
    moe_context_close(r->context);
    moe_model_close(r->model);
    moe_file_close(r->file);
    kn_team_close(r->team);
}

/* One pass of n rows from position `at` on; out: [n][N_VOCAB] logits. */
static void pass(struct run *r, bool present, int at, int n, float *out)
{
    struct moe_row row[2];
    struct moe_result result;
    for (int i = 0; i < n; i++)
        row[i] = (struct moe_row){ .token = (at + i) * (at + i) % N_VOCAB,
                                   .position = at + i,
                                   .want_logits = true,
                                   .base = r->slot,
                                   .n_base = N_TOKEN };
    const struct moe_batch batch = { .row = row, .n_row = n };
    assert_int_equal((present ? moe_forward_present : moe_forward)(r->context, &batch, &result), 0);
    assert_int_equal(moe_rows_status(&result, 0, n), 0);
    memcpy(out, result.logits, (size_t)n * N_VOCAB * sizeof *out);
}

/* The last layer's rows chose experts in memory, if it had enough of them. */
static void expect_present(const struct moe_context *c)
{
    const struct moe_desc *d = &c->model->desc;
    int expert0 = c->model->layer[d->n_layer - 1].expert0, n_there = 0;
    for (int e = 0; e < d->n_expert; e++)
        n_there += c->present.there[expert0 + e];
    for (int i = 0; n_there >= d->n_used && i < *c->plan.n_expert; i++)
        assert_true(c->present.there[c->plan.expert[i]]);
}

static double apart(const float *a, const float *b)
{
    double d = 0, size = 0;
    for (int i = 0; i < N_VOCAB; i++) {
        assert_true(isfinite(a[i]));
        d = fmax(d, fabs((double)(a[i] - b[i])));
        size = fmax(size, fabs((double)b[i]));
    }
    return d / size;
}

/* Waits until reads ahead have ended: they count as reads when they do.  first: and the store has filled its slots. */
static void settle(const struct moe_model *m, bool first)
{
    int n = moe_model_shape(m)->n_expert_total, n_coming;
    struct off_stats stats;
    struct off_spot *spot = calloc((size_t)n, sizeof *spot);
    do {
        n_coming = 0;
        off_store_look(moe_model_store(m), spot);
        for (int e = 0; e < n; e++)
            n_coming += spot[e].coming;
        off_stats_get(moe_model_store(m), &stats);
    } while (n_coming || (first && stats.n_empty));
    free(spot);
}

static void compare(const char *shape, const char *path)
{
    struct run whole, part;
    float want[N_TOKEN][N_VOCAB], got[2][N_VOCAB];
    struct off_stats before, after;
    double worst = 0;
    open_run(&whole, path, 0);
    for (int at = 0; at < N_TOKEN; at += 2)
        pass(&whole, false, at, 2, want[at]);
    for (int at = 0; at < N_TOKEN; at += 2) {
        pass(&whole, true, at, 2, got[0]);
        assert_memory_equal(got, want[at], sizeof got);
    }
    close_run(&whole);
    open_run(&part, path, 3);
    struct off_store *store = moe_model_store(part.model);
    assert_false(off_store_is_whole(store));
    for (int at = 0; at < N_TOKEN; at += 2) {
        settle(part.model, at == 0);
        off_stats_get(store, &before);
        pass(&part, true, at, 1, got[0]);
        pass(&part, true, at, 2, got[0]);
        expect_present(part.context);
        worst = fmax(worst, fmax(apart(got[0], want[at]), apart(got[1], want[at + 1])));
        off_stats_get(store, &after);
        if (after.reads != before.reads || after.hits != before.hits || after.misses != before.misses ||
            after.soon_hits != before.soon_hits || after.early_used_bytes != before.early_used_bytes)
            fail_msg("%s, position %d: %d reads, %d hits, %d misses", shape, at, (int)(after.reads - before.reads),
                     (int)(after.hits - before.hits), (int)(after.misses - before.misses));
        pass(&part, false, at, 2, got[0]);
        assert_memory_equal(got, want[at], sizeof got);
    }
    close_run(&part);
    if (worst == 0)
        fail_msg("%s: every pass by the experts in memory is exact: all were there", shape);
}

static void nothing_is_read_and_nothing_stays(void **state)
{
    static const char *const shape[] = { "tiny",           "tiny-gpt-oss", "tiny-glm4moe", "tiny-gemma4",
                                         "tiny-deepseek2", "tiny-phimoe",  "tiny-llama4" };
    struct kn_team *team;
    char path[64];
    (void)state;
    snprintf(path, sizeof path, "/tmp/spillway-present-%d.gguf", getpid());
    assert_int_equal(kn_team_open(&team, 1), 0);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        const struct moe_synth_options o = {
            .shape = shape[i], .n_vocab = N_VOCAB, .format = KN_Q8_0, .seed = 7, .team = team
        };
        assert_int_equal(moe_synth(path, &o), 0);
        compare(shape[i], path);
        unlink(path);
    }
    kn_team_close(team);
}

int main(void)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(nothing_is_read_and_nothing_stays) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
