/* engine/text/jinja/filters.c - filters (after "|") of single values, and lookup of all filters.
 *
 * Filters of Jinja that are refused by name: those that write HTML (urlize, xmlattr, striptags),
 * random, pprint, wordwrap, filesizeformat. */
#include "engine/text/jinja/internal.h"

#define FILTER(name) static struct jin_value name(struct jin *j, struct jin_value v, const struct jin_args *args)

/* As soft_str of Python's markupsafe: a string, also a markup string, is unchanged; another value becomes text. */
static struct jin_value soft(struct jin *j, struct jin_value v)
{
    return v.type == JIN_STRING ? v : jin_of(jin_str(j, v));
}

static struct jin_value kind_of(struct jin_value v, struct jin_value like)
{
    v.safe = like.safe;
    return v;
}

static struct jin_value recase(struct jin *j, struct jin_value v, const struct jin_args *args, enum jin_case how)
{
    jin_bind(j, "this filter", args, "", 0, NULL);
    v = soft(j, v);
    return kind_of(jin_recase(j, v.s, how), v);
}
FILTER(f_upper) { return recase(j, v, args, JIN_UPPER); }
FILTER(f_lower) { return recase(j, v, args, JIN_LOWER); }
FILTER(f_capitalize) { return recase(j, v, args, JIN_CAPITALIZE); }

/* A word begins after white space or any of "-({[<"; its first letter becomes upper case, the rest lower case. */
FILTER(f_title)
{
    struct jin_builder b = { .j = j };
    jin_bind(j, "title", args, "", 0, NULL);
    const struct jin_string *s = soft(j, v).s;
    for (size_t at = 0, end; at < s->n; at = end) {
        int32_t code;
        size_t first = (size_t)jin_decode(s->data + at, s->n - at, &code);
        bool between = jin_is_space(code) || (code && code < 0x80 && strchr("-({[<", code));
        end = at + first;
        if (between) {
            jin_add(&b, s->data + at, first);
            continue;
        }
        while (end < s->n) {
            size_t n = (size_t)jin_decode(s->data + end, s->n - end, &code);
            if (jin_is_space(code) || (code && code < 0x80 && strchr("-({[<", code)))
                break;
            end += n;
        }
        struct jin_value head = jin_recase(j, jin_sub(j, s, at, at + first).s, JIN_UPPER);
        struct jin_value tail = jin_recase(j, jin_sub(j, s, at + first, end).s, JIN_LOWER);
        jin_add(&b, head.s->data, head.s->n);
        jin_add(&b, tail.s->data, tail.s->n);
    }
    return jin_built(&b);
}

FILTER(f_trim)
{
    struct jin_value chars;
    jin_bind(j, "trim", args, "chars", 0, &chars);
    if (jin_given(chars) && chars.type != JIN_STRING)
        JIN_FAIL(j, "strip arg must be None or str");
    v = soft(j, v);
    return kind_of(jin_strip(j, v.s, jin_given(chars) ? chars.s : NULL, 3), v);
}

FILTER(f_string)
{
    jin_bind(j, "string", args, "", 0, NULL);
    return soft(j, v);
}

FILTER(f_safe)
{
    jin_bind(j, "safe", args, "", 0, NULL);
    v = soft(j, v);
    v.safe = true;
    return v;
}

FILTER(f_escape)
{
    jin_bind(j, "escape", args, "", 0, NULL);
    return jin_escape_html(j, v);
}

FILTER(f_forceescape)
{
    jin_bind(j, "forceescape", args, "", 0, NULL);
    v = soft(j, v);
    v.safe = false;
    return jin_escape_html(j, v);
}

FILTER(f_replace)
{
    struct jin_value given[3];
    jin_bind(j, "replace", args, "old new count", 2, given);
    int64_t most = jin_given(given[2]) ? jin_index(j, given[2], "count") : -1;
    return jin_replace(j, jin_str(j, v), jin_str(j, given[0]), jin_str(j, given[1]), most);
}

