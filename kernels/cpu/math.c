/* kernels/cpu/math.c - exp, log, pow, sin and cos.
 *
 * Library functions differ between versions, machines and processors, but the same request must give
 * the same bytes on all of them. Everything here is made of + - * / and fma, which IEEE 754 rounds
 * correctly, so all machines agree to the last bit.
 *
 * The double functions are accurate to about one ulp. Where a double has too few bits (the reduced
 * argument, the logarithm that pow multiplies by y) the value is a pair of doubles hi, lo: their exact sum. */
#include "kernels/cpu/expf.h"
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#define LN2_HI 0x1.62e42fefa38p-1 /* 42 bits: its product with an exponent is exact */
#define LN2_LO 0x1.ef35793c7673p-45

struct pair {
    double hi, lo;
};

static uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* a + b and a * b, exactly. */
static struct pair two_sum(double a, double b)
{
    double s = a + b, t = s - a;
    return (struct pair){ s, (a - (s - t)) + (b - t) };
}

static struct pair two_product(double a, double b)
{
    double p = a * b;
    return (struct pair){ p, fma(a, b, -p) };
}

/* c[0] + c[1] x + ... + c[n-1] x^(n-1) */
static double horner(const double *c, int n, double x)
{
    double y = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        y = y * x + c[i];
    return y;
}

/* The nearest integer, for |x| < 2^51. */
static double nearest(double x)
{
    const double shift = 0x1.8p52;
    return (x + shift) - shift;
}

/* ---- exp ------------------------------------------------------------------------------------ */

float kn_expf(float x) { return kn_expf_inline(x); }

/* e^(hi + lo) = 2^n e^r, |r| <= ln2 / 2, by Taylor series; the first omitted term is 5e-18. */
static double exp_pair(double hi, double lo)
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

    double n = nearest(hi * 0x1.71547652b82fep+0);
    struct pair r = two_sum(hi - n * LN2_HI, lo - n * LN2_LO);
    double e = 1 + (r.hi + (r.hi * r.hi * horner(c, sizeof c / sizeof c[0], r.hi) + r.lo));

    int k = (int)n, half = k / 2; /* two factors: only one rounding into denormals */
    e *= from_bits((uint64_t)(half + 1023) << 52);
    return e * from_bits((uint64_t)(k - half + 1023) << 52);
}

double kn_exp(double x) { return exp_pair(x, 0); }

/* ---- log and pow ---------------------------------------------------------------------------- */

/* x = 2^k m, sqrt(1/2) <= m < sqrt(2), s = (m - 1) / (m + 1), log m = 2 (s + s^3/3 + s^5/5 + ...).
 * s and s^3/3 are pairs, so the result is accurate to 2^-60.  x must be positive and finite. */
static struct pair log_pair(double x)
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
    int64_t e = (int64_t)(bits_of(x) - bits_of(0x1.6a09e667f3bcdp-1)) >> 52;
    double m = from_bits(bits_of(x) - ((uint64_t)e << 52));
    k += (int)e;

    double f = m - 1, d = f + 2, d_lo = f - (d - 2); /* f is exact, and so is d + d_lo */
    double s = f / d, s_lo = (fma(-s, d, f) - s * d_lo) / d;
    struct pair z = two_product(s, s);
    z.lo += 2 * s * s_lo;

    struct pair cube = two_product(s, z.hi);
    cube.lo += s * z.lo + s_lo * z.hi;
    struct pair third = two_product(cube.hi, 0x1.5555555555555p-1);
    third.lo += cube.hi * 0x1.5555555555555p-55 + cube.lo * 0x1.5555555555555p-1;
    double rest = cube.hi * z.hi * horner(c, sizeof c / sizeof c[0], z.hi);

    struct pair a = two_sum(k * LN2_HI, 2 * s), b = two_sum(a.hi, third.hi);
    return two_sum(b.hi, a.lo + b.lo + third.lo + 2 * s_lo + k * LN2_LO + rest);
}

double kn_log(double x)
{
    if (x == 0)
        return -HUGE_VAL;
    if (!(x > 0))
        return (double)NAN; /* negative, or NaN */
    if (x == HUGE_VAL)
        return x;
    return log_pair(x).hi;
}

double kn_pow(double x, double y)
{
    if (y == 0 || x == 1)
        return 1;
    if (!(x > 0) || x == HUGE_VAL || !(y - y == 0))
        return kn_exp(y * kn_log(x));

    struct pair l = log_pair(x), p = two_product(y, l.hi);
    if (!(p.hi > -1000 && p.hi < 1000))
        return exp_pair(p.hi, 0);
    return exp_pair(p.hi, p.lo + y * l.lo);
}

/* ---- sine and cosine ------------------------------------------------------------------------ */

/* r = x - n pi/2, with pi/2 in three doubles. For |x| < 2^30 the first step is exact (the difference is a
 * multiple of 2^-53 below one), the second is a pair, and the error of the third, 2^-110 n, is far below
 * the smallest distance of a double in this range from a multiple of pi/2. */
static struct pair reduce_quarter(double x, double n)
{
    double r = fma(-n, 0x1.921fb54442d18p+0, x);
    struct pair p = two_product(n, 0x1.1a62633145c07p-54);
    struct pair d = two_sum(r, -p.hi);
    return two_sum(d.hi, d.lo - p.lo + n * 0x1.f1976b7ed8fbcp-110);
}

void kn_sincos(double x, double *s, double *c)
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
    double n = nearest(x * 0x1.45f306dc9c883p-1);
    struct pair r = reduce_quarter(x, n);
    double z = r.hi * r.hi, half = 0.5 * z, near_one = 1 - half;

    /* sin(hi + lo) = sin hi + lo cos hi;  cos(hi + lo) = cos hi - lo sin hi. The bits that 1 - z/2
     * loses are added back first. */
    double sine = r.hi + (r.hi * z * horner(sc, sizeof sc / sizeof sc[0], z) + r.lo * near_one);
    double cosine = near_one +
                    ((1 - near_one) - half + (z * z * horner(cc, sizeof cc / sizeof cc[0], z) - r.hi * r.lo));

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
