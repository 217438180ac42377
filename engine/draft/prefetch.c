/* engine/draft/prefetch.c - requests the experts that the rows to come will need, before the pass begins, and finds
 * the experts that drafted rows would wait for.
 *
 * The tokens of a pass are known before it begins, and the disk is idle while drafts are made. So as soon as a token is
 * known or drafted, the target's context gets it (moe_context_expect) and prefetches the experts that it is likely to
 * use, until the pass reaches their layers. When the draft is complete, the controller gets for each node the experts
 * that it would still have to wait for and that no row of the sequences needs (spec_need), and may remove the node.
 * Under SPEC_COUPLED that changes no output. After the cut only the remaining tokens are requested. */
#include "engine/draft/internal.h"

#include <string.h>

#define MAX_RECALL 8192 /* most entries of the context's token-to-experts table */

int eng_prefetch_open(struct eng_drafting *g)
{
    const struct moe_shape *s = moe_model_shape(g->host.model);
    size_t n_row = (size_t)g->host.n_chunk + (size_t)g->host.n_draft_row, n_expert = (size_t)s->n_expert_total;
    size_t n_each = (size_t)(s->n_layer * s->n_used), n_need = (size_t)g->host.n_draft_row;
    struct eng_prefetch *a = &g->prefetch;
    if (!n_expert)
        return 0;
    g->n_recall = kn_min(s->n_vocab, MAX_RECALL);
    a->token = kn_calloc(n_row, sizeof *a->token);
    if (a->token && !g->host.n_draft_row)
        return 0;
    a->need = kn_calloc(n_need, sizeof *a->need);
    a->expert = kn_calloc(n_need * n_each, sizeof *a->expert);
    a->expert_needed_by_text = kn_calloc(n_expert, sizeof *a->expert_needed_by_text);
    if (!a->token || !a->need || !a->expert || !a->expert_needed_by_text)
        return kn_fail(KN_ENOMEM, "no memory to prefetch experts");
    return 0;
}

void eng_prefetch_close(struct eng_drafting *g)
{
    kn_free(g->prefetch.token);
    kn_free(g->prefetch.need);
    kn_free(g->prefetch.expert);
    kn_free(g->prefetch.expert_needed_by_text);
}

/* ---- the list of tokens ----------------------------------------------------------------------------------- */

void eng_prefetch_begin(struct eng_drafting *g) { g->prefetch.n = g->prefetch.n_text = 0; }

void eng_prefetch_add_text(struct eng_drafting *g, const int32_t *token, int n)
{
    struct eng_prefetch *a = &g->prefetch;
    if (!g->n_recall)
        return;
    memcpy(a->token + a->n, token, (size_t)n * sizeof *token);
    a->n_text = a->n += n;
}

void eng_prefetch_truncate(struct eng_drafting *g, int n) { g->prefetch.n = n; }

void eng_prefetch_add(struct eng_drafting *g, int32_t token)
{
    if (g->n_recall && g->prefetch.n < g->prefetch.n_text + g->host.n_draft_row)
        g->prefetch.token[g->prefetch.n++] = token;
}

void eng_prefetch_request(struct eng_drafting *g)
{
    if (g->n_recall)
        moe_context_expect(g->host.context, g->prefetch.token, g->prefetch.n);
}

void eng_prefetch_settle(struct eng_drafting *g)
{
    g->prefetch.n = g->prefetch.n_text;
    for (int i = 0; i < g->n_due; i++)
        for (int k = 0; k < g->due[i]->draft->tree.n; k++)
            eng_prefetch_add(g, g->due[i]->draft->tree.token[k]);
    eng_prefetch_request(g);
}

/* ---- the experts of nodes ---------------------------------------------------------------------------------- */

/* Marks the missing experts of the sequences' own rows: the pass waits for them anyway. */
static void mark_experts_of_text(struct eng_drafting *g)
{
    const struct eng_prefetch *a = &g->prefetch;
    for (int i = 0; i < a->n_text; i++) {
        int n = moe_context_missing(g->host.context, a->token[i], a->expert);
        for (int k = 0; k < n; k++)
            a->expert_needed_by_text[a->expert[k]] = true;
    }
}

/* A node without remembered experts of its token (n < 0) gets the mean number of missing experts of the other nodes,
 * without expert numbers. */
static void estimate_unknown_needs(struct spec_need *need, int n, int n_known, int n_missing)
{
    for (int i = 0; i < n; i++)
        if (need[i].n < 0)
            need[i] = (struct spec_need){ NULL, n_known ? (n_missing + n_known / 2) / n_known : 0 };
}

bool eng_prefetch_needs(struct eng_drafting *g, struct spec_cut *cut)
{
    const struct moe_shape *s = moe_model_shape(g->host.model);
    struct eng_prefetch *a = &g->prefetch;
    int n_node = 0, n_known = 0, n_missing = 0;
    if (!g->n_recall || off_store_is_whole(moe_model_store(g->host.model)) || a->n_text * s->n_used >= 8 * s->n_expert)
        return false; /* no expert is on disk, or the sequences' rows need nearly all */
    mark_experts_of_text(g);
    int32_t *at = a->expert;
    for (int i = 0; i < g->n_due; i++) {
        const struct spec_tree *t = &g->due[i]->draft->tree;
        cut[i].need = a->need + n_node;
        for (int j = 0; j < t->n; j++) {
            int n = moe_context_missing(g->host.context, t->token[j], at), n_own = 0;
            for (int k = 0; k < n; k++)
                if (!a->expert_needed_by_text[at[k]])
                    at[n_own++] = at[k];
            a->need[n_node++] = (struct spec_need){ at, n < 0 ? -1 : n_own };
            n_known += n >= 0;
            n_missing += n_own;
            at += n_own;
        }
    }
    kn_assert(n_node <= g->host.n_draft_row && at - a->expert <= (ptrdiff_t)n_node * s->n_layer * s->n_used);
    estimate_unknown_needs(a->need, n_node, n_known, n_missing);
    memset(a->expert_needed_by_text, 0, (size_t)s->n_expert_total * sizeof *a->expert_needed_by_text);
    return true;
}
