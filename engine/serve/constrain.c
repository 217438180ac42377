/* The grammar of an answer: calls of a request's tools, or a response format.
 *
 * With tools that may be called the model decides between text and a call, and only the call is held
 * to its schema; tools that nobody called strict, and whose schemas are beyond us, are then left to
 * the model.  Where a call is required, or a format is asked for, there is no such way out. */
#include "engine/serve/talk.h"

#include <stdio.h>
#include <string.h>

enum format { FORMAT_TEXT, FORMAT_OBJECT, FORMAT_SCHEMA };

struct wish {
    enum format format;
    json_t *schema;         /* the body's */
    struct eng_fields from; /* to name what is wrong */
};

static void read_schema(struct wish *w, const struct eng_fields *f)
{
    json_t *schema = eng_field(f, "schema");
    if (!schema)
        eng_field_refuse(f, "schema", "is missing");
    else if (!json_is_object(schema) && !json_is_boolean(schema))
        eng_field_refuse(f, "schema", "must be a JSON schema, an object");
    w->schema = schema;
    w->format = FORMAT_SCHEMA;
    w->from = *f;
}

/* Where each dialect keeps it. */
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
    struct eng_fields f = format_of(api, body);
    int type = eng_field_choice(&f, "type", types, 3);
    *w = (struct wish){ .from = f };
    if (f.object && type < 0)
        eng_field_refuse(&f, "type", "is missing");
    if (type == FORMAT_OBJECT && !eng_field(&f, "schema")) {
        w->format = FORMAT_OBJECT;
    } else if (type == FORMAT_OBJECT || (type == FORMAT_SCHEMA && (api == ENG_API_RESPONSES ||
                                                                  api == ENG_API_MESSAGES))) {
        read_schema(w, &f);
    } else if (type == FORMAT_SCHEMA) {
        struct eng_fields inner = eng_field_object(&f, "json_schema");
        if (!inner.object)
            eng_field_refuse(&f, "json_schema", "is missing");
        read_schema(w, &inner);
    }
}

static void compile_wish(struct eng_ask *ask, const struct wish *w)
{
    struct gr_builder *b = NULL;
    int error = gr_builder_open(&b);
    if (!error) {
        int32_t node = w->format == FORMAT_OBJECT ? gr_json_object(b, GR_END)
                                                  : gr_schema(b, w->schema, GR_END);
        error = gr_compile(&ask->grammar, b, node);
    }
    if (error == KN_ENOMEM)
        eng_refuse(w->from.why, 500, NULL, NULL, "no memory for the response format");
    else if (error)
        eng_field_refuse(&w->from, "schema", "is refused: %s", gr_builder_why(b));
    gr_builder_close(b);
}

static void compile_tools(struct eng_ask *ask, const struct eng_fields *body,
                          const struct eng_desk *desk, const struct eng_talk_tools *tools)
{
    char why[256] = "";
    int error = eng_speech_grammar(&ask->grammar, desk->speech,
                                   &(struct eng_speech_tools){ .tools = tools->list,
                                                               .choice = tools->choice,
                                                               .name = tools->name,
                                                               .parallel = tools->parallel,
                                                               .thinks = ask->thinks },
                                   why, sizeof why);
    if (error == KN_ENOMEM)
        eng_refuse(body->why, 500, NULL, NULL, "no memory for the tools");
    else if (error && (tools->choice != ENG_TOOL_AUTO || tools->strict))
        eng_field_refuse(body, "tools", "are refused: %s", why);
}

void eng_talk_constrain(struct eng_ask *ask, const struct eng_fields *body,
                        const struct eng_desk *desk, const struct eng_talk_tools *tools)
{
    struct wish w;
    bool forced = tools->list && tools->choice != ENG_TOOL_AUTO;
    read_wish(&w, ask->api, body);
    if (eng_refused(body->why))
        return;
    if (!desk->gr_tokens && (w.format != FORMAT_TEXT || forced || tools->strict))
        eng_refuse(body->why, 400, NULL, forced ? "tool_choice" : "response_format",
                   "this model's vocabulary cannot write every text, so that no form can be "
                   "promised");
    else if (tools->list && (forced || w.format == FORMAT_TEXT) && desk->gr_tokens)
        compile_tools(ask, body, desk, tools);
    else if (w.format != FORMAT_TEXT)
        compile_wish(ask, &w);
}
