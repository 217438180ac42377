/* spillway bench: how fast, and how far from what the machine allows.
 *
 * For each batch size: as many sequences with prompts of their own, sampled at temperature 1 with a seed
 * each.  Prefill is timed until the last prompt is read; then passes are warmed up, then timed.  The
 * bound beside a figure is the time that its bytes take at the memory's rate or its operations at the
 * arithmetic rate, whichever is longer; both rates are measured in the same run. */
#include "engine/cli.h"
#include "engine/engine.h"
#include "engine/measure.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MAX_BATCHES 16
#define WARM_PASSES 4                           /* caches and clocks settle within a few */

struct bench {
    const struct eng_config *config;
    struct eng_engine *engine;
    struct eng_rates rates;
    int batch[MAX_BATCHES], n_batch, most;
    struct eng_session **session;               /* [most] */
    struct eng_event *event;                    /* [most] */
    int32_t *prompt;                            /* [n_prompt] */
};

struct figure {
    const char *what;
    int batch;
    double seconds, tokens, passes, logits;
    double bytes, macs;                         /* of all passes */
    double experts;                             /* per layer and pass */
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

/* Plain tokens only, another sequence for every (batch, index). */
static void make_prompt(struct bench *b, uint64_t which)
{
    const struct eng_vocab *v = eng_vocab(b->engine);
    int n_vocab = eng_vocab_size(v);
    uint64_t at = kn_mix(which);
    for (int i = 0; i < b->config->n_prompt; )
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
        spec_params_default(&r.sampling);
        r.sampling.temperature = 1;
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

/* Weights, and the keys and values that attention reads. */
static void add_costs(const struct bench *b, struct figure *f, double positions)
{
    const struct moe_shape *s = moe_model_shape(eng_model(b->engine));
    double expert = s->n_expert ? (double)s->expert_file_bytes / s->n_expert : 0;
    double kv = (double)moe_kv_slot_bytes(eng_model(b->engine), b->config->kv);
    f->bytes = f->passes * ((double)s->pass_bytes + f->experts * expert) + kv * positions;
    double head = (double)s->d_model * s->n_vocab;      /* only rows that want logits pay for it */
    f->macs = f->tokens * (s->row_macs - head) + f->logits * head +
              (s->n_head * s->d_head * 2.0) * s->n_layer * positions;
}

static void print_figure(const struct bench *b, const struct figure *f)
{
    double by_dram = f->bytes / b->rates.dram_Bps, by_ops = f->macs / b->rates.mac_ps;
    double bound_s = by_dram > by_ops ? by_dram : by_ops;
    const char *bound_by = by_dram > by_ops ? "dram" : "operations";
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    const struct moe_shape *s = moe_model_shape(eng_model(b->engine));
    if (b->config->json)
        printf("{\"what\":\"%s\",\"batch\":%d,\"tokens_per_s\":%.3f,\"bound_tokens_per_s\":%.3f,"
               "\"bound_by\":\"%s\",\"disk_Bps\":0,\"dram_Bps\":%.0f,\"mac_per_s\":%.0f,"
               "\"host_mem_bytes\":%zu,\"peak_rss_bytes\":%ld,\"bytes_read\":0,\"compulsory_bytes\":0,"
               "\"hit_rate\":1,\"experts_per_layer\":%.2f,\"drafter\":\"none\",\"gamma\":0,"
               "\"tokens_per_pass\":%.2f,\"settled\":true}\n",
               f->what, f->batch, f->tokens / f->seconds, f->tokens / bound_s, bound_by, b->rates.dram_Bps,
               b->rates.mac_ps, s->dense_bytes + s->expert_bytes, usage.ru_maxrss * 1024L, f->experts,
               f->tokens / f->passes);
    else
        printf("%-8s %5d %12.2f %12.2f  %4.0f %%  %-10s %8.1f %10.1f\n", f->what, f->batch,
               f->tokens / f->seconds, f->tokens / bound_s, 100 * bound_s / f->seconds, bound_by,
               f->experts, f->bytes / f->seconds / 1e9);
    fflush(stdout);
}

static void measured(const struct bench *b, struct figure *f, const struct eng_stats *before, uint64_t t0,
                     double positions)
{
    struct eng_stats after;
    eng_stats_get(b->engine, &after);
    f->seconds = (double)(kn_now_ns() - t0) / 1e9;
    f->passes = (double)(after.n_pass - before->n_pass);
    f->experts = (after.experts - before->experts) / f->passes;
    add_costs(b, f, positions);
    print_figure(b, f);
}

static int bench_batch(struct bench *b, int batch)
{
    const struct eng_config *c = b->config;
    struct figure prefill = { .what = "prefill", .batch = batch, .tokens = (double)batch * c->n_prompt,
                              .logits = batch };
    struct figure decode = { .what = "decode", .batch = batch, .tokens = (double)batch * c->n_gen,
                             .logits = (double)batch * c->n_gen };
    int warm = c->n_warmup < 0 ? WARM_PASSES : c->n_warmup;
    double n = c->n_prompt, m = c->n_gen, first = n + warm;
    struct eng_stats before;
    int error = start_all(b, batch);
    eng_stats_get(b->engine, &before);
    uint64_t t0 = kn_now_ns();
    if (error || (error = run_passes(b, batch, 0)))
        return error;
    measured(b, &prefill, &before, t0, batch * n * (n + 1) / 2);
    if (c->n_gen && warm)
        error = run_passes(b, batch, warm);
    eng_stats_get(b->engine, &before);
    t0 = kn_now_ns();
    if (!error && c->n_gen) {
        if ((error = run_passes(b, batch, c->n_gen)))
            return error;
        measured(b, &decode, &before, t0, batch * m * (first + (m + 1) / 2));
    }
    close_all(b, batch);
    return error;
}

/* Before the model is there, so that its memory and the probe's are never taken together. */
static int measure_machine(struct bench *b)
{
    struct kn_team *team;
    int error = kn_team_open(&team, b->config->n_thread);
    if (error)
        return error;
    error = eng_measure(&b->rates, kn_ops(b->config->isa), team);
    kn_team_close(team);
    return error;
}

static int open_bench(struct bench *b)
{
    const struct eng_config *c = b->config;
    struct eng_progress *bar;
    int error = measure_machine(b);
    if (error || (error = eng_progress_open(&bar, "loading", c->quiet)))
        return error;
    int need = c->n_prompt + c->n_gen + kn_max(c->n_warmup, WARM_PASSES) + 2;
    error = eng_open(&b->engine, &(struct eng_options){
        .model = c->model, .isa = c->isa, .kv = c->kv, .n_thread = c->n_thread, .n_parallel = b->most,
        .n_ctx = c->n_ctx ? c->n_ctx : need, .n_chunk = c->n_chunk, .host_mem = c->host_mem,
        .kv_mem = c->kv_mem, .io = c->io, .keep_heat = true, .progress = eng_progress_counter(bar) });
    eng_progress_close(bar);
    if (error)
        return error;
    if (need > eng_n_ctx(b->engine))
        return kn_fail(KN_EINVAL, "--prompt and --gen take %d tokens, --ctx-size is %d", need,
                       eng_n_ctx(b->engine));
    b->session = kn_calloc((size_t)b->most, sizeof(struct eng_session *));
    b->event = kn_calloc((size_t)b->most, sizeof *b->event);
    b->prompt = kn_calloc((size_t)c->n_prompt, sizeof *b->prompt);
    if (!b->session || !b->event || !b->prompt)
        return kn_fail(KN_ENOMEM, "no memory for %d sequences", b->most);
    return 0;
}

int eng_cmd_bench(const struct eng_config *config)
{
    struct bench b = { .config = config };
    int error = config->n_prompt < 1 ? kn_fail(KN_EINVAL, "--prompt takes at least 1") : parse_batches(&b);
    if (!error)
        error = open_bench(&b);
    if (!error && !config->json)
        printf("memory %.1f GB/s, %.0f G int8 multiply-adds/s (%s, %d threads)\n"
               "%-8s %5s %12s %12s  %6s  %-10s %8s %10s\n",
               b.rates.dram_Bps / 1e9, b.rates.mac_ps / 1e9,
               kn_isa_name(moe_model_ops(eng_model(b.engine))->isa), kn_team_size(eng_team(b.engine)), "what",
               "batch", "tokens/s", "bound", "of it", "bound by", "experts", "GB/s");
    for (int i = 0; i < b.n_batch && !error; i++)
        error = bench_batch(&b, b.batch[i]);
    eng_close(b.engine);
    kn_free(b.session);
    kn_free(b.event);
    kn_free(b.prompt);
    return error ? 2 : 0;
}
