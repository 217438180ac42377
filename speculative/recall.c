/* speculative/recall.c - finds the longest earlier matches of a sequence's last tokens.
 *
 * Tokens lie in a ring; the newest replaces the oldest.  Each position is hashed three times, by the 2, 5 and 12 tokens
 * before it; positions with the same length and hash form a chain, most recent first.  A search follows the chain of
 * the longest length first and compares each candidate backwards, token by token, so a hash collision costs time only.
 * It stops when it has `most` matches of at least the length of the chain searched last.
 *
 * 28 bytes per token.  Adding one takes 19 hash steps; a search looks at PROBES positions of each chain at most. */
#include "speculative/internal.h"

#define N_LEVEL SPEC_RECALL_LEVELS
#define PROBES  64
#define BLOCK   64        /* tokens that share one salt record */
#define BORDER  INT32_MIN /* between sequences; equal to no token */

static const int level_length[N_LEVEL] = { 2, 5, 12 };

void spec_recall_init(struct spec_recall *r, struct kn_arena *a, int n_token, bool owned)
{
    size_t room = BLOCK;
    while (room < (size_t)n_token)
        room *= 2;
    *r = (struct spec_recall){ .mask = (uint32_t)room - 1, .n = 1, .start = 1 }; /* 0 ends a chain */
    r->token = kn_arena_take(a, room, sizeof *r->token);
    for (int i = 0; i < N_LEVEL; i++) {
        r->head[i] = kn_arena_take(a, room, sizeof *r->head[i]);
        r->before[i] = kn_arena_take(a, room, sizeof *r->before[i]);
    }
    r->salt = owned ? kn_arena_take(a, room / BLOCK, sizeof *r->salt) : NULL;
}

void spec_recall_clear(struct spec_recall *r)
{
    r->start = r->n;
    r->run = 0;
}

static void push(struct spec_recall *r, int32_t token)
{
    r->token[r->n++ & r->mask] = token;
    if (r->n - r->start > r->mask + 1)
        r->start = r->n - r->mask - 1;
}

/* A sequence begins at a block, so that all tokens of a block have the same salt. */
void spec_recall_start_sequence(struct spec_recall *r, uint64_t salt)
{
    do
        push(r, BORDER);
    while (r->n % BLOCK);
    r->run = 0;
    r->sequence_salt = salt;
}

static uint64_t gram_begin(uint64_t salt, int length) { return salt + (uint64_t)length; }
static uint64_t gram_add(uint64_t h, int32_t token) { return (h ^ (uint32_t)token) * KN_GOLDEN + (h >> 29); }
static uint32_t gram_slot(const struct spec_recall *r, uint64_t h) { return (uint32_t)kn_mix(h) & r->mask; }

void spec_recall_add(struct spec_recall *r, int32_t token)
{
    for (int i = 0; i < N_LEVEL && r->run >= (uint32_t)level_length[i]; i++) {
        uint64_t h = gram_begin(r->sequence_salt, level_length[i]);
        for (int k = level_length[i]; k > 0; k--)
            h = gram_add(h, r->token[(r->n - (uint32_t)k) & r->mask]);
        uint32_t slot = gram_slot(r, h);
        r->before[i][r->n & r->mask] = r->head[i][slot];
        r->head[i][slot] = r->n;
    }
    if (r->salt && r->n % BLOCK == 0)
        r->salt[(r->n & r->mask) / BLOCK] = r->sequence_salt;
    push(r, token);
    r->run++;
}

/* Positions wrap around; a position is stored if it is no further back than the oldest. */
static bool is_there(const struct spec_recall *r, uint32_t at) { return r->n - at - 1 < r->n - r->start; }

bool spec_recall_token(const struct spec_recall *r, uint32_t at, int32_t *out)
{
    if (!is_there(r, at) || r->token[at & r->mask] == BORDER)
        return false;
    *out = r->token[at & r->mask];
    return true;
}

static int length_at(const struct spec_recall *r, uint32_t at, uint64_t salt, const int32_t *tail, int n_tail)
{
    int length = 0;
    if (r->salt && r->salt[((at - 1) & r->mask) / BLOCK] != salt)
        return 0;
    while (length < n_tail && is_there(r, at - 1 - (uint32_t)length) &&
           r->token[(at - 1 - (uint32_t)length) & r->mask] == tail[n_tail - 1 - length])
        length++;
    return length;
}

/* Inserts m, longest first; among equal lengths the earlier inserted comes first. */
static int insert(struct spec_match *best, int n, int most, struct spec_match m)
{
    int i = n;
    if (n == most && best[n - 1].length >= m.length)
        return n;
    n = kn_min(n + 1, most);
    for (i = kn_min(i, most - 1); i > 0 && best[i - 1].length < m.length; i--)
        best[i] = best[i - 1];
    best[i] = m;
    return n;
}

int spec_recall_find(const struct spec_recall *r, uint64_t salt, const int32_t *tail, int n_tail,
                     struct spec_match *best, int n, int most)
{
    int longer = INT32_MAX; /* all matches of at least this length were found */
    for (int i = N_LEVEL; i-- > 0; longer = level_length[i]) {
        uint64_t h = gram_begin(salt, level_length[i]);
        if (n_tail < level_length[i])
            continue;
        if (n == most && best[n - 1].length >= longer)
            break;
        for (int k = n_tail - level_length[i]; k < n_tail; k++)
            h = gram_add(h, tail[k]);
        uint32_t at = r->head[i][gram_slot(r, h)];
        for (int probe = 0; probe < PROBES && is_there(r, at); probe++, at = r->before[i][at & r->mask]) {
            int length = length_at(r, at, salt, tail, n_tail);
            if (length >= level_length[i] && length < longer)
                n = insert(best, n, most, (struct spec_match){ .in = r, .at = at, .length = length });
        }
    }
    return n;
}
