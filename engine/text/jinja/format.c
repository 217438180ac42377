/* engine/text/jinja/format.c - "%s" % x and "{}".format(x), as in Python.
 *
 * Both use struct field: a conversion letter with width, precision and flags. */
#include "engine/text/jinja/internal.h"

#include <stdio.h>
#include <stdlib.h>

#define MOST 100000 /* largest width or precision */

struct field {
    int32_t fill;
    char align, sign, type; /* 0: not given */
    bool alternate, zero, comma;
    int64_t width, precision; /* not given: width 0, precision -1 */
};

/* ---- one field ------------------------------------------------------------------------------- */

static struct jin_value padded(struct jin *j, const struct field *f, const struct jin_string *sign,
                               const struct jin_string *body, char align)
{
    struct jin_builder b = { .j = j };
    int64_t pad = f->width - (int64_t)(jin_n_char(body) + sign->n);
    char one[4];
    struct jin_string fill = { .data = one, .n = (size_t)jin_encode(f->fill ? f->fill : ' ', one), .n_char = 1 };
    align = f->align ? f->align : align;
    int64_t left = pad <= 0 || align == '<' || align == '=' ? 0 : align == '^' ? pad / 2 : pad;
    jin_add_repeat(&b, &fill, left);
    jin_add(&b, sign->data, sign->n);
    jin_add_repeat(&b, &fill, align == '=' ? pad : 0);
    jin_add(&b, body->data, body->n);
    jin_add_repeat(&b, &fill, align == '=' ? 0 : pad - left);
    return jin_built(&b);
}

static struct jin_value string_field(struct jin *j, const struct field *f, const struct jin_string *s)
{
    struct jin_string none = { .data = "", .n_char = 0 };
    if (f->precision >= 0)
        s = jin_sub(j, s, 0, jin_char_at(s, (size_t)f->precision)).s;
    return padded(j, f, &none, s, '<');
}

/* Inserts commas between groups of three digits before the point. */
static const struct jin_string *grouped(struct jin *j, const char *digits)
{
    struct jin_builder b = { .j = j };
    size_t whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % 3 == 0)
            jin_add(&b, ",", 1);
        jin_add(&b, digits + i, 1);
    }
    jin_add_text(&b, digits + whole);
    return jin_built(&b).s;
}

static struct jin_value number_field(struct jin *j, const struct field *f, bool negative, const char *prefix,
                                     const char *digits)
{
    char sign[8];
    snprintf(sign, sizeof sign, "%s%s", negative ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "", prefix);
    const struct jin_string *body = f->comma ? grouped(j, digits) : jin_text(j, digits).s;
    body = jin_string(j, body->data, body->n).s;
    const struct jin_string *head = jin_string(j, sign, strlen(sign)).s;
    struct field own = *f;
    if (f->zero && !f->align) {
        if (f->comma)
            JIN_FAIL(j, "zeros before a number with commas are not supported");
        own.align = '=';
        own.fill = '0';
    }
    return padded(j, &own, head, body, '>');
}

static struct jin_value integer_field(struct jin *j, const struct field *f, int64_t i, bool percent)
{
    char digits[80], bits[80];
    uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i;
    if (f->type == 'x' || f->type == 'X' || f->type == 'o')
        snprintf(digits, sizeof digits,
                 f->type == 'x'   ? "%llx"
                 : f->type == 'X' ? "%llX"
                                  : "%llo",
                 (unsigned long long)u);
    else
        snprintf(digits, sizeof digits, "%llu", (unsigned long long)u);
    if (f->type == 'b') {
        size_t n = sizeof bits - 1;
        bits[n] = 0;
        do
            bits[--n] = (char)('0' + (u & 1));
        while (u >>= 1);
        memmove(digits, bits + n, sizeof bits - n);
    }
    if (f->precision >= 0 && !percent)
        JIN_FAIL(j, "Precision not allowed in integer format specifier");
    if (f->precision > (int64_t)strlen(digits))
        JIN_FAIL(j, "a precision of integers is not supported");
    const char *prefix = !f->alternate    ? ""
                         : f->type == 'x' ? "0x"
                         : f->type == 'X' ? "0X"
                         : f->type == 'o' ? "0o"
                         : f->type == 'b' ? "0b"
                                          : "";
    return number_field(j, f, i < 0, prefix, digits);
}

