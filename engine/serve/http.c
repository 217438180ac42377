/* engine/serve/http.c - HTTP connections over libevent's evhttp.
 *
 * evhttp reports a connection only when its first request is complete, which a slow client may never reach.  So this
 * file creates each connection's bufferevent itself (on_accept), keeps a reference, counts the bytes of each request,
 * notes when output was last sent, and cuts a slow connection by shutting down its socket, which evhttp handles as a
 * disconnect.  When evhttp drops a connection that has no request, it does not report that, but its bufferevent has
 * no callbacks then: on_tick looks for such connections.
 *
 * While an answer is being made, reading stays enabled, so that a disconnect is noticed, but without evhttp's read
 * callback, which aborts the program when bytes arrive in that state. */
#include "engine/serve/http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICK_MS     100
#define LATE        10 /* ticks by which now_ns advances at once, at most: a stop of the process times no client out */
#define BACKLOG     1024
#define HARD_HEADER 8     /* evhttp itself refuses headers of more than this times max_header */
#define HARD_BODY   2     /* the same for a body and max_body */
#define MAX_AHEAD   65536 /* bytes of the next requests that are read while one is answered */

struct eng_exchange { /* a connection */
    struct eng_http *http;
    struct eng_exchange *next, **self;
    struct eng_exchange *next_own; /* in the list eng_http.own */
    struct bufferevent *bev;       /* holds a reference */
    struct evhttp_connection *con; /* NULL until the first request */
    struct evhttp_request *req;    /* the request being answered, or NULL */
    void *user;
    bool streaming, cut;        /* eng_http_begin was called; the socket is shut down */
    bool blocked;               /* socket buffer full: the event loop sends the rest */
    int fd;                     /* -1 until the first byte */
    size_t n_received, n_held;  /* bytes of the incoming request; of these, in memory */
    uint64_t first_ns;          /* time of the incoming request's first byte; 0: none yet */
    uint64_t idle_ns, moved_ns; /* idle since; last time that output was sent, or begun */
};

struct eng_http {
    struct eng_http_options opt;
    struct evhttp *evhttp;
    struct evconnlistener *listener;
    struct event *tick, *reword;
    struct eng_exchange *first, *own; /* own: list of answers by evhttp itself, to be reworded */
    struct eng_exchange **by_fd;      /* [n_fd] by socket; or NULL */
    int n_fd, n_connection, port;
    bool loopback;
    bool speaking; /* output added now is from this file, not from evhttp */
    size_t n_held; /* sum over all connections */
    uint64_t n_cut;
    uint64_t now_ns, ticked_ns; /* clock for timeouts (see LATE); real time of the last tick */
};

/* ---- connections ----------------------------------------------------------------------------- */

static void listen_or_not(struct eng_http *h)
{
    if (!h->listener)
        return;
    if (h->n_connection < h->opt.max_connection)
        evconnlistener_enable(h->listener);
    else
        evconnlistener_disable(h->listener);
}

/* Shuts down the socket; evhttp then reads the end of the stream and drops the connection. */
static void cut(struct eng_exchange *x)
{
    if (x->cut)
        return;
    x->cut = true;
    x->http->n_cut++;
    shutdown(bufferevent_getfd(x->bev), SHUT_RDWR);
}

static void forget_received(struct eng_exchange *x)
{
    x->http->n_held -= x->n_held;
    x->n_received = x->n_held = 0;
    x->first_ns = 0;
}

/* Cuts the connection with the largest incoming request in memory. */
static void make_room(struct eng_http *h)
{
    struct eng_exchange *most = h->first;
    for (struct eng_exchange *x = h->first; x; x = x->next)
        if (x->n_held > most->n_held)
            most = x;
    cut(most);
    forget_received(most);
}

