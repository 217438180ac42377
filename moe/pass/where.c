/* Chooses how many experts of a layer are copied to the device (where.h). */
#include "moe/pass/where.h"

#include <math.h>

#define MARGIN         0.99 /* a share is adopted if it takes less than this, over the share in use, */
#define DEVIATIONS     2    /* with so many standard deviations added */
#define NOISE_GROWS    1.2  /* variance of a sample over that of a layer: the usual time is an estimate, too */
#define LEAST_VARIANCE 0.0016
#define FIRST_VARIANCE 0.09
#define SURE           4     /* passes with the share in use, after which the layers' usual times are known; */
#define GUESSED        0.125 /* weight of a sample before */
#define LEAST_SAMPLES  0.2   /* of a share that is adopted: more than one guessed */
#define PROMISING      0.8   /* a share with such a ratio and few samples is tried before new ones */
#define TRIAL_EVERY    4     /* layers: one in so many may try another share, */
#define EXCHANGE_EVERY 4     /* and one in so many may exchange experts; new shares are tried at once */
#define TRIAL_SHARE    0.01  /* accounts: most of the time of all layers, */
#define EXCHANGE_SHARE 0.01
#define FIRST_LAYERS   4    /* and the time of so many layers; */
#define MOST_LAYERS    400  /* a rest beyond that of so many layers is not kept */
#define SETTLED        2    /* layers of a bucket before the first trial */
#define NEAR           2    /* buckets from which a new one takes its first share */
#define LEVEL_LAYERS   16   /* layers that the level averages over */
#define USUAL_LAYERS   8    /* passes that a layer's usual time averages over */
#define SAMPLE_LAYERS  1500 /* layers after which a sample counts 1 / e */
#define MOST_RATIO     16   /* of a sample; longer ones are taken for it */
#define MOST_LEVEL     3
#define UNTRIED        1e9
#define DOUBT          8 /* samples; fewer are few, and a share that was in use before keeps no more: it is compared again */

static const double shares[MOE_SHARES] = { 0, 0.125, 0.25, 0.5, 0.75, 1 };

void moe_where_lay_out(struct moe_where *w, int n_layer, struct kn_arena *a)
{
    w->n_layer = n_layer;
    for (int i = 0; i < MOE_ROW_BUCKETS; i++)
        w->bucket[i].usual_ns = kn_arena_take(a, (size_t)n_layer, sizeof *w->bucket[i].usual_ns);
}

void moe_where_init(struct moe_where *w)
{
    w->share = -1;
    for (int i = 0; i < MOE_ROW_BUCKETS; i++) {
        w->bucket[i].level = 1;
        w->bucket[i].variance = FIRST_VARIANCE;
    }
}

static int bucket_of(int n_row)
{
    int i = 0;
    while (i < MOE_ROW_BUCKETS - 1 && n_row > 1 << i)
        i++;
    return i;
}

static int copies_of(int share, int n_missing) { return (int)(shares[share] * n_missing + 0.5); }

double moe_where_share(const struct moe_where *w, int n_row) { return shares[w->bucket[bucket_of(n_row)].share]; }

static double expected_ns(const struct moe_where_bucket *b, int layer)
{
    return b->usual_ns[layer] > 0 ? b->level * (double)b->usual_ns[layer] : b->mean_ns;
}

/* ---- accounts ---------------------------------------------------------------------------------------------------- */

static double room_ns(const struct moe_where *w, const struct moe_account *a, double share)
{
    return share * w->all_ns + FIRST_LAYERS * w->at->mean_ns - a->lost_ns;
}

