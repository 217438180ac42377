/* A model with recurrent layers: besides KV, a sequence has a state. With drafts, preemption, sharing and cache hits
 * each session gives the same answer as alone. A cached prefix is found only up to a position with a kept state.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/dsi.h"
#include "tests/engine/head.h"
#include "tests/engine/medusa_heads.h"
#include "tests/engine/worst.h"

static void everyone_says_what_he_says_alone(void **state)
{
    (void)state;
    static const int chunks[] = { 7, 64, 512 };
    uint64_t n_preempted = 0, n_found = 0;
    random_state = 5;
    for (int round = 0; round < SHARE(8); round++) {
        struct eng_engine *e = open_engine(1 + below(5), chunks[round % 3], round % 4 ? 4 + below(8) : 0);
        e->kv.n_state = round % 4 == 3 ? below(3) : e->kv.n_state; /* few or no kept states */
        run_crowd(e, SHARE(30));
        check_states(e);
        n_preempted += e->stats.n_preempted;
        n_found += e->stats.n_cache_found;
        close_engine(e);
    }
    if (WHOLE && (n_preempted < 10 || n_found < 500))
        fail_msg("%d preempted, %d found", (int)n_preempted, (int)n_found);
}

static void drafts_change_nothing(void **state)
{
    (void)state;
    static const int chunks[] = { 7, 64, 512 }, rights[] = { 0, 50, 90, 100 };
    uint64_t n_kept = 0, n_preempted = 0;
    random_state = 6;
    for (int round = 0; round < SHARE(8); round++) {
        struct eng_engine *e = open_worst(1 + below(5), chunks[round % 3], round % 3 ? 5 + below(8) : 0, 1 + below(12),
                                          rights[round % 4]);
        run_crowd(e, SHARE(25));
        check_states(e);
        n_kept += e->stats.n_draft_kept;
        n_preempted += e->stats.n_preempted;
        close_engine(e);
    }
    if (WHOLE && (n_kept < 200 || n_preempted < 3))
        fail_msg("%d kept, %d preempted", (int)n_kept, (int)n_preempted);
}

static void texts_draft(void **state)
{
    (void)state;
    static const char *const draft[] = { "ngram", "suffix,shared", "oracle:0.8", "lookahead" };
    for (int i = 0; i < 4; i++) {
        struct eng_options o = {
            .n_parallel = 4, .n_chunk = 100, .n_thread = 2, .n_draft = 1, .gamma = i ? 6 : ENG_GAMMA_AUTO
        };
        assert_int_equal(eng_draft_parse(&o.draft[0], draft[i]), 0);
        struct eng_engine *e = open_engine_with(o, i % 2 ? 9 : 0);
        run_crowd(e, SHARE(20));
        if (i == 2)
            assert_true(!WHOLE || e->stats.n_draft_kept > 100);
        close_engine(e);
    }
}

/* The target has recurrent layers, the draft model has none. */
static void another_model_drafts(void **state)
{
    (void)state;
    char small[96], wish[128];
    struct kn_team *team;
    snprintf(small, sizeof small, "%s.small", path);
    snprintf(wish, sizeof wish, "model:%s", small);
    assert_int_equal(kn_team_open(&team, 1), 0);
    struct moe_synth_options so = {
        .shape = "tiny-dense", .n_layer = 1, .n_vocab = n_vocab, .format = KN_Q8_0, .seed = 3, .team = team
    };
    assert_int_equal(moe_synth(small, &so), 0);
    kn_team_close(team);
    struct eng_options o = { .n_parallel = 3, .n_chunk = 100, .n_draft = 1, .gamma = 3 };
    assert_int_equal(eng_draft_parse(&o.draft[0], wish), 0);
    random_state = 27;
    struct eng_engine *e = open_engine_with(o, 12);
    run_crowd(e, SHARE(15));
    assert_true(!WHOLE || e->stats.n_draft > 100);
    check_states(e);
    close_engine(e);
    unlink(small);
}

static void drafts_keep_states(const char *wish)
{
    struct eng_options o = { .n_parallel = 3, .n_chunk = 100, .n_draft = 1, .gamma = 8 };
    assert_int_equal(eng_draft_parse(&o.draft[0], wish), 0);
    struct eng_engine *e = open_engine_with(o, 12);
    run_crowd(e, SHARE(15));
    assert_true(!WHOLE || e->stats.n_draft > 100);
    check_states(e);
    close_engine(e);
}

static void a_head_drafts(void **state)
{
    char head[96], wish[128];
    snprintf(head, sizeof head, "%s.head", path);
    snprintf(wish, sizeof wish, "eagle:%s", head);
    random_state = 26;
    assert_int_equal(write_head_of(head, *state ? HEAD_EAGLE3 : HEAD_EAGLE, 128, asked_layers), 0);
    drafts_keep_states(wish);
    unlink(head);
}

