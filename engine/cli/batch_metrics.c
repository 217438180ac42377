/* engine/cli/batch_metrics.c - metrics of a running batch: GET /metrics on a port of 127.0.0.1, with the server's
 * metric families.
 *
 * A thread of its own answers requests from a copy of the counters, which the batch updates at most five times a
 * second.  So the batch never waits for a client. */
#include "engine/cli/batch_metrics.h"
#include "engine/serve/http.h"
#include "engine/serve/metrics.h"

#include <event2/event.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define N_CONNECTION 16
#define MOST_BYTES   16384 /* largest head or body of a request */
#define PATIENCE_MS  5000

struct eng_watch {
    struct eng_http *http;
    struct event_base *base;
    struct event *wake;
    int wake_fd;
    pthread_t thread;
    bool started;
    const char *model;
    uint64_t start_ns;
    pthread_mutex_t lock; /* guards view and counts */
    struct eng_thread_report view;
    struct eng_batch_counts counts;
};

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    event_base_loopbreak(((struct eng_watch *)arg)->base);
}

static void on_gone(void *arg, struct eng_exchange *x) { (void)arg, (void)x; }

static void write_lines(struct eng_bytes *out, const struct eng_batch_counts *n)
{
    const struct {
        const char *name, *help;
        uint64_t value;
    } line[] = {
        { "spillway_batch_lines", "lines of the batch", n->total },
        { "spillway_batch_lines_before", "lines done by earlier runs", n->before },
        { "spillway_batch_lines_done", "lines done by this run", n->done },
        { "spillway_batch_lines_failed", "lines of this run that failed", n->failed },
    };
    for (size_t i = 0; i < sizeof line / sizeof *line; i++)
        eng_bytes_format(out, "# HELP %s %s\n# TYPE %s gauge\n%s %llu\n", line[i].name, line[i].help, line[i].name,
                         line[i].name, (unsigned long long)line[i].value);
}

static void write_metrics(struct eng_watch *w, struct eng_bytes *out)
{
    pthread_mutex_lock(&w->lock);
    struct eng_thread_report view = w->view;
    struct eng_batch_counts counts = w->counts;
    pthread_mutex_unlock(&w->lock);
    struct eng_metrics m = { .prompt_tokens = view.engine.n_prompt_token, .answer_tokens = counts.n_token };
    struct eng_gauges now = { .model = w->model,
                              .n_connection = eng_http_connections(w->http),
                              .n_call = view.n_job,
                              .uptime_s = (double)(kn_now_ns() - w->start_ns) * 1e-9,
                              .ready = view.n_parallel > 0 };
    eng_metrics_write(&m, &now, &view, out);
    write_lines(out, &counts);
}

static void on_request(void *arg, struct eng_exchange *x)
{
    static const char nothing[] = "{\"error\":{\"message\":\"a batch serves only GET /metrics\"}}";
    struct eng_bytes out = { 0 };
    if (strcmp(eng_http_path(x), "/metrics") != 0 || strcmp(eng_http_method(x), "GET") != 0) {
        eng_http_answer(x, 404, "application/json", nothing, sizeof nothing - 1);
        return;
    }
    write_metrics(arg, &out);
    eng_http_answer(x, out.failed ? 503 : 200, "text/plain; version=0.0.4", out.data, out.failed ? 0 : out.n);
    eng_bytes_free(&out);
}

/* The metrics thread.  SIGPIPE is blocked: a client that disconnects causes a write error, not the end of the batch. */
static void *serve(void *arg)
{
    sigset_t gone;
    sigemptyset(&gone);
    sigaddset(&gone, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &gone, NULL);
    (void)event_base_dispatch(((struct eng_watch *)arg)->base);
    return NULL;
}

size_t eng_watch_bytes(void) { return N_CONNECTION * 2 * MOST_BYTES + ((size_t)1 << 20); }

int eng_watch_open(struct eng_watch **out, int port, const char *model)
{
    struct eng_watch *w = kn_calloc(1, sizeof *w);
    if (!w)
        return kn_fail(KN_ENOMEM, "no memory for --metrics-port");
    w->model = model;
    w->start_ns = kn_now_ns();
    pthread_mutex_init(&w->lock, NULL);
    w->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (w->wake_fd < 0 || !(w->base = event_base_new()) ||
        !(w->wake = event_new(w->base, w->wake_fd, EV_READ, on_wake, w)) || event_add(w->wake, NULL)) {
        eng_watch_close(w);
        return kn_fail(KN_ENOMEM, "--metrics-port: the event loop cannot be opened");
    }
    int error = eng_http_open(&w->http, w->base,
                              &(struct eng_http_options){ .host = "127.0.0.1",
                                                          .port = port,
                                                          .max_header = MOST_BYTES,
                                                          .max_body = MOST_BYTES,
                                                          .max_received = N_CONNECTION * MOST_BYTES,
                                                          .max_unsent = (size_t)1 << 20,
                                                          .max_unsent_all = (size_t)1 << 20,
                                                          .max_connection = N_CONNECTION,
                                                          .patience_ms = PATIENCE_MS,
                                                          .idle_ms = 60000,
                                                          .on_request = on_request,
                                                          .on_gone = on_gone,
                                                          .arg = w });
    if (!error) {
        w->started = pthread_create(&w->thread, NULL, serve, w) == 0;
        error = w->started ? 0 : kn_fail(KN_ELIMIT, "--metrics-port: the thread cannot be started");
    }
    if (error) {
        eng_watch_close(w);
        return error;
    }
    *out = w;
    return 0;
}

int eng_watch_port(const struct eng_watch *w) { return eng_http_port(w->http); }

void eng_watch_tell(struct eng_watch *w, const struct eng_thread_report *view, const struct eng_batch_counts *counts)
{
    pthread_mutex_lock(&w->lock);
    w->view = *view;
    w->counts = *counts;
    pthread_mutex_unlock(&w->lock);
}

void eng_watch_close(struct eng_watch *w)
{
    const uint64_t one = 1;
    if (!w)
        return;
    if (w->started) {
        ssize_t n = write(w->wake_fd, &one, sizeof one);
        (void)n;
        pthread_join(w->thread, NULL);
    }
    eng_http_close(w->http);
    if (w->wake)
        event_free(w->wake);
    if (w->base)
        event_base_free(w->base);
    if (w->wake_fd >= 0)
        close(w->wake_fd);
    pthread_mutex_destroy(&w->lock);
    kn_free(w);
}
