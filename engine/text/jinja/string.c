/* engine/text/jinja/string.c - strings: UTF-8 that is counted, cut and searched by character, as in
 * Python. */
#include "engine/text/jinja/internal.h"

#include <utf8proc.h>

/* ---- making ---------------------------------------------------------------------------------- */

struct jin_string *jin_string_view(struct jin_heap *h, const char *data, size_t n)
{
    struct jin_string *s = jin_take(h, sizeof *s);
    *s = (struct jin_string){ .data = data, .n = n, .n_char = -1 };
    return s;
}

struct jin_value jin_string(struct jin *j, const char *data, size_t n)
{
    char *copy = jin_take(&j->heap, n + 1);
    memcpy(copy, data, n);
    return jin_of(jin_string_view(&j->heap, copy, n));
}

struct jin_value jin_text(struct jin *j, const char *text)
{
    return jin_of(jin_string_view(&j->heap, text, strlen(text)));
}

struct jin_value jin_sub(struct jin *j, const struct jin_string *s, size_t begin, size_t end)
{
    if (begin == 0 && end == s->n)
        return jin_of(s);
    return jin_of(jin_string_view(&j->heap, s->data + begin, end > begin ? end - begin : 0));
}

struct jin_value jin_concat(struct jin *j, const struct jin_string *a, const struct jin_string *b)
{
    struct jin_tail *t = a->tail;
    if (!a->n || !b->n)
        return jin_of(a->n ? a : b);
    size_t n = a->n + b->n;
    jin_charge(j, b->n / 16);
    if (!t || a->data + a->n != t->data + t->used || t->room - t->used < b->n) {
        jin_charge(j, a->n / 16);
        size_t room = n < 64 ? n : 2 * n;
        t = jin_take(&j->heap, sizeof *t + room);
        *t = (struct jin_tail){ .used = n, .room = room };
        memcpy(t->data, a->data, a->n);
        memcpy(t->data + a->n, b->data, b->n);
    } else {
        memcpy(t->data + t->used, b->data, b->n);
        t->used += b->n;
    }
    struct jin_string *s = jin_string_view(&j->heap, t->data + t->used - n, n);
    s->tail = t;
    return jin_of(s);
}

/* ---- builders -------------------------------------------------------------------------------- */

void jin_add(struct jin_builder *b, const char *data, size_t n)
{
    jin_charge(b->j, n / 16);
    if (n > b->room - b->n) {
        size_t room = b->n + n < 64 ? 128 : 2 * (b->n + n);
        char *grown = jin_take(&b->j->heap, room);
        if (b->n)
            memcpy(grown, b->data, b->n);
        b->data = grown;
        b->room = room;
    }
    if (n)
        memcpy(b->data + b->n, data, n);
    b->n += n;
}

void jin_add_text(struct jin_builder *b, const char *text) { jin_add(b, text, strlen(text)); }

void jin_add_char(struct jin_builder *b, int32_t code)
{
    char c[4];
    jin_add(b, c, (size_t)jin_encode(code, c));
}

void jin_add_repeat(struct jin_builder *b, const struct jin_string *s, int64_t times)
{
    for (int64_t i = 0; s->n && i < times; i++) {
        jin_charge(b->j, 1);
        jin_add(b, s->data, s->n);
    }
}

struct jin_value jin_built(struct jin_builder *b)
{
    return jin_of(jin_string_view(&b->j->heap, b->data ? b->data : "", b->n));
}

/* ---- characters ------------------------------------------------------------------------------ */

int jin_decode(const char *p, size_t n, int32_t *code)
{
    const uint8_t *u = (const uint8_t *)p;
    int len = u[0] < 0x80 ? 1 : u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    if ((size_t)len > n)
        len = (int)n;
    *code = len == 1 ? u[0] : u[0] & (0x7F >> len);
    for (int i = 1; i < len; i++)
        *code = *code << 6 | (u[i] & 0x3F);
    return len;
}

int jin_encode(int32_t code, char out[4]) { return (int)utf8proc_encode_char(code, (utf8proc_uint8_t *)out); }

size_t jin_n_char(const struct jin_string *s)
{
    if (s->n_char < 0) {
        size_t n = 0;
        for (size_t i = 0; i < s->n; i++)
            n += ((uint8_t)s->data[i] & 0xC0) != 0x80;
        ((struct jin_string *)s)->n_char = (ptrdiff_t)
            n; /* cached; safe because only this rendering uses an uncounted string */
    }
    return (size_t)s->n_char;
}

size_t jin_char_at(const struct jin_string *s, size_t i)
{
    size_t at = 0;
    if (i >= jin_n_char(s))
        return s->n;
    if (jin_n_char(s) == s->n)
        return i;
    for (; i; i--)
        do
            at++;
        while (((uint8_t)s->data[at] & 0xC0) == 0x80);
    return at;
}

