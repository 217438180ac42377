/* engine/text/jinja/evaluate.c - evaluates expressions. */
#include "engine/text/jinja/internal.h"

static struct jin_value name_value(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    for (int i = 0; i < n->up; i++)
        env = env->up;
    struct jin_value v = env->slot[n->slot];
    return v.type == JIN_MISSING ? jin_undefined_name(&j->heap, n->name) : v;
}

static struct jin_value list_value(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_items items = { 0 };
    for (const struct jin_node *i = n->a; i; i = i->next)
        jin_items_add(j, &items, jin_evaluate(j, env, i));
    return jin_items_done(j, &items, n->kind == JIN_N_LIST ? JIN_LIST : JIN_TUPLE);
}

static struct jin_value dict_value(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_dict *d = jin_dict_new(j, 4);
    for (const struct jin_node *i = n->a; i; i = i->next->next) {
        struct jin_value key = jin_evaluate(j, env, i);
        jin_dict_put(j, d, key, jin_evaluate(j, env, i->next));
    }
    return jin_dict_value(d);
}

static struct jin_value item_value(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_value of = jin_evaluate(j, env, n->a), part[3];
    if (n->b->kind != JIN_N_SLICE)
        return jin_item(j, of, jin_evaluate(j, env, n->b));
    const struct jin_node *bound[3] = { n->b->a, n->b->b, n->b->c };
    for (int i = 0; i < 3; i++)
        part[i] = bound[i] ? jin_evaluate(j, env, bound[i]) : jin_missing();
    return jin_slice(j, of, part[0], part[1], part[2]);
}

/* The operator ~: joins values as text.  The left side is not copied if its tail buffer can be extended
 * (jin_concat). */
static struct jin_value concat_value(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_items parts = { 0 };
    for (const struct jin_node *i = n->a; i; i = i->next)
        jin_items_add(j, &parts, jin_evaluate(j, env, i));
    struct jin_value v = jin_of(jin_str(j, parts.item[0]));
    for (size_t i = 1; i < parts.n; i++)
        v = jin_concat(j, v.s, jin_str(j, parts.item[i]));
    return v;
}

static bool compare(struct jin *j, int op, struct jin_value a, struct jin_value b)
{
    switch (op) {
    case '=':
        return jin_equal(j, a, b);
    case '!':
        return !jin_equal(j, a, b);
    case 'i':
        return jin_contains(j, b, a);
    case 'n':
        return !jin_contains(j, b, a);
    default:
        return jin_less(j, a, b, op == '<' ? "<" : op == 'l' ? "<=" : op == '>' ? ">" : ">=");
    }
}

/* As in Python, a < b < c means a < b and b < c. */
static struct jin_value compare_value(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_value left = jin_evaluate(j, env, n->a);
    for (const struct jin_node *c = n->b; c; c = c->next) {
        struct jin_value right = jin_evaluate(j, env, c->a);
        j->heap.line = n->line;
        if (!compare(j, c->op, left, right))
            return jin_bool(false);
        left = right;
    }
    return jin_bool(true);
}

static struct jin_value condition_value(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    if (jin_truth(jin_evaluate(j, env, n->a)))
        return jin_evaluate(j, env, n->b);
    if (n->c)
        return jin_evaluate(j, env, n->c);
    return jin_undefined_hint(j, "the inline if-expression evaluated to false and no else section was defined.");
}

static struct jin_value call_value(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_value f = jin_evaluate(j, env, n->a);
    struct jin_args args = jin_args_of(j, env, n->params, NULL);
    j->heap.line = n->line;
    return jin_call_value(j, f, &args);
}

/* Evaluates a chain of filters.  In a filter block the innermost filter has no input node; its input is
 * `captured`. */
struct jin_value jin_filter_chain(struct jin *j, struct jin_env *env, const struct jin_node *n,
                                  struct jin_value captured)
{
    struct jin_value input = !n->a                        ? captured
                             : n->a->kind == JIN_N_FILTER ? jin_filter_chain(j, env, n->a, captured)
                                                          : jin_evaluate(j, env, n->a);
    struct jin_args args = jin_args_of(j, env, n->params, NULL);
    j->heap.line = n->line;
    return jin_filter_call(j, n->found, n->name, input, &args);
}

static struct jin_value test_value(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_value v = jin_evaluate(j, env, n->a);
    struct jin_args args = jin_args_of(j, env, n->params, NULL);
    j->heap.line = n->line;
    return jin_bool(jin_test_call(j, n->found, n->name, v, &args));
}

static struct jin_value binary_value(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_value a = jin_evaluate(j, env, n->a), b = jin_evaluate(j, env, n->b);
    j->heap.line = n->line;
    return jin_arithmetic(j, n->op, a, b);
}

static struct jin_value evaluate(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_value v;
    switch ((enum jin_kind)n->kind) {
    case JIN_N_CONST:
        return n->value;
    case JIN_N_NAME:
        return name_value(j, env, n);
    case JIN_N_LIST:
    case JIN_N_TUPLE:
        return list_value(j, env, n);
    case JIN_N_DICT:
        return dict_value(j, env, n);
    case JIN_N_ATTRIBUTE:
        v = jin_evaluate(j, env, n->a);
        j->heap.line = n->line;
        return jin_attribute(j, v, n->name);
    case JIN_N_ITEM:
        return item_value(j, env, n);
    case JIN_N_CALL:
        return call_value(j, env, n);
    case JIN_N_FILTER:
        return jin_filter_chain(j, env, n, jin_missing());
    case JIN_N_TEST:
        return test_value(j, env, n);
    case JIN_N_NOT:
        return jin_bool(!jin_truth(jin_evaluate(j, env, n->a)));
    case JIN_N_NEGATIVE:
    case JIN_N_POSITIVE:
        v = jin_evaluate(j, env, n->a);
        return jin_negate(j, v, n->kind == JIN_N_NEGATIVE);
    case JIN_N_AND:
        v = jin_evaluate(j, env, n->a);
        return jin_truth(v) ? jin_evaluate(j, env, n->b) : v;
    case JIN_N_OR:
        v = jin_evaluate(j, env, n->a);
        return jin_truth(v) ? v : jin_evaluate(j, env, n->b);
    case JIN_N_BINARY:
        return binary_value(j, env, n);
    case JIN_N_CONCAT:
        return concat_value(j, env, n);
    case JIN_N_COMPARE:
        return compare_value(j, env, n);
    case JIN_N_CONDITION:
        return condition_value(j, env, n);
    default:
        kn_assert(!"an expression");
        return jin_none();
    }
}

struct jin_value jin_evaluate(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    j->heap.line = n->line;
    jin_charge(j, 1);
    if (--j->depth < 0)
        JIN_FAIL(j, "nested too deeply, or calls without end");
    struct jin_value v = evaluate(j, env, n);
    j->depth++;
    return v;
}
