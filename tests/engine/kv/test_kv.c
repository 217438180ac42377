/* KV blocks (engine/kv). While blocks are shared, copied, kept and evicted, a text finds at each position the data
 * computed for exactly this text up to there. Also: the order of eviction, and hash collisions.
 *
 * The memory is simulated: a slot holds a number that stands for its prefix, written when the position is computed.
 * Texts have few letters and branch off each other, so that blocks are shared, found in part and evicted all the time.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/kv/kv.h"
#include "tests/faults.h"

#define N_BLOCK 23
#define N_TEXT  7
#define LONGEST (6 * ENG_KV_BLOCK)

static const uint64_t secret[2] = { 11, 13 };
static uint64_t memory[N_BLOCK * ENG_KV_BLOCK];
static bool featured[N_BLOCK * ENG_KV_BLOCK]; /* the slot's row has stored a feature */
static uint64_t random_state;

static int below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

static struct text {
    int32_t token[LONGEST];
    int32_t slot[LONGEST];
    struct eng_path path;
    int n, n_kv;
    bool open;
} text[N_TEXT];

static uint64_t value_of(const struct text *t, int position)
{
    uint64_t h = t->path.salt + 1;
    for (int i = 0; i <= position; i++)
        h = kn_mix(h + KN_GOLDEN * (uint64_t)(t->token[i] + 1));
    return h;
}

static struct {
    int found, copied, refused, evicted, part;
} seen;

/* From the position that is told on, all have a feature. */
static void check_features(const struct eng_kv *kv, const struct text *t)
{
    int first = eng_kv_first_feature(kv, &t->path, t->n_kv);
    for (int i = first; i < t->n_kv; i++)
        assert_true(featured[t->path.slot[i]]);
    seen.part += first > 0 && first < t->n_kv;
}

static void check_text(const struct text *t)
{
    uint64_t h = t->path.salt + 1;
    for (int i = 0; i < t->n_kv; i++) {
        h = kn_mix(h + KN_GOLDEN * (uint64_t)(t->token[i] + 1));
        if (memory[t->path.slot[i]] != h)
            fail_msg("position %d of %d is another text's", i, t->n_kv);
        assert_int_equal(t->path.slot[i] % ENG_KV_BLOCK, i % ENG_KV_BLOCK);
    }
}

/* Reference counts add up, free blocks too; the prefix tree is consistent; cached blocks are not written. */
static void check_blocks(const struct eng_kv *kv)
{
    int n_user[N_BLOCK] = { 0 }, n_kept_unused = 0, n_unused = 0;
    for (int i = 0; i < N_TEXT; i++)
        for (int at = 0; text[i].open && at < text[i].path.n_slot; at += ENG_KV_BLOCK) {
            int id = text[i].path.slot[at] / ENG_KV_BLOCK;
            n_user[id]++;
            assert_int_equal(kv->block[id].n_token == ENG_KV_BLOCK, at < text[i].path.n_kept);
        }
    for (int id = 0; id < N_BLOCK; id++) {
        const struct eng_block *b = &kv->block[id];
        if (!n_user[id] && !b->n_token) {
            n_unused++;
            continue;
        }
        assert_int_equal(b->n_user, n_user[id]);
        assert_true(b->n_token || n_user[id] == 1);
        n_kept_unused += n_user[id] == 0;
        if (b->n_token && b->parent >= 0) {
            assert_int_equal(kv->block[b->parent].n_token, ENG_KV_BLOCK);
            assert_true(kv->block[b->parent].n_user >= b->n_user);
        }
    }
    assert_int_equal(kv->n_unused, n_unused);
    assert_int_equal(kv->n_free, n_unused + n_kept_unused);
    int n_listed = 0;
    for (int32_t id = kv->oldest; id >= 0; id = kv->block[id].newer)
        n_listed++;
    assert_int_equal(n_listed, n_kept_unused);
}

/* Starts with a prefix of another text, or empty, and adds random letters. */
static void begin(struct text *t)
{
    const struct text *like = &text[below(N_TEXT)];
    int n_same = like->n ? below(like->n + 1) : 0;
    int32_t *slot = t->slot;
    memmove(t->token, like->token, (size_t)n_same * sizeof *t->token);
    t->n = kn_max(n_same, 1 + below(LONGEST));
    for (int i = n_same; i < t->n; i++)
        t->token[i] = below(2);
    t->n_kv = 0;
    t->path = (struct eng_path){ .slot = slot, .salt = (uint64_t)(below(8) == 0) };
    t->open = true;
}

