/* Operations in the shapes of real models, on a CUDA device and on the host: rows that are longer than a tile of shared
 * memory, more experts than a block has threads, heads of up to 576 values, positions at the ends of chunks and spans.
 * This is not under MODE=tsan: one thread, and not under MODE=asan: the others run the kernels there. */
#include <math.h>

#include "tests/cuda/on_cuda.h"

#define MEMORY ((size_t)24 << 20)
#include "tests/kernels/pass_case.h"

#define Q256 (1u << KN_ACT_Q256)

static void on_host(const struct kn_op *op)
{
    struct kn_team *team;
    struct kn_queue *queue;
    assert_int_equal(kn_team_open(&team, 1), 0);
    struct kn_queue_options opt = { .device = kn_host_device(KN_ISA_COUNT - 1),
                                    .team = team,
                                    .max_row = 64,
                                    .max_pos = 4096,
                                    .n_head = 40,
                                    .n_kv = 1,
                                    .d_value = 40,
                                    .max_product = 64,
                                    .max_state_floats = 128 * 128 };
    assert_int_equal(kn_queue_open(&queue, &opt), 0);
    kn_queue_add(queue, op);
    assert_int_equal(kn_queue_wait(queue), 0);
    kn_queue_close(queue);
    kn_team_close(team);
}

#define SAME(KIND, name, ...) check(&(struct kn_op){ .kind = KN_OP_##KIND, .name = { __VA_ARGS__ } }, on_host)

#define NEEDS_DEVICE                                                                                                   \
    (void)state;                                                                                                       \
    if (!cuda)                                                                                                         \
        skip();                                                                                                        \
    used = 0

