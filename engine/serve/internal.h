/* engine/serve/internal.h - what the files of the server share.
 *
 *     server.c   opens, runs, stops; the events that wake the serving thread
 *     routes.c   which request is whose: the table, keys, origins, errors
 *     call.c     a request that takes time: reading it, running it, answering it
 *     text.c     tokenize, detokenize, apply-template
 *     status.c   health, models, metrics, the status that the page shows
 *
 * All of it belongs to the serving thread, but for what a call says of its task. */
#ifndef ENGINE_SERVE_INTERNAL_H
#define ENGINE_SERVE_INTERNAL_H

#include <stdatomic.h>

#include "engine/serve/ask.h"
#include "engine/serve/http.h"
#include "engine/serve/hub.h"
#include "engine/serve/keys.h"
#include "engine/serve/metrics.h"
#include "engine/serve/pool.h"
#include "engine/serve/reply.h"
#include "engine/serve/serve.h"

#define MAX_ALIAS 16
#define ID_BYTES  24
#define MAX_WATCHER 16

struct event;
struct call;

enum server_state { LOADING, SERVING, DRAINING, ENDING, FAILED };

struct rates {                                  /* of the last seconds, for the status */
    struct { uint64_t ns; struct eng_stats engine; struct off_stats store; } at[11];
    int n;
};

struct eng_server {
    struct eng_serve_options opt;
    enum server_state state;
    int error;                                  /* of FAILED */
    struct event_base *base;
    struct event *wake, *tick, *term, *interrupt;
    int wake_fd;
    atomic_int n_stop;                          /* times that the end was asked for */
    struct eng_http *http;
    struct eng_progress *bar;                   /* while it loads */
    struct eng_hub *hub;
    struct eng_pool *pool;
    struct eng_keys *keys;
    struct eng_chat *chat;
    struct eng_desk desk;
    char *alias_text;
    const char *alias[MAX_ALIAS];
    struct eng_metrics metrics;
    struct rates rates;
    struct call *calls;
    int n_call, n_session;
    uint64_t secret, n_request;                 /* ids, seeds and salts come from these */
    uint64_t started_ns, end_ns;                /* end: of draining */
    uint64_t fed_ns, second_ns;                 /* the watchdog; the last status */
    int64_t started_s;
    struct eng_exchange *watcher[MAX_WATCHER];  /* [n_watcher] of /status/stream */
    int n_watcher;
};

/* ---- routes.c ---- */

struct route {
    const char *method, *path;
    bool open;                                  /* needs no key */
    void (*now)(struct eng_server *s, struct eng_exchange *x);  /* answers at once, or: */
    void (*work)(struct call *c);               /* on a thread that reads: fills text, or refuses */
    enum eng_api api;
    bool counts;                                /* neither now nor work: a call to the engine; or only counted */
};

void on_request(void *arg, struct eng_exchange *x);
void on_gone(void *arg, struct eng_exchange *x);
void answer_refusal(struct eng_server *s, struct eng_exchange *x, enum eng_api api,
                    const struct eng_refusal *why);
void answer_json(struct eng_server *s, struct eng_exchange *x, struct eng_bytes *body);     /* and frees it */
void answer_plain(struct eng_server *s, struct eng_exchange *x, int status, const char *type, const char *body,
                  size_t n);


/* ---- call.c ---- */

struct choice {
    struct eng_job job;
    bool lent;
    uint64_t first_ns, last_ns;
};

struct call {
    struct eng_task task;                       /* first: a task is its call */
    struct eng_server *server;
    struct eng_exchange *x;                     /* NULL: the client left, or has its answer */
    const struct route *route;
    struct call *next, **self;
    char id[ID_BYTES];
    int key;                                    /* which, or -1 */
    bool reading;                               /* a thread has it: then all up to refused is the thread's */
    atomic_bool gone;                           /* told to that thread: nobody wants it any more */
    char *body;
    size_t n_body;
    int64_t created_s;
    uint64_t seed;
    struct eng_ask *ask;
    struct eng_bytes text;
    struct eng_refusal why;
    bool refused;
    struct eng_reply *reply;
    struct choice *choice;                      /* [n_choice] */
    int n_choice, n_lent;
    bool begun, touched;
    size_t n_sent;                              /* bytes of the reply */
    uint64_t arrived_ns, sent_ns;
};

void call_open(struct eng_server *s, struct eng_exchange *x, const struct route *route, const char *id, int key);
void call_gone(struct call *c);
void calls_take_read(struct eng_server *s);
void calls_take_told(struct eng_server *s);
void calls_tick(struct eng_server *s, uint64_t now);
void calls_fail(struct eng_server *s, int status, const char *message);    /* all of them, now */
void calls_close(struct eng_server *s);         /* once no thread is left that has one */
int  retry_after_s(const struct eng_server *s);

/* ---- text.c ---- */

void work_tokenize(struct call *c);
void work_detokenize(struct call *c);
void work_apply_template(struct call *c);

/* ---- status.c ---- */

void now_health(struct eng_server *s, struct eng_exchange *x);
void now_ready(struct eng_server *s, struct eng_exchange *x);
void now_models(struct eng_server *s, struct eng_exchange *x);
void now_model(struct eng_server *s, struct eng_exchange *x);
void now_metrics(struct eng_server *s, struct eng_exchange *x);
void now_version(struct eng_server *s, struct eng_exchange *x);
void now_page(struct eng_server *s, struct eng_exchange *x);
void now_status(struct eng_server *s, struct eng_exchange *x);
void now_status_stream(struct eng_server *s, struct eng_exchange *x);
void status_tick(struct eng_server *s, uint64_t now);   /* once a second */
void status_gone(struct eng_server *s, struct eng_exchange *x);
void status_end(struct eng_server *s);
const char *not_ready(struct eng_server *s);    /* why not, or NULL */

#endif
