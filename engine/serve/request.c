/* engine/serve/request.c - requests for generation, from the body to the last byte of the answer (struct srv_call).
 *
 *     reading   a reader thread parses the body into an eng_api_request, or makes a short answer (srv_call.text)
 *     running   each choice is a job lent to the engine thread; the job's events feed the reply
 *     over      answered or left by the client; no reader thread has the call, and no job is lent
 *
 * When a client disconnects, its jobs are cancelled; the srv_call is freed once the reader thread has finished with it
 * and the engine thread has returned its jobs. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/serve/internal.h"

static void free_call(struct srv_call *c)
{
    if ((*c->self = c->next))
        c->next->self = c->self;
    c->server->n_call--;
    eng_reply_close(c->reply);
    eng_api_request_close(c->ask);
    eng_bytes_free(&c->text);
    kn_free(c->choice);
    kn_free(c->path);
    kn_free(c->query);
    kn_free(c->body);
    eng_http_retry(c->server->http);
    kn_free(c);
}

static void free_if_over(struct srv_call *c)
{
    if (!c->x && !c->reading && c->n_lent == 0)
        free_call(c);
}

/* ---- reading: on a reader thread ------------------------------------------------------------- */

static void read_ask(struct srv_call *c)
{
    struct eng_arrival arrival = {
        .id = c->names.id,
        .created_s = c->created_s,
        .seed = c->seed,
        .count = c->route->counts,
        .checkpoint = &c->checkpoint,
    };
    c->refused = eng_api_request_parse(&c->ask, c->route->api, c->body, c->n_body, &c->server->setup, &arrival,
                                       &c->why) != 0;
    if (!c->refused && c->route->counts)
        eng_reply_count(&c->text, c->ask);
    else if (!c->refused && !eng_api_request_choices(c->ask))
        eng_reply_nothing(&c->text, c->ask);
}

/* Refuses a call for which the memory for requests was too small: with 413 if the call alone takes more than all of it,
 * else with 503.  bytes: taken by the parsing, with the allocation that was refused. */
static void refuse_memory(struct srv_call *c, size_t bytes)
{
    const size_t all = c->server->limits.requests;
    if (bytes + c->room_body > all - all / SRV_KEPT_BY_LONG)
        eng_refuse(&c->why, 413, NULL, "",
                   "reading this request takes more than the %zu MiB of memory for requests: shorten it, or raise "
                   "--max-body, with which this memory grows",
                   all >> 20);
    else
        eng_refuse(&c->why, 503, NULL, "", "no memory for this request now: other requests have it");
    c->refused = true;
}

static struct eng_reader_pool *pool_of(const struct srv_call *c)
{
    return c->route->files ? c->server->file_pool : c->server->pool;
}

static bool is_long(const struct srv_call *c) { return c->task.bytes > ENG_TASK_SHORT; }

/* Between pieces of a long text: ends the reading if the client has left, and gives way to shorter texts while there is
 * memory for a second one. */
static int reach_checkpoint(void *arg)
{
    struct srv_call *c = arg;
    if (is_long(c) && kn_heap_room() >= c->server->limits.requests / SRV_KEPT_BY_WAITING) {
        kn_heap_guard(NULL);
        eng_reader_pool_give_way(pool_of(c), &c->task);
        kn_heap_guard(&c->guard);
    }
    return atomic_load_explicit(&c->gone, memory_order_relaxed) ? KN_ECANCELLED : 0;
}

static void read_call(struct eng_task *task)
{
    struct srv_call *c = (struct srv_call *)task;
    if (atomic_load_explicit(&c->gone, memory_order_relaxed))
        return;
    c->checkpoint = (struct eng_checkpoint){ .reach = reach_checkpoint, .arg = c };
    c->guard = (struct kn_heap_guard){
        .keep = c->server->limits.requests / (is_long(c) ? SRV_KEPT_BY_LONG : SRV_KEPT_BY_SHORT), .stop = &c->gone
    };
    kn_heap_guard(&c->guard);
    if (c->route->work)
        c->route->work(c);
    else
        read_ask(c);
    kn_heap_guard(NULL);
    if (c->guard.denied_bytes)
        refuse_memory(c, c->guard.denied_bytes);
    if (is_long(c))
        kn_heap_trim();
}