FILTER(f_default)
{
    struct jin_value given[2];
    jin_bind(j, "default", args, "default_value boolean", 0, given);
    bool boolean = given[1].type != JIN_MISSING && jin_truth(given[1]);
    if (v.type != JIN_UNDEFINED && !(boolean && !jin_truth(v)))
        return v;
    return given[0].type == JIN_MISSING ? jin_text(j, "") : given[0];
}

FILTER(f_center)
{
    struct jin_value width, text = soft(j, v);
    jin_bind(j, "center", args, "width", 0, &width);
    if (width.type == JIN_MISSING)
        width = jin_int(80);
    const struct jin_args one = { .position = &width, .n = 1 };
    return jin_string_method(jin_text(j, "center").s)->call(j, text, &one);
}

FILTER(f_indent)
{
    struct jin_value given[3], lines;
    struct jin_builder b = { .j = j }, spaces = { .j = j };
    jin_bind(j, "indent", args, "width first blank", 0, given);
    jin_need(j, v);
    if (v.type != JIN_STRING)
        JIN_FAIL(j, "indent takes a string, not %s", jin_type_name(v));
    bool first = given[1].type != JIN_MISSING && jin_truth(given[1]);
    bool blank = given[2].type != JIN_MISSING && jin_truth(given[2]);
    const struct jin_string *by = NULL;
    if (given[0].type == JIN_STRING) {
        by = v.safe ? jin_escape_html(j, given[0]).s : given[0].s;
    } else {
        int64_t width = given[0].type == JIN_MISSING ? 4 : jin_index(j, given[0], "width");
        jin_add_repeat(&spaces, jin_text(j, " ").s, width);
        by = jin_built(&spaces).s;
    }
    lines = jin_split_lines(j, jin_concat(j, v.s, jin_text(j, "\n").s), false);
    for (size_t i = 0; i < lines.list->n; i++) {
        const struct jin_string *line = lines.list->item[i].s;
        if (i)
            jin_add(&b, "\n", 1);
        if (i ? blank || line->n : first)
            jin_add(&b, by->data, by->n);
        jin_add(&b, line->data, line->n);
    }
    return kind_of(jin_built(&b), v);
}

FILTER(f_truncate)
{
    struct jin_value given[4];
    jin_bind(j, "truncate", args, "length killwords end leeway", 0, given);
    struct jin_value end = given[2].type == JIN_MISSING ? jin_text(j, "...") : given[2];
    int64_t length = given[0].type == JIN_MISSING ? 255 : jin_index(j, given[0], "length");
    int64_t leeway = jin_given(given[3]) ? jin_index(j, given[3], "leeway") : 5;
    if (end.type != JIN_STRING)
        JIN_FAIL(j, "the end must be a string");
    int64_t n_end = jin_length(j, end);
    if (length < n_end || leeway < 0)
        JIN_FAIL(j, "expected length >= %lld, got %lld", (long long)n_end, (long long)length);
    int64_t n = jin_length(j, v);
    if (n < 0 || (n > length + leeway && v.type != JIN_STRING))
        JIN_FAIL(j, "truncate takes a string, not %s", jin_type_name(v));
    if (n <= length + leeway)
        return v;
    struct jin_value cut = kind_of(jin_sub(j, v.s, 0, jin_char_at(v.s, (size_t)(length - n_end))), v);
    if (given[1].type == JIN_MISSING || !jin_truth(given[1]))
        cut = jin_split(j, cut, jin_text(j, " ").s, 1, true).list->item[0];
    return jin_arithmetic(j, '+', cut, end);
}

FILTER(f_wordcount)
{
    int64_t n = 0;
    bool within = false;
    int32_t code;
    jin_bind(j, "wordcount", args, "", 0, NULL);
    const struct jin_string *s = soft(j, v).s;
    for (size_t at = 0; at < s->n;) {
        at += (size_t)jin_decode(s->data + at, s->n - at, &code);
        jin_charge(j, 1);
        bool word = code >= 0x80
                        ? !jin_is_space(code)
                        : code == '_' || (code >= '0' && code <= '9') || ((code | 32) >= 'a' && (code | 32) <= 'z');
        if (code >= 0x80 && word)
            JIN_FAIL(j, "counting words beyond ASCII is not supported");
        n += word && !within;
        within = word;
    }
    return jin_int(n);
}

