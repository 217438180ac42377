/* engine/cli/cmd_plan.c - spillway plan: prints how a model would split this machine's memory and the speed to
 * expect, before any weight is read.
 *
 * The split is the one that run and bench make with the same flags.  For each batch size it prints the upper bounds
 * of the speed by disk, by memory and by arithmetic alone, and the expected speed.  The rates are measured, in about a
 * second; those of disk and memory can be given by flags, to plan for another machine. */
#include "engine/cli/cli.h"
#include "engine/cli/options.h"
#include "engine/cli/text_width.h"
#include "engine/engine.h"
#include "engine/plan/link_rate.h"
#include "engine/plan/plan.h"

#include <string.h>

static const int batches[] = { 1, 4, 8, 16, 32 };
#define N_BATCH ((int)(sizeof batches / sizeof *batches))

/* ---- the split --------------------------------------------------------------------------------- */

static void print_part(const char *name, size_t bytes, const char *note)
{
    int at = printf("  %-24s %10.1f MiB%s", name, (double)bytes / 0x1p20, note[0] ? "   " : "");
    eng_print_wrapped(stdout, at, at, note);
}

static void print_buffers(const struct eng_engine *e, size_t bytes)
{
    char note[96] = "";
    int n = eng_n_draft_row(e), at = n ? snprintf(note, sizeof note, "for up to %d drafted tokens", n) : 0;
    if (moe_model_shape(eng_model(e))->state_bytes)
        snprintf(note + at, sizeof note - (size_t)at, "%sand states of running sequences", at ? ", " : "");
    print_part("buffers of a pass", bytes, note);
}

static void print_device(const struct eng_config *c, const struct eng_device_split *d, const char *kv, int n_expert)
{
    printf("on device %s:\n", c->device);
    print_part(c->device_mem ? "--device-mem" : "free memory less margin", d->total, "");
    print_part("dense weights", d->dense, "");
    print_part("buffers of a pass", d->step, "");
    print_part("KV cache", d->kv, kv);
    if (d->state)
        print_part("cached states", d->state, "");
    char experts[96] = "";
    if (n_expert)
        snprintf(experts, sizeof experts, "%d of %d", d->n_resident, n_expert);
    print_part("expert cache", d->expert, experts);
    print_part("unused", d->spare, "");
    print_part("smallest --device-mem", d->least, "");
}

/* Describes an engine without messages: the plan's own description has given them. */
static int describe_quietly(struct eng_engine **out, const struct eng_config *c, const struct eng_options *o)
{
    eng_messages_hold();
    int error = eng_describe(out, o);
    eng_messages_show(c);
    return error;
}

/* The smallest budget of a server with the flags of this plan and the defaults of its own, and its requests at once, 8 unless
 * --parallel asks for more.  0: unknown.  e has been described. */
static size_t least_of_server(const struct eng_config *c, const struct eng_engine *e, int *n_parallel)
{
    static struct eng_config defaults;
    eng_option_defaults(&defaults, ENG_serve);
    struct eng_serve_options server = eng_config_serve_options(&defaults);
    server.engine = eng_config_options(c, true);
    server.engine.n_parallel = *n_parallel = kn_max(c->n_parallel, defaults.n_parallel);
    server.engine.n_ctx = eng_n_ctx(e);
    server.engine.host_mem = ENG_ANY_MEMORY;
    struct eng_options o = eng_serve_engine(&server);
    struct eng_engine *described;
    size_t own = kn_alloc_bytes(); /* of this command: a description measures all allocations of the process */
    if (describe_quietly(&described, c, &o))
        return 0;
    size_t least = eng_memory(described)->least - own;
    eng_close(described);
    return least;
}

