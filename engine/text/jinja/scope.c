/* engine/text/jinja/scope.c - resolves every name to a slot once, so that a rendering does not search.
 *
 * The scopes are those that jinja2 compiles to: the template; a loop's body, else and test; macros;
 * call, filter, set and with blocks.  An if has no scope.  A name that a scope assigns is a slot of
 * that scope from its beginning on.  The slot starts with the value of the outer scope's slot (alias),
 * with the template variable (resolve), or undefined.  A name that a scope only reads is the slot of
 * the nearest outer scope; if there is none, it is a slot of this scope (resolve). */
#include "engine/text/jinja/internal.h"

#define MAX_NAMES 2000 /* per scope: they are searched linearly */

struct name {
    const struct jin_string *name;
    struct jin_slot slot;
};

struct frame {
    struct frame *parent;
    struct jin_heap *heap;
    struct name *own; /* [n] */
    int n, room;
    int branch; /* number of ifs around the node being surveyed */
    const struct jin_string *word_loop, *word_caller, *word_kwargs, *word_varargs;
};

static int find_own(const struct frame *f, const struct jin_string *name)
{
    for (int i = 0; i < f->n; i++)
        if (f->own[i].name == name)
            return i;
    return -1;
}

static bool find(const struct frame *f, const struct jin_string *name, int *up, int *slot)
{
    for (*up = 0; f; f = f->parent, ++*up)
        if ((*slot = find_own(f, name)) >= 0)
            return true;
    return false;
}

static int define(struct frame *f, const struct jin_string *name, enum jin_load load, int up, int from)
{
    if (f->n == f->room) {
        if (f->n == MAX_NAMES)
            jin_fail(f->heap, "more than %d names in one scope", MAX_NAMES);
        struct name *grown = jin_take_n(f->heap, (size_t)(f->room = 2 * f->room + 8), sizeof *grown);
        if (f->n)
            memcpy(grown, f->own, (size_t)f->n * sizeof *grown);
        f->own = grown;
    }
    f->own[f->n] = (struct name){ name, { .load = load, .up = up, .from = from, .name = name } };
    return f->n++;
}

static int parameter(struct frame *f, const struct jin_string *name)
{
    int at = name ? find_own(f, name) : -1;
    if (at < 0)
        return define(f, name, JIN_LOAD_PARAMETER, 0, 0);
    f->own[at].slot.load = JIN_LOAD_PARAMETER;
    return at;
}

static void read_name(struct frame *f, const struct jin_string *name)
{
    int up, slot;
    if (!find(f, name, &up, &slot))
        define(f, name, JIN_LOAD_RESOLVE, 0, 0);
}

static void store_name(struct frame *f, const struct jin_string *name)
{
    int up, slot;
    if (find_own(f, name) >= 0)
        return;
    if (find(f->parent, name, &up, &slot))
        define(f, name, JIN_LOAD_ALIAS, up, slot);
    else
        define(f, name, f->branch ? JIN_LOAD_RESOLVE : JIN_LOAD_UNDEFINED, 0, 0);
}

/* ---- walking --------------------------------------------------------------------------------- */

#define MAX_PARTS 9

/* Stores the child lists of a node in part, in the order in which Jinja visits them; returns their number. */
static int parts_of(const struct jin_node *n, struct jin_node *part[MAX_PARTS])
{
    int k = 0;
    if (n->kind == JIN_N_CALL_BLOCK)
        part[k++] = n->d;
    if (n->kind == JIN_N_FILTER_BLOCK)
        part[k++] = n->c;
    part[k++] = n->a;
    part[k++] = n->b;
    if (n->kind != JIN_N_FILTER_BLOCK)
        part[k++] = n->c;
    if (n->kind == JIN_N_FOR) {
        part[k++] = n->d;
        part[k++] = n->e;
    }
    if ((n->kind == JIN_N_CALL || n->kind == JIN_N_FILTER || n->kind == JIN_N_TEST) && n->params) {
        part[k++] = n->params->position;
        part[k++] = n->params->keyword;
        part[k++] = n->params->star;
        part[k++] = n->params->star_star;
    }
    return k;
}

/* The first use of a name in the list and in the nodes below it: 1 the name is read, -1 it is assigned, 0 not used. */
static int spoken(const struct jin_node *list, const struct jin_string *name)
{
    struct jin_node *part[MAX_PARTS];
    for (const struct jin_node *n = list; n; n = n->next) {
        if (n->kind == JIN_N_NAME && n->name == name)
            return n->target ? -1 : 1;
        int k = parts_of(n, part);
        for (int i = 0; i < k; i++) {
            int found = spoken(part[i], name);
            if (found)
                return found;
        }
    }
    return 0;
}

/* Defines the slots of the names that are read and assigned in this scope (inner scopes excluded), in order. */
static void survey(struct frame *f, const struct jin_node *list)
{
    struct jin_node *part[MAX_PARTS];
    for (const struct jin_node *n = list; n; n = n->next)
        switch (n->kind) {
        case JIN_N_NAME:
            (n->target ? store_name : read_name)(f, n->name);
            break;
        case JIN_N_NSREF:
            read_name(f, n->name);
            break;
        case JIN_N_IF:
            survey(f, n->a);
            f->branch++;
            survey(f, n->b);
            survey(f, n->c);
            f->branch--;
            break;
        case JIN_N_SET:
            survey(f, n->b);
            survey(f, n->a);
            break;
        case JIN_N_FOR:
            survey(f, n->b);
            break;
        case JIN_N_SET_BLOCK:
            survey(f, n->a);
            break;
        case JIN_N_MACRO:
            store_name(f, n->name);
            break;
        case JIN_N_CALL_BLOCK:
            survey(f, n->d);
            break;
        case JIN_N_FILTER_BLOCK:
        case JIN_N_WITH:
            survey(f, n->b);
            break;
        default:
            for (int i = 0, k = parts_of(n, part); i < k; i++)
                survey(f, part[i]);
        }
}

