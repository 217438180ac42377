/* engine/cli/simulate_dsi.c - `spillway simulate dsi`: compares plain decoding, speculative inference (SI) and
 * distributed speculative inference (DSI).
 *
 * In: latencies, acceptance rate, lookaheads, number of targets; or a preset: the settings of the paper's table or
 * grid.
 * Out: CSV for an output of --tokens.  Without a preset: times in milliseconds until the last token and, in the last
 * columns, until the first one; one line for each lookahead.  With a
 * preset: ratios of times, one line for each of its settings.
 *
 * The work is done in columns, one acceptance rate each.  A column draws its random numbers once and counts SI's passes
 * and steps at each lookahead once, since both are independent of latencies; then it computes the times for each pair
 * of latencies.
 *
 * Equation 1 of the DSI paper allows a lookahead if there are enough targets that no block of drafts waits for one
 * (spec_dsi_servers).  Without a preset, each line shows SI and DSI at its own lookahead; the offline time of DSI is
 * left out where the lookahead is not allowed.  In a preset, SI uses the best of all lookaheads (with --authors, of the
 * allowed ones), and DSI uses an allowed one: in the grid, the offline method takes the best, as the authors do; the
 * event method takes the smallest, as a real system would, which cannot know the best.  In the table, both methods take
 * the best of --lookahead (1, 5 and 10), and in further columns the smallest of 1 to 40. */
#include "engine/cli/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "speculative/simulate.h"

#define MAX_LOOKAHEADS 1000
#define MAX_DRAWS      (1 << 26) /* most random numbers of a column, in 256 MiB */
#define GRID_DRAFTS    100       /* draft latencies: 0.01, 0.02 ... 1 times the target's */
#define GRID_RATES     101       /* acceptance rates: 0, 0.01 ... 1 */
#define GRID_NS        1000000   /* time of a target pass in the grid */

enum method { OFFLINE, EVENT };
enum choice { BEST, SMALLEST }; /* which lookahead DSI uses, of those that Equation 1 allows */

struct lookaheads {
    int n, most, k[MAX_LOOKAHEADS];
};

struct plan {
    struct lookaheads lookaheads;
    int n_target, n_tok, n_repeat;
    uint64_t seed;
    double contention;
    bool authors; /* SI is limited to the lookaheads of Equation 1 too */
};

/* ---- options ----------------------------------------------------------------------------------- */

/* Parses a list of numbers and ranges, as in 1,5,10-200. */
static int parse_lookaheads(const char *text, struct lookaheads *l)
{
    *l = (struct lookaheads){ 0 };
    for (const char *s = text;; s++) {
        char *end;
        long first = strtol(s, &end, 10), last = first;
        bool good = end != s && *s >= '0' && *s <= '9';
        if (good && *end == '-') {
            s = end + 1;
            last = strtol(s, &end, 10);
            good = end != s && *s >= '0' && *s <= '9';
        }
        if (!good || (*end && *end != ',') || first < 1 || last < first || last > MAX_LOOKAHEADS)
            return kn_fail(KN_EINVAL, "--lookahead takes numbers from 1 to %d, as in 1,5,10 or 1-200, not '%s'",
                           MAX_LOOKAHEADS, text);
        for (long k = first; k <= last; k++) {
            if (l->n == MAX_LOOKAHEADS)
                return kn_fail(KN_EINVAL, "--lookahead takes at most %d numbers", MAX_LOOKAHEADS);
            l->k[l->n++] = (int)k;
            l->most = kn_max(l->most, (int)k);
        }
        if (!*end)
            return 0;
        s = end;
    }
}

static int make_plan(const struct eng_config *c, const char *lookaheads, int n_tok, int n_repeat, struct plan *p)
{
    *p = (struct plan){ .n_target = c->n_target,
                        .authors = c->authors,
                        .contention = c->contention,
                        .n_tok = c->n_tok ? c->n_tok : n_tok,
                        .n_repeat = c->n_repeat ? c->n_repeat : n_repeat,
                        .seed = c->seed_given ? c->sampling.seed : 0 };
    int e = parse_lookaheads(c->lookahead ? c->lookahead : lookaheads, &p->lookaheads);
    if (e < 0)
        return e;
    if ((int64_t)p->n_repeat * (p->n_tok + p->lookaheads.most) > MAX_DRAWS)
        return kn_fail(KN_EINVAL, "%d repeats of %d tokens are too many at once: the maximum is %d tokens in all",
                       p->n_repeat, p->n_tok, MAX_DRAWS);
    return 0;
}