void srv_call_open(struct eng_server *s, struct eng_exchange *x, const struct srv_route *route,
                   const struct srv_names *names, uint64_t key)
{
    struct eng_refusal why;
    struct srv_call *c = kn_calloc(1, sizeof *c);
    bool has_target = c && (!route->files ||
                            ((c->path = kn_strdup(eng_http_path(x))) && (c->query = kn_strdup(eng_http_query(x)))));
    if (!has_target || !(c->body = eng_http_body(x, &c->n_body, &c->room_body))) {
        if (c) {
            kn_free(c->path);
            kn_free(c->query);
        }
        kn_free(c);
        eng_refuse(&why, 503, NULL, "", "no memory for this request now: other requests have it");
        srv_log_refusal(names, x, &why);
        srv_answer_refusal(s, x, route->api, &why);
        return;
    }
    c->task = (struct eng_task){ .run = read_call, .bytes = c->n_body, .key = key };
    c->server = s;
    c->x = x;
    c->route = route;
    c->key = key;
    c->arrived_ns = kn_now_ns();
    c->created_s = (int64_t)time(NULL);
    c->seed = kn_mix(s->secret + s->n_request * KN_GOLDEN) >> 32; /* 32 bits: at most ten digits to type */
    c->names = *names;
    snprintf(c->peer, sizeof c->peer, "%s", eng_http_peer(x));
    c->self = &s->calls;
    if ((c->next = s->calls))
        c->next->self = &c->next;
    s->calls = c;
    s->n_call++;
    eng_http_set_user(x, c);
    c->reading = true;
    eng_reader_pool_add(pool_of(c), &c->task);
}

/* ---- answering ------------------------------------------------------------------------------- */

static void cancel_jobs(struct srv_call *c)
{
    for (int i = 0; i < c->n_choice; i++)
        if (c->choice[i].lent)
            eng_thread_cancel(c->server->thread, &c->choice[i].job);
}

static double seconds(uint64_t from, uint64_t to) { return from && to > from ? (double)(to - from) * 1e-9 : 0; }

static void log_call(const struct srv_call *c, int status)
{
    uint64_t first = 0, begun = 0;
    int n_answer = 0, n_prompt = 0, n_cached = 0;
    for (int i = 0; i < c->n_choice; i++) {
        const struct srv_choice *o = &c->choice[i];
        n_answer += eng_reply_tokens(c->reply, i);
        n_prompt += o->job.request.n_token;
        n_cached += o->n_cached;
        first = o->first_ns && (!first || o->first_ns < first) ? o->first_ns : first;
        begun = o->begun_ns && (!begun || o->begun_ns < begun) ? o->begun_ns : begun;
    }
    srv_log_answer(&c->names, &(struct srv_answered){ .method = c->route->method,
                                                      .path = c->route->path,
                                                      .peer = c->peer,
                                                      .status = status,
                                                      .n_prompt = n_prompt,
                                                      .n_cached = n_cached,
                                                      .n_answer = n_answer,
                                                      .waited_s = seconds(c->arrived_ns, begun),
                                                      .first_s = seconds(c->arrived_ns, first),
                                                      .whole_s = seconds(c->arrived_ns, kn_now_ns()) });
}

/* The call's exchange has ended: detaches it, logs it and cancels the jobs.  The srv_call lives until the reader thread
 * and all jobs have returned. */
static void end_exchange(struct srv_call *c, int status)
{
    c->x = NULL;
    if (c->reply)
        log_call(c, status);
    cancel_jobs(c);
}

static void begin(struct srv_call *c)
{
    if (c->begun)
        return;
    eng_http_set_header(c->x, "Cache-Control", "no-cache");
    eng_http_set_header(c->x, "X-Accel-Buffering", "no"); /* a reverse proxy must not buffer tokens */
    eng_http_begin(c->x, 200, eng_reply_type(c->reply));
    c->server->metrics.n_answered[2]++;
    c->begun = true;
}

/* Sends the refusal bytes[n] as an event: a keep-alive comment has begun the stream, so status 200 is already sent. */
static void send_late_refusal(struct srv_call *c, const char *bytes, size_t n)
{
    struct eng_bytes event = { 0 };
    eng_bytes_text(&event, "event: error\ndata: ");
    eng_bytes_add(&event, bytes, n);
    eng_bytes_text(&event, "\n\n");
    if (c->route->api == ENG_API_COMPLETIONS || c->route->api == ENG_API_CHAT)
        eng_bytes_text(&event, "data: [DONE]\n\n"); /* ends every stream of these two dialects */
    eng_http_end(c->x, event.data, event.failed ? 0 : event.n);
    eng_bytes_free(&event);
}

