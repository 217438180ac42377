/* engine/api/write_responses.c - responses: an answer is a list of items (reasoning, messages, calls).  A stream
 * adds, fills and closes each item by numbered events; the last event repeats the whole response.  Responses are not
 * stored. */
#include "engine/api/dialect.h"

#include <string.h>

static const char *arrival_id(const struct eng_reply *r) { return strchr(r->ask->id, '_') + 1; }

/* ---- items ----------------------------------------------------------------------------------- */

static void write_item_id(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c,
                          const struct eng_part *p)
{
    static const char *const prefix[] = { "rs", "msg", "fc" };
    eng_bytes_format(out, "\"%s_%s_%d\"", prefix[p->kind], arrival_id(r), (int)(p - c->part));
}

/* Writes the list of logprobs, with its brackets, of the tokens of a text part. */
static void write_part_entries(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c,
                               const struct eng_part *p)
{
    int i = (int)(p - c->part), last = i + 1 < c->n_part ? p[1].first_entry : c->n_told;
    eng_write_entries(out, r, c, p->first_entry, last);
}

/* Writes the content part of a message or of reasoning.  whole false: without its text, for the event that adds it. */
static void write_content(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c,
                          const struct eng_part *p, bool whole)
{
    bool is_text = p->kind == ENG_PART_TEXT;
    eng_bytes_text(out, is_text ? "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":"
                                : "{\"type\":\"reasoning_text\"");
    if (is_text && whole)
        write_part_entries(out, r, c, p);
    else if (is_text)
        eng_bytes_text(out, "[]");
    eng_bytes_text(out, ",\"text\":");
    eng_bytes_quote(out, p->text.data, whole ? p->text.n : 0);
    eng_bytes_text(out, "}");
}