static int64_t to_ns(double ms) { return (int64_t)(ms * 1e6 + 0.5); }

/* ---- one column -------------------------------------------------------------------------------- */

struct si_count {
    double passes, steps;
}; /* of SI for an output; means over all repeats */

struct column {
    const struct plan *plan;
    struct spec_sim_draws draws;
    struct spec_sim_pool *pool;
    struct si_count si[2][MAX_LOOKAHEADS]; /* [method][lookahead index] */
};

static int column_open(struct column **out, const struct plan *plan)
{
    struct column *c = kn_calloc(1, sizeof *c);
    if (!c)
        return kn_fail(KN_ENOMEM, "no memory for the simulation");
    c->plan = plan;
    *out = c;
    int e = spec_sim_draws_open(&c->draws, plan->n_tok, plan->n_repeat, plan->lookaheads.most);
    if (e < 0 || (e = spec_sim_pool_open(&c->pool, plan->n_target, plan->n_tok, plan->lookaheads.most)) < 0)
        return e;
    spec_sim_pool_set_contention(c->pool, plan->contention);
    return 0;
}

static void column_close(struct column *c)
{
    if (!c)
        return;
    spec_sim_draws_close(&c->draws);
    spec_sim_pool_close(c->pool);
    kn_free(c);
}

static struct si_count count_si(const struct spec_sim_draws *d, enum method m, int lookahead)
{
    struct si_count sum = { 0 };
    for (int r = 0; r < d->n_repeat; r++) {
        struct spec_sim_cost one = m == OFFLINE ? spec_offline_si(d, r, lookahead) : spec_event_si(d, r, lookahead);
        sum.passes += (double)one.passes;
        sum.steps += (double)one.steps;
    }
    return (struct si_count){ sum.passes / d->n_repeat, sum.steps / d->n_repeat };
}

static void column_fill(struct column *c, double acceptance)
{
    const struct lookaheads *l = &c->plan->lookaheads;
    spec_sim_draws_fill(&c->draws, c->plan->seed, acceptance);
    for (int i = 0; i < l->n; i++)
        for (int m = OFFLINE; m <= EVENT; m++)
            c->si[m][i] = count_si(&c->draws, (enum method)m, l->k[i]);
}

static double si_ns(struct si_count n, struct spec_sim_times t)
{
    return n.passes * (double)t.target_ns + n.steps * (double)t.draft_ns;
}

/* SI's time to the first token, which the pass over its first block gives. */
static double si_first_ns(const struct plan *p, int lookahead, struct spec_sim_times t)
{
    return kn_min(lookahead, p->n_tok - 1) * (double)t.draft_ns + (double)t.target_ns +
           (double)(t.target_prefill_ns + t.draft_prefill_ns);
}

struct dsi_mean {
    double first_ns, ns, passes, steps;
};

static struct dsi_mean mean_dsi(struct column *c, enum method m, int lookahead, struct spec_sim_times t)
{
    struct dsi_mean sum = { 0 };
    int n = c->plan->n_repeat;
    for (int r = 0; r < n; r++) {
        if (m == OFFLINE) {
            sum.ns += (double)spec_offline_dsi(&c->draws, r, lookahead, t.target_ns, t.draft_ns);
            continue;
        }
        struct spec_sim_cost one = spec_event_dsi(c->pool, &c->draws, r, lookahead, &t);
        sum.first_ns += (double)one.first_ns;
        sum.ns += (double)one.ns;
        sum.passes += (double)one.passes;
        sum.steps += (double)one.steps;
    }
    return (struct dsi_mean){ sum.first_ns / n, sum.ns / n, sum.passes / n, sum.steps / n };
}

static bool allowed(const struct plan *p, int lookahead, struct spec_sim_times t)
{
    return spec_dsi_servers(t.target_ns, t.draft_ns, lookahead) <= p->n_target;
}

/* Mean times of an output.  Lookahead 0: no lookahead is allowed, so the time is that of plain decoding.  same_ns: DSI
 * at SI's lookahead, where blocks may wait for a target; event method only, as the formulas have no queue. */
struct match {
    double plain_ns, si_ns, dsi_ns, same_ns;
    int si_lookahead, dsi_lookahead;
};

