/* speculative/simulate.h - simulates the time of speculation without a model.
 *
 * Plain decoding, speculative inference (SI: draft, then verify, in turn) and distributed speculative
 * inference (DSI) generate the same n_tok tokens.  The target takes target_ns for a pass, a drafter draft_ns
 * for a token, and the drafter is right at each position with the same probability, independently.
 *
 * All algorithms use the same draws: whether the drafter is right at position p of repeat r.  An algorithm
 * uses the draw of a position only where all tokens before it are right, which is once for each position.  So
 * its draws are distributed as independent ones.  A run of right drafts is one table lookup instead of a draw
 * for each token, and ratios between algorithms, lookaheads and acceptance rates have far less noise than with
 * separate draws.
 *
 * Two methods.  "Offline" are the formulas of the DSI paper's authors, as their program computes them.
 * "Event" simulates the events: for DSI by the state machine of dsi.h on a virtual clock. */
#ifndef SPECULATIVE_SIMULATE_H
#define SPECULATIVE_SIMULATE_H

#include "speculative/dsi.h"

/* wrong[r][p] is the first position, from p on, at which the drafter is wrong in repeat r; n_position: none. */
struct spec_sim_draws {
    int n_tok, n_repeat, n_position; /* n_position: n_tok + max_lookahead */
    int32_t *wrong;                  /* [n_repeat][n_position + 1] */
};

int spec_sim_draws_open(struct spec_sim_draws *d, int n_tok, int n_repeat, int max_lookahead);
void spec_sim_draws_close(struct spec_sim_draws *d);
void spec_sim_draws_fill(struct spec_sim_draws *d, uint64_t seed, double acceptance);

/* Times of one pass of the target, and of one token of the drafter.  prefill: each worker reads the prompt from its first
 * task on, also if this is cancelled, and computes no task before. */
struct spec_sim_times {
    int64_t target_ns, draft_ns;
    int64_t target_prefill_ns, draft_prefill_ns;
};

/* Target passes and drafter steps begun, and the times until the first and the last token.  DSI runs passes and steps at
 * the same time and cancels some, so its ns is not passes * target_ns + steps * draft_ns. */
struct spec_sim_cost {
    int64_t passes, steps, first_ns, ns;
};

/* The counts of SI do not depend on times: the time is passes * target_ns + steps * draft_ns and both prefills, and
 * first_ns and ns are 0 here.  Its first token comes with its first pass. */
struct spec_sim_cost spec_offline_si(const struct spec_sim_draws *d, int repeat, int lookahead);
struct spec_sim_cost spec_event_si(const struct spec_sim_draws *d, int repeat, int lookahead);

/* Returns ns. */
int64_t spec_offline_dsi(const struct spec_sim_draws *d, int repeat, int lookahead, int64_t target_ns,
                         int64_t draft_ns);

/* A pool of n_target workers that verify and one that drafts, with a virtual clock.  One thread at a time. */
struct spec_sim_pool;
int spec_sim_pool_open(struct spec_sim_pool **out, int n_target, int max_tok, int max_lookahead);
void spec_sim_pool_close(struct spec_sim_pool *p);

/* Targets of one machine share its memory: while n target passes run at once, each takes 1 + contention * (n - 1) times
 * as long.  The default is 0: no contention. */
void spec_sim_pool_set_contention(struct spec_sim_pool *p, double contention);

struct spec_sim_cost spec_event_dsi(struct spec_sim_pool *p, const struct spec_sim_draws *d, int repeat, int lookahead,
                                    const struct spec_sim_times *times);

/* Proposition 1 of the paper: DSI's expected time is at most this. */
double spec_dsi_bound(int n_tok, double acceptance, double target_ns, double draft_ns);

#endif
