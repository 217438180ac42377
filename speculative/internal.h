/* speculative/internal.h - what the files of this folder share.
 *
 *     sample.c                a row of logits to a token
 *     tree.c, verify.c        a draft, and which of its tokens are kept
 *     drafter.c, recall.c     drafts from what texts said before
 *
 *     control.c               the controller: who drafts, and how deep (control.h)
 *       passes.c, ahead.c     what passes take, alone and with drafting beside them
 *       plans.c               what each drafter promises at each depth
 *       cut.c                 which nodes are worth a row
 *       learn.c, explain.c    what a step teaches; what was decided, in words
 *     lengths.c               how much of a draft will be kept, by a network
 *     cost.c, fit.c           a pass as a formula, and its constants from measurements
 *
 *     dsi.c, simulate.c       distributed speculation as a state machine; what it and others would come to */
#ifndef SPECULATIVE_INTERNAL_H
#define SPECULATIVE_INTERNAL_H

#include "speculative/control.h"
#include "speculative/speculative.h"

/* Random numbers are hashes of where they are used.  What is drawn for another purpose than a row's own
 * choice has a stream of its own, and a draft's position is that of its root: SPEC_BLOCK looks at later
 * draws before it settles an earlier token, so no later draft may meet the same ones again. */
enum spec_purpose { SPEC_FOR_CHOICE, SPEC_FOR_DRAFT, SPEC_FOR_VERIFY, SPEC_FOR_ORACLE };

static inline uint64_t spec_stream(uint64_t seed, uint32_t choice, int64_t position, enum spec_purpose why)
{
    uint64_t h = kn_mix(seed + KN_GOLDEN);
    h = kn_mix(h + KN_GOLDEN * ((uint64_t)choice + 1));
    h = kn_mix(h + KN_GOLDEN * ((uint64_t)position + 1));
    return why == SPEC_FOR_CHOICE ? h : kn_mix(~h ^ (uint64_t)why);
}

/* The n-th of a stream: 64 bits, and a number in [0, 1). */
static inline uint64_t spec_bits(uint64_t stream, uint32_t n)
{
    return kn_mix(stream + KN_GOLDEN * ((uint64_t)n + 1));
}

static inline double spec_uniform(uint64_t stream, uint32_t n)
{
    return (double)(spec_bits(stream, n) >> 11) * 0x1p-53;
}

static inline int32_t spec_dist_id(const struct spec_dist *d, int i) { return d->token ? d->token[i] : i; }
int spec_dist_find(const struct spec_dist *d, int32_t token);       /* -1: not there */

/* After spec_target of these logits: the log probability that spec_sample would report of a token. */
float spec_logprob(const struct spec_sampler *s, const float *logits /* [n_vocab] */, int32_t token);

/* Room beside what spec_target left, until the sampler's next call. */
double *spec_room(struct spec_sampler *s);          /* [n_vocab] */

/* ---- texts that are remembered ------------------------------------------------------------------- */

/* The latest tokens of one text or of many.  Positions count what was ever added, modulo 2^32. */
#define SPEC_RECALL_LEVELS 3

struct spec_recall {
    uint32_t mask;                                  /* tokens there is room for, less one */
    uint32_t n, start;                              /* the next position; the oldest that is there */
    uint32_t run;                                   /* tokens of the text that is being added */
    uint64_t text_salt;
    int32_t  *token;                                /* [mask + 1] */
    uint32_t *head[SPEC_RECALL_LEVELS];             /* [mask + 1] latest position of a hash */
    uint32_t *before[SPEC_RECALL_LEVELS];           /* [mask + 1] the one before, of each position */
    uint64_t *salt;                                 /* of each block of tokens; NULL: one for all */
};

struct spec_match {
    const struct spec_recall *in;
    uint32_t at;                                    /* the position that follows the match */
    int length;
};

void spec_recall_take(struct spec_recall *r, struct kn_arena *a, int n_token, bool owned);
void spec_recall_forget(struct spec_recall *r);     /* everything */
void spec_recall_text(struct spec_recall *r, uint64_t salt);    /* what is added from here on is another text */
void spec_recall_add(struct spec_recall *r, int32_t token);
bool spec_recall_token(const struct spec_recall *r, uint32_t at, int32_t *out);     /* false: the text ends */

/* Puts the longest matches of the end of tail among the n best, longest first; at most `most`.  Only texts of
 * this salt are looked at. */
int spec_recall_find(const struct spec_recall *r, uint64_t salt, const int32_t *tail, int n_tail,
                     struct spec_match *best, int n, int most);

