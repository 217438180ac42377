/* Conversions and arithmetic with directed rounding, one lane at a time: exact, and seldom used.
 *
 * A value that has been rounded to odd in f64 (the last bit set if anything was lost) rounds correctly once more to
 * f16 or bf16, in any mode. */
#include <fenv.h>
#include <math.h>
#include <string.h>

#include "tests/gpu/ptx.h"

static uint32_t float_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return v != v ? 0x7fffffffu : bits;
}

/* x as f16 or bf16: the mantissa is cut to the bits that the exponent leaves, then raised by the mode. */
uint16_t ptx_to_half(double x, enum ptx_type_kind kind, enum ptx_rounding rounding)
{
    int mantissa = kind == KIND_BFLOAT ? 7 : 10, least = kind == KIND_BFLOAT ? -126 : -14;
    uint16_t infinite = kind == KIND_BFLOAT ? 0x7f80 : 0x7c00, sign = signbit(x) ? 0x8000 : 0;
    if (x != x)
        return 0x7fff;
    double m = fabs(x);
    if (m == 0)
        return sign;
    if (isinf(m))
        return sign | infinite;
    int e;
    frexp(m, &e);
    e = e - 1 < least ? least : e - 1;
    double scaled = ldexp(m, mantissa - e), floor_ = floor(scaled), rest = scaled - floor_;
    uint64_t n = (uint64_t)floor_;
    bool up = rounding == ROUND_nearest ? rest > 0.5 || (rest == 0.5 && (n & 1))
              : rounding == ROUND_zero  ? false
              : rounding == ROUND_up    ? rest > 0 && !sign
                                        : rest > 0 && sign;
    n += up;
    uint64_t bits = n +
                    ((uint64_t)(e - least) << mantissa); /* the leading bit of a normal number raises the exponent */
    if (bits >= infinite) {
        bool away = rounding == ROUND_nearest || (rounding == ROUND_up && !sign) || (rounding == ROUND_down && sign);
        bits = away ? infinite : infinite - 1u;
    }
    return (uint16_t)(sign | bits);
}

/* a * b + c rounded to odd; a * b is exact. */
static double fma_to_odd(double a, double b, double c)
{
    double p = a * b, s = p + c;
    if (!isfinite(s))
        return s;
    double back = s - p, lost = (p - (s - back)) + (c - back);
    if (lost != 0 && !(bits_of_double(s) & 1))
        s = double_of(bits_of_double(s) + ((lost > 0) == (s > 0) ? 1 : -1ull));
    return s;
}

uint16_t fma_f16_bits(uint16_t a, uint16_t b, uint16_t c)
{
    return ptx_to_half(fma_to_odd(ptx_half_to_float(a), ptx_half_to_float(b), ptx_half_to_float(c)), KIND_FLOAT,
                       ROUND_nearest);
}

uint16_t fma_bf16_bits(uint16_t a, uint16_t b, uint16_t c)
{
    return ptx_to_half(
        fma_to_odd(float_of((uint32_t)a << 16), float_of((uint32_t)b << 16), float_of((uint32_t)c << 16)), KIND_BFLOAT,
        ROUND_nearest);
}

static void set_rounding(int rounding)
{
    static const int modes[] = { FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD };
    fesetround(modes[rounding]);
}

uint64_t ptx_directed(int kind, int rounding, int bytes, uint64_t ba, uint64_t bb, uint64_t bc)
{
    volatile double r = 0;
    volatile float rf = 0;
    volatile double a = double_of(ba), b = double_of(bb), c = double_of(bc);
    volatile float fa = float_of((uint32_t)ba), fb = float_of((uint32_t)bb), fc = float_of((uint32_t)bc);
    set_rounding(rounding);
    switch (kind) {
    case DIRECTED_add:
        r = a + b, rf = fa + fb;
        break;
    case DIRECTED_sub:
        r = a - b, rf = fa - fb;
        break;
    case DIRECTED_mul:
        r = a * b, rf = fa * fb;
        break;
    case DIRECTED_fma:
        r = fma(a, b, c), rf = fmaf(fa, fb, fc);
        break;
    case DIRECTED_div:
        r = a / b, rf = fa / fb;
        break;
    case DIRECTED_rcp:
        r = 1 / a, rf = 1 / fa;
        break;
    default:
        r = sqrt(a), rf = sqrtf(fa);
    }
    set_rounding(ROUND_nearest);
    if (bytes == 4)
        return float_bits(rf);
    return r != r ? 0x7fffffffffffffffull : bits_of_double(r);
}

