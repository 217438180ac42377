/* KV blocks: whatever is shared, copied, kept and taken back, a text finds at each of its positions what
 * was computed for exactly this text up to there.
 *
 * The memory is simulated: a slot holds a number that stands for its text, written when the position is
 * computed.  Texts are of few letters and branch off each other, so that blocks are shared, found in part
 * and evicted all the time.
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

/* Users add up, free ones too, the tree holds together, and nobody writes what is kept. */
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

/* A beginning of another text, or none, and then letters of its own. */
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

static struct { int found, copied, refused, evicted; } seen;

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
        memmove(memory + t->path.slot[t->n_kv], memory + like * ENG_KV_BLOCK,
                (size_t)n_same * sizeof *memory);
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
    for (int i = t->n_kv; i < t->n_kv + n; i++)
        memory[t->path.slot[i]] = value_of(t, i);
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
        }
        if (i % 8 == 0)
            check_blocks(&kv);
    }
    if (seen.found < 500 || seen.copied < 500 || seen.refused < 50 || seen.evicted < 500)
        fail_msg("%d found, %d copied, %d refused, %d evicted", seen.found, seen.copied, seen.refused,
                 seen.evicted);
    for (int i = 0; i < N_TEXT; i++)
        if (text[i].open)
            eng_kv_leave(&kv, &text[i].path, text[i].token, text[i].n_kv);
    assert_int_equal(kv.n_free, N_BLOCK);
    eng_kv_close(&kv);
}

/* A text of n letters, each its place, computed and left. */
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
    static const struct { int left, asked, found; } tries[] = {
        { 1, 1, 1 }, { 1, 200, 1 }, { 63, 64, 63 }, { 64, 64, 64 }, { 64, 63, 63 }, { 65, 64, 64 },
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

/* The text unused longest goes first, its end before its beginning. */
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
    assert_int_equal(find_text(&kv, 1, LONGEST), 2 * ENG_KV_BLOCK);     /* and is the newer one now */
    assert_int_equal(eng_kv_reserve(&kv, &path, 3 * ENG_KV_BLOCK), 0);
    assert_int_equal(find_text(&kv, 1, LONGEST), 2 * ENG_KV_BLOCK);
    assert_int_equal(find_text(&kv, 2, LONGEST), ENG_KV_BLOCK);
    eng_kv_close(&kv);
}

/* Two texts whose keys meet are still two. */
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

/* ---- pace ------------------------------------------------------------------------------------------- */

/* What a pass costs: n_due rows alone, and what a prompt's rows add. */
static double pass_ns(int n_due, int n, double row_ns, double once_ns)
{
    return 1e6 * (n_due ? 1 + 0.02 * n_due : 0) + row_ns * n + (n ? once_ns : 0);
}

static int settled(double stretch, int n_due, int most, double row_ns, double once_ns)
{
    struct eng_pace p;
    int n = 0;
    eng_pace_init(&p, stretch);
    eng_pace_learn(&p, n_due, 0, pass_ns(n_due, 0, 0, 0));
    eng_pace_learn(&p, n_due + 1, 0, pass_ns(n_due + 1, 0, 0, 0));
    for (int i = 0; i < 200; i++) {
        int now = eng_pace_rows(&p, n_due, 1, most);
        assert_in_range(now, 0, most);
        eng_pace_learn(&p, n_due, now, pass_ns(n_due, now, row_ns, once_ns));
        n = now ? now : n;                      /* 0: it looks */
        if (i % 10 == 0)                        /* now and then nobody waits, and a whole chunk is read */
            eng_pace_learn(&p, 0, most, pass_ns(0, most, row_ns, once_ns));
    }
    return n;
}

