/* spillway bench: how fast, and how far from what the machine allows; and what drafts do to that.
 *
 * For each batch size: as many sequences with prompts of their own, sampled at temperature 1 with a seed
 * each.  Prefill is timed until the last prompt is read; then passes are warmed up, until the slots for
 * experts are full and the share of hits stands still, then timed.
 *
 * The bound beside a figure is the longest of three times: the bytes that an optimal cache of this size
 * would have read, at the disk's rate; the bytes touched, at the memory's; the operations, at the
 * processor's.  All rates are measured in the same run, outside the engine's own path, the disk's right
 * before and after each figure, of which the better one counts.
 *
 * With drafters, blocks without and with drafts alternate: the same sequences from the same prompts, so the
 * same tokens, which is checked where --verify is coupled; the ratio is that of the two blocks of a pair.  With
 * --dsi a third joins them, drafted ahead while passes run.  The controller, where it decides, has rehearsed before.
 * Beside the ratio stands what bytes and operations would allow. */
#include "engine/cli.h"
#include "engine/disk.h"
#include "engine/engine.h"
#include "engine/internal.h"
#include "engine/measure.h"
#include "engine/plan.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAX_BATCHES 16
#define PROBE_BYTES (ENG_DISK_BYTES + ((size_t)8 << 20))        /* the disk's probe and the traces, while the model is there */
#define WARM_PASSES 4                           /* caches and clocks settle within a few */
#define MOST_WARM   96                          /* and experts, when they come from disk, in some tens */
#define WINDOW      8                           /* passes over which hits are compared */
#define DRAFT_WARM  8                           /* tokens of a block that are not timed */
#define DRAFT_DEPTH 8                           /* drafts that the ideal is looked for among */
#define MAX_ROUNDS  64
#define HUGE_STRETCH 1e9                        /* prompts are timed in whole chunks, whoever waits */

/* How a block is drafted for. */
enum how { NOT, IN_TURN, AHEAD, N_HOW };
static const char *const how_name[] = { "none", "in turn", "ahead" };

struct bench {
    const struct eng_config *config;
    struct eng_engine *engine;
    struct eng_rates rates;
    int batch[MAX_BATCHES], n_batch, most;
    struct eng_session **session;               /* [most] */
    struct eng_event *event;                    /* [eng_event_room] */
    int32_t *prompt;                            /* [n_prompt] */
    struct eng_ids text;                        /* prompts are pieces of it, unless it is empty */
    int32_t *said;                              /* [most][n_gen] without drafts */
    int *n_said;                                /* [most] */
    char drafter[64];                           /* its name in the output */
    bool rehearsed;                             /* the controller has found what to do, or there is none */
    bool streams;                               /* not all experts fit */
};

struct figure {
    const char *what;
    int batch;
    const char *drafter;                        /* "none" */
    int gamma;
    enum how how;
    double seconds, tokens, passes, rows, logits, drafted, kept;
    double bytes, macs;                         /* of all passes */
    double experts;                             /* per layer and pass */
    double disk_Bps, least_read;                /* bytes that an optimal cache would have read */
    struct off_stats store;                     /* while it was timed */
    bool settled;
};

/* What a figure's figures are taken from: as it stood when the clock was started. */
struct start {
    struct eng_stats engine;
    struct off_stats store;
    struct off_trace trace;
    double disk_Bps;
    uint64_t ns;
};

static int parse_batches(struct bench *b)
{
    const char *s = b->config->batches ? b->config->batches : "1";
    while (*s) {
        char *end;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (end == s || errno || v < 1 || v > 4096 || (*end && *end != ',') || b->n_batch == MAX_BATCHES)
            return kn_fail(KN_EINVAL, "--batch: '%.20s': up to %d numbers from 1 to 4096, as in 1,4,16",
                           s, MAX_BATCHES);
        b->batch[b->n_batch++] = (int)v;
        b->most = kn_max(b->most, (int)v);
        s = *end ? end + 1 : end;
    }
    return b->n_batch ? 0 : kn_fail(KN_EINVAL, "--batch is empty");
}

