/* tests/speculative/machine.h - a simulated machine, drafter and load for the controller to run on: a virtual clock,
 * passes that follow the cost model with noise, and drafts accepted with a given probability.
 * For tests and for evals/control.c. */
#ifndef TESTS_SPECULATIVE_MACHINE_H
#define TESTS_SPECULATIVE_MACHINE_H

#include "speculative/control.h"
#include "speculative/fit.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define MACHINE_SESSIONS 64

struct machine_drafter {
    const char *name;
    int max_depth;
    double fixed_ns, seq_ns; /* of a draft pass */
    double accept;           /* probability that a node is accepted if its parent is */
    double says;             /* the accept that it reports; 0: the true one */
    double sure;             /* share of steps in which it has drafts; 0: all */
};

struct machine {
    const char *name;
    struct spec_cost_model cost;
    double expert_bytes, missing, Bps; /* missing: share of experts on disk; Bps 0: no disk */
    double alike;                      /* one drafted row counts as this many plain rows; 0: 1 */
    double noise;                      /* standard deviation of a pass (uniform), relative to its time */
    double crowded;                    /* added share of misses when a pass uses all experts */
};

/* Changes the machine, the drafter or the load at step i of the run. */
typedef void machine_change(void *arg, int step, struct machine *m, struct machine_drafter *d, int *n_due);

struct machine_run {
    double took_ns, off_ns; /* time with drafts; time of plain steps for the same tokens */
    double tokens;
    double late_took_ns, late_off_ns; /* the same for the second half */
    int n_on, n_late_on, n_step;
};

/* Sequences: the drafter prefills unknown tokens at this many ns a token; after MACHINE_TEXT tokens a sequence is
 * replaced by another with a prompt to prefill. 0: everything is prefilled, and sequences never end. */
static double machine_text_ns;
#define MACHINE_PROMPT 48
#define MACHINE_TEXT   256

static int machine_beside; /* prompt rows in each pass */

static struct spec_observed *machine_observed; /* the passes are collected here; NULL: nowhere */

/* Each pass: its time without noise, and that of plain passes for the tokens that are expected of the verified nodes. */
struct machine_pass {
    double took_ns, off_ns;
};
static struct machine_pass *machine_trace; /* [steps of the next run] the passes are stored here; NULL: nowhere */

static uint64_t machine_seed;
static double machine_random(void)
{
    machine_seed += KN_GOLDEN;
    return (double)(kn_mix(machine_seed) >> 11) * 0x1p-53;
}

static double machine_distinct(const struct machine *m, int n_plain, int n_drafted)
{
    double wide = n_plain + n_drafted * (m->alike > 0 ? m->alike : 1);
    return m->cost.n_expert > 0 ? spec_cost_distinct(m->cost.n_expert, m->cost.n_used, wide) : 0;
}

/* Bytes that a pass reads. */
static double machine_missed(const struct machine *m, int n_plain, int n_drafted)
{
    double distinct = machine_distinct(m, n_plain, n_drafted);
    double missing = m->crowded > 0 ? m->missing + m->crowded * distinct / m->cost.n_expert : m->missing;
    return m->Bps > 0 ? distinct * missing * m->expert_bytes : 0;
}

static double machine_compute_ns(const struct machine *m, int n_plain, int n_drafted)
{
    double rows = n_plain + n_drafted, distinct = machine_distinct(m, n_plain, n_drafted);
    return spec_cost_pass_ns(&m->cost, rows, distinct, 0) + spec_cost_choose_ns(&m->cost, rows);
}

static double machine_pass_ns(const struct machine *m, int n_due, int n_beside, int n_drafted)
{
    double missed = machine_missed(m, n_due + n_beside, n_drafted);
    return fmax(machine_compute_ns(m, n_due + n_beside, n_drafted), missed > 0 ? missed / m->Bps * 1e9 : 0);
}

