/* engine/text/jinja/macro.c - calls of macros, functions and methods: binds arguments to parameters. */
#include "engine/text/jinja/internal.h"

/* ---- arguments ------------------------------------------------------------------------------- */

static void add_keyword(struct jin *j, struct jin_args *a, int *room, const struct jin_string *name,
                        struct jin_value value)
{
    for (int i = 0; i < a->n_keyword; i++)
        if (jin_string_equal(a->keyword[i].name, name))
            JIN_FAIL(j, "got multiple values for keyword argument '%.*s'", (int)(name->n < 60 ? name->n : 60),
                     name->data);
    if (a->n_keyword == *room) {
        if (a->n_keyword >= 1000)
            JIN_FAIL(j, "more than %d keyword arguments", a->n_keyword);
        struct jin_keyword *grown = jin_take_n(&j->heap, (size_t)(*room = 2 * *room + 4), sizeof *grown);
        if (a->n_keyword)
            memcpy(grown, a->keyword, (size_t)a->n_keyword * sizeof *grown);
        a->keyword = grown;
    }
    a->keyword[a->n_keyword++] = (struct jin_keyword){ name, value };
}

struct jin_args jin_args_of(struct jin *j, struct jin_env *env, const struct jin_params *p,
                            const struct jin_value *caller)
{
    struct jin_args a = { 0 };
    struct jin_items position = { 0 };
    struct jin_value v;
    int room = 0;
    if (!p)
        return a;
    for (const struct jin_node *n = p->position; n; n = n->next)
        jin_items_add(j, &position, jin_evaluate(j, env, n));
    if (p->star) {
        struct jin_iterator *it = jin_iterate(j, jin_evaluate(j, env, p->star));
        while ((v = jin_next(j, it)).type != JIN_MISSING)
            jin_items_add(j, &position, v);
    }
    for (const struct jin_node *n = p->keyword; n; n = n->next)
        add_keyword(j, &a, &room, n->name, jin_evaluate(j, env, n->a));
    if (caller)
        add_keyword(j, &a, &room, jin_text(j, "caller").s, *caller);
    if (p->star_star) {
        v = jin_evaluate(j, env, p->star_star);
        if (v.type != JIN_DICT)
            JIN_FAIL(j, "argument after ** must be a mapping, not %s", jin_type_name(v));
        for (size_t i = 0; i < v.dict->n; i++) {
            if (v.dict->pair[i].key.type != JIN_STRING)
                JIN_FAIL(j, "keywords must be strings");
            add_keyword(j, &a, &room, v.dict->pair[i].key.s, v.dict->pair[i].value);
        }
    }
    a.position = position.item;
    a.n = (int)(position.n < 100000 ? position.n : 100000);
    if (position.n > 100000)
        JIN_FAIL(j, "more than %d arguments", a.n);
    return a;
}

/* The index of a name in `names`, a list such as "one two three"; -1: not in the list. */
static int place(const char *names, const struct jin_string *name)
{
    for (int i = 0; *names; i++) {
        size_t n = strcspn(names, " ");
        if (n == name->n && !memcmp(names, name->data, n))
            return i;
        names += n + (names[n] == ' ');
    }
    return -1;
}

void jin_bind(struct jin *j, const char *what, const struct jin_args *args, const char *names, int must,
              struct jin_value *out)
{
    int n = 0;
    for (const char *c = names; *c; c++)
        n += c == names || *c == ' ';
    if (args->n > n)
        JIN_FAIL(j, "%s() takes at most %d arguments (%d given)", what, n, args->n);
    for (int i = 0; i < n; i++)
        out[i] = i < args->n ? args->position[i] : jin_missing();
    for (int i = 0; i < args->n_keyword; i++) {
        const struct jin_string *name = args->keyword[i].name;
        int at = place(names, name);
        if (at < 0)
            JIN_FAIL(j, "%s() got an unexpected keyword argument '%.*s'", what, (int)(name->n < 60 ? name->n : 60),
                     name->data);
        if (out[at].type != JIN_MISSING)
            JIN_FAIL(j, "%s() got multiple values for argument '%.*s'", what, (int)name->n, name->data);
        out[at] = args->keyword[i].value;
    }
    for (int i = 0; i < must; i++)
        if (out[i].type == JIN_MISSING)
            JIN_FAIL(j, "%s() lacks an argument: it takes %s", what, names);
}

/* ---- macros ---------------------------------------------------------------------------------- */

struct jin_value jin_macro_new(struct jin *j, struct jin_env *env, const struct jin_node *n)
{
    struct jin_macro *m = jin_take(&j->heap, sizeof *m);
    *m = (struct jin_macro){ n, env, n->name };
    return (struct jin_value){ .type = JIN_MACRO, .macro = m };
}

