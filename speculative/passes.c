/* speculative/passes.c - learns the time of a pass from measured passes.
 *
 * Three sets of decaying means: plain passes by rows; passes with prompt rows, by rows; and the ratio of a pass with
 * drafts to a plain one of the same sequences, by batch size and drafted rows per sequence.  The third is separate
 * because four rows of one sequence and one row of four sequences share neither experts nor keys.
 *
 * Between two measured points the time is interpolated, beyond them extrapolated, both along the prior: flat where all
 * experts are used, and steep where every row uses new ones.  A pass that is far from the expected time, since another
 * process had the cores, counts as at most twice and at least half of it: with drafts from the first pass on, without
 * drafts or with prompt rows once MIN_KNOWN_PASSES were measured.  The noisier pass times are, the more passes a mean
 * includes and the larger a deviation must be to count as a change: times of a small model read from a fast disk differ
 * by a third.  Few or old passes with high times do not prevent a trial: otherwise two passes that another process
 * slowed down would turn drafts off for good. */
#include "speculative/internal.h"

#include <math.h>

#define MIN_MEAN_PASSES      12   /* passes in a mean, at least: 5 % of noise becomes 1 %; */
#define MAX_MEAN_PASSES      64   /* and at most */
#define QUIET_NOISE          0.07 /* noise (mean |log(pass / expected)|) at which MIN_MEAN_PASSES passes are enough */
#define NOISE_MEAN_PASSES    64   /* passes in the mean of the noise */
#define MAX_KNOWN_FACTOR     4    /* a size needs at most so many times MIN_KNOWN_PASSES passes, however noisy */
#define LEVEL_DECAY          (1 - 1 / 1024.0) /* decay of other levels' weights, per pass with drafts, to 1 pass; */
#define PLAIN_DECAY          (1 - 1 / 256.0)  /* decay of all levels' weights, per plain pass of the size, */
#define MIN_LEVEL_WEIGHT     (1 / 64.0)       /* to this share of a pass */
#define N_EXACT_ROWS         32               /* row numbers with a knot of their own */
#define MIN_KNOWN_PASSES     3                /* passes that make a size known, on a quiet machine */
#define CLEAR_GAIN_SIGMAS    3                /* or on any machine, if the gain is so many standard errors above 1 */
#define NEAR_ROWS_RATIO      1.35             /* a size is known from passes within this factor of it */
#define MAX_POOLED_KNOTS     10               /* so many knots cover NEAR_ROWS_RATIO */
#define MAX_FAR_ROWS_RATIO   4                /* a clear gain is known from passes with up to so many times the rows, */
#define FAR_ROWS_STEP        1.1              /* looked at in steps of this factor */
#define PRIOR_ROWS           4096
#define HOPEFUL_GROWTH_SHARE 0.5  /* hopeful: share of the forecast growth */
#define MIN_CONTEXT_CHANGE   0.1  /* the prior follows the length of contexts in steps of this share */
#define EXCESS_SIGMAS        2    /* standard errors by which a level must be above the forecast to correct it */
#define MIN_FORESEEN_EXCESS  0.01 /* forecast growth below it counts as this */
#define HOPEFUL_NOISE_FACTOR 2    /* hopeful: a mean is lowered by so many times the noise beyond QUIET_NOISE */

/* ---- knots ---------------------------------------------------------------------------------------------- */

/* 0 .. 7: the eighth of its octave that contains x, 1 <= x < 2. */
static int eighth(double x)
{
    static const double edge[7] = { 1.0905077, 1.1892071, 1.2968396, 1.4142136, 1.5422108, 1.6817928, 1.8340081 };
    int i = 0;
    while (i < 7 && x >= edge[i])
        i++;
    return i;
}

static int knot_of(double rows)
{
    if (rows < N_EXACT_ROWS + 1)
        return rows < 1 ? 0 : (int)rows - 1;
    int octave = 0;
    while (rows >= 2 * N_EXACT_ROWS) {
        rows /= 2;
        octave++;
    }
    return kn_min(SPEC_KNOTS - 1, N_EXACT_ROWS + octave * 8 + eighth(rows / N_EXACT_ROWS));
}

