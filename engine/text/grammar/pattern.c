/* engine/text/grammar/pattern.c - rules of strings with patterns and lengths, and of names other than given
 * ones.
 *
 * A string must match all its patterns, each an NFA over code points (regex.c).  The NFAs and the count of
 * characters are combined into one automaton (subset construction).  Each set of NFA states becomes a node;
 * determine.c later drops the nodes from which no end can be reached. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/regex.h"

enum {
    MOST_SETS = 1 << 14,
    MOST_WORK = 1 << 26,
};

/* ---- sets: all patterns and the length at once ----------------------------------------------- */

struct set {   /* a set of NFA states of all patterns, after a number of characters */
    size_t at; /* states: member[at .. at + n) */
    int32_t n;
    uint32_t length; /* characters so far, capped at cap_length */
    bool accepts;    /* the string may end */
    int32_t node;    /* its node in the builder */
};

struct sets {
    struct gr_regex_parser *p;
    const struct gr_string *s;
    int32_t start[GR_MOST_PATTERNS], first[GR_MOST_PATTERNS + 1]; /* pattern i: states first[i] .. first[i + 1] */
    struct set *set;                                              /* [n] */
    int32_t *member;         /* [n_member] CLASS and MATCH states, ascending per pattern */
    uint32_t *cut;           /* [n_cut] code points at which a class begins or ends */
    uint32_t *seen, stamp;   /* [n_part] == stamp: visited by the current close_over */
    int32_t *stack, *picked; /* [2 n_part], [n_part] */
    int32_t *target, *last_target,
        *made;                    /* [n_part] scratch: states after a code point; the same for the one before, to
                                             join equal ranges; the set that target leads to */
    int32_t table[2 * MOST_SETS]; /* hash table of sets; -1: free */
    size_t n, cap, n_member, cap_member, n_cut, work;
    uint32_t cap_length;
};

/* Stores in x->picked the CLASS and MATCH states that the n_stack states in x->stack reach without a character;
 * returns their number.  at_start: ^ matches here; at_end: $ matches here. */
static size_t close_over(struct sets *x, size_t n_stack, bool at_start, bool at_end, bool *matches)
{
    size_t n = 0;
    x->stamp++;
    *matches = false;
    while (n_stack > 0) {
        int32_t at = x->stack[--n_stack];
        const struct gr_part *q = &x->p->part[at];
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

/* Makes in x->made, pattern by pattern, the set of states that target[n] reach without a character; returns its
 * size.  A pattern that has matched stays matched. */
static size_t make_set(struct sets *x, const int32_t *target, size_t n, bool at_start, bool *accepts)
{
    size_t n_made = 0;
    *accepts = true;
    for (size_t i = 0; i < x->s->n_pattern; i++) {
        bool at_end, matched;
        close_over(x, push_targets(x, i, target, n), at_start, true, &at_end);
        size_t n_picked = close_over(x, push_targets(x, i, target, n), at_start, false, &matched);
        *accepts = *accepts && at_end;
        if (matched) {
            x->made[n_made++] = x->first[i]; /* its MATCH state */
            continue;
        }
        qsort(x->picked, n_picked, sizeof *x->picked, by_number);
        memcpy(x->made + n_made, x->picked, n_picked * sizeof *x->picked);
        n_made += n_picked;
    }
    return n_made;
}

/* The index of the set that target[n] reach after `length` characters, made if new; -1: refused. */
static int32_t intern(struct sets *x, const int32_t *target, size_t n, uint32_t length, bool at_start)
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
        return gr_regex_refuse(x->p, KN_ELIMIT, "needs too many states together with its length limits"), -1;
    struct set made = { x->n_member, (int32_t)n_made, length, accepts, gr_forward(x->p->b) };
    if (!gr_grow((void **)&x->set, &x->cap, x->n, sizeof *x->set))
        return gr_regex_refuse(x->p, KN_ENOMEM, "needs more memory than is available"), -1;
    for (size_t i = 0; i < n_made; i++) {
        if (!gr_grow((void **)&x->member, &x->cap_member, x->n_member, sizeof *x->member))
            return gr_regex_refuse(x->p, KN_ENOMEM, "needs more memory than is available"), -1;
        x->member[x->n_member++] = x->made[i];
    }
    x->set[x->n] = made;
    x->table[slot] = (int32_t)x->n;
    return (int32_t)x->n++;
}

static bool holds(const struct sets *x, const struct gr_part *q, uint32_t code)
{
    for (int32_t i = 0; i < q->n_range; i++)
        if (code >= x->p->range[q->range + i].lo && code <= x->p->range[q->range + i].hi)
            return true;
    return false;
}

/* Stores in x->target the states that the code point leads to from set s; returns their number. */
static size_t targets(struct sets *x, const struct set *s, uint32_t code)
{
    size_t n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        int32_t at = x->member[s->at + (size_t)i];
        const struct gr_part *q = &x->p->part[at];
        x->work++;
        if (q->kind == PART_MATCH)
            x->target[n++] = at;
        else if (holds(x, q, code))
            x->target[n++] = q->a;
    }
    return n;
}

/* Makes the node of set `at`: a quote if the string may end, and one range for adjacent code points that lead to
 * the same set. */
