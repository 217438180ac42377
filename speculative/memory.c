/* speculative/memory.c - the account of a drafter's memory (memory.h). */
#include "speculative/memory.h"

#include <math.h>

#define MAX_LOST_STEPS    4     /* as for drafts that lose: control.c */
#define ALLOWED_SHARE     0.008 /* of the time */
#define MIN_READY_STEPS   64    /* before it is unloaded */
#define STEPS_PER_PROMISE 16
#define MIN_PROMISE       1.03 /* of its drafts, beyond its memory's value */

/* The loss of a step with the drafter, in plain steps of a machine whose experts have its memory.  For the same tokens that
 * machine needs (1 - value) (1 + saved) of the step's time, and a plain step takes it (1 - value) of the time here. */
static double lost_steps(double value, double saved) { return (1 - (1 - value) * (1 + saved)) / (1 - value); }

enum spec_memory_move spec_memory_step(struct spec_memory *m, double value, double step_ns, double saved_ns, bool ready)
{
    m->lost = fmax(0,
                   m->lost + (m->unloaded ? 0 : lost_steps(value, (saved_ns - m->saved_ns) / step_ns)) - ALLOWED_SHARE);
    m->saved_ns = saved_ns;
    m->n_step++;
    m->n_ready += ready;
    if (!m->unloaded)
        return m->lost >= MAX_LOST_STEPS && m->n_ready >= MIN_READY_STEPS ? SPEC_MEMORY_UNLOAD : SPEC_MEMORY_STAY;
    return m->lost <= 0 && m->n_step % STEPS_PER_PROMISE == 0 ? SPEC_MEMORY_MAY_LOAD : SPEC_MEMORY_STAY;
}

bool spec_memory_pays(double gain, double value) { return gain * (1 - value) >= MIN_PROMISE; }

void spec_memory_set_loaded(struct spec_memory *m, bool loaded)
{
    m->unloaded = !loaded;
    m->n_step = m->n_ready = 0;
}
