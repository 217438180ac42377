/* tests/engine/draft/drafted.h - a head's drafts depend on the tokens of the sequence alone. record() stores the draft
 * tree of each pass of one session; step_alike() and draft_again() compare it with the trees drafted for the same
 * tokens in another batch, with shared KV blocks and other chunk sizes. refuse() checks that an option is refused. */
#ifndef TESTS_ENGINE_DRAFT_DRAFTED_H
#define TESTS_ENGINE_DRAFT_DRAFTED_H

#include "tests/engine/reload.h"

/* No limit from measured pass times on prefill rows, so the clock cannot change the passes. Needed because a pass that
 * prefills only the last prompt token also drafts, and the sequence then runs past the recorded passes. */
#define ANY_STRETCH 1e9

static bool texts_may_end; /* stop tokens allowed; else ignore_eos makes them improbable */

/* The demo model, and an engine that drafts for it. */
#define DEMO "evals/train/models/demo-target-q8_0.gguf"

static inline struct eng_options demo_options(const char *draft, enum kn_isa isa, int n_chunk)
{
    struct eng_options o = { .model = DEMO,
                             .isa = isa,
                             .kv = KN_KV_F32,
                             .n_ctx = N_CTX,
                             .n_thread = 1,
                             .n_parallel = 3,
                             .n_session = N_SESSION,
                             .n_chunk = n_chunk,
                             .max_prefill_slowdown = ANY_STRETCH,
                             .gamma = 60,
                             .n_draft = 1 };
    assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
    return o;
}

static inline struct eng_engine *open_demo(const char *draft, enum kn_isa isa, int n_chunk)
{
    struct eng_engine *e;
    struct eng_options o = demo_options(draft, isa, n_chunk);
    assert_int_equal(eng_open(&e, &o), 0);
    return e;
}

/* Requests to the demo model, and their answers. */
static inline int setup_demo(void **state, uint64_t seed)
{
    (void)state;
    snprintf(path, sizeof path, "%s", DEMO);
    n_vocab = 4096;
    random_state = seed;
    make_requests();
    return 0;
}

static inline int teardown_demo(void **state)
{
    (void)state;
    forget_requests();
    return 0;
}

/* Skips under ThreadSanitizer: a test with a single thread has no data race to find. */
static inline void one_thread(void)
{
    if (WHOLE)
        return;
    print_message("skipped: one thread, under ThreadSanitizer\n");
    skip();
}

static inline struct eng_session *start_biased(struct eng_engine *e, const int32_t *token, int n, uint64_t salt,
                                               const struct spec_bias *bias)
{
    struct eng_session *s;
    struct eng_request r = request(token, n, N_CTX, 0);
    r.salt = salt;
    r.n_top = 0;
    r.ignore_eos = !texts_may_end;
    r.sampling.temperature = 0;
    r.sampling.bias = bias;
    r.sampling.n_bias = bias != NULL;
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    return s;
}

static inline struct eng_session *start(struct eng_engine *e, const int32_t *token, int n, uint64_t salt)
{
    return start_biased(e, token, n, salt, NULL);
}

static inline void step(struct eng_engine *e) { assert_true(eng_step(e, event) >= 0); }

/* The draft tree after exactly these n tokens. A first session has computed all but the last. */
static inline const struct spec_tree *tree_behind(struct eng_engine *e, const int32_t *text, int n,
                                                  const struct spec_bias *bias)
{
    struct eng_session *s = start(e, text, n, 0);
    step(e);
    eng_session_close(s);
    s = start_biased(e, text, n, 0, bias);
    step(e);
    const struct spec_tree *t = &e->drafting->seat[s->seat->number].tree;
    eng_session_close(s);
    return t;
}

#define MOST_PASS 48
static struct pass {
    int n_token;
    struct spec_tree tree;
} pass[MOST_PASS];