static void add_to_mean(double *mean, double x, double weight) { *mean += (x - *mean) / (weight + 1); }

void spec_knots_learn(struct spec_knots *k, double rows, double value, double mean_passes)
{
    int i = knot_of(rows);
    if (k->weight[i] >= MIN_KNOWN_PASSES)
        value = fmin(fmax(value, k->value[i] / 2), k->value[i] * 2);
    add_to_mean(&k->rows[i], rows, k->weight[i]);
    add_to_mean(&k->value[i], value, k->weight[i]);
    k->weight[i] = fmin(k->weight[i] + 1, mean_passes - 1);
}

static double prior_at(const double *prior, int n_prior, double rows)
{
    if (n_prior == 0)
        return 1;
    int last = n_prior - 1, i = (int)rows;
    if (i >= last) /* beyond the table: its last slope */
        return prior[last] + (prior[last] - prior[last / 2]) / (last - last / 2) * (rows - last);
    return prior[i] + (prior[i + 1] - prior[i]) * (rows - i);
}

/* A mean of neighbouring knots, in multiples of the prior. */
struct pooled {
    double rows, ratio, weight;
};

/* Knots from `at` on in the direction `step`, as far as NEAR_ROWS_RATIO, until they hold `enough` passes: single passes
 * at many numbers of rows, as when users come and go, are known as well as many passes at one. */
static struct pooled pool(const struct spec_knots *k, const double *prior, int n_prior, int at, int step, double enough)
{
    struct pooled p = { 0 };
    for (int i = at; i >= 0 && i < SPEC_KNOTS && i != at + MAX_POOLED_KNOTS * step && p.weight < enough; i += step) {
        if (k->weight[i] <= 0)
            continue;
        if (fmax(k->rows[i] / k->rows[at], k->rows[at] / k->rows[i]) > NEAR_ROWS_RATIO)
            break;
        p.weight += k->weight[i];
        p.rows += (k->rows[i] - p.rows) * k->weight[i] / p.weight;
        p.ratio += (k->value[i] / prior_at(prior, n_prior, k->rows[i]) - p.ratio) * k->weight[i] / p.weight;
    }
    return p;
}

double spec_knots_at(const struct spec_knots *k, const double *prior, int n_prior, double rows, double enough)
{
    int at = knot_of(rows), low = at, high = at;
    while (low >= 0 && (k->weight[low] <= 0 || k->rows[low] > rows))
        low--;
    while (high < SPEC_KNOTS && (k->weight[high] <= 0 || k->rows[high] < rows))
        high++;
    if (low < 0 && high == SPEC_KNOTS)
        return 0;
    struct pooled below = pool(k, prior, n_prior, low, -1, enough), above = pool(k, prior, n_prior, high, 1, enough);
    double shape = prior_at(prior, n_prior, rows);
    if (low < 0)
        return above.ratio * shape;
    if (high == SPEC_KNOTS || above.rows <= below.rows)
        return below.ratio * shape;
    double far = (rows - below.rows) / (above.rows - below.rows);
    return (below.ratio + (above.ratio - below.ratio) * far) * shape;
}

/* ---- passes --------------------------------------------------------------------------------------------- */

/* Batch-size class: 1, 2, 3, 4, then two to an octave: 5-6, 7-8, 9-12, ... */
int spec_size_of(int n)
{
    if (n <= 4)
        return kn_max(n, 1) - 1;
    int octave = 31 - __builtin_clz((unsigned)n - 1);
    bool upper = n > (3 << octave) / 2;
    return kn_min(SPEC_SIZES - 1, 2 * octave + upper);
}

double spec_size_middle(int size)
{
    if (size < 4)
        return size + 1;
    int octave = size / 2, half = 1 << octave >> 1; /* 2^octave + 1 .. 1.5 * 2^octave, then .. 2^(octave + 1) */
    return (size % 2 ? 3 * half : 2 * half) + (half + 1) / 2.0;
}

