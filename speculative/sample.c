/* speculative/sample.c - samples a token from a row of logits, exactly as speculative.h defines it.
 *
 * It owns scratch memory for one row, allocated at open.  In come logits, parameters and history; out goes a token, or
 * the distribution that it would be sampled from.
 *
 * The definition sorts the vocabulary and computes two logarithms per token.  The code avoids both:
 *   - tokens are put into buckets by logit.  Counts and weights of whole buckets show the bucket in which the support
 *     ends; all tokens of the buckets above are in it, in any order, and only that bucket is sorted, by a heap.
 *     Weights are integers, so their sums do not depend on the order either;
 *   - the Gumbel noise of a token is computed only if its hash could win: g = -log(-log u) is less than
 *     -log(1 - u), which is bounded by the number of leading ones of u's bits.  Of 150,000 tokens about a dozen
 *     need the logarithms (2 multiplications each for the rest: about 1 ns).
 * Both give the definition's result by construction; tests compare them with a plain sort. */
#include "speculative/internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define MAX_VOCAB  (1 << 24)
#define MAX_RANGE  64.0               /* nats that the buckets span at most: e^-64 is negligible */
#define NO_BUCKET  UINT16_MAX         /* cut by min-p or at -INFINITY */
#define IN_SUPPORT (SPEC_BUCKETS + 1) /* a token of the last bucket in the support */

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

/* An upper bound of noise_gumbel(bits): with n leading ones 1 - u > 2^-(n + 1), and -log(u) > 1 - u.  The
 * factor is ln 2 plus one part in 10^9, far more than the error of kn_log. */
static inline double noise_most(uint64_t bits)
{
    int n = __builtin_clzll(~bits | 1);
    return (n + 1) * 0.69314718125;
}

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
    if (!s->z || !s->prob || !s->support || !s->heap || !s->count || !s->bucket)
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
    kn_free(s);
}

/* ---- the row ------------------------------------------------------------------------------ */

/* The largest value; -INFINITY if n is 0.  16 independent chains, because each comparison waits for the one before. */
static float most_of(const float *z /* [n] */, int n)
{
    float most[16];
    int i = 0;
    for (int k = 0; k < 16; k++)
        most[k] = -INFINITY;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++)
            most[k] = z[i + k] > most[k] ? z[i + k] : most[k];
    for (; i < n; i++)
        most[0] = z[i] > most[0] ? z[i] : most[0];
    for (int k = 1; k < 16; k++)
        most[0] = most[k] > most[0] ? most[k] : most[0];
    return most[0];
}

int32_t spec_largest(const struct spec_sampler *s)
{
    float most = most_of(s->z, s->n_vocab);
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (s->z[i] == most)
            return i;
    return 0;
}

void spec_probabilities(struct spec_sampler *s, int32_t first, double temperature)
{
    double most = s->z[first];
    for (int i = 0; i < s->n_vocab; i++)
        s->prob[i] = (float)((s->z[i] - most) / temperature);
    s->ops->softmax(s->prob, s->n_vocab);
}

/* Steps 0 and 1, and the steps that remove tokens by setting z to -INFINITY.  *params becomes the parameters that are
 * left to apply; first is the token with the largest z. */
