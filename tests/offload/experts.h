/* tests/offload/experts.h - random experts in a file, and a client that fetches experts from a store and checks their
 * bytes. Bytes are random: no test here interprets them as numbers. Include cmocka first. */
#ifndef TESTS_OFFLOAD_EXPERTS_H
#define TESTS_OFFLOAD_EXPERTS_H

#include <stdlib.h>
#include <unistd.h>

#include "offload/offload.h"
#include "tests/faults.h"
#include "tests/nodes.h"

#define MAX_EXPERT 1200

struct model { /* experts in one file */
    struct off_expert expert[MAX_EXPERT];
    int n_expert, per_layer;
    uint8_t *data;
    size_t n;
    uint8_t *want[MAX_EXPERT][OFF_MATRICES]; /* each matrix as repacked; NULL: the expert has no such matrix */
    char path[64];
    const char *name;
    int fd;
    const char *pack; /* path of the pack file passed to the store, or NULL */
    uint64_t id;
    size_t later; /* bytes by which the store may grow later */
    struct kn_team *team;
};

static uint64_t random_state;
static inline int random_below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

/* Adds matrix i of an expert to the model; n_out 0: the expert has no such matrix. */
static inline void add_matrix(struct model *m, int expert, int i, enum kn_format f, int n_out, int n_in)
{
    size_t bytes = (size_t)n_out * kn_row_bytes(f, n_in);
    size_t offset = kn_align_up(m->n, 8) + 8 * (size_t)random_below(5);
    m->data = realloc(m->data, offset + bytes + 1);
    for (; m->n < offset + bytes; m->n++)
        m->data[m->n] = (uint8_t)kn_mix(m->n);
    m->expert[expert].matrix[i] = (struct off_source){ .offset = offset, .format = f, .n_out = n_out, .n_in = n_in };
}

/* Repacks every matrix by the specification, for comparison. */
static inline void make_wanted(struct model *m)
{
    for (int e = 0; e < m->n_expert; e++)
        for (int i = 0; i < OFF_MATRICES; i++) {
            const struct off_source *s = &m->expert[e].matrix[i];
            if (s->n_out == 0)
                continue;
            m->want[e][i] = malloc(kn_mat_bytes(s->format, s->n_out, s->n_in));
            kn_ops(KN_ISA_SCALAR)
                ->repack(s->format, m->data + s->offset, s->n_out, s->n_in, m->want[e][i], 0,
                         kn_ceil_div(s->n_out, KN_PANEL));
        }
}

/* Writes the model's bytes to its file and opens it; opens the team. */
static inline void save_model(struct model *m)
{
    make_wanted(m);
    snprintf(m->path, sizeof m->path, "/tmp/spillway-experts-%d", getpid());
    m->name = m->path;
    FILE *f = fopen(m->path, "wb");
    if (!f || fwrite(m->data, 1, m->n, f) != m->n || fclose(f))
        abort();
    m->fd = open(m->path, O_RDONLY);
    assert_true(m->fd >= 0);
    assert_int_equal(kn_team_open(&m->team, 2), 0);
}

/* Layers in GGUF's order: all first matrices, all second, all third. Formats differ between
 * layers. */
static inline struct model *open_model(int n_layer, int per_layer, int d)
{
    static const enum kn_format format[] = { KN_Q4_K, KN_Q6_K, KN_Q8_0, KN_F16, KN_F32, KN_BF16 };
    struct model *m = calloc(1, sizeof *m);
    random_state = 4;
    for (int layer = 0; layer < n_layer; layer++)
        for (int i = 0; i < OFF_MATRICES; i++)
            for (int e = 0; e < per_layer; e++) {
                int n_out = i == 1 && layer % 4 == 3 ? 0 : d + layer * 5 + i;
                add_matrix(m, layer * per_layer + e, i, format[(layer + i) % 6], n_out, 256 * (1 + i));
            }
    m->n_expert = n_layer * per_layer;
    m->per_layer = per_layer;
    for (int e = 0; e < m->n_expert; e++)
        m->expert[e].group = e / per_layer;
    save_model(m);
    return m;
}

static inline void close_model(struct model *m)
{
    kn_team_close(m->team);
    close(m->fd);
    unlink(m->path);
    for (int e = 0; e < m->n_expert; e++)
        for (int i = 0; i < OFF_MATRICES; i++)
            free(m->want[e][i]);
    free(m->data);
    free(m);
}

static inline int open_store(struct off_store **s, const struct model *m, size_t bytes)
{
    return off_store_open(s, &(struct off_store_options){ .files = { .n_file = 1, .fd = &m->fd, .path = &m->name },
                                                          .expert = m->expert,
                                                          .n_expert = m->n_expert,
                                                          .slot_bytes = bytes,
                                                          .later_bytes = m->later,
                                                          .io = OFF_IO_PREAD,
                                                          .pack_path = m->pack,
                                                          .model_id = m->id });
}

static inline size_t least(const struct model *m) { return off_store_least(m->expert, m->n_expert); }
static inline size_t all(const struct model *m) { return off_store_bytes(m->expert, m->n_expert); }

/* A client of the store: a team of its own and memory for fetched bytes. */
struct asker {
    struct off_store *s;
    const struct model *m;
    struct off_hands hands;
    int32_t expert[MAX_EXPERT], index[MAX_EXPERT];
    uint8_t mark[MAX_EXPERT];
    struct off_view view[MAX_EXPERT];
    int status[MAX_EXPERT];
    bool seen[MAX_EXPERT];
    int n; /* entries in expert */
    int n_wrong, n_failed;
    uint64_t random;
};

