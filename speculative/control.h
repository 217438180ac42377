/* speculative/control.h - decides whether to draft, with which drafter, how deep, and which nodes to verify.
 *
 *     open -> per step: [ decide -> (draft) -> cut -> (verify) -> learn ]* -> close
 *
 * A plain step (without drafts) with n sequences due takes T(n) and yields n tokens.  A step with k drafted rows takes
 * D + T(n + k), D being the time to draft, and yields n tokens plus the accepted ones.  The controller learns from the
 * steps themselves
 *     T         by rows, for plain steps; and the ratio of steps with drafts to plain ones, by n and by k / n,
 *     D         by drafter and n,
 *     accepted  by drafter, session and depth, as a correction of the survival that drafters estimate;
 * and chooses the plan with most tokens per second, where a token is worth T(n) / n.  Memory traffic enters through the
 * measured times: rows that need experts from disk make T steep, rows that share experts with other requests' rows do
 * not.
 *
 * Never slower.  Drafts stay off until T(n) is known, from passes of about this size or, beside prompt rows, of about
 * as many rows in all; passes of more sequences are enough for a gain that remains at the least time that they allow.
 * They are turned on only for an expected gain.  Between steps with drafts a plain step is taken now and then so that
 * T(n) stays up to date.  Unknown drafters and depths are tried, a few steps at a time, and more rarely after each
 * failure; the trial is the plan with the highest expected gain that the account of lost time can pay for.  Once a
 * drafter has run, depths without a trial are estimated from the forecast pass time and from the survival of its
 * drafts, and the first step corrects the estimate.  The account: the time lost is that of steps with drafts less that
 * of plain steps for the same tokens; its limit is the time of a few plain steps plus 0.8 % of the time so far, of
 * which at most the time of 4000 plain steps counts.  At the limit drafting stops, whatever the estimates are.  The
 * time in which a drafter prefills its own cache is charged over several steps, so that drafts with a gain can pay for
 * it.
 *
 * Overlap (DSI).  A drafter may draft while the pass verifies the draft before.  A step then takes
 *     max(T, D) + contention min(T, D)
 * instead of T + D: contention is the competition of both for cores, memory and disk.  It is learnt from overlapped
 * steps and from T and D alone; before the first such step it is the share of a pass that is not spent waiting for
 * experts.  overlap.c says how a wrong guess costs the next draft.
 *
 * A drafter without cost (an n-gram index) needs no decision: it drafts every time, and the cut may remove all nodes.
 *
 * Under SPEC_COUPLED the controller may look at every token.  Under the other rules a choice must not depend on drawn
 * tokens: nodes[] is the decision, made before the draws, and the cut keeps every node.
 *
 * Times are parameters: there is no clock here, and no allocation after open.  One thread. */
#ifndef SPECULATIVE_CONTROL_H
#define SPECULATIVE_CONTROL_H

#include "speculative/cost.h"
#include "speculative/speculative.h"

#define SPEC_DRAFTERS 8
#define SPEC_DEPTHS   16   /* the deepest draft */
#define SPEC_OFF      (-1) /* no drafter: plain step */
#define SPEC_AUTO     (-1)

struct spec_control_options {
    int n_session; /* sessions 0 .. n_session - 1; at most so many are due */
    int n_drafter;
    struct {
        const char *name; /* caller's, until close */
        int max_depth;
        bool overlap;
        int of; /* if overlap: the drafter that this entry uses during passes */
    } drafter[SPEC_DRAFTERS];
    int max_rows;    /* of one pass; 0: no limit */
    int max_drafted; /* drafted rows of one pass; 0: no limit */
    int n_expert;    /* expert numbers in spec_need are below it; 0: spec_cut.need is never set */
    enum spec_rule rule;
    int gamma; /* SPEC_AUTO, or a fixed depth for drafter 0; 0: off */
};

struct spec_control;
int spec_control_open(struct spec_control **out, const struct spec_control_options *opt);
void spec_control_close(struct spec_control *c);

/* Before the first step: forecasts from a cost model of the machine.  pass: the time of a pass; the controller uses the
 * ratio of two such times, to extend measured times to other numbers of rows.  draft: one draft pass of each drafter
 * takes ns + row_ns phi(sequences), in real nanoseconds and with the ridge and growth of pass; ns < 0 or draft NULL:
 * not known.  Without this call the assumed pass time is between constant and proportional to the rows, and depths are
 * found by trials. */
struct spec_draft_forecast {
    double ns, row_ns;
    double accept; /* acceptance rate of one drafted token in earlier runs; 0: not known */
};
void spec_control_set_forecast(struct spec_control *c, const struct spec_cost_model *pass,
                               const struct spec_draft_forecast *draft /* [n_drafter] */);

/* Before the next decision: the positions of context of a due sequence, on average. */
void spec_control_set_context(struct spec_control *c, double context);

