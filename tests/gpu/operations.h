/* tests/gpu/operations.h - the arithmetic of PTX, one row for each operation.
 *
 * X(name, "opcodes", D, A, B, C, expression): the lanes of the destination have type D; a, b and c are one lane of each
 * source, of types A, B and C; the expression is the result of that lane.  All opcodes of a row compute the same.  A
 * row is the whole of an operation: decode.c finds it by its opcode, arith.c makes a loop over 32 lanes of it.
 *
 * Types: u8 s8 u16 s16 u32 s32 u64 s64, f16 and bf16 (read as float, rounded when written), f32, f64, pred (all bits
 * set or none).  An unused source has type none.  Operations with control flow, memory, other lanes or unusual operands
 * are not here but in ptx.h. */
#ifndef TESTS_GPU_OPERATIONS_H
#define TESTS_GPU_OPERATIONS_H

#define PTX_INTEGERS(X)                                                                                                \
    X(add16, "add.s16 add.u16", u16, u16, u16, none, a + b)                                                            \
    X(add32, "add.s32 add.u32", u32, u32, u32, none, a + b)                                                            \
    X(add64, "add.s64 add.u64", u64, u64, u64, none, a + b)                                                            \
    X(sub16, "sub.s16 sub.u16", u16, u16, u16, none, a - b)                                                            \
    X(sub32, "sub.s32 sub.u32", u32, u32, u32, none, a - b)                                                            \
    X(sub64, "sub.s64 sub.u64", u64, u64, u64, none, a - b)                                                            \
    X(add_sat, "add.sat.s32", s32, s32, s32, none, saturate_s32((int64_t)a + b))                                       \
    X(sub_sat, "sub.sat.s32", s32, s32, s32, none, saturate_s32((int64_t)a - b))                                       \
    X(mul_lo16, "mul.lo.s16 mul.lo.u16", u16, u16, u16, none, (uint32_t)a *b)                                          \
    X(mul_lo32, "mul.lo.s32 mul.lo.u32", u32, u32, u32, none, a *b)                                                    \
    X(mul_lo64, "mul.lo.s64 mul.lo.u64", u64, u64, u64, none, a *b)                                                    \
    X(mul_hi_s16, "mul.hi.s16", s16, s16, s16, none, (int16_t)(a * b >> 16))                                           \
    X(mul_hi_u16, "mul.hi.u16", u16, u16, u16, none, (uint32_t)a *b >> 16)                                             \
    X(mul_hi_s32, "mul.hi.s32", s32, s32, s32, none, (int32_t)((int64_t)a * b >> 32))                                  \
    X(mul_hi_u32, "mul.hi.u32", u32, u32, u32, none, (uint32_t)((uint64_t)a * b >> 32))                                \
    X(mul_hi_s64, "mul.hi.s64", s64, s64, s64, none, (int64_t)((__int128)a * b >> 64))                                 \
    X(mul_hi_u64, "mul.hi.u64", u64, u64, u64, none, (uint64_t)((unsigned __int128)a * b >> 64))                       \
    X(mul_wide_s16, "mul.wide.s16", s32, s16, s16, none, (int32_t)a *b)                                                \
    X(mul_wide_u16, "mul.wide.u16", u32, u16, u16, none, (uint32_t)a *b)                                               \
    X(mul_wide_s32, "mul.wide.s32", s64, s32, s32, none, (int64_t)a *b)                                                \
    X(mul_wide_u32, "mul.wide.u32", u64, u32, u32, none, (uint64_t)a *b)                                               \
    X(mul24_lo, "mul24.lo.s32 mul24.lo.u32", u32, u32, u32, none, (a << 8 >> 8) * (b << 8 >> 8))                       \
    X(mad_lo16, "mad.lo.s16 mad.lo.u16", u16, u16, u16, u16, (uint32_t)a *b + c)                                       \
    X(mad_lo32, "mad.lo.s32 mad.lo.u32", u32, u32, u32, u32, a *b + c)                                                 \
    X(mad_lo64, "mad.lo.s64 mad.lo.u64", u64, u64, u64, u64, a *b + c)                                                 \
    X(mad_hi_s32, "mad.hi.s32", u32, s32, s32, u32, (uint32_t)((int64_t)a * b >> 32) + c)                              \
    X(mad_hi_u32, "mad.hi.u32", u32, u32, u32, u32, (uint32_t)((uint64_t)a * b >> 32) + c)                             \
    X(mad_hi_u64, "mad.hi.u64", u64, u64, u64, u64, (uint64_t)((unsigned __int128)a * b >> 64) + c)                    \
    X(mad_wide_s16, "mad.wide.s16", u32, s16, s16, u32, (uint32_t)((int32_t)a * b) + c)                                \
    X(mad_wide_u16, "mad.wide.u16", u32, u16, u16, u32, (uint32_t)a *b + c)                                            \
    X(mad_wide_s32, "mad.wide.s32", u64, s32, s32, u64, (uint64_t)((int64_t)a * b) + c)                                \
    X(mad_wide_u32, "mad.wide.u32", u64, u32, u32, u64, (uint64_t)a *b + c)                                            \
    X(div_s16, "div.s16", s16, s16, s16, none, b ? a / b : -1)                                                         \
    X(div_u16, "div.u16", u16, u16, u16, none, b ? a / b : -1)                                                         \
    X(div_s32, "div.s32", s32, s32, s32, none, b ? (int32_t)((int64_t)a / b) : -1)                                     \
    X(div_u32, "div.u32", u32, u32, u32, none, b ? a / b : ~0u)                                                        \
    X(div_s64, "div.s64", s64, s64, s64, none, b == -1 ? (int64_t)(0 - (uint64_t)a) : b ? a / b : -1)                  \
    X(div_u64, "div.u64", u64, u64, u64, none, b ? a / b : ~0ull)                                                      \
    X(rem_s16, "rem.s16", s16, s16, s16, none, b ? a % b : a)                                                          \
    X(rem_u16, "rem.u16", u16, u16, u16, none, b ? a % b : a)                                                          \
    X(rem_s32, "rem.s32", s32, s32, s32, none, b ? (int32_t)((int64_t)a % b) : a)                                      \
    X(rem_u32, "rem.u32", u32, u32, u32, none, b ? a % b : a)                                                          \
    X(rem_s64, "rem.s64", s64, s64, s64, none, b == -1 ? 0 : b ? a % b : a)                                            \
    X(rem_u64, "rem.u64", u64, u64, u64, none, b ? a % b : a)                                                          \
    X(abs16, "abs.s16", u16, s16, none, none, a < 0 ? 0 - a : a)                                                       \
    X(abs32, "abs.s32", u32, u32, none, none, a >> 31 ? 0 - a : a)                                                     \
    X(abs64, "abs.s64", u64, u64, none, none, a >> 63 ? 0 - a : a)                                                     \
    X(neg16, "neg.s16", u16, u16, none, none, 0 - a)                                                                   \
    X(neg32, "neg.s32", u32, u32, none, none, 0 - a)                                                                   \
    X(neg64, "neg.s64", u64, u64, none, none, 0 - a)                                                                   \
    X(min_s16, "min.s16", s16, s16, s16, none, a < b ? a : b)                                                          \
    X(min_u16, "min.u16", u16, u16, u16, none, a < b ? a : b)                                                          \
    X(min_s32, "min.s32", s32, s32, s32, none, a < b ? a : b)                                                          \
    X(min_u32, "min.u32", u32, u32, u32, none, a < b ? a : b)                                                          \
    X(min_s64, "min.s64", s64, s64, s64, none, a < b ? a : b)                                                          \
    X(min_u64, "min.u64", u64, u64, u64, none, a < b ? a : b)                                                          \
    X(max_s16, "max.s16", s16, s16, s16, none, a > b ? a : b)                                                          \
    X(max_u16, "max.u16", u16, u16, u16, none, a > b ? a : b)                                                          \
    X(max_s32, "max.s32", s32, s32, s32, none, a > b ? a : b)                                                          \
    X(max_u32, "max.u32", u32, u32, u32, none, a > b ? a : b)                                                          \
    X(max_s64, "max.s64", s64, s64, s64, none, a > b ? a : b)                                                          \
    X(max_u64, "max.u64", u64, u64, u64, none, a > b ? a : b)                                                          \
    X(max_relu, "max.relu.s32", s32, s32, s32, none, (a > b ? a : b) > 0 ? (a > b ? a : b) : 0)                        \
    X(min_relu, "min.relu.s32", s32, s32, s32, none, (a < b ? a : b) > 0 ? (a < b ? a : b) : 0)                        \
    X(add_16x2, "add.s16x2 add.u16x2", u32, u32, u32, none, ((a + b) & 0xffff) | ((a & ~0xffffu) + (b & ~0xffffu)))    \
    X(max_s16x2, "max.s16x2", u32, u32, u32, none, PAIR(int16_t, x > y ? x : y))                                       \
    X(min_s16x2, "min.s16x2", u32, u32, u32, none, PAIR(int16_t, x < y ? x : y))                                       \
    X(max_u16x2, "max.u16x2", u32, u32, u32, none, PAIR(uint16_t, x > y ? x : y))                                      \
    X(min_u16x2, "min.u16x2", u32, u32, u32, none, PAIR(uint16_t, x < y ? x : y))                                      \
    X(vabsdiff4, "vabsdiff4.u32.u32.u32", u32, u32, u32, u32, byte_differences(a, b))                                  \
    X(sad_s32, "sad.s32", u32, s32, s32, u32, c + (uint32_t)(a > b ? (int64_t)a - b : (int64_t)b - a))                 \
    X(sad_u32, "sad.u32", u32, u32, u32, u32, c + (a > b ? a - b : b - a))                                             \
    X(and16, "and.b16", u16, u16, u16, none, a &b)                                                                     \
    X(and32, "and.b32", u32, u32, u32, none, a &b)                                                                     \
    X(and64, "and.b64", u64, u64, u64, none, a &b)                                                                     \
    X(and_pred, "and.pred", pred, pred, pred, none, a &b)                                                              \
    X(or16, "or.b16", u16, u16, u16, none, a | b)                                                                      \
    X(or32, "or.b32", u32, u32, u32, none, a | b)                                                                      \
    X(or64, "or.b64", u64, u64, u64, none, a | b)                                                                      \
    X(or_pred, "or.pred", pred, pred, pred, none, a | b)                                                               \
    X(xor16, "xor.b16", u16, u16, u16, none, a ^ b)                                                                    \
    X(xor32, "xor.b32", u32, u32, u32, none, a ^ b)                                                                    \
    X(xor64, "xor.b64", u64, u64, u64, none, a ^ b)                                                                    \
    X(xor_pred, "xor.pred", pred, pred, pred, none, a ^ b)                                                             \
    X(not16, "not.b16", u16, u16, none, none, ~a)                                                                      \
    X(not32, "not.b32", u32, u32, none, none, ~a)                                                                      \
    X(not64, "not.b64", u64, u64, none, none, ~a)                                                                      \
    X(not_pred, "not.pred", pred, pred, none, none, !a)                                                                \
    X(cnot32, "cnot.b32", u32, u32, none, none, !a)                                                                    \
    X(shl16, "shl.b16", u16, u16, u32, none, b < 16 ? (uint32_t)a << b : 0)                                            \
    X(shl32, "shl.b32", u32, u32, u32, none, b < 32 ? a << (b & 31) : 0)                                               \
    X(shl64, "shl.b64", u64, u64, u32, none, b < 64 ? a << (b & 63) : 0)                                               \
    X(shr_u16, "shr.u16 shr.b16", u16, u16, u32, none, b < 16 ? (uint32_t)a >> b : 0)                                  \
    X(shr_u32, "shr.u32 shr.b32", u32, u32, u32, none, b < 32 ? a >> (b & 31) : 0)                                     \
    X(shr_u64, "shr.u64 shr.b64", u64, u64, u32, none, b < 64 ? a >> (b & 63) : 0)                                     \
    X(shr_s16, "shr.s16", s16, s16, u32, none, a >> (b < 15 ? b : 15))                                                 \
    X(shr_s32, "shr.s32", s32, s32, u32, none, a >> (b < 31 ? b : 31))                                                 \
    X(shr_s64, "shr.s64", s64, s64, u32, none, a >> (b < 63 ? b : 63))                                                 \
    X(shf_l_wrap, "shf.l.wrap.b32", u32, u32, u32, u32, funnel(b, a) << (c & 31) >> 32)                                \
    X(shf_l_clamp, "shf.l.clamp.b32", u32, u32, u32, u32, funnel(b, a) << (c < 32 ? c : 32) >> 32)                     \
    X(shf_r_wrap, "shf.r.wrap.b32", u32, u32, u32, u32, funnel(b, a) >> (c & 31))                                      \
    X(shf_r_clamp, "shf.r.clamp.b32", u32, u32, u32, u32, funnel(b, a) >> (c < 32 ? c : 32))                           \
    X(popc32, "popc.b32", u32, u32, none, none, (uint32_t)__builtin_popcount(a))                                       \
    X(popc64, "popc.b64", u32, u64, none, none, (uint32_t)__builtin_popcountll(a))                                     \
    X(clz32, "clz.b32", u32, u32, none, none, a ? (uint32_t)__builtin_clz(a) : 32)                                     \
    X(clz64, "clz.b64", u32, u64, none, none, a ? (uint32_t)__builtin_clzll(a) : 64)                                   \
    X(bfind_u32, "bfind.u32", u32, u32, none, none, a ? 31 - (uint32_t)__builtin_clz(a) : ~0u)                         \
    X(bfind_shift_u32, "bfind.shiftamt.u32", u32, u32, none, none, a ? (uint32_t)__builtin_clz(a) : ~0u)               \
    X(bfind_u64, "bfind.u64", u32, u64, none, none, a ? 63 - (uint32_t)__builtin_clzll(a) : ~0u)                       \
    X(brev32, "brev.b32", u32, u32, none, none, reverse_bits(a))                                                       \
    X(brev64, "brev.b64", u64, u64, none, none,                                                                        \
      (uint64_t)reverse_bits((uint32_t)a) << 32 | reverse_bits((uint32_t)(a >> 32)))                                   \
    X(bfe_u32, "bfe.u32", u32, u32, u32, u32, (uint32_t)extract_bits(a, b & 255, c & 255, 32, false))                  \
    X(bfe_s32, "bfe.s32", u32, u32, u32, u32, (uint32_t)extract_bits(a, b & 255, c & 255, 32, true))                   \
    X(bfe_u64, "bfe.u64", u64, u64, u32, u32, extract_bits(a, b & 255, c & 255, 64, false))                            \
    X(bfe_s64, "bfe.s64", u64, u64, u32, u32, extract_bits(a, b & 255, c & 255, 64, true))                             \
    X(prmt, "prmt.b32", u32, u32, u32, u32, permute_bytes(a, b, c))                                                    \
    X(dp4a_ss, "dp4a.s32.s32", u32, u32, u32, u32, DP4A(int8_t, int8_t))                                               \
    X(dp4a_su, "dp4a.s32.u32", u32, u32, u32, u32, DP4A(int8_t, uint8_t))                                              \
    X(dp4a_us, "dp4a.u32.s32", u32, u32, u32, u32, DP4A(uint8_t, int8_t))                                              \
    X(dp4a_uu, "dp4a.u32.u32", u32, u32, u32, u32, DP4A(uint8_t, uint8_t))                                             \
    X(dp2a_lo_ss, "dp2a.lo.s32.s32", u32, u32, u32, u32, DP2A(int16_t, int8_t, 0))                                     \
    X(dp2a_lo_su, "dp2a.lo.s32.u32", u32, u32, u32, u32, DP2A(int16_t, uint8_t, 0))                                    \
    X(dp2a_lo_us, "dp2a.lo.u32.s32", u32, u32, u32, u32, DP2A(uint16_t, int8_t, 0))                                    \
    X(dp2a_lo_uu, "dp2a.lo.u32.u32", u32, u32, u32, u32, DP2A(uint16_t, uint8_t, 0))                                   \
    X(dp2a_hi_ss, "dp2a.hi.s32.s32", u32, u32, u32, u32, DP2A(int16_t, int8_t, 16))                                    \
    X(dp2a_hi_su, "dp2a.hi.s32.u32", u32, u32, u32, u32, DP2A(int16_t, uint8_t, 16))                                   \
    X(dp2a_hi_us, "dp2a.hi.u32.s32", u32, u32, u32, u32, DP2A(uint16_t, int8_t, 16))                                   \
    X(dp2a_hi_uu, "dp2a.hi.u32.u32", u32, u32, u32, u32, DP2A(uint16_t, uint8_t, 16))

