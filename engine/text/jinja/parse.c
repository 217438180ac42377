/* engine/text/jinja/parse.c - tokens to the tree of a template: text, prints and statements. */
#include "engine/text/jinja/internal.h"

static struct jin_node *parse_until(struct jin_parser *p, const char *opened, int opened_at, const char *const *end);

static struct jin_node *body_of(struct jin_parser *p, const char *opened, const char *const *end)
{
    (void)jin_skip_op(p, ':');
    int opened_at = p->token.line;
    if (p->token.kind != JIN_T_BLOCK_END)
        jin_unexpected(p, "'%}'");
    jin_advance(p);
    return parse_until(p, opened, opened_at, end);
}

#define UNTIL(...)                                                                                                     \
    (const char *const[]) { __VA_ARGS__, NULL }

/* Parses a body up to the tag named `end`, and skips the tag's name.  opened: the enclosing block, for messages. */
static struct jin_node *body_to(struct jin_parser *p, const char *opened, const char *end)
{
    struct jin_node *body = body_of(p, opened, UNTIL(end));
    jin_advance(p);
    return body;
}

static struct jin_node *parse_if(struct jin_parser *p)
{
    bool soft = p->soft;
    int line = p->token.line, depth = p->depth;
    jin_advance(p);
    p->soft = true;
    struct jin_node *test = jin_parse_tuple(p, false, NULL);
    struct jin_node *then = body_of(p, "if", UNTIL("elif", "else", "endif"));
    struct jin_node *n = jin_node(p, JIN_N_IF, line, test, then, NULL);
    struct jin_node *last = n;
    while (jin_at_name(p, "elif")) {
        jin_deeper(p); /* each elif is nested in the if or elif before it */
        line = p->token.line;
        jin_advance(p);
        test = jin_parse_tuple(p, false, NULL);
        then = body_of(p, "if", UNTIL("elif", "else", "endif"));
        last->elif = true;
        last = last->c = jin_node(p, JIN_N_IF, line, test, then, NULL);
    }
    if (jin_skip_name(p, "else"))
        last->c = body_to(p, "if", "endif");
    else
        jin_advance(p);
    p->depth = depth;
    p->soft = soft;
    return n;
}

static struct jin_node *parse_for(struct jin_parser *p)
{
    bool soft = p->soft;
    int line = p->token.line, n_for = p->n_for, n_loop = p->n_loop;
    jin_advance(p);
    p->n_for++;
    struct jin_node *target = jin_parse_target(p, false, "in");
    if (!jin_skip_name(p, "in"))
        jin_unexpected(p, "'in'");
    struct jin_node *over = jin_parse_tuple(p, false, "recursive");
    p->soft = false;
    struct jin_node *test = jin_skip_name(p, "if") ? jin_parse_expression(p) : NULL;
    bool recursive = jin_skip_name(p, "recursive");
    p->n_loop = n_loop + 1;
    struct jin_node *body = body_of(p, "for", UNTIL("endfor", "else"));
    struct jin_node *n = jin_node(p, JIN_N_FOR, line, target, over, body);
    p->n_loop = recursive ? 0 : n_loop;
    if (jin_skip_name(p, "else"))
        n->d = body_to(p, "for", "endfor");
    else
        jin_advance(p);
    n->e = test;
    n->recursive = recursive;
    p->n_for = n_for;
    p->n_loop = n_loop;
    p->soft = soft;
    return n;
}

static struct jin_node *parse_set(struct jin_parser *p)
{
    int line = p->token.line;
    bool soft = p->soft;
    jin_advance(p);
    struct jin_node *target = jin_parse_target(p, true, NULL);
    if (jin_skip_op(p, '='))
        return jin_node(p, JIN_N_SET, line, target, jin_parse_tuple(p, true, NULL), NULL);
    p->soft = false;
    struct jin_node *filter = jin_parse_filters(p, NULL, false);
    struct jin_node *n = jin_node(p, JIN_N_SET_BLOCK, line, target, filter, body_to(p, "set", "endset"));
    p->soft = soft;
    return n;
}

