/* Encoders: what they write is decoded (by the kernels' own definition) to within half a step. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "moe/internal.h"

#define N 1024

enum { SMOOTH, OUTLIER, ONE_SIDED, ZERO, TINY, N_KIND };

static void make_row(int kind, float *x)
{
    for (int i = 0; i < N; i++) {
        x[i] = (float)(int32_t)(kn_mix((uint64_t)(i + 1000 * kind)) >> 32) * 0x1p-31f;
        if (kind == ZERO || kind == TINY)
            x[i] *= kind == TINY ? 1e-6f : 0;
        if (kind == ONE_SIDED)
            x[i] += 2;
        if (kind == OUTLIER && i % 97 == 0)
            x[i] *= 100;
    }
}

static float extent(const float *x, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* The largest error allowed in the block around value i: half a step, and the rounding of the
 * scales. */
static float allowed(enum kn_format f, const float *x, int i)
{
    float all = extent(x + i / 256 * 256, 256);
    switch (f) {
    case KN_F32:  return 0;
    case KN_F16:  return fabsf(x[i]) * 0x1p-11f + 0x1p-25f;
    case KN_BF16: return fabsf(x[i]) * 0x1p-8f;
    case KN_Q8_0: return extent(x + i / 32 * 32, 32) * 0.51f / 127 + 127 * 0x1p-24f;
    /* A range of at most 2 extents in 15 steps, by a scale in 63 steps of the largest of the block.
     * */
    case KN_Q4_K: return extent(x + i / 32 * 32, 32) * 1.02f / 15 + all / 63 + 15 * 63 * 0x1p-24f;
    default:      return extent(x + i / 16 * 16, 16) * 0.51f / 31 + all / 250 + 31 * 127 * 0x1p-24f;
    }
}

static void decoded_values_are_near(void **state)
{
    (void)state;
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        for (int kind = 0; kind < N_KIND; kind++) {
            float x[N], y[N];
            uint8_t row[N * 4 + 1];
            size_t bytes = kn_row_bytes((enum kn_format)f, N);
            make_row(kind, x);
            row[bytes] = 0xa5;
            moe_row_encode((enum kn_format)f, x, N, row);
            assert_int_equal(row[bytes], 0xa5);
            kn_row_decode((enum kn_format)f, row, N, y);
            for (int i = 0; i < N; i++)
                if (!(fabsf(x[i] - y[i]) <= allowed((enum kn_format)f, x, i)))
                    fail_msg("%s, row %d: value %d is %.9g, came back as %.9g",
                             kn_format_info((enum kn_format)f)->name, kind, i, (double)x[i],
                             (double)y[i]);
        }
}

/* Over smooth values the error is that of uniform steps: range / steps / sqrt(12). */
static void errors_are_those_of_the_format(void **state)
{
    (void)state;
    static const struct { enum kn_format f; double most; } kind[] = {
        { KN_Q8_0, 1.05 * 2 / 254 / 3.4641 }, { KN_Q6_K, 1.15 * 2 / 62 / 3.4641 },
        { KN_Q4_K, 1.15 * 2 / 15 / 3.4641 },
    };
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++) {
        float x[N], y[N];
        uint8_t row[N * 4];
        double sum = 0;
        make_row(SMOOTH, x);
        moe_row_encode(kind[k].f, x, N, row);
        kn_row_decode(kind[k].f, row, N, y);
        for (int i = 0; i < N; i++)
            sum += (double)(x[i] - y[i]) * (double)(x[i] - y[i]);
        if (sqrt(sum / N) > kind[k].most)
            fail_msg("%s: error %.5f, expected %.5f", kn_format_info(kind[k].f)->name,
                     sqrt(sum / N), kind[k].most);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoded_values_are_near),
        cmocka_unit_test(errors_are_those_of_the_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
