/* tests/engine/worst.h - a drafter for tests: random trees of any shape, with correct and wrong tokens. */
#ifndef TESTS_ENGINE_WORST_H
#define TESTS_ENGINE_WORST_H

#include "tests/engine/same_answers.h"

/* right: chance that a drafted token is the session's own next token. Other tokens are random or stop tokens. */
static struct worst {
    struct eng_drafter base;
    const struct eng_engine *engine;
    int right; /* percent */
    bool fails;
    long n_node;
} worst;

static void ignore_commit(struct eng_drafter *d, struct eng_seq *s, const struct spec_verify *v, int n_new, int n_kept)
{
    (void)d, (void)s, (void)v;
    assert_true(n_new >= 1 && n_kept <= n_new);
}
static void close_worst(struct eng_drafter *d) { (void)d; }

static int32_t some_token(const struct eng_seq *s, int depth)
{
    const struct eng_assets *a = &worst.engine->assets;
    int said = s->n_token - s->n_prompt + depth;
    if (below(100) < worst.right && said < s->n_oracle)
        return s->oracle[said];
    return below(10) ? below(n_vocab) : a->stop[below(a->n_stop)];
}

static int draft_worst(struct eng_drafter *d, struct eng_seq **s, const int *n_node, int n, int max_depth)
{
    (void)d;
    (void)max_depth;
    if (worst.fails)
        return KN_EIO;
    for (int i = 0; i < n; i++) {
        struct spec_tree *t = &s[i]->draft->tree;
        int most = n_node[i] ? below(n_node[i] + 1) : 0, last = SPEC_ROOT;
        while (t->n < most) {
            int parent = t->n == 0 || below(4) == 0 ? SPEC_ROOT : below(3) ? last : below(t->n);
            int depth = parent == SPEC_ROOT ? 0 : t->depth[parent];
            int before = t->n;
            last = spec_tree_add(t, parent, some_token(s[i], depth), 0.5f, 1);
            if (t->n == before)
                break;
        }
        worst.n_node += t->n;
    }
    return 0;
}

static const struct eng_drafter_kind worst_kind = {
    .name = "worst", .commit = ignore_commit, .draft = draft_worst, .close = close_worst
};

static inline struct eng_engine *open_worst(int n_parallel, int n_chunk, int n_block, int gamma, int right)
{
    struct eng_engine *e = open_engine_with((struct eng_options){ .n_parallel = n_parallel,
                                                                  .n_chunk = n_chunk,
                                                                  .n_thread = 1 + below(2),
                                                                  .gamma = gamma,
                                                                  .n_draft = 1,
                                                                  .draft = { { .kind = ENG_DRAFT_NONE } } },
                                            n_block);
    worst = (struct worst){ .engine = e, .base = { .kind = &worst_kind, .drafting = e->drafting }, .right = right };
    e->drafting->drafter[e->drafting->n_drafter++] = &worst.base;
    return e;
}

#endif
