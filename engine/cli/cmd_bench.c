/* spillway bench: measures speed, the bound that the machine sets, and the effect of drafts.
 *
 * For each batch size it runs that many sequences, each with its own prompt and seed, at temperature 1.  Prefill
 * is timed until the last prompt is computed.  Then warm-up passes run until the expert slots are full and the
 * hit rate is stable, then decode passes are timed.
 *
 * The bound beside a figure is the longest of three times: the bytes that an optimal cache of this size would
 * have read, at the disk's rate; the bytes touched, at the memory's rate; the operations, at the processor's
 * rate.  All rates are measured in the same run, outside the engine's own path.  The disk is measured right
 * before and right after each figure, and the better rate counts.
 *
 * bench_drafts.c measures the effect of drafts. */
#include "engine/base/base.h"
#include "engine/cli/bench.h"
#include "engine/plan/disk_rate.h"
#include "engine/plan/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TRACE_BYTES ((size_t)8 << 20)           /* memory reserved for traces while the model is loaded */
#define WARM_PASSES 4                           /* warm-up without streaming: CPU caches and clocks settle */
#define WINDOW      8                           /* passes of one hit-rate comparison */
#define HUGE_STRETCH 1e9                        /* no latency limit: prefill runs in whole chunks */

const char *const eng_bench_how[ENG_BENCH_HOWS] = { "none", "in turn", "ahead" };

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

/* Fills b->prompt with a piece of the text, or with random normal tokens; `which` selects the piece. */
static void make_prompt(struct eng_bench *b, uint64_t which)
{
    const struct eng_vocab *v = eng_vocab(b->engine);
    int n_vocab = eng_vocab_size(v);
    size_t n = (size_t)b->config->n_prompt;
    uint64_t at = kn_mix(which);
    if (b->text.n)
        memcpy(b->prompt, b->text.id + at % (b->text.n - n + 1), n * sizeof *b->prompt);
    for (int i = 0; !b->text.n && i < b->config->n_prompt; )
        if (eng_vocab_type(v, b->prompt[i] = (int32_t)(kn_mix(at += KN_GOLDEN) % (uint64_t)n_vocab)) ==
            ENG_TOKEN_NORMAL)
            i++;
}

int eng_bench_start_all(struct eng_bench *b, int batch)
{
    for (int i = 0; i < batch; i++) {
        make_prompt(b, (uint64_t)(batch * 4096 + i));
        struct eng_request r = { .token = b->prompt, .n_token = b->config->n_prompt, .n_predict = -1,
                                 .ignore_eos = true };
        r.sampling = b->config->sampling;
        r.sampling.seed = (uint64_t)(batch * 4096 + i);
        int error = eng_session_open(&b->session[i], b->engine);
        if (error || (error = eng_session_start(b->session[i], &r)))
            return error;
    }
    return 0;
}

void eng_bench_close_all(struct eng_bench *b, int batch)
{
    for (int i = 0; i < batch; i++)
        eng_session_close(b->session[i]);
}

int eng_bench_run_passes(struct eng_bench *b, int batch, int n)
{
    for (int started = 0, pass = 0; n > 0 ? pass < n : started < batch; pass++) {
        int got = eng_step(b->engine, b->event);
        if (got < 0)
            return got;
        for (int i = 0; i < got; i++) {
            int n_token;
            if (b->event[i].finish == ENG_FAILED)
                return b->event[i].status;
            eng_session_tokens(b->event[i].session, &n_token);
            started += n_token == b->config->n_prompt + 1;
        }
    }
    return 0;
}

/* Adds weights, the KV positions that attention reads, and the states that each token's row reads and writes. */
static void add_costs(const struct eng_bench *b, struct eng_figure *f, double positions)
{
    const struct moe_shape *s = moe_model_shape(eng_model(b->engine));
    double expert = s->n_expert ? (double)s->expert_file_bytes / s->n_expert : 0;
    double kv = (double)moe_kv_slot_bytes(eng_model(b->engine), b->config->kv);
    f->bytes = f->passes * ((double)s->pass_bytes + f->experts * expert) + kv * positions +
               2 * (double)s->state_bytes * f->logits;
    double head = (double)s->d_model * s->n_vocab;      /* only rows that want logits compute it */
    f->macs = f->rows * (s->row_macs - head) + f->logits * head + s->position_macs * positions;
}

