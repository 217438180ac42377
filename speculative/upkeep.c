/* speculative/upkeep.c - the account of a drafter's memory (memory.h). */
#include "speculative/upkeep.h"

#include <math.h>

#define MIN_VALUE         0.01  /* less is no reason to unload */
#define FIRST_STEPS       64    /* after a load */
#define MAX_LOST_STEPS    4     /* as for drafts that lose: control.c */
#define ALLOWED_SHARE     0.008 /* of the time */
#define STEPS_PER_PROMISE 16
#define MIN_PROMISE       1.03 /* of its drafts, beyond its memory's value */

/* The step's time less the time of plain steps for the same tokens, if experts had the drafter's memory: that is a share
 * 1 - value of their time here.  In such plain steps. */
static double lost_steps(const struct spec_upkeep_step *s)
{
    double plain_ns = s->step_ns + s->saved_ns;
    if (s->value < MIN_VALUE || s->plain_ns <= 0)
        return 0;
    return (s->step_ns - (1 - s->value) * plain_ns) / ((1 - s->value) * s->plain_ns);
}

enum spec_upkeep_move spec_upkeep_learn(struct spec_upkeep *m, const struct spec_upkeep_step *s)
{
    double change = (m->unloaded ? 0 : lost_steps(s)) - ALLOWED_SHARE;
    m->lost = fmax(0, m->lost + change);
    m->n_step++;
    if (m->unloaded)
        return m->lost <= 0 && m->n_step % STEPS_PER_PROMISE == 0 ? SPEC_UPKEEP_MAY_LOAD : SPEC_UPKEEP_STAY;
    if (m->n_step > FIRST_STEPS)
        m->lost_since = fmax(0, m->lost_since + change);
    return m->lost_since >= MAX_LOST_STEPS ? SPEC_UPKEEP_UNLOAD : SPEC_UPKEEP_STAY;
}

bool spec_upkeep_pays(double gain, double value) { return gain * (1 - value) >= MIN_PROMISE; }

static void set(struct spec_upkeep *m, bool unloaded)
{
    m->unloaded = unloaded;
    m->lost_since = 0;
    m->n_step = 0;
}

void spec_upkeep_unloaded(struct spec_upkeep *m) { set(m, true); }
void spec_upkeep_loaded(struct spec_upkeep *m) { set(m, false); }
