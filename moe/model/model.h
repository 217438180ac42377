/* moe/model/model.h - a model: the description of its family, its weights, and their sizes.
 *
 * moe.h has the calls: moe_model_open() reads the description from a file's metadata and binds the file's tensors to
 * it, so that all sizes are known before a weight is read; moe_model_load() reads dense weights into memory and opens
 * the store of experts; moe_model_close() frees both.  From the load on a model is immutable and shared by all
 * contexts.
 *
 * This header shows its parts to moe/pass, which computes with them, and to moe/write, which makes files of the same
 * families:
 *
 *     struct moe_desc    numbers and properties of the family; no field is an address
 *     struct moe_layer   the matrices and vectors of one layer; they lie in the model's arena
 *     struct moe_model   both, with embedding, output matrix and the store; owns all but the file and the target
 *
 * A matrix that a layer lacks has n_out 0, a vector that it lacks is NULL. */
#ifndef MOE_MODEL_H
#define MOE_MODEL_H

#include "moe/files/files.h"

/* ---- the description ---------------------------------------------------------------------------------- */

#define MOE_MAX_GROUP 64 /* expert groups */
#define MOE_MAX_TAP   8  /* taps of a delta net's convolution */

enum moe_scaling { MOE_SCALING_NONE, MOE_SCALING_LINEAR, MOE_SCALING_YARN };
enum moe_qk_norm { MOE_QK_NORM_NONE, MOE_QK_NORM_HEAD, MOE_QK_NORM_ALL }; /* of each head; of all heads as one */

/* The shared expert of a layer.  GATED: its output is multiplied by the sigmoid of a product with the row. */
enum moe_shared { MOE_SHARED_NONE, MOE_SHARED_PLAIN, MOE_SHARED_GATED };

/* The first residual stream of a head's row is made of a feature and a token's embedding (draft_head.c).  EAGLE: a
 * matrix times [feature, embedding].  AHEAD (an MTP layer): a matrix times [embedding, feature], each normalised
 * first.  EAGLE3: a matrix times inner features; its attention reads the embedding beside them. */
enum moe_head { MOE_HEAD_NONE, MOE_HEAD_EAGLE, MOE_HEAD_EAGLE3, MOE_HEAD_AHEAD };

/* A model family as data: everything that the forward pass depends on. */
struct moe_desc {
    char arch[32];
    int n_layer, d_model, n_head, n_kv, n_rot, n_vocab, n_ctx_train;
    int d_head, d_value;            /* of one head: query and key; value */
    int d_latent, d_query_latent;   /* latent of keys and values; of queries; or 0 */
    bool kv_whole;                  /* the file has k_b, transposed, and v_b in one matrix */
    int d_key, d_kept;              /* a slot's key and value, per KV head; latent_attention.c */
    float attend_scale;             /* scale of scores */
    int n_lead;                     /* dense layers before the first layer with experts */
    int block0;                     /* number of the first layer in the file */
    int n_ahead;                    /* MTP layers in the file, after the last layer */
    int d_ff;                       /* of dense layers */
    int n_expert, n_used, d_expert; /* all 0: a dense model */
    enum moe_shared shared;
    int d_shared; /* width of the shared expert */
    float eps;
    enum kn_rope rope;
    float rope_base;
    enum moe_scaling scaling;
    float scaling_factor, scaling_attn; /* scaling_attn multiplies cos and sin */
    int scaling_ctx;                    /* yarn: the context of the first training */
    bool yarn_exact;                    /* the ends of its ramp are not rounded to pairs */
    float beta_fast, beta_slow;
    enum moe_head head;
    struct moe_features reads; /* of a head: the target's features that it reads */
    bool norm_first;           /* of EAGLE-3: the residual stream begins with the normalised feature */
    int n_guess;               /* of a head: size of its own vocabulary */
    bool qkv_bias, o_bias, sinks;
    int window, window_period; /* positions seen; each window_period-th layer sees all; 0: no window */
    bool post_norm;            /* the FFN's norm has the name post_attention_norm */
    enum moe_qk_norm qk_norm;
    bool out_gate;    /* q has a gate for the output of each query head */
    int delta_period; /* n > 0: all layers but each n-th are delta nets (delta_net.c) */
    int n_key_head, n_value_head, d_state_key, d_state_value, n_tap; /* of delta nets; a state is [key][value] */
    bool delta_tiled;           /* value head i has key head i % n_key_head, not i / (heads' ratio) */
    bool delta_mixed, delta_ba; /* file: q, k, v, gate in one matrix by key head; beta, alpha in one */
    float clamp_qkv;            /* Q, K and V are clamped to +-clamp_qkv; 0: no clamp */
    enum moe_gating gating;
    bool router_bias, expert_bias;
    bool select_bias;                 /* a bias for the choice of experts, not for their weights */
    int n_group, n_group_used;        /* expert groups; experts come from the best n_group_used */
    int group_best;                   /* a group counts by the sum of its group_best largest scores */
    float swiglu_alpha, swiglu_limit; /* of the clamped activation; 0: plain SwiGLU */
    bool norm_topk;                   /* the weights of a row's experts are scaled to sum to 1 */
    float expert_scale;               /* factor of these weights */
};

/* Reads d from the file's metadata.  An unknown architecture or value is refused by name. */
int moe_desc_read(struct moe_desc *d, const struct moe_file *f);

