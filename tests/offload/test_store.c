/* The expert store: what it hands out for an expert is that expert, whole, however few slots there are,
 * whoever else asks and whatever was read ahead; a budget is kept; what cannot be read is said of that
 * expert alone; and what fails leaves nothing behind.
 *
 * Bytes are random: nothing here reads numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/offload.h"
#include "tests/faults.h"
#include "tests/nodes.h"

#define MAX_EXPERT 1200

struct model {                                  /* experts in one file */
    struct off_expert expert[MAX_EXPERT];
    int n_expert, per_layer;
    uint8_t *data;
    size_t n;
    char path[64];
    const char *name;
    int fd;
    struct kn_team *team;
};

static uint64_t random_state;
static int random_below(int n)
{
    return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n);
}

/* n_out 0: an expert without this matrix. */
static void add_matrix(struct model *m, int expert, int i, enum kn_format f, int n_out, int n_in)
{
    size_t bytes = (size_t)n_out * kn_row_bytes(f, n_in);
    size_t offset = kn_align_up(m->n, 8) + 8 * (size_t)random_below(5);
    m->data = realloc(m->data, offset + bytes + 1);
    for (; m->n < offset + bytes; m->n++)
        m->data[m->n] = (uint8_t)kn_mix(m->n);
    m->expert[expert].matrix[i] = (struct off_source){ 0, offset, f, n_out, n_in };
}

/* Layers as GGUF has them: all first matrices, all second, all third; every layer of other
 * formats. */
static struct model *open_model(int n_layer, int per_layer, int d)
{
    static const enum kn_format format[] = { KN_Q4_K, KN_Q6_K, KN_Q8_0, KN_F16, KN_F32, KN_BF16 };
    struct model *m = calloc(1, sizeof *m);
    random_state = 4;
    for (int layer = 0; layer < n_layer; layer++)
        for (int i = 0; i < OFF_MATRICES; i++)
            for (int e = 0; e < per_layer; e++) {
                int n_out = i == 1 && layer % 4 == 3 ? 0 : d + layer * 5 + i;
                add_matrix(m, layer * per_layer + e, i, format[(layer + i) % 6], n_out,
                           256 * (1 + i));
            }
    m->n_expert = n_layer * per_layer;
    m->per_layer = per_layer;
    for (int e = 0; e < m->n_expert; e++)
        m->expert[e].group = e / per_layer;
    snprintf(m->path, sizeof m->path, "/tmp/spillway-store-%d", getpid());
    m->name = m->path;
    FILE *f = fopen(m->path, "wb");
    if (!f || fwrite(m->data, 1, m->n, f) != m->n || fclose(f))
        abort();
    m->fd = open(m->path, O_RDONLY);
    assert_true(m->fd >= 0);
    assert_int_equal(kn_team_open(&m->team, 2), 0);
    return m;
}

static void close_model(struct model *m)
{
    kn_team_close(m->team);
    close(m->fd);
    unlink(m->path);
    free(m->data);
    free(m);
}

static int open_store(struct off_store **s, const struct model *m, size_t bytes)
{
    return off_store_open(s, &(struct off_store_options){
        .files = { 1, &m->fd, &m->name }, .expert = m->expert, .n_expert = m->n_expert,
        .slot_bytes = bytes, .io = OFF_IO_PREAD });
}

static size_t least(const struct model *m) { return off_store_least(m->expert, m->n_expert); }
static size_t all(const struct model *m)   { return off_store_bytes(m->expert, m->n_expert); }

/* Somebody who asks: a team of its own and room for what comes. */
struct asker {
    struct off_store *s;
    const struct model *m;
    struct off_hands hands;
    int32_t expert[MAX_EXPERT], index[MAX_EXPERT];
    uint8_t mark[MAX_EXPERT];
    struct off_view view[MAX_EXPERT];
    int status[MAX_EXPERT];
    bool seen[MAX_EXPERT];
    int n;                                      /* of expert */
    int n_wrong, n_failed;
    uint64_t random;
};

static struct asker *open_asker(struct off_store *s, const struct model *m)
{
    struct asker *a = calloc(1, sizeof *a);
    size_t bytes = (size_t)1 << 18;
    a->s = s;
    a->m = m;
    a->hands = (struct off_hands){ kn_ops(KN_ISA_COUNT - 1), NULL, NULL, bytes };
    assert_int_equal(kn_team_open(&a->hands.team, 2), 0);
    a->hands.scratch = aligned_alloc(64, 2 * bytes);
    return a;
}

static void close_asker(struct asker *a)
{
    kn_team_close(a->hands.team);
    free(a->hands.scratch);
    free(a);
}

static bool is_expert(const struct model *m, int expert, const struct off_view *v)
{
    bool same = v->tier == OFF_HOST;
    for (int i = 0; i < OFF_MATRICES && same; i++) {
        const struct off_source *s = &m->expert[expert].matrix[i];
        const struct kn_mat *w = &v->matrix[i];
        same = w->n_out == s->n_out &&
               (s->n_out == 0 || (w->format == s->format && w->n_in == s->n_in));
        if (!same || s->n_out == 0)
            continue;
        size_t bytes = kn_mat_bytes(s->format, s->n_out, s->n_in);
        void *want = malloc(bytes);
        kn_ops(KN_ISA_SCALAR)->repack(s->format, m->data + s->offset, s->n_out, s->n_in, want, 0,
                                      kn_ceil_div(s->n_out, KN_PANEL));
        same = (uintptr_t)w->data % 64 == 0 && !memcmp(w->data, want, bytes);
        free(want);
    }
    return same;
}

