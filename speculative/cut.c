/* speculative/cut.c - which nodes of all drafts are worth a row in the verification.
 *
 * A node is worth its survival times what a token costs otherwise, and costs what its row adds to the pass.  No
 * node survives more often than its parent, so the likeliest nodes of all drafts together are always whole
 * trees, and one budget for all is one threshold: nodes are counted by survival in BINS, and the number of
 * rows is the one at which worth minus cost is largest.
 *
 * Where it is known which missing experts a node would touch, its cost is its own: the bytes that no node taken
 * before it brings in.  Then nodes are taken one by one, best first; a node is looked at only while it could be
 * the best if it brought in nothing (lazy greedy), and it stops when the best is worth less than it costs. */
#include "speculative/internal.h"

#include <math.h>
#include <string.h>

#define BINS 256
#define SEEN_ARM     64                         /* drafts that are remembered */
#define SEEN_SESSION 16

/* Nodes' survival as it has proved, parents never below their children. */
static void worth(const struct spec_control *c, int drafter, const struct spec_cut *cut, float *out)
{
    const struct spec_tree *t = cut->tree;
    double truth[SPEC_DEPTHS];
    spec_control_truth(c, c->arm[drafter].of, cut->session, truth);
    for (int i = 0; i < t->n; i++) {
        double most = t->parent[i] == SPEC_ROOT ? 1 : out[t->parent[i]];
        double x = t->survival[i] * truth[kn_min(t->depth[i], SPEC_DEPTHS) - 1];
        out[i] = (float)(x > 0 ? fmin(x, most) : 0);
    }
}

static int bin_of(float survival) { return kn_min(BINS - 1, (int)(survival * BINS)); }

/* ---- what was drafted ------------------------------------------------------------------------------------ */

static void remember(struct spec_control *c, int drafter, const struct spec_cut *cut)
{
    struct spec_arm *a = &c->arm[drafter];
    struct spec_habit *h = &c->habit[drafter * c->opt.n_session + cut->session];
    double sum[SPEC_DEPTHS] = { 0 };
    for (int i = 0; i < cut->tree->n; i++)
        if (cut->tree->depth[i] <= SPEC_DEPTHS)
            sum[cut->tree->depth[i] - 1] += cut->tree->survival[i];
    for (int d = 0; d < kn_min(c->last.depth, cut->n_asked); d++) {
        double x = sum[d] < 1 ? sum[d] : 1;
        a->seen[d] += (x - a->seen[d]) / (a->seen_weight[d] + 1);
        a->seen_weight[d] = fmin(a->seen_weight[d] + 1, SEEN_ARM);
        h->seen[d] += (x - h->seen[d]) / (h->weight[d] + 1);
        h->weight[d] = fmin(h->weight[d] + 1, SEEN_SESSION);
    }
}

/* ---- by rows ---------------------------------------------------------------------------------------------- */

struct budget {
    const struct spec_control *c;
    int n_due, n_beside, room, drafter;
    double token_ns;                            /* what a token costs otherwise */
};

static double pass_ns(const struct budget *b, int n_drafted)
{
    return spec_passes_ns(&b->c->passes, b->n_due, b->n_beside, n_drafted, false);
}

