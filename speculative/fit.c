/* speculative/fit.c - least squares within bounds, for the constants of the cost model and of the paper's speed-up
 * model.
 *
 * MINPACK has no bounds, so it gets a variable u and the model x(u).  Between two bounds x = middle + half width times
 * 2u / (1 + u^2), which reaches the bounds at u = -1 and 1 and turns back there, as a sine would; above a single
 * bound, x = low + scale u^2.  Both are smooth, and reach the bounds exactly.
 *
 * A fit has several starts, because products of constants leave flat directions: the ridge and the growth decide the
 * shape and are fitted as logarithms; from a good pair of them the others follow in a few iterations.  Residuals of the
 * cost model are relative, so a pass of 1 row counts as much as a pass of 64 rows; residuals of the paper's speed-ups
 * are absolute. */
#include "speculative/fit.h"
#include "kernels/kernels.h"

#include <cminpack-1/cminpack.h>
#include <math.h>
#include <string.h>

#define TOLERANCE          1e-12
#define MAX_CALLS          4000
#define MAX_START_SHARE    0.95  /* starts are inside the bounds, for x(u) has no slope there */
#define U_OFFSET           2     /* offset of u: MINPACK's differences are relative to u */
#define SQUARED_DIFFERENCE 1e-12 /* the square of the relative difference */
#define STARTS             24
#define PAPER_STARTS       8
#define MIN_GROWTH         1e-5 /* least value of growth - 1 */
#define MIN_WAIT           0.1
#define MAX_WAIT           2.0 /* a disk may give half of its measured rate */
#define EXPECTED_STARTS    3   /* a prior leaves no distant minimum */
#define N_ANCHOR           8   /* points of the prior: 1, 2, 4 .. 128 rows */
#define ANCHOR_CONTEXT     1024
#define ANCHOR_WEIGHT      0.02 /* sixteen of them weigh a third of one well measured point */

/* ---- bounded least squares ---------------------------------------------------------------------------------- */

struct problem {
    const struct spec_fit_param *param;
    int n, m, n_residual; /* parameters; MINPACK's rows, at least n; residuals */
    double scale[SPEC_FIT_PARAMS];
    spec_fit_residual_function *residual;
    const void *arg;
    int n_call;
};

static bool given(const struct spec_fit_param *p) { return p->high <= p->low; }

static double to_x(const struct problem *q, int i, double u)
{
    const struct spec_fit_param *p = &q->param[i];
    if (isinf(p->high))
        return p->low + q->scale[i] * u * u;
    double half = (p->high - p->low) / 2;
    return fmin(fmax(p->low + half + half * 2 * u / (1 + u * u), p->low), p->high);
}

static double to_u(const struct problem *q, int i, double x)
{
    const struct spec_fit_param *p = &q->param[i];
    if (isinf(p->high))
        return sqrt(fmax(x - p->low, 0) / q->scale[i]);
    double half = (p->high - p->low) / 2, y = fmin(fmax((x - p->low) / half - 1, -MAX_START_SHARE), MAX_START_SHARE);
    return y / (1 + sqrt(1 - y * y));
}

static void x_of(const struct problem *q, const double *u, double *x)
{
    for (int i = 0; i < q->n; i++)
        x[i] = given(&q->param[i]) ? q->param[i].low : to_x(q, i, *u++ - U_OFFSET);
}

static int evaluate(void *arg, int m, int n, const double *u, double *out, int flag)
{
    struct problem *q = arg;
    double x[SPEC_FIT_PARAMS];
    (void)n;
    (void)flag;
    x_of(q, u, x);
    q->residual(q->arg, x, out);
    for (int i = q->n_residual; i < m; i++)
        out[i] = 0;
    q->n_call++;
    return 0;
}

/* The k-th start: the given one, then points spread evenly over the bounds (additive recurrences). */
static void start_at(const struct problem *q, int k, double *u)
{
    for (int i = 0; i < q->n; i++) {
        const struct spec_fit_param *p = &q->param[i];
        if (given(p))
            continue;
        double turn = k * sqrt(i + 2.0) * 0.6180339887498949, at = turn - floor(turn), x = p->start;
        if (k && isinf(p->high))
            x = p->low + q->scale[i] * kn_exp(4 * at - 2);
        else if (k)
            x = p->low + (p->high - p->low) * at;
        *u++ = to_u(q, i, x) + U_OFFSET;
    }
}

