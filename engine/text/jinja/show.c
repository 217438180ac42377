/* engine/text/jinja/show.c - text of values, as by Python's str(), repr() and json.dumps(). */
#include "engine/text/jinja/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- numbers --------------------------------------------------------------------------------- */

/* repr(f): the shortest digits that read back as f.  As in Python, with an exponent below 1e-4 and from 1e16
 * on.  Returns the length. */
size_t jin_show_float(double f, char out[32])
{
    char digits[32], *e;
    int n = 1;
    if (f != f || f - f != 0)
        return (size_t)snprintf(out, 32, "%s", f != f ? "nan" : f > 0 ? "inf" : "-inf");
    do
        snprintf(digits, sizeof digits, "%.*e", n - 1, f);
    while (strtod(digits, NULL) != f && n++ < 17);
    e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16)
        return (size_t)snprintf(out, 32, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+',
                                abs(exponent));
    int after = n - 1 - exponent; /* digits after the point */
    return (size_t)snprintf(out, 32, after > 0 ? "%.*f" : "%.*f.0", after > 0 ? after : 0, f);
}

static void add_number(struct jin_builder *b, struct jin_value v)
{
    char text[32];
    size_t n = v.type == JIN_FLOAT ? jin_show_float(v.f, text)
                                   : (size_t)snprintf(text, sizeof text, "%lld", (long long)v.i);
    jin_add(b, text, n);
}

/* ---- repr ------------------------------------------------------------------------------------ */

bool jin_printable(int32_t code)
{
    utf8proc_category_t is = utf8proc_category(code);
    return code == ' ' || (is != UTF8PROC_CATEGORY_CN && is != UTF8PROC_CATEGORY_ZS && is != UTF8PROC_CATEGORY_ZL &&
                           is != UTF8PROC_CATEGORY_ZP && is != UTF8PROC_CATEGORY_CC && is != UTF8PROC_CATEGORY_CF &&
                           is != UTF8PROC_CATEGORY_CS && is != UTF8PROC_CATEGORY_CO);
}

static void repr_char(struct jin_builder *b, int32_t code, char quote)
{
    char text[16];
    const char *known = code < 0x80 ? strchr("\n\r\t\\", code) : NULL;
    if (code && known)
        jin_add_text(b, code == '\n' ? "\\n" : code == '\r' ? "\\r" : code == '\t' ? "\\t" : "\\\\");
    else if (code == quote)
        jin_add(b, (char[]){ '\\', quote }, 2);
    else if (jin_printable(code))
        jin_add_char(b, code);
    else {
        snprintf(text, sizeof text, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)code);
        jin_add_text(b, text);
    }
}

static void repr_string(struct jin_builder *b, const struct jin_string *s)
{
    bool apostrophe = s->n && memchr(s->data, '\'', s->n), quotes = s->n && memchr(s->data, '"', s->n);
    char quote = apostrophe && !quotes ? '"' : '\'';
    int32_t code;
    jin_add(b, &quote, 1);
    for (size_t at = 0; at < s->n;) {
        at += (size_t)jin_decode(s->data + at, s->n - at, &code);
        repr_char(b, code, quote);
    }
    jin_add(b, &quote, 1);
}

static void repr_list(struct jin_builder *b, const struct jin_list *l, const char *open, const char *close)
{
    jin_add_text(b, open);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            jin_add(b, ", ", 2);
        jin_repr(b, l->item[i]);
    }
    jin_add_text(b, close);
}

static void repr_dict(struct jin_builder *b, const struct jin_dict *d)
{
    jin_add(b, "{", 1);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jin_add(b, ", ", 2);
        jin_repr(b, d->pair[i].key);
        jin_add(b, ": ", 2);
        jin_repr(b, d->pair[i].value);
    }
    jin_add(b, "}", 1);
}

static void repr_range(struct jin_builder *b, const struct jin_range *r)
{
    char text[80];
    if (r->step == 1)
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, (long long)r->stop);
    else
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start, (long long)r->stop,
                 (long long)r->step);
    jin_add_text(b, text);
}

static void repr_loop(struct jin_builder *b, struct jin_loop *l)
{
    char text[80];
    snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)l->index0 + 1,
             (long long)jin_loop_length(b->j, l));
    jin_add_text(b, text);
}

static void repr_macro(struct jin_builder *b, const struct jin_macro *m)
{
    jin_add_text(b, "<Macro ");
    if (m->name)
        repr_string(b, m->name);
    else
        jin_add_text(b, "anonymous");
    jin_add(b, ">", 1);
}