static bool know_fd(struct eng_exchange *x)
{
    struct eng_http *h = x->http;
    int fd = bufferevent_getfd(x->bev), one = 1;
    if (fd < 0)
        return false;
    if (fd >= h->n_fd) {
        int n = fd + 64;
        struct eng_exchange **grown = kn_realloc(h->by_fd, (size_t)h->n_fd * sizeof(struct eng_exchange *),
                                                 (size_t)n * sizeof(struct eng_exchange *));
        if (!grown)
            return false;
        memset(grown + h->n_fd, 0, (size_t)(n - h->n_fd) * sizeof(struct eng_exchange *));
        h->by_fd = grown;
        h->n_fd = n;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a token must not wait for the next */
    h->by_fd[fd] = x;
    x->fd = fd;
    return true;
}

static void on_in(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *arg)
{
    struct eng_exchange *x = arg;
    struct eng_http *h = x->http;
    (void)buffer;
    if (info->n_added == 0 || x->req || x->cut)
        return;
    if (x->fd < 0 && !know_fd(x)) {
        cut(x);
        return;
    }
    if (!x->first_ns)
        x->first_ns = x->http->now_ns;
    x->n_received += info->n_added;
    h->n_held -= x->n_held; /* evhttp discards the bytes of a request beyond its own limits */
    x->n_held = x->n_received > HARD_BODY * h->opt.max_body + HARD_HEADER * h->opt.max_header ? 0 : x->n_received;
    h->n_held += x->n_held;
    if (h->n_held > h->opt.max_received)
        make_room(h);
}

static void on_out(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *arg)
{
    struct eng_exchange *x = arg;
    (void)buffer;
    if (info->n_deleted > 0 || info->orig_size == 0)
        x->moved_ns = x->http->now_ns;
    if (info->n_added > 0 && info->orig_size == 0 && !x->req && !x->http->speaking && x->http->opt.words) {
        x->next_own = x->http->own; /* evhttp adds the first bytes of an answer: its status line */
        x->http->own = x;
        event_active(x->http->reword, EV_TIMEOUT, 1);
    }
}

/* ---- answers by evhttp itself: to invalid or oversized requests ------------------------------ */

/* Replaces the HTML answer that evhttp has put into the output buffer, of which no byte is sent yet, by JSON. */
static void reword(struct eng_exchange *x)
{
    struct evbuffer *out = bufferevent_get_output(x->bev);
    char line[64] = "";
    int status = 0;
    size_t n;
    (void)evbuffer_copyout(out, line, sizeof line - 1);
    line[strcspn(line, "\r\n")] = 0;
    if (sscanf(line, "HTTP/1.%*d %d", &status) != 1 || status < 400)
        return; /* "100 Continue" */
    char *body = x->http->opt.words(x->http->opt.arg, status, &n);
    if (!body)
        return;
    evbuffer_unfreeze(out, 1);
    evbuffer_drain(out, evbuffer_get_length(out));
    evbuffer_freeze(out, 1);
    evbuffer_add_printf(out,
                        "%s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                        "Connection: close\r\n\r\n",
                        line, n);
    evbuffer_add(out, body, n);
    kn_free(body);
}

static void on_reword(evutil_socket_t fd, short what, void *arg)
{
    struct eng_http *h = arg;
    (void)fd, (void)what;
    h->speaking = true;
    for (; h->own; h->own = h->own->next_own)
        reword(h->own);
    h->speaking = false;
}

static void forget_own(struct eng_exchange *x)
{
    struct eng_exchange **at = &x->http->own;
    while (*at && *at != x)
        at = &(*at)->next_own;
    if (*at)
        *at = x->next_own;
}

static struct bufferevent *on_accept(struct event_base *base, void *arg)
{
    struct eng_http *h = arg;
    struct eng_exchange *x = kn_calloc(1, sizeof *x);
    struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (!x || !bev || !evbuffer_add_cb(bufferevent_get_input(bev), on_in, x) ||
        !evbuffer_add_cb(bufferevent_get_output(bev), on_out, x)) {
        kn_free(x); /* evhttp then makes its own bufferevent; on_request answers 503 */
        if (bev)
            bufferevent_free(bev);
        return NULL;
    }
    bufferevent_incref(bev);
    *x = (struct eng_exchange){ .http = h, .bev = bev, .fd = -1, .idle_ns = h->now_ns };
    x->self = &h->first;
    if ((x->next = h->first))
        x->next->self = &x->next;
    h->first = x;
    h->n_connection++;
    listen_or_not(h);
    return bev;
}

static void drop(struct eng_exchange *x)
{
    struct eng_http *h = x->http;
    forget_received(x);
    forget_own(x);
    evbuffer_remove_cb(bufferevent_get_input(x->bev), on_in, x);
    evbuffer_remove_cb(bufferevent_get_output(x->bev), on_out, x);
    if (x->fd >= 0 && h->by_fd[x->fd] == x)
        h->by_fd[x->fd] = NULL;
    if ((*x->self = x->next))
        x->next->self = x->self;
    h->n_connection--;
    listen_or_not(h);
    bufferevent_decref(x->bev);
    kn_free(x);
}

static void on_close(struct evhttp_connection *con, void *arg)
{
    struct eng_exchange *x = arg;
    struct evhttp_request *req = x->req;
    (void)con;
    if (req) {
        x->http->opt.on_gone(x->http->opt.arg, x);
        if (!evhttp_request_get_connection(req))
            evhttp_request_free(req); /* else it is freed with its connection */
    }
    drop(x);
}

static int tick_ms(const struct eng_http *h) { return h->opt.tick_ms ? h->opt.tick_ms : TICK_MS; }

static bool evhttp_let_go(const struct eng_exchange *x)
{
    bufferevent_data_cb in, out;
    bufferevent_event_cb other;
    void *arg;
    bufferevent_getcb(x->bev, &in, &out, &other, &arg);
    return !in && !out && !other;
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct eng_http *h = arg;
    uint64_t real_ns = kn_now_ns(), most = LATE * (uint64_t)tick_ms(h) * 1000000u;
    h->now_ns += real_ns - h->ticked_ns < most ? real_ns - h->ticked_ns : most;
    h->ticked_ns = real_ns;
    uint64_t now = h->now_ns;
    uint64_t patience = (uint64_t)h->opt.patience_ms * 1000000u, idle = (uint64_t)h->opt.idle_ms * 1000000u;
    (void)fd, (void)what;
    for (struct eng_exchange *x = h->first, *next; x; x = next) {
        next = x->next;
        if (evhttp_let_go(x)) {
            drop(x);
            continue;
        }
        bool unsent = evbuffer_get_length(bufferevent_get_output(x->bev)) > 0;
        if (unsent ? now - x->moved_ns > patience
                   : !x->req && (x->first_ns ? now - x->first_ns > patience : now - x->idle_ns > idle))
            cut(x);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

static void on_request(struct evhttp_request *req, void *arg)
{
    struct eng_http *h = arg;
    struct evhttp_connection *con = evhttp_request_get_connection(req);
    struct bufferevent *bev = evhttp_connection_get_bufferevent(con);
    int fd = bufferevent_getfd(bev);
    struct eng_exchange *x = fd >= 0 && fd < h->n_fd ? h->by_fd[fd] : NULL;
    bufferevent_data_cb in, out;
    bufferevent_event_cb other;
    void *other_arg;
    if (!x || x->bev != bev) { /* on_accept or know_fd had no memory for the exchange */
        evhttp_send_error(req, HTTP_SERVUNAVAIL, NULL);
        return;
    }
    x->req = req;
    x->con = con;
    x->user = NULL;
    x->streaming = x->blocked = false;
    forget_received(x);
    evhttp_connection_set_closecb(con, on_close, x);
    bufferevent_getcb(bev, &in, &out, &other, &other_arg);
    bufferevent_setcb(bev, NULL, out, other, other_arg);
    bufferevent_setwatermark(bev, EV_READ, 0, MAX_AHEAD);
    bufferevent_enable(bev, EV_READ);
    h->opt.on_request(h->opt.arg, x);
}

const char *eng_http_method(const struct eng_exchange *x)
{
    switch (evhttp_request_get_command(x->req)) {
    case EVHTTP_REQ_GET:
        return "GET";
    case EVHTTP_REQ_POST:
        return "POST";
    case EVHTTP_REQ_HEAD:
        return "HEAD";
    case EVHTTP_REQ_PUT:
        return "PUT";
    case EVHTTP_REQ_DELETE:
        return "DELETE";
    case EVHTTP_REQ_OPTIONS:
        return "OPTIONS";
    case EVHTTP_REQ_TRACE:
        return "TRACE";
    case EVHTTP_REQ_CONNECT:
        return "CONNECT";
    case EVHTTP_REQ_PATCH:
        return "PATCH";
    }
    return "?";
}

const char *eng_http_path(const struct eng_exchange *x)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(x->req);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    return path && path[0] ? path : "/";
}

const char *eng_http_header(const struct eng_exchange *x, const char *name)
{
    return evhttp_find_header(evhttp_request_get_input_headers(x->req), name);
}

const char *eng_http_peer(const struct eng_exchange *x)
{
    char *address = NULL;
    ev_uint16_t port;
    evhttp_connection_get_peer(x->con, &address, &port);
    return address ? address : "?";
}

bool eng_http_headers_too_long(const struct eng_exchange *x)
{
    const char *uri = evhttp_request_get_uri(x->req);
    size_t n = uri ? strlen(uri) : 0;
    const struct evkeyvalq *all = evhttp_request_get_input_headers(x->req);
    for (const struct evkeyval *h = all->tqh_first; h; h = h->next.tqe_next)
        n += strlen(h->key) + strlen(h->value) + 4;
    return n > x->http->opt.max_header;
}

bool eng_http_body_too_long(const struct eng_exchange *x)
{
    return evbuffer_get_length(evhttp_request_get_input_buffer(x->req)) > x->http->opt.max_body;
}

char *eng_http_body(const struct eng_exchange *x, size_t *n)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(x->req);
    size_t bytes = evbuffer_get_length(in);
    char *copy = kn_alloc(bytes + 1);
    if (!copy)
        return NULL;
    evbuffer_copyout(in, copy, bytes);
    copy[bytes] = 0;
    *n = bytes;
    return copy;
}

void eng_http_set_user(struct eng_exchange *x, void *user) { x->user = user; }
void *eng_http_user(const struct eng_exchange *x) { return x->user; }

/* ---- answers --------------------------------------------------------------------------------- */

/* Reason phrases that evhttp lacks. */
static const char *reason(int status)
{
    return status == 429 ? "Too Many Requests" : status == 431 ? "Request Header Fields Too Large" : NULL;
}

void eng_http_set_header(struct eng_exchange *x, const char *name, const char *value)
{
    (void)evhttp_add_header(evhttp_request_get_output_headers(x->req), name, value);
}

/* Makes the connection wait for the next request, which may already be buffered, and returns the answered request.  The
 * caller then sends the end of the answer and sets h->speaking meanwhile; x may be freed during this. */
static struct evhttp_request *done(struct eng_exchange *x)
{
    struct evhttp_request *req = x->req;
    uint64_t now = x->http->now_ns;
    x->req = NULL;
    x->idle_ns = now;
    if (evbuffer_get_length(bufferevent_get_input(x->bev)) > 0)
        x->first_ns = now;
    bufferevent_setwatermark(x->bev, EV_READ, 0, 0);
    return req;
}

void eng_http_answer(struct eng_exchange *x, int status, const char *type, const char *body, size_t n)
{
    struct eng_http *h = x->http;
    struct evbuffer *b = evbuffer_new();
    bool head = evhttp_request_get_command(x->req) == EVHTTP_REQ_HEAD;
    if (type)
        eng_http_set_header(x, "Content-Type", type);
    if (head) { /* evhttp would send a body, which the client takes for the next answer, and would not give its length */
        char length[24];
        snprintf(length, sizeof length, "%zu", n);
        eng_http_set_header(x, "Content-Length", length);
    }
    if (!b || (!head && evbuffer_add(b, body, n))) {
        eng_http_set_header(x, "Connection", "close");
        status = 500;
    }
    h->speaking = true;
    evhttp_send_reply(done(x), status, reason(status), b);
    h->speaking = false;
    if (b)
        evbuffer_free(b);
}

void eng_http_begin(struct eng_exchange *x, int status, const char *type)
{
    eng_http_set_header(x, "Content-Type", type);
    evhttp_send_reply_start(x->req, status, reason(status));
    x->streaming = true;
}

/* Adds a chunk with evhttp's framing to the output buffer. */
static bool add_chunk(struct eng_exchange *x, const char *bytes, size_t n)
{
    struct evbuffer *out = bufferevent_get_output(x->bev);
    bool framed = x->req->chunked;
    if (n == 0 || evhttp_request_get_command(x->req) == EVHTTP_REQ_HEAD)
        return true;
    return (!framed || evbuffer_add_printf(out, "%zx\r\n", n) > 0) && evbuffer_add(out, bytes, n) == 0 &&
           (!framed || evbuffer_add(out, "\r\n", 2) == 0);
}

/* Writes the output buffer to the socket at once, with one system call; through the event loop a token would cost
 * another iteration and three system calls.  Errors are ignored here: evhttp gets them again and handles them. */
static void send_now(struct eng_exchange *x)
{
    struct evbuffer *out = bufferevent_get_output(x->bev);
    evbuffer_unfreeze(out, 1);
    (void)evbuffer_write(out, x->fd);
    evbuffer_freeze(out, 1);
    x->blocked = evbuffer_get_length(out) > 0;
    if (x->blocked)
        bufferevent_enable(x->bev, EV_WRITE);
}

void eng_http_chunk(struct eng_exchange *x, const char *bytes, size_t n)
{
    struct evbuffer *out = bufferevent_get_output(x->bev);
    if (x->cut)
        return;
    x->blocked = x->blocked && evbuffer_get_length(out) > 0;
    if (!x->blocked)
        bufferevent_disable(x->bev, EV_WRITE); /* no write event for the added bytes: send_now writes them */
    if (!add_chunk(x, bytes, n))
        cut(x);
    else if (!x->blocked)
        send_now(x);
    if (evbuffer_get_length(out) > x->http->opt.max_unsent)
        cut(x);
}

/* Sends the last chunk together with the end of the chunked body. */
void eng_http_end(struct eng_exchange *x, const char *bytes, size_t n)
{
    struct eng_http *h = x->http;
    /* the end is written by evhttp, not by send_now; for HTTP/1.0 evhttp does not enable writing itself */
    bufferevent_enable(x->bev, EV_WRITE);
    if (!x->cut && !add_chunk(x, bytes, n))
        cut(x);
    h->speaking = true;
    evhttp_send_reply_end(done(x));
    h->speaking = false;
}

/* ---- open and close -------------------------------------------------------------------------- */

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static int try_listen(const struct addrinfo *a)
{
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Listens on the first address of the host that works. */
static int open_socket(struct eng_http *h, int *out)
{
    char port[16];
    struct sockaddr_storage mine;
    socklen_t n = sizeof mine;
    struct addrinfo *all, hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
    snprintf(port, sizeof port, "%d", h->opt.port);
    int error = getaddrinfo(h->opt.host, port, &hints, &all), fd = -1;
    if (error)
        return kn_fail(KN_EINVAL, "--host %s: %s", h->opt.host, gai_strerror(error));
    for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next)
        fd = try_listen(a);
    error = errno;
    freeaddrinfo(all);
    if (fd < 0)
        return kn_fail(KN_EINVAL, "cannot listen on %s, port %d: %s: choose another %s", h->opt.host, h->opt.port,
                       strerror(error),
                       error == EADDRNOTAVAIL ? "host: an address of this machine"
                       : error == EACCES      ? "port: 1024 or above, or run as a user that may bind it"
                                              : "port, or stop the process that uses it");
    if (getsockname(fd, (struct sockaddr *)&mine, &n) == 0) {
        h->loopback = is_loopback((const struct sockaddr *)&mine);
        h->port = ntohs(mine.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&mine)->sin6_port
                                                   : ((struct sockaddr_in *)(void *)&mine)->sin_port);
    }
    *out = fd;
    return 0;
}

