/* engine/text/bpe.c - byte-pair merging of one piece of text, for both kinds of vocabulary.
 *
 * In: a piece of text.  Out: ids appended to a list.  The piece starts as a list of symbols (bytes or
 * characters).  The best pair of neighbours is merged into one symbol until no pair makes a token.
 * The best pair has the lowest merge rank in byte-level BPE, and the highest score of the merged
 * token in SentencePiece; of equal pairs, the leftmost is merged first.  A heap holds every pair that
 * can merge.  Entries are not removed when they become stale: symbols only grow, so an entry is stale
 * if the joint length of its symbols has changed.  Every merge removes one symbol and adds at most
 * two entries, so a piece of n symbols needs O(n log n) time and at most 2 n heap entries.
 *
 * Windows.  A long piece is merged in windows that overlap, so memory does not grow with the piece.  The result is that
 * of the whole piece:
 *
 *   1. Which merge is next within some symbols does not depend on the others, unless a merge crosses their ends.  So
 *      neighbours of a result are the result of their own text.
 *   2. A list of symbols in which each pair of neighbours is the result of its own text is the result of the whole text:
 *      the first merge that crossed the border of a pair would cross it in the text of this pair as well, by 1.
 *   3. If the results of two windows share a symbol at the same place, they are joined there: the first window's symbols up to
 *      it, then the second's.  By 1 each pair of neighbours is the result of its own text, so by 2 the joined list is
 *      the result of the joined text.
 *
 * A window begins at a symbol of the window before it, so nearly always this first symbol is shared.  Where two windows
 * share none, the piece is merged again with larger windows. */
#include <string.h>

#include "engine/base/base.h"
#include "engine/text/internal.h"

_Static_assert(sizeof(struct eng_symbol) == 20, "20 bytes a symbol");

#define WINDOW       ((size_t)1 << 15) /* symbols: 2.3 MB of symbols, tail and heap */
#define WINDOW_TOKEN 16                /* a window has at least this many times the bytes of the longest token */

int eng_ids_push(struct eng_ids *ids, int32_t id)
{
    size_t cap, bytes;
    int32_t *grown;

    if (ids->most && ids->n == ids->most) {
        ids->full = true;
        return KN_ELIMIT;
    }
    if (ids->n == ids->cap) {
        if (!kn_add(ids->cap, ids->cap / 2 + 64, &cap) || !kn_mul(cap, sizeof *grown, &bytes))
            return kn_fail(KN_ELIMIT, "the text has too many tokens");
        grown = kn_realloc(ids->id, ids->cap * sizeof *grown, bytes);
        if (!grown)
            return kn_fail(KN_ENOMEM, "no memory for %zu bytes of token ids", bytes);
        ids->id = grown;
        ids->cap = cap;
    }
    ids->id[ids->n++] = id;
    return 0;
}

void eng_ids_free(struct eng_ids *ids)
{
    kn_free(ids->id);
    *ids = (struct eng_ids){ 0 };
}

/* To be called with each n bytes of text that were read. */
static int count_read(const struct eng_ids *ids, size_t n)
{
    struct eng_checkpoint *c = ids->checkpoint;

    if (!c || (c->n_bytes += n) < ENG_CHECKPOINT_BYTES)
        return 0;
    c->n_bytes = 0;
    return c->reach(c->arg);
}

void eng_merge_free(struct eng_merge *m)
{
    kn_free(m->symbol);
    kn_free(m->heap);
    kn_free(m->tail);
    *m = (struct eng_merge){ .window = m->window };
}

/* Makes m hold windows of n symbols. */
static int reserve(struct eng_merge *m, size_t n)
{
    size_t symbol_bytes, heap_bytes, cap;

    if (n <= m->cap)
        return 0;
    eng_merge_free(m);
    if (n > INT32_MAX || !kn_add(n, n < WINDOW / 2 ? n : 0, &cap) || !kn_mul(cap, sizeof *m->symbol, &symbol_bytes) ||
        !kn_mul(cap, 2 * sizeof *m->heap, &heap_bytes))
        return kn_fail(KN_ELIMIT, "a text of %zu bytes is too long to tokenize", n);
    m->symbol = kn_alloc(symbol_bytes);
    m->tail = kn_alloc(symbol_bytes);
    m->heap = kn_alloc(heap_bytes);
    if (!m->symbol || !m->tail || !m->heap)
        return kn_fail(KN_ENOMEM, "not enough memory to tokenize: %zu bytes", 2 * symbol_bytes + heap_bytes);
    m->cap = cap;
    return 0;
}

static void add_symbol(struct eng_merge *m, size_t start, size_t len, int32_t id)
{
    const uint32_t i = (uint32_t)m->n_symbol++;

    m->symbol[i] = (struct eng_symbol){
        .start = (uint32_t)start, .len = (uint32_t)len, .prev = i - 1, .next = i + 1, .id = id
    };
}