/* Medusa heads in vLLM's layout. */
static void medusa_heads_draft(void **state)
{
    (void)state;
    char heads[96], wish[128];
    snprintf(heads, sizeof heads, "%s.medusa", path);
    snprintf(wish, sizeof wish, "medusa:%s", heads);
    write_medusa(heads, &(struct medusa_made){ .n_head = 3, .d = 128, .n_token = n_vocab, .vllm = true });
    random_state = 28;
    drafts_keep_states(wish);
    remove_medusa(heads);
}

/* ---- cache hits ------------------------------------------------------------------------------------------ */

static struct said {
    int32_t token[64];
    float logprob[64];
    int n;
} said;
static const int32_t *told; /* tokens for the oracle drafter, or NULL */

/* Runs a request to its end; returns the number of cached prompt tokens. */
static int run(struct eng_engine *e, const int32_t *token, int n, int n_predict)
{
    struct eng_session *s;
    struct eng_request r = request(token, n, n_predict, 1);
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    if (told)
        eng_session_set_oracle(s, told, n_predict);
    for (said.n = 0; eng_session_runs(s);) {
        int n_event = eng_step(e, event);
        for (int i = 0; i < n_event; i++)
            if (event[i].session == s) {
                said.token[said.n] = event[i].token;
                said.logprob[said.n++] = event[i].logprob;
            }
    }
    int found = eng_session_cached(s);
    eng_session_close(s);
    check_states(e);
    return found;
}

/* Compares tokens and logprobs to the bit. */
static void assert_says(const struct said *want)
{
    assert_int_equal(said.n, want->n);
    assert_memory_equal(said.token, want->token, (size_t)want->n * sizeof *said.token);
    assert_memory_equal(said.logprob, want->logprob, (size_t)want->n * sizeof *said.logprob);
}

static void draw(int32_t *token, int from, int n)
{
    for (int i = from; i < n; i++)
        token[i] = below(n_vocab);
}

static void a_conversation_goes_on(void **state)
{
    (void)state;
    int32_t token[N_CTX];
    struct said first;
    random_state = 21;
    struct eng_engine *e = open_engine(2, 50, 0);
    draw(token, 0, 150);
    assert_int_equal(run(e, token, 150, 10), 0);
    memcpy(token + 150, said.token, 10 * sizeof *token);
    draw(token, 160, 200);
    assert_int_equal(run(e, token, 200, 20), 159); /* the last token was not computed */
    first = said;
    assert_int_equal(run(e, token, 200, 20), 192); /* the prompt's end, without the generation prompt */
    assert_says(&first);
    token[150] ^= 1; /* the answer is different in the new history */
    assert_int_equal(run(e, token, 200, 20), 128);
    close_engine(e);
    e = open_engine(1, 512, 0);
    token[150] ^= 1;
    assert_int_equal(run(e, token, 200, 20), 0);
    assert_says(&first);
    close_engine(e);
}

/* A session may end when accepted drafts are not yet applied to its state. The next turn still finds all its tokens. */
static void kept_drafts_are_known_to_who_goes_on(void **state)
{
    (void)state;
    int32_t token[N_CTX];
    struct said first, second;
    random_state = 24;
    struct eng_engine *e = open_engine(1, 512, 0);
    draw(token, 0, 40);
    run(e, token, 40, 33);
    first = said;
    memcpy(token + 40, said.token, 33 * sizeof *token);
    draw(token, 73, 90);
    run(e, token, 90, 20);
    second = said;
    close_engine(e);

    struct eng_options o = { .n_parallel = 1, .n_chunk = 100, .gamma = 6, .n_draft = 1 };
    assert_int_equal(eng_draft_parse(&o.draft[0], "oracle:1"), 0);
    e = open_engine_with(o, 0);
    told = first.token;
    assert_int_equal(run(e, token, 40, 33), 0);
    assert_says(&first);
    assert_true(!WHOLE || e->stats.n_draft_kept > 20);
    told = second.token;
    assert_int_equal(run(e, token, 90, 20), 72);
    assert_says(&second);
    told = NULL;
    close_engine(e);
}

/* The other session holds the blocks that a copy of the cached prefix needs: the prefix is computed again. Eviction
 * still removes the blocks at the end of a text before the blocks they follow. */
static void without_room_for_a_copy_nothing_is_known(void **state)
{
    (void)state;
    int32_t token[N_CTX], other[N_CTX];
    struct eng_session *s;
    struct said want;
    random_state = 28;
    struct eng_engine *e = open_engine(2, 512, 4);
    draw(token, 0, 100);
    draw(other, 0, 70);
    run(e, token, 100, 1);
    memcpy(token + 100, other, 10 * sizeof *token);
    struct eng_request r = request(other, 70, 58, 1); /* takes two of four blocks until its end */
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    eng_step(e, event);
    assert_int_equal(run(e, token, 110, 2), 0);
    want = said;
    assert_true(eng_session_runs(s));
    eng_session_close(s);
    close_engine(e);
    e = open_engine(1, 512, 4);
    run(e, token, 110, 2);
    assert_says(&want);
    close_engine(e);
}

