/* Operations of delta nets and of experts (pass_case.h). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/kernels/pass_case.h"

/* ---- delta nets ---------------------------------------------------------------------------------------------------- */

#define N_STATE 4

static struct kn_net net(bool other) { return (struct kn_net){ 2, 4, 12, 20, 4, other, other }; }

/* State 1 has a pending row, rows 0 and 1 (a copy to state 3 after row 0), and a tree of drafts: rows 2, DEAD, and 4 after
 * row 2.  State 2 has no text, one draft would be alone: it gets row 5. */
static struct kn_flows flows(void)
{
    static const struct kn_step steps[] = {
        { -1, 2, -1, 0 },  { 0, 0, 0, 3 }, { 1, 0, 1, 0 },  { 2, 0, 2, 0 },
        { DEAD, 0, 3, 0 }, { 4, 0, 3, 0 }, { 5, 0, -1, 0 },
    };
    static const struct kn_flow all[] = { { 1, 0, 3, 3 }, { 2, 6, 1, 0 } };
    struct kn_step *step = take(sizeof steps);
    struct kn_flow *flow = take(sizeof all);
    int *status = take(6 * sizeof *status);
    memcpy(step, steps, sizeof steps);
    memcpy(flow, all, sizeof all);
    memset(status, 0, 6 * sizeof *status);
    status[DEAD] = KN_EIO;
    return (struct kn_flows){ step, flow, 7, 2, status, 6 };
}

PLAIN(part)
{
    const struct kn_net *n = &o->net;
    int ratio = n->n_value_head / n->n_key_head, d_value = n->n_value_head * n->d_value, d_mix = kn_net_mix(n);
    for (int i = 0; i < o->n; i++) {
        const float *from = o->from + i * (d_mix + d_value);
        float *in = o->in + i * kn_net_in(n);
        for (int h = 0; h < n->n_key_head; h++) {
            for (int k = 0; k < n->d_key; k++)
                in[h * n->d_key + k] = *from++;
            for (int k = 0; k < n->d_key; k++)
                in[(n->n_key_head + h) * n->d_key + k] = *from++;
            for (int k = 0; k < ratio * n->d_value; k++)
                in[2 * n->n_key_head * n->d_key + h * ratio * n->d_value + k] = *from++;
            for (int k = 0; k < ratio * n->d_value; k++)
                o->z[i * d_value + h * ratio * n->d_value + k] = *from++;
        }
    }
}

static void case_part(void)
{
    struct kn_net n = net(false);
    CASE(PART, part, n, floats(3 * (kn_net_mix(&n) + 80)), floats(3 * kn_net_in(&n)), floats(3 * 80), 3);
}

static const float *plain_taps(const struct kn_net *n, const struct kn_flows *f, const float *in, const float *kept,
                               const float *past, int step, int back)
{
    for (; step >= 0 && back > 0; back--)
        step = f->step[step].before;
    const struct kn_step *t = step < 0 ? NULL : &f->step[step];
    if (!t)
        return past + (n->n_tap - 2 - back) * kn_net_mix(n);
    return t->row >= 0 ? in + t->row * kn_net_in(n) : kept + t->kept * kn_net_in(n);
}

static int state_of(const struct kn_flows *f, int step)
{
    int i = 0;
    while (step >= f->flow[i].first + f->flow[i].n_text + f->flow[i].n_draft)
        i++;
    return f->flow[i].state;
}

PLAIN(conv)
{
    const struct kn_net *n = &o->net;
    int d_mix = kn_net_mix(n), n_v = n->n_value_head, ratio = n_v / n->n_key_head;
    for (int s = 0; s < o->flows.n_step; s++) {
        const float *past = (const float *)(o->state + (size_t)state_of(&o->flows, s) * o->state_bytes), *x[8];
        float *out = o->out + s * kn_net_in(n);
        if (o->flows.step[s].row >= 0 && o->flows.status[o->flows.step[s].row])
            continue;
        for (int k = 0; k < n->n_tap; k++)
            x[k] = plain_taps(n, &o->flows, o->in, o->kept, past, s, n->n_tap - 1 - k);
        scalar->conv(x, o->taps, n->n_tap, d_mix, out);
        for (int h = 0; h < 2 * n->n_key_head; h++)
            scalar->rms_norm(out + h * n->d_key, h < n->n_key_head ? o->unit_q : o->unit_k, 1e-6f / (float)n->d_key,
                             n->d_key, out + h * n->d_key);
        const float *rate = x[n->n_tap - 1] + d_mix;
        for (int h = 0; h < n_v; h++) {
            int key = h / ratio, beta = n->by_key_head ? 2 * ratio * key + h % ratio : h;
            float alpha = rate[beta + (n->by_key_head ? ratio : n_v)] + o->decay_bias[h];
            float soft = alpha > 20 ? alpha : (float)kn_log(1 + kn_exp((double)alpha));
            out[d_mix + h] = 1 / (1 + kn_expf(-rate[beta]));
            out[d_mix + n_v + h] = kn_expf(o->decay[h] * soft);
        }
    }
}

