/* engine/tools/grammar.c - grammars of answers with tool calls, for all formats.
 *
 * In: a format, a request's tools and its tool choice.  Out: a grammar of whole answers, with the
 * reasoning before them.  The parser of this folder reads every text that the grammar accepts as
 * exactly the calls that the grammar put there.  So the markers that open a call here are those that
 * the parser looks for in the same state.
 *
 *  Each
 * format, including its white space, is written as its models were trained to write it: a wider
 * grammar lets a model deviate, and a narrower one forces it off its usual output.
 * In formats with arguments as plain text (QWEN_XML, GLM, INVOKE), a string without restrictions is
 * text up to the marker, strings of an enum are written without quotes, and every other value is JSON
 * (strings with quotes). */
#include <stdio.h>
#include <string.h>

#include "engine/tools/internal.h"

struct writer {
    struct gr_builder *b;
    const struct eng_tool_format *format;
    struct tool_list tools;
    bool parallel;
    bool no_bare; /* a call needs its marker, because it does not begin the answer */
};

/* ---- pieces ---------------------------------------------------------------------------------- */

static int32_t put(struct writer *w, const char *text, int32_t next)
{
    return gr_literal(w->b, text, strlen(text), next);
}

static int32_t put_mark(struct writer *w, enum mark m, int32_t next)
{
    const struct eng_tool_marker *k = &w->format->mark[m];
    return k->control == ENG_NO_TOKEN ? put(w, k->text, next) : gr_control(w->b, k->control, next);
}

static int32_t either(struct writer *w, int32_t x, int32_t y)
{
    return gr_alternatives(w->b, (const int32_t[]){ x, y }, 2);
}

static int32_t maybe(struct writer *w, const char *text, int32_t next) { return either(w, put(w, text, next), next); }

/* Up to two line ends, as templates write them after reasoning and around calls. */
static int32_t line_ends(struct writer *w, int32_t next) { return maybe(w, "\n", maybe(w, "\n", next)); }

static struct gr_trigger trigger(const struct writer *w, enum mark m, int32_t next)
{
    const struct eng_tool_marker *k = &w->format->mark[m];
    return (struct gr_trigger){ k->text, strlen(k->text), k->control, next };
}

static int32_t until(struct writer *w, enum mark m, bool may_end, int32_t next)
{
    struct gr_trigger t = trigger(w, m, next);
    return gr_free_until(w->b, &t, 1, may_end);
}

/* A call_form makes the node of one call of tool t in one format, followed by node next. */
typedef int32_t call_form(struct writer *w, const struct tool *t, int32_t next);

static int32_t any_tool(struct writer *w, call_form *form, int32_t next)
{
    int32_t node[MOST_TOOLS];
    for (size_t i = 0; i < w->tools.n; i++)
        node[i] = form(w, &w->tools.tool[i], next);
    return gr_alternatives(w->b, node, w->tools.n);
}

static int32_t put_arguments(struct writer *w, const struct tool *t, int32_t next)
{
    return gr_schema(w->b, t->parameters, next);
}

/* One call; if w->parallel, any number of calls, each one after the first preceded by the text `join` and
 * the marker `open` (MARK_COUNT: no marker); then next. */
static int32_t repeat(struct writer *w, const char *join, enum mark open, call_form *form, int32_t next)
{
    int32_t more = gr_forward(w->b);
    int32_t start = any_tool(w, form, more);
    int32_t again = open == MARK_COUNT ? start : put_mark(w, open, start);
    if (w->parallel)
        again = *join ? put(w, join, again) : again;
    gr_set(w->b, more, w->parallel ? either(w, next, again) : next);
    return start;
}

/* ---- calls as JSON objects, and as name and JSON arguments ----------------------------------- */

static int32_t put_object(struct writer *w, const struct tool *t, const char *arguments, int32_t next)
{
    char head[2 * ENG_ANSWER_NAME_BYTES];
    snprintf(head, sizeof head, "{\"name\": \"%s\", \"%s\": ", t->name, arguments);
    return put(w, head, put_arguments(w, t, put(w, "}", next)));
}

static int32_t plain_object(struct writer *w, const struct tool *t, int32_t next)
{
    return put_object(w, t, "arguments", next);
}

static int32_t llama_object(struct writer *w, const struct tool *t, int32_t next)
{
    return put_object(w, t, "parameters", next);
}

