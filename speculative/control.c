/* speculative/control.c - decides which drafter drafts, and how deep.
 *
 * It follows one of the plans (plans.c), or none.  The checks in order: is the time of a plain step known and
 * recent; has the account time left; which plan has the highest gain; does a plan that was never tried,
 * or long ago, promise a higher gain. */
#include "speculative/internal.h"

#include <math.h>
#include <string.h>

#define TO_TURN_ON 1.03             /* gain required to start drafts, */
#define TO_STAY    1.005            /* to continue them, */
#define TO_SWITCH  1.03             /* and to switch, over the active plan's gain */
#define DWELL      8                /* steps before a switch */
#define REFRESH    96               /* most steps between two plain ones; fewer with noisy pass times, but */
#define OFTEN      8                /* at least so many steps, */
#define REFRESHING 0.005            /* and plain steps may cost at most this share of the time */
#define TRIAL      4                /* steps of a trial */
#define VAGUE      8                /* a depth with fewer measured passes is tried again */
#define NEARLY     0.93             /* if its gain is at least this share of the best gain */
#define FIRST_WAIT 64               /* steps between two trials; doubled after each trial with a gain */
#define CLEARLY    0.9              /* below this */
#define LAST_WAIT  8192
#define SOON       16               /* steps to the next trial after a switch to a better plan */
#define FREE       0.005            /* share of a plain step's time: drafting below it counts as free */
#define INVEST     2                /* prefill time of a trial, in units of the time left in the account */
#define MAY_LOSE   4                /* account: plain steps, */
#define SHARE      0.008            /* and this share of the time so far, */
#define LATELY     4000             /* of which at most so many plain steps count */
#define LEAVE      2                /* plain steps in the account that repeated trials must leave to others */

/* ---- open ----------------------------------------------------------------------------------------------- */

int spec_control_open(struct spec_control **out, const struct spec_control_options *opt)
{
    kn_assert(opt->n_session > 0 && opt->n_drafter >= 0 && opt->n_drafter <= SPEC_DRAFTERS);
    struct spec_control *c = kn_calloc(1, sizeof *c);
    if (!c)
        return KN_ENOMEM;
    c->opt = *opt;
    int e = spec_passes_open(&c->passes, opt->most_rows);
    c->habit = kn_calloc((size_t)opt->n_session * (size_t)kn_max(1, opt->n_drafter), sizeof *c->habit);
    c->hope = kn_calloc((size_t)opt->n_session, sizeof *c->hope);
    c->even = kn_calloc((size_t)c->passes.n_prior, sizeof *c->even);
    c->brought = kn_calloc((size_t)kn_max(1, opt->n_expert), sizeof *c->brought);
    c->value = kn_calloc((size_t)opt->n_session * SPEC_NODES, sizeof *c->value);
    c->taken = kn_calloc((size_t)opt->n_session * SPEC_NODES, sizeof *c->taken);
    if (e || !c->habit || !c->hope || !c->even || !c->brought || !c->taken || !c->value) {
        spec_control_close(c);
        return KN_ENOMEM;
    }
    for (int i = 0; i < opt->n_drafter; i++) {
        struct spec_arm *a = &c->arm[i];
        a->name = opt->drafter[i].name;
        a->ahead = opt->drafter[i].ahead;
        a->of = a->ahead ? opt->drafter[i].of : i;
        kn_assert(a->of < opt->n_drafter && (!a->ahead || !opt->drafter[a->of].ahead));
        a->most_depth = kn_min(opt->drafter[i].most_depth, SPEC_DEPTHS);
        a->foreseen.draft_ns = -1;
        for (int depth = 0; depth < SPEC_DEPTHS; depth++)
            a->truth[depth] = 1;
        for (int size = 0; size < SPEC_SIZES; size++)
            a->tried[size].wait = FIRST_WAIT;
    }
    for (int size = 0; size < SPEC_SIZES; size++)
        c->now[size].drafter = SPEC_OFF;
    c->drafted_by = SPEC_OFF;
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
    kn_free(c->even);
    kn_free(c->brought);
    kn_free(c->taken);
    kn_free(c->value);
    kn_free(c);
}

void spec_control_bar(struct spec_control *c, int drafter, bool barred)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter);
    c->arm[drafter].barred = barred;
    if (barred && c->trial.drafter == drafter)
        c->trial.left = 0;
}