/* An integer of n bytes, with its sign. */
static __int128 integer_of(uint64_t bits, int bytes, bool is_signed)
{
    int unused = 64 - 8 * bytes;
    return is_signed ? (__int128)((int64_t)(bits << unused) >> unused) : (__int128)(bits << unused >> unused);
}

static uint64_t clamp_integer(__int128 v, int bytes, bool is_signed)
{
    __int128 least = is_signed ? -((__int128)1 << (8 * bytes - 1)) : 0;
    __int128 most = ((__int128)1 << (8 * bytes - is_signed)) - 1;
    return (uint64_t)(v < least ? least : v > most ? most : v);
}

static uint64_t float_to_integer(double x, struct ptx_conversion c)
{
    bool is_signed = c.to_kind == KIND_SIGNED;
    if (x != x) {
        bool zero = c.from_bytes != 8 && c.to_bytes != 8;
        return zero ? 0 : 1ull << (8 * c.to_bytes - 1);
    }
    double v = c.rounding == ROUND_nearest ? rint(x)
               : c.rounding == ROUND_zero  ? trunc(x)
               : c.rounding == ROUND_down  ? floor(x)
                                           : ceil(x);
    __int128 n = v >= 0x1p100 ? (__int128)1 << 100 : v <= -0x1p100 ? -((__int128)1 << 100) : (__int128)v;
    return clamp_integer(n, c.to_bytes, is_signed);
}

/* A finite value as f64 rounded to odd, from an integer of 64 bits. */
static double integer_to_odd(__int128 n)
{
    bool negative = n < 0;
    unsigned __int128 m = negative ? -(unsigned __int128)n : (unsigned __int128)n;
    int shift = 0;
    bool lost = false;
    for (; m >> 53; shift++) {
        lost |= m & 1;
        m >>= 1;
    }
    double v = ldexp((double)(uint64_t)(m | lost), shift);
    return negative ? -v : v;
}

uint64_t ptx_convert(struct ptx_conversion c, uint64_t bits)
{
    bool from_float = c.from_kind == KIND_FLOAT || c.from_kind == KIND_BFLOAT;
    bool to_float = c.to_kind == KIND_FLOAT || c.to_kind == KIND_BFLOAT;
    if (!from_float && !to_float) {
        __int128 n = integer_of(bits, c.from_bytes, c.from_kind == KIND_SIGNED);
        return c.saturate ? clamp_integer(n, c.to_bytes, c.to_kind == KIND_SIGNED) : (uint64_t)n;
    }
    double x = !from_float                  ? integer_to_odd(integer_of(bits, c.from_bytes, c.from_kind == KIND_SIGNED))
               : c.from_kind == KIND_BFLOAT ? (double)float_of((uint32_t)bits << 16)
               : c.from_bytes == 2          ? (double)ptx_half_to_float((uint16_t)bits)
               : c.from_bytes == 4          ? (double)float_of((uint32_t)bits)
                                            : double_of(bits);
    if (!to_float)
        return float_to_integer(x, c);
    if (c.integral)
        x = c.rounding == ROUND_nearest ? rint(x)
            : c.rounding == ROUND_zero  ? trunc(x)
            : c.rounding == ROUND_down  ? floor(x)
                                        : ceil(x);
    if (c.saturate)
        x = x > 0 ? (x < 1 ? x : 1) : 0;
    if (c.to_bytes == 2)
        return ptx_to_half(x, (enum ptx_type_kind)c.to_kind, (enum ptx_rounding)c.rounding);
    volatile double source = x;
    volatile float narrow;
    volatile double wide;
    __int128 n = from_float ? 0 : integer_of(bits, c.from_bytes, c.from_kind == KIND_SIGNED);
    set_rounding(c.rounding);
    narrow = (float)source;
    wide = from_float ? source : (double)(int64_t)(n >> 32) * 0x1p32 + (double)(uint32_t)n; /* rounds once */
    set_rounding(ROUND_nearest);
    return c.to_bytes == 4 ? float_bits(narrow) : wide != wide ? 0x7fffffffffffffffull : bits_of_double(wide);
}
