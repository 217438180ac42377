/* Memory split and pass forecast (engine/plan) against numbers worked out by hand, and the output of `spillway plan`.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/cli/cli.h"
#include "engine/plan/plan.h"
#include "speculative/cost.h"

/* One context of 100 positions takes two blocks of 64: 1280 bytes. The least memory is 1000 + 12280 and, for page
 * tables, 1/512 of 12280: 24. */
static const struct eng_need need = {
    .fixed_bytes = 1000,
    .dense_bytes = 5000,
    .step_bytes = 2000,
    .kv_slot_bytes = 10,
    .n_ctx = 100,
    .n_parallel = 8,
    .expert_bytes = 100000,
    .expert_least = 4000,
    .n_expert = 50,
};
#define LEAST 13304

static void check_parts(const struct eng_split *s, size_t kv, size_t expert, int n_resident, size_t fixed, size_t spare)
{
    if (s->kv != kv || s->expert != expert || s->n_resident != n_resident || s->fixed != fixed || s->spare != spare)
        fail_msg("total %zu: KV %zu, experts %zu (%d), fixed %zu, spare %zu", s->total, s->kv, s->expert, s->n_resident,
                 s->fixed, s->spare);
    assert_int_equal(s->dense, 5000);
    assert_int_equal(s->step, 2000);
    assert_int_equal(s->n_kv_slot, s->kv / 10);
    assert_int_equal(s->fixed + s->dense + s->step + s->kv + s->expert + s->spare, s->total);
}

static void a_budget_is_split_from_the_top(void **state)
{
    (void)state;
    struct eng_split s;
    struct eng_need n = need;
    assert_int_equal(eng_plan_split(&s, &n, LEAST), 0); /* one context, least expert bytes */
    check_parts(&s, 1280, 4000, 2, 1024, 0);

    assert_int_equal(eng_plan_split(&s, &n, 60000), 0); /* 51880 left: eight contexts take less */
    check_parts(&s, 10240, 41640, 20, 1115, 5);         /* than 30 % of that */

    n.n_parallel = 100; /* 24 blocks fit into 30 % */
    assert_int_equal(eng_plan_split(&s, &n, 60000), 0);
    check_parts(&s, 15360, 36520, 18, 1115, 5);

    assert_int_equal(eng_plan_split(&s, &n, 1000000), 0); /* all contexts and experts, and a rest */
    check_parts(&s, 128000, 100000, 50, 1459, 763541);

    n.n_parallel = 1000; /* experts leave more than 30 % */
    assert_int_equal(eng_plan_split(&s, &n, 1000000), 0);
    check_parts(&s, 889600, 100000, 50, 2947, 453);

    n.kv_mem = 6410; /* kv_mem is rounded down to blocks */
    assert_int_equal(eng_plan_split(&s, &n, 60000), 0);
    check_parts(&s, 6400, 45480, 22, 1115, 5);

    n = need; /* one context takes more than 30 % */
    n.expert_least = 100;
    assert_int_equal(eng_plan_split(&s, &n, 9397), 0);
    check_parts(&s, 1280, 100, 0, 1017, 0);
}

static void too_little_is_refused_with_what_is_enough(void **state)
{
    (void)state;
    struct eng_split s;
    struct eng_need n = need;
    assert_int_equal(eng_plan_split(&s, &n, 0), KN_ELIMIT);
    assert_int_equal(eng_plan_split(&s, &n, LEAST - 1), KN_ELIMIT);
    assert_int_equal(s.least, LEAST);
    assert_int_equal(s.kv_least, 1280);

    n.kv_mem = 1279;
    assert_int_equal(eng_plan_split(&s, &n, 60000), KN_EINVAL);
    assert_int_equal(s.kv_least, 1280);
    n.kv_mem = 1280 + 512; /* an explicit kv_mem is not reduced */
    assert_int_equal(eng_plan_split(&s, &n, LEAST), KN_ELIMIT);
    assert_int_equal(s.least, LEAST + 513);
    assert_int_equal(eng_plan_split(&s, &n, s.least), 0);
}