/* The experts that every node is expected to miss, other than those its session's rows bring in; ids are unknown. */
static struct spec_need machine_need(const struct machine *m, int n_due)
{
    double others = m->Bps > 0 ? 1 - machine_distinct(m, n_due, 0) / m->cost.n_expert : 0;
    return (struct spec_need){ NULL, (int)(m->cost.n_used * m->missing * others + 0.5) };
}

static double machine_noise(const struct machine *m) { return 1 + m->noise * sqrt(3) * (2 * machine_random() - 1); }

/* Drafts a chain; returns how many of its nodes will be accepted. */
static int machine_draft(const struct machine_drafter *d, int n_node, int depth, struct spec_tree *t)
{
    int accepted = 0;
    bool alive = true;
    double survival = 1;
    spec_tree_clear(t);
    if (d->sure > 0 && machine_random() >= d->sure)
        return 0;
    for (int i = 0; i < depth && i < n_node; i++) {
        survival *= d->says > 0 ? d->says : d->accept;
        spec_tree_add(t, i - 1, i, (float)survival, 1);
        alive = alive && machine_random() < d->accept;
        accepted += alive;
    }
    return accepted;
}

/* Per session: tokens that the first drafter has not prefilled, and tokens generated. */
struct machine_text {
    int n_unknown, n_said;
};

static void machine_tell(struct spec_control *c, struct machine_text *text, int n_due)
{
    int behind = 0;
    for (int i = 0; i < n_due && machine_text_ns > 0; i++) {
        if (text[i].n_said >= MACHINE_TEXT || text[i].n_said == 0) {
            text[i] = (struct machine_text){ MACHINE_PROMPT, 0 };
            spec_control_begin(c, i);
        }
        behind += kn_max(0, text[i].n_unknown - 1);
    }
    if (machine_text_ns > 0)
        spec_control_set_n_prefill(c, 0, behind);
}