static void write_item(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c,
                       const struct eng_part *p, bool whole)
{
    bool is_cut = c->end == ENG_END_LENGTH && p == &c->part[c->n_part - 1];
    eng_bytes_text(out, "{\"id\":");
    write_item_id(out, r, c, p);
    eng_bytes_format(out, ",\"status\":\"%s\"", !whole ? "in_progress" : is_cut ? "incomplete" : "completed");
    if (p->kind == ENG_PART_CALL) {
        eng_bytes_format(out, ",\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":", p->id);
        eng_bytes_quote(out, p->name.data, p->name.n);
        eng_bytes_text(out, ",\"arguments\":");
        eng_bytes_quote(out, p->text.data, whole ? p->text.n : 0);
    } else {
        eng_bytes_text(out, p->kind == ENG_PART_TEXT ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                                                     : ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (whole)
            write_content(out, r, c, p, true);
        eng_bytes_text(out, "]");
    }
    eng_bytes_text(out, "}");
}

/* ---- the response ---------------------------------------------------------------------------- */

/* Members of a response that repeat a member of the request, if the body has it with this type; else `otherwise`. */
static const struct {
    const char *name;
    json_type type;
    const char *otherwise;
} echoed[] = {
    { "instructions", JSON_STRING, "null" },
    { "max_output_tokens", JSON_INTEGER, "null" },
    { "metadata", JSON_OBJECT, "{}" },
    { "prompt_cache_key", JSON_STRING, "null" },
    { "reasoning", JSON_OBJECT, "{\"effort\":null,\"summary\":null}" },
    { "safety_identifier", JSON_STRING, "null" },
    { "text", JSON_OBJECT, "{\"format\":{\"type\":\"text\"}}" },
    { "tools", JSON_ARRAY, "[]" },
    { "user", JSON_STRING, "null" },
};

static void write_echoed(struct eng_bytes *out, const json_t *body)
{
    for (size_t i = 0; i < sizeof echoed / sizeof *echoed; i++) {
        const json_t *value = json_object_get(body, echoed[i].name);
        eng_bytes_format(out, ",\"%s\":", echoed[i].name);
        if (value && json_typeof(value) == echoed[i].type)
            eng_bytes_json(out, value);
        else
            eng_bytes_text(out, echoed[i].otherwise);
    }
    const json_t *choice = json_object_get(body, "tool_choice"); /* a string or an object */
    eng_bytes_text(out, ",\"tool_choice\":");
    if (json_is_string(choice) || json_is_object(choice))
        eng_bytes_json(out, choice);
    else
        eng_bytes_text(out, "\"auto\"");
}

static void write_sampling(struct eng_bytes *out, const struct eng_api_request *ask)
{
    const struct spec_params *s = &ask->sampling;
    const json_t *parallel = json_object_get(ask->body, "parallel_tool_calls");
    eng_bytes_text(out, ",\"temperature\":");
    eng_write_number(out, s->temperature);
    eng_bytes_text(out, ",\"top_p\":");
    eng_write_number(out, s->top_p);
    eng_bytes_text(out, ",\"presence_penalty\":");
    eng_write_number(out, s->presence);
    eng_bytes_text(out, ",\"frequency_penalty\":");
    eng_write_number(out, s->frequency);
    eng_bytes_format(out, ",\"top_logprobs\":%d,\"seed\":%lld,\"parallel_tool_calls\":%s", ask->n_top,
                     (long long)s->seed, json_is_false(parallel) ? "false" : "true");
}

static void write_usage(struct eng_bytes *out, const struct eng_reply *r)
{
    struct eng_usage u = eng_usage_of(r);
    eng_bytes_format(out,
                     ",\"usage\":{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":"
                     "%d,\"cache_write_tokens\":0},\"output_tokens\":%d,\"output_tokens_details\":{"
                     "\"reasoning_tokens\":%d},\"total_tokens\":%d}",
                     u.prompt, u.cached, u.answer, u.thoughts, u.prompt + u.answer);
}

static const char *status_of(const struct eng_choice *c)
{
    return c->end == ENG_END_NONE     ? "in_progress"
           : c->end == ENG_END_LENGTH ? "incomplete"
           : c->end == ENG_END_FAILED ? "failed"
                                      : "completed";
}

static void write_error(struct eng_bytes *out, const struct eng_refusal *why)
{
    if (!why) {
        eng_bytes_text(out, ",\"error\":null");
        return;
    }
    eng_bytes_text(out, ",\"error\":{\"code\":\"server_error\",\"message\":");
    eng_bytes_quote(out, why->message, strlen(why->message));
    eng_bytes_text(out, "}");
}

static void write_response(struct eng_reply *r, const struct eng_refusal *why)
{
    const struct eng_choice *c = &r->choice[0];
    struct eng_bytes *out = &r->out;
    bool ended = c->end != ENG_END_NONE;
    eng_bytes_text(out, "{\"id\":");
    eng_bytes_quote(out, r->ask->id, strlen(r->ask->id));
    eng_bytes_format(out, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\"",
                     (long long)r->ask->created_s, status_of(c));
    eng_bytes_text(out, ",\"model\":");
    eng_bytes_quote(out, r->ask->model, strlen(r->ask->model));
    eng_bytes_text(out, ",\"output\":[");
    for (int i = 0; ended && i < c->n_part; i++) {
        eng_bytes_text(out, i ? "," : "");
        write_item(out, r, c, &c->part[i], true);
    }
    eng_bytes_text(out, "]");
    write_error(out, why);
    eng_bytes_text(out, c->end == ENG_END_LENGTH ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                                                 : ",\"incomplete_details\":null");
    write_echoed(out, r->ask->body);
    write_sampling(out, r->ask);
    eng_bytes_text(out, ",\"previous_response_id\":null,\"truncation\":\"disabled\",\"store\":false,"
                        "\"background\":false,\"service_tier\":\"default\",\"max_tool_calls\":null");
    if (ended)
        write_usage(out, r);
    else
        eng_bytes_text(out, ",\"usage\":null");
    eng_bytes_text(out, "}");
}

/* ---- a stream -------------------------------------------------------------------------------- */

static void begin_event(struct eng_reply *r, const char *type)
{
    eng_bytes_format(&r->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type, type, r->n_event++);
}

static void end_event(struct eng_reply *r) { eng_bytes_text(&r->out, "}\n\n"); }

static void response_event(struct eng_reply *r, const char *type, const struct eng_refusal *why)
{
    begin_event(r, type);
    eng_bytes_text(&r->out, ",\"response\":");
    write_response(r, why);
    end_event(r);
}

static void item_event(struct eng_reply *r, const char *type, const struct eng_choice *c, const struct eng_part *p,
                       bool whole)
{
    begin_event(r, type);
    eng_bytes_format(&r->out, ",\"output_index\":%d,\"item\":", (int)(p - c->part));
    write_item(&r->out, r, c, p, whole);
    end_event(r);
}

/* Begins an event about an item's content; the caller adds the members that depend on the event's type. */
static void begin_content_event(struct eng_reply *r, const char *type, const struct eng_choice *c,
                                const struct eng_part *p)
{
    begin_event(r, type);
    eng_bytes_text(&r->out, ",\"item_id\":");
    write_item_id(&r->out, r, c, p);
    eng_bytes_format(&r->out, ",\"output_index\":%d", (int)(p - c->part));
    if (p->kind != ENG_PART_CALL)
        eng_bytes_text(&r->out, ",\"content_index\":0");
}

static void content_part_event(struct eng_reply *r, const char *type, const struct eng_choice *c,
                               const struct eng_part *p, bool whole)
{
    begin_content_event(r, type, c, p);
    eng_bytes_text(&r->out, ",\"part\":");
    write_content(&r->out, r, c, p, whole);
    end_event(r);
}

static void responses_begin(struct eng_reply *r)
{
    response_event(r, "response.created", NULL);
    response_event(r, "response.in_progress", NULL);
}

static void responses_part_begin(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p)
{
    item_event(r, "response.output_item.added", c, p, false);
    if (p->kind != ENG_PART_CALL)
        content_part_event(r, "response.content_part.added", c, p, false);
}

static void responses_part_more(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p, const char *text,
                                size_t n, int first)
{
    static const char *const type[] = { "response.reasoning_text.delta", "response.output_text.delta",
                                        "response.function_call_arguments.delta" };
    begin_content_event(r, type[p->kind], c, p);
    eng_bytes_text(&r->out, ",\"delta\":");
    eng_bytes_quote(&r->out, text, n);
    if (p->kind == ENG_PART_TEXT) {
        eng_bytes_text(&r->out, ",\"logprobs\":");
        eng_write_entries(&r->out, r, c, first, c->n_told);
    }
    end_event(r);
}

static void responses_part_end(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p)
{
    static const char *const type[] = { "response.reasoning_text.done", "response.output_text.done",
                                        "response.function_call_arguments.done" };
    struct eng_bytes *out = &r->out;
    begin_content_event(r, type[p->kind], c, p);
    if (p->kind == ENG_PART_CALL) {
        eng_bytes_text(out, ",\"name\":");
        eng_bytes_quote(out, p->name.data, p->name.n);
    } else if (p->kind == ENG_PART_TEXT) {
        eng_bytes_text(out, ",\"logprobs\":");
        write_part_entries(out, r, c, p);
    }
    eng_bytes_text(out, p->kind == ENG_PART_CALL ? ",\"arguments\":" : ",\"text\":");
    eng_bytes_quote(out, p->text.data, p->text.n);
    end_event(r);
    if (p->kind != ENG_PART_CALL)
        content_part_event(r, "response.content_part.done", c, p, true);
    item_event(r, "response.output_item.done", c, p, true);
}

static void responses_choice_end(struct eng_reply *r, struct eng_choice *c)
{
    response_event(r, c->end == ENG_END_LENGTH ? "response.incomplete" : "response.completed", NULL);
}

static void responses_end(struct eng_reply *r) { (void)r; }

static void responses_error(struct eng_reply *r, const struct eng_refusal *why)
{
    r->choice[0].end = ENG_END_FAILED;
    response_event(r, "response.failed", why);
}

static void responses_body(struct eng_reply *r) { write_response(r, NULL); }

const struct eng_dialect eng_dialect_responses = {
    .begin = responses_begin,
    .part_begin = responses_part_begin,
    .part_more = responses_part_more,
    .part_end = responses_part_end,
    .choice_end = responses_choice_end,
    .end = responses_end,
    .error = responses_error,
    .body = responses_body,
};
