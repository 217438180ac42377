/* engine/cli/bench_run.c - passes of a benchmark: the sequences of a batch, the clock, and the figure that a clock
 * prints. */
#include "engine/cli/bench.h"
#include "engine/plan/disk_rate.h"
#include "engine/plan/plan.h"

#include <string.h>
#include <sys/resource.h>

#define WARM_PASSES 4 /* if all experts are in memory: caches and clock rates settle within a few */
#define WINDOW      8 /* passes over which a hit rate is counted */

const char *const eng_bench_how[ENG_BENCH_HOWS] = { "none", "in turn", "ahead" };

/* Fills b->prompt with a piece of b->text, or if that is empty with random tokens that are not special; `which` selects
 * the piece or seeds the tokens. */
static void make_prompt(struct eng_bench *b, uint64_t which)
{
    const struct eng_vocab *v = eng_vocab(b->engine);
    int n_vocab = eng_vocab_size(v);
    size_t n = (size_t)b->config->n_prompt;
    uint64_t at = kn_mix(which);
    if (b->text.n)
        memcpy(b->prompt, b->text.id + at % (b->text.n - n + 1), n * sizeof *b->prompt);
    for (int i = 0; !b->text.n && i < b->config->n_prompt;)
        if (eng_vocab_type(v, b->prompt[i] = (int32_t)(kn_mix(at += KN_GOLDEN) % (uint64_t)n_vocab)) ==
            ENG_TOKEN_NORMAL)
            i++;
}