static int level_of(double each)
{
    static const double most[SPEC_LEVELS - 1] = {
        .125, .25, .375, .5, .75, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24
    };
    int i = 0;
    while (i < SPEC_LEVELS - 1 && each > most[i])
        i++;
    return i;
}

int spec_passes_open(struct spec_passes *p, int max_rows)
{
    p->n_prior = max_rows > 0 ? kn_max(2, kn_min(max_rows, PRIOR_ROWS) + 1) : PRIOR_ROWS;
    p->prior = kn_alloc((size_t)p->n_prior * sizeof *p->prior);
    if (!p->prior)
        return KN_ENOMEM;
    for (int t = 0; t < p->n_prior; t++) /* between constant and proportional to rows */
        p->prior[t] = 1 + t / 4.0;
    return 0;
}

void spec_passes_set_forecast(struct spec_passes *p, const struct spec_cost_model *prior)
{
    for (int t = 0; t < p->n_prior; t++)
        p->prior[t] = spec_cost_pass_ns(prior, kn_max(t, 1), 0, 0) + spec_cost_choose_ns(prior, kn_max(t, 1));
    p->kv_ns = prior->kv_ns;
    p->context = 0;
    p->forecast = true;
}

void spec_passes_set_context(struct spec_passes *p, double context)
{
    double more = p->kv_ns * (context - p->context);
    if (fabs(context - p->context) < MIN_CONTEXT_CHANGE * fmax(p->context, 1))
        return;
    for (int t = 0; t < p->n_prior; t++)
        p->prior[t] += more * kn_max(t, 1);
    p->context = context;
}

void spec_passes_close(struct spec_passes *p)
{
    kn_free(p->prior);
    p->prior = NULL;
}

double spec_pass_noise_ratio(const struct spec_passes *p) { return fmax(1, p->noise / QUIET_NOISE); }

/* Number of passes in a mean. */
static double mean_passes(const struct spec_passes *p)
{
    double noise_ratio = spec_pass_noise_ratio(p);
    return fmin(MIN_MEAN_PASSES * noise_ratio * noise_ratio, MAX_MEAN_PASSES);
}

/* Passes in the means of row numbers from n / NEAR_ROWS_RATIO to n * factor. */
static double weight_around(const struct spec_knots *k, int n, double factor)
{
    double sum = 0;
    for (int i = 0; i < SPEC_KNOTS; i++)
        if (k->rows[i] <= n * factor && k->rows[i] * NEAR_ROWS_RATIO >= n)
            sum += k->weight[i];
    return sum;
}

static double weight_near(const struct spec_knots *k, int n) { return weight_around(k, n, NEAR_ROWS_RATIO); }

/* Without a forecast passes with prompt rows alone say too little about those without. */
static double n_near(const struct spec_passes *p, int n_due, int n_beside)
{
    double alone = weight_near(&p->plain, n_due);
    bool mixed_count = n_beside > 0 && (alone > 0 || p->forecast);
    return mixed_count ? fmax(alone, weight_near(&p->mixed, n_due + n_beside)) : alone;
}

bool spec_passes_has_near_size(const struct spec_passes *p, int n_due, int n_beside)
{
    return n_near(p, n_due, n_beside) >= MIN_KNOWN_PASSES;
}

/* Is the gain more than the noise of n plain passes explains? */
static bool exceeds_noise(const struct spec_passes *p, double n, double gain)
{
    return n > 0 && gain >= 1 + CLEAR_GAIN_SIGMAS * p->noise / sqrt(n);
}

bool spec_passes_is_clear(const struct spec_passes *p, int n_due, int n_beside, double gain)
{
    return exceeds_noise(p, n_near(p, n_due, n_beside), gain);
}

/* Passes of up to factor times as many sequences tell the time of this one within the factor: it takes no longer than
 * they, and at least its share of the rows.  Does the gain remain at the least of these times? */
