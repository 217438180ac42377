/* engine/reuse.c - which cached KV and states a sequence continues from, and which states it keeps for others.
 *
 * Whole blocks of a cached prefix are shared; of the block after them, the beginning that matches is copied. A sequence
 * waits if another one is about to compute the block that it needs next.
 *
 * A model with recurrent layers can continue only where its state was kept. A state is large (75 MiB for a Qwen3-Next),
 * so few are kept. They are kept at the three places of a sequence from which later ones are likely to continue: its
 * end, where a conversation goes on or a preempted session resumes; near the end of its prompt, since a template may
 * leave the model's reasoning out of the history; and the end of a prefix that it shares with a cached or active
 * sequence, as requests with one system prompt do. KV behind the kept state that a sequence continues from is computed
 * again, to the same bits. A pass copies states at positions within its rows while it runs, so they cost prefill no
 * extra pass. */
#include "engine/internal.h"

#include <string.h>

bool eng_has_states(const struct eng_engine *e) { return moe_model_shape(e->assets.model)->state_bytes > 0; }

#define GENERATION_PROMPT_TOKENS 8 /* templates add at most this many tokens to begin the answer */

static int whole(int n) { return n / ENG_KV_BLOCK * ENG_KV_BLOCK; }

/* The context's number of a kept state: the seats' states come first. */
static int in_context(const struct eng_engine *e, int state) { return e->assets.opt.n_parallel + state; }

/* ---- reuse of a prefix -------------------------------------------------------------------------------- */

/* Copies the first n slots of a block to a block of the session's path that begins at `slot`. */
static void copy_slots(struct eng_session *s, int32_t block, int32_t slot, int n)
{
    moe_context_copy_slots(s->engine->assets.context, block * ENG_KV_BLOCK, slot, n);
    eng_kv_note_copy(&s->engine->kv, block, slot, n);
}

/* Copies the slots of the pinned partial block k->tail into a new block of the path, and unpins it. Returns the number
 * of reused positions. If there is no block for the copy, nothing is reused: 0. The tail is unpinned before the whole
 * blocks are released, since in LRU order a block must not become older than the blocks after it. */
static int copy_tail(struct eng_session *s, const struct eng_kept_match *k)
{
    struct eng_engine *e = s->engine;
    bool fits = eng_kv_reserve(&e->kv, &s->seq.path, k->n_whole + k->n_tail) == 0;
    if (fits)
        copy_slots(s, k->tail, s->seq.path.slot[k->n_whole], k->n_tail);
    eng_kv_unpin(&e->kv, k->tail);
    if (!fits)
        eng_kv_leave(&e->kv, &s->seq.path, s->seq.token, k->n_whole);
    return fits ? k->n_whole + k->n_tail : 0;
}

/* For a model with recurrent layers: continues from the longest cached prefix of n tokens that ends with a kept
 * state. */
static void find_state(struct eng_session *s, int n)
{
    struct eng_engine *e = s->engine;
    struct eng_kept_match k;
    eng_states_find(&e->kv, &s->seq.path, s->seq.token, n, &k);
    s->n_prefix_seen = k.n_seen;
    if (k.state < 0)
        return;
    if (k.tail >= 0)
        eng_kv_pin(&e->kv, k.tail);
    s->seq.n_kv = eng_kv_find(&e->kv, &s->seq.path, s->seq.token, k.n_whole);
    kn_assert(s->seq.n_kv == k.n_whole);
    if (k.tail >= 0)
        s->seq.n_kv = copy_tail(s, &k);
    if (s->seq.n_kv)
        moe_context_copy_state(e->assets.context, in_context(e, k.state), s->seat->number);
}

/* For other models: continues from the longest cached prefix of n tokens. */
static void find_text(struct eng_engine *e, struct eng_session *s, int n)
{
    int32_t like;
    s->seq.n_kv = eng_kv_find(&e->kv, &s->seq.path, s->seq.token, n);
    int n_same = eng_kv_pin_like(&e->kv, &s->seq.path, s->seq.token, n, &like);
    if (n_same) {
        if (eng_kv_reserve(&e->kv, &s->seq.path, s->seq.n_kv + n_same) == 0) {
            copy_slots(s, like, s->seq.path.slot[s->seq.n_kv], n_same);
            s->seq.n_kv += n_same;
        }
        eng_kv_unpin(&e->kv, like);
    }
}

/* Extends the session's KV by cached KV that matches its next tokens. Does nothing unless all blocks of the
 * path are kept and hold computed KV. The last token is always computed, since its logits are needed. */
void eng_reuse_find(struct eng_session *s)
{
    struct eng_engine *e = s->engine;
    if (eng_session_owes_prompt_logprobs(s) || s->seq.path.n_slot != s->seq.path.n_kept ||
        s->seq.n_kv != s->seq.path.n_slot)
        return; /* logprobs of prompt tokens need logits, so these tokens are computed */
    if (eng_has_states(e))
        find_state(s, s->seq.n_token - 1);
    else
        find_text(e, s, s->seq.n_token - 1);
    int found = kn_min(s->seq.n_kv, s->seq.n_prompt) - s->n_reached;
    if (found > 0) {
        s->n_cached += found;
        e->stats.n_cache_found += (uint64_t)found;
    }
    s->n_reached = kn_max(s->n_reached, s->seq.n_kv);
}

