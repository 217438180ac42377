/* Changes of the number of slots: a store that grows and shrinks hands out right experts before and after; a given amount of
 * memory gives the same slots whatever came before; slots in use stay; and the memory of slots that go is given back.
 *
 * Bytes are random: no test interprets them as numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/store.h"
#include "tests/offload/experts.h"

#define N_EXPERT 20 /* of the models of one layer: all of one size, and most of them wait while reads are held up */

/* ---- system calls that wait or count -------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool no_reads; /* reads wait, but for those of the test's own thread: an open store has looked at its files */
    const uint8_t *untouch; /* touches of memory from here on wait; NULL: none */
    size_t dropped;         /* bytes */
} calls = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static _Thread_local bool is_test;

static ssize_t read_late(int fd, void *buf, size_t bytes, int64_t at)
{
    pthread_mutex_lock(&calls.lock);
    while (calls.no_reads && !is_test)
        pthread_cond_wait(&calls.changed, &calls.lock);
    pthread_mutex_unlock(&calls.lock);
    return kn_io_system.pread(fd, buf, bytes, at);
}

static void touch_late(void *p, size_t bytes)
{
    pthread_mutex_lock(&calls.lock);
    while (calls.untouch && (const uint8_t *)p >= calls.untouch)
        pthread_cond_wait(&calls.changed, &calls.lock);
    pthread_mutex_unlock(&calls.lock);
    kn_io_system.touch(p, bytes);
}

static void drop_counted(void *p, size_t bytes)
{
    pthread_mutex_lock(&calls.lock);
    calls.dropped += bytes;
    pthread_mutex_unlock(&calls.lock);
    kn_io_system.drop(p, bytes);
}

static void set_calls(int n_node)
{
    static struct kn_io io;
    is_test = true;
    nodes_set(n_node);
    io = *kn_io();
    io.pread = read_late;
    io.touch = touch_late;
    io.drop = drop_counted;
    calls.no_reads = false;
    calls.untouch = NULL;
    calls.dropped = 0;
    kn_io_set(&io);
}

static void let_reads(bool go)
{
    pthread_mutex_lock(&calls.lock);
    calls.no_reads = !go;
    pthread_cond_broadcast(&calls.changed);
    pthread_mutex_unlock(&calls.lock);
}

/* NULL: no touch waits. */
static void let_touches_before(const uint8_t *end)
{
    pthread_mutex_lock(&calls.lock);
    calls.untouch = end;
    pthread_cond_broadcast(&calls.changed);
    pthread_mutex_unlock(&calls.lock);
}

/* ---- the slots ----------------------------------------------------------------------------------------- */

/* Numbers that depend on the amount of memory alone. */
struct numbers {
    int n_slot[OFF_MAX_POOL], all, window;
    size_t bytes;
};

static struct numbers numbers_of(struct off_store *s)
{
    struct numbers n;
    struct off_stats stats;
    memset(&n, 0, sizeof n);
    off_stats_get(s, &stats);
    n.bytes = stats.slot_bytes;
    pthread_mutex_lock(&s->lock);
    n.all = s->n_slot;
    n.window = s->window;
    for (int i = 0; i < s->n_pool; i++)
        n.n_slot[i] = s->pool[i].n_slot;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void same_numbers(struct off_store *s, const struct numbers *want)
{
    struct numbers is = numbers_of(s);
    assert_memory_equal(&is, want, sizeof is);
}

/* The counts are those of the slots; behind a pool's slots there is nothing, and its memory holds nothing. */
static void check_slots(struct off_store *s)
{
    int n_empty = 0, n_passing = 0, n_slot = 0, n_there = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_pool; i++)
        for (int k = 0; k < s->pool[i].n_listed; k++) {
            const struct off_slot *slot = &s->slot[s->pool[i].slot0 + k];
            n_passing += slot->passing;
            n_there += slot->expert >= 0;
            if (k < s->pool[i].n_slot) {
                n_slot++;
                n_empty += slot->expert < 0;
                continue;
            }
            assert_true(slot->expert < 0 && slot->state == SLOT_EMPTY && !slot->touched && !slot->n_hold);
            assert_true(!slot->place[0] && !memcmp(slot->place, slot->place + 1, s->pool[i].slot_bytes - 1));
        }
    for (int e = 0; e < s->n_expert; e++) {
        n_there -= s->slot_of[e] >= 0;
        assert_true(s->slot_of[e] < 0 || s->slot[s->slot_of[e]].expert == e);
    }
    assert_int_equal(n_slot, s->n_slot);
    assert_int_equal(n_empty, s->n_empty);
    assert_int_equal(n_passing, s->n_passing);
    assert_int_equal(n_there, 0);
    pthread_mutex_unlock(&s->lock);
}

