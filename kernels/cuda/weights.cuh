/* kernels/cuda/weights.cuh - the weights of each format, as products use them.
 *
 * One lane computes a group of 256 inputs for four neighbouring rows of a panel, `quad` 0..3: the bytes of four rows in
 * one field are neighbours, 16 bytes for fields of four bytes a row.  A format is a struct with
 *
 *     values, bytes      of a block of one row
 *     X                  the type of a row of activations
 *     add<N>(..)         adds the blocks of one group to acc[N][4], for N rows of activations, in the order of
 * kernels.h
 *
 * Integer weights of four inputs are packed in a 32-bit word, and multiplied with four activation codes by dp4a. 
 * Unsigned codes stay unsigned where the format subtracts a constant: the constant times the sum of the activation's
 * codes is subtracted instead. */
#ifndef KERNELS_CUDA_WEIGHTS_CUH
#define KERNELS_CUDA_WEIGHTS_CUH

#include "kernels/cuda/block.cuh"

/* Four words of four rows; four halves; four bytes in one word. */
KN_DEVICE void load_words(const void *field, int quad, uint32_t w[4])
{
    uint4 v = __ldg((const uint4 *)field + quad);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
}

KN_DEVICE void load_halves(const void *field, int quad, uint16_t h[4])
{
    uint2 v = __ldg((const uint2 *)field + quad);
    h[0] = (uint16_t)v.x, h[1] = (uint16_t)(v.x >> 16), h[2] = (uint16_t)v.y, h[3] = (uint16_t)(v.y >> 16);
}

KN_DEVICE uint32_t load_bytes(const void *field, int quad) { return __ldg((const uint32_t *)field + quad); }

KN_DEVICE int byte_of(uint32_t four, int i) { return (int)(four >> 8 * i & 255); }
KN_DEVICE int signed_byte_of(uint32_t four, int i) { return (int)(four << (24 - 8 * i)) >> 24; }

/* Four activation codes from input k of a record on. */
KN_DEVICE int codes_at(const struct kn_codes *x, int k) { return __ldg((const int *)(x->q + k)); }

/* The sum of 32 activation codes from input k on. */
KN_DEVICE int sum_32(const struct kn_codes *x, int k)
{
    int both = __ldg((const int *)(x->sum + k / 16));
    return (int)(int16_t)both + (both >> 16);
}

KN_DEVICE int sum_16(const struct kn_codes *x, int k) { return x->sum[k / 16]; }

/* Four values of a table of 16 bytes by the low nibble of each byte of index. */
template <class TABLE> KN_DEVICE uint32_t look_up(uint32_t index)
{
    uint32_t select = (index & 7) | (index >> 4 & 0x70) | (index >> 8 & 0x700) | (index >> 12 & 0x7000);
    uint32_t low = __byte_perm(TABLE::word(0), TABLE::word(1), select);
    uint32_t high = __byte_perm(TABLE::word(2), TABLE::word(3), select);
    uint32_t upper = (index >> 3 & 0x01010101) * 255; /* bytes whose index is 8 or more */
    return (low & ~upper) | (high & upper);
}

#define TABLE(name, ...)                                                                                               \
    struct name {                                                                                                      \
        static constexpr __device__ uint32_t word(int i)                                                               \
        {                                                                                                              \
            constexpr int value[] = { __VA_ARGS__ };                                                                   \
            return (uint32_t)(value[4 * i] & 255) | (uint32_t)(value[4 * i + 1] & 255) << 8 |                          \
                   (uint32_t)(value[4 * i + 2] & 255) << 16 | (uint32_t)(value[4 * i + 3] & 255) << 24;                \
        }                                                                                                              \
    }
TABLE(iq4_table, KN_IQ4);
TABLE(e2m1_table, KN_E2M1_TWICE);
#undef TABLE

/* ---- floats ------------------------------------------------------------------------------------------------ */

/* N rows of activations, the group's first inputs; acc[j][r] of row j of these and row 4 * quad + r of the panel. */
template <class T> struct weights_float {
    static constexpr int values = 1, bytes = T::bytes;
    typedef float X;
    template <int N>
    KN_DEVICE void add(const uint8_t *w, int quad, const float *const (&x)[N], int n, float (&acc)[N][4])
    {
#pragma unroll 8
        for (int k = 0; k < n; k++) {
            float v[4];
            T::load(w + (size_t)k * KN_PANEL * bytes, quad, v);
            for (int j = 0; j < N; j++)
                for (int r = 0; r < 4; r++)
                    acc[j][r] = fmaf(v[r], x[j][k], acc[j][r]);
        }
    }
};

