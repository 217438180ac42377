/* engine/serve/internal.h - declarations shared by the files of the server.
 *
 *     server.c            opens, runs, stops; the events that wake the serving thread
 *     routes.c            the table of paths; keys, origins, limits
 *     request.c           requests for generation: parse, run, answer
 *     file_routes.c       uploads, downloads, files and batches
 *     batch_jobs.c        the thread that works on batches, and the events of their lines
 *     tokenize_routes.c   tokenize, detokenize, apply-template
 *     probes.c            health, readiness, version
 *     model_routes.c      the list of models; settings and tokenizer for clients of llama-server and vLLM
 *     ollama_routes.c     the models and their details for clients of Ollama
 *     status.c            metrics, and the status that the page shows
 *     page.c              the page
 *     request_log.c       log lines of requests
 *     answer.c            headers, bodies and refusals; called by the files above, calls none of them
 *
 * All data belongs to the serving thread, except some fields of a srv_call while a reader thread has it
 * (srv_call.reading). */
#ifndef ENGINE_SERVE_INTERNAL_H
#define ENGINE_SERVE_INTERNAL_H

#include <stdatomic.h>

#include "engine/api/request.h"
#include "engine/base/base.h"
#include "engine/serve/http.h"
#include "engine/serve/engine_thread.h"
#include "engine/serve/accounts.h"
#include "engine/serve/api_keys.h"
#include "engine/serve/metrics.h"
#include "engine/serve/reader_pool.h"
#include "engine/api/reply.h"
#include "engine/serve/serve.h"
#include "engine/store/store.h"

#define SRV_MAX_ALIAS    16
#define SRV_ID_BYTES     24
#define SRV_NAME_BYTES   72
#define SRV_MAX_WATCHER  16
#define SRV_PEER_BYTES   64
#define SRV_MAX_TRANSFER 16 /* uploads and downloads at once */

/* Parts of the memory for requests (srv_limits.requests) that are left free, so that long requests that wait leave
 * room to the one that is read, this one to short requests, and these to answers. */
#define SRV_KEPT_BY_WAITING 2
#define SRV_KEPT_BY_LONG    8
#define SRV_KEPT_BY_SHORT   32

struct event;
struct srv_call;
struct srv_transfer;
struct srv_batches;

enum srv_state { SRV_LOADING, SRV_SERVING, SRV_DRAINING, SRV_ENDING, SRV_FAILED };

struct srv_rates { /* samples of the last seconds, for the status */
    struct {
        uint64_t ns;
        struct eng_stats engine;
        struct off_stats store;
    } at[11];
    int n;
};

struct srv_limits {  /* bytes */
    size_t body;     /* of one request */
    size_t requests; /* bodies, their reading, and answers, inside --host-mem */
    size_t unsent;   /* part of it: all answers that the clients have not taken yet */
    size_t answer;   /* one answer that is not a stream */
    size_t batches;  /* memory for batches beside it; batches take no other */
    size_t line;     /* a batch's line that takes more to read is refused */
    size_t all;      /* with the memory of idle connections */
};

struct eng_server {
    struct eng_serve_options opt;
    enum srv_state state;
    int error; /* KN_E* in state SRV_FAILED */
    struct event_base *base;
    struct event *wake, *tick, *term, *interrupt, *hangup;
    int wake_fd;
    atomic_int n_stop;  /* number of stop requests */
    atomic_bool reload; /* the key file must be reloaded */
    struct eng_http *http;
    struct eng_progress *bar; /* loading progress; NULL when loading has ended */
    struct eng_thread *thread;
    struct eng_reader_pool *pool;
    struct eng_api_keys *keys;
    struct eng_accounts accounts;
    struct eng_api_setup setup;
    struct eng_api_model model; /* owns memory that setup points to */
    char *alias_text;
    const char *alias[SRV_MAX_ALIAS];
    struct eng_metrics metrics;
    struct srv_rates rates;
    struct off_spot *spot;   /* [n_expert] scratch of the status; NULL: not shown */
    struct eng_store *store; /* NULL: no --files; then so are the next two */
    struct eng_reader_pool *file_pool;
    struct srv_batches *batches; /* NULL: the model is not open either */
    struct srv_transfer *transfers;
    int n_transfer;
    struct srv_call *calls;
    int n_call, n_session;
    struct srv_limits limits;
    uint64_t secret, n_request;  /* request ids and seeds derive from both, salts from secret */
    uint64_t started_ns, end_ns; /* end_ns: deadline of draining, then of sending the last bytes */
    uint64_t fed_ns, second_ns;  /* last watchdog message; last status sample */
    int64_t started_s;
    struct eng_exchange *watcher[SRV_MAX_WATCHER]; /* [n_watcher] open /status/stream exchanges */
    int n_watcher;
};

/* ---- routes.c -------------------------------------------------------------------------------- */

/* The names of a new request: id is the server's own; name, in the log and in the header x-request-id, is the client's
 * X-Request-Id if it sent a usable one.  account: of its API key; NULL: none. */
