/* Who advances: more sessions than seats, more text than KV, users and priorities; whatever waits, is
 * preempted, shared or found again, each session says what it says alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/internal.h"
#include "tests/faults.h"

#define N_CTX     256
#define N_SESSION 12
#define N_REQUEST 9

static char path[64];
static int n_vocab = 300;
static uint64_t random_state;
static struct eng_event event[2 * N_SESSION + 8];

static int below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

static int setup(void **state)
{
    (void)state;
    struct kn_team *team;
    snprintf(path, sizeof path, "/tmp/spillway-schedule-%d.gguf", getpid());
    if (kn_team_open(&team, 2) != 0)
        return -1;
    struct moe_synth_options so = { .shape = "tiny", .n_layer = 2, .n_vocab = n_vocab, .format = KN_Q4_K,
                                    .seed = 3, .team = team };
    int error = moe_synth(path, &so);
    kn_team_close(team);
    return error;
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

static struct eng_engine *open_engine(int n_parallel, int n_chunk, int n_block)
{
    struct eng_engine *e = NULL;
    struct eng_options o = { .model = path, .isa = KN_ISA_COUNT - 1, .n_ctx = N_CTX, .n_thread = 1,
                             .n_parallel = n_parallel, .n_session = N_SESSION, .n_chunk = n_chunk };
    if (n_block) {
        assert_int_equal(eng_describe(&e, &o), 0);
        o.kv_mem = (size_t)n_block * ENG_KV_BLOCK * (moe_kv_slot_bytes(e->model, KN_KV_F16) + ENG_KV_SLOT_BYTES);
        eng_close(e);
    }
    assert_int_equal(eng_open(&e, &o), 0);
    assert_true(!n_block || e->kv.n_block == n_block);
    return e;
}

static void close_engine(struct eng_engine *e)
{
    for (int i = 0; i < N_SESSION; i++)
        eng_session_close(&e->session[i]);
    assert_int_equal(e->kv.n_free, e->kv.n_block);
    assert_int_equal(e->n_active, 0);
    for (int i = 0; i < N_SESSION; i++)
        assert_int_equal(e->share[i].n_running, 0);
    eng_close(e);
}

/* ---- requests, and what each yields alone --------------------------------------------------------- */

static struct asked {
    int32_t token[N_CTX], said[N_CTX];
    float logprob[N_CTX];
    struct eng_request request;
    int n_said;
} asked[N_REQUEST];

static struct eng_request request(const int32_t *token, int n_token, int n_predict, uint64_t seed)
{
    struct eng_request r = { .token = token, .n_token = n_token, .n_predict = n_predict,
                             .ignore_eos = true, .n_top = (int)(seed % 4) };
    spec_params_default(&r.sampling);
    r.sampling.seed = seed;
    return r;
}

/* Their beginnings are often alike. */
static void make_requests(void)
{
    for (int i = 0; i < N_REQUEST; i++) {
        struct asked *a = &asked[i];
        int like = below(N_REQUEST), n = 1 + below(150), n_same = below(n + 1);
        for (int k = 0; k < n; k++)
            a->token[k] = i && k < n_same && k < asked[like].request.n_token ? asked[like].token[k]
                                                                            : below(n_vocab);
        a->request = request(a->token, n, below(60), (uint64_t)i);
        a->request.salt = (uint64_t)(i % 5 == 4);
        a->n_said = 0;
        struct eng_engine *e = open_engine(1, 512, 0);
        struct eng_session *s;
        assert_int_equal(eng_session_open(&s, e), 0);
        assert_int_equal(eng_session_start(s, &a->request), 0);
        while (eng_session_runs(s)) {
            int got = eng_step(e, event);
            for (int k = 0; k < got; k++)
                if (event[k].token != ENG_NO_TOKEN) {
                    a->said[a->n_said] = event[k].token;
                    a->logprob[a->n_said++] = event[k].logprob;
                }
        }
        assert_int_equal(a->n_said, a->request.n_predict);
        close_engine(e);
    }
}

static struct running { const struct asked *asked; int n; bool ended; } running[N_SESSION];

