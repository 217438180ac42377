/* moe/internal.h - what the files of moe share among themselves; nobody else includes it. */
#ifndef MOE_INTERNAL_H
#define MOE_INTERNAL_H

#include "moe/moe.h"

/* ---- model files: file.c opens and looks up, gguf.c reads one header ------------------------------ */

struct moe_index {                          /* open addressing: 0 is empty, else position + 1 */
    uint32_t *slot;
    size_t n_slot;
};

struct moe_values {
    struct moe_value *item;
    size_t n, room;
    struct moe_index by_key;
};

struct moe_tensors {
    struct moe_tensor *item;
    size_t n, room;
    struct moe_index by_name;
};

struct moe_file {
    struct off_files files;
    int *fd;                                /* [n_file]; -1: not open */
    char **path;
    struct moe_block *text;                 /* every string and array of the headers */
    struct moe_values values;               /* of the first split */
    struct moe_tensors tensors;             /* of all */
    uint64_t hash_seed;
};

struct moe_block {
    struct moe_block *next;
    size_t bytes, used;
    _Alignas(16) uint8_t data[];
};

/* Reads the header of f->path[file], open as f->fd[file]: metadata into values, tensors added to f's. */
int moe_gguf_read(struct moe_file *f, int file, struct moe_values *values);
const struct moe_value *moe_gguf_find(const struct moe_file *f, const struct moe_values *values,
                                      const char *key);
const struct moe_tensor *moe_gguf_find_tensor(const struct moe_file *f, const char *name);

/* ---- what is written to files: synth.c and quantize.c agree on it ---------------------------------- */

/* Rows that are no whole blocks of a format fall back as published files do: Q8_0, then F16; said. */
enum kn_format moe_format_fit(const char *name, enum kn_format want, uint64_t n_in);

/* The numbers by which published files name the format of most of their weights (general.file_type). */
uint32_t moe_file_type(enum kn_format f);

#define MOE_QUANTIZATION_VERSION 2          /* general.quantization_version: of the blocks' layout */

/* ---- what a model is: family.c reads it from metadata, model.c binds weights to it ---------------- */

enum moe_scaling { MOE_SCALING_NONE, MOE_SCALING_LINEAR, MOE_SCALING_YARN };
enum moe_qk_norm { MOE_QK_NORM_NONE, MOE_QK_NORM_HEAD, MOE_QK_NORM_ALL };  /* of each head, of all as one */

/* Numbered as in files; chosen: softmax of the chosen ones' logits alone. */
enum moe_gating { MOE_GATING_SOFTMAX = 1, MOE_GATING_SIGMOID, MOE_GATING_CHOSEN };

/* Gated: times the sigmoid of a product with the row. */
enum moe_shared { MOE_SHARED_NONE, MOE_SHARED_PLAIN, MOE_SHARED_GATED };

/* A family as data: everything the one forward pass asks about. */
struct moe_desc {
    char arch[32];
    int n_layer, d_model, n_head, n_kv, d_head, n_rot, n_vocab, n_ctx_train;
    int n_lead;                                 /* layers before the first that has experts */
    int n_ahead;                                /* layers after the last, for tokens ahead: not loaded */
    int d_ff;                                   /* dense layers */
    int n_expert, n_used, d_expert;             /* 0, 0, 0: a dense model */
    enum moe_shared shared;
    int d_shared;                               /* what every row goes through beside its experts */
    float eps;
    enum kn_rope rope;
    float rope_base;
    enum moe_scaling scaling;
    float scaling_factor, scaling_attn;         /* scaling_attn multiplies cos and sin */
    int scaling_ctx;                            /* yarn: the context it was trained on first */
    bool yarn_exact;                            /* its ramp may begin and end between two pairs */
    float beta_fast, beta_slow;
    bool head;                                  /* rows begin with a feature and a token: fc of both */
    bool qkv_bias, o_bias, sinks;
    int window, window_period;                  /* positions seen; each window_period-th layer sees all; 0: all do */
    bool post_norm;                             /* what files call the FFN's norm */
    enum moe_qk_norm qk_norm;
    float clamp_qkv;                            /* Q, K and V stay within plus and minus this; 0: anything */
    enum moe_gating gating;
    bool router_bias, expert_bias;
    bool select_bias;                           /* of what experts are chosen by, not of their weights */
    int n_group, n_group_used;                  /* of experts; only the best n_group_used are chosen from */
    float swiglu_alpha, swiglu_limit;           /* of the clamped activation; 0: the usual one */
    bool norm_topk;                             /* chosen probabilities are made to sum to 1 */
    float expert_scale;                         /* and multiplied by this */
};

int moe_desc_read(struct moe_desc *d, const struct moe_file *f);

/* What all models of a family have, without a number of theirs; arch is one of those known. */
void moe_desc_family(struct moe_desc *d, const char *arch);

/* The angle that pair i advances per position; extra[i], when there is one, divides it. */
int moe_rope_freq(const struct moe_desc *d, const float *extra, float *freq /* [n_rot / 2] */);