/* A new sequence starts in the session; the estimates of the old one are dropped. */
void spec_control_begin(struct spec_control *c, int session);

/* Sets the expected survival of this drafter's next draft by depth, from a predictor that looks at the sequence itself
 * (lengths.h), in place of the average of the session's last drafts.  Holds until the next call or
 * spec_control_begin; NULL: no prediction.  The controller scales it, for each depth, by the survival of the drafter's
 * earlier drafts over their predicted survival. */
void spec_control_set_survival(struct spec_control *c, int drafter, int session,
                               const double *survival /* [SPEC_DEPTHS] */);

/* Before the next decision: the drafter's cache lacks n_text tokens of the due sequences, the last token of each not
 * counted.  No trial starts if the time to prefill them is too long for the account. */
void spec_control_set_n_prefill(struct spec_control *c, int drafter, int n_text);

/* ---- before drafting ------------------------------------------------------------------------------ */

enum spec_why {
    SPEC_WHY_NONE_DUE,         /* no session is due, or there is no drafter */
    SPEC_WHY_FIXED,            /* gamma is set */
    SPEC_WHY_LEARN,            /* off: the time of a plain step is not known well enough */
    SPEC_WHY_REFRESH,          /* off: the time of a plain step was last measured long ago */
    SPEC_WHY_NO_GAIN,          /* off: no plan gains enough */
    SPEC_WHY_LOSS_LIMIT,       /* off: the account is used up */
    SPEC_WHY_UNLOADED,         /* off: the drafters are unloaded */
    SPEC_WHY_GAINS,            /* on: most tokens per second */
    SPEC_WHY_SMALL_DIFFERENCE, /* on: another plan gains a little more, too little to change */
    SPEC_WHY_TRIAL,            /* on: a trial, to measure */
    SPEC_WHY_FREE,             /* on: drafting costs almost nothing; the cut decides */
    SPEC_WHY_COUNT
};

struct spec_decision {
    int drafter, depth; /* SPEC_OFF and 0, or drafter and draft passes */
    enum spec_why why;
    int n_due, n_beside;
    double off_ns;                 /* expected time of the pass without drafts; 0: not known */
    double rows, tokens;           /* expected of the plan; off: of the best rejected plan */
    double draft_ns, pass_ns;      /* expected of the same plan */
    double plain_experts, experts; /* distinct experts per layer, off and on; 0: not known */
    double gain, need;             /* tokens per second over a plain step's; least gain required */
    int best_drafter, best_depth;  /* the plan that rows to need describe; SPEC_OFF: none */
    struct spec_target {           /* MoESD's terms for the pass of this plan; without a plan, with a row more each */
        double rows;
        double efficiency, predicted; /* target efficiency: measured (0: not yet), and as forecast (0: no forecast) */
        double experts, even;         /* distinct experts per layer: measured (0: not yet), and N(rows) */
        double full_rows;             /* T_thres; 0: not known */
    } target;
    struct spec_overlap_plan { /* the best overlapped plan; depth 0: none */
        int depth;
        double draft_ns, pass_ns, contention, gain; /* draft_ns, pass_ns: without the overlap */
    } overlap;
    double lost_ns, loss_limit_ns; /* the account */
};

/* n_due sequences need a token; n_beside prompt rows share the pass.  nodes[i] is the number of nodes to draft for
 * session[i], at most depth deep; 0: none. */
void spec_control_decide(struct spec_control *c, const int *session /* [n_due] */, int n_due, int n_beside,
                         struct spec_decision *out, int *nodes /* [n_due] */);

/* In place of spec_control_decide, for a step in which no drafter can draft for any of the sequences due: a plain one.  why:
 * SPEC_WHY_NONE_DUE or SPEC_WHY_UNLOADED. */
void spec_control_decide_plain(struct spec_control *c, int n_due, int n_beside, enum spec_why why,
                               struct spec_decision *out);

/* Writes one line, truncated to size; returns its full length.  "draft: model, depth 3 (highest expected gain);
 * 16.0 rows for 9.71 tokens, draft 1.20 + pass 44.10 ms; without drafts 4 rows in 31.00 ms; gain 1.66 (needs 1.03);
 * lost 0.0 of at most 310.0 ms"; if a drafter can overlap also "; during the pass, depth 3: draft 36.00 ms, pass
 * 44.10 ms, contention 0.20, gain 1.71" */
int spec_decision_text(const struct spec_control *c, const struct spec_decision *d, char *out, size_t size);
const char *spec_why_text(enum spec_why why);

/* ---- before verifying ----------------------------------------------------------------------------- */

/* The experts outside memory that a node is expected to touch, by the caller's own numbers below n_expert; expert NULL:
 * n experts without numbers, shared with other nodes as under uniform routing. */
struct spec_need {
    const int32_t *expert;
    int n;
};

