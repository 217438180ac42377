/* engine/cli/cmd_bench.c - spillway bench: measures speed, the bound that the machine sets, and the effect of drafts.
 *
 * For each batch size it runs that many sequences, each with its own prompt and seed, at temperature 1.  Prefill
 * is timed until the last prompt is computed.  Then warm-up passes run until the expert slots are full and the
 * hit rate is stable, then decode passes are timed.
 *
 * The bound beside a figure is the longest of three times: the bytes that an optimal cache of this size would
 * have read, at the disk's rate; the bytes touched, at the memory's rate; the operations, at the processor's
 * rate.  All rates are measured in the same run, outside the engine's own path.  The disk is measured right
 * before and right after each figure, and the better rate counts.  With a device that has memory of its own the bytes
 * touched are those of experts that the host computes or copies, and a further time is that of the copied bytes at the link's
 * rate; the device's own rates are not known.
 *
 * Where experts are read, three figures split the distance to that bound: the share of the disk's rate that the reads
 * reached ("wire"), and the bytes read a pass beside those that two caches of this size would have read: the best
 * without foresight, which knows how often each expert is used and not when ("by share"), and the optimal one.
 *
 * bench_run.c runs and times sequences; bench_drafts.c measures the effect of drafts. */
#include "engine/base/base.h"
#include "engine/cli/bench.h"
#include "engine/kv/kv.h"
#include "engine/plan/disk_rate.h"
#include "engine/plan/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRACE_BYTES  ((size_t)8 << 20) /* memory that the engine leaves free, for the traces of used experts */
#define HUGE_STRETCH 1e9               /* max_prefill_slowdown: no limit, prefill runs in whole chunks */

static int parse_batches(struct eng_bench *b)
{
    const char *s = b->config->batches ? b->config->batches : "1";
    while (*s) {
        char *end;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (end == s || errno || v < 1 || v > 4096 || (*end && *end != ',') || b->n_batch == ENG_BENCH_BATCHES)
            return kn_fail(KN_EINVAL, "--batch: '%.20s' is not a list of up to %d numbers from 1 to 4096, as in 1,4,16",
                           s, ENG_BENCH_BATCHES);
        b->batch[b->n_batch++] = (int)v;
        b->most = kn_max(b->most, (int)v);
        s = *end ? end + 1 : end;
    }
    return b->n_batch ? 0 : kn_fail(KN_EINVAL, "--batch is empty");
}

static int bench_batch(struct eng_bench *b, int batch)
{
    const struct eng_config *c = b->config;
    struct eng_figure prefill = {
        .what = "prefill", .batch = batch, .tokens = (double)batch * c->n_prompt, .logits = batch
    };
    struct eng_figure decode = { .what = "decode", .batch = batch };
    double n = c->n_prompt, m = c->n_gen;
    int chunk = eng_n_chunk(b->engine), n_row = kn_min(chunk, batch * c->n_prompt);
    struct eng_bench_start start;
    int error = eng_bench_start_all(b, batch);
    if (error || (error = eng_bench_start_clock(b, &start, batch * c->n_prompt / chunk + batch + 2, n_row)) ||
        (error = eng_bench_run_passes(b, batch, 0)) ||
        (error = eng_bench_stop_clock(b, &start, &prefill, batch * n * (n + 1) / 2)))
        return error;
    if (c->n_gen) {
        bool settled;
        int warm = eng_bench_warm_up(b, batch, &settled);
        if (warm < 0 || (error = eng_bench_start_clock(b, &start, c->n_gen, batch)) ||
            (error = eng_bench_run_passes(b, batch, c->n_gen)))
            return warm < 0 ? warm : error;
        decode.settled = settled;
        error = eng_bench_stop_clock(b, &start, &decode, batch * m * (n + warm + (m + 1) / 2));
    }
    eng_bench_close_all(b, batch);
    return !error && c->n_gen && *b->drafter ? eng_bench_drafts(b, batch) : error;
}

/* Measures memory and multiply-add rates.  Called before the model is loaded, so that the memory of the measurement and
 * that of the model are not allocated at the same time. */
