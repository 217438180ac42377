/* The device: its reported properties are plausible, and it follows the specified orders of summation bit
 * for bit (kernels/cuda/orders.h). Without a device its tests are skipped with a message. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/orders.h"

static uint64_t seed;

static uint64_t next(void) { return kn_mix(seed += KN_GOLDEN); }
static float uniform(void) { return (float)(int32_t)(next() >> 32) * 0x1p-31f; }

static void need_device(void)
{
    if (kn_device_count() > 0)
        return;
    printf("skipped: the CUDA trial of the arithmetic orders needs a device (%s)\n",
           kn_device_built() ? "none is here" : "and this build has no CUDA");
    skip();
}

static void devices_are_counted_and_described(void **state)
{
    (void)state;
    int n = kn_device_count();
    assert_true(n >= 0);
    assert_true(kn_device_built() || n == 0);
    struct kn_device_info info;
    for (int i = 0; i < n; i++) {
        assert_int_equal(kn_device_get(i, &info), 0);
        assert_true(strlen(info.name) > 0 && info.memory_bytes > 0 && info.compute_major > 0);
    }
    kn_log_set(NULL, KN_LOG_ERROR);
    assert_int_equal(kn_device_get(n, &info), KN_ENODEV);
}

/* Random bytes are valid codes and scales; d and dmin are small finite halves. */
static void make_q4_k(struct kn_q4_k *w, int n)
{
    for (int i = 0; i < n; i++) {
        w[i].d = kn_f32_to_f16(uniform() * 0.01f);
        w[i].dmin = kn_f32_to_f16(uniform() * 0.01f);
        for (int j = 0; j < 12; j++)
            w[i].sc[j] = (uint8_t)next();
        for (int j = 0; j < 128; j++)
            w[i].q[j] = (uint8_t)next();
    }
}

static void products_by_dp4a_and_by_tensor_cores(void **state)
{
    (void)state;
    need_device();
    enum { N_OUT = 41, N_IN = 1024, N_ROW = 19, PANELS = 3, BLOCKS = N_IN / 256 };
    static struct kn_q4_k rows[N_OUT * BLOCKS];
    static _Alignas(64) uint8_t panels[PANELS * BLOCKS * sizeof(struct kn_q4_k_x16)];
    static struct kn_codes codes[N_ROW * BLOCKS];
    static float x[N_IN], want[N_ROW * N_OUT], got[N_ROW * N_OUT];
    const struct kn_ops *spec = kn_ops(KN_ISA_SCALAR);
    seed = 1;
    make_q4_k(rows, N_OUT * BLOCKS);
    spec->repack(KN_Q4_K, rows, N_OUT, N_IN, panels, 0, PANELS);
    for (int r = 0; r < N_ROW; r++) {
        for (int i = 0; i < N_IN; i++)
            x[i] = uniform() * (i % 97 ? 1 : 100);
        spec->quantize(KN_ACT_Q256, x, N_IN, codes + r * BLOCKS);
    }
    struct kn_matmul m = {
        .w = { KN_Q4_K, N_OUT, N_IN, panels },
        .x = codes,
        .x_stride = BLOCKS * sizeof *codes,
        .y = want,
        .y_stride = N_OUT,
        .n_row = N_ROW,
    };
    spec->matmul(&m, 0, PANELS);
    m.y = got;
    for (int how = KN_ORDERS_DP4A; how <= KN_ORDERS_MMA; how++) {
        memset(got, 0x5a, sizeof got);
        assert_int_equal(kn_orders_matmul((enum kn_orders_dot)how, &m), 0);
        assert_memory_equal(got, want, sizeof want);
    }
}

static void a_norm(void **state)
{
    (void)state;
    need_device();
    static const int sizes[] = { 1, 31, 32, 33, 63, 64, 65, 100, 128, 2048 };
    static float x[2048], w[2048], want[2048], got[2048];
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int scale = -140; scale <= 60; scale += 20) { /* denormals to huge squares */
            int n = sizes[s];
            seed = s;
            for (int i = 0; i < n; i++) {
                x[i] = (float)ldexp((double)uniform(), scale);
                w[i] = uniform();
            }
            kn_ops(KN_ISA_SCALAR)->rms_norm(x, w, 1e-6f, n, want);
            assert_int_equal(kn_orders_rms_norm(x, w, 1e-6f, n, got), 0);
            assert_memory_equal(got, want, (size_t)n * sizeof *want);
        }
}

/* Positions in scattered slots, ranges that cut chunks and spans at both ends, with and without a sink, both KV
 * formats. */
static void attention(void **state)
{
    (void)state;
    need_device();
    enum { N_SLOT = 3001, N_Q = 3, MOST = 128 };
    static const int widths[] = { 24, 40, 64, 80, 128 };
    static const int ranges[][2] = { { 0, 0 }, { 5, 60 }, { 63, 64 }, { 70, 1030 }, { 1000, 3000 } };
    static uint8_t k[N_SLOT * MOST * 4], v[N_SLOT * MOST * 4];
    static float q[N_Q * MOST], row[MOST], want[N_Q * MOST], got[N_Q * MOST];
    static const float sinks[N_Q] = { 20, -1, 2 };
    static int32_t slots[N_SLOT];
    const struct kn_ops *spec = kn_ops(KN_ISA_SCALAR);
    for (int i = 0; i < N_SLOT; i++)
        slots[i] = (i * 100 + 7) % N_SLOT;
    for (int c = 0; c < 50; c++) {
        int d_head = widths[c % 5], width = d_head * (c % 2 ? 4 : 2);
        seed = (uint64_t)c;
        struct kn_attend a = {
            .q = q,
            .out = want,
            .k = k,
            .v = v,
            .base = slots,
            .n_base = c * 7 % (ranges[c / 10][1] + 2),
            .first = ranges[c / 10][0],
            .last = ranges[c / 10][1],
            .n_q = N_Q,
            .d_key = d_head,
            .d_value = d_head,
            .k_step = d_head,
            .v_step = d_head,
            .kv = c % 2 ? KN_KV_F32 : KN_KV_F16,
            .scale = 0.125f,
            .sink = c % 3 ? sinks : NULL,
        };
        a.tail = slots + a.n_base;
        for (int i = 0; i < N_Q * d_head; i++)
            q[i] = 10 * uniform();
        for (int s = 0; s < 2 * N_SLOT; s++) {
            for (int i = 0; i < d_head; i++)
                row[i] = uniform();
            spec->kv_store(a.kv, row, d_head, (s % 2 ? v : k) + s / 2 * width, NULL);
        }
        spec->attend(&a);
        a.out = got;
        assert_int_equal(kn_orders_attend(&a, N_SLOT), 0);
        assert_memory_equal(got, want, (size_t)(N_Q * d_head) * sizeof *want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_counted_and_described),
        cmocka_unit_test(products_by_dp4a_and_by_tensor_cores),
        cmocka_unit_test(a_norm),
        cmocka_unit_test(attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
