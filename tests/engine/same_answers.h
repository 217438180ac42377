/* tests/engine/same_answers.h - requests to a tiny model, the answer of each request when it runs alone, and crowds of
 * sessions that must give the same answers: they start and stop at random, with several users and priorities, in any
 * batch.
 *
 * setup() writes the model to `path`; make_requests() fills asked[]; run_crowd() steps an engine and compares each
 * event. */
#ifndef TESTS_ENGINE_ASKED_H
#define TESTS_ENGINE_ASKED_H

#include "engine/draft/internal.h"
#include "engine/internal.h"
#include "tests/faults.h"

#define N_CTX 256
#ifdef __SANITIZE_THREAD__ /* tests run thirty times slower here */
#define SHARE(n) ((n) / 12 + 1)
#elif defined __SANITIZE_ADDRESS__ /* tests run seven times slower here */
#define SHARE(n) ((n) / 3 + 1)
#else
#define SHARE(n) (n)
#endif
#define WHOLE (SHARE(12) == 12)
#ifndef N_REQUEST /* a test may define its own count and requests */
#define N_SESSION 12
#define N_REQUEST (SHARE(12) < 4 ? 4 : 9)
#endif

#define ASKED_PATH "/tmp/spillway-schedule-%d.gguf" /* %d: process id */

static char path[64];
static const char *asked_shape = "tiny";
static int asked_layers = 2;
static bool asked_ahead; /* the model has an MTP layer */
static enum kn_isa asked_isa = KN_ISA_COUNT - 1;
static enum kn_kv asked_kv = KN_KV_F16;
static int asked_tell;                             /* rows per pass for prompt logprobs; 0: none */
static bool asked_reads_fail;                      /* sessions may end as failed after a failed read */
static void (*asked_meddle)(struct eng_engine *e); /* called before each step of a crowd; or NULL */
static int n_vocab = 300;
static uint64_t random_state;
static struct eng_event event[1024];
static struct gr_grammar *grammar; /* accepts one JSON object */

static int below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

static inline int setup(void **state)
{
    (void)state;
    struct kn_team *team;
    snprintf(path, sizeof path, ASKED_PATH, getpid());
    if (kn_team_open(&team, 2) != 0)
        return -1;
    struct moe_synth_options so = { .shape = asked_shape,
                                    .n_layer = asked_layers,
                                    .n_vocab = n_vocab,
                                    .format = KN_Q4_K,
                                    .seed = 3,
                                    .ahead = asked_ahead,
                                    .team = team };
    int error = moe_synth(path, &so);
    kn_team_close(team);
    return error;
}

static inline int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

/* Adds the options that all engines here share. n_block: KV blocks; 0: enough for all sessions. */
static inline struct eng_options asked_options(struct eng_options o, int n_block)
{
    struct eng_engine *e = NULL;
    o.model = path;
    o.isa = asked_isa;
    o.kv = asked_kv;
    o.n_ctx = o.n_ctx ? o.n_ctx : N_CTX;
    o.n_thread = o.n_thread ? o.n_thread : 1;
    o.n_session = N_SESSION;
    o.n_prompt_logprob_row = asked_tell;
    o.grammar_bytes = 1 << 20;
    if (n_block) {
        assert_int_equal(eng_describe(&e, &o), 0);
        struct eng_draft_needs needs;
        eng_draft_needs(e->drafting, &needs);
        o.kv_mem = (size_t)n_block * ENG_KV_BLOCK *
                   (moe_kv_slot_bytes(e->assets.model, o.kv) + ENG_KV_SLOT_BYTES + needs.memory.slot);
        eng_close(e);
    }
    return o;
}

/* Bytes of the least memory for an engine with these options plus `part` / `parts` of its experts. */
static inline size_t asked_memory(const struct eng_options *o, size_t part, size_t parts)
{
    struct eng_engine *e = NULL;
    assert_int_equal(eng_describe(&e, o), 0);
    size_t bytes = eng_memory(e)->least + ((size_t)1 << 20) +
                   moe_model_shape(e->assets.model)->expert_bytes * part / parts;
    eng_close(e);
    return bytes;
}

