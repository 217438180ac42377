/* One step: who advances, what is drafted, rows laid out, one forward pass, choices, commit.
 *
 * A session whose next token is due has a root row, its last token, and a row for each node of its draft, so
 * plain decoding is the verification of an empty draft.  A node's key and value lie at a slot of its own
 * behind the root's; those of the path that is kept are moved to where their positions belong. */
#include "engine/internal.h"

#include <string.h>

/* ---- lay out ------------------------------------------------------------------------------------- */

static struct eng_event event_of(struct eng_session *s, int32_t token)
{
    return (struct eng_event){ .session = s, .owner = s->owner, .choice = s->choice, .n_cached = s->n_cached,
                               .token = token };
}

static struct eng_event end(struct eng_session *s, enum eng_finish finish, int status)
{
    struct eng_event event = event_of(s, ENG_NO_TOKEN);
    event.finish = finish;
    event.status = status;
    eng_session_end(s, finish);
    return event;
}

/* What has no token to add ends without one. */
static int end_the_full(struct eng_engine *e, struct eng_event *event)
{
    int n_event = 0;
    for (int i = 0; i < e->opt.n_session; i++) {
        struct eng_session *s = &e->session[i];
        if (eng_session_runs(s) && s->n_token >= s->n_most && !eng_session_tells(s))
            event[n_event++] = end(s, ENG_LENGTH, 0);
    }
    return n_event;
}

/* Its token is due: the pass computes all of its text. */
static bool reaches_end(const struct eng_session *s) { return s->n_row && s->n_kv + s->n_row == s->n_token; }

/* Those whose tokens are due; returns how many rows are beside theirs. */
static int list_due(struct eng_engine *e)
{
    int n_row = 0;
    e->n_due = 0;
    for (int i = 0; i < e->n_active; i++) {
        struct eng_session *s = e->active[i];
        n_row += s->n_row;
        if (reaches_end(s))
            e->due[e->n_due++] = s;
    }
    return n_row - e->n_due;
}

/* Slots of the branch that ends in each node, the root's child first. */
static void lay_draft(struct eng_engine *e, struct eng_session *s, int *n_row)
{
    const struct spec_tree *t = &s->seat->tree;
    const int32_t *slot = s->path.slot + s->n_token;
    int32_t *tail = s->seat->tail;
    int first[ENG_DRAFT_NODES], used = 0, root = *n_row - 1;
    for (int i = 0; i < t->n; i++) {
        int depth = t->depth[i], parent = t->parent[i];
        first[i] = used;
        if (parent != SPEC_ROOT)
            memcpy(tail + used, tail + first[parent], (size_t)(depth - 1) * sizeof *tail);
        tail[used + depth - 1] = slot[i];
        used += depth;
        e->row[(*n_row)++] = (struct moe_row){
            .token = t->token[i], .position = s->n_token - 1 + depth, .want_logits = true,
            .base = s->path.slot, .n_base = s->n_token, .tail = tail + first[i], .state = s->seat->number,
            .draft = true, .after = root + (parent == SPEC_ROOT ? 0 : 1 + parent) };
    }
}

/* Rows for the session's next tokens; logits are wanted when they reach the end. */
static void lay_rows(struct eng_engine *e, struct eng_session *s, int *n_row, int *n_want)
{
    bool due = reaches_end(s);
    s->first_row = *n_row;
    for (int i = 0; i < s->n_row; i++) {
        int p = s->n_kv + i;
        bool tells = s->tells_prompt && p + 1 >= s->n_prompt_told && p + 1 < s->n_prompt;
        e->row[(*n_row)++] = (struct moe_row){
            .token = s->token[p], .position = p, .want_logits = tells || (due && i == s->n_row - 1),
            .base = s->path.slot, .n_base = s->path.n_slot, .state = s->seat->number,
            .copy_to = s->n_mark ? eng_state_copy_to(s, p + 1) : 0 };
        if (tells)
            e->teller[e->n_teller++] = (struct eng_teller){ .session = s, .at = p + 1, .want = (*n_want)++ };
    }
    int n_prompt = s->n_row - due;
    e->prompt_weight += n_prompt * (1 + e->position_cost * (s->n_kv + 0.5 * n_prompt));
    s->want = due ? *n_want : -1;
    if (due) {
        lay_draft(e, s, n_row);
        *n_want += 1 + s->seat->tree.n;
    }
}

/* ---- choose ---------------------------------------------------------------------------------------- */

/* What may follow the node that the walk has reached. */
static const uint32_t *mask_of(struct eng_engine *e, struct eng_session *s, const struct eng_chooser *c, int node)
{
    struct eng_seat *seat = s->seat;
    if (!s->grammar)
        return NULL;
    if (node == SPEC_ROOT)
        gr_copy(seat->grammar, s->grammar_state);
    else
        gr_advance_token(s->grammar, seat->grammar, e->tokens, seat->tree.token[node]);
    gr_mask(s->grammar, seat->grammar, e->tokens, c->scratch, c->mask);
    return c->mask;
}