static void quote(struct jin_builder *b, const struct jin_string *s, bool query)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < s->n; i++) {
        uint8_t c = (uint8_t)s->data[i];
        bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c && strchr("_.-~", c)) ||
                     (c == '/' && !query);
        if (plain)
            jin_add(b, s->data + i, 1);
        else if (c == ' ' && query)
            jin_add(b, "+", 1);
        else
            jin_add(b, (char[]){ '%', hex[c >> 4], hex[c & 15] }, 3);
    }
}

FILTER(f_urlencode)
{
    struct jin_builder b = { .j = j };
    struct jin_value item;
    jin_bind(j, "urlencode", args, "", 0, NULL);
    if (v.type == JIN_STRING || !jin_iterable(v)) {
        quote(&b, jin_str(j, v), false);
        return jin_built(&b);
    }
    struct jin_iterator *it;
    if (v.type == JIN_DICT) {
        const struct jin_args none = { 0 };
        v = jin_call_value(j, jin_attribute(j, v, jin_text(j, "items").s), &none);
    }
    it = jin_iterate(j, v);
    for (bool first = true; (item = jin_next(j, it)).type != JIN_MISSING; first = false) {
        const struct jin_list *pair = jin_collect(j, item);
        if (pair->n != 2)
            JIN_FAIL(j, "urlencode takes pairs");
        jin_add_text(&b, first ? "" : "&");
        quote(&b, jin_str(j, pair->item[0]), true);
        jin_add(&b, "=", 1);
        quote(&b, jin_str(j, pair->item[1]), true);
    }
    return jin_built(&b);
}

/* ---- numbers --------------------------------------------------------------------------------- */

FILTER(f_abs)
{
    jin_bind(j, "abs", args, "", 0, NULL);
    jin_need(j, v);
    if (!jin_is_number(v))
        JIN_FAIL(j, "bad operand type for abs(): '%s'", jin_type_name(v));
    if (v.type == JIN_FLOAT)
        return jin_float(v.f < 0 || (v.f == 0 && 1 / v.f < 0) ? -v.f : v.f);
    return jin_integer(v) < 0 ? jin_negate(j, v, true) : jin_int(jin_integer(v));
}

FILTER(f_int)
{
    struct jin_value given[2];
    int64_t i;
    double f;
    jin_bind(j, "int", args, "default base", 0, given);
    jin_need(j, v);
    struct jin_value other = given[0].type == JIN_MISSING ? jin_int(0) : given[0];
    int64_t base = given[1].type == JIN_MISSING ? 10 : jin_index(j, given[1], "base");
    if (jin_is_integer(v))
        return jin_int(jin_integer(v));
    if (v.type == JIN_STRING) {
        if ((base < 2 && base != 0) || base > 36)
            return other;
        if (jin_parse_int(v.s, (int)base, j, &i))
            return jin_int(i);
        if (!jin_parse_float(v.s, j, &f) || f - f != 0) /* "42.23" is 42 */
            return other;
    } else if (v.type == JIN_FLOAT) {
        f = v.f;
        if (f != f)
            return other;
        if (f - f != 0)
            JIN_FAIL(j, "cannot convert float infinity to integer");
    } else {
        return other;
    }
    if (!jin_float_to_int(f, &i))
        JIN_FAIL(j, "an integer beyond 64 bits");
    return jin_int(i);
}

FILTER(f_float)
{
    struct jin_value other;
    double f;
    jin_bind(j, "float", args, "default", 0, &other);
    jin_need(j, v);
    if (v.type == JIN_STRING && jin_parse_float(v.s, j, &f))
        return jin_float(f);
    if (jin_is_number(v))
        return jin_float(v.type == JIN_FLOAT ? v.f : (double)jin_integer(v));
    return other.type == JIN_MISSING ? jin_float(0) : other;
}