/* Takes memory back once nothing uses it. */
static void shrink(struct off_store *s, size_t bytes)
{
    while (!off_store_shrink(s, bytes))
        usleep(100);
}

static enum slot_state state_of(struct off_store *s, int slot)
{
    pthread_mutex_lock(&s->lock);
    enum slot_state state = s->slot[slot].state;
    pthread_mutex_unlock(&s->lock);
    return state;
}

static int32_t expert_in(struct off_store *s, int slot)
{
    pthread_mutex_lock(&s->lock);
    int32_t expert = s->slot[slot].expert;
    pthread_mutex_unlock(&s->lock);
    return expert;
}

/* ---- a ticket of its own ------------------------------------------------------------------------------- */

struct request {
    struct off_ticket ticket;
    int32_t expert[N_EXPERT];
    uint8_t mark[N_EXPERT];
};

/* Fetches experts first .. first + n - 1. */
static void request(struct off_store *s, struct request *r, int32_t first, int n, enum off_urgency urgency)
{
    for (int i = 0; i < n; i++)
        r->expert[i] = first + i;
    off_fetch(s, r->expert, r->mark, n, urgency, &r->ticket);
}

/* Waits for all experts of a NOW request; it still uses those handed out last. */
static void receive(struct request *r, struct asker *a)
{
    for (int given = 0, got; given < r->ticket.n; given += got) {
        got = off_wait(a->s, &r->ticket, &a->hands, a->index, a->view, a->status);
        assert_true(got > 0);
        for (int i = 0; i < got; i++)
            assert_true(!a->status[i] && is_expert(a->m, r->expert[a->index[i]], &a->view[i]));
    }
}

/* The memory of n slots, if all are of one size. */
static size_t slots(const struct model *m, int n) { return all(m) / (size_t)m->n_expert * (size_t)n; }

/* A model of one layer and a store with n slots, which can have all. */
static struct model *open_single(struct off_store **s, int n)
{
    struct model *m = open_model(1, N_EXPERT, 20);
    m->later = all(m);
    assert_int_equal(open_store(s, m, slots(m, n) + 100), 0);
    assert_int_equal((*s)->n_slot, n);
    return m;
}

static void close_all(struct asker *a, struct model *m)
{
    off_store_close(a->s);
    close_asker(a);
    close_model(m);
    nodes_set(1);
}

/* ---- checks -------------------------------------------------------------------------------------------- */

/* Memory added later is used like memory given at open; it is not touched earlier. */
static void a_store_grows(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    size_t room = all(m) - least(m);
    for (int nodes_n = 1; nodes_n <= 2; nodes_n++) {
        struct off_store *s, *large;
        struct off_stats stats, as_large;
        nodes_set(nodes_n);
        m->later = 0;
        assert_int_equal(open_store(&large, m, least(m) + room / 2), 0);
        off_stats_get(large, &as_large);
        off_store_close(large);
        m->later = room;
        assert_int_equal(open_store(&s, m, least(m) + room / 4), 0);
        struct asker *a = open_asker(s, m);
        off_stats_get(s, &stats);
        uint64_t before = stats.n_slot;
        assert_true(before < as_large.n_slot);
        ask_all_layers(a, 60);
        wait_until_filled(s);
        off_store_grow(s, room / 4);
        off_stats_get(s, &stats);
        assert_in_range(stats.n_slot, as_large.n_slot - 1, as_large.n_slot); /* an odd number cannot be halved */
        assert_true(stats.n_empty >= stats.n_slot - before);
        ask_all_layers(a, 120);
        assert_false(off_store_is_whole(s));
        off_store_grow(s, room);
        ask_all_layers(a, 600);
        off_stats_get(s, &stats);
        assert_int_equal(stats.n_slot, 42);
        assert_int_equal(stats.n_empty, 0);
        assert_true(off_store_is_whole(s));
        close_asker(a);
        off_store_close(s);
    }
    nodes_set(1);
    m->later = 0;
    close_model(m);
}

