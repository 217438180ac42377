/* The expert store: each expert handed out is complete and correct, for any number of slots, concurrent clients and
 * prefetches; the budget is kept; a failed read is reported for that expert alone; and a failure
 * leaks nothing.
 *
 * Bytes are random: no test interprets them as numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/store.h"
#include "tests/offload/experts.h"

/* ---- checks ---------------------------------------------------------------------------------- */

static void every_expert_is_itself_whatever_the_room(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    for (int room = 0; room <= 4; room++) {
        struct off_store *s;
        size_t bytes = least(m) + (all(m) - least(m)) * (size_t)room / 4;
        assert_int_equal(open_store(&s, m, bytes), 0);
        struct asker *a = open_asker(s, m);
        uint64_t asked = 0;
        for (int round = 0; round < 120; round++) {
            choose_some(a, round % 6, 1 + round % 3);
            ask(a, 0);
            asked += (uint64_t)a->n;
        }
        assert_int_equal(a->n_wrong + a->n_failed, 0);
        struct off_stats stats;
        wait_until_filled(s);
        off_stats_get(s, &stats);
        assert_int_equal(stats.hits + stats.misses, asked);
        assert_true(stats.n_expert == 42 && (room < 4 ? stats.n_slot < 42 : stats.n_slot == 42));
        assert_int_equal(off_store_is_whole(s), room == 4);
        close_asker(a);
        off_store_close(s);
    }
    close_model(m);
}

/* Matrices smaller than a panel. */
static void every_expert_is_on_its_node(void **state)
{
    nodes_set(2);
    every_expert_is_itself_whatever_the_room(state);
    nodes_set(1);
}

/* The slots of all nodes together fit the budget, and every node has at least two. */
static void nodes_share_the_budget(void **state)
{
    (void)state;
    struct kn_machine machine;
    struct model *m = open_model(4, 5, 20);
    size_t least_of_one = least(m), all_of_one = all(m);
    nodes_set(2);
    kn_machine_get(&machine);
    assert_int_equal(all(m), all_of_one);
    assert_true(machine.n_node == 1 ? least(m) == least_of_one : least(m) == 2 * least_of_one);
    for (size_t bytes = least(m); bytes <= all(m) + 10000; bytes += 10000) {
        struct off_store *s;
        size_t taken = 0;
        nodes.n = 0;
        assert_int_equal(open_store(&s, m, bytes), 0);
        for (int i = 0; i < nodes.n; i++)
            taken += (size_t)(nodes.range[i].end - nodes.range[i].begin);
        assert_true(taken >= least(m) && taken <= bytes);
        off_store_close(s);
    }
    nodes_set(1);
    close_model(m);
}

static void a_thousand_small_experts(void **state)
{
    (void)state;
    struct model *m = open_model(1, MAX_EXPERT, 1);
    for (int room = 0; room < 2; room++) {
        struct off_store *s;
        assert_int_equal(open_store(&s, m, room ? 0 : least(m) * 50), 0);
        struct asker *a = open_asker(s, m);
        for (int e = 0; e < m->n_expert; e++)
            a->expert[e] = m->n_expert - 1 - e;
        a->n = m->n_expert;
        ask(a, 0);
        assert_int_equal(a->n_wrong + a->n_failed, 0);
        close_asker(a);
        off_store_close(s);
    }
    close_model(m);
}

static void a_budget_is_kept(void **state)
{
    (void)state;
    struct model *m = open_model(4, 3, 20);
    struct off_store *s;
    faults_reset();
    assert_int_equal(open_store(&s, m, least(m) - 1), KN_ELIMIT);
    assert_int_equal(faults.n_line, 1);
    assert_non_null(strstr(faults.line, "--host-mem"));
    assert_true(faults_clean());
    for (size_t bytes = least(m); bytes <= all(m); bytes += 10000) {
        assert_int_equal(open_store(&s, m, bytes), 0);
        assert_true(faults.n_map > 0 && (size_t)faults.n_map <= bytes);
        off_store_close(s);
        assert_true(faults_clean());
    }
    off_store_close(NULL);
    faults_off();
    close_model(m);
}

/* Pages are populated ahead of the reads, exactly the pages that belong to slots; a failure to populate them changes
 * no result. */
