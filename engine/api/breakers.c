/* engine/api/breakers.c - finds the tokens of DRY's breakers: one pass over the vocabulary for each text. */
#include "engine/api/breakers.h"

#include <string.h>

static bool contains(struct moe_string s, struct moe_string part)
{
    for (size_t i = 0; i + part.n <= s.n; i++)
        if (!memcmp(s.data + i, part.data, part.n))
            return true;
    return false;
}

static bool ends_with_beginning(struct moe_string s, struct moe_string text, size_t n)
{
    return n <= s.n && !memcmp(s.data + s.n - n, text.data, n);
}

/* Makes the set with the tail that starts at tail.id[from]. */
static int add_set(struct eng_breakers *b, size_t words, size_t from)
{
    if (b->n == ENG_BREAKER_SETS)
        return KN_ELIMIT;
    b->list[b->n] = (struct spec_breaker){ b->head + (size_t)b->n * words, NULL, (int)(b->tail.n - from) };
    b->n++;
    return 0;
}

/* Adds the tokens that end with the first `at` bytes of the text, followed by the tokens of the rest. */
static int add_beginning(struct eng_breakers *b, const struct eng_vocab *v, struct moe_string text, size_t at)
{
    size_t words = spec_mask_words(eng_vocab_size(v)), from = b->tail.n;
    uint32_t *head = NULL;
    for (int32_t t = 0; t < eng_vocab_size(v); t++) {
        struct moe_string s = eng_vocab_text(v, t);
        if (!ends_with_beginning(s, text, at) || contains(s, text))
            continue;
        if (!head) {
            int error = eng_tokenize(v, text.data + at, text.n - at, 0, &b->tail);
            if (error || (error = add_set(b, words, from)))
                return error;
            head = b->head + (size_t)(b->n - 1) * words;
        }
        spec_mask_allow(head, t);
    }
    return 0;
}

int eng_breakers_make(struct eng_breakers *b, const struct eng_vocab *v, const struct moe_string *text, int n)
{
    static const struct moe_string usual[] = { { "\n", 1 }, { ":", 1 }, { "\"", 1 }, { "*", 1 } };
    size_t words = spec_mask_words(eng_vocab_size(v));
    int error = 0;
    *b = (struct eng_breakers){ 0 };
    if (!text) {
        text = usual;
        n = (int)(sizeof usual / sizeof *usual);
    }
    if (n > ENG_BREAKERS_MOST)
        return KN_ELIMIT;
    for (int i = 0; i < n; i++)
        if (text[i].n < 1 || text[i].n > ENG_BREAKER_BYTES)
            return KN_EINVAL;
    if (!(b->head = kn_calloc(ENG_BREAKER_SETS * words, sizeof *b->head)))
        return KN_ENOMEM;
    b->n = 1; /* the first set: tokens that contain a text */
    b->list[0].head = b->head;
    for (int32_t t = 0; t < eng_vocab_size(v); t++)
        for (int i = 0; i < n; i++)
            if (contains(eng_vocab_text(v, t), text[i]))
                spec_mask_allow(b->head, t);
    for (int i = 0; i < n && !error; i++)
        for (size_t at = 1; at < text[i].n && !error; at++)
            error = add_beginning(b, v, text[i], at);
    int32_t *tail = b->tail.id;
    for (int i = 1; i < b->n; i++) { /* the list of tails has its final address now */
        b->list[i].tail = tail;
        tail += b->list[i].n_tail;
    }
    if (error)
        eng_breakers_free(b);
    return error;
}

void eng_breakers_free(struct eng_breakers *b)
{
    kn_free(b->head);
    eng_ids_free(&b->tail);
    *b = (struct eng_breakers){ 0 };
}
