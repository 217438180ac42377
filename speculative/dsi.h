/* speculative/dsi.h - distributed speculative inference (DSI): schedules drafts and verifications on workers.
 *
 * A pure state machine.  Events come in (a worker is done, has failed, has joined), actions go out (draft, verify,
 * cancel, emit).  It computes no token, starts no thread and reads no clock: the simulator on its virtual clock and an
 * engine with real workers run the same code.  A worker is a number here; the caller maps the number to a context in
 * this process or to a remote machine.
 *
 * The algorithm is Algorithm 1 of Timor et al., "Distributed Speculative Inference", with lookahead.  While targets
 * verify the drafted tokens, drafters continue; a rejection cancels the blocks below the rejected token.
 *   - A block is a run of up to `lookahead` tokens of one drafter.  From the end of each block, as from the end of the
 *     output, every drafter drafts one more block: the blocks form a tree.
 *   - A verification is one pass of the target over the tokens of a block.  It gives the target's own token for each
 *     position of the block and for the next one.  Drafted tokens that differ are dropped with all blocks below.
 *   - A draft under way tells its tokens as they come (DRAFTED), and is cancelled at the first one that the output
 *     refutes, not at the end of its block.
 *   - At any time a target pass is running that will give the next token of the output, with an empty draft if
 *     necessary, and it is never cancelled in favour of another.  So DSI is never slower than plain decoding with one
 *     of these targets.  With two targets or more it is also not slower than drafting and verifying in turn with the
 *     same lookahead; with a single target only the first bound holds.
 *   - Of blocks with the same tokens the first to be ready is kept (Algorithm 1 keeps the block of the lowest
 *     drafter, which is never ready earlier).
 * Every emitted token is the target's token after exactly the tokens before it.  So the output equals that of plain
 * decoding whenever the target's token is a function of the tokens before it: greedy, or coupled sampling (sample.c).
 *
 * Order of calls: open, begin; then, for each event, spec_dsi_event() and spec_dsi_next() until it returns false;
 * close.  One thread at a time.  All memory is allocated at open.
 *
 * The caller answers each DRAFT and VERIFY action by exactly one event of its worker: DONE, CANCELLED or FAILED.  A
 * DONE sent before the cancellation arrived counts as CANCELLED.  A DONE, DRAFTED or CANCELLED for another task than
 * the worker's latest is ignored.  FAILED and JOINED need no task, STOP no worker either. */
#ifndef SPECULATIVE_DSI_H
#define SPECULATIVE_DSI_H

#include "kernels/core.h"

#define SPEC_DSI_TARGET   (-1) /* role of a worker that verifies */
#define SPEC_DSI_DRAFTERS 4
#define SPEC_DSI_WORKERS  1024

struct spec_dsi;

struct spec_dsi_options {
    int n_worker;
    const int *role;   /* [n_worker] SPEC_DSI_TARGET, or its drafter's number */
    int n_drafter;     /* 0: plain decoding */
    int max_lookahead; /* most tokens of a block */
    int max_tok;       /* most tokens of an output */
};

int spec_dsi_open(struct spec_dsi **out, const struct spec_dsi_options *o);
void spec_dsi_close(struct spec_dsi *d);

/* Starts a new output of n_tok tokens.  lookahead 0: from Equation 1 and the measured times.  Workers that still run
 * a task of the old output are cancelled. */
void spec_dsi_begin(struct spec_dsi *d, int n_tok, int lookahead);

/* ---- events ------------------------------------------------------------------------------------ */

enum spec_dsi_event_kind {
    SPEC_DSI_DONE,      /* the task is done: its tokens, and its time */
    SPEC_DSI_DRAFTED,   /* the first n tokens of a draft that is not done; may be left out, or sent for some n only */
    SPEC_DSI_CANCELLED, /* the task was dropped as asked */
    SPEC_DSI_FAILED,    /* the worker is lost, and its task */
    SPEC_DSI_JOINED,    /* the worker is available again */
    SPEC_DSI_STOP       /* the caller needs no more of this output */
};

struct spec_dsi_event {
    enum spec_dsi_event_kind what;
    int worker;
    uint64_t task;         /* of the action that started it */
    const int32_t *tokens; /* [n] of DONE, DRAFTED: the drafted tokens, or the target's tokens */
    int n;                 /* a draft: at most the action's n; a verification: the action's n + 1 */
    int64_t took_ns;
};

void spec_dsi_event(struct spec_dsi *d, const struct spec_dsi_event *e);

/* ---- actions ----------------------------------------------------------------------------------- */

enum spec_dsi_action_kind { SPEC_DSI_DRAFT, SPEC_DSI_VERIFY, SPEC_DSI_CANCEL, SPEC_DSI_EMIT };

struct spec_dsi_action {
    enum spec_dsi_action_kind kind;
    int worker;
    uint64_t task;
    int at;    /* output position of its first token */
    int n;     /* tokens to draft, to verify or to emit */
    int block; /* for spec_dsi_context */
};

bool spec_dsi_next(struct spec_dsi *d, struct spec_dsi_action *a);

/* Writes to out the tokens that the worker of a DRAFT or VERIFY action needs: those at positions from .. a->at - 1, of
 * the output and of drafts, and for a verification the a->n drafted tokens after them.  Call it before the next
 * event. */
void spec_dsi_context(const struct spec_dsi *d, const struct spec_dsi_action *a, int from, int32_t *out);

const int32_t *spec_dsi_output(const struct spec_dsi *d, int *n_tok); /* emitted tokens */

enum spec_dsi_state {
    SPEC_DSI_RUNNING,
    SPEC_DSI_STUCK, /* all targets are lost; one may join */
    SPEC_DSI_FINISHED
};
enum spec_dsi_state spec_dsi_state(const struct spec_dsi *d);

/* ---- lookahead --------------------------------------------------------------------------------- */

/* Target passes running at once when each block of `lookahead` tokens is verified as soon as it is ready:
 * ceil(target / (lookahead * draft)).  Equation 1 requires at most as many as there are targets. */
int64_t spec_dsi_servers(int64_t target_ns, int64_t draft_ns, int lookahead);

/* The smallest lookahead for which Equation 1 holds, or `most` if that is smaller: the smallest one detects a rejection
 * earliest. */
int spec_dsi_lookahead(int64_t target_ns, int64_t draft_ns, int n_target, int most);

/* Measured times and the resulting lookahead; 0: not known yet. */
struct spec_dsi_rates {
    int n_target;
    int64_t target_ns, draft_ns;
    int lookahead;
};
void spec_dsi_rates(const struct spec_dsi *d, int drafter, struct spec_dsi_rates *out);

#endif
