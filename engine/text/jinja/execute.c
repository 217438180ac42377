/* engine/text/jinja/execute.c - executes statements: output, assignments, loops and blocks. */
#include "engine/text/jinja/internal.h"

/* ---- environments ---------------------------------------------------------------------------- */

struct jin_env *jin_env_new(struct jin *j, const struct jin_scope *scope, struct jin_env *up)
{
    struct jin_env *env = jin_take(&j->heap, sizeof *env + (size_t)scope->n * sizeof *env->slot);
    env->up = up;
    env->scope = scope;
    for (int i = 0; i < scope->n; i++)
        env->slot[i] = jin_missing();
    return env;
}

static struct jin_value resolve(struct jin *j, const struct jin_string *name)
{
    const struct jin_value *v = jin_dict_find_text(j, j->variables, name);
    struct jin_value global;
    return v ? *v : jin_global(name, &global) ? global : jin_missing();
}

/* Sets the first value of every slot except parameters. */
void jin_env_enter(struct jin *j, struct jin_env *env)
{
    for (int i = 0; i < env->scope->n; i++) {
        const struct jin_slot *s = &env->scope->slot[i];
        const struct jin_env *from = env->up;
        switch (s->load) {
        case JIN_LOAD_PARAMETER:
            break;
        case JIN_LOAD_RESOLVE:
            env->slot[i] = resolve(j, s->name);
            break;
        case JIN_LOAD_ALIAS:
            for (int up = 0; up < s->up; up++)
                from = from->up;
            env->slot[i] = from->slot[s->from];
            break;
        case JIN_LOAD_UNDEFINED:
            env->slot[i] = jin_missing();
        }
    }
}

/* ---- assignment ------------------------------------------------------------------------------ */

static struct jin_value *place(struct jin_env *env, const struct jin_node *n)
{
    for (int i = 0; i < n->up; i++)
        env = env->up;
    return &env->slot[n->slot];
}

static void unpack(struct jin *j, struct jin_env *env, const struct jin_node *target, struct jin_value v)
{
    size_t n = 0;
    struct jin_value item;
    jin_need(j, v);
    if (!jin_iterable(v))
        JIN_FAIL(j, "cannot unpack non-iterable %s object", jin_type_name(v));
    struct jin_items items = { 0 };
    for (const struct jin_node *t = target; t; t = t->next)
        n++;
    struct jin_iterator *it = jin_iterate(j, v);
    while (items.n <= n && (item = jin_next(j, it)).type != JIN_MISSING)
        jin_items_add(j, &items, item);
    if (items.n > n)
        JIN_FAIL(j, "too many values to unpack (expected %zu)", n);
    if (items.n < n)
        JIN_FAIL(j, "not enough values to unpack (expected %zu, got %zu)", n, items.n);
    size_t i = 0;
    for (const struct jin_node *t = target; t; t = t->next)
        jin_assign(j, env, t, items.item[i++]);
}

static void check_namespaces(struct jin *j, struct jin_env *env, const struct jin_node *target)
{
    if (target->kind == JIN_N_NSREF && place(env, target)->type != JIN_NAMESPACE)
        JIN_FAIL(j, "cannot assign attribute on non-namespace object");
    for (const struct jin_node *t = target->kind == JIN_N_TUPLE ? target->a : NULL; t; t = t->next)
        check_namespaces(j, env, t);
}

void jin_assign(struct jin *j, struct jin_env *env, const struct jin_node *target, struct jin_value v)
{
    if (target->kind == JIN_N_TUPLE) {
        unpack(j, env, target->a, v);
    } else if (target->kind == JIN_N_NAME) {
        *place(env, target) = v;
    } else {
        if (target->value.s->data[0] == '_')
            JIN_FAIL(j, "Chat templates cannot store underscore-prefixed attributes on a namespace");
        jin_dict_put(j, place(env, target)->dict, target->value, v);
    }
}

/* ---- loops ----------------------------------------------------------------------------------- */

struct jin_value jin_loop_peek(struct jin *j, struct jin_loop *l)
{
    if (l->after.type == JIN_MISSING)
        l->after = jin_next(j, l->items);
    return l->after;
}

