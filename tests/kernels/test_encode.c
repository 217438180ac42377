/* Encoders: every instruction set writes the same bytes, a block's bytes depend only on its values, and the search
 * is at least as accurate as the plain encoder (plain_encode.h) for all kinds of values.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "tests/kernels/plain_encode.h"

#define N_BLOCK 5 /* odd, so that the last pair of blocks is incomplete */
#define N       (256 * N_BLOCK)

enum kind {
    SMOOTH,
    NORMAL,
    OUTLIER,
    POSITIVE,
    NEGATIVE,
    FAR_OFF,
    CONSTANT,
    MINUS_CONSTANT,
    ZERO,
    MINUS_ZERO,
    ONE_VALUE,
    TWO_VALUES,
    SPARSE,
    STEPS,
    SMALL,
    BELOW_HALF,
    DENORMAL,
    LARGE,
    HUGE_ONES,
    N_KIND
};

enum { N_BLOCK_FORMAT = 21 };
static const enum kn_format block_formats[N_BLOCK_FORMAT] = {
    KN_Q8_0,   KN_Q4_K,   KN_Q6_K,    KN_MXFP4,  KN_Q4_0,  KN_Q4_1,    KN_Q5_0,  KN_Q5_1,  KN_Q5_K,  KN_Q2_K, KN_Q3_K,
    KN_IQ4_NL, KN_IQ4_XS, KN_IQ2_XXS, KN_IQ2_XS, KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S, KN_IQ1_S, KN_IQ1_M, KN_NVFP4
};

static float uniform(uint64_t i) { return (float)(int32_t)(kn_mix(i) >> 32) * 0x1p-31f; }

static float draw(enum kind kind, uint64_t i, uint64_t seed)
{
    float u = uniform(seed * 100003 + i), bell = 0;
    for (uint64_t k = 0; k < 12; k++)
        bell += uniform((seed * 100003 + i) * 12 + k) / 2;
    switch (kind) {
    case SMOOTH:
        return u;
    case OUTLIER:
        return i % 97 == 0 ? 100 * u : bell;
    case POSITIVE:
        return u + 2;
    case NEGATIVE:
        return u - 2;
    case FAR_OFF:
        return bell - 1000;
    case CONSTANT:
        return 0.7f;
    case MINUS_CONSTANT:
        return -0.7f;
    case ZERO:
        return 0;
    case MINUS_ZERO:
        return -0.0f;
    case ONE_VALUE:
        return i % 256 == 77 ? u : 0;
    case TWO_VALUES:
        return u < 0 ? -0.25f : 0.5f;
    case SPARSE:
        return i % 13 ? 0 : u;
    case STEPS:
        return bell * (float)(1 << i / 32 % 8); /* sub-blocks of very different magnitude */
    case SMALL:
        return bell * 1e-4f;
    case BELOW_HALF:
        return bell * 0x1p-26f; /* steps underflow in half precision */
    case DENORMAL:
        return bell * 0x1p-140f;
    case LARGE:
        return bell * 1e6f;
    case HUGE_ONES:
        return u * 3e38f;
    default:
        return bell;
    }
}

static void fill(float *x, size_t n, enum kind kind, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = draw(kind, i, seed);
}

static double squared_error(enum kn_format f, const float *x, size_t n, const void *blocks)
{
    static float y[1 << 16];
    double sum = 0;
    assert_true(n <= sizeof y / sizeof *y);
    kn_row_decode(f, blocks, (int)n, y);
    for (size_t i = 0; i < n; i++)
        sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sum;
}

static const struct kn_ops *best(void) { return kn_ops(KN_ISA_COUNT - 1); }

/* Blocks between two guards. */
struct room {
    uint16_t before[8], blocks[2 * N], after[8];
};

static void expect_the_same(enum kn_format f, enum kind kind, const float *x, int n)
{
    static struct room want, got;
    memset(&want, 0x5a, sizeof want);
    kn_ops(KN_ISA_SCALAR)->encode(f, x, NULL, (size_t)n, want.blocks);
    for (int isa = KN_ISA_AVX2; isa <= KN_ISA_AVX512; isa++) {
        memset(&got, 0x5a, sizeof got);
        kn_ops((enum kn_isa)isa)->encode(f, x, NULL, (size_t)n, got.blocks);
        if (memcmp(&want, &got, sizeof want))
            fail_msg("%s, kind %d, %d values: %s differs", kn_format_info(f)->name, kind, n,
                     kn_isa_name((enum kn_isa)isa));
    }
    for (size_t i = kn_row_bytes(f, n); i < sizeof want - sizeof want.before; i++)
        assert_int_equal(((uint8_t *)want.blocks)[i], 0x5a);
    assert_int_equal(want.before[7], 0x5a5a);
}

