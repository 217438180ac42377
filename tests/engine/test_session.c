/* Sessions. The answer of a session depends on its tokens, sampling parameters and seed alone; a failure of one session
 * leaves the others unchanged; each KV block is freed at the end. Also: prompt logprobs, continued sessions, limits and
 * refused requests, preemption, memory budgets and failing calls at open.
 *
 * The model is tiny and random, at temperature 1 with a seed each, so that one wrong bit in a logit soon changes a
 * sampled token. Logprobs are compared by memcmp too.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/internal.h"
#include "tests/faults.h"
#include "tests/moe/change.h"

#define N_CTX  256
#define N_MOST 8
#define LENGTH 28 /* tokens to add */
#define PROMPT 90 /* beyond one chunk of attention */

static char path[64];
static int n_vocab;
static uint64_t random_state;

static int random_below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

static int setup(void **state)
{
    (void)state;
    struct kn_team *team;
    snprintf(path, sizeof path, "/tmp/spillway-session-%d.gguf", getpid());
    if (kn_team_open(&team, 2) != 0)
        return -1;
    struct moe_synth_options so = {
        .shape = "tiny", .n_layer = 2, .n_vocab = 300, .format = KN_Q4_K, .seed = 3, .team = team
    };
    int error = moe_synth(path, &so);
    kn_team_close(team);
    n_vocab = 300;
    return error;
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

static struct eng_engine *open_engine(struct eng_options o)
{
    struct eng_engine *e = NULL;
    o.model = o.model ? o.model : path;
    o.isa = KN_ISA_COUNT - 1;
    o.n_ctx = o.n_ctx ? o.n_ctx : N_CTX;
    o.n_parallel = o.n_parallel ? o.n_parallel : 1;
    o.n_thread = o.n_thread ? o.n_thread : 1;
    assert_int_equal(eng_open(&e, &o), 0);
    return e;
}

static void close_engine(struct eng_engine *e)
{
    for (int i = 0; i < e->assets.opt.n_session; i++)
        eng_session_close(&e->schedule.session[i]);
    assert_int_equal(e->kv.n_free, e->kv.n_block); /* every block is free again */
    eng_close(e);
}

static struct eng_request request(const int32_t *token, int n_token, int n_predict, uint64_t seed)
{
    struct eng_request r = { .token = token, .n_token = n_token, .n_predict = n_predict, .ignore_eos = true };
    spec_params_default(&r.sampling);
    r.sampling.temperature = 1;
    r.sampling.seed = seed;
    return r;
}

static void fill_prompt(int32_t *token, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++)
        token[i] = (int32_t)(kn_mix(seed * 1000 + (uint64_t)i) % (uint64_t)n_vocab);
}

/* ---- recording events ------------------------------------------------------------------------ */

struct heard {
    int32_t token[N_CTX];
    float logprob[N_CTX];
    int n, n_end, n_bare, status; /* n_bare: events without a token */
    enum eng_finish finish;
};

static void hear(struct heard *h, const struct eng_event *ev)
{
    assert_int_equal(h->n_end, 0); /* no event after the last */
    if (ev->token != ENG_NO_TOKEN) {
        h->token[h->n] = ev->token;
        h->logprob[h->n++] = ev->logprob;
    }
    h->n_bare += ev->token == ENG_NO_TOKEN;
    h->finish = ev->finish;
    h->status = ev->status;
    h->n_end += ev->finish != ENG_RUNNING;
}

/* Steps until s ends; records its events. */
static struct heard run_alone(struct eng_engine *e, struct eng_session *s, const struct eng_request *r)
{
    struct heard h = { 0 };
    struct eng_event event[2 * N_MOST];
    struct eng_request owned = *r;
    owned.owner = &h;
    owned.choice = 5;
    assert_int_equal(eng_session_start(s, &owned), 0);
    for (int step = 0; !h.n_end; step++) {
        assert_true(step < 4 * N_CTX);
        int n = eng_step(e, event);
        assert_in_range(n, 0, eng_event_room(e));
        for (int i = 0; i < n; i++)
            if (event[i].session == s) {
                assert_true(event[i].owner == &h && event[i].choice == 5);
                assert_int_equal(event[i].n_cached, eng_session_cached(s));
                hear(&h, &event[i]);
            }
    }
    return h;
}

