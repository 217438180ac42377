/* speculative/control.c - decides which drafter drafts, and how deep.
 *
 * Each step follows one of the plans (plans.c), or none.  The checks in order (choose): no draft while the time of a
 * plain step is not known or not recent; no draft while the account of lost time is used up; a trial under way
 * continues; the active plan is kept, or replaced by the plan with the highest gain; a trial starts if a plan that was
 * never tried, or long ago, promises a higher gain. */
#include "speculative/internal.h"

#include <math.h>
#include <string.h>

#define MIN_GAIN_TO_START           1.03  /* gain required to start drafts, */
#define MIN_GAIN_TO_STAY            1.005 /* to continue them, */
#define MIN_GAIN_RATIO_TO_SWITCH    1.03  /* and to switch, over the active plan's gain */
#define MIN_STEPS_OF_PLAN           8     /* steps before a switch */
#define SPENT_STEPS_PER_PLAN        16    /* while the account is used up, plans are made in one of so many steps */
#define MAX_STEPS_WITHOUT_PLAIN     96    /* most steps between two plain ones; fewer with noisy pass times, but */
#define MIN_STEPS_WITHOUT_PLAIN     8     /* at least so many steps, */
#define MAX_PLAIN_TIME_SHARE        0.005 /* and plain steps may cost at most this share of the time */
#define TRIAL_STEPS                 4     /* steps of a trial */
#define MIN_DECIDED_DRAFTS          8     /* a trial may end as soon as it has had so many drafts */
#define MIN_DEPTH_PASSES            8     /* a depth with fewer measured passes is tried again */
#define MIN_SHARE_OF_BEST_GAIN      0.93  /* if its gain is at least this share of the best gain */
#define FIRST_TRIAL_WAIT_STEPS      64    /* steps from a trial to the next; each trial doubles it unless the */
#define CLEAR_LOSS_GAIN             0.9   /* gain known before is at least this; a smaller one is a clear loss */
#define MAX_TRIAL_WAIT_STEPS        8192
#define STEPS_TO_TRIAL_AFTER_SWITCH 16    /* steps to the next trial after a switch to a better plan */
#define FREE_DRAFT_TIME_SHARE       0.005 /* share of a plain step's time: drafting below it counts as free */
#define MAX_PREFILL_PER_ACCOUNT     2     /* prefill time of a trial, in units of the time left in the account */
#define MAX_LOSS_PLAIN_STEPS        4     /* account: plain steps, */
#define MAX_LOSS_TIME_SHARE         0.008 /* and this share of the time so far, */
#define MAX_ACCOUNT_PLAIN_STEPS     4000  /* which counts up to the time of so many plain steps */
#define PRIOR_SURVIVAL              0.6   /* survival per depth before any measurement */
#define RESERVED_PLAIN_STEPS        2     /* plain steps in the account that trials of losing plans must leave */

/* ---- open ----------------------------------------------------------------------------------------------- */

int spec_control_open(struct spec_control **out, const struct spec_control_options *opt)
{
    kn_assert(opt->n_session > 0 && opt->n_drafter >= 0 && opt->n_drafter <= SPEC_DRAFTERS);
    struct spec_control *c = kn_calloc(1, sizeof *c);
    if (!c)
        return KN_ENOMEM;
    c->opt = *opt;
    int e = spec_passes_open(&c->passes, opt->max_rows);
    c->habit = kn_calloc((size_t)opt->n_session * (size_t)kn_max(1, opt->n_drafter), sizeof *c->habit);
    c->hope = kn_calloc((size_t)opt->n_session, sizeof *c->hope);
    for (int i = 0; i < 2; i++)
        c->pass_ns[i] = kn_calloc((size_t)opt->n_session * SPEC_DEPTHS + 2, sizeof **c->pass_ns);
    c->uniform_experts = kn_calloc((size_t)c->passes.n_prior, sizeof *c->uniform_experts);
    c->loaded = kn_calloc((size_t)kn_max(1, opt->n_expert), sizeof *c->loaded);
    c->value = kn_calloc((size_t)opt->n_session * SPEC_NODES, sizeof *c->value);
    c->taken = kn_calloc((size_t)opt->n_session * SPEC_NODES, sizeof *c->taken);
    if (e || !c->habit || !c->hope || !c->pass_ns[0] || !c->pass_ns[1] || !c->uniform_experts || !c->loaded ||
        !c->taken || !c->value) {
        spec_control_close(c);
        return KN_ENOMEM;
    }
    for (int i = 0; i < opt->n_drafter; i++) {
        struct spec_arm *a = &c->arm[i];
        a->name = opt->drafter[i].name;
        a->overlap = opt->drafter[i].overlap;
        a->of = a->overlap ? opt->drafter[i].of : i;
        kn_assert(a->of < opt->n_drafter && (!a->overlap || !opt->drafter[a->of].overlap));
        a->max_depth = kn_min(opt->drafter[i].max_depth, SPEC_DEPTHS);
        a->forecast.draft_ns = -1;
        a->forecast_weight = 1;
        a->first_survival = PRIOR_SURVIVAL;
        for (int depth = 0; depth < SPEC_DEPTHS; depth++)
            a->correction[depth] = 1;
        for (int size = 0; size < SPEC_SIZES; size++)
            a->tried[size].wait = FIRST_TRIAL_WAIT_STEPS;
    }
    for (int size = 0; size < SPEC_SIZES; size++)
        c->active[size].drafter = SPEC_OFF;
    c->last_drafter = SPEC_OFF;
    *out = c;
    return 0;
}

