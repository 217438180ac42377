/* The store learns of the uses of experts that a device serves: with a device that keeps most of them, it rates each
 * expert exactly as without one. */
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

/* Computes N_PASS tokens, one in a pass, and returns the heat of all experts.  Sets *n_resident to the uses that the
 * device served. */
static struct off_spot *run(struct moe_model *m, struct kn_team *team, size_t resident_bytes, uint64_t *n_resident)
{
    struct moe_context_options o = { .max_row = 1,
                                     .max_want = 1,
                                     .n_slot = N_PASS,
                                     .max_pos = N_PASS,
                                     .kv = KN_KV_F16,
                                     .resident_bytes = resident_bytes,
                                     .team = team };
    struct moe_context *c;
    int32_t slot[N_PASS];
    assert_int_equal(moe_context_open(&c, m, &o), 0);
    for (int i = 0; i < N_PASS; i++) {
        struct moe_result result;
        slot[i] = i;
        struct moe_row row = {
            .token = i * i % 400, .position = i, .want_logits = true, .base = slot, .n_base = i + 1
        };
        assert_int_equal(moe_forward(c, &(struct moe_batch){ &row, 1 }, &result), 0);
        assert_int_equal(result.status[0], 0);
    }
    *n_resident = moe_context_device_stats(c).n_used;
    moe_context_close(c);
    struct off_spot *spot = calloc((size_t)moe_model_shape(m)->n_expert_total, sizeof *spot);
    off_store_look(moe_model_store(m), spot);
    return spot;
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
    snprintf(path, sizeof path, "/tmp/spillway-heat-%d.gguf", getpid());
    assert_int_equal(kn_team_open(&team, 1), 0);
    assert_int_equal(moe_synth(path,
                               &(struct moe_synth_options){
                                   .shape = "tiny", .n_vocab = 400, .format = KN_Q8_0, .seed = 7, .team = team }),
                     0);
    assert_int_equal(moe_file_open(&file, path), 0);
    unlink(path);
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
    static const struct CMUnitTest tests[] = { cmocka_unit_test(uses_on_the_device_count) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
