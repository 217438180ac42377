/* engine/text/grammar/json_text.c - nodes of JSON text: white space, strings, numbers, objects, arrays;
 * and of Python literals and marked values (gr_marked), where their spelling differs: words, quotes, names, blanks.
 *
 * The grammar accepts a subset of JSON that every JSON parser reads: UTF-8 and paired surrogates only,
 * U+0000 only in fixed values, numbers of at most 17 digits before and 20 after the point.  Blanks are accepted where
 * JSON writers put them, but two adjacent blanks only as indentation, so that a model cannot generate
 * blanks without end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/automaton.h"

enum { MOST_INDENT = 32, MOST_TABS = 8, MOST_WHOLE = 17, MOST_FRACTION = 20, MOST_INTEGER = 18, MOST_NAME = 64 };

static int32_t split(struct gr_builder *b, const int32_t *node, size_t n) { return gr_alternatives(b, node, n); }
#define SPLIT(b, ...) split(b, (const int32_t[]){ __VA_ARGS__ }, sizeof(int32_t[]){ __VA_ARGS__ } / sizeof(int32_t))

static bool is_python(const struct gr_builder *b) { return b->base == b->spelling[GR_PYTHON]; }
bool gr_is_marked(const struct gr_builder *b) { return b->base == b->spelling[GR_MARKED]; }

int32_t gr_quote(struct gr_builder *b, int32_t next)
{
    if (!gr_is_marked(b))
        return gr_bytes_node(b, '"', '"', next);
    return b->quote.control >= 0 ? gr_control(b, b->quote.control, next)
                                 : gr_literal(b, b->quote.text, b->quote.n, next);
}

/* ---- blanks ---------------------------------------------------------------------------------- */

static int32_t indent_rule(struct gr_builder *b)
{
    int32_t blank = GR_END, tab = GR_END;
    for (int i = 0; i < MOST_INDENT; i++)
        blank = SPLIT(b, GR_END, gr_text(b, " ", blank));
    for (int i = 0; i < MOST_TABS; i++)
        tab = SPLIT(b, GR_END, gr_text(b, "\t", tab));
    return SPLIT(b, blank, tab);
}

/* Nothing, one blank, or a line end and indentation. */
static int32_t space(struct gr_builder *b, int32_t next)
{
    if (gr_is_marked(b))
        return next;
    int32_t line = gr_text(b, "\n", gr_call(b, b->base[GR_INDENT], next));
    return SPLIT(b, next, gr_text(b, " ", next), line);
}

static int32_t colon(struct gr_builder *b, int32_t next)
{
    return gr_text(b, ":", gr_is_marked(b) ? next : SPLIT(b, next, gr_text(b, " ", next)));
}

/* ---- strings --------------------------------------------------------------------------------- */

static int32_t hex(struct gr_builder *b, int n, int32_t next)
{
    while (n-- > 0)
        next = SPLIT(b, gr_bytes_node(b, '0', '9', next), gr_bytes_node(b, 'a', 'f', next),
                     gr_bytes_node(b, 'A', 'F', next));
    return next;
}

static int32_t hex_but_zero(struct gr_builder *b, int32_t next)
{
    return SPLIT(b, gr_bytes_node(b, '1', '9', next), gr_bytes_node(b, 'a', 'f', next),
                 gr_bytes_node(b, 'A', 'F', next));
}

static int32_t either_case(struct gr_builder *b, int lo, int hi, int32_t next)
{
    return SPLIT(b, gr_bytes_node(b, lo, hi, next), gr_bytes_node(b, lo - 32, hi - 32, next));
}

/* The digits after \u: not U+0000; a high surrogate only if the escape of a low surrogate follows; no low
 * surrogate alone. */
