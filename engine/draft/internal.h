/* engine/draft/internal.h - shared by the files of draft/: their state, and the interface of a drafter. */
#ifndef ENGINE_DRAFT_INTERNAL_H
#define ENGINE_DRAFT_INTERNAL_H

#include <stdatomic.h>

#include "engine/base/base.h"
#include "engine/draft/draft.h"
#include "engine/plan/fit_file.h"
#include "speculative/control.h"
#include "speculative/lengths.h"
#include "speculative/upkeep.h"

/* ---- of one sequence, while it has a seat --------------------------------------------------------- */

/* Tokens drafted one after the other behind the sequence, while the pass before them still runs (overlap.c). */
struct eng_chain {
    int n;
    int32_t token[ENG_DRAFT_NODES];
    float odds[ENG_DRAFT_NODES]; /* estimated probability that token[i] is right if all tokens before it are */
};

struct eng_draft_seat {
    struct spec_tree tree; /* the draft of the pass under way */
    struct eng_chain chain;
    int n_chain_accepted;              /* chain tokens not refuted by the last commit, committed ones included */
    int n_computed[ENG_DRAFTERS_MOST]; /* tokens that each drafter has computed */
    bool drafter_prefilling;           /* a drafter has not yet computed the whole sequence, and made no draft */
    int first_feature; /* the last layer's features of all tokens from this position on, up to n_kv, are stored */
    uint8_t allowed;   /* bit i: the request lets drafter i draft for the sequence */
    uint8_t usable;    /* those without heads that lack features */
};

/* ---- a drafter ------------------------------------------------------------------------------------- */

/* A drafter is one of several kinds behind this table. Its KV, if it has any, lies in its own memory, at the same slot
 * numbers as the target's. So a block that paths share, or that is evicted, is shared or evicted for both. */
struct eng_drafter;
struct eng_drafter_kind {
    const char *name;
    bool free;          /* a draft takes no time worth measuring */
    bool reads_prompts; /* it computes the tokens of sequences, prompts too, before it drafts for them */
    /* The sequence has got a seat, or loses it. NULL: nothing to do. */
    void (*enter)(struct eng_drafter *d, struct eng_seq *s);
    void (*leave)(struct eng_drafter *d, struct eng_seq *s, bool ended);
    /* n_new tokens were added and the sequence continues; the first n_accepted of them were in the draft.  NULL: nothing to
     * do. */
    void (*commit)(struct eng_drafter *d, struct eng_seq *s, const struct spec_verify *v, int n_new, int n_accepted);
    /* Adds at most n_node[i] nodes, at most `depth` deep, to the tree of s[i]; KV slots for as many are reserved.
     * Returns 0 or an error. */
    int (*draft)(struct eng_drafter *d, struct eng_seq **s, const int *n_node, int n, int depth);
    /* Of a drafter with n_window: adds rows of its own to the tree of s, at most n_node nodes, beside all drafts: it learns
     * from the target's tokens after them. */
    void (*window)(struct eng_drafter *d, struct eng_seq *s, int n_node);
    double (*window_value)(const struct eng_drafter *d); /* tokens that such a row gives, as measured */
    /* Adds up to n_more[i] tokens to the chain of s[i]. Each pass of the drafter adds one token to every chain. At
     * least one pass runs; after it, *stop ends the work. *n_pass: passes run. The target's pass runs meanwhile, so
     * only the chains, the drafter's own memory and the tokens behind the sequences may be written. NULL: the
     * kind cannot. */
    int (*overlap)(struct eng_drafter *d, struct eng_seq **s, const int *n_more, int n, const atomic_bool *stop,
                   int *n_pass);
    /* About how many tokens of s it has to compute before it can draft, without the last. NULL: as text_rows.c says. */
    int (*n_uncomputed)(const struct eng_drafter *d, const struct eng_seq *s);
    void (*close)(struct eng_drafter *d);
    int (*load)(struct eng_drafter *d); /* NULL: no weights to read */
    /* Of a network: frees the memory that load took, also after load failed. It may be loaded again. */
    void (*unload)(struct eng_drafter *d);
    struct eng_extra (*need)(const struct eng_drafter *d); /* memory beyond open's allocations; NULL: none */
};

