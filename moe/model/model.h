/* moe/model/model.h - a model: the description of its family, its weights, and their sizes.
 *
 * moe.h has the calls: moe_model_open() reads the description from a file's metadata and binds the file's tensors to
 * it, so that all sizes are known before a weight is read; moe_model_load() reads dense weights into memory and opens
 * the store of experts; moe_model_unload() frees both, moe_model_close() the rest.  While it is loaded a model is
 * immutable and shared by all contexts.
 *
 * This header shows its parts to moe/pass, which computes with them, and to moe/write, which makes files of the same
 * families:
 *
 *     struct moe_desc    numbers and properties of the model, without addresses
 *     struct moe_layer   the matrices and vectors of one layer; they lie in the memory of the model's device
 *     struct moe_model   both, with embedding, output matrix and the store; owns all but the file and the target
 *
 * A matrix that a layer lacks has n_out 0, a vector that it lacks is NULL. */
#ifndef MOE_MODEL_MODEL_H
#define MOE_MODEL_MODEL_H

#include "moe/files/files.h"

/* ---- the description ---------------------------------------------------------------------------------- */

#define MOE_MAX_GROUP KN_MAX_GROUP
#define MOE_MAX_TAP   KN_MAX_TAP
#define MOE_MAX_LAYER 4096

enum moe_scaling { MOE_SCALING_NONE, MOE_SCALING_LINEAR, MOE_SCALING_YARN };
enum moe_qk_norm { MOE_QK_NORM_NONE, MOE_QK_NORM_HEAD, MOE_QK_NORM_ALL }; /* of each head; of all heads as one */

/* The activation of feed-forward networks, f(gate) * up.  GELU: by its approximation with tanh. */
enum moe_activation { MOE_SWIGLU, MOE_GEGLU };

/* The shared expert of a layer.  GATED: its output is multiplied by a number for each row: the sigmoid of the product
 * of the row with moe_layer.shared_gate.  APART: it is the dense FFN of the layer, beside the experts: the FFN, the experts
 * and the router each have a norm of their own input, FFN and experts also one of their output, and an expert's weight
 * is multiplied by a number of the expert. */
enum moe_shared { MOE_SHARED_NONE, MOE_SHARED_PLAIN, MOE_SHARED_GATED, MOE_SHARED_APART };

/* Kinds of draft head.  They differ in the residual stream with which a row begins (draft_head.c).  EAGLE: a matrix
 * times [feature, embedding of the token].  AHEAD (an MTP layer): a matrix times [embedding, feature], each normalised
 * first.  EAGLE3: a matrix times three inner features; the attention reads [embedding, residual stream], each
 * normalised. */
enum moe_head { MOE_HEAD_NONE, MOE_HEAD_EAGLE, MOE_HEAD_EAGLE3, MOE_HEAD_AHEAD };

/* The heads of keys and values of a layer, and values of one head: its query and key; its value; those rotated. */
struct moe_heads {
    int n_kv, d_head, d_value, n_rot;
};