static void prompts_stretch_a_pass_so_far(void **state)
{
    (void)state;
    struct eng_pace fresh;
    eng_pace_init(&fresh, 2);
    assert_int_equal(eng_pace_rows(&fresh, 0, 1, 512), 512);       /* nobody waits */
    assert_int_equal(eng_pace_rows(&fresh, 3, 1, 512), 0);         /* nothing is known: it looks, */
    eng_pace_learn(&fresh, 3, 0, 1e6);
    assert_int_equal(eng_pace_rows(&fresh, 3, 1, 512), 4);         /* and makes nobody wait */
    assert_int_equal(eng_pace_rows(&fresh, 3, 1, 3), 3);
    assert_int_equal(eng_pace_rows(&fresh, 3, 1, 0), 0);
    for (int n_due = 2; n_due <= 64; n_due *= 4) {              /* a row is a row */
        double base = pass_ns(n_due, 0, 0, 0), then = pass_ns(n_due + 1, 0, 0, 0), row = 20000;
        int n = settled(1.8, n_due, 512, row, 0);
        assert_true(base + n * row <= 1.81 * then && base + n * row >= 1.4 * then);
    }
    assert_int_equal(settled(1.8, 4, 512, 1e7, 0), 4);          /* dear, each alike: no more than the least */
    struct eng_pace always;                                     /* who never stops to read, too */
    eng_pace_init(&always, 1.6);
    eng_pace_learn(&always, 1, 0, 0.4e6);
    for (int i = 0; i < 200; i++)
        eng_pace_learn(&always, 8, eng_pace_rows(&always, 8, 24, 512),
                       pass_ns(8, eng_pace_rows(&always, 8, 24, 512), 60000, 0));
    assert_in_range(eng_pace_rows(&always, 8, 24, 512) * 60000, 2 * pass_ns(8, 0, 0, 0), 4.5 * pass_ns(8, 0, 0, 0));
    struct eng_pace crowd;                                      /* who read have a claim as those who are answered */
    eng_pace_init(&crowd, 1.6);
    for (int i = 0; i < 200; i++) {
        int n = i % 2 ? eng_pace_rows(&crowd, 8, 24, 512) : 0;
        eng_pace_learn(&crowd, 8, n, pass_ns(8, n, 20000, 0));
    }
    assert_in_range(eng_pace_rows(&crowd, 8, 24, 512) * 20000, 2.5 * pass_ns(8, 0, 0, 0), 3.1 * pass_ns(8, 0, 0, 0));
    assert_true(settled(1.8, 4, 512, 1e5, 1e8) >= 256);         /* the first costs nearly what all cost */
}

/* Prompts of all lengths: each is a size of its own, and all of them together make people wait as seldom as one. */
static void what_is_long_is_tried_seldom(void **state)
{
    (void)state;
    struct eng_pace p;
    uint64_t random = 8;
    int n_large = 0;
    eng_pace_init(&p, 1.6);
    for (int i = 0; i < 4096; i++) {
        int most = 16 << kn_mix(random += KN_GOLDEN) % 6, n = eng_pace_rows(&p, 4, 2, most);
        eng_pace_learn(&p, 4, n, pass_ns(4, n, 1e5, 0));
        n_large += i >= 2048 && n >= 16;
    }
    assert_in_range(n_large, 1, 5);
}

/* Users who ask again at once, a part of them much, on a machine whose passes take what cost() says. */
struct crowd { int left[32], told[32]; };       /* rows of the prompt, tokens of the answer that are to come */
struct waits { double p99, most, row_ns; };     /* over the median time between tokens; what a prompt's row took */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct waits live(int n_user, bool never_alone, double (*cost)(int n_due, int n))
{
    enum { N_PASS = 4096 };
    static double gap[32 * N_PASS];
    struct crowd c = { .told = { never_alone ? N_PASS : 0 } };      /* the first is answered for ever */
    struct eng_pace p;
    uint64_t random = 9;
    int n_gap = 0, n_read = 0, n_answered = 0;
    double reads_ns = 0;
    eng_pace_init(&p, 1.5);
    for (int pass = 0; pass < N_PASS; pass++) {
        int n_due = 0, most = 0;
        for (int i = 0; i < n_user; i++) {
            if (!c.told[i] && !c.left[i]) {
                c.left[i] = kn_mix(random += KN_GOLDEN) % 100 < 15 ? 1500 : 96;
                c.told[i] = 1 + (int)(kn_mix(random += KN_GOLDEN) % 128);      /* nobody is in step with another */
            }
            n_due += !c.left[i];
            most += c.left[i];
        }
        most = kn_min(most, 512 - n_due);
        int n = eng_pace_rows(&p, n_due, n_user - n_due, most), rest = n;
        double ns = cost(n_due, n);
        for (int i = 0; i < n_user; i++) {
            int reads = kn_min(rest, c.left[i]);
            if (!c.left[i]) {
                c.told[i]--;
                gap[n_gap++] = ns;
            }
            c.left[i] -= reads;
            rest -= reads;
        }
        eng_pace_learn(&p, n_due, n, ns);
        n_read += n;
        n_answered += n_due;
        reads_ns += ns - cost(n_due, 0);
    }
    assert_true(n_answered > 0 && n_read > 0);
    qsort(gap, (size_t)n_gap, sizeof *gap, by_size);
    return (struct waits){ gap[n_gap - n_gap / 100 - 1] / gap[n_gap / 2], gap[n_gap - 1] / gap[n_gap / 2],
                           reads_ns / n_read };
}

