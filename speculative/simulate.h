/* speculative/simulate.h - what speculation would cost, without a model.
 *
 * Plain decoding, speculative inference (SI: draft, then verify, in turn) and distributed speculative
 * inference (DSI) generate the same n_tok tokens.  The target takes target_ns for a pass, a drafter draft_ns
 * for a token, and the drafter is right at each position with the same chance, independently.
 *
 * All of them see the same draws: whether the drafter is right at position p of repeat r.  Each algorithm
 * looks at a position's draw only where what precedes it is right, and that is once, whatever it drafted in
 * vain before: so each has exactly the law of independent draws, a run of right drafts is found by one look
 * at a table instead of a draw per token, and ratios between algorithms, lookaheads and acceptances have
 * far less noise than with draws of their own.
 *
 * Two methods.  "Offline" are the formulas of the DSI paper's authors, as their program computes them.
 * "Event" is what happens: for DSI the machine of dsi.h itself, on a virtual clock. */
#ifndef SPECULATIVE_SIMULATE_H
#define SPECULATIVE_SIMULATE_H

#include "speculative/dsi.h"

struct spec_draws {
    int n_tok, n_repeat, n_position;                /* n_tok and a lookahead more */
    int32_t *wrong;                                 /* [n_repeat][n_position + 1] the first position, this one */
};                                                  /* or later, where the drafter is wrong; n_position: none */

int  spec_draws_open(struct spec_draws *d, int n_tok, int n_repeat, int most_lookahead);
void spec_draws_close(struct spec_draws *d);
void spec_draws_fill(struct spec_draws *d, uint64_t seed, double acceptance);

/* Passes of the target begun and drafter steps begun; both are cancelled at times, so they are not the
 * time. */
struct spec_cost { int64_t passes, steps, ns; };

/* SI's counts do not depend on times: the cost of any is passes * target_ns + steps * draft_ns, and ns is left
 * 0 here. */
struct spec_cost spec_offline_si(const struct spec_draws *d, int repeat, int lookahead);
struct spec_cost spec_event_si(const struct spec_draws *d, int repeat, int lookahead);

int64_t spec_offline_dsi(const struct spec_draws *d, int repeat, int lookahead, int64_t target_ns,
                         int64_t draft_ns);

/* A pool of n_target workers that verify and one that drafts, and the virtual clock.  One thread at a time. */
struct spec_pool;
int  spec_pool_open(struct spec_pool **out, int n_target, int most_tok, int most_lookahead);
void spec_pool_close(struct spec_pool *p);

/* Targets of one machine share its memory: n at work at once take 1 + contention * (n - 1) times as long.  0,
 * unless told: each has all it needs. */
void spec_pool_contend(struct spec_pool *p, double contention);

struct spec_cost spec_event_dsi(struct spec_pool *p, const struct spec_draws *d, int repeat, int lookahead,
                                int64_t target_ns, int64_t draft_ns);

/* Proposition 1 of the paper: DSI's expected time is at most this. */
double spec_dsi_bound(int n_tok, double acceptance, double target_ns, double draft_ns);

#endif