static struct {
    pthread_mutex_t lock;
    size_t bytes;
    bool fails;
} made = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void make_memory(void *p, size_t bytes)
{
    pthread_mutex_lock(&made.lock);
    made.bytes += bytes;
    pthread_mutex_unlock(&made.lock);
    if (!made.fails)
        kn_io_system.touch(p, bytes);
}

static void memory_of_slots_is_made(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    struct kn_io io = kn_io_system;
    io.touch = make_memory;
    kn_io_set(&io);
    for (int room = 0; room < 3; room++) {
        struct off_store *s;
        size_t want = 0, got = 0;
        made.bytes = 0;
        made.fails = room == 2;
        m->later = all(m);
        assert_int_equal(open_store(&s, m, least(m) + (all(m) - least(m)) * (size_t)room / 2), 0);
        for (int i = 0; i < s->n_pool; i++)
            want += (size_t)s->pool[i].n_slot * s->pool[i].slot_bytes;
        while (got < want) {
            usleep(100);
            pthread_mutex_lock(&made.lock);
            got = made.bytes;
            pthread_mutex_unlock(&made.lock);
        }
        struct asker *a = open_asker(s, m);
        ask_all_layers(a, 30);
        close_asker(a);
        off_store_close(s);
        assert_int_equal(made.bytes, want);
    }
    kn_io_set(NULL);
    m->later = 0;
    close_model(m);
}

/* A prefetched expert is a hit when fetched; one that was never used is counted as wasted when evicted. */
static void what_is_read_ahead_is_counted(void **state)
{
    (void)state;
    struct model *m = open_model(8, 6, 20);
    struct off_store *s;
    struct off_stats stats;
    struct off_ticket t;
    uint8_t mark[6];
    int32_t soon[6];
    assert_int_equal(open_store(&s, m, least(m) + (all(m) - least(m)) / 2), 0);
    struct asker *a = open_asker(s, m);
    wait_until_filled(s);
    off_stats_get(s, &stats);
    assert_int_equal(stats.soon_reads + stats.soon_hits + stats.wasted_bytes, 0);
    for (int round = 0; round < 400; round++) {
        int layer = round % 7;
        for (int i = 0; i < 6; i++)
            soon[i] = (layer + 1) * 6 + i;
        choose_some(a, layer, 2);
        off_fetch(s, soon, mark, 6, OFF_SOON, &t);
        ask(a, 0);
        choose_some(a, layer + 1, 2);
        ask(a, 0);
        off_release(s, &t);
    }
    off_stats_get(s, &stats);
    assert_int_equal(a->n_wrong + a->n_failed, 0);
    assert_true(stats.soon_reads > 0 && stats.soon_hits > 0 && stats.wasted_bytes > 0);
    assert_true(stats.soon_hits < stats.soon_reads);
    close_asker(a);
    off_store_close(s);
    close_model(m);
}

/* The expected experts of the next turn are read as this turn's slots are released: during the turn or at its end. */
static void what_is_expected_follows_what_is_done(void **state)
{
    (void)state;
    struct model *m = open_model(1, 12, 20); /* all of one size */
    struct off_store *s;
    int32_t turn[3][4], absent[4];
    uint8_t mark[2][4];
    for (int e = 0; e < 12; e++) {
        m->expert[e].group = e / 4;
        turn[e / 4][e % 4] = e;
    }
    assert_int_equal(open_store(&s, m, all(m) / 12 * 5), 0);
    assert_int_equal(s->n_slot, 5);
    struct asker *a = open_asker(s, m);
    wait_until_filled(s);
    for (int i = 0; i < 6; i++) {
        struct off_ticket now, soon;
        const int32_t *next = turn[(i + 1) % 3];
        bool to_its_end = i % 2, given_up = i == 5;
        int given = 0;
        off_fetch(s, turn[i % 3], mark[0], 4, OFF_NOW, &now);
        off_fetch(s, next, mark[1], 4, OFF_SOON, &soon);
        assert_true(off_store_absent(s, next, 4, absent) >= 3);
        if (given_up)
            off_release(s, &soon);
        while (given < 4)
            given += off_wait(s, &now, &a->hands, a->index, a->view, a->status);
        if (to_its_end)
            assert_int_equal(off_wait(s, &now, &a->hands, a->index, a->view, a->status), 0);
        else
            off_release(s, &now);
        wait_until_quiet(s, 12);
        assert_int_equal(off_store_absent(s, next, 4, absent) > 0, given_up);
        if (to_its_end)
            off_release(s, &now);
        if (!given_up)
            off_release(s, &soon);
    }
    close_asker(a);
    off_store_close(s);
    close_model(m);
}