static inline void same_tree(const struct spec_tree *a, const struct spec_tree *b)
{
    assert_int_equal(a->n, b->n);
    size_t n = (size_t)a->n;
    assert_memory_equal(a->token, b->token, n * sizeof *a->token);
    assert_memory_equal(a->parent, b->parent, n * sizeof *a->parent);
    assert_memory_equal(a->survival, b->survival, n * sizeof *a->survival);
}

static void (*before_pass)(struct eng_engine *e); /* that is recorded; or NULL */

/* Records each pass of one session after its prompt: number of tokens and draft tree. Returns the number of passes. */
static inline int record(struct eng_engine *e, const struct eng_ids *ids, int32_t *text, int n_most)
{
    struct eng_session *s = start(e, ids->id, (int)ids->n, 0);
    int n = 0;
    while (s->seq.n_token == (int)ids->n)
        step(e);
    while (n < n_most && eng_session_runs(s)) {
        pass[n].n_token = s->seq.n_token;
        if (before_pass)
            before_pass(e);
        step(e);
        if (!eng_session_runs(s))
            break;
        pass[n++].tree = *s->seq.tree;
    }
    memcpy(text, s->seq.token, (size_t)s->seq.n_token * sizeof *text);
    eng_session_close(s);
    return n;
}

/* Runs one pass. If a pass was recorded at this length, its tree must be the same. Returns whether there was one. */
static inline int step_alike(struct eng_engine *e, const struct eng_session *s, const int32_t *text, int n_pass)
{
    int k = 0;
    while (k < n_pass && pass[k].n_token != s->seq.n_token)
        k++;
    if (k < n_pass)
        assert_memory_equal(s->seq.token, text, (size_t)s->seq.n_token * sizeof *text);
    step(e);
    if (k < n_pass)
        same_tree(s->seq.tree, &pass[k].tree);
    return k < n_pass;
}

/* Session 1 prefills the recorded tokens at once, in KV blocks shared with session 0, and drafts. Meanwhile session 2
 * prefills the same blocks with a different token at the end. At last the drafter is loaded again. Returns the number of trees compared. */
static inline int draft_again(struct eng_engine *e, const int32_t *text, int first, int n_pass)
{
    int32_t like[N_CTX];
    int n = pass[first].n_token, n_like = kn_min(ENG_KV_BLOCK, n - 2) + 1, n_same = 0;
    memcpy(like, text, sizeof like);
    like[n_like - 1] = (like[n_like - 1] + 1) % n_vocab;
    struct eng_session *s[3];
    s[0] = start(e, like, n_like, (uint64_t)n);
    while (s[0]->seq.n_token < n_like + 2) /* its drafter has computed the shared prompt */
        step(e);
    s[1] = start(e, text, n - 1, (uint64_t)n);
    while (s[1]->seq.n_token < n)
        step(e);
    n_same += step_alike(e, s[1], text, n_pass);
    like[n_like - 1] = (like[n_like - 1] + 1) % n_vocab;
    s[2] = start(e, like, n_like, (uint64_t)n);
    while (s[2]->seq.n_token < n_like + 2 && s[1]->seq.n_token < pass[n_pass - 1].n_token)
        n_same += step_alike(e, s[1], text, n_pass);
    reload(e);
    n_same += step_alike(e, s[1], text, n_pass);
    for (int i = 0; i < 3; i++)
        eng_session_close(s[i]);
    return n_same;
}

static inline void refuse(const char *model, const char *draft, const char *says)
{
    struct eng_engine *e;
    struct eng_options o = { .model = model,
                             .isa = KN_ISA_COUNT - 1,
                             .n_ctx = N_CTX,
                             .n_parallel = 1,
                             .n_thread = 1,
                             .gamma = 4,
                             .n_draft = 1 };
    assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
    faults_listen();
    int got = eng_open(&e, &o);
    if (got >= 0 || faults.n_line != 1 || !strstr(faults.line, says))
        fail_msg("%d, %d lines, '%s'", got, faults.n_line, faults.line);
    faults_listen_off();
}

#endif
