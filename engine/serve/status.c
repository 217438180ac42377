/* engine/serve/status.c - the state of the server: /metrics for Prometheus, /status for the page. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/serve/internal.h"
#include "engine/serve/process.h"

/* ---- metrics --------------------------------------------------------------------------------- */

void srv_metrics(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = { 0 };
    struct eng_thread_report v;
    struct eng_refusal why;
    eng_thread_report(s->thread, &v);
    s->metrics.n_cut = eng_http_n_cut(s->http);
    eng_metrics_write(&s->metrics,
                      &(struct eng_gauges){ .model = s->alias[0],
                                            .isa = kn_isa_name(kn_min(s->opt.engine.isa, kn_isa_best())),
                                            .accounts = s->keys ? &s->accounts : NULL,
                                            .n_connection = eng_http_connections(s->http),
                                            .unsent_bytes = eng_http_unsent(s->http),
                                            .n_call = s->n_call,
                                            .uptime_s = (double)(kn_now_ns() - s->started_ns) * 1e-9,
                                            .ready = !srv_not_ready(s) },
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

#define MOST_SHOWN 100
#define N_PAST     ((int)(sizeof((struct srv_rates *)0)->at / sizeof *((struct srv_rates *)0)->at))

static void remember(struct eng_server *s, uint64_t now)
{
    struct srv_rates *r = &s->rates;
    struct eng_thread_report v;
    eng_thread_report(s->thread, &v);
    if (r->n == N_PAST) {
        memmove(r->at, r->at + 1, (N_PAST - 1) * sizeof *r->at);
        r->n--;
    }
    r->at[r->n].ns = now;
    r->at[r->n].engine = v.engine;
    r->at[r->n++].store = v.store;
}

static double per_s(uint64_t from, uint64_t to, double s) { return s > 0 ? (double)(to - from) / s : 0; }

/* Rates are means since the oldest sample, which is 10 to 11 seconds old (less after the start). */
static void write_rates(const struct srv_rates *r, const struct eng_thread_report *v, struct eng_bytes *out)
{
    const struct eng_stats *e = &v->engine, *was = r->n ? &r->at[0].engine : e;
    const struct off_stats *o = &v->store, *before = r->n ? &r->at[0].store : o;
    double sec = r->n ? (double)(kn_now_ns() - r->at[0].ns) * 1e-9 : 0;
    double hits = (double)(o->hits - before->hits), misses = (double)(o->misses - before->misses);
    double passes = (double)(e->n_pass - was->n_pass), per_pass = passes > 0 ? 1 / passes : 0;
    eng_bytes_format(out,
                     ",\"rate\":{\"tokens_per_s\":%.3f,\"prompt_tokens_per_s\":%.3f,\"passes_per_s\":%.3f,"
                     "\"rows_per_pass\":%.3f,\"disk_Bps\":%.0f,\"disk_limit_Bps\":%.0f,\"stall\":%.4f}",
                     per_s(was->n_token, e->n_token, sec), per_s(was->n_prompt_token, e->n_prompt_token, sec),
                     per_s(was->n_pass, e->n_pass, sec), (double)(e->n_row - was->n_row) * per_pass,
                     per_s(before->read_bytes, o->read_bytes, sec), v->disk_Bps,
                     per_s(before->stall_ns, o->stall_ns, sec) * 1e-9);
    eng_bytes_text(out, ",\"draft\":{\"explain\":");
    eng_bytes_quote(out, v->explain, strlen(v->explain));
    eng_bytes_format(out,
                     ",\"drafted_per_s\":%.3f,\"kept_per_s\":%.3f,\"early_Bps\":%.0f,"
                     "\"hidden_Bps\":%.0f,\"wasted_Bps\":%.0f",
                     per_s(was->n_draft, e->n_draft, sec), per_s(was->n_draft_kept, e->n_draft_kept, sec),
                     per_s(before->early_bytes, o->early_bytes, sec),
                     per_s(before->early_used_bytes, o->early_used_bytes, sec),
                     per_s(before->early_wasted_bytes, o->early_wasted_bytes, sec));
    const struct spec_target *t = &v->drafts.target;
    eng_bytes_format(out,
                     ",\"target\":{\"rows\":%.0f,\"efficiency\":%.4f,\"efficiency_predicted\":%.4f,\"experts\":%.3f,"
                     "\"experts_predicted\":%.3f,\"full_rows\":%.0f,\"fitted\":%s,\"fit_error\":%.4f}}",
                     t->rows, t->efficiency, t->predicted, t->experts, t->even, t->full_rows,
                     v->drafts.fitted ? "true" : "false", v->drafts.fit_error);
    eng_bytes_format(out,
                     ",\"experts\":{\"total\":%llu,\"slots\":%llu,\"empty\":%llu,\"hit_rate\":%.4f,"
                     "\"distinct_per_layer\":%.3f,\"damaged_reads\":%llu",
                     (unsigned long long)o->n_expert, (unsigned long long)o->n_slot, (unsigned long long)o->n_empty,
                     hits + misses > 0 ? hits / (hits + misses) : 1, (e->experts - was->experts) * per_pass,
                     (unsigned long long)o->damaged_reads);
}

/* Writes the state of each expert.  layers: pairs of a layer's index and its number of experts.  tier, heat: strings
 * with one letter for each expert, layer by layer:
 *   tier    . on disk, r being read from disk, h in host memory, d on a device
 *   heat    square root of the share of the layer's recent passes that used the expert, in 62 steps: 0-9, a-z, A-Z */
static void write_spots(struct eng_server *s, struct eng_bytes *out)
{
    static const char tier[] = { [OFF_DISK] = '.', [OFF_HOST] = 'h', [OFF_DEVICE] = 'd' };
    static const char digit[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    struct off_store *store = eng_thread_store(s->thread);
    struct off_stats stats;
    if (!store || !s->spot)
        return;
    off_stats_get(store, &stats);
    off_store_look(store, s->spot);
    int n = (int)stats.n_expert;
    eng_bytes_text(out, ",\"layers\":[");
    for (int i = 0, first = 0; i < n; i++)
        if (i + 1 == n || s->spot[i + 1].group != s->spot[first].group) {
            eng_bytes_format(out, "%s[%d,%d]", first ? "," : "", s->spot[first].group, i + 1 - first);
            first = i + 1;
        }
    eng_bytes_text(out, "],\"tier\":\"");
    for (int i = 0; i < n; i++)
        eng_bytes_add(out, s->spot[i].coming ? "r" : &tier[s->spot[i].tier], 1);
    eng_bytes_text(out, "\",\"heat\":\"");
    for (int i = 0; i < n; i++)
        eng_bytes_add(out, &digit[kn_min(61, (int)(62 * sqrtf(s->spot[i].heat)))], 1);
    eng_bytes_text(out, "\"");
}

static void write_memory(struct eng_server *s, const struct eng_thread_report *v, struct eng_bytes *out)
{
    eng_bytes_format(out,
                     ",\"memory\":{\"budget_bytes\":%zu,\"used_bytes\":%zu,\"kv_blocks\":%d,"
                     "\"kv_blocks_used\":%d,\"kv_block_tokens\":%d",
                     v->budget_bytes, eng_memory_used(), v->engine.n_kv_block, v->engine.n_kv_used, KN_KV_BLOCK);
    if (eng_thread_state(s->thread) == ENG_THREAD_READY) {
        const struct eng_split *m = &v->split;
        eng_bytes_format(out,
                         ",\"split\":{\"fixed\":%zu,\"dense\":%zu,\"step\":%zu,\"kv\":%zu,"
                         "\"states\":%zu,\"experts\":%zu,\"spare\":%zu}",
                         m->fixed, m->dense, m->step, m->kv, m->state, m->expert, m->spare);
        if (m->device.total)
            eng_bytes_format(out,
                             ",\"device\":{\"total\":%zu,\"dense\":%zu,\"step\":%zu,\"kv\":%zu,\"states\":%zu,"
                             "\"experts\":%zu,\"spare\":%zu,\"n_expert_slots\":%d,\"n_experts\":%d,"
                             "\"expert_slot_bytes\":%zu,\"expert_bytes\":%zu,"
                             "\"n_used\":%llu,\"n_passed\":%llu,\"n_host\":%llu,\"n_layers\":%llu,\"n_alone\":%llu,"
                             "\"pinned_bytes\":%llu,\"pin_refused\":%s}",
                             m->device.total, m->device.dense, m->device.step, m->device.kv, m->device.state,
                             m->device.expert, m->device.spare, v->engine.device.n_slot, v->engine.device.n_kept,
                             v->engine.device.slot_bytes, v->engine.device.kept_bytes,
                             (unsigned long long)v->engine.device.n_used, (unsigned long long)v->engine.device.n_passed,
                             (unsigned long long)v->engine.device.n_host, (unsigned long long)v->engine.device.n_layer,
                             (unsigned long long)v->engine.device.n_alone, (unsigned long long)v->store.pinned_bytes,
                             v->store.pin_refused ? "true" : "false");
    }
    eng_bytes_text(out, "}");
}

/* Writes the choices that are lent to the engine thread, latest request first, at most MOST_SHOWN: age, tokens, rate;
 * no text of prompt or answer. */
static void write_calls(struct eng_server *s, struct eng_bytes *out)
{
    uint64_t now = kn_now_ns();
    int n = 0;
    eng_bytes_text(out, ",\"calls\":[");
    for (const struct srv_call *c = s->calls; c && n < MOST_SHOWN; c = c->next)
        for (int i = 0; i < c->n_choice && c->reply && n < MOST_SHOWN; i++) {
            const struct srv_choice *o = &c->choice[i];
            int tokens = eng_reply_tokens(c->reply, i);
            if (!o->lent)
                continue;
            eng_bytes_format(
                out,
                "%s{\"id\":\"%s\",\"age_s\":%.1f,\"prompt_tokens\":%d,\"tokens\":%d,"
                "\"tokens_per_s\":%.3f}",
                n++ ? "," : "", c->names.id, (double)(now - c->arrived_ns) * 1e-9, o->job.request.n_token, tokens,
                tokens > 1 ? (double)(tokens - 1) / ((double)(o->last_ns - o->first_ns) * 1e-9 + 1e-9) : 0);
        }
    eng_bytes_text(out, "]");
}

static void write_status(struct eng_server *s, struct eng_bytes *out)
{
    static const char *const name[] = { "loading", "serving", "draining", "draining", "failed" };
    struct eng_thread_report v;
    eng_thread_report(s->thread, &v);
    const struct eng_stats *e = &v.engine;
    eng_bytes_text(out, "{\"model\":");
    eng_bytes_quote(out, s->alias[0], strlen(s->alias[0]));
    eng_bytes_format(out, ",\"version\":\"%s\",\"state\":\"%s\",\"ready\":%s,\"uptime_s\":%.0f", eng_version_text,
                     name[s->state], srv_not_ready(s) ? "false" : "true", (double)(kn_now_ns() - s->started_ns) * 1e-9);
    eng_bytes_format(out, ",\"batch\":{\"running\":%d,\"waiting\":%d,\"parallel\":%d,\"queue\":%d,\"n_ctx\":%d}",
                     v.n_job ? e->n_running : 0, v.n_job ? kn_max(0, v.n_job - e->n_running) : 0, v.n_parallel,
                     s->opt.n_queue, v.n_ctx);
    write_rates(&s->rates, &v, out);
    write_spots(s, out);
    eng_bytes_text(out, "}");
    write_memory(s, &v, out);
    write_calls(s, out);
    eng_bytes_format(out, ",\"prefix_cache\":{\"asked_tokens\":%llu,\"found_tokens\":%llu},\"preempted\":%llu",
                     (unsigned long long)e->n_cache_asked, (unsigned long long)e->n_cache_found,
                     (unsigned long long)e->n_preempted);
    eng_bytes_format(out, ",\"connections\":%d,\"requests\":%d,\"refused\":%llu,\"tokens\":%llu}",
                     eng_http_connections(s->http), s->n_call, (unsigned long long)s->metrics.n_refused,
                     (unsigned long long)e->n_token);
}

void srv_status(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = { 0 };
    write_status(s, &out);
    srv_answer_json(s, x, &out);
}

static void send_status(struct eng_server *s, struct eng_exchange *const *x, int n)
{
    struct eng_bytes out = { 0 };
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
        eng_refuse(&why, 429, NULL, "", "%d status streams are open already", SRV_MAX_WATCHER);
        srv_answer_refusal(s, x, ENG_API_CHAT, &why);
        return;
    }
    s->metrics.n_answered[2]++;
    eng_http_set_header(x, "Cache-Control", "no-cache");
    eng_http_begin(x, 200, "text/event-stream");
    if (!strcmp(eng_http_method(x), "HEAD")) {
        eng_http_end(x, NULL, 0);
        return;
    }
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
        eng_http_end(s->watcher[--s->n_watcher], NULL, 0);
}