static void rose(struct off_store *s, struct off_stats *before)
{
    struct off_stats now;
    off_stats_get(s, &now);
    const uint64_t was[] = { before->hits,
                             before->misses,
                             before->reads,
                             before->read_bytes,
                             before->soon_reads,
                             before->soon_hits,
                             before->wasted_bytes,
                             before->early_bytes,
                             before->early_used_bytes,
                             before->early_wasted_bytes,
                             before->mirror_bytes };
    const uint64_t is[] = {
        now.hits,        now.misses,       now.reads,       now.read_bytes,       now.soon_reads,
        now.soon_hits,   now.wasted_bytes, now.early_bytes, now.early_used_bytes, now.early_wasted_bytes,
        now.mirror_bytes
    };
    for (size_t i = 0; i < sizeof is / sizeof *is; i++)
        if (is[i] < was[i])
            fail_msg("count %d: %llu, then %llu", (int)i, (unsigned long long)was[i], (unsigned long long)is[i]);
    assert_true(now.early_bytes - before->early_bytes <= now.read_bytes - before->read_bytes);
    assert_true(now.early_used_bytes + now.early_wasted_bytes <= now.early_bytes);
    assert_true(now.soon_hits <= now.soon_reads);
    *before = now;
}

/* An expectation cancelled before its read began is not counted as read, at no time. */
static void counts_only_rise(void **state)
{
    (void)state;
    struct model *m = open_model(8, 6, 20);
    struct off_store *s;
    struct off_stats stats = { 0 };
    struct off_ticket early, soon, now;
    uint8_t mark[14];
    int32_t next[6], later[6];
    assert_int_equal(open_store(&s, m, least(m) + (all(m) - least(m)) / 2), 0);
    struct asker *a = open_asker(s, m);
    wait_until_filled(s);
    for (int round = 0; round < 400; round++) {
        int layer = round % 8;
        for (int i = 0; i < 6; i++) {
            next[i] = (layer + 1) % 8 * 6 + i;
            later[i] = (layer + 2) % 8 * 6 + i;
        }
        off_fetch(s, later, mark, 6, OFF_EARLY, &early);
        rose(s, &stats);
        off_fetch(s, next, mark + 6, 6, OFF_SOON, &soon);
        rose(s, &stats);
        if (round % 3) {
            choose_some(a, round % 3 == 1 ? layer : (layer + 1) % 8, 2);
            ask(a, 0);
        } else { /* fetched while its read is in flight */
            off_fetch(s, later, mark + 12, 2, OFF_NOW, &now);
            rose(s, &stats);
            for (int got = 0; got < 2;)
                got += off_wait(s, &now, &a->hands, a->index, a->view, a->status);
            off_release(s, &now);
        }
        rose(s, &stats);
        off_release(s, &soon);
        rose(s, &stats);
        off_release(s, &early);
        rose(s, &stats);
    }
    wait_until_quiet(s, 48);
    rose(s, &stats);
    assert_int_equal(a->n_wrong + a->n_failed, 0);
    assert_true(stats.soon_reads > 0 && stats.early_bytes > 0);
    assert_int_equal(s->doubt.reads + s->doubt.read_bytes + s->doubt.soon_reads + s->doubt.early_bytes, 0);
    close_asker(a);
    off_store_close(s);
    close_model(m);
}