static void declare(struct frame *f, const struct jin_node *target)
{
    for (; target; target = target->next)
        if (target->kind == JIN_N_TUPLE)
            declare(f, target->a);
        else
            parameter(f, target->name);
}

static void settle(struct frame *f, struct jin_node *list);

static struct jin_scope *scope_of(struct frame *f)
{
    struct jin_scope *s = jin_take(f->heap, sizeof *s);
    *s = (struct jin_scope){ f->n, jin_take_n(f->heap, (size_t)f->n, sizeof *s->slot) };
    for (int i = 0; i < f->n; i++)
        s->slot[i] = f->own[i].slot;
    return s;
}

static struct frame inner(struct frame *f)
{
    return (struct frame){ .parent = f,
                           .heap = f->heap,
                           .word_loop = f->word_loop,
                           .word_caller = f->word_caller,
                           .word_kwargs = f->word_kwargs,
                           .word_varargs = f->word_varargs };
}

/* The scopes of a FOR.  Slot 0 is `loop` in the body and unused in the test, so that the targets have the same
 * slots in body and test. */
static void settle_for(struct frame *f, struct jin_node *n)
{
    struct frame body = inner(f), other = inner(f), test = inner(f);
    settle(f, n->b);
    n->extended = n->recursive || spoken(n->c, f->word_loop) > 0;
    parameter(&body, n->extended ? f->word_loop : NULL);
    parameter(&test, NULL);
    declare(&body, n->a);
    declare(&test, n->a);
    survey(&body, n->c);
    survey(&other, n->d);
    survey(&test, n->e);
    settle(&body, n->a);
    settle(&body, n->c);
    settle(&other, n->d);
    settle(&test, n->e);
    n->scope[0] = scope_of(&body);
    n->scope[1] = scope_of(&other);
    n->scope[2] = scope_of(&test);
}

static void settle_macro(struct frame *f, struct jin_node *n)
{
    struct frame own = inner(f);
    struct jin_macro_info *m = n->macro;
    declare(&own, n->a); /* parameter i is slot i */
    survey(&own, n->b);
    survey(&own, n->c);
    if (spoken(n->c, f->word_caller) > 0) {
        if (!m->explicit_caller)
            m->caller = parameter(&own, f->word_caller);
        else if (m->n_default < m->n_parameter) {
            int i = 0;
            for (const struct jin_node *p = n->a; p; p = p->next, i++)
                if (p->name == f->word_caller && i < m->n_parameter - m->n_default) {
                    f->heap->line = n->line;
                    jin_fail(f->heap, "When defining macros or call blocks the special \"caller\" "
                                      "argument must be "
                                      "omitted or be given a default.");
                }
        }
        m->speaks_of_caller = true;
    }
    bool kwargs = false, varargs = false;
    for (const struct jin_node *p = n->a; p; p = p->next) {
        kwargs |= p->name == f->word_kwargs;
        varargs |= p->name == f->word_varargs;
    }
    if (!kwargs && spoken(n->c, f->word_kwargs) > 0)
        m->kwargs = parameter(&own, f->word_kwargs);
    if (!varargs && spoken(n->c, f->word_varargs) > 0)
        m->varargs = parameter(&own, f->word_varargs);
    settle(&own, n->b);
    settle(&own, n->c);
    n->own = scope_of(&own);
}

static void settle_block(struct frame *f, struct jin_node *n)
{
    struct frame own = inner(f);
    if (n->kind == JIN_N_WITH) {
        settle(f, n->b);
        declare(&own, n->a);
        settle(&own, n->a);
    }
    survey(&own, n->c);
    if (n->kind != JIN_N_WITH) {
        survey(&own, n->b);
        settle(&own, n->b);
    }
    settle(&own, n->c);
    if (n->kind == JIN_N_SET_BLOCK)
        settle(f, n->a);
    n->own = scope_of(&own);
}

/* Sets the members `up` and `slot` of every name in the list; the whole scope must have been surveyed. */
static void settle(struct frame *f, struct jin_node *list)
{
    struct jin_node *part[MAX_PARTS];
    for (struct jin_node *n = list; n; n = n->next) {
        if (n->kind == JIN_N_NAME || n->kind == JIN_N_NSREF || n->kind == JIN_N_MACRO) {
            bool found = find(f, n->name, &n->up, &n->slot);
            kn_assert(found);
        }
        if (n->kind == JIN_N_FOR) {
            settle_for(f, n);
        } else if (n->kind == JIN_N_MACRO) {
            settle_macro(f, n);
        } else if (n->kind == JIN_N_CALL_BLOCK) {
            settle(f, n->d);
            settle_macro(f, n);
        } else if (n->kind == JIN_N_SET_BLOCK || n->kind == JIN_N_FILTER_BLOCK || n->kind == JIN_N_WITH) {
            settle_block(f, n);
        } else {
            for (int i = 0, k = parts_of(n, part); i < k; i++)
                settle(f, part[i]);
        }
    }
}

void jin_resolve_names(struct jin_lexer *l, struct eng_template *t)
{
    struct frame root = { .heap = l->heap,
                          .word_loop = jin_intern(l, "loop", 4),
                          .word_caller = jin_intern(l, "caller", 6),
                          .word_kwargs = jin_intern(l, "kwargs", 6),
                          .word_varargs = jin_intern(l, "varargs", 7) };
    survey(&root, t->body);
    settle(&root, t->body);
    t->scope = scope_of(&root);
}
