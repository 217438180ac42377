/* The budget for a model on this machine: what it asks for, how much there is, and who refuses.
 *
 * What is small is measured when it is there: file header, vocabulary, sessions.  What comes later and is
 * not asked for by size is a round figure above what was measured: FIXED is code and libraries as far as
 * they are touched, the kernel's part and the reading threads; a worker takes its stacks; an expert a
 * line in the store's lists.  The header has gone through the page cache, which a cgroup counts as well. */
#include "engine/internal.h"

#include <stdio.h>

#define MIB          ((size_t)1 << 20)
#define FIXED        (16 * MIB)
#define PER_THREAD   (MIB / 4)
#define PER_EXPERT   1024
#define FEW_ROWS     128                        /* a pass of no more takes little room for them */
#define LEAST_MARGIN (256 * MIB)                /* of what is free, to others: this, or a twentieth */

static size_t mib(size_t bytes) { return (bytes + MIB - 1) / MIB; }     /* what is asked for is enough */

static void ask(struct eng_need *need, const struct eng_use *use)
{
    const struct moe_shape *s = moe_model_shape(use->model);
    struct moe_context_options one = use->context;
    int n_expert = s->n_expert_total + s->n_expert_ahead;
    one.n_slot = 1;
    size_t slot = moe_kv_slot_bytes(use->model, one.kv) + ENG_KV_SLOT_BYTES + use->drafters.slot;
    *need = (struct eng_need){
        .fixed_bytes = FIXED + use->aside + (size_t)kn_team_size(one.team) * PER_THREAD +
                       (size_t)n_expert * PER_EXPERT + kn_alloc_bytes() + (size_t)moe_file_header_bytes(use->file),
        .dense_bytes = s->dense_bytes + use->drafters.weights,
        .step_bytes = moe_context_bytes(use->model, &one) + use->drafters.step,
        .kv_slot_bytes = slot, .state_bytes = one.n_state ? s->state_bytes : 0,
        .n_ctx = one.max_pos + use->n_ahead, .n_parallel = use->n_parallel, .kv_mem = use->kv_mem,
        .expert_bytes = s->expert_bytes, .expert_least = s->expert_least, .n_expert = n_expert,
    };
}

static const char *what_to_lower(const struct eng_need *need, const struct eng_use *use, size_t kv)
{
    if (need->step_bytes > kv && use->context.max_row > FEW_ROWS)
        return "--chunk";
    if (use->kv_mem)
        return "--kv-mem";
    return need->state_bytes && use->n_parallel > 1 ? "--parallel" : "--ctx-size";
}

static int refuse(const struct eng_split *split, const struct eng_need *need, const struct eng_use *use)
{
    /* a run differs from the next by a few pages: one MiB more, and what is asked for is enough */
    size_t least = mib(split->least) + 1, kv = use->kv_mem ? use->kv_mem : split->kv_least;
    const char *shrink = what_to_lower(need, use, kv);
    char parts[256];
    snprintf(parts, sizeof parts, "weights of every token %zu MiB, experts at least %zu, keys and values %zu, "
             "buffers %zu, the program %zu", mib(need->dense_bytes), mib(need->expert_least), mib(kv),
             mib(need->step_bytes), mib(need->fixed_bytes));
    if (use->host_mem)
        return kn_fail(KN_ELIMIT, "%s does not go into %zu MiB (%s): raise --host-mem to %zuM, or lower %s",
                       moe_file_path(use->file), split->total / MIB, parts, least, shrink);
    return kn_fail(KN_ELIMIT, "%s does not go into the %zu MiB that this machine can spare (%s): free memory, "
                   "lower %s, or say what may be taken, at least --host-mem %zuM", moe_file_path(use->file),
                   split->total / MIB, parts, shrink, least);
}

int eng_budget(struct eng_split *out, const struct eng_use *use)
{
    struct kn_machine machine;
    struct eng_need need;
    kn_machine_get(&machine);
    size_t left = machine.available_bytes, margin = left / 20 > LEAST_MARGIN ? left / 20 : LEAST_MARGIN;
    size_t total = use->host_mem ? use->host_mem : left > margin ? left - margin : 0;
    ask(&need, use);
    int error = eng_plan_split(out, &need, total);
    if (error == KN_EINVAL)
        return kn_fail(KN_ELIMIT, "one context of %d tokens takes %zu MiB of keys and values: raise --kv-mem "
                       "to %zuM, or lower --ctx-size", use->context.max_pos, mib(out->kv_least), mib(out->kv_least));
    if (error)
        return refuse(out, &need, use);
    if (out->total - out->spare > left)
        kn_say(KN_LOG_WARN, "%zu MiB are wanted and %zu MiB are free: this may swap, or be killed",
               mib(out->total - out->spare), left / MIB);
    return 0;
}
