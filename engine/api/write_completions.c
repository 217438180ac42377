/* engine/api/write_completions.c - completions: text that continues a prompt, in the form of OpenAI's completions
 * API. */
#include "engine/api/dialect.h"
#include "engine/base/base.h"

#include <stdio.h>
#include <string.h>

static const char *const finish[] = { NULL, "stop", "stop", "length", "stop", "stop" };

/* ---- log probabilities ----------------------------------------------------------------------- */

/* Writes a token as the name of a JSON member.  A token that is not UTF-8, or holds a NUL (which some
 * JSON readers refuse in names), is written as its bytes. */
static void write_name(struct eng_bytes *out, const struct eng_vocab *v, int32_t token)
{
    struct moe_string s = eng_vocab_text(v, token);
    bool cut;
    int bad;
    for (size_t i = 0, n; i < s.n; i += n)
        if (!(n = (size_t)eng_utf8_next(s.data + i, s.n - i, &bad, &cut)) || !s.data[i]) {
            eng_bytes_text(out, "\"bytes:");
            for (i = 0; i < s.n; i++)
                eng_bytes_format(out, "\\\\x%02x", (uint8_t)s.data[i]);
            eng_bytes_text(out, "\"");
            return;
        }
    eng_bytes_quote(out, s.data, s.n);
}

static bool same_text(const struct eng_vocab *v, int32_t a, int32_t b)
{
    struct moe_string s = eng_vocab_text(v, a), t = eng_vocab_text(v, b);
    return s.n == t.n && !memcmp(s.data, t.data, s.n);
}

/* Writes the most probable tokens and the sampled one; tokens with the same text only once. */
static void write_top(struct eng_bytes *out, const struct eng_vocab *v, const struct spec_top *top, int n_top,
                      int32_t token, float logprob)
{
    int n = 0;
    struct spec_top all[ENG_TOP + 1];
    for (int k = 0; k < n_top && top[k].token != ENG_NO_TOKEN; k++)
        all[n++] = top[k];
    all[n++] = (struct spec_top){ token, logprob };
    eng_bytes_text(out, "{");
    for (int k = 0; k < n; k++) {
        int first = 0;
        while (!same_text(v, all[first].token, all[k].token))
            first++;
        if (first < k)
            continue;
        eng_bytes_text(out, k ? "," : "");
        write_name(out, v, all[k].token);
        eng_bytes_text(out, ":");
        eng_write_number(out, all[k].logprob);
    }
    eng_bytes_text(out, "}");
}

/* The tokens of a logprobs object: those of an echoed prompt, then n - n_prompt entries of the choice
 * from `first` on. */
struct listed {
    const struct eng_reply *r;
    const struct eng_choice *c;
    const struct eng_ids *prompt;
    int n_prompt, first, n; /* n: all tokens listed, with the n_prompt of the prompt */
    size_t prompt_char;     /* characters of the prompt's text */
};

static int32_t listed_token(const struct listed *l, int i)
{
    return i < l->n_prompt ? l->prompt->id[i] : l->c->entry[l->first + i - l->n_prompt].token;
}

/* True if a token has no logprob: the first token of a prompt has no context. */
static bool is_untold(const struct listed *l, int i) { return i < l->n_prompt && (i == 0 || i >= l->c->n_given); }

static void write_listed_logprob(struct eng_bytes *out, const struct listed *l, int i)
{
    if (is_untold(l, i))
        eng_bytes_text(out, "null");
    else
        eng_write_number(out,
                         i < l->n_prompt ? l->c->given[i].logprob : l->c->entry[l->first + i - l->n_prompt].logprob);
}

static void write_listed_top(struct eng_bytes *out, const struct listed *l, int i)
{
    int n_top = l->r->ask->n_top, at = l->first + i - l->n_prompt;
    const struct eng_vocab *v = l->r->setup->vocab;
    if (is_untold(l, i))
        eng_bytes_text(out, "null");
    else if (i < l->n_prompt)
        write_top(out, v, l->c->given[i].top, kn_min(n_top, l->c->given[i].n_top), listed_token(l, i),
                  l->c->given[i].logprob);
    else
        write_top(out, v, eng_entry_top(l->r, l->c, at), n_top, listed_token(l, i), l->c->entry[at].logprob);
}

