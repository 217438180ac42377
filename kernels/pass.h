/* kernels/pass.h - the operations of a forward pass, on batches of rows.
 *
 * moe/ describes a pass in these operations, a device runs them (device.h).  An operation is a struct: the sizes it
 * needs, addresses, and no reference to a model.  Its result for a row depends on the row alone, never on the other rows
 * or on the device, and equals the scalar functions of kernels.h in the order that the comment here gives, bit for bit.
 *
 * Rows.     The caller describes the rows of a pass in one array of struct kn_row before the pass; no operation changes
 *           it.  status[row] is not 0 if the row has failed: operations that say "live rows" skip it, because their input
 *           may be missing or their output is kept; other operations compute it to no purpose.
 * Names.    [n, d] is an array of n rows of d floats, one after the other.  struct kn_acts has a stride.
 * Fields.   kn_op_fields() names the memory that an operation reads and writes, field by field.  It is the contract for
 *           backends that reorder operations, and tests hold every operation to it.
 * Fusing.   An operation is one group of steps that a device can run without writing the values between them: norm and
 *           codes, products and activation.  kn_may_fuse() says which neighbours a device may run as one, too.  The steps that the CPU must separate by a barrier are parallel regions of
 *           kernels/cpu/pass/. */
#ifndef KERNELS_PASS_H
#define KERNELS_PASS_H

#include "kernels/device.h"

/* ---- rows ------------------------------------------------------------------------------------------------ */

/* The row's path: the KV slot of position p is base[p] if p < n_base, else tail[p - n_base], for positions 0 to the row's
 * own, which is in `slot`.  Attention reads positions from `first` on. */
struct kn_row {
    int32_t token, position, slot, n_base, first;
    const int32_t *base, *tail;
    /* Of a draft head: the feature that the row starts from; NULL: the target's feature at feature_slot. */
    const float *feature;
    int32_t feature_slot;
    float q_scale; /* of models that multiply a row's queries by a number of its position */
};

struct kn_rows {
    const struct kn_row *row; /* [n] */
    const int *status;        /* [n] */
    int n;
};

/* One vector for each row, as float32 and quantised in the kinds of activation codes that matrices read.  code[kind] is
 * NULL if no matrix reads this kind; code[KN_ACT_F32] is x. */
struct kn_acts {
    float *x;
    size_t stride; /* floats per row */
    void *code[KN_ACT_COUNT];
    size_t code_stride[KN_ACT_COUNT]; /* bytes per row */
};

/* Keys and values of one layer: those of KV head h and slot s begin h * k_head bytes and s * k_step values after k, with
 * the same for v.  If a slot's value is the first part of its key, v is k, and v_step and v_scale are those of the keys. */
struct kn_cache {
    enum kn_kv kv;
    uint8_t *k, *v;
    float *k_scale, *v_scale; /* of int8: scales of head 0 and slot 0, kn_kv_blocks(k_step) for each slot; else NULL */
    size_t k_head, v_head;    /* bytes from a head's array, and from its scales, to the next head's */
    int k_step, v_step;       /* values from a slot to the next */
    int n_slot;
};

/* Vectors that a target keeps for its draft head, by slot: n values at base + slot * slot_bytes. */
struct kn_features {
    enum kn_kv kv; /* F16 or F32 */
    uint8_t *base;
    size_t slot_bytes;
    int n, n_slot;
};

static inline float kn_sigmoid(float x) { return 1.0f / (1.0f + kn_expf(-x)); }

/* The format of a matrix, as a bit; no bit for a matrix that is absent. */
static inline unsigned kn_format_bit(const struct kn_mat *w) { return w->n_out ? 1u << w->format : 0; }

/* The kind of activations that a matrix reads, as a bit; no bit for a matrix that is absent. */
static inline unsigned kn_act_bit(const struct kn_mat *w)
{
    return w->n_out ? 1u << kn_format_info(w->format)->act : 0;
}

