/* engine/text/jinja/sequence_filters.c - filters of iterable values. */
#include "engine/text/jinja/internal.h"

#define FILTER(name) static struct jin_value name(struct jin *j, struct jin_value v, const struct jin_args *args)

/* ---- the key of an item ---------------------------------------------------------------------- */

/* An attribute argument such as "a.b,c.0" is a list of paths; a path is a list of names and numbers. */
struct path {
    struct jin_value *part; /* [n] */
    size_t n;               /* 0: the path gives the item itself */
};
struct getter {
    struct path *path;        /* [n] */
    size_t n;                 /* at least 1 */
    bool many;                /* the key is the list of the values of path[0 .. n); else the value of path[0] */
    bool fold;                /* strings are compared in lower case */
    struct jin_value missing; /* default for an undefined value, or JIN_MISSING */
};

static struct path path_of(struct jin *j, struct jin_value attribute)
{
    struct path p = { 0 };
    struct jin_items parts = { 0 };
    if (!jin_given(attribute))
        return p;
    if (attribute.type != JIN_STRING) {
        jin_items_add(j, &parts, attribute);
    } else {
        struct jin_value names = jin_split(j, attribute, jin_text(j, ".").s, -1, false);
        for (size_t i = 0; i < names.list->n; i++) {
            struct jin_value name = names.list->item[i];
            int64_t number;
            name.safe = false;
            bool digits = name.s->n;
            for (size_t k = 0; k < name.s->n; k++)
                digits &= name.s->data[k] >= '0' && name.s->data[k] <= '9';
            if (digits && jin_parse_int(name.s, 10, j, &number))
                name = jin_int(number);
            jin_items_add(j, &parts, name);
        }
    }
    return (struct path){ parts.item, parts.n };
}

static struct getter getter_of(struct jin *j, struct jin_value attribute, bool fold)
{
    struct getter g = { .n = 1, .fold = fold, .missing = jin_missing() };
    g.path = jin_take(&j->heap, sizeof *g.path);
    *g.path = path_of(j, attribute);
    return g;
}

static struct getter many_getter(struct jin *j, struct jin_value attribute, bool fold)
{
    const struct jin_list one = { 1, &attribute };
    const struct jin_list *l = &one;
    if (attribute.type == JIN_STRING)
        l = jin_split(j, attribute, jin_text(j, ",").s, -1, false).list;
    struct getter g = { .n = l->n, .many = true, .fold = fold, .missing = jin_missing() };
    g.path = jin_take_n(&j->heap, g.n, sizeof *g.path);
    for (size_t i = 0; i < g.n; i++)
        g.path[i] = path_of(j, l->item[i]);
    return g;
}

static struct jin_value follow(struct jin *j, const struct getter *g, const struct path *p, struct jin_value v)
{
    for (size_t i = 0; i < p->n; i++) {
        v = jin_item(j, v, p->part[i]);
        if (v.type == JIN_UNDEFINED && g->missing.type != JIN_MISSING)
            v = g->missing;
    }
    return g->fold && v.type == JIN_STRING ? jin_recase(j, v.s, JIN_LOWER) : v;
}

static struct jin_value get(struct jin *j, const struct getter *g, struct jin_value item)
{
    if (!g->many)
        return follow(j, g, g->path, item);
    struct jin_value *found = jin_take_n(&j->heap, g->n, sizeof *found);
    for (size_t i = 0; i < g->n; i++)
        found[i] = follow(j, g, &g->path[i], item);
    return jin_list_new(j, JIN_LIST, found, g->n);
}

static bool flag(struct jin_value v) { return v.type != JIN_MISSING && jin_truth(v); }

/* ---- order ----------------------------------------------------------------------------------- */

struct keyed {
    struct jin_value key, item;
};