struct eng_drafter {
    const struct eng_drafter_kind *kind;
    const char *name;
    struct eng_drafting *drafting;
    int number;                    /* its bit in a tree's source */
    struct moe_context *context;   /* of a network, once loaded; else NULL */
    int position_offset;           /* 1 for a head: its row lies 1 position before its token */
    bool reads_last_layer;         /* a head that needs the feature of the last layer of every token */
    struct kn_team *team;          /* computes and samples: the engine's, or beside.c's; set for draft models only */
    struct spec_sampler **sampler; /* [threads of team] */
    bool can_draw;                 /* it can sample from a distribution of its own */
    bool copies, only_copies;      /* as in struct eng_draft_properties */
    int n_window;                  /* rows of its own that it adds to a pass for a sequence, at most; 0: none */
    bool broken;                   /* it failed once, and is not asked again */
    struct spec_upkeep upkeep;     /* unload.c; a drafter without a network counts as loaded */
    int n_text;                    /* tokens of sequences that it prefilled for its last draft */
};

int eng_draft_text_open(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *o);
int eng_draft_model_open(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *o);
/* For a draft model with another vocabulary; takes the file and its vocabulary over, also on failure. */
int eng_draft_other_open(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *o,
                         struct moe_file *file, struct eng_vocab *vocab);
/* For both kinds of draft models: opens the network of the file, or refuses it; warns if it was trained on shorter texts than the
 * target has; its memory with all experts. */
int eng_draft_open_network(struct moe_model **out, struct moe_file *file, const struct eng_drafting *g,
                           const struct eng_draft_option *o);
void eng_draft_check_length(const struct moe_model *m, const struct eng_drafting *g, const struct eng_draft_option *o);
struct eng_extra eng_whole_network_extra(const struct moe_model *m, const struct moe_context_options *one);
const int32_t *eng_draft_other_text(const struct eng_drafter *d, int seat, int *n); /* the tokens that it has read */
int eng_draft_head_open(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *o);
int eng_draft_medusa_open(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *o);
/* The target itself drafts, by its experts on the device and in memory. */
int eng_draft_resident_open(struct eng_drafter **out, struct eng_drafting *g);
bool eng_draft_is_resident(const struct eng_drafter *d);
bool eng_draft_is_model(const struct eng_drafter *d);
const struct moe_model *eng_draft_model_of(const struct eng_drafter *d);

/* The memory of a drafter's network without its experts; one: its context's options with one slot. */
struct eng_extra eng_network_extra(const struct moe_model *m, const struct moe_context_options *one);
/* Reads a network's weights, then opens its context; for the `load` of drafters with a network. */
int eng_drafter_load_network(const struct eng_drafter *d, struct moe_model *model, const struct moe_context_options *co,
                             struct moe_context **context);
void eng_drafter_unload_network(struct moe_model *model, struct moe_context **context);
struct eng_extra eng_drafter_need(const struct eng_drafter *d);
void eng_draft_break(struct eng_drafter *d, int error); /* it failed: sets broken and warns */

/* ---- the state of drafting ---------------------------------------------------------------------------- */

/* prefetch.c: the tokens that the pass is expected to have rows for, and the experts that they need. */
struct eng_prefetch {
    int32_t *token; /* [n_chunk + n_draft_row] of sequences, then of drafts */
    int n, n_text;
    struct spec_need *need;      /* [n_draft_row] of tree nodes, sequence by sequence */
    int32_t *expert;             /* [n_draft_row * n_layer * n_used] the experts of `need` */
    bool *expert_needed_by_text; /* [n_expert_total] false between calls */
};