static struct jin_value float_field(struct jin *j, const struct field *f, double x)
{
    char digits[512], form[8] = "%.*f";
    bool negative = x < 0 || (x == 0 && 1 / x < 0);
    double a = negative ? -x : x;
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    if (f->alternate || precision > 100 || (f->type == '%' && a - a != 0))
        JIN_FAIL(j, "this format of floats is not supported");
    if (x != x || a - a != 0) {
        snprintf(digits, sizeof digits, "%s", x != x ? "nan" : "inf");
        if (f->type == 'F' || f->type == 'E' || f->type == 'G')
            for (char *c = digits; *c; c++)
                *c ^= 32;
    } else if (!f->type && f->precision < 0) {
        jin_show_float(a, digits);
    } else if (!f->type) {
        JIN_FAIL(j, "a precision without a letter is not supported");
    } else if (f->type == '%') {
        snprintf(digits, sizeof digits, "%.*f%%", precision, a * 100);
    } else {
        form[3] = f->type;
        snprintf(digits, sizeof digits, form, f->type == 'g' || f->type == 'G' ? precision + !precision : precision, a);
    }
    return number_field(j, f, negative && x == x, "", digits);
}

/* ---- "%" ------------------------------------------------------------------------------------- */

struct percent {
    struct jin *j;
    const struct jin_string *s;
    size_t at;
    struct jin_value with;
    size_t used, n; /* arguments used so far; number of arguments (1 if the right side is no tuple) */
    bool safe;
};

static struct jin_value next_value(struct percent *p)
{
    if (p->used == p->n)
        JIN_FAIL(p->j, "not enough arguments for format string");
    return p->with.type == JIN_TUPLE ? p->with.list->item[p->used++] : (p->used++, p->with);
}

static char peek(const struct percent *p)
{
    if (p->at >= p->s->n)
        JIN_FAIL(p->j, "incomplete format");
    return p->s->data[p->at];
}

static int64_t percent_number(struct percent *p)
{
    int64_t n = 0;
    if (peek(p) == '*') {
        p->at++;
        n = jin_index(p->j, next_value(p), "*");
    }
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        n = n < MOST ? 10 * n + (peek(p) - '0') : n;
    if (n > MOST)
        JIN_FAIL(p->j, "a width beyond %d", MOST);
    return n;
}

/* The argument of "%(name)s": a value of the dict on the right side. */
static struct jin_value named_value(struct percent *p)
{
    size_t begin = ++p->at;
    int depth = 1;
    for (; depth; p->at++)
        depth += peek(p) == '(' ? 1 : peek(p) == ')' ? -1 : 0;
    if (p->with.type != JIN_DICT)
        JIN_FAIL(p->j, "format requires a mapping");
    const struct jin_string *name = jin_sub(p->j, p->s, begin, p->at - 1).s;
    const struct jin_value *found = jin_dict_find_text(p->j, p->with.dict, name);
    if (!found)
        JIN_FAIL(p->j, "'%.*s' is not in the mapping", (int)(name->n < 60 ? name->n : 60), name->data);
    p->n = p->used; /* the mapping itself is not an unused argument */
    return *found;
}

