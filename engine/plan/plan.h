/* engine/plan/plan.h - how a memory budget is split, and the speed to expect from the split.
 *
 *     memory_split.c    the split, as numbers (eng_plan_split) and for a model on this machine (eng_budget)
 *     pass_forecast.c   how long a pass takes
 *     disk_rate.c       the rate of a disk, measured outside the engine's own reads
 *     host_rate.c       the rates of memory and multiply-adds
 *     fit_file.c        the constants that `fit` found, in a file
 *
 * eng_plan_* take numbers and return numbers: they know no model, no machine and no clock. */
#ifndef ENGINE_PLAN_H
#define ENGINE_PLAN_H

#include "moe/moe.h"
#include "speculative/cost.h"

/* ---- the split --------------------------------------------------------------------------------- */

struct eng_need {                               /* what a model and its use ask for */
    size_t fixed_bytes;                         /* code, vocabulary, stacks, lists */
    size_t dense_bytes;
    size_t step_bytes;                          /* a context without its KV */
    size_t kv_slot_bytes;                       /* of one position */
    size_t state_bytes;                         /* of a text, if the model has states; those at work are in step_bytes */
    int n_ctx, n_parallel;
    size_t kv_mem;                              /* 0: n_parallel * n_ctx, as far as that is sound */
    size_t expert_bytes, expert_least;          /* all of them; the least that works */
    int n_expert;
};

/* Where the budget goes: the parts and what is spare add up to total. */
struct eng_split {
    size_t total, fixed, dense, step, kv, state, expert, spare;
    size_t least;                               /* the smallest total that works */
    size_t kv_least;                            /* KV of one context */
    int n_kv_slot;                              /* positions that KV holds, in whole blocks */
    int n_state;                                /* states that are kept beside those at work */
    int n_expert, n_resident;                   /* experts, and how many of them fit */
};

/* KN_ELIMIT when total is less than least, KN_EINVAL when kv_mem is less than one context takes: nothing is
 * said, and only total, least and kv_least hold. */
int eng_plan_split(struct eng_split *out, const struct eng_need *need, size_t total);

/* ---- the speed --------------------------------------------------------------------------------- */

struct eng_machine { double disk_Bps, dram_Bps, mac_ps; };

struct eng_forecast {                           /* one decode pass over n_row sequences */
    int n_row;
    double experts;                             /* distinct ones per layer, if chosen evenly */
    double misses;                              /* experts read from disk, over all layers */
    double disk_bytes, dram_bytes, macs;
    double disk_s, dram_s, mac_s;               /* what each tier alone would take */
    double pass_s, tokens_per_s;                /* all of them together */
    const char *bound_by;                       /* "disk", "dram", "operations" */
};

struct eng_setting {                            /* a model, where its bytes are, and what they are read by */
    const struct moe_shape *shape;
    const struct eng_split *split;
    struct eng_machine machine;
    size_t kv_slot_bytes;                       /* of one position */
    int position;                               /* how long sequences are: so many keys and values attention reads */
};

void eng_plan_forecast(struct eng_forecast *out, const struct eng_setting *s, int n_row);

/* What the controller of drafts expects of passes, before it has seen any: a cost model of the same terms, for
 * sequences whose keys and values are nothing beside weights. */
void eng_plan_cost(struct spec_cost_model *out, const struct eng_setting *s);

/* What n_seq sequences could gain at most, by bytes and by operations, if drafts survive to each depth so often:
 * E(depth) T(n_seq) / T(n_seq (depth + 1)), where T is the slowest tier's time of a forecast.  1 and depth 0 when
 * that is nothing. */
double eng_plan_gain(const struct eng_setting *s, int n_seq, const double *survival /* [most] */, int most, int *depth);

/* ---- the split for a model on this machine ------------------------------------------------------ */

struct eng_extra {                              /* bytes, of a drafter */
    size_t weights, step;
    size_t slot, kept;                          /* for each position of KV, of which `kept` stays when it goes */
    int n_moe_layer;                            /* its own, whose experts are in the model's store */
};

/* A drafter's memory becomes room for experts; expert_bytes: of all experts. */
void eng_split_return(struct eng_split *split, const struct eng_extra *drafter, size_t expert_bytes);

struct eng_use {
    const struct moe_file *file;
    const struct moe_model *model;              /* opened */
    struct moe_context_options context;         /* but for n_slot; n_state 0: none is kept */
    int n_parallel;
    size_t host_mem, kv_mem;                    /* 0: what is free; what is sound */
    size_t reserved_bytes;                               /* of host_mem, what others in the process will take */
    struct eng_extra drafters;
    int n_ahead;                                /* positions that a draft takes beyond a context */
};

/* Everything small is there already and counts as it is; everything large comes after.  Says why not. */
int eng_budget(struct eng_split *out, const struct eng_use *use);

#endif
