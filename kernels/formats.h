/* kernels/formats.h - how numbers are stored.  Valid in C and in CUDA C.
 *
 * A weight matrix has n_out rows of n_in values.  In a file a row is a sequence of blocks.  In memory 16
 * rows are interleaved: a *panel* holds, block by block along n_in, the 16 rows' blocks with every
 * field's bytes side by side.  So each 32-bit lane of a vector belongs to one row, and no sum crosses
 * lanes.  Nothing is unpacked: a panel is exactly 16 file rows long (scales stay packed).  The last panel
 * of a matrix is padded with zero rows.
 *
 * The interleaved block of 16 rows, field by field (l: row in the panel, 0..15; k: value in the row's block):
 *   F32, F16, BF16   v[16]                           one value of each row: k ascending
 *   Q8_0             d[16], q[8][16][4]              k = 4*i + j sits at q[i][l][j]
 *   Q4_0, IQ4_NL     d[16], q[4][16][4]              In these six formats, Q4_0 to MXFP4, k = 4*i + j is the low and
 *   Q4_1             d[16], m[16], q                 k + 16 the high nibble of q[i][l][j].  Q4_0 subtracts 8; a
 *   Q5_0             d[16], qh[16][4], q             nibble of IQ4_NL is an index into KN_IQ4; Q4_1 and Q5_1 add
 *   Q5_1             d[16], m[16], qh[16][4], q      m.  Bit k of the 32 in qh[l] adds 16 to value k, and Q5_0
 *   MXFP4            e[16], q                        subtracts 16.  A nibble of MXFP4 is an index into
 *                                                    KN_E2M1_TWICE, with a factor of 2^(e - 128).
 *   Q4_K             d[16], dmin[16], sc[12][16], q[32][16][4]
 *                    sc[i][l] is byte i of the row's packed 6-bit scales; q[8*p + i][l][j] has
 *                    k = 64*p + 4*i + j in its low and k + 32 in its high nibble
 *   Q5_K             as Q4_K, with qh[8][16][4] before q: bit k / 32 of qh[i][l][j] adds 16 to value k
 *   Q6_K             d[16], sc[16][16], ql[32][16][4], qh[16][16][4]
 *                    k = 128*h + 32*f + 4*i + j (h 0..1, f 0..3, i 0..7):
 *                    low nibble for f < 2 and high for f >= 2 of ql[16*h + 8*(f&1) + i][l][j];
 *                    bits 2f..2f+1 of qh[8*h + i][l][j]
 *   Q2_K             d[16], dmin[16], sc[16][16], q[16][16][4]
 *                    sc: scale in the low nibble, minimum in the high; k as in Q6_K: bits 2f..2f+1 of
 *                    q[8*h + i][l][j]
 *   Q3_K             d[16], sc[12][16], qh[8][16][4], q[16][16][4]
 *                    q as in Q2_K, and bit 4*h + f of qh[i][l][j] adds 4; then 4 is subtracted.  sc: packed
 *                    6-bit scales
 *   IQ4_XS           d[16], sh[16], sl[16][4], q[32][16][4]
 *                    eight sub-blocks of 32, each with q as in IQ4_NL and a 6-bit scale, stored with 32 added
 *   IQ2_XXS          d[16], q[16][16][4]
 *                    q[2 * s][l][v] is the index of values 32 * s + 8 * v .. + 7 in the format's grid; the 32 bits
 *                    of q[2 * s + 1][l] have in bits 7 * v .. 7 * v + 6 their signs, and above the sub-block's scale
 *   IQ2_XS           d[16], sc[2][16][4], q[16][16][4]
 *                    the 16 bits of q[v / 2][l][v % 2 * 2]: index of values 8 * v .. + 7, 9 bits, and signs, 7 bits
 *   IQ2_S            d[16], qh[2][16][4], sc[2][16][4], sign[8][16][4], q[8][16][4]
 *                    v 0..31, s = v / 4: q[s][l][v % 4] with bits 2 * (v % 4), + 1 of qh[s / 4][l][s % 4] above is the
 *                    index of values 8 * v .. + 7; sign[s][l][v % 4] has their signs
 *   IQ3_XXS          d[16], q[16][16][4], s[8][16][4]
 *                    q[v / 4][l][v % 4] is the index of values 4 * v .. + 3, s[i][l] as q[2 * i + 1][l] of IQ2_XXS
 *   IQ3_S            d[16], qh[2][16][4], sc[16][4], sign[8][16][4], q[16][16][4]
 *                    v 0..63: as IQ3_XXS, and bit v % 8 of byte v / 8 of qh is the index's ninth bit; sign as in IQ2_S
 *                    In these five formats a value is a size out of the format's grid (kernels/cpu/grids.c) with a
 *                    sign; its bit 1 means negative.  Of 7 bits of signs the eighth makes the number of negative values
 *                    even.  The four bits of a scale s stand for 2 * s + 1: the nibbles of sc in order, each for 16
 *                    values, in IQ3_S for 32.
 *   IQ1_S            d[16], q[8][16][4], qh[4][16][4]
 *                    v 0..31, s = v / 4: q[s][l][v % 4] is the low byte of the index of values 8 * v .. + 7.  The 16 bits of
 *                    qh[s / 2][l][s % 2 * 2] have three more bits of each of four indices, three bits of scale, and the
 *                    twelfth bit of all four
 *   IQ1_M            q[8][16][4], qh[4][16][4], sc[2][16][4]
 *                    q as in IQ1_S; nibble v % 8 of qh[v / 8][l] has four more bits of an index.  Of the four numbers of 16
 *                    bits of sc, each has in its low bits the scales of four times 16 values, three bits each, and in its
 *                    high four bits a part of d, the lowest part first
 *                    In these two formats an index of eleven bits selects eight of -8, 0 and 8; a twelfth bit means that 1
 *                    is subtracted from each, else 1 is added.  A scale stands for 2 * s + 1.
 *   NVFP4            twice: d[2][16], q[4][16][4]
 *                    A block of 64 values is two of 32 in a panel.  k = 16 * s + 4 * i + j of these 32 (s 0..1, i 0..3) is
 *                    the low nibble of q[2 * s + i][l][j] for i < 2 and the high nibble of q[2 * s + i - 2][l][j] for
 *                    i >= 2: an index into KN_E2M1_TWICE.  d[s] is a float of 4 bits of exponent and 3 of fraction; its
 *                    sign does not count, and 0x7F means 0.
 *   FP8              d[16], q[128][16]               k sits at q[k][l]: sign, 4 bits of exponent, 3 of fraction
 *   INT4             d[16], q[4][16][4]              as Q4_0, but d is a BF16
 *   UINT4            d[16], z[16], q[4][16][4]       as Q4_0, but z is subtracted, not 8; files have 0..15
 *
 * GGUF has no FP8, INT4 or UINT4.  Models in these formats, and in MXFP4 and NVFP4, are published with codes and scales
 * in separate tensors; the loader joins each block with its scale, so that memory holds the blocks listed above.
 * FP8 is published with one scale per 128 by 128 values; here each row has its own copy of the scale, 3 %
 * more bytes.  An FP8 weight is d times the code's value, rounded once to float32, and a product equals that
 * of an F32 matrix of these weights bit for bit.
 *
 * Activations are quantised row by row into blocks: of 256 values for weight formats with blocks of 256, of 32 for
 * those with blocks of 32.  The codes of 256 values are one record, struct kn_codes, 320 bytes at an address that is a
 * multiple of 16, for both kinds; a row of n values is ceil(n / 256) records.  If n is no multiple of 256, the codes,
 * sums and scales of the last record from n on are zero: a product does not need them, but may load whole records.
 * Float formats and FP8 use float32 activations. */
