/* moe/pass/pass.h - the forward pass: a context's memory, and the functions that one pass is made of.
 *
 * moe_context_open() takes all memory (context.c); moe_forward() computes one batch in it and allocates nothing.  The
 * order of a pass:
 *
 *     forward.c            checks the batch, then   moe_prefetch_begin(), moe_states_begin()
 *     forward.c            embeddings and angles, or for a draft head   moe_head_begin()
 *     for each layer:      moe_keep_inner()
 *       attention.c        moe_attention(), or
 *       latent_attention.c moe_latent_attention(), both over moe_attend() (attend.c), or
 *       delta_net.c        moe_delta(), over the states of delta_state.c
 *       experts.c          moe_experts(): moe_route(), moe_plan_rows() (router.c), moe_prefetch_layer(), the experts
 *                          as they arrive; or moe_dense_ffn()
 *     forward.c            moe_states_end(), last norm, logits, moe_keep_last(), moe_head_end()
 *
 * Prefetch: prefetch.c requests the experts that prefetch_router.c predicts for the next layer.  prefetch_token.c
 * learns from each layer's routing, and predicts the experts of the next pass by its tokens.  rows.c has the two kinds
 * of parallel region that the files above use: a function applied to each row, and products of matrices with rows.
 *
 * One thread at a time uses a context; its team computes.  The model is shared and const.  The arrays of struct
 * moe_context lie in its two arenas; the batch is the caller's, valid during a pass. */
#ifndef MOE_PASS_PASS_H
#define MOE_PASS_PASS_H

#include "moe/model/model.h"

/* ---- rows and products -------------------------------------------------------------------------------- */

/* One vector for each row, as float32 and quantised in the kinds of activation codes that matrices read.  code[kind] is
 * NULL if no matrix reads this kind; code[KN_ACT_F32] is x. */
struct moe_acts {
    float *x;
    size_t stride; /* floats per row */
    void *code[KN_ACT_COUNT];
    size_t code_stride[KN_ACT_COUNT]; /* bytes per row */
};

/* One matrix times rows.  node: the NUMA node that holds the matrix; the threads of this node take its items first.
 * -1: the panels are spread over all nodes.  n_stack: number of matrices of one size that w holds one below the other,
 * each of whole panels; 1: a plain matrix.  Matrix i reads its own part of an input row, i * x_part bytes after the
 * row's start, and writes its own part of an output row, i * y_part floats after the start. */
struct moe_product {
    struct kn_matmul mul;
    int node, n_stack;
    size_t x_part, y_part; /* x_part in bytes; y_part in floats, n_out / n_stack or more; unused if n_stack is 1 */
};

/* Panels panel0 .. panel1 - 1 of c->product[product], all on one node.  Work items item0, item0 + 1, .. compute
 * per_item panels each. */
struct moe_piece {
    int product, panel0, panel1, per_item, item0;
};

/* ---- routing ------------------------------------------------------------------------------------------- */

/* Rows grouped by expert, of one layer. */
struct moe_plan {
    int n_expert;        /* distinct experts */
    int32_t *expert;     /* [n_expert] the store's numbers, ascending */
    int32_t *first;      /* [n_expert + 1] expert[e] has row[first[e] .. first[e + 1] - 1], and the same part of pair */
    int32_t *row, *pair; /* [rows * n_used] batch row, and row * n_used + choice */
    int32_t *fill;       /* [the layer's experts] scratch of the sort */
};

/* Routing of one row.  p: logits on entry, probabilities on return (MOE_GATING_CHOSEN: still logits). */
struct moe_routing {
    float *p, *rank; /* [n_expert]; rank: scratch for the scores that decide the choice, if they differ from p */
    int32_t *id;     /* [n_used] the chosen experts, the best first */
    float *weight;   /* [n_used] their weights */
};

/* ---- prefetch ------------------------------------------------------------------------------------------ */

