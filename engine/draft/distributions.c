/* What drafters drew from: the law of each row that a draft goes on from, kept until the draft is verified.
 *
 * Where --verify is ratio or block, a drafter with a network samples its tokens from its own distribution, as
 * the session's sampling makes it, and the verification needs that distribution to keep the model's.  What is
 * drawn stays in the tree, whatever it is, and who draws decides whether to go on by nothing but what was drawn
 * before (speculative.h).  There are as many laws as a pass has rows for drafts; n_vocab weights each. */
#include "engine/internal.h"

#include <string.h>

int eng_draws_open(struct eng_engine *e)
{
    struct eng_draws *w = &e->draws;
    bool any = false;
    for (int i = 0; i < e->n_drafter; i++)
        any |= e->drafter[i]->can_draw;
    if (e->opt.verify == SPEC_COUPLED || !e->n_drafter)
        return 0;
    if (!any) {
        kn_say(KN_LOG_WARN, "--verify: none of these drafters draws from a distribution of its own, so the text is "
               "the coupled one's");
        return 0;
    }
    kn_say(KN_LOG_INFO, "--verify: texts have the model's distribution, but are not those that the same seeds give "
           "without drafts");
    w->n_most = e->n_draft_row;
    w->n_vocab = eng_vocab_size(e->vocab);
    w->law = kn_calloc((size_t)w->n_most, sizeof *w->law);
    w->weight = kn_calloc((size_t)w->n_most * (size_t)w->n_vocab, sizeof *w->weight);
    return w->law && w->weight ? 0 : kn_fail(KN_ENOMEM, "no memory for the distributions of %d drafted tokens: "
                                             "lower --gamma or --parallel", w->n_most);
}

void eng_draws_close(struct eng_engine *e)
{
    kn_free(e->draws.law);
    kn_free(e->draws.weight);
}

void eng_draws_clear(struct eng_engine *e) { e->draws.n = 0; }

bool eng_draws(const struct eng_session *s)
{
    return s->engine->draws.n_most > 0 && s->sampling.temperature > 0;
}

struct spec_dist *eng_draws_take(struct eng_engine *e)
{
    struct eng_draws *w = &e->draws;
    if (w->n == w->n_most)
        return NULL;
    struct spec_dist *law = &w->law[w->n];
    *law = (struct spec_dist){ .n = w->n_vocab, .weight = w->weight + (size_t)w->n * (size_t)w->n_vocab };
    w->n++;
    return law;
}

int eng_draws_keep(struct spec_dist *law, struct spec_sampler *sampler, const struct eng_session *s, int n_history,
                   const float *logits)
{
    float *weight = (float *)law->weight;       /* the pool's own */
    struct spec_dist d;
    int error = spec_target(sampler, &s->sampling, logits, s->token, n_history, n_history, &d);
    if (error)
        return error;
    if (d.token)
        memset(weight, 0, (size_t)law->n * sizeof *weight);
    for (int i = 0; i < d.n; i++)
        weight[d.token ? d.token[i] : i] = d.weight[i];
    law->sum = d.sum;
    return 0;
}

struct spec_choice eng_draws_token(const struct eng_drafter *d, const struct eng_session *s,
                                   const struct spec_dist *law, int n)
{
    const int most = 1 << 16;                   /* draws of one drafter in a draft */
    struct spec_choice c;
    c.token = spec_dist_token(law, spec_draft_uniform(&s->sampling, s->n_token, d->number * most + n));
    c.chance = (float)spec_dist_prob(law, c.token);
    c.logprob = (float)kn_log((double)c.chance);
    return c;
}
