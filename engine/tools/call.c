/* engine/tools/call.c - parser of tool calls, for all formats.
 *
 * In: bytes and markers, beginning with the marker that opens a call.  Out: the call's events, or its
 * text as content.
 *
 * A call in every format has a name and arguments; the formats differ in the text around them.  All
 * bytes are held until the name is complete, so a text that turns out not to be a call becomes
 * content unchanged.  At a byte that is not valid in the call, the call is given up and that byte is
 * processed again as text, so each byte is processed at most twice. */
#include "engine/tools/internal.h"

#include <string.h>

/* ---- beginning and giving up ----------------------------------------------------------------- */

static enum eng_tool_syntax syntax(const struct eng_answer_parser *s) { return s->format->syntax; }

void eng_call_give_up(struct eng_answer_parser *s)
{
    const size_t n = s->held.n;
    if (s->in_call)
        eng_call_end(s, false);
    eng_answer_emit(s, ENG_ANSWER_CONTENT, s->held.p, n);
    eng_answer_to_text(s, false);
}

void eng_call_give_up_before(struct eng_answer_parser *s)
{
    eng_call_give_up(s);
    s->again = true;
}

bool eng_call_hold(struct eng_answer_parser *s, uint8_t c)
{
    eng_answer_hold(s, (char *)&c, 1);
    if (s->held.n <= ENG_ANSWER_HELD_BYTES)
        return true;
    eng_call_give_up(s);
    return false;
}

static void hold_mark(struct eng_answer_parser *s, enum mark m)
{
    eng_answer_hold(s, s->format->mark[m].text, strlen(s->format->mark[m].text));
}

void eng_call_open_name(struct eng_answer_parser *s)
{
    s->state = IN_NAME;
    s->name.n = 0;
    s->name_done = false;
}

void eng_call_open(struct eng_answer_parser *s, enum mark m)
{
    s->any_call = s->listed = false;
    switch (syntax(s)) {
    case ENG_SYNTAX_HERMES:
    case ENG_SYNTAX_LLAMA:
        s->state = BEFORE_OBJECT;
        break;
    case ENG_SYNTAX_MISTRAL:
    case ENG_SYNTAX_PYTHONIC:
        s->state = BEFORE_CALLS;
        break;
    case ENG_SYNTAX_QWEN_XML:
        if (m == MARK_CALL)
            s->state = BEFORE_FUNCTION;
        else
            eng_call_open_name(s);
        break;
    default: /* DeepSeek, Kimi, GLM, <invoke>, Gemma 4 */
        if (m == MARK_CALLS)
            s->state = IN_SECTION;
        else
            eng_call_open_name(s);
    }
}

/* Opens a call without a marker; its first byte was added to held. */
void eng_call_open_bare(struct eng_answer_parser *s)
{
    s->any_call = false;
    s->listed = syntax(s) == ENG_SYNTAX_PYTHONIC;
    if (s->listed)
        s->state = BEFORE_ITEM;
    else
        eng_object_open(s);
}

/* ---- names, and the text after them ---------------------------------------------------------- */

bool eng_call_is_name(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c >= 0x80 ||
           (c && strchr("_-.:/", c));
}

/* Emits a byte of the arguments, or stores the byte in s->value while the name is not known.  A control
 * character inside a string is escaped. */
void eng_call_argument(struct eng_answer_parser *s, uint8_t c)
{
    char p[ENG_JSON_ESCAPE] = { (char)c };
    size_t n = c < ' ' && eng_json_in_string(&s->json) ? eng_json_escape(c, p) : 1;
    if (s->in_call)
        eng_answer_emit(s, ENG_ANSWER_ARGUMENTS, p, n);
    else if (!eng_text_add(&s->value, p, n))
        s->error = KN_ENOMEM;
}

static void arguments_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (!s->in_call) {
        if (eng_is_json_space(c)) {
            eng_call_hold(s, c);
            return;
        }
        if (c != '{') {
            eng_call_give_up_before(s);
            return;
        }
        s->json = (struct json_scan){ .lax = true };
        eng_call_begin(s);
    }
    enum json_step step = eng_json_step(&s->json, c);
    if (step == JSON_BAD) {
        eng_call_give_up_before(s);
        return;
    }
    eng_call_argument(s, c);
    if (step != JSON_DONE)
        return;
    eng_call_end(s, true);
    if (syntax(s) == ENG_SYNTAX_MISTRAL)
        eng_answer_to_text(s, true);
    else
        s->state = syntax(s) == ENG_SYNTAX_HARMONY ? BETWEEN_MESSAGES : IN_SECTION;
}