/* Parses "(a, b=1)", the parameters and defaults of a macro or call block. */
static void parse_signature(struct jin_parser *p, struct jin_node *n)
{
    struct jin_node **parameter = &n->a, **value = &n->b;
    jin_expect_op(p, '(');
    while (!jin_at_op(p, ')')) {
        if (n->a)
            jin_expect_op(p, ',');
        struct jin_node *name = jin_node(p, JIN_N_NAME, p->token.line, NULL, NULL, NULL);
        name->name = jin_expect_identifier(p);
        name->target = true;
        for (const struct jin_node *o = n->a; o; o = o->next)
            if (o->name == name->name)
                jin_fail(p->heap, "duplicate parameter '%.*s'", (int)kn_min((int)o->name->n, 100), o->name->data);
        if (jin_skip_op(p, '=')) {
            *value = jin_parse_expression(p);
            value = &(*value)->next;
            n->macro->n_default++;
        } else if (n->b) {
            jin_fail(p->heap, "non-default argument follows default argument");
        }
        *parameter = name;
        parameter = &name->next;
        n->macro->n_parameter++;
        n->macro->explicit_caller |= jin_string_is(name->name, "caller");
    }
    jin_expect_op(p, ')');
}

static struct jin_node *macro_node(struct jin_parser *p, enum jin_kind kind, int line)
{
    struct jin_node *n = jin_node(p, kind, line, NULL, NULL, NULL);
    n->macro = jin_take(p->heap, sizeof *n->macro);
    *n->macro = (struct jin_macro_info){ .caller = -1, .kwargs = -1, .varargs = -1 };
    return n;
}

static struct jin_node *macro_body(struct jin_parser *p, const char *opened, const char *end)
{
    int n_loop = p->n_loop;
    bool soft = p->soft;
    p->n_loop = 0;
    p->soft = false;
    struct jin_node *body = body_to(p, opened, end);
    p->n_loop = n_loop;
    p->soft = soft;
    return body;
}

static struct jin_node *parse_macro(struct jin_parser *p)
{
    int line = p->token.line;
    jin_advance(p);
    struct jin_node *n = macro_node(p, JIN_N_MACRO, line);
    n->name = jin_expect_identifier(p);
    if (p->token.kind != JIN_T_OPERATOR)
        jin_unexpected(p, "'('");
    parse_signature(p, n);
    n->c = macro_body(p, "macro", "endmacro");
    return n;
}

static struct jin_node *parse_call_block(struct jin_parser *p)
{
    int line = p->token.line;
    jin_advance(p);
    struct jin_node *n = macro_node(p, JIN_N_CALL_BLOCK, line);
    if (jin_at_op(p, '('))
        parse_signature(p, n);
    n->d = jin_parse_expression(p);
    if (n->d->kind != JIN_N_CALL)
        jin_fail(p->heap, "expected call");
    n->c = macro_body(p, "call", "endcall");
    return n;
}

static struct jin_node *parse_generation(struct jin_parser *p)
{
    int line = p->token.line;
    jin_advance(p);
    struct jin_node *n = macro_node(p, JIN_N_CALL_BLOCK, line);
    n->c = macro_body(p, "generation", "endgeneration");
    return n;
}

static struct jin_node *parse_filter_block(struct jin_parser *p)
{
    int line = p->token.line;
    bool soft = p->soft;
    jin_advance(p);
    p->soft = false;
    struct jin_node *filter = jin_parse_filters(p, NULL, true);
    struct jin_node *body = body_to(p, "filter", "endfilter");
    p->soft = soft;
    return jin_node(p, JIN_N_FILTER_BLOCK, line, NULL, filter, body);
}

static struct jin_node *parse_with(struct jin_parser *p)
{
    int line = p->token.line;
    bool soft = p->soft;
    jin_advance(p);
    struct jin_node *n = jin_node(p, JIN_N_WITH, line, NULL, NULL, NULL);
    struct jin_node **target = &n->a, **value = &n->b;
    while (p->token.kind != JIN_T_BLOCK_END && !jin_at_op(p, ':')) {
        if (n->a)
            jin_expect_op(p, ',');
        struct jin_node *name = jin_node(p, JIN_N_NAME, p->token.line, NULL, NULL, NULL);
        name->name = jin_expect_identifier(p);
        name->target = true;
        *target = name;
        target = &name->next;
        jin_expect_op(p, '=');
        *value = jin_parse_expression(p);
        value = &(*value)->next;
    }
    p->soft = false;
    n->c = body_to(p, "with", "endwith");
    p->soft = soft;
    return n;
}