static void grow_and_shrink(struct off_store *s, struct asker *a, size_t room)
{
    struct numbers first = numbers_of(s), second;
    ask_all_layers(a, 60);
    off_store_grow(s, room / 4);
    second = numbers_of(s);
    ask_all_layers(a, 120);
    off_store_grow(s, room / 2 + 12345);
    struct numbers most = numbers_of(s);
    assert_true(first.all < second.all && second.all < most.all && most.all == 42);
    assert_true(first.bytes < second.bytes && second.bytes < most.bytes);
    ask_all_layers(a, 600);
    assert_true(off_store_is_whole(s));
    shrink(s, room / 2 + 12345);
    same_numbers(s, &second);
    assert_false(off_store_is_whole(s));
    assert_int_equal(calls.dropped, most.bytes - second.bytes);
    check_slots(s);
    ask_all_layers(a, 120);
    shrink(s, room / 4);
    same_numbers(s, &first);
    assert_int_equal(calls.dropped, most.bytes - first.bytes);
    check_slots(s);
    ask_all_layers(a, 120);
    shrink(s, 0);
    same_numbers(s, &first);
    off_store_grow(s, room / 4);
    same_numbers(s, &second);
    ask_all_layers(a, 120);
    off_store_grow(s, room);
    same_numbers(s, &most);
    ask_all_layers(a, 600);
    assert_true(off_store_is_whole(s));
    assert_int_equal(calls.dropped, most.bytes - first.bytes);
}

static void a_store_shrinks_as_it_grew(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    for (int n_node = 1; n_node <= 2; n_node++) {
        struct off_store *s;
        set_calls(n_node);
        size_t room = all(m) - least(m);
        m->later = room;
        assert_int_equal(open_store(&s, m, least(m) + room / 4), 0);
        struct asker *a = open_asker(s, m);
        grow_and_shrink(s, a, room);
        close_asker(a);
        off_store_close(s);
    }
    nodes_set(1);
    close_model(m);
}

/* A store with memory for all experts, whatever the amount, keeps its slots if memory is added and taken back. */
static void a_store_with_all_experts_keeps_them(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    m->later = all(m);
    for (int limited = 0; limited < 2; limited++) {
        struct off_store *s;
        set_calls(1);
        assert_int_equal(open_store(&s, m, limited ? all(m) + 1000 : 0), 0);
        struct asker *a = open_asker(s, m);
        wait_until_filled(s);
        off_store_grow(s, all(m) - 1);
        shrink(s, all(m) - 1);
        assert_int_equal(numbers_of(s).all, 42);
        assert_int_equal(calls.dropped, 0);
        assert_true(off_store_is_whole(s));
        ask_all_layers(a, 30);
        close_asker(a);
        off_store_close(s);
    }
    nodes_set(1);
    close_model(m);
}

/* Memory beyond later_bytes adds no slots, and taking it back takes none.  With fewer slots the window is larger again. */
static void memory_that_adds_no_slot_takes_none(void **state)
{
    (void)state;
    struct off_store *s;
    struct model *m = open_model(1, 600, 1);
    set_calls(1);
    m->later = slots(m, 600) / 2;
    assert_int_equal(open_store(&s, m, least(m) + 100), 0);
    struct asker *a = open_asker(s, m);
    struct numbers first = numbers_of(s);
    off_store_grow(s, m->later);
    struct numbers half = numbers_of(s);
    assert_in_range(half.all, 300, 303);
    assert_true(half.window < first.window);
    off_store_grow(s, m->later);
    same_numbers(s, &half);
    ask_all_layers(a, 4);
    shrink(s, m->later);
    same_numbers(s, &half);
    assert_int_equal(calls.dropped, 0);
    shrink(s, m->later);
    same_numbers(s, &first);
    check_slots(s);
    ask_all_layers(a, 2);
    close_all(a, m);
}

