/* engine/text/grammar/mask.c - masks of the tokens that a grammar state accepts.
 *
 * Owns a trie of the tokens' bytes in preorder, and a cache of masks.  A walk steps the state along
 * the trie and skips the subtree of every refused byte.  So a state that accepts few tokens is cheap:
 * 20 ns per byte tried.
 *
 * Inside a string nearly all of 150,000 tokens are accepted, and a walk takes about 10 ms.  Such
 * masks are cached, one per configuration.  The frames are no part of the key, which keeps the number
 * of masks small.  A
 * cached entry has the mask of the tokens that stay within the rule, and the exits: the trie nodes at
 * which the rule may end.  From the exits the walk continues with the rule that called this rule.  The
 * result equals that of a walk without the cache, except near a limit of grammar.h: there the cache is
 * not used.
 *
 * A token is accepted if each of its bytes is and if after it whole tokens can complete the text.  In a vocabulary
 * in which every byte is a token the second condition follows from the first (gr_grammar.is_exact).
 *
 * A control token is the byte 0xFF, which does not occur in text, and three bytes of its id. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/automaton.h"
#include "speculative/speculative.h"

enum {
    NARROW = 4096, /* masks are cached if the walk has more steps than this */
    MOST_EXITS = 8192,
    N_WAY = 8, /* associativity of the cache: number of slots in which a key can be */
};

struct slot {              /* cache entry; key: serial, state, count */
    uint64_t serial, tick; /* grammar; time of last use, 0: free */
    int32_t state;
    uint32_t count;
    uint16_t height, width, frames; /* maxima of depth, configurations, frames in the walk; read by usable() */
    int32_t n_exit;
};

struct gr_tokens {
    const struct eng_vocab *vocab;
    int n_vocab, longest, n_stop;
    size_t n_word;
    struct gr_trie trie;
    int32_t *stop;        /* [n_stop] */
    pthread_mutex_t lock; /* of the members below */
    size_t n_slot;
    uint64_t tick;
    struct slot *slot; /* [n_slot] */
    uint32_t *mask;    /* [n_slot][n_word] */
    int32_t *exit;     /* [n_slot][MOST_EXITS] */
};

struct gr_scratch {
    struct gr_state at[GR_TOKEN_BYTES + 1]; /* by depth in the trie */
    struct gr_state rest, last;
    int32_t exit[MOST_EXITS];
    uint32_t *mask; /* [n_word] */
};

/* ---- the trie -------------------------------------------------------------------------------- */

/* The bytes of a token in the trie; empty: the token is not in the trie.  The bytes of a control token are in buf. */
static struct moe_string token_bytes(const struct eng_vocab *v, int32_t id, char buf[4])
{
    struct moe_string none = { .data = NULL, .n = 0 };
    switch (eng_vocab_type(v, id)) {
    case ENG_TOKEN_CONTROL:
        buf[0] = (char)GR_CONTROL_BYTE;
        buf[1] = (char)(id >> 16);
        buf[2] = (char)(id >> 8);
        buf[3] = (char)id;
        return (struct moe_string){ .data = buf, .n = 4 };
    case ENG_TOKEN_UNKNOWN:
    case ENG_TOKEN_UNUSED:
        return none;
    default:
        break;
    }
    struct moe_string s = eng_vocab_text(v, id);
    const bool is_text = s.n <= GR_TOKEN_BYTES && !(s.n && memchr(s.data, GR_CONTROL_BYTE, s.n));
    return is_text ? s : none;
}

static int by_text(const void *a, const void *b, void *arg)
{
    char x_buf[4], y_buf[4];
    const int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    struct moe_string x = token_bytes(arg, i, x_buf), y = token_bytes(arg, k, y_buf);
    int c = memcmp(x.data, y.data, x.n < y.n ? x.n : y.n);
    if (c == 0 && x.n != y.n)
        return x.n < y.n ? -1 : 1;
    return c ? c : (i > k) - (i < k);
}

static size_t common(struct moe_string x, struct moe_string y)
{
    size_t n = 0;
    while (n < x.n && n < y.n && x.data[n] == y.data[n])
        n++;
    return n;
}

/* Fills the trie and returns its number of nodes; with t->trie.byte NULL only counts the nodes.  A node's subtree
 * ends at the next node in preorder that is not deeper than the node. */
