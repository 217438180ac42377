/* speculative/control.h - whether to draft, who drafts, how deep, and what of it is worth verifying.
 *
 *     open -> per step: [ decide -> (draft) -> cut -> (verify) -> learn ]* -> close
 *
 * A step with n sequences due takes T(n) without drafts and brings n tokens.  With k drafted rows it takes
 * D + T(n + k), and brings n and what is kept.  The controller learns, from the steps themselves,
 *     T     by rows, without drafts; and by how much steps with drafts differ from it, by n and by k / n,
 *     D     by drafter and n,
 *     kept  by drafter, session and depth, as a correction of what drafters themselves expect;
 * and chooses what brings most tokens per second, where a token is worth T(n) / n.  Memory traffic enters by what
 * was measured: rows that drag experts from disk make T steep, rows that share them with other requests' do not.
 *
 * Never slower.  Drafts are off until T(n) is known.  They must promise a gain to be turned on, and a step without
 * is interspersed now and then so that T(n) stays true.  What is not known is tried, a few steps at a time, the
 * more rarely the more often it failed: what promises most of what the account allows.  Once a drafter was seen at
 * work, depths that it was not tried at are judged by what is foreseen of the pass and by how its drafts survive,
 * and corrected by the first step.  And an account is kept: time lost against T(n), tokens really kept, never
 * exceeds a few steps and one hundredth of the time so far; when that is used up drafting stops, whatever the
 * estimates say.  Who has to take in texts first is charged for it step by step, so that drafts that are worth it pay.
 *
 * Ahead (DSI).  A drafter may draft while the pass before verifies.  A step then takes
 *     max(T, D) + contention min(T, D)
 * instead of T + D: contention is what both want at the same time of cores, memory and disk, learnt from steps
 * together and from T and D alone; before there are any, it is the share of a pass that is not waited for experts.
 * What a wrong guess costs is the next draft: ahead.c.
 *
 * Whoever drafts for nothing (an n-gram index) need not be decided about before it drafts: it is asked every time,
 * and the cut may leave nothing.
 *
 * Under SPEC_COUPLED all this is free to look at anything.  Under the other rules a choice may not depend on the
 * tokens that were drawn: there nodes[] is the decision, made before they are, and the cut keeps everything.
 *
 * Times come in by value: there is no clock here, and no allocation after open.  One thread. */
#ifndef SPECULATIVE_CONTROL_H
#define SPECULATIVE_CONTROL_H

#include "speculative/cost.h"
#include "speculative/speculative.h"

#define SPEC_DRAFTERS 8
#define SPEC_DEPTHS   16                            /* the deepest draft that is considered */
#define SPEC_OFF      (-1)                          /* nobody drafts */
#define SPEC_AUTO     (-1)

struct spec_control_options {
    int n_session;                                  /* numbered 0 .. n_session - 1; also the most that are due */
    int n_drafter;
    struct {
        const char *name;                           /* outlives the controller */
        int most_depth;
        bool ahead; int of;                         /* drafter `of` once more, at work while passes run */
    } drafter[SPEC_DRAFTERS];
    int most_rows;                                  /* in one pass; 0: any number */
    int most_drafted;                               /* of them, drafted ones; 0: any number */
    int n_expert;                                   /* that needs tell of; 0: there are no needs */
    enum spec_rule rule;
    int gamma;                                      /* SPEC_AUTO; else always so deep, and drafter 0: 0 is off */
};

struct spec_control;
int  spec_control_open(struct spec_control **out, const struct spec_control_options *opt);
void spec_control_close(struct spec_control *c);

/* Before the first step, by who knows the machine: what passes take (only ratios count, for numbers of rows not
 * seen yet) and one draft pass of each drafter (on the same clock; NULL: not known), which is ns + row_ns
 * phi(sequences) with the phi of passes.  Without it a pass is taken to be between flat and steep, and depths are
 * found by trials. */
struct spec_draft_cost { double ns, row_ns; };
void spec_control_foresee(struct spec_control *c, const struct spec_cost_model *pass,
                          const struct spec_draft_cost *draft /* [n_drafter] */);

/* Another text takes the session's place. */
void spec_control_begin(struct spec_control *c, int session);

/* Until told otherwise, by who looks at the text itself (lengths.h): the chance that this drafter's next draft is kept
 * at least so deep, in place of what its last ones came to.  NULL: nothing is known.  What the drafter then says of its
 * drafts corrects it. */
void spec_control_tell(struct spec_control *c, int drafter, int session, const double *survival /* [SPEC_DEPTHS] */);

/* Before the next decision: so many tokens of the texts that are due the drafter does not know yet, beyond the last of
 * each.  Taking them in takes time, which a trial has to have. */
void spec_control_behind(struct spec_control *c, int drafter, int n_text);

/* ---- before drafting ------------------------------------------------------------------------------ */

enum spec_why {
    SPEC_WHY_NONE_DUE,          /* nobody to draft for, or no drafter */
    SPEC_WHY_FIXED,             /* as the options say */
    SPEC_WHY_LEARN,             /* off: what a plain step takes is not known well enough */
    SPEC_WHY_REFRESH,           /* off: what a plain step takes was last measured long ago */
    SPEC_WHY_LOSES,             /* off: nothing promises enough */
    SPEC_WHY_SPENT,             /* off: drafts have lost as much time as they may */
    SPEC_WHY_GAINS,             /* on: most tokens per second */
    SPEC_WHY_STAYS,             /* on: something else promises a little more, not enough to change */
    SPEC_WHY_TRIAL,             /* on: to find out */
    SPEC_WHY_FREE,              /* on: drafting costs next to nothing; the cut decides */
    SPEC_WHY_COUNT
};