/* Merge sort, stable also in reverse order. */
static void sort(struct jin *j, struct keyed *from, size_t n, bool reverse)
{
    struct keyed *to = jin_take_n(&j->heap, n, sizeof *to), *first = from;
    for (size_t run = 1; run < n; run *= 2) {
        for (size_t i = 0; i < n; i += 2 * run) {
            size_t a = i, mid = i + run < n ? i + run : n, b = mid, end = mid + run < n ? mid + run : n;
            for (size_t k = i; k < end; k++) {
                bool right = a == mid || (b < end && (reverse ? jin_less(j, from[a].key, from[b].key, "<")
                                                              : jin_less(j, from[b].key, from[a].key, "<")));
                to[k] = right ? from[b++] : from[a++];
            }
        }
        struct keyed *swap = from;
        from = to;
        to = swap;
    }
    if (from != first && n)
        memcpy(first, from, n * sizeof *from);
}

static struct keyed *keyed(struct jin *j, const struct jin_list *l, const struct getter *g)
{
    struct keyed *k = jin_take_n(&j->heap, l->n, sizeof *k);
    for (size_t i = 0; i < l->n; i++)
        k[i] = (struct keyed){ get(j, g, l->item[i]), l->item[i] };
    return k;
}

static struct jin_value items_of(struct jin *j, const struct keyed *k, size_t n)
{
    struct jin_value *item = jin_take_n(&j->heap, n, sizeof *item);
    for (size_t i = 0; i < n; i++)
        item[i] = k[i].item;
    return jin_list_new(j, JIN_LIST, item, n);
}

FILTER(f_sort)
{
    struct jin_value given[3];
    jin_bind(j, "sort", args, "reverse case_sensitive attribute", 0, given);
    struct getter g = many_getter(j, given[2].type == JIN_MISSING ? jin_none() : given[2], !flag(given[1]));
    const struct jin_list *l = jin_collect(j, v);
    struct keyed *k = keyed(j, l, &g);
    sort(j, k, l->n, flag(given[0]));
    return items_of(j, k, l->n);
}

static struct jin_value pairs(struct jin *j, const struct jin_dict *d)
{
    struct jin_view view = { .of = JIN_ITEMS, .dict = (struct jin_dict *)d };
    const struct jin_list *l = jin_collect(j, (struct jin_value){ .type = JIN_VIEW, .view = &view });
    return jin_list_new(j, JIN_LIST, l->item, l->n);
}

FILTER(f_dictsort)
{
    struct jin_value given[3];
    jin_bind(j, "dictsort", args, "case_sensitive by reverse", 0, given);
    jin_need(j, v);
    const struct jin_string *by = given[1].type == JIN_MISSING ? NULL : jin_str(j, given[1]);
    if (by && !jin_string_is(by, "key") && !jin_string_is(by, "value"))
        JIN_FAIL(j, "You can only sort by either \"key\" or \"value\"");
    if (v.type != JIN_DICT)
        JIN_FAIL(j, "'%s' object has no attribute 'items'", jin_type_name(v));
    struct getter g = getter_of(j, jin_int(by && by->data[0] == 'v'), !flag(given[0]));
    const struct jin_list *l = pairs(j, v.dict).list;
    struct keyed *k = keyed(j, l, &g);
    sort(j, k, l->n, flag(given[2]));
    return items_of(j, k, l->n);
}

static struct jin_value extreme(struct jin *j, struct jin_value v, const struct jin_args *args, const char *op)
{
    struct jin_value given[2], item, best = jin_missing(), best_key = jin_missing();
    jin_bind(j, "min", args, "case_sensitive attribute", 0, given);
    struct getter g = getter_of(j, given[1], !flag(given[0]));
    struct jin_iterator *it = jin_iterate(j, v);
    while ((item = jin_next(j, it)).type != JIN_MISSING) {
        struct jin_value key = get(j, &g, item);
        if (best.type == JIN_MISSING || jin_less(j, key, best_key, op)) {
            best = item;
            best_key = key;
        }
    }
    return best.type == JIN_MISSING ? jin_undefined_hint(j, "No aggregated item, sequence was empty.") : best;
}
FILTER(f_min) { return extreme(j, v, args, "<"); }
FILTER(f_max) { return extreme(j, v, args, ">"); }

