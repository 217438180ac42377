/* engine/api/generic_tools.c - tools for a chat template that does not express them.
 *
 * If the template does not list tools, a text in the system message does.  If the template has no tool calls either, or in
 * a form that is not known, calls and results get a generic form in plain text.
 *
 * In: messages in the form of chat completions, and the tools of a request.  Out: with the generic form,
 * messages without tool calls and without the role tool, which every template can render.  The text asks for calls as JSON
 * between <tool_call> and </tool_call>; earlier calls and their results become texts of the same form.  engine/tools parses and constrains such calls as those of any other format (eng_tool_format_generic). */
#include "engine/api/messages.h"

#include <string.h>

struct rewriting {
    const struct eng_api_setup *setup;
    json_t *from, *to; /* messages */
    bool failed;       /* no memory */
};

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static void set_content(struct rewriting *w, json_t *message, struct eng_bytes *text)
{
    json_t *v = text->failed ? NULL : json_stringn_nocheck(text->n ? text->data : "", text->n);
    w->failed |= json_object_set_new_nocheck(message, "content", v) != 0;
    eng_bytes_free(text);
}

static void add_string(struct eng_bytes *out, const json_t *text)
{
    eng_bytes_add(out, json_string_value(text), json_string_length(text));
}

/* ---- earlier calls and results --------------------------------------------------------------- */

static void write_call(struct eng_bytes *out, const json_t *call)
{
    const json_t *f = json_object_get(call, "function"), *name = json_object_get(f, "name");
    const json_t *given = json_object_get(f, "arguments");
    eng_bytes_text(out, ENG_GENERIC_CALL "\n{\"name\": ");
    eng_bytes_quote(out, json_string_value(name), json_string_length(name));
    eng_bytes_text(out, ", \"arguments\": ");
    if (json_is_string(given))
        add_string(out, given);
    else
        eng_bytes_json(out, given);
    eng_bytes_text(out, "}\n" ENG_GENERIC_CALL_END);
}

/* The assistant's message with its calls as text. */
static void add_calls(struct rewriting *w, json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    struct eng_bytes text = { 0 };
    add_string(&text, json_object_get(message, "content"));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        eng_bytes_text(&text, text.n ? "\n" : "");
        write_call(&text, json_array_get(calls, i));
    }
    json_t *out = json_copy(message);
    json_object_del(out, "tool_calls");
    w->failed |= json_array_append_new(w->to, out) != 0;
    set_content(w, out, &text);
}

/* Adds text to a message of the user: the last one, because many templates want the roles to alternate, or a new one. */
static void add_to_user(struct rewriting *w, struct eng_bytes *more)
{
    size_t n = json_array_size(w->to);
    json_t *last = n ? json_array_get(w->to, n - 1) : NULL;
    struct eng_bytes text = { 0 };
    if (!last || strcmp(role_of(last), "user") != 0) {
        last = json_pack("{s:s}", "role", "user");
        w->failed |= json_array_append_new(w->to, last) != 0;
    } else {
        add_string(&text, json_object_get(last, "content"));
        eng_bytes_text(&text, "\n");
    }
    eng_bytes_add(&text, more->data, more->n);
    text.failed |= more->failed;
    eng_bytes_free(more);
    set_content(w, last, &text);
}

static void add_result(struct rewriting *w, const json_t *message)
{
    struct eng_bytes text = { 0 };
    eng_bytes_text(&text, "<tool_response>\n");
    add_string(&text, json_object_get(message, "content"));
    eng_bytes_text(&text, "\n</tool_response>");
    add_to_user(w, &text);
}

