/* engine/draft/overlap.c - drafting while a pass verifies: distributed speculative inference with the engine's own
 * pass as the one target.
 *
 * A session's chain holds the tokens drafted behind its sequence. A step verifies the chain, and meanwhile another
 * thread (beside.c) extends it. If the verified tokens agree with the chain, the rest of it is the next draft. If not,
 * the chain is cleared, and the next pass runs at once without a draft. So a step takes the longer of the two times,
 * not their sum; a wrong draft token costs the draft of the next pass.
 *
 * The two threads share no data while both run: between start and end the drafter owns the chains and the tokens behind
 * n_token, and the pass reads rows that were laid out before. */
#include "engine/draft/internal.h"
#include "speculative/dsi.h"

#include <string.h>

#define MIN_OVERLAP_TOKENS 2 /* the pass itself gives one token; with one more there is a draft */

struct eng_overlap {
    struct eng_drafting *drafting;
    struct eng_drafter *drafter;
    struct eng_seq **session; /* [n] of n_parallel: sequences with chains to extend */
    int *n_more, n;           /* [n] tokens to add to each */
    struct eng_overlapped last;
    int error;                /* of the last draft */
    double pass_ns, draft_ns; /* time of a pass of the target, and of the drafter; recent mean, 0: unknown */
};

const struct eng_drafter *eng_overlap_drafter(const struct eng_drafting *g)
{
    return g->overlap ? g->overlap->drafter : NULL;
}
const struct eng_overlapped *eng_overlap_last(const struct eng_drafting *g) { return &g->overlap->last; }

/* ---- open, close --------------------------------------------------------------------------------------- */

static struct eng_drafter *find_drafter(const struct eng_drafting *g)
{
    for (int i = 0; i < g->n_drafter; i++)
        if (g->drafter[i]->kind->overlap)
            return g->drafter[i];
    return NULL;
}

/* No drafter can draft during passes: --dsi 1 fails, auto warns. */
static int refuse_or_warn(const struct eng_drafting *g)
{
    static const char why[] =
        "an n-gram, suffix, lookahead or oracle draft takes no time that could be hidden, a head "
        "or MTP layer needs features that the running pass has yet to compute, the model itself is "
        "busy with that pass, and a model with another vocabulary needs its text";
    if (g->opt.dsi == ENG_DSI_ON)
        return kn_fail(KN_EUNSUPPORTED, "--dsi needs --draft model:FILE: %s", why);
    kn_say(KN_LOG_WARN, "--dsi auto has no effect without --draft model:FILE: %s", why);
    return 0;
}

/* With --dsi 1 other drafters with a cost are ignored; with auto they are plans of their own. */
static void warn_ignored_drafters(const struct eng_drafting *g, const struct eng_drafter *ahead)
{
    for (int i = 0; i < g->n_drafter && g->opt.dsi == ENG_DSI_ON; i++)
        if (g->drafter[i] != ahead && !g->drafter[i]->kind->free)
            kn_say(KN_LOG_WARN,
                   "--dsi 1: only the first %s drafts, during passes; %s is ignored, since a pass would "
                   "wait for it",
                   ahead->name, g->drafter[i]->name);
}

/* --dsi 1 with a tree in --draft model: is refused, since drafting during passes extends chains only. With --dsi auto
 * the tree is drafted between passes. */
static bool wants_tree_always(const struct eng_drafting *g)
{
    int i = 0;
    while (i < g->opt.n_draft && g->opt.draft[i].kind != ENG_DRAFT_MODEL)
        i++;
    return g->opt.dsi == ENG_DSI_ON && i < g->opt.n_draft && g->opt.draft[i].tree != ENG_TREE_CHAIN;
}

int eng_overlap_open(struct eng_drafting *g)
{
    struct eng_drafter *d = find_drafter(g);
    size_t n = (size_t)g->host.n_parallel;
    if (g->opt.dsi == ENG_DSI_OFF)
        return 0;
    if (g->opt.verify != SPEC_COUPLED)
        return kn_fail(KN_EUNSUPPORTED,
                       "--dsi drafts with the model's own noise, which --verify %s does not use: "
                       "leave --verify at coupled",
                       g->opt.verify == SPEC_RATIO ? "ratio" : "block");
    if (!d)
        return refuse_or_warn(g);
    if (wants_tree_always(g))
        return kn_fail(KN_EUNSUPPORTED, "--dsi 1: a draft during a pass is a chain: leave out tree= of --draft "
                                        "model:, or use --dsi auto, which also drafts trees between passes");
    warn_ignored_drafters(g, d);
    struct eng_overlap *a = g->overlap = kn_calloc(1, sizeof *a);
    if (!a)
        return kn_fail(KN_ENOMEM, "no memory for --dsi");
    a->drafting = g;
    a->drafter = d;
    a->session = kn_calloc(n, sizeof(struct eng_seq *));
    a->n_more = kn_calloc(n, sizeof *a->n_more);
    if (!a->session || !a->n_more)
        return kn_fail(KN_ENOMEM, "no memory for --dsi with %zu sessions", n);
    return 0;
}

void eng_overlap_close(struct eng_drafting *g)
{
    struct eng_overlap *a = g->overlap;
    if (!a)
        return;
    for (int i = 0; g->seat && i < g->host.n_parallel; i++)
        g->seat[i].chain.n = 0;
    kn_free(a->session);
    kn_free(a->n_more);
    kn_free(a);
    g->overlap = NULL;
}