static void hear(const struct eng_engine *e, const struct eng_event *ev)
{
    struct running *r = &running[ev->session - e->session];
    assert_true(r->asked && !r->ended);
    if (ev->token != ENG_NO_TOKEN) {
        assert_int_equal(ev->token, r->asked->said[r->n]);
        assert_memory_equal(&ev->logprob, &r->asked->logprob[r->n], sizeof ev->logprob);
        assert_int_equal(ev->n_top, r->asked->request.n_top);
        for (int i = 0; i < ev->n_top; i++) {
            assert_true(i == 0 || ev->top[i].logprob <= ev->top[i - 1].logprob);
            assert_true(ev->top[i].token != ev->token || ev->top[i].logprob == ev->logprob);
        }
        r->n++;
    }
    r->ended = ev->finish != ENG_RUNNING;
    assert_true(!r->ended || (ev->finish == ENG_LENGTH && r->n == r->asked->n_said));
}

static void everyone_says_what_he_says_alone(void **state)
{
    (void)state;
    uint64_t n_preempted = 0, n_found = 0;
    random_state = 5;
    make_requests();
    for (int round = 0; round < 12; round++) {
        static const int chunks[] = { 7, 64, 512 };
        struct eng_engine *e = open_engine(1 + below(5), chunks[round % 3], round % 4 ? 4 + below(8) : 0);
        struct eng_session *s;
        int n_started = 0, n_ended = 0;
        memset(running, 0, sizeof running);
        for (int step = 0; n_ended < 40; step++) {
            assert_true(step < 20000);
            while (below(3) == 0 && eng_session_open(&s, e) == 0) {
                struct running *r = &running[s - e->session];
                *r = (struct running){ .asked = &asked[below(N_REQUEST)] };
                struct eng_request q = r->asked->request;
                q.priority = below(8) == 0;
                q.user = (uint64_t)below(3);
                assert_int_equal(eng_session_start(s, &q), 0);
                n_started++;
            }
            faults_listen_off();
            int n = eng_step(e, event);
            assert_in_range(n, 0, eng_event_room(e));
            for (int i = 0; i < n; i++)
                hear(e, &event[i]);
            for (int i = 0; i < N_SESSION; i++)
                if (e->session[i].open && (running[i].ended || below(150) == 0)) {
                    eng_session_close(&e->session[i]);
                    n_ended++;
                }
            faults_listen();
        }
        faults_listen_off();
        assert_true(n_started >= 40);
        n_preempted += e->stats.n_preempted;
        n_found += e->stats.n_cache_found;
        assert_true(e->stats.n_cache_found <= e->stats.n_cache_asked);
        close_engine(e);
    }
    if (n_preempted < 20 || n_found < 500)
        fail_msg("%d preempted, %d found", (int)n_preempted, (int)n_found);
}

/* ---- who goes first ------------------------------------------------------------------------------- */

static struct eng_session *start(struct eng_engine *e, int n_token, int n_predict, uint64_t user, int priority)
{
    static int32_t token[N_CTX];
    struct eng_session *s;
    for (int i = 0; i < n_token; i++)
        token[i] = below(n_vocab);
    struct eng_request r = request(token, n_token, n_predict, 1);
    r.user = user;
    r.priority = priority;
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    return s;
}

static void priority_takes_a_seat_at_once(void **state)
{
    (void)state;
    random_state = 7;
    struct eng_engine *e = open_engine(2, 64, 0);
    struct eng_session *a = start(e, 20, 50, 1, 0), *b = start(e, 20, 50, 1, 0), *c = start(e, 20, 50, 1, 0);
    eng_step(e, event);
    assert_true(!eng_session_waits(a) && !eng_session_waits(b) && eng_session_waits(c));
    struct eng_session *high = start(e, 20, 3, 9, 1);
    eng_step(e, event);
    assert_true(!eng_session_waits(high) && !eng_session_waits(a) && eng_session_waits(b));
    while (eng_session_runs(high))
        eng_step(e, event);
    eng_step(e, event);
    assert_true(!eng_session_waits(b) && eng_session_waits(c));         /* who lost it comes before who never had it */
    close_engine(e);
}

/* One who asks once is not behind another's ten. */
static void users_share(void **state)
{
    (void)state;
    random_state = 8;
    struct eng_engine *e = open_engine(2, 64, 0);
    struct eng_session *many[8];
    for (int i = 0; i < 8; i++)
        many[i] = start(e, 20, 10 + 5 * i, 1, 0);
    eng_step(e, event);
    struct eng_session *one = start(e, 20, 10, 2, 0);
    while (eng_session_waits(one)) {
        eng_step(e, event);
        assert_true(eng_session_runs(many[2]) && eng_session_waits(many[2]));   /* nobody of the others came first */
    }
    close_engine(e);
}