static struct jin_value percent_field(struct percent *p, const struct field *f, struct jin_value v)
{
    struct jin *j = p->j;
    struct jin_builder b = { .j = j };
    if (f->type == 's' && !p->safe)
        return string_field(j, f, jin_str(j, v));
    if (f->type == 's')
        return string_field(j, f, jin_escape_html(j, v).s);
    if (f->type == 'r' || f->type == 'a') {
        jin_repr(&b, v);
        struct jin_value text = jin_built(&b);
        if (f->type == 'a' && jin_n_char(text.s) != text.s->n)
            JIN_FAIL(j, "%%a beyond ASCII is not supported");
        return string_field(j, f, p->safe ? jin_escape_html(j, text).s : text.s);
    }
    jin_need(j, v);
    if (f->type == 'c') {
        struct jin_value c = v;
        if (jin_is_integer(v)) {
            int64_t code = jin_integer(v);
            if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
                JIN_FAIL(j, "%%c arg not in range(0x110000)");
            jin_add_char(&b, (int32_t)code);
            c = jin_built(&b);
        }
        if (c.type != JIN_STRING || jin_n_char(c.s) != 1)
            JIN_FAIL(j, "%%c requires int or char");
        return string_field(j, f, c.s);
    }
    if (!jin_is_number(v))
        JIN_FAIL(j, "%%%c format: a number is required, not %s", f->type, jin_type_name(v));
    if (strchr("feEgGF", f->type))
        return float_field(j, f, v.type == JIN_FLOAT ? v.f : (double)jin_integer(v));
    int64_t i = v.type == JIN_FLOAT ? 0 : jin_integer(v);
    if (v.type == JIN_FLOAT && (strchr("xXo", f->type) || !jin_float_to_int(v.f, &i)))
        JIN_FAIL(j, "%%%c format: an integer is required, not float", f->type);
    return integer_field(j, f, i, true);
}

struct jin_value jin_format_percent(struct jin *j, struct jin_value s, struct jin_value with)
{
    struct percent p = {
        .j = j, .s = s.s, .with = with, .safe = s.safe, .n = with.type == JIN_TUPLE ? with.list->n : 1
    };
    struct jin_builder b = { .j = j };
    while (p.at < p.s->n) {
        const char *next = memchr(p.s->data + p.at, '%', p.s->n - p.at);
        size_t end = next ? (size_t)(next - p.s->data) : p.s->n;
        jin_add(&b, p.s->data + p.at, end - p.at);
        p.at = end + 1;
        if (!next)
            break;
        struct field f = { .precision = -1 };
        struct jin_value v = jin_missing();
        if (peek(&p) == '(')
            v = named_value(&p);
        for (char c; (c = peek(&p)) && strchr("#0- +", c); p.at++) {
            f.alternate |= c == '#';
            f.zero |= c == '0';
            f.align = c == '-' ? '<' : f.align;
            f.sign = c == '+' ? '+' : c == ' ' && !f.sign ? ' ' : f.sign;
        }
        f.width = percent_number(&p);
        if (peek(&p) == '.') {
            p.at++;
            f.precision = percent_number(&p);
        }
        while (peek(&p) && strchr("hlL", peek(&p)))
            p.at++;
        f.type = peek(&p);
        p.at++;
        if (f.type == '%') {
            jin_add(&b, "%", 1);
            continue;
        }
        if (!f.type || !strchr("sradiucfeEgGFxXo", f.type))
            JIN_FAIL(j, "unsupported format character");
        f.align = f.align ? f.align : f.zero && strchr("diufeEgGFxXo", f.type) ? 0 : '>';
        f.zero &= f.align == 0;
        if (v.type == JIN_MISSING)
            v = next_value(&p);
        v = percent_field(&p, &f, v);
        jin_add(&b, v.s->data, v.s->n);
    }
    bool mapping = with.type == JIN_DICT || with.type == JIN_LIST || with.type == JIN_RANGE ||
                   with.type == JIN_UNDEFINED;
    if (p.used < p.n && !mapping)
        JIN_FAIL(j, "not all arguments converted during string formatting");
    struct jin_value out = jin_built(&b);
    out.safe = s.safe;
    return out;
}

/* ---- str.format ------------------------------------------------------------------------------ */

