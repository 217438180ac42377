/* engine/text/jinja/string_methods.c - methods of strings, as in Python's str.
 *
 * Methods of a string marked as markup return markup; replace and join HTML-escape the text that they insert. */
#include "engine/text/jinja/internal.h"

#include <utf8proc.h>

#define METHOD(name) static struct jin_value name(struct jin *j, struct jin_value self, const struct jin_args *args)

/* The string of an argument, or NULL if it is missing or None. */
static const struct jin_string *text_of(struct jin *j, struct jin_value v, const char *what)
{
    if (!jin_given(v))
        return NULL;
    jin_need(j, v);
    if (v.type != JIN_STRING)
        JIN_FAIL(j, "%s must be str, not %s", what, jin_type_name(v));
    return v.s;
}

static const struct jin_string *must_text(struct jin *j, struct jin_value v, const char *what)
{
    const struct jin_string *s = text_of(j, v, what);
    if (!s)
        JIN_FAIL(j, "%s must be str, not NoneType", what);
    return s;
}

static struct jin_value same_kind(struct jin_value v, struct jin_value self)
{
    v.safe = self.safe;
    return v;
}

static struct jin_value strip(struct jin *j, struct jin_value self, const struct jin_args *args, int sides)
{
    struct jin_value chars;
    jin_bind(j, "strip", args, "chars", 0, &chars);
    return same_kind(jin_strip(j, self.s, text_of(j, chars, "strip arg"), sides), self);
}
METHOD(m_strip) { return strip(j, self, args, 3); }
METHOD(m_lstrip) { return strip(j, self, args, 1); }
METHOD(m_rstrip) { return strip(j, self, args, 2); }

static struct jin_value recase(struct jin *j, struct jin_value self, const struct jin_args *args, enum jin_case how)
{
    jin_bind(j, "this method", args, "", 0, NULL);
    return same_kind(jin_recase(j, self.s, how), self);
}
METHOD(m_upper) { return recase(j, self, args, JIN_UPPER); }
METHOD(m_lower) { return recase(j, self, args, JIN_LOWER); }
METHOD(m_capitalize) { return recase(j, self, args, JIN_CAPITALIZE); }
METHOD(m_title) { return recase(j, self, args, JIN_TITLE); }
METHOD(m_swapcase) { return recase(j, self, args, JIN_SWAP); }
METHOD(m_casefold) { return recase(j, self, args, JIN_FOLD); }

static struct jin_value split(struct jin *j, struct jin_value self, const struct jin_args *args, bool right)
{
    struct jin_value given[2];
    jin_bind(j, "split", args, "sep maxsplit", 0, given);
    int64_t most = given[1].type == JIN_MISSING ? -1 : jin_index(j, given[1], "maxsplit");
    return jin_split(j, self, text_of(j, given[0], "sep"), most, right);
}
METHOD(m_split) { return split(j, self, args, false); }
METHOD(m_rsplit) { return split(j, self, args, true); }

METHOD(m_splitlines)
{
    struct jin_value keep;
    jin_bind(j, "splitlines", args, "keepends", 0, &keep);
    return jin_split_lines(j, self, keep.type != JIN_MISSING && jin_truth(keep));
}

METHOD(m_replace)
{
    struct jin_value given[3];
    if (args->n_keyword)
        JIN_FAIL(j, "str.replace() takes no keyword arguments");
    jin_bind(j, "replace", args, "old new count", 2, given);
    const struct jin_string *old = must_text(j, given[0], "replace() argument 1");
    must_text(j, given[1], "replace() argument 2");
    const struct jin_string *with = self.safe ? jin_escape_html(j, given[1]).s : given[1].s;
    int64_t most = given[2].type == JIN_MISSING ? -1 : jin_index(j, given[2], "count");
    return same_kind(jin_replace(j, self.s, old, with, most), self);
}

