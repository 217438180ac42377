/* engine/api/messages.c - converts the conversations of three dialects to the messages of a chat template. */
#include "kernels/json.h"
#include "engine/api/messages.h"

#include <string.h>

struct talk {
    const struct eng_api_setup *setup;
    const char *thoughts; /* name of the member of a message in which the template expects reasoning */
    struct eng_refusal *why;
    json_t *messages; /* [{"role": .., "content": .., ..}] */
    json_t *names;    /* call id to tool name, of the calls so far */
};

static void no_memory(struct talk *t)
{
    if (!eng_refused(t->why))
        eng_refuse(t->why, 500, NULL, NULL, "no memory for the messages");
}

/* ---- building messages ----------------------------------------------------------------------- */

static void set(struct talk *t, json_t *object, const char *name, json_t *value)
{
    if (json_object_set_new_nocheck(object, name, value))
        no_memory(t);
}

/* Appends a message and returns it, borrowed; NULL: no memory.  Its content is a list of strings until join_texts. */
static json_t *add_message(struct talk *t, const char *role)
{
    json_t *m = json_pack("{s:s, s:[]}", "role", role, "content");
    if (m && !json_array_append_new(t->messages, m))
        return m;
    no_memory(t);
    return NULL;
}

static json_t *last_message(const struct talk *t, const char *role)
{
    size_t n = json_array_size(t->messages);
    json_t *last = n ? json_array_get(t->messages, n - 1) : NULL;
    const char *its = json_string_value(json_object_get(last, "role"));
    return its && !strcmp(its, role) ? last : NULL;
}

/* The last message if it has this role, else a new one: consecutive items or blocks of one role share a message. */
static json_t *turn(struct talk *t, const char *role)
{
    json_t *last = last_message(t, role);
    return last ? last : add_message(t, role);
}

static void add_text(struct talk *t, json_t *m, const char *name, json_t *text)
{
    json_t *pieces = json_object_get(m, name);
    if (!pieces && m) {
        pieces = json_array();
        set(t, m, name, pieces);
    }
    if (json_string_length(text) && json_array_append(pieces, text))
        no_memory(t);
}

/* Replaces the list of strings in member `name` by one string, with a line end between them. */
static void join_texts(struct talk *t, json_t *m, const char *name)
{
    json_t *pieces = json_object_get(m, name), *piece;
    struct eng_bytes b = { 0 };
    size_t i;
    if (!pieces)
        return;
    json_array_foreach(pieces, i, piece)
    {
        eng_bytes_add(&b, "\n", i > 0);
        eng_bytes_add(&b, json_string_value(piece), json_string_length(piece));
    }
    set(t, m, name, b.failed ? NULL : json_stringn_nocheck(b.n ? b.data : "", b.n));
    eng_bytes_free(&b);
}

/* The arguments of a call in the form that the template needs, a new reference.  given: JSON text, an object, or
 * NULL.  The result is an object, because it gives the better prompt; but text if the template needs it
 * (setup->text_arguments), or if the text is not a JSON object. */
static json_t *arguments(struct talk *t, json_t *given)
{
    json_t *object = NULL;
    json_error_t e = { 0 };
    if (!given || (json_is_string(given) && !json_string_length(given)))
        return t->setup->text_arguments ? json_string("{}") : json_object();
    if (json_is_object(given) && t->setup->text_arguments) {
        struct eng_bytes b = { 0 };
        eng_bytes_json(&b, given);
        object = b.failed ? NULL : json_stringn_nocheck(b.data, b.n);
        eng_bytes_free(&b);
        return object;
    }
    if (json_is_string(given) && !t->setup->text_arguments) {
        const char *text = json_string_value(given);
        size_t n = json_string_length(given);
        if (eng_api_request_depth(text, n) <= ENG_API_MAX_DEPTH)
            object = kn_json_load(text, n, JSON_ALLOW_NUL, &e);
        if (!object && kn_json_lacks_memory(&e))
            no_memory(t);
        if (!json_is_object(object)) {
            json_decref(object);
            object = NULL;
        }
    }
    return object ? object : json_deep_copy(given);
}

