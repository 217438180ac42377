/* moe/pass/pass.h - the forward pass: a context's memory, and the functions that one pass is made of.
 *
 * moe_context_open() takes all memory (context.c); moe_forward() computes one batch in it and allocates nothing.  The
 * order of a pass:
 *
 *     forward.c            checks the batch, then   moe_prefetch_begin(), moe_states_begin()
 *     forward.c            embeddings and angles, or for a draft head   moe_head_begin()
 *     for each layer:      moe_keep_inner()
 *       attention.c        moe_attention(), or
 *       latent_attention.c moe_latent_attention(), or
 *       delta_net.c        moe_delta(), over the states of delta_state.c
 *       experts.c          moe_experts(): moe_route(), moe_plan_rows() (router.c), moe_prefetch_layer(), the experts
 *                          as they arrive; or moe_dense_ffn().  A device with memory of its own goes on by itself through
 *                          layers of which it has all experts (listings.c)
 *     forward.c            moe_keep_last(), last norm, logits, moe_head_end(), moe_states_end()
 *
 * The first half of the last layer calls moe_drop_rows().
 *
 * Prefetch: prefetch.c requests the experts that prefetch_router.c predicts for the next layer.  prefetch_token.c
 * learns from each layer's routing, and predicts the experts of the next pass by its tokens.
 *
 * These files describe a pass in the operations of kernels/pass.h: they add operations to the context's queue, and the
 * device of the queue computes.  No file of this folder computes on the values of rows.  Before the host reads the result
 * of an operation (a plan, predictions, logits), it waits for the queue.
 *
 * Memory.  A device may have memory of its own (kernels/device.h).  A context has its vectors in `device`, which only
 * operations touch, or in `shared`, of which the host has an image; `host` is the host's alone.  The members of struct
 * moe_context and its parts are addresses of the device, except those marked "host": lists that the host writes
 * or reads.  moe_at() gives the device's address of such a list, moe_image() the host's of a vector in shared memory.
 * moe_upload() and moe_download() copy pieces of shared memory; on the host, where both are the same, they do nothing.
 *
 * One thread at a time uses a context.  The model is shared and const.  The batch is the caller's, valid during a
 * pass. */
#ifndef MOE_PASS_PASS_H
#define MOE_PASS_PASS_H

#include "kernels/pass.h"
#include "moe/model/model.h"
#include "moe/pass/where.h"

/* ---- routing ------------------------------------------------------------------------------------------- */

/* The choices of some rows in one layer. */
struct moe_choices {
    float *logit, *rank; /* [rows, n_expert] logits, then scores; scratch */
    int32_t *id;         /* [rows, n_used] the chosen experts, the best first */
    float *weight;       /* [rows, n_used] their weights */
};

/* ---- prefetch ------------------------------------------------------------------------------------------ */

/* Passes in which rows choose among the experts in memory (moe_forward_present). */
struct moe_present {
    bool only; /* the pass under way is one; else nothing below is used */
    /* [the store's experts] on the device or in memory when the pass began; chosen experts that the device lacks: when their
     * layer began */
    bool *there;
    bool *held;       /* [n_expert] of the layer's ticket */
    float *rank_bias; /* of the sheet: [the store's experts] added to the values by which experts are chosen */
};

/* Experts of a later layer as its router predicts them, and the ticket of the reads for the next layer. */
struct moe_guess {
    struct off_ticket ticket; /* n 0: none is open */
    struct moe_sight *sight;  /* [n_layer][MOE_SIGHTS] of the caller; NULL: accuracy is not counted */
    bool *seen;               /* [layer % (MOE_FAR + 1)][MOE_SIGHTS][n_expert] the predictor names the expert */
    int32_t *expert;          /* host: [n_expert] the store's numbers, by falling weight */
    uint8_t *mark;            /* [n_expert] the ticket's mark array */
    float *sum;               /* [n_expert] weight of each expert, summed over rows */
    int32_t *n_listed;        /* host: experts in `expert` */
    struct kn_acts norm;      /* [moe_guess_rows, d_model] */
    struct moe_choices choices;
};

/* Number of predicted experts, and number of them that were then used; both decay. */
struct moe_hit_rate {
    float predicted, used;
};

#define MOE_CHANCES 4 /* classes of predicted probability, from EVEN (prefetch_token.c) to 1 */