void spec_control_close(struct spec_control *c)
{
    if (!c)
        return;
    spec_passes_close(&c->passes);
    kn_free(c->habit);
    kn_free(c->hope);
    kn_free(c->pass_ns[0]);
    kn_free(c->pass_ns[1]);
    kn_free(c->uniform_experts);
    kn_free(c->loaded);
    kn_free(c->taken);
    kn_free(c->value);
    kn_free(c);
}

void spec_control_disable(struct spec_control *c, int drafter, bool disabled)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter);
    c->arm[drafter].disabled = disabled;
    if (disabled && c->trial.drafter == drafter)
        c->trial.left = 0;
}

void spec_control_set_forecast(struct spec_control *c, const struct spec_cost_model *pass,
                               const struct spec_draft_forecast *draft)
{
    spec_passes_set_forecast(&c->passes, pass);
    c->n_uniform = pass->n_expert > 0 ? c->passes.n_prior : 0;
    for (int t = 0; t < c->n_uniform; t++)
        c->uniform_experts[t] = spec_cost_distinct(pass->n_expert, pass->n_used, kn_max(t, 1));
    c->full_rows = pass->n_expert > 0 ? spec_cost_full_rows(pass->n_expert, pass->n_used) : 0;
    for (int i = 0; i < c->opt.n_drafter && draft; i++) {
        if (draft[i].accept > 0)
            c->arm[i].first_survival = fmin(draft[i].accept, 1);
        c->arm[i].forecast = (struct spec_cost_model){
            .draft_ns = draft[i].ns, .draft_row_ns = draft[i].row_ns, .ridge = pass->ridge, .growth = pass->growth
        };
        c->arm[i].forecast_weight = 1;
    }
}

void spec_control_set_context(struct spec_control *c, double context) { spec_passes_set_context(&c->passes, context); }

void spec_control_begin(struct spec_control *c, int session)
{
    kn_assert(session >= 0 && session < c->opt.n_session);
    for (int i = 0; i < c->opt.n_drafter; i++)
        memset(&c->habit[i * c->opt.n_session + session], 0, sizeof *c->habit);
}

void spec_control_set_survival(struct spec_control *c, int drafter, int session, const double *survival)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter && session >= 0 && session < c->opt.n_session);
    struct spec_session_stats *h = &c->habit[drafter * c->opt.n_session + session];
    h->has_prediction = survival != NULL;
    if (survival)
        memcpy(h->predicted, survival, sizeof h->predicted);
}

void spec_control_set_n_prefill(struct spec_control *c, int drafter, int n_text)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter && n_text >= 0);
    c->arm[drafter].n_prefill = n_text;
}

/* ---- choosing a plan ------------------------------------------------------------------------------------ */

static double loss_limit(const struct spec_control *c, double plain_ns)
{
    return MAX_LOSS_PLAIN_STEPS * plain_ns +
           MAX_LOSS_TIME_SHARE * fmin(c->total_ns, MAX_ACCOUNT_PLAIN_STEPS * plain_ns);
}