static inline struct machine_run machine_go(struct spec_control *c, struct machine *m, struct machine_drafter *drafter,
                                            int n_due, int n_step, machine_change *change, void *arg)
{
    static struct spec_tree tree[MACHINE_SESSIONS];
    static struct spec_cut cut[MACHINE_SESSIONS];
    static struct spec_need need[SPEC_NODES];
    struct spec_session_outcome outcome[MACHINE_SESSIONS];
    int session[MACHINE_SESSIONS], nodes[MACHINE_SESSIONS], accepted[MACHINE_SESSIONS];
    struct machine_text text[MACHINE_SESSIONS] = { { 0 } };
    struct machine_run r = { .n_step = n_step };
    for (int step = 0; step < n_step; step++) {
        if (change)
            change(arg, step, m, drafter, &n_due);
        for (int i = 0; i < n_due; i++)
            session[i] = i;
        struct spec_decision d;
        int n_drafted = 0, n_accepted = 0, n_text = 0;
        machine_tell(c, text, n_due);
        spec_control_decide(c, session, n_due, machine_beside, &d, nodes);
        double draft_ns = 0, expected = 0;
        for (int i = 0; i < n_due; i++)
            outcome[i] = (struct spec_session_outcome){ .session = i };
        if (d.drafter != SPEC_OFF) {
            const struct machine_drafter *by = &drafter[d.drafter];
            draft_ns = d.depth * (by->fixed_ns + by->seq_ns * n_due);
            for (int i = 0; i < n_due; i++) {
                if (nodes[i] && machine_text_ns > 0) {
                    n_text += text[i].n_unknown;
                    draft_ns += machine_text_ns * kn_max(0, text[i].n_unknown - 1);
                    text[i].n_unknown = 0;
                }
                accepted[i] = machine_draft(by, nodes[i], d.depth, &tree[i]);
                cut[i] = (struct spec_cut){
                    .session = i, .tree = &tree[i], .n_requested = nodes[i], .need = m->Bps > 0 ? need : NULL
                };
            }
            for (int i = 0; i < SPEC_NODES; i++)
                need[i] = machine_need(m, n_due);
            spec_control_cut(c, cut, n_due, m->expert_bytes);
            for (int i = 0; i < n_due; i++) {
                assert(cut[i].n_keep <= tree[i].n);
                spec_tree_prune(&tree[i], cut[i].keep, false);
                outcome[i] = (struct spec_session_outcome){ i, &tree[i], kn_min(accepted[i], tree[i].n), NULL };
                n_drafted += tree[i].n;
                n_accepted += outcome[i].n_accepted;
                expected += spec_cost_tokens(by->accept, tree[i].n) - 1;
            }
        }
        for (int i = 0; i < n_due; i++) {
            text[i].n_said += 1 + outcome[i].n_accepted;
            text[i].n_unknown += d.drafter == SPEC_OFF || !nodes[i] ? 1 + outcome[i].n_accepted : 1;
        }
        double plain_ns = machine_pass_ns(m, n_due, 0, 0), off_ns = machine_pass_ns(m, n_due, machine_beside, 0),
               pass_ns = machine_pass_ns(m, n_due, machine_beside, n_drafted);
        struct spec_outcome_of_pass s = { .n_row = n_due + machine_beside + n_drafted,
                                          .n_due = n_due,
                                          .n_beside = machine_beside,
                                          .draft_ns = draft_ns,
                                          .pass_ns = pass_ns * machine_noise(m),
                                          .missed_bytes = machine_missed(m, n_due + machine_beside, n_drafted),
                                          .outcome = outcome,
                                          .n_text = n_text };
        if (machine_observed && !machine_beside)
            spec_observe(machine_observed,
                         &(struct spec_fit_point){ .rows = s.n_row,
                                                   .distinct = machine_distinct(m, n_due + machine_beside, n_drafted),
                                                   .miss_ns = m->Bps > 0 ? s.missed_bytes / m->Bps * 1e9 : 0,
                                                   .ns = s.pass_ns },
                         n_due);
        s.stall_ns = fmax(0, s.pass_ns - machine_compute_ns(m, n_due + machine_beside, n_drafted));
        spec_control_learn(c, &s);
        double took = draft_ns + pass_ns, off = off_ns + plain_ns * n_accepted / n_due; /* without noise */
        if (machine_trace)
            machine_trace[step] = (struct machine_pass){ took, off_ns + plain_ns * expected / n_due };
        r.took_ns += took;
        r.off_ns += off;
        r.tokens += n_due + n_accepted;
        r.n_on += n_drafted > 0;
        if (step >= n_step / 2) {
            r.late_took_ns += took;
            r.late_off_ns += off;
            r.n_late_on += n_drafted > 0;
        }
    }
    return r;
}

/* Throughput with every sequence drafting at this depth, divided by throughput without drafts. */
static double machine_fixed(const struct machine *m, const struct machine_drafter *d, int n_due, int depth)
{
    double sure = d->sure > 0 ? d->sure : 1, accepted = spec_cost_tokens(d->accept, depth) - 1, off, on;
    off = machine_pass_ns(m, n_due, 0, 0);
    on = depth * (d->fixed_ns + d->seq_ns * n_due) + machine_pass_ns(m, n_due, 0, (int)(n_due * depth * sure + 0.5));
    return (1 + accepted * sure) * off / on;
}

static inline double machine_best(const struct machine *m, const struct machine_drafter *d, int n_due, int *depth)
{
    double best = 1;
    *depth = 0;
    for (int k = 1; k <= d->max_depth; k++) {
        double x = machine_fixed(m, d, n_due, k);
        if (x > best) {
            best = x;
            *depth = k;
        }
    }
    return best;
}

/* A controller with one drafter and automatic draft lengths; NULL: no memory. */
static inline struct spec_control *machine_control(const struct machine_drafter *d)
{
    struct spec_control_options o = { .n_session = MACHINE_SESSIONS,
                                      .n_drafter = 1,
                                      .drafter = { { .name = d->name, .max_depth = d->max_depth } },
                                      .rule = SPEC_COUPLED,
                                      .gamma = SPEC_AUTO };
    struct spec_control *c;
    return spec_control_open(&c, &o) ? NULL : c;
}

