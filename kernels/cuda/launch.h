/* kernels/cuda/launch.h - numbers that the kernels and their launches must agree on.  Valid in C and in CUDA C. */
#ifndef KERNELS_CUDA_LAUNCH_H
#define KERNELS_CUDA_LAUNCH_H

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/pass.h"
#ifdef __cplusplus
}
#endif
#include "kernels/cpu/expf.h"

#define KN_CUDA_ROW_THREADS 256 /* of kernels with one block for each row */

/* Products (products.cuh): a block has 4 threads for each slot, and a slot computes one group at a time. */
#define KN_CUDA_SLOTS 32
#define KN_CUDA_ROWS  4 /* rows of activations for which a block reads its weights once; also 1 */

/* Slots of one panel: the number of groups in a row of n_in, rounded up to a power of two, or all slots. */
KN_SHARED int kn_cuda_groups(int n_in)
{
    int n = 1;
    while (n < KN_CUDA_SLOTS && n * KN_GROUP < n_in)
        n *= 2;
    return n;
}

/* Panels that a block computes side by side. */
KN_SHARED int kn_cuda_panels(int n_in) { return KN_CUDA_SLOTS / kn_cuda_groups(n_in); }

/* The points of the grids of the IQ1, IQ2 and IQ3 formats, as in kernels/internal.h. */
struct kn_cuda_grids {
    uint8_t iq2_xxs[256][8], iq2_xs[512][8], iq2_s[1024][8];
    uint8_t iq3_xxs[256][4], iq3_s[512][4];
    int8_t iq1[4096][8];
};

/* Formats of weights in products. */
#define KN_CUDA_FORMATS(X)                                                                                             \
    X(F32)                                                                                                             \
    X(F16)                                                                                                             \
    X(BF16)                                                                                                            \
    X(Q8_0)                                                                                                            \
    X(Q4_K)                                                                                                            \
    X(Q5_K)                                                                                                            \
    X(Q6_K)                                                                                                            \
    X(Q2_K)                                                                                                            \
    X(Q3_K)                                                                                                            \
    X(IQ4_XS)                                                                                                          \
    X(Q4_0)                                                                                                            \
    X(Q4_1)                                                                                                            \
    X(Q5_0)                                                                                                            \
    X(Q5_1)                                                                                                            \
    X(IQ4_NL)                                                                                                          \
    X(MXFP4)                                                                                                           \
    X(INT4)                                                                                                            \
    X(FP8)                                                                                                             \
    X(IQ2_XXS)                                                                                                         \
    X(IQ2_XS)                                                                                                          \
    X(IQ2_S)                                                                                                           \
    X(IQ3_XXS)                                                                                                         \
    X(IQ3_S)                                                                                                           \
    X(IQ1_S)                                                                                                           \
    X(IQ1_M)                                                                                                           \
    X(NVFP4)                                                                                                           \
    X(UINT4)

/* A product of each group's matrices with its rows: gate to y and up to `up`, or down to y. */
struct kn_cuda_group_product {
    const struct kn_group *group;
    struct kn_acts x;
    const int32_t *x_row, *y_row; /* the operation's lists, or NULL */
    float *y, *up;
    bool down;
    unsigned admitted; /* bits of the formats that have a launch */
    /* Of gates and ups: then their activation, by the last of the blocks that compute a tile of it.  count [groups, n_tile]:
     * of these blocks, 0 at first and at the end; NULL: the activation has a launch of its own. */
    struct kn_op_gate_up then;
    uint32_t *count;
    int n_tile;
};

#define KN_CUDA_ATTEND_THREADS 128

/* A router's choices, and later operations in the same launch: those with a bit in `has`.  count: of blocks, 0 at first and at
 * the end. */
struct kn_cuda_choice {
    struct kn_op_route route;
    struct kn_op_plan plan;
    struct kn_op_guess guess;
    struct kn_op_group group;
    unsigned has;
    uint32_t *count;
};

/* Scratch of attention: parts of each row, head and span, if spans are computed side by side, else NULL; and counts, 0 at
 * first and at the end: of spans for each row and head, and of heads for each record. */
struct kn_cuda_parts {
    float *part;
    uint32_t *spans, *heads;
};

/* Heads whose outputs, of d_value each, fill whole records of codes. */
KN_SHARED int kn_cuda_heads_of_record(int d_value)
{
    int n = KN_GROUP;
    while (n > 1 && d_value % 2 == 0) {
        d_value /= 2;
        n /= 2;
    }
    return n;
}

/* The kind of activations that a format reads, as in kn_format_info(). */
KN_SHARED int kn_cuda_act(int format)
{
    switch (format) {
#define KN_CASE(name, type, values, bytes, act)                                                                        \
    case KN_##name:                                                                                                    \
        return act;
        KN_FORMATS(KN_CASE)
#undef KN_CASE
    default:
        return KN_ACT_F32;
    }
}

#endif
