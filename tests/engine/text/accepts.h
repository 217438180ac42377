/* tests/engine/text/accepts.h - does a grammar accept a text? */
#ifndef TESTS_ENGINE_TEXT_ACCEPTS_H
#define TESTS_ENGINE_TEXT_ACCEPTS_H

#include <string.h>

#include "engine/text/grammar/grammar.h"

/* Advances s over p[n]; false, with s at the byte that is not accepted. */
static inline bool feed(const struct gr_grammar *g, struct gr_state *s, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!gr_advance(g, s, (uint8_t)p[i]))
            return false;
    return true;
}

/* True if the grammar accepts the whole text. */
static inline bool accepts(const struct gr_grammar *g, const char *text)
{
    struct gr_state s;
    gr_start(g, &s);
    return feed(g, &s, text, strlen(text)) && gr_can_end(&s);
}

#endif
