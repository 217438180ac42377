/* engine/api/drafts.c - reads the members about drafts: the text that the answer is expected to repeat, the drafters, and
 * limits of drafts.  They change how fast an answer comes, never the answer; its usage counts the repeated tokens. */
#include "engine/api/internal.h"

#include <stdio.h>
#include <string.h>

/* Adds the tokens of one text of the prediction.  A text beyond the context cannot be repeated whole. */
static void add_text(struct eng_parse *p, const json_t *text)
{
    struct eng_ids *ids = &p->ask->prediction;
    int error = eng_tokenize(p->setup->vocab, json_string_value(text), json_string_length(text), 0, ids);
    if (error && ids->full)
        eng_refuse(p->why, 400, "context_length_exceeded", "prediction",
                   "the model's maximum context length is %d tokens, and 'prediction' has more: shorten it",
                   p->setup->n_ctx);
    else if (error == KN_ENOMEM)
        eng_parse_no_memory(p);
    else if (error)
        eng_field_refuse(&p->body, "prediction", "cannot be tokenized with the model's vocabulary");
}

static void add_parts(struct eng_parse *p, const struct eng_fields *prediction)
{
    json_t *parts = eng_field_array(prediction, "content", ENG_API_MAX_MESSAGES), *item;
    size_t i;
    json_array_foreach(parts, i, item)
    {
        static const char *const types[] = { "text" };
        struct eng_fields part = eng_field_item(prediction, "content", i, item);
        json_t *text = eng_field_string(&part, "text");
        eng_field_choice(&part, "type", types, 1);
        if (!text)
            eng_field_refuse(&part, "text", "is missing");
        if (eng_refused(p->why))
            return;
        add_text(p, text);
    }
}

/* OpenAI's form is {"type": "content", "content": a string, or parts of text}; a string alone is its content. */
static void read_prediction(struct eng_parse *p)
{
    static const char *const types[] = { "content" };
    json_t *value = eng_field(&p->body, "prediction");
    if (!value)
        return;
    p->ask->prediction.checkpoint = p->checkpoint;
    p->ask->prediction.most = (size_t)p->setup->n_ctx;
    if (json_is_string(value)) {
        add_text(p, value);
        return;
    }
    struct eng_fields prediction = eng_field_object(&p->body, "prediction");
    json_t *content = eng_field(&prediction, "content");
    eng_field_choice(&prediction, "type", types, 1);
    if (!content && prediction.object)
        eng_field_refuse(&prediction, "content", "is missing");
    else if (json_is_string(content))
        add_text(p, content);
    else if (content)
        add_parts(p, &prediction);
}

/* ---- the drafters ------------------------------------------------------------------------------ */

#define ALL_DRAFTERS UINT8_MAX

/* The server's drafters of this kind, as bits; refused if there are none. */
static uint8_t drafters_named(struct eng_parse *p, const json_t *value)
{
    const struct eng_api_setup *setup = p->setup;
    const char *name = json_string_value(value);
    char all[128] = "";
    uint8_t bits = 0;
    size_t at = 0;
    for (int i = 0; i < setup->n_drafter; i++) {
        if (name && !strcmp(name, setup->drafter[i]))
            bits |= (uint8_t)(1 << i);
        at += (size_t)snprintf(all + at, sizeof all - at, ", '%s'", setup->drafter[i]);
    }
    if (!bits)
        eng_field_refuse(&p->body, "draft", "must be 'auto', 'none', or names of the server's drafters%s%s",
                         setup->n_drafter ? ": " : ", which has none", setup->n_drafter ? all + 2 : "");
    return bits;
}

/* "auto": all drafters; "none"; the name of one; or a list of names, of which an empty one is none. */
static void read_drafters(struct eng_parse *p)
{
    json_t *value = eng_field(&p->body, "draft"), *item;
    const char *word = json_string_value(value);
    uint8_t used = 0;
    size_t i;
    if (!value || (word && !strcmp(word, "auto")))
        return;
    if (json_is_array(value))
        json_array_foreach(value, i, item) used |= drafters_named(p, item);
    else if (!word || strcmp(word, "none") != 0)
        used = drafters_named(p, value);
    p->ask->drafts.unused = (uint8_t)~used;
}

/* llama-server's limits.  Its n_max of 0 is no draft. */
static void read_limits(struct eng_parse *p)
{
    struct eng_draft_limits *l = &p->ask->drafts;
    int64_t n;
    double x;
    if (eng_field_int(&p->body, "speculative.n_max", 0, INT32_MAX, &n)) {
        l->n_max = (int)n;
        l->unused |= n ? 0 : ALL_DRAFTERS;
    }
    if (eng_field_int(&p->body, "speculative.n_min", 0, INT32_MAX, &n))
        l->n_min = (int)n;
    if (eng_field_number(&p->body, "speculative.p_min", 0, 1, &x))
        l->p_min = (float)x;
    json_t *types = eng_field(&p->body, "speculative.types"); /* of another value than "none", it is refused */
    if (json_is_string(types) && json_string_length(types))
        l->unused = ALL_DRAFTERS;
}

void eng_parse_drafts(struct eng_parse *p)
{
    read_prediction(p);
    read_drafters(p);
    read_limits(p);
}
