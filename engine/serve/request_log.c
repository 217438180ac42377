/* engine/serve/request_log.c - one log line for each request that is answered or refused.
 *
 *     ID KEY METHOD PATH from PEER: STATUS; ...      KEY: the label of the API key, - without keys
 *
 * With --log-format json the values are members of an object (base.h, struct eng_log_event).  No text of a request or an
 * answer is written, and no key: a refusal of a body is cut where it begins to quote the body. */
#include <stdio.h>
#include <string.h>

#include "engine/serve/internal.h"

struct line {
    char text[1024], members[2048];
};

/* Writes the beginning of both forms; shown: the path with strange bytes replaced. */
static void begin_line(struct line *l, const struct srv_names *names, const char *method, const char *path,
                       const char *peer, int status)
{
    char shown[128];
    moe_string_show((struct moe_string){ path, strlen(path) }, shown, sizeof shown);
    const char *key = names->account ? names->account->rules.label : "-";
    struct eng_bytes quoted = { 0 };
    eng_bytes_quote(&quoted, shown, strlen(shown));
    snprintf(l->text, sizeof l->text, "%s %s %s %s from %s: %d; ", names->name, key, method, shown, peer, status);
    snprintf(l->members, sizeof l->members,
             "\"id\":\"%s\",\"key\":%s%s%s,\"method\":\"%.16s\",\"path\":%.*s,\"client\":\"%s\",\"status\":%d",
             names->name, names->account ? "\"" : "", names->account ? key : "null", names->account ? "\"" : "", method,
             quoted.failed ? 2 : (int)quoted.n, quoted.failed ? "\"\"" : quoted.data, peer, status);
    eng_bytes_free(&quoted);
}

static void more(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void more(char *text, size_t size, const char *format, ...)
{
    va_list args;
    size_t n = strlen(text);
    va_start(args, format);
    vsnprintf(text + n, size - n, format, args);
    va_end(args);
}

static void end_line(struct line *l, const char *event)
{
    eng_log_say(KN_LOG_INFO, &(struct eng_log_event){ event, l->members }, l->text);
}

void srv_log_answer(const struct srv_names *names, const struct srv_answered *a)
{
    struct line l;
    begin_line(&l, names, a->method, a->path, a->peer, a->status);
    more(l.text, sizeof l.text,
         "%d prompt tokens, %d cached; waited %.2f s, first token after %.2f s; %d tokens in %.2f s", a->n_prompt,
         a->n_cached, a->waited_s, a->first_s, a->n_answer, a->whole_s);
    more(l.members, sizeof l.members,
         ",\"prompt_tokens\":%d,\"cached_tokens\":%d,\"tokens\":%d,\"waited_s\":%.4f,\"first_token_s\":%.4f,"
         "\"duration_s\":%.4f",
         a->n_prompt, a->n_cached, a->n_answer, a->waited_s, a->first_s, a->whole_s);
    end_line(&l, "answered");
}

void srv_log_done(const struct srv_names *names, const struct eng_exchange *x, const char *text)
{
    struct line l;
    begin_line(&l, names, eng_http_method(x), eng_http_path(x), eng_http_peer(x), 200);
    more(l.text, sizeof l.text, "%s", text);
    end_line(&l, "answered");
}

/* The number of bytes of a refusal's message before it quotes the body: behind 'parameter', up to a quote or a colon. */
static size_t without_body(const struct eng_refusal *why)
{
    const char *m = why->message;
    size_t n = strlen(why->param), skip = n && m[0] == '\'' && !strncmp(m + 1, why->param, n) ? n + 2 : 0;
    for (const char *c = m + skip; *c; c++)
        if (*c == '\'' || *c == '"' || *c == '`' || (c[0] == ':' && c[1] == ' '))
            return (size_t)(c - m);
    return strlen(m);
}

static void log_refusal(const struct srv_names *names, const struct eng_exchange *x, const struct eng_refusal *why,
                        size_t n_message)
{
    struct line l;
    char said[256];
    const char *code = why->code ? why->code : why->type;
    moe_string_show((struct moe_string){ why->message, n_message }, said, sizeof said);
    begin_line(&l, names, eng_http_method(x), eng_http_path(x), eng_http_peer(x), why->status);
    more(l.text, sizeof l.text, "%s: %s%s", code, said, why->message[n_message] ? "..." : "");
    struct eng_bytes quoted = { 0 };
    eng_bytes_quote(&quoted, said, strlen(said));
    more(l.members, sizeof l.members, ",\"code\":\"%s\",\"error\":%.*s", code, quoted.failed ? 2 : (int)quoted.n,
         quoted.failed ? "\"\"" : quoted.data);
    eng_bytes_free(&quoted);
    end_line(&l, "refused");
}

void srv_log_refusal(const struct srv_names *names, const struct eng_exchange *x, const struct eng_refusal *why)
{
    log_refusal(names, x, why, strlen(why->message));
}

void srv_log_refused_body(const struct srv_names *names, const struct eng_exchange *x, const struct eng_refusal *why)
{
    log_refusal(names, x, why, without_body(why));
}
