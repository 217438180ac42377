/* tests/speculative/definition.h - sampling by its definition in speculative.h: full sorts and loops over everything;
 * and random cases for it. */
#ifndef TESTS_SPECULATIVE_DEFINITION_H
#define TESTS_SPECULATIVE_DEFINITION_H

#include "speculative/internal.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state;

static uint64_t random_bits(void) { return kn_mix(random_state += KN_GOLDEN); }
static int random_below(int n) { return (int)(random_bits() >> 33) % n; }
static float random_float(float least, float most)
{
    return least + (most - least) * (float)(random_bits() >> 40) * 0x1p-24f;
}

static void unheard(enum kn_level level, const char *line)
{
    (void)level;
    (void)line;
}

/* ---- the definition ---------------------------------------------------------------------------- */

enum { MOST_VOCAB = 600, MOST_HISTORY = 40, MOST_BIAS = 4, MOST_BREAKER = 3, MOST_BANNED = 3, MOST_TAIL = 2 };

struct candidate {
    float z;
    int32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->z != y->z)
        return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static float defined(float z) { return z != z || z == -INFINITY ? -INFINITY : z == INFINITY ? FLT_MAX : z; }

/* u of XTC. */
static double xtc_dice(const struct spec_params *p, int64_t position)
{
    return spec_uniform(spec_stream(p->seed, p->choice, position, SPEC_FOR_XTC), 0);
}

static void repeats(float *z, int n_vocab, const struct spec_params *p, const int32_t *history, int n_history)
{
    int from = p->repeat_last < 0 || p->repeat_last > n_history ? 0 : n_history - p->repeat_last;
    for (int32_t t = 0; t < n_vocab; t++) {
        int count = 0;
        for (int i = from; i < n_history; i++)
            count += history[i] == t;
        if (count > 0) {
            z[t] = z[t] > 0 ? z[t] / p->repetition : z[t] * p->repetition;
            z[t] = z[t] - (float)count * p->frequency;
            z[t] = defined(z[t] - p->presence);
        }
    }
}

/* The tokens of the history after the breaker that begins last. */
static int after_breaker(int n_vocab, const struct spec_params *p, const int32_t *h, int n)
{
    for (int i = n; i-- > 0;) {
        int longest = 0;
        for (int k = 0; k < p->n_breaker; k++) {
            const struct spec_breaker *b = &p->breaker[k];
            bool is = h[i] >= 0 && h[i] < n_vocab && b->head[h[i] / 32] >> h[i] % 32 & 1 && i + 1 + b->n_tail <= n;
            for (int j = 0; is && j < b->n_tail; j++)
                is = h[i + 1 + j] == b->tail[j];
            if (is && 1 + b->n_tail > longest)
                longest = 1 + b->n_tail;
        }
        if (longest)
            return n - i - longest;
    }
    return n;
}

static void sequences(float *z, int n_vocab, const struct spec_params *p, const int32_t *history, int n_history)
{
    int n = p->dry_last < 0 || p->dry_last > n_history ? n_history : p->dry_last;
    const int32_t *h = history + (n_history - n);
    int most = kn_min(after_breaker(n_vocab, p, h, n), SPEC_DRY_LONGEST);
    for (int32_t t = 0; t < n_vocab && p->dry_multiplier > 0; t++) {
        int longest = -1;
        bool whole = false;
        for (int i = 1; i < n; i++) {
            int l = 0;
            while (l < most && l < i && h[i - 1 - l] == h[n - 1 - l])
                l++;
            if (h[i] == t && l >= p->dry_allowed && l > longest)
                longest = l;
        }
        for (int k = 0; k < p->n_breaker; k++)
            whole = whole || (!p->breaker[k].n_tail && p->breaker[k].head[t / 32] >> t % 32 & 1);
        if (longest < 0 || whole)
            continue;
        double penalty = p->dry_multiplier;
        for (int i = p->dry_allowed; i < longest; i++)
            penalty = penalty * p->dry_base;
        z[t] = defined((float)((double)z[t] - fmin(penalty, 0x1p100)));
    }
}

