/* tests/gpu/arithmetic.h - instructions of PTX, each beside the same computation in C.
 *
 * X(text, D, A, expression): text is the instruction with %0 the result of type D and %1, %2, %3 the operands a, b, c
 * of type A.  arithmetic.cu makes a kernel of each list, test_arithmetic.c compares the results. */
#ifndef TESTS_GPU_ARITHMETIC_H
#define TESTS_GPU_ARITHMETIC_H

#include <stdint.h>

#define GPU_INTEGERS(X)                                                                                                \
    X("add.s32 %0, %1, %2;", u32, u32, a + b)                                                                          \
    X("sub.s32 %0, %1, %2;", u32, u32, a - b)                                                                          \
    X("mul.lo.s32 %0, %1, %2;", u32, u32, a *b)                                                                        \
    X("mul.hi.s32 %0, %1, %2;", u32, u32, ((int64_t)(int32_t)a * (int32_t)b) >> 32)                                    \
    X("mul.hi.u32 %0, %1, %2;", u32, u32, ((uint64_t)a * b) >> 32)                                                     \
    X("mul.wide.s32 %0, %1, %2;", u64, u32, (int64_t)(int32_t)a *(int32_t)b)                                           \
    X("mul.wide.u32 %0, %1, %2;", u64, u32, (uint64_t)a *b)                                                            \
    X("mad.lo.s32 %0, %1, %2, %3;", u32, u32, a *b + c)                                                                \
    X("mad.hi.u32 %0, %1, %2, %3;", u32, u32, (uint32_t)(((uint64_t)a * b) >> 32) + c)                                 \
    X("mad.hi.s32 %0, %1, %2, %3;", u32, u32, (uint32_t)(((int64_t)(int32_t)a * (int32_t)b) >> 32) + c)                \
    X("div.u32 %0, %1, %2;", u32, u32, b ? a / b : UINT32_MAX)                                                         \
    X("div.s32 %0, %1, %2;", u32, u32, b ? plain_div(a, b) : ~0u)                                                      \
    X("rem.u32 %0, %1, %2;", u32, u32, b ? a % b : a)                                                                  \
    X("abs.s32 %0, %1;", u32, u32, (int32_t)a < 0 ? 0 - a : a)                                                         \
    X("neg.s32 %0, %1;", u32, u32, 0 - a)                                                                              \
    X("min.s32 %0, %1, %2;", u32, u32, (int32_t)a < (int32_t)b ? a : b)                                                \
    X("max.u32 %0, %1, %2;", u32, u32, a < b ? b : a)                                                                  \
    X("add.sat.s32 %0, %1, %2;", u32, u32, plain_sat((int64_t)(int32_t)a + (int32_t)b))                                \
    X("max.s16x2 %0, %1, %2;", u32, u32, plain_pair(a, b, 1, 1))                                                       \
    X("min.u16x2 %0, %1, %2;", u32, u32, plain_pair(a, b, 0, 0))                                                       \
    X("vabsdiff4.u32.u32.u32 %0, %1, %2, %3;", u32, u32, plain_differences(a, b))                                      \
    X("set.lt.s32.s32 %0, %1, %2;", u32, u32, (int32_t)a < (int32_t)b ? UINT32_MAX : 0)                                \
    X("sad.u32 %0, %1, %2, %3;", u32, u32, (a < b ? b - a : a - b) + c)                                                \
    X("and.b32 %0, %1, %2;", u32, u32, a &b)                                                                           \
    X("or.b32 %0, %1, %2;", u32, u32, a | b)                                                                           \
    X("xor.b32 %0, %1, %2;", u32, u32, a ^ b)                                                                          \
    X("not.b32 %0, %1;", u32, u32, ~a)                                                                                 \
    X("lop3.b32 %0, %1, %2, %3, 0xe8;", u32, u32, (a & b) | (a & c) | (b & c))                                         \
    X("lop3.b32 %0, %1, %2, %3, 0xca;", u32, u32, (a & b) | (~a & c))                                                  \
    X("lop3.b32 %0, %1, %2, %3, 0x96;", u32, u32, a ^ b ^ c)                                                           \
    X("lop3.b32 %0, %1, %2, %3, 0x1e;", u32, u32, a ^ (b | c))                                                         \
    X("shl.b32 %0, %1, %2;", u32, u32, b > 31 ? 0 : a << b)                                                            \
    X("shr.u32 %0, %1, %2;", u32, u32, b > 31 ? 0 : a >> b)                                                            \
    X("shr.s32 %0, %1, %2;", u32, u32, (int32_t)a >> (b > 31 ? 31 : b))                                                \
    X("shl.b32 %0, %1, 7;", u32, u32, a << 7)                                                                          \
    X("shf.l.wrap.b32 %0, %1, %2, %3;", u32, u32, c % 32 ? b << c % 32 | a >> (32 - c % 32) : b)                       \
    X("shf.r.wrap.b32 %0, %1, %2, %3;", u32, u32, c % 32 ? b << (32 - c % 32) | a >> c % 32 : a)                       \
    X("shf.r.clamp.b32 %0, %1, %2, %3;", u32, u32, c > 31 ? b : c ? b << (32 - c) | a >> c : a)                        \
    X("shf.l.clamp.b32 %0, %1, %2, %3;", u32, u32, c > 31 ? a : c ? b << c | a >> (32 - c) : b)                        \
    X("prmt.b32 %0, %1, %2, %3;", u32, u32, plain_prmt(a, b, c))                                                       \
    X("prmt.b32 %0, %1, %2, 0x5140;", u32, u32, plain_prmt(a, b, 0x5140))                                              \
    X("bfe.u32 %0, %1, 5, 9;", u32, u32, a >> 5 & 511)                                                                 \
    X("bfe.s32 %0, %1, 5, 9;", u32, u32, (int32_t)(a << 18) >> 23)                                                     \
    X("bfe.u32 %0, %1, 28, 9;", u32, u32, a >> 28)                                                                     \
    X("bfe.s32 %0, %1, 28, 9;", u32, u32, (int32_t)a >> 28)                                                            \
    X("bfi.b32 %0, %1, %2, 3, 8;", u32, u32, (b & ~0x7f8u) | (a << 3 & 0x7f8))                                         \
    X("bfi.b32 %0, %1, %2, 30, 8;", u32, u32, (b & 0x3fffffff) | a << 30)                                              \
    X("popc.b32 %0, %1;", u32, u32, plain_count(a))                                                                    \
    X("clz.b32 %0, %1;", u32, u32, plain_count(~plain_smear(a)))                                                       \
    X("bfind.u32 %0, %1;", u32, u32, plain_count(plain_smear(a)) - 1u)                                                 \
    X("brev.b32 %0, %1;", u32, u32, plain_reverse(a))                                                                  \
    X("dp4a.s32.s32 %0, %1, %2, %3;", u32, u32, plain_dot(a, b, c, 1, 1))                                              \
    X("dp4a.s32.u32 %0, %1, %2, %3;", u32, u32, plain_dot(a, b, c, 1, 0))                                              \
    X("dp4a.u32.s32 %0, %1, %2, %3;", u32, u32, plain_dot(a, b, c, 0, 1))                                              \
    X("dp4a.u32.u32 %0, %1, %2, %3;", u32, u32, plain_dot(a, b, c, 0, 0))                                              \
    X("dp2a.lo.s32.s32 %0, %1, %2, %3;", u32, u32,                                                                     \
      (uint32_t)((int16_t)a * (int8_t)b) + (uint32_t)((int16_t)(a >> 16) * (int8_t)(b >> 8)) + c)                      \
    X("dp2a.hi.u32.s32 %0, %1, %2, %3;", u32, u32,                                                                     \
      (uint32_t)((int)(a & 0xffff) * (int8_t)(b >> 16)) + (uint32_t)((int)(a >> 16) * (int8_t)(b >> 24)) + c)          \
    X("{.reg .pred p; setp.lt.s32 p, %1, %2; selp.b32 %0, %3, %1, p;}", u32, u32, (int32_t)a < (int32_t)b ? c : a)     \
    X("{.reg .pred p, q; setp.hs.u32 p|q, %1, %2; @q mov.b32 %0, %3; @p mov.b32 %0, %2;}", u32, u32, a >= b ? b : c)   \
    X("{.reg .pred p, q; setp.eq.u32 q, %3, %3; setp.ge.xor.s32 p, %1, %2, q; selp.b32 %0, 1, 0, p;}", u32, u32,       \
      (int32_t)a < (int32_t)b)                                                                                         \
    X("{.reg .b16 x, y; mov.b32 {x, y}, %1; mov.b32 %0, {y, x};}", u32, u32, a << 16 | a >> 16)                        \
    X("mov.b64 %0, {%1, %2};", u64, u32, (uint64_t)b << 32 | a)                                                        \
    X("{.reg .b16 x, y, z, w; mov.b64 {x, y, z, w}, %1; mov.b64 %0, {w, z, x, y};}", u64, u64,                         \
      a >> 48 | (a >> 16 & 0xffff0000) | (a & 0xffff) << 32 | (a >> 16 & 0xffff) << 48)                                \
    X("cvt.s32.s8 %0, %1;", u32, u32, (int8_t)a)                                                                       \
    X("cvt.u32.u8 %0, %1;", u32, u32, (uint8_t)a)                                                                      \
    X("cvt.sat.s8.s32 %0, %1;", u32, u32, (int32_t)a > 127 ? 127 : (int32_t)a < -128 ? -128 : (int32_t)a)              \
    X("cvt.sat.u16.s32 %0, %1;", u32, u32, (int32_t)a > 65535 ? 65535 : (int32_t)a < 0 ? 0 : a)                        \
    X("cvt.s64.s32 %0, %1;", u64, u32, (int64_t)(int32_t)a)                                                            \
    X("cvt.u64.u32 %0, %1;", u64, u32, a)                                                                              \
    X("cvt.u32.u64 %0, %1;", u32, u64, a)                                                                              \
    X("cvt.s64.s8 %0, %1;", u64, u64, (int64_t)(int8_t)a)                                                              \
    X("add.s64 %0, %1, %2;", u64, u64, a + b)                                                                          \
    X("sub.s64 %0, %1, %2;", u64, u64, a - b)                                                                          \
    X("mul.lo.s64 %0, %1, %2;", u64, u64, a *b)                                                                        \
    X("mul.hi.u64 %0, %1, %2;", u64, u64, ((unsigned __int128)a * b) >> 64)                                            \
    X("mad.wide.u32 %0, %1, %2, 77;", u64, u32, (uint64_t)a *b + 77)                                                   \
    X("div.u64 %0, %1, %2;", u64, u64, b ? a / b : UINT64_MAX)                                                         \
    X("shl.b64 %0, %1, 13;", u64, u64, a << 13)                                                                        \
    X("shr.s64 %0, %1, 13;", u64, u64, (int64_t)a >> 13)                                                               \
    X("min.s64 %0, %1, %2;", u64, u64, (int64_t)a < (int64_t)b ? a : b)                                                \
    X("{.reg .pred p; setp.gt.u64 p, %1, %2; selp.b64 %0, %1, %3, p;}", u64, u64, a > b ? a : c)                       \
    X("clz.b64 %0, %1;", u32, u64, a ? __builtin_clzll(a) : 64)                                                        \
    X("add.s16 %0, %1, %2;", u16, u16, a + b)                                                                          \
    X("mul.lo.s16 %0, %1, %2;", u16, u16, (uint32_t)a *b)                                                              \
    X("mul.wide.s16 %0, %1, %2;", u32, u16, (int16_t)a *(int16_t)b)                                                    \
    X("shr.s16 %0, %1, 3;", u16, u16, (int16_t)a >> 3)                                                                 \
    X("and.b16 %0, %1, -8;", u16, u16, a & 0xfff8)                                                                     \
    X("max.s16 %0, %1, %2;", u16, u16, (int16_t)a > (int16_t)b ? a : b)                                                \
    X("{.reg .pred p; setp.lt.s16 p, %1, %2; selp.b16 %0, %1, %2, p;}", u16, u16, (int16_t)a < (int16_t)b ? a : b)

