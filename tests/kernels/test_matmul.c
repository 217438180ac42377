/* Weights and activations: every instruction set gives the specification's bits, in every format,
 * shape and range of panels; nothing outside the results is written; and the specification equals
 * dot products in double, over values decoded by a second decoder in this file.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/internal.h"
#include "tests/kernels/draw.h"

#define GUARD     256
#define MOST_ROWS 64
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define FEW_ROWS true /* with this flag one function computes tiles of any size */
#else
#define FEW_ROWS false
#endif

static const char *const fill_names[N_FILL] = { "plain", "largest codes", "denormal", "huge", "zero" };
static const char *const input_names[N_INPUTS] = {
    "usual", "outliers", "saturated", "denormals", "giants", "not finite"
};

/* ---- guarded memory -------------------------------------------------------------------------- */

static uint8_t *guarded(size_t bytes) /* 64-byte aligned, everything 0x5a */
{
    size_t all = kn_align_up(bytes + 2 * GUARD, 64);
    uint8_t *p = aligned_alloc(64, all);

    assert_non_null(p);
    memset(p, 0x5a, all);
    return p + GUARD;
}

static void release(void *p) { free((uint8_t *)p - GUARD); }

static void assert_guards(const uint8_t *p, size_t bytes, const char *what)
{
    for (size_t i = 0; i < GUARD; i++)
        if (p[-1 - (ptrdiff_t)i] != 0x5a || p[bytes + i] != 0x5a)
            fail_msg("%s: written beside its %zu bytes", what, bytes);
}

/* Equal bits, or both NaN. */
static void assert_same_floats(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s: element %zu is %a, not %a", what, i, got[i], want[i]);
}

/* ---- one product, specified and fast --------------------------------------------------------- */

struct problem {
    enum kn_format format;
    int n_out, n_in, n_x; /* n_x activation rows exist */
    uint8_t *file, *panels;
    float *x; /* [n_x][n_in] */
    uint8_t *act;
    size_t panel_bytes, act_stride;
};

static void fill_inputs(struct problem *p, enum inputs kind)
{
    const struct kn_format_info *info = kn_format_info(p->format);

    for (int r = 0; r < p->n_x; r++) {
        float *x = p->x + (size_t)r * (size_t)p->n_in;

        for (int i = 0; i < p->n_in; i++)
            x[i] = draw_input(kind, i, r % 3 == 2 ? 1 - 2 * below(2) : r % 3 ? -1 : 1);
        kn_ops(KN_ISA_SCALAR)->quantize(info->act, x, p->n_in, p->act + (size_t)r * p->act_stride);
    }
}

static void problem_open(struct problem *p, enum kn_format f, int n_out, int n_in, int n_x, enum fill fill,
                         enum inputs inputs)
{
    const struct kn_format_info *info = kn_format_info(f);
    size_t file_bytes = (size_t)n_out * kn_row_bytes(f, n_in);

    *p = (struct problem){ .format = f, .n_out = n_out, .n_in = n_in, .n_x = n_x };
    p->panel_bytes = kn_mat_bytes(f, n_out, n_in);
    assert_true(p->panel_bytes > 0);
    p->file = guarded(file_bytes);
    for (size_t at = 0; at < file_bytes; at += (size_t)info->block_bytes)
        fill_block(f, fill, p->file + at);
    p->panels = guarded(p->panel_bytes);
    kn_ops(KN_ISA_SCALAR)->repack(f, p->file, n_out, n_in, p->panels, 0, kn_ceil_div(n_out, 16));
    p->act_stride = kn_align_up(kn_act_bytes(info->act, n_in), 16) + 16;
    p->x = (float *)(void *)guarded((size_t)n_x * (size_t)n_in * sizeof *p->x);
    p->act = guarded((size_t)n_x * p->act_stride);
    fill_inputs(p, inputs);
}

static void problem_close(struct problem *p)
{
    release(p->file);
    release(p->panels);
    release(p->x);
    release(p->act);
}

#define SCALE 0.75f /* of the matrix */

/* The product by one instruction set into fresh memory of n_y rows of `stride` floats. */
static uint8_t *product(const struct problem *p, enum kn_isa isa, int n_row, const int32_t *x_row, const int32_t *y_row,
                        int n_y, size_t stride, int panel0, int panel1)
{
    size_t bytes = (size_t)n_y * stride * sizeof(float);
    uint8_t *y = guarded(bytes);
    struct kn_matmul m = {
        .w = { p->format, p->n_out, p->n_in, SCALE, p->panels },
        .x = p->act,
        .x_stride = p->act_stride,
        .x_row = x_row,
        .y = (float *)(void *)y,
        .y_stride = stride,
        .y_row = y_row,
        .n_row = n_row,
    };

    kn_ops(isa)->matmul(&m, panel0, panel1);
    assert_guards(y, bytes, kn_format_info(p->format)->name);
    return y;
}

