/* engine/grammar/pattern.c - strings that are held to patterns and lengths, and names that are none of
 * some.
 *
 * A pattern is a regular expression as JSON Schema writes them, without what looks around or back.
 * It is parsed into a network over code points (Thompson's), and all patterns of a string, with the
 * number of its characters, are followed at once by sets, so that no pattern takes more than its
 * states allow.  Each set becomes a node; determine.c then drops those from which no end can be
 * reached.
 *
 * \d \w \s are those of ASCII; . is anything but the four line ends.  A pattern may match anywhere
 * unless it is anchored. */
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/automaton.h"

enum {
    MOST_PARTS = 1 << 13, /* parts of all patterns of a string */
    MOST_RANGES = 1 << 12,
    MOST_SETS = 1 << 14,
    MOST_CUTS = 1 << 10,
    MOST_REPEAT = 1000,
    MOST_NESTING = 64,
    MOST_PATTERNS = 16,
    MOST_WORK = 1 << 26,
    LAST_CODE = 0x10ffff,
};

enum part_kind { PART_CLASS, PART_SPLIT, PART_BEGIN, PART_END, PART_MATCH };

struct part {
    uint8_t kind;
    int32_t a, b;
    int32_t range, n_range;
}; /* a: then; b: or, of a split */
struct range {
    uint32_t lo, hi;
};

enum tree_kind { TREE_CLASS, TREE_BEGIN, TREE_END, TREE_SEQUENCE, TREE_ALTERNATIVES, TREE_REPEAT };

struct tree { /* children from the last to the first; 0: none */
    uint8_t kind;
    int32_t child, sibling;
    int32_t range, n_range; /* of a class */
    int least, most;        /* of a repetition; most -1: no limit */
};

struct parser {
    struct gr_builder *b;
    const char *at, *whole;
    struct tree *tree;   /* [MOST_PARTS] of one pattern; 0 is no tree */
    struct part *part;   /* [MOST_PARTS] */
    struct range *range; /* [MOST_RANGES] */
    int32_t n_tree, n_part, n_range;
    int nesting, work;
    bool failed;
};

/* ---- parsing: text to a tree ----------------------------------------------------------------- */

static int32_t refuse(struct parser *p, int code, const char *what)
{
    if (!p->failed)
        gr_fail(p->b, code, "the pattern '%.60s' %s", p->whole, what);
    p->failed = true;
    return 0;
}

static int32_t tree(struct parser *p, enum tree_kind kind)
{
    if (p->n_tree == MOST_PARTS)
        return refuse(p, KN_ELIMIT, "is too large");
    p->tree[p->n_tree] = (struct tree){.kind = (uint8_t)kind};
    return p->n_tree++;
}

static void add_child(struct parser *p, int32_t parent, int32_t child)
{
    if (p->failed)
        return;
    p->tree[child].sibling = p->tree[parent].child;
    p->tree[parent].child = child;
}

static void add_range(struct parser *p, uint32_t lo, uint32_t hi)
{
    if (p->n_range == MOST_RANGES)
        refuse(p, KN_ELIMIT, "is too large");
    else
        p->range[p->n_range++] = (struct range){lo, hi};
}