/* Converts the bounds given[2] from characters, as in slices, to bytes; false if the start is beyond the end. */
static bool bounds(struct jin *j, const struct jin_string *s, const struct jin_value *given, size_t *begin, size_t *end)
{
    int64_t n = jin_length(j, jin_of(s)), from = 0, to = n;
    if (jin_given(given[0]))
        from = jin_index(j, given[0], "slice indices");
    if (jin_given(given[1]))
        to = jin_index(j, given[1], "slice indices");
    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? (to + n < 0 ? 0 : to + n) : to > n ? n : to;
    if (from > n || from > to) {
        *begin = *end = 0;
        return false;
    }
    *begin = jin_char_at(s, (size_t)from);
    *end = jin_char_at(s, (size_t)to);
    return true;
}

static struct jin_value affix(struct jin *j, struct jin_value self, const struct jin_args *args, bool ends)
{
    const char *name = ends ? "endswith" : "startswith";
    struct jin_value given[3];
    size_t begin, end;
    jin_bind(j, name, args, "prefix start end", 1, given);
    jin_need(j, given[0]);
    bool inside = bounds(j, self.s, given + 1, &begin, &end);
    const struct jin_list one = { 1, given };
    const struct jin_list *l = given[0].type == JIN_TUPLE ? given[0].list : &one;
    for (size_t i = 0; i < l->n; i++) {
        if (l->item[i].type != JIN_STRING)
            JIN_FAIL(j, "%s first arg must be str or a tuple of str, not %s", name, jin_type_name(l->item[i]));
        const struct jin_string *a = l->item[i].s;
        jin_charge(j, 1 + a->n / 16);
        if (inside && a->n <= end - begin && !memcmp(self.s->data + (ends ? end - a->n : begin), a->data, a->n))
            return jin_bool(true);
    }
    return jin_bool(false);
}
METHOD(m_startswith) { return affix(j, self, args, false); }
METHOD(m_endswith) { return affix(j, self, args, true); }

/* The byte offset of the first or last occurrence of a string in bytes [begin, end) of s, or -1. */
static ptrdiff_t locate(struct jin *j, const struct jin_string *s, size_t begin, size_t end,
                        const struct jin_string *what, bool last)
{
    const struct jin_string within = { .data = s->data, .n = end };
    ptrdiff_t at = jin_find(j, &within, begin, what), next = at;
    while (last && next >= 0) {
        at = next;
        jin_charge(j, 1);
        int32_t code;
        size_t step = (size_t)at < end ? (size_t)jin_decode(s->data + at, end - (size_t)at, &code) : 1;
        next = jin_find(j, &within, (size_t)at + step, what);
    }
    return at;
}

static struct jin_value find(struct jin *j, struct jin_value self, const struct jin_args *args, bool last, bool fail)
{
    struct jin_value given[3];
    size_t begin, end;
    jin_bind(j, "find", args, "sub start end", 1, given);
    const struct jin_string *what = must_text(j, given[0], "the argument");
    ptrdiff_t at = bounds(j, self.s, given + 1, &begin, &end) ? locate(j, self.s, begin, end, what, last) : -1;
    if (at < 0 && fail)
        JIN_FAIL(j, "substring not found");
    const struct jin_string before = { .data = self.s->data, .n = at < 0 ? 0 : (size_t)at, .n_char = -1 };
    struct jin_string counted = before;
    jin_charge(j, before.n / 16);
    return jin_int(at < 0 ? -1 : (int64_t)jin_n_char(&counted));
}
METHOD(m_find) { return find(j, self, args, false, false); }
METHOD(m_rfind) { return find(j, self, args, true, false); }
METHOD(m_index) { return find(j, self, args, false, true); }
METHOD(m_rindex) { return find(j, self, args, true, true); }