/* One call, or calls with nothing between them, as Llama 4's template writes them, a semicolon, as Llama 3 does, or a line
 * end, which may also follow the last one. */
static int32_t llama_calls(struct writer *w, int32_t next)
{
    int32_t more = gr_forward(w->b), start = any_tool(w, llama_object, more);
    if (!w->parallel) {
        gr_set(w->b, more, next);
        return start;
    }
    int32_t line = put(w, "\n", either(w, next, start));
    int32_t joined = put(w, ";", maybe(w, " ", maybe(w, "\n", start)));
    gr_set(w->b, more, gr_alternatives(w->b, (const int32_t[]){ next, start, line, joined }, 4));
    return start;
}

static int32_t hermes_call(struct writer *w, const struct tool *t, int32_t next)
{
    next = maybe(w, "\n", put_mark(w, MARK_CALL_END, next));
    return maybe(w, "\n", plain_object(w, t, next));
}

static int32_t mistral_call(struct writer *w, const struct tool *t, int32_t next)
{
    next = put_mark(w, MARK_SEPARATOR, put_arguments(w, t, next));
    int32_t id = next;
    char letter[2] = { 0 };
    for (int i = 0; i < 9; i++) {
        int32_t node[62], n = 0;
        for (const char *p = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"; *p; p++) {
            letter[0] = *p;
            node[n++] = put(w, letter, id);
        }
        id = gr_alternatives(w->b, node, (size_t)n);
    }
    return put(w, t->name, either(w, next, put_mark(w, MARK_ID, id)));
}

static int32_t deepseek_call(struct writer *w, const struct tool *t, int32_t next)
{
    next = put_mark(w, MARK_CALL_END, next);
    if (!w->format->variant)
        return put(w, t->name, put_mark(w, MARK_SEPARATOR, put_arguments(w, t, next)));
    next = put(w, "\n```json\n", put_arguments(w, t, put(w, "\n```", next)));
    return put(w, "function", put_mark(w, MARK_SEPARATOR, put(w, t->name, next)));
}

static int32_t kimi_call(struct writer *w, const struct tool *t, int32_t next)
{
    int32_t number = gr_forward(w->b), digit[10];
    next = put_mark(w, MARK_SEPARATOR, put_arguments(w, t, put_mark(w, MARK_CALL_END, next)));
    for (int i = 0; i < 10; i++)
        digit[i] = put(w, (const char[]){ (char)('0' + i), 0 }, either(w, next, number));
    gr_set(w->b, number, gr_alternatives(w->b, digit, 10));
    return put(w, "functions.", put(w, t->name, put(w, ":", number)));
}

static int32_t marked_call(struct writer *w, const struct tool *t, int32_t next)
{
    struct gr_trigger quote = trigger(w, MARK_QUOTE, GR_END);
    next = gr_marked(w->b, t->parameters, &quote, put_mark(w, MARK_CALL_END, next));
    return put(w, "call:", put(w, t->name, next));
}

/* A call of gpt-oss.  The recipient (to=functions.NAME) stands after the channel, or between the role and the
 * channel.  Then comes the type, json, with or without <|constrain|> before it. */
static int32_t harmony_call(struct writer *w, const struct tool *t, int32_t next)
{
    next = put_mark(w, MARK_MESSAGE, put_arguments(w, t, next));
    int32_t constrained = either(w, put_mark(w, MARK_CONSTRAIN, put(w, "json", next)), put(w, "json", next));
    int32_t type = put(w, " ", constrained);
    int32_t first = put_mark(w, MARK_CHANNEL, put(w, "commentary", type));
    int32_t to = put(w, " to=functions.", put(w, t->name, first));
    int32_t last = put(w, "commentary to=functions.", put(w, t->name, type));
    return either(w, to, put_mark(w, MARK_CHANNEL, last));
}

/* ---- arguments one by one -------------------------------------------------------------------- */

/* True if the parser reads this string, written without quotes, as exactly this string. */
static bool stands_plain(const char *text, size_t n)
{
    return n && strlen(text) == n && !strpbrk(text, "<\n\r\t") && !strchr("\"[{ ", *text) && text[n - 1] != ' ';
}

/* A parameter's schema with the definitions of the tool's whole schema, `all`, because the parameter's
 * schema may refer to them. */