/* n rows at these positions, which share one path; every second reads a third of it; row 1, if there is one, has failed. */
static struct kn_rows rows_at(int n, const int *position)
{
    int most = 0;
    struct kn_row *row = take((size_t)n * sizeof *row);
    int *status = take((size_t)n * sizeof *status);
    for (int i = 0; i < n; i++)
        most = kn_max(most, position[i] + 1);
    int32_t *base = take((size_t)most * sizeof *base), *tail = base + most / 2;
    for (int i = 0; i < most; i++)
        base[i] = random_below(N_SLOT);
    for (int i = 0; i < n; i++) {
        status[i] = i == 1 ? KN_EIO : 0;
        row[i] = (struct kn_row){ .token = i, .position = position[i], .base = base, .n_base = most / 2, .tail = tail };
        row[i].first = i % 2 ? position[i] - position[i] / 3 : 0;
        row[i].slot = base[position[i]];
    }
    return (struct kn_rows){ row, status, n };
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* A cache with finite numbers in every slot. */
static struct kn_cache filled(enum kn_kv kv, int n_kv, int d_key, int d_value, bool latent)
{
    struct kn_cache c = in_format(cache(n_kv, d_key, d_value, latent), kv);
    float *x = malloc((size_t)d_key * sizeof *x);
    int one = (int)kn_kv_value_bytes(kv);
    for (int i = 0; i < n_kv * N_SLOT * 2; i++) {
        bool key = i % 2;
        size_t slot = (size_t)(i / 2 % N_SLOT), head = (size_t)(i / 2 / N_SLOT);
        size_t step = (size_t)(key ? c.k_step : c.v_step), next = head * (key ? c.k_head : c.v_head);
        uint8_t *scale = (uint8_t *)(key ? c.k_scale : c.v_scale);
        for (int k = 0; k < d_key; k++)
            x[k] = random_float();
        if (key || !latent)
            scalar->kv_store(kv, x, key ? d_key : d_value, (key ? c.k : c.v) + next + slot * step * (size_t)one,
                             scale ? (float *)(scale + next) + slot * (size_t)kn_kv_blocks((int)step) : NULL);
    }
    free(x);
    return c;
}

static void attention_of_one_row_and_of_many(void **state)
{
    static const int shape[][4] = { { 2, 1, 128, 128 }, { 12, 3, 64, 64 }, { 4, 1, 192, 128 }, { 2, 2, 256, 256 } };
    static const int ends[] = { 0, 1023, 63, 64, 127, 1024, 2100 };
    NEEDS_DEVICE;
    for (int kv = 0; kv < KN_KV_COUNT; kv++)
        for (int i = 0; i < 4; i++)
            for (int n = 1; n <= 7; n += 6) {
                int h = shape[i][0], dk = shape[i][2], dv = shape[i][3];
                used = 0;
                SAME(ATTEND, attend, n == 1 ? rows_at(1, ends + 6) : rows_at(n, ends), h, shape[i][1], dk, dv,
                     i % 2 ? 1000 : 0, floats(n * h * dk), NULL, i > 1 ? floats(h) : NULL, 0.09f,
                     filled((enum kn_kv)kv, shape[i][1], dk, dv, false), false, acts(n, h * dv, 16, Q32 | Q256),
                     Q32 | Q256);
            }
}

static void latent_attention_has_wide_heads(void **state)
{
    static const int ends[] = { 70, 3, 1030 };
    NEEDS_DEVICE;
    for (int kv = 0; kv < KN_KV_COUNT; kv++) {
        used = 0;
        SAME(ATTEND, attend, rows_at(3, ends), 5, 1, 576, 512, 0, floats(3 * 5 * 576), NULL, NULL, 0.05f,
             filled((enum kn_kv)kv, 1, 576, 512, true), true, acts(15, 512, 0, Q256), Q256);
    }
}

static void heads_of_128_are_finished(void **state)
{
    static const int ends[] = { 5, 6, 7 };
    NEEDS_DEVICE;
    for (int kv = 0; kv < KN_KV_COUNT; kv++) {
        used = 0;
        SAME(FINISH_QKV, finish_qkv, rows_at(3, ends), 9, 3, 128, 128, 128, floats(3 * 9 * 128), floats(3 * 3 * 128),
             floats(3 * 3 * 128), NULL, NULL, NULL, NULL, floats(kv == 1 ? 9 * 128 : 128),
             floats(kv == 1 ? 3 * 128 : 128), kv == 1, false, 1e-6f, 0, (const float(*)[2])floats(3 * 64 * 2),
             KN_ROPE_HALVES, in_format(cache(3, 128, 128, false), (enum kn_kv)kv));
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void long_rows_are_normalised(void **state)
{
    static const int lengths[] = { 64, 2048, 2304, 5120 };
    NEEDS_DEVICE;
    for (int i = 0; i < 4; i++) {
        int d = lengths[i];
        unsigned kinds = d % 256 ? Q32 : Q32 | Q256;
        used = 0;
        SAME(ADD_NORM_CODE, add_norm_code, floats(3 * d), floats(3 * d), floats(d), i % 2 ? floats(d) : NULL, 0.7f,
             floats(d), 1e-5f, NULL, 3, 3, d, acts(3, d, 16, kinds), kinds);
    }
}

/* Values that the codes treat apart: zeros, numbers near 0, infinite ones, halves that round to even. */
static void rare_values_are_coded_alike(void **state)
{
    NEEDS_DEVICE;
    struct kn_acts a = acts(6, 512, 0, Q32 | Q256);
    for (int i = 0; i < 512; i++) {
        a.x[i] = 0;
        a.x[512 + i] *= 0x1p-101f;
        a.x[3 * 512 + i] = (float)(i - 256) * 0.5f;
        a.x[4 * 512 + i] *= 0x1p-130f;
    }
    a.x[2 * 512 + 40] = INFINITY;
    a.x[3 * 512 + 3] = 127;
    a.x[5 * 512 + 7] = -INFINITY;
    SAME(CODE, code, a, Q32 | Q256, 6, 512);
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

#define EXPERTS 300
#define CHOSEN  9

static void many_experts_are_routed(void **state)
{
    NEEDS_DEVICE;
    for (int i = 0; i < 12; i++) {
        used = 0;
        int n_group = i & 4 ? 10 : 1;
        float *logit = floats(N_ROW * EXPERTS);
        for (int k = 0; k < EXPERTS; k++) {
            logit[k] = (float)random_below(3);         /* ties */
            logit[EXPERTS + k] = k % 2 ? -0.0f : 0.0f; /* equal in the order of choices */
        }
        float *select = floats(EXPERTS);
        for (int k = 0; i & 8 && k < EXPERTS;
             k++) /* a NaN is chosen last; its bits are not compared: ranks are scratch */
            select[k] = k % 37 == 5 ? 0.5f : NAN;
        SAME(ROUTE, route, N_ROW, EXPERTS, CHOSEN, logit, floats(N_ROW * EXPERTS), i & 1 ? floats(EXPERTS) : NULL,
             i & 2 ? select : NULL, (enum kn_gating)(1 + i % 3), n_group, n_group == 1 ? 1 : 4, 1 + (i & 1), i & 8,
             1.5f, take(N_ROW * CHOSEN * 4), floats(N_ROW * CHOSEN));
    }
}

static void many_pairs_are_planned_and_ranked(void **state)
{
    enum { ROWS = 37 };
    int ends[ROWS];
    NEEDS_DEVICE;
    for (int i = 0; i < ROWS; i++)
        ends[i] = i;
    struct kn_rows rows = rows_at(ROWS, ends);
    int32_t *id = take(ROWS * CHOSEN * sizeof *id);
    float *weight = floats(ROWS * CHOSEN);
    for (int i = 0; i < ROWS * CHOSEN; i++) {
        id[i] = (i % CHOSEN * 33 + random_below(33)) % EXPERTS;
        weight[i] = (float)random_below(4); /* ties, and zeros, which are not listed */
    }
    struct kn_plan p = { .n_expert = take(4),
                         .expert = take(4 * EXPERTS),
                         .first = take(4 * (EXPERTS + 1)),
                         .row = take(4 * ROWS * CHOSEN),
                         .pair = take(4 * ROWS * CHOSEN),
                         .fill = take(4 * EXPERTS) };
    SAME(PLAN, plan, rows, EXPERTS, CHOSEN, 1000, id, p);
    SAME(GUESS, guess, rows, EXPERTS, CHOSEN, 1000, id, weight, floats(EXPERTS), take(4 * EXPERTS), take(4));
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_of_one_row_and_of_many),  cmocka_unit_test(latent_attention_has_wide_heads),
        cmocka_unit_test(heads_of_128_are_finished),         cmocka_unit_test(long_rows_are_normalised),
        cmocka_unit_test(rare_values_are_coded_alike),       cmocka_unit_test(many_experts_are_routed),
        cmocka_unit_test(many_pairs_are_planned_and_ranked),
    };
    return cmocka_run_group_tests(tests, open_memory, close_memory);
}
