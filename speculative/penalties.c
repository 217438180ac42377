/* speculative/penalties.c - step 1 of sampling: changes of single logits.
 *
 * In come a row's logits z, in the sampler, and the history; the penalties lower tokens that the history has, biases
 * add to single tokens, and bans and masks set tokens to -INFINITY. */
#include "speculative/internal.h"

#include <math.h>

#define DRY_MOST 0x1p100 /* the largest DRY penalty: no z + penalty overflows a float */

/* The tokens at the end of the history that a penalty looks at. */
static const int32_t *window(int last, const int32_t *history, int n_history, int *n)
{
    *n = last < 0 ? n_history : kn_min(last, n_history);
    return history + (n_history - *n);
}

static bool is_token(const struct spec_sampler *s, int32_t token) { return token >= 0 && token < s->n_vocab; }

void spec_penalise_repeats(struct spec_sampler *s, const struct spec_params *p, const int32_t *history, int n_history)
{
    int n;
    const int32_t *seen = window(p->repeat_last, history, n_history, &n);

    if (p->repetition == 1 && p->presence == 0 && p->frequency == 0)
        return;
    for (int i = 0; i < n; i++)
        if (is_token(s, seen[i]))
            s->count[seen[i]]++;
    for (int i = 0; i < n; i++) {
        int32_t t = seen[i];
        if (!is_token(s, t) || s->count[t] == 0)
            continue;
        float z = s->z[t];
        z = z > 0 ? z / p->repetition : z * p->repetition;
        z -= (float)s->count[t] * p->frequency;
        z -= p->presence;
        s->z[t] = spec_clean_logit(z);
        s->count[t] = 0;
    }
}

/* ---- DRY --------------------------------------------------------------------------------------- */

static bool mask_has(const uint32_t *mask, int32_t token) { return mask[token >> 5] >> (token & 31) & 1; }

/* The length of the longest breaker that begins at seen[at]; 0: none. */
static int breaker_at(const struct spec_sampler *s, const struct spec_params *p, const int32_t *seen, int n, int at)
{
    int longest = 0;
    for (int i = 0; i < p->n_breaker && is_token(s, seen[at]); i++) {
        const struct spec_breaker *b = &p->breaker[i];
        if (b->n_tail >= longest && b->n_tail < n - at && mask_has(b->head, seen[at]) &&
            (!b->n_tail || !memcmp(b->tail, seen + at + 1, (size_t)b->n_tail * sizeof *seen)))
            longest = b->n_tail + 1;
    }
    return longest;
}

/* The number of tokens after the breaker that begins last; n: there is none. */
static int tokens_after_breaker(const struct spec_sampler *s, const struct spec_params *p, const int32_t *seen, int n,
                                int most)
{
    for (int at = n; at-- > 0 && n - at <= most;) {
        int length = breaker_at(s, p, seen, n, at);
        if (length > 0)
            return n - at - length;
    }
    return n;
}

static bool is_whole_breaker(const struct spec_params *p, int32_t token)
{
    for (int i = 0; i < p->n_breaker; i++)
        if (p->breaker[i].n_tail == 0 && mask_has(p->breaker[i].head, token))
            return true;
    return false;
}

/* For each k, 1 <= k < n: L is the number of last tokens, up to `most`, that the window and the window without its last
 * k tokens have in common.  If L >= dry_allowed, raises count[t] to 1 + L for the first token t of these k.
 *
 * The L are the Z function of the reversed window.  [begin, end) is the known common part that reaches furthest; no L
 * exceeds `most`, so only the first `most` values are needed again. */
static void count_repeats(struct spec_sampler *s, const struct spec_params *p, const int32_t *seen, int n, int most)
{
    uint16_t common[SPEC_DRY_LONGEST];
    const int32_t *last = seen + n - 1;
    for (int k = 1, begin = 0, end = 0; k < n; k++) {
        int length = k < end ? kn_min(end - k, common[k - begin]) : 0;
        if (k + length >= end) {
            while (length < most && k + length < n && last[-length] == last[-k - length])
                length++;
            begin = k;
            end = k + length;
        }
        if (k < most)
            common[k] = (uint16_t)length;
        int32_t next = last[1 - k];
        if (length >= p->dry_allowed && is_token(s, next) && s->count[next] < (uint32_t)length + 1)
            s->count[next] = (uint32_t)length + 1;
    }
}

static double dry_penalty(const struct spec_params *p, int length)
{
    double penalty = p->dry_multiplier;
    for (int i = p->dry_allowed; i < length && penalty < DRY_MOST && p->dry_base > 1; i++)
        penalty *= p->dry_base;
    return penalty < DRY_MOST ? penalty : DRY_MOST;
}

void spec_penalise_sequences(struct spec_sampler *s, const struct spec_params *p, const int32_t *history, int n_history)
{
    int n;
    const int32_t *seen = window(p->dry_last, history, n_history, &n);
    if (p->dry_multiplier == 0 || n < 2)
        return;
    /* a breaker that begins further back than this leaves SPEC_DRY_LONGEST tokens after it */
    int reach = SPEC_DRY_LONGEST + 1;
    for (int i = 0; i < p->n_breaker; i++)
        reach = kn_max(reach, SPEC_DRY_LONGEST + 1 + p->breaker[i].n_tail);
    int most = kn_min(SPEC_DRY_LONGEST, tokens_after_breaker(s, p, seen, n, reach));
    if (most < p->dry_allowed)
        return;
    count_repeats(s, p, seen, n, most);
    for (int i = 0; i < n; i++) {
        int32_t t = seen[i];
        if (!is_token(s, t) || s->count[t] == 0)
            continue;
        if (!is_whole_breaker(p, t))
            s->z[t] = spec_clean_logit((float)(s->z[t] - dry_penalty(p, (int)s->count[t] - 1)));
        s->count[t] = 0;
    }
}

/* ---- biases, bans and masks -------------------------------------------------------------------- */

static void add_bias(struct spec_sampler *s, const struct spec_params *p)
{
    for (int i = 0; i < p->n_bias; i++) {
        kn_assert(p->bias[i].token >= 0 && p->bias[i].token < s->n_vocab);
        s->z[p->bias[i].token] = spec_clean_logit(s->z[p->bias[i].token] + p->bias[i].add);
    }
}

static void apply_mask(struct spec_sampler *s, const uint32_t *mask /* [spec_mask_words] */)
{
    for (int i = 0; i < s->n_vocab; i++)
        if (!(mask[i >> 5] >> (i & 31) & 1))
            s->z[i] = -INFINITY;
}

static void ban_sequences(struct spec_sampler *s, const struct spec_params *p, const int32_t *history, int n_history)
{
    for (int i = 0; i < p->n_banned; i++) {
        const struct spec_sequence *b = &p->banned[i];
        int n = b->n - 1;
        if (n <= n_history && is_token(s, b->token[n]) &&
            (!n || !memcmp(b->token, history + (n_history - n), (size_t)n * sizeof *history)))
            s->z[b->token[n]] = -INFINITY;
    }
}

void spec_constrain(struct spec_sampler *s, const struct spec_params *p, const int32_t *history, int n_history,
                    int64_t position)
{
    add_bias(s, p);
    if (p->n_banned > 0)
        ban_sequences(s, p, history, n_history);
    for (int i = 0; position < p->late_from && i < p->n_late; i++)
        if (is_token(s, p->late[i]))
            s->z[p->late[i]] = -INFINITY;
    if (p->allowed)
        apply_mask(s, p->allowed);
    if (p->mask)
        apply_mask(s, p->mask);
}
