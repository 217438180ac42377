/* Chooses the experts of each row (route), groups the rows by expert (plan, group), ranks predicted experts (guess).
 *
 * Plan and guess are serial on the host: a counting sort of some hundred pairs, and an insertion sort. */
#include "kernels/cpu/pass/host.h"

#include <math.h>
#include <string.h>

/* ---- route ------------------------------------------------------------------------------------------------- */

/* Sets id to the indices of the n_used largest values of p, in the order of choices (kernels.h).  Sorts by insertion,
 * since n_used is small compared with n_expert. */
static void choose(const float *p, int n_expert, int n_used, int32_t *id)
{
    uint32_t least = 0; /* the rank of the last one, once there are n_used */
    int n = 0;
    for (int e = 0; e < n_expert; e++) {
        uint32_t rank = kn_rank(p[e]);
        int at = n;
        if (n == n_used && rank <= least)
            continue;
        while (at > 0 && kn_rank(p[id[at - 1]]) < rank)
            at--;
        n = kn_min(n + 1, n_used);
        for (int i = n - 1; i > at; i--)
            id[i] = id[i - 1];
        id[at] = e;
        least = kn_rank(p[id[n - 1]]);
    }
}

/* Expert groups, all of one size: a group's score is its largest rank, or the sum of its two largest.  Ranks outside
 * the n_group_used groups with the best scores become -infinity. */
static void limit_groups(const struct kn_op_route *o, float *rank)
{
    float score[KN_MAX_GROUP];
    int32_t best[KN_MAX_GROUP];
    bool keep[KN_MAX_GROUP] = { false };
    int n = o->n_expert / o->n_group;
    for (int g = 0; g < o->n_group; g++) {
        int32_t two[2];
        choose(rank + g * n, n, o->group_best, two);
        score[g] = rank[g * n + two[0]];
        if (o->group_best > 1)
            score[g] += rank[g * n + two[1]];
    }
    choose(score, o->n_group, o->n_group_used, best);
    for (int i = 0; i < o->n_group_used; i++)
        keep[best[i]] = true;
    for (int e = 0; e < o->n_expert; e++)
        rank[e] = keep[e / n] ? rank[e] : -HUGE_VALF;
}

/* The values by which experts are chosen: the scores p, or in rank a copy with the selection bias and the limit to
 * groups. */
static const float *rank_of(const struct kn_ops *ops, const struct kn_op_route *o, const float *p, float *rank)
{
    if (!o->select_bias && o->n_group <= 1)
        return p;
    memcpy(rank, p, (size_t)o->n_expert * sizeof *rank);
    if (o->select_bias)
        ops->add(rank, o->select_bias, o->n_expert);
    if (o->n_group > 1)
        limit_groups(o, rank);
    return rank;
}

/* The weight of chosen expert id[k] among those near it (pass.h); rank: scratch. */
static float mix(const struct kn_ops *ops, const struct kn_op_route *o, const float *p, const int32_t *id, int k,
                 float *rank)
{
    float m = p[id[k]];
    for (int e = 0; e < o->n_expert; e++) {
        float size = p[e] < 0 ? -p[e] : p[e], largest = size > m ? size : m;
        bool far = (m - p[e]) / largest > o->mixer_gap || (k > 0 && e == id[0]);
        rank[e] = far ? -HUGE_VALF : p[e];
    }
    ops->softmax(rank, o->n_expert);
    return rank[id[k]];
}

/* Gatings that choose by logits: weight has the logits of the chosen experts id, and gets their weights. */
static void weigh_chosen(const struct kn_ops *ops, const struct kn_op_route *o, const float *p, const int32_t *id,
                         float *weight, float *rank)
{
    if (o->gating == KN_GATING_CHOSEN)
        ops->softmax(weight, o->n_used);
    for (int i = 0; o->gating == KN_GATING_CHOSEN_SIGMOID && i < o->n_used; i++)
        weight[i] = kn_sigmoid(weight[i]);
    for (int i = 0; o->gating == KN_GATING_MIXER && i < o->n_used; i++)
        weight[i] = mix(ops, o, p, id, i, rank);
}

static void route_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct kn_op_route *o = ((const struct kn_host_job *)arg)->op;
    const struct kn_ops *ops = ((const struct kn_host_job *)arg)->ops;
    size_t at = (size_t)row * (size_t)o->n_expert, used = (size_t)row * (size_t)o->n_used;
    float *p = o->logit + at, *weight = o->weight + used, sum = 0;
    int32_t *id = o->id + used;
    if (o->bias)
        ops->add(p, o->bias, o->n_expert);
    if (o->gating == KN_GATING_SOFTMAX)
        ops->softmax(p, o->n_expert);
    for (int e = 0; o->gating == KN_GATING_SIGMOID && e < o->n_expert; e++)
        p[e] = kn_sigmoid(p[e]);
    choose(rank_of(ops, o, p, o->rank + at), o->n_expert, o->n_used, id);
    for (int i = 0; i < o->n_used; i++)
        weight[i] = p[id[i]];
    weigh_chosen(ops, o, p, id, weight, o->rank + at);
    for (int i = 0; i < o->n_used; i++)
        sum += weight[i];
    for (int i = 0; i < o->n_used; i++) {
        weight[i] = o->norm_topk ? weight[i] / (sum + 1e-20f) : weight[i]; /* all may be 0 */
        weight[i] *= o->scale;
        if (o->expert_scale)
            weight[i] *= o->expert_scale[id[i]];
    }
}

