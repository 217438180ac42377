/* speculative/fit.h - fits a cost model's constants to measured passes.
 *
 * Least squares of relative errors, in absolute nanoseconds and in stages: target passes by rows, draft passes by
 * sequences, sampling by rows.  A fit to speed-ups alone would leave the scale of all constants open (twice all
 * constants gives the same ratios), so speed-ups serve only as a check.  MINPACK's lmdif does the work; bounds are a
 * change of variables.  The functions allocate while they run. */
#ifndef SPECULATIVE_FIT_H
#define SPECULATIVE_FIT_H

#include "speculative/cost.h"

#include <stdint.h>

/* ---- bounded least squares ---------------------------------------------------------------------- */

#define SPEC_FIT_PARAMS 12

struct spec_fit_param {
    double low, high, start;
}; /* high may be INFINITY; low == high: a given constant */

/* Writes residual[m] for the parameters x[n]. */
typedef void spec_fit_residual_function(const void *arg, const double *x, double *residual);

struct spec_fit_solution {
    double x[SPEC_FIT_PARAMS];
    double sum_squares;
    int n_call; /* calls of residual */
};

/* Minimizes from param[].start and from n_start - 1 other points spread over the bounds; returns the best minimum. */
int spec_fit_solve(struct spec_fit_solution *out, const struct spec_fit_param *param, int n, int m,
                   spec_fit_residual_function *residual, const void *arg, int n_start);

/* ---- the cost model ----------------------------------------------------------------------------- */

/* A measured pass, the mean of several.  distinct 0: not known, N(rows) is used.  hold: left out of the fit and
 * predicted, which estimates the model's error on new points. */
struct spec_fit_point {
    double rows, distinct, miss_ns, ns;
    bool hold;
    double kv;     /* positions of context, summed over the sequences */
    double copied; /* experts copied to a device, per layer */
    double weight; /* of the squared error in the fit; 0: 1 */
};

struct spec_fit_input {
    double n_expert, n_used;
    double ridge_least, ridge_most;       /* bounds of ridge; MoESD: 0.2 and 1 times operations over bytes */
    double fixed_least_ns, load_least_ns; /* lower bounds of fixed_ns, load_ns: bytes over memory rate; 0: not known */
    const struct spec_fit_point *pass, *draft, *choose; /* rows of a draft point are sequences */
    /* pass needs as many points without hold as constants to fit; draft and choose each have no point, or at least 2
     * without hold. */
    int n_pass, n_draft, n_choose;
    /* The prior, or NULL: the constants that the points leave open stay near it.  Its times are first scaled to
     * the measured ones, so that only its shape counts.  With it one pass is enough. */
    const struct spec_cost_model *expected;
};

#define SPEC_FIT_POINTS 512 /* most points of a kind */

struct spec_fit {
    struct spec_cost_model cost;
    double error, worst;           /* mean and largest |model / measured - 1| of fitted points */
    double held_error, held_worst; /* the same of held points; 0: there are none */
    double rows_most;              /* most rows measured: the limit of the model */
};
int spec_fit(struct spec_fit *out, const struct spec_fit_input *measured);

/* Fits draft_ns and draft_row_ns of *cost, with its ridge and growth, to n > 0 draft passes; row_ns is 0 if n is 1. */
int spec_fit_draft(struct spec_cost_model *cost, const struct spec_fit_point *draft, int n);

/* model / measured - 1 of one point of pass[]. */
double spec_fit_residual(const struct spec_fit *fit, const struct spec_fit_point *point);

/* ---- passes of real requests (observe.c) --------------------------------------------------------- */

/* Means of passes, by rows and by the length of contexts; each mean follows the last passes.  Zeros: no pass yet. */
#define SPEC_OBSERVED_ROWS     20
#define SPEC_OBSERVED_CONTEXTS 5
struct spec_observed {
    struct spec_observed_mean {
        struct spec_fit_point point;
        double n; /* passes in the mean */
    } mean[SPEC_OBSERVED_ROWS][SPEC_OBSERVED_CONTEXTS];
    uint64_t n_pass;
};

/* Adds a pass of n_seq sequences.  Allocates nothing. */
void spec_observe(struct spec_observed *o, const struct spec_fit_point *pass, int n_seq);
/* Writes the means as points, each with the weight of its passes.  Returns their number. */
int spec_observed_points(const struct spec_observed *o, struct spec_fit_point *out /* [SPEC_OBSERVED_POINTS] */);
#define SPEC_OBSERVED_POINTS (SPEC_OBSERVED_ROWS * SPEC_OBSERVED_CONTEXTS)

/* ---- the paper's own fit ------------------------------------------------------------------------- */

/* MoESD's ten constants, in the paper's order; this fit uses only the speed-ups of measured points. */
enum {
    SPEC_BIAS,
    SPEC_K1,
    SPEC_K2,
    SPEC_K3,
    SPEC_DRAFT_BIAS,
    SPEC_DRAFT_K,
    SPEC_REJECT_BIAS,
    SPEC_REJECT_K,
    SPEC_LAMBDA,
    SPEC_S,
    SPEC_PAPER_PARAMS
};

struct spec_paper_point {
    double n_seq, depth, n_used, n_expert, sigma, speedup;
};

/* The paper's Equation 4, with its G(t) and n_seq * depth rows in a verification.  The paper's printed algorithm
 * instead counts one draft pass and adds a plain pass to the denominator. */
double spec_paper_speedup(const double x[SPEC_PAPER_PARAMS], double ridge_point, const struct spec_paper_point *at);

int spec_paper_fit(struct spec_fit_solution *out, const struct spec_fit_param param[SPEC_PAPER_PARAMS],
                   double ridge_point, const struct spec_paper_point *point, int n);

#endif