/* prompts.c: prompts that drafters read. */
struct eng_prompts {
    struct moe_row *row;          /* [READ_ROWS] */
    int room;                     /* rows that may be computed before this step's drafts */
    double row_ns, pass_ns;       /* time of such a row, and of the target's pass; recent means, 0: unknown */
    bool runs;                    /* the thread beside the pass reads */
    uint64_t n_read;              /* tokens that it has read in this pass */
    int error[ENG_DRAFTERS_MOST]; /* of each drafter, beside this pass */
};

/* distributions.c: the distributions that the tokens of drafts were sampled from. */
struct eng_distributions {
    struct spec_dist *dist; /* [n_max] */
    float *weight;          /* [n_max][n_vocab] */
    int n, n_max, n_vocab;  /* n_max 0: no drafter samples */
};

/* fit.c: the fit that is kept beside the model. */
struct eng_kept_fit {
    bool collects; /* passes are collected, and the fit is kept in `path` */
    bool known;    /* `fitted` was read, or fitted to this run's passes */
    char path[ENG_PATH_BYTES];
    uint64_t model_id, setup;
    struct eng_fitted fitted;
    struct spec_observed seen;
    uint64_t n_fitted;               /* passes collected at the last fit */
    uint64_t n_copied;               /* experts copied to the device before the pass under way */
    double disk_Bps;                 /* 0: not measured */
    double missed, distinct, copied; /* decayed sums over passes: experts per layer read, used, copied to a device */
};

struct eng_drafting {
    struct eng_draft_host host;
    struct eng_draft_options opt; /* its draft is the array below; gamma, dsi, lookahead may change */
    struct eng_draft_option option[ENG_DRAFTERS_MOST];

    struct eng_drafter *drafter[ENG_DRAFTERS_MOST]; /* [n_drafter] */
    int n_drafter;
    struct eng_lengths *lengths[ENG_DRAFTERS_MOST]; /* of each drafter; NULL: it has none */
    struct moe_features features;                   /* of the target, that drafters read */
    struct eng_draft_seat *seat;                    /* [n_parallel] */

    struct spec_control *control; /* NULL: no --draft was given */
    struct spec_cost_model cost;  /* as first estimated; all 0: it was not */
    double even_disk_ns;          /* its disk_ns if all experts are used equally often */
    struct eng_kept_fit fit;
    double due_mean;             /* sequences due, averaged over the last passes */
    struct eng_beside *beside;   /* NULL: no drafter works during passes */
    struct eng_overlap *overlap; /* NULL: no drafter drafts during passes */
    int overlap_arm; /* drafting during passes, as a drafter number of the controller; SPEC_DRAFTERS: none */

    struct eng_seq **seq;    /* [n_seq] of n_parallel: sequences with a seat, in row order */
    struct eng_seq **due;    /* [n_due] of n_parallel: those that are due */
    int n_seq, n_due, n_row; /* n_row: rows of the pass without drafts */
    uint8_t usable;    /* bit i: drafter i is loaded and can draft for one of them; 0: a plain step, and no decision */
    double n_position; /* positions of context of the due sequences */
    bool works_beside; /* a drafter works during the pass under way */
    int *due_number;   /* [n_parallel] their seats' numbers */
    int *n_node, *n_part; /* [n_parallel] by due sequence: most nodes of its tree; most that the next drafter adds */
    struct spec_decision decision;
    struct spec_cut *cut;                 /* [n_parallel] */
    struct spec_session_outcome *outcome; /* [n_parallel] */
    uint64_t draft_ns;                    /* time to draft for the pass under way */
    int n_draft_text;                     /* tokens that drafters prefilled in this time */
    bool no_draft_ready;                  /* no sequence asked for nodes: the controller does not learn from the pass */
    int overlap_depth;                    /* tokens to draft during the pass; 0: none */
    struct off_stats store_before;        /* the expert store's counters before the pass */
    struct eng_prefetch prefetch;
    struct eng_prompts prompts;
    int n_recall;
    struct eng_distributions distributions;

    bool stores_features; /* the pass under way stores the last layer's features of all rows */
    double feature_ns;    /* time of these, stored or not, since the upkeep was last weighed */

