/* engine/forecast.c - measures the machine's rates for a forecast, and finds the number of parallel sequences with
 * the highest expected throughput.
 *
 * With more sequences, more rows share the bytes that a pass reads, but their KV leaves less memory for experts. The
 * best number depends on the model and the machine, so for each number the memory is split and the speed is forecast,
 * as `plan` does. */
#include "engine/plan/disk_rate.h"
#include "engine/internal.h"
#include "engine/plan/host_rate.h"
#include "engine/plan/product_rate.h"

#include <string.h>

#define ENOUGH    0.97 /* share of the best speed: the smallest number that reaches it is chosen, to save memory */
#define ON_DEVICE 8    /* sequences at once on a device: its speed is not forecast */

/* The machine with another rate of memory: a product takes the time of reading its weights, and the rest of its time as
 * measured. */
static void replace_memory(struct eng_machine *m, double dram_Bps)
{
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        for (int i = 0; i < ENG_PRODUCT_ROWS; i++) {
            double *Bps = &m->products.Bps[f][i], rest_s = 1 / *Bps - 1 / m->dram_Bps;
            *Bps = 1 / (1 / dram_Bps + (rest_s > 0 ? rest_s : 0));
        }
    m->dram_Bps = dram_Bps;
}

int eng_forecast_rates(struct eng_machine *out, const struct eng_engine *e, size_t disk_rate, size_t dram_rate)
{
    const struct eng_split *split = eng_memory(e);
    struct eng_rates rates;
    int error = eng_host_rate_measure(&rates, moe_model_ops(eng_model(e)), eng_team(e), e->assets.opt.host_mem / 2);
    if (error)
        return error;
    *out = (struct eng_machine){ .disk_Bps = (double)disk_rate, .dram_Bps = rates.dram_Bps, .mac_ps = rates.mac_ps };
    error = eng_product_rate_measure(&out->products, moe_model_shape(eng_model(e)), moe_model_device(eng_model(e)),
                                     eng_team(e), e->assets.opt.host_mem / 2, rates.dram_Bps);
    if (error)
        return error;
    if (dram_rate)
        replace_memory(out, (double)dram_rate);
    if (!eng_split_is_whole(split) && !disk_rate)
        error = eng_disk_measure_model(moe_file_files(e->assets.file), e->assets.opt.mirror, ENG_DISK_BYTES,
                                       &out->disk_Bps);
    if (error == KN_EUNSUPPORTED)
        kn_fail(error,
                "%s: cannot measure the disk with this file (no O_DIRECT, or less than 1 MiB): give "
                "--disk-rate",
                e->assets.opt.model);
    return error;
}

struct eng_setting eng_forecast_setting(const struct eng_engine *e, const struct eng_machine *machine, int position)
{
    return (struct eng_setting){ moe_model_shape(eng_model(e)), eng_memory(e), *machine,
                                 moe_kv_slot_bytes(eng_model(e), e->assets.opt.kv), position };
}

int eng_forecast_cost(struct spec_cost_model *out, double *fit_error, const struct eng_engine *e,
                      const struct eng_setting *s)
{
    eng_plan_cost(out, s);
    return eng_draft_apply_fit(e->drafting, out, fit_error);
}

/* The expected tokens/s of n sequences; only as many count as fit in KV memory. */
static double speed_of(const struct eng_engine *e, const struct eng_machine *m, int n)
{
    struct eng_forecast f;
    int position = kn_min(ENG_PLAN_POSITION, eng_n_ctx(e)), fit = eng_memory(e)->n_kv_slot / position;
    struct eng_setting s = eng_forecast_setting(e, m, position);
    eng_plan_forecast(&f, &s, kn_min(n, kn_max(fit, 1)));
    return f.tokens_per_s;
}

int eng_forecast_parallel(int *out, const struct eng_options *opt)
{
    static const int count[] = { 1, 2, 4, 8, 16, 32, 64 };
    enum { N = sizeof count / sizeof *count };
    double speed[N], best = 0;
    struct eng_machine machine = { 0 };
    if (opt->device && strcmp(opt->device, "host") != 0) { /* no speed is known */
        *out = ON_DEVICE;
        return 0;
    }
    for (int i = 0; i < N; i++) {
        struct eng_engine *e;
        struct eng_options o = *opt;
        o.n_parallel = count[i];
        int error = eng_describe(&e, &o);
        if (error)
            return error;
        if (!machine.dram_Bps || (!machine.disk_Bps && !eng_split_is_whole(eng_memory(e))))
            error = eng_forecast_rates(&machine, e, 0, 0);
        if (!error)
            speed[i] = speed_of(e, &machine, count[i]);
        eng_close(e);
        if (error)
            return error;
        best = speed[i] > best ? speed[i] : best;
    }
    int i = 0;
    while (speed[i] < ENOUGH * best)
        i++;
    kn_say(KN_LOG_INFO, "%d request%s at once, about %.*f tokens/s (--parallel sets another number)", count[i],
           count[i] == 1 ? "" : "s", speed[i] < 10 ? 1 : 0, speed[i]);
    *out = count[i];
    return 0;
}
