/* speculative/internal.h - declarations shared by the files of this folder.
 *
 *     sample.c                a row of logits to a token
 *       params.c              the parameters: defaults, and their ranges
 *       penalties.c           changes logits by the history: penalties, DRY, biases, bans
 *       steps.c               removes tokens: top-n-sigma, typical-p, XTC, and a request's own order of steps
 *     tree.c, verify.c        drafts, and their accepted tokens
 *     drafter.c, recall.c     drafts from earlier tokens, without a model
 *       copy.c                  the place in a reference text that an answer has reached
 *       lookahead.c             n-grams that the target makes in rows beside the drafts
 *
 *     control.c               the controller: which drafter, how deep (control.h)
 *       passes.c, overlap.c     pass times, alone and overlapped with drafting
 *       plans.c               expected gain of each drafter at each depth
 *       cut.c                 which nodes to verify
 *       learn.c, explain.c    learns from a step; prints decisions and accounts
 *     lengths.c               predicts accepted lengths by a network
 *     cost.c, fit.c           the cost model, and its fit to measurements
 *       observe.c             passes of real requests, as points of the fit
 *
 *     dsi.c, simulate.c       distributed speculation as a state machine; simulated times */
#ifndef SPECULATIVE_INTERNAL_H
#define SPECULATIVE_INTERNAL_H

#include "speculative/control.h"
#include "speculative/speculative.h"

#include <float.h>
#include <string.h>

/* Random numbers are hashes of seed, choice, position and purpose; each purpose has a stream of its own.  For SAMPLE
 * and XTC the position is that of the row's token, for ORACLE that of the drafted token.  For DRAFT and VERIFY it is
 * that of the draft's first token, for the whole draft: SPEC_BLOCK looks at later draws before it settles an earlier
 * token, so a later draft must not get the same numbers again. */
enum spec_purpose { SPEC_FOR_SAMPLE, SPEC_FOR_DRAFT, SPEC_FOR_VERIFY, SPEC_FOR_ORACLE, SPEC_FOR_XTC };

static inline uint64_t spec_stream(uint64_t seed, uint32_t choice, int64_t position, enum spec_purpose why)
{
    uint64_t h = kn_mix(seed + KN_GOLDEN);
    h = kn_mix(h + KN_GOLDEN * ((uint64_t)choice + 1));
    h = kn_mix(h + KN_GOLDEN * ((uint64_t)position + 1));
    return why == SPEC_FOR_SAMPLE ? h : kn_mix(~h ^ (uint64_t)why);
}

/* The n-th number of a stream: 64 bits, or uniform in [0, 1). */
static inline uint64_t spec_bits(uint64_t stream, uint32_t n) { return kn_mix(stream + KN_GOLDEN * ((uint64_t)n + 1)); }

static inline double spec_uniform(uint64_t stream, uint32_t n)
{
    return (double)(spec_bits(stream, n) >> 11) * 0x1p-53;
}

static inline int32_t spec_dist_id(const struct spec_dist *d, int i) { return d->token ? d->token[i] : i; }
int spec_dist_find(const struct spec_dist *d, int32_t token); /* index; -1: not in the distribution */

/* After spec_target with these logits: the log probability that spec_sample would report for the token. */
float spec_logprob(const struct spec_sampler *s, const float *logits /* [n_vocab] */, int32_t token);

/* Scratch memory in which no result of spec_target lies; the sampler's next call overwrites it. */
double *spec_sampler_scratch(struct spec_sampler *s); /* [n_vocab] */

/* ---- a sampler, shared by sample.c, penalties.c and steps.c ----------------------------------------- */

#define SPEC_BUCKETS 2048

