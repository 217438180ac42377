/* Each arithmetic instruction of arithmetic.h, interpreted, gives the bits of the same computation in C: for random
 * operands and for those at the edges of the types.
 *
 * The device is a thread of its own; the interpreter has no other: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/gpu/arithmetic.h"
#include "tests/gpu/kernels.h"

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef float f32;
typedef double f64;

static const char *program;
static u64 random_state = 1;

static u64 next(void)
{
    random_state += 0x9e3779b97f4a7c15ull;
    u64 z = (random_state ^ random_state >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* ---- the computations, as plainly as can be ------------------------------------------------------------ */

static u32 plain_div(u32 a, u32 b) { return (u32)((int64_t)(int32_t)a / (int32_t)b); }
static u32 plain_sat(int64_t v) { return (u32)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v); }
static u32 plain_count(u32 v)
{
    u32 n = 0;
    for (; v; v >>= 1)
        n += v & 1;
    return n;
}
static u32 plain_smear(u32 v)
{
    for (int k = 0; k < 32; k++)
        v |= v >> 1;
    return v;
}
static u32 plain_reverse(u32 v)
{
    u32 r = 0;
    for (int k = 0; k < 32; k++)
        r |= (v >> k & 1) << (31 - k);
    return r;
}
static u32 plain_prmt(u32 a, u32 b, u32 selector)
{
    uint8_t bytes[8], r[4];
    u32 v;
    memcpy(bytes, &a, 4);
    memcpy(bytes + 4, &b, 4);
    for (int k = 0; k < 4; k++) {
        int s = selector >> 4 * k & 15;
        r[k] = s & 8 ? (uint8_t)((int8_t)bytes[s & 7] >> 7) : bytes[s];
    }
    memcpy(&v, r, 4);
    return v;
}
static u32 plain_pair(u32 a, u32 b, bool is_signed, bool larger)
{
    u32 r = 0;
    for (int k = 0; k < 32; k += 16) {
        int x = is_signed ? (int16_t)(a >> k) : (u16)(a >> k), y = is_signed ? (int16_t)(b >> k) : (u16)(b >> k);
        r |= (u32)(u16)((x > y) == larger ? x : y) << k;
    }
    return r;
}
static u32 plain_differences(u32 a, u32 b)
{
    u32 r = 0;
    for (int k = 0; k < 32; k += 8)
        r |= (u32)abs((int)(a >> k & 255) - (int)(b >> k & 255)) << k;
    return r;
}
static u32 plain_dot(u32 a, u32 b, u32 c, bool a_signed, bool b_signed)
{
    for (int k = 0; k < 32; k += 8) {
        int x = a_signed ? (int8_t)(a >> k) : (uint8_t)(a >> k), y = b_signed ? (int8_t)(b >> k) : (uint8_t)(b >> k);
        c += (u32)(x * y);
    }
    return c;
}
static u32 plain_s32(float v)
{
    return isnan(v) ? 0 : v >= 0x1p31f ? INT32_MAX : v < -0x1p31f ? (u32)INT32_MIN : (u32)(int32_t)v;
}
/* A sum without rounding: high + low. */
struct exact {
    __float128 high, low;
};
static struct exact plain_sum(__float128 a, __float128 b)
{
    __float128 s = a + b, back = s - a;
    return (struct exact){ s, (a - (s - back)) + (b - back) };
}
static struct exact plain_exact(__float128 a) { return (struct exact){ a, 0 }; }
/* Is x above (1) or below (-1) its rounding f? */
static int plain_side(struct exact x, float f)
{
    __float128 d = x.high - f;
    d = d != 0 ? d : x.low;
    return isfinite((float)x.high) || isinf(f) ? (d > 0) - (d < 0) : 0;
}
static float plain_toward(struct exact x, double side)
{
    float f = (float)x.high;
    if (isnan(f) || isinf((double)x.high))
        return f;
    int d = plain_side(x, f);
    if (side == 0)
        return f > 0 ? (d < 0 ? nextafterf(f, 0) : f) : f < 0 && d > 0 ? nextafterf(f, 0) : f;
    return side > 0 ? (d > 0 ? nextafterf(f, INFINITY) : f) : d < 0 ? nextafterf(f, -INFINITY) : f;
}
static _Float16 plain_half(u32 bits)
{
    u16 low = (u16)bits;
    _Float16 h;
    memcpy(&h, &low, 2);
    return h;
}
static u16 plain_bits(_Float16 h)
{
    u16 bits;
    memcpy(&bits, &h, 2);
    return h != h ? 0x7fff : bits;
}
static u16 plain_half_toward_0(float v)
{
    _Float16 h = (_Float16)v;
    u16 bits = plain_bits(h);
    return (u16)(!isnan(v) && fabsf((float)h) > fabsf(v) ? bits - 1 : bits);
}
static u16 plain_bf16(float v)
{
    u32 bits;
    memcpy(&bits, &v, 4);
    if (isnan(v))
        return 0x7fff;
    u32 low = bits & 0xffff, high = bits >> 16;
    return (u16)(high + (low > 0x8000 || (low == 0x8000 && high & 1)));
}
static float plain_from_bf16(u16 bits)
{
    u32 v = (u32)bits << 16;
    float f;
    memcpy(&f, &v, 4);
    return f;
}
/* By way of f32 rounded to odd: of the two neighbours of the exact value, the one whose last bit is set. */
static u16 plain_bf16_fma(u16 a, u16 b, u16 c)
{
    struct exact x = plain_sum((__float128)plain_from_bf16(a) * plain_from_bf16(b), plain_from_bf16(c));
    float f = (float)x.high;
    int d = isfinite(f) ? plain_side(x, f) : 0;
    u32 bits;
    memcpy(&bits, &f, 4);
    if (d && !(bits & 1))
        f = nextafterf(f, d > 0 ? INFINITY : -INFINITY);
    return plain_bf16(f);
}

