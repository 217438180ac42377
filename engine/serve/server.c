/* engine/serve/server.c - the server's life: listen, load, serve, drain, end.
 *
 * One eventfd wakes the serving thread for all results of other threads; a timer runs every TICK_US.  Draining ends
 * when no request is open, after drain_ms, or at the second stop request.  Requests that are still open then fail, and
 * the server ends when all bytes are sent, at most LAST_NS later. */
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/base.h"
#include "engine/serve/internal.h"
#include "engine/serve/notify.h"

#define N_READER      2                 /* reader threads */
#define GRAMMAR_BYTES ((size_t)8 << 20) /* for token masks of grammars */
#define HEADER_BYTES  32768
#define UNSENT_BYTES  ((size_t)1 << 20) /* buffered for a client that reads a stream slowly */
#define LEAST_UNSENT  ((size_t)4 << 20)
#define MOST_UNSENT   ((size_t)32 << 20)
#define BODIES        4                   /* bodies of the largest size that may be received at once */
#define MAX_BODY      ((size_t)8 << 20)   /* default of --max-body, where host_mem is large enough */
#define MIN_BODY      ((size_t)256 << 10) /* the default with the smallest host_mem */
/* Memory for requests, in bodies of the largest size: those that are received; one that waits; and the memory of
 * reading one, up to 7 times its bytes if it is one text. */
#define REQUEST_BODIES 12
/* Memory for batches, in the same measure: a line of half a body, its JSON and its request, each of at most line_bytes;
 * and beside it the ids of the lines, files in the index, buffers of uploads, and answers that the disk has not taken yet. */
#define BATCH_BODIES  10
#define BATCH_BYTES   ((size_t)16 << 20)
#define REQUEST_SHARE 8    /* with the default of --max-body, requests get at most this part of host_mem */
#define LINK_BYTES    4096 /* memory of an idle connection */
#define TICK_US       200000
#define SPARE_FD      128         /* file descriptors that are not connections */
#define LAST_NS       1000000000u /* for the last bytes of answers at shutdown */

/* ---- loading --------------------------------------------------------------------------------- */

static void open_model(struct eng_server *s)
{
    const struct eng_engine *e = eng_thread_engine(s->thread);
    const struct moe_shape *shape = moe_model_shape(eng_model(e));
    int n_expert = shape->n_expert_total + shape->n_expert_ahead;
    s->setup.model = s->alias;
    s->setup.any_model = s->opt.any_model;
    s->setup.n_choice = s->n_session;
    s->setup.sampling = s->opt.sampling;
    s->setup.sampling_given = s->opt.sampling_given;
    s->setup.breaker = s->opt.breaker;
    s->setup.n_breaker = s->opt.n_breaker;
    s->setup.n_predict = s->opt.n_predict;
    if (eng_api_model_open(&s->model, &s->setup, e, s->opt.engine.model, s->opt.template))
        kn_say(KN_LOG_WARN, "chat endpoints are disabled: only /v1/completions will answer");
    kn_heap_limit(s->limits.all);
    if (n_expert && !(s->spot = kn_calloc((size_t)n_expert, sizeof *s->spot)))
        kn_say(KN_LOG_WARN, "not enough memory to show %d experts on the status page", n_expert);
}

static void notify(struct eng_server *s, const char *line) { eng_notify(s->opt.notify_socket, line); }

static void take_state(struct eng_server *s)
{
    enum eng_thread_state now = eng_thread_state(s->thread);
    if (s->state != SRV_LOADING || now == ENG_THREAD_LOADING)
        return;
    eng_progress_close(s->bar);
    s->bar = NULL;
    if (now == ENG_THREAD_FAILED) {
        s->state = SRV_FAILED;
        s->error = KN_EIO; /* the engine thread has logged the reason */
        event_base_loopbreak(s->base);
        return;
    }
    open_model(s);
    s->state = SRV_SERVING;
    if (s->store && srv_batches_open(s))
        kn_say(KN_LOG_WARN, "batches wait until the next start");
    kn_say(
        KN_LOG_INFO,
        "listening on http://%s:%d (model %s, context %d, %d running and %d waiting requests, bodies of up to %zu KiB)",
        s->opt.host, eng_serve_port(s), s->alias[0], s->setup.n_ctx, s->opt.engine.n_parallel, s->opt.n_queue,
        s->limits.body >> 10);
    notify(s, "READY=1\nSTATUS=serving");
}

/* ---- shutdown -------------------------------------------------------------------------------- */

static void begin_end(struct eng_server *s, uint64_t now)
{
    s->state = SRV_ENDING;
    s->end_ns = now + LAST_NS;
    srv_calls_fail(s, 503, "the server is shutting down");
    srv_transfers_fail(s);
    srv_status_end(s);
}

