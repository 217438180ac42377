/* engine/api/answer_format.c - the grammar of an answer: calls of a request's tools, or a form that the request asks for:
 * OpenAI's response formats, llama-server's json_schema, vLLM's guided_* and structured_outputs.
 *
 * With tool_choice auto the model decides between text and a call, and the grammar constrains only the
 * call.  If a tool's schema is not supported and no tool is strict, the answer is not constrained.  If
 * a call is required, or a form is requested, an unsupported schema is refused. */
#include "kernels/json.h"
#include "engine/api/messages.h"

#include <stdio.h>
#include <string.h>

struct wish {             /* the form of the answer that a request asks for; all NULL: any text */
    const json_t *schema; /* borrowed from the body, or `made` */
    const char *regex;    /* borrowed */
    const json_t *choices;
    json_t *made;           /* owned: a schema that is not part of the body as such */
    struct eng_fields from; /* the member `name` of this object has the form, for refusals */
    const char *name;
};

static bool is_formed(const struct wish *w) { return w->schema || w->regex || w->choices; }

/* Notes that member `name` of f sets the form; refused if another member did. */
static void note_member(struct wish *w, const struct eng_fields *f, const char *name)
{
    if (is_formed(w))
        eng_field_refuse(f, name, "cannot be combined with '%s%s': a request has one form of its answer", w->from.path,
                         w->name);
    w->from = *f;
    w->name = name;
}