struct load_f32 {
    static constexpr int bytes = 4;
    KN_DEVICE void load(const uint8_t *w, int quad, float v[4])
    {
        float4 four = __ldg((const float4 *)w + quad);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    }
};

struct load_f16 {
    static constexpr int bytes = 2;
    KN_DEVICE void load(const uint8_t *w, int quad, float v[4])
    {
        uint16_t h[4];
        load_halves(w, quad, h);
        for (int r = 0; r < 4; r++)
            v[r] = from_half(h[r]);
    }
};

struct load_bf16 {
    static constexpr int bytes = 2;
    KN_DEVICE void load(const uint8_t *w, int quad, float v[4])
    {
        uint16_t h[4];
        load_halves(w, quad, h);
        for (int r = 0; r < 4; r++)
            v[r] = from_bfloat(h[r]);
    }
};

typedef weights_float<load_f32> weights_F32;
typedef weights_float<load_f16> weights_F16;
typedef weights_float<load_bf16> weights_BF16;

/* An FP8 code's value / 256 (kn_e4m3_part()). */
KN_DEVICE float e4m3_part(int q)
{
    return from_half((uint16_t)((q & 0x80) << 8 | ((q & 0x7F) == 0x7F ? 0x7E00 : (q & 0x7F) << 7)));
}

struct weights_FP8 {
    static constexpr int values = 128, bytes = 132;
    typedef float X;
    template <int N>
    KN_DEVICE void add(const uint8_t *w, int quad, const float *const (&x)[N], int n, float (&acc)[N][4])
    {
        for (int k = 0; k < n; k += values) {
            const struct kn_fp8_x16 *b = (const struct kn_fp8_x16 *)w + k / values;
            float d[4];
            load_f32::load((const uint8_t *)b->d, quad, d);
#pragma unroll 8
            for (int i = 0; i < values; i++) {
                uint32_t four = load_bytes(b->q[i], quad);
                for (int j = 0; j < N; j++)
                    for (int r = 0; r < 4; r++)
                        acc[j][r] = fmaf((256.0f * d[r]) * e4m3_part(byte_of(four, r)), x[j][k + i], acc[j][r]);
            }
        }
    }
};

/* ---- blocks of 32 ------------------------------------------------------------------------------------------ */

/* T: words() loads the integer weights of inputs 4 * i .. + 3; offset is to be subtracted from each; scales() and, with
 * has_min, minimums() are those of the four rows. */
template <class T> struct weights_32 {
    static constexpr int values = 32, bytes = (int)sizeof(typename T::block) / KN_PANEL;
    typedef struct kn_codes X;
    template <int N>
    KN_DEVICE void add(const uint8_t *w, int quad, const struct kn_codes *const (&x)[N], int n, float (&acc)[N][4])
    {
#pragma unroll 1
        for (int k = 0; k < n; k += values) {
            const typename T::block *b = (const typename T::block *)w + k / values;
            int isum[N][4] = {};
            float d[4], m[4];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t word[4];
                T::words(b, quad, i, word);
                for (int j = 0; j < N; j++) {
                    int q = codes_at(x[j], k + 4 * i);
                    for (int r = 0; r < 4; r++)
                        isum[j][r] = __dp4a((int)word[r], q, isum[j][r]);
                }
            }
            T::scales(b, quad, d);
            if (T::has_min)
                T::minimums(b, quad, m);
            for (int j = 0; j < N; j++) {
                float dx = x[j]->d[k / 32];
                int sum = T::offset || T::has_min ? sum_32(x[j], k) : 0;
                for (int r = 0; r < 4; r++) {
                    acc[j][r] = fmaf(d[r] * dx, (float)(isum[j][r] - T::offset * sum), acc[j][r]);
                    if (T::has_min)
                        acc[j][r] = fmaf(m[r] * dx, (float)sum, acc[j][r]);
                }
            }
        }
    }
};

KN_DEVICE void half_scales(const void *field, int quad, float d[4])
{
    load_f16().load((const uint8_t *)field, quad, d);
}

/* Nibbles of inputs 4 * i .. + 3, as in Q4_0. */
KN_DEVICE void load_nibbles(const uint8_t q[4][16][4], int quad, int i, uint32_t word[4])
{
    load_words(q[i % 4], quad, word);
    for (int r = 0; r < 4; r++)
        word[r] = word[r] >> i / 4 * 4 & 0x0f0f0f0f;
}

