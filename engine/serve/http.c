/* engine/serve/http.c - HTTP connections over libevent's bufferevents.
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
 * A large body takes memory as its bytes arrive.  When the bodies have taken their part of max_received, a connection whose
 * body must grow waits: its bytes stay in the socket, so that the client waits, too.  One waiting connection at a time, the
 * favoured one, may take the rest of max_received, which is enough for any body, so that bodies get whole one after the
 * other, whatever the others hold.  A whole body that has_room does not let pass waits in the same way.  Waiting ends with
 * the time limit of the request.  While a connection waits for memory, clients that stopped sending a large body must not
 * hold it: the largest such body is refused.
 *
 * Bytes go to the socket at once, with one system call (send_pieces); those that it does not take wait in the output
 * buffer for the event loop.  A connection is cut by shutting down its socket: the event loop then reports its end, and
 * it is freed there, never in a function that the caller calls. */
#include "engine/serve/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/bytes.h"
#include "engine/serve/host_names.h"
#include "engine/serve/http_parse.h"
#include "engine/serve/listen.h"

#define TICK_MS    100
#define LATE       10 /* ticks by which now_ns advances at once, at most: a stop of the process times no client out */
#define MAX_AHEAD  65536 /* bytes that are read before they are needed, such as those of the next request */
#define FIRST_ROOM 1024  /* first size of the buffers for a head and a body */
#define FREE_ROOM  65536 /* bytes of a body that need not wait for memory */
#define SHARED     2     /* 1 / SHARED of max_received is for all bodies; the rest for the favoured and small ones */
#define STALLED    10    /* ticks without a byte: a client that stopped sending */

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

static struct evbuffer *input(const struct eng_exchange *x) { return bufferevent_get_input(x->bev); }
static struct evbuffer *output(const struct eng_exchange *x) { return bufferevent_get_output(x->bev); }
static size_t unsent(const struct eng_exchange *x) { return evbuffer_get_length(output(x)); }

static int tick_ms(const struct eng_http *h) { return h->opt.tick_ms ? h->opt.tick_ms : TICK_MS; }

/* ---- ending connections ---------------------------------------------------------------------- */

static void on_output(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *arg)
{
    struct eng_exchange *x = arg;
    (void)buffer;
    x->http->n_unsent += info->n_added - info->n_deleted;
    if (info->n_deleted > 0 || info->orig_size == 0)
        x->moved_ns = x->http->now_ns;
}

static void listen_or_not(struct eng_http *h)
{
    if (h->n_connection < h->opt.max_connection)
        evconnlistener_enable(h->listener);
    else
        evconnlistener_disable(h->listener);
}

static void set_waits(struct eng_exchange *x, bool waits)
{
    x->http->n_waiting += waits - x->waits;
    x->waits = waits;
}

/* The request's memory will be freed, or is the caller's: another connection may be favoured. */
static void leave_body(struct eng_exchange *x)
{
    set_waits(x, false);
    if (x->http->favoured == x)
        x->http->favoured = NULL;
}

void eng_http_retry(struct eng_http *h)
{
    if (h && h->n_waiting && h->resume)
        event_active(h->resume, EV_TIMEOUT, 1);
}

/* Shuts down the socket and drops all bytes; the event loop then reports the end of the connection. */
static void shut_down(struct eng_exchange *x)
{
    struct evbuffer *out = output(x);
    if (x->cut)
        return;
    x->cut = true;
    leave_body(x);
    shutdown(x->fd, SHUT_RDWR);
    evbuffer_unfreeze(out, 1);
    evbuffer_drain(out, evbuffer_get_length(out));
    evbuffer_freeze(out, 1);
    evbuffer_drain(input(x), evbuffer_get_length(input(x)));
}

/* Ends a connection that exceeds a limit. */
static void cut(struct eng_exchange *x)
{
    if (!x->cut)
        x->http->n_cut++;
    shut_down(x);
}

static void free_request(struct eng_exchange *x)
{
    kn_free(x->head);
    kn_free(x->body);
    kn_free(x->request);
    eng_bytes_free(&x->set);
    x->head = x->body = NULL;
    x->request = NULL;
    x->set = (struct eng_bytes){ 0 };
    x->n_head = x->n_body = x->room_head = x->room_body = 0;
    x->scan = (struct eng_http_scan){ 0 };
    x->chunks = (struct eng_http_chunks){ 0 };
    x->n_most = 0;
    x->last = x->expects = x->begun = false;
    x->first_ns = 0;
}