/* A model in memory: rows get cheaper in crowds, a little. */
static double in_memory(int n_due, int n)
{
    return 1.7e5 + 1.2e5 * n_due + n * (5.2e4 + 8e4 * 8 / (n + 8));
}

/* And one from a disk: each row has its own 8 of 128 experts, of which a quarter is at hand. */
static double from_disk(int n_due, int n)
{
    double others = 1;
    for (int i = 0; i < n_due + n; i++)
        others *= 1 - 8 / 128.0;
    return 1e6 * (n_due + n) + 96 * 1e6 * (1 - others);
}

/* Nobody waits for a pass full of prompts to learn that its rows are as dear as any; and where they are not, it is
 * found out though somebody always waits. */
static void who_waits_for_what_is_learnt(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        int n_user = 4 << i / 2;
        struct waits w = live(n_user, i % 2, in_memory);
        assert_true(w.p99 < 2);
        assert_true(w.most < (i % 2 ? 6 : 4));      /* what nobody shows alone takes a step more */
        w = live(n_user, i % 2, from_disk);
        assert_true(w.row_ns < 1.5 * (from_disk(n_user, 256) - from_disk(n_user, 0)) / 256);
    }
}

/* Whatever else the machine does, and from the first pass on, of a hundred passes at most one makes those who
 * are answered wait twice as long for a prompt. */
static void other_work_is_not_taken_for_a_prompts(void **state)
{
    (void)state;
    uint64_t random = 5;
    for (int n_due = 2; n_due <= 64; n_due *= 4) {
        struct eng_pace p;
        int sum = 0, n_long = 0;
        eng_pace_init(&p, 1.6);
        for (int i = 0; i < 2000; i++) {
            bool reads = i % 50 >= 20;
            int due = n_due + !reads;           /* who has read is answered, too */
            int n = reads ? eng_pace_rows(&p, due, 1, 512) : 0;
            double base = pass_ns(n_due, 0, 0, 0), mine = pass_ns(due, n, 20000, 0);
            double longer = (kn_mix(random += KN_GOLDEN) % 1000) * 2e-4 * base;         /* a fifth at most, and */
            longer += kn_mix(random += KN_GOLDEN) % 20 == 0 ? 50 * base : 0;            /* now and then far more */
            n_long += mine > 2 * base;
            eng_pace_learn(&p, due, n, mine + longer);
            sum += n;
        }
        assert_in_range(n_long, 0, 12);
        assert_true(sum / 1200.0 * 20000 >= 0.3 * pass_ns(n_due, 0, 0, 0));     /* and reads all the same */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_text_finds_its_own),
        cmocka_unit_test(what_is_found),
        cmocka_unit_test(who_is_evicted),
        cmocka_unit_test(keys_only_find),
        cmocka_unit_test(without_memory_it_says_so),
        cmocka_unit_test(prompts_stretch_a_pass_so_far),
        cmocka_unit_test(what_is_long_is_tried_seldom),
        cmocka_unit_test(who_waits_for_what_is_learnt),
        cmocka_unit_test(other_work_is_not_taken_for_a_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