static uint8_t *all_rows(const struct problem *p, enum kn_isa isa, int n_row)
{
    return product(p, isa, n_row, NULL, NULL, n_row, (size_t)p->n_out, 0, kn_ceil_div(p->n_out, KN_PANEL));
}

/* Compares the first n_row rows with the same rows of `want`. */
static void compare_with(const struct problem *p, const uint8_t *want, int n_row, const char *what)
{
    size_t n = (size_t)n_row * (size_t)p->n_out;

    for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++) {
        uint8_t *got = all_rows(p, isa, n_row);
        char name[160];

        snprintf(name, sizeof name, "%s %s, %d x %d by %d rows, %s", kn_isa_name(isa), kn_format_info(p->format)->name,
                 p->n_out, p->n_in, n_row, what);
        assert_same_floats((const float *)(void *)got, (const float *)(const void *)want, n, name);
        release(got);
    }
}

static void compare(const struct problem *p, int n_row, const char *what)
{
    uint8_t *want = all_rows(p, KN_ISA_SCALAR, n_row);

    compare_with(p, want, n_row, what);
    release(want);
}

/* ---- equal to the specification -------------------------------------------------------------- */

static void rows_1_to_64(void **state)
{
    (void)state;
    for (int f = 0; f < KN_FORMAT_COUNT; f++) {
        struct problem p;

        problem_open(&p, (enum kn_format)f, 40, 512, MOST_ROWS, PLAIN, USUAL);
        uint8_t *want = all_rows(&p, KN_ISA_SCALAR, MOST_ROWS);
        for (int n = 1; n <= MOST_ROWS; n++)
            compare_with(&p, want, n, "usual");
        release(want);
        problem_close(&p);
    }
}

static void shapes(void **state)
{
    static const int outs[] = { 1, 7, 15, 16, 17, 31, 33, 63, 100 };
    static const int ins[] = { 1,   2,   3,   8,   31,  32,  33,  40,  72,  96,  128, 255,  256,
                               257, 288, 384, 385, 511, 512, 513, 544, 640, 768, 992, 1280, 1312 };
    static const int rows[] = { 1, 2, 3, 5, 9, 13, 66, 130 };

    (void)state;
    for (int f = 0; f < KN_FORMAT_COUNT; f++) {
        for (size_t i = 0; i < sizeof ins / sizeof *ins; i++) {
            if (kn_row_bytes((enum kn_format)f, ins[i]) == 0)
                continue;
            for (size_t o = FEW_ROWS ? i % 2 : 0; o < sizeof outs / sizeof *outs; o += FEW_ROWS ? 2 : 1) {
                struct problem p;
                int n = rows[(i + o) % (sizeof rows / sizeof *rows)];

                problem_open(&p, (enum kn_format)f, outs[o], ins[i], n, PLAIN, USUAL);
                compare(&p, n, "usual");
                problem_close(&p);
            }
        }
    }
}

/* The next row count to test. Tile sizes depend on it: every count up to 64; then a second group of 64, a third to
 * sixth group of 24, and each possible remainder. */
static int next_count(int n)
{
    static const int beyond[] = { 65, 71, 73, 81, 96, 97, 103, 121, 130 };
    static const int few[] = { 1, 2, 5, 6, 7, 8, 9, 16, 17, 24, 25, 40, 64, 65, 73 };
    const int *counts = FEW_ROWS ? few : beyond;
    const size_t n_count = FEW_ROWS ? sizeof few / sizeof *few : sizeof beyond / sizeof *beyond;

    if (!FEW_ROWS && n < MOST_ROWS)
        return n + 1;
    for (size_t i = 0; i < n_count; i++)
        if (counts[i] > n)
            return counts[i];
    return 0;
}

static void all_counts(struct problem *p, const char *what)
{
    uint8_t *want = all_rows(p, KN_ISA_SCALAR, p->n_x);

    for (int n = next_count(0); n; n = next_count(n))
        compare_with(p, want, n, what);
    release(want);
}

/* Every kind of weights times every kind of activations, through tiles of every size: shapes of one block and of more
 * blocks than are unpacked at once, with a last panel that is nearly empty, half full and nearly full. */
static void worst_values(void **state)
{
    static const int shape[][2] = { { 17, 1 }, { 7, 530 }, { 47, 200 } };
    enum { N_SHAPE = sizeof shape / sizeof *shape };

    (void)state;
    for (int k = 0; k < KN_FORMAT_COUNT * N_FILL * N_SHAPE; k += FEW_ROWS ? 2 : 1) { /* an odd number of shapes */
        const enum kn_format f = (enum kn_format)(k / (N_FILL * N_SHAPE));
        const enum fill fill = (enum fill)(k / N_SHAPE % N_FILL);
        const int n_out = shape[k % N_SHAPE][0], block = kn_format_info(f)->block_values;
        const int n_in = kn_ceil_div(shape[k % N_SHAPE][1], block) * block;
        struct problem p;

        problem_open(&p, f, n_out, n_in, 130, fill, USUAL);
        for (enum inputs kind = USUAL; kind < N_INPUTS; kind++) {
            char what[80];

            snprintf(what, sizeof what, "%s weights, %s inputs", fill_names[fill], input_names[kind]);
            fill_inputs(&p, kind);
            all_counts(&p, what);
        }
        problem_close(&p);
    }
}