int spec_fit_solve(struct spec_fit_solution *out, const struct spec_fit_param *param, int n, int m,
                   spec_fit_residual_function *residual, const void *arg, int n_start)
{
    kn_assert(n > 0 && n <= SPEC_FIT_PARAMS && m > 0 && n_start > 0);
    struct problem q = { .param = param, .n = n, .n_residual = m, .m = kn_max(m, n), .residual = residual, .arg = arg };
    int n_free = 0, pivot[SPEC_FIT_PARAMS], calls;
    for (int i = 0; i < n; i++) {
        q.scale[i] = param[i].start > param[i].low ? param[i].start - param[i].low : 1;
        n_free += !given(&param[i]);
    }
    double u[SPEC_FIT_PARAMS], diag[SPEC_FIT_PARAMS], qtf[SPEC_FIT_PARAMS], work[3][SPEC_FIT_PARAMS];
    double *f = kn_alloc((size_t)q.m * (size_t)(n_free + 2) * sizeof *f);
    if (!f)
        return kn_fail(KN_ENOMEM, "no memory to fit %d points", m);
    double *jacobian = f + q.m, *room = jacobian + (size_t)q.m * (size_t)n_free;
    struct spec_fit_solution best = { .sum_squares = INFINITY };
    for (int k = 0; k < n_start; k++) {
        struct spec_fit_solution s = { .sum_squares = 0 };
        start_at(&q, k, u);
        if (n_free)
            lmdif(evaluate, &q, q.m, n_free, u, f, TOLERANCE, TOLERANCE, 0, MAX_CALLS, SQUARED_DIFFERENCE, diag, 1, 100,
                  0, &calls, jacobian, q.m, pivot, qtf, work[0], work[1], work[2], room);
        evaluate(&q, q.m, n_free, u, f, 0);
        for (int i = 0; i < m; i++)
            s.sum_squares += f[i] * f[i];
        x_of(&q, u, s.x);
        if (s.sum_squares < best.sum_squares)
            best = s;
    }
    kn_free(f);
    if (isinf(best.sum_squares))
        return kn_fail(KN_EINVAL, "no model fits %d points: one of them may be zero or not a number", m);
    best.n_call = q.n_call;
    *out = best;
    return 0;
}

/* ---- the cost model: passes ----------------------------------------------------------------------------------- */

enum { FIXED, DENSE, LOAD, EXPERT, RIDGE, GROWTH, WAIT, KV, COPY, PASS_PARAMS };

static void cost_of(struct spec_cost_model *c, const double *x)
{
    c->fixed_ns = x[FIXED];
    c->dense_ns = x[DENSE];
    c->load_ns = x[LOAD];
    c->expert_ns = x[EXPERT];
    c->ridge = kn_exp(x[RIDGE]);
    c->growth = 1 + kn_exp(x[GROWTH]);
    c->wait = x[WAIT];
    c->kv_ns = x[KV];
    c->copy_ns = x[COPY];
}

static double point_error(const struct spec_cost_model *c, const struct spec_fit_point *p)
{
    double linear = c->kv_ns * p->kv + c->copy_ns * p->copied;
    return (spec_cost_pass_ns(c, p->rows, p->distinct, p->miss_ns) + linear) / p->ns - 1;
}

static void pass_residual(const void *arg, const double *x, double *out)
{
    const struct spec_fit_input *m = arg;
    struct spec_cost_model c = { .n_expert = m->n_expert, .n_used = m->n_used };
    cost_of(&c, x);
    for (int i = 0; i < m->n_pass; i++)
        if (!m->pass[i].hold)
            *out++ = point_error(&c, &m->pass[i]) * (m->pass[i].weight > 0 ? sqrt(m->pass[i].weight) : 1);
}

static int n_fitted(const struct spec_fit_point *p, int n)
{
    int fitted = 0;
    for (int i = 0; i < n; i++)
        fitted += !p[i].hold;
    return fitted;
}

/* The terms that occur in at least one point; the constants of the others are not fitted. */
struct terms {
    bool misses, kv, copies;
};

