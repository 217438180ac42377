/* speculative/upkeep.c - the account of a drafter's upkeep (upkeep.h). */
#include "speculative/upkeep.h"

#include <math.h>

#define MIN_UPKEEP        0.01  /* share of the time: less is no reason to unload */
#define FIRST_STEPS       64    /* after a load */
#define MAX_LOST_STEPS    4     /* as for drafts that lose: control.c */
#define ALLOWED_SHARE     0.008 /* of the time */
#define CHARGE_STEPS      128   /* over about so many features and reading are charged */
#define STEPS_PER_PROMISE 16
#define MIN_PROMISE       1.03 /* of its drafts, beyond its upkeep */
#define MEAN_STEPS        256

/* The step's time less the time of plain steps for the same tokens, if experts had the drafter's memory: that is a share
 * 1 - value of their time here. */
static double lost_steps(const struct spec_upkeep_step *s, double value)
{
    double plain_ns = s->step_ns + s->saved_ns;
    return (s->step_ns - (1 - value) * plain_ns) / ((1 - value) * s->plain_ns);
}

/* All of the rest is charged now, but not against the drafter's stay. */
static void settle(struct spec_upkeep *u)
{
    u->lost += u->uncharged;
    u->uncharged = 0;
}

static double charge(struct spec_upkeep *u, const struct spec_upkeep_step *s)
{
    double value = s->value < MIN_UPKEEP ? 0 : s->value;
    if (u->unloaded || s->plain_ns <= 0 || (value <= 0 && spec_upkeep_feature_part(u) < MIN_UPKEEP))
        return 0;
    u->uncharged += (s->reading_ns + s->feature_ns) / s->plain_ns;
    double part = u->uncharged / CHARGE_STEPS;
    u->uncharged -= part;
    return lost_steps(s, value) + part;
}

enum spec_upkeep_move spec_upkeep_learn(struct spec_upkeep *u, const struct spec_upkeep_step *s)
{
    u->feature_ns += (s->feature_ns - u->feature_ns) / MEAN_STEPS;
    u->plain_ns += (s->plain_ns - u->plain_ns) / MEAN_STEPS;
    double change = charge(u, s) - ALLOWED_SHARE;
    u->lost = fmax(0, u->lost + change);
    u->n_step++;
    if (u->unloaded)
        return u->lost <= 0 && u->n_step % STEPS_PER_PROMISE == 0 ? SPEC_UPKEEP_MAY_LOAD : SPEC_UPKEEP_STAY;
    if (u->n_step > FIRST_STEPS)
        u->lost_since = fmax(0, u->lost_since + change);
    else if (u->n_step == FIRST_STEPS)
        settle(u);
    return u->lost_since >= MAX_LOST_STEPS ? SPEC_UPKEEP_UNLOAD : SPEC_UPKEEP_STAY;
}

bool spec_upkeep_pays(const struct spec_upkeep *u, double gain, double value)
{
    return (1 - value) / (1 / gain + spec_upkeep_feature_part(u)) >= MIN_PROMISE;
}

double spec_upkeep_feature_part(const struct spec_upkeep *u)
{
    return u->plain_ns > 0 ? u->feature_ns / u->plain_ns : 0;
}

static void set(struct spec_upkeep *u, bool unloaded)
{
    settle(u);
    u->unloaded = unloaded;
    u->lost_since = 0;
    u->n_step = 0;
}

void spec_upkeep_unloaded(struct spec_upkeep *u) { set(u, true); }
void spec_upkeep_loaded(struct spec_upkeep *u) { set(u, false); }