/* A table of the experts that each token used when it was last computed, and the hit rate of predictions from the
 * table.  Expert k of an entry is the k-th choice of the token's row. */
struct moe_recall {
    int n_entry;                   /* 0: no table */
    bool learns;                   /* the pass under way writes to the table */
    int32_t *token;                /* [n_entry] the entry's token; -1: none */
    uint16_t *id;                  /* [n_entry][n_layer][n_used] */
    struct moe_hit_rate *hit_rate; /* [n_layer][n_used] of choice k of any token */
    struct moe_hit_rate *proved;   /* [n_layer][MOE_CHANCES] of experts that were predicted and not in memory */
    uint8_t *asked;  /* [n_layer][n_expert] 1 + class if predicted for the next pass and not in memory; else 0 */
    int32_t *absent; /* [n_expert] scratch: predicted experts that are not in memory */
    bool *known;     /* [max_row] the row's token had an entry, of an earlier pass or of an earlier row */
    struct off_ticket *ticket; /* [n_layer] n 0: none is open */
    int32_t *expert;           /* [n_layer][n_expert] the tickets' experts */
    uint8_t *mark;             /* [n_layer][n_expert] the tickets' mark arrays */
    float *unused;             /* [n_expert] scratch: probability that no token uses the expert */
};

/* ---- states of delta nets ------------------------------------------------------------------------------- */

struct moe_states {
    int n;         /* 0: the model has no delta nets */
    int n_kept;    /* most draft rows of a batch: their inputs outlive the pass */
    uint8_t *base; /* [n][delta net]: n_tap - 1 inputs of the convolution, then a matrix for each value head */
    size_t bytes, layer_bytes; /* bytes: of one state; layer_bytes: of one delta net in it */
    int32_t *n_tok;            /* [n] tokens in the state, pending ones included; -1: invalid */
    int32_t *n_pending;        /* [n] accepted draft rows that a later pass computes into the state */
    int32_t *pending;          /* [n, n_kept] their numbers in kept */
    float *kept;               /* [delta net, n_kept, d_in] inputs of the last draft rows */
    int d_in;                  /* moe_d_state_in() */

    struct kn_step *step; /* host: [max_row + n_kept] of the pass under way, flow by flow */
    int n_step;
    struct kn_flow *flow; /* host: [max_row] of the pass under way */
    int n_flow;
    int32_t *flow_of; /* [n] the state's flow; -1: none in this pass */
    uint8_t *used;    /* [n] the batch has a row of this state */
    int32_t *step_of; /* [max_row] the row's step */
    int32_t *kept_of; /* host: [max_row] where in `kept` a draft row's inputs are stored; -1: not a draft row */
    int n_draft;      /* draft rows of the batch */
    float *in;        /* [max_row, d_in] inputs of the convolution, beta, alpha */
    float *z;         /* [max_row, n_value_head * d_state_value] gate of the output */
    float *mixed;     /* [max_row, d_mix and z's width] product of moe_layer.mixed; NULL: files with two matrices */
    float *out;       /* [max_row + n_kept, d_in] by step: convolution's output, then beta and decay */
    /* [d_state_key] weights with which the RMS norm is an L2 norm; unit_q also divides by sqrt(d_state_key) */
    float *unit_q, *unit_k;
};

/* ---- rows ------------------------------------------------------------------------------------------------- */

/* Rows as operations see them; both arrays are the host's. */
struct moe_rows {
    struct kn_row *row;
    int *status;
};

/* All that a device needs to know of a pass before it begins, as one piece of shared memory, which is uploaded once: rows, their
 * slot tables, which of them want logits, the dense FFN of each layer.  Arrays are taken from it as the pass needs them. */
struct moe_sheet {
    uint8_t *at; /* host */
    size_t bytes, used;
    const int32_t *base,
        *base_at; /* the last table of n_base slots that was copied here: the caller's, and its address */
    int n_base;
};

/* The output of half a layer, on its way to the residual stream: y + bias, then normalised by `norm`; either is NULL if
 * the layer has none. */
struct moe_output {
    float *y; /* [n_row, d_model] */
    const float *bias, *norm;
};

/* ---- experts on the device ------------------------------------------------------------------------------ */

struct moe_resident {
    int32_t expert;
    uint32_t turn;           /* of struct moe_residents; the last that used it */
    uint8_t *at;             /* the slot's memory */
    struct kn_mat matrix[3]; /* with addresses of the device */
};