    struct eng_draft_times times;
    struct eng_drafts counts;
};

/* ---- arms.c ------------------------------------------------------------------------------------------ */

int eng_arms_open(struct eng_drafting *g); /* opens the controller and allocates the lists passed to it */
bool eng_draft_controller_is_on(const struct eng_drafting *g);
int eng_arm_count(const struct eng_drafting *g);
/* The drafters of plan `arm` of the controller, as bits; unloaded ones too. */
uint8_t eng_arm_drafters(const struct eng_drafting *g, int arm);
uint8_t eng_draft_loaded(const struct eng_drafting *g);          /* the drafters that are not unloaded, as bits */
uint8_t eng_draft_unloaded(const struct eng_drafting *g);        /* those that may be loaded again */
void eng_arms_begin(struct eng_drafting *g, struct eng_seq *s);  /* a sequence enters, with its `usable` set */
void eng_arms_update(struct eng_drafting *g, struct eng_seq *s); /* its `usable` has changed */
void eng_arms_disable(struct eng_drafting *g);                   /* plans without a drafter in g->usable */
bool eng_draft_always_overlaps(const struct eng_drafting *g);    /* --dsi 1, while its drafter is loaded */

/* ---- cost.c ------------------------------------------------------------------------------------------- */

const struct eng_draft_option *eng_draft_option_of(const struct eng_drafting *g, int drafter);
void eng_draft_set_forecast(struct eng_drafting *g); /* gives the fit, if known, or else g->cost to the controller */

/* ---- fit.c -------------------------------------------------------------------------------------------- */

int eng_fit_open(struct eng_drafting *g); /* reads the kept or the given fit; error: the given one cannot be used */
void eng_fit_pass_starts(struct eng_drafting *g);
void eng_fit_learn(struct eng_drafting *g, const struct eng_pass_result *r, double missed_bytes);
/* Fits the collected passes and saves the fit, if there are enough new passes; last: no pass follows. */
void eng_fit_settle(struct eng_drafting *g, bool last);
const struct eng_fitted_drafter *eng_fit_drafter(const struct eng_drafting *g,
                                                 const char *name); /* NULL: not measured */

/* ---- unload.c ---------------------------------------------------------------------------------------- */

void eng_draft_weigh_upkeep(struct eng_drafting *g,
                            double step_ns); /* after a step, of which the controller has learnt */
void eng_draft_unload(struct eng_drafting *g, int drafter);
bool eng_draft_load_again(struct eng_drafting *g, int drafter); /* false: it failed, or the expert store is busy */
void eng_draft_load_all(struct eng_drafting *g);                /* the unloaded ones, as far as possible */

/* ---- text_rows.c: which tokens of a sequence a network has computed -------------------------------------- */

int *eng_draft_computed(const struct eng_drafter *d, struct eng_seq *s);
int eng_draft_first_uncomputed(const struct eng_drafter *d, struct eng_seq *s, int n_text);
/* The position from which on it can compute rows of s, and its attention reads. */
int eng_draft_first_position(const struct eng_drafter *d, const struct eng_seq *s);
/* Marks the path's whole blocks, from the block of position `from` on and up to n, as computed by d, for every sequence
 * that shares them. */
void eng_draft_mark_computed(struct eng_drafter *d, struct eng_seq *s, int from, int n);

/* Lays rows for token[at .. n_text) of s as far as `room` rows allow, and marks their whole blocks as computed. `back`
 * is 1 for a head: its row lies 1 position before its token, and token 0 gets no row; else 0. A kept block, which other
 * sequences may share, is laid as a whole in one pass. Returns the first token that got no row; the caller stores it
 * in *eng_draft_computed(). */
int eng_draft_lay_text(struct eng_drafter *d, struct eng_seq *s, int at, int n_text, int back, int room,
                       struct moe_row *row, int *n_row);

/* ---- tree.c: drafts of a network ---------------------------------------------------------------------------- */

