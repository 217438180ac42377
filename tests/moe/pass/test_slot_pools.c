/* Slots for experts of several sizes on a device: how many of each size a budget gives; experts that share only slots of their size,
 * moved at random between passes, in every order in which the emulated device can run its queues.  The logits are the host's.
 * Experts that both memories hold together are not read again.  A context that closes leaves no mark in the store.
 *
 * Linked with HOST_WRAPS.  One thread computes: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/emulated/host.h"
#include "tests/faults.h"
#include "tests/moe/load.h"
#include "tests/moe/one_sequence.h"
#include "tests/nodes.h"

#define N_VOCAB 400
#define N_LAYER 6
#define MOST    6 /* rows of a pass */
#define N_POS   64

/* ---- how many slots of each size ---------------------------------------------------------------------------------- */

#define UNIT      256
#define PER_LAYER 16

/* A model with experts of these sizes: n[i] experts of i + 1 units. */
struct sizes {
    struct moe_model model;
    struct moe_layer layer[30];
    uint8_t of[400];
};

static void make_sizes(struct sizes *s, const int *n, int n_size)
{
    *s = (struct sizes){ .model = { .desc = { .n_expert = PER_LAYER } } };
    s->model.resident_size_of = s->of;
    for (int i = 0; i < n_size; i++)
        off_sizes_add(&s->model.resident_sizes, (size_t)(i + 1) * UNIT);
    for (int i = 0; i < n_size; i++)
        for (int k = 0; k < n[i]; k++)
            s->of[s->model.shape.n_expert_total++] = (uint8_t)i;
    s->model.layer = s->layer;
    s->model.desc.n_layer = s->model.shape.n_expert_total / PER_LAYER;
    for (int i = 0; i < s->model.desc.n_layer; i++) {
        s->layer[i].router.n_out = PER_LAYER;
        s->layer[i].expert0 = i * PER_LAYER;
    }
}

static double share_of(const struct moe_slot_pool *p) { return (double)p->n / p->n_may; }

/* When pool a got its last slot, pool b had room for one too: so b's share was not the smaller. */
static void check_shares(const struct moe_residents *r, size_t left)
{
    for (int i = 0; i < r->n_pool; i++)
        for (int k = 0; k < r->n_pool; k++) {
            const struct moe_slot_pool *a = &r->pool[i], *b = &r->pool[k];
            if (a->n_slot <= 2 || a->n_slot == a->n_most || b->n_slot == b->n_most || !a->n_may || !b->n_may ||
                b->slot_bytes > left + a->slot_bytes)
                continue;
            if (share_of(a) - 1.0 / a->n_may > share_of(b) + 1e-9)
                fail_msg("%d of %d experts have slots in a pool, in another %d of %d", a->n, a->n_may, b->n, b->n_may);
        }
}

/* The slots that a pool of n experts can use: for all, or, if those of the first layers may not stay, for the others and a window. */
static int most_slots(int n, int n_may) { return n_may < n ? kn_min(n, n_may + 4) : n; }

static void check_budget(const struct sizes *s, size_t budget, size_t least, int n_host_layer)
{
    struct moe_device_slots some, again;
    struct moe_context_options opt = { .resident_bytes = budget, .n_host_layer = n_host_layer };
    struct moe_residents r = { .n_slot = 0 };
    size_t largest = 0;
    int n_stay = 0;
    moe_device_slots(&s->model, &opt, &some);
    moe_slot_pools_share(&r, &s->model, &opt);
    assert_true(some.bytes <= budget && some.n_slot == r.n_slot);
    assert_int_equal(some.n_slot > 0, budget >= least);
    for (int k = 0; k < r.n_pool; k++) {
        const struct moe_slot_pool *p = &r.pool[k];
        int most = most_slots(p->n_expert, p->n_may);
        bool more = p->n_slot < most;
        largest = more && p->slot_bytes > largest ? p->slot_bytes : largest;
        assert_true(!more || some.n_slot == 0 || budget - some.bytes < p->slot_bytes);
        assert_true(p->n_slot <= most && (some.n_slot == 0 || !most || p->n_slot >= 1));
        assert_true(p->n >= 0 && p->n <= p->n_may && p->n + p->n_window == p->n_slot);
        assert_true(more || p->n == p->n_may);
        n_stay += p->n;
    }
    assert_int_equal(some.n_stay, n_stay);
    if (some.n_slot)
        check_shares(&r, budget - some.bytes);
    opt.resident_bytes = some.bytes;
    moe_device_slots(&s->model, &opt, &again);
    assert_memory_equal(&again, &some, sizeof some);
}