/* Rows through x_row and y_row, panels in several calls: outputs that are not requested keep their bytes. */
static void gather_scatter_pieces(void **state)
{
    enum { N_X = 19, N_Y = 40, N_ROW = 23, STRIDE = 61 };
    int32_t x_row[N_ROW], y_row[N_ROW];

    (void)state;
    for (int f = 0; f < KN_FORMAT_COUNT; f++) {
        struct problem p;

        problem_open(&p, (enum kn_format)f, 55, 512, N_X, PLAIN, OUTLIERS);
        for (int i = 0; i < N_ROW; i++) {
            x_row[i] = below(N_X);
            y_row[i] = (i * 7 + 3) % N_Y; /* each output row at most once */
        }
        for (int cut = 0; cut <= 4; cut++) {
            uint8_t *want = product(&p, KN_ISA_SCALAR, N_ROW, x_row, y_row, N_Y, STRIDE, cut, 4);

            for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++) {
                uint8_t *got = product(&p, isa, N_ROW, x_row, y_row, N_Y, STRIDE, cut, 4);

                assert_memory_equal(got, want, N_Y * STRIDE * sizeof(float));
                release(got);
            }
            release(want);
        }
        problem_close(&p);
    }
}

static void repack(void **state)
{
    static const int outs[] = { 1, 15, 16, 33, 64 };
    static const int ins[] = { 1, 3, 8, 9, 40, 72, 256, 288, 1024 };

    (void)state;
    for (int f = 0; f < KN_FORMAT_COUNT; f++) {
        for (size_t k = 0; k < 45; k++) {
            int n_out = outs[k % 5], n_in = ins[k / 5], n_panel = kn_ceil_div(n_out, KN_PANEL);
            struct problem p;

            if (kn_row_bytes((enum kn_format)f, n_in) == 0)
                continue;
            problem_open(&p, (enum kn_format)f, n_out, n_in, 1, (enum fill)(k / 5 % N_FILL), USUAL);
            for (enum kn_isa isa = KN_ISA_SCALAR; isa <= kn_isa_best(); isa++) {
                uint8_t *got = guarded(p.panel_bytes);

                for (int i = 0; i < n_panel; i++)
                    kn_ops(isa)->repack(p.format, p.file, n_out, n_in, got, i, i + 1);
                assert_guards(got, p.panel_bytes, "repack");
                assert_memory_equal(got, p.panels, p.panel_bytes);
                release(got);
            }
            problem_close(&p);
        }
    }
}

static void quantize(void **state)
{
    static const int sizes[] = { 1, 31, 32, 64, 96, 224, 256, 288, 512, 544, 1023, 2048 };
    enum { N_SIZE = sizeof sizes / sizeof *sizes };

    (void)state;
    for (enum kn_act a = KN_ACT_F32; a < KN_ACT_COUNT; a++) {
        for (int k = 0; k < N_SIZE * N_INPUTS * 8; k++) {
            int n = sizes[k % N_SIZE];
            float x[2048];
            uint8_t *want;

            if (n % (a == KN_ACT_Q256 ? 256 : a == KN_ACT_Q32 ? 32 : 1) != 0)
                continue;
            for (int i = 0; i < n; i++)
                x[i] = draw_input((enum inputs)(k / N_SIZE % N_INPUTS), i, 1 - 2 * below(2));
            want = guarded(kn_act_bytes(a, n));
            kn_ops(KN_ISA_SCALAR)->quantize(a, x, n, want);
            assert_guards(want, kn_act_bytes(a, n), "quantize");
            for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++) {
                uint8_t *got = guarded(kn_act_bytes(a, n));

                kn_ops(isa)->quantize(a, x, n, got);
                assert_guards(got, kn_act_bytes(a, n), "quantize");
                assert_memory_equal(got, want, kn_act_bytes(a, n));
                release(got);
            }
            release(want);
        }
    }
}

/* ---- the specification itself ---------------------------------------------------------------- */

static double half_at(const uint8_t *p)
{
    uint16_t half;

    memcpy(&half, p, sizeof half);
    return kn_f16_to_f32(half);
}

