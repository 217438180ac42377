/* speculative/learn.c - what a step teaches the controller.
 *
 * What comes true of drafts is compared with what their drafter said of them: of the nodes that were verified at
 * a depth, the sum of survivals and the number that were kept.  That stays true whatever the cut leaves out, for
 * it looks at nothing else.  Passes whose time is far from what was expected, several in a row, mean that the
 * machine has changed: plain steps are taken until that is settled. */
#include "speculative/internal.h"

#include <math.h>
#include <string.h>

#define TRUTH        (1 - 1 / 512.0)    /* a step's weight beside the one after it */
#define TRUTH_LATE   (1 - 1 / 32.0)
#define TRUTH_IDLE   (1 - 1 / 2048.0)
#define HABIT        (1 - 1 / 64.0)
#define PRIOR_TRUTH  2.0            /* drafts' worth of belief in a drafter's own word */
#define PRIOR_HABIT  24.0
#define PRIOR_SEEN   4.0
#define SIGMAS       3.5            /* between lately and before: drafts are not what they were */
#define UNKNOWN      0.6            /* survival per depth, of whom nothing is known */
#define ACCOUNT      (1 - 1 / 2048.0)
#define STALL        (1 - 1 / 64.0)
#define MEMORY       12
#define SLACK        0.05           /* of the logarithm: noise */
#define STEPS        0.8            /* of the logarithm in all: a change; at least four steps */
#define DOUBT        4

/* ---- what drafts are worth ---------------------------------------------------------------------------------- */

double spec_control_truth(const struct spec_control *c, int drafter, int session, int depth)
{
    const struct spec_arm *a = &c->arm[drafter];
    const struct spec_habit *h = &c->habit[drafter * c->opt.n_session + session];
    double arm = (a->kept[depth] + PRIOR_TRUTH) / (a->hoped[depth] + PRIOR_TRUTH);
    return arm * (h->kept + PRIOR_HABIT) / (h->hoped + PRIOR_HABIT);
}

void spec_control_expect(const struct spec_control *c, int drafter, int session, int depth, double *what)
{
    const struct spec_arm *a = &c->arm[drafter];
    const struct spec_habit *h = &c->habit[drafter * c->opt.n_session + session];
    double before = 1, arm_before = 1, ratio = UNKNOWN, most = 1;
    for (int d = 0; d < depth; d++) {
        double arm = (a->seen[d] * a->seen_weight[d] + arm_before * ratio) / (a->seen_weight[d] + 1);
        ratio = arm_before > 0 ? fmin(1, arm / arm_before) : 0;
        double mine = h->weight[d] > 0 ? (h->seen[d] * h->weight[d] + arm * PRIOR_SEEN) / (h->weight[d] + PRIOR_SEEN)
                                       : before * ratio;
        arm_before = arm;
        before = mine;
        what[d] = most = fmin(most, mine * spec_control_truth(c, drafter, session, d));
    }
}

/* The long memory makes small gains visible; when the short one contradicts it, it is forgotten. */
static void update_truth(struct spec_arm *a, int d, double hoped, double kept)
{
    double share = hoped > 0 ? TRUTH : TRUTH_IDLE;
    a->hoped[d] = a->hoped[d] * share + hoped;
    a->kept[d] = a->kept[d] * share + kept;
    if (hoped <= 0)
        return;
    a->hoped_late[d] = a->hoped_late[d] * TRUTH_LATE + hoped;
    a->kept_late[d] = a->kept_late[d] * TRUTH_LATE + kept;
    double usual = a->hoped_late[d] * (a->kept[d] + PRIOR_TRUTH) / (a->hoped[d] + PRIOR_TRUTH);
    if (fabs(a->kept_late[d] - usual) <= SIGMAS * sqrt(fmax(usual, 1)))
        return;
    memcpy(a->hoped, a->hoped_late, sizeof a->hoped);
    memcpy(a->kept, a->kept_late, sizeof a->kept);
}

static void learn_truth(struct spec_control *c, int drafter, const struct spec_step *s)
{
    struct spec_arm *a = &c->arm[drafter];
    double hoped[SPEC_DEPTHS] = { 0 }, kept[SPEC_DEPTHS] = { 0 };
    for (int i = 0; i < s->n_due; i++) {
        const struct spec_outcome *o = &s->outcome[i];
        if (!o->tree || o->tree->n == 0)
            continue;
        struct spec_habit *h = &c->habit[drafter * c->opt.n_session + o->session];
        h->hoped *= HABIT;
        h->kept *= HABIT;
        double mine[SPEC_DEPTHS] = { 0 };
        for (int j = 0; j < o->tree->n; j++)
            if (o->tree->depth[j] <= SPEC_DEPTHS)
                mine[o->tree->depth[j] - 1] += o->tree->survival[j];
        for (int d = 0; d < SPEC_DEPTHS && mine[d] > 0; d++) {
            double arm = (a->kept[d] + PRIOR_TRUTH) / (a->hoped[d] + PRIOR_TRUTH);
            bool came = o->n_kept > d;
            h->hoped += fmin(1, mine[d] * arm);
            h->kept += came;
            hoped[d] += fmin(1, mine[d]);
            kept[d] += came;
        }
        a->n_drafted += (uint64_t)o->tree->n;
        a->n_kept += (uint64_t)o->n_kept;
    }
    for (int d = 0; d < SPEC_DEPTHS; d++)
        update_truth(a, d, hoped[d], kept[d]);
}

