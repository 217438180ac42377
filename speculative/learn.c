/* speculative/learn.c - updates the controller's estimates from the measurements of a step.
 *
 * Accepted tokens are compared with the survival that the drafter estimated: for the verified nodes of each depth, the
 * sum of survivals and the number of accepted nodes.  The comparison holds whatever the cut leaves out, for it counts
 * verified nodes only.  Several passes in a row with unexpected times mean that the machine has changed: plain steps
 * are then taken until the change is measured. */
#include "speculative/internal.h"

#include <math.h>
#include <string.h>

#define TRUTH        (1 - 1 / 512.0)    /* decay of the long tally, per step with drafts of this depth, */
#define TRUTH_LATE   (1 - 1 / 32.0)     /* of the short tally, */
#define TRUTH_IDLE   (1 - 1 / 2048.0)   /* and of the long one in other steps */
#define HABIT        (1 - 1 / 64.0)     /* decay of a session's sums, per draft */
#define PRIOR_TRUTH  16.0           /* prior, in drafts: a depth's correction equals that of the depth before it */
#define PRIOR_HABIT  24.0           /* prior, in expected accepted tokens: a session's correction is 1 */
#define PRIOR_SEEN   4.0            /* prior, in drafts: a session's survival equals the drafter's mean */
#define PRIOR_TOLD   8.0            /* prior, in drafts: a predicted survival is right */
#define SIGMAS       3.5            /* deviation of the short tally that replaces the long one */
#define UNKNOWN      0.6            /* survival per depth before any measurement */
#define ACCOUNT      (1 - 1 / 2048.0)   /* decay of the accounts' times, per step */
#define STRAY        2              /* most charged of a step, over its expected time: more is an outlier */
#define STALL        (1 - 1 / 64.0) /* decay of the times waiting for experts, per pass */
#define MOST_TEXT    2              /* tokens to prefill over those of the step before: more is not a draft's cost */
#define MEMORY       12             /* steps in the mean of a draft pass's time */
#define TEXTS        4              /* prefills in the mean of a prefilled token's time */
#define SPREAD       32             /* steps, about, over which prefill time is charged */
#define SLACK        0.06           /* |log(pass / expected)| of noise, not added to the drift */
#define STRANGE      0.25           /* drift from which passes are not learnt from, */
#define CHANGE       0.75           /* and from which the machine may have changed */
#define LONGEST      0.25           /* most that one pass adds to the drift */
#define FAR          0.15           /* the machine may also have changed if one refreshing plain pass is so far off */
#define SAME         0.08           /* plain passes have not changed if their mean is closer than this */
#define ENOUGH       3              /* measured passes from which a deviation counts as noise */
#define DOUBT        4              /* plain passes to find out */

/* ---- acceptance --------------------------------------------------------------------------------------------- */

void spec_control_truth(const struct spec_control *c, int drafter, int session, double *out)
{
    const struct spec_habit *h = &c->habit[drafter * c->opt.n_session + session];
    double mine = (h->kept + PRIOR_HABIT) / (h->hoped + PRIOR_HABIT);
    for (int d = 0; d < SPEC_DEPTHS; d++)
        out[d] = c->arm[drafter].truth[d] * mine;
}

void spec_control_expect(const struct spec_control *c, int drafter, int session, int depth, double *what)
{
    const struct spec_arm *a = &c->arm[drafter];
    const struct spec_habit *h = &c->habit[drafter * c->opt.n_session + session];
    double before = 1, arm_before = 1, ratio = UNKNOWN, most = 1, truth[SPEC_DEPTHS];
    for (int d = 0; h->is_told && d < depth; d++)
        what[d] = most = fmin(most, h->told[d] * (a->came_told[d] + PRIOR_TOLD) / (a->told[d] + PRIOR_TOLD));
    if (h->is_told)
        return;
    spec_control_truth(c, drafter, session, truth);
    for (int d = 0; d < depth; d++) {
        double arm = (a->seen[d] * a->seen_weight[d] + arm_before * ratio) / (a->seen_weight[d] + 1);
        ratio = arm_before > 0 ? fmin(1, arm / arm_before) : 0;
        double mine = h->weight[d] > 0 ? (h->seen[d] * h->weight[d] + arm * PRIOR_SEEN) / (h->weight[d] + PRIOR_SEEN)
                                       : before * ratio;
        arm_before = arm;
        before = mine;
        what[d] = most = fmin(most, mine * truth[d]);
    }
}

static void add_tally(struct spec_tally *t, double share, const struct spec_tally *now)
{
    t->judged = t->judged * share + now->judged;
    t->hoped = t->hoped * share + now->hoped;
    t->kept = t->kept * share + now->kept;
}

