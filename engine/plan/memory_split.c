/* engine/plan/memory_split.c - how the memory budget is split among weights, buffers, KV cache, kept states and
 * experts.
 *
 * eng_plan_split() works on numbers alone. It gives the parts that every pass needs (fixed, dense, step) in full; then,
 * to a model with recurrent layers, kept states of at most a tenth of the memory left (but one if it fits at all); then
 * the KV cache: need.kv_mem if it is set, else n_parallel contexts, but at most the largest of 30 % of the memory left,
 * the memory left beside all experts, and one context. Experts get the memory that is then left. Page tables take one
 * byte in 512 of all mapped memory and count as fixed.
 *
 * eng_budget() finds the numbers for a model on this machine. Small parts are allocated when it is called, and are
 * measured: vocabulary, sessions, samplers. Parts that are allocated later and have no exact size are round figures,
 * above the sizes that were measured: FIXED_BYTES covers the touched pages of code and libraries, the kernel's memory
 * for the process and the reading threads; BYTES_PER_THREAD the stack of a worker thread; BYTES_PER_EXPERT an expert's
 * entries in the store's lists. The file header counts too: it was read through the page cache, which a cgroup counts
 * as used.
 *
 * On a device with memory of its own the dense weights, the KV cache, states and most buffers lie there. Its memory is
 * split first (eng_plan_device); the host then needs a few bytes for each KV slot, and has the experts. */
#include "engine/plan/plan.h"
#include "engine/kv/kv.h"

#include <stdio.h>

#define BYTES_PER_TABLE_BYTE  512 /* page tables: 8 bytes for a page of 4 KiB */
#define MIB                   ((size_t)1 << 20)
#define FIXED_BYTES           (16 * MIB)
#define BYTES_PER_THREAD      (MIB / 4)
#define BYTES_PER_EXPERT      1024
#define DRIVER_BYTES          (128 * MIB) /* memory of the host that a device's driver takes: an estimate */
#define USUAL_CTX             8192
#define SMALL_CHUNK_ROWS      128 /* with so few rows --chunk is not suggested: a pass's buffers are small already */
#define CHUNK_MISSES_PART     16  /* longer chunks take memory from experts: the missing ones grow by one in so many, */
#define CHUNK_ROOM_PART       2   /* and those that are kept shrink by one in so many, at most */
#define HOST_PART             32  /* of the host's memory, for the buffers of a device's longer chunks, and of drafts */
#define CHUNK_STEP            64
#define DRAFTS_PART           32 /* drafted rows may take one part in so many of the missing experts' memory, and of KV */
#define ROWS_TO_MEASURE       64          /* of drafts: buffers are rounded up, so one row tells little */
#define MIN_FREE_MARGIN_BYTES (256 * MIB) /* free memory left to other programs: this or a twentieth, the larger */

/* ---- the split ---------------------------------------------------------------------------------------------- */

static size_t least_of(size_t a, size_t b) { return a < b ? a : b; }
static size_t most_of(size_t a, size_t b) { return a > b ? a : b; }

/* n bytes and their page tables, rounded up. */
static size_t with_tables(size_t n) { return n + (n + BYTES_PER_TABLE_BYTE - 1) / BYTES_PER_TABLE_BYTE; }

/* The bytes of the KV cache, if `room` bytes are left for it and the experts; one: KV of one context. */
static size_t kv_wish(const struct eng_need *need, size_t room, size_t one)
{
    if (need->kv_mem)
        return need->kv_mem;
    size_t beside = room > need->expert_bytes ? room - need->expert_bytes : 0;
    return least_of((size_t)need->n_parallel * one, most_of(one, most_of(room / 10 * 3, beside)));
}

/* The number of kept states: two for each parallel sequence, at its end and near the end of its prompt, and two for
 * common prefixes. They take at most a tenth of `room`, but there is at least one if it fits beside `always` bytes: the
 * smallest KV cache and the smallest expert cache. */
