/* engine/cli/simulate_moesd.c - `spillway simulate moesd`: fits MoESD's cost model to synthetic measurements.
 *
 * The paper's setting: 228 speed-ups, for 6 numbers of experts per token, 2 draft lengths and 19 batch sizes; the
 * model's ten constants are fitted, within bounds, to a subset.  Here the speed-ups are computed by the formula
 * with known constants, plus noise.  The error of such a fit on all 228 shows how many measurements are needed and
 * which ones: the paper takes every n-th point, and for some n this leaves out the small or the large batches.
 *
 *   table    for every n: the error with every n-th point, and with as many points spread evenly over experts,
 *            draft lengths and batches
 *   curve    speed-up by batch size, true and fitted to 21 points: it rises, then falls
 *
 * The constants are those of a 57B model with 64 experts and 14B active parameters on two accelerators of 312 TFLOP/s
 * and 2 TB/s, with a 0.5B draft model; times in milliseconds. */
#include "engine/cli/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "speculative/fit.h"

#define N_EXPERT     64
#define RIDGE_POINT  156.0
#define ACCEPT       0.85
#define LONGEST      23 /* largest n of "every n-th point" in the table */
#define MOST_REPEATS 1000

static const int used[] = { 1, 2, 4, 8, 16, 32 }, depths[] = { 2, 4 };
static const int batches[] = { 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 72, 80, 90, 100 };
enum { N_USED = 6, N_DEPTH = 2, N_BATCH = 19, N_POINT = N_USED * N_DEPTH * N_BATCH };

static const double truth[SPEC_PAPER_PARAMS] = { 4.5, 1.0, 0.5, 2.0, 1.1, 0.3, 0.2, 0.004, 0.5, 1.016 };

/* {lower bound, upper bound, start} of each constant, in ms.  Biases: from the time to read the weights at the memory
 * rate to five times this time; rejection: up to the longest time measured. */
static const struct spec_fit_param bounds[SPEC_PAPER_PARAMS] = {
    [SPEC_BIAS] = { 3.5, 17.5, 7 },         [SPEC_K1] = { 0, INFINITY, 1 },
    [SPEC_K2] = { 0.39, 1.95, 0.8 },        [SPEC_K3] = { 0, INFINITY, 1 },
    [SPEC_DRAFT_BIAS] = { 0.25, 1.25, .5 }, [SPEC_DRAFT_K] = { 0, INFINITY, 0.1 },
    [SPEC_REJECT_BIAS] = { 0, 0.6, 0.1 },   [SPEC_REJECT_K] = { 0, 0.6, 0.01 },
    [SPEC_LAMBDA] = { 0.2, 1, 0.6 },        [SPEC_S] = { 1, 2, 1.02 },
};

/* ---- measurements ------------------------------------------------------------------------------------------- */

static double unit(uint64_t seed, int i)
{
    return (double)(kn_mix(seed + KN_GOLDEN * ((uint64_t)i + 1)) >> 11) * 0x1p-53;
}

static struct spec_paper_point point_at(int k, int depth, int batch)
{
    struct spec_paper_point p = { batch, depth, k, N_EXPERT, spec_cost_tokens(ACCEPT, depth) / (depth + 1), 0 };
    p.speedup = spec_paper_speedup(truth, RIDGE_POINT, &p);
    return p;
}

/* Computes all points, batch size varying fastest, as the paper's every n-th point needs it.  Noise: the sum of four
 * uniform numbers, nearly normal. */
static void measure(struct spec_paper_point *all, uint64_t seed, double noise)
{
    for (int i = 0; i < N_POINT; i++) {
        double sum = unit(seed, 4 * i) + unit(seed, 4 * i + 1) + unit(seed, 4 * i + 2) + unit(seed, 4 * i + 3) - 2;
        all[i] = point_at(used[i / (N_DEPTH * N_BATCH)], depths[i / N_BATCH % N_DEPTH], batches[i % N_BATCH]);
        all[i].speedup *= 1 + noise * sqrt(3) * sum;
    }
}

static int take_strided(struct spec_paper_point *out, const struct spec_paper_point *all, int stride)
{
    int n = 0;
    for (int i = 0; i < N_POINT; i += stride)
        out[n++] = all[i];
    return n;
}

/* Picks n points evenly from experts x lengths x batches.  The batch rises once from the first to the last over the n
 * points; experts and length are the fractional parts of i times a constant, scaled to their number of values. */
