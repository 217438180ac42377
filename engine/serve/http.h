/* engine/serve/http.h - HTTP connections: requests in, answers out, without blocking.  Internal to engine.
 *
 *     eng_http_open -> event loop: on_request(x) -> answer, or begin, chunk*, end; or on_gone(x)
 *
 * libevent's evhttp parses HTTP/1.1; this file adds the checks that a server open to untrusted clients needs.  An
 * exchange is a connection with its current request.  A connection has one request at a time; its next requests wait in
 * the socket.
 *
 *   - a client that disconnects is noticed at once, also while there is nothing to send: on_gone is called, after
 *     which the exchange must not be used;
 *   - limits on headers (431), a body (413), the bytes of all requests being received (the largest is cut), connections
 *     (more wait in the kernel), and the unsent bytes of an answer (cut);
 *   - timeouts: a whole request must arrive within patience_ms of its first byte; while an answer has unsent bytes,
 *     the client must take some within patience_ms; a connection may be idle for idle_ms.  Else it is cut.
 *
 * Bytes that are not HTTP, and requests of more than 8 times max_header or 2 times max_body, are answered by evhttp
 * itself with the body that `words` returns; then the connection is closed.
 *
 * All functions and callbacks run on the one thread of the event loop. */
#ifndef ENGINE_SERVE_HTTP_H
#define ENGINE_SERVE_HTTP_H

#include "kernels/core.h"

struct event_base;
struct eng_http;
struct eng_exchange;

struct eng_http_options {
    const char *host;
    int port;                    /* 0: any */
    size_t max_header, max_body; /* bytes of one request */
    size_t max_received;         /* bytes of all requests being received */
    size_t max_unsent;           /* bytes of one answer that the client has not read yet */
    int max_connection;
    int patience_ms, idle_ms;
    int tick_ms; /* interval of the timeout checks; 0: 100 ms */
    void (*on_request)(void *arg, struct eng_exchange *x);
    void (*on_gone)(void *arg, struct eng_exchange *x);
    /* Returns the JSON body, [*n], of an answer that evhttp makes itself; the caller frees it with kn_free.
     * words may be NULL: evhttp then sends its own body. */
    char *(*words)(void *arg, int status, size_t *n);
    void *arg;
};

int eng_http_open(struct eng_http **out, struct event_base *base, const struct eng_http_options *opt);
void eng_http_close(struct eng_http *h); /* calls on_gone for exchanges in progress */
int eng_http_port(const struct eng_http *h);
bool eng_http_is_loopback(const struct eng_http *h); /* only this machine can reach it */
int eng_http_connections(const struct eng_http *h);
uint64_t eng_http_n_cut(const struct eng_http *h); /* connections cut for slowness */
bool eng_http_all_sent(const struct eng_http *h);  /* no connection has unsent bytes */

/* ---- a request ------------------------------------------------------------------------------- */

const char *eng_http_method(const struct eng_exchange *x);
const char *eng_http_path(const struct eng_exchange *x); /* decoded, without the query; never NULL */
const char *eng_http_header(const struct eng_exchange *x, const char *name); /* or NULL */
const char *eng_http_peer(const struct eng_exchange *x);
bool eng_http_headers_too_long(const struct eng_exchange *x);
bool eng_http_body_too_long(const struct eng_exchange *x);
/* A copy with a NUL appended; the caller frees it with kn_free.  NULL: no memory. */
char *eng_http_body(const struct eng_exchange *x, size_t *n);

void eng_http_set_user(struct eng_exchange *x, void *user);
void *eng_http_user(const struct eng_exchange *x);

/* ---- its answer ------------------------------------------------------------------------------ */

void eng_http_set_header(struct eng_exchange *x, const char *name, const char *value); /* before answer or begin */
/* The answer to a HEAD request has the headers of the same answer to GET, with the length of its body, and no body. */
void eng_http_answer(struct eng_exchange *x, int status, const char *type, const char *body, size_t n);
void eng_http_begin(struct eng_exchange *x, int status, const char *type);
void eng_http_chunk(struct eng_exchange *x, const char *bytes, size_t n); /* written to the socket at once */
void eng_http_end(struct eng_exchange *x, const char *bytes, size_t n);   /* n 0: no last chunk */
/* After eng_http_answer and after eng_http_end, x must not be used. */

#endif