static void from_the_least_on_everything_works(void **state)
{
    (void)state;
    struct eng_split s;
    for (size_t total = LEAST; total < LEAST + 200000; total += total < LEAST + 2000 ? 1 : 997) {
        assert_int_equal(eng_plan_split(&s, &need, total), 0);
        assert_int_equal(s.fixed + s.dense + s.step + s.kv + s.expert + s.spare, total);
        assert_true(s.kv >= 1280 && s.expert >= 4000 && s.spare < total);
        assert_true(s.fixed >= 1000 + (s.dense + s.step + s.kv + s.expert) / 512);
    }
}

static void a_dense_model_has_no_experts(void **state)
{
    (void)state;
    struct eng_split s;
    struct eng_need n = need;
    n.expert_bytes = n.expert_least = 0;
    n.n_expert = 0;
    assert_int_equal(eng_plan_split(&s, &n, 20000), 0); /* no experts: KV may take all */
    check_parts(&s, 10240, 0, 0, 1034, 1726);
}

/* Kept states: two per parallel session and two more, within a tenth of the remaining memory; one just above the
 * least. */
static void states_are_kept_with_a_tenth(void **state)
{
    (void)state;
    struct eng_split s;
    struct eng_need n = need;
    n.state_bytes = 300;
    assert_int_equal(eng_plan_split(&s, &n, LEAST), 0);
    assert_int_equal(s.n_state, 0);
    assert_int_equal(eng_plan_split(&s, &n, LEAST + 900), 0); /* for page tables */
    assert_int_equal(s.n_state, 1);
    assert_int_equal(eng_plan_split(&s, &n, 60000), 0); /* 51880 bytes left */
    assert_int_equal(s.n_state, 17);
    assert_int_equal(s.state, 17 * 300);
    assert_int_equal(s.fixed + s.dense + s.step + s.kv + s.state + s.expert + s.spare, s.total);
    assert_true(s.kv == 10240 && s.fixed >= 1000 + (s.dense + s.step + s.kv + s.state + s.expert) / 512);
    assert_int_equal(eng_plan_split(&s, &n, 1000000), 0);
    assert_int_equal(s.n_state, 18);
    for (size_t total = LEAST; total < LEAST + 2000; total++) {
        assert_int_equal(eng_plan_split(&s, &n, total), 0);
        assert_true(s.kv >= 1280 && s.expert >= 4000 && s.spare < total);
        assert_int_equal(s.fixed + s.dense + s.step + s.kv + s.state + s.expert + s.spare, total);
    }
}

static bool near(double a, double b) { return a > b * 0.999999 - 1e-9 && a < b * 1.000001 + 1e-9; }

/* A device's memory: no program, page tables as little as on the host, and experts may have none of it. */
static void the_memory_of_a_device_is_split_first(void **state)
{
    (void)state;
    struct eng_split s = { .total = 7 };
    struct eng_need n = need;
    assert_int_equal(eng_plan_device(&s, &n, 60000), 0);
    const struct eng_device_split *d = &s.device;
    assert_int_equal(s.total, 7); /* the host's parts are left alone */
    assert_int_equal(d->dense, 5000);
    assert_int_equal(d->step, 2000);
    assert_int_equal(d->kv, s.n_kv_slot * 10);
    assert_int_equal(d->n_resident, (int)(d->expert * 50 / 100000));
    assert_true(d->expert > 40000 && d->kv == 10240);
    assert_int_equal(d->dense + d->step + d->kv + d->state + d->expert + d->spare, 60000);
    size_t least = d->least;
    assert_int_equal(eng_plan_device(&s, &n, least), 0);
    assert_true(d->expert < 100 && d->kv == 1280); /* one context */
    assert_int_equal(eng_plan_device(&s, &n, least - 1), KN_ELIMIT);
    assert_int_equal(d->least, least);
    n.expert_bytes = 0; /* the device cannot compute them */
    n.n_expert = 0;
    assert_int_equal(eng_plan_device(&s, &n, 60000), 0);
    assert_int_equal(d->expert, 0);
    assert_int_equal(d->n_resident, 0);
}

