/* engine/cli/bench_drafts.c - the effect of drafts on speed: compares ways of drafting.
 *
 * A round has several timed blocks of passes: one without drafts, one with drafts of --gamma tokens, with --dsi one
 * that drafts during verification, and one for each draft length of --against.  All blocks run the same sequences from
 * the same prompts.  With --verify coupled they must generate the same tokens, which is checked.  A ratio compares the
 * speed of two blocks of one round; without --rounds there are as many as the ratio's interval needs.  If the controller chooses the draft length, untimed passes run first until it has
 * settled; it learns nothing from blocks of --against.  Beside each ratio is the speed-up that bytes and operations
 * would allow. */
#include "engine/cli/bench.h"
#include "engine/cli/text_width.h"
#include "engine/plan/plan.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WARM          8 /* untimed tokens of each sequence at the start of a block, at most a quarter of all */
#define STEADY_PASSES 8 /* passes in a row without a change until the controller counts as settled */
#define DEPTH         8 /* longest draft considered for the ideal speed-up */
#define MAX_ROUNDS    64
#define FEW_ROUNDS    3     /* without --rounds: at least, */
#define MANY_ROUNDS   32    /* at most, */
#define INTERVAL      0.05  /* until the first ratio's interval is +- this, */
#define ROUNDS_NS     300e9 /* or this much time has passed */
#define MAX_WAYS      16

static const struct eng_bench_way none = { ENG_BENCH_NONE, 0 };

struct ways {
    struct eng_bench_way way[MAX_WAYS]; /* [n]; way[0]: without drafts, way[1]: drafts of --gamma */
    int n, n_round;
    double speed[MAX_ROUNDS][MAX_WAYS], disk_Bps; /* speed: tokens/s of each block */
};

void eng_bench_draft(struct eng_bench *b, struct eng_bench_way way)
{
    const struct eng_config *c = b->config;
    eng_set_gamma(b->engine, way.gamma);
    eng_set_dsi(b->engine,
                way.how != ENG_BENCH_AHEAD ? ENG_DSI_OFF
                : c->n_dsi == 1            ? ENG_DSI_ON
                                           : ENG_DSI_AUTO,
                c->n_ahead);
}

/* ---- a block ------------------------------------------------------------------------------------------- */

/* Restarts all sequences from their prompts without drafts, up to the first token of each. */
static int restart(struct eng_bench *b, int batch)
{
    eng_bench_close_all(b, batch);
    eng_bench_draft(b, none);
    int error = eng_bench_start_all(b, batch);
    return error ? error : eng_bench_run_passes(b, batch, 0);
}

/* Runs one step, then raises *said to the most tokens that any sequence has generated. */
static int step_once(struct eng_bench *b, int batch, int *said)
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

/* Steps until the first sequence has generated n_said tokens. */
static int run_until(struct eng_bench *b, int batch, int n_said)
{
    int error = 0;
    for (int said = 0; said < n_said && !error;)
        error = step_once(b, batch, &said);
    return error;
}

static int32_t *said_of(const struct eng_bench *b, int i) { return b->said + (size_t)i * (size_t)b->config->n_gen; }

/* Checks that each sequence has generated the same tokens as in the block without drafts. */
static int compare(const struct eng_bench *b, int batch)
{
    for (int i = 0; i < batch; i++) {
        int n;
        const int32_t *token = eng_session_tokens(b->session[i], &n);
        n = kn_min(n - b->config->n_prompt, b->n_said[i]);
        if (memcmp(said_of(b, i), token + b->config->n_prompt, (size_t)n * sizeof *token))
            return kn_fail(KN_ECORRUPT, "sequence %d: other tokens with drafts than without: this is a bug", i);
    }
    return 0;
}

static void note_said(struct eng_bench *b, int batch)
{
    for (int i = 0; i < batch; i++) {
        int n;
        const int32_t *token = eng_session_tokens(b->session[i], &n);
        b->n_said[i] = kn_min(n - b->config->n_prompt, b->config->n_gen);
        memcpy(said_of(b, i), token + b->config->n_prompt, (size_t)b->n_said[i] * sizeof *token);
    }
}