/* Adds to four bytes 16 times the bits 4 * i .. + 3 of each row's high bits. */
KN_DEVICE void add_fifth_bits(const uint8_t qh[16][4], int quad, int i, uint32_t word[4])
{
    uint32_t bits[4];
    load_words(qh, quad, bits);
    for (int r = 0; r < 4; r++) {
        uint32_t four = bits[r] >> 4 * i & 15;
        word[r] |= ((four | four << 7 | four << 14 | four << 21) & 0x01010101) << 4;
    }
}

struct base_32 {
    static constexpr int offset = 0;
    static constexpr bool has_min = false;
    template <class B> KN_DEVICE void scales(const B *b, int quad, float d[4]) { half_scales(b->d, quad, d); }
    template <class B> KN_DEVICE void minimums(const B *, int, float *) {}
};

struct q8_0 : base_32 {
    typedef struct kn_q8_0_x16 block;
    KN_DEVICE void words(const block *b, int quad, int i, uint32_t w[4]) { load_words(b->q[i], quad, w); }
};

struct q4_0 : base_32 {
    typedef struct kn_q4_0_x16 block;
    static constexpr int offset = 8;
    KN_DEVICE void words(const block *b, int quad, int i, uint32_t w[4]) { load_nibbles(b->q, quad, i, w); }
};

struct q4_bf16 : q4_0 {
    KN_DEVICE void scales(const block *b, int quad, float d[4]) { load_bf16::load((const uint8_t *)b->d, quad, d); }
};

struct iq4_nl : base_32 {
    typedef struct kn_q4_0_x16 block;
    KN_DEVICE void words(const block *b, int quad, int i, uint32_t w[4])
    {
        load_nibbles(b->q, quad, i, w);
        for (int r = 0; r < 4; r++)
            w[r] = look_up<iq4_table>(w[r]);
    }
};

struct q4_1 : base_32 {
    typedef struct kn_q4_1_x16 block;
    static constexpr bool has_min = true;
    KN_DEVICE void words(const block *b, int quad, int i, uint32_t w[4]) { load_nibbles(b->q, quad, i, w); }
    KN_DEVICE void minimums(const block *b, int quad, float m[4]) { half_scales(b->m, quad, m); }
};

struct q5_0 : base_32 {
    typedef struct kn_q5_0_x16 block;
    static constexpr int offset = 16;
    KN_DEVICE void words(const block *b, int quad, int i, uint32_t w[4])
    {
        load_nibbles(b->q, quad, i, w);
        add_fifth_bits(b->qh, quad, i, w);
    }
};

struct q5_1 : base_32 {
    typedef struct kn_q5_1_x16 block;
    static constexpr bool has_min = true;
    KN_DEVICE void words(const block *b, int quad, int i, uint32_t w[4])
    {
        load_nibbles(b->q, quad, i, w);
        add_fifth_bits(b->qh, quad, i, w);
    }
    KN_DEVICE void minimums(const block *b, int quad, float m[4]) { half_scales(b->m, quad, m); }
};

/* kn_mxfp4_step() */
KN_DEVICE float mxfp4_step(int e) { return 0.5f * __uint_as_float(e ? (uint32_t)e << 23 : 0x00400000); }

struct mxfp4 : base_32 {
    typedef struct kn_mxfp4_x16 block;
    KN_DEVICE void words(const block *b, int quad, int i, uint32_t w[4])
    {
        load_nibbles(b->q, quad, i, w);
        for (int r = 0; r < 4; r++)
            w[r] = look_up<e2m1_table>(w[r]);
    }
    KN_DEVICE void scales(const block *b, int quad, float d[4])
    {
        uint32_t four = load_bytes(b->e, quad);
        for (int r = 0; r < 4; r++)
            d[r] = mxfp4_step(byte_of(four, r));
    }
};

struct uint4_zero : base_32 {
    typedef struct kn_uint4_x16 block;
    KN_DEVICE void words(const block *b, int quad, int i, uint32_t w[4])
    {
        uint32_t zero = load_bytes(b->z, quad);
        load_nibbles(b->q, quad, i, w);
        for (int r = 0; r < 4; r++) /* bytes of 128 + code - zero point need no borrow */
            w[r] = ((w[r] | 0x80808080) - (uint32_t)byte_of(zero, r) * 0x01010101) ^ 0x80808080;
    }
};

/* kn_nvfp4_step() */
KN_DEVICE float nvfp4_step(int d) { return (d & 0x7F) == 0x7F ? 0 : 128.0f * e4m3_part(d & 0x7F); }