/* Reads n bits at bit offset `at`. */
static int bits_at(const uint8_t *p, int at, int n)
{
    int bits = 0;

    for (int i = 0; i < n; i++)
        bits |= (p[(at + i) / 8] >> (at + i) % 8 & 1) << i;
    return bits;
}

static const int iq4[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

/* Blocks of 32 made of nibbles: value k of the block at p. */
static double value_in_32(enum kn_format f, const uint8_t *p, int k)
{
    uint16_t d;
    const int head = f == KN_Q4_1 || f == KN_Q5_1 ? 4 : 2, fifth = f == KN_Q5_0 || f == KN_Q5_1;
    int q = bits_at(p + head + 4 * fifth, k % 16 * 8 + k / 16 * 4, 4);

    memcpy(&d, p, sizeof d);
    if (f == KN_INT4)
        return (double)kn_bf16_to_f32(d) * (q - 8);
    if (fifth)
        q += 16 * bits_at(p + head, k, 1);
    if (head == 4)
        return half_at(p) * q + half_at(p + 2);
    return half_at(p) * (f == KN_IQ4_NL ? iq4[q] : q - (fifth ? 16 : 8));
}

/* IQ2 and IQ3: the sizes of a point, as grids.c has it, and all else from the format's definition. */
static double value_of_grid(enum kn_format f, const uint8_t *p, int i)
{
    const int v = i / 8, w = i / 4, j = i / 32, s = i / 16;
    int index, scale, signs = -1, sign;

    switch (f) {
    case KN_IQ2_XXS:
        index = bits_at(p + 2, 64 * j + 8 * (v % 4), 8);
        signs = bits_at(p + 2, 64 * j + 32 + 7 * (v % 4), 7);
        scale = bits_at(p + 2, 64 * j + 60, 4);
        break;
    case KN_IQ2_XS:
        index = bits_at(p + 2, 16 * v, 9);
        signs = bits_at(p + 2, 16 * v + 9, 7);
        scale = bits_at(p + 66, 4 * s, 4);
        break;
    case KN_IQ2_S:
        index = bits_at(p + 2, 8 * v, 8) + 256 * bits_at(p + 66, 2 * v, 2);
        scale = bits_at(p + 74, 4 * s, 4);
        break;
    case KN_IQ3_XXS:
        index = bits_at(p + 2, 8 * w, 8);
        signs = bits_at(p + 66, 32 * j + 7 * (v % 4), 7);
        scale = bits_at(p + 66, 32 * j + 28, 4);
        break;
    default:
        index = bits_at(p + 2, 8 * w, 8) + 256 * bits_at(p + 66, w, 1);
        scale = bits_at(p + 106, 4 * j, 4);
    }
    if (signs < 0)
        sign = bits_at(p + (f == KN_IQ2_S ? 34 : 74), i, 1);
    else
        sign = i % 8 < 7 ? signs >> i % 8 & 1 : __builtin_parity((unsigned)signs);
    const int size = f == KN_IQ2_XXS   ? kn_grid_iq2_xxs[index][i % 8]
                     : f == KN_IQ2_XS  ? kn_grid_iq2_xs[index][i % 8]
                     : f == KN_IQ2_S   ? kn_grid_iq2_s[index][i % 8]
                     : f == KN_IQ3_XXS ? 2 * kn_grid_iq3_xxs[index][i % 4]
                                       : kn_grid_iq3_s[index][i % 4];
    return half_at(p) * (2 * scale + 1) * (sign ? -size : size) / (f == KN_IQ3_S ? 1 : f == KN_IQ3_XXS ? 4 : 8);
}

/* IQ1: 8 times a digit of the point, plus or minus 1. */
static double value_of_iq1(enum kn_format f, const uint8_t *p, int i)
{
    const bool m = f == KN_IQ1_M;
    const int v = i / 8, j = i / 32, index = bits_at(p + (m ? 0 : 2), 8 * v, 8);
    const int high = m ? bits_at(p + 32, 4 * v, 3) : bits_at(p + 34, 16 * j + 3 * (v % 4), 3);
    const int minus = m ? bits_at(p + 32, 4 * v + 3, 1) : bits_at(p + 34, 16 * j + 15, 1);
    const int scale = m ? bits_at(p + 48, 16 * (i / 64) + 3 * (i / 16 % 4), 3) : bits_at(p + 34, 16 * j + 12, 3);
    const int digit = (kn_grid_iq1[index | high << 8][i % 8] - 1) / 8;
    uint16_t half = 0;

    for (int k = 0; m && k < 4; k++)
        half |= (uint16_t)(bits_at(p + 48, 16 * k + 12, 4) << 4 * k);
    return (m ? (double)kn_f16_to_f32(half) : half_at(p)) * (2 * scale + 1) * (digit + (minus ? -0.125 : 0.125));
}

/* Blocks of 256: value i of the block at p is value i % 32 of the sub-block j of 32. */
static double value_in_256(enum kn_format f, const uint8_t *p, int i)
{
    const int j = i / 32, l = i % 32, s = i / 16;
    int q, scale, min;

    switch (f) {
    case KN_Q4_K:
    case KN_Q5_K:
        scale = j < 4 ? bits_at(p + 4, 8 * j, 6) : bits_at(p + 8, 8 * j, 4) + 16 * bits_at(p, 8 * j + 6, 2);
        min = j < 4 ? bits_at(p + 8, 8 * j, 6) : bits_at(p + 8, 8 * j + 4, 4) + 16 * bits_at(p + 4, 8 * j + 6, 2);
        q = bits_at(p + (f == KN_Q5_K ? 48 : 16), (j / 2 * 32 + l) * 8 + j % 2 * 4, 4);
        if (f == KN_Q5_K)
            q += 16 * bits_at(p + 16, 8 * l + j, 1);
        return half_at(p) * scale * q - half_at(p + 2) * min;
    case KN_Q2_K:
        q = bits_at(p + 16, (j / 4 * 32 + l) * 8 + j % 4 * 2, 2);
        return half_at(p + 80) * bits_at(p, 8 * s, 4) * q - half_at(p + 82) * bits_at(p, 8 * s + 4, 4);
    case KN_Q3_K:
        q = bits_at(p + 32, (j / 4 * 32 + l) * 8 + j % 4 * 2, 2) + 4 * bits_at(p, 8 * l + j, 1);
        scale = bits_at(p + 96, s % 8 * 8 + s / 8 * 4, 4) + 16 * bits_at(p + 104, s % 4 * 8 + s / 4 * 2, 2);
        return half_at(p + 108) * (scale - 32) * (q - 4);
    case KN_IQ4_XS:
        scale = bits_at(p + 4, 4 * j, 4) + 16 * bits_at(p + 2, 2 * j, 2);
        return half_at(p) * (scale - 32) * iq4[bits_at(p + 8, (16 * j + l % 16) * 8 + l / 16 * 4, 4)];
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S:
    case KN_IQ3_XXS:
    case KN_IQ3_S:
        return value_of_grid(f, p, i);
    case KN_IQ1_S:
    case KN_IQ1_M:
        return value_of_iq1(f, p, i);
    default:
        q = bits_at(p, (i / 128 * 64 + i % 64) * 8 + i % 128 / 64 * 4, 4);
        q += bits_at(p + 128, (i / 128 * 32 + l) * 8 + i % 128 / 32 * 2, 2) * 16;
        return half_at(p + 208) * (int8_t)p[192 + s] * (q - 32);
    }
}

/* Decodes value k of a file row from the format's definition, independently of decode.c. */
static double value_at(enum kn_format f, const uint8_t *row, int k)
{
    const struct kn_format_info *info = kn_format_info(f);
    const uint8_t *p = row + k / info->block_values * info->block_bytes;
    int q;
    uint16_t half;
    float x;

    switch (f) {
    case KN_F32:
        memcpy(&x, p, 4);
        return x;
    case KN_F16:
        return half_at(p);
    case KN_BF16:
        memcpy(&half, p, 2);
        return kn_bf16_to_f32(half);
    case KN_Q8_0:
        return half_at(p) * (int8_t)p[2 + k % 32];
    case KN_FP8:
        memcpy(&x, p, 4);
        q = p[4 + k % 128];
        return x * (q & 128 ? -1 : 1) * ((q & 120) ? ldexp(8 + q % 8, (q & 120) / 8 - 10) : ldexp(q % 8, -9));
    case KN_MXFP4:
        q = k % 32 < 16 ? p[1 + k % 16] % 16 : p[1 + k % 16] / 16;
        x = q % 8 < 2 ? (float)(q % 8) / 2 : (1 + (float)(q % 2) / 2) * (float)(1 << (q % 8 / 2 - 1));
        return (q < 8 ? 1 : -1) * (double)x * pow(2, p[0] - 127);
    case KN_NVFP4:
        q = p[4 + k % 64 / 16 * 8 + k % 8] >> k % 16 / 8 * 4 & 15;
        x = q % 8 < 2 ? (float)(q % 8) / 2 : (1 + (float)(q % 2) / 2) * (float)(1 << (q % 8 / 2 - 1));
        half = p[k % 64 / 16] & 127;
        return half == 127 ? 0
                           : (q < 8 ? 1 : -1) * (double)x *
                                 (half & 120 ? ldexp(8 + half % 8, half / 8 - 10) : ldexp(half % 8, -9));
    case KN_UINT4:
        q = k % 32 < 16 ? p[3 + k % 16] % 16 : p[3 + k % 16] / 16;
        return half_at(p) * (q - p[2]);
    default:
        return info->block_values == 32 ? value_in_32(f, p, k % 32) : value_in_256(f, p, k % 256);
    }
}

static double input_at(const struct problem *p, int row, int k)
{
    const uint8_t *act = p->act + (size_t)row * p->act_stride;
    const struct kn_codes *c = (const struct kn_codes *)(const void *)act + k / 256;
    float x;

    if (kn_format_info(p->format)->act != KN_ACT_F32)
        return (double)c->d[k % 256 / 32] * c->q[k % 256];
    memcpy(&x, act + 4 * k, 4);
    return x;
}

static void against_double(void **state)
{
    enum { N_OUT = 37, N_ROW = 3, N_IN = 1536 };

    (void)state;
    for (int f = 0; f < KN_FORMAT_COUNT; f++) {
        struct problem p;
        uint8_t *y;

        problem_open(&p, (enum kn_format)f, N_OUT, N_IN, N_ROW, PLAIN, OUTLIERS);
        y = product(&p, KN_ISA_SCALAR, N_ROW, NULL, NULL, N_ROW, N_OUT, 0, 3);
        for (int i = 0; i < N_ROW * N_OUT; i++) {
            const uint8_t *row = p.file + (size_t)(i % N_OUT) * kn_row_bytes(p.format, N_IN);
            double sum = 0, size = 0;
            float got;

            for (int k = 0; k < N_IN; k++) {
                double term = value_at(p.format, row, k) * input_at(&p, i / N_OUT, k);
                sum += term;
                size += fabs(term);
            }
            memcpy(&got, y + 4 * i, sizeof got);
            sum *= (double)SCALE;
            if (!(fabs(got - sum) <= 2e-6 * size))
                fail_msg("%s: %g, not %g", kn_format_info(p.format)->name, (double)got, sum);
        }
        release(y);
        problem_close(&p);
    }
}

static void row_values(void **state)
{
    enum { N_OUT = 21, N_IN = 512 };

    (void)state;
    for (int f = 0; f < KN_FORMAT_COUNT; f++) {
        struct problem p;
        float a[N_IN], b[N_IN];

        problem_open(&p, (enum kn_format)f, N_OUT, N_IN, 1, PLAIN, USUAL);
        for (int r = 0; r < N_OUT; r++) {
            const uint8_t *row = p.file + (size_t)r * kn_row_bytes(p.format, N_IN);
            struct kn_mat w = { p.format, N_OUT, N_IN, 1, p.panels };

            kn_row_decode(p.format, row, N_IN, a);
            kn_mat_row(&w, r, b);
            assert_memory_equal(a, b, sizeof a);
            for (int k = 0; k < N_IN; k++)
                if (!(fabs(a[k] - value_at(p.format, row, k)) <= 1e-6 * fmax(1, fabs((double)a[k]))))
                    fail_msg("%s: value %d is %g", kn_format_info(p.format)->name, k, (double)a[k]);
        }
        problem_close(&p);
    }
}

static void codes_are_nearest(void **state)
{
    float x[2048];
    struct kn_codes a[8];

    (void)state;
    for (int i = 0; i < 2048; i++)
        x[i] = draw_input(OUTLIERS, i, 1) * (i < 1024 ? 1.0f : 1e-20f);
    kn_ops(KN_ISA_SCALAR)->quantize(KN_ACT_Q256, x, 2048, a);
    for (int i = 0; i < 2048; i++) {
        const struct kn_codes *b = a + i / 256;
        int sum = 0;

        assert_true(fabs(x[i] - (double)b->d[i % 256 / 32] * b->q[i % 256]) <= 0.50001 * (double)b->d[0]);
        for (int k = 0; k < 16; k++)
            sum += b->q[i % 256 / 16 * 16 + k];
        assert_int_equal(b->sum[i % 256 / 16], sum);
    }
    memset(x, 0, sizeof x);
    x[3] = 0x1.fp-101f; /* below 2^-100: coded as 0 */
    x[256] = 0x1p-100f;
    x[512] = NAN;
    x[768] = -INFINITY;
    kn_ops(KN_ISA_SCALAR)->quantize(KN_ACT_Q256, x, 1024, a);
    assert_true(a[0].d[0] == 0 && a[0].q[3] == 0);
    assert_true(a[1].d[0] > 0 && a[1].q[0] == 127);
    assert_true(isnan(a[2].d[0]) && a[2].q[0] == 0 && isnan(a[3].d[0]) && a[3].q[0] == 0);
}

/* A product with FP8 weights equals the product with the decoded weights as F32; and every FP8 code is decoded. */
static void fp8_is_its_values(void **state)
{
    enum { N_OUT = 50, N_IN = 384, N_ROW = 9 };
    struct problem p, wide;

    (void)state;
    problem_open(&p, KN_FP8, N_OUT, N_IN, N_ROW, PLAIN, OUTLIERS);
    problem_open(&wide, KN_F32, N_OUT, N_IN, N_ROW, PLAIN, OUTLIERS);
    for (int r = 0; r < N_OUT; r++)
        kn_row_decode(KN_FP8, p.file + (size_t)r * kn_row_bytes(KN_FP8, N_IN), N_IN,
                      (float *)(void *)wide.file + r * N_IN);
    kn_ops(KN_ISA_SCALAR)->repack(KN_F32, wide.file, N_OUT, N_IN, wide.panels, 0, 4);
    memcpy(wide.act, p.act, N_ROW * p.act_stride);
    for (enum kn_isa isa = KN_ISA_SCALAR; isa <= kn_isa_best(); isa++) {
        uint8_t *got = all_rows(&p, isa, N_ROW), *want = all_rows(&wide, isa, N_ROW);

        assert_memory_equal(got, want, N_ROW * N_OUT * sizeof(float));
        release(got);
        release(want);
    }
    problem_close(&p);
    problem_close(&wide);
    for (int q = 0; q < 256; q++) {
        struct kn_fp8 block = { .d = 3.0f, .q = { (uint8_t)q } };
        float x[128];
        kn_row_decode(KN_FP8, &block, 128, x);
        assert_true(q % 128 == 127 ? isnan(x[0]) : x[0] == value_at(KN_FP8, (uint8_t *)&block, 0));
    }
}

/* Formats published with codes and scales in separate tensors: joined blocks, checked by a second writing. */
static void joined_blocks(void **state)
{
    static const struct {
        enum kn_format f;
        int bytes, per_scale;
    } kind[] = {
        { KN_MXFP4, 1, 1 }, { KN_INT4, 2, 1 }, { KN_INT4, 2, 4 }, { KN_Q4_0, 2, 4 },
        { KN_FP8, 4, 1 },   { KN_FP8, 2, 1 },  { KN_FP8, 2, 3 },
    };
    enum { N = 11 };

    (void)state;
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        const struct kn_format_info *info = kn_format_info(kind[i].f);
        size_t n_code = kn_code_bytes(kind[i].f), n = (size_t)info->block_bytes, head = n - n_code;
        uint8_t codes[N * 128], scales[N * 4], *got = guarded(N * n);

        for (size_t k = 0; k < sizeof codes; k++)
            codes[k] = (uint8_t)draw();
        for (size_t k = 0; k < sizeof scales; k++)
            scales[k] = (uint8_t)draw();
        kn_join(kind[i].f, codes, scales, kind[i].bytes, kind[i].per_scale, N, got);
        assert_guards(got, N * n, info->name);
        for (int b = 0; b < N; b++) {
            const uint8_t *at = got + (size_t)b * n, *scale = scales + b / kind[i].per_scale * kind[i].bytes;
            const uint8_t *code = codes + (size_t)b * n_code;

            for (int k = 0; k < (int)head; k++)
                assert_int_equal(at[k], k < (int)head - kind[i].bytes ? 0 : scale[k - (int)head + kind[i].bytes]);
            for (int k = 0; k < info->block_values; k++)
                if (n_code == 128)
                    assert_int_equal(at[(int)head + k], code[k]);
                else
                    assert_int_equal(bits_at(at + head, k % 16 * 8 + k / 16 * 4, 4), bits_at(code, 4 * k, 4));
        }
        release(got);
    }
    assert_int_equal(kn_code_bytes(KN_Q8_0), 0);
}