static int32_t unicode_escape(struct gr_builder *b, int32_t next)
{
    int32_t three = hex(b, 3, next), two = hex(b, 2, next), one = hex(b, 1, next);
    int32_t low = gr_text(b, "\\u", either_case(b, 'd', 'd', either_case(b, 'c', 'f', two)));
    int32_t high = hex(b, 2, low);
    int32_t zero = SPLIT(b, gr_text(b, "00", hex_but_zero(b, next)), gr_text(b, "0", hex_but_zero(b, one)),
                         hex_but_zero(b, two));
    int32_t after_d = SPLIT(b, gr_bytes_node(b, '0', '7', two), gr_bytes_node(b, '8', '9', high),
                            either_case(b, 'a', 'b', high));
    return SPLIT(b, gr_text(b, "0", zero), gr_bytes_node(b, '1', '9', three), either_case(b, 'a', 'c', three),
                 either_case(b, 'd', 'd', after_d), either_case(b, 'e', 'f', three));
}

/* One character of a string in the given quotes.  \/ is an escape only in JSON, because it is two characters in
 * Python; \' is an escape only in Python, because it is invalid in JSON. */
static int32_t character(struct gr_builder *b, char quote, int32_t next)
{
    int32_t simple[8], n = 0;
    for (const char *p = is_python(b) ? "\"'\\bfnrt" : "\"/\\bfnrt"; *p; p++)
        simple[n++] = gr_bytes_node(b, *p, *p, next);
    int32_t escape = SPLIT(b, split(b, simple, (size_t)n), gr_text(b, "u", unicode_escape(b, next)));
    return SPLIT(b, gr_bytes_node(b, ' ', quote - 1, next), gr_bytes_node(b, quote + 1, '[', next),
                 gr_bytes_node(b, ']', 0x7f, next), gr_text(b, "\\", escape), gr_code_points(b, 0x80, 0x10ffff, next));
}

/* The code points lo..hi of a marked string, which are the text itself.  None is <, with which the marker begins. */
static int32_t marked_points(struct gr_builder *b, uint32_t lo, uint32_t hi, int32_t next)
{
    return gr_either(b, gr_bare_code_points(b, lo, hi < '<' ? hi : '<' - 1, next),
                     gr_bare_code_points(b, lo > '<' ? lo : '<' + 1, hi, next));
}

int32_t gr_string_character(struct gr_builder *b, int32_t next)
{
    return gr_is_marked(b) ? marked_points(b, 1, 0x10ffff, next) : character(b, '"', next);
}

/* ---- code points ----------------------------------------------------------------------------- */

