/* speculative/observe.c - passes of real requests, collected as points of a fit.
 *
 * In: each measured pass.  Out: means, one for each class of rows and of positions per sequence.  A mean follows the
 * last MEAN_PASSES passes of its class, so that the first passes, which find caches cold, are forgotten.  A pass far from
 * its mean, since another process had the cores, counts as at most twice and at least half of it. */
#include "speculative/fit.h"
#include "speculative/internal.h"

#include <math.h>

#define MEAN_PASSES   48  /* passes in a mean */
#define MIN_PASSES    3   /* passes from which a mean is a point, and from which outliers are limited */
#define HALF_WEIGHT   6.0 /* passes of a mean with half the weight of a well measured one */
#define SHORT_CONTEXT 128 /* positions of a sequence; each further class has contexts 4 times as long */

_Static_assert(SPEC_OBSERVED_ROWS == SPEC_SIZES, "rows have the classes of batch sizes");
_Static_assert(SPEC_OBSERVED_POINTS <= SPEC_FIT_POINTS, "all means can be fitted at once");

static int context_class(double positions)
{
    int i = 0;
    for (double most = SHORT_CONTEXT; positions > most && i < SPEC_OBSERVED_CONTEXTS - 1; most *= 4)
        i++;
    return i;
}

static void add(double *mean, double x, double n) { *mean += (x - *mean) / n; }

void spec_observe(struct spec_observed *o, const struct spec_fit_point *pass, int n_seq)
{
    struct spec_observed_mean *m = &o->mean[spec_size_of((int)pass->rows)][context_class(pass->kv / kn_max(n_seq, 1))];
    double ns = pass->ns;
    if (m->n >= MIN_PASSES)
        ns = fmin(fmax(ns, m->point.ns / 2), m->point.ns * 2);
    m->n = fmin(m->n + 1, MEAN_PASSES);
    add(&m->point.rows, pass->rows, m->n);
    add(&m->point.distinct, pass->distinct, m->n);
    add(&m->point.miss_ns, pass->miss_ns, m->n);
    add(&m->point.kv, pass->kv, m->n);
    add(&m->point.copied, pass->copied, m->n);
    add(&m->point.ns, ns, m->n);
    o->n_pass++;
}

int spec_observed_points(const struct spec_observed *o, struct spec_fit_point *out)
{
    int n = 0;
    for (int i = 0; i < SPEC_OBSERVED_ROWS; i++)
        for (int k = 0; k < SPEC_OBSERVED_CONTEXTS; k++) {
            const struct spec_observed_mean *m = &o->mean[i][k];
            if (m->n < MIN_PASSES)
                continue;
            out[n] = m->point;
            out[n++].weight = m->n / (m->n + HALF_WEIGHT);
        }
    return n;
}
