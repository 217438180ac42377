/* Routing and the plan: the n_used largest experts, in descending order, the lowest id first on a tie,
 * for any logits; and every (row, choice) of a live row is in the plan once, experts
 * ascending, their rows ascending.
 *
 * The router's matrix is the identity, so a row of the "normalised" input is its logits.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "moe/pass/pass.h"

#define MAX_ROW    40
#define MAX_EXPERT 80
#define EXPERT0    1000 /* the store's number of the layer's first expert */

struct rig {
    struct moe_model model;
    struct moe_layer layer[2];
    struct moe_context c;
    struct kn_arena arena;
    struct kn_team *team;
};

static uint64_t random_state;
static int random_below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

static void lay_out(struct rig *r, struct kn_arena *a, int n_expert, int n_used)
{
    struct moe_context *c = &r->c;
    size_t n = (size_t)n_expert, n_pair = (MAX_ROW + 1) * (size_t)n_used;
    void *panels = kn_arena_take(a, 1, kn_mat_bytes(KN_F32, n_expert, n_expert));
    r->layer[1].router = (struct kn_mat){ KN_F32, n_expert, n_expert, 1, panels };
    c->now.status = kn_arena_take(a, MAX_ROW, sizeof(int));
    c->norm.stride = kn_align_up(n, 16);
    c->norm.x = kn_arena_take(a, MAX_ROW * c->norm.stride, sizeof(float));
    c->norm.code[KN_ACT_F32] = c->norm.x;
    c->norm.code_stride[KN_ACT_F32] = c->norm.stride * sizeof(float);
    c->route.logit = kn_arena_take(a, MAX_ROW * n, sizeof(float));
    c->route.rank = kn_arena_take(a, MAX_ROW * n, sizeof(float));
    c->route.id = kn_arena_take(a, n_pair, sizeof(int32_t));
    c->route.weight = kn_arena_take(a, n_pair, sizeof(float));
    c->plan.n_expert = kn_arena_take(a, 1, sizeof(int32_t));
    c->plan.expert = kn_arena_take(a, n, sizeof(int32_t));
    c->plan.first = kn_arena_take(a, n + 1, sizeof(int32_t));
    c->plan.row = kn_arena_take(a, n_pair, sizeof(int32_t));
    c->plan.pair = kn_arena_take(a, n_pair, sizeof(int32_t));
    c->plan.fill = kn_arena_take(a, n, sizeof(int32_t));
}

static struct rig *open_rig(int n_expert, int n_used, bool norm_topk, float scale)
{
    struct rig *r = calloc(1, sizeof *r);
    struct kn_arena count = { 0 };
    assert_int_equal(kn_team_open(&r->team, 2), 0);
    r->model = (struct moe_model){
        .ops = kn_ops(KN_ISA_COUNT - 1),
        .layer = r->layer,
        .desc = { .n_layer = 2,
                  .n_expert = n_expert,
                  .n_used = n_used,
                  .d_model = n_expert,
                  .norm_topk = norm_topk,
                  .expert_scale = scale,
                  .gating = MOE_GATING_SOFTMAX,
                  .n_group = 1 },
    };
    r->layer[1].expert0 = EXPERT0;
    r->c = (struct moe_context){ .model = &r->model };
    struct kn_queue_options queue = { .device = kn_host_device(KN_ISA_COUNT - 1), .team = r->team, .max_product = 4 };
    assert_int_equal(kn_queue_open(&r->c.queue, &queue), 0);
    lay_out(r, &count, n_expert, n_used);
    assert_int_equal(kn_arena_open(&r->arena, count.used, -1), 0);
    lay_out(r, &r->arena, n_expert, n_used);
    r->c.shared = (struct kn_memory){ .base = r->arena.base, .image = r->arena.base };
    float *one = calloc((size_t)(n_expert * n_expert), sizeof *one);
    for (int i = 0; i < n_expert; i++)
        one[i * n_expert + i] = 1;
    r->model.ops->repack(KN_F32, one, n_expert, n_expert, (void *)r->layer[1].router.data, 0,
                         kn_ceil_div(n_expert, KN_PANEL));
    free(one);
    return r;
}

static void close_rig(struct rig *r)
{
    kn_queue_close(r->c.queue);
    kn_arena_close(&r->arena);
    kn_team_close(r->team);
    free(r);
}

