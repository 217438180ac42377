/* engine/serve/http.c - accepts connections, passes their events on, and applies the time limits. */
#include "engine/serve/http.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/serve/host_names.h"
#include "engine/serve/http_connection.h"
#include "engine/serve/listen.h"

#define LATE 10 /* ticks by which now_ns advances at once, at most: a stop of the process times no client out */

static void on_bytes(struct bufferevent *bev, void *arg)
{
    (void)bev;
    eng_http_go_on(arg);
}

/* The output buffer has become empty. */
static void on_sent(struct bufferevent *bev, void *arg)
{
    struct eng_exchange *x = arg;
    (void)bev;
    if (x->state == ANSWER && x->begun && !x->cut && x->http->opt.on_sent)
        x->http->opt.on_sent(x->http->opt.arg, x);
    else
        eng_http_go_on(x);
}

/* Goes on with the connections that wait for memory, the oldest request first, until one must wait longer. */
static void go_on_waiting(struct eng_http *h)
{
    for (struct eng_exchange *oldest = NULL; h->n_waiting > 0; oldest = NULL) {
        for (struct eng_exchange *x = h->first; x; x = x->next)
            if (x->waits && (x == h->favoured || !oldest || (oldest != h->favoured && x->turn < oldest->turn)))
                oldest = x;
        int n = h->n_waiting;
        eng_http_go_on(oldest);
        if (h->n_waiting >= n)
            return;
    }
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
    struct eng_http *h = arg;
    (void)fd, (void)what;
    for (struct eng_exchange *x; (x = h->due);) {
        eng_http_forget_due(x);
        eng_http_go_on(x);
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
        if (!x->cut && x->state <= BODY &&
            eng_http_to_send(x) == 0) /* libevent had no memory for the bytes that came */
            eng_http_send_no_memory(x->fd);
        eng_http_drop(x);
        return;
    }
    x->ended = true;
    eng_http_go_on(x);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *a, int n, void *arg)
{
    struct eng_http *h = arg;
    struct eng_exchange *x = kn_calloc(1, sizeof *x);
    int one = 1;
    struct bufferevent *bev = x ? bufferevent_socket_new(evconnlistener_get_base(listener), fd, BEV_OPT_CLOSE_ON_FREE)
                                : NULL;
    (void)n;
    if (!bev || !evbuffer_add_cb(bufferevent_get_output(bev), eng_http_on_output, x)) {
        eng_http_send_no_memory(fd);
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
        eng_http_cut(x);
    eng_http_listen_or_not(h);
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
        if (x->waits && !eng_http_has_ended(x))
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
        eng_http_drop(x);
    } else if (eng_http_to_send(x) > 0) {
        if (now - x->moved_ns > patience)
            eng_http_cut(x);
    } else if (x->state == STREAM) {
        if (evbuffer_get_length(eng_http_input(x)) == 0 && !eng_http_has_ended(x) && now - x->got_ns > patience)
            eng_http_cut(x);
    } else if (x->first_ns && now - x->first_ns > patience) {
        h->n_cut++;
        eng_http_refuse(x, x->waits ? ENG_HTTP_MEMORY : ENG_HTTP_SLOW);
    } else if (x->state == HEAD && !x->first_ns && now - x->idle_ns > (uint64_t)h->opt.idle_ms * 1000000u) {
        eng_http_cut(x);
    }
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct eng_http *h = arg;
    uint64_t real_ns = kn_now_ns(), most = LATE * (uint64_t)eng_http_tick_ms(h) * 1000000u;
    h->now_ns += real_ns - h->ticked_ns < most ? real_ns - h->ticked_ns : most;
    h->ticked_ns = real_ns;
    (void)fd, (void)what;
    for (struct eng_exchange *x = h->first, *next; x; x = next) {
        next = x->next;
        check_times(x);
    }
    if (a_body_must_grow(h))
        (void)eng_http_refuse_largest(h, true);
    eng_http_retry(h);
    eng_http_listen_or_not(h);
}

/* ---- open and close -------------------------------------------------------------------------- */

static int open_events(struct eng_http *h, struct event_base *base, int fd)
{
    int ms = eng_http_tick_ms(h);
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
        eng_http_drop(h->first);
    eng_host_names_close(h->names);
    kn_free(h);
}

int eng_http_port(const struct eng_http *h) { return h->port; }
bool eng_http_is_loopback(const struct eng_http *h) { return h->loopback; }
int eng_http_connections(const struct eng_http *h) { return h->n_connection; }
uint64_t eng_http_n_cut(const struct eng_http *h) { return h->n_cut; }
size_t eng_http_unsent(const struct eng_http *h) { return h->n_unsent; }