static void a_budget_is_shared(void **state)
{
    static const int mix[][4] = { { 60 },   { 30, 30 },       { 48, 0, 1 }, { 100, 12, 3, 1 },
                                  { 1, 1 }, { 0, 0, 40, 90 }, { 2, 48, 30 } };
    static const int n_size[] = { 1, 2, 3, 4, 2, 4, 3 };
    static struct sizes s;
    (void)state;
    for (int i = 0; i < 7 * 4; i++) {
        const int *n = mix[i % 7], first = i / 7 * PER_LAYER;
        int end = 0, n_may_all = 0, n_slot = 0;
        struct moe_device_slots all;
        struct moe_context_options opt = { .resident_bytes = SIZE_MAX / 2, .n_host_layer = i / 7 };
        make_sizes(&s, n, n_size[i % 7]);
        if (opt.n_host_layer > s.model.desc.n_layer)
            continue;
        moe_device_slots(&s.model, &opt, &all);
        size_t bytes = 0, least = 0;
        for (int k = 0; k < n_size[i % 7]; k++) {
            end += n[k];
            int n_may = kn_min(kn_max(end - first, 0), n[k]), most = most_slots(n[k], n_may);
            bytes += (size_t)(most * (k + 1)) * UNIT;
            least += most ? (size_t)(k + 1) * UNIT : 0;
            n_slot += most;
            n_may_all += n_may;
        }
        assert_true(all.expert_bytes == bytes && all.bytes == bytes && all.least == least);
        assert_true(all.n_slot == n_slot && all.n_expert == n_may_all && all.n_stay == n_may_all);
        for (size_t budget = 0; budget <= bytes + UNIT; budget += UNIT / 2)
            check_budget(&s, budget, least, opt.n_host_layer);
    }
}

/* No expert may stay: the host computes all. */
static void all_layers_of_the_host(void **state)
{
    static struct sizes s;
    struct moe_device_slots all;
    (void)state;
    make_sizes(&s, (const int[]){ 16, 16 }, 2);
    moe_device_slots(&s.model, &(struct moe_context_options){ .resident_bytes = SIZE_MAX / 2, .n_host_layer = 2 },
                     &all);
    assert_true(all.n_slot == 0 && all.n_expert == 0 && all.bytes == 0 && all.expert_bytes == 0);
}

/* ---- passes ------------------------------------------------------------------------------------------------------- */

struct mixed {
    struct late_device device;
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *host, *apart;
    float *want; /* [N_PASS][MOST][N_VOCAB] the host's logits */
};

static int32_t slot[N_POS];
static int n_host_layer; /* of the device's contexts */
static const int rows[] = { 5, 1, 1, 6, 2, 1, 4, 1 };
#define N_PASS ((int)(sizeof rows / sizeof *rows))

static int open_context(struct moe_context **c, const struct moe_model *m, struct kn_team *team, size_t slots_bytes)
{
    struct moe_context_options o = one_sequence(team, MOST, N_POS, slots_bytes);
    o.n_host_layer = n_host_layer;
    return moe_context_open(c, m, &o);
}