#ifndef KERNELS_FORMATS_H
#define KERNELS_FORMATS_H

#include <stdint.h>

#define KN_PANEL 16  /* rows interleaved */
#define KN_GROUP 256 /* inputs of a group: a product adds up groups (kernels.h) */

/* name, GGUF type number, values per block, bytes per block, activation kind */
#define KN_GGUF_FORMATS(X)                                                                                             \
    X(F32, 0, 1, 4, KN_ACT_F32)                                                                                        \
    X(F16, 1, 1, 2, KN_ACT_F32)                                                                                        \
    X(BF16, 30, 1, 2, KN_ACT_F32)                                                                                      \
    X(Q8_0, 8, 32, 34, KN_ACT_Q32)                                                                                     \
    X(Q4_K, 12, 256, 144, KN_ACT_Q256)                                                                                 \
    X(Q6_K, 14, 256, 210, KN_ACT_Q256)                                                                                 \
    X(MXFP4, 39, 32, 17, KN_ACT_Q32)                                                                                   \
    X(Q4_0, 2, 32, 18, KN_ACT_Q32)                                                                                     \
    X(Q4_1, 3, 32, 20, KN_ACT_Q32)                                                                                     \
    X(Q5_0, 6, 32, 22, KN_ACT_Q32)                                                                                     \
    X(Q5_1, 7, 32, 24, KN_ACT_Q32)                                                                                     \
    X(Q5_K, 13, 256, 176, KN_ACT_Q256)                                                                                 \
    X(Q2_K, 10, 256, 84, KN_ACT_Q256)                                                                                  \
    X(Q3_K, 11, 256, 110, KN_ACT_Q256)                                                                                 \
    X(IQ4_NL, 20, 32, 18, KN_ACT_Q32)                                                                                  \
    X(IQ4_XS, 23, 256, 136, KN_ACT_Q256)                                                                               \
    X(IQ2_XXS, 16, 256, 66, KN_ACT_Q256)                                                                               \
    X(IQ2_XS, 17, 256, 74, KN_ACT_Q256)                                                                                \
    X(IQ2_S, 22, 256, 82, KN_ACT_Q256)                                                                                 \
    X(IQ3_XXS, 18, 256, 98, KN_ACT_Q256)                                                                               \
    X(IQ3_S, 21, 256, 110, KN_ACT_Q256)                                                                                \
    X(IQ1_S, 19, 256, 50, KN_ACT_Q256)                                                                                 \
    X(IQ1_M, 29, 256, 56, KN_ACT_Q256)                                                                                 \
    X(NVFP4, 40, 64, 36, KN_ACT_Q32)