#define MOE_WINDOW_LEAST 4 /* slots of the smallest window in a large pool: it does for so many copies in a layer */

/* Slots of one size, which experts of this size share.  A turn is one layer of a pass. */
struct moe_slot_pool {
    size_t slot_bytes;
    int n_expert, n_may;  /* experts of the size; of these, those that may stay */
    int n_most;           /* slots that it can use */
    int n_layer_expert;   /* experts of a layer: a window has no more slots */
    int first, n_slot;    /* its slots: */
    int n, n_filled;      /* of experts that stay, the first n; of these, in use */
    int n_window;         /* the others, of experts that are copied for one layer */
    int n_round;          /* of these, in use by experts that are copied and not yet computed */
    float least_heat;     /* no expert that stays has less */
    float first_heat;     /* free slots wait for experts with so much; 0: any */
    uint32_t window_turn; /* the last turn that needed more than the smallest window */
    uint32_t cold_turn;   /* the turn in which `cold` was found */
    int cold;             /* the slot of the coldest expert; -1: none */
};

/* All arrays are the host's. */
struct moe_residents {
    int n_slot;    /* 0: the device keeps no experts */
    int32_t first; /* the first expert that may stay */
    int n_pool;
    struct moe_slot_pool pool[OFF_SLOT_SIZES]; /* one for each of the model's resident_sizes */
    bool has_window;                           /* some pool has slots of experts that are copied for one layer */
    struct kn_memory memory;
    struct moe_resident *slot; /* [n_slot] */
    int32_t *slot_of;          /* [the store's experts] or -1 */
    float *heat, use;          /* [the store's experts] uses; use: the weight of one in this pass */
    uint32_t turn;
    unsigned formats[2];  /* of the last n_round of `group`, as moe_layer.expert_formats */
    struct kn_group *all; /* [the store's experts] where the device has them, in shared memory; data NULL: it has not */
    struct kn_group *listed; /* [n_expert] of the device: the turn's experts that stay there */
    struct kn_group *group; /* [n_expert] others of the turn, in the order of their copies, in shared memory: n_group */
    int n_group;
    int n_round;      /* the last of these, copied to a window and not yet computed */
    int32_t *rest;    /* [n_expert] the turn's experts: n_rest others, then those that stay */
    int32_t *rest_of; /* [n_expert] indices of the others in the plan */
    int n_rest;
    bool *passes;  /* [n_expert] the i-th other is copied */
    int n_kept;    /* experts that got a slot to stay in this turn, by a copy of their own */
    bool failed;   /* rows have failed in this turn */
    int32_t *back; /* [n_expert] n_back experts that are being copied back to the host */
    int n_back;
    /* Of the turn's listing.  c->y has the outputs of the others first: */
    int32_t *out, *place;
    float *weight;
    struct off_ticket ticket; /* of the layer before, whose experts may still be copied; n 0: none */
    struct moe_where where;
    uint64_t since_ns;   /* the time when the experts of the last layer were known; 0: none */
    uint64_t stalled_ns; /* of it: waiting for reads */
    struct moe_device_stats total;
    /* If there is room for all experts: */
    bool is_whole;       /* all of them are there */
    int32_t *n_distinct; /* of the sheet: distinct experts of the pass, summed over layers */
};

/* ---- listings ------------------------------------------------------------------------------------------------ */

#define MOE_AHEAD 4               /* most layers that are added before the host has seen the first one's listing */
#define MOE_DONES (2 * MOE_AHEAD) /* over MOE_AHEAD; numbers wrap, so a power of two */

/* The experts of a layer (listings.c): one span of shared memory, divided as the layer's rows need.  All are the host's. */
struct moe_listing {
    int layer;
    uint32_t number; /* which words count */
    int32_t *at;     /* the span; */
    size_t n_read;   /* int32 of it that the host reads */
    struct kn_plan plan;
    int32_t *n_absent;  /* experts that the device lacks */
    int32_t *n_guessed; /* experts predicted for the next layer, */
    int32_t *guessed;   /* [n_expert] the store's numbers, by falling weight; */
    int next;           /* that layer, if experts are to be prefetched; or -1 */
    int32_t *id;        /* [rows, n_used] as struct moe_choices */
    float *weight;
    int32_t *out;      /* [pairs] where the outputs of the plan's pairs go, those that the device lacks first */
    int32_t *place;    /* [rows, n_used] the same for the choices of each row */
    float *out_weight; /* [pairs] weights in that order: of models that scale an expert's input; else NULL */
};