FILTER(f_round)
{
    struct jin_value given[2];
    jin_bind(j, "round", args, "precision method", 0, given);
    const struct jin_string *how = given[1].type == JIN_MISSING ? NULL : jin_str(j, given[1]);
    int64_t digits = given[0].type == JIN_MISSING ? 0 : jin_index(j, given[0], "precision");
    if (how && !jin_string_is(how, "common") && !jin_string_is(how, "ceil") && !jin_string_is(how, "floor"))
        JIN_FAIL(j, "method must be common, ceil or floor");
    return jin_round(j, v, digits, !how || how->data[1] == 'o' ? 'r' : how->data[0]);
}

FILTER(f_format)
{
    struct jin_value with;
    if (args->n && args->n_keyword)
        JIN_FAIL(j, "can't handle positional and keyword arguments at the same time");
    if (args->n_keyword) {
        struct jin_dict *d = jin_dict_new(j, (size_t)args->n_keyword);
        for (int i = 0; i < args->n_keyword; i++)
            jin_dict_put(j, d, jin_of(args->keyword[i].name), args->keyword[i].value);
        with = jin_dict_value(d);
    } else {
        with = jin_list_new(j, JIN_TUPLE, args->position, (size_t)args->n);
    }
    return jin_format_percent(j, soft(j, v), with);
}

FILTER(f_attr)
{
    struct jin_value name;
    jin_bind(j, "attr", args, "name", 1, &name);
    jin_need(j, v);
    if (name.type != JIN_STRING)
        JIN_FAIL(j, "attribute name must be string");
    if (v.type != JIN_DICT)
        return jin_attribute(j, v, name.s);
    /* attr() does not find items of a dict: look up the name in an empty dict */
    struct jin_value found = jin_attribute(j, jin_dict_value(jin_dict_new(j, 0)), name.s);
    if (found.type != JIN_METHOD)
        return jin_undefined_of(j, v, name);
    return jin_bind_method(j, found.method->function, v);
}

/* ---- lookup ---------------------------------------------------------------------------------- */

static const struct jin_filter filters[] = { { "tojson", jin_to_json },
                                             { "trim", f_trim },
                                             { "default", f_default },
                                             { "d", f_default },
                                             { "string", f_string },
                                             { "safe", f_safe },
                                             { "upper", f_upper },
                                             { "lower", f_lower },
                                             { "capitalize", f_capitalize },
                                             { "title", f_title },
                                             { "replace", f_replace },
                                             { "indent", f_indent },
                                             { "int", f_int },
                                             { "float", f_float },
                                             { "round", f_round },
                                             { "abs", f_abs },
                                             { "format", f_format },
                                             { "truncate", f_truncate },
                                             { "center", f_center },
                                             { "attr", f_attr },
                                             { "escape", f_escape },
                                             { "e", f_escape },
                                             { "forceescape", f_forceescape },
                                             { "urlencode", f_urlencode },
                                             { "wordcount", f_wordcount },
                                             { "urlize", NULL },
                                             { "xmlattr", NULL },
                                             { "striptags", NULL },
                                             { "random", NULL },
                                             { "pprint", NULL },
                                             { "wordwrap", NULL },
                                             { "filesizeformat", NULL },
                                             { NULL, NULL } };

static const struct jin_filter *find(const struct jin_filter *list, const struct jin_string *name)
{
    for (; list->name; list++)
        if (jin_string_is(name, list->name))
            return list;
    return NULL;
}

const struct jin_filter *jin_filter_find(const struct jin_string *name)
{
    const struct jin_filter *f = find(filters, name);
    return f ? f : find(jin_sequence_filters, name);
}

struct jin_value jin_filter_call(struct jin *j, const struct jin_filter *f, const struct jin_string *name,
                                 struct jin_value input, const struct jin_args *args)
{
    if (!f)
        JIN_FAIL(j, "No filter named '%.*s' found.", (int)(name->n < 60 ? name->n : 60), name->data);
    if (!f->call)
        JIN_FAIL(j, "the filter '%s' is not supported", f->name);
    return f->call(j, input, args);
}