static void look_up(struct eng_kv *kv, struct text *t)
{
    int32_t like;
    if (t->path.n_slot != t->path.n_kept)
        return;
    int before = t->n_kv;
    t->n_kv = eng_kv_find(kv, &t->path, t->token, t->n);
    seen.found += t->n_kv > before;
    int n_same = eng_kv_pin_like(kv, &t->path, t->token, t->n, &like);
    if (!n_same)
        return;
    if (!eng_kv_reserve(kv, &t->path, t->n_kv + n_same)) {
        memmove(memory + t->path.slot[t->n_kv], memory + like * ENG_KV_BLOCK, (size_t)n_same * sizeof *memory);
        memmove(featured + t->path.slot[t->n_kv], featured + like * ENG_KV_BLOCK, (size_t)n_same * sizeof *featured);
        eng_kv_note_copy(kv, like, t->path.slot[t->n_kv], n_same);
        t->n_kv += n_same;
        seen.copied++;
    }
    eng_kv_unpin(kv, like);
}

static void compute(struct eng_kv *kv, struct text *t)
{
    int n = kn_min(t->n - t->n_kv, 1 + below(100)), unused = kv->n_unused, free_ones = kv->n_free;
    int need = kn_ceil_div(t->n_kv + n, ENG_KV_BLOCK) - t->path.n_slot / ENG_KV_BLOCK;
    int got = eng_kv_reserve(kv, &t->path, t->n_kv + n);
    assert_int_equal(got, need > free_ones ? KN_ELIMIT : 0);
    seen.refused += got != 0;
    seen.evicted += need > unused && !got;
    if (got)
        return;
    int n_gap = below(3) ? 0 : below(n + 1);
    eng_kv_mark_gap(kv, &t->path, t->n_kv, t->n_kv + n_gap);
    for (int i = t->n_kv; i < t->n_kv + n; i++) {
        memory[t->path.slot[i]] = value_of(t, i);
        featured[t->path.slot[i]] = i >= t->n_kv + n_gap;
    }
    t->n_kv += n;
    eng_kv_keep(kv, &t->path, t->token, t->n_kv);
    assert_int_equal(t->path.n_kept, t->n_kv / ENG_KV_BLOCK * ENG_KV_BLOCK);
}

static void every_text_finds_its_own(void **state)
{
    (void)state;
    struct eng_kv kv;
    random_state = 3;
    memset(text, 0, sizeof text);
    memset(&seen, 0, sizeof seen);
    assert_int_equal(eng_kv_open(&kv, N_BLOCK, secret), 0);
    for (int i = 0; i < 20000; i++) {
        struct text *t = &text[below(N_TEXT)];
        if (!t->open) {
            begin(t);
        } else if (below(12) == 0 || t->n_kv == t->n) {
            eng_kv_leave(&kv, &t->path, t->token, t->n_kv);
            assert_int_equal(t->path.n_slot, 0);
            t->open = false;
        } else {
            look_up(&kv, t);
            if (t->n_kv < t->n)
                compute(&kv, t);
            check_text(t);
            check_features(&kv, t);
        }
        if (i % 8 == 0)
            check_blocks(&kv);
    }
    if (seen.found < 500 || seen.copied < 500 || seen.refused < 50 || seen.evicted < 500 || seen.part < 500)
        fail_msg("%d found, %d copied, %d refused, %d evicted, %d with features of a part", seen.found, seen.copied,
                 seen.refused, seen.evicted, seen.part);
    for (int i = 0; i < N_TEXT; i++)
        if (text[i].open)
            eng_kv_leave(&kv, &text[i].path, text[i].token, text[i].n_kv);
    assert_int_equal(kv.n_free, N_BLOCK);
    eng_kv_close(&kv);
}

/* Computes and leaves a text of n letters, letter i being i. */
static void leave_text(struct eng_kv *kv, uint64_t salt, int n)
{
    static int32_t slot[LONGEST], token[LONGEST];
    struct eng_path path = { .slot = slot, .salt = salt };
    for (int i = 0; i < n; i++)
        token[i] = i;
    assert_int_equal(eng_kv_reserve(kv, &path, n), 0);
    eng_kv_leave(kv, &path, token, n);
}

static int find_text(struct eng_kv *kv, uint64_t salt, int n)
{
    static int32_t slot[LONGEST], token[LONGEST];
    struct eng_path path = { .slot = slot, .salt = salt };
    int32_t like;
    for (int i = 0; i < n; i++)
        token[i] = i;
    int found = eng_kv_find(kv, &path, token, n);
    int same = eng_kv_pin_like(kv, &path, token, n, &like);
    if (same)
        eng_kv_unpin(kv, like);
    eng_kv_leave(kv, &path, token, found);
    return found + same;
}

static void what_is_found(void **state)
{
    (void)state;
    static const struct {
        int left, asked, found;
    } tries[] = {
        { 1, 1, 1 },    { 1, 200, 1 },   { 63, 64, 63 },    { 64, 64, 64 },    { 64, 63, 63 },  { 65, 64, 64 },
        { 65, 65, 65 }, { 65, 200, 65 }, { 200, 100, 100 }, { 200, 200, 200 }, { 200, 10, 10 },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct eng_kv kv;
        assert_int_equal(eng_kv_open(&kv, N_BLOCK, secret), 0);
        leave_text(&kv, 5, tries[i].left);
        if (find_text(&kv, 5, tries[i].asked) != tries[i].found || find_text(&kv, 6, tries[i].asked) != 0)
            fail_msg("try %zu: %d and %d found", i, find_text(&kv, 5, tries[i].asked),
                     find_text(&kv, 6, tries[i].asked));
        eng_kv_close(&kv);
    }
}