struct spec_sampler {
    const struct kn_ops *ops;
    int n_vocab;
    float *z;         /* [n_vocab] processed logits; -INFINITY: never sampled */
    float *prob;      /* [n_vocab] */
    int32_t *support; /* [n_vocab] */
    uint64_t *heap;   /* [n_vocab] keys; between calls, spec_sampler_scratch */
    uint32_t *count;  /* [n_vocab] zero between calls */
    uint16_t *bucket; /* [n_vocab] of the listed tokens */
    int32_t *listed;  /* [n_vocab] tokens that an operation has listed, ascending */
    uint64_t weight_in[SPEC_BUCKETS];
    int count_in[SPEC_BUCKETS];
    double most, log_first;  /* of the row after step 0: largest logit, its log probability */
    struct spec_params left; /* the parameters that are left to apply after spec_take_steps */
};

/* Step 0. */
static inline float spec_clean_logit(float z)
{
    if (!(z > -__builtin_inff()))
        return -__builtin_inff();
    return z < FLT_MAX ? z : FLT_MAX;
}

int32_t spec_largest(const struct spec_sampler *s); /* the lowest id with the largest z */
/* prob = softmax((z - z[first]) / temperature) over all tokens. */
void spec_probabilities(struct spec_sampler *s, int32_t first, double temperature);
/* Sets z to -INFINITY outside the shortest of the prefixes of top-k, top-p and min-p. */
void spec_keep_prefix(struct spec_sampler *s, const struct spec_params *p);

/* penalties.c: the parts of step 1. */
void spec_penalise_repeats(struct spec_sampler *s, const struct spec_params *p, const int32_t *history, int n_history);
void spec_penalise_sequences(struct spec_sampler *s, const struct spec_params *p, const int32_t *history,
                             int n_history);
void spec_constrain(struct spec_sampler *s, const struct spec_params *p, const int32_t *history, int n_history,
                    int64_t position);

/* steps.c: whether any step beside the prefixes applies; and those steps, on z.  Returns the parameters for the rest,
 * valid until the sampler's next call. */
bool spec_has_steps(const struct spec_params *p);
const struct spec_params *spec_take_steps(struct spec_sampler *s, const struct spec_params *p, const int32_t *history,
                                          int n_history, int64_t position);

/* A heap of keys of kn_rank_key(), the largest on top. */
static inline void spec_heap_sink(uint64_t *heap, int n, int i)
{
    uint64_t key = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] > heap[child])
            child++;
        if (heap[child] <= key)
            break;
        heap[i] = heap[child];
    }
    heap[i] = key;
}

static inline uint64_t spec_heap_pop(uint64_t *heap, int n)
{
    uint64_t top = heap[0];
    heap[0] = heap[n - 1];
    spec_heap_sink(heap, n - 1, 0);
    return top;
}

/* Tokens and weight that the support may still take. */
struct spec_budget {
    int64_t n;
    uint64_t weight;
};

/* 2^44 leaves bits for the sum of a row, which is 1 up to rounding. */
static inline uint64_t spec_weight_of(double prob) { return (uint64_t)(prob * 0x1p44); }

/* Subtracts count and weight from *left; false, and *left unchanged: they use up the rest, the support ends here. */
static inline bool spec_budget_take(struct spec_budget *left, int count, uint64_t weight)
{
    if (count >= left->n || weight >= left->weight)
        return false;
    left->n -= count;
    left->weight -= weight;
    return true;
}

/* ---- remembered tokens --------------------------------------------------------------------------- */

/* A ring of the latest tokens of one sequence or of several.  Positions count all tokens ever added, modulo 2^32. */
#define SPEC_RECALL_LEVELS 3

struct spec_recall {
    uint32_t mask;     /* capacity in tokens, less one */
    uint32_t n, start; /* the next position; the oldest stored one */
    uint32_t run;      /* tokens added since spec_recall_start_sequence */
    uint64_t sequence_salt;
    int32_t *token;                       /* [mask + 1] */
    uint32_t *head[SPEC_RECALL_LEVELS];   /* [mask + 1] by hash of the tokens before a position: the latest position */
    uint32_t *before[SPEC_RECALL_LEVELS]; /* [mask + 1] by position: the previous position with the same hash */
    uint64_t *salt;                       /* one for each block of tokens; NULL: one salt for all */
};