/* Longer chunks only where a device lacks experts, and within the memory that each part may lose. */
static void chunks_are_as_long_as_memory_allows(void **state)
{
    (void)state;
    const struct eng_chunk_need large = {
        .room = 4000000, .expert_bytes = 100000000, .row_bytes = 100, .n_token = 1 << 20
    };
    struct eng_chunk_need n = large;
    assert_int_equal(eng_plan_chunk(&n), 4096);
    n.row_bytes = 1000; /* half of the room: 2,000 rows more */
    assert_int_equal(eng_plan_chunk(&n), (512 + 2000) / 64 * 64);
    n.expert_bytes = 20000000; /* 16,000,000 are missing, of which a sixteenth: 1,000 rows more */
    assert_int_equal(eng_plan_chunk(&n), (512 + 1000) / 64 * 64);
    n.host_room = 3200000; /* a thirty-second of it: 500 rows more */
    n.host_row_bytes = 200;
    assert_int_equal(eng_plan_chunk(&n), (512 + 500) / 64 * 64);
    n.row_bytes = 1000000; /* not one row */
    assert_int_equal(eng_plan_chunk(&n), 512);
    n = large;
    n.n_token = 1000; /* no more are ever read at once */
    assert_int_equal(eng_plan_chunk(&n), 960);
    n.n_token = 100;
    assert_int_equal(eng_plan_chunk(&n), 512);
    n = large;
    n.room = n.expert_bytes; /* nothing is copied */
    assert_int_equal(eng_plan_chunk(&n), 512);
}

/* Half of the free memory, and a thirty-second of the missing experts and of the KV cache beyond one context. */
static void drafted_rows_may_take_a_little(void **state)
{
    (void)state;
    struct eng_need n = { .expert_bytes = 100000 };
    struct eng_split s = { .kv_least = 1000, .kv = 1000, .expert = 36000, .spare = 0 };
    assert_int_equal(eng_plan_draft_room(&s, &n), 2000);
    s.kv = 4200;
    assert_int_equal(eng_plan_draft_room(&s, &n), 2100);
    n.kv_mem = 4200; /* the user's own number stays */
    assert_int_equal(eng_plan_draft_room(&s, &n), 2000);
    n.kv_mem = 0;
    s.expert = 100000;
    s.spare = 70000;
    assert_int_equal(eng_plan_draft_room(&s, &n), 35100);
    s.device = (struct eng_device_split){ .total = 1, .kv = 4200, .expert = 36000, .spare = 10 };
    assert_int_equal(eng_plan_draft_room(&s, &n), 2105);
}

static void distinct_experts_are_counted(void **state)
{
    (void)state;
    assert_true(near(spec_cost_distinct(4, 1, 0), 0));
    assert_true(near(spec_cost_distinct(4, 1, 1), 1));
    assert_true(near(spec_cost_distinct(4, 1, 2), 1.75));
    assert_true(near(spec_cost_distinct(128, 8, 1), 8));
    assert_true(near(spec_cost_distinct(128, 8, 4), 29.123046875)); /* 128 (1 - (15/16)^4) */
    assert_true(near(spec_cost_distinct(8, 8, 3), 8));
}

/* Two layers with 4 experts, of which 1 is used, and one dense layer. */
static const struct moe_shape three_layers = { .n_layer = 3,
                                               .n_moe_layer = 2,
                                               .n_expert = 4,
                                               .n_used = 1,
                                               .n_expert_total = 8,
                                               .expert_file_bytes = 800,
                                               .pass_bytes = 300 };
static const struct eng_machine slow_disk = { .disk_Bps = 50, .dram_Bps = 1000, .mac_ps = 10000 };