/* As weights_32, with a scale for each 16 inputs. */
struct weights_NVFP4 {
    static constexpr int values = 32, bytes = (int)sizeof(struct kn_nvfp4_half_x16) / KN_PANEL;
    typedef struct kn_codes X;
    template <int N>
    KN_DEVICE void add(const uint8_t *w, int quad, const struct kn_codes *const (&x)[N], int n, float (&acc)[N][4])
    {
#pragma unroll 1
        for (int k = 0; k < n; k += 16) {
            const struct kn_nvfp4_half_x16 *b = (const struct kn_nvfp4_half_x16 *)w + k / values;
            int isum[N][4] = {}, s = k / 16 % 2;
            uint32_t d = load_bytes(b->d[s], quad);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t word[4];
                load_words(b->q[2 * s + i % 2], quad, word);
                for (int r = 0; r < 4; r++)
                    word[r] = look_up<e2m1_table>(word[r] >> i / 2 * 4 & 0x0f0f0f0f);
                for (int j = 0; j < N; j++) {
                    int q = codes_at(x[j], k + 4 * i);
                    for (int r = 0; r < 4; r++)
                        isum[j][r] = __dp4a((int)word[r], q, isum[j][r]);
                }
            }
            for (int j = 0; j < N; j++)
                for (int r = 0; r < 4; r++)
                    acc[j][r] = fmaf(nvfp4_step(byte_of(d, r)) * x[j]->d[k / 32], (float)isum[j][r], acc[j][r]);
        }
    }
};

typedef weights_32<q8_0> weights_Q8_0;
typedef weights_32<q4_0> weights_Q4_0;
typedef weights_32<q4_1> weights_Q4_1;
typedef weights_32<q5_0> weights_Q5_0;
typedef weights_32<q5_1> weights_Q5_1;
typedef weights_32<iq4_nl> weights_IQ4_NL;
typedef weights_32<mxfp4> weights_MXFP4;
typedef weights_32<q4_bf16> weights_INT4;
typedef weights_32<uint4_zero> weights_UINT4;

/* ---- blocks of 256 ----------------------------------------------------------------------------------------- */

/* The scale of row l of a block; IQ1_M has it in parts of four bits. */
template <class B> KN_DEVICE uint16_t block_half(const B *b, int l) { return b->d[l]; }
KN_DEVICE uint16_t block_half(const struct kn_iq1_m_x16 *b, int l)
{
    uint32_t low = __ldg((const uint32_t *)b->sc[0][l]), high = __ldg((const uint32_t *)b->sc[1][l]);
    return (uint16_t)((low >> 12 & 15) | (low >> 28) << 4 | (high >> 12 & 15) << 8 | (high >> 28) << 12);
}

template <class B> KN_DEVICE void block_scales(const B *b, int quad, float d[4]) { half_scales(b->d, quad, d); }
KN_DEVICE void block_scales(const struct kn_iq1_m_x16 *b, int quad, float d[4])
{
    for (int r = 0; r < 4; r++)
        d[r] = from_half(block_half(b, 4 * quad + r));
}

/* T: sum<N>() adds the block's integer sums to isum, and those of its minimums to msum; step: a factor of all scales.
 * */
template <class T> struct weights_256 {
    static constexpr int values = 256, bytes = (int)sizeof(typename T::block) / KN_PANEL;
    typedef struct kn_codes X;
    template <int N>
    KN_DEVICE void add(const uint8_t *w, int quad, const struct kn_codes *const (&x)[N], int, float (&acc)[N][4])
    {
        const typename T::block *b = (const typename T::block *)w;
        int isum[N][4] = {}, msum[N][4] = {};
        float d[4], dmin[4];
        T::template sum<N>(b, quad, x, isum, msum);
        block_scales(b, quad, d);
        T::minimums(b, quad, dmin);
        for (int r = 0; r < 4; r++)
            d[r] = d[r] * T::step; /* a power of two */
        for (int j = 0; j < N; j++) {
            float dx = x[j]->d[0];
            for (int r = 0; r < 4; r++) {
                acc[j][r] = fmaf(d[r] * dx, (float)isum[j][r], acc[j][r]);
                if (T::has_min)
                    acc[j][r] = fmaf(-(dmin[r] * dx), (float)msum[j][r], acc[j][r]);
            }
        }
    }
};

/* Scales and minimums of sub-block `sub` of four rows, a byte each (kn_q4_k_scales()). */
KN_DEVICE void q4_k_scales(const uint8_t sc[12][16], int quad, int sub, uint32_t *scale, uint32_t *min)
{
    uint32_t a = load_bytes(sc[sub & 3], quad), b = load_bytes(sc[4 + (sub & 3)], quad);
    if (sub < 4) {
        *scale = a & 0x3f3f3f3f;
        *min = b & 0x3f3f3f3f;
        return;
    }
    uint32_t c = load_bytes(sc[8 + (sub & 3)], quad);
    *scale = (c & 0x0f0f0f0f) | (a >> 6 & 0x03030303) << 4;
    *min = (c >> 4 & 0x0f0f0f0f) | (b >> 6 & 0x03030303) << 4;
}