static void add_call(struct talk *t, json_t *m, const json_t *id, const json_t *name, json_t *given)
{
    json_t *calls = json_object_get(m, "tool_calls");
    if (!calls) {
        calls = json_array();
        set(t, m, "tool_calls", calls);
    }
    json_t *call = json_pack("{s:s, s:o, s:{s:o, s:o}}", "type", "function", "id",
                             id ? json_deep_copy(id) : json_string(""), "function", "name", json_deep_copy(name),
                             "arguments", arguments(t, given));
    if (!call || json_array_append_new(calls, call))
        no_memory(t);
    if (id && json_string_length(id) && strlen(json_string_value(id)) == json_string_length(id))
        set(t, t->names, json_string_value(id), json_deep_copy(name));
}

/* Appends a message for the result of the call `id`; the caller adds the content.  Some templates need the tool's name,
 * so it is set if an earlier message has this call. */
static json_t *add_result(struct talk *t, const json_t *id)
{
    json_t *m = add_message(t, "tool");
    json_t *name = id ? json_object_get(t->names, json_string_value(id)) : NULL;
    if (id)
        set(t, m, "tool_call_id", json_deep_copy(id));
    if (name)
        set(t, m, "name", json_deep_copy(name));
    return m;
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* The text of one part, or NULL after a refusal. */
static json_t *part_text(const struct eng_fields *part)
{
    static const char *const text[] = { "text", "input_text", "output_text", "reasoning_text", "summary_text" };
    const char *type = json_string_value(eng_field_string(part, "type"));
    json_t *value;
    if (eng_refused(part->why))
        return NULL;
    for (size_t i = 0; type && i < sizeof text / sizeof *text; i++)
        if (!strcmp(type, text[i])) {
            if (!(value = eng_field_string(part, "text")))
                eng_field_refuse(part, "text", "is missing");
            return value;
        }
    if (type && !strcmp(type, "refusal")) {
        if (!(value = eng_field_string(part, "refusal")))
            eng_field_refuse(part, "refusal", "is missing");
        return value;
    }
    eng_field_refuse(part, "type",
                     type ? "is '%.40s': only text is supported, no images, audio "
                            "or files"
                          : "is missing",
                     type);
    return NULL;
}

/* Adds the text of f's member `name`, a string or a list of text parts, to member `to` of message m. */
static void add_member(struct talk *t, json_t *m, const char *to, const struct eng_fields *f, const char *name)
{
    json_t *value = eng_field(f, name), *part;
    size_t i;
    if (json_is_string(value)) {
        add_text(t, m, to, value);
        return;
    }
    if (value && !json_is_array(value))
        eng_field_refuse(f, name, "must be a string or a list of parts");
    value = eng_field_array(f, name, ENG_API_MAX_MESSAGES);
    json_array_foreach(value, i, part)
    {
        struct eng_fields in = eng_field_item(f, name, i, part);
        add_text(t, m, to, part_text(&in));
        if (eng_refused(t->why))
            return;
    }
}

static void add_content(struct talk *t, json_t *m, const struct eng_fields *f, const char *name)
{
    if (!eng_field(f, name))
        eng_field_refuse(f, name, "is missing");
    add_member(t, m, "content", f, name);
}

static json_t *required_string(const struct eng_fields *f, const char *name)
{
    json_t *text = eng_field_string(f, name);
    if (!text)
        eng_field_refuse(f, name, "is missing");
    return text;
}

/* ---- chat completions ------------------------------------------------------------------------ */

static void read_calls(struct talk *t, const struct eng_fields *f, json_t *m)
{
    json_t *calls = eng_field_array(f, "tool_calls", ENG_API_MAX_TOOLS), *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        struct eng_fields in = eng_field_item(f, "tool_calls", i, call);
        struct eng_fields function = eng_field_object(&in, "function");
        json_t *id = eng_field_string(&in, "id"), *name = required_string(&function, "name");
        json_t *given = eng_field(&function, "arguments");
        if (given && !json_is_string(given) && !json_is_object(given))
            eng_field_refuse(&function, "arguments", "must be a string of JSON");
        if (eng_refused(t->why))
            return;
        add_call(t, m, id, name, given);
    }
}

