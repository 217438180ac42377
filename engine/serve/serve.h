/* engine/serve/serve.h - the server: spillway serve.
 *
 *     eng_serve_open -> eng_serve_run (until told to stop, and drained) -> eng_serve_close
 *
 * It listens before the model is loaded, so that who watches it gets an answer from the start.
 *
 * Threads.  The one that calls run serves: connections, answers, timers; it never waits for anybody.  The
 * hub's runs the engine.  A few read requests: JSON, templates, grammars.  A request goes from the first to
 * the third, back, to the second, and its tokens come back to the first. */
#ifndef ENGINE_SERVE_SERVE_H
#define ENGINE_SERVE_SERVE_H

#include "engine/engine.h"

struct eng_server;

struct eng_serve_options {
    struct eng_options engine;                  /* n_session is set from n_queue */
    const char *host;
    int port;                                   /* 0: any */
    const char *api_key_file;                   /* NULL: no keys, and then only for this machine */
    const char *alias;                          /* names of the model, between commas; NULL: its file's */
    const char *cors;                           /* the origin whose pages may ask, or *; NULL: none */
    int n_queue;                                /* requests that may wait beyond those that advance */
    size_t max_body;                            /* bytes of one request */
    int max_connection;
    int patience_ms, idle_ms;                     /* to send a request or take its answer; between requests */
    int ping_ms;                                /* between signs of life in a stream that has nothing to say */
    int drain_ms, stall_ms;                       /* for requests under way at the end; until /ready says 503 */
    struct spec_params sampling;                /* where a request says nothing */
    int n_predict;
    const char *notify_socket;                  /* of the service manager, or NULL */
    uint64_t watchdog_us;                       /* how often it wants to hear of us; 0: never */
    bool quiet;                                 /* no bar while it loads */
    bool signals;                               /* SIGTERM and SIGINT stop it, SIGHUP makes it read its keys */
};

int  eng_serve_open(struct eng_server **out, const struct eng_serve_options *opt);
int  eng_serve_port(const struct eng_server *s);
int  eng_serve_run(struct eng_server *s);       /* fails if the model cannot be loaded */
void eng_serve_stop(struct eng_server *s);      /* from any thread: drain and return; again: return at once */
void eng_serve_reload(struct eng_server *s);    /* from any thread: reads the keys again, as SIGHUP does */
void eng_serve_close(struct eng_server *s);

#endif