static void assert_same(const char *what, const struct heard *got, const struct heard *want)
{
    if (got->n != want->n || got->finish != want->finish ||
        memcmp(got->token, want->token, sizeof *got->token * (size_t)got->n) ||
        memcmp(got->logprob, want->logprob, sizeof *got->logprob * (size_t)got->n))
        fail_msg("%s: not the same (%d and %d tokens, finish %d and %d)", what, got->n, want->n, got->finish,
                 want->finish);
}

/* ---- the same answer in any batch ------------------------------------------------------------ */

/* Runs the target beside n_company sessions that start, stop and end at random; 0: alone. */
static struct heard run_in_company(struct eng_options o, int n_company)
{
    int32_t prompt[N_CTX], noise[N_CTX];
    struct eng_session *target, *other[N_MOST];
    struct eng_event event[2 * N_MOST];
    struct heard h = { 0 };
    o.n_parallel = n_company + 1;
    struct eng_engine *e = open_engine(o);
    fill_prompt(prompt, PROMPT, 1);
    int place = random_below(n_company + 1);
    for (int i = 0; i <= n_company; i++)
        assert_int_equal(eng_session_open(i == place ? &target : &other[i - (i > place)], e), 0);
    struct eng_request r = request(prompt, PROMPT, LENGTH, 99);
    for (int step = 0, wait = random_below(4); !h.n_end; step++) {
        assert_true(step < 4 * N_CTX);
        if (step == wait)
            assert_int_equal(eng_session_start(target, &r), 0);
        for (int i = 0; i < n_company; i++) {
            if (other[i]->finish != ENG_RUNNING && random_below(3) == 0) {
                int n = 1 + random_below(120);
                fill_prompt(noise, n, (uint64_t)random_below(1000));
                struct eng_request x = request(noise, n, random_below(30), (uint64_t)step);
                assert_int_equal(eng_session_start(other[i], &x), 0);
            } else if (random_below(20) == 0) {
                eng_session_stop(other[i]);
            }
        }
        int n = eng_step(e, event);
        assert_in_range(n, 0, eng_event_room(e));
        for (int i = 0; i < n; i++)
            if (event[i].session == target)
                hear(&h, &event[i]);
    }
    assert_int_equal(h.n, LENGTH);
    assert_int_equal(h.finish, ENG_LENGTH);
    close_engine(e);
    return h;
}

static void company_chunks_and_threads_change_nothing(void **state)
{
    (void)state;
    static const int chunks[] = { 1, 7, 64, 512 };
    random_state = 17;
    for (int kv = 0; kv < KN_KV_COUNT; kv++) {
        struct eng_options o = { .kv = (enum kn_kv)kv };
        struct heard want = run_in_company(o, 0);
        int distinct = 0;
        for (int i = 1; i < want.n; i++)
            distinct += want.token[i] != want.token[0];
        assert_true(distinct > LENGTH / 2); /* a constant output would prove nothing */
        for (int i = 0; i < 4; i++) {
            o.n_chunk = chunks[i];
            o.n_thread = 1 + i % 3;
            struct heard alone = run_in_company(o, 0), company = run_in_company(o, 1 + 2 * i);
            assert_same("alone", &alone, &want);
            assert_same("in company", &company, &want);
        }
    }
}

/* ---- prompt logprobs ------------------------------------------------------------------------- */

enum { N_TELL = 16 };

static size_t kv_bytes(int n_slot)
{
    struct eng_engine *e = open_engine((struct eng_options){ .n_parallel = 1 });
    size_t slot = moe_kv_slot_bytes(e->assets.model, KN_KV_F16) + ENG_KV_SLOT_BYTES;
    close_engine(e);
    return (size_t)n_slot * slot;
}

