/* The input is the bytes of a connection; the first is the size of the pieces in which they arrive. Requests are read
 * one after another until one is refused or incomplete. However the bytes are cut, the same requests are found; an
 * accepted head has only bytes that the rules allow; and an accepted request, written again from its parsed form, is
 * the same. */
#include "engine/serve/http_parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MOST_HEADER 2048
#define MOST_BODY   4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct request {
    enum eng_http_fault fault;
    bool whole;
    size_t taken, n_head, n_body;
    struct eng_http_head head;
    char text[MOST_HEADER], body[MOST_BODY]; /* text: the head, with NULs */
};

static void read_body(struct request *r, const char *p, size_t n, size_t piece)
{
    struct eng_http_chunks chunks = { 0 };
    while (!r->fault && !(r->whole = r->head.chunked ? chunks.done : r->n_body == r->head.n_body) && r->taken < n) {
        const char *at = p + r->taken, *data = at;
        size_t k = piece < n - r->taken ? piece : n - r->taken, n_data = r->head.n_body - r->n_body;
        n_data = n_data < k ? n_data : k;
        if (r->head.chunked)
            k = eng_http_chunks_take(&chunks, at, k, MOST_BODY, MOST_HEADER, &data, &n_data, &r->fault);
        else
            k = n_data;
        if (n_data > MOST_BODY - r->n_body || (n_data && (data < at || data + n_data > at + k)) || (!k && !r->fault))
            abort();
        if (n_data)
            memcpy(r->body + r->n_body, data, n_data);
        r->n_body += n_data;
        r->taken += k;
    }
}

static void read_request(struct request *r, const char *p, size_t n, size_t piece)
{
    struct eng_http_scan scan = { 0 };
    memset(r, 0, sizeof *r);
    while (r->taken < n && !scan.done && !r->fault) {
        size_t k = piece < n - r->taken ? piece : n - r->taken;
        size_t taken = eng_http_scan(&scan, p + r->taken, k, MOST_HEADER, &r->fault);
        if (taken > k || (taken < k && !scan.done && !r->fault))
            abort();
        r->taken += taken;
    }
    if (r->fault || !scan.done)
        return;
    r->n_head = r->taken;
    memcpy(r->text, p, r->n_head);
    r->fault = eng_http_head_parse(&r->head, r->text, r->n_head, MOST_BODY);
    if (!r->fault)
        read_body(r, p, n, piece);
}

static bool is_inside(const struct request *r, const char *s)
{
    return s >= r->text && s + strlen(s) < r->text + r->n_head;
}

/* Conditions of every accepted head, checked on its bytes without the parser's own functions. */
static void check_head(const struct request *r, const char *p)
{
    const struct eng_http_head *h = &r->head;
    int n_length = 0, n_coding = 0, n_host = 0;
    for (size_t i = 0; i < r->n_head; i++)
        if (!p[i] || (p[i] == '\n' && (i == 0 || p[i - 1] != '\r')) ||
            (p[i] == '\r' && (i + 1 == r->n_head || p[i + 1] != '\n')) ||
            (p[i] == '\n' && i + 1 < r->n_head && (p[i + 1] == ' ' || p[i + 1] == '\t')))
            abort();
    if (!h->method || !h->path || (h->path[0] != '/' && strcmp(h->path, "*") != 0) || h->n_body > MOST_BODY ||
        (h->host && !is_inside(r, h->host)) || !is_inside(r, h->method))
        abort();
    for (int i = 0; i < h->n_field; i++) {
        const char *name = h->field[i].name, *value = h->field[i].value;
        if (!is_inside(r, name) || !is_inside(r, value) || !name[0] || strpbrk(name, " \t:\r\n") ||
            strpbrk(value, "\r\n"))
            abort();
        n_length += !strcasecmp(name, "Content-Length");
        n_coding += !strcasecmp(name, "Transfer-Encoding");
        n_host += !strcasecmp(name, "Host");
        if (!strcasecmp(name, "Content-Length") && strspn(value, "0123456789") != strlen(value))
            abort();
        if (!strcasecmp(name, "Transfer-Encoding") && strcasecmp(value, "chunked") != 0)
            abort();
    }
    if (n_length + n_coding > 1 || n_host > 1 || (!h->old && n_host != 1) || h->chunked != n_coding ||
        (!n_length && h->n_body))
        abort();
}

/* Writes the request with a Content-Length, and reads that. */
static void check_again(const struct request *r)
{
    static char text[2 * MOST_HEADER + MOST_BODY];
    static struct request again;
    size_t n = (size_t)snprintf(text, sizeof text, "%s %s HTTP/1.%d\r\n", r->head.method, r->head.path, !r->head.old);
    for (int i = 0; i < r->head.n_field; i++)
        if (strcasecmp(r->head.field[i].name, "Content-Length") != 0 &&
            strcasecmp(r->head.field[i].name, "Transfer-Encoding") != 0)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s:%s\r\n", r->head.field[i].name,
                                  r->head.field[i].value);
    if (r->head.n_field == ENG_HTTP_FIELDS || n > MOST_HEADER - 64)
        return;
    n += (size_t)snprintf(text + n, sizeof text - n, "Content-Length: %zu\r\n\r\n", r->n_body);
    memcpy(text + n, r->body, r->n_body);
    read_request(&again, text, n + r->n_body, n + r->n_body);
    if (again.fault || !again.whole || again.taken != n + r->n_body || again.n_body != r->n_body ||
        memcmp(again.body, r->body, r->n_body) != 0 || strcmp(again.head.path, r->head.path) != 0 ||
        again.head.keep_alive != r->head.keep_alive)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct request whole, pieces;
    if (n < 1)
        return 0;
    size_t piece = data[0] % 32 + 1u;
    const char *p = (const char *)data + 1;
    for (n--; n > 0;) {
        read_request(&whole, p, n, n);
        read_request(&pieces, p, n, piece);
        if (whole.fault != pieces.fault || whole.taken != pieces.taken || whole.whole != pieces.whole ||
            whole.n_body != pieces.n_body || memcmp(whole.body, pieces.body, whole.n_body) != 0)
            abort();
        if (whole.fault || !whole.whole)
            break;
        check_head(&whole, p);
        check_again(&whole);
        p += whole.taken;
        n -= whole.taken;
    }
    return 0;
}
