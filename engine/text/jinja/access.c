/* engine/text/jinja/access.c - attributes, items and slices: x.y, x[y], x[a:b].
 *
 * As in jinja2's sandbox: x.y looks for an attribute of x's type first, then for an item of x; x["y"]
 * looks for an item first.  Attributes are the fixed lists in this file.  As an attribute, a name such as
 * __class__ (two underscores at the start, one at the end), or a method that would change a list or dict,
 * gives an undefined value; using it fails. */
#include "engine/text/jinja/internal.h"

#include <stdio.h>

/* ---- methods of dicts and lists -------------------------------------------------------------- */

static struct jin_value dict_get(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    struct jin_value given[2];
    jin_bind(j, "get", args, "key default", 1, given);
    const struct jin_value *found = jin_dict_find(j, self.dict, given[0]);
    return found ? *found : given[1].type == JIN_MISSING ? jin_none() : given[1];
}

static struct jin_value view(struct jin *j, struct jin_value self, int of, const char *name,
                             const struct jin_args *args)
{
    struct jin_view *v = jin_take(&j->heap, sizeof *v);
    jin_bind(j, name, args, "", 0, NULL);
    v->of = of;
    v->dict = self.dict;
    return (struct jin_value){ .type = JIN_VIEW, .view = v };
}

static struct jin_value dict_keys(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    return view(j, self, JIN_KEYS, "keys", args);
}

static struct jin_value dict_values(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    return view(j, self, JIN_VALUES, "values", args);
}

static struct jin_value dict_items(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    return view(j, self, JIN_ITEMS, "items", args);
}

static struct jin_value copy(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    jin_bind(j, "copy", args, "", 0, NULL);
    return self; /* values are immutable: no copy needed */
}

static struct jin_value list_count(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    struct jin_value what;
    int64_t n = 0;
    jin_bind(j, "count", args, "value", 1, &what);
    for (size_t i = 0; i < self.list->n; i++) {
        jin_charge(j, 1);
        n += jin_equal(j, self.list->item[i], what);
    }
    return jin_int(n);
}

static struct jin_value list_index(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    struct jin_value given[3];
    int64_t n = (int64_t)self.list->n, from = 0, to = n;
    jin_bind(j, "index", args, "value start stop", 1, given);
    if (given[1].type != JIN_MISSING)
        from = jin_index(j, given[1], "start");
    if (given[2].type != JIN_MISSING)
        to = jin_index(j, given[2], "stop");
    from = from < 0 && (from += n) < 0 ? 0 : from;
    to = to < 0 ? to + n : to;
    for (int64_t i = from; i < to && i < n; i++) {
        jin_charge(j, 1);
        if (jin_equal(j, self.list->item[i], given[0]))
            return jin_int(i);
    }
    JIN_FAIL(j, "the value is not in list");
}

static struct jin_value refused(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    (void)args;
    JIN_FAIL(j, "this method of %s is not supported", jin_type_name(self));
}

/* ---- methods of loop, cycler ----------------------------------------------------------------- */

static struct jin_value loop_cycle(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    if (!args->n)
        JIN_FAIL(j, "no items for cycling given");
    return args->position[self.loop->index0 % args->n];
}

static struct jin_value loop_changed(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    struct jin_value *item = jin_take_n(&j->heap, (size_t)args->n, sizeof *item);
    if (args->n)
        memcpy(item, args->position, (size_t)args->n * sizeof *item);
    struct jin_value now = jin_list_new(j, JIN_TUPLE, item, (size_t)args->n);
    bool same = self.loop->changed.type != JIN_MISSING && jin_equal(j, self.loop->changed, now);
    self.loop->changed = now;
    return jin_bool(!same);
}

static struct jin_value cycler_next(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    struct jin_cycler *c = self.cycler;
    jin_bind(j, "next", args, "", 0, NULL);
    struct jin_value v = c->items->item[c->at];
    c->at = (c->at + 1) % c->items->n;
    return v;
}