static bool is_clear_from_larger(const struct spec_passes *p, int n_due, double gain)
{
    for (double factor = NEAR_ROWS_RATIO; factor <= fmin(gain, MAX_FAR_ROWS_RATIO); factor *= FAR_ROWS_STEP) {
        double n = weight_around(&p->plain, n_due, factor);
        if (n >= MIN_KNOWN_PASSES && exceeds_noise(p, n, gain / factor))
            return true;
    }
    return false;
}

bool spec_passes_has_size(const struct spec_passes *p, int n_due, int n_beside, double gain)
{
    double n = n_near(p, n_due, n_beside), enough = fmin(spec_pass_noise_ratio(p), MAX_KNOWN_FACTOR);
    if (n >= MIN_KNOWN_PASSES)
        return n >= MIN_KNOWN_PASSES * enough || exceeds_noise(p, n, gain);
    /* one slow pass of this size would make every draft seem to gain: with any, all MIN_KNOWN_PASSES are measured */
    return weight_near(&p->plain, n_due) <= 0 && is_clear_from_larger(p, n_due, gain);
}

static double at(const struct spec_passes *p, const struct spec_knots *k, double rows)
{
    return spec_knots_at(k, p->prior, p->n_prior, rows, mean_passes(p) - 1);
}

bool spec_passes_has_plain(const struct spec_passes *p) { return at(p, &p->plain, 1) > 0; }

/* From the passes of one kind; before the first of them, from those of the other kind. */
static double either_ns(const struct spec_passes *p, const struct spec_knots *k, const struct spec_knots *other,
                        double rows)
{
    double ns = at(p, k, rows);
    return ns > 0 ? ns : at(p, other, rows);
}

double spec_passes_plain_ns(const struct spec_passes *p, int n_due)
{
    return either_ns(p, &p->plain, &p->mixed, n_due);
}

static double mixed_ns(const struct spec_passes *p, int n_row) { return either_ns(p, &p->mixed, &p->plain, n_row); }

/* The prior of a pass with `each` drafted rows per sequence.  The prior of as many plain rows includes a context for each
 * row, but drafted rows read that of their sequence, which the pass reads anyway. */
static double drafted_prior(const struct spec_passes *p, int n_due, double each)
{
    return prior_at(p->prior, p->n_prior, n_due * (1 + each)) - p->kv_ns * p->context * n_due * each;
}

/* Position of `each` between two measured numbers of drafted rows, 0 .. 1: along the prior if it rises. */
static double position_between(const struct spec_passes *p, int n_due, double each, double from, double to)
{
    double low = drafted_prior(p, n_due, from), high = drafted_prior(p, n_due, to);
    if (high <= low * 1.001)
        return (each - from) / (to - from);
    return (drafted_prior(p, n_due, each) - low) / (high - low);
}

/* The time of as many plain rows, less the share of it that the prior gives to the contexts of drafted rows. */
static double drafted_ns(const struct spec_passes *p, int n_due, double each)
{
    double rows = n_due * (1 + each);
    return either_ns(p, &p->plain, &p->mixed, rows) * drafted_prior(p, n_due, each) /
           prior_at(p->prior, p->n_prior, rows);
}

/* Forecast ratio of pass times between two numbers of drafted rows per sequence. */
static double foreseen_growth(const struct spec_passes *p, int n_due, double from, double to)
{
    return drafted_ns(p, n_due, to) / drafted_ns(p, n_due, from);
}

/* The ratio that a hopeful plan assumes: a share of the forecast growth, or no growth without a forecast. */
static double hoped_growth(const struct spec_passes *p, int n_due, double from, double to)
{
    return p->forecast ? 1 + HOPEFUL_GROWTH_SHARE * fmax(0, foreseen_growth(p, n_due, from, to) - 1) : 1;
}

/* The mean pass time of a level over that of a plain pass.  Hopeful: lowered by the standard error of the mean; and
 * with a weight below 1, between this and the ratio that is hoped for a level never tried (hoped_growth). */