/* An upper limit of the tokens that cached whole blocks could provide to a session without a seat. */
int eng_reuse_n_sharable(const struct eng_session *s)
{
    struct eng_engine *e = s->engine;
    struct eng_kept_match k;
    if (!eng_has_states(e))
        return s->seq.n_token - 1;
    eng_states_find(&e->kv, &(struct eng_path){ .salt = s->seq.path.salt }, s->seq.token, s->seq.n_token - 1, &k);
    return k.n_whole;
}

/* Marks a position, the end of a whole block, where the current pass should keep the state; ignored if its KV is
 * computed already or ENG_MARKS positions are marked. */
static void add_keep_position(struct eng_session *s, int position)
{
    for (int i = 0; i < s->n_keep_at; i++)
        if (s->keep_at[i] == position)
            return;
    if (position > s->seq.n_kv && s->n_keep_at < ENG_MARKS)
        s->keep_at[s->n_keep_at++] = position;
}

/* True if t has rows in this pass, and s and t share a prefix, in whole blocks, beyond the KV of both. t is then marked
 * to keep its state at the end of the prefix, and s waits and continues from that state. */
static bool waits_for_state(struct eng_session *s, struct eng_session *t)
{
    int n = kn_min(s->seq.n_token - 1, t->seq.n_token), same = 0;
    if (!s->engine->kv.n_state || t->seq.n_row == 0 || t->seq.path.salt != s->seq.path.salt)
        return false;
    while (same < n && s->seq.token[same] == t->seq.token[same])
        same++;
    same = whole(same);
    if (same <= s->seq.n_kv || same <= t->seq.n_kv)
        return false;
    add_keep_position(t, same);
    return true;
}

/* Whether t has rows in this pass and is about to compute the block that s needs next, whole or its beginning. */
static bool computes_for(const struct eng_session *t, const struct eng_session *s)
{
    int end = s->seq.n_kv + ENG_KV_BLOCK, n = kn_min(end, s->seq.n_token - 1);
    return t->seq.n_row > 0 && t->seq.n_kv < end && t->seq.n_token >= end && t->seq.path.salt == s->seq.path.salt &&
           !memcmp(t->seq.token, s->seq.token, (size_t)n * sizeof *s->seq.token);
}

bool eng_reuse_waits(struct eng_session *s, struct eng_session *t)
{
    return eng_has_states(s->engine) ? waits_for_state(s, t) : computes_for(t, s);
}

/* ---- keeping states ------------------------------------------------------------------------------------ */

void eng_reuse_mark_prompt(struct eng_session *s)
{
    add_keep_position(s, s->n_prefix_seen);
    add_keep_position(s, whole(s->seq.n_token - GENERATION_PROMPT_TOKENS));
}

int eng_reuse_state_target(struct eng_session *s, int n_tok)
{
    struct eng_engine *e = s->engine;
    int state = -1;
    for (int i = 0; i < s->n_keep_at && state < 0; i++)
        if (s->keep_at[i] == n_tok)
            state = eng_states_take(&e->kv);
    if (state < 0)
        return 0;
    s->saved[s->n_saved++] = (struct eng_saved){ n_tok, state };
    return in_context(e, state);
}

void eng_reuse_states_saved(struct eng_session *s)
{
    struct eng_kv *kv = &s->engine->kv;
    for (int i = 0; i < s->n_saved; i++)
        if (s->seq.path.n_kept >= s->saved[i].position)
            eng_states_put(kv, s->saved[i].state, s->seq.path.slot[s->saved[i].position - 1] / ENG_KV_BLOCK);
        else
            eng_states_drop(kv, s->saved[i].state); /* the rows up to it failed */
    s->n_saved = 0;
}

void eng_reuse_leave(struct eng_session *s)
{
    struct eng_engine *e = s->engine;
    eng_reuse_states_saved(s);
    bool knows = eng_has_states(e) && s->seq.n_kv &&
                 moe_context_state(e->assets.context, s->seat->number) == s->seq.n_kv;
    eng_kv_keep(&e->kv, &s->seq.path, s->seq.token, s->seq.n_kv); /* before `last`: may replace a block by a kept one */
    int32_t last = knows ? s->seq.path.slot[s->seq.n_kv - 1] / ENG_KV_BLOCK : -1;
    eng_kv_leave(&e->kv, &s->seq.path, s->seq.token, s->seq.n_kv);
    int state = knows && e->kv.block[last].state < 0 ? eng_states_take(&e->kv) : -1;
    if (state < 0)
        return;
    moe_context_copy_state(e->assets.context, s->seat->number, in_context(e, state));
    eng_states_put(&e->kv, state, last);
}