__attribute__((noreturn)) static void bad_call(struct jin *j, const struct jin_macro *m, const char *why, int n,
                                               const struct jin_string *name)
{
    const struct jin_string *own = m->name ? m->name : jin_text(j, "None").s;
    JIN_FAIL(j, "macro '%.*s' %s %.*s%.*d", (int)(own->n < 60 ? own->n : 60), own->data, why,
             name ? (int)(name->n < 60 ? name->n : 60) : 0, name ? name->data : "", n < 0 ? 0 : 1, n < 0 ? 0 : n);
}

/* Removes the keyword `name` (NULL: `text`) from list[*n] and returns its value; JIN_MISSING if absent. */
static struct jin_value pop(struct jin_keyword *list, int *n, const struct jin_string *name, const char *text)
{
    for (int i = 0; i < *n; i++)
        if (name ? jin_string_equal(list[i].name, name) : jin_string_is(list[i].name, text)) {
            struct jin_value v = list[i].value;
            memmove(list + i, list + i + 1, (size_t)(*n - i - 1) * sizeof *list);
            --*n;
            return v;
        }
    return jin_missing();
}

static void bind_macro(struct jin *j, const struct jin_macro *m, const struct jin_args *args, struct jin_value *slot)
{
    const struct jin_macro_info *info = m->node->macro;
    int n_keyword = args->n_keyword, i = 0;
    struct jin_keyword *keyword = jin_take_n(&j->heap, (size_t)n_keyword, sizeof *keyword);
    if (n_keyword)
        memcpy(keyword, args->keyword, (size_t)n_keyword * sizeof *keyword);
    bool found_caller = args->n >= info->n_parameter && info->explicit_caller;
    for (const struct jin_node *p = m->node->a; p; p = p->next, i++) {
        slot[i] = i < args->n ? args->position[i] : pop(keyword, &n_keyword, p->name, NULL);
        found_caller |= i >= args->n && jin_string_is(p->name, "caller");
    }
    if (info->speaks_of_caller && !found_caller && info->caller >= 0) {
        struct jin_value caller = pop(keyword, &n_keyword, NULL, "caller");
        slot[info->caller] = jin_given(caller) ? caller : jin_undefined_hint(j, "No caller defined");
    }
    if (info->kwargs >= 0) {
        struct jin_dict *d = jin_dict_new(j, 4);
        for (int k = 0; k < n_keyword; k++)
            jin_dict_put(j, d, jin_of(keyword[k].name), keyword[k].value);
        slot[info->kwargs] = jin_dict_value(d);
    } else if (n_keyword) {
        bad_call(j, m, "takes no keyword argument", -1, keyword[0].name);
    }
    int rest = args->n > info->n_parameter ? args->n - info->n_parameter : 0;
    if (info->varargs >= 0)
        slot[info->varargs] = jin_list_new(j, JIN_TUPLE, args->position + (rest ? info->n_parameter : 0), (size_t)rest);
    else if (rest)
        bad_call(j, m, "takes not more arguments than", info->n_parameter, NULL);
}

/* Evaluates the defaults of missing arguments, in order; each sees the parameters before it. */
static void fill_defaults(struct jin *j, const struct jin_macro *m, struct jin_env *env)
{
    const struct jin_macro_info *info = m->node->macro;
    const struct jin_node *value = m->node->b;
    int i = 0;
    for (const struct jin_node *p = m->node->a; p; p = p->next, i++) {
        bool has_default = i >= info->n_parameter - info->n_default;
        if (env->slot[i].type == JIN_MISSING)
            env->slot[i] = has_default ? jin_evaluate(j, env, value) : jin_undefined_name(&j->heap, p->name);
        value = has_default ? value->next : value;
    }
}

struct jin_value jin_macro_call(struct jin *j, const struct jin_macro *m, const struct jin_args *args)
{
    struct jin_env *env = jin_env_new(j, m->node->own, m->env);
    bind_macro(j, m, args, env->slot);
    jin_env_enter(j, env);
    fill_defaults(j, m, env);
    size_t begin = j->n_out;
    jin_execute(j, env, m->node->c);
    return jin_capture_end(j, begin);
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct jin_value jin_call_value(struct jin *j, struct jin_value f, const struct jin_args *args)
{
    switch (f.type) {
    case JIN_MACRO:
        return jin_macro_call(j, f.macro, args);
    case JIN_FUNCTION:
        return f.function->call(j, jin_none(), args);
    case JIN_METHOD:
        return f.method->function->call(j, f.method->self, args);
    case JIN_LOOP:
        return jin_loop_call(j, f.loop, args);
    case JIN_JOINER:
        jin_bind(j, "joiner", args, "", 0, NULL);
        if (f.joiner->used)
            return f.joiner->separator;
        f.joiner->used = true;
        return jin_text(j, "");
    default:
        jin_need(j, f);
        JIN_FAIL(j, "'%s' object is not callable", jin_type_name(f));
    }
}