static void print_json(const struct eng_bench *b, const struct eng_figure *f, double bound_s, const char *bound_by)
{
    struct rusage usage;
    const struct off_stats *s = &f->store;
    double asked = (double)(s->hits + s->misses);
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"what\":\"%s\",\"batch\":%d,\"tokens_per_s\":%.3f,\"bound_tokens_per_s\":%.3f,"
           "\"bound_by\":\"%s\",\"disk_Bps\":%.0f,\"dram_Bps\":%.0f,\"mac_per_s\":%.0f,"
           "\"host_mem_bytes\":%zu,\"peak_rss_bytes\":%ld,\"bytes_read\":%llu,\"mirror_bytes\":%llu,"
           "\"compulsory_bytes\":%.0f,\"wasted_bytes\":%llu,\"read_ahead\":%llu,\"read_ahead_used\":%llu,"
           "\"early_bytes\":%llu,\"hidden_bytes\":%llu,\"early_wasted_bytes\":%llu,\"hit_rate\":%.4f,"
           "\"stall_s\":%.3f,\"repack_s\":%.3f,\"seconds\":%.3f,\"experts_per_layer\":%.2f,"
           "\"slots\":%llu,\"experts\":%llu,\"packed\":%llu,\"drafter\":\"%s\",\"how\":\"%s\",\"gamma\":%d,"
           "\"tokens_per_pass\":%.2f,\"drafted\":%.0f,\"kept\":%.0f,\"settled\":%s}\n",
           f->what, f->batch, f->tokens / f->seconds, f->tokens / bound_s, bound_by, f->disk_Bps,
           b->rates.dram_Bps, b->rates.mac_ps, eng_memory(b->engine)->total - eng_memory(b->engine)->spare,
           usage.ru_maxrss * 1024L, (unsigned long long)s->read_bytes, (unsigned long long)s->mirror_bytes,
           f->least_read, (unsigned long long)s->wasted_bytes, (unsigned long long)s->soon_reads,
           (unsigned long long)s->soon_hits, (unsigned long long)s->early_bytes,
           (unsigned long long)s->early_used_bytes, (unsigned long long)s->early_wasted_bytes,
           asked ? (double)s->hits / asked : 1,
           (double)s->stall_ns / 1e9, (double)s->repack_ns / 1e9, f->seconds, f->experts,
           (unsigned long long)s->n_slot, (unsigned long long)s->n_expert, (unsigned long long)s->n_packed,
           f->drafter ? f->drafter : "none", eng_bench_how[f->way.how], f->way.gamma,
           f->tokens / f->passes, f->drafted, f->kept, f->settled ? "true" : "false");
}

static void print_row(const struct eng_bench *b, const struct eng_figure *f, double bound_s, const char *bound_by)
{
    const struct off_stats *s = &f->store;
    printf("%-8s %5d %10.2f %10.2f  %4.0f %%  %-10s %8.1f %9.1f", f->what, f->batch, f->tokens / f->seconds,
           f->tokens / bound_s, 100 * bound_s / f->seconds, bound_by, f->experts, f->bytes / f->seconds / 1e9);
    if (b->streams)
        printf(" %6.1f %% %9.2f %9.2f %6.1f %% %6.1f %%%s", 100.0 * (double)s->hits / (double)(s->hits + s->misses),
               (double)s->read_bytes / f->seconds / 1e9, f->disk_Bps / 1e9,
               s->read_bytes ? 100.0 * (double)s->wasted_bytes / (double)s->read_bytes : 0,
               100.0 * (double)s->stall_ns / 1e9 / f->seconds, f->settled ? "" : "  (not settled)");
    if (f->drafter)
        printf("  %s %s: accepted %.0f of %.0f drafted tokens; per sequence and pass %.2f drafted, %.2f generated",
               f->drafter, eng_bench_how[f->way.how], f->kept, f->drafted, f->drafted / f->passes / f->batch,
               f->tokens / f->passes / f->batch);
    if (s->early_bytes)
        printf(", prefetched %.1f MB, used %.1f, evicted unused %.1f", (double)s->early_bytes / 1e6,
               (double)s->early_used_bytes / 1e6, (double)s->early_wasted_bytes / 1e6);
    if (s->mirror_bytes)
        printf(", %.1f MB read from the mirror", (double)s->mirror_bytes / 1e6);
    printf("\n");
}

static void print_figure(const struct eng_bench *b, const struct eng_figure *f)
{
    double by_dram = f->bytes / b->rates.dram_Bps, by_ops = f->macs / b->rates.mac_ps;
    double by_disk = f->disk_Bps > 0 ? f->least_read / f->disk_Bps : 0;
    double bound_s = by_dram > by_ops ? by_dram : by_ops;
    const char *bound_by = by_dram > by_ops ? "dram" : "operations";
    if (by_disk > bound_s) {
        bound_s = by_disk;
        bound_by = "disk";
    }
    if (b->config->json)
        print_json(b, f, bound_s, bound_by);
    else
        print_row(b, f, bound_s, bound_by);
    fflush(stdout);
}