/* The long tally shows small gains; when the short one contradicts it, it is replaced. */
static void update_truth(struct spec_arm *a, int d, const struct spec_tally *now)
{
    add_tally(&a->tally[d], now->hoped > 0 ? TRUTH : TRUTH_IDLE, now);
    if (now->hoped <= 0)
        return;
    add_tally(&a->late[d], TRUTH_LATE, now);
    double usual = a->late[d].hoped * a->truth[d];
    if (fabs(a->late[d].kept - usual) > SIGMAS * sqrt(fmax(usual, 1)))
        memcpy(a->tally, a->late, sizeof a->tally);
}

static void learn_truth(struct spec_control *c, int drafter, const struct spec_step *s)
{
    int of = c->arm[drafter].of;
    struct spec_arm *a = &c->arm[of], *counts = &c->arm[drafter];
    struct spec_tally now[SPEC_DEPTHS] = { 0 };
    double before = 1;
    for (int i = 0; i < s->n_due; i++) {
        const struct spec_outcome *o = &s->outcome[i];
        if (!o->tree || o->tree->n == 0)
            continue;
        struct spec_habit *h = &c->habit[of * c->opt.n_session + o->session];
        h->hoped *= HABIT;
        h->kept *= HABIT;
        double mine[SPEC_DEPTHS] = { 0 };
        for (int j = 0; j < o->tree->n; j++)
            if (o->tree->depth[j] <= SPEC_DEPTHS)
                mine[o->tree->depth[j] - 1] += o->tree->survival[j];
        for (int d = 0; d < SPEC_DEPTHS && mine[d] > 0; d++) {
            bool came = o->n_kept > d;
            h->hoped += fmin(1, mine[d] * a->truth[d]);
            h->kept += came;
            now[d].judged++;
            now[d].hoped += fmin(1, mine[d]);
            now[d].kept += came;
        }
        counts->n_drafted += (uint64_t)o->tree->n;
        counts->n_kept += (uint64_t)o->n_kept;
    }
    for (int d = 0; d < SPEC_DEPTHS; d++)
        update_truth(a, d, &now[d]);
    for (int d = 0; d < SPEC_DEPTHS; d++) {
        const struct spec_tally *t = &a->tally[d];
        double prior = t->hoped > 0 ? PRIOR_TRUTH * t->hoped / t->judged : 1;
        before = a->truth[d] = (t->kept + prior * before) / (t->hoped + prior);
    }
}

/* ---- pass times --------------------------------------------------------------------------------------------- */

/* Have passes been above, or below, the expected time for long?  strange: this pass may belong to a change; it is not
 * learnt from until the change is confirmed or ruled out. */
static bool drifts(struct spec_control *c, double log, bool *strange)
{
    double unrest = spec_passes_unrest(&c->passes), most = fmin(LONGEST * unrest, 1);
    c->drift[0] = fmax(0, c->drift[0] + fmin(log, most) - SLACK * unrest);
    c->drift[1] = fmax(0, c->drift[1] + fmin(-log, most) - SLACK * unrest);
    *strange = c->drift[0] >= STRANGE * unrest || c->drift[1] >= STRANGE * unrest;
    if (c->drift[0] < CHANGE * unrest && c->drift[1] < CHANGE * unrest)
        return false;
    c->drift[0] = c->drift[1] = 0;
    return true;
}

/* Plain passes show whether all times have changed, or only those of passes with drafts. */
static void settle_doubt(struct spec_control *c, double log)
{
    c->doubt_log += log;
    if (--c->doubt > 0)
        return;
    double mean = c->doubt_log / DOUBT;
    if (fabs(mean) < SAME * spec_passes_unrest(&c->passes)) {
        spec_passes_doubt(&c->passes);
        return;
    }
    double factor = kn_exp(mean);
    spec_passes_shift(&c->passes, factor);
    for (int i = 0; i < c->opt.n_drafter; i++) {
        c->arm[i].text_ns *= factor;
        for (int size = 0; size < SPEC_SIZES; size++)
            c->arm[i].draft_ns[size] *= factor;
    }
}

/* Overlapped drafting makes the pass longer: such a pass updates the contention, not the pass times. */
static void learn_beside(struct spec_control *c, const struct spec_step *s, int n_drafted, int n_kept)
{
    struct spec_arm *a = &c->arm[c->last.drafter];
    double pass = spec_passes_ns(&c->passes, s->n_due, s->n_beside, n_drafted, false);
    double draft = spec_control_draft_ns(c, c->last.drafter, s->n_due) * s->n_ahead;
    if (pass > 0 && draft > 0)
        spec_ahead_learn(a, spec_size_of(s->n_due), s->pass_ns, pass, draft);
    spec_ahead_count(a, c->last_expected, n_kept);
}

