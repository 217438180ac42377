/* engine/tools/call_marked.c - calls as Gemma 4 writes them, with strings between two markers:
 *
 *     call:f{city:<|"|>Paris<|"|>,days:[1,2],o:{a:true}}
 *
 * In: the bytes and markers of a call's arguments, after the { that opens them.  Out: the call's events.
 *
 * A string is the text between two markers, without escapes.  The name of a member has no quotes, or is a string.
 * Numbers and words are those of call_python.c.  All is converted to JSON byte by byte; the JSON validator (value.c)
 * checks the structure of the result.  A number, word or name is held until it ends; all other text is emitted at once. */
#include "engine/tools/internal.h"

#include <string.h>

void eng_marked_open(struct eng_answer_parser *s)
{
    eng_call_begin(s);
    s->state = IN_VALUE;
    s->key.n = s->value.n = 0;
    s->free_string = false;
    s->json = (struct json_scan){ 0 };
    s->python = (struct python){ 0 };
    eng_python_emit(s, "{");
}

bool eng_marked_may_quote(const struct eng_answer_parser *s)
{
    struct json_scan j = s->json;
    return s->free_string || (!s->key.n && !s->value.n && eng_json_step(&j, '"') != JSON_BAD);
}

void eng_marked_quote(struct eng_answer_parser *s)
{
    s->held.n = 0;
    eng_python_emit(s, "\"");
    s->free_string = !s->free_string;
}

/* A byte of a member's name without quotes, up to the colon behind it. */
static bool key_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (c != ':') {
        eng_answer_append(s, &s->key, c);
        return c >= ' ' && !strchr("{}[]<>\",\\", c) && s->key.n <= ENG_ANSWER_NAME_BYTES;
    }
    if (!s->key.n)
        return false;
    eng_python_emit(s, "\"");
    for (size_t i = 0; i < s->key.n; i++)
        eng_answer_emit_string_byte(s, (uint8_t)s->key.p[i]);
    s->key.n = 0;
    return eng_python_emit(s, "\"") && eng_python_emit(s, ": ");
}

/* A byte outside of strings, names, numbers and words. */
static bool sign_byte(struct eng_answer_parser *s, uint8_t c)
{
    const char text[2] = { (char)c };
    return eng_is_json_space(c) || (c && strchr("{}[],:", c) &&
                                    eng_python_emit(s, c == ','   ? ", "
                                                       : c == ':' ? ": "
                                                                  : text));
}

void eng_marked_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (s->free_string) {
        eng_answer_emit_string_byte(s, c);
        return;
    }
    bool fits = !s->value.n || eng_python_is_word(c) || eng_python_word_end(s);
    const bool in_key = s->key.n || (eng_json_wants_key(&s->json) && c != '}' && !eng_is_json_space(c));
    if (fits)
        fits = in_key ? key_byte(s, c) : eng_python_is_word(c) ? eng_python_word_byte(s, c) : sign_byte(s, c);
    if (!fits) {
        eng_call_give_up_before(s);
    } else if (s->json.depth == 0) {
        eng_call_end(s, true);
        eng_answer_to_text(s, true);
    } else if (s->value.n || s->key.n) {
        eng_call_hold(s, c);
    } else {
        s->held.n = 0;
    }
}