static struct spec_plan_input begin_planning(struct spec_control *c, const int *session, int n_due, int n_beside)
{
    kn_assert(n_due >= 0 && n_due <= c->opt.n_session);
    int row_budget = (c->opt.max_rows > 0 ? c->opt.max_rows : INT32_MAX) - n_beside - n_due;
    if (c->opt.max_drafted > 0)
        row_budget = kn_min(row_budget, c->opt.max_drafted);
    struct spec_plan_input q = {
        .session = session, .n_due = n_due, .n_beside = n_beside, .row_budget = row_budget, .size = spec_size_of(n_due)
    };
    if (n_due > 0) {
        q.token_ns = spec_passes_plain_ns(&c->passes, n_due) / n_due;
        q.off_ns = spec_passes_ns(&c->passes, n_due, n_beside, 0, false);
    }
    for (int i = 0; i < 2; i++)
        memset(c->pass_ns[i], 0, ((size_t)n_due * SPEC_DEPTHS + 2) * sizeof **c->pass_ns);
    return q;
}

/* Can the account, with room_ns left, pay for a trial of the plan?  It must cover the extra time of all TRIAL_STEPS
 * steps.  The trial of a plan that is known to lose, or to have no node worth its row, ends after one step, so one step
 * is counted; but the time of RESERVED_PLAIN_STEPS must be left for other plans.  The drafter's prefill may take
 * MAX_PREFILL_PER_ACCOUNT times the time left. */
static bool can_afford(const struct spec_control *c, const struct spec_plan_input *q, const struct spec_plan *p,
                       double room_ns)
{
    double pass = spec_passes_ns(&c->passes, q->n_due, q->n_beside, (int)p->rows - q->n_due, false);
    const struct spec_arm *a = &c->arm[p->drafter], *by = &c->arm[a->of];
    double draft_ns = fmax(0, spec_control_draft_ns(c, p->drafter, q->n_due, false)) * p->depth;
    double both = a->overlap ? spec_overlap_ns(pass, draft_ns, p->contention) : draft_ns + pass;
    const struct spec_plan *last = &q->known[p->drafter][p->depth];
    bool again = last->gain > 0 && (last->gain <= CLEAR_LOSS_GAIN || last->rows <= q->n_due);
    if (again)
        room_ns -= RESERVED_PLAIN_STEPS * spec_passes_plain_ns(&c->passes, q->n_due);
    return (again ? 1 : TRIAL_STEPS) * (both - q->off_ns) <= room_ns &&
           by->n_prefill * by->text_ns <= MAX_PREFILL_PER_ACCOUNT * room_ns;
}

/* Finds a depth of the active drafter with nearly the best gain and too few measured passes. */
static bool find_unmeasured_depth(const struct spec_control *c, const struct spec_plan_input *q, double best_gain,
                                  struct spec_plan *out)
{
    int drafter = c->active[q->size].drafter;
    double least = MIN_DEPTH_PASSES;
    out->drafter = SPEC_OFF;
    if (drafter == SPEC_OFF || c->arm[drafter].overlap || c->step < c->arm[drafter].tried[q->size].next)
        return false;
    for (int depth = 1; depth <= c->arm[drafter].tried[q->size].deepest; depth++) {
        const struct spec_plan *p = &q->known[drafter][depth];
        double weight = spec_passes_n_measured(&c->passes, q->n_due, (int)p->rows - q->n_due);
        if (depth != c->active[q->size].depth && p->rows > q->n_due && p->gain > best_gain * MIN_SHARE_OF_BEST_GAIN &&
            weight < least) {
            least = weight;
            *out = *p;
        }
    }
    return out->drafter != SPEC_OFF;
}

/* Of p[least .. most], the plan with drafted rows and the highest gain that the account can pay for. */
static struct spec_plan find_best_affordable(const struct spec_control *c, const struct spec_plan_input *q,
                                             const struct spec_plan *p, int least, int most, double room_ns)
{
    struct spec_plan best = { .drafter = SPEC_OFF };
    for (int depth = least; depth <= most; depth++)
        if (p[depth].rows > q->n_due && p[depth].gain > best.gain && can_afford(c, q, &p[depth], room_ns))
            best = p[depth];
    return best;
}

/* Finds the hopeful plan with the highest gain, if this is above best_gain * MIN_GAIN_TO_START.  Only drafters are
 * considered whose last trial at this batch size, if any, is long enough ago; of the active drafter only depths beyond
 * its deepest trial. */