static void repr_view(struct jin_builder *b, struct jin_value v)
{
    jin_add_text(b, jin_type_name(v));
    jin_add(b, "(", 1);
    repr_list(b, jin_collect(b->j, v), "[", "]");
    jin_add(b, ")", 1);
}

static void repr_nested(struct jin_builder *b, struct jin_value v)
{
    switch (v.type) {
    case JIN_LIST:
        repr_list(b, v.list, "[", "]");
        break;
    case JIN_TUPLE:
        repr_list(b, v.list, "(", v.list->n == 1 ? ",)" : ")");
        break;
    case JIN_DICT:
        repr_dict(b, v.dict);
        break;
    case JIN_NAMESPACE:
        jin_add_text(b, "<Namespace ");
        repr_dict(b, v.dict);
        jin_add(b, ">", 1);
        break;
    default:
        repr_view(b, v);
    }
}

void jin_repr(struct jin_builder *b, struct jin_value v)
{
    struct jin *j = b->j;
    jin_charge(j, 1);
    switch (v.type) {
    case JIN_UNDEFINED:
        jin_add_text(b, "Undefined");
        break;
    case JIN_NONE:
        jin_add_text(b, "None");
        break;
    case JIN_BOOL:
        jin_add_text(b, v.b ? "True" : "False");
        break;
    case JIN_INT:
    case JIN_FLOAT:
        add_number(b, v);
        break;
    case JIN_STRING:
        jin_add_text(b, v.safe ? "Markup(" : "");
        repr_string(b, v.s);
        jin_add_text(b, v.safe ? ")" : "");
        break;
    case JIN_LIST:
    case JIN_TUPLE:
    case JIN_DICT:
    case JIN_NAMESPACE:
    case JIN_VIEW:
        if (--j->depth < 0)
            JIN_FAIL(j, "values nested too deeply");
        repr_nested(b, v);
        j->depth++;
        break;
    case JIN_RANGE:
        repr_range(b, v.range);
        break;
    case JIN_MACRO:
        repr_macro(b, v.macro);
        break;
    case JIN_LOOP:
        repr_loop(b, v.loop);
        break;
    default:
        JIN_FAIL(j, "a %s cannot be printed: Python would print its address", jin_type_name(v));
    }
}

const struct jin_string *jin_str(struct jin *j, struct jin_value v)
{
    struct jin_builder b = { .j = j };
    if (v.type == JIN_STRING)
        return v.s;
    if (v.type != JIN_UNDEFINED)
        jin_repr(&b, v);
    return jin_built(&b).s;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

struct json {
    struct jin_builder b;
    bool ascii, sort, lines; /* lines: indented */
    const struct jin_string *indent, *between, *after_key;
    int64_t level;
};

static void write_unicode(struct jin_builder *b, unsigned unit)
{
    char text[16];
    snprintf(text, sizeof text, "\\u%04x", unit);
    jin_add_text(b, text);
}

static void write_string(struct json *w, const struct jin_string *s)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    size_t kept = 0;
    int32_t code;
    jin_add(&w->b, "\"", 1);
    for (size_t at = 0, n; at < s->n; at += n) {
        n = (size_t)jin_decode(s->data + at, s->n - at, &code);
        const char *known = code && code < 0x80 ? strchr(from, code) : NULL;
        if (!known && code >= 0x20 && !(w->ascii && code >= 0x7F))
            continue;
        if (!known && code == 0x7F)
            continue;
        jin_add(&w->b, s->data + kept, at - kept);
        kept = at + n;
        if (known)
            jin_add(&w->b, (char[]){ '\\', to[known - from] }, 2);
        else if (code < 0x10000)
            write_unicode(&w->b, (unsigned)code);
        else {
            write_unicode(&w->b, 0xD800 + ((unsigned)(code - 0x10000) >> 10));
            write_unicode(&w->b, 0xDC00 + ((unsigned)(code - 0x10000) & 0x3FF));
        }
    }
    jin_add(&w->b, s->data + kept, s->n - kept);
    jin_add(&w->b, "\"", 1);
}