#define PTX_FLOATS(X)                                                                                                  \
    X(add_f32, "add.rn.f32 add.f32", f32, f32, f32, none, a + b)                                                       \
    X(sub_f32, "sub.rn.f32 sub.f32", f32, f32, f32, none, a - b)                                                       \
    X(mul_f32, "mul.rn.f32 mul.f32", f32, f32, f32, none, a *b)                                                        \
    X(fma_f32, "fma.rn.f32 mad.rn.f32", f32, f32, f32, f32, __builtin_fmaf(a, b, c))                                   \
    X(div_f32, "div.rn.f32", f32, f32, f32, none, a / b)                                                               \
    X(rcp_f32, "rcp.rn.f32", f32, f32, none, none, 1.0f / a)                                                           \
    X(sqrt_f32, "sqrt.rn.f32", f32, f32, none, none, __builtin_sqrtf(a))                                               \
    X(add_f64, "add.rn.f64 add.f64", f64, f64, f64, none, a + b)                                                       \
    X(sub_f64, "sub.rn.f64 sub.f64", f64, f64, f64, none, a - b)                                                       \
    X(mul_f64, "mul.rn.f64 mul.f64", f64, f64, f64, none, a *b)                                                        \
    X(fma_f64, "fma.rn.f64 mad.rn.f64", f64, f64, f64, f64, __builtin_fma(a, b, c))                                    \
    X(div_f64, "div.rn.f64", f64, f64, f64, none, a / b)                                                               \
    X(rcp_f64, "rcp.rn.f64", f64, f64, none, none, 1.0 / a)                                                            \
    X(sqrt_f64, "sqrt.rn.f64", f64, f64, none, none, __builtin_sqrt(a))                                                \
    X(add_sat_f32, "add.rn.sat.f32 add.sat.f32", f32, f32, f32, none, clamp_01(a + b))                                 \
    X(mul_sat_f32, "mul.rn.sat.f32 mul.sat.f32", f32, f32, f32, none, clamp_01(a *b))                                  \
    X(fma_sat_f32, "fma.rn.sat.f32", f32, f32, f32, f32, clamp_01(__builtin_fmaf(a, b, c)))                            \
    X(min_f32, "min.f32", f32, f32, f32, none, smaller_f32(a, b))                                                      \
    X(max_f32, "max.f32", f32, f32, f32, none, larger_f32(a, b))                                                       \
    X(min_f64, "min.f64", f64, f64, f64, none, smaller_f64(a, b))                                                      \
    X(max_f64, "max.f64", f64, f64, f64, none, larger_f64(a, b))                                                       \
    X(neg_f32, "neg.f32", f32, f32, none, none, -a)                                                                    \
    X(abs_f32, "abs.f32", f32, f32, none, none, __builtin_fabsf(a))                                                    \
    X(neg_f64, "neg.f64", f64, f64, none, none, -a)                                                                    \
    X(abs_f64, "abs.f64", f64, f64, none, none, __builtin_fabs(a))                                                     \
    X(copysign_f32, "copysign.f32", u32, u32, u32, none, (a & 0x80000000u) | (b & 0x7fffffffu))                        \
    X(copysign_f64, "copysign.f64", u64, u64, u64, none, (a & 1ull << 63) | (b & ~(1ull << 63)))                       \
    X(isnan_f32, "testp.notanumber.f32", pred, f32, none, none, a != a)                                                \
    X(finite_f32, "testp.finite.f32", pred, f32, none, none, a - a == 0)                                               \
    X(infinite_f32, "testp.infinite.f32", pred, f32, none, none, a == a && a - a != 0)                                 \
    PTX_HALVES(X, f16, f16, "f16")                                                                                     \
    PTX_HALVES(X, bf16, bf16, "bf16")                                                                                  \
    PTX_PAIRS(X, f16, "f16x2")                                                                                         \
    PTX_PAIRS(X, bf16, "bf16x2")