static struct jin_value cycler_reset(struct jin *j, struct jin_value self, const struct jin_args *args)
{
    jin_bind(j, "reset", args, "", 0, NULL);
    self.cycler->at = 0;
    return jin_none();
}

/* Methods of a dict.  call is NULL for a method of Python that would change the dict: its name gives an undefined value,
 * so calling it fails. */
static const struct jin_function dict_methods[] = {
    { "get", dict_get }, { "items", dict_items }, { "keys", dict_keys }, { "values", dict_values },
    { "copy", copy },    { "fromkeys", refused }, { "pop", NULL },       { "popitem", NULL },
    { "clear", NULL },   { "setdefault", NULL },  { "update", NULL },    { NULL, NULL }
};
static const struct jin_function list_methods[] = {
    { "count", list_count }, { "index", list_index }, { "copy", copy },   { "append", NULL },
    { "clear", NULL },       { "extend", NULL },      { "insert", NULL }, { "pop", NULL },
    { "remove", NULL },      { "reverse", NULL },     { "sort", NULL },   { NULL, NULL }
};
static const struct jin_function tuple_methods[] = { { "count", list_count }, { "index", list_index }, { NULL, NULL } };
static const struct jin_function number_methods[] = { { "as_integer_ratio", refused },
                                                      { "bit_count", refused },
                                                      { "bit_length", refused },
                                                      { "conjugate", refused },
                                                      { "denominator", refused },
                                                      { "from_bytes", refused },
                                                      { "fromhex", refused },
                                                      { "hex", refused },
                                                      { "imag", refused },
                                                      { "is_integer", refused },
                                                      { "numerator", refused },
                                                      { "real", refused },
                                                      { "to_bytes", refused },
                                                      { NULL, NULL } };
static const struct jin_function loop_methods[] = { { "cycle", loop_cycle },
                                                    { "changed", loop_changed },
                                                    { NULL, NULL } };
static const struct jin_function cycler_methods[] = { { "next", cycler_next },
                                                      { "reset", cycler_reset },
                                                      { NULL, NULL } };

static const struct jin_function *find(const struct jin_function *list, const struct jin_string *name)
{
    for (; list->name; list++)
        if (jin_string_is(name, list->name))
            return list;
    return NULL;
}

static const struct jin_function *method_of(struct jin_value of, const struct jin_string *name)
{
    switch (of.type) {
    case JIN_STRING:
        return jin_string_method(name);
    case JIN_DICT:
        return find(dict_methods, name);
    case JIN_LIST:
        return find(list_methods, name);
    case JIN_TUPLE:
    case JIN_RANGE:
        return find(tuple_methods, name);
    case JIN_BOOL:
    case JIN_INT:
    case JIN_FLOAT:
        return find(number_methods, name);
    case JIN_LOOP:
        return find(loop_methods, name);
    case JIN_CYCLER:
        return find(cycler_methods, name);
    default:
        return NULL;
    }
}

struct jin_value jin_bind_method(struct jin *j, const struct jin_function *f, struct jin_value self)
{
    struct jin_method *m = jin_take(&j->heap, sizeof *m);
    *m = (struct jin_method){ f, self };
    return (struct jin_value){ .type = JIN_METHOD, .method = m };
}

static struct jin_value unsafe(struct jin *j, struct jin_value of, const struct jin_string *name)
{
    char text[160];
    snprintf(text, sizeof text, "access to attribute '%.*s' of '%s' object is unsafe.",
             (int)(name->n < 60 ? name->n : 60), name->data, jin_type_name(of));
    return jin_undefined_hint(j, jin_string(j, text, strlen(text) + 1).s->data);
}

/* ---- plain attributes ------------------------------------------------------------------------ */