/* Between [CALL_ID] and [ARGS]: the id is dropped. */
static void id_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (c == '{') {
        s->state = IN_ARGUMENTS;
        arguments_byte(s, c);
    } else if (eng_call_is_name(c)) {
        eng_call_hold(s, c);
    } else {
        eng_call_give_up_before(s);
    }
}

/* DeepSeek V3 writes ```json and a line end between the name and the { of the arguments; c is a byte there. */
static void fence_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (c == '{') {
        s->state = IN_ARGUMENTS;
        arguments_byte(s, c);
    } else if (eng_is_json_space(c) || strchr("`json", c ? c : '!')) {
        eng_call_hold(s, c);
    } else {
        eng_call_give_up_before(s);
    }
}

static void open_parameters(struct eng_answer_parser *s)
{
    eng_call_begin(s);
    s->state = IN_PARAMETERS;
    s->first_key = true;
}

/* Reduces s->name to the tool's name: Kimi writes the call's id, functions.NAME:0, and Gemma 4 call:NAME.  False: there
 * is no name. */
static bool clean_name(struct eng_answer_parser *s)
{
    const char *lead = syntax(s) == ENG_SYNTAX_KIMI ? "functions." : syntax(s) == ENG_SYNTAX_MARKED ? "call:" : "";
    const size_t n = strlen(lead);
    struct text *t = &s->name;
    size_t end = t->n;
    while (syntax(s) == ENG_SYNTAX_KIMI && end && t->p[end - 1] >= '0' && t->p[end - 1] <= '9')
        end--;
    if (end > 1 && end < t->n && t->p[end - 1] == ':')
        t->n = end - 1;
    if (t->n > n && !memcmp(t->p, lead, n)) {
        t->n -= n;
        memmove(t->p, t->p + n, t->n);
        return true;
    }
    return syntax(s) != ENG_SYNTAX_MARKED;
}

/* If the byte c ends the name, changes the state and returns true; else returns false.  A name that ends with
 * a marker is handled by name_mark(). */
static bool name_ends(struct eng_answer_parser *s, uint8_t c)
{
    if (!s->name.n)
        return false;
    if (syntax(s) == ENG_SYNTAX_QWEN_XML && c == '>') {
        open_parameters(s);
    } else if (syntax(s) == ENG_SYNTAX_GLM && c == '\n') {
        open_parameters(s);
    } else if (syntax(s) == ENG_SYNTAX_INVOKE && c == '"' && !s->name_done) {
        s->name_done = true;
        eng_call_hold(s, c);
    } else if (syntax(s) == ENG_SYNTAX_INVOKE && c == '>' && s->name_done) {
        open_parameters(s);
    } else if (syntax(s) == ENG_SYNTAX_DEEPSEEK && (c == '\n' || c == '`')) {
        s->state = IN_FENCE;
        fence_byte(s, c);
    } else if (syntax(s) == ENG_SYNTAX_MISTRAL && c == '{') {
        s->state = IN_ARGUMENTS;
        arguments_byte(s, c);
    } else if (syntax(s) == ENG_SYNTAX_MARKED && c == '{' && clean_name(s)) {
        eng_marked_open(s);
    } else {
        return false;
    }
    return true;
}

static void name_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (name_ends(s, c))
        return;
    if (eng_is_json_space(c)) {
        s->name_done = s->name.n > 0;
        eng_call_hold(s, c);
    } else if (!eng_call_is_name(c) || s->name_done || s->name.n == ENG_ANSWER_NAME_BYTES) {
        eng_call_give_up_before(s);
    } else if (eng_call_hold(s, c)) {
        eng_answer_append(s, &s->name, c);
    }
}

/* A byte after DeepSeek's separator.  A { begins the arguments; any other byte begins the name, since the word
 * before the separator was then a type (function). */
static void after_name_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (eng_is_json_space(c)) {
        eng_call_hold(s, c);
    } else if (c == '{') {
        s->state = IN_ARGUMENTS;
        arguments_byte(s, c);
    } else {
        eng_call_open_name(s);
        name_byte(s, c);
    }
}

/* ---- several calls --------------------------------------------------------------------------- */

static void before_calls_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (eng_is_json_space(c)) {
        eng_call_hold(s, c);
    } else if (c == '[') {
        s->listed = true;
        if (eng_call_hold(s, c))
            s->state = BEFORE_ITEM;
    } else if (c == '{') {
        eng_object_before(s, c);
    } else {
        eng_call_open_name(s);
        name_byte(s, c);
    }
}

static void before_item_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (eng_is_json_space(c) || c == ',')
        eng_call_hold(s, c);
    else if (c == '{')
        eng_object_before(s, c);
    else if (c == ']' && s->any_call)
        eng_answer_to_text(s, true);
    else
        eng_call_give_up_before(s);
}