#define GPU_FLOATS(X)                                                                                                  \
    X("add.rn.f32 %0, %1, %2;", f32, f32, a + b)                                                                       \
    X("sub.rn.f32 %0, %1, %2;", f32, f32, a - b)                                                                       \
    X("mul.rn.f32 %0, %1, %2;", f32, f32, a *b)                                                                        \
    X("fma.rn.f32 %0, %1, %2, %3;", f32, f32, fmaf(a, b, c))                                                           \
    X("div.rn.f32 %0, %1, %2;", f32, f32, a / b)                                                                       \
    X("rcp.rn.f32 %0, %1;", f32, f32, 1 / a)                                                                           \
    X("sqrt.rn.f32 %0, %1;", f32, f32, sqrtf(a))                                                                       \
    X("min.f32 %0, %1, %2;", f32, f32, isnan(a) ? b : isnan(b) ? a : a < b || (a == b && signbit(a)) ? a : b)          \
    X("max.f32 %0, %1, %2;", f32, f32, isnan(a) ? b : isnan(b) ? a : a > b || (a == b && !signbit(a)) ? a : b)         \
    X("neg.f32 %0, %1;", f32, f32, -a)                                                                                 \
    X("abs.f32 %0, %1;", f32, f32, fabsf(a))                                                                           \
    X("add.rz.f32 %0, %1, %2;", f32, f32, plain_toward(plain_sum(a, b), 0))                                            \
    X("add.rp.f32 %0, %1, %2;", f32, f32, plain_toward(plain_sum(a, b), INFINITY))                                     \
    X("mul.rm.f32 %0, %1, %2;", f32, f32, plain_toward(plain_exact((double)a *b), -INFINITY))                          \
    X("mul.rz.f32 %0, %1, %2;", f32, f32, plain_toward(plain_exact((double)a *b), 0))                                  \
    X("cvt.rzi.s32.f32 %0, %1;", u32, f32, plain_s32(truncf(a)))                                                       \
    X("cvt.rni.s32.f32 %0, %1;", u32, f32, plain_s32(rintf(a)))                                                        \
    X("cvt.rmi.s32.f32 %0, %1;", u32, f32, plain_s32(floorf(a)))                                                       \
    X("cvt.rzi.u32.f32 %0, %1;", u32, f32, isnan(a) || a <= 0 ? 0 : a >= 0x1p32f ? UINT32_MAX : (uint32_t)a)           \
    X("cvt.rni.f32.f32 %0, %1;", f32, f32, rintf(a))                                                                   \
    X("cvt.rpi.f32.f32 %0, %1;", f32, f32, ceilf(a))                                                                   \
    X("cvt.sat.f32.f32 %0, %1;", f32, f32, a > 1 ? 1 : a > 0 ? a : 0)                                                  \
    X("cvt.rn.f32.s32 %0, %1;", f32, u32, (float)(int32_t)a)                                                           \
    X("cvt.rn.f32.u32 %0, %1;", f32, u32, (float)a)                                                                    \
    X("cvt.rz.f32.u32 %0, %1;", f32, u32, plain_toward(plain_exact(a), 0))                                             \
    X("cvt.rn.f32.s64 %0, %1;", f32, u64, (float)(int64_t)a)                                                           \
    X("cvt.rn.f64.s32 %0, %1;", f64, u32, (int32_t)a)                                                                  \
    X("cvt.f64.f32 %0, %1;", f64, f32, a)                                                                              \
    X("cvt.rn.f32.f64 %0, %1;", f32, f64, (float)a)                                                                    \
    X("cvt.rz.f32.f64 %0, %1;", f32, f64, plain_toward(plain_exact(a), 0))                                             \
    X("add.rn.f64 %0, %1, %2;", f64, f64, a + b)                                                                       \
    X("mul.rn.f64 %0, %1, %2;", f64, f64, a *b)                                                                        \
    X("fma.rn.f64 %0, %1, %2, %3;", f64, f64, fma(a, b, c))                                                            \
    X("div.rn.f64 %0, %1, %2;", f64, f64, a / b)                                                                       \
    X("sqrt.rn.f64 %0, %1;", f64, f64, sqrt(a))                                                                        \
    X("cvt.rzi.s64.f64 %0, %1;", u64, f64, isnan(a) || a < -0x1p63 ? INT64_MIN : a >= 0x1p63 ? INT64_MAX : (int64_t)a) \
    X("{.reg .pred p; setp.ltu.f32 p, %1, %2; selp.b32 %0, 1, 0, p;}", u32, f32, !(a >= b))                            \
    X("{.reg .pred p; setp.ne.f32 p, %1, %2; selp.b32 %0, 1, 0, p;}", u32, f32, a<b || a> b)                           \
    X("{.reg .pred p; setp.neu.f32 p, %1, %2; selp.b32 %0, 1, 0, p;}", u32, f32, a != b)                               \
    X("{.reg .pred p; setp.nan.f32 p, %1, %2; selp.b32 %0, 1, 0, p;}", u32, f32, isnan(a) || isnan(b))                 \
    X("{.reg .pred p; setp.le.f64 p, %1, %2; selp.b32 %0, 1, 0, p;}", u32, f64, a <= b)