void spec_control_foresee(struct spec_control *c, const struct spec_cost_model *pass,
                          const struct spec_draft_cost *draft)
{
    spec_passes_foresee(&c->passes, pass);
    c->n_even = pass->n_expert > 0 ? c->passes.n_prior : 0;
    for (int t = 0; t < c->n_even; t++)
        c->even[t] = spec_cost_distinct(pass->n_expert, pass->n_used, kn_max(t, 1));
    for (int i = 0; i < c->opt.n_drafter && draft; i++)
        c->arm[i].foreseen = (struct spec_cost_model){ .draft_ns = draft[i].ns, .draft_row_ns = draft[i].row_ns,
                                                       .ridge = pass->ridge, .growth = pass->growth };
}

void spec_control_begin(struct spec_control *c, int session)
{
    kn_assert(session >= 0 && session < c->opt.n_session);
    for (int i = 0; i < c->opt.n_drafter; i++)
        memset(&c->habit[i * c->opt.n_session + session], 0, sizeof *c->habit);
}

void spec_control_tell(struct spec_control *c, int drafter, int session, const double *survival)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter && session >= 0 && session < c->opt.n_session);
    struct spec_habit *h = &c->habit[drafter * c->opt.n_session + session];
    h->is_told = survival != NULL;
    if (survival)
        memcpy(h->told, survival, sizeof h->told);
}

void spec_control_behind(struct spec_control *c, int drafter, int n_text)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter && n_text >= 0);
    c->arm[drafter].behind = n_text;
}

void spec_control_dismiss(struct spec_control *c, int drafter)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter);
    c->arm[drafter].most_depth = 0;
    if (c->trial.drafter == drafter)
        c->trial.left = 0;
    for (int size = 0; size < SPEC_SIZES; size++) {
        c->arm[drafter].tried[size].deepest = 0;
        if (c->now[size].drafter == drafter)
            c->now[size].drafter = SPEC_OFF;
    }
}

/* ---- choosing a plan ------------------------------------------------------------------------------------ */

static double may_lose(const struct spec_control *c, double plain_ns)
{
    return MAY_LOSE * plain_ns + SHARE * fmin(c->total_ns, LATELY * plain_ns);
}

/* Can the account pay for a trial of the plan?  It must cover all TRIAL steps' extra time.  A plan that failed in its
 * last trial ends after one step, so one step is counted, but it must leave time for plans that have not failed. */
static bool affordable(const struct spec_control *c, const struct spec_ask *q, const struct spec_plan *p,
                       double room_ns)
{
    double pass = spec_passes_ns(&c->passes, q->n_due, q->n_beside, (int)p->rows - q->n_due, false);
    const struct spec_arm *a = &c->arm[p->drafter], *by = &c->arm[a->of];
    double both = a->ahead ? spec_ahead_ns(pass, p->draft_ns, p->contention) : p->draft_ns + pass;
    const struct spec_plan *last = &q->known[p->drafter][p->depth];
    bool again = last->gain > 0 && (last->gain <= CLEARLY || last->rows <= q->n_due);
    if (again)
        room_ns -= LEAVE * spec_passes_plain(&c->passes, q->n_due);
    return (again ? 1 : TRIAL) * (both - q->off_ns) <= room_ns && by->behind * by->text_ns <= INVEST * room_ns;
}

/* Finds a depth of the active drafter with nearly the best gain and too few measured passes. */
static bool find_vague(const struct spec_control *c, const struct spec_ask *q, double best_gain,
                       struct spec_plan *out)
{
    int drafter = c->now[q->size].drafter;
    double least = VAGUE;
    out->drafter = SPEC_OFF;
    if (drafter == SPEC_OFF || c->arm[drafter].ahead || c->step < c->arm[drafter].tried[q->size].next)
        return false;
    for (int depth = 1; depth <= c->arm[drafter].tried[q->size].deepest; depth++) {
        const struct spec_plan *p = &q->known[drafter][depth];
        double weight = spec_passes_weight(&c->passes, q->n_due, (int)p->rows - q->n_due);
        if (depth != c->now[q->size].depth && p->rows > q->n_due && p->gain > best_gain * NEARLY && weight < least) {
            least = weight;
            *out = *p;
        }
    }
    return out->drafter != SPEC_OFF;
}

/* The plan with the highest gain that the account can pay for. */
static struct spec_plan best_affordable(const struct spec_control *c, const struct spec_ask *q,
                                        const struct spec_plan *p, int least, int most, double room_ns)
{
    struct spec_plan best = { .drafter = SPEC_OFF };
    for (int depth = least; depth <= most; depth++)
        if (p[depth].rows > q->n_due && p[depth].gain > best.gain && affordable(c, q, &p[depth], room_ns))
            best = p[depth];
    return best;
}

