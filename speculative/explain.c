/* speculative/explain.c - prints the controller's decisions, and its account of each drafter. */
#include "speculative/fit.h"
#include "speculative/internal.h"

#include <stdio.h>

const char *spec_why_text(enum spec_why why)
{
    static const char *const text[SPEC_WHY_COUNT] = {
        [SPEC_WHY_NONE_DUE] = "nothing to draft",
        [SPEC_WHY_FIXED] = "set by --gamma or --dsi",
        [SPEC_WHY_LEARN] = "measuring steps without drafts",
        [SPEC_WHY_REFRESH] = "measuring steps without drafts again",
        [SPEC_WHY_NO_GAIN] = "no plan has enough expected gain",
        [SPEC_WHY_LOSS_LIMIT] = "limit on time lost to drafts reached",
        [SPEC_WHY_UNLOADED] = "the drafters are unloaded until they promise more",
        [SPEC_WHY_GAINS] = "highest expected gain",
        [SPEC_WHY_SMALL_DIFFERENCE] = "another plan is only slightly better",
        [SPEC_WHY_TRIAL] = "trial",
        [SPEC_WHY_FREE] = "drafting takes no time, nodes with a gain are verified",
    };
    return text[why];
}

static const char *name_of(const struct spec_control *c, int drafter)
{
    return drafter == SPEC_OFF ? "off" : c->arm[drafter].name;
}

/* The part of out behind its first n characters, and the size of this part; n may exceed size: NULL and 0. */
static char *at(char *out, size_t size, int n) { return (size_t)n < size ? out + n : NULL; }
static size_t left(size_t size, int n) { return (size_t)n < size ? size - (size_t)n : 0; }

int spec_decision_text(const struct spec_control *c, const struct spec_decision *d, char *out, size_t size)
{
    char what[64] = "off", about[64] = "";
    if (d->drafter != SPEC_OFF)
        snprintf(what, sizeof what, "%s, depth %d", name_of(c, d->drafter), d->depth);
    else if (d->best_drafter != SPEC_OFF)
        snprintf(about, sizeof about, "best plan %s, depth %d: ", name_of(c, d->best_drafter), d->best_depth);
    int n = snprintf(out, size, "draft: %s (%s)", what, spec_why_text(d->why));
    if (d->best_drafter != SPEC_OFF)
        n += snprintf(at(out, size, n), left(size, n),
                      "; %s%.1f rows for %.2f tokens, draft %.2f + pass %.2f ms; without drafts %d rows in %.2f ms; "
                      "gain %.2f (needs %.2f); lost %.1f of at most %.1f ms",
                      about, d->rows, d->tokens, d->draft_ns * 1e-6, d->pass_ns * 1e-6, d->n_due, d->off_ns * 1e-6,
                      d->gain, d->need, d->lost_ns * 1e-6, d->loss_limit_ns * 1e-6);
    if (d->overlap.depth)
        n += snprintf(at(out, size, n), left(size, n),
                      "; during the pass, depth %d: draft %.2f ms, pass %.2f ms, contention %.2f, gain %.2f",
                      d->overlap.depth, d->overlap.draft_ns * 1e-6, d->overlap.pass_ns * 1e-6, d->overlap.contention,
                      d->overlap.gain);
    const struct spec_target *t = &d->target;
    if (t->predicted > 0) {
        n += snprintf(at(out, size, n), left(size, n), "; target efficiency %.2f predicted at %.0f rows", t->predicted,
                      t->rows);
        if (t->efficiency > 0)
            n += snprintf(at(out, size, n), left(size, n), ", %.2f measured", t->efficiency);
        if (t->full_rows > 0)
            n += snprintf(at(out, size, n), left(size, n), ", N(t) %.1f experts, all from %.0f rows", t->even,
                          t->full_rows);
    }
    if (d->experts > 0)
        n += snprintf(at(out, size, n), left(size, n), "; experts per layer %.1f, without drafts %.1f", d->experts,
                      d->plain_experts);
    return n;
}

