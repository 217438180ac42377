/* engine/text/grammar/regex.c - regular expressions to NFAs over code points (Thompson's construction).
 *
 * A pattern is a regular expression of JSON Schema without lookaround and back-references.  It is parsed to a
 * syntax tree, and each node of the tree becomes NFA states, from the last to the first.
 *
 * \d \w \s are ASCII only; . is any character but the four line ends.  A pattern may match anywhere
 * unless it is anchored. */
#include "engine/text/grammar/regex.h"
#include "engine/base/base.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_REPEAT = 1000, MOST_NESTING = 64 };

enum tree_kind { TREE_CLASS, TREE_BEGIN, TREE_END, TREE_SEQUENCE, TREE_ALTERNATIVES, TREE_REPEAT };

struct gr_tree { /* child: the last child; sibling: the child before this one; 0: none */
    uint8_t kind;
    int32_t child, sibling;
    int32_t range, n_range; /* of a class */
    int least, most;        /* of a repetition; most -1: no limit */
};

/* ---- memory ---------------------------------------------------------------------------------- */

bool gr_regex_open(struct gr_regex_parser *p, struct gr_builder *b)
{
    *p = (struct gr_regex_parser){ .b = b };
    p->tree = kn_alloc(MOST_PARTS * sizeof *p->tree);
    p->part = kn_alloc(MOST_PARTS * sizeof *p->part);
    p->range = kn_alloc(MOST_RANGES * sizeof *p->range);
    if (p->tree && p->part && p->range)
        return true;
    gr_fail(b, KN_ENOMEM, "no memory for a pattern");
    return false;
}

void gr_regex_close(struct gr_regex_parser *p)
{
    kn_free(p->tree);
    kn_free(p->part);
    kn_free(p->range);
}

/* ---- parsing: text to a tree ----------------------------------------------------------------- */

int32_t gr_regex_refuse(struct gr_regex_parser *p, int code, const char *what)
{
    if (!p->failed)
        gr_fail(p->b, code, "the pattern '%.60s' %s", p->whole, what);
    p->failed = true;
    return 0;
}

static int32_t tree(struct gr_regex_parser *p, enum tree_kind kind)
{
    if (p->n_tree == MOST_PARTS)
        return gr_regex_refuse(p, KN_ELIMIT, "is too large");
    p->tree[p->n_tree] = (struct gr_tree){ .kind = (uint8_t)kind };
    return p->n_tree++;
}

static void add_child(struct gr_regex_parser *p, int32_t parent, int32_t child)
{
    if (p->failed)
        return;
    p->tree[child].sibling = p->tree[parent].child;
    p->tree[parent].child = child;
}

static void add_range(struct gr_regex_parser *p, uint32_t lo, uint32_t hi)
{
    if (p->n_range == MOST_RANGES)
        gr_regex_refuse(p, KN_ELIMIT, "is too large");
    else
        p->range[p->n_range++] = (struct gr_code_range){ lo, hi };
}