static void print_split(const struct eng_config *c, const struct eng_engine *e, size_t server_least, int n_parallel)
{
    const struct eng_split *s = eng_memory(e);
    const struct moe_shape *shape = moe_model_shape(eng_model(e));
    char kv[96], states[96], experts[96] = "", widened[96] = "", ahead[96];
    int context = (int)kn_align_up((size_t)eng_n_ctx(e), 64);
    snprintf(kv, sizeof kv, "%d positions: %.1f contexts of %d tokens for %d request%s", s->n_kv_slot,
             (double)s->n_kv_slot / context, eng_n_ctx(e), c->n_parallel, c->n_parallel > 1 ? "s" : "");
    snprintf(states, sizeof states, "%d of %.1f MiB, for prefix reuse", s->n_state,
             (double)shape->state_bytes / 0x1p20);
    if (s->n_expert)
        snprintf(experts, sizeof experts, "%d of %d: %.1f of %d per layer", s->n_resident, s->n_expert,
                 (double)s->n_resident * shape->n_expert / s->n_expert, shape->n_expert);
    print_part(c->host_mem ? "--host-mem" : "free memory less margin", s->total, "");
    print_part("the program", s->fixed, "code, vocabulary, lists, page tables");
    if (shape->widened_bytes)
        snprintf(widened, sizeof widened, "%.1f MiB of it are F32, quantised in the file (attn_kv_b)",
                 (double)shape->widened_bytes / 0x1p20);
    print_part("dense weights", s->dense, widened);
    print_buffers(e, s->step);
    print_part("KV cache", s->kv, kv);
    if (shape->state_bytes)
        print_part("cached states", s->state, states);
    print_part("expert cache", s->expert, experts);
    snprintf(ahead, sizeof ahead, "%d layer%s, not loaded; --draft mtp uses the first", shape->n_ahead,
             shape->n_ahead > 1 ? "s" : "");
    if (shape->ahead_bytes && !shape->n_expert_ahead)
        print_part("MTP layers", shape->ahead_bytes, ahead);
    print_part("unused", s->spare, "");
    print_part("smallest --host-mem", s->least, "");
    char server[48];
    snprintf(server, sizeof server, "with %d requests at once", n_parallel);
    if (server_least)
        print_part("  of serve", server_least, server);
    if (s->device.total)
        print_device(c, &s->device, kv, s->n_expert);
}

static void print_split_json(const struct eng_engine *e, size_t server_least, int n_parallel)
{
    const struct eng_split *s = eng_memory(e);
    const struct moe_shape *shape = moe_model_shape(eng_model(e));
    printf(
        "{\"what\":\"split\",\"host_mem_bytes\":%zu,\"fixed_bytes\":%zu,\"dense_bytes\":%zu,"
        "\"step_bytes\":%zu,\"kv_bytes\":%zu,\"state_bytes\":%zu,\"expert_bytes\":%zu,\"spare_bytes\":%zu,"
        "\"least_bytes\":%zu,\"serve_least_bytes\":%zu,\"serve_parallel\":%d,"
        "\"n_ctx\":%d,\"n_kv\":%d,\"n_draft_row\":%d,\"n_expert\":%d,\"n_resident\":%d,\"n_layer\":%d,\"n_moe_layer\":%d,"
        "\"widened_bytes\":%zu,\"n_ahead\":%d,\"ahead_bytes\":%zu,\"n_expert_ahead\":%d,\"device_mem_bytes\":%zu,"
        "\"device_dense_bytes\":%zu,\"device_step_bytes\":%zu,\"device_kv_bytes\":%zu,"
        "\"device_state_bytes\":%zu,\"device_expert_bytes\":%zu,\"n_device_resident\":%d,\"device_least_bytes\":%zu}\n",
        s->total, s->fixed, s->dense, s->step, s->kv, s->state, s->expert, s->spare, s->least, server_least, n_parallel,
        eng_n_ctx(e), s->n_kv_slot, eng_n_draft_row(e), s->n_expert, s->n_resident, shape->n_layer, shape->n_moe_layer,
        shape->widened_bytes, shape->n_ahead, shape->ahead_bytes, shape->n_expert_ahead, s->device.total,
        s->device.dense, s->device.step, s->device.kv, s->device.state, s->device.expert, s->device.n_resident,
        s->device.least);
}

/* ---- the speed --------------------------------------------------------------------------------- */

static double per_second(int n_row, double seconds) { return seconds > 0 ? n_row / seconds : 0; }

static void print_rate(int n_row, double seconds)
{
    if (seconds > 0)
        printf(" %9.2f", n_row / seconds);
    else
        printf(" %9s", "-");
}

/* fits: the KV cache of the split has room for so many sequences. */
static void print_forecast(const struct eng_forecast *f, const struct eng_machine *m, bool json, bool fits)
{
    if (json) {
        printf("{\"what\":\"decode\",\"batch\":%d,\"tokens_per_s\":%.3f,\"bound_by\":\"%s\","
               "\"experts_per_layer\":%.2f,\"misses\":%.2f,\"disk_bytes\":%.0f,\"dram_bytes\":%.0f,"
               "\"macs\":%.0f,\"disk_tokens_per_s\":%.3f,\"dram_tokens_per_s\":%.3f,"
               "\"mac_tokens_per_s\":%.3f,\"disk_Bps\":%.0f,\"dram_Bps\":%.0f,\"mac_per_s\":%.0f,\"fits_kv\":%s}\n",
               f->n_row, f->tokens_per_s, f->bound_by, f->experts, f->misses, f->disk_bytes, f->dram_bytes, f->macs,
               per_second(f->n_row, f->disk_s), per_second(f->n_row, f->dram_s), per_second(f->n_row, f->mac_s),
               m->disk_Bps, m->dram_Bps, m->mac_ps, fits ? "true" : "false");
        return;
    }
    printf("%5d%s%8.1f %9.1f", f->n_row, fits ? " " : "*", f->experts, f->disk_bytes / 1e6);
    print_rate(f->n_row, f->disk_s);
    print_rate(f->n_row, f->dram_s);
    print_rate(f->n_row, f->mac_s);
    printf(" %9.2f  %s\n", f->tokens_per_s, f->bound_by);
}

