/* speculative/learn.c - updates the controller's estimates from the measurements of a step.
 *
 * Accepted tokens are compared with the survival that the drafter estimated: for the verified nodes of each depth, the
 * sum of survivals and the number of accepted nodes.  The comparison holds whatever the cut leaves out, for it counts
 * verified nodes only.  Several passes in a row with unexpected times mean that the machine has changed: plain steps
 * are then taken until the change is measured. */
#include "speculative/internal.h"

#include <math.h>
#include <string.h>

#define LONG_DECAY              (1 - 1 / 512.0)  /* decay of the long tally, per step with drafts of this depth, */
#define SHORT_DECAY             (1 - 1 / 32.0)   /* of the short tally, */
#define IDLE_DECAY              (1 - 1 / 2048.0) /* and of the long tally, in other steps */
#define SESSION_DECAY           (1 - 1 / 64.0)   /* decay of a session's sums, per draft */
#define PRIOR_DEPTH_DRAFTS      16.0 /* prior, in drafts: a depth's correction equals that of the depth before it */
#define PRIOR_SESSION_TOKENS    24.0 /* prior, in expected accepted tokens: a session's correction is 1 */
#define PRIOR_SESSION_DRAFTS    4.0  /* prior, in drafts: a session's survival equals the drafter's mean */
#define PRIOR_PREDICTED_DRAFTS  8.0  /* prior, in drafts: a predicted survival is right */
#define CHANGE_SIGMAS           3.5  /* deviation of the short tally that replaces the long one */
#define ACCOUNT_DECAY           (1 - 1 / 2048.0) /* decay of the accounts' times, per step */
#define MAX_CHARGE_RATIO        2              /* most charged of a step, over its expected time: more is an outlier; */
#define MAX_NEW_CHARGE_RATIO    4              /* of a step with a number of rows that was not measured yet */
#define STALL_DECAY             (1 - 1 / 64.0) /* decay of the times waiting for experts, per pass */
#define MAX_DRAFT_PREFILL_RATIO 2    /* prefilled tokens over tokens of the last step: above it a step prefills */
#define DRAFT_MEAN_STEPS        12   /* steps in the mean of a draft pass's time */
#define PREFILL_MEAN_STEPS      4    /* prefills in the mean of a prefilled token's time */
#define PREFILL_CHARGE_STEPS    32   /* steps, about, over which prefill time is charged */
#define DRIFT_SLACK             0.06 /* |log(pass / expected)| of noise, not added to the drift */
#define MIN_SUSPECT_DRIFT       0.25 /* drift from which passes are not learnt from, */
#define MIN_CHANGE_DRIFT        0.75 /* and from which the machine may have changed */
#define MAX_DRIFT_OF_PASS       0.25 /* most that one pass adds to the drift */
#define MIN_CHANGE_OF_PASS      0.15 /* a plain pass for SPEC_WHY_REFRESH so far off: the machine may have changed */
#define MAX_UNCHANGED_MEAN      0.08 /* plain passes have not changed if their mean is closer than this */
#define MIN_NOISE_PASSES        3    /* noise: plain passes count, drafted ones after more than so many measured */
#define RECHECK_PASSES          4    /* plain passes that confirm or rule out a change */

/* ---- acceptance --------------------------------------------------------------------------------------------- */

void spec_control_correction(const struct spec_control *c, int drafter, int session, double *out)
{
    const struct spec_session_stats *h = &c->habit[drafter * c->opt.n_session + session];
    double mine = (h->accepted + PRIOR_SESSION_TOKENS) / (h->estimated + PRIOR_SESSION_TOKENS);
    for (int d = 0; d < SPEC_DEPTHS; d++)
        out[d] = c->arm[drafter].correction[d] * mine;
}

