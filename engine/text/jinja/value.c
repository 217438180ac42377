/* engine/text/jinja/value.c - values as in Python: truth, equality, order, lists, dicts, undefined. */
#include "engine/text/jinja/internal.h"

const char *jin_type_name(struct jin_value v)
{
    static const char *const names[] = { [JIN_MISSING] = "missing",   [JIN_UNDEFINED] = "Undefined",
                                         [JIN_NONE] = "NoneType",     [JIN_BOOL] = "bool",
                                         [JIN_INT] = "int",           [JIN_FLOAT] = "float",
                                         [JIN_STRING] = "str",        [JIN_LIST] = "list",
                                         [JIN_TUPLE] = "tuple",       [JIN_DICT] = "dict",
                                         [JIN_RANGE] = "range",       [JIN_NAMESPACE] = "Namespace",
                                         [JIN_MACRO] = "Macro",       [JIN_LOOP] = "LoopContext",
                                         [JIN_FUNCTION] = "function", [JIN_METHOD] = "builtin_function_or_method",
                                         [JIN_CYCLER] = "Cycler",     [JIN_JOINER] = "Joiner" };
    static const char *const views[] = { "dict_keys", "dict_values", "dict_items" };
    if (v.type == JIN_VIEW)
        return views[v.view->of];
    if (v.type == JIN_ITERATOR)
        return v.iterator->type;
    return v.type == JIN_STRING && v.safe ? "Markup" : names[v.type];
}

bool jin_truth(struct jin_value v)
{
    switch (v.type) {
    case JIN_MISSING:
    case JIN_UNDEFINED:
    case JIN_NONE:
        return false;
    case JIN_BOOL:
        return v.b;
    case JIN_INT:
        return v.i;
    case JIN_FLOAT:
        return v.f != 0;
    case JIN_STRING:
        return v.s->n;
    case JIN_LIST:
    case JIN_TUPLE:
        return v.list->n;
    case JIN_DICT:
        return v.dict->n;
    case JIN_VIEW:
        return v.view->dict->n;
    case JIN_RANGE:
        return v.range->n;
    default:
        return true;
    }
}

bool jin_given(struct jin_value v) { return v.type != JIN_MISSING && v.type != JIN_NONE; }

/* ---- undefined ------------------------------------------------------------------------------- */

static struct jin_value undefined(struct jin_heap *h, struct jin_undefined what)
{
    struct jin_undefined *u = jin_take(h, sizeof *u);
    *u = what;
    return (struct jin_value){ .type = JIN_UNDEFINED, .undefined = u };
}

struct jin_value jin_undefined_name(struct jin_heap *h, const struct jin_string *name)
{
    return undefined(h, (struct jin_undefined){ .name = jin_of(name) });
}

struct jin_value jin_undefined_of(struct jin *j, struct jin_value owner, struct jin_value name)
{
    const char *type = owner.type == JIN_NONE ? "None" : jin_type_name(owner);
    return undefined(&j->heap, (struct jin_undefined){ .owner = type, .name = name });
}

struct jin_value jin_undefined_hint(struct jin *j, const char *hint)
{
    return undefined(&j->heap, (struct jin_undefined){ .hint = hint });
}

__attribute__((noreturn)) static void fail_undefined(struct jin *j, struct jin_value v)
{
    const struct jin_undefined *u = v.undefined;
    if (u->hint)
        JIN_FAIL(j, "%s", u->hint);
    struct jin_builder b = { .j = j };
    jin_repr(&b, u->name);
    struct jin_value name = jin_built(&b);
    int n = (int)(name.s->n < 200 ? name.s->n : 200);
    if (!u->owner)
        JIN_FAIL(j, "%.*s is undefined", n, name.s->data);
    const char *object = strcmp(u->owner, "None") ? " object" : "";
    if (u->name.type == JIN_STRING)
        JIN_FAIL(j, "'%s%s' has no attribute %.*s", u->owner, object, n, name.s->data);
    JIN_FAIL(j, "%s%s has no element %.*s", u->owner, object, n, name.s->data);
}