/* A piece of the text, or plain tokens only; another sequence for every (batch, index). */
static void make_prompt(struct bench *b, uint64_t which)
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

static int start_all(struct bench *b, int batch)
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

static void close_all(struct bench *b, int batch)
{
    for (int i = 0; i < batch; i++)
        eng_session_close(b->session[i]);
}

/* Steps until every sequence has got a token, or n passes when n > 0. */
static int run_passes(struct bench *b, int batch, int n)
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

/* Weights, the keys and values that attention reads, and states, which a token's row reads and writes. */
static void add_costs(const struct bench *b, struct figure *f, double positions)
{
    const struct moe_shape *s = moe_model_shape(eng_model(b->engine));
    double expert = s->n_expert ? (double)s->expert_file_bytes / s->n_expert : 0;
    double kv = (double)moe_kv_slot_bytes(eng_model(b->engine), b->config->kv);
    f->bytes = f->passes * ((double)s->pass_bytes + f->experts * expert) + kv * positions +
               2 * (double)s->state_bytes * f->logits;
    double head = (double)s->d_model * s->n_vocab;      /* only rows that want logits pay for it */
    f->macs = f->rows * (s->row_macs - head) + f->logits * head + s->position_macs * positions;
}

static void print_json(const struct bench *b, const struct figure *f, double bound_s, const char *bound_by)
{
    struct rusage usage;
    const struct off_stats *s = &f->store;
    double asked = (double)(s->hits + s->misses);
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"what\":\"%s\",\"batch\":%d,\"tokens_per_s\":%.3f,\"bound_tokens_per_s\":%.3f,"
           "\"bound_by\":\"%s\",\"disk_Bps\":%.0f,\"dram_Bps\":%.0f,\"mac_per_s\":%.0f,"
           "\"host_mem_bytes\":%zu,\"peak_rss_bytes\":%ld,\"bytes_read\":%llu,\"mirror_bytes\":%llu,"
           "\"compulsory_bytes\":%.0f,\"wasted_bytes\":%llu,\"read_ahead\":%llu,\"read_ahead_used\":%llu,\"early_bytes\":%llu,"
           "\"hidden_bytes\":%llu,\"early_wasted_bytes\":%llu,\"hit_rate\":%.4f,"
           "\"stall_s\":%.3f,\"repack_s\":%.3f,\"seconds\":%.3f,\"experts_per_layer\":%.2f,"
           "\"slots\":%llu,\"experts\":%llu,\"packed\":%llu,\"drafter\":\"%s\",\"how\":\"%s\",\"gamma\":%d,\"tokens_per_pass\":%.2f,"
           "\"drafted\":%.0f,\"kept\":%.0f,\"settled\":%s}\n",
           f->what, f->batch, f->tokens / f->seconds, f->tokens / bound_s, bound_by, f->disk_Bps,
           b->rates.dram_Bps, b->rates.mac_ps, eng_memory(b->engine)->total - eng_memory(b->engine)->spare,
           usage.ru_maxrss * 1024L, (unsigned long long)s->read_bytes, (unsigned long long)s->mirror_bytes,
           f->least_read, (unsigned long long)s->wasted_bytes, (unsigned long long)s->soon_reads,
           (unsigned long long)s->soon_hits, (unsigned long long)s->early_bytes,
           (unsigned long long)s->early_used_bytes, (unsigned long long)s->early_wasted_bytes,
           asked ? (double)s->hits / asked : 1,
           (double)s->stall_ns / 1e9, (double)s->repack_ns / 1e9, f->seconds, f->experts,
           (unsigned long long)s->n_slot, (unsigned long long)s->n_expert, (unsigned long long)s->n_packed,
           f->drafter ? f->drafter : "none", how_name[f->how], f->gamma, f->tokens / f->passes, f->drafted, f->kept,
           f->settled ? "true" : "false");
}