static int n_state(const struct eng_need *need, size_t room, size_t always)
{
    if (!need->state_bytes || room < always + need->state_bytes)
        return 0;
    size_t most = most_of(least_of(room / 10, room - always) / need->state_bytes, 1);
    return (int)least_of(2 * (size_t)need->n_parallel + 2, most);
}

int eng_plan_split(struct eng_split *out, const struct eng_need *need, size_t total)
{
    size_t block = ENG_KV_BLOCK * need->kv_slot_bytes;
    size_t one = kn_align_up((size_t)need->n_ctx, ENG_KV_BLOCK) * need->kv_slot_bytes;
    size_t kv_least = need->kv_mem ? need->kv_mem : one, always = need->dense_bytes + need->step_bytes;
    *out = (struct eng_split){ .total = total, .kv_least = one, .n_expert = need->n_expert };
    out->least = need->fixed_bytes + with_tables(always + kv_least + need->expert_least);
    if (kv_least < one)
        return KN_EINVAL;
    if (total < out->least)
        return KN_ELIMIT;

    size_t room = (total - need->fixed_bytes) / (BYTES_PER_TABLE_BYTE + 1) * BYTES_PER_TABLE_BYTE;
    room = room > always ? room - always : 0; /* rounded down: a few bytes fewer than `least` allows */
    room = most_of(room, kv_least + need->expert_least);
    out->n_state = n_state(need, room, kv_least + need->expert_least);
    out->state = (size_t)out->n_state * need->state_bytes;
    room -= out->state;
    size_t n_block = least_of(kv_wish(need, room, one) / block, INT32_MAX / 2 / ENG_KV_BLOCK);
    out->n_kv_slot = (int)n_block * ENG_KV_BLOCK;
    out->kv = n_block * block;
    out->dense = need->dense_bytes;
    out->step = need->step_bytes;
    out->expert = least_of(need->expert_bytes, room - out->kv);
    if (need->n_expert)
        out->n_resident = (int)((double)out->expert / (double)need->expert_bytes * need->n_expert);
    size_t mapped = always + out->kv + out->state + out->expert;
    out->fixed = need->fixed_bytes + (with_tables(mapped) - mapped);
    size_t taken = out->fixed + mapped;
    out->spare = total > taken ? total - taken : 0;
    return 0;
}

int eng_plan_device(struct eng_split *out, const struct eng_need *need, size_t total)
{
    struct eng_need all = *need;
    struct eng_split s;
    all.fixed_bytes = all.expert_least = 0;
    int error = eng_plan_split(&s, &all, total);
    out->device = (struct eng_device_split){ .total = total, .least = s.least };
    out->kv_least = s.kv_least;
    if (error)
        return error;
    out->n_kv_slot = s.n_kv_slot;
    out->n_state = s.n_state;
    out->device.dense = s.dense;
    out->device.step = s.step;
    out->device.kv = s.kv;
    out->device.state = s.state;
    out->device.expert = s.expert;
    out->device.n_resident = s.n_resident;
    out->device.spare = total - s.dense - s.step - s.kv - s.state - s.expert;
    return 0;
}

int eng_plan_ctx(int n_own, size_t n_fit)
{
    size_t n = USUAL_CTX;
    while (2 * n <= n_fit && n < (size_t)n_own)
        n *= 2;
    return n_fit >= (size_t)n_own || n > (size_t)n_own ? n_own : (int)n;
}

int eng_plan_chunk(const struct eng_chunk_need *need)
{
    if (need->room >= need->expert_bytes || !need->row_bytes)
        return ENG_CHUNK;
    size_t spare = least_of((need->expert_bytes - need->room) / CHUNK_MISSES_PART, need->room / CHUNK_ROOM_PART);
    size_t more = spare / need->row_bytes;
    if (need->host_row_bytes)
        more = least_of(more, need->host_room / HOST_PART / need->host_row_bytes);
    size_t rows = least_of(least_of(ENG_CHUNK + more, ENG_CHUNK_MOST), need->n_token);
    return (int)most_of(rows / CHUNK_STEP * CHUNK_STEP, ENG_CHUNK);
}