/* A model as data, without its weights: everything that the forward pass depends on. */
struct moe_desc {
    char arch[32];
    int n_layer, d_model, n_head, n_kv, n_rot, n_vocab, n_ctx_train;
    int d_head, d_value;          /* of one head: query and key; value */
    int d_latent, d_query_latent; /* latent of keys and values; of queries; or 0 */
    bool kv_whole;                /* the file has k_b, transposed, and v_b in one matrix */
    int d_key, d_kept;            /* values of a slot's key and value, per KV head; MLA: latent_attention.c */
    float attend_scale;           /* scale of scores */
    float query_growth;           /* over 0: queries are multiplied by moe_query_scale() of their position */
    int query_period, query_offset;
    bool query_unrotated;           /* only those of layers without a rotation */
    int n_lead;                     /* dense layers before the first layer with experts */
    int moe_step;                   /* of the layers from n_lead on, each moe_step-th has experts; 0 or 1: all */
    int block0;                     /* number in the file of the model's first layer: over 0 for an MTP head */
    int n_ahead;                    /* MTP layers in the file, after the last layer */
    int d_ff;                       /* of dense layers */
    int n_expert, n_used, d_expert; /* all 0: a dense model */
    enum moe_shared shared;
    int d_shared;          /* width of the shared expert */
    float eps, latent_eps; /* of norms; of the norms of latents */
    enum kn_rope rope;
    float rope_base;
    float window_rope_base; /* base in layers with a window, without scaling; 0: the same rotation in all layers */
    uint64_t unrotated_layers[MOE_MAX_LAYER / 64]; /* bit as in window_layers: layer i has no rotation */
    enum moe_scaling scaling;
    float scaling_factor, scaling_attn; /* scaling_attn multiplies cos and sin */
    int scaling_ctx;                    /* yarn, long_rope: the context of the first training */
    bool long_rope;                     /* contexts longer than scaling_ctx have other divisors of the frequencies */
    bool yarn_exact;                    /* the ends of yarn's ramp are not rounded to whole pairs */
    float beta_fast, beta_slow;
    enum moe_head head;
    struct moe_features reads; /* of a head: the target's features that it reads */
    bool norm_first;           /* of EAGLE-3: the residual stream begins with the normalised feature */
    bool norm_last;            /* of EAGLE-3: later rows start from the hidden state after the final norm */
    int n_inner_norm;          /* of EAGLE-3: parts of the inner features that have a norm each; 0: none */
    int n_guess;               /* of a head: number of tokens that it can predict */
    bool fused_qkv, fused_ffn; /* the file has Q, K and V in one matrix; gate and up of dense layers */
    bool qkv_bias, o_bias, sinks;
    bool layer_norm; /* norms, except those of Q and K, are layer norms with a bias */
    bool out_bias;   /* the output matrix has a bias */
    int window;      /* positions that a row sees in layers with a window, the own included; 0: no layer has one */
    bool chunked;    /* a row sees the positions since the last multiple of the window */
    uint64_t window_layers[MOE_MAX_LAYER / 64]; /* bit i % 64 of word i / 64: layer i has the window */
    struct moe_heads window_heads;              /* of layers with a window; n_kv 0: as in the other layers */
    bool window_sinks;                          /* only layers with a window have sinks */
    bool v_is_k;       /* layers without a window have no V: their values are the keys before norm and rotation */
    bool v_norm;       /* each head's value is normalised, without weights */
    float v_scale;     /* factor of values; 0: none */
    bool layer_scales; /* the residual stream is multiplied by a number of the layer at the layer's end */
    float logit_cap;   /* over 0: logits become logit_cap * tanh(logit / logit_cap) */
    bool post_norm;    /* the FFN's norm has the name post_attention_norm */
    bool out_norms; /* the outputs of attention and FFN are normalised before they are added to the residual stream */
    enum moe_qk_norm qk_norm;
    bool late_qk_norm; /* Q and K are normalised after the rotation */
    bool unit_qk_norm; /* in layers with a rotation, and without weights */
    bool out_gate;     /* the q matrix also computes a gate for the output of each query head */
    int delta_period;  /* n > 0: all layers but each n-th are delta nets (delta_net.c) */
    int n_key_head, n_value_head, d_state_key, d_state_value, n_tap; /* of delta nets; a state is [key][value] */
    bool delta_tiled;           /* value head i has key head i % n_key_head, not i / (n_value_head / n_key_head) */
    bool delta_mixed, delta_ba; /* one matrix in the file, by key head, for q, k, v and gate; for beta and alpha */
    float clamp_qkv;            /* Q, K and V are clamped to +-clamp_qkv; 0: no clamp */
    float embed_scale, residual_scale, logit_scale; /* factors of embeddings, outputs of attention and FFN, logits */
    enum moe_activation activation;
    enum moe_gating gating;
    bool router_bias, expert_bias;
    bool select_bias;                 /* a bias for the choice of experts, not for their weights */
    int n_group, n_group_used;        /* expert groups; experts come from the best n_group_used */
    int group_best;                   /* 1 or 2: a group's score is the sum of its group_best largest scores */
    float swiglu_alpha, swiglu_limit; /* of the clamped activation; 0: plain SwiGLU */
    bool norm_topk;                   /* the weights of a row's experts are scaled to sum to 1 */
    float expert_scale;               /* factor of the weights of a row's experts */
    bool scaled_input;                /* the weights of a row's experts multiply their inputs, not their outputs */
    float mixer_gap;                  /* of MOE_GATING_MIXER */
};

