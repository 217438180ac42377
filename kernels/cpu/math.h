/* kernels/cpu/math.h - exp, log, pow, sin and cos of doubles.  Valid in C and in CUDA C.
 *
 * Library functions differ between versions, machines and processors, but the same request must give
 * the same bytes on all of them. Everything here is made of + - * / and fma, which IEEE 754 rounds
 * correctly, so all machines agree to the last bit.
 *
 * The functions are accurate to about one ulp. Where a double has too few bits (the reduced argument, the
 * logarithm that pow multiplies by y) the value is a pair of doubles hi, lo: their exact sum. */
#ifndef KERNELS_CPU_MATH_H
#define KERNELS_CPU_MATH_H

#include "kernels/cpu/expf.h"

#define KN_LN2_HI 0x1.62e42fefa38p-1 /* 42 bits: its product with an exponent is exact */
#define KN_LN2_LO 0x1.ef35793c7673p-45

struct kn_pair {
    double hi, lo;
};

KN_SHARED uint64_t kn_bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

KN_SHARED double kn_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* a + b and a * b, exactly. */
KN_SHARED struct kn_pair kn_two_sum(double a, double b)
{
    double s = a + b, t = s - a;
    return (struct kn_pair){ s, (a - (s - t)) + (b - t) };
}

KN_SHARED struct kn_pair kn_two_product(double a, double b)
{
    double p = a * b;
    return (struct kn_pair){ p, fma(a, b, -p) };
}

/* c[0] + c[1] x + ... + c[n-1] x^(n-1) */
KN_SHARED double kn_horner(const double *c, int n, double x)
{
    double y = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        y = y * x + c[i];
    return y;
}

/* The nearest integer, for |x| < 2^51. */
KN_SHARED double kn_nearest(double x)
{
    const double shift = 0x1.8p52;
    return (x + shift) - shift;
}

/* ---- exp ------------------------------------------------------------------------------------ */

/* e^(hi + lo) = 2^n e^r, |r| <= ln2 / 2, by Taylor series; the first omitted term is 5e-18. */
KN_SHARED double kn_exp_pair(double hi, double lo)
{
    static const double c[] = {
        /* 1 / (i + 2)! */
        1.0 / 2,     1.0 / 6,      1.0 / 24,      1.0 / 120,      1.0 / 720,       1.0 / 5040,
        1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
    };
    if (hi != hi)
        return hi;
    if (hi > 710)
        return HUGE_VAL;
    if (hi < -746)
        return 0;

    double n = kn_nearest(hi * 0x1.71547652b82fep+0);
    struct kn_pair r = kn_two_sum(hi - n * KN_LN2_HI, lo - n * KN_LN2_LO);
    double e = 1 + (r.hi + (r.hi * r.hi * kn_horner(c, sizeof c / sizeof c[0], r.hi) + r.lo));

    int k = (int)n, half = k / 2; /* two factors: only one rounding into denormals */
    e *= kn_from_bits((uint64_t)(half + 1023) << 52);
    return e * kn_from_bits((uint64_t)(k - half + 1023) << 52);
}

KN_SHARED double kn_exp_inline(double x) { return kn_exp_pair(x, 0); }

/* ---- log and pow ---------------------------------------------------------------------------- */

/* x = 2^k m, sqrt(1/2) <= m < sqrt(2), s = (m - 1) / (m + 1), log m = 2 (s + s^3/3 + s^5/5 + ...).
 * s and s^3/3 are pairs, so the result is accurate to 2^-60.  x must be positive and finite. */
