/* Drafters: matches against a plain search of all sequences; the tree built from them; which sessions' tokens are read;
 * and that estimates follow the outcomes.
 *
 * One thread: not under MODE=tsan. */
#include "tests/speculative/model.h"

#include "speculative/internal.h"

static struct spec_drafter *open_drafter(struct spec_drafter_options o)
{
    struct spec_drafter *d;
    o.n_vocab = o.n_vocab ? o.n_vocab : 100;
    assert_int_equal(spec_drafter_open(&d, &o), 0);
    kn_alloc_forbid(true);
    return d;
}

static void close_drafter(struct spec_drafter *d)
{
    kn_alloc_forbid(false);
    spec_drafter_close(d);
}

static void draft(struct spec_drafter *d, int session, int n_node, int n_depth, struct spec_tree *t)
{
    spec_tree_clear(t);
    spec_draft(d, session, n_node, n_depth, 1, t);
    assert_true(t->n <= n_node && t->n_draw == 0 && !t->depends_on_draws);
    for (int i = 0; i < t->n; i++) {
        float below = 0, here = t->parent[i] < 0 ? 1 : t->survival[t->parent[i]];
        assert_in_range(t->depth[i], 1, n_depth);
        assert_int_equal(t->source[i], 1);
        for (int k = 0; k < t->n; k++)
            below += t->parent[k] == t->parent[i] ? t->survival[k] : 0;
        assert_true(t->survival[i] >= 0 && below <= here * 1.00001f);
        assert_true(i == 0 || t->survival[i] <= t->survival[i - 1]); /* the likeliest first */
    }
}

/* ---- matches ------------------------------------------------------------------------------------- */

enum { MOST_TEXT = 400, MOST_TAIL = 64, MOST_MATCH = 16, ROOM = 64 };

struct written {
    int32_t token;
    uint64_t salt;
    int text;
};

/* The lengths of all earlier matches of 2 or more, longest first, among the remembered tokens of this salt. */
static int naive_matches(const struct written *w, int n, uint64_t salt, const int32_t *tail, int n_tail, int *length)
{
    int n_found = 0;
    for (int at = 1; at < n; at++) {
        int l = 0;
        while (l < n_tail && at - 1 - l >= 0 && w[at - 1 - l].salt == salt && w[at - 1 - l].text == w[at].text &&
               w[at - 1 - l].token == tail[n_tail - 1 - l])
            l++;
        if (l < 2)
            continue;
        int i = n_found++;
        for (; i > 0 && length[i - 1] < l; i--)
            length[i] = length[i - 1];
        length[i] = l;
    }
    return n_found;
}

static void check_matches(const struct spec_match *m, int n, const int *length, int n_length)
{
    assert_int_equal(n, kn_min(n_length, MOST_MATCH));
    for (int i = 0; i < n; i++) {
        assert_int_equal(m[i].length, length[i]);
        assert_true(i == 0 || m[i].length < m[i - 1].length || m[i].at < m[i - 1].at);
        for (int k = 0; k < i; k++)
            assert_true(m[k].at != m[i].at);
    }
}

/* One sequence longer than the memory; a search sees exactly the remembered tokens. */
static void own_text_against_a_plain_search(void **state)
{
    (void)state;
    random_state = 41;
    for (int trial = 0; trial < 60; trial++) {
        struct kn_arena a = { 0 };
        struct spec_recall r;
        struct written w[MOST_TEXT];
        int32_t text[MOST_TEXT];
        int n_vocab = 3 + random_below(8);
        spec_recall_init(&r, &a, ROOM, false);
        assert_int_equal(kn_arena_open(&a, a.used, -1), 0);
        spec_recall_init(&r, &a, ROOM, false);
        for (int n = 0; n < MOST_TEXT; n++) {
            int length[MOST_TEXT], from = kn_max(0, n - ROOM), n_tail = kn_min(n - from, MOST_TAIL);
            struct spec_match m[MOST_MATCH];
            int n_length = naive_matches(w + from, n - from, 0, text + n - n_tail, n_tail, length);
            check_matches(m, spec_recall_find(&r, 0, text + n - n_tail, n_tail, m, 0, MOST_MATCH), length, n_length);
            text[n] = n > 20 && random_below(12) ? text[n - 9 - trial % 11] : random_below(n_vocab);
            w[n] = (struct written){ text[n], 0, 0 };
            spec_recall_add(&r, text[n]);
        }
        kn_arena_close(&a);
    }
}