struct spec_match {
    const struct spec_recall *in;
    uint32_t at; /* the position after the match */
    int length;
    const int32_t *gram; /* [n_gram] in NULL: the n-gram of a pool that begins with the match */
    int n_gram;
};

/* Capacity for n_token tokens, rounded up to a power of two.  owned: stores the salt of each sequence; else all
 * sequences must have the same salt. */
void spec_recall_init(struct spec_recall *r, struct kn_arena *a, int n_token, bool owned);
void spec_recall_clear(struct spec_recall *r);                         /* all tokens */
void spec_recall_start_sequence(struct spec_recall *r, uint64_t salt); /* starts another sequence */
void spec_recall_add(struct spec_recall *r, int32_t token);
bool spec_recall_token(const struct spec_recall *r, uint32_t at, int32_t *out); /* false: the sequence ends */

/* Finds earlier places with the same tokens as the end of tail, and merges the longest of them into best[n], longest
 * first, `most` entries at most; returns the new n.  Only sequences with this salt are searched. */
int spec_recall_find(const struct spec_recall *r, uint64_t salt, const int32_t *tail, int n_tail,
                     struct spec_match *best, int n, int most);

/* ---- lookahead decoding: lookahead.c ---------------------------------------------------------------------- */

struct spec_window {
    int n_column, n_level;                                    /* n_level: tokens of an n-gram, less one */
    int32_t token[SPEC_WINDOW_GRAM - 1][SPEC_WINDOW_COLUMNS]; /* [level][column] */
    int32_t next[SPEC_WINDOW_COLUMNS]; /* the target's token behind each column, in this pass; -1: not computed */
    uint64_t n_random;
};

#define SPEC_POOL_SETS 512
#define SPEC_POOL_WAYS 8
struct spec_pool {
    int n_gram;
    int32_t *token; /* [SPEC_POOL_SETS][SPEC_POOL_WAYS][n_gram] negative: empty */
};

void spec_window_start(struct spec_window *w, int n_column, int n_gram);
/* n_new tokens were added to the sequence, the last of them `last`; text has all its tokens. */
void spec_window_advance(struct spec_window *w, const struct spec_recall *text, int n_new, int32_t last);
/* Adds rows of the window to t, at most n_node nodes, with this value of a row; returns the number of new nodes. */
int spec_window_lay(const struct spec_window *w, struct spec_tree *t, int n_node, float value);
/* After the pass of a tree with the window's rows: target_token[i] is the target's token after node i if the node wants
 * it; -1: not known. */
void spec_window_learn(struct spec_window *w, const struct spec_tree *t, const int32_t *target_token);
/* Adds the n-grams of this pass to the pool: after spec_window_learn, before spec_window_advance. */
void spec_window_give(const struct spec_window *w, struct spec_pool *pool);

void spec_pool_init(struct spec_pool *p, struct kn_arena *a, int n_gram);
void spec_pool_clear(struct spec_pool *p);
void spec_pool_add(struct spec_pool *p, const int32_t *gram /* [n_gram] */);
/* The n-grams whose first tokens are the last ones of tail, longest match first. */
int spec_pool_find(const struct spec_pool *p, const int32_t *tail, int n_tail, struct spec_match *out, int most);

/* ---- the controller ------------------------------------------------------------------------------------- */

/* Means of a value by number of rows: one knot for each number up to 32, then eight for each doubling.  Between two
 * knots spec_knots_at follows the shape of a prior. */
#define SPEC_KNOTS 96
struct spec_knots {
    double rows[SPEC_KNOTS], value[SPEC_KNOTS], weight[SPEC_KNOTS];
};

/* Classes of batch size, and of drafted rows per sequence. */
#define SPEC_SIZES  20
#define SPEC_LEVELS 19