static double growth_of(const struct spec_passes *p, int n_due, int level, bool hopeful)
{
    int size = spec_size_of(n_due);
    double growth = p->drafted[size][level].growth, weight = p->drafted[size][level].weight;
    if (!hopeful || growth <= 1)
        return growth;
    growth = fmax(1, growth * kn_exp(-HOPEFUL_NOISE_FACTOR * fmax(0, p->noise - QUIET_NOISE) / sqrt(weight)));
    double hoped = hoped_growth(p, n_due, 0, p->drafted[size][level].each);
    return growth <= hoped ? growth : hoped + (growth - hoped) * fmin(1, weight);
}

/* The ratio of pass times between level `low`, the highest one measured, with `growth`, and `each` drafted rows per
 * sequence beyond it: as forecast.  Where the level itself took clearly longer than forecast, the forecast is wrong about
 * rows, so its further time is scaled by that excess; but it adds no more than in proportion to rows. */
static double growth_beyond(const struct spec_passes *p, int n_due, int low, double growth, double each)
{
    double from = p->drafted[spec_size_of(n_due)][low].each, weight = p->drafted[spec_size_of(n_due)][low].weight;
    double foreseen = foreseen_growth(p, n_due, from, each), until = foreseen_growth(p, n_due, 0, from);
    double least = growth * kn_exp(-EXCESS_SIGMAS * fmax(p->noise, QUIET_NOISE) / sqrt(fmax(weight, 1)));
    if (!p->forecast || least <= until)
        return foreseen;
    double further = until * (foreseen - 1) * (growth - 1) / fmax(until - 1, MIN_FORESEEN_EXCESS);
    return fmax(foreseen, 1 + fmin(further, (growth - 1) * (each - from) / from) / growth);
}

double spec_passes_ns(const struct spec_passes *p, int n_due, int n_beside, int n_drafted, bool hopeful)
{
    if (n_beside > 0)
        return mixed_ns(p, n_due + n_beside + n_drafted);
    double plain = spec_passes_plain_ns(p, n_due), each = (double)n_drafted / n_due;
    int size = spec_size_of(n_due), low = level_of(each), high = low;
    while (low >= 0 && (p->drafted[size][low].weight <= 0 || p->drafted[size][low].each > each))
        low--;
    while (high < SPEC_LEVELS && (p->drafted[size][high].weight <= 0 || p->drafted[size][high].each < each))
        high++;
    double from = low < 0 ? 0 : p->drafted[size][low].each, growth = low < 0 ? 1 : growth_of(p, n_due, low, hopeful);
    if (high < SPEC_LEVELS && p->drafted[size][high].each > from) {
        double far = position_between(p, n_due, each, from, p->drafted[size][high].each);
        return plain * (growth + (growth_of(p, n_due, high, hopeful) - growth) * far);
    }
    if (low >= 0 && !hopeful && each > from)
        return plain * growth * growth_beyond(p, n_due, low, growth, each);
    return plain * growth * (hopeful ? hoped_growth : foreseen_growth)(p, n_due, from, each);
}

/* More rows never take less time: two levels in the wrong order, from noise, get their common mean. */
static void make_monotone(struct spec_passes *p, int size, int level)
{
    for (int i = 0; i < SPEC_LEVELS; i++) {
        double mine = p->drafted[size][level].growth, its = p->drafted[size][i].growth;
        double weight = p->drafted[size][level].weight, its_weight = p->drafted[size][i].weight;
        if (its_weight <= 0 || (i < level ? its <= mine : its >= mine))
            continue;
        p->drafted[size][i].growth = p->drafted[size][level].growth = (mine * weight + its * its_weight) /
                                                                      (weight + its_weight);
    }
}

/* Multiplies the weights of a size's levels by `by`; no weight falls below `least`.  Level number `but` is left out. */
static void lower_weights(struct spec_passes *p, int size, int but, double by, double least)
{
    for (int i = 0; i < SPEC_LEVELS; i++) {
        double weight = p->drafted[size][i].weight;
        if (i != but && weight > least)
            p->drafted[size][i].weight = fmax(least, weight * by);
    }
}

