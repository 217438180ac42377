/* engine/api/tool_choice.c - reads the parts of a conversation that are not messages: tools, tool_choice, reasoning
 * effort. */
#include "engine/api/messages.h"

#include <string.h>

/* ---- tools ----------------------------------------------------------------------------------- */

/* Names of tools are written in prompts and between markers, so their characters are restricted. */
static void check_name(const struct eng_fields *f, const struct eng_talk_tools *t)
{
    const char *name = json_string_value(eng_field_string(f, "name"));
    json_t *other;
    size_t i;
    if (!name || !*name || strlen(name) > ENG_TOOL_NAME_BYTES) {
        eng_field_refuse(f, "name", "must be a name of 1 to %d letters", ENG_TOOL_NAME_BYTES);
        return;
    }
    for (const char *c = name; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
              strchr("_-.:/", *c))) {
            eng_field_refuse(f, "name", "may contain letters, digits and _ - . : / only");
            return;
        }
    json_array_foreach(t->list, i, other)
    {
        json_t *its = json_object_get(json_object_get(other, "function"), "name");
        if (!strcmp(json_string_value(its), name))
            eng_field_refuse(f, "name", "is used by two tools: '%s'", name);
    }
}

/* The tool that f describes, in the form of chat completions, a new reference.  parameters: the name of the member of f
 * that holds the schema of the arguments. */
static json_t *function_of(const struct eng_fields *f, const char *parameters)
{
    json_t *text = eng_field_string(f, "description");
    struct eng_fields schema = eng_field_object(f, parameters);
    json_t *function = json_pack("{s:O*, s:O*}", "name", eng_field(f, "name"), "description", text);
    if (function && schema.object && json_object_set_new(function, "parameters", json_deep_copy(schema.object))) {
        json_decref(function);
        function = NULL;
    }
    return json_pack("{s:s, s:o}", "type", "function", "function", function);
}

static void read_tool(struct eng_talk_tools *t, enum eng_api api, const struct eng_fields *f)
{
    struct eng_fields in = *f;
    const char *type = json_string_value(eng_field_string(f, "type"));
    bool is_function = !type || !strcmp(type, api == ENG_API_MESSAGES ? "custom" : "function");
    if (!is_function && api != ENG_API_CHAT)
        return; /* a tool that the server itself would run, such as web search: ignored */
    if (!is_function)
        eng_field_refuse(f, "type", "must be 'function'");
    if (api == ENG_API_CHAT) {
        in = eng_field_object(f, "function");
        if (!in.object)
            eng_field_refuse(f, "function", "is missing");
    }
    check_name(&in, t);
    bool strict = false;
    eng_field_bool(&in, "strict", &strict);
    t->strict |= strict;
    json_t *tool = function_of(&in, api == ENG_API_MESSAGES ? "input_schema" : "parameters");
    if (eng_refused(f->why))
        json_decref(tool);
    else if (!tool || json_array_append_new(t->list, tool))
        eng_refuse(f->why, 500, NULL, NULL, "no memory for the tools");
}

/* Reads a tool_choice that is an object. */
static void read_named(struct eng_talk_tools *t, enum eng_api api, const struct eng_fields *f)
{
    static const char *const types[] = { "function", "tool", "auto", "any", "none" };
    static const enum eng_tool_choice choices[] = { ENG_TOOL_NAMED, ENG_TOOL_NAMED, ENG_TOOL_AUTO, ENG_TOOL_REQUIRED,
                                                    ENG_TOOL_NONE };
    bool alone = false;
    int type = eng_field_choice(f, "type", types, api == ENG_API_MESSAGES ? 5 : 1);
    if (type < 0) {
        eng_field_refuse(f, "type", "is missing");
        return;
    }
    t->choice = choices[type];
    if (t->choice == ENG_TOOL_NAMED) {
        struct eng_fields in = api == ENG_API_CHAT ? eng_field_object(f, "function") : *f;
        t->name = json_string_value(eng_field_string(&in, "name"));
        if (!t->name)
            eng_field_refuse(&in, "name", "is missing");
    }
    if (api == ENG_API_MESSAGES && eng_field_bool(f, "disable_parallel_tool_use", &alone))
        t->parallel = !alone;
}

static void read_choice(struct eng_talk_tools *t, enum eng_api api, const struct eng_fields *body)
{
    static const char *const words[] = { "auto", "none", "required" };
    static const enum eng_tool_choice choices[] = { ENG_TOOL_AUTO, ENG_TOOL_NONE, ENG_TOOL_REQUIRED };
    if (json_is_object(eng_field(body, "tool_choice"))) {
        struct eng_fields f = eng_field_object(body, "tool_choice");
        read_named(t, api, &f);
    } else {
        int word = eng_field_choice(body, "tool_choice", words, 3);
        if (word >= 0)
            t->choice = choices[word];
    }
}