static bool find_trial(struct spec_control *c, const struct spec_plan_input *q, double best_gain, double room_ns,
                       struct spec_plan *out)
{
    struct spec_plan hopeful_plan[SPEC_DEPTHS + 1];
    out->drafter = SPEC_OFF;
    for (int i = 0; i < c->opt.n_drafter; i++) {
        const struct spec_arm *a = &c->arm[i];
        int deepest = a->tried[q->size].deepest;
        bool on = c->active[q->size].drafter == i;
        if (c->step < a->tried[q->size].next || a->max_depth < 1 || (on && deepest == a->max_depth) || a->disabled)
            continue;
        if (a->overlap && spec_control_draft_ns(c, a->of, q->n_due, false) < 0)
            continue; /* its drafter must draft without overlap first, to be timed */
        /* short drafts first: they lose little; longer ones if short ones cannot gain; overlapped ones of any depth */
        int least = on ? deepest + 1 : 1, most = a->overlap ? a->max_depth : kn_min(a->max_depth, on ? 2 * deepest : 2);
        int reach = kn_min(a->max_depth, kn_max(most, 2 * deepest));
        spec_plans_make(c, q, i, reach, true, hopeful_plan);
        struct spec_plan p = find_best_affordable(c, q, hopeful_plan, least, most, room_ns);
        if (p.drafter == SPEC_OFF || p.gain <= best_gain * MIN_GAIN_TO_START)
            p = find_best_affordable(c, q, hopeful_plan, least, reach, room_ns);
        if (p.drafter == SPEC_OFF || p.gain <= best_gain * MIN_GAIN_TO_START)
            continue;
        if (out->drafter == SPEC_OFF || p.gain > out->gain)
            *out = p;
    }
    return out->drafter != SPEC_OFF;
}

/* The depth down to which a drafter's gain is known without another trial: any depth if pass times are forecast and its
 * drafts have been seen, or, for overlapped drafting, if the contention at this batch size was measured; else its
 * deepest trial at this batch size.  0 if disabled. */
static int known_depth(const struct spec_control *c, int drafter, int size)
{
    const struct spec_arm *a = &c->arm[drafter];
    if (a->disabled)
        return 0;
    bool known = a->overlap ? a->overlapped[size].weight > 0
                            : c->passes.forecast && spec_control_has_seen_drafts(c, drafter);
    return known ? a->max_depth : a->tried[size].deepest;
}

/* The plan with the highest gain among those known without a trial; drafter SPEC_OFF: none.  Fills in q->known. */
static struct spec_plan find_best(struct spec_control *c, struct spec_plan_input *q)
{
    struct spec_plan best = { .drafter = SPEC_OFF, .gain = 1 };
    for (int i = 0; i < c->opt.n_drafter; i++) {
        int reach = known_depth(c, i, q->size);
        int most = c->trial.left > 0 && c->trial.drafter == i ? kn_max(reach, c->trial.depth) : reach;
        spec_plans_make(c, q, i, most, false, q->known[i]);
        struct spec_plan p = spec_plan_best(q->known[i], 1, reach);
        if (p.drafter != SPEC_OFF && (best.drafter == SPEC_OFF || p.gain > best.gain))
            best = p;
    }
    return best;
}

/* The drafter with the largest max_depth among those that draft at almost no cost and were tried at this batch size;
 * SPEC_OFF: none. */
static int find_free(const struct spec_control *c, const struct spec_plan_input *q)
{
    int best = SPEC_OFF;
    for (int i = 0; i < c->opt.n_drafter; i++) {
        double ns = spec_control_draft_ns(c, i, q->n_due, false) * c->arm[i].max_depth;
        if (c->arm[i].overlap || c->arm[i].disabled)
            continue;
        if (ns >= 0 && ns <= FREE_DRAFT_TIME_SHARE * q->off_ns && c->arm[i].tried[q->size].deepest > 0 &&
            (best == SPEC_OFF || c->arm[i].max_depth > c->arm[best].max_depth))
            best = i;
    }
    return best;
}

static void set_plan(struct spec_decision *d, const struct spec_plan *p, double need)
{
    d->best_drafter = p->drafter;
    d->best_depth = p->depth;
    d->rows = p->rows;
    d->tokens = p->tokens;
    d->draft_ns = p->draft_ns;
    d->pass_ns = p->pass_ns;
    d->gain = p->gain;
    d->need = need;
}

