/* engine/api/drafts.c - reads the members about drafts: the text that the answer is expected to repeat.  They change
 * how fast an answer comes, never the answer; its usage counts the repeated tokens. */
#include "engine/api/internal.h"

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

void eng_parse_drafts(struct eng_parse *p) { read_prediction(p); }
