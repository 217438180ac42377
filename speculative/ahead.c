/* speculative/ahead.c - what drafting while a pass verifies comes to: distributed speculation with one target.
 *
 * A sequence is in one of two states.  Ready: depth - 1 guesses wait to be verified, for of the `depth` that the
 * drafter made beside the last pass the first was the pass's own token.  Empty: the last pass disagreed, or its
 * token was not guessed, and this one verifies nothing.  With s(d) the chance that d guesses in a row are right,
 *
 *     ready -> ready   when all of the chain holds, s(depth);    empty -> ready   when the first guess does, s(1)
 *
 * so of all steps the share r = s(1) / (1 - s(depth) + s(1)) is ready, and keeps s(1) + .. + s(depth - 1).
 *
 * Two numbers are learnt from steps together: contention, by batch; and the yield, what was kept over what this
 * expects, for real texts are neither as regular nor as forgetful. */
#include "speculative/internal.h"

#include <math.h>

#define MEMORY      12              /* steps */
#define YIELD       (1 - 1 / 256.0)
#define PRIOR_YIELD 16.0            /* tokens' worth of belief in what is expected */
#define MOST        2.0             /* contention: worse than in turn, and no use in knowing how much */

struct spec_ahead_share spec_ahead_share(const double *what, int depth)
{
    double hold = what[depth - 1], first = what[0], sum = 0;
    for (int d = 0; d < depth - 1; d++)
        sum += what[d];
    double ready = first > 0 ? first / (1 - hold + first) : 0;
    return (struct spec_ahead_share){ ready * (depth - 1), ready * sum };
}

double spec_ahead_ns(double pass_ns, double draft_ns, double contention)
{
    return fmax(pass_ns, draft_ns) + contention * fmin(pass_ns, draft_ns);
}

/* Of the nearest size that is known.  Of none: what a pass computes, the drafter takes from it.  In hope it is
 * gone, whatever it was: who else wanted the cores may have left. */
double spec_ahead_contention(const struct spec_control *c, const struct spec_arm *a, int size, bool hopeful)
{
    for (int far = 0; far < SPEC_SIZES && !hopeful; far++)
        for (int side = -1; side <= 1; side += 2) {
            int i = size + side * far;
            if (i >= 0 && i < SPEC_SIZES && a->beside[i].weight > 0)
                return a->beside[i].contention;
        }
    if (hopeful)
        return 0;
    return c->stall_of_ns > 0 ? fmax(0, 1 - c->stall_ns / c->stall_of_ns) : 1;
}

double spec_ahead_yield(const struct spec_arm *a) { return (a->came + PRIOR_YIELD) / (a->expected + PRIOR_YIELD); }

void spec_ahead_learn(struct spec_arm *a, int size, double took_ns, double pass_ns, double draft_ns)
{
    double less = fmin(pass_ns, draft_ns), more = fmax(pass_ns, draft_ns);
    if (less <= 0)
        return;
    double x = fmin(fmax((took_ns - more) / less, -MOST), MOST), *weight = &a->beside[size].weight;
    a->beside[size].contention += (x - a->beside[size].contention) / (*weight + 1);
    *weight = fmin(*weight + 1, MEMORY - 1);
}

void spec_ahead_count(struct spec_arm *a, double expected, int n_kept)
{
    a->expected = a->expected * YIELD + expected;
    a->came = a->came * YIELD + n_kept;
}
