/* engine/text/jinja/lexer.c - a template's text to tokens.
 *
 * The text between two tags is one token, after white space control.  "-" at the start or end of a
 * tag removes all white space before or after the tag.  A block or comment removes the newline after it
 * (trim_blocks) and, if it is the first thing on its line, the blanks before it (lstrip_blocks); "+" at the
 * same end of the tag keeps them.  Inside tags the tokens are Python's names, numbers and strings, and
 * operators; a tag cannot end while a bracket is open. */
#include "engine/base/base.h"
#include "engine/text/jinja/internal.h"

#include <stdlib.h>
#include <utf8proc.h>

/* ---- names ----------------------------------------------------------------------------------- */

/* A string in the template's heap.  Renderings in several threads share the string, so its characters are
 * counted here, not at first use. */
static struct jin_string *lasting(struct jin_lexer *l, const char *data, size_t n)
{
    struct jin_string *s = jin_string_view(l->heap, data, n);
    jin_n_char(s);
    return s;
}

static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++)
        h = kn_mix(h * KN_GOLDEN + (uint8_t)p[i]);
    return h;
}

const struct jin_string *jin_intern(struct jin_lexer *l, const char *data, size_t n)
{
    if (2 * l->names.n >= l->names.room) {
        size_t room = l->names.room ? 2 * l->names.room : 128;
        const struct jin_string **slot = jin_take_n(l->heap, room, sizeof *slot);
        memset(slot, 0, room * sizeof *slot);
        for (size_t i = 0; i < l->names.room; i++) {
            const struct jin_string *s = l->names.slot[i];
            size_t at = s ? hash_bytes(s->data, s->n) & (room - 1) : 0;
            while (s && slot[at])
                at = (at + 1) & (room - 1);
            if (s)
                slot[at] = s;
        }
        l->names.slot = slot;
        l->names.room = room;
    }
    size_t at = hash_bytes(data, n) & (l->names.room - 1);
    for (; l->names.slot[at]; at = (at + 1) & (l->names.room - 1)) {
        const struct jin_string *s = l->names.slot[at];
        if (s->n == n && !memcmp(s->data, data, n))
            return s;
    }
    l->names.n++;
    return l->names.slot[at] = lasting(l, data, n);
}

/* ---- whitespace ------------------------------------------------------------------------------ */

static size_t space_at(const struct jin_lexer *l, size_t at)
{
    int32_t code;
    int n = at < l->n ? jin_decode(l->text + at, l->n - at, &code) : 0;
    return n && jin_is_space(code) ? (size_t)n : 0;
}

static size_t skip_space(const struct jin_lexer *l, size_t at)
{
    for (size_t n; (n = space_at(l, at));)
        at += n;
    return at;
}

/* The end of text[begin:end] without trailing white space. */
static size_t strip_right(const struct jin_lexer *l, size_t begin, size_t end)
{
    while (end > begin) {
        size_t from = end - 1;
        while (from > begin && ((uint8_t)l->text[from] & 0xC0) == 0x80)
            from--;
        if (!space_at(l, from))
            break;
        end = from;
    }
    return end;
}

static bool starts(const struct jin_lexer *l, size_t at, const char *with)
{
    size_t n = strlen(with);
    return l->n - at >= n && !memcmp(l->text + at, with, n);
}

/* Moves to offset `at` and updates the line number. */
static void move(struct jin_lexer *l, size_t at)
{
    for (; l->line_at < at; l->line_at++)
        l->line += l->text[l->line_at] == '\n';
    l->at = at;
    l->heap->line = l->line;
}

void jin_lexer_init(struct jin_lexer *l, struct jin_heap *h, const char *text, size_t n)
{
    memset(l, 0, sizeof *l);
    char *clean = jin_take(h, n + 1);
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        clean[m++] = text[i] == '\r' ? '\n' : text[i];
        i += text[i] == '\r' && i + 1 < n && text[i + 1] == '\n';
    }
    m -= m && clean[m - 1] == '\n';
    *l = (struct jin_lexer){ .heap = h, .text = clean, .n = m, .line = 1, .line_starting = true };
    h->line = 1;
    for (size_t i = 0; i < m;) {
        int bad;
        bool cut;
        int len = (int8_t)clean[i] >= 0 ? 1 : eng_utf8_next(clean + i, m - i, &bad, &cut);
        if (!len)
            jin_fail(h, "the template is not UTF-8 (byte %zu)", i);
        i += (size_t)len;
    }
}

/* ---- between tags ---------------------------------------------------------------------------- */