int64_t jin_loop_length(struct jin *j, struct jin_loop *l)
{
    if (l->length < 0)
        l->length = l->over.type == JIN_MISSING ? -1 : jin_length(j, l->over);
    if (l->length < 0) { /* of a generator: make all remaining items to count them */
        struct jin_list *rest = jin_collect(j, jin_iterator_value(l->items));
        l->length = (int64_t)rest->n + l->index0 + 1 + (l->after.type != JIN_MISSING);
        l->items = jin_iterate(j, jin_list_new(j, JIN_LIST, rest->item, rest->n));
    }
    return l->length;
}

static bool loop_next(struct jin *j, struct jin_loop *l, struct jin_value *out)
{
    *out = l->after.type != JIN_MISSING ? l->after : jin_next(j, l->items);
    l->after = jin_missing();
    if (out->type == JIN_MISSING)
        return false;
    l->index0++;
    l->before = l->current;
    l->current = *out;
    return true;
}

/* {% for x in y if test %}: a generator of the items that pass the test. */
struct filtered {
    const struct jin_node *node;
    struct jin_env *env;
};

static struct jin_value next_passing(struct jin *j, struct jin_iterator *it)
{
    const struct filtered *f = it->state;
    for (struct jin_value v; (v = jin_next(j, it->inner)).type != JIN_MISSING;) {
        jin_assign(j, f->env, f->node->a, v);
        if (jin_truth(jin_evaluate(j, f->env, f->node->e)))
            return v;
    }
    return jin_missing();
}

static struct jin_iterator *filter_items(struct jin *j, struct jin_env *up, const struct jin_node *n,
                                         struct jin_iterator *items)
{
    struct filtered *f = jin_take(&j->heap, sizeof *f);
    *f = (struct filtered){ n, jin_env_new(j, n->scope[2], up) };
    jin_env_enter(j, f->env);
    struct jin_iterator *it = jin_generator(j, jin_none(), f, next_passing);
    it->inner = items;
    return it;
}

static enum jin_flow run_for(struct jin *j, struct jin_env *up, const struct jin_node *n, struct jin_value over,
                             int64_t depth0)
{
    struct jin_loop *l = jin_take(&j->heap, sizeof *l);
    *l = (struct jin_loop){
        .node = n, .up = up, .over = n->e ? jin_missing() : over, .index0 = -1, .length = -1, .depth0 = depth0
    };
    l->items = jin_iterate(j, over);
    if (n->e)
        l->items = filter_items(j, up, n, l->items);
    struct jin_env *env = jin_env_new(j, n->scope[0], up);
    enum jin_flow flow = JIN_ON;
    bool finished = false; /* an iteration reached the end of the body, so the else body is not executed */
    for (struct jin_value v; flow != JIN_BREAK && loop_next(j, l, &v);) {
        env->slot[0] = n->extended ? (struct jin_value){ .type = JIN_LOOP, .loop = l } : jin_missing();
        jin_assign(j, env, n->a, v);
        jin_env_enter(j, env);
        flow = jin_execute(j, env, n->c);
        finished |= flow == JIN_ON;
    }
    if (finished || !n->d)
        return JIN_ON;
    struct jin_env *other = jin_env_new(j, n->scope[1], up);
    jin_env_enter(j, other);
    return jin_execute(j, other, n->d);
}