/* Features count from behind the last row without one, in whichever block it is. */
static void where_features_begin(void **state)
{
    (void)state;
    struct eng_kv kv;
    static int32_t slot[LONGEST];
    struct eng_path path = { .slot = slot };
    assert_int_equal(eng_kv_open(&kv, 6, secret), 0);
    assert_int_equal(eng_kv_first_feature(&kv, &path, 0), 0);
    assert_int_equal(eng_kv_reserve(&kv, &path, 3 * ENG_KV_BLOCK), 0);
    assert_int_equal(eng_kv_first_feature(&kv, &path, 3 * ENG_KV_BLOCK), 0);
    for (int at = 0; at < 3 * ENG_KV_BLOCK; at += 9) {
        eng_kv_mark_gap(&kv, &path, kn_max(0, at - 5), at);
        assert_int_equal(eng_kv_first_feature(&kv, &path, 3 * ENG_KV_BLOCK), at);
        assert_int_equal(eng_kv_first_feature(&kv, &path, at + 1), at);
        assert_true(eng_kv_first_feature(&kv, &path, at) >= at);
    }
    eng_kv_leave(&kv, &path, slot, 0);
    assert_int_equal(eng_kv_reserve(&kv, &path, 6 * ENG_KV_BLOCK), 0); /* a block that is taken again has no gap */
    assert_int_equal(eng_kv_first_feature(&kv, &path, 6 * ENG_KV_BLOCK), 0);
    eng_kv_close(&kv);
}

/* The least recently used text is evicted first, its end before its beginning. */
static void who_is_evicted(void **state)
{
    (void)state;
    struct eng_kv kv;
    static int32_t slot[LONGEST];
    struct eng_path path = { .slot = slot };
    assert_int_equal(eng_kv_open(&kv, 6, secret), 0);
    leave_text(&kv, 1, 3 * ENG_KV_BLOCK);
    leave_text(&kv, 2, 3 * ENG_KV_BLOCK);
    assert_int_equal(eng_kv_reserve(&kv, &path, ENG_KV_BLOCK), 0);
    assert_int_equal(find_text(&kv, 1, LONGEST), 2 * ENG_KV_BLOCK); /* this makes it the most recently used */
    assert_int_equal(eng_kv_reserve(&kv, &path, 3 * ENG_KV_BLOCK), 0);
    assert_int_equal(find_text(&kv, 1, LONGEST), 2 * ENG_KV_BLOCK);
    assert_int_equal(find_text(&kv, 2, LONGEST), ENG_KV_BLOCK);
    eng_kv_close(&kv);
}

/* Two texts with the same hash stay distinct. */
static void keys_only_find(void **state)
{
    (void)state;
    struct eng_kv kv;
    int32_t token[ENG_KV_BLOCK] = { 1 };
    assert_int_equal(eng_kv_open(&kv, 4, secret), 0);
    leave_text(&kv, 1, ENG_KV_BLOCK);
    struct eng_block *b = &kv.block[kv.oldest];
    for (int i = 0; i < ENG_KV_BLOCK; i++)
        token[i] = i;
    assert_true(eng_prefix_find(&kv, -1, 1, token) >= 0);
    b->token[17]++;
    assert_int_equal(eng_prefix_find(&kv, -1, 1, token), -1);
    b->token[17]--;
    b->salt++;
    assert_int_equal(eng_prefix_find(&kv, -1, 1, token), -1);
    b->salt--;
    b->parent = 2;
    assert_int_equal(eng_prefix_find(&kv, -1, 1, token), -1);
    b->parent = -1;
    b->key[1]++;
    assert_int_equal(eng_prefix_find(&kv, -1, 1, token), -1);
    eng_kv_close(&kv);
}

static void without_memory_it_says_so(void **state)
{
    (void)state;
    struct eng_kv kv;
    for (int n = 1; n <= 3; n++) {
        faults_at(FAULT_ALLOC, n, FAULT_ERROR, ENOMEM);
        assert_int_equal(eng_kv_open(&kv, 4, secret), KN_ENOMEM);
        assert_int_equal(faults.n_line, 1);
        assert_true(faults_clean());
    }
    faults_off();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_text_finds_its_own), cmocka_unit_test(what_is_found),
        cmocka_unit_test(where_features_begin),     cmocka_unit_test(who_is_evicted),
        cmocka_unit_test(keys_only_find),           cmocka_unit_test(without_memory_it_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