static struct terms terms_of(const struct spec_fit_input *m)
{
    struct terms t = { false, false, false };
    for (int i = 0; i < m->n_pass; i++) {
        t.misses |= m->pass[i].miss_ns > 0;
        t.kv |= m->pass[i].kv > 0;
        t.copies |= m->pass[i].copied > 0;
    }
    return t;
}

/* Number of free constants of a pass: two fewer without experts, one fewer for each term that does not occur. */
static int n_constant(const struct spec_fit_input *m)
{
    struct terms t = terms_of(m);
    return PASS_PARAMS - (m->n_expert > 0 ? 0 : 2) - !t.misses - !t.kv - !t.copies;
}

/* ---- the prior -------------------------------------------------------------------------------------------------- */

/* The time of a point by the prior: without its estimate of misses, as the point has measured ones. */
static double expected_ns(const struct spec_cost_model *expected, const struct spec_fit_point *p)
{
    struct spec_cost_model c = *expected;
    c.disk_ns = 0;
    c.wait = c.wait > 0 ? c.wait : 1; /* an estimate that no passes made */
    return spec_cost_pass_ns(&c, p->rows, p->distinct, p->miss_ns) + spec_cost_choose_ns(&c, p->rows) +
           c.kv_ns * p->kv + c.copy_ns * p->copied;
}

/* Writes points of the prior, behind the measured ones: rows from 1 to 128, each without context and with
 * ANCHOR_CONTEXT positions a row.  Returns their number. */
static int add_anchors(struct spec_fit_point *out, const struct spec_fit_input *m)
{
    double log = 0, weight = 0;
    int n = 0;
    for (int i = 0; i < m->n_pass; i++) {
        double w = m->pass[i].weight > 0 ? m->pass[i].weight : 1;
        log += w * kn_log(m->pass[i].ns / expected_ns(m->expected, &m->pass[i]));
        weight += w;
    }
    double scale = kn_exp(log / weight);
    for (int k = 0; k < N_ANCHOR; k++)
        for (int c = 0; c < 2; c++) {
            struct spec_fit_point p = { .rows = 1 << k, .kv = c * ANCHOR_CONTEXT * (1 << k), .weight = ANCHOR_WEIGHT };
            p.ns = scale * expected_ns(m->expected, &p);
            out[n++] = p;
        }
    return n;
}

/* ---- the cost model: the fit of passes --------------------------------------------------------------------------- */

static int fit_passes(struct spec_cost_model *c, const struct spec_fit_input *m)
{
    double least = INFINITY, most = 0, longest = 0;
    struct terms has = terms_of(m);
    for (int i = 0; i < m->n_pass; i++) {
        least = fmin(least, m->pass[i].ns - m->pass[i].miss_ns);
        most = fmax(most, m->pass[i].ns);
        longest = fmax(longest, m->pass[i].kv);
    }
    double none = m->n_expert > 0 ? INFINITY : 0, used = fmax(m->n_used, 1);
    least = fmax(least, most * 0.01);
    const struct spec_fit_param param[PASS_PARAMS] = {
        [FIXED] = { m->fixed_least_ns, INFINITY, fmax(least / 2, 1.1 * m->fixed_least_ns) },
        [DENSE] = { 0, INFINITY, most / 4 },
        [LOAD] = { none > 0 ? m->load_least_ns : 0, none, fmax(least / 2 / used, 1.1 * m->load_least_ns) },
        [EXPERT] = { 0, none, most / 4 / used },
        [RIDGE] = { kn_log(m->ridge_least), kn_log(m->ridge_most), kn_log(sqrt(m->ridge_least * m->ridge_most)) },
        [GROWTH] = { kn_log(MIN_GROWTH), 0, kn_log(0.02) }, /* growth 1 to 2, as in the paper */
        [WAIT] = { has.misses ? MIN_WAIT : 1, has.misses ? MAX_WAIT : 1, 1 },
        [KV] = { 0, has.kv ? INFINITY : 0, least / 10 / fmax(longest, 1) },
        [COPY] = { 0, has.copies ? INFINITY : 0, least / 10 / used },
    };
    struct spec_fit_solution s;
    int e = spec_fit_solve(&s, param, PASS_PARAMS, n_fitted(m->pass, m->n_pass), pass_residual, m,
                           m->expected ? EXPECTED_STARTS : STARTS);
    if (!e)
        cost_of(c, s.x);
    return e;
}

