/* engine/api/write_messages.c - Anthropic's messages: content blocks, each with a start event, delta events and a
 * stop event.
 *
 * As in Anthropic's API, input_tokens does not include cached tokens.  No member of OpenAI's objects is
 * added, since clients of this dialect may refuse unknown members. */
#include "engine/api/dialect.h"

#include <string.h>

static const char *const reason[] = { NULL, "end_turn", "stop_sequence", "max_tokens", "tool_use", "end_turn" };

static void begin_event(struct eng_reply *r, const char *type)
{
    eng_bytes_format(&r->out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_event(struct eng_reply *r) { eng_bytes_text(&r->out, "}\n\n"); }

static void write_usage(struct eng_bytes *out, const struct eng_reply *r)
{
    struct eng_usage u = eng_usage_of(r);
    eng_bytes_format(out,
                     "\"usage\":{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,"
                     "\"cache_read_input_tokens\":%d,\"output_tokens\":%d}",
                     u.prompt - u.cached, u.cached, u.answer);
}

static void write_reason(struct eng_bytes *out, const struct eng_choice *c)
{
    eng_bytes_text(out, "\"stop_reason\":");
    if (c->end)
        eng_bytes_quote(out, reason[c->end], strlen(reason[c->end]));
    else
        eng_bytes_text(out, "null");
    eng_bytes_text(out, ",\"stop_sequence\":");
    if (c->end == ENG_END_STRING)
        eng_bytes_quote(out, c->stop.text[c->stop.which], strlen(c->stop.text[c->stop.which]));
    else
        eng_bytes_text(out, "null");
}

/* Writes a content block with the text of its part so far: none in the start event, all of it in a body. */
static void write_block(struct eng_bytes *out, const struct eng_part *p)
{
    if (p->kind == ENG_PART_CALL) {
        eng_bytes_format(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", p->id);
        eng_bytes_quote(out, p->name.data, p->name.n);
        eng_bytes_text(out, ",\"input\":");
        eng_write_arguments(out, p);
    } else if (p->kind == ENG_PART_THOUGHTS) {
        eng_bytes_text(out, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
        eng_bytes_quote(out, p->text.data, p->text.n);
    } else {
        eng_bytes_text(out, "{\"type\":\"text\",\"text\":");
        eng_bytes_quote(out, p->text.data, p->text.n);
    }
    eng_bytes_text(out, "}");
}

static void write_message(struct eng_reply *r)
{
    struct eng_bytes *out = &r->out;
    const struct eng_choice *c = &r->choice[0];
    eng_bytes_text(out, "{\"id\":");
    eng_bytes_quote(out, r->ask->id, strlen(r->ask->id));
    eng_bytes_text(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    eng_bytes_quote(out, r->ask->model, strlen(r->ask->model));
    eng_bytes_text(out, ",\"content\":[");
    for (int i = 0; i < c->n_part; i++) {
        eng_bytes_text(out, i ? "," : "");
        write_block(out, &c->part[i]);
    }
    eng_bytes_text(out, "],");
    write_reason(out, c);
    eng_bytes_text(out, ",");
    write_usage(out, r);
    eng_bytes_text(out, "}");
}

/* ---- a stream -------------------------------------------------------------------------------- */

static void messages_begin(struct eng_reply *r)
{
    begin_event(r, "message_start");
    eng_bytes_text(&r->out, ",\"message\":");
    write_message(r);
    end_event(r);
}

static void messages_part_begin(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p)
{
    begin_event(r, "content_block_start");
    eng_bytes_format(&r->out, ",\"index\":%d,\"content_block\":", c->n_part - 1);
    write_block(&r->out, p);
    end_event(r);
}

static void messages_part_more(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p, const char *text,
                               size_t n, int first)
{
    static const char *const delta[] = { "thinking_delta\",\"thinking", "text_delta\",\"text",
                                         "input_json_delta\",\"partial_json" };
    (void)first;
    begin_event(r, "content_block_delta");
    eng_bytes_format(&r->out, ",\"index\":%d,\"delta\":{\"type\":\"%s\":", c->n_part - 1, delta[p->kind]);
    eng_bytes_quote(&r->out, text, n);
    eng_bytes_text(&r->out, "}");
    end_event(r);
}

static void messages_part_end(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p)
{
    (void)p;
    begin_event(r, "content_block_stop");
    eng_bytes_format(&r->out, ",\"index\":%d", c->n_part - 1);
    end_event(r);
}

static void messages_choice_end(struct eng_reply *r, struct eng_choice *c)
{
    begin_event(r, "message_delta");
    eng_bytes_text(&r->out, ",\"delta\":{");
    write_reason(&r->out, c);
    eng_bytes_text(&r->out, "},");
    write_usage(&r->out, r);
    end_event(r);
}

static void messages_end(struct eng_reply *r)
{
    begin_event(r, "message_stop");
    end_event(r);
}

static void messages_error(struct eng_reply *r, const struct eng_refusal *why)
{
    eng_bytes_text(&r->out, "event: error\ndata: ");
    eng_refusal_write(&r->out, why, ENG_API_MESSAGES);
    eng_bytes_text(&r->out, "\n\n");
}

static void messages_body(struct eng_reply *r) { write_message(r); }

const struct eng_dialect eng_dialect_messages = {
    .begin = messages_begin,
    .part_begin = messages_part_begin,
    .part_more = messages_part_more,
    .part_end = messages_part_end,
    .choice_end = messages_choice_end,
    .end = messages_end,
    .error = messages_error,
    .body = messages_body,
};
