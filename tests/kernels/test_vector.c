/* Rows of floats: every instruction set equals the specification bit for bit, nothing outside the
 * rows is written, and the specification equals its formulas.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/kernels.h"

#define N_MOST 2048
#define GUARD  64

/* A row of floats between two guards. */
struct row {
    float before[GUARD], x[N_MOST], after[GUARD];
};

static uint64_t seed;

static float uniform(void) /* -1 .. 1 */ { return (float)(int32_t)(kn_mix(seed += KN_GOLDEN) >> 32) * 0x1p-31f; }

enum fill { PLAIN, OUTLIERS, DENORMAL, HUGE_ONES, STRANGE, ZEROS, N_FILL };

static float draw(enum fill fill, int i)
{
    static const float strange[] = { NAN, INFINITY, -INFINITY, -0.0f, 1e-45f, 3e38f, -3e38f, 88.8f };
    float u = uniform();
    switch (fill) {
    case OUTLIERS:
        return i % 37 == 5 ? 100 * u : u;
    case DENORMAL:
        return u * 0x1p-130f;
    case HUGE_ONES:
        return u * 0x1p127f;
    case STRANGE:
        return i % 29 == 3 ? strange[kn_mix(seed) % 8] : 4 * u;
    case ZEROS:
        return i % 2 ? 0.0f : -0.0f;
    default:
        return 4 * u;
    }
}

static void fill_row(struct row *r, enum fill fill, int n)
{
    memset(r, 0x5a, sizeof *r);
    for (int i = 0; i < n; i++)
        r->x[i] = draw(fill, i);
}

/* The whole row with its guards: equal bits, or both NaN. */
static void assert_same(const struct row *a, const struct row *b, const char *what, int n)
{
    const float *x = a->before, *y = b->before;
    for (size_t i = 0; i < sizeof *a / sizeof *x; i++) {
        if (memcmp(&x[i], &y[i], sizeof *x) == 0 || (isnan(x[i]) && isnan(y[i])))
            continue;
        fail_msg("%s, n %d: element %d is %a, not %a", what, n, (int)i - GUARD, y[i], x[i]);
    }
}

static const int sizes[] = { 1,  2,  3,  7,   8,   9,   15,  16,  17,  24,  31,  33,   40,   63,  64,
                             65, 80, 96, 127, 128, 129, 191, 256, 320, 511, 576, 1000, 1023, 2048 };
#define N_SIZE (int)(sizeof sizes / sizeof sizes[0])

typedef void case_fn(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out);

/* Runs one operation on every size and fill, with the specification and with every other instruction set. */
static void check_all(case_fn *run, const char *what)
{
    static struct row a, b, want, got;
    for (int isa = KN_ISA_AVX2; isa <= KN_ISA_AVX512; isa++) {
        const struct kn_ops *ops = kn_ops((enum kn_isa)isa), *spec = kn_ops(KN_ISA_SCALAR);
        if ((int)ops->isa != isa)
            continue;
        for (int fill = 0; fill < N_FILL; fill++) {
            for (int s = 0; s < N_SIZE; s++) {
                seed = (uint64_t)(fill * 1000 + s);
                fill_row(&a, (enum fill)fill, sizes[s]);
                fill_row(&b, (enum fill)fill, sizes[s]);
                fill_row(&want, PLAIN, sizes[s]);
                got = want;
                run(spec, &a, &b, sizes[s], &want);
                run(ops, &a, &b, sizes[s], &got);
                assert_same(&want, &got, what, sizes[s]);
            }
        }
    }
}

static void run_norm(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    ops->rms_norm(a->x, b->x, 1e-6f, n, out->x);
}

static void run_norm_in_place(const struct kn_ops *ops, const struct row *a, const struct row *b, int n,
                              struct row *out)
{
    *out = *a;
    ops->rms_norm(out->x, b->x, 0, n, out->x);
}

static void run_softmax(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    (void)b;
    *out = *a;
    ops->softmax(out->x, n);
}

static void run_swiglu(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    ops->swiglu(a->x, b->x, n, out->x);
}

static void run_swiglu_clamped(const struct kn_ops *ops, const struct row *a, const struct row *b, int n,
                               struct row *out)
{
    ops->swiglu_clamped(a->x, b->x, 1.702f, 0.4f, n, out->x);
}

