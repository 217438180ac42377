/* engine/serve/probes.c - health, readiness and version. */
#include <stdio.h>
#include <string.h>

#include "engine/serve/internal.h"

const char *srv_not_ready(struct eng_server *s)
{
    struct eng_thread_report v;
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
    eng_thread_report(s->thread, &v);
    if (v.quiet_ns > (uint64_t)s->opt.stall_ms * 1000000u)
        return "stalled: there is work, but no pass makes progress";
    if (v.engine.device_error)
        return "the device has failed: start the server again, or without --device";
    if (v.store.changed)
        return "the model's files have changed since they were opened, or are damaged";
    return NULL;
}

static void answer_state(struct eng_server *s, struct eng_exchange *x, const char *wrong, const char *code)
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

/* Liveness: 200 if the model is loaded; while the server shuts down, too. */
void srv_health(struct eng_server *s, struct eng_exchange *x)
{
    bool wrong = s->state == SRV_LOADING || s->state == SRV_FAILED;
    answer_state(s, x, wrong ? srv_not_ready(s) : NULL, s->state == SRV_LOADING ? "loading" : "failed");
}

/* Readiness: 200 if the server accepts requests, the model's files are those that it opened and, while there is work, a
 * pass has made progress in the last stall_ms. */
void srv_ready(struct eng_server *s, struct eng_exchange *x)
{
    answer_state(s, x, srv_not_ready(s), s->state == SRV_LOADING ? "loading" : "not_ready");
}

void srv_version(struct eng_server *s, struct eng_exchange *x)
{
    char text[128];
    int n = snprintf(text, sizeof text, "{\"version\":\"%s\",\"commit\":\"%s\"}", ENG_VERSION, eng_commit);
    srv_answer_plain(s, x, 200, "application/json", text, (size_t)n);
}
