/* moe/internal.h - what the files of moe share among themselves; nobody else includes it.
 *
 * From a file to a model, in order:
 *     gguf.c, tables.c, names.c       the header of a GGUF file, what it says, what it calls things
 *     folder.c, safetensors.c, hf_*.c a folder of the transformers package told as if it were one (folder.h)
 *     file.c                          either, opened
 *     family.c                        metadata to a description of the model
 *     bind.c                          the description's tensors, found
 *     model.c                         memory, loading, the store of experts
 *
 * and from tokens to logits:
 *     context.c       all the memory of it       forward.c    embed, layers, logits
 *     attention.c, latent.c, delta.c, state.c    the first half of a layer, of three kinds
 *     block.c, router.c                          the second half: experts, and who goes to which
 *     predict.c, recall.c                        which experts come next, by the rows and by the tokens
 *     rows.c                                     what all of them do: passes over rows, and products
 *
 * writer.c writes files: for quantize.c, and for synth.c with shapes.c, synth_fill.c and synth_vocab.c. */
#ifndef MOE_INTERNAL_H
#define MOE_INTERNAL_H

#include "moe/moe.h"

/* ---- model files: file.c opens and looks up, gguf.c reads one header, tables.c keeps what it says -- */

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
    char *name;                             /* as it was asked for: a file, or a folder */
    struct off_files files;
    int *fd;                                /* [n_file]; -1: not open */
    char **path;
    struct moe_block *text;                 /* every string and array of the headers */
    struct moe_values values;               /* of the first split */
    struct moe_tensors tensors;             /* of all */
    uint64_t header_bytes;                  /* that were read to know all this */
    uint64_t hash_seed;
};

struct moe_block {
    struct moe_block *next;
    size_t bytes, used;
    _Alignas(16) uint8_t data[];
};

/* What git leaves of a large file until git-lfs has fetched it begins so. */
#define MOE_LFS "version https://git-lfs."
#define MOE_LFS_SAID "this is git-lfs's note of which file belongs here; git lfs pull fetches it"

/* Reads the header of f->path[file], open as f->fd[file]: metadata into values, tensors added to f's.
 * 1, unsaid: it is a folder. */
int moe_gguf_read(struct moe_file *f, int file, struct moe_values *values);

/* Memory that lasts as long as the file; what fails is said. */
void *moe_keep(struct moe_file *f, size_t bytes);
int   moe_keep_string(struct moe_file *f, const char *s, size_t n, struct moe_string *out);
int   moe_grow(const struct moe_file *f, void **table, size_t *room, size_t n, size_t item_bytes);

/* An index of the names in a table: add says that entry n - 1 is new, 1 that its name was there already. */
typedef struct moe_string moe_name_of(const void *table, size_t i);
int    moe_index_add(const struct moe_file *f, struct moe_index *x, moe_name_of *name, const void *table, size_t n);
size_t moe_index_find(const struct moe_file *f, const struct moe_index *x, moe_name_of *name, const void *table,
                      struct moe_string want);      /* or SIZE_MAX */

/* Byte-level BPE writes every byte as a character: one that can be seen as itself, the others as those from U+0100
 * on, in their order.  Its code. */
int moe_byte_letter(int byte, char letter[3]);

/* 1: the key or the name was there already. */
int moe_add_value(struct moe_file *f, struct moe_values *values, const struct moe_value *v);
int moe_add_tensor(struct moe_file *f, const struct moe_tensor *t);
const struct moe_value *moe_find_value(const struct moe_file *f, const struct moe_values *values, const char *key);
const struct moe_tensor *moe_find_tensor(const struct moe_file *f, const char *name);

/* 1: these two do. */
struct moe_range { uint64_t offset, bytes; };
int moe_ranges_overlap(const struct moe_file *f, const struct moe_range *r, size_t n, size_t pair[2]);

/* file_bytes.c: the table of open files.  reserve gives it n entries and keeps those it has; open_nth opens path as entry
 * `file`; add appends one entry, opens path there and returns its number in *file. */
