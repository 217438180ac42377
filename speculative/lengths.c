/* speculative/lengths.c - a network of three layers, from a feature to fifteen accepted lengths. */
#include "speculative/lengths.h"
#include "speculative/control.h"

#include <math.h>
#include <string.h>

static const int width[SPEC_LENGTH_WIDTHS] = { 1, 2, 4 }, depth[SPEC_LENGTH_DEPTHS] = { 1, 2, 4, 8, 16 };
_Static_assert(SPEC_DEPTHS == 16, "the deepest draft is the deepest choice");

int spec_length_width(int i) { return width[i / SPEC_LENGTH_DEPTHS]; }
int spec_length_depth(int i) { return depth[i % SPEC_LENGTH_DEPTHS]; }

/* The weights of one input to all outputs are contiguous: n_in rounds of n_out independent sums. */
static void layer(const float *weight, const float *bias, const float *x, int n_in, float *out, int n_out)
{
    memcpy(out, bias, (size_t)n_out * sizeof *out);
    for (int i = 0; i < n_in; i++)
        for (int o = 0; o < n_out; o++)
            out[o] += x[i] * weight[(size_t)i * (size_t)n_out + (size_t)o];
}

static void above_zero(float *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = x[i] > 0 ? x[i] : 0;
}

void spec_lengths_predict(const struct spec_lengths *l, const float *feature, float *room, double *out)
{
    float *first = room, *second = room + l->n_hidden, score[SPEC_LENGTHS];
    layer(l->weight[0], l->bias[0], feature, l->n_in, first, l->n_hidden);
    above_zero(first, l->n_hidden);
    layer(l->weight[1], l->bias[1], first, l->n_hidden, second, l->n_hidden);
    above_zero(second, l->n_hidden);
    layer(l->weight[2], l->bias[2], second, l->n_hidden, score, SPEC_LENGTHS);
    for (int i = 0; i < SPEC_LENGTHS; i++) /* sigmoid: accepted share of the depth */
        out[i] = spec_length_depth(i) / (1 + kn_exp(-(double)score[i]));
}

/* x + x^2 + .. + x^n. */
static double geometric(double x, int n)
{
    double sum = 0, term = 1;
    for (int i = 0; i < n; i++)
        sum += term *= x;
    return sum;
}

/* Inverse of geometric in x, between 0 and 1. */
static double ratio_of(double sum, int n)
{
    double low = 0, high = 1;
    if (sum >= n)
        return 1;
    for (int i = 0; i < 30; i++) {
        double middle = (low + high) / 2;
        *(geometric(middle, n) < sum ? &low : &high) = middle;
    }
    return (low + high) / 2;
}

void spec_lengths_survival(const double *length, double *out)
{
    double before = 0, survival = 1;
    for (int i = 0, at = 0; i < SPEC_LENGTH_DEPTHS; i++) {
        double more = fmax(0, length[i] - before), ratio = survival > 0 ? ratio_of(more / survival, depth[i] - at) : 0;
        before = fmax(before, length[i]);
        for (; at < depth[i]; at++)
            out[at] = survival *= ratio;
    }
}