static int measure_machine(struct eng_bench *b)
{
    struct kn_team *team;
    int error = kn_team_open(&team, b->config->n_thread);
    if (error)
        return error;
    error = eng_host_rate_measure(&b->rates, kn_ops(b->config->isa), team, b->config->host_mem / 2);
    kn_team_close(team);
    return error;
}

/* Waits until the expert slots are filled, since passes before would be slower than typical. */
static void wait_until_filled(const struct eng_bench *b)
{
    struct off_store *store = moe_model_store(eng_model(b->engine));
    struct off_stats s = { .filling = store != NULL };
    for (; s.filling; usleep(10000))
        off_stats_get(store, &s);
}

/* Names all drafters for the output.  An oracle is named with its acceptance rate, as it is no real drafter. */
static void name_drafters(struct eng_bench *b)
{
    size_t n = 0;
    for (int i = 0; i < b->config->n_draft && n < sizeof b->drafter; i++) {
        const struct eng_draft_option *w = &b->config->draft[i];
        if (w->kind == ENG_DRAFT_NONE)
            continue;
        n += (size_t)snprintf(b->drafter + n, sizeof b->drafter - n, "%s%s", n ? "+" : "",
                              eng_draft_properties(w->kind)->name);
        if (w->kind == ENG_DRAFT_ORACLE && n < sizeof b->drafter)
            n += (size_t)snprintf(b->drafter + n, sizeof b->drafter - n, ":%g", w->right);
    }
}

/* Reads and tokenizes the text of --file; prompts are pieces of it. */
static int read_text(struct eng_bench *b)
{
    const struct eng_config *c = b->config;
    char *text = NULL;
    size_t n = 0;
    int error = c->input ? eng_read_file(c->input, &text, &n) : 0;
    if (!error && c->input)
        error = eng_tokenize(eng_vocab(b->engine), text, n, ENG_TEXT_PARSE_SPECIAL, &b->text);
    kn_free(text);
    if (!error && c->input && b->text.n < (size_t)c->n_prompt)
        error = kn_fail(KN_EINVAL, "%s has %zu tokens, fewer than --prompt %d", c->input, b->text.n, c->n_prompt);
    return error;
}

static size_t reserved(const void *arg, size_t host_mem)
{
    const struct eng_config *c = arg;
    return eng_disk_room(host_mem) + TRACE_BYTES + (c->device ? ENG_LINK_BYTES : 0);
}

static int open_bench(struct eng_bench *b)
{
    const struct eng_config *c = b->config;
    struct eng_progress *bar;
    int error = measure_machine(b);
    if (error || (error = eng_progress_open(&bar, "loading", c->quiet)))
        return error;
    int need = c->n_prompt + c->n_gen + (c->n_warmup < 0 ? ENG_BENCH_WARM : c->n_warmup) + 2;
    struct eng_options o = eng_config_options(c, false);
    o.n_parallel = b->most;
    o.room_for_gamma = eng_bench_most_drafted(c);
    o.n_ctx = c->n_ctx ? c->n_ctx : need;
    o.max_prefill_slowdown = HUGE_STRETCH;
    o.reserve_of = reserved;
    o.reserve_arg = c;
    o.reserved_bytes = reserved(c, o.host_mem);
    o.progress = eng_progress_counter(bar);
    error = eng_open(&b->engine, &o);
    eng_progress_close(bar);
    if (error)
        return error;
    if (need > eng_n_ctx(b->engine))
        return kn_fail(KN_EINVAL, "--prompt, --gen and the warm-up need %d tokens, --ctx-size is %d", need,
                       eng_n_ctx(b->engine));
    int n_kv = (int)kn_align_up((size_t)need, ENG_KV_BLOCK);
    if (eng_memory(b->engine)->n_kv_slot / n_kv < b->most)
        return kn_fail(KN_EINVAL,
                       "%d sequences of %d tokens do not fit the KV cache of %d positions: raise "
                       "--host-mem or --kv-mem, or lower --batch or --gen",
                       b->most, need, eng_memory(b->engine)->n_kv_slot);
    eng_bench_draft(b, (struct eng_bench_way){ ENG_BENCH_NONE, 0 }); /* first measure without drafts */
    name_drafters(b);
    if ((error = read_text(b)))
        return error;
    wait_until_filled(b);
    b->apart = eng_memory(b->engine)->device.total > 0;
    if (b->apart && eng_link_rate_measure(&b->link, moe_model_device(eng_model(b->engine)), eng_team(b->engine))) {
        b->link = (struct eng_link_rate){ .refused = "not measured" };
        kn_say(KN_LOG_WARN,
               "the link to the device is not among the bounds: a smaller --device-mem leaves memory for it");
    }
    b->streams = eng_memory(b->engine)->n_resident < eng_memory(b->engine)->n_expert;
    b->session = kn_calloc((size_t)b->most, sizeof(struct eng_session *));
    b->event = kn_calloc((size_t)eng_event_room(b->engine), sizeof *b->event);
    b->prompt = kn_calloc((size_t)c->n_prompt, sizeof *b->prompt);
    b->said = kn_calloc((size_t)b->most * (size_t)kn_max(1, c->n_gen), sizeof *b->said);
    b->n_said = kn_calloc((size_t)b->most, sizeof *b->n_said);
    if (!b->session || !b->event || !b->prompt || !b->said || !b->n_said)
        return kn_fail(KN_ENOMEM, "no memory for %d sequences", b->most);
    return 0;
}