static void read_chat_message(struct talk *t, const struct eng_fields *f)
{
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool", "function" };
    enum { SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL, FUNCTION };
    int role = eng_field_choice(f, "role", roles, 6);
    json_t *m;
    if (role < 0) {
        eng_field_refuse(f, "role", "is missing");
    } else if (role == TOOL || role == FUNCTION) {
        m = add_result(t, eng_field_string(f, "tool_call_id"));
        add_content(t, m, f, "content");
    } else if (role != ASSISTANT) {
        m = add_message(t, role == DEVELOPER ? "system" : roles[role]);
        add_content(t, m, f, "content");
    } else {
        json_t *thoughts = eng_field_string(f, "reasoning_content");
        thoughts = thoughts ? thoughts : eng_field_string(f, "reasoning");
        m = add_message(t, "assistant");
        add_member(t, m, "content", f, "content");
        if (thoughts)
            add_text(t, m, t->thoughts, thoughts);
        read_calls(t, f, m);
    }
}

/* ---- responses ------------------------------------------------------------------------------- */

static void read_item_message(struct talk *t, const struct eng_fields *f)
{
    static const char *const roles[] = { "system", "developer", "user", "assistant" };
    int role = eng_field_choice(f, "role", roles, 4);
    if (role < 0)
        eng_field_refuse(f, "role", "is missing");
    else
        add_content(t, role == 3 ? turn(t, "assistant") : add_message(t, role == 2 ? "user" : "system"), f, "content");
}