/* ---- operations on rows ------------------------------------------------------------------------------------ */

/* x[row] = row `token` of w, times w_scale; rotation[row][i] = {cos, sin} of freq[i] * position, times scale. */
struct kn_op_embed {
    struct kn_rows rows;
    struct kn_mat w; /* n_out 0: only the rotations */
    float w_scale;
    float *x;             /* [n, w.n_in] */
    const float *freq;    /* [n_pair] */
    float (*rotation)[2]; /* [n, n_pair] */
    int n_pair;
    float scale;
};

/* y += bias, y = norm(y) * y_norm, each unless it is NULL, then x = fmaf(y_scale, y, x); then out row i =
 * norm(x[row[i]]) * weight and its codes.  y NULL: adds nothing.  weight NULL: only adds.  row NULL: row i.  With y, row
 * is NULL: every row is added.  With norm_bias, out is a layer norm: norm(center(x[row[i]])) * weight + norm_bias. */
struct kn_op_add_norm_code {
    float *x;                   /* [.., d] */
    float *y;                   /* [n, d]; undefined afterwards */
    const float *bias, *y_norm; /* [d] */
    float y_scale;
    const float *weight; /* [d] */
    float eps;
    const int32_t *row; /* [n], each below n_from */
    int n, n_from, d;
    struct kn_acts out;
    unsigned kinds;         /* bits 1 << kind of the codes to compute */
    const float *norm_bias; /* [d] or NULL */
};

/* The codes of rows 0 .. n - 1 of acts, n_in values each. */
struct kn_op_code {
    struct kn_acts acts;
    unsigned kinds;
    int n, n_in;
};

/* Stores a vector of each live row in its slot: the norm of x by weight (with norm_bias the layer norm, as in
 * kn_op_add_norm_code), or with weight NULL x itself, clamped to the range of F16 if the cache is F16.  The stored values,
 * as floats, are left in scratch. */
struct kn_op_keep_features {
    struct kn_rows rows;
    const float *x; /* [n, features.n] */
    const float *weight;
    float eps;
    struct kn_acts scratch;
    struct kn_features features;
    const float *norm_bias;
};

/* One matrix times rows.  node: the NUMA node that holds the matrix; -1: the panels are spread over all nodes.  n_stack:
 * number of matrices of one size that w holds one below the other, each of whole panels; 1: a plain matrix.  Matrix i
 * reads its own part of an input row, i * x_part bytes after the row's start, and writes its own part of an output row,
 * i * y_part floats after the start; y_part may leave a gap, which is not written. */
struct kn_product {
    struct kn_matmul mul;
    int node, n_stack;
    size_t x_part, y_part; /* y_part: n_out / n_stack or more; both unused if n_stack is 1 */
};

/* At most KN_PRODUCTS products, none of which reads the result of another. */
#define KN_PRODUCTS 4
struct kn_op_products {
    struct kn_product product[KN_PRODUCTS];
    int n;
};

/* The product of w with rows 0 .. n_row - 1 of in, to y [n_row, n_out]; panels on all nodes. */
static inline struct kn_product kn_product(const struct kn_acts *in, const struct kn_mat *w, float *y, int n_row)
{
    enum kn_act kind = kn_format_info(w->format)->act;
    return (struct kn_product){ .mul = { .w = *w,
                                         .x = in->code[kind],
                                         .x_stride = in->code_stride[kind],
                                         .y = y,
                                         .y_stride = (size_t)w->n_out,
                                         .n_row = n_row },
                                .node = -1,
                                .n_stack = 1 };
}

/* x = x * by, then x += bias unless it is NULL, then with a cap over 0 x = cap * tanh(x / cap) (kn_ops.cap): products of the
 * last matrix become logits, or a layer scales the residual stream. */
struct kn_op_scale {
    float *x; /* [n, d] */
    float by;
    int n, d;
    const float *bias; /* [d] or NULL */
    float cap;
};