/* Prefetches that arrive early and are used count as hidden; prefetches that are never used are stopped early. */
static void what_is_read_early_is_of_use_or_ends(void **state)
{
    (void)state;
    struct model *m = open_model(8, 6, 20);
    for (int right = 0; right < 2; right++) {
        struct off_store *s;
        struct off_stats stats;
        struct off_ticket t;
        uint8_t mark[2];
        int32_t early[2], absent[2];
        uint64_t n_early = 0, n_absent = 0;
        assert_int_equal(open_store(&s, m, least(m) + (all(m) - least(m)) / 2), 0);
        struct asker *a = open_asker(s, m);
        wait_until_filled(s);
        for (int round = 0; round < 400; round++) {
            int layer = round % 8, next = (layer + 2) % 8;
            for (int i = 0; i < 2; i++) /* a layer's turn uses the first or the others */
                early[i] = next * 6 + (right ? round / 8 + i : 4 + i) % 6;
            off_fetch(s, early, mark, 2, OFF_EARLY, &t);
            wait_until_quiet(s, 48);
            n_absent += (uint64_t)off_store_absent(s, early, 2, absent);
            a->n = 2;
            for (int i = 0; i < 2; i++)
                a->expert[i] = layer * 6 +
                               (right ? (round - 2) / 8 + i : (int)(kn_mix((uint64_t)round) % 2) * 2 + i) % 6;
            ask(a, 0);
            off_release(s, &t);
            n_early += 2;
        }
        off_stats_get(s, &stats);
        uint64_t each = stats.read_bytes / stats.reads;
        assert_int_equal(a->n_wrong + a->n_failed, 0);
        assert_true(stats.early_bytes > 0 && n_absent < n_early);
        assert_true(stats.early_used_bytes + stats.early_wasted_bytes <= stats.early_bytes);
        if (right)
            assert_true(stats.early_used_bytes * 2 > stats.early_bytes && stats.early_used_bytes > 40 * each);
        else
            assert_true(stats.early_bytes <= 2 * stats.early_used_bytes + stats.read_bytes / 16 + 36 * each);
        close_asker(a);
        off_store_close(s);
    }
    close_model(m);
}

/* One expert's bytes are beyond the end of the file: only requests for it get the error. */
static void one_that_cannot_be_read_fails_alone(void **state)
{
    (void)state;
    struct model *m = open_model(2, 5, 30);
    struct off_store *s;
    faults_reset();
    m->expert[3].matrix[2].offset = kn_align_up(m->n, 4096) + 4096;
    assert_int_equal(open_store(&s, m, least(m)), 0);
    struct asker *a = open_asker(s, m);
    for (int round = 0; round < 6; round++) {
        for (int e = 0; e < 5; e++)
            a->expert[e] = e;
        a->n = 5;
        ask(a, 0);
        assert_int_equal(a->n_wrong, 0);
        assert_int_equal(a->n_failed, round + 1);
    }
    assert_true(faults.n_line > 0 && strstr(faults.line, m->name));
    close_asker(a);
    off_store_close(s);
    faults_off();
    close_model(m);
}

/* Replaces reads of one page of the file: they wait until released, and the first n_fail of them fail. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t page;
    bool closed;
    int n_fail, n_waiting;
} gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static ssize_t gate_pread(int fd, void *buf, size_t bytes, int64_t at)
{
    bool fails = false;
    pthread_mutex_lock(&gate.lock);
    if (at == gate.page) {
        gate.n_waiting++;
        pthread_cond_broadcast(&gate.changed);
        while (gate.closed)
            pthread_cond_wait(&gate.changed, &gate.lock);
        gate.n_waiting--;
        fails = gate.n_fail > 0 && gate.n_fail--;
    }
    pthread_mutex_unlock(&gate.lock);
    errno = EIO;
    return fails ? -1 : kn_io_system.pread(fd, buf, bytes, at);
}

static void gate_open(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.closed = false;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

static int wait_for_one(struct off_store *s, struct off_ticket *t, struct asker *a)
{
    assert_int_equal(off_wait(s, t, &a->hands, a->index, a->view, a->status), 1);
    assert_true(a->status[0] || is_expert(a->m, t->expert[0], &a->view[0]));
    return a->status[0];
}

/* A failed read fails the tickets that requested it before it began. A ticket that requests it while it is in flight,
 * or after it failed but before all are notified, starts one second read, and the others wait for that too: if it
 * also fails, all get the error. A failed prefetch leaves no trace. */
