/* engine/text/jinja/globals.c - built-in global functions of templates, such as range and dict. */
#include "engine/text/jinja/internal.h"

#include <stdio.h>
#include <time.h>

#define MAX_RANGE 100000 /* items of range(), as in jinja2's sandbox */

#define FUNCTION(name) static struct jin_value name(struct jin *j, struct jin_value self, const struct jin_args *args)

FUNCTION(g_range)
{
    struct jin_range *r = jin_take(&j->heap, sizeof *r);
    struct jin_value given[3];
    (void)self;
    jin_bind(j, "range", args, "start stop step", 1, given);
    bool one = given[1].type == JIN_MISSING;
    r->start = one ? 0 : jin_index(j, given[0], "range() arguments");
    r->stop = jin_index(j, given[one ? 0 : 1], "range() arguments");
    r->step = given[2].type == JIN_MISSING ? 1 : jin_index(j, given[2], "range() arguments");
    if (!r->step)
        JIN_FAIL(j, "range() arg 3 must not be zero");
    uint64_t span = r->step > 0 ? (uint64_t)r->stop - (uint64_t)r->start : (uint64_t)r->start - (uint64_t)r->stop;
    uint64_t by = r->step > 0 ? (uint64_t)r->step : -(uint64_t)r->step;
    bool empty = r->step > 0 ? r->stop <= r->start : r->stop >= r->start;
    r->n = empty ? 0 : (size_t)((span - 1) / by + 1);
    if (r->n > MAX_RANGE)
        JIN_FAIL(j, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX_RANGE);
    return (struct jin_value){ .type = JIN_RANGE, .range = r };
}

/* The dict of dict(x, name=value ...), where x is a dict or an iterable of pairs. */
static struct jin_dict *new_dict(struct jin *j, const struct jin_args *args)
{
    struct jin_dict *d = jin_dict_new(j, 8);
    struct jin_value v;
    if (args->n > 1)
        JIN_FAIL(j, "dict expected at most 1 argument, got %d", args->n);
    if (args->n && args->position[0].type == JIN_DICT) {
        const struct jin_dict *from = args->position[0].dict;
        for (size_t i = 0; i < from->n; i++)
            jin_dict_put(j, d, from->pair[i].key, from->pair[i].value);
    } else if (args->n) {
        struct jin_iterator *it = jin_iterate(j, args->position[0]);
        for (size_t i = 0; (v = jin_next(j, it)).type != JIN_MISSING; i++) {
            const struct jin_list *pair = jin_collect(j, v);
            if (pair->n != 2)
                JIN_FAIL(j, "dictionary update sequence element #%zu has length %zu; 2 is required", i, pair->n);
            jin_dict_put(j, d, pair->item[0], pair->item[1]);
        }
    }
    for (int i = 0; i < args->n_keyword; i++)
        jin_dict_put(j, d, jin_of(args->keyword[i].name), args->keyword[i].value);
    return d;
}

FUNCTION(g_dict)
{
    (void)self;
    return jin_dict_value(new_dict(j, args));
}

FUNCTION(g_namespace)
{
    struct jin_dict *d = new_dict(j, args);
    (void)self;
    for (size_t i = 0; i < d->n; i++)
        if (d->pair[i].key.type == JIN_STRING && d->pair[i].key.s->n && d->pair[i].key.s->data[0] == '_')
            JIN_FAIL(j, "Chat templates cannot store underscore-prefixed attributes on a namespace");
    return (struct jin_value){ .type = JIN_NAMESPACE, .dict = d };
}

FUNCTION(g_cycler)
{
    struct jin_cycler *c = jin_take(&j->heap, sizeof *c);
    struct jin_items items = { 0 };
    (void)self;
    if (!args->n || args->n_keyword)
        JIN_FAIL(j, "at least one item has to be provided");
    for (int i = 0; i < args->n; i++)
        jin_items_add(j, &items, args->position[i]);
    *c = (struct jin_cycler){ .items = jin_items_done(j, &items, JIN_TUPLE).list };
    return (struct jin_value){ .type = JIN_CYCLER, .cycler = c };
}

FUNCTION(g_joiner)
{
    struct jin_joiner *s = jin_take(&j->heap, sizeof *s);
    struct jin_value separator;
    (void)self;
    jin_bind(j, "joiner", args, "sep", 0, &separator);
    if (separator.type == JIN_MISSING)
        separator = jin_text(j, ", ");
    *s = (struct jin_joiner){ .separator = separator };
    return (struct jin_value){ .type = JIN_JOINER, .joiner = s };
}

/* raise_exception(message): the rendering fails with this message, which may have several lines. */
FUNCTION(g_raise_exception)
{
    struct jin_value message;
    struct eng_template_error *e = j->heap.error;
    (void)self;
    jin_bind(j, "raise_exception", args, "message", 1, &message);
    const struct jin_string *s = jin_str(j, message);
    size_t n = s->n < sizeof e->text - 1 ? s->n : sizeof e->text - 1;
    while (n < s->n && n && ((uint8_t)s->data[n] & 0xC0) == 0x80)
        n--;
    memcpy(e->text, s->data, n);
    e->text[n] = 0;
    e->line = j->heap.line;
    e->raised = true;
    jin_escape(&j->heap, KN_EINVAL);
}

/* strftime_now(format), as Python's datetime.now().strftime(format): with the time j->now_s in the local zone. */
FUNCTION(g_strftime_now)
{
    struct jin_value format;
    struct jin_builder b = { .j = j };
    time_t now = (time_t)j->now_s;
    struct tm local;
    (void)self;
    jin_bind(j, "strftime_now", args, "format", 1, &format);
    if (format.type != JIN_STRING)
        JIN_FAIL(j, "strftime() argument 1 must be str, not %s", jin_type_name(format));
    if (!localtime_r(&now, &local))
        JIN_FAIL(j, "the system time cannot be read");
    for (size_t i = 0; i < format.s->n; i++) {
        char c = format.s->data[i], one[8], text[256];
        if (c != '%') {
            jin_add(&b, &c, 1);
            continue;
        }
        if (++i == format.s->n) {
            jin_add(&b, "%", 1);
            break;
        }
        c = format.s->data[i];
        if (c == 'z' || c == 'Z')
            continue;
        if (c == 'f') {
            jin_add_text(&b, "000000");
            continue;
        }
        if (!c || !strchr("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyY%-", c))
            JIN_FAIL(j, "a time format that is not supported");
        if (c == '-' && i + 1 < format.s->n && strchr("dHIjmMSUWwyekl", format.s->data[i + 1]))
            snprintf(one, sizeof one, "%%-%c", format.s->data[++i]);
        else
            snprintf(one, sizeof one, "%%%c", c);
        jin_add(&b, text, strftime(text, sizeof text, one, &local));
    }
    return jin_built(&b);
}

FUNCTION(g_lipsum)
{
    (void)self;
    (void)args;
    JIN_FAIL(j, "lipsum() is not supported");
}

static const struct jin_function functions[] = {
    { "range", g_range },
    { "dict", g_dict },
    { "namespace", g_namespace },
    { "cycler", g_cycler },
    { "joiner", g_joiner },
    { "raise_exception", g_raise_exception },
    { "strftime_now", g_strftime_now },
    { "lipsum", g_lipsum },
};

bool jin_global(const struct jin_string *name, struct jin_value *out)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (jin_string_is(name, functions[i].name)) {
            *out = (struct jin_value){ .type = JIN_FUNCTION, .function = &functions[i] };
            return true;
        }
    return false;
}