static struct jin_node *parse_print(struct jin_parser *p)
{
    struct jin_node *first = NULL, **end = &first;
    jin_advance(p);
    while (p->token.kind != JIN_T_BLOCK_END) {
        if (first)
            jin_expect_op(p, ',');
        int line = p->token.line;
        *end = jin_node(p, JIN_N_PRINT, line, jin_parse_expression(p), NULL, NULL);
        end = &(*end)->next;
    }
    return first;
}

static struct jin_node *parse_leave(struct jin_parser *p)
{
    enum jin_kind kind = jin_at_name(p, "break") ? JIN_N_BREAK : JIN_N_CONTINUE;
    int line = p->token.line;
    if (!p->n_loop)
        jin_fail(p->heap, "'%s' outside a loop", kind == JIN_N_BREAK ? "break" : "continue");
    jin_advance(p);
    return jin_node(p, kind, line, NULL, NULL, NULL);
}

static struct jin_node *parse_statement(struct jin_parser *p, const char *opened)
{
    static const struct {
        const char *word;
        struct jin_node *(*parse)(struct jin_parser *p);
    } known[] = {
        { "if", parse_if },
        { "for", parse_for },
        { "set", parse_set },
        { "macro", parse_macro },
        { "call", parse_call_block },
        { "filter", parse_filter_block },
        { "with", parse_with },
        { "print", parse_print },
        { "break", parse_leave },
        { "continue", parse_leave },
        { "generation", parse_generation },
    };
    static const char *const refused[] = { "extends", "block", "include", "import", "from", "autoescape" };
    if (p->token.kind != JIN_T_NAME)
        jin_unexpected(p, "a statement");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (jin_at_name(p, known[i].word))
            return known[i].parse(p);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (jin_at_name(p, refused[i]))
            jin_fail(p->heap, "{%% %s %%} is not supported in chat templates", refused[i]);
    jin_fail(p->heap, "unknown tag '%.*s'%s%s", (int)kn_min((int)p->token.value.s->n, 100), p->token.value.s->data,
             opened ? "; the innermost block that needs to be closed is " : "", opened ? opened : "");
}

static bool at_any_name(const struct jin_parser *p, const char *const *names)
{
    for (; names && *names; names++)
        if (jin_at_name(p, *names))
            return true;
    return false;
}

/* Parses nodes up to a tag named in `end`, or to the end of the template if `end` is NULL.  opened and
 * opened_at: the enclosing block and its line, for messages. */
static struct jin_node *parse_until(struct jin_parser *p, const char *opened, int opened_at, const char *const *end)
{
    struct jin_node *first = NULL, **last = &first;
    jin_deeper(p);
    while (p->token.kind != JIN_T_END) {
        int line = p->token.line;
        if (p->token.kind == JIN_T_DATA) {
            *last = jin_node(p, JIN_N_TEXT, line, NULL, NULL, NULL);
            (*last)->value = p->token.value;
            jin_advance(p);
        } else if (p->token.kind == JIN_T_PRINT_BEGIN) {
            jin_advance(p);
            *last = jin_node(p, JIN_N_PRINT, line, jin_parse_tuple(p, true, NULL), NULL, NULL);
            if (p->token.kind != JIN_T_PRINT_END)
                jin_unexpected(p, "'}}'");
            jin_advance(p);
        } else {
            jin_advance(p);
            if (at_any_name(p, end)) {
                p->depth--;
                return first;
            }
            *last = parse_statement(p, opened);
            if (p->token.kind != JIN_T_BLOCK_END)
                jin_unexpected(p, "'%}'");
            jin_advance(p);
        }
        if (p->unknown) {
            p->heap->line = p->unknown->line;
            jin_fail(p->heap, "No %s named '%.*s'.", p->unknown->kind == JIN_N_FILTER ? "filter" : "test",
                     (int)kn_min((int)p->unknown->name->n, 100), p->unknown->name->data);
        }
        while (*last)
            last = &(*last)->next;
    }
    if (end) {
        p->heap->line = opened_at;
        jin_fail(p->heap, "the template ends within {%% %s %%}", opened);
    }
    p->depth--;
    return first;
}

struct jin_node *jin_parse(struct jin_parser *p)
{
    jin_advance(p);
    return parse_until(p, NULL, 0, NULL);
}