/* Arrays lose rows: row i becomes the old row row[i] of each array, for i = 0 .. n - 1.  Later rows keep their contents. */
#define KN_PACKS 4
struct kn_pack {
    float *x; /* [n_from, d] */
    int d;
};
struct kn_op_pack {
    const int32_t *row; /* [n] ascending, each below n_from */
    int n, n_from;
    struct kn_pack array[KN_PACKS];
    int n_array;
};

/* ---- operations of attention ------------------------------------------------------------------------------- */

/* For live rows: bias, norms, clamp and rotation of Q, K and V, in this order, or with late_norm the QK norm last; then,
 * with scale_q, the queries times the row's q_scale, and with v_scale the values times that; then key and value to the
 * row's slot.  With q_gate the queries come from there: each head's gate follows its query.  With v_is_k the values are
 * the keys as they were before their norm, and v is only written. */
struct kn_op_finish_qkv {
    struct kn_rows rows;
    int n_head, n_kv, d_head, d_value, n_rot;
    float *q, *k, *v;                      /* [n, n_head * d_head], [n, n_kv * d_head], [n, n_kv * d_value] */
    const float *q_gate;                   /* [n, n_head, 2, d_head] or NULL */
    const float *q_bias, *k_bias, *v_bias; /* or NULL */
    const float *q_norm, *k_norm;          /* [d_head], or with norm_all [heads * d_head]; or NULL */
    bool norm_all;                         /* the heads of a row are normalised as one vector */
    bool late_norm;
    float eps, clamp;           /* clamp 0: none */
    const float (*rotation)[2]; /* [n, n_rot / 2]; NULL: queries and keys are not rotated */
    enum kn_rope rope;
    struct kn_cache cache;
    bool scale_q;
    bool v_is_k;         /* d_value is d_head */
    const float *v_norm; /* [d_value] of each head; or NULL */
    float v_scale;       /* 0: none */
};

/* Attention of live rows over positions first to their own: with a window its last positions, or with `chunked` those
 * since the last multiple of `window`; else all; but none before the row's `first` (kn_first_position()).  Query head h uses
 * KV head h / (n_head / n_kv).  With q_gate each head's output is gated (kn_ops.gate).  The outputs of a row are row `row`
 * of out, [n_head * d_value], with codes of all rows; or with by_head head h has a row of its own, row * n_head + h, with
 * codes of live rows. */
struct kn_op_attend {
    struct kn_rows rows;
    int n_head, n_kv, d_key, d_value, window;
    const float *q;      /* [n, n_head * d_key] */
    const float *q_gate; /* [n, n_head, 2, d_key] or NULL; d_value is d_key */
    const float *sink;   /* [n_head] or NULL */
    float scale;
    struct kn_cache cache;
    bool by_head;
    struct kn_acts out;
    unsigned kinds;
    bool chunked;
};

/* The first position that a row of attend reads. */
KN_SHARED int kn_first_position(const struct kn_row *r, int window, bool chunked)
{
    int first = !window ? 0 : chunked ? r->position - r->position % window : r->position - window + 1;
    return first > r->first ? first : r->first;
}

/* Latent attention: for live rows the first d_latent values of k are normalised, the last n_rot rotated, and all stored
 * in the row's slot.  With d_low the row's query latent is normalised, and coded as input of the query's matrix. */
struct kn_op_latent_keep {
    struct kn_rows rows;
    int d_latent, n_rot, d_low;
    float *k; /* [n, d_latent + n_rot] */
    const float *k_norm, *low_norm;
    float eps;
    struct kn_acts low;
    unsigned low_kinds;
    const float (*rotation)[2]; /* [n, n_rot / 2] */
    enum kn_rope rope;
    struct kn_cache cache;
};

/* Latent attention: splits the query of each live row and head.  The last n_rot values are rotated and become the end of
 * the absorbed query; the others become row `row * n_head + head` of plain, with codes.  With scale_q, both are first
 * multiplied by the row's q_scale, the rotated values after the rotation. */