static int by_lo(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Replaces the ranges from `first` on by their complement. */
static void negate(struct parser *p, int32_t first)
{
    struct range *r = p->range + first;
    int32_t n = p->n_range - first;
    uint32_t next = 0;
    qsort(r, (size_t)n, sizeof *r, by_lo);
    int32_t out = 0;
    for (int32_t i = 0; i < n; i++) { /* a gap is found no sooner than its right end is read */
        struct range x = r[i];
        if (x.lo > next)
            r[out++] = (struct range){next, x.lo - 1};
        next = x.hi + 1 > next ? x.hi + 1 : next;
    }
    p->n_range = first + out;
    if (next <= LAST_CODE)
        add_range(p, next, LAST_CODE);
}

static void add_named(struct parser *p, char name)
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

static uint32_t next_code(struct parser *p)
{
    int bad;
    bool cut;
    int n = eng_utf8_next(p->at, strlen(p->at), &bad, &cut);
    const uint8_t *s = (const uint8_t *)p->at;
    if (n == 0)
        return (uint32_t)refuse(p, KN_EINVAL, "is not UTF-8");
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

static uint32_t hex_code(struct parser *p, int n)
{
    uint32_t c = 0;
    while (n-- > 0) {
        const char *digits = "0123456789abcdef", *d = *p->at ? strchr(digits, *p->at | 0x20) : NULL;
        if (!d)
            return (uint32_t)refuse(p, KN_EINVAL, "has an escape that is not whole");
        c = c << 4 | (uint32_t)(d - digits);
        p->at++;
    }
    return c;
}

/* After a backslash: one code point, or false for a class, which is added to the ranges. */
static bool escape(struct parser *p, uint32_t *code)
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
        refuse(p, KN_EUNSUPPORTED, "has an escape that is not supported");
    } else {
        *code = next_code(p);
    }
    return true;
}

/* The ranges from `first` on. */
static int32_t class_tree(struct parser *p, int32_t first)
{
    int32_t at = tree(p, TREE_CLASS);
    if (!p->failed) {
        p->tree[at].range = first;
        p->tree[at].n_range = p->n_range - first;
    }
    return at;
}

/* After '['. */
static void parse_class(struct parser *p)
{
    int32_t first = p->n_range;
    bool negated = *p->at == '^';
    p->at += negated;
    while (*p->at != ']' && !p->failed) {
        uint32_t lo, hi;
        if (!*p->at) {
            refuse(p, KN_EINVAL, "has a [ without its ]");
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
                    refuse(p, KN_EINVAL, "has a range that ends in a class");
            } else {
                hi = next_code(p);
            }
        }
        if (!p->failed && hi < lo)
            refuse(p, KN_EINVAL, "has a range that runs backwards");
        if (!p->failed)
            add_range(p, lo, hi);
    }
    p->at += !p->failed;
    if (negated && !p->failed)
        negate(p, first);
}

static int32_t parse_alternatives(struct parser *p);

static int32_t parse_group(struct parser *p)
{
    if (p->at[0] == '?' && p->at[1] == ':')
        p->at += 2;
    else if (p->at[0] == '?')
        return refuse(p, KN_EUNSUPPORTED, "has a group that is not supported, (?...");
    if (++p->nesting > MOST_NESTING)
        return refuse(p, KN_ELIMIT, "nests too deeply");
    int32_t group = parse_alternatives(p);
    p->nesting--;
    if (*p->at != ')')
        return refuse(p, KN_EINVAL, "has a ( without its )");
    p->at++;
    return group;
}

static int32_t parse_atom(struct parser *p)
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
        return refuse(p, KN_EINVAL, "has nothing to repeat");
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

static int parse_number(struct parser *p)
{
    int n = 0;
    if (*p->at < '0' || *p->at > '9')
        return refuse(p, KN_EINVAL, "has a { that is no repetition");
    for (; *p->at >= '0' && *p->at <= '9' && n <= MOST_REPEAT; p->at++)
        n = n * 10 + (*p->at - '0');
    if (n > MOST_REPEAT)
        return refuse(p, KN_ELIMIT, "repeats more than 1000 times");
    return n;
}

/* The repetition at p->at; most -1: no limit. */
static void parse_repetition(struct parser *p, int *least, int *most)
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
            refuse(p, KN_EINVAL, "has a { without its }");
        if (!p->failed && *most >= 0 && *most < *least)
            refuse(p, KN_EINVAL, "has a repetition that runs backwards");
        p->at++;
    } else {
        return;
    }
    p->at += !p->failed && *p->at == '?'; /* lazy: the same language */
}

static int32_t parse_sequence(struct parser *p)
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

static int32_t parse_alternatives(struct parser *p)
{
    int32_t all = tree(p, TREE_ALTERNATIVES);
    add_child(p, all, parse_sequence(p));
    while (*p->at == '|' && !p->failed) {
        p->at++;
        add_child(p, all, parse_sequence(p));
    }
    return all;
}

/* ---- the network: each function returns where its part begins -------------------------------- */

