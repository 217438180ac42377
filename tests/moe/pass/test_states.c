/* Recurrent states: they advance, are copied, hold pending rows and fail as moe.h documents: a sequence's
 * logits equal those of decoding it token by token, and a failure affects its own sequence only.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/pass/pass.h"
#include "tests/moe/load.h"

#define N_VOCAB 300
#define N_TOK   24
#define N_STATE 4
#define N_DRAFT 6

static struct kn_team *team;
static struct moe_file *file;
static struct moe_model *model;
static struct moe_context *context;
static int32_t token[N_TOK], slot[N_STATE][N_TOK + N_DRAFT];
static float want[N_TOK][N_VOCAB]; /* after each token */
static struct moe_row row[N_TOK + N_DRAFT];
static struct moe_result result;

static struct moe_row row_of(int state, int position)
{
    return (struct moe_row){ .token = token[position],
                             .position = position,
                             .want_logits = true,
                             .base = slot[state],
                             .n_base = N_TOK,
                             .state = state };
}

static void pass(int n)
{
    assert_int_equal(moe_forward(context, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
    assert_int_equal(moe_rows_status(&result, 0, n), 0);
}

static void expect(int i, int position) /* the i-th row's logits */
{
    assert_memory_equal(result.logits + (size_t)i * N_VOCAB, want[position], sizeof want[0]);
}

/* Runs tokens from..to of the sequence, with any state that has its keys. */
static void read_on(int state, int from, int to)
{
    for (int p = from; p < to; p++)
        row[p - from] = row_of(state, p);
    pass(to - from);
    for (int p = from; p < to; p++)
        expect(p - from, p);
    assert_int_equal(moe_context_state(context, state), to);
}

/* The token at `from`, and as drafts the sequence's next n tokens; every draft has a wrong sibling. */
static void draft(int state, int from, int n, int first_row, int32_t *path)
{
    static int32_t other[N_STATE][N_DRAFT];
    struct moe_row *r = row + first_row;
    r[0] = row_of(state, from);
    for (int i = 0, at = 1, after = first_row; i < n; i++, at += 2) {
        other[state][i] = slot[state][N_TOK + i];
        r[at] = row_of(state, from + 1 + i);
        r[at].token = (r[at].token + 1) % N_VOCAB;
        r[at].tail = &other[state][i];
        r[at].n_base = from + 1 + i;
        r[at + 1] = row_of(state, from + 1 + i);
        for (int k = 0; k < 2; k++) {
            r[at + k].draft = true;
            r[at + k].after = after;
        }
        path[i] = after = first_row + at + 1;
    }
}

static void what_is_kept_is_known(void **state)
{
    (void)state;
    int32_t path[3];
    read_on(0, 0, 9);
    for (int kept = 0, at = 9; kept <= 3; at += 1 + kept, kept++) {
        draft(0, at, 3, 0, path);
        pass(7);
        for (int i = 0; i < 3; i++)
            expect(path[i], at + 1 + i);
        moe_context_keep(context, 0, path, kept);
        assert_int_equal(moe_context_state(context, 0), at + 1 + kept);
    }
    read_on(0, 19, N_TOK);
}

/* Two sequences: while one's accepted drafts are pending, the other drafts, and the logits of both stay right. */
static void what_waits_is_taken_in_before_its_place_is_used(void **state)
{
    (void)state;
    int32_t path[3], other[3];
    read_on(1, 0, 9);
    read_on(2, 0, 4);
    draft(1, 9, 3, 0, path);
    draft(2, 4, 3, 7, other);
    pass(14);
    moe_context_keep(context, 1, path, 2);
    moe_context_keep(context, 2, other, 3);
    read_on(3, 0, 3); /* no drafts: both stay pending */
    draft(2, 8, 3, 0, other);
    pass(7);
    moe_context_keep(context, 2, other, 1);
    read_on(1, 12, N_TOK);
    read_on(2, 10, N_TOK);
}

static void copies_go_on_by_themselves(void **state)
{
    (void)state;
    int32_t path[3];
    memcpy(slot[3], slot[0], sizeof slot[3]); /* a sequence that continues from another needs its keys */
    for (int p = 0; p < 12; p++) {
        row[p] = row_of(0, p);
        row[p].copy_to = p == 6 ? 3 : p == 0 ? 2 : 0;
    }
    pass(12);
    assert_int_equal(moe_context_state(context, 3), 7);
    assert_int_equal(moe_context_state(context, 2), 1);
    read_on(3, 7, N_TOK);
    memcpy(slot[2], slot[0], sizeof slot[2]);
    read_on(2, 1, 8);
    draft(0, 12, 3, 0, path);
    pass(7);
    moe_context_keep(context, 0, path, 2);
    moe_context_copy_state(context, 0, 3); /* with its pending rows */
    assert_int_equal(moe_context_state(context, 3), 15);
    read_on(3, 15, N_TOK);
    read_on(0, 15, N_TOK);
}

/* A row of one sequence fails in a middle layer: the other sequence is unaffected, and the first starts from 0. */
static void a_failure_is_the_texts_own(void **state)
{
    (void)state;
    read_on(0, 0, 5);
    read_on(1, 0, 5);
    for (int i = 0; i < 3; i++) {
        row[i] = row_of(0, 5 + i);
        row[3 + i] = row_of(1, 5 + i);
    }
    row[0].copy_to = 2;
    struct moe_context *c = context;
    c->batch = &(struct moe_batch){ .row = row, .n_row = 6 };
    c->n_row = 6;
    memset(c->now.status, 0, 6 * sizeof *c->now.status);
    moe_states_begin(c);
    c->now.status[1] = KN_EIO;
    moe_states_end(c);
    assert_int_equal(moe_context_state(c, 0), -1);
    assert_int_equal(moe_context_state(c, 2), -1);
    assert_int_equal(moe_context_state(c, 1), 8);
    read_on(0, 0, 9);
}

static int setup(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/spillway-states-%d.gguf", getpid());
    struct moe_synth_options so = {
        .shape = "tiny-qwen3next", .n_layer = 4, .n_vocab = N_VOCAB, .format = KN_Q8_0, .seed = 9
    };
    int error = kn_team_open(&team, 2);
    so.team = team;
    if (error || (error = moe_synth(path, &so)) || (error = moe_file_open(&file, path)) ||
        (error = load_model(&model, file, KN_ISA_COUNT - 1, team, OFF_IO_AUTO)))
        return error;
    unlink(path);
    error = moe_context_open(&context, model,
                             &(struct moe_context_options){ .max_row = N_TOK + N_DRAFT,
                                                            .max_want = N_TOK + N_DRAFT,
                                                            .n_slot = N_STATE * (N_TOK + N_DRAFT),
                                                            .max_pos = N_TOK,
                                                            .kv = KN_KV_F32,
                                                            .n_state = N_STATE,
                                                            .n_draft = N_DRAFT * 2,
                                                            .team = team });
    for (int i = 0; i < N_TOK; i++)
        token[i] = (int32_t)(kn_mix((uint64_t)i) % N_VOCAB);
    for (int s = 0; s < N_STATE; s++)
        for (int i = 0; i < N_TOK + N_DRAFT; i++)
            slot[s][i] = s * (N_TOK + N_DRAFT) + i;
    for (int p = 0; p < N_TOK && !error; p++) {
        row[0] = row_of(0, p);
        pass(1);
        memcpy(want[p], result.logits, sizeof want[p]);
    }
    return error;
}

static int teardown(void **state)
{
    (void)state;
    moe_context_close(context);
    moe_model_close(model);
    moe_file_close(file);
    kn_team_close(team);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_is_known),
        cmocka_unit_test(what_waits_is_taken_in_before_its_place_is_used),
        cmocka_unit_test(copies_go_on_by_themselves),
        cmocka_unit_test(a_failure_is_the_texts_own),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