static void data_token(struct jin_lexer *l, struct jin_token *out, size_t begin, size_t end)
{
    *out = (struct jin_token){ .kind = JIN_T_DATA,
                               .line = l->line,
                               .value = jin_of(lasting(l, l->text + begin, end - begin)) };
}

/* The end of the text before a tag, after removal of the white space that the tag removes.  sign: the '-' or '+'
 * at the tag's start, or 0. */
static size_t data_end(const struct jin_lexer *l, size_t begin, size_t end, char sign, bool is_print)
{
    if (sign == '-')
        return strip_right(l, begin, end);
    if (sign == '+' || is_print)
        return end;
    size_t line = end;
    while (line > begin && l->text[line - 1] != '\n')
        line--;
    bool first = line > begin || l->line_starting;
    return first && strip_right(l, line, end) == line ? line : end;
}

/* If the end of a tag ("%}", "-%}" or "+%}"; mark: the '%', '#' or '}' before the last '}') begins at `at`: the length
 * of this end and of the white space that it removes; else 0.  trim: "%}" removes one newline. */
static size_t tag_end(const struct jin_lexer *l, size_t at, char mark, bool trim)
{
    char end[3] = { mark, '}', 0 };
    if (starts(l, at, end))
        return 2 + (trim && at + 2 < l->n && l->text[at + 2] == '\n');
    if (at < l->n && l->text[at] == '-' && starts(l, at + 1, end))
        return skip_space(l, at + 3) - at;
    return at < l->n && l->text[at] == '+' && mark != '}' && starts(l, at + 1, end) ? 3 : 0;
}

static void skip_comment(struct jin_lexer *l, size_t at)
{
    for (; at < l->n; at++) {
        size_t n = tag_end(l, at, '#', true);
        if (n) {
            l->line_starting = l->text[at + n - 1] == '\n';
            move(l, at + n);
            return;
        }
    }
    jin_fail(l->heap, "Missing end of comment tag");
}

/* If a tag {% word %} (raw or endraw) begins at `at`: the offset of its end; else 0. */
static size_t raw_tag(const struct jin_lexer *l, size_t at, const char *word, bool trim)
{
    if (!starts(l, at, "{%"))
        return 0;
    at += 2;
    at += at < l->n && (l->text[at] == '-' || l->text[at] == '+');
    at = skip_space(l, at);
    if (!starts(l, at, word))
        return 0;
    at = skip_space(l, at + strlen(word));
    size_t n = at < l->n && l->text[at] == '+' && !trim ? 0 : tag_end(l, at, '%', trim);
    return n ? at + n : 0;
}

static char sign_at(const struct jin_lexer *l, size_t at)
{
    return at < l->n && (l->text[at] == '-' || l->text[at] == '+') ? l->text[at] : 0;
}

static bool next_raw(struct jin_lexer *l, struct jin_token *out)
{
    for (size_t at = l->at; at < l->n; at++) {
        size_t end = raw_tag(l, at, "endraw", true);
        if (!end)
            continue;
        data_token(l, out, l->at, data_end(l, l->at, at, sign_at(l, at + 2), false));
        l->line_starting = l->text[end - 1] == '\n';
        l->state = JIN_IN_DATA;
        move(l, end);
        return out->value.s->n;
    }
    jin_fail(l->heap, "Missing end of raw directive");
}

/* Reads the text before the next tag as a token; if the tag is next, reads its "{%" or "{{" as a token, or skips it if
 * it is a comment or {% raw %}.  True if out holds a token. */
static bool next_data(struct jin_lexer *l, struct jin_token *out)
{
    size_t at = l->at, raw = 0;
    while (at < l->n && !(l->text[at] == '{' && (starts(l, at, "{{") || starts(l, at, "{%") || starts(l, at, "{#"))))
        at++;
    if (at == l->n) {
        data_token(l, out, l->at, at);
        move(l, at);
        return out->value.s->n;
    }
    char mark = l->text[at + 1], sign = sign_at(l, at + 2);
    size_t begin = l->at, end = data_end(l, begin, at, sign, mark == '{');
    if (end > begin) { /* the next call reads the tag */
        data_token(l, out, begin, end);
        move(l, at);
        l->line_starting = false;
        return true;
    }
    move(l, at);
    if (mark == '%' && (raw = raw_tag(l, at, "raw", false))) {
        l->line_starting = l->text[raw - 1] == '\n';
        l->state = JIN_IN_RAW;
        move(l, raw);
        return false;
    }
    size_t inside = at + 2 + (sign != 0);
    if (mark == '#') {
        skip_comment(l, inside);
        return false;
    }
    enum jin_token_kind kind = mark == '%' ? JIN_T_BLOCK_BEGIN : JIN_T_PRINT_BEGIN;
    *out = (struct jin_token){ .kind = kind, .line = l->line };
    l->state = mark == '%' ? JIN_IN_BLOCK : JIN_IN_PRINT;
    move(l, inside);
    return true;
}