static void forget_due(struct eng_exchange *x)
{
    struct eng_exchange **at = &x->http->due;
    while (*at && *at != x)
        at = &(*at)->next_due;
    if (*at)
        *at = x->next_due;
    x->due = false;
}

/* Frees the connection.  Only callbacks of the event loop, and eng_http_close, may call this. */
static void drop(struct eng_exchange *x)
{
    struct eng_http *h = x->http;
    if (x->state == ANSWER || x->state == STREAM)
        h->opt.on_gone(h->opt.arg, x);
    h->n_held -= x->n_held;
    h->n_unsent -= unsent(x);
    h->n_connection--;
    evbuffer_remove_cb(output(x), on_output, x);
    leave_body(x);
    free_request(x);
    if (x->due)
        forget_due(x);
    if ((*x->self = x->next))
        x->next->self = x->self;
    bufferevent_free(x->bev);
    kn_free(x);
    eng_http_retry(h);
    if (h->listener)
        listen_or_not(h);
}

/* ---- output ---------------------------------------------------------------------------------- */

/* While the unsent bytes of all connections exceed their limit, cuts the connection that has sent no byte for the longest
 * time; of several such connections the one with the most unsent bytes. */
static void limit_unsent(struct eng_http *h)
{
    while (h->n_unsent > h->opt.max_unsent_all) {
        struct eng_exchange *worst = NULL;
        for (struct eng_exchange *x = h->first; x; x = x->next) {
            if (unsent(x) == 0 || x->cut)
                continue;
            if (!worst || x->moved_ns < worst->moved_ns ||
                (x->moved_ns == worst->moved_ns && unsent(x) > unsent(worst)))
                worst = x;
        }
        if (!worst)
            return;
        cut(worst);
    }
}

/* Sends n pieces: to the socket, as far as it takes them and nothing is waiting before them. */
static void send_pieces(struct eng_exchange *x, struct iovec *v, int n)
{
    ssize_t sent = 0;
    if (x->cut)
        return;
    if (unsent(x) == 0) {
        sent = sendmsg(x->fd, &(struct msghdr){ .msg_iov = v, .msg_iovlen = (size_t)n }, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            shut_down(x); /* the client has closed the connection */
            return;
        }
    }
    size_t left = sent > 0 ? (size_t)sent : 0; /* of these pieces the bytes that are sent already */
    for (int i = 0; i < n; i++) {
        size_t skip = left < v[i].iov_len ? left : v[i].iov_len;
        left -= skip;
        if (skip < v[i].iov_len && evbuffer_add(output(x), (char *)v[i].iov_base + skip, v[i].iov_len - skip)) {
            cut(x);
            return;
        }
    }
    limit_unsent(x->http);
}

static struct iovec piece(const char *p, size_t n) { return (struct iovec){ (void *)(uintptr_t)p, n }; }

static void send_text(struct eng_exchange *x, const char *text)
{
    struct iovec v = piece(text, strlen(text));
    send_pieces(x, &v, 1);
}