static size_t state_bytes(const struct kn_net *n) { return kn_net_state_floats(n) * sizeof(float) + 192; }

static void case_conv(void)
{
    for (int i = 0; i < 2; i++) {
        used = 0;
        struct kn_net n = net(i);
        int d_in = kn_net_in(&n);
        float *in = floats(6 * d_in);
        in[kn_net_mix(&n) + 5] = 30; /* beyond the limit of softplus */
        CASE(CONV, conv, n, flows(), in, floats(3 * d_in), 3, (uint8_t *)floats((int)(N_STATE * state_bytes(&n) / 4)),
             state_bytes(&n), floats(4 * kn_net_mix(&n)), floats(4), floats(4), floats(12), floats(12),
             floats(7 * d_in));
    }
}

/* Runs one step of one head on a state. */
static void plain_step(const struct kn_op_delta *o, int step, int head, float *state, bool out)
{
    const struct kn_net *n = &o->net;
    const struct kn_step *t = &o->flows.step[step];
    int key = n->tiled ? head % n->n_key_head : head / (n->n_value_head / n->n_key_head);
    const float *q = o->mixed + step * kn_net_in(n), *k = q + n->n_key_head * n->d_key, *rate = q + kn_net_mix(n);
    float *to = o->out + (size_t)t->row * o->out_stride + head * n->d_value, none[64];
    if (t->row >= 0 && o->flows.status[t->row])
        return;
    bool has = out && t->row >= 0;
    struct kn_delta_row r = {
        q + key * n->d_key,           k + key * n->d_key, k + n->n_key_head * n->d_key + head * n->d_value,
        rate[n->n_value_head + head], rate[head],         has ? to : none
    };
    scalar->delta(&(struct kn_delta){ state, &r, 1, n->d_key, n->d_value });
    if (!has)
        return;
    scalar->rms_norm(to, o->out_norm, o->eps, n->d_value, to);
    scalar->swiglu(o->z + (t->row * n->n_value_head + head) * n->d_value, to, n->d_value, to);
}

static void plain_path(const struct kn_op_delta *o, int first, int step, int head, float *state)
{
    if (step < first)
        return;
    plain_path(o, first, o->flows.step[step].before, head, state);
    plain_step(o, step, head, state, false);
}

static void plain_past(const struct kn_op_delta *o, int step, int from, int to)
{
    const struct kn_net *n = &o->net;
    int d_mix = kn_net_mix(n);
    float *past = (float *)(o->state + (size_t)from * o->state_bytes), *out = malloc(sizeof(float) * 3 * (size_t)d_mix);
    for (int k = 0; k < n->n_tap - 1; k++)
        memcpy(out + k * d_mix, plain_taps(n, &o->flows, o->in, o->kept, past, step, n->n_tap - 2 - k),
               (size_t)d_mix * sizeof *out);
    memcpy(o->state + (size_t)to * o->state_bytes, out, (size_t)((n->n_tap - 1) * d_mix) * sizeof *out);
    free(out);
}