static void who_asks_later_has_it_read_again(void **state)
{
    (void)state;
    enum { ALONE, UNDER_WAY, IN_VAIN, FAILED, AHEAD };
    struct model *m = open_model(1, 5, 30);
    struct kn_io io = kn_io_system;
    io.pread = gate_pread;
    for (int when = ALONE; when <= AHEAD; when++) {
        struct off_store *s;
        struct off_stats stats;
        struct off_ticket first, second;
        int32_t two[] = { 2 };
        uint8_t mark[2];
        faults_listen();
        kn_io_set(&io);
        gate.page = -1;
        assert_int_equal(open_store(&s, m, least(m)), 0);
        struct asker *a = open_asker(s, m);
        wait_until_filled(s); /* experts 0 and 1 */
        pthread_mutex_lock(&gate.lock);
        gate.page = (int64_t)(m->expert[2].matrix[0].offset & ~(uint64_t)4095);
        gate.closed = true;
        gate.n_fail = when == IN_VAIN ? 6 : 3; /* one read makes that many tries */
        pthread_mutex_unlock(&gate.lock);
        off_fetch(s, two, mark, 1, when == AHEAD ? OFF_SOON : OFF_NOW, &first);
        pthread_mutex_lock(&gate.lock);
        while (gate.n_waiting == 0)
            pthread_cond_wait(&gate.changed, &gate.lock);
        pthread_mutex_unlock(&gate.lock);
        if (when == UNDER_WAY || when == IN_VAIN)
            off_fetch(s, two, mark + 1, 1, OFF_NOW, &second);
        gate_open();
        wait_until_quiet(s, m->n_expert);
        assert_true(faults.n_line == 1 && strstr(faults.line, m->name));
        off_stats_get(s, &stats);
        assert_int_equal(stats.n_empty, when == AHEAD);
        if (when == FAILED || when == AHEAD)
            off_fetch(s, two, mark + 1, 1, OFF_NOW, &second);
        if (when != AHEAD)
            assert_int_equal(wait_for_one(s, &first, a), when == ALONE || when == IN_VAIN ? KN_EIO : 0);
        if (when != ALONE) {
            assert_int_equal(wait_for_one(s, &second, a), when == IN_VAIN ? KN_EIO : 0);
            off_release(s, &second);
        }
        off_release(s, &first);
        close_asker(a);
        off_store_close(s);
    }
    kn_io_set(NULL);
    faults_listen_off();
    close_model(m);
}

static void whatever_fails_nothing_is_left(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error;
    } ways[] = {
        { FAULT_ALLOC, FAULT_ERROR, ENOMEM }, { FAULT_MAP, FAULT_ERROR, ENOMEM }, { FAULT_OPEN, FAULT_ERROR, EMFILE },
        { FAULT_READ, FAULT_ERROR, EIO },     { FAULT_READ, FAULT_LASTS, EIO },   { FAULT_READ, FAULT_EMPTY, 0 },
        { FAULT_READ, FAULT_SHORT, 0 },
    };
    struct model *m = open_model(2, 3, 20);
    struct asker *a = open_asker(NULL, m);
    int n_refused = 0, n_failed = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        bool struck = true;
        for (long n = 1; struck; n++) {
            struct off_store *s = NULL;
            faults_at(ways[i].kind, n, ways[i].way, ways[i].error);
            int got = open_store(&s, m, least(m));
            n_refused += got != 0;
            a->s = s;
            a->n_failed = 0;
            for (int layer = 0; !got && layer < 2; layer++) {
                choose_some(a, layer, 1);
                ask(a, 0);
            }
            n_failed += a->n_failed;
            assert_int_equal(a->n_wrong, 0);
            assert_true(!a->n_failed || faults.n_line);
            struck = faults.struck;
            off_store_close(s);
            if ((got && (!struck || faults.n_line != 1)) || !faults_clean())
                fail_msg("way %zu, call %ld: %d, %d lines (%s), %s", i, n, got, faults.n_line, faults.line,
                         faults_clean() ? "clean" : "something is left");
        }
    }
    assert_true(n_refused >= 5 && n_failed > 0);
    faults_off();
    close_asker(a);
    close_model(m);
}

/* ---- several threads ------------------------------------------------------------------------- */