/* Parses a format specifier: [[fill]align][sign][#][0][width][,][.precision][type] */
static struct field parse_spec(struct jin *j, const struct jin_string *s)
{
    struct field f = { .precision = -1 };
    size_t at = 0;
    int32_t fill;
    if (s->n) {
        size_t n = (size_t)jin_decode(s->data, s->n, &fill);
        if (n < s->n && strchr("<>=^", s->data[n])) {
            f.fill = fill;
            f.align = s->data[n];
            at = n + 1;
        } else if (strchr("<>=^", s->data[0]) && s->data[0]) {
            f.align = s->data[0];
            at = 1;
        }
    }
    if (at < s->n && s->data[at] && strchr("+- ", s->data[at]))
        f.sign = s->data[at++];
    if (at < s->n && s->data[at] == '#')
        f.alternate = ++at > 0;
    if (at < s->n && s->data[at] == '0') {
        f.zero = true;
        at++;
    }
    for (; at < s->n && s->data[at] >= '0' && s->data[at] <= '9'; at++)
        f.width = f.width < MOST ? 10 * f.width + (s->data[at] - '0') : f.width;
    if (at < s->n && s->data[at] == ',')
        f.comma = ++at > 0;
    if (at < s->n && s->data[at] == '.')
        for (f.precision = 0, at++; at < s->n && s->data[at] >= '0' && s->data[at] <= '9'; at++)
            f.precision = f.precision < MOST ? 10 * f.precision + (s->data[at] - '0') : f.precision;
    if (at < s->n)
        f.type = s->data[at++];
    if (at < s->n || f.width > MOST || f.precision > MOST)
        JIN_FAIL(j, "Invalid format specifier '%.*s'", (int)(s->n < 60 ? s->n : 60), s->data);
    return f;
}

static struct jin_value brace_field(struct jin *j, struct jin_value v, const struct jin_string *spec)
{
    if (!spec->n)
        return jin_of(jin_str(j, v));
    struct field f = parse_spec(j, spec);
    if (v.type == JIN_STRING && (!f.type || f.type == 's')) {
        if (f.sign || f.alternate || f.comma || f.align == '=')
            JIN_FAIL(j, "a sign, '=', '#' or ',' is not allowed in a string format specifier");
        if (f.zero) {
            f.fill = f.fill ? f.fill : '0';
            f.zero = false;
        }
        return string_field(j, &f, v.s);
    }
    bool letter = f.type && strchr("feEgGF%", f.type);
    if (v.type == JIN_FLOAT || (jin_is_integer(v) && letter))
        if (!f.type || letter)
            return float_field(j, &f, v.type == JIN_FLOAT ? v.f : (double)jin_integer(v));
    if (v.type == JIN_INT && (!f.type || strchr("dxXob", f.type)))
        return integer_field(j, &f, v.i, false);
    JIN_FAIL(j, "format '%.*s' of %s is not supported", (int)(spec->n < 60 ? spec->n : 60), spec->data,
             jin_type_name(v));
}

struct braces {
    struct jin *j;
    const struct jin_args *args;
    int64_t next; /* argument index of the next {}; -1: a {0} came before, so {} is an error */
};

/* The value of a field: "name", "0" or "", then any of ".attribute" and "[item]". */
static struct jin_value brace_value(struct braces *f, const struct jin_string *s)
{
    struct jin *j = f->j;
    size_t end = 0;
    int64_t i;
    while (end < s->n && s->data[end] != '.' && s->data[end] != '[')
        end++;
    const struct jin_string *first = jin_sub(j, s, 0, end).s;
    struct jin_value v = jin_missing();
    bool digits = first->n && first->data[0] >= '0' && first->data[0] <= '9';
    if (!first->n || digits) {
        if ((!first->n && f->next < 0) || (first->n && f->next > 0))
            JIN_FAIL(j, "cannot switch between automatic field numbering and manual field specification");
        i = first->n ? 0 : f->next++;
        if (first->n) {
            f->next = -1;
            if (!jin_parse_int(first, 10, j, &i))
                JIN_FAIL(j, "a field's number is none");
        }
        if (i >= f->args->n)
            JIN_FAIL(j, "Replacement index %lld out of range for positional args tuple", (long long)i);
        v = f->args->position[i];
    }
    for (int k = 0; k < f->args->n_keyword && v.type == JIN_MISSING; k++)
        if (jin_string_equal(f->args->keyword[k].name, first))
            v = f->args->keyword[k].value;
    if (v.type == JIN_MISSING)
        JIN_FAIL(j, "no field '%.*s'", (int)(first->n < 60 ? first->n : 60), first->data);
    while (end < s->n) {
        size_t from = end + 1;
        bool item = s->data[end] == '[';
        for (end = from; end < s->n && (item ? s->data[end] != ']' : s->data[end] != '.' && s->data[end] != '[');)
            end++;
        const struct jin_string *name = jin_sub(j, s, from, end).s;
        if (!name->n || (item && end == s->n))
            JIN_FAIL(j, "Empty attribute in format string");
        end += item;
        if (item && name->data[0] >= '0' && name->data[0] <= '9' && jin_parse_int(name, 10, j, &i))
            v = jin_item(j, v, jin_int(i));
        else
            v = item ? jin_item(j, v, jin_of(name)) : jin_attribute(j, v, name);
    }
    return v;
}

