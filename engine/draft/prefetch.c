/* What tokens say of experts: those that the rows to come will need, asked for before the pass begins, and what
 * drafted rows would cost that need others.
 *
 * The tokens of a pass are known before it begins, and while drafts are made the disk has nothing to do.  So as
 * soon as a token is known or drafted the model's context is told to expect it (moe_context_expect), and reads
 * on while the first layers are computed.  When a draft is whole, what has arrived by then decides with: the
 * controller is told of every node which experts it would have to wait for that no row of the text itself brings
 * in (spec_need), and may leave it out.  Under SPEC_COUPLED that changes no text.  After the cut only what is
 * left is expected. */
#include "engine/internal.h"

#include <string.h>

int eng_expect_open(struct eng_engine *e)
{
    const struct moe_shape *s = moe_model_shape(e->model);
    size_t n_row = (size_t)e->opt.n_chunk + (size_t)e->n_draft_row, n_expert = (size_t)s->n_expert_total;
    size_t n_each = (size_t)(s->n_layer * s->n_used), n_need = (size_t)e->n_draft_row;
    struct eng_expect *a = &e->expect;
    if (!n_expert)
        return 0;
    e->n_recall = kn_min(s->n_vocab, ENG_RECALL);
    a->token = kn_calloc(n_row, sizeof *a->token);
    if (a->token && !e->n_draft_row)
        return 0;
    a->need = kn_calloc(n_need, sizeof *a->need);
    a->expert = kn_calloc(n_need * n_each, sizeof *a->expert);
    a->brought = kn_calloc(n_expert, sizeof *a->brought);
    if (!a->token || !a->need || !a->expert || !a->brought)
        return kn_fail(KN_ENOMEM, "no memory to look ahead with");
    return 0;
}

void eng_expect_close(struct eng_engine *e)
{
    kn_free(e->expect.token);
    kn_free(e->expect.need);
    kn_free(e->expect.expert);
    kn_free(e->expect.brought);
}

/* ---- what will come --------------------------------------------------------------------------------------- */

void eng_expect_begin(struct eng_engine *e)
{
    struct eng_expect *a = &e->expect;
    a->n = 0;
    for (int i = 0; i < e->n_active && e->n_recall; i++)
        for (int k = 0; k < e->active[i]->n_row; k++)
            a->token[a->n++] = e->active[i]->token[e->active[i]->n_kv + k];
    a->n_text = a->n;
    eng_expect_ask(e);
}

void eng_expect_add(struct eng_engine *e, int32_t token)
{
    if (e->n_recall && e->expect.n < e->expect.n_text + e->n_draft_row)
        e->expect.token[e->expect.n++] = token;
}

void eng_expect_ask(struct eng_engine *e)
{
    if (e->n_recall)
        moe_context_expect(e->context, e->expect.token, e->expect.n);
}

void eng_expect_settle(struct eng_engine *e)
{
    e->expect.n = e->expect.n_text;
    for (int i = 0; i < e->n_due; i++)
        for (int k = 0; k < e->due[i]->seat->tree.n; k++)
            eng_expect_add(e, e->due[i]->seat->tree.token[k]);
    eng_expect_ask(e);
}

/* ---- what nodes need --------------------------------------------------------------------------------------- */

/* What rows of the text itself have to wait for is waited for anyway. */
static void mark_text(struct eng_engine *e)
{
    const struct eng_expect *a = &e->expect;
    for (int i = 0; i < a->n_text; i++) {
        int n = moe_context_missing(e->context, a->token[i], a->expert);
        for (int k = 0; k < n; k++)
            a->brought[a->expert[k]] = true;
    }
}

/* Of a node whose token is not remembered as many as others need on average, which nobody else does. */
static void guess_needs(struct spec_need *need, int n, int n_known, int n_missing)
{
    for (int i = 0; i < n; i++)
        if (need[i].n < 0)
            need[i] = (struct spec_need){ NULL, n_known ? (n_missing + n_known / 2) / n_known : 0 };
}

bool eng_expect_needs(struct eng_engine *e)
{
    const struct moe_shape *s = moe_model_shape(e->model);
    struct eng_expect *a = &e->expect;
    int n_node = 0, n_known = 0, n_missing = 0;
    if (!e->n_recall || off_store_is_whole(moe_model_store(e->model)) || a->n_text * s->n_used >= 8 * s->n_expert)
        return false;                           /* all is here, or texts bring all of it in */
    mark_text(e);
    int32_t *at = a->expert;
    for (int i = 0; i < e->n_due; i++) {
        const struct spec_tree *t = &e->due[i]->seat->tree;
        e->cut[i].need = a->need + n_node;
        for (int j = 0; j < t->n; j++) {
            int n = moe_context_missing(e->context, t->token[j], at), n_own = 0;
            for (int k = 0; k < n; k++)
                if (!a->brought[at[k]])
                    at[n_own++] = at[k];
            a->need[n_node++] = (struct spec_need){ at, n < 0 ? -1 : n_own };
            n_known += n >= 0;
            n_missing += n_own;
            at += n_own;
        }
    }
    kn_assert(n_node <= e->n_draft_row && at - a->expert <= (ptrdiff_t)n_node * s->n_layer * s->n_used);
    guess_needs(a->need, n_node, n_known, n_missing);
    memset(a->brought, 0, (size_t)s->n_expert_total * sizeof *a->brought);
    return true;
}
