/* engine/plan/plan.h - how a memory budget is split, and the speed to expect from the split.
 *
 *     memory_split.c    the split, as numbers (eng_plan_split) and for a model on this machine (eng_budget)
 *     pass_forecast.c   how long a pass takes
 *     disk_rate.c       read rate of a disk, measured outside the engine's own reads
 *     host_rate.c       rates of memory reads and multiply-adds
 *     fit_file.c        the cost model that `fit` measured, in a file
 *
 * The functions eng_plan_* take numbers and return numbers: they use no model, no machine and no clock. */
#ifndef ENGINE_PLAN_H
#define ENGINE_PLAN_H

#include "moe/moe.h"
#include "speculative/cost.h"

/* ---- the split --------------------------------------------------------------------------------- */

struct eng_need {       /* the needs of a model under given options */
    size_t fixed_bytes; /* code, vocabulary, stacks, lists */
    size_t dense_bytes;
    size_t step_bytes;    /* a context without its KV */
    size_t kv_slot_bytes; /* of one position */
    size_t state_bytes;   /* of one kept state; 0: no states. Working states count in step_bytes */
    int n_ctx, n_parallel;
    size_t kv_mem;                     /* 0: n_parallel * n_ctx, within the limits of memory_split.c */
    size_t expert_bytes, expert_least; /* all experts; the smallest cache that works */
    int n_expert;
};

/* The split of the budget: the parts and `spare` add up to total. */
struct eng_split {
    size_t total, fixed, dense, step, kv, state, expert, spare;
    size_t least;             /* the smallest total that works */
    size_t kv_least;          /* KV of one context */
    int n_kv_slot;            /* positions that the KV cache holds, in whole blocks */
    int n_state;              /* kept states, beside the working states of seats */
    int n_expert, n_resident; /* experts; of them, those that fit in memory */
};

/* KN_ELIMIT: total is below `least`. KN_EINVAL: kv_mem is below the KV of one context. In both cases no message is
 * given, and only total, least and kv_least are valid. */
int eng_plan_split(struct eng_split *out, const struct eng_need *need, size_t total);

/* ---- the speed --------------------------------------------------------------------------------- */

struct eng_machine {
    double disk_Bps, dram_Bps, mac_ps;
};

struct eng_forecast { /* one decode pass over n_row sequences */
    int n_row;
    double experts; /* distinct experts per layer, if the router is even */
    double misses;  /* experts read from disk, over all layers */
    double disk_bytes, dram_bytes, macs;
    double disk_s, dram_s, mac_s; /* time of each tier alone */
    double pass_s, tokens_per_s;  /* time of all together */
    const char *bound_by;         /* "disk", "dram", "operations" */
};

struct eng_setting { /* a model, its memory split and the machine's rates */
    const struct moe_shape *shape;
    const struct eng_split *split;
    struct eng_machine machine;
    size_t kv_slot_bytes; /* of one position */
    int position;         /* tokens of KV that attention reads for each sequence */
};

void eng_plan_forecast(struct eng_forecast *out, const struct eng_setting *s, int n_row);

/* The controller's first estimate of the time of passes: a cost model with the same terms, for sequences with KV
 * that is small beside the weights. */
void eng_plan_cost(struct spec_cost_model *out, const struct eng_setting *s);

/* The largest speedup that drafts could give n_seq sequences, by bytes and operations, if a draft is accepted to
 * depth d with probability survival[d - 1]: the maximum over depth of E(depth) T(n_seq) / T(n_seq (depth + 1)), where
 * E is the expected number of tokens and T the slowest tier's time of a forecast. 1, and *depth 0, if no depth
 * gains. */
double eng_plan_gain(const struct eng_setting *s, int n_seq, const double *survival /* [most] */, int most, int *depth);

/* ---- the split for a model on this machine ------------------------------------------------------ */

struct eng_extra { /* bytes of a drafter */
    size_t weights, step;
    size_t slot, kept; /* for each KV position; `kept` of it stays after unloading */
    int n_moe_layer;   /* its layers with experts in the target's store */
};

/* An unloaded drafter's memory is added to the expert cache; expert_bytes: size of all experts. */
void eng_split_return(struct eng_split *split, const struct eng_extra *drafter, size_t expert_bytes);

struct eng_use {
    const struct moe_file *file;
    const struct moe_model *model;      /* described; its weights need not be loaded */
    struct moe_context_options context; /* n_slot is ignored; n_state 0: no kept states */
    int n_parallel;
    size_t host_mem, kv_mem; /* 0: free memory; 0: as eng_need.kv_mem */
    size_t reserved_bytes;   /* part of host_mem that other code will allocate */
    struct eng_extra drafters;
    int n_ahead; /* positions of a draft behind a full context */
};

/* Splits the budget. Small parts must be allocated already, and are measured; large parts are allocated later. If the
 * budget is too small, a message says which option to change. */
int eng_budget(struct eng_split *out, const struct eng_use *use);

#endif