static struct eng_engine *open_engine_with(struct eng_options o, int n_block)
{
    struct eng_engine *e = NULL;
    o = asked_options(o, n_block);
    assert_int_equal(eng_open(&e, &o), 0);
    assert_true(!n_block || e->kv.n_block == n_block);
    assert_in_range(eng_event_room(e), 1, 1024);
    return e;
}

static struct eng_engine *open_engine(int n_parallel, int n_chunk, int n_block)
{
    return open_engine_with((struct eng_options){ .n_parallel = n_parallel, .n_chunk = n_chunk }, n_block);
}

/* Each kept state belongs to a block that refers back to it; no state is reserved between passes. */
static inline void check_states(const struct eng_engine *e)
{
    const struct eng_kv *kv = &e->kv;
    int n_of_block = 0, n_of_state = 0;
    for (int i = 0; i < kv->n_state; i++) {
        assert_int_not_equal(kv->state[i].block, -2);
        if (kv->state[i].block < 0)
            continue;
        assert_int_equal(kv->block[kv->state[i].block].state, i);
        n_of_state++;
    }
    for (int i = 0; i < kv->n_block; i++)
        n_of_block += kv->block[i].n_token && kv->block[i].state >= 0;
    assert_int_equal(n_of_block, n_of_state);
}

static void close_engine(struct eng_engine *e)
{
    for (int i = 0; i < N_SESSION; i++)
        eng_session_close(&e->schedule.session[i]);
    assert_int_equal(e->kv.n_free, e->kv.n_block);
    assert_int_equal(e->schedule.n_active, 0);
    for (int i = 0; i < N_SESSION; i++)
        assert_int_equal(e->schedule.user_share[i].n_running, 0);
    check_states(e);
    eng_close(e);
}

/* ---- requests, and the answer of each alone ------------------------------------------------------- */

/* said: the first n_told tokens are prompt tokens with their logprobs, the answer follows. */
static struct asked {
    int32_t token[N_CTX], said[N_CTX];
    float logprob[N_CTX];
    struct spec_top top[N_CTX][3];
    struct eng_request request;
    enum eng_finish finish;
    int n_said, n_told;
} asked[N_REQUEST];

static struct eng_request request(const int32_t *token, int n_token, int n_predict, uint64_t seed)
{
    struct eng_request r = {
        .token = token, .n_token = n_token, .n_predict = n_predict, .ignore_eos = true, .n_top = (int)(seed % 4)
    };
    spec_params_default(&r.sampling);
    r.sampling.seed = seed;
    return r;
}

static void make_grammar(void)
{
    struct gr_builder *b;
    assert_int_equal(gr_builder_open(&b), 0);
    assert_int_equal(gr_compile(&grammar, b, gr_json_object(b, GR_END)), 0);
    gr_builder_close(b);
}

/* Runs a request with no other session in the engine and records its answer. */
static void say_in(struct eng_engine *e, struct asked *a)
{
    struct eng_session *s;
    a->n_said = a->n_told = 0;
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &a->request), 0);
    while (eng_session_runs(s)) {
        int got = eng_step(e, event);
        for (int k = 0; k < got; k++) {
            a->finish = event[k].finish;
            if (event[k].token == ENG_NO_TOKEN)
                continue;
            a->n_told += event[k].of_prompt;
            a->said[a->n_said] = event[k].token;
            memcpy(a->top[a->n_said], event[k].top, (size_t)event[k].n_top * sizeof *event[k].top);
            a->logprob[a->n_said++] = event[k].logprob;
        }
    }
    eng_session_close(s);
}

/* Writes the answer as text, for a drafter that learns from documents. */
static inline void write_said(FILE *f, const struct eng_vocab *v, const struct asked *a)
{
    char *piece = kn_alloc(eng_decoder_room(v));
    struct eng_decoder d;
    assert_non_null(piece);
    eng_decoder_init(&d, v, ENG_DECODE_RAW);
    for (int i = a->n_told; i < a->n_said; i++)
        fwrite(piece, 1, eng_decoder_feed(&d, a->said[i], piece), f);
    fwrite(piece, 1, eng_decoder_finish(&d, piece), f);
    kn_free(piece);
}