static void route(struct moe_context *c)
{
    moe_route(c, 1, &c->norm);
    kn_queue_wait(c->queue);
}

static void plan(struct moe_context *c)
{
    moe_plan_rows(c, 1);
    kn_queue_wait(c->queue);
}

static float *logits_of(struct rig *r, int row) { return r->c.norm.x + (size_t)row * r->c.norm.stride; }

/* ---- routing --------------------------------------------------------------------------------- */

/* The definition, by repeated selection: the largest not yet selected, the lowest id on a tie. */
static void check_choices(const struct rig *r, int row, const float *logit)
{
    int n_expert = r->model.desc.n_expert, n_used = r->model.desc.n_used;
    const int32_t *id = r->c.route.id + row * n_used;
    const float *weight = r->c.route.weight + row * n_used;
    float p[MAX_EXPERT], sum = 0;
    bool taken[MAX_EXPERT] = { false };
    memcpy(p, logit, (size_t)n_expert * sizeof *p);
    kn_ops(KN_ISA_SCALAR)->softmax(p, n_expert);
    for (int i = 0; i < n_used; i++) {
        int best = -1;
        for (int e = 0; e < n_expert; e++)
            if (!taken[e] && (best < 0 || p[e] > p[best]))
                best = e;
        assert_int_equal(id[i], best);
        taken[best] = true;
        sum += p[best];
    }
    for (int i = 0; i < n_used; i++) {
        float want = r->model.desc.norm_topk ? p[id[i]] / sum : p[id[i]];
        assert_true(weight[i] == want * r->model.desc.expert_scale);
    }
}

/* Few distinct values, so that most rows are full of ties. */
static void the_largest_are_chosen_and_the_lowest_id_on_a_tie(void **state)
{
    (void)state;
    static const int shapes[][2] = { { 1, 1 }, { 2, 1 }, { 2, 2 }, { 6, 2 }, { 17, 8 }, { 64, 6 }, { 80, 80 } };
    random_state = 9;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct rig *r = open_rig(shapes[i][0], shapes[i][1], i % 2, i % 3 ? 1 : 2.5f);
        for (int round = 0; round < 20; round++) {
            r->c.n_row = 1 + random_below(MAX_ROW);
            for (int row = 0; row < r->c.n_row; row++)
                for (int e = 0; e < shapes[i][0]; e++)
                    logits_of(r, row)[e] = round == 0 ? 0.5f : (float)random_below(1 + round) * 0.25f - 1;
            int32_t *beyond = r->c.route.id + r->c.n_row * shapes[i][1];
            *beyond = -7;
            route(&r->c);
            for (int row = 0; row < r->c.n_row; row++)
                check_choices(r, row, logits_of(r, row));
            assert_int_equal(*beyond, -7);
        }
        close_rig(r);
    }
}

/* Softmax over the selected logits only: the weights sum to 1, and the largest logits are selected. */
static void chosen_logits_alone_make_the_weights(void **state)
{
    (void)state;
    struct rig *r = open_rig(9, 3, false, 1);
    float bias[9], want[3];
    random_state = 12;
    r->model.desc.gating = MOE_GATING_CHOSEN;
    r->layer[1].router_bias = bias;
    for (int round = 0; round < 200; round++) {
        float x[9];
        int32_t *id = r->c.route.id;
        r->c.n_row = 1;
        for (int e = 0; e < 9; e++) {
            logits_of(r, 0)[e] = (float)random_below(7) - 3;
            bias[e] = (float)random_below(7) * 0.5f;
            x[e] = logits_of(r, 0)[e] + bias[e];
        }
        route(&r->c);
        for (int i = 0; i < 3; i++) {
            for (int e = 0; e < 9; e++) /* exactly the experts before it precede it */
                assert_int_equal(x[e] > x[id[i]] || (x[e] == x[id[i]] && e < id[i]),
                                 (i > 0 && e == id[0]) || (i > 1 && e == id[1]));
            want[i] = x[id[i]];
        }
        kn_ops(KN_ISA_SCALAR)->softmax(want, 3);
        assert_memory_equal(r->c.route.weight, want, sizeof want);
    }
    close_rig(r);
}

