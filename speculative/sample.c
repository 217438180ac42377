/* speculative/sample.c - samples a token from a row of logits, exactly as speculative.h defines it.
 *
 * It owns scratch memory for one row, allocated at open.  In come logits, parameters and history; out goes a token, or
 * the distribution that it would be sampled from.
 *
 * The definition sorts the vocabulary and computes two logarithms per token.  The code avoids both:
 *   - the support is looked for among the tokens with the largest logits first, and among all only if it does not end there.
 *     They are put into buckets by logit.  Counts and weights of whole buckets show the bucket in which the support ends; all
 *     tokens of the buckets above are in it, in any order, and only that bucket is sorted, by a heap.  Weights are integers,
 *     so their sums do not depend on the order either;
 *   - the Gumbel noise of a token is computed only if its hash could win: g = -log(-log u) is less than
 *     -log(1 - u), which is bounded by the number of leading ones of u's bits.  Of 150,000 tokens some dozens
 *     need the logarithms.
 * Both give the definition's result by construction; tests compare them with a plain sort.  Loops over all tokens of
 * the vocabulary are operations of kn_ops (cpu/logits.c). */
#include "speculative/internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define MAX_VOCAB  (1 << 24)
#define MAX_RANGE  64.0               /* nats that the buckets span at most: e^-64 is negligible */
#define NO_BUCKET  UINT16_MAX         /* cut by min-p or at -INFINITY */
#define IN_SUPPORT (SPEC_BUCKETS + 1) /* a token of the last bucket in the support */
#define N_FIRST    64                 /* tokens whose noise is computed first, for a bound of the others' */
#define N_NEXT     4096               /* tokens listed by one bound */

/* ---- noise ------------------------------------------------------------------------------------- */

/* Seed, choice and position each pass through the hash before the next is added, so that neighbouring values give
 * unrelated noise; the tokens of a row are then a splitmix64 sequence from that point. */
static uint64_t noise_stream(uint64_t seed, uint32_t choice, int64_t position)
{
    return spec_stream(seed, choice, position, SPEC_FOR_SAMPLE);
}

static inline uint64_t noise_bits(uint64_t stream, int32_t token) { return spec_bits(stream, (uint32_t)token); }

/* u is an odd multiple of 2^-53: exact, and never 0 or 1. */
static double noise_gumbel(uint64_t bits)
{
    double u = ((double)(bits >> 12) + 0.5) * 0x1p-52;
    return -kn_log(-kn_log(u));
}

/* An upper bound of noise_gumbel(bits): with n leading ones 1 - u > 2^-(n + 1), and -log(u) > 1 - u. */
static double noise_most(uint64_t bits) { return (__builtin_clzll(~bits | 1) + 1) * KN_NOISE_BIT; }

double spec_noise(uint64_t seed, uint32_t choice, int64_t position, int32_t token)
{
    return noise_gumbel(noise_bits(noise_stream(seed, choice, position), token));
}

/* ---- scratch ----------------------------------------------------------------------------------- */

int spec_sampler_open(struct spec_sampler **out, int n_vocab)
{
    if (n_vocab < 1 || n_vocab > MAX_VOCAB)
        return kn_fail(KN_EINVAL, "a sampler needs 1 to %d tokens, not %d", MAX_VOCAB, n_vocab);

    struct spec_sampler *s = kn_calloc(1, sizeof *s);
    if (!s)
        goto fail;
    s->ops = kn_ops(KN_ISA_COUNT - 1);
    s->n_vocab = n_vocab;
    s->z = kn_calloc((size_t)n_vocab, sizeof *s->z);
    s->prob = kn_calloc((size_t)n_vocab, sizeof *s->prob);
    s->support = kn_calloc((size_t)n_vocab, sizeof *s->support);
    s->heap = kn_calloc((size_t)n_vocab, sizeof *s->heap);
    s->count = kn_calloc((size_t)n_vocab, sizeof *s->count);
    s->bucket = kn_calloc((size_t)n_vocab, sizeof *s->bucket);
    s->listed = kn_calloc((size_t)n_vocab, sizeof *s->listed);
    if (!s->z || !s->prob || !s->support || !s->heap || !s->count || !s->bucket || !s->listed)
        goto fail;
    *out = s;
    return 0;

fail:
    spec_sampler_close(s);
    return kn_fail(KN_ENOMEM, "no memory for a sampler of %d tokens", n_vocab);
}

