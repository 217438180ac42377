/* engine/dsi.c - worker threads of distributed speculative inference, their tasks, and the state machine that assigns
 * the tasks.
 *
 * One lock guards all shared data, and one condition wakes all waiting threads. The caller's thread puts a task into a
 * worker's fields and sets its mail; the worker leaves its answer there, and the caller's thread passes it to the state
 * machine. A task carries its whole sequence: the worker reuses its KV of the longest prefix that the sequence shares
 * with the last one that it computed, and computes the rest. Each worker has its own context, where KV slot p is
 * position p. */
#include "engine/dsi.h"
#include "engine/internal.h"
#include "speculative/dsi.h"

#include <pthread.h>
#include <string.h>

#define MOST_ROW       64 /* most rows of a pass: of prefill, or of a task's drafted tokens and the token before */
#define MOST_LOOKAHEAD (MOST_ROW - 1)

enum mail { MAIL_NONE, MAIL_TASK, MAIL_BUSY, MAIL_END };

struct worker {
    struct eng_dsi *dsi;
    int number, role;
    const struct moe_model *model;
    pthread_t thread;
    bool started;
    struct moe_context *context;
    struct kn_team *team;
    struct spec_sampler *sampler;
    struct moe_row *row; /* [MOST_ROW] */
    int32_t *slot;       /* [n_ctx] position p is slot p */
    int32_t *have;       /* [n_have] the tokens with KV in this context */
    int n_have;

    enum mail mail;        /* guarded by the lock, as the fields below; text, answer: the worker's while MAIL_BUSY */
    atomic_bool cancelled; /* also read without the lock, between passes */
    struct spec_dsi_action task;
    int32_t *text; /* [n_text] the task's sequence: prompt, output, drafted tokens */
    int n_text;
    int32_t *answer; /* [n_answer] the tokens that the task has sampled */
    int n_answer;
    int n_told, n_drafted; /* a draft's tokens: passed to the state machine; there, n_told at least */
    enum spec_dsi_event_kind what;
    int64_t took_ns;
    bool answered; /* the answer is complete, and not passed to the state machine yet */
};

struct eng_dsi {
    struct eng_engine *engine;
    struct eng_dsi_options opt;
    struct spec_dsi *machine;
    struct worker *worker;   /* [n_worker] targets, then drafters */
    int n_worker, n_drafter; /* drafters: one worker each */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct spec_params sampling;
    struct spec_bias *bias; /* [ENG_REQUEST_BIAS + n_stop] the request's, then ignored stop tokens */
    int32_t *prompt;        /* [n_prompt] */
    int n_prompt, n_said;   /* n_said: tokens returned by eng_dsi_wait */
    bool ended;
    struct eng_dsi_stats stats;
};

/* ---- tasks, on a worker's thread ------------------------------------------------------------------------ */

static int compute(struct worker *w, const int32_t *text, int from, int n, int first_wanted, struct moe_result *out)
{
    for (int i = 0; i < n; i++)
        w->row[i] = (struct moe_row){ .token = text[from + i],
                                      .position = from + i,
                                      .want_logits = from + i >= first_wanted,
                                      .base = w->slot,
                                      .n_base = from + n };
    int error = moe_forward(w->context, &(struct moe_batch){ .row = w->row, .n_row = n }, out);
    return error ? error : moe_rows_status(out, 0, n);
}

static int choose(struct worker *w, const float *logits, const int32_t *text, int n, int32_t *token)
{
    struct spec_sampled c;
    int error = spec_sample(w->sampler, &w->dsi->sampling, logits, text, n, n, &c);
    *token = error ? 0 : c.token;
    return error;
}

/* Computes the KV of text[n] that the worker does not have, and samples to choice[n_wanted] the token after each of the
 * last n_wanted tokens. */
