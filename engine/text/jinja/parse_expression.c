/* engine/text/jinja/parse_expression.c - tokens to the tree of an expression.  Each function is one level of
 * precedence, from "x if y else z" down to literals and names. */
#include "engine/text/jinja/internal.h"

#define MAX_HEIGHT 1000 /* of the tree: a + b + c + ... is as high as its number of terms */

/* ---- nodes ----------------------------------------------------------------------------------- */

static int height(const struct jin_node *list)
{
    int most = -1;
    for (; list; list = list->next)
        most = kn_max(most, list->height);
    return most;
}

struct jin_node *jin_node(struct jin_parser *p, enum jin_kind kind, int line, struct jin_node *a, struct jin_node *b,
                          struct jin_node *c)
{
    struct jin_node *n = jin_take(p->heap, sizeof *n);
    int high = 1 + kn_max(height(a), kn_max(height(b), height(c)));
    if (high > MAX_HEIGHT)
        jin_fail(p->heap, "an expression of more than %d levels", MAX_HEIGHT);
    *n = (struct jin_node){ .kind = (uint8_t)kind, .height = (int16_t)high, .line = line, .a = a, .b = b, .c = c };
    return n;
}

struct list {
    struct jin_node *first, **end;
};

static void append(struct list *l, struct jin_node *n)
{
    if (!l->end)
        l->end = &l->first;
    *l->end = n;
    l->end = &n->next;
}