/* Runs a session with prompt logprobs beside a decoding session that may preempt it. */
static struct heard tell_alone(struct eng_options o, const int32_t *token, int n, int n_predict)
{
    struct eng_session *s, *other;
    struct eng_event event[4 * N_MOST + N_TELL];
    struct heard h = { 0 };
    int32_t noise[PROMPT];
    o.n_parallel = 2;
    struct eng_engine *e = open_engine(o);
    struct eng_request r = request(token, n, n_predict, 99), x = request(noise, PROMPT, 100, 5);
    r.wants_prompt_logprobs = true;
    r.n_prompt_top = 2;
    fill_prompt(noise, PROMPT, 77);
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_open(&other, e), 0);
    x.priority = 1;
    for (int again = 0; again < 2; again++) { /* no cache hit the second time: the logprobs need all rows */
        h = (struct heard){ 0 };
        h.token[h.n++] = token[0];
        assert_int_equal(eng_session_start(s, &r), 0);
        for (int step = 0; !h.n_end; step++) {
            assert_true(step < 4 * N_CTX);
            if (step == 2)
                assert_int_equal(eng_session_start(other, &x), 0);
            int got = eng_step(e, event);
            assert_in_range(got, 0, eng_event_room(e));
            for (int i = 0; i < got; i++) {
                const struct eng_event *ev = &event[i];
                if (ev->session != s)
                    continue;
                assert_int_equal(ev->of_prompt, h.n < n);
                if (ev->of_prompt) {
                    assert_int_equal(ev->n_top, 2);
                    assert_int_equal(ev->rank == 1, ev->top[0].token == ev->token);
                    assert_true(ev->top[0].logprob >= ev->logprob);
                }
                hear(&h, ev);
            }
        }
        eng_session_stop(other);
        assert_int_equal(eng_session_cached(s), 0);
    }
    assert_int_equal(e->stats.n_preempted > 0, o.kv_mem > 0);
    close_engine(e);
    return h;
}

/* Prompt logprobs of a text equal the logprobs from when the model generated it, bit for bit, for all chunk sizes. */
static void a_prompt_is_told_as_an_answer_was(void **state)
{
    (void)state;
    static const int tells[] = { 1, 5, N_TELL };
    int32_t text[N_CTX];
    struct heard made = run_in_company((struct eng_options){ .n_chunk = 64 }, 0);
    fill_prompt(text, PROMPT, 1);
    memcpy(text + PROMPT, made.token, LENGTH * sizeof *text);
    for (int i = 0; i < 6; i++) {
        struct eng_options o = { .n_prompt_logprob_row = tells[i % 3],
                                 .n_chunk = i % 3 == 2 ? 512 : 7,
                                 .kv_mem = i % 3 == 1 ? kv_bytes(N_CTX) : 0 }; /* too little KV for both */
        struct heard told = tell_alone(o, text, PROMPT + LENGTH - 1, i < 3 ? 1 : 0);
        int n = PROMPT + LENGTH - (i >= 3);
        assert_int_equal(told.n, n); /* tokens in order, the generated one last */
        assert_memory_equal(told.token, text, (size_t)n * sizeof *text);
        assert_memory_equal(told.logprob + PROMPT, made.logprob, (size_t)(n - PROMPT) * sizeof(float));
        assert_int_equal(told.finish, ENG_LENGTH);
        assert_int_equal(told.n_bare, i >= 3);
    }
}

/* ---- continued sessions ---------------------------------------------------------------------- */

static void going_on_equals_starting_afresh(void **state)
{
    (void)state;
    int32_t token[N_CTX];
    struct eng_engine *e = open_engine((struct eng_options){ .n_parallel = 2, .n_chunk = 32 });
    struct eng_session *chat, *fresh;
    assert_int_equal(eng_session_open(&chat, e), 0);
    assert_int_equal(eng_session_open(&fresh, e), 0);
    int n = 20;
    fill_prompt(token, n, 4);
    for (int turn = 0; turn < 5; turn++) {
        struct eng_request r = request(token, n, 15, (uint64_t)turn);
        struct heard a = run_alone(e, chat, &r);
        /* all but the last token of the last answer: its key and value were not computed */
        assert_int_equal(eng_session_cached(chat), turn ? n - 11 : 0);
        struct heard b = run_alone(e, fresh, &r);
        assert_same("a turn", &a, &b);
        int n_all;
        const int32_t *all = eng_session_tokens(chat, &n_all);
        assert_int_equal(n_all, n + 15);
        assert_memory_equal(all, token, (size_t)n * sizeof *token);
        assert_memory_equal(all + n, a.token, 15 * sizeof *token);
        memcpy(token, all, (size_t)n_all * sizeof *token);
        n = n_all;
        fill_prompt(token + n, 10, (uint64_t)(50 + turn));
        n += 10;
        eng_session_close(fresh);
        assert_int_equal(eng_session_open(&fresh, e), 0);
    }
    close_engine(e);
}