/* Fills in the best overlapped plan, which a decision reports. */
static void set_overlap_plan(struct spec_control *c, const struct spec_plan_input *q, struct spec_decision *d)
{
    struct spec_plan p[SPEC_DEPTHS + 1];
    for (int i = 0; i < c->opt.n_drafter; i++) {
        if (!c->arm[i].overlap || c->arm[i].disabled || spec_control_draft_ns(c, i, q->n_due, false) < 0)
            continue;
        spec_plans_make(c, q, i, c->arm[i].max_depth, false, p);
        struct spec_plan best = spec_plan_best(p, 2, c->arm[i].max_depth);
        if (best.drafter != SPEC_OFF && best.gain > d->overlap.gain)
            d->overlap = (struct spec_overlap_plan){ best.depth, best.draft_ns, best.pass_ns, best.contention,
                                                     best.gain };
    }
}

/* Is a plain step due?  Noisier pass times need more plain steps, and so does a gain that noise could explain; drafts
 * with a higher gain get fewer. */
static bool is_stale(const struct spec_control *c, const struct spec_plan_input *q, double gain)
{
    double noise_ratio = spec_pass_noise_ratio(&c->passes),
           least = fmax(MIN_STEPS_WITHOUT_PLAIN, (1 - 1 / fmax(1, gain)) / MAX_PLAIN_TIME_SHARE);
    bool is_clear = spec_passes_is_clear(&c->passes, q->n_due, q->n_beside, gain);
    double usual = is_clear ? MAX_STEPS_WITHOUT_PLAIN / (noise_ratio * noise_ratio) : 0;
    return 1 + (double)c->n_since_plain[q->n_beside > 0][q->size] > fmin(MAX_STEPS_WITHOUT_PLAIN, fmax(least, usual));
}

static void set_active(struct spec_control *c, int size, int drafter, int depth)
{
    if (c->active[size].drafter != drafter || c->active[size].depth != depth)
        c->active[size].since = c->step;
    c->active[size].drafter = drafter;
    c->active[size].depth = depth;
}

/* Keeps the active plan, or makes the best one active and returns it; drafter SPEC_OFF: neither gains enough. */
static struct spec_plan keep_or_switch(struct spec_control *c, const struct spec_plan_input *q, struct spec_plan best,
                                       struct spec_decision *d)
{
    int size = q->size, drafter = c->active[size].drafter, depth = c->active[size].depth;
    d->why = SPEC_WHY_GAINS;
    set_plan(d, &best, MIN_GAIN_TO_START);
    if (drafter != SPEC_OFF) {
        struct spec_plan active = q->known[drafter][depth];
        bool fresh = c->step - c->active[size].since < MIN_STEPS_OF_PLAN;
        if (active.gain >= MIN_GAIN_TO_STAY && (fresh || best.gain < active.gain * MIN_GAIN_RATIO_TO_SWITCH)) {
            if (best.depth != depth || best.drafter != drafter)
                d->why = SPEC_WHY_SMALL_DIFFERENCE;
            set_plan(d, &active, MIN_GAIN_TO_STAY);
            return active;
        }
    }
    if (best.drafter == SPEC_OFF || best.gain < MIN_GAIN_TO_START || best.rows <= q->n_due) {
        set_active(c, size, SPEC_OFF, 0);
        best.drafter = SPEC_OFF;
        return best;
    }
    struct spec_arm *a = &c->arm[best.drafter];
    if (drafter != best.drafter || depth != best.depth)
        a->tried[size].next = a->tried[size].next < c->step + STEPS_TO_TRIAL_AFTER_SWITCH
                                  ? a->tried[size].next
                                  : c->step + STEPS_TO_TRIAL_AFTER_SWITCH;
    set_active(c, size, best.drafter, best.depth);
    a->tried[size].wait = FIRST_TRIAL_WAIT_STEPS;
    return best;
}

static void start_trial(struct spec_control *c, const struct spec_plan_input *q, const struct spec_plan *p)
{
    int size = q->size;
    double last_gain = spec_plan_best(q->known[p->drafter], 1, known_depth(c, p->drafter, size)).gain;
    c->trial.drafter = p->drafter;
    c->trial.depth = p->depth;
    c->trial.size = size;
    c->trial.left = TRIAL_STEPS;
    c->trial.n_draft = c->trial.n_accepted = 0;
    struct spec_arm *a = &c->arm[p->drafter];
    a->tried[size].next = c->step + a->tried[size].wait;
    if (a->tried[size].wait < MAX_TRIAL_WAIT_STEPS && last_gain < CLEAR_LOSS_GAIN)
        a->tried[size].wait *= 2;
}

