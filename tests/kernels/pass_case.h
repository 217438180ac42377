/* tests/kernels/pass_case.h - runs an operation of kernels/pass.h, and compares it with a plain version of it.
 *
 * All memory of an operation lies in one array.  A case takes it piece by piece and fills it; then CASE() runs the
 * operation several times from the same contents:
 *
 *   - on the host for 1 to 3 threads, one and two NUMA nodes and all instruction sets: the results have the bytes of the
 *     plain version, which is written with the scalar functions of struct kn_ops;
 *   - no byte changes that kn_op_fields() does not name as written;
 *   - with other contents in all bytes that it does not name as read: the results stay the same.
 *
 * A test of another device (tests/cuda/on_cuda.h) defines PASS_WAYS, run_way(), pass_has(), memory_open() and
 * memory_close() in place of the host's. */
#ifndef TESTS_KERNELS_PASS_CASE_H
#define TESTS_KERNELS_PASS_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/pass/host.h"
#include "tests/nodes.h"

#ifndef MEMORY
#define MEMORY ((size_t)4 << 20)
#endif
#define N_ROW  5
#define DEAD   3 /* the row that has failed */
#define N_SLOT 24
#define D      96
#define N_EXP  6
#define N_USED 2

static uint8_t *memory, *first_image, *plain_image, *access_of; /* [MEMORY] */
static size_t used;
static uint64_t random_state;
static const struct kn_ops *scalar;

/* ---- memory of a case ---------------------------------------------------------------------------------------- */

static inline uint64_t random_bits(void) { return kn_mix(random_state += KN_GOLDEN); }
static inline int random_below(int n) { return (int)(random_bits() % (uint64_t)n); }
static inline float random_float(void) { return (float)(int64_t)(random_bits() >> 40) / 8388608.0f - 1.0f; }

static inline void *take(size_t bytes)
{
    void *p = memory + used;
    used += kn_align_up(bytes, 64) + 64; /* a gap that nothing may touch */
    assert_true(used <= MEMORY);
    return p;
}