/* Experts of a later layer as its router predicts them, and the ticket of the reads for the next layer. */
struct moe_guess {
    struct off_ticket ticket; /* n 0: none is open */
    struct moe_sight *sight;  /* [n_layer][MOE_SIGHTS] of the caller; NULL: accuracy is not counted */
    bool *seen;               /* [layer % (MOE_FAR + 1)][MOE_SIGHTS][n_expert] the predictor names the expert */
    int32_t *expert;          /* [n_expert] the store's numbers, by falling weight */
    uint8_t *mark;            /* [n_expert] the ticket's mark array */
    float *sum;               /* [n_expert] weight of each expert, summed over rows */
    struct moe_acts norm;     /* [moe_guess_rows, d_model] */
    float *logit, *rank;      /* [moe_guess_rows, n_expert] */
    int32_t *id;              /* [moe_guess_rows, n_used] */
    float *weight;            /* [moe_guess_rows, n_used] */
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

/* One row on its way through the delta nets: a row of this batch, or a pending row: a draft row of an earlier batch
 * that was accepted and is computed into the state now. */
struct moe_step {
    int32_t row;    /* number in the batch; -1: a pending row */
    int32_t kept;   /* of a pending row: number of its inputs in moe_states.kept */
    int32_t before; /* the step of the token before it in the sequence; -1: that token is the state's last, or none */
};

/* The steps of one state in a pass: from step `first` on, n_text steps that extend the state, then n_draft drafts. */
struct moe_flow {
    int32_t state;
    int first, n_text, n_draft;
};

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

    struct moe_step *step; /* [max_row + n_kept] of the pass under way, flow by flow */
    int n_step;
    struct moe_flow *flow; /* [max_row] of the pass under way */
    int n_flow;
    int32_t *flow_of; /* [n] the state's flow; -1: none in this pass */
    uint8_t *used;    /* [n] the batch has a row of this state */
    int32_t *step_of; /* [max_row] the row's step */
    int32_t *kept_of; /* [max_row] where in `kept` a draft row's inputs are stored; -1: not a draft row */
    int n_draft;      /* draft rows of the batch */
    float *in;        /* [max_row, d_in] inputs of the convolution, beta, alpha */
    float *z;         /* [max_row, n_value_head * d_state_value] gate of the output */
    float *mixed;     /* [max_row, d_mix and z's width] product of moe_layer.mixed; NULL: files with two matrices */
    float *out;       /* [max_row + n_kept, d_in] by step: convolution's output, then beta and decay */
    /* [d_state_key] weights with which the RMS norm is an L2 norm; unit_q also divides by sqrt(d_state_key) */
    float *unit_q, *unit_k;
    float *work; /* [threads, matrix of a head] a head's state while drafts run on it */
};

/* ---- attention ------------------------------------------------------------------------------------------- */

/* Memory for attention with spans as work items (attend.c). */
struct moe_span_item {
    int first;         /* number of the item's first span among those of all items */
    size_t part;       /* where its parts begin in moe_spans.part */
    atomic_int n_left; /* spans still to be computed; the thread that makes it 0 joins the parts */
};

struct moe_spans {
    int n_item; /* most items; 0: rows are always the items */
    size_t n_float;
    float *part;                /* [n_float] */
    struct moe_span_item *item; /* [n_item] */
};

/* Attention of n_item items, each one row with some of its heads.  describe() sets up an item, or returns false if the
 * row has failed; the same item may be described several times, by several threads.  finish() handles its output. */
struct moe_attend {
    struct moe_context *c;
    int n_item;
    bool (*describe)(const void *arg, int item, struct kn_attend *out);
    void (*finish)(const void *arg, int item);
    const void *arg;
};

/* ---- the context ----------------------------------------------------------------------------------------- */

/* Memory of latent attention.  A batch is processed max_row rows at a time; only `low` has all rows of the batch. */
struct moe_latent {
    struct moe_acts low;   /* [the context's max_row, d_query_latent] latents of queries */
    int max_row, first;    /* first: the batch row that is row 0 of the arrays below */
    struct moe_acts query; /* [max_row * n_head, d_head - n_rot] query parts without rotation */
    float *absorbed;       /* [max_row, n_head, d_key] queries in the space of latent keys */
    struct moe_acts mixed; /* [max_row * n_head, d_latent] output of attention */
};