static void forward_by(int (*pass)(struct moe_context *, const struct moe_batch *, struct moe_result *),
                       struct moe_context *c, int position, int n, struct moe_result *result)
{
    struct moe_row row[MOST];
    lay_sequence(row, slot, position, n, N_VOCAB);
    assert_int_equal(pass(c, &(struct moe_batch){ .row = row, .n_row = n }, result), 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(result->status[i], 0);
}

static void forward(struct moe_context *c, int position, int n, struct moe_result *result)
{
    forward_by(moe_forward, c, position, n, result);
}

/* down: the format of the down matrices in every second layer. */
static void open_mixed(struct mixed *t, enum kn_format down)
{
    char path[64];
    struct moe_context *c;
    struct moe_result r;
    snprintf(path, sizeof path, "/tmp/spillway-slot-pools-%d.gguf", getpid());
    *t = (struct mixed){ .apart = NULL };
    assert_int_equal(kn_team_open(&t->team, 1), 0);
    struct moe_synth_options so = { .shape = "tiny",
                                    .n_layer = N_LAYER,
                                    .n_vocab = N_VOCAB,
                                    .format = KN_Q4_K,
                                    .down = &down,
                                    .seed = 7,
                                    .team = t->team };
    assert_int_equal(moe_synth(path, &so), 0);
    assert_int_equal(moe_file_open(&t->file, path), 0);
    unlink(path);
    assert_int_equal(load_model(&t->host, t->file, kn_isa_best(), t->team, OFF_IO_PREAD), 0);
    for (int i = 0; i < N_POS; i++)
        slot[i] = i;
    t->want = malloc((size_t)N_PASS * MOST * N_VOCAB * sizeof *t->want);
    assert_int_equal(open_context(&c, t->host, t->team, 0), 0);
    for (int i = 0, position = 0; i < N_PASS; position += rows[i++]) {
        forward(c, position, rows[i], &r);
        memcpy(t->want + (size_t)i * MOST * N_VOCAB, r.logits, (size_t)r.n_want * N_VOCAB * sizeof *t->want);
    }
    moe_context_close(c);
}

static void close_mixed(struct mixed *t)
{
    free(t->want);
    moe_model_close(t->host);
    moe_file_close(t->file);
    kn_team_close(t->team);
}

static int open_apart_at(struct mixed *t)
{
    return moe_model_open(&t->apart, t->file,
                          &(struct moe_model_options){ .isa = kn_isa_best(), .device = &t->device.base });
}

static void start_device(struct mixed *t, int order, uint64_t seed)
{
    t->device = late_device_apart(kn_isa_best(), seed);
    t->device.order = (enum late_order)(order % LATE_ORDERS);
    late_watched = &t->device;
    late_moves = true;
    memset(host_elsewhere, 0, sizeof host_elsewhere);
    assert_int_equal(open_apart_at(t), 0);
}

/* expert_bytes: of the host's memory for experts; 0: the least. */
static void load_apart(struct mixed *t, size_t expert_bytes)
{
    struct moe_load_options lo = { .team = t->team,
                                   .io = OFF_IO_PREAD,
                                   .expert_bytes = expert_bytes ? expert_bytes
                                                                : moe_model_shape(t->apart)->expert_least };
    assert_int_equal(moe_model_load(t->apart, &lo), 0);
}

static void close_apart(struct mixed *t)
{
    moe_model_close(t->apart);
    late_watched = NULL;
    if (late_found())
        fail_msg("%s", late_found());
}

/* Each expert that stays has a slot of its size that says so, as the device's table says; no slot is in two places. */
static void check_pools(const struct moe_context *c)
{
    const struct moe_residents *r = &c->residents;
    static bool seen[1000];
    int n_kept = 0, n = 0;
    uint8_t *end = r->memory.base;
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < r->n_pool; i++) {
        const struct moe_slot_pool *p = &r->pool[i];
        assert_true(p->n_filled <= p->n && p->n + p->n_window == p->n_slot);
        for (int k = 0; k < p->n_slot; k++) { /* their memory changes places */
            const struct moe_resident *s = &r->slot[p->first + k];
            size_t nth = (size_t)(s->at - end) / p->slot_bytes;
            assert_true(s->at >= end && nth < (size_t)p->n_slot && end + nth * p->slot_bytes == s->at);
            assert_false(seen[p->first + (int)nth]);
            seen[p->first + (int)nth] = true;
            if (k < p->n_filled) {
                assert_int_equal(r->slot_of[s->expert], p->first + k);
                assert_int_equal(c->model->resident_size_of[s->expert], i);
            }
        }
        end += (size_t)p->n_slot * p->slot_bytes;
        n_kept += p->n_filled;
    }
    for (int e = 0; e < c->model->shape.n_expert_total; e++) {
        n += r->slot_of[e] >= 0;
        assert_ptr_equal(r->all[e].gate.data, r->slot_of[e] >= 0 ? r->slot[r->slot_of[e]].matrix[0].data : NULL);
        assert_int_equal(host_elsewhere[e], r->slot_of[e] >= 0);
    }
    assert_int_equal(n, n_kept);
}

