/* The window of a device's slots, for experts that are copied for one layer: it is small, grows when passes copy more experts,
 * takes its slots from experts that stay, and gives them back when passes copy none for long.  The logits are the host's.
 *
 * One thread computes: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/pass/pass.h"
#include "tests/emulated/late.h"
#include "tests/moe/load.h"
#include "tests/moe/one_sequence.h"

#define N_ROW    8
#define N_LAYER  6
#define N_SLOT   56 /* of 72 experts */
#define N_FILL   16 /* passes of N_ROW rows, after which all slots are in use */
#define N_COPIED 6  /* passes of N_ROW rows that copy experts */
#define N_PLAIN  70 /* passes of one row that copy none */
#define N_POS    ((N_FILL + N_COPIED) * N_ROW + N_PLAIN)
#define N_VOCAB  400

static int32_t slot[N_POS];

static struct moe_context *open_context(const struct moe_model *m, struct kn_team *team, size_t resident_bytes)
{
    struct moe_context_options o = one_sequence(team, N_ROW, N_POS, resident_bytes);
    struct moe_context *c;
    assert_int_equal(moe_context_open(&c, m, &o), 0);
    return c;
}

/* Computes n rows of one sequence from a position on. */
static const float *forward(struct moe_context *c, int position, int n, struct moe_result *result)
{
    struct moe_row row[N_ROW];
    lay_sequence(row, slot, position, n, N_VOCAB);
    assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = n }, result), 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(result->status[i], 0);
    return result->logits;
}

static void compare(struct moe_context *host, struct moe_context *apart, int position, int n)
{
    struct moe_result want, got;
    const float *a = forward(host, position, n, &want), *b = forward(apart, position, n, &got);
    assert_memory_equal(a, b, (size_t)n * N_VOCAB * sizeof *a);
}

/* Each expert that stays has the slot that says so, and no other expert has one. */
static void check_slots(const struct moe_context *c)
{
    const struct moe_residents *r = &c->residents;
    int n = 0;
    const struct moe_slot_pool *p = &r->pool[0];
    assert_int_equal(r->n_pool, 1);
    assert_int_equal(p->n + p->n_window, N_SLOT);
    assert_true(p->n_filled <= p->n);
    for (int i = 0; i < p->n_filled; i++)
        assert_int_equal(r->slot_of[r->slot[i].expert], i);
    for (int e = 0; e < c->model->shape.n_expert_total; e++) {
        const struct kn_group *g = &r->all[e]; /* as the device's table says */
        n += r->slot_of[e] >= 0;
        assert_ptr_equal(g->gate.data, r->slot_of[e] >= 0 ? r->slot[r->slot_of[e]].matrix[0].data : NULL);
    }
    assert_int_equal(n, p->n_filled);
}

static void the_window_grows_and_shrinks(void **state)
{
    char path[64];
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *host = NULL, *apart;
    struct late_device device = late_device_apart(kn_isa_best(), 3);
    struct moe_synth_options so = {
        .shape = "tiny", .n_layer = N_LAYER, .n_vocab = N_VOCAB, .format = KN_Q8_0, .seed = 7
    };
    (void)state;
    snprintf(path, sizeof path, "/tmp/spillway-window-%d.gguf", getpid());
    assert_int_equal(kn_team_open(&team, 1), 0);
    so.team = team;
    assert_int_equal(moe_synth(path, &so), 0);
    assert_int_equal(moe_file_open(&file, path), 0);
    unlink(path);
    assert_int_equal(load_model(&host, file, kn_isa_best(), team, OFF_IO_AUTO), 0);
    assert_int_equal(
        moe_model_open(&apart, file, &(struct moe_model_options){ .isa = kn_isa_best(), .device = &device.base }), 0);
    assert_int_equal(moe_model_load(apart, &(struct moe_load_options){ .team = team }), 0);
    for (int i = 0; i < N_POS; i++)
        slot[i] = i;
    struct moe_context *on_host = open_context(host, team, 0);
    struct moe_context *c = open_context(apart, team, N_SLOT * apart->resident_sizes.bytes[0]);
    struct moe_residents *r = &c->residents;
    const struct moe_slot_pool *p = &r->pool[0];
    assert_int_equal(p->n_window, 4);
    int most = 0, position = 0;
    r->where.plans = MOE_PLANS_FIXED;
    for (int i = 0; i < N_FILL; i++, position += N_ROW)
        compare(on_host, c, position, N_ROW);
    assert_true(p->n_window == 4 && p->n_filled == p->n);
    r->where.plans = MOE_PLANS_RANDOM;
    for (int i = 0; i < N_COPIED; i++, position += N_ROW) {
        compare(on_host, c, position, N_ROW);
        check_slots(c);
        most = kn_max(most, p->n_window);
    }
    assert_in_range(most, 5, N_SLOT / 8);
    assert_int_equal(p->n_window, most);
    r->where.plans = MOE_PLANS_FIXED;
    for (int i = 0; i < N_PLAIN; i++, position++) {
        compare(on_host, c, position, 1);
        check_slots(c);
    }
    assert_int_equal(p->n_window, 4);
    moe_context_close(c);
    moe_context_close(on_host);
    if (late_found())
        fail_msg("%s", late_found());
    moe_model_close(apart);
    moe_model_close(host);
    moe_file_close(file);
    kn_team_close(team);
}

int main(void)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(the_window_grows_and_shrinks) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