struct moe_listings {
    struct moe_listing listing[MOE_AHEAD];
    int n;
    bool ahead;             /* in this pass layers are added before the host has seen their listings */
    uint32_t number, seen;  /* listings begun; of those, seen by the host */
    uint32_t *ready, *done; /* words: one; [MOE_DONES], which listings use in turn */
};

/* ---- the context ----------------------------------------------------------------------------------------- */

/* Memory of latent attention.  A batch is processed max_row rows at a time; only `low` has all rows of the batch. */
struct moe_latent {
    struct kn_acts low;   /* [the context's max_row, d_query_latent] latents of queries */
    int max_row;          /* of the arrays below */
    struct kn_acts query; /* [max_row * n_head, d_head - n_rot] query parts without rotation */
    float *absorbed;      /* [max_row, n_head, d_key] queries in the space of latent keys */
    struct kn_acts mixed; /* [max_row * n_head, d_latent] output of attention */
};

struct moe_context {
    const struct moe_model *model;
    struct moe_context_options opt;
    struct kn_queue *queue;
    int error;                   /* of the device: no pass succeeds any more; or 0 */
    struct kn_queue *host_queue; /* runs the experts, which lie in memory of the host; on the host it is `queue` */
    struct kn_queue *beside;     /* of the device, for experts that it lacks; NULL: it cannot await words */
    struct kn_queue *copies;     /* beside, or queue if the host sees each layer before it adds the next */
    struct kn_memory kv, device, shared;
    struct kn_arena host;
    size_t *layer_at;     /* [n_layer] where a layer's keys begin in kv */
    uint8_t *feature;     /* [n_slot][features, d_model] behind keys and values; or NULL */
    size_t feature_bytes; /* of one slot */

    struct moe_states states;

    const struct moe_batch *batch; /* of the last pass, the caller's */
    int n_row, n_want;             /* rows of `now`; rows with want_logits */
    struct moe_rows all;           /* of the sheet: the rows of the batch */
    struct moe_rows want;          /* [max_want] those with want_logits, once the last layer has dropped the others */
    struct moe_rows now;           /* all or want: the rows that are computed */
    struct kn_acts join;           /* of a head: [max_row, 2 d_model] feature and embedding */
    struct kn_acts inner;          /* of EAGLE-3: [max_row, n_inner * d_model] */
    float *thought, *guessed;      /* of EAGLE-3: [max_want, d_model] hidden states before the final norm; [max_want,
                               * n_guess] logits, NULL if it predicts all tokens */
    float *x;                      /* [max_row, d_model] the residual stream */
    struct kn_acts norm;           /* [max_row, d_model] normalised */
    struct kn_acts apart;          /* of MOE_SHARED_APART: [max_row, d_model] inputs of the router, then of the FFN */
    float *q;                      /* [max_row, n_head * d_head] */
    float *k, *v;                  /* [max_row, n_kv * d_key], [max_row, n_kv * d_kept] of the layer with most */
    float *q_gate;                 /* [max_row, n_head, 2, d_head] a head's query, then its output gate; or NULL */
    struct kn_acts att;            /* [max_row, a row of the widest output] of attention or of a delta net */
    struct moe_latent latent;
    float (*rotation)[2];              /* [max_row, n_rot / 2] cos and sin of each pair's angle; then of windows' own */
    float *gate, *up;                  /* [max_row * n_used, d_expert] or [max_row, d_ff or d_shared]; up lies
                                      * behind gate; gate_up_interleaved: for experts both are one array from gate on */
    struct kn_acts act, wide;          /* activations: of experts; of a dense layer or the shared expert */
    float *y;                          /* [max_row * max(n_used, 1), d_model] outputs of experts, or of half a layer */
    struct moe_choices route;          /* of max_row rows */
    float *shared_weight, *shared_out; /* of the shared expert: [max_row] logits of its gate, [max_row, d_model] */
    float *shared_gate, *shared_up;    /* [max_row, d_shared]: experts may be computed at the same time */
    struct moe_listings listings;
    struct kn_plan plan;    /* host; as route.id and route.weight of the listing in use */
    uint8_t *mark;          /* [n_expert] mark array of the ticket for the layer's own experts */
    int32_t *arrived;       /* [n_expert] experts that off_wait() handed out, as indices into plan.expert */
    struct off_view *view;  /* [n_expert] their addresses */
    int *arrived_status;    /* [n_expert] 0, or the error of its read */
    struct kn_group *group; /* [n_expert] the layer's experts, in the order in which they were computed */
    struct kn_group *dense; /* of the sheet: [n_layer] the dense FFN of a layer, or its shared expert */
    struct off_hands hands; /* team and scratch with which off_wait() interleaves experts that have been read */
    struct moe_residents residents;
    struct moe_guess guess;
    struct moe_recall recall;
    struct moe_present present;
    int32_t *want_row; /* of the sheet: the rows with want_logits */
    float *logits;     /* [max_want, n_vocab] */
    uint8_t *landing;  /* [MOE_LANDINGS][d_model] floats or less: features on their way to the host */
    struct moe_sheet sheet;
    double distinct; /* distinct experts of the pass, summed over layers */
};