struct spec_passes { /* pass times as learnt: passes.c */
    double *prior;
    int n_prior;                    /* [n_prior] time of a pass with i rows, in any unit */
    bool forecast;                  /* the prior is a forecast by a cost model, not the default */
    double kv_ns, context;          /* time of a position in the prior; positions of a sequence, which it includes */
    struct spec_knots plain, mixed; /* ns by rows: without drafts; with prompt rows */
    double noise, n_noise;          /* mean |log(pass / expected)|, over n_noise passes */
    struct {
        double each, growth, weight; /* mean drafted rows per sequence; mean pass time over that of a plain pass of the
                                        same sequences; passes in both means, decayed */
    } drafted[SPEC_SIZES][SPEC_LEVELS];
};

int spec_size_of(int n_due);
double spec_size_middle(int size); /* the mean batch size of a class */
void spec_knots_learn(struct spec_knots *k, double rows, double value, double memory);
/* enough: passes in a mean; knots with fewer are averaged with their neighbours.  0: no knots. */
double spec_knots_at(const struct spec_knots *k, const double *prior, int n_prior, double rows, double enough);

int spec_passes_open(struct spec_passes *p, int max_rows);
void spec_passes_set_forecast(struct spec_passes *p, const struct spec_cost_model *prior);
/* The sequences due have `context` positions each, on average: the prior gets the time to read them. */
void spec_passes_set_context(struct spec_passes *p, double context);
/* The time of a plain pass over that of a pass with drafts: as forecast, and as measured with about n_drafted drafted
 * rows; 0: not forecast, or not measured. */
double spec_passes_forecast_efficiency(const struct spec_passes *p, int n_due, int n_drafted);
double spec_passes_measured_efficiency(const struct spec_passes *p, int n_due, int n_drafted);
void spec_passes_close(struct spec_passes *p);
/* Passes without drafts of about this size were measured: without prompt rows, or, if there are some, with as many in
 * all. */
bool spec_passes_has_near_size(const struct spec_passes *p, int n_due, int n_beside);
/* Enough of them for drafts with this gain; or none, but passes of more sequences, if the gain remains when a pass of this
 * size takes as little as its share of theirs. */
bool spec_passes_has_size(const struct spec_passes *p, int n_due, int n_beside, double gain);
/* Is the gain too high to be noise of the plain passes measured? */
bool spec_passes_is_clear(const struct spec_passes *p, int n_due, int n_beside, double gain);
bool spec_passes_has_plain(const struct spec_passes *p); /* a pass without drafts and prompt rows, of any size */
double spec_passes_plain_ns(const struct spec_passes *p, int n_due);
/* The expected time of a pass; 0: nothing measured yet.  hopeful, for trials: the means of drafted passes are lowered
 * by their noise, and rows beyond the measured ones are assumed to add half of the forecast time, or none without a
 * forecast. */
double spec_passes_ns(const struct spec_passes *p, int n_due, int n_beside, int n_drafted, bool hopeful);
void spec_passes_learn(struct spec_passes *p, int n_due, int n_beside, int n_drafted, double ns);
/* log: the logarithm of one pass's time over its expected time. */
void spec_pass_noise_add(struct spec_passes *p, double log);
double spec_pass_noise_ratio(const struct spec_passes *p); /* noise over that of a quiet machine; at least 1 */
/* The weight, in passes, of the measurements with about n_drafted drafted rows at this batch size. */
double spec_passes_n_measured(const struct spec_passes *p, int n_due, int n_drafted);
void spec_passes_scale(struct spec_passes *p, double factor); /* all times change by factor */
void spec_passes_lower_weights(struct spec_passes *p);        /* less weight for drafted passes */

struct spec_tally {                         /* decayed sums over verified drafts */
    double n_verified, estimated, accepted; /* drafts; survival as the drafter estimates it; accepted nodes */
};