static void check_choice(const struct eng_talk_tools *t, const struct eng_fields *body)
{
    json_t *tool;
    size_t i;
    if (t->choice == ENG_TOOL_REQUIRED && !json_array_size(t->list))
        eng_field_refuse(body, "tool_choice", "requires a tool call, but there are no tools");
    if (t->choice != ENG_TOOL_NAMED || eng_refused(body->why))
        return;
    json_array_foreach(t->list, i, tool)
    {
        json_t *its = json_object_get(json_object_get(tool, "function"), "name");
        if (!strcmp(json_string_value(its), t->name))
            return;
    }
    eng_field_refuse(body, "tool_choice", "names a tool that does not exist: '%.128s'", t->name);
}

void eng_talk_tools(struct eng_talk_tools *out, enum eng_api api, const struct eng_fields *body)
{
    json_t *tools = eng_field_array(body, "tools", ENG_API_MAX_TOOLS), *tool;
    size_t i;
    *out = (struct eng_talk_tools){ .choice = ENG_TOOL_AUTO, .parallel = true, .list = json_array() };
    if (!out->list)
        eng_refuse(body->why, 500, NULL, NULL, "no memory for the tools");
    json_array_foreach(tools, i, tool)
    {
        struct eng_fields f = eng_field_item(body, "tools", i, tool);
        if (eng_refused(body->why))
            break;
        read_tool(out, api, &f);
    }
    eng_field_bool(body, "parallel_tool_calls", &out->parallel);
    read_choice(out, api, body);
    check_choice(out, body);
    if (out->choice == ENG_TOOL_NAMED)
        out->parallel = false; /* this one call is the answer, as with vLLM */
    if (eng_refused(body->why) || !json_array_size(out->list)) {
        json_decref(out->list);
        out->list = NULL;
    }
}

/* ---- reasoning ------------------------------------------------------------------------------- */

/* The template variables that chat_template_kwargs may set.  All are about reasoning, so none can replace a part of the
 * conversation. */
static const char *const kwargs[] = { "enable_thinking",   "thinking",       "reasoning_effort",  "thinking_budget",
                                      "preserve_thinking", "clear_thinking", "keep_past_thinking" };
enum { KWARG_BYTES = 64 };

static void set_thinking(json_t *variables, bool on)
{
    json_object_set_new(variables, "enable_thinking", json_boolean(on));
    json_object_set_new(variables, "thinking", json_boolean(on));
}

static void read_effort(json_t *variables, const struct eng_fields *f, const char *name)
{
    static const char *const words[] = { "none", "minimal", "low", "medium", "high", "xhigh", "max" };
    int word = eng_field_choice(f, name, words, 7);
    if (word < 0)
        return;
    set_thinking(variables, word > 0);
    if (word > 0)
        json_object_set_new(variables, "reasoning_effort", json_string(words[word]));
}

void eng_talk_thinking(json_t *variables, enum eng_api api, const struct eng_fields *body)
{
    static const char *const types[] = { "enabled", "disabled", "adaptive" };
    struct eng_fields in = eng_field_object(body, "chat_template_kwargs");
    const char *name;
    json_t *value;
    if (api == ENG_API_CHAT) {
        read_effort(variables, body, "reasoning_effort");
    } else if (api == ENG_API_RESPONSES) {
        struct eng_fields reasoning = eng_field_object(body, "reasoning");
        read_effort(variables, &reasoning, "effort");
    } else {
        struct eng_fields thinking = eng_field_object(body, "thinking");
        int type = eng_field_choice(&thinking, "type", types, 3);
        if (type == 0 || type == 1)
            set_thinking(variables, type == 0);
    }
    json_object_foreach(in.object, name, value)
    {
        int i = (int)(sizeof kwargs / sizeof *kwargs) - 1;
        while (i >= 0 && strcmp(kwargs[i], name) != 0)
            i--;
        if (i < 0)
            eng_field_refuse(&in, name,
                             "is not a variable that a request may set; allowed are enable_thinking, "
                             "reasoning_effort and similar names");
        else if (json_is_object(value) || json_is_array(value) || json_string_length(value) > KWARG_BYTES)
            eng_field_refuse(&in, name, "must be true, false, a number or a short string");
        else
            json_object_set(variables, name, value);
    }
}