/* ---- memory.c: the device's memory and the host's ----------------------------------------------------------- */

/* The device's address of something in shared memory. */
static inline void *moe_at(const struct moe_context *c, const void *host)
{
    return c->shared.base + ((const uint8_t *)host - c->shared.image);
}

/* The host's image of something in shared memory. */
static inline void *moe_image(const struct moe_context *c, const void *at)
{
    return c->shared.image + ((const uint8_t *)at - c->shared.base);
}
struct kn_acts moe_acts_image(const struct moe_context *c, const struct kn_acts *a);

void moe_upload(struct moe_context *c, const void *host, size_t bytes);   /* before an operation reads it */
void moe_download(struct moe_context *c, const void *host, size_t bytes); /* the host may read it after a wait */

/* The same for the operations that c->copies gets. */
void moe_upload_beside(struct moe_context *c, const void *host, size_t bytes);

/* Waits for the queue, once the host has seen all listings.  Returns 0, or c->error: then no result may be read. */
int moe_wait(struct moe_context *c);
int moe_wait_copies(struct moe_context *c); /* the same for c->copies */

/* Returns bytes of the device's memory as the host can read them until the next call; at most d_model floats.  Waits.
 * moe_read_several() copies n addresses, at most MOE_LANDINGS, with one wait, and replaces each by the host's. */
#define MOE_LANDINGS 16
const void *moe_read(struct moe_context *c, const void *at, size_t bytes);
void moe_read_several(struct moe_context *c, const void **at, int n, size_t bytes);

/* Takes n elements of the sheet, as they begin a pass; their contents are old. */
void *moe_sheet_take(struct moe_context *c, size_t n, size_t size);
size_t moe_sheet_bytes(const struct moe_context *c); /* of the largest pass */

/* The device's addresses of a row's slots, struct moe_row's base and tail.  On a device with memory of its own the slots are
 * copied to the sheet; consecutive rows with the same base share one copy. */
const int32_t *moe_base_table(struct moe_context *c, const int32_t *base, int n);
const int32_t *moe_tail_table(struct moe_context *c, const int32_t *tail, int n);

/* ---- forward.c: rows -------------------------------------------------------------------------------------- */

static inline struct kn_rows moe_rows_from(const struct moe_context *c, int first, int n)
{
    return (struct kn_rows){ moe_at(c, c->now.row + first), moe_at(c, c->now.status + first), n };
}

static inline struct kn_rows moe_rows(const struct moe_context *c) { return moe_rows_from(c, 0, c->n_row); }

bool moe_drops_rows(const struct moe_context *c, int layer); /* rows without logits end with their key and value */
/* Called when keys, values and queries of all rows are done: if the layer drops rows, the rows with logits become rows
 * 0 .. n_want - 1, and c->n_row, which may be 0, counts only them. */
void moe_drop_rows(struct moe_context *c, int layer);

/* Which rows of c->x have logits: NULL: all, because the others were dropped. */
static inline const int32_t *moe_last_rows(const struct moe_context *c)
{
    return c->now.row == c->all.row ? moe_at(c, c->want_row) : NULL;
}

/* The rotations of a layer's rows: [max_row, n_rot of the layer / 2] cos and sin. */
static inline float (*moe_rotation(const struct moe_context *c, int layer))[2]
{
    const struct moe_desc *d = &c->model->desc;
    bool own = moe_window_rot(d) && moe_has_window(d, layer);
    return c->rotation + (own ? (size_t)c->opt.max_row * (size_t)(d->n_rot / 2) : 0);
}

