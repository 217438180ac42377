/* The arithmetic of a warp: each row of operations.h becomes a loop over 32 lanes, which the compiler makes vectors of.
 *
 * Results that are NaN are the one NaN that a GPU writes, not the processor's. */
#include <math.h>
#include <string.h>

#include "tests/gpu/ptx.h"

typedef uint32_t row_u32 __attribute__((may_alias));
typedef uint64_t row_u64 __attribute__((may_alias));
typedef float row_f32 __attribute__((may_alias));
typedef double row_f64 __attribute__((may_alias));

#define NAN_F32 0x7fffffffu
#define NAN_F64 0x7fffffffffffffffull

/* ---- functions that the expressions use --------------------------------------------------------------- */

static inline int32_t saturate_s32(int64_t v)
{
    return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v;
}
static inline uint64_t funnel(uint32_t high, uint32_t low) { return (uint64_t)high << 32 | low; }

static inline uint32_t reverse_bits(uint32_t v)
{
    v = (v >> 1 & 0x55555555) | (v & 0x55555555) << 1;
    v = (v >> 2 & 0x33333333) | (v & 0x33333333) << 2;
    v = (v >> 4 & 0x0f0f0f0f) | (v & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(v);
}

static inline uint64_t extract_bits(uint64_t a, uint32_t at, uint32_t n, uint32_t width, bool is_signed)
{
    if (!n)
        return 0;
    uint32_t last = at + n - 1 < width - 1 ? at + n - 1 : width - 1;
    bool sign = is_signed && a >> last & 1;
    uint64_t v = at < width ? a >> at : 0;
    uint32_t kept = at < width ? (n < width - at ? n : width - at) : 0;
    uint64_t low = kept >= 64 ? ~0ull : (1ull << kept) - 1;
    return (v & low) | (sign ? ~low : 0);
}

static inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t all = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t s = selector >> 4 * i, byte = (uint32_t)(all >> 8 * (s & 7)) & 255;
        byte = s & 8 ? (byte & 128 ? 255 : 0) : byte;
        r |= byte << 8 * i;
    }
    return r;
}

#define DP4A(S, T)                                                                                                     \
    (c +                                                                                                               \
     (uint32_t)((S)a * (T)b + (S)(a >> 8) * (T)(b >> 8) + (S)(a >> 16) * (T)(b >> 16) + (S)(a >> 24) * (T)(b >> 24)))
#define DP2A(S, T, at)                                                                                                 \
    (c + (uint32_t)(S)a * (uint32_t)(T)(b >> at) + (uint32_t)(S)(a >> 16) * (uint32_t)(T)(b >> (at + 8)))

static inline uint32_t byte_differences(uint32_t a, uint32_t b)
{
    uint32_t r = 0;
    for (int k = 0; k < 32; k += 8) {
        int d = (int)(a >> k & 255) - (int)(b >> k & 255);
        r |= (uint32_t)(d < 0 ? -d : d) << k;
    }
    return r;
}

/* The expression of x and y, the low halves, then the high ones. */
#define PAIR(T, expression)                                                                                            \
    ({                                                                                                                 \
        T x = (T)a, y = (T)b;                                                                                          \
        uint32_t low_ = (uint16_t)(expression);                                                                        \
        x = (T)(a >> 16), y = (T)(b >> 16);                                                                            \
        low_ | (uint32_t)(uint16_t)(expression) << 16;                                                                 \
    })

static inline float clamp_01(float v) { return v > 0 ? (v < 1 ? v : 1) : 0; }
static inline int32_t f32_to_s32(float v)
{
    return v != v ? 0 : v >= 0x1p31f ? INT32_MAX : v < -0x1p31f ? INT32_MIN : (int32_t)v;
}