/* Many short sequences of three owners: no match in another owner's, and none across two sequences. */
static void shared_texts_against_a_plain_search(void **state)
{
    (void)state;
    enum { N_TEXT = 6, LONG = 40, BIG = 1024 }; /* few hash slots, so that hashes collide */
    static struct written w[N_TEXT * LONG];
    random_state = 42;
    for (int trial = 0; trial < 500; trial++) {
        struct kn_arena a = { 0 };
        struct spec_recall r;
        int n = 0;
        spec_recall_init(&r, &a, BIG, true);
        assert_int_equal(kn_arena_open(&a, a.used, -1), 0);
        spec_recall_init(&r, &a, BIG, true);
        for (int i = 0; i < N_TEXT; i++) {
            uint64_t salt = (uint64_t)random_below(3);
            spec_recall_start_sequence(&r, salt);
            for (int k = random_below(LONG); k > 0; k--) {
                w[n] = (struct written){ random_below(6), salt, i };
                spec_recall_add(&r, w[n++].token);
            }
        }
        for (uint64_t salt = 0; salt < 4; salt++)
            for (int k = 0; k < 20; k++) {
                int32_t tail[8];
                int length[N_TEXT * LONG], n_tail = random_below(9), n_length;
                int at = n > 8 ? random_below(n - 8) : 0;
                struct spec_match m[MOST_MATCH];
                for (int i = 0; i < n_tail; i++)
                    tail[i] = n > 8 && k % 2 ? w[at + i].token : random_below(6);
                n_length = naive_matches(w, n, salt, tail, n_tail, length);
                check_matches(m, spec_recall_find(&r, salt, tail, n_tail, m, 0, MOST_MATCH), length, n_length);
            }
        kn_arena_close(&a);
    }
}

/* ---- trees --------------------------------------------------------------------------------------- */

/* The chain is the continuation of the longest match, the latest of equals, and may continue into itself. */
static void ngram_copies(void **state)
{
    (void)state;
    int n_drafted = 0;
    random_state = 43;
    for (int trial = 0; trial < 100; trial++) {
        struct spec_drafter *d = open_drafter(
            (struct spec_drafter_options){ .kind = SPEC_DRAFT_NGRAM, .n_session = 1, .n_own = 512 });
        int32_t text[MOST_TEXT + 20];
        spec_drafter_begin(d, 0, 0);
        for (int n = 0; n < 150; n++) {
            struct spec_tree t;
            int best = 0, best_at = 0;
            for (int at = n - 1; at > 0; at--) {
                int l = 0;
                while (l < MOST_TAIL && at - 1 - l >= 0 && text[at - 1 - l] == text[n - 1 - l])
                    l++;
                if (l > best) {
                    best = l;
                    best_at = at;
                }
            }
            draft(d, 0, 16, 16, &t);
            assert_int_equal(t.n > 0, best >= 2);
            for (int i = 0; i < t.n; i++) {
                text[n + i] = text[best_at + i];
                assert_int_equal(t.token[i], text[n + i]);
                assert_int_equal(t.parent[i], i - 1);
            }
            n_drafted += t.n;
            text[n] = n > 20 && random_below(20) ? text[n - 5 - trial % 13] : random_below(9);
            spec_drafter_commit(d, 0, &text[n], 1);
        }
        close_drafter(d);
    }
    assert_true(n_drafted > 50000);
}

