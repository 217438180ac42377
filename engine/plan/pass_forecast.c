/* engine/plan/pass_forecast.c - how long a pass takes, from a model's shape, the memory split and the machine's rates.
 *
 * The time of the disk is the bytes of missing experts over the disk rate. The time of the cores is that of the products,
 * at rates measured for each format and number of rows, of attention, of the start of each layer, and of a row's other
 * work. While an expert is read, the cores compute others; but the experts of a layer are known only when its attention
 * and router are computed. So a pass takes the longer of two times: that of the cores; or that of the disk and of the
 * dense weights. An expert is resident with the probability (experts that fit) / (experts): if all experts are used
 * equally often, no cache does better.
 *
 * The shares of the measured rates that passes reach, and forecasts beside measurements:
 * evals/results/speed/plan-2026-11-24.md for models that wait for the disk, plan-shapes-2026-11-26.md for others. */
#include "engine/plan/plan.h"

#include <math.h>

#define DECODE_RATE_RATIO  0.88   /* memory, with few rows per weight */
#define DISK_RATE_RATIO    0.92   /* disk, in passes that wait for it */
#define PREFILL_RATE_RATIO 0.45   /* multiply-adds with many rows per weight: dense weights, prompts */
#define FLOAT_RATE_RATIO   0.15   /* multiply-adds of attention, over those of int8 */
#define LAYER_S            10e-6  /* starting the parallel regions of a layer */
#define VALUE_S            4e-9   /* other work of a row in a layer, for each value of its residual stream */
#define DEVICE_RATE_RATIO  0.75   /* a device's memory, as other engines reach it with few rows or better */
#define LAYER_LAUNCHES     9      /* of a device, for one row, and one more for several: tests/cuda/test_launches.c */
#define LAUNCH_S           2.5e-6 /* the driver's time for one, as others report */
#define HANDOVER_S         20e-6  /* of a layer with experts on the host: rows go down, outputs up */

/* Multiply-adds of one expert in every layer. */
static double expert_macs(const struct moe_shape *shape)
{
    return shape->n_moe_layer * 3.0 * shape->d_model * shape->d_expert;
}

/* Seconds for a byte of weights in this format with so many rows; between the measured numbers of rows the time grows
 * linearly, and beyond them with the rows. */
static double byte_s(const struct eng_products *p, int format, double rows)
{
    const double *Bps = p->Bps[format];
    int i = 0, most = 1 << (ENG_PRODUCT_ROWS - 1);
    if (rows >= most)
        return rows / most / Bps[ENG_PRODUCT_ROWS - 1];
    while (rows >= 2 << i)
        i++;
    double share = rows / (1 << i) - 1;
    return (1 - share) / Bps[i] + share / Bps[i + 1];
}

/* Seconds of the products of matrices with so many bytes in each format. */
static double products_s(const struct eng_products *p, const size_t *bytes, double rows)
{
    double s = 0;
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        if (bytes[f])
            s += (double)bytes[f] * byte_s(p, f, rows);
    return s;
}

/* Bytes of keys and values that a pass reads, and of recurrent states that it reads and writes. */
static double kept_bytes(const struct eng_setting *s, int n_row)
{
    return (double)n_row * s->position * (double)s->kv_slot_bytes + 2.0 * n_row * (double)s->shape->state_bytes;
}

/* Bytes and multiply-adds of a pass, and how long each takes alone: all but pass_s, tokens_per_s and bound_by. */
static struct eng_forecast bounds(const struct eng_setting *s, int n_row)
{
    const struct moe_shape *shape = s->shape;
    struct eng_forecast f = { .n_row = n_row };
    double positions = (double)n_row * s->position, expert_bytes = 0;
    if (shape->n_expert) {
        double expert = (double)shape->expert_file_bytes / shape->n_expert_total;
        f.experts = spec_cost_distinct(shape->n_expert, shape->n_used, n_row);
        double used = f.experts * shape->n_moe_layer;
        f.misses = used * (1 - (double)s->split->n_resident / s->split->n_expert);
        f.disk_bytes = f.misses * expert;
        expert_bytes = used * expert;
    }
    f.dram_bytes = (double)shape->pass_bytes + kept_bytes(s, n_row) + expert_bytes;
    f.macs = n_row * shape->row_macs + positions * shape->position_macs;
    f.disk_s = f.disk_bytes > 0 ? f.disk_bytes / s->machine.disk_Bps : 0;
    f.dram_s = f.dram_bytes / s->machine.dram_Bps;
    f.mac_s = f.macs / s->machine.mac_ps;
    return f;
}