struct srv_names {
    char id[SRV_ID_BYTES], name[SRV_NAME_BYTES];
    struct eng_account *account;
};

struct srv_route {
    const char *method, *path;
    bool open;  /* needs no API key, and any Origin is accepted */
    bool files; /* only with --files; its work runs in the pool for files */
    /* now: answers at once, on the serving thread.  work: runs on a reader thread and fills c->text, or refuses.  A
     * route with neither parses an API request, and then answers its count of prompt tokens (counts) or generates. */
    void (*now)(struct eng_server *s, struct eng_exchange *x);
    void (*work)(struct srv_call *c);
    /* An upload or a download. */
    void (*transfer)(struct eng_server *s, struct eng_exchange *x, const struct srv_names *names, uint64_t key);
    enum eng_api api;
    bool counts;
};

/* The callbacks on_request and on_gone of eng_http; arg is the eng_server. */
void srv_request(void *arg, struct eng_exchange *x);
bool srv_has_room(void *arg, size_t n_body);                 /* the callback has_room */
size_t srv_streams(void *arg, const struct eng_exchange *x); /* the callbacks streams and on_body */
void srv_body(void *arg, struct eng_exchange *x);
void srv_gone(void *arg, struct eng_exchange *x);

/* ---- answer.c -------------------------------------------------------------------------------- */

/* Sets the headers that every answer has, and names the request. */
void srv_set_common_headers(struct eng_server *s, struct eng_exchange *x, struct srv_names *names);
void srv_fault(void *arg, struct eng_exchange *x, enum eng_http_fault fault); /* the callback on_fault of eng_http */
void srv_answer_refusal(struct eng_server *s, struct eng_exchange *x, enum eng_api api, const struct eng_refusal *why);
/* Makes *why a 429 for a full queue, and counts it. */
void srv_refuse_full(struct eng_server *s, struct eng_refusal *why);
void srv_answer_json(struct eng_server *s, struct eng_exchange *x, struct eng_bytes *body); /* frees body */
void srv_answer_plain(struct eng_server *s, struct eng_exchange *x, int status, const char *type, const char *body,
                      size_t n);

/* ---- request_log.c --------------------------------------------------------------------------- */

struct srv_answered {
    const char *method, *path, *peer;
    int status, n_prompt, n_cached, n_answer;
    double waited_s, first_s, whole_s;
};
void srv_log_answer(const struct srv_names *names, const struct srv_answered *a);
void srv_log_done(const struct srv_names *names, const struct eng_exchange *x, const char *text); /* without tokens */
void srv_log_refusal(const struct srv_names *names, const struct eng_exchange *x, const struct eng_refusal *why);
/* The same; the message of the refusal may quote the body of the request. */
void srv_log_refused_body(const struct srv_names *names, const struct eng_exchange *x, const struct eng_refusal *why);

/* ---- request.c ------------------------------------------------------------------------------- */

struct srv_choice {
    struct eng_job job;
    bool lent;                            /* to the engine thread */
    uint64_t begun_ns, first_ns, last_ns; /* 0: not reached yet */
    int n_cached;
};

struct srv_call {
    struct eng_task task; /* first member: a task pointer is the srv_call pointer */
    struct eng_server *server;
    struct eng_exchange *x; /* NULL: the client disconnected, or the answer is sent */
    const struct srv_route *route;
    struct srv_call *next, **self;
    struct srv_names names;
    char peer[SRV_PEER_BYTES];
    uint64_t key;                     /* eng_api_keys_id, 0: none */
    char *path, *query;               /* of a route for files; else NULL */
    bool reading;                     /* lent to a reader thread, which then owns the fields from body to refused */
    atomic_bool gone;                 /* set by the serving thread: the client disconnected, so nothing need be read */
    struct kn_heap_guard guard;       /* while it is read */
    struct eng_checkpoint checkpoint; /* while it is tokenized */
    char *body;
    size_t n_body, room_body;
    int64_t created_s;
    uint64_t seed;
    struct eng_api_request *ask;
    struct eng_bytes text;
    struct eng_refusal why;
    bool refused;
    struct eng_reply *reply;
    struct srv_choice *choice; /* [n_choice] */
    int n_choice, n_lent;
    bool begun, touched; /* the stream's headers are sent; has new events to flush */
    size_t n_sent;       /* bytes of the reply sent so far, without keep-alive comments */
    uint64_t arrived_ns, sent_ns;
};

void srv_call_open(struct eng_server *s, struct eng_exchange *x, const struct srv_route *route,
                   const struct srv_names *names, uint64_t key);
void srv_call_gone(struct srv_call *c);                      /* its client has disconnected */
void srv_call_take_read(struct eng_task *task);              /* takes back a call that a thread of a pool has read */
uint64_t srv_salt(const struct eng_server *s, uint64_t key); /* of the KV of this key's requests */
void srv_calls_take_read(struct eng_server *s);              /* takes the tasks that reader threads have finished */
void srv_calls_take_told(struct eng_server *s);              /* takes the events from the engine thread */
void srv_calls_tick(struct eng_server *s, uint64_t now);     /* sends keep-alive comments */
void srv_calls_fail(struct eng_server *s, int status, const char *message); /* fails every open request */
void srv_calls_close(struct eng_server *s); /* after the reader and engine threads have ended */

