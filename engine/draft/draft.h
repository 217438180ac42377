/* engine/draft/draft.h - drafting, as the conductor (engine/step.c) sees it.
 *
 *     open -> needs -> (the engine divides memory) -> foresee -> load -> per step: [ begin, add*, make -> pass_starts
 *     -> (forward pass) -> pass_ends -> verified*, commit* -> learn ]* -> close
 *
 * A draft is verified in the pass that would have computed the next token anyway. So a draft can cost time, but under
 * --verify coupled, the default, it never changes a byte of the output; under ratio and block it preserves the output's
 * distribution (speculative.h). Several drafters merge their drafts into one tree per sequence. The controller of
 * speculative/control.h decides before each pass which drafter drafts, and how deep; after the draft, which nodes are
 * worth their row.
 *
 *     option.c         --draft, and the table of the kinds of drafters
 *     draft.c          one pass: asks the drafters, gives each sequence its nodes, reports to the controller
 *     arms.c           the plans that the controller chooses among, and reports about them
 *     text_drafter     n-grams, suffixes, lookahead decoding, the oracle of bench
 *     model_drafter    a smaller model
 *     other_vocabulary a smaller model with another vocabulary
 *     head_drafter     an EAGLE head, or the target's own MTP layer
 *     medusa_drafter   Medusa heads; medusa.c computes them
 *     tree.c           chains and trees of a network, one level per pass, all sequences together
 *     prompts.c        networks read prompts, beside passes and before drafts
 *     text_rows.c      which tokens of a sequence a network has computed
 *     distributions.c  the distributions that drafted tokens were sampled from (--verify ratio, block)
 *     match_length.c   a network that predicts the accepted length of drafts
 *     beside.c         a thread that works while the target's pass runs
 *     overlap.c        a drafter drafts while the target's pass runs (--dsi)
 *     prefetch.c       experts of the rows to come are requested before the pass
 *     cost.c           the expected cost of drafts, the controller's first estimate
 *     fit.c            fits the cost model to passes of requests, and keeps it beside the model
 *     features.c       for which passes the target stores the last layer's features of all rows
 *     unload.c         unloads a drafter if its upkeep is more than its drafts save, and loads it again
 *
 * One thread calls this: the engine's. Memory is taken at open and load, and when unload.c loads a drafter again; nothing else
 * is allocated in a step. */
#ifndef ENGINE_DRAFT_DRAFT_H
#define ENGINE_DRAFT_DRAFT_H

#include "engine/draft/option.h"
#include "engine/draft/report.h"
#include "engine/kv/kv.h"
#include "engine/plan/plan.h"
#include "engine/text/text.h"
#include "moe/moe.h"
#include "speculative/speculative.h"

struct eng_drafting;
struct eng_draft_seat;

/* A sequence as draft/ sees it; step.c's sessions embed it. */
struct eng_seq {
    int number;                   /* number of its seat, 0 .. n_parallel - 1; valid while it has one */
    int32_t *token;               /* [n_ctx + 1]; drafters write only at n_token and behind */
    int n_token, n_prompt, n_max; /* tokens now; tokens of the prompt; the largest n_token allowed */
    int n_kv, n_row;              /* tokens with computed KV; its rows, without drafts, in the pass under way */
    struct eng_path path;         /* its KV slots, while it has a seat */
    const struct spec_params *sampling;
    const int32_t *oracle;    /* [n_oracle] the tokens after the prompt, for the oracle drafter; the caller's */
    int n_oracle;             /* 0: none */
    const int32_t *reference; /* [n_reference] a text that the answer may repeat; the caller's; NULL: none */
    int n_reference;
    struct eng_draft_limits limits;
    const struct spec_tree *tree; /* its draft for the pass under way; NULL without a seat */
    int32_t target_token
        [ENG_DRAFT_NODES]; /* the target's token after each node of which tree->wants_target_token is set; -1: not known */
    struct eng_draft_seat *draft; /* private to draft/; NULL without a seat */
};

/* The pass under way computes the sequence's last token, so the next token is sampled at the end of this pass. */
static inline bool eng_seq_is_due(const struct eng_seq *s) { return s->n_row && s->n_kv + s->n_row == s->n_token; }

struct eng_draft_options {
    const struct eng_draft_option *draft; /* [n_draft], copied */
    int n_draft;
    int gamma; /* tokens drafted for each sequence, 0: no drafts; or ENG_GAMMA_AUTO */
    enum eng_dsi_mode dsi;
    int lookahead; /* --dsi 1: tokens drafted during a pass; 0: as many as the pass leaves time for */
    enum spec_rule verify;
    const char *fit; /* a fit file; "none"; "auto" or NULL: the one beside the model, if keeps_fit */
    bool keeps_fit;  /* the fit of this run's passes is kept beside the model */
    bool features;   /* the target's context keeps the last feature of each token, even if no drafter reads it */
    bool explain;    /* log each change of the controller's decision */
};

/* Copied by eng_draft_open. The objects that it points to must exist until eng_draft_close. */
struct eng_draft_host {
    const struct moe_file *file;
    struct moe_model *model; /* the target, described; its weights may come later */
    const struct eng_vocab *vocab;
    struct kn_team *team;
    struct spec_sampler **sampler; /* [threads of the team] */
    struct eng_kv *kv;
    struct eng_split *split;           /* filled in before foresee */
    atomic_uint_fast64_t *advanced_ns; /* of the drafters' contexts, as in struct moe_context_options */
    const char *model_path, *mirror;   /* mirror: NULL if none */
    size_t host_mem;
    int n_parallel, n_ctx, n_chunk;
    int n_draft_row;             /* most drafted rows of a pass, over all sequences */
    double max_prefill_slowdown; /* limits the prompts that drafters read before a draft, in a step that decodes */
    enum kn_isa isa;
    enum kn_kv kv_format;
    enum off_io_kind io;
    struct moe_context *context; /* the target's; set by load */
};