bool jin_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool jin_string_is(const struct jin_string *s, const char *text)
{
    size_t n = strlen(text);
    return s->n == n && !memcmp(s->data, text, n);
}

bool jin_string_equal(const struct jin_string *a, const struct jin_string *b)
{
    return a == b || (a->n == b->n && (a->data == b->data || !memcmp(a->data, b->data, a->n)));
}

/* ---- searching ------------------------------------------------------------------------------- */

ptrdiff_t jin_find(struct jin *j, const struct jin_string *s, size_t from, const struct jin_string *what)
{
    if (from > s->n || what->n > s->n - from)
        return -1;
    if (!what->n)
        return (ptrdiff_t)from;
    const char *at = memmem(s->data + from, s->n - from, what->data, what->n);
    jin_charge(j, (at ? (size_t)(at - s->data) - from : s->n - from) / 16);
    return at ? at - s->data : -1;
}

/* Decodes the character of s that ends at byte offset `at` (> 0); returns the offset of its start. */
static size_t char_before(const struct jin_string *s, size_t at, int32_t *code)
{
    size_t from = at - 1;
    while (from && ((uint8_t)s->data[from] & 0xC0) == 0x80)
        from--;
    jin_decode(s->data + from, at - from, code);
    return from;
}

static bool among(int32_t code, const struct jin_string *chars)
{
    if (!chars)
        return jin_is_space(code);
    for (size_t i = 0; i < chars->n;) {
        int32_t c;
        i += (size_t)jin_decode(chars->data + i, chars->n - i, &c);
        if (c == code)
            return true;
    }
    return false;
}

/* Removes the characters in `chars` (NULL: white space) at the ends of s.  sides: 1 left, 2 right, 3 both. */
struct jin_value jin_strip(struct jin *j, const struct jin_string *s, const struct jin_string *chars, int sides)
{
    size_t begin = 0, end = s->n;
    int32_t code;
    while (sides & 1 && begin < end) {
        int n = jin_decode(s->data + begin, end - begin, &code);
        if (!among(code, chars))
            break;
        begin += (size_t)n;
        jin_charge(j, 1);
    }
    while (sides & 2 && end > begin) {
        size_t from = char_before(s, end, &code);
        if (!among(code, chars))
            break;
        end = from;
        jin_charge(j, 1);
    }
    return jin_sub(j, s, begin, end);
}

static struct jin_value part(struct jin *j, struct jin_value s, size_t begin, size_t end)
{
    struct jin_value v = jin_sub(j, s.s, begin, end);
    v.safe = s.safe;
    return v;
}

static void split_space(struct jin *j, struct jin_value s, int64_t most, struct jin_items *out)
{
    int32_t code;
    for (size_t at = 0; at < s.s->n;) {
        int n = jin_decode(s.s->data + at, s.s->n - at, &code);
        if (jin_is_space(code)) {
            at += (size_t)n;
            continue;
        }
        if (most >= 0 && (int64_t)out->n == most) {
            jin_items_add(j, out, part(j, s, at, s.s->n));
            return;
        }
        size_t end = at;
        while (end < s.s->n && (n = jin_decode(s.s->data + end, s.s->n - end, &code), !jin_is_space(code)))
            end += (size_t)n;
        jin_charge(j, 1 + (end - at) / 16);
        jin_items_add(j, out, part(j, s, at, end));
        at = end;
    }
}

static void split_space_right(struct jin *j, struct jin_value s, int64_t most, struct jin_items *out)
{
    int32_t code;
    for (size_t end = s.s->n; end;) {
        size_t from = char_before(s.s, end, &code);
        if (jin_is_space(code)) {
            end = from;
            continue;
        }
        if ((int64_t)out->n == most) {
            jin_items_add(j, out, part(j, s, 0, end));
            return;
        }
        size_t begin = end;
        while (begin && (from = char_before(s.s, begin, &code), !jin_is_space(code)))
            begin = from;
        jin_charge(j, 1 + (end - begin) / 16);
        jin_items_add(j, out, part(j, s, begin, end));
        end = begin;
    }
}

static ptrdiff_t find_last(struct jin *j, const struct jin_string *s, size_t end, const struct jin_string *what)
{
    for (size_t at = end; at-- > 0;) {
        jin_charge(j, at % 16 == 0);
        if (what->n <= end - at && !memcmp(s->data + at, what->data, what->n))
            return (ptrdiff_t)at;
    }
    return -1;
}

static void turn(struct jin_items *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jin_value v = l->item[i];
        l->item[i] = l->item[l->n - 1 - i];
        l->item[l->n - 1 - i] = v;
    }
}