/* Finds a plan to try: not tried at this batch size, or long ago, or deeper than any trial. */
static bool find_trial(struct spec_control *c, const struct spec_ask *q, double best_gain, double room_ns,
                       struct spec_plan *out)
{
    struct spec_plan hoped[SPEC_DEPTHS + 1];
    out->drafter = SPEC_OFF;
    for (int i = 0; i < c->opt.n_drafter; i++) {
        const struct spec_arm *a = &c->arm[i];
        int deepest = a->tried[q->size].deepest;
        bool on = c->now[q->size].drafter == i;
        if (c->step < a->tried[q->size].next || a->most_depth < 1 || (on && deepest == a->most_depth) || a->barred)
            continue;
        if (a->ahead && spec_control_draft_ns(c, a->of, q->n_due) < 0)
            continue;                           /* its drafter must draft without overlap first, to be timed */
        /* short drafts first: they lose little; longer ones if short ones cannot gain; overlapped ones of any depth */
        int least = on ? deepest + 1 : 1, most = a->ahead ? a->most_depth : kn_min(a->most_depth, on ? 2 * deepest : 2);
        int reach = kn_min(a->most_depth, kn_max(most, 2 * deepest));
        spec_plans_make(c, q, i, reach, true, hoped);
        struct spec_plan p = best_affordable(c, q, hoped, least, most, room_ns);
        if (p.drafter == SPEC_OFF || p.gain <= best_gain * TO_TURN_ON)
            p = best_affordable(c, q, hoped, least, reach, room_ns);
        if (p.drafter == SPEC_OFF || p.gain <= best_gain * TO_TURN_ON)
            continue;
        if (out->drafter == SPEC_OFF || p.gain > out->gain)
            *out = p;
    }
    return out->drafter != SPEC_OFF;
}

/* The deepest plan of a drafter with a gain that is known without a trial: as deep as it was tried at this batch
 * size, or any depth if pass times are forecast and its drafts have been seen. */
static int reach_of(const struct spec_control *c, int drafter, int size)
{
    const struct spec_arm *a = &c->arm[drafter];
    if (a->barred)
        return 0;
    bool known = a->ahead ? a->beside[size].weight > 0 : c->passes.foreseen && spec_control_seen(c, drafter);
    return known ? a->most_depth : a->tried[size].deepest;
}

/* The plan with the highest gain among those known without a trial. */
static struct spec_plan find_best(struct spec_control *c, struct spec_ask *q)
{
    struct spec_plan best = { .drafter = SPEC_OFF, .gain = 1 };
    for (int i = 0; i < c->opt.n_drafter; i++) {
        int reach = reach_of(c, i, q->size);
        int most = c->trial.left > 0 && c->trial.drafter == i ? kn_max(reach, c->trial.depth) : reach;
        spec_plans_make(c, q, i, most, false, q->known[i]);
        struct spec_plan p = spec_plan_best(q->known[i], 1, reach);
        if (p.drafter != SPEC_OFF && (best.drafter == SPEC_OFF || p.gain > best.gain))
            best = p;
    }
    return best;
}

/* The deepest drafter that drafts at almost no cost. */
static int find_free(const struct spec_control *c, const struct spec_ask *q)
{
    int best = SPEC_OFF;
    for (int i = 0; i < c->opt.n_drafter; i++) {
        double ns = spec_control_draft_ns(c, i, q->n_due) * c->arm[i].most_depth;
        if (c->arm[i].ahead || c->arm[i].barred)
            continue;
        if (ns >= 0 && ns <= FREE * q->off_ns && c->arm[i].tried[q->size].deepest > 0 &&
            (best == SPEC_OFF || c->arm[i].most_depth > c->arm[best].most_depth))
            best = i;
    }
    return best;
}

static void take(struct spec_decision *d, const struct spec_plan *p, double need)
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
static void tell_ahead(struct spec_control *c, const struct spec_ask *q, struct spec_decision *d)
{
    struct spec_plan p[SPEC_DEPTHS + 1];
    for (int i = 0; i < c->opt.n_drafter; i++) {
        if (!c->arm[i].ahead || c->arm[i].barred || spec_control_draft_ns(c, i, q->n_due) < 0)
            continue;
        spec_plans_make(c, q, i, c->arm[i].most_depth, false, p);
        struct spec_plan best = spec_plan_best(p, 2, c->arm[i].most_depth);
        if (best.drafter != SPEC_OFF && best.gain > d->ahead.gain)
            d->ahead = (struct spec_ahead_plan){ best.depth, best.draft_ns, best.pass_ns, best.contention, best.gain };
    }
}