static bool write_plain(struct json *w, struct jin_value v)
{
    if (v.type == JIN_NONE || v.type == JIN_BOOL)
        jin_add_text(&w->b, v.type == JIN_NONE ? "null" : v.b ? "true" : "false");
    else if (v.type == JIN_FLOAT && (v.f != v.f || v.f - v.f != 0))
        jin_add_text(&w->b, v.f != v.f ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity");
    else if (v.type == JIN_INT || v.type == JIN_FLOAT)
        add_number(&w->b, v);
    else
        return false;
    return true;
}

static void write_line(struct json *w)
{
    if (!w->lines)
        return;
    jin_add(&w->b, "\n", 1);
    jin_add_repeat(&w->b, w->indent, w->level);
}

static void write_value(struct json *w, struct jin_value v);

static void write_key(struct json *w, struct jin_value key)
{
    if (key.type == JIN_STRING) {
        write_string(w, key.s);
        return;
    }
    jin_add(&w->b, "\"", 1);
    if (!write_plain(w, key))
        JIN_FAIL(w->b.j, "keys must be str, int, float, bool or None, not %s", jin_type_name(key));
    jin_add(&w->b, "\"", 1);
}

static int by_key(struct jin *j, const struct jin_pair *a, const struct jin_pair *b)
{
    return jin_less(j, b->key, a->key, "<");
}

/* A copy of the dict's pairs, sorted by key with a stable merge sort. */
static const struct jin_pair *sorted(struct jin *j, const struct jin_dict *d)
{
    struct jin_pair *from = jin_take_n(&j->heap, d->n, sizeof *from), *to = jin_take_n(&j->heap, d->n, sizeof *to);
    memcpy(from, d->pair, d->n * sizeof *from);
    for (size_t run = 1; run < d->n; run *= 2) {
        for (size_t i = 0; i < d->n; i += 2 * run) {
            size_t a = i, mid = i + run < d->n ? i + run : d->n, b = mid, end = mid + run < d->n ? mid + run : d->n;
            for (size_t k = i; k < end; k++)
                to[k] = b == end || (a < mid && !by_key(j, &from[a], &from[b])) ? from[a++] : from[b++];
        }
        struct jin_pair *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

static void write_dict(struct json *w, const struct jin_dict *d)
{
    const struct jin_pair *pair = w->sort && d->n ? sorted(w->b.j, d) : d->pair;
    jin_add(&w->b, "{", 1);
    w->level++;
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jin_add(&w->b, w->between->data, w->between->n);
        write_line(w);
        write_key(w, pair[i].key);
        jin_add(&w->b, w->after_key->data, w->after_key->n);
        write_value(w, pair[i].value);
    }
    w->level--;
    if (d->n)
        write_line(w);
    jin_add(&w->b, "}", 1);
}

static void write_list(struct json *w, const struct jin_list *l)
{
    jin_add(&w->b, "[", 1);
    w->level++;
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            jin_add(&w->b, w->between->data, w->between->n);
        write_line(w);
        write_value(w, l->item[i]);
    }
    w->level--;
    if (l->n)
        write_line(w);
    jin_add(&w->b, "]", 1);
}

static void write_value(struct json *w, struct jin_value v)
{
    struct jin *j = w->b.j;
    jin_charge(j, 1);
    if (write_plain(w, v))
        return;
    if (v.type == JIN_STRING) {
        write_string(w, v.s);
        return;
    }
    if (v.type != JIN_LIST && v.type != JIN_TUPLE && v.type != JIN_DICT)
        JIN_FAIL(j, "Object of type %s is not JSON serializable", jin_type_name(v));
    if (--j->depth < 0)
        JIN_FAIL(j, "values nested too deeply");
    if (v.type == JIN_DICT)
        write_dict(w, v.dict);
    else
        write_list(w, v.list);
    j->depth++;
}

/* tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False), as transformers
 * defines it. */
struct jin_value jin_to_json(struct jin *j, struct jin_value v, const struct jin_args *args)
{
    struct jin_value given[4];
    struct json w = { .b = { .j = j } };
    jin_bind(j, "tojson", args, "ensure_ascii indent separators sort_keys", 0, given);
    w.ascii = given[0].type != JIN_MISSING && jin_truth(given[0]);
    w.sort = given[3].type != JIN_MISSING && jin_truth(given[3]);
    w.lines = jin_given(given[1]);
    w.indent = jin_text(j, "").s;
    if (w.lines && given[1].type == JIN_STRING) {
        w.indent = given[1].s;
    } else if (w.lines) {
        struct jin_builder spaces = { .j = j };
        jin_add_repeat(&spaces, jin_text(j, " ").s, jin_index(j, given[1], "indent"));
        w.indent = jin_built(&spaces).s;
    }
    w.between = jin_text(j, w.lines ? "," : ", ").s;
    w.after_key = jin_text(j, ": ").s;
    if (jin_given(given[2])) {
        const struct jin_list *l = jin_collect(j, given[2]);
        if (l->n != 2 || l->item[0].type != JIN_STRING || l->item[1].type != JIN_STRING)
            JIN_FAIL(j, "separators must be two strings");
        w.between = l->item[0].s;
        w.after_key = l->item[1].s;
    }
    write_value(&w, v);
    return jin_built(&w.b);
}