static void say_alone(struct asked *a)
{
    struct eng_engine *e = open_engine(1, 512, 0);
    say_in(e, a);
    close_engine(e);
}

/* Builds the next turn of a conversation: prompt and answer of `from`, then new tokens. Returns the length. */
static int go_on(struct asked *a, const struct asked *from)
{
    int n = from->request.n_token, n_said = from->n_said - from->n_told;
    memcpy(a->token, from->token, (size_t)n * sizeof *a->token);
    memcpy(a->token + n, from->said + from->n_told, (size_t)n_said * sizeof *a->token);
    for (n += n_said; n < N_CTX - 60 && below(20); n++)
        a->token[n] = below(n_vocab);
    return n;
}

/* Steps of sampling beyond top-k: each depends on the history, the position or the order. */
static void set_steps(struct spec_params *p, int i)
{
    static const int32_t words[] = { 1, 2, 3, 4, 5, 6 };
    static const struct spec_sequence banned[] = { { words, 1 }, { words + 1, 2 } };
    static uint32_t heads[1 << 13];
    static const struct spec_breaker breaker = { heads, words, 1 };
    assert_true(spec_mask_words(n_vocab) <= sizeof heads / sizeof *heads);
    memset(heads, 0x11, sizeof heads);
    if (i % 5 == 0) {
        p->xtc_probability = 0.5f;
        p->xtc_threshold = 0.02f;
    }
    if (i % 5 == 1)
        p->typical_p = 0.7f;
    if (i % 5 == 2) {
        p->dry_multiplier = 2;
        p->dry_allowed = 0;
        p->breaker = &breaker;
        p->n_breaker = 1;
        p->top_n_sigma = 1.5f;
    }
    if (i % 5 == 3) {
        static const uint8_t order[] = { SPEC_STEP_TOP_P, SPEC_STEP_DRY, SPEC_STEP_XTC, SPEC_STEP_TEMPERATURE };
        p->has_order = true;
        memcpy(p->order, order, sizeof order);
        p->n_order = (int)sizeof order;
        p->top_p = 0.9f;
        p->dry_multiplier = 1;
        p->xtc_probability = 0.3f;
        p->xtc_threshold = 0.05f;
    }
    if (i % 6 == 0) {
        p->banned = banned;
        p->n_banned = 2;
        p->late = words;
        p->n_late = 6;
        p->late_from = 100;
    }
}

/* Many prompts share a prefix. The requests vary temperature, penalties, steps of sampling, grammars and stop
 * tokens. */
static void make_requests(void)
{
    make_grammar();
    for (int i = 0; i < N_REQUEST; i++) {
        struct asked *a = &asked[i];
        int like = below(N_REQUEST), n = 1 + below(150), n_same = below(n + 1);
        for (int k = 0; k < n; k++)
            a->token[k] = i && k < n_same && k < asked[like].request.n_token ? asked[like].token[k] : below(n_vocab);
        if (i % 3 == 2)
            n = go_on(a, &asked[below(i)]);
        a->request = request(a->token, n, i ? below(60) : 60, (uint64_t)i);
        a->request.salt = (uint64_t)(i % 5 == 4);
        a->request.ignore_eos = i % 3 != 1;
        a->request.sampling.temperature = (float)(i % 4) / 2;
        if (i % 3 == 0)
            a->request.sampling.repetition = 1.3f;
        if (i % 4 == 3)
            a->request.sampling.top_k = 12;
        if (i % 4 == 1)
            a->request.grammar = grammar;
        else
            set_steps(&a->request.sampling, i);
        a->request.wants_prompt_logprobs = asked_tell && i % 4 == 2;
        a->request.n_prompt_top = a->request.n_top;
        say_alone(a);
    }
}

static void forget_requests(void) { gr_close(grammar); }

/* Writes the model and fills the requests from one random seed, for a test program that needs both. */
static inline int setup_asked(void **state, uint64_t seed)
{
    int error = setup(state);
    random_state = seed;
    if (!error)
        make_requests();
    return error;
}