static int read_on(struct worker *w, const int32_t *text, int n, int n_wanted, int32_t *choice)
{
    int same = 0, n_vocab = moe_model_shape(w->model)->n_vocab, first = n - n_wanted, error = 0;
    while (same < w->n_have && same < first && w->have[same] == text[same])
        same++;
    w->n_have = same;
    for (int at = same; at < n && !error && !atomic_load(&w->cancelled);) {
        struct moe_result r;
        int n_row = kn_min(n - at, MOST_ROW), k = 0;
        error = compute(w, text, at, n_row, first, &r);
        for (int i = kn_max(at, first); i < at + n_row && !error; i++, k++)
            error = choose(w, r.logits + (size_t)k * (size_t)n_vocab, text, i + 1, choice + i - first);
        memcpy(w->have + at, text + at, (size_t)n_row * sizeof *text);
        at += n_row;
        w->n_have = error ? same : at;
    }
    return error;
}

/* The first n tokens of the answer are there: the caller's thread may cancel the draft for one of them. */
static void tell_drafted(struct worker *w, int n)
{
    pthread_mutex_lock(&w->dsi->lock);
    w->n_drafted = n;
    pthread_cond_broadcast(&w->dsi->wake);
    pthread_mutex_unlock(&w->dsi->lock);
}

static int meddle(struct worker *w, int n_drafted)
{
    const struct eng_dsi_options *o = &w->dsi->opt;
    return o->meddle ? o->meddle(o->meddle_arg, w->number, n_drafted) : 0;
}

