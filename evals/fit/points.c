/* evals/fit/points.c - measured points and the results of spec_fit and spec_paper_fit on them, for check.py to
 * compare with an independent solver.
 *
 *     points > points.csv
 *
 * Lines are of four kinds, marked by their first word:
 *     point,case,rows,ns,hold                                     passes of a case, all weights in memory
 *     fit,case,experts,used,ridge_least,ridge_most,sum_squares,error,held,fixed,dense,load,expert,ridge,growth
 *     speedup,case,batch,depth,used,experts,sigma,speedup
 *     paper,case,sum_squares,ten constants in the paper's order */
#include "kernels/kernels.h"
#include "speculative/fit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double unit(uint64_t i) { return (double)(kn_mix(KN_GOLDEN * (i + 1)) >> 11) * 0x1p-53; }

static const struct {
    const char *name;
    struct spec_cost_model cost;
    double noise;
} cases[] = {
    { "memory",
      { .fixed_ns = 8e6,
        .dense_ns = 5e6,
        .load_ns = 0.5e6,
        .expert_ns = 0.3e6,
        .ridge = 24,
        .growth = 1.03,
        .n_expert = 128,
        .n_used = 8 },
      0.02 },
    { "sums",
      { .fixed_ns = 3e6,
        .dense_ns = 60e6,
        .load_ns = 0.1e6,
        .expert_ns = 9e6,
        .ridge = 4,
        .growth = 1.05,
        .n_expert = 32,
        .n_used = 4 },
      0.02 },
    { "few",
      { .fixed_ns = 20e6,
        .dense_ns = 8e6,
        .load_ns = 2e6,
        .expert_ns = 1e6,
        .ridge = 40,
        .growth = 1.02,
        .n_expert = 8,
        .n_used = 2 },
      0.05 },
    { "dense", { .fixed_ns = 40e6, .dense_ns = 4e6, .ridge = 32, .growth = 1.04 }, 0.02 },
};
static const double rows[] = { 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256 };
#define N_ROWS 16

static int fit_case(int at)
{
    struct spec_fit_point p[N_ROWS];
    for (int i = 0; i < N_ROWS; i++) {
        double off = 1 + cases[at].noise * sqrt(3) * (2 * unit((uint64_t)(at * 100 + i)) - 1);
        p[i] = (struct spec_fit_point){ .rows = rows[i],
                                        .ns = spec_cost_pass_ns(&cases[at].cost, rows[i], 0, 0) * off,
                                        .hold = i % 4 == 2 };
        printf("point,%s,%g,%.17g,%d\n", cases[at].name, p[i].rows, p[i].ns, p[i].hold);
    }
    struct spec_fit_input m = { .n_expert = cases[at].cost.n_expert,
                                .n_used = cases[at].cost.n_used,
                                .ridge_least = 2,
                                .ridge_most = 200,
                                .pass = p,
                                .n_pass = N_ROWS };
    struct spec_fit f;
    double sum = 0;
    int e = spec_fit(&f, &m);
    for (int i = 0; i < N_ROWS && !e; i++) {
        double error = spec_fit_residual(&f, &p[i]);
        sum += p[i].hold ? 0 : error * error;
    }
    if (!e)
        printf("fit,%s,%g,%g,%g,%g,%.12g,%.6g,%.6g,%.9g,%.9g,%.9g,%.9g,%.9g,%.12g\n", cases[at].name, m.n_expert,
               m.n_used, m.ridge_least, m.ridge_most, sum, f.error, f.held_error, f.cost.fixed_ns, f.cost.dense_ns,
               f.cost.load_ns, f.cost.expert_ns, f.cost.ridge, f.cost.growth);
    return e;
}

/* Fits the paper's ten constants to speed-ups; bounds as in `spillway simulate moesd`, ridge point 156. */
static int fit_paper(int at, int n)
{
    static const double truth[SPEC_PAPER_PARAMS] = { 4.5, 1.0, 0.5, 2.0, 1.1, 0.3, 0.2, 0.004, 0.5, 1.016 };
    static const struct spec_fit_param bounds[SPEC_PAPER_PARAMS] = {
        { 3.5, 17.5, 7 },     { 0, INFINITY, 1 }, { 0.39, 1.95, 0.8 }, { 0, INFINITY, 1 }, { 0.25, 1.25, 0.5 },
        { 0, INFINITY, 0.1 }, { 0, 0.6, 0.1 },    { 0, 0.6, 0.01 },    { 0.2, 1, 0.6 },    { 1, 2, 1.02 },
    };
    struct spec_paper_point p[228];
    struct spec_fit_solution s;
    for (int i = 0; i < n; i++) {
        int depth = i % 2 ? 4 : 2, batch = 1 + (int)(99.0 * i / (n - 1));
        p[i] = (struct spec_paper_point){
            batch, depth, 1 << i % 6, 64, spec_cost_tokens(0.85, depth) / (depth + 1), 0
        };
        p[i].speedup = spec_paper_speedup(truth, 156, &p[i]) *
                       (1 + 0.02 * sqrt(3) * (2 * unit((uint64_t)(1000 * at + i)) - 1));
        printf("speedup,%d,%g,%g,%g,%g,%.17g,%.17g\n", at, p[i].n_seq, p[i].depth, p[i].n_used, p[i].n_expert,
               p[i].sigma, p[i].speedup);
    }
    int e = spec_paper_fit(&s, bounds, 156, p, n);
    if (e)
        return e;
    printf("paper,%d,%.12g", at, s.sum_squares);
    for (int i = 0; i < SPEC_PAPER_PARAMS; i++)
        printf(",%.9g", s.x[i]);
    printf("\n");
    return 0;
}

int main(void)
{
    static const int n[] = { 15, 21, 57 };
    int e = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !e; i++)
        e = fit_case((int)i);
    for (int i = 0; i < 3 && !e; i++)
        e = fit_paper(i, n[i]);
    return e ? 1 : 0;
}