static int restart_with_drafts(struct eng_bench *b, int batch, struct eng_bench_way way)
{
    int error = restart(b, batch);
    for (int i = 0; i < batch && !error; i++)
        eng_session_set_oracle(b->session[i], said_of(b, i), b->n_said[i]);
    eng_bench_draft(b, way);
    return error;
}

/* True while the controller neither learns nor tries another setting. */
static bool is_steady(const struct eng_bench *b)
{
    struct eng_drafts d;
    eng_drafts_get(b->engine, &d);
    enum spec_why why = d.last_why;
    return why == SPEC_WHY_GAINS || why == SPEC_WHY_SMALL_DIFFERENCE || why == SPEC_WHY_NO_GAIN ||
           why == SPEC_WHY_FREE || why == SPEC_WHY_UNLOADED;
}

static bool decides(const struct eng_bench *b, struct eng_bench_way way)
{
    return way.gamma == ENG_GAMMA_AUTO && !(way.how == ENG_BENCH_AHEAD && b->config->n_dsi == 1);
}

/* If the controller decides the draft length: runs untimed passes until it has been settled for STEADY_PASSES passes in
 * a row, at most --warmup or ENG_BENCH_WARM passes.  Else *settled is true and no pass runs. */
static int rehearse(struct eng_bench *b, int batch, struct eng_bench_way way, bool *settled)
{
    const struct eng_config *c = b->config;
    int most = c->n_warmup >= 0 ? c->n_warmup : ENG_BENCH_WARM, error = 0;
    *settled = !decides(b, way);
    for (int pass = 0, n_steady = 0; pass < most && !*settled && !error;) {
        error = restart_with_drafts(b, batch, way);
        for (int said = 0; said < c->n_gen && pass < most && !*settled && !error; pass++) {
            error = step_once(b, batch, &said);
            n_steady = is_steady(b) ? n_steady + 1 : 0;
            *settled = n_steady >= STEADY_PASSES;
        }
    }
    return error;
}

/* Runs a block: untimed passes, then timed ones, whose figure is *f. */
static int run_block(struct eng_bench *b, int batch, struct eng_bench_way way, struct eng_figure *f)
{
    const struct eng_config *c = b->config;
    bool drafts = way.how != ENG_BENCH_NONE;
    int error = drafts ? restart_with_drafts(b, batch, way) : restart(b, batch);
    double n = c->n_prompt, m = c->n_gen;
    struct eng_bench_start start;
    *f = (struct eng_figure){
        .what = "decode", .batch = batch, .drafter = drafts ? b->drafter : NULL, .way = way, .settled = f->settled
    };
    if (error || (error = run_until(b, batch, kn_min(WARM, c->n_gen / 4))) ||
        (error = eng_bench_start_clock(b, &start, c->n_gen, eng_n_chunk(b->engine) + eng_n_draft_row(b->engine))) ||
        (error = run_until(b, batch, c->n_gen)) ||
        (error = eng_bench_stop_clock(b, &start, f, batch * m * (n + m / 2))))
        return error;
    if (drafts) /* under ratio and block, drafts change the tokens, though not their distribution */
        return c->verify == SPEC_COUPLED ? compare(b, batch) : 0;
    note_said(b, batch);
    return 0;
}

/* ---- output -------------------------------------------------------------------------------------------- */

/* Sets out[i] to the share of drafts that are accepted up to depth i + 1: from the oracle's setting, or the
 * controller's statistics of its most used drafter.  false: unknown. */
static bool survival_of(const struct eng_bench *b, double *out /* [DEPTH] */)
{
    const struct eng_config *c = b->config;
    if (c->n_draft == 1 && c->draft[0].kind == ENG_DRAFT_ORACLE) {
        for (int i = 0; i < DEPTH; i++)
            out[i] = (i ? out[i - 1] : 1) * c->draft[0].right;
        return true;
    }
    double share[SPEC_DEPTHS];
    if (c->gamma != ENG_GAMMA_AUTO || !eng_drafts_survival(b->engine, share))
        return false;
    memcpy(out, share, DEPTH * sizeof *out);
    return true;
}