struct kn_op_latent_place {
    struct kn_rows rows;
    int n_head, d_plain, n_rot, d_latent;
    const float *q;             /* [n, n_head, d_plain + n_rot] */
    float *absorbed;            /* [n, n_head, d_latent + n_rot] */
    const float (*rotation)[2]; /* [n, n_rot / 2] */
    enum kn_rope rope;
    struct kn_acts plain;
    unsigned kinds;
    bool scale_q;
};

/* ---- operations of delta nets -------------------------------------------------------------------------------- */

#define KN_MAX_TAP 8 /* taps of a delta net's convolution */

/* tiled: value head i has key head i % n_key_head, not i / (n_value_head / n_key_head).  by_key_head: a row's beta and
 * alpha come by key head, the betas of its value heads and then their alphas; else all betas, then all alphas. */
struct kn_net {
    int n_key_head, n_value_head, d_key, d_value, n_tap;
    bool tiled, by_key_head;
};

/* Channels of the convolution: queries and keys of all key heads, values of all value heads. */
KN_SHARED int kn_net_mix(const struct kn_net *n) { return 2 * n->n_key_head * n->d_key + n->n_value_head * n->d_value; }

/* Floats of a row's input: inputs of the convolution, beta and alpha of each value head; padded. */
KN_SHARED int kn_net_in(const struct kn_net *n)
{
    return (int)kn_align_up((size_t)(kn_net_mix(n) + 2 * n->n_value_head), 16);
}

/* Floats of one layer in a state: n_tap - 1 inputs of the convolution, then a matrix for each value head. */
KN_SHARED size_t kn_net_past_floats(const struct kn_net *n)
{
    return kn_align_up((size_t)(n->n_tap - 1) * (size_t)kn_net_mix(n), 16);
}
static inline size_t kn_net_state_floats(const struct kn_net *n)
{
    return kn_net_past_floats(n) + (size_t)n->n_value_head * kn_delta_floats(n->d_key, n->d_value);
}

/* One row on its way through the delta nets: a row of this batch, or a pending row: a draft row of an earlier batch
 * that was accepted and is computed into the state now. */
struct kn_step {
    int32_t row;     /* number in the batch; -1: a pending row */
    int32_t kept;    /* of a pending row: number of its inputs among the kept ones */
    int32_t before;  /* the step of the token before it in the sequence; -1: that token is the state's last, or none */
    int32_t copy_to; /* the state that becomes a copy of this one after the step; 0: none */
};

/* The steps of one state in a pass: from step `first` on, n_text steps that extend the state, then n_draft drafts. */
struct kn_flow {
    int32_t state;
    int first, n_text, n_draft;
};

struct kn_flows {
    const struct kn_step *step; /* [n_step], flow by flow */
    const struct kn_flow *flow; /* [n_flow] */
    int n_step, n_flow;
    const int *status; /* [rows]; steps of failed rows are skipped */
    int n_row;
};

/* Splits the rows of a product whose columns are, for each key head in turn: query, key, values, gates. */
struct kn_op_part {
    struct kn_net net;
    const float *from; /* [n, mix + n_value_head * d_value] */
    float *in;         /* [n, kn_net_in()] beta and alpha stay */
    float *z;          /* [n, n_value_head * d_value] */
    int n;
};

/* For each step: the convolution over its own input and those of the n_tap - 1 tokens before it, with L2 norms of queries
 * and keys (unit_q, unit_k: the weights that make the RMS norm an L2 norm); then beta and the decay of each value head:
 * sigmoid(beta), exp(decay * softplus(alpha + decay_bias)). */