size_t eng_plan_draft_room(const struct eng_split *bare, const struct eng_need *need)
{
    const struct eng_device_split *d = &bare->device;
    size_t expert = d->total ? d->expert : bare->expert, kv = d->total ? d->kv : bare->kv;
    size_t missing = need->expert_bytes > expert ? need->expert_bytes - expert : 0;
    size_t beyond = !need->kv_mem && kv > bare->kv_least ? kv - bare->kv_least : 0;
    return (d->total ? d->spare : bare->spare) / 2 + missing / DRAFTS_PART + beyond / DRAFTS_PART;
}

size_t eng_split_kv_bytes(const struct eng_split *split, size_t slot_bytes)
{
    return split->device.total ? 0 : slot_bytes * (size_t)split->n_kv_slot;
}

static void move(size_t *from, size_t *to, size_t bytes)
{
    *from -= bytes;
    *to += bytes;
}

void eng_split_move(struct eng_split *split, const struct eng_extra *drafter, size_t expert_bytes, bool to_experts)
{
    size_t bytes[] = { drafter->weights, drafter->step, eng_split_kv_bytes(split, drafter->slot) };
    size_t *part[] = { &split->dense, &split->step, &split->kv };
    for (int i = 0; i < 3; i++)
        move(to_experts ? part[i] : &split->expert, to_experts ? &split->expert : part[i], bytes[i]);
    split->n_resident = kn_min(split->n_expert, (int)((double)split->expert / (double)expert_bytes * split->n_expert));
}

/* ---- for a model on this machine ---------------------------------------------------------------------------- */

/* Rounded up, so that a budget of this size is enough. */
static size_t mib(size_t bytes) { return (bytes + MIB - 1) / MIB; }

static bool is_apart(const struct moe_model *m) { return moe_model_device(m)->backend->own_memory; }

/* The needs of the device's memory, as if it were the host. */
static void ask_device(struct eng_need *need, const struct eng_use *use)
{
    const struct moe_shape *s = moe_model_shape(use->model);
    struct moe_context_options one = use->context;
    struct moe_device_slots slots;
    one.resident_bytes = s->device_expert_bytes; /* for the lists of the experts that it may keep */
    moe_device_slots(use->model, &one, &slots);
    one.n_slot = 1;
    *need = (struct eng_need){
        .dense_bytes = s->dense_bytes + use->drafters.device_weights,
        .step_bytes = moe_context_bytes(use->model, &one).device - slots.bytes + use->drafters.device_step,
        .kv_slot_bytes = moe_kv_slot_bytes(use->model, one.kv) + use->drafters.slot,
        .state_bytes = one.n_state ? s->state_bytes : 0,
        .n_ctx = one.max_pos + use->n_ahead,
        .n_parallel = use->n_parallel,
        .kv_mem = use->kv_mem,
        .expert_bytes = slots.expert_bytes,
        .n_expert = slots.n_expert,
    };
}

static void ask(struct eng_need *need, const struct eng_use *use)
{
    const struct moe_shape *s = moe_model_shape(use->model);
    struct moe_context_options one = use->context;
    int n_expert = s->n_expert_total + s->n_expert_ahead;
    one.n_slot = 1;
    one.resident_bytes =
        s->device_expert_bytes; /* for the lists of the experts that a device may keep, and its copies */
    size_t slot = moe_kv_slot_bytes(use->model, one.kv) + ENG_KV_SLOT_BYTES + use->drafters.slot;
    *need = (struct eng_need){
        .fixed_bytes = FIXED_BYTES + use->reserved_bytes + (size_t)kn_team_size(one.team) * BYTES_PER_THREAD +
                       (size_t)n_expert * BYTES_PER_EXPERT + kn_alloc_bytes() +
                       (size_t)moe_file_header_bytes(use->file),
        .dense_bytes = s->dense_bytes + use->drafters.weights,
        .step_bytes = moe_context_bytes(use->model, &one).host + use->drafters.step,
        .kv_slot_bytes = slot,
        .state_bytes = one.n_state ? s->state_bytes : 0,
        .n_ctx = one.max_pos + use->n_ahead,
        .n_parallel = use->n_parallel,
        .kv_mem = use->kv_mem,
        .expert_bytes = s->expert_bytes,
        .expert_least = s->expert_least,
        .n_expert = n_expert,
    };
}