FILTER(f_groupby)
{
    struct jin_value given[3];
    struct jin_items out = { 0 };
    jin_bind(j, "groupby", args, "attribute default case_sensitive", 1, given);
    struct getter g = getter_of(j, given[0], !flag(given[2])), exact;
    if (jin_given(given[1]))
        g.missing = given[1];
    exact = g;
    exact.fold = false;
    const struct jin_list *l = jin_collect(j, v);
    struct keyed *k = keyed(j, l, &g);
    sort(j, k, l->n, false);
    for (size_t i = 0, end; i < l->n; i = end) {
        for (end = i + 1; end < l->n && jin_equal(j, k[end].key, k[i].key);)
            end++;
        struct jin_value *group = jin_take_n(&j->heap, 2, sizeof *group);
        group[0] = g.fold ? get(j, &exact, k[i].item) : k[i].key;
        group[1] = items_of(j, k + i, end - i);
        jin_items_add(j, &out, jin_list_new(j, JIN_TUPLE, group, 2));
    }
    return jin_items_done(j, &out, JIN_LIST);
}

/* ---- generators ------------------------------------------------------------------------------ */

/* The next item of the generator's input it->over.  The first call begins the iteration.  An input that is empty
 * or undefined gives no items and does not fail. */
static struct jin_value source_next(struct jin *j, struct jin_iterator *it)
{
    if (!it->inner) {
        if (!jin_truth(it->over))
            return jin_missing();
        it->inner = jin_iterate(j, it->over);
    }
    return jin_next(j, it->inner);
}

struct map {
    struct getter get;
    const struct jin_filter *filter;
    const struct jin_string *name;
    struct jin_args args;
};

static struct jin_value map_next(struct jin *j, struct jin_iterator *it)
{
    const struct map *m = it->state;
    struct jin_value v = source_next(j, it);
    if (v.type == JIN_MISSING)
        return v;
    return m->name ? jin_filter_call(j, m->filter, m->name, v, &m->args) : get(j, &m->get, v);
}

/* The arguments without the first n positional arguments. */
static struct jin_args rest_of(const struct jin_args *args, int n)
{
    struct jin_args rest = *args;
    rest.position = rest.n > n ? rest.position + n : NULL;
    rest.n = rest.n > n ? rest.n - n : 0;
    return rest;
}

static const struct jin_string *name_of(struct jin *j, struct jin_value v)
{
    if (v.type != JIN_STRING)
        JIN_FAIL(j, "a filter or test is named by a string, not %s", jin_type_name(v));
    return v.s;
}

FILTER(f_map)
{
    struct map *m = jin_take(&j->heap, sizeof *m);
    struct jin_value given[2];
    *m = (struct map){ .args = rest_of(args, 1) };
    if (!args->n && args->n_keyword) {
        jin_bind(j, "map", args, "attribute default", 1, given);
        m->get = getter_of(j, given[0], false);
        if (jin_given(given[1]))
            m->get.missing = given[1];
    } else {
        if (!args->n)
            JIN_FAIL(j, "map requires a filter argument");
        m->name = name_of(j, args->position[0]);
        m->filter = jin_filter_find(m->name);
    }
    return jin_iterator_value(jin_generator(j, v, m, map_next));
}

struct select {
    bool want, by_attribute;
    struct getter get;
    const struct jin_test *test;
    const struct jin_string *name; /* of the test; NULL: selects by the truth of the item */
    struct jin_args args;
};

static struct jin_value select_next(struct jin *j, struct jin_iterator *it)
{
    const struct select *s = it->state;
    for (struct jin_value v; (v = source_next(j, it)).type != JIN_MISSING;) {
        struct jin_value seen = s->by_attribute ? get(j, &s->get, v) : v;
        bool holds = s->name ? jin_test_call(j, s->test, s->name, seen, &s->args) : jin_truth(seen);
        if (holds == s->want)
            return v;
    }
    return jin_missing();
}