static inline float *floats(int n)
{
    float *x = take((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = random_float();
    return x;
}

static inline int32_t *list(int n, const int32_t *of)
{
    int32_t *x = take((size_t)n * sizeof *x);
    memcpy(x, of, (size_t)n * sizeof *x);
    return x;
}
#define LIST(...) list(sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t), (int32_t[]){ __VA_ARGS__ })

static inline void code_row(const struct kn_acts *a, unsigned kinds, int d, int row)
{
    for (int kind = KN_ACT_F32 + 1; kind < KN_ACT_COUNT; kind++)
        if (kinds & 1u << kind)
            scalar->quantize((enum kn_act)kind, a->x + (size_t)row * a->stride, d,
                             (uint8_t *)a->code[kind] + (size_t)row * a->code_stride[kind]);
}

/* n rows of d values, with a gap between rows and codes of these kinds. */
static inline struct kn_acts acts(int n, int d, int gap, unsigned kinds)
{
    struct kn_acts a = { .stride = (size_t)(d + gap) };
    a.x = floats(n * (d + gap));
    a.code[KN_ACT_F32] = a.x;
    a.code_stride[KN_ACT_F32] = a.stride * sizeof(float);
    for (int kind = KN_ACT_F32 + 1; kind < KN_ACT_COUNT; kind++)
        if (kinds & 1u << kind) {
            a.code_stride[kind] = kn_align_up(kn_act_bytes((enum kn_act)kind, d), 64) + 64;
            a.code[kind] = take((size_t)n * a.code_stride[kind]);
        }
    for (int i = 0; i < n; i++)
        code_row(&a, kinds, d, i);
    return a;
}

static inline struct kn_mat matrix(enum kn_format f, int n_out, int n_in)
{
    float *x = malloc((size_t)(n_out * n_in) * sizeof *x);
    size_t row = kn_row_bytes(f, n_in);
    uint8_t *rows = malloc((size_t)n_out * row);
    void *panels = take(kn_mat_bytes(f, n_out, n_in));
    for (int i = 0; i < n_out * n_in; i++)
        x[i] = random_float();
    if (f == KN_F32)
        memcpy(rows, x, (size_t)n_out * row);
    else
        scalar->encode(f, x, NULL, (size_t)(n_out * n_in), rows);
    scalar->repack(f, rows, n_out, n_in, panels, 0, kn_ceil_div(n_out, KN_PANEL));
    free(x);
    free(rows);
    return (struct kn_mat){ f, n_out, n_in, 0.75f, panels };
}

/* Rows 0 .. N_ROW - 1: two sequences and a draft on the first; row DEAD has failed. */
static inline struct kn_rows rows_of_batch(void)
{
    static const int position[N_ROW] = { 9, 10, 2, 3, 10 };
    struct kn_row *row = take(N_ROW * sizeof *row);
    int *status = take(N_ROW * sizeof *status);
    int32_t *one = LIST(3, 7, 1, 0, 20, 5, 6, 11, 2, 9), *two = LIST(13, 14), *tail = LIST(15), *own = LIST(16, 17);
    for (int i = 0; i < N_ROW; i++) {
        bool second = i == 2 || i == 3;
        row[i] = (struct kn_row){ .token = random_below(19),
                                  .position = position[i],
                                  .base = second ? two : one,
                                  .n_base = second ? 2 : 10,
                                  .tail = second   ? own
                                          : i == 4 ? tail
                                                   : own + 1,
                                  .feature_slot = random_below(N_SLOT),
                                  .q_scale = 1 + 0.1f * (float)position[i] };
        int p = row[i].position;
        row[i].slot = p < row[i].n_base ? row[i].base[p] : row[i].tail[p - row[i].n_base];
        status[i] = i == DEAD ? KN_EIO : 0;
    }
    row[1].feature = floats(D);
    row[DEAD].feature = floats(D);
    return (struct kn_rows){ row, status, N_ROW };
}

static inline struct kn_cache cache(int n_kv, int d_key, int d_value, bool latent)
{
    int bk = kn_kv_blocks(d_key), bv = kn_kv_blocks(d_value); /* scales follow, for int8 */
    size_t key = (size_t)(N_SLOT * (d_key + bk) + 32), value = (size_t)(N_SLOT * (d_value + bv) + 32);
    struct kn_cache c = { .kv = KN_KV_F32,
                          .k_head = key * sizeof(float),
                          .k_step = d_key,
                          .v_head = latent ? 0 : value * sizeof(float),
                          .v_step = latent ? d_key : d_value,
                          .n_slot = N_SLOT };
    c.k = (uint8_t *)floats(n_kv * (int)key);
    c.v = latent ? c.k : (uint8_t *)floats(n_kv * (int)value);
    return c;
}

/* The cache in another number type, from the same memory: int8 has scales behind the floats' place. */
static inline struct kn_cache in_format(struct kn_cache c, enum kn_kv kv)
{
    c.kv = kv;
    if (kv != KN_KV_INT8)
        return c;
    c.k_scale = (float *)c.k + N_SLOT * c.k_step;
    c.v_scale = (float *)c.v + N_SLOT * c.v_step;
    return c;
}

static inline struct kn_features features(int n)
{
    size_t slot_bytes = (size_t)(n + 24) * sizeof(float);
    return (struct kn_features){ KN_KV_F32, (uint8_t *)floats(N_SLOT * (n + 24)), slot_bytes, n, N_SLOT };
}

static inline float (*rotations(int n_pair))[2] { return (float(*)[2])floats(N_ROW * n_pair * 2); }

/* ---- running a case ------------------------------------------------------------------------------------------- */

enum { NAMED_READ = 1, NAMED_WRITTEN = 2, NAMED_SCRATCH = 4 };

static inline void note_field(void *arg, const char *name, enum kn_access access, const void *at, size_t bytes)
{
    static const uint8_t bits[] = { [KN_READS] = NAMED_READ,
                                    [KN_WRITES] = NAMED_WRITTEN,
                                    [KN_CHANGES] = NAMED_READ | NAMED_WRITTEN,
                                    [KN_SCRATCH] = NAMED_SCRATCH };
    (void)arg;
    if ((const uint8_t *)at < memory || (const uint8_t *)at + bytes > memory + used)
        fail_msg("field %s is no memory of the case", name);
    for (size_t i = 0; i < bytes; i++)
        access_of[(const uint8_t *)at - memory + (ptrdiff_t)i] |= bits[access];
}

#ifndef PASS_WAYS
#ifdef __SANITIZE_THREAD__ /* several threads, and the bodies in which it sees the accesses (Makefile) */
#define N_ISA         (KN_ISA_AVX2 + 1)
#define LEAST_THREADS 2
#else
#define N_ISA         KN_ISA_COUNT
#define LEAST_THREADS 1
#endif
#define N_THREADS (3 - LEAST_THREADS + 1)
#define PASS_WAYS (N_ISA * N_THREADS * 2) /* instruction sets, threads, one node and two */

static inline void run(const struct kn_op *op, enum kn_isa isa, int n_thread)
{
    struct kn_team *team;
    struct kn_queue *queue;
    assert_int_equal(kn_team_open(&team, n_thread), 0);
    struct kn_queue_options opt = { .device = kn_host_device(isa),
                                    .team = team,
                                    .max_row = N_ROW,
                                    .max_pos = 4096,
                                    .n_head = 40,
                                    .n_kv = 1,
                                    .d_value = 40,
                                    .max_product = 4 * N_EXP,
                                    .max_state_floats = 4096 };
    assert_int_equal(kn_queue_open(&queue, &opt), 0);
    kn_queue_add(queue, op);
    kn_queue_wait(queue);
    kn_queue_close(queue);
    kn_team_close(team);
}

/* Runs op in one of the ways, and returns its description. */
static inline const char *run_way(const struct kn_op *op, int way)
{
    nodes_set(1 + way % 2);
    run(op, (enum kn_isa)(way / 2 / N_THREADS), LEAST_THREADS + way / 2 % N_THREADS);
    nodes_set(1);
    return way % 2 ? "two nodes" : "one node";
}

static inline bool pass_has(enum kn_op_kind kind) { return kind < KN_OP_COUNT; }
static inline uint8_t *memory_open(size_t bytes) { return calloc(1, bytes); }
static inline void memory_close(uint8_t *p) { free(p); }
#endif

/* Results equal those of the plain version.  outside: bytes that no field names as written keep their contents. */
static inline void check_image(const struct kn_op *op, const uint8_t *before, const char *when)
{
    for (size_t i = 0; i < used; i++) {
        bool written = access_of[i] & NAMED_WRITTEN, scratch = access_of[i] & NAMED_SCRATCH;
        if (written ? memory[i] != plain_image[i] : !scratch && memory[i] != before[i])
            fail_msg("%s, %s: byte %zu of the memory %s", kn_op_name(op->kind), when, i,
                     written ? "differs from the plain version" : "is changed, and no field says so");
    }
}

static inline void check(const struct kn_op *op, void (*plain)(const struct kn_op *op))
{
    uint8_t *other = malloc(used);
    memset(access_of, 0, used);
    memcpy(first_image, memory, used);
    kn_op_fields(op, note_field, NULL);
    assert_memory_equal(memory, first_image, used);
    plain(op);
    memcpy(plain_image, memory, used);
    for (int way = 0; way < PASS_WAYS; way++) {
        memcpy(memory, first_image, used);
        check_image(op, first_image, run_way(op, way));
    }
    for (size_t i = 0; i < used; i++) /* other contents wherever nothing is read */
        other[i] = access_of[i] & NAMED_READ ? first_image[i] : first_image[i] ^ 0x55;
    memcpy(memory, other, used);
    run_way(op, 0);
    check_image(op, other, "with other contents");
    free(other);
}

/* ---- cases --------------------------------------------------------------------------- */

#define PLAIN(name)                                                                                                    \
    static void plain_##name(const struct kn_op *op);                                                                  \
    static void do_##name(const struct kn_op_##name *o);                                                               \
    static void plain_##name(const struct kn_op *op) { do_##name(&op->name); }                                         \
    static void do_##name(const struct kn_op_##name *o)
#define CASE(KIND, name, ...) check(&(struct kn_op){ .kind = KN_OP_##KIND, .name = { __VA_ARGS__ } }, plain_##name)

#define Q32 (1u << KN_ACT_Q32)

/* One row at a time, the matrices of a stack one after the other. */
static inline void multiply(const struct kn_product *p)
{
    int n_out = p->mul.w.n_out / p->n_stack;
    size_t bytes = kn_mat_bytes(p->mul.w.format, n_out, p->mul.w.n_in);
    for (int i = 0; i < p->mul.n_row; i++)
        for (size_t k = 0; k < (size_t)p->n_stack; k++) {
            struct kn_matmul m = p->mul;
            m.w.n_out = n_out;
            m.w.data = (const uint8_t *)m.w.data + k * bytes;
            m.x = (const uint8_t *)m.x + (size_t)(m.x_row ? m.x_row[i] : i) * m.x_stride + k * p->x_part;
            m.y += (size_t)(m.y_row ? m.y_row[i] : i) * m.y_stride + k * p->y_part;
            m.x_row = m.y_row = NULL;
            m.n_row = 1;
            scalar->matmul(&m, 0, kn_ceil_div(n_out, KN_PANEL));
        }
}

/* ---- main ------------------------------------------------------------------------------------------------------- */

/* The test of operation `name` is case_name(). */
#define CASE_TEST(KIND, name)                                                                                          \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        if (!pass_has(KN_OP_##KIND))                                                                                   \
            skip();                                                                                                    \
        used = 0;                                                                                                      \
        random_state = KN_OP_##KIND;                                                                                   \
        case_##name();                                                                                                 \
    }
#define CASE_ENTRY(KIND, name) { #name, test_##name, NULL, NULL, NULL },

static inline int open_memory(void **state)
{
    (void)state;
    memory = memory_open(MEMORY);
    first_image = malloc(MEMORY);
    plain_image = malloc(MEMORY);
    access_of = malloc(MEMORY);
    scalar = kn_ops(KN_ISA_SCALAR);
    return !memory || !first_image || !plain_image || !access_of;
}

static inline int close_memory(void **state)
{
    (void)state;
    memory_close(memory);
    free(first_image);
    free(plain_image);
    free(access_of);
    return 0;
}

#endif
