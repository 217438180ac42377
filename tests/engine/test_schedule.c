/* The scheduler (engine/schedule.c): more sessions than seats, more tokens than KV, several users and priorities. Each
 * session waits, is preempted, shares KV or finds a cached prefix, and gives the same answer as alone. Then single
 * rules: priority, fairness between users, work shared by equal prompts, seats freed by a stop, decoding beside a long
 * prefill.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine/same_answers.h"

static void everyone_says_what_he_says_alone(void **state)
{
    (void)state;
    static const int chunks[] = { 7, 64, 512 };
    uint64_t n_preempted = 0, n_found = 0;
    random_state = 5;
    make_requests();
    for (int round = 0; round < SHARE(12); round++) {
        struct eng_engine *e = open_engine(1 + below(5), chunks[round % 3], round % 4 ? 4 + below(8) : 0);
        run_crowd(e, SHARE(40));
        n_preempted += e->stats.n_preempted;
        n_found += e->stats.n_cache_found;
        assert_true(e->stats.n_cache_found <= e->stats.n_cache_asked);
        close_engine(e);
    }
    forget_requests();
    if (WHOLE && (n_preempted < 20 || n_found < 500))
        fail_msg("%d preempted, %d found", (int)n_preempted, (int)n_found);
}

/* ---- order of sessions ---------------------------------------------------------------------------- */

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
    assert_true(!eng_session_waits(b) && eng_session_waits(c)); /* a preempted session comes before a new one */
    close_engine(e);
}

/* An idle session keeps its seat beside another, but has no rows until the other has ended; then it goes on to the
 * answer that it gives alone. */
static void idle_sessions_wait_for_all_others(void **state)
{
    (void)state;
    int32_t alone[64];
    for (int beside = 0; beside < 2; beside++) {
        random_state = 12;
        struct eng_engine *e = open_engine(2, 8, 0);
        struct eng_session *idle = start(e, 20, 30, 1, ENG_PRIORITY_IDLE);
        int n_token, n_before = 0, n_waited = 0;
        for (int i = 0; i < 8 * beside; i++)
            eng_step(e, event);
        if (beside) {
            n_before = idle->seq.n_token;
            struct eng_session *other = start(e, 20, 10, 2, -1000);
            while (eng_session_runs(other)) {
                eng_step(e, event);
                assert_true(!eng_session_waits(idle) && idle->seq.n_row == 0 && idle->seq.n_token == n_before);
                n_waited++;
            }
            assert_true(n_before > 20 && n_waited >= 12); /* 3 chunks and 9 more tokens */
        }
        while (eng_session_runs(idle))
            eng_step(e, event);
        const int32_t *token = eng_session_tokens(idle, &n_token);
        assert_int_equal(n_token, 50);
        if (beside)
            assert_memory_equal(token, alone, 50 * sizeof *token);
        else
            memcpy(alone, token, 50 * sizeof *token);
        close_engine(e);
    }
}

/* A user with one request does not wait for another user's ten. */
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
        assert_true(eng_session_runs(many[2]) && eng_session_waits(many[2])); /* no other session came first */
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

/* ---- one prefix, several sessions ----------------------------------------------------------------- */

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
        while (eng_session_runs(s[0]) || eng_session_runs(s[1]) || eng_session_runs(s[2]) || eng_session_runs(s[3]))
            eng_step(e, event);
        int n_prompt = (int)e->stats.n_row - 4; /* less the rows of the second tokens */
        if (with_salt)
            assert_int_equal(n_prompt, 4 * 200);
        else /* three blocks once, the rest at most by each */
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

/* In every step of a long prefill the decoding session gets its token. */
static void prompts_do_not_keep_others_waiting(void **state)
{
    (void)state;
    random_state = 12;
    struct eng_engine *e = open_engine(2, 24, 0);
    struct eng_session *talks = start(e, 5, 300, 1, 0);
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
        cmocka_unit_test(everyone_says_what_he_says_alone), cmocka_unit_test(idle_sessions_wait_for_all_others),
        cmocka_unit_test(priority_takes_a_seat_at_once),    cmocka_unit_test(users_share),
        cmocka_unit_test(absence_saves_nothing_up),         cmocka_unit_test(what_two_need_is_computed_once),
        cmocka_unit_test(stopping_frees_at_once),           cmocka_unit_test(prompts_do_not_keep_others_waiting),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
