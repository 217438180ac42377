/* speculative/speculative.h - which token comes next, and (later) which drafts are kept.
 *
 * The choice, from a row's logits and its sampler's parameters and history.  float unless it says double:
 *   0. a NaN logit becomes -INFINITY, +INFINITY becomes FLT_MAX.  A token at -INFINITY, here or after any
 *      later step, is never chosen; a row of nothing else is an error;
 *   1. penalties, once for each token that the last repeat_last of the history hold, count times:
 *      z = z > 0 ? z / repetition : z * repetition, then z -= count * frequency, then z -= presence;
 *      then z += add for each bias, in the order given; then z = -INFINITY where the mask's bit is 0;
 *   2. temperature 0: the largest z, lowest id on a tie;
 *   3. else the support: z sorted by value descending, id ascending.  top-k keeps the first k; top-p
 *      the shortest head whose weights reach p's, where the weight of a probability x is the whole number
 *      below 2^44 x, and probabilities are the softmax (the operation of kernels.h) over all tokens of
 *      (z - largest z) / T, taken in double; min-p those with (z - largest z) / T, in double, at least
 *      log(min_p).  All three look at the distribution at T before any cut, and the shortest head wins;
 *   4. argmax over the support of double z / T + g(seed, choice, position, id), lowest id on a tie; g is a
 *      counter-based Gumbel hash (sample.c).  So the same seed, choice and position meet the same noise
 *      whatever else runs, and drafts can be coupled to it. */
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
    const uint32_t *mask;                           /* [spec_mask_words] bit 0 of word 0: token 0; NULL: all */
};

static inline size_t spec_mask_words(int n_vocab) { return ((size_t)n_vocab + 31) / 32; }

void spec_params_default(struct spec_params *p);

/* Says what is out of range, and where. */
int spec_params_check(const struct spec_params *p, int n_vocab);

/* Scratch for one call at a time. */
struct spec_sampler;
int  spec_sampler_open(struct spec_sampler **out, int n_vocab);
void spec_sampler_close(struct spec_sampler *s);

struct spec_choice {
    int32_t token;
    float logprob;                                  /* softmax after step 0 alone, T = 1 */
};

/* Chooses the token for `position` (of the token to come).  history[n_history] is what precedes it,
 * prompt included; ids outside the vocabulary are passed over.  logits is left as it was. */
int spec_sample(struct spec_sampler *s, const struct spec_params *p, const float *logits /* [n_vocab] */,
                const int32_t *history, int n_history, int64_t position, struct spec_choice *out);

/* The n likeliest tokens after step 0 alone, T = 1: most likely first, lowest id on a tie. */
struct spec_top { int32_t token; float logprob; };
void spec_top(struct spec_sampler *s, const float *logits /* [n_vocab] */, int n, struct spec_top *out);

/* The Gumbel noise of step 4. */
double spec_noise(uint64_t seed, uint32_t choice, int64_t position, int32_t token);

#endif