/* Three times 1 2 3, once 1 2 4: after 1 2 both are drafted, 3 as the likelier. */
static void suffix_branches_by_frequency(void **state)
{
    (void)state;
    static const int32_t text[] = { 1, 2, 3, 30, 1, 2, 4, 40, 41, 1, 2, 3, 30, 31, 1, 2, 3, 30, 32, 1, 2 };
    struct spec_tree t;
    struct spec_drafter *d = open_drafter(
        (struct spec_drafter_options){ .kind = SPEC_DRAFT_SUFFIX, .n_session = 1, .n_own = 64 });
    spec_drafter_begin(d, 0, 0);
    spec_drafter_commit(d, 0, text, sizeof text / sizeof *text);
    draft(d, 0, 32, 8, &t);
    int three = spec_tree_child(&t, SPEC_ROOT, 3), four = spec_tree_child(&t, SPEC_ROOT, 4);
    assert_true(three >= 0 && four >= 0);
    assert_true(t.survival[three] > 2 * t.survival[four] && t.survival[three] < 0.5f);
    assert_true(spec_tree_child(&t, three, 30) >= 0);
    assert_int_equal(spec_tree_child(&t, three, 40), -1);
    assert_true(t.survival[spec_tree_child(&t, three, 30)] < 0.6f * t.survival[three]); /* below .6: few samples */
    assert_int_equal(spec_tree_child(&t, SPEC_ROOT, 30), -1);

    draft(d, 0, 1, 8, &t); /* the likeliest one when there is space for one */
    assert_int_equal(t.token[0], 3);
    draft(d, 0, 8, 1, &t);
    assert_int_equal(t.n, 2);
    draft(d, 0, 0, 8, &t);
    assert_int_equal(t.n, 0);
    draft(d, 0, 8, 0, &t);
    assert_int_equal(t.n, 0);

    spec_tree_clear(&t); /* into a tree that has nodes: existing nodes are found */
    int own = spec_tree_add(&t, SPEC_ROOT, 3, 0.01f, 2);
    spec_draft(d, 0, 8, 8, 1, &t);
    assert_int_equal(spec_tree_child(&t, SPEC_ROOT, 3), own);
    assert_int_equal(t.source[own], 3);
    close_drafter(d);
}

static void begin_with(struct spec_drafter *d, const int32_t *text, int n)
{
    spec_drafter_begin(d, 0, 0);
    spec_drafter_commit(d, 0, text, n);
}

/* A long match outweighs two short ones, and is searched for even where short ones fill the list. */
static void long_matches_weigh_more(void **state)
{
    (void)state;
    static const int32_t once[] = { 9, 8, 7, 1, 2, 5, 1, 2, 6, 1, 2, 6, 9, 8, 7, 1, 2 };
    static const int32_t document[] = { 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 1, 2, 50 };
    int32_t text[2 * 20 * 3];
    struct spec_tree t;
    int n = 0;
    struct spec_drafter *d = open_drafter(
        (struct spec_drafter_options){ .kind = SPEC_DRAFT_SUFFIX, .n_session = 1, .n_own = 128, .n_learn = 64 });
    begin_with(d, once, sizeof once / sizeof *once);
    draft(d, 0, 8, 8, &t);
    assert_int_equal(t.token[0], 5);

    spec_drafter_learn(d, document, sizeof document / sizeof *document);
    for (int32_t i = 0; i < 20; i++) {
        text[n++] = 1;
        text[n++] = 2;
        text[n++] = 60 + i;
    }
    memcpy(text + n, document, 13 * sizeof *text);
    begin_with(d, text, n + 13);
    draft(d, 0, 8, 8, &t);
    assert_int_equal(t.token[0], 50);
    assert_int_equal(t.depth[t.n - 1], 1); /* the document ends there, and 20 tokens are unlikely */
    close_drafter(d);
}

