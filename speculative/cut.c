/* speculative/cut.c - chooses the nodes of all drafts that get a row in the verification.
 *
 * The value of a node is its survival times the time of a token by the decided plan, or by a plain step if the plan
 * does not gain; its cost is the time that its row adds to the pass.  No node has a higher survival than its parent, so
 * the likeliest nodes of all drafts together always form whole trees, and one budget for all is one threshold: nodes
 * are counted by survival in N_BIN classes, and the number of rows is the one with the largest value minus cost.
 *
 * If the missing experts of each node are known, its cost depends on the experts that no node taken earlier has loaded.
 * Measured times of rows include the loads of average nodes, so with even routing the costs of all nodes add up to the
 * measured time of their rows.  Nodes are taken one by one, best first; a node is evaluated only if it could be the best
 * without any loads (lazy greedy).  The first nodes may cost more than their value, and load experts that make many
 * others cheap: nodes are taken to the end of the budget, and the ones after the prefix with the largest value minus
 * cost are dropped again. */
#include "speculative/internal.h"

#include <math.h>
#include <string.h>

#define N_BIN               256
#define DRAFTER_MEAN_DRAFTS 64              /* drafts in a drafter's mean survival, */
#define SESSION_MEAN_DRAFTS 16              /* and in a session's */
#define PREDICTED_DECAY     (1 - 1 / 512.0) /* decay of the sums of predicted survival, per draft */

/* Survival of the nodes, corrected by the acceptance so far; no child above its parent.  A row of a lookahead window
 * counts with its value as it is. */
static void correct_survival(const struct spec_control *c, int drafter, const struct spec_cut *cut, float *out)
{
    const struct spec_tree *t = cut->tree;
    double truth[SPEC_DEPTHS];
    spec_control_correction(c, c->arm[drafter].of, cut->session, truth);
    for (int i = 0; i < t->n; i++) {
        double most = t->parent[i] == SPEC_ROOT ? 1 : out[t->parent[i]];
        double x = t->survival[i] * (t->window_row[i] ? 1 : truth[kn_min(t->depth[i], SPEC_DEPTHS) - 1]);
        out[i] = (float)(x > 0 ? fmin(x, most) : 0);
    }
}

static int bin_of(float survival) { return kn_min(N_BIN - 1, (int)(survival * N_BIN)); }

/* ---- drafted survival ------------------------------------------------------------------------------------ */

static void learn_survival(struct spec_control *c, int drafter, const struct spec_cut *cut)
{
    struct spec_arm *a = &c->arm[drafter];
    struct spec_session_stats *h = &c->habit[drafter * c->opt.n_session + cut->session];
    double sum[SPEC_DEPTHS] = { 0 }, truth[SPEC_DEPTHS];
    spec_control_correction(c, drafter, cut->session, truth);
    for (int i = 0; i < cut->tree->n; i++)
        if (cut->tree->depth[i] <= SPEC_DEPTHS && !cut->tree->window_row[i])
            sum[cut->tree->depth[i] - 1] += cut->tree->survival[i];
    for (int d = 0; d < kn_min(c->last.depth, cut->n_requested); d++) {
        double x = sum[d] < 1 ? sum[d] : 1;
        if (h->has_prediction) {
            a->predicted[d] = a->predicted[d] * PREDICTED_DECAY + h->predicted[d];
            a->reported[d] = a->reported[d] * PREDICTED_DECAY + x * truth[d];
        }
        a->survival[d] += (x - a->survival[d]) / (a->survival_weight[d] + 1);
        a->survival_weight[d] = fmin(a->survival_weight[d] + 1, DRAFTER_MEAN_DRAFTS);
        h->survival[d] += (x - h->survival[d]) / (h->weight[d] + 1);
        h->weight[d] = fmin(h->weight[d] + 1, SESSION_MEAN_DRAFTS);
    }
}

/* ---- by rows ---------------------------------------------------------------------------------------------- */

struct budget {
    const struct spec_control *c;
    int n_due, n_beside, row_budget, drafter;
    double token_ns; /* time of a token by the decided plan, or by a plain step */
};

