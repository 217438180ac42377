/* speculative/cost.c - the terms of the cost model. */
#include "speculative/cost.h"
#include "kernels/kernels.h"

#include <math.h>

#define FULL_SHARE 0.95 /* share of experts that counts as all */

/* e^x - 1; a series near 0, where the difference would cancel: the next term is below x^4 / 24. */
static double expm1_of(double x) { return x < 1e-4 ? x * (1 + x / 2 * (1 + x / 3)) : kn_exp(x) - 1; }

double spec_cost_phi(double t, double ridge, double growth)
{
    double steep = kn_log(growth);
    if (t <= ridge)
        return expm1_of(t * steep);
    return expm1_of(ridge * steep) + kn_exp(ridge * steep) * steep * (t - ridge);
}

double spec_cost_distinct(double n_expert, double n_used, double t)
{
    if (n_used >= n_expert)
        return n_expert;
    return n_expert * (1 - kn_pow(1 - n_used / n_expert, t));
}

double spec_cost_rows_of_expert(double n_used, double t, double distinct)
{
    return distinct > 0 ? t * n_used / distinct : 0;
}

double spec_cost_full_rows(double n_expert, double n_used)
{
    if (n_used >= n_expert)
        return 1;
    return ceil(kn_log(1 - FULL_SHARE) / kn_log(1 - n_used / n_expert));
}

double spec_cost_pass_ns(const struct spec_cost_model *c, double t, double distinct, double miss_ns)
{
    double ns = c->fixed_ns + c->dense_ns * spec_cost_phi(t, c->ridge, c->growth) + c->wait * miss_ns;
    if (c->n_expert <= 0)
        return ns;
    double u = distinct > 0 ? distinct : spec_cost_distinct(c->n_expert, c->n_used, t);
    double rows = spec_cost_rows_of_expert(c->n_used, t, u);
    ns += c->load_ns * u + c->expert_ns * u * spec_cost_phi(rows, c->ridge, c->growth);
    if (miss_ns <= 0)
        ns += c->wait * c->disk_ns * u;
    return fmax(ns, c->disk_ns * u);
}

double spec_cost_efficiency(const struct spec_cost_model *c, double n_seq, double depth, double context)
{
    double rows = n_seq * (1 + depth), kv_ns = c->kv_ns * n_seq * context;
    double plain = spec_cost_pass_ns(c, n_seq, 0, 0) + spec_cost_choose_ns(c, n_seq) + kv_ns;
    return plain / (spec_cost_pass_ns(c, rows, 0, 0) + spec_cost_choose_ns(c, rows) + kv_ns);
}

double spec_cost_draft_ns(const struct spec_cost_model *c, double n_seq)
{
    double rows = c->draft_row_ns > 0 ? c->draft_row_ns * spec_cost_phi(n_seq, c->ridge, c->growth) : 0;
    return c->draft_ns + rows;
}

double spec_cost_choose_ns(const struct spec_cost_model *c, double t) { return c->choose_ns + c->choose_row_ns * t; }

double spec_cost_tokens(double accept, int depth)
{
    double tokens = 1, kept = 1;
    for (int i = 0; i < depth; i++)
        tokens += kept *= accept;
    return tokens;
}

double spec_cost_accept(double tokens, int depth)
{
    double low = 0, high = 1;
    if (tokens > depth + 1)
        return INFINITY;
    for (int i = 0; i < 52; i++) {
        double middle = (low + high) / 2;
        *(spec_cost_tokens(middle, depth) < tokens ? &low : &high) = middle;
    }
    return tokens > 1 ? high : 0;
}