void eng_plan_forecast(struct eng_forecast *out, const struct eng_setting *s, int n_row)
{
    const struct moe_shape *shape = s->shape;
    const struct eng_machine *m = &s->machine;
    struct eng_forecast f = bounds(s, n_row);
    double expert_s = 0;
    if (shape->n_expert)
        expert_s = f.experts * shape->n_moe_layer / shape->n_expert_total *
                   products_s(&m->products, shape->expert_format_bytes, n_row * shape->n_used / f.experts);
    double attention_macs = (double)n_row * s->position * shape->position_macs;
    double other_s = products_s(&m->products, shape->pass_format_bytes, n_row) + kept_bytes(s, n_row) / m->dram_Bps +
                     attention_macs / m->mac_ps / FLOAT_RATE_RATIO + shape->n_layer * LAYER_S +
                     (double)n_row * shape->n_layer * shape->d_model * VALUE_S;
    double disk_s = f.disk_s / DISK_RATE_RATIO + other_s;
    f.pass_s = expert_s + other_s;
    f.bound_by = f.dram_s > f.mac_s ? "dram" : "operations";
    if (f.disk_s > 0 && disk_s > f.pass_s) {
        f.pass_s = disk_s;
        f.bound_by = "disk";
    }
    f.tokens_per_s = n_row / f.pass_s;
    *out = f;
}

void eng_plan_device_forecast(struct eng_device_forecast *out, const struct eng_setting *s, double device_Bps,
                              int n_row)
{
    const struct moe_shape *shape = s->shape;
    struct eng_device_forecast f = { .n_row = n_row };
    double expert_s = 0, used_bytes = 0, there = 0,
           here = 1; /* shares of the experts on the device, in the host's memory */
    if (shape->n_expert) {
        double experts = spec_cost_distinct(shape->n_expert, shape->n_used, n_row);
        double used = experts * shape->n_moe_layer / shape->n_expert_total;
        used_bytes = used * (double)shape->expert_file_bytes;
        expert_s = used * products_s(&s->machine.products, shape->expert_format_bytes, n_row * shape->n_used / experts);
        there = (double)s->split->device.n_resident / s->split->n_expert;
        here = fmin((double)s->split->n_resident / s->split->n_expert, 1 - there);
    }
    /* the host adds launches while the device runs earlier ones: a pass takes the longer of both times, not their sum */
    double launch_s = shape->n_layer * (LAYER_LAUNCHES + (n_row > 1)) * LAUNCH_S;
    double memory_s = ((double)shape->pass_bytes + kept_bytes(s, n_row)) / device_Bps / DEVICE_RATE_RATIO;
    double dense_s = fmax(memory_s, launch_s);
    f.device_bytes = (double)shape->pass_bytes + kept_bytes(s, n_row) + there * used_bytes;
    f.host_bytes = (1 - there) * used_bytes;
    f.disk_bytes = (1 - there - here) * used_bytes;
    f.device_s = fmax(memory_s + there * used_bytes / device_Bps / DEVICE_RATE_RATIO, launch_s);
    f.host_s = (1 - there) * expert_s + (there < 1 ? shape->n_moe_layer * HANDOVER_S : 0);
    f.disk_s = f.disk_bytes > 0 && s->machine.disk_Bps > 0 ? f.disk_bytes / s->machine.disk_Bps / DISK_RATE_RATIO : 0;
    f.pass_s = fmax(f.device_s, dense_s + f.host_s); /* the host's experts beside the device's, behind the dense part */
    f.bound_by = f.device_s > f.host_s ? "device" : "host";
    if (dense_s + f.disk_s > f.pass_s) {
        f.pass_s = dense_s + f.disk_s;
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
        macs = expert_macs(shape);
    }
    *out = (struct spec_cost_model){
        .fixed_ns = (double)shape->pass_bytes * byte_ns,
        .load_ns = bytes * byte_ns,
        .kv_ns = (double)s->kv_slot_bytes * byte_ns,
        .dense_ns = (shape->row_macs - shape->n_used * macs) * mac_ns,
        .expert_ns = macs * mac_ns,
        .ridge = 1e-9,
        .growth = M_E, /* multiply-adds cost time from the first row on */
        .n_expert = shape->n_expert,
        .n_used = shape->n_used,
    };
    if (machine->disk_Bps > 0)
        out->disk_ns = bytes * eng_split_disk_share(split) / machine->disk_Bps * 1e9;
}

/* The lower bound of a pass's time: that of its slowest part alone. */
static double least_s(const struct eng_forecast *f)
{
    double s = f->dram_s > f->mac_s ? f->dram_s : f->mac_s;
    return f->disk_s > s ? f->disk_s : s;
}

double eng_plan_gain(const struct eng_setting *s, int n_seq, const double *survival, int most, int *depth)
{
    struct eng_forecast off = bounds(s, n_seq);
    double best = 1, tokens = 1;
    *depth = 0;
    for (int i = 0; i < most; i++) {
        struct eng_forecast on = bounds(s, n_seq * (i + 2));
        tokens += survival[i];
        double gain = tokens * least_s(&off) / least_s(&on);
        if (gain > best) {
            best = gain;
            *depth = i + 1;
        }
    }
    return best;
}