/* The cost model of an engine that knows only the machine's rates: distinct experts for every row, arithmetic in proportion to rows,
 * and the disk's time hidden or not. */
static inline struct spec_cost_model machine_by_rates(const struct machine *m)
{
    struct spec_cost_model c = m->cost;
    c.dense_ns *= spec_cost_phi(64, c.ridge, c.growth) / 64;
    c.expert_ns *= spec_cost_phi(64, c.ridge, c.growth) / 64;
    c.ridge = 1e-9;
    c.growth = M_E;
    c.choose_ns = c.choose_row_ns = 0;
    if (m->Bps > 0)
        c.disk_ns = m->missing * m->expert_bytes / m->Bps * 1e9;
    return c;
}

/* The fit of the collected passes that an engine keeps, as engine/draft/fit.c makes it.  False: there is none. */
static inline bool machine_keep(struct spec_cost_model *out, const struct spec_observed *seen, const struct machine *m,
                                const struct spec_cost_model *expected)
{
    struct spec_fit_point point[SPEC_OBSERVED_POINTS];
    struct spec_fit fit;
    struct spec_fit_input in = { .n_expert = m->cost.n_expert,
                                 .n_used = m->cost.n_used,
                                 .ridge_least = 1,
                                 .ridge_most = 128,
                                 .pass = point,
                                 .n_pass = spec_observed_points(seen, point),
                                 .expected = expected };
    if (!in.n_pass || spec_fit(&fit, &in))
        return false;
    *out = fit.cost;
    if (m->Bps > 0)
        out->disk_ns = m->missing * m->expert_bytes / m->Bps * 1e9;
    return true;
}

/* Typical machines: pass times in ms. */
static const struct machine machines[] = {
    /* all in memory: the weights of 48 layers are read once a pass, each distinct expert once */
    { "memory",
      { .fixed_ns = 8e6,
        .load_ns = 0.5e6,
        .dense_ns = 2e6,
        .expert_ns = 0.05e6,
        .ridge = 64,
        .growth = 1.01,
        .choose_row_ns = 0.1e6,
        .n_expert = 128,
        .n_used = 8 },
      0,
      0,
      0,
      0.6,
      0.05,
      0 },
    /* slow arithmetic: every further row costs nearly as much as the first */
    { "sums",
      { .fixed_ns = 2e6,
        .load_ns = 0.05e6,
        .dense_ns = 100e6,
        .expert_ns = 40e6,
        .ridge = 2,
        .growth = 1.04,
        .choose_row_ns = 0.1e6,
        .n_expert = 32,
        .n_used = 4 },
      0,
      0,
      0,
      1,
      0.05,
      0 },
    /* experts on disk: the missed bytes dominate */
    { "disk",
      { .fixed_ns = 8e6,
        .load_ns = 0.3e6,
        .dense_ns = 2e6,
        .expert_ns = 0.05e6,
        .ridge = 64,
        .growth = 1.01,
        .n_expert = 128,
        .n_used = 8 },
      48 * 2.6e6,
      0.5,
      2e9,
      0.7,
      0.05,
      0 },
    /* an accelerator in MoESD's moderate regime: a few rows use all experts */
    { "moesd",
      { .fixed_ns = 6e6,
        .load_ns = 0.25e6,
        .dense_ns = 1e6,
        .expert_ns = 0.02e6,
        .ridge = 150,
        .growth = 1.006,
        .choose_row_ns = 0.01e6,
        .n_expert = 64,
        .n_used = 8 },
      0,
      0,
      0,
      0.9,
      0.05,
      0 },
    /* dense: all weights are read in every pass */
    { "dense",
      { .fixed_ns = 40e6, .dense_ns = 4e6, .ridge = 32, .growth = 1.02, .choose_row_ns = 0.1e6 },
      0,
      0,
      0,
      1,
      0.05,
      0 },
};
#define N_MACHINES ((int)(sizeof machines / sizeof *machines))

#endif
