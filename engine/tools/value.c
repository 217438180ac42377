/* engine/tools/value.c - incremental JSON validator, and argument values written as plain text.
 *
 * The validator (struct json_scan) implements RFC 8259 with one bit of state per level.  It finds the
 * end of a value at its last byte, in constant time per byte and without recursion.
 *
 * In formats that write arguments one by one (QWEN_XML, GLM, INVOKE), strings are written without
 * quotes and all other values as JSON; the tool's schema decides.  The value of a parameter that may
 * be any string is emitted byte by byte.  Any other value is stored until its end, then emitted
 * unchanged if it is JSON, otherwise as a string. */
#include <stdio.h>
#include <string.h>

#include "engine/tools/internal.h"

/* ---- JSON validator -------------------------------------------------------------------------- */

enum {
    WANT_VALUE,
    WANT_ITEM_OR_END,
    WANT_KEY,
    WANT_KEY_OR_END,
    WANT_COLON,
    AFTER_VALUE,
    STRING,
    ESCAPE,
    HEX,
    WORD,
    MINUS,
    ZERO,
    DIGITS,
    POINT,
    FRACTION,
    EXPONENT,
    EXPONENT_SIGN,
    EXPONENT_DIGITS
};

bool eng_is_json_space(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static bool is_hex(uint8_t c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

static bool in_object(const struct json_scan *j)
{
    int at = j->depth - 1;
    return j->depth > 0 && j->depth_bits[at / 8] >> at % 8 & 1;
}

bool eng_json_in_string(const struct json_scan *j)
{
    return j->state == STRING || j->state == ESCAPE || j->state == HEX;
}

bool eng_json_wants_value(const struct json_scan *j) { return j->state == WANT_VALUE; }
bool eng_json_wants_key(const struct json_scan *j) { return j->state == WANT_KEY || j->state == WANT_KEY_OR_END; }
bool eng_json_after_value(const struct json_scan *j) { return j->state == AFTER_VALUE; }

static bool number_may_end(const struct json_scan *j)
{
    return j->state == ZERO || j->state == DIGITS || j->state == FRACTION || j->state == EXPONENT_DIGITS;
}

bool eng_json_whole(const struct json_scan *j)
{
    return !j->bad && j->depth == 0 && (j->state == AFTER_VALUE || number_may_end(j));
}

static enum json_step bad(struct json_scan *j)
{
    j->bad = true;
    return JSON_BAD;
}

static enum json_step go(struct json_scan *j, int state)
{
    j->state = (uint8_t)state;
    return state == AFTER_VALUE && j->depth == 0 ? JSON_DONE : JSON_MORE;
}

static enum json_step open_level(struct json_scan *j, bool object)
{
    if (j->depth == JSON_DEPTH)
        return bad(j);
    uint8_t *bits = &j->depth_bits[j->depth / 8], bit = (uint8_t)(1 << j->depth % 8);
    *bits = (uint8_t)(object ? *bits | bit : *bits & ~bit);
    j->depth++;
    return go(j, object ? WANT_KEY_OR_END : WANT_ITEM_OR_END);
}

static enum json_step close_level(struct json_scan *j)
{
    j->depth--;
    return go(j, AFTER_VALUE);
}

static enum json_step value_step(struct json_scan *j, uint8_t c)
{
    if (c == '{' || c == '[')
        return open_level(j, c == '{');
    if (c == '"') {
        j->key = false;
        return go(j, STRING);
    }
    if (c == '-')
        return go(j, MINUS);
    if (is_digit(c))
        return go(j, c == '0' ? ZERO : DIGITS);
    j->word = c == 't' ? "rue" : c == 'f' ? "alse" : c == 'n' ? "ull" : NULL;
    return j->word ? go(j, WORD) : bad(j);
}

static enum json_step after_step(struct json_scan *j, uint8_t c)
{
    if (j->depth == 0)
        return bad(j);
    if (c == ',')
        return go(j, in_object(j) ? WANT_KEY : WANT_VALUE);
    return c == (in_object(j) ? '}' : ']') ? close_level(j) : bad(j);
}

static enum json_step string_step(struct json_scan *j, uint8_t c)
{
    if (j->state == STRING) {
        if (c == '"')
            return go(j, j->key ? WANT_COLON : AFTER_VALUE);
        return c < ' ' && !j->lax ? bad(j) : go(j, c == '\\' ? ESCAPE : STRING);
    }
    if (j->state == ESCAPE) {
        j->hex = 0;
        return c == 'u' ? go(j, HEX) : c && strchr("\"\\/bfnrt", c) ? go(j, STRING) : bad(j);
    }
    if (!is_hex(c))
        return bad(j);
    return go(j, ++j->hex == 4 ? STRING : HEX);
}

/* c inside a number or right after it.  The byte after a number is processed as a byte of the enclosing
 * value. */
static enum json_step number_step(struct json_scan *j, uint8_t c)
{
    const int s = j->state;
    if (is_digit(c) && s != ZERO)
        return go(j, s == MINUS                            ? (c == '0' ? ZERO : DIGITS)
                     : s == POINT                          ? FRACTION
                     : s == EXPONENT || s == EXPONENT_SIGN ? EXPONENT_DIGITS
                                                           : s);
    if (c == '.' && (s == ZERO || s == DIGITS))
        return go(j, POINT);
    if ((c == 'e' || c == 'E') && number_may_end(j) && s != EXPONENT_DIGITS)
        return go(j, EXPONENT);
    if ((c == '+' || c == '-') && s == EXPONENT)
        return go(j, EXPONENT_SIGN);
    if (!number_may_end(j))
        return bad(j);
    j->state = AFTER_VALUE;
    if (eng_is_json_space(c))
        return j->depth ? JSON_MORE : JSON_DONE;
    return after_step(j, c);
}

enum json_step eng_json_step(struct json_scan *j, uint8_t c)
{
    if (j->bad)
        return JSON_BAD;
    if (eng_json_in_string(j))
        return string_step(j, c);
    if (j->state >= MINUS)
        return number_step(j, c);
    if (j->state == WORD) {
        if (c != (uint8_t)*j->word)
            return bad(j);
        return *++j->word ? JSON_MORE : go(j, AFTER_VALUE);
    }
    if (eng_is_json_space(c))
        return JSON_MORE;
    switch (j->state) {
    case WANT_ITEM_OR_END:
        return c == ']' ? close_level(j) : value_step(j, c);
    case WANT_VALUE:
        return value_step(j, c);
    case WANT_KEY_OR_END:
        if (c == '}')
            return close_level(j);
        /* fall through */
    case WANT_KEY:
        j->key = true;
        return c == '"' ? go(j, STRING) : bad(j);
    case WANT_COLON:
        return c == ':' ? go(j, WANT_VALUE) : bad(j);
    default:
        return after_step(j, c);
    }
}

/* ---- texts ----------------------------------------------------------------------------------- */

bool eng_text_add(struct text *t, const char *p, size_t n)
{
    if (n > t->cap - t->n) {
        size_t more = 2 * (t->n + n) + 64;
        char *grown = kn_realloc(t->p, t->cap, more);
        if (!grown)
            return false;
        t->p = grown;
        t->cap = more;
    }
    if (n)
        memcpy(t->p + t->n, p, n);
    t->n += n;
    return true;
}

size_t eng_json_escape(uint8_t c, char out[ENG_JSON_ESCAPE])
{
    static const char letter[] = "\b\t\n\f\r\"\\", name[] = "btnfr\"\\";
    const char *at = c ? strchr(letter, c) : NULL;
    if (at)
        return (size_t)snprintf(out, ENG_JSON_ESCAPE, "\\%c", name[at - letter]);
    return (size_t)snprintf(out, ENG_JSON_ESCAPE, c < ' ' ? "\\u%04x" : "%c", c);
}

static void tell_string(struct eng_answer_parser *s, const char *p, size_t n)
{
    eng_answer_emit_arguments(s, "\"");
    for (size_t i = 0; i < n; i++)
        eng_answer_emit_string_byte(s, (uint8_t)p[i]);
    eng_answer_emit_arguments(s, "\"");
}

/* ---- schemas --------------------------------------------------------------------------------- */

const json_t *eng_tool_function(const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function");
    return json_is_object(f) ? f : tool;
}

static bool is_text(const json_t *v, const char *p, size_t n)
{
    return json_is_string(v) && json_string_length(v) == n && !memcmp(json_string_value(v), p, n);
}

const json_t *eng_tool_find(const json_t *tools, const char *name, size_t n)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = eng_tool_function(json_array_get(tools, i));
        if (is_text(json_object_get(tool, "name"), name, n))
            return tool;
    }
    return NULL;
}

