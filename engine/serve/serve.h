/* engine/serve/serve.h - the HTTP server: spillway serve.
 *
 *     eng_serve_open -> eng_serve_run (returns when the server is stopped and drained) -> eng_serve_close
 *
 * The server listens before the model is loaded, so that probes get an answer from the start.
 *
 * Threads.  The serving thread, which calls run, handles connections, answers and timers and never blocks.  The
 * engine thread (engine_thread.h) runs the engine.  A few reader threads parse requests: JSON, templates, grammars.
 * A request goes from the serving thread to a reader, back, and to the engine thread; its tokens come back to the
 * serving thread. */
#ifndef ENGINE_SERVE_SERVE_H
#define ENGINE_SERVE_SERVE_H

#include "engine/engine.h"

struct eng_server;

struct eng_serve_options {
    struct eng_options engine; /* n_session is set by the server: n_parallel + n_queue */
    const char *host;
    const char *allowed_host; /* further names of this server, as in eng_host_names_open; NULL: none */
    int port;                 /* 0: any */
    const char *api_key_file; /* NULL: no keys; then only a loopback host is allowed */
    const char *alias;        /* model names, comma separated; NULL: the name of the file */
    bool any_model;           /* other names are answered, too, by this model */
    const char *cors;         /* origin whose pages may send requests, or *; NULL: none */
    const char *files;        /* folder of uploaded files, for /v1/files and /v1/batches; NULL: these are not offered */
    uint64_t files_most;      /* bytes of all files in it */
    int n_queue;              /* requests that may wait, beside the n_parallel running; each choice counts */
    size_t max_body;          /* bytes of one request's body; 0: 8 MiB, or less with a small host_mem */
    int max_connection;
    int patience_ms, idle_ms;    /* time limits of a client: to send a request or read on; to be idle */
    int ping_ms;                 /* interval of keep-alive comments in a stream without new tokens */
    int drain_ms;                /* time for running requests at shutdown */
    int stall_ms;                /* time without progress of a pass until /ready is 503 */
    struct spec_params sampling; /* defaults of a request */
    unsigned sampling_given;     /* this, breaker, n_breaker: as in struct eng_api_setup */
    const struct moe_string *breaker;
    int n_breaker;
    int n_predict;
    const char *template;      /* file of the chat template; NULL: the model's */
    const char *notify_socket; /* NOTIFY_SOCKET of the service manager, or NULL */
    uint64_t watchdog_us;      /* the manager's watchdog interval; 0: none */
    bool quiet;                /* no progress bar while loading */
    bool signals;              /* SIGTERM and SIGINT stop the server, SIGHUP reloads the keys */
};

/* The engine's options in a server with these options, which must stay valid: with the memory that the server takes. */
struct eng_options eng_serve_engine(const struct eng_serve_options *opt);

int eng_serve_open(struct eng_server **out, const struct eng_serve_options *opt);
int eng_serve_port(const struct eng_server *s);
int eng_serve_run(struct eng_server *s);   /* fails if the model cannot be loaded */
void eng_serve_stop(struct eng_server *s); /* any thread; 1st call: eng_serve_run drains and returns; 2nd: within 1 s */
void eng_serve_reload(struct eng_server *s); /* any thread; reloads the key file, as SIGHUP does */
void eng_serve_close(struct eng_server *s);

#endif