/* Adds the time that a layer took longer than expected; a shorter time is subtracted, until the loss is 0. */
static void charge(const struct moe_where *w, struct moe_account *a, double ns, double share)
{
    a->lost_ns = fmax(a->lost_ns + ns, share * w->all_ns - MOST_LAYERS * w->at->mean_ns);
    a->lost_ns = fmax(a->lost_ns, 0);
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

/* The share nearest to the one in use, on the way to this one, that was tried; -1: none. */
static int nearest_tried(const struct moe_where_bucket *b, int share)
{
    int by = share > b->share ? 1 : -1;
    for (int i = b->share + by; i != share; i += by)
        if (b->cost[i].n > 0)
            return i;
    return -1;
}

static double distance(const struct moe_where_bucket *b, int share) { return fabs(shares[share] - shares[b->share]); }

/* The time by which a layer with this share exceeds the usual one, over the usual one.  If it was never tried: as a share on the way to it, in
 * proportion; or as much as the part of the layer's experts that moves. */
static double excess_of(const struct moe_where_bucket *b, int share)
{
    int near = nearest_tried(b, share);
    if (b->cost[share].n > 0)
        return b->cost[share].ratio - 1;
    return near < 0 ? distance(b, share) : fmax(0, b->cost[near].ratio - 1) * distance(b, share) / distance(b, near);
}

static double variance_of_sample(const struct moe_where_bucket *b)
{
    return NOISE_GROWS * fmax(b->variance, LEAST_VARIANCE);
}

static double mean_usual(const struct moe_where_bucket *b) { return b->n_usual ? b->usual_sum_ns / b->n_usual : 0; }

/* The number of a share's samples, of which those from before a change of the usual time count less.  The usual time has changed by the
 * part p since: p is taken for a standard deviation of the old samples' mean, beside that of noise, and n_today() new samples have
 * the sum of both variances.  No least number of old samples is kept: evals/results/offload/where-2026-11-27.md. */
static double n_today(const struct moe_where_bucket *b, const struct moe_share_cost *c)
{
    if (c->n <= 0 || c->usual_ns <= 0)
        return c->n;
    double p = mean_usual(b) / c->usual_ns - 1;
    return c->n / (1 + c->n * p * p / variance_of_sample(b));
}

static double deviation(const struct moe_where_bucket *b, const struct moe_share_cost *c)
{
    return DEVIATIONS * sqrt(variance_of_sample(b) / n_today(b, c));
}

/* The least that the share may cost over the one in use, by its samples.  Without any it is below all others: first the nearest
 * share, whose cost limits that of the others, then the farthest. */
static double least_ratio(const struct moe_where_bucket *b, int share)
{
    const struct moe_share_cost *c = &b->cost[share];
    if (c->n > 0 && c->n < DOUBT && c->ratio < PROMISING)
        return -UNTRIED - 2 + c->ratio;
    if (c->n > 0)
        return c->ratio * (1 - deviation(b, c));
    return -UNTRIED + (nearest_tried(b, share) < 0 ? distance(b, share) : -distance(b, share));
}

/* The share to try: of those that are not too dear, the one that may gain most.  It does not depend on the layer's experts, so that
 * the trials of a share are a fair sample of layers. */
static int pick_trial(const struct moe_where *w, int layer, bool only_new)
{
    const struct moe_where_bucket *b = w->at;
    double room = room_ns(w, &w->trials, TRIAL_SHARE), best_ratio = MARGIN;
    int best = b->share;
    for (int i = 0; i < MOE_SHARES; i++) {
        bool few = b->cost[i].n <= 0 || (b->cost[i].n < DOUBT && b->cost[i].ratio < PROMISING);
        if (i == b->share || (only_new && !few))
            continue;
        double excess = excess_of(b, i);
        if (least_ratio(b, i) < best_ratio && (excess <= 0 || excess * expected_ns(b, layer) <= room)) {
            best = i;
            best_ratio = least_ratio(b, i);
        }
    }
    return best;
}

static uint64_t draw(struct moe_where *w) { return kn_mix(w->random += KN_GOLDEN); }

/* The first share of a bucket: that of the nearest one that has been used. */
static void begin(struct moe_where *w, struct moe_where_bucket *b)
{
    for (int by = 1; w->plans == MOE_PLANS_LEARNT && by <= NEAR; by++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const struct moe_where_bucket *other = b + sign * by;
            if (other >= w->bucket && other < w->bucket + MOE_ROW_BUCKETS && other->n >= LEVEL_LAYERS) {
                b->share = other->share;
                return;
            }
        }
}

int moe_where_copies(struct moe_where *w, int layer, int n_row, int n_missing)
{
    w->at = &w->bucket[bucket_of(n_row)];
    w->layer = layer;
    w->n_exchange = 0;
    if (w->plans == MOE_PLANS_RANDOM)
        return (int)(draw(w) % (uint64_t)(n_missing + 1));
    if (!w->at->n)
        begin(w, w->at);
    w->share = w->at->share;
    if (!n_missing) { /* all shares are the same */
        w->share = -1;
        return 0;
    }
    uint64_t dice = draw(w);
    if (w->at->n >= SETTLED && w->plans == MOE_PLANS_LEARNT)
        w->share = pick_trial(w, layer, dice % TRIAL_EVERY);
    return copies_of(w->share, n_missing);
}

bool moe_where_may_exchange(struct moe_where *w)
{
    if (w->plans == MOE_PLANS_RANDOM)
        return true;
    if (w->share < 0 || w->share != w->at->share || w->at->n < SETTLED)
        return false; /* the layer is measured for another reason, or not at all */
    return w->n_exchange ||
           (draw(w) % EXCHANGE_EVERY == 0 && room_ns(w, &w->exchanges, EXCHANGE_SHARE) >= w->exchange_ns);
}

/* ---- learning ------------------------------------------------------------------------------------------------------ */

static void adopt(struct moe_where *w, int share)
{
    struct moe_where_bucket *b = w->at;
    struct moe_share_cost now = b->cost[share];
    b->cost[b->share] = (struct moe_share_cost){ 1, now.n < DOUBT ? 0 : DOUBT, mean_usual(b) };
    for (int i = 0; i < MOE_SHARES; i++) {
        b->cost[i].ratio /= now.ratio;
        b->cost[i].usual_ns *= now.ratio;
    }
    for (int i = 0; i < w->n_layer; i++)
        b->usual_ns[i] *= (float)now.ratio;
    b->usual_sum_ns *= now.ratio;
    b->mean_ns *= now.ratio;
    b->cost[share].n = 0;
    b->share = share;
    w->n_change++;
}

static void learn_usual(struct moe_where *w, double ns, double expected)
{
    struct moe_where_bucket *b = w->at;
    float *usual = &b->usual_ns[w->layer];
    double error = ns / expected - 1;
    if (*usual > 0) {
        b->variance += (fmin(error * error, 1) - b->variance) / (4 * LEVEL_LAYERS);
        b->level += (fmin(ns / (double)*usual, MOST_LEVEL) - b->level) / LEVEL_LAYERS;
        float change = (float)((fmin(ns, MOST_LEVEL * (double)*usual) - (double)*usual) / USUAL_LAYERS);
        *usual += change;
        b->usual_sum_ns += (double)change;
    } else {
        *usual = (float)(ns / b->level);
        b->usual_sum_ns += (double)*usual;
        b->n_usual++;
    }
    b->n = kn_min(b->n + 1, SURE * w->n_layer);
    b->mean_ns += (ns - b->mean_ns) / kn_min(b->n, LEVEL_LAYERS);
    for (int i = 0; i < MOE_SHARES; i++)
        b->cost[i].n *= 1 - 1.0 / SAMPLE_LAYERS;
}

static void learn_trial(struct moe_where *w, double ns, double expected)
{
    struct moe_where_bucket *b = w->at;
    struct moe_share_cost *c = &b->cost[w->share];
    double weight = b->n >= SURE * w->n_layer ? 1 : GUESSED;
    c->n = n_today(b, c) + weight;
    c->usual_ns = mean_usual(b);
    c->ratio += (fmin(ns / expected, MOST_RATIO) - c->ratio) * weight / c->n;
    w->n_trial++;
    charge(w, &w->trials, ns - expected, TRIAL_SHARE);
    if (c->n > LEAST_SAMPLES && c->ratio * (1 + deviation(b, c)) < MARGIN)
        adopt(w, w->share);
}

void moe_where_learn(struct moe_where *w, double ns)
{
    if (w->share < 0)
        return;
    double expected = expected_ns(w->at, w->layer);
    w->all_ns += ns;
    if (w->n_exchange) {
        double each = (ns - expected) / w->n_exchange;
        w->exchange_ns += (each - w->exchange_ns) / LEVEL_LAYERS;
        charge(w, &w->exchanges, ns - expected, EXCHANGE_SHARE);
    } else if (w->share == w->at->share) {
        learn_usual(w, ns, expected);
    } else {
        learn_trial(w, ns, expected);
    }
    w->share = -1;
}
