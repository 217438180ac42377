/* tests/speculative/model.h - random numbers, and models: logits are a hash of the whole sequence, or
 * the logarithms of given probabilities. */
#ifndef TESTS_SPECULATIVE_MODEL_H
#define TESTS_SPECULATIVE_MODEL_H

#include "speculative/speculative.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>

static uint64_t random_state;

static inline uint64_t random_bits(void) { return kn_mix(random_state += KN_GOLDEN); }
static inline int random_below(int n) { return (int)(random_bits() >> 33) % n; }
static inline double random_unit(void) { return (double)(random_bits() >> 11) * 0x1p-53; }

static inline void unheard(enum kn_level level, const char *line)
{
    (void)level;
    (void)line;
}

static inline struct spec_sampler *open_sampler(int n_vocab)
{
    struct spec_sampler *s;
    assert_int_equal(spec_sampler_open(&s, n_vocab), 0);
    return s;
}

enum { MOST_VOCAB = 40 };

struct model {
    int n_vocab;
    uint64_t seed;
    double width;
    const double *prob;
};

static inline uint64_t text_hash(uint64_t seed, const int32_t *text, int n)
{
    for (int i = 0; i < n; i++)
        seed = kn_mix(seed + KN_GOLDEN * ((uint64_t)(uint32_t)text[i] + 1));
    return seed;
}

static inline void model_logits(const struct model *m, const int32_t *text, int n, float *z)
{
    uint64_t h = text_hash(m->seed, text, n);
    for (int i = 0; i < m->n_vocab; i++) {
        double u = (double)(kn_mix(h + KN_GOLDEN * ((uint64_t)i + 1)) >> 11) * 0x1p-53;
        z[i] = (float)(m->prob ? kn_log(m->prob[i]) : (u - 0.5) * m->width);
    }
}

/* A distribution with its own memory. */
struct kept {
    struct spec_dist d;
    int32_t token[MOST_VOCAB];
    float weight[MOST_VOCAB];
};

static inline void keep(struct kept *k, const struct spec_dist *d)
{
    k->d = *d;
    memcpy(k->weight, d->weight, (size_t)d->n * sizeof *k->weight);
    k->d.weight = k->weight;
    if (d->token) {
        memcpy(k->token, d->token, (size_t)d->n * sizeof *k->token);
        k->d.token = k->token;
    }
}

static inline void model_dist(struct spec_sampler *s, const struct model *m, const struct spec_params *p,
                              const int32_t *text, int n, struct kept *out)
{
    float z[MOST_VOCAB];
    struct spec_dist d;
    model_logits(m, text, n, z);
    assert_int_equal(spec_target(s, p, z, text, n, n, &d), 0);
    keep(out, &d);
}

#endif