/* Open it before the drafter's memory is known; open a context with at least eng_trees_context's options; then for
 * each draft: begin, add the sequences, grow. A head's row i takes token i + 1 and the target's feature of token i, so
 * it lies at position i; any other network's row lies at its token's position. */
struct eng_trees;
int eng_trees_open(struct eng_trees **out, struct eng_drafter *d, const struct moe_model *m, enum eng_tree tree);
void eng_trees_close(struct eng_trees *t);
/* For a context with n_slot slots for sequences: adds the slots of candidates, behind them. */
struct moe_context_options eng_trees_context(const struct eng_trees *t, int n_slot);
void eng_trees_begin(struct eng_trees *t);
void eng_trees_add(struct eng_trees *t, struct eng_seq *s, int n_node, int depth); /* 0 of either: no draft */
int eng_trees_grow(struct eng_trees *t, struct moe_context *c); /* runs the passes and fills the sequences' trees */

/* ---- features.c ------------------------------------------------------------------------------------------------ */

#define ENG_MIN_FEATURES 16 /* behind a gap a head needs so many; with fewer its drafts are poor */

/* Heads at work that read the last layer's feature of every token, as bits; unloaded ones too. */
uint8_t eng_features_readers(const struct eng_drafting *g);
void eng_features_look_up(struct eng_drafting *g, struct eng_seq *s); /* sets first_feature and usable of its seat */
void eng_features_choose(struct eng_drafting *g);                     /* whether the pass stores those of all rows */
void eng_features_note(struct eng_drafting *g, const struct moe_result *r);       /* after the pass: marks gaps */
void eng_features_count(struct eng_drafting *g, const struct eng_pass_result *r); /* their time */
static inline bool eng_has_last_feature(const struct eng_seq *s) { return s->draft->first_feature < s->n_kv; }

/* ---- prefetch.c ------------------------------------------------------------------------------------------------ */

/* begin clears the list; tokens of sequences are added first (add_text), then drafted ones (add). request asks the
 * target's context for the experts of the list. settle, when the trees are final, replaces all drafted tokens of the
 * list by the trees' nodes, and requests. */
int eng_prefetch_open(struct eng_drafting *g);
void eng_prefetch_close(struct eng_drafting *g);
void eng_prefetch_begin(struct eng_drafting *g);
void eng_prefetch_add_text(struct eng_drafting *g, const int32_t *token, int n);
void eng_prefetch_add(struct eng_drafting *g, int32_t token);
void eng_prefetch_truncate(struct eng_drafting *g, int n); /* back to the first n tokens */
void eng_prefetch_request(struct eng_drafting *g);
void eng_prefetch_settle(struct eng_drafting *g);
/* Sets cut[i].need for each due sequence: the experts that its nodes would wait for. False: nothing is set, since no
 * expert is on disk or the sequences' own rows need nearly all. */
bool eng_prefetch_needs(struct eng_drafting *g, struct spec_cut *cut /* [n_due] */);

/* ---- match_length.c: a network predicts how much of each drafter's next draft is accepted ------------------------ */

int eng_lengths_open(struct eng_drafting *g, int drafter, const char *path);
/* *weights must be NULL; free it with kn_free, also after an error. */
int eng_lengths_read(struct spec_lengths *out, float **weights, const char *path);
void eng_lengths_close(struct eng_drafting *g);
void eng_lengths_predict(struct eng_drafting *g); /* for the due sequences, to the controller */

/* ---- distributions.c --------------------------------------------------------------------------------------------- */

int eng_distributions_open(struct eng_drafting *g);
void eng_distributions_close(struct eng_drafting *g);
void eng_distributions_clear(struct eng_drafting *g);            /* at the start of a pass */
struct spec_dist *eng_distribution_take(struct eng_drafting *g); /* one to be filled; NULL: all are taken */
/* Fills dist with the distribution of the token after s->token[0 .. n_history), from logits and the sequence's sampling
 * parameters. Any thread. */
int eng_distribution_fill(struct spec_dist *dist, struct spec_sampler *sampler, const struct eng_seq *s, int n_history,
                          const float *logits);
