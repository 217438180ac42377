/* kernels/internal.h - declarations shared by the files of kernels/.
 *
 * Each operation of struct kn_ops exists once per instruction set, for example kn_matmul_scalar, the
 * specification, in reference_matmul.c; kn_matmul_avx2 and kn_matmul_avx512, compiled from matmul.tmpl.c.
 * dispatch.c puts these functions into tables. */
#ifndef KERNELS_INTERNAL_H
#define KERNELS_INTERNAL_H

#include <sched.h>

#include "kernels/kernels.h"

#define KN_OPS_OF(isa)                                                                                                 \
    void kn_matmul_##isa(const struct kn_matmul *m, int panel0, int panel1);                                           \
    void kn_quantize_##isa(enum kn_act a, const float *x, int n, void *out);                                           \
    void kn_encode_##isa(enum kn_format f, const float *x, const float *weight, size_t n, void *blocks);               \
    void kn_encode_32_##isa(enum kn_format f, const float *x, const float *weight, size_t n_block, void *blocks);      \
    void kn_encode_grid_##isa(enum kn_format f, const float *x, const float *weight, size_t n_block, void *blocks);    \
    void kn_repack_##isa(enum kn_format f, const void *rows, int n_out, int n_in, void *panels, int panel0,            \
                         int panel1);                                                                                  \
    void kn_attend_##isa(const struct kn_attend *a);                                                                   \
    void kn_attend_span_##isa(const struct kn_attend *a, float *part);                                                 \
    void kn_attend_join_##isa(const struct kn_attend *a, const float *part, int n_part);                               \
    void kn_delta_##isa(const struct kn_delta *d);                                                                     \
    void kn_conv_##isa(const float *const *x, const float *w, int n_tap, int n, float *y);                             \
    void kn_rms_norm_##isa(const float *x, const float *w, float eps, int n, float *y);                                \
    void kn_center_##isa(const float *x, int n, float *y);                                                             \
    void kn_rope_##isa(float *x, int n_head, int d_head, int n_rot, const float(*turn)[2], enum kn_rope kind);         \
    void kn_swiglu_##isa(const float *gate, const float *up, int n, float *y);                                         \
    void kn_swiglu_clamped_##isa(const float *gate, const float *up, float alpha, float limit, int n, float *y);       \
    void kn_gate_##isa(float *x, const float *by, int n);                                                              \
    void kn_cap_##isa(float *x, float cap, int n);                                                                     \
    void kn_softmax_##isa(float *x, int n);                                                                            \
    void kn_add_##isa(float *x, const float *y, int n);                                                                \
    void kn_add_scaled_##isa(float *x, float a, const float *y, int n);                                                \
    void kn_kv_store_##isa(enum kn_kv kv, const float *x, int n, void *out, float *scale);                             \
    float kn_largest_##isa(const float *z, int n);                                                                     \
    float kn_clean_logits_##isa(const float *x, int n, float *z);                                                      \
    int kn_find_first_##isa(const float *z, float value, int n);                                                       \
    float kn_exp_sum_##isa(const float *z, float most, int n);                                                         \
    void kn_temper_##isa(const float *z, float most, double temperature, int n, float *x);                             \
    int kn_list_above_##isa(const float *z, float least, int n, int32_t *id);                                          \
    int kn_list_noisy_##isa(const float *z, int from, int to, const struct kn_noise *noise, int32_t *id);              \
    void kn_probe_read_##isa(const void *p, size_t bytes);                                                             \
    void kn_probe_mac_##isa(long n);

KN_OPS_OF(scalar)
KN_OPS_OF(avx2)
KN_OPS_OF(avx512)
void kn_matmul_vbmi(const struct kn_matmul *m, int panel0, int panel1); /* all else is as AVX-512 */

/* The end of each sum: 64 accumulators down to one, in a halving tree (reference.c). */
#define KN_ACCUMULATORS 64
float kn_tree_sum(float acc[KN_ACCUMULATORS]);

/* A field of a format's block: n items of `size` bytes, from byte `at` of the block in the file.  In a panel,
 * item i of row 0, of row 1 .. of row 15 follow one another, then item i + 1. */
#define KN_FIELDS     6   /* most fields of a format, plus an end entry with n = 0 */
#define KN_BLOCK_MOST 210 /* bytes of the largest block */
struct kn_field {
    uint8_t at, n, size;
};
const struct kn_field *kn_format_fields(enum kn_format f); /* in panel order */

/* Scale i of a block, -32..31.  Q3_K: its packed bytes are sc[0], sc[stride] .. sc[11 * stride]; i 0..15.  IQ4_XS: i
 * 0..7. */
int kn_q3_k_scale(const uint8_t *sc, int stride, int i);
int kn_iq4_xs_scale(const uint8_t sl[4], uint16_t sh, int i);

/* The points of the grids of the IQ2 and IQ3 formats by their indices, constant from before main() on: sizes of eight
 * or four neighbouring values, of IQ3_XXS half of them. */