/* Nothing follows a node whose row failed, or whose token ends the text. */
static bool ends_here(const struct eng_engine *e, const struct eng_session *s, int node)
{
    return node != SPEC_ROOT && (e->result.status[s->first_row + s->n_row + node] ||
                                 eng_vocab_is_stop(e->vocab, s->seat->tree.token[node]));
}

static int verify(struct eng_engine *e, struct eng_session *s, const struct eng_chooser *c)
{
    struct spec_verify *v = &s->seat->verify;
    size_t n_vocab = (size_t)moe_model_shape(e->model)->n_vocab;
    int status = 0;
    *v = (struct spec_verify){ .tree = &s->seat->tree, .rule = e->opt.verify, .params = &s->sampling,
                               .history = s->token, .n_history = s->n_token, .position = s->n_token };
    for (spec_verify_start(v); v->node != SPEC_END && !status;) {
        int node = v->node, row = s->want + 1 + node;   /* the root's is -1 */
        if (ends_here(e, s, node)) {
            spec_verify_stop(v);
            continue;
        }
        const float *logits = e->result.logits + (size_t)row * n_vocab;
        status = spec_verify_row(v, c->sampler, logits, mask_of(e, s, c, node));
        if (s->n_top && !status)
            spec_top(c->sampler, logits, s->n_top, &e->top[row * ENG_TOP]);
    }
    return v->n_out ? 0 : status;               /* what was kept before an error is kept */
}

static void choose_item(void *arg, int item, int thread)
{
    struct eng_engine *e = arg;
    struct eng_session *s = e->due[item];
    int status = moe_rows_status(&e->result, s->first_row, s->n_row);
    e->choice_status[item] = status ? status : verify(e, s, &e->chooser[thread]);
}

static void tell_item(void *arg, int item, int thread)
{
    struct eng_engine *e = arg;
    struct eng_teller *t = &e->teller[item];
    const float *logits = e->result.logits + (size_t)t->want * (size_t)moe_model_shape(e->model)->n_vocab;
    t->known = spec_known(e->chooser[thread].sampler, logits, t->session->token[t->at], t->session->n_prompt_top,
                          &e->top[t->want * ENG_TOP]);
}

/* ---- commit ---------------------------------------------------------------------------------------- */

/* The path's keys and values go where their positions belong, and its rows become part of the state.  A node's
 * slot never lies before its place, so in order nothing is overwritten that is still needed. */
static void keep_path(struct eng_engine *e, struct eng_session *s, int n_kept)
{
    const struct spec_verify *v = &s->seat->verify;
    const int32_t *slot = s->path.slot + s->n_kv;
    int32_t row[ENG_DRAFT_NODES];
    for (int i = 0; i < n_kept; i++) {
        row[i] = s->first_row + s->n_row + v->path[i];
        if (v->path[i] != i)
            moe_context_copy_slots(e->context, slot[v->path[i]], slot[i], 1);
    }
    moe_context_keep(e->context, s->seat->number, row, n_kept);
}

static struct eng_event commit_token(struct eng_engine *e, struct eng_session *s, int i)
{
    const struct spec_verify *v = &s->seat->verify;
    const struct spec_choice *c = &v->out[i];
    int row = s->want + 1 + (i ? v->path[i - 1] : SPEC_ROOT);
    struct eng_event event = event_of(s, c->token);
    event.logprob = c->logprob;
    event.top = &e->top[row * ENG_TOP];
    event.n_top = s->n_top;
    s->token[s->n_token++] = c->token;
    if (s->grammar)
        gr_advance_token(s->grammar, s->grammar_state, e->tokens, c->token);
    if (eng_vocab_is_stop(e->vocab, c->token))
        event.finish = ENG_STOP;
    else if (s->n_token >= s->n_most)
        event.finish = ENG_LENGTH;
    e->stats.n_token++;
    return event;
}

/* Tokens of a walk, until one ends the text.  A node counts as kept when its key and value hold; the last token's, if the
 * text goes on, come again: where no choice could be made of its row, one is still due. */
static int commit(struct eng_engine *e, struct eng_session *s, struct eng_event *event)
{
    const struct spec_verify *v = &s->seat->verify;
    int n_new = 0, n_kept = 0;
    enum eng_finish finish = ENG_RUNNING;
    while (n_new < v->n_out && finish == ENG_RUNNING) {
        event[n_new] = commit_token(e, s, n_new);
        finish = event[n_new++].finish;
    }
    int most = kn_min(n_new - (finish == ENG_RUNNING), v->n_path);
    while (n_kept < most && !e->result.status[s->first_row + s->n_row + v->path[n_kept]])
        n_kept++;
    keep_path(e, s, n_kept);
    s->n_kv += n_kept;
    e->stats.n_draft += (uint64_t)s->seat->tree.n;
    e->stats.n_draft_kept += (uint64_t)kn_min(n_new, v->n_path);
    e->drafts.n_draft += s->seat->tree.n > 0;
    for (int i = 0; i < kn_min(n_new, v->n_path); i++)
        e->drafts.n_kept[i]++;
    if (finish == ENG_RUNNING)
        eng_draft_commit(s, n_new, kn_min(n_new, v->n_path));
    return n_new;
}