/* Shares of the rates: memory and experts' multiply-adds 0.88, the other multiply-adds 0.45, disk 0.92. */
static void the_slowest_tier_sets_the_pace(void **state)
{
    (void)state;
    struct moe_shape shape = three_layers;
    shape.d_model = 5000000;
    shape.d_expert = 8;
    shape.row_macs = 1000; /* 240 by experts */
    shape.position_macs = 24;
    struct eng_split split = { .n_expert = 8, .n_resident = 6 };
    struct eng_machine machine = slow_disk;
    struct eng_forecast f;
    shape.pass_format_bytes[KN_Q8_0] = 300;
    shape.expert_format_bytes[KN_Q4_K] = 800;
    for (int i = 0; i < ENG_PRODUCT_ROWS; i++) { /* the more rows, the slower */
        machine.products.Bps[KN_Q8_0][i] = 800.0 / (i + 1);
        machine.products.Bps[KN_Q4_K][i] = 500.0 / (i + 1);
    }
    eng_plan_forecast(&f, &(struct eng_setting){ &shape, &split, machine, 10, 5 }, 2);
    assert_true(near(f.experts, 1.75) && near(f.misses, 0.875) && near(f.disk_bytes, 87.5));
    assert_true(near(f.dram_bytes, 300 + 350 + 100)); /* dense, 3.5 experts, 10 positions */
    assert_true(near(f.macs, 2000 + 240));            /* 10 positions of 2 x 12 */
    assert_true(near(f.disk_s, 1.75) && near(f.dram_s, 0.75) && near(f.mac_s, 0.224));
    double other = 300.0 / 400 + 0.1 + 0.024 / 0.15 + 30e-6 + 2 * 3 * 5e6 * 4e-9, disk = 1.75 / 0.92 + other;
    assert_true(near(f.pass_s, disk) && near(f.tokens_per_s, 2 / disk));
    assert_string_equal(f.bound_by, "disk");

    machine.disk_Bps = 1000; /* an expert has 2 / 1.75 rows */
    eng_plan_forecast(&f, &(struct eng_setting){ &shape, &split, machine, 10, 5 }, 2);
    double share = 2 / 1.75 - 1;
    assert_true(near(f.pass_s, 350.0 * ((1 - share) / 500 + share / 250) + other));
    assert_string_equal(f.bound_by, "dram");

    machine.mac_ps = 1000;
    eng_plan_forecast(&f, &(struct eng_setting){ &shape, &split, machine, 10, 5 }, 2);
    assert_true(near(f.pass_s, 350.0 * ((1 - share) / 500 + share / 250) + other + 0.216 / 0.15));
    assert_string_equal(f.bound_by, "operations");

    split.n_resident = 8; /* no reads: the disk rate may be unknown */
    machine.disk_Bps = 0;
    eng_plan_forecast(&f, &(struct eng_setting){ &shape, &split, machine, 10, 5 }, 2);
    assert_true(f.disk_s == 0 && f.misses == 0);

    shape = (struct moe_shape){ .n_layer = 2, .pass_bytes = 300, .row_macs = 1000, .position_macs = 24 };
    shape.pass_format_bytes[KN_Q8_0] = 300;
    split = (struct eng_split){ 0 };
    eng_plan_forecast(&f, &(struct eng_setting){ &shape, &split, machine, 10, 0 }, 3);
    assert_true(near(f.dram_bytes, 300) && near(f.macs, 3000) && near(f.pass_s, 300 * 2.5 / 800 + 20e-6));
    eng_plan_forecast(&f, &(struct eng_setting){ &shape, &split, machine, 10, 0 },
                      64); /* beyond 32 rows: in proportion */
    assert_true(near(f.pass_s, 2.0 * 300 * 6 / 800 + 20e-6));
}

