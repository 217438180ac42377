/* speculative/simulate.c - the algorithms of simulate.h on a table of draws.
 *
 * It owns a virtual clock: the time at which each worker of the pool will finish.  The next event is the
 * earliest of these; at equal times verifications come first, as they may cancel other events.  A draft tells its
 * tokens once, with its first wrong one: right ones change nothing.
 * If targets contend, these times change whenever a pass begins or ends. */
#include "speculative/simulate.h"

#include <string.h>

#define NEVER INT64_MAX

/* ---- draws ------------------------------------------------------------------------------------- */

int spec_sim_draws_open(struct spec_sim_draws *d, int n_tok, int n_repeat, int max_lookahead)
{
    kn_assert(n_tok > 0 && n_repeat > 0 && max_lookahead >= 0);
    d->n_tok = n_tok;
    d->n_repeat = n_repeat;
    d->n_position = n_tok + max_lookahead;
    d->wrong = kn_calloc((size_t)n_repeat, sizeof *d->wrong * ((size_t)d->n_position + 1));
    if (!d->wrong)
        return kn_fail(KN_ENOMEM, "no memory for %d repeats of %d tokens: take fewer", n_repeat, n_tok);
    return 0;
}

void spec_sim_draws_close(struct spec_sim_draws *d)
{
    kn_free(d->wrong);
    d->wrong = NULL;
}

static int32_t *row(const struct spec_sim_draws *d, int repeat)
{
    kn_assert(repeat >= 0 && repeat < d->n_repeat);
    return d->wrong + (size_t)repeat * ((size_t)d->n_position + 1);
}

/* The random numbers do not depend on the acceptance rate: a draft that is right at one rate is right at each
 * higher one. */
void spec_sim_draws_fill(struct spec_sim_draws *d, uint64_t seed, double acceptance)
{
    for (int r = 0; r < d->n_repeat; r++) {
        int32_t *wrong = row(d, r);
        uint64_t stream = kn_mix(kn_mix(seed + KN_GOLDEN) + KN_GOLDEN * ((uint64_t)r + 1));
        wrong[d->n_position] = d->n_position;
        for (int p = d->n_position - 1; p >= 0; p--) {
            double u = (double)(kn_mix(stream + KN_GOLDEN * ((uint64_t)p + 1)) >> 11) * 0x1p-53;
            wrong[p] = u < acceptance ? wrong[p + 1] : p;
        }
    }
}

/* ---- the authors' formulas --------------------------------------------------------------------- */

/* Accepted tokens are not limited to the drafted ones, so the last iteration may count tokens beyond n_tok. */
struct spec_sim_cost spec_offline_si(const struct spec_sim_draws *d, int repeat, int lookahead)
{
    const int32_t *wrong = row(d, repeat);
    struct spec_sim_cost cost = { 0 };
    for (int at = 0; at < d->n_tok;) {
        cost.steps += kn_min(lookahead, d->n_tok - at - 1);
        cost.passes++;
        at += kn_min(wrong[at] - at, lookahead) + 1;
    }
    return cost;
}

/* A run is a sequence of blocks up to a rejection.  It costs its draft steps, those of the rejected block in
 * full, and one pass that nothing overlaps, but never more than plain decoding of its tokens.  (The authors'
 * program does not count the steps of a block with a first token that is rejected right after another
 * rejection; a run of one token costs one pass either way.) */
int64_t spec_offline_dsi(const struct spec_sim_draws *d, int repeat, int lookahead, int64_t target_ns, int64_t draft_ns)
{
    const int32_t *wrong = row(d, repeat);
    int64_t cost = 0;
    for (int at = 0; at < d->n_tok;) {
        int begin = at, n, accepted;
        int64_t run = 0;
        do {
            n = kn_min(lookahead, d->n_tok - 1 - at);
            accepted = kn_min(n, wrong[at] - at);
            run += n * draft_ns;
            at += accepted;
        } while (n > 0 && accepted == n);
        run += target_ns;
        at++;
        int64_t plain = (at - begin) * target_ns;
        cost += run < plain ? run : plain;
    }
    return cost;
}

/* ---- events ------------------------------------------------------------------------------------ */

/* The next iteration drafts from the token that the pass gave after the last accepted one: no other pass is
 * needed. */