struct kn_op_conv {
    struct kn_net net;
    struct kn_flows flows;
    const float *in;   /* [rows, kn_net_in()] */
    const float *kept; /* [n_kept, kn_net_in()] inputs of pending rows in this layer */
    int n_kept;
    const uint8_t *state; /* this layer of state 0; of state i: i * state_bytes further */
    size_t state_bytes;
    const float *taps;               /* [n_tap, mix] */
    const float *decay, *decay_bias; /* [n_value_head] */
    const float *unit_q, *unit_k;    /* [d_key] */
    float *out;                      /* [n_step, kn_net_in()] */
};

/* For each flow: its steps update the state in order, drafts update a copy that is dropped; each step of the batch has
 * an output: norm by out_norm, gated by silu(z).  Then the states get the last n_tap - 1 inputs of the convolution. */
struct kn_op_delta {
    struct kn_net net;
    struct kn_flows flows;
    const float *in, *kept;
    int n_kept;
    uint8_t *state;
    size_t state_bytes;
    const float *mixed; /* [n_step, kn_net_in()] of kn_op_conv */
    const float *z;     /* [rows, n_value_head * d_value] */
    const float *out_norm;
    float eps;
    float *out;
    size_t out_stride; /* floats per row */
};

/* Copies the inputs of draft rows: row i of in to kept[to[i]], if to[i] is not negative. */
struct kn_op_keep_draft {
    const float *in; /* [n, d] */
    float *kept;     /* [n_kept, d] */
    const int32_t *to;
    int n, n_kept, d;
};

/* ---- operations of draft heads ---------------------------------------------------------------------------------- */

/* Input of an EAGLE or MTP head's first matrix: [feature, embedding], or with token_first [embedding, feature], each
 * normalised if it has a norm; with codes. */
struct kn_op_join {
    struct kn_rows rows;
    struct kn_mat embed;
    struct kn_features features;
    bool token_first;
    const float *feature_norm, *embed_norm; /* or NULL */
    float eps;
    struct kn_acts out;
    unsigned kinds;
};

/* Input of an EAGLE-3 head's first matrix: the target's inner features, of which n_norm parts of equal length are each
 * normalised.  A row that starts from a feature of its own gets zeros: its product is not used. */
#define KN_MAX_FUSED 3
struct kn_op_fuse {
    struct kn_rows rows;
    struct kn_features features;
    struct kn_acts out;
    unsigned kinds;
    int n_norm; /* 0: none */
    const float *norm[KN_MAX_FUSED];
    float eps;
};

/* EAGLE-3: x becomes the row's own feature, if it has one; out = [embedding, x], each normalised, with codes.  With
 * norm_first, x becomes its norm. */
struct kn_op_pair {
    struct kn_rows rows;
    struct kn_mat embed;
    float *x; /* [n, d_model] */
    const float *embed_norm, *x_norm;
    bool norm_first;
    float eps;
    struct kn_acts out;
    unsigned kinds;
};

/* EAGLE-3: out row i = row row[i] of x, row NULL: row i, out NULL: none; logits row i = -infinity, but guessed[k] for token[k]. */
struct kn_op_spread {
    const float *x;     /* [n_from, d_model] */
    const int32_t *row; /* [n] */
    int n, n_from, d_model;
    float *out;           /* [n, d_model] or NULL */
    const int32_t *token; /* [n_guess]; NULL: logits are complete */
    const float *guessed; /* [n, n_guess] */
    float *logits;        /* [n, n_vocab] */
    int n_guess, n_vocab;
};

/* ---- operations of experts --------------------------------------------------------------------------------------- */

enum kn_gating {
    KN_GATING_SOFTMAX = 1,
    KN_GATING_SIGMOID,
    KN_GATING_CHOSEN,
    KN_GATING_CHOSEN_SIGMOID,
    KN_GATING_MIXER
};
#define KN_MAX_GROUP 64 /* expert groups */