/* A device with the dense part and 2 of 8 experts; the host has 4 of the others in memory, and 2 are read. */
static void a_device_is_forecast(void **state)
{
    (void)state;
    struct moe_shape shape = three_layers;
    struct eng_split split = { .n_expert = 8, .n_resident = 4, .device = { .n_resident = 2 } };
    struct eng_machine machine = slow_disk;
    struct eng_device_forecast f;
    shape.expert_format_bytes[KN_Q4_K] = 800;
    for (int i = 0; i < ENG_PRODUCT_ROWS; i++)
        machine.products.Bps[KN_Q4_K][i] = 500;
    const struct eng_setting s = { &shape, &split, machine, 10, 5 };
    struct eng_setting fast = s;
    eng_plan_device_forecast(&f, &s, 4000, 2); /* 1.75 experts a layer: 350 bytes; 10 positions: 100 */
    assert_true(near(f.device_bytes, 300 + 100 + 87.5) && near(f.host_bytes, 262.5) && near(f.disk_bytes, 87.5));
    double dense = 400 / 3000.0, host = 262.5 / 500 + 40e-6, disk = 87.5 / 50 / 0.92;
    assert_true(near(f.device_s, dense + 87.5 / 3000) && near(f.host_s, host) && near(f.disk_s, disk));
    assert_true(near(f.pass_s, dense + disk) && near(f.tokens_per_s, 2 / f.pass_s));
    assert_string_equal(f.bound_by, "disk");

    fast.machine.disk_Bps = 1e6;
    eng_plan_device_forecast(&f, &fast, 4000, 2);
    assert_true(near(f.pass_s, dense + host)); /* the host's experts come behind the dense part */
    assert_string_equal(f.bound_by, "host");

    split.device.n_resident = 8; /* all on the device: the host has nothing to do */
    eng_plan_device_forecast(&f, &fast, 4000, 2);
    assert_true(f.host_s == 0 && f.host_bytes == 0 && f.disk_s == 0 && near(f.pass_s, dense + 350 / 3000.0));
    assert_string_equal(f.bound_by, "device");

    eng_plan_device_forecast(&f, &fast, 1e9, 2); /* memory takes less time than 10 launches in each of 3 layers */
    assert_true(near(f.pass_s, 3 * 10 * 2.5e-6));
    eng_plan_device_forecast(&f, &fast, 1e9, 1);
    assert_true(near(f.pass_s, 3 * 9 * 2.5e-6));
}

/* The same model: 2 layers of 4 experts, 1 used. An expert in both layers takes 200 bytes and 2 x 3 x 4 x 5
 * multiply-adds. */
static void a_forecast_is_a_cost_model_too(void **state)
{
    (void)state;
    struct moe_shape shape = three_layers;
    shape.d_model = 4;
    shape.d_expert = 5;
    shape.row_macs = 1000;
    struct eng_split split = { .n_expert = 8, .n_resident = 6 };
    struct eng_machine machine = slow_disk;
    struct spec_cost_model c;
    eng_plan_cost(&c, &(struct eng_setting){ &shape, &split, machine, 0, 0 });
    assert_true(near(c.fixed_ns, 300 / 880. * 1e9) && near(c.load_ns, 200 / 880. * 1e9));
    assert_true(near(c.disk_ns, 50 / 50. * 1e9));
    assert_true(near(c.dense_ns, 880 / 4500. * 1e9) && near(c.expert_ns, 120 / 4500. * 1e9));
    assert_true(near(spec_cost_pass_ns(&c, 2, 0, 0), 1.75e9)); /* the disk time, as above */
    double all_ns = c.disk_ns;                                 /* of the two experts without room on the host */
    assert_true(all_ns > 0 && !eng_split_is_whole(&split));
    split.device = (struct eng_device_split){ .total = 1, .n_resident = 1 };
    eng_plan_cost(&c, &(struct eng_setting){ &shape, &split, machine, 0, 0 });
    assert_true(near(c.disk_ns, all_ns / 2) && !eng_split_is_whole(&split));
    for (split.device.n_resident = 2; split.device.n_resident < 4; split.device.n_resident++) {
        eng_plan_cost(&c, &(struct eng_setting){ &shape, &split, machine, 0, 0 });
        assert_true(c.disk_ns == 0 && eng_split_is_whole(&split));
    }
    split.device = (struct eng_device_split){ .total = 0 };
    split.n_resident = 8; /* bytes and operations from the first row on */
    eng_plan_cost(&c, &(struct eng_setting){ &shape, &split, machine, 0, 0 });
    for (int t = 1; t < 9; t++) {
        double u = spec_cost_distinct(4, 1, t);
        assert_true(near(spec_cost_pass_ns(&c, t, 0, 0), ((300 + 200 * u) / 880 + t * 1000 / 4500.) * 1e9));
    }
}