static void expand(struct sets *x, size_t at)
{
    struct gr_builder *b = x->p->b;
    int32_t (*points)(struct gr_builder *, uint32_t, uint32_t, int32_t) = x->s->is_bare ? gr_bare_code_points
                                                                                        : gr_code_points;
    int32_t node = gr_forward(b), last = -1;
    const uint32_t length = x->set[at].length;
    size_t n_last = SIZE_MAX;
    uint32_t from = 0;
    if (x->set[at].accepts)
        node = gr_either(b, node, x->s->is_bare ? GR_END : gr_quote(b, GR_END));
    bool full = x->s->most != GR_NO_LIMIT && length >= x->s->most;
    for (size_t i = 0; i <= x->n_cut && !x->p->failed && !full; i++) {
        size_t n = i < x->n_cut ? targets(x, &x->set[at], x->cut[i]) : 0;
        if (i < x->n_cut && n == n_last && !memcmp(x->target, x->last_target, n * sizeof *x->target))
            continue;
        if (last >= 0)
            node = gr_either(b, node, points(b, from, i < x->n_cut ? x->cut[i] - 1 : LAST_CODE, x->set[last].node));
        if (i == x->n_cut)
            break;
        memcpy(x->last_target, x->target, n * sizeof *x->target);
        n_last = n;
        from = x->cut[i];
        last = n ? intern(x, x->target, n, length < x->cap_length ? length + 1 : length, false) : -1;
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
    if (start < 0 || x->s->is_bare)
        return start < 0 ? GR_END : x->set[start].node;
    return gr_quote(x->p->b, x->set[start].node);
}

static int32_t patterns_rule(struct gr_regex_parser *p, const struct gr_string *s)
{
    struct sets *x = kn_calloc(1, sizeof *x);
    int32_t rule = GR_END;
    if (!x)
        return gr_fail(p->b, KN_ENOMEM, "no memory for a pattern");
    x->p = p;
    x->s = s;
    p->is_anchored = s->is_bare;
    for (size_t i = 0; i < s->n_pattern && !p->failed; i++) {
        x->first[i] = p->n_part;
        x->start[i] = gr_regex(p, s->pattern[i]);
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
    if (!p->failed && x->cut && x->seen && x->stack && x->picked && x->target && x->last_target && x->made)
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
    int32_t loop = gr_forward(b), quote = gr_quote(b, GR_END);
    int32_t character = gr_count(b, s->least, s->most, gr_string_character(b, loop));
    gr_set(b, loop, gr_either(b, character, s->least ? gr_at_least(b, s->least, quote) : quote));
    return gr_quote(b, loop);
}

int32_t gr_string_rule(struct gr_builder *b, const struct gr_string *s)
{
    if (s->n_pattern == 0 && s->least == 0 && s->most == GR_NO_LIMIT)
        return b->base[GR_STRING];
    if (s->n_pattern == 0)
        return counted_rule(b, s);
    struct gr_regex_parser p;
    int32_t rule = gr_regex_open(&p, b) ? patterns_rule(&p, s) : GR_END;
    gr_regex_close(&p);
    return rule;
}

int32_t gr_pattern(struct gr_builder *b, const char *pattern, int32_t next)
{
    return gr_call(b, gr_string_rule(b, &(struct gr_string){ &pattern, 1, 0, GR_NO_LIMIT, true }), next);
}

/* ---- names ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct gr_member *x = *(const struct gr_member *const *)a, *y = *(const struct gr_member *const *)b;
    return strcmp(x->name, y->name);
}

/* Rules of strings other than the given names.  name_node() makes the node for a text after `depth` bytes
 * that equal those of name[from .. to).  Names are sorted, so names with the same next byte are adjacent.  While the
 * text equals the beginning of a name, each character is accepted in one spelling only.  Where a name continues
 * with a character above U+007F, no character above U+007F is accepted: this loses a few valid names and avoids
 * comparing UTF-8 sequences.  Control characters are handled in the same way. */
struct naming {
    struct gr_builder *b;
    const struct gr_member **name;
    /* Nodes: any further text; a control character, then any; one above U+007F, then any. */
    int32_t free, control, high;
};

static int32_t name_node(const struct naming *x, size_t from, size_t to, size_t depth, int nesting)
{
    struct gr_builder *b = x->b;
    int32_t node = gr_forward(b);
    bool taken[0x80] = { false }, high = false, control = false;
    bool ends = from < to && !x->name[from]->name[depth];
    if (nesting > 256)
        return gr_fail(b, KN_ELIMIT, "a property's name is longer than 256 bytes");
    for (size_t i = from + ends, end; i < to && !b->error; i = end) {
        const uint8_t c = (uint8_t)x->name[i]->name[depth];
        for (end = i; end < to && (uint8_t)x->name[end]->name[depth] == c; end++)
            ;
        control |= c < 0x20;
        high |= c >= 0x80;
        if (c >= 0x80)
            continue;
        taken[c] = true;
        node = gr_either(b, node, gr_code_points(b, c, c, name_node(x, i, end, depth + 1, nesting + 1)));
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
    return ends ? node : gr_either(b, node, gr_quote(b, GR_END));
}

int32_t gr_other_names(struct gr_builder *b, const struct gr_member *m, size_t n)
{
    if (n == 0)
        return b->base[GR_NAME];
    struct naming x = { .b = b, .name = kn_alloc(n * sizeof *x.name), .free = gr_forward(b) };
    if (!x.name)
        return gr_fail(b, KN_ENOMEM, "no memory for %zu names", n);
    for (size_t i = 0; i < n; i++)
        x.name[i] = &m[i];
    qsort(x.name, n, sizeof *x.name, by_name);
    gr_set(b, x.free, gr_either(b, gr_quote(b, GR_END), gr_string_character(b, x.free)));
    x.control = gr_code_points(b, 1, 0x1f, x.free);
    x.high = gr_code_points(b, 0x80, LAST_CODE, x.free);
    int32_t node = gr_quote(b, name_node(&x, 0, n, 0, 0));
    kn_free(x.name);
    return node;
}