static json_t *with_definitions(struct writer *w, const json_t *schema, const json_t *all)
{
    static const char *const places[] = { "$defs", "definitions" };
    if (!json_is_object(schema))
        return (json_t *)schema;
    json_t *own = json_copy((json_t *)schema);
    for (int i = 0; i < 2 && own; i++) {
        json_t *found = json_object_get(all, places[i]);
        if (found && !json_object_get(own, places[i]))
            json_object_set(own, places[i], found);
    }
    json_array_append_new(w->tools.made, own);
    return own;
}

/* A choice: node; or, if the schema's type is string, `lead`, one of its enum strings without quotes, and
 * then end. */
static int32_t plain_values(struct writer *w, const json_t *schema, const char *lead, int32_t end, int32_t node)
{
    const json_t *values = json_object_get(schema, "enum");
    for (size_t i = 0; eng_schema_is_string(schema) && i < json_array_size(values); i++) {
        const json_t *v = json_array_get(values, i);
        if (json_is_string(v) && stands_plain(json_string_value(v), json_string_length(v)))
            node = either(w, put(w, lead, put(w, json_string_value(v), end)), node);
    }
    return node;
}

static int32_t put_value(struct writer *w, const json_t *schema, const json_t *all, int32_t next)
{
    const bool xml = w->format->syntax == ENG_SYNTAX_QWEN_XML;
    int32_t end = put_mark(w, MARK_VALUE_END, next);
    if (xml)
        end = maybe(w, "\n", end);
    if (eng_schema_is_free_string(schema)) {
        int32_t text = until(w, MARK_VALUE_END, false, next);
        return xml ? maybe(w, "\n", text) : text;
    }
    int32_t json = gr_schema(w->b, with_definitions(w, schema, all), end);
    json = plain_values(w, schema, "", end, json);
    return xml ? maybe(w, "\n", json) : json;
}

/* INVOKE: the text after the parameter's name.  In DSML an attribute says if the value is a string without
 * quotes or JSON. */
static int32_t put_invoke_value(struct writer *w, const json_t *schema, const json_t *all, int32_t next)
{
    const char *text = w->format->variant ? "\" string=\"true\">" : "\">";
    const char *json = w->format->variant ? "\" string=\"false\">" : "\">";
    if (eng_schema_is_free_string(schema))
        return put(w, text, until(w, MARK_VALUE_END, false, next));
    int32_t end = put_mark(w, MARK_VALUE_END, next);
    int32_t node = put(w, json, gr_schema(w->b, with_definitions(w, schema, all), end));
    return plain_values(w, schema, text, end, node);
}

static int32_t put_parameter(struct writer *w, const char *key, const json_t *schema, const json_t *all, int32_t next)
{
    next = maybe(w, "\n", next);
    if (w->format->syntax == ENG_SYNTAX_INVOKE)
        return put_mark(w, MARK_KEY, put(w, key, put_invoke_value(w, schema, all, next)));
    next = put_value(w, schema, all, next);
    if (w->format->syntax == ENG_SYNTAX_QWEN_XML)
        return put_mark(w, MARK_KEY, put(w, key, put(w, ">", next)));
    next = maybe(w, "\n", put_mark(w, MARK_VALUE, next));
    return put_mark(w, MARK_KEY, put(w, key, put_mark(w, MARK_KEY_END, next)));
}

static bool is_required(const json_t *parameters, const char *key)
{
    const json_t *all = json_object_get(parameters, "required");
    bool found = false;
    for (size_t i = 0; i < json_array_size(all) && !found; i++) {
        const char *name = json_string_value(json_array_get(all, i));
        found = name && !strcmp(name, key);
    }
    return found;
}

struct parameter {
    const char *key;
    const json_t *schema;
    bool required;
};

/* Lists the parameters in the order of "properties"; returns their number. */
static size_t list_parameters(struct parameter out[MOST_PARAMETERS], const struct tool *t)
{
    size_t n = 0;
    json_t *properties = json_object_get(t->parameters, "properties");
    for (void *i = json_object_iter(properties); i; i = json_object_iter_next(properties, i)) {
        const char *key = json_object_iter_key(i);
        out[n++] = (struct parameter){ key, json_object_iter_value(i), is_required(t->parameters, key) };
    }
    return n;
}