void jin_need(struct jin *j, struct jin_value v)
{
    if (v.type == JIN_UNDEFINED)
        fail_undefined(j, v);
}

/* ---- equality and order ---------------------------------------------------------------------- */

static void enter(struct jin *j)
{
    jin_charge(j, 1);
    if (--j->depth < 0)
        JIN_FAIL(j, "values nested too deeply");
}

static bool lists_equal(struct jin *j, const struct jin_list *a, const struct jin_list *b)
{
    bool equal = a->n == b->n;
    enter(j);
    for (size_t i = 0; equal && i < a->n; i++)
        equal = jin_same(a->item[i], b->item[i]) || jin_equal(j, a->item[i], b->item[i]);
    j->depth++;
    return equal;
}

static bool dicts_equal(struct jin *j, const struct jin_dict *a, const struct jin_dict *b)
{
    bool equal = a->n == b->n;
    enter(j);
    for (size_t i = 0; equal && i < a->n; i++) {
        const struct jin_value *other = jin_dict_find(j, b, a->pair[i].key);
        equal = other && (jin_same(*other, a->pair[i].value) || jin_equal(j, a->pair[i].value, *other));
    }
    j->depth++;
    return equal;
}

bool jin_same(struct jin_value a, struct jin_value b)
{
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case JIN_NONE:
        return true;
    case JIN_BOOL:
        return a.b == b.b;
    case JIN_MISSING:
    case JIN_UNDEFINED:
    case JIN_INT:
    case JIN_FLOAT:
        return false;
    default:
        return a.list == b.list; /* compares whichever pointer the union holds */
    }
}

bool jin_equal(struct jin *j, struct jin_value a, struct jin_value b)
{
    if (jin_is_number(a) && jin_is_number(b))
        return jin_compare_numbers(a, b) == 0;
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case JIN_UNDEFINED:
        return true;
    case JIN_STRING:
        jin_charge(j, a.s->n / 64);
        return jin_string_equal(a.s, b.s);
    case JIN_LIST:
    case JIN_TUPLE:
        return lists_equal(j, a.list, b.list);
    case JIN_DICT:
        return dicts_equal(j, a.dict, b.dict);
    case JIN_RANGE:
        return a.range->n == b.range->n && (!a.range->n || (a.range->start == b.range->start &&
                                                            (a.range->n == 1 || a.range->step == b.range->step)));
    case JIN_VIEW:
        if (a.view->of != b.view->of || a.view->of != JIN_VALUES)
            JIN_FAIL(j, "comparing the views of dicts is not supported");
        return a.view == b.view;
    default:
        return jin_same(a, b);
    }
}

/* -1, 0 or 1; bytes of UTF-8 sort in the order of their code points. */
static int compare_strings(const struct jin_string *a, const struct jin_string *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->data, b->data, n) : 0;
    return c ? (c > 0) - (c < 0) : (a->n > b->n) - (a->n < b->n);
}

static bool holds(int c, const char *op) { return op[0] == '<' ? c < 0 || (op[1] && !c) : c == 1 || (op[1] && !c); }

bool jin_less(struct jin *j, struct jin_value a, struct jin_value b, const char *op)
{
    jin_need(j, a);
    jin_need(j, b);
    jin_charge(j, 1);
    if (jin_is_number(a) && jin_is_number(b)) {
        int c = jin_compare_numbers(a, b);
        return c != 2 && holds(c, op);
    }
    if (a.type == JIN_STRING && b.type == JIN_STRING)
        return holds(compare_strings(a.s, b.s), op);
    if ((a.type == JIN_LIST || a.type == JIN_TUPLE) && b.type == a.type) {
        size_t i = 0;
        while (i < a.list->n && i < b.list->n && jin_equal(j, a.list->item[i], b.list->item[i]))
            i++;
        if (i == a.list->n || i == b.list->n)
            return holds((a.list->n > b.list->n) - (a.list->n < b.list->n), op);
        enter(j);
        bool less = jin_less(j, a.list->item[i], b.list->item[i], op);
        j->depth++;
        return less;
    }
    JIN_FAIL(j, "'%s' not supported between instances of '%s' and '%s'", op, jin_type_name(a), jin_type_name(b));
}