/* Five blocks of 256 or 40 of 32; and 1 to 19 blocks, so that vector groups have remainders. */
static void all_instruction_sets_write_the_same(void **state)
{
    (void)state;
    static float x[N];
    for (int f = 0; f < KN_GGUF_FORMAT_COUNT; f++)
        for (int kind = 0; kind < N_KIND; kind++) {
            int some = (1 + kind) * kn_format_info((enum kn_format)f)->block_values;
            fill(x, N, (enum kind)kind, 1);
            expect_the_same((enum kn_format)f, (enum kind)kind, x, N);
            expect_the_same((enum kn_format)f, (enum kind)kind, x, some <= N ? some : 512);
        }
}

static void a_block_depends_on_its_own_values(void **state)
{
    (void)state;
    static float x[N];
    static struct room all, one;
    for (int k = 0; k < N_BLOCK_FORMAT; k++)
        for (int kind = 0; kind < N_KIND; kind++) {
            const struct kn_format_info *info = kn_format_info(block_formats[k]);
            size_t n = (size_t)info->block_values, bytes = (size_t)info->block_bytes;
            fill(x, N, (enum kind)kind, 2);
            best()->encode(block_formats[k], x, NULL, N, all.blocks);
            for (size_t i = 0; i < N / n; i++) {
                best()->encode(block_formats[k], x + i * n, NULL, n, one.blocks);
                assert_memory_equal(one.blocks, (uint8_t *)all.blocks + i * bytes, bytes);
            }
        }
}

static double weighted_error(enum kn_format f, const float *x, const float *weight, size_t n, const void *blocks)
{
    static float y[1 << 16];
    double sum = 0;
    kn_row_decode(f, blocks, (int)n, y);
    for (size_t i = 0; i < n; i++)
        sum += (double)weight[i] * ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sum;
}

/* Equal weights that are powers of two change no bit; unequal ones lower the weighted error, and all instruction sets
 * write the same. */
static void weights_count(void **state)
{
    (void)state;
    static float x[N], weight[N], same[N];
    static struct room plain, weighted, other;
    for (int i = 0; i < N; i++) {
        weight[i] = i % 7 == 0 ? 100 : i % 3 == 0 ? 0x1p-10f : 1;
        same[i] = 0x1p-5f;
    }
    for (int k = 0; k < N_BLOCK_FORMAT; k++)
        for (int kind = SMOOTH; kind <= NEGATIVE; kind++) {
            enum kn_format f = block_formats[k];
            fill(x, N, (enum kind)kind, 7);
            best()->encode(f, x, NULL, N, plain.blocks);
            best()->encode(f, x, same, N, other.blocks);
            assert_memory_equal(plain.blocks, other.blocks, kn_row_bytes(f, N));
            best()->encode(f, x, weight, N, weighted.blocks);
            double was = weighted_error(f, x, weight, N, plain.blocks),
                   is = weighted_error(f, x, weight, N, weighted.blocks);
            if (!(is <= (f == KN_Q8_0 || f == KN_MXFP4 ? 1 : 0.99) * was))
                fail_msg("%s, kind %d: weighted error %g, without weights %g", kn_format_info(f)->name, kind, is, was);
            for (int isa = KN_ISA_SCALAR; isa <= KN_ISA_AVX512; isa++) {
                kn_ops((enum kn_isa)isa)->encode(f, x, weight, N, other.blocks);
                assert_memory_equal(weighted.blocks, other.blocks, kn_row_bytes(f, N));
            }
        }
}

/* Tolerance for rounding scales to half precision, which may go either way: a scale is off by 2^-12 of itself, or by
 * 2^-25 where it is that small, times the largest number it is multiplied by. */