/* ---- file_routes.c --------------------------------------------------------------------------- */

void srv_upload_open(struct eng_server *s, struct eng_exchange *x, const struct srv_names *names, uint64_t key);
void srv_upload_read(struct eng_server *s, struct eng_exchange *x); /* more bytes of an open upload may have come */
void srv_download_open(struct eng_server *s, struct eng_exchange *x, const struct srv_names *names, uint64_t key);
void srv_transfer_sent(void *arg, struct eng_exchange *x);            /* the callback on_sent */
bool srv_transfer_gone(struct eng_server *s, struct eng_exchange *x); /* false: x is no transfer */
void srv_transfers_take(struct eng_server *s);  /* takes the tasks that the threads for files have finished */
void srv_transfers_fail(struct eng_server *s);  /* fails every transfer */
void srv_transfers_close(struct eng_server *s); /* after the pool for files */
void srv_work_files(struct srv_call *c);
void srv_work_file(struct srv_call *c);
void srv_work_file_delete(struct srv_call *c);
void srv_work_batches(struct srv_call *c);
void srv_work_batch_create(struct srv_call *c);
void srv_work_batch(struct srv_call *c);
void srv_work_batch_cancel(struct srv_call *c);

/* ---- batch_jobs.c ---------------------------------------------------------------------------- */

int srv_batches_open(struct eng_server *s);  /* once the model is open; starts or continues unfinished batches */
void srv_batches_wake(struct eng_server *s); /* any thread: there is a new batch, or one is to be cancelled */
void srv_batches_take_event(struct srv_batches *b, const struct eng_job_event *event); /* of a job of a batch */
void srv_batches_stop(struct eng_server *s);  /* no batch goes on; does not wait */
void srv_batches_join(struct eng_server *s);  /* stops, and waits until finished answers are on disk */
void srv_batches_close(struct eng_server *s); /* after join, and after the engine thread has ended */

/* ---- tokenize_routes.c ----------------------------------------------------------------------- */

/* The body as a JSON object, owned by the caller; NULL: refused, with the reason in c->why. */
json_t *srv_body_object(struct srv_call *c);

void srv_work_tokenize(struct srv_call *c);
void srv_work_detokenize(struct srv_call *c);
void srv_work_apply_template(struct srv_call *c);

/* ---- probes.c -------------------------------------------------------------------------------- */

void srv_health(struct eng_server *s, struct eng_exchange *x);
void srv_ready(struct eng_server *s, struct eng_exchange *x);
void srv_version(struct eng_server *s, struct eng_exchange *x);
const char *srv_not_ready(struct eng_server *s); /* the reason, or NULL: ready */

/* ---- model_routes.c, ollama_routes.c --------------------------------------------------------- */

/* True if the model is open; else answers with status 503 in this form. */
bool srv_has_model(struct eng_server *s, struct eng_exchange *x, enum eng_api form);
void srv_models(struct eng_server *s, struct eng_exchange *x);
void srv_model(struct eng_server *s, struct eng_exchange *x);
void srv_props(struct eng_server *s, struct eng_exchange *x);
void srv_slots(struct eng_server *s, struct eng_exchange *x);
void srv_tokenizer_info(struct eng_server *s, struct eng_exchange *x);
void srv_ollama_tags(struct eng_server *s, struct eng_exchange *x);
void srv_ollama_ps(struct eng_server *s, struct eng_exchange *x);
void srv_ollama_version(struct eng_server *s, struct eng_exchange *x);
void srv_work_ollama_show(struct srv_call *c);

/* ---- status.c -------------------------------------------------------------------------------- */

void srv_metrics(struct eng_server *s, struct eng_exchange *x);
void srv_status(struct eng_server *s, struct eng_exchange *x);
void srv_status_stream(struct eng_server *s, struct eng_exchange *x);
void srv_status_tick(struct eng_server *s,
                     uint64_t now); /* once a second: a sample for the rates; status to watchers */
void srv_status_gone(struct eng_server *s, struct eng_exchange *x); /* a client of /status/stream has disconnected */
void srv_status_end(struct eng_server *s);                          /* ends all /status/stream answers */

/* ---- page.c ---------------------------------------------------------------------------------- */

struct srv_page_file {
    const char *path, *type, *tag; /* tag: changes with the content */
    const char *data;              /* [n] */
    size_t n;
    const char *zipped; /* [n_zipped] the same, as gzip compresses it; NULL: compressed already */
    size_t n_zipped;
};
extern const struct srv_page_file srv_page_files[]; /* [srv_n_page_file] of the build: engine/serve/page/embed.sh */
extern const int srv_n_page_file;

void srv_page(struct eng_server *s, struct eng_exchange *x); /* the file of its path */

#endif
