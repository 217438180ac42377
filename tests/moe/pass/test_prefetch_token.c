/* The token prefetch table holds the experts that each token used, also after failures. An entry that two tokens map
 * to holds all experts of one of them, or none.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/pass/pass.h"
#include "tests/faults.h"

#define N_VOCAB 300
#define N_LAYER 4
#define N_ENTRY 3
#define N_TOKEN 60

static char path[] = "/tmp/spillway-recall-XXXXXX";
static struct kn_team *team;
static struct moe_file *file;
static struct moe_model *model; /* with the least memory that works: nearly every expert is read */

static int setup(void **state)
{
    (void)state;
    struct moe_synth_options so = {
        .shape = "tiny", .n_layer = N_LAYER, .n_vocab = N_VOCAB, .format = KN_Q8_0, .seed = 7
    };
    int fd = mkstemp(path);
    faults_reset();
    if (fd < 0 || close(fd) || kn_team_open(&team, 1))
        return -1;
    so.team = team;
    if (moe_synth(path, &so) || moe_file_open(&file, path) ||
        moe_model_open(&model, file, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 }))
        return -1;
    return moe_model_load(model, &(struct moe_load_options){ .team = team,
                                                             .expert_bytes = moe_model_shape(model)->expert_least,
                                                             .io = OFF_IO_PREAD });
}

static int teardown(void **state)
{
    (void)state;
    moe_model_close(model);
    moe_file_close(file);
    kn_team_close(team);
    unlink(path);
    return !faults_clean();
}

static struct moe_context *open_context(int n_recall)
{
    struct moe_context *c;
    assert_int_equal(
        moe_context_open(
            &c, model,
            &(struct moe_context_options){
                .max_row = 1, .max_want = 1, .n_slot = 1, .max_pos = 1, .n_recall = n_recall, .team = team }),
        0);
    return c;
}

/* Returns the row's status. */
static int run(struct moe_context *c, int32_t token)
{
    static const int32_t slot[1];
    struct moe_row row = { .token = token, .base = slot, .n_base = 1, .want_logits = true };
    struct moe_result result;
    assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = &row, .n_row = 1 }, &result), 0);
    return result.status[0];
}

/* Each entry has the experts of its token, in every layer; returns the number of tokens with an entry. */
static int check(const struct moe_context *c, const struct moe_context *truth)
{
    size_t n = (size_t)N_LAYER * (size_t)model->desc.n_used;
    int known = 0;
    for (size_t i = 0; i < N_ENTRY; i++) {
        int32_t token = c->recall.token[i];
        if (token < 0)
            continue;
        assert_memory_equal(c->recall.id + i * n, truth->recall.id + (size_t)token * n, n * sizeof *c->recall.id);
        known++;
    }
    return known;
}

static void a_row_that_failed_is_not_remembered(void **state)
{
    (void)state;
    struct moe_context *truth = open_context(N_VOCAB), *c = open_context(N_ENTRY);
    int32_t missing[N_LAYER * 16];
    int n_failed = 0, n_known = 0;
    for (int32_t token = 0; token < N_TOKEN; token++)
        while (run(truth, token)) /* a row that joins a failed read fails */
            ;
    for (int32_t token = 0; token < N_TOKEN; token++) {
        if (token % 3) /* one layer after the other */
            faults_at(FAULT_READ, 1 + token / 3 % (3 * N_LAYER), FAULT_LASTS, EIO);
        int status = run(c, token);
        faults_reset();
        if (status && moe_context_missing(c, token, missing) < 0)
            n_failed++;
        n_known += check(c, truth);
    }
    assert_true(n_failed > N_TOKEN / 6 && n_known > N_TOKEN / 3);
    moe_context_close(c);
    moe_context_close(truth);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_row_that_failed_is_not_remembered) };
    return cmocka_run_group_tests(tests, setup, teardown);
}