int moe_file_reserve(struct moe_file *f, int n);
int moe_file_open_nth(struct moe_file *f, int file, const char *path);
int moe_file_add(struct moe_file *f, const char *path, int *file);

int moe_folder_open(struct moe_file *f);                    /* folder.c: f->name is a folder */

/* ---- what is written to files: synth.c and quantize.c agree on it ---------------------------------- */

/* Rows that are no whole blocks of a format fall back as published files do: Q4_K to Q5_0, Q5_K to Q5_1,
 * Q6_K to Q8_0, the smaller ones to IQ4_NL, blocks of 32 to F16; said. */
enum kn_format moe_format_fit(const char *name, enum kn_format want, uint64_t n_in);

/* The numbers by which published files name the format of most of their weights (general.file_type). */
uint32_t moe_file_type(enum kn_format f);

#define MOE_QUANTIZATION_VERSION 2          /* general.quantization_version: of the blocks' layout */

/* ---- what a model is: family.c reads it from metadata, bind.c finds its weights ---------------- */

enum moe_scaling { MOE_SCALING_NONE, MOE_SCALING_LINEAR, MOE_SCALING_YARN };
enum moe_qk_norm { MOE_QK_NORM_NONE, MOE_QK_NORM_HEAD, MOE_QK_NORM_ALL };  /* of each head, of all as one */

/* Numbered as in files; chosen: softmax of the chosen ones' logits alone. */
enum moe_gating { MOE_GATING_SOFTMAX = 1, MOE_GATING_SIGMOID, MOE_GATING_CHOSEN };

/* Gated: times the sigmoid of a product with the row. */
enum moe_shared { MOE_SHARED_NONE, MOE_SHARED_PLAIN, MOE_SHARED_GATED };

/* A head's rows begin with a feature and a token (head.c): EAGLE's with a matrix of the feature and the embedding, a layer
 * ahead's with one of the embedding and the feature, each normalised first; EAGLE-3's with a matrix of inner features,
 * and its attention reads the embedding beside them. */
enum moe_head { MOE_HEAD_NONE, MOE_HEAD_EAGLE, MOE_HEAD_EAGLE3, MOE_HEAD_AHEAD };

/* A family as data: everything the one forward pass asks about. */
struct moe_desc {
    char arch[32];
    int n_layer, d_model, n_head, n_kv, n_rot, n_vocab, n_ctx_train;
    int d_head, d_value;                        /* a head's query and key, and its value */
    int d_latent, d_query_latent;               /* what keys and values, and queries, of all heads are made of; or 0 */
    bool kv_whole;                              /* the file has k_b and v_b in one, k_b the other way */
    int d_key, d_kept;                          /* a slot's key and value, of each of n_kv; see latent.c */
    float attend_scale;                         /* of scores */
    int n_lead;                                 /* layers before the first that has experts */
    int block0;                                 /* what the file calls the first layer */
    int n_ahead;                                /* layers after the last, that guess ahead */
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
    enum moe_head head;
    struct moe_features reads;                  /* of a head: what it goes on from */
    bool norm_first;                            /* of EAGLE-3: the residual stream begins with what is normalised */
    int n_guess;                                /* of a head: tokens that it guesses among */
    bool qkv_bias, o_bias, sinks;
    int window, window_period;                  /* positions seen; each window_period-th layer sees all; 0: all do */
    bool post_norm;                             /* what files call the FFN's norm */
    enum moe_qk_norm qk_norm;
    bool out_gate;                              /* each query head comes with a gate of what its attention gives */
    int delta_period;                           /* over 0: but for each of so many, layers are delta nets (delta.c) */
    int n_key_head, n_value_head, d_state_key, d_state_value, n_tap;    /* of those; a state is [key][value] */
    bool delta_tiled;                           /* value head i has key head i mod n_key_head, not i / (their ratio) */
    bool delta_mixed, delta_ba;                 /* by key head: q, k, v and gate in one matrix; beta and alpha in one */
    float clamp_qkv;                            /* Q, K and V stay within plus and minus this; 0: anything */
    enum moe_gating gating;
    bool router_bias, expert_bias;
    bool select_bias;                           /* of what experts are chosen by, not of their weights */
    int n_group, n_group_used;                  /* of experts; only the best n_group_used are chosen from */
    int group_best;                             /* so many of a group's largest stand for it */
    float swiglu_alpha, swiglu_limit;           /* of the clamped activation; 0: the usual one */
    bool norm_topk;                             /* chosen probabilities are made to sum to 1 */
    float expert_scale;                         /* and multiplied by this */
};

