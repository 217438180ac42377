/* Matrix products: every panel of every product is computed once, and on two nodes by threads of the panel's node. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/pass/host.h"
#include "tests/nodes.h"

#define MAX_PRODUCT 40
#define N_IN        256 /* a panel of F32 is 16 KiB, the smallest item */

static struct {
    pthread_t thread[8]; /* of the team */
    atomic_int n_begun;  /* each kernel call waits until n_wait have begun */
    int n_wait;
    atomic_int done[MAX_PRODUCT][64]; /* per panel: number of computations, last thread */
    atomic_int by[MAX_PRODUCT][64];
    const void *x[MAX_PRODUCT][64]; /* per panel: its input, and its output rows */
    const float *y[MAX_PRODUCT][64];
    int first[8], first_panel[8]; /* each thread's first product + 1; 0: none */
} seen;

static void say_who(void *arg, int item, int thread)
{
    (void)item;
    seen.thread[thread] = pthread_self();
    atomic_int *begun = arg;
    atomic_fetch_add(begun, 1);
    while (atomic_load(begun) < seen.n_wait)
        sched_yield();
}

/* The address of a matrix identifies its product. */
static char names[MAX_PRODUCT];

static void noted_matmul(const struct kn_matmul *m, int panel0, int panel1)
{
    int product = (int)((const char *)m->w.data - names), who = 0;
    while (!pthread_equal(seen.thread[who], pthread_self()))
        who++;
    if (!seen.first[who]) {
        seen.first[who] = product + 1;
        seen.first_panel[who] = panel0;
    }
    for (int i = panel0; i < panel1; i++) {
        seen.x[product][i] = m->x;
        seen.y[product][i] = m->y + i * KN_PANEL;
        atomic_fetch_add(&seen.done[product][i], 1);
        atomic_store(&seen.by[product][i], who);
    }
    atomic_fetch_add(&seen.n_begun, 1);
    while (atomic_load(&seen.n_begun) < seen.n_wait)
        sched_yield();
}

struct rig {
    struct kn_ops ops;
    struct kn_host_device device;
    struct kn_team *team;
    struct kn_queue *queue;
    struct kn_host_queue *host; /* the same */
};

static struct rig *open_rig(int n_thread)
{
    struct rig *r = calloc(1, sizeof *r);
    atomic_int begun = 0;
    r->ops.matmul = noted_matmul;
    r->device = (struct kn_host_device){ { &kn_host_backend }, KN_ISA_SCALAR, &r->ops };
    assert_int_equal(kn_team_open(&r->team, n_thread), 0);
    struct kn_queue_options opt = { .device = &r->device.base, .team = r->team, .max_product = MAX_PRODUCT };
    assert_int_equal(kn_queue_open(&r->queue, &opt), 0);
    r->host = (struct kn_host_queue *)r->queue;
    memset(&seen, 0, sizeof seen);
    seen.n_wait = n_thread;
    kn_parallel_for(r->team, n_thread, say_who, &begun);
    return r;
}

static void close_rig(struct rig *r)
{
    kn_queue_close(r->queue);
    kn_team_close(r->team);
    free(r);
}

static float in[64], out[4096];

static void add(struct rig *r, int i, int n_panel, int n_row, int node)
{
    r->host->product[i] = (struct kn_product){
        .mul = { .w = { KN_F32, n_panel * KN_PANEL - 3, N_IN, 1, names + i }, .x = in, .y = out, .n_row = n_row },
        .node = node,
        .n_stack = 1
    };
}

/* Divides the panels among n_stack matrices, with gaps between their inputs and between their outputs. */
static void make_stack(struct kn_product *p, int n_stack)
{
    int n_panel = kn_ceil_div(p->mul.w.n_out, KN_PANEL);
    if (n_panel <= 0 || n_panel % n_stack)
        return;
    p->mul.w.n_out = n_panel * KN_PANEL;
    p->n_stack = n_stack;
    p->x_part = 12;
    p->y_part = (size_t)(n_panel / n_stack * KN_PANEL + 5);
}

static void check_places(const struct kn_product *p, int product)
{
    int n_panel = kn_ceil_div(p->mul.w.n_out, KN_PANEL), n_own = n_panel / p->n_stack;
    for (int i = 0; i < n_panel && p->mul.n_row > 0; i++) {
        size_t which = (size_t)(i / n_own);
        assert_ptr_equal(seen.x[product][i], (const char *)in + which * p->x_part);
        assert_ptr_equal(seen.y[product][i], out + which * p->y_part + i % n_own * KN_PANEL);
    }
}

static void run(struct rig *r, int n, int n_wait)
{
    seen.n_begun = 0;
    seen.n_wait = n_wait;
    memset(seen.done, 0, sizeof seen.done);
    memset(seen.first, 0, sizeof seen.first);
    kn_host_run_products(r->host, n);
}

static void every_panel_once(void **state)
{
    (void)state;
    for (int n_node = 1; n_node <= 2; n_node++)
        for (int n_thread = 1; n_thread <= 5; n_thread++) {
            nodes_set(n_node);
            struct rig *r = open_rig(n_thread);
            for (int round = 0; round < 300; round++) {
                int n = 1 + round % MAX_PRODUCT, spread = 0;
                for (int i = 0; i < n; i++) {
                    uint64_t x = kn_mix((uint64_t)(round * MAX_PRODUCT + i));
                    int node = (int)(x >> 8 & 3) - 1; /* including a node that the team lacks */
                    spread += node < 0;
                    add(r, i, 1 + (int)(x >> 16 & 255) % 20, (int)(x >> 24 & 255) % 6,
                        spread > 4 && node < 0 ? 0 : node);
                    make_stack(&r->host->product[i], 1 + (int)(x >> 32 & 3));
                }
                run(r, n, 0);
                for (int i = 0; i < n; i++)
                    check_places(&r->host->product[i], i);
                for (int i = 0; i < n; i++)
                    for (int p = 0; p < 64; p++)
                        assert_int_equal(seen.done[i][p],
                                         r->host->product[i].mul.n_row > 0 &&
                                             p < kn_ceil_div(r->host->product[i].mul.w.n_out, KN_PANEL));
            }
            close_rig(r);
        }
    nodes_set(1);
}

/* As many items as threads, and all must begin before one ends: each thread runs its own item and helps no other. */
static void panels_go_to_threads_near_them(void **state)
{
    (void)state;
    nodes_set(2);
    struct rig *r = open_rig(4);
    if (kn_team_nodes(r->team) == 2) {
        for (int i = 0; i < 4; i++) /* in the order of a layer's experts */
            add(r, i, 1, 1, i % 2);
        run(r, 4, 4);
        for (int i = 0; i < 4; i++)
            assert_int_equal(kn_team_node(r->team, seen.by[i][0]), i % 2);
        add(r, 0, 2, 1, -1); /* two matrices, each split over both nodes */
        add(r, 1, 2, 1, -1);
        run(r, 2, 4);
        for (int i = 0; i < 4; i++)
            assert_int_equal(kn_team_node(r->team, seen.by[i / 2][i % 2]), i % 2);
    }
    close_rig(r);
    r = open_rig(2);
    if (kn_team_nodes(r->team) == 2) { /* unequal work: each node begins with its own */
        add(r, 0, 3, 1, 1);
        add(r, 1, 1, 1, 0);
        run(r, 2, 2);
        assert_int_equal(seen.first[1], 1);
        assert_int_equal(seen.first_panel[1], 0);
    }
    close_rig(r);
    nodes_set(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_panel_once),
        cmocka_unit_test(panels_go_to_threads_near_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