/* ---- opening ------------------------------------------------------------------------------------- */

/* Opens the drafters without weights and KV; their memory is then known (eng_draft_needs). */
int eng_draft_open(struct eng_drafting **out, const struct eng_draft_options *opt, const struct eng_draft_host *host);
void eng_draft_close(struct eng_drafting *g);

struct eng_draft_needs {
    struct eng_extra memory;
    struct moe_features features; /* features of each token that the target's context has to keep */
    int n_recall;                 /* tokens for which the target's context has to remember their experts */
};
void eng_draft_needs(const struct eng_drafting *g, struct eng_draft_needs *out);

/* After memory is divided and before weights are read: gives the controller its first estimate of the time of passes
 * and drafts. If some experts stay on disk, the estimate uses *disk_Bps; 0: measures the disk and sets *disk_Bps. Does
 * nothing unless gamma is ENG_GAMMA_AUTO. */
int eng_draft_foresee(struct eng_drafting *g, double *disk_Bps);

/* For a forecast without passes: replaces a cost model by rates by the fit, if there is one, and sets *fit_error. */
int eng_draft_apply_fit(struct eng_drafting *g, struct spec_cost_model *cost, double *fit_error);

/* Bytes that the expert cache may get while the engine runs, when drafters are unloaded; 0 unless gamma is auto. */
size_t eng_draft_returnable_bytes(const struct eng_drafting *g);

/* Takes the drafters' memory and reads their weights; the target's context is open now. */
int eng_draft_load(struct eng_drafting *g, struct moe_context *context);

const char *eng_draft_kind_name(const struct eng_drafting *g, int drafter);
int eng_draft_count(const struct eng_drafting *g); /* drafters, unloaded ones too */
const struct moe_model *eng_draft_chain_model(const struct eng_drafting *g,
                                              int n); /* of the n-th --draft model, from 0; or NULL */

/* ---- sequences ----------------------------------------------------------------------------------- */

void eng_draft_enter(struct eng_drafting *g, struct eng_seq *s); /* s has got the seat s->number */
/* s loses its seat. ended: it will not return; else it is preempted. */
void eng_draft_leave(struct eng_drafting *g, struct eng_seq *s, bool ended);
int eng_draft_n_pending(const struct eng_seq *s); /* tokens drafted behind n_token during passes, not verified yet */

/* Drafts of the sequence are sampled from the drafter's distribution (else they are chosen with the target's noise). */
bool eng_draft_samples(const struct eng_drafting *g, const struct eng_seq *s);

/* ---- a pass --------------------------------------------------------------------------------------- */

void eng_draft_begin(struct eng_drafting *g);
void eng_draft_add(struct eng_drafting *g, struct eng_seq *s); /* a sequence with a seat, in row order */
void eng_draft_make(struct eng_drafting *g);                   /* fills the trees of the sequences that are due */

/* Whether the pass has to store the last layer's features of all rows. */
bool eng_draft_stores_features(const struct eng_drafting *g);

/* Around the forward pass: drafting during the pass starts, and has stopped when eng_draft_pass_ends returns. */
void eng_draft_pass_starts(struct eng_drafting *g);
void eng_draft_pass_ends(struct eng_drafting *g, const struct moe_result *result);

/* The i-th due sequence was verified: n_accepted nodes of its tree are on the accepted path; 0 if verifying failed. */
void eng_draft_verified(struct eng_drafting *g, int i, const int16_t *path, int n_accepted);

/* n_new tokens were added to the sequence, n_accepted of them drafted; `ended`: it gets no more. */
void eng_draft_commit(struct eng_drafting *g, struct eng_seq *s, const struct spec_verify *v, int n_new, int n_accepted,
                      bool ended);

struct eng_pass_result {
    int n_row;
    uint64_t pass_ns;
    double experts_per_layer;
    bool may_end_early; /* as in struct moe_result */
};
/* The pass is over: the controller learns from it; drafters may be unloaded, or loaded again. */
void eng_draft_learn(struct eng_drafting *g, const struct eng_pass_result *r);

/* No pass is due: fits the cost model to the passes so far, if there are enough new ones. Takes some milliseconds. */
void eng_draft_rest(struct eng_drafting *g);

/* ---- options and reports --------------------------------------------------------------------------- */

void eng_draft_set_gamma(struct eng_drafting *g, int gamma);
void eng_draft_set_dsi(struct eng_drafting *g, enum eng_dsi_mode dsi, int lookahead);

int eng_draft_explain(const struct eng_drafting *g, char *out, size_t bytes);
void eng_draft_report(const struct eng_drafting *g, struct eng_drafts *out);

/* share[i]: the share of drafts accepted to depth i + 1 at least, for the drafter (or all together) that was chosen in
 * most steps; drafting during passes is not counted. False: none was chosen. */
bool eng_draft_survival(const struct eng_drafting *g, double *share /* [SPEC_DEPTHS] */);

struct eng_draft_times {
    uint64_t draft_ns, overlap_ns, overlap_wait_ns;
}; /* sums since open */
struct eng_draft_times eng_draft_times(const struct eng_drafting *g);
enum spec_why eng_draft_last_reason(const struct eng_drafting *g); /* of the last pass */

#endif