/* How many rows are worth their cost, when the likeliest are taken first. */
static int rows_worth(const struct budget *b, const int *count, const double *sum)
{
    double off = pass_ns(b, 0), kept = 0, most = 0;
    int n = 0, best = 0;
    for (int bin = BINS - 1; bin >= 0; bin--)
        for (int i = 0; i < count[bin] && n < b->room; i++) {
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
    int count[BINS] = { 0 };
    double sum[BINS] = { 0 };
    float value[SPEC_NODES];
    for (int i = 0; i < n; i++) {
        worth(b->c, b->drafter, &cut[i], value);
        for (int j = 0; j < cut[i].tree->n; j++) {
            count[bin_of(value[j])]++;
            sum[bin_of(value[j])] += value[j];
        }
    }
    int left = exactly >= 0 ? exactly : rows_worth(b, count, sum), bar = BINS;
    while (bar > 0 && left > count[bar - 1])
        left -= count[--bar];
    bar--;                                      /* all above it, and `left` of it */
    for (int i = 0; i < n; i++) {
        worth(b->c, b->drafter, &cut[i], value);
        for (int j = 0; j < cut[i].tree->n; j++) {
            int bin = bin_of(value[j]);
            cut[i].keep[j] = bin > bar || (bin == bar && left-- > 0);
            cut[i].n_keep += cut[i].keep[j];
        }
    }
}

/* ---- by rows and bytes ------------------------------------------------------------------------------------ */

/* How many experts of the need nobody who was kept before has brought in. */
static int news(const struct spec_control *c, const struct spec_need *need)
{
    int fresh = 0;
    for (int i = 0; i < need->n; i++)
        fresh += !need->expert || !c->brought[need->expert[i]];
    return fresh;
}

static void bring(struct spec_control *c, const struct spec_need *need)
{
    for (int i = 0; i < need->n && need->expert; i++) {
        kn_assert(need->expert[i] >= 0 && need->expert[i] < c->opt.n_expert);
        c->brought[need->expert[i]] = true;
    }
}

/* The most that any open node nets, and which it is.  ahead: what a row costs that brings in nothing. */
static double best_open(const struct budget *b, const struct spec_cut *cut, int n, double row_ns, double expert_ns,
                        int *tree, int *node)
{
    double most = 0;
    float value[SPEC_NODES];
    for (int i = 0; i < n; i++) {
        const struct spec_tree *t = cut[i].tree;
        worth(b->c, b->drafter, &cut[i], value);
        for (int j = 0; j < t->n; j++) {
            if (cut[i].keep[j] || (t->parent[j] != SPEC_ROOT && !cut[i].keep[t->parent[j]]))
                continue;
            double net = value[j] * b->token_ns - row_ns;
            if (net > most && cut[i].need)      /* lazily: only who could still win is looked at */
                net -= news(b->c, &cut[i].need[j]) * expert_ns;
            if (net > most) {
                most = net;
                *tree = i;
                *node = j;
            }
        }
    }
    return most;
}

static void cut_by_bytes(struct spec_control *c, const struct budget *b, struct spec_cut *cut, int n,
                         double expert_bytes)
{
    double byte_ns = c->stall_bytes > 0 ? c->stall_ns / c->stall_bytes : 0;
    int tree = 0, node = 0, rows = b->n_due + b->n_beside;
    memset(c->brought, 0, (size_t)c->opt.n_expert * sizeof *c->brought);
    for (int taken = 0; taken < b->room; taken++) {
        /* passes were measured with what rows miss on average: that is in the row's cost already */
        double usual = spec_knots_at(&c->missed, NULL, 0, rows + taken + 1) -
                       spec_knots_at(&c->missed, NULL, 0, rows + taken);
        double row_ns = pass_ns(b, taken + 1) - pass_ns(b, taken) - fmax(0, usual) * byte_ns;
        if (best_open(b, cut, n, fmax(0, row_ns), expert_bytes * byte_ns, &tree, &node) <= 0)
            break;
        cut[tree].keep[node] = true;
        cut[tree].n_keep++;
        if (cut[tree].need)
            bring(c, &cut[tree].need[node]);
    }
}

/* ---- the cut ---------------------------------------------------------------------------------------------- */

void spec_control_cut(struct spec_control *c, struct spec_cut *cut, int n, double expert_bytes)
{
    const struct spec_decision *d = &c->last;
    int room = c->opt.most_rows > 0 ? c->opt.most_rows - d->n_due - d->n_beside : INT32_MAX, total = 0;
    if (c->opt.most_drafted > 0)
        room = kn_min(room, c->opt.most_drafted);
    bool needs = false;
    for (int i = 0; i < n; i++) {
        memset(cut[i].keep, 0, sizeof cut[i].keep);
        cut[i].n_keep = 0;
        total += cut[i].tree->n;
        needs |= cut[i].need != NULL;
        if (d->drafter != SPEC_OFF)
            remember(c, c->arm[d->drafter].of, &cut[i]);
    }
    if (d->drafter == SPEC_OFF || total == 0)
        return;
    struct budget b = { .c = c, .n_due = d->n_due, .n_beside = d->n_beside, .room = kn_max(0, room),
                        .drafter = d->drafter };
    b.token_ns = spec_passes_plain(&c->passes, d->n_due) / d->n_due / fmax(1, d->gain);
    if (c->opt.rule != SPEC_COUPLED || d->why == SPEC_WHY_FIXED)
        cut_by_rows(&b, cut, n, kn_min(total, b.room));
    else if (d->why == SPEC_WHY_TRIAL && !c->arm[d->drafter].ahead)
        cut_by_rows(&b, cut, n, kn_min(total, kn_min(b.room, (int)(d->rows + 0.5) - d->n_due)));
    else if (needs && c->stall_bytes > 0)
        cut_by_bytes(c, &b, cut, n, expert_bytes);
    else
        cut_by_rows(&b, cut, n, -1);
}