/* ---- the clock --------------------------------------------------------------------------------------- */

static int measure_disk(const struct eng_bench *b, double *Bps)
{
    return eng_disk_measure_model(moe_file_files(eng_file(b->engine)), b->config->mirror,
                                  eng_disk_room(b->config->host_mem), Bps);
}

int eng_bench_start_clock(struct eng_bench *b, struct eng_bench_start *s, int n_pass, int n_row)
{
    const struct moe_shape *shape = moe_model_shape(eng_model(b->engine));
    struct off_store *store = moe_model_store(eng_model(b->engine));
    *s = (struct eng_bench_start){ 0 };
    if (b->streams) {
        int error = measure_disk(b, &s->disk_Bps);
        if (error && error != KN_EUNSUPPORTED)
            return error;
        int most = kn_min(shape->n_expert, n_row * shape->n_used) + 1;
        s->trace.room = (size_t)n_pass * (size_t)shape->n_layer * (size_t)most;
        if (!(s->trace.item = kn_calloc(s->trace.room, sizeof *s->trace.item)))
            return kn_fail(KN_ENOMEM, "no memory to record %d passes", n_pass);
        off_store_record(store, &s->trace);
    }
    if (store)
        off_stats_get(store, &s->store);
    eng_stats_get(b->engine, &s->engine);
    s->ns = kn_now_ns();
    return 0;
}

static struct off_stats since(const struct off_stats *now, const struct off_stats *then)
{
    return (struct off_stats){
        .hits = now->hits - then->hits, .misses = now->misses - then->misses,
        .read_bytes = now->read_bytes - then->read_bytes, .reads = now->reads - then->reads,
        .mirror_bytes = now->mirror_bytes - then->mirror_bytes,
        .soon_reads = now->soon_reads - then->soon_reads, .soon_hits = now->soon_hits - then->soon_hits,
        .wasted_bytes = now->wasted_bytes - then->wasted_bytes, .stall_ns = now->stall_ns - then->stall_ns,
        .early_bytes = now->early_bytes - then->early_bytes,
        .early_used_bytes = now->early_used_bytes - then->early_used_bytes,
        .early_wasted_bytes = now->early_wasted_bytes - then->early_wasted_bytes,
        .repack_ns = now->repack_ns - then->repack_ns,
        .n_slot = now->n_slot, .n_empty = now->n_empty, .n_expert = now->n_expert,
        .n_packed = now->n_packed };
}

int eng_bench_stop_clock(struct eng_bench *b, struct eng_bench_start *s, struct eng_figure *f, double positions)
{
    struct off_store *store = moe_model_store(eng_model(b->engine));
    struct eng_stats engine;
    uint64_t least = 0;
    int error = 0;
    f->seconds = (double)(kn_now_ns() - s->ns) / 1e9;
    eng_stats_get(b->engine, &engine);
    if (store) {
        off_stats_get(store, &f->store);
        f->store = since(&f->store, &s->store);
    }
    if (b->streams) {
        off_store_record(store, NULL);
        kn_assert(!s->trace.full);
        error = off_store_least_read(store, &s->trace, &least);
        if (!error && measure_disk(b, &f->disk_Bps) == 0 && s->disk_Bps > f->disk_Bps)
            f->disk_Bps = s->disk_Bps;
    }
    kn_free(s->trace.item);
    f->least_read = (double)least;
    f->passes = (double)(engine.n_pass - s->engine.n_pass);
    if (f->passes < 1)
        return kn_fail(KN_EINVAL, "--gen %d: all tokens came before timing began: raise --gen", b->config->n_gen);
    f->rows = (double)(engine.n_row - s->engine.n_row);
    f->tokens = f->tokens > 0 ? f->tokens : (double)(engine.n_token - s->engine.n_token);
    f->logits = f->logits > 0 ? f->logits : f->rows;
    f->drafted = (double)(engine.n_draft - s->engine.n_draft);
    f->kept = (double)(engine.n_draft_kept - s->engine.n_draft_kept);
    f->experts = (engine.experts - s->engine.experts) / f->passes;
    add_costs(b, f, positions);
    if (!error)
        print_figure(b, f);
    return error;
}

/* Runs passes until the expert slots are full and the hit rates of two windows in a row differ by less than 0.01.
 * Returns the number of passes, or KN_E*. */
