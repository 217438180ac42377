/* engine/tools/schemas.c - checks the tools of a request before a grammar is made of them.
 *
 * In: the tools of a request, the tool choice, and the model's format of calls.  Out: a table of names
 * and schemas (each of type object); or an error that names the tool. */
#include "engine/tools/internal.h"

#include <stdio.h>
#include <string.h>

struct reader {
    struct tool_list *list;
    const struct eng_tool_format *format;
    char *why;
    size_t n_why;
};

static int fail(struct reader *r, int code, const char *name, const char *what)
{
    snprintf(r->why, r->n_why, "tool %.64s: %s", name, what);
    return code;
}

static bool is_plain_name(const char *name)
{
    for (const char *p = name; *p; p++)
        if ((uint8_t)*p < 0x80 && !strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/", *p))
            return false;
    return *name && strlen(name) <= ENG_TOOL_NAME_BYTES;
}

/* For formats that write arguments one by one: the schema must list them in "properties", and their
 * names must be writable in the format. */
static int check_parameters(struct reader *r, const struct tool *t)
{
    static const char *const refused[] = { "anyOf", "oneOf", "allOf", "$ref", "enum", "const" };
    json_t *properties = json_object_get(t->parameters, "properties");
    const json_t *required = json_object_get(t->parameters, "required");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (json_object_get(t->parameters, refused[i]))
            return fail(r, KN_EUNSUPPORTED, t->name,
                        "this model writes arguments one by one: \"parameters\" needs \"properties\", without "
                        "anyOf, oneOf, allOf, $ref, enum or const beside them");
    if (properties && !json_is_object(properties))
        return fail(r, KN_EINVAL, t->name, "\"properties\" is not an object");
    if (json_object_size(properties) > MOST_PARAMETERS)
        return fail(r, KN_ELIMIT, t->name, "the tool has more than 256 parameters");
    for (void *i = json_object_iter(properties); i; i = json_object_iter_next(properties, i)) {
        const char *key = json_object_iter_key(i);
        size_t n = strlen(key);
        if (!n || n != json_object_iter_key_len(i) || n > ENG_ANSWER_NAME_BYTES || strpbrk(key, "<>"))
            return fail(r, KN_EUNSUPPORTED, t->name,
                        "this model cannot write parameter names that are empty, longer than 256 "
                        "bytes or contain < or >");
        if (r->format->syntax == ENG_SYNTAX_PYTHONIC && !is_plain_name(key))
            return fail(r, KN_EUNSUPPORTED, t->name,
                        "this model can only write parameter names of 1 to 128 letters, digits "
                        "and _-.:/");
        if (r->format->syntax == ENG_SYNTAX_INVOKE && strchr(key, '"'))
            return fail(r, KN_EUNSUPPORTED, t->name, "this model cannot write parameter names with a quotation mark");
        for (const char *p = key; *p; p++)
            if ((uint8_t)*p < ' ')
                return fail(r, KN_EUNSUPPORTED, t->name, "a parameter's name contains a control character");
    }
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name || !json_object_get(properties, name))
            return fail(r, KN_EINVAL, t->name, "\"required\" names a parameter that is not in \"properties\"");
    }
    return 0;
}

static int add_tool(struct reader *r, const json_t *entry)
{
    const json_t *f = eng_tool_function(entry), *name = json_object_get(f, "name");
    json_t *parameters = json_object_get(f, "parameters");
    struct tool *t = &r->list->tool[r->list->n];
    if (!json_is_string(name) || !is_plain_name(json_string_value(name)))
        return fail(r, KN_EINVAL, json_is_string(name) ? json_string_value(name) : "",
                    "a name is 1 to 128 letters, digits and _-.:/");
    t->name = json_string_value(name);
    t->parameters = json_is_object(parameters) ? json_copy(parameters) : json_object();
    if (!t->parameters || json_array_append_new(r->list->made, t->parameters))
        return fail(r, KN_ENOMEM, t->name, "no memory for its schema");
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return fail(r, KN_EINVAL, t->name, "\"parameters\" is not an object");
    if (!json_object_get(t->parameters, "type"))
        json_object_set_new(t->parameters, "type", json_string("object"));
    if (json_object_size(t->parameters) == 1)
        json_object_set_new(t->parameters, "properties", json_object());
    const char *type = json_string_value(json_object_get(t->parameters, "type"));
    if (!type || strcmp(type, "object"))
        return fail(r, KN_EINVAL, t->name, "the type of \"parameters\" must be \"object\"");
    r->list->n++;
    if (r->format->syntax == ENG_SYNTAX_QWEN_XML || r->format->syntax == ENG_SYNTAX_GLM ||
        r->format->syntax == ENG_SYNTAX_INVOKE || r->format->syntax == ENG_SYNTAX_PYTHONIC)
        return check_parameters(r, t);
    return 0;
}

int eng_tool_list(struct tool_list *out, const struct eng_tool_format *s, const struct eng_answer_rules *t, char *why,
                  size_t n_why)
{
    struct reader r = { out, s, why, n_why };
    for (size_t i = 0; i < json_array_size(t->tools); i++) {
        const json_t *entry = json_array_get(t->tools, i);
        const char *name = json_string_value(json_object_get(eng_tool_function(entry), "name"));
        if (t->choice == ENG_TOOL_NAMED && (!name || strcmp(name, t->name)))
            continue;
        if (out->n == MOST_TOOLS) {
            snprintf(why, n_why, "more than %d tools", MOST_TOOLS);
            return KN_ELIMIT;
        }
        int error = add_tool(&r, entry);
        if (error)
            return error;
    }
    if (out->n)
        return 0;
    snprintf(why, n_why, "tool_choice: there is no tool named %.64s", t->name);
    return KN_EINVAL;
}
