/* Draft trees: their contents after building, merging and pruning, against plain sets of paths.
 *
 * One thread: not under MODE=tsan. */
#include "tests/speculative/model.h"

enum { MOST_PATHS = 2 * SPEC_NODES };

/* The hash of each node's path, token by token from the root. */
static void paths_of(const struct spec_tree *t, uint64_t *path)
{
    for (int i = 0; i < t->n; i++) {
        assert_in_range(t->parent[i] + 1, 0, i);
        path[i] = text_hash(t->parent[i] < 0 ? 0 : path[t->parent[i]], &t->token[i], 1);
        assert_int_equal(t->depth[i], t->parent[i] < 0 ? 1 : t->depth[t->parent[i]] + 1);
    }
}

static int find(const uint64_t *path, int n, uint64_t what)
{
    for (int i = 0; i < n; i++)
        if (path[i] == what)
            return i;
    return -1;
}

static void random_tree(struct spec_tree *t, int n, const struct spec_dist *q, uint8_t source)
{
    spec_tree_clear(t);
    for (int i = 0; i < n; i++) {
        int parent = random_below(t->n + 1) - 1;
        if (random_below(2))
            spec_tree_add(t, parent, random_below(3), (float)random_unit(), source);
        else
            spec_tree_draw(t, parent, random_below(3), q, (float)random_unit(), source);
    }
}

static int n_draws(const struct spec_tree *t, int node, const struct spec_dist *q)
{
    int n = 0;
    for (int i = 0; i < t->n_draw; i++)
        n += t->draw[i].node == node && t->draw[i].q == q;
    return n;
}

/* Adds the nodes of one drafter's tree to another drafter's tree. */
static void add_all(struct spec_tree *t, const struct spec_tree *other)
{
    for (int i = 0, at[SPEC_NODES]; i < other->n; i++) {
        int parent = other->parent[i] == SPEC_ROOT ? SPEC_ROOT : at[other->parent[i]];
        at[i] = spec_tree_add(t, parent, other->token[i], other->survival[i], other->source[i]);
        for (int k = 0; k < other->n_draw; k++)
            if (other->draw[k].node == i)
                spec_tree_draw(t, parent, other->token[i], other->draw[k].q, 0, 0);
    }
}

/* A path is in the merged tree exactly when it is in one of the two, with the draws of both and the larger survival. */
static void several_make_the_union(void **state)
{
    (void)state;
    static const struct spec_dist q[2];
    random_state = 31;
    for (int trial = 0; trial < 3000; trial++) {
        struct spec_tree part[2], whole;
        uint64_t path[2][SPEC_NODES], all[SPEC_NODES];
        int n_own = 0;
        for (int k = 0; k < 2; k++) {
            random_tree(&part[k], random_below(20), &q[k], (uint8_t)(1 << k));
            paths_of(&part[k], path[k]);
        }
        whole = part[0];
        add_all(&whole, &part[1]);
        paths_of(&whole, all);
        for (int i = 0; i < whole.n; i++) {
            int at[2] = { find(path[0], part[0].n, all[i]), find(path[1], part[1].n, all[i]) };
            float survival = 0;
            assert_int_equal(find(all, i, all[i]), -1);
            assert_true(at[0] >= 0 || at[1] >= 0);
            assert_int_equal(whole.source[i], (at[0] >= 0) + 2 * (at[1] >= 0));
            for (int k = 0; k < 2; k++) {
                assert_int_equal(n_draws(&whole, i, &q[k]), at[k] < 0 ? 0 : n_draws(&part[k], at[k], &q[k]));
                if (at[k] >= 0 && part[k].survival[at[k]] > survival)
                    survival = part[k].survival[at[k]];
                n_own += at[k] >= 0;
            }
            assert_true(whole.survival[i] == survival);
        }
        assert_int_equal(n_own, part[0].n + part[1].n);
        assert_false(whole.depends_on_draws);
    }
}

static void prune_keeps_what_hangs_together(void **state)
{
    (void)state;
    static const struct spec_dist q;
    random_state = 32;
    for (int trial = 0; trial < 3000; trial++) {
        struct spec_tree before, after;
        uint64_t path[SPEC_NODES], left[SPEC_NODES];
        bool which[SPEC_NODES], stays[SPEC_NODES];
        int n = 0;
        random_tree(&before, random_below(40), &q, 1);
        for (int i = 0; i < before.n; i++)
            before.source[i] = (uint8_t)random_below(256);
        paths_of(&before, path);
        for (int i = 0; i < before.n; i++) {
            which[i] = random_below(5) > 0;
            stays[i] = which[i] && (before.parent[i] < 0 || stays[before.parent[i]]);
        }
        after = before;
        spec_tree_prune(&after, which, trial & 1);
        paths_of(&after, left);
        for (int i = 0; i < before.n; i++) {
            int at = find(left, after.n, path[i]);
            assert_int_equal(at >= 0, stays[i]);
            if (at >= 0) {
                assert_int_equal(n_draws(&after, at, &q), n_draws(&before, i, &q));
                assert_true(after.survival[at] == before.survival[i]);
                assert_int_equal(after.source[at], before.source[i]);
                n++;
            }
        }
        assert_int_equal(after.n, n);
        assert_int_equal(after.depends_on_draws, !(trial & 1) && before.n_draw > 0);
    }
}

static void full(void **state)
{
    (void)state;
    static const struct spec_dist q;
    struct spec_tree t, same;
    spec_tree_clear(&t);
    for (int i = 0; i < SPEC_NODES; i++)
        assert_int_equal(spec_tree_add(&t, SPEC_ROOT, i, 1, 1), i);
    assert_int_equal(spec_tree_add(&t, SPEC_ROOT, SPEC_NODES, 1, 1), -1);
    assert_int_equal(spec_tree_add(&t, SPEC_ROOT, 7, 1, 1), 7);
    assert_false(t.depends_on_draws);
    assert_int_equal(spec_tree_draw(&t, SPEC_ROOT, -5, &q, 1, 1), -1);
    assert_true(t.depends_on_draws);
    assert_int_equal(t.n, SPEC_NODES);

    spec_tree_clear(&same); /* fits only because the draws were the same: marked */
    for (int i = 0; i <= SPEC_NODES; i++) {
        assert_false(same.depends_on_draws);
        spec_tree_draw(&same, SPEC_ROOT, 1, &q, 1, 1);
    }
    assert_true(same.depends_on_draws);
    assert_int_equal(same.n_draw, SPEC_NODES);
    spec_tree_clear(&same);
    assert_false(same.depends_on_draws);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_make_the_union),
        cmocka_unit_test(prune_keeps_what_hangs_together),
        cmocka_unit_test(full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