/* ---- the controller ------------------------------------------------------------------------------------- */

/* Means by number of rows: exact to 32, then eight to an octave; in between along the prior's shape. */
#define SPEC_KNOTS 96
struct spec_knots { double rows[SPEC_KNOTS], value[SPEC_KNOTS], weight[SPEC_KNOTS]; };

/* Batches that count as alike, and drafted rows per sequence that do. */
#define SPEC_SIZES  20
#define SPEC_LEVELS 19

struct spec_passes {                                /* what a pass takes, as learnt: passes.c */
    double *prior; int n_prior;                     /* [n_prior] a pass of i rows; any unit */
    bool foreseen;                                  /* somebody knew the machine: it is more than a guess */
    struct spec_knots plain, mixed;                 /* ns without drafts; and with rows of prompts */
    double noise, n_noise;                          /* how far passes are from what is expected: mean of logarithms */
    struct { double each, growth, weight; } drafted[SPEC_SIZES][SPEC_LEVELS];   /* rows drafted per sequence, and
                                                       the pass over a plain one of the same sequences */
};

int    spec_size_of(int n_due);
void   spec_knots_learn(struct spec_knots *k, double rows, double value, double memory);
double spec_knots_at(const struct spec_knots *k, const double *prior, int n_prior, double rows);    /* 0: nothing */

int    spec_passes_open(struct spec_passes *p, int most_rows);
void   spec_passes_foresee(struct spec_passes *p, const struct spec_cost_model *prior);
void   spec_passes_close(struct spec_passes *p);
bool   spec_passes_known(const struct spec_passes *p, int n_due);       /* plain ones of this size, well enough */
double spec_passes_plain(const struct spec_passes *p, int n_due);
/* hopeful: rows beyond those that were tried are taken to cost half of what is foreseen; nothing, if nothing is. */
double spec_passes_ns(const struct spec_passes *p, int n_due, int n_beside, int n_drafted, bool hopeful);
void   spec_passes_learn(struct spec_passes *p, int n_due, int n_beside, int n_drafted, double ns);
/* A pass took so much longer (shorter: < 0) than was expected, as a logarithm. */
void   spec_passes_unsettle(struct spec_passes *p, double log);
double spec_passes_unrest(const struct spec_passes *p);     /* over that of a quiet machine; at least 1 */
/* Passes with about so many drafted rows that are remembered. */
double spec_passes_weight(const struct spec_passes *p, int n_due, int n_drafted);
void   spec_passes_shift(struct spec_passes *p, double factor);         /* the machine's speed has changed */
void   spec_passes_doubt(struct spec_passes *p);                        /* drafted passes are not what they were */

struct spec_tally {                                 /* of drafts that were verified so far */
    double judged, hoped, kept;                     /* how many; sums of what was said of them, of what came true */
};

struct spec_arm {                                   /* a drafter */
    const char *name;
    int most_depth;
    bool ahead, barred;
    int of;                                         /* who drafts: itself; or, ahead, whose survivals these are */
    struct { double contention, weight; } beside[SPEC_SIZES];   /* ahead: of steps together */
    double expected, came;                          /* ahead: tokens kept per step, sums */
    double seen[SPEC_DEPTHS], seen_weight[SPEC_DEPTHS];     /* mean survival as the drafter has it, by depth - 1 */
    struct spec_tally tally[SPEC_DEPTHS], late[SPEC_DEPTHS];    /* of a long while, and of a short one */
    double truth[SPEC_DEPTHS];                      /* how much of what it says comes true: kept over hoped */
    double told[SPEC_DEPTHS], came_told[SPEC_DEPTHS];   /* spec_control_tell: sums of that, and of what drafts said */
    double draft_ns[SPEC_SIZES], draft_weight[SPEC_SIZES];  /* one draft pass */
    struct spec_cost_model foreseen;                /* its draft_ns, until one was seen; < 0: not known */
    int behind; double text_ns, text_weight;        /* tokens of texts to take in first, and what one takes */
    struct { int deepest; uint64_t next, wait; } tried[SPEC_SIZES];     /* steps: when to try again */
    uint64_t n_step, n_drafted, n_kept;
    double plain_ns, took_ns, memory;               /* lately, all steps: others' count as plain ones */
};

struct spec_habit {                                 /* of one session with one drafter */
    double seen[SPEC_DEPTHS], weight[SPEC_DEPTHS];
    double hoped, kept;
    double told[SPEC_DEPTHS];                       /* of its next draft */
    bool is_told;
};