void spec_control_survival(const struct spec_control *c, int drafter, int session, int depth, double *what)
{
    const struct spec_arm *a = &c->arm[drafter];
    const struct spec_session_stats *h = &c->habit[drafter * c->opt.n_session + session];
    double before = 1, arm_before = 1, ratio = a->first_survival, most = 1, correction[SPEC_DEPTHS];
    for (int d = 0; h->has_prediction && d < depth; d++)
        what[d] = most = fmin(most, h->predicted[d] * (a->reported[d] + PRIOR_PREDICTED_DRAFTS) /
                                        (a->predicted[d] + PRIOR_PREDICTED_DRAFTS));
    if (h->has_prediction)
        return;
    spec_control_correction(c, drafter, session, correction);
    for (int d = 0; d < depth; d++) {
        double arm = (a->survival[d] * a->survival_weight[d] + arm_before * ratio) / (a->survival_weight[d] + 1);
        ratio = arm_before > 0 ? fmin(1, arm / arm_before) : 0;
        double mine = h->weight[d] > 0 ? (h->survival[d] * h->weight[d] + arm * PRIOR_SESSION_DRAFTS) /
                                             (h->weight[d] + PRIOR_SESSION_DRAFTS)
                                       : before * ratio;
        arm_before = arm;
        before = mine;
        what[d] = most = fmin(most, mine * correction[d]);
    }
}

static void add_tally(struct spec_tally *t, double share, const struct spec_tally *now)
{
    t->n_verified = t->n_verified * share + now->n_verified;
    t->estimated = t->estimated * share + now->estimated;
    t->accepted = t->accepted * share + now->accepted;
}

/* Adds a step to both tallies of a depth.  The long tally shows small gains; when the short one contradicts it at this
 * depth, the short tallies replace the long ones of all depths. */
static void update_tally(struct spec_arm *a, int d, const struct spec_tally *now)
{
    add_tally(&a->tally[d], now->estimated > 0 ? LONG_DECAY : IDLE_DECAY, now);
    if (now->estimated <= 0)
        return;
    add_tally(&a->recent[d], SHORT_DECAY, now);
    double usual = a->recent[d].estimated * a->correction[d];
    if (fabs(a->recent[d].accepted - usual) > CHANGE_SIGMAS * sqrt(fmax(usual, 1)))
        memcpy(a->tally, a->recent, sizeof a->tally);
}

/* Accepted tokens of the draft, without rows of a lookahead window. */
static int n_kept(const struct spec_session_outcome *o)
{
    return o->path ? spec_tree_n_accepted(o->tree, o->path, o->n_accepted) : o->n_accepted;
}

static void learn_correction(struct spec_control *c, int drafter, const struct spec_outcome_of_pass *s)
{
    int of = c->arm[drafter].of;
    struct spec_arm *a = &c->arm[of], *counts = &c->arm[drafter];
    struct spec_tally now[SPEC_DEPTHS] = { 0 };
    double before = 1;
    for (int i = 0; i < s->n_due; i++) {
        const struct spec_session_outcome *o = &s->outcome[i];
        if (!o->tree || o->tree->n == 0)
            continue;
        struct spec_session_stats *h = &c->habit[of * c->opt.n_session + o->session];
        h->estimated *= SESSION_DECAY;
        h->accepted *= SESSION_DECAY;
        double mine[SPEC_DEPTHS] = { 0 };
        for (int j = 0; j < o->tree->n; j++)
            if (o->tree->depth[j] <= SPEC_DEPTHS && !o->tree->window_row[j])
                mine[o->tree->depth[j] - 1] += o->tree->survival[j];
        for (int d = 0; d < SPEC_DEPTHS && mine[d] > 0; d++) {
            bool came = o->n_accepted > d && !(o->path && o->tree->window_row[o->path[d]]);
            h->estimated += fmin(1, mine[d] * a->correction[d]);
            h->accepted += came;
            now[d].n_verified++;
            now[d].estimated += fmin(1, mine[d]);
            now[d].accepted += came;
        }
        counts->n_drafted += (uint64_t)spec_tree_n_drafted(o->tree);
        counts->n_accepted += (uint64_t)n_kept(o);
    }
    for (int d = 0; d < SPEC_DEPTHS; d++)
        update_tally(a, d, &now[d]);
    for (int d = 0; d < SPEC_DEPTHS; d++) {
        const struct spec_tally *t = &a->tally[d];
        double prior = t->estimated > 0 ? PRIOR_DEPTH_DRAFTS * t->estimated / t->n_verified : 1;
        before = a->correction[d] = (t->accepted + prior * before) / (t->estimated + prior);
    }
}