/* The pass has made progress. A server takes a pass that no longer does for one that hangs. */
static inline void moe_advance(const struct moe_context *c)
{
    if (c->opt.advanced_ns)
        atomic_store_explicit(c->opt.advanced_ns, kn_now_ns(), memory_order_relaxed);
}

/* ---- context.c: memory and slots -------------------------------------------------------------------------------------- */

/* The arenas of a context's memory while it is laid out: addresses of the device, of the host's image, and of the host. */
struct moe_arenas {
    struct kn_arena device, shared, host;
};

/* Features by slot are in the KV format; beside an int8 cache in F16. */
static inline enum kn_kv moe_feature_format(enum kn_kv kv) { return kv == KN_KV_INT8 ? KN_KV_F16 : kv; }

struct kn_cache moe_cache(const struct moe_context *c, int layer);  /* the layer's keys and values */
struct kn_features moe_last_feature(const struct moe_context *c);   /* after the last norm */
struct kn_features moe_inner_features(const struct moe_context *c); /* the residual streams, one after the other */

/* ---- rows.c: operations that several parts of a pass add ------------------------------------------------------ */

/* Adds an output to the residual stream; y NULL: nothing.  Then c->norm becomes the stream, normalised by weight (by weight
 * and bias, if it is a layer norm), with codes of these kinds; weight NULL: it does not. */
void moe_add_norm(struct moe_context *c, const struct moe_output *y, const float *weight, const float *bias,
                  unsigned kinds);
void moe_add_norm_to(struct moe_context *c, const struct kn_acts *out, const struct moe_output *y, const float *weight,
                     const float *bias, unsigned kinds); /* out, not c->norm */
void moe_multiply(struct moe_context *c, const struct kn_acts *in, const struct kn_mat *w, float *y, int n_row);
void moe_products(struct moe_context *c, const struct kn_op_products *p);

static inline void moe_product_add(struct kn_op_products *p, const struct kn_acts *in, const struct kn_mat *w, float *y,
                                   int n_row)
{
    p->product[p->n++] = kn_product(in, w, y, n_row);
}

static inline unsigned moe_acts_of_attention(const struct moe_layer *l)
{
    return kn_act_bit(&l->q) | kn_act_bit(&l->k) | kn_act_bit(&l->v);
}

static inline unsigned moe_delta_acts(const struct moe_layer *l)
{
    return kn_act_bit(&l->mix) | kn_act_bit(&l->z) | kn_act_bit(&l->mixed) | kn_act_bit(&l->beta) |
           kn_act_bit(&l->alpha) | kn_act_bit(&l->ba);
}

/* ---- the first half of a layer: attention.c, latent_attention.c, delta_net.c --------------------------------- */

/* Each leaves its output in c->y, which the second half adds with the layer's o_bias and attn_out_norm. */
void moe_attention(struct moe_context *c, int layer);
void moe_latent_attention(struct moe_context *c, int layer);
int moe_latent_rows(const struct moe_desc *d, int max_row); /* c->latent.max_row of a context with max_row rows */
void moe_delta(struct moe_context *c, int layer);

/* delta_net.c: computes the steps c->states.step in one layer; the batch's rows have their inputs in c->states.in. */
void moe_delta_steps(struct moe_context *c, int layer);

struct kn_net moe_net(const struct moe_desc *d);

/* The inputs of draft rows that outlive the pass, of the nth delta net: [n_kept, d_in]. */
static inline float *moe_states_kept(const struct moe_states *s, int nth)
{
    return s->kept + (size_t)nth * (size_t)s->n_kept * (size_t)s->d_in;
}

/* delta_state.c: the memory of states, and the order in which rows of a batch go through them. */
void moe_states_lay_out(struct moe_context *c, struct moe_arenas *a);                      /* memory of a pass */
size_t moe_states_bytes(const struct moe_model *m, const struct moe_context_options *opt); /* states and kept rows */
int moe_states_place(struct moe_context *c, void *base);                                   /* base: their memory */
void moe_states_begin(struct moe_context *c); /* lists the batch's flows and steps; may compute pending rows */
void moe_states_end(struct moe_context *c);   /* sets n_tok of copies; a state with a failed row, no draft, gets -1 */

/* ---- the second half: experts.c, router.c -------------------------------------------------------------------- */