/* The properties that all models of a family share, without the numbers of one model; arch is a known one. */
void moe_desc_family(struct moe_desc *d, const char *arch);

/* ---- sizes that follow from it ------------------------------------------------------------------------- */

/* A slot holds one latent, from which all heads derive their keys and values. */
static inline bool moe_is_latent(const struct moe_desc *d) { return d->d_latent > 0; }

/* A delta net has no keys and values by position: its state is the only trace of earlier rows. */
static inline bool moe_is_delta(const struct moe_desc *d, int layer)
{
    return d->delta_period && layer % d->delta_period != d->delta_period - 1;
}

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

/* The numbers that a row gives a delta net: the inputs of its convolution, beta and alpha. */
static inline int moe_d_state_in(const struct moe_desc *d)
{
    return (int)kn_align_up((size_t)(moe_d_mix(d) + 2 * d->n_value_head), 16);
}

/* Memory of one layer of a state: n_tap - 1 inputs of the convolution, then a matrix for each value head. */
static inline size_t moe_state_layer_bytes(const struct moe_desc *d)
{
    size_t inputs = (size_t)(d->n_tap - 1) * (size_t)moe_d_mix(d);
    return kn_align_up(inputs, 16) * sizeof(float) +
           (size_t)d->n_value_head * kn_delta_floats(d->d_state_key, d->d_state_value) * sizeof(float);
}

/* Memory of one state; 0 without delta nets. */
static inline size_t moe_state_bytes(const struct moe_desc *d)
{
    return d->delta_period ? (size_t)moe_n_delta(d) * moe_state_layer_bytes(d) : 0;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

struct moe_layer {
    float *attn_norm, *ffn_norm;              /* [d_model] */
    float *q_norm, *k_norm;                   /* [d_head], or [heads * d_head] over all as one, or NULL */
    float *q_a_norm, *kv_a_norm;              /* [d_query_latent], [d_latent] */
    float *q_bias, *k_bias, *v_bias, *o_bias; /* or NULL */
    float *sinks;                             /* [n_head] or NULL */
    int window;                               /* positions seen, the own included; 0: all */
    struct kn_mat q, k, v, o;                 /* o reads n_head * d_value, or moe_d_state_value() */
    int nth;                                  /* number among the attention layers, or among the delta nets */
    struct kn_mat mix, z;                     /* of a delta net: inputs of the convolution; gate of the output */
    struct kn_mat mixed;                      /* or both in one, by key head */
    struct kn_mat beta, alpha;                /* [n_value_head, d_model] */
    struct kn_mat ba;                         /* or both in one, by key head */
    float *taps;                              /* [n_tap, d_mix]; in the file [d_mix, n_tap] */
    float *decay, *decay_bias;                /* [n_value_head] */
    float *out_norm;                          /* [d_state_value] */
    struct kn_mat q_a;                        /* [d_query_latent, d_model], input of q; or n_out 0 */
    struct kn_mat kv_a;                       /* [d_latent + n_rot, d_model], in place of k and v */
    struct kn_mat k_b;                        /* [d_latent, d_head - n_rot] of each head, one below the other */
    struct kn_mat v_b;                        /* [d_value, d_latent] of each head, likewise */
    struct kn_mat gate, up, down;             /* of a dense layer; else of the shared expert, or n_out 0 */
    struct kn_mat shared_gate;                /* [1, d_model] or n_out 0 */
    struct kn_mat router;                     /* [n_expert, d_model]; n_out 0 in a dense layer */
    float *router_bias, *select_bias;         /* [n_expert] or NULL */
    float *gate_bias, *up_bias, *down_bias;   /* [n_expert, d_expert], down [n_expert, d_model]; or NULL */
    int expert0;                              /* the store's number of the layer's expert 0 */
    unsigned expert_acts, down_acts;          /* bits of kn_act: inputs of gates and ups; of downs */
};

struct moe_model {
    struct moe_desc desc;
    struct moe_shape shape;
    const struct kn_ops *ops;
    const struct moe_file *file;
    struct moe_layer *layer;        /* [n_layer] */
    const struct moe_model *target; /* of a head; else NULL */
    struct kn_mat embed, head;      /* head is embed if tied; of a draft head maybe the target's */
    struct kn_mat fc;               /* of a head: [d_model, features and embedding] */
    const struct moe_tensor *guess; /* of a head with its own vocabulary: the tensor d2t, or NULL */
    int32_t *guess_token;           /*   [n_guess] its tokens; NULL: all tokens */
    bool tied;
    bool ahead;                               /* the store has the experts of the MTP layer, too */
    float *feature_norm, *embed_norm;         /* [d_model] norms of the inputs of fc or attention; or NULL */
    float *out_norm, *rope_extra, *rope_freq; /* rope_extra: NULL without divisors of angles */
    bool gate_up_interleaved;                 /* an expert's gates and ups alternate as rows of one matrix */
    size_t scratch_bytes;                     /* scratch of one thread to interleave an expert */
    struct moe_dense *dense;
    int n_dense;               /* until the load; then NULL */
    struct off_expert *expert; /* [n_expert_total + n_expert_ahead] likewise */
    struct kn_arena arena;     /* dense weights and vectors; empty until the load */
    struct off_store *store;   /* NULL without experts; of a head the target's, not owned */
    struct off_mirror *mirror; /* or NULL */
};

#endif