static void send_stream(struct srv_call *c)
{
    size_t n;
    int status = eng_reply_status(c->reply);
    const char *bytes = eng_reply_take(c->reply, &n);
    bool late = c->begun && c->n_sent == 0 && status != 200;
    begin(c);
    if (!eng_reply_done(c->reply)) {
        eng_http_chunk(c->x, bytes, n);
        c->n_sent += n;
        c->sent_ns = kn_now_ns();
        return;
    }
    if (late)
        send_late_refusal(c, bytes, n);
    else
        eng_http_end(c->x, bytes, n);
    end_exchange(c, status);
}

static void send_whole(struct srv_call *c)
{
    struct eng_server *s = c->server;
    size_t n;
    int status = eng_reply_status(c->reply);
    const char *bytes = eng_reply_take(c->reply, &n);
    if (status == 503)
        eng_http_set_header(c->x, "Retry-After", "5");
    srv_answer_plain(s, c->x, status, status == 200 ? eng_reply_type(c->reply) : "application/json", bytes, n);
    end_exchange(c, status);
}

/* Sends the bytes of the reply that are ready; frees the srv_call if it is over. */
static void flush(struct srv_call *c)
{
    c->touched = false;
    if (c->x) {
        bool done = eng_reply_done(c->reply);
        bool plain = !c->ask->stream || (!c->begun && eng_reply_status(c->reply) != 200);
        if (done && plain)
            send_whole(c);
        else if (c->ask->stream && (done || eng_reply_began(c->reply)))
            send_stream(c);
    }
    free_if_over(c);
}

static void refuse(struct srv_call *c, const struct eng_refusal *why)
{
    struct eng_exchange *x = c->x;
    c->x = NULL;
    srv_log_refused_body(&c->names, x, why);
    srv_answer_refusal(c->server, x, c->route->api, why);
}

/* ---- running --------------------------------------------------------------------------------- */

uint64_t srv_salt(const struct eng_server *s, uint64_t key)
{
    return key ? kn_mix(s->secret ^ key * KN_GOLDEN) | 1 : 0;
}

/* The user id for fair scheduling.  With several labels of API keys each is a user; with one or none, a user is a value
 * of the request's "user" member, with which a client separates its own users. */
static uint64_t user(const struct srv_call *c)
{
    return c->server->accounts.n_label > 1 ? c->names.account->rules.label_hash | 1 : c->ask->user;
}

/* The tokens of a prompt are spent when its request is accepted, so that many requests at once cannot all begin on the
 * last token of the minute; those of an answer are spent as they come. */
static void charge_request(struct srv_call *c)
{
    struct eng_account *a = c->names.account;
    for (int i = 0; a && i < c->n_choice; i++)
        eng_account_spend(a, c->choice[i].job.request.n_token);
    if (a) {
        a->n_running += c->n_choice;
        a->n_request++;
    }
}

static int make_jobs(struct srv_call *c)
{
    struct eng_job *job[ENG_API_MAX_CHOICES];
    int n = eng_api_request_choices(c->ask);
    if (eng_reply_open(&c->reply, c->ask, &c->server->setup) || !(c->choice = kn_calloc((size_t)n, sizeof *c->choice)))
        return KN_ENOMEM;
    for (int i = 0; i < n; i++) {
        struct eng_job *j = job[i] = &c->choice[i].job;
        eng_api_request_of_choice(c->ask, i, &j->request);
        j->request.owner = c;
        j->request.user = user(c);
        j->request.salt = srv_salt(c->server, c->key);
        j->request.priority = kn_min(j->request.priority, 0); /* a request may only lower its priority */
    }
    int error = eng_thread_submit(c->server->thread, job, n);
    for (int i = 0; i < n && !error; i++)
        c->choice[i].lent = true;
    if (error)
        return error;
    c->n_choice = c->n_lent = n;
    charge_request(c);
    c->sent_ns = kn_now_ns();
    return 0;
}

/* Refuses a request for more answers at once than its label may have, now (429) or ever (400). */
static bool has_answers_left(struct srv_call *c, struct eng_refusal *why)
{
    struct eng_account *a = c->names.account;
    int n = eng_api_request_choices(c->ask);
    if (eng_account_has_room(a, n))
        return true;
    int most = a->rules.most_requests;
    if (n > most)
        eng_refuse(why, 400, NULL, "n", "this API key may have %d answers at once, and the request asks for %d", most,
                   n);
    else
        eng_refuse(why, 429, "rate_limit_exceeded", "", "this API key has %d of %d answers running; retry in 1 s",
                   a->n_running, most);
    why->retry_s = 1;
    a->n_refused[ENG_LIMIT_REQUESTS]++;
    return false;
}

