/* engine/cli/cmd_fit.c - spillway fit: measures the time of passes, fits MoESD's cost model to them and prints the
 * model's error.
 *
 * A point is a number of sequences with a draft length (0: no drafts).  So the same number of rows occurs with many
 * sequences and with few, where the rows choose different numbers of experts.  Every third point with drafts is held
 * out of the fit, and the model's error at these points shows its quality.  The drafts are an oracle's with random
 * tokens: verification costs the same whether drafts are accepted or not.  Each round measures a few passes of every
 * point, so that a disturbance of the machine is spread over points; the quicker half of a point's passes counts, since
 * a disturbance only adds time.  The fit is of absolute times (speculative/fit.h).  Other commands give the result to
 * the controller with --fit, as its first estimate.
 *
 * With --draft a network replaces the oracle, and its draft passes are measured too; one draft pass drafts one token of
 * every sequence.  For each number of sequences all draft lengths count together, and every third number is held out.
 * The times of passes, sampling and drafts give the acceptance rate from which drafting pays. */
#include "engine/base/base.h"
#include "engine/cli/cli.h"
#include "engine/plan/disk_rate.h"
#include "engine/engine.h"
#include "engine/kv/kv.h"
#include "engine/plan/fit_file.h"
#include "engine/plan/host_rate.h"
#include "engine/plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SEQ    32
#define MOST_DEPTH  8
#define MOST_POINT  64
#define MOST_NUMBER 6
#define ROUNDS      4
#define PASSES      4 /* timed passes of a point in a round; of all rounds, the quicker half counts */
#define WARM        3 /* untimed passes, in which a drafter prefills the prompts of all sequences */
#define N_PROMPT    16

struct fit {
    const struct eng_config *config;
    struct eng_engine *engine;
    struct eng_rates rates;
    double disk_Bps; /* 0: all experts fit in memory, or the disk cannot be measured */
    struct eng_event *event;
    struct eng_session *session[MOST_SEQ];
    int32_t oracle_text[1024];
    struct eng_draft_option wish; /* the oracle, or the measured network */
    char drafter[ENG_FIT_NAME];   /* name of the measured network; "": none */
    struct spec_fit_point pass[MOST_POINT], choose[MOST_POINT], draft[MOST_NUMBER];
    int n_pass, n_draft; /* n_pass: points of pass and choose; n_draft: of draft, one per number of sequences */
    struct {
        int n_seq, depth;
    } at[MOST_POINT];
    struct taken {
        double pass, choose, draft, rows, distinct, missed;
    } taken[MOST_POINT][ROUNDS * PASSES];
    struct spec_fit fit;
};

/* ---- measuring ------------------------------------------------------------------------------------------- */

static int start_sequences(struct fit *f, int n)
{
    int32_t prompt[N_PROMPT];
    int n_vocab = eng_vocab_size(eng_vocab(f->engine)), error = 0;
    for (int i = 0; i < n && !error; i++) {
        for (int k = 0; k < N_PROMPT; k++)
            prompt[k] = (int32_t)(kn_mix((uint64_t)(n * 100 + i) * 64 + (uint64_t)k) % (uint64_t)n_vocab);
        struct eng_request r = { .token = prompt, .n_token = N_PROMPT, .n_predict = -1, .ignore_eos = true };
        spec_params_default(&r.sampling);
        r.sampling.seed = (uint64_t)(n * 100 + i);
        if (!(error = eng_session_open(&f->session[i], f->engine)) && !(error = eng_session_start(f->session[i], &r)))
            eng_session_set_oracle(f->session[i], f->oracle_text,
                                   (int)(sizeof f->oracle_text / sizeof *f->oracle_text));
    }
    return error;
}

static void stop_sequences(struct fit *f, int n)
{
    for (int i = 0; i < n; i++)
        eng_session_close(f->session[i]);
}