static void what_the_kv_holds_is_kept(void **state)
{
    (void)state;
    int32_t token[N_CTX];
    struct eng_engine *e = open_engine((struct eng_options){ .n_chunk = 16 });
    struct eng_session *s;
    assert_int_equal(eng_session_open(&s, e), 0);
    fill_prompt(token, 150, 6);
    struct {
        int n, change, want;
    } tries[] = {
        { 100, -1, 0 }, { 100, -1, 99 }, { 150, -1, 100 }, { 150, 70, 70 }, { 64, -1, 63 },
        { 65, -1, 64 }, { 10, 0, 0 },    { 10, -1, 9 },    { 1, -1, 0 },    { 128, -1, 10 },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        if (tries[i].change >= 0)
            token[tries[i].change] = (token[tries[i].change] + 1) % n_vocab;
        struct eng_request r = request(token, tries[i].n, 1, 8);
        struct heard got = run_alone(e, s, &r);
        if (eng_session_cached(s) != tries[i].want)
            fail_msg("try %zu: %d cached, not %d", i, eng_session_cached(s), tries[i].want);
        struct eng_engine *other = open_engine((struct eng_options){ .n_chunk = 512 });
        struct eng_session *fresh;
        assert_int_equal(eng_session_open(&fresh, other), 0);
        struct heard want = run_alone(other, fresh, &r);
        assert_same("after a hit", &got, &want);
        close_engine(other);
    }
    close_engine(e);
}

static void a_session_stopped_half_way_goes_on(void **state)
{
    (void)state;
    int32_t token[N_CTX];
    struct eng_event event[2];
    struct eng_engine *e = open_engine((struct eng_options){ .n_chunk = 16 });
    struct eng_session *s;
    assert_int_equal(eng_session_open(&s, e), 0);
    fill_prompt(token, 120, 7);
    struct eng_request r = request(token, 120, 9, 1);
    struct heard want = run_alone(e, s, &r);
    close_engine(e);
    e = open_engine((struct eng_options){ .n_chunk = 16 });
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(eng_step(e, event), 0); /* 48 tokens of the prompt */
    eng_session_stop(s);
    assert_int_equal(eng_step(e, event), 0);
    struct heard got = run_alone(e, s, &r);
    assert_int_equal(eng_session_cached(s), 48);
    assert_same("after a stop", &got, &want);
    close_engine(e);
}

/* ---- ends and refusals ----------------------------------------------------------------------- */

static void how_far_a_session_goes(void **state)
{
    (void)state;
    int32_t token[N_CTX + 1];
    struct eng_engine *e = open_engine((struct eng_options){ .n_ctx = 100 });
    struct eng_session *s;
    assert_int_equal(eng_session_open(&s, e), 0);
    fill_prompt(token, N_CTX, 9);
    static const struct {
        int n_token, n_predict, want;
    } tries[] = {
        { 10, 0, 0 },   { 10, 1, 1 },  { 10, 5, 5 },  { 98, -1, 2 },         { 99, 7, 1 },
        { 100, -1, 0 }, { 100, 5, 0 }, { 1, -1, 99 }, { 10, INT32_MAX, 90 }, { 95, 5, 5 },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct eng_request r = request(token, tries[i].n_token, tries[i].n_predict, 2);
        struct heard h = run_alone(e, s, &r);
        int n;
        eng_session_tokens(s, &n);
        bool bare = tries[i].want == 0; /* else the last token carries the finish reason */
        if (h.n != tries[i].want || h.finish != ENG_LENGTH || n != tries[i].n_token + h.n || h.n_bare != bare)
            fail_msg("try %zu: %d tokens, finish %d, %d events without one", i, h.n, h.finish, h.n_bare);
    }
    close_engine(e);
}

static void a_context_beyond_the_models_is_warned_of(void **state)
{
    struct eng_options o = { .model = path, .isa = KN_ISA_COUNT - 1, .n_parallel = 1 };
    struct eng_engine *e;
    (void)state;
    faults_listen();
    assert_int_equal(eng_describe(&e, &o), 0);
    o.n_ctx = moe_model_shape(e->assets.model)->n_ctx_train;
    eng_close(e);
    assert_int_equal(eng_describe(&e, &o), 0);
    eng_close(e);
    assert_int_equal(faults.n_line, 0);
    o.n_ctx++;
    assert_int_equal(eng_describe(&e, &o), 0);
    eng_close(e);
    assert_int_equal(faults.n_line, 1);
    assert_non_null(strstr(faults.line, "its output beyond them is poor"));
    faults_listen_off();
}

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    static struct spec_bias bias[ENG_REQUEST_BIAS + 1];
    int32_t token[N_CTX] = { 0 };
    struct eng_engine *e = open_engine((struct eng_options){ .n_ctx = 100 });
    struct eng_session *s, *more;
    assert_int_equal(eng_session_open(&s, e), 0);
    fill_prompt(token, 60, 12);
    struct eng_request good = request(token, 50, 3, 2);
    struct heard want = run_alone(e, s, &good);
    faults_listen();
    assert_int_equal(eng_session_open(&more, e), KN_ELIMIT);
    int n_line = 1;