static void constrain(float *z, int n_vocab, const struct spec_params *p, const int32_t *history, int n_history,
                      int64_t position)
{
    for (int i = 0; i < p->n_bias; i++)
        z[p->bias[i].token] = defined(z[p->bias[i].token] + p->bias[i].add);
    for (int i = 0; i < p->n_banned; i++) {
        const struct spec_sequence *b = &p->banned[i];
        bool is = b->n - 1 <= n_history;
        for (int j = 1; is && j < b->n; j++)
            is = history[n_history - j] == b->token[b->n - 1 - j];
        if (is)
            z[b->token[b->n - 1]] = -INFINITY;
    }
    for (int i = 0; i < p->n_late && position < p->late_from; i++)
        z[p->late[i]] = -INFINITY;
    for (int i = 0; i < n_vocab && p->mask; i++)
        if (!(p->mask[i / 32] & UINT32_C(1) << i % 32))
            z[i] = -INFINITY;
    for (int i = 0; i < n_vocab && p->allowed; i++)
        if (!(p->allowed[i / 32] & UINT32_C(1) << i % 32))
            z[i] = -INFINITY;
}

/* The support in sorted order; returns its length, 0 when it is empty. */
static int support(struct candidate *c, int n_vocab, const struct spec_params *p)
{
    qsort(c, (size_t)n_vocab, sizeof *c, by_rank);
    if (c[0].z == -INFINITY)
        return 0;
    if (p->temperature == 0)
        return 1;

    float *prob = malloc((size_t)n_vocab * sizeof *prob);
    for (int i = 0; i < n_vocab; i++)
        prob[c[i].id] = (float)(((double)c[i].z - c[0].z) / p->temperature);
    kn_ops(KN_ISA_SCALAR)->softmax(prob, n_vocab);

    int n = 0, n_top_p = n_vocab, n_min_p = n_vocab;
    while (n < n_vocab && c[n].z > -INFINITY)
        n++;
    uint64_t sum = 0;
    for (int i = n; i-- > 0;)
        if (((double)c[i].z - c[0].z) / p->temperature < kn_log(p->min_p))
            n_min_p = i;
    for (int i = 0; i < n && n_top_p == n_vocab; i++)
        if ((sum += (uint64_t)(prob[c[i].id] * 0x1p44)) >= (uint64_t)(p->top_p * 0x1p44) && p->top_p < 1)
            n_top_p = i + 1;
    free(prob);
    n = kn_min(n, kn_min(n_top_p, n_min_p));
    return p->top_k > 0 ? kn_min(n, p->top_k) : n;
}

/* ---- steps that remove tokens: each sorts all of them ---- */

static int sorted(struct candidate *c, const float *z, int n_vocab)
{
    for (int32_t t = 0; t < n_vocab; t++)
        c[t] = (struct candidate){ z[t], t };
    qsort(c, (size_t)n_vocab, sizeof *c, by_rank);
    return n_vocab;
}

/* prob[id], and the largest z. */
static double softmax_at(const float *z, int n_vocab, double temperature, float *prob, double *log_most)
{
    double most = -INFINITY;
    for (int i = 0; i < n_vocab; i++)
        most = fmax(most, z[i]);
    for (int i = 0; i < n_vocab; i++)
        prob[i] = (float)(((double)z[i] - most) / temperature);
    kn_ops(KN_ISA_SCALAR)->softmax(prob, n_vocab);
    for (int i = n_vocab; i-- > 0;)
        if (z[i] == most)
            *log_most = kn_log(prob[i]);
    return most;
}

static void keep_prefix(float *z, int n_vocab, const struct spec_params *p)
{
    struct candidate *c = malloc((size_t)n_vocab * sizeof *c);
    sorted(c, z, n_vocab);
    for (int i = support(c, n_vocab, p); i < n_vocab; i++)
        z[c[i].id] = -INFINITY;
    free(c);
}

static void keep_sigma(float *z, int n_vocab, const struct spec_params *p)
{
    double sum = 0, squares = 0, most = -INFINITY;
    int n = 0;
    for (int i = 0; i < n_vocab; i++)
        if (z[i] > -INFINITY) {
            most = fmax(most, z[i]);
            sum += z[i];
            n++;
        }
    for (int i = 0; i < n_vocab; i++)
        if (z[i] > -INFINITY)
            squares += (z[i] - sum / n) * (z[i] - sum / n);
    for (int i = 0; i < n_vocab && p->top_n_sigma > 0; i++)
        if (z[i] < most - p->top_n_sigma * sqrt(squares / n))
            z[i] = -INFINITY;
}