PLAIN(delta)
{
    const struct kn_net *n = &o->net;
    size_t one = kn_delta_floats(n->d_key, n->d_value);
    float *work = malloc(one * sizeof *work);
    for (int i = 0; i < o->flows.n_flow; i++) {
        const struct kn_flow *f = &o->flows.flow[i];
        int end = f->first + f->n_text, last = -1;
        for (int h = 0; h < n->n_value_head; h++) {
            size_t at = kn_net_past_floats(n) + (size_t)h * one;
            float *state = (float *)(o->state + (size_t)f->state * o->state_bytes) + at;
            for (int s = f->first; s < end; s++) {
                int copy = o->flows.step[s].copy_to;
                plain_step(o, s, h, state, true);
                if (copy)
                    memcpy((float *)(o->state + (size_t)copy * o->state_bytes) + at, state, one * sizeof *state);
            }
            for (int s = end; s < end + f->n_draft; s++) {
                memcpy(work, state, one * sizeof *work);
                plain_path(o, end, o->flows.step[s].before, h, work);
                plain_step(o, s, h, work, true);
            }
        }
        for (int s = f->first; s < end; last = s++)
            if (o->flows.step[s].copy_to)
                plain_past(o, s, f->state, o->flows.step[s].copy_to);
        if (last >= 0)
            plain_past(o, last, f->state, f->state);
    }
    free(work);
}

static void case_delta(void)
{
    for (int i = 0; i < 2; i++) {
        used = 0;
        struct kn_net n = net(i);
        int d_in = kn_net_in(&n);
        struct kn_flows f = flows();
        float *mixed = floats(7 * d_in);
        for (int s = 0; s < 7; s++)
            for (int h = 0; h < 8; h++) /* beta and decay */
                mixed[s * d_in + kn_net_mix(&n) + h] = fabsf(random_float());
        CASE(DELTA, delta, n, f, floats(6 * d_in), floats(3 * d_in), 3,
             (uint8_t *)floats((int)(N_STATE * state_bytes(&n) / 4)), state_bytes(&n), mixed, floats(6 * 80),
             floats(20), 1e-6f, floats(6 * 88), 88);
    }
}

PLAIN(keep_draft)
{
    for (int i = 0; i < o->n; i++)
        for (int k = 0; o->to[i] >= 0 && k < o->d; k++)
            o->kept[o->to[i] * o->d + k] = o->in[i * o->d + k];
}

static void case_keep_draft(void)
{
    CASE(KEEP_DRAFT, keep_draft, floats(N_ROW * 32), floats(3 * 32), LIST(-1, 2, -1, 0, -1), N_ROW, 3, 32);
}

/* ---- experts ------------------------------------------------------------------------------------------------------------ */

/* The first n of x in the order of choices (kernels.h). */
static void plain_best(const float *x, int n_x, int n, int32_t *best)
{
    for (int i = 0; i < n; i++) {
        int at = -1;
        for (int e = 0; e < n_x; e++) {
            bool taken = false;
            for (int k = 0; k < i; k++)
                taken |= best[k] == e;
            if (!taken && (at < 0 || kn_rank_key(x[e], e) > kn_rank_key(x[at], at)))
                at = e;
        }
        best[i] = at;
    }
}

PLAIN(route)
{
    int n = o->n_expert, one = n / o->n_group;
    for (int i = 0; i < o->n; i++) {
        float *p = o->logit + i * n, *weight = o->weight + i * o->n_used, rank[64], score[64], sum = 0;
        int32_t *id = o->id + i * o->n_used, best[64], two[2];
        for (int e = 0; e < n; e++)
            p[e] += o->bias ? o->bias[e] : 0;
        if (o->gating == KN_GATING_SOFTMAX)
            scalar->softmax(p, n);
        for (int e = 0; e < n; e++) {
            p[e] = o->gating == KN_GATING_SIGMOID ? 1 / (1 + kn_expf(-p[e])) : p[e];
            rank[e] = p[e] + (o->select_bias ? o->select_bias[e] : 0);
        }
        for (int g = 0; g < o->n_group; g++) {
            plain_best(rank + g * one, one, o->group_best, two);
            score[g] = rank[g * one + two[0]] + (o->group_best > 1 ? rank[g * one + two[1]] : 0);
        }
        plain_best(score, o->n_group, o->n_group_used, best);
        for (int e = 0; e < n; e++) {
            bool in = false;
            for (int g = 0; g < o->n_group_used; g++)
                in |= best[g] == e / one;
            rank[e] = in ? rank[e] : -INFINITY;
        }
        plain_best(rank, n, o->n_used, id);
        for (int k = 0; k < o->n_used; k++)
            weight[k] = p[id[k]];
        if (o->gating == KN_GATING_CHOSEN)
            scalar->softmax(weight, o->n_used);
        for (int k = 0; o->gating == KN_GATING_CHOSEN_SIGMOID && k < o->n_used; k++)
            weight[k] = 1 / (1 + kn_expf(-weight[k]));
        for (int k = 0; o->gating == KN_GATING_MIXER && k < 2; k++) {
            float m = p[id[k]];
            for (int e = 0; e < n; e++)
                rank[e] = (m - p[e]) / fmaxf(fabsf(p[e]), m) > o->mixer_gap || (k && e == id[0]) ? -INFINITY : p[e];
            scalar->softmax(rank, n);
            weight[k] = rank[id[k]];
        }
        for (int k = 0; k < o->n_used; k++)
            sum += weight[k];
        for (int k = 0; k < o->n_used; k++)
            weight[k] = (o->norm_topk ? weight[k] / (sum + 1e-20f) : weight[k]) * o->scale *
                        (o->expert_scale ? o->expert_scale[id[k]] : 1);
    }
}