static size_t grow_trie(struct gr_tokens *t, const int32_t *id, int n)
{
    size_t at = 1;
    char buf[2][4];
    struct moe_string last = { .data = NULL, .n = 0 };
    for (int i = 0; i < n; i++) {
        struct moe_string s = token_bytes(t->vocab, id[i], buf[i & 1]);
        for (size_t d = i ? common(last, s) : 0; d < s.n; d++, at++) {
            if (!t->trie.byte)
                continue;
            t->trie.byte[at] = (uint8_t)s.data[d];
            t->trie.depth[at] = (uint8_t)(d + 1);
            t->trie.first[at] = i;
        }
        last = s;
    }
    if (!t->trie.byte)
        return at;
    t->trie.first[at] = n;
    for (size_t i = at; i-- > 0;) {
        size_t end = i + 1;
        while (end < at && t->trie.depth[end] > t->trie.depth[i])
            end = (size_t)t->trie.skip[end];
        t->trie.skip[i] = (int32_t)end;
    }
    return at;
}

/* Sets trie.single and trie.is_rare. */
static void note_bytes(struct gr_trie *r)
{
    for (size_t i = 1; i < r->n_node; i = (size_t)r->skip[i])
        r->single[r->byte[i]] = r->first[i + 1] > r->first[i];
    for (size_t i = r->n_node; i-- > 1;) {
        r->is_rare[i] = !r->single[r->byte[i]];
        for (size_t k = i + 1; k < (size_t)r->skip[i] && !r->is_rare[i]; k = (size_t)r->skip[k])
            r->is_rare[i] = r->is_rare[k];
    }
}

static int build_trie(struct gr_tokens *t)
{
    int n = 0;
    char buf[4];
    t->trie.id = kn_alloc((size_t)t->n_vocab * sizeof *t->trie.id);
    t->stop = kn_alloc((size_t)t->n_vocab * sizeof *t->stop);
    if (!t->trie.id || !t->stop)
        return KN_ENOMEM;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t bytes = token_bytes(t->vocab, id, buf).n;
        if (eng_vocab_is_stop(t->vocab, id))
            t->stop[t->n_stop++] = id;
        else if (bytes > 0)
            t->trie.id[n++] = id;
        t->longest = kn_max(t->longest, (int)bytes);
    }
    qsort_r(t->trie.id, (size_t)n, sizeof *t->trie.id, by_text, (void *)(uintptr_t)t->vocab);
    t->trie.n_node = grow_trie(t, t->trie.id, n);
    t->trie.depth = kn_calloc(t->trie.n_node, sizeof *t->trie.depth);
    t->trie.skip = kn_calloc(t->trie.n_node, sizeof *t->trie.skip);
    t->trie.first = kn_calloc(t->trie.n_node + 1, sizeof *t->trie.first);
    t->trie.byte = kn_calloc(t->trie.n_node, sizeof *t->trie.byte);
    t->trie.is_rare = kn_calloc(t->trie.n_node, sizeof *t->trie.is_rare);
    if (!t->trie.is_rare || !t->trie.depth || !t->trie.skip || !t->trie.first || !t->trie.byte)
        return KN_ENOMEM;
    grow_trie(t, t->trie.id, n);
    note_bytes(&t->trie);
    return 0;
}

const struct gr_trie *gr_trie_of(const struct gr_tokens *t) { return &t->trie; }

int gr_tokens_open(struct gr_tokens **out, const struct eng_vocab *v, size_t cache_bytes)
{
    struct gr_tokens *t = kn_calloc(1, sizeof *t);
    int e = KN_ENOMEM;
    if (!t)
        goto fail;
    t->vocab = v;
    t->n_vocab = eng_vocab_size(v);
    t->n_word = spec_mask_words(t->n_vocab);
    pthread_mutex_init(&t->lock, NULL);
    size_t slot_bytes = sizeof *t->slot + t->n_word * sizeof *t->mask + MOST_EXITS * sizeof *t->exit;
    t->n_slot = cache_bytes / slot_bytes / N_WAY * N_WAY;
    t->n_slot = t->n_slot < N_WAY ? N_WAY : t->n_slot;
    t->slot = kn_calloc(t->n_slot, sizeof *t->slot);
    t->mask = kn_calloc(t->n_slot, t->n_word * sizeof *t->mask);
    t->exit = kn_calloc(t->n_slot, MOST_EXITS * sizeof *t->exit);
    if (!t->slot || !t->mask || !t->exit)
        goto fail;
    e = build_trie(t);
    if (e)
        goto fail;
    *out = t;
    return 0;

fail:
    gr_tokens_close(t);
    return kn_fail(e, "no memory for the vocabulary's trie and %zu bytes of masks", cache_bytes);
}