struct spec_taken { int tree, node; };              /* of a cut */

struct spec_control {
    struct spec_control_options opt;
    struct spec_passes passes;
    struct spec_arm arm[SPEC_DRAFTERS];
    struct spec_habit *habit;                       /* [n_drafter][n_session] */
    struct spec_knots experts;                      /* distinct ones per layer */
    double *even; int n_even;                       /* if chosen evenly; 0: not known */
    bool *brought;                                  /* [n_expert] while needs are weighed: by who is kept so far, */
    struct spec_taken *taken;                       /* [n_session * SPEC_NODES] in this order */
    float *value;                                   /* [n_session][SPEC_NODES] and what each is worth */
    double stall_ns, stall_bytes;                   /* lately: waited for experts, and how much was read */
    double stall_of_ns;                             /* of passes that took so long */
    double (*hope)[SPEC_DEPTHS];                    /* [n_session] while plans are made: survival by depth */
    uint64_t step, n_learnt;
    uint64_t plain_at[SPEC_SIZES];                  /* the step that last was plain */
    struct { int drafter, depth; uint64_t since; } now[SPEC_SIZES];     /* what is on; SPEC_OFF */
    struct { int drafter, depth, size, left; } trial;
    int    doubt;                                   /* plain steps to take, for times may have changed */
    double doubt_log;                               /* of what they took, over what was expected: sum of logarithms */
    double drift[2];                                /* passes above, and below, what was expected: the same */
    double total_ns, lost_ns, debt_ns;              /* debt: what taking in texts took, and has not been charged yet */
    int    drafted_by;                              /* in the step before; SPEC_OFF */
    int    n_said;                                  /* in the step before: tokens */
    double last_expected;                           /* ahead: tokens that the last decision hoped would be kept */
    struct spec_decision last;
};

/* ---- ahead.c: drafting while the pass before verifies --------------------------------------------------- */

/* Rows drafted, and kept, in a step that verifies what the step before drafted so deep. */
struct spec_ahead_share { double rows, kept; };
struct spec_ahead_share spec_ahead_share(const double *what /* [depth] survival */, int depth);
double spec_ahead_contention(const struct spec_control *c, const struct spec_arm *a, int size, bool hopeful);
double spec_ahead_ns(double pass_ns, double draft_ns, double contention);       /* together */
double spec_ahead_yield(const struct spec_arm *a);      /* what was kept, over what was expected */
/* Together it took so long, each alone would have. */
void   spec_ahead_learn(struct spec_arm *a, int size, double took_ns, double pass_ns, double draft_ns);
void   spec_ahead_count(struct spec_arm *a, double expected, int n_kept);

/* What drafts of a session are expected to survive to each depth: what = [depth], falling. */
void spec_control_expect(const struct spec_control *c, int drafter, int session, int depth, double *what);
/* How much of what the drafter says of nodes comes true, by depth - 1. */
void spec_control_truth(const struct spec_control *c, int drafter, int session, double *out /* [SPEC_DEPTHS] */);

/* ---- plans.c: what each drafter promises at each depth --------------------------------------------------- */

struct spec_plan {
    int drafter, depth;                             /* SPEC_OFF: none */
    double rows, tokens;                            /* of all sequences, theirs without drafts among them */
    double draft_ns, pass_ns, contention;
    double gain;                                    /* tokens a second, over those of a plain step */
    double bar;                                     /* nodes that survive so often are taken */
};

struct spec_ask {                                   /* what plans are made for */
    const int *session;                             /* [n_due] */
    int n_due, n_beside, size;                      /* size: that they count as, spec_size_of */
    int room;                                       /* rows that drafts may have */
    double off_ns, token_ns;                        /* a step without drafts, and a token of a plain one */
    struct spec_plan known[SPEC_DRAFTERS][SPEC_DEPTHS + 1];     /* what is expected of the depths that were tried */
};

/* For depths 1 .. most. */
void spec_plans_make(struct spec_control *c, const struct spec_ask *q, int drafter, int most, bool hopeful,
                     struct spec_plan *out /* [most + 1] */);
struct spec_plan spec_plan_best(const struct spec_plan *p, int least, int most);
void spec_plan_expect(const struct spec_control *c, int drafter, int session, int depth, bool hopeful, double *what);
bool spec_control_seen(const struct spec_control *c, int drafter);      /* a few of its drafts */
/* One draft pass of n sequences: alone, or, if that was never tried, beside others'.  < 0: not known. */
double spec_control_draft_ns(const struct spec_control *c, int drafter, int n_due);

#endif