/* ---- the cost model: linear terms -------------------------------------------------------------------------------- */

struct line {
    const struct spec_fit_point *point;
    int n;
    const struct spec_cost_model *bend;
}; /* bend: the line is over phi(rows), with its ridge and growth; NULL: over rows */

static void line_residual(const void *arg, const double *x, double *out)
{
    const struct line *l = arg;
    for (int i = 0; i < l->n; i++) {
        const struct spec_fit_point *p = &l->point[i];
        double t = l->bend ? spec_cost_phi(p->rows, l->bend->ridge, l->bend->growth) : p->rows;
        if (!p->hold)
            *out++ = (x[0] + x[1] * t) / p->ns - 1;
    }
}

static int fit_line(double *fixed, double *slope, const struct spec_fit_point *point, int n,
                    const struct spec_cost_model *bend)
{
    if (n == 0)
        return 0;
    const struct line l = { point, n, bend };
    const struct spec_fit_param param[2] = { { 0, INFINITY, point[0].ns }, { 0, INFINITY, point[0].ns } };
    struct spec_fit_solution s;
    int e = spec_fit_solve(&s, param, 2, n_fitted(point, n), line_residual, &l, 4);
    if (!e) {
        *fixed = s.x[0];
        *slope = s.x[1];
    }
    return e;
}

/* ---- the cost model ------------------------------------------------------------------------------------------ */

static int check_points(const char *what, const struct spec_fit_point *p, int n, int least)
{
    if (n > SPEC_FIT_POINTS)
        return kn_fail(KN_ELIMIT, "%d %s measured, at most %d can be fitted", n, what, SPEC_FIT_POINTS);
    for (int i = 0; i < n; i++)
        if (!(p[i].ns > 0 && p[i].rows > 0 && isfinite(p[i].ns) && isfinite(p[i].rows)))
            return kn_fail(KN_EINVAL, "measured %s %d: %g rows in %g ns is not a valid measurement", what, i, p[i].rows,
                           p[i].ns);
    if (n_fitted(p, n) < least)
        return kn_fail(KN_EINVAL, "%d %s measured, the fit needs %d: measure more numbers of rows", n_fitted(p, n),
                       what, least);
    return 0;
}

double spec_fit_residual(const struct spec_fit *fit, const struct spec_fit_point *point)
{
    return point_error(&fit->cost, point);
}

static void measure_errors(struct spec_fit *f, const struct spec_fit_input *m)
{
    int n = 0, n_held = 0;
    for (int i = 0; i < m->n_pass; i++) {
        double error = fabs(point_error(&f->cost, &m->pass[i]));
        bool held = m->pass[i].hold;
        double *sum = held ? &f->held_error : &f->error, *worst = held ? &f->held_worst : &f->worst;
        *sum += error;
        *worst = fmax(*worst, error);
        n += !held;
        n_held += held;
        f->rows_most = fmax(f->rows_most, m->pass[i].rows);
    }
    f->error /= n;
    f->held_error /= n_held > 0 ? n_held : 1;
}

int spec_fit(struct spec_fit *out, const struct spec_fit_input *m)
{
    struct spec_fit f = { .cost = { .n_expert = m->n_expert, .n_used = m->n_used } };
    struct spec_fit_point all[SPEC_OBSERVED_POINTS + 2 * N_ANCHOR];
    struct spec_fit_input with = *m;
    int e = check_points("passes", m->pass, m->n_pass, m->expected ? 1 : n_constant(m));
    if (!e)
        e = check_points("draft passes", m->draft, m->n_draft, m->n_draft ? 2 : 0);
    if (!e)
        e = check_points("choices", m->choose, m->n_choose, m->n_choose ? 2 : 0);
    if (!e && !(m->ridge_least > 0 && m->ridge_most >= m->ridge_least))
        e = kn_fail(KN_EINVAL, "the ridge range is %g to %g rows: its start must be positive, and not above its end",
                    m->ridge_least, m->ridge_most);
    if (!e && m->expected && m->n_pass > SPEC_OBSERVED_POINTS)
        e = kn_fail(KN_ELIMIT, "%d passes, at most %d can be fitted near a prior", m->n_pass, SPEC_OBSERVED_POINTS);
    if (!e && m->expected) {
        memcpy(all, m->pass, (size_t)m->n_pass * sizeof *all);
        with.pass = all;
        with.n_pass += add_anchors(all + m->n_pass, m);
    }
    if (!e)
        e = fit_passes(&f.cost, &with);
    if (!e)
        e = fit_line(&f.cost.draft_ns, &f.cost.draft_row_ns, m->draft, m->n_draft, &f.cost);
    if (!e)
        e = fit_line(&f.cost.choose_ns, &f.cost.choose_row_ns, m->choose, m->n_choose, NULL);
    if (e)
        return e;
    measure_errors(&f, m);
    *out = f;
    return 0;
}