/* The order of choices (kernels.h): NaN after all numbers, -0 as +0, then the lowest id. */
static void nan_is_chosen_last_and_zeros_tie(void **state)
{
    (void)state;
    static const float logit[9] = { NAN, -0.0f, 0, -1, NAN, 0.5f, -HUGE_VALF, -0.0f, -NAN };
    static const int32_t order[9] = { 5, 1, 2, 7, 3, 6, 0, 4, 8 };
    for (int n_used = 1; n_used <= 9; n_used++) {
        struct rig *r = open_rig(9, n_used, false, 1);
        float rank[9], weight[9], p[9];
        int32_t id[9];
        r->model.desc.gating = MOE_GATING_CHOSEN;
        memcpy(p, logit, sizeof p);
        r->c.n_row = 1;
        moe_choose(&r->c, 1, &(struct moe_choices){ p, rank, id, weight });
        kn_queue_wait(r->c.queue);
        assert_memory_equal(id, order, (size_t)n_used * sizeof *id);
        close_rig(r);
    }
}

#define N_GROUP 4
#define GROUP   5 /* experts of a group */

/* The definition: groups rank by their largest score, or by the sum of their two largest; experts of the best two
 * groups by score, ties to the lowest id; weights without the bias. */
static void check_groups(const struct rig *r, const float *logit, const float *bias)
{
    float p[N_GROUP * GROUP], rank[N_GROUP * GROUP], score[N_GROUP], sum = 0;
    bool taken[N_GROUP * GROUP] = { false }, one = r->model.desc.group_best == 1;
    memcpy(p, logit, sizeof p);
    if (r->model.desc.gating == MOE_GATING_SOFTMAX)
        kn_ops(KN_ISA_SCALAR)->softmax(p, N_GROUP * GROUP);
    for (int e = 0; e < N_GROUP * GROUP; e++) {
        if (r->model.desc.gating == MOE_GATING_SIGMOID)
            p[e] = 1 / (1 + kn_expf(-logit[e]));
        rank[e] = p[e] + bias[e];
    }
    for (int g = 0; g < N_GROUP; g++) {
        score[g] = -HUGE_VALF;
        for (int i = g * GROUP; i < (g + 1) * GROUP; i++)
            for (int k = g * GROUP; k < (g + 1) * GROUP; k++)
                if (one ? rank[i] > score[g] : i != k && rank[i] + rank[k] > score[g])
                    score[g] = rank[i] + (one ? 0 : rank[k]);
    }
    for (int i = 0; i < 3; i++) {
        int best = -1;
        for (int e = 0; e < N_GROUP * GROUP; e++) {
            int before = 0, g = e / GROUP;
            for (int k = 0; k < N_GROUP; k++)
                before += score[k] > score[g] || (score[k] == score[g] && k < g);
            if (before < 2 && !taken[e] && (best < 0 || rank[e] > rank[best]))
                best = e;
        }
        assert_int_equal(r->c.route.id[i], best);
        taken[best] = true;
        sum += p[best];
    }
    for (int i = 0; i < 3; i++)
        assert_true(r->c.route.weight[i] == p[r->c.route.id[i]] / sum * 2.5f);
}

static void check_best_groups(enum moe_gating gating, int group_best)
{
    struct rig *r = open_rig(N_GROUP * GROUP, 3, true, 2.5f);
    float bias[N_GROUP * GROUP];
    random_state = 11;
    r->model.desc.gating = gating;
    r->model.desc.group_best = group_best;
    r->model.desc.n_group = N_GROUP;
    r->model.desc.n_group_used = 2;
    r->layer[1].select_bias = bias;
    for (int round = 0; round < 300; round++) {
        r->c.n_row = 1;
        for (int e = 0; e < N_GROUP * GROUP; e++) {
            logits_of(r, 0)[e] = (float)random_below(2 + round / 8) * 0.25f - 1;
            bias[e] = (float)random_below(1 + round % 3) * 0.25f;
        }
        route(&r->c);
        check_groups(r, logits_of(r, 0), bias);
    }
    close_rig(r);
}

static void the_best_groups_are_chosen_from(void **state)
{
    (void)state;
    check_best_groups(MOE_GATING_SIGMOID, 2);
    check_best_groups(MOE_GATING_SOFTMAX, 1);
}