/* One sequence; drafts survive with probability 1, then 0.5. Two and three rows use 1.75 and 2.3125 of 4 experts. */
static void drafts_gain_what_bytes_and_sums_allow(void **state)
{
    (void)state;
    static const double survival[] = { 1, 0.5, 0, 0 };
    struct moe_shape shape = { .n_layer = 3,
                               .n_moe_layer = 2,
                               .n_expert = 4,
                               .n_used = 1,
                               .n_expert_total = 8,
                               .expert_file_bytes = 800,
                               .pass_bytes = 300,
                               .row_macs = 10 };
    struct eng_split split = { .n_expert = 8, .n_resident = 6 };
    struct eng_setting s = { .shape = &shape,
                             .split = &split,
                             .machine = { .disk_Bps = 50, .dram_Bps = 1000, .mac_ps = 10000 } };
    int depth;
    assert_true(near(eng_plan_gain(&s, 1, survival, 4, &depth), 2 / 1.75));
    assert_int_equal(depth, 1);
    assert_true(near(eng_plan_gain(&s, 1, survival, 0, &depth), 1));
    assert_int_equal(depth, 0);
    split.n_resident = 8; /* 500, 650 and 762.5 bytes */
    assert_true(near(eng_plan_gain(&s, 1, survival, 4, &depth), 2.5 * 500 / 762.5));
    assert_int_equal(depth, 2);
    s.machine.mac_ps = 10; /* bound by operations: each row costs the same */
    assert_true(near(eng_plan_gain(&s, 1, survival, 4, &depth), 1));
    assert_int_equal(depth, 0);
}

/* ---- the command --------------------------------------------------------------------------------- */

static char output[8192], said[1024];
static void keep_line(enum kn_level level, const char *line)
{
    (void)level;
    snprintf(said, sizeof said, "%s", line);
}

static char *gamma_flag; /* a further flag, or NULL */

/* draft: the --draft flag, or NULL. */
static int plan(char *path, char *host_mem, char *draft)
{
    static struct eng_config c;
    char *argv[] = { (char[]){ "-m" },
                     path,
                     (char[]){ "--threads=1" },
                     (char[]){ "--disk-rate=1G" },
                     (char[]){ "--dram-rate=8G" },
                     (char[]){ "--parallel=2" },
                     (char[]){ "--json" },
                     (char[]){ "--host-mem" },
                     host_mem,
                     draft,
                     gamma_flag };
    FILE *catch = tmpfile();
    assert_non_null(catch);
    malloc_trim(0); /* memory that an earlier plan has freed does not count */
    fflush(stdout);
    int kept = dup(1);
    dup2(fileno(catch), 1);
    kn_log_set(keep_line, KN_LOG_INFO);
    said[0] = 0;
    int status = eng_config_parse(&c, ENG_plan, 9 + !!draft + !!gamma_flag, argv);
    if (!status)
        status = eng_cmd_plan(&c);
    kn_log_set(NULL, KN_LOG_INFO);
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    rewind(catch);
    output[fread(output, 1, sizeof output - 1, catch)] = 0;
    fclose(catch);
    return status;
}

/* The number with this name on a line of output. Line 0 is the split, the others are batch sizes. */
static double number(int line, const char *name)
{
    char key[64], *at = output;
    for (; line > 0 && at; line--)
        at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL;
    snprintf(key, sizeof key, "\"%s\":", name);
    char *end = at ? strchr(at, '\n') : NULL, *found = at ? strstr(at, key) : NULL;
    if (!found || !end || found > end)
        fail_msg("%s is not in:\n%s", name, output);
    return strtod(found + strlen(key), NULL);
}

#define PATH_ROOM 64

static void write_model(char *path /* [PATH_ROOM] */, int n_layer, int n_vocab)
{
    struct kn_team *team;
    snprintf(path, PATH_ROOM, "/tmp/spillway-plan-%d.gguf", getpid());
    assert_int_equal(kn_team_open(&team, 1), 0);
    assert_int_equal(moe_synth(path, &(struct moe_synth_options){ .shape = "tiny-deepseek2",
                                                                  .n_layer = n_layer,
                                                                  .n_vocab = n_vocab,
                                                                  .format = KN_F16,
                                                                  .seed = 3,
                                                                  .team = team }),
                     0);
    kn_team_close(team);
}