/* Reads d from the file's metadata.  An unknown architecture or value is refused by name. */
int moe_desc_read(struct moe_desc *d, const struct moe_file *f);

/* Sets the properties that all models of the family arch share and zeroes the numbers of one model.  arch is known. */
void moe_desc_family(struct moe_desc *d, const char *arch);

/* 1 + query_growth * log(1 + floor((position + query_offset) / query_period)). */
float moe_query_scale(const struct moe_desc *d, int position);

/* ---- sizes that follow from the description ------------------------------------------------------------- */

/* True with MLA: a KV slot holds one latent, from which all heads derive their keys and values. */
static inline bool moe_is_latent(const struct moe_desc *d) { return d->d_latent > 0; }

/* True if this layer is a delta net.  It has no keys and values by position, only a state for each sequence. */
static inline bool moe_is_delta(const struct moe_desc *d, int layer)
{
    return d->delta_period && layer % d->delta_period != d->delta_period - 1;
}

/* True if this layer has experts. */
static inline bool moe_has_experts(const struct moe_desc *d, int layer)
{
    return d->n_expert && layer >= d->n_lead && (d->moe_step < 2 || (layer + 1) % d->moe_step == 0);
}

/* Number of layers with experts among layers 0 .. layer - 1. */
static inline int moe_n_sparse_before(const struct moe_desc *d, int layer)
{
    int n = 0;
    for (int i = d->n_lead; i < layer; i++)
        n += moe_has_experts(d, i);
    return n;
}

/* The first layer with experts behind this one; n_layer: there is none. */
static inline int moe_next_sparse(const struct moe_desc *d, int layer)
{
    do
        layer++;
    while (layer < d->n_layer && !moe_has_experts(d, layer));
    return layer;
}

/* True if rows of this layer do not see all earlier positions, but as window and chunked say. */
static inline bool moe_has_window(const struct moe_desc *d, int layer)
{
    return d->window && d->window_layers[layer / 64] >> layer % 64 & 1;
}

/* True if queries and keys of this layer are rotated. */
static inline bool moe_is_rotated(const struct moe_desc *d, int layer)
{
    return !(d->unrotated_layers[layer / 64] >> layer % 64 & 1);
}

/* The heads of a layer with keys and values. */
static inline struct moe_heads moe_heads(const struct moe_desc *d, int layer)
{
    if (d->window_heads.n_kv && moe_has_window(d, layer))
        return d->window_heads;
    return (struct moe_heads){ d->n_kv, d->d_head, d->d_value, d->n_rot };
}

/* The contents of a layer's KV slot: for each of n_kv heads a key of d_head values and a value of d_value; with MLA one
 * latent, of which the value is a part. */
static inline struct moe_heads moe_slot_heads(const struct moe_desc *d, int layer)
{
    return d->d_latent ? (struct moe_heads){ d->n_kv, d->d_key, d->d_kept, d->n_rot } : moe_heads(d, layer);
}

/* A head's rotated values in layers with a window that have a rotation of their own; 0: all layers have the same one. */
static inline int moe_window_rot(const struct moe_desc *d)
{
    return !(d->window_rope_base > 0) ? 0 : d->window_heads.n_kv ? d->window_heads.n_rot : d->n_rot;
}

/* Pairs of all rotations of a position. */
static inline int moe_n_pair(const struct moe_desc *d) { return (d->n_rot + moe_window_rot(d)) / 2; }

/* True if a context of max_pos positions has the rotation of long contexts.  It is the context's size that decides, not
 * the length of a text: keys are rotated when they are stored. */
static inline bool moe_rotates_long(const struct moe_desc *d, int max_pos)
{
    return d->long_rope && max_pos > d->scaling_ctx;
}

/* Number of delta nets among layers 0 .. layer - 1. */
static inline int moe_n_delta_before(const struct moe_desc *d, int layer)
{
    return d->delta_period ? layer - layer / d->delta_period : 0;
}
static inline int moe_n_delta(const struct moe_desc *d) { return moe_n_delta_before(d, d->n_layer); }