/* ---- a pass -------------------------------------------------------------------------------------------- */

void eng_overlap_lay(struct eng_drafting *g, int depth)
{
    g->overlap_depth = depth;
    for (int i = 0; i < g->n_due; i++) {
        struct eng_draft_seat *seat = g->due[i]->draft;
        float survival = 1;
        for (int k = 0; k < kn_min(g->n_node[i], seat->chain.n); k++) {
            survival *= seat->chain.odds[k];
            spec_tree_add(&seat->tree, k - 1, seat->chain.token[k], survival,
                          (uint8_t)(1 << g->overlap->drafter->number));
        }
    }
}

/* Tokens to add to the chain of s: within n_max and the free KV, and no more than the next pass can verify. */
static int n_more_tokens(struct eng_drafting *g, struct eng_seq *s)
{
    int has = s->draft->chain.n, most = kn_min(ENG_DRAFT_NODES, s->n_max - s->n_token - 1);
    int n = kn_min(s->limits.n_max ? kn_min(most, s->limits.n_max) : most, s->draft->tree.n + g->overlap_depth) - has;
    if (!(s->draft->usable >> g->overlap->drafter->number & 1))
        return 0;
    if (n > 0 && eng_kv_reserve(g->host.kv, &s->path, s->n_token + has + n))
        n = s->path.n_slot - s->n_token - has;
    return kn_max(n, 0);
}

bool eng_overlap_start(struct eng_drafting *g)
{
    struct eng_overlap *a = g->overlap;
    int n_more = 0;
    if (!g->overlap_depth)
        return false;
    a->n = 0;
    a->last = (struct eng_overlapped){ 0 };
    for (int i = 0; i < g->n_due; i++) {
        a->session[a->n] = g->due[i];
        n_more += a->n_more[a->n++] = n_more_tokens(g, g->due[i]);
    }
    if (n_more == 0 || a->drafter->broken)
        a->n = 0;
    return a->n > 0;
}

void eng_overlap_run(struct eng_drafting *g, const struct eng_beside_tools *tools)
{
    struct eng_overlap *a = g->overlap;
    uint64_t start = kn_now_ns();
    if (!g->overlap_depth || !a->n)
        return;
    struct eng_drafter *d = a->drafter;
    d->team = tools->team;
    d->sampler = tools->sampler;
    d->n_text = 0;
    a->error = d->kind->overlap(d, a->session, a->n_more, a->n, tools->stop, &a->last.n_pass);
    d->team = a->drafting->host.team;
    d->sampler = a->drafting->host.sampler;
    a->last.took_ns = kn_now_ns() - start;
}

void eng_overlap_end(struct eng_drafting *g, uint64_t waited_ns)
{
    struct eng_overlap *a = g->overlap;
    if (!g->overlap_depth)
        return;
    a->last.waited_ns = waited_ns;
    g->times.overlap_ns += a->last.took_ns;
    g->times.overlap_wait_ns += waited_ns;
    if (a->error)
        eng_draft_break(a->drafter, a->error);
    a->error = 0;
}

/* Removes the committed tokens from the chain, or clears it at the first wrong token. Tokens that agree, and the rest
 * of a chain that continues, have KV in the drafter already. */
void eng_overlap_commit(struct eng_seq *s, int n_new)
{
    struct eng_chain *c = &s->draft->chain;
    const int32_t *said = s->token + s->n_token - n_new;
    int same = 0, most = kn_min(n_new, c->n);
    while (same < most && c->token[same] == said[same])
        same++;
    s->draft->n_chain_accepted = same;
    if (same < n_new) {
        c->n = 0;
        return;
    }
    s->draft->n_chain_accepted = c->n;
    c->n -= n_new;
    memmove(c->token, c->token + n_new, (size_t)c->n * sizeof *c->token);
    memmove(c->odds, c->odds + n_new, (size_t)c->n * sizeof *c->odds);
}

void eng_overlap_drop(struct eng_drafting *g, struct eng_seq *s)
{
    int *known = eng_draft_computed(g->overlap->drafter, s);
    s->draft->chain.n = 0;
    *known = kn_min(*known, s->n_token);
}

/* ---- how far ------------------------------------------------------------------------------------------- */

static void smooth(double *mean, double x) { *mean += *mean > 0 ? (x - *mean) / 8 : x; }

void eng_overlap_learn(struct eng_drafting *g, uint64_t pass_ns)
{
    struct eng_overlap *a = g->overlap;
    if (!g->overlap_depth)
        return;
    smooth(&a->pass_ns, (double)(pass_ns - a->last.waited_ns));
    if (a->last.n_pass)
        smooth(&a->draft_ns, (double)a->last.took_ns / a->last.n_pass);
}

/* Equation 1 of DSI for one target, less one token: a token that is not ready when the pass ends would wait for the
 * whole next pass. */
int eng_overlap_depth(const struct eng_drafting *g)
{
    const struct eng_overlap *a = g->overlap;
    if (a->pass_ns <= 0 || a->draft_ns <= 0)
        return MIN_OVERLAP_TOKENS;
    return kn_max(MIN_OVERLAP_TOKENS,
                  spec_dsi_lookahead((int64_t)a->pass_ns, (int64_t)a->draft_ns, 1, SPEC_DEPTHS) - 1);
}