static double pass_ns(const struct budget *b, int n_drafted)
{
    return spec_passes_ns(&b->c->passes, b->n_due, b->n_beside, n_drafted, false);
}

/* The number of likeliest nodes with the largest value minus cost. */
static int rows_worth(const struct budget *b, const int *count, const double *sum)
{
    double off = pass_ns(b, 0), kept = 0, most = 0;
    int n = 0, best = 0;
    for (int bin = N_BIN - 1; bin >= 0; bin--)
        for (int i = 0; i < count[bin] && n < b->row_budget; i++) {
            kept += sum[bin] / count[bin];
            double net = kept * b->token_ns - (pass_ns(b, ++n) - off);
            if (net > most) {
                most = net;
                best = n;
            }
        }
    return best;
}

static void cut_by_rows(const struct budget *b, struct spec_cut *cut, int n, int exactly)
{
    int count[N_BIN] = { 0 };
    double sum[N_BIN] = { 0 };
    float value[SPEC_NODES];
    for (int i = 0; i < n; i++) {
        correct_survival(b->c, b->drafter, &cut[i], value);
        for (int j = 0; j < cut[i].tree->n; j++) {
            count[bin_of(value[j])]++;
            sum[bin_of(value[j])] += value[j];
        }
    }
    int left = exactly >= 0 ? exactly : rows_worth(b, count, sum), bar = N_BIN;
    while (bar > 0 && left > count[bar - 1])
        left -= count[--bar];
    bar--; /* kept are all bins above bar, and `left` nodes of bin bar */
    for (int i = 0; i < n; i++) {
        correct_survival(b->c, b->drafter, &cut[i], value);
        for (int j = 0; j < cut[i].tree->n; j++) {
            int bin = bin_of(value[j]);
            cut[i].keep[j] = bin > bar || (bin == bar && left-- > 0);
            cut[i].n_keep += cut[i].keep[j];
        }
    }
}

/* ---- by rows and bytes ------------------------------------------------------------------------------------ */

/* Cost of the next node: row_ns, and load_ns for each expert that it needs and no node taken so far has loaded. */
struct node_cost {
    double row_ns, load_ns;
    double mean_missing;             /* missing experts of an average node */
    double not_loaded;               /* share of them that the nodes taken so far have not loaded */
    double not_loaded_by_unnumbered; /* the same, of the nodes taken with experts without numbers */
};

static const struct spec_need *need_of(const struct spec_cut *cut, int node)
{
    return cut->need ? &cut->need[node] : NULL;
}

static bool is_numbered(const struct spec_need *need) { return need && need->expert; }

/* The number of the node's experts that no node taken so far is expected to have loaded. */
static double count_new_experts(const struct spec_control *c, const struct spec_need *need,
                                const struct node_cost *cost)
{
    int fresh = 0;
    if (!is_numbered(need))
        return (need ? need->n : cost->mean_missing) * cost->not_loaded;
    for (int i = 0; i < need->n; i++)
        fresh += !c->loaded[need->expert[i]];
    return fresh * cost->not_loaded_by_unnumbered;
}

static double cost_ns(const struct spec_control *c, const struct spec_need *need, const struct node_cost *cost)
{
    return fmax(0, cost->row_ns + count_new_experts(c, need, cost) * cost->load_ns);
}

static void mark_loaded(struct spec_control *c, const struct spec_need *need)
{
    for (int i = 0; i < need->n; i++) {
        kn_assert(need->expert[i] >= 0 && need->expert[i] < c->opt.n_expert);
        c->loaded[need->expert[i]] = true;
    }
}

/* The largest net value of any node that can be taken next, and this node; -INFINITY: none can. */
static double best_open(const struct budget *b, const struct spec_cut *cut, int n, const struct node_cost *cost,
                        struct spec_cut_node *out)
{
    double most = -INFINITY, least = fmax(0, cost->row_ns);
    for (int i = 0; i < n; i++) {
        const struct spec_tree *t = cut[i].tree;
        const float *value = b->c->value + i * SPEC_NODES;
        for (int j = 0; j < t->n; j++) {
            if (cut[i].keep[j] || (t->parent[j] != SPEC_ROOT && !cut[i].keep[t->parent[j]]))
                continue;
            double net = value[j] * b->token_ns;
            if (net - least <= most) /* lazily: evaluate only nodes that can still win */
                continue;
            net -= cost_ns(b->c, need_of(&cut[i], j), cost);
            if (net > most) {
                most = net;
                *out = (struct spec_cut_node){ i, j };
            }
        }
    }
    return most;
}