/* A refusal names the smallest budget with these drafts, and it is enough. */
static void the_smallest_works(char *path, char *draft)
{
    static const char says[] = "raise --host-mem to ";
    char size[32];
    assert_int_equal(plan(path, (char[]){ "1M" }, draft), 2);
    assert_string_equal(output, "");
    assert_non_null(strstr(said, path));
    char *value = strstr(said, says);
    assert_non_null(value);
    snprintf(size, sizeof size, "%s", value + strlen(says));
    size[strcspn(size, ",")] = 0;
    assert_int_equal(plan(path, size, draft), 0);
    assert_string_equal(said, "");
}

static void the_command_prints_split_and_speed(void **state)
{
    (void)state;
    static const int batch[] = { 1, 4, 8, 16, 32 };
    char path[PATH_ROOM];
    write_model(path, 8, 300);

    the_smallest_works(path, NULL);
    double sum = number(0, "fixed_bytes") + number(0, "dense_bytes") + number(0, "step_bytes") + number(0, "kv_bytes") +
                 number(0, "expert_bytes") + number(0, "spare_bytes");
    assert_true(sum == number(0, "host_mem_bytes"));
    assert_true(number(0, "n_layer") == 8 && number(0, "n_moe_layer") == 7 && number(0, "n_expert") == 7 * 8);
    assert_true(number(0, "widened_bytes") == 0);
    double missing = 1 - number(0, "n_resident") / number(0, "n_expert");
    assert_true(missing > 0 && missing < 1);
    for (int i = 0; i < 5; i++) {
        assert_true(number(i + 1, "batch") == batch[i]);
        double misses = number(0, "n_moe_layer") * number(i + 1, "experts_per_layer") * missing;
        assert_true(number(i + 1, "misses") > misses * 0.99 && number(i + 1, "misses") < misses * 1.01);
        double disk = number(i + 1, "disk_tokens_per_s") * number(i + 1, "disk_bytes") / batch[i];
        assert_true(disk > 0x1p30 * 0.999 && disk < 0x1p30 * 1.001);
    }
    assert_int_equal(plan(path, (char[]){ "1G" }, NULL), 0);
    assert_true(number(0, "n_resident") == number(0, "n_expert") && number(5, "disk_bytes") == 0);
    assert_true(number(0, "n_ahead") == 0 && number(0, "ahead_bytes") == 0);
    unlink(path);
}

/* Where experts are on disk, fewer tokens are drafted in a pass than eight for each sequence. A number that the user sets
 * is kept, and the smallest budget works. */
static void few_are_drafted_where_memory_is_short(void **state)
{
    (void)state;
    char path[PATH_ROOM], size[32];
    write_model(path, 20, 300);
    assert_int_equal(plan(path, (char[]){ "1G" }, NULL), 0);
    assert_true(number(0, "n_draft_row") == 0);
    assert_int_equal(plan(path, (char[]){ "1G" }, (char[]){ "--draft=ngram" }), 0);
    assert_true(number(0, "n_draft_row") == 16);
    double half = number(0, "least_bytes") + number(0, "expert_bytes") / 2;

    the_smallest_works(path, (char[]){ "--draft=ngram" });

    snprintf(size, sizeof size, "%.0fK", half / 1024);
    assert_int_equal(plan(path, size, (char[]){ "--draft=ngram" }), 0);
    assert_true(number(0, "n_resident") < number(0, "n_expert"));
    double rows = number(0, "n_draft_row");
    assert_true(rows > 2 && rows < 16);
    struct eng_engine *e;
    struct eng_options o = { .model = path,
                             .isa = KN_ISA_COUNT - 1,
                             .n_thread = 1,
                             .n_parallel = 2,
                             .host_mem = (size_t)half,
                             .gamma = ENG_GAMMA_AUTO,
                             .n_draft = 1,
                             .room_for_gamma = 8 };
    assert_int_equal(eng_draft_parse(&o.draft[0], "ngram"), 0);
    malloc_trim(0);
    assert_int_equal(eng_describe(&e, &o), 0);
    assert_int_equal(eng_n_draft_row(e), 16);
    eng_close(e);
    gamma_flag = (char[]){ "--gamma=8" };
    assert_int_equal(plan(path, size, (char[]){ "--draft=ngram" }), 0);
    gamma_flag = NULL;
    assert_true(number(0, "n_draft_row") == 16);
    unlink(path);
}

