/* engine/text/grammar/ways.c - paths from each state of a grammar to the end of its rule.
 *
 * In: states, edges and operations.  Out: for each state the first step of its path (`way`), the calls that are
 * nested on the path at most (`need`), and the same for a path of whole tokens (`token_need`).  A state without a
 * way cannot finish and is never entered.
 *
 * States get their ways in order of nesting depth, then of path length in bytes (Knuth's generalisation of
 * Dijkstra's algorithm: the cost of a call is that of the called rule and of the path after the call).  So the path
 * along the ways needs the fewest frames possible.
 *
 * Where the vocabulary has a token for every byte, every path is one of tokens.  Otherwise a second search takes the
 * bytes that are tokens; the control tokens; and, for states that this leaves without a way, tokens that contain a
 * byte that is no token, as far as they stay within one rule. */
#include <stdio.h>
#include <string.h>

#include "engine/text/grammar/automaton.h"

enum { MOST_WORK = 1 << 27 };

struct found {
    uint16_t need;
    int32_t way;
    uint32_t distance;
};

struct offer {
    uint32_t distance;
    uint16_t need;
    int32_t state, way;
};

struct leap { /* the path of a token of several bytes, within a rule */
    int32_t from, to;
};

struct ways {
    struct gr_builder *b;
    struct gr_grammar *g;
    const struct gr_trie *trie; /* the steps are tokens of this trie; NULL: bytes */
    struct found *found;        /* [n_state] */
    struct leap *leap;          /* [n_leap] in ascending order of `from` */
    bool *blocked;              /* [n_op] a GR_ATLEAST that cannot count up to its `least` */
    struct user {
        int32_t state, way;
    } * user;           /* [n_user] steps (a state and a way), sorted by the state that the step leads to */
    size_t *first;      /* [n_state + 1] index in user of the first step to each state */
    struct offer *heap; /* [2 n_user + n_state] */
    size_t n_heap, n_leap, cap_leap, work;
};

static int fail_memory(struct ways *w)
{
    gr_fail(w->b, KN_ENOMEM, "no memory for the schema's automaton");
    return KN_ENOMEM;
}

static int too_much_work(struct ways *w)
{
    gr_fail(w->b, KN_ELIMIT, "the schema is too large for this model's vocabulary");
    return KN_ELIMIT;
}

/* ---- a queue of offers ----------------------------------------------------------------------- */

static bool offer_before(const struct offer *x, const struct offer *y)
{
    if (x->need != y->need)
        return x->need < y->need;
    if (x->distance != y->distance)
        return x->distance < y->distance;
    return x->state < y->state;
}

