/* kernels/kernels.h - the arithmetic: a table of operations; each operation has one exact result.
 *
 * struct kn_ops is the table; there is one for each instruction set (kn_ops()).  The scalar table is the specification:
 * plain C, in kernels/cpu/reference.c and reference_matmul.c.  The AVX2 and AVX-512 tables give the same bits, and
 * tests compare them with memcmp.  This works because the order of every float operation is fixed:
 *
 *   - a product adds up groups of 256 inputs ("products" below);
 *   - a sum over n floats (norms, QK, softmax sums) has 64 accumulators: element i goes to accumulator
 *     i mod 64; then a halving tree adds them: acc[i] += acc[i + 32], then 16, 8, 4, 2, 1;
 *   - attention cuts positions at multiples of 64 and of 1,024 of the absolute position: chunks are merged in order
 *     within spans, spans in order (struct kn_attend);
 *   - a delta net's state is updated row by row, with sums over its keys in 4 accumulators;
 *   - exp, log, sin, cos, pow are not the C library's: kernels/cpu/math.c makes them of correctly rounded operations.
 *
 * The result of a row does not depend on the other rows of the call, the tile, the thread or the instruction
 * set.  If a result is NaN in one table it is NaN in all, but the bits of the NaN may differ.
 *
 * Every operation works on the caller's memory, allocates nothing and may run on any thread. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <string.h>

#include "kernels/core.h"
#include "kernels/formats.h"

/* ---- formats ----------------------------------------------------------------------------------- */

struct kn_format_info {
    const char *name;
    int gguf_type, block_values, block_bytes;
    enum kn_act act;
};
const struct kn_format_info *kn_format_info(enum kn_format f);
extern const char kn_format_list[];                          /* " F32 F16 ...", the GGUF formats */
int kn_format_find(const char *name, enum kn_format *out);   /* a GGUF format by name, any case; or KN_EUNSUPPORTED */
int kn_format_from_gguf(uint32_t type, enum kn_format *out); /* by type number, also FP8 and INT4 */

/* Bytes of a file row, of the interleaved matrix, and of one activation row.  The first two are 0 if n_in is not a
 * positive multiple of the block, if n_out < 1, or if the number overflows. */
size_t kn_row_bytes(enum kn_format f, int n_in);
size_t kn_mat_bytes(enum kn_format f, int n_out, int n_in);
size_t kn_act_bytes(enum kn_act a, int n_in);

/* A weight matrix in memory, interleaved (formats.h); data is 64-byte aligned.  scale: factor of all weights; 1 unless the
 * model states one. */
struct kn_mat {
    enum kn_format format;
    int n_out, n_in;
    float scale;
    const void *data;
};

/* Values of row r as float32, by the format's usual dequantisation, times the matrix's scale (embedding lookup, tests). */
void kn_mat_row(const struct kn_mat *w, int r, float *out /* [n_in] */);

/* One file row to float32; kn_ops.encode is the inverse. */
void kn_row_decode(enum kn_format f, const void *row, int n_in, float *out /* [n_in] */);

/* Bytes of the codes of one block of f; 0 if files never store the codes of f apart from their scales. */
size_t kn_code_bytes(enum kn_format f);

/* Makes n_block blocks from separate codes and scales.  codes: [n_block][kn_code_bytes()]; a byte of nibbles holds two
 * neighbouring values, the first in the low nibble.  scales: scale_bytes each, one for each per_scale blocks; if the
 * format's scale is longer than scale_bytes, these are its upper bytes, and its lower bytes become zero. */
void kn_join(enum kn_format f, const void *codes, const void *scales, int scale_bytes, int per_scale, size_t n_block,
             void *blocks);

/* A matrix of codes of four bits stored by input.
 *
 *   codes    GPTQ [n_in / 8][n_out], a word of eight neighbouring inputs' codes, the first in the lowest bits; AWQ
 *            [n_in][n_out / 8], a word of eight neighbouring outputs' codes, which are nibbles KN_AWQ_ORDER
 *   scales   [n_in / 32 / per_scale][n_out]
 *   zeros    [n_in / 32 / per_scale][n_out / 8] zero points of UINT4, each less by zero_less, modulo 16; eight to a word, in
 *            GPTQ in order, in AWQ as the codes
 *
 * Row r of the matrix is stored as output kn_columns_output(r): from row turn_first on, units of turn_rows rows are
 * permuted in groups of turn_n, as in struct off_stride_permutation.  turn_n 0: no permutation. */
