/* engine/serve/http.h - connections: requests in, answers out, nobody waited for.  Internal to engine.
 *
 *     eng_http_open -> event loop: on_request(x) -> answer, or begin, chunk*, end; on_gone(x) instead
 *
 * libevent's evhttp reads HTTP/1.1; this adds what a server among strangers needs.  An exchange is a
 * connection with the request that is on it now: one at a time, further ones wait in the socket.
 *
 *   - a client that leaves is noticed at once, also while there is nothing to send: on_gone, after which the
 *     exchange is not to be touched;
 *   - limits: headers (431), a body (413), all bodies that are being received together, connections (more
 *     wait in the kernel), what a client may leave unread;
 *   - time: all of a request must be there so many seconds after its first byte, an answer must keep moving,
 *     and a connection may be idle only for so long.  Who is slower is cut.
 *
 * What is no HTTP at all, or more than a multiple of the limits, is answered by evhttp itself, in the
 * words that `words` gives it, and closed.
 *
 * Everything on the one thread that runs the event loop. */
#ifndef ENGINE_SERVE_HTTP_H
#define ENGINE_SERVE_HTTP_H

#include "kernels/core.h"

struct event_base;
struct eng_http;
struct eng_exchange;

struct eng_http_options {
    const char *host;
    int port;                                   /* 0: any */
    size_t max_header, max_body;                /* bytes of one request */
    size_t max_received;                        /* of all that are being received */
    size_t max_unsent;                          /* of one answer */
    int max_connection;
    int patience_ms, idle_ms;
    int tick_ms;                                /* how often that is looked at; 0: every 100 ms */
    void (*on_request)(void *arg, struct eng_exchange *x);
    void (*on_gone)(void *arg, struct eng_exchange *x);
    /* The body, JSON, of an answer that never was an exchange: to be freed with kn_free; may be NULL. */
    char *(*words)(void *arg, int status, size_t *n);
    void *arg;
};

int  eng_http_open(struct eng_http **out, struct event_base *base, const struct eng_http_options *opt);
void eng_http_close(struct eng_http *h);        /* on_gone for those under way */
int  eng_http_port(const struct eng_http *h);
bool eng_http_is_loopback(const struct eng_http *h);    /* only this machine can reach it */
int  eng_http_connections(const struct eng_http *h);
uint64_t eng_http_n_cut(const struct eng_http *h);      /* connections cut for slowness */
bool eng_http_all_sent(const struct eng_http *h);       /* every client has taken what there was for it */

/* ---- a request ------------------------------------------------------------------------------- */

const char *eng_http_method(const struct eng_exchange *x);
const char *eng_http_path(const struct eng_exchange *x);        /* decoded, without the query; never NULL */
const char *eng_http_header(const struct eng_exchange *x, const char *name);    /* or NULL */
const char *eng_http_peer(const struct eng_exchange *x);
bool eng_http_headers_too_long(const struct eng_exchange *x);
bool eng_http_body_too_long(const struct eng_exchange *x);
/* A copy, to be freed with kn_free, with a NUL behind; NULL: no memory. */
char *eng_http_body(const struct eng_exchange *x, size_t *n);

void  eng_http_set_user(struct eng_exchange *x, void *user);
void *eng_http_user(const struct eng_exchange *x);

/* ---- its answer ------------------------------------------------------------------------------ */

void eng_http_set_header(struct eng_exchange *x, const char *name, const char *value);  /* before these: */
void eng_http_answer(struct eng_exchange *x, int status, const char *type, const char *body, size_t n);
void eng_http_begin(struct eng_exchange *x, int status, const char *type);
void eng_http_chunk(struct eng_exchange *x, const char *bytes, size_t n);       /* on its way when it returns */
void eng_http_end(struct eng_exchange *x, const char *bytes, size_t n);         /* the last of them, if any */
/* After an end, and after an answer, x is not to be touched. */

#endif