struct moe_context {
    const struct moe_model *model;
    struct moe_context_options opt;
    struct kn_team *team;
    struct kn_arena kv, arena;
    size_t key_bytes, value_bytes; /* of one KV head's array in one layer; value_bytes 0: values lie in the keys */
    uint8_t *feature;              /* [n_slot][features, d_model] behind keys and values; or NULL */
    size_t feature_bytes;          /* of one slot */

    struct moe_states states;
    struct moe_spans spans;

    const struct moe_batch *batch; /* of the last pass, the caller's */
    int n_row, n_want;
    int *status;              /* [max_row] */
    struct moe_acts join;     /* of a head: [max_row, 2 d_model] feature and embedding */
    struct moe_acts inner;    /* of EAGLE-3: [max_row, n_inner * d_model] */
    float *thought, *guessed; /* of EAGLE-3: [max_want, d_model] hidden states before the final norm; [max_want,
                               * n_guess] logits, NULL if it predicts all tokens */
    float *x;                 /* [max_row, d_model] the residual stream */
    struct moe_acts norm;     /* [max_row, d_model] normalised */
    float *q;                 /* [max_row, n_head * d_head] */
    float *k, *v;             /* [max_row, n_kv * d_key], [max_row, n_kv * d_kept] */
    float *q_gate;            /* [max_row, n_head, 2, d_head] a head's query, then its output gate; or NULL */
    struct moe_acts att;      /* [max_row, a row of the widest output] of attention or of a delta net */
    struct moe_latent latent;
    float (*rope_cos_sin)[2];        /* [max_row, rotations, n_rot / 2] cos and sin of each pair's angle */
    float *gate, *up;                /* [max_row * n_used, d_expert] or [max_row, d_ff or d_shared]; up lies
                                      * behind gate; gate_up_interleaved: for experts both are one array from gate on */
    struct moe_acts act, wide;       /* activations: of experts; of a dense layer or the shared expert */
    float *y;                        /* [max_row * max(n_used, 1), d_model] outputs of experts, or of half a layer */
    float *route_logit, *route_rank; /* [max_row, n_expert] moe_routing.p and rank */
    int32_t *route_id;               /* [max_row, n_used] */
    float *route_weight;             /* [max_row, n_used] */
    float *shared_weight, *shared; /* of the shared expert: [max_row] logits of its gate, [max_row, d_model] outputs */
    struct moe_plan plan;
    uint8_t *mark;          /* [n_expert] mark array of the ticket for the layer's own experts */
    int32_t *arrived;       /* [n_expert] experts that off_wait() handed out, as indices into plan.expert */
    struct off_view *view;  /* [n_expert] their addresses */
    int *arrived_status;    /* [n_expert] 0, or the error of its read */
    struct off_hands hands; /* team and scratch with which off_wait() interleaves experts that have been read */
    struct moe_guess guess;
    struct moe_recall recall;
    int32_t *want_row;    /* [max_want] the rows with want_logits */
    struct moe_row *want; /* [max_want] copies of them, the batch while other rows are dropped */
    int *want_status;     /* [max_want] their statuses, meanwhile */
    struct moe_batch want_batch;
    struct moe_all_rows {
        const struct moe_batch *batch;
        int *status;
    } all;                       /* batch and statuses of all rows while some are dropped; batch NULL: none are */
    float *logits;               /* [max_want, n_vocab] */
    struct moe_product *product; /* [2 * n_expert + 4] of one parallel region */
    struct moe_piece *piece;     /* [moe_piece_room()] the pieces of these products */
    double distinct;             /* distinct experts of the pass, summed over layers */
};

/* ---- context.c: slots -------------------------------------------------------------------------------------- */

static inline int32_t moe_own_slot(const struct moe_row *r)
{
    return r->position < r->n_base ? r->base[r->position] : r->tail[r->position - r->n_base];
}

/* The keys or the values of one KV head in one layer, by slot.  scale: of int8, [n_slot][kn_kv_blocks(d)], behind value;
 * else NULL. */
