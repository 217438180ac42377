/* kernels/cpu/logits.c - the specification of the operations on a row of logits, by which sampling treats every token of a
 * vocabulary.  The bodies of logits.tmpl.c give the same bits. */
#include "kernels/internal.h"

#include <float.h>
#include <math.h>

#include "kernels/cpu/expf.h"

float kn_largest_scalar(const float *z, int n)
{
    float most = -HUGE_VALF;
    for (int i = 0; i < n; i++)
        most = z[i] > most ? z[i] : most;
    return most;
}

float kn_clean_logits_scalar(const float *x, int n, float *z)
{
    for (int i = 0; i < n; i++) {
        z[i] = x[i] > -HUGE_VALF ? x[i] : -HUGE_VALF;
        z[i] = z[i] < FLT_MAX ? z[i] : FLT_MAX;
    }
    return kn_largest_scalar(z, n);
}

int kn_find_first_scalar(const float *z, float value, int n)
{
    int i = 0;
    while (i < n && z[i] != value)
        i++;
    return i;
}

float kn_exp_sum_scalar(const float *z, float most, int n)
{
    float acc[KN_ACCUMULATORS] = { 0 };
    for (int i = 0; i < n; i++)
        acc[i % KN_ACCUMULATORS] += kn_expf(z[i] - most);
    return kn_tree_sum(acc);
}

void kn_temper_scalar(const float *z, float most, double temperature, int n, float *x)
{
    for (int i = 0; i < n; i++)
        x[i] = (float)(((double)z[i] - (double)most) / temperature);
}

int kn_list_above_scalar(const float *z, float least, int n, int32_t *id)
{
    int found = 0;
    for (int i = 0; i < n; i++)
        if (z[i] >= least)
            id[found++] = i;
    return found;
}

int kn_list_noisy_scalar(const float *z, int from, int to, const struct kn_noise *noise, int32_t *id)
{
    int found = 0;
    for (int i = from; i < to; i++) {
        uint64_t t = ~kn_mix(noise->stream + KN_GOLDEN * ((uint64_t)(uint32_t)i + 1)) >> 12;
        double bits = __builtin_clzll(t << 1 | 1) - 10;
        if ((double)z[i] * noise->inverse + bits * KN_NOISE_BIT > noise->least)
            id[found++] = i;
    }
    return found;
}