/* Has the trial told enough?  From MIN_DECIDED_DRAFTS drafts on it ends if drafts are not worth a row, and at most half
 * of their first nodes were accepted; or if, with no plan active yet, another plan is now known to gain more. */
static bool is_decided(const struct spec_control *c, const struct spec_plan_input *q, const struct spec_plan *best)
{
    const struct spec_arm *a = &c->arm[c->trial.drafter];
    const struct spec_plan *known = &q->known[c->trial.drafter][c->trial.depth];
    if (a->overlap || c->trial.n_draft < MIN_DECIDED_DRAFTS)
        return false;
    return (known->rows <= q->n_due && 2 * c->trial.n_accepted <= c->trial.n_draft) ||
           (c->active[q->size].drafter == SPEC_OFF && best->drafter != SPEC_OFF &&
            best->gain > known->gain * MIN_GAIN_RATIO_TO_SWITCH);
}

/* Returns the plan of the trial under way; false: no trial.  A trial ends early when the batch size changes, when it
 * clearly loses, when its outcome is decided, or when even its hopeful plan takes no node: nothing would be verified,
 * and nothing learnt. */
static bool continue_trial(struct spec_control *c, const struct spec_plan_input *q, const struct spec_plan *best,
                           struct spec_plan *out)
{
    struct spec_plan hopeful_plan[SPEC_DEPTHS + 1];
    if (c->trial.left == 0)
        return false;
    double gain = q->known[c->trial.drafter][c->trial.depth].gain;
    /* an overlapped trial verifies its first draft in its second step */
    bool early = c->trial.left >= (c->arm[c->trial.drafter].overlap ? TRIAL_STEPS - 1 : TRIAL_STEPS);
    if (c->trial.size == q->size && (early || (gain > CLEAR_LOSS_GAIN && !is_decided(c, q, best)))) {
        spec_plans_make(c, q, c->trial.drafter, c->trial.depth, true, hopeful_plan);
        *out = hopeful_plan[c->trial.depth];
        if (out->rows > q->n_due)
            return true;
    }
    c->trial.left = 0;
    return false;
}

/* While the account is used up nothing is drafted, and plans are only reported: of most steps, the last step's. */
static bool report_last_plan(const struct spec_control *c, const struct spec_plan_input *q, struct spec_decision *d)
{
    const struct spec_decision *last = &c->last;
    if (c->lost_ns < d->loss_limit_ns || last->why != SPEC_WHY_LOSS_LIMIT || last->n_due != q->n_due ||
        c->step % SPENT_STEPS_PER_PLAN == 0)
        return false;
    d->why = SPEC_WHY_LOSS_LIMIT;
    d->overlap = last->overlap;
    set_plan(d,
             &(struct spec_plan){ .drafter = last->best_drafter,
                                  .depth = last->best_depth,
                                  .rows = last->rows,
                                  .tokens = last->tokens,
                                  .draft_ns = last->draft_ns,
                                  .pass_ns = last->pass_ns,
                                  .gain = last->gain },
             last->need);
    return true;
}

/* The highest gain that any drafter is expected to bring, by estimates and forecasts; 1: not known. */
static double promised_gain(struct spec_control *c, const struct spec_plan_input *q)
{
    struct spec_plan plan[SPEC_DEPTHS + 1];
    double most = 1;
    for (int i = 0; i < c->opt.n_drafter && q->off_ns > 0 && c->passes.forecast; i++)
        if (!c->arm[i].disabled) {
            spec_plans_make(c, q, i, c->arm[i].max_depth, false, plan);
            most = fmax(most, spec_plan_best(plan, 1, c->arm[i].max_depth).gain);
        }
    return most;
}

double spec_control_promise(struct spec_control *c, int drafter, const int *session, int n_due, bool hopeful)
{
    struct spec_plan plan[SPEC_DEPTHS + 1];
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter);
    struct spec_plan_input q = begin_planning(c, session, n_due, 0);
    double followed = c->last.drafter == SPEC_OFF ? 1 : fmax(1, c->last.gain);
    int most = c->arm[drafter].max_depth;
    bool seen = spec_control_has_seen_drafts(c, c->arm[drafter].of);
    if (n_due == 0 || q.row_budget <= 0 || q.off_ns <= 0 || !(seen || hopeful) ||
        !spec_passes_has_near_size(&c->passes, n_due, 0))
        return 1;
    spec_plans_make(c, &q, drafter, most, !seen, plan);
    return fmax(1, spec_plan_best(plan, 1, most).gain / followed);
}