static void run_gate(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    *out = *a;
    ops->gate(out->x, b->x, n);
}

static void run_cap(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    (void)b;
    *out = *a;
    ops->cap(out->x, 0.7f, n);
}

/* The taps start one element apart in one row; the weights are in the other row. */
static void run_conv(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    static float w[4 * N_MOST];
    const float *x[4];
    for (int j = 0; j < 4; j++) {
        x[j] = a->x + (n > 8 ? j : 0);
        memcpy(w + j * (n > 8 ? n - 3 : n), b->x + (n > 8 ? 3 - j : 0), (size_t)n * sizeof *w);
    }
    ops->conv(x, w, 4, n > 8 ? n - 3 : n, out->x);
}

static void run_add(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    *out = *a;
    ops->add(out->x, b->x, n);
}

static void run_add_scaled(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    *out = *a;
    ops->add_scaled(out->x, b->x[n / 2], b->x, n);
}

static void run_store_f32(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    (void)b;
    ops->kv_store(KN_KV_F32, a->x, n, out->x, NULL);
}

/* Values outside the range of a half become infinite or 0. NaNs are only required to stay NaN, and a comparison as
 * float could hide one in a pair of halves: see halves_round_to_nearest_even(). */
static void run_store_f16(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    static float numbers[N_MOST];
    (void)b;
    for (int i = 0; i < n; i++)
        numbers[i] = isnan(a->x[i]) ? 0 : a->x[i];
    ops->kv_store(KN_KV_F16, numbers, n, out->x, NULL);
}

static void store_int8(const struct kn_ops *ops, const struct row *a, int n, struct row *out, bool scales)
{
    int8_t code[N_MOST + 2];
    float scale[N_MOST / KN_KV_BLOCK + 3];
    memset(code, 0x5a, sizeof code);
    memset(scale, 0x5a, sizeof scale);
    ops->kv_store(KN_KV_INT8, a->x, n, code + 1, scale + 1);
    assert_true(code[0] == 0x5a && code[n + 1] == 0x5a);
    assert_memory_equal(&scale[0], &scale[kn_kv_blocks(n) + 1], sizeof scale[0]); /* both untouched */
    for (int i = 0; i < n; i++)
        out->x[i] = scales ? scale[1 + i / KN_KV_BLOCK] : (float)code[1 + i];
}

static void run_int8_codes(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    (void)b;
    store_int8(ops, a, n, out, false);
}

static void run_int8_scales(const struct kn_ops *ops, const struct row *a, const struct row *b, int n, struct row *out)
{
    (void)b;
    store_int8(ops, a, n, out, true);
}

static void each_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    check_all(run_norm, "rms_norm");
    check_all(run_norm_in_place, "rms_norm in place");
    check_all(run_softmax, "softmax");
    check_all(run_swiglu, "swiglu");
    check_all(run_swiglu_clamped, "swiglu_clamped");
    check_all(run_gate, "gate");
    check_all(run_cap, "cap");
    check_all(run_conv, "conv");
    check_all(run_add, "add");
    check_all(run_add_scaled, "add_scaled");
    check_all(run_store_f32, "kv_store f32");
    check_all(run_store_f16, "kv_store f16");
    check_all(run_int8_codes, "kv_store int8, codes");
    check_all(run_int8_scales, "kv_store int8, scales");
}

/* exp on a coarse grid over all floats' bits: swiglu with up = 1 exposes every result. */
static void exp_is_the_same_on_every_lane(void **state)
{
    (void)state;
    static struct row x, one, want, got;
    for (int isa = KN_ISA_AVX2; isa <= KN_ISA_AVX512; isa++) {
        const struct kn_ops *ops = kn_ops((enum kn_isa)isa);
        uint32_t step = 6151;
        for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += (uint64_t)step * N_MOST) {
            for (int i = 0; i < N_MOST; i++) {
                uint32_t u = (uint32_t)(bits + (uint64_t)step * (uint64_t)i);
                memcpy(&x.x[i], &u, sizeof u);
                one.x[i] = 1;
            }
            kn_ops(KN_ISA_SCALAR)->swiglu(x.x, one.x, N_MOST, want.x);
            ops->swiglu(x.x, one.x, N_MOST, got.x);
            assert_same(&want, &got, "swiglu", N_MOST);
        }
    }
}