struct spec_cut {
    int session;
    const struct spec_tree *tree; /* as drafted; survival as the drafter estimates it */
    int n_requested;              /* nodes asked of the drafter; 0: it was not asked */
    const struct spec_need *need; /* [tree->n]; NULL: not known */
    bool keep[SPEC_NODES];        /* out: for spec_tree_prune */
    bool blind;                   /* out: also for it */
    int n_keep;
};

/* Chooses the nodes to verify, for the drafts of the last decision, with one budget of rows for all.  The net value of
 * a node is its survival times the time of a token, less the time that its row, and the bytes of experts that no node
 * before it has loaded, add to the pass.  Nodes are taken by net value, largest first, up to the budget; the number
 * kept is the one with the largest sum of net values.  So a node that costs more than its value is kept if the nodes
 * after it make up for it.  Under SPEC_RATIO and SPEC_BLOCK, and with a fixed gamma, all nodes within the budget are
 * kept, but of the rows of lookahead windows only those worth a row's time; a trial without overlap keeps as many as its
 * plan.  Rows of a window that reach no row with an answer (wants_target_token) are never kept.  expert_bytes: of one expert, for need. */
void spec_control_cut(struct spec_control *c, struct spec_cut *cut, int n, double expert_bytes);

/* ---- after the step ------------------------------------------------------------------------------- */

struct spec_session_outcome {
    int session;
    const struct spec_tree *tree; /* as verified; NULL: nothing was drafted */
    int n_accepted;               /* accepted nodes, rows of lookahead windows included */
    const int16_t *path;          /* [n_accepted] these nodes; NULL: the tree has no row of a window */
};

struct spec_outcome_of_pass {      /* the measurements of one step */
    int n_row;                     /* rows of the pass: prompt rows, due rows and drafted rows */
    double draft_ns, pass_ns;      /* time to draft; time of the step after it */
    double stall_ns, missed_bytes; /* part of pass_ns waiting for experts; bytes of experts read, not prefetched */
    double experts;                /* distinct ones per layer; 0: not known */
    int n_text;                    /* tokens that drafters prefilled before they drafted */
    double overlap_ns;             /* overlapped drafting: its time, */
    int n_overlap_pass;            /* and its draft passes */
    const struct spec_session_outcome *outcome; /* [n_due], in the order of decide */
    int n_due, n_beside;
};
void spec_control_learn(struct spec_control *c, const struct spec_outcome_of_pass *step);

/* The measured times of the drafter's draft passes, as points of a fit.  Returns their number. */
struct spec_fit_point;
int spec_control_draft_points(const struct spec_control *c, int drafter, struct spec_fit_point *out, int most);
/* The acceptance rate of the first tokens of the drafter's drafts; 0: too few drafts. */
double spec_control_accept(const struct spec_control *c, int drafter);

/* ---- accounts ------------------------------------------------------------------------------------- */

enum spec_verdict {
    SPEC_VERDICT_UNTRIED,
    SPEC_VERDICT_PAYS,
    SPEC_VERDICT_LOSES,
    SPEC_VERDICT_MEMORY_WORTH_MORE /* gains less than the same memory as expert cache would */
};

struct spec_account {
    enum spec_verdict verdict;
    uint64_t n_step, n_drafted, n_accepted; /* steps with this drafter, its nodes verified, its nodes accepted */
    double accepted[SPEC_DEPTHS];           /* recent share of drafts accepted to at least depth i + 1 */
    double gain;                            /* recent: plain steps' time for the same tokens over time taken */
    double memory;                          /* as set by spec_control_set_memory_value */
};

/* A disabled drafter is not chosen. */
void spec_control_disable(struct spec_control *c, int drafter, bool disabled);

/* memory: the share by which plain steps would be shorter if the drafter's memory held experts instead. */
void spec_control_set_memory_value(struct spec_control *c, int drafter, double memory);
void spec_control_account(const struct spec_control *c, int drafter, struct spec_account *out);
/* Of the last step: the expected time of plain steps for its tokens, less the time that it took without the drafters' prefill;
 * 0 without drafts.  And the time of this prefill. */
double spec_control_saved_ns(const struct spec_control *c);
double spec_control_prefill_ns(const struct spec_control *c);
/* The expected time of a pass that decodes so many sequences without drafts; 0: not known. */
double spec_control_plain_ns(const struct spec_control *c, int n_due);

/* The gain expected of the drafter's best plan for the sessions, over that of the last decision's plan; it may be disabled.  1:
 * the time of a plain step with so many sessions is not known; or its drafts are not, unless hopeful. */
double spec_control_promise(struct spec_control *c, int drafter, const int *session /* [n_due] */, int n_due,
                            bool hopeful);
int spec_account_text(const struct spec_control *c, int drafter, char *out, size_t size);

#endif
