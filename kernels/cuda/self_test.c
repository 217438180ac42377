/* Compares a device with the host, bit for bit, on small operations: for the first start on a GPU.
 *
 * A case is built in pinned memory, which both can read: first the host's scalar functions run it, then the device runs
 * it from the same contents, and all of the memory is compared. */
#include "kernels/cuda/internal.h"
#include "kernels/internal.h"

#include <string.h>

#define MEMORY ((size_t)4 << 20)
#define ROWS   5
#define N_IN   768
#define N_OUT  48
#define HEADS  4
#define N_KV   2
#define DIM    64
#define N_POS  1100 /* two spans */
#define N_EXP  40
#define N_USED 4

struct bench {
    uint8_t *memory, *first, *expected; /* [MEMORY] */
    size_t used, scratch;               /* bytes from the start that are compared; bytes at the end that are not */
    uint64_t random;
    struct kn_queue *host, *device;
    const struct kn_ops *scalar;
};

static void *take(struct bench *b, size_t bytes)
{
    void *p = b->memory + b->used;
    b->used += kn_align_up(bytes, 64);
    kn_assert(b->used <= MEMORY);
    return p;
}

/* Memory whose contents afterwards are undefined. */
static void *scratch(struct bench *b, size_t bytes)
{
    b->scratch += kn_align_up(bytes, 64);
    kn_assert(b->used + b->scratch <= MEMORY);
    return b->memory + MEMORY - b->scratch;
}

static float next_float(struct bench *b)
{
    return (float)(int64_t)(kn_mix(b->random += KN_GOLDEN) >> 40) / 8388608.0f - 1.0f;
}