int moe_desc_read(struct moe_desc *d, const struct moe_file *f);

/* The first of the target's layers that guess ahead: a layer like its last, alone. */
void moe_desc_ahead(struct moe_desc *d, const struct moe_desc *target);

/* What all models of a family have, without a number of theirs; arch is one of those known. */
void moe_desc_family(struct moe_desc *d, const char *arch);

/* A delta net has no keys and values by position: what came before is in its state. */
static inline bool moe_is_delta(const struct moe_desc *d, int layer)
{
    return d->delta_period && layer % d->delta_period != d->delta_period - 1;
}

static inline int moe_n_delta_before(const struct moe_desc *d, int layer)
{
    return d->delta_period ? layer - layer / d->delta_period : 0;
}
static inline int moe_n_delta(const struct moe_desc *d) { return moe_n_delta_before(d, d->n_layer); }

/* What goes through a delta net's convolution: queries and keys of all key heads, values of all value heads. */
static inline int moe_d_mix(const struct moe_desc *d)
{
    return 2 * d->n_key_head * d->d_state_key + d->n_value_head * d->d_state_value;
}

/* What its value heads give. */
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

/* The angle that pair i advances per position; extra[i], when there is one, divides it. */
int moe_rope_freq(const struct moe_desc *d, const float *extra, float *freq /* [n_rot / 2] */);

/* What a slot keeps is a latent, from which all heads have their keys and values. */
static inline bool moe_is_latent(const struct moe_desc *d) { return d->d_latent > 0; }

struct moe_layer {
    float *attn_norm, *ffn_norm;                /* [d_model] */
    float *q_norm, *k_norm;                     /* [d_head], or of all heads as one, or NULL */
    float *q_a_norm, *kv_a_norm;                /* [d_query_latent], [d_latent] */
    float *q_bias, *k_bias, *v_bias, *o_bias;   /* or NULL */
    float *sinks;                               /* [n_head] or NULL */
    int window;                                 /* positions seen, its own among them; 0: all */
    struct kn_mat q, k, v, o;                   /* o reads n_head * d_value, or what a delta net gives */
    int nth;                                    /* among the layers that attend, or among the delta nets */
    struct kn_mat mix, z;                       /* of a delta net: what is convolved, the gate of what comes out */
    struct kn_mat mixed;                        /* or both at once, by key head */
    struct kn_mat beta, alpha;                  /* [n_value_head, d_model] */
    struct kn_mat ba;                           /* or both at once, by key head */
    float *taps;                                /* [n_tap, d_mix]; as the file has it [d_mix, n_tap] */
    float *decay, *decay_bias;                  /* [n_value_head] */
    float *out_norm;                            /* [d_state_value] */
    struct kn_mat q_a;                          /* [d_query_latent, d_model], which q reads then; or nothing */
    struct kn_mat kv_a;                         /* [d_latent + n_rot, d_model], where heads have no own k and v */
    struct kn_mat k_b;                          /* [d_latent, d_head - n_rot], a head's below the other's */
    struct kn_mat v_b;                          /* [d_value, d_latent], likewise */
    struct kn_mat gate, up, down;               /* dense layers; in the others what all rows share, or nothing */
    struct kn_mat shared_gate;                  /* [1, d_model] or nothing */
    struct kn_mat router;                       /* [n_expert, d_model]; data NULL in a dense layer */
    float *router_bias, *select_bias;           /* [n_expert] or NULL */
    float *gate_bias, *up_bias, *down_bias;     /* [n_expert, d_expert], down [n_expert, d_model]; or NULL */
    int expert0;                                /* the store's number of this layer's expert 0 */
    unsigned expert_acts, down_acts;            /* activation kinds that gates and ups, and downs, read */
};