static int warm_up(struct eng_bench *b, int batch, bool *settled)
{
    struct off_store *store = moe_model_store(eng_model(b->engine));
    struct off_stats then, now;
    double before = -1;
    int passes = 0, error = 0;
    *settled = !b->streams;
    if (b->config->n_warmup >= 0 || !b->streams) {
        passes = b->config->n_warmup >= 0 ? b->config->n_warmup : WARM_PASSES;
        error = passes ? eng_bench_run_passes(b, batch, passes) : 0;
        return error ? error : passes;
    }
    while (!*settled && passes < ENG_BENCH_WARM) {
        off_stats_get(store, &then);
        if ((error = eng_bench_run_passes(b, batch, WINDOW)))
            return error;
        passes += WINDOW;
        off_stats_get(store, &now);
        struct off_stats s = since(&now, &then);
        double hits = (double)s.hits / (double)(s.hits + s.misses);
        *settled = s.n_empty == 0 && hits > before - 0.01 && hits < before + 0.01;
        before = hits;
    }
    return passes;
}

static int bench_batch(struct eng_bench *b, int batch)
{
    const struct eng_config *c = b->config;
    struct eng_figure prefill = { .what = "prefill", .batch = batch, .tokens = (double)batch * c->n_prompt,
                              .logits = batch };
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
        int warm = warm_up(b, batch, &settled);
        if (warm < 0 || (error = eng_bench_start_clock(b, &start, c->n_gen, batch)) ||
            (error = eng_bench_run_passes(b, batch, c->n_gen)))
            return warm < 0 ? warm : error;
        decode.settled = settled;
        error = eng_bench_stop_clock(b, &start, &decode, batch * m * (n + warm + (m + 1) / 2));
    }
    eng_bench_close_all(b, batch);
    return !error && c->n_gen && *b->drafter ? eng_bench_drafts(b, batch) : error;
}

/* Called before the model is loaded: the probe's memory and the model's are not allocated at the same time. */
static int measure_machine(struct eng_bench *b)
{
    struct kn_team *team;
    int error = kn_team_open(&team, b->config->n_thread);
    if (error)
        return error;
    error = eng_measure(&b->rates, kn_ops(b->config->isa), team, b->config->host_mem / 2);
    kn_team_close(team);
    return error;
}

/* Waits until the expert cache is filled: timings of the first seconds would not be typical. */
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
    static const char *const name[] = { "none", "ngram", "suffix", "model", "eagle", "mtp", "oracle" };
    size_t n = 0;
    for (int i = 0; i < b->config->n_draft && n < sizeof b->drafter; i++) {
        const struct eng_draft_option *w = &b->config->draft[i];
        if (w->kind == ENG_DRAFT_NONE)
            continue;
        n += (size_t)snprintf(b->drafter + n, sizeof b->drafter - n, "%s%s", n ? "+" : "", name[w->kind]);
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

static int open_bench(struct eng_bench *b)
{
    const struct eng_config *c = b->config;
    struct eng_progress *bar;
    int error = measure_machine(b);
    if (error || (error = eng_progress_open(&bar, "loading", c->quiet)))
        return error;
    int need = c->n_prompt + c->n_gen + (c->n_warmup < 0 ? ENG_BENCH_WARM : c->n_warmup) + 2;
    struct eng_options o = eng_config_options(c);
    o.n_parallel = b->most;
    o.n_ctx = c->n_ctx ? c->n_ctx : need;
    o.stretch = HUGE_STRETCH;
    o.aside = eng_disk_room(o.host_mem) + TRACE_BYTES;
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
        return kn_fail(KN_EINVAL, "%d sequences of %d tokens do not fit the KV cache of %d positions: raise "
                       "--host-mem or --kv-mem, or lower --batch or --gen", b->most, need,
                       eng_memory(b->engine)->n_kv_slot);
    eng_bench_draft(b, (struct eng_bench_way){ ENG_BENCH_NONE, 0 });      /* first measure without drafts */
    name_drafters(b);
    if ((error = read_text(b)))
        return error;
    wait_until_filled(b);
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
           eng_memory(b->engine)->n_resident, eng_memory(b->engine)->n_expert,
           s.n_packed ? "the pack file" : "disk", off_store_io(store));
}

static void print_heading(const struct eng_bench *b)
{
    printf("memory %.1f GB/s, %.0f G int8 multiply-adds/s (%s, %d threads)\n", b->rates.dram_Bps / 1e9,
           b->rates.mac_ps / 1e9, kn_isa_name(moe_model_ops(eng_model(b->engine))->isa),
           kn_team_size(eng_team(b->engine)));
    if (b->streams)
        print_streaming(b);
    printf("%-8s %5s %10s %10s  %6s  %-10s %8s %9s", "phase", "batch", "tokens/s", "bound", "share", "bound by",
           "experts", "GB/s");
    if (b->streams)
        printf(" %8s %9s %9s %8s %8s", "hit rate", "read GB/s", "disk GB/s", "wasted", "stalled");
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