#define REFUSED(code, change)                                                                                          \
    do {                                                                                                               \
        struct eng_request r = good;                                                                                   \
        change;                                                                                                        \
        assert_int_equal(eng_session_start(s, &r), code);                                                              \
        assert_int_equal(faults.n_line, ++n_line);                                                                     \
    } while (0)
    REFUSED(KN_EINVAL, r.n_token = 0);
    REFUSED(KN_EINVAL, r.n_token = -1);
    REFUSED(KN_ELIMIT, r.n_token = 101);
    REFUSED(KN_ELIMIT, (r.sampling.bias = bias, r.sampling.n_bias = ENG_REQUEST_BIAS + 1));
    REFUSED(KN_EINVAL, r.sampling.temperature = -1);
    token[20] = -1;
    REFUSED(KN_EINVAL, (void)r);
    token[20] = n_vocab;
    REFUSED(KN_EINVAL, (void)r);
    fill_prompt(token, 60, 12);
    bias[3].token = n_vocab;
    REFUSED(KN_EINVAL, (r.sampling.bias = bias, r.sampling.n_bias = 4));
    faults_listen_off();
    bias[3].token = 0; /* still valid after the refusals, with the largest number of biases */
    good.sampling.bias = bias;
    good.sampling.n_bias = ENG_REQUEST_BIAS;
    struct heard got = run_alone(e, s, &good);
    assert_same("after refusals", &got, &want);
    assert_int_equal(eng_session_cached(s), 49);
    close_engine(e);
}

/* ignore_eos overrides a bias towards a stop token, however large. */
static void ignored_ends_never_come(void **state)
{
    (void)state;
    struct eng_engine *e = open_engine((struct eng_options){ .n_ctx = 200 });
    struct eng_session *s;
    int32_t token[4] = { 1, 2, 3, 4 };
    struct spec_bias bias[64];
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_true(e->assets.n_stop > 0 && e->assets.n_stop < 32);
    for (int i = 0; i < 2 * e->assets.n_stop; i++)
        bias[i] = (struct spec_bias){ e->assets.stop[i % e->assets.n_stop], 3e38f };
    struct eng_request r = request(token, 4, 150, 1);
    r.sampling.bias = bias;
    r.sampling.n_bias = 2 * e->assets.n_stop;
    struct heard h = run_alone(e, s, &r);
    assert_int_equal(h.n, 150);
    for (int i = 0; i < h.n; i++)
        assert_false(eng_vocab_is_stop(e->assets.vocab, h.token[i]));
    r.ignore_eos = false; /* without ignore_eos the bias wins */
    h = run_alone(e, s, &r);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.finish, ENG_STOP);
    assert_true(eng_vocab_is_stop(e->assets.vocab, h.token[0]));
    close_engine(e);
}

/* A model may have more output rows than its vocabulary has tokens; here the extra rows hold arbitrary bytes. */
static void rows_beyond_the_vocabulary_are_no_choice(void **state)
{
    (void)state;
    char padded[sizeof path + 8];
    struct moe_file *f;
    int32_t token[3] = { 1, n_vocab + 3, 2 };
    snprintf(padded, sizeof padded, "%s.padded", path);
    assert_int_equal(moe_file_open(&f, path), 0);
    change_write(f,
                 &(struct change){
                     .drop = "output.weight", .tensor = "token_embd.weight", .dim = { 256, (uint64_t)n_vocab + 500 } },
                 padded);
    moe_file_close(f);
    struct eng_engine *e = open_engine((struct eng_options){ .model = padded });
    unlink(padded);
    struct eng_session *s;
    assert_int_equal(eng_session_open(&s, e), 0);
    struct eng_request r = request(token, 1, 100, 1);
    struct heard h = run_alone(e, s, &r);
    assert_int_equal(h.n, 100);
    for (int i = 0; i < h.n; i++)
        assert_in_range(h.token[i], 0, n_vocab - 1);
    struct spec_bias bias = { n_vocab, 1 };
    r.sampling.bias = &bias;
    r.sampling.n_bias = 1;
    faults_listen();
    assert_int_equal(eng_session_start(s, &r), KN_EINVAL);
    faults_listen_off();
    r = request(token, 3, 1, 1); /* prompts may contain these ids: they have embedding rows */
    assert_int_equal(eng_session_start(s, &r), 0);
    close_engine(e);
}