static int do_task(struct worker *w)
{
    const struct spec_dsi_action *a = &w->task;
    if (w->role == SPEC_DSI_TARGET) {
        w->n_answer = a->n + 1;
        return read_on(w, w->text, w->n_text, a->n + 1, w->answer);
    }
    int error = 0, n = 0;
    while (n < a->n && !error && !atomic_load(&w->cancelled)) {
        error = read_on(w, w->text, w->n_text + n, 1, &w->answer[n]);
        w->text[w->n_text + n] = w->answer[n];
        n++;
        tell_drafted(w, n);
        error = error ? error : meddle(w, n);
    }
    w->n_answer = n;
    return error;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct eng_dsi *d = w->dsi;
    pthread_mutex_lock(&d->lock);
    while (w->mail != MAIL_END) {
        if (w->mail != MAIL_TASK) {
            pthread_cond_wait(&d->wake, &d->lock);
            continue;
        }
        w->mail = MAIL_BUSY;
        pthread_mutex_unlock(&d->lock);
        uint64_t start = kn_now_ns();
        int error = meddle(w, 0);
        if (!error)
            error = do_task(w);
        pthread_mutex_lock(&d->lock);
        w->took_ns = (int64_t)(kn_now_ns() - start);
        w->what = error ? SPEC_DSI_FAILED : atomic_load(&w->cancelled) ? SPEC_DSI_CANCELLED : SPEC_DSI_DONE;
        w->answered = true;
        if (w->mail == MAIL_BUSY)
            w->mail = MAIL_NONE;
        pthread_cond_broadcast(&d->wake);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static struct moe_context_options context_options(const struct eng_engine *e, struct kn_team *team)
{
    return (struct moe_context_options){ .max_row = MOST_ROW,
                                         .max_want = MOST_ROW,
                                         .n_slot = e->assets.opt.n_ctx,
                                         .max_pos = e->assets.opt.n_ctx,
                                         .max_path = 1,
                                         .kv = e->assets.opt.kv,
                                         .team = team };
}

/* Draft models that get a worker. */
static int count_drafters(const struct eng_engine *e)
{
    int n = 0;
    while (n < SPEC_DSI_DRAFTERS && eng_draft_chain_model(e->drafting, n))
        n++;
    return n;
}

size_t eng_dsi_bytes(const struct eng_engine *e, const struct eng_dsi_options *o)
{
    struct moe_context_options co = context_options(e, e->assets.team);
    size_t lists = (size_t)e->assets.opt.n_ctx * 4 * sizeof(int32_t);
    size_t bytes = (size_t)o->n_target * (moe_context_bytes(e->assets.model, &co).host + lists);
    for (int i = count_drafters(e); i-- > 0;)
        bytes += moe_context_bytes(eng_draft_chain_model(e->drafting, i), &co).host + lists;
    return bytes;
}

static int open_worker(struct eng_dsi *d, struct worker *w)
{
    struct eng_engine *e = d->engine;
    size_t n_ctx = (size_t)e->assets.opt.n_ctx;
    bool target = w->role == SPEC_DSI_TARGET;
    w->row = kn_calloc(MOST_ROW, sizeof *w->row);
    w->slot = kn_calloc(n_ctx, sizeof *w->slot);
    w->have = kn_calloc(n_ctx, sizeof *w->have);
    w->text = kn_calloc(n_ctx + MOST_ROW, sizeof *w->text);
    w->answer = kn_calloc(MOST_ROW, sizeof *w->answer);
    if (!w->row || !w->slot || !w->have || !w->text || !w->answer)
        return kn_fail(KN_ENOMEM, "no memory for a worker");
    for (size_t i = 0; i < n_ctx; i++)
        w->slot[i] = (int32_t)i;
    int error = kn_team_open(&w->team, target ? d->opt.n_thread : 1);
    if (error || (error = spec_sampler_open(&w->sampler, eng_vocab_size(e->assets.vocab))))
        return error;
    struct moe_context_options co = context_options(e, w->team);
    if ((error = moe_context_open(&w->context, w->model, &co)))
        return error;
    if (pthread_create(&w->thread, NULL, worker_main, w))
        return kn_fail(KN_ENOMEM, "cannot start a worker thread");
    w->started = true;
    return 0;
}

static int open_machine(struct eng_dsi *d)
{
    int role[SPEC_DSI_WORKERS];
    for (int i = 0; i < d->n_worker; i++)
        role[i] = d->worker[i].role;
    return spec_dsi_open(&d->machine, &(struct spec_dsi_options){
                                          .n_worker = d->n_worker,
                                          .role = role,
                                          .n_drafter = d->n_drafter,
                                          .max_lookahead = d->opt.lookahead ? d->opt.lookahead : MOST_LOOKAHEAD / 4,
                                          .max_tok = d->engine->assets.opt.n_ctx });
}

int eng_dsi_open(struct eng_dsi **out, struct eng_engine *e, const struct eng_dsi_options *o)
{
    int n_drafter = count_drafters(e);
    if (o->n_target < 1 || o->n_target > SPEC_DSI_WORKERS - SPEC_DSI_DRAFTERS || o->lookahead < 0 ||
        o->lookahead > MOST_LOOKAHEAD)
        return kn_fail(KN_EINVAL, "%d targets, a lookahead of %d; 1 to %d and 0 to %d are possible", o->n_target,
                       o->lookahead, SPEC_DSI_WORKERS - SPEC_DSI_DRAFTERS, MOST_LOOKAHEAD);
    if (!n_drafter && e->assets.opt.n_draft)
        kn_say(KN_LOG_WARN,
               "--dsi: no drafter is a model of the same vocabulary that drafts chains, so nothing is drafted");
    if (moe_model_shape(e->assets.model)->state_bytes)
        return kn_fail(KN_EUNSUPPORTED,
                       "--dsi: %s has recurrent layers, and their state cannot be rolled back as a "
                       "worker needs: leave --dsi out",
                       e->assets.opt.model);
    kn_assert(!e->memory.split.device.total); /* its memory has no room for the workers' contexts */
    struct eng_dsi *d = kn_calloc(1, sizeof *d);
    if (!d)
        return kn_fail(KN_ENOMEM, "no memory for workers");
    d->engine = e;
    d->opt = *o;
    d->n_drafter = n_drafter;
    d->n_worker = o->n_target + d->n_drafter;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->wake, NULL);
    d->worker = kn_calloc((size_t)d->n_worker, sizeof *d->worker);
    d->prompt = kn_calloc((size_t)e->assets.opt.n_ctx, sizeof *d->prompt);
    d->bias = kn_calloc((size_t)(ENG_REQUEST_BIAS + e->assets.n_stop), sizeof *d->bias);
    int error = d->worker && d->prompt && d->bias ? 0 : kn_fail(KN_ENOMEM, "no memory for workers");
    for (int i = 0; i < d->n_worker && !error; i++) {
        int role = i < o->n_target ? SPEC_DSI_TARGET : i - o->n_target;
        d->worker[i] = (struct worker){ .dsi = d,
                                        .number = i,
                                        .role = role,
                                        .model = role == SPEC_DSI_TARGET ? e->assets.model
                                                                         : eng_draft_chain_model(e->drafting, role) };
        error = open_worker(d, &d->worker[i]);
    }
    if (error || (error = open_machine(d))) {
        eng_dsi_close(d);
        return error;
    }
    d->ended = true;
    *out = d;
    return 0;
}

static void close_worker(struct eng_dsi *d, struct worker *w)
{
    if (w->started) {
        pthread_mutex_lock(&d->lock);
        w->mail = MAIL_END;
        atomic_store(&w->cancelled, true);
        pthread_cond_broadcast(&d->wake);
        pthread_mutex_unlock(&d->lock);
        pthread_join(w->thread, NULL);
    }
    moe_context_close(w->context);
    spec_sampler_close(w->sampler);
    kn_team_close(w->team);
    kn_free(w->row);
    kn_free(w->slot);
    kn_free(w->have);
    kn_free(w->text);
    kn_free(w->answer);
}

void eng_dsi_close(struct eng_dsi *d)
{
    if (!d)
        return;
    for (int i = 0; d->worker && i < d->n_worker; i++)
        close_worker(d, &d->worker[i]);
    spec_dsi_close(d->machine);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->wake);
    kn_free(d->worker);
    kn_free(d->prompt);
    kn_free(d->bias);
    kn_free(d);
}

