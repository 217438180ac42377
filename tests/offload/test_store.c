/* The expert store: what it hands out for an expert is that expert, whole, however many matrices
 * of whatever format it has; a budget is kept; and what fails leaves nothing behind.
 *
 * Bytes are random: nothing here reads numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/offload.h"
#include "tests/faults.h"

#define MAX_EXPERT 1200

struct model {                                  /* experts in one file */
    struct off_expert expert[MAX_EXPERT];
    int n_expert;
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

static int open_store(struct off_store **s, const struct model *m, size_t budget)
{
    return off_store_open(s, &(struct off_store_options){
        .files = { 1, &m->fd, &m->name }, .expert = m->expert, .n_expert = m->n_expert,
        .host_bytes = budget, .ops = kn_ops(KN_ISA_COUNT - 1), .team = m->team });
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

/* Fetches n experts and sees each of them once. */
static void check_fetch(struct off_store *s, const struct model *m, const int32_t *expert, int n)
{
    struct off_ticket t;
    struct off_view *view = calloc((size_t)n, sizeof *view);
    int32_t *index = calloc((size_t)n, sizeof *index);
    int *status = calloc((size_t)n, sizeof *status), got, given = 0;
    bool *seen = calloc((size_t)n, sizeof *seen);
    assert_int_equal(off_fetch(s, expert, n, OFF_NOW, &t), 0);
    while ((got = off_wait(s, &t, index, view, status)) > 0) {
        for (int i = 0; i < got; i++, given++) {
            assert_in_range(index[i], 0, n - 1);
            assert_false(seen[index[i]]);
            seen[index[i]] = true;
            assert_int_equal(status[i], 0);
            assert_true(is_expert(m, expert[index[i]], &view[i]));
        }
        assert_true(given <= n);
    }
    assert_int_equal(got, 0);
    assert_int_equal(given, n);
    off_release(s, &t);
    free(view);
    free(index);
    free(status);
    free(seen);
}

/* ---- what must hold -------------------------------------------------------------------------- */

static void every_expert_is_itself(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    struct off_store *s;
    struct off_stats stats;
    int32_t list[MAX_EXPERT];
    int hits = 0;
    assert_int_equal(open_store(&s, m, 0), 0);
    for (int round = 0; round < 20; round++) {
        int n = 0;
        for (int e = 0; e < m->n_expert; e++)           /* distinct ones, not in order */
            if (round == 0 || random_below(3) == 0) {
                int at = random_below(n + 1);
                list[n++] = list[at];
                list[at] = e;
            }
        if (n == 0)
            continue;
        check_fetch(s, m, list, n);
        hits += n;
    }
    off_stats_get(s, &stats);
    assert_int_equal(stats.hits, hits);
    size_t bytes = 0;
    for (int e = 0; e < m->n_expert; e++)
        for (int i = 0; i < OFF_MATRICES; i++) {
            const struct off_source *x = &m->expert[e].matrix[i];
            bytes += (size_t)x->n_out * kn_row_bytes(x->format, x->n_in);
        }
    assert_int_equal(stats.read_bytes, bytes);
    off_store_close(s);
    close_model(m);
}

/* More than the store lists in one go, each smaller than a panel. */
static void a_thousand_small_experts(void **state)
{
    (void)state;
    struct model *m = open_model(1, MAX_EXPERT, 1);
    struct off_store *s;
    int32_t list[MAX_EXPERT];
    for (int e = 0; e < m->n_expert; e++)
        list[e] = m->n_expert - 1 - e;
    assert_int_equal(open_store(&s, m, 0), 0);
    check_fetch(s, m, list, m->n_expert);
    off_store_close(s);
    close_model(m);
}

static void a_budget_is_kept(void **state)
{
    (void)state;
    struct model *m = open_model(4, 3, 20);
    struct off_store *s;
    size_t need = off_store_bytes(m->expert, m->n_expert);
    faults_reset();
    assert_int_equal(open_store(&s, m, need - 1), KN_ELIMIT);
    assert_int_equal(faults.n_line, 1);
    assert_non_null(strstr(faults.line, "--host-mem"));
    assert_true(faults_clean());
    assert_int_equal(open_store(&s, m, need), 0);
    assert_true(faults.n_map > 0 && (size_t)faults.n_map <= need);
    off_store_close(s);
    off_store_close(NULL);
    assert_true(faults_clean());
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
    struct off_view v;
    struct off_ticket t;
    int32_t index;
    int n_error = 0, status;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        bool struck = true;
        for (long n = 1; struck; n++) {
            struct off_store *s = NULL;
            faults_at(ways[i].kind, n, ways[i].way, ways[i].error);
            int got = open_store(&s, m, 0);
            struck = faults.struck;
            for (int32_t e = 0; !got && e < m->n_expert; e++) {
                assert_int_equal(off_fetch(s, &e, 1, OFF_NOW, &t), 0);
                assert_int_equal(off_wait(s, &t, &index, &v, &status), 1);
                assert_true(is_expert(m, e, &v));
                off_release(s, &t);
            }
            off_store_close(s);
            if (faults.n_line != (got != 0) || (got && !struck) || !faults_clean())
                fail_msg("way %zu, call %ld: %d, %d lines (%s), %s", i, n, got, faults.n_line,
                         faults.line, faults_clean() ? "clean" : "something is left");
            n_error += got != 0;
        }
    }
    assert_true(n_error >= 5);
    faults_off();
    close_model(m);
}

/* ---- several threads ------------------------------------------------------------------------- */

struct fetcher { struct off_store *s; const struct model *m; int first, failed; };

static void *fetch_many(void *arg)
{
    struct fetcher *f = arg;
    for (int round = 0; round < 80; round++) {
        int32_t e[2] = { (f->first + round) % f->m->n_expert,
                         (f->first + round + 5) % f->m->n_expert };
        struct off_ticket t;
        struct off_view v[2];
        int32_t index[2];
        int status[2], n, given = 0;
        f->failed += off_fetch(f->s, e, 2, OFF_NOW, &t) != 0;
        while ((n = off_wait(f->s, &t, index, v, status)) > 0)
            for (int i = 0; i < n; i++, given++)
                f->failed += status[i] != 0 || !is_expert(f->m, e[index[i]], &v[i]);
        f->failed += given != 2;
        off_release(f->s, &t);
    }
    return NULL;
}

static void threads_fetch_at_once(void **state)
{
    (void)state;
    struct model *m = open_model(3, 4, 10);
    struct off_store *s;
    struct fetcher f[3];
    struct off_stats stats;
    pthread_t thread[3];
    assert_int_equal(open_store(&s, m, 0), 0);
    for (int i = 0; i < 3; i++) {
        f[i] = (struct fetcher){ s, m, 4 * i, 0 };
        assert_int_equal(pthread_create(&thread[i], NULL, fetch_many, &f[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(f[i].failed, 0);
    }
    off_stats_get(s, &stats);
    assert_int_equal(stats.hits, 3 * 80 * 2);
    off_store_close(s);
    close_model(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_expert_is_itself),
        cmocka_unit_test(a_thousand_small_experts),
        cmocka_unit_test(a_budget_is_kept),
        cmocka_unit_test(whatever_fails_nothing_is_left),
        cmocka_unit_test(threads_fetch_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