static double luck(enum kn_format f, const float *x, size_t n)
{
    static const double largest[KN_FORMAT_COUNT] = {
        [KN_Q8_0] = 127,
        [KN_Q4_0] = 8,
        [KN_Q4_1] = 15,
        [KN_Q5_0] = 16,
        [KN_Q5_1] = 31,
        [KN_IQ4_NL] = 127,
        [KN_Q4_K] = 63 * 15,
        [KN_Q5_K] = 63 * 31,
        [KN_Q6_K] = 127 * 32,
        [KN_Q2_K] = 15 * 3,
        [KN_Q3_K] = 31 * 4,
        [KN_IQ4_XS] = 31 * 127,
        [KN_IQ2_XXS] = 31 * 43 / 8.0,
        [KN_IQ2_XS] = 31 * 43 / 8.0,
        [KN_IQ2_S] = 31 * 43 / 8.0,
        [KN_IQ3_XXS] = 31 * 31 / 2.0,
        [KN_IQ3_S] = 31 * 15,
        [KN_IQ1_S] = 15 * 9 / 8.0,
        [KN_IQ1_M] = 15 * 9 / 8.0,
        [KN_NVFP4] = 6 * 0x1p16, /* steps are 2^-9 where scales are small */
    };
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return ((double)most * 0x1p-12 + largest[f] * 0x1p-25) * sqrt((double)n);
}

/* Tolerance per block, as a factor. The search sums in float and rounds scales to halves afterwards, hence 1 + 1e-5;
 * two or three bits with scales of 15 or 31 steps cannot compensate for a scale that one outlier determines. A grid has
 * several points for nearly equal values, with steps of different ratios, and groups that choose different ones settle
 * for a d that fits neither. */
static double slack(enum kn_format f, enum kind kind)
{
    bool outliers = kind == OUTLIER || kind == SPARSE;
    if (kn_grid(f) && kind == FAR_OFF)
        return 1.2;
    if (f == KN_IQ1_S || f == KN_IQ1_M) /* eight scales, and three values: one step cannot be traded for another */
        return 1.3;
    return f == KN_Q2_K && outliers ? 1.6 : f == KN_Q3_K && outliers ? 1.1 : f <= KN_MXFP4 ? 1 + 1e-5 : 1.05;
}

#ifdef __SANITIZE_ADDRESS__
#define N_SEED 4 /* the memory is the same for all */
#else
#define N_SEED 40
#endif

static void the_search_is_never_worse_than_the_plain_rule(void **state)
{
    (void)state;
    static float x[N];
    static struct room plain, found;
    for (int k = 0; k < N_BLOCK_FORMAT; k++)
        for (int kind = 0; kind < N_KIND; kind++)
            for (uint64_t seed = 0; seed < N_SEED; seed++) {
                enum kn_format f = block_formats[k];
                if ((f == KN_MXFP4 && kind == HUGE_ONES) || (f == KN_NVFP4 && kind >= LARGE))
                    continue; /* values above 2^28, or 2688, saturate: see huge_values_saturate() */
                size_t n = (size_t)kn_format_info(f)->block_values;
                fill(x, N, (enum kind)kind, seed);
                for (size_t at = 0; at < N; at += n) {
                    plain_encode(f, x + at, plain.blocks);
                    best()->encode(f, x + at, NULL, n, found.blocks);
                    double is = squared_error(f, x + at, n, found.blocks);
                    double was = squared_error(f, x + at, n, plain.blocks);
                    if (!(is <= was * slack(f, (enum kind)kind)) && !(sqrt(is) <= 2 * luck(f, x + at, n)) &&
                        isfinite(was))
                        fail_msg("%s, kind %d, seed %d, block %d: error %.9g, plain %.9g", kn_format_info(f)->name,
                                 kind, (int)seed, (int)(at / n), sqrt(is), sqrt(was));
                    assert_true(isfinite(is));
                }
            }
}

/* Error limits on normal values: a hundredth above the measured errors of the search; the plain encoder has
 * 0.00535, 0.0785, 0.0182, 0.115, 0.0841, 0.0777, 0.0420, 0.0374, 0.0377, 0.326, 0.197, 0.0791 and 0.0883. */
static void errors_are_those_of_the_search(void **state)
{
    (void)state;
    static const double most[N_BLOCK_FORMAT] = { 0.00505, 0.0703, 0.01665, 0.1124, 0.0800, 0.0694, 0.0397,
                                                 0.0332,  0.0340, 0.2620,  0.1440, 0.0731, 0.0735, 0.3313,
                                                 0.2880,  0.2397, 0.1780,  0.1292, 0.4473, 0.4184, 0.0950 };
    static float x[1 << 16];
    static uint16_t blocks[1 << 16];
    double square = 0;
    fill(x, 1 << 16, NORMAL, 3);
    for (int i = 0; i < 1 << 16; i++)
        square += (double)x[i] * (double)x[i];
    for (int k = 0; k < N_BLOCK_FORMAT; k++) {
        best()->encode(block_formats[k], x, NULL, 1 << 16, blocks);
        double error = sqrt(squared_error(block_formats[k], x, 1 << 16, blocks) / square);
        if (!(error < most[k]))
            fail_msg("%s: error %.6f, expected %.6f", kn_format_info(block_formats[k])->name, error, most[k]);
    }
}