struct moe_kv_array {
    uint8_t *value; /* [n_slot][d] */
    float *scale;
    int d;
};

struct moe_kv_array moe_kv_keys(const struct moe_context *c, int layer, int head);
struct moe_kv_array moe_kv_values(const struct moe_context *c, int layer, int head); /* MLA: the same as the keys */
void moe_kv_put(const struct moe_context *c, struct moe_kv_array a, int32_t slot, const float *x /* [d] */);

/* Features by slot are in the KV format; beside an int8 cache in F16. */
static inline enum kn_kv moe_feature_format(enum kn_kv kv) { return kv == KN_KV_INT8 ? KN_KV_F16 : kv; }

/* ---- forward.c: rows that the last layer drops ----------------------------------------------------------------- */

bool moe_drops_rows(const struct moe_context *c, int layer); /* rows without logits end with their key and value */
/* Called when keys, values and queries of all rows are done: if the layer drops rows, the rows with logits become rows
 * 0 .. n_want - 1, and c->n_row, which may be 0, counts only them. */
void moe_drop_rows(struct moe_context *c, int layer);

/* cos and sin of each pair's angle at the row's position, in this layer: [n_rot / 2]. */
static inline const float (*moe_rotation_of(const struct moe_context *c, int layer, int row))[2]
{
    const struct moe_desc *d = &c->model->desc;
    int n = moe_n_rotation(d), own = n > 1 && moe_has_window(d, layer);
    return (const float(*)[2])c->rope_cos_sin + (size_t)(row * n + own) * (size_t)(d->n_rot / 2);
}

/* ---- rows.c: passes over rows, and products; moe_rows_..() and moe_products() are one parallel region each -- */

/* kinds: bits 1 << kind of the activation codes to compute.  row: NULL for rows 0 .. n - 1.
 * moe_rows_norm: c->norm row i becomes residual row row[i], normalised by weight and quantised.
 * moe_rows_code: quantises rows row[0 .. n - 1] of a, n_in values each; moe_code_row: one row, in the calling thread.
 * moe_rows_add: adds y and bias (NULL or [d_model]), normalised by `norm` unless it is NULL, to the residual stream of
 * all rows; y is overwritten.  moe_add_row: the same for one row without a bias, in the calling thread. */
void moe_rows_norm(struct moe_context *c, const float *weight, unsigned kinds, const int32_t *row, int n);
void moe_rows_code(struct moe_context *c, struct moe_acts *a, unsigned kinds, int n_in, const int32_t *row, int n);
void moe_code_row(struct moe_context *c, struct moe_acts *a, unsigned kinds, int n_in, int row);
void moe_rows_add(struct moe_context *c, float *y /* [n_row, d_model] */, const float *bias, const float *norm);
void moe_add_row(struct moe_context *c, int row, float *y /* [d_model] */, const float *norm);
void moe_products(struct moe_context *c, int n);                  /* computes c->product[0 .. n - 1] */
size_t moe_piece_room(const struct kn_team *t, size_t n_product); /* pieces that n_product products need at most */

/* The product of w with rows 0 .. n_row - 1 of in, to y [n_row, n_out]; panels on all nodes; run by moe_products(). */
struct moe_product moe_product(const struct moe_acts *in, const struct kn_mat *w, float *y, int n_row);

static inline float moe_sigmoid(float x) { return 1.0f / (1.0f + kn_expf(-x)); }

/* The kind of activations that a matrix reads, as a bit; no bit for a matrix that is absent. */
static inline unsigned moe_act_bit(const struct kn_mat *w)
{
    return w->n_out ? 1u << kn_format_info(w->format)->act : 0;
}

static inline unsigned moe_acts_of_attention(const struct moe_layer *l)
{
    return moe_act_bit(&l->q) | moe_act_bit(&l->k) | moe_act_bit(&l->v);
}

