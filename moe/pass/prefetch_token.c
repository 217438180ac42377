/* Remembers the experts that each token last used, and prefetches them before the token is computed again.
 *
 * In the first layers routing depends on the token more than on its context, so the experts that a token last used
 * predict its next experts well there, and less well in later layers.  The hit rate, for each layer and rank among the
 * chosen experts, is measured with every row that has a token in the table.  The tokens of the next pass are known
 * before it begins, drafted tokens as soon as they are drafted, and the disk is idle meanwhile: experts that one of
 * these tokens is likely to use are prefetched with urgency EARLY.  Most likely experts are in memory already, and
 * likely experts that are not in memory are used less often than the hit rate says.  So the hit rate of the latter is
 * measured separately, by layer and class of probability, whether they were prefetched or not, and only classes with a
 * high rate are prefetched.  No pass waits for these reads, and a wrong prediction never changes the result.
 *
 * A token's entry in the table is its id modulo the number of entries; a later token replaces an earlier one.  An entry
 * has n_used numbers per layer: 2 * 48 * 8 bytes for a large model, so 8,192 entries take 6 MB. */
#include "moe/pass/pass.h"

#include <string.h>

#define EVEN   0.5f  /* an expert of at least this probability is likely */
#define MOSTLY 0.65f /* least hit rate with which likely experts that are not in memory are prefetched */
#define GUESS  0.5f  /* prior of hit_rate */
#define BELIEF 16    /* weight of the prior GUESS, in predictions */
#define FIRST  4     /* proved begins with hit rate MOSTLY, with the weight of this many predictions */
#define MEMORY 8192  /* a count of predictions above this is halved, with its count of uses */

static int entry_of(const struct moe_recall *r, int32_t token) { return (int)(token % r->n_entry); }

static uint16_t *ids_of(const struct moe_context *c, int entry, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    return c->recall.id + ((size_t)entry * (size_t)d->n_layer + (size_t)layer) * (size_t)d->n_used;
}

static struct moe_hit_rate *hit_rate_of(const struct moe_context *c, int layer)
{
    return c->recall.hit_rate + (size_t)layer * (size_t)c->model->desc.n_used;
}

void moe_recall_init(struct moe_context *c)
{
    struct moe_recall *r = &c->recall;
    for (int i = 0; i < r->n_entry; i++)
        r->token[i] = -1;
    for (int i = 0; r->n_entry && i < c->model->desc.n_layer * c->model->desc.n_used; i++)
        r->hit_rate[i] = (struct moe_hit_rate){ .predicted = BELIEF, .used = GUESS * BELIEF };
    for (int i = 0; r->n_entry && i < c->model->desc.n_layer * MOE_CHANCES; i++)
        r->proved[i] = (struct moe_hit_rate){ .predicted = FIRST, .used = MOSTLY * FIRST };
}

/* ---- learning from a pass ----------------------------------------------------------------------------- */

void moe_recall_begin(struct moe_context *c)
{
    struct moe_recall *r = &c->recall;
    r->learns = r->n_entry && !moe_device_lists(c) && (c->guess.sight || !off_store_is_whole(c->model->store));
    for (int row = 0; r->learns && row < c->n_row; row++) {
        int32_t token = c->batch->row[row].token, *whose = &r->token[entry_of(r, token)];
        r->known[row] = *whose == token;
        *whose = token;
    }
}

static bool is_among(int32_t id, const int32_t *of, int n)
{
    while (n-- > 0)
        if (of[n] == id)
            return true;
    return false;
}

static void forget(struct moe_hit_rate *hit_rate, int n)
{
    for (; n-- > 0; hit_rate++)
        if (hit_rate->predicted > MEMORY) {
            hit_rate->predicted /= 2;
            hit_rate->used /= 2;
        }
}

static void disown(const struct moe_recall *r, int32_t token)
{
    int32_t *whose = &r->token[entry_of(r, token)];
    if (*whose == token)
        *whose = -1;
}

/* Counts, in proved, the likely experts that were not in memory when predicted, and how many the pass used. */
static void learn_absent(struct moe_context *c, int layer)
{
    int n = c->model->desc.n_expert;
    struct moe_hit_rate *proved = c->recall.proved + (size_t)layer * MOE_CHANCES;
    uint8_t *asked = c->recall.asked + (size_t)layer * (size_t)n;
    for (int e = 0; e < n; e++)
        if (asked[e])
            proved[asked[e] - 1].predicted++;
    for (int i = 0; i < *c->plan.n_expert; i++) {
        int e = c->plan.expert[i] - c->model->layer[layer].expert0;
        if (asked[e])
            proved[asked[e] - 1].used++;
    }
    memset(asked, 0, (size_t)n * sizeof *asked);
    forget(proved, MOE_CHANCES);
}

void moe_recall_learn(struct moe_context *c, int layer)
{
    const struct moe_recall *r = &c->recall;
    if (!r->learns)
        return;
    struct moe_hit_rate *hit_rate = hit_rate_of(c, layer);
    const int32_t *id_of_row = moe_image(c, c->route.id);
    int n_used = c->model->desc.n_used;
    learn_absent(c, layer);
    for (int row = 0; row < c->n_row; row++) {
        uint16_t *id = ids_of(c, entry_of(r, c->batch->row[row].token), layer);
        const int32_t *now = id_of_row + (size_t)row * (size_t)n_used;
        if (c->now.status[row]) { /* removed: a failed row's entry would have some layers of an earlier token */
            disown(r, c->batch->row[row].token);
            continue;
        }
        for (int k = 0; k < n_used; k++) {
            hit_rate[k].predicted += r->known[row];
            hit_rate[k].used += r->known[row] && is_among(id[k], now, n_used);
        }
        for (int k = 0; k < n_used; k++)
            id[k] = (uint16_t)now[k];
    }
    forget(hit_rate, n_used);
}