void gr_tokens_close(struct gr_tokens *t)
{
    if (!t)
        return;
    kn_free(t->trie.byte);
    kn_free(t->trie.depth);
    kn_free(t->trie.skip);
    kn_free(t->trie.first);
    kn_free(t->trie.id);
    kn_free(t->trie.is_rare);
    kn_free(t->stop);
    kn_free(t->slot);
    kn_free(t->mask);
    kn_free(t->exit);
    if (t->vocab)
        pthread_mutex_destroy(&t->lock);
    kn_free(t);
}

int gr_scratch_open(struct gr_scratch **out, const struct gr_tokens *t)
{
    struct gr_scratch *x = kn_calloc(1, sizeof *x);
    if (x)
        x->mask = kn_calloc(t->n_word, sizeof *x->mask);
    if (!x || !x->mask) {
        gr_scratch_close(x);
        return kn_fail(KN_ENOMEM, "not enough memory to compute token masks");
    }
    *out = x;
    return 0;
}

void gr_scratch_close(struct gr_scratch *x)
{
    if (!x)
        return;
    kn_free(x->mask);
    kn_free(x);
}

/* ---- walks ----------------------------------------------------------------------------------- */

/* Data that a walk records for a cache entry. */
struct notes {
    struct slot *slot;
    int32_t *exit;
};

static void note(const struct gr_tokens *t, const struct gr_grammar *g, const struct gr_state *s, size_t node,
                 struct notes *n)
{
    struct slot *slot = n->slot;
    slot->width = (uint16_t)kn_max(slot->width, s->n_config);
    slot->frames = (uint16_t)kn_max(slot->frames, s->n_frame);
    for (int i = 0; i < s->n_config; i++) {
        const struct gr_config *c = &s->config[i];
        const struct gr_dstate *x = &g->state[c->state];
        int depth = c->frame < 0 ? 0 : s->frame[c->frame].depth;
        slot->height = (uint16_t)kn_max(slot->height, depth + (x->token_need != GR_NEVER ? x->token_need : x->need));
    }
    for (int i = 0; i < s->n_frame; i++)
        slot->height = (uint16_t)kn_max(slot->height, s->frame[i].depth - 1 + g->state[s->frame[i].state].token_need);
    if (s->can_end && (size_t)t->trie.skip[node] > node + 1 && slot->n_exit++ < MOST_EXITS)
        n->exit[slot->n_exit - 1] = (int32_t)node;
}

/* Steps the state at x->at[depth of top] through the subtree of trie node `top` and sets the bits of all
 * tokens reached.  Returns the number of steps; stops when it exceeds `most`.  notes may be NULL. */