struct jin_value jin_split(struct jin *j, struct jin_value s, const struct jin_string *by, int64_t most, bool right)
{
    struct jin_items out = { 0 };
    if (by && !by->n)
        JIN_FAIL(j, "empty separator");
    right &= by || most >= 0; /* at white space without a limit, both directions give the same parts */
    if (!by && !right) {
        split_space(j, s, most, &out);
    } else if (!by) {
        split_space_right(j, s, most, &out);
        turn(&out);
    } else if (!right) {
        size_t from = 0;
        ptrdiff_t at;
        while ((most < 0 || (int64_t)out.n < most) && (at = jin_find(j, s.s, from, by)) >= 0) {
            jin_charge(j, 1);
            jin_items_add(j, &out, part(j, s, from, (size_t)at));
            from = (size_t)at + by->n;
        }
        jin_items_add(j, &out, part(j, s, from, s.s->n));
    } else {
        size_t end = s.s->n;
        ptrdiff_t at;
        while ((most < 0 || (int64_t)out.n < most) && (at = find_last(j, s.s, end, by)) >= 0) {
            jin_items_add(j, &out, part(j, s, (size_t)at + by->n, end));
            end = (size_t)at;
        }
        jin_items_add(j, &out, part(j, s, 0, end));
        turn(&out);
    }
    return jin_items_done(j, &out, JIN_LIST);
}

struct jin_value jin_split_lines(struct jin *j, struct jin_value s, bool keep)
{
    struct jin_items out = { 0 };
    size_t from = 0;
    for (size_t at = 0; at < s.s->n;) {
        int32_t c;
        size_t end = at, n = (size_t)jin_decode(s.s->data + at, s.s->n - at, &c);
        at += n;
        if (!((c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029))
            continue;
        at += c == '\r' && at < s.s->n && s.s->data[at] == '\n';
        jin_charge(j, 1 + (end - from) / 16);
        jin_items_add(j, &out, part(j, s, from, keep ? at : end));
        from = at;
    }
    if (from < s.s->n)
        jin_items_add(j, &out, part(j, s, from, s.s->n));
    return jin_items_done(j, &out, JIN_LIST);
}

/* replace() with an empty `old`, which matches before every character and at the end: inserts `with` there. */
static struct jin_value insert_between(struct jin *j, const struct jin_string *s, const struct jin_string *with,
                                       int64_t most)
{
    struct jin_builder b = { .j = j };
    size_t at = 0;
    int64_t done = 0;
    for (; at < s->n && (most < 0 || done < most); done++) {
        int32_t code;
        size_t n = (size_t)jin_decode(s->data + at, s->n - at, &code);
        jin_charge(j, 1);
        jin_add(&b, with->data, with->n);
        jin_add(&b, s->data + at, n);
        at += n;
    }
    jin_add(&b, s->data + at, s->n - at);
    if (most < 0 || done < most)
        jin_add(&b, with->data, with->n);
    return jin_built(&b);
}

struct jin_value jin_replace(struct jin *j, const struct jin_string *s, const struct jin_string *old,
                             const struct jin_string *with, int64_t most)
{
    if (!old->n)
        return insert_between(j, s, with, most);
    struct jin_builder b = { .j = j };
    size_t from = 0;
    ptrdiff_t at;
    for (int64_t done = 0; (most < 0 || done < most) && (at = jin_find(j, s, from, old)) >= 0; done++) {
        jin_charge(j, 1);
        jin_add(&b, s->data + from, (size_t)at - from);
        jin_add(&b, with->data, with->n);
        from = (size_t)at + old->n;
    }
    if (!from)
        return jin_of(s);
    jin_add(&b, s->data + from, s->n - from);
    return jin_built(&b);
}

/* ---- markup ---------------------------------------------------------------------------------- */

struct jin_value jin_escape_html(struct jin *j, struct jin_value v)
{
    struct jin_builder b = { .j = j };
    if (v.type == JIN_STRING && v.safe)
        return v;
    const struct jin_string *s = jin_str(j, v);
    size_t from = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *name = s->data[i] == '&'    ? "&amp;"
                           : s->data[i] == '<'  ? "&lt;"
                           : s->data[i] == '>'  ? "&gt;"
                           : s->data[i] == '"'  ? "&#34;"
                           : s->data[i] == '\'' ? "&#39;"
                                                : NULL;
        if (!name)
            continue;
        jin_add(&b, s->data + from, i - from);
        jin_add_text(&b, name);
        from = i + 1;
    }
    jin_add(&b, s->data + from, s->n - from);
    struct jin_value out = from ? jin_built(&b) : jin_of(s);
    out.safe = true;
    return out;
}