/* Type numbers from KN_TYPE_OWN on are for formats that this project adds: no GGUF file has them. */
#define KN_TYPE_OWN 1000
#define KN_FORMATS(X)                                                                                                  \
    KN_GGUF_FORMATS(X)                                                                                                 \
    X(FP8, 1000, 128, 132, KN_ACT_F32)                                                                                 \
    X(INT4, 1001, 32, 18, KN_ACT_Q32)                                                                                  \
    X(UINT4, 1002, 32, 19, KN_ACT_Q32)

enum kn_act { KN_ACT_F32, KN_ACT_Q32, KN_ACT_Q256, KN_ACT_COUNT };

enum kn_format {
#define KN_ENUM(name, type, values, bytes, act) KN_##name,
    KN_FORMATS(KN_ENUM)
#undef KN_ENUM
        KN_FORMAT_COUNT,
    KN_GGUF_FORMAT_COUNT = KN_FP8 /* formats below this number are GGUF formats; only these can be written to files */
};

/* A block of one row, as in the file. */
struct kn_q8_0 {
    uint16_t d;
    int8_t q[32];
};
struct kn_q4_k {
    uint16_t d, dmin;
    uint8_t sc[12], q[128];
};
struct kn_q6_k {
    uint8_t ql[128], qh[64];
    int8_t sc[16];
    uint16_t d;
};
struct kn_mxfp4 {
    uint8_t e, q[16];
};
struct kn_q4_0 {
    uint16_t d;
    uint8_t q[16];
}; /* also for IQ4_NL and INT4 */
struct kn_q4_1 {
    uint16_t d, m;
    uint8_t q[16];
};
struct kn_q5_0 {
    uint16_t d;
    uint8_t qh[4], q[16];
};
struct kn_q5_1 {
    uint16_t d, m;
    uint8_t qh[4], q[16];
};
struct kn_q5_k {
    uint16_t d, dmin;
    uint8_t sc[12], qh[32], q[128];
};
struct kn_q2_k {
    uint8_t sc[16], q[64];
    uint16_t d, dmin;
};
struct kn_q3_k {
    uint8_t qh[32], q[64], sc[12];
    uint16_t d;
};
struct kn_iq4_xs {
    uint16_t d, sh;
    uint8_t sl[4], q[128];
};
struct kn_iq2_xxs {
    uint16_t d;
    uint8_t q[64];
};
struct kn_iq2_xs {
    uint16_t d;
    uint8_t q[64], sc[8];
};
struct kn_iq2_s {
    uint16_t d;
    uint8_t q[32], sign[32], qh[8], sc[8];
};
struct kn_iq3_xxs {
    uint16_t d;
    uint8_t q[64], s[32];
};
struct kn_iq3_s {
    uint16_t d;
    uint8_t q[64], qh[8], sign[32], sc[4];
};
struct kn_iq1_s {
    uint16_t d;
    uint8_t q[32], qh[16];
};
struct kn_iq1_m {
    uint8_t q[32], qh[16], sc[8];
};
struct kn_nvfp4 {
    uint8_t d[4], q[32];
};
struct kn_fp8 {
    float d;
    uint8_t q[128];
};
struct kn_uint4 {
    uint16_t d;
    uint8_t z, q[16];
} __attribute__((packed));