/* ---- pass times --------------------------------------------------------------------------------------------- */

/* Adds log(pass / expected) of a pass to the drift.  True: passes have been above, or below, the expected time for
 * long; the drift starts again at 0.  *strange: this pass may belong to a change, and is not learnt from. */
static bool has_drifted(struct spec_control *c, double log, bool *strange)
{
    double noise_ratio = spec_pass_noise_ratio(&c->passes), most = fmin(MAX_DRIFT_OF_PASS * noise_ratio, 1);
    c->drift[0] = fmax(0, c->drift[0] + fmin(log, most) - DRIFT_SLACK * noise_ratio);
    c->drift[1] = fmax(0, c->drift[1] + fmin(-log, most) - DRIFT_SLACK * noise_ratio);
    *strange = c->drift[0] >= MIN_SUSPECT_DRIFT * noise_ratio || c->drift[1] >= MIN_SUSPECT_DRIFT * noise_ratio;
    if (c->drift[0] < MIN_CHANGE_DRIFT * noise_ratio && c->drift[1] < MIN_CHANGE_DRIFT * noise_ratio)
        return false;
    c->drift[0] = c->drift[1] = 0;
    return true;
}

/* Counts one plain pass after a suspected change.  After RECHECK_PASSES of them: if plain passes have changed, all
 * learnt times are scaled by their mean change; else only passes with drafts may have changed, and their measurements
 * lose weight. */
static void finish_recheck(struct spec_control *c, double log)
{
    c->recheck_log += log;
    if (--c->n_recheck > 0)
        return;
    double mean = c->recheck_log / RECHECK_PASSES;
    if (fabs(mean) < MAX_UNCHANGED_MEAN * spec_pass_noise_ratio(&c->passes)) {
        spec_passes_lower_weights(&c->passes);
        return;
    }
    double factor = kn_exp(mean);
    spec_passes_scale(&c->passes, factor);
    for (int i = 0; i < c->opt.n_drafter; i++) {
        c->arm[i].text_ns *= factor;
        for (int size = 0; size < SPEC_SIZES; size++)
            c->arm[i].draft_ns[size] *= factor;
    }
}

/* Overlapped drafting makes the pass longer: such a pass updates the contention, not the pass times. */
static void learn_overlap(struct spec_control *c, const struct spec_outcome_of_pass *s, int n_drafted, int n_accepted)
{
    struct spec_arm *a = &c->arm[c->last.drafter];
    double pass = spec_passes_ns(&c->passes, s->n_due, s->n_beside, n_drafted, false);
    double draft = spec_control_draft_ns(c, c->last.drafter, s->n_due, false) * s->n_overlap_pass;
    if (pass > 0 && draft > 0)
        spec_overlap_learn_contention(a, spec_size_of(s->n_due), s->pass_ns, pass, draft);
    spec_overlap_count_accepted(a, c->expected_accepted, n_accepted);
}

