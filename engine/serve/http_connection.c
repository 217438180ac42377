/* engine/serve/http_connection.c - a connection's output and its end. */
#include "engine/serve/http_connection.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <string.h>
#include <sys/socket.h>

#define TICK_MS 100

struct evbuffer *eng_http_input(const struct eng_exchange *x) { return bufferevent_get_input(x->bev); }
struct evbuffer *eng_http_output(const struct eng_exchange *x) { return bufferevent_get_output(x->bev); }
size_t eng_http_to_send(const struct eng_exchange *x) { return evbuffer_get_length(eng_http_output(x)); }
int eng_http_tick_ms(const struct eng_http *h) { return h->opt.tick_ms ? h->opt.tick_ms : TICK_MS; }

/* ---- the end of a connection ----------------------------------------------------------------- */

void eng_http_on_output(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *arg)
{
    struct eng_exchange *x = arg;
    (void)buffer;
    x->http->n_unsent += info->n_added - info->n_deleted;
    if (info->n_deleted > 0 || info->orig_size == 0)
        x->moved_ns = x->http->now_ns;
}

void eng_http_listen_or_not(struct eng_http *h)
{
    if (h->n_connection < h->opt.max_connection)
        evconnlistener_enable(h->listener);
    else
        evconnlistener_disable(h->listener);
}

void eng_http_set_waits(struct eng_exchange *x, bool waits)
{
    x->http->n_waiting += waits - x->waits;
    x->waits = waits;
}

void eng_http_leave_body(struct eng_exchange *x)
{
    eng_http_set_waits(x, false);
    if (x->http->favoured == x)
        x->http->favoured = NULL;
}

void eng_http_retry(struct eng_http *h)
{
    if (h && h->n_waiting && h->resume)
        event_active(h->resume, EV_TIMEOUT, 1);
}

void eng_http_shut_down(struct eng_exchange *x)
{
    struct evbuffer *out = eng_http_output(x);
    if (x->cut)
        return;
    x->cut = true;
    eng_http_leave_body(x);
    shutdown(x->fd, SHUT_RDWR);
    evbuffer_unfreeze(out, 1);
    evbuffer_drain(out, evbuffer_get_length(out));
    evbuffer_freeze(out, 1);
    evbuffer_drain(eng_http_input(x), evbuffer_get_length(eng_http_input(x)));
}

/* Ends a connection that exceeds a limit. */
void eng_http_cut(struct eng_exchange *x)
{
    if (!x->cut)
        x->http->n_cut++;
    eng_http_shut_down(x);
}

void eng_http_free_request(struct eng_exchange *x)
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

void eng_http_forget_due(struct eng_exchange *x)
{
    struct eng_exchange **at = &x->http->due;
    while (*at && *at != x)
        at = &(*at)->next_due;
    if (*at)
        *at = x->next_due;
    x->due = false;
}

void eng_http_drop(struct eng_exchange *x)
{
    struct eng_http *h = x->http;
    if (x->state == ANSWER || x->state == STREAM)
        h->opt.on_gone(h->opt.arg, x);
    h->n_held -= x->n_held;
    h->n_unsent -= eng_http_to_send(x);
    h->n_connection--;
    evbuffer_remove_cb(eng_http_output(x), eng_http_on_output, x);
    eng_http_leave_body(x);
    eng_http_free_request(x);
    if (x->due)
        eng_http_forget_due(x);
    if ((*x->self = x->next))
        x->next->self = x->self;
    bufferevent_free(x->bev);
    kn_free(x);
    eng_http_retry(h);
    if (h->listener)
        eng_http_listen_or_not(h);
}

/* ---- output ---------------------------------------------------------------------------------- */

/* While the unsent bytes of all connections exceed their limit, cuts the connection that has sent no byte for the longest
 * time; of several such connections the one with the most unsent bytes. */
static void limit_unsent(struct eng_http *h)
{
    while (h->n_unsent > h->opt.max_unsent_all) {
        struct eng_exchange *worst = NULL;
        for (struct eng_exchange *x = h->first; x; x = x->next) {
            if (eng_http_to_send(x) == 0 || x->cut)
                continue;
            if (!worst || x->moved_ns < worst->moved_ns ||
                (x->moved_ns == worst->moved_ns && eng_http_to_send(x) > eng_http_to_send(worst)))
                worst = x;
        }
        if (!worst)
            return;
        eng_http_cut(worst);
    }
}

void eng_http_send(struct eng_exchange *x, struct iovec *v, int n)
{
    ssize_t sent = 0;
    if (x->cut)
        return;
    if (eng_http_to_send(x) == 0) {
        sent = sendmsg(x->fd, &(struct msghdr){ .msg_iov = v, .msg_iovlen = (size_t)n }, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            eng_http_shut_down(x); /* the client has closed the connection */
            return;
        }
    }
    size_t left = sent > 0 ? (size_t)sent : 0; /* of these pieces the bytes that are sent already */
    for (int i = 0; i < n; i++) {
        size_t skip = left < v[i].iov_len ? left : v[i].iov_len;
        left -= skip;
        if (skip < v[i].iov_len &&
            evbuffer_add(eng_http_output(x), (char *)v[i].iov_base + skip, v[i].iov_len - skip)) {
            eng_http_cut(x);
            return;
        }
    }
    limit_unsent(x->http);
}

struct iovec eng_http_piece(const char *p, size_t n) { return (struct iovec){ (void *)(uintptr_t)p, n }; }

void eng_http_send_text(struct eng_exchange *x, const char *text)
{
    struct iovec v = eng_http_piece(text, strlen(text));
    eng_http_send(x, &v, 1);
}

void eng_http_send_no_memory(int fd)
{
    static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n"
                               "Connection: close\r\n\r\n";
    (void)!send(fd, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool eng_http_is_sent(const struct eng_exchange *x) { return eng_http_to_send(x) == 0; }