static void plain_formats_round_to_nearest(void **state)
{
    (void)state;
    static float x[N], y[N];
    static struct room room;
    fill(x, N, OUTLIER, 4);
    best()->encode(KN_F32, x, NULL, N, room.blocks);
    assert_memory_equal(room.blocks, x, sizeof x);
    for (int f = KN_F16; f <= KN_BF16; f++) {
        best()->encode((enum kn_format)f, x, NULL, N, room.blocks);
        kn_row_decode((enum kn_format)f, room.blocks, N, y);
        for (int i = 0; i < N; i++)
            if (!(fabsf(x[i] - y[i]) <= fabsf(x[i]) * (f == KN_F16 ? 0x1p-11f : 0x1p-8f) + 0x1p-25f))
                fail_msg("%s: %.9g became %.9g", kn_format_info((enum kn_format)f)->name, (double)x[i], (double)y[i]);
    }
}

/* Zeros stay zero, and a block of one repeated value is decoded to within half precision; for a four-bit float,
 * to within a third, the distance of its neighbours. */
static void simple_blocks_come_back(void **state)
{
    (void)state;
    static float x[N], y[N];
    static struct room room;
    static const enum kind kinds[] = { ZERO, MINUS_ZERO, DENORMAL, CONSTANT, MINUS_CONSTANT };
    for (int k = 0; k < N_BLOCK_FORMAT; k++)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            fill(x, N, kinds[i], 5);
            best()->encode(block_formats[k], x, NULL, N, room.blocks);
            kn_row_decode(block_formats[k], room.blocks, N, y);
            for (int v = 0; v < N; v++)
                if (!(fabsf(x[v] - y[v]) <= fabsf(x[v]) * (block_formats[k] == KN_MXFP4   ? 0.15f
                                                           : block_formats[k] == KN_NVFP4 ? 0.04f
                                                                                          : 0x1p-10f) +
                                                0x1p-120f))
                    fail_msg("%s, kind %d: %.9g became %.9g", kn_format_info(block_formats[k])->name, kinds[i],
                             (double)x[v], (double)y[v]);
        }
}

/* Values beyond a format's range become its largest value with their sign. Formats with minimums have less than a
 * step of range below 0 here: in these only the values above 0 do. Grids lack points with several large sizes, and some
 * signs are wrong: in these values only stay finite. */
static void huge_values_saturate(void **state)
{
    (void)state;
    static const double most[KN_FORMAT_COUNT] = {
        [KN_Q8_0] = 65504.0 * 127,    [KN_Q6_K] = 65504.0 * 127 * 31,   [KN_MXFP4] = 0x1p28,
        [KN_Q4_0] = 65504.0 * 7,      [KN_Q5_0] = 65504.0 * 15,         [KN_IQ4_NL] = 65504.0 * 113,
        [KN_Q3_K] = 65504.0 * 31 * 3, [KN_IQ4_XS] = 65504.0 * 31 * 113, [KN_NVFP4] = 448 * 6
    };
    static float x[N], y[N];
    static struct room room;
    fill(x, N, HUGE_ONES, 6);
    for (int k = 0; k < N_BLOCK_FORMAT; k++) {
        enum kn_format f = block_formats[k];
        bool minimums = !(most[f] > 0), grid = kn_grid(f);
        best()->encode(f, x, NULL, N, room.blocks);
        kn_row_decode(f, room.blocks, N, y);
        for (int i = 0; i < N; i++)
            if (grid       ? !isfinite(y[i])
                : minimums ? !isfinite(y[i]) || (x[i] > 0 && y[i] < 7e5f)
                           : !(fabs((double)y[i]) >= most[f]) || x[i] * y[i] < 0)
                fail_msg("%s: %.9g became %.9g", kn_format_info(f)->name, (double)x[i], (double)y[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_instruction_sets_write_the_same),
        cmocka_unit_test(a_block_depends_on_its_own_values),
        cmocka_unit_test(weights_count),
        cmocka_unit_test(the_search_is_never_worse_than_the_plain_rule),
        cmocka_unit_test(errors_are_those_of_the_search),
        cmocka_unit_test(plain_formats_round_to_nearest),
        cmocka_unit_test(simple_blocks_come_back),
        cmocka_unit_test(huge_values_saturate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
