/* speculative/speculative.h - which token comes next, and (later) which drafts are kept.
 *
 * The choice.  From a row's logits and its sampler's parameters and history:
 *   1. penalties over the tokens of the history (repetition, then frequency and presence), then bias;
 *   2. temperature 0: the largest logit, lowest id on a tie;
 *   3. else the support: logits sorted by value descending, id ascending; top-k keeps the first k; top-p
 *      the shortest head whose probability (softmax of logit / T over the whole support, summed in that
 *      order) reaches p; min-p those with probability at least min_p times the first's.  All three look
 *      at the distribution at temperature T before any cut, and the smallest head wins;
 *   4. argmax over the support of logit / T + g(seed, choice, position, id), g a counter-based Gumbel
 *      hash.  So the same seed, choice and position meet the same noise whatever else runs, and drafts
 *      can be coupled to it.
 * A NaN logit is never chosen; a row of nothing else is an error. */
#ifndef SPECULATIVE_SPECULATIVE_H
#define SPECULATIVE_SPECULATIVE_H

#include "kernels/kernels.h"

struct spec_bias { int32_t token; float add; };     /* add may be -INFINITY: never */

struct spec_params {
    float temperature;                              /* >= 0 */
    int   top_k;                                    /* 0: off */
    float top_p, min_p;                             /* 1 and 0: off */
    float repetition, presence, frequency;          /* 1, 0, 0: off */
    int   repeat_last;                              /* tokens the penalties see; 0 none, -1 all */
    uint64_t seed;
    uint32_t choice;                                /* n-th choice of one request */
    const struct spec_bias *bias;
    int n_bias;
};

void spec_params_default(struct spec_params *p);

/* Says what is out of range, and where. */
int spec_params_check(const struct spec_params *p, int n_vocab);

/* Scratch for one call at a time. */
struct spec_sampler;
int  spec_sampler_open(struct spec_sampler **out, int n_vocab);
void spec_sampler_close(struct spec_sampler *s);

struct spec_choice {
    int32_t token;
    float logprob;                                  /* of the unprocessed softmax */
};

/* Chooses the token for `position` (of the token to come).  history[n_history] is what precedes it,
 * prompt included.  logits is left as it was. */
int spec_sample(struct spec_sampler *s, const struct spec_params *p, const float *logits /* [n_vocab] */,
                const int32_t *history, int n_history, int64_t position, struct spec_choice *out);

/* The Gumbel noise of step 4. */
double spec_noise(uint64_t seed, uint32_t choice, int64_t position, int32_t token);

#endif