void spec_sampler_close(struct spec_sampler *s)
{
    if (!s)
        return;
    kn_free(s->z);
    kn_free(s->prob);
    kn_free(s->support);
    kn_free(s->heap);
    kn_free(s->count);
    kn_free(s->bucket);
    kn_free(s->listed);
    kn_free(s);
}

/* ---- the row ------------------------------------------------------------------------------ */

int32_t spec_largest(const struct spec_sampler *s)
{
    int i = s->ops->find_first(s->z, s->ops->largest(s->z, s->n_vocab), s->n_vocab);
    return i < s->n_vocab ? i : 0;
}

void spec_probabilities(struct spec_sampler *s, int32_t first, double temperature)
{
    s->ops->temper(s->z, s->z[first], temperature, s->n_vocab, s->prob);
    s->ops->softmax(s->prob, s->n_vocab);
}

/* The log probability of the largest logit, z[first], at temperature 1, rounded as in spec_probabilities(). */
static double log_of_first(const struct spec_sampler *s, int32_t first)
{
    return kn_log((double)(1.0f / s->ops->exp_sum(s->z, s->z[first], s->n_vocab)));
}

/* Steps 0 and 1, and the steps that remove tokens by setting z to -INFINITY.  *params becomes the parameters that are
 * left to apply; first is the token with the largest z. */
static int process(struct spec_sampler *s, const struct spec_params **params, const float *logits,
                   const int32_t *history, int n_history, int64_t position, int32_t *first)
{
    const struct spec_params *p = *params;
    float most = s->ops->clean_logits(logits, s->n_vocab, s->z);
    int plain = s->ops->find_first(s->z, most, s->n_vocab);
    s->most = most;
    s->log_first = log_of_first(s, plain < s->n_vocab ? plain : 0);

    if (!p->has_order) {
        spec_penalise_repeats(s, p, history, n_history);
        spec_penalise_sequences(s, p, history, n_history);
    }
    spec_constrain(s, p, history, n_history, position);
    *first = spec_largest(s);
    if (s->z[*first] > -INFINITY && spec_has_steps(p)) {
        *params = spec_take_steps(s, p, history, n_history, position);
        *first = spec_largest(s);
    }
    if (s->z[*first] > -INFINITY)
        return 0;
    return kn_fail(KN_EINVAL,
                   "no token can follow at position %lld: each logit is NaN, -inf or "
                   "forbidden by a bias or a mask",
                   (long long)position);
}

float spec_logprob(const struct spec_sampler *s, const float *logits, int32_t token)
{
    return (float)(spec_clean_logit(logits[token]) - s->most + s->log_first);
}

double *spec_sampler_scratch(struct spec_sampler *s) { return (double *)(void *)s->heap; }

/* ---- steps 3 and 4 ----------------------------------------------------------------------------- */

/* The argmax of z / T + g so far, and the second largest score. */
struct winner {
    uint64_t stream;
    double temperature, score, second;
    int32_t token;
};

static void consider(struct winner *w, float z, int32_t token)
{
    double scaled = z / w->temperature;
    uint64_t bits = noise_bits(w->stream, token);
    if (token == w->token || scaled + noise_most(bits) <= w->second)
        return;
    double score = scaled + noise_gumbel(bits);
    if (score > w->score || (score == w->score && token < w->token)) {
        w->second = w->score;
        w->score = score;
        w->token = token;
    } else if (score > w->second) {
        w->second = score;
    }
}

/* Lists the tokens of the next part of the vocabulary, from *from on, whose z / T + g may be larger than `least`: all of the first
 * part.  The bound is lower than `least` by far more than quotients and products are rounded by. */
static int list_part(struct spec_sampler *s, uint64_t stream, double temperature, double least, int32_t *from)
{
    struct kn_noise noise = { stream, 1 / temperature, least - 1e-9 * (1 + fabs(least)) };
    int begin = *from, n = 0;
    *from = kn_min(begin + (begin ? N_NEXT : N_FIRST), s->n_vocab);
    if (begin && noise.inverse < HUGE_VAL && least > -HUGE_VAL)
        return s->ops->list_noisy(s->z, begin, *from, &noise, s->listed);
    for (int32_t i = begin; i < *from; i++)
        s->listed[n++] = i;
    return n;
}