static int32_t put_parameters(struct writer *w, const struct tool *t, int32_t next)
{
    struct parameter p[MOST_PARAMETERS];
    for (size_t i = list_parameters(p, t); i-- > 0;) {
        int32_t with = put_parameter(w, p[i].key, p[i].schema, t->parameters, next);
        next = p[i].required ? with : either(w, with, next);
    }
    return next;
}

static int32_t xml_function(struct writer *w, const struct tool *t, int32_t next)
{
    next = maybe(w, "\n", put_parameters(w, t, put_mark(w, MARK_FUNCTION_END, next)));
    return put(w, t->name, put(w, ">", next));
}

/* One call of QWEN_XML after <tool_call>, up to and with </tool_call>. */
static int32_t xml_call(struct writer *w, const struct tool *t, int32_t next)
{
    next = maybe(w, "\n", put_mark(w, MARK_CALL_END, next));
    return maybe(w, "\n", put_mark(w, MARK_FUNCTION, xml_function(w, t, next)));
}

static int32_t glm_call(struct writer *w, const struct tool *t, int32_t next)
{
    next = maybe(w, "\n", put_parameters(w, t, put_mark(w, MARK_CALL_END, next)));
    return put(w, t->name, next);
}

static int32_t invoke_call(struct writer *w, const struct tool *t, int32_t next)
{
    next = put_mark(w, MARK_FUNCTION_END, maybe(w, "\n", next));
    next = put(w, "\">", maybe(w, "\n", put_parameters(w, t, next)));
    return put(w, t->name, next);
}