METHOD(m_count)
{
    struct jin_value given[3];
    size_t begin, end;
    int64_t n = 0;
    jin_bind(j, "count", args, "sub start end", 1, given);
    const struct jin_string *what = must_text(j, given[0], "the argument");
    if (!bounds(j, self.s, given + 1, &begin, &end))
        return jin_int(0);
    if (!what->n)
        return jin_int(jin_length(j, jin_sub(j, self.s, begin, end)) + 1);
    const struct jin_string within = { .data = self.s->data, .n = end };
    for (ptrdiff_t at; (at = jin_find(j, &within, begin, what)) >= 0; begin = (size_t)at + what->n, n++)
        jin_charge(j, 1);
    return jin_int(n);
}

METHOD(m_join)
{
    struct jin_value over, v;
    struct jin_builder b = { .j = j };
    jin_bind(j, "join", args, "iterable", 1, &over);
    if (!jin_iterable(over))
        JIN_FAIL(j, "can only join an iterable");
    struct jin_iterator *it = jin_iterate(j, over);
    for (size_t i = 0; (v = jin_next(j, it)).type != JIN_MISSING; i++) {
        if (self.safe)
            v = jin_escape_html(j, v);
        if (v.type != JIN_STRING)
            JIN_FAIL(j, "sequence item %zu: expected str instance, %s found", i, jin_type_name(v));
        if (i)
            jin_add(&b, self.s->data, self.s->n);
        jin_add(&b, v.s->data, v.s->n);
    }
    return same_kind(jin_built(&b), self);
}

/* ljust, rjust, center.  how: where the text goes: '<' left, '>' right, '^' centre.  With '^', if the number of
 * fill characters is odd, the extra one goes left if width is odd, else right, as in Python. */
static struct jin_value justify(struct jin *j, struct jin_value self, const struct jin_args *args, int how)
{
    struct jin_value given[2];
    struct jin_builder b = { .j = j };
    jin_bind(j, "justify", args, "width fillchar", 1, given);
    int64_t n = jin_length(j, self), pad = jin_index(j, given[0], "width") - n;
    const struct jin_string *fill = text_of(j, given[1], "The fill character");
    if (fill && jin_n_char(fill) != 1)
        JIN_FAIL(j, "The fill character must be exactly one character long");
    if (pad <= 0)
        return self;
    int64_t left = how == '<' ? 0 : how == '>' ? pad : pad / 2 + (pad & (n + pad) & 1);
    fill = fill ? fill : jin_text(j, " ").s;
    jin_add_repeat(&b, fill, left);
    jin_add(&b, self.s->data, self.s->n);
    jin_add_repeat(&b, fill, pad - left);
    return same_kind(jin_built(&b), self);
}
METHOD(m_ljust) { return justify(j, self, args, '<'); }
METHOD(m_rjust) { return justify(j, self, args, '>'); }
METHOD(m_center) { return justify(j, self, args, '^'); }

METHOD(m_zfill)
{
    struct jin_value width;
    struct jin_builder b = { .j = j };
    jin_bind(j, "zfill", args, "width", 1, &width);
    int64_t pad = jin_index(j, width, "width") - jin_length(j, self);
    size_t sign = self.s->n && (self.s->data[0] == '-' || self.s->data[0] == '+');
    if (pad <= 0)
        return self;
    jin_add(&b, self.s->data, sign);
    jin_add_repeat(&b, jin_text(j, "0").s, pad);
    jin_add(&b, self.s->data + sign, self.s->n - sign);
    return same_kind(jin_built(&b), self);
}