/* A tensor that the load is to read, and what is to point at it: a matrix, or a vector, or the layer whose
 * k_b and v_b it holds, which will lie at k and v. */
struct moe_dense {
    const struct moe_tensor *tensor;
    struct kn_mat *matrix;
    float **vector;
    struct moe_layer *halves;
    uint8_t *k, *v;
};

struct moe_model {
    struct moe_desc desc;
    struct moe_shape shape;
    const struct kn_ops *ops;
    const struct moe_file *file;
    struct moe_layer *layer;                    /* [n_layer] */
    const struct moe_model *target;             /* of a head; NULL: it is none */
    struct kn_mat embed, head;                  /* head is embed when they are tied; a head may have the target's */
    struct kn_mat fc;                           /* [d_model, features and embedding] of a head */
    const struct moe_tensor *guess;             /* of a head that guesses among some tokens: which, */
    int32_t *guess_token;                       /*   [n_guess] as numbers; NULL: all of them */
    bool tied;
    bool ahead;                                 /* its store has the experts of the layer that guesses ahead, too */
    float *feature_norm, *embed_norm;           /* [d_model] of what fc is given, or attention; NULL: as it is */
    float *out_norm, *rope_extra, *rope_freq;   /* rope_extra: NULL in most */
    bool in_turns;                              /* an expert's gates and ups are one matrix's rows, in turns */
    size_t scratch_bytes;                       /* what interleaving one of its experts takes a thread */
    struct moe_dense *dense; int n_dense;       /* until it is loaded */
    struct off_expert *expert;                  /* [n_expert_total + n_expert_ahead] likewise */
    struct kn_arena arena;                      /* dense weights and vectors; empty until then */
    struct off_store *store;                    /* NULL without experts; of a head the target's */
    struct off_mirror *mirror;                  /* or NULL */
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
 * them.  A stack of n_stack matrices, each of whole panels, reads and writes a part of a row with each. */
struct moe_product {
    struct kn_matmul mul;
    int node, n_stack;
    size_t x_part, y_part;                      /* bytes; floats, n_out / n_stack or more */
};

/* Panels of one product on one node, a few to a work item. */
struct moe_piece { int product, panel0, panel1, per_item, item0; };

/* One row's way to its experts: logits come in as p, which become probabilities. */
struct moe_routing {
    float *p, *rank;                            /* [n_expert] */
    int32_t *id;                                /* [n_used] */
    float *weight;                              /* [n_used] */
};
#define MOE_MAX_GROUP 64
#define MOE_MAX_TAP   8                         /* of a delta net's convolution */

/* The experts that the next layer is expected to use. */
struct moe_guess {
    struct off_ticket ticket;                   /* n 0: none is open */
    struct moe_sight *sight;                    /* [n_layer][MOE_SIGHTS] or NULL: nobody watches */
    bool *seen;                                 /* [MOE_FAR + 1][MOE_SIGHTS][n_expert] guessed, by layer and how */
    int32_t *expert;                            /* [n_expert] the store's numbers, surest first */
    uint8_t *mark;                              /* [n_expert] the ticket's */
    float *sum;                                 /* [n_expert] */
    struct moe_acts norm;                       /* [moe_guess_rows, d_model] */
    float *logit, *rank;                        /* [moe_guess_rows, n_expert] */
    int32_t *id;                                /* [moe_guess_rows, n_used] */
    float *weight;                              /* [moe_guess_rows, n_used] */
};

/* ---- states: what delta nets know of a text (state.c keeps them, delta.c computes) -------------------- */

/* One row on its way through the delta nets: of this pass, or of a former one and taken in only now. */
struct moe_step {
    int32_t row;                                /* of the batch; -1: kept row `kept` */
    int32_t kept;
    int32_t before;                             /* the step before it in its text; -1: the state itself */
};

/* The steps of one state in a pass: first those that it takes in, then the drafts. */
struct moe_flow { int32_t state; int first, n_text, n_draft; };

struct moe_states {
    int n;                                      /* 0: the model has none */
    int n_kept;                                 /* draft rows whose inputs outlive their pass */
    uint8_t *base;                              /* [n][delta net]: n_tap - 1 inputs of the convolution, then heads */
    size_t bytes, layer_bytes;                  /* of one state; of one layer of it */
    int32_t *n_tok;                             /* [n] tokens taken in, those that are pending among them */
    int32_t *n_pending;                         /* [n] */
    int32_t *pending;                           /* [n, n_kept] kept rows that come next */
    float *kept;                                /* [delta net, n_kept, d_in] */
    int d_in;                                   /* d_mix + 2 n_value_head */