static int process(struct spec_sampler *s, const struct spec_params **params, const float *logits,
                   const int32_t *history, int n_history, int64_t position, int32_t *first)
{
    const struct spec_params *p = *params;
    for (int i = 0; i < s->n_vocab; i++)
        s->z[i] = spec_clean_logit(logits[i]);
    int32_t plain = spec_largest(s);
    s->most = s->z[plain];
    spec_probabilities(s, plain, 1);
    s->log_first = kn_log(s->prob[plain]);

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

static inline void consider(struct winner *w, float z, int32_t token)
{
    double scaled = z / w->temperature;
    uint64_t bits = noise_bits(w->stream, token);
    if (scaled + noise_most(bits) <= w->second || token == w->token)
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

/* Another model with similar logits and the same noise samples the same token if the token is probable, or if its score
 * leads the second by far.  With a high temperature the lead decides: agreement is near certain for improbable tokens
 * too; at temperature 0 agreement is more frequent than the token's probability.  The mean of both estimates is right
 * on average for trained draft models. */
static float chance_of(const struct winner *w, float logprob)
{
    double ahead = (w->score - w->second) * w->temperature;
    return (float)((kn_exp((double)logprob) + 1 / (1 + kn_exp(-ahead))) / 2);
}

/* Buckets per unit of (z - most) / T, so that the candidates spread over all buckets. */
static double bucket_scale(const struct spec_sampler *s, double most, double temperature)
{
    double least = most;
    for (int i = 0; i < s->n_vocab; i++)
        if (s->z[i] < least && s->z[i] > -INFINITY)
            least = s->z[i];
    double range = (most - least) / temperature;
    if (!(range > 0))
        return 0;
    return SPEC_BUCKETS / (range < MAX_RANGE ? range : MAX_RANGE);
}

/* Fills the buckets with the tokens that pass min-p.  Equal logits share a bucket; a larger one is never in a later. */
static void fill_buckets(struct spec_sampler *s, const struct spec_params *p, double most)
{
    double lowest = p->min_p > 0 ? kn_log(p->min_p) : -DBL_MAX, temperature = p->temperature;
    double scale = bucket_scale(s, most, temperature);
    bool weighs = p->top_p < 1;
    memset(s->weight_in, 0, sizeof s->weight_in);
    memset(s->count_in, 0, sizeof s->count_in);
    for (int i = 0; i < s->n_vocab; i++) {
        double scaled = (s->z[i] - most) / temperature, at = -scaled * scale;
        s->bucket[i] = NO_BUCKET;
        if (scaled < lowest) /* also -INFINITY, without min-p */
            continue;
        int b = at < SPEC_BUCKETS - 1 ? (int)at : SPEC_BUCKETS - 1;
        s->bucket[i] = (uint16_t)b;
        s->count_in[b]++;
        if (weighs)
            s->weight_in[b] += spec_weight_of(s->prob[i]);
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

static bool has_cuts(const struct spec_params *p) { return p->top_k > 0 || p->top_p < 1 || p->min_p > 0; }

/* Finds the support, and passes its tokens to consider(w) if w is not NULL.  A token is in the support if its bucket is
 * less than the returned one, or IN_SUPPORT. */
static int find_support(struct spec_sampler *s, const struct spec_params *p, int32_t first, struct winner *w)
{
    struct spec_budget left = { p->top_k > 0 ? p->top_k : INT64_MAX,
                                p->top_p < 1 ? spec_weight_of(p->top_p) : UINT64_MAX };
    int n = 0;
    if (p->top_p < 1)
        spec_probabilities(s, first, p->temperature);
    fill_buckets(s, p, s->z[first]);
    int last = last_bucket(s, &left);

    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (s->bucket[i] == last)
            s->heap[n++] = kn_rank_key(s->z[i], i);
        else if (w && s->bucket[i] < last)
            consider(w, s->z[i], i);
    }
    for (int i = n / 2; i-- > 0;)
        spec_heap_sink(s->heap, n, i);
    for (bool more = true; more && n > 0; n--) {
        int32_t token = kn_rank_id(spec_heap_pop(s->heap, n));
        if (w)
            consider(w, s->z[token], token);
        s->bucket[token] = IN_SUPPORT;
        more = spec_budget_take(&left, 1, p->top_p < 1 ? spec_weight_of(s->prob[token]) : 0);
    }
    return last;
}

void spec_keep_prefix(struct spec_sampler *s, const struct spec_params *p)
{
    if (!has_cuts(p))
        return;
    int last = find_support(s, p, spec_largest(s), NULL);
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (s->bucket[i] >= last && s->bucket[i] != IN_SUPPORT)
            s->z[i] = -INFINITY;
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
        if (has_cuts(p))
            find_support(s, p, first, &w);
        else
            for (int32_t i = 0; i < s->n_vocab; i++)
                consider(&w, s->z[i], i);
    } else {
        w.second = fmax(most_of(s->z, first), most_of(s->z + first + 1, s->n_vocab - first - 1));
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
    for (int i = 0; i < s->n_vocab; i++) {
        s->z[i] = spec_clean_logit(logits[i]);
        known.rank += s->z[i] > own || (i < token && s->z[i] >= own);
    }
    int32_t first = spec_largest(s);
    double most = s->z[first];
    spec_probabilities(s, first, 1);
    double log_first = kn_log(s->prob[first]);
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

/* ---- the support --------------------------------------------------------------------------------- */

/* Writes the support's ids, ascending; returns their number. */
static int list_support(struct spec_sampler *s, const struct spec_params *p, int32_t first)
{
    int last, n = 0;
    if (p->temperature == 0) {
        s->support[0] = first;
        return 1;
    }
    last = find_support(s, p, first, NULL);
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (s->bucket[i] < last || s->bucket[i] == IN_SUPPORT)
            s->support[n++] = i;
    return n;
}

/* ---- several tokens ------------------------------------------------------------------------------ */

/* The n largest z. */
static int rank_plain(struct spec_sampler *s, int32_t first, int n, struct spec_top *out)
{
    int k = 0;
    spec_probabilities(s, first, 1);
    double most = s->z[first], log_first = kn_log(s->prob[first]);
    for (int32_t next = first; k < n && s->z[next] > -INFINITY; next = spec_largest(s)) {
        out[k++] = (struct spec_top){ next, (float)(s->z[next] - most + log_first) };
        s->z[next] = -INFINITY;
    }
    return k;
}

/* The n largest z / T + g, and their scores. */
static int rank_noisy(const struct spec_sampler *s, const struct spec_params *p, int64_t position,
                      const int32_t *support /* [n_support]; NULL: all */, int n_support, int n, struct spec_top *out,
                      double *score /* [n] */)
{
    uint64_t stream = noise_stream(p->seed, p->choice, position);
    double temperature = p->temperature;
    int k = 0;
    for (int i = 0; i < n_support; i++) {
        int32_t token = support ? support[i] : i;
        double scaled = s->z[token] / temperature;
        uint64_t bits = noise_bits(stream, token);
        if (s->z[token] == -INFINITY || (k == n && scaled + noise_most(bits) < score[n - 1]))
            continue;
        double its = scaled + noise_gumbel(bits);
        int at = k;
        while (at > 0 && score[at - 1] < its)
            at--;
        if (at == n)
            continue;
        k = kn_min(k + 1, n);
        for (int to = k - 1; to > at; to--) {
            score[to] = score[to - 1];
            out[to] = out[to - 1];
        }
        score[at] = its;
        out[at].token = token;
    }
    return k;
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
    int n_support = has_cuts(p) ? list_support(s, p, first) : s->n_vocab;
    n = rank_noisy(s, p, position, has_cuts(p) ? s->support : NULL, n_support, n, out, score);
    for (int i = n; i-- > 0;)
        sum += kn_exp(score[i] - score[0]);
    for (int i = 0; i < n; i++)
        out[i].logprob = (float)kn_log(fmax(kn_exp(score[i] - score[0]) / sum, 1e-30));
    return n;
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
        n = list_support(s, p, first);
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