/* Steps without drafts until all prompts are computed. */
static int read_prompts(struct fit *f, int n)
{
    eng_set_gamma(f->engine, 0);
    for (int done = 0; done < n;) {
        int got = eng_step(f->engine, f->event);
        if (got < 0)
            return got;
        for (int i = 0; i < got; i++)
            if (f->event[i].finish != ENG_RUNNING)
                return f->event[i].status ? f->event[i].status : kn_fail(KN_ELIMIT, "a sequence ended during prefill");
        done = 0;
        for (int i = 0; i < n; i++)
            done += eng_session_computed(f->session[i]) >= N_PROMPT;
    }
    return 0;
}

static int by_pass(const void *a, const void *b)
{
    const struct taken *x = a, *y = b;
    return (x->pass > y->pass) - (x->pass < y->pass);
}

static int by_draft(const void *a, const void *b)
{
    const struct taken *x = a, *y = b;
    return (x->draft > y->draft) - (x->draft < y->draft);
}

static uint64_t bytes_read(const struct fit *f)
{
    struct off_store *store = moe_model_store(eng_model(f->engine));
    struct off_stats s = { 0 };
    if (store)
        off_stats_get(store, &s);
    return s.read_bytes;
}

static int take_step(struct fit *f, struct taken *t)
{
    struct eng_stats a, b;
    uint64_t bytes = bytes_read(f);
    eng_stats_get(f->engine, &a);
    int got = eng_step(f->engine, f->event);
    eng_stats_get(f->engine, &b);
    for (int i = 0; i < got; i++)
        if (f->event[i].finish == ENG_FAILED)
            return f->event[i].status;
    *t = (struct taken){ (double)(b.pass_ns - a.pass_ns),
                         (double)(b.sample_ns - a.sample_ns),
                         (double)(b.draft_ns - a.draft_ns),
                         (double)(b.n_row - a.n_row),
                         b.experts - a.experts,
                         (double)(bytes_read(f) - bytes) };
    return got < 0 ? got : 0;
}

static int measure_point(struct fit *f, int n_seq, int depth, struct taken *out /* [PASSES] */)
{
    int error = start_sequences(f, n_seq);
    if (!error)
        error = read_prompts(f, n_seq);
    eng_set_gamma(f->engine, depth);
    for (int i = -WARM; i < PASSES && !error; i++)
        error = take_step(f, &out[i < 0 ? 0 : i]);
    stop_sequences(f, n_seq);
    return error;
}

/* Makes point i of the mean of the quicker half of its passes; hold: it is held out of the fit. */
static void settle_point(struct fit *f, int i, bool hold)
{
    const int n = ROUNDS * PASSES / 2;
    struct taken mean = { 0 };
    qsort(f->taken[i], ROUNDS * PASSES, sizeof **f->taken, by_pass);
    for (const struct taken *t = f->taken[i]; t < f->taken[i] + n; t++) {
        mean.pass += t->pass / n;
        mean.choose += t->choose / n;
        mean.rows += t->rows / n;
        mean.distinct += t->distinct / n;
        mean.missed += t->missed / n;
    }
    double miss = f->disk_Bps > 0 ? 1e9 * mean.missed / f->disk_Bps : 0;
    f->pass[i] = (struct spec_fit_point){ mean.rows, mean.distinct, miss, mean.pass, hold, 0, 0, 0 };
    f->choose[i] = (struct spec_fit_point){ .rows = mean.rows, .ns = mean.choose, .hold = hold };
}

/* Adds to *ns the mean draft time of point i's quicker half.  Fails if a pass had no drafts: its time would be 0. */
static int settle_draft(struct fit *f, int i, double *ns)
{
    const int n = ROUNDS * PASSES / 2;
    qsort(f->taken[i], ROUNDS * PASSES, sizeof **f->taken, by_draft);
    for (const struct taken *t = f->taken[i]; t < f->taken[i] + n; t++) {
        if (t->rows <= f->at[i].n_seq)
            return kn_fail(KN_EUNSUPPORTED, "%s drafts nothing for %d sequences of %d tokens: it cannot be measured",
                           f->drafter, f->at[i].n_seq, N_PROMPT);
        *ns += t->draft / n;
    }
    return 0;
}

