/* Sampling against its definition: a plain full sort (definition.h); the distribution of the coupled choice;
 * penalties worked out by hand; and golden values that no later change may alter.
 *
 * One thread: not under MODE=tsan. */
#include "tests/speculative/definition.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>

static struct spec_sampler *open_sampler(int n_vocab)
{
    struct spec_sampler *s;
    assert_int_equal(spec_sampler_open(&s, n_vocab), 0);
    return s;
}

static int32_t sample(struct spec_sampler *s, const struct spec_params *p, const float *logits, int64_t position)
{
    struct spec_sampled c;
    assert_int_equal(spec_sample(s, p, logits, NULL, 0, position, &c), 0);
    return c.token;
}

static void equals_definition(void **state)
{
    (void)state;
    int n_error = 0;
    random_state = 1;
    kn_log_set(unheard, KN_LOG_ERROR);
    for (int trial = 0; trial < 20000; trial++) {
        float logits[MOST_VOCAB], kept[MOST_VOCAB];
        int32_t history[MOST_HISTORY];
        struct lists lists;
        struct spec_params p;
        int n_vocab = 1 + random_below(random_below(4) ? 40 : MOST_VOCAB);
        int n_history = random_below(MOST_HISTORY + 1);

        random_logits(logits, n_vocab);
        random_params(&p, &lists, n_vocab);
        uint32_t mask[(MOST_VOCAB + 31) / 32];
        for (size_t i = 0; i < spec_mask_words(n_vocab); i++)
            mask[i] = (uint32_t)(random_bits() & random_bits());
        p.mask = random_below(2) ? mask : NULL;
        for (int i = 0; i < n_history; i++)
            history[i] = random_below(n_vocab + 2) - 1; /* two of them are no tokens */
        memcpy(kept, logits, sizeof kept);

        struct spec_sampler *s = open_sampler(n_vocab);
        kn_alloc_forbid(true);
        for (int64_t position = 0; position < 4; position++) {
            struct spec_sampled c;
            int e = spec_sample(s, &p, logits, history, n_history, position, &c);
            kn_alloc_forbid(false);
            int32_t want = by_definition(logits, n_vocab, &p, history, n_history, position);
            kn_alloc_forbid(true);
            assert_int_equal(e, want < 0 ? KN_EINVAL : 0);
            if (want >= 0)
                assert_int_equal(c.token, want);
            n_error += want < 0;
        }
        kn_alloc_forbid(false);
        spec_sampler_close(s);
        assert_memory_equal(kept, logits, sizeof kept);
    }
    kn_log_set(NULL, KN_LOG_INFO);
    assert_in_range(n_error, 100, 20000); /* errors occurred, and not only errors */
}

/* One vocabulary of a real size, where most of the work is skipping tokens. */
static void equals_definition_large(void **state)
{
    (void)state;
    enum { N = 151936 };
    float *logits = malloc(N * sizeof *logits);
    struct spec_sampler *s = open_sampler(N);
    struct spec_params p;
    spec_params_default(&p);
    random_state = 2;
    for (int trial = 0; trial < 6; trial++) {
        for (int i = 0; i < N; i++)
            logits[i] = random_float(-4, 4) * random_float(0, 2) + (random_below(1000) ? 0 : 9);
        p.seed = (uint64_t)trial;
        p.temperature = trial & 1 ? 0.7f : 1;
        p.top_p = trial < 3 ? 1 : 0.95f;
        p.top_k = trial == 5 ? 40 : 0;
        for (int64_t position = 100; position < 102; position++)
            assert_int_equal(sample(s, &p, logits, position), by_definition(logits, N, &p, NULL, 0, position));
    }
    spec_sampler_close(s);
    free(logits);
}

/* ---- the distribution ------------------------------------------------------------------------ */

/* Chi-square of n draws against prob; empty classes must stay empty. */
static double chi_square(const int *count, const double *prob, int n_class, int n)
{
    double sum = 0;
    for (int i = 0; i < n_class; i++) {
        double want = prob[i] * n;
        if (want == 0)
            assert_int_equal(count[i], 0);
        else
            sum += (count[i] - want) * (count[i] - want) / want;
    }
    return sum;
}