int eng_bench_start_all(struct eng_bench *b, int batch)
{
    for (int i = 0; i < batch; i++) {
        make_prompt(b, (uint64_t)(batch * 4096 + i));
        struct eng_request r = {
            .token = b->prompt, .n_token = b->config->n_prompt, .n_predict = -1, .ignore_eos = true
        };
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

/* ---- a figure ---------------------------------------------------------------------------------------- */

/* Sets f->bytes and f->macs: weights, `positions` KV positions that attention reads, and one recurrent state read and
 * written for each row with logits. */
static void add_costs(const struct eng_bench *b, struct eng_figure *f, double positions)
{
    const struct moe_shape *s = moe_model_shape(eng_model(b->engine));
    double expert = s->n_expert ? (double)s->expert_file_bytes / s->n_expert : 0;
    if (b->apart) {
        f->bytes = f->host_experts * expert + f->copied_bytes;
        return;
    }
    double kv = (double)moe_kv_slot_bytes(eng_model(b->engine), b->config->kv);
    f->bytes = f->passes * ((double)s->pass_bytes + f->experts * expert) + kv * positions +
               2 * (double)s->state_bytes * f->logits;
    double head = (double)s->d_model * s->n_vocab; /* only rows with logits compute it */
    f->macs = f->rows * (s->row_macs - head) + f->logits * head + s->position_macs * positions;
}

static void print_json(const struct eng_bench *b, const struct eng_figure *f, double bound_s, const char *bound_by)
{
    struct rusage usage;
    const struct off_stats *s = &f->store;
    double asked = (double)(s->hits + s->misses);
    getrusage(RUSAGE_SELF, &usage);
    printf(
        "{\"what\":\"%s\",\"batch\":%d,\"tokens_per_s\":%.3f,\"bound_tokens_per_s\":%.3f,"
        "\"bound_by\":\"%s\",\"disk_Bps\":%.0f,\"dram_Bps\":%.0f,\"mac_per_s\":%.0f,"
        "\"host_mem_bytes\":%zu,\"peak_rss_bytes\":%ld,\"bytes_read\":%llu,\"mirror_bytes\":%llu,"
        "\"compulsory_bytes\":%.0f,\"by_share_bytes\":%.0f,\"wasted_bytes\":%llu,\"read_ahead\":%llu,\"read_ahead_used\":%llu,"
        "\"early_bytes\":%llu,\"hidden_bytes\":%llu,\"early_wasted_bytes\":%llu,\"hit_rate\":%.4f,"
        "\"stall_s\":%.3f,\"repack_s\":%.3f,\"seconds\":%.3f,\"experts_per_layer\":%.2f,"
        "\"slots\":%llu,\"experts\":%llu,\"packed\":%llu,\"drafter\":\"%s\",\"how\":\"%s\",\"gamma\":%d,"
        "\"tokens_per_pass\":%.2f,\"drafted\":%.0f,\"kept\":%.0f,\"link_Bps\":%.0f,\"copied_bytes\":%.0f,"
        "\"settled\":%s}\n",
        f->what, f->batch, f->tokens / f->seconds, bound_s > 0 ? f->tokens / bound_s : 0, bound_by, f->disk_Bps,
        b->rates.dram_Bps, b->rates.mac_ps, eng_memory(b->engine)->total - eng_memory(b->engine)->spare,
        usage.ru_maxrss * 1024L, (unsigned long long)s->read_bytes, (unsigned long long)s->mirror_bytes, f->least_read,
        f->by_share_read, (unsigned long long)s->wasted_bytes, (unsigned long long)s->soon_reads,
        (unsigned long long)s->soon_hits, (unsigned long long)s->early_bytes, (unsigned long long)s->early_used_bytes,
        (unsigned long long)s->early_wasted_bytes, asked ? (double)s->hits / asked : 1, (double)s->stall_ns / 1e9,
        (double)s->repack_ns / 1e9, f->seconds, f->experts, (unsigned long long)s->n_slot,
        (unsigned long long)s->n_expert, (unsigned long long)s->n_packed, f->drafter ? f->drafter : "none",
        eng_bench_how[f->way.how], f->way.gamma, f->tokens / f->passes, f->drafted, f->kept,
        b->link.refused ? b->link.other_Bps : b->link.pinned_Bps, f->copied_bytes, f->settled ? "true" : "false");
}

/* The columns that --verbose adds. */
static void print_more_columns(const struct eng_bench *b, const struct eng_figure *f)
{
    const struct off_stats *s = &f->store;
    printf(" %8.1f %9.1f", f->experts, f->bytes / f->seconds / 1e9);
    if (b->streams)
        printf(" %9.2f %4.0f %% %8.1f %9.1f %8.1f %6.1f %%", f->disk_Bps / 1e9,
               f->disk_Bps > 0 ? 100 * (double)s->read_bytes / f->seconds / f->disk_Bps : 0,
               (double)s->read_bytes / f->passes / 1e6, f->by_share_read / f->passes / 1e6,
               f->least_read / f->passes / 1e6,
               s->read_bytes ? 100.0 * (double)s->wasted_bytes / (double)s->read_bytes : 0);
}

/* Drafts and prefetches of the row above. */
static void print_drafts(const struct eng_figure *f)
{
    const struct off_stats *s = &f->store;
    if (f->drafter)
        printf("         %s %s: accepted %.0f of %.0f drafted tokens; per sequence and pass\n"
               "         %.2f drafted, %.2f generated\n",
               f->drafter, eng_bench_how[f->way.how], f->kept, f->drafted, f->drafted / f->passes / f->batch,
               f->tokens / f->passes / f->batch);
    if (s->early_bytes)
        printf("         prefetched %.1f MB, used %.1f, evicted unused %.1f\n", (double)s->early_bytes / 1e6,
               (double)s->early_used_bytes / 1e6, (double)s->early_wasted_bytes / 1e6);
    if (s->mirror_bytes)
        printf("         %.1f MB read from the mirror\n", (double)s->mirror_bytes / 1e6);
}

static void print_row(const struct eng_bench *b, const struct eng_figure *f, double bound_s, const char *bound_by)
{
    const struct off_stats *s = &f->store;
    printf("%-8s %5d %10.2f", f->what, f->batch, f->tokens / f->seconds);
    if (bound_s > 0)
        printf(" %10.2f  %4.0f %%  %-10s", f->tokens / bound_s, 100 * bound_s / f->seconds, bound_by);
    else
        printf(" %10s  %6s  %-10s", "-", "-", bound_by);
    if (b->streams)
        printf(" %6.1f %% %6.1f %%", 100.0 * (double)s->hits / (double)(s->hits + s->misses),
               100.0 * (double)s->stall_ns / 1e9 / f->seconds);
    if (b->config->verbose)
        print_more_columns(b, f);
    printf("%s\n", f->settled || !b->streams ? "" : " (not settled)");
    print_drafts(f);
}

static void print_figure(const struct eng_bench *b, const struct eng_figure *f)
{
    double by_dram = f->bytes / b->rates.dram_Bps, by_ops = f->macs / b->rates.mac_ps;
    double by_disk = f->disk_Bps > 0 ? f->least_read / f->disk_Bps : 0;
    double link_Bps = b->link.refused ? b->link.other_Bps
                                      : b->link.pinned_Bps; /* an upper bound if a part is not pinned */
    double by_link = link_Bps > 0 ? f->copied_bytes / link_Bps : 0;
    double bound_s = by_dram > by_ops ? by_dram : by_ops;
    const char *bound_by = by_dram > by_ops ? "dram" : "operations";
    if (by_disk > bound_s) {
        bound_s = by_disk;
        bound_by = "disk";
    }
    if (by_link > bound_s) {
        bound_s = by_link;
        bound_by = "link";
    }
    if (bound_s <= 0)
        bound_by = "device";
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
    return (struct off_stats){ .hits = now->hits - then->hits,
                               .misses = now->misses - then->misses,
                               .read_bytes = now->read_bytes - then->read_bytes,
                               .reads = now->reads - then->reads,
                               .mirror_bytes = now->mirror_bytes - then->mirror_bytes,
                               .soon_reads = now->soon_reads - then->soon_reads,
                               .soon_hits = now->soon_hits - then->soon_hits,
                               .wasted_bytes = now->wasted_bytes - then->wasted_bytes,
                               .stall_ns = now->stall_ns - then->stall_ns,
                               .early_bytes = now->early_bytes - then->early_bytes,
                               .early_used_bytes = now->early_used_bytes - then->early_used_bytes,
                               .early_wasted_bytes = now->early_wasted_bytes - then->early_wasted_bytes,
                               .repack_ns = now->repack_ns - then->repack_ns,
                               .n_slot = now->n_slot,
                               .n_empty = now->n_empty,
                               .n_expert = now->n_expert,
                               .n_packed = now->n_packed };
}

int eng_bench_stop_clock(struct eng_bench *b, struct eng_bench_start *s, struct eng_figure *f, double positions)
{
    struct off_store *store = moe_model_store(eng_model(b->engine));
    struct eng_stats engine;
    struct off_least least = { 0 };
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
    f->least_read = (double)least.optimal_bytes;
    f->by_share_read = (double)least.by_share_bytes;
    f->passes = (double)(engine.n_pass - s->engine.n_pass);
    if (f->passes < 1)
        return kn_fail(KN_EINVAL, "--gen %d: all tokens came before timing began: raise --gen", b->config->n_gen);
    f->rows = (double)(engine.n_row - s->engine.n_row);
    f->tokens = f->tokens > 0 ? f->tokens : (double)(engine.n_token - s->engine.n_token);
    f->logits = f->logits > 0 ? f->logits : f->rows;
    f->drafted = (double)(engine.n_draft - s->engine.n_draft);
    f->kept = (double)(engine.n_draft_kept - s->engine.n_draft_kept);
    f->experts = (engine.experts - s->engine.experts) / f->passes;
    f->host_experts = (double)(engine.device.n_host - s->engine.device.n_host);
    f->copied_bytes = (double)(engine.device.copied_bytes - s->engine.device.copied_bytes);
    add_costs(b, f, positions);
    if (!error)
        print_figure(b, f);
    return error;
}

/* Runs --warmup passes if that is given, or WARM_PASSES if all experts fit in memory.  Otherwise runs passes until the
 * expert slots are full and the hit rates of two windows in a row differ by less than 0.01 (*settled), but at most
 * ENG_BENCH_WARM.  Returns the number of passes, or KN_E*. */
int eng_bench_warm_up(struct eng_bench *b, int batch, bool *settled)
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