struct jin_value jin_loop_call(struct jin *j, struct jin_loop *loop, const struct jin_args *args)
{
    struct jin_value over;
    jin_bind(j, "loop", args, "iterable", 1, &over);
    if (!loop->node->recursive)
        JIN_FAIL(j, "The loop must have the 'recursive' marker to be called recursively.");
    size_t begin = j->n_out;
    run_for(j, loop->up, loop->node, over, loop->depth0 + 1);
    return jin_capture_end(j, begin);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void print_value(struct jin *j, struct jin_value v)
{
    const struct jin_string *s = jin_str(j, v);
    jin_print(j, s->data, s->n);
}

/* Prints the result of a call or filter block, which must be text: a number fails, as in jinja2. */
static void print_block(struct jin *j, struct jin_value v)
{
    if (v.type != JIN_STRING)
        JIN_FAIL(j, "the block gives %s where text is expected", jin_type_name(v));
    jin_print(j, v.s->data, v.s->n);
}

static enum jin_flow set_block(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_env *own = jin_env_new(j, n->own, env);
    size_t begin = j->n_out;
    jin_env_enter(j, own);
    enum jin_flow flow = jin_execute(j, own, n->c);
    struct jin_value v = jin_capture_end(j, begin);
    if (flow != JIN_ON)
        return flow;
    if (n->b)
        v = jin_filter_chain(j, own, n->b, v);
    check_namespaces(j, env, n->a);
    jin_assign(j, env, n->a, v);
    return JIN_ON;
}

static enum jin_flow filter_block(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_env *own = jin_env_new(j, n->own, env);
    size_t begin = j->n_out;
    jin_env_enter(j, own);
    enum jin_flow flow = jin_execute(j, own, n->c);
    struct jin_value v = jin_capture_end(j, begin);
    if (flow == JIN_ON)
        print_block(j, jin_filter_chain(j, own, n->b, v));
    return flow;
}

static void call_block(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_value caller = jin_macro_new(j, env, n);
    struct jin_args none = { 0 };
    if (!n->d) { /* {% generation %} */
        print_value(j, jin_macro_call(j, caller.macro, &none));
        return;
    }
    struct jin_value f = jin_evaluate(j, env, n->d->a);
    struct jin_args args = jin_args_of(j, env, n->d->params, &caller);
    j->heap.line = n->line;
    print_block(j, jin_call_value(j, f, &args));
}

static enum jin_flow with_block(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_env *own = jin_env_new(j, n->own, env);
    const struct jin_node *value = n->b;
    jin_env_enter(j, own);
    for (const struct jin_node *t = n->a; t; t = t->next, value = value->next)
        jin_assign(j, own, t, jin_evaluate(j, env, value));
    return jin_execute(j, own, n->c);
}

static enum jin_flow if_block(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    for (;;) {
        if (jin_truth(jin_evaluate(j, env, n->a)))
            return jin_execute(j, env, n->b);
        if (!n->elif)
            return jin_execute(j, env, n->c);
        n = n->c;
    }
}

static enum jin_flow execute(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    switch ((enum jin_kind)n->kind) {
    case JIN_N_TEXT:
        jin_print(j, n->value.s->data, n->value.s->n);
        return JIN_ON;
    case JIN_N_PRINT:
        print_value(j, jin_evaluate(j, env, n->a));
        return JIN_ON;
    case JIN_N_IF:
        return if_block(j, env, n);
    case JIN_N_FOR:
        return run_for(j, env, n, jin_evaluate(j, env, n->b), 0);
    case JIN_N_SET:
        check_namespaces(j, env, n->a);
        jin_assign(j, env, n->a, jin_evaluate(j, env, n->b));
        return JIN_ON;
    case JIN_N_SET_BLOCK:
        return set_block(j, env, n);
    case JIN_N_MACRO:
        *place(env, n) = jin_macro_new(j, env, n);
        return JIN_ON;
    case JIN_N_CALL_BLOCK:
        call_block(j, env, n);
        return JIN_ON;
    case JIN_N_FILTER_BLOCK:
        return filter_block(j, env, n);
    case JIN_N_WITH:
        return with_block(j, env, n);
    case JIN_N_BREAK:
        return JIN_BREAK;
    case JIN_N_CONTINUE:
        return JIN_CONTINUE;
    default:
        kn_assert(!"a statement");
        return JIN_ON;
    }
}

enum jin_flow jin_execute(struct jin *j, struct jin_env *env, const struct jin_node *list)
{
    enum jin_flow flow = JIN_ON;
    if (--j->depth < 0)
        JIN_FAIL(j, "nested too deeply, or calls without end");
    for (; list && flow == JIN_ON; list = list->next) {
        j->heap.line = list->line;
        jin_charge(j, 1);
        flow = execute(j, env, list);
    }
    j->depth++;
    return flow;
}