static void print_row(const struct bench *b, const struct figure *f, double bound_s, const char *bound_by)
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
        printf("  %s %s: %.0f of %.0f kept, of %.2f drafted %.2f tokens a pass", f->drafter, how_name[f->how], f->kept,
               f->drafted, f->drafted / f->passes / f->batch, f->tokens / f->passes / f->batch);
    if (s->early_bytes)
        printf(", read early %.1f MB, of use %.1f, gone %.1f", (double)s->early_bytes / 1e6,
               (double)s->early_used_bytes / 1e6, (double)s->early_wasted_bytes / 1e6);
    if (s->mirror_bytes)
        printf(", %.1f MB from the second copy", (double)s->mirror_bytes / 1e6);
    printf("\n");
}

static void print_figure(const struct bench *b, const struct figure *f)
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

/* Passes come in whole chunks and at most one more for every sequence. */
static int start_clock(struct bench *b, struct start *s, int n_pass, int n_row)
{
    const struct moe_shape *shape = moe_model_shape(eng_model(b->engine));
    struct off_store *store = moe_model_store(eng_model(b->engine));
    *s = (struct start){ 0 };
    if (b->streams) {
        int error = eng_disk_measure_model(moe_file_files(eng_file(b->engine)), b->config->mirror, &s->disk_Bps);
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

static int stop_clock(struct bench *b, struct start *s, struct figure *f, double positions)
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
        if (!error && eng_disk_measure_model(moe_file_files(eng_file(b->engine)), b->config->mirror, &f->disk_Bps) == 0 &&
            s->disk_Bps > f->disk_Bps)
            f->disk_Bps = s->disk_Bps;
    }
    kn_free(s->trace.item);
    f->least_read = (double)least;
    f->passes = (double)(engine.n_pass - s->engine.n_pass);
    if (f->passes < 1)
        return kn_fail(KN_EINVAL, "--gen %d is over before the clock starts: raise it", b->config->n_gen);
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

/* Until slots are full and one window of passes hits about as often as the one before.  Returns how many
 * passes it took. */
static int warm_up(struct bench *b, int batch, bool *settled)
{
    struct off_store *store = moe_model_store(eng_model(b->engine));
    struct off_stats then, now;
    double before = -1;
    int passes = 0, error = 0;
    *settled = !b->streams;
    if (b->config->n_warmup >= 0 || !b->streams) {
        passes = b->config->n_warmup >= 0 ? b->config->n_warmup : WARM_PASSES;
        error = passes ? run_passes(b, batch, passes) : 0;
        return error ? error : passes;
    }
    while (!*settled && passes < MOST_WARM) {
        off_stats_get(store, &then);
        if ((error = run_passes(b, batch, WINDOW)))
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

/* ---- drafts ------------------------------------------------------------------------------------------ */

/* From now on: nobody drafts, or as --gamma says, or as --dsi does. */
static void set_drafts(struct bench *b, enum how how)
{
    const struct eng_config *c = b->config;
    eng_set_gamma(b->engine, how == NOT ? 0 : c->gamma);
    eng_set_dsi(b->engine, how != AHEAD ? ENG_DSI_OFF : c->n_dsi == 1 ? ENG_DSI_ON : ENG_DSI_AUTO, c->n_ahead);
}

/* All sequences from their prompts again, read and with their first tokens, without drafts. */
static int restart(struct bench *b, int batch)
{
    close_all(b, batch);
    set_drafts(b, NOT);
    int error = start_all(b, batch);
    return error ? error : run_passes(b, batch, 0);
}

/* said: tokens of who has said most. */
static int step_once(struct bench *b, int batch, int *said)
{
    int got = eng_step(b->engine, b->event);
    for (int i = 0; i < got; i++)
        if (b->event[i].finish == ENG_FAILED)
            return b->event[i].status;
    for (int i = 0; i < batch; i++) {
        int n;
        eng_session_tokens(b->session[i], &n);
        *said = kn_max(*said, n - b->config->n_prompt);
    }
    return got < 0 ? got : 0;
}

/* Until the first has said so much. */
static int run_until(struct bench *b, int batch, int n_said)
{
    int error = 0;
    for (int said = 0; said < n_said && !error;)
        error = step_once(b, batch, &said);
    return error;
}

static int32_t *said_of(const struct bench *b, int i) { return b->said + (size_t)i * (size_t)b->config->n_gen; }

/* The same sequences have to say the same. */
static int compare(const struct bench *b, int batch)
{
    for (int i = 0; i < batch; i++) {
        int n;
        const int32_t *token = eng_session_tokens(b->session[i], &n);
        n = kn_min(n - b->config->n_prompt, b->n_said[i]);
        if (memcmp(said_of(b, i), token + b->config->n_prompt, (size_t)n * sizeof *token))
            return kn_fail(KN_ECORRUPT, "sequence %d said something else with drafts: this must not be", i);
    }
    return 0;
}

static void note_said(struct bench *b, int batch)
{
    for (int i = 0; i < batch; i++) {
        int n;
        const int32_t *token = eng_session_tokens(b->session[i], &n);
        b->n_said[i] = kn_min(n - b->config->n_prompt, b->config->n_gen);
        memcpy(said_of(b, i), token + b->config->n_prompt, (size_t)b->n_said[i] * sizeof *token);
    }
}

static int restart_with_drafts(struct bench *b, int batch, enum how how)
{
    int error = restart(b, batch);
    for (int i = 0; i < batch && !error; i++)
        eng_session_tell(b->session[i], said_of(b, i), b->n_said[i]);
    set_drafts(b, how);
    return error;
}

/* Nothing is being learnt or tried. */
static bool is_calm(const struct bench *b)
{
    enum spec_why why = b->engine->decision.why;
    return why == SPEC_WHY_GAINS || why == SPEC_WHY_STAYS || why == SPEC_WHY_LOSES || why == SPEC_WHY_FREE;
}

/* Until the controller has been calm for a while: then what is measured is what lasts. */
static int rehearse(struct bench *b, int batch, enum how how)
{
    const struct eng_config *c = b->config;
    int most = c->n_warmup >= 0 ? c->n_warmup : MOST_WARM, error = 0;
    b->rehearsed = c->gamma != ENG_GAMMA_AUTO || (how == AHEAD && c->n_dsi == 1);
    for (int pass = 0, calm = 0; pass < most && !b->rehearsed && !error;) {
        error = restart_with_drafts(b, batch, how);
        for (int said = 0; said < c->n_gen && pass < most && !b->rehearsed && !error; pass++) {
            error = step_once(b, batch, &said);
            calm = is_calm(b) ? calm + 1 : 0;
            b->rehearsed = calm >= WINDOW;
        }
    }
    return error;
}

/* One block; its beginning only warms up. */
static int run_block(struct bench *b, int batch, enum how how, struct figure *f)
{
    const struct eng_config *c = b->config;
    int error = how != NOT ? restart_with_drafts(b, batch, how) : restart(b, batch);
    double n = c->n_prompt, m = c->n_gen;
    struct start start;
    *f = (struct figure){ .what = "decode", .batch = batch, .drafter = how != NOT ? b->drafter : NULL, .how = how,
                          .gamma = how != NOT ? c->gamma : 0, .settled = how == NOT || b->rehearsed };
    if (error || (error = run_until(b, batch, kn_min(DRAFT_WARM, c->n_gen / 4))) ||
        (error = start_clock(b, &start, c->n_gen, eng_n_chunk(b->engine) + b->engine->n_draft_row)) ||
        (error = run_until(b, batch, c->n_gen)) || (error = stop_clock(b, &start, f, batch * m * (n + m / 2))))
        return error;
    if (how != NOT)                             /* other rules keep the distribution, not the text */
        return c->verify == SPEC_COUPLED ? compare(b, batch) : 0;
    note_said(b, batch);
    return 0;
}

/* How often drafts survive to each depth: what an oracle promises, or what the controller has seen of whom it
 * asked most.  false: nobody knows. */
static bool survival_of(const struct bench *b, double *out /* [DRAFT_DEPTH] */)
{
    const struct eng_config *c = b->config;
    struct spec_account best = { 0 }, a;
    if (c->n_draft == 1 && c->draft[0].kind == ENG_DRAFT_ORACLE) {
        for (int i = 0; i < DRAFT_DEPTH; i++)
            out[i] = (i ? out[i - 1] : 1) * c->draft[0].right;
        return true;
    }
    int n_arm = b->engine->n_drafter + (b->engine->n_drafter > 1);
    for (int i = 0; i < n_arm && c->gamma == ENG_GAMMA_AUTO; i++) {
        spec_control_account(b->engine->control, i, &a);
        if (a.n_step > best.n_step)
            best = a;
    }
    for (int i = 0; i < DRAFT_DEPTH; i++)
        out[i] = best.kept[i];
    return best.n_step > 0;
}

/* Beside the ratio: what it could be, and what the controller has to say. */
static void print_ideal(const struct bench *b, int batch, enum how how, double ratio, double disk_Bps)
{
    const struct eng_config *c = b->config;
    struct eng_machine machine = { disk_Bps > 0 ? disk_Bps : HUGE_VAL, b->rates.dram_Bps, b->rates.mac_ps };
    double survival[DRAFT_DEPTH];
    char line[400];
    int depth;
    if (how == IN_TURN && survival_of(b, survival)) {
        double ideal = eng_plan_gain(moe_model_shape(eng_model(b->engine)), eng_memory(b->engine), &machine,
                                     moe_kv_slot_bytes(eng_model(b->engine), c->kv), c->n_prompt + c->n_gen / 2, batch,
                                     survival, DRAFT_DEPTH, &depth);
        printf(c->json ? ",\"ideal\":%.4f,\"ideal_gamma\":%d,\"of_ideal\":%.4f"
                       : "  bytes and operations allow %.3f with %d tokens drafted: %.0f %% of that\n", ideal, depth,
               ratio / ideal * (c->json ? 1 : 100));
    }
    if (c->gamma == ENG_GAMMA_AUTO && how == (c->n_dsi ? AHEAD : IN_TURN)) {
        eng_explain(b->engine, line, sizeof line);
        printf(c->json ? ",\"explain\":\"%s\"" : "  %s\n", line);
    }
}

/* Of rounds of blocks: the mean ratio, and the half width of its 95 % interval (Student's t). */
static void print_ratio(const struct bench *b, int batch, enum how how, enum how over, double (*speed)[N_HOW], int n,
                        double disk_Bps)
{
    static const double t[] = { 0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23 };
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++)
        mean += speed[i][how] / speed[i][over] / n;
    for (int i = 0; i < n; i++)
        square += (speed[i][how] / speed[i][over] - mean) * (speed[i][how] / speed[i][over] - mean);
    double half = n > 1 ? t[kn_min(n - 1, 10)] * __builtin_sqrt(square / (n - 1) / n) : 0;
    if (b->config->json)
        printf("{\"what\":\"speedup\",\"batch\":%d,\"drafter\":\"%s\",\"how\":\"%s\",\"over\":\"%s\",\"gamma\":%d,"
               "\"lookahead\":%d,\"pairs\":%d,\"ratio\":%.4f,\"ratio_interval\":%.4f", batch, b->drafter,
               how_name[how], how_name[over], b->config->gamma, b->config->n_ahead, n, mean, half);
    else
        printf("with %s%s at batch %d: %.3f times as fast%s, +- %.3f (%d pairs of blocks%s)\n", b->drafter,
               how == AHEAD ? " ahead" : "", batch, mean, over == IN_TURN ? " as in turn" : "", half, n,
               b->config->verify == SPEC_COUPLED ? ", the same tokens" : "");
    if (over == NOT)
        print_ideal(b, batch, how, mean, disk_Bps);
    printf("%s", b->config->json ? "}\n" : "");
    fflush(stdout);
}

static int bench_drafts(struct bench *b, int batch)
{
    double speed[MAX_ROUNDS][N_HOW], disk_Bps = 0;
    int error = 0, n = b->config->n_round, n_how = b->config->n_dsi ? N_HOW : AHEAD;
    for (int i = 0; i < n; i++)
        for (int how = NOT; how < n_how && !error; how++) {
            struct figure f;
            if ((i == 0 && how != NOT && (error = rehearse(b, batch, (enum how)how))) ||
                (error = run_block(b, batch, (enum how)how, &f)))
                break;
            speed[i][how] = f.tokens / f.seconds;
            disk_Bps = f.disk_Bps > disk_Bps ? f.disk_Bps : disk_Bps;
        }
    for (int how = IN_TURN; how < n_how && !error; how++)
        print_ratio(b, batch, (enum how)how, NOT, speed, n, disk_Bps);
    if (n_how == N_HOW && !error)
        print_ratio(b, batch, AHEAD, IN_TURN, speed, n, disk_Bps);
    close_all(b, batch);
    set_drafts(b, NOT);
    return error;
}

static int bench_batch(struct bench *b, int batch)
{
    const struct eng_config *c = b->config;
    struct figure prefill = { .what = "prefill", .batch = batch, .tokens = (double)batch * c->n_prompt,
                              .logits = batch };
    struct figure decode = { .what = "decode", .batch = batch };
    double n = c->n_prompt, m = c->n_gen;
    int chunk = eng_n_chunk(b->engine), n_row = kn_min(chunk, batch * c->n_prompt);
    struct start start;
    int error = start_all(b, batch);
    if (error || (error = start_clock(b, &start, batch * c->n_prompt / chunk + batch + 2, n_row)) ||
        (error = run_passes(b, batch, 0)) ||
        (error = stop_clock(b, &start, &prefill, batch * n * (n + 1) / 2)))
        return error;
    if (c->n_gen) {
        bool settled;
        int warm = warm_up(b, batch, &settled);
        if (warm < 0 || (error = start_clock(b, &start, c->n_gen, batch)) ||
            (error = run_passes(b, batch, c->n_gen)))
            return warm < 0 ? warm : error;
        decode.settled = settled;
        error = stop_clock(b, &start, &decode, batch * m * (n + warm + (m + 1) / 2));
    }
    close_all(b, batch);
    return !error && c->n_gen && *b->drafter ? bench_drafts(b, batch) : error;
}

/* Before the model is there, so that its memory and the probe's are never taken together. */
static int measure_machine(struct bench *b)
{
    struct kn_team *team;
    int error = kn_team_open(&team, b->config->n_thread);
    if (error)
        return error;
    error = eng_measure(&b->rates, kn_ops(b->config->isa), team, 0);
    kn_team_close(team);
    return error;
}

/* What is measured is what lasts: not the first seconds, when memory fills. */
static void wait_until_filled(const struct bench *b)
{
    struct off_store *store = moe_model_store(eng_model(b->engine));
    struct off_stats s = { .filling = store != NULL };
    for (; s.filling; usleep(10000))
        off_stats_get(store, &s);
}

/* An oracle knows what will come, as no real drafter does: its name stands on every line. */
static void name_drafters(struct bench *b)
{
    static const char *const name[] = { "none", "ngram", "suffix", "model", "eagle", "mtp", "oracle" };
    size_t n = 0;
    for (int i = 0; i < b->config->n_draft && n < sizeof b->drafter; i++) {
        const struct eng_draft_wish *w = &b->config->draft[i];
        if (w->kind == ENG_DRAFT_NONE)
            continue;
        n += (size_t)snprintf(b->drafter + n, sizeof b->drafter - n, "%s%s", n ? "+" : "", name[w->kind]);
        if (w->kind == ENG_DRAFT_ORACLE && n < sizeof b->drafter)
            n += (size_t)snprintf(b->drafter + n, sizeof b->drafter - n, ":%g", w->right);
    }
}

/* Prompts from a file, as its tokens go on from anywhere. */
static int read_text(struct bench *b)
{
    const struct eng_config *c = b->config;
    char *text = NULL;
    size_t n = 0;
    int error = c->input ? eng_read_file(c->input, &text, &n) : 0;
    if (!error && c->input)
        error = eng_tokenize(eng_vocab(b->engine), text, n, ENG_TEXT_PARSE_SPECIAL, &b->text);
    kn_free(text);
    if (!error && c->input && b->text.n < (size_t)c->n_prompt)
        error = kn_fail(KN_EINVAL, "%s: %zu tokens are fewer than --prompt %d", c->input, b->text.n, c->n_prompt);
    return error;
}

static int open_bench(struct bench *b)
{
    const struct eng_config *c = b->config;
    struct eng_progress *bar;
    int error = measure_machine(b);
    if (error || (error = eng_progress_open(&bar, "loading", c->quiet)))
        return error;
    int need = c->n_prompt + c->n_gen + (c->n_warmup < 0 ? MOST_WARM : c->n_warmup) + 2;
    struct eng_options o = eng_config_options(c);
    o.n_parallel = b->most;
    o.n_ctx = c->n_ctx ? c->n_ctx : need;
    o.stretch = HUGE_STRETCH;
    o.aside = PROBE_BYTES;
    o.progress = eng_progress_counter(bar);
    error = eng_open(&b->engine, &o);
    eng_progress_close(bar);
    if (error)
        return error;
    if (need > eng_n_ctx(b->engine))
        return kn_fail(KN_EINVAL, "--prompt and --gen take %d tokens, --ctx-size is %d", need,
                       eng_n_ctx(b->engine));
    int n_kv = (int)kn_align_up((size_t)need, ENG_KV_BLOCK);
    if (eng_memory(b->engine)->n_kv_slot / n_kv < b->most)
        return kn_fail(KN_EINVAL, "%d sequences of %d tokens take more keys and values than the %d positions "
                       "that fit: raise --host-mem or --kv-mem, or lower --batch or --gen", b->most, need,
                       eng_memory(b->engine)->n_kv_slot);
    set_drafts(b, NOT);                         /* until it is drafts that are measured */
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

static void print_streaming(const struct bench *b)
{
    struct off_store *store = moe_model_store(eng_model(b->engine));
    struct off_stats s;
    off_stats_get(store, &s);
    printf("%d of %d experts fit; the rest are read from %s when asked for (%s)\n",
           eng_memory(b->engine)->n_resident, eng_memory(b->engine)->n_expert,
           s.n_packed ? "the pack file" : "disk", off_store_io(store));
}

static void print_heading(const struct bench *b)
{
    printf("memory %.1f GB/s, %.0f G int8 multiply-adds/s (%s, %d threads)\n", b->rates.dram_Bps / 1e9,
           b->rates.mac_ps / 1e9, kn_isa_name(moe_model_ops(eng_model(b->engine))->isa),
           kn_team_size(eng_team(b->engine)));
    if (b->streams)
        print_streaming(b);
    printf("%-8s %5s %10s %10s  %6s  %-10s %8s %9s", "what", "batch", "tokens/s", "bound", "of it", "bound by",
           "experts", "GB/s");
    if (b->streams)
        printf(" %8s %9s %9s %8s %8s", "hits", "read GB/s", "disk GB/s", "wasted", "stalled");
    printf("\n");
}

int eng_cmd_bench(const struct eng_config *config)
{
    struct bench b = { .config = config };
    int error = config->n_prompt < 1 ? kn_fail(KN_EINVAL, "--prompt takes at least 1") : parse_batches(&b);
    if (!error)
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
