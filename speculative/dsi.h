/* speculative/dsi.h - distributed speculative inference: who drafts and who verifies what, at any time.
 *
 * A pure state machine.  Events come in (a worker is done, failed, came back), actions go out (draft here,
 * verify these, cancel, emit).  It computes no token, starts no thread, reads no clock: the simulator on its
 * virtual clock and an engine with real workers run this same code.  A worker is a number here; what stands
 * behind it, a context in this process or a machine far away, is the caller's business.
 *
 * The algorithm is that of Timor et al., "Distributed Speculative Inference", Algorithm 1, with lookahead.
 * While targets verify what has been drafted, drafters draft on; a rejection cancels what hangs on it.
 *   - A block is a run of up to `lookahead` tokens by one drafter.  From the end of each, as from the output's
 *     own end, every drafter draws one more: a tree of blocks.
 *   - A verification is one pass of the target over the tokens of a block.  It gives the target's own choice
 *     for each of them and for the one after.  Drafts that differ from the choice die, and all below them.
 *   - There is always a target pass under way that will give the next token of the output (with an empty
 *     draft, if need be), and it is never given up for another.  So this is never slower than plain decoding by
 *     one of these targets.  With two targets or more it is not slower than drafting and verifying in turn
 *     with the same lookahead either; a single one cannot promise both, and keeps the former.
 *   - Of blocks that turn out to be the same, the one that was ready first stays (Algorithm 1 keeps that of
 *     the lowest drafter, which is never ahead of it).
 * Every token emitted is a choice of the target after exactly the tokens before it.  So the output is that of
 * plain decoding whenever a choice is a function of what precedes it: greedy, or coupled sampling (sample.c).
 *
 * Order of calls: open, begin; then, for each event, spec_dsi_event() and spec_dsi_next() until it has none;
 * close.  One thread at a time.  All memory is taken at open.
 *
 * Each start (of a draft or a verification) is answered by exactly one event of that worker: DONE, CANCELLED
 * or FAILED; DONE may cross a cancellation on its way and is then as good as CANCELLED.  Answers to anything
 * but the worker's latest task are passed over. */
#ifndef SPECULATIVE_DSI_H
#define SPECULATIVE_DSI_H

#include "kernels/core.h"

#define SPEC_DSI_TARGET   (-1)                      /* the role of a worker that verifies */
#define SPEC_DSI_DRAFTERS 16
#define SPEC_DSI_WORKERS  1024

struct spec_dsi;

struct spec_dsi_options {
    int n_worker;
    const int *role;                                /* [n_worker] SPEC_DSI_TARGET, or which drafter it runs */
    int n_drafter;                                  /* 0: plain decoding */
    int most_lookahead;                             /* tokens in a block at most */
    int most_tok;                                   /* tokens of an output at most */
};

int  spec_dsi_open(struct spec_dsi **out, const struct spec_dsi_options *o);
void spec_dsi_close(struct spec_dsi *d);

/* A new output of n_tok tokens.  lookahead 0: Equation 1, from what was measured.  Workers still at
 * something of the output before are told to drop it. */
void spec_dsi_begin(struct spec_dsi *d, int n_tok, int lookahead);

/* ---- events ------------------------------------------------------------------------------------ */

enum spec_dsi_what {
    SPEC_DSI_DONE,                                  /* the task is done: tokens, and how long it took */
    SPEC_DSI_CANCELLED,                             /* the task is dropped, as was asked for */
    SPEC_DSI_FAILED,                                /* the worker is lost, and what it was at */
    SPEC_DSI_JOINED,                                /* it is back */
    SPEC_DSI_STOP                                   /* of the whole output: no more is wanted */
};

struct spec_dsi_event {
    enum spec_dsi_what what;
    int worker;
    uint64_t task;                                  /* of the action that started it */
    const int32_t *tokens;                          /* [n] of a draft: up to n of the action; of a */
    int n;                                          /* verification: n + 1 choices */
    int64_t took_ns;
};

void spec_dsi_event(struct spec_dsi *d, const struct spec_dsi_event *e);

/* ---- actions ----------------------------------------------------------------------------------- */

enum spec_dsi_kind { SPEC_DSI_DRAFT, SPEC_DSI_VERIFY, SPEC_DSI_CANCEL, SPEC_DSI_EMIT };

struct spec_dsi_action {
    enum spec_dsi_kind kind;
    int worker;
    uint64_t task;
    int at;                                         /* output tokens before the first that this is about */
    int n;                                          /* tokens to draft, to verify or to emit */
    int block;                                      /* for spec_dsi_context() */
};

bool spec_dsi_next(struct spec_dsi *d, struct spec_dsi_action *a);

/* The tokens that the worker of a start is to have read: those of the output and of drafts from position
 * `from` to a->at, and after these, of a verification, the n drafts.  Until the next event. */
void spec_dsi_context(const struct spec_dsi *d, const struct spec_dsi_action *a, int from, int32_t *out);

const int32_t *spec_dsi_output(const struct spec_dsi *d, int *n_tok);   /* what was emitted */

enum spec_dsi_state {
    SPEC_DSI_RUNNING,
    SPEC_DSI_STUCK,                                 /* no target is left; one may come back */
    SPEC_DSI_FINISHED
};
enum spec_dsi_state spec_dsi_state(const struct spec_dsi *d);

/* ---- how far to look ahead --------------------------------------------------------------------- */

/* Target passes under way at once when each block of `lookahead` tokens is verified as it gets ready:
 * ceil(target / (lookahead * draft)).  Equation 1 asks that they be no more than there are targets. */
int64_t spec_dsi_servers(int64_t target_ns, int64_t draft_ns, int lookahead);

/* The smallest lookahead, up to `most`, for which Equation 1 holds: it notices a rejection first. */
int spec_dsi_lookahead(int64_t target_ns, int64_t draft_ns, int n_target, int most);

/* What the machine measured and concluded: 0 where nothing is known yet. */
struct spec_dsi_rates { int n_target; int64_t target_ns, draft_ns; int lookahead; };
void spec_dsi_rates(const struct spec_dsi *d, int drafter, struct spec_dsi_rates *out);

#endif
