/* speculative/fit.h - fits a cost model's constants to measured passes.
 *
 * Least squares of relative errors, in absolute nanoseconds and in stages: target passes by rows, draft passes by
 * sequences, sampling by rows.  A fit to speed-ups alone would leave the scale of all constants open (twice all
 * constants gives the same ratios), so speed-ups serve only as a check.  MINPACK's lmdif does the work; bounds are a
 * change of variables.  The functions allocate while they run. */
#ifndef SPECULATIVE_FIT_H
#define SPECULATIVE_FIT_H

#include "speculative/cost.h"

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
};

struct spec_fit_input {
    double n_expert, n_used;
    double ridge_least, ridge_most;       /* bounds of ridge; MoESD: 0.2 and 1 times operations over bytes */
    double fixed_least_ns, load_least_ns; /* lower bounds of fixed_ns, load_ns: bytes over memory rate; 0: not known */
    const struct spec_fit_point *pass, *draft, *choose; /* rows of a draft point are sequences */
    /* pass needs as many points without hold as constants to fit; draft and choose each have no point, or at least 2
     * without hold. */
    int n_pass, n_draft, n_choose;
};

#define SPEC_FIT_POINTS 512 /* most points of a kind */

struct spec_fit {
    struct spec_cost_model cost;
    double error, worst;           /* mean and largest |model / measured - 1| of fitted points */
    double held_error, held_worst; /* the same of held points; 0: there are none */
    double rows_most;              /* most rows measured: the limit of the model */
};
int spec_fit(struct spec_fit *out, const struct spec_fit_input *measured);

/* model / measured - 1 of one point of pass[]. */
double spec_fit_residual(const struct spec_fit *fit, const struct spec_fit_point *point);

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