static void consider_all(struct spec_sampler *s, struct winner *w)
{
    for (int32_t from = 0; from < s->n_vocab;) {
        int n = list_part(s, w->stream, w->temperature, w->second, &from);
        for (int k = 0; k < n; k++)
            consider(w, s->z[s->listed[k]], s->listed[k]);
    }
}

/* Another model with similar logits and the same noise samples the same token if the token is probable, or if its score
 * leads the second by far.  With a high temperature the lead decides: agreement is near certain for improbable tokens
 * too; at temperature 0 agreement is more frequent than the token's probability.  The mean of both estimates is right
 * on average for trained draft models. */
static float chance_of(const struct winner *w, float logprob)
{
    double ahead = (w->score - w->second) * w->temperature;
    return (float)((kn_exp((double)logprob) + 1 / (1 + kn_exp(-ahead))) / 2);
}

static bool has_cuts(const struct spec_params *p) { return p->top_k > 0 || p->top_p < 1 || p->min_p > 0; }

/* Buckets per unit of (z - most) / T, so that the n listed tokens spread over all buckets. */
static double bucket_scale(const struct spec_sampler *s, int n, double most, double temperature)
{
    double least = most;
    for (int k = 0; k < n; k++)
        if (s->z[s->listed[k]] < least)
            least = s->z[s->listed[k]];
    double range = (most - least) / temperature;
    if (!(range > 0))
        return 0;
    return SPEC_BUCKETS / (range < MAX_RANGE ? range : MAX_RANGE);
}

/* Fills the buckets with the listed tokens that pass min-p.  Equal logits share a bucket; a larger one is never in a later. */
static void fill_buckets(struct spec_sampler *s, const struct spec_params *p, int n, double most, double lowest)
{
    double temperature = p->temperature, scale = bucket_scale(s, n, most, temperature);
    bool weighs = p->top_p < 1;
    memset(s->weight_in, 0, sizeof s->weight_in);
    memset(s->count_in, 0, sizeof s->count_in);
    for (int k = 0; k < n; k++) {
        int32_t token = s->listed[k];
        double scaled = (s->z[token] - most) / temperature, at = -scaled * scale;
        s->bucket[k] = NO_BUCKET;
        if (scaled < lowest)
            continue;
        int b = at < SPEC_BUCKETS - 1 ? (int)at : SPEC_BUCKETS - 1;
        s->bucket[k] = (uint16_t)b;
        s->count_in[b]++;
        if (weighs)
            s->weight_in[b] += spec_weight_of(s->prob[token]);
    }
}

/* The bucket in which the support ends, SPEC_BUCKETS: in none; left is the rest for that bucket. */
static int last_bucket(const struct spec_sampler *s, struct spec_budget *left)
{
    int b = 0;
    while (b < SPEC_BUCKETS && spec_budget_take(left, s->count_in[b], s->weight_in[b]))
        b++;
    return b;
}

/* Lists the tokens with the largest logits, all with a logit above the least of them, so many that the support ends among them,
 * and fills the buckets.  Returns their number; sets *last to the bucket in which the support ends, and *left to the rest for it. */
static int list_candidates(struct spec_sampler *s, const struct spec_params *p, int32_t first, int *last,
                           struct spec_budget *left)
{
    static const double ranges[] = { 8, 32, HUGE_VAL }; /* in units of T below the largest */
    double most = s->z[first], lowest = p->min_p > 0 ? kn_log(p->min_p) : -DBL_MAX;
    for (int i = 0;; i++) {
        bool whole = -lowest < ranges[i];
        double least = most - (whole ? 1.001 * -lowest + 0.001 : ranges[i]) * p->temperature;
        int n = s->ops->list_above(s->z, least > -FLT_MAX ? (float)least : -FLT_MAX, s->n_vocab, s->listed);
        *left = (struct spec_budget){ p->top_k > 0 ? p->top_k : INT64_MAX,
                                      p->top_p < 1 ? spec_weight_of(p->top_p) : UINT64_MAX };
        fill_buckets(s, p, n, most, lowest);
        *last = last_bucket(s, left);
        if (*last < SPEC_BUCKETS || whole)
            return n;
    }
}

