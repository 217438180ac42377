/* engine/draft/distributions.c - the distributions that drafted tokens were sampled from, stored until the draft is
 * verified.
 *
 * Under --verify ratio or block a drafter with a network samples its tokens from its own distribution, under the
 * session's sampling parameters. Verification needs that distribution to preserve the model's. A sampled token stays
 * in the tree whatever it is, and whether the drafter samples a further one may depend only on the tokens sampled so
 * far (speculative.h). There are as many distributions as draft rows in a pass, each with n_vocab weights. */
#include "engine/draft/internal.h"

#include <string.h>

int eng_distributions_open(struct eng_drafting *g)
{
    struct eng_distributions *w = &g->distributions;
    bool any = false;
    for (int i = 0; i < g->n_drafter; i++)
        any |= g->drafter[i]->can_draw;
    if (g->opt.verify == SPEC_COUPLED || !g->n_drafter)
        return 0;
    if (!any) {
        kn_say(KN_LOG_WARN, "--verify: no drafter samples from a distribution of its own, so the output is that of "
                            "--verify coupled");
        return 0;
    }
    kn_say(KN_LOG_INFO, "--verify: output has the model's distribution, but the same seed gives another text than "
                        "without drafts");
    w->n_max = g->host.n_draft_row;
    w->n_vocab = eng_vocab_size(g->host.vocab);
    w->dist = kn_calloc((size_t)w->n_max, sizeof *w->dist);
    w->weight = kn_calloc((size_t)w->n_max * (size_t)w->n_vocab, sizeof *w->weight);
    return w->dist && w->weight ? 0
                                : kn_fail(KN_ENOMEM,
                                          "no memory for the distributions of %d drafted tokens: "
                                          "lower --gamma or --parallel",
                                          w->n_max);
}

void eng_distributions_close(struct eng_drafting *g)
{
    kn_free(g->distributions.dist);
    kn_free(g->distributions.weight);
}

void eng_distributions_clear(struct eng_drafting *g) { g->distributions.n = 0; }

bool eng_draft_samples(const struct eng_drafting *g, const struct eng_seq *s)
{
    return g->distributions.n_max > 0 && s->sampling->temperature > 0;
}

struct spec_dist *eng_distribution_take(struct eng_drafting *g)
{
    struct eng_distributions *w = &g->distributions;
    if (w->n == w->n_max)
        return NULL;
    struct spec_dist *dist = &w->dist[w->n];
    *dist = (struct spec_dist){ .n = w->n_vocab, .weight = w->weight + (size_t)w->n * (size_t)w->n_vocab };
    w->n++;
    return dist;
}

int eng_distribution_fill(struct spec_dist *dist, struct spec_sampler *sampler, const struct eng_seq *s, int n_history,
                          const float *logits)
{
    float *weight = (float *)dist->weight; /* writable: it points into g->distributions.weight */
    struct spec_dist d;
    int error = spec_target(sampler, s->sampling, logits, s->token, n_history, n_history, &d);
    if (error)
        return error;
    if (d.token)
        memset(weight, 0, (size_t)dist->n * sizeof *weight);
    for (int i = 0; i < d.n; i++)
        weight[d.token ? d.token[i] : i] = d.weight[i];
    dist->sum = d.sum;
    return 0;
}

struct spec_sampled eng_distribution_draw(const struct eng_drafter *d, const struct eng_seq *s,
                                          const struct spec_dist *dist, int n)
{
    const int most = 1 << 16; /* samples of one drafter in a draft, at most */
    struct spec_sampled c;
    c.token = spec_dist_token(dist, spec_draft_uniform(s->sampling, s->n_token, d->number * most + n));
    c.chance = (float)spec_dist_prob(dist, c.token);
    c.logprob = (float)kn_log((double)c.chance);
    return c;
}