/* ---- a sequence ------------------------------------------------------------------------------------------- */

/* Gives a verify or draft task to its worker. The caller holds the lock, as for all functions down to settle(). */
static void start_task(struct eng_dsi *d, const struct spec_dsi_action *a)
{
    struct worker *w = &d->worker[a->worker];
    int n_draft = a->kind == SPEC_DSI_VERIFY ? a->n : 0;
    kn_assert(w->mail == MAIL_NONE && !w->answered);
    memcpy(w->text, d->prompt, (size_t)d->n_prompt * sizeof *w->text);
    spec_dsi_context(d->machine, a, 0, w->text + d->n_prompt);
    w->n_text = d->n_prompt + a->at + n_draft;
    w->task = *a;
    w->n_told = w->n_drafted = 0;
    atomic_store(&w->cancelled, false);
    w->mail = MAIL_TASK;
    d->stats.n_verify += a->kind == SPEC_DSI_VERIFY;
    d->stats.n_draft += a->kind == SPEC_DSI_DRAFT;
}

/* Asks the worker to end the task. If the worker has not started it, it is answered as cancelled at once. */
static void cancel_task(struct eng_dsi *d, const struct spec_dsi_action *a)
{
    struct worker *w = &d->worker[a->worker];
    if (w->task.task != a->task || w->mail == MAIL_NONE)
        return;
    atomic_store(&w->cancelled, true);
    d->stats.n_cancelled++;
    if (w->mail == MAIL_TASK) {
        w->mail = MAIL_NONE;
        w->what = SPEC_DSI_CANCELLED;
        w->answered = true;
    }
}

/* Carries out all actions that the state machine has decided. */
static void act(struct eng_dsi *d)
{
    struct spec_dsi_action a;
    while (spec_dsi_next(d->machine, &a)) {
        if (a.kind == SPEC_DSI_CANCEL)
            cancel_task(d, &a);
        else if (a.kind != SPEC_DSI_EMIT)
            start_task(d, &a);
    }
    pthread_cond_broadcast(&d->wake);
}

/* Passes the workers' answers, and the tokens of drafts under way, to the state machine and carries out its decisions;
 * false: there was nothing to pass. */