/* Refuses a request if its label has spent the tokens of this minute. */
static bool has_tokens_left(struct srv_call *c, struct eng_refusal *why)
{
    struct eng_account *a = c->names.account;
    int wait = eng_account_wait_s(a, kn_now_ns());
    if (!wait)
        return true;
    eng_refuse(why, 429, "rate_limit_exceeded", "", "this API key has used its %d tokens per minute; retry in %d s",
               a->rules.tokens_per_minute, wait);
    why->retry_s = wait;
    a->n_refused[ENG_LIMIT_TOKENS]++;
    return false;
}

static void start(struct srv_call *c)
{
    struct eng_refusal why;
    if (!has_answers_left(c, &why) || !has_tokens_left(c, &why)) {
        refuse(c, &why);
        return;
    }
    int error = make_jobs(c);
    if (error == 0)
        return;
    if (error == KN_ELIMIT) {
        srv_refuse_full(c->server, &why);
    } else if (error == KN_ENODEV) {
        eng_refuse(&why, 503, NULL, "", "the model is not ready");
    } else {
        eng_refuse(&why, 503, NULL, "", "no memory for this request now");
    }
    refuse(c, &why);
}

void srv_call_take_read(struct eng_task *task)
{
    struct srv_call *c = (struct srv_call *)task;
    c->reading = false;
    kn_free(c->body);
    c->body = NULL;
    eng_http_retry(c->server->http);
    if (!c->x) {
        free_if_over(c);
        return;
    }
    if (c->refused) {
        refuse(c, &c->why);
    } else if (c->text.n || c->text.failed) { /* the whole answer, made by the reader thread */
        srv_answer_json(c->server, c->x, &c->text);
        c->x = NULL;
    } else if (c->server->state != SRV_SERVING) {
        eng_refuse(&c->why, 503, NULL, "", "the server is shutting down");
        refuse(c, &c->why);
    } else {
        start(c);
    }
    free_if_over(c);
}

void srv_calls_take_read(struct eng_server *s)
{
    for (struct eng_task *t; (t = eng_reader_pool_take(s->pool));)
        srv_call_take_read(t);
}

/* ---- events from the engine thread ----------------------------------------------------------- */

static void measure_token(struct eng_metrics *m, const struct srv_call *c, struct srv_choice *o, uint64_t at_ns)
{
    if (!o->first_ns) {
        o->first_ns = at_ns;
        eng_metrics_add(m, ENG_HIST_TTFT, seconds(c->arrived_ns, at_ns));
    } else {
        eng_metrics_add(m, ENG_HIST_GAP, seconds(o->last_ns, at_ns));
    }
    o->last_ns = at_ns;
    m->answer_tokens++;
    if (c->names.account)
        c->names.account->answer_tokens++;
    eng_account_spend(c->names.account, 1);
}

static void measure_end(struct eng_metrics *m, const struct srv_call *c, const struct srv_choice *o, uint64_t at_ns)
{
    const struct eng_job *j = &o->job;
    const char *why = eng_reply_finish(c->reply, j->request.choice);
    int n_answer = eng_reply_tokens(c->reply, j->request.choice), n_prompt = j->request.n_token;
    int n_most = c->server->setup.n_ctx - n_prompt;
    enum eng_ended ended = !why                     ? ENG_ENDED_ABORT
                           : !strcmp(why, "error")  ? ENG_ENDED_ERROR
                           : !strcmp(why, "length") ? ENG_ENDED_LENGTH
                                                    : ENG_ENDED_STOP;
    m->ended[ended]++;
    eng_metrics_add(m, ENG_HIST_E2E, seconds(c->arrived_ns, at_ns));
    eng_metrics_add(m, ENG_HIST_QUEUE, seconds(j->submitted_ns, o->begun_ns ? o->begun_ns : at_ns));
    eng_metrics_add(m, ENG_HIST_PREFILL, seconds(o->begun_ns, o->first_ns));
    eng_metrics_add(m, ENG_HIST_DECODE, seconds(o->first_ns, o->last_ns));
    eng_metrics_add(m, ENG_HIST_PROMPT, n_prompt);
    eng_metrics_add(m, ENG_HIST_ANSWER, n_answer);
    eng_metrics_add(m, ENG_HIST_MOST, j->request.n_predict < 0 ? n_most : kn_min(n_most, j->request.n_predict));
    if (o->begun_ns)
        m->prompt_tokens += (uint64_t)n_prompt;
}