/* The largest f16 is 65504; 65520 is the tie that rounds to infinity. A NaN need only stay a NaN. */
static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    static const float special[] = {
        0,         -0.0f,    65504,    65519.99f,  65520,      -65520,   1e30f,        INFINITY,        -INFINITY,
        NAN,       0x1p-24f, 0x1p-25f, 0x1.8p-25f, 0x1.8p-24f, 0x1p-14f, 0x1.ffcp-15f, 1.0f + 0x1p-11f, 1.0f + 0x3p-11f,
        0x1p-126f, 1e-45f,
    };
    static const uint16_t bits[] = {
        0, 0x8000, 0x7bff, 0x7bff, 0x7c00, 0xfc00, 0x7c00, 0x7c00, 0xfc00, 0x7e00,
        1, 0,      1,      2,      0x0400, 0x0400, 0x3c00, 0x3c02, 0,      0,
    };
    enum { N_SPECIAL = sizeof special / sizeof special[0] };
    for (int isa = 0; isa <= KN_ISA_AVX512; isa++) {
        const struct kn_ops *ops = kn_ops((enum kn_isa)isa);
        for (int s = 0; s < N_SIZE; s++) {
            float x[N_MOST];
            uint16_t half[N_MOST + 2];
            memset(half, 0x5a, sizeof half);
            seed = 7;
            for (int i = 0; i < sizes[s]; i++)
                x[i] = i < N_SPECIAL ? special[i] : uniform() * ldexpf(1, i % 48 - 30);
            ops->kv_store(KN_KV_F16, x, sizes[s], half + 1, NULL);
            assert_true(half[0] == 0x5a5a && half[sizes[s] + 1] == 0x5a5a);
            for (int i = 0; i < sizes[s]; i++) {
                uint16_t want = i < N_SPECIAL ? bits[i] : kn_f32_to_f16(x[i]);
                if (isnan(x[i]))
                    assert_true(isnan(kn_f16_to_f32(half[i + 1])));
                else
                    assert_int_equal(half[i + 1], want);
            }
        }
    }
}