/* With even routing, the share of a drafted row's experts that n_drafted rows before it have not loaded. */
static double share_not_loaded(const struct budget *b, int n_drafted)
{
    const double *uniform_experts = b->c->uniform_experts;
    int first = b->n_due + b->n_beside, at = first + n_drafted, last = b->c->n_uniform - 2;
    double of_first = first <= last ? uniform_experts[first + 1] - uniform_experts[first] : 0;
    if (of_first <= 0)
        return 1;
    return (uniform_experts[kn_min(at, last) + 1] - uniform_experts[kn_min(at, last)]) / of_first;
}

/* The mean number of missing experts of a node, before any is loaded. */
static double mean_missing(const struct spec_cut *cut, int n)
{
    double sum = 0;
    int n_node = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < cut[i].tree->n && cut[i].need; j++, n_node++)
            sum += cut[i].need[j].n;
    return n_node ? sum / n_node : 0;
}

/* A load takes expert_ns, but loads overlap with products: with one more node of each sequence, or two, or more, the
 * loads of average nodes take at most the time of the rows. */
static struct node_cost first_cost(const struct budget *b, const struct spec_cut *cut, int n, double expert_ns)
{
    struct node_cost cost = { .load_ns = expert_ns, .mean_missing = mean_missing(cut, n) };
    double n_load = 0, off_ns = pass_ns(b, 0);
    int n_node = 0;
    for (int i = 0; i < n; i++)
        n_node += cut[i].tree->n;
    n_node = kn_min(n_node, b->row_budget);
    for (int k = 1; k <= n_node; k++) {
        n_load += cost.mean_missing * share_not_loaded(b, k - 1);
        double rows_ns = k % n == 0 || k == n_node ? fmax(0, pass_ns(b, k) - off_ns) : INFINITY;
        if (n_load * cost.load_ns > rows_ns)
            cost.load_ns = rows_ns / n_load;
    }
    return cost;
}

/* Sets the cost of the next node: the measured time of its row without the loads of an average node. */
static void set_next_cost(const struct budget *b, int n_taken, int n_unnumbered, struct node_cost *cost)
{
    cost->not_loaded = share_not_loaded(b, n_taken);
    cost->not_loaded_by_unnumbered = share_not_loaded(b, n_unnumbered);
    cost->row_ns = pass_ns(b, n_taken + 1) - pass_ns(b, n_taken) -
                   cost->mean_missing * cost->not_loaded * cost->load_ns;
}

static void cut_by_bytes(struct spec_control *c, const struct budget *b, struct spec_cut *cut, int n,
                         double expert_bytes)
{
    struct node_cost cost = first_cost(b, cut, n, expert_bytes * c->stall_ns / c->stall_bytes);
    double all = 0, most = 0;
    int n_taken = 0, n_best = 0, n_unnumbered = 0;
    memset(c->loaded, 0, (size_t)c->opt.n_expert * sizeof *c->loaded);
    for (int i = 0; i < n; i++)
        correct_survival(c, b->drafter, &cut[i], c->value + i * SPEC_NODES);
    for (int k = 0; k < b->row_budget && k < n * SPEC_NODES; k++) {
        struct spec_cut_node *t = &c->taken[k];
        set_next_cost(b, k, n_unnumbered, &cost);
        double net = best_open(b, cut, n, &cost, t);
        if (isinf(net))
            break;
        n_taken++;
        cut[t->tree].keep[t->node] = true;
        const struct spec_need *need = need_of(&cut[t->tree], t->node);
        if (is_numbered(need))
            mark_loaded(c, need);
        else
            n_unnumbered++;
        if ((all += net) > most) {
            most = all;
            n_best = n_taken;
        }
    }
    for (int k = 0; k < n_best; k++)
        cut[c->taken[k].tree].n_keep++;
    for (int k = n_best; k < n_taken; k++)
        cut[c->taken[k].tree].keep[c->taken[k].node] = false;
}