static float *floats(struct bench *b, int n)
{
    float *x = take(b, (size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = next_float(b);
    return x;
}

/* Rows of d values, with codes of both kinds. */
static struct kn_acts acts(struct bench *b, int n, int d)
{
    struct kn_acts a = { .x = floats(b, n * d), .stride = (size_t)d };
    a.code[KN_ACT_F32] = a.x;
    a.code_stride[KN_ACT_F32] = a.stride * sizeof(float);
    for (int kind = KN_ACT_Q32; kind <= KN_ACT_Q256; kind++) {
        a.code_stride[kind] = kn_act_bytes((enum kn_act)kind, d);
        a.code[kind] = take(b, (size_t)n * a.code_stride[kind]);
        for (int i = 0; i < n; i++)
            b->scalar->quantize((enum kn_act)kind, a.x + i * d, d,
                                (uint8_t *)a.code[kind] + (size_t)i * a.code_stride[kind]);
    }
    return a;
}

/* Random weights.  Formats that files never have are made of any codes and a scale. */
static struct kn_mat matrix(struct bench *b, enum kn_format f)
{
    size_t row = kn_row_bytes(f, N_IN), block = (size_t)kn_format_info(f)->block_bytes;
    uint8_t *rows = take(b, N_OUT * row), *panels = take(b, kn_mat_bytes(f, N_OUT, N_IN));
    float *x = floats(b, N_OUT * N_IN), scale = 0.0625f;
    if (f < KN_GGUF_FORMAT_COUNT)
        b->scalar->encode(f, x, NULL, N_OUT * N_IN, rows);
    for (size_t at = 0; f >= KN_GGUF_FORMAT_COUNT && at < N_OUT * row; at += block) {
        for (size_t i = 0; i < block; i++)
            rows[at + i] = (uint8_t)kn_mix(b->random += KN_GOLDEN) & 0xF7; /* no NaN of FP8 */
        if (f == KN_FP8)
            memcpy(rows + at, &scale, sizeof scale);
        else
            memcpy(rows + at, &(uint16_t){ f == KN_INT4 ? kn_f32_to_bf16(scale) : kn_f32_to_f16(scale) }, 2);
        if (f == KN_UINT4)
            rows[at + 2] %= 17;
    }
    b->scalar->repack(f, rows, N_OUT, N_IN, panels, 0, N_OUT / KN_PANEL);
    return (struct kn_mat){ f, N_OUT, N_IN, 0.75f, panels };
}

static struct kn_rows batch(struct bench *b)
{
    struct kn_row *row = take(b, ROWS * sizeof *row);
    int *status = take(b, ROWS * sizeof *status);
    int32_t *base = take(b, N_POS * sizeof *base);
    for (int p = 0; p < N_POS; p++)
        base[p] = p;
    for (int i = 0; i < ROWS; i++) {
        int p = i ? N_POS / (1 + i) : N_POS - 1;
        row[i] = (struct kn_row){ .token = i, .position = p, .slot = p, .base = base, .n_base = N_POS };
        status[i] = 0;
    }
    return (struct kn_rows){ row, status, ROWS };
}

/* Runs n operations on the host and on the device, and compares. */
static int run_both(struct bench *b, const struct kn_op *op, int n, bool *differs)
{
    memcpy(b->first, b->memory, b->used);
    for (int i = 0; i < n; i++)
        kn_queue_add(b->host, &op[i]);
    int error = kn_queue_wait(b->host);
    memcpy(b->expected, b->memory, b->used);
    memcpy(b->memory, b->first, b->used);
    for (int i = 0; i < n; i++)
        kn_queue_add(b->device, &op[i]);
    error = error ? error : kn_queue_wait(b->device);
    *differs = !error && memcmp(b->memory, b->expected, b->used);
    b->used = b->scratch = 0;
    return error;
}

/* 0, or KN_EIO with a message, which names the first operation.  name: of a format, or "". */
static int compare(struct bench *b, const struct kn_op *op, int n, const char *name)
{
    bool differs;
    int error = run_both(b, op, n, &differs);
    if (differs)
        error = kn_fail(KN_EIO, "CUDA: this device computes %s%s%s differently from the host", kn_op_name(op->kind),
                        *name ? " of " : "", name);
    return error;
}

#define COMPARE(b, format, KIND, name, ...)                                                                            \
    compare(b, &(struct kn_op){ .kind = KN_OP_##KIND, .name = { __VA_ARGS__ } }, 1, format)

static int compare_products(struct bench *b, unsigned *differing)
{
    bool differs;
    int error = 0;
    for (int f = 0; !error && f < KN_FORMAT_COUNT; f++)
        for (int n_row = 1; !error && n_row <= ROWS && kn_cuda_has_format((enum kn_format)f); n_row += ROWS - 1) {
            struct kn_mat w = matrix(b, (enum kn_format)f);
            struct kn_acts x = acts(b, ROWS, N_IN);
            struct kn_op op = { .kind = KN_OP_PRODUCTS, .products.n = 1 };
            op.products.product[0] = kn_product(&x, &w, floats(b, ROWS * N_OUT), n_row);
            error = run_both(b, &op, 1, &differs);
            *differing |= differs ? 1u << f : 0;
        }
    return error;
}

static int compare_attention(struct bench *b)
{
    static const char *const names[KN_KV_COUNT] = { "F16", "F32", "INT8" };
    int error = 0;
    for (int kv = 0; !error && kv < KN_KV_COUNT; kv++) {
        size_t head = (size_t)N_POS * kn_kv_bytes((enum kn_kv)kv, DIM);
        struct kn_cache c = {
            .kv = (enum kn_kv)kv, .k_head = head, .v_head = head, .k_step = DIM, .v_step = DIM, .n_slot = N_POS
        };
        float *x = floats(b, DIM);
        c.k = take(b, N_KV * head);
        c.v = take(b, N_KV * head);
        size_t numbers = (size_t)N_POS * DIM * kn_kv_value_bytes((enum kn_kv)kv);
        c.k_scale = kv == KN_KV_INT8 ? (float *)(void *)(c.k + numbers) : NULL;
        c.v_scale = kv == KN_KV_INT8 ? (float *)(void *)(c.v + numbers) : NULL;
        for (int i = 0; i < 2 * N_KV * N_POS; i++) {
            size_t at = (size_t)(i / 2 / N_POS) * head, slot = (size_t)(i / 2 % N_POS);
            uint8_t *to = (i % 2 ? c.k : c.v) + at;
            for (int k = 0; k < DIM; k++)
                x[k] = next_float(b);
            b->scalar->kv_store(c.kv, x, DIM, to + slot * DIM * kn_kv_value_bytes(c.kv),
                                c.k_scale ? (float *)(void *)(to + numbers) + slot : NULL);
        }
        error = COMPARE(b, names[kv], ATTEND, attend, batch(b), HEADS, N_KV, DIM, DIM, 0, floats(b, ROWS * HEADS * DIM),
                        NULL, floats(b, HEADS), 0.125f, c, false, acts(b, ROWS, HEADS * DIM), 1u << KN_ACT_Q256);
    }
    return error;
}

static int compare_rows_and_router(struct bench *b)
{
    int error = COMPARE(b, "", EMBED, embed, batch(b), matrix(b, KN_Q4_K), 1, floats(b, ROWS * N_IN),
                        floats(b, DIM / 2), (float(*)[2])floats(b, ROWS * DIM), DIM / 2, 1);
    if (!error)
        error = COMPARE(b, "", ADD_NORM_CODE, add_norm_code, floats(b, ROWS * N_IN), floats(b, ROWS * N_IN), NULL, NULL,
                        1, floats(b, N_IN), 1e-6f, NULL, ROWS, ROWS, N_IN, acts(b, ROWS, N_IN), 6);
    for (int gating = KN_GATING_SOFTMAX; !error && gating <= KN_GATING_CHOSEN; gating++)
        error = COMPARE(b, "", ROUTE, route, ROWS, N_EXP, N_USED, floats(b, ROWS * N_EXP), floats(b, ROWS * N_EXP),
                        NULL, NULL, (enum kn_gating)gating, 1, 1, 1, true, 1, take(b, ROWS * N_USED * 4),
                        floats(b, ROWS * N_USED));
    return error;
}

/* Operations in one launch, in which the last block reads results of the others: one row's logits, its route and the plan; routes
 * of several rows, and the plan. */
static int compare_choices(struct bench *b)
{
    int error = 0;
    for (int first = 0; !error && first < 2; first++) {
        int n = first ? ROWS : 1, n_pair = n * N_USED;
        struct kn_rows rows = batch(b);
        struct kn_acts x = acts(b, n, N_IN);
        struct kn_mat w = matrix(b, KN_F32);
        struct kn_op op[3] = { { .kind = KN_OP_PRODUCTS, .products.n = 1 },
                               { .kind = KN_OP_ROUTE },
                               { .kind = KN_OP_PLAN } };
        float *logit = floats(b, n * N_OUT);
        int32_t *id = take(b, (size_t)n_pair * sizeof *id);
        rows.n = n;
        op[0].products.product[0] = kn_product(&x, &w, logit, n);
        op[1].route = (struct kn_op_route){ .n = n,
                                            .n_expert = N_OUT,
                                            .n_used = N_USED,
                                            .logit = logit,
                                            .gating = KN_GATING_SOFTMAX,
                                            .n_group = 1,
                                            .norm_topk = true,
                                            .scale = 1,
                                            .id = id,
                                            .weight = floats(b, n_pair) };
        op[2].plan = (struct kn_op_plan){ rows,
                                          N_OUT,
                                          N_USED,
                                          0,
                                          id,
                                          { take(b, 4), take(b, 4 * N_OUT), take(b, 4 * (N_OUT + 1)),
                                            take(b, 4 * (size_t)n_pair), take(b, 4 * (size_t)n_pair),
                                            scratch(b, 4 * N_OUT) } };
        error = compare(b, op + first, 3 - first, "");
    }
    return error;
}

/* Gates, ups and their activation: of two groups with two and three rows. */
static int compare_activation(struct bench *b, struct kn_cuda_device *d)
{
    unsigned formats = d->formats;
    struct kn_group *group = take(b, 2 * sizeof *group);
    struct kn_acts act = { .x = floats(b, ROWS * N_OUT), .stride = N_OUT };
    for (int i = 0; i < 2; i++)
        group[i] = (struct kn_group){
            .gate = matrix(b, KN_Q4_K), .up = matrix(b, KN_Q4_K), .node = -1, .first = 2 * i, .n = 2 + i
        };
    d->formats |= 1u << KN_Q4_K; /* before models are opened there may be none */
    int error = COMPARE(
        b, "", GATE_UP, gate_up, .group = group, .n_group = 2, .n_row = ROWS, .n_pair = ROWS, .d_in = N_IN,
        .d_act = N_OUT, .x = acts(b, ROWS, N_IN), .gate = scratch(b, ROWS * N_OUT * sizeof(float)),
        .up = scratch(b, ROWS * N_OUT * sizeof(float)), .activation = KN_SWIGLU, .act = act, .formats = 1u << KN_Q4_K);
    d->formats = formats;
    return error;
}

int kn_cuda_self_test(struct kn_device *device)
{
    struct kn_cuda_device *d = (struct kn_cuda_device *)device;
    struct bench b = { .scalar = kn_ops(KN_ISA_SCALAR) };
    struct kn_team *team = NULL;
    struct kn_queue_options opt = { .device = device,
                                    .max_row = ROWS,
                                    .max_pos = N_POS,
                                    .n_head = HEADS,
                                    .n_kv = N_KV,
                                    .d_value = DIM,
                                    .max_product = KN_PRODUCTS };
    int error = kn_team_open(&team, 1);
    if (!error)
        error = kn_queue_open(&b.device, &opt);
    opt.device = kn_host_device(KN_ISA_SCALAR);
    opt.team = team;
    if (!error)
        error = kn_queue_open(&b.host, &opt);
    if (!error)
        error = kn_cuda_failed(d->driver->pinned_alloc((void **)&b.memory, MEMORY, KN_CUDA_MAPPED), "pinning memory");
    b.first = kn_alloc(2 * MEMORY);
    b.expected = b.first ? b.first + MEMORY : NULL;
    if (!error && !b.first)
        error = KN_ENOMEM;
    if (!error)
        error = compare_rows_and_router(&b);
    if (!error)
        error = compare_attention(&b);
    if (!error)
        error = compare_choices(&b);
    if (!error)
        error = compare_activation(&b, d);
    if (!error)
        error = compare_products(&b, &d->differing);
    if (b.memory)
        d->driver->pinned_free(b.memory);
    kn_free(b.first);
    kn_queue_close(b.device);
    kn_queue_close(b.host);
    kn_team_close(team);
    return error;
}