/* Q4_K, and Q5_K with a fifth bit of each code. */
template <class B> struct k_with_min {
    typedef B block;
    static constexpr bool has_min = true;
    static constexpr float step = 1;
    KN_DEVICE void minimums(const B *b, int quad, float m[4]) { half_scales(b->dmin, quad, m); }
    template <int N>
    KN_DEVICE void sum(const B *b, int quad, const struct kn_codes *const (&x)[N], int (&isum)[N][4], int (&msum)[N][4])
    {
#pragma unroll 1
        for (int p = 0; p < 4; p++) { /* sub-blocks 2 * p and 2 * p + 1 */
            int dot[2][N][4] = {};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t word[4], high[4];
                load_words(b->q[8 * p + i], quad, word);
                fifth_bits(b, quad, i, high);
                for (int j = 0; j < N; j++) {
                    int low_q = codes_at(x[j], 64 * p + 4 * i), high_q = codes_at(x[j], 64 * p + 32 + 4 * i);
                    for (int r = 0; r < 4; r++) {
                        uint32_t low = (word[r] & 0x0f0f0f0f) | (high[r] >> 2 * p & 0x01010101) << 4;
                        uint32_t upper = (word[r] >> 4 & 0x0f0f0f0f) | (high[r] >> (2 * p + 1) & 0x01010101) << 4;
                        dot[0][j][r] = __dp4a((int)low, low_q, dot[0][j][r]);
                        dot[1][j][r] = __dp4a((int)upper, high_q, dot[1][j][r]);
                    }
                }
            }
            for (int s = 0; s < 2; s++) {
                uint32_t scale, min;
                q4_k_scales(b->sc, quad, 2 * p + s, &scale, &min);
                for (int j = 0; j < N; j++) {
                    int x_sum = sum_32(x[j], 64 * p + 32 * s);
                    for (int r = 0; r < 4; r++) {
                        isum[j][r] += byte_of(scale, r) * dot[s][j][r];
                        msum[j][r] += byte_of(min, r) * x_sum;
                    }
                }
            }
        }
    }
    KN_DEVICE void fifth_bits(const struct kn_q4_k_x16 *, int, int, uint32_t h[4]) { h[0] = h[1] = h[2] = h[3] = 0; }
    KN_DEVICE void fifth_bits(const struct kn_q5_k_x16 *b, int quad, int i, uint32_t h[4])
    {
        load_words(b->qh[i], quad, h);
    }
};

/* Formats whose input k = 128 * h + 32 * f + 4 * i + j is in field f of bytes that four fields share, with a scale for
 * each 16 inputs.  T: words() makes the codes of four fields; scale() the scales of four rows for inputs 16 * s .. +
 * 15, a byte each; scale_of() a row's from these; offset is to be subtracted from each code. */
template <class T> struct k_by_16 {
    typedef typename T::block block;
    static constexpr bool has_min = T::has_min;
    static constexpr float step = 1;
    KN_DEVICE void minimums(const block *b, int quad, float m[4]) { T::minimums(b, quad, m); }
    template <int N>
    KN_DEVICE void sum(const block *b, int quad, const struct kn_codes *const (&x)[N], int (&isum)[N][4],
                       int (&msum)[N][4])
    {
#pragma unroll 1
        for (int part = 0; part < 4; part++) { /* h, and half of the values of i */
            int h = part / 2, i0 = part % 2 * 4;
            uint32_t scale[4];
            for (int f = 0; f < 4; f++)
                scale[f] = T::scale(b, quad, 8 * h + 2 * f + part % 2);
#pragma unroll
            for (int i = i0; i < i0 + 4; i++) {
                uint32_t word[4][4];
                T::words(b, quad, h, i, word);
                for (int f = 0; f < 4; f++)
                    for (int j = 0; j < N; j++) {
                        int q = codes_at(x[j], 128 * h + 32 * f + 4 * i);
                        for (int r = 0; r < 4; r++)
                            isum[j][r] += T::scale_of(scale[f], r) * __dp4a((int)word[f][r], q, 0);
                    }
            }
            for (int f = 0; f < 4; f++)
                for (int j = 0; j < N; j++) {
                    int x_sum = sum_16(x[j], 128 * h + 32 * f + 4 * i0);
                    for (int r = 0; r < 4; r++) {
                        isum[j][r] -= T::scale_of(scale[f], r) * (T::offset * x_sum);
                        if (has_min)
                            msum[j][r] += T::minimum_of(scale[f], r) * x_sum;
                    }
                }
        }
    }
};