static void case_route(void)
{
    for (int i = 0; i < 24; i++) {
        used = 0;
        int n_group = i & 4 ? 3 : 1;
        float *logit = floats(N_ROW * 12);
        for (int k = 0; k < 12; k++)
            logit[k] = (float)random_below(3); /* ties */
        CASE(ROUTE, route, N_ROW, 12, 3, logit, floats(N_ROW * 12), i & 1 ? floats(12) : NULL,
             i & 2 ? floats(12) : NULL, (enum kn_gating)(1 + i % 3), n_group, n_group == 1 ? 1 : 2, 1 + (i & 1), i & 8,
             1.5f, take(N_ROW * 3 * 4), floats(N_ROW * 3), 0, i % 5 > 2 ? floats(12) : NULL);
    }
    for (int i = 0; i < 8; i++) { /* gatings that choose by logits */
        used = 0;
        bool mixer = i & 1;
        float *logit = floats(N_ROW * 12);
        for (int k = 0; k < 12; k++)
            logit[k] = i & 2 ? 0 : -logit[k] * logit[k]; /* equal; below 0 */
        CASE(ROUTE, route, N_ROW, 12, mixer ? 2 : 3, logit, floats(N_ROW * 12), NULL, NULL,
             mixer ? KN_GATING_MIXER : KN_GATING_CHOSEN_SIGMOID, 1, 1, 1, i & 4, 1.5f, take(N_ROW * 3 * 4),
             floats(N_ROW * 3), i & 4 ? 0.6f : 0.02f);
    }
}

PLAIN(plan)
{
    const struct kn_plan *p = &o->plan;
    int n_pair = 0, n = 0;
    for (int e = 0; e < o->n_expert; e++) {
        int first = n_pair;
        for (int i = 0; i < o->rows.n * o->n_used; i++)
            if (!o->rows.status[i / o->n_used] && o->id[i] == e) {
                p->row[n_pair] = i / o->n_used;
                p->pair[n_pair++] = i;
            }
        if (n_pair == first)
            continue;
        p->expert[n] = o->expert0 + e;
        p->first[n++] = first;
    }
    p->first[n] = n_pair;
    *p->n_expert = n;
}

static int32_t *choices(void) { return LIST(4, 1, 1, 0, 5, 4, 2, 0, 1, 5); } /* expert 2: of the failed row alone */

static void case_plan(void)
{
    struct kn_plan p = { .n_expert = take(4),
                         .expert = take(4 * N_EXP),
                         .first = take(4 * (N_EXP + 1)),
                         .row = take(4 * N_ROW * N_USED),
                         .pair = take(4 * N_ROW * N_USED),
                         .fill = take(4 * N_EXP) };
    CASE(PLAN, plan, rows_of_batch(), N_EXP, N_USED, 100, choices(), p);
}

PLAIN(guess)
{
    float sum[N_EXP] = { 0 };
    int32_t best[N_EXP];
    *o->n_listed = 0;
    for (int i = 0; i < o->rows.n * o->n_used; i++)
        sum[o->id[i]] += o->rows.status[i / o->n_used] ? 0 : o->weight[i];
    plain_best(sum, o->n_expert, o->n_expert, best);
    for (int i = 0; i < o->n_expert && sum[best[i]] > 0; i++)
        o->expert[(*o->n_listed)++] = o->expert0 + best[i];
}

static void case_guess(void)
{
    float *weight = floats(N_ROW * N_USED);
    for (int i = 0; i < N_ROW * N_USED; i++)
        weight[i] = fabsf(weight[i]);
    CASE(GUESS, guess, rows_of_batch(), N_EXP, N_USED, 100, choices(), weight, floats(N_EXP), take(4 * N_EXP), take(4));
}

