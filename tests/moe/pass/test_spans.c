/* Attention over several spans of 1,024 positions: rows whose spans are shared out to the threads give the same bits as
 * rows computed by one thread, one at a time: alone, in batches, as branches of a tree, with windows, sinks and latents,
 * with prefixes computed in chunks of any size, for every team size and instruction set.
 *
 * test_pass.c shares spans out to threads, too: not under MODE=tsan, not under MODE=asan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/cpu/pass/host.h"
#include "moe/pass/pass.h"
#include "tests/moe/load.h"

#define N_POS  2300
#define N_TEAM 4
#define N_ROW  6
#define N_SLOT (N_POS + 64)

static const int team_sizes[N_TEAM] = { 1, 2, 3, 7 };
static uint64_t seed;
static int below(int n) { return (int)(kn_mix(seed += KN_GOLDEN) % (uint64_t)n); }

static atomic_int n_spans; /* calls of attend_span() */
static struct kn_ops counted;
static const struct kn_ops *real;
static void count_span(const struct kn_attend *a, float *part)
{
    atomic_fetch_add(&n_spans, 1);
    real->attend_span(a, part);
}

struct long_past {
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *c;
    struct kn_team *team[N_TEAM];
    int32_t token[N_POS], slot[N_SLOT];
    int n_vocab;
};

/* Computes positions 0 .. N_POS - 9 in chunks of `chunk`. */
static void open_past(struct long_past *l, const char *shape, enum kn_isa isa, enum kn_kv kv, int chunk)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/spillway-spans-%d.gguf", getpid());
    for (int i = 0; i < N_TEAM; i++)
        assert_int_equal(kn_team_open(&l->team[i], team_sizes[i]), 0);
    struct moe_synth_options so = { .shape = shape, .n_vocab = 300, .format = KN_Q8_0, .seed = 3, .team = l->team[1] };
    assert_int_equal(moe_synth(path, &so), 0);
    assert_int_equal(moe_file_open(&l->file, path), 0);
    assert_int_equal(load_model(&l->model, l->file, isa, l->team[1], OFF_IO_AUTO), 0);
    unlink(path);
    real = l->model->ops;
    counted = *real;
    counted.attend_span = count_span;
    struct moe_context_options o = {
        .max_row = 512, .max_want = N_ROW, .n_slot = N_SLOT, .max_pos = N_POS, .kv = kv, .team = l->team[N_TEAM - 1]
    };
    assert_int_equal(moe_context_open(&l->c, l->model, &o), 0);
    ((struct kn_host_queue *)l->c->queue)->ops = &counted;
    l->n_vocab = moe_model_shape(l->model)->n_vocab;
    for (int i = 0; i < N_POS; i++)
        l->token[i] = below(l->n_vocab);
    for (int i = 0; i < N_SLOT; i++) {
        int other = below(i + 1);
        l->slot[i] = l->slot[other];
        l->slot[other] = i;
    }
    moe_context_set_team(l->c, l->team[1]);
    static struct moe_row row[512];
    for (int done = 0; done < N_POS - 8;) {
        int n = kn_min(chunk, N_POS - 8 - done);
        struct moe_result result;
        for (int i = 0; i < n; i++)
            row[i] = (struct moe_row){
                .token = l->token[done + i], .position = done + i, .base = l->slot, .n_base = N_POS
            };
        assert_int_equal(moe_forward(l->c, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
        done += n;
    }
}

static void close_past(struct long_past *l)
{
    moe_context_close(l->c);
    moe_model_close(l->model);
    moe_file_close(l->file);
    for (int i = 0; i < N_TEAM; i++)
        kn_team_close(l->team[i]);
}

static void run_rows(struct long_past *l, int team, const struct moe_row *row, int n, float *logits)
{
    struct moe_result result;
    moe_context_set_team(l->c, l->team[team]);
    assert_int_equal(moe_forward(l->c, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
    memcpy(logits, result.logits, (size_t)(n * l->n_vocab) * sizeof *logits);
}

/* Rows around the boundaries of spans; the last ones are branches that leave the sequence before its end. */
static void check_past(struct long_past *l)
{
    static const int positions[N_ROW] = { 900, 1024, 2047, N_POS - 8, N_POS - 7, N_POS - 8 };
    static int32_t tail[2];
    struct moe_row row[N_ROW];
    size_t n = (size_t)l->n_vocab;
    float *alone = calloc(N_ROW * n, sizeof *alone), *got = calloc(N_ROW * n, sizeof *got);
    tail[0] = l->slot[N_POS];
    tail[1] = l->slot[N_POS + 1];
    for (int i = 0; i < N_ROW; i++)
        row[i] = (struct moe_row){ .token = i == N_ROW - 1 ? 7 : l->token[positions[i]],
                                   .position = positions[i],
                                   .want_logits = true,
                                   .base = l->slot,
                                   .n_base = i == N_ROW - 1 ? N_POS - 8 : N_POS,
                                   .tail = tail };
    for (int i = 0; i < N_ROW; i++)
        run_rows(l, 0, &row[i], 1, alone + (size_t)i * n);
    assert_int_equal(n_spans, 0); /* of one thread: rows are its items */
    for (int team = 1; team < N_TEAM; team++) {
        for (int i = 0; i < N_ROW; i++) {
            run_rows(l, team, &row[i], 1, got);
            assert_memory_equal(got, alone + (size_t)i * n, n * sizeof *got);
        }
        run_rows(l, team, row, N_ROW, got);
        assert_memory_equal(got, alone, N_ROW * n * sizeof *got);
    }
    assert_true(n_spans > 0);
    free(alone);
    free(got);
}

static void spans_are_work_items(void **state)
{
    (void)state;
    static const struct {
        const char *shape;
        enum kn_isa isa;
        int chunk;
    } cases[] = {
        { "tiny", KN_ISA_AVX512, 512 },
        { "tiny-gpt-oss", KN_ISA_AVX2, 500 },
        { "tiny-deepseek2", KN_ISA_AVX512, 129 },
        { "tiny-odd", KN_ISA_AVX2, 512 },
    };
    for (int i = 0; i < 4; i++)
        for (int kv = 0; kv < KN_KV_COUNT; kv++) {
            struct long_past l;
            seed = 1;
            atomic_store(&n_spans, 0);
            open_past(&l, cases[i].shape, cases[i].isa, (enum kn_kv)kv, cases[i].chunk);
            atomic_store(&n_spans, 0);
            check_past(&l);
            close_past(&l);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(spans_are_work_items) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