/* Computes the rows of a pass by the experts in memory, which stay where they are. */
static void draft(struct moe_context *c, int position, int n)
{
    struct moe_device_stats before = moe_context_device_stats(c), after;
    struct moe_result r;
    forward_by(moe_forward_present, c, position, n, &r);
    for (int i = 0; i < r.n_want * N_VOCAB; i++)
        assert_true(isfinite(r.logits[i]));
    after = moe_context_device_stats(c);
    if (!c->residents.is_whole) {
        assert_memory_equal(&after, &before, sizeof after);
        check_pools(c);
    }
}

/* Computes the passes n times, with drafts before them. */
static void compare_passes(const struct mixed *t, struct moe_context *c, int n, bool drafts)
{
    struct moe_result r;
    for (; n > 0; n--)
        for (int k = 0, position = 0; k < N_PASS; position += rows[k++]) {
            if (drafts)
                draft(c, position, rows[k]);
            forward(c, position, rows[k], &r);
            if (memcmp(r.logits, t->want + (size_t)k * MOST * N_VOCAB, (size_t)r.n_want * N_VOCAB * sizeof *t->want))
                fail_msg("pass %d: other logits; %s", k, late_message);
            if (!c->residents.is_whole)
                check_pools(c);
        }
}

static void close_context(struct moe_context *c)
{
    moe_context_close(c);
    for (int e = 0; e < HOST_EXPERTS; e++)
        assert_false(host_elsewhere[e]);
}

static struct moe_device_slots slots_in(const struct mixed *t, size_t bytes)
{
    struct moe_device_slots s;
    moe_device_slots(t->apart, &(struct moe_context_options){ .resident_bytes = bytes, .n_host_layer = n_host_layer },
                     &s);
    return s;
}

/* Some experts get slots that are larger than they need, and one has a size of its own. */
static void change_sizes(struct moe_model *m, int alone, uint64_t seed)
{
    struct off_sizes *s = &m->resident_sizes;
    assert_int_equal(s->n, 2);
    s->n = 3;
    s->bytes[2] = s->bytes[1] + 256;
    for (int e = 0; e < m->shape.n_expert_total; e++)
        if (kn_mix(seed + (uint64_t)e) % 3 == 0)
            m->resident_size_of[e] = 1;
    m->resident_size_of[alone] = 2;
}

static void same_bytes_in_every_order(void **state)
{
    enum { ALONE = 17, BUDGETS = 6, HOST_LAYERS = 5 /* with this budget ALONE may not stay */ };
    struct mixed t;
    int n_whole = 0, n_changed = 0, n_alone = 0;
    (void)state;
    open_mixed(&t, KN_Q6_K);
    for (int i = 0; i < BUDGETS * LATE_ORDERS; i++) {
        struct moe_context *c;
        bool changed = (i + i / LATE_ORDERS) % 2;
        if (!late_has_run(i))
            continue;
        start_device(&t, i, (uint64_t)(31 * i));
        n_host_layer = i / LATE_ORDERS == HOST_LAYERS ? 2 : 0;
        assert_int_equal(t.apart->resident_sizes.n, 2);
        assert_true(t.apart->shape.device_expert_bytes <
                    (size_t)t.apart->shape.n_expert_total * t.apart->resident_sizes.bytes[1]);
        if (changed)
            change_sizes(t.apart, ALONE, (uint64_t)i);
        load_apart(&t, 0);
        struct moe_device_slots all = slots_in(&t, SIZE_MAX / 2);
        const size_t budget[BUDGETS] = {
            all.least, 2 * all.least, all.expert_bytes * 5 / 8, all.expert_bytes - 1, all.expert_bytes, all.expert_bytes
        };
        size_t bytes = budget[i / LATE_ORDERS];
        assert_int_equal(open_context(&c, t.apart, t.team, bytes), 0);
        assert_true(c->residents.memory.bytes <= bytes && c->residents.n_slot == slots_in(&t, bytes).n_slot);
        assert_int_equal(c->residents.is_whole, bytes == all.expert_bytes && !n_host_layer);
        compare_passes(&t, c, 2, true);
        struct moe_device_stats s = moe_context_device_stats(c);
        assert_true(s.kept_bytes <= s.slot_bytes && s.slot_bytes <= bytes && s.n_used > 0);
        if (!c->residents.is_whole)
            assert_true(s.n_host > 0 && (s.n_passed > 0 || !c->residents.has_window));
        n_whole += c->residents.is_whole;
        if (changed && n_host_layer) { /* the slot of its size is for copies */
            assert_true(c->residents.pool[2].n == 0 && c->residents.pool[2].n_window == 1);
            assert_false(moe_is_resident(c, ALONE));
        } else if (changed) { /* the passes use it, and it has the only slot of its size */
            assert_true(c->residents.pool[2].n == 1 && c->residents.pool[2].n_window == 0);
            n_alone += moe_is_resident(c, ALONE);
            n_changed++;
        }
        close_context(c);
        close_apart(&t);
    }
    n_host_layer = 0;
    assert_true(n_whole > 0 && n_changed > 0);
    assert_int_equal(n_alone, n_changed);
    close_mixed(&t);
}