static void a_choice_of_nothing_ends_its_session_only(void **state)
{
    (void)state;
    struct eng_engine *e = open_engine((struct eng_options){ .n_parallel = 2 });
    struct eng_session *bad, *good;
    static struct spec_bias bias[ENG_REQUEST_BIAS];
    int32_t token[PROMPT];
    fill_prompt(token, PROMPT, 3);
    for (int i = 0; i < n_vocab; i++)
        bias[i] = (struct spec_bias){ i, -__builtin_inff() };
    struct eng_request r = request(token, PROMPT, 10, 5), none = request(token, 3, 10, 5);
    none.sampling.bias = bias;
    none.sampling.n_bias = n_vocab;
    assert_int_equal(eng_session_open(&bad, e), 0);
    assert_int_equal(eng_session_open(&good, e), 0);
    struct heard want = run_alone(e, good, &r);
    eng_session_close(good);
    assert_int_equal(eng_session_open(&good, e), 0);
    faults_listen();
    assert_int_equal(eng_session_start(bad, &none), 0);
    struct heard got = run_alone(e, good, &r);
    assert_int_equal(bad->finish, ENG_FAILED);
    assert_same("beside a failure", &got, &want);
    assert_int_equal(faults.n_line, 1);
    faults_listen_off();
    none.sampling.n_bias = 0;
    got = run_alone(e, bad, &none); /* the session can be started again */
    assert_int_equal(got.n, 10);
    close_engine(e);
}

/* ---- too little KV --------------------------------------------------------------------------- */

static void when_kv_runs_out_the_last_waits(void **state)
{
    (void)state;
    int32_t token[3][N_CTX];
    struct eng_session *s[3];
    struct heard h[3] = { { .n = 0 } }, want[3];
    struct eng_event event[6];
    struct eng_engine *e = open_engine((struct eng_options){ .n_parallel = 3, .n_ctx = 192, .n_chunk = 50 });
    size_t slot = moe_kv_slot_bytes(e->assets.model, KN_KV_F16) + ENG_KV_SLOT_BYTES;
    for (int i = 0; i < 3; i++) {
        fill_prompt(token[i], 60, (uint64_t)(20 + i));
        assert_int_equal(eng_session_open(&s[i], e), 0);
        struct eng_request r = request(token[i], 60, 100, (uint64_t)i);
        want[i] = run_alone(e, s[i], &r);
    }
    close_engine(e);
    /* 8 blocks of 64: two sessions have their 160 tokens, the third lacks one block */
    e = open_engine(
        (struct eng_options){ .n_parallel = 3, .n_ctx = 192, .n_chunk = 50, .kv_mem = 8 * ENG_KV_BLOCK * slot });
    assert_int_equal(e->kv.n_block, 8);
    for (int i = 0; i < 3; i++) {
        struct eng_request r = request(token[i], 60, 100, (uint64_t)i);
        assert_int_equal(eng_session_open(&s[i], e), 0);
        assert_int_equal(eng_session_start(s[i], &r), 0);
    }
    for (int step = 0; !h[0].n_end || !h[1].n_end || !h[2].n_end; step++) {
        assert_true(step < 1000);
        int n = eng_step(e, event);
        for (int i = 0; i < n; i++)
            hear(&h[event[i].session - e->schedule.session], &event[i]);
    }
    for (int i = 0; i < 3; i++)
        assert_same("with too little KV for all", &h[i], &want[i]);
    assert_true(e->stats.n_preempted > 0);
    close_engine(e);
}

/* ---- opening, and memory --------------------------------------------------------------------- */