PLAIN(group)
{
    for (int i = 0; i < o->n_group; i++) {
        bool there = i < *o->plan.n_expert;
        int e = there ? o->plan.expert[i] - o->expert0 : 0;
        o->group[i] = o->expert[e];
        o->group[i].bias = e;
        o->group[i].first = there ? o->plan.first[i] : 0;
        bool absent = o->out && there && !o->expert[e].gate.data;
        o->group[i].n = there && !absent ? o->plan.first[i + 1] - o->plan.first[i] : 0;
    }
    if (o->n_sum)
        *o->n_sum += *o->plan.n_expert;
    int n = 0, n_absent = 0;
    for (int pass = 0; o->out && pass < 2; pass++)
        for (int i = 0; i < *o->plan.n_expert; i++) {
            bool absent = !o->expert || !o->expert[o->plan.expert[i] - o->expert0].gate.data;
            for (int k = o->plan.first[i]; absent == !pass && k < o->plan.first[i + 1]; k++, n++) {
                o->out[k] = o->place[o->plan.pair[k]] = n;
                if (o->weight)
                    o->out_weight[n] = o->weight[o->plan.pair[k]];
            }
            n_absent += pass && absent;
        }
    if (o->out)
        *o->n_absent = n_absent;
    if (o->out && !n_absent)
        *o->done = o->turn;
}

/* Three experts of a plan for five groups, and for three. */
static void case_group(void)
{
    static const int32_t expert[] = { 101, 104, 105, -1, -1 }, first[] = { 0, 2, 3, 7, -1, -1 };
    struct kn_group *all = take(N_EXP * sizeof *all);
    for (int e = 0; e < N_EXP; e++)
        all[e] = (struct kn_group){
            matrix(KN_Q8_0, 32, D), matrix(KN_F32, 32, D), matrix(KN_Q8_0, D, 32), -1, 7, 8, 9
        };
    for (int n_group = 5; n_group >= 3; n_group -= 2) {
        struct kn_plan p = { .n_expert = take(4), .expert = take(sizeof expert), .first = take(sizeof first) };
        int32_t *n_sum = take(4);
        *p.n_expert = 3;
        memcpy(p.expert, expert, sizeof expert);
        memcpy(p.first, first, sizeof first);
        *n_sum = 40;
        CASE(GROUP, group, p, 100, N_EXP, all, take((size_t)n_group * sizeof *all), n_group, n_sum);
    }
    for (int absent = 0; absent < 4; absent++) { /* none, the second expert, two, all */
        used = 0;
        struct kn_plan p = { .n_expert = take(4), .expert = take(sizeof expert), .first = take(sizeof first) };
        struct kn_group *some = take(N_EXP * sizeof *some);
        for (int e = 0; e < N_EXP; e++)
            some[e] = (struct kn_group){
                matrix(KN_Q8_0, 32, D), matrix(KN_F32, 32, D), matrix(KN_Q8_0, D, 32), -1, 7, 8, 9
            };
        if (absent)
            some[4].gate.data = NULL;
        if (absent > 1)
            some[1].gate.data = NULL;
        *p.n_expert = 3;
        memcpy(p.expert, expert, sizeof expert);
        memcpy(p.first, first, sizeof first);
        p.pair = LIST(6, 0, 3, 2, 5, 1, 4);
        uint32_t *done = take(4);
        *done = 3;
        CASE(GROUP, group, p, 100, N_EXP, absent == 3 ? NULL : some, absent == 3 ? NULL : take(5 * sizeof *some),
             absent == 3 ? 0 : 5, NULL, 7, take(7 * 4), take(7 * 4), take(4), floats(7), floats(7), done, 4);
    }
}

/* Experts 4, 0 and 5, as they may arrive: parts 0 .. 2, 5 .. 6 and 3 .. 4 of the lists. */
static struct kn_group *groups(int d_act, bool interleaved, int *n)
{
    static const int bias[] = { 4, 0, 5 }, first[] = { 0, 5, 3 }, count[] = { 3, 2, 2 };
    struct kn_group *g = take(3 * sizeof *g);
    for (int i = 0; i < 3; i++) {
        enum kn_format f = i == 1 ? KN_F32 : KN_Q8_0;
        g[i] = (struct kn_group){ .gate = matrix(f, interleaved ? 2 * d_act : d_act, D),
                                  .down = matrix(f, D, d_act),
                                  .node = i % 2,
                                  .bias = bias[i],
                                  .first = first[i],
                                  .n = count[i] };
        if (!interleaved)
            g[i].up = matrix(f, d_act, D);
    }
    *n = 3;
    return g;
}