struct no_minimums {
    static constexpr bool has_min = false;
    template <class B> KN_DEVICE void minimums(const B *, int, float *) {}
    KN_DEVICE int minimum_of(uint32_t, int) { return 0; }
};

struct q6_k : no_minimums {
    typedef struct kn_q6_k_x16 block;
    static constexpr int offset = 32;
    KN_DEVICE uint32_t scale(const block *b, int quad, int s) { return load_bytes(b->sc[s], quad); }
    KN_DEVICE int scale_of(uint32_t four, int r) { return signed_byte_of(four, r); }
    KN_DEVICE void words(const block *b, int quad, int h, int i, uint32_t word[4][4])
    {
        uint32_t low[2][4], high[4];
        load_words(b->ql[16 * h + i], quad, low[0]);
        load_words(b->ql[16 * h + 8 + i], quad, low[1]);
        load_words(b->qh[8 * h + i], quad, high);
        for (int f = 0; f < 4; f++)
            for (int r = 0; r < 4; r++)
                word[f][r] = (low[f % 2][r] >> f / 2 * 4 & 0x0f0f0f0f) | (high[r] >> 2 * f & 0x03030303) << 4;
    }
};

struct q2_k {
    typedef struct kn_q2_k_x16 block;
    static constexpr int offset = 0;
    static constexpr bool has_min = true;
    KN_DEVICE void minimums(const block *b, int quad, float m[4]) { half_scales(b->dmin, quad, m); }
    KN_DEVICE uint32_t scale(const block *b, int quad, int s) { return load_bytes(b->sc[s], quad); }
    KN_DEVICE int scale_of(uint32_t four, int r) { return byte_of(four, r) & 15; }
    KN_DEVICE int minimum_of(uint32_t four, int r) { return byte_of(four, r) >> 4; }
    KN_DEVICE void words(const block *b, int quad, int h, int i, uint32_t word[4][4])
    {
        uint32_t all[4];
        load_words(b->q[8 * h + i], quad, all);
        for (int f = 0; f < 4; f++)
            for (int r = 0; r < 4; r++)
                word[f][r] = all[r] >> 2 * f & 0x03030303;
    }
};

struct q3_k : no_minimums {
    typedef struct kn_q3_k_x16 block;
    static constexpr int offset = 4;
    KN_DEVICE uint32_t scale(const block *b, int quad, int s) /* with 32 added */
    {
        uint32_t low = load_bytes(b->sc[s % 8], quad) >> s / 8 * 4 & 0x0f0f0f0f;
        return low | (load_bytes(b->sc[8 + s % 4], quad) >> s / 4 * 2 & 0x03030303) << 4;
    }
    KN_DEVICE int scale_of(uint32_t four, int r) { return byte_of(four, r) - 32; }
    KN_DEVICE void words(const block *b, int quad, int h, int i, uint32_t word[4][4])
    {
        uint32_t all[4], high[4];
        load_words(b->q[8 * h + i], quad, all);
        load_words(b->qh[i], quad, high);
        for (int f = 0; f < 4; f++)
            for (int r = 0; r < 4; r++)
                word[f][r] = (all[r] >> 2 * f & 0x03030303) | (high[r] >> (4 * h + f) & 0x01010101) << 2;
    }
};

struct iq4_xs : no_minimums {
    typedef struct kn_iq4_xs_x16 block;
    static constexpr float step = 1;
    template <int N>
    KN_DEVICE void sum(const block *b, int quad, const struct kn_codes *const (&x)[N], int (&isum)[N][4], int (&)[N][4])
    {
        uint32_t low[4];
        uint16_t high[4];
        load_words(b->sl, quad, low);
        load_halves(b->sh, quad, high);
#pragma unroll 1
        for (int s = 0; s < 8; s++) {
            int dot[N][4] = {};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t word[4];
                load_nibbles(b->q + 4 * s, quad, i, word);
                for (int j = 0; j < N; j++) {
                    int q = codes_at(x[j], 32 * s + 4 * i);
                    for (int r = 0; r < 4; r++)
                        dot[j][r] = __dp4a((int)look_up<iq4_table>(word[r]), q, dot[j][r]);
                }
            }
            for (int r = 0; r < 4; r++) {
                int scale = (int)((low[r] >> 4 * s & 15) | ((uint32_t)high[r] >> 2 * s & 3) << 4) - 32;
                for (int j = 0; j < N; j++)
                    isum[j][r] += scale * dot[j][r];
            }
        }
    }
};

