/* engine/serve/http.h - HTTP connections: requests in, answers out, without blocking.  Internal to engine.
 *
 *     eng_http_open -> event loop: on_request(x) -> answer, or begin, chunk*, end; or on_gone(x)
 *                                  on_body(x) -> [ read ]* -> the same, for a body that is too large for memory
 *
 * HTTP/1.0 and 1.1 over libevent's bufferevents, with a strict parser (http_parse.h).  An exchange is a connection with
 * its current request.  A connection has one request at a time; its next requests wait until the answer is sent.
 *
 *   - a client that disconnects is noticed at once, also while there is nothing to send: on_gone is called, after
 *     which the exchange must not be used;
 *   - a request that breaks a rule or a limit of size, or names a foreign host, goes to on_fault, which must answer it
 *     at once; the connection is closed then;
 *   - a limit on the bytes of all requests being received: clients with large bodies wait, in order of arrival; heads
 *     and small bodies do not, so the largest request is refused where they are too many;
 *   - limits on connections (more wait in the kernel), on the unsent bytes of a stream (cut) and of all connections
 *     (cut, beginning with the client that has taken no byte for the longest time);
 *   - timeouts: a whole request must arrive within patience_ms of its first byte, else it is a fault; while an answer
 *     has unsent bytes, the client must take some within patience_ms; a connection may be idle for idle_ms; else the
 *     connection is cut.
 *
 * All functions and callbacks run on the one thread of the event loop. */
#ifndef ENGINE_SERVE_HTTP_H
#define ENGINE_SERVE_HTTP_H

#include "engine/serve/http_parse.h"

struct event_base;
struct eng_http;
struct eng_exchange;

struct eng_http_options {
    const char *host;
    const char *allowed_host;    /* as in eng_host_names_open */
    int port;                    /* 0: any */
    size_t max_header, max_body; /* bytes of one request */
    size_t max_received;         /* bytes of all requests being received: at least 4 of the largest size */
    size_t max_unsent;           /* bytes of one stream that the client has not taken yet */
    size_t max_unsent_all;       /* bytes of all answers that the clients have not taken yet */
    int max_connection;
    int patience_ms, idle_ms;
    int tick_ms; /* interval of the timeout checks; 0: 100 ms */
    /* Whether a request with a body of n bytes may be handed over now; else it waits for eng_http_retry, or a tick.
     * NULL: always. */
    bool (*has_room)(void *arg, size_t n);
    /* Called when the head of a request has arrived: the most bytes of a body that the caller reads itself while it arrives
     * (eng_http_read).  0: the body is collected.  NULL: all bodies are. */
    size_t (*streams)(void *arg, const struct eng_exchange *x);
    /* In place of on_request: the head of such a request has arrived; and each time that bytes of its body have. */
    void (*on_body)(void *arg, struct eng_exchange *x);
    void (*on_sent)(void *arg, struct eng_exchange *x); /* the client has taken all bytes of a begun answer; or NULL */
    void (*on_request)(void *arg, struct eng_exchange *x);
    void (*on_fault)(void *arg, struct eng_exchange *x, enum eng_http_fault fault); /* NULL: eng_http_answer_fault */
    void (*on_gone)(void *arg, struct eng_exchange *x);
    void *arg;
};

int eng_http_open(struct eng_http **out, struct event_base *base, const struct eng_http_options *opt);
void eng_http_close(struct eng_http *h); /* calls on_gone for exchanges in progress */
void eng_http_retry(struct eng_http *h); /* memory was freed; NULL is allowed */
int eng_http_port(const struct eng_http *h);
bool eng_http_is_loopback(const struct eng_http *h); /* only this machine can reach it */
int eng_http_connections(const struct eng_http *h);
uint64_t eng_http_n_cut(const struct eng_http *h); /* connections ended by a time limit or a limit of bytes */
size_t eng_http_unsent(const struct eng_http *h);  /* bytes of all answers that the clients have not taken yet */

/* ---- a request ------------------------------------------------------------------------------- */

/* In on_fault the request may be unknown: method and path are "?" then, and there are no headers. */
const char *eng_http_method(const struct eng_exchange *x);
const char *eng_http_path(const struct eng_exchange *x);                     /* as sent, without the query */
const char *eng_http_query(const struct eng_exchange *x);                    /* as sent; "": none */
const char *eng_http_host(const struct eng_exchange *x);                     /* as sent, with a port; "": none */
const char *eng_http_header(const struct eng_exchange *x, const char *name); /* the first of this name, or NULL */
const char *eng_http_peer(const struct eng_exchange *x);
/* The body with a NUL appended, in an allocation of *room bytes; the caller frees it with kn_free.  NULL: no memory. */
char *eng_http_body(struct eng_exchange *x, size_t *n, size_t *room);

/* The body of a request for which `streams` was not 0.  Moves up to `room` bytes of it to out and returns their number; 0:
 * no byte is here yet, or the body has ended.  *fault: the body is not valid; the caller must answer, and the connection
 * is closed then.  An answer before the end of the body closes the connection, too. */
size_t eng_http_read(struct eng_exchange *x, char *out, size_t room, enum eng_http_fault *fault);
bool eng_http_has_ended(const struct eng_exchange *x);    /* the whole body was read */
size_t eng_http_body_bytes(const struct eng_exchange *x); /* of the body, as announced; 0: unknown, or no body */

void eng_http_set_user(struct eng_exchange *x, void *user);
void *eng_http_user(const struct eng_exchange *x);

/* ---- its answer ------------------------------------------------------------------------------ */

void eng_http_set_header(struct eng_exchange *x, const char *name, const char *value); /* before answer or begin */
void eng_http_set_last(struct eng_exchange *x); /* before answer or begin: the connection is closed after the answer */
/* The answer to a HEAD request has the headers of the same answer to GET, with the length of its body, and no body. */
void eng_http_answer(struct eng_exchange *x, int status, const char *type, const char *body, size_t n);
void eng_http_answer_fault(struct eng_exchange *x, enum eng_http_fault fault); /* its status and text, as plain text */
void eng_http_begin(struct eng_exchange *x, int status, const char *type);
void eng_http_chunk(struct eng_exchange *x, const char *bytes, size_t n); /* written to the socket at once */
void eng_http_end(struct eng_exchange *x, const char *bytes, size_t n);   /* n 0: no last chunk */
bool eng_http_is_sent(const struct eng_exchange *x);                      /* no byte waits for the client */
void eng_http_cut(struct eng_exchange *x); /* ends the connection in the middle of an answer; on_gone follows */
/* After eng_http_answer and after eng_http_end, x must not be used. */

#endif