void moe_experts(struct moe_context *c, int layer);
void moe_experts_see(struct moe_context *c); /* the host's part of the oldest layer that it has not seen */
void moe_experts_see_all(struct moe_context *c);
void moe_experts_end(struct moe_context *c); /* after a wait: the layer's experts on the device are computed */
void moe_dense_ffn(struct moe_context *c, int layer);
void moe_route(struct moe_context *c, int layer, const struct kn_acts *in);
void moe_choose(struct moe_context *c, int layer, const struct moe_choices *to); /* from the logits of n_row rows */
void moe_plan_rows(struct moe_context *c, int layer);
struct kn_plan moe_plan_at(const struct moe_context *c); /* c->plan by addresses of the device */
/* The plan's e-th expert with its rows and matrices; expert0: as in kn_op_plan.  The caller sets the node. */
struct kn_group moe_plan_group(const struct kn_plan *p, int e, const struct kn_mat *matrix, int32_t expert0);

/* ---- listings.c ------------------------------------------------------------------------------------------------ */

void moe_listings_lay_out(struct moe_context *c, struct moe_arenas *a, bool own_memory);
void moe_listings_begin(struct moe_context *c);                          /* at the start of a pass */
struct moe_listing *moe_listing_begin(struct moe_context *c, int layer); /* the layer's; NULL: c->error */
void moe_listing_use(struct moe_context *c, const struct moe_listing *g);
void moe_listing_send(struct moe_context *c, struct moe_listing *g);
void moe_listing_await(struct moe_context *c, const struct moe_listing *g);
const struct moe_listing *moe_listing_see(struct moe_context *c);
uint32_t *moe_listing_done(const struct moe_context *c, uint32_t number); /* the word of this listing */
bool moe_listing_is_there(const struct moe_context *c);                   /* moe_experts_see() would not wait */
void moe_listings_drop(struct moe_context *c);
void moe_listings_end(struct moe_context *c);   /* after the last: the queue will not wait for the host */
void moe_listings_leave(struct moe_context *c); /* at the end of a pass: all has run */

/* ---- slot_pools.c: slots for experts on the device --------------------------------------------------------------- */

/* The first expert that may stay on a device which keeps no experts of the first layers. */
int32_t moe_first_resident(const struct moe_model *m, int n_host_layer);
void moe_slot_pools_share(struct moe_residents *r, const struct moe_model *m, const struct moe_context_options *opt);

static inline struct moe_slot_pool *moe_slot_pool_of(struct moe_context *c, int32_t expert)
{
    return &c->residents.pool[c->model->resident_size_of[expert]];
}

int moe_slot_pool_window(const struct moe_slot_pool *p, int most); /* slots of a window, at most */
/* A window that more than a few copies have not needed for long becomes small again; its slots are free. */
void moe_slot_pool_shrink_window(struct moe_residents *r, struct moe_slot_pool *p, int n_layer);
/* The slot of the expert with the least heat among those that this turn does not use; -1: there is none. */
int moe_slot_pool_coldest(struct moe_residents *r, struct moe_slot_pool *p);

/* ---- present.c: passes by the experts in memory --------------------------------------------------------------------- */

void moe_present_lay_out(struct moe_context *c, struct moe_arenas *a);
void moe_present_begin(struct moe_context *c); /* at the start of a pass: if it is one, lists the experts in memory */
const float *moe_select_bias(const struct moe_context *c, int layer); /* by which a layer's rows choose; or NULL */
/* Requests those of the layer's experts that the device lacks and that are in memory; the others add nothing. */
void moe_present_fetch(struct moe_context *c, int layer);

/* ---- residents.c: experts that the device keeps --------------------------------------------------------------- */

void moe_residents_lay_out(struct moe_context *c, struct moe_arenas *a);
int moe_residents_open(struct moe_context *c);
void moe_residents_close(struct moe_context *c); /* of a half-open context, too */
void moe_residents_begin(struct moe_context *c); /* at the start of a pass */
bool moe_is_resident(const struct moe_context *c, int32_t expert);

/* Whether the experts of a layer are computed in two places: by the host, and by a device with memory of its own. */
static inline bool moe_computes_twice(const struct moe_context *c) { return c->host_queue != c->queue; }

/* Whether the device has all experts and lists those of a layer itself: the host need not know them. */
bool moe_device_lists(const struct moe_context *c);