/* Makes one draft point for each number of sequences, from the points with this number, which are adjacent. */
static int settle_drafts(struct fit *f)
{
    int error = 0;
    for (int i = 0, depth = 0; i < f->n_pass && !error; i++) {
        struct spec_fit_point *p = &f->draft[f->n_draft];
        depth += f->at[i].depth;
        if (f->at[i].depth)
            error = settle_draft(f, i, &p->ns);
        if (i + 1 < f->n_pass && f->at[i + 1].n_seq == f->at[i].n_seq)
            continue;
        *p = (struct spec_fit_point){ .rows = f->at[i].n_seq, .ns = p->ns / depth, .hold = f->n_draft++ % 3 == 2 };
        depth = 0;
    }
    return error;
}

static int measure(struct fit *f)
{
    static const int seqs[MOST_NUMBER] = { 1, 2, 4, 8, 16, 32 }, depths[] = { 0, 1, 2, 4, 8 };
    int error = 0, most = eng_memory(f->engine)->n_kv_slot / ENG_KV_BLOCK, held = 0;
    if (!eng_split_is_whole(eng_memory(f->engine)))
        error = eng_disk_measure_model(moe_file_files(eng_file(f->engine)), f->config->mirror,
                                       eng_disk_room(f->config->host_mem), &f->disk_Bps);
    if (error == KN_EUNSUPPORTED) {
        kn_say(KN_LOG_WARN, "%s is too short to measure, or has no O_DIRECT: cache misses count as free",
               f->config->model);
        error = 0;
    }
    for (int i = 0; i < MOST_NUMBER && seqs[i] * 2 <= most; i++)
        for (int k = 0; k < 5; k++) {
            f->at[f->n_pass].n_seq = seqs[i];
            f->at[f->n_pass++].depth = depths[k];
        }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < f->n_pass && !error; i++)
            error = measure_point(f, f->at[i].n_seq, f->at[i].depth, &f->taken[i][round * PASSES]);
    for (int i = 0; i < f->n_pass && !error; i++)
        settle_point(f, i, f->at[i].depth && held++ % 3 == 2);
    return error || !*f->drafter ? error : settle_drafts(f);
}

/* ---- output ------------------------------------------------------------------------------------------------ */

static double plain_ns(const struct fit *f, int n_seq)
{
    for (int i = 0; i < f->n_pass; i++)
        if (f->at[i].n_seq == n_seq && f->at[i].depth == 0)
            return f->pass[i].ns;
    return 0;
}

static double percent(const struct fit *f, double x) { return f->config->json ? x : 100 * x; }

/* The distinct experts per layer of a point if every expert were chosen equally often: N(t) of MoESD. */
static double even(const struct fit *f, const struct spec_fit_point *p)
{
    return spec_cost_distinct(f->fit.cost.n_expert, f->fit.cost.n_used, p->rows);
}