/* The flag that saves most memory if the user lowers it; kv: bytes of the KV cache. */
static const char *flag_to_lower(const struct eng_need *need, const struct eng_use *use, size_t kv)
{
    if (need->step_bytes > kv && use->context.max_row > SMALL_CHUNK_ROWS)
        return "--chunk";
    if (use->kv_mem)
        return "--kv-mem";
    return need->state_bytes && use->n_parallel > 1 ? "--parallel" : "--ctx-size";
}

static int refuse_device(const struct eng_split *split, const struct eng_need *need, const struct eng_use *use)
{
    size_t kv = use->kv_mem ? use->kv_mem : split->kv_least;
    if (use->retries)
        return KN_ELIMIT;
    return kn_fail(
        KN_ELIMIT,
        "%s does not fit in %zu MiB of device memory (dense weights %zu MiB, KV cache %zu, buffers %zu): set "
        "--device-mem to %zuM if the device has them, lower %s, or leave --device out",
        moe_file_path(use->file), split->device.total / MIB, mib(need->dense_bytes), mib(kv), mib(need->step_bytes),
        mib(split->device.least), flag_to_lower(need, use, kv));
}

static int refuse(const struct eng_split *split, const struct eng_need *need, const struct eng_use *use)
{
    /* the measured parts differ by a few pages between runs: 1 MiB more is always enough */
    size_t least = mib(split->least) + 1;
    size_t kv = need->kv_mem ? need->kv_mem : split->kv_least;
    const char *shrink = flag_to_lower(need, use, kv);
    char parts[256];
    if (use->retries)
        return KN_ELIMIT;
    snprintf(parts, sizeof parts,
             "dense weights %zu MiB, experts at least %zu, KV cache %zu, "
             "buffers %zu, the program %zu",
             mib(need->dense_bytes), mib(need->expert_least), mib(kv), mib(need->step_bytes), mib(need->fixed_bytes));
    if (use->host_mem)
        return kn_fail(KN_ELIMIT, "%s does not fit in %zu MiB (%s): raise --host-mem to %zuM, or lower %s",
                       moe_file_path(use->file), split->total / MIB, parts, least, shrink);
    return kn_fail(KN_ELIMIT,
                   "%s does not fit in the %zu MiB that this machine can spare (%s): free memory, "
                   "lower %s, or set a budget of at least --host-mem %zuM",
                   moe_file_path(use->file), split->total / MIB, parts, shrink, least);
}

/* The budget if the user gave none, of `left` free bytes. */
static size_t free_budget(size_t left)
{
    size_t margin = left / 20 > MIN_FREE_MARGIN_BYTES ? left / 20 : MIN_FREE_MARGIN_BYTES;
    return left > margin ? left - margin : 0;
}

/* The budget of a device with `left` free bytes if the user gave none: a twentieth is left, since the driver takes some for
 * each process, and a desktop. */
static size_t free_device_budget(size_t left) { return left - left / 20; }

static size_t device_budget(const struct eng_use *use)
{
    return use->device_mem ? use->device_mem : free_device_budget(kn_device_free_bytes(moe_model_device(use->model)));
}

static size_t host_budget(const struct eng_use *use)
{
    struct kn_machine machine;
    if (use->host_mem)
        return use->host_mem;
    kn_machine_get(&machine);
    return free_budget(machine.available_bytes);
}