static struct jin_value partition(struct jin *j, struct jin_value self, const struct jin_args *args, bool last)
{
    struct jin_value sep, *part = jin_take_n(&j->heap, 3, sizeof *part), empty = same_kind(jin_text(j, ""), self);
    jin_bind(j, "partition", args, "sep", 1, &sep);
    const struct jin_string *by = must_text(j, sep, "the separator");
    if (!by->n)
        JIN_FAIL(j, "empty separator");
    ptrdiff_t at = locate(j, self.s, 0, self.s->n, by, last);
    part[0] = at >= 0 ? jin_sub(j, self.s, 0, (size_t)at) : last ? empty : self;
    part[1] = at >= 0 ? sep : empty;
    part[2] = at >= 0 ? jin_sub(j, self.s, (size_t)at + by->n, self.s->n) : last ? self : empty;
    for (int i = 0; i < 3; i++)
        part[i].safe = self.safe;
    return jin_list_new(j, JIN_TUPLE, part, 3);
}
METHOD(m_partition) { return partition(j, self, args, false); }
METHOD(m_rpartition) { return partition(j, self, args, true); }

static struct jin_value without(struct jin *j, struct jin_value self, const struct jin_args *args, bool suffix)
{
    struct jin_value what;
    jin_bind(j, suffix ? "removesuffix" : "removeprefix", args, "affix", 1, &what);
    const struct jin_string *a = must_text(j, what, "the argument"), *s = self.s;
    bool has = a->n && a->n <= s->n && !memcmp(s->data + (suffix ? s->n - a->n : 0), a->data, a->n);
    return !has ? self : same_kind(suffix ? jin_sub(j, s, 0, s->n - a->n) : jin_sub(j, s, a->n, s->n), self);
}
METHOD(m_removeprefix) { return without(j, self, args, false); }
METHOD(m_removesuffix) { return without(j, self, args, true); }

METHOD(m_expandtabs)
{
    struct jin_value size;
    struct jin_builder b = { .j = j };
    int64_t column = 0;
    jin_bind(j, "expandtabs", args, "tabsize", 0, &size);
    int64_t tab = size.type == JIN_MISSING ? 8 : jin_index(j, size, "tabsize");
    for (size_t i = 0; i < self.s->n; i++) {
        char c = self.s->data[i];
        if (c != '\t') {
            jin_add(&b, &c, 1);
            column = c == '\n' || c == '\r' ? 0 : column + (((uint8_t)c & 0xC0) != 0x80);
        } else if (tab > 0) {
            jin_add_repeat(&b, jin_text(j, " ").s, tab - column % tab);
            column += tab - column % tab;
        }
    }
    return same_kind(jin_built(&b), self);
}

/* ---- character classes ----------------------------------------------------------------------- */