KN_SHARED struct kn_pair kn_log_pair(double x)
{
    static const double c[] = {
        /* 2 / (2i + 5) */
        2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23,
    };
    int k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    int64_t e = (int64_t)(kn_bits_of(x) - kn_bits_of(0x1.6a09e667f3bcdp-1)) >> 52;
    double m = kn_from_bits(kn_bits_of(x) - ((uint64_t)e << 52));
    k += (int)e;

    double f = m - 1, d = f + 2, d_lo = f - (d - 2); /* f is exact, and so is d + d_lo */
    double s = f / d, s_lo = (fma(-s, d, f) - s * d_lo) / d;
    struct kn_pair z = kn_two_product(s, s);
    z.lo += 2 * s * s_lo;

    struct kn_pair cube = kn_two_product(s, z.hi);
    cube.lo += s * z.lo + s_lo * z.hi;
    struct kn_pair third = kn_two_product(cube.hi, 0x1.5555555555555p-1);
    third.lo += cube.hi * 0x1.5555555555555p-55 + cube.lo * 0x1.5555555555555p-1;
    double rest = cube.hi * z.hi * kn_horner(c, sizeof c / sizeof c[0], z.hi);

    struct kn_pair a = kn_two_sum(k * KN_LN2_HI, 2 * s), b = kn_two_sum(a.hi, third.hi);
    return kn_two_sum(b.hi, a.lo + b.lo + third.lo + 2 * s_lo + k * KN_LN2_LO + rest);
}

KN_SHARED double kn_log_inline(double x)
{
    if (x == 0)
        return -HUGE_VAL;
    if (!(x > 0))
        return (double)NAN; /* negative, or NaN */
    if (x == HUGE_VAL)
        return x;
    return kn_log_pair(x).hi;
}

KN_SHARED double kn_pow_inline(double x, double y)
{
    if (y == 0 || x == 1)
        return 1;
    if (!(x > 0) || x == HUGE_VAL || !(y - y == 0))
        return kn_exp_inline(y * kn_log_inline(x));

    struct kn_pair l = kn_log_pair(x), p = kn_two_product(y, l.hi);
    if (!(p.hi > -1000 && p.hi < 1000))
        return kn_exp_pair(p.hi, 0);
    return kn_exp_pair(p.hi, p.lo + y * l.lo);
}

/* ---- sine and cosine ------------------------------------------------------------------------ */

/* r = x - n pi/2, with pi/2 in three doubles. For |x| < 2^30 the first step is exact (the difference is a
 * multiple of 2^-53 below one), the second is a pair, and the error of the third, 2^-110 n, is far below
 * the smallest distance of a double in this range from a multiple of pi/2. */
KN_SHARED struct kn_pair kn_reduce_quarter(double x, double n)
{
    double r = fma(-n, 0x1.921fb54442d18p+0, x);
    struct kn_pair p = kn_two_product(n, 0x1.1a62633145c07p-54);
    struct kn_pair d = kn_two_sum(r, -p.hi);
    return kn_two_sum(d.hi, d.lo - p.lo + n * 0x1.f1976b7ed8fbcp-110);
}

KN_SHARED void kn_sincos_inline(double x, double *s, double *c)
{
    static const double sc[] = {
        /* (-1)^i / (2i + 3)! from i = 1 */
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000,
    };
    static const double cc[] = {
        /* the same for (2i + 4)! */
        1.0 / 24,        -1.0 / 720,         1.0 / 40320,          -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000, -1.0 / 6402373705728000,
    };
    if (!(x > -0x1p30 && x < 0x1p30)) {
        *s = *c = (double)NAN;
        return;
    }
    double n = kn_nearest(x * 0x1.45f306dc9c883p-1);
    struct kn_pair r = kn_reduce_quarter(x, n);
    double z = r.hi * r.hi, half = 0.5 * z, near_one = 1 - half;

    /* sin(hi + lo) = sin hi + lo cos hi;  cos(hi + lo) = cos hi - lo sin hi. The bits that 1 - z/2
     * loses are added back first. */
    double sine = r.hi + (r.hi * z * kn_horner(sc, sizeof sc / sizeof sc[0], z) + r.lo * near_one);
    double cosine = near_one +
                    ((1 - near_one) - half + (z * z * kn_horner(cc, sizeof cc / sizeof cc[0], z) - r.hi * r.lo));

    switch ((int64_t)n & 3) {
    case 0:
        *s = sine;
        *c = cosine;
        break;
    case 1:
        *s = cosine;
        *c = -sine;
        break;
    case 2:
        *s = -sine;
        *c = -cosine;
        break;
    default:
        *s = -cosine;
        *c = sine;
        break;
    }
}

#endif