static void rotation_is_the_same_and_stays_in_its_part(void **state)
{
    (void)state;
    static const int shapes[][3] = { { 1, 8, 8 },   { 3, 24, 24 },   { 2, 40, 40 },  { 4, 64, 64 },   { 2, 80, 80 },
                                     { 5, 96, 48 }, { 3, 128, 128 }, { 2, 128, 34 }, { 1, 256, 256 }, { 2, 10, 6 } };
    static struct row x, want, got;
    float turn[128][2];
    for (int isa = KN_ISA_AVX2; isa <= KN_ISA_AVX512; isa++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (int fill = 0; fill < N_FILL; fill++)
                for (int kind = KN_ROPE_HALVES; kind <= KN_ROPE_PAIRS; kind++) {
                    int n_head = shapes[i][0], d_head = shapes[i][1], n_rot = shapes[i][2];
                    seed = i;
                    fill_row(&x, (enum fill)fill, n_head * d_head);
                    for (int p = 0; p < n_rot / 2; p++) {
                        double s, c;
                        kn_sincos(1000.0 * (double)uniform(), &s, &c);
                        turn[p][0] = (float)c;
                        turn[p][1] = (float)s;
                    }
                    want = got = x;
                    kn_ops(KN_ISA_SCALAR)->rope(want.x, n_head, d_head, n_rot, turn, (enum kn_rope)kind);
                    kn_ops((enum kn_isa)isa)->rope(got.x, n_head, d_head, n_rot, turn, (enum kn_rope)kind);
                    assert_same(&want, &got, "rope", d_head);
                    for (int d = n_rot; d < d_head; d++)
                        assert_memory_equal(&want.x[d], &x.x[d], sizeof(float));
                }
}

/* ---- the specification against the formulas, in long double --------------------------------- */

static void the_specification_is_the_formula(void **state)
{
    (void)state;
    const struct kn_ops *spec = kn_ops(KN_ISA_SCALAR);
    enum { N = 1000 };
    float x[N], y[N], out[N];
    seed = 1;
    for (int i = 0; i < N; i++) {
        x[i] = draw(OUTLIERS, i);
        y[i] = uniform();
    }
    long double squares = 0, sum = 0;
    for (int i = 0; i < N; i++)
        squares += (long double)x[i] * x[i];
    spec->rms_norm(x, y, 0.5f, N, out);
    for (int i = 0; i < N; i++) {
        double want = (double)(x[i] / sqrtl(squares / N + 0.5L) * y[i]);
        assert_true(fabs((double)out[i] - want) <= 4e-7 * fabs(want));
    }
    spec->swiglu(x, y, N, out);
    for (int i = 0; i < N; i++) {
        double want = (double)(x[i] / (1 + expl(-(long double)x[i])) * y[i]);
        double most = 4e-7 * fabs(want) + 1e-36; /* e^89 is infinite */
        assert_true(fabs((double)out[i] - want) <= most);
    }
    memcpy(out, y, sizeof out);
    spec->gate(out, x, N);
    for (int i = 0; i < N; i++) {
        double want = (double)(y[i] / (1 + expl(-(long double)x[i])));
        assert_true(fabs((double)out[i] - want) <= 4e-7 * fabs(want) + 1e-36);
    }
    memcpy(out, x, sizeof out);
    spec->cap(out, 3, N);
    for (int i = 0; i < N; i++) {
        double want = (double)(3 * tanhl((long double)x[i] / 3));
        assert_true(fabs((double)out[i] - want) <= 4e-7 * fabs(want) + 1e-36);
    }
    const float *tap[3] = { x, y, x };
    float w[3 * N];
    for (int i = 0; i < 3 * N; i++)
        w[i] = uniform();
    spec->conv(tap, w, 3, N, out);
    for (int i = 0; i < N; i++) {
        long double s = (long double)w[i] * x[i] + (long double)w[N + i] * y[i] + (long double)w[2 * N + i] * x[i];
        double size = fabs((double)x[i]) + fabs((double)y[i]), want = (double)(s / (1 + expl(-s)));
        assert_true(fabs((double)out[i] - want) <= 1e-6 * size);
    }
    spec->swiglu_clamped(x, y, 1.702f, 2.5f, N, out);
    for (int i = 0; i < N; i++) {
        long double g = fminl(x[i], 2.5L), u = fmaxl(fminl(y[i], 2.5L), -2.5L);
        double want = (double)(g / (1 + expl(-(long double)1.702f * g)) * (u + 1));
        double rounded = 3e-7 * fabs((double)x[i]); /* the product alpha * g is rounded */
        assert_true(fabs((double)out[i] - want) <= (1e-6 + rounded) * fabs(want) + 1e-36);
    }
    for (int i = 0; i < N; i++)
        sum += expl((long double)x[i]);
    memcpy(out, x, sizeof out);
    spec->softmax(out, N);
    for (int i = 0; i < N; i++) {
        double want = (double)(expl((long double)x[i]) / sum);
        double most = 1e-5 * want + 1e-44; /* x - max is rounded to 2^-17 */
        assert_true(fabs((double)out[i] - want) <= most);
    }
}

/* A quarter turn of (1, 2) is (-2, 1) in both pair layouts. */
static void rotation_turns_the_right_way(void **state)
{
    (void)state;
    float turn[2][2] = { { 0, 1 }, { 1, 0 } };
    float halves[5] = { 1, 3, 2, 4, 9 }, pairs[5] = { 1, 2, 3, 4, 9 };
    static const float want_halves[5] = { -2, 3, 1, 4, 9 }, want_pairs[5] = { -2, 1, 3, 4, 9 };
    for (int isa = 0; isa <= KN_ISA_AVX512; isa++) {
        float h[5], p[5];
        memcpy(h, halves, sizeof h);
        memcpy(p, pairs, sizeof p);
        kn_ops((enum kn_isa)isa)->rope(h, 1, 5, 4, turn, KN_ROPE_HALVES);
        kn_ops((enum kn_isa)isa)->rope(p, 1, 5, 4, turn, KN_ROPE_PAIRS);
        for (int i = 0; i < 5; i++)
            assert_true(h[i] == want_halves[i] && p[i] == want_pairs[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_instruction_set_gives_the_same_bits),
        cmocka_unit_test(exp_is_the_same_on_every_lane),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(rotation_is_the_same_and_stays_in_its_part),
        cmocka_unit_test(the_specification_is_the_formula),
        cmocka_unit_test(rotation_turns_the_right_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