/* Adds all messages, with calls and results as text. */
static void rewrite(struct rewriting *w)
{
    bool after_result = false;
    json_t *m;
    size_t i;
    json_array_foreach(w->from, i, m)
    {
        bool is_result = !strcmp(role_of(m), "tool");
        struct eng_bytes text = { 0 };
        if (is_result) {
            add_result(w, m);
        } else if (after_result && !strcmp(role_of(m), "user")) {
            add_string(&text, json_object_get(m, "content"));
            add_to_user(w, &text);
        } else if (json_array_size(json_object_get(m, "tool_calls"))) {
            add_calls(w, m);
        } else {
            w->failed |= json_array_append_new(w->to, json_copy(m)) != 0;
        }
        after_result = is_result || (after_result && !strcmp(role_of(m), "user"));
    }
}

/* ---- the tools ------------------------------------------------------------------------------- */

static void write_form(struct eng_bytes *out)
{
    eng_bytes_text(out,
                   "\nTo call a tool, write its name and its arguments as JSON, in this form and without other text:\n"
                   "" ENG_GENERIC_CALL "\n{\"name\": \"tool name\", \"arguments\": {\"argument name\": \"value\"}}\n"
                   "" ENG_GENERIC_CALL_END "\n\nYou then get the result between <tool_response> and "
                   "</tool_response>. ");
}

static void write_tools(const struct rewriting *w, struct eng_bytes *out, const struct eng_talk_tools *tools)
{
    json_t *tool;
    size_t i;
    eng_bytes_text(out, "You can call tools. These are their descriptions, one JSON object a line:\n");
    json_array_foreach(tools->list, i, tool)
    {
        eng_bytes_json(out, json_object_get(tool, "function"));
        eng_bytes_text(out, "\n");
    }
    if (w->setup->generic_tools)
        write_form(out);
    else
        eng_bytes_text(out, "\nCall tools in the form that you were trained to write. ");
    eng_bytes_text(out, tools->parallel ? "You can write several calls, one after another. " : "Write only one call. ");
    if (tools->choice == ENG_TOOL_NAMED)
        eng_bytes_format(out, "Now call the tool %s.", tools->name);
    else
        eng_bytes_text(out, tools->choice == ENG_TOOL_REQUIRED ? "Now call a tool."
                                                               : "If no tool is needed, answer in plain text.");
}

/* The message that gets the text about the tools: the system's, or the first of the user if the template has no system
 * messages.  It is made if it does not exist. */
static json_t *message_for_tools(struct rewriting *w, bool *made)
{
    const char *role = w->setup->no_system ? "user" : "system";
    json_t *m;
    size_t i;
    *made = false;
    json_array_foreach(w->to, i, m) if (!strcmp(role_of(m), role)) return m;
    *made = true;
    m = json_pack("{s:s, s:s}", "role", role, "content", "");
    if (!m || json_array_insert_new(w->to, 0, m)) {
        w->failed = true;
        return NULL;
    }
    return m;
}

static void tell_tools(struct rewriting *w, const struct eng_talk_tools *tools)
{
    bool made;
    json_t *m = message_for_tools(w, &made);
    struct eng_bytes text = { 0 };
    if (w->setup->no_system)
        write_tools(w, &text, tools);
    if (m && w->setup->no_system)
        eng_bytes_text(&text, made ? "" : "\n\n");
    add_string(&text, json_object_get(m, "content"));
    if (!w->setup->no_system) {
        eng_bytes_text(&text, text.n ? "\n\n" : "");
        write_tools(w, &text, tools);
    }
    if (m)
        set_content(w, m, &text);
    else
        eng_bytes_free(&text);
}

json_t *eng_talk_generic(json_t *messages, const struct eng_talk_tools *tools, const struct eng_fields *body,
                         const struct eng_api_setup *setup)
{
    struct rewriting w = { .setup = setup, .from = messages, .to = json_array() };
    if (w.to && setup->generic_tools)
        rewrite(&w);
    else
        w.failed = !w.to || json_array_extend(w.to, messages);
    if (!w.failed && json_array_size(tools->list))
        tell_tools(&w, tools);
    json_decref(messages);
    if (!w.failed)
        return w.to;
    json_decref(w.to);
    if (!eng_refused(body->why))
        eng_refuse(body->why, 500, NULL, NULL, "no memory for the messages");
    return NULL;
}
