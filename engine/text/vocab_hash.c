/* engine/text/vocab_hash.c - the two hash tables of a vocabulary: text to id, and pair of ids to merged
 * id.
 *
 * In: token texts and merges, while a vocabulary is opened.  Out: lookups while text is tokenized,
 * by any number of threads, because the tables are read-only then.  Open addressing with linear probing,
 * at most half full.  A slot of the text table stores the hash, so a failed lookup rarely reads the
 * text itself.  A lookup costs one or two CPU cache misses (8 or 16 bytes a slot, 1-8 MiB a table);
 * tokenizing makes about three lookups per byte of text: 0.1-0.2 us a byte. */
#include <string.h>

#include "engine/text/internal.h"

/* Stores in *out the smallest power of two (at least 16) that n entries fill at most half. */
static int table_size(size_t n, size_t *out)
{
    size_t size = 16, least;

    if (!kn_mul(n, 2, &least))
        return KN_ELIMIT;
    while (size < least)
        if (!kn_mul(size, 2, &size))
            return KN_ELIMIT;
    *out = size;
    return 0;
}

static uint32_t text_hash(const char *p, size_t n)
{
    uint64_t h = KN_GOLDEN ^ n, word;

    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        h = kn_mix(h ^ word);
    }
    word = 0;
    memcpy(&word, p, n);
    return (uint32_t)kn_mix(h ^ word);
}

int eng_words_open(struct eng_words *w, const struct moe_string *text, size_t n)
{
    size_t size, bytes;

    if (table_size(n, &size) || !kn_mul(size, sizeof *w->slot, &bytes))
        return kn_fail(KN_ELIMIT, "the vocabulary of %zu tokens is too large", n);
    w->slot = kn_alloc(bytes);
    if (!w->slot)
        return kn_fail(KN_ENOMEM, "no memory for %zu bytes of vocabulary", bytes);
    memset(w->slot, 0xff, bytes);
    w->mask = size - 1;
    w->text = text;
    return 0;
}

void eng_words_close(struct eng_words *w)
{
    kn_free(w->slot);
    *w = (struct eng_words){ 0 };
}

/* The slot that holds this text, or the free slot for it. */
static struct eng_word *word_slot(const struct eng_words *w, uint32_t hash, const char *p, size_t n)
{
    for (size_t i = hash & w->mask;; i = (i + 1) & w->mask) {
        struct eng_word *slot = &w->slot[i];

        if (slot->id == ENG_NO_TOKEN)
            return slot;
        if (slot->hash != hash || w->text[slot->id].n != n)
            continue;
        if (!memcmp(w->text[slot->id].data, p, n))
            return slot;
    }
}

int32_t eng_words_add(struct eng_words *w, int32_t id)
{
    const struct moe_string s = w->text[id];
    const uint32_t hash = text_hash(s.data, s.n);
    struct eng_word *slot = word_slot(w, hash, s.data, s.n);

    if (slot->id != ENG_NO_TOKEN)
        return slot->id;
    *slot = (struct eng_word){ .hash = hash, .id = id };
    return ENG_NO_TOKEN;
}

int32_t eng_words_find(const struct eng_words *w, const char *p, size_t n)
{
    return w->slot ? word_slot(w, text_hash(p, n), p, n)->id : ENG_NO_TOKEN;
}

int eng_pairs_open(struct eng_pairs *t, size_t n)
{
    size_t size, bytes;

    if (table_size(n, &size) || !kn_mul(size, sizeof *t->slot, &bytes))
        return kn_fail(KN_ELIMIT, "too many merges: %zu", n);
    t->slot = kn_alloc(bytes);
    if (!t->slot)
        return kn_fail(KN_ENOMEM, "no memory for %zu bytes of merges", bytes);
    memset(t->slot, 0xff, bytes);
    t->mask = size - 1;
    return 0;
}

void eng_pairs_close(struct eng_pairs *t)
{
    kn_free(t->slot);
    *t = (struct eng_pairs){ 0 };
}

static struct eng_pair *pair_slot(const struct eng_pairs *t, int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;

    for (size_t i = kn_mix(key) & t->mask;; i = (i + 1) & t->mask) {
        struct eng_pair *slot = &t->slot[i];

        if (slot->left == ENG_NO_TOKEN)
            return slot;
        if (slot->left == left && slot->right == right)
            return slot;
    }
}

void eng_pairs_add(struct eng_pairs *t, struct eng_pair pair)
{
    struct eng_pair *slot = pair_slot(t, pair.left, pair.right);

    if (slot->left == ENG_NO_TOKEN)
        *slot = pair;
}

const struct eng_pair *eng_pairs_find(const struct eng_pairs *t, int32_t left, int32_t right)
{
    const struct eng_pair *slot = pair_slot(t, left, right);

    return slot->left == ENG_NO_TOKEN ? NULL : slot;
}
