/* The store learns of the uses of experts that a device serves: with a device that keeps most of them, it rates each
 * expert exactly as without one.  The next run begins with the experts that were the hottest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/pass/pass.h"
#include "tests/emulated/late.h"
#include "tests/moe/load.h"

#define N_PASS 60

static int32_t slot[N_PASS];

static struct moe_context *open_context(const struct moe_model *m, struct kn_team *team, size_t resident_bytes)
{
    struct moe_context_options o = { .max_row = 1,
                                     .max_want = 1,
                                     .n_slot = N_PASS,
                                     .max_pos = N_PASS,
                                     .kv = KN_KV_F16,
                                     .resident_bytes = resident_bytes,
                                     .team = team };
    struct moe_context *c;
    assert_int_equal(moe_context_open(&c, m, &o), 0);
    return c;
}

static void forward(struct moe_context *c, int position, int32_t token)
{
    struct moe_result result;
    slot[position] = position;
    struct moe_row row = {
        .token = token, .position = position, .want_logits = true, .base = slot, .n_base = position + 1
    };
    assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = &row, .n_row = 1 }, &result), 0);
    assert_int_equal(result.status[0], 0);
}

/* Computes N_PASS tokens, one in a pass, and returns the heat of all experts.  Sets *n_resident to the uses that the
 * device served. */
static struct off_spot *run(struct moe_model *m, struct kn_team *team, size_t resident_bytes, uint64_t *n_resident)
{
    struct moe_context *c = open_context(m, team, resident_bytes);
    for (int i = 0; i < N_PASS; i++)
        forward(c, i, i * i % 400);
    *n_resident = moe_context_device_stats(c).n_used;
    moe_context_close(c);
    struct off_spot *spot = calloc((size_t)moe_model_shape(m)->n_expert_total, sizeof *spot);
    off_store_look(moe_model_store(m), spot);
    return spot;
}

static void open_file(char path[64], struct kn_team **team, struct moe_file **file)
{
    snprintf(path, 64, "/tmp/spillway-heat-%d.gguf", getpid());
    assert_int_equal(kn_team_open(team, 1), 0);
    assert_int_equal(moe_synth(path,
                               &(struct moe_synth_options){
                                   .shape = "tiny", .n_vocab = 400, .format = KN_Q8_0, .seed = 7, .team = *team }),
                     0);
    assert_int_equal(moe_file_open(file, path), 0);
    unlink(path);
}

static int by_share(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* While slots are free, only experts that were among the hottest of the run before get one. */
static void a_run_begins_with_the_kept_heat(void **state)
{
    enum { N_SLOT = 16, N_EXPERTS = 1000 };
    char path[64], heat[80];
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *m;
    struct late_device device = late_device_apart(kn_isa_best(), 3);
    float share[N_EXPERTS], sorted[N_EXPERTS];
    uint64_t n_resident;
    (void)state;
    open_file(path, &team, &file);
    snprintf(heat, sizeof heat, "%s.heat", path);
    for (int nth = 0; nth < 2; nth++) {
        assert_int_equal(
            moe_model_open(&m, file, &(struct moe_model_options){ .isa = kn_isa_best(), .device = &device.base }), 0);
        assert_int_equal(moe_model_load(m, &(struct moe_load_options){ .team = team, .heat_path = heat }), 0);
        int n_expert = moe_model_shape(m)->n_expert_total;
        assert_in_range(n_expert, 2 * N_SLOT, N_EXPERTS);
        if (nth == 0) { /* teaches the heat file */
            free(run(m, team, 0, &n_resident));
            moe_model_close(m);
            continue;
        }
        off_store_shares(moe_model_store(m), 0, n_expert, share);
        memcpy(sorted, share, sizeof share);
        qsort(sorted, (size_t)n_expert, sizeof *sorted, by_share);
        assert_true(sorted[0] > sorted[n_expert - 1]);
        struct moe_context *c = open_context(m, team, N_SLOT * m->resident_sizes.bytes[0]);
        const struct moe_residents *r = &c->residents;
        const struct moe_slot_pool *p = &r->pool[0];
        assert_true(p->n + p->n_window == N_SLOT && p->n_window == N_SLOT / 8 && p->first_heat > 0);
        for (int i = 0; i < 3; i++) {
            forward(c, i, i * i % 400);
            for (int k = 0; p->n_filled < p->n && k < p->n_filled; k++)
                assert_true(share[r->slot[k].expert] >= sorted[p->n - 1] ||
                            r->heat[r->slot[k].expert] >= p->first_heat);
        }
        for (int e = 0; e < n_expert; e++) /* its own passes count beside the kept heat */
            assert_true(r->heat[e] >= share[e] * 49);
        moe_context_close(c);
        moe_model_close(m);
    }
    unlink(heat);
    moe_file_close(file);
    kn_team_close(team);
}

static void uses_on_the_device_count(void **state)
{
    char path[64];
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *host = NULL, *apart;
    struct late_device device = late_device_apart(kn_isa_best(), 3);
    uint64_t n_resident;
    (void)state;
    open_file(path, &team, &file);
    assert_int_equal(load_model(&host, file, kn_isa_best(), team, OFF_IO_AUTO), 0);
    assert_int_equal(
        moe_model_open(&apart, file, &(struct moe_model_options){ .isa = kn_isa_best(), .device = &device.base }), 0);
    assert_int_equal(moe_model_load(apart, &(struct moe_load_options){ .team = team }), 0);
    struct off_spot *want = run(host, team, 0, &n_resident);
    struct off_spot *got = run(apart, team, moe_model_shape(apart)->device_expert_bytes * 9 / 10, &n_resident);
    assert_true(n_resident > N_PASS);
    for (int e = 0; e < moe_model_shape(host)->n_expert_total; e++)
        if (got[e].heat != want[e].heat)
            fail_msg("expert %d: heat %f, without a device %f", e, (double)got[e].heat, (double)want[e].heat);
    free(want);
    free(got);
    moe_model_close(apart);
    moe_model_close(host);
    moe_file_close(file);
    kn_team_close(team);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(uses_on_the_device_count),
        cmocka_unit_test(a_run_begins_with_the_kept_heat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