struct spec_decision {
    int drafter, depth;                             /* SPEC_OFF and 0, or who, and how many draft passes */
    enum spec_why why;
    int n_due, n_beside;
    double off_ns;                                  /* T(n_beside + n_due), as far as known */
    double rows, tokens;                            /* expected of what was chosen (off: of the best that was not) */
    double draft_ns, pass_ns;                       /*   likewise */
    double off_experts, experts;                    /* distinct ones per layer of the two passes; 0: not known */
    double gain, need;                              /* tokens per second over off's; what it had to be */
    int best_drafter, best_depth;                   /* whom these are about; SPEC_OFF when nobody */
    struct spec_ahead_plan {                        /* the best of those that draft ahead; depth 0: there is none */
        int depth;
        double draft_ns, pass_ns, contention, gain; /* each of both alone */
    } ahead;
    double lost_ns, may_lose_ns;                    /* the account */
};

/* n_due sequences are due for a token, and n_beside rows of prompts share the pass.  nodes[i]: how many nodes are
 * worth drafting for session[i], at most depth deep; 0: none. */
void spec_control_decide(struct spec_control *c, const int *session /* [n_due] */, int n_due, int n_beside,
                         struct spec_decision *out, int *nodes /* [n_due] */);

/* One line, cut to size; returns how long it would be.  "draft: model 3 deep (gains most); 16.0 rows for 9.71
 * tokens in 1.20 + 44.10 ms, plain 4 in 31.00 ms, gain 1.66 (needs 1.03); lost 0.0 of 310.0 ms"; and, where somebody
 * may draft ahead: "; ahead 3 deep: 36.00 beside 44.10 ms, contention 0.20, gain 1.71" */
int spec_decision_text(const struct spec_control *c, const struct spec_decision *d, char *out, size_t size);
const char *spec_why_text(enum spec_why why);

/* ---- before verifying ----------------------------------------------------------------------------- */

/* Experts that a node is expected to touch and that are not in memory, by the caller's own numbers below n_expert;
 * expert NULL: n of them that nobody else needs. */
struct spec_need { const int32_t *expert; int n; };

struct spec_cut {
    int session;
    const struct spec_tree *tree;                   /* as drafted; survival as its drafter has it */
    int n_asked;                                    /* nodes that the drafter was asked for; 0: it was not */
    const struct spec_need *need;                   /* [tree->n]; NULL: not known */
    bool keep[SPEC_NODES];                          /* out: for spec_tree_prune */
    int n_keep;
};

/* One budget for all: nodes are taken by what they are likely to bring for the time they add, in rows and in bytes
 * that no node taken before them has brought in, while that is more than plain steps would bring in it.
 * expert_bytes: of one expert, where needs are given. */
void spec_control_cut(struct spec_control *c, struct spec_cut *cut, int n, double expert_bytes);

/* ---- after the step ------------------------------------------------------------------------------- */

struct spec_outcome {
    int session;
    const struct spec_tree *tree;                   /* as verified; NULL: nothing was drafted */
    int n_kept;                                     /* nodes kept */
};

struct spec_step {                                  /* what the step came to */
    int n_row;                                      /* of the pass: beside, due and drafted */
    double draft_ns, pass_ns;                       /* drafting; all else that the step took */
    double stall_ns, missed_bytes;                  /* of pass_ns, waiting for experts; and read of them, not early */
    double experts;                                 /* distinct ones per layer; 0: not known */
    int n_text;                                     /* tokens of texts that drafters took in first */
    double ahead_ns; int n_ahead;                   /* drafting beside the pass: how long, and passes of it */
    const struct spec_outcome *outcome;             /* [n_due], in decide's order */
    int n_due, n_beside;
};
void spec_control_learn(struct spec_control *c, const struct spec_step *step);

/* ---- what it knows -------------------------------------------------------------------------------- */

enum spec_verdict {
    SPEC_UNTRIED, SPEC_PAYS, SPEC_LOSES,
    SPEC_NOT_ITS_MEMORY                             /* gains less than its memory would as room for experts */
};

struct spec_account {
    enum spec_verdict verdict;
    uint64_t n_all;                                 /* steps, whoever drafted */
    uint64_t n_step, n_drafted, n_kept;             /* steps with it, rows verified, rows kept */
    double kept[SPEC_DEPTHS];                       /* share of drafts kept at least so deep, lately */
    double gain;                                    /* plain steps' time for the same tokens, over what it took */
    double memory;                                  /* as spec_control_price was told */
};

/* Barred, a drafter is not chosen. */
void spec_control_bar(struct spec_control *c, int drafter, bool barred);

/* memory: by what share plain steps would be shorter if the drafter's memory held experts instead. */
void spec_control_price(struct spec_control *c, int drafter, double memory);
void spec_control_account(const struct spec_control *c, int drafter, struct spec_account *out);
/* It is gone, between two steps: nobody will ask it again. */
void spec_control_dismiss(struct spec_control *c, int drafter);
int  spec_account_text(const struct spec_control *c, int drafter, char *out, size_t size);

#endif