static size_t count_characters(const char *p, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((uint8_t)p[i] & 0xC0) != 0x80;
    return count;
}

/* Writes the position in the text, in characters, at which each token starts.  Control tokens of an echoed prompt, such
 * as BOS, have length 0. */
static void write_offsets(struct eng_bytes *out, const struct listed *l)
{
    const struct eng_vocab *v = l->r->setup->vocab;
    size_t at = 0;
    for (int i = 0; i < l->n; i++) {
        size_t own = i < l->n_prompt ? at : l->prompt_char + l->c->entry[l->first + i - l->n_prompt].at_char;
        eng_bytes_text(out, i ? "," : "[");
        eng_bytes_int(out, (int64_t)own);
        struct moe_string s = eng_vocab_text(v, listed_token(l, i));
        if (eng_vocab_type(v, listed_token(l, i)) != ENG_TOKEN_CONTROL)
            at += count_characters(s.data, s.n);
    }
}

static void write_logprobs(struct eng_bytes *out, const struct listed *l)
{
    if (!l->r->ask->logprobs || !l->n) {
        eng_bytes_text(out, l->r->ask->logprobs ? "{\"tokens\":[],\"token_logprobs\":[],"
                                                  "\"top_logprobs\":[],\"text_offset\":[]}"
                                                : "null");
        return;
    }
    eng_bytes_text(out, "{\"tokens\":");
    for (int i = 0; i < l->n; i++) {
        eng_bytes_text(out, i ? "," : "[");
        write_name(out, l->r->setup->vocab, listed_token(l, i));
    }
    eng_bytes_text(out, "],\"token_logprobs\":");
    for (int i = 0; i < l->n; i++) {
        eng_bytes_text(out, i ? "," : "[");
        write_listed_logprob(out, l, i);
    }
    eng_bytes_text(out, "],\"top_logprobs\":");
    for (int i = 0; i < l->n; i++) {
        eng_bytes_text(out, i ? "," : "[");
        write_listed_top(out, l, i);
    }
    eng_bytes_text(out, "],\"text_offset\":");
    write_offsets(out, l);
    eng_bytes_text(out, "]}");
}

/* ---- choices --------------------------------------------------------------------------------- */

/* Writes the text of the choice's prompt: as in the body, or decoded if the body has tokens. */
static void add_prompt(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c)
{
    int i = c->index / r->ask->n_each;
    const json_t *prompt = json_object_get(r->ask->body, "prompt");
    const json_t *text = json_is_array(prompt) ? json_array_get(prompt, (size_t)i) : prompt;
    struct eng_decoder d;
    if (json_is_string(text)) {
        eng_bytes_add(out, json_string_value(text), json_string_length(text));
        return;
    }
    eng_decoder_init(&d, r->setup->vocab, 0);
    for (size_t k = 0; k <= r->ask->prompt[i].n; k++) {
        char *to = eng_bytes_room(out, eng_decoder_room(r->setup->vocab));
        if (to)
            out->n += k < r->ask->prompt[i].n ? eng_decoder_feed(&d, r->ask->prompt[i].id[k], to)
                                              : eng_decoder_finish(&d, to);
    }
}

/* Writes a choice with text[n]; the tokens of text are entries [first, last).  n_prompt: bytes of an echoed prompt at
 * the start of text, if the prompt's tokens are to be listed too; else 0. */