static int32_t part(struct parser *p, enum part_kind kind, int32_t a, int32_t b)
{
    if (p->n_part == MOST_PARTS)
        return refuse(p, KN_ELIMIT, "is too large");
    p->part[p->n_part] = (struct part){.kind = (uint8_t)kind, .a = a, .b = b};
    return p->n_part++;
}

static int32_t emit(struct parser *p, int32_t at, int32_t next);

static int32_t emit_repeat(struct parser *p, const struct tree *t, int32_t next)
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

static int32_t emit(struct parser *p, int32_t at, int32_t next)
{
    const struct tree *t = &p->tree[at];
    int32_t node = next;
    if (p->failed || ++p->work > 16 * MOST_PARTS)
        return refuse(p, KN_ELIMIT, "is too large");
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

/* A whole pattern: it may begin anywhere. */
static int32_t parse_pattern(struct parser *p, const char *text)
{
    p->at = p->whole = text;
    p->n_tree = 1;
    p->nesting = 0;
    int32_t top = parse_alternatives(p);
    if (*p->at == ')')
        refuse(p, KN_EINVAL, "has a ) without its (");
    if (p->failed)
        return 0;
    int32_t start = emit(p, top, part(p, PART_MATCH, 0, 0));
    int32_t any = p->n_range;
    add_range(p, 0, LAST_CODE);
    int32_t skip = part(p, PART_CLASS, 0, 0), loop = part(p, PART_SPLIT, start, skip);
    p->part[skip] = (struct part){.kind = PART_CLASS, .a = loop, .range = any, .n_range = 1};
    return loop;
}

/* ---- sets: all patterns and the length at once ----------------------------------------------- */

struct set {   /* what may come next, and whether the string may end */
    size_t at; /* in member */
    int32_t n;
    uint32_t length; /* at most the largest bound that matters */
    bool accepts;
    int32_t node; /* of the builder */
};

struct sets {
    struct parser *p;
    const struct gr_string *s;
    int32_t start[MOST_PATTERNS], first[MOST_PATTERNS + 1]; /* pattern i's parts are first[i] on */
    struct set *set;                                        /* [n] */
    int32_t *member;         /* [n_member] classes and matches, ascending, of each pattern */
    uint32_t *cut;           /* [n_cut] code points at which a class begins or ends */
    uint32_t *seen, stamp;   /* [n_part] */
    int32_t *stack, *picked; /* [2 n_part], [n_part] */
    int32_t *target, *last_target,
        *made;                    /* [n_part] what a code point leads to, and the set made of it */
    int32_t table[2 * MOST_SETS]; /* sets by hash; -1: free */
    size_t n, cap, n_member, cap_member, n_cut, work;
    uint32_t cap_length;
};

/* What the n_stack parts on the stack may be without a character, at either end or not: classes and
 * the match, into picked. */
static size_t close_over(struct sets *x, size_t n_stack, bool at_start, bool at_end, bool *matches)
{
    size_t n = 0;
    x->stamp++;
    *matches = false;
    while (n_stack > 0) {
        int32_t at = x->stack[--n_stack];
        const struct part *q = &x->p->part[at];
        if (x->seen[at] == x->stamp)
            continue;
        x->seen[at] = x->stamp;
        x->work++;
        if (q->kind == PART_CLASS || q->kind == PART_MATCH) {
            *matches |= q->kind == PART_MATCH;
            x->picked[n++] = at;
        } else if (q->kind == PART_SPLIT || (q->kind == PART_BEGIN ? at_start : at_end)) {
            x->stack[n_stack++] = q->a;
            if (q->kind == PART_SPLIT)
                x->stack[n_stack++] = q->b;
        }
    }
    return n;
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static size_t push_targets(struct sets *x, size_t i, const int32_t *target, size_t n)
{
    size_t n_stack = 0;
    for (size_t k = 0; k < n; k++)
        if (target[k] >= x->first[i] && target[k] < x->first[i + 1])
            x->stack[n_stack++] = target[k];
    return n_stack;
}

/* Makes a set of target[n] in x->made, pattern by pattern.  A pattern that has matched stays so. */
static size_t make_set(struct sets *x, const int32_t *target, size_t n, bool at_start,
                       bool *accepts)
{
    size_t n_made = 0;
    *accepts = true;
    for (size_t i = 0; i < x->s->n_pattern; i++) {
        bool at_end, matched;
        close_over(x, push_targets(x, i, target, n), at_start, true, &at_end);
        size_t n_picked = close_over(x, push_targets(x, i, target, n), at_start, false, &matched);
        *accepts = *accepts && at_end;
        if (matched) {
            x->made[n_made++] = x->first[i]; /* its match */
            continue;
        }
        qsort(x->picked, n_picked, sizeof *x->picked, by_number);
        memcpy(x->made + n_made, x->picked, n_picked * sizeof *x->picked);
        n_made += n_picked;
    }
    return n_made;
}

/* The set of target[n] after `length` characters, or -1. */
static int32_t intern(struct sets *x, const int32_t *target, size_t n, uint32_t length,
                      bool at_start)
{
    bool accepts;
    size_t n_made = make_set(x, target, n, at_start, &accepts);
    accepts = accepts && length >= x->s->least;
    uint64_t h = kn_mix(length * 2 + accepts + KN_GOLDEN);
    for (size_t i = 0; i < n_made; i++)
        h = kn_mix(h ^ (uint64_t)x->made[i] * KN_GOLDEN);
    size_t slot = h % (2 * MOST_SETS);
    for (; x->table[slot] >= 0; slot = (slot + 1) % (2 * MOST_SETS)) {
        const struct set *s = &x->set[x->table[slot]];
        if (s->length == length && s->accepts == accepts && s->n == (int32_t)n_made &&
            !memcmp(&x->member[s->at], x->made, n_made * sizeof *x->made))
            return x->table[slot];
    }
    if (x->n == MOST_SETS || x->work > MOST_WORK)
        return refuse(x->p, KN_ELIMIT, "with its lengths needs too many states"), -1;
    struct set made = {x->n_member, (int32_t)n_made, length, accepts, gr_forward(x->p->b)};
    if (!gr_grow((void **)&x->set, &x->cap, x->n, sizeof *x->set))
        return refuse(x->p, KN_ENOMEM, "needs more memory than there is"), -1;
    for (size_t i = 0; i < n_made; i++) {
        if (!gr_grow((void **)&x->member, &x->cap_member, x->n_member, sizeof *x->member))
            return refuse(x->p, KN_ENOMEM, "needs more memory than there is"), -1;
        x->member[x->n_member++] = x->made[i];
    }
    x->set[x->n] = made;
    x->table[slot] = (int32_t)x->n;
    return (int32_t)x->n++;
}

static bool holds(const struct sets *x, const struct part *q, uint32_t code)
{
    for (int32_t i = 0; i < q->n_range; i++)
        if (code >= x->p->range[q->range + i].lo && code <= x->p->range[q->range + i].hi)
            return true;
    return false;
}

/* Where code leads from a set, into x->target. */
static size_t targets(struct sets *x, const struct set *s, uint32_t code)
{
    size_t n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        int32_t at = x->member[s->at + (size_t)i];
        const struct part *q = &x->p->part[at];
        x->work++;
        if (q->kind == PART_MATCH)
            x->target[n++] = at;
        else if (holds(x, q, code))
            x->target[n++] = q->a;
    }
    return n;
}

/* A set's node: a quote where the string may end, and one range for each run of code points that
 * lead to the same set. */
static void expand(struct sets *x, size_t at)
{
    struct gr_builder *b = x->p->b;
    int32_t node = gr_forward(b), last = -1;
    const uint32_t length = x->set[at].length;
    size_t n_last = SIZE_MAX;
    uint32_t from = 0;
    if (x->set[at].accepts)
        node = gr_either(b, node, gr_text(b, "\"", GR_END));
    bool full = x->s->most != GR_NO_LIMIT && length >= x->s->most;
    for (size_t i = 0; i <= x->n_cut && !x->p->failed && !full; i++) {
        size_t n = i < x->n_cut ? targets(x, &x->set[at], x->cut[i]) : 0;
        if (i < x->n_cut && n == n_last &&
            !memcmp(x->target, x->last_target, n * sizeof *x->target))
            continue;
        if (last >= 0)
            node = gr_either(b, node,
                             gr_code_points(b, from, i < x->n_cut ? x->cut[i] - 1 : LAST_CODE,
                                            x->set[last].node));
        if (i == x->n_cut)
            break;
        memcpy(x->last_target, x->target, n * sizeof *x->target);
        n_last = n;
        from = x->cut[i];
        last =
            n ? intern(x, x->target, n, length < x->cap_length ? length + 1 : length, false) : -1;
    }
    if (!b->error)
        gr_set(b, x->set[at].node, node);
}

static void collect_cuts(struct sets *x)
{
    x->cut[x->n_cut++] = 0;
    for (int32_t i = 0; i < x->p->n_range; i++) {
        x->cut[x->n_cut++] = x->p->range[i].lo;
        if (x->p->range[i].hi < LAST_CODE)
            x->cut[x->n_cut++] = x->p->range[i].hi + 1;
    }
    size_t n = 0;
    qsort(x->cut, x->n_cut, sizeof *x->cut, by_number);
    for (size_t i = 0; i < x->n_cut; i++)
        if (n == 0 || x->cut[n - 1] != x->cut[i])
            x->cut[n++] = x->cut[i];
    x->n_cut = n;
}

static int32_t follow_all(struct sets *x)
{
    memset(x->table, 0xff, sizeof x->table);
    collect_cuts(x);
    x->cap_length = x->s->most != GR_NO_LIMIT ? x->s->most : x->s->least;
    int32_t start = intern(x, x->start, x->s->n_pattern, 0, true);
    for (size_t i = 0; i < x->n && !x->p->failed && !x->p->b->error; i++)
        expand(x, i);
    return start < 0 ? GR_END : gr_text(x->p->b, "\"", x->set[start].node);
}

static int32_t patterns_rule(struct parser *p, const struct gr_string *s)
{
    struct sets *x = kn_calloc(1, sizeof *x);
    int32_t rule = GR_END;
    if (!x)
        return gr_fail(p->b, KN_ENOMEM, "no memory for a pattern");
    x->p = p;
    x->s = s;
    for (size_t i = 0; i < s->n_pattern && !p->failed; i++) {
        x->first[i] = p->n_part;
        x->start[i] = parse_pattern(p, s->pattern[i]);
        x->first[i + 1] = p->n_part;
    }
    size_t n = (size_t)p->n_part;
    x->cut = kn_alloc((2 * (size_t)p->n_range + 1) * sizeof *x->cut);
    x->seen = kn_calloc(n, sizeof *x->seen);
    x->stack = kn_alloc(3 * n * sizeof *x->stack);
    x->picked = kn_alloc(n * sizeof *x->picked);
    x->target = kn_alloc(n * sizeof *x->target);
    x->last_target = kn_alloc(n * sizeof *x->last_target);
    x->made = kn_alloc(n * sizeof *x->made);
    if (!p->failed && x->cut && x->seen && x->stack && x->picked && x->target && x->last_target &&
        x->made)
        rule = follow_all(x);
    else
        gr_fail(p->b, KN_ENOMEM, "no memory for a pattern");
    kn_free(x->cut);
    kn_free(x->seen);
    kn_free(x->stack);
    kn_free(x->picked);
    kn_free(x->target);
    kn_free(x->last_target);
    kn_free(x->made);
    kn_free(x->set);
    kn_free(x->member);
    kn_free(x);
    return rule;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static int32_t counted_rule(struct gr_builder *b, const struct gr_string *s)
{
    int32_t loop = gr_forward(b), quote = gr_text(b, "\"", GR_END);
    int32_t character = gr_count(b, s->least, s->most, gr_string_character(b, loop));
    gr_set(b, loop, gr_either(b, character, s->least ? gr_at_least(b, s->least, quote) : quote));
    return gr_text(b, "\"", loop);
}

int32_t gr_string_rule(struct gr_builder *b, const struct gr_string *s)
{
    if (s->n_pattern == 0 && s->least == 0 && s->most == GR_NO_LIMIT)
        return b->base[GR_STRING];
    if (s->n_pattern == 0)
        return counted_rule(b, s);
    if (s->n_pattern > MOST_PATTERNS)
        return gr_fail(b, KN_ELIMIT, "a string is held to more than %d patterns", MOST_PATTERNS);
    struct parser p = {.b = b};
    int32_t rule = GR_END;
    p.tree = kn_alloc(MOST_PARTS * sizeof *p.tree);
    p.part = kn_alloc(MOST_PARTS * sizeof *p.part);
    p.range = kn_alloc(MOST_RANGES * sizeof *p.range);
    if (p.tree && p.part && p.range)
        rule = patterns_rule(&p, s);
    else
        gr_fail(b, KN_ENOMEM, "no memory for a pattern");
    kn_free(p.tree);
    kn_free(p.part);
    kn_free(p.range);
    return rule;
}

/* ---- names ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct gr_member *x = *(const struct gr_member *const *)a,
                           *y = *(const struct gr_member *const *)b;
    return strcmp(x->name, y->name);
}

/* Where a string may go on that is so far the beginning of name[from..to).  Names are in order, so
 * those with the same next byte stand together.  Behind the names' own characters each is spelt in
 * one way; where a name goes on with a character above U+007F, no other such character is taken:
 * that loses names that nobody misses, and saves telling UTF-8 apart. */
struct naming {
    struct gr_builder *b;
    const struct gr_member **name;
    int32_t free, control, high; /* free itself; behind a control; behind U+0080 and above */
};

static int32_t name_node(const struct naming *x, size_t from, size_t to, size_t depth, int nesting)
{
    struct gr_builder *b = x->b;
    int32_t node = gr_forward(b);
    bool taken[0x80] = {false}, high = false, control = false;
    bool ends = from < to && !x->name[from]->name[depth];
    if (nesting > 256)
        return gr_fail(b, KN_ELIMIT, "a property's name has more than 256 bytes");
    for (size_t i = from + ends, end; i < to && !b->error; i = end) {
        const uint8_t c = (uint8_t)x->name[i]->name[depth];
        for (end = i; end < to && (uint8_t)x->name[end]->name[depth] == c; end++)
            ;
        control |= c < 0x20;
        high |= c >= 0x80;
        if (c >= 0x80)
            continue;
        taken[c] = true;
        node = gr_either(b, node,
                         gr_code_points(b, c, c, name_node(x, i, end, depth + 1, nesting + 1)));
    }
    for (uint32_t lo = 0x20, hi; lo < 0x80; lo = hi + 1) {
        for (hi = lo; hi < 0x7f && taken[hi + 1] == taken[lo]; hi++)
            ;
        if (!taken[lo])
            node = gr_either(b, node, gr_code_points(b, lo, hi, x->free));
    }
    if (!control)
        node = gr_either(b, node, x->control);
    if (!high)
        node = gr_either(b, node, x->high);
    return ends ? node : gr_either(b, node, gr_text(b, "\"", GR_END));
}

int32_t gr_other_names(struct gr_builder *b, const struct gr_member *m, size_t n)
{
    if (n == 0)
        return b->base[GR_STRING];
    struct naming x = {.b = b, .name = kn_alloc(n * sizeof *x.name), .free = gr_forward(b)};
    if (!x.name)
        return gr_fail(b, KN_ENOMEM, "no memory for %zu names", n);
    for (size_t i = 0; i < n; i++)
        x.name[i] = &m[i];
    qsort(x.name, n, sizeof *x.name, by_name);
    gr_set(b, x.free, gr_either(b, gr_text(b, "\"", GR_END), gr_string_character(b, x.free)));
    x.control = gr_code_points(b, 1, 0x1f, x.free);
    x.high = gr_code_points(b, 0x80, LAST_CODE, x.free);
    int32_t node = gr_text(b, "\"", name_node(&x, 0, n, 0, 0));
    kn_free(x.name);
    return node;
}