struct spec_arm { /* an entry of spec_control_options.drafter: a drafter, or the use of one during passes */
    const char *name;
    int max_depth;
    bool overlap, disabled;
    int of; /* the drafter that drafts: this entry itself, or another one if overlap */
    struct {
        double contention, weight; /* mean, and the number of overlapped steps in it */
    } overlapped[SPEC_SIZES];
    double expected, accepted; /* overlapped: sums of accepted tokens, expected and actual */
    double survival[SPEC_DEPTHS],
        survival_weight[SPEC_DEPTHS]; /* by depth - 1: mean of the estimated survivals' sum in a draft, at most 1 */
    struct spec_tally tally[SPEC_DEPTHS], recent[SPEC_DEPTHS]; /* over a long time; over a short time */
    double correction[SPEC_DEPTHS];                            /* accepted over estimated survival, by depth - 1 */
    double predicted[SPEC_DEPTHS], /* sums over the drafts with a prediction: survival by spec_control_set_survival, */
        reported[SPEC_DEPTHS];     /* and survival by the drafter's estimate, corrected */
    double draft_ns[SPEC_SIZES], draft_weight[SPEC_SIZES]; /* mean of one draft pass; steps in it, decayed */
    uint32_t n_draft_step[SPEC_SIZES];                     /* steps that were measured */
    double forecast_weight;                                /* of the forecast, decayed likewise */
    struct spec_cost_model forecast;                       /* a forecast of draft_ns; < 0: not known */
    double first_survival;                                 /* survival per depth before any draft was seen */
    int n_prefill;                                         /* tokens that it must prefill before its next draft */
    double text_ns, text_weight;                           /* mean time to prefill a token, and prefills in this mean */
    struct {
        int deepest;         /* depth of its deepest trial; 0: none */
        uint64_t next, wait; /* step from which it may be tried; steps from that trial to the one after */
    } tried[SPEC_SIZES];
    uint64_t n_step, n_drafted, n_accepted;
    /* Recent sums over all steps: expected time of plain steps for the same tokens, and time taken; a step without this
     * drafter adds its time to both.  memory: as set by spec_control_set_memory_value. */
    double plain_ns, took_ns, memory;
};

struct spec_session_stats { /* of one session with one drafter */
    double survival[SPEC_DEPTHS], weight[SPEC_DEPTHS];
    double estimated, accepted;
    double predicted[SPEC_DEPTHS]; /* survival of its next draft: spec_control_set_survival */
    bool has_prediction;
};

struct spec_cut_node {
    int tree, node;
}; /* a node of a cut */

struct spec_control {
    struct spec_control_options opt;
    struct spec_passes passes;
    struct spec_arm arm[SPEC_DRAFTERS];
    struct spec_session_stats *habit; /* [n_drafter][n_session] */
    struct spec_knots experts;        /* distinct experts per layer, by rows */
    double *uniform_experts;          /* [n_uniform] the same by rows, under uniform routing */
    int n_uniform;                    /* 0: not known */
    double full_rows;                 /* of spec_cost_full_rows; 0: not known */
    bool *loaded;                     /* [n_expert] during a cut: loaded by nodes taken so far */
    struct spec_cut_node *taken;      /* [n_session * SPEC_NODES] during a cut: nodes in the order of taking */
    float *value;                     /* [n_session][SPEC_NODES] during a cut: corrected survival */
    double stall_ns, stall_bytes;     /* recent: time waiting for experts, bytes read */
    double stall_pass_ns;             /* recent: time of the same passes */
    double (*hope)[SPEC_DEPTHS];      /* [n_session] during planning: survival by depth; */
    double *pass_ns[2];               /* [n_session * SPEC_DEPTHS + 2] by drafted rows: of spec_passes_ns, hopeful or
                                         not; 0: not computed yet */
    uint64_t step;
    uint64_t
        n_since_plain[2][SPEC_SIZES]; /* steps since the last one without drafts: without prompt rows, and with them */
    struct {
        int drafter, depth;
        uint64_t since;
    } active[SPEC_SIZES]; /* the plan that is followed, and its first step; drafter SPEC_OFF: none */
    struct {
        int drafter, depth, size, left;
        int n_draft, n_accepted; /* so far: drafts, and those with an accepted token */
    } trial;                     /* the plan on trial; left: its remaining steps, 0: no trial */
    int n_recheck;               /* plain steps still to take, to see if pass times have changed */
    double recheck_log;          /* sum of log(pass / expected) over them */
    double drift[2];             /* cumulative log(pass / expected): above, and below */
    /* The account: time of all steps; time lost to drafts; drafters' prefill time that lost_ns does not include yet. */
    double total_ns, lost_ns, uncharged_prefill_ns;
    double saved_ns;          /* by the drafts of the last step, */
    double prefill_ns;        /* and the drafters' prefill in it */
    int last_drafter;         /* drafter of the step before; SPEC_OFF */
    int n_committed;          /* tokens committed in the step before */
    double expected_accepted; /* overlap: accepted tokens expected by the last decision */
    struct spec_decision last;
};

