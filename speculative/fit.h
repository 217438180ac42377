/* speculative/fit.h - finds a cost model's constants from measured passes.
 *
 * Least squares of relative errors, in absolute nanoseconds and in stages: passes of the target by rows, of the
 * drafter by sequences, choosing by rows.  Speed-ups alone would leave the scale of all constants open (multiply
 * them by two and every ratio stays), so they only serve as a check.  MINPACK's lmdif does the work; bounds are a
 * change of variables.  Allocates while it works. */
#ifndef SPECULATIVE_FIT_H
#define SPECULATIVE_FIT_H

#include "speculative/cost.h"

/* ---- bounded least squares ---------------------------------------------------------------------- */

#define SPEC_FIT_PARAMS 12

struct spec_param { double low, high, start; };     /* high may be INFINITY; low == high: given */

/* residual[m] at x[n]. */
typedef void spec_residual(const void *arg, const double *x, double *residual);

struct spec_solution {
    double x[SPEC_FIT_PARAMS];
    double sum_squares;
    int    n_call;                                  /* of residual */
};

/* From param[].start and n_start - 1 further points spread over the bounds; the best end counts. */
int spec_fit_solve(struct spec_solution *out, const struct spec_param *param, int n, int m,
                   spec_residual *residual, const void *arg, int n_start);

/* ---- the cost model ----------------------------------------------------------------------------- */

/* A pass that was measured, the mean of some.  distinct 0: not known, taken as N(rows).  hold: not fitted to,
 * but predicted, and so an estimate of how the model errs where it was not told. */
struct spec_point { double rows, distinct, miss_ns, ns; bool hold; };

struct spec_measured {
    double n_expert, n_used;
    double ridge_least, ridge_most;                 /* the paper: 0.2 and 1 times operations over bytes */
    double fixed_least_ns, load_least_ns;           /* bytes over the memory's rate: no pass is faster; 0: not known */
    const struct spec_point *pass, *draft, *choose; /* draft's rows are sequences */
    int n_pass, n_draft, n_choose;                  /* as many as constants; 0 or 2; 0 or 2: not held */
};

#define SPEC_FIT_POINTS 512                         /* at most, of a kind */

struct spec_fit {
    struct spec_cost_model cost;
    double error, worst;                            /* mean and largest |model / measured - 1| of the fitted */
    double held_error, held_worst;                  /* and of the held; 0 without */
    double rows_most;                               /* measured: the model is not asked beyond */
};
int spec_fit(struct spec_fit *out, const struct spec_measured *measured);

/* model / measured - 1 of a point of pass[]. */
double spec_fit_residual(const struct spec_fit *fit, const struct spec_point *point);

/* ---- the paper's own setting --------------------------------------------------------------------- */

/* Its ten constants, in its order; speed-ups of measured points are all that the fit is told. */
enum { SPEC_BIAS, SPEC_K1, SPEC_K2, SPEC_K3, SPEC_DRAFT_BIAS, SPEC_DRAFT_K, SPEC_REJECT_BIAS, SPEC_REJECT_K,
       SPEC_LAMBDA, SPEC_S, SPEC_PAPER_PARAMS };

struct spec_paper_point { double n_seq, depth, n_used, n_expert, sigma, speedup; };

/* Equation 4 with the paper's G(t) and its B gamma rows.  Its printed algorithm counts one draft pass and adds a plain
 * pass to the denominator; equation 4 does neither. */
double spec_paper_speedup(const double x[SPEC_PAPER_PARAMS], double ridge_point, const struct spec_paper_point *at);

int spec_paper_fit(struct spec_solution *out, const struct spec_param param[SPEC_PAPER_PARAMS],
                   double ridge_point, const struct spec_paper_point *point, int n);

#endif
