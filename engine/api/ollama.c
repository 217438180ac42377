/* engine/api/ollama.c - rewrites a body of Ollama's API as a body of OpenAI's, which the rest of this room parses.
 *
 *     messages              the same; tool calls without ids get ids, by which the results that follow name them
 *     prompt, system        a message of the user after one of the system; raw: a completion's prompt
 *     options.NAME          NAME; num_predict: max_tokens
 *     format                response_format
 *     think                 the template's variable enable_thinking, or a reasoning effort
 *     stream                true unless the body says false
 *
 * Members that would change the answer and have no such meaning are refused; those of memory and placement (num_ctx,
 * num_gpu, keep_alive ..) are the server's matter, not a request's, and have no effect. */
#include "engine/api/ollama.h"

#include <stdio.h>
#include <string.h>

struct rewrite {
    struct eng_parse *p;
    const struct eng_fields *from;
    json_t *to;    /* the new body */
    json_t *calls; /* calls without a result so far: {"id", "name"}, in order */
    int n_id;      /* ids given so far */
};

/* Sets member `name` of `in` to value, whose reference is taken.  NULL: there was no memory. */
static void put(struct rewrite *w, json_t *in, const char *name, json_t *value)
{
    if (!value || json_object_set_new(in, name, value))
        eng_parse_no_memory(w->p);
}

static void pass(struct rewrite *w, const struct eng_fields *from, const char *name, const char *as)
{
    json_t *value = eng_field(from, name);
    if (value)
        put(w, w->to, as, json_incref(value));
}

static bool is_empty(const json_t *value)
{
    return !value || (json_is_string(value) && !json_string_length(value)) ||
           (json_is_array(value) && !json_array_size(value));
}

