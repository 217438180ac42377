/* engine/api/write_ollama.c - the answers of Ollama's /api/chat and /api/generate: a stream of JSON lines, or one object
 * with the whole text.  Both paths differ only in the member that holds the text.
 *
 * The last line has done: true, the reason, and the counts and durations (in nanoseconds) of the request.  A call comes
 * in one piece: its arguments are an object. */
#include "engine/api/dialect.h"

#include <string.h>

static bool is_chat(const struct eng_api_request *ask) { return ask->form == ENG_API_OLLAMA_CHAT; }

/* Writes the members at the beginning of each object; the caller adds the next, after a comma. */
static void write_head(struct eng_bytes *out, const struct eng_api_request *ask)
{
    eng_bytes_text(out, "{\"model\":");
    eng_bytes_quote(out, ask->model, strlen(ask->model));
    eng_bytes_text(out, ",\"created_at\":");
    eng_bytes_date(out, ask->created_s);
}

static const struct eng_bytes nothing;

static void add_text(struct eng_bytes *out, const struct eng_bytes *text)
{
    eng_bytes_add(out, text->data, text->n);
    out->failed |= text->failed;
}

/* Writes the member with content and reasoning, both JSON strings or empty; calls, a member or empty, go to a chat's
 * message. */
static void write_texts(struct eng_bytes *out, const struct eng_api_request *ask, const struct eng_bytes *content,
                        const struct eng_bytes *thoughts, const struct eng_bytes *calls)
{
    eng_bytes_text(out, is_chat(ask) ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    eng_bytes_text(out, content->n ? "" : "\"\"");
    add_text(out, content);
    eng_bytes_text(out, thoughts->n ? ",\"thinking\":" : "");
    add_text(out, thoughts);
    if (is_chat(ask)) {
        add_text(out, calls);
        eng_bytes_text(out, "}");
    }
}

static void write_call(struct eng_bytes *out, const struct eng_part *p)
{
    eng_bytes_format(out, "{\"id\":\"%s\",\"function\":{\"index\":%d,\"name\":", p->id, p->call);
    eng_bytes_quote(out, p->name.data, p->name.n);
    eng_bytes_text(out, ",\"arguments\":");
    eng_write_arguments(out, p);
    eng_bytes_text(out, "}}");
}

/* Writes the end of the last object, with the reply's counts and durations. */
static void write_done(struct eng_reply *r)
{
    const struct eng_choice *c = &r->choice[0];
    const struct eng_usage u = eng_usage_of(r);
    const uint64_t now = kn_now_ns(), first = r->first_ns ? r->first_ns : now;
    eng_bytes_format(&r->out,
                     ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%llu,\"load_duration\":0,"
                     "\"prompt_eval_count\":%d,\"prompt_eval_duration\":%llu,\"eval_count\":%d,"
                     "\"eval_duration\":%llu,\"seed\":%lld}",
                     c->end == ENG_END_LENGTH ? "length" : "stop", (unsigned long long)(now - r->opened_ns), u.prompt,
                     (unsigned long long)(first - r->opened_ns), u.answer, (unsigned long long)(now - first),
                     (long long)r->ask->sampling.seed);
}

/* ---- a stream -------------------------------------------------------------------------------- */

static void ollama_begin(struct eng_reply *r) { (void)r; }

static void ollama_part_begin(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p)
{
    (void)r, (void)c, (void)p;
}

static void ollama_part_more(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p, const char *text,
                             size_t n, int first)
{
    struct eng_bytes *out = &r->out, said = { 0 };
    bool is_text = p->kind == ENG_PART_TEXT;
    if (p->kind == ENG_PART_CALL)
        return;
    eng_bytes_quote(&said, text, n);
    write_head(out, r->ask);
    write_texts(out, r->ask, is_text ? &said : &nothing, is_text ? &nothing : &said, &nothing);
    if (c->n_told > first) {
        eng_bytes_text(out, ",\"logprobs\":");
        eng_write_entries(out, r, c, first, c->n_told);
    }
    eng_bytes_text(out, ",\"done\":false}\n");
    eng_bytes_free(&said);
}

static void ollama_part_end(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p)
{
    struct eng_bytes *out = &r->out, call = { 0 };
    (void)c;
    if (p->kind != ENG_PART_CALL)
        return;
    eng_bytes_text(&call, ",\"tool_calls\":[");
    write_call(&call, p);
    eng_bytes_text(&call, "]");
    write_head(out, r->ask);
    write_texts(out, r->ask, &nothing, &nothing, &call);
    eng_bytes_text(out, ",\"done\":false}\n");
    eng_bytes_free(&call);
}

static void ollama_choice_end(struct eng_reply *r, struct eng_choice *c) { (void)r, (void)c; }

static void ollama_end(struct eng_reply *r)
{
    write_head(&r->out, r->ask);
    write_texts(&r->out, r->ask, &nothing, &nothing, &nothing);
    write_done(r);
    eng_bytes_text(&r->out, "\n");
}

static void ollama_error(struct eng_reply *r, const struct eng_refusal *why)
{
    eng_refusal_write(&r->out, why, r->ask->form);
    eng_bytes_text(&r->out, "\n");
}

/* ---- a body ---------------------------------------------------------------------------------- */

static void ollama_body(struct eng_reply *r)
{
    const struct eng_choice *c = &r->choice[0];
    struct eng_bytes *out = &r->out, content = { 0 }, thoughts = { 0 }, calls = { 0 };
    eng_write_texts(&content, c, ENG_PART_TEXT);
    if (eng_has_part(c, ENG_PART_THOUGHTS))
        eng_write_texts(&thoughts, c, ENG_PART_THOUGHTS);
    for (int i = 0; i < c->n_part; i++)
        if (c->part[i].kind == ENG_PART_CALL) {
            eng_bytes_text(&calls, calls.n ? "," : ",\"tool_calls\":[");
            write_call(&calls, &c->part[i]);
        }
    eng_bytes_text(&calls, calls.n ? "]" : "");
    write_head(out, r->ask);
    write_texts(out, r->ask, &content, &thoughts, &calls);
    if (r->ask->logprobs) {
        eng_bytes_text(out, ",\"logprobs\":");
        eng_write_entries(out, r, c, 0, c->n_told);
    }
    write_done(r);
    eng_bytes_free(&content);
    eng_bytes_free(&thoughts);
    eng_bytes_free(&calls);
}

/* The answer to a request without a prompt, with which clients load a model or, with keep_alive 0, unload it. */
void eng_reply_nothing(struct eng_bytes *out, const struct eng_api_request *ask)
{
    const json_t *keep = json_object_get(ask->body, "keep_alive");
    bool unload = json_is_number(keep) && json_number_value(keep) == 0;
    write_head(out, ask);
    write_texts(out, ask, &nothing, &nothing, &nothing);
    eng_bytes_format(out, ",\"done\":true,\"done_reason\":\"%s\"}", unload ? "unload" : "load");
}

const struct eng_dialect eng_dialect_ollama = {
    .begin = ollama_begin,
    .part_begin = ollama_part_begin,
    .part_more = ollama_part_more,
    .part_end = ollama_part_end,
    .choice_end = ollama_choice_end,
    .end = ollama_end,
    .error = ollama_error,
    .body = ollama_body,
    .lines = true,
    .whole_calls = true,
};