/* Halves are passed as their bits. */
#define GPU_HALVES(X)                                                                                                  \
    X("cvt.f32.f16 %0, %1;", f32, u16, (float)plain_half(a))                                                           \
    X("cvt.rn.f16.f32 %0, %1;", u16, f32, plain_bits((_Float16)a))                                                     \
    X("cvt.rz.f16.f32 %0, %1;", u16, f32, plain_half_toward_0(a))                                                      \
    X("cvt.rn.bf16.f32 %0, %1;", u16, f32, plain_bf16(a))                                                              \
    X("cvt.rn.f16.f64 %0, %1;", u16, f64, plain_bits((_Float16)a))                                                     \
    X("cvt.rn.f16.s32 %0, %1;", u16, u32, plain_bits((_Float16)(double)(int32_t)a))                                    \
    X("cvt.rni.s32.f16 %0, %1;", u32, u16, plain_s32(rintf((float)plain_half(a))))                                     \
    X("cvt.rn.f16x2.f32 %0, %1, %2;", u32, f32, (uint32_t)plain_bits((_Float16)a) << 16 | plain_bits((_Float16)b))     \
    X("cvt.rn.bf16x2.f32 %0, %1, %2;", u32, f32, (uint32_t)plain_bf16(a) << 16 | plain_bf16(b))                        \
    X("add.f16 %0, %1, %2;", u16, u16, plain_bits(plain_half(a) + plain_half(b)))                                      \
    X("mul.rn.f16 %0, %1, %2;", u16, u16, plain_bits(plain_half(a) * plain_half(b)))                                   \
    X("fma.rn.f16 %0, %1, %2, %3;", u16, u16,                                                                          \
      plain_bits((_Float16)((__float128)plain_half(a) * plain_half(b) + plain_half(c))))                               \
    X("fma.rn.bf16 %0, %1, %2, %3;", u16, u16, plain_bf16_fma(a, b, c))                                                \
    X("add.f16x2 %0, %1, %2;", u32, u32,                                                                               \
      plain_bits(plain_half(a) + plain_half(b)) | (uint32_t)plain_bits(plain_half(a >> 16) + plain_half(b >> 16))      \
                                                      << 16)                                                           \
    X("fma.rn.f16x2 %0, %1, %1, %2;", u32, u32,                                                                        \
      plain_bits((_Float16)((__float128)plain_half(a) * plain_half(a) + plain_half(b))) |                              \
          (uint32_t)plain_bits(                                                                                        \
              (_Float16)((__float128)plain_half(a >> 16) * plain_half(a >> 16) + plain_half(b >> 16)))                 \
              << 16)                                                                                                   \
    X("set.nan.f16.f16 %0, %1, %2;", u16, u16,                                                                         \
      plain_half(a) == plain_half(a) && plain_half(b) == plain_half(b) ? 0 : 0x3c00)                                   \
    X("{.reg .pred p; setp.gt.f16 p, %1, %2; selp.b32 %0, 1, 0, p;}", u32, u16, plain_half(a) > plain_half(b))

enum {
#define X(text, D, A, expression) +1
    GPU_N_INTEGER = 0 GPU_INTEGERS(X),
    GPU_N_FLOAT = 0 GPU_FLOATS(X),
    GPU_N_HALF = 0 GPU_HALVES(X),
#undef X
};

#endif