static void take_stop(struct eng_server *s)
{
    int n = atomic_load(&s->n_stop);
    uint64_t now = kn_now_ns();
    if (n == 0 || s->state == SRV_ENDING)
        return;
    if (s->state == SRV_LOADING) {
        eng_thread_stop(s->thread);
        event_base_loopbreak(s->base);
        return;
    }
    if (s->state == SRV_SERVING) {
        s->state = SRV_DRAINING;
        srv_batches_stop(s);
        s->end_ns = now + (uint64_t)s->opt.drain_ms * 1000000u;
        notify(s, "STOPPING=1\nSTATUS=draining");
        if (s->n_call)
            kn_say(KN_LOG_INFO, "draining: %d open requests; shutdown in at most %d s, or at the next signal",
                   s->n_call, s->opt.drain_ms / 1000);
    }
    if (n > 1 || (s->n_call == 0 && s->n_transfer == 0) || now >= s->end_ns)
        begin_end(s, now);
}

static void end_when_sent(struct eng_server *s)
{
    if (s->state == SRV_ENDING && (eng_http_unsent(s->http) == 0 || kn_now_ns() >= s->end_ns))
        event_base_loopbreak(s->base);
}

/* Reloads the key file if requested.  Requests already accepted continue even if their key is removed.  An invalid file
 * leaves the keys as they are. */
static void take_reload(struct eng_server *s)
{
    struct eng_api_keys *now;
    if (!atomic_exchange(&s->reload, false))
        return;
    if (!s->keys) {
        kn_say(KN_LOG_WARN, "no keys to reload: the server runs without --api-key-file");
    } else if (eng_api_keys_open(&now, s->opt.api_key_file)) {
        kn_say(KN_LOG_WARN, "the API keys are unchanged");
    } else if (eng_accounts_take(&s->accounts, now)) {
        eng_api_keys_close(now);
        kn_say(KN_LOG_WARN, "the API keys are unchanged");
    } else {
        eng_api_keys_close(s->keys);
        s->keys = now;
        kn_say(KN_LOG_INFO, "%s: reloaded, %d keys", s->opt.api_key_file, eng_api_keys_count(now));
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Runs after other threads wrote wake_fd.  The event is edge-triggered, so the counter of wake_fd need not be read. */
static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct eng_server *s = arg;
    (void)fd, (void)what;
    take_state(s);
    srv_calls_take_read(s);
    srv_transfers_take(s);
    srv_calls_take_told(s);
    take_reload(s);
    take_stop(s);
    end_when_sent(s);
}

/* Sends the service manager's watchdog message, but not if no pass has made progress for stall_ms while there is work: the
 * manager then restarts the server. */
static void feed_watchdog(struct eng_server *s, uint64_t now)
{
    struct eng_thread_report v;
    if (s->state == SRV_LOADING && now - s->fed_ns > 1000000000u) {
        s->fed_ns = now;
        notify(s, "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=loading");
        return;
    }
    if (s->state == SRV_LOADING || !s->opt.watchdog_us || now - s->fed_ns < s->opt.watchdog_us * 1000 / 3)
        return;
    eng_thread_report(s->thread, &v);
    if (v.quiet_ns > (uint64_t)s->opt.stall_ms * 1000000u)
        return;
    notify(s, "WATCHDOG=1");
    s->fed_ns = now;
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct eng_server *s = arg;
    uint64_t now = kn_now_ns();
    (void)fd, (void)what;
    srv_calls_tick(s, now);
    if (now - s->second_ns >= 1000000000u) {
        s->second_ns = now;
        srv_status_tick(s, now);
    }
    feed_watchdog(s, now);
    take_stop(s);
    end_when_sent(s);
}

static void wake(struct eng_server *s)
{
    const uint64_t one = 1;
    ssize_t n = write(s->wake_fd, &one, sizeof one);
    (void)n; /* EAGAIN: the counter is full, and the thread wakes anyway */
}

void eng_serve_stop(struct eng_server *s)
{
    atomic_fetch_add(&s->n_stop, 1);
    wake(s);
}

void eng_serve_reload(struct eng_server *s)
{
    atomic_store(&s->reload, true);
    wake(s);
}

static void on_signal(evutil_socket_t signal, short what, void *arg)
{
    (void)what;
    if (signal == SIGHUP)
        eng_serve_reload(arg);
    else
        eng_serve_stop(arg);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Sets the model names: those of the comma separated --alias, or the file's name without folder and .gguf. */
static int list_names(struct eng_server *s)
{
    char file_name[ENG_PATH_BYTES];
    eng_api_model_name(file_name, sizeof file_name, s->opt.engine.model);
    if (!(s->alias_text = kn_strdup(s->opt.alias ? s->opt.alias : file_name)))
        return kn_fail(KN_ENOMEM, "no memory for the server");
    char *left = s->alias_text;
    for (char *name; (name = strsep(&left, s->opt.alias ? "," : ""));) {
        if (!name[0] || s->setup.n_model == SRV_MAX_ALIAS)
            return kn_fail(KN_EINVAL, "--alias takes up to %d comma separated names, none empty", SRV_MAX_ALIAS);
        s->alias[s->setup.n_model++] = name;
    }
    return 0;
}

static int count_connections(struct eng_server *s)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY)
        return s->opt.max_connection;
    int most = files.rlim_cur > (rlim_t)INT32_MAX ? INT32_MAX : (int)files.rlim_cur - SPARE_FD;
    if (most < 1)
        most = 1;
    if (most < s->opt.max_connection)
        kn_say(KN_LOG_WARN, "at most %d connections instead of %d: raise the limit of open files (ulimit -n)", most,
               s->opt.max_connection);
    return kn_min(most, s->opt.max_connection);
}