/* ---- within tags ----------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (uint8_t)c >= 0x80;
}

static bool digit_of(char c, int base)
{
    return base == 16 ? is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') : c >= '0' && c < '0' + base;
}

/* The number of bytes of digits at `at`, with single underscores between them. */
static size_t digits(const struct jin_lexer *l, size_t at, int base)
{
    size_t from = at;
    while (at < l->n && (digit_of(l->text[at], base) ||
                         (l->text[at] == '_' && at > from && at + 1 < l->n && digit_of(l->text[at + 1], base))))
        at++;
    return at - from;
}

static void number_token(struct jin_lexer *l, struct jin_token *out)
{
    size_t at = l->at, whole = digits(l, at, 10), end = at + whole, n;
    char text[400];
    bool is_float = false;
    if (!(at && l->text[at - 1] == '.')) { /* in x.0.1 both numbers are integers */
        if (end < l->n && l->text[end] == '.' && (n = digits(l, end + 1, 10))) {
            end += 1 + n;
            is_float = true;
        }
        if (end < l->n && (l->text[end] | 32) == 'e') {
            size_t sign = end + 1 < l->n && (l->text[end + 1] == '+' || l->text[end + 1] == '-');
            if ((n = digits(l, end + 1 + sign, 10))) {
                end += 1 + sign + n;
                is_float = true;
            }
        }
    }
    int base = 10;
    if (!is_float && l->text[at] == '0') {
        char kind = at + 1 < l->n ? l->text[at + 1] | 32 : 0;
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
        size_t first = at + 2 + (at + 2 < l->n && l->text[at + 2] == '_');
        if (base != 10 && (n = digits(l, first, base))) {
            end = first + n;
        } else { /* as in Jinja, only the zeros: 007 is the tokens 00 and 7 */
            base = 10;
            for (end = at + 1; end < l->n && (l->text[end] == '0' ||
                                              (l->text[end] == '_' && end + 1 < l->n && l->text[end + 1] == '0'));)
                end++;
        }
    }
    n = 0;
    for (size_t i = at + (base == 10 ? 0 : 2); i < end; i++) {
        if (n + 1 == sizeof text)
            jin_fail(l->heap, "a number of more than %zu digits", sizeof text - 1);
        if (l->text[i] != '_')
            text[n++] = l->text[i];
    }
    text[n] = 0;
    out->kind = JIN_T_NUMBER;
    if (is_float) {
        out->value = jin_float(strtod(text, NULL));
    } else {
        struct jin_string s = { .data = text, .n = n };
        int64_t i;
        if (!jin_parse_int(&s, base, NULL, &i))
            jin_fail(l->heap, "the number %s is beyond 64 bits", text);
        out->value = jin_int(i);
    }
    move(l, end);
}

/* The code point of an escape such as \x41 or \U0001F600, with n hex digits after the letter. */
static int32_t hex_escape(struct jin_lexer *l, size_t at, size_t end, int n)
{
    int32_t code = 0;
    for (int i = 0; i < n; i++) {
        char c = at + (size_t)i < end ? l->text[at + (size_t)i] : 0;
        if (!digit_of(c, 16) || code > 0x10FFFF)
            jin_fail(l->heap, "a string's escape lacks hexadecimal digits");
        code = 16 * code + (is_digit(c) ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        jin_fail(l->heap, "a string's escape is no character");
    return code;
}

/* Decodes the escape whose backslash is before `at`, and appends the result to out[*n]; returns the length of the
 * escape without the backslash. */
static size_t escape(struct jin_lexer *l, size_t at, size_t end, char *out, size_t *n)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->text[at];
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        out[(*n)++] = to[known - from];
        return 1;
    }
    if (c == '\n')
        return 1;
    if (c >= '0' && c <= '7') {
        int32_t code = 0;
        size_t used = 0;
        for (; used < 3 && at + used < end && l->text[at + used] >= '0' && l->text[at + used] <= '7'; used++)
            code = 8 * code + (l->text[at + used] - '0');
        *n += (size_t)jin_encode(code, out + *n);
        return used;
    }
    int width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (width) {
        *n += (size_t)jin_encode(hex_escape(l, at + 1, end, width), out + *n);
        return 1 + (size_t)width;
    }
    if (c == 'N' || (uint8_t)c >= 0x80)
        jin_fail(l->heap, "a backslash before %s is not supported", c == 'N' ? "N" : "a letter beyond ASCII");
    out[(*n)++] = '\\'; /* not an escape: the backslash is kept */
    return 0;
}

