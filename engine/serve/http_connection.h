/* engine/serve/http_connection.h - HTTP connections over libevent's bufferevents: the structures and functions that http.c,
 * http_connection.c, http_receive.c and http_answer.c share.  Internal to these four files.
 *
 * A connection goes through states:
 *
 *     HEAD    the bytes of a request's head are collected and checked (http_parse.h)
 *     BODY    the body is collected; then on_request gets the exchange.  While memory is short, it waits (below)
 *     STREAM  the caller has the exchange and reads its body while it arrives, until it answers
 *     ANSWER  the caller has the exchange until it answers; more bytes wait in the input buffer
 *     CLOSE   the connection's last answer is being sent
 *     LINGER  this side is closed, and input is discarded until the client closes: a socket closed with unread
 *             input would reset the connection, and the client would lose the answer
 *
 * From ANSWER a connection returns to HEAD, where the next request waits until the answer's last byte is sent.  So a
 * client that reads nothing has one unsent answer.
 *
 * A large body takes memory as its bytes arrive.  When the bodies have taken their part of max_received, a connection
 * that needs more for its body waits: its bytes stay in the socket, so that the client waits, too.  One waiting connection at a time, the
 * favoured one, may take the rest of max_received, which is enough for any body, so that bodies get whole one after the
 * other, whatever the others hold.  A whole body that has_room does not let pass waits in the same way.  Waiting ends with
 * the time limit of the request.  While a connection waits for memory, clients that stopped sending a large body must not
 * hold it: the largest such body is refused.
 *
 * Bytes go to the socket at once, with one system call (eng_http_send); those that it does not take wait in the output
 * buffer for the event loop.  A connection is cut by shutting down its socket: the event loop then reports its end, and
 * it is freed there, never in a function that the caller calls. */
#ifndef ENGINE_SERVE_HTTP_CONNECTION_H
#define ENGINE_SERVE_HTTP_CONNECTION_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "engine/base/bytes.h"
#include "engine/serve/http.h"
#include "engine/serve/http_parse.h"

struct bufferevent;
struct eng_host_names;
struct evbuffer;
struct evbuffer_cb_info;
struct evconnlistener;
struct event;

enum state { HEAD, BODY, STREAM, ANSWER, CLOSE, LINGER };

struct eng_exchange { /* a connection */
    struct eng_http *http;
    struct eng_exchange *next, **self;
    struct bufferevent *bev;
    int fd;
    enum state state;
    bool stepping; /* step() is running: it goes on with the next request itself */
    bool cut;      /* the socket is shut down; waits for the event loop */
    bool ended;    /* the client has closed its side */
    bool last;     /* the connection ends with this answer */
    bool due;      /* in the list eng_http.due */
    bool waits;    /* for memory */
    bool paused;   /* nothing is read from the socket */
    bool expects;  /* STREAM: the client waits for 100 before it sends the body */
    bool begun;    /* ANSWER: eng_http_begin was called */
    struct eng_exchange *next_due;
    char peer[INET6_ADDRSTRLEN];
    void *user;
    struct eng_http_scan scan;
    struct eng_http_chunks chunks;
    struct eng_http_head *request; /* of the parsed head; NULL: none, or it could not be parsed */
    char *head, *body;             /* [n_head], [n_body] */
    size_t n_head, room_head;      /* room_: allocated bytes */
    size_t n_body, room_body;
    size_t n_most;                         /* STREAM: limit of n_body, the bytes that were read; 0: not this state */
    size_t n_held;                         /* bytes of memory for requests, counted in eng_http.n_held */
    struct eng_bytes set;                  /* the answer's headers so far */
    uint64_t first_ns;                     /* time of the incoming request's first byte; 0: none yet */
    uint64_t turn, got_ns;                 /* of the incoming request: its number, the time of its last byte */
    uint64_t idle_ns, moved_ns, closed_ns; /* idle since; last time that output was sent, or begun; LINGER since */
};

struct eng_http {
    struct eng_http_options opt;
    struct evconnlistener *listener;
    struct event *tick, *resume;
    struct eng_host_names *names;
    struct eng_exchange *first, *due; /* due: connections that go on in the event loop (on_resume) */
    int n_connection, port;
    bool loopback;
    struct eng_exchange *favoured; /* see above; NULL: none */
    int n_waiting;                 /* connections that wait for memory */
    uint64_t n_turn;
    size_t n_held, n_unsent; /* sums over all connections */
    uint64_t n_cut;
    uint64_t now_ns, ticked_ns; /* clock for timeouts (see LATE); real time of the last tick */
};

/* ---- http_connection.c ---- */

struct evbuffer *eng_http_input(const struct eng_exchange *x);
struct evbuffer *eng_http_output(const struct eng_exchange *x);
size_t eng_http_to_send(const struct eng_exchange *x); /* bytes that wait in the output buffer */
int eng_http_tick_ms(const struct eng_http *h);

/* Called by libevent when the output buffer changes; arg is the connection. */
void eng_http_on_output(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *arg);
void eng_http_listen_or_not(struct eng_http *h); /* accepts connections while there are fewer than max_connection */

/* The request waits for memory, or no longer does. */
void eng_http_set_waits(struct eng_exchange *x, bool waits);
/* The request's memory will be freed, or is the caller's: another connection may be favoured. */
void eng_http_leave_body(struct eng_exchange *x);

/* Shuts down the socket and drops all bytes; the event loop then reports the end of the connection. */
void eng_http_shut_down(struct eng_exchange *x);
void eng_http_free_request(struct eng_exchange *x);
void eng_http_forget_due(struct eng_exchange *x);
/* Frees the connection.  Only callbacks of the event loop, and eng_http_close, may call this. */
void eng_http_drop(struct eng_exchange *x);

/* Sends n pieces: to the socket, as far as it takes them and nothing is waiting before them. */
void eng_http_send(struct eng_exchange *x, struct iovec *v, int n);
void eng_http_send_text(struct eng_exchange *x, const char *text);
struct iovec eng_http_piece(const char *p, size_t n);
/* The answer that needs no memory.  The connection must be cut then. */
void eng_http_send_no_memory(int fd);

/* ---- http_receive.c ---- */

/* Answers a request that cannot be accepted, and closes the connection: its next bytes have no known meaning. */
void eng_http_refuse(struct eng_exchange *x, enum eng_http_fault fault);
/* Refuses the largest request that is being received; its further bytes are dropped.  stalled: of the clients that
 * stopped sending a large body, and do not wait for memory.  False: there is none. */
bool eng_http_refuse_largest(struct eng_http *h, bool stalled);
/* Counts the memory of requests of this connection.  Bodies wait for memory; heads, small bodies and bytes ahead do not, so
 * that the sum can exceed the limit of all: the largest request is refused then. */
void eng_http_count_held(struct eng_exchange *x);
/* Does all that the connection's bytes allow; x may be freed. */
void eng_http_go_on(struct eng_exchange *x);

#endif