int64_t jin_length(struct jin *j, struct jin_value v)
{
    switch (v.type) {
    case JIN_UNDEFINED:
        return 0;
    case JIN_STRING:
        jin_charge(j, v.s->n_char < 0 ? v.s->n / 16 : 0);
        return (int64_t)jin_n_char(v.s);
    case JIN_LIST:
    case JIN_TUPLE:
        return (int64_t)v.list->n;
    case JIN_DICT:
        return (int64_t)v.dict->n;
    case JIN_VIEW:
        return (int64_t)v.view->dict->n;
    case JIN_RANGE:
        return (int64_t)v.range->n;
    case JIN_LOOP:
        return jin_loop_length(j, v.loop);
    default:
        return -1;
    }
}

bool jin_contains(struct jin *j, struct jin_value in, struct jin_value what)
{
    if (in.type == JIN_STRING) {
        if (what.type != JIN_STRING)
            JIN_FAIL(j, "'in <string>' requires string as left operand, not %s", jin_type_name(what));
        return jin_find(j, in.s, 0, what.s) >= 0;
    }
    if (in.type == JIN_DICT || (in.type == JIN_VIEW && in.view->of == JIN_KEYS))
        return jin_dict_find(j, in.type == JIN_DICT ? in.dict : in.view->dict, what);
    if (in.type == JIN_UNDEFINED)
        return false;
    if (!jin_iterable(in))
        JIN_FAIL(j, "argument of type '%s' is not iterable", jin_type_name(in));
    struct jin_iterator *it = jin_iterate(j, in);
    for (struct jin_value v; (v = jin_next(j, it)).type != JIN_MISSING;)
        if (jin_same(v, what) || jin_equal(j, v, what))
            return true;
    return false;
}

/* ---- lists ----------------------------------------------------------------------------------- */

struct jin_value jin_list_new(struct jin *j, enum jin_type type, const struct jin_value *item, size_t n)
{
    struct jin_list *l = jin_take(&j->heap, sizeof *l);
    *l = (struct jin_list){ n, item };
    return (struct jin_value){ .type = (uint8_t)type, .list = l };
}

void jin_items_add(struct jin *j, struct jin_items *l, struct jin_value v)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 8;
        struct jin_value *grown = jin_take_n(&j->heap, room, sizeof *grown);
        if (l->n)
            memcpy(grown, l->item, l->n * sizeof *grown);
        l->item = grown;
        l->room = room;
    }
    l->item[l->n++] = v;
}

struct jin_value jin_items_done(struct jin *j, struct jin_items *l, enum jin_type type)
{
    return jin_list_new(j, type, l->item, l->n);
}

/* ---- dicts ----------------------------------------------------------------------------------- */

#define FEW 8 /* dicts up to this size are searched linearly */

bool jin_hashable(struct jin *j, struct jin_value v)
{
    bool yes = v.type != JIN_LIST && v.type != JIN_DICT && v.type != JIN_VIEW;
    if (v.type != JIN_TUPLE)
        return yes;
    enter(j);
    for (size_t i = 0; i < v.list->n && yes; i++)
        yes = jin_hashable(j, v.list->item[i]);
    j->depth++;
    return yes;
}

