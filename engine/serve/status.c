/* How the server is: for probes, for Prometheus, for clients that ask for models, for the page. */
#include <stdio.h>
#include <string.h>

#include "engine/cli.h"
#include "engine/plan.h"
#include "engine/serve/internal.h"

/* ---- probes ---------------------------------------------------------------------------------- */

const char *srv_not_ready(struct eng_server *s)
{
    struct eng_hub_view v;
    switch (s->state) {
    case SRV_LOADING:
        return "the model is being loaded";
    case SRV_DRAINING:
    case SRV_ENDING:
        return "the server is shutting down";
    case SRV_FAILED:
        return "the model could not be loaded";
    case SRV_SERVING:
        break;
    }
    eng_hub_look(s->hub, &v);
    if (v.quiet_ns > (uint64_t)s->opt.stall_ms * 1000000u)
        return "there is work and nothing moves";
    return NULL;
}

static void answer_state(struct eng_server *s, struct eng_exchange *x, const char *wrong,
                         const char *code)
{
    static const char ok[] = "{\"status\":\"ok\"}";
    struct eng_refusal why;
    if (!wrong) {
        srv_answer_plain(s, x, 200, "application/json", ok, sizeof ok - 1);
        return;
    }
    eng_refuse(&why, 503, code, "", "%s", wrong);
    srv_answer_refusal(s, x, ENG_API_CHAT, &why);
}

/* Alive: the serving thread answers, and the model is there. */
void srv_health(struct eng_server *s, struct eng_exchange *x)
{
    bool wrong = s->state == SRV_LOADING || s->state == SRV_FAILED;
    answer_state(s, x, wrong ? srv_not_ready(s) : NULL,
                 s->state == SRV_LOADING ? "loading" : "failed");
}

/* Worth sending requests to: nothing of the above, and the engine moves when there is work. */
void srv_ready(struct eng_server *s, struct eng_exchange *x)
{
    answer_state(s, x, srv_not_ready(s), s->state == SRV_LOADING ? "loading" : "not_ready");
}

