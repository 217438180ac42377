/* speculative/copy.c - follows an answer through a reference text that it repeats with changes.
 *
 * In come the answer's tokens, one by one; out goes the place in the text from which the answer seems to continue.  At
 * the start it is the text's beginning.  While the answer repeats the text, the place moves along.  After a change, the
 * place is the end of the longest run of tokens that equals the answer's last ones; of several, the one closest behind
 * the place where the last long run ended.  If there is none, a token was perhaps replaced by another: the place is
 * guessed, for GUESSES tokens.
 *
 * A search compares one token with each token of the text, and reads further at the MOST_TRIED nearest places where they are
 * equal: some microseconds for ten thousand tokens.  It is made only after tokens that were not the one at the place. */
#include "speculative/internal.h"

#define LONG_RUN   3  /* tokens of a run that moves `left` */
#define NEAR       32 /* a single equal token counts if it lies at most so far behind `left` */
#define GUESSES    4
#define MOST_TRIED 64 /* places with the same token that a search looks at */

void spec_copy_start(struct spec_copy *c, const int32_t *token, int n)
{
    *c = (struct spec_copy){ .token = token, .n = n };
}

/* The number of tokens before `at` in the text that equal the answer's last ones. */
static int run_before(const struct spec_copy *c, int at)
{
    uint32_t most = c->n_recent < SPEC_COPY_RECENT ? c->n_recent : SPEC_COPY_RECENT, n = 0;
    while (n < most && (int)n < at && c->token[at - 1 - (int)n] == c->recent[(c->n_recent - 1 - n) % SPEC_COPY_RECENT])
        n++;
    return (int)n;
}

/* How far a place lies behind `left`; places before it are further than all behind it. */
static int distance(const struct spec_copy *c, int at) { return at >= c->left ? at - c->left : c->n + c->left - at; }

/* Looks at the nearest places first, so of runs with the same length the first is the closest. */
static void find_place(struct spec_copy *c, int32_t token)
{
    int best = -1, longest = 0, left = kn_max(c->left, 1), n_tried = 0;
    for (int i = 0; i < c->n && n_tried < MOST_TRIED; i++) {
        int at = left + i <= c->n ? left + i : c->n - i;
        if (c->token[at - 1] != token)
            continue;
        int run = run_before(c, at);
        n_tried++;
        if (run > longest && (run > 1 || distance(c, at) <= NEAR)) {
            longest = run;
            best = at;
        }
    }
    c->run = longest;
    c->at = best >= 0 ? best : c->n_lost <= GUESSES ? kn_min(c->left + c->n_lost, c->n) : -1;
}

void spec_copy_add(struct spec_copy *c, int32_t token)
{
    c->recent[c->n_recent++ % SPEC_COPY_RECENT] = token;
    c->n_lost++;
    if (c->at >= 0 && c->at < c->n && c->token[c->at] == token) {
        c->at++;
        c->run++;
        c->n_copied++;
    } else {
        find_place(c, token);
    }
    if (c->run >= LONG_RUN) {
        c->left = c->at;
        c->n_lost = 0;
    }
}