static struct jin_value select_from(struct jin *j, struct jin_value v, const struct jin_args *args, bool want,
                                    bool by_attribute)
{
    struct select *s = jin_take(&j->heap, sizeof *s);
    int n = by_attribute;
    if (by_attribute && !args->n)
        JIN_FAIL(j, "Missing parameter for attribute name");
    *s = (struct select){ .want = want, .by_attribute = by_attribute };
    if (by_attribute)
        s->get = getter_of(j, args->position[0], false);
    if (args->n > n) {
        s->name = name_of(j, args->position[n]);
        s->test = jin_test_find(s->name);
    }
    s->args = rest_of(args, n + 1);
    return jin_iterator_value(jin_generator(j, v, s, select_next));
}
FILTER(f_select) { return select_from(j, v, args, true, false); }
FILTER(f_reject) { return select_from(j, v, args, false, false); }
FILTER(f_selectattr) { return select_from(j, v, args, true, true); }
FILTER(f_rejectattr) { return select_from(j, v, args, false, true); }

static struct jin_value items_next(struct jin *j, struct jin_iterator *it)
{
    if (it->over.type == JIN_UNDEFINED)
        return jin_missing();
    if (it->over.type != JIN_DICT)
        JIN_FAIL(j, "Can only get item pairs from a mapping.");
    if (!it->inner)
        it->inner = jin_iterate(j, pairs(j, it->over.dict));
    return jin_next(j, it->inner);
}

FILTER(f_items)
{
    jin_bind(j, "items", args, "", 0, NULL);
    return jin_iterator_value(jin_generator(j, v, NULL, items_next));
}

struct unique {
    struct getter get;
    struct jin_dict *seen;
};

static struct jin_value unique_next(struct jin *j, struct jin_iterator *it)
{
    const struct unique *u = it->state;
    if (!it->inner)
        it->inner = jin_iterate(j, it->over);
    for (struct jin_value v; (v = jin_next(j, it->inner)).type != JIN_MISSING;) {
        struct jin_value key = get(j, &u->get, v);
        if (jin_dict_find(j, u->seen, key))
            continue;
        jin_dict_put(j, u->seen, key, jin_none());
        return v;
    }
    return jin_missing();
}

FILTER(f_unique)
{
    struct unique *u = jin_take(&j->heap, sizeof *u);
    struct jin_value given[2];
    jin_bind(j, "unique", args, "case_sensitive attribute", 0, given);
    *u = (struct unique){ getter_of(j, given[1], !flag(given[0])), jin_dict_new(j, 8) };
    return jin_iterator_value(jin_generator(j, v, u, unique_next));
}

struct batch {
    int64_t n;
    struct jin_value fill;
};

static struct jin_value batch_next(struct jin *j, struct jin_iterator *it)
{
    const struct batch *b = it->state;
    struct jin_items items = { 0 };
    struct jin_value v;
    if (!it->inner)
        it->inner = jin_iterate(j, it->over);
    while ((int64_t)items.n < b->n && (v = jin_next(j, it->inner)).type != JIN_MISSING)
        jin_items_add(j, &items, v);
    if (!items.n)
        return jin_missing();
    while (jin_given(b->fill) && (int64_t)items.n < b->n) {
        jin_charge(j, 1);
        jin_items_add(j, &items, b->fill);
    }
    return jin_items_done(j, &items, JIN_LIST);
}

FILTER(f_batch)
{
    struct batch *b = jin_take(&j->heap, sizeof *b);
    struct jin_value given[2];
    jin_bind(j, "batch", args, "linecount fill_with", 1, given);
    *b = (struct batch){ jin_index(j, given[0], "linecount"), given[1] };
    if (b->n < 1)
        JIN_FAIL(j, "batches of %lld are not supported", (long long)b->n);
    return jin_iterator_value(jin_generator(j, v, b, batch_next));
}

FILTER(f_slice)
{
    struct jin_value given[2];
    struct jin_items out = { 0 };
    jin_bind(j, "slice", args, "slices fill_with", 1, given);
    const struct jin_list *l = jin_collect(j, v);
    int64_t n = jin_index(j, given[0], "slices"), offset = 0;
    if (n < 1)
        JIN_FAIL(j, "%lld slices are not supported", (long long)n);
    int64_t each = (int64_t)l->n / n, extra = (int64_t)l->n % n;
    for (int64_t i = 0; i < n; i++) {
        struct jin_items part = { 0 };
        int64_t from = offset + i * each;
        offset += i < extra;
        jin_charge(j, 1);
        for (int64_t k = from; k < offset + (i + 1) * each; k++)
            jin_items_add(j, &part, l->item[k]);
        if (jin_given(given[1]) && i >= extra)
            jin_items_add(j, &part, given[1]);
        jin_items_add(j, &out, jin_items_done(j, &part, JIN_LIST));
    }
    struct jin_iterator *it = jin_iterate(j, jin_items_done(j, &out, JIN_LIST));
    return jin_iterator_value(it);
}

