/* engine/api/write_llama.c - the answer of llama-server's own /completion: the text in "content", then its counts,
 * timings and settings. */
#include "engine/api/dialect.h"

#include <string.h>

void eng_write_settings(struct eng_bytes *out, const struct spec_params *s, int n_predict)
{
    const struct {
        const char *name;
        double value;
    } number[] = {
        { "temperature", s->temperature },
        { "top_p", s->top_p },
        { "min_p", s->min_p },
        { "typical_p", s->typical_p },
        { "top_n_sigma", s->top_n_sigma > 0 ? s->top_n_sigma : -1 },
        { "xtc_probability", s->xtc_probability },
        { "xtc_threshold", s->xtc_threshold },
        { "repeat_penalty", s->repetition },
        { "presence_penalty", s->presence },
        { "frequency_penalty", s->frequency },
        { "dry_multiplier", s->dry_multiplier },
        { "dry_base", s->dry_base },
    };
    eng_bytes_format(out,
                     "{\"seed\":%llu,\"n_predict\":%d,\"max_tokens\":%d,\"top_k\":%d,\"repeat_last_n\":%d,"
                     "\"dry_allowed_length\":%d,\"dry_penalty_last_n\":%d",
                     (unsigned long long)s->seed, n_predict, n_predict, s->top_k, s->repeat_last, s->dry_allowed,
                     s->dry_last);
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        eng_bytes_format(out, ",\"%s\":", number[i].name);
        eng_write_number(out, number[i].value);
    }
    eng_bytes_text(out, "}");
}

static void write_rate(struct eng_bytes *out, const char *name, int n, uint64_t ns)
{
    double ms = (double)ns * 1e-6;
    eng_bytes_format(out,
                     "\"%s_n\":%d,\"%s_ms\":%.3f,\"%s_per_token_ms\":%.3f,"
                     "\"%s_per_second\":%.3f",
                     name, n, name, ms, name, n ? ms / n : 0, name, ms > 0 ? n * 1e3 / ms : 0);
}

static int prompt_tokens(const struct eng_reply *r, const struct eng_choice *c)
{
    return (int)r->ask->prompt[c->index / r->ask->n_each].n;
}

/* Writes content, a JSON string or empty, tokens [first, last) of the choice, and the members of every object: the caller
 * closes it. */
static void write_text(struct eng_reply *r, const struct eng_choice *c, const struct eng_bytes *content, int first,
                       int last)
{
    struct eng_bytes *out = &r->out;
    eng_bytes_format(out, "{\"index\":%d,\"content\":", c->index);
    eng_bytes_text(out, content->n ? "" : "\"\"");
    eng_bytes_add(out, content->data, content->n);
    out->failed |= content->failed;
    if (r->ask->logprobs && last > first) {
        eng_bytes_text(out, ",\"completion_probabilities\":");
        eng_write_entries(out, r, c, first, last);
    }
    eng_bytes_format(out, ",\"tokens\":[],\"id_slot\":0,\"stop\":%s,\"tokens_predicted\":%d,\"tokens_evaluated\":%d",
                     c->end ? "true" : "false", c->n_token, prompt_tokens(r, c));
}

/* Writes the members of a choice's last object, and its end. */
static void write_end(struct eng_reply *r, const struct eng_choice *c)
{
    static const char *const type[] = { "none", "eos", "word", "limit", "eos", "none" };
    struct eng_bytes *out = &r->out;
    const uint64_t now = kn_now_ns(), first = r->first_ns ? r->first_ns : now;
    const char *word = c->end == ENG_END_STRING ? c->stop.text[c->stop.which] : "";
    eng_bytes_text(out, ",\"model\":");
    eng_bytes_quote(out, r->ask->model, strlen(r->ask->model));
    eng_bytes_text(out, ",\"prompt\":");
    eng_bytes_json(out, json_object_get(r->ask->body, "prompt"));
    eng_bytes_format(out, ",\"stop_type\":\"%s\",\"stopping_word\":", type[c->end]);
    eng_bytes_quote(out, word, strlen(word));
    eng_bytes_format(out, ",\"truncated\":false,\"tokens_cached\":%d,\"generation_settings\":", c->n_cached);
    eng_write_settings(out, &r->ask->sampling, r->ask->n_predict);
    eng_bytes_text(out, ",\"timings\":{");
    write_rate(out, "prompt", prompt_tokens(r, c) - c->n_cached, first - r->opened_ns);
    eng_bytes_text(out, ",");
    write_rate(out, "predicted", c->n_token, now - first);
    eng_bytes_text(out, "}}");
}

/* ---- a stream -------------------------------------------------------------------------------- */

static void llama_begin(struct eng_reply *r) { (void)r; }

static void llama_part_edge(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p)
{
    (void)r, (void)c, (void)p;
}

static void llama_part_more(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p, const char *text,
                            size_t n, int first)
{
    struct eng_bytes said = { 0 };
    (void)p;
    eng_bytes_quote(&said, text, n);
    eng_bytes_text(&r->out, "data: ");
    write_text(r, c, &said, first, c->n_told);
    eng_bytes_text(&r->out, "}\n\n");
    eng_bytes_free(&said);
}

static void llama_choice_end(struct eng_reply *r, struct eng_choice *c)
{
    const struct eng_bytes nothing = { 0 };
    eng_bytes_text(&r->out, "data: ");
    write_text(r, c, &nothing, 0, 0);
    write_end(r, c);
    eng_bytes_text(&r->out, "\n\n");
}

static void llama_end(struct eng_reply *r) { (void)r; }

static void llama_error(struct eng_reply *r, const struct eng_refusal *why)
{
    eng_bytes_text(&r->out, "data: ");
    eng_refusal_write(&r->out, why, r->ask->form);
    eng_bytes_text(&r->out, "\n\n");
}

/* ---- a body ---------------------------------------------------------------------------------- */

/* An object; for several prompts or answers a list of them, as llama-server writes it. */
static void llama_body(struct eng_reply *r)
{
    eng_bytes_text(&r->out, r->n_choice > 1 ? "[" : "");
    for (int i = 0; i < r->n_choice; i++) {
        const struct eng_choice *c = &r->choice[i];
        struct eng_bytes content = { 0 };
        eng_write_texts(&content, c, ENG_PART_TEXT);
        eng_bytes_text(&r->out, i ? "," : "");
        write_text(r, c, &content, 0, c->n_told);
        write_end(r, c);
        eng_bytes_free(&content);
    }
    eng_bytes_text(&r->out, r->n_choice > 1 ? "]" : "");
}

const struct eng_dialect eng_dialect_llama = {
    .begin = llama_begin,
    .part_begin = llama_part_edge,
    .part_more = llama_part_more,
    .part_end = llama_part_edge,
    .choice_end = llama_choice_end,
    .end = llama_end,
    .error = llama_error,
    .body = llama_body,
};