static void read_item(struct talk *t, const struct eng_fields *f)
{
    static const char *const types[] = { "message", "function_call", "function_call_output", "reasoning" };
    enum { MESSAGE, CALL, OUTPUT, REASONING };
    int type = eng_field_choice(f, "type", types, 4);
    if (type == CALL) {
        json_t *id = required_string(f, "call_id"), *name = required_string(f, "name");
        json_t *given = required_string(f, "arguments");
        if (!eng_refused(t->why))
            add_call(t, turn(t, "assistant"), id, name, given);
    } else if (type == OUTPUT) {
        json_t *m = add_result(t, required_string(f, "call_id"));
        add_content(t, m, f, "output");
    } else if (type == REASONING) { /* use its content if present; the summary is for display */
        if (eng_field(f, "content"))
            add_member(t, turn(t, "assistant"), t->thoughts, f, "content");
    } else {
        read_item_message(t, f);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static void read_block(struct talk *t, const struct eng_fields *f, const char *role)
{
    const char *type = json_string_value(eng_field_string(f, "type"));
    bool is_user = strcmp(role, "user") == 0, is_assistant = strcmp(role, "assistant") == 0;
    if (type && !strcmp(type, "tool_use") && is_assistant) {
        json_t *id = required_string(f, "id"), *name = required_string(f, "name");
        struct eng_fields input = eng_field_object(f, "input");
        if (!eng_refused(t->why))
            add_call(t, turn(t, role), id, name, input.object);
    } else if (type && !strcmp(type, "tool_result") && is_user) {
        json_t *m = add_result(t, required_string(f, "tool_use_id"));
        add_member(t, m, "content", f, "content");
    } else if (type && !strcmp(type, "thinking") && is_assistant) {
        json_t *thoughts = required_string(f, "thinking");
        add_text(t, turn(t, role), t->thoughts, thoughts);
    } else if (!type || !is_assistant || strcmp(type, "redacted_thinking") != 0) {
        json_t *text = part_text(f);
        add_text(t, turn(t, role), "content", text);
    }
}

static void read_turn(struct talk *t, const struct eng_fields *f)
{
    static const char *const roles[] = { "user", "assistant", "system" };
    int role = eng_field_choice(f, "role", roles, 3);
    json_t *content = eng_field(f, "content"), *block;
    size_t i;
    if (role < 0)
        eng_field_refuse(f, "role", "is missing");
    else if (!json_array_size(content)) /* a string, absent, empty or invalid */
        add_content(t, turn(t, roles[role]), f, "content");
    content = json_is_array(content) ? eng_field_array(f, "content", ENG_API_MAX_MESSAGES) : NULL;
    json_array_foreach(content, i, block)
    {
        struct eng_fields in = eng_field_item(f, "content", i, block);
        if (eng_refused(t->why))
            return;
        read_block(t, &in, roles[role]);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void read_list(struct talk *t, const struct eng_fields *body, const char *name,
                      void (*read)(struct talk *t, const struct eng_fields *f))
{
    json_t *list = eng_field_array(body, name, ENG_API_MAX_MESSAGES), *item;
    size_t i;
    if (!json_array_size(list))
        eng_field_refuse(body, name, list ? "is empty" : "is missing");
    json_array_foreach(list, i, item)
    {
        struct eng_fields f = eng_field_item(body, name, i, item);
        if (eng_refused(t->why))
            return;
        read(t, &f);
    }
}

static bool is_harmony(const struct eng_api_setup *setup)
{
    return setup->tool_format && setup->tool_format->syntax == ENG_SYNTAX_HARMONY;
}

const char *eng_talk_thoughts(const struct eng_api_setup *setup)
{
    return is_harmony(setup) ? "thinking" : "reasoning_content";
}

json_t *eng_talk_messages(enum eng_api api, const struct eng_fields *body, const struct eng_api_setup *setup)
{
    struct talk t = { .setup = setup,
                      .why = body->why,
                      .thoughts = eng_talk_thoughts(setup),
                      .messages = json_array(),
                      .names = json_object() };
    const char *before = api == ENG_API_RESPONSES ? "instructions" : "system";
    json_t *m;
    size_t i;
    if (!t.messages || !t.names)
        no_memory(&t);
    if (api != ENG_API_CHAT && eng_field(body, before))
        add_content(&t, add_message(&t, "system"), body, before);
    if (api == ENG_API_CHAT)
        read_list(&t, body, "messages", read_chat_message);
    else if (api == ENG_API_MESSAGES)
        read_list(&t, body, "messages", read_turn);
    else if (json_is_string(eng_field(body, "input")))
        add_content(&t, add_message(&t, "user"), body, "input");
    else
        read_list(&t, body, "input", read_item);
    json_array_foreach(t.messages, i, m)
    {
        join_texts(&t, m, "content");
        join_texts(&t, m, t.thoughts);
        if (is_harmony(setup) && json_string_length(json_object_get(m, "content")))
            json_object_del(m, t.thoughts); /* the gpt-oss template accepts content or reasoning, not both */
    }
    json_decref(t.names);
    if (!eng_refused(t.why))
        return t.messages;
    json_decref(t.messages);
    return NULL;
}

/* A message with text and calls becomes two: the template writes the text behind the calls' results. */
static int text_apart(json_t *messages, size_t *at, json_t *call)
{
    json_t *text = json_object_get(call, "content");
    if (!json_string_length(text))
        return 0;
    json_t *before = json_pack("{s:s, s:O}", "role", "assistant", "content", text);
    if (!before || json_object_del(call, "content") || json_array_insert_new(messages, *at, before))
        return -1;
    ++*at;
    return 0;
}

bool eng_talk_fold_results(json_t *messages)
{
    json_t *call = NULL;
    size_t at = 0; /* of call */
    bool failed = false;
    for (size_t i = 0; i < json_array_size(messages) && !failed;) {
        json_t *m = json_array_get(messages, i), *result;
        if (strcmp(json_string_value(json_object_get(m, "role")), "tool") != 0) {
            call = json_object_get(m, "tool_calls") ? m : NULL;
            at = i++;
            continue;
        }
        if (!call) {
            call = json_pack("{s:s}", "role", "assistant");
            failed = !call || json_array_insert_new(messages, i++, call);
        }
        if (!failed && !json_object_get(call, "tool_responses")) {
            size_t before = at;
            failed = text_apart(messages, &at, call) || json_object_set_new(call, "tool_responses", json_array());
            i += at - before;
        }
        result = json_pack("{s:O*, s:O*}", "name", json_object_get(m, "name"), "response",
                           json_object_get(m, "content"));
        failed |= !result || json_array_append_new(json_object_get(call, "tool_responses"), result);
        failed |= json_array_remove(messages, i) != 0;
    }
    return !failed;
}