void moe_token_history_mark(const struct moe_context *c, int layer, bool *seen)
{
    const struct moe_recall *r = &c->recall;
    const struct moe_desc *d = &c->model->desc;
    memset(seen, 0, (size_t)d->n_expert * sizeof *seen);
    for (int row = 0; r->learns && row < c->n_row; row++)
        for (int k = 0; r->known[row] && k < d->n_used; k++)
            seen[ids_of(c, entry_of(r, c->batch->row[row].token), layer)[k]] = true;
}

/* ---- predicted experts --------------------------------------------------------------------------------- */

void moe_recall_end(struct moe_context *c, int layer)
{
    if (c->recall.n_entry && c->recall.ticket[layer].n)
        off_release(c->model->store, &c->recall.ticket[layer]);
}

/* Lists the experts of a layer that at least one of the tokens uses with a probability of EVEN or more.  Returns their
 * number. */
static int list_likely(struct moe_context *c, int layer, const int32_t *token, int n_token, int32_t *expert)
{
    const struct moe_recall *r = &c->recall;
    const struct moe_desc *d = &c->model->desc;
    const struct moe_hit_rate *hit_rate = hit_rate_of(c, layer);
    int n = 0;
    for (int e = 0; e < d->n_expert; e++)
        r->unused[e] = 1;
    for (int i = 0; i < n_token; i++) {
        int entry = entry_of(r, token[i]);
        for (int k = 0; k < d->n_used && r->token[entry] == token[i]; k++)
            r->unused[ids_of(c, entry, layer)[k]] *= 1 - hit_rate[k].used / hit_rate[k].predicted;
    }
    for (int e = 0; e < d->n_expert; e++)
        if (r->unused[e] <= 1 - EVEN && !moe_is_resident(c, c->model->layer[layer].expert0 + e))
            expert[n++] = c->model->layer[layer].expert0 + e;
    return n;
}

/* Reduces the list of likely experts to those in memory, which the request protects from eviction, and those not in
 * memory of a class that is used often enough.  Returns their number.  Sets `asked` of all those not in memory. */
static int list_worth(struct moe_context *c, int layer, int32_t *expert, int n)
{
    struct moe_recall *r = &c->recall;
    const struct moe_hit_rate *proved = r->proved + (size_t)layer * MOE_CHANCES;
    uint8_t *asked = r->asked + (size_t)layer * (size_t)c->model->desc.n_expert;
    int n_absent = off_store_absent(c->model->store, expert, n, r->absent), n_worth = 0;
    for (int i = 0, next = 0; i < n; i++) {
        int e = expert[i] - c->model->layer[layer].expert0;
        bool absent = next < n_absent && r->absent[next] == expert[i];
        int likely = kn_min(MOE_CHANCES - 1, (int)((1 - r->unused[e] - EVEN) / (1 - EVEN) * MOE_CHANCES));
        next += absent;
        if (absent)
            asked[e] = (uint8_t)(1 + likely);
        if (!absent || proved[likely].used >= MOSTLY * proved[likely].predicted)
            expert[n_worth++] = expert[i];
    }
    return n_worth;
}

void moe_context_expect(struct moe_context *c, const int32_t *token, int n)
{
    const struct moe_desc *d = &c->model->desc;
    struct moe_recall *r = &c->recall;
    if (!r->n_entry)
        return;
    for (int layer = 0; layer < d->n_layer; layer++)
        moe_recall_end(c, layer);
    if (off_store_is_whole(c->model->store) || n >= moe_guess_rows(d, INT32_MAX))
        return; /* all experts are in memory, or nearly all will be used */
    for (int layer = moe_next_sparse(d, -1); layer < d->n_layer; layer = moe_next_sparse(d, layer)) {
        size_t at = (size_t)layer * (size_t)d->n_expert;
        int n_worth = list_worth(c, layer, r->expert + at, list_likely(c, layer, token, n, r->expert + at));
        if (n_worth)
            off_fetch(c->model->store, r->expert + at, r->mark + at, n_worth, OFF_EARLY, &r->ticket[layer]);
    }
}

int moe_context_missing(struct moe_context *c, int32_t token, int32_t *expert)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_recall *r = &c->recall;
    int n = 0, entry = r->n_entry ? entry_of(r, token) : 0;
    if (!r->n_entry || r->token[entry] != token)
        return -1;
    for (int layer = moe_next_sparse(d, -1); layer < d->n_layer; layer = moe_next_sparse(d, layer))
        for (int k = 0; k < d->n_used; k++)
            if (!moe_is_resident(c, c->model->layer[layer].expert0 + ids_of(c, entry, layer)[k]))
                expert[n++] = c->model->layer[layer].expert0 + ids_of(c, entry, layer)[k];
    return off_store_absent(c->model->store, expert, n, expert);
}