/* The same with inputs first: equals the panel of the transposed rows; the last rows of the panel may not exist. */
static void joined_columns(void **state)
{
    enum { N_IN = 192, N_OUT = 37, N_WORD = N_IN / 8, N_BLOCK = N_IN / 32, PANELS = 3 };
    static uint32_t codes[N_WORD * N_OUT], row_codes[N_WORD];
    static uint16_t scales[N_BLOCK * N_OUT], row_scales[N_BLOCK];
    static struct kn_q4_0 rows[N_OUT * N_BLOCK];
    size_t panel = N_BLOCK * sizeof(struct kn_q4_0_x16);
    uint8_t *got = guarded(PANELS * panel), *want = guarded(PANELS * panel);

    (void)state;
    for (int i = 0; i < N_WORD * N_OUT; i++)
        codes[i] = (uint32_t)draw();
    for (int i = 0; i < N_BLOCK * N_OUT; i++)
        scales[i] = (uint16_t)draw();
    for (int per_scale = 1; per_scale <= N_BLOCK; per_scale *= 2) {
        if (N_BLOCK % per_scale)
            continue;
        for (int r = 0; r < N_OUT; r++) {
            for (int i = 0; i < N_WORD; i++)
                row_codes[i] = codes[i * N_OUT + r];
            for (int i = 0; i < N_BLOCK / per_scale; i++)
                row_scales[i] = scales[i * N_OUT + r];
            kn_join(KN_Q4_0, row_codes, row_scales, 2, per_scale, N_BLOCK, &rows[r * N_BLOCK]);
        }
        kn_ops(KN_ISA_SCALAR)->repack(KN_Q4_0, rows, N_OUT, N_IN, want, 0, PANELS);
        for (int p = 0; p < PANELS; p++)
            kn_join_columns(&(struct kn_columns){ .codes = codes,
                                                  .scales = scales,
                                                  .format = KN_Q4_0,
                                                  .n_out = N_OUT,
                                                  .n_in = N_IN,
                                                  .per_scale = per_scale },
                            p, got + (size_t)p * panel);
        assert_guards(got, PANELS * panel, "columns");
        assert_memory_equal(got, want, PANELS * panel);
    }
    release(got);
    release(want);
}

