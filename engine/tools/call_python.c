/* engine/tools/call_python.c - calls in Python syntax: [f(city="Paris", n=3), g()].
 *
 * In: bytes, from the marker or the [ that opens the list.  Out: the calls' events; the keyword
 * arguments of a call become one JSON object.
 *
 * Only names of the request's tools are calls, because a list without a marker may be content.
 * Values are Python literals: strings in either quote with their escapes, numbers in JSON's syntax,
 * True, False, None, lists and dictionaries.  They are converted to JSON byte by byte.  The JSON
 * validator (value.c) checks the structure of the result, so this file handles only the differences
 * in spelling between Python and JSON.
 * A number, word or escape is held until it ends, a comma until the next item; all other text is emitted at once. */
#include "engine/tools/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- strings --------------------------------------------------------------------------------- */

static void tell_code(struct eng_answer_parser *s, uint32_t code)
{
    char text[16];
    if (code < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", code);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
    eng_answer_emit_arguments(s, text);
}

/* The byte after a backslash; false: an octal escape or \N{name}, which are not supported. */
static bool escape_byte(struct eng_answer_parser *s, uint8_t c)
{
    static const char letter[] = "abfnrtv'\"\\", meaning[] = "\a\b\f\n\r\t\v'\"\\";
    const char *at = c ? strchr(letter, c) : NULL;
    if (c == 'N' || (c >= '0' && c <= '7'))
        return false;
    s->python.escaped = false;
    if (c == 'x' || c == 'u' || c == 'U') {
        s->python.n_hex = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        s->python.code = 0;
    } else if (at) {
        eng_answer_emit_string_byte(s, (uint8_t)meaning[at - letter]);
    } else if (c != '\n') { /* a \ before a line end drops both; before any other byte the \ stays */
        eng_answer_emit_string_byte(s, '\\');
        eng_answer_emit_string_byte(s, c);
    }
    return true;
}

static bool hex_byte(struct eng_answer_parser *s, uint8_t c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c | 0x20 : c) : NULL;
    if (!at)
        return false;
    s->python.code = s->python.code << 4 | (uint32_t)(at - digits);
    if (--s->python.n_hex > 0)
        return true;
    if (s->python.code > 0x10ffff)
        return false;
    tell_code(s, s->python.code);
    return true;
}

static bool string_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (s->python.n_hex)
        return hex_byte(s, c);
    if (s->python.escaped)
        return escape_byte(s, c);
    if (c == '\\') {
        s->python.escaped = true;
    } else if (c == s->python.quote) {
        s->python.quote = 0;
        eng_json_step(&s->json, '"');
        eng_answer_emit_arguments(s, "\"");
    } else {
        eng_answer_emit_string_byte(s, c);
    }
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Passes the JSON text to the validator and emits it; false, without emitting, if the text is not valid here. */
bool eng_python_emit(struct eng_answer_parser *s, const char *json)
{
    for (const char *p = json; *p; p++)
        if (eng_json_step(&s->json, (uint8_t)*p) == JSON_BAD)
            return false;
    eng_answer_emit_arguments(s, json);
    return true;
}

/* Emits a pending comma.  Python allows a comma before a closing bracket, so a comma is emitted only
 * when an item follows. */
static bool tell_comma(struct eng_answer_parser *s)
{
    const bool was = s->python.comma;
    s->python.comma = false;
    return !was || eng_python_emit(s, ", ");
}

bool eng_python_is_word(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("+-._", c));
}

bool eng_python_word_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (!s->value.n) {
        if (!tell_comma(s))
            return false;
        s->held.n = 0;
    }
    eng_answer_append(s, &s->value, c);
    return s->value.n < ENG_ANSWER_NAME_BYTES;
}

/* The number or word in s->value is complete: emits it in JSON spelling; false: not valid. */
bool eng_python_word_end(struct eng_answer_parser *s)
{
    static const char *const words[][2] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };
    eng_answer_append(s, &s->value, 0);
    const char *json = s->value.p;
    s->value.n = 0;
    if (s->error)
        return false;
    for (size_t i = 0; i < 3; i++)
        if (!strcmp(json, words[i][0]))
            json = words[i][1];
    if (!eng_python_emit(s, json) || eng_json_step(&s->json, ' ') == JSON_BAD)
        return false;
    s->held.n = 0;
    return true;
}