int eng_default_chunk(const struct eng_use *use)
{
    struct eng_use few = *use;
    struct eng_need need;
    struct eng_split split;
    struct kn_bytes bytes[2];
    if (!is_apart(use->model))
        return ENG_CHUNK;
    for (int i = 0; i < 2; i++) {
        few.context.max_row = i ? ENG_CHUNK : ENG_CHUNK_MOST;
        few.context.n_slot = 1;
        bytes[i] = moe_context_bytes(use->model, &few.context);
    }
    ask_device(&need, &few);
    if (eng_plan_device(&split, &need, device_budget(use)))
        return ENG_CHUNK; /* eng_budget() prints the refusal */
    return eng_plan_chunk(&(struct eng_chunk_need){
        .room = split.device.expert,
        .expert_bytes = need.expert_bytes,
        .row_bytes = (bytes[0].device - bytes[1].device) / (ENG_CHUNK_MOST - ENG_CHUNK),
        .host_room = host_budget(use),
        .host_row_bytes = (bytes[0].host - bytes[1].host) / (ENG_CHUNK_MOST - ENG_CHUNK),
        .n_token = (size_t)use->n_parallel * (size_t)use->context.max_pos,
    });
}

int eng_affordable_draft_rows(const struct eng_use *use, size_t beside)
{
    struct moe_context_options with = use->context;
    struct eng_need need;
    struct eng_split bare = { .total = 0 };
    with.max_row += ROWS_TO_MEASURE;
    with.max_want += ROWS_TO_MEASURE;
    with.n_draft += ROWS_TO_MEASURE;
    struct kn_bytes none = moe_context_bytes(use->model, &use->context), more = moe_context_bytes(use->model, &with);
    bool apart = is_apart(use->model);
    int error = 0;
    if (apart) {
        ask_device(&need, use);
        error = eng_plan_device(&bare, &need, device_budget(use));
    } else {
        ask(&need, use);
        error = eng_plan_split(&bare, &need, host_budget(use));
    }
    if (error)
        return 0; /* eng_budget() prints the refusal */
    size_t on_host = (more.host - none.host) / ROWS_TO_MEASURE,
           on_device = (more.device - none.device) / ROWS_TO_MEASURE;
    size_t n = eng_plan_draft_room(&bare, &need) / most_of((apart ? on_device : on_host) + beside, 1);
    if (apart)
        n = least_of(n, host_budget(use) / HOST_PART / most_of(on_host, 1));
    return (int)least_of(n, INT32_MAX);
}

static int refuse_kv(size_t kv_least, const struct eng_use *use)
{
    if (use->retries)
        return KN_ELIMIT;
    return kn_fail(KN_ELIMIT,
                   "one context of %d tokens takes %zu MiB of KV cache: raise --kv-mem to %zuM, or lower --ctx-size",
                   use->context.max_pos, mib(kv_least), mib(kv_least));
}

/* The smallest budget in whole MiB, from one that is too small for it, that leaves so many bytes for experts. */
static size_t device_budget_for(const struct eng_need *need, size_t total, size_t expert_bytes)
{
    struct eng_split s;
    while (!eng_plan_device(&s, need, total) && s.device.expert < expert_bytes)
        total = mib(total + expert_bytes - s.device.expert) * MIB;
    return total;
}

/* Of the memory left for experts whole slots of each size are used. */
static void count_device_slots(struct eng_device_split *d, const struct eng_need *need, const struct eng_use *use)
{
    struct moe_context_options one = use->context;
    struct moe_device_slots slots;
    one.resident_bytes = d->expert;
    moe_device_slots(use->model, &one, &slots);
    if (slots.n_expert && !slots.n_slot)
        kn_say(
            KN_LOG_WARN,
            "the device keeps no experts: %.1f MiB of its memory are left for them, and one of each size takes %.1f: set "
            "--device-mem to %zuM, with --ctx-size %d, if the device has them",
            (double)d->expert / 0x1p20, (double)slots.least / 0x1p20,
            mib(device_budget_for(need, d->total, slots.least)), one.max_pos);
    d->spare += d->expert - slots.bytes;
    d->expert = slots.bytes;
    d->n_resident = slots.n_stay;
}