static const json_t *parameter(const struct eng_answer_parser *s)
{
    const json_t *tool = eng_tool_find(s->tools, s->name.p, s->name.n);
    const json_t *all = json_object_get(json_object_get(tool, "parameters"), "properties");
    return s->key.n ? json_object_getn(all, s->key.p, s->key.n) : NULL;
}

static bool has_type(const json_t *schema, const char *name)
{
    const json_t *type = json_object_get(schema, "type");
    bool found = is_text(type, name, strlen(name));
    for (size_t i = 0; i < json_array_size(type) && !found; i++)
        found = is_text(json_array_get(type, i), name, strlen(name));
    return found;
}

bool eng_schema_is_string(const json_t *schema)
{
    return json_is_string(json_object_get(schema, "type")) && has_type(schema, "string");
}

bool eng_schema_is_free_string(const json_t *schema)
{
    static const char *const narrower[] = { "enum",  "const", "pattern", "minLength", "maxLength", "format",
                                            "anyOf", "oneOf", "allOf",   "not",       "$ref",      "nullable" };
    bool is = eng_schema_is_string(schema);
    for (size_t i = 0; i < sizeof narrower / sizeof *narrower && is; i++)
        is = !json_object_get(schema, narrower[i]);
    return is;
}

/* ---- values written as plain text ------------------------------------------------------------ */

