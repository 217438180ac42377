/* evals/sampling.c - the time to sample one token, by vocabulary, sampler and shape of the distribution.
 *
 * The relevant bound is the length of a pass: a token is sampled once per sequence and pass, so with 16
 * sequences sixteen times these figures are added to every pass. The best of many is printed, because other
 * processes share the machine. Prints CSV. */
#include "speculative/speculative.h"

#include <stdio.h>

#define FIGURE_NS 300000000u

struct sampler {
    const char *name;
    float temperature;
    int top_k;
    float top_p, min_p;
};

static const struct sampler samplers[] = {
    { "greedy", 0, 0, 1, 0 },
    { "plain", 1, 0, 1, 0 },
    { "top-k", 1, 40, 1, 0 },
    { "top-p", 1, 0, 0.95f, 0 },
    { "default", 0.8f, 40, 0.95f, 0.05f },
};

/* Nearly normal, of the given deviation: a trained model's is about 2.5, random weights' below 1. */
static void fill(float *z, int n, double deviation)
{
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        double sum = -6;
        for (int j = 0; j < 12; j++)
            sum += (double)(kn_mix(at += KN_GOLDEN) >> 11) * 0x1p-53;
        z[i] = (float)(sum * deviation);
    }
}

static double best_us(struct spec_sampler *s, const struct sampler *how, const float *z)
{
    struct spec_params p;
    struct spec_sampled choice;
    uint64_t best = UINT64_MAX, begin = kn_now_ns(), now = begin;
    spec_params_default(&p);
    p.temperature = how->temperature;
    p.top_k = how->top_k;
    p.top_p = how->top_p;
    p.min_p = how->min_p;
    for (int64_t position = 0; now - begin < FIGURE_NS; position++) {
        uint64_t start = now;
        if (spec_sample(s, &p, z, NULL, 0, position, &choice) < 0)
            return -1;
        now = kn_now_ns();
        if (now - start < best)
            best = now - start;
    }
    return (double)best * 1e-3;
}

int main(void)
{
    static const int vocab[] = { 32000, 151936 };
    static const double deviation[] = { 0.5, 2.5 };
    static float z[151936];
    puts("n_vocab,deviation,sampler,us");
    for (int v = 0; v < 2; v++) {
        struct spec_sampler *s;
        if (spec_sampler_open(&s, vocab[v]) < 0)
            return 1;
        for (int d = 0; d < 2; d++) {
            fill(z, vocab[v], deviation[d]);
            for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++)
                printf("%d,%g,%s,%.0f\n", vocab[v], deviation[d], samplers[i].name, best_us(s, &samplers[i], z));
        }
        spec_sampler_close(s);
    }
    return 0;
}