static void take_event(const struct eng_job_event *t)
{
    const struct eng_event *e = &t->event;
    struct srv_call *c = e->owner;
    struct srv_choice *o = &c->choice[e->choice];
    struct eng_metrics *m = &c->server->metrics;
    if (t->begun_ns && !o->begun_ns && c->names.account)
        c->names.account->prompt_tokens += (uint64_t)o->job.request.n_token;
    bool ends = e->finish != ENG_RUNNING, cancelled = ends && e->status == KN_ECANCELLED;
    o->begun_ns = t->begun_ns ? t->begun_ns : o->begun_ns;
    o->n_cached = kn_max(o->n_cached, e->n_cached);
    if (e->token != ENG_NO_TOKEN && !e->of_prompt)
        measure_token(m, c, o, t->at_ns);
    if (c->x && !cancelled) {
        struct kn_heap_guard guard = { 0 };
        kn_heap_guard(&guard);
        int more = eng_reply_feed(c->reply, e);
        kn_heap_guard(NULL);
        if (more < 0 || guard.denied_bytes) { /* text that was parsed with too little memory may be wrong */
            struct eng_refusal why;
            more = more ? more : -1;
            eng_refuse(&why, 503, NULL, "", "not enough memory to continue this answer");
            eng_reply_fail(c->reply, &why);
        }
        if (more != 0 && !ends)
            eng_thread_cancel(c->server->thread, &o->job);
    }
    if (ends) {
        o->lent = false;
        c->n_lent--;
        if (c->names.account) {
            c->names.account->n_running--;
            c->names.account->cached_tokens += (uint64_t)o->n_cached;
        }
        measure_end(m, c, o, t->at_ns);
    }
}

void srv_calls_take_told(struct eng_server *s)
{
    const struct eng_job_event *events;
    int n = eng_thread_take_events(s->thread, &events);
    for (int i = 0; i < n; i++) {
        if (events[i].of_batch) {
            srv_batches_take_event(s->batches, &events[i]);
            continue;
        }
        take_event(&events[i]);
        ((struct srv_call *)events[i].event.owner)->touched = true;
    }
    for (struct srv_call *c = n ? s->calls : NULL, *next; c; c = next) {
        next = c->next;
        if (c->touched)
            flush(c);
    }
}

/* ---- timers and shutdown --------------------------------------------------------------------- */

/* Tells the reader thread that nothing need be read; takes back a call that waits for a reader. */
static void stop_reading(struct srv_call *c)
{
    atomic_store_explicit(&c->gone, true, memory_order_relaxed);
    if (c->reading && eng_reader_pool_remove(pool_of(c), &c->task))
        c->reading = false;
}

void srv_call_gone(struct srv_call *c)
{
    stop_reading(c);
    end_exchange(c, 499); /* the status that nginx logs for a client that disconnected */
    free_if_over(c);
}

/* Sends a comment to each stream that got no bytes for ping_ms: some clients give up on a silent stream after about
 * half a minute. */
void srv_calls_tick(struct eng_server *s, uint64_t now)
{
    for (struct srv_call *c = s->calls; c; c = c->next) {
        if (!c->x || !c->reply || !eng_reply_takes_comments(c->reply) ||
            now - c->sent_ns < (uint64_t)s->opt.ping_ms * 1000000u)
            continue;
        begin(c);
        eng_http_chunk(c->x, ": the answer is on its way\n\n", 28);
        c->sent_ns = now;
    }
}

void srv_calls_fail(struct eng_server *s, int status, const char *message)
{
    struct eng_refusal why;
    eng_refuse(&why, status, NULL, "", "%s", message);
    for (struct srv_call *c = s->calls, *next; c; c = next) {
        next = c->next;
        if (!c->x)
            continue;
        if (c->reply) {
            eng_reply_fail(c->reply, &why);
            flush(c);
        } else {
            stop_reading(c);
            refuse(c, &why);
            free_if_over(c);
        }
    }
}

void srv_calls_close(struct eng_server *s)
{
    while (s->calls)
        free_call(s->calls);
}