/* 9 classes: 26.1 is exceeded once in 1000; 4 classes: 16.3. */
static void choice_follows_softmax(void **state)
{
    (void)state;
    static const float logits[10] = { 1, -1, 0.5f, 2, 0, 0, -3, 1.5f, -0.25f, -INFINITY };
    enum { N = 40000 };
    struct spec_sampler *s = open_sampler(10);
    struct spec_params p;
    spec_params_default(&p);

    for (int seed = 0; seed < 4; seed++) {
        double prob[10], sum = 0;
        int count[10] = { 0 };
        p.seed = (uint64_t)seed * 1000003;
        p.temperature = seed & 1 ? 0.6f : 1;
        for (int i = 0; i < 10; i++)
            sum += prob[i] = kn_exp((double)logits[i] / p.temperature);
        for (int i = 0; i < 10; i++)
            prob[i] /= sum;
        for (int64_t position = 0; position < N; position++)
            count[sample(s, &p, logits, position)]++;
        assert_true(chi_square(count, prob, 10, N) < 26.1);
    }

    int count[10] = { 0 }; /* top-k: the same distribution, renormalised */
    double prob[10] = { 0 }, sum = 0;
    p.temperature = 1;
    p.top_k = 4;
    for (int i = 0; i < 10; i++)
        sum += prob[i] = logits[i] >= 0.5f ? kn_exp(logits[i]) : 0;
    for (int i = 0; i < 10; i++)
        prob[i] /= sum;
    for (int64_t position = 0; position < N; position++)
        count[sample(s, &p, logits, position)]++;
    assert_true(chi_square(count, prob, 10, N) < 16.3);
    spec_sampler_close(s);
}

/* Pairs of samples of one request, of neighbouring positions and of neighbouring seeds: 3 x 3 classes of
 * equal probability, 8 degrees of freedom. */
static void noise_is_independent(void **state)
{
    (void)state;
    enum { N = 30000 };
    static const float logits[3];
    struct spec_sampler *s = open_sampler(3);
    struct spec_params p, q;
    double prob[9];
    for (int i = 0; i < 9; i++)
        prob[i] = 1 / 9.0;
    for (int kind = 0; kind < 3; kind++) {
        int count[9] = { 0 };
        for (int64_t position = 0; position < 2 * N; position += 2) {
            spec_params_default(&p);
            p.seed = 7;
            q = p;
            q.choice = kind == 0;
            q.seed = kind == 1 ? 8 : 7;
            count[3 * sample(s, &p, logits, position) + sample(s, &q, logits, position + (kind == 2))]++;
        }
        assert_true(chi_square(count, prob, 9, N) < 26.1);
    }
    spec_sampler_close(s);
}

/* Two models with the same noise: p = (.5 .3 .2) and q = (.2 .3 .5) sample the same token with
 * probability 0.6308 (ratio verification would accept .7); five standard errors are 0.0054. */
static void coupling_accepts(void **state)
{
    (void)state;
    enum { N = 200000 };
    const float p_logits[3] = { (float)kn_log(.5), (float)kn_log(.3), (float)kn_log(.2) };
    const float q_logits[3] = { p_logits[2], p_logits[1], p_logits[0] };
    struct spec_sampler *s = open_sampler(3);
    struct spec_params p;
    spec_params_default(&p);
    p.seed = 42;
    int same = 0;
    for (int64_t position = 0; position < N; position++)
        same += sample(s, &p, p_logits, position) == sample(s, &p, q_logits, position);
    assert_in_range(same, (int)(0.6254 * N), (int)(0.6362 * N));
    spec_sampler_close(s);
}

/* ---- values ------------------------------------------------------------------------------------ */