static void threads_ask_at_once(void **state)
{
    (void)state;
    struct model *m = open_model(3, 8, 10);
    for (int room = 0; room < 3; room++)
        ask_from_threads(m, least(m) + (all(m) - least(m)) * (size_t)room / 2);
    close_model(m);
}

/* A fetch waits for a free slot; another client's prefetch reads the expert: from then on it counts as needed. */
static void what_others_read_ahead_is_taken_over(void **state)
{
    (void)state;
    struct model *m = open_model(1, 5, 30);
    struct off_store *s;
    struct off_stats stats;
    struct off_ticket first, second, soon;
    int32_t zero[] = { 0 }, rest[] = { 1, 2 }, two[] = { 2 };
    uint8_t mark[4];
    int got, given = 0;
    assert_int_equal(open_store(&s, m, least(m)), 0);
    struct asker *a = open_asker(s, m);
    wait_until_filled(s); /* experts 0 and 1 */
    off_fetch(s, zero, mark, 1, OFF_NOW, &first);
    off_fetch(s, rest, mark + 1, 2, OFF_NOW, &second); /* no slot for 2 */
    off_release(s, &first);
    off_fetch(s, two, mark + 3, 1, OFF_SOON, &soon);
    while ((got = off_wait(s, &second, &a->hands, a->index, a->view, a->status)) > 0)
        for (int i = 0; i < got; i++, given++)
            assert_true(a->status[i] == 0 && is_expert(m, rest[a->index[i]], &a->view[i]));
    assert_int_equal(given, 2);
    off_stats_get(s, &stats);
    assert_int_equal(stats.soon_reads, 1);
    assert_int_equal(stats.soon_hits, 1);
    assert_int_equal(stats.misses, 1);
    off_release(s, &soon);
    off_release(s, &second);
    close_asker(a);
    off_store_close(s);
    close_model(m);
}

static void a_look_shows_where_all_are(void **state)
{
    (void)state;
    struct model *m = open_model(3, 8, 30);
    struct off_store *s;
    struct off_spot spot[24];
    struct off_stats stats;
    assert_int_equal(open_store(&s, m, least(m) + (all(m) - least(m)) / 3), 0);
    struct asker *a = open_asker(s, m);
    wait_until_filled(s);
    off_store_look(s, spot);
    for (int e = 0; e < 24; e++)
        assert_true(spot[e].group == e / 8 && spot[e].heat == 0);
    for (int turn = 0; turn < 60; turn++) { /* the same two of each group every time */
        a->n = 2;
        a->expert[0] = turn % 3 * 8 + 5;
        a->expert[1] = turn % 3 * 8 + 6;
        ask(a, 0);
    }
    off_store_look(s, spot);
    off_stats_get(s, &stats);
    int n_here = 0;
    for (int e = 0; e < 24; e++) {
        bool used = e % 8 == 5 || e % 8 == 6;
        n_here += spot[e].tier == OFF_HOST;
        assert_false(spot[e].coming);
        assert_true(used ? spot[e].tier == OFF_HOST && spot[e].heat > 0.5f && spot[e].heat <= 1 : spot[e].heat == 0);
    }
    assert_int_equal(n_here, stats.n_slot - stats.n_empty);
    assert_true(n_here < 24);
    close_asker(a);
    off_store_close(s);
    close_model(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_expert_is_itself_whatever_the_room),
        cmocka_unit_test(every_expert_is_on_its_node),
        cmocka_unit_test(nodes_share_the_budget),
        cmocka_unit_test(a_thousand_small_experts),
        cmocka_unit_test(a_budget_is_kept),
        cmocka_unit_test(memory_of_slots_is_made),
        cmocka_unit_test(what_is_read_ahead_is_counted),
        cmocka_unit_test(what_is_expected_follows_what_is_done),
        cmocka_unit_test(counts_only_rise),
        cmocka_unit_test(what_is_read_early_is_of_use_or_ends),
        cmocka_unit_test(one_that_cannot_be_read_fails_alone),
        cmocka_unit_test(who_asks_later_has_it_read_again),
        cmocka_unit_test(whatever_fails_nothing_is_left),
        cmocka_unit_test(what_others_read_ahead_is_taken_over),
        cmocka_unit_test(threads_ask_at_once),
        cmocka_unit_test(a_look_shows_where_all_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
