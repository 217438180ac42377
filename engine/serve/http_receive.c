/* engine/serve/http_receive.c - requests: bytes to heads and bodies, and the memory that they may take. */
#include "engine/serve/http_connection.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "engine/serve/host_names.h"

#define MAX_AHEAD  65536 /* bytes that are read before they are needed, such as those of the next request */
#define FIRST_ROOM 1024  /* first size of the buffers for a head and a body */
#define FREE_ROOM  65536 /* bytes of a body that need not wait for memory */
#define SHARED     2     /* 1 / SHARED of max_received is for all bodies; the rest for the favoured and small ones */
#define STALLED    10    /* ticks without a byte: a client that stopped sending */

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

void eng_http_refuse(struct eng_exchange *x, enum eng_http_fault fault)
{
    struct eng_http *h = x->http;
    eng_http_leave_body(x);
    x->state = ANSWER;
    x->last = true;
    x->user = NULL;
    x->first_ns = 0;
    if (h->opt.on_fault)
        h->opt.on_fault(h->opt.arg, x, fault);
    else
        eng_http_answer_fault(x, fault);
}

static size_t held(const struct eng_exchange *x)
{
    return x->room_head + x->room_body + evbuffer_get_length(eng_http_input(x));
}

bool eng_http_refuse_largest(struct eng_http *h, bool stalled)
{
    struct eng_exchange *most = NULL;
    for (struct eng_exchange *x = h->first; x; x = x->next) {
        if (x->cut || (x->state != HEAD && x->state != BODY) || eng_http_to_send(x) > 0)
            continue;
        if (stalled && (x->waits || x->room_body <= FREE_ROOM ||
                        h->now_ns - x->got_ns <= STALLED * (uint64_t)eng_http_tick_ms(h) * 1000000u))
            continue;
        if (!most || x->n_held > most->n_held)
            most = x;
    }
    if (!most)
        return false;
    h->n_cut++;
    eng_http_refuse(most, ENG_HTTP_MEMORY);
    return true;
}

void eng_http_count_held(struct eng_exchange *x)
{
    struct eng_http *h = x->http;
    size_t n = held(x);
    if (n < x->n_held)
        eng_http_retry(h);
    h->n_held = h->n_held - x->n_held + n;
    x->n_held = n;
    if (h->n_held > h->opt.max_received && !eng_http_refuse_largest(h, false))
        eng_http_cut(x);
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
        eng_http_send_text(x, "HTTP/1.1 100 Continue\r\n\r\n");
    return ENG_HTTP_OK;
}

static size_t take_head(struct eng_exchange *x, const char *p, size_t n, enum eng_http_fault *fault)
{
    size_t most = x->http->opt.max_header, taken = eng_http_scan(&x->scan, p, n, most, fault);
    if (!*fault && !append(&x->head, &x->n_head, &x->room_head, p, taken, most))
        *fault = ENG_HTTP_MEMORY;
    if (!*fault && x->scan.done)
        *fault = take_request(x, taken < evbuffer_get_length(eng_http_input(x)));
    return taken;
}

bool eng_http_has_ended(const struct eng_exchange *x)
{
    return x->request->chunked ? x->chunks.done : x->n_body == x->request->n_body;
}

static size_t take_body(struct eng_exchange *x, const char *p, size_t n, enum eng_http_fault *fault)
{
    const struct eng_http_options *o = &x->http->opt;
    size_t most = x->request->chunked ? o->max_body : x->request->n_body, taken = 0;
    *fault = ENG_HTTP_OK;
    while (taken < n && !*fault && !eng_http_has_ended(x)) {
        const char *data = p + taken;
        size_t n_data = n - taken < most - x->n_body ? n - taken : most - x->n_body;
        size_t room = room_for(x->room_body, x->n_body, n_data, most);
        if (room > x->room_body && room > FREE_ROOM && !may_take(x, room - x->room_body)) {
            eng_http_set_waits(x, true);
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
    eng_http_set_waits(x, h->opt.has_room && !h->opt.has_room(h->opt.arg, x->n_body));
    if (x->waits)
        return false;
    eng_http_leave_body(x);
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
        evbuffer_drain(eng_http_input(x), evbuffer_get_length(eng_http_input(x)));
        return false;
    }
    eng_http_set_waits(x, false);
    if (x->state == ANSWER || eng_http_to_send(x) > 0)
        return false;
    if (x->state == BODY && eng_http_has_ended(x))
        return hand_over(x);
    if (x->state == STREAM) {
        x->http->opt.on_body(x->http->opt.arg, x);
        return x->state != STREAM;
    }
    if (evbuffer_get_length(eng_http_input(x)) == 0 || evbuffer_peek(eng_http_input(x), 1, NULL, &v, 1) < 1)
        return false;
    if (!x->first_ns) {
        x->first_ns = x->http->now_ns;
        x->turn = ++x->http->n_turn;
    }
    size_t n = x->state == HEAD ? take_head(x, v.iov_base, v.iov_len, &fault)
                                : take_body(x, v.iov_base, v.iov_len, &fault);
    evbuffer_drain(eng_http_input(x), n);
    if (n > 0)
        x->got_ns = x->http->now_ns;
    if (fault)
        eng_http_refuse(x, fault);
    else if (x->state == BODY && eng_http_has_ended(x))
        return hand_over(x);
    return !x->waits;
}

/* Stops reading from the socket while the request waits, or while enough bytes are ahead.  (libevent's watermark for this
 * ends the program if it gets no memory.) */
static void pause_or_read(struct eng_exchange *x)
{
    bool pauses = x->waits || evbuffer_get_length(eng_http_input(x)) >= MAX_AHEAD;
    if (pauses == x->paused)
        return;
    if (pauses ? bufferevent_disable(x->bev, EV_READ) : bufferevent_enable(x->bev, EV_READ))
        eng_http_cut(x);
    x->paused = pauses;
}

void eng_http_go_on(struct eng_exchange *x)
{
    x->stepping = true;
    while (step(x))
        ;
    x->stepping = false;
    pause_or_read(x);
    eng_http_count_held(x);
    if (x->cut || (eng_http_to_send(x) > 0 && x->state != ANSWER))
        return;
    if (x->ended) {
        eng_http_drop(x);
    } else if (x->state == CLOSE) {
        x->state = LINGER;
        x->closed_ns = x->http->now_ns;
        shutdown(x->fd, SHUT_WR);
    }
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
        eng_http_count_held(x);
    return body ? body : kn_calloc(1, 1);
}

size_t eng_http_read(struct eng_exchange *x, char *out, size_t room, enum eng_http_fault *fault)
{
    const struct eng_http_head *r = x->request;
    struct evbuffer_iovec v;
    size_t n = 0;
    *fault = ENG_HTTP_OK;
    if (x->expects && evbuffer_get_length(eng_http_input(x)) == 0)
        eng_http_send_text(x, "HTTP/1.1 100 Continue\r\n\r\n");
    x->expects = false;
    while (n < room && !*fault && !eng_http_has_ended(x) && evbuffer_get_length(eng_http_input(x)) > 0 &&
           evbuffer_peek(eng_http_input(x), 1, NULL, &v, 1) == 1) {
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
        evbuffer_drain(eng_http_input(x), taken);
    }
    x->last = x->last || *fault;
    if (!x->stepping) {
        pause_or_read(x);
        eng_http_count_held(x);
    }
    return n;
}

size_t eng_http_body_bytes(const struct eng_exchange *x) { return x->request->n_body; }
void eng_http_set_user(struct eng_exchange *x, void *user) { x->user = user; }
void *eng_http_user(const struct eng_exchange *x) { return x->user; }
