/* engine/tools/call_json.c - calls that are one JSON object with a name and arguments.
 *
 * In: the object's bytes.  Out: the call's events.  If the name comes after the arguments, the
 * arguments are stored until then.  An object that is not a call is given up (call.c) and becomes
 * content. */
#include "kernels/json.h"
#include "engine/tools/internal.h"

#include <string.h>

void eng_object_open(struct eng_answer_parser *s)
{
    s->state = IN_OBJECT;
    s->has_name = s->has_arguments = false;
    s->role = ROLE_NONE;
    s->json = (struct json_scan){ .lax = true };
    eng_json_step(&s->json, '{');
}

static bool key_is(const struct eng_answer_parser *s, const char *name)
{
    return s->key.n == strlen(name) && !memcmp(s->key.p, name, s->key.n);
}

/* Begins a member's value, of which c is the first byte, by the member's name; false: the object is not a call. */
static bool open_member(struct eng_answer_parser *s, uint8_t c)
{
    if (key_is(s, "name")) {
        s->role = ROLE_NAME;
        s->name.n = 0;
        return c == '"' && !s->has_name;
    }
    if (key_is(s, "arguments") || key_is(s, "parameters")) {
        if (c != '{' || s->has_arguments)
            return false;
        s->role = ROLE_ARGUMENTS;
        s->value.n = 0;
        if (s->has_name)
            eng_call_begin(s);
        return true;
    }
    s->role = ROLE_OTHER;
    return s->format->syntax != ENG_SYNTAX_LLAMA || key_is(s, "type") || key_is(s, "id");
}

/* Decodes the JSON string in s->name in place; false: not the valid name of a call. */
static bool decode_name(struct eng_answer_parser *s)
{
    json_error_t e;
    json_t *v = kn_json_load(s->name.p, s->name.n, JSON_DECODE_ANY, &e);
    size_t n = json_string_length(v);
    bool good = n && n <= ENG_ANSWER_NAME_BYTES;
    if (s->format->syntax == ENG_SYNTAX_LLAMA) /* without a marker, only names of tools are calls */
        good = good && eng_tool_find(s->tools, json_string_value(v), n);
    s->name.n = 0;
    if (v ? good && !eng_text_add(&s->name, json_string_value(v), n) : kn_json_lacks_memory(&e))
        s->error = KN_ENOMEM;
    json_decref(v);
    return good;
}

/* A member's value is complete; false: the object is not a call. */
static bool close_member(struct eng_answer_parser *s)
{
    s->has_arguments |= s->role == ROLE_ARGUMENTS;
    if (s->role == ROLE_NAME) {
        if (!decode_name(s))
            return false;
        s->has_name = true;
    }
    if (s->has_name && s->has_arguments && s->role != ROLE_OTHER) {
        if (!s->in_call) {
            eng_call_begin(s);
            eng_answer_emit(s, ENG_ANSWER_ARGUMENTS, s->value.p, s->value.n);
        }
        eng_call_end(s, true);
    }
    s->role = ROLE_NONE;
    return true;
}

static bool is_told(const struct eng_answer_parser *s) { return s->has_name && s->has_arguments; }

static void close_object(struct eng_answer_parser *s)
{
    if (!is_told(s)) {
        if (!s->has_name || s->format->syntax == ENG_SYNTAX_LLAMA) {
            eng_call_give_up(s);
            return;
        }
        eng_call_begin(s);
        eng_answer_emit_arguments(s, "{}");
        eng_call_end(s, true);
    }
    s->held.n = 0;
    if (s->listed)
        s->state = BEFORE_ITEM;
    else
        eng_answer_to_text(s, true);
}

void eng_object_break(struct eng_answer_parser *s)
{
    if (is_told(s))
        eng_answer_to_text(s, true);
    else
        eng_call_give_up(s);
}

void eng_object_byte(struct eng_answer_parser *s, uint8_t c)
{
    struct json_scan *j = &s->json;
    const bool top = j->depth == 1, in_string = eng_json_in_string(j);
    if (top && eng_json_wants_value(j) && !eng_is_json_space(c) && !open_member(s, c)) {
        eng_call_give_up_before(s);
        return;
    }
    if (top && in_string && j->key && c != '"' && s->key.n <= ENG_ANSWER_NAME_BYTES)
        eng_answer_append(s, &s->key, c);
    enum json_step step = eng_json_step(j, c);
    if (step == JSON_BAD) {
        eng_object_break(s);
        s->again = true;
        return;
    }
    if (top && !in_string && eng_json_in_string(j) && j->key)
        s->key.n = 0;
    if (s->role == ROLE_NAME)
        eng_answer_append(s, &s->name, c);
    if (s->role == ROLE_ARGUMENTS)
        eng_call_argument(s, c);
    if (!s->in_call && !is_told(s) && !eng_call_hold(s, c))
        return;
    if (j->depth == 1 && s->role != ROLE_NONE && eng_json_after_value(j) && !close_member(s))
        eng_call_give_up(s);
    else if (step == JSON_DONE)
        close_object(s);
}

void eng_object_before(struct eng_answer_parser *s, uint8_t c)
{
    if (c != '{' && !eng_is_json_space(c))
        eng_call_give_up_before(s);
    else if (eng_call_hold(s, c) && c == '{')
        eng_object_open(s);
}