static void print_speed(const struct eng_config *c, const struct eng_engine *e, const struct eng_machine *m)
{
    struct eng_setting s = eng_forecast_setting(e, m, ENG_PLAN_POSITION);
    if (!c->json) {
        printf("\n");
        if (m->disk_Bps > 0)
            printf("disk %.2f GB/s%s, ", m->disk_Bps / 1e9, c->disk_rate ? " (given)" : "");
        printf("memory %.1f GB/s%s, %.0f G int8 multiply-adds/s\ntokens/s at %d tokens of context:\n"
               "%5s %8s %9s %9s %9s %9s %9s  %s\n",
               m->dram_Bps / 1e9, c->dram_rate ? " (given)" : "", m->mac_ps / 1e9, ENG_PLAN_POSITION, "batch",
               "experts", "read MB", "disk", "memory", "operations", "expected", "bound by");
    }
    int room = eng_memory(e)->n_kv_slot / ENG_PLAN_POSITION, n_beyond = 0;
    for (int i = 0; i < N_BATCH; i++) {
        struct eng_forecast f;
        eng_plan_forecast(&f, &s, batches[i]);
        print_forecast(&f, m, c->json, batches[i] <= room);
        n_beyond += batches[i] > room;
    }
    if (n_beyond && !c->json)
        printf("*: the KV cache above has room for %d sequence%s of this length; --parallel or\n"
               "   --kv-mem makes it larger, which leaves less for experts: plan again with it\n",
               room, room == 1 ? "" : "s");
}

/* ---- the speed with a device --------------------------------------------------------------------- */

static void print_device_forecast(const struct eng_device_forecast *f, double alone, bool json)
{
    if (json)
        printf("{\"what\":\"device_decode\",\"batch\":%d,\"tokens_per_s\":%.3f,\"host_tokens_per_s\":%.3f,"
               "\"bound_by\":\"%s\",\"device_bytes\":%.0f,\"host_bytes\":%.0f,\"disk_bytes\":%.0f,\"device_s\":%.6f,"
               "\"host_s\":%.6f,\"disk_s\":%.6f}\n",
               f->n_row, f->tokens_per_s, alone, f->bound_by, f->device_bytes, f->host_bytes, f->disk_bytes,
               f->device_s, f->host_s, f->disk_s);
    else
        printf("%5d %10.1f %9.1f %9.1f %10.2f %12.2f  %s\n", f->n_row, f->device_bytes / 1e6, f->host_bytes / 1e6,
               f->disk_bytes / 1e6, f->tokens_per_s, alone, f->bound_by);
}

/* Forecasts passes on the device beside those of the host alone, with the memory split that it has without the device. */
static int print_device_speed(const struct eng_config *c, const struct eng_engine *e)
{
    struct eng_options o = eng_config_options(c, false);
    struct eng_engine *host;
    struct eng_machine m;
    double device_Bps = 0;
    o.device = NULL;
    o.device_mem = 0;
    o.n_ctx = eng_n_ctx(e);
    if (describe_quietly(&host, c, &o)) {
        if (!c->json)
            printf("\nno forecast of speed: without --device the model does not fit in --host-mem\n");
        return 0;
    }
    int error = eng_forecast_rates(&m, host, c->disk_rate, c->dram_rate);
    if (!error)
        error = eng_device_rate_measure(&device_Bps, moe_model_device(eng_model(e)), eng_team(e));
    struct eng_setting there = eng_forecast_setting(e, &m, ENG_PLAN_POSITION),
                       alone = eng_forecast_setting(host, &m, ENG_PLAN_POSITION);
    if (!error && !c->json)
        printf(
            "\n%s's memory %.1f GB/s, the host's %.1f GB/s\ntokens/s at %d tokens of context, by these rates; passes of a "
            "GPU were never\nmeasured with this program:\n%5s %10s %9s %9s %10s %12s  %s\n",
            c->device, device_Bps / 1e9, m.dram_Bps / 1e9, ENG_PLAN_POSITION, "batch", "device MB", "host MB",
            "read MB", "expected", "host alone", "bound by");
    for (int i = 0; i < N_BATCH && !error; i++) {
        struct eng_device_forecast f;
        struct eng_forecast h;
        eng_plan_device_forecast(&f, &there, device_Bps, batches[i]);
        eng_plan_forecast(&h, &alone, batches[i]);
        print_device_forecast(&f, h.tokens_per_s, c->json);
    }
    eng_close(host);
    return error;
}