static struct jin_node *constant(struct jin_parser *p, int line, struct jin_value v)
{
    struct jin_node *n = jin_node(p, JIN_N_CONST, line, NULL, NULL, NULL);
    n->value = v;
    return n;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct jin_params *parse_params(struct jin_parser *p)
{
    struct jin_params *params = jin_take(p->heap, sizeof *params);
    struct list position = { 0 }, keyword = { 0 };
    struct jin_node *star = NULL, *star_star = NULL;
    jin_expect_op(p, '(');
    for (bool first = true; !jin_at_op(p, ')'); first = false) {
        if (!first) {
            jin_expect_op(p, ',');
            if (jin_at_op(p, ')'))
                break;
        }
        bool bad;
        if (jin_skip_op(p, '*')) {
            bad = star || star_star;
            star = jin_parse_expression(p);
        } else if (jin_skip_op(p, 'P')) {
            bad = star_star;
            star_star = jin_parse_expression(p);
        } else if (p->token.kind == JIN_T_NAME && jin_look(p)->kind == JIN_T_OPERATOR && p->ahead.op == '=') {
            const struct jin_string *name = jin_expect_identifier(p);
            bad = star_star;
            jin_advance(p);
            struct jin_node *value = jin_parse_expression(p);
            struct jin_node *n = jin_node(p, JIN_N_KEYWORD, value->line, value, NULL, NULL);
            n->name = name;
            for (struct jin_node *k = keyword.first; k; k = k->next)
                bad |= k->name == name;
            append(&keyword, n);
        } else {
            bad = star || star_star || keyword.first;
            append(&position, jin_parse_expression(p));
        }
        if (bad)
            jin_fail(p->heap, "invalid syntax for function call expression");
    }
    jin_expect_op(p, ')');
    *params = (struct jin_params){ position.first, keyword.first, star, star_star };
    return params;
}

static int params_height(const struct jin_params *q)
{
    return q ? kn_max(kn_max(height(q->position), height(q->keyword)), kn_max(height(q->star), height(q->star_star)))
             : 0;
}

static struct jin_node *with_params(struct jin_parser *p, struct jin_node *n, struct jin_params *params)
{
    n->params = params;
    n->height = (int16_t)kn_max(n->height, 1 + params_height(params));
    if (n->height > MAX_HEIGHT)
        jin_fail(p->heap, "an expression of more than %d levels", MAX_HEIGHT);
    return n;
}

struct jin_node *jin_parse_filters(struct jin_parser *p, struct jin_node *input, bool first)
{
    while (first || jin_skip_op(p, '|')) {
        int line = p->token.line;
        const struct jin_string *name = jin_expect_identifier(p);
        if (jin_at_op(p, '.'))
            jin_fail(p->heap, "No filter named '%.*s. ...'.", (int)kn_min((int)name->n, 100), name->data);
        struct jin_params *params = jin_at_op(p, '(') ? parse_params(p) : NULL;
        struct jin_node *n = jin_node(p, JIN_N_FILTER, line, input, NULL, NULL);
        n->name = name;
        n->found = jin_filter_find(name);
        if (!n->found && !p->soft && !p->unknown)
            p->unknown = n;
        input = with_params(p, n, params);
        first = false;
    }
    return input;
}

static struct jin_node *parse_primary(struct jin_parser *p, bool namespaces);
static struct jin_node *parse_postfix(struct jin_parser *p, struct jin_node *n);

static struct jin_node *parse_test(struct jin_parser *p, struct jin_node *input)
{
    int line = p->token.line;
    jin_advance(p);
    bool negated = jin_skip_name(p, "not");
    const struct jin_string *name = jin_expect_identifier(p);
    struct jin_params *params = NULL;
    bool argument = p->token.kind == JIN_T_NAME || p->token.kind == JIN_T_STRING || p->token.kind == JIN_T_NUMBER ||
                    jin_at_op(p, '[') || jin_at_op(p, '{');
    if (jin_at_op(p, '(')) {
        params = parse_params(p);
    } else if (argument && !jin_at_name(p, "else") && !jin_at_name(p, "or") && !jin_at_name(p, "and")) {
        if (jin_at_name(p, "is"))
            jin_fail(p->heap, "You cannot chain multiple tests with is");
        params = jin_take(p->heap, sizeof *params);
        *params = (struct jin_params){ .position = parse_postfix(p, parse_primary(p, false)) };
    }
    struct jin_node *n = jin_node(p, JIN_N_TEST, line, input, NULL, NULL);
    n->name = name;
    n->found = jin_test_find(name);
    if (!n->found && !p->soft && !p->unknown)
        p->unknown = n;
    with_params(p, n, params);
    return negated ? jin_node(p, JIN_N_NOT, line, n, NULL, NULL) : n;
}

/* ---- literals and names, and their suffixes -------------------------------------------------- */

static struct jin_node *parse_list(struct jin_parser *p, enum jin_kind kind, int close)
{
    struct list items = { 0 };
    int line = p->token.line;
    jin_advance(p);
    while (!jin_at_op(p, close)) {
        if (items.first)
            jin_expect_op(p, ',');
        if (jin_at_op(p, close))
            break;
        append(&items, jin_parse_expression(p));
        if (kind == JIN_N_DICT) {
            jin_expect_op(p, ':');
            append(&items, jin_parse_expression(p));
        }
    }
    jin_expect_op(p, close);
    return jin_node(p, kind, line, items.first, NULL, NULL);
}

static struct jin_node *parse_strings(struct jin_parser *p)
{
    int line = p->token.line;
    const struct jin_string *s = p->token.value.s;
    jin_advance(p);
    while (p->token.kind == JIN_T_STRING) { /* "a" "b" is "ab" */
        const struct jin_string *more = p->token.value.s;
        char *both = jin_take(p->heap, s->n + more->n + 1);
        memcpy(both, s->data, s->n);
        memcpy(both + s->n, more->data, more->n);
        s = jin_string_view(p->heap, both, s->n + more->n);
        jin_n_char(s); /* count now, before renderings share the string */
        jin_advance(p);
    }
    return constant(p, line, jin_of(s));
}

static struct jin_node *parse_name(struct jin_parser *p, bool namespaces)
{
    static const struct {
        const char *text;
        struct jin_value value;
    } words[] = {
        { "true", { .type = JIN_BOOL, .b = true } },
        { "True", { .type = JIN_BOOL, .b = true } },
        { "false", { .type = JIN_BOOL, .b = false } },
        { "False", { .type = JIN_BOOL, .b = false } },
        { "none", { .type = JIN_NONE } },
        { "None", { .type = JIN_NONE } },
    };
    int line = p->token.line;
    const struct jin_string *name = jin_expect_identifier(p);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (jin_string_is(name, words[i].text))
            return constant(p, line, words[i].value);
    bool attribute = namespaces && jin_skip_op(p, '.');
    struct jin_node *n = jin_node(p, attribute ? JIN_N_NSREF : JIN_N_NAME, line, NULL, NULL, NULL);
    n->name = name;
    if (attribute)
        n->value = jin_of(jin_expect_identifier(p));
    return n;
}

static struct jin_node *parse_primary(struct jin_parser *p, bool namespaces)
{
    struct jin_node *n;
    int line = p->token.line;
    jin_deeper(p);
    if (p->token.kind == JIN_T_NAME) {
        n = parse_name(p, namespaces);
    } else if (p->token.kind == JIN_T_STRING) {
        n = parse_strings(p);
    } else if (p->token.kind == JIN_T_NUMBER) {
        n = constant(p, line, p->token.value);
        jin_advance(p);
    } else if (jin_skip_op(p, '(')) {
        n = jin_at_op(p, ')') ? jin_node(p, JIN_N_TUPLE, line, NULL, NULL, NULL) : jin_parse_tuple(p, true, NULL);
        jin_expect_op(p, ')');
    } else if (jin_at_op(p, '[')) {
        n = parse_list(p, JIN_N_LIST, ']');
    } else if (jin_at_op(p, '{')) {
        n = parse_list(p, JIN_N_DICT, '}');
    } else {
        jin_unexpected(p, "an expression");
    }
    p->depth--;
    return n;
}

static struct jin_node *slice_part(struct jin_parser *p)
{
    return jin_at_op(p, ':') || jin_at_op(p, ']') || jin_at_op(p, ',') ? NULL : jin_parse_expression(p);
}

static struct jin_node *parse_subscript(struct jin_parser *p)
{
    int line = p->token.line;
    struct jin_node *start = jin_at_op(p, ':') ? NULL : jin_parse_expression(p), *stop, *step = NULL;
    if (!jin_skip_op(p, ':'))
        return start;
    stop = slice_part(p);
    if (jin_skip_op(p, ':'))
        step = slice_part(p);
    return jin_node(p, JIN_N_SLICE, line, start, stop, step);
}

static struct jin_node *parse_member(struct jin_parser *p, struct jin_node *of)
{
    int line = p->token.line;
    if (jin_skip_op(p, '.')) {
        if (p->token.kind == JIN_T_NUMBER && p->token.value.type == JIN_INT) {
            struct jin_node *which = constant(p, line, p->token.value);
            jin_advance(p);
            return jin_node(p, JIN_N_ITEM, line, of, which, NULL);
        }
        struct jin_node *n = jin_node(p, JIN_N_ATTRIBUTE, line, of, NULL, NULL);
        n->name = jin_expect_identifier(p);
        return n;
    }
    struct list items = { 0 };
    jin_expect_op(p, '[');
    while (!jin_at_op(p, ']')) {
        if (items.first)
            jin_expect_op(p, ',');
        append(&items, parse_subscript(p));
    }
    jin_expect_op(p, ']');
    if (items.first && !items.first->next)
        return jin_node(p, JIN_N_ITEM, line, of, items.first, NULL);
    for (struct jin_node *i = items.first; i; i = i->next)
        if (i->kind == JIN_N_SLICE)
            jin_fail(p->heap, "a slice stands alone between its brackets");
    struct jin_node *tuple = jin_node(p, JIN_N_TUPLE, line, items.first, NULL, NULL);
    return jin_node(p, JIN_N_ITEM, line, of, tuple, NULL);
}

static struct jin_node *parse_call(struct jin_parser *p, struct jin_node *whom)
{
    int line = p->token.line;
    struct jin_params *params = parse_params(p);
    return with_params(p, jin_node(p, JIN_N_CALL, line, whom, NULL, NULL), params);
}

static struct jin_node *parse_postfix(struct jin_parser *p, struct jin_node *n)
{
    for (;;) {
        if (jin_at_op(p, '.') || jin_at_op(p, '['))
            n = parse_member(p, n);
        else if (jin_at_op(p, '('))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* ---- operators ------------------------------------------------------------------------------- */

static struct jin_node *parse_unary(struct jin_parser *p, bool filters)
{
    struct jin_node *n;
    int line = p->token.line;
    jin_deeper(p);
    if (jin_skip_op(p, '-'))
        n = jin_node(p, JIN_N_NEGATIVE, line, parse_unary(p, false), NULL, NULL);
    else if (jin_skip_op(p, '+'))
        n = jin_node(p, JIN_N_POSITIVE, line, parse_unary(p, false), NULL, NULL);
    else
        n = parse_primary(p, false);
    n = parse_postfix(p, n);
    while (filters) {
        if (jin_at_op(p, '|'))
            n = jin_parse_filters(p, n, false);
        else if (jin_at_name(p, "is"))
            n = parse_test(p, n);
        else if (jin_at_op(p, '('))
            n = parse_call(p, n);
        else
            break;
    }
    p->depth--;
    return n;
}

static bool at_any(const struct jin_parser *p, const char *ops)
{
    return p->token.kind == JIN_T_OPERATOR && strchr(ops, p->token.op);
}

static struct jin_node *parse_power(struct jin_parser *p)
{
    int line = p->token.line;
    struct jin_node *n = parse_unary(p, true);
    while (jin_skip_op(p, 'P')) {
        n = jin_node(p, JIN_N_BINARY, line, n, parse_unary(p, true), NULL);
        n->op = 'P';
    }
    return n;
}

static struct jin_node *parse_product(struct jin_parser *p)
{
    int line = p->token.line;
    struct jin_node *n = parse_power(p);
    while (at_any(p, "*/D%")) {
        int op = p->token.op;
        jin_advance(p);
        n = jin_node(p, JIN_N_BINARY, line, n, parse_power(p), NULL);
        n->op = (uint8_t)op;
    }
    return n;
}

static struct jin_node *parse_concat(struct jin_parser *p)
{
    int line = p->token.line;
    struct jin_node *n = parse_product(p);
    if (!jin_at_op(p, '~'))
        return n;
    struct list items = { 0 };
    append(&items, n);
    while (jin_skip_op(p, '~'))
        append(&items, parse_product(p));
    return jin_node(p, JIN_N_CONCAT, line, items.first, NULL, NULL);
}

static struct jin_node *parse_sum(struct jin_parser *p)
{
    int line = p->token.line;
    struct jin_node *n = parse_concat(p);
    while (at_any(p, "+-")) {
        int op = p->token.op;
        jin_advance(p);
        n = jin_node(p, JIN_N_BINARY, line, n, parse_concat(p), NULL);
        n->op = (uint8_t)op;
    }
    return n;
}

/* Skips the operator of a comparison and returns its code (see JIN_N_COMPARISON); 0 if there is none. */
static int comparison(struct jin_parser *p)
{
    static const char from[] = "EN<L>G", to[] = "=!<l>g";
    if (jin_skip_name(p, "in"))
        return 'i';
    if (jin_at_name(p, "not") && jin_look(p)->kind == JIN_T_NAME && jin_string_is(p->ahead.value.s, "in")) {
        jin_advance(p);
        jin_advance(p);
        return 'n';
    }
    if (!at_any(p, from))
        return 0;
    int op = to[strchr(from, p->token.op) - from];
    jin_advance(p);
    return op;
}

static struct jin_node *parse_compare(struct jin_parser *p)
{
    int line = p->token.line, op;
    struct jin_node *n = parse_sum(p);
    struct list with = { 0 };
    while ((op = comparison(p))) {
        struct jin_node *c = jin_node(p, JIN_N_COMPARISON, line, parse_sum(p), NULL, NULL);
        c->op = (uint8_t)op;
        append(&with, c);
    }
    return with.first ? jin_node(p, JIN_N_COMPARE, line, n, with.first, NULL) : n;
}

static struct jin_node *parse_not(struct jin_parser *p)
{
    int line = p->token.line;
    if (!jin_skip_name(p, "not"))
        return parse_compare(p);
    jin_deeper(p);
    struct jin_node *n = jin_node(p, JIN_N_NOT, line, parse_not(p), NULL, NULL);
    p->depth--;
    return n;
}

static struct jin_node *parse_and(struct jin_parser *p)
{
    int line = p->token.line;
    struct jin_node *n = parse_not(p);
    while (jin_skip_name(p, "and"))
        n = jin_node(p, JIN_N_AND, line, n, parse_not(p), NULL);
    return n;
}

static struct jin_node *parse_or(struct jin_parser *p)
{
    int line = p->token.line;
    struct jin_node *n = parse_and(p);
    while (jin_skip_name(p, "or"))
        n = jin_node(p, JIN_N_OR, line, n, parse_and(p), NULL);
    return n;
}

struct jin_node *jin_parse_expression(struct jin_parser *p)
{
    int line = p->token.line;
    const struct jin_node *unknown = p->unknown;
    jin_deeper(p);
    struct jin_node *n = parse_or(p);
    while (jin_skip_name(p, "if")) {
        struct jin_node *test = parse_or(p);
        struct jin_node *other = jin_skip_name(p, "else") ? jin_parse_expression(p) : NULL;
        n = jin_node(p, JIN_N_CONDITION, line, test, n, other);
        p->unknown = unknown; /* unknown filters and tests in it fail only when evaluated */
    }
    p->depth--;
    return n;
}

/* ---- tuples and targets ---------------------------------------------------------------------- */

static bool tuple_ends(const struct jin_parser *p, const char *end)
{
    return p->token.kind == JIN_T_PRINT_END || p->token.kind == JIN_T_BLOCK_END || jin_at_op(p, ')') ||
           (end && jin_at_name(p, end));
}

/* Parses one item, or a tuple of items separated by commas.  how: the items are 'e' expressions, 'o' expressions
 * without "if", 't' targets of an assignment, 'n' targets of an assignment, also such as ns.x. */
static struct jin_node *parse_commas(struct jin_parser *p, int how, const char *end)
{
    struct list items = { 0 };
    int line = p->token.line;
    bool tuple = false;
    while (!tuple_ends(p, end)) {
        append(&items, how == 'e' ? jin_parse_expression(p) : how == 'o' ? parse_or(p) : parse_primary(p, how == 'n'));
        if (!jin_skip_op(p, ','))
            break;
        tuple = true;
    }
    if (!items.first)
        jin_unexpected(p, "an expression");
    return tuple ? jin_node(p, JIN_N_TUPLE, line, items.first, NULL, NULL) : items.first;
}

struct jin_node *jin_parse_tuple(struct jin_parser *p, bool conditional, const char *end)
{
    return parse_commas(p, conditional ? 'e' : 'o', end);
}

static void check_target(struct jin_parser *p, struct jin_node *n)
{
    p->heap->line = n->line;
    n->target = true;
    if (n->kind == JIN_N_TUPLE) {
        for (struct jin_node *i = n->a; i; i = i->next)
            check_target(p, i);
    } else if (n->kind != JIN_N_NAME && n->kind != JIN_N_NSREF) {
        jin_fail(p->heap, "can't assign to this");
    } else if (n->kind == JIN_N_NAME && p->n_for && jin_string_is(n->name, "loop")) {
        jin_fail(p->heap, "Can't assign to special loop variable in for-loop target");
    }
    p->heap->line = p->token.line;
}

struct jin_node *jin_parse_target(struct jin_parser *p, bool namespaces, const char *end)
{
    struct jin_node *n = parse_commas(p, namespaces ? 'n' : 't', end);
    check_target(p, n);
    return n;
}