/* Prints, behind a ratio, the ideal speed-up and the controller's explanation. */
static void print_ideal(const struct eng_bench *b, int batch, struct eng_bench_way way, double ratio, double disk_Bps)
{
    const struct eng_config *c = b->config;
    struct eng_machine machine = { .disk_Bps = disk_Bps > 0 ? disk_Bps : HUGE_VAL,
                                   .dram_Bps = b->rates.dram_Bps,
                                   .mac_ps = b->rates.mac_ps };
    double survival[DEPTH];
    char line[ENG_EXPLAIN_BYTES];
    int depth;
    if (way.how == ENG_BENCH_IN_TURN && survival_of(b, survival)) {
        struct eng_setting s = eng_forecast_setting(b->engine, &machine, c->n_prompt + c->n_gen / 2);
        double ideal = eng_plan_gain(&s, batch, survival, DEPTH, &depth);
        printf(c->json ? ",\"ideal\":%.4f,\"ideal_gamma\":%d,\"of_ideal\":%.4f"
                       : "  bytes and operations allow %.3f with %d drafted tokens; reached: %.0f %%\n",
               ideal, depth, ratio / ideal * (c->json ? 1 : 100));
    }
    if (way.gamma == ENG_GAMMA_AUTO && way.how == (c->n_dsi ? ENG_BENCH_AHEAD : ENG_BENCH_IN_TURN)) {
        eng_explain(b->engine, line, sizeof line);
        if (c->json)
            printf(",\"explain\":\"%s\"", line);
        else
            eng_print_wrapped(stdout, printf("  "), 2, line);
    }
}

static const char *gamma_text(int gamma, char out[16])
{
    snprintf(out, 16, gamma == ENG_GAMMA_AUTO ? "auto" : "%d", gamma);
    return out;
}

double eng_bench_mean(const double *x, int n, double *half)
{
    static const double t[] = { 0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23 };
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++)
        mean += x[i] / n;
    for (int i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean);
    *half = n > 1 ? t[kn_min(n - 1, 10)] * sqrt(square / (n - 1) / n) : 0;
    return mean;
}

/* The ratio of the speeds of ways `on` and `off` over the rounds. */
static double ratio_of(const struct ways *w, int on, int off, double *half)
{
    double ratio[MAX_ROUNDS];
    for (int i = 0; i < w->n_round; i++)
        ratio[i] = w->speed[i][on] / w->speed[i][off];
    return eng_bench_mean(ratio, w->n_round, half);
}

static void print_ratio(const struct eng_bench *b, int batch, const struct ways *w, int on, int off)
{
    const struct eng_bench_way *way = &w->way[on], *over = &w->way[off];
    double half, mean = ratio_of(w, on, off, &half);
    int n = w->n_round;
    char gamma[16], over_gamma[16];
    if (b->config->json)
        printf("{\"what\":\"speedup\",\"batch\":%d,\"drafter\":\"%s\",\"how\":\"%s\",\"over\":\"%s\",\"gamma\":%d,"
               "\"over_gamma\":%d,\"lookahead\":%d,\"pairs\":%d,\"ratio\":%.4f,\"ratio_interval\":%.4f",
               batch, b->drafter, eng_bench_how[way->how], eng_bench_how[over->how], way->gamma, over->gamma,
               b->config->n_ahead, n, mean, half);
    else if (over->how == ENG_BENCH_NONE)
        printf("drafts of %s %s, gamma %s, batch %d: %.3f times as fast, +- %.3f\n"
               "  (%d pair%s of blocks%s)\n",
               b->drafter, eng_bench_how[way->how], gamma_text(way->gamma, gamma), batch, mean, half, n,
               n == 1 ? "" : "s", b->config->verify == SPEC_COUPLED ? ", same tokens" : "");
    else
        printf("  %s, gamma %s, over %s, gamma %s: %.3f, +- %.3f\n", eng_bench_how[way->how],
               gamma_text(way->gamma, gamma), eng_bench_how[over->how], gamma_text(over->gamma, over_gamma), mean,
               half);
    if (over->how == ENG_BENCH_NONE)
        print_ideal(b, batch, *way, mean, w->disk_Bps);
    printf("%s", b->config->json ? "}\n" : "");
    fflush(stdout);
}