/* Nodes take turns at a group's experts; all of one lies on its node. */
static bool is_near(const struct model *m, int expert, const struct off_view *v)
{
    struct kn_machine machine;
    kn_machine_get(&machine);
    bool near = v->node == expert % m->per_layer % machine.n_node;
    for (int i = 0; i < OFF_MATRICES && near && machine.n_node > 1; i++) {
        const struct kn_mat *w = &v->matrix[i];
        near = !w->n_out || nodes_of(w->data, kn_mat_bytes(w->format, w->n_out, w->n_in)) ==
                                machine.node[v->node];
    }
    return near;
}

/* Fetches the asker's list and sees each of it once, whole or with a status; most > 0: gives up when so
 * many have come. */
static void ask(struct asker *a, int most)
{
    struct off_ticket t;
    int got, given = 0;
    memset(a->seen, 0, sizeof a->seen);
    off_fetch(a->s, a->expert, a->mark, a->n, OFF_NOW, &t);
    while ((!most || given < most) &&
           (got = off_wait(a->s, &t, &a->hands, a->index, a->view, a->status)) > 0)
        for (int i = 0; i < got; i++, given++) {
            int at = a->index[i];
            a->n_wrong += at < 0 || at >= a->n || a->seen[at];
            a->seen[at] = true;
            if (a->status[i])
                a->n_failed++;
            else
                a->n_wrong += !is_expert(a->m, a->expert[at], &a->view[i]) ||
                              !is_near(a->m, a->expert[at], &a->view[i]);
        }
    a->n_wrong += !most && given != a->n;
    off_release(a->s, &t);
}

/* Some of a layer's experts, in any order; of each a share of 1 in `of`. */
static void choose_some(struct asker *a, int layer, int of)
{
    a->n = 0;
    for (int i = 0; i < a->m->per_layer; i++) {
        a->random = kn_mix(a->random + KN_GOLDEN);
        if ((int)(a->random >> 8 & 0xffff) % of)
            continue;
        int at = (int)((a->random >> 32) % (uint64_t)(a->n + 1));
        a->expert[a->n++] = a->expert[at];
        a->expert[at] = layer * a->m->per_layer + i;
    }
}

static void wait_until_filled(struct off_store *s)
{
    struct off_stats stats;
    do {
        sched_yield();
        off_stats_get(s, &stats);
    } while (stats.n_empty);
}

/* ---- what must hold -------------------------------------------------------------------------- */

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

/* Each smaller than a panel. */
static void every_expert_is_on_its_node(void **state)
{
    nodes_set(2);
    every_expert_is_itself_whatever_the_room(state);
    nodes_set(1);
}

/* Slots of all nodes together take no more than there is, nor is any node without its two. */
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

/* What is read ahead is there when it is asked for; what was not is counted as wasted when it goes. */
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

/* One expert's bytes are beyond the end of the file: those who need it are told, and nobody else. */
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

static void whatever_fails_nothing_is_left(void **state)
{
    (void)state;
    static const struct { enum fault_kind kind; enum fault_way way; int error; } ways[] = {
        { FAULT_ALLOC, FAULT_ERROR, ENOMEM }, { FAULT_MAP, FAULT_ERROR, ENOMEM },
        { FAULT_OPEN, FAULT_ERROR, EMFILE },  { FAULT_READ, FAULT_ERROR, EIO },
        { FAULT_READ, FAULT_LASTS, EIO },     { FAULT_READ, FAULT_EMPTY, 0 },
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
                fail_msg("way %zu, call %ld: %d, %d lines (%s), %s", i, n, got, faults.n_line,
                         faults.line, faults_clean() ? "clean" : "something is left");
        }
    }
    assert_true(n_refused >= 5 && n_failed > 0);
    faults_off();
    close_asker(a);
    close_model(m);
}

/* ---- several threads ------------------------------------------------------------------------- */

static void *ask_often(void *arg)
{
    struct asker *a = arg;
    struct off_ticket t;
    uint8_t mark[8];
    int32_t soon[8];
    for (int round = 0; round < 150; round++) {
        int layer = round % 3, next = (layer + 1) % 3;
        for (int i = 0; i < 4; i++)
            soon[i] = next * 8 + (i * 2 + round) % 8;
        choose_some(a, layer, 1 + round % 2);
        off_fetch(a->s, soon, mark, 4, OFF_SOON, &t);
        ask(a, round % 5 == 4 ? 1 : 0);
        off_release(a->s, &t);
    }
    return NULL;
}

static void threads_ask_at_once(void **state)
{
    (void)state;
    struct model *m = open_model(3, 8, 10);
    for (int room = 0; room < 3; room++) {
        struct off_store *s;
        struct asker *a[3];
        pthread_t thread[3];
        assert_int_equal(open_store(&s, m, least(m) + (all(m) - least(m)) * (size_t)room / 2), 0);
        for (int i = 0; i < 3; i++) {
            a[i] = open_asker(s, m);
            a[i]->random = (uint64_t)i;
            assert_int_equal(pthread_create(&thread[i], NULL, ask_often, a[i]), 0);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(thread[i], NULL);
            assert_int_equal(a[i]->n_wrong + a[i]->n_failed, 0);
            close_asker(a[i]);
        }
        off_store_close(s);
    }
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
        cmocka_unit_test(what_is_read_ahead_is_counted),
        cmocka_unit_test(one_that_cannot_be_read_fails_alone),
        cmocka_unit_test(whatever_fails_nothing_is_left),
        cmocka_unit_test(threads_ask_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