/* The blocks of 16 rows, as in memory. */
struct kn_q8_0_x16 {
    uint16_t d[16];
    int8_t q[8][16][4];
};
struct kn_q4_k_x16 {
    uint16_t d[16], dmin[16];
    uint8_t sc[12][16], q[32][16][4];
};
struct kn_q6_k_x16 {
    uint16_t d[16];
    int8_t sc[16][16];
    uint8_t ql[32][16][4], qh[16][16][4];
};
struct kn_mxfp4_x16 {
    uint8_t e[16], q[4][16][4];
};
struct kn_q4_0_x16 {
    uint16_t d[16];
    uint8_t q[4][16][4];
};
struct kn_q4_1_x16 {
    uint16_t d[16], m[16];
    uint8_t q[4][16][4];
};
struct kn_q5_0_x16 {
    uint16_t d[16];
    uint8_t qh[16][4], q[4][16][4];
};
struct kn_q5_1_x16 {
    uint16_t d[16], m[16];
    uint8_t qh[16][4], q[4][16][4];
};
struct kn_q5_k_x16 {
    uint16_t d[16], dmin[16];
    uint8_t sc[12][16], qh[8][16][4], q[32][16][4];
};
struct kn_q2_k_x16 {
    uint16_t d[16], dmin[16];
    uint8_t sc[16][16], q[16][16][4];
};
struct kn_q3_k_x16 {
    uint16_t d[16];
    uint8_t sc[12][16], qh[8][16][4], q[16][16][4];
};
struct kn_iq4_xs_x16 {
    uint16_t d[16], sh[16];
    uint8_t sl[16][4], q[32][16][4];
};
struct kn_iq2_xxs_x16 {
    uint16_t d[16];
    uint8_t q[16][16][4];
};
struct kn_iq2_xs_x16 {
    uint16_t d[16];
    uint8_t sc[2][16][4], q[16][16][4];
};
struct kn_iq2_s_x16 {
    uint16_t d[16];
    uint8_t qh[2][16][4], sc[2][16][4], sign[8][16][4], q[8][16][4];
};
struct kn_iq3_xxs_x16 {
    uint16_t d[16];
    uint8_t q[16][16][4], s[8][16][4];
};
struct kn_iq3_s_x16 {
    uint16_t d[16];
    uint8_t qh[2][16][4], sc[16][4], sign[8][16][4], q[16][16][4];
};
struct kn_iq1_s_x16 {
    uint16_t d[16];
    uint8_t q[8][16][4], qh[4][16][4];
};
struct kn_iq1_m_x16 {
    uint8_t q[8][16][4], qh[4][16][4], sc[2][16][4];
};
struct kn_nvfp4_half_x16 {
    uint8_t d[2][16], q[4][16][4];
};
struct kn_nvfp4_x16 {
    struct kn_nvfp4_half_x16 half[2];
};
struct kn_fp8_x16 {
    float d[16];
    uint8_t q[128][16];
};
struct kn_uint4_x16 {
    uint16_t d[16];
    uint8_t z[16], q[4][16][4];
};