static struct match compare(struct column *c, enum method m, enum choice choice, struct spec_sim_times t)
{
    const struct lookaheads *l = &c->plan->lookaheads;
    double plain_ns = (double)c->plan->n_tok * (double)t.target_ns;
    struct match best = { .plain_ns = plain_ns, .si_ns = INFINITY, .dsi_ns = INFINITY };
    int smallest = 0;
    for (int i = 0; i < l->n; i++)
        if (allowed(c->plan, l->k[i], t) && (!smallest || l->k[i] < smallest))
            smallest = l->k[i];
    for (int i = 0; i < l->n; i++) {
        int k = l->k[i];
        bool fits = allowed(c->plan, k, t);
        double ns = si_ns(c->si[m][i], t);
        if ((fits || !c->plan->authors) && ns < best.si_ns) {
            best.si_ns = ns;
            best.si_lookahead = k;
        }
        if (!fits || (choice == SMALLEST && k != smallest))
            continue;
        ns = mean_dsi(c, m, k, t).ns;
        if (ns < best.dsi_ns) {
            best.dsi_ns = ns;
            best.dsi_lookahead = k;
        }
    }
    best.si_ns = best.si_lookahead ? best.si_ns : plain_ns;
    best.dsi_ns = best.dsi_lookahead ? best.dsi_ns : plain_ns;
    if (m == EVENT)
        best.same_ns = best.si_lookahead ? mean_dsi(c, m, best.si_lookahead, t).ns : plain_ns;
    return best;
}

/* ---- one setting, by lookahead ----------------------------------------------------------------- */

static const double ms = 1e-6;

/* The first columns of a line, up to si_offline_ms.  The formulas of the paper know no prefill: with one, their columns
 * are empty. */
static void print_setting(const struct plan *p, int lookahead, struct spec_sim_times t, float acceptance,
                          double si_offline_ns)
{
    printf("%g,%g,%g,%d,%g,%d,%d,%lld,%.4f,", (double)t.target_ns * ms, (double)t.draft_ns * ms, (double)acceptance,
           p->n_target, p->contention, p->n_tok, lookahead,
           (long long)spec_dsi_servers(t.target_ns, t.draft_ns, lookahead),
           (p->n_tok * (double)t.target_ns + (double)t.target_prefill_ns) * ms);
    if (t.target_prefill_ns + t.draft_prefill_ns)
        printf(",,");
    else
        printf("%.4f,%.4f,", spec_dsi_bound(p->n_tok, acceptance, (double)t.target_ns, (double)t.draft_ns) * ms,
               si_offline_ns * ms);
}

static int run_setting(const struct eng_config *config)
{
    struct spec_sim_times t = { .target_ns = to_ns(config->target_ms),
                                .draft_ns = to_ns(config->draft_ms),
                                .target_prefill_ns = to_ns(config->target_prefill_ms),
                                .draft_prefill_ns = to_ns(config->draft_prefill_ms) };
    double read_ns = (double)(t.target_prefill_ns + t.draft_prefill_ns);
    struct column *c = NULL;
    struct plan plan;
    int e = make_plan(config, "1-20", 50, 3000, &plan);
    if (e >= 0)
        e = column_open(&c, &plan);
    if (e >= 0) {
        column_fill(c, config->acceptance);
        puts("target_ms,draft_ms,acceptance,targets,contention,tokens,lookahead,servers,plain_ms,bound_ms,"
             "si_offline_ms,dsi_offline_ms,si_ms,si_passes,si_steps,dsi_ms,dsi_passes,dsi_steps,"
             "plain_first_ms,si_first_ms,dsi_first_ms");
    }
    for (int i = 0; e >= 0 && i < plan.lookaheads.n; i++) {
        int k = plan.lookaheads.k[i];
        struct dsi_mean dsi = mean_dsi(c, EVENT, k, t);
        char offline[32] = ""; /* the formulas have no queue for targets, and no prefill */
        if (allowed(&plan, k, t) && !read_ns)
            snprintf(offline, sizeof offline, "%.4f", mean_dsi(c, OFFLINE, k, t).ns * ms);
        print_setting(&plan, k, t, config->acceptance, si_ns(c->si[OFFLINE][i], t));
        printf("%s,%.4f,%.3f,%.3f,%.4f,%.3f,%.3f,%.4f,%.4f,%.4f\n", offline, (si_ns(c->si[EVENT][i], t) + read_ns) * ms,
               c->si[EVENT][i].passes, c->si[EVENT][i].steps, dsi.ns * ms, dsi.passes, dsi.steps,
               (double)(t.target_ns + t.target_prefill_ns) * ms, si_first_ns(&plan, k, t) * ms, dsi.first_ns * ms);
    }
    column_close(c);
    return e;
}

