/* The expert cache keeps its experts when passes use more experts than there are slots: reads of a pass stay near
 * the experts that have no slot.
 *
 * Its threads are those of test_store.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/store.h"
#include "tests/offload/experts.h"

enum { N_LAYER = 6, PER_LAYER = 128 };

/* Layers of experts of one size: a matrix of one row each. */
static struct model *open_layers(void)
{
    struct model *m = calloc(1, sizeof *m);
    for (int e = 0; e < N_LAYER * PER_LAYER; e++) {
        add_matrix(m, e, 0, KN_Q8_0, 1, 256);
        m->expert[e].group = e / PER_LAYER;
    }
    m->n_expert = N_LAYER * PER_LAYER;
    m->per_layer = PER_LAYER;
    save_model(m);
    return m;
}

/* A store with slots for n experts, all filled. */
static struct off_store *open_filled(const struct model *m, int n)
{
    struct off_store *s;
    struct off_stats stats;
    size_t bytes = all(m) / (size_t)m->n_expert * (size_t)n;
    assert_int_equal(open_store(&s, m, bytes), 0);
    wait_until_filled(s);
    off_stats_get(s, &stats);
    assert_int_equal(stats.n_slot, n);
    return s;
}

typedef void chooser(struct asker *a, int layer, int pass);

/* One pass as moe/pass makes it: each layer fetches the experts of choose() and requests those of the next layer. */
static void run_pass(struct asker *a, chooser *choose, int pass, bool prefetches)
{
    static int32_t next[2][PER_LAYER];
    static uint8_t mark[2][PER_LAYER];
    struct off_ticket ticket[2] = { { 0 } }; /* prefetches for the next layer: the store keeps their addresses */
    for (int layer = 0; layer < N_LAYER; layer++) {
        struct off_ticket now, *soon = &ticket[(layer + 1) % 2], *then = &ticket[layer % 2];
        int got, n_next = 0;
        if (prefetches && layer + 1 < N_LAYER) {
            choose(a, layer + 1, pass);
            n_next = a->n;
            memcpy(next[layer % 2], a->expert, (size_t)n_next * sizeof *a->expert);
        }
        choose(a, layer, pass);
        off_fetch(a->s, a->expert, a->mark, a->n, OFF_NOW, &now);
        if (soon->n)
            off_release(a->s, soon);
        if (n_next)
            off_fetch(a->s, next[layer % 2], mark[layer % 2], n_next, OFF_SOON, then);
        while ((got = off_wait(a->s, &now, &a->hands, a->index, a->view, a->status)) > 0)
            for (int i = 0; i < got; i++)
                a->n_wrong += a->status[i] || !is_expert(a->m, a->expert[a->index[i]], &a->view[i]);
        off_release(a->s, &now);
    }
    assert_int_equal(a->n_wrong, 0);
}

static uint64_t reads(struct asker *a)
{
    struct off_stats stats;
    off_stats_get(a->s, &stats);
    return stats.reads;
}

/* Experts read by a pass, on average after a few passes. */
static double reads_of(struct asker *a, chooser *choose, bool prefetches)
{
    enum { WARM = 6, PASSES = 12 };
    uint64_t before = 0;
    for (int pass = 0; pass < WARM + PASSES; pass++) {
        if (pass == WARM)
            before = reads(a);
        run_pass(a, choose, pass, prefetches);
    }
    return (double)(reads(a) - before) / PASSES;
}

static void choose_all(struct asker *a, int layer, int pass)
{
    (void)pass;
    for (a->n = 0; a->n < PER_LAYER; a->n++)
        a->expert[a->n] = layer * PER_LAYER + a->n;
}

/* All but some 8 experts of each layer, others in each pass. */
static void choose_most(struct asker *a, int layer, int pass)
{
    a->n = 0;
    for (int i = 0; i < PER_LAYER; i++)
        if (kn_mix((uint64_t)(pass * 1000 + layer) * PER_LAYER + (uint64_t)i) % 16)
            a->expert[a->n++] = layer * PER_LAYER + i;
}

/* The experts that eight rows choose, 8 each: expert r of a layer's own order has weight 1 / (r + 4). */
static void choose_skewed(struct asker *a, int layer, int pass)
{
    bool used[PER_LAYER] = { false };
    double sum = 0;
    for (int r = 0; r < PER_LAYER; r++)
        sum += 1.0 / (r + 4);
    for (int i = 0; i < 8 * 8; i++) {
        double u = (double)(kn_mix((uint64_t)(pass * 1000 + layer) * 4096 + (uint64_t)i) >> 11) * 0x1p-53 * sum;
        int r = 0;
        while (r < PER_LAYER - 1 && (u -= 1.0 / (r + 4)) > 0)
            r++;
        used[(r * 37 + layer * 11) % PER_LAYER] = true;
    }
    a->n = 0;
    for (int e = 0; e < PER_LAYER; e++)
        if (used[e])
            a->expert[a->n++] = layer * PER_LAYER + e;
}