static void halves(void **state)
{
    (void)state;
    for (int h = 0; h < 0x10000; h++) {
        int e = h >> 10 & 31, m = h & 1023;
        double size = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
        float x = kn_f16_to_f32((uint16_t)h), up = kn_f16_to_f32((uint16_t)(h + 1));

        if (e == 31) {
            assert_true(m ? isnan(x) : isinf(x));
            continue;
        }
        assert_true(x == (h & 0x8000 ? -size : size) && !signbit(x) == !(h & 0x8000));
        assert_int_equal(kn_f32_to_f16(x), h);
        if (e == 30 && m == 1023)
            up = h & 0x8000 ? -65536.0f : 65536.0f; /* infinity stands here for 65536 */
        assert_int_equal(kn_f32_to_f16((x + up) / 2), h + (h & 1));
        assert_int_equal(kn_f32_to_f16(nextafterf((x + up) / 2, x)), h);
        assert_int_equal(kn_f32_to_f16(nextafterf((x + up) / 2, up)), h + 1);
    }
    assert_int_equal(kn_f32_to_bf16(kn_bf16_to_f32(0x3F81)), 0x3F81);
    assert_int_equal(kn_f32_to_bf16(0x1.01p0f), 0x3F80); /* ties to even, down and up */
    assert_int_equal(kn_f32_to_bf16(0x1.03p0f), 0x3F82);
    assert_true(isnan(kn_bf16_to_f32(kn_f32_to_bf16(NAN))));
}

