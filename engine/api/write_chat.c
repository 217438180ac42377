/* engine/api/write_chat.c - chat completions: a stream of chunks with deltas, or one object with messages.
 *
 * Clients rely on the following.  The first chunk of a choice has the role; the last one has the
 * finish_reason and no content.  A call's id and name come once, before its arguments.  Reasoning is
 * written twice, as "reasoning" and "reasoning_content", since some clients know only one name. */
#include "engine/api/dialect.h"

#include <string.h>

static const char *const finish[] = { NULL, "stop", "stop", "length", "tool_calls", "stop" };

/* ---- a stream -------------------------------------------------------------------------------- */

static void begin_chunk(struct eng_reply *r, const struct eng_choice *c)
{
    struct eng_bytes *out = &r->out;
    eng_bytes_text(out, "data: {\"object\":\"chat.completion.chunk\",");
    eng_bytes_add(out, r->head.data, r->head.n);
    if (!r->n_event++)
        eng_bytes_format(out, ",\"seed\":%lld", (long long)r->ask->sampling.seed);
    eng_bytes_text(out, ",\"choices\":[{\"index\":");
    eng_bytes_int(out, c->index);
    eng_bytes_text(out, ",\"delta\":{");
}

/* Ends the delta and the chunk; entries [first, last) are the logprobs of its text. */
static void end_chunk(struct eng_reply *r, const struct eng_choice *c, int first, int last)
{
    struct eng_bytes *out = &r->out;
    eng_bytes_text(out, "},\"logprobs\":");
    if (last > first || (r->ask->logprobs && !c->end)) { /* clients read it in each chunk before finish_reason */
        eng_bytes_text(out, "{\"content\":");
        eng_write_entries(out, r, c, first, last);
        eng_bytes_text(out, ",\"refusal\":null}");
    } else {
        eng_bytes_text(out, "null");
    }
    if (c->end)
        eng_bytes_format(out, ",\"finish_reason\":\"%s\"}]", finish[c->end]);
    else
        eng_bytes_text(out, ",\"finish_reason\":null}]");
    eng_bytes_text(out, r->ask->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void chat_begin(struct eng_reply *r)
{
    for (int i = 0; i < r->n_choice; i++) {
        begin_chunk(r, &r->choice[i]);
        eng_bytes_text(&r->out, "\"role\":\"assistant\",\"content\":\"\"");
        end_chunk(r, &r->choice[i], 0, 0);
    }
}

/* Writes a call of tool_calls.  numbered: with its index, for a stream; the call has no arguments yet. */
static void write_call(struct eng_bytes *out, const struct eng_part *p, bool numbered)
{
    eng_bytes_text(out, "{");
    if (numbered)
        eng_bytes_format(out, "\"index\":%d,", p->call);
    eng_bytes_format(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", p->id);
    eng_bytes_quote(out, p->name.data, p->name.n);
    eng_bytes_text(out, ",\"arguments\":");
    eng_bytes_quote(out, p->text.data, p->text.n);
    eng_bytes_text(out, "}}");
}

static void chat_part_begin(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p)
{
    if (p->kind != ENG_PART_CALL)
        return;
    begin_chunk(r, c);
    eng_bytes_text(&r->out, "\"tool_calls\":[");
    write_call(&r->out, p, true);
    eng_bytes_text(&r->out, "]");
    end_chunk(r, c, 0, 0);
}

static void chat_part_more(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p, const char *text,
                           size_t n, int first)
{
    struct eng_bytes *out = &r->out;
    begin_chunk(r, c);
    if (p->kind == ENG_PART_TEXT) {
        eng_bytes_text(out, "\"content\":");
        eng_bytes_quote(out, text, n);
    } else if (p->kind == ENG_PART_THOUGHTS) {
        eng_bytes_text(out, "\"reasoning\":");
        eng_bytes_quote(out, text, n);
        eng_bytes_text(out, ",\"reasoning_content\":");
        eng_bytes_quote(out, text, n);
    } else {
        eng_bytes_format(out, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", p->call);
        eng_bytes_quote(out, text, n);
        eng_bytes_text(out, "}}]");
    }
    end_chunk(r, c, first, c->n_told);
}

static void chat_part_end(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p)
{
    (void)r, (void)c, (void)p;
}

static void chat_choice_end(struct eng_reply *r, struct eng_choice *c)
{
    begin_chunk(r, c);
    end_chunk(r, c, 0, 0);
}

static void chat_end(struct eng_reply *r)
{
    if (r->ask->include_usage) {
        eng_bytes_text(&r->out, "data: {\"object\":\"chat.completion.chunk\",");
        eng_bytes_add(&r->out, r->head.data, r->head.n);
        eng_bytes_text(&r->out, ",\"choices\":[],");
        eng_write_usage(&r->out, r);
        eng_bytes_text(&r->out, "}\n\n");
    }
    eng_bytes_text(&r->out, "data: [DONE]\n\n");
}

static void chat_error(struct eng_reply *r, const struct eng_refusal *why)
{
    eng_bytes_text(&r->out, "data: ");
    eng_refusal_write(&r->out, why, r->ask->api);
    eng_bytes_text(&r->out, "\n\ndata: [DONE]\n\n");
}

/* ---- a body ---------------------------------------------------------------------------------- */

static void write_message(struct eng_bytes *out, const struct eng_choice *c)
{
    eng_bytes_text(out, "{\"role\":\"assistant\",\"content\":");
    if (eng_has_part(c, ENG_PART_TEXT) || !eng_has_part(c, ENG_PART_CALL))
        eng_write_texts(out, c, ENG_PART_TEXT);
    else
        eng_bytes_text(out, "null");
    eng_bytes_text(out, ",\"refusal\":null");
    if (eng_has_part(c, ENG_PART_THOUGHTS)) {
        eng_bytes_text(out, ",\"reasoning\":");
        eng_write_texts(out, c, ENG_PART_THOUGHTS);
        eng_bytes_text(out, ",\"reasoning_content\":");
        eng_write_texts(out, c, ENG_PART_THOUGHTS);
    }
    if (eng_has_part(c, ENG_PART_CALL)) {
        eng_bytes_text(out, ",\"tool_calls\":[");
        for (int i = 0; i < c->n_part; i++)
            if (c->part[i].kind == ENG_PART_CALL) {
                eng_bytes_text(out, c->part[i].call ? "," : "");
                write_call(out, &c->part[i], false);
            }
        eng_bytes_text(out, "]");
    }
    eng_bytes_text(out, "}");
}

static void chat_body(struct eng_reply *r)
{
    struct eng_bytes *out = &r->out;
    eng_bytes_text(out, "{\"object\":\"chat.completion\",");
    eng_bytes_add(out, r->head.data, r->head.n);
    eng_bytes_format(out, ",\"seed\":%lld,\"choices\":[", (long long)r->ask->sampling.seed);
    for (int i = 0; i < r->n_choice; i++) {
        const struct eng_choice *c = &r->choice[i];
        eng_bytes_format(out, "%s{\"index\":%d,\"message\":", i ? "," : "", i);
        write_message(out, c);
        eng_bytes_text(out, ",\"logprobs\":");
        if (r->ask->logprobs) {
            eng_bytes_text(out, "{\"content\":");
            eng_write_entries(out, r, c, 0, c->n_told);
            eng_bytes_text(out, ",\"refusal\":null}");
        } else {
            eng_bytes_text(out, "null");
        }
        eng_bytes_format(out, ",\"finish_reason\":\"%s\"}", finish[c->end]);
    }
    eng_bytes_text(out, "]");
    eng_write_given(out, r, &r->choice[0]);
    eng_bytes_text(out, ",");
    eng_write_usage(out, r);
    eng_bytes_text(out, "}");
}

const struct eng_dialect eng_dialect_chat = {
    .begin = chat_begin,
    .part_begin = chat_part_begin,
    .part_more = chat_part_more,
    .part_end = chat_part_end,
    .choice_end = chat_choice_end,
    .end = chat_end,
    .error = chat_error,
    .body = chat_body,
};