/* ---- one value of many ----------------------------------------------------------------------- */

FILTER(f_join)
{
    struct jin_value given[2], item;
    struct jin_builder b = { .j = j };
    jin_bind(j, "join", args, "d attribute", 0, given);
    const struct jin_string *between = given[0].type == JIN_MISSING ? jin_text(j, "").s : jin_str(j, given[0]);
    struct getter g = getter_of(j, given[1], false);
    struct jin_iterator *it = jin_iterate(j, v);
    for (bool first = true; (item = jin_next(j, it)).type != JIN_MISSING; first = false) {
        const struct jin_string *s = jin_str(j, get(j, &g, item));
        if (!first)
            jin_add(&b, between->data, between->n);
        jin_add(&b, s->data, s->n);
    }
    return jin_built(&b);
}

FILTER(f_length)
{
    jin_bind(j, "length", args, "", 0, NULL);
    int64_t n = jin_length(j, v);
    if (n < 0)
        JIN_FAIL(j, "object of type '%s' has no len()", jin_type_name(v));
    return jin_int(n);
}

FILTER(f_list)
{
    jin_bind(j, "list", args, "", 0, NULL);
    const struct jin_list *l = jin_collect(j, v);
    return jin_list_new(j, JIN_LIST, l->item, l->n);
}

FILTER(f_first)
{
    jin_bind(j, "first", args, "", 0, NULL);
    struct jin_value item = jin_next(j, jin_iterate(j, v));
    return item.type == JIN_MISSING ? jin_undefined_hint(j, "No first item, sequence was empty.") : item;
}

FILTER(f_last)
{
    jin_bind(j, "last", args, "", 0, NULL);
    struct jin_value back = jin_reversed(j, v, false);
    struct jin_value item = jin_next(j, jin_iterate(j, back));
    return item.type == JIN_MISSING ? jin_undefined_hint(j, "No last item, sequence was empty.") : item;
}

FILTER(f_reverse)
{
    jin_bind(j, "reverse", args, "", 0, NULL);
    if (v.type == JIN_STRING)
        return jin_slice(j, v, jin_missing(), jin_missing(), jin_int(-1));
    return jin_reversed(j, v, true);
}

FILTER(f_sum)
{
    struct jin_value given[2], item;
    jin_bind(j, "sum", args, "attribute start", 0, given);
    struct jin_value sum = given[1].type == JIN_MISSING ? jin_int(0) : given[1];
    if (sum.type == JIN_STRING)
        JIN_FAIL(j, "sum() can't sum strings [use ''.join(seq) instead]");
    struct getter g = getter_of(j, given[0], false);
    struct jin_iterator *it = jin_iterate(j, v);
    while ((item = jin_next(j, it)).type != JIN_MISSING)
        sum = jin_arithmetic(j, '+', sum, get(j, &g, item));
    return sum;
}

const struct jin_filter jin_sequence_filters[] = { { "length", f_length },
                                                   { "count", f_length },
                                                   { "join", f_join },
                                                   { "list", f_list },
                                                   { "map", f_map },
                                                   { "select", f_select },
                                                   { "reject", f_reject },
                                                   { "selectattr", f_selectattr },
                                                   { "rejectattr", f_rejectattr },
                                                   { "items", f_items },
                                                   { "dictsort", f_dictsort },
                                                   { "first", f_first },
                                                   { "last", f_last },
                                                   { "reverse", f_reverse },
                                                   { "sort", f_sort },
                                                   { "unique", f_unique },
                                                   { "min", f_min },
                                                   { "max", f_max },
                                                   { "sum", f_sum },
                                                   { "groupby", f_groupby },
                                                   { "batch", f_batch },
                                                   { "slice", f_slice },
                                                   { NULL, NULL } };