static int open_evhttp(struct eng_http *h, struct event_base *base, int fd)
{
    int ms = tick_ms(h);
    const struct timeval every = { ms / 1000, ms % 1000 * 1000 };
    struct evhttp_bound_socket *bound = NULL;
    if ((h->evhttp = evhttp_new(base))) {
        evhttp_set_bevcb(h->evhttp, on_accept, h);
        evhttp_set_gencb(h->evhttp, on_request, h);
        evhttp_set_max_headers_size(h->evhttp, (ev_ssize_t)(HARD_HEADER * h->opt.max_header));
        evhttp_set_max_body_size(h->evhttp, (ev_ssize_t)(HARD_BODY * h->opt.max_body));
        evhttp_set_flags(h->evhttp, EVHTTP_SERVER_LINGERING_CLOSE);
        evhttp_set_allowed_methods(h->evhttp, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT |
                                                  EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE |
                                                  EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH);
        bound = evhttp_accept_socket_with_handle(h->evhttp, fd);
    }
    if (!bound) {
        close(fd);
        return kn_fail(KN_ENOMEM, "no memory for the server");
    }
    h->listener = evhttp_bound_socket_get_listener(bound);
    h->tick = event_new(base, -1, EV_PERSIST, on_tick, h);
    h->reword = event_new(base, -1, 0, on_reword, h);
    if (!h->reword || !h->tick || event_add(h->tick, &every))
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
    h->now_ns = h->ticked_ns = kn_now_ns();
    int error = open_socket(h, &fd);
    if (!error)
        error = open_evhttp(h, base, fd);
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
    h->listener = NULL; /* owned by evhttp, which frees it before the connections */
    if (h->tick)
        event_free(h->tick);
    if (h->reword)
        event_free(h->reword);
    if (h->evhttp)
        evhttp_free(h->evhttp); /* calls on_close for connections with a request */
    while (h->first)
        drop(h->first);
    kn_free(h->by_fd);
    kn_free(h);
}

int eng_http_port(const struct eng_http *h) { return h->port; }
bool eng_http_is_loopback(const struct eng_http *h) { return h->loopback; }
int eng_http_connections(const struct eng_http *h) { return h->n_connection; }
uint64_t eng_http_n_cut(const struct eng_http *h) { return h->n_cut; }

bool eng_http_all_sent(const struct eng_http *h)
{
    for (const struct eng_exchange *x = h->first; x; x = x->next)
        if (evbuffer_get_length(bufferevent_get_output(x->bev)) > 0)
            return false;
    return true;
}