struct kn_columns {
    const uint32_t *codes, *zeros;
    const uint16_t *scales;
    enum kn_format format; /* Q4_0, INT4 or UINT4 */
    bool awq;
    int n_out, n_in, per_scale, zero_less;
    int turn_first, turn_rows, turn_n, turn_by;
};
#define KN_AWQ_ORDER 0, 4, 1, 5, 2, 6, 3, 7

/* Makes panel `panel`.  The order of the codes is closer to a panel's than to a file row's, so the result is a panel. */
void kn_join_columns(const struct kn_columns *c, int panel, void *out);
int kn_columns_output(const struct kn_columns *c, int row);

/* Row `lane` of a panel, as in a file. */
void kn_panel_row(enum kn_format f, const void *panel, int n_in, int lane, void *row);

/* Stores scale i and minimum i (0..63) in the packed scales of a Q4_K or Q5_K block, or scale i (-32..31) in those of
 * a Q3_K block.  The bits of entry i must still be zero. */
void kn_q4_k_scale_put(uint8_t sc[12], int i, int scale, int min);
void kn_q3_k_scale_put(uint8_t sc[12], int i, int scale);

float kn_f16_to_f32(uint16_t h);
uint16_t kn_f32_to_f16(float x); /* to nearest, ties to even */
float kn_bf16_to_f32(uint16_t h);
uint16_t kn_f32_to_bf16(float x);

/* ---- scalar mathematics ------------------------------------------------------------------------ */

float kn_expf(float x); /* error below 1.5 ulp; vector code gives the same bits */
double kn_exp(double x);
double kn_log(double x);
double kn_pow(double x, double y);              /* x > 0 */
void kn_sincos(double x, double *s, double *c); /* |x| < 2^30 */

/* ---- choices ----------------------------------------------------------------------------------- */

/* The one order of choices (experts of a router, tokens of a sampler): by value, the largest first, NaN after all
 * numbers and -0 as +0; then the lowest id.  kn_rank() orders values; a key orders pairs, and is never equal to
 * another's: the largest is chosen. */
KN_SHARED uint32_t kn_rank(float value)
{
    uint32_t bits;

    if (value != value)
        return 0;
    value += 0.0f; /* -0 becomes +0 */
    memcpy(&bits, &value, sizeof bits);
    return bits ^ (bits >> 31 ? UINT32_MAX : UINT32_C(1) << 31);
}

KN_SHARED uint64_t kn_rank_key(float value, int32_t id) { return (uint64_t)kn_rank(value) << 32 | (uint32_t)~id; }

static inline int32_t kn_rank_id(uint64_t key) { return (int32_t) ~(uint32_t)key; }

/* ---- products ---------------------------------------------------------------------------------- */

/* The order of float operations in one element of a product, a row of n_in weights times a row of activations:
 *
 *     sum = +0;  for each group of 256 inputs, ascending, the last may be shorter:  acc = +0;  for each block of the
 *     group, ascending:  acc = block(acc);  sum = sum + acc.           The result is sum * scale of the matrix.
 *
 * block(acc), where every operation is in float32 and rounds to nearest, ties to even:
 *   F32, F16, BF16  fmaf(w, x, acc); a block is one input
 *   FP8             fmaf(w, x, acc) for the 128 inputs, ascending; w = (256 * d) * (code / 256), the first product and
 *                   w each rounded
 *   NVFP4           as all others, and a block is 16 inputs; d is half the float that the byte stands for
 *   all others      fmaf(round(d * dx), float(isum), acc), where d is the block's scale as float32 (of MXFP4
 *                   2^(e - 128), of the IQ1 and IQ2 formats times 2^-3, of IQ3_XXS times 2^-1), dx that of the activations
 *                   (struct kn_codes), and isum the exact integer sum over the inputs of integer weight times
 *                   activation code.  float() rounds.  The integer weight of input k is its code, as formats.h says: of
 *                   Q4_0, INT4, UINT4, Q5_0, Q6_K and Q3_K with the offset or zero point subtracted, of IQ4, MXFP4 and
 *                   NVFP4 the table's value, of
 *                   IQ2 and IQ3 its size (of IQ3_XXS half of it) with its sign; in the formats with scales of sub-blocks
 *                   (Q4_K, Q5_K, Q2_K: scale; Q6_K, Q3_K, IQ4_XS: signed scale; IQ1, IQ2 and IQ3: 2 * scale + 1) times the
 *                   integer scale of the sub-block of k
 *     then  Q4_1, Q5_1         fmaf(round(m * dx), float(sum of the block's 32 activation codes), acc)
 *           Q4_K, Q5_K, Q2_K   fmaf(-round(dmin * dx), float(msum), acc), msum: the exact sum over the inputs of the
 *                              sub-block's integer minimum times activation code
 *
 * A block of 256 is a whole group.  An infinity or NaN follows from these operations; a NaN's bits are not defined.
 * The sum is never -0.  So it makes no difference if acc begins with a rounded product in place of fmaf(.., +0): only
 * the sign of a zero acc differs, and adding acc to sum, which is not -0, drops it. */