/* A sum or product of two halves is exact enough in f32 that the second rounding changes nothing (24 >= 2 * 11 + 2). */
#define PTX_HALVES(X, T, F, text)                                                                                      \
    X(add_##F, "add.rn." text " add." text, T, T, T, none, a + b)                                                      \
    X(sub_##F, "sub.rn." text " sub." text, T, T, T, none, a - b)                                                      \
    X(mul_##F, "mul.rn." text " mul." text, T, T, T, none, a *b)                                                       \
    X(fma_##F, "fma.rn." text, u16, u16, u16, u16, fma_##F##_bits(a, b, c))                                            \
    X(min_##F, "min." text, T, T, T, none, smaller_f32(a, b))                                                          \
    X(max_##F, "max." text, T, T, T, none, larger_f32(a, b))                                                           \
    X(neg_##F, "neg." text, u16, u16, none, none, a ^ 0x8000)                                                          \
    X(abs_##F, "abs." text, u16, u16, none, none, a & 0x7fff)

#define PTX_PAIRS(X, F, text)                                                                                          \
    X(add_##F##x2, "add.rn." text " add." text, u32, u32, u32, none,                                                   \
      BOTH(F, LOW(F, a) + LOW(F, b), HIGH(F, a) + HIGH(F, b)))                                                         \
    X(sub_##F##x2, "sub.rn." text " sub." text, u32, u32, u32, none,                                                   \
      BOTH(F, LOW(F, a) - LOW(F, b), HIGH(F, a) - HIGH(F, b)))                                                         \
    X(mul_##F##x2, "mul.rn." text " mul." text, u32, u32, u32, none,                                                   \
      BOTH(F, LOW(F, a) * LOW(F, b), HIGH(F, a) * HIGH(F, b)))                                                         \
    X(fma_##F##x2, "fma.rn." text, u32, u32, u32, u32,                                                                 \
      fma_##F##_bits((uint16_t)a, (uint16_t)b, (uint16_t)c) |                                                          \
          (uint32_t)fma_##F##_bits((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16)) << 16)               \
    X(min_##F##x2, "min." text, u32, u32, u32, none,                                                                   \
      BOTH(F, smaller_f32(LOW(F, a), LOW(F, b)), smaller_f32(HIGH(F, a), HIGH(F, b))))                                 \
    X(max_##F##x2, "max." text, u32, u32, u32, none,                                                                   \
      BOTH(F, larger_f32(LOW(F, a), LOW(F, b)), larger_f32(HIGH(F, a), HIGH(F, b))))                                   \
    X(neg_##F##x2, "neg." text, u32, u32, none, none, a ^ 0x80008000u)                                                 \
    X(abs_##F##x2, "abs." text, u32, u32, none, none, a & 0x7fff7fffu)

/* Comparisons.  Those of floats that end in u are true, the others false, if an operand is NaN. */
#define PTX_COMPARE_BITS(X, n)                                                                                         \
    X(setp_eq##n, "setp.eq.s" #n " setp.eq.u" #n " setp.eq.b" #n, pred, u##n, u##n, none, a == b)                      \
    X(setp_ne##n, "setp.ne.s" #n " setp.ne.u" #n " setp.ne.b" #n, pred, u##n, u##n, none, a != b)                      \
    PTX_COMPARE_ORDER(X, s##n)                                                                                         \
    PTX_COMPARE_ORDER(X, u##n)                                                                                         \
    X(setp_lo##n, "setp.lo.u" #n, pred, u##n, u##n, none, a < b)                                                       \
    X(setp_ls##n, "setp.ls.u" #n, pred, u##n, u##n, none, a <= b)                                                      \
    X(setp_hi##n, "setp.hi.u" #n, pred, u##n, u##n, none, a > b)                                                       \
    X(setp_hs##n, "setp.hs.u" #n, pred, u##n, u##n, none, a >= b)
#define PTX_COMPARE_ORDER(X, T)                                                                                        \
    X(setp_lt_##T, "setp.lt." #T, pred, T, T, none, a < b)                                                             \
    X(setp_le_##T, "setp.le." #T, pred, T, T, none, a <= b)                                                            \
    X(setp_gt_##T, "setp.gt." #T, pred, T, T, none, a > b)                                                             \
    X(setp_ge_##T, "setp.ge." #T, pred, T, T, none, a >= b)
#define PTX_COMPARE_FLOAT(X, T)                                                                                        \
    PTX_COMPARE_ORDER(X, T)                                                                                            \
    X(setp_eq_##T, "setp.eq." #T, pred, T, T, none, a == b)                                                            \
    X(setp_ne_##T, "setp.ne." #T, pred, T, T, none, (a < b) | (a > b))                                                 \
    X(setp_equ_##T, "setp.equ." #T, pred, T, T, none, !((a < b) | (a > b)))                                            \
    X(setp_neu_##T, "setp.neu." #T, pred, T, T, none, a != b)                                                          \
    X(setp_ltu_##T, "setp.ltu." #T, pred, T, T, none, !(a >= b))                                                       \
    X(setp_leu_##T, "setp.leu." #T, pred, T, T, none, !(a > b))                                                        \
    X(setp_gtu_##T, "setp.gtu." #T, pred, T, T, none, !(a <= b))                                                       \
    X(setp_geu_##T, "setp.geu." #T, pred, T, T, none, !(a < b))                                                        \
    X(setp_num_##T, "setp.num." #T, pred, T, T, none, (a == a) & (b == b))                                             \
    X(setp_nan_##T, "setp.nan." #T, pred, T, T, none, (a != a) | (b != b))
#define PTX_COMPARES(X)                                                                                                \
    PTX_COMPARE_BITS(X, 16)                                                                                            \
    PTX_COMPARE_BITS(X, 32)                                                                                            \
    PTX_COMPARE_BITS(X, 64)                                                                                            \
    PTX_COMPARE_FLOAT(X, f16)                                                                                          \
    PTX_COMPARE_FLOAT(X, bf16)                                                                                         \
    PTX_COMPARE_FLOAT(X, f32)                                                                                          \
    PTX_COMPARE_FLOAT(X, f64)

/* Conversions.  Those with directed rounding, saturation or unusual types are OP_CONVERT (convert.c). */
#define PTX_CONVERT_INTEGER(X, D)                                                                                      \
    X(cvt_##D##_u8, "cvt." #D ".u8", D, u8, none, none, a)                                                             \
    X(cvt_##D##_s8, "cvt." #D ".s8", D, s8, none, none, a)                                                             \
    X(cvt_##D##_u16, "cvt." #D ".u16", D, u16, none, none, a)                                                          \
    X(cvt_##D##_s16, "cvt." #D ".s16", D, s16, none, none, a)                                                          \
    X(cvt_##D##_u32, "cvt." #D ".u32", D, u32, none, none, a)                                                          \
    X(cvt_##D##_s32, "cvt." #D ".s32", D, s32, none, none, a)                                                          \
    X(cvt_##D##_u64, "cvt." #D ".u64", D, u64, none, none, a)                                                          \
    X(cvt_##D##_s64, "cvt." #D ".s64", D, s64, none, none, a)
#define PTX_CONVERT_TO_FLOAT(X, D, F)                                                                                  \
    X(cvt_##D##_u8, "cvt.rn." #D ".u8", D, u8, none, none, (F)a)                                                       \
    X(cvt_##D##_s8, "cvt.rn." #D ".s8", D, s8, none, none, (F)a)                                                       \
    X(cvt_##D##_u16, "cvt.rn." #D ".u16", D, u16, none, none, (F)a)                                                    \
    X(cvt_##D##_s16, "cvt.rn." #D ".s16", D, s16, none, none, (F)a)                                                    \
    X(cvt_##D##_u32, "cvt.rn." #D ".u32", D, u32, none, none, (F)a)                                                    \
    X(cvt_##D##_s32, "cvt.rn." #D ".s32", D, s32, none, none, (F)a)                                                    \
    X(cvt_##D##_u64, "cvt.rn." #D ".u64", D, u64, none, none, (F)a)                                                    \
    X(cvt_##D##_s64, "cvt.rn." #D ".s64", D, s64, none, none, (F)a)
#define PTX_CONVERTS(X)                                                                                                \
    PTX_CONVERT_INTEGER(X, u8)                                                                                         \
    PTX_CONVERT_INTEGER(X, s8)                                                                                         \
    PTX_CONVERT_INTEGER(X, u16)                                                                                        \
    PTX_CONVERT_INTEGER(X, s16)                                                                                        \
    PTX_CONVERT_INTEGER(X, u32)                                                                                        \
    PTX_CONVERT_INTEGER(X, s32)                                                                                        \
    PTX_CONVERT_INTEGER(X, u64)                                                                                        \
    PTX_CONVERT_INTEGER(X, s64)                                                                                        \
    PTX_CONVERT_TO_FLOAT(X, f32, float)                                                                                \
    PTX_CONVERT_TO_FLOAT(X, f64, double)                                                                               \
    X(cvt_f32_f32, "cvt.f32.f32", f32, f32, none, none, a)                                                             \
    X(cvt_f64_f32, "cvt.f64.f32", f64, f32, none, none, a)                                                             \
    X(cvt_f32_f64, "cvt.rn.f32.f64", f32, f64, none, none, (float)a)                                                   \
    X(cvt_f32_f16, "cvt.f32.f16", f32, f16, none, none, a)                                                             \
    X(cvt_f32_bf16, "cvt.f32.bf16", f32, bf16, none, none, a)                                                          \
    X(cvt_f64_f16, "cvt.f64.f16", f64, f16, none, none, a)                                                             \
    X(cvt_f16_f32, "cvt.rn.f16.f32", f16, f32, none, none, a)                                                          \
    X(cvt_bf16_f32, "cvt.rn.bf16.f32", bf16, f32, none, none, a)                                                       \
    X(cvt_f16x2, "cvt.rn.f16x2.f32", u32, f32, f32, none, BOTH(f16, b, a))                                             \
    X(cvt_bf16x2, "cvt.rn.bf16x2.f32", u32, f32, f32, none, BOTH(bf16, b, a))                                          \
    X(cvt_rzi_s32_f32, "cvt.rzi.s32.f32", s32, f32, none, none, f32_to_s32(a))                                         \
    X(cvt_rni_s32_f32, "cvt.rni.s32.f32", s32, f32, none, none, f32_to_s32(__builtin_rintf(a)))                        \
    X(cvt_rmi_s32_f32, "cvt.rmi.s32.f32", s32, f32, none, none, f32_to_s32(__builtin_floorf(a)))                       \
    X(cvt_rpi_s32_f32, "cvt.rpi.s32.f32", s32, f32, none, none, f32_to_s32(__builtin_ceilf(a)))                        \
    X(cvt_rni_f32_f32, "cvt.rni.f32.f32", f32, f32, none, none, __builtin_rintf(a))                                    \
    X(cvt_rzi_f32_f32, "cvt.rzi.f32.f32", f32, f32, none, none, __builtin_truncf(a))                                   \
    X(cvt_rmi_f32_f32, "cvt.rmi.f32.f32", f32, f32, none, none, __builtin_floorf(a))                                   \
    X(cvt_rpi_f32_f32, "cvt.rpi.f32.f32", f32, f32, none, none, __builtin_ceilf(a))                                    \
    X(cvt_rni_f64_f64, "cvt.rni.f64.f64", f64, f64, none, none, __builtin_rint(a))                                     \
    X(cvt_rzi_f64_f64, "cvt.rzi.f64.f64", f64, f64, none, none, __builtin_trunc(a))                                    \
    X(cvt_rmi_f64_f64, "cvt.rmi.f64.f64", f64, f64, none, none, __builtin_floor(a))                                    \
    X(cvt_rpi_f64_f64, "cvt.rpi.f64.f64", f64, f64, none, none, __builtin_ceil(a))                                     \
    X(cvt_sat_f32, "cvt.sat.f32.f32", f32, f32, none, none, clamp_01(a))

/* Moves carry undefined values; every other operation on one gives one. */
#define PTX_MOVES(X)                                                                                                   \
    X(mov32, "mov.b32 mov.u32 mov.s32 mov.f32 mov.b16 mov.u16 mov.s16 mov.f16", u32, u32, none, none, a)               \
    X(mov64, "mov.b64 mov.u64 mov.s64 mov.f64", u64, u64, none, none, a)                                               \
    X(mov_pred, "mov.pred", pred, pred, none, none, a)                                                                 \
    X(selp32, "selp.b32 selp.u32 selp.s32 selp.f32", u32, u32, u32, pred, c ? a : b)                                   \
    X(selp16, "selp.b16 selp.u16 selp.s16", u16, u16, u16, pred, c ? a : b)                                            \
    X(selp64, "selp.b64 selp.u64 selp.s64 selp.f64", u64, u64, u64, pred, c ? a : b)                                   \
    X(pack_2x16, "pack.2x16", u32, u16, u16, none, a | (uint32_t)b << 16)                                              \
    X(pack_2x32, "pack.2x32", u64, u32, u32, none, a | (uint64_t)b << 32)                                              \
    X(low_16, "low.16", u32, u32, none, none, a & 0xffff)                                                              \
    X(high_16, "high.16", u32, u32, none, none, a >> 16)                                                               \
    X(low_32, "low.32", u32, u64, none, none, (uint32_t)a)                                                             \
    X(high_32, "high.32", u32, u64, none, none, (uint32_t)(a >> 32))                                                   \
    X(extend_u32, "extend.u32", u64, u32, none, none, a)                                                               \
    X(extend_s32, "extend.s32", s64, s32, none, none, a)

#define PTX_ARITHMETIC(X) PTX_INTEGERS(X) PTX_FLOATS(X) PTX_COMPARES(X) PTX_CONVERTS(X) PTX_MOVES(X)

#endif
