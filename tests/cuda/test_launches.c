/* Kernels launched in a layer, and copies in a pass, of 1 row and of 16.  The table below is kept: a change that launches more
 * for the same work shows here.
 *
 * Products launch once for each format: these models have one format in a layer, a router in float32, and room for all
 * experts on the device.  One thread: not under MODE=tsan. */
#include "moe/pass/pass.h"
#include "tests/cuda/count.h"

#include <string.h>

#include "tests/moe/golden.h"
#include "tests/moe/load.h"

#define MANY 16

/* ---- passes ------------------------------------------------------------------------------------------------------- */

/* A pass of n rows, each a sequence of its own at its first position. */
static struct calls pass(const struct golden *g, struct moe_context *c, int n)
{
    struct moe_row row[MANY];
    struct moe_result result;
    int32_t slot[MANY];
    for (int i = 0; i < n; i++) {
        slot[i] = i;
        row[i] = (struct moe_row){
            .token = g->token[i % 4], .position = 0, .want_logits = true, .base = &slot[i], .n_base = 1
        };
    }
    calls = (struct calls){ 0, 0 };
    assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
    assert_int_equal(moe_rows_status(&result, 0, n), 0);
    return calls;
}

/* max_pos: attention over more than one span. */
static void count(const char *name, struct calls out[2], int *n_layer)
{
    char path[128];
    struct golden g;
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *m;
    struct moe_context *c;
    struct moe_model_options mo = { .isa = KN_ISA_COUNT - 1, .device = cuda };
    assert_int_equal(golden_read(&g, name), 0);
    snprintf(path, sizeof path, "/tmp/spillway-launches-%d.gguf", getpid());
    assert_int_equal(golden_write(&g, path), 0);
    assert_int_equal(kn_team_open(&team, 1), 0);
    assert_int_equal(moe_file_open(&file, path), 0);
    unlink(path);
    assert_int_equal(moe_model_open(&m, file, &mo), 0);
    assert_int_equal(moe_model_load(m, &(struct moe_load_options){ .team = team }), 0);
    struct moe_context_options co = { .max_row = MANY,
                                      .max_want = MANY,
                                      .n_slot = 32,
                                      .max_pos = 2 * KN_SPAN,
                                      .team = team,
                                      .resident_bytes = moe_model_shape(m)->device_expert_bytes };
    assert_int_equal(moe_context_open(&c, m, &co), 0);
    *n_layer = m->desc.n_layer;
    out[0] = pass(&g, c, 1);
    out[1] = pass(&g, c, MANY);
    moe_context_close(c);
    moe_model_close(m);
    moe_file_close(file);
    kn_team_close(team);
    golden_free(&g);
}

/* a_layer: launches in each layer, for 1 row and for MANY; beside: in the whole pass, beside those; copies: both ways. */
static void launches_are_those_of_the_table(void **state)
{
    static const struct {
        const char *name;
        int a_layer[2], beside[2], copies;
    } table[] = {
        { "qwen3moe_norm", { 9, 10 }, { 4, 4 }, 3 },
        { "gpt_oss", { 9, 10 }, { 4, 4 }, 3 },
        { "llama_gqa", { 9, 9 }, { 3, 3 }, 2 },
    };
    (void)state;
    if (!count_calls())
        skip();
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct calls is[2];
        int n_layer;
        count(table[i].name, is, &n_layer);
        for (int k = 0; k < 2; k++) {
            if (is[k].launches != n_layer * table[i].a_layer[k] + table[i].beside[k])
                fail_msg("%s, %d layers: %d launches", table[i].name, n_layer, is[k].launches);
            assert_int_equal(is[k].copies, table[i].copies);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(launches_are_those_of_the_table) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