static size_t walk(const struct gr_tokens *t, const struct gr_grammar *g, struct gr_scratch *x, size_t top, size_t most,
                   struct notes *notes, uint32_t *mask)
{
    size_t n_step = 0, end = (size_t)t->trie.skip[top];
    for (size_t i = top + 1; i < end && n_step <= most; n_step++) {
        int d = t->trie.depth[i];
        if (!gr_step(g, &x->at[d - 1], t->trie.byte[i], &x->at[d])) {
            i = (size_t)t->trie.skip[i];
            continue;
        }
        if (notes)
            note(t, g, &x->at[d], i, notes);
        bool ends = t->trie.first[i] < t->trie.first[i + 1] &&
                    (g->is_exact || gr_step_last(g, &x->at[d - 1], t->trie.byte[i], &x->last));
        for (int32_t k = t->trie.first[i]; ends && k < t->trie.first[i + 1]; k++)
            spec_mask_allow(mask, t->trie.id[k]);
        i++;
    }
    return n_step;
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* The count for the cache key.  Counts between the same two bounds (g->mark) give the same mask unless a token is
 * long enough to reach the upper bound; such counts share the lower bound (or 0) as key. */
static uint32_t plain_count(const struct gr_tokens *t, const struct gr_grammar *g, uint32_t count)
{
    size_t lo = 0, hi = g->n_mark;
    while (lo < hi) { /* afterwards mark[lo] is the first bound above count */
        size_t mid = (lo + hi) / 2;
        if (g->mark[mid] > count)
            hi = mid;
        else
            lo = mid + 1;
    }
    if (lo < g->n_mark && g->mark[lo] - count <= (uint32_t)t->longest)
        return count;
    return lo > 0 ? g->mark[lo - 1] : 0;
}

static struct slot key_of(const struct gr_tokens *t, const struct gr_grammar *g, const struct gr_config *c)
{
    return (struct slot){ .serial = c->state < g->n_base ? 0 : g->serial,
                          .state = c->state,
                          .count = plain_count(t, g, c->count) };
}

/* The slot with this key.  If the cache lacks the key: NULL, and *use is the slot to overwrite.  The caller holds
 * the lock. */
static struct slot *find_slot(struct gr_tokens *t, const struct slot *key, struct slot **use)
{
    uint64_t h = kn_mix(kn_mix(key->serial + KN_GOLDEN) ^ ((uint64_t)(uint32_t)key->state << 32 | key->count));
    struct slot *way = &t->slot[h % (t->n_slot / N_WAY) * N_WAY], *oldest = way;
    for (int i = 0; i < N_WAY; i++) {
        if (way[i].tick && way[i].serial == key->serial && way[i].state == key->state && way[i].count == key->count) {
            way[i].tick = ++t->tick;
            return &way[i];
        }
        if (way[i].tick < oldest->tick)
            oldest = &way[i];
    }
    *use = oldest;
    return NULL;
}

/* True if the cached walk, done with the frames and the other configurations of state s, would stay within the
 * limits; c is the configuration of the slot's key. */
static bool usable(const struct slot *slot, const struct gr_state *s, const struct gr_config *c)
{
    int depth = c->frame < 0 ? 0 : s->frame[c->frame].depth;
    return depth + slot->height <= GR_DEPTH && s->n_config * slot->width <= GR_CONFIGS &&
           s->n_frame + s->n_config * slot->frames <= GR_FRAMES && slot->n_exit <= MOST_EXITS;
}

enum found { FOUND, NOT_FOUND, NOT_USABLE };

/* If a usable slot has the mask of configuration i: ORs that mask into `mask` and copies its exits to x->exit. */
static enum found take_slot(struct gr_tokens *t, const struct gr_grammar *g, const struct gr_state *s, int i,
                            struct gr_scratch *x, uint32_t *mask, int32_t *n_exit)
{
    const struct slot key = key_of(t, g, &s->config[i]);
    struct slot *use;
    enum found found = NOT_FOUND;
    pthread_mutex_lock(&t->lock);
    const struct slot *slot = find_slot(t, &key, &use);
    if (slot) {
        found = usable(slot, s, &s->config[i]) ? FOUND : NOT_USABLE;
        size_t at = (size_t)(slot - t->slot);
        if (found == FOUND) {
            const uint32_t *kept = &t->mask[at * t->n_word];
            for (size_t w = 0; w < t->n_word; w++)
                mask[w] |= kept[w];
            *n_exit = s->config[i].frame < 0 ? 0 : slot->n_exit;
            memcpy(x->exit, &t->exit[at * MOST_EXITS], (size_t)*n_exit * sizeof *x->exit);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}

static void make_slot(struct gr_tokens *t, const struct gr_grammar *g, const struct gr_config *c, struct gr_scratch *x)
{
    struct slot made = key_of(t, g, c), *use;
    struct gr_state *s = &x->at[0];
    struct notes notes = { &made, x->exit };
    s->n_config = 1;
    s->n_frame = 0;
    s->can_end = false;
    s->config[0] = (struct gr_config){ made.state, made.count, -1 };
    memset(x->mask, 0, t->n_word * sizeof *x->mask);
    walk(t, g, x, 0, SIZE_MAX, &notes, x->mask);

    pthread_mutex_lock(&t->lock);
    if (!find_slot(t, &made, &use)) {
        size_t at = (size_t)(use - t->slot);
        made.tick = ++t->tick;
        *use = made;
        memcpy(&t->mask[at * t->n_word], x->mask, t->n_word * sizeof *x->mask);
        memcpy(&t->exit[at * MOST_EXITS], x->exit, (size_t)kn_min(made.n_exit, MOST_EXITS) * sizeof *x->exit);
    }
    pthread_mutex_unlock(&t->lock);
}

/* Continues from the exits x->exit[n_exit] of configuration i, with the rule that called its rule. */
static void walk_exits(const struct gr_tokens *t, const struct gr_grammar *g, const struct gr_state *s, int i,
                       struct gr_scratch *x, int32_t n_exit, uint32_t *mask)
{
    if (n_exit == 0)
        return;
    struct gr_state *caller = &x->rest;
    gr_returned(g, s, i, caller);
    for (int32_t k = 0; k < n_exit; k++) {
        gr_copy(&x->at[t->trie.depth[x->exit[k]]], caller);
        walk(t, g, x, (size_t)x->exit[k], SIZE_MAX, NULL, mask);
    }
}

/* ---- masks ----------------------------------------------------------------------------------- */

static void set_stops(const struct gr_tokens *t, const struct gr_state *s, uint32_t *mask)
{
    memset(mask, 0, t->n_word * sizeof *mask);
    for (int i = 0; i < t->n_stop && s->can_end; i++)
        spec_mask_allow(mask, t->stop[i]);
}

static void walk_all(const struct gr_tokens *t, const struct gr_grammar *g, const struct gr_state *s,
                     struct gr_scratch *x, uint32_t *mask)
{
    set_stops(t, s, mask);
    gr_copy(&x->at[0], s);
    walk(t, g, x, 0, SIZE_MAX, NULL, mask);
}

void gr_mask(const struct gr_grammar *g, const struct gr_state *s, struct gr_tokens *t, struct gr_scratch *x,
             uint32_t *mask)
{
    bool kept[GR_CONFIGS] = { false };
    struct gr_state *others = &x->at[0];
    int32_t n_exit = 0;
    kn_assert(g->tokens == t || !g->tokens);
    set_stops(t, s, mask);
    for (int i = 0; i < s->n_config; i++) {
        enum found found = take_slot(t, g, s, i, x, mask, &n_exit);
        if (found == NOT_USABLE) {
            walk_all(t, g, s, x, mask);
            return;
        }
        kept[i] = found == FOUND;
        if (kept[i])
            walk_exits(t, g, s, i, x, n_exit, mask);
    }
    gr_copy(others, s);
    others->n_config = 0;
    for (int i = 0; i < s->n_config; i++)
        if (!kept[i])
            others->config[others->n_config++] = s->config[i];
    if (others->n_config == 0 || walk(t, g, x, 0, NARROW, NULL, mask) <= NARROW)
        return;
    for (int i = 0; i < s->n_config; i++) {
        if (kept[i])
            continue;
        make_slot(t, g, &s->config[i], x);
        if (take_slot(t, g, s, i, x, mask, &n_exit) != FOUND) {
            walk_all(t, g, s, x, mask);
            return;
        }
        walk_exits(t, g, s, i, x, n_exit, mask);
    }
}

bool gr_advance_token(const struct gr_grammar *g, struct gr_state *s, const struct gr_tokens *t, int32_t token)
{
    char buf[4];
    if (token < 0 || token >= t->n_vocab)
        return false;
    if (eng_vocab_is_stop(t->vocab, token))
        return s->can_end;
    struct moe_string bytes = token_bytes(t->vocab, token, buf);
    struct gr_state at[2];
    gr_copy(&at[0], s);
    for (size_t i = 0; i + 1 < bytes.n; i++)
        if (!gr_step(g, &at[i & 1], (uint8_t)bytes.data[i], &at[~i & 1]))
            return false;
    size_t end = bytes.n - 1;
    if (bytes.n == 0 || !gr_step_last(g, &at[end & 1], (uint8_t)bytes.data[end], &at[~end & 1]))
        return false;
    gr_copy(s, &at[bytes.n & 1]);
    return true;
}
