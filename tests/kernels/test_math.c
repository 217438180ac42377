/* Our exp, log, pow, sin and cos against the C library's long doubles on random arguments, and
 * against a table of hard ones. The table was made once with Python's mpmath at 400 bits: the
 * arguments of sin and cos include the doubles below 2^30 that are nearest to multiples of pi/2
 * (from the continued fractions of 2^e / (pi/2)), those of log the neighbours of 1 and of the
 * reduction's cut.
 *
 * One thread: not under MODE=tsan. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/kernels.h"

#define MOST_ULP 1.5 /* largest seen: exp 0.85, log 0.50, pow 1.09, sin and cos 0.78 */

static uint64_t seed = 1;

static double uniform(double lo, double hi)
{
    return lo + (hi - lo) * (double)(kn_mix(seed += KN_GOLDEN) >> 11) * 0x1p-53;
}

/* The distance of a result in units of its last place (for a float: bits 24, lowest -149). */
static double ulps(double got, long double want, int bits, int lowest)
{
    if ((long double)got == want || (isnan(got) && isnan((double)want)))
        return 0;
    if (!isfinite(got) || !isfinite((double)want))
        return got == (double)want ? 0 : HUGE_VAL;
    int e;
    frexpl(want, &e);
    long double ulp = ldexpl(1, e - bits > lowest ? e - bits : lowest);
    return (double)(fabsl((long double)got - want) / ulp);
}

static double ulps_f32(float got, long double want) { return ulps((double)got, want, 24, -149); }
static double ulps_f64(double got, long double want) { return ulps(got, want, 53, -1074); }

static void exp_of_a_float(void **state)
{
    (void)state;
    double worst = 0;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 4099) {
        uint32_t u = (uint32_t)bits;
        float x;
        memcpy(&x, &u, sizeof x);
        long double want = expl((long double)x);
        if (want >= 0x1p128L)
            want = HUGE_VALL;
        worst = fmax(worst, ulps_f32(kn_expf(x), want));
    }
    assert_true(worst < 1.1); /* all 2^32: 1.0954, at 0x1.4cba34p+2 */

    assert_true(kn_expf(0) == 1 && kn_expf(-0.0f) == 1 && isnan(kn_expf(NAN)));
    assert_true(kn_expf(INFINITY) == INFINITY && kn_expf(89) == INFINITY);
    assert_true(kn_expf(88.73f) == INFINITY && isfinite(kn_expf(88.72f)));
    assert_true(kn_expf(-INFINITY) == 0 && !signbit(kn_expf(-1000)) && kn_expf(-104) == 0);
    assert_true(kn_expf(-103.9f) == 0x1p-149f);
}

static void exp_and_log_of_a_double(void **state)
{
    (void)state;
    double worst_exp = 0, worst_log = 0;
    for (int i = 0; i < 200000; i++) {
        double x = i % 2 ? uniform(-745, 709) : uniform(-1, 1);
        worst_exp = fmax(worst_exp, ulps_f64(kn_exp(x), expl((long double)x)));
        double y = i % 2 ? uniform(0.5, 2) : ldexp(uniform(1, 2), (int)uniform(-1074, 1023));
        worst_log = fmax(worst_log, ulps_f64(kn_log(y), logl((long double)y)));
    }
    assert_true(worst_exp < MOST_ULP);
    assert_true(worst_log < MOST_ULP);

    assert_true(kn_exp(0) == 1 && kn_exp(-HUGE_VAL) == 0 && kn_exp(HUGE_VAL) == HUGE_VAL);
    assert_true(kn_exp(709.79) == HUGE_VAL && kn_exp(-746) == 0 && isnan(kn_exp((double)NAN)));
    assert_true(kn_log(1) == 0 && kn_log(0) == -HUGE_VAL && kn_log(HUGE_VAL) == HUGE_VAL);
    assert_true(isnan(kn_log(-1)) && isnan(kn_log((double)NAN)));
}