/* The answer that needs no memory.  The connection must be cut then. */
static void send_no_memory(int fd)
{
    static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n"
                               "Connection: close\r\n\r\n";
    (void)!send(fd, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The room that a buffer of n bytes in room grows to for n_more bytes; most: its largest size, without the NUL. */
static size_t room_for(size_t room, size_t n, size_t n_more, size_t most)
{
    size_t needed = n + n_more + 1, wanted = needed > 2 * room ? needed : 2 * room;
    if (needed <= room)
        return room;
    wanted = wanted > FIRST_ROOM ? wanted : FIRST_ROOM;
    return wanted < most + 1 ? wanted : most + 1;
}

/* Appends bytes to *p, [*n], which grows to at most `most` bytes and a NUL. */
static bool append(char **p, size_t *n, size_t *room, const char *bytes, size_t n_bytes, size_t most)
{
    size_t wanted = room_for(*room, *n, n_bytes, most);
    if (wanted > *room) {
        char *grown = kn_realloc(*p, *room, wanted);
        if (!grown)
            return false;
        *p = grown;
        *room = wanted;
    }
    memcpy(*p + *n, bytes, n_bytes);
    *n += n_bytes;
    (*p)[*n] = 0;
    return true;
}

/* Answers a request that cannot be accepted, and closes the connection: its next bytes have no known meaning. */
static void refuse(struct eng_exchange *x, enum eng_http_fault fault)
{
    struct eng_http *h = x->http;
    leave_body(x);
    x->state = ANSWER;
    x->last = true;
    x->user = NULL;
    x->first_ns = 0;
    if (h->opt.on_fault)
        h->opt.on_fault(h->opt.arg, x, fault);
    else
        eng_http_answer_fault(x, fault);
}

static size_t held(const struct eng_exchange *x) { return x->room_head + x->room_body + evbuffer_get_length(input(x)); }

/* Refuses the largest request that is being received; its further bytes are dropped.  stalled: of the clients that
 * stopped sending a large body, and do not wait for memory.  False: there is none. */
static bool refuse_largest(struct eng_http *h, bool stalled)
{
    struct eng_exchange *most = NULL;
    for (struct eng_exchange *x = h->first; x; x = x->next) {
        if (x->cut || (x->state != HEAD && x->state != BODY) || unsent(x) > 0)
            continue;
        if (stalled && (x->waits || x->room_body <= FREE_ROOM ||
                        h->now_ns - x->got_ns <= STALLED * (uint64_t)tick_ms(h) * 1000000u))
            continue;
        if (!most || x->n_held > most->n_held)
            most = x;
    }
    if (!most)
        return false;
    h->n_cut++;
    refuse(most, ENG_HTTP_MEMORY);
    return true;
}

/* Counts the memory of requests of this connection.  Bodies wait for memory; heads, small bodies and bytes ahead do not, so
 * that the sum can exceed the limit of all: the largest request is refused then. */
static void count_held(struct eng_exchange *x)
{
    struct eng_http *h = x->http;
    size_t n = held(x);
    if (n < x->n_held)
        eng_http_retry(h);
    h->n_held = h->n_held - x->n_held + n;
    x->n_held = n;
    if (h->n_held > h->opt.max_received && !refuse_largest(h, false))
        cut(x);
}

/* Whether the body may take n_more bytes of memory now.  The first that may not becomes the favoured one. */
static bool may_take(struct eng_exchange *x, size_t n_more)
{
    struct eng_http *h = x->http;
    size_t all = h->opt.max_received, wanted = h->n_held - x->n_held + held(x) + n_more;
    if (wanted <= all / SHARED)
        return true;
    if (!h->favoured)
        h->favoured = x;
    return h->favoured == x && wanted <= all;
}

/* The head is whole. */
static enum eng_http_fault take_request(struct eng_exchange *x, bool more)
{
    struct eng_http *h = x->http;
    struct eng_http_head *r = kn_alloc(sizeof *r);
    if (!r)
        return ENG_HTTP_MEMORY;
    size_t most = h->opt.streams ? ENG_HTTP_BODY_BYTES : h->opt.max_body;
    enum eng_http_fault fault = eng_http_head_parse(r, x->head, x->n_head, most);
    if (fault) {
        kn_free(r);
        return fault;
    }
    x->request = r;
    x->n_most = h->opt.streams ? h->opt.streams(h->opt.arg, x) : 0;
    x->state = x->n_most ? STREAM : BODY;
    if (r->n_body > (x->n_most ? x->n_most : h->opt.max_body))
        return ENG_HTTP_BODY_LONG;
    if (!eng_host_names_has(h->names, r->host))
        return ENG_HTTP_HOST_FOREIGN;
    if (x->state == STREAM) {
        x->user = NULL;
        x->expects = r->expects_continue;
        return ENG_HTTP_OK;
    }
    if (r->expects_continue && !more && (r->chunked || r->n_body))
        send_text(x, "HTTP/1.1 100 Continue\r\n\r\n");
    return ENG_HTTP_OK;
}

static size_t take_head(struct eng_exchange *x, const char *p, size_t n, enum eng_http_fault *fault)
{
    size_t most = x->http->opt.max_header, taken = eng_http_scan(&x->scan, p, n, most, fault);
    if (!*fault && !append(&x->head, &x->n_head, &x->room_head, p, taken, most))
        *fault = ENG_HTTP_MEMORY;
    if (!*fault && x->scan.done)
        *fault = take_request(x, taken < evbuffer_get_length(input(x)));
    return taken;
}

static bool body_is_whole(const struct eng_exchange *x)
{
    return x->request->chunked ? x->chunks.done : x->n_body == x->request->n_body;
}

static size_t take_body(struct eng_exchange *x, const char *p, size_t n, enum eng_http_fault *fault)
{
    const struct eng_http_options *o = &x->http->opt;
    size_t most = x->request->chunked ? o->max_body : x->request->n_body, taken = 0;
    *fault = ENG_HTTP_OK;
    while (taken < n && !*fault && !body_is_whole(x)) {
        const char *data = p + taken;
        size_t n_data = n - taken < most - x->n_body ? n - taken : most - x->n_body;
        size_t room = room_for(x->room_body, x->n_body, n_data, most);
        if (room > x->room_body && room > FREE_ROOM && !may_take(x, room - x->room_body)) {
            set_waits(x, true);
            break;
        }
        if (x->request->chunked)
            taken += eng_http_chunks_take(&x->chunks, p + taken, n - taken, o->max_body, o->max_header, &data, &n_data,
                                          fault);
        else
            taken += n_data;
        if (!*fault && n_data && !append(&x->body, &x->n_body, &x->room_body, data, n_data, most))
            *fault = ENG_HTTP_MEMORY;
    }
    return taken;
}

/* Hands over the request, which is whole.  False: it waits until there is room for it. */
static bool hand_over(struct eng_exchange *x)
{
    struct eng_http *h = x->http;
    set_waits(x, h->opt.has_room && !h->opt.has_room(h->opt.arg, x->n_body));
    if (x->waits)
        return false;
    leave_body(x);
    x->state = ANSWER;
    x->user = NULL;
    x->first_ns = 0;
    h->opt.on_request(h->opt.arg, x);
    return true;
}

/* Takes some bytes of input, and hands over the request that they complete.  False: nothing can be done now. */
static bool step(struct eng_exchange *x)
{
    struct evbuffer_iovec v;
    enum eng_http_fault fault;
    if (x->cut || x->state == CLOSE || x->state == LINGER) {
        evbuffer_drain(input(x), evbuffer_get_length(input(x)));
        return false;
    }
    set_waits(x, false);
    if (x->state == ANSWER || unsent(x) > 0)
        return false;
    if (x->state == BODY && body_is_whole(x))
        return hand_over(x);
    if (x->state == STREAM) {
        x->http->opt.on_body(x->http->opt.arg, x);
        return x->state != STREAM;
    }
    if (evbuffer_get_length(input(x)) == 0 || evbuffer_peek(input(x), 1, NULL, &v, 1) < 1)
        return false;
    if (!x->first_ns) {
        x->first_ns = x->http->now_ns;
        x->turn = ++x->http->n_turn;
    }
    size_t n = x->state == HEAD ? take_head(x, v.iov_base, v.iov_len, &fault)
                                : take_body(x, v.iov_base, v.iov_len, &fault);
    evbuffer_drain(input(x), n);
    if (n > 0)
        x->got_ns = x->http->now_ns;
    if (fault)
        refuse(x, fault);
    else if (x->state == BODY && body_is_whole(x))
        return hand_over(x);
    return !x->waits;
}

/* Stops reading from the socket while the request waits, or while enough bytes are ahead.  (libevent's watermark for this
 * ends the program if it gets no memory.) */
static void pause_or_read(struct eng_exchange *x)
{
    bool pauses = x->waits || evbuffer_get_length(input(x)) >= MAX_AHEAD;
    if (pauses == x->paused)
        return;
    if (pauses ? bufferevent_disable(x->bev, EV_READ) : bufferevent_enable(x->bev, EV_READ))
        cut(x);
    x->paused = pauses;
}

/* Does all that the connection's bytes allow; x may be freed. */
static void go_on(struct eng_exchange *x)
{
    x->stepping = true;
    while (step(x))
        ;
    x->stepping = false;
    pause_or_read(x);
    count_held(x);
    if (x->cut || (unsent(x) > 0 && x->state != ANSWER))
        return;
    if (x->ended) {
        drop(x);
    } else if (x->state == CLOSE) {
        x->state = LINGER;
        x->closed_ns = x->http->now_ns;
        shutdown(x->fd, SHUT_WR);
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

static void on_bytes(struct bufferevent *bev, void *arg)
{
    (void)bev;
    go_on(arg);
}

/* The output buffer has become empty. */
static void on_sent(struct bufferevent *bev, void *arg)
{
    struct eng_exchange *x = arg;
    (void)bev;
    if (x->state == ANSWER && x->begun && !x->cut && x->http->opt.on_sent)
        x->http->opt.on_sent(x->http->opt.arg, x);
    else
        go_on(x);
}

/* Goes on with the connections that wait for memory, the oldest request first, until one must wait longer. */
static void go_on_waiting(struct eng_http *h)
{
    for (struct eng_exchange *oldest = NULL; h->n_waiting > 0; oldest = NULL) {
        for (struct eng_exchange *x = h->first; x; x = x->next)
            if (x->waits && (x == h->favoured || !oldest || (oldest != h->favoured && x->turn < oldest->turn)))
                oldest = x;
        int n = h->n_waiting;
        go_on(oldest);
        if (h->n_waiting >= n)
            return;
    }
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
    struct eng_http *h = arg;
    (void)fd, (void)what;
    for (struct eng_exchange *x; (x = h->due);) {
        forget_due(x);
        go_on(x);
    }
    go_on_waiting(h);
}

/* The end of the connection, or of the client's side.  While a request is being answered, a client that closes its side
 * counts as disconnected. */
static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct eng_exchange *x = arg;
    (void)bev;
    if (!(what & BEV_EVENT_EOF) || x->cut || x->state == ANSWER || x->state == STREAM) {
        if (!x->cut && x->state <= BODY && unsent(x) == 0) /* libevent had no memory for the bytes that came */
            send_no_memory(x->fd);
        drop(x);
        return;
    }
    x->ended = true;
    go_on(x);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *a, int n, void *arg)
{
    struct eng_http *h = arg;
    struct eng_exchange *x = kn_calloc(1, sizeof *x);
    int one = 1;
    struct bufferevent *bev = x ? bufferevent_socket_new(evconnlistener_get_base(listener), fd, BEV_OPT_CLOSE_ON_FREE)
                                : NULL;
    (void)n;
    if (!bev || !evbuffer_add_cb(bufferevent_get_output(bev), on_output, x)) {
        send_no_memory(fd);
        if (bev)
            bufferevent_free(bev);
        else
            close(fd);
        kn_free(x);
        return;
    }
    x->http = h;
    x->bev = bev;
    x->fd = fd;
    x->idle_ns = h->now_ns;
    x->self = &h->first;
    if ((x->next = h->first))
        x->next->self = &x->next;
    h->first = x;
    h->n_connection++;
    if (!inet_ntop(a->sa_family,
                   a->sa_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)(void *)a)->sin6_addr
                                            : (void *)&((struct sockaddr_in *)(void *)a)->sin_addr,
                   x->peer, sizeof x->peer))
        strcpy(x->peer, "?");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a token must not wait for the next */
    bufferevent_setcb(bev, on_bytes, on_sent, on_event, x);
    if (bufferevent_enable(bev, EV_READ | EV_WRITE))
        cut(x);
    listen_or_not(h);
}

/* The process has no file descriptor for a connection: accepts no more until the next tick. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    (void)arg;
    evconnlistener_disable(listener);
}

/* Whether a body waits for memory; one that is whole waits for has_room. */
static bool a_body_must_grow(const struct eng_http *h)
{
    for (const struct eng_exchange *x = h->n_waiting ? h->first : NULL; x; x = x->next)
        if (x->waits && !body_is_whole(x))
            return true;
    return false;
}

/* Whether the client of a connection from which nothing is read has left.  The event loop does not report it, since its end
 * stands behind the unread bytes; poll() does, unless the client's system still waits for room to send bytes before it. */
static bool has_left(const struct eng_exchange *x)
{
    struct pollfd p = { .fd = x->fd, .events = POLLRDHUP };
    return x->paused && poll(&p, 1, 0) > 0;
}

/* Applies the time limits; x may be freed. */
static void check_times(struct eng_exchange *x)
{
    struct eng_http *h = x->http;
    uint64_t now = h->now_ns, patience = (uint64_t)h->opt.patience_ms * 1000000u;
    if (x->cut || (x->state == LINGER && now - x->closed_ns > patience) || has_left(x)) {
        drop(x);
    } else if (unsent(x) > 0) {
        if (now - x->moved_ns > patience)
            cut(x);
    } else if (x->state == STREAM) {
        if (evbuffer_get_length(input(x)) == 0 && !body_is_whole(x) && now - x->got_ns > patience)
            cut(x);
    } else if (x->first_ns && now - x->first_ns > patience) {
        h->n_cut++;
        refuse(x, x->waits ? ENG_HTTP_MEMORY : ENG_HTTP_SLOW);
    } else if (x->state == HEAD && !x->first_ns && now - x->idle_ns > (uint64_t)h->opt.idle_ms * 1000000u) {
        cut(x);
    }
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct eng_http *h = arg;
    uint64_t real_ns = kn_now_ns(), most = LATE * (uint64_t)tick_ms(h) * 1000000u;
    h->now_ns += real_ns - h->ticked_ns < most ? real_ns - h->ticked_ns : most;
    h->ticked_ns = real_ns;
    (void)fd, (void)what;
    for (struct eng_exchange *x = h->first, *next; x; x = next) {
        next = x->next;
        check_times(x);
    }
    if (a_body_must_grow(h))
        (void)refuse_largest(h, true);
    eng_http_retry(h);
    listen_or_not(h);
}

/* ---- reading a request ----------------------------------------------------------------------- */

const char *eng_http_method(const struct eng_exchange *x) { return x->request ? x->request->method : "?"; }
const char *eng_http_path(const struct eng_exchange *x) { return x->request ? x->request->path : "?"; }
const char *eng_http_query(const struct eng_exchange *x) { return x->request ? x->request->query : ""; }
const char *eng_http_host(const struct eng_exchange *x)
{
    return x->request && x->request->host ? x->request->host : "";
}
const char *eng_http_peer(const struct eng_exchange *x) { return x->peer; }

const char *eng_http_header(const struct eng_exchange *x, const char *name)
{
    const struct eng_http_head *r = x->request;
    for (int i = 0; r && i < r->n_field; i++)
        if (!strcasecmp(r->field[i].name, name))
            return r->field[i].value;
    return NULL;
}

char *eng_http_body(struct eng_exchange *x, size_t *n, size_t *room)
{
    char *body = x->body;
    *n = x->n_body;
    *room = x->room_body;
    x->body = NULL;
    x->n_body = x->room_body = 0;
    if (!x->stepping)
        count_held(x);
    return body ? body : kn_calloc(1, 1);
}

size_t eng_http_read(struct eng_exchange *x, char *out, size_t room, enum eng_http_fault *fault)
{
    const struct eng_http_head *r = x->request;
    struct evbuffer_iovec v;
    size_t n = 0;
    *fault = ENG_HTTP_OK;
    if (x->expects && evbuffer_get_length(input(x)) == 0)
        send_text(x, "HTTP/1.1 100 Continue\r\n\r\n");
    x->expects = false;
    while (n < room && !*fault && !body_is_whole(x) && evbuffer_get_length(input(x)) > 0 &&
           evbuffer_peek(input(x), 1, NULL, &v, 1) == 1) {
        const char *data = v.iov_base;
        size_t taken = v.iov_len < room - n ? v.iov_len : room - n, n_data = taken;
        if (r->chunked)
            taken = eng_http_chunks_take(&x->chunks, data, taken, x->n_most, x->http->opt.max_header, &data, &n_data,
                                         fault);
        else
            taken = n_data = taken < r->n_body - x->n_body ? taken : r->n_body - x->n_body;
        n_data = *fault ? 0 : n_data;
        if (n_data)
            memcpy(out + n, data, n_data);
        n += n_data;
        x->n_body += n_data;
        x->got_ns = x->http->now_ns;
        evbuffer_drain(input(x), taken);
    }
    x->last = x->last || *fault;
    if (!x->stepping) {
        pause_or_read(x);
        count_held(x);
    }
    return n;
}

bool eng_http_has_ended(const struct eng_exchange *x) { return body_is_whole(x); }
size_t eng_http_body_bytes(const struct eng_exchange *x) { return x->request->n_body; }
void eng_http_set_user(struct eng_exchange *x, void *user) { x->user = user; }
void *eng_http_user(const struct eng_exchange *x) { return x->user; }

/* ---- answers --------------------------------------------------------------------------------- */

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } all[] = {
        { 200, "OK" },
        { 204, "No Content" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 408, "Request Timeout" },
        { 413, "Content Too Large" },
        { 414, "URI Too Long" },
        { 415, "Unsupported Media Type" },
        { 417, "Expectation Failed" },
        { 421, "Misdirected Request" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 503, "Service Unavailable" },
        { 505, "HTTP Version Not Supported" },
        { 507, "Insufficient Storage" },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].status == status)
            return all[i].text;
    return "";
}