struct moe_layer {
    float *attn_norm, *ffn_norm;                /* [d_model] */
    float *q_norm, *k_norm;                     /* [d_head], or of all heads as one, or NULL */
    float *q_bias, *k_bias, *v_bias, *o_bias;   /* or NULL */
    float *sinks;                               /* [n_head] or NULL */
    int window;                                 /* positions seen, its own among them; 0: all */
    struct kn_mat q, k, v, o;                   /* o reads n_head * d_head */
    struct kn_mat gate, up, down;               /* dense layers; in the others what all rows share, or nothing */
    struct kn_mat shared_gate;                  /* [1, d_model] or nothing */
    struct kn_mat router;                       /* [n_expert, d_model]; data NULL in a dense layer */
    float *router_bias, *select_bias;           /* [n_expert] or NULL */
    float *gate_bias, *up_bias, *down_bias;     /* [n_expert, d_expert], down [n_expert, d_model]; or NULL */
    int expert0;                                /* the store's number of this layer's expert 0 */
    unsigned expert_acts, down_acts;            /* activation kinds that gates and ups, and downs, read */
};

/* A tensor that the load is to read, and what is to point at it: a matrix or a vector. */
struct moe_dense { const struct moe_tensor *tensor; struct kn_mat *matrix; float **vector; };

struct moe_model {
    struct moe_desc desc;
    struct moe_shape shape;
    const struct kn_ops *ops;
    const struct moe_file *file;
    struct moe_layer *layer;                    /* [n_layer] */
    const struct moe_model *target;             /* of a head; NULL: it is none */
    struct kn_mat embed, head;                  /* head is embed when they are tied; both are a target's */
    struct kn_mat fc;                           /* [d_model, 2 d_model] of a head: feature, then embedding */
    bool tied;
    float *out_norm, *rope_extra, *rope_freq;   /* rope_extra: NULL in most */
    size_t scratch_bytes;                       /* what interleaving one of its experts takes a thread */
    struct moe_dense *dense; int n_dense;       /* until it is loaded */
    struct off_expert *expert;                  /* [n_expert_total] likewise */
    struct kn_arena arena;                      /* dense weights and vectors; empty until then */
    struct off_store *store;                    /* NULL without experts */
};

/* ---- running one: context.c owns the memory, the others fill it ----------------------------------- */

struct moe_plan {                               /* rows grouped by expert, of one layer */
    int n_expert;                               /* distinct */
    int32_t *expert;                            /* [n] the store's numbers, ascending */
    int32_t *first;                             /* [n + 1] into row and pair */
    int32_t *row, *pair;                        /* batch row, and row * n_used + choice */
    int32_t *fill;                              /* [n_expert of the layer] scratch of the sort */
};

/* The same vectors as float and in the kinds of codes that were asked for. */
struct moe_acts {
    float *x;
    size_t stride;                              /* floats per row */
    void *code[KN_ACT_COUNT];
    size_t code_stride[KN_ACT_COUNT];
};

/* A matrix times rows, and the node that the matrix lies on; -1: its panels lie over all, as a team binds
 * them. */
struct moe_product { struct kn_matmul mul; int node; };

/* Panels of one product on one node, a few to a work item. */
struct moe_piece { int product, panel0, panel1, per_item, item0; };

/* One row's way to its experts: logits come in as p, which become probabilities. */
struct moe_routing {
    float *p, *rank;                            /* [n_expert] */
    int32_t *id;                                /* [n_used] */
    float *weight;                              /* [n_used] */
};
#define MOE_MAX_GROUP 64

/* The experts that the next layer is expected to use. */
struct moe_guess {
    struct off_ticket ticket;                   /* n 0: none is open */
    int32_t *expert;                            /* [n_expert] the store's numbers, surest first */
    uint8_t *mark;                              /* [n_expert] the ticket's */
    float *sum;                                 /* [n_expert] */
    struct moe_acts norm;                       /* [moe_guess_rows, d_model] */
    float *logit, *rank;                        /* [moe_guess_rows, n_expert] */
    int32_t *id;                                /* [moe_guess_rows, n_used] */
    float *weight;                              /* [moe_guess_rows, n_used] */
};

struct moe_context {
    const struct moe_model *model;
    struct moe_context_options opt;
    struct kn_team *team;
    struct kn_arena kv, arena;
    size_t kv_head_bytes;                       /* n_slot * d_head values */
    uint8_t *feature;                           /* [n_slot, d_model] behind keys and values; or NULL */
    size_t feature_bytes;                       /* of one */

