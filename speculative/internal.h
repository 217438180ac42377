/* speculative/internal.h - what the files of this folder share. */
#ifndef SPECULATIVE_INTERNAL_H
#define SPECULATIVE_INTERNAL_H

#include "speculative/speculative.h"

/* Random numbers are hashes of where they are used.  What is drawn for another purpose than a row's own
 * choice has a stream of its own, and a draft's position is that of its root: SPEC_BLOCK looks at later
 * draws before it settles an earlier token, so no later draft may meet the same ones again. */
enum spec_purpose { SPEC_FOR_CHOICE, SPEC_FOR_DRAFT, SPEC_FOR_VERIFY, SPEC_FOR_ORACLE };

static inline uint64_t spec_stream(uint64_t seed, uint32_t choice, int64_t position, enum spec_purpose why)
{
    uint64_t h = kn_mix(seed + KN_GOLDEN);
    h = kn_mix(h + KN_GOLDEN * ((uint64_t)choice + 1));
    h = kn_mix(h + KN_GOLDEN * ((uint64_t)position + 1));
    return why == SPEC_FOR_CHOICE ? h : kn_mix(~h ^ (uint64_t)why);
}

/* The n-th of a stream: 64 bits, and a number in [0, 1). */
static inline uint64_t spec_bits(uint64_t stream, uint32_t n)
{
    return kn_mix(stream + KN_GOLDEN * ((uint64_t)n + 1));
}

static inline double spec_uniform(uint64_t stream, uint32_t n)
{
    return (double)(spec_bits(stream, n) >> 11) * 0x1p-53;
}

static inline int32_t spec_dist_id(const struct spec_dist *d, int i) { return d->token ? d->token[i] : i; }
int spec_dist_find(const struct spec_dist *d, int32_t token);       /* -1: not there */

/* After spec_target of these logits: the log probability that spec_sample would report of a token. */
float spec_logprob(const struct spec_sampler *s, const float *logits /* [n_vocab] */, int32_t token);

/* Room beside what spec_target left, until the sampler's next call. */
double *spec_room(struct spec_sampler *s);          /* [n_vocab] */

/* ---- texts that are remembered ------------------------------------------------------------------- */

/* The latest tokens of one text or of many.  Positions count what was ever added, modulo 2^32. */
#define SPEC_RECALL_LEVELS 3

struct spec_recall {
    uint32_t mask;                                  /* tokens there is room for, less one */
    uint32_t n, start;                              /* the next position; the oldest that is there */
    uint32_t run;                                   /* tokens of the text that is being added */
    uint64_t text_salt;
    int32_t  *token;                                /* [mask + 1] */
    uint32_t *head[SPEC_RECALL_LEVELS];             /* [mask + 1] latest position of a hash */
    uint32_t *before[SPEC_RECALL_LEVELS];           /* [mask + 1] the one before, of each position */
    uint64_t *salt;                                 /* of each block of tokens; NULL: one for all */
};

struct spec_match {
    const struct spec_recall *in;
    uint32_t at;                                    /* the position that follows the match */
    int length;
};

void spec_recall_take(struct spec_recall *r, struct kn_arena *a, int n_token, bool owned);
void spec_recall_forget(struct spec_recall *r);     /* everything */
void spec_recall_text(struct spec_recall *r, uint64_t salt);    /* what is added from here on is another text */
void spec_recall_add(struct spec_recall *r, int32_t token);
bool spec_recall_token(const struct spec_recall *r, uint32_t at, int32_t *out);     /* false: the text ends */

/* Puts the longest matches of the end of tail among the n best, longest first; at most `most`.  Only texts of
 * this salt are looked at. */
int spec_recall_find(const struct spec_recall *r, uint64_t salt, const int32_t *tail, int n_tail,
                     struct spec_match *best, int n, int most);

#endif