static void powers(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        double x = i % 2 ? uniform(0.1, 10) : ldexp(uniform(1, 2), (int)uniform(-1074, 1023));
        double y = uniform(-740, 700) / (double)fmaxl(1e-3L, fabsl(logl((long double)x)));
        long double want = powl((long double)x, (long double)y);
        if (want < (long double)DBL_MIN || want > (long double)DBL_MAX)
            continue;
        worst = fmax(worst, ulps_f64(kn_pow(x, y), want));
    }
    assert_true(worst < MOST_ULP);

    /* Frequencies of a rotation: base^(-2 i / n). */
    for (int i = 0; i < 64; i++)
        assert_true(ulps_f64(kn_pow(1e6, -i / 64.0), powl(1e6L, -i / 64.0L)) < 1);
    assert_true(kn_pow(5, 0) == 1 && kn_pow(1, 1e300) == 1 && kn_pow(2, 10) == 1024);
    assert_true(kn_pow(2, 1e9) == HUGE_VAL && kn_pow(2, -1e9) == 0 && kn_pow(0, 2) == 0);
    assert_true(kn_pow(4, 0.5) == 2 && kn_pow(0.5, HUGE_VAL) == 0 && isnan(kn_pow(2, (double)NAN)));
}

static void sine_and_cosine(void **state)
{
    (void)state;
    double worst = 0, s, c;
    for (int i = 0; i < 300000; i++) {
        double x = i % 3 == 0 ? uniform(-4, 4) : uniform(-1, 1) * (i % 3 == 1 ? 0x1p30 : 131072);
        kn_sincos(x, &s, &c);
        worst = fmax(worst, ulps_f64(s, sinl((long double)x)));
        worst = fmax(worst, ulps_f64(c, cosl((long double)x)));
    }
    assert_true(worst < MOST_ULP);

    kn_sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
    kn_sincos(0x1p30, &s, &c);
    assert_true(isnan(s) && isnan(c));
    kn_sincos((double)NAN, &s, &c);
    assert_true(isnan(s) && isnan(c));
}

/* ---- the table ------------------------------------------------------------------------------ */

static const double sincos_table[][3] = {
    /* x, sin x, cos x */
    { 0x1.6c6cbc45dc8dep+5, 0x1.0000000000000p+0, -0x1.6d61b58c99c43p-61 },
    { 0x1.6c6cbc45dc8dep+6, -0x1.6d61b58c99c43p-60, -0x1.0000000000000p+0 },
    { 0x1.b951f1572eba5p+23, -0x1.0000000000000p+0, -0x1.f54f5227a4e84p-60 },
    { 0x1.6c6cbc45dc8dep+7, 0x1.6d61b58c99c43p-59, 0x1.0000000000000p+0 },
    { 0x1.b951f1572eba5p+24, 0x1.f54f5227a4e84p-59, -0x1.0000000000000p+0 },
    { 0x1.6c6cbc45dc8dep+8, 0x1.6d61b58c99c43p-58, 0x1.0000000000000p+0 },
    { 0x1.b951f1572eba5p+25, -0x1.f54f5227a4e84p-58, 0x1.0000000000000p+0 },
    { 0x1.fffffff800000p+29, -0x1.fdb6a55d0ac16p-1, -0x1.82ac4b53cde6bp-4 },
    { 0x1.56e1fc2f8f359p-997, 0x1.56e1fc2f8f359p-997, 0x1.0000000000000p+0 },
    { 0x1.8000000000000p+1, 0x1.210386db6d55bp-3, -0x1.fae04be85e5d2p-1 },
    { 0x1.921fb54442d18p-1, 0x1.6a09e667f3bccp-1, 0x1.6a09e667f3bcdp-1 },
    { 0x1.e240c00000000p+16, -0x1.fff56feed772bp-1, 0x1.9fff2c9c4e6e3p-7 },
    { -0x1.d6f3458900000p+29, -0x1.fa9c2e009352cp-1, -0x1.28626456f257ap-3 },
    { 0x1.6000000000000p+4, -0x1.220a29f6eb9f4p-7, -0x1.fffadd8d4acdap-1 },
};

static const double log_table[][2] = {
    /* x, log x */
    { 0x1.56e1fc2f8f359p-997, -0x1.5963447f87fb5p+9 },  { 0x1.0000000000000p-1, -0x1.62e42fefa39efp-1 },
    { 0x1.6a09e667f3bcdp-1, -0x1.62e42fefa39eep-2 },    { 0x1.fffffffffffffp-1, -0x1.0000000000000p-53 },
    { 0x1.0000000000001p+0, 0x1.fffffffffffffp-53 },    { 0x1.8000000000000p+0, 0x1.9f323ecbf984cp-2 },
    { 0x1.86a0000000000p+16, 0x1.7069e2aa2aa5bp+3 },    { 0x1.e42d130773b76p+1023, 0x1.62dd08fdc6f88p+9 },
    { 0x0.0000000000001p-1022, -0x1.74385446d71c3p+9 }, { 0x0.02a56da5077c9p-1022, -0x1.647bf6d0b78a9p+9 },
    { 0x1.6a09e667f3bccp+0, 0x1.62e42fefa39eep-2 },     { 0x1.6a09e667f3bcdp+0, 0x1.62e42fefa39f0p-2 },
};

