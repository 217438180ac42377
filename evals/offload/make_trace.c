/* evals/offload/make_trace.c - a synthetic routing trace with the statistics of a large trained model.
 *
 * No large trained model is available to record from. Router logits are random with the known structure
 * of such models: an expert's logit is the sum of its popularity (the same for all streams), of its weight in the
 * stream's topic (which changes every TOPIC passes), of a part that drifts from token to token, and of independent
 * noise per token; the n_used largest are chosen. The weights of the parts are set so that figures measured
 * on trained models are reproduced:
 *
 *   mild    consecutive tokens share 25.7 % of their experts, by chance 6.25 %
 *   sharp   LRU with slots for a tenth of the experts hits two thirds of the uses
 *
 *   make_trace mild|sharp [GROUPS EXPERTS USED STREAMS PASSES]  > FILE     default 48 128 8 32 80 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core.h"

#define TOPIC       160 /* tokens of an answer */
#define MOST_EXPERT 1024

struct parts {
    const char *name;
    double popular, topic, drift, keep, own;
};

static const struct parts kinds[] = {
    { "mild", 0.45, 0.45, 0.70, 0.80, 0.85 },
    { "sharp", 0.45, 1.20, 0.80, 0.85, 0.60 },
};

static uint64_t state = 4;

static double normal(void) /* sum of twelve uniforms: close enough */
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)(kn_mix(state += KN_GOLDEN) >> 11) * 0x1p-53;
    return sum;
}

static void fill(double *x, int n, double scale)
{
    for (int i = 0; i < n; i++)
        x[i] = scale * normal();
}

static void write_largest(const double *x, int n, int n_used)
{
    uint8_t bits[MOST_EXPERT / 8] = { 0 };
    for (int i = 0; i < n_used; i++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!(bits[e / 8] >> e % 8 & 1) && (best < 0 || x[e] > x[best]))
                best = e;
        bits[best / 8] |= (uint8_t)(1 << best % 8);
    }
    fwrite(bits, 1, (size_t)(n + 7) / 8, stdout);
}

static void write_stream(const struct parts *k, const double *popular, int n_group, int n, int n_used, int n_pass)
{
    double *topic = calloc((size_t)(n_group * n), sizeof *topic), logit[MOST_EXPERT];
    double *drift = calloc((size_t)(n_group * n), sizeof *drift);
    int left = (int)(kn_mix(state) % TOPIC);
    fill(topic, n_group * n, k->topic);
    fill(drift, n_group * n, k->drift);
    for (int pass = 0; pass < n_pass; pass++) {
        if (left-- == 0) {
            left = TOPIC;
            fill(topic, n_group * n, k->topic);
        }
        for (int g = 0; g < n_group; g++) {
            for (int e = 0, i = g * n; e < n; e++, i++) {
                drift[i] = k->keep * drift[i] + k->drift * sqrt(1 - k->keep * k->keep) * normal();
                logit[e] = popular[i] + topic[i] + drift[i] + k->own * normal();
            }
            write_largest(logit, n, n_used);
        }
    }
    free(topic);
    free(drift);
}

int main(int argc, char **argv)
{
    const struct parts *k = NULL;
    int size[5] = { 48, 128, 8, 32, 80 };
    for (size_t i = 0; argc > 1 && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(argv[1], kinds[i].name))
            k = &kinds[i];
    for (int i = 2; i < argc && i < 7; i++)
        size[i - 2] = atoi(argv[i]);
    for (int i = 0; i < 5; i++)
        if (!k || size[i] < 1 || size[1] > MOST_EXPERT || size[2] > size[1]) {
            fputs("make_trace mild|sharp [GROUPS EXPERTS USED STREAMS PASSES]\n", stderr);
            return 2;
        }
    printf("spillway-trace 1\nstreams %d\npasses %d\ngroups %d\nexperts", size[3], size[4], size[0]);
    for (int g = 0; g < size[0]; g++)
        printf(" %d", size[1]);
    puts("");
    double *popular = calloc((size_t)(size[0] * size[1]), sizeof *popular);
    fill(popular, size[0] * size[1], k->popular);
    for (int s = 0; s < size[3]; s++)
        write_stream(k, popular, size[0], size[1], size[2], size[4]);
    free(popular);
    return ferror(stdout) ? 1 : 0;
}