static uint64_t read_bytes(const struct mixed *t)
{
    struct off_stats s;
    off_stats_get(moe_model_store(t->apart), &s);
    return s.read_bytes;
}

static void wait_until_filled(const struct mixed *t)
{
    struct off_stats store;
    do {
        off_stats_get(moe_model_store(t->apart), &store);
    } while (store.filling && store.n_empty);
}

/* Bytes of the host with which each of its pools has slots for the experts that the device does not keep, and `spare` more; `kept` of
 * the pool's n experts are. */
static size_t host_bytes(const struct mixed *t, const struct moe_residents *r, int spare)
{
    const struct moe_shape *s = moe_model_shape(t->apart);
    double share = 0;
    for (int i = 0; i < r->n_pool; i++) {
        const struct moe_slot_pool *p = &r->pool[i];
        share = fmax(share, (double)(p->n_expert - p->n + spare - 2) / (p->n_expert - 2));
    }
    return s->expert_least + (size_t)((share + 1e-9) * (double)(s->expert_bytes - s->expert_least)) + 1;
}

/* Neither memory has room for all experts, both together have, for those of each size.  When both are full nothing is read any
 * more, while experts change places at random; with fewer slots it is. */
static void two_tiers_without_the_disk(void **state)
{
    static const int spare[] = { 1, -2 };
    struct mixed t;
    (void)state;
    open_mixed(&t, KN_Q6_K);
    for (int i = 0; i < 2 * LATE_ORDERS; i++) {
        struct moe_context *c;
        struct moe_residents r = { .n_slot = 0 };
        if (!late_has_run(i))
            continue;
        start_device(&t, i, (uint64_t)(5 + i));
        size_t bytes = slots_in(&t, SIZE_MAX / 2).expert_bytes * 9 / 10;
        moe_slot_pools_share(&r, t.apart, &(struct moe_context_options){ .resident_bytes = bytes });
        for (int k = 0; k < 2; k++)
            assert_in_range(r.pool[k].n_slot, 30, 35);
        load_apart(&t, host_bytes(&t, &r, spare[i / LATE_ORDERS]));
        assert_int_equal(open_context(&c, t.apart, t.team, bytes), 0);
        compare_passes(&t, c, 10, false);
        for (int k = 0; k < 2; k++)
            assert_int_equal(c->residents.pool[k].n_filled, c->residents.pool[k].n);
        wait_until_filled(&t);
        struct moe_device_stats was = moe_context_device_stats(c);
        uint64_t before = read_bytes(&t);
        compare_passes(&t, c, 4, false);
        struct moe_device_stats is = moe_context_device_stats(c);
        assert_true(is.n_back - was.n_back > N_PASS / 2);
        if (spare[i / LATE_ORDERS] < 0)
            assert_true(read_bytes(&t) > before);
        else
            assert_int_equal(read_bytes(&t), before);
        close_context(c);
        close_apart(&t);
    }
    close_mixed(&t);
}

/* A window that grows takes slots from experts that stay, and those that the host no longer has come back, to memory of their own
 * NUMA node: nothing is read.  Two nodes have so many slots that each has some for experts that the device keeps, too. */