static void noise_golden(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed;
        uint32_t choice;
        int64_t position;
        int32_t token;
        double g;
    } golden[] = {
        { UINT64_C(0x0), 0u, INT64_C(0), 0, -0x1.6dc5326677b14p-1 },
        { UINT64_C(0x1), 0u, INT64_C(0), 0, 0x1.0cda85b7990dcp+1 },
        { UINT64_C(0x0), 1u, INT64_C(0), 0, 0x1.c96e88321575p-4 },
        { UINT64_C(0x0), 0u, INT64_C(1), 0, 0x1.49bc7c8e3fdf2p-1 },
        { UINT64_C(0x0), 0u, INT64_C(0), 1, -0x1.190459d4c1cf1p+0 },
        { UINT64_C(0xdeadbeefcafef00d), 3u, INT64_C(131071), 151935, 0x1.6f70e98885fc2p+1 },
        { UINT64_C(0xffffffffffffffff), 4294967295u, INT64_C(1099511627776), 7, 0x1.fd44e6835c579p+0 },
    };
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++)
        assert_true(spec_noise(golden[i].seed, golden[i].choice, golden[i].position, golden[i].token) == golden[i].g);
}

/* history 1 1 2 | window of 4 holds them all; token 0 is unseen. */
static void penalties_by_hand(void **state)
{
    (void)state;
    static const int32_t history[] = { 0, 0, 1, 1, 2, 77 };
    const float logits[4] = { 1, 4, -1, 0 };
    struct spec_sampler *s = open_sampler(4);
    struct spec_params p;
    struct spec_sampled c;
    spec_params_default(&p);
    p.temperature = 0;
    p.repeat_last = 4;

    const struct {
        float repetition, frequency, presence;
        int repeat_last;
        int32_t want;
    } hand[] = {
        { 1, 0, 0, 4, 1 },                           /*  1   4    -1   0 */
        { 3.9f, 0, 0, 4, 1 },                        /*  1   1.03 -3.9 0 */
        { 4.1f, 0, 0, 4, 0 },                        /*  1   0.98 */
        { 1, 1.4f, 0, 4, 1 },                        /*  1   1.2 */
        { 1, 1.6f, 0, 4, 0 },                        /*  1   0.8 */
        { 1, 0, 2.9f, 4, 1 },                        /*  1   1.1: presence counts once */
        { 1, 0, 3.1f, 4, 0 },  { 2, 0.6f, 0, 4, 0 }, /*  1   2 - 1.2 */
        { 1, 1.6f, 0, 2, 1 },                        /*  window 2 77: token 1 unseen */
        { 1, 2.1f, 0, -1, 3 },                       /*  1-4.2  4-4.2  -3.1  0 */
        { 1, -9, 0, 2, 2 },                          /*  -1 + 9 */
        { 1, 1.6f, 0, 0, 1 },                        /*  none seen */
    };
    for (size_t i = 0; i < sizeof hand / sizeof *hand; i++) {
        p.repetition = hand[i].repetition;
        p.frequency = hand[i].frequency;
        p.presence = hand[i].presence;
        p.repeat_last = hand[i].repeat_last;
        assert_int_equal(spec_sample(s, &p, logits, history, 6, 6, &c), 0);
        assert_int_equal(c.token, hand[i].want);
    }

    struct spec_bias bias[] = { { 3, 5 }, { 1, -INFINITY }, { 3, -4.5f } };
    spec_params_default(&p);
    p.temperature = 0;
    p.bias = bias;
    p.n_bias = 2;
    assert_int_equal(sample(s, &p, logits, 0), 3);
    p.n_bias = 3; /* biases of one token add up */
    assert_int_equal(sample(s, &p, logits, 0), 0);
    spec_sampler_close(s);
}

