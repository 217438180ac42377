/* kernels/formats.h - how numbers are stored.  Valid in C and in CUDA C.
 *
 * A weight matrix has n_out rows of n_in values.  In a GGUF file a row is a run of blocks.  In memory 16
 * rows are interleaved: a *panel* holds, block by block along n_in, the 16 rows' blocks with every
 * field's bytes side by side, so that one 32-bit lane is one row and no sum crosses lanes.  Nothing is
 * unpacked: a panel is exactly 16 file rows long (scales stay packed), and the last panel of a matrix is
 * filled up with zero rows.
 *
 * The interleaved block of 16 rows, field by field (l = row in the panel, 0..15):
 *   F32, F16, BF16   v[16]                           one value of each row: k ascending
 *   Q8_0             d[16], q[8][16][4]              k = 4*i + j sits at q[i][l][j]
 *   Q4_K             d[16], dmin[16], sc[12][16], q[32][16][4]
 *                    sc[i][l] is byte i of the row's packed 6-bit scales; q[8*p + i][l][j] has
 *                    k = 64*p + 4*i + j in its low and k + 32 in its high nibble
 *   Q6_K             d[16], sc[16][16], ql[32][16][4], qh[16][16][4]
 *                    k = 128*h + 32*f + 4*i + j (h 0..1, f 0..3, i 0..7):
 *                    low nibble for f < 2 and high for f >= 2 of ql[16*h + 8*(f&1) + i][l][j];
 *                    bits 2f..2f+1 of qh[8*h + i][l][j]
 *   MXFP4            e[16], q[4][16][4]              k = 4*i + j is the low and k + 16 the high nibble
 *                    of q[i][l][j]; nibble c stands for entry c of KN_E2M1_TWICE times 2^(e - 128)
 *
 * Activations are quantised row by row into blocks that carry their own scale and the sums of each 16
 * codes: 256 values for k-quants, 32 for Q8_0 and MXFP4.  Float formats read float32 activations. */
#ifndef KERNELS_FORMATS_H
#define KERNELS_FORMATS_H

#include <stdint.h>

#define KN_PANEL 16                       /* rows interleaved */

/* name, GGUF type number, values per block, bytes per block, activation kind */
#define KN_FORMATS(X)                                 \
    X(F32,  0,  1,   4,   KN_ACT_F32)                 \
    X(F16,  1,  1,   2,   KN_ACT_F32)                 \
    X(BF16, 30, 1,   2,   KN_ACT_F32)                 \
    X(Q8_0, 8,  32,  34,  KN_ACT_Q32)                 \
    X(Q4_K, 12, 256, 144, KN_ACT_Q256)                \
    X(Q6_K, 14, 256, 210, KN_ACT_Q256)                \
    X(MXFP4, 39, 32, 17,  KN_ACT_Q32)

enum kn_act { KN_ACT_F32, KN_ACT_Q32, KN_ACT_Q256, KN_ACT_COUNT };

enum kn_format {
#define KN_ENUM(name, type, values, bytes, act) KN_##name,
    KN_FORMATS(KN_ENUM)
#undef KN_ENUM
    KN_FORMAT_COUNT
};

/* One row's block, as in the file. */
struct kn_q8_0 { uint16_t d; int8_t q[32]; };
struct kn_q4_k { uint16_t d, dmin; uint8_t sc[12], q[128]; };
struct kn_q6_k { uint8_t ql[128], qh[64]; int8_t sc[16]; uint16_t d; };
struct kn_mxfp4 { uint8_t e, q[16]; };

/* Sixteen rows' block, as in memory. */
struct kn_q8_0_x16 { uint16_t d[16]; int8_t q[8][16][4]; };
struct kn_q4_k_x16 { uint16_t d[16], dmin[16]; uint8_t sc[12][16], q[32][16][4]; };
struct kn_q6_k_x16 { uint16_t d[16]; int8_t sc[16][16]; uint8_t ql[32][16][4], qh[16][16][4]; };
struct kn_mxfp4_x16 { uint8_t e[16], q[4][16][4]; };

/* Twice the values of a 4-bit float with 2 bits of exponent and 1 of fraction: whole numbers. */
#define KN_E2M1_TWICE 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* Quantised activations: x = d * q, q in [-127, 127]; sum[i] is the sum of codes 16*i .. 16*i+15. */
struct kn_x32  { float d; int16_t sum[2];  int8_t q[32];  };
struct kn_x256 { float d; int16_t sum[16]; int8_t q[256]; };

#ifdef __cplusplus
#define KN_STATIC_ASSERT static_assert
#else
#define KN_STATIC_ASSERT _Static_assert
#endif
KN_STATIC_ASSERT(sizeof(struct kn_q8_0) == 34 && sizeof(struct kn_q8_0_x16) == 16 * 34, "Q8_0");
KN_STATIC_ASSERT(sizeof(struct kn_q4_k) == 144 && sizeof(struct kn_q4_k_x16) == 16 * 144, "Q4_K");
KN_STATIC_ASSERT(sizeof(struct kn_q6_k) == 210 && sizeof(struct kn_q6_k_x16) == 16 * 210, "Q6_K");
KN_STATIC_ASSERT(sizeof(struct kn_mxfp4) == 17 && sizeof(struct kn_mxfp4_x16) == 16 * 17, "MXFP4");
KN_STATIC_ASSERT(sizeof(struct kn_x32) == 40 && sizeof(struct kn_x256) == 292, "activations");

#endif