static void learn_pass(struct spec_control *c, const struct spec_outcome_of_pass *s, int n_drafted, bool known)
{
    bool beside = c->last.drafter != SPEC_OFF && c->arm[c->last.drafter].overlap, strange = false;
    bool plain = n_drafted == 0 && s->n_beside == 0 && !beside;
    double usual = spec_passes_ns(&c->passes, s->n_due, s->n_beside, n_drafted, false);
    double log = usual > 0 ? kn_log(s->pass_ns / usual) : 0;
    bool alone = s->n_beside == 0 && !beside && spec_passes_has_plain(&c->passes);
    if (usual > 0 && alone && (plain || spec_passes_n_measured(&c->passes, s->n_due, n_drafted) > MIN_NOISE_PASSES))
        spec_pass_noise_add(&c->passes, log);
    if (known && alone) {
        if (c->n_recheck > 0 && plain) {
            finish_recheck(c, log);
            strange = true;
        } else if (c->n_recheck == 0) {
            bool far = plain && c->last.why == SPEC_WHY_REFRESH &&
                       fabs(log) > MIN_CHANGE_OF_PASS * spec_pass_noise_ratio(&c->passes);
            if (has_drifted(c, log, &strange) || far) {
                c->n_recheck = RECHECK_PASSES;
                c->recheck_log = 0;
                strange = true;
            }
        }
    }
    if (!strange && !beside)
        spec_passes_learn(&c->passes, s->n_due, s->n_beside, n_drafted, s->pass_ns);
    uint64_t *since = &c->n_since_plain[s->n_beside > 0][spec_size_of(s->n_due)];
    *since = n_drafted == 0 && !beside ? 0 : *since + 1;
    if (!known && n_drafted > 0 && s->pass_ns < spec_passes_plain_ns(&c->passes, s->n_due))
        *since = UINT32_MAX; /* the time of a plain pass was estimated, and too high: one is due */
    if (s->experts > 0)
        spec_knots_learn(&c->experts, s->n_row, s->experts, DRAFT_MEAN_STEPS);
    c->stall_ns = c->stall_ns * STALL_DECAY + s->stall_ns;
    c->stall_bytes = c->stall_bytes * STALL_DECAY + s->missed_bytes;
    c->stall_pass_ns = c->stall_pass_ns * STALL_DECAY + s->pass_ns;
}

/* A draft pass, of a few milliseconds without a wait, is far longer where another process has the cores: it counts as at
 * most spec_control_most_draft_ns.  But several in a row are a change: each halves the weight of the mean. */
static void learn_draft(struct spec_control *c, int drafter, int n_due, double pass_ns)
{
    struct spec_arm *a = &c->arm[drafter];
    int size = spec_size_of(n_due);
    double most = spec_control_most_draft_ns(c, drafter, n_due);
    if (pass_ns > most) {
        pass_ns = most;
        a->draft_weight[size] = fmin(a->draft_weight[size], fmax(1, a->draft_weight[size] / 2));
    }
    a->draft_ns[size] += (pass_ns - a->draft_ns[size]) / (a->draft_weight[size] + 1);
    a->draft_weight[size] = fmin(a->draft_weight[size] + 1, DRAFT_MEAN_STEPS - 1);
    a->n_draft_step[size]++;
}

/* Did drafters prefill clearly more tokens than the last step committed?  They do after a pause and for new sequences,
 * and the draft time then measures prefill. */
static bool is_prefill_step(const struct spec_control *c, const struct spec_outcome_of_pass *s)
{
    return s->n_text > c->n_committed * MAX_DRAFT_PREFILL_RATIO;
}

static void learn_prefill(struct spec_arm *a, int size, int depth, const struct spec_outcome_of_pass *s)
{
    double drafts = a->draft_weight[size] > 0 ? a->draft_ns[size] * depth : 0;
    a->text_ns += (fmax(0, s->draft_ns - drafts) / s->n_text - a->text_ns) / (a->text_weight + 1);
    a->text_weight = fmin(a->text_weight + 1, PREFILL_MEAN_STEPS - 1);
}

/* ---- charging the loss -------------------------------------------------------------------------------------- */

/* Adds a step to the account of lost time: its time less that of plain steps for the same tokens.  Means of plain steps
 * leave out outliers, so drafting is charged spec_control_most_draft_ns for each draft pass at most, and a step with
 * drafts a multiple of its expected time.  Where plain steps of this size were not measured, one counts as no longer than
 * the pass with drafts.  Prefill time is charged in small parts over the next steps, so that drafts with enough
 * gain pay for it; the part not charged yet counts against the next trial. */