struct spec_sim_cost spec_event_si(const struct spec_sim_draws *d, int repeat, int lookahead)
{
    const int32_t *wrong = row(d, repeat);
    struct spec_sim_cost cost = { 0 };
    for (int at = 0; at < d->n_tok;) {
        int n = kn_min(lookahead, d->n_tok - at - 1);
        cost.steps += n;
        cost.passes++;
        at += kn_min(wrong[at] - at, n) + 1;
    }
    return cost;
}

struct task {
    struct spec_dsi_action action;
    int64_t begin_ns, end_ns; /* begin_ns: after prefill */
    int64_t wrong_ns;         /* when a draft has its first wrong token, the one at n_wrong - 1; NEVER: told, or none */
    int n_wrong;
};

struct spec_sim_pool {
    struct spec_dsi *machine;
    struct task *task;  /* [n_worker] end_ns NEVER: idle */
    int32_t *tokens;    /* [max_lookahead + 1] */
    int64_t *prompt_ns; /* [n_worker] when its prompt is ready; NEVER: it has had no task */
    int n_worker, max_lookahead;
    double contention, slower; /* slower: present factor of pass times */
};

int spec_sim_pool_open(struct spec_sim_pool **out, int n_target, int max_tok, int max_lookahead)
{
    int e = KN_ENOMEM;
    int *role = kn_calloc((size_t)n_target + 1, sizeof *role);
    struct spec_sim_pool *p = kn_calloc(1, sizeof *p);
    if (!role || !p)
        goto fail;
    p->n_worker = n_target + 1;
    p->max_lookahead = max_lookahead;
    p->slower = 1;
    p->task = kn_calloc((size_t)p->n_worker, sizeof *p->task);
    p->tokens = kn_calloc((size_t)max_lookahead + 1, sizeof *p->tokens);
    p->prompt_ns = kn_calloc((size_t)p->n_worker, sizeof *p->prompt_ns);
    if (!p->task || !p->tokens || !p->prompt_ns)
        goto fail;
    for (int i = 0; i < n_target; i++)
        role[i] = SPEC_DSI_TARGET;
    role[n_target] = 0;
    struct spec_dsi_options o = {
        .n_worker = p->n_worker, .role = role, .n_drafter = 1, .max_lookahead = max_lookahead, .max_tok = max_tok
    };
    if ((e = spec_dsi_open(&p->machine, &o)) < 0)
        goto fail;
    kn_free(role);
    *out = p;
    return 0;

fail:
    kn_free(role);
    spec_sim_pool_close(p);
    return e == KN_ENOMEM ? kn_fail(e, "no memory for a pool of %d workers", n_target + 1) : e;
}

void spec_sim_pool_close(struct spec_sim_pool *p)
{
    if (!p)
        return;
    spec_dsi_close(p->machine);
    kn_free(p->task);
    kn_free(p->tokens);
    kn_free(p->prompt_ns);
    kn_free(p);
}

void spec_sim_pool_set_contention(struct spec_sim_pool *p, double contention) { p->contention = contention; }

/* After passes have begun or ended: rescales the remaining time of all running passes to their present number. */
static void contend(struct spec_sim_pool *p, int64_t now)
{
    int n = 0, n_target = p->n_worker - 1;
    for (int w = 0; w < n_target; w++)
        n += p->task[w].end_ns != NEVER;
    double slower = n > 0 ? 1 + p->contention * (n - 1) : 1;
    for (int w = 0; w < n_target && slower != p->slower; w++) {
        struct task *t = &p->task[w];
        if (t->end_ns != NEVER)
            t->end_ns = now + (int64_t)((double)(t->end_ns - now) * slower / p->slower + 0.5);
    }
    p->slower = slower;
}

/* A cancellation takes no time, and does not end the reading of the prompt.  A cancelled draft counts the steps begun
 * until then. */
static void cancel(struct spec_sim_pool *p, int w, int64_t now, int64_t draft_ns, struct spec_sim_cost *cost)
{
    struct task *t = &p->task[w];
    int64_t took_ns = now > t->begin_ns ? now - t->begin_ns : 0;
    if (t->action.kind == SPEC_DSI_DRAFT)
        cost->steps -= t->action.n - (took_ns + draft_ns - 1) / draft_ns;
    t->end_ns = t->wrong_ns = NEVER;
    spec_dsi_event(p->machine,
                   &(struct spec_dsi_event){ .what = SPEC_DSI_CANCELLED, .worker = w, .task = t->action.task });
}