static void keep_typical(float *z, int n_vocab, const struct spec_params *p, double temperature)
{
    float *prob = malloc((size_t)n_vocab * sizeof *prob);
    struct candidate *c = malloc((size_t)n_vocab * sizeof *c);
    double log_most = 0, entropy = 0, most = softmax_at(z, n_vocab, temperature, prob, &log_most);
    for (int i = 0; i < n_vocab; i++)
        if (z[i] > -INFINITY)
            entropy -= prob[i] * ((z[i] - most) / temperature + log_most);
    for (int32_t i = 0; i < n_vocab; i++) {
        double shift = fabs(entropy + ((z[i] - most) / temperature + log_most));
        c[i] = (struct candidate){ z[i] > -INFINITY ? -(float)shift : -INFINITY, i };
    }
    qsort(c, (size_t)n_vocab, sizeof *c, by_rank);
    uint64_t sum = 0;
    for (int i = 0; i < n_vocab && p->typical_p < 1; i++) {
        if (sum >= (uint64_t)(p->typical_p * 0x1p44) && i > 0)
            z[c[i].id] = -INFINITY;
        sum += (uint64_t)(prob[c[i].id] * 0x1p44);
    }
    free(prob);
    free(c);
}

static void exclude_top(float *z, int n_vocab, const struct spec_params *p, double temperature, int64_t position)
{
    float *prob = malloc((size_t)n_vocab * sizeof *prob);
    struct candidate *c = malloc((size_t)n_vocab * sizeof *c);
    double log_most = 0;
    int n = 0;
    softmax_at(z, n_vocab, temperature, prob, &log_most);
    sorted(c, z, n_vocab);
    while (n < n_vocab && c[n].z > -INFINITY && prob[c[n].id] >= p->xtc_threshold)
        n++;
    if (xtc_dice(p, position) < p->xtc_probability)
        for (int i = 0; i < n - 1; i++)
            z[c[i].id] = -INFINITY;
    free(prob);
    free(c);
}

static bool has_tokens(const float *z, int n_vocab)
{
    for (int i = 0; i < n_vocab; i++)
        if (z[i] > -INFINITY)
            return true;
    return false;
}

static void take_order(float *z, int n_vocab, const struct spec_params *p, const int32_t *history, int n_history,
                       int64_t position, struct spec_params *left)
{
    left->temperature = 1;
    for (int i = 0; i < p->n_order && has_tokens(z, n_vocab); i++) {
        struct spec_params one = { .temperature = left->temperature, .top_p = 1 };
        switch ((enum spec_step)p->order[i]) {
        case SPEC_STEP_PENALTIES:
            repeats(z, n_vocab, p, history, n_history);
            break;
        case SPEC_STEP_DRY:
            sequences(z, n_vocab, p, history, n_history);
            break;
        case SPEC_STEP_TOP_N_SIGMA:
            keep_sigma(z, n_vocab, p);
            break;
        case SPEC_STEP_TOP_K:
            one.top_k = p->top_k;
            keep_prefix(z, n_vocab, &one);
            break;
        case SPEC_STEP_TOP_P:
            one.top_p = p->top_p;
            keep_prefix(z, n_vocab, &one);
            break;
        case SPEC_STEP_MIN_P:
            one.min_p = p->min_p;
            keep_prefix(z, n_vocab, &one);
            break;
        case SPEC_STEP_TYPICAL_P:
            keep_typical(z, n_vocab, p, left->temperature);
            break;
        case SPEC_STEP_XTC:
            exclude_top(z, n_vocab, p, left->temperature, position);
            break;
        case SPEC_STEP_TEMPERATURE:
            left->temperature = p->temperature;
            if (p->temperature == 0)
                return;
            break;
        default:
            abort();
        }
    }
}

