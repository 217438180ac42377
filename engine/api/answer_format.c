/* engine/api/answer_format.c - the grammar of an answer: calls of a request's tools, or a response format.
 *
 * With tool_choice auto the model decides between text and a call, and the grammar constrains only the
 * call.  If a tool's schema is not supported and no tool is strict, the answer is not constrained.  If
 * a call is required, or a response format is requested, an unsupported schema is refused. */
#include "engine/api/messages.h"

#include <stdio.h>
#include <string.h>

struct wish {               /* the response format that a request asks for */
    json_t *schema;         /* borrowed from the body, or `made`; NULL: any text */
    json_t *made;           /* owned: the schema of any object, for type json_object */
    struct eng_fields from; /* the object with the schema, for refusals */
};

static void read_schema(struct wish *w, const struct eng_fields *f)
{
    json_t *schema = eng_field(f, "schema");
    if (!schema)
        eng_field_refuse(f, "schema", "is missing");
    else if (!json_is_object(schema) && !json_is_boolean(schema))
        eng_field_refuse(f, "schema", "must be a JSON schema, an object");
    w->schema = schema;
    w->from = *f;
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

static void read_wish(struct wish *w, enum eng_api api, const struct eng_fields *body)
{
    static const char *const types[] = { "text", "json_object", "json_schema" };
    enum { TEXT, OBJECT, SCHEMA };
    struct eng_fields f = format_of(api, body);
    int type = eng_field_choice(&f, "type", types, 3);
    bool flat = api == ENG_API_RESPONSES || api == ENG_API_MESSAGES || type == OBJECT;
    *w = (struct wish){ .from = f };
    if (f.object && type < 0)
        eng_field_refuse(&f, "type", "is missing");
    if (type == OBJECT && !eng_field(&f, "schema")) {
        w->schema = w->made = json_pack("{s:s}", "type", "object");
        if (!w->made)
            eng_refuse(body->why, 500, NULL, NULL, "no memory for the response format");
    } else if (type > TEXT && flat) {
        read_schema(w, &f);
    } else if (type == SCHEMA) {
        struct eng_fields inner = eng_field_object(&f, "json_schema");
        if (!inner.object)
            eng_field_refuse(&f, "json_schema", "is missing");
        read_schema(w, &inner);
    }
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
                                                               .thinks = ask->thinks,
                                                               .tokens = setup->gr_tokens,
                                                               .continues = ask->continues,
                                                               .written = json_string_value(ask->written),
                                                               .n_written = json_string_length(ask->written) },
                                   why, sizeof why);
    if (error == KN_ENOMEM)
        eng_refuse(body->why, 500, NULL, NULL, "no memory for the grammar of the answer");
    else if (error && w->schema && (!tools->list || tools->choice == ENG_TOOL_AUTO))
        eng_field_refuse(&w->from, "schema", "is refused: %s", why);
    else if (error && (tools->choice != ENG_TOOL_AUTO || tools->strict))
        eng_field_refuse(body, "tools", "are refused: %s", why);
}

void eng_talk_constrain(struct eng_api_request *ask, const struct eng_fields *body, const struct eng_api_setup *setup,
                        const struct eng_talk_tools *tools)
{
    struct wish w;
    bool forced = tools->list && tools->choice != ENG_TOOL_AUTO;
    read_wish(&w, ask->api, body);
    bool wanted = !eng_refused(body->why) && (tools->list || w.schema);
    if (wanted && setup->gr_tokens)
        compile(ask, &w, body, setup, tools);
    else if (wanted && (w.schema || forced || tools->strict))
        eng_refuse(body->why, 400, NULL, w.schema ? "response_format" : "tools",
                   "the model was opened without grammars, so output cannot be constrained");
    json_decref(w.made);
}