static inline unsigned moe_delta_acts(const struct moe_layer *l)
{
    return moe_act_bit(&l->mix) | moe_act_bit(&l->z) | moe_act_bit(&l->mixed) | moe_act_bit(&l->beta) |
           moe_act_bit(&l->alpha) | moe_act_bit(&l->ba);
}

/* ---- attend.c ------------------------------------------------------------------------------------------------ */

void moe_attend(const struct moe_attend *m); /* one parallel region */
void moe_spans_lay_out(struct moe_context *c, struct kn_arena *a);

/* ---- the first half of a layer: attention.c, latent_attention.c, delta_net.c --------------------------------- */

void moe_attention(struct moe_context *c, int layer);
void moe_latent_attention(struct moe_context *c, int layer);
int moe_latent_rows(const struct moe_desc *d, int max_row); /* c->latent.max_row of a context with max_row rows */
void moe_delta(struct moe_context *c, int layer);

/* delta_net.c: computes the steps c->states.step in one layer; the batch's rows have their inputs in c->states.in. */
void moe_delta_steps(struct moe_context *c, int layer);

/* delta_state.c: the memory of states, and the order in which rows of a batch go through them. */
void moe_states_lay_out(struct moe_context *c, struct kn_arena *a);                        /* memory of a pass */
size_t moe_states_bytes(const struct moe_model *m, const struct moe_context_options *opt); /* states and kept rows */
void moe_states_place(struct moe_context *c, void *base);                                  /* base: their memory */
void moe_states_begin(struct moe_context *c); /* lists the batch's flows and steps; may compute pending rows */
void moe_states_end(struct moe_context *c);   /* sets n_tok of copies; a state with a failed row, no draft, gets -1 */

static inline float *moe_state_layer(const struct moe_states *s, int state, int nth)
{
    return (float *)(s->base + (size_t)state * s->bytes + (size_t)nth * s->layer_bytes);
}

/* ---- the second half: experts.c, router.c -------------------------------------------------------------------- */

void moe_experts(struct moe_context *c, int layer);
void moe_dense_ffn(struct moe_context *c, int layer);
void moe_route(struct moe_context *c, int layer);
void moe_route_row(const struct moe_context *c, const struct moe_layer *l, struct moe_routing r);
void moe_plan_rows(struct moe_context *c, int layer);

/* ---- prefetch.c, prefetch_router.c, prefetch_token.c --------------------------------------------------------- */

void moe_prefetch_begin(struct moe_context *c);            /* at the start of a pass */
void moe_prefetch_layer(struct moe_context *c, int layer); /* when the layer's own experts have been requested */
void moe_prefetch_release(struct moe_context *c,
                          int layer); /* releases the prefetched experts of a layer that has no rows */

/* Capacity of struct moe_guess in rows.  A batch of 8 * n_expert / n_used rows leaves one expert of a layer in about
 * 3,000 unused, if rows choose at random.  So from this number of rows on all experts count as predicted. */
static inline int moe_guess_rows(const struct moe_desc *d, int max_row)
{
    return kn_min(max_row, d->n_used ? 8 * d->n_expert / d->n_used : 0);
}

int moe_guess_experts(struct moe_context *c, int layer); /* predicts a layer's c->guess.expert; returns their number */
void moe_recall_init(struct moe_context *c);
void moe_recall_begin(struct moe_context *c);            /* at the start of a pass */
void moe_recall_learn(struct moe_context *c, int layer); /* from the layer's routing and plan */
void moe_token_history_mark(const struct moe_context *c, int layer,
                            bool *seen /* [n_expert] last used by a row's token */);
void moe_recall_end(struct moe_context *c, int layer); /* releases the layer's ticket, if one is open */

/* ---- draft_head.c: the first residual stream of a draft head's rows, and features that a target keeps for it -- */

void moe_head_begin(struct moe_context *c);            /* computes c->x of all rows */
void moe_head_end(struct moe_context *c);              /* EAGLE-3: c->logits over all tokens, and c->thought */
void moe_keep_last(struct moe_context *c);             /* the feature after the last norm, to each row's slot */
void moe_keep_inner(struct moe_context *c, int layer); /* the residual stream, if features.inner has this layer */

#endif
