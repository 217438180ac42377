/* engine/serve/answer.c - answers: common headers, JSON bodies, refusals. */
#include <stdio.h>
#include <string.h>

#include "engine/serve/internal.h"

/* A client's request id is used if it is short and of letters, digits and -_.: only: it is written to the log. */
static bool is_usable(const char *name)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:";
    size_t n = name ? strlen(name) : 0;
    return n && n < SRV_NAME_BYTES && strspn(name, good) == n;
}

void srv_set_common_headers(struct eng_server *s, struct eng_exchange *x, struct srv_names *names)
{
    const char *given = eng_http_header(x, "X-Request-Id");
    names->account = NULL;
    snprintf(names->id, sizeof names->id, "%016llx",
             (unsigned long long)kn_mix(s->secret + ++s->n_request * KN_GOLDEN));
    snprintf(names->name, sizeof names->name, "%s", is_usable(given) ? given : names->id);
    eng_http_set_header(x, "x-request-id", names->name);
    eng_http_set_header(x, "Server", "spillway");
    if (s->opt.cors) {
        eng_http_set_header(x, "Access-Control-Allow-Origin", s->opt.cors);
        eng_http_set_header(x, "Vary", "Origin");
    }
}

void srv_answer_plain(struct eng_server *s, struct eng_exchange *x, int status, const char *type, const char *body,
                      size_t n)
{
    struct eng_refusal why;
    if (n > s->limits.answer) {
        eng_refuse(&why, 400, NULL, "", "this answer has %zu bytes, and the limit is %zu: ask for less in one request",
                   n, s->limits.answer);
        srv_answer_refusal(s, x, ENG_API_CHAT, &why);
        return;
    }
    s->metrics.n_answered[status / 100]++;
    eng_http_answer(x, status, type, body, n);
}

void srv_answer_json(struct eng_server *s, struct eng_exchange *x, struct eng_bytes *body)
{
    struct eng_refusal why;
    if (body->failed || kn_heap_room() < body->n) { /* the connection's copy takes body->n bytes */
        eng_refuse(&why, 503, NULL, "", "no memory for this answer now");
        srv_answer_refusal(s, x, ENG_API_CHAT, &why);
    } else {
        srv_answer_plain(s, x, 200, "application/json", body->data, body->n);
    }
    eng_bytes_free(body);
}

/* The value of Retry-After when the queue is full: the expected seconds until a session is free, which is the mean
 * duration of a choice / n_parallel, from 1 to 60. */
static int retry_after_s(const struct eng_server *s)
{
    uint64_t n = 0;
    for (int i = 0; i <= ENG_MAX_BOUNDS; i++)
        n += s->metrics.histogram[ENG_HIST_E2E].count[i];
    double wait = n ? s->metrics.histogram[ENG_HIST_E2E].sum / (double)n / s->opt.engine.n_parallel : 1;
    return wait < 1 ? 1 : wait > 60 ? 60 : (int)wait;
}

void srv_refuse_full(struct eng_server *s, struct eng_refusal *why)
{
    int wait = retry_after_s(s);
    s->metrics.n_refused++;
    eng_refuse(why, 429, "queue_full", "", "queue full (%d waiting); retry in %d s", s->opt.n_queue, wait);
    why->retry_s = wait;
}

/* OpenAI's client libraries retry after status 408, 409, 429 and 500 or more, unless the header x-should-retry is
 * false; Retry-After sets the delay of the retry. */
void srv_answer_refusal(struct eng_server *s, struct eng_exchange *x, enum eng_api api, const struct eng_refusal *why)
{
    struct eng_bytes body = { 0 };
    char after[16];
    if (why->status == 429 || why->status == 503) {
        snprintf(after, sizeof after, "%d", why->retry_s ? why->retry_s : 5);
        eng_http_set_header(x, "Retry-After", after);
    }
    if (why->status == 501 || why->status == 507 || s->state == SRV_FAILED)
        eng_http_set_header(x, "x-should-retry", "false");
    if (why->status == 413 || why->status == 431 || s->state == SRV_DRAINING)
        eng_http_set_last(x);
    eng_refusal_write(&body, why, api);
    srv_answer_plain(s, x, why->status, "application/json", body.data ? body.data : "", body.n);
    eng_bytes_free(&body);
}

void srv_fault(void *arg, struct eng_exchange *x, enum eng_http_fault fault)
{
    struct eng_server *s = arg;
    struct eng_refusal why;
    struct srv_names names;
    char shown[128];
    int status = eng_http_fault_status(fault);
    const char *host = eng_http_host(x);
    srv_set_common_headers(s, x, &names);
    moe_string_show((struct moe_string){ host, strlen(host) }, shown, sizeof shown);
    if (fault == ENG_HTTP_BODY_LONG)
        eng_refuse(&why, status, NULL, "", "the body of a request is limited to %zu bytes: see --max-body",
                   s->limits.body);
    else if (fault == ENG_HTTP_HOST_FOREIGN)
        eng_refuse(
            &why, status, NULL, "",
            "this server does not answer for the host name '%s': if it is a name of this server or of a proxy in "
            "front of it, add --allowed-host NAME",
            shown);
    else
        eng_refuse(&why, status, NULL, "", "%s", eng_http_fault_text(fault));
    srv_log_refusal(&names, x, &why);
    srv_answer_refusal(s, x, ENG_API_CHAT, &why);
}