/* ---- the published table ----------------------------------------------------------------------- */

/* Table 2 of the paper: milliseconds per token after the first, acceptance rate, and the speed-up of DSI over SI
 * that the authors measured with their threaded program, for 50 tokens and a lookahead of 1, 5 or 10. */
static const struct published {
    const char *target, *drafter, *data;
    double target_ms, draft_ms, acceptance, ratio;
} published[] = {
    { "Vicuna-13B", "Vicuna-68M", "CNN-DM", 37.7, 2.5, 0.63, 1.47 },
    { "Vicuna-13B", "Vicuna-68M", "Alpaca", 33.3, 2.5, 0.58, 1.41 },
    { "Vicuna-7B", "Vicuna-68M", "CNN-DM", 29.4, 2.5, 0.67, 1.29 },
    { "Vicuna-7B", "Vicuna-68M", "Alpaca", 26.0, 2.5, 0.59, 1.70 },
    { "Starcoder-15B", "Starcoder-168M", "HumanEval", 20.6, 6.8, 0.93, 1.92 },
    { "Starcoder-15B", "Starcoder-168M", "MBPP", 21.0, 6.8, 0.90, 1.66 },
    { "Phi3-14B", "Phi3-4B", "HumanEval", 52.1, 34.0, 0.95, 1.41 },
    { "Phi3-14B", "Phi3-4B", "MBPP", 52.2, 34.3, 0.94, 1.37 },
    { "Phi3-14B", "Phi3-4B", "CNN-DM", 52.4, 34.6, 0.93, 1.39 },
    { "Phi3-14B", "Phi3-4B", "Alpaca", 49.6, 33.4, 0.87, 1.60 },
};

/* The standard error of (mean time of SI) / (mean time of DSI), where both use the same random numbers. */
static double standard_error(struct column *c, const struct match *m, struct spec_sim_times t)
{
    double ratio = m->si_ns / m->dsi_ns, sum = 0;
    int n = c->plan->n_repeat;
    for (int r = 0; r < n && m->dsi_lookahead; r++) {
        struct spec_sim_cost one = spec_offline_si(&c->draws, r, m->si_lookahead);
        double si = (double)(one.passes * t.target_ns + one.steps * t.draft_ns);
        double dsi = (double)spec_offline_dsi(&c->draws, r, m->dsi_lookahead, t.target_ns, t.draft_ns);
        sum += (si - ratio * dsi) * (si - ratio * dsi);
    }
    return sqrt(sum) / n / m->dsi_ns;
}

static void print_row(const struct published *p, struct column *few, struct column *all)
{
    struct spec_sim_times t = { .target_ns = to_ns(p->target_ms), .draft_ns = to_ns(p->draft_ms) };
    column_fill(few, p->acceptance);
    column_fill(all, p->acceptance);
    struct match offline = compare(few, OFFLINE, BEST, t), free_offline = compare(all, OFFLINE, SMALLEST, t);
    struct match event = compare(few, EVENT, BEST, t), free_event = compare(all, EVENT, SMALLEST, t);
    printf("%s,%s,%s,%g,%g,%g,%.2f,%.3f,%.3f,%.3f,%.3f,%.3f,%d,%d,%.3f,%.3f,%.3f,%.3f\n", p->target, p->drafter,
           p->data, p->target_ms, p->draft_ms, p->acceptance, p->ratio, offline.si_ns / offline.dsi_ns,
           standard_error(few, &offline, t), event.si_ns / event.dsi_ns, free_offline.si_ns / free_offline.dsi_ns,
           free_event.si_ns / free_event.dsi_ns, free_event.si_lookahead, free_event.dsi_lookahead,
           free_offline.plain_ns / free_offline.si_ns, free_offline.plain_ns / free_offline.dsi_ns,
           free_event.plain_ns / free_event.si_ns, free_event.plain_ns / free_event.dsi_ns);
}

static int run_table(const struct eng_config *config)
{
    struct column *few = NULL, *all = NULL;
    struct plan plan, every;
    int e = make_plan(config, "1,5,10", 50, 3000, &plan);
    if (e < 0)
        return e;
    every = plan;
    if ((e = parse_lookaheads("1-40", &every.lookaheads)) < 0 || (e = column_open(&few, &plan)) < 0 ||
        (e = column_open(&all, &every)) < 0)
        goto done;
    puts("target,drafter,data,target_ms,draft_ms,acceptance,published,offline,offline_error,event,"
         "offline_free,event_free,si_lookahead,dsi_lookahead,plain_over_si_offline,"
         "plain_over_dsi_offline,plain_over_si_event,plain_over_dsi_event");
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        print_row(&published[i], few, all);
done:
    column_close(few);
    column_close(all);
    return e;
}