    struct moe_step *step; int n_step;          /* [max_row + n_kept] of the pass under way */
    struct moe_flow *flow; int n_flow;          /* [max_row] */
    int32_t *flow_of;                           /* [n] -1: none in this pass */
    uint8_t *used;                              /* [n] */
    int32_t *step_of;                           /* [max_row] */
    int32_t *kept_of;                           /* [max_row] -1: it is no draft; of the last pass until the next */
    int n_draft;
    float *in;                                  /* [max_row, d_in] to be convolved, beta, alpha */
    float *z;                                   /* [max_row, n_value_head * d_state_value] */
    float *mixed;                               /* [max_row, both] of files that have them as one; or NULL */
    float *out;                                 /* [max_row + n_kept, d_in] convolved; beta and decay */
    float *unit_q, *unit_k;                     /* [d_state_key] what makes a norm of length 1 of a norm of size 1 */
    float *work;                                /* [threads, head] */
};

/* What tokens used when they last came by.  The k-th of an entry is the k-th best of then. */
struct moe_came { float asked, right; };        /* how often it was looked for, and was used again */

#define MOE_CHANCES 4                           /* how likely: from EVEN to 1 */

struct moe_recall {
    int n_entry;                                /* 0: nothing is remembered */
    bool learns;                                /* the pass under way */
    int32_t *token;                             /* [n_entry] whose it is; -1: nobody's */
    uint16_t *id;                               /* [n_entry][n_layer][n_used] */
    struct moe_came *came;                      /* [n_layer][n_used] */
    struct moe_came *proved;                    /* [n_layer][MOE_CHANCES] what was so likely and not there */
    uint8_t *asked;                             /* [n_layer][n_expert] 1 + how likely it was; 0: not, or there */
    int32_t *absent;                            /* [n_expert] */
    bool *known;                                /* [max_row] the row's token was remembered */
    struct off_ticket *ticket;                  /* [n_layer] n 0: none is open */
    int32_t *expert;                            /* [n_layer][n_expert] what they ask for, */
    uint8_t *mark;                              /*   and the store's notes */
    float *unused;                              /* [n_expert] chance that no row uses it */
};

/* What latent attention needs beside; all but the first for max_row rows at a time. */
struct moe_latent {
    struct moe_acts low;                        /* [the context's max_row, d_query_latent] what queries are made of */
    int max_row, first;                         /* first: of the rows at hand */
    struct moe_acts query;                      /* [max_row * n_head, d_head - n_rot] what is not rotated of queries */
    float *absorbed;                            /* [max_row, n_head, d_key] queries of latent keys */
    struct moe_acts mixed;                      /* [max_row * n_head, d_latent] what attention gave */
};

struct moe_context {
    const struct moe_model *model;
    struct moe_context_options opt;
    struct kn_team *team;
    struct kn_arena kv, arena;
    size_t key_bytes, value_bytes;              /* of one KV head's array; no values: they are in the keys */
    uint8_t *feature;                           /* [n_slot][of them, d_model] behind keys and values; or NULL */
    size_t feature_bytes;                       /* of one */