/* ---- lookahead windows ------------------------------------------------------------------------------------ */

/* Under SPEC_RATIO and SPEC_BLOCK: keeps all drafted nodes, and the rows of windows if such a row is worth its time.
 * This depends on no drawn token: neither do the values, nor the number of nodes that the time of a row is taken at.
 * False: they are more than the budget. */
static bool keep_drafted_nodes(const struct budget *b, struct spec_cut *cut, int n)
{
    int n_requested = 0, total = 0;
    for (int i = 0; i < n; i++)
        n_requested += cut[i].n_requested;
    n_requested = kn_max(0, kn_min(n_requested, b->row_budget - n));
    double row_ns = (pass_ns(b, n_requested + n) - pass_ns(b, n_requested)) / n;
    for (int i = 0; i < n; i++) {
        const struct spec_tree *t = cut[i].tree;
        for (int j = 0; j < t->n; j++)
            cut[i].n_keep += cut[i].keep[j] = !t->window_row[j] || t->survival[j] * b->token_ns > row_ns;
        cut[i].blind = true;
        total += cut[i].n_keep;
    }
    return total <= b->row_budget;
}

/* A column of a window makes an n-gram only with its last row: drops the rows that lead to none. */
static void drop_parts_of_columns(struct spec_cut *cut)
{
    const struct spec_tree *t = cut->tree;
    bool leads[SPEC_NODES] = { false };
    for (int j = t->n - 1; j >= 0; j--) {
        leads[j] |= cut->keep[j] && t->wants_target_token[j];
        if (leads[j] && t->parent[j] != SPEC_ROOT)
            leads[t->parent[j]] = true;
        if (cut->keep[j] && t->window_row[j] && !leads[j]) {
            cut->keep[j] = false;
            cut->n_keep--;
        }
    }
}

static void clear_cut(struct spec_cut *cut)
{
    memset(cut->keep, 0, sizeof cut->keep);
    cut->blind = false;
    cut->n_keep = 0;
}

/* ---- the cut ---------------------------------------------------------------------------------------------- */

void spec_control_cut(struct spec_control *c, struct spec_cut *cut, int n, double expert_bytes)
{
    const struct spec_decision *d = &c->last;
    int row_budget = c->opt.max_rows > 0 ? c->opt.max_rows - d->n_due - d->n_beside : INT32_MAX, total = 0;
    if (c->opt.max_drafted > 0)
        row_budget = kn_min(row_budget, c->opt.max_drafted);
    bool needs = false;
    for (int i = 0; i < n; i++) {
        clear_cut(&cut[i]);
        total += cut[i].tree->n;
        needs |= cut[i].need != NULL;
        if (d->drafter != SPEC_OFF)
            learn_survival(c, c->arm[d->drafter].of, &cut[i]);
    }
    if (d->drafter == SPEC_OFF || total == 0)
        return;
    struct budget b = {
        .c = c, .n_due = d->n_due, .n_beside = d->n_beside, .row_budget = kn_max(0, row_budget), .drafter = d->drafter
    };
    b.token_ns = spec_passes_plain_ns(&c->passes, d->n_due) / d->n_due / fmax(1, d->gain);
    if (c->opt.rule != SPEC_COUPLED) {
        if (keep_drafted_nodes(&b, cut, n))
            return;
        for (int i = 0; i < n; i++)
            clear_cut(&cut[i]);
    }
    if (c->opt.rule != SPEC_COUPLED || d->why == SPEC_WHY_FIXED)
        cut_by_rows(&b, cut, n, kn_min(total, b.row_budget));
    else if (d->why == SPEC_WHY_TRIAL && !c->arm[d->drafter].overlap)
        cut_by_rows(&b, cut, n, kn_min(total, kn_min(b.row_budget, (int)(d->rows + 0.5) - d->n_due)));
    else if (needs && c->stall_bytes > 0)
        cut_by_bytes(c, &b, cut, n, expert_bytes);
    else
        cut_by_rows(&b, cut, n, -1);
    for (int i = 0; i < n; i++)
        drop_parts_of_columns(&cut[i]);
}