/* ---- the published grid ------------------------------------------------------------------------ */

struct grid {
    enum method method;
    struct column **column;            /* [n_thread], one per thread */
    struct match (*cell)[GRID_DRAFTS]; /* [GRID_RATES][GRID_DRAFTS] */
};

static struct spec_sim_times grid_times(int draft)
{
    return (struct spec_sim_times){ .target_ns = GRID_NS, .draft_ns = (int64_t)(draft + 1) * (GRID_NS / GRID_DRAFTS) };
}

static void fill_column(void *arg, int rate, int thread)
{
    struct grid *g = arg;
    struct column *c = g->column[thread];
    column_fill(c, rate / (double)(GRID_RATES - 1));
    for (int i = 0; i < GRID_DRAFTS; i++)
        g->cell[rate][i] = compare(c, g->method, g->method == OFFLINE ? BEST : SMALLEST, grid_times(i));
}

static void print_grid(const struct grid *g)
{
    puts("draft,acceptance,si_lookahead,dsi_lookahead,plain_over_si,si_over_dsi,plain_over_dsi,"
         "best_over_dsi,si_over_dsi_at_si_lookahead");
    for (int rate = 0; rate < GRID_RATES; rate++)
        for (int i = 0; i < GRID_DRAFTS; i++) {
            const struct match *m = &g->cell[rate][i];
            printf("%.2f,%.2f,%d,%d,%.4f,%.4f,%.4f,%.4f,", (i + 1) / (double)GRID_DRAFTS,
                   rate / (double)(GRID_RATES - 1), m->si_lookahead, m->dsi_lookahead, m->plain_ns / m->si_ns,
                   m->si_ns / m->dsi_ns, m->plain_ns / m->dsi_ns,
                   (m->plain_ns < m->si_ns ? m->plain_ns : m->si_ns) / m->dsi_ns);
            if (g->method == EVENT)
                printf("%.4f", m->si_ns / m->same_ns);
            printf("\n");
        }
}

static int run_grid(const struct eng_config *config)
{
    struct grid g = { .method = EVENT };
    struct kn_team *team = NULL;
    struct plan plan;
    int n_thread = 0, e = make_plan(config, "1-200", 1000, 5, &plan);
    if (e < 0 || (e = kn_team_open(&team, config->n_thread)) < 0)
        return e;
    n_thread = kn_team_size(team);
    if (!strcmp(config->method, "offline"))
        g.method = OFFLINE;
    g.column = kn_calloc((size_t)n_thread, sizeof *g.column);
    g.cell = kn_calloc(GRID_RATES, sizeof *g.cell);
    if (!g.column || !g.cell)
        e = kn_fail(KN_ENOMEM, "no memory for a grid of %d cells", GRID_RATES * GRID_DRAFTS);
    for (int i = 0; e >= 0 && i < n_thread; i++)
        e = column_open(&g.column[i], &plan);
    if (e >= 0) {
        kn_parallel_for(team, GRID_RATES, fill_column, &g);
        print_grid(&g);
    }
    for (int i = 0; g.column && i < n_thread; i++)
        column_close(g.column[i]);
    kn_free(g.column);
    kn_free(g.cell);
    kn_team_close(team);
    return e;
}

int eng_simulate_dsi(const struct eng_config *config)
{
    if (strcmp(config->method, "event") != 0 && strcmp(config->method, "offline") != 0)
        return kn_fail(KN_EINVAL, "--method takes event or offline, not '%s'", config->method);
    if (!config->preset)
        return run_setting(config);
    if (config->target_prefill_ms > 0 || config->draft_prefill_ms > 0)
        return kn_fail(KN_EINVAL, "--target-prefill-ms and --draft-prefill-ms do not go with --preset: the published "
                                  "settings know no time to read the prompt");
    if (!strcmp(config->preset, "table"))
        return run_table(config);
    if (!strcmp(config->preset, "grid"))
        return run_grid(config);
    return kn_fail(KN_EINVAL, "--preset takes table or grid, not '%s'", config->preset);
}