/* ---- overlap.c: drafting that overlaps with the pass ------------------------------------------------------ */

/* Mean drafted rows and accepted nodes of a sequence per step, when a step verifies the draft of the step before. */
struct spec_overlap_mean {
    double rows, accepted;
};
struct spec_overlap_mean spec_overlap_mean(const double *what /* [depth] survival */, int depth);
double spec_overlap_contention(const struct spec_control *c, const struct spec_arm *a, int size, bool hopeful);
double spec_overlap_ns(double pass_ns, double draft_ns, double contention); /* time of a pass and a draft at once */
double spec_overlap_accept_ratio(const struct spec_arm *a);                 /* accepted tokens over expected ones */
/* took_ns: measured time of an overlapped step; pass_ns, draft_ns: expected times without the overlap. */
void spec_overlap_learn_contention(struct spec_arm *a, int size, double took_ns, double pass_ns, double draft_ns);
void spec_overlap_count_accepted(struct spec_arm *a, double expected, int n_accepted);

/* The expected survival of a session's drafts, by depth - 1, non-increasing. */
void spec_control_survival(const struct spec_control *c, int drafter, int session, int depth, double *what);
/* The factor from survival as the drafter estimates it to the acceptance rate, by depth - 1. */
void spec_control_correction(const struct spec_control *c, int drafter, int session, double *out /* [SPEC_DEPTHS] */);

/* ---- plans.c: expected gain of each drafter at each depth ------------------------------------------------ */

struct spec_plan {
    int drafter, depth;  /* SPEC_OFF: none */
    double rows, tokens; /* expected: due and drafted rows of the pass; new tokens of all sequences */
    double draft_ns, pass_ns, contention;
    double gain;           /* tokens per second over a plain step's */
    double least_survival; /* nodes with at least this survival are taken */
};

struct spec_plan_input {       /* input of planning */
    const int *session;        /* [n_due] */
    int n_due, n_beside, size; /* size: the class, spec_size_of */
    int row_budget;            /* rows available for drafts */
    double off_ns, token_ns;   /* time of a step without drafts; a plain step's time per token */
    struct spec_plan known[SPEC_DRAFTERS][SPEC_DEPTHS + 1]; /* plans made with hopeful false, by depth */
};

/* Fills in out[1] .. out[most], a plan for each depth.  hopeful, to find trials: survivals and pass times that were
 * measured little are assumed to be better than their estimates. */
void spec_plans_make(struct spec_control *c, const struct spec_plan_input *q, int drafter, int most, bool hopeful,
                     struct spec_plan *out /* [most + 1] */);
struct spec_plan spec_plan_best(const struct spec_plan *p, int least, int most);
void spec_plan_survival(const struct spec_control *c, int drafter, int session, int depth, bool hopeful, double *what);
bool spec_control_has_seen_drafts(const struct spec_control *c, int drafter); /* at least 4 of its drafts */
/* Time of one draft pass for n_due sequences: measured without overlap, else forecast, else measured during passes;
 * < 0: not known.  hopeful, for trials: the longer ago it was measured, or forecast, the less of it is assumed. */
double spec_control_draft_ns(const struct spec_control *c, int drafter, int n_due, bool hopeful);
/* The most that one draft pass of the drafter counts as, at this batch size: more is an outlier. */
double spec_control_most_draft_ns(const struct spec_control *c, int drafter, int n_due);
void spec_control_age_drafts(struct spec_control *c); /* after a step without drafts: measured times lose weight */

#endif