extern uint8_t kn_grid_iq2_xxs[256][8], kn_grid_iq2_xs[512][8], kn_grid_iq2_s[1024][8];
extern uint8_t kn_grid_iq3_xxs[256][4], kn_grid_iq3_s[512][4];

/* The points of the IQ3 formats with zeros before and after them, so that a load of 16 bytes has its point at any of four
 * places: number 3 of a window is the point, the others are 0. */
extern uint32_t kn_window_iq3_xxs[256][8], kn_window_iq3_s[512][8];

/* The values of the IQ1 formats' points by indices of twelve bits; and the same plus KN_IQ1_BIAS, which are not negative. */
#define KN_IQ1_BIAS 16
extern int8_t kn_grid_iq1[4096][8];
extern uint8_t kn_grid_iq1_biased[4096][8];

/* The points of a grid by planes, for look-ups of bytes: plane h has for each index the numbers of the first (h 0) or last
 * (h 1) half of the point's values, as in kn_grid.digit; of IQ1 and IQ2 four of two bits, of IQ3 two of three bits. */
extern uint8_t kn_plane_iq2_xxs[2][256], kn_plane_iq2_xs[2][512], kn_plane_iq2_s[2][1024], kn_plane_iq1[2][2048];
extern uint8_t kn_plane_iq3_xxs[2][256], kn_plane_iq3_s[2][512];

/* Signed values plus 128 by a number and a sign within an index of six bits (simd_grids_vbmi.h has their places). */
extern uint8_t kn_values_iq1[2][64], kn_values_iq2[2][64], kn_values_iq3_xxs[4][64], kn_values_iq3_s[4][64];

/* A grid as the encoders use it; NULL of other formats. */
struct kn_grid {
    int n_point, n_value, base;
    float part;               /* a value is d * part times its integer */
    int8_t digit[8];          /* the sizes, ascending: the digits of a point's number, to that base; of IQ1: values */
    const int8_t *size;       /* [n_point][n_value] */
    const uint8_t (*half)[2]; /* [n_point] the numbers of a point's first and second half */
    bool shifted;             /* IQ1: points n_point .. 2 * n_point - 1 are the same, less 1; the others are plus 1 */
    int scale_most;           /* scales are 0 .. scale_most, and stand for 2 * s + 1 */
};
const struct kn_grid *kn_grid(enum kn_format f);

/* The integer weights of a file block of an IQ1, IQ2 or IQ3 format: sign times size times 2 * scale + 1.  A value is
 * kn_grid_step() of the block times its integer. */
void kn_grid_integers(enum kn_format f, const void *block, int16_t w[256]);
float kn_grid_step(enum kn_format f, const void *block);

/* The bytes of row `lane` of a panel's block, as a file block. */
void kn_block_gather(enum kn_format f, const void *panel_block, int lane, uint8_t *out);

/* The 6-bit scales and minimums of a Q4_K or Q5_K block: bytes sc[0], sc[stride], ... sc[11 * stride]. */
void kn_q4_k_scales(const uint8_t *sc, int stride, uint8_t scale[8], uint8_t min[8]);

/* Codes one block of n activations, keys, values or weights, by the rule in kernels.h; returns its scale. */
float kn_code_block(const float *x, int n, int8_t *q);

/* 2^(e - 128): the factor of an MXFP4 block's integers (KN_E2M1_TWICE).  e = 255, which means NaN in the
 * format, gives infinity. */
float kn_mxfp4_step(uint8_t e);

/* Half the scale d of 16 values of an NVFP4 block: the factor of their integers (KN_E2M1_TWICE). */
float kn_nvfp4_step(uint8_t d);

/* Inputs of one block of a panel: those of a file's block, but 32 of NVFP4's 64. */
static inline int kn_panel_values(const struct kn_format_info *f)
{
    return f->act == KN_ACT_Q32 ? 32 : f->block_values;
}

/* An FP8 code's value / 256, which half precision can hold exactly; codes 0x7F and 0xFF are NaN. */
float kn_e4m3_part(uint8_t q);
extern uint8_t kn_e4m3_bytes[2]
                            [128]; /* the upper two bytes of the part of each code without sign; the lower two are 0 */

/* The CPUs that this process may use, ordered by node. */
struct kn_cpus {
    int n_node, node[KN_NODES]; /* as in struct kn_machine */
    int first[KN_NODES + 1];    /* node k: cpu[first[k]] .. cpu[first[k + 1] - 1] */
    int cpu[CPU_SETSIZE];       /* ascending within a node */
};
void kn_cpus_get(struct kn_cpus *out); /* lists at least one CPU; cpu[0] is -1 if the system reports none */

/* Free bytes under the memory limits of a process's cgroups.  *limit: the lowest of these limits.  Both are
 * SIZE_MAX without a limit.  groups and mount: paths; outside tests /proc/self/cgroup and /sys/fs/cgroup. */
size_t kn_cgroup_room(const char *groups, const char *mount, size_t *limit);

#endif