/* ---- operations -------------------------------------------------------------------------------- */

/* y[y_row(i)][0..n_out) = W x[x_row(i)] for i < n_row.  Rows of x have the activation kind of W's format; rows of codes
 * begin at multiples of 16 bytes.
 * x_row and y_row map i to a row; NULL is the identity. */
struct kn_matmul {
    struct kn_mat w;
    const void *x;
    size_t x_stride; /* bytes */
    const int32_t *x_row;
    float *y;
    size_t y_stride; /* floats */
    const int32_t *y_row;
    int n_row;
};

/* Attention of one row over one KV head: n_q query heads share the head.  Position p is in KV slot
 * slot(p) = p < n_base ? base[p] : tail[p - n_base]; the row attends to positions first..last.  A slot's
 * value may be a part of its key (latent attention): v then points into k.
 *
 * The order of float operations, for each query head; p are absolute positions:
 *   score   s(p) = scale * dot(q, key(p)), the dot product by 64 accumulators and the halving tree.
 *   part    a maximum, a sum and d_value outputs.
 *   chunk   the part of the attended positions among 64 c .. 64 c + 63:
 *             most = -inf, then for each p: s(p) > most ? s(p) : most
 *             w(p) = kn_expf(s(p) - most)
 *             sum  = the halving tree of 64 accumulators: accumulator p mod 64 is w(p), or +0 if p is not attended to
 *             o[i] = +0, then for each p ascending: fmaf(w(p), value(p)[i], o[i])
 *   merge   of an earlier part a with a later part b:
 *             most = b.most > a.most ? b.most : a.most
 *             keep = kn_expf(a.most - most), take = kn_expf(b.most - most)
 *             sum  = fmaf(b.sum, take, a.sum * keep);  o[i] = fmaf(b.o[i], take, a.o[i] * keep)
 *   span    the part of the attended positions among 1024 n .. 1024 n + 1023: its first chunk as it is, then the
 *           following chunks are merged in ascending order.  Chunks and spans without an attended position do not
 *           exist.  A window may begin inside a chunk: the chunk then has fewer positions, and no cut moves.
 *   row     the first span as it is, then the following spans are merged in ascending order.
 *   sink    most = sink > row.most ? sink : row.most;  keep = kn_expf(row.most - most)
 *             sum = fmaf(row.sum, keep, kn_expf(sink - most));  o[i] = row.o[i] * keep
 *   out[i]  = o[i] / sum
 * A score that is NaN never becomes the maximum; its weight, the sum and so all of the head's outputs are NaN.  The
 * outputs are NaN, too, if a score is +inf, or if no score of a chunk is above -inf. */
enum kn_kv { KN_KV_F16, KN_KV_F32, KN_KV_INT8, KN_KV_COUNT };

/* Int8 keys and values.  To code up to 64 floats x: largest = the largest |x[i]|.  If one is infinite or NaN, the scale
 * is NaN and all codes are 0; if largest < 2^-100, scale and codes are 0; otherwise the scale is largest / 127 and code
 * i is x[i] * (127 / largest), rounded to nearest even (the blocks of kn_ops.quantize() have the same rule).
 *
 * A key, a value and a query are coded in blocks of 64 along d; if d is no multiple of 64, the last block is shorter.
 * With codes and scales qc, qd of a query, kc, kd of a key, vc, vd of a value, the order above differs in two places:
 *   score   x = +0, then for each block b ascending: x = fmaf((float)dot(qc, kc), qd[b] * kd[b], x), with dot() the
 *           exact integer sum over the block;  s(p) = scale * x
 *   o       of a chunk, for each block b of values: t(p) = w(p) * vd(p)[b] of the attended positions p, +0 for the
 *           others, are coded as one block of 64, with codes tc and scale td;
 *           o[i] = (float)(the exact integer sum over p of tc(p) * vc(p)[i]) * td
 * The chunk's sum is that of the exact weights w(p).  Scales of values are in t, so a position with small values is
 * coded finely even where its weight is large, as the first position's often is.  A value that is infinite or NaN makes
 * all outputs of its block NaN.
 *
 * Codes of slot s of an array of vectors of d values begin at value s * step, its scales at s * kn_kv_blocks(step). */
