/* kernels/cpu/vector.tmpl.c - norm, softmax, swiglu, rope, sums and KV rows, per instruction set.
 *
 * Equal to cpu/reference.c bit for bit. Each function makes a few passes over rows that are in the L1
 * or L2 cache. To be as fast as loads and stores, the 64 accumulators of a sum are kept in registers,
 * and no operation waits for another lane. */
#include "kernels/cpu/simd_int8.h"
#include "kernels/internal.h"

#include <math.h>

/* ---- sums and norms ------------------------------------------------------------------------- */

/* The sum of x or of its squares.  The last registers are filled up with zeros.  Adding them changes no accumulator, because none
 * is ever -0. */
KN_INLINE float sum_of(const float *x, int n, bool squares)
{
    vf acc[KN_ACCS];
    for (int j = 0; j < KN_ACCS; j++)
        acc[j] = vf_zero();
    for (int i = 0; i < n; i += 64) {
        for (int j = 0; j < KN_ACCS; j++) {
            int at = i + j * KN_LANES;
            if (at >= n)
                break;
            vf v = load_some(x + at, n - at);
            acc[j] = squares ? vf_fma(v, v, acc[j]) : vf_add(acc[j], v);
        }
    }
    return sum_accumulators(acc);
}

void KN_FN(kn_rms_norm)(const float *x, const float *w, float eps, int n, float *y)
{
    float scale = 1.0f / sqrtf(sum_of(x, n, true) / (float)n + eps);
    vf inv = vf_set1(scale);
    for (int i = 0; i < n; i += KN_LANES) {
        vf v = vf_mul(load_some(x + i, n - i), inv);
        store_some(y + i, vf_mul(v, load_some(w + i, n - i)), n - i);
    }
}

void KN_FN(kn_center)(const float *x, int n, float *y)
{
    vf mean = vf_set1(sum_of(x, n, false) / (float)n);
    for (int i = 0; i < n; i += KN_LANES)
        store_some(y + i, vf_sub(load_some(x + i, n - i), mean), n - i);
}

void KN_FN(kn_softmax)(float *x, int n)
{
    vf sum = vf_set1(sum_exp(x, KN_FN(kn_largest)(x, n), n, x));
    for (int i = 0; i < n; i += KN_LANES)
        store_some(x + i, vf_div(load_some(x + i, n - i), sum), n - i);
}

/* ---- element by element --------------------------------------------------------------------- */

void KN_FN(kn_swiglu)(const float *gate, const float *up, int n, float *y)
{
    vf one = vf_set1(1.0f), minus_zero = vf_set1(-0.0f);
    for (int i = 0; i < n; i += KN_LANES) {
        vf g = load_some(gate + i, n - i), u = load_some(up + i, n - i);
        vf minus_g = vf_bits(vi_xor(vi_bits(g), vi_bits(minus_zero)));
        vf s = vf_div(g, vf_add(one, vf_exp(minus_g)));
        store_some(y + i, vf_mul(s, u), n - i);
    }
}

void KN_FN(kn_swiglu_clamped)(const float *gate, const float *up, float alpha, float limit, int n, float *y)
{
    vf one = vf_set1(1.0f), minus_zero = vf_set1(-0.0f), top = vf_set1(limit), a = vf_set1(alpha);
    for (int i = 0; i < n; i += KN_LANES) {
        vf g = vf_min(top, load_some(gate + i, n - i)), u = vf_min(top, load_some(up + i, n - i));
        vf minus = vf_bits(vi_xor(vi_bits(vf_mul(a, g)), vi_bits(minus_zero)));
        u = vf_max(vf_set1(-limit), u);
        vf s = vf_div(g, vf_add(one, vf_exp(minus)));
        store_some(y + i, vf_mul(s, vf_add(u, one)), n - i);
    }
}

void KN_FN(kn_gate)(float *x, const float *by, int n)
{
    vf one = vf_set1(1.0f), minus_zero = vf_set1(-0.0f);
    for (int i = 0; i < n; i += KN_LANES) {
        vf minus = vf_bits(vi_xor(vi_bits(load_some(by + i, n - i)), vi_bits(minus_zero)));
        store_some(x + i, vf_div(load_some(x + i, n - i), vf_add(one, vf_exp(minus))), n - i);
    }
}

void KN_FN(kn_cap)(float *x, float cap, int n)
{
    vf most = vf_set1(cap);
    for (int i = 0; i < n; i += KN_LANES)
        store_some(x + i, vf_mul(most, vf_tanh(vf_div(load_some(x + i, n - i), most))), n - i);
}

void KN_FN(kn_conv)(const float *const *x, const float *w, int n_tap, int n, float *y)
{
    vf one = vf_set1(1.0f), minus_zero = vf_set1(-0.0f);
    for (int i = 0; i < n; i += KN_LANES) {
        vf sum = vf_zero();
        for (int j = 0; j < n_tap; j++) {
            vf by = load_some(w + (size_t)j * (size_t)n + (size_t)i, n - i);
            sum = vf_fma(by, load_some(x[j] + i, n - i), sum);
        }
        vf minus = vf_bits(vi_xor(vi_bits(sum), vi_bits(minus_zero)));
        store_some(y + i, vf_div(sum, vf_add(one, vf_exp(minus))), n - i);
    }
}