    struct moe_states states;

    const struct moe_batch *batch;              /* of the pass under way */
    int n_row, n_want;
    int *status;                                /* [max_row] */
    struct moe_acts join;                       /* [max_row, 2 d_model] feature and embedding, of a head */
    struct moe_acts inner;                      /* [max_row, n_inner * d_model] of EAGLE-3 */
    float *thought, *guessed;                   /* [max_want, d_model], [max_want, n_guess] of EAGLE-3 */
    float *x;                                   /* [max_row, d_model] the residual stream */
    struct moe_acts norm;                       /* [max_row, d_model] normalised */
    float *q;                                   /* [max_row, n_head * d_head] */
    float *k, *v;                               /* [max_row, n_kv * d_key], [max_row, n_kv * d_kept] */
    float *q_gate;                              /* [max_row, n_head, 2, d_head] queries and gates; or NULL */
    struct moe_acts att;                        /* [max_row, n_head * d_value] what attention gave */
    struct moe_latent latent;
    float (*turn)[2];                           /* [max_row, n_rot / 2] */
    float *gate, *up;                           /* [max_row * n_used, d_expert] or [max_row, d_ff or d_shared];
                                                 * in turns: gate has both, and up is behind it */
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
    struct moe_recall recall;
    int32_t *want_row;                          /* [max_want] */
    float *logits;                              /* [max_want, n_vocab] */
    struct moe_product *product;                /* [2 * n_expert + 4] of one parallel region */
    struct moe_piece *piece;                    /* [moe_piece_room()] what they are cut into */
    double distinct;                            /* experts touched, summed over layers */
};

static inline int32_t moe_own_slot(const struct moe_row *r)
{
    return r->position < r->n_base ? r->base[r->position] : r->tail[r->position - r->n_base];
}

static inline size_t moe_kv_value_bytes(enum kn_kv kv) { return kv == KN_KV_F16 ? 2 : 4; }

/* The arrays of one KV head, by slot: [n_slot][d_key], [n_slot][d_kept]. */
uint8_t *moe_kv_keys(const struct moe_context *c, int layer, int head);
uint8_t *moe_kv_values(const struct moe_context *c, int layer, int head);

void moe_attention(struct moe_context *c, int layer);
void moe_delta(struct moe_context *c, int layer);

/* latent.c: attention whose keys and values are made of a latent, and what that takes. */
void moe_latent_attention(struct moe_context *c, int layer);
int  moe_latent_rows(const struct moe_desc *d, int max_row);
int  moe_latent_load(struct moe_model *m, const struct moe_load_options *opt);

void moe_block(struct moe_context *c, int layer);
void moe_dense_ffn(struct moe_context *c, int layer);
void moe_route(struct moe_context *c, int layer);
void moe_route_row(const struct moe_context *c, const struct moe_layer *l, struct moe_routing r);

/* Rows up to which experts are predicted one by one.  In a batch of more rows a layer leaves out one expert in some
 * thousand: all experts count as predicted. */
static inline int moe_guess_rows(const struct moe_desc *d, int max_row)
{
    return kn_min(max_row, d->n_used ? 8 * d->n_expert / d->n_used : 0);
}

int  moe_guess_experts(struct moe_context *c, int layer);       /* of a later layer, into guess.expert; how many */
void moe_prefetch_begin(struct moe_context *c);         /* at the start of a pass */
void moe_prefetch_layer(struct moe_context *c, int layer);      /* when the layer's own experts are requested */
void moe_recall_init(struct moe_context *c);
void moe_recall_begin(struct moe_context *c);           /* a pass */
void moe_recall_learn(struct moe_context *c, int layer);        /* what it uses there, by the plan */
void moe_recall_see(const struct moe_context *c, int layer, bool *seen /* [n_expert] of what rows' tokens used */);
void moe_recall_end(struct moe_context *c, int layer);  /* nothing is expected of it any more */
void moe_plan_rows(struct moe_context *c, int layer);

/* head.c: how a head's rows begin, and what a target's rows leave for it. */
void moe_head_begin(struct moe_context *c);             /* the residual streams of a head's rows */
void moe_head_end(struct moe_context *c);               /* the logits of rows that want some, and what they go on from */
void moe_keep_last(struct moe_context *c);
void moe_keep_inner(struct moe_context *c, int layer);  /* if it is one that is read */

/* rows.c: the passes over all rows, and the products, each one parallel region. */
void moe_rows_norm(struct moe_context *c, const float *weight, unsigned kinds, const int32_t *row, int n);
void moe_rows_code(struct moe_context *c, struct moe_acts *a, unsigned kinds, int n_in,
                   const int32_t *row, int n);
void moe_code_row(struct moe_context *c, struct moe_acts *a, unsigned kinds, int n_in, int row);
void moe_rows_add(struct moe_context *c, float *y /* [n_row, d_model] */, const float *bias);  /* x += y + bias */
void moe_products(struct moe_context *c, int n);       /* c->product[0..n) */
size_t moe_piece_room(const struct kn_team *t, size_t n_product);
struct moe_product moe_product(const struct moe_acts *in, const struct kn_mat *w, float *y, int n_row);

/* bind.c: what the description asks for, found in the file, comes to be m's layer, dense and expert. */
int moe_bind(struct moe_model *m);
enum kn_format moe_format_of(const struct moe_tensor *t);
struct off_source moe_source_of(const struct moe_tensor *t, int e, int n_out, int n_in);   /* matrix e, or 0, of it */
bool moe_is_of_blocks(struct moe_string name, int first, int n_block);

/* model.c: reads n matrices to their places. */
int moe_read_matrices(struct moe_model *m, struct off_load *load, int n, const struct moe_load_options *opt);

static inline float moe_sigmoid(float x) { return 1.0f / (1.0f + kn_expf(-x)); }

static inline unsigned moe_act_bit(const struct kn_mat *w)
{
    return w->n_out ? 1u << kn_format_info(w->format)->act : 0;
}

static inline unsigned moe_acts_of_attention(const struct moe_layer *l)
{
    return moe_act_bit(&l->q) | moe_act_bit(&l->k) | moe_act_bit(&l->v);
}

static inline unsigned moe_delta_acts(const struct moe_layer *l)        /* that a delta net reads */
{
    return moe_act_bit(&l->mix) | moe_act_bit(&l->z) | moe_act_bit(&l->mixed) | moe_act_bit(&l->beta) |
           moe_act_bit(&l->alpha) | moe_act_bit(&l->ba);
}

/* state.c: where states lie, and which rows of a batch go through which of them in what order. */
void moe_states_lay_out(struct moe_context *c, struct kn_arena *a);     /* what a pass needs */
size_t moe_states_bytes(const struct moe_model *m, const struct moe_context_options *opt);     /* the rest */
void moe_states_place(struct moe_context *c, void *base);
void moe_states_begin(struct moe_context *c);
void moe_states_end(struct moe_context *c);     /* a text with a row that failed has no state */

/* delta.c: the steps of the pass through one layer's states; c->states.in has the batch's rows. */
void moe_delta_steps(struct moe_context *c, int layer);

static inline float *moe_state_layer(const struct moe_states *s, int state, int nth)
{
    return (float *)(s->base + (size_t)state * s->bytes + (size_t)nth * s->layer_bytes);
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
    int n_key_head, n_value_head, d_state;  /* of delta nets; 0: none */
    float expert_scale;                     /* 0: 1 */
    int d_latent, d_query_latent, d_value;  /* of latent attention; d_value is d_head in the others */
    float yarn_log;                         /* its yarn log multiplier */
    int n_group, n_group_used;              /* 0: no groups */
    bool sigmoid;                           /* its gating, with a bias, and weights that sum to 1 */
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
