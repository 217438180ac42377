/* engine/plan/plan.h - how a memory budget is split, and the speed to expect from the split.
 *
 *     memory_split.c    the split, as numbers (eng_plan_split) and for a model on this machine (eng_budget)
 *     pass_forecast.c   how long a pass takes
 *     disk_rate.c       read rate of a disk, measured outside the engine's own reads
 *     host_rate.c       rates of memory reads and multiply-adds
 *     product_rate.c    rates of matrix products in the model's formats
 *     fit_file.c        the cost model that `fit` measured, in a file
 *
 * The functions eng_plan_* take numbers and return numbers: they use no model, no machine and no clock. */
#ifndef ENGINE_PLAN_PLAN_H
#define ENGINE_PLAN_PLAN_H

#include "moe/moe.h"
#include "speculative/cost.h"

/* ---- the split --------------------------------------------------------------------------------- */

struct eng_need {         /* the memory that a model needs under given options */
    size_t fixed_bytes;   /* code, vocabulary, stacks, lists */
    size_t dense_bytes;   /* dense weights */
    size_t step_bytes;    /* a moe_context without its KV cache */
    size_t kv_slot_bytes; /* KV of one position */
    size_t state_bytes;   /* one kept recurrent state; 0: none are kept. The seats' states count in step_bytes */
    int n_ctx, n_parallel;
    size_t kv_mem;                     /* KV cache; 0: n_parallel contexts, or fewer: see memory_split.c */
    size_t expert_bytes, expert_least; /* all experts; the smallest expert cache that works */
    int n_expert;
};

/* The split of the memory of a device that has its own (kernels/device.h), in bytes: dense, step, kv, state, expert and
 * spare add up to total.  total 0: the model runs on the host. */
struct eng_device_split {
    size_t total, dense, step, kv, state, expert, spare;
    size_t least;   /* the smallest total that works */
    int n_resident; /* experts that the device can keep, beside those that it copies for one layer */
};

/* The split of a budget, in bytes: fixed, dense, step, kv, state, expert and spare add up to total. */
struct eng_split {
    size_t total, fixed, dense, step, kv, state, expert, spare;
    size_t least;                   /* the smallest total that works */
    size_t kv_least;                /* KV of one context */
    int n_kv_slot;                  /* positions that the KV cache holds, in whole blocks */
    int n_state;                    /* kept states, without the seats' states */
    int n_expert, n_resident;       /* all experts; of them, those that fit in `expert` bytes */
    struct eng_device_split device; /* total over 0: the parts above are those of the host alone */
};

/* Experts for which neither the host's memory nor the device's has room.  The device's slots for copies of one layer are no
 * room. */
static inline int eng_split_on_disk(const struct eng_split *s)
{
    return kn_max(0, s->n_expert - s->n_resident - (s->device.total ? s->device.n_resident : 0));
}

/* The share of expert bytes that passes read from disk. */
static inline double eng_split_disk_share(const struct eng_split *s)
{
    return s->n_expert ? (double)eng_split_on_disk(s) / s->n_expert : 0;
}

/* Whether the host's memory and the device's have room for all experts between them.  Passes may still read until each memory
 * has its experts. */
static inline bool eng_split_is_whole(const struct eng_split *s) { return !eng_split_on_disk(s); }

/* KN_ELIMIT: total is below `least`. KN_EINVAL: kv_mem is below the KV of one context. In both cases no message is
 * given, and only total, least and kv_least are valid. */
int eng_plan_split(struct eng_split *out, const struct eng_need *need, size_t total);

/* Splits the memory of a device; need: the needs of the device, its fixed_bytes and expert_least unused.  Sets out->device,
 * n_kv_slot and n_state.  Fails as eng_plan_split() does; the least is then out->device.least. */
int eng_plan_device(struct eng_split *out, const struct eng_need *need, size_t total);

/* The default context of a model with a context of n_own tokens, if n_fit fit: n_own, or the largest doubling of 8192
 * that fits, and at least 8192 or n_own. Doublings, so that a little more free memory gives the same context. */
int eng_plan_ctx(int n_own, size_t n_fit);

/* ---- the speed --------------------------------------------------------------------------------- */

/* Bytes of weights per second that products of 1, 2, 4, .. 32 rows read, by format: less than memory gives where decoding
 * or multiply-adds take longer, more if caches hold the weights. */
#define ENG_PRODUCT_ROWS 6
struct eng_products {
    double Bps[KN_FORMAT_COUNT][ENG_PRODUCT_ROWS];
};

struct eng_machine { /* bytes read per second from disk and from memory; int8 multiply-adds per second */
    double disk_Bps, dram_Bps, mac_ps;
    struct eng_products products;
};

struct eng_forecast { /* one decode pass: a row of each of n_row sequences */
    int n_row;
    double experts; /* distinct experts per layer, if the router uses all equally often */
    double misses;  /* experts read from disk, over all layers */
    double disk_bytes, dram_bytes, macs;
    double disk_s, dram_s, mac_s; /* disk reads, memory reads and multiply-adds, each alone */
    double pass_s, tokens_per_s;  /* expected time of the pass, and its speed */
    const char *bound_by;         /* "disk" if the pass waits for reads; else the longer of "dram" and "operations" */
};

struct eng_setting { /* a model, its memory split and the machine's rates */
    const struct moe_shape *shape;
    const struct eng_split *split;
    struct eng_machine machine;
    size_t kv_slot_bytes; /* KV of one position */
    int position;         /* tokens of KV that attention reads for each sequence */
};

void eng_plan_forecast(struct eng_forecast *out, const struct eng_setting *s, int n_row);

/* A decode pass where a device with memory of its own has the dense weights, the KV cache and the experts that split->device
 * has room for; the host computes the others, and none is copied. device_Bps: bytes per second that it reads of its memory.
 * By rates alone: no pass has been measured. */