PLAIN(gate_up)
{
    for (int i = 0; i < o->n_group; i++)
        for (int k = 0; k < o->group[i].n; k++) {
            const struct kn_group *g = &o->group[i];
            int at = g->first + k, row = o->row ? o->row[at] : at, to = o->pair ? o->pair[at] : at, d = o->d_act;
            int32_t from = row, zero = 0;
            float both[512], gate[256], up[256];
            const struct kn_mat *w[] = { &g->gate, &g->up };
            for (int t = 0; t < 2 - o->interleaved; t++) {
                struct kn_product p = kn_product(&o->x, w[t], both + t * d, 1);
                p.mul.x_row = &from;
                p.mul.y_row = &zero;
                multiply(&p);
            }
            for (int v = 0; v < d; v++) {
                gate[v] = o->interleaved ? both[2 * v] : both[v];
                up[v] = o->interleaved ? both[2 * v + 1] : both[d + v];
                gate[v] *= o->in_scale ? o->in_scale[to] : 1;
                up[v] *= o->in_scale ? o->in_scale[to] : 1;
                gate[v] += o->gate_bias ? o->gate_bias[g->bias * d + v] : 0;
                up[v] += o->up_bias ? o->up_bias[g->bias * d + v] : 0;
            }
            float *x = o->act.x + (size_t)to * o->act.stride;
            for (int v = 0; o->activation == KN_GEGLU && v < d; v++) {
                float z = gate[v], by = 1.5957691216057308f * (z + 0.044715f * (z * z * z));
                scalar->gate(&z, &by, 1);
                x[v] = z * up[v];
            }
            if (o->activation == KN_SWIGLU && o->limit > 0)
                scalar->swiglu_clamped(gate, up, o->alpha, o->limit, d, x);
            else if (o->activation == KN_SWIGLU)
                scalar->swiglu(gate, up, d, x);
            code_row(&o->act, o->kinds, d, to);
        }
}

static int32_t *list_rows(void) { return LIST(0, 2, 4, 1, 4, 0, 1); }
static int32_t *list_pairs(void) { return LIST(1, 5, 9, 2, 8, 0, 3); }

static void case_gate_up(void)
{
    for (int i = 0; i < 10; i++) {
        used = 0;
        int n, d = 64;
        struct kn_group *g = groups(d, i & 1, &n);
        CASE(GATE_UP, gate_up, g, n, N_ROW, N_ROW * N_USED, D, d, i & 1, list_rows(), list_pairs(),
             acts(N_ROW, D, 16, Q32), floats(N_ROW * N_USED * 2 * d), floats(N_ROW * N_USED * d),
             i & 2 ? floats(N_EXP * d) : NULL, i & 2 ? floats(N_EXP * d) : NULL,
             i == 6 || i == 7 ? KN_GEGLU : KN_SWIGLU, 1.7f, i & 4 ? 0.6f : 0, acts(N_ROW * N_USED, d, 16, Q32), Q32, 0,
             i > 7 ? floats(N_ROW * N_USED) : NULL);
    }
    used = 0; /* one dense FFN of all rows */
    struct kn_group *g = take(sizeof *g);
    *g = (struct kn_group){ matrix(KN_Q8_0, 32, D), matrix(KN_Q8_0, 32, D), matrix(KN_Q8_0, D, 32), -1, 0, 0, N_ROW };
    CASE(GATE_UP, gate_up, g, 1, N_ROW, N_ROW, D, 32, false, NULL, NULL, acts(N_ROW, D, 16, Q32), floats(N_ROW * 32),
         floats(N_ROW * 32), NULL, NULL, KN_SWIGLU, 0, 0, acts(N_ROW, 32, 16, Q32), Q32);
}

PLAIN(down)
{
    for (int i = 0; i < o->n_group; i++)
        for (int k = 0; k < o->group[i].n; k++) {
            int32_t row = o->pair ? o->pair[o->group[i].first + k] : o->group[i].first + k;
            struct kn_product p = kn_product(&o->act, &o->group[i].down, o->y, 1);
            p.mul.x_row = p.mul.y_row = &row;
            multiply(&p);
        }
}