static void offer_push(struct ways *w, struct offer o)
{
    size_t i = w->n_heap++;
    for (; i > 0 && offer_before(&o, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = o;
}

static struct offer offer_pop(struct ways *w)
{
    struct offer top = w->heap[0], o = w->heap[--w->n_heap];
    size_t i = 0, child;
    for (; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && offer_before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!offer_before(&w->heap[child], &o))
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = o;
    return top;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The way of leap i of a state: beyond its edges and operations. */
static int32_t leap_way(const struct gr_dstate *s, size_t i) { return s->n_edge + s->n_op + (int32_t)i; }

/* visit_all calls fn with each target (`to`) of each step (`way`: edge, operation or leap) of each state. */
typedef void visit(struct ways *w, int32_t state, int32_t way, int32_t to);

static void visit_all(struct ways *w, visit *fn)
{
    const struct gr_grammar *g = w->g;
    for (int32_t s = 0; s < (int32_t)g->n_state; s++) {
        const struct gr_dstate *x = &g->state[s];
        for (int i = 0; i < x->n_edge; i++)
            fn(w, s, i, g->edge[x->edge + i].to);
        for (int i = 0; i < x->n_op; i++) {
            const struct gr_op *op = &g->op[x->op + i];
            fn(w, s, x->n_edge + i, op->a);
            if (op->kind == GR_CALL)
                fn(w, s, x->n_edge + i, op->b);
        }
    }
    for (size_t i = 0; i < w->n_leap; i++)
        fn(w, w->leap[i].from, leap_way(&g->state[w->leap[i].from], i), w->leap[i].to);
}

static void count_user(struct ways *w, int32_t state, int32_t way, int32_t to)
{
    (void)state;
    (void)way;
    w->first[to + 1]++;
}

static void put_user(struct ways *w, int32_t state, int32_t way, int32_t to)
{
    w->user[w->first[to]++] = (struct user){ state, way };
}

static uint32_t add_distance(uint32_t a, uint32_t b) { return a > UINT32_MAX - b ? UINT32_MAX : a + b; }

static bool has_byte(const struct ways *w, const struct gr_edge *e)
{
    for (int c = e->lo; c <= e->hi; c++)
        if (!w->trie || w->trie->single[c])
            return true;
    return false;
}

static bool offer_op(const struct ways *w, size_t at, struct offer *o)
{
    const struct gr_op *op = &w->g->op[at];
    const struct found *a = &w->found[op->a], *b = op->kind == GR_CALL ? &w->found[op->b] : a;
    if (a->need == GR_NEVER || b->need == GR_NEVER || w->blocked[at])
        return false;
    o->need = a->need;
    o->distance = a->distance;
    if (op->kind == GR_CALL) {
        o->need = (uint16_t)kn_max(a->need + 1, b->need);
        o->distance = add_distance(a->distance, b->distance);
    } else if (op->kind == GR_ATLEAST) {
        o->distance = add_distance(o->distance, op->least);
    }
    return true;
}

/* Pushes step u with its cost as an offer for its state, unless the state has a way or a target has none yet. */
static void offer_step(struct ways *w, const struct user *u)
{
    const struct gr_dstate *s = &w->g->state[u->state];
    struct offer o = { .state = u->state, .way = u->way };
    if (w->found[u->state].need != GR_NEVER)
        return;
    if (u->way < s->n_edge) {
        const struct gr_edge *e = &w->g->edge[s->edge + u->way];
        if (!has_byte(w, e))
            return;
        o.need = w->found[e->to].need;
        o.distance = add_distance(w->found[e->to].distance, 1);
    } else if (u->way < s->n_edge + s->n_op) {
        if (!offer_op(w, (size_t)(s->op + u->way - s->n_edge), &o))
            return;
    } else {
        const struct found *to = &w->found[w->leap[u->way - leap_way(s, 0)].to];
        o.need = to->need;
        o.distance = add_distance(to->distance, 1);
    }
    if (o.need < GR_NEVER - 1)
        offer_push(w, o);
}

/* ---- the search ------------------------------------------------------------------------------ */

static int allocate(struct ways *w)
{
    const struct gr_grammar *g = w->g;
    const size_t n_user = g->n_edge + 2 * g->n_op + w->n_leap;
    kn_free(w->user);
    kn_free(w->heap);
    w->user = kn_alloc((n_user + 1) * sizeof *w->user);
    w->heap = kn_alloc((2 * n_user + g->n_state + 1) * sizeof *w->heap);
    if (!w->first)
        w->first = kn_alloc((g->n_state + 2) * sizeof *w->first);
    if (!w->found)
        w->found = kn_alloc((g->n_state + 1) * sizeof *w->found);
    if (!w->blocked)
        w->blocked = kn_calloc(g->n_op + 1, sizeof *w->blocked);
    w->work += n_user;
    return w->user && w->heap && w->first && w->found && w->blocked ? 0 : fail_memory(w);
}

/* Fills w->found. */
static int find(struct ways *w)
{
    struct gr_grammar *g = w->g;
    int e = allocate(w);
    if (e)
        return e;
    memset(w->first, 0, (g->n_state + 2) * sizeof *w->first);
    visit_all(w, count_user);
    for (size_t i = 1; i < g->n_state; i++)
        w->first[i] += w->first[i - 1];
    visit_all(w, put_user); /* afterwards first[s] is the end of the steps of s */
    for (int32_t s = 0; s < (int32_t)g->n_state; s++) {
        w->found[s] = (struct found){ .need = GR_NEVER, .way = GR_WAY_NONE };
        if (g->state[s].returns)
            offer_push(w, (struct offer){ .state = s, .way = GR_WAY_RETURN });
    }
    while (w->n_heap > 0) {
        struct offer o = offer_pop(w);
        if (w->found[o.state].need != GR_NEVER)
            continue;
        w->found[o.state] = (struct found){ o.need, o.way, o.distance };
        for (size_t i = o.state ? w->first[o.state - 1] : 0; i < w->first[o.state]; i++)
            offer_step(w, &w->user[i]);
    }
    return 0;
}

/* ---- tokens of several bytes ----------------------------------------------------------------- */

/* Adds the leaps of state `from` along tokens in trie nodes top .. end - 1 that contain a byte that is no token. */
static int add_leaps(struct ways *w, int32_t from, size_t top, size_t end)
{
    const struct gr_trie *r = w->trie;
    int32_t at[GR_TOKEN_BYTES + 1], last = -1;
    bool rare[GR_TOKEN_BYTES + 1] = { false };
    at[0] = from;
    for (size_t i = top; i < end; w->work++) {
        const int d = r->depth[i];
        rare[d] = rare[d - 1] || !r->single[r->byte[i]];
        at[d] = rare[d] || r->is_rare[i] ? gr_follow(w->g, at[d - 1], r->byte[i]) : -1;
        if (at[d] < 0) {
            i = (size_t)r->skip[i];
            continue;
        }
        if (rare[d] && r->first[i + 1] > r->first[i] && at[d] != last) {
            if (!gr_grow((void **)&w->leap, &w->cap_leap, w->n_leap, sizeof *w->leap))
                return fail_memory(w);
            w->leap[w->n_leap++] = (struct leap){ from, last = at[d] };
        }
        i++;
    }
    return w->work + w->n_leap > MOST_WORK ? too_much_work(w) : 0;
}

/* The trie nodes of the control tokens are *top .. *end - 1. */
static void control_nodes(const struct gr_trie *r, size_t *top, size_t *end)
{
    *top = *end = r->n_node;
    for (size_t i = 1; i < r->n_node; i = (size_t)r->skip[i])
        if (r->byte[i] == GR_CONTROL_BYTE) {
            *top = i;
            *end = (size_t)r->skip[i];
        }
}

/* Leaps of all states along control tokens; of states in `lacking` (or NULL) along other tokens too. */
static int collect_leaps(struct ways *w, const bool *lacking)
{
    const struct gr_grammar *g = w->g;
    size_t top, end;
    int e = 0;
    control_nodes(w->trie, &top, &end);
    w->n_leap = 0;
    for (int32_t s = 0; s < (int32_t)g->n_state && !e; s++) {
        const struct gr_dstate *x = &g->state[s];
        if (x->n_edge == 0)
            continue;
        if (g->edge[x->edge + x->n_edge - 1].hi == GR_CONTROL_BYTE)
            e = add_leaps(w, s, top, end);
        if (!e && lacking && lacking[s])
            e = add_leaps(w, s, 1, top); /* the byte of control tokens is the greatest */
    }
    return e;
}

/* Blocks each GR_ATLEAST beside a GR_COUNT whose repetition no tokens can write: below its `least` no path would go
 * on.  Returns whether it blocked one. */
static bool block(struct ways *w)
{
    const struct gr_grammar *g = w->g;
    bool any = false;
    for (size_t s = 0; s < g->n_state; s++) {
        const struct gr_dstate *x = &g->state[s];
        for (int i = 0; i < x->n_op && w->found[s].need != GR_NEVER; i++) {
            const struct gr_op *op = &g->op[x->op + i];
            if (op->kind != GR_ATLEAST || op->least == 0 || w->blocked[x->op + i])
                continue;
            bool counts = false;
            for (int k = 0; k < x->n_op; k++) {
                const struct gr_op *c = &g->op[x->op + k];
                counts |= c->kind == GR_COUNT && c->least == op->least && w->found[c->a].need != GR_NEVER;
            }
            w->blocked[x->op + i] = !counts;
            any |= !counts;
        }
    }
    return any;
}

static int find_blocking(struct ways *w)
{
    int e;
    while (!(e = find(w)) && block(w))
        if (w->work > MOST_WORK)
            return too_much_work(w);
    return e;
}

/* Sets lacking[s] for each state that bytes finish and tokens do not; returns whether there are any. */
static bool find_lacking(const struct ways *w, bool *lacking)
{
    bool any = false;
    for (size_t s = 0; s < w->g->n_state; s++)
        any |= lacking[s] = w->g->state[s].need != GR_NEVER && w->found[s].need == GR_NEVER;
    return any;
}

static int find_tokens(struct ways *w)
{
    const struct gr_grammar *g = w->g;
    bool *lacking = kn_alloc((g->n_state + 1) * sizeof *lacking);
    w->trie = gr_trie_of(g->tokens);
    int e = lacking ? collect_leaps(w, NULL) : fail_memory(w);
    if (!e)
        e = find_blocking(w);
    if (!e && find_lacking(w, lacking)) {
        e = collect_leaps(w, lacking);
        memset(w->blocked, 0, g->n_op * sizeof *w->blocked);
        if (!e)
            e = find_blocking(w);
    }
    kn_free(lacking);
    return e;
}

int gr_find_ways(struct gr_builder *b, struct gr_grammar *g)
{
    struct ways w = { .b = b, .g = g };
    int e = find(&w);
    for (size_t s = 0; s < g->n_state && !e; s++) {
        g->state[s].need = g->state[s].token_need = w.found[s].need;
        g->state[s].way = w.found[s].way;
        g->state[s].distance = w.found[s].distance;
    }
    g->is_exact = true;
    if (!e && g->tokens)
        e = find_tokens(&w);
    for (size_t s = 0; s < g->n_state && !e && g->tokens; s++) {
        g->state[s].token_need = (uint16_t)kn_max(w.found[s].need, g->state[s].need);
        g->is_exact = g->is_exact && g->state[s].token_need == g->state[s].need;
    }
    kn_free(w.found);
    kn_free(w.leap);
    kn_free(w.blocked);
    kn_free(w.user);
    kn_free(w.first);
    kn_free(w.heap);
    return e;
}

/* ---- why no tokens finish -------------------------------------------------------------------- */

/* The first byte on the way from `state` to the end of its rule that is no token; -1: none within *left steps. */
static int missing_byte(const struct gr_grammar *g, const struct gr_trie *r, int32_t state, int *left)
{
    while ((*left)-- > 0 && g->state[state].way >= 0) {
        const struct gr_dstate *s = &g->state[state];
        if (s->way < s->n_edge) {
            const struct gr_edge *e = &g->edge[s->edge + s->way];
            if (!r->single[e->lo] && e->lo == e->hi)
                return e->lo;
            state = e->to;
            continue;
        }
        const struct gr_op *op = &g->op[s->op + s->way - s->n_edge];
        int byte = op->kind == GR_CALL ? missing_byte(g, r, op->a, left) : -1;
        if (byte >= 0)
            return byte;
        state = op->kind == GR_CALL ? op->b : op->a;
    }
    return -1;
}

void gr_fail_tokens(struct gr_builder *b, const struct gr_grammar *g)
{
    int left = 1 << 16, byte = missing_byte(g, gr_trie_of(g->tokens), g->start, &left);
    char which[32] = "";
    if (byte >= 0)
        snprintf(which, sizeof which, " (byte 0x%02x)", byte);
    gr_fail(b, KN_EUNSUPPORTED, "this model's vocabulary has no tokens for a text that the schema requires%s", which);
}
