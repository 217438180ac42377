/* speculative/plans.c - the expected gain of each drafter at each depth.
 *
 * A plan takes the likeliest nodes of all sequences' expected drafts as long as tokens per second rise; the result is
 * its gain over a plain step.  All depths together cost a few thousand additions: survivals are sorted into N_BIN, and
 * each depth adds its own nodes to those of the smaller depths. */
#include "speculative/internal.h"

#include <math.h>

#define N_BIN                       128
#define MIN_HOPEFUL_SURVIVAL_UNSEEN 0.8  /* hopeful: survival per depth is at least this without seen drafts, */
#define MIN_HOPEFUL_SURVIVAL_SEEN   0.64 /* this with them, */
#define HOPEFUL_SIGMAS              1.5  /* and at least so many standard deviations above the estimate */
#define MIN_SURVIVAL                0.02 /* nodes with less survival are not drafted */
#define DRAFT_DECAY                 (1 - 1 / 256.0) /* decay of the weight of draft times, per step without drafts, */
#define MIN_DRAFT_WEIGHT            (1 / 64.0)      /* to this share of a pass */
#define MIN_HOPEFUL_DRAFT_SHARE     0.25            /* hopeful: at least this share of the time of a draft pass */
#define MAX_DRAFT_RATIO             2    /* a draft pass counts as at most so many times the measured mean, */
#define MAX_FORECAST_DRAFT_RATIO    4    /* or the mean at another batch size, or the forecast */
#define MIN_OUTLIER_SHARE           0.02 /* but in any case up to this share of a plain step */

bool spec_control_has_seen_drafts(const struct spec_control *c, int drafter)
{
    return c->arm[c->arm[drafter].of].survival_weight[0] >= 4;
}

/* The measured batch size that is nearest to n_due; -1: none. */
static int nearest_measured(const struct spec_arm *a, int n_due)
{
    int size = spec_size_of(n_due);
    for (int far = 0; far < SPEC_SIZES; far++)
        for (int side = -1; side <= 1; side += 2) {
            int i = size + side * far;
            if (i >= 0 && i < SPEC_SIZES && a->draft_weight[i] > 0)
                return i;
        }
    return -1;
}

/* Time of one draft pass for n_due sequences: measured at the nearest batch size, or forecast; < 0: neither.  A drafter
 * that is off is not measured, so nothing would ever correct a time that is too long: hopeful times fall with the
 * weight. */
static double nearest_draft_ns(const struct spec_arm *a, int n_due, bool hopeful)
{
    int i = nearest_measured(a, n_due);
    if (i < 0 && a->forecast.draft_ns < 0)
        return -1;
    double ns = i < 0 ? spec_cost_draft_ns(&a->forecast, n_due) : a->draft_ns[i],
           weight = i < 0 ? a->forecast_weight : a->draft_weight[i];
    return hopeful ? ns * fmin(1, fmax(MIN_HOPEFUL_DRAFT_SHARE, weight)) : ns;
}

double spec_control_draft_ns(const struct spec_control *c, int drafter, int n_due, bool hopeful)
{
    double alone = nearest_draft_ns(&c->arm[c->arm[drafter].of], n_due, hopeful);
    return alone >= 0 ? alone : nearest_draft_ns(&c->arm[drafter], n_due, hopeful);
}

double spec_control_most_draft_ns(const struct spec_control *c, int drafter, int n_due)
{
    const struct spec_arm *a = &c->arm[drafter];
    double ns = nearest_draft_ns(a, n_due, false);
    bool measured = a->draft_weight[spec_size_of(n_due)] > 0;
    return ns < 0 ? INFINITY
                  : fmax(ns * (measured ? MAX_DRAFT_RATIO : MAX_FORECAST_DRAFT_RATIO),
                         MIN_OUTLIER_SHARE * spec_passes_plain_ns(&c->passes, n_due));
}

static void age(double *weight)
{
    if (*weight > MIN_DRAFT_WEIGHT)
        *weight = fmax(MIN_DRAFT_WEIGHT, *weight * DRAFT_DECAY);
}

void spec_control_age_drafts(struct spec_control *c)
{
    for (int i = 0; i < c->opt.n_drafter; i++) {
        age(&c->arm[i].forecast_weight);
        for (int size = 0; size < SPEC_SIZES; size++)
            age(&c->arm[i].draft_weight[size]);
    }
}

void spec_plan_survival(const struct spec_control *c, int drafter, int session, int depth, bool hopeful, double *what)
{
    int of = c->arm[drafter].of;
    spec_control_survival(c, of, session, depth, what);
    const struct spec_session_stats *h = &c->habit[of * c->opt.n_session + session];
    if (h->has_prediction && h->predicted[0] <= 0) /* it has no draft for this session */
        return;
    double hope = 1, most = 1;
    for (int d = 0; hopeful && d < depth; d++) {
        hope *= spec_control_has_seen_drafts(c, drafter) ? MIN_HOPEFUL_SURVIVAL_SEEN : MIN_HOPEFUL_SURVIVAL_UNSEEN;
        double luck = 1 + HOPEFUL_SIGMAS / sqrt(c->arm[of].tally[d].estimated + 1);
        what[d] = most = fmin(most, fmax(what[d] * luck, hope));
    }
}