static bool take_messages(struct eng_dsi *d)
{
    bool heard = false;
    for (int i = 0; i < d->n_worker; i++) {
        struct worker *w = &d->worker[i];
        bool done = w->answered;
        if (!done && w->n_told == w->n_drafted)
            continue;
        w->answered = false;
        w->n_told = w->n_drafted;
        heard = true;
        d->stats.n_lost += done && w->what == SPEC_DSI_FAILED;
        spec_dsi_event(d->machine, &(struct spec_dsi_event){ .what = done ? w->what : SPEC_DSI_DRAFTED,
                                                             .worker = i,
                                                             .task = w->task.task,
                                                             .tokens = w->answer,
                                                             .n = done ? w->n_answer : w->n_drafted,
                                                             .took_ns = done ? w->took_ns : 0 });
        act(d);
    }
    return heard;
}

/* Ends the sequence: stops the state machine, and waits until no worker has a task. */
static void settle(struct eng_dsi *d)
{
    spec_dsi_event(d->machine, &(struct spec_dsi_event){ .what = SPEC_DSI_STOP });
    act(d);
    for (int i = 0; i < d->n_worker; i++)
        while (d->worker[i].mail != MAIL_NONE || d->worker[i].answered)
            if (!take_messages(d))
                pthread_cond_wait(&d->wake, &d->lock);
}

int eng_dsi_begin(struct eng_dsi *d, const struct eng_request *r)
{
    struct eng_engine *e = d->engine;
    int n_left = e->assets.opt.n_ctx - r->n_token;
    int error = eng_request_check(e, r);
    if (error)
        return error;
    pthread_mutex_lock(&d->lock);
    if (!d->ended)
        settle(d);
    pthread_mutex_unlock(&d->lock);
    memcpy(d->prompt, r->token, (size_t)r->n_token * sizeof *d->prompt);
    d->n_prompt = r->n_token;
    struct eng_request without = *r; /* grammars are not supported here */
    without.grammar = NULL;
    eng_request_sampling(e, &without, &d->sampling, d->bias);
    d->n_said = 0;
    d->stats = (struct eng_dsi_stats){ 0 };
    int n = r->n_predict < 0 || r->n_predict > n_left ? n_left : r->n_predict;
    d->ended = n == 0;
    pthread_mutex_lock(&d->lock);
    if (n) {
        spec_dsi_begin(d->machine, n, d->opt.lookahead);
        act(d);
    }
    pthread_mutex_unlock(&d->lock);
    return 0;
}

/* Copies up to `most` output tokens that were not returned yet, and returns their number. The first stop token ends the
 * sequence. */
static int hand_out(struct eng_dsi *d, int32_t *token, int most)
{
    int n_tok, n = 0;
    const int32_t *said = spec_dsi_output(d->machine, &n_tok);
    while (n < most && d->n_said < n_tok && !d->ended) {
        token[n] = said[d->n_said++];
        d->ended = eng_vocab_is_stop(d->engine->assets.vocab, token[n++]);
    }
    if (d->n_said == n_tok && spec_dsi_state(d->machine) == SPEC_DSI_FINISHED)
        d->ended = true;
    return n;
}

static int longest_lookahead(const struct eng_dsi *d)
{
    int longest = 0;
    for (int i = 0; i < d->n_drafter; i++) {
        struct spec_dsi_rates rates;
        spec_dsi_rates(d->machine, i, &rates);
        longest = kn_max(longest, rates.lookahead);
    }
    return longest;
}

int eng_dsi_wait(struct eng_dsi *d, int32_t *token, int most)
{
    int n = 0;
    if (d->ended)
        return 0;
    pthread_mutex_lock(&d->lock);
    while ((n = hand_out(d, token, most)) == 0 && !d->ended && spec_dsi_state(d->machine) != SPEC_DSI_STUCK)
        if (!take_messages(d))
            pthread_cond_wait(&d->wake, &d->lock);
    bool stuck = n == 0 && !d->ended;
    d->stats.lookahead = longest_lookahead(d);
    if (d->ended || stuck)
        settle(d);
    d->ended |= stuck;
    pthread_mutex_unlock(&d->lock);
    return stuck ? kn_fail(KN_EIO, "all workers that verify have failed") : n;
}

void eng_dsi_stats(const struct eng_dsi *d, struct eng_dsi_stats *out) { *out = d->stats; }
