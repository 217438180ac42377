/* speculative/memory.h - whether a drafter is worth its memory.
 *
 * While some experts are on disk, a drafter's memory could hold experts, which would make every step shorter: by a share
 * `value` of it. So each step with the drafter in memory loses this share, less the time that its drafts save.
 * A drafter that has lost the time of four steps is to be unloaded. It may be loaded again when its account is even and its
 * drafts are expected to gain more than its memory, as they may when more sequences are due. A share of 0.8 % of each step,
 * with the drafter or without, is taken off the loss. So a drafter whose drafts promise more than they hold costs four steps
 * and this share of the time, however often it is loaded; if 64 steps, the fewest between two moves, lose more, these.
 *
 * Times are parameters. One thread. */
#ifndef SPECULATIVE_MEMORY_H
#define SPECULATIVE_MEMORY_H

#include <stdbool.h>

struct spec_memory {     /* the account; all 0: even, and loaded */
    bool unloaded;       /* its memory holds experts */
    double lost;         /* steps' time */
    double saved_ns;     /* by its drafts, up to the last step */
    int n_step, n_ready; /* steps since it was loaded or unloaded; of these, steps in which it could draft */
};

enum spec_memory_move { SPEC_MEMORY_STAY, SPEC_MEMORY_UNLOAD, SPEC_MEMORY_MAY_LOAD };

/* After a step that took step_ns.  saved_ns: by all its drafts so far, negative if they lost.  ready: it could have drafted.
 * MAY_LOAD, in one of 16 steps: estimate the gain of its drafts, and load it if spec_memory_pays. */
enum spec_memory_move spec_memory_step(struct spec_memory *m, double value, double step_ns, double saved_ns,
                                       bool ready);

/* gain: of drafts with it over none, or over those of the others.  value: of its memory. */
bool spec_memory_pays(double gain, double value);

void spec_memory_set_loaded(struct spec_memory *m,
                            bool loaded); /* after the move; the time that it took: add it to `lost` */

#endif