double spec_control_saved_ns(const struct spec_control *c) { return c->saved_ns; }
double spec_control_prefill_ns(const struct spec_control *c) { return c->prefill_ns; }

double spec_control_plain_ns(const struct spec_control *c, int n_due)
{
    return spec_passes_plain_ns(&c->passes, n_due);
}

static bool knows_size(struct spec_control *c, const struct spec_plan_input *q)
{
    return spec_passes_has_size(&c->passes, q->n_due, q->n_beside, 1) ||
           (spec_passes_has_size(&c->passes, q->n_due, q->n_beside, INFINITY) &&
            spec_passes_has_size(&c->passes, q->n_due, q->n_beside, promised_gain(c, q)));
}

/* Returns the plan to follow; drafter SPEC_OFF: none. */
static struct spec_plan choose(struct spec_control *c, struct spec_plan_input *q, struct spec_decision *d)
{
    struct spec_plan none = { .drafter = SPEC_OFF }, hopeful_plan[SPEC_DEPTHS + 1];
    if (!knows_size(c, q)) {
        d->why = SPEC_WHY_LEARN;
        return none;
    }
    d->loss_limit_ns = loss_limit(c, spec_passes_plain_ns(&c->passes, q->n_due));
    if (report_last_plan(c, q, d))
        return none;
    struct spec_plan best = find_best(c, q), trial = none;
    bool near = spec_passes_has_near_size(&c->passes, q->n_due, q->n_beside);
    set_plan(d, &best, MIN_GAIN_TO_START);
    set_overlap_plan(c, q, d);
    if (!near && !spec_passes_has_size(&c->passes, q->n_due, q->n_beside, best.gain)) {
        d->why = SPEC_WHY_LEARN;
        return none;
    }
    if (c->n_recheck > 0 || is_stale(c, q, best.gain)) {
        d->why = SPEC_WHY_REFRESH;
        return none;
    }
    if (c->lost_ns >= d->loss_limit_ns) {
        d->why = SPEC_WHY_LOSS_LIMIT;
        return none;
    }
    if (continue_trial(c, q, &best, &trial)) {
        d->why = SPEC_WHY_TRIAL;
        set_plan(d, &trial, 0);
        return trial;
    }
    best = keep_or_switch(c, q, best, d);
    double best_gain = best.drafter == SPEC_OFF ? 1 : best.gain,
           room_ns = d->loss_limit_ns - c->lost_ns - c->uncharged_prefill_ns;
    /* beside prompt rows a trial tells nothing about rows */
    bool can_try = near && (q->n_beside == 0 || c->passes.forecast);
    bool found = can_try && find_trial(c, q, best_gain, room_ns, &trial);
    if (found ||
        (q->n_beside == 0 && find_unmeasured_depth(c, q, best_gain, &trial) && can_afford(c, q, &trial, room_ns))) {
        start_trial(c, q, &trial);
        d->why = SPEC_WHY_TRIAL;
        set_plan(d, &trial, 0);
        return trial;
    }
    if (best.drafter == SPEC_OFF) {
        d->why = SPEC_WHY_NO_GAIN;
        int free = c->opt.rule == SPEC_COUPLED ? find_free(c, q) : SPEC_OFF;
        if (free != SPEC_OFF) {
            d->why = SPEC_WHY_FREE;
            spec_plans_make(c, q, free, c->arm[free].max_depth, false, hopeful_plan);
            best = hopeful_plan[c->arm[free].max_depth];
            set_plan(d, &best, 0);
        }
    }
    return best;
}

/* ---- decide --------------------------------------------------------------------------------------------- */

static int divide_nodes(const struct spec_control *c, const struct spec_plan_input *q, const struct spec_plan *p,
                        const struct spec_decision *d, int *nodes)
{
    double what[SPEC_DEPTHS];
    int left = kn_min(q->row_budget, q->n_due * SPEC_NODES), all = 0;
    for (int i = 0; i < q->n_due; i++) {
        int n = 0;
        if (d->why == SPEC_WHY_FREE || d->why == SPEC_WHY_FIXED || c->arm[p->drafter].overlap) {
            n = p->depth;
        } else {
            spec_plan_survival(c, p->drafter, q->session[i], p->depth, d->why == SPEC_WHY_TRIAL, what);
            while (n < p->depth && what[n] >= p->least_survival)
                n++;
        }
        /* more nodes than the depth: a tree may contain better ones, and the cut takes the best */
        if (n && c->opt.rule == SPEC_COUPLED && d->why != SPEC_WHY_FIXED)
            n = kn_min(SPEC_NODES, 4 * p->depth);
        if (c->opt.rule != SPEC_COUPLED || d->why == SPEC_WHY_FIXED)
            n = kn_min(n, left);
        left -= n;
        nodes[i] = n;
        all += n;
    }
    return all;
}

