/* engine/serve/http_answer.c - answers: whole, and in chunks. */
#include "engine/serve/http_connection.h"

#include <event2/event.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

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
    x->last = x->last || !x->request || !x->request->keep_alive || (x->state == STREAM && !eng_http_has_ended(x));
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
    struct iovec v[2] = { eng_http_piece(head->data, head->n), eng_http_piece(body, n) };
    if (head->failed) {
        if (!x->cut && eng_http_to_send(x) == 0)
            eng_http_send_no_memory(x->fd);
        eng_http_cut(x);
    } else {
        eng_http_send(x, v, n ? 2 : 1);
    }
    eng_bytes_free(head);
}

/* The answer is complete: the connection waits for its next request, which may already be in the input buffer.  That
 * request is handed over from the event loop, not from the function that completed this answer. */
static void finish(struct eng_exchange *x)
{
    bool last = x->last;
    eng_http_free_request(x);
    x->state = last ? CLOSE : HEAD;
    x->idle_ns = x->http->now_ns;
    if (x->stepping)
        return;
    eng_http_count_held(x);
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
    if (n == 0 || is_head(x))
        return;
    size_t n_size = (size_t)snprintf(size, sizeof size, "%zx\r\n", n);
    struct iovec v[3] = { eng_http_piece(size, n_size), eng_http_piece(bytes, n), eng_http_piece("\r\n", 2) };
    if (is_framed(x))
        eng_http_send(x, v, 3);
    else
        eng_http_send(x, v + 1, 1);
    if (eng_http_to_send(x) > x->http->opt.max_unsent)
        eng_http_cut(x);
}

void eng_http_end(struct eng_exchange *x, const char *bytes, size_t n)
{
    eng_http_chunk(x, bytes, n);
    if (is_framed(x) && !is_head(x))
        eng_http_send_text(x, "0\r\n\r\n");
    finish(x);
}