static void case_down(void)
{
    for (int i = 0; i < 2; i++) {
        used = 0;
        int n;
        struct kn_group *g = groups(64, false, &n);
        CASE(DOWN, down, g, n, N_ROW * N_USED, 64, D, i ? list_pairs() : NULL, acts(N_ROW * N_USED, 64, 16, Q32),
             floats(N_ROW * N_USED * D));
    }
}

PLAIN(combine)
{
    for (int i = 0; i < o->rows.n; i++) {
        float all[D];
        for (int v = 0; !o->rows.status[i] && v < o->d_model; v++) {
            float sum = 0;
            for (int k = i * o->n_used; k < (i + 1) * o->n_used; k++) {
                float *y = &o->y[(o->place ? o->place[k] : k) * o->d_model + v];
                *y += o->down_bias ? o->down_bias[o->id[k] * o->d_model + v] : 0;
                sum = fmaf(o->weight ? o->weight[k] : 1, *y, sum);
            }
            all[v] = sum;
        }
        if (o->expert_norm && !o->rows.status[i])
            scalar->rms_norm(all, o->expert_norm, o->eps, o->d_model, all);
        float *shared = o->shared + (o->shared ? i * o->d_model : 0);
        if (o->shared && o->shared_norm && !o->rows.status[i])
            scalar->rms_norm(shared, o->shared_norm, o->eps, o->d_model, shared);
        for (int v = 0; o->shared && !o->rows.status[i] && v < o->d_model; v++)
            all[v] = fmaf(o->shared_gate ? 1 / (1 + kn_expf(-o->shared_gate[i])) : 1, shared[v], all[v]);
        if (o->sum_norm && !o->rows.status[i])
            scalar->rms_norm(all, o->sum_norm, o->eps, o->d_model, all);
        for (int v = 0; !o->rows.status[i] && v < o->d_model; v++)
            o->x[i * o->d_model + v] = fmaf(o->sum_scale, all[v], o->x[i * o->d_model + v]);
    }
}

static void case_combine(void)
{
    for (int i = 0; i < 12; i++) {
        bool norms = i >= 6 && i % 2;
        used = 0;
        CASE(COMBINE, combine, rows_of_batch(), N_USED, D, choices(), i == 2 ? NULL : floats(N_ROW * N_USED),
             floats(N_ROW * N_USED * D), i == 2 || i == 5 ? LIST(3, 0, 7, 4, 1, 8, 5, 2, 9, 6) : NULL,
             i & 1 ? floats(N_EXP * D) : NULL, N_EXP, i > 1 ? floats(N_ROW * D) : NULL,
             i > 3 && i < 9 ? floats(N_ROW) : NULL, i % 3 ? floats(D) : NULL, 1e-6f, i % 3 ? 0.4f : 1,
             acts(N_ROW, D, 16, 0), floats(N_ROW * D), norms ? floats(D) : NULL, i >= 8 ? floats(D) : NULL);
    }
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

#define OPS(X)                                                                                                         \
    X(PART, part)                                                                                                      \
    X(CONV, conv)                                                                                                      \
    X(DELTA, delta)                                                                                                    \
    X(KEEP_DRAFT, keep_draft)                                                                                          \
    X(ROUTE, route)                                                                                                    \
    X(PLAN, plan)                                                                                                      \
    X(GUESS, guess)                                                                                                    \
    X(GROUP, group)                                                                                                    \
    X(GATE_UP, gate_up)                                                                                                \
    X(DOWN, down)                                                                                                      \
    X(COMBINE, combine)
OPS(CASE_TEST)

/* A group without rows, an operation without rows: nothing happens. */
static void nothing_to_do_is_allowed(void **state)
{
    (void)state;
    if (!pass_has(KN_OP_GATE_UP))
        skip();
    used = 0;
    struct kn_rows none = { NULL, NULL, 0 };
    CASE(GATE_UP, gate_up, .group = NULL, .n_group = 0, .d_act = 32);
    CASE(DOWN, down, .group = NULL, .n_group = 0);
    CASE(COMBINE, combine, .rows = none, .d_model = D);
}

int main(void)
{
    const struct CMUnitTest tests[] = { OPS(CASE_ENTRY) cmocka_unit_test(nothing_to_do_is_allowed) };
    return cmocka_run_group_tests(tests, open_memory, close_memory);
}