#define SMALLER_LARGER(T, bits, of)                                                                                    \
    static inline T smaller_##bits(T a, T b)                                                                           \
    {                                                                                                                  \
        return a != a ? b : b != b ? a : a < b ? a : b < a ? b : of(BITS_##bits(a) | BITS_##bits(b));                  \
    }                                                                                                                  \
    static inline T larger_##bits(T a, T b)                                                                            \
    {                                                                                                                  \
        return a != a ? b : b != b ? a : a > b ? a : b > a ? b : of(BITS_##bits(a) & BITS_##bits(b));                  \
    }
#define BITS_f32(v) bits_of(v)
#define BITS_f64(v) bits_of_double(v)
SMALLER_LARGER(float, f32, float_of)
SMALLER_LARGER(double, f64, double_of)

/* f16 by integers: the exponent is moved, denormals are made by a subtraction. */
static inline float from_f16(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, exponent = magnitude & 0x0f800000;
    uint32_t normal = magnitude + 0x38000000, special = magnitude + 0x70000000;
    uint32_t denormal = bits_of(float_of(magnitude + 0x38800000) - 0x1p-14f);
    uint32_t v = exponent == 0x0f800000 ? special : exponent ? normal : denormal;
    v = (h & 0x7fff) > 0x7c00 ? NAN_F32 : v | (uint32_t)(h & 0x8000) << 16;
    return float_of(v);
}
static inline float from_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }

static inline uint16_t to_f16(float f)
{
    uint32_t v = bits_of(f), sign = v >> 16 & 0x8000, m = v & 0x7fffffff;
    uint32_t normal = (m - 0x38000000 + 0xfff + (m >> 13 & 1)) >> 13;
    uint32_t denormal = bits_of(float_of(m) + 0.5f) - 0x3f000000; /* its last bit is 2^-24 */
    uint32_t r = m > 0x7f800000 ? 0x7fff : m >= 0x477ff000 ? 0x7c00 : m < 0x38800000 ? denormal : normal;
    return (uint16_t)(m > 0x7f800000 ? 0x7fff : r | sign);
}
static inline uint16_t to_bf16(float f)
{
    uint32_t v = bits_of(f);
    return (uint16_t)((v & 0x7fffffff) > 0x7f800000 ? 0x7fff : (v + 0x7fff + (v >> 16 & 1)) >> 16);
}
#define LOW(F, v)     from_##F((uint16_t)(v))
#define HIGH(F, v)    from_##F((uint16_t)((v) >> 16))
#define BOTH(F, l, h) ((uint32_t)to_##F(l) | (uint32_t)to_##F(h) << 16)

float ptx_half_to_float(uint16_t bits) { return from_f16(bits); }

/* ---- one lane of a row ------------------------------------------------------------------------------- */

#define LANE_none(p) 0
#define LANE_pred(p) (((const row_u32 *)(p))[l])
#define LANE_u8(p)   ((uint8_t)((const row_u32 *)(p))[l])
#define LANE_s8(p)   ((int8_t)((const row_u32 *)(p))[l])
#define LANE_u16(p)  ((uint16_t)((const row_u32 *)(p))[l])
#define LANE_s16(p)  ((int16_t)((const row_u32 *)(p))[l])
#define LANE_u32(p)  (((const row_u32 *)(p))[l])
#define LANE_s32(p)  ((int32_t)((const row_u32 *)(p))[l])
#define LANE_u64(p)  (((const row_u64 *)(p))[l])
#define LANE_s64(p)  ((int64_t)((const row_u64 *)(p))[l])
#define LANE_f16(p)  from_f16((uint16_t)((const row_u32 *)(p))[l])
#define LANE_bf16(p) from_bf16((uint16_t)((const row_u32 *)(p))[l])
#define LANE_f32(p)  (((const row_f32 *)(p))[l])
#define LANE_f64(p)  (((const row_f64 *)(p))[l])

#define SET_pred(v) ((row_u32 *)to)[l] = (v) ? PTX_ALL : 0
#define SET_u8(v)   ((row_u32 *)to)[l] = (uint8_t)(v)
#define SET_s8(v)   ((row_u32 *)to)[l] = (uint32_t)(int8_t)(v)
#define SET_u16(v)  ((row_u32 *)to)[l] = (uint16_t)(v)
#define SET_s16(v)  ((row_u32 *)to)[l] = (uint32_t)(int16_t)(v)
#define SET_u32(v)  ((row_u32 *)to)[l] = (uint32_t)(v)
#define SET_s32(v)  ((row_u32 *)to)[l] = (uint32_t)(v)
#define SET_u64(v)  ((row_u64 *)to)[l] = (uint64_t)(v)
#define SET_s64(v)  ((row_u64 *)to)[l] = (uint64_t)(v)
#define SET_f16(v)  ((row_u32 *)to)[l] = to_f16((float)(v))
#define SET_bf16(v) ((row_u32 *)to)[l] = to_bf16((float)(v))
#define SET_f32(v)                                                                                                     \
    float r_ = (v);                                                                                                    \
    ((row_u32 *)to)[l] = r_ == r_ ? bits_of(r_) : NAN_F32
#define SET_f64(v)                                                                                                     \
    double r_ = (v);                                                                                                   \
    ((row_u64 *)to)[l] = r_ == r_ ? bits_of_double(r_) : NAN_F64

#define X(name, text, D, A, B, C, expression)                                                                          \
    static void run_##name(void *to, const void *pa, const void *pb, const void *pc)                                   \
    {                                                                                                                  \
        (void)pa, (void)pb, (void)pc;                                                                                  \
        _Pragma("GCC ivdep") for (int l = 0; l < PTX_LANES; l++)                                                       \
        {                                                                                                              \
            __auto_type a = LANE_##A(pa);                                                                              \
            __auto_type b = LANE_##B(pb);                                                                              \
            __auto_type c = LANE_##C(pc);                                                                              \
            (void)a, (void)b, (void)c;                                                                                 \
            SET_##D(expression);                                                                                       \
        }                                                                                                              \
    }
PTX_ARITHMETIC(X)
#undef X

static void (*const rows[])(void *, const void *, const void *, const void *) = {
#define X(name, text, D, A, B, C, expression) [OP_##name] = run_##name,
    PTX_ARITHMETIC(X)
#undef X
};

/* Bit 4a + 2b + c of the table is the result for bits a, b, c. */
static void lop3(row_u32 *to, const row_u32 *a, const row_u32 *b, const row_u32 *c, uint32_t table)
{
    uint32_t r[PTX_LANES] = { 0 };
    for (uint32_t k = 0; k < 8; k++) {
        if (!(table >> k & 1))
            continue;
        uint32_t na = k & 4 ? 0 : PTX_ALL, nb = k & 2 ? 0 : PTX_ALL, nc = k & 1 ? 0 : PTX_ALL;
        for (int l = 0; l < PTX_LANES; l++)
            r[l] |= (a[l] ^ na) & (b[l] ^ nb) & (c[l] ^ nc);
    }
    memcpy(to, r, sizeof r);
}

static void insert_bits(const struct ptx_warp *w, const struct ptx_insn *i, void *to)
{
    bool wide = i->width == 8;
    uint32_t width = wide ? 64 : 32;
    for (int l = 0; l < PTX_LANES; l++) {
        uint64_t field = ptx_value(w, i->src[0], l, wide), base = ptx_value(w, i->src[1], l, wide);
        uint32_t at = ptx_reg(w, i->src[2])[l] & 255, n = ptx_reg(w, i->src[3])[l] & 255;
        uint64_t mask = at >= width ? 0 : (n >= 64 ? ~0ull : (1ull << n) - 1) << at;
        uint64_t r = (base & ~mask) | (at < 64 ? field << at & mask : 0);
        if (wide)
            ((row_u64 *)to)[l] = r;
        else
            ((row_u32 *)to)[l] = (uint32_t)r;
    }
}

static void convert(const struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask, void *to)
{
    struct ptx_conversion v;
    memcpy(&v, &i->imm, sizeof v);
    for (int l = 0; l < PTX_LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        uint64_t r = ptx_convert(v, ptx_value(w, i->src[0], l, i->wide));
        if (i->width == 8)
            ((row_u64 *)to)[l] = r;
        else
            ((row_u32 *)to)[l] = (uint32_t)r;
    }
}

static void directed(const struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask, void *to)
{
    bool wide = i->width == 8;
    for (int l = 0; l < PTX_LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        uint64_t r = ptx_directed((int)i->imm, i->sub, i->width, ptx_value(w, i->src[0], l, wide),
                                  ptx_value(w, i->src[1], l, wide), ptx_value(w, i->src[2], l, wide));
        if (wide)
            ((row_u64 *)to)[l] = r;
        else
            ((row_u32 *)to)[l] = (uint32_t)r;
    }
}

/* Writes all lanes of the result to `to`; the caller keeps those of mask. */
void ptx_arithmetic(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask, void *to)
{
    if (i->op < OP_lop3) {
        rows[i->op](to, ptx_reg(w, i->src[0]), ptx_reg(w, i->src[1]), ptx_reg(w, i->src[2]));
        return;
    }
    if (i->op == OP_lop3)
        lop3(to, ptx_reg(w, i->src[0]), ptx_reg(w, i->src[1]), ptx_reg(w, i->src[2]), (uint32_t)i->imm);
    else if (i->op == OP_bfi)
        insert_bits(w, i, to);
    else if (i->op == OP_convert)
        convert(w, i, mask, to);
    else if (i->op == OP_directed)
        directed(w, i, mask, to);
    else
        for (int l = 0; l < PTX_LANES; l++) {
            uint64_t v = i->op == OP_activemask ? mask : r->steps;
            if (i->width == 8)
                ((row_u64 *)to)[l] = v;
            else
                ((row_u32 *)to)[l] = (uint32_t)v;
        }
}