static bool is_letter(int32_t c)
{
    utf8proc_category_t is = utf8proc_category(c);
    return is >= UTF8PROC_CATEGORY_LU && is <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(int32_t c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_ND; }

static bool is_word(int32_t c) { return c == '_' || is_letter(c); }

/* True if c is a decimal digit.  Fails for a character that is, or like a CJK ideograph may be, of another numeric
 * kind: that would need Unicode tables that are not included. */
static bool is_number(struct jin *j, int32_t c)
{
    utf8proc_category_t is = utf8proc_category(c);
    if (is == UTF8PROC_CATEGORY_NO || is == UTF8PROC_CATEGORY_NL || (c >= 0x3400 && is == UTF8PROC_CATEGORY_LO))
        JIN_FAIL(j, "asking whether U+%04X is a digit is not supported", (unsigned)c);
    return is == UTF8PROC_CATEGORY_ND;
}

/* True if all characters of the string are of one kind, by the last argument: a letters, d digits, D decimal
 * digits, n letters or digits, p printable, s space, c ASCII.  The empty string gives true for p and c only. */
static struct jin_value all(struct jin *j, struct jin_value self, const struct jin_args *args, int what)
{
    bool yes = true;
    int32_t c;
    jin_bind(j, "this method", args, "", 0, NULL);
    for (size_t at = 0; at < self.s->n && yes;) {
        at += (size_t)jin_decode(self.s->data + at, self.s->n - at, &c);
        jin_charge(j, 1);
        yes = what == 'a'   ? is_letter(c)
              : what == 'd' ? is_number(j, c)
              : what == 'D' ? is_decimal(c)
              : what == 'n' ? is_letter(c) || is_number(j, c)
              : what == 'p' ? jin_printable(c)
              : what == 's' ? jin_is_space(c)
                            : c < 0x80;
    }
    return jin_bool(yes && (self.s->n || what == 'p' || what == 'c'));
}
METHOD(m_isalpha) { return all(j, self, args, 'a'); }
METHOD(m_isdigit) { return all(j, self, args, 'd'); }
METHOD(m_isdecimal) { return all(j, self, args, 'D'); }
METHOD(m_isalnum) { return all(j, self, args, 'n'); }
METHOD(m_isprintable) { return all(j, self, args, 'p'); }
METHOD(m_isspace) { return all(j, self, args, 's'); }
METHOD(m_isascii) { return all(j, self, args, 'c'); }

METHOD(m_isidentifier)
{
    int32_t c;
    bool yes = self.s->n;
    jin_bind(j, "isidentifier", args, "", 0, NULL);
    for (size_t at = 0, n; at < self.s->n && yes; at += n) {
        n = (size_t)jin_decode(self.s->data + at, self.s->n - at, &c);
        if (c >= 0x80)
            JIN_FAIL(j, "isidentifier() beyond ASCII is not supported");
        yes = is_word(c) || (at && is_decimal(c));
    }
    return jin_bool(yes);
}

METHOD(m_isupper)
{
    jin_bind(j, "isupper", args, "", 0, NULL);
    return jin_bool(jin_is_case(self.s, 'u'));
}

METHOD(m_islower)
{
    jin_bind(j, "islower", args, "", 0, NULL);
    return jin_bool(jin_is_case(self.s, 'l'));
}

METHOD(m_istitle)
{
    jin_bind(j, "istitle", args, "", 0, NULL);
    return jin_bool(jin_is_case(self.s, 't'));
}

METHOD(m_format) { return jin_format_braces(j, self, args); }

METHOD(m_refused)
{
    (void)self;
    (void)args;
    JIN_FAIL(j, "this method of strings is not supported");
}

static const struct jin_function methods[] = {
    { "strip", m_strip },
    { "split", m_split },
    { "startswith", m_startswith },
    { "endswith", m_endswith },
    { "replace", m_replace },
    { "lstrip", m_lstrip },
    { "rstrip", m_rstrip },
    { "upper", m_upper },
    { "lower", m_lower },
    { "join", m_join },
    { "format", m_format },
    { "title", m_title },
    { "capitalize", m_capitalize },
    { "swapcase", m_swapcase },
    { "casefold", m_casefold },
    { "rsplit", m_rsplit },
    { "splitlines", m_splitlines },
    { "find", m_find },
    { "rfind", m_rfind },
    { "index", m_index },
    { "rindex", m_rindex },
    { "count", m_count },
    { "ljust", m_ljust },
    { "rjust", m_rjust },
    { "center", m_center },
    { "zfill", m_zfill },
    { "partition", m_partition },
    { "rpartition", m_rpartition },
    { "removeprefix", m_removeprefix },
    { "removesuffix", m_removesuffix },
    { "expandtabs", m_expandtabs },
    { "isalpha", m_isalpha },
    { "isdigit", m_isdigit },
    { "isnumeric", m_isdigit },
    { "isdecimal", m_isdecimal },
    { "isalnum", m_isalnum },
    { "isprintable", m_isprintable },
    { "isspace", m_isspace },
    { "isascii", m_isascii },
    { "isidentifier", m_isidentifier },
    { "isupper", m_isupper },
    { "islower", m_islower },
    { "istitle", m_istitle },
    { "encode", m_refused },
    { "format_map", m_refused },
    { "maketrans", m_refused },
    { "translate", m_refused },
};

const struct jin_function *jin_string_method(const struct jin_string *name)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (jin_string_is(name, methods[i].name))
            return &methods[i];
    return NULL;
}