/* ---- all ways -------------------------------------------------------------------------------------------- */

static int list_ways(struct ways *w, const struct eng_config *c)
{
    const char *s = c->against ? c->against : "";
    w->way[w->n++] = none;
    w->way[w->n++] = (struct eng_bench_way){ ENG_BENCH_IN_TURN, c->gamma };
    if (c->n_dsi)
        w->way[w->n++] = (struct eng_bench_way){ ENG_BENCH_AHEAD, c->gamma };
    while (*s) {
        char *end;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (end == s || errno || v < 1 || v > ENG_DRAFT_NODES || (*end && *end != ',') || w->n == MAX_WAYS)
            return kn_fail(KN_EINVAL, "--against: '%.20s': up to %d numbers from 1 to %d, as in 1,2,4", s, MAX_WAYS - 3,
                           ENG_DRAFT_NODES);
        w->way[w->n++] = (struct eng_bench_way){ ENG_BENCH_IN_TURN, (int)v };
        s = *end ? end + 1 : end;
    }
    return 0;
}

int eng_bench_check(const struct eng_config *c)
{
    struct ways w = { .n = 0 };
    return list_ways(&w, c);
}

int eng_bench_most_drafted(const struct eng_config *c)
{
    struct ways w = { .n = 0 };
    int most = 0;
    (void)list_ways(&w, c); /* checked when the command began */
    for (int i = 0; i < w.n && c->against; i++)
        most = kn_max(most, w.way[i].gamma);
    return most;
}

static int run_round(struct eng_bench *b, int batch, struct ways *w, int round, bool *settled /* [MAX_WAYS] */)
{
    int error = 0;
    for (int i = 0; i < w->n && !error; i++) {
        if (round == 0 && (error = rehearse(b, batch, w->way[i], &settled[i])))
            break;
        struct eng_figure f = { .settled = settled[i] };
        error = run_block(b, batch, w->way[i], &f);
        w->speed[round][i] = f.tokens / f.seconds;
        w->disk_Bps = fmax(w->disk_Bps, f.disk_Bps);
    }
    return error;
}

static bool has_enough_rounds(const struct eng_bench *b, const struct ways *w, uint64_t began)
{
    double half;
    if (b->config->n_round)
        return w->n_round == b->config->n_round;
    ratio_of(w, 1, 0, &half);
    return w->n_round >= FEW_ROUNDS &&
           (half < INTERVAL || w->n_round == MANY_ROUNDS || kn_now_ns() - began > ROUNDS_NS);
}

int eng_bench_drafts(struct eng_bench *b, int batch)
{
    struct ways w = { .n = 0 };
    bool settled[MAX_WAYS];
    int error = list_ways(&w, b->config);
    for (uint64_t began = kn_now_ns(); !error && !has_enough_rounds(b, &w, began); w.n_round += !error)
        error = run_round(b, batch, &w, w.n_round, settled);
    for (int i = 1; i < w.n && !error; i++) {
        eng_bench_draft(b, w.way[i]); /* eng_explain() describes the current way */
        print_ratio(b, batch, &w, i, 0);
    }
    /* Further ratios: with --dsi over drafts in turn; drafts of --gamma over those of each length of --against. */
    for (int i = 2; i < w.n && !error; i++)
        print_ratio(b, batch, &w, w.way[i].how == ENG_BENCH_AHEAD ? i : 1, w.way[i].how == ENG_BENCH_AHEAD ? 1 : i);
    eng_bench_close_all(b, batch);
    eng_bench_draft(b, none);
    return error;
}