static int by_lo(const void *a, const void *b)
{
    const struct gr_code_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Replaces the ranges from index `first` on by their complement. */
static void negate(struct gr_regex_parser *p, int32_t first)
{
    struct gr_code_range *r = p->range + first;
    int32_t n = p->n_range - first;
    uint32_t next = 0;
    qsort(r, (size_t)n, sizeof *r, by_lo);
    int32_t out = 0;
    for (int32_t i = 0; i < n; i++) { /* in place: at most one gap is written per range read */
        struct gr_code_range x = r[i];
        if (x.lo > next)
            r[out++] = (struct gr_code_range){ next, x.lo - 1 };
        next = x.hi + 1 > next ? x.hi + 1 : next;
    }
    p->n_range = first + out;
    if (next <= LAST_CODE)
        add_range(p, next, LAST_CODE);
}

static void add_named(struct gr_regex_parser *p, char name)
{
    int32_t first = p->n_range;
    switch (name) {
    case 'd':
    case 'D':
        add_range(p, '0', '9');
        break;
    case 'w':
    case 'W':
        add_range(p, '0', '9');
        add_range(p, 'A', 'Z');
        add_range(p, '_', '_');
        add_range(p, 'a', 'z');
        break;
    default:
        add_range(p, '\t', '\r');
        add_range(p, ' ', ' ');
    }
    if (name >= 'A' && name <= 'Z')
        negate(p, first);
}

static uint32_t next_code(struct gr_regex_parser *p)
{
    int bad;
    bool cut;
    int n = eng_utf8_next(p->at, strlen(p->at), &bad, &cut);
    const uint8_t *s = (const uint8_t *)p->at;
    if (n == 0)
        return (uint32_t)gr_regex_refuse(p, KN_EINVAL, "is not UTF-8");
    p->at += n;
    switch (n) {
    case 1:
        return s[0];
    case 2:
        return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    case 3:
        return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    default:
        return (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
    }
}

static uint32_t hex_code(struct gr_regex_parser *p, int n)
{
    uint32_t c = 0;
    while (n-- > 0) {
        const char *digits = "0123456789abcdef", *d = *p->at ? strchr(digits, *p->at | 0x20) : NULL;
        if (!d)
            return (uint32_t)gr_regex_refuse(p, KN_EINVAL, "has an incomplete escape");
        c = c << 4 | (uint32_t)(d - digits);
        p->at++;
    }
    return c;
}

/* Parses an escape after its backslash.  Returns true if the escape is one code point, stored in *code; false if
 * it is a class: its ranges are then added to p->range. */
static bool escape(struct gr_regex_parser *p, uint32_t *code)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    char c = *p->at;
    const char *simple = c ? strchr(from, c) : NULL;
    if (c && strchr("dDwWsS", c)) {
        p->at++;
        add_named(p, c);
        return false;
    }
    if (simple) {
        p->at++;
        *code = (uint8_t)to[simple - from];
    } else if (c == 'x' || c == 'u') {
        p->at++;
        *code = hex_code(p, c == 'x' ? 2 : 4);
    } else if (!c || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        gr_regex_refuse(p, KN_EUNSUPPORTED, "has an escape that is not supported");
    } else {
        *code = next_code(p);
    }
    return true;
}

/* A tree node for the class of the ranges from index `first` on. */
static int32_t class_tree(struct gr_regex_parser *p, int32_t first)
{
    int32_t at = tree(p, TREE_CLASS);
    if (!p->failed) {
        p->tree[at].range = first;
        p->tree[at].n_range = p->n_range - first;
    }
    return at;
}

/* Parses a class after its '[' and adds its ranges. */
static void parse_class(struct gr_regex_parser *p)
{
    int32_t first = p->n_range;
    bool negated = *p->at == '^';
    p->at += negated;
    while (*p->at != ']' && !p->failed) {
        uint32_t lo, hi;
        if (!*p->at) {
            gr_regex_refuse(p, KN_EINVAL, "has a [ without its ]");
            return;
        }
        if (*p->at == '\\' && p->at[1] == 'b') {
            p->at += 2;
            lo = '\b';
        } else if (*p->at == '\\') {
            p->at++;
            if (!escape(p, &lo))
                continue;
        } else {
            lo = next_code(p);
        }
        hi = lo;
        if (*p->at == '-' && p->at[1] && p->at[1] != ']') {
            p->at++;
            if (*p->at == '\\') {
                p->at++;
                if (!escape(p, &hi))
                    gr_regex_refuse(p, KN_EINVAL, "has a range whose end is a character class");
            } else {
                hi = next_code(p);
            }
        }
        if (!p->failed && hi < lo)
            gr_regex_refuse(p, KN_EINVAL, "has a range in descending order");
        if (!p->failed)
            add_range(p, lo, hi);
    }
    p->at += !p->failed;
    if (negated && !p->failed)
        negate(p, first);
}

static int32_t parse_alternatives(struct gr_regex_parser *p);

static int32_t parse_group(struct gr_regex_parser *p)
{
    if (p->at[0] == '?' && p->at[1] == ':')
        p->at += 2;
    else if (p->at[0] == '?')
        return gr_regex_refuse(p, KN_EUNSUPPORTED, "has a group that is not supported, (?...");
    if (++p->nesting > MOST_NESTING)
        return gr_regex_refuse(p, KN_ELIMIT, "nests too deeply");
    int32_t group = parse_alternatives(p);
    p->nesting--;
    if (*p->at != ')')
        return gr_regex_refuse(p, KN_EINVAL, "has a ( without its )");
    p->at++;
    return group;
}

static int32_t parse_atom(struct gr_regex_parser *p)
{
    int32_t first = p->n_range;
    uint32_t code = 0;
    switch (*p->at) {
    case '(':
        p->at++;
        return parse_group(p);
    case '[':
        p->at++;
        parse_class(p);
        return class_tree(p, first);
    case '.':
        p->at++;
        add_range(p, '\n', '\n');
        add_range(p, '\r', '\r');
        add_range(p, 0x2028, 0x2029);
        negate(p, first);
        return class_tree(p, first);
    case '^':
        p->at++;
        return tree(p, TREE_BEGIN);
    case '$':
        p->at++;
        return tree(p, TREE_END);
    case '*':
    case '+':
    case '?':
    case '{':
        return gr_regex_refuse(p, KN_EINVAL, "has nothing to repeat");
    case '\\':
        p->at++;
        if (!escape(p, &code))
            return class_tree(p, first);
        break;
    default:
        code = next_code(p);
    }
    add_range(p, code, code);
    return class_tree(p, first);
}

static int parse_number(struct gr_regex_parser *p)
{
    int n = 0;
    if (*p->at < '0' || *p->at > '9')
        return gr_regex_refuse(p, KN_EINVAL, "has a { that does not begin a repetition");
    for (; *p->at >= '0' && *p->at <= '9' && n <= MOST_REPEAT; p->at++)
        n = n * 10 + (*p->at - '0');
    if (n > MOST_REPEAT)
        return gr_regex_refuse(p, KN_ELIMIT, "repeats more than 1000 times");
    return n;
}

/* Parses the repetition at p->at, if there is one (else 1, 1); *most -1: no limit. */
static void parse_repetition(struct gr_regex_parser *p, int *least, int *most)
{
    *least = *most = 1;
    char c = *p->at;
    if (c == '*' || c == '+' || c == '?') {
        *least = c == '+';
        *most = c == '?' ? 1 : -1;
        p->at++;
    } else if (c == '{') {
        p->at++;
        *least = *most = parse_number(p);
        if (*p->at == ',') {
            p->at++;
            *most = *p->at == '}' ? -1 : parse_number(p);
        }
        if (!p->failed && *p->at != '}')
            gr_regex_refuse(p, KN_EINVAL, "has a { without its }");
        if (!p->failed && *most >= 0 && *most < *least)
            gr_regex_refuse(p, KN_EINVAL, "has a repetition with its maximum below its minimum");
        p->at++;
    } else {
        return;
    }
    p->at += !p->failed && *p->at == '?'; /* lazy: accepts the same strings */
}

static int32_t parse_sequence(struct gr_regex_parser *p)
{
    int32_t sequence = tree(p, TREE_SEQUENCE);
    while (*p->at && *p->at != '|' && *p->at != ')' && !p->failed) {
        int least, most;
        int32_t atom = parse_atom(p);
        parse_repetition(p, &least, &most);
        if (least != 1 || most != 1) {
            int32_t repeat = tree(p, TREE_REPEAT);
            add_child(p, repeat, atom);
            p->tree[repeat].least = least;
            p->tree[repeat].most = most;
            atom = repeat;
        }
        add_child(p, sequence, atom);
    }
    return sequence;
}

static int32_t parse_alternatives(struct gr_regex_parser *p)
{
    int32_t all = tree(p, TREE_ALTERNATIVES);
    add_child(p, all, parse_sequence(p));
    while (*p->at == '|' && !p->failed) {
        p->at++;
        add_child(p, all, parse_sequence(p));
    }
    return all;
}

/* ---- the NFA: each function returns the first state of its part ------------------------------ */

static int32_t part(struct gr_regex_parser *p, enum part_kind kind, int32_t a, int32_t b)
{
    if (p->n_part == MOST_PARTS)
        return gr_regex_refuse(p, KN_ELIMIT, "is too large");
    p->part[p->n_part] = (struct gr_part){ .kind = (uint8_t)kind, .a = a, .b = b };
    return p->n_part++;
}

static int32_t emit(struct gr_regex_parser *p, int32_t at, int32_t next);

static int32_t emit_repeat(struct gr_regex_parser *p, const struct gr_tree *t, int32_t next)
{
    int32_t node = next;
    if (t->most < 0) {
        node = part(p, PART_SPLIT, next, next);
        int32_t again = emit(p, t->child, node);
        p->part[node].b = again;
    }
    for (int i = t->most < 0 ? t->least : t->most; i > 0 && !p->failed; i--) {
        node = emit(p, t->child, node);
        if (i > t->least)
            node = part(p, PART_SPLIT, next, node);
    }
    return node;
}

static int32_t emit(struct gr_regex_parser *p, int32_t at, int32_t next)
{
    const struct gr_tree *t = &p->tree[at];
    int32_t node = next;
    if (p->failed || ++p->work > 16 * MOST_PARTS)
        return gr_regex_refuse(p, KN_ELIMIT, "is too large");
    switch (t->kind) {
    case TREE_BEGIN:
        return part(p, PART_BEGIN, next, 0);
    case TREE_END:
        return part(p, PART_END, next, 0);
    case TREE_REPEAT:
        return emit_repeat(p, t, next);
    case TREE_SEQUENCE:
        for (int32_t c = t->child; c && !p->failed; c = p->tree[c].sibling)
            node = emit(p, c, node);
        return node;
    case TREE_ALTERNATIVES:
        node = emit(p, t->child, next);
        for (int32_t c = p->tree[t->child].sibling; c && !p->failed; c = p->tree[c].sibling)
            node = part(p, PART_SPLIT, node, emit(p, c, next));
        return node;
    default:
        node = part(p, PART_CLASS, next, 0);
        p->part[node].range = t->range;
        p->part[node].n_range = t->n_range;
        return node;
    }
}

int32_t gr_regex(struct gr_regex_parser *p, const char *text)
{
    p->at = p->whole = text;
    p->n_tree = 1;
    p->nesting = 0;
    int32_t top = parse_alternatives(p);
    if (*p->at == ')')
        gr_regex_refuse(p, KN_EINVAL, "has a ) without its (");
    if (p->failed)
        return 0;
    int32_t end = part(p, PART_MATCH, 0, 0);
    if (p->is_anchored)
        return part(p, PART_BEGIN, emit(p, top, part(p, PART_END, end, 0)), 0);
    int32_t start = emit(p, top, end);
    int32_t any = p->n_range;
    add_range(p, 0, LAST_CODE);
    int32_t skip = part(p, PART_CLASS, 0, 0), loop = part(p, PART_SPLIT, start, skip);
    p->part[skip] = (struct gr_part){ .kind = PART_CLASS, .a = loop, .range = any, .n_range = 1 };
    return loop;
}