/* Is a plain step due?  Noisier pass times need more plain steps; drafts with a higher gain get fewer. */
static bool is_stale(const struct spec_control *c, const struct spec_ask *q, double gain)
{
    double unrest = spec_passes_unrest(&c->passes), least = fmax(OFTEN, (1 - 1 / fmax(1, gain)) / REFRESHING);
    return (double)(c->step - c->plain_at[q->size]) > fmin(REFRESH, fmax(least, REFRESH / (unrest * unrest)));
}

static void turn(struct spec_control *c, int size, int drafter, int depth)
{
    if (c->now[size].drafter != drafter || c->now[size].depth != depth)
        c->now[size].since = c->step;
    c->now[size].drafter = drafter;
    c->now[size].depth = depth;
}

/* Decides between the active plan and the best one. */
static struct spec_plan settle(struct spec_control *c, const struct spec_ask *q, struct spec_plan best,
                               struct spec_decision *d)
{
    int size = q->size, drafter = c->now[size].drafter, depth = c->now[size].depth;
    d->why = SPEC_WHY_GAINS;
    take(d, &best, TO_TURN_ON);
    if (drafter != SPEC_OFF) {
        struct spec_plan now = q->known[drafter][depth];
        bool fresh = c->step - c->now[size].since < DWELL;
        if (now.gain >= TO_STAY && (fresh || best.gain < now.gain * TO_SWITCH)) {
            if (best.depth != depth || best.drafter != drafter)
                d->why = SPEC_WHY_STAYS;
            take(d, &now, TO_STAY);
            return now;
        }
    }
    if (best.drafter == SPEC_OFF || best.gain < TO_TURN_ON || best.rows <= q->n_due) {
        turn(c, size, SPEC_OFF, 0);
        best.drafter = SPEC_OFF;
        return best;
    }
    struct spec_arm *a = &c->arm[best.drafter];
    if (drafter != best.drafter || depth != best.depth)
        a->tried[size].next = a->tried[size].next < c->step + SOON ? a->tried[size].next : c->step + SOON;
    turn(c, size, best.drafter, best.depth);
    a->tried[size].wait = FIRST_WAIT;
    return best;
}

static void start_trial(struct spec_control *c, const struct spec_ask *q, const struct spec_plan *p)
{
    int size = q->size;
    double last_gain = spec_plan_best(q->known[p->drafter], 1, reach_of(c, p->drafter, size)).gain;
    c->trial.drafter = p->drafter;
    c->trial.depth = p->depth;
    c->trial.size = size;
    c->trial.left = TRIAL;
    struct spec_arm *a = &c->arm[p->drafter];
    a->tried[size].next = c->step + a->tried[size].wait;
    if (a->tried[size].wait < LAST_WAIT && last_gain < CLEARLY)
        a->tried[size].wait *= 2;
}

/* A trial ends early when the batch size changes, when it clearly loses, or when a hopeful plan takes no node either:
 * nothing would be verified, and nothing learnt. */
static bool trial_goes_on(struct spec_control *c, const struct spec_ask *q, struct spec_plan *out)
{
    struct spec_plan hoped[SPEC_DEPTHS + 1];
    if (c->trial.left == 0)
        return false;
    double gain = q->known[c->trial.drafter][c->trial.depth].gain;
    /* an overlapped trial verifies its first draft in its second step */
    bool early = c->trial.left >= (c->arm[c->trial.drafter].ahead ? TRIAL - 1 : TRIAL);
    if (c->trial.size == q->size && (early || gain > CLEARLY)) {
        spec_plans_make(c, q, c->trial.drafter, c->trial.depth, true, hoped);
        *out = hoped[c->trial.depth];
        if (out->rows > q->n_due)
            return true;
    }
    c->trial.left = 0;
    return false;
}