/* name(a=1, b="x").  Each argument has two nodes: as the first argument, and after a comma. */
static int32_t python_call(struct writer *w, const struct tool *t, int32_t next)
{
    struct parameter p[MOST_PARAMETERS];
    int32_t end = put(w, ")", next), first = end, later = end;
    for (size_t i = list_parameters(p, t); i-- > 0;) {
        const json_t *schema = with_definitions(w, p[i].schema, t->parameters);
        int32_t this = put(w, p[i].key, put(w, "=", gr_python(w->b, schema, later)));
        int32_t comma = put(w, ", ", this);
        first = p[i].required ? this : either(w, this, first);
        later = p[i].required ? comma : either(w, comma, later);
    }
    return put(w, t->name, put(w, "(", first));
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The marker behind a list of calls, if the format has one. */
static int32_t list_end(struct writer *w)
{
    return w->format->mark[MARK_CALLS_END].text ? put_mark(w, MARK_CALLS_END, GR_END) : GR_END;
}

/* The text after the marker m that opens calls, up to the end of the last call. */
static int32_t calls_after(struct writer *w, enum mark m)
{
    switch (w->format->syntax) {
    case ENG_SYNTAX_HERMES:
        return repeat(w, "\n", MARK_CALL, hermes_call, GR_END);
    case ENG_SYNTAX_GLM:
        return repeat(w, "\n", MARK_CALL, glm_call, GR_END);
    case ENG_SYNTAX_QWEN_XML:
        if (m == MARK_FUNCTION)
            return any_tool(w, xml_function, maybe(w, "\n", put_mark(w, MARK_CALL_END, GR_END)));
        return repeat(w, "\n", MARK_CALL, xml_call, GR_END);
    case ENG_SYNTAX_INVOKE: {
        int32_t calls = repeat(w, "", MARK_FUNCTION, invoke_call, put_mark(w, MARK_CALLS_END, GR_END));
        return m == MARK_FUNCTION ? calls : maybe(w, "\n", put_mark(w, MARK_FUNCTION, calls));
    }
    case ENG_SYNTAX_MARKED:
        return repeat(w, "", MARK_CALL, marked_call, GR_END);
    case ENG_SYNTAX_LLAMA: {
        const bool marks = eng_tool_format_marks_text(w->format);
        int32_t end = marks ? either(w, GR_END, put_mark(w, MARK_CALL, GR_END)) : GR_END;
        int32_t calls = llama_calls(w, end);
        return marks && m == MARK_CALLS ? either(w, calls, put_mark(w, MARK_CALL, calls)) : calls;
    }
    case ENG_SYNTAX_PYTHONIC: {
        int32_t end = w->format->variant ? either(w, list_end(w), GR_END) : list_end(w);
        return put(w, "[", repeat(w, ", ", MARK_COUNT, python_call, put(w, "]", end)));
    }
    case ENG_SYNTAX_MISTRAL:
        if (w->format->variant)
            return repeat(w, "", MARK_CALLS, mistral_call, GR_END);
        return put(w, "[", repeat(w, ", ", MARK_COUNT, plain_object, put(w, "]", list_end(w))));
    case ENG_SYNTAX_DEEPSEEK:
    case ENG_SYNTAX_KIMI: {
        call_form *form = w->format->syntax == ENG_SYNTAX_KIMI ? kimi_call : deepseek_call;
        const char *join = w->format->variant ? "\n" : "";
        int32_t calls = repeat(w, join, MARK_CALL, form, put_mark(w, MARK_CALLS_END, GR_END));
        return m == MARK_CALL ? calls : put_mark(w, MARK_CALL, calls);
    }
    default:
        return GR_END;
    }
}

static const enum mark openers[] = { MARK_CALLS, MARK_CALL, MARK_FUNCTION };

/* The first byte of a call without a marker; 0: the format, or this answer, requires the marker. */
static uint8_t bare_byte(const struct writer *w) { return w->no_bare ? 0 : eng_tool_format_first_byte(w->format); }

/* An answer that is one or more calls, without text before them. */
static int32_t required_answer(struct writer *w)
{
    if (bare_byte(w))
        return calls_after(w, MARK_CALLS);
    for (size_t i = 0; i < 3; i++)
        if (w->format->mark[openers[i]].text)
            return put_mark(w, openers[i], calls_after(w, openers[i]));
    return GR_END;
}

/* Text that does not begin like a call without a marker: blanks, one other byte, then any text. */
static int32_t not_bare(struct writer *w, int32_t text)
{
    int32_t start = gr_forward(w->b), node[256], n = 0;
    for (int c = 0; c < 0xFF; c++) /* 0xFF begins a control token */
        if (c != eng_tool_format_first_byte(w->format))
            node[n++] = gr_literal(w->b, (const char[]){ (char)c }, 1, eng_is_json_space((uint8_t)c) ? start : text);
    node[n++] = GR_END;
    gr_set(w->b, start, gr_alternatives(w->b, node, (size_t)n));
    return start;
}

static int32_t free_answer(struct writer *w)
{
    struct gr_trigger t[3];
    size_t n = 0;
    for (size_t i = 0; i < 3; i++)
        if (w->format->mark[openers[i]].text)
            t[n++] = trigger(w, openers[i], calls_after(w, openers[i]));
    int32_t text = gr_free_until(w->b, t, n, true);
    if (!bare_byte(w))
        return text;
    int32_t node[] = { not_bare(w, text), t[0].next, put_mark(w, MARK_CALLS, t[0].next) };
    return gr_alternatives(w->b, node, 3);
}

static bool has_form(const struct eng_answer_rules *t) { return t->schema || t->regex || t->choices; }

/* Text of the form that t asks for, up to its end. */
static int32_t put_form(struct writer *w, const struct eng_answer_rules *t)
{
    int32_t node = gr_forward(w->b);
    if (t->schema)
        return gr_schema(w->b, t->schema, GR_END);
    if (t->regex)
        return gr_pattern(w->b, t->regex, GR_END);
    for (size_t i = 0; i < json_array_size(t->choices); i++) {
        const json_t *text = json_array_get(t->choices, i);
        node = either(w, node, gr_literal(w->b, json_string_value(text), json_string_length(text), GR_END));
    }
    return node;
}

/* Text of a form; if there are tools that may be called, also calls instead. */
static int32_t formed_answer(struct writer *w, const struct eng_answer_rules *t)
{
    int32_t text = put_form(w, t);
    return w->tools.n ? either(w, text, required_answer(w)) : text;
}

static int32_t with_thoughts(struct writer *w, const struct eng_answer_rules *t, bool is_free, int32_t answer)
{
    if (!w->format->thinks || t->in_text)
        return answer;
    int32_t after = is_free ? answer : line_ends(w, answer);
    int32_t inside = until(w, MARK_THINK_END, is_free, after);
    if (t->thinks)
        return inside;
    return either(w, line_ends(w, put_mark(w, MARK_THINK, inside)), after);
}

/* gpt-oss messages: any number of analysis messages (and, if the answer is free, commentary messages),
 * then a call or the final message.  An answer that continues a message begins with the rest of its text. */
static int32_t harmony_answer(struct writer *w, const struct eng_answer_rules *t, bool is_free)
{
    int32_t next = gr_forward(w->b), node[4], n = 0;
    int32_t head = put_mark(w, MARK_START, put(w, "assistant", next));
    int32_t rest = until(w, MARK_END, is_free, head), body = put_mark(w, MARK_MESSAGE, rest);
    if (w->tools.n)
        node[n++] = any_tool(w, harmony_call, GR_END);
    node[n++] = put_mark(w, MARK_CHANNEL, put(w, "analysis", body));
    if (has_form(t) && t->choice != ENG_TOOL_REQUIRED && t->choice != ENG_TOOL_NAMED) {
        int32_t last = put_mark(w, MARK_MESSAGE, put_form(w, t));
        int32_t type = put(w, " ", put_mark(w, MARK_CONSTRAIN, put(w, "json", last)));
        node[n++] = put_mark(w, MARK_CHANNEL, put(w, "final", t->schema ? either(w, last, type) : last));
    }
    if (is_free) {
        int32_t last = put_mark(w, MARK_MESSAGE, until(w, MARK_END, true, GR_END));
        node[n++] = put_mark(w, MARK_CHANNEL, put(w, "final", last));
        node[n++] = put_mark(w, MARK_CHANNEL, put(w, "commentary", body));
    }
    gr_set(w->b, next, gr_alternatives(w->b, node, (size_t)n));
    if (!t->continues)
        return next;
    if (t->thinks)
        return rest;
    return has_form(t) ? put_form(w, t) : until(w, MARK_END, true, GR_END);
}

static int32_t answer(struct writer *w, const struct eng_answer_rules *t)
{
    const bool may_talk = t->choice == ENG_TOOL_AUTO || t->choice == ENG_TOOL_NONE;
    const bool is_free = may_talk && !has_form(t);
    if (w->format->syntax == ENG_SYNTAX_HARMONY)
        return harmony_answer(w, t, is_free);
    if (may_talk && has_form(t))
        return with_thoughts(w, t, false, formed_answer(w, t));
    return with_thoughts(w, t, is_free, is_free ? free_answer(w) : required_answer(w));
}

int eng_answer_grammar(struct gr_grammar **out, const struct eng_tool_format *s, const struct eng_answer_rules *t,
                       char *why, size_t n_why)
{
    const bool can = s->syntax != ENG_SYNTAX_NONE;
    const bool must = t->choice == ENG_TOOL_REQUIRED || t->choice == ENG_TOOL_NAMED;
    const bool in_final = s->syntax == ENG_SYNTAX_HARMONY && t->continues && !t->thinks;
    const bool calls = can && t->choice != ENG_TOOL_NONE && json_array_size(t->tools);
    const size_t failures = kn_alloc_failures();
    *out = NULL;
    *why = 0;
    if (must && !calls) {
        snprintf(why, n_why,
                 can ? "a tool call is required, but there are no tools"
                     : "this model's chat template does not support tool calls");
        return can ? KN_EINVAL : KN_EUNSUPPORTED;
    }
    if (must && in_final) {
        snprintf(why, n_why, "a tool call is required, but cannot follow the last message, which the answer continues");
        return KN_EINVAL;
    }
    if (!calls && !has_form(t))
        return 0;
    struct writer *w = kn_calloc(1, sizeof *w);
    int error = w && (w->tools.made = json_array()) ? gr_builder_open(&w->b) : KN_ENOMEM;
    if (!error) {
        w->format = s;
        w->parallel = t->parallel;
        w->no_bare = t->in_text;
        error = calls ? eng_tool_list(&w->tools, s, t, why, n_why) : 0;
    }
    if (!error && (error = gr_compile(out, w->b, answer(w, t), t->tokens)))
        snprintf(why, n_why, "%s", gr_builder_why(w->b));
    if (kn_alloc_failures() != failures) { /* a schema that lacks a part for memory would allow another answer */
        gr_close(*out);
        *out = NULL;
        error = KN_ENOMEM;
        *why = 0;
    }
    if (error && !*why)
        snprintf(why, n_why, "no memory for the grammar");
    if (w) {
        gr_builder_close(w->b);
        json_decref(w->tools.made);
    }
    kn_free(w);
    return error;
}