/* Splits the device's memory, and changes the host's needs: of the KV cache it has the slots' entries only. */
static int split_device(struct eng_split *split, struct eng_need *host, const struct eng_use *use)
{
    struct eng_need need;
    size_t left = kn_device_free_bytes(moe_model_device(use->model));
    if (use->device_mem > left && use->retries)
        return KN_ELIMIT;
    if (use->device_mem > left)
        return kn_fail(KN_ELIMIT,
                       "the device has %zu MiB of free memory: set --device-mem to at most that, or leave it out",
                       left / MIB);
    ask_device(&need, use);
    int error = eng_plan_device(split, &need, device_budget(use));
    if (error)
        return error == KN_EINVAL ? refuse_kv(split->kv_least, use) : refuse_device(split, &need, use);
    count_device_slots(&split->device, &need, use);
    const struct moe_shape *s = moe_model_shape(use->model);
    host->fixed_bytes += DRIVER_BYTES + s->vector_bytes + use->drafters.device_weights; /* loaded beside experts */
    host->dense_bytes = use->drafters.weights;
    host->expert_least = most_of(host->expert_least, s->dense_bytes); /* which pass through before experts come */
    host->state_bytes = 0;
    host->kv_slot_bytes = ENG_KV_SLOT_BYTES;
    host->kv_mem = (size_t)split->n_kv_slot * ENG_KV_SLOT_BYTES;
    return 0;
}

int eng_default_ctx(const struct moe_model *model, enum kn_kv kv, int n_parallel, size_t host_mem, size_t device_mem,
                    size_t kv_mem, size_t reserved_bytes)
{
    const struct moe_shape *s = moe_model_shape(model);
    struct kn_machine machine;
    kn_machine_get(&machine);
    size_t total = host_mem ? host_mem : free_budget(machine.available_bytes);
    size_t taken = FIXED_BYTES + reserved_bytes + s->dense_bytes + s->expert_bytes;
    if (is_apart(model)) {
        total = device_mem ? device_mem : free_device_budget(kn_device_free_bytes(moe_model_device(model)));
        taken = s->dense_bytes;
    }
    size_t share = kv_mem ? kv_mem : total > taken ? (total - taken) / 2 : 0;
    size_t slot = moe_kv_slot_bytes(model, kv) + ENG_KV_SLOT_BYTES;
    return eng_plan_ctx(s->n_ctx_train, share / slot / (size_t)kn_max(1, n_parallel));
}

/* The smallest budget that works; `least` would be it if every budget reserved as much memory as this one. Each step adds the
 * memory that the sum so far reserves, until the sum no longer grows. */
static size_t least_budget(size_t least, const struct eng_use *use)
{
    if (!use->reserve_of)
        return least;
    size_t rest = least - use->reserved_bytes, sum = rest;
    for (size_t next; (next = rest + use->reserve_of(use->reserve_arg, sum)) > sum;)
        sum = next;
    return sum;
}

int eng_budget(struct eng_split *out, const struct eng_use *use)
{
    struct kn_machine machine;
    struct eng_need need;
    kn_machine_get(&machine);
    size_t left = machine.available_bytes, total = use->host_mem ? use->host_mem : free_budget(left);
    struct eng_split on_device = { .n_state = 0 };
    bool apart = is_apart(use->model);
    ask(&need, use);
    int error = apart ? split_device(&on_device, &need, use) : 0;
    if (error)
        return error;
    error = eng_plan_split(out, &need, total);
    out->least = least_budget(out->least, use);
    if (error)
        return error == KN_EINVAL ? refuse_kv(out->kv_least, use) : refuse(out, &need, use);
    if (apart) {
        out->device = on_device.device;
        out->n_state = on_device.n_state;
    }
    if (out->total - out->spare > left)
        kn_say(KN_LOG_WARN, "%zu MiB are needed and %zu MiB are free: the machine may swap, or kill this process",
               mib(out->total - out->spare), left / MIB);
    return 0;
}