static size_t resident_bytes(void)
{
    size_t all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%zu %zu", &all, &resident), 2);
    fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Memory of the KV cache is touched as positions are used, not at open. */
static void kv_is_made_as_it_is_used(void **state)
{
    (void)state;
    int32_t token[4];
    fill_prompt(token, 4, 1);
    struct eng_engine *e = open_engine(
        (struct eng_options){ .n_ctx = 4096, .kv_mem = (size_t)64 << 20, .n_chunk = 64 });
    size_t kv = (size_t)eng_memory(e)->n_kv_slot * moe_kv_slot_bytes(eng_model(e), KN_KV_F16),
           before = resident_bytes();
    assert_true(kv >= (size_t)32 << 20);
    struct eng_session *s = NULL;
    struct eng_request r = request(token, 4, 2, 1);
    assert_int_equal(eng_session_open(&s, e), 0);
    run_alone(e, s, &r);
    size_t made = resident_bytes() - before;
    if (made > kv / 4)
        fail_msg("%zu bytes of memory made for six of %d positions", made, eng_memory(e)->n_kv_slot);
    close_engine(e);
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    int32_t token[PROMPT];
    fill_prompt(token, PROMPT, 3);
    faults_reset();
    struct eng_engine *e = open_engine((struct eng_options){ .n_parallel = 2, .n_thread = 2, .n_chunk = 32 });
    struct eng_session *s;
    long before = faults.calls[FAULT_ALLOC] + faults.calls[FAULT_MAP];
    assert_int_equal(eng_session_open(&s, e), 0);
    struct eng_request r = request(token, PROMPT, 20, 5);
    r.sampling.top_k = 40;
    r.sampling.top_p = 0.9f;
    r.sampling.repetition = 1.1f;
    run_alone(e, s, &r);
    assert_int_equal(faults.calls[FAULT_ALLOC] + faults.calls[FAULT_MAP], before);
    close_engine(e);
    assert_true(faults_clean());
    faults_off();
}

static void whatever_fails_at_opening_nothing_is_left(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: calls that fail at opening, under ThreadSanitizer\n");
    skip();
#endif
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error;
    } ways[] = {
        { FAULT_ALLOC, FAULT_ERROR, ENOMEM }, { FAULT_MAP, FAULT_ERROR, ENOMEM }, { FAULT_OPEN, FAULT_ERROR, EMFILE },
        { FAULT_SIZE, FAULT_ERROR, EIO },     { FAULT_READ, FAULT_LASTS, EIO },   { FAULT_READ, FAULT_EMPTY, 0 },
    };
    int refused = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        bool struck = true;
        for (long n = 1; struck; n++) {
            struct eng_engine *e = (void *)0x1;
            faults_at(ways[i].kind, n, ways[i].way, ways[i].error);
            struct eng_options o = {
                .model = path, .isa = KN_ISA_COUNT - 1, .n_thread = 1, .n_parallel = 2, .n_ctx = 64, .io = OFF_IO_PREAD
            };
            int got = eng_open(&e, &o);
            if (!got)
                eng_close(e);
            struck = faults.struck; /* read after the close: slots fill until then */
            bool said = got ? faults.n_line >= 1 && e == (void *)0x1 : faults.n_line <= struck;
            if (!said || !faults_clean() || (got && !struck))
                fail_msg("way %zu, call %ld: %d, %d lines (%s), %ld allocations, %ld bytes mapped, "
                         "%ld files",
                         i, n, got, faults.n_line, faults.line, faults.n_alloc, faults.n_map, faults.n_open);
            refused += got != 0;
        }
    }
    faults_off();
    assert_true(refused > 20);
}