static inline struct asker *open_asker(struct off_store *s, const struct model *m)
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

static inline void close_asker(struct asker *a)
{
    kn_team_close(a->hands.team);
    free(a->hands.scratch);
    free(a);
}

static inline bool is_expert(const struct model *m, int expert, const struct off_view *v)
{
    bool same = v->tier == OFF_HOST;
    for (int i = 0; i < OFF_MATRICES && same; i++) {
        const struct off_source *s = &m->expert[expert].matrix[i];
        const struct kn_mat *w = &v->matrix[i];
        same = w->n_out == s->n_out && (s->n_out == 0 || (w->format == s->format && w->n_in == s->n_in));
        if (same && s->n_out)
            same = (uintptr_t)w->data % 64 == 0 &&
                   !memcmp(w->data, m->want[expert][i], kn_mat_bytes(s->format, s->n_out, s->n_in));
    }
    return same;
}

/* Experts of a group alternate between nodes; all matrices of one expert are on one node. */
static inline bool is_near(const struct model *m, int expert, const struct off_view *v)
{
    struct kn_machine machine;
    kn_machine_get(&machine);
    bool near = v->node == expert % m->per_layer % machine.n_node;
    for (int i = 0; i < OFF_MATRICES && near && machine.n_node > 1; i++) {
        const struct kn_mat *w = &v->matrix[i];
        near = !w->n_out || nodes_of(w->data, kn_mat_bytes(w->format, w->n_out, w->n_in)) == machine.node[v->node];
    }
    return near;
}

/* Fetches the asker's list and checks that each expert arrives once, complete or with an error status; most > 0:
 * cancels the ticket after `most` experts. */
static inline void ask(struct asker *a, int most)
{
    struct off_ticket t;
    int got, given = 0;
    memset(a->seen, 0, sizeof a->seen);
    off_fetch(a->s, a->expert, a->mark, a->n, OFF_NOW, &t);
    while ((!most || given < most) && (got = off_wait(a->s, &t, &a->hands, a->index, a->view, a->status)) > 0)
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

/* Picks experts of a layer in random order; each with probability 1 / of. */
static inline void choose_some(struct asker *a, int layer, int of)
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

/* Fetches some experts of each layer in turn. */
static inline void ask_all_layers(struct asker *a, int n_round)
{
    for (int round = 0; round < n_round; round++) {
        choose_some(a, round % (a->m->n_expert / a->m->per_layer), 1 + round % 5);
        ask(a, 0);
    }
    assert_int_equal(a->n_wrong + a->n_failed, 0);
}

static inline void wait_until_filled(struct off_store *s)
{
    struct off_stats stats;
    do {
        usleep(1000);
        off_stats_get(s, &stats);
    } while (stats.filling);
}

/* Waits until no read is in flight. */
static inline void wait_until_quiet(struct off_store *s, int n_expert)
{
    struct off_spot spot[MAX_EXPERT];
    bool quiet = false;
    while (!quiet) {
        off_store_look(s, spot);
        quiet = true;
        for (int e = 0; e < n_expert; e++)
            quiet &= !spot[e].coming;
        usleep(50);
    }
}

/* ---- several threads ------------------------------------------------------------------------- */

static inline void *ask_often(void *arg)
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

/* Prefetches experts that it does not use and cancels at once, until stop is set. */
struct dreamer {
    struct off_store *s;
    atomic_bool stop;
};

static inline void *dream(void *arg)
{
    struct dreamer *d = arg;
    struct off_ticket t;
    uint8_t mark[3];
    uint64_t random = 1;
    while (!atomic_load(&d->stop)) {
        int32_t soon[3];
        random = kn_mix(random + KN_GOLDEN);
        for (int i = 0; i < 3; i++)
            soon[i] = (int32_t)(random % 3 * 8 + (random >> 8) % 5 + (uint64_t)i);
        off_fetch(d->s, soon, mark, 3, OFF_SOON, &t);
        if (random >> 60 & 1)
            sched_yield();
        off_release(d->s, &t);
        usleep(500); /* limits the load: other threads must get their share */
    }
    return NULL;
}

/* Askers and a dreamer, each in a thread of its own. */
#define MOST_ASKER 3
struct askers {
    struct asker *asker[MOST_ASKER];
    struct dreamer dreamer;
    pthread_t thread[MOST_ASKER], dreams;
    int n;
};

static inline void begin_asking(struct askers *a, struct off_store *s, const struct model *m, int n)
{
    *a = (struct askers){ .dreamer.s = s, .n = n };
    assert_int_equal(pthread_create(&a->dreams, NULL, dream, &a->dreamer), 0);
    for (int i = 0; i < n; i++) {
        a->asker[i] = open_asker(s, m);
        a->asker[i]->random = (uint64_t)i;
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&a->thread[i], NULL, ask_often, a->asker[i]), 0);
}

static inline void end_asking(struct askers *a)
{
    for (int i = 0; i < a->n; i++) {
        pthread_join(a->thread[i], NULL);
        assert_int_equal(a->asker[i]->n_wrong + a->asker[i]->n_failed, 0);
        close_asker(a->asker[i]);
    }
    atomic_store(&a->dreamer.stop, true);
    pthread_join(a->dreams, NULL);
}

/* Several askers at once over a model of three layers of eight experts. */
static inline void ask_from_threads(const struct model *m, size_t bytes)
{
    struct off_store *s;
    struct askers a;
    assert_int_equal(open_store(&s, m, bytes), 0);
    begin_asking(&a, s, m, 3);
    end_asking(&a);
    off_store_close(s);
}

#endif