static void write_choice(struct eng_reply *r, const struct eng_choice *c, const char *text, size_t n, int first,
                         int last, size_t n_prompt)
{
    struct eng_bytes *out = &r->out;
    const struct eng_ids *prompt = &r->ask->prompt[c->index / r->ask->n_each];
    struct listed l = { .r = r, .c = c, .prompt = prompt, .first = first, .n = last - first };
    if (n_prompt && r->ask->logprobs) {
        l.n_prompt = (int)prompt->n;
        l.n += l.n_prompt;
        l.prompt_char = count_characters(text, n_prompt);
    }
    eng_bytes_text(out, "{\"index\":");
    eng_bytes_int(out, c->index);
    eng_bytes_text(out, ",\"text\":");
    eng_bytes_quote(out, text, n);
    eng_bytes_text(out, ",\"logprobs\":");
    write_logprobs(out, &l);
    eng_write_given(out, r, c);
    if (c->end)
        eng_bytes_format(out, ",\"finish_reason\":\"%s\"}", finish[c->end]);
    else
        eng_bytes_text(out, ",\"finish_reason\":null}");
}

static void write_object(struct eng_reply *r)
{
    eng_bytes_text(&r->out, "{\"object\":\"text_completion\",");
    eng_bytes_add(&r->out, r->head.data, r->head.n);
    if (!r->n_event++)
        eng_bytes_format(&r->out, ",\"seed\":%lld", (long long)r->ask->sampling.seed);
    eng_bytes_text(&r->out, ",\"choices\":[");
}

static void write_chunk(struct eng_reply *r, const struct eng_choice *c, const char *text, size_t n, int first,
                        int last)
{
    eng_bytes_text(&r->out, "data: ");
    write_object(r);
    write_choice(r, c, text, n, first, last, 0);
    eng_bytes_text(&r->out, r->ask->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

static void completions_begin(struct eng_reply *r)
{
    for (int i = 0; r->ask->echo && i < r->n_choice; i++) {
        struct eng_bytes b = { 0 };
        add_prompt(&b, r, &r->choice[i]);
        write_chunk(r, &r->choice[i], b.data, b.n, 0, 0);
        r->out.failed |= b.failed;
        eng_bytes_free(&b);
    }
}

static void completions_part(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p)
{
    (void)r, (void)c, (void)p;
}

static void completions_part_more(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p, const char *text,
                                  size_t n, int first)
{
    (void)p;
    write_chunk(r, c, text, n, first, c->n_told);
}

static void completions_choice_end(struct eng_reply *r, struct eng_choice *c) { write_chunk(r, c, "", 0, 0, 0); }

static void completions_end(struct eng_reply *r)
{
    if (r->ask->include_usage) {
        eng_bytes_text(&r->out, "data: ");
        write_object(r);
        eng_bytes_text(&r->out, "],");
        eng_write_usage(&r->out, r);
        eng_bytes_text(&r->out, "}\n\n");
    }
    eng_bytes_text(&r->out, "data: [DONE]\n\n");
}

static void completions_error(struct eng_reply *r, const struct eng_refusal *why)
{
    eng_bytes_text(&r->out, "data: ");
    eng_refusal_write(&r->out, why, r->ask->api);
    eng_bytes_text(&r->out, "\n\ndata: [DONE]\n\n");
}

static void completions_body(struct eng_reply *r)
{
    write_object(r);
    for (int i = 0; i < r->n_choice; i++) {
        struct eng_bytes text = { 0 };
        const struct eng_choice *c = &r->choice[i];
        if (r->ask->echo)
            add_prompt(&text, r, c);
        size_t n_prompt = text.n;
        for (int k = 0; k < c->n_part; k++)
            eng_bytes_add(&text, c->part[k].text.data, c->part[k].text.n);
        eng_bytes_text(&r->out, i ? "," : "");
        write_choice(r, c, text.data, text.n, 0, c->n_told, n_prompt);
        r->out.failed |= text.failed;
        eng_bytes_free(&text);
    }
    eng_bytes_text(&r->out, "],");
    eng_write_usage(&r->out, r);
    eng_bytes_text(&r->out, "}");
}

const struct eng_dialect eng_dialect_completions = {
    .begin = completions_begin,
    .part_begin = completions_part,
    .part_more = completions_part_more,
    .part_end = completions_part,
    .choice_end = completions_choice_end,
    .end = completions_end,
    .error = completions_error,
    .body = completions_body,
};