static void format_table(void **state)
{
    enum kn_format f;

    (void)state;
    assert_int_equal(kn_format_find("q4_k", &f), 0);
    assert_int_equal(f, KN_Q4_K);
    assert_int_equal(kn_format_from_gguf(14, &f), 0);
    assert_int_equal(f, KN_Q6_K);
    assert_int_equal(kn_format_find("q4", &f), KN_EUNSUPPORTED);
    assert_int_equal(kn_format_find("fp8", &f), KN_EUNSUPPORTED); /* FP8 can be read but not written */
    assert_null(strstr(kn_format_list, "FP8"));
    assert_int_equal(kn_format_from_gguf(99, &f), KN_EUNSUPPORTED);
    assert_int_equal(kn_row_bytes(KN_Q4_K, 512), 288);
    assert_int_equal(kn_row_bytes(KN_Q4_K, 288), 0);
    assert_int_equal(kn_row_bytes(KN_Q8_0, 0), 0);
    assert_int_equal(kn_mat_bytes(KN_Q6_K, 17, 256), 32 * 210);
    assert_int_equal(kn_mat_bytes(KN_F32, 0, 256), 0);
    assert_int_equal(kn_act_bytes(KN_ACT_Q256, 512), 2 * sizeof(struct kn_codes));
    assert_int_equal(kn_act_bytes(KN_ACT_Q32, 512), 2 * sizeof(struct kn_codes));
    assert_int_equal(kn_act_bytes(KN_ACT_Q32, 544), 3 * sizeof(struct kn_codes));
    assert_int_equal(kn_act_bytes(KN_ACT_Q32, 0), 0);
    assert_int_equal(kn_act_bytes(KN_ACT_F32, 33), 33 * sizeof(float));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(format_table),
        cmocka_unit_test(fp8_is_its_values),
        cmocka_unit_test(joined_blocks),
        cmocka_unit_test(joined_columns),
        cmocka_unit_test(halves),
        cmocka_unit_test(row_values),
        cmocka_unit_test(codes_are_nearest),
        cmocka_unit_test(against_double),
        cmocka_unit_test(quantize),
        cmocka_unit_test(repack),
        cmocka_unit_test(rows_1_to_64),
        cmocka_unit_test(shapes),
        cmocka_unit_test(worst_values),
        cmocka_unit_test(gather_scatter_pieces),
    };

    for (enum kn_isa isa = KN_ISA_AVX2; isa < KN_ISA_COUNT; isa++)
        if (kn_ops(isa)->isa != isa)
            printf("skipped: %s, which this processor does not have\n", kn_isa_name(isa));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