    const struct moe_batch *batch;              /* of the pass under way */
    int n_row, n_want;
    int *status;                                /* [max_row] */
    struct moe_acts join;                       /* [max_row, 2 d_model] feature and embedding, of a head */
    float *x;                                   /* [max_row, d_model] the residual stream */
    struct moe_acts norm;                       /* [max_row, d_model] normalised */
    float *q, *k, *v;                           /* [max_row, n_head * d_head], [max_row, n_kv * d_head] */
    struct moe_acts att;                        /* [max_row, n_head * d_head] what attention gave */
    float (*turn)[2];                           /* [max_row, n_rot / 2] */
    float *gate, *up;                           /* [max_row * n_used, d_expert] or [max_row, d_ff or d_shared] */
    struct moe_acts act, wide;                  /* their activations: of experts, of what all rows go through */
    float *y;                                   /* [max_row * n_used, d_model] */
    float *route_logit, *route_rank;            /* [max_row, n_expert] probabilities, and what is chosen by */
    int32_t *route_id;                          /* [max_row, n_used] */
    float *route_weight;                        /* [max_row, n_used] */
    float *shared_weight, *shared;              /* [max_row], [max_row, d_model] */
    struct moe_plan plan;
    uint8_t *mark;                              /* [n_expert] the ticket's */
    int32_t *arrived;                           /* [n_expert], and two beside it: what off_wait fills */
    struct off_view *view;
    int *arrived_status;
    struct off_hands hands;                     /* they interleave what has landed */
    struct moe_guess guess;
    int32_t *want_row;                          /* [max_want] */
    float *logits;                              /* [max_want, n_vocab] */
    struct moe_product *product;                /* [2 * n_expert + 4] of one parallel region */
    struct moe_piece *piece;                    /* [moe_piece_room()] what they are cut into */
    double distinct;                            /* experts touched, summed over layers */
    float attend_scale;                         /* 1 / sqrt(d_head) */
};

static inline int32_t moe_own_slot(const struct moe_row *r)
{
    return r->position < r->n_base ? r->base[r->position] : r->tail[r->position - r->n_base];
}

void moe_attention(struct moe_context *c, int layer);
void moe_block(struct moe_context *c, int layer);
void moe_dense_ffn(struct moe_context *c, int layer);
void moe_route(struct moe_context *c, int layer);
void moe_choose(const float *p, int n_expert, int n_used, int32_t *id);     /* the largest, in order */
void moe_route_row(const struct moe_context *c, const struct moe_layer *l, struct moe_routing r);
int  moe_guess_rows(const struct moe_desc *d, int max_row);     /* guessed one by one; above, all are */
void moe_guess_next(struct moe_context *c, int layer);  /* asks for what layer + 1 may need */
void moe_guess_end(struct moe_context *c);
void moe_plan_rows(struct moe_context *c, int layer);

/* rows.c: the passes over all rows, and the products, each one parallel region. */
void moe_rows_norm(struct moe_context *c, const float *weight, unsigned kinds, const int32_t *row, int n);
void moe_rows_code(struct moe_context *c, struct moe_acts *a, unsigned kinds, int n_in,
                   const int32_t *row, int n);
void moe_code_row(struct moe_context *c, struct moe_acts *a, unsigned kinds, int n_in, int row);
void moe_rows_add(struct moe_context *c, float *y /* [n_row, d_model] */, const float *bias);  /* x += y + bias */
void moe_products(struct moe_context *c, int n);       /* c->product[0..n) */
size_t moe_piece_room(const struct kn_team *t, size_t n_product);
struct moe_product moe_product(const struct moe_acts *in, const struct kn_mat *w, float *y, int n_row);

static inline float moe_sigmoid(float x) { return 1.0f / (1.0f + kn_expf(-x)); }

static inline unsigned moe_act_bit(const struct kn_mat *w)
{
    return w->n_out ? 1u << kn_format_info(w->format)->act : 0;
}

/* ---- synthetic models: synth.c writes them; shapes.c, synth_fill.c and synth_vocab.c help ---------- */

struct moe_synth_shape {
    const char *name, *arch, *pre;          /* pre: the pre-tokeniser's name */
    int n_layer, d_model, n_head, n_kv, d_head, d_ff, n_vocab, n_ctx;
    int n_expert, n_used, d_expert;         /* n_expert 0: dense, d_ff wide */
    int d_shared;
    int window, yarn_factor, yarn_ctx;      /* 0: none */
    float rope_base, eps;
    bool qkv_bias;
    enum moe_qk_norm qk_norm;
    int n_lead, n_rot;                      /* n_rot 0: all of a head */
    float expert_scale;                     /* 0: 1 */
};
const struct moe_synth_shape *moe_synth_shape_find(const char *name);       /* or NULL */

/* Random values of one tensor, in the form that file rows have: mean + deviation * noise.  Block i of
 * the tensor depends on seed and i only.  Quantised formats have mean 0. */
struct moe_synth_fill {
    enum kn_format format;
    float mean, deviation;
    uint64_t seed;
    uint16_t d[16], dmin[16];               /* the block scales to pick from */
};
void moe_synth_fill_init(struct moe_synth_fill *f);
void moe_synth_fill(const struct moe_synth_fill *f, uint64_t block0, size_t n_block, void *out);

/* Adds the tokenizer.* metadata of n_vocab tokens (at least MOE_SYNTH_VOCAB_LEAST). */
#define MOE_SYNTH_VOCAB_LEAST (256 + 3)
int moe_synth_vocab(struct moe_writer *w, const char *pre, int n_vocab, uint64_t seed);

#endif