static void print_points(const struct fit *f)
{
    bool json = f->config->json;
    if (!json)
        printf("%9s %6s %6s %9s %7s %10s %12s %12s %8s %11s\n", "sequences", "draft", "rows", "experts", "N(t)",
               "reads ms", "measured ms", "model ms", "error", "efficiency");
    for (int i = 0; i < f->n_pass; i++) {
        const struct spec_fit_point *p = &f->pass[i];
        double error = spec_fit_residual(&f->fit, p), plain = plain_ns(f, f->at[i].n_seq);
        printf(json ? "{\"what\":\"point\",\"n_seq\":%d,\"depth\":%d,\"rows\":%.0f,\"distinct\":%.2f,\"even\":%.2f,"
                      "\"reads_ms\":%.4f,\"measured_ms\":%.4f,\"model_ms\":%.4f,\"error\":%.4f,"
                      "\"efficiency\":%.4f,\"held\":%s}\n"
                    : "%9d %6d %6.0f %9.1f %7.1f %10.3f %12.3f %12.3f %+7.1f %% %10.3f%s\n",
               f->at[i].n_seq, f->at[i].depth, p->rows, p->distinct, even(f, p), p->miss_ns / 1e6, p->ns / 1e6,
               p->ns * (1 + error) / 1e6, percent(f, error), plain / p->ns,
               json      ? p->hold ? "true" : "false"
               : p->hold ? "  held out"
                         : "");
    }
    printf(json ? "{\"what\":\"fit\",\"error\":%.4f,\"worst\":%.4f,\"held_error\":%.4f,\"held_worst\":%.4f}\n"
                : "error %.1f %% (worst %.1f); of held-out points %.1f %% (worst %.1f)\n",
           percent(f, f->fit.error), percent(f, f->fit.worst), percent(f, f->fit.held_error),
           percent(f, f->fit.held_worst));
}

/* Prints the distinct experts of the measured passes, over the number if all experts were chosen equally often. */
static void print_experts(const struct fit *f)
{
    double mean = 0, least = INFINITY, most = 0;
    for (int i = 0; i < f->n_pass && f->fit.cost.n_expert > 0; i++) {
        double ratio = f->pass[i].distinct / even(f, &f->pass[i]);
        mean += ratio / f->n_pass;
        least = fmin(least, ratio);
        most = fmax(most, ratio);
    }
    if (f->fit.cost.n_expert > 0)
        printf(f->config->json ? "{\"what\":\"experts\",\"ratio\":%.4f,\"least\":%.4f,\"most\":%.4f}\n"
                               : "experts relative to N(t) = E (1 - (1 - K/E)^t): mean %.2f, range %.2f to %.2f\n",
               mean, least, most);
}

/* ---- output of drafts -------------------------------------------------------------------------------------- */

static void print_drafts(const struct fit *f)
{
    bool json = f->config->json;
    double sum[2] = { 0 }, worst[2] = { 0 }, n[2] = { 0 }; /* [0] fitted points, [1] held-out points */
    if (!json)
        printf("\n%9s %12s %12s %8s\n", "sequences", "draft ms", "model ms", "error");
    for (int i = 0; i < f->n_draft; i++) {
        const struct spec_fit_point *p = &f->draft[i];
        double model = spec_cost_draft_ns(&f->fit.cost, p->rows), error = model / p->ns - 1;
        printf(json ? "{\"what\":\"draft\",\"n_seq\":%.0f,\"measured_ms\":%.4f,\"model_ms\":%.4f,\"error\":%.4f,"
                      "\"held\":%s}\n"
                    : "%9.0f %12.3f %12.3f %+7.1f %%%s\n",
               p->rows, p->ns / 1e6, model / 1e6, percent(f, error),
               json      ? p->hold ? "true" : "false"
               : p->hold ? "  held out"
                         : "");
        sum[p->hold] += fabs(error);
        worst[p->hold] = fmax(worst[p->hold], fabs(error));
        n[p->hold]++;
    }
    printf(json ? "{\"what\":\"draft_fit\",\"drafter\":" : "draft passes of %s: ", f->drafter);
    if (json)
        eng_json_string(stdout, (struct moe_string){ f->drafter, strlen(f->drafter) });
    printf(json ? ",\"error\":%.4f,\"worst\":%.4f,\"held_error\":%.4f,\"held_worst\":%.4f}\n"
                : "error %.1f %% (worst %.1f); of held-out points %.1f %% (worst %.1f)\n",
           percent(f, sum[0] / fmax(n[0], 1)), percent(f, worst[0]), percent(f, sum[1] / fmax(n[1], 1)),
           percent(f, worst[1]));
}