/* All steps that change z.  left: the parameters of the prefix and the noise that follow. */
static void process(float *z, int n_vocab, const struct spec_params *p, const int32_t *history, int n_history,
                    int64_t position, struct spec_params *left)
{
    for (int i = 0; i < n_vocab; i++)
        z[i] = defined(z[i]);
    if (!p->has_order) {
        repeats(z, n_vocab, p, history, n_history);
        sequences(z, n_vocab, p, history, n_history);
    }
    constrain(z, n_vocab, p, history, n_history, position);
    *left = *p;
    if (!has_tokens(z, n_vocab) || (!p->has_order && p->temperature == 0))
        return;
    if (p->has_order) {
        take_order(z, n_vocab, p, history, n_history, position, left);
    } else {
        keep_sigma(z, n_vocab, p);
        keep_typical(z, n_vocab, p, p->temperature);
        keep_prefix(z, n_vocab, p);
        exclude_top(z, n_vocab, p, p->temperature, position);
    }
    left->top_k = 0;
    left->top_p = 1;
    left->min_p = 0;
}

/* The whole support: the sampled token first, then the tokens sampled if all earlier ones were excluded; at
 * temperature 0 all tokens. */
static int rank_by_definition(const float *logits, int n_vocab, const struct spec_params *p, const int32_t *history,
                              int n_history, int64_t position, int32_t *token, double *score)
{
    struct spec_params left;
    float z[MOST_VOCAB];
    struct candidate c[MOST_VOCAB];
    memcpy(z, logits, (size_t)n_vocab * sizeof *z);
    process(z, n_vocab, p, history, n_history, position, &left);
    for (int32_t t = 0; t < n_vocab; t++)
        c[t] = (struct candidate){ z[t], t };
    float temperature = left.temperature;
    if (temperature == 0) /* no cuts; no noise is added below */
        left = (struct spec_params){ .temperature = 1, .top_p = 1 };
    int n = support(c, n_vocab, &left);
    for (int i = 0; i < n; i++) {
        double its = temperature > 0 ? (double)c[i].z / temperature + spec_noise(p->seed, p->choice, position, c[i].id)
                                     : (double)c[i].z;
        int at = i;
        for (; at > 0 && (score[at - 1] < its || (score[at - 1] == its && token[at - 1] > c[i].id)); at--) {
            score[at] = score[at - 1];
            token[at] = token[at - 1];
        }
        score[at] = its;
        token[at] = c[i].id;
    }
    return n;
}

static int32_t by_definition(const float *logits, int n_vocab, const struct spec_params *p, const int32_t *history,
                             int n_history, int64_t position)
{
    struct spec_params left;
    float *z = malloc((size_t)n_vocab * sizeof *z);
    struct candidate *c = malloc((size_t)n_vocab * sizeof *c);
    memcpy(z, logits, (size_t)n_vocab * sizeof *z);
    process(z, n_vocab, p, history, n_history, position, &left);
    for (int32_t t = 0; t < n_vocab; t++)
        c[t] = (struct candidate){ z[t], t };

    int n = support(c, n_vocab, &left);
    int32_t best = n > 0 ? c[0].id : -1;
    double best_score = -INFINITY;
    for (int i = 0; i < n && left.temperature > 0; i++) {
        double score = (double)c[i].z / left.temperature + spec_noise(p->seed, p->choice, position, c[i].id);
        if (score > best_score || (score == best_score && c[i].id < best)) {
            best_score = score;
            best = c[i].id;
        }
    }
    free(z);
    free(c);
    return best;
}

/* ---- random cases ------------------------------------------------------------------------------ */

static void random_logits(float *z, int n)
{
    static const float odd[] = { NAN, -INFINITY, 0.0f, -0.0f, 3.5f, FLT_MAX, -FLT_MAX, 1e-40f };
    int kind = random_below(6);
    float width = random_float(0.01f, 12);
    for (int i = 0; i < n; i++) {
        z[i] = random_float(-width, width);
        if (kind == 1)
            z[i] = (float)random_below(3); /* ties */
        if (kind == 2 && random_below(3) == 0)
            z[i] = odd[random_below(8)];
        if (kind == 3)
            z[i] = random_below(20) ? -INFINITY : z[i];
        if (kind == 4)
            z[i] = random_below(30) ? NAN : random_below(2) ? INFINITY : z[i];
        if (kind == 5)
            z[i] = -1.5f;
    }
}

