/* The arithmetic of `plan`: a budget's parts, and the time that a pass takes.
 *
 * The split goes down the list: what every pass needs comes first and whole; kept states, of a model that
 * has them, a tenth of what is left at most; KV takes what was asked for, or room for n_parallel contexts, but
 * at most 30 % of what is left then, or what experts leave over, or one context, whichever is most; experts get
 * the rest.  Of all that is mapped page tables take one byte in 512, which count as fixed.
 *
 * A pass takes the disk the bytes of missing experts over its rate, while the cores take the bytes touched
 * over the memory's rate and the multiply-adds over theirs, one after the other: a core that waits for
 * bytes does not multiply.  The slower of the two sets the pace.  An expert is there with the share of
 * experts that fit: an even router gives no cache a better chance than that. */
#include "engine/internal.h"

#include <math.h>

#define TABLES 512                              /* 8 bytes for a page of 4 KiB */

/* What decoding reaches of the rates that the probes reach, with 1 to 16 sequences wholly in memory: 0.85
 * to 0.90 of the sum of both times (evals/results/speed/speed-2026-11-20.md). */
#define OF_PROBES 0.88

/* And of sums alone, when rows are many: 318 to 370 G of 720 in Q4_K with 16 to 96 rows (ibid.). */
#define OF_SUMS 0.45

static size_t least_of(size_t a, size_t b) { return a < b ? a : b; }
static size_t most_of(size_t a, size_t b) { return a > b ? a : b; }

/* With page tables, and rounded up: (n + n / TABLES) is enough for n. */
static size_t with_tables(size_t n) { return n + (n + TABLES - 1) / TABLES; }

static size_t kv_wish(const struct eng_need *need, size_t room, size_t one)
{
    if (need->kv_mem)
        return need->kv_mem;
    size_t beside = room > need->expert_bytes ? room - need->expert_bytes : 0;
    return least_of((size_t)need->n_parallel * one, most_of(one, most_of(room / 10 * 3, beside)));
}

/* Two for each text at work, the end of its last turn and that of its prompt, and two for beginnings that many
 * have; at least one.  They take nothing from one context and the least of experts. */
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

    size_t room = (total - need->fixed_bytes) / (TABLES + 1) * TABLES;
    room = room > always ? room - always : 0;   /* may be a few bytes short of what `least` has rounded up */
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

void eng_plan_forecast(struct eng_forecast *out, const struct eng_setting *s, int n_row)
{
    const struct moe_shape *shape = s->shape;
    struct eng_forecast f = { .n_row = n_row };
    double expert = 0, positions = (double)n_row * s->position, used = 0;
    if (shape->n_expert) {
        expert = (double)shape->expert_file_bytes / shape->n_expert_total;
        f.experts = spec_cost_distinct(shape->n_expert, shape->n_used, n_row);
        used = f.experts * shape->n_moe_layer;
        f.misses = used * (1 - (double)s->split->n_resident / s->split->n_expert);
    }
    f.disk_bytes = f.misses * expert;
    f.dram_bytes = (double)shape->pass_bytes + used * expert + positions * (double)s->kv_slot_bytes +
                   2.0 * n_row * (double)shape->state_bytes;
    f.macs = n_row * shape->row_macs + positions * shape->position_macs;

    f.disk_s = f.disk_bytes > 0 ? f.disk_bytes / s->machine.disk_Bps : 0;
    f.dram_s = f.dram_bytes / s->machine.dram_Bps;
    f.mac_s = f.macs / s->machine.mac_ps;
    f.pass_s = (f.dram_s + f.mac_s) / OF_PROBES;
    f.bound_by = f.dram_s > f.mac_s ? "dram" : "operations";
    if (f.disk_s > f.pass_s) {
        f.pass_s = f.disk_s;
        f.bound_by = "disk";
    }
    f.tokens_per_s = n_row / f.pass_s;
    *out = f;
}

void eng_plan_cost(struct spec_cost_model *out, const struct eng_setting *s)
{
    const struct moe_shape *shape = s->shape;
    const struct eng_split *split = s->split;
    const struct eng_machine *machine = &s->machine;
    double byte_ns = 1e9 / (machine->dram_Bps * OF_PROBES), mac_ns = 1e9 / (machine->mac_ps * OF_SUMS);
    double bytes = 0, macs = 0;                 /* bytes and sums of one expert in every layer */
    if (shape->n_expert) {
        bytes = (double)shape->expert_file_bytes / shape->n_expert;
        macs = shape->n_moe_layer * 3.0 * shape->d_model * shape->d_expert;
    }
    *out = (struct spec_cost_model){
        .fixed_ns = (double)shape->pass_bytes * byte_ns, .load_ns = bytes * byte_ns,
        .dense_ns = (shape->row_macs - shape->n_used * macs) * mac_ns, .expert_ns = macs * mac_ns,
        .ridge = 1e-9, .growth = M_E,           /* sums take their time from the first row on */
        .n_expert = shape->n_expert, .n_used = shape->n_used,
    };
    if (split->n_resident < split->n_expert && machine->disk_Bps > 0)
        out->disk_ns = bytes * (1 - (double)split->n_resident / split->n_expert) / machine->disk_Bps * 1e9;
}

static double least_s(const struct eng_forecast *f)
{
    double s = f->dram_s > f->mac_s ? f->dram_s : f->mac_s;
    return f->disk_s > s ? f->disk_s : s;
}

double eng_plan_gain(const struct eng_setting *s, int n_seq, const double *survival, int most, int *depth)
{
    struct eng_forecast off, on;
    double best = 1, tokens = 1;
    *depth = 0;
    eng_plan_forecast(&off, s, n_seq);
    for (int i = 0; i < most; i++) {
        eng_plan_forecast(&on, s, n_seq * (i + 2));
        tokens += survival[i];
        double gain = tokens * least_s(&off) / least_s(&on);
        if (gain > best) {
            best = gain;
            *depth = i + 1;
        }
    }
    return best;
}