static struct jin_value loop_attribute(struct jin *j, struct jin_loop *l, const struct jin_string *name)
{
    if (jin_string_is(name, "index"))
        return jin_int(l->index0 + 1);
    if (jin_string_is(name, "index0"))
        return jin_int(l->index0);
    if (jin_string_is(name, "first"))
        return jin_bool(l->index0 == 0);
    if (jin_string_is(name, "last"))
        return jin_bool(jin_loop_peek(j, l).type == JIN_MISSING);
    if (jin_string_is(name, "length"))
        return jin_int(jin_loop_length(j, l));
    if (jin_string_is(name, "revindex"))
        return jin_int(jin_loop_length(j, l) - l->index0);
    if (jin_string_is(name, "revindex0"))
        return jin_int(jin_loop_length(j, l) - l->index0 - 1);
    if (jin_string_is(name, "depth"))
        return jin_int(l->depth0 + 1);
    if (jin_string_is(name, "depth0"))
        return jin_int(l->depth0);
    if (jin_string_is(name, "previtem"))
        return l->index0 == 0 ? jin_undefined_hint(j, "there is no previous item") : l->before;
    if (jin_string_is(name, "nextitem")) {
        struct jin_value next = jin_loop_peek(j, l);
        return next.type == JIN_MISSING ? jin_undefined_hint(j, "there is no next item") : next;
    }
    return jin_missing();
}

static struct jin_value macro_attribute(struct jin *j, const struct jin_macro *m, const struct jin_string *name)
{
    const struct jin_macro_info *info = m->node->macro;
    if (jin_string_is(name, "name"))
        return m->name ? jin_of(m->name) : jin_none();
    if (jin_string_is(name, "catch_kwargs"))
        return jin_bool(info->kwargs >= 0);
    if (jin_string_is(name, "catch_varargs"))
        return jin_bool(info->varargs >= 0);
    if (jin_string_is(name, "caller"))
        return jin_bool(info->speaks_of_caller);
    if (!jin_string_is(name, "arguments"))
        return jin_missing();
    struct jin_items names = { 0 };
    for (const struct jin_node *p = m->node->a; p; p = p->next)
        jin_items_add(j, &names, jin_of(p->name));
    return jin_items_done(j, &names, JIN_TUPLE);
}

/* The attribute that the type of `of` has under this name; JIN_MISSING if the type has no such attribute. */
static struct jin_value own(struct jin *j, struct jin_value of, const struct jin_string *name)
{
    if (of.type == JIN_NAMESPACE) {
        const struct jin_value *found = jin_dict_find_text(j, of.dict, name);
        if (found)
            return *found;
    } else if (of.type == JIN_LOOP) {
        struct jin_value v = loop_attribute(j, of.loop, name);
        if (v.type != JIN_MISSING)
            return v;
    } else if (of.type == JIN_MACRO) {
        struct jin_value v = macro_attribute(j, of.macro, name);
        if (v.type != JIN_MISSING)
            return v;
    } else if (of.type == JIN_CYCLER && jin_string_is(name, "current")) {
        return of.cycler->items->item[of.cycler->at];
    } else if (of.type == JIN_CYCLER && jin_string_is(name, "items")) {
        return (struct jin_value){ .type = JIN_TUPLE, .list = of.cycler->items };
    } else if (of.type == JIN_JOINER && jin_string_is(name, "sep")) {
        return of.joiner->separator;
    }
    if (name->n > 4 && name->data[0] == '_' && name->data[1] == '_' && name->data[name->n - 1] == '_')
        return unsafe(j, of, name);
    const struct jin_function *f = method_of(of, name);
    return !f ? jin_missing() : !f->call ? unsafe(j, of, name) : jin_bind_method(j, f, of);
}

/* ---- items ----------------------------------------------------------------------------------- */