void srv_version(struct eng_server *s, struct eng_exchange *x)
{
    static const char text[] = "{\"version\":\"" ENG_VERSION "\"}";
    srv_answer_plain(s, x, 200, "application/json", text, sizeof text - 1);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void write_model(struct eng_server *s, const char *name, struct eng_bytes *out)
{
    eng_bytes_text(out, "{\"id\":");
    eng_bytes_quote(out, name, strlen(name));
    eng_bytes_format(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"spillway\"",
                     (long long)s->started_s);
    if (s->state == SRV_SERVING)
        eng_bytes_format(out, ",\"max_model_len\":%d", s->desk.n_ctx);
    eng_bytes_text(out, "}");
}

void srv_models(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = {0};
    eng_bytes_text(&out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < s->desk.n_model; i++) {
        eng_bytes_text(&out, i ? "," : "");
        write_model(s, s->alias[i], &out);
    }
    eng_bytes_text(&out, "]}");
    srv_answer_json(s, x, &out);
}

void srv_model(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = {0};
    struct eng_refusal why;
    const char *name = eng_http_path(x) + sizeof "/v1/models/" - 1;
    for (int i = 0; i < s->desk.n_model; i++) {
        if (strcmp(name, s->alias[i]) != 0)
            continue;
        write_model(s, name, &out);
        srv_answer_json(s, x, &out);
        return;
    }
    char shown[128];
    moe_string_show((struct moe_string){name, strlen(name)}, shown, sizeof shown);
    eng_refuse(&why, 404, "model_not_found", "model", "there is no model '%s' here, but %s", shown,
               s->alias[0]);
    srv_answer_refusal(s, x, ENG_API_CHAT, &why);
}

/* ---- metrics --------------------------------------------------------------------------------- */

void srv_metrics(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = {0};
    struct eng_hub_view v;
    struct eng_refusal why;
    eng_hub_look(s->hub, &v);
    s->metrics.n_cut = eng_http_n_cut(s->http);
    eng_metrics_write(&s->metrics,
                      &(struct eng_gauges){.model = s->alias[0],
                                           .n_connection = eng_http_connections(s->http),
                                           .n_call = s->n_call,
                                           .uptime_s = (double)(kn_now_ns() - s->started_ns) * 1e-9,
                                           .ready = !srv_not_ready(s)},
                      &v, &out);
    if (out.failed) {
        eng_refuse(&why, 503, NULL, "", "no memory for this answer now");
        srv_answer_refusal(s, x, ENG_API_CHAT, &why);
    } else {
        srv_answer_plain(s, x, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.n);
    }
    eng_bytes_free(&out);
}

/* ---- status ---------------------------------------------------------------------------------- */

#define N_PAST ((int)(sizeof((struct srv_rates *)0)->at / sizeof *((struct srv_rates *)0)->at))

static void remember(struct eng_server *s, uint64_t now)
{
    struct srv_rates *r = &s->rates;
    struct eng_hub_view v;
    eng_hub_look(s->hub, &v);
    if (r->n == N_PAST) {
        memmove(r->at, r->at + 1, (N_PAST - 1) * sizeof *r->at);
        r->n--;
    }
    r->at[r->n].ns = now;
    r->at[r->n].engine = v.engine;
    r->at[r->n++].store = v.store;
}

static double per_s(uint64_t from, uint64_t to, double s)
{
    return s > 0 ? (double)(to - from) / s : 0;
}

/* Rates are of the last ten seconds. */
static void write_status(struct eng_server *s, struct eng_bytes *out)
{
    static const char *const name[] = {"loading", "serving", "draining", "draining", "failed"};
    struct eng_hub_view v;
    const struct srv_rates *r = &s->rates;
    eng_hub_look(s->hub, &v);
    const struct eng_stats *e = &v.engine, *was = &r->at[0].engine;
    const struct off_stats *o = &v.store, *before = &r->at[0].store;
    double sec = r->n ? (double)(kn_now_ns() - r->at[0].ns) * 1e-9 : 0;
    if (!r->n)
        was = e, before = o;
    double hits = (double)(o->hits - before->hits), misses = (double)(o->misses - before->misses);
    uint64_t passes = e->n_pass - was->n_pass;
    eng_bytes_text(out, "{\"model\":");
    eng_bytes_quote(out, s->alias[0], strlen(s->alias[0]));
    eng_bytes_format(out, ",\"version\":\"%s\",\"state\":\"%s\",\"ready\":%s,\"uptime_s\":%.0f",
                     ENG_VERSION, name[s->state], srv_not_ready(s) ? "false" : "true",
                     (double)(kn_now_ns() - s->started_ns) * 1e-9);
    eng_bytes_format(
        out, ",\"batch\":{\"running\":%d,\"waiting\":%d,\"parallel\":%d,\"queue\":%d,\"n_ctx\":%d}",
        e->n_running, kn_max(0, v.n_job - e->n_running), v.n_parallel, s->opt.n_queue, v.n_ctx);
    eng_bytes_format(
        out,
        ",\"rate\":{\"tokens_per_s\":%.3f,\"prompt_tokens_per_s\":%.3f,\"passes_per_s\":%.3f,"
        "\"rows_per_pass\":%.3f,\"disk_Bps\":%.0f}",
        per_s(was->n_token, e->n_token, sec), per_s(was->n_prompt_token, e->n_prompt_token, sec),
        per_s(was->n_pass, e->n_pass, sec),
        passes ? (double)(e->n_row - was->n_row) / (double)passes : 0,
        per_s(before->read_bytes, o->read_bytes, sec));
    eng_bytes_format(out,
                     ",\"experts\":{\"total\":%llu,\"slots\":%llu,\"empty\":%llu,\"hit_rate\":%.4f,"
                     "\"distinct_per_layer\":%.3f}",
                     (unsigned long long)o->n_expert, (unsigned long long)o->n_slot,
                     (unsigned long long)o->n_empty, hits + misses > 0 ? hits / (hits + misses) : 1,
                     passes ? (e->experts - was->experts) / (double)passes : 0);
    eng_bytes_format(out,
                     ",\"memory\":{\"budget_bytes\":%zu,\"used_bytes\":%zu,\"kv_blocks\":%d,"
                     "\"kv_blocks_used\":%d}",
                     v.budget_bytes, eng_memory_used(), e->n_kv_block, e->n_kv_used);
    eng_bytes_format(
        out, ",\"prefix_cache\":{\"asked_tokens\":%llu,\"found_tokens\":%llu},\"preempted\":%llu",
        (unsigned long long)e->n_cache_asked, (unsigned long long)e->n_cache_found,
        (unsigned long long)e->n_preempted);
    eng_bytes_format(out, ",\"connections\":%d,\"requests\":%d,\"refused\":%llu,\"tokens\":%llu}",
                     eng_http_connections(s->http), s->n_call,
                     (unsigned long long)s->metrics.n_refused, (unsigned long long)e->n_token);
}

void srv_status(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = {0};
    write_status(s, &out);
    srv_answer_json(s, x, &out);
}

static void send_status(struct eng_server *s, struct eng_exchange *const *x, int n)
{
    struct eng_bytes out = {0};
    eng_bytes_text(&out, "data: ");
    write_status(s, &out);
    eng_bytes_text(&out, "\n\n");
    for (int i = 0; i < n && !out.failed; i++)
        eng_http_chunk(x[i], out.data, out.n);
    eng_bytes_free(&out);
}

void srv_status_stream(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_refusal why;
    if (s->n_watcher == SRV_MAX_WATCHER) {
        eng_refuse(&why, 429, NULL, "", "%d watch already", SRV_MAX_WATCHER);
        srv_answer_refusal(s, x, ENG_API_CHAT, &why);
        return;
    }
    s->metrics.n_answered[2]++;
    eng_http_set_header(x, "Cache-Control", "no-cache");
    eng_http_begin(x, 200, "text/event-stream");
    s->watcher[s->n_watcher++] = x;
    send_status(s, &x, 1);
}

void srv_status_gone(struct eng_server *s, struct eng_exchange *x)
{
    for (int i = 0; i < s->n_watcher; i++)
        if (s->watcher[i] == x)
            s->watcher[i--] = s->watcher[--s->n_watcher];
}

void srv_status_tick(struct eng_server *s, uint64_t now)
{
    remember(s, now);
    if (s->n_watcher)
        send_status(s, s->watcher, s->n_watcher);
}

void srv_status_end(struct eng_server *s)
{
    while (s->n_watcher)
        eng_http_end(s->watcher[--s->n_watcher]);
}

/* ---- the page -------------------------------------------------------------------------------- */

extern const char eng_page[], eng_page_end[];
__asm__(".section .rodata\n"
        ".global eng_page\n.global eng_page_end\n"
        "eng_page: .incbin \"engine/serve/page.html\"\n"
        "eng_page_end: .byte 0\n"
        ".previous\n");

void srv_page(struct eng_server *s, struct eng_exchange *x)
{
    eng_http_set_header(
        x, "Content-Security-Policy",
        "default-src 'none'; connect-src 'self'; img-src data:; "
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'");
    eng_http_set_header(x, "X-Content-Type-Options", "nosniff");
    srv_answer_plain(s, x, 200, "text/html; charset=utf-8", eng_page,
                     (size_t)(eng_page_end - eng_page));
}