/* A tie or a sum that equals a cut exactly. */
static void cuts_by_hand(void **state)
{
    (void)state;
    const float zeros[3] = { -0.0f, 0.0f, 0.0f }, halves[3] = { 0, 0, -INFINITY };
    const float ends[3] = { 1, 1, 0.5f };
    struct spec_sampler *s = open_sampler(3);
    struct spec_params p;
    for (int64_t position = 0; position < 50; position++) {
        spec_params_default(&p);
        p.top_k = 1;
        assert_int_equal(sample(s, &p, zeros, position), 0);
        spec_params_default(&p);
        p.top_p = 0.5f;
        assert_int_equal(sample(s, &p, halves, position), 0);
        spec_params_default(&p);
        p.min_p = 1;
        assert_int_not_equal(sample(s, &p, ends, position), 2);
    }
    spec_sampler_close(s);
}

static void logprob_is_of_the_plain_softmax(void **state)
{
    (void)state;
    const float logits[4] = { 2, 1, -300, NAN };
    struct spec_bias bias[] = { { 0, -INFINITY }, { 2, 500 } };
    struct spec_sampler *s = open_sampler(4);
    struct spec_params p;
    struct spec_sampled c;
    spec_params_default(&p);
    p.temperature = 0;
    assert_int_equal(spec_sample(s, &p, logits, NULL, 0, 0, &c), 0);
    assert_true(fabs(c.logprob - -0.31326169) < 1e-6); /* -log(1 + 1/e) */
    p.bias = bias;
    p.n_bias = 2;
    p.temperature = 0.5f;
    assert_int_equal(spec_sample(s, &p, logits, NULL, 0, 0, &c), 0);
    assert_int_equal(c.token, 2);
    assert_true(fabs(c.logprob - -302.31326) < 1e-3); /* far below the smallest float */
    spec_sampler_close(s);
}

static void refuses(void **state)
{
    (void)state;
    const float nothing[3] = { NAN, -INFINITY, NAN }, one[3] = { NAN, -9, NAN };
    struct spec_sampler *s = NULL;
    struct spec_params p;
    struct spec_sampled c = { 123, 4, 0 };
    kn_log_set(unheard, KN_LOG_ERROR);
    assert_int_equal(spec_sampler_open(&s, 0), KN_EINVAL);
    assert_null(s);

    s = open_sampler(3);
    spec_params_default(&p);
    assert_int_equal(spec_sample(s, &p, nothing, NULL, 0, 0, &c), KN_EINVAL);
    assert_int_equal(c.token, 123);
    assert_int_equal(sample(s, &p, one, 0), 1);
    spec_sampler_close(s);

    assert_int_equal(spec_params_check(&p, 3), 0);
    struct spec_bias outside = { 3, 0 }, nan = { 0, NAN };
    struct spec_params bad[9];
    for (int i = 0; i < 9; i++)
        bad[i] = p;
    bad[0].temperature = -1;
    bad[1].temperature = NAN;
    bad[2].top_k = -1;
    bad[3].top_p = 1.5f;
    bad[4].min_p = -0.1f;
    bad[5].repetition = 0;
    bad[6].repeat_last = -2;
    bad[7].bias = &outside;
    bad[8].bias = &nan;
    bad[7].n_bias = bad[8].n_bias = 1;
    for (int i = 0; i < 9; i++)
        assert_int_equal(spec_params_check(&bad[i], 3), KN_EINVAL);
    kn_log_set(NULL, KN_LOG_INFO);
}

/* Returns the likeliest token, and its margin over the next one, noise included. */
static void chance_is_of_law_and_noise(void **state)
{
    (void)state;
    enum { N = 90 };
    static const float temperature[] = { 0, 0.3f, 1, 4 };
    float logits[N];
    struct spec_sampler *s = open_sampler(N);
    struct spec_params p;
    struct spec_sampled c;
    spec_params_default(&p);
    random_state = 21;
    for (int64_t position = 0; position < 200; position++) {
        double t = p.temperature = temperature[position % 4], most = -INFINITY, second = -INFINITY;
        p.top_k = position % 8 < 4 ? 0 : N; /* all tokens, by the other code path */
        for (int i = 0; i < N; i++)
            logits[i] = random_float(-5, 5);
        assert_int_equal(spec_sample(s, &p, logits, NULL, 0, position, &c), 0);
        for (int32_t i = 0; i < N; i++) {
            double score = t > 0 ? (double)logits[i] / t + spec_noise(p.seed, p.choice, position, i)
                                 : (double)logits[i];
            second = fmax(second, fmin(score, most));
            most = fmax(most, score);
        }
        double law = exp((double)c.logprob), want = (law + 1 / (1 + exp(-(most - second) * (t > 0 ? t : 1)))) / 2;
        if (fabs((double)c.chance - want) > 1e-6)
            fail_msg("at %d, T %g: %.7f, not %.7f", (int)position, t, (double)c.chance, want);
    }
    uint32_t mask[3] = { 1 << 7 }; /* no other token is allowed */
    p.mask = mask;
    assert_int_equal(spec_sample(s, &p, logits, NULL, 0, 0, &c), 0);
    assert_true(c.token == 7 && c.chance >= 0.5f && c.chance <= 1);
    spec_sampler_close(s);
}