/* The second prompt leaves the first at a branch; the state kept there serves the third. */
static void a_beginning_that_many_have_is_kept(void **state)
{
    (void)state;
    int32_t token[N_CTX];
    random_state = 22;
    struct eng_engine *e = open_engine(1, 512, 0);
    draw(token, 0, 240);
    assert_int_equal(run(e, token, 240, 1), 0);
    draw(token, 140, 240);
    assert_int_equal(run(e, token, 240, 1), 0);
    draw(token, 140, 240);
    assert_int_equal(run(e, token, 240, 1), 128);
    close_engine(e);
}

static void what_two_need_is_computed_once(void **state)
{
    (void)state;
    int32_t token[N_CTX];
    struct eng_session *s[4];
    random_state = 23;
    draw(token, 0, 200);
    struct eng_engine *e = open_engine(4, 1024, 0);
    for (int i = 0; i < 4; i++) {
        draw(token, 140, 200);
        struct eng_request r = request(token, 200, 2, (uint64_t)i);
        assert_int_equal(eng_session_open(&s[i], e), 0);
        assert_int_equal(eng_session_start(s[i], &r), 0);
    }
    while (eng_session_runs(s[0]) || eng_session_runs(s[1]) || eng_session_runs(s[2]) || eng_session_runs(s[3]))
        eng_step(e, event);
    assert_int_equal((int)e->stats.n_row - 4, 200 + 3 * 72); /* less rows of second tokens; two blocks once */
    close_engine(e);
}

/* A session with failed rows leaves no kept state. */
static void who_fails_leaves_no_state(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__ /* another thread reads through the hooks, a data race */
    print_message("skipped: reads that fail, under ThreadSanitizer\n");
    skip();
#endif
    int32_t token[N_CTX];
    struct said want;
    struct eng_session *s;
    random_state = 25;
    draw(token, 0, 80);
    struct eng_engine *e = open_engine(1, 64, 0);
    run(e, token, 80, 5);
    want = said;
    close_engine(e);
    struct eng_options o = { .model = path,
                             .isa = KN_ISA_COUNT - 1,
                             .n_ctx = N_CTX,
                             .n_parallel = 1,
                             .n_chunk = 1,
                             .n_session = N_SESSION,
                             .n_thread = 1,
                             .io = OFF_IO_PREAD };
    assert_int_equal(eng_describe(&e, &o), 0);
    o.host_mem = eng_memory(e)->least + (1 << 17); /* too little memory to keep all experts */
    eng_close(e);
    assert_int_equal(eng_open(&e, &o), 0);
    struct eng_request r = request(token, 80, 5, 1);
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    for (int i = 0; i < 3; i++)
        eng_step(e, event);
    faults_at(FAULT_READ, 1, FAULT_LASTS, EIO);
    while (eng_session_runs(s))
        eng_step(e, event);
    faults_off();
    assert_int_equal(event[0].finish, ENG_FAILED);
    assert_true(eng_session_computed(s) < 79);
    eng_session_close(s);
    assert_int_equal(run(e, token, 80, 5), 0);
    assert_says(&want);
    close_engine(e);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    struct eng_engine *e = NULL;
    struct eng_dsi *d = NULL;
    struct eng_options o = { .model = path,
                             .isa = KN_ISA_COUNT - 1,
                             .n_ctx = N_CTX,
                             .n_parallel = 1,
                             .n_thread = 1,
                             .gamma = 4,
                             .n_draft = 1,
                             .draft = { { .kind = ENG_DRAFT_MODEL } } };
    snprintf(o.draft[0].file, sizeof o.draft[0].file, "%s", path);
    faults_listen();
    assert_int_equal(eng_open(&e, &o), KN_EUNSUPPORTED);
    assert_non_null(strstr(faults.line, "cannot draft"));
    faults_listen_off();
    e = open_engine(1, 64, 0);
    faults_listen();
    assert_int_equal(eng_dsi_open(&d, e, &(struct eng_dsi_options){ .n_target = 1 }), KN_EUNSUPPORTED);
    assert_non_null(strstr(faults.line, "--dsi"));
    faults_listen_off();
    close_engine(e);
}

static int setup_all(void **state)
{
    asked_shape = "tiny-qwen3next";
    asked_layers = 4;
    return setup_asked(state, 21);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everyone_says_what_he_says_alone),
        cmocka_unit_test(drafts_change_nothing),
        cmocka_unit_test(texts_draft),
        cmocka_unit_test(another_model_drafts),
        cmocka_unit_test(a_head_drafts),
        cmocka_unit_test(medusa_heads_draft),
        { "a_head_on_inner_layers_drafts", a_head_drafts, NULL, NULL, "3" },
        cmocka_unit_test(a_conversation_goes_on),
        cmocka_unit_test(kept_drafts_are_known_to_who_goes_on),
        cmocka_unit_test(without_room_for_a_copy_nothing_is_known),
        cmocka_unit_test(a_beginning_that_many_have_is_kept),
        cmocka_unit_test(what_two_need_is_computed_once),
        cmocka_unit_test(who_fails_leaves_no_state),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_asked);
}