static void learn_pass(struct spec_control *c, const struct spec_step *s, int n_drafted, bool known)
{
    bool beside = c->last.drafter != SPEC_OFF && c->arm[c->last.drafter].ahead, strange = false;
    bool plain = n_drafted == 0 && s->n_beside == 0 && !beside;
    double usual = spec_passes_ns(&c->passes, s->n_due, s->n_beside, n_drafted, false);
    double log = usual > 0 ? kn_log(s->pass_ns / usual) : 0;
    bool alone = s->n_beside == 0 && !beside;
    if (usual > 0 && alone && (plain || spec_passes_weight(&c->passes, s->n_due, n_drafted) > ENOUGH))
        spec_passes_unsettle(&c->passes, log);
    if (known && alone) {
        if (c->doubt > 0 && plain) {
            settle_doubt(c, log);
            strange = true;
        } else if (c->doubt == 0) {
            bool far = plain && c->last.why == SPEC_WHY_REFRESH && fabs(log) > FAR * spec_passes_unrest(&c->passes);
            if (drifts(c, log, &strange) || far) {
                c->doubt = DOUBT;
                c->doubt_log = 0;
                strange = true;
            }
        }
    }
    if (!strange && !beside)
        spec_passes_learn(&c->passes, s->n_due, s->n_beside, n_drafted, s->pass_ns);
    if (plain)
        c->plain_at[spec_size_of(s->n_due)] = c->step;
    if (s->experts > 0)
        spec_knots_learn(&c->experts, s->n_row, s->experts, MEMORY);
    c->stall_ns = c->stall_ns * STALL + s->stall_ns;
    c->stall_bytes = c->stall_bytes * STALL + s->missed_bytes;
    c->stall_of_ns = c->stall_of_ns * STALL + s->pass_ns;
}

static void learn_draft(struct spec_arm *a, int size, double pass_ns)
{
    a->draft_ns[size] += (pass_ns - a->draft_ns[size]) / (a->draft_weight[size] + 1);
    a->draft_weight[size] = fmin(a->draft_weight[size] + 1, MEMORY - 1);
}

/* Did drafters prefill more than the tokens of the step before?  They do after a pause and for new sequences, and the
 * draft time then measures prefill. */
static bool takes_in(const struct spec_control *c, const struct spec_step *s)
{
    return s->n_text > c->n_said * MOST_TEXT;
}

static void learn_text(struct spec_arm *a, int size, int depth, const struct spec_step *s)
{
    double drafts = a->draft_weight[size] > 0 ? a->draft_ns[size] * depth : 0;
    a->text_ns += (fmax(0, s->draft_ns - drafts) / s->n_text - a->text_ns) / (a->text_weight + 1);
    a->text_weight = fmin(a->text_weight + 1, TEXTS - 1);
}

/* ---- charging the loss -------------------------------------------------------------------------------------- */

/* Plain step times are known without outliers, so steps with drafts are charged without outliers too, once their time
 * has been measured.  Prefill time is charged in small parts: drafts with enough gain pay for it, and the rest must be
 * recovered before the next trial. */
static void account(struct spec_control *c, const struct spec_step *s, int n_drafted, int n_kept)
{
    double off_ns = spec_passes_ns(&c->passes, s->n_due, s->n_beside, 0, false);
    double took = s->draft_ns + s->pass_ns, worth = off_ns + n_kept * spec_passes_plain(&c->passes, s->n_due) / s->n_due;
    int drafter = c->last.drafter;
    c->total_ns += took;
    if (drafter != SPEC_OFF) {
        double text = takes_in(c, s) ? fmax(0, s->draft_ns - c->last.draft_ns) : 0;
        double usual = c->last.draft_ns + spec_passes_ns(&c->passes, s->n_due, s->n_beside, n_drafted, false);
        bool tried = s->n_beside > 0 || spec_passes_weight(&c->passes, s->n_due, n_drafted) > 0;
        double charged = tried ? fmin(took - text, fmax(worth, STRAY * usual)) : took - text;
        c->lost_ns = fmax(0, c->lost_ns + charged - worth);
        c->debt_ns += text;
    }
    c->lost_ns += c->debt_ns / SPREAD;
    c->debt_ns -= c->debt_ns / SPREAD;
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
    c->n_learnt++;
    if (known)
        account(c, s, n_drafted, n_kept);
    learn_pass(c, s, n_drafted, known);
    bool cold = takes_in(c, s), warm = drafter == c->drafted_by && !cold;
    c->drafted_by = drafter;
    c->n_said = s->n_due + n_kept;
    if (drafter == SPEC_OFF)
        return;
    struct spec_arm *a = &c->arm[drafter];
    a->n_step++;
    double draft_ns = a->ahead ? s->ahead_ns / fmax(1, s->n_ahead) : s->draft_ns / c->last.depth;
    if (warm && (!a->ahead || s->n_ahead))
        learn_draft(a, size, draft_ns);
    if (cold && !a->ahead)
        learn_text(a, size, c->last.depth, s);
    if (warm && a->ahead && s->n_ahead + n_drafted > 0)
        learn_beside(c, s, n_drafted, n_kept);
    learn_truth(c, drafter, s);
    if (c->last.why == SPEC_WHY_TRIAL) {
        a->tried[size].deepest = kn_max(a->tried[size].deepest, c->last.depth);
        c->trial.left -= c->trial.left > 0;
    }
}