/* Reads member `name` of f, a JSON schema, or one as a string, as vLLM accepts it. */
static void read_schema(struct wish *w, const struct eng_fields *f, const char *name)
{
    json_t *schema = eng_field(f, name);
    json_error_t e = { 0 };
    if (!schema)
        return;
    note_member(w, f, name);
    if (json_is_string(schema) &&
        eng_api_request_depth(json_string_value(schema), json_string_length(schema)) <= ENG_API_MAX_DEPTH)
        schema = w->made = kn_json_load(json_string_value(schema), json_string_length(schema),
                                        JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    if (!schema && kn_json_lacks_memory(&e))
        eng_refuse(f->why, 500, NULL, NULL, "no memory for the response format");
    else if (!json_is_object(schema) && !json_is_boolean(schema))
        eng_field_refuse(f, name, "must be a JSON schema, an object");
    w->schema = schema;
}

static void read_required_schema(struct wish *w, const struct eng_fields *f)
{
    if (!eng_field(f, "schema"))
        eng_field_refuse(f, "schema", "is missing");
    read_schema(w, f, "schema");
}

static void make_any_object(struct wish *w, const struct eng_fields *f, const char *name)
{
    note_member(w, f, name);
    w->schema = w->made = json_pack("{s:s}", "type", "object");
    if (!w->made && !eng_refused(f->why))
        eng_refuse(f->why, 500, NULL, NULL, "no memory for the response format");
}

static void read_regex(struct wish *w, const struct eng_fields *f, const char *name)
{
    const json_t *text = eng_field_string(f, name);
    if (!text)
        return;
    note_member(w, f, name);
    w->regex = json_string_value(text);
    if (strlen(w->regex) != json_string_length(text))
        eng_field_refuse(f, name, "contains a NUL");
}

static void read_choices(struct wish *w, const struct eng_fields *f, const char *name)
{
    const json_t *list = eng_field_array(f, name, ENG_API_MAX_CHOICE_TEXTS), *item;
    size_t i;
    if (!list)
        return;
    note_member(w, f, name);
    w->choices = list;
    if (!json_array_size(list))
        eng_field_refuse(f, name, "is empty");
    json_array_foreach(list, i, item) if (!json_is_string(item)) eng_field_refuse(f, name, "must contain strings only");
}

/* The object with the response format; each dialect has it in another member. */
static struct eng_fields format_of(enum eng_api api, const struct eng_fields *body)
{
    struct eng_fields outer;
    if (api == ENG_API_RESPONSES) {
        outer = eng_field_object(body, "text");
        return eng_field_object(&outer, "format");
    }
    if (api == ENG_API_MESSAGES) {
        outer = eng_field_object(body, "output_config");
        return eng_field_object(&outer, "format");
    }
    return eng_field_object(body, "response_format");
}

static void read_format(struct wish *w, enum eng_api api, const struct eng_fields *body)
{
    static const char *const types[] = { "text", "json_object", "json_schema" };
    enum { TEXT, OBJECT, SCHEMA };
    struct eng_fields f = format_of(api, body);
    int type = eng_field_choice(&f, "type", types, 3);
    bool flat = api == ENG_API_RESPONSES || api == ENG_API_MESSAGES || type == OBJECT;
    if (f.object && type < 0)
        eng_field_refuse(&f, "type", "is missing");
    if (type == OBJECT && !eng_field(&f, "schema")) {
        make_any_object(w, &f, "type");
    } else if (type > TEXT && flat) {
        read_required_schema(w, &f);
    } else if (type == SCHEMA) {
        struct eng_fields inner = eng_field_object(&f, "json_schema");
        if (!inner.object)
            eng_field_refuse(&f, "json_schema", "is missing");
        read_required_schema(w, &inner);
    }
}

/* vLLM's structured_outputs. */
static void read_structured(struct wish *w, const struct eng_fields *f)
{
    static const char *const texts[] = { "grammar", "structural_tag", "whitespace_pattern" };
    static const char *const flags[] = { "disable_any_whitespace", "disable_additional_properties" };
    bool on = false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (eng_field(f, texts[i]))
            eng_field_refuse(f, texts[i], "is not supported: use 'json', 'regex', 'choice' or 'json_object'");
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (eng_field_bool(f, flags[i], &on) && on)
            eng_field_refuse(f, flags[i], "is not supported");
    read_schema(w, f, "json");
    read_regex(w, f, "regex");
    read_choices(w, f, "choice");
    if (eng_field_bool(f, "json_object", &on) && on)
        make_any_object(w, f, "json_object");
}

static void read_wish(struct wish *w, enum eng_api api, const struct eng_fields *body)
{
    *w = (struct wish){ .from = *body, .name = "response_format" };
    read_format(w, api, body);
    if (api != ENG_API_COMPLETIONS && api != ENG_API_CHAT)
        return;
    struct eng_fields structured = eng_field_object(body, "structured_outputs");
    read_schema(w, body, "json_schema"); /* llama-server's name; the others are vLLM's */
    read_schema(w, body, "guided_json");
    read_regex(w, body, "guided_regex");
    read_choices(w, body, "guided_choice");
    read_structured(w, &structured);
}

/* Compiles ask->grammar.  If that fails, the request is refused if it has a format, strict tools or required calls, or
 * if memory is short; else its answer has no grammar. */
static void compile(struct eng_api_request *ask, const struct wish *w, const struct eng_fields *body,
                    const struct eng_api_setup *setup, const struct eng_talk_tools *tools)
{
    static const struct eng_tool_format plain = { .syntax = ENG_SYNTAX_NONE };
    const bool is_plain = ask->api == ENG_API_COMPLETIONS || !setup->tool_format;
    char why[256] = "";
    int error = eng_answer_grammar(&ask->grammar, is_plain ? &plain : setup->tool_format,
                                   &(struct eng_answer_rules){ .tools = tools->list,
                                                               .choice = tools->choice,
                                                               .name = tools->name,
                                                               .parallel = tools->parallel,
                                                               .schema = w->schema,
                                                               .regex = w->regex,
                                                               .choices = w->choices,
                                                               .thinks = ask->thinks,
                                                               .tokens = setup->gr_tokens,
                                                               .continues = ask->continues,
                                                               .in_text = ask->in_text },
                                   why, sizeof why);
    if (error == KN_ENOMEM)
        eng_refuse(body->why, 500, NULL, NULL, "no memory for the grammar of the answer");
    else if (error && is_formed(w) && (!tools->list || tools->choice == ENG_TOOL_AUTO))
        eng_field_refuse(&w->from, w->name, "is refused: %s", why);
    else if (error && (tools->choice != ENG_TOOL_AUTO || tools->strict))
        eng_field_refuse(body, "tools", "are refused: %s", why);
}

void eng_talk_constrain(struct eng_api_request *ask, const struct eng_fields *body, const struct eng_api_setup *setup,
                        const struct eng_talk_tools *tools)
{
    struct wish w;
    bool forced = tools->list && tools->choice != ENG_TOOL_AUTO;
    read_wish(&w, ask->api, body);
    if (ask->api == ENG_API_MESSAGES && ask->continues && is_formed(&w))
        eng_field_refuse(&w.from, w.name, "is not possible if the last message is the assistant's");
    bool wanted = !eng_refused(body->why) && (tools->list || is_formed(&w));
    if (wanted && setup->gr_tokens)
        compile(ask, &w, body, setup, tools);
    else if (wanted && (is_formed(&w) || forced || tools->strict))
        eng_refuse(body->why, 400, NULL, is_formed(&w) ? w.name : "tools",
                   "the model was opened without grammars, so output cannot be constrained");
    json_decref(w.made);
}