#define KN_KV_BLOCK 64
KN_SHARED int kn_kv_blocks(int n) { return (n + KN_KV_BLOCK - 1) / KN_KV_BLOCK; }

static inline size_t kn_kv_value_bytes(enum kn_kv kv) /* of one number, without scales */
{
    return kv == KN_KV_INT8 ? 1 : kv == KN_KV_F16 ? 2 : 4;
}

static inline size_t kn_kv_bytes(enum kn_kv kv, int n) /* of a vector of n numbers */
{
    return (size_t)n * kn_kv_value_bytes(kv) + (kv == KN_KV_INT8 ? (size_t)kn_kv_blocks(n) * sizeof(float) : 0);
}

struct kn_attend {
    const float *q;                 /* [n_q][d_key] */
    float *out;                     /* [n_q][d_value] */
    const void *k, *v;              /* key and value of slot 0, of this KV head */
    int k_step, v_step;             /* stride between slots, in values */
    const float *k_scale, *v_scale; /* of int8: the scales of slot 0; unused otherwise */
    const int32_t *base, *tail;
    int n_base, first, last;
    int n_q, d_key, d_value; /* n_q <= KN_MAX_Q, the others <= KN_MAX_D_HEAD */
    enum kn_kv kv;
    float scale;
    const float *sink; /* [n_q] or NULL: one more score in each head's softmax, without a value */
};
#define KN_MAX_Q      64
#define KN_MAX_D_HEAD 576
#define KN_CHUNK      64   /* positions of a chunk, at multiples of 64 of the absolute position */
#define KN_SPAN       1024 /* positions of a span, at multiples of 1024 */

/* The part of one span in memory: most [n_q], sum [n_q], outputs [n_q][d_value]. */
static inline size_t kn_part_floats(int n_q, int d_value) { return (size_t)n_q * (size_t)(d_value + 2); }

/* One value head of a gated delta net: rows update a state S[d_key][d_value] in order.  Each row does
 *     m    = sum over i of k[i] S[i]
 *     e    = beta (v - decay m)                fmaf(-decay, m, v), times beta
 *     S[i] = fmaf(k[i], e, decay S[i])
 *     out  = sum over i of q[i] S[i]
 * where both sums have 4 accumulators: term i, ascending, goes to accumulator i mod 4 with fmaf, and the total
 * is (0 + 2) + (1 + 3).  The state is stored in tiles of columns, [tile][d_key][KN_DELTA_TILE]; the last tile is
 * padded. */
#define KN_DELTA_TILE 32

struct kn_delta_row {
    const float *q, *k, *v; /* [d_key], [d_key], [d_value] */
    float decay, beta;
    float *out; /* [d_value]; NULL: only updates the state, q is not read */
};

struct kn_delta {
    float *state; /* [kn_delta_floats()] */
    const struct kn_delta_row *row;
    int n_row, d_key, d_value;
};

static inline size_t kn_delta_floats(int d_key, int d_value)
{
    return (size_t)d_key * kn_align_up((size_t)d_value, KN_DELTA_TILE);
}

/* The values of a head that rope() rotates together, as pair i: (i, i + n_rot / 2), as GPT-NeoX; (2i, 2i + 1), as GGUF
 * files of llama. */
enum kn_rope { KN_ROPE_HALVES, KN_ROPE_PAIRS };

/* Number i of a stream is kn_mix(stream + KN_GOLDEN * (i + 1)).  Its Gumbel noise is -log(-log(u)), where u is an odd multiple
 * of 2^-53 made of its upper 52 bits.  With n leading ones of these bits the noise is below (n + 1) * KN_NOISE_BIT: ln 2 and one part
 * in 10^9, far more than the error of kn_log. */
#define KN_NOISE_BIT 0.69314718125
struct kn_noise {
    uint64_t stream;
    double inverse, least;
};

struct kn_ops {
    enum kn_isa isa;

    /* Panels panel0..panel1-1 (rows 16*panel0 ..) of the product, for all n_row rows of x. */
    void (*matmul)(const struct kn_matmul *m, int panel0, int panel1);

    /* x[n] to one activation row of kind a.  A block's scale is its largest |x| / 127.  If all |x| are below 2^-100
     * the block becomes zero; if one is infinite or NaN, the scale becomes NaN. */
    void (*quantize)(enum kn_act a, const float *x, int n, void *out);

    /* x[n] to whole blocks of a GGUF format as in a file, by a search for the least squared error (encode.tmpl.c).
     * weight[n]: factors of the squared errors of the values, each within 2^-20 .. 2^20; NULL: all count the same.  A block
     * depends on its own values and weights only, so x may be several rows.  x must be finite. */
    void (*encode)(enum kn_format f, const float *x, const float *weight, size_t n, void *blocks);

