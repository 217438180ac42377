/* speculative/plans.c - the expected gain of each drafter at each depth.
 *
 * A plan takes the likeliest nodes of all sequences' expected drafts as long as tokens per second rise; the result is
 * its gain over a plain step.  All depths together cost a few thousand additions: survivals are sorted into BINS, and
 * each depth adds its own nodes to those of the smaller depths. */
#include "speculative/internal.h"

#include <math.h>

#define BINS       128
#define UNSEEN     0.8              /* hopeful: survival per depth is at least this without seen drafts, */
#define SEEN       0.64             /* this with them, */
#define LUCK       1.5              /* and so many standard deviations above its mean */
#define HARDLY     0.02             /* nodes with less survival are not drafted */

bool spec_control_seen(const struct spec_control *c, int drafter)
{
    return c->arm[c->arm[drafter].of].seen_weight[0] >= 4;
}

/* Time of one draft pass for n sequences: measured at the nearest batch size, or forecast; < 0: neither. */
static double nearest_draft_ns(const struct spec_arm *a, int n_due)
{
    int size = spec_size_of(n_due);
    for (int far = 0; far < SPEC_SIZES; far++)
        for (int side = -1; side <= 1; side += 2) {
            int i = size + side * far;
            if (i >= 0 && i < SPEC_SIZES && a->draft_weight[i] > 0)
                return a->draft_ns[i];
        }
    return a->foreseen.draft_ns >= 0 ? spec_cost_draft_ns(&a->foreseen, n_due) : -1;
}

double spec_control_draft_ns(const struct spec_control *c, int drafter, int n_due)
{
    double alone = nearest_draft_ns(&c->arm[c->arm[drafter].of], n_due);
    return alone >= 0 ? alone : nearest_draft_ns(&c->arm[drafter], n_due);
}

void spec_plan_expect(const struct spec_control *c, int drafter, int session, int depth, bool hopeful, double *what)
{
    int of = c->arm[drafter].of;
    spec_control_expect(c, of, session, depth, what);
    double hope = 1, most = 1;
    for (int d = 0; hopeful && d < depth; d++) {
        hope *= spec_control_seen(c, drafter) ? SEEN : UNSEEN;
        double luck = 1 + LUCK / sqrt(c->arm[of].tally[d].hoped + 1);
        what[d] = most = fmin(most, fmax(what[d] * luck, hope));
    }
}

/* Nodes of all sequences' drafts, by survival. */
struct bins { int count[BINS]; double sum[BINS]; };

/* Adds the nodes of one depth. */
static void add_depth(struct bins *b, const struct spec_control *c, int n_due, int depth)
{
    for (int i = 0; i < n_due; i++) {
        double last = c->hope[i][depth - 1];
        if (last < HARDLY)
            continue;
        int bin = kn_min(BINS - 1, (int)(last * BINS));
        b->count[bin]++;
        b->sum[bin] += last;
    }
}

/* The best plan of this depth, drafting and verifying in turn: the number of likeliest nodes with the highest gain. */
static struct spec_plan plan_in_turn(const struct spec_control *c, const struct spec_ask *q, int drafter, int depth,
                                     bool hopeful, const struct bins *b)
{
    double draft_ns = fmax(0, spec_control_draft_ns(c, drafter, q->n_due)) * depth, kept = 0;
    struct spec_plan best = { .drafter = drafter, .depth = depth, .bar = 2, .rows = q->n_due, .tokens = q->n_due,
                              .draft_ns = draft_ns, .pass_ns = q->off_ns,
                              .gain = q->off_ns / (draft_ns + q->off_ns) };
    int n = 0;
    for (int bin = BINS - 1; bin >= 0 && n < q->room; bin--) {
        if (!b->count[bin])
            continue;
        int take = kn_min(b->count[bin], q->room - n);
        n += take;
        kept += b->sum[bin] * take / b->count[bin];
        double pass = spec_passes_ns(&c->passes, q->n_due, q->n_beside, n, hopeful);
        double gain = (q->off_ns + kept * q->token_ns) / (draft_ns + pass);
        if (gain > best.gain)
            best = (struct spec_plan){ .drafter = drafter, .depth = depth, .bar = (double)bin / BINS,
                                       .rows = q->n_due + n, .tokens = q->n_due + kept, .draft_ns = draft_ns,
                                       .pass_ns = pass, .contention = 1, .gain = gain };
    }
    return best;
}

/* The plan of this depth with overlapped drafting: all guesses that are ready are verified. */
static struct spec_plan plan_ahead(const struct spec_control *c, const struct spec_ask *q, int drafter, int depth,
                                   bool hopeful)
{
    const struct spec_arm *a = &c->arm[drafter];
    double rows = 0, kept = 0;
    for (int i = 0; i < q->n_due; i++) {
        struct spec_ahead_share s = spec_ahead_share(c->hope[i], depth);
        rows += s.rows;
        kept += s.kept;
    }
    rows = fmin(rows, q->room);
    kept *= spec_ahead_yield(a);
    struct spec_plan p = { .drafter = drafter, .depth = depth, .rows = q->n_due + rows, .tokens = q->n_due + kept,
                           .draft_ns = fmax(0, spec_control_draft_ns(c, drafter, q->n_due)) * depth,
                           .contention = spec_ahead_contention(c, a, q->size, hopeful) };
    double less = spec_passes_ns(&c->passes, q->n_due, q->n_beside, (int)rows, hopeful);
    double more = spec_passes_ns(&c->passes, q->n_due, q->n_beside, (int)rows + 1, hopeful);
    p.pass_ns = less + (more - less) * (rows - (int)rows);      /* mean over steps with more rows and with fewer */
    p.gain = (q->off_ns + kept * q->token_ns) / spec_ahead_ns(p.pass_ns, p.draft_ns, p.contention);
    return p;
}

void spec_plans_make(struct spec_control *c, const struct spec_ask *q, int drafter, int most, bool hopeful,
                     struct spec_plan *out /* [most + 1] */)
{
    struct bins bins = { 0 };
    for (int i = 0; i < q->n_due && most > 0; i++)
        spec_plan_expect(c, drafter, q->session[i], most, hopeful, c->hope[i]);
    for (int depth = 1; depth <= most; depth++) {
        if (c->arm[drafter].ahead) {
            out[depth] = plan_ahead(c, q, drafter, depth, hopeful);
            continue;
        }
        add_depth(&bins, c, q->n_due, depth);
        out[depth] = plan_in_turn(c, q, drafter, depth, hopeful, &bins);
    }
}

struct spec_plan spec_plan_best(const struct spec_plan *p, int least, int most)
{
    struct spec_plan best = { .drafter = SPEC_OFF };
    for (int depth = least; depth <= most; depth++)
        if (best.drafter == SPEC_OFF || p[depth].gain > best.gain)
            best = p[depth];
    return best;
}
