/* engine/draft/text_rows.c - which tokens of a sequence a drafter's network has computed, and rows for the others.
 *
 * The network's keys and values lie at the slots of the sequence's path. So a kept block (eng_path.n_kept) that
 * sequences share is computed once, with the first of them that is drafted for, and then has the drafter's bit set
 * (eng_block.drafted). Behind the kept blocks, n_computed of the sequence's seat is the number of computed tokens.
 *
 * A head needs the target's feature of each token that it computes. Features of prompts are stored only while a head uses
 * them (features.c). Of a sequence with a gap in its features the head knows the tokens behind the last gap alone: its
 * rows begin there, and their attention too. The gap lies in the same place for all sequences that share the block. */
#include "engine/draft/internal.h"

int *eng_draft_computed(const struct eng_drafter *d, struct eng_seq *s) { return &s->draft->n_computed[d->number]; }

static uint8_t *mark_of(const struct eng_drafter *d, const struct eng_seq *s, int position)
{
    return &d->drafting->host.kv->block[s->path.slot[position] / ENG_KV_BLOCK].drafted;
}

void eng_draft_mark_computed(struct eng_drafter *d, struct eng_seq *s, int from, int n)
{
    for (int at = from / ENG_KV_BLOCK * ENG_KV_BLOCK; at + ENG_KV_BLOCK <= n; at += ENG_KV_BLOCK)
        *mark_of(d, s, at) |= (uint8_t)(1 << d->number);
}

int eng_draft_first_position(const struct eng_drafter *d, const struct eng_seq *s)
{
    return d->reads_last_layer ? s->draft->first_feature : 0;
}

/* The token of the first row: a head's row takes the feature of the token before. */
static int first_token(const struct eng_drafter *d, const struct eng_seq *s)
{
    int first = eng_draft_first_position(d, s);
    return first ? first + d->position_offset : 0;
}

/* The first token without KV in the drafter. Shared blocks may have been computed with other sequences; and a block of
 * the path may have been replaced by a kept block with the same tokens that this drafter has not computed. */
int eng_draft_first_uncomputed(const struct eng_drafter *d, struct eng_seq *s, int n_text)
{
    int at = first_token(d, s), n = *eng_draft_computed(d, s), bit = 1 << d->number;
    while (at < s->path.n_kept && *mark_of(d, s, at) & bit)
        at += ENG_KV_BLOCK - at % ENG_KV_BLOCK;
    return at < s->path.n_kept || n < at || n > n_text ? at : n;
}

/* The number of tokens that are laid next: a kept block to its end, or behind the kept blocks as many as are left, at most
 * `room`. 0: a kept block does not fit in `room`. */
static int span(const struct eng_seq *s, int at, int n_text, int room)
{
    int n = at < s->path.n_kept ? ENG_KV_BLOCK - at % ENG_KV_BLOCK : kn_min(n_text - at, room);
    return n > room ? 0 : n;
}

int eng_draft_lay_text(struct eng_drafter *d, struct eng_seq *s, int at, int n_text, int back, int room,
                       struct moe_row *row, int *n_row)
{
    int from = at, first = eng_draft_first_position(d, s);
    while (at < n_text && room > 0) {
        int n = span(s, at, n_text, room);
        if (n == 0)
            break;
        room -= n;
        for (; n > 0; n--, at++)
            if (at >= back)
                row[(*n_row)++] = (struct moe_row){ .token = s->token[at],
                                                    .position = at - back,
                                                    .want_logits = at == n_text - 1,
                                                    .base = s->path.slot + back,
                                                    .n_base = s->path.n_slot - back,
                                                    .first = first,
                                                    .feature_at = back ? s->path.slot[at - back] : 0 };
    }
    eng_draft_mark_computed(d, s, from, kn_min(at, s->n_token));
    d->n_text += kn_max(0, kn_min(at, s->n_token) - from); /* tokens behind n_token are the drafter's own */
    return at;
}