static void absence_saves_nothing_up(void **state)
{
    (void)state;
    random_state = 9;
    struct eng_engine *e = open_engine(1, 64, 0);
    struct eng_session *a = start(e, 20, 100, 1, 0);
    for (int i = 0; i < 50; i++)
        eng_step(e, event);
    struct eng_session *b = start(e, 20, 5, 2, 0);
    assert_int_equal(b->share->served, a->share->served);
    close_engine(e);
}

/* ---- one text, several sessions ------------------------------------------------------------------- */

static void what_two_need_is_computed_once(void **state)
{
    (void)state;
    static int32_t token[N_CTX];
    random_state = 10;
    for (int i = 0; i < 200; i++)
        token[i] = below(n_vocab);
    for (int with_salt = 0; with_salt < 2; with_salt++) {
        struct eng_engine *e = open_engine(4, 1024, 0);
        struct eng_session *s[4];
        for (int i = 0; i < 4; i++) {
            struct eng_request r = request(token, 200, 2, (uint64_t)i);
            r.salt = with_salt ? (uint64_t)i : 0;
            assert_int_equal(eng_session_open(&s[i], e), 0);
            assert_int_equal(eng_session_start(s[i], &r), 0);
        }
        while (eng_session_runs(s[0]) || eng_session_runs(s[1]) || eng_session_runs(s[2]) ||
               eng_session_runs(s[3]))
            eng_step(e, event);
        int n_prompt = (int)e->stats.n_row - 4;                 /* the second tokens' rows */
        if (with_salt)
            assert_int_equal(n_prompt, 4 * 200);
        else                                                    /* three blocks once; the rest at most by each */
            assert_in_range(n_prompt, 200, 200 + 3 * 8);
        assert_int_equal(e->stats.n_cache_asked, 800);
        assert_int_equal(e->stats.n_cache_found, 800 - n_prompt);
        assert_int_equal(eng_session_cached(s[3]) > 0, !with_salt);
        close_engine(e);
    }
}

static void stopping_frees_at_once(void **state)
{
    (void)state;
    random_state = 11;
    struct eng_engine *e = open_engine(2, 32, 0);
    struct eng_session *decodes = start(e, 5, 100, 1, 0), *reads = start(e, 200, 5, 2, 0),
                       *waits = start(e, 5, 5, 3, 0), *next = start(e, 5, 5, 4, 0);
    for (int i = 0; i < 3; i++)
        eng_step(e, event);
    assert_true(eng_session_computed(reads) > 0 && eng_session_computed(reads) < 199);
    assert_true(eng_session_waits(waits) && eng_session_waits(next));
    eng_session_stop(waits);
    eng_session_stop(reads);
    eng_session_stop(decodes);
    assert_int_equal(e->kv.n_free, e->kv.n_block);
    eng_step(e, event);
    assert_true(!eng_session_waits(next) && !eng_session_runs(waits));
    struct eng_stats stats;
    eng_stats_get(e, &stats);
    assert_true(stats.n_running == 1 && stats.n_waiting == 0 && stats.n_kv_used == 1);
    close_engine(e);
}

/* Every step while a long prompt is read brings the other its token. */
static void prompts_do_not_keep_others_waiting(void **state)
{
    (void)state;
    random_state = 12;
    struct eng_engine *e = open_engine(2, 24, 0);
    struct eng_session *talks = start(e, 5, 100, 1, 0);
    for (int i = 0; i < 5; i++)
        eng_step(e, event);
    struct eng_session *reads = start(e, 250, 2, 2, 0);
    int n_step = 0;
    for (; eng_session_computed(reads) < 250; n_step++) {
        int n = eng_step(e, event), heard = 0;
        for (int i = 0; i < n; i++)
            heard += event[i].session == talks;
        assert_int_equal(heard, 1);
    }
    assert_true(n_step >= 250 / 24);
    close_engine(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everyone_says_what_he_says_alone),
        cmocka_unit_test(priority_takes_a_seat_at_once),
        cmocka_unit_test(users_share),
        cmocka_unit_test(absence_saves_nothing_up),
        cmocka_unit_test(what_two_need_is_computed_once),
        cmocka_unit_test(stopping_frees_at_once),
        cmocka_unit_test(prompts_do_not_keep_others_waiting),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