/* Drafted rows are chosen before the memory of drafters is known. If it leaves no room for them, they are few. */
static void drafters_come_before_drafted_rows(void **state)
{
    (void)state;
    char path[PATH_ROOM], draft[128];
    write_model(path, 8, 30000);
    snprintf(draft, sizeof draft, "--draft=model:%s,tree=chain", path);
    the_smallest_works(path, draft);
    unlink(path);
}

/* An MTP layer takes no memory without --draft mtp; with it, its experts are counted. */
static void a_layer_ahead_is_planned_for_who_asks(void **state)
{
    (void)state;
    char path[64];
    struct kn_team *team;
    snprintf(path, sizeof path, "/tmp/spillway-plan-%d.gguf", getpid());
    assert_int_equal(kn_team_open(&team, 1), 0);
    assert_int_equal(moe_synth(path, &(struct moe_synth_options){ .shape = "tiny-glm4moe",
                                                                  .n_layer = 4,
                                                                  .ahead = true,
                                                                  .n_vocab = 300,
                                                                  .format = KN_F16,
                                                                  .seed = 3,
                                                                  .team = team }),
                     0);
    kn_team_close(team);
    assert_int_equal(plan(path, (char[]){ "1G" }, NULL), 0);
    double dense = number(0, "dense_bytes"), expert = number(0, "expert_bytes");
    assert_true(number(0, "n_ahead") == 1 && number(0, "ahead_bytes") > 0 && number(0, "n_expert_ahead") == 0);
    assert_true(number(0, "n_expert") == 3 * 8);
    assert_int_equal(plan(path, (char[]){ "1G" }, (char[]){ "--draft=mtp" }), 0);
    assert_true(number(0, "n_expert") == 4 * 8 && number(0, "n_expert_ahead") == 8);
    assert_true(number(0, "dense_bytes") > dense && number(0, "expert_bytes") > 1.3 * expert);
    assert_true(number(0, "n_resident") == 4 * 8);
    unlink(path);
}

/* The model's own context where it fits, else a doubling of 8192. */
static void default_context(void **state)
{
    (void)state;
    static const struct {
        int n_own;
        size_t n_fit;
        int want;
    } cases[] = {
        { 2048, 0, 2048 },       { 2048, 1 << 30, 2048 },     { 8192, 100, 8192 },
        { 32768, 0, 8192 },      { 32768, 16383, 8192 },      { 32768, 16384, 16384 },
        { 32768, 32767, 16384 }, { 32768, 32768, 32768 },     { 40960, 40959, 32768 },
        { 40960, 40960, 40960 }, { 131072, 1 << 20, 131072 }, { 1 << 24, (size_t)1 << 40, 1 << 24 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(eng_plan_ctx(cases[i].n_own, cases[i].n_fit), cases[i].want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_context),
        cmocka_unit_test(a_budget_is_split_from_the_top),
        cmocka_unit_test(too_little_is_refused_with_what_is_enough),
        cmocka_unit_test(from_the_least_on_everything_works),
        cmocka_unit_test(a_dense_model_has_no_experts),
        cmocka_unit_test(states_are_kept_with_a_tenth),
        cmocka_unit_test(the_memory_of_a_device_is_split_first),
        cmocka_unit_test(chunks_are_as_long_as_memory_allows),
        cmocka_unit_test(drafted_rows_may_take_a_little),
        cmocka_unit_test(few_are_drafted_where_memory_is_short),
        cmocka_unit_test(drafters_come_before_drafted_rows),
        cmocka_unit_test(a_device_is_forecast),
        cmocka_unit_test(distinct_experts_are_counted),
        cmocka_unit_test(the_slowest_tier_sets_the_pace),
        cmocka_unit_test(a_forecast_is_a_cost_model_too),
        cmocka_unit_test(drafts_gain_what_bytes_and_sums_allow),
        cmocka_unit_test(the_command_prints_split_and_speed),
        cmocka_unit_test(a_layer_ahead_is_planned_for_who_asks),
    };
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* freed large blocks leave the heap; a plan counts its size */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
