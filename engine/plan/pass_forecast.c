/* engine/plan/pass_forecast.c - how long a pass takes, from a model's shape, the memory split and the machine's rates.
 *
 * The time of the disk is the bytes of missing experts over the disk rate. The time of the cores is the bytes that they
 * touch over the memory rate, plus the multiply-adds over their rate: a sum, since a core that waits for bytes does not
 * multiply. Disk and cores work at the same time, so a pass takes the longer of the two. An expert is resident with the
 * probability (experts that fit) / (experts): if all experts are used equally often, no cache does better. */
#include "engine/plan/plan.h"

#include <math.h>

/* Decoding reaches this share of the measured rates: the sum of memory and multiply-add time was 0.85 to 0.90 of the
 * measured time, with 1 to 16 sequences and all experts in memory (evals/results/speed/speed-2026-11-20.md). */
#define DECODE_RATE_RATIO 0.88

/* The share of the multiply-add rate that passes with many rows reach: 318 to 370 of 720 G/s in Q4_K with 16 to 96 rows
 * (same file). */
#define PREFILL_RATE_RATIO 0.45

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
    f.pass_s = (f.dram_s + f.mac_s) / DECODE_RATE_RATIO;
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
    double byte_ns = 1e9 / (machine->dram_Bps * DECODE_RATE_RATIO),
           mac_ns = 1e9 / (machine->mac_ps * PREFILL_RATE_RATIO);
    double bytes = 0, macs = 0; /* bytes and multiply-adds of one expert in every layer */
    if (shape->n_expert) {
        bytes = (double)shape->expert_file_bytes / shape->n_expert;
        macs = shape->n_moe_layer * 3.0 * shape->d_model * shape->d_expert;
    }
    *out = (struct spec_cost_model){
        .fixed_ns = (double)shape->pass_bytes * byte_ns,
        .load_ns = bytes * byte_ns,
        .dense_ns = (shape->row_macs - shape->n_used * macs) * mac_ns,
        .expert_ns = macs * mac_ns,
        .ridge = 1e-9,
        .growth = M_E, /* multiply-adds cost time from the first row on */
        .n_expert = shape->n_expert,
        .n_used = shape->n_used,
    };
    if (split->n_resident < split->n_expert && machine->disk_Bps > 0)
        out->disk_ns = bytes * (1 - (double)split->n_resident / split->n_expert) / machine->disk_Bps * 1e9;
}

/* The lower bound of a pass's time: that of its slowest part alone. */
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