struct eng_device_forecast {
    int n_row;
    double device_bytes, host_bytes, disk_bytes; /* read from each memory */
    double device_s, host_s, disk_s;             /* of each alone */
    double pass_s, tokens_per_s;
    const char *bound_by; /* "device", "host" or "disk" */
};
void eng_plan_device_forecast(struct eng_device_forecast *out, const struct eng_setting *s, double device_Bps,
                              int n_row);

/* Makes a cost model from the rates: the controller's first estimate of the time of passes. */
void eng_plan_cost(struct spec_cost_model *out, const struct eng_setting *s);

/* Returns the largest speedup that drafts could give n_seq sequences, and its draft length as *depth (1 to most), if a
 * draft is accepted up to its d-th token with probability survival[d - 1]. It is the maximum over depth of E(depth)
 * T(n_seq) / T(n_seq (depth + 1)), where E is the expected number of tokens per sequence and T(rows) the longest of
 * disk_s, dram_s and mac_s of a forecast. 1, and *depth 0, if no depth gains. */
double eng_plan_gain(const struct eng_setting *s, int n_seq, const double *survival /* [most] */, int most, int *depth);

/* ---- the split for a model on this machine ------------------------------------------------------ */

struct eng_extra { /* bytes that a drafter adds: to the host's memory, or to that of the target's device */
    size_t weights, step;
    size_t pass; /* of the weights, those that one pass reads; 0: all */
    size_t device_weights, device_step;
    size_t slot, kept; /* for each KV position; of these, `kept` bytes stay allocated after it is unloaded */
    int n_moe_layer;   /* layers of the drafter with experts in the target's store */
};

/* ---- chunks of prompts ------------------------------------------------------------------------ */

#define ENG_CHUNK      512  /* rows of a pass, where longer chunks gain nothing */
#define ENG_CHUNK_MOST 4096 /* and in any case */

struct eng_chunk_need {
    size_t room;                      /* memory of a device for experts, beside a pass of ENG_CHUNK rows */
    size_t expert_bytes;              /* memory for all experts that the device may keep */
    size_t host_room;                 /* memory of the host */
    size_t row_bytes, host_row_bytes; /* buffers of a further row of a pass, on the device and on the host */
    size_t n_token;                   /* tokens of prompts that may be computed at once */
};

/* The rows of a pass if the user sets no number. Where a device lacks experts, each chunk of a prompt copies them, or the
 * host computes them: a chunk of twice as many rows takes little longer. So chunks are as long as memory allows. */
int eng_plan_chunk(const struct eng_chunk_need *need);

/* ---- rows of drafts ------------------------------------------------------------------------------ */

/* The memory that the buffers of drafted rows may take: half of the free memory, since drafters need some too, and a small
 * part of the memory that the missing experts would need and of the KV cache beyond one context, so that passes slow down
 * little and few users lose their KV cache.  bare: the split of `need` without drafts; of the device, if it has its own
 * memory. */
size_t eng_plan_draft_room(const struct eng_split *bare, const struct eng_need *need);

/* The host's bytes of a drafter's KV, with slot_bytes for a position; 0 with a device that has its own memory. */
size_t eng_split_kv_bytes(const struct eng_split *split, size_t slot_bytes);

/* Moves the memory of a drafter to the experts' part when it is unloaded, or back from it; its `slot` must exclude the bytes
 * that stay allocated.  expert_bytes: all experts of the model. */
void eng_split_move(struct eng_split *split, const struct eng_extra *drafter, size_t expert_bytes, bool to_experts);

struct eng_use { /* the input of eng_budget() */
    const struct moe_file *file;
    const struct moe_model *model;      /* opened; its weights need not be loaded */
    struct moe_context_options context; /* as it will be opened; n_slot is ignored; n_state 0: no states are kept */
    int n_parallel;
    size_t device_mem;       /* of a device with memory of its own; 0: its free memory, less a margin */
    size_t host_mem, kv_mem; /* host_mem 0: the free memory, less a margin; kv_mem 0: as eng_need.kv_mem */
    size_t reserved_bytes;   /* part of host_mem that other code will allocate */
    size_t (*reserve_of)(const void *arg, size_t host_mem); /* as in struct eng_options */
    const void *reserve_arg;
    struct eng_extra drafters; /* all together */
    int n_ahead;               /* positions that a draft needs behind a full context */
    bool retries;              /* if it does not fit, the caller tries smaller buffers: no message then */
};

/* The context of a model where the user chose none: eng_plan_ctx() with the contexts that fit for each of n_parallel
 * sequences in half of the memory that is left beside the weights with all experts (on a device: beside the dense
 * weights), or in kv_mem if it is set. So a longer context takes no memory from experts of the host. */
int eng_default_ctx(const struct moe_model *model, enum kn_kv kv, int n_parallel, size_t host_mem, size_t device_mem,
                    size_t kv_mem, size_t reserved_bytes);

/* The rows of a pass where the user chose none: eng_plan_chunk() for a device with memory of its own, else ENG_CHUNK.  use: with
 * drafters and context.max_row still unknown. */
int eng_default_chunk(const struct eng_use *use);

/* The most drafted rows that eng_plan_draft_room() allows in a pass.  use: without drafters, and with a context without drafts;
 * beside: bytes that a drafted row takes in the buffers of the drafters' own passes. */
int eng_affordable_draft_rows(const struct eng_use *use, size_t beside);

/* Splits the budget. Call it when the small parts (vocabulary, sessions, samplers) are allocated, since it measures
 * them, and before the large parts are. KN_ELIMIT if the budget is too small; a message says which option to change. */
int eng_budget(struct eng_split *out, const struct eng_use *use);

#endif
