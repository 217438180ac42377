/* engine/text/bpe.c - byte-pair merging of one piece of text, for both kinds of vocabulary.
 *
 * In: a piece of text.  Out: ids appended to a list.  The piece starts as a list of symbols (bytes or
 * characters).  The best pair of neighbours is merged into one symbol until no pair makes a token.
 * The best pair has the lowest merge rank in byte-level BPE, and the highest score of the merged
 * token in SentencePiece; of equal pairs, the leftmost is merged first.  A heap holds every pair that
 * can merge.  Entries are not removed when they become stale: symbols only grow, so an entry is stale
 * if the joint length of its symbols has changed.  Every merge removes one symbol and adds at most
 * two entries, so a piece of n symbols needs O(n log n) time and at most 2 n heap entries. */
#include <string.h>

#include "engine/base/base.h"
#include "engine/text/internal.h"

_Static_assert(sizeof(struct eng_symbol) == 20, "20 bytes a symbol");

int eng_ids_push(struct eng_ids *ids, int32_t id)
{
    size_t cap, bytes;
    int32_t *grown;

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

void eng_merge_free(struct eng_merge *m)
{
    kn_free(m->symbol);
    kn_free(m->heap);
    *m = (struct eng_merge){ 0 };
}

/* Empties m and makes it hold n symbols and their pairs. */
static int reserve(struct eng_merge *m, size_t n)
{
    size_t symbol_bytes, heap_bytes, cap;

    m->n_symbol = m->n_heap = 0;
    if (n <= m->cap)
        return 0;
    eng_merge_free(m);
    if (n > INT32_MAX || !kn_add(n, n < 1 << 16 ? n : 0, &cap) || !kn_mul(cap, sizeof *m->symbol, &symbol_bytes) ||
        !kn_mul(cap, 2 * sizeof *m->heap, &heap_bytes))
        return kn_fail(KN_ELIMIT, "a text of %zu bytes is too long to tokenize", n);
    m->symbol = kn_alloc(symbol_bytes);
    m->heap = kn_alloc(heap_bytes);
    if (!m->symbol || !m->heap)
        return kn_fail(KN_ENOMEM, "not enough memory to tokenize: %zu bytes", symbol_bytes + heap_bytes);
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

int eng_merge_bytes(struct eng_merge *m, const struct eng_vocab *v, const char *p, size_t n, struct eng_ids *ids)
{
    int err;

    if (v->whole_words) {
        const int32_t id = eng_words_find(&v->words, p, n);

        if (id != ENG_NO_TOKEN)
            return eng_ids_push(ids, id);
    }
    err = reserve(m, n);
    if (err)
        return err;
    for (size_t i = 0; i < n; i++) {
        const int32_t id = v->byte_id[(uint8_t)p[i]];

        if (id != ENG_NO_TOKEN)
            add_symbol(m, i, 1, id); /* a byte without a token is dropped */
    }
    merge_all(m, v, p);
    for (uint32_t i = 0; i < m->n_symbol; i = m->symbol[i].next) {
        err = eng_ids_push(ids, m->symbol[i].id);
        if (err)
            return err;
    }
    return 0;
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

int eng_merge_pieces(struct eng_merge *m, const struct eng_vocab *v, const char *p, size_t n, struct eng_ids *ids)
{
    bool unknown = false, cut;
    int err, bad;

    err = reserve(m, n);
    if (err)
        return err;
    for (size_t i = 0, len; i < n; i += len) {
        len = (size_t)eng_utf8_next(p + i, n - i, &bad, &cut);
        if (!len)
            len = 1;
        add_symbol(m, i, len, eng_words_find(&v->words, p + i, len));
    }
    merge_all(m, v, p);
    for (uint32_t i = 0; i < m->n_symbol; i = m->symbol[i].next) {
        const struct eng_symbol *s = &m->symbol[i];

        if (s->id == ENG_NO_TOKEN) {
            err = push_bytes(v, p + s->start, s->len, &unknown, ids);
        } else {
            unknown = false;
            err = eng_ids_push(ids, s->id);
        }
        if (err)
            return err;
    }
    return 0;
}
