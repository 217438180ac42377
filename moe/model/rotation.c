/* moe/model/rotation.c - the angles of a position's rotation (RoPE), with the scalings that a description may have; the
 * growth of queries; the description of MTP layers. */
#include "moe/model/internal.h"

/* The number of the pair, as a real number, that makes `turns` full rotations over the original context (YaRN's
 * correction dimension). */
static double yarn_pair(const struct moe_desc *d, double turns)
{
    const double two_pi = 6.283185307179586;
    return d->n_rot * kn_log(d->scaling_ctx / (turns * two_pi)) / (2 * kn_log(d->rope_base));
}

static double clamp_floor(double x, double most) { return x <= 0 ? 0 : x >= most ? most : (double)(int64_t)x; }

static double clamp_ceil(double x, double most)
{
    double down = clamp_floor(x, most);
    return down < x && down < most ? down + 1 : down;
}

int moe_rope_freq(const struct moe_desc *d, const float *extra, float *freq)
{
    double low = 0, high = 0;
    if (d->scaling == MOE_SCALING_YARN) {
        if (!(d->beta_fast > 0 && d->beta_slow > 0 && d->rope_base > 1))
            return kn_fail(KN_ECORRUPT, "the yarn scaling's betas or base are out of range");
        low = yarn_pair(d, d->beta_fast);
        high = yarn_pair(d, d->beta_slow);
        if (d->yarn_exact) {
            low = low < 0 ? 0 : low;
            high = high > d->n_rot - 1 ? d->n_rot - 1 : high;
        } else {
            low = clamp_floor(low, d->n_rot - 1);
            high = clamp_ceil(high, d->n_rot - 1);
        }
        if (high - low < 0.001)
            high = low + 0.001;
    }
    int n_rot = moe_window_rot(d);
    for (int i = 0; i < n_rot / 2; i++)
        freq[d->n_rot / 2 + i] = 1.0f / (float)kn_pow(d->window_rope_base, 2.0 * i / n_rot);
    for (int i = 0; i < d->n_rot / 2; i++) {
        double f = 1.0 / (float)kn_pow(d->rope_base, 2.0 * i / d->n_rot);
        if (d->scaling == MOE_SCALING_LINEAR)
            f = (float)f / d->scaling_factor;
        if (d->scaling == MOE_SCALING_YARN) {
            double ramp = (i - low) / (high - low);
            double stretched = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            f = f / d->scaling_factor * stretched + f * (1 - stretched);
        }
        freq[i] = extra ? (float)f / extra[i] : (float)f;
    }
    return 0;
}

float moe_query_scale(const struct moe_desc *d, int position)
{
    return (float)(1 + (double)d->query_growth * kn_log(1.0 + (position + d->query_offset) / d->query_period));
}

void moe_desc_ahead(struct moe_desc *d, const struct moe_desc *target)
{
    *d = *target;
    d->head = MOE_HEAD_AHEAD;
    d->reads.last = true;
    d->n_guess = d->n_vocab;
    d->block0 = target->n_layer;
    d->n_layer = 1;
    d->n_ahead = d->n_lead = d->moe_step = d->window = d->delta_period = 0;
    d->window_rope_base = 0;
    d->window_heads.n_kv = 0;
    memset(d->unrotated_layers, 0, sizeof d->unrotated_layers);
    if (d->n_expert)
        d->d_ff = 0;
}
