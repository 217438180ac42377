/* engine/cli/cmd_serve.c - spillway serve: answers requests over HTTP until SIGTERM or Ctrl-C. */
#include "engine/cli/cli.h"

#include <signal.h>

#define MS 1000

/* Until the server listens to signals they stay pending, so that one in the first moments ends it as later ones do. */
static void hold_signals(bool hold)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

struct eng_serve_options eng_config_serve_options(const struct eng_config *c)
{
    return (struct eng_serve_options){
        .engine = eng_config_options(c, true),
        .host = c->host,
        .allowed_host = c->allowed_host,
        .port = c->port,
        .api_key_file = c->api_key_file,
        .alias = c->alias,
        .any_model = c->any_model,
        .files = c->files,
        .files_most = c->files_most,
        .cors = c->cors,
        .n_queue = c->n_queue,
        .max_body = c->max_body,
        .max_connection = c->n_connection,
        .patience_ms = c->patience_s * MS,
        .idle_ms = c->idle_s * MS,
        .ping_ms = c->ping_s * MS,
        .drain_ms = c->drain_s * MS,
        .stall_ms = c->stall_s * MS,
        .sampling = c->sampling,
        .sampling_given = c->sampling_given,
        .breaker = c->n_breaker < 0 ? NULL : c->breaker,
        .n_breaker = c->n_breaker,
        .n_predict = c->n_predict,
        .template = c->template,
        .notify_socket = c->notify_socket,
        .watchdog_us = c->watchdog_us,
        .quiet = c->quiet,
        .signals = true,
    };
}

int eng_cmd_serve(const struct eng_config *c)
{
    hold_signals(true);
    struct eng_server *s;
    struct eng_serve_options o = eng_config_serve_options(c);
    o.engine.measures_disk = true; /* for the status page */
    int error = eng_template_file_check(c->template);
    if (!error)
        error = eng_serve_open(&s, &o);
    if (!error) {
        hold_signals(false);
        error = eng_serve_run(s);
        eng_serve_close(s);
    }
    return error ? 2 : 0;
}