static void section_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (eng_is_json_space(c) || (c == '`' && s->any_call))
        eng_call_hold(s, c);
    else
        eng_call_give_up_before(s);
}

/* ---- arguments one by one -------------------------------------------------------------------- */

static void space_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (eng_is_json_space(c))
        eng_call_hold(s, c);
    else
        eng_call_give_up_before(s);
}

/* INVOKE, between a parameter's name and its value: "> or " string="true">. */
static void attribute_byte(struct eng_answer_parser *s, uint8_t c)
{
    static const char is_string[] = "string=\"true\"", is_json[] = "string=\"false\"";
    const struct text *t = &s->value;
    if (c == '>') {
        s->kind = t->n && memmem(t->p, t->n, is_string, sizeof is_string - 1) ? KIND_STRING
                  : t->n && memmem(t->p, t->n, is_json, sizeof is_json - 1)   ? KIND_JSON
                                                                              : KIND_UNSAID;
        s->state = IN_VALUE;
        eng_value_open(s);
    } else if (c < ' ' || t->n == ENG_ANSWER_NAME_BYTES) {
        eng_call_give_up_before(s);
    } else if (eng_call_hold(s, c)) {
        eng_answer_append(s, &s->value, c);
    }
}

static void key_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (c == '"' && syntax(s) == ENG_SYNTAX_INVOKE && s->key.n) {
        s->state = AFTER_KEY;
        s->value.n = 0;
        eng_call_hold(s, c);
    } else if (c == '>' && syntax(s) == ENG_SYNTAX_QWEN_XML && s->key.n) {
        s->state = IN_VALUE;
        eng_value_open(s);
    } else if (c < ' ' || s->key.n == ENG_ANSWER_NAME_BYTES) {
        eng_call_give_up_before(s);
    } else if (eng_call_hold(s, c)) {
        eng_answer_append(s, &s->key, c);
    }
}

static void close_parameters(struct eng_answer_parser *s)
{
    eng_answer_emit_arguments(s, s->first_key ? "{}" : "}");
    eng_call_end(s, true);
    if (syntax(s) == ENG_SYNTAX_INVOKE)
        s->state = IN_SECTION;
    else
        eng_answer_to_text(s, true);
}

/* ---- bytes and marks by state ---------------------------------------------------------------- */

void eng_call_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (syntax(s) == ENG_SYNTAX_PYTHONIC) {
        eng_python_byte(s, c);
        return;
    }
    switch (s->state) {
    case BEFORE_OBJECT:
        eng_object_before(s, c);
        break;
    case IN_OBJECT:
        eng_object_byte(s, c);
        break;
    case BEFORE_CALLS:
        before_calls_byte(s, c);
        break;
    case BEFORE_ITEM:
        before_item_byte(s, c);
        break;
    case IN_NAME:
        name_byte(s, c);
        break;
    case AFTER_NAME:
        after_name_byte(s, c);
        break;
    case IN_ID:
        id_byte(s, c);
        break;
    case IN_FENCE:
        fence_byte(s, c);
        break;
    case IN_ARGUMENTS:
        arguments_byte(s, c);
        break;
    case IN_SECTION:
        section_byte(s, c);
        break;
    case IN_KEY:
        key_byte(s, c);
        break;
    case AFTER_KEY:
        if (syntax(s) == ENG_SYNTAX_INVOKE)
            attribute_byte(s, c);
        else
            space_byte(s, c);
        break;
    case IN_VALUE:
        if (syntax(s) == ENG_SYNTAX_MARKED)
            eng_marked_byte(s, c);
        else
            eng_value_byte(s, c);
        break;
    default:
        space_byte(s, c);
    }
}

uint32_t eng_call_watch(const struct eng_answer_parser *s)
{
    switch (s->state) {
    case BEFORE_OBJECT:
        return eng_tool_format_marks_text(s->format) ? BIT(MARK_CALL) : 0;
    case IN_NAME:
        return syntax(s) == ENG_SYNTAX_GLM ? BIT(MARK_KEY) | BIT(MARK_CALL_END) : BIT(MARK_SEPARATOR) | BIT(MARK_ID);
    case IN_ID:
        return BIT(MARK_SEPARATOR);
    case IN_ARGUMENTS:
        return s->in_call ? 0 : BIT(MARK_END) | BIT(MARK_CALL_STOP) | BIT(MARK_RETURN);
    case IN_SECTION:
        return BIT(MARK_CALL) | BIT(MARK_CALL_END) | BIT(MARK_CALLS_END) | BIT(MARK_FUNCTION);
    case BEFORE_FUNCTION:
        return BIT(MARK_FUNCTION);
    case IN_PARAMETERS:
        return BIT(MARK_KEY) | BIT(MARK_FUNCTION_END) | BIT(MARK_CALL_END);
    case IN_KEY:
        return BIT(MARK_KEY_END);
    case AFTER_KEY:
        return BIT(MARK_VALUE);
    case IN_VALUE:
        if (syntax(s) == ENG_SYNTAX_MARKED)
            return eng_marked_may_quote(s) ? BIT(MARK_QUOTE) : 0;
        return eng_value_hides_marks(s) ? 0 : BIT(MARK_VALUE_END);
    default:
        return 0;
    }
}