/* Channels of a delta net's convolution: queries and keys of all key heads, values of all value heads. */
static inline int moe_d_mix(const struct moe_desc *d)
{
    return 2 * d->n_key_head * d->d_state_key + d->n_value_head * d->d_state_value;
}

/* Output values of all value heads. */
static inline int moe_d_state_value(const struct moe_desc *d) { return d->n_value_head * d->d_state_value; }

/* Floats of a row's input to a delta net: inputs of the convolution, beta and alpha of each value head; padded. */
static inline int moe_d_state_in(const struct moe_desc *d)
{
    return (int)kn_align_up((size_t)(moe_d_mix(d) + 2 * d->n_value_head), 16);
}

/* Bytes of one delta net in a state: n_tap - 1 inputs of the convolution, then a matrix for each value head. */
static inline size_t moe_state_layer_bytes(const struct moe_desc *d)
{
    size_t inputs = (size_t)(d->n_tap - 1) * (size_t)moe_d_mix(d);
    return kn_align_up(inputs, 16) * sizeof(float) +
           (size_t)d->n_value_head * kn_delta_floats(d->d_state_key, d->d_state_value) * sizeof(float);
}

/* Bytes of one state, over all delta nets; 0 without delta nets. */
static inline size_t moe_state_bytes(const struct moe_desc *d)
{
    return d->delta_period ? (size_t)moe_n_delta(d) * moe_state_layer_bytes(d) : 0;
}

