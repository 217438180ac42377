/* speculative/steps.c - steps of sampling that remove tokens, each by setting z to -INFINITY.
 *
 * The usual order leaves top-k, top-p and min-p to sample.c, which finds their prefix and the token in one pass.  With
 * XTC, which removes tokens from the middle of that prefix, and in an order that a request gives, the prefixes are
 * taken here, and nothing but the temperature is left. */
#include "speculative/internal.h"

#include <math.h>

static void top_n_sigma(struct spec_sampler *s, const struct spec_params *p)
{
    double sum = 0, squares = 0, most = s->z[spec_largest(s)];
    int n = 0;
    if (p->top_n_sigma == 0)
        return;
    for (int i = 0; i < s->n_vocab; i++)
        if (s->z[i] > -INFINITY) {
            sum += s->z[i];
            n++;
        }
    double mean = sum / n;
    for (int i = 0; i < s->n_vocab; i++)
        if (s->z[i] > -INFINITY)
            squares += (s->z[i] - mean) * (s->z[i] - mean);
    double least = most - p->top_n_sigma * sqrt(squares / n);
    for (int i = 0; i < s->n_vocab; i++)
        if (s->z[i] < least)
            s->z[i] = -INFINITY;
}

static void typical_p(struct spec_sampler *s, const struct spec_params *p, double temperature)
{
    struct spec_budget left = { INT64_MAX, spec_weight_of(p->typical_p) };
    int32_t first = spec_largest(s);
    double most = s->z[first], entropy = 0;
    int n = 0;
    if (p->typical_p >= 1)
        return;
    spec_probabilities(s, first, temperature);
    double log_first = kn_log(s->prob[first]);
    for (int i = 0; i < s->n_vocab; i++)
        if (s->z[i] > -INFINITY)
            entropy -= s->prob[i] * ((s->z[i] - most) / temperature + log_first);
    for (int32_t i = 0; i < s->n_vocab; i++) {
        s->bucket[i] = 0;
        if (s->z[i] > -INFINITY) {
            float shift = (float)fabs(entropy + ((s->z[i] - most) / temperature + log_first));
            s->heap[n++] = kn_rank_key(0.0f - shift, i);
        }
    }
    for (int i = n / 2; i-- > 0;)
        spec_heap_sink(s->heap, n, i);
    for (bool more = true; more && n > 0; n--) {
        int32_t token = kn_rank_id(spec_heap_pop(s->heap, n));
        s->bucket[token] = 1;
        more = spec_budget_take(&left, 1, spec_weight_of(s->prob[token]));
    }
    for (int i = 0; i < s->n_vocab; i++)
        if (!s->bucket[i])
            s->z[i] = -INFINITY;
}

static void xtc(struct spec_sampler *s, const struct spec_params *p, double temperature, int64_t position)
{
    uint64_t stream = spec_stream(p->seed, p->choice, position, SPEC_FOR_XTC);
    int32_t last = -1;
    if (p->xtc_probability == 0 || spec_uniform(stream, 0) >= p->xtc_probability)
        return;
    spec_probabilities(s, spec_largest(s), temperature);
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (s->z[i] > -INFINITY && s->prob[i] >= p->xtc_threshold && (last < 0 || s->z[i] <= s->z[last]))
            last = i;
    for (int32_t i = 0; i < s->n_vocab && last >= 0; i++)
        if (i != last && s->prob[i] >= p->xtc_threshold)
            s->z[i] = -INFINITY;
}

/* A step of top-k, top-p or min-p alone. */
static void take_prefix(struct spec_sampler *s, const struct spec_params *p, enum spec_step step, float temperature)
{
    struct spec_params only = { .temperature = temperature, .top_p = 1 };
    if (step == SPEC_STEP_TOP_K)
        only.top_k = p->top_k;
    else if (step == SPEC_STEP_TOP_P)
        only.top_p = p->top_p;
    else
        only.min_p = p->min_p;
    spec_keep_prefix(s, &only);
}

/* Applies the steps of the request's order to z.  The temperature step does not scale z: the steps after it use the
 * temperature, and it is returned for the caller to apply.  Returns 1 if the order has no such step.  At temperature 0,
 * no step after it is applied. */
static float take_order(struct spec_sampler *s, const struct spec_params *p, const int32_t *history, int n_history,
                        int64_t position)
{
    float temperature = 1;
    for (int i = 0; i < p->n_order; i++) {
        enum spec_step step = (enum spec_step)p->order[i];
        if (s->z[spec_largest(s)] == -INFINITY) /* penalties can do that */
            break;
        if (step == SPEC_STEP_PENALTIES)
            spec_penalise_repeats(s, p, history, n_history);
        else if (step == SPEC_STEP_DRY)
            spec_penalise_sequences(s, p, history, n_history);
        else if (step == SPEC_STEP_TOP_N_SIGMA)
            top_n_sigma(s, p);
        else if (step == SPEC_STEP_TYPICAL_P)
            typical_p(s, p, temperature);
        else if (step == SPEC_STEP_XTC)
            xtc(s, p, temperature, position);
        else if (step != SPEC_STEP_TEMPERATURE)
            take_prefix(s, p, step, temperature);
        else if ((temperature = p->temperature) == 0)
            break;
    }
    return temperature;
}

bool spec_has_steps(const struct spec_params *p)
{
    return p->has_order || (p->temperature > 0 && (p->top_n_sigma > 0 || p->typical_p < 1 || p->xtc_probability > 0));
}

const struct spec_params *spec_take_steps(struct spec_sampler *s, const struct spec_params *p, const int32_t *history,
                                          int n_history, int64_t position)
{
    struct spec_params *left = &s->left;
    *left = *p;
    if (p->has_order) {
        left->temperature = take_order(s, p, history, n_history, position);
    } else {
        top_n_sigma(s, p);
        typical_p(s, p, p->temperature);
        if (p->xtc_probability == 0)
            return left;
        spec_keep_prefix(s, p);
        xtc(s, p, p->temperature, position);
    }
    left->top_k = 0;
    left->top_p = 1;
    left->min_p = 0;
    return left;
}