/* Writes the support's ids, ascending; returns their number. */
static int list_support(struct spec_sampler *s, const struct spec_params *p, int32_t first)
{
    struct spec_budget left;
    int last, n = 0, n_support = 0;
    if (p->top_p < 1)
        spec_probabilities(s, first, p->temperature);
    int n_listed = list_candidates(s, p, first, &last, &left);
    for (int k = 0; k < n_listed; k++)
        if (s->bucket[k] == last)
            s->heap[n++] = kn_rank_key(s->z[s->listed[k]], k);
    for (int i = n / 2; i-- > 0;)
        spec_heap_sink(s->heap, n, i);
    for (bool more = true; more && n > 0; n--) {
        int32_t k = kn_rank_id(spec_heap_pop(s->heap, n));
        s->bucket[k] = IN_SUPPORT;
        more = spec_budget_take(&left, 1, p->top_p < 1 ? spec_weight_of(s->prob[s->listed[k]]) : 0);
    }
    for (int k = 0; k < n_listed; k++)
        if (s->bucket[k] < last || s->bucket[k] == IN_SUPPORT)
            s->support[n_support++] = s->listed[k];
    return n_support;
}

void spec_keep_prefix(struct spec_sampler *s, const struct spec_params *p)
{
    if (!has_cuts(p))
        return;
    int n = list_support(s, p, spec_largest(s));
    for (int k = 0; k < n; k++)
        s->prob[k] = s->z[s->support[k]];
    for (int32_t i = 0; i < s->n_vocab; i++)
        s->z[i] = -INFINITY;
    for (int k = 0; k < n; k++)
        s->z[s->support[k]] = s->prob[k];
}

int spec_sample(struct spec_sampler *s, const struct spec_params *p, const float *logits, const int32_t *history,
                int n_history, int64_t position, struct spec_sampled *out)
{
    int32_t first;
    int e = process(s, &p, logits, history, n_history, position, &first);
    if (e < 0)
        return e;
    struct winner w = { .token = first, .temperature = 1, .score = s->z[first], .second = -INFINITY };
    if (p->temperature > 0) {
        w.stream = noise_stream(p->seed, p->choice, position);
        w.temperature = p->temperature;
        w.score = s->z[first] / w.temperature + noise_gumbel(noise_bits(w.stream, first));
        if (has_cuts(p)) {
            int n = list_support(s, p, first);
            for (int k = 0; k < n; k++)
                consider(&w, s->z[s->support[k]], s->support[k]);
        } else {
            consider_all(s, &w);
        }
    } else {
        w.second = fmax(s->ops->largest(s->z, first), s->ops->largest(s->z + first + 1, s->n_vocab - first - 1));
    }
    out->token = w.token;
    out->logprob = spec_logprob(s, logits, w.token);
    out->chance = chance_of(&w, out->logprob);
    return 0;
}

struct spec_given_token spec_given_token(struct spec_sampler *s, const float *logits, int32_t token, int n,
                                         struct spec_top *out)
{
    struct spec_given_token known = { .rank = 1 };
    double own = spec_clean_logit(logits[token]);
    s->ops->clean_logits(logits, s->n_vocab, s->z);
    for (int i = 0; i < s->n_vocab; i++)
        known.rank += s->z[i] > own || (i < token && s->z[i] >= own);
    int32_t first = spec_largest(s);
    double most = s->z[first];
    double log_first = log_of_first(s, first);
    known.logprob = (float)(own - most + log_first);
    for (int k = 0; k < n; k++) {
        int32_t next = spec_largest(s);
        out[k] = (struct spec_top){ next, (float)(s->z[next] - most + log_first) };
        s->z[next] = -INFINITY;
    }
    return known;
}

void spec_top(struct spec_sampler *s, const float *logits, int n, struct spec_top *out)
{
    (void)spec_given_token(s, logits, 0, n, out);
}

/* ---- several tokens ------------------------------------------------------------------------------ */

/* The n largest z. */
static int rank_plain(struct spec_sampler *s, int32_t first, int n, struct spec_top *out)
{
    int k = 0;
    double most = s->z[first], log_first = log_of_first(s, first);
    for (int32_t next = first; k < n && s->z[next] > -INFINITY; next = spec_largest(s)) {
        out[k++] = (struct spec_top){ next, (float)(s->z[next] - most + log_first) };
        s->z[next] = -INFINITY;
    }
    return k;
}

/* The n largest z / T + g among some tokens: k so far, and their scores. */
struct ranking {
    struct spec_top *out;
    double *score;
    int n, k;
};