static void charge_account(struct spec_control *c, const struct spec_outcome_of_pass *s, int n_drafted, int n_accepted,
                           bool known)
{
    double most_off_ns = known ? INFINITY : s->pass_ns;
    double off_ns = fmin(spec_passes_ns(&c->passes, s->n_due, s->n_beside, 0, false), most_off_ns);
    double plain_ns = fmin(spec_passes_plain_ns(&c->passes, s->n_due), most_off_ns);
    double took = s->draft_ns + s->pass_ns, worth = off_ns + n_accepted * plain_ns / s->n_due;
    int drafter = c->last.drafter;
    c->total_ns += took;
    if (drafter != SPEC_OFF) {
        double usual_draft_ns = fmax(0, spec_control_draft_ns(c, drafter, s->n_due, false)) * c->last.depth;
        double text = is_prefill_step(c, s) ? fmax(0, s->draft_ns - usual_draft_ns) : 0;
        c->saved_ns = worth - (took - text);
        c->prefill_ns = text;
        double draft_ns = fmin(s->draft_ns - text, spec_control_most_draft_ns(c, drafter, s->n_due) * c->last.depth);
        double usual = draft_ns + spec_passes_ns(&c->passes, s->n_due, s->n_beside, n_drafted, false);
        bool tried = s->n_beside > 0 || spec_passes_n_measured(&c->passes, s->n_due, n_drafted) > 0;
        double most = fmax(worth, (tried ? MAX_CHARGE_RATIO : MAX_NEW_CHARGE_RATIO) * usual);
        c->lost_ns = fmax(0, c->lost_ns + fmin(draft_ns + s->pass_ns, most) - worth);
        c->uncharged_prefill_ns += text;
    }
    c->lost_ns += c->uncharged_prefill_ns / PREFILL_CHARGE_STEPS;
    c->uncharged_prefill_ns -= c->uncharged_prefill_ns / PREFILL_CHARGE_STEPS;
    for (int i = 0; i < c->opt.n_drafter; i++) {
        struct spec_arm *a = &c->arm[i];
        a->plain_ns = a->plain_ns * ACCOUNT_DECAY + (i == drafter ? worth : took);
        a->took_ns = a->took_ns * ACCOUNT_DECAY + took;
    }
}

static void count_trial(struct spec_control *c, const struct spec_outcome_of_pass *s)
{
    for (int i = 0; i < s->n_due; i++) {
        const struct spec_session_outcome *o = &s->outcome[i];
        bool drafted = o->tree && spec_tree_n_drafted(o->tree) > 0;
        c->trial.n_draft += drafted;
        c->trial.n_accepted += drafted && n_kept(o) > 0;
    }
}

void spec_control_learn(struct spec_control *c, const struct spec_outcome_of_pass *s)
{
    if (s->n_due == 0)
        return;
    int n_drafted = 0, n_accepted = 0, drafter = c->last.drafter, size = spec_size_of(s->n_due);
    for (int i = 0; i < s->n_due; i++) {
        n_drafted += s->outcome[i].tree ? s->outcome[i].tree->n : 0;
        n_accepted += s->outcome[i].n_accepted;
    }
    bool known = spec_passes_has_near_size(&c->passes, s->n_due, s->n_beside);
    c->saved_ns = c->prefill_ns = 0;
    if (known || (drafter != SPEC_OFF && c->last.off_ns > 0))
        charge_account(c, s, n_drafted, n_accepted, known);
    learn_pass(c, s, n_drafted, known);
    bool cold = is_prefill_step(c, s);
    bool without_text = drafter != SPEC_OFF && !c->arm[drafter].overlap && s->n_text == 0;
    bool warm = !cold && (drafter == c->last_drafter || without_text);
    c->last_drafter = drafter;
    c->n_committed = s->n_due + n_accepted;
    if (drafter == SPEC_OFF) {
        spec_control_age_drafts(c);
        return;
    }
    struct spec_arm *a = &c->arm[drafter];
    a->n_step++;
    double draft_ns = a->overlap ? s->overlap_ns / fmax(1, s->n_overlap_pass) : s->draft_ns / c->last.depth;
    if (warm && (!a->overlap || s->n_overlap_pass))
        learn_draft(c, drafter, s->n_due, draft_ns);
    if (cold && !a->overlap)
        learn_prefill(a, size, c->last.depth, s);
    if (warm && a->overlap && s->n_overlap_pass + n_drafted > 0)
        learn_overlap(c, s, n_drafted, n_accepted);
    learn_correction(c, drafter, s);
    if (c->last.why == SPEC_WHY_TRIAL) {
        a->tried[size].deepest = kn_max(a->tried[size].deepest, c->last.depth);
        c->trial.left -= c->trial.left > 0;
        count_trial(c, s);
    }
}