int spec_fit_draft(struct spec_cost_model *cost, const struct spec_fit_point *draft, int n)
{
    if (n == 1) {
        cost->draft_ns = draft->ns;
        cost->draft_row_ns = 0;
        return 0;
    }
    int e = check_points("draft passes", draft, n, 2);
    return e ? e : fit_line(&cost->draft_ns, &cost->draft_row_ns, draft, n, cost);
}

/* ---- the paper's own fit ----------------------------------------------------------------------------------- */

double spec_paper_speedup(const double x[SPEC_PAPER_PARAMS], double ridge_point, const struct spec_paper_point *at)
{
    double ridge = x[SPEC_LAMBDA] * ridge_point, time[2];
    for (int verify = 0; verify < 2; verify++) {
        double rows = at->n_seq * (verify ? at->depth : 1);
        double n = spec_cost_distinct(at->n_expert, at->n_used, rows);
        double each = spec_cost_rows_of_expert(at->n_used, rows, n);
        time[verify] = x[SPEC_BIAS] + x[SPEC_K1] * (1 + spec_cost_phi(rows, ridge, x[SPEC_S])) + x[SPEC_K2] * n +
                       x[SPEC_K3] * (1 + spec_cost_phi(each, ridge, x[SPEC_S]));
    }
    double draft = x[SPEC_DRAFT_BIAS] + x[SPEC_DRAFT_K] * (1 + spec_cost_phi(at->n_seq, ridge, x[SPEC_S]));
    double reject = x[SPEC_REJECT_BIAS] + x[SPEC_REJECT_K] * at->n_seq;
    return at->sigma * (at->depth + 1) * time[0] / (at->depth * draft + time[1] + reject);
}

struct paper {
    double ridge_point;
    const struct spec_paper_point *point;
    int n;
};

/* The growth is fitted as the logarithm of its excess over 1: all relevant values are below 1.1. */
static void paper_residual(const void *arg, const double *log_x, double *out)
{
    const struct paper *p = arg;
    double x[SPEC_PAPER_PARAMS];
    memcpy(x, log_x, sizeof x);
    x[SPEC_S] = 1 + kn_exp(x[SPEC_S]);
    for (int i = 0; i < p->n; i++)
        out[i] = spec_paper_speedup(x, p->ridge_point, &p->point[i]) - p->point[i].speedup;
}

int spec_paper_fit(struct spec_fit_solution *out, const struct spec_fit_param param[SPEC_PAPER_PARAMS],
                   double ridge_point, const struct spec_paper_point *point, int n)
{
    const struct paper p = { ridge_point, point, n };
    struct spec_fit_param log_param[SPEC_PAPER_PARAMS];
    memcpy(log_param, param, sizeof log_param);
    struct spec_fit_param *s = &log_param[SPEC_S];
    *s = (struct spec_fit_param){ kn_log(fmax(s->low - 1, MIN_GROWTH)), kn_log(fmax(s->high - 1, MIN_GROWTH)),
                                  kn_log(fmax(s->start - 1, MIN_GROWTH)) };
    int e = spec_fit_solve(out, log_param, SPEC_PAPER_PARAMS, n, paper_residual, &p, PAPER_STARTS);
    if (!e)
        out->x[SPEC_S] = 1 + kn_exp(out->x[SPEC_S]);
    return e;
}
