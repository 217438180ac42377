/* speculative/overlap.c - the time and the accepted tokens of drafting that overlaps with the pass: distributed
 * speculation with one target.
 *
 * During a pass the drafter makes `depth` guesses.  The first guess is for the token that the pass itself samples; if
 * it is right, the other depth - 1 can be verified by the next pass.  So a sequence is in one of two states.  Ready:
 * depth - 1 guesses wait to be verified.  Empty: the last pass rejected a node, or its own token was not the first
 * guess, and this pass verifies nothing.  With s(d) the probability that d guesses in a row are right,
 *
 *     ready -> ready   when the whole chain is right, s(depth);    empty -> ready   when the first guess is, s(1)
 *
 * so the share r = s(1) / (1 - s(depth) + s(1)) of all steps is ready, with s(1) + .. + s(depth - 1) accepted tokens
 * each.
 *
 * Two numbers are learnt from overlapped steps: the contention, by batch size; and the ratio of accepted tokens to the
 * number expected by this model, for in real sequences s varies, and steps are not independent. */
#include "speculative/internal.h"

#include <math.h>

#define CONTENTION_MEAN_STEPS 12              /* steps in a mean of contention */
#define ACCEPT_DECAY          (1 - 1 / 256.0) /* decay of the sums of accepted tokens, per step */
#define PRIOR_TOKENS          16.0            /* prior, in tokens: so many were expected and accepted */
#define MAX_CONTENTION        2.0 /* largest contention: overlapping is slower than drafting in turn from 1 on */

struct spec_overlap_mean spec_overlap_mean(const double *what, int depth)
{
    double hold = what[depth - 1], first = what[0], sum = 0;
    for (int d = 0; d < depth - 1; d++)
        sum += what[d];
    double ready = first > 0 ? first / (1 - hold + first) : 0;
    return (struct spec_overlap_mean){ ready * (depth - 1), ready * sum };
}

double spec_overlap_ns(double pass_ns, double draft_ns, double contention)
{
    return fmax(pass_ns, draft_ns) + contention * fmin(pass_ns, draft_ns);
}

/* The contention measured at the nearest batch size.  Without a measurement: the share of a pass that is not spent
 * waiting for experts, since only then does the pass use the cores that the drafter takes; 1 if no waits were measured.
 * A hopeful plan assumes 0, whatever was measured: the processes that competed for the cores may have ended. */
double spec_overlap_contention(const struct spec_control *c, const struct spec_arm *a, int size, bool hopeful)
{
    for (int far = 0; far < SPEC_SIZES && !hopeful; far++)
        for (int side = -1; side <= 1; side += 2) {
            int i = size + side * far;
            if (i >= 0 && i < SPEC_SIZES && a->overlapped[i].weight > 0)
                return a->overlapped[i].contention;
        }
    if (hopeful)
        return 0;
    return c->stall_pass_ns > 0 ? fmax(0, 1 - c->stall_ns / c->stall_pass_ns) : 1;
}

double spec_overlap_accept_ratio(const struct spec_arm *a)
{
    return (a->accepted + PRIOR_TOKENS) / (a->expected + PRIOR_TOKENS);
}

void spec_overlap_learn_contention(struct spec_arm *a, int size, double took_ns, double pass_ns, double draft_ns)
{
    double less = fmin(pass_ns, draft_ns), more = fmax(pass_ns, draft_ns);
    if (less <= 0)
        return;
    double x = fmin(fmax((took_ns - more) / less, -MAX_CONTENTION), MAX_CONTENTION),
           *weight = &a->overlapped[size].weight;
    a->overlapped[size].contention += (x - a->overlapped[size].contention) / (*weight + 1);
    *weight = fmin(*weight + 1, CONTENTION_MEAN_STEPS - 1);
}

void spec_overlap_count_accepted(struct spec_arm *a, double expected, int n_accepted)
{
    a->expected = a->expected * ACCEPT_DECAY + expected;
    a->accepted = a->accepted * ACCEPT_DECAY + n_accepted;
}
