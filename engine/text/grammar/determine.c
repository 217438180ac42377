/* engine/text/grammar/determine.c - compiles nodes to deterministic states (subset construction).
 *
 * A state is a set of nodes of one rule: the nodes that the bytes since the rule's start can lead to.
 * Sets are made when a byte first leads to them; equal sets are one state.  Calls, counts and the end of the rule
 * remain operations of a state, because they depend on the frame.  Then ways.c finds each state's path to the
 * end of its rule. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/automaton.h"

enum { MOST_WORK = 1 << 27, LEAST_TABLE = 1 << 10 };

struct set {
    size_t at;
    uint32_t n, hash;
};

struct maker {
    struct gr_builder *b;
    struct gr_grammar *g;
    struct set *set;                   /* [n_state] */
    int32_t *member;                   /* [n_member] nodes of all sets, ascending in each */
    int32_t *table;                    /* [mask + 1] sets by hash; -1: free */
    uint32_t *seen, stamp;             /* [n_node] == stamp: visited by the current close_over */
    int32_t *stack, *picked, *targets; /* [n_node] scratch */
    struct gr_op *op;                  /* [n_node] scratch: operations of a state */
    struct gr_node *active;            /* [n_node] scratch: byte ranges of a state */
    size_t n_member, cap_member, cap_state, cap_set, cap_edge, cap_op, mask, work;
};

static int fail_memory(struct maker *m)
{
    gr_fail(m->b, KN_ENOMEM, "no memory for the schema's automaton");
    return KN_ENOMEM;
}

