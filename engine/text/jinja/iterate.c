/* engine/text/jinja/iterate.c - iteration over lists, dicts, strings, ranges and generators.
 *
 * As in Python, a generator makes each item when it is requested, and is empty after one iteration. */
#include "engine/text/jinja/internal.h"

struct jin_value jin_next(struct jin *j, struct jin_iterator *it)
{
    jin_charge(j, 1);
    if (--j->depth < 0)
        JIN_FAIL(j, "generators nested too deeply");
    struct jin_value v = it->next(j, it);
    j->depth++;
    return v;
}

static struct jin_value next_item(struct jin *j, struct jin_iterator *it)
{
    (void)j;
    return it->at < it->over.list->n ? it->over.list->item[it->at++] : jin_missing();
}

static struct jin_value next_char(struct jin *j, struct jin_iterator *it)
{
    const struct jin_string *s = it->over.s;
    int32_t code;
    if (it->at >= s->n)
        return jin_missing();
    size_t from = it->at, n = (size_t)jin_decode(s->data + from, s->n - from, &code);
    it->at += n;
    struct jin_value c = jin_sub(j, s, from, from + n);
    c.safe = false;
    return c;
}

static struct jin_value pair_part(struct jin *j, const struct jin_pair *p, int of)
{
    if (of != JIN_ITEMS)
        return of == JIN_KEYS ? p->key : p->value;
    struct jin_value *item = jin_take_n(&j->heap, 2, sizeof *item);
    item[0] = p->key;
    item[1] = p->value;
    return jin_list_new(j, JIN_TUPLE, item, 2);
}

static struct jin_value next_pair(struct jin *j, struct jin_iterator *it)
{
    bool view = it->over.type == JIN_VIEW;
    const struct jin_dict *d = view ? it->over.view->dict : it->over.dict;
    return it->at < d->n ? pair_part(j, &d->pair[it->at++], view ? (int)it->over.view->of : JIN_KEYS) : jin_missing();
}

static struct jin_value next_number(struct jin *j, struct jin_iterator *it)
{
    const struct jin_range *r = it->over.range;
    (void)j;
    return it->at < r->n ? jin_int(r->start + (int64_t)it->at++ * r->step) : jin_missing();
}

static struct jin_value next_none(struct jin *j, struct jin_iterator *it)
{
    (void)j;
    (void)it;
    return jin_missing();
}

bool jin_iterable(struct jin_value v)
{
    return v.type == JIN_UNDEFINED || (v.type >= JIN_STRING && v.type <= JIN_ITERATOR);
}

struct jin_iterator *jin_generator(struct jin *j, struct jin_value over, void *state,
                                   struct jin_value (*next)(struct jin *, struct jin_iterator *))
{
    struct jin_iterator *it = jin_take(&j->heap, sizeof *it);
    *it = (struct jin_iterator){ .next = next, .over = over, .state = state, .type = "generator" };
    return it;
}

struct jin_iterator *jin_iterate(struct jin *j, struct jin_value v)
{
    static struct jin_value (*const next[])(struct jin *, struct jin_iterator *) = {
        [JIN_UNDEFINED] = next_none, [JIN_STRING] = next_char, [JIN_LIST] = next_item,   [JIN_TUPLE] = next_item,
        [JIN_DICT] = next_pair,      [JIN_VIEW] = next_pair,   [JIN_RANGE] = next_number
    };
    if (v.type == JIN_ITERATOR)
        return v.iterator;
    if (!jin_iterable(v))
        JIN_FAIL(j, "'%s' object is not iterable", jin_type_name(v));
    return jin_generator(j, v, NULL, next[v.type]);
}

struct jin_value jin_iterator_value(struct jin_iterator *it)
{
    return (struct jin_value){ .type = JIN_ITERATOR, .iterator = it };
}

struct jin_list *jin_collect(struct jin *j, struct jin_value v)
{
    struct jin_items items = { 0 };
    struct jin_list *l = jin_take(&j->heap, sizeof *l);
    if (v.type == JIN_LIST || v.type == JIN_TUPLE) {
        jin_charge(j, v.list->n / 4);
        *l = *v.list; /* shares the items, which never change */
        return l;
    }
    struct jin_iterator *it = jin_iterate(j, v);
    for (struct jin_value item; (item = jin_next(j, it)).type != JIN_MISSING;)
        jin_items_add(j, &items, item);
    *l = (struct jin_list){ items.n, items.item };
    return l;
}

/* reversed(v), an iterator.  filter: the call is for the filter `reverse`, which also accepts a generator; a
 * generator's items are then returned reversed as a list. */
struct jin_value jin_reversed(struct jin *j, struct jin_value v, bool filter)
{
    static const char *const names[] = {
        [JIN_UNDEFINED] = "reversed",           [JIN_STRING] = "reversed",
        [JIN_LIST] = "list_reverseiterator",    [JIN_TUPLE] = "reversed",
        [JIN_DICT] = "dict_reversekeyiterator", [JIN_VIEW] = "dict_reverseitemiterator",
        [JIN_RANGE] = "range_iterator"
    };
    if (!jin_iterable(v) || (v.type == JIN_ITERATOR && !filter))
        JIN_FAIL(j, "'%s' object is not reversible", jin_type_name(v));
    const struct jin_list *l = jin_collect(j, v);
    struct jin_value *item = jin_take_n(&j->heap, l->n, sizeof *item);
    for (size_t i = 0; i < l->n; i++)
        item[i] = l->item[l->n - 1 - i];
    struct jin_value list = jin_list_new(j, JIN_LIST, item, l->n);
    if (v.type == JIN_ITERATOR)
        return list;
    struct jin_iterator *it = jin_iterate(j, list);
    it->type = names[v.type];
    return jin_iterator_value(it);
}