/* Bytes of a matrix of an expert that a device keeps (pass/residents.c); 0: the matrix is absent. */
static inline size_t moe_resident_bytes(enum kn_format f, int n_out, int n_in)
{
    return n_out ? kn_align_up(kn_mat_bytes(f, n_out, n_in), 256) : 0;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

struct moe_layer {
    float *attn_norm, *ffn_norm;              /* [d_model] */
    float *attn_norm_bias, *ffn_norm_bias;    /* [d_model] or NULL */
    float *attn_out_norm, *ffn_out_norm;      /* [d_model] norms of outputs, or NULL */
    float *q_norm, *k_norm;                   /* [d_head], or [heads * d_head] for all heads as one vector, or NULL */
    float *q_a_norm, *kv_a_norm;              /* [d_query_latent], [d_latent] */
    float *q_bias, *k_bias, *v_bias, *o_bias; /* or NULL */
    float *sinks;                             /* [n_head] or NULL */
    float *v_norm;                            /* [d_value] ones, or NULL */
    int window;                               /* positions seen, the own included; 0: all */
    struct kn_mat q, k, v, o;                 /* o reads n_head * d_value, or moe_d_state_value() */
    int nth;                                  /* number among the attention layers, or of a delta net among those */
    struct kn_mat mix, z;                     /* of a delta net: inputs of the convolution; gate of the output */
    struct kn_mat mixed;                      /* in place of mix and z: both in one, by key head */
    struct kn_mat beta, alpha;                /* [n_value_head, d_model] */
    struct kn_mat ba;                         /* in place of beta and alpha: both in one, by key head */
    float *taps;                              /* [n_tap, d_mix]; in the file [d_mix, n_tap] */
    float *decay, *decay_bias;                /* [n_value_head] */
    float *out_norm;                          /* [d_state_value] */
    struct kn_mat q_a;                        /* [d_query_latent, d_model], input of q; or n_out 0 */
    struct kn_mat kv_a;                       /* [d_latent + n_rot, d_model], in place of k and v */
    struct kn_mat k_b;                        /* [d_latent, d_head - n_rot] of each head, one below the other */
    struct kn_mat v_b;                        /* [d_value, d_latent] of each head, one below the other */
    struct kn_mat gate, up, down;             /* of a dense layer; else of the shared expert, or n_out 0 */
    struct kn_mat shared_gate;                /* [1, d_model] or n_out 0 */
    struct kn_mat router;                     /* [n_expert, d_model]; n_out 0 in a dense layer */
    float *router_bias, *select_bias;         /* [n_expert] or NULL */
    const float *select_bias_image;           /* the host's image of it */
    float *router_norm, *expert_norm; /* [d_model] of MOE_SHARED_APART: norms of the inputs, of the FFN ffn_norm */
    float *expert_out_norm, *shared_out_norm; /* [d_model] and norms of the outputs of experts and FFN; or NULL */
    float *expert_scale;                      /* [n_expert] factors of the experts' weights, or NULL */
    float *out_scale, scale;                  /* [1] of layer_scales, or NULL; its value on the host, else 1 */
    float *gate_bias, *up_bias, *down_bias;   /* [n_expert, d_expert], down [n_expert, d_model]; or NULL */
    float *gate_bias_at, *up_bias_at;         /* on the device; gate_bias and up_bias are the host's */
    int expert0;                              /* the store's number of the layer's expert 0 */
    unsigned expert_acts, down_acts;          /* bits 1 << kn_act that the experts' gates and ups read; the downs */
    unsigned expert_formats[2];               /* bits 1 << format of the experts' gates and ups; of the downs */
};

/* A tensor that the load reads, and its destination.  One of matrix, vector and halves is not NULL: matrix->data is
 * set, or *vector, or k_b.data and v_b.data of the layer `halves`, if the tensor has both (k, v: memory of
 * these two). */
struct moe_dense {
    const struct moe_tensor *tensor;
    const struct moe_tensor *scale; /* one number, the matrix's scale; or NULL: 1 */
    struct kn_mat *matrix;
    int row0; /* first row of the matrix in the tensor, which may have more rows */
    float **vector;
    struct moe_layer *halves;
    uint8_t *k, *v;
};

struct moe_model {
    struct moe_desc desc;
    struct moe_shape shape;
    const struct kn_ops *ops;
    const struct kn_device *device; /* has the dense weights and runs the passes */
    const struct moe_file *file;
    struct moe_layer *layer;        /* [n_layer] */
    const struct moe_model *target; /* of a head; else NULL */
    struct kn_mat embed, head; /* head: output matrix, the same as embed if tied; a draft head may use its target's */
    struct kn_mat fc;          /* of a head: [d_model, features and embedding]; EAGLE-3: [d_model, features] */
    const struct moe_tensor *guess; /* tensor d2t of an EAGLE-3 head that predicts a part of the tokens; or NULL */
    int32_t *guess_token;           /* [n_guess] the tokens in d2t; NULL: all tokens */
    bool tied;
    bool ahead;                               /* the store has the experts of the MTP layer, too */
    float *feature_norm, *embed_norm;         /* [d_model] norms of the inputs of fc or attention; or NULL */
    float *inner_norm[MOE_INNER];             /* [n_inner_norm] of EAGLE-3: norms of the inner features */
    float *out_norm_bias, *out_bias;          /* [d_model], [n_vocab], or NULL */
    float *unit_norm;                         /* [d_head] ones: weights of norms that have none; or NULL */
    float *out_norm, *rope_extra, *rope_freq; /* [d_model]; rope_extra: [n_rot / 2] divisors of the frequencies, or
                                               * NULL; rope_freq: [moe_n_pair()] angle of each pair per position */
    float *long_extra, *long_freq;            /* the same of long contexts, [n_rot / 2]; or NULL */
    bool gate_up_interleaved;                 /* an expert's gates and ups alternate as rows of one matrix */
    struct off_sizes resident_sizes;          /* of slots for experts on a device; n 0: it cannot compute them */
    uint8_t *resident_size_of;                /* [n_expert_total] index of the expert's size; NULL: n is 0 */
    size_t scratch_bytes;                     /* scratch of one thread to interleave an expert */
    struct moe_dense *dense;                  /* [n_dense] tensors to load; NULL after the load */
    int n_dense;
    struct off_expert *expert; /* [n_expert_total + n_expert_ahead] their positions; NULL after the load */
    const struct moe_tensor *
        *expert_scale;                 /* [layers][OFF_MATRICES] tensors of one number for each of a layer's experts,
                                             * or NULL: 1; NULL after the load */
    struct kn_arena matrices, vectors; /* dense weights; empty until the load */
    struct kn_memory weights;          /* of a device with memory of its own: both */
    struct off_store *store;           /* NULL without experts; of a head the target's, not owned */
    struct off_mirror *mirror;         /* or NULL */
};

#endif