/* A single allowed token is sampled for any logit; its logprob is the plain softmax's. */
static void mask_leaves_only_its_tokens(void **state)
{
    (void)state;
    enum { N = 70 };
    float logits[N];
    uint32_t mask[3] = { 0 };
    struct spec_sampler *s = open_sampler(N);
    struct spec_params p;
    struct spec_sampled free_choice, c;
    spec_params_default(&p);
    random_state = 9;
    assert_int_equal(spec_mask_words(N), 3);
    for (int32_t token = 0; token < N; token++) {
        struct spec_bias bias = { token, -50 };
        for (int i = 0; i < N; i++)
            logits[i] = random_float(-9, 9);
        p.temperature = (float)(token % 2);
        p.mask = NULL;
        p.bias = &bias;
        assert_int_equal(spec_sample(s, &p, logits, NULL, 0, token, &free_choice), 0);
        mask[token / 32] = UINT32_C(1) << token % 32;
        p.mask = mask;
        p.n_bias = 1;
        assert_int_equal(spec_sample(s, &p, logits, NULL, 0, token, &c), 0);
        assert_int_equal(c.token, token);
        if (free_choice.token == token)
            assert_true(free_choice.logprob == c.logprob);
        mask[token / 32] = 0;
        p.n_bias = 0;
        kn_log_set(unheard, KN_LOG_ERROR);
        assert_int_equal(spec_sample(s, &p, logits, NULL, 0, token, &c), KN_EINVAL);
        kn_log_set(NULL, KN_LOG_INFO);
    }
    spec_sampler_close(s);
}

/* Open with the n-th allocation failing, for all n. */
static int allocations_left;

static void *failing_alloc(size_t bytes) { return allocations_left-- > 0 ? malloc(bytes) : NULL; }

static void survives_no_memory(void **state)
{
    (void)state;
    struct kn_io io = kn_io_system;
    io.alloc = failing_alloc;
    kn_io_set(&io);
    kn_log_set(unheard, KN_LOG_ERROR);
    for (int n = 0;; n++) {
        struct spec_sampler *s = NULL;
        allocations_left = n;
        int e = spec_sampler_open(&s, 100);
        if (e == 0) {
            assert_int_equal(n, 8);
            spec_sampler_close(s);
            break;
        }
        assert_int_equal(e, KN_ENOMEM);
        assert_null(s);
    }
    kn_log_set(NULL, KN_LOG_INFO);
    kn_io_set(NULL);
}