static inline int teardown_asked(void **state)
{
    forget_requests();
    return teardown(state);
}

static struct running {
    const struct asked *asked;
    int n;
    bool ended;
} running[N_SESSION];

/* Compares an event with the recorded answer. Sampled drafts (--verify ratio or block) give other tokens of the same
 * distribution, so there only the end is checked. */
static inline void hear(const struct eng_engine *e, const struct eng_event *ev)
{
    struct running *r = &running[ev->session - e->schedule.session];
    const struct asked *a = r->asked;
    assert_true(a && !r->ended);
    bool drawn = eng_draft_samples(ev->session->engine->drafting, &ev->session->seq) && r->n >= a->n_told,
         fails = asked_reads_fail && ev->finish == ENG_FAILED;
    if (ev->token != ENG_NO_TOKEN) {
        assert_true(ev->of_prompt == (r->n < a->n_told));
        if (!drawn) {
            assert_int_equal(ev->token, a->said[r->n]);
            assert_memory_equal(&ev->logprob, &a->logprob[r->n], sizeof ev->logprob);
            assert_int_equal(ev->n_top, a->request.n_top);
            assert_memory_equal(ev->top, a->top[r->n], (size_t)ev->n_top * sizeof *ev->top);
        }
        for (int i = 0; i < ev->n_top; i++) {
            assert_true(i == 0 || ev->top[i].logprob <= ev->top[i - 1].logprob);
            assert_true(ev->top[i].token != ev->token || ev->top[i].logprob == ev->logprob);
        }
        r->n++;
    }
    r->ended = ev->finish != ENG_RUNNING;
    bool right = drawn ? ev->finish == ENG_LENGTH || ev->finish == ENG_STOP
                       : ev->finish == a->finish && r->n == a->n_said;
    if (r->ended && !right && !fails)
        fail_msg("request %d ends with finish %d, status %d, after %d of %d tokens ('%s')", (int)(a - asked),
                 (int)ev->finish, ev->status, r->n, a->n_said, faults.line);
}

static inline void start_any(struct eng_engine *e, struct eng_session *s)
{
    struct running *r = &running[s - e->schedule.session];
    *r = (struct running){ .asked = &asked[below(N_REQUEST)] };
    struct eng_request q = r->asked->request;
    q.priority = below(8) == 0;
    q.user = (uint64_t)below(3);
    assert_int_equal(eng_session_start(s, &q), 0);
    eng_session_set_oracle(s, r->asked->said + r->asked->n_told, r->asked->n_said - r->asked->n_told);
}

/* Starts and stops sessions at random until n_least have ended. Each answer must equal the one recorded alone. */
static inline void run_crowd(struct eng_engine *e, int n_least)
{
    struct eng_session *s;
    int n_ended = 0;
    for (int i = 0; i < N_SESSION; i++)
        eng_session_close(&e->schedule.session[i]);
    memset(running, 0, sizeof running);
    faults_listen();
    for (int step = 0; n_ended < n_least; step++) {
        assert_true(step < 20000);
        while (below(3) == 0 && eng_session_open(&s, e) == 0)
            start_any(e, s);
        if (asked_meddle)
            asked_meddle(e);
        int n = eng_step(e, event);
        assert_in_range(n, 0, eng_event_room(e));
        for (int i = 0; i < n; i++)
            hear(e, &event[i]);
        for (int i = 0; i < N_SESSION; i++)
            if (e->schedule.session[i].open && (running[i].ended || below(150) == 0)) {
                n_ended++;
                if (below(4))
                    eng_session_close(&e->schedule.session[i]);
                else
                    start_any(e, &e->schedule.session[i]);
            }
    }
    faults_listen_off();
}

/* Each draft option is refused with one line of log. */
static inline void assert_wishes_refused(const char *const *bad, size_t n)
{
    struct eng_draft_option w;
    faults_listen();
    for (size_t i = 0; i < n; i++) {
        int before = faults.n_line;
        if (eng_draft_parse(&w, bad[i]) >= 0 || faults.n_line != before + 1)
            fail_msg("'%s' is taken", bad[i]);
    }
    faults_listen_off();
}

#endif