/* Samples a token from dist. n selects the random number: each sample of the drafter in one draft needs another n. */
struct spec_sampled eng_distribution_draw(const struct eng_drafter *d, const struct eng_seq *s,
                                          const struct spec_dist *dist, int n);

/* ---- beside.c: a thread of low priority that works during passes ------------------------------------------- */

struct eng_beside_tools {
    struct kn_team *team;
    struct spec_sampler **sampler; /* [threads of team] */
    const atomic_bool *stop;       /* the pass is done: end after the drafter's pass under way */
};

int eng_beside_open(struct eng_drafting *g);
void eng_beside_close(struct eng_drafting *g);
void eng_beside_start(struct eng_drafting *g);    /* runs eng_overlap_run(), then eng_prompts_run() */
uint64_t eng_beside_wait(struct eng_drafting *g); /* tells it to stop, and waits for it; returns the ns waited */

/* ---- prompts.c: networks read the prompts ---------------------------------------------------------------------- */

int eng_prompts_open(struct eng_drafting *g);
void eng_prompts_close(struct eng_drafting *g);
void eng_prompts_begin(struct eng_drafting *g); /* at the start of a step */
/* Before d drafts for the sequences with n_node[i] > 0: computes most of the tokens that it has not, as far as the step
 * has time for it. The first pass of the draft computes READ_ROWS more. Returns 0 or an error. */
int eng_prompts_catch_up(struct eng_drafter *d, struct eng_seq **s, const int *n_node, int n);
/* Before a draft, n_row rows of sequences' tokens were computed in this time. */
void eng_prompts_count(struct eng_drafting *g, int n_row, uint64_t ns);
/* Around a pass: whether there is something to read beside it; reads until *tools->stop; counts, and breaks drafters
 * that failed. */
bool eng_prompts_start(struct eng_drafting *g);
void eng_prompts_run(struct eng_drafting *g, const struct eng_beside_tools *tools);
void eng_prompts_end(struct eng_drafting *g);
void eng_prompts_learn(struct eng_drafting *g, uint64_t pass_ns);

/* ---- overlap.c: drafting during passes --------------------------------------------------------------------------- */

/* Unless --dsi is off: prepares the first drafter that can draft during passes. Error: --verify is not
 * coupled; with --dsi 1 no drafter can, or --draft model: has a tree. With --dsi auto and no such drafter: a
 * warning only. */
int eng_overlap_open(struct eng_drafting *g);
void eng_overlap_close(struct eng_drafting *g);
const struct eng_drafter *eng_overlap_drafter(const struct eng_drafting *g); /* NULL: none */

static inline void eng_chain_add(struct eng_chain *c, int32_t token, float odds)
{
    c->token[c->n] = token;
    c->odds[c->n++] = odds;
}

/* Copies the chains to the trees of the due sequences, at most n_node[i] nodes; while the pass runs, each chain grows
 * to `depth` tokens more than the tree has nodes. */
void eng_overlap_lay(struct eng_drafting *g, int depth);
bool eng_overlap_start(struct eng_drafting *g); /* whether there is a chain to extend beside the pass */
void eng_overlap_run(struct eng_drafting *g, const struct eng_beside_tools *tools);
void eng_overlap_end(struct eng_drafting *g, uint64_t waited_ns);
void eng_overlap_commit(struct eng_seq *s, int n_new); /* n_new tokens were added: shortens or clears the chain */
void eng_overlap_drop(struct eng_drafting *g, struct eng_seq *s); /* clears the chain */

/* Of the pass under way: the drafter's passes, their time, and how long the target's pass waited for them. */
struct eng_overlapped {
    int n_pass;
    uint64_t took_ns, waited_ns;
};
const struct eng_overlapped *eng_overlap_last(const struct eng_drafting *g);

int eng_overlap_depth(const struct eng_drafting *g); /* tokens that a pass leaves time for, as measured */
void eng_overlap_learn(struct eng_drafting *g, uint64_t pass_ns);

#endif