static void start(struct spec_sim_pool *p, const struct spec_dsi_action *a, int64_t now, const int32_t *wrong,
                  const struct spec_sim_times *times)
{
    bool drafts = a->kind == SPEC_DSI_DRAFT;
    int64_t *prompt_ns = &p->prompt_ns[a->worker];
    if (*prompt_ns == NEVER)
        *prompt_ns = now + (drafts ? times->draft_prefill_ns : times->target_prefill_ns);
    int64_t begin = *prompt_ns > now ? *prompt_ns : now;
    int64_t ns = drafts ? a->n * times->draft_ns : (int64_t)((double)times->target_ns * p->slower);
    struct task *t = &p->task[a->worker];
    *t = (struct task){ .action = *a, .begin_ns = begin, .end_ns = begin + ns, .wrong_ns = NEVER };
    if (drafts && wrong[a->at] < a->at + a->n - 1) {
        t->n_wrong = wrong[a->at] - a->at + 1;
        t->wrong_ns = begin + t->n_wrong * times->draft_ns;
    }
}

static void act(struct spec_sim_pool *p, int64_t now, const int32_t *wrong, const struct spec_sim_times *times,
                struct spec_sim_cost *cost)
{
    struct spec_dsi_action a;
    while (spec_dsi_next(p->machine, &a)) {
        if (a.kind == SPEC_DSI_EMIT) {
            cost->first_ns = a.at == 0 ? now : cost->first_ns;
            cost->ns = now;
        }
        if (a.kind == SPEC_DSI_CANCEL)
            cancel(p, a.worker, now, times->draft_ns, cost);
        if (a.kind != SPEC_DSI_DRAFT && a.kind != SPEC_DSI_VERIFY)
            continue;
        cost->steps += a.kind == SPEC_DSI_DRAFT ? a.n : 0;
        cost->passes += a.kind == SPEC_DSI_VERIFY;
        start(p, &a, now, wrong, times);
    }
    contend(p, now);
}

/* The target's tokens are all 0; a draft's token is 1 where it is wrong. */
static void report(struct spec_sim_pool *p, const int32_t *wrong, int w, int64_t now)
{
    struct task *t = &p->task[w];
    bool drafts = t->action.kind == SPEC_DSI_DRAFT, done = t->end_ns <= t->wrong_ns;
    int n = done ? t->action.n + !drafts : t->n_wrong;
    for (int i = 0; i < n; i++)
        p->tokens[i] = drafts && wrong[t->action.at + i] == t->action.at + i;
    struct spec_dsi_event e = { .what = done ? SPEC_DSI_DONE : SPEC_DSI_DRAFTED,
                                .worker = w,
                                .task = t->action.task,
                                .tokens = p->tokens,
                                .n = n,
                                .took_ns = now - t->begin_ns };
    t->wrong_ns = NEVER;
    if (done)
        t->end_ns = NEVER;
    spec_dsi_event(p->machine, &e);
}

static int64_t next_ns(const struct task *t) { return t->wrong_ns < t->end_ns ? t->wrong_ns : t->end_ns; }

struct spec_sim_cost spec_event_dsi(struct spec_sim_pool *p, const struct spec_sim_draws *d, int repeat, int lookahead,
                                    const struct spec_sim_times *times)
{
    struct spec_sim_cost cost = { 0 };
    const int32_t *wrong = row(d, repeat);
    int64_t now = 0;
    kn_assert(lookahead > 0 && lookahead <= p->max_lookahead);
    for (int w = 0; w < p->n_worker; w++) {
        p->task[w].end_ns = p->task[w].wrong_ns = NEVER;
        p->prompt_ns[w] = NEVER;
    }
    spec_dsi_begin(p->machine, d->n_tok, lookahead);
    for (;;) {
        act(p, now, wrong, times, &cost);
        if (spec_dsi_state(p->machine) == SPEC_DSI_FINISHED)
            return cost;
        int w = 0;
        for (int i = 1; i < p->n_worker; i++)
            if (next_ns(&p->task[i]) < next_ns(&p->task[w]))
                w = i;
        now = next_ns(&p->task[w]);
        kn_assert(now != NEVER);
        report(p, wrong, w, now);
    }
}

double spec_dsi_bound(int n_tok, double acceptance, double target_ns, double draft_ns)
{
    double n = n_tok - 1;
    return draft_ns * acceptance * n + target_ns * ((1 - acceptance) * n + 1);
}