/* The time of a plain pass was only an estimate, and drafted passes were measured as multiples of it: they keep their
 * times. */
static void scale_growth(struct spec_passes *p, int size, double factor)
{
    for (int i = 0; i < SPEC_LEVELS; i++)
        p->drafted[size][i].growth *= factor;
}

void spec_passes_learn(struct spec_passes *p, int n_due, int n_beside, int n_drafted, double ns)
{
    if (n_beside > 0) {
        spec_knots_learn(&p->mixed, n_due + n_beside + n_drafted, ns, mean_passes(p));
        return;
    }
    int size = spec_size_of(n_due), level = level_of((double)n_drafted / n_due);
    if (n_drafted == 0) {
        double before = spec_passes_plain_ns(p, n_due);
        bool known = spec_passes_has_near_size(p, n_due, 0);
        lower_weights(p, size, SPEC_LEVELS, PLAIN_DECAY, MIN_LEVEL_WEIGHT);
        spec_knots_learn(&p->plain, n_due, ns, mean_passes(p));
        if (!known && before > 0)
            scale_growth(p, size, before / spec_passes_plain_ns(p, n_due));
        return;
    }
    lower_weights(p, size, level, LEVEL_DECAY, 1);
    double plain = spec_passes_plain_ns(p, n_due), each = (double)n_drafted / n_due;
    if (plain <= 0)
        return;
    double growth = ns / plain, *weight = &p->drafted[size][level].weight, *mean = &p->drafted[size][level].growth;
    double usual = *weight > 0 ? *mean : spec_passes_ns(p, n_due, 0, n_drafted, false) / plain;
    growth = fmin(fmax(growth, usual / 2), usual * 2);
    add_to_mean(&p->drafted[size][level].each, each, *weight);
    add_to_mean(mean, growth, *weight);
    *weight = fmin(*weight + 1, mean_passes(p) - 1);
    make_monotone(p, size, level);
}

void spec_pass_noise_add(struct spec_passes *p, double log)
{
    p->n_noise = fmin(p->n_noise + 1, NOISE_MEAN_PASSES);
    p->noise += (fmin(fabs(log), 1) - p->noise) / p->n_noise;
}

double spec_passes_forecast_efficiency(const struct spec_passes *p, int n_due, int n_drafted)
{
    return p->forecast ? drafted_prior(p, n_due, 0) / drafted_prior(p, n_due, (double)n_drafted / n_due) : 0;
}

double spec_passes_measured_efficiency(const struct spec_passes *p, int n_due, int n_drafted)
{
    bool measured = spec_passes_n_measured(p, n_due, n_drafted) >= MIN_KNOWN_PASSES;
    return measured ? spec_passes_plain_ns(p, n_due) / spec_passes_ns(p, n_due, 0, n_drafted, false) : 0;
}

double spec_passes_n_measured(const struct spec_passes *p, int n_due, int n_drafted)
{
    return p->drafted[spec_size_of(n_due)][level_of((double)n_drafted / n_due)].weight;
}

static void shift(struct spec_knots *k, double factor, double enough)
{
    for (int i = 0; i < SPEC_KNOTS; i++) {
        k->value[i] *= factor;
        k->weight[i] = fmin(k->weight[i], enough);
    }
}

void spec_passes_scale(struct spec_passes *p, double factor)
{
    double enough = MIN_KNOWN_PASSES * mean_passes(p) / MIN_MEAN_PASSES;
    shift(&p->plain, factor, enough);
    shift(&p->mixed, factor, enough);
    spec_passes_lower_weights(p);
}

void spec_passes_lower_weights(struct spec_passes *p)
{
    for (int i = 0; i < SPEC_SIZES; i++)
        for (int j = 0; j < SPEC_LEVELS; j++)
            p->drafted[i][j].weight = fmin(p->drafted[i][j].weight, mean_passes(p) / MIN_MEAN_PASSES);
}
