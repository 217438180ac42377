/* moe/pass/where.h - how many experts of a layer are copied to the device before they are computed.
 *
 * The experts of a layer that the device does not keep can be computed by the host, or by the device after a copy.  Both work at
 * the same time, so the best share of copies is between none and all: it depends on the link, the processors, the memory
 * that copies and products compete for, and the rows of the pass.  No model of the machine is used.  The choice is among a few
 * shares, and the times of layers are compared:
 *
 *     moe_where_copies()   for each layer, when its experts are known: the number of copies
 *     moe_where_learn()    the layer's time: until the experts of the next layer are known
 *
 * Passes with similar numbers of rows form a bucket.  A bucket has one share in use; a layer chosen at random tries another share
 * now and then, and its time over the usual one of the same layer is a sample of that share's cost.  A share is adopted when it
 * is faster by more than the noise, MARGIN or more.  The shares tried include none and all, so neither can stay better unnoticed.
 *
 * The account: a share that is estimated to lose is tried only while the time that trials have lost is below TRIAL_SHARE of the
 * time of all layers, plus that of a few layers.  A second account limits in the same way the time for copies that only replace an expert of the device by one
 * that is used more often.
 *
 * Times are parameters: there is no clock here.  One thread. */
#ifndef MOE_PASS_WHERE_H
#define MOE_PASS_WHERE_H

#include "kernels/core.h"

#define MOE_SHARES      6  /* of a layer's missing experts: none, 1/8, 1/4, 1/2, 3/4, all */
#define MOE_ROW_BUCKETS 14 /* 1 row, 2, 3 to 4, 5 to 8 .. more than 4,096 */

/* Times of layers with this share over those of layers with the share in use. */
struct moe_share_cost {
    double ratio, n; /* mean; samples, of which old ones count less */
    double usual_ns; /* the bucket's mean usual time at the last sample */
};

struct moe_where_bucket {
    int share;             /* in use */
    double level, mean_ns; /* of the last layers with it: time over the usual one; time */
    double variance;       /* of the first */
    int n;                 /* layers with it so far, up to some passes */
    float *usual_ns;       /* [n_layer] 0: not known */
    double usual_sum_ns;   /* of the known ones */
    int n_usual;
    struct moe_share_cost cost[MOE_SHARES];
};

struct moe_account {
    double lost_ns;
};

/* For measurements and tests: the buckets' first shares are kept; or any number of copies, and exchanges at any time. */
enum moe_plans { MOE_PLANS_LEARNT, MOE_PLANS_FIXED, MOE_PLANS_RANDOM };

struct moe_where {
    int n_layer;
    struct moe_where_bucket bucket[MOE_ROW_BUCKETS];
    struct moe_account trials, exchanges;
    double all_ns;      /* of all layers */
    double exchange_ns; /* average cost of an exchange; 0: not known */
    uint64_t random;
    enum moe_plans plans;
    /* the layer since the last moe_where_copies(): */
    int layer, n_exchange;
    int share;                   /* of this layer; -1: not measured */
    struct moe_where_bucket *at; /* its bucket */
    uint64_t n_trial, n_change;  /* layers with another share than the one in use; changes of it */
};

void moe_where_lay_out(struct moe_where *w, int n_layer, struct kn_arena *a);
void moe_where_init(struct moe_where *w); /* once it has its memory */

/* The number of the layer's n_missing experts to copy. */
int moe_where_copies(struct moe_where *w, int layer, int n_row, int n_missing);

/* Whether an expert may be copied only to replace another one; then the caller does so and calls moe_where_exchanged(). */
bool moe_where_may_exchange(struct moe_where *w);
static inline void moe_where_exchanged(struct moe_where *w) { w->n_exchange++; }

/* The layer of the last moe_where_copies() took ns. */
void moe_where_learn(struct moe_where *w, double ns);

/* The share in use for passes of n_row rows, 0 to 1. */
double moe_where_share(const struct moe_where *w, int n_row);

/* Whether passes of n_row rows copy experts also when they try no other share. */
static inline bool moe_where_uses_copies(const struct moe_where *w, int n_row)
{
    return w->plans == MOE_PLANS_RANDOM || moe_where_share(w, n_row) > 0;
}

#endif