/* Returns the plan to follow; drafter SPEC_OFF: none. */
static struct spec_plan choose(struct spec_control *c, struct spec_ask *q, struct spec_decision *d)
{
    struct spec_plan none = { .drafter = SPEC_OFF }, hoped[SPEC_DEPTHS + 1];
    if (!spec_passes_known(&c->passes, q->n_due)) {
        d->why = SPEC_WHY_LEARN;
        return none;
    }
    d->may_lose_ns = may_lose(c, spec_passes_plain(&c->passes, q->n_due));
    struct spec_plan best = find_best(c, q), trial = none;
    take(d, &best, TO_TURN_ON);
    tell_ahead(c, q, d);
    if (c->doubt > 0 || is_stale(c, q, best.gain)) {
        d->why = SPEC_WHY_REFRESH;
        return none;
    }
    if (c->lost_ns >= d->may_lose_ns) {
        d->why = SPEC_WHY_SPENT;
        return none;
    }
    if (trial_goes_on(c, q, &trial)) {
        d->why = SPEC_WHY_TRIAL;
        take(d, &trial, 0);
        return trial;
    }
    best = settle(c, q, best, d);
    double best_gain = best.drafter == SPEC_OFF ? 1 : best.gain, room_ns = d->may_lose_ns - c->lost_ns - c->debt_ns;
    if (q->n_beside == 0 && (find_trial(c, q, best_gain, room_ns, &trial) ||
                             (find_vague(c, q, best_gain, &trial) && affordable(c, q, &trial, room_ns)))) {
        start_trial(c, q, &trial);
        d->why = SPEC_WHY_TRIAL;
        take(d, &trial, 0);
        return trial;
    }
    if (best.drafter == SPEC_OFF) {
        d->why = SPEC_WHY_LOSES;
        int free = c->opt.rule == SPEC_COUPLED ? find_free(c, q) : SPEC_OFF;
        if (free != SPEC_OFF) {
            d->why = SPEC_WHY_FREE;
            spec_plans_make(c, q, free, c->arm[free].most_depth, false, hoped);
            best = hoped[c->arm[free].most_depth];
            take(d, &best, 0);
        }
    }
    return best;
}

/* ---- decide --------------------------------------------------------------------------------------------- */

static int share_nodes(const struct spec_control *c, const struct spec_ask *q, const struct spec_plan *p,
                       const struct spec_decision *d, int *nodes)
{
    double what[SPEC_DEPTHS];
    int left = kn_min(q->room, q->n_due * SPEC_NODES), all = 0;
    for (int i = 0; i < q->n_due; i++) {
        int n = 0;
        if (d->why == SPEC_WHY_FREE || d->why == SPEC_WHY_FIXED || c->arm[p->drafter].ahead) {
            n = p->depth;
        } else {
            spec_plan_expect(c, p->drafter, q->session[i], p->depth, d->why == SPEC_WHY_TRIAL, what);
            while (n < p->depth && what[n] >= p->bar)
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

/* Accepted tokens expected by the steady state of ahead.c. */
static double expected_ahead(const struct spec_control *c, const struct spec_ask *q, const struct spec_plan *p)
{
    double what[SPEC_DEPTHS], kept = 0;
    for (int i = 0; i < q->n_due; i++) {
        spec_plan_expect(c, p->drafter, q->session[i], p->depth, false, what);
        kept += spec_ahead_share(what, p->depth).kept;
    }
    return kept;
}

void spec_control_decide(struct spec_control *c, const int *session, int n_due, int n_beside,
                         struct spec_decision *out, int *nodes)
{
    int room = (c->opt.most_rows > 0 ? c->opt.most_rows : INT32_MAX) - n_beside - n_due;
    if (c->opt.most_drafted > 0)
        room = kn_min(room, c->opt.most_drafted);
    struct spec_ask q = { .session = session, .n_due = n_due, .n_beside = n_beside, .room = room };
    q.size = spec_size_of(n_due);
    struct spec_decision d = { .drafter = SPEC_OFF, .best_drafter = SPEC_OFF, .n_due = n_due, .n_beside = n_beside,
                               .why = SPEC_WHY_NONE_DUE, .lost_ns = c->lost_ns };
    struct spec_plan p = { .drafter = SPEC_OFF };
    memset(nodes, 0, (size_t)n_due * sizeof *nodes);
    c->step++;
    if (n_due > 0 && c->opt.n_drafter > 0 && room > 0) {
        q.token_ns = spec_passes_plain(&c->passes, n_due) / n_due;
        q.off_ns = spec_passes_ns(&c->passes, n_due, n_beside, 0, false);
        d.off_ns = q.off_ns > 0 ? q.off_ns : 0;
        if (c->opt.gamma == SPEC_AUTO) {
            p = choose(c, &q, &d);
        } else {
            d.why = SPEC_WHY_FIXED;
            p.depth = kn_min(c->opt.gamma, c->arm[0].most_depth);
            p.drafter = p.depth > 0 ? 0 : SPEC_OFF;
        }
    }
    if (d.best_drafter != SPEC_OFF) {
        d.off_experts = spec_knots_at(&c->experts, c->even, c->n_even, n_beside + n_due);
        d.experts = spec_knots_at(&c->experts, c->even, c->n_even, n_beside + d.rows);
    }
    if (p.drafter != SPEC_OFF && share_nodes(c, &q, &p, &d, nodes) > 0) {
        d.drafter = p.drafter;
        d.depth = p.depth;
        c->last_expected = c->arm[p.drafter].ahead ? expected_ahead(c, &q, &p) : 0;
    }
    c->last = d;
    *out = d;
}