static void refuse_if_set(const struct eng_fields *f, const char *name, const char *instead)
{
    if (!is_empty(eng_field(f, name)))
        eng_field_refuse(f, name, "is not supported: %s", instead);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Gives a call of the message an id, unless it has one, and notes that it waits for its result. */
static void number_call(struct rewrite *w, const struct eng_fields *f, json_t *call)
{
    struct eng_fields function = eng_field_object(f, "function");
    const json_t *name = eng_field_string(&function, "name"), *id = eng_field_string(f, "id");
    char text[16];
    if (is_empty(id)) {
        snprintf(text, sizeof text, "call%05d", ++w->n_id % 100000); /* nine characters: every template accepts them */
        put(w, call, "id", json_string(text));
        id = json_object_get(call, "id");
    }
    if (name && json_array_append_new(w->calls, json_pack("{s:O, s:O}", "id", id, "name", name)))
        eng_parse_no_memory(w->p);
}

static void number_calls(struct rewrite *w, const struct eng_fields *f, json_t *message)
{
    json_t *list = eng_field_array(f, "tool_calls", ENG_API_MAX_TOOLS), *copy = json_array(), *call;
    size_t i;
    json_array_foreach(list, i, call)
    {
        struct eng_fields in = eng_field_item(f, "tool_calls", i, call);
        json_t *own = eng_refused(f->why) ? NULL : json_copy(in.object);
        if (!own || json_array_append_new(copy, own))
            eng_parse_no_memory(w->p);
        else
            number_call(w, &in, own);
    }
    put(w, message, "tool_calls", copy);
}

/* Names the call whose result the message is: by tool_name the first without a result, else the first of all. */
static void find_call(struct rewrite *w, const struct eng_fields *f, json_t *message)
{
    const json_t *name = eng_field_string(f, "tool_name"), *call;
    size_t i;
    if (eng_field(f, "tool_call_id"))
        return;
    json_array_foreach(w->calls, i, call)
    {
        if (name && !json_equal(name, json_object_get(call, "name")))
            continue;
        put(w, message, "tool_call_id", json_incref(json_object_get(call, "id")));
        json_array_remove(w->calls, i);
        return;
    }
}

static void add_message(struct rewrite *w, const struct eng_fields *f, json_t *list)
{
    json_t *message = json_copy(f->object), *thoughts = eng_field_string(f, "thinking");
    const char *role = json_string_value(eng_field_string(f, "role"));
    refuse_if_set(f, "images", "the model reads text only");
    if (!eng_refused(f->why) && eng_field(f, "tool_calls"))
        number_calls(w, f, message);
    if (role && !strcmp(role, "tool"))
        find_call(w, f, message);
    if (thoughts)
        put(w, message, "reasoning_content", json_incref(thoughts));
    if (role && !eng_field(f, "content") && strcmp(role, "assistant") != 0)
        put(w, message, "content", json_string(""));
    if (!message || json_array_append_new(list, message))
        eng_parse_no_memory(w->p);
}

static void rewrite_messages(struct rewrite *w)
{
    json_t *from = eng_field_array(w->from, "messages", ENG_API_MAX_MESSAGES), *list = json_array(), *message;
    size_t i;
    json_array_foreach(from, i, message)
    {
        struct eng_fields f = eng_field_item(w->from, "messages", i, message);
        if (eng_refused(w->p->why))
            break;
        add_message(w, &f, list);
    }
    put(w, w->to, "messages", list);
    pass(w, w->from, "tools", "tools");
}

/* ---- a prompt -------------------------------------------------------------------------------- */

static void rewrite_prompt(struct rewrite *w)
{
    const struct eng_fields *f = w->from;
    json_t *prompt = eng_field_string(f, "prompt"), *system = eng_field_string(f, "system");
    bool raw = false;
    eng_field_bool(f, "raw", &raw);
    refuse_if_set(f, "suffix", "an answer only continues the prompt");
    refuse_if_set(f, "images", "the model reads text only");
    refuse_if_set(f, "template", "the chat template is set by the server; 'raw' leaves a prompt as it is");
    refuse_if_set(f, "context", "send the conversation to /api/chat");
    if (raw || !w->p->setup->chat) {
        w->p->ask->api = ENG_API_COMPLETIONS;
        put(w, w->to, "prompt", prompt ? json_incref(prompt) : json_string(""));
        return;
    }
    json_t *user = json_pack("{s:s, s:O}", "role", "user", "content", prompt ? prompt : json_null());
    put(w, w->to, "messages",
        is_empty(system) ? json_pack("[o]", user)
                         : json_pack("[{s:s, s:O}, o]", "role", "system", "content", system, user));
}

/* ---- options --------------------------------------------------------------------------------- */

static void rewrite_options(struct rewrite *w)
{
    static const char *const same[] = {
        "temperature",       "top_k",          "top_p",         "min_p",
        "typical_p",         "seed",           "stop",          "presence_penalty",
        "frequency_penalty", "repeat_penalty", "repeat_last_n", "mirostat",
    };
    struct eng_fields o = eng_field_object(w->from, "options");
    int64_t n;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        pass(w, &o, same[i], same[i]);
    if (eng_field_int(&o, "num_predict", -2, INT32_MAX, &n)) /* -1: no limit; -2: to the end of the context */
        put(w, w->to, "n_predict", json_integer(n > 0 ? n : -1));
    pass(w, w->from, "logprobs", "logprobs");
    pass(w, w->from, "top_logprobs", "top_logprobs");
    pass(w, w->from, "keep_alive", "keep_alive");
}

static void rewrite_format(struct rewrite *w)
{
    json_t *format = eng_field(w->from, "format");
    if (is_empty(format))
        return;
    if (json_is_object(format))
        put(w, w->to, "response_format",
            json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema", "name", "answer", "schema", format));
    else if (json_is_string(format) && !strcmp(json_string_value(format), "json"))
        put(w, w->to, "response_format", json_pack("{s:s}", "type", "json_object"));
    else
        eng_field_refuse(w->from, "format", "must be \"json\" or a JSON schema, an object");
}

static void rewrite_thinking(struct rewrite *w)
{
    static const char *const words[] = { "low", "medium", "high", "max" };
    json_t *think = eng_field(w->from, "think");
    if (!think || w->p->ask->api != ENG_API_CHAT)
        return;
    if (json_is_string(think) && eng_field_choice(w->from, "think", words, 4) >= 0)
        put(w, w->to, "reasoning_effort", json_incref(think));
    else if (json_is_boolean(think))
        put(w, w->to, "chat_template_kwargs", json_pack("{s:O, s:O}", "enable_thinking", think, "thinking", think));
    else if (!json_is_string(think))
        eng_field_refuse(w->from, "think", "must be true, false, \"low\", \"medium\" or \"high\"");
}

/* ---- all of it ------------------------------------------------------------------------------- */

bool eng_ollama_rewrite(struct eng_parse *p)
{
    struct eng_fields from = p->body;
    struct rewrite w = { .p = p, .from = &from, .to = json_object(), .calls = json_array() };
    bool chat = p->ask->form == ENG_API_OLLAMA_CHAT, stream = true;
    if (!w.to || !w.calls)
        eng_parse_no_memory(p);
    bool nothing = is_empty(eng_field(&from, chat ? "messages" : "prompt"));
    p->ask->api = ENG_API_CHAT;
    eng_field_bool(&from, "stream", &stream);
    put(&w, w.to, "stream", json_boolean(stream));
    pass(&w, &from, "model", "model");
    if (chat)
        rewrite_messages(&w);
    else
        rewrite_prompt(&w);
    rewrite_options(&w);
    rewrite_format(&w);
    rewrite_thinking(&w);
    json_decref(w.calls);
    json_decref(p->ask->body); /* values that the new body took from it stays */
    p->ask->body = p->body.object = w.to;
    return !nothing;
}