static double model_ns(const struct fit *f, const struct spec_fit_point *p)
{
    const struct spec_cost_model *c = &f->fit.cost;
    return spec_cost_pass_ns(c, p->rows, p->distinct, p->miss_ns) + spec_cost_choose_ns(c, p->rows);
}

/* The acceptance rate at which point i, drafts and pass together, gives as many tokens per second as point `plain`,
 * which has no drafts. */
static double pays_from(const struct fit *f, int i, int plain)
{
    int depth = f->at[i].depth;
    double round = depth * spec_cost_draft_ns(&f->fit.cost, f->at[i].n_seq) + model_ns(f, &f->pass[i]);
    return spec_cost_accept(round / model_ns(f, &f->pass[plain]), depth);
}

static void print_accept(const struct fit *f, int i, double accept)
{
    if (f->config->json)
        printf("{\"what\":\"pays_from\",\"n_seq\":%d,\"depth\":%d,\"acceptance\":", f->at[i].n_seq, f->at[i].depth);
    if (accept <= 1)
        printf(f->config->json ? "%.3f" : "%9.2f", accept);
    else
        printf(f->config->json ? "null" : "%9s", "never");
    if (f->config->json)
        printf("}\n");
}

/* Prints the acceptance rates from which drafting pays.  Points with the same number of sequences are adjacent, the one
 * without drafts first. */
static void print_gains(const struct fit *f)
{
    bool json = f->config->json;
    if (!json)
        printf("\nacceptance rate from which drafting pays, by draft length:\n%9s", "sequences");
    for (int i = 0; i < f->n_pass && f->at[i].n_seq == f->at[0].n_seq && !json; i++)
        if (f->at[i].depth)
            printf("%9d", f->at[i].depth);
    for (int i = 0, plain = 0; i < f->n_pass; i++) {
        if (f->at[i].depth)
            print_accept(f, i, pays_from(f, i, plain));
        else if (!json)
            printf("\n%9d", f->at[i].n_seq);
        plain = f->at[i].depth ? plain : i;
    }
    if (!json)
        printf("\n");
}

/* ---- the command ------------------------------------------------------------------------------------------- */

/* Sets f->wish to the one draft network among --draft; without one to the oracle. */
static int find_drafter(struct fit *f)
{
    f->wish = (struct eng_draft_option){ .kind = ENG_DRAFT_ORACLE, .right = 1 };
    for (int i = 0; i < f->config->n_draft; i++) {
        const struct eng_draft_option *w = &f->config->draft[i];
        char name[ENG_FIT_NAME];
        eng_draft_name(name, w);
        if (*name && *f->drafter)
            return kn_fail(KN_EINVAL,
                           "--draft: fit measures one network at a time, %s or %s: run it once for "
                           "each, with its own -o FILE",
                           f->drafter, name);
        if (!*name && w->kind != ENG_DRAFT_NONE)
            kn_say(KN_LOG_INFO, "--draft %s takes almost no time and is not measured",
                   eng_draft_properties(w->kind)->name);
        if (!*name)
            continue;
        memcpy(f->drafter, name, sizeof name);
        f->wish = *w;
    }
    return 0;
}

static size_t reserved(const void *arg, size_t host_mem)
{
    (void)arg;
    return eng_disk_room(host_mem);
}