static uint64_t hash(struct jin *j, struct jin_value v)
{
    uint64_t h = j->hash_seed ^ v.type, word;
    int64_t whole;
    if (v.type == JIN_STRING) {
        size_t i = 0;
        for (; i + 8 <= v.s->n; i += 8) {
            memcpy(&word, v.s->data + i, 8);
            h = kn_mix((h ^ word) * KN_GOLDEN);
        }
        word = 0;
        memcpy(&word, v.s->data + i, v.s->n - i);
        jin_charge(j, v.s->n / 64);
        return kn_mix((h ^ word) * KN_GOLDEN + v.s->n);
    }
    if (jin_is_integer(v))
        return kn_mix(j->hash_seed + (uint64_t)jin_integer(v));
    if (v.type == JIN_FLOAT) { /* 1.0 and 1 are the same key */
        if (jin_float_to_int(v.f, &whole) && (double)whole == v.f)
            return kn_mix(j->hash_seed + (uint64_t)whole);
        memcpy(&word, &v.f, 8);
        return kn_mix(h ^ word);
    }
    if (v.type == JIN_TUPLE) {
        enter(j);
        for (size_t i = 0; i < v.list->n; i++)
            h = kn_mix(h * KN_GOLDEN + hash(j, v.list->item[i]));
        j->depth++;
        return h;
    }
    if (!jin_hashable(j, v))
        JIN_FAIL(j, "unhashable type: '%s'", jin_type_name(v));
    return v.type == JIN_UNDEFINED || v.type == JIN_NONE ? kn_mix(h) : kn_mix(h ^ (uintptr_t)v.list);
}

struct jin_dict *jin_dict_new(struct jin *j, size_t room)
{
    struct jin_dict *d = jin_take(&j->heap, sizeof *d);
    *d = (struct jin_dict){ .room = room, .pair = jin_take_n(&j->heap, room, sizeof *d->pair) };
    return d;
}

struct jin_value jin_dict_value(struct jin_dict *d) { return (struct jin_value){ .type = JIN_DICT, .dict = d }; }

static void put_index(struct jin_dict *d, size_t at)
{
    size_t mask = 2 * d->room - 1, slot = d->pair[at].hash & mask;
    while (d->index[slot])
        slot = (slot + 1) & mask;
    d->index[slot] = (uint32_t)at + 1;
}

static struct jin_pair *find(struct jin *j, const struct jin_dict *d, struct jin_value key, uint64_t h)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->pair[i].hash == h && jin_equal(j, d->pair[i].key, key))
                return &d->pair[i];
        return NULL;
    }
    for (size_t mask = 2 * d->room - 1, slot = h & mask; d->index[slot]; slot = (slot + 1) & mask) {
        struct jin_pair *p = &d->pair[d->index[slot] - 1];
        if (p->hash == h && jin_equal(j, p->key, key))
            return p;
    }
    return NULL;
}

static void grow(struct jin *j, struct jin_dict *d)
{
    size_t room = 2 * FEW;
    while (room <= d->n)
        room *= 2;
    if (room > UINT32_MAX / 4)
        JIN_FAIL(j, "a dict of more than %zu entries", d->n);
    struct jin_pair *pair = jin_take_n(&j->heap, room, sizeof *pair);
    if (d->n)
        memcpy(pair, d->pair, d->n * sizeof *pair);
    d->pair = pair;
    d->room = room;
    d->index = NULL;
}

void jin_dict_put(struct jin *j, struct jin_dict *d, struct jin_value key, struct jin_value value)
{
    uint64_t h = hash(j, key);
    struct jin_pair *p = find(j, d, key, h);
    if (p) {
        p->value = value;
        return;
    }
    if (d->n == d->room)
        grow(j, d);
    d->pair[d->n++] = (struct jin_pair){ key, value, h };
    if (d->index) {
        put_index(d, d->n - 1);
    } else if (d->n > FEW) {
        if (d->room & (d->room - 1))
            grow(j, d); /* room must be a power of two for the mask */
        d->index = jin_take_n(&j->heap, 2 * d->room, sizeof *d->index);
        memset(d->index, 0, 2 * d->room * sizeof *d->index);
        for (size_t i = 0; i < d->n; i++)
            put_index(d, i);
    }
}

const struct jin_value *jin_dict_find(struct jin *j, const struct jin_dict *d, struct jin_value key)
{
    struct jin_pair *p = find(j, d, key, hash(j, key));
    return p ? &p->value : NULL;
}

const struct jin_value *jin_dict_find_text(struct jin *j, const struct jin_dict *d, const struct jin_string *key)
{
    return jin_dict_find(j, d, jin_of(key));
}