/* Most different experts that the layer's rows may have chosen. */
static inline int moe_most_experts(const struct moe_context *c)
{
    return kn_min(c->model->desc.n_expert, c->n_row * c->model->desc.n_used);
}

/* Adds the operation that makes residents.listed from the layer's plan. */
void moe_residents_list_all(struct moe_context *c, int layer);
void moe_residents_download(struct moe_context *c); /* at the end of a pass, before the last wait, */
void moe_residents_end(struct moe_context *c);      /* and after it */

/* Adds the operation that makes residents.listed of the experts that the device has, and numbers all outputs. */
void moe_residents_mark(struct moe_context *c, const struct moe_listing *g);

/* Sorts the plan's experts, as the device has: first in residents.rest those that it lacks.  Returns the number of those
 * that it has. */
int moe_residents_list(struct moe_context *c);

/* Chooses which of those that it lacks are copied to the device. */
void moe_residents_choose(struct moe_context *c, int layer);

/* Uploads the outputs that the host has computed. */
void moe_residents_upload(struct moe_context *c);

/* Whether the experts copied to the window must be computed before this one is. */
bool moe_residents_window_is_full(struct moe_context *c, int32_t expert);

/* Copies the e-th expert of the plan to the window.  Its matrices must stay until a wait. */
void moe_residents_pass(struct moe_context *c, const struct moe_layer *l, int e, const struct kn_mat *matrix /* [3] */);

/* Returns residents.group's first expert that was copied and not yet computed, and sets *n to their number: the caller
 * computes them. */
const struct kn_group *moe_residents_round(struct moe_context *c, int *n);

/* After the host has computed an expert: copies it to the device if it is used often enough.  Its matrices must stay
 * until a wait, and the host no longer reads them: they may be overwritten by those of an expert that comes back.  Returns whether
 * it is copied. */
bool moe_residents_copy(struct moe_context *c, int32_t expert, const struct kn_mat *matrix /* [3] */);
void moe_residents_copied(struct moe_context *c); /* after a wait: experts that were copied back are the host's */

/* ---- prefetch.c, prefetch_router.c, prefetch_token.c --------------------------------------------------------- */

void moe_prefetch_begin(struct moe_context *c); /* at the start of a pass */
/* When the layer's own experts have been requested.  g: the listing with the prediction for the next layer; NULL: none yet */
void moe_prefetch_layer(struct moe_context *c, int layer, const struct moe_listing *g);
void moe_prefetch_release(struct moe_context *c, int layer); /* releases a layer's prefetched experts */

/* Capacity of struct moe_guess in rows.  A batch of 8 * n_expert / n_used rows leaves one expert of a layer in about
 * 3,000 unused, if rows choose at random.  So from this number of rows on all experts count as predicted. */
static inline int moe_guess_rows(const struct moe_desc *d, int max_row)
{
    return kn_min(max_row, d->n_used ? 8 * d->n_expert / d->n_used : 0);
}

int moe_guess_experts(struct moe_context *c, int layer); /* predicts a layer's c->guess.expert; returns their number */
void moe_guess_next(struct moe_context *c, struct moe_listing *g);   /* adds the prediction for the layer behind g's, */
int moe_guessed(struct moe_context *c, const struct moe_listing *g); /* which is later c->guess.expert */
int moe_prefetched_layer(const struct moe_context *c, int layer); /* the one that is predicted in this layer; or -1 */
void moe_recall_init(struct moe_context *c);
void moe_recall_begin(struct moe_context *c);            /* at the start of a pass */
void moe_recall_learn(struct moe_context *c, int layer); /* from the layer's routing and plan */
void moe_token_history_mark(const struct moe_context *c, int layer,
                            bool *seen /* [n_expert] last used by a row's token */);
void moe_recall_end(struct moe_context *c, int layer); /* releases the layer's ticket, if one is open */

/* ---- draft_head.c: the first residual stream of a draft head's rows, and features that a target keeps for it -- */

void moe_head_begin(struct moe_context *c); /* computes c->x of all rows */
void moe_head_end(struct moe_context *c);   /* EAGLE-3: c->logits over all tokens, and c->thought */
const float *moe_last_feature_at(const struct moe_context *c, int i); /* of wanted row i of the last result */
void moe_keep_last(struct moe_context *c);             /* the feature after the last norm, to each row's slot */
void moe_keep_inner(struct moe_context *c, int layer); /* the residual stream, if features.inner has this layer */

#endif
