/* What a drafter with a network of its own has taken in of a session's text.
 *
 * Its keys and values lie at the slots of the session's path, so blocks that sessions share are taken in once,
 * by whoever comes first, and a bit of the block says so.  The rest of a text is known up to a number in the
 * session's seat. */
#include "engine/internal.h"

int *eng_draft_known(const struct eng_drafter *d, struct eng_session *s)
{
    return &s->seat->n_known[d->number];
}

static uint8_t *mark_of(const struct eng_drafter *d, const struct eng_session *s, int position)
{
    return &d->engine->kv.block[s->path.slot[position] / ENG_KV_BLOCK].drafted;
}

void eng_draft_mark(struct eng_drafter *d, struct eng_session *s, int from, int n)
{
    for (int at = from / ENG_KV_BLOCK * ENG_KV_BLOCK; at + ENG_KV_BLOCK <= n; at += ENG_KV_BLOCK)
        *mark_of(d, s, at) |= (uint8_t)(1 << d->number);
}

/* Others may have gone further in blocks that are shared; and a block may have been given up for another that
 * holds the same, but not this drafter's part of it. */
int eng_draft_first_unknown(const struct eng_drafter *d, struct eng_session *s, int n_text)
{
    int at = 0, n = *eng_draft_known(d, s), bit = 1 << d->number;
    while (at < s->path.n_kept && *mark_of(d, s, at) & bit)
        at += ENG_KV_BLOCK;
    return at < s->path.n_kept || n < at || n > n_text ? at : n;
}

int eng_draft_span(const struct eng_session *s, int at, int n_text, int room)
{
    int n = at < s->path.n_kept ? ENG_KV_BLOCK : kn_min(n_text - at, room);
    return n > room ? 0 : n;
}