/* With NaN logits the router still selects n_used distinct experts. */
static void check_harmless(enum moe_gating gating, int n_group)
{
    static const float odd[] = { NAN, -NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 0 };
    struct rig *r = open_rig(12, 4, true, 1);
    r->model.desc.gating = gating;
    r->model.desc.n_group = n_group;
    r->model.desc.group_best = gating == MOE_GATING_SIGMOID ? 2 : 1;
    r->model.desc.n_group_used = 2;
    random_state = 10;
    for (int round = 0; round < 200; round++) {
        r->c.n_row = MAX_ROW;
        for (int row = 0; row < MAX_ROW; row++)
            for (int e = 0; e < 12; e++)
                logits_of(r, row)[e] = odd[row == 0 ? 0 : random_below(8)];
        route(&r->c);
        for (int row = 0; row < MAX_ROW; row++) {
            unsigned seen = 0;
            for (int i = 0; i < 4; i++) {
                int32_t id = r->c.route.id[row * 4 + i];
                assert_in_range(id, 0, 11);
                assert_false(seen >> id & 1);
                seen |= 1u << id;
            }
        }
        plan(&r->c);
        assert_int_equal(r->c.plan.first[*r->c.plan.n_expert], MAX_ROW * 4);
    }
    close_rig(r);
}

static void nothing_a_router_says_does_harm(void **state)
{
    (void)state;
    check_harmless(MOE_GATING_SOFTMAX, 1);
    check_harmless(MOE_GATING_CHOSEN, 1);
    check_harmless(MOE_GATING_SIGMOID, 1);
    check_harmless(MOE_GATING_SIGMOID, 4);
    check_harmless(MOE_GATING_SOFTMAX, 4);
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void check_plan(const struct rig *r)
{
    const struct moe_context *c = &r->c;
    const struct kn_plan *p = &c->plan;
    int n_used = r->model.desc.n_used, n_pair = 0;
    bool seen[MAX_ROW * MAX_EXPERT] = { false };
    for (int row = 0; row < c->n_row; row++)
        n_pair += c->now.status[row] ? 0 : n_used;
    assert_int_equal(p->first[0], 0);
    assert_int_equal(p->first[*p->n_expert], n_pair);
    for (int e = 0; e < *p->n_expert; e++) {
        assert_in_range(p->expert[e], EXPERT0, EXPERT0 + r->model.desc.n_expert - 1);
        assert_true(e == 0 || p->expert[e] > p->expert[e - 1]);
        assert_true(p->first[e + 1] > p->first[e]); /* no expert without rows */
        for (int i = p->first[e]; i < p->first[e + 1]; i++) {
            int row = p->row[i], pair = p->pair[i];
            assert_true(i == p->first[e] || row > p->row[i - 1]);
            assert_in_range(pair, row * n_used, row * n_used + n_used - 1);
            assert_int_equal(c->route.id[pair] + EXPERT0, p->expert[e]);
            assert_int_equal(c->now.status[row], 0);
            assert_false(seen[pair]);
            seen[pair] = true;
        }
    }
}

static void every_choice_is_planned_once(void **state)
{
    (void)state;
    static const int shapes[][2] = { { 1, 1 }, { 6, 2 }, { 12, 3 }, { 80, 8 }, { 16, 16 } };
    random_state = 12;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct rig *r = open_rig(shapes[i][0], shapes[i][1], true, 1);
        for (int round = 0; round < 100; round++) {
            r->c.n_row = 1 + random_below(MAX_ROW);
            for (int row = 0; row < r->c.n_row; row++) {
                int dead = round % 4; /* none, few, most, all */
                r->c.now.status[row] = dead == 3 || random_below(4) < dead ? KN_EIO : 0;
                for (int e = 0; e < shapes[i][0]; e++)
                    logits_of(r, row)[e] = (float)random_below(1000) / 100;
            }
            if (round % 4 == 0)
                memset(r->c.now.status, 0, sizeof(int) * MAX_ROW);
            route(&r->c);
            plan(&r->c);
            check_plan(r);
        }
        close_rig(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_are_chosen_and_the_lowest_id_on_a_tie),
        cmocka_unit_test(chosen_logits_alone_make_the_weights),
        cmocka_unit_test(nan_is_chosen_last_and_zeros_tie),
        cmocka_unit_test(the_best_groups_are_chosen_from),
        cmocka_unit_test(nothing_a_router_says_does_harm),
        cmocka_unit_test(every_choice_is_planned_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