static int open_http(struct eng_server *s)
{
    int n = count_connections(s);
    int error = eng_http_open(&s->http, s->base,
                              &(struct eng_http_options){ .host = s->opt.host,
                                                          .allowed_host = s->opt.allowed_host,
                                                          .port = s->opt.port,
                                                          .max_header = HEADER_BYTES,
                                                          .max_body = s->limits.body,
                                                          .max_received = BODIES * (s->limits.body + HEADER_BYTES),
                                                          .max_unsent = UNSENT_BYTES,
                                                          .max_unsent_all = s->limits.unsent,
                                                          .max_connection = n,
                                                          .patience_ms = s->opt.patience_ms,
                                                          .idle_ms = s->opt.idle_ms,
                                                          .has_room = srv_has_room,
                                                          .streams = srv_streams,
                                                          .on_body = srv_body,
                                                          .on_sent = srv_transfer_sent,
                                                          .on_request = srv_request,
                                                          .on_gone = srv_gone,
                                                          .on_fault = srv_fault,
                                                          .arg = s });
    if (!error && !s->keys && !eng_http_is_loopback(s->http))
        error = kn_fail(KN_EINVAL,
                        "--host %s is reachable by other machines: set --api-key-file, or use "
                        "127.0.0.1",
                        s->opt.host);
    return error;
}

/* An event base with edge-triggered events.  libevent's memory counts as memory of requests. */
static struct event_base *new_base(void)
{
    event_set_mem_functions(kn_heap_alloc, kn_heap_realloc, kn_heap_free);
    struct event_config *c = event_config_new();
    struct event_base *base = NULL;
    if (c && !event_config_require_features(c, EV_FEATURE_ET))
        base = event_base_new_with_config(c);
    if (c)
        event_config_free(c);
    return base;
}

static int add_events(struct eng_server *s)
{
    const struct timeval often = { 0, TICK_US };
    s->wake = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST | EV_ET, on_wake, s);
    s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    bool ok = s->wake && s->tick && !event_add(s->wake, NULL) && !event_add(s->tick, &often);
    if (ok && s->opt.signals) {
        s->term = evsignal_new(s->base, SIGTERM, on_signal, s);
        s->interrupt = evsignal_new(s->base, SIGINT, on_signal, s);
        s->hangup = evsignal_new(s->base, SIGHUP, on_signal, s);
        ok = s->term && s->interrupt && s->hangup && !event_add(s->term, NULL) && !event_add(s->interrupt, NULL) &&
             !event_add(s->hangup, NULL);
    }
    return ok ? 0 : kn_fail(KN_ENOMEM, "no memory for the server");
}

static int open_hub(struct eng_server *s)
{
    struct eng_options engine = eng_serve_engine(&s->opt);
    int error = eng_progress_open(&s->bar, "loading", s->opt.quiet);
    if (error)
        return error;
    engine.progress = eng_progress_counter(s->bar);
    return eng_thread_open(&s->thread, &engine, s->wake_fd);
}

/* The default of --max-body: MAX_BODY, or less so that a small host_mem is not taken by requests. */
static size_t default_body(size_t host_mem, bool has_batches)
{
    size_t most = host_mem / REQUEST_SHARE / (REQUEST_BODIES + (has_batches ? BATCH_BODIES : 0));
    return !host_mem || most > MAX_BODY ? MAX_BODY : most > MIN_BODY ? most : MIN_BODY;
}