/* ---- grids --------------------------------------------------------------------------------------------------- */

/* The points of the grids (kernels/internal.h), which the host copies to each module that has this variable. */
extern "C" {
__device__ struct kn_cuda_grids kn_cuda_grids;
}

/* Signs of eight values, of which seven bits are stored: the number of negative values is even. */
KN_DEVICE uint32_t all_signs(uint32_t bits)
{
    uint32_t seven = bits & 127;
    return seven | (uint32_t)(__popc(seven) & 1) << 7;
}

/* Four sizes, of which those with a bit in the low bits of sign become negative; no size is 0. */
KN_DEVICE uint32_t with_signs(uint32_t sizes, uint32_t sign)
{
    uint32_t one = ((sign & 15) * 0x00204081) & 0x01010101;
    return (sizes ^ one * 255) + one;
}

/* T: point() makes eight integer weights of values 8 * i .. + 7 of row r of four, as two words, without the scale;
 * scale() is s of the factor 2 * s + 1 that they have. */
template <class T> struct k_grid {
    typedef typename T::block block;
    static constexpr bool has_min = false;
    static constexpr float step = T::step;
    KN_DEVICE void minimums(const block *, int, float *) {}
    template <int N>
    KN_DEVICE void sum(const block *b, int quad, const struct kn_codes *const (&x)[N], int (&isum)[N][4], int (&)[N][4])
    {
#pragma unroll 1
        for (int s = 0; s < 8; s++)
#pragma unroll
            for (int v = 0; v < 4; v++) {
                int i = 4 * s + v;
                for (int r = 0; r < 4; r++) {
                    uint32_t word[2];
                    int l = 4 * quad + r, factor = 2 * T::scale(b, l, i) + 1;
                    T::point(b, l, i, word);
                    for (int j = 0; j < N; j++) {
                        int dot = __dp4a((int)word[0], codes_at(x[j], 8 * i), 0);
                        isum[j][r] += factor * __dp4a((int)word[1], codes_at(x[j], 8 * i + 4), dot);
                    }
                }
            }
    }
};

/* Byte i, or nibble i, of row l in a field of four bytes a row. */
KN_DEVICE int grid_byte(const uint8_t (*field)[16][4], int l, int i) { return field[i / 4][l][i % 4]; }
KN_DEVICE int grid_nibble(const uint8_t (*field)[16][4], int l, int i)
{
    return grid_byte(field, l, i / 2) >> i % 2 * 4 & 15;
}
KN_DEVICE uint32_t grid_word(const uint8_t (*field)[16][4], int l, int i)
{
    return __ldg((const uint32_t *)field[i][l]);
}

KN_DEVICE void eight_of(const uint8_t *point, uint32_t sign, uint32_t word[2])
{
    uint2 sizes = __ldg((const uint2 *)point);
    word[0] = with_signs(sizes.x, sign);
    word[1] = with_signs(sizes.y, sign >> 4);
}

KN_DEVICE void four_and_four(const uint8_t *first, const uint8_t *second, uint32_t sign, uint32_t word[2])
{
    word[0] = with_signs(__ldg((const uint32_t *)first), sign);
    word[1] = with_signs(__ldg((const uint32_t *)second), sign >> 4);
}

struct iq2_xxs {
    typedef struct kn_iq2_xxs_x16 block;
    static constexpr float step = 0.125f;
    KN_DEVICE int scale(const block *b, int l, int i) { return (int)(grid_word(b->q, l, i / 4 * 2 + 1) >> 28); }
    KN_DEVICE void point(const block *b, int l, int i, uint32_t word[2])
    {
        int index = b->q[i / 4 * 2][l][i % 4];
        eight_of(kn_cuda_grids.iq2_xxs[index], all_signs(grid_word(b->q, l, i / 4 * 2 + 1) >> i % 4 * 7), word);
    }
};

struct iq2_xs {
    typedef struct kn_iq2_xs_x16 block;
    static constexpr float step = 0.125f;
    KN_DEVICE int scale(const block *b, int l, int i) { return grid_nibble(b->sc, l, i / 2); }
    KN_DEVICE void point(const block *b, int l, int i, uint32_t word[2])
    {
        uint32_t q = grid_word(b->q, l, i / 2) >> i % 2 * 16 & 0xffff;
        eight_of(kn_cuda_grids.iq2_xs[q & 511], all_signs(q >> 9), word);
    }
};