static void count_rows(struct eng_engine *e, struct eng_session *s)
{
    e->stats.n_prompt_token += (uint64_t)kn_max(0, kn_min(s->n_prompt - s->n_kv, s->n_row));
    eng_schedule_served(s, s->n_row);
    s->n_kv += s->n_row;
}

/* What n_kv says is written for good, and may serve others. */
static void keep_computed(struct eng_engine *e, struct eng_session *s)
{
    s->n_reached = kn_max(s->n_reached, s->n_kv);
    eng_kv_keep(&e->kv, &s->path, s->token, s->n_kv);
    eng_state_saved(s);
}

/* One that is due: tokens, or the reason why there are none. */
static int settle_due(struct eng_engine *e, struct eng_session *s, int status, struct eng_event *event)
{
    if (status) {
        *event = end(s, ENG_FAILED, status);
        return 1;
    }
    count_rows(e, s);
    int n = commit(e, s, event);
    enum eng_finish finish = event[n - 1].finish;
    keep_computed(e, s);
    if (finish != ENG_RUNNING)
        eng_session_end(s, finish);
    else
        eng_kv_trim(&e->kv, &s->path, s->n_token + s->seat->chain.n);
    return n;
}

static int tell_prompts(struct eng_engine *e, struct eng_event *event)
{
    int n = 0;
    for (int i = 0; i < e->n_teller; i++) {
        const struct eng_teller *t = &e->teller[i];
        struct eng_session *s = t->session;
        if (moe_rows_status(&e->result, s->first_row, s->n_row))
            continue;                           /* it ends with this pass */
        event[n] = event_of(s, s->token[t->at]);
        event[n].of_prompt = true;
        event[n].rank = t->known.rank;
        event[n].logprob = t->known.logprob;
        event[n].top = &e->top[t->want * ENG_TOP];
        event[n++].n_top = s->n_prompt_top;
        s->n_prompt_told = t->at + 1;
    }
    return n;
}

/* The others read on in their prompts. */
static int settle_prompts(struct eng_engine *e, struct eng_event *event)
{
    int n_event = 0;
    for (int i = 0; i < e->n_active;) {
        struct eng_session *s = e->active[i];
        int status = s->want < 0 ? moe_rows_status(&e->result, s->first_row, s->n_row) : 0;
        if (status) {
            event[n_event++] = end(s, ENG_FAILED, status);
            continue;                           /* it has left the list */
        }
        if (s->want < 0 && s->n_row) {
            count_rows(e, s);
            keep_computed(e, s);
        }
        i++;
    }
    return n_event;
}

int eng_event_room(const struct eng_engine *e)
{
    return e->opt.n_session + e->opt.n_parallel + e->n_draft_row + e->opt.n_tell;
}

int eng_step(struct eng_engine *e, struct eng_event *event)
{
    int n_row = 0, n_want = 0, n_event = end_the_full(e, event);
    eng_schedule(e);
    int n_beside = list_due(e);
    eng_draft(e, n_beside);
    e->n_teller = 0;
    e->prompt_weight = 0;
    for (int i = 0; i < e->n_active; i++)
        lay_rows(e, e->active[i], &n_row, &n_want);
    if (n_row == 0)
        return n_event;
    eng_draft_look(e, &e->store_then);
    uint64_t t0 = kn_now_ns();
    eng_overlap_start(e);
    int error = moe_forward(e->context, &(struct moe_batch){ e->row, n_row }, &e->result);
    eng_overlap_wait(e);
    if (error)
        return error;
    uint64_t t1 = kn_now_ns();
    kn_parallel_for(e->team, e->n_teller, tell_item, e);
    kn_parallel_for(e->team, e->n_due, choose_item, e);
    n_event += tell_prompts(e, event + n_event);
    n_event += settle_prompts(e, event + n_event);
    for (int i = 0; i < e->n_due; i++) {
        if (e->outcome)
            e->outcome[i] = (struct spec_outcome){ e->due[i]->seat->number, &e->due[i]->seat->tree,
                e->choice_status[i] ? 0 : e->due[i]->seat->verify.n_path };
        n_event += settle_due(e, e->due[i], e->choice_status[i], event + n_event);
    }
    uint64_t t2 = kn_now_ns();
    eng_pace_learn(&e->pace, e->n_answered, (int)(e->prompt_weight + 0.5), (double)(t2 - t0));
    eng_draft_learn(e, n_row, n_beside, t2 - t0);
    e->stats.n_pass++;
    e->stats.n_row += (uint64_t)n_row;
    e->stats.experts += e->result.experts_per_layer;
    e->stats.pass_ns += t1 - t0;
    e->stats.sample_ns += t2 - t1;
    return n_event;
}

void eng_stats_get(const struct eng_engine *e, struct eng_stats *out)
{
    *out = e->stats;
    out->n_kv_block = e->kv.n_block;
    out->n_kv_used = e->kv.n_block - e->kv.n_free;
    out->n_running = e->n_active;
    out->n_waiting = 0;
    for (int i = 0; i < e->opt.n_session; i++)
        out->n_waiting += eng_session_waits(&e->session[i]);
}