void eng_value_open(struct eng_answer_parser *s)
{
    eng_answer_emit_arguments(s, s->first_key ? "{" : ", ");
    tell_string(s, s->key.p, s->key.n);
    eng_answer_emit_arguments(s, ": ");
    s->held.n = 0;
    s->first_key = false;
    s->first_line = s->format->syntax == ENG_SYNTAX_QWEN_XML;
    s->line_end = false;
    s->value.n = 0;
    s->json = (struct json_scan){ 0 };
    s->free_string = s->kind == KIND_STRING || (s->kind == KIND_UNSAID && eng_schema_is_free_string(parameter(s)));
    if (s->free_string)
        eng_answer_emit_arguments(s, "\"");
}

/* Emits a byte of a string without quotes.  In QWEN_XML a line end right after the opening marker or right
 * before the closing marker is not part of the value. */
static void string_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (s->line_end)
        eng_answer_emit_string_byte(s, '\n');
    s->line_end = c == '\n' && s->format->syntax == ENG_SYNTAX_QWEN_XML && !s->first_line;
    if (!s->line_end && !(s->first_line && c == '\n'))
        eng_answer_emit_string_byte(s, c);
    s->first_line = false;
}

void eng_value_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (s->free_string) {
        string_byte(s, c);
        return;
    }
    if (!eng_text_add(&s->value, (char *)&c, 1))
        s->error = KN_ENOMEM;
    eng_json_step(&s->json, c);
    if (s->value.n <= ENG_ANSWER_HELD_BYTES)
        return;
    s->free_string = true; /* the value is too long to store: emit it as a string */
    eng_answer_emit_arguments(s, "\"");
    for (size_t i = 0; i < s->value.n; i++)
        string_byte(s, (uint8_t)s->value.p[i]);
    s->value.n = 0;
}

/* The JSON spelling of True, False or None, which templates print for these values; NULL for other text, or
 * if the schema does not allow a value of that type. */
static const char *python_word(const json_t *schema, const char *p, size_t n)
{
    static const char *const words[][3] = { { "True", "true", "boolean" },
                                            { "False", "false", "boolean" },
                                            { "None", "null", "null" } };
    for (size_t i = 0; i < 3; i++)
        if (n == strlen(words[i][0]) && !memcmp(p, words[i][0], n) && has_type(schema, words[i][2]))
            return words[i][1];
    return NULL;
}

static void tell_value(struct eng_answer_parser *s)
{
    const json_t *schema = parameter(s);
    const char *p = s->value.p;
    size_t n = s->value.n;
    const bool is_json = eng_json_whole(&s->json);
    while (n && is_json && eng_is_json_space((uint8_t)*p))
        p++, n--;
    while (n && is_json && eng_is_json_space((uint8_t)p[n - 1]))
        n--;
    if (is_json && (*p == '"' || !eng_schema_is_string(schema))) {
        eng_answer_emit(s, ENG_ANSWER_ARGUMENTS, p, n);
        return;
    }
    p = s->value.p;
    n = s->value.n;
    if (s->format->syntax == ENG_SYNTAX_QWEN_XML) {
        if (n && *p == '\n')
            p++, n--;
        n -= n && p[n - 1] == '\n';
    }
    const char *word = python_word(schema, p, n);
    if (word)
        eng_answer_emit_arguments(s, word);
    else
        tell_string(s, p, n);
}

void eng_value_close(struct eng_answer_parser *s)
{
    if (s->free_string)
        eng_answer_emit_arguments(s, "\"");
    else
        tell_value(s);
    s->value.n = 0;
}

void eng_value_cut(struct eng_answer_parser *s)
{
    eng_answer_emit(s, ENG_ANSWER_ARGUMENTS, s->value.p, s->value.n);
    s->value.n = 0;
}

bool eng_value_hides_marks(const struct eng_answer_parser *s)
{
    return !s->free_string && !s->json.bad && eng_json_in_string(&s->json);
}
