/* speculative/explain.c - prints the controller's decisions, and its account of each drafter. */
#include "speculative/internal.h"

#include <stdio.h>

const char *spec_why_text(enum spec_why why)
{
    static const char *const text[SPEC_WHY_COUNT] = {
        [SPEC_WHY_NONE_DUE] = "nothing to draft",
        [SPEC_WHY_FIXED] = "as told",
        [SPEC_WHY_LEARN] = "learning what a step takes without drafts",
        [SPEC_WHY_REFRESH] = "measuring again what a step takes without drafts",
        [SPEC_WHY_NO_GAIN] = "no draft gains enough",
        [SPEC_WHY_LOSS_LIMIT] = "drafts have lost what they may",
        [SPEC_WHY_GAINS] = "gains most",
        [SPEC_WHY_SMALL_DIFFERENCE] = "another gains no more than a little",
        [SPEC_WHY_TRIAL] = "a trial",
        [SPEC_WHY_FREE] = "drafting is free, only what gains is verified",
    };
    return text[why];
}

static const char *name_of(const struct spec_control *c, int drafter)
{
    return drafter == SPEC_OFF ? "off" : c->arm[drafter].name;
}

/* The rest of out after n characters; n may exceed size. */
static char *at(char *out, size_t size, int n) { return (size_t)n < size ? out + n : NULL; }
static size_t left(size_t size, int n) { return (size_t)n < size ? size - (size_t)n : 0; }

int spec_decision_text(const struct spec_control *c, const struct spec_decision *d, char *out, size_t size)
{
    char what[64] = "off", about[64] = "";
    if (d->drafter != SPEC_OFF)
        snprintf(what, sizeof what, "%s %d deep", name_of(c, d->drafter), d->depth);
    else if (d->best_drafter != SPEC_OFF)
        snprintf(about, sizeof about, "%s %d deep: ", name_of(c, d->best_drafter), d->best_depth);
    int n = snprintf(out, size, "draft: %s (%s)", what, spec_why_text(d->why));
    if (d->best_drafter != SPEC_OFF)
        n += snprintf(at(out, size, n), left(size, n),
                      "; %s%.1f rows for %.2f tokens in %.2f + %.2f ms, plain %d in %.2f ms, gain %.2f (needs %.2f)"
                      "; lost %.1f of %.1f ms", about, d->rows, d->tokens, d->draft_ns * 1e-6, d->pass_ns * 1e-6,
                      d->n_due, d->off_ns * 1e-6, d->gain, d->need, d->lost_ns * 1e-6, d->loss_limit_ns * 1e-6);
    if (d->overlap.depth)
        n += snprintf(at(out, size, n), left(size, n), "; ahead %d deep: %.2f beside %.2f ms, contention %.2f, gain %.2f",
                      d->overlap.depth, d->overlap.draft_ns * 1e-6, d->overlap.pass_ns * 1e-6, d->overlap.contention,
                      d->overlap.gain);
    if (d->experts > 0)
        n += snprintf(at(out, size, n), left(size, n), "; experts a layer %.1f, plain %.1f", d->experts,
                      d->plain_experts);
    return n;
}

/* ---- drafters ------------------------------------------------------------------------------------------------ */

#define MIN_VERDICT_STEPS 8
#define MIN_PAYING_GAIN           1.005

void spec_control_set_memory_value(struct spec_control *c, int drafter, double memory)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter);
    c->arm[drafter].memory = memory;
}

void spec_control_account(const struct spec_control *c, int drafter, struct spec_account *out)
{
    kn_assert(drafter >= 0 && drafter < c->opt.n_drafter);
    const struct spec_arm *a = &c->arm[drafter];
    *out = (struct spec_account){ .n_all = c->n_learnt, .n_step = a->n_step, .n_drafted = a->n_drafted, .n_accepted = a->n_accepted,
                                  .gain = a->took_ns > 0 ? a->plain_ns / a->took_ns : 1, .memory = a->memory };
    for (int d = 0; d < SPEC_DEPTHS && a->survival_weight[d] > 0; d++) {
        double truth = a->tally[d].estimated > 0 ? a->tally[d].accepted / a->tally[d].estimated : 1, accepted = a->survival[d] * truth;
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
        return snprintf(out, size, "%s: does not pay, gain %.3f over all steps; %llu of %llu drafted rows kept in %llu "
                        "steps", name, a.gain, accepted, drafted, steps);
    case SPEC_VERDICT_MEMORY_WORTH_MORE:
        return snprintf(out, size, "%s: gain %.3f, but experts in its memory would gain %.3f: run without it", name,
                        a.gain, 1 / (1 - a.memory));
    case SPEC_VERDICT_PAYS:
        break;
    }
    return snprintf(out, size, "%s: pays, gain %.3f over all steps; %llu of %llu drafted rows kept in %llu steps",
                    name, a.gain, accepted, drafted, steps);
}