static int open_fit(struct fit *f)
{
    struct kn_team *team;
    struct eng_progress *bar;
    int error = kn_team_open(&team, f->config->n_thread);
    if (error)
        return error;
    error = eng_host_rate_measure(&f->rates, kn_ops(f->config->isa), team, f->config->host_mem / 2);
    kn_team_close(team);
    if (error || (error = eng_progress_open(&bar, "loading", f->config->quiet)))
        return error;
    struct eng_options o = eng_config_options(f->config, false);
    o.n_parallel = MOST_SEQ;
    o.reserve_of = reserved;
    o.reserved_bytes = reserved(NULL, o.host_mem);
    o.n_ctx = 2 * ENG_KV_BLOCK;
    o.n_draft = 1;
    o.draft[0] = f->wish;
    o.gamma = MOST_DEPTH;
    o.progress = eng_progress_counter(bar);
    error = eng_open(&f->engine, &o);
    eng_progress_close(bar);
    if (error)
        return error;
    const struct eng_split *split = eng_memory(f->engine);
    if (eng_draft_properties(f->wish.kind)->is_target && eng_split_is_whole(split))
        return kn_fail(KN_EUNSUPPORTED,
                       "all experts fit in memory, so --draft resident drafts nothing: lower --host-mem%s",
                       split->device.total ? " or --device-mem" : "");
    f->event = kn_calloc((size_t)eng_event_room(f->engine), sizeof *f->event);
    int n_vocab = eng_vocab_size(eng_vocab(f->engine));
    for (size_t i = 0; i < sizeof f->oracle_text / sizeof *f->oracle_text; i++)
        f->oracle_text[i] = (int32_t)(kn_mix(i + 7) % (uint64_t)n_vocab);
    return f->event ? 0 : kn_fail(KN_ENOMEM, "no memory for the fit");
}

/* Fits the cost model within bounds: a pass, and the load of an expert, takes at least half the time of reading its
 * bytes at the memory rate; the ridge point is at most the number of rows at which the multiply-adds take as long as
 * this reading. */
static int fit_points(struct fit *f)
{
    const struct moe_shape *s = moe_model_shape(eng_model(f->engine));
    double expert = s->n_expert_total ? (double)s->expert_file_bytes / s->n_expert_total * s->n_moe_layer : 0;
    double ridge = f->rates.mac_ps / f->rates.dram_Bps * (double)s->pass_bytes / s->row_macs;
    return spec_fit(&f->fit,
                    &(struct spec_fit_input){ .n_expert = s->n_expert,
                                              .n_used = s->n_used,
                                              .ridge_least = 0.2 * ridge,
                                              .ridge_most = ridge > 1 ? ridge : 1,
                                              .fixed_least_ns = (double)s->pass_bytes / f->rates.dram_Bps * 1e9 / 2,
                                              .load_least_ns = expert / f->rates.dram_Bps * 1e9 / 2,
                                              .pass = f->pass,
                                              .choose = f->choose,
                                              .draft = f->draft,
                                              .n_pass = f->n_pass,
                                              .n_choose = f->n_pass,
                                              .n_draft = f->n_draft });
}

static int write_fit(const struct fit *f, uint64_t model_id)
{
    struct eng_fitted out = { .cost = f->fit.cost, .miss_ratio = 1, .error = f->fit.error, .n_pass = f->n_pass };
    if (*f->drafter) {
        out.drafter[0] = (struct eng_fitted_drafter){ .ns = f->fit.cost.draft_ns, .row_ns = f->fit.cost.draft_row_ns };
        memcpy(out.drafter[0].name, f->drafter, sizeof f->drafter);
        out.n_drafter = 1;
    }
    return eng_fit_write(f->config->output, f->config->model, model_id, &out);
}

int eng_cmd_fit(const struct eng_config *config)
{
    struct fit *f = kn_calloc(1, sizeof *f);
    if (!f)
        return kn_fail(KN_ENOMEM, "no memory for the fit"), 2;
    uint64_t id;
    f->config = config;
    int error = find_drafter(f);
    if (!error && config->output)
        error = eng_fit_check(config->output);
    if (!error && !(error = open_fit(f)) && !(error = measure(f)) && !(error = fit_points(f))) {
        print_points(f);
        print_experts(f);
        if (*f->drafter) {
            print_drafts(f);
            print_gains(f);
        }
        if (config->output && !(error = moe_file_id(eng_file(f->engine), &id)))
            error = write_fit(f, id);
    }
    eng_close(f->engine);
    kn_free(f->event);
    kn_free(f);
    return error ? 2 : 0;
}