/* of[which]; JIN_MISSING if Python raises an error that jinja2's getitem() turns into an undefined value. */
static struct jin_value plain_item(struct jin *j, struct jin_value of, struct jin_value which)
{
    if (of.type == JIN_DICT) {
        const struct jin_value *found = jin_hashable(j, which) ? jin_dict_find(j, of.dict, which) : NULL;
        return found ? *found : jin_missing();
    }
    if (!jin_is_integer(which))
        return jin_missing();
    int64_t i = jin_integer(which), n = jin_length(j, of);
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n)
        return jin_missing();
    if (of.type == JIN_LIST || of.type == JIN_TUPLE)
        return of.list->item[i];
    if (of.type == JIN_RANGE)
        return jin_int(of.range->start + i * of.range->step);
    if (of.type != JIN_STRING)
        return jin_missing();
    jin_charge(j, of.s->n / 16);
    size_t at = jin_char_at(of.s, (size_t)i);
    int32_t code;
    struct jin_value c = jin_sub(j, of.s, at, at + (size_t)jin_decode(of.s->data + at, of.s->n - at, &code));
    c.safe = of.safe;
    return c;
}

struct jin_value jin_attribute(struct jin *j, struct jin_value of, const struct jin_string *name)
{
    jin_need(j, of);
    struct jin_value v = own(j, of, name);
    if (v.type == JIN_MISSING)
        v = plain_item(j, of, jin_of(name));
    return v.type == JIN_MISSING ? jin_undefined_of(j, of, jin_of(name)) : v;
}

struct jin_value jin_item(struct jin *j, struct jin_value of, struct jin_value which)
{
    jin_need(j, of);
    struct jin_value v = plain_item(j, of, which);
    if (v.type == JIN_MISSING && which.type == JIN_STRING)
        v = own(j, of, which.s);
    return v.type == JIN_MISSING ? jin_undefined_of(j, of, which) : v;
}

/* ---- slices ---------------------------------------------------------------------------------- */

static int64_t clamp(int64_t at, int64_t n, int64_t least, int64_t most)
{
    at = at < 0 ? at + n : at;
    return at < least ? least : at > most ? most : at;
}

struct jin_value jin_slice(struct jin *j, struct jin_value of, struct jin_value start, struct jin_value stop,
                           struct jin_value step)
{
    jin_need(j, of);
    int64_t by = jin_given(step) ? jin_index(j, step, "slice indices") : 1, n = jin_length(j, of);
    bool text = of.type == JIN_STRING;
    if (!text && of.type != JIN_LIST && of.type != JIN_TUPLE && of.type != JIN_RANGE)
        JIN_FAIL(j, of.type == JIN_DICT ? "unhashable type: 'slice'" : "'%s' object is not subscriptable",
                 jin_type_name(of));
    if (!by)
        JIN_FAIL(j, "slice step cannot be zero");
    int64_t least = by < 0 ? -1 : 0, most = by < 0 ? n - 1 : n;
    int64_t from = jin_given(start) ? clamp(jin_index(j, start, "slice indices"), n, least, most) : by < 0 ? most : 0;
    int64_t to = jin_given(stop) ? clamp(jin_index(j, stop, "slice indices"), n, least, most) : by < 0 ? -1 : n;
    if (text && by == 1) {
        jin_charge(j, of.s->n / 16);
        struct jin_value v = jin_sub(j, of.s, jin_char_at(of.s, (size_t)from),
                                     jin_char_at(of.s, (size_t)(to > from ? to : from)));
        v.safe = of.safe;
        return v;
    }
    if (of.type == JIN_RANGE)
        JIN_FAIL(j, "slices of a range are not supported");
    const struct jin_list *l = text ? jin_collect(j, of) : of.list;
    if (!text && by == 1)
        return jin_list_new(j, of.type, l->item + from, to > from ? (size_t)(to - from) : 0);
    struct jin_items items = { 0 };
    struct jin_builder b = { .j = j };
    for (int64_t i = from; by > 0 ? i < to : i > to; i = by > n || by < -n ? to : i + by) {
        jin_charge(j, 1);
        if (text)
            jin_add(&b, l->item[i].s->data, l->item[i].s->n);
        else
            jin_items_add(j, &items, l->item[i]);
    }
    struct jin_value v = text ? jin_built(&b) : jin_items_done(j, &items, of.type);
    v.safe = of.safe;
    return v;
}