static void a_budget_too_small_says_what_is_needed(void **state)
{
    (void)state;
    struct eng_engine *e = open_engine((struct eng_options){ .n_ctx = 1024 });
    struct eng_split split = *eng_memory(e);
    close_engine(e);
    struct eng_options o = { .model = path, .isa = KN_ISA_COUNT - 1, .n_thread = 1, .n_parallel = 1, .n_ctx = 1024 };
    struct eng_options no_kv = o, nothing = o, almost = o, large_kv = o, wide = o;
    no_kv.kv_mem = split.kv_least - 1;
    nothing.host_mem = 1;
    almost.host_mem = split.least - ((size_t)2 << 20);
    large_kv.host_mem = split.least + ((size_t)1 << 20);
    large_kv.kv_mem = (size_t)64 << 20;
    wide.host_mem = 1;
    wide.n_chunk = 4096;
    nothing.n_chunk = 64;
    const struct {
        struct eng_options *o;
        size_t *size;
        const char *says, *lower;
    } tries[] = {
        { &no_kv, &no_kv.kv_mem, "raise --kv-mem to ", "or lower --ctx-size" },
        { &nothing, &nothing.host_mem, "raise --host-mem to ", "or lower --ctx-size" },
        { &almost, &almost.host_mem, "raise --host-mem to ", "or lower --chunk" },
        { &large_kv, &large_kv.host_mem, "raise --host-mem to ", "or lower --kv-mem" },
        { &wide, &wide.host_mem, "raise --host-mem to ", "or lower --chunk" },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        faults_reset();
        assert_int_equal(eng_describe(&e, &o), 0);
        eng_close(e);
        long header = faults.calls[FAULT_READ];
        faults_reset();
        assert_int_equal(eng_open(&e, tries[i].o), KN_ELIMIT);
        const char *says = strstr(faults.line, tries[i].says);
        if (faults.n_line != 1 || !says || !strstr(says, tries[i].lower))
            fail_msg("try %zu: %d lines, '%s'", i, faults.n_line, faults.line);
        assert_int_equal(faults.calls[FAULT_READ], header); /* no weight was read */
        assert_true(faults_clean());
        faults_off();
        *tries[i].size = strtoull(says + strlen(tries[i].says), NULL, 10) << 20;
        e = open_engine(*tries[i].o); /* the reported least size is enough */
        assert_true(!tries[i].o->host_mem || eng_memory(e)->total == tries[i].o->host_mem);
        close_engine(e);
    }
}

/* From two experts to all of them: the same tokens, and the reported split matches the memory. */
static void budgets_change_nothing_but_memory(void **state)
{
    (void)state;
    int32_t prompt[PROMPT];
    fill_prompt(prompt, PROMPT, 9);
    struct eng_request r = request(prompt, PROMPT, LENGTH, 4);
    struct eng_engine *e = open_engine((struct eng_options){ .n_ctx = N_CTX });
    struct eng_session *s;
    struct eng_split all = *eng_memory(e);
    assert_int_equal(eng_session_open(&s, e), 0);
    struct heard want = run_alone(e, s, &r);
    close_engine(e);
    assert_int_equal(all.n_resident, all.n_expert);
    for (int share = 0; share <= 4; share++) {
        struct eng_options o = { .n_ctx = N_CTX };
        o.host_mem = all.least + ((size_t)256 << 10) + all.expert / 4 * (size_t)share;
        e = open_engine(o);
        const struct eng_split *split = eng_memory(e);
        assert_int_equal(split->total, o.host_mem);
        assert_int_equal(split->fixed + split->dense + split->step + split->kv + split->expert + split->spare,
                         split->total);
        assert_int_equal(split->n_resident == split->n_expert, share == 4);
        assert_int_equal(split->n_kv_slot, e->kv.n_block * ENG_KV_BLOCK);
        assert_int_equal(eng_session_open(&s, e), 0);
        struct heard got = run_alone(e, s, &r);
        assert_int_equal(got.n, want.n);
        assert_memory_equal(got.token, want.token, (size_t)want.n * sizeof *want.token);
        assert_memory_equal(got.logprob, want.logprob, (size_t)want.n * sizeof *want.logprob);
        close_engine(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(company_chunks_and_threads_change_nothing),
        cmocka_unit_test(a_prompt_is_told_as_an_answer_was),
        cmocka_unit_test(going_on_equals_starting_afresh),
        cmocka_unit_test(what_the_kv_holds_is_kept),
        cmocka_unit_test(a_session_stopped_half_way_goes_on),
        cmocka_unit_test(how_far_a_session_goes),
        cmocka_unit_test(a_context_beyond_the_models_is_warned_of),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(ignored_ends_never_come),
        cmocka_unit_test(rows_beyond_the_vocabulary_are_no_choice),
        cmocka_unit_test(a_choice_of_nothing_ends_its_session_only),
        cmocka_unit_test(when_kv_runs_out_the_last_waits),
        cmocka_unit_test(kv_is_made_as_it_is_used),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(whatever_fails_at_opening_nothing_is_left),
        cmocka_unit_test(a_budget_too_small_says_what_is_needed),
        cmocka_unit_test(budgets_change_nothing_but_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