/* Handles the marker that ends a name; false: there is no name before it. */
static bool name_mark(struct eng_answer_parser *s, enum mark m)
{
    if (!s->name.n)
        return false;
    if (syntax(s) == ENG_SYNTAX_GLM) {
        open_parameters(s);
        eng_call_mark(s, m);
        return true;
    }
    hold_mark(s, m);
    clean_name(s);
    s->state = m == MARK_ID ? IN_ID : syntax(s) == ENG_SYNTAX_DEEPSEEK ? AFTER_NAME : IN_ARGUMENTS;
    return true;
}

static bool section_mark(struct eng_answer_parser *s, enum mark m)
{
    if (m == MARK_CALLS_END && s->any_call) {
        eng_answer_to_text(s, true);
        return true;
    }
    if (m == MARK_CALLS_END || (m == MARK_CALL_END && !s->any_call))
        return false;
    if (s->any_call)
        s->held.n = 0; /* drops the white space and code fence after the last call */
    if (m == MARK_CALL || m == MARK_FUNCTION) {
        hold_mark(s, m);
        eng_call_open_name(s);
    }
    return true;
}

static bool parameters_mark(struct eng_answer_parser *s, enum mark m)
{
    if (m == MARK_KEY) {
        s->held.n = 0;
        hold_mark(s, m);
        s->key.n = 0;
        s->state = IN_KEY;
    } else {
        close_parameters(s);
    }
    return true;
}

static bool take_mark(struct eng_answer_parser *s, enum mark m)
{
    switch (s->state) {
    case BEFORE_OBJECT:
        return true;
    case IN_NAME:
        return name_mark(s, m);
    case IN_ID:
        hold_mark(s, m);
        s->state = IN_ARGUMENTS;
        return true;
    case IN_ARGUMENTS: /* gpt-oss: a message without text is a call without arguments */
        eng_call_begin(s);
        eng_answer_emit_arguments(s, "{}");
        eng_call_end(s, true);
        s->state = BETWEEN_MESSAGES;
        return true;
    case IN_SECTION:
        return section_mark(s, m);
    case BEFORE_FUNCTION:
        hold_mark(s, m);
        eng_call_open_name(s);
        return true;
    case IN_PARAMETERS:
        return parameters_mark(s, m);
    case IN_KEY:
        hold_mark(s, m);
        s->state = AFTER_KEY;
        return true;
    case AFTER_KEY:
        s->state = IN_VALUE;
        eng_value_open(s);
        return true;
    default: /* IN_VALUE */
        if (m == MARK_QUOTE) {
            eng_marked_quote(s);
            return true;
        }
        eng_value_close(s);
        s->state = IN_PARAMETERS;
        return true;
    }
}

/* Handles marker m inside a call.  If m is not valid in the current state, it is ignored inside a string value without
 * quotes.  Elsewhere it ends the call, as incomplete if its CALL event was emitted, else as content; then m is handled
 * outside the call, where it may open the next call. */
void eng_call_mark(struct eng_answer_parser *s, enum mark m)
{
    if (eng_call_watch(s) >> m & 1 ? take_mark(s, m) : s->state == IN_VALUE && s->free_string)
        return;
    if (s->state == IN_OBJECT)
        eng_object_break(s);
    else
        eng_call_give_up(s);
    eng_answer_marker(s, m);
}

void eng_call_finish(struct eng_answer_parser *s)
{
    const bool done = s->any_call && (s->state == IN_SECTION || s->state == BEFORE_ITEM);
    if (s->in_call) {
        if (syntax(s) != ENG_SYNTAX_PYTHONIC && syntax(s) != ENG_SYNTAX_MARKED) /* an incomplete word is not JSON */
            eng_value_cut(s);
        eng_call_end(s, false);
    } else if (!done) {
        eng_answer_emit(s, ENG_ANSWER_CONTENT, s->held.p, s->held.n);
    }
    eng_answer_to_text(s, true);
}