/* With repeated values, so that ids decide; the log-probabilities equal the ones of a sampled token. */
static void likeliest_by_a_plain_sort(void **state)
{
    (void)state;
    enum { N = 500 };
    struct spec_sampler *s = open_sampler(N);
    struct spec_params greedy;
    spec_params_default(&greedy);
    greedy.temperature = 0;
    random_state = 77;
    for (int round = 0; round < 50; round++) {
        float logits[N];
        struct candidate c[N];
        struct spec_top top[20];
        struct spec_sampled first;
        for (int i = 0; i < N; i++) {
            logits[i] = round % 2 ? (float)random_below(20) : random_float(-9, 9);
            if (random_below(50) == 0)
                logits[i] = round % 3 ? NAN : -INFINITY;
            c[i] = (struct candidate){ defined(logits[i]), i };
        }
        qsort(c, N, sizeof *c, by_rank);
        int n = 1 + random_below(20);
        spec_top(s, logits, n, top);
        assert_int_equal(spec_sample(s, &greedy, logits, NULL, 0, 0, &first), 0);
        assert_int_equal(top[0].token, first.token);
        assert_memory_equal(&top[0].logprob, &first.logprob, sizeof first.logprob);
        for (int i = 0; i < n; i++) {
            assert_int_equal(top[i].token, c[i].id);
            assert_true(top[i].logprob - top[0].logprob == (float)(c[i].z - c[0].z) ||
                        fabs(top[i].logprob - top[0].logprob - (c[i].z - c[0].z)) < 1e-5);
        }
    }
    spec_sampler_close(s);
}

/* The temperature at which the token is sampled. */
static float drawn_temperature(const struct spec_params *p)
{
    return p->has_order && !memchr(p->order, SPEC_STEP_TEMPERATURE, (size_t)p->n_order) ? 1 : p->temperature;
}

/* The distribution is the softmax over the support that the definition leaves. */
static void target_by_definition(void **state)
{
    (void)state;
    int n_small = 0;
    random_state = 41;
    kn_log_set(unheard, KN_LOG_ERROR);
    for (int trial = 0; trial < 6000; trial++) {
        float logits[MOST_VOCAB], z[MOST_VOCAB];
        int32_t history[MOST_HISTORY];
        double prob[MOST_VOCAB] = { 0 }, sum = 0;
        struct candidate c[MOST_VOCAB];
        struct lists lists;
        struct spec_params p, left;
        struct spec_dist d;
        int n_vocab = 1 + random_below(random_below(4) ? 40 : MOST_VOCAB), n_history = random_below(MOST_HISTORY + 1);
        random_logits(logits, n_vocab);
        random_params(&p, &lists, n_vocab);
        for (int i = 0; i < n_history; i++)
            history[i] = random_below(1 + random_below(n_vocab));
        struct spec_sampler *s = open_sampler(n_vocab);
        int e = spec_target(s, &p, logits, history, n_history, trial % 8, &d);
        memcpy(z, logits, sizeof z);
        process(z, n_vocab, &p, history, n_history, trial % 8, &left);
        int n = support((sorted(c, z, n_vocab), c), n_vocab, &left);
        double temperature = left.temperature > 0 ? left.temperature : 1;
        for (int i = 0; i < n; i++)
            sum += prob[c[i].id] = exp(((double)c[i].z - c[0].z) / temperature);
        assert_int_equal(e, n ? 0 : KN_EINVAL);
        for (int32_t t = 0; t < n_vocab && e == 0; t++)
            if (!(fabs(spec_dist_prob(&d, t) - prob[t] / sum) < 1e-5) || (prob[t] == 0 && spec_dist_prob(&d, t) > 0))
                fail_msg("trial %d token %d: %g, not %g", trial, t, spec_dist_prob(&d, t), prob[t] / sum);
        n_small += n > 1 && n < n_vocab;
        spec_sampler_close(s);
    }
    kn_log_set(NULL, KN_LOG_INFO);
    assert_in_range(n_small, 1000, 6000);
}