/* A match that overlaps its own end continues; and the longer the match, the higher the estimate. */
static void periods_go_on(void **state)
{
    (void)state;
    int32_t text[60];
    struct spec_tree t;
    struct spec_drafter *d = open_drafter(
        (struct spec_drafter_options){ .kind = SPEC_DRAFT_NGRAM, .n_session = 1, .n_own = 64 });
    for (int i = 0; i < 60; i++)
        text[i] = i % 2;
    begin_with(d, text, 60);
    draft(d, 0, 16, 16, &t);
    assert_int_equal(t.n, 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(t.token[i], i % 2);

    for (int i = 0; i < 30; i++)
        text[i] = i;
    text[30] = 0;
    text[31] = 1;
    begin_with(d, text, 32);
    draft(d, 0, 16, 16, &t);
    assert_true(t.n > 3);
    assert_true(t.survival[3] / t.survival[2] > t.survival[0] + 0.1f);
    close_drafter(d);
}

/* ---- visibility between sessions ----------------------------------------------------------------- */

static bool drafts(struct spec_drafter *d, int session, uint64_t salt, const int32_t *text, int n, int32_t next)
{
    struct spec_tree t;
    spec_drafter_begin(d, session, salt);
    spec_drafter_commit(d, session, text, n);
    draft(d, session, 8, 8, &t);
    return spec_tree_child(&t, SPEC_ROOT, next) >= 0;
}

static void texts_of_others_are_not_read(void **state)
{
    (void)state;
    static const int32_t text[] = { 10, 11, 12, 13, 14, 15, 16, 17 };
    for (int shared = 0; shared < 2; shared++) {
        struct spec_drafter *d = open_drafter((struct spec_drafter_options){
            .kind = SPEC_DRAFT_SUFFIX, .n_session = 3, .n_own = 64, .n_shared = shared * 1000 });
        spec_drafter_begin(d, 0, 7);
        spec_drafter_commit(d, 0, text, 8);
        assert_false(drafts(d, 1, 7, text, 3, 13)); /* its session has not ended */
        spec_drafter_end(d, 0);
        assert_int_equal(drafts(d, 1, 7, text, 3, 13), shared);
        assert_false(drafts(d, 2, 8, text, 3, 13));
        assert_int_equal(drafts(d, 0, 7, text, 3, 13), shared); /* only the shared memory has it now */
        struct spec_tree t;
        spec_drafter_end(d, 1);
        draft(d, 1, 8, 8, &t);
        assert_int_equal(t.n, 0); /* the session has ended */
        close_drafter(d);
    }
    struct spec_drafter *d = open_drafter(
        (struct spec_drafter_options){ .kind = SPEC_DRAFT_SUFFIX, .n_session = 2, .n_own = 64, .n_learn = 100 });
    spec_drafter_learn(d, text, 4);
    spec_drafter_learn(d, text + 4, 4);
    assert_true(drafts(d, 0, 1, text, 3, 13) && drafts(d, 1, 2, text + 4, 2, 16));
    assert_false(drafts(d, 1, 2, text, 4, 14)); /* a match does not cross documents */
    assert_false(drafts(d, 0, 1, text, 1, 12));
    assert_false(drafts(d, 0, 1, text + 1, 1, 12)); /* nor from a document into a session */
    close_drafter(d);
}

/* An index entry gives no match after its place in the ring was overwritten, over several turns of the ring. */
static void shared_ring_wraps(void **state)
{
    (void)state;
    struct spec_drafter *d = open_drafter(
        (struct spec_drafter_options){ .kind = SPEC_DRAFT_SUFFIX, .n_session = 1, .n_own = 256, .n_shared = 1024 });
    int n_found = 0;
    random_state = 44;
    for (int i = 0; i < 2000; i++) {
        int32_t text[200];
        int n = 3 + random_below(197), salt = random_below(4);
        struct spec_tree t;
        for (int k = 0; k < n; k++)
            text[k] = 100 * salt + random_below(6);
        spec_drafter_begin(d, 0, (uint64_t)salt);
        for (int k = 0; k < 3; k++) {
            spec_drafter_commit(d, 0, text + k, 1);
            draft(d, 0, 32, 32, &t);
            for (int j = 0; j < t.n; j++)
                assert_int_equal(t.token[j] / 100, salt);
            n_found += t.n > 0;
        }
        spec_drafter_commit(d, 0, text + 3, n - 3);
    }
    assert_true(n_found > 1000);
    close_drafter(d);
}

/* ---- estimates ----------------------------------------------------------------------------------- */

/* A sequence that repeats itself makes drafts long and likely; one that never repeats makes drafting stop. */
static void estimates_follow_what_happens(void **state)
{
    (void)state;
    struct spec_drafter *d = open_drafter(
        (struct spec_drafter_options){ .kind = SPEC_DRAFT_SUFFIX, .n_session = 2, .n_own = 4096 });
    struct spec_tree t;
    int n[2][2] = { { 0 } };
    spec_drafter_begin(d, 0, 0);
    spec_drafter_begin(d, 1, 0);
    for (int32_t i = 0; i < 1500; i++) {
        int32_t copy = i % 37, change = i % 3 == 2 ? i + 50 : i % 3;
        for (int k = 0; k < 2; k++) {
            draft(d, k, 200, 200, &t);
            n[k][i > 1000] += i < 200 || i > 1300 ? t.n : 0;
            spec_drafter_commit(d, k, k ? &change : &copy, 1);
        }
    }
    draft(d, 0, 20, 20, &t);
    assert_int_equal(t.n, 20);
    assert_true(t.survival[0] > 0.98f && t.survival[19] > 0.7f);
    assert_true(n[0][1] > 150 * 199);
    assert_true(n[1][1] < n[1][0] / 4);
    close_drafter(d);
}

/* One guess is compared with one token; of a long prompt only the end updates the estimates. */
static void guesses_are_compared_once(void **state)
{
    (void)state;
    static int32_t text[2000] = { 1, 2, 3, 4, 1, 2 };
    struct spec_tree t;
    struct spec_drafter *d = open_drafter(
        (struct spec_drafter_options){ .kind = SPEC_DRAFT_NGRAM, .n_session = 1, .n_own = 2048 });
    begin_with(d, text, 6);
    for (int32_t i = 0; i < 1000; i++)
        text[i] = i < 998 ? 10 + i : i - 997;
    spec_drafter_commit(d, 0, text, 1000);
    draft(d, 0, 8, 8, &t);
    assert_true(t.n > 0 && t.survival[0] > 0.3f && t.survival[0] < 0.4f); /* .45, less one failure */
    close_drafter(d);
}

/* With verified drafts a repeating sequence has the same tokens as without drafts, in fewer passes. */
static void passes_are_saved(void **state)
{
    (void)state;
    enum { N = 300 };
    struct model m = { 12, 5, 6, NULL };
    struct spec_sampler *s = open_sampler(m.n_vocab);
    struct spec_params p;
    int32_t plain[N + 1] = { 1, 2 }, text[N + SPEC_NODES] = { 1, 2 };
    float z[MOST_VOCAB];
    struct spec_drafter *d = open_drafter(
        (struct spec_drafter_options){ .kind = SPEC_DRAFT_SUFFIX, .n_session = 1, .n_own = 512 });
    spec_params_default(&p);
    p.temperature = 0.4f;
    for (int n = 2; n < N; n++) {
        struct spec_sampled c;
        model_logits(&m, plain + n - 2, 2, z);
        assert_int_equal(spec_sample(s, &p, z, plain, n, n, &c), 0);
        plain[n] = c.token;
    }
    int n = 2, n_pass = 0;
    spec_drafter_begin(d, 0, 0);
    spec_drafter_commit(d, 0, text, 2);
    for (; n < N; n_pass++) {
        struct spec_tree t;
        draft(d, 0, 8, kn_min(8, N - n - 1), &t);
        struct spec_verify v = { .tree = &t, .params = &p, .history = text, .n_history = n, .position = n };
        for (spec_verify_start(&v); v.node != SPEC_END;) {
            model_logits(&m, text + n + v.n_walked - 2, 2, z);
            assert_int_equal(spec_verify_row(&v, s, z, NULL), 0);
        }
        for (int i = 0; i < v.n_out; i++)
            text[n + i] = v.out[i].token;
        spec_drafter_commit(d, 0, text + n, v.n_out);
        n += v.n_out;
    }
    assert_memory_equal(text, plain, N * sizeof *text);
    assert_true(n_pass < N * 3 / 4);
    close_drafter(d);
    spec_sampler_close(s);
}

/* ---- the oracle, and none ------------------------------------------------------------------------ */

static void oracle_is_right_as_often_as_told(void **state)
{
    (void)state;
    enum { N = 4000, LONG = 10 };
    static int32_t text[N + LONG];
    static const double right[] = { 0, .8, 1 };
    for (int i = 0; i < N + LONG; i++)
        text[i] = i % 7;
    for (int k = 0; k < 3; k++) {
        struct spec_drafter *d = open_drafter((struct spec_drafter_options){
            .kind = SPEC_DRAFT_ORACLE, .n_session = 2, .n_vocab = 7, .right = right[k], .seed = 3 });
        struct spec_tree t;
        int n_right = 0;
        spec_drafter_begin(d, 1, 0);
        draft(d, 1, LONG, LONG, &t);
        assert_int_equal(t.n, 0); /* no continuation was passed */
        spec_drafter_set_oracle(d, 1, text, N + 3);
        for (int i = 0; i < N; i++) {
            draft(d, 1, LONG, LONG, &t);
            assert_int_equal(t.n, kn_min(LONG, N + 3 - i));
            assert_in_range(t.token[0], 0, 6);
            assert_int_equal(t.parent[t.n - 1], t.n - 2);
            for (int j = 0; j < t.n; j++)
                assert_true(fabs(t.survival[j] - pow(right[k], j + 1)) < 1e-6);
            n_right += t.token[0] == text[i];
            spec_drafter_commit(d, 1, text + i, 1);
        }
        double most = 5 * sqrt(right[k] * (1 - right[k]) / N);
        assert_true(fabs((double)n_right / N - right[k]) <= most);
        spec_drafter_begin(d, 1, 0);
        draft(d, 1, LONG, LONG, &t);
        assert_int_equal(t.n, 0); /* the continuation was another session's */
        close_drafter(d);
    }
}

static void none_drafts_nothing(void **state)
{
    (void)state;
    static const int32_t text[] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    struct spec_tree t;
    struct spec_drafter *d = open_drafter((struct spec_drafter_options){
        .kind = SPEC_DRAFT_NONE, .n_session = 1, .n_own = 1 << 20, .n_shared = 1 << 20, .n_learn = 1 << 20 });
    spec_drafter_learn(d, text, 8);
    spec_drafter_begin(d, 0, 0);
    spec_drafter_commit(d, 0, text, 8);
    draft(d, 0, 8, 8, &t);
    assert_int_equal(t.n, 0);
    spec_drafter_end(d, 0);
    close_drafter(d);
}

/* ---- memory, threads ----------------------------------------------------------------------------- */

static size_t mapped;
static bool no_alloc, no_map;

static void *counting_map(size_t bytes, int node)
{
    mapped += no_map ? 0 : bytes;
    return no_map ? NULL : kn_io_system.map(bytes, node);
}

static void *refusing_alloc(size_t bytes) { return no_alloc ? NULL : malloc(bytes); }

static void memory_is_what_was_said(void **state)
{
    (void)state;
    const struct spec_drafter_options o = {
        .kind = SPEC_DRAFT_SUFFIX, .n_vocab = 9, .n_session = 4, .n_own = 8192, .n_shared = 50000, .n_learn = 1000
    };
    struct spec_drafter_options none = { .kind = SPEC_DRAFT_NONE, .n_vocab = 9, .n_session = 4, .n_own = 8192 };
    struct spec_drafter_options bad = o;
    struct kn_io io = kn_io_system;
    struct spec_drafter *d = NULL;
    size_t tokens = 4 * 8192 + 65536 + 1024;
    io.map = counting_map;
    io.alloc = refusing_alloc;
    kn_io_set(&io);
    assert_in_range(spec_drafter_bytes(&o), 28 * tokens, 29 * tokens);
    assert_true(spec_drafter_bytes(&none) < 10000);
    mapped = 0;
    assert_int_equal(spec_drafter_open(&d, &o), 0);
    assert_in_range(mapped, spec_drafter_bytes(&o), spec_drafter_bytes(&o) + (2 << 20));
    spec_drafter_close(d);
    spec_drafter_close(NULL);

    d = NULL;
    kn_log_set(unheard, KN_LOG_ERROR);
    no_map = true;
    assert_int_equal(spec_drafter_open(&d, &o), KN_ENOMEM);
    no_map = false;
    no_alloc = true;
    assert_int_equal(spec_drafter_open(&d, &o), KN_ENOMEM);
    no_alloc = false;
    bad.n_shared = INT32_MAX;
    assert_int_equal(spec_drafter_open(&d, &bad), KN_EINVAL);
    bad = o;
    bad.right = NAN;
    assert_int_equal(spec_drafter_open(&d, &bad), KN_EINVAL);
    assert_null(d);
    kn_log_set(NULL, KN_LOG_INFO);
    kn_io_set(NULL);
}

struct crowd {
    struct spec_drafter *d;
    struct spec_tree tree[8];
};

static void draft_one(void *arg, int item, int thread)
{
    struct crowd *c = arg;
    (void)thread;
    spec_tree_clear(&c->tree[item]);
    spec_draft(c->d, item, 32, 32, 1, &c->tree[item]);
}

static void sessions_draft_side_by_side(void **state)
{
    (void)state;
    struct crowd c;
    struct kn_team *team;
    assert_int_equal(kn_team_open(&team, 2), 0);
    c.d = open_drafter(
        (struct spec_drafter_options){ .kind = SPEC_DRAFT_SUFFIX, .n_session = 8, .n_own = 512, .n_shared = 512 });
    random_state = 45;
    for (int i = 0; i < 8; i++)
        spec_drafter_begin(c.d, i, 0);
    for (int step = 0; step < 100; step++) {
        for (int i = 0; i < 8; i++) {
            int32_t token[3] = { random_below(4), random_below(4), random_below(4) };
            spec_drafter_commit(c.d, i, token, 1 + random_below(3));
        }
        kn_parallel_for(team, 8, draft_one, &c);
        for (int i = 0; i < 8; i++) {
            struct spec_tree t;
            draft(c.d, i, 32, 32, &t);
            assert_int_equal(t.n, c.tree[i].n);
            assert_memory_equal(t.token, c.tree[i].token, (size_t)t.n * sizeof *t.token);
        }
        if (step % 20 == 19)
            spec_drafter_begin(c.d, step % 8, 0);
    }
    close_drafter(c.d);
    kn_team_close(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_text_against_a_plain_search),
        cmocka_unit_test(shared_texts_against_a_plain_search),
        cmocka_unit_test(ngram_copies),
        cmocka_unit_test(suffix_branches_by_frequency),
        cmocka_unit_test(long_matches_weigh_more),
        cmocka_unit_test(periods_go_on),
        cmocka_unit_test(texts_of_others_are_not_read),
        cmocka_unit_test(shared_ring_wraps),
        cmocka_unit_test(estimates_follow_what_happens),
        cmocka_unit_test(guesses_are_compared_once),
        cmocka_unit_test(passes_are_saved),
        cmocka_unit_test(oracle_is_right_as_often_as_told),
        cmocka_unit_test(none_drafts_nothing),
        cmocka_unit_test(memory_is_what_was_said),
        cmocka_unit_test(sessions_draft_side_by_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