static int utf8(uint32_t c, uint8_t *out)
{
    if (c < 0x800) {
        out[0] = (uint8_t)(0xc0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xe0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

/* The code points lo..hi, all with the same length in UTF-8.  The range is split into pieces in which each byte
 * of the UTF-8 has a range that does not depend on the other bytes. */
static int32_t utf8_range(struct gr_builder *b, uint32_t lo, uint32_t hi, int32_t next)
{
    uint8_t first[4], last[4];
    int n = utf8(lo, first);
    utf8(hi, last);
    for (int i = 1; i < n; i++) {
        uint32_t tail = (UINT32_C(1) << 6 * i) - 1;
        if ((lo & ~tail) == (hi & ~tail))
            break;
        if (lo & tail)
            return gr_either(b, utf8_range(b, lo, lo | tail, next), utf8_range(b, (lo | tail) + 1, hi, next));
        if ((hi & tail) != tail)
            return gr_either(b, utf8_range(b, lo, (hi & ~tail) - 1, next), utf8_range(b, hi & ~tail, hi, next));
    }
    for (int i = n - 1; i >= 0; i--)
        next = gr_bytes_node(b, first[i], last[i], next);
    return next;
}

static const char short_escape[0x20] = {
    ['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't',
};
static const char hex_digit[] = "0123456789abcdef";

/* A code point below U+0080. */
static int32_t ascii(struct gr_builder *b, uint32_t c, char quote, int32_t next)
{
    if (c >= 0x20) {
        next = gr_bytes_node(b, (int)c, (int)c, next);
        return c == (uint8_t)quote || c == '\\' ? gr_text(b, "\\", next) : next;
    }
    if (short_escape[c])
        return gr_text(b, "\\", gr_bytes_node(b, short_escape[c], short_escape[c], next));
    next = gr_bytes_node(b, hex_digit[c & 15], hex_digit[c & 15], next);
    return gr_text(b, c < 0x10 ? "\\u000" : "\\u001", next);
}

/* The code points lo..hi of U+0001 to U+001F. */
static int32_t controls(struct gr_builder *b, uint32_t lo, uint32_t hi, int32_t next)
{
    int32_t out[8], digit_node[2][16], n = 0;
    size_t n_digit[2] = { 0 };
    for (uint32_t c = lo > 1 ? lo : 1; c <= hi && c < 0x20; c++)
        if (short_escape[c])
            out[n++] = gr_bytes_node(b, short_escape[c], short_escape[c], next);
        else
            digit_node[c >> 4][n_digit[c >> 4]++] = gr_bytes_node(b, hex_digit[c & 15], hex_digit[c & 15], next);
    for (int row = 0; row < 2; row++)
        if (n_digit[row] > 0)
            out[n++] = gr_text(b, row ? "u001" : "u000", split(b, digit_node[row], n_digit[row]));
    return gr_text(b, "\\", split(b, out, (size_t)n));
}

int32_t gr_code_points(struct gr_builder *b, uint32_t lo, uint32_t hi, int32_t next)
{
    static const struct {
        uint32_t lo, hi;
        bool is_plain;
    } part[] = {
        { 0x20, 0x21, true },     { '"', '"', false },       { 0x23, 0x5b, true },
        { '\\', '\\', false },    { 0x5d, 0x7f, true },      { 0x80, 0x7ff, false },
        { 0x800, 0xd7ff, false }, { 0xe000, 0xffff, false }, { 0x10000, 0x10ffff, false },
    };
    int32_t out[16], n = 0;
    if (gr_is_marked(b))
        return marked_points(b, lo, hi, next);
    if (lo < 0x20 && hi > 0)
        out[n++] = controls(b, lo, hi, next);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        uint32_t from = lo > part[i].lo ? lo : part[i].lo, to = hi < part[i].hi ? hi : part[i].hi;
        if (from > to)
            continue;
        if (part[i].is_plain)
            out[n++] = gr_bytes_node(b, (int)from, (int)to, next);
        else
            out[n++] = from < 0x80 ? ascii(b, from, '"', next) : utf8_range(b, from, to, next);
    }
    return split(b, out, (size_t)n);
}

int32_t gr_bare_code_points(struct gr_builder *b, uint32_t lo, uint32_t hi, int32_t next)
{
    static const uint32_t first[] = { 1, 0x80, 0x800, 0xe000, 0x10000 },
                          last[] = { 0x7f, 0x7ff, 0xd7ff, 0xffff, 0x10ffff };
    int32_t out[5], n = 0;
    for (int i = 0; i < 5; i++) {
        uint32_t from = lo > first[i] ? lo : first[i], to = hi < last[i] ? hi : last[i];
        if (from <= to)
            out[n++] = i ? utf8_range(b, from, to, next) : gr_bytes_node(b, (int)from, (int)to, next);
    }
    return split(b, out, (size_t)n);
}

static int32_t quoted(struct gr_builder *b, const char *text, size_t n, char quote, int32_t next)
{
    next = gr_bytes_node(b, quote, quote, next);
    while (n-- > 0) {
        uint8_t c = (uint8_t)text[n];
        next = c < 0x80 ? ascii(b, c, quote, next) : gr_bytes_node(b, c, c, next);
    }
    return gr_bytes_node(b, quote, quote, next);
}

/* The text may hold U+0000, which is written as an escape.  A text that contains the marker cannot be marked. */
static int32_t quoted_text(struct gr_builder *b, const char *text, size_t n, int32_t next)
{
    if (gr_is_marked(b))
        return memmem(text, n, b->quote.text, b->quote.n) ? gr_forward(b)
                                                          : gr_quote(b, gr_literal(b, text, n, gr_quote(b, next)));
    int32_t usual = quoted(b, text, n, '"', next);
    return is_python(b) ? SPLIT(b, usual, quoted(b, text, n, '\'', next)) : usual;
}

/* A name of a member: without quotes if it is short and no character in it could end it. */
static int32_t name_text(struct gr_builder *b, const char *name, int32_t next)
{
    bool is_plain = *name && *name != ' ' && strlen(name) <= MOST_NAME && !strpbrk(name, "{}[]<>\",:\\\n\r\t");
    return gr_is_marked(b) && is_plain ? gr_text(b, name, next) : quoted_text(b, name, strlen(name), next);
}

/* Any name of a member in marked spelling: quoted, or a word without quotes. */
static int32_t name_rule(struct gr_builder *b)
{
    int32_t word = GR_END;
    for (int i = MOST_NAME; i > 0; i--) {
        int32_t letter = SPLIT(b, gr_bytes_node(b, 'a', 'z', word), gr_bytes_node(b, 'A', 'Z', word),
                               gr_text(b, "_", word));
        word = i == 1 ? letter : SPLIT(b, GR_END, letter, gr_bytes_node(b, '0', '9', word));
    }
    return gr_either(b, b->base[GR_STRING], word);
}

static int32_t string_rule(struct gr_builder *b, char quote)
{
    int32_t loop = gr_forward(b);
    gr_set(b, loop, SPLIT(b, gr_bytes_node(b, quote, quote, GR_END), character(b, quote, loop)));
    return gr_bytes_node(b, quote, quote, loop);
}

/* ---- numbers --------------------------------------------------------------------------------- */

int32_t gr_digits(struct gr_builder *b, int least, int most, int32_t next)
{
    int32_t node = next;
    for (int i = most - 1; i >= 0; i--) {
        node = gr_bytes_node(b, '0', '9', node);
        if (i >= least)
            node = SPLIT(b, next, node);
    }
    return node;
}

static int32_t whole(struct gr_builder *b, int most, int32_t next)
{
    return SPLIT(b, gr_text(b, "0", next), gr_bytes_node(b, '1', '9', gr_digits(b, 0, most - 1, next)));
}

static int32_t integer_rule(struct gr_builder *b)
{
    int32_t positive = gr_bytes_node(b, '1', '9', gr_digits(b, 0, MOST_INTEGER - 1, GR_END));
    return SPLIT(b, gr_text(b, "0", GR_END), positive, gr_text(b, "-", positive));
}

static int32_t number_rule(struct gr_builder *b)
{
    int32_t digits = gr_digits(b, 1, 2, GR_END);
    int32_t sign = SPLIT(b, digits, gr_text(b, "-", digits), gr_text(b, "+", digits));
    int32_t power = SPLIT(b, GR_END, gr_text(b, "e", sign), gr_text(b, "E", sign));
    int32_t tail = SPLIT(b, power, gr_text(b, ".", gr_digits(b, 1, MOST_FRACTION, power)));
    int32_t number = whole(b, MOST_WHOLE, tail);
    return SPLIT(b, number, gr_text(b, "-", number));
}

/* ---- words ----------------------------------------------------------------------------------- */

struct words {
    const char *yes, *no, *null;
};

static const struct words *words_of(const struct gr_builder *b)
{
    static const struct words json = { "true", "false", "null" }, python = { "True", "False", "None" };
    return is_python(b) ? &python : &json;
}

/* ---- fixed values ---------------------------------------------------------------------------- */

static int32_t real_value(struct gr_builder *b, double x, int32_t next)
{
    char text[40];
    for (int n = 1; n <= 17; n++) {
        snprintf(text, sizeof text, "%.*g", n, x);
        if (strtod(text, NULL) == x)
            break;
    }
    return gr_text(b, text, next);
}

static int32_t value_text(struct gr_builder *b, const json_t *value, int32_t next);

static int32_t object_value(struct gr_builder *b, const json_t *object, int32_t next)
{
    const size_t n = json_object_size(object);
    void *iter = json_object_iter((json_t *)(uintptr_t)object);
    void **member = kn_calloc(n + 1, sizeof *member);
    if (!member)
        return gr_fail(b, KN_ENOMEM, "no memory for an object of %zu members", n);
    for (size_t i = 0; i < n; i++, iter = json_object_iter_next((json_t *)(uintptr_t)object, iter))
        member[i] = iter;
    next = gr_text(b, "}", next);
    for (size_t i = n; i-- > 0;) {
        next = gr_text(b, ":", value_text(b, json_object_iter_value(member[i]), next));
        next = quoted_text(b, json_object_iter_key(member[i]), json_object_iter_key_len(member[i]), next);
        if (i > 0)
            next = gr_text(b, ",", next);
    }
    kn_free(member);
    return gr_text(b, "{", next);
}

static int32_t value_text(struct gr_builder *b, const json_t *value, int32_t next)
{
    char text[32];
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return object_value(b, value, next);
    case JSON_ARRAY:
        next = gr_text(b, "]", next);
        for (size_t i = json_array_size(value); i-- > 0;) {
            next = value_text(b, json_array_get(value, i), next);
            if (i > 0)
                next = gr_text(b, ",", next);
        }
        return gr_text(b, "[", next);
    case JSON_STRING:
        return quoted_text(b, json_string_value(value), json_string_length(value), next);
    case JSON_INTEGER:
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
        return gr_text(b, text, next);
    case JSON_REAL:
        return real_value(b, json_real_value(value), next);
    case JSON_NULL:
        return gr_text(b, words_of(b)->null, next);
    default:
        return gr_text(b, json_is_true(value) ? words_of(b)->yes : words_of(b)->no, next);
    }
}

int32_t gr_json_values(struct gr_builder *b, const json_t *array, int32_t next)
{
    const size_t n = json_array_size(array);
    int32_t *node = kn_alloc((n + 1) * sizeof *node);
    if (!node)
        return gr_fail(b, KN_ENOMEM, "no memory for %zu values", n);
    for (size_t i = 0; i < n && !b->error; i++)
        node[i] = value_text(b, json_array_get(array, i), next);
    int32_t any = b->error ? GR_END : gr_alternatives(b, node, n);
    kn_free(node);
    return any;
}

/* ---- objects and arrays ---------------------------------------------------------------------- */

static int32_t member(struct gr_builder *b, const struct gr_member *m, int32_t next)
{
    int32_t value = m->literal ? gr_json_values(b, m->literal, next) : gr_call(b, m->rule, next);
    return name_text(b, m->name, colon(b, value));
}

/* The rule of an object, built from the last member to the first.  Each member has two nodes: `first`, as the
 * first member in the text, and `later`, after a comma. */
int32_t gr_object_rule(struct gr_builder *b, const struct gr_members *m)
{
    int32_t close = space(b, gr_text(b, "}", GR_END)), first = gr_text(b, "}", GR_END), later = close;
    if (m->other_rule != GR_END) {
        int32_t loop = gr_forward(b);
        int32_t other = gr_call(b, m->other_name, colon(b, gr_call(b, m->other_rule, loop)));
        later = loop;
        gr_set(b, loop, gr_either(b, close, gr_text(b, ",", space(b, other))));
        first = gr_either(b, first, space(b, other));
    }
    for (size_t i = m->n; i-- > 0;) {
        int32_t this = member(b, &m->member[i], later);
        int32_t comma = gr_text(b, ",", space(b, this)), alone = space(b, this);
        first = m->member[i].required ? alone : gr_either(b, alone, first);
        later = m->member[i].required ? comma : gr_either(b, comma, later);
    }
    return gr_text(b, "{", first);
}

/* The items after the first n_first, each with a comma before it, then `close`; *first: the same without the first
 * comma, or GR_END.  Items are counted only if their number has a bound. */
static int32_t more_items(struct gr_builder *b, const struct gr_items *items, int32_t close, int32_t *first)
{
    uint32_t n = (uint32_t)items->n_first;
    uint32_t least = items->least > n ? items->least - n : 0;
    uint32_t most = items->most == GR_NO_LIMIT ? GR_NO_LIMIT : items->most > n ? items->most - n : 0;
    if (items->rest == GR_END || most == 0) {
        *first = GR_END;
        return least > 0 ? gr_forward(b) : close; /* a placeholder that is not set accepts nothing */
    }
    bool counts = least > 0 || most != GR_NO_LIMIT;
    int32_t loop = gr_forward(b);
    int32_t item = space(b, gr_call(b, items->rest, loop)), comma = gr_text(b, ",", item);
    if (counts) {
        item = gr_count(b, least, most, item);
        comma = gr_count(b, least, most, comma);
    }
    gr_set(b, loop, gr_either(b, comma, least > 0 ? gr_at_least(b, least, close) : close));
    *first = item;
    return least > 0 ? comma : loop;
}

int32_t gr_array_rule(struct gr_builder *b, const struct gr_items *items)
{
    int32_t close = space(b, gr_text(b, "]", GR_END)), first;
    int32_t node = more_items(b, items, close, &first);
    size_t n = items->n_first < items->most ? items->n_first : items->most;
    if (n < items->n_first)
        node = close;
    for (size_t i = n; i-- > 0;) {
        int32_t call = gr_call(b, items->first[i], node);
        first = space(b, call);
        node = gr_text(b, ",", space(b, call));
        if (i >= items->least)
            node = gr_either(b, node, close);
    }
    int32_t empty = gr_text(b, "]", GR_END);
    if (first == GR_END)
        first = items->least > 0 ? gr_forward(b) : empty;
    else if (items->least == 0)
        first = gr_either(b, first, empty);
    return gr_text(b, "[", first);
}

/* ---- base rules ------------------------------------------------------------------------------ */

/* Makes the base rules that differ between spellings, and the base rules that contain these. */
static void value_rules(struct gr_builder *b)
{
    const struct words *w = words_of(b);
    struct gr_trigger end = b->quote;
    end.next = GR_END;
    b->base[GR_STRING] = gr_is_marked(b) ? gr_quote(b, gr_free_until(b, &end, 1, false)) : string_rule(b, '"');
    if (is_python(b))
        b->base[GR_STRING] = SPLIT(b, b->base[GR_STRING], string_rule(b, '\''));
    b->base[GR_NAME] = gr_is_marked(b) ? name_rule(b) : b->base[GR_STRING];
    b->base[GR_BOOLEAN] = SPLIT(b, gr_text(b, w->yes, GR_END), gr_text(b, w->no, GR_END));
    b->base[GR_NULL] = gr_text(b, w->null, GR_END);
    if (gr_is_marked(b)) /* templates print None */
        b->base[GR_NULL] = gr_either(b, b->base[GR_NULL], gr_text(b, "None", GR_END));
    int32_t any = b->base[GR_ANY] = gr_forward(b);
    b->base[GR_ANY_OBJECT] = gr_object_rule(b,
                                            &(struct gr_members){ .other_name = b->base[GR_NAME], .other_rule = any });
    b->base[GR_ANY_ARRAY] = gr_array_rule(b, &(struct gr_items){ .rest = any, .most = GR_NO_LIMIT });
    gr_set(b, any,
           SPLIT(b, b->base[GR_ANY_OBJECT], b->base[GR_ANY_ARRAY], b->base[GR_STRING], b->base[GR_NUMBER],
                 b->base[GR_BOOLEAN], b->base[GR_NULL]));
}

void gr_base_rules(struct gr_builder *b)
{
    int32_t indent = indent_rule(b), number = number_rule(b), integer = integer_rule(b);
    for (int i = GR_SHARED - 1; i >= 0; i--) { /* JSON last, so that b->base ends as JSON */
        b->base = b->spelling[i];
        b->base[GR_INDENT] = indent;
        b->base[GR_NUMBER] = number;
        b->base[GR_INTEGER] = integer;
        value_rules(b);
    }
}

void gr_marked_rules(struct gr_builder *b)
{
    memcpy(b->spelling[GR_MARKED], b->spelling[GR_JSON], sizeof b->spelling[GR_JSON]);
    b->base = b->spelling[GR_MARKED];
    value_rules(b);
    b->base = b->spelling[GR_JSON];
}

int32_t gr_json_object(struct gr_builder *b, int32_t next) { return gr_call(b, b->base[GR_ANY_OBJECT], next); }