/* Prefetched experts in slots that go are wasted, as if another expert had taken the slot. */
static void what_was_read_ahead_is_wasted(void **state)
{
    (void)state;
    struct off_store *s;
    struct off_stats before, after;
    struct request soon, early;
    int32_t absent[4];
    set_calls(1);
    struct model *m = open_single(&s, 8);
    struct asker *a = open_asker(s, m);
    wait_until_filled(s);
    off_store_grow(s, slots(m, 4));
    request(s, &soon, 12, 2, OFF_SOON);
    request(s, &early, 14, 2, OFF_EARLY);
    wait_until_quiet(s, N_EXPERT);
    off_stats_get(s, &before);
    assert_int_equal(before.soon_reads, 4);
    assert_int_equal(before.wasted_bytes, 0);
    shrink(s, slots(m, 4));
    off_stats_get(s, &after);
    assert_int_equal(after.wasted_bytes, 2 * before.early_bytes);
    assert_int_equal(after.early_wasted_bytes, before.early_bytes);
    assert_int_equal(after.soon_reads, 4);
    assert_int_equal(after.n_slot, 8);
    assert_int_equal(after.n_empty, 0);
    check_slots(s);
    assert_int_equal(off_store_absent(s, (int32_t[]){ 12, 13, 14, 15 }, 4, absent), 4);
    off_release(s, &soon.ticket);
    off_release(s, &early.ticket);
    ask_all_layers(a, 20);
    check_slots(s);
    close_all(a, m);
}

/* Slots stay while a ticket holds their expert, while it is being read, for whatever reason, and while it comes back from a
 * device. */
static void slots_in_use_stay(void **state)
{
    (void)state;
    struct off_store *s;
    struct off_view view;
    struct request now, none = { .ticket.n = 0 };
    set_calls(1);
    calls.no_reads = true;
    struct model *m = open_single(&s, 2);
    struct asker *a = open_asker(s, m);
    off_store_grow(s, slots(m, 2));
    while (state_of(s, 3) != SLOT_READING) /* by the filler */
        usleep(100);
    assert_false(off_store_shrink(s, slots(m, 2)));
    assert_int_equal(expert_in(s, 3), 3);
    let_reads(true);
    wait_until_filled(s);
    shrink(s, slots(m, 2));
    check_slots(s);

    off_store_grow(s, slots(m, 1));
    request(s, &now, 10, 1, OFF_NOW);
    wait_until_quiet(s, N_EXPERT);
    assert_int_equal(expert_in(s, 2), 10);
    assert_false(off_store_shrink(s, slots(m, 1))); /* not handed out */
    receive(&now, a);
    assert_false(off_store_shrink(s, slots(m, 1)));
    assert_int_equal(numbers_of(s).all, 3);
    assert_int_equal(calls.dropped, slots(m, 2));
    assert_true(is_expert(m, 10, &a->view[0]));

    let_reads(false);
    off_release(s, &now.ticket);
    shrink(s, slots(m, 1));
    off_store_grow(s, slots(m, 1));
    request(s, &now, 11, 1, OFF_NOW);
    off_release(s, &now.ticket); /* its read goes on */
    assert_false(off_store_shrink(s, slots(m, 1)));
    let_reads(true);
    shrink(s, slots(m, 1));
    check_slots(s);

    off_store_grow(s, slots(m, 1));
    assert_true(off_store_bring_back(s, &none.ticket, -1, 12, &view));
    assert_int_equal(expert_in(s, 2), 12);
    assert_false(off_store_shrink(s, slots(m, 1)));
    off_store_brought_back(s, 12, false);
    shrink(s, slots(m, 1));
    check_slots(s);
    ask_all_layers(a, 20);
    close_all(a, m);
}

static void *receive_one(void *arg)
{
    struct asker *a = arg;
    a->expert[0] = 17;
    a->n = 1;
    ask(a, 0);
    return NULL;
}

static bool starves(struct off_store *s)
{
    pthread_mutex_lock(&s->lock);
    bool starves = s->n_starved > 0;
    pthread_mutex_unlock(&s->lock);
    return starves;
}

/* Prefetches that have not begun are cancelled, and not counted.  If the store does not shrink, a thread that waits for a slot gets
 * the slot of a cancelled prefetch. */
