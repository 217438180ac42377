/* speculative/upkeep.h - whether a drafter is worth its upkeep.
 *
 * A loaded drafter costs time beside its drafts:
 *   memory     While some experts are on disk, its memory could hold experts, which would make every step shorter: by a share
 *              `value` of it.
 *   features   For a head the model computes features of prompts that it would not compute else.
 * So each step with the drafter loaded loses this time, less the time that its drafts save. After the first 64 steps, in which
 * drafts are tried and the drafter reads the sequences, one that loses the time of four steps is to be unloaded. It may be
 * loaded again when its drafts are expected to gain more than its upkeep, as they may when more sequences are due, and when
 * all that it has ever lost is paid off: 0.8 % of each step, with the drafter or without, pays off the loss. So however often a
 * drafter promises more than it holds, it costs the loss of its first 64 steps, four steps, and 0.8 %.
 *
 * Times are parameters. One thread. */
#ifndef SPECULATIVE_UPKEEP_H
#define SPECULATIVE_UPKEEP_H

#include <stdbool.h>
#include <stdint.h>

struct spec_upkeep {             /* the account of a drafter; all 0: even, and loaded */
    bool unloaded;               /* it has no upkeep */
    double lost;                 /* plain steps' time that is not paid off */
    double lost_since;           /* the same since it was loaded, without its first steps */
    double feature_ns, plain_ns; /* recent means by step: of features, and of all work without drafts and features */
    uint64_t n_step;             /* since it was loaded or unloaded */
};

enum spec_upkeep_move { SPEC_UPKEEP_STAY, SPEC_UPKEEP_UNLOAD, SPEC_UPKEEP_MAY_LOAD };

struct spec_upkeep_step {
    double value;             /* of the memory: 0 to 1; below 0.01 it counts as 0 */
    double step_ns, plain_ns; /* time that the step took; that a step without drafts takes */
    double saved_ns;          /* by its drafts in this step; negative if they lost, or if it only read sequences */
    bool reads_features;      /* a drafter that does not is never unloaded where its memory has no value */
    double prompt_ns;         /* of the passes since the last step, which read prompts alone */
    double feature_ns; /* time of features in this step and these passes; of an unloaded drafter: that it would take */
};

/* After a step.  MAY_LOAD, in one of 16 steps: estimate the gain of its drafts, and load it if spec_upkeep_pays. */
enum spec_upkeep_move spec_upkeep_learn(struct spec_upkeep *u, const struct spec_upkeep_step *s);

/* gain: of drafts with it over none, or over those of the others.  value: of its memory. */
bool spec_upkeep_pays(const struct spec_upkeep *u, double gain, double value);

double spec_upkeep_feature_part(const struct spec_upkeep *u); /* time of features over that of all work without them */

void spec_upkeep_unloaded(struct spec_upkeep *u);
void spec_upkeep_loaded(struct spec_upkeep *u);

#endif