static struct srv_limits limits_of(const struct eng_serve_options *o, size_t host_mem)
{
    struct srv_limits l = { .body = o->max_body ? o->max_body : default_body(host_mem, o->files != NULL) };
    size_t all = REQUEST_BODIES * l.body, half = all / 2;
    l.unsent = half < LEAST_UNSENT ? LEAST_UNSENT : half > MOST_UNSENT ? MOST_UNSENT : half;
    l.answer = l.unsent / 2;
    l.requests = all > l.unsent ? all : l.unsent;
    if (o->files) {
        l.batches = BATCH_BODIES * l.body + BATCH_BYTES;
        l.line = BATCH_BODIES * l.body / 2;
    }
    l.all = l.requests + l.batches + (size_t)o->max_connection * LINK_BYTES;
    return l;
}

static size_t reserved(const void *options, size_t host_mem) { return limits_of(options, host_mem).all; }

struct eng_options eng_serve_engine(const struct eng_serve_options *o)
{
    struct eng_options engine = o->engine;
    engine.n_session = engine.n_parallel + o->n_queue + (o->files ? engine.n_parallel : 0);
    engine.reserved_bytes = reserved(o, engine.host_mem);
    engine.reserve_of = reserved;
    engine.reserve_arg = o;
    engine.grammar_bytes = GRAMMAR_BYTES;
    engine.n_prompt_logprob_row = ENG_API_TELL_ROWS;
    return engine;
}

static int open_files(struct eng_server *s)
{
    if (!s->opt.files)
        return 0;
    int error = eng_store_open(&s->store, s->opt.files, s->opt.files_most);
    return error ? error : eng_reader_pool_open(&s->file_pool, N_READER, s->wake_fd);
}

static int open_keys(struct eng_server *s)
{
    int error = eng_api_keys_open(&s->keys, s->opt.api_key_file);
    return error ? error : eng_accounts_take(&s->accounts, s->keys);
}

int eng_serve_open(struct eng_server **out, const struct eng_serve_options *opt)
{
    struct eng_server *s = kn_calloc(1, sizeof *s);
    if (!s)
        return kn_fail(KN_ENOMEM, "no memory for the server");
    s->opt = *opt;
    s->n_session = opt->engine.n_parallel + opt->n_queue;
    s->limits = limits_of(opt, opt->engine.host_mem);
    s->started_ns = kn_now_ns();
    s->started_s = (int64_t)time(NULL);
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    signal(SIGPIPE, SIG_IGN); /* a write to a disconnected client returns an error instead */
    int error = 0;
    if (getrandom(&s->secret, sizeof s->secret, 0) != sizeof s->secret)
        error = kn_fail(KN_EIO, "the system gives no random numbers");
    else if (s->wake_fd < 0 || !(s->base = new_base()))
        error = kn_fail(KN_ENOMEM, "the system cannot create an event loop for the server");
    if (error || (opt->api_key_file && (error = open_keys(s))) || (error = list_names(s)) || (error = open_files(s)) ||
        (error = open_http(s)) || (error = add_events(s)) ||
        (error = eng_reader_pool_open(&s->pool, N_READER, s->wake_fd)) || (error = open_hub(s))) {
        eng_serve_close(s);
        return error;
    }
    *out = s;
    return 0;
}

int eng_serve_port(const struct eng_server *s) { return eng_http_port(s->http); }

int eng_serve_run(struct eng_server *s)
{
    kn_thread_hurry();
    if (event_base_dispatch(s->base) < 0)
        return kn_fail(KN_EIO, "the system's event loop failed");
    return s->error;
}

/* Closes the connections first, which cancels their requests; then the threads, which return all tasks and jobs; only
 * then can the requests be freed. */
void eng_serve_close(struct eng_server *s)
{
    if (!s)
        return;
    eng_http_close(s->http);
    s->http = NULL;
    eng_reader_pool_close(s->pool);
    eng_reader_pool_close(s->file_pool);
    srv_batches_join(s);
    eng_thread_close(s->thread);
    eng_progress_close(s->bar);
    srv_calls_close(s);
    srv_transfers_close(s);
    srv_batches_close(s);
    eng_store_close(s->store);
    eng_api_model_close(&s->model);
    eng_api_keys_close(s->keys);
    eng_accounts_close(&s->accounts);
    kn_free(s->spot);
    for (int i = 0; i < 5; i++) {
        struct event *e = (struct event *[]){ s->wake, s->tick, s->term, s->interrupt, s->hangup }[i];
        if (e)
            event_free(e);
    }
    if (s->base)
        event_base_free(s->base);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    kn_free(s->alias_text);
    kn_free(s);
}