/* Adds a candidate to m->heap, a min-heap by key. */
static void heap_push(struct eng_merge *m, struct eng_candidate c)
{
    size_t i = m->n_heap++;

    for (; i && c.key < m->heap[(i - 1) / 2].key; i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = c;
}

static struct eng_candidate heap_pop(struct eng_merge *m)
{
    const struct eng_candidate top = m->heap[0], last = m->heap[--m->n_heap];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < m->n_heap) {
        if (child + 1 < m->n_heap && m->heap[child + 1].key < m->heap[child].key)
            child++;
        if (last.key <= m->heap[child].key)
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

/* Maps a score to an integer that is smaller for a higher score. */
static uint32_t score_rank(float score)
{
    uint32_t bits;

    score += 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? bits : ~(bits | UINT32_C(1) << 31);
}

/* The token that symbols a and b merge into, or ENG_NO_TOKEN.  *rank is the priority of the merge: the pair
 * with the smallest rank is merged first. */
static int32_t merged(const struct eng_vocab *v, const char *text, const struct eng_symbol *a,
                      const struct eng_symbol *b, uint32_t *rank)
{
    if (v->kind == ENG_VOCAB_BYTES) {
        const struct eng_pair *pair = eng_pairs_find(&v->pairs, a->id, b->id);

        if (!pair)
            return ENG_NO_TOKEN;
        *rank = pair->rank;
        return pair->id;
    }
    if (a->len + b->len > v->max_bytes)
        return ENG_NO_TOKEN;
    const int32_t id = eng_words_find(&v->words, text + a->start, a->len + b->len);

    if (id != ENG_NO_TOKEN)
        *rank = score_rank(v->score[id]);
    return id;
}

static void consider(struct eng_merge *m, const struct eng_vocab *v, const char *text, uint32_t left)
{
    const struct eng_symbol *a = &m->symbol[left], *b = &m->symbol[a->next];
    uint32_t rank;

    if (merged(v, text, a, b, &rank) == ENG_NO_TOKEN)
        return;
    heap_push(m, (struct eng_candidate){ .key = (uint64_t)rank << 32 | left, .len = a->len + b->len });
}

/* Merges until no pair of neighbours makes a token.  The result is the linked list of symbols that begins at
 * symbol 0 and follows `next` until it equals n_symbol. */
static void merge_all(struct eng_merge *m, const struct eng_vocab *v, const char *text)
{
    const uint32_t end = (uint32_t)m->n_symbol;

    for (uint32_t i = 0; i + 1 < end; i++)
        consider(m, v, text, i);
    while (m->n_heap) {
        const struct eng_candidate best = heap_pop(m);
        const uint32_t left = (uint32_t)best.key;
        struct eng_symbol *a = &m->symbol[left], *b;
        uint32_t rank;

        if (!a->len || a->next == end)
            continue;
        b = &m->symbol[a->next];
        if (a->len + b->len != best.len)
            continue;
        a->id = merged(v, text, a, b, &rank);
        a->len = best.len;
        a->next = b->next;
        b->len = 0;
        if (a->next != end)
            m->symbol[a->next].prev = left;
        if (left)
            consider(m, v, text, a->prev);
        if (a->next != end)
            consider(m, v, text, left);
    }
}

/* Appends a character that has no token: the tokens of its bytes or, if a byte has no token, the unknown
 * token.  Several unknown characters in a row give one unknown token.  *unknown says on entry whether the character
 * before was unknown, on return whether this one is. */
static int push_bytes(const struct eng_vocab *v, const char *p, size_t n, bool *unknown, struct eng_ids *ids)
{
    const bool was_unknown = *unknown;
    int err = 0;

    *unknown = false;
    for (size_t i = 0; i < n; i++)
        if (v->byte_id[(uint8_t)p[i]] == ENG_NO_TOKEN)
            *unknown = true;
    if (*unknown)
        return was_unknown || v->unk == ENG_NO_TOKEN ? 0 : eng_ids_push(ids, v->unk);
    for (size_t i = 0; i < n && !err; i++)
        err = eng_ids_push(ids, v->byte_id[(uint8_t)p[i]]);
    return err;
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Makes symbols of the text from offset `at` on, at most `most`; returns the offset behind them.  A byte without a token
 * is dropped by byte-level BPE. */
static size_t lay_symbols(struct eng_merge *m, const struct eng_vocab *v, struct moe_string text, size_t at,
                          size_t most)
{
    bool cut;
    int bad;

    m->n_symbol = m->n_heap = 0;
    for (size_t len = 1; at < text.n && m->n_symbol < most; at += len) {
        const char *p = text.data + at;

        if (v->kind == ENG_VOCAB_BYTES) {
            if (v->byte_id[(uint8_t)*p] != ENG_NO_TOKEN)
                add_symbol(m, at, 1, v->byte_id[(uint8_t)*p]);
            continue;
        }
        len = (size_t)eng_utf8_next(p, text.n - at, &bad, &cut);
        if (!len)
            len = 1;
        add_symbol(m, at, len, eng_words_find(&v->words, p, len));
    }
    return at;
}

/* Moves the symbols that are left after merging to the front of m->symbol. */
static void compact(struct eng_merge *m)
{
    size_t n = 0;

    for (size_t i = 0, next; i < m->n_symbol; i = next) {
        next = m->symbol[i].next;
        m->symbol[n++] = m->symbol[i];
    }
    m->n_symbol = n;
}

/* Finds a symbol that the last window's tail and this window share: sets *i to its index in m->tail and *j to its index
 * in m->symbol. */
static bool find_shared(const struct eng_merge *m, size_t *i, size_t *j)
{
    for (*i = *j = 0; *i < m->n_tail && *j < m->n_symbol;) {
        const struct eng_symbol *a = &m->tail[*i], *b = &m->symbol[*j];

        if (a->start == b->start && a->len == b->len && a->id == b->id)
            return true;
        if (a->start <= b->start)
            ++*i;
        else
            ++*j;
    }
    return false;
}

/* Appends the ids of n symbols.  *unknown: see push_bytes. */
static int push_symbols(const struct eng_vocab *v, const char *text, const struct eng_symbol *s, size_t n,
                        bool *unknown, struct eng_ids *ids)
{
    int err = 0;

    for (size_t i = 0; i < n && !err; i++) {
        if (s[i].id == ENG_NO_TOKEN) {
            err = push_bytes(v, text + s[i].start, s[i].len, unknown, ids);
        } else {
            *unknown = false;
            err = eng_ids_push(ids, s[i].id);
        }
    }
    return err;
}

/* Merges the text in windows of `most` symbols.  The last quarter of a window is its tail: it is merged again in the
 * next window.  Returns 1 if two windows share no symbol. */
static int merge_windows(struct eng_merge *m, const struct eng_vocab *v, struct moe_string text, size_t most,
                         struct eng_ids *ids)
{
    bool unknown = false;
    int err = reserve(m, most < text.n ? most : text.n);

    m->n_tail = 0;
    for (size_t at = 0; !err;) {
        size_t end = lay_symbols(m, v, text, at, most), from = 0, to, shared;

        merge_all(m, v, text.data);
        compact(m);
        if (m->n_tail) {
            if (!find_shared(m, &shared, &from))
                return 1;
            err = push_symbols(v, text.data, m->tail, shared, &unknown, ids);
        }
        for (to = m->n_symbol; end < text.n && to > from && m->symbol[to - 1].start >= at + (end - at) / 4 * 3;)
            to--;
        if (!err)
            err = push_symbols(v, text.data, m->symbol + from, to - from, &unknown, ids);
        if (!err)
            err = count_read(ids, end - at);
        if (err || end == text.n)
            return err;
        if (to == m->n_symbol || to == 0) /* a token as long as the tail, or as the window */
            return 1;
        m->n_tail = m->n_symbol - to;
        memcpy(m->tail, m->symbol + to, m->n_tail * sizeof *m->tail);
        at = m->tail[0].start;
    }
    return err;
}

static int merge_text(struct eng_merge *m, const struct eng_vocab *v, struct moe_string text, struct eng_ids *ids)
{
    const size_t n_before = ids->n;
    const size_t long_enough = WINDOW_TOKEN * v->max_bytes;
    size_t most = m->window ? m->window : long_enough > WINDOW ? long_enough : WINDOW;
    int err;

    if (text.n > INT32_MAX)
        return kn_fail(KN_ELIMIT, "a text of %zu bytes is too long to tokenize", text.n);
    while ((err = merge_windows(m, v, text, most, ids)) == 1) {
        ids->n = n_before;
        most *= 2;
    }
    return err;
}

int eng_merge_bytes(struct eng_merge *m, const struct eng_vocab *v, const char *p, size_t n, struct eng_ids *ids)
{
    if (v->whole_words) {
        const int32_t id = eng_words_find(&v->words, p, n);

        if (id != ENG_NO_TOKEN) {
            const int err = eng_ids_push(ids, id);

            return err ? err : count_read(ids, n);
        }
    }
    return merge_text(m, v, (struct moe_string){ .data = p, .n = n }, ids);
}

int eng_merge_pieces(struct eng_merge *m, const struct eng_vocab *v, const char *p, size_t n, struct eng_ids *ids)
{
    return merge_text(m, v, (struct moe_string){ .data = p, .n = n }, ids);
}