/* Nodes of all sequences' drafts, by survival. */
struct bins {
    int count[N_BIN];
    double sum[N_BIN];
};

/* Adds a node at this depth for each sequence, with the survival in c->hope. */
static void add_depth(struct bins *b, const struct spec_control *c, int n_due, int depth)
{
    for (int i = 0; i < n_due; i++) {
        double last = c->hope[i][depth - 1];
        if (last < MIN_SURVIVAL)
            continue;
        int bin = kn_min(N_BIN - 1, (int)(last * N_BIN));
        b->count[bin]++;
        b->sum[bin] += last;
    }
}

/* All plans of a decision ask for the time of the same passes. */
static double pass_ns(struct spec_control *c, const struct spec_plan_input *q, int n_drafted, bool hopeful)
{
    double *ns = &c->pass_ns[hopeful][n_drafted];
    kn_assert(n_drafted >= 0 && n_drafted < q->n_due * SPEC_DEPTHS + 2);
    if (*ns <= 0)
        *ns = spec_passes_ns(&c->passes, q->n_due, q->n_beside, n_drafted, hopeful);
    return *ns;
}

/* The best plan of this depth, drafting and verifying in turn: the number of likeliest nodes with the highest gain. */
static struct spec_plan plan_in_turn(struct spec_control *c, const struct spec_plan_input *q, int drafter, int depth,
                                     bool hopeful, const struct bins *b)
{
    double draft_ns = fmax(0, spec_control_draft_ns(c, drafter, q->n_due, hopeful)) * depth, accepted = 0;
    struct spec_plan best = { .drafter = drafter,
                              .depth = depth,
                              .least_survival = 2,
                              .rows = q->n_due,
                              .tokens = q->n_due,
                              .draft_ns = draft_ns,
                              .pass_ns = q->off_ns,
                              .gain = q->off_ns / (draft_ns + q->off_ns) };
    int n = 0;
    for (int bin = N_BIN - 1; bin >= 0 && n < q->row_budget; bin--) {
        if (!b->count[bin])
            continue;
        int take = kn_min(b->count[bin], q->row_budget - n);
        n += take;
        accepted += b->sum[bin] * take / b->count[bin];
        double pass = pass_ns(c, q, n, hopeful);
        double gain = (q->off_ns + accepted * q->token_ns) / (draft_ns + pass);
        if (gain > best.gain)
            best = (struct spec_plan){ .drafter = drafter,
                                       .depth = depth,
                                       .least_survival = (double)bin / N_BIN,
                                       .rows = q->n_due + n,
                                       .tokens = q->n_due + accepted,
                                       .draft_ns = draft_ns,
                                       .pass_ns = pass,
                                       .contention = 1,
                                       .gain = gain };
    }
    return best;
}

/* The plan of this depth with overlapped drafting: all guesses that are ready are verified. */
static struct spec_plan plan_overlapped(struct spec_control *c, const struct spec_plan_input *q, int drafter, int depth,
                                        bool hopeful)
{
    const struct spec_arm *a = &c->arm[drafter];
    double rows = 0, accepted = 0;
    for (int i = 0; i < q->n_due; i++) {
        struct spec_overlap_mean s = spec_overlap_mean(c->hope[i], depth);
        rows += s.rows;
        accepted += s.accepted;
    }
    rows = fmin(rows, q->row_budget);
    accepted *= spec_overlap_accept_ratio(a);
    struct spec_plan p = { .drafter = drafter,
                           .depth = depth,
                           .rows = q->n_due + rows,
                           .tokens = q->n_due + accepted,
                           .draft_ns = fmax(0, spec_control_draft_ns(c, drafter, q->n_due, hopeful)) * depth,
                           .contention = spec_overlap_contention(c, a, q->size, hopeful) };
    double less = pass_ns(c, q, (int)rows, hopeful);
    double more = pass_ns(c, q, (int)rows + 1, hopeful);
    p.pass_ns = less + (more - less) * (rows - (int)rows); /* mean over steps with more rows and with fewer */
    p.gain = (q->off_ns + accepted * q->token_ns) / spec_overlap_ns(p.pass_ns, p.draft_ns, p.contention);
    return p;
}

void spec_plans_make(struct spec_control *c, const struct spec_plan_input *q, int drafter, int most, bool hopeful,
                     struct spec_plan *out /* [most + 1] */)
{
    struct bins bins = { 0 };
    for (int i = 0; i < q->n_due && most > 0; i++)
        spec_plan_survival(c, drafter, q->session[i], most, hopeful, c->hope[i]);
    for (int depth = 1; depth <= most; depth++) {
        if (c->arm[drafter].overlap) {
            out[depth] = plan_overlapped(c, q, drafter, depth, hopeful);
            continue;
        }
        add_depth(&bins, c, q->n_due, depth);
        out[depth] = plan_in_turn(c, q, drafter, depth, hopeful, &bins);
    }
}

struct spec_plan spec_plan_best(const struct spec_plan *p, int least, int most)
{
    struct spec_plan best = { .drafter = SPEC_OFF };
    for (int depth = least; depth <= most; depth++)
        if (best.drafter == SPEC_OFF || p[depth].gain > best.gain)
            best = p[depth];
    return best;
}