/* Chooses the n_used experts of each row, and their weights.  Scores are the softmax over the logits, or the sigmoid of
 * each.  The first in the order of choices (kernels.h) are chosen; a selection bias and groups may change the choice but
 * not the weights.  Weights are the scores, scaled to sum to 1 with norm_topk; times scale, times the expert's
 * expert_scale.  CHOSEN: the largest logits are chosen, the weights are the softmax over these.  CHOSEN_SIGMOID: the same
 * with the sigmoid of each.  MIXER: the two largest logits are chosen.  The first one's weight is its part of the softmax
 * over all logits near it, the second one's its part of that over all logits near the second one but the first one.  A
 * logit x is near m unless (m - x) / max(|x|, m) > mixer_gap. */
struct kn_op_route {
    int n, n_expert, n_used;
    float *logit;                    /* [n, n_expert] afterwards the scores */
    float *rank;                     /* [n, n_expert] scratch */
    const float *bias, *select_bias; /* [n_expert] or NULL */
    enum kn_gating gating;
    int n_group, n_group_used; /* experts come from the best n_group_used groups */
    int group_best;            /* 1 or 2: a group's score is the sum of its group_best largest */
    bool norm_topk;
    float scale;
    int32_t *id;   /* [n, n_used] */
    float *weight; /* [n, n_used] */
    float mixer_gap;
    const float *expert_scale; /* [n_expert] or NULL */
};

/* Rows grouped by expert, of one layer. */
struct kn_plan {
    int32_t *n_expert; /* distinct experts */
    int32_t *expert;   /* [*n_expert] the store's numbers, ascending */
    int32_t *first;    /* [*n_expert + 1] expert[e] has row[first[e] .. first[e + 1] - 1], and the same part of pair */
    int32_t *row, *pair; /* [rows * n_used] batch row, and row * n_used + choice */
    int32_t *fill;       /* [the layer's experts] scratch of the sort */
};

/* Sorts the (row, choice) pairs of live rows by expert, so that an expert has its rows in ascending order and is read
 * once for any number of rows.  expert0: the store's number of expert 0. */
struct kn_op_plan {
    struct kn_rows rows;
    int n_expert, n_used, expert0;
    const int32_t *id; /* [n, n_used] */
    struct kn_plan plan;
};

/* Lists the experts that any live row chose, by the sum of their weights over the rows, the largest first. */
struct kn_op_guess {
    struct kn_rows rows;
    int n_expert, n_used, expert0;
    const int32_t *id;   /* [n, n_used] */
    const float *weight; /* [n, n_used] */
    float *sum;          /* [n_expert] scratch */
    int32_t *expert;     /* [n_expert] the store's numbers */
    int32_t *n_listed;
};

/* One FFN and its rows, parts first .. first + n - 1 of the operation's lists: an expert with the rows that chose it, or
 * a dense FFN with all rows. */
struct kn_group {
    struct kn_mat gate, up, down;
    int node;     /* as in struct kn_product */
    int32_t bias; /* number of the expert among those of the layer: which row of the biases is its own */
    int first, n;
};

/* group[i] = the FFN expert[e] with its rows, e being the number in the layer of the plan's i-th expert; groups behind the
 * plan's experts have no rows and the matrices of expert[0].  *n_sum += *plan.n_expert.
 *
 * With `out` some experts may be absent: expert[e].gate.data is NULL, or all are if expert is NULL.  Their groups have no
 * rows.  *n_absent is their number.  Outputs get numbers: those of absent experts first, else in the plan's order:
 * out[i] is the number of the plan's pair i, place[pair[i]] the same, out_weight[out[i]] = weight[pair[i]].  If no
 * expert is absent, *done = turn, which the host may await (kn_op_await). */
struct kn_op_group {
    struct kn_plan plan;
    int expert0, n_expert;         /* the store's number of the layer's expert 0; the layer's experts */
    const struct kn_group *expert; /* [n_expert] matrices and node; the rest is not read */
    struct kn_group *group;        /* [n_group] n_group: 0, or not below *plan.n_expert */
    int n_group;
    int32_t *n_sum; /* or NULL */
    int n_pair;     /* most pairs of the plan */
    int32_t *out, *place, *n_absent;
    const float *weight; /* [n_pair] or NULL */
    float *out_weight;   /* [n_pair] */
    uint32_t *done, turn;
};