/* ---- the cost of drafts ------------------------------------------------------------------------- */

/* --draft resident needs no file and no memory: it is named where it can gain, if no drafter is given. */
static void print_resident_hint(const struct eng_config *c, const struct eng_engine *e)
{
    const struct eng_split *split = eng_memory(e);
    if (c->json || c->n_draft || eng_split_is_whole(split) || moe_model_shape(eng_model(e))->state_bytes)
        return;
    printf("%d of %d experts are on disk: --draft resident lets the model draft with the\n"
           "others, which can pay with 8 and more requests at once; bench --draft resident\n"
           "measures its gain\n",
           eng_split_on_disk(split), split->n_expert);
}

/* Prints MoESD's target efficiency of passes with drafted rows, by the fit beside the model if there is one. */
static int print_drafts(const struct eng_config *c, const struct eng_engine *e, const struct eng_machine *m)
{
    static const int depths[] = { 1, 2, 4, 8 };
    struct spec_cost_model cost;
    struct eng_setting s = eng_forecast_setting(e, m, ENG_PLAN_POSITION);
    double fit_error = -1;
    int error = eng_forecast_cost(&cost, &fit_error, e, &s);
    if (error)
        return error;
    double full = spec_cost_full_rows(cost.n_expert, cost.n_used);
    if (!c->json) {
        char source[96] = "from the rates above";
        if (fit_error >= 0)
            snprintf(source, sizeof source, "fitted to passes of requests, mean error %.1f %%", 100 * fit_error);
        printf("\ntarget efficiency, the time of a pass without drafts over that with N drafted\n"
               "tokens for each sequence; %s:\n"
               "%5s %8s %9d %9d %9d %9d\n",
               source, "batch", "N(t)", depths[0], depths[1], depths[2], depths[3]);
    }
    for (int i = 0; i < N_BATCH; i++) {
        double n = batches[i], efficiency[4];
        for (int k = 0; k < 4; k++)
            efficiency[k] = spec_cost_efficiency(&cost, n, depths[k], ENG_PLAN_POSITION);
        printf(c->json ? "{\"what\":\"efficiency\",\"batch\":%.0f,\"experts\":%.2f,\"depth_1\":%.4f,\"depth_2\":%.4f,"
                         "\"depth_4\":%.4f,\"depth_8\":%.4f}\n"
                       : "%5.0f %8.1f %9.2f %9.2f %9.2f %9.2f\n",
               n, spec_cost_distinct(cost.n_expert, cost.n_used, n), efficiency[0], efficiency[1], efficiency[2],
               efficiency[3]);
    }
    if (c->json)
        printf("{\"what\":\"threshold\",\"full_rows\":%.0f,\"fitted\":%s,\"fit_error\":%.4f}\n", full,
               fit_error >= 0 ? "true" : "false", fit_error >= 0 ? fit_error : 0);
    else
        printf("a pass uses nearly all experts from %.0f rows on: below, drafted rows load\n"
               "experts; above, almost none\n",
               full);
    return 0;
}

int eng_cmd_plan(const struct eng_config *c)
{
    struct eng_engine *e;
    struct eng_machine machine;
    struct eng_options o = eng_config_options(c, false);
    if (eng_describe(&e, &o))
        return 2;
    bool on_host = !eng_memory(e)->device.total;
    int error = on_host ? eng_forecast_rates(&machine, e, c->disk_rate, c->dram_rate) : 0;
    if (!error) {
        int n_parallel;
        size_t least = least_of_server(c, e, &n_parallel);
        if (c->json)
            print_split_json(e, least, n_parallel);
        else
            print_split(c, e, least, n_parallel);
        if (on_host)
            print_speed(c, e, &machine);
        if (on_host && moe_model_shape(eng_model(e))->n_expert)
            error = print_drafts(c, e, &machine);
        if (!on_host)
            error = print_device_speed(c, e);
        if (!error)
            print_resident_hint(c, e);
    }
    eng_close(e);
    return error ? 2 : 0;
}