/* The offset of the '}' that closes the replacement field, whose text begins at `at`, behind the '{'; the field's
 * specifier may contain nested fields. */
static size_t field_end(struct jin *j, const struct jin_string *s, size_t at)
{
    int depth = 1;
    for (; at < s->n; at++) {
        depth += s->data[at] == '{' ? 1 : s->data[at] == '}' ? -1 : 0;
        if (!depth)
            return at;
    }
    JIN_FAIL(j, "expected '}' before end of string");
}

static struct jin_value brace_shown(struct braces *f, const struct jin_string *s, bool safe)
{
    struct jin *j = f->j;
    const char *colon = memchr(s->data, ':', s->n), *mark = memchr(s->data, '!', s->n);
    size_t n = colon ? (size_t)(colon - s->data) : s->n;
    char convert = 0;
    if (mark && (size_t)(mark - s->data) < n) {
        size_t at = (size_t)(mark - s->data);
        if (at + 2 != n)
            JIN_FAIL(j, "expected ':' after conversion specifier");
        convert = s->data[at + 1];
        n = at;
    }
    struct jin_value v = brace_value(f, jin_sub(j, s, 0, n).s);
    const struct jin_string *spec = jin_sub(j, s, colon ? (size_t)(colon - s->data) + 1 : s->n, s->n).s;
    if (spec->n && (memchr(spec->data, '{', spec->n) || safe))
        JIN_FAIL(j, "this format specifier is not supported");
    struct jin_builder b = { .j = j };
    if (convert == 'r')
        jin_repr(&b, v);
    else if (convert && convert != 's')
        JIN_FAIL(j, "conversion '!%c' is not supported", convert);
    if (convert)
        v = convert == 'r' ? jin_built(&b) : jin_of(jin_str(j, v));
    return safe ? jin_escape_html(j, v) : brace_field(j, v, spec);
}

struct jin_value jin_format_braces(struct jin *j, struct jin_value of, const struct jin_args *args)
{
    struct braces f = { .j = j, .args = args };
    struct jin_builder b = { .j = j };
    const struct jin_string *s = of.s;
    for (size_t at = 0; at < s->n; at++) {
        char c = s->data[at];
        bool twice = at + 1 < s->n && s->data[at + 1] == c;
        if (c != '{' && c != '}') {
            jin_add(&b, &c, 1);
        } else if (twice) {
            jin_add(&b, &c, 1);
            at++;
        } else if (c == '}') {
            JIN_FAIL(j, "Single '}' encountered in format string");
        } else {
            if (at + 1 == s->n)
                JIN_FAIL(j, "Single '{' encountered in format string");
            size_t end = field_end(j, s, at + 1);
            struct jin_value v = brace_shown(&f, jin_sub(j, s, at + 1, end).s, of.safe);
            jin_add(&b, v.s->data, v.s->n);
            at = end;
        }
    }
    struct jin_value out = jin_built(&b);
    out.safe = of.safe;
    return out;
}