/* Twice the values of MXFP4's and NVFP4's nibbles (floats with 2 exponent bits and 1 fraction bit), so that all are integers. */
#define KN_E2M1_TWICE 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* Values of the IQ4 formats' nibbles: dense near zero, where weights are. */
#define KN_IQ4 -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

/* Sizes of the values of the IQ2 formats, and half of those of IQ3_XXS.  In IQ3_S they are 1, 3, 5 .. 15.  The values of
 * the IQ1 formats before 1 is added or subtracted. */
#define KN_IQ2            8, 25, 43
#define KN_IQ1            -8, 0, 8
#define KN_IQ3_XXS_HALVES 2, 6, 10, 14, 18, 22, 26, 31

/* Codes of 256 quantised activations: x[k] = d[k / 32] * q[k], q in [-127, 127]. */
struct kn_codes {
    int8_t q[KN_GROUP];
    int16_t sum[KN_GROUP / 16]; /* sum[i]: of the codes 16 * i .. 16 * i + 15 */
    float d[KN_GROUP / 32];     /* KN_ACT_Q256: all are equal */
};

#ifdef __cplusplus
#define KN_STATIC_ASSERT static_assert
#else
#define KN_STATIC_ASSERT _Static_assert
#endif
#define KN_LAYOUT(name, bytes)                                                                                         \
    KN_STATIC_ASSERT(sizeof(struct kn_##name) == bytes && sizeof(struct kn_##name##_x16) == 16 * bytes, #name)
KN_LAYOUT(q8_0, 34);
KN_LAYOUT(q4_k, 144);
KN_LAYOUT(q6_k, 210);
KN_LAYOUT(mxfp4, 17);
KN_LAYOUT(q4_0, 18);
KN_LAYOUT(q4_1, 20);
KN_LAYOUT(q5_0, 22);
KN_LAYOUT(q5_1, 24);
KN_LAYOUT(q5_k, 176);
KN_LAYOUT(q2_k, 84);
KN_LAYOUT(q3_k, 110);
KN_LAYOUT(iq4_xs, 136);
KN_LAYOUT(iq2_xxs, 66);
KN_LAYOUT(iq2_xs, 74);
KN_LAYOUT(iq2_s, 82);
KN_LAYOUT(iq3_xxs, 98);
KN_LAYOUT(iq3_s, 110);
KN_LAYOUT(iq1_s, 50);
KN_LAYOUT(iq1_m, 56);
KN_LAYOUT(nvfp4, 36);
KN_LAYOUT(fp8, 132);
KN_LAYOUT(uint4, 19);
#undef KN_LAYOUT
KN_STATIC_ASSERT(sizeof(struct kn_codes) == 320, "codes");

#endif
