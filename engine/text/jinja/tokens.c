/* engine/text/jinja/tokens.c - the parser's token stream: the current token, one token of lookahead, and
 * messages about unexpected tokens. */
#include "engine/text/jinja/internal.h"

#define MAX_DEPTH 600 /* nesting of brackets and blocks */

void jin_advance(struct jin_parser *p)
{
    if (p->looked)
        p->token = p->ahead;
    else
        jin_lexer_next(&p->lexer, &p->token);
    p->looked = false;
    p->heap->line = p->token.line;
}

const struct jin_token *jin_look(struct jin_parser *p)
{
    if (!p->looked)
        jin_lexer_next(&p->lexer, &p->ahead);
    p->looked = true;
    p->heap->line = p->token.line;
    return &p->ahead;
}

bool jin_at_op(const struct jin_parser *p, int op) { return p->token.kind == JIN_T_OPERATOR && p->token.op == op; }

bool jin_at_name(const struct jin_parser *p, const char *name)
{
    return p->token.kind == JIN_T_NAME && jin_string_is(p->token.value.s, name);
}

bool jin_skip_op(struct jin_parser *p, int op)
{
    bool at = jin_at_op(p, op);
    if (at)
        jin_advance(p);
    return at;
}

bool jin_skip_name(struct jin_parser *p, const char *name)
{
    bool at = jin_at_name(p, name);
    if (at)
        jin_advance(p);
    return at;
}

void jin_unexpected(struct jin_parser *p, const char *wanted)
{
    static const char *const what[] = { [JIN_T_END] = "the end of the template",
                                        [JIN_T_DATA] = "text",
                                        [JIN_T_PRINT_BEGIN] = "'{{'",
                                        [JIN_T_PRINT_END] = "'}}'",
                                        [JIN_T_BLOCK_BEGIN] = "'{%'",
                                        [JIN_T_BLOCK_END] = "'%}'",
                                        [JIN_T_STRING] = "a string",
                                        [JIN_T_NUMBER] = "a number" };
    const struct jin_token *t = &p->token;
    p->heap->line = t->line;
    if (t->kind == JIN_T_NAME)
        jin_fail(p->heap, "expected %s, got '%.*s'", wanted, (int)kn_min((int)t->value.s->n, 100), t->value.s->data);
    if (t->kind == JIN_T_OPERATOR) {
        const char *two = t->op == 'E'   ? "=="
                          : t->op == 'N' ? "!="
                          : t->op == 'G' ? ">="
                          : t->op == 'L' ? "<="
                          : t->op == 'D' ? "//"
                          : t->op == 'P' ? "**"
                                         : NULL;
        char one[2] = { (char)t->op, 0 };
        jin_fail(p->heap, "expected %s, got '%s'", wanted, two ? two : one);
    }
    jin_fail(p->heap, "expected %s, got %s", wanted, what[t->kind]);
}

void jin_expect_op(struct jin_parser *p, int op)
{
    char wanted[4] = { '\'', (char)op, '\'', 0 };
    if (!jin_at_op(p, op))
        jin_unexpected(p, wanted);
    jin_advance(p);
}

const struct jin_string *jin_expect_identifier(struct jin_parser *p)
{
    if (p->token.kind != JIN_T_NAME)
        jin_unexpected(p, "a name");
    const struct jin_string *name = p->token.value.s;
    jin_advance(p);
    return name;
}

void jin_deeper(struct jin_parser *p)
{
    if (++p->depth > MAX_DEPTH)
        jin_fail(p->heap, "more than %d levels within each other", MAX_DEPTH);
}