/* ---- points of a fit ------------------------------------------------------------------------------------------- */

#define MIN_FIT_STEPS  3 /* steps in the mean of a draft pass's time that make it a point */
#define MIN_FIT_DRAFTS 32

int spec_control_draft_points(const struct spec_control *c, int drafter, struct spec_fit_point *out, int most)
{
    const struct spec_arm *a = &c->arm[drafter];
    int n = 0;
    for (int size = 0; size < SPEC_SIZES && n < most; size++)
        if (a->n_draft_step[size] >= MIN_FIT_STEPS && a->draft_ns[size] > 0)
            out[n++] = (struct spec_fit_point){ .rows = spec_size_middle(size), .ns = a->draft_ns[size] };
    return n;
}

double spec_control_accept(const struct spec_control *c, int drafter)
{
    const struct spec_tally *first = &c->arm[drafter].tally[0];
    return first->n_verified >= MIN_FIT_DRAFTS ? first->accepted / first->n_verified : 0;
}

/* ---- drafters ------------------------------------------------------------------------------------------------ */

#define MIN_VERDICT_STEPS 8
#define MIN_PAYING_GAIN   1.005

void spec_control_set_memory_value(struct spec_control *c, int drafter, double memory)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter);
    c->arm[drafter].memory = memory;
}

void spec_control_account(const struct spec_control *c, int drafter, struct spec_account *out)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter);
    const struct spec_arm *a = &c->arm[drafter];
    *out = (struct spec_account){ .n_step = a->n_step,
                                  .n_drafted = a->n_drafted,
                                  .n_accepted = a->n_accepted,
                                  .gain = a->took_ns > 0 ? a->plain_ns / a->took_ns : 1,
                                  .memory = a->memory };
    for (int d = 0; d < SPEC_DEPTHS && a->survival_weight[d] > 0; d++) {
        double truth = a->tally[d].estimated > 0 ? a->tally[d].accepted / a->tally[d].estimated : 1,
               accepted = a->survival[d] * truth;
        out->accepted[d] = accepted < 1 ? accepted : 1;
    }
    if (a->n_step < MIN_VERDICT_STEPS)
        out->verdict = SPEC_VERDICT_UNTRIED;
    else if (out->gain < MIN_PAYING_GAIN)
        out->verdict = SPEC_VERDICT_LOSES;
    else
        out->verdict = out->gain * (1 - a->memory) < 1 ? SPEC_VERDICT_MEMORY_WORTH_MORE : SPEC_VERDICT_PAYS;
}

int spec_account_text(const struct spec_control *c, int drafter, char *out, size_t size)
{
    struct spec_account a;
    spec_control_account(c, drafter, &a);
    const char *name = name_of(c, drafter);
    unsigned long long steps = a.n_step, accepted = a.n_accepted, drafted = a.n_drafted;
    switch (a.verdict) {
    case SPEC_VERDICT_UNTRIED:
        return snprintf(out, size, "%s: %llu steps so far, too few to judge", name, steps);
    case SPEC_VERDICT_LOSES:
        return snprintf(out, size,
                        "%s: does not pay, gain %.3f over all steps; %llu of %llu drafted rows accepted "
                        "in %llu steps",
                        name, a.gain, accepted, drafted, steps);
    case SPEC_VERDICT_MEMORY_WORTH_MORE:
        return snprintf(out, size,
                        "%s: gain %.3f, but its memory as expert cache would gain %.3f: run "
                        "without it",
                        name, a.gain, 1 / (1 - a.memory));
    case SPEC_VERDICT_PAYS:
        break;
    }
    return snprintf(out, size, "%s: pays, gain %.3f over all steps; %llu of %llu drafted rows accepted in %llu steps",
                    name, a.gain, accepted, drafted, steps);
}