void kn_host_route(struct kn_host_queue *q, const struct kn_op_route *o) { kn_host_for(q, o->n, route_row, o); }

/* ---- plan and guess ---------------------------------------------------------------------------------------- */

void kn_host_plan(struct kn_host_queue *q, const struct kn_op_plan *o)
{
    (void)q;
    const struct kn_plan *p = &o->plan;
    int32_t *fill = p->fill; /* number of rows of each expert, then the index of its next row in p->row */
    for (int e = 0; e < o->n_expert; e++)
        fill[e] = 0;
    for (int row = 0; row < o->rows.n; row++)
        for (int i = 0; !o->rows.status[row] && i < o->n_used; i++)
            fill[o->id[row * o->n_used + i]]++;
    int n = 0, n_pair = 0;
    for (int e = 0; e < o->n_expert; e++) {
        int count = fill[e];
        fill[e] = n_pair;
        if (!count)
            continue;
        p->expert[n] = o->expert0 + e;
        p->first[n++] = n_pair;
        n_pair += count;
    }
    p->first[n] = n_pair;
    *p->n_expert = n;
    for (int row = 0; row < o->rows.n; row++)
        for (int i = 0; !o->rows.status[row] && i < o->n_used; i++) {
            int pair = row * o->n_used + i, at = fill[o->id[pair]]++;
            p->row[at] = row;
            p->pair[at] = pair;
        }
}

void kn_host_guess(struct kn_host_queue *q, const struct kn_op_guess *o)
{
    (void)q;
    int n = 0;
    memset(o->sum, 0, (size_t)o->n_expert * sizeof *o->sum);
    for (int row = 0; row < o->rows.n; row++)
        for (int i = 0; !o->rows.status[row] && i < o->n_used; i++) {
            int at = row * o->n_used + i;
            o->sum[o->id[at]] += o->weight[at];
        }
    for (int e = 0; e < o->n_expert; e++) {
        if (!(o->sum[e] > 0))
            continue;
        int at = n++;
        for (; at > 0 && o->sum[o->expert[at - 1] - o->expert0] < o->sum[e]; at--)
            o->expert[at] = o->expert[at - 1];
        o->expert[at] = o->expert0 + e;
    }
    *o->n_listed = n;
}

/* Whether the plan's i-th expert is absent. */
static bool is_absent(const struct kn_op_group *o, int i)
{
    return !o->expert || !o->expert[o->plan.expert[i] - o->expert0].gate.data;
}

/* Numbers the outputs of the plan's i-th expert from n on; returns the next. */
static int number_outputs_of(const struct kn_op_group *o, int i, int n)
{
    const struct kn_plan *p = &o->plan;
    for (int k = p->first[i]; k < p->first[i + 1]; k++, n++) {
        o->out[k] = n;
        o->place[p->pair[k]] = n;
        if (o->weight)
            o->out_weight[n] = o->weight[p->pair[k]];
    }
    return n;
}

static void number_outputs(const struct kn_op_group *o)
{
    int n = 0, n_absent = 0;
    for (int absent = 1; absent >= 0; absent--)
        for (int i = 0; i < *o->plan.n_expert; i++)
            if (is_absent(o, i) == absent) {
                n = number_outputs_of(o, i, n);
                n_absent += absent;
            }
    *o->n_absent = n_absent;
    if (!n_absent)
        __atomic_store_n(o->done, o->turn, __ATOMIC_RELEASE);
}

void kn_host_group(struct kn_host_queue *q, const struct kn_op_group *o)
{
    (void)q;
    const struct kn_plan *p = &o->plan;
    int n = *p->n_expert;
    for (int i = 0; i < o->n_group; i++) {
        int e = i < n ? p->expert[i] - o->expert0 : 0;
        struct kn_group *g = &o->group[i];
        memcpy(g, &o->expert[e], sizeof *g); /* padding, too: backends are compared by bytes */
        g->bias = e;
        g->first = i < n ? p->first[i] : 0;
        g->n = i < n && !(o->out && is_absent(o, i)) ? p->first[i + 1] - p->first[i] : 0;
    }
    if (o->n_sum)
        *o->n_sum += n;
    if (o->out)
        number_outputs(o);
}