static void rank_token(struct ranking *r, double score, int32_t token)
{
    int at = r->k;
    while (at > 0 && r->score[at - 1] < score)
        at--;
    if (at == r->n)
        return;
    r->k = kn_min(r->k + 1, r->n);
    for (int to = r->k - 1; to > at; to--) {
        r->score[to] = r->score[to - 1];
        r->out[to] = r->out[to - 1];
    }
    r->score[at] = score;
    r->out[at].token = token;
}

static void rank_noisy(const struct spec_sampler *s, uint64_t stream, double temperature,
                       const int32_t *token /* [n_token] */, int n_token, struct ranking *r)
{
    for (int i = 0; i < n_token; i++)
        if (s->z[token[i]] > -INFINITY)
            rank_token(r, s->z[token[i]] / temperature + noise_gumbel(noise_bits(stream, token[i])), token[i]);
}

int spec_rank(struct spec_sampler *s, const struct spec_params *p, const float *logits, const int32_t *history,
              int n_history, int64_t position, int n, struct spec_top *out)
{
    double score[SPEC_RANKS], sum = 0;
    int32_t first;
    int e = process(s, &p, logits, history, n_history, position, &first);
    kn_assert(n > 0 && n <= SPEC_RANKS);
    if (e < 0)
        return e;
    if (p->temperature == 0)
        return rank_plain(s, first, n, out);
    struct ranking r = { out, score, n, 0 };
    uint64_t stream = noise_stream(p->seed, p->choice, position);
    if (has_cuts(p))
        rank_noisy(s, stream, p->temperature, s->support, list_support(s, p, first), &r);
    for (int32_t from = has_cuts(p) ? s->n_vocab : 0; from < s->n_vocab;) {
        int n_listed = list_part(s, stream, p->temperature, r.k < n ? -HUGE_VAL : score[n - 1], &from);
        rank_noisy(s, stream, p->temperature, s->listed, n_listed, &r);
    }
    for (int i = r.k; i-- > 0;)
        sum += kn_exp(score[i] - score[0]);
    for (int i = 0; i < r.k; i++)
        out[i].logprob = (float)kn_log(fmax(kn_exp(score[i] - score[0]) / sum, 1e-30));
    return r.k;
}

/* ---- the distribution ---------------------------------------------------------------------------- */

int spec_target(struct spec_sampler *s, const struct spec_params *p, const float *logits, const int32_t *history,
                int n_history, int64_t position, struct spec_dist *out)
{
    int32_t first;
    int e = process(s, &p, logits, history, n_history, position, &first);
    if (e < 0)
        return e;
    double most = s->z[first], sum = 0;
    int n = s->n_vocab;
    if (p->temperature == 0 || has_cuts(p)) {
        double temperature = p->temperature > 0 ? p->temperature : 1;
        s->support[0] = first;
        n = p->temperature > 0 ? list_support(s, p, first) : 1;
        for (int i = 0; i < n; i++)
            s->prob[i] = (float)((s->z[s->support[i]] - most) / temperature);
        s->ops->softmax(s->prob, n);
    } else {
        spec_probabilities(s, first, p->temperature);
    }
    for (int i = 0; i < n; i++)
        sum += s->prob[i];
    *out = (struct spec_dist){ n, n < s->n_vocab ? s->support : NULL, s->prob, sum };
    return 0;
}

int spec_dist_find(const struct spec_dist *d, int32_t token)
{
    int low = 0, high = d->n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (spec_dist_id(d, mid) < token)
            low = mid + 1;
        else
            high = mid;
    }
    return low < d->n && spec_dist_id(d, low) == token ? low : -1;
}

double spec_dist_prob(const struct spec_dist *d, int32_t token)
{
    int i = spec_dist_find(d, token);
    return i < 0 ? 0 : d->weight[i] / d->sum;
}

int32_t spec_dist_token(const struct spec_dist *d, double u)
{
    double at = u * d->sum, sum = 0;
    int i = 0;
    while (i < d->n - 1 && (sum += d->weight[i]) <= at)
        i++;
    return spec_dist_id(d, i);
}

double spec_draft_uniform(const struct spec_params *p, int64_t position, int n)
{
    return spec_uniform(spec_stream(p->seed, p->choice, position, SPEC_FOR_DRAFT), (uint32_t)n);
}