/* Memory of one case's lists. */
struct lists {
    struct spec_bias bias[MOST_BIAS];
    struct spec_breaker breaker[MOST_BREAKER];
    struct spec_sequence banned[MOST_BANNED];
    uint32_t head[MOST_BREAKER][(MOST_VOCAB + 31) / 32], allowed[(MOST_VOCAB + 31) / 32];
    int32_t tail[MOST_BREAKER][MOST_TAIL], banned_token[MOST_BANNED][MOST_TAIL + 1], late[2];
};

/* The parameters beyond the penalties and prefixes. */
static void random_steps(struct spec_params *p, struct lists *l, int n_vocab)
{
    if (random_below(4) == 0)
        p->typical_p = random_below(9) ? random_float(0, 1) : 0;
    if (random_below(4) == 0)
        p->top_n_sigma = random_float(0, 3);
    if (random_below(4) == 0) {
        p->xtc_probability = random_below(3) ? random_float(0, 1) : 1;
        p->xtc_threshold = random_below(9) ? random_float(0, 0.4f) : 0;
    }
    if (random_below(3) == 0) {
        p->dry_multiplier = random_float(0, 3);
        p->dry_base = random_float(1, 3);
        p->dry_allowed = random_below(4);
        p->dry_last = random_below(MOST_HISTORY) - 1;
    }
    p->breaker = l->breaker;
    p->n_breaker = random_below(MOST_BREAKER + 1);
    for (int i = 0; i < p->n_breaker; i++) {
        for (size_t k = 0; k < spec_mask_words(n_vocab); k++)
            l->head[i][k] = (uint32_t)(random_bits() & random_bits() & random_bits());
        for (int k = 0; k < MOST_TAIL; k++)
            l->tail[i][k] = random_below(n_vocab);
        l->breaker[i] = (struct spec_breaker){ l->head[i], l->tail[i], random_below(MOST_TAIL + 1) };
    }
    p->banned = l->banned;
    p->n_banned = random_below(3) ? 0 : random_below(MOST_BANNED + 1);
    for (int i = 0; i < p->n_banned; i++) {
        for (int k = 0; k <= MOST_TAIL; k++)
            l->banned_token[i][k] = random_below(n_vocab);
        l->banned[i] = (struct spec_sequence){ l->banned_token[i], 1 + random_below(MOST_TAIL + 1) };
    }
    p->late = l->late;
    p->n_late = random_below(3) ? 0 : 1 + random_below(2);
    p->late_from = random_below(5);
    l->late[0] = random_below(n_vocab);
    l->late[1] = random_below(n_vocab);
    for (size_t k = 0; k < spec_mask_words(n_vocab); k++)
        l->allowed[k] = (uint32_t)(random_bits() | random_bits());
    p->allowed = random_below(5) ? NULL : l->allowed;
    p->has_order = random_below(4) == 0;
    while (p->has_order && p->n_order < SPEC_STEPS && random_below(12)) {
        uint8_t step = (uint8_t)random_below(SPEC_STEPS);
        if (!memchr(p->order, step, (size_t)p->n_order))
            p->order[p->n_order++] = step;
    }
}

static void random_params(struct spec_params *p, struct lists *l, int n_vocab)
{
    spec_params_default(p);
    p->seed = random_bits();
    p->choice = (uint32_t)random_below(3);
    p->temperature = random_below(8) ? random_float(0.05f, 3) : random_below(2) ? 0 : 1e-30f;
    if (random_below(2))
        p->top_k = 1 + random_below(n_vocab + 3);
    if (random_below(2))
        p->top_p = random_below(9) ? random_float(0, 1) : 0;
    if (random_below(2))
        p->min_p = random_below(9) ? random_float(0, 0.3f) : 1;
    if (random_below(2))
        p->repetition = random_float(0.5f, 2);
    if (random_below(2))
        p->presence = random_float(-1, 2);
    if (random_below(2))
        p->frequency = random_float(-1, 2);
    p->repeat_last = random_below(MOST_HISTORY) - 1;
    p->bias = l->bias;
    p->n_bias = random_below(MOST_BIAS + 1);
    for (int i = 0; i < p->n_bias; i++)
        l->bias[i] = (struct spec_bias){ random_below(n_vocab), random_below(3) ? random_float(-5, 5) : -INFINITY };
    random_steps(p, l, n_vocab);
}

#endif