static void take_even(struct spec_paper_point *out, const struct spec_paper_point *all, int n)
{
    bool taken[N_POINT] = { false };
    for (int i = 0; i < n; i++) {
        double a = i * 0.7548776662466927, b = i * 0.5698402909980532;
        int at = ((int)((a - floor(a)) * N_USED) * N_DEPTH + (int)((b - floor(b)) * N_DEPTH)) * N_BATCH +
                 (int)((i + 0.5) * N_BATCH / n);
        while (taken[at])
            at = (at + N_BATCH) % N_POINT; /* the same batch, the next length or number of experts */
        taken[at] = true;
        out[i] = all[at];
    }
}

/* ---- fits ------------------------------------------------------------------------------------------------------ */

static double error_of(const double *x, const struct spec_paper_point *all)
{
    double sum = 0;
    for (int i = 0; i < N_POINT; i++) {
        double error = spec_paper_speedup(x, RIDGE_POINT, &all[i]) - all[i].speedup;
        sum += error * error;
    }
    return sum / N_POINT;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct spread {
    double at[MOST_REPEATS];
}; /* at: mean square error of each repeat */

static double part(struct spread *s, int n, double share)
{
    qsort(s->at, (size_t)n, sizeof *s->at, compare);
    return s->at[kn_min(n - 1, (int)(share * n))];
}

static uint64_t seed_of(const struct eng_config *c, int repeat)
{
    return kn_mix((c->seed_given ? c->sampling.seed : 0) + (uint64_t)repeat);
}

static int run_table(const struct eng_config *config)
{
    static struct spread strided, even, none;
    struct spec_paper_point all[N_POINT], some[N_POINT];
    struct spec_fit_solution s;
    int n_repeat = config->n_repeat ? config->n_repeat : 5;
    if (n_repeat > MOST_REPEATS)
        return kn_fail(KN_EINVAL, "--repeats takes at most %d for moesd, not %d", MOST_REPEATS, n_repeat);
    puts("stride,points,least_batch,most_batch,noise_mse,strided_mse,strided_mse_90,even_mse,even_mse_90");
    for (int stride = LONGEST; stride >= 1; stride--) {
        int n = 0, least = 1000, most = 0;
        for (int r = 0; r < n_repeat; r++) {
            measure(all, seed_of(config, r), config->noise);
            n = take_strided(some, all, stride);
            for (int i = 0; i < n; i++) {
                least = kn_min(least, (int)some[i].n_seq);
                most = kn_max(most, (int)some[i].n_seq);
            }
            int e = spec_paper_fit(&s, bounds, RIDGE_POINT, some, n);
            strided.at[r] = e ? 0 : error_of(s.x, all);
            take_even(some, all, n);
            if (e || (e = spec_paper_fit(&s, bounds, RIDGE_POINT, some, n)) != 0)
                return e;
            even.at[r] = error_of(s.x, all);
            none.at[r] = error_of(truth, all);
        }
        printf("%d,%d,%d,%d,%.6f,%.6f,%.6f,%.6f,%.6f\n", stride, n, least, most, part(&none, n_repeat, 0.5),
               part(&strided, n_repeat, 0.5), part(&strided, n_repeat, 0.9), part(&even, n_repeat, 0.5),
               part(&even, n_repeat, 0.9));
        fflush(stdout);
    }
    return 0;
}

static int run_curve(const struct eng_config *config)
{
    struct spec_paper_point all[N_POINT], some[N_POINT];
    struct spec_fit_solution s;
    measure(all, seed_of(config, 0), config->noise);
    int n = take_strided(some, all, 11), e = spec_paper_fit(&s, bounds, RIDGE_POINT, some, n);
    if (e)
        return e;
    puts("experts_used,depth,batch,truth,measured,fitted");
    for (int i = 0; i < N_POINT; i++)
        printf("%g,%g,%g,%.4f,%.4f,%.4f\n", all[i].n_used, all[i].depth, all[i].n_seq,
               spec_paper_speedup(truth, RIDGE_POINT, &all[i]), all[i].speedup,
               spec_paper_speedup(s.x, RIDGE_POINT, &all[i]));
    return 0;
}

int eng_simulate_moesd(const struct eng_config *config)
{
    if (!config->preset || !strcmp(config->preset, "table"))
        return run_table(config);
    if (!strcmp(config->preset, "curve"))
        return run_curve(config);
    return kn_fail(KN_EINVAL, "--preset takes table or curve for moesd, not '%s'", config->preset);
}