static void a_window_gives_experts_back(void **state)
{
    enum { N_SLOT = 40, SMALL = 4, LARGE = N_SLOT / 8, N_ALL = 12 * N_LAYER };
    static const int n_host[] = { N_ALL - N_SLOT + LARGE, 56 };
    (void)state;
    for (int i = 0; i < 2 * LATE_ORDERS; i++) {
        struct mixed t;
        struct moe_context *c;
        int n_node = 1 + i / LATE_ORDERS;
        if (!late_has_run(i))
            continue;
        nodes_set(n_node);
        open_mixed(&t, KN_Q4_K);
        start_device(&t, i, (uint64_t)i);
        late_moves = false;
        load_apart(&t, moe_model_shape(t.apart)->expert_bytes / N_ALL * (size_t)n_host[n_node - 1]);
        assert_int_equal(open_context(&c, t.apart, t.team, N_SLOT * t.apart->resident_sizes.bytes[0]), 0);
        const struct moe_slot_pool *p = &c->residents.pool[0];
        c->residents.where.plans = MOE_PLANS_FIXED;
        compare_passes(&t, c, 6, false);
        wait_until_filled(&t);
        assert_true(p->n_window == SMALL && p->n_filled == N_SLOT - SMALL);
        uint64_t before = read_bytes(&t), n_back = moe_context_device_stats(c).n_back;
        memset(host_brought, 0, sizeof host_brought);
        c->residents.where.plans = MOE_PLANS_RANDOM;
        compare_passes(&t, c, 6, false);
        assert_int_equal(p->n_window, LARGE);
        assert_true(moe_context_device_stats(c).n_back - n_back > LARGE - SMALL);
        assert_int_equal(read_bytes(&t), before);
        for (int e = 0; e < N_ALL; e++)
            if (host_brought[e].matrix[0].data)
                assert_int_equal(host_brought[e].node, e % 12 % n_node);
        close_context(c);
        close_apart(&t);
        close_mixed(&t);
        nodes_set(1);
    }
}

/* The n-th allocation of the device fails, for each n until none does: the context is not opened, and the next one is. */
static void out_of_memory(void **state)
{
    struct mixed t;
    int n_failed = 0;
    (void)state;
    open_mixed(&t, KN_Q6_K);
    start_device(&t, 0, 3);
    load_apart(&t, 0);
    for (int whole = 0; whole < 2; whole++) {
        size_t all = slots_in(&t, SIZE_MAX / 2).expert_bytes, bytes = whole ? all : all / 2;
        bool fails = true;
        for (n_failed = 0; fails;) {
            struct moe_context *c;
            t.device.faults.open_at = t.device.faults.n_open + ++n_failed;
            fails = open_context(&c, t.apart, t.team, bytes) != 0;
            if (!fails)
                moe_context_close(c);
            t.device.faults.open_at = 0;
            for (int e = 0; e < HOST_EXPERTS; e++)
                assert_false(host_elsewhere[e]);
        }
        assert_in_range(n_failed, 6, 12);
    }
    close_apart(&t);
    close_mixed(&t);
}

/* The n-th allocation of the host fails while a model is opened on the device: nothing is left, and the next open works. */
static void out_of_memory_at_the_open(void **state)
{
    struct mixed t;
    int error = KN_ENOMEM, n = 0;
    (void)state;
    open_mixed(&t, KN_Q6_K);
    t.device = late_device_apart(kn_isa_best(), 3);
    late_watched = &t.device;
    while (error) {
        faults_reset();
        faults_at(FAULT_ALLOC, ++n, FAULT_ERROR, ENOMEM);
        error = open_apart_at(&t);
        assert_true(error == 0 || error == KN_ENOMEM);
        if (!error)
            close_apart(&t);
        assert_true(faults_clean());
        faults_off();
    }
    assert_in_range(n, 4, 40);
    close_mixed(&t);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_is_shared),          cmocka_unit_test(all_layers_of_the_host),
        cmocka_unit_test(same_bytes_in_every_order),   cmocka_unit_test(two_tiers_without_the_disk),
        cmocka_unit_test(a_window_gives_experts_back), cmocka_unit_test(out_of_memory),
        cmocka_unit_test(out_of_memory_at_the_open),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    host_free();
    return failed;
}