void KN_FN(kn_add)(float *x, const float *y, int n)
{
    for (int i = 0; i < n; i += KN_LANES)
        store_some(x + i, vf_add(load_some(x + i, n - i), load_some(y + i, n - i)), n - i);
}

void KN_FN(kn_add_scaled)(float *x, float a, const float *y, int n)
{
    vf factor = vf_set1(a);
    for (int i = 0; i < n; i += KN_LANES) {
        vf v = vf_fma(factor, load_some(y + i, n - i), load_some(x + i, n - i));
        store_some(x + i, v, n - i);
    }
}

/* ---- rotation ------------------------------------------------------------------------------- */

/* Loads KN_LANES pairs {cos, sin}: *c gets the cosines, *s the sines. */
KN_INLINE void load_turns(const float *turn, vf *c, vf *s)
{
    vf a = vf_load(turn), b = vf_load(turn + KN_LANES);
#if KN_LANES == 16
    vi even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *c = _mm512_permutex2var_ps(a, even, b);
    *s = _mm512_permutex2var_ps(a, vi_add(even, vi_set1(1)), b);
#else
    vi order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    *c = _mm256_permutevar8x32_ps(vf_evens(a, b), order);
    *s = _mm256_permutevar8x32_ps(vf_odds(a, b), order);
#endif
}

/* Rotates KN_LANES / 2 pairs (x[2 i], x[2 i + 1]); turn: {cos, sin} of each. */
KN_INLINE vf turn_pairs(vf x, vf turn)
{
#if KN_LANES == 16
    vf a = _mm512_moveldup_ps(x), b = _mm512_movehdup_ps(x);
    vf swapped = _mm512_permute_ps(turn, 0xb1);
    return _mm512_fmaddsub_ps(a, turn, vf_mul(b, swapped));
#else
    vf a = _mm256_moveldup_ps(x), b = _mm256_movehdup_ps(x);
    vf swapped = _mm256_permute_ps(turn, 0xb1);
    return _mm256_fmaddsub_ps(a, turn, vf_mul(b, swapped));
#endif
}

KN_INLINE void turn_one(float *pa, float *pb, const float turn[2])
{
    float a = *pa, b = *pb;
    *pa = fmaf(a, turn[0], -(b * turn[1]));
    *pb = fmaf(a, turn[1], b * turn[0]);
}

static void rope_halves(float *x, int n_head, int d_head, int n_pair, const float (*turn)[2])
{
    int i = 0;
    for (; i + KN_LANES <= n_pair; i += KN_LANES) {
        vf c, s;
        load_turns(turn[i], &c, &s);
        for (int h = 0; h < n_head; h++) {
            float *pa = x + (size_t)h * (size_t)d_head + i, *pb = pa + n_pair;
            vf a = vf_load(pa), b = vf_load(pb), minus_s = vf_sub(vf_set1(-0.0f), s);
            vf_store(pa, vf_fma(a, c, vf_mul(b, minus_s)));
            vf_store(pb, vf_fma(a, s, vf_mul(b, c)));
        }
    }
    for (; i < n_pair; i++)
        for (int h = 0; h < n_head; h++) {
            float *pa = x + (size_t)h * (size_t)d_head + i;
            turn_one(pa, pa + n_pair, turn[i]);
        }
}

static void rope_pairs(float *x, int n_head, int d_head, int n_pair, const float (*turn)[2])
{
    for (int h = 0; h < n_head; h++, x += d_head) {
        int i = 0;
        for (; i + KN_LANES / 2 <= n_pair; i += KN_LANES / 2)
            vf_store(x + 2 * i, turn_pairs(vf_load(x + 2 * i), vf_load(turn[i])));
        for (; i < n_pair; i++)
            turn_one(x + 2 * i, x + 2 * i + 1, turn[i]);
    }
}

void KN_FN(kn_rope)(float *x, int n_head, int d_head, int n_rot, const float (*turn)[2], enum kn_rope kind)
{
    if (kind == KN_ROPE_PAIRS)
        rope_pairs(x, n_head, d_head, n_rot / 2, turn);
    else
        rope_halves(x, n_head, d_head, n_rot / 2, turn);
}

/* ---- keys and values ------------------------------------------------------------------------ */

static void store_int8(const float *x, int n, int8_t *out, float *scale)
{
    for (; n > 0; n -= KN_KV_BLOCK, x += KN_KV_BLOCK, out += KN_KV_BLOCK) {
        int8_t code[KN_KV_BLOCK];
        *scale++ = code_some(x, n, code);
        memcpy(out, code, (size_t)kn_min(n, KN_KV_BLOCK));
    }
}

static void store_f16(const float *x, int n, uint16_t *half)
{
    uint16_t last[KN_LANES];
    int i = 0;
    for (; i + KN_LANES <= n; i += KN_LANES)
        vf_store_f16(half + i, vf_load(x + i));
    if (i < n) {
        vf_store_f16(last, vf_load_n(x + i, n - i));
        memcpy(half + i, last, (size_t)(n - i) * sizeof *half);
    }
}

void KN_FN(kn_kv_store)(enum kn_kv kv, const float *x, int n, void *out, float *scale)
{
    if (kv == KN_KV_F32)
        memcpy(out, x, (size_t)n * sizeof *x);
    else if (kv == KN_KV_INT8)
        store_int8(x, n, out, scale);
    else
        store_f16(x, n, out);
}