    /* File rows to panels panel0..panel1-1.  rows and panels point to the whole matrix, not to panel0. */
    void (*repack)(enum kn_format f, const void *rows, int n_out, int n_in, void *panels, int panel0, int panel1);

    /* attend() computes a row.  The same bits by several threads: attend_span() computes the part of a->first..a->last,
     * which lie in one span; attend_join() makes a->out from the parts [n_part] of all spans of the row, in order. */
    void (*attend)(const struct kn_attend *a);
    void (*attend_span)(const struct kn_attend *a, float *part /* [kn_part_floats()] */);
    void (*attend_join)(const struct kn_attend *a, const float *part, int n_part);
    void (*delta)(const struct kn_delta *d);

    /* y[i] = silu(sum over taps j of w[j][i] * x[j][i]), j ascending from +0 with fmaf. */
    void (*conv)(const float *const *x, const float *w, int n_tap, int n, float *y);

    /* y = x / sqrt(mean(x^2) + eps) * w;  y may be x. */
    void (*rms_norm)(const float *x, const float *w, float eps, int n, float *y);

    void (*center)(const float *x, int n, float *y); /* y = x - sum(x) / n;  y may be x */

    /* Rotates the first n_rot values of each of n_head heads; turn[i]: {cos, sin} of the angle of pair i. */
    void (*rope)(float *x, int n_head, int d_head, int n_rot, const float (*turn)[2], enum kn_rope kind);

    void (*swiglu)(const float *gate, const float *up, int n, float *y); /* y = gate * sigmoid(gate) * up */

    /* With g = min(gate, limit), u = up clamped to [-limit, limit]: y = g * sigmoid(alpha * g) * (u + 1). */
    void (*swiglu_clamped)(const float *gate, const float *up, float alpha, float limit, int n, float *y);

    void (*gate)(float *x, const float *by, int n); /* x = x / (1 + exp(-by)) */
    void (*cap)(float *x, float cap, int n);        /* x = cap * tanh(x / cap) */
    void (*softmax)(float *x, int n);
    void (*add)(float *x, const float *y, int n);                 /* x += y */
    void (*add_scaled)(float *x, float a, const float *y, int n); /* x = fmaf(a, y, x) */

    /* x[n] to the KV cache's number type; scale: [kn_kv_blocks(n)] of int8, NULL otherwise. */
    void (*kv_store)(enum kn_kv kv, const float *x, int n, void *out, float *scale);

    /* Rows of logits (cpu/logits.c).  A z has neither NaN nor INFINITY.
     *   largest       the largest z; -INFINITY if n is 0
     *   clean_logits  z = x, with NaN as -INFINITY and INFINITY as FLT_MAX; returns the largest z
     *   find_first    the lowest i with z[i] == value; n: none
     *   exp_sum       the sum of exp(z[i] - most), added as in softmax
     *   temper        x = (z - most) / temperature
     *   list_above    the i with z[i] >= least, ascending; returns their number
     *   list_noisy    the i of from .. to-1, ascending, with z[i] * inverse + bound > least, where the bound is that of the
     *                 noise of number i; returns their number */
    float (*largest)(const float *z, int n);
    float (*clean_logits)(const float *x, int n, float *z);
    int (*find_first)(const float *z, float value, int n);
    float (*exp_sum)(const float *z, float most, int n);
    void (*temper)(const float *z, float most, double temperature, int n, float *x);
    int (*list_above)(const float *z, float least, int n, int32_t *id);
    int (*list_noisy)(const float *z, int from, int to, const struct kn_noise *noise, int32_t *id);

    /* For measuring a machine's limits: probe_read reads memory (bytes: a multiple of 16 KiB), probe_mac does n
     * multiply-adds of int8 codes. */
    void (*probe_read)(const void *p, size_t bytes);
    void (*probe_mac)(long n);
};

/* The table for instruction set `most`, or for the best one that the processor has below it. */
const struct kn_ops *kn_ops(enum kn_isa most);

/* ---- device ------------------------------------------------------------------------------------ */

/* CUDA devices.  kn_device_count() is 0 in a build without CUDA, without a driver, or without a device; kn_device_get()
 * returns 0 or KN_ENODEV. */
struct kn_device_info {
    char name[64];
    size_t memory_bytes;
    int compute_major, compute_minor;
};
bool kn_device_built(void);
int kn_device_count(void);
const char *kn_device_why(void); /* why the count is 0 */
int kn_device_get(int device, struct kn_device_info *out);

#endif