/* A byte outside of strings, numbers and words. */
static bool sign_byte(struct eng_answer_parser *s, uint8_t c)
{
    switch (c) {
    case '\'':
    case '"':
        s->python.quote = c;
        return tell_comma(s) && eng_python_emit(s, "\"");
    case ',':
        s->python.comma = !s->python.comma && eng_json_after_value(&s->json);
        return s->python.comma;
    case '[':
        return tell_comma(s) && eng_python_emit(s, "[");
    case '{':
        return tell_comma(s) && eng_python_emit(s, "{");
    case ':':
        return tell_comma(s) && eng_python_emit(s, ": ");
    case ']':
    case '}':
        s->python.comma = false;
        return eng_python_emit(s, c == ']' ? "]" : "}");
    default:
        return eng_is_json_space(c);
    }
}

static void value_byte(struct eng_answer_parser *s, uint8_t c)
{
    const struct python *p = &s->python;
    const bool ends = s->value.n && !eng_python_is_word(c);
    bool fits = !ends || eng_python_word_end(s);
    if (fits && ends && s->json.depth == 0)
        s->again = true; /* the byte belongs to the call, not to the value */
    else if (fits)
        fits = p->quote ? string_byte(s, c) : eng_python_is_word(c) ? eng_python_word_byte(s, c) : sign_byte(s, c);
    if (!fits)
        eng_call_give_up_before(s);
    else if (s->value.n || p->comma || p->escaped || p->n_hex)
        eng_call_hold(s, c);
    else
        s->held.n = 0;
    if (fits && !s->value.n && s->json.depth == 0 && eng_json_after_value(&s->json))
        s->state = AFTER_ARGUMENT;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void name_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (c == '(' && s->name.n && eng_tool_find(s->tools, s->name.p, s->name.n)) {
        eng_call_begin(s);
        s->state = IN_PARAMETERS;
        s->first_key = true;
    } else if (eng_is_json_space(c)) {
        s->name_done = s->name.n > 0;
        eng_call_hold(s, c);
    } else if (!eng_call_is_name(c) || s->name_done || s->name.n == ENG_ANSWER_NAME_BYTES) {
        eng_call_give_up_before(s);
    } else if (eng_call_hold(s, c)) {
        eng_answer_append(s, &s->name, c);
    }
}

/* Before the list (which is optional), and inside it between calls. */
static void item_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (eng_is_json_space(c) || (c == ',' && s->listed)) {
        eng_call_hold(s, c);
    } else if (c == '[' && !s->listed) {
        s->listed = true;
        s->state = BEFORE_ITEM;
        eng_call_hold(s, c);
    } else if (c == ']' && s->any_call) {
        eng_answer_to_text(s, true);
    } else {
        eng_call_open_name(s);
        name_byte(s, c);
    }
}

static void open_value(struct eng_answer_parser *s)
{
    eng_answer_emit_arguments(s, s->first_key ? "{\"" : ", \"");
    eng_answer_emit(s, ENG_ANSWER_ARGUMENTS, s->key.p, s->key.n);
    eng_answer_emit_arguments(s, "\": ");
    s->held.n = s->value.n = 0;
    s->first_key = false;
    s->json = (struct json_scan){ 0 };
    s->python = (struct python){ 0 };
    s->state = IN_VALUE;
}

static void key_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (c == '=') {
        open_value(s);
    } else if (eng_is_json_space(c)) {
        s->state = AFTER_KEY;
        eng_call_hold(s, c);
    } else if (s->state == AFTER_KEY || !eng_call_is_name(c) || s->key.n == ENG_ANSWER_NAME_BYTES) {
        eng_call_give_up_before(s);
    } else if (eng_call_hold(s, c)) {
        eng_answer_append(s, &s->key, c);
    }
}

/* A byte between arguments: before a keyword, or between a value and the comma after it. */
static void parameter_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (c == ')') {
        eng_answer_emit_arguments(s, s->first_key ? "{}" : "}");
        eng_call_end(s, true);
        s->state = BEFORE_ITEM;
        if (!s->listed)
            eng_answer_to_text(s, true);
    } else if (eng_is_json_space(c)) {
        eng_call_hold(s, c);
    } else if (s->state == AFTER_ARGUMENT && c == ',') {
        s->state = IN_PARAMETERS;
        eng_call_hold(s, c);
    } else if (s->state == IN_PARAMETERS && eng_call_is_name(c)) {
        s->state = IN_KEY;
        s->key.n = 0;
        key_byte(s, c);
    } else {
        eng_call_give_up_before(s);
    }
}

void eng_python_byte(struct eng_answer_parser *s, uint8_t c)
{
    switch (s->state) {
    case IN_NAME:
        name_byte(s, c);
        break;
    case IN_KEY:
    case AFTER_KEY:
        key_byte(s, c);
        break;
    case IN_VALUE:
        value_byte(s, c);
        break;
    case IN_PARAMETERS:
    case AFTER_ARGUMENT:
        parameter_byte(s, c);
        break;
    default:
        item_byte(s, c);
    }
}