/* Accepted tokens expected by the steady state of overlap.c. */
static double expect_overlap(const struct spec_control *c, const struct spec_plan_input *q, const struct spec_plan *p)
{
    double what[SPEC_DEPTHS], accepted = 0;
    for (int i = 0; i < q->n_due; i++) {
        spec_plan_survival(c, p->drafter, q->session[i], p->depth, false, what);
        accepted += spec_overlap_mean(what, p->depth).accepted;
    }
    return accepted;
}

/* Fills in the decision's target terms: of the best plan, or of one drafted row for each sequence. */
static void set_target(const struct spec_control *c, struct spec_decision *d)
{
    bool drafts = d->best_drafter != SPEC_OFF && d->rows > d->n_due;
    int n_drafted = drafts ? kn_max(1, (int)(d->rows + 0.5) - d->n_due) : d->n_due;
    d->target = (struct spec_target){ .rows = d->n_due + n_drafted, .full_rows = c->full_rows };
    if (d->off_ns <= 0)
        return;
    d->target.efficiency = spec_passes_measured_efficiency(&c->passes, d->n_due, n_drafted);
    d->target.predicted = spec_passes_forecast_efficiency(&c->passes, d->n_due, n_drafted);
    d->target.experts = spec_knots_at(&c->experts, c->uniform_experts, c->n_uniform, d->target.rows, 1);
    if (c->n_uniform)
        d->target.even = c->uniform_experts[kn_min((int)d->target.rows, c->n_uniform - 1)];
}

static struct spec_decision no_decision(const struct spec_control *c, const struct spec_plan_input *q)
{
    return (struct spec_decision){ .drafter = SPEC_OFF,
                                   .best_drafter = SPEC_OFF,
                                   .n_due = q->n_due,
                                   .n_beside = q->n_beside,
                                   .why = SPEC_WHY_NONE_DUE,
                                   .off_ns = fmax(0, q->off_ns),
                                   .lost_ns = c->lost_ns };
}

void spec_control_decide(struct spec_control *c, const int *session, int n_due, int n_beside, struct spec_decision *out,
                         int *nodes)
{
    struct spec_plan_input q = begin_planning(c, session, n_due, n_beside);
    struct spec_decision d = no_decision(c, &q);
    struct spec_plan p = { .drafter = SPEC_OFF };
    memset(nodes, 0, (size_t)n_due * sizeof *nodes);
    c->step++;
    if (n_due > 0 && c->opt.n_drafter > 0 && q.row_budget > 0) {
        if (c->opt.gamma == SPEC_AUTO) {
            p = choose(c, &q, &d);
        } else {
            d.why = SPEC_WHY_FIXED;
            p.depth = kn_min(c->opt.gamma, c->arm[0].max_depth);
            p.drafter = p.depth > 0 ? 0 : SPEC_OFF;
        }
    }
    if (d.best_drafter != SPEC_OFF) {
        d.plain_experts = spec_knots_at(&c->experts, c->uniform_experts, c->n_uniform, n_beside + n_due, 1);
        d.experts = spec_knots_at(&c->experts, c->uniform_experts, c->n_uniform, n_beside + d.rows, 1);
    }
    set_target(c, &d);
    if (p.drafter != SPEC_OFF && divide_nodes(c, &q, &p, &d, nodes) > 0) {
        d.drafter = p.drafter;
        d.depth = p.depth;
        c->expected_accepted = c->arm[p.drafter].overlap ? expect_overlap(c, &q, &p) : 0;
    }
    c->last = d;
    *out = d;
}

void spec_control_decide_plain(struct spec_control *c, int n_due, int n_beside, enum spec_why why,
                               struct spec_decision *out)
{
    struct spec_plan_input q = begin_planning(c, NULL, n_due, n_beside);
    struct spec_decision d = no_decision(c, &q);
    c->step++;
    d.why = why;
    d.loss_limit_ns = loss_limit(c, spec_passes_plain_ns(&c->passes, n_due));
    set_target(c, &d);
    *out = c->last = d;
}