/* ---- the comparison ------------------------------------------------------------------------------------ */

enum { N = 4096 };
static u64 operand[N][3];

#define BITS(D) bits_##D
static u64 bits_u16(u16 v) { return v; }
static u64 bits_u32(u32 v) { return v; }
static u64 bits_u64(u64 v) { return v; }
static u64 bits_f32(f32 v)
{
    u32 bits;
    memcpy(&bits, &v, 4);
    return isnan(v) ? 0x7fffffff : bits;
}
static u64 bits_f64(f64 v)
{
    u64 bits;
    memcpy(&bits, &v, 8);
    return isnan(v) ? 0x7fffffffffffffffull : bits;
}
static u16 from_u16(u64 v) { return (u16)v; }
static u32 from_u32(u64 v) { return (u32)v; }
static u64 from_u64(u64 v) { return v; }
static f32 from_f32(u64 v)
{
    u32 low = (u32)v;
    f32 f;
    memcpy(&f, &low, 4);
    return f;
}
static f64 from_f64(u64 v)
{
    f64 f;
    memcpy(&f, &v, 8);
    return f;
}

#define X(text, D, A, expression)                                                                                      \
    {                                                                                                                  \
        A a = from_##A(in[0]), b = from_##A(in[1]), c = from_##A(in[2]);                                               \
        (void)a, (void)b, (void)c;                                                                                     \
        *out++ = bits_##D((D)(expression));                                                                            \
    }
static void plain_integers(const u64 *in, u64 *out) { GPU_INTEGERS(X) }
static void plain_floats(const u64 *in, u64 *out) { GPU_FLOATS(X) }
static void plain_halves(const u64 *in, u64 *out) { GPU_HALVES(X) }
#undef X
#define X(text, D, A, expression) text,
static const char *const integer_text[] = { GPU_INTEGERS(X) }, *const float_text[] = { GPU_FLOATS(X) };
static const char *const half_text[] = { GPU_HALVES(X) };
#undef X