static int too_large(struct maker *m)
{
    gr_fail(m->b, KN_ELIMIT, "the schema is too large: its automaton has too many states");
    return KN_ELIMIT;
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* ---- sets ------------------------------------------------------------------------------------ */

/* Stores in m->picked, ascending, the nodes reachable from node[n] through splits only; returns their number. */
static size_t close_over(struct maker *m, const int32_t *node, size_t n)
{
    size_t n_stack = 0, n_picked = 0;
    bool sorted = true;
    m->stamp++;
    for (size_t i = n; i-- > 0;)
        if (m->seen[node[i]] != m->stamp) {
            m->seen[node[i]] = m->stamp;
            m->stack[n_stack++] = node[i];
        }
    while (n_stack > 0) {
        int32_t at = m->stack[--n_stack];
        const struct gr_node *x = &m->b->node[at];
        m->work++;
        if (x->kind != GR_SPLIT) {
            sorted = sorted && (n_picked == 0 || m->picked[n_picked - 1] < at);
            m->picked[n_picked++] = at;
            continue;
        }
        for (int32_t i = x->b; i-- > 0;) {
            int32_t to = m->b->alt[x->a + i];
            m->work++;
            if (m->seen[to] == m->stamp)
                continue;
            m->seen[to] = m->stamp;
            m->stack[n_stack++] = to;
        }
    }
    if (!sorted)
        qsort(m->picked, n_picked, sizeof *m->picked, by_number);
    return n_picked;
}

static uint32_t hash_set(const int32_t *p, size_t n)
{
    uint64_t h = KN_GOLDEN + n;
    for (size_t i = 0; i < n; i++)
        h = kn_mix(h ^ (uint64_t)p[i] * KN_GOLDEN);
    return (uint32_t)h;
}

static bool grow_table(struct maker *m)
{
    if (m->table && m->g->n_state * 2 <= m->mask)
        return true;
    size_t size = m->mask ? (m->mask + 1) * 2 : LEAST_TABLE;
    int32_t *table = kn_alloc(size * sizeof *table);
    if (!table)
        return false;
    memset(table, 0xff, size * sizeof *table);
    for (size_t s = 0; s < m->g->n_state; s++) {
        size_t i = m->set[s].hash & (size - 1);
        while (table[i] >= 0)
            i = (i + 1) & (size - 1);
        table[i] = (int32_t)s;
    }
    kn_free(m->table);
    m->table = table;
    m->mask = size - 1;
    return true;
}

static int add_set(struct maker *m, size_t n, uint32_t hash, size_t slot)
{
    struct gr_grammar *g = m->g;
    if (g->n_state >= GR_MOST_STATES || m->n_member + n > GR_MOST_MEMBERS || m->work > MOST_WORK)
        return too_large(m);
    if (!gr_grow((void **)&g->state, &m->cap_state, g->n_state, sizeof *g->state) ||
        !gr_grow((void **)&m->set, &m->cap_set, g->n_state, sizeof *m->set))
        return fail_memory(m);
    for (size_t i = 0; i < n; i++) {
        if (!gr_grow((void **)&m->member, &m->cap_member, m->n_member, sizeof *m->member))
            return fail_memory(m);
        m->member[m->n_member++] = m->picked[i];
    }
    m->set[g->n_state] = (struct set){ m->n_member - n, (uint32_t)n, hash };
    g->state[g->n_state] = (struct gr_dstate){ .need = GR_NEVER, .token_need = GR_NEVER, .way = GR_WAY_NONE };
    m->table[slot] = (int32_t)g->n_state++;
    return 0;
}

/* Stores in *out the state of the nodes that node[n] reaches without a byte; makes the state if it is new. */
static int intern(struct maker *m, const int32_t *node, size_t n, int32_t *out)
{
    if (!grow_table(m))
        return fail_memory(m);
    size_t n_picked = close_over(m, node, n);
    uint32_t hash = hash_set(m->picked, n_picked);
    size_t i = hash & m->mask;
    for (; m->table[i] >= 0; i = (i + 1) & m->mask) {
        const struct set *s = &m->set[m->table[i]];
        if (s->hash == hash && s->n == n_picked &&
            !memcmp(&m->member[s->at], m->picked, n_picked * sizeof *m->picked)) {
            *out = m->table[i];
            return 0;
        }
    }
    int e = add_set(m, n_picked, hash, i);
    *out = (int32_t)m->g->n_state - 1;
    return e;
}

/* ---- edges and operations -------------------------------------------------------------------- */

static int add_edge(struct maker *m, int32_t state, int lo, int hi, int32_t to)
{
    struct gr_grammar *g = m->g;
    struct gr_dstate *s = &g->state[state];
    struct gr_edge *last = s->n_edge ? &g->edge[g->n_edge - 1] : NULL;
    if (last && last->to == to && last->hi + 1 == lo) {
        last->hi = (uint8_t)hi;
        return 0;
    }
    if (!gr_grow((void **)&g->edge, &m->cap_edge, g->n_edge, sizeof *g->edge))
        return fail_memory(m);
    g->edge[g->n_edge++] = (struct gr_edge){ (uint8_t)lo, (uint8_t)hi, to };
    s->n_edge++;
    return 0;
}

static int by_first_byte(const void *a, const void *b)
{
    const struct gr_node *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Makes the edges of a state from its byte ranges, m->active[n].  Bytes between two neighbouring ends of ranges
 * have the same targets. */
static int make_edges(struct maker *m, int32_t state, size_t n)
{
    bool cut[257] = { false };
    for (size_t i = 0; i < n; i++)
        cut[m->active[i].lo] = cut[m->active[i].hi + 1] = true;
    qsort(m->active, n, sizeof *m->active, by_first_byte);
    size_t first = 0, end = 0; /* active[first..end) may hold the byte */
    for (int lo = 0, hi; lo < 256; lo = hi + 1) {
        for (hi = lo; hi < 255 && !cut[hi + 1]; hi++)
            ;
        while (end < n && m->active[end].lo <= lo)
            end++;
        size_t n_target = 0, kept = end;
        for (size_t i = end; i-- > first;) /* ranges that continue move to the back */
            if (m->active[i].hi >= lo) {
                m->targets[n_target++] = m->active[i].a;
                m->active[--kept] = m->active[i];
            }
        m->work += end - first;
        first = kept;
        if (n_target == 0)
            continue;
        int32_t to;
        int e = intern(m, m->targets, n_target, &to);
        if (!e)
            e = add_edge(m, state, lo, hi, to);
        if (e)
            return e;
    }
    return 0;
}

static int by_what(const void *a, const void *b)
{
    const struct gr_op *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->kind == GR_CALL)
        return (x->a > y->a) - (x->a < y->a);
    if (x->least != y->least)
        return x->least < y->least ? -1 : 1;
    return (x->most > y->most) - (x->most < y->most);
}

/* Adds the operations of a state from those of its nodes, m->op[n].  Equal operations become one operation with
 * the union of their targets. */
static int make_ops(struct maker *m, int32_t state, size_t n)
{
    struct gr_grammar *g = m->g;
    for (size_t i = 0; i < n; i++)
        if (m->op[i].kind == GR_CALL) {
            const int32_t callee = m->op[i].a;
            int e = intern(m, &callee, 1, &m->op[i].a);
            if (e)
                return e;
        }
    qsort(m->op, n, sizeof *m->op, by_what);
    for (size_t i = 0, end; i < n; i = end) {
        struct gr_op op = m->op[i];
        int e = 0;
        size_t n_target = 0;
        for (end = i; end < n && by_what(&m->op[i], &m->op[end]) == 0; end++)
            m->targets[n_target++] = op.kind == GR_CALL ? m->op[end].b : m->op[end].a;
        e = intern(m, m->targets, n_target, op.kind == GR_CALL ? &op.b : &op.a);
        if (e)
            return e;
        if (!gr_grow((void **)&g->op, &m->cap_op, g->n_op, sizeof *g->op))
            return fail_memory(m);
        g->op[g->n_op++] = op;
        if (++g->state[state].n_op >= GR_CONFIGS) {
            gr_fail(m->b, KN_ELIMIT, "the schema has more than %d alternatives that begin alike", GR_CONFIGS);
            return KN_ELIMIT;
        }
    }
    return 0;
}

static int expand(struct maker *m, int32_t state)
{
    struct gr_grammar *g = m->g;
    size_t n_op = 0, n_edge = 0;
    g->state[state].edge = (int32_t)g->n_edge;
    g->state[state].op = (int32_t)g->n_op;
    for (uint32_t i = 0; i < m->set[state].n; i++) {
        const struct gr_node *x = &m->b->node[m->member[m->set[state].at + i]];
        if (x->kind == GR_RETURN)
            g->state[state].returns = true;
        else if (x->kind == GR_BYTES)
            m->active[n_edge++] = *x;
        else
            m->op[n_op++] = (struct gr_op){ x->kind, x->a, x->b, x->least, x->most };
    }
    int e = n_edge ? make_edges(m, state, n_edge) : 0;
    return e || !n_op ? e : make_ops(m, state, n_op);
}

/* ---- compiling ------------------------------------------------------------------------------- */

static int by_count(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int collect_marks(struct maker *m)
{
    struct gr_grammar *g = m->g;
    g->mark = kn_alloc((2 * g->n_op + 1) * sizeof *g->mark);
    if (!g->mark)
        return fail_memory(m);
    size_t n = 0;
    for (size_t i = 0; i < g->n_op; i++) {
        if (g->op[i].kind != GR_CALL && g->op[i].least > 0)
            g->mark[n++] = g->op[i].least;
        if (g->op[i].kind == GR_COUNT && g->op[i].most != GR_NO_LIMIT)
            g->mark[n++] = g->op[i].most;
    }
    qsort(g->mark, n, sizeof *g->mark, by_count);
    for (size_t i = 0; i < n; i++)
        if (g->n_mark == 0 || g->mark[g->n_mark - 1] != g->mark[i])
            g->mark[g->n_mark++] = g->mark[i];
    return 0;
}

static int make_states(struct maker *m, int32_t start)
{
    struct gr_grammar *g = m->g;
    size_t done = 0;
    int32_t ignored;
    int e = 0;
    for (int i = 0; i < GR_SHARED * GR_BASES && !e; i++)
        e = intern(m, &m->b->spelling[i / GR_BASES][i % GR_BASES], 1, &ignored);
    for (; !e && done < g->n_state; done++)
        e = expand(m, (int32_t)done);
    g->n_base = (int32_t)g->n_state;
    if (!e)
        e = intern(m, &start, 1, &g->start);
    for (; !e && done < g->n_state; done++)
        e = expand(m, (int32_t)done);
    if (!e)
        e = gr_find_ways(m->b, g);
    return e ? e : collect_marks(m);
}

static int check_start(struct maker *m)
{
    const struct gr_dstate *s = &m->g->state[m->g->start];
    if (s->need == GR_NEVER)
        gr_fail(m->b, KN_EINVAL, "nothing satisfies the schema");
    else if (s->need <= GR_DEPTH && s->token_need == GR_NEVER)
        gr_fail_tokens(m->b, m->g);
    else if (s->token_need > GR_DEPTH)
        gr_fail(m->b, KN_ELIMIT, "values of the schema are nested more than %d levels deep", GR_DEPTH);
    return m->b->error;
}

int gr_compile(struct gr_grammar **out, struct gr_builder *b, int32_t start, const struct gr_tokens *tokens)
{
    static _Atomic uint64_t serial;
    if (b->error)
        return b->error;
    struct maker m = { .b = b, .g = kn_calloc(1, sizeof *m.g) };
    size_t n = b->n_node;
    if (m.g)
        m.g->tokens = tokens;
    m.seen = kn_calloc(n, sizeof *m.seen);
    m.stack = kn_alloc(n * sizeof *m.stack);
    m.picked = kn_alloc(n * sizeof *m.picked);
    m.targets = kn_alloc(n * sizeof *m.targets);
    m.op = kn_alloc(n * sizeof *m.op);
    m.active = kn_alloc(n * sizeof *m.active);
    int e = m.g && m.seen && m.stack && m.picked && m.targets && m.op && m.active ? make_states(&m, start)
                                                                                  : fail_memory(&m);
    if (!e)
        e = check_start(&m);
    kn_free(m.set);
    kn_free(m.member);
    kn_free(m.table);
    kn_free(m.seen);
    kn_free(m.stack);
    kn_free(m.picked);
    kn_free(m.targets);
    kn_free(m.op);
    kn_free(m.active);
    if (e) {
        gr_close(m.g);
        return e;
    }
    m.g->serial = ++serial;
    *out = m.g;
    return 0;
}

void gr_close(struct gr_grammar *g)
{
    if (!g)
        return;
    kn_free(g->state);
    kn_free(g->edge);
    kn_free(g->op);
    kn_free(g->mark);
    kn_free(g);
}

size_t gr_bytes(const struct gr_grammar *g)
{
    return sizeof *g + g->n_state * sizeof *g->state + g->n_edge * sizeof *g->edge + g->n_op * sizeof *g->op +
           g->n_mark * sizeof *g->mark;
}