/* Names: letters, combining marks, decimal digits and '_'. */
static void name_token(struct jin_lexer *l, struct jin_token *out)
{
    size_t end = l->at;
    while (end < l->n && is_word(l->text[end])) {
        int32_t code;
        int n = jin_decode(l->text + end, l->n - end, &code);
        utf8proc_category_t is = utf8proc_category(code);
        if (code >= 0x80 && !(is >= UTF8PROC_CATEGORY_LU && is <= UTF8PROC_CATEGORY_ND))
            jin_fail(l->heap, "unexpected character '%.*s'", n, l->text + end);
        end += (size_t)n;
    }
    out->kind = JIN_T_NAME;
    out->value = jin_of(jin_intern(l, l->text + l->at, end - l->at));
    move(l, end);
}

static void string_token(struct jin_lexer *l, struct jin_token *out)
{
    char quote = l->text[l->at];
    size_t begin = l->at + 1, end = begin;
    while (end < l->n && l->text[end] != quote)
        end += 1 + (l->text[end] == '\\');
    if (end >= l->n)
        jin_fail(l->heap, "a string that begins here does not end");
    size_t n = 0;
    char *data = jin_take(l->heap, end - begin + 4); /* decoding never lengthens the text */
    for (size_t at = begin; at < end;) {
        if (l->text[at] == '\\')
            at += 1 + escape(l, at + 1, end, data, &n);
        else
            data[n++] = l->text[at++];
    }
    out->kind = JIN_T_STRING;
    out->value = jin_of(lasting(l, data, n));
    move(l, end + 1);
}

static void operator_token(struct jin_lexer *l, struct jin_token *out)
{
    static const char pairs[][3] = { "==", "!=", ">=", "<=", "//", "**" };
    static const char two[] = "ENGLDP";
    char c = l->text[l->at];
    out->kind = JIN_T_OPERATOR;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (starts(l, l->at, pairs[i])) {
            out->op = two[i];
            move(l, l->at + 2);
            return;
        }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        jin_fail(l->heap, "unexpected character '%.*s'", (uint8_t)c < 0x80 ? 1 : 4, l->text + l->at);
    out->op = (uint8_t)c;
    if (strchr("([{", c)) {
        if (l->n_bracket == (int)sizeof l->bracket)
            jin_fail(l->heap, "more than %zu brackets within each other", sizeof l->bracket);
        l->bracket[l->n_bracket++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (!l->n_bracket)
            jin_fail(l->heap, "unexpected '%c'", c);
        if (l->bracket[--l->n_bracket] != c)
            jin_fail(l->heap, "unexpected '%c', expected '%c'", c, l->bracket[l->n_bracket]);
    }
    move(l, l->at + 1);
}

static bool next_in_tag(struct jin_lexer *l, struct jin_token *out)
{
    bool block = l->state == JIN_IN_BLOCK;
    size_t n = l->n_bracket ? 0 : tag_end(l, l->at, block ? '%' : '}', block);
    if (n) {
        enum jin_token_kind kind = block ? JIN_T_BLOCK_END : JIN_T_PRINT_END;
        *out = (struct jin_token){ .kind = kind, .line = l->line };
        l->line_starting = l->text[l->at + n - 1] == '\n';
        l->state = JIN_IN_DATA;
        move(l, l->at + n);
        return true;
    }
    size_t at = skip_space(l, l->at);
    if (at > l->at) {
        move(l, at);
        return false;
    }
    if (at == l->n) {
        *out = (struct jin_token){ .kind = JIN_T_END, .line = l->line };
        return true;
    }
    *out = (struct jin_token){ .line = l->line };
    char c = l->text[at];
    if (is_digit(c)) {
        number_token(l, out);
    } else if (is_word(c)) {
        name_token(l, out);
    } else if (c == '"' || c == '\'') {
        string_token(l, out);
    } else {
        operator_token(l, out);
    }
    return true;
}

void jin_lexer_next(struct jin_lexer *l, struct jin_token *out)
{
    for (bool got = false; !got;) {
        if (l->state == JIN_IN_RAW) {
            got = next_raw(l, out);
        } else if (l->state != JIN_IN_DATA) {
            got = next_in_tag(l, out);
        } else if (l->at < l->n) {
            got = next_data(l, out);
        } else {
            *out = (struct jin_token){ .kind = JIN_T_END, .line = l->line };
            got = true;
        }
    }
}