struct iq2_s {
    typedef struct kn_iq2_s_x16 block;
    static constexpr float step = 0.125f;
    KN_DEVICE int scale(const block *b, int l, int i) { return grid_nibble(b->sc, l, i / 2); }
    KN_DEVICE void point(const block *b, int l, int i, uint32_t word[2])
    {
        int index = grid_byte(b->q, l, i) | (grid_byte(b->qh, l, i / 4) >> i % 4 * 2 & 3) << 8;
        eight_of(kn_cuda_grids.iq2_s[index], (uint32_t)grid_byte(b->sign, l, i), word);
    }
};

struct iq3_xxs {
    typedef struct kn_iq3_xxs_x16 block;
    static constexpr float step = 0.5f;
    KN_DEVICE int scale(const block *b, int l, int i) { return (int)(grid_word(b->s, l, i / 4) >> 28); }
    KN_DEVICE void point(const block *b, int l, int i, uint32_t word[2])
    {
        int first = grid_byte(b->q, l, 2 * i), second = grid_byte(b->q, l, 2 * i + 1);
        four_and_four(kn_cuda_grids.iq3_xxs[first], kn_cuda_grids.iq3_xxs[second],
                      all_signs(grid_word(b->s, l, i / 4) >> i % 4 * 7), word);
    }
};

struct iq3_s {
    typedef struct kn_iq3_s_x16 block;
    static constexpr float step = 1;
    KN_DEVICE int scale(const block *b, int l, int i) { return b->sc[l][i / 8] >> i / 4 % 2 * 4 & 15; }
    KN_DEVICE void point(const block *b, int l, int i, uint32_t word[2])
    {
        int high = grid_byte(b->qh, l, i / 4) >> i % 4 * 2;
        int first = grid_byte(b->q, l, 2 * i) | (high & 1) << 8;
        int second = grid_byte(b->q, l, 2 * i + 1) | (high & 2) << 7;
        four_and_four(kn_cuda_grids.iq3_s[first], kn_cuda_grids.iq3_s[second], (uint32_t)grid_byte(b->sign, l, i),
                      word);
    }
};

KN_DEVICE void eight_of_iq1(int index, uint32_t word[2])
{
    uint2 values = __ldg((const uint2 *)kn_cuda_grids.iq1[index]);
    word[0] = values.x;
    word[1] = values.y;
}

struct iq1_s {
    typedef struct kn_iq1_s_x16 block;
    static constexpr float step = 0.125f;
    KN_DEVICE uint32_t bits(const block *b, int l, int i) { return grid_word(b->qh, l, i / 8) >> i / 4 % 2 * 16; }
    KN_DEVICE int scale(const block *b, int l, int i) { return (int)(bits(b, l, i) >> 12 & 7); }
    KN_DEVICE void point(const block *b, int l, int i, uint32_t word[2])
    {
        int high = (int)((bits(b, l, i) >> i % 4 * 3 & 7) | (bits(b, l, i) >> 15 & 1) << 3);
        eight_of_iq1(grid_byte(b->q, l, i) | high << 8, word);
    }
};

struct iq1_m {
    typedef struct kn_iq1_m_x16 block;
    static constexpr float step = 0.125f;
    KN_DEVICE int scale(const block *b, int l, int i)
    {
        return (int)(grid_word(b->sc, l, i / 16) >> (i / 8 % 2 * 16 + i / 2 % 4 * 3) & 7);
    }
    KN_DEVICE void point(const block *b, int l, int i, uint32_t word[2])
    {
        eight_of_iq1(grid_byte(b->q, l, i) | grid_nibble(b->qh, l, i) << 8, word);
    }
};

typedef weights_256<k_grid<iq1_s>> weights_IQ1_S;
typedef weights_256<k_grid<iq1_m>> weights_IQ1_M;
typedef weights_256<k_grid<iq2_xxs>> weights_IQ2_XXS;
typedef weights_256<k_grid<iq2_xs>> weights_IQ2_XS;
typedef weights_256<k_grid<iq2_s>> weights_IQ2_S;
typedef weights_256<k_grid<iq3_xxs>> weights_IQ3_XXS;
typedef weights_256<k_grid<iq3_s>> weights_IQ3_S;
typedef weights_256<k_with_min<struct kn_q4_k_x16>> weights_Q4_K;
typedef weights_256<k_with_min<struct kn_q5_k_x16>> weights_Q5_K;
typedef weights_256<k_by_16<q6_k>> weights_Q6_K;
typedef weights_256<k_by_16<q2_k>> weights_Q2_K;
typedef weights_256<k_by_16<q3_k>> weights_Q3_K;
typedef weights_256<iq4_xs> weights_IQ4_XS;

#endif