/* A pass reads the experts that have no slot, and 5 % more at most. */
static void experts_in_slots_stay(void **state)
{
    (void)state;
    static const int percent[] = { 10, 25, 50, 75 };
    static const struct {
        chooser *choose;
        double share; /* of all experts, used by a pass */
    } kind[] = { { choose_all, 1 }, { choose_most, 15.0 / 16 } };
    struct model *m = open_layers();
    for (int i = 0; i < 4 * 2 * 2; i++) {
        int n_slot = m->n_expert * percent[i / 4] / 100, k = i / 2 % 2;
        struct off_store *s = open_filled(m, n_slot);
        struct asker *a = open_asker(s, m);
        double n = reads_of(a, kind[k].choose, i % 2), most = 1.05 * kind[k].share * (m->n_expert - n_slot);
        if (n > most)
            fail_msg("%d of %d experts have slots: %.1f reads a pass, at most %.1f expected", n_slot, m->n_expert, n,
                     most);
        close_asker(a);
        off_store_close(s);
    }
    close_model(m);
}

/* A prompt uses all experts once; the passes after it find those that were used often before it. */
static void a_prompt_leaves_the_cache(void **state)
{
    (void)state;
    struct model *m = open_layers();
    for (int prefetches = 0; prefetches < 2; prefetches++) {
        struct off_store *s = open_filled(m, m->n_expert / 2);
        struct asker *a = open_asker(s, m);
        uint64_t before = 0, after = 0, at;
        for (int pass = 0; pass < 120; pass++) {
            at = reads(a);
            run_pass(a, choose_skewed, pass, prefetches);
            before += pass >= 60 && pass % 6 == 5 ? reads(a) - at : 0;
            after += pass >= 60 && pass % 6 == 0 ? reads(a) - at : 0;
            if (pass % 6 == 5)
                run_pass(a, choose_all, pass, prefetches);
        }
        if (after * 100 > before * 115)
            fail_msg("passes before a prompt: %d reads; after: %d", (int)before, (int)after);
        close_asker(a);
        off_store_close(s);
    }
    close_model(m);
}

/* ---- experts that come back from a device ---------------------------------------------------------------- */

static bool is_there(struct off_store *s, int32_t expert)
{
    bool there;
    off_store_present(s, expert, 1, &there);
    return there;
}

/* The next expert from `from` on that is in memory, or with there false is not, of those with slots on the first node. */
static int32_t find(struct off_store *s, int32_t from, bool there)
{
    struct kn_machine machine;
    kn_machine_get(&machine);
    while (from % PER_LAYER % machine.n_node || is_there(s, from) != there)
        from++;
    return from;
}

static void write_expert(const struct model *m, int32_t expert, const struct off_view *view)
{
    const struct kn_mat *w = &view->matrix[0];
    memcpy((void *)(uintptr_t)w->data, m->want[expert][0], kn_mat_bytes(w->format, w->n_out, w->n_in));
}

static void fetch_one(struct asker *a, int32_t expert, struct off_ticket *t)
{
    a->n = 1;
    a->expert[0] = expert;
    off_fetch(a->s, a->expert, a->mark, 1, OFF_NOW, t);
}

static int wait_for_one(struct asker *a, struct off_ticket *t)
{
    assert_int_equal(off_wait(a->s, t, &a->hands, a->index, a->view, a->status), 1);
    return a->status[0];
}

/* An expert that comes back takes the slot of another without a read, unless a second ticket uses that slot.  A fetch of the
 * expert gets the bytes when they are complete, and reads them if they do not come. */
static void an_expert_comes_back(void **state)
{
    (void)state;
    struct model *m = open_layers();
    struct off_store *s = open_filled(m, m->n_expert / 2);
    struct asker *a = open_asker(s, m), *b = open_asker(s, m);
    struct off_ticket one, other;
    struct off_view view;
    int32_t left = find(s, 0, true), back = find(s, left, false), next = find(s, back + 1, false);
    fetch_one(a, left, &one);
    assert_int_equal(wait_for_one(a, &one), 0);
    fetch_one(b, left, &other);
    assert_false(off_store_bring_back(s, &one, left, back, &view)); /* b uses it */
    off_release(s, &other);
    assert_true(off_store_bring_back(s, &one, left, back, &view));
    assert_false(is_there(s, left));
    uint64_t before = reads(a);
    assert_false(off_store_bring_back(s, &one, -1, back, &view)); /* the store has the expert */
    assert_false(off_store_bring_back(s, &one, left, next, &view));
    fetch_one(b, back, &other);
    write_expert(m, back, &view);
    off_store_brought_back(s, back, true);
    assert_int_equal(wait_for_one(b, &other), 0);
    assert_true(is_expert(m, back, &b->view[0]));
    off_release(s, &other);
    off_release(s, &one);
    assert_int_equal(reads(a), before);

    assert_false(off_store_bring_back(s, &one, -1, next, &view)); /* all others are only there */
    off_store_elsewhere(s, back, true);
    assert_true(off_store_bring_back(s, &one, -1, next, &view));
    assert_true(!is_there(s, back) && is_there(s, next));
    fetch_one(b, next, &other);
    off_store_brought_back(s, next, false);
    assert_int_equal(wait_for_one(b, &other), 0);
    assert_true(is_expert(m, next, &b->view[0]));
    off_release(s, &other);
    assert_int_equal(reads(a), before + 1);

    off_store_elsewhere(s, next, true);
    assert_true(off_store_bring_back(s, &one, -1, back, &view));
    off_store_brought_back(s, back, false); /* no ticket waits for it */
    assert_false(is_there(s, back));
    ask(b, 0);
    assert_int_equal(b->n_wrong + b->n_failed, 0);
    assert_int_equal(reads(a), before + 2);
    close_asker(b);
    close_asker(a);
    off_store_close(s);
    close_model(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_in_slots_stay),
        cmocka_unit_test(a_prompt_leaves_the_cache),
        cmocka_unit_test(an_expert_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