/* SWIGLU: kn_ops.swiglu, or with a limit over 0 kn_ops.swiglu_clamped.  GEGLU: gelu(g) * u, by GELU's approximation with
 * tanh, written with the sigmoid: t = c * (g + 0.044715 * (g * g * g)), c = 2 sqrt(2 / pi); gelu(g) is g gated by t
 * (kn_ops.gate). */
enum kn_activation { KN_SWIGLU, KN_GEGLU };

/* act row pair[i] = activation(gate W x, up W x) of x row row[i], with codes, for each part i of each group.  Lists that
 * are NULL mean i.  interleaved: gate holds both matrices, their rows alternate, and up is absent.  With in_scale both
 * products are multiplied by in_scale[pair[i]], as if the row had been. */
struct kn_op_gate_up {
    const struct kn_group *group; /* [n_group] */
    int n_group, n_row, n_pair;   /* n_row, n_pair: rows of x; of gate, up and act */
    int d_in, d_act;
    bool interleaved;
    const int32_t *row, *pair;
    struct kn_acts x;
    float *gate, *up;                 /* [n_pair, d_act]; gate [n_pair, 2 d_act] if interleaved */
    const float *gate_bias, *up_bias; /* [experts, d_act] or NULL */
    enum kn_activation activation;
    float alpha, limit;
    struct kn_acts act;
    unsigned kinds;
    unsigned formats;      /* bits 1 << format of gates and ups; 0: not known */
    const float *in_scale; /* [n_pair] or NULL */
};

/* y row pair[i] = down W act row pair[i], for each part i of each group. */
struct kn_op_down {
    const struct kn_group *group;
    int n_group, n_pair, d_act, d_out;
    const int32_t *pair;
    struct kn_acts act;
    float *y;         /* [n_pair, d_out] */
    unsigned formats; /* bits 1 << format of the downs; 0: not known */
};

/* For live rows: sum is, from +0, weight * (output + its bias) of the row's choices in order (weight NULL: 1), then
 * norm(sum) * expert_norm; then the shared expert's output, as norm(output) * shared_norm, times the sigmoid of its gate's
 * logit, or times 1.  sum = norm(sum) * sum_norm; then x = fmaf(sum_scale, sum, x).  A norm that is NULL is left out. */
struct kn_op_combine {
    struct kn_rows rows;
    int n_used, d_model;
    const int32_t *id;      /* [n, n_used] */
    const float *weight;    /* [n, n_used] or NULL */
    float *y;               /* [n * n_used, d_model]; undefined afterwards */
    const int32_t *place;   /* [n, n_used] the row of y that has the choice's output, each another; NULL: in order */
    const float *down_bias; /* [experts, d_model] or NULL */
    int n_expert;
    float *shared;            /* [n, d_model] or NULL; undefined afterwards with shared_norm */
    const float *shared_gate; /* [n] logits; or NULL */
    const float *sum_norm;    /* [d_model] */
    float eps, sum_scale;
    struct kn_acts scratch;
    float *x;                               /* [n, d_model] */
    const float *expert_norm, *shared_norm; /* [d_model] */
};

/* ---- copies -------------------------------------------------------------------------------------------------------- */

/* n pieces of `bytes` each, the next `stride` bytes after the one before, in both.  from NULL: zeros.  A piece may overlap
 * its own copy, and no other piece. */
struct kn_op_copy {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes, stride;
    int n;
};

/* Copies bytes from the host's image of memory to the device's, or back (struct kn_memory).  when, in the device's memory:
 * nothing is copied if *when is 0; the host's end is then pinned memory. */
struct kn_op_transfer {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    const int32_t *when; /* or NULL */
};

/* ---- words that the host and queues wait for ------------------------------------------------------------------------- */

