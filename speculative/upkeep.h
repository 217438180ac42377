/* speculative/upkeep.h - whether a drafter is worth its upkeep.
 *
 * A loaded drafter costs time beside its drafts:
 *   memory     While some experts are on disk, its memory could hold experts, which would make every step shorter: by a share
 *              `value` of it.
 *   features   For a head the model computes features of prompts that it would not compute else.
 *   reading    It reads the sequences before it drafts for them.
 * Each step with the drafter loaded loses this time, less the time that its drafts save. Features and reading come with prompts,
 * the savings with the answers behind them, so their time is charged over the next 128 steps. After the first 64 steps, in which
 * drafts are tried and sequences are read, a drafter that has lost the time of four steps is to be unloaded. It may be loaded
 * again when its drafts are expected to gain more than its upkeep, as they may when more sequences are due, and when all that it
 * has ever lost is paid off: 0.8 % of each step, with the drafter or without, pays off the loss. So however often a drafter
 * promises more than it holds, it costs the loss of its first 64 steps, four steps, the time not charged yet, and 0.8 %.
 *
 * Time is counted in steps that decode without drafts. Times are parameters. One thread. */
#ifndef SPECULATIVE_UPKEEP_H
#define SPECULATIVE_UPKEEP_H

#include <stdbool.h>
#include <stdint.h>

struct spec_upkeep {             /* the account of a drafter; all 0: even, and loaded */
    bool unloaded;               /* it has no upkeep */
    double lost;                 /* steps that are not paid off */
    double lost_since;           /* the same since it was loaded, without its first steps */
    double uncharged;            /* steps of features and reading that are not in the two yet */
    double feature_ns, plain_ns; /* recent means of the parameters below */
    uint64_t n_step;             /* since it was loaded or unloaded */
};

enum spec_upkeep_move { SPEC_UPKEEP_STAY, SPEC_UPKEEP_UNLOAD, SPEC_UPKEEP_MAY_LOAD };

struct spec_upkeep_step {
    double value;      /* of the memory: 0 to 1; below 0.01 it counts as 0 */
    double step_ns;    /* time of the step, without reading */
    double plain_ns;   /* time of a step that decodes the same sequences without drafts */
    double saved_ns;   /* by its drafts in this step; negative if they lost */
    double reading_ns; /* in which it read sequences */
    /* Of features, in this step and in passes before it that read prompts alone. Unloaded: that it would cost. */
    double feature_ns;
};

/* After a step.  MAY_LOAD, in one of 16 steps: estimate the gain of its drafts, and load it if spec_upkeep_pays.  A drafter
 * stays while its memory and its features both take less than 1 % of the time. */
enum spec_upkeep_move spec_upkeep_learn(struct spec_upkeep *u, const struct spec_upkeep_step *s);

/* gain: of drafts with it over none, or over those of the others.  value: of its memory. */
bool spec_upkeep_pays(const struct spec_upkeep *u, double gain, double value);
double spec_upkeep_feature_part(const struct spec_upkeep *u); /* features, in decoding steps for each such step */

void spec_upkeep_unloaded(struct spec_upkeep *u);
void spec_upkeep_loaded(struct spec_upkeep *u);

#endif