/* A third of the operands are random bits, a third floats and integers of moderate size, a third edges of the types. */
static void make_operands(void)
{
    static const u64 edges[] = { 0,
                                 1,
                                 2,
                                 7,
                                 31,
                                 32,
                                 33,
                                 63,
                                 64,
                                 127,
                                 128,
                                 255,
                                 0x7fff,
                                 0x8000,
                                 0xffff,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 0x00800000,
                                 0x007fffff,
                                 0x00000001,
                                 0x80000001,
                                 0x7f800000,
                                 0xff800000,
                                 0x7fc00000,
                                 0x3f800000,
                                 0xbf800000,
                                 0x7f7fffff,
                                 0x3f000000,
                                 0x477fefff,
                                 0x477ff000,
                                 0x33000000,
                                 0x33000001,
                                 0x387fffff,
                                 0x4f000000,
                                 0xcf000000,
                                 0x7c00,
                                 0xfc00,
                                 0x7bff,
                                 0x0400,
                                 0x03ff,
                                 0x3c00,
                                 0x7f80,
                                 0x0080,
                                 0x7fffffffffffffff,
                                 0x8000000000000000,
                                 0xffffffffffffffff,
                                 0x7ff0000000000000,
                                 0x3ff0000000000000,
                                 0x0010000000000000,
                                 0x43e0000000000000,
                                 0x36a0000000000000 };
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 3; k++) {
            u64 v = next();
            if ((v >> 60) % 3 == 1) {
                float f = (float)(int32_t)v * 0x1p-25f;
                memcpy(&v, &f, 4);
            } else if ((v >> 60) % 3 == 2)
                v = edges[(u32)v % (sizeof edges / sizeof *edges)];
            operand[i][k] = v;
        }
}

static void compare(void *module, const char *kernel, const char *const *text, int n_row,
                    void (*plain)(const u64 *, u64 *))
{
    u64 in = gpu_put(operand, sizeof operand), out = gpu_put(NULL, sizeof(u64) * N * (size_t)n_row);
    u64 *got = malloc(sizeof(u64) * N * (size_t)n_row), want[128];
    int n = N - 5, error; /* the last block has lanes beyond the end */
    assert_non_null(got);
    assert_true(n_row <= 128);
    error = gpu_run(module, kernel, (N + 127) / 128, 128, (void *[]){ &in, &out, &n });
    if (error)
        fail_msg("%s", spillway_gpu_last_error());
    assert_int_equal(cuMemcpyDtoH_v2(got, out, sizeof(u64) * (size_t)n * (size_t)n_row), 0);
    for (int i = 0; i < n; i++) {
        plain(operand[i], want);
        for (int row = 0; row < n_row; row++)
            if (got[row * n + i] != want[row])
                fail_msg("%s of %#llx, %#llx, %#llx: %#llx in place of %#llx", text[row],
                         (unsigned long long)operand[i][0], (unsigned long long)operand[i][1],
                         (unsigned long long)operand[i][2], (unsigned long long)got[row * n + i],
                         (unsigned long long)want[row]);
    }
    free(got);
    cuMemFree_v2(in);
    cuMemFree_v2(out);
}

static void compare_both(const char *kernel, const char *const *text, int n_row, void (*plain)(const u64 *, u64 *))
{
    make_operands();
    for (int kept = 0; kept < 2; kept++) {
        void *module = gpu_module(program, "arithmetic", kept);
        if (module)
            compare(module, kernel, text, n_row, plain);
        assert_true(module || !kept);
        cuModuleUnload(module);
    }
}

static void integers(void **state)
{
    (void)state;
    compare_both("integers", integer_text, GPU_N_INTEGER, plain_integers);
}
static void floats(void **state)
{
    (void)state;
    compare_both("floats", float_text, GPU_N_FLOAT, plain_floats);
}
static void halves(void **state)
{
    (void)state;
    compare_both("halves", half_text, GPU_N_HALF, plain_halves);
}

int main(int argc, char **argv)
{
    (void)argc;
    const struct CMUnitTest tests[] = { cmocka_unit_test(integers), cmocka_unit_test(floats),
                                        cmocka_unit_test(halves) };
    program = argv[0];
    if (!gpu_open(program)) {
        printf("skipped: the PTX interpreter needs AVX2 and FMA\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