/* A word lies in the host's image of memory.  Its values rise, in steps below 2^31, and may wrap: it has reached a value if
 * the difference is not negative.  For devices with kn_device_can_await() only.
 *
 * *word = value, after the results of the operations before. */
struct kn_op_signal {
    uint32_t *word;
    uint32_t value;
};

/* Later operations of the queue run when *word has reached the value. */
struct kn_op_await {
    const uint32_t *word;
    uint32_t value;
};

static inline bool kn_word_reached(const uint32_t *word, uint32_t value)
{
    return (int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0;
}

/* ---- all ------------------------------------------------------------------------------------------------------------ */

#define KN_OPS(X)                                                                                                      \
    X(EMBED, embed)                                                                                                    \
    X(ADD_NORM_CODE, add_norm_code)                                                                                    \
    X(CODE, code)                                                                                                      \
    X(KEEP_FEATURES, keep_features)                                                                                    \
    X(PRODUCTS, products)                                                                                              \
    X(SCALE, scale)                                                                                                    \
    X(PACK, pack)                                                                                                      \
    X(FINISH_QKV, finish_qkv)                                                                                          \
    X(ATTEND, attend)                                                                                                  \
    X(LATENT_KEEP, latent_keep)                                                                                        \
    X(LATENT_PLACE, latent_place)                                                                                      \
    X(PART, part)                                                                                                      \
    X(CONV, conv)                                                                                                      \
    X(DELTA, delta)                                                                                                    \
    X(KEEP_DRAFT, keep_draft)                                                                                          \
    X(JOIN, join)                                                                                                      \
    X(FUSE, fuse)                                                                                                      \
    X(PAIR, pair)                                                                                                      \
    X(SPREAD, spread)                                                                                                  \
    X(ROUTE, route)                                                                                                    \
    X(PLAN, plan)                                                                                                      \
    X(GUESS, guess)                                                                                                    \
    X(GROUP, group)                                                                                                    \
    X(GATE_UP, gate_up)                                                                                                \
    X(DOWN, down)                                                                                                      \
    X(COMBINE, combine)                                                                                                \
    X(COPY, copy)                                                                                                      \
    X(TRANSFER, transfer)                                                                                              \
    X(SIGNAL, signal)                                                                                                  \
    X(AWAIT, await)

enum kn_op_kind {
#define KN_ENUM(KIND, name) KN_OP_##KIND,
    KN_OPS(KN_ENUM)
#undef KN_ENUM
        KN_OP_COUNT
};

struct kn_op {
    enum kn_op_kind kind;
    union {
#define KN_MEMBER(KIND, name) struct kn_op_##name name;
        KN_OPS(KN_MEMBER)
#undef KN_MEMBER
    };
};

/* kn_enqueue(q, COMBINE, combine, .rows = .., ..) adds one operation. */
#define kn_enqueue(queue, KIND, name, ...)                                                                             \
    kn_queue_add(queue, &(struct kn_op){ .kind = KN_OP_##KIND, .name = { __VA_ARGS__ } })

const char *kn_op_name(enum kn_op_kind kind);

/* Calls visit for each piece of memory that the operation reads or writes: with the field's name, once or several times
 * for each field.  KN_WRITES: every byte gets a value that does not depend on the old one.  KN_CHANGES: reads and writes,
 * or writes a part only.  KN_SCRATCH: the contents afterwards are undefined, and those before are not read. */
enum kn_access { KN_READS, KN_WRITES, KN_CHANGES, KN_SCRATCH };
typedef void kn_field_visit(void *arg, const char *field, enum kn_access access, const void *at, size_t bytes);
void kn_op_fields(const struct kn_op *op, kn_field_visit *visit, void *arg);

/* Whether a device may run `next`, which was added behind op, as one with it (fuse.c). */
bool kn_may_fuse(const struct kn_op *op, const struct kn_op *next);

#endif