static void add_date(struct eng_bytes *out)
{
    static const char day[][4] = { "Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat" };
    static const char month[][4] = {
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"
    };
    time_t now = time(NULL);
    struct tm t;
    if (gmtime_r(&now, &t))
        eng_bytes_format(out, "Date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n", day[t.tm_wday], t.tm_mday,
                         month[t.tm_mon], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

void eng_http_set_header(struct eng_exchange *x, const char *name, const char *value)
{
    eng_bytes_text(&x->set, name);
    eng_bytes_text(&x->set, ": ");
    eng_bytes_text(&x->set, value);
    eng_bytes_text(&x->set, "\r\n");
}

void eng_http_set_last(struct eng_exchange *x) { x->last = true; }

static bool is_head(const struct eng_exchange *x) { return !strcmp(eng_http_method(x), "HEAD"); }
static bool is_framed(const struct eng_exchange *x) { return x->request && !x->request->old; }

/* The answer's head, up to the headers that this file sets itself.  Sets x->last. */
static struct eng_bytes open_head(struct eng_exchange *x, int status, const char *type)
{
    struct eng_bytes out = { 0 };
    x->last = x->last || !x->request || !x->request->keep_alive || (x->state == STREAM && !body_is_whole(x));
    eng_bytes_format(&out, "HTTP/1.1 %d %s\r\n", status, reason(status));
    add_date(&out);
    if (type)
        eng_bytes_format(&out, "Content-Type: %s\r\n", type);
    eng_bytes_add(&out, x->set.data, x->set.n);
    if (x->last)
        eng_bytes_text(&out, "Connection: close\r\n");
    else if (x->request->old)
        eng_bytes_text(&out, "Connection: keep-alive\r\n");
    out.failed = out.failed || x->set.failed;
    return out;
}

/* Sends the head and the bytes that follow it; frees the head. */
static void send_head(struct eng_exchange *x, struct eng_bytes *head, const char *body, size_t n)
{
    struct iovec v[2] = { piece(head->data, head->n), piece(body, n) };
    if (head->failed) {
        if (!x->cut && unsent(x) == 0)
            send_no_memory(x->fd);
        cut(x);
    } else {
        send_pieces(x, v, n ? 2 : 1);
    }
    eng_bytes_free(head);
}

/* The answer is complete: the connection waits for its next request, which may already be in the input buffer.  That
 * request is handed over from the event loop, not from the function that completed this answer. */
static void finish(struct eng_exchange *x)
{
    bool last = x->last;
    free_request(x);
    x->state = last ? CLOSE : HEAD;
    x->idle_ns = x->http->now_ns;
    if (x->stepping)
        return;
    count_held(x);
    if (!x->due) {
        x->due = true;
        x->next_due = x->http->due;
        x->http->due = x;
    }
    event_active(x->http->resume, EV_TIMEOUT, 1);
}

void eng_http_answer(struct eng_exchange *x, int status, const char *type, const char *body, size_t n)
{
    struct eng_bytes head = open_head(x, status, type);
    if (status != 204 && status != 304) /* no body: its length would be that of another answer */
        eng_bytes_format(&head, "Content-Length: %zu\r\n", n);
    eng_bytes_text(&head, "\r\n");
    send_head(x, &head, body, is_head(x) ? 0 : n);
    finish(x);
}

void eng_http_answer_fault(struct eng_exchange *x, enum eng_http_fault fault)
{
    const char *text = eng_http_fault_text(fault);
    eng_http_answer(x, eng_http_fault_status(fault), "text/plain", text, strlen(text));
}

/* With HTTP/1.0 the end of the connection ends the answer. */
void eng_http_begin(struct eng_exchange *x, int status, const char *type)
{
    x->last = x->last || !is_framed(x);
    x->begun = true;
    struct eng_bytes head = open_head(x, status, type);
    eng_bytes_text(&head, is_framed(x) ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    send_head(x, &head, NULL, 0);
}

void eng_http_chunk(struct eng_exchange *x, const char *bytes, size_t n)
{
    char size[24];
    struct iovec v[3] = { piece(size, 0), piece(bytes, n), piece("\r\n", 2) };
    if (n == 0 || is_head(x))
        return;
    v[0].iov_len = (size_t)snprintf(size, sizeof size, "%zx\r\n", n);
    if (is_framed(x))
        send_pieces(x, v, 3);
    else
        send_pieces(x, v + 1, 1);
    if (unsent(x) > x->http->opt.max_unsent)
        cut(x);
}

void eng_http_end(struct eng_exchange *x, const char *bytes, size_t n)
{
    eng_http_chunk(x, bytes, n);
    if (is_framed(x) && !is_head(x))
        send_text(x, "0\r\n\r\n");
    finish(x);
}

bool eng_http_is_sent(const struct eng_exchange *x) { return unsent(x) == 0; }
void eng_http_cut(struct eng_exchange *x) { cut(x); }

/* ---- open and close -------------------------------------------------------------------------- */

static int open_events(struct eng_http *h, struct event_base *base, int fd)
{
    int ms = tick_ms(h);
    const struct timeval every = { ms / 1000, ms % 1000 * 1000 };
    h->listener = evconnlistener_new(base, on_accept, h, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (!h->listener) {
        close(fd);
        return kn_fail(KN_ENOMEM, "no memory for the server");
    }
    evconnlistener_set_error_cb(h->listener, on_accept_error);
    h->tick = event_new(base, -1, EV_PERSIST, on_tick, h);
    h->resume = event_new(base, -1, 0, on_resume, h);
    if (!h->resume || !h->tick || event_add(h->tick, &every))
        return kn_fail(KN_ENOMEM, "no memory for the server");
    return 0;
}

int eng_http_open(struct eng_http **out, struct event_base *base, const struct eng_http_options *opt)
{
    int fd = -1;
    struct eng_http *h = kn_calloc(1, sizeof *h);
    if (!h)
        return kn_fail(KN_ENOMEM, "no memory for the server");
    h->opt = *opt;
    if (h->opt.max_body > ENG_HTTP_BODY_BYTES)
        h->opt.max_body = ENG_HTTP_BODY_BYTES;
    h->now_ns = h->ticked_ns = kn_now_ns();
    int error = eng_host_names_open(&h->names, opt->host, opt->allowed_host);
    if (!error)
        error = eng_listen(opt->host, opt->port, &fd, &h->port, &h->loopback);
    if (!error)
        error = open_events(h, base, fd);
    if (error) {
        eng_http_close(h);
        return error;
    }
    *out = h;
    return 0;
}

void eng_http_close(struct eng_http *h)
{
    if (!h)
        return;
    if (h->listener)
        evconnlistener_free(h->listener);
    h->listener = NULL;
    if (h->tick)
        event_free(h->tick);
    if (h->resume)
        event_free(h->resume);
    h->resume = NULL;
    while (h->first)
        drop(h->first);
    eng_host_names_close(h->names);
    kn_free(h);
}

int eng_http_port(const struct eng_http *h) { return h->port; }
bool eng_http_is_loopback(const struct eng_http *h) { return h->loopback; }
int eng_http_connections(const struct eng_http *h) { return h->n_connection; }
uint64_t eng_http_n_cut(const struct eng_http *h) { return h->n_cut; }
size_t eng_http_unsent(const struct eng_http *h) { return h->n_unsent; }