static const double pow_table[][3] = {
    /* x, y, x^y */
    { 0x1.e848000000000p+19, -0x1.f800000000000p-1, 0x1.4d1c97f4e952fp-20 },
    { 0x1.3880000000000p+13, -0x1.0000000000000p-6, 0x1.bb5fad00ab22cp-1 },
    { 0x1.000001ad7f29bp+0, 0x1.a13b860000000p+32, 0x1.d941ae6e762d4p+1009 },
    { 0x1.3333333333333p-2, -0x1.2600000000000p+9, 0x1.4315b9e094aa8p+1021 },
    { 0x1.6666666666666p+0, 0x1.07a0000000000p+11, 0x1.b317b151f40c3p+1023 },
    { 0x1.0000000000000p+1, 0x1.ffffffff29407p+9, 0x1.fffffdac97617p+1023 },
    { 0x1.ccccccccccccdp-1, 0x1.b580000000000p+12, 0x0.00000000003f1p-1022 },
    { 0x0.0000000000001p-1022, 0x1.0000000000000p-1, 0x1.0000000000000p-537 },
    { 0x1.e42d130773b76p+1023, -0x1.0cccccccccccdp+0, 0x0.0p+0 },
    { 0x1.8000000000000p+1, 0x1.9000000000000p+8, 0x1.fab44d9ee9112p+633 },
    { 0x1.4f8b588e368f1p-17, 0x1.0200000000000p+6, 0x0.0000000000006p-1022 },
};

static const double exp_table[][2] = {
    /* x, e^x */
    { 0x1.62e3d70a3d70ap+9, 0x1.fe9ce5c4c52b4p+1023 },  { -0x1.748cccccccccdp+9, 0x0.0000000000001p-1022 },
    { -0x1.6240000000000p+9, 0x0.e6cf6d08897acp-1022 }, { 0x1.70ef54646d497p-57, 0x1.0000000000000p+0 },
    { 0x1.62e42fefa39efp-2, 0x1.6a09e667f3bccp+0 },     { -0x1.62e42fefa39f0p-2, 0x1.6a09e667f3bccp-1 },
    { 0x1.0000000000000p+0, 0x1.5bf0a8b145769p+1 },     { -0x1.2cb3333333333p+8, 0x1.225720438e36dp-434 },
};

#define LENGTH(table) (sizeof table / sizeof table[0])

static void hard_arguments(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(sincos_table); i++) {
        double s, c;
        kn_sincos(sincos_table[i][0], &s, &c);
        assert_true(ulps_f64(s, (long double)sincos_table[i][1]) <= 1);
        assert_true(ulps_f64(c, (long double)sincos_table[i][2]) <= 1);
    }
    for (size_t i = 0; i < LENGTH(log_table); i++)
        assert_true(ulps_f64(kn_log(log_table[i][0]), (long double)log_table[i][1]) <= 1);
    for (size_t i = 0; i < LENGTH(pow_table); i++)
        assert_true(ulps_f64(kn_pow(pow_table[i][0], pow_table[i][1]), (long double)pow_table[i][2]) <= 1);
    for (size_t i = 0; i < LENGTH(exp_table); i++)
        assert_true(ulps_f64(kn_exp(exp_table[i][0]), (long double)exp_table[i][1]) <= 1);
}

/* Compares the bits of results, so that a change of any operation or constant fails. */
static void the_bits_are_frozen(void **state)
{
    (void)state;
    uint64_t hash = 0;
    for (int i = 0; i < 4096; i++) {
        double x = uniform(-80, 80), y[5];
        y[0] = (double)kn_expf((float)x);
        y[1] = kn_exp(x);
        y[2] = kn_log(x + 81);
        y[3] = kn_pow(x + 81, x / 8);
        kn_sincos(x * x * x, &y[4], &x);
        for (int j = 0; j < 5; j++) {
            uint64_t u;
            memcpy(&u, &y[j], sizeof u);
            hash = kn_mix(hash + u + KN_GOLDEN);
        }
    }
    assert_int_equal(hash, UINT64_C(0x6d9f758bd3fce2ee));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_of_a_float), cmocka_unit_test(exp_and_log_of_a_double),
        cmocka_unit_test(powers),         cmocka_unit_test(sine_and_cosine),
        cmocka_unit_test(hard_arguments), cmocka_unit_test(the_bits_are_frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