/* Several candidates are in the order of the definition, the first is the sampled token; probabilities sum to 1. */
static void ranks_by_definition(void **state)
{
    (void)state;
    random_state = 31;
    kn_log_set(unheard, KN_LOG_ERROR);
    for (int trial = 0; trial < 6000; trial++) {
        float logits[MOST_VOCAB];
        int32_t history[MOST_HISTORY], want[MOST_VOCAB];
        double score[MOST_VOCAB], sum = 0, all = 0;
        struct lists lists;
        struct spec_params p;
        struct spec_top top[SPEC_RANKS];
        struct spec_sampled c;
        int n_vocab = 1 + random_below(random_below(4) ? 40 : MOST_VOCAB), n_history = random_below(MOST_HISTORY + 1);
        int n = 1 + random_below(SPEC_RANKS);
        random_logits(logits, n_vocab);
        random_params(&p, &lists, n_vocab);
        for (int i = 0; i < n_history; i++)
            history[i] = random_below(n_vocab);
        struct spec_sampler *s = open_sampler(n_vocab);
        int got = spec_rank(s, &p, logits, history, n_history, trial, n, top);
        int e = spec_sample(s, &p, logits, history, n_history, trial, &c);
        int n_want = rank_by_definition(logits, n_vocab, &p, history, n_history, trial, want, score);
        spec_sampler_close(s);
        assert_int_equal(got < 0 ? got : 0, e);
        if (e < 0)
            continue;
        assert_int_equal(got, kn_min(n, n_want));
        assert_int_equal(top[0].token, c.token);
        bool noisy = drawn_temperature(&p) > 0;
        for (int i = 0; i < (noisy ? got : n_want); i++)
            all += exp(score[i] - score[0]);
        for (int i = 0; i < got; i++) {
            double chance = fmax(exp(score[i] - score[0]) / all, noisy ? 1e-30 : 0);
            assert_int_equal(top[i].token, want[i]);
            sum += exp((double)top[i].logprob);
            if (fabs(exp((double)top[i].logprob) - chance) > 1e-5 * chance + 1e-30)
                fail_msg("T %g: %g, not %g", (double)p.temperature, exp((double)top[i].logprob), chance);
        }
        assert_true(noisy ? fabs(sum - 1) < 1e-5 : sum < 1 + 1e-5);
    }
    kn_log_set(NULL, KN_LOG_INFO);
}

/* The order of choices: NaN is never sampled, -0 equals +0, the lowest id wins; also where a penalty made the -0. */
static void zeros_tie_and_nan_is_last(void **state)
{
    (void)state;
    const float logits[] = { NAN, -1, -0.0f, 0, -0.0f, NAN }, tiny[] = { -1, -1e-45f, 0, -1 };
    const int32_t history[] = { 1 }, order[] = { 2, 3, 4, 1 };
    struct spec_sampler *s = open_sampler(6), *four = open_sampler(4);
    struct spec_sampled c;
    struct spec_top top[6];
    struct spec_params p;
    spec_params_default(&p);
    for (int i = 0; i < 2; i++) {
        p.temperature = (float)i;
        p.top_k = i;
        for (int64_t position = 0; position < 20; position++)
            assert_int_equal(sample(s, &p, logits, position), 2);
        p.repetition = 0.01f; /* -1e-45 * 0.01 rounds to -0 */
        assert_int_equal(spec_sample(four, &p, tiny, history, 1, 0, &c), 0);
        assert_int_equal(c.token, 1);
        p.repetition = 1;
    }
    p.temperature = 0;
    assert_int_equal(spec_rank(s, &p, logits, NULL, 0, 0, 6, top), 4); /* the NaNs are not ranked */
    for (int i = 0; i < 4; i++)
        assert_int_equal(top[i].token, order[i]);
    spec_sampler_close(s);
    spec_sampler_close(four);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_definition),          cmocka_unit_test(equals_definition_large),
        cmocka_unit_test(choice_follows_softmax),     cmocka_unit_test(noise_is_independent),
        cmocka_unit_test(coupling_accepts),           cmocka_unit_test(noise_golden),
        cmocka_unit_test(penalties_by_hand),          cmocka_unit_test(cuts_by_hand),
        cmocka_unit_test(zeros_tie_and_nan_is_last),  cmocka_unit_test(logprob_is_of_the_plain_softmax),
        cmocka_unit_test(likeliest_by_a_plain_sort),  cmocka_unit_test(ranks_by_definition),
        cmocka_unit_test(target_by_definition),       cmocka_unit_test(refuses),
        cmocka_unit_test(chance_is_of_law_and_noise), cmocka_unit_test(mask_leaves_only_its_tokens),
        cmocka_unit_test(survives_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
