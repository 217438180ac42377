/* engine/api/breakers.h - the texts at which DRY ends a repetition, as tokens.  Internal to engine.
 *
 * A breaker's text may lie within one token, or begin in one token and go on in others.  So each text becomes the set of
 * tokens that contain it, and, for each of its beginnings, the set of tokens that end with that beginning, followed by
 * the tokens of the rest. */
#ifndef ENGINE_API_BREAKERS_H
#define ENGINE_API_BREAKERS_H

#include "engine/text/text.h"
#include "speculative/speculative.h"

enum {
    ENG_BREAKERS_MOST = 16, /* texts */
    ENG_BREAKER_BYTES = 40, /* of one text */
    ENG_BREAKER_SETS = 32   /* sets of tokens, each of n_vocab bits: bounds the memory of a request */
};

struct eng_breakers {
    struct spec_breaker list[ENG_BREAKER_SETS]; /* [n] */
    int n;
    uint32_t *head;      /* [ENG_BREAKER_SETS][spec_mask_words] */
    struct eng_ids tail; /* of all sets */
};

/* text NULL: llama-server's defaults, new line, colon, quotation mark and asterisk.  0; KN_EINVAL if a text is empty or
 * too long, KN_ELIMIT if there are too many, each without a message; KN_ENOMEM. */
int eng_breakers_make(struct eng_breakers *b, const struct eng_vocab *v, const struct moe_string *text, int n);
void eng_breakers_free(struct eng_breakers *b);

#endif