static void prefetches_that_have_not_begun_are_cancelled(void **state)
{
    (void)state;
    struct off_store *s;
    struct off_stats before, after;
    struct request now, held, soon, early;
    pthread_t thread;
    set_calls(1);
    struct model *m = open_single(&s, 8);
    struct asker *a = open_asker(s, m), *other = open_asker(s, m);
    wait_until_filled(s);
    request(s, &held, 0, 1, OFF_NOW);
    receive(&held, a);
    let_reads(false);
    request(s, &now, 8, 7, OFF_NOW); /* more reads than are under way at a time */
    off_store_grow(s, slots(m, 2));
    off_stats_get(s, &before);
    request(s, &soon, 15, 1, OFF_SOON);
    request(s, &early, 16, 1, OFF_EARLY);
    assert_true(state_of(s, 8) == SLOT_READING && state_of(s, 9) == SLOT_READING);
    shrink(s, slots(m, 2));
    off_stats_get(s, &after);
    assert_memory_equal(&after.read_bytes, &before.read_bytes,
                        offsetof(struct off_stats, stall_ns) - offsetof(struct off_stats, read_bytes));
    assert_int_equal(after.n_slot, 8);
    assert_int_equal(s->doubt.reads + s->doubt.read_bytes + s->doubt.soon_reads + s->doubt.early_bytes, 0);
    check_slots(s);
    off_release(s, &soon.ticket);
    off_release(s, &early.ticket);

    off_store_grow(s, slots(m, 2));
    request(s, &soon, 15, 1, OFF_NOW); /* stays */
    request(s, &early, 16, 1, OFF_EARLY);
    assert_int_equal(pthread_create(&thread, NULL, receive_one, other), 0);
    while (!starves(s))
        usleep(100);
    assert_false(off_store_shrink(s, slots(m, 2)));
    while (starves(s))
        usleep(100);
    assert_int_equal(expert_in(s, 9), 17);
    let_reads(true);
    pthread_join(thread, NULL);
    assert_int_equal(other->n_wrong + other->n_failed, 0);
    receive(&soon, a);
    receive(&now, a);
    off_release(s, &early.ticket);
    off_release(s, &soon.ticket);
    off_release(s, &now.ticket);
    off_release(s, &held.ticket);
    shrink(s, slots(m, 2));
    check_slots(s);
    ask_all_layers(a, 20);
    close_asker(other);
    close_all(a, m);
}

/* Memory that a thread is touching would be allocated after it was given back. */
static void slots_being_touched_stay(void **state)
{
    (void)state;
    struct off_store *s;
    set_calls(1);
    calls.untouch = (const uint8_t *)1; /* all touches wait */
    struct model *m = open_single(&s, 2);
    struct asker *a = open_asker(s, m);
    off_store_grow(s, slots(m, 10));
    let_touches_before(s->slot[2].place);
    pthread_mutex_lock(&s->lock);
    while (!s->slot[2].touching) {
        pthread_mutex_unlock(&s->lock);
        usleep(100);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    wait_until_filled(s);
    wait_until_quiet(s, N_EXPERT);
    assert_false(off_store_shrink(s, slots(m, 10)));
    let_touches_before(NULL);
    shrink(s, slots(m, 10));
    check_slots(s);
    ask_all_layers(a, 20);
    close_all(a, m);
}

/* ---- several threads ----------------------------------------------------------------------------------- */

/* The store grows and shrinks while others fetch and prefetch, and in the beginning while slots are filled and touched. */
static void a_store_shrinks_while_others_use_it(void **state)
{
    (void)state;
    struct model *m = open_model(3, 8, 10);
    for (int n_node = 1; n_node <= 2; n_node++) {
        struct off_store *s;
        struct askers a;
        set_calls(n_node);
        size_t room = m->later = all(m) - least(m);
        assert_int_equal(open_store(&s, m, least(m)), 0);
        struct numbers small = numbers_of(s);
        begin_asking(&a, s, m, 2);
        for (int i = 0; i < 40; i++) {
            size_t bytes = i % 4 ? room / 4 * (size_t)(i % 4) : room;
            off_store_grow(s, bytes);
            usleep((useconds_t)(i % 5 * 500));
            shrink(s, bytes);
            same_numbers(s, &small);
            check_slots(s);
        }
        end_asking(&a);
        off_store_close(s);
    }
    nodes_set(1);
    close_model(m);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_grows),
        cmocka_unit_test(a_store_shrinks_as_it_grew),
        cmocka_unit_test(a_store_with_all_experts_keeps_them),
        cmocka_unit_test(memory_that_adds_no_slot_takes_none),
        cmocka_unit_test(what_was_read_ahead_is_wasted),
        cmocka_unit_test(slots_in_use_stay),
        cmocka_unit_test(prefetches_that_have_not_begun_are_cancelled),
        cmocka_unit_test(slots_being_touched_stay),
        cmocka_unit_test(a_store_shrinks_while_others_use_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