/* ---- what passes take --------------------------------------------------------------------------------------- */

/* Several in a row on the same side: says so, and by what factor. */
static bool drifts(struct spec_control *c, double took, double expected, double *factor)
{
    double log = kn_log(took / expected);
    for (int side = 0; side < 2; side++) {
        double x = side ? -log : log;
        c->drift[side].sum = fmax(0, c->drift[side].sum + fmin(x, 0.25) - SLACK);
        c->drift[side].log_sum += fmin(x, 2);
        c->drift[side].n++;
        if (c->drift[side].sum <= 0)
            memset(&c->drift[side], 0, sizeof c->drift[side]);
        if (c->drift[side].sum < STEPS)
            continue;
        double mean = c->drift[side].log_sum / c->drift[side].n;
        *factor = kn_exp(side ? -mean : mean);
        memset(c->drift, 0, sizeof c->drift);
        return true;
    }
    return false;
}

static void learn_pass(struct spec_control *c, const struct spec_step *s, int n_drafted, bool known)
{
    double expected = known ? spec_passes_ns(&c->passes, s->n_due, s->n_beside, n_drafted, false) : 0, factor;
    if (expected > 0 && s->n_beside == 0 && drifts(c, s->pass_ns, expected, &factor)) {
        if (n_drafted == 0) {
            spec_passes_shift(&c->passes, factor);
            c->doubt = 0;
        } else if (c->doubt == 0) {
            c->doubt = DOUBT;
        }
    }
    if (n_drafted == 0 && c->doubt > 0)
        c->doubt--;
    spec_passes_learn(&c->passes, s->n_due, s->n_beside, n_drafted, s->pass_ns);
    if (n_drafted == 0 && s->n_beside == 0)
        c->plain_at[spec_size_of(s->n_due)] = c->step;
    if (s->experts > 0)
        spec_knots_learn(&c->experts, s->n_row, s->experts);
    spec_knots_learn(&c->missed, s->n_row, s->missed_bytes);
    c->stall_ns = c->stall_ns * STALL + s->stall_ns;
    c->stall_bytes = c->stall_bytes * STALL + s->missed_bytes;
}

static void learn_draft(struct spec_arm *a, int size, double pass_ns)
{
    a->draft_ns[size] += (pass_ns - a->draft_ns[size]) / (a->draft_weight[size] + 1);
    a->draft_weight[size] = fmin(a->draft_weight[size] + 1, MEMORY - 1);
}

/* ---- the account -------------------------------------------------------------------------------------------- */

static void account(struct spec_control *c, const struct spec_step *s, double off_ns, double token_ns, int n_kept)
{
    double took = s->draft_ns + s->pass_ns, worth = off_ns + n_kept * token_ns;
    int drafter = c->last.drafter;
    c->total_ns += took;
    if (drafter != SPEC_OFF)
        c->lost_ns = fmax(0, c->lost_ns + took - worth);
    for (int i = 0; i < c->opt.n_drafter; i++) {
        struct spec_arm *a = &c->arm[i];
        a->plain_ns = a->plain_ns * ACCOUNT + (i == drafter ? worth : took);
        a->took_ns = a->took_ns * ACCOUNT + took;
    }
}

void spec_control_learn(struct spec_control *c, const struct spec_step *s)
{
    if (s->n_due == 0)
        return;
    int n_drafted = 0, n_kept = 0, drafter = c->last.drafter, size = spec_size_of(s->n_due);
    for (int i = 0; i < s->n_due; i++) {
        n_drafted += s->outcome[i].tree ? s->outcome[i].tree->n : 0;
        n_kept += s->outcome[i].n_kept;
    }
    bool known = spec_passes_known(&c->passes, s->n_due);
    if (known)
        account(c, s, spec_passes_ns(&c->passes, s->n_due, s->n_beside, 0, false),
                spec_passes_plain(&c->passes, s->n_due) / s->n_due, n_kept);
    learn_pass(c, s, n_drafted, known);
    if (drafter == SPEC_OFF)
        return;
    struct spec_arm *a = &c->arm[drafter];
    a->n_step++;
    if (c->last.depth > 0)
        learn_draft(a, size, s->draft_ns / c->last.depth);
    learn_truth(c, drafter, s);
    if (c->trial.left > 0 && c->last.why == SPEC_WHY_TRIAL && --c->trial.left == 0)
        a->tried[size].deepest = kn_max(a->tried[size].deepest, c->trial.depth);
}
