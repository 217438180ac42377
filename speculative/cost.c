/* speculative/cost.c - the terms of a pass and of a round. */
#include "speculative/cost.h"
#include "kernels/kernels.h"

#include <math.h>

/* e^x - 1 where it would cancel: the next term is below x^4 / 24. */
static double expm1_of(double x)
{
    return x < 1e-4 ? x * (1 + x / 2 * (1 + x / 3)) : kn_exp(x) - 1;
}

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

int spec_cost_threshold(double n_expert, double n_used, double share)
{
    if (n_used >= n_expert)
        return 1;
    return (int)ceil(kn_log(1 - share) / kn_log(1 - n_used / n_expert));
}

double spec_cost_rows_of_expert(double n_used, double t, double distinct)
{
    return distinct > 0 ? t * n_used / distinct : 0;
}

double spec_cost_pass_ns(const struct spec_cost_model *c, double t, double distinct, double miss_ns)
{
    double ns = c->fixed_ns + c->dense_ns * spec_cost_phi(t, c->ridge, c->growth) + miss_ns;
    if (c->n_expert <= 0)
        return ns;
    double u = distinct > 0 ? distinct : spec_cost_distinct(c->n_expert, c->n_used, t);
    double rows = spec_cost_rows_of_expert(c->n_used, t, u);
    ns += c->load_ns * u + c->expert_ns * u * spec_cost_phi(rows, c->ridge, c->growth);
    return fmax(ns, c->disk_ns * u);
}

double spec_cost_miss_ns(double missed_bytes, double Bps, double hidden_ns)
{
    double ns = missed_bytes / Bps * 1e9 - hidden_ns;
    return ns > 0 ? ns : 0;
}

double spec_cost_draft_ns(const struct spec_cost_model *c, double n_seq)
{
    return c->draft_ns + c->draft_row_ns * spec_cost_phi(n_seq, c->ridge, c->growth);
}

double spec_cost_choose_ns(const struct spec_cost_model *c, double t) { return c->choose_ns + c->choose_row_ns * t; }

double spec_cost_tokens(double accept, int depth)
{
    double tokens = 1, kept = 1;
    for (int i = 0; i < depth; i++)
        tokens += kept *= accept;
    return tokens;
}

void spec_cost_round(struct spec_round *out, const struct spec_cost_model *c, int n_seq, int depth, double accept)
{
    struct spec_round r = { .rows = n_seq * (depth + 1.0), .tokens = n_seq * spec_cost_tokens(accept, depth) };
    r.off_ns = spec_cost_pass_ns(c, n_seq, 0, 0);
    r.pass_ns = spec_cost_pass_ns(c, r.rows, 0, 0);
    r.draft_ns = depth * spec_cost_draft_ns(c, n_seq);
    r.choose_ns = spec_cost_choose_ns(c, r.rows);
    r.efficiency = r.off_ns / r.pass_ns;
    double off_token_ns = (r.off_ns + spec_cost_choose_ns(c, n_seq)) / n_seq;
    r.speedup = r.tokens * off_token_ns / (r.draft_ns + r.pass_ns + r.choose_ns);
    *out = r;
}