static void print_streaming(const struct eng_bench *b)
{
    struct off_store *store = moe_model_store(eng_model(b->engine));
    struct off_stats s;
    off_stats_get(store, &s);
    printf("%d of %d experts fit in memory; the others are read from %s when needed (%s)\n",
           eng_memory(b->engine)->n_resident, eng_memory(b->engine)->n_expert, s.n_packed ? "the pack file" : "disk",
           off_store_io(store));
}

static void print_heading(const struct eng_bench *b)
{
    printf("memory %.1f GB/s, %.0f G int8 multiply-adds/s (%s, %d threads)\n", b->rates.dram_Bps / 1e9,
           b->rates.mac_ps / 1e9, kn_isa_name(moe_model_ops(eng_model(b->engine))->isa),
           kn_team_size(eng_team(b->engine)));
    if (b->apart && b->link.refused)
        printf("link %.1f GB/s through a buffer; no memory is pinned (%s)\n", b->link.other_Bps / 1e9, b->link.refused);
    else if (b->apart)
        printf("link %.1f GB/s from pinned memory, %.1f from other memory\n", b->link.pinned_Bps / 1e9,
               b->link.other_Bps / 1e9);
    if (b->streams)
        print_streaming(b);
    printf("%-8s %5s %10s %10s  %6s  %-10s", "phase", "batch", "tokens/s", "bound", "share", "bound by");
    if (b->streams)
        printf(" %8s %8s", "hit rate", "stalled");
    if (b->config->verbose)
        printf(" %8s %9s", "experts", "GB/s");
    if (b->config->verbose && b->streams)
        printf(" %9s %6s %8s %9s %8s %8s", "disk GB/s", "wire", "read MB", "by share", "optimal", "wasted");
    printf("\n");
}

int eng_cmd_bench(const struct eng_config *config)
{
    struct eng_bench b = { .config = config };
    int error = config->n_prompt < 1 ? kn_fail(KN_EINVAL, "--prompt takes at least 1") : parse_batches(&b);
    if (!error && !(error = eng_bench_check(config)))
        error = open_bench(&b);
    if (!error && !config->json)
        print_heading(&b);
    for (int i = 0; i < b.n_batch && !error; i++)
        error = bench_batch(&b, b.batch[i]);
    eng_close(b.engine);
    kn_free(b.session);
    kn_free(b.event);
    kn_free(b.prompt);
    eng_ids_free(&b.text);
    kn_free(b.said);
    kn_free(b.n_said);
    return error ? 2 : 0;
}
