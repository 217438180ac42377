/* engine/step.c - one step: plan the pass, draft, lay out rows, run one forward pass, sample, commit.
 *
 * A session with a token due has a row for its last token, the root, and a row for each node of its draft; so plain
 * decoding is the verification of an empty draft. Each node writes its KV to a slot of its own: node i (from 0) to slot
 * i + 1 behind the root's. After verification the KV of accepted nodes is moved to the slots of their positions. */
#include "engine/internal.h"

#include <string.h>

/* ---- lay out ------------------------------------------------------------------------------------- */

static struct eng_event event_of(struct eng_session *s, int32_t token)
{
    return (struct eng_event){
        .session = s, .owner = s->owner, .choice = s->choice, .n_cached = s->n_cached, .token = token
    };
}

static struct eng_event end(struct eng_session *s, enum eng_finish finish, int status)
{
    struct eng_event event = event_of(s, ENG_NO_TOKEN);
    event.finish = finish;
    event.status = status;
    eng_session_end(s, finish);
    return event;
}

/* Ends the sessions that have n_max tokens, with ENG_LENGTH and no token, but not those that still have prompt logprobs
 * to report. Returns the number of events, as the other functions with `event` do. */
static int end_sessions_at_limit(struct eng_engine *e, struct eng_event *event)
{
    int n_event = 0;
    for (int i = 0; i < e->assets.opt.n_session; i++) {
        struct eng_session *s = &e->schedule.session[i];
        if (eng_session_is_running(s) && s->seq.n_token >= s->seq.n_max && !eng_session_owes_prompt_logprobs(s))
            event[n_event++] = end(s, ENG_LENGTH, 0);
    }
    return n_event;
}

/* Drafts for the sequences with a seat, and lists the sessions with a token due. */
static void draft(struct eng_engine *e)
{
    e->pass.n_due = 0;
    eng_draft_begin(e->drafting);
    for (int i = 0; i < e->schedule.n_active; i++) {
        struct eng_session *s = e->schedule.active[i];
        eng_draft_add(e->drafting, &s->seq);
        if (eng_seq_is_due(&s->seq))
            e->pass.due[e->pass.n_due++] = s;
    }
    eng_draft_make(e->drafting);
}

/* Lays a row for each node of the session's draft. The row's tail lists the KV slots of the branch that ends in the
 * node, the root's child first. */
static void lay_draft(struct eng_engine *e, struct eng_session *s, int *n_row)
{
    const struct spec_tree *t = s->seq.tree;
    const int32_t *slot = s->seq.path.slot + s->seq.n_token;
    int32_t *tail = s->seat->tail;
    int first[ENG_DRAFT_NODES], used = 0, root = *n_row - 1;
    e->pass.n_drafted += t->n;
    for (int i = 0; i < t->n; i++) {
        int depth = t->depth[i], parent = t->parent[i];
        first[i] = used;
        if (parent != SPEC_ROOT)
            memcpy(tail + used, tail + first[parent], (size_t)(depth - 1) * sizeof *tail);
        tail[used + depth - 1] = slot[i];
        used += depth;
        e->pass.row[(*n_row)++] = (struct moe_row){ .token = t->token[i],
                                                    .position = s->seq.n_token - 1 + depth,
                                                    .want_logits = true,
                                                    .base = s->seq.path.slot,
                                                    .n_base = s->seq.n_token,
                                                    .tail = tail + first[i],
                                                    .state = s->seat->number,
                                                    .draft = true,
                                                    .after = root + (parent == SPEC_ROOT ? 0 : 1 + parent) };
    }
}

/* Lays the session's seq.n_row rows, and those of its draft if a token is due. Adds them to *n_row and *n_want, the
 * rows and the rows of logits of the batch. Logits are needed of the last row if a token is due, and of the rows before
 * prompt tokens with a logprob to report. */
static void lay_rows(struct eng_engine *e, struct eng_session *s, int *n_row, int *n_want)
{
    bool due = eng_seq_is_due(&s->seq);
    s->first_row = *n_row;
    for (int i = 0; i < s->seq.n_row; i++) {
        int p = s->seq.n_kv + i;
        bool wants_logprob = s->wants_prompt_logprobs && p + 1 >= s->n_prompt_logprob && p + 1 < s->seq.n_prompt;
        e->pass.row[(*n_row)++] = (struct moe_row){ .token = s->seq.token[p],
                                                    .position = p,
                                                    .want_logits = wants_logprob || (due && i == s->seq.n_row - 1),
                                                    .base = s->seq.path.slot,
                                                    .n_base = s->seq.path.n_slot,
                                                    .state = s->seat->number,
                                                    .copy_to = s->n_keep_at ? eng_reuse_state_target(s, p + 1) : 0 };
        if (wants_logprob)
            e->pass.prompt_logprob[e->pass.n_prompt_logprob++] = (struct eng_prompt_logprob){ .session = s,
                                                                                              .at = p + 1,
                                                                                              .want = (*n_want)++ };
    }
    int n_prompt = s->seq.n_row - due;
    e->pass.prompt_weight += n_prompt * (1 + e->assets.position_cost * (s->seq.n_kv + 0.5 * n_prompt));
    s->want = due ? *n_want : -1;
    if (due) {
        lay_draft(e, s, n_row);
        *n_want += 1 + s->seq.tree->n;
    }
}

/* ---- choose ---------------------------------------------------------------------------------------- */

/* Advances the seat's grammar state to this node, the next one that verification visits. Returns the mask of the tokens
 * that may follow the node, in c->mask; NULL: the session has no grammar. */
static const uint32_t *mask_of(struct eng_engine *e, struct eng_session *s, const struct eng_chooser *c, int node)
{
    struct eng_seat *seat = s->seat;
    if (!s->grammar)
        return NULL;
    if (node == SPEC_ROOT)
        gr_copy(seat->grammar, s->grammar_state);
    else
        gr_advance_token(s->grammar, seat->grammar, e->assets.tokens, s->seq.tree->token[node]);
    gr_mask(s->grammar, seat->grammar, e->assets.tokens, c->scratch, c->mask);
    return c->mask;
}

/* Whether verification stops at the node: its row failed, or its token ends the sequence. */
static bool ends_here(const struct eng_engine *e, const struct eng_session *s, int node)
{
    return node != SPEC_ROOT && (e->pass.result.status[s->first_row + s->seq.n_row + node] ||
                                 eng_vocab_is_stop(e->assets.vocab, s->seq.tree->token[node]));
}

static int verify(struct eng_engine *e, struct eng_session *s, int thread)
{
    struct spec_verify *v = &s->seat->verify;
    size_t n_vocab = (size_t)moe_model_shape(e->assets.model)->n_vocab;
    int status = 0;
    *v = (struct spec_verify){ .tree = s->seq.tree,
                               .rule = e->assets.opt.verify,
                               .params = &s->sampling,
                               .history = s->seq.token,
                               .n_history = s->seq.n_token,
                               .position = s->seq.n_token };
    for (spec_verify_start(v); v->node != SPEC_END && !status;) {
        int node = v->node, row = s->want + 1 + node; /* rows: the root's, then the nodes'; SPEC_ROOT is -1 */
        if (ends_here(e, s, node)) {
            spec_verify_stop(v);
            continue;
        }
        const float *logits = e->pass.result.logits + (size_t)row * n_vocab;
        status = spec_verify_row(v, e->assets.sampler[thread], logits, mask_of(e, s, &e->pass.chooser[thread], node));
        if (s->n_top && !status)
            spec_top(e->assets.sampler[thread], logits, s->n_top, &e->pass.top[row * ENG_TOP]);
    }
    return v->n_out ? 0 : status; /* tokens chosen before an error stay; the error only ends the walk */
}

/* Sets seq.target_token: the target's tokens after the nodes whose drafters want them. They forecast the text, so the
 * grammar and the draft's own tokens in the history are left out; but each is sampled with the noise of its position, as
 * the text will be: it is more often the text's token than the likeliest one is. */
static void answer_drafters(struct eng_engine *e, struct eng_session *s, int thread)
{
    const struct spec_tree *t = s->seq.tree;
    size_t n_vocab = (size_t)moe_model_shape(e->assets.model)->n_vocab;
    for (int i = 0; i < t->n; i++) {
        struct spec_sampled c;
        if (!t->wants_target_token[i])
            continue;
        const float *logits = e->pass.result.logits + (size_t)(s->want + 1 + i) * n_vocab;
        bool failed = e->pass.result.status[s->first_row + s->seq.n_row + i] ||
                      spec_sample(e->assets.sampler[thread], &s->sampling, logits, s->seq.token, s->seq.n_token,
                                  s->seq.n_token + t->depth[i], &c);
        s->seq.target_token[i] = failed ? -1 : c.token;
    }
}

static void choose_item(void *arg, int item, int thread)
{
    struct eng_engine *e = arg;
    struct eng_session *s = e->pass.due[item];
    int status = moe_rows_status(&e->pass.result, s->first_row, s->seq.n_row);
    e->pass.choice_status[item] = status ? status : verify(e, s, thread);
    answer_drafters(e, s, thread);
}

static void compute_prompt_logprob(void *arg, int item, int thread)
{
    struct eng_engine *e = arg;
    struct eng_prompt_logprob *t = &e->pass.prompt_logprob[item];
    const float *logits = e->pass.result.logits + (size_t)t->want * (size_t)moe_model_shape(e->assets.model)->n_vocab;
    t->known = spec_given_token(e->assets.sampler[thread], logits, t->session->seq.token[t->at],
                                t->session->n_prompt_top, &e->pass.top[t->want * ENG_TOP]);
}

/* ---- commit ---------------------------------------------------------------------------------------- */

/* Moves the KV of the first n_accepted nodes of the verified path to the slots of their positions, and applies their
 * rows to the recurrent state. Node i on the path moves to its own slot or an earlier one, so by ascending i no slot is
 * overwritten before it is read. */
static void keep_path(struct eng_engine *e, struct eng_session *s, int n_accepted)
{
    const struct spec_verify *v = &s->seat->verify;
    const int32_t *slot = s->seq.path.slot + s->seq.n_kv;
    int32_t row[ENG_DRAFT_NODES];
    for (int i = 0; i < n_accepted; i++) {
        row[i] = s->first_row + s->seq.n_row + v->path[i];
        if (v->path[i] != i)
            moe_context_copy_slots(e->assets.context, slot[v->path[i]], slot[i], 1);
    }
    moe_context_keep(e->assets.context, s->seat->number, row, n_accepted);
}

static struct eng_event commit_token(struct eng_engine *e, struct eng_session *s, int i)
{
    const struct spec_verify *v = &s->seat->verify;
    const struct spec_sampled *c = &v->out[i];
    int row = s->want + 1 + (i ? v->path[i - 1] : SPEC_ROOT);
    struct eng_event event = event_of(s, c->token);
    event.logprob = c->logprob;
    event.top = &e->pass.top[row * ENG_TOP];
    event.n_top = s->n_top;
    s->seq.token[s->seq.n_token++] = c->token;
    if (s->grammar)
        gr_advance_token(s->grammar, s->grammar_state, e->assets.tokens, c->token);
    if (eng_vocab_is_stop(e->assets.vocab, c->token))
        event.finish = ENG_STOP;
    else if (s->seq.n_token >= s->seq.n_max)
        event.finish = ENG_LENGTH;
    e->stats.n_token++;
    return event;
}

/* Adds the verified tokens until one ends the sequence, and keeps the KV of their nodes up to the first node with a
 * failed row. If the sequence continues, the last new token keeps no KV, even if a node has it: the token is the root
 * row of the next pass, since no token may have been sampled from the node's own row. */
static int commit(struct eng_engine *e, struct eng_session *s, struct eng_event *event)
{
    const struct spec_verify *v = &s->seat->verify;
    int n_new = 0, n_accepted = 0;
    enum eng_finish finish = ENG_RUNNING;
    while (n_new < v->n_out && finish == ENG_RUNNING) {
        event[n_new] = commit_token(e, s, n_new);
        finish = event[n_new++].finish;
    }
    int most = kn_min(n_new - (finish == ENG_RUNNING), v->n_path);
    while (n_accepted < most && !e->pass.result.status[s->first_row + s->seq.n_row + v->path[n_accepted]])
        n_accepted++;
    keep_path(e, s, n_accepted);
    s->seq.n_kv += n_accepted;
    n_accepted = kn_min(n_new, v->n_path);
    int n_drafted = spec_tree_n_drafted(s->seq.tree), n_kept = spec_tree_n_accepted(s->seq.tree, v->path, n_accepted);
    e->stats.n_draft += (uint64_t)n_drafted;
    e->stats.n_draft_kept += (uint64_t)n_kept;
    e->stats.n_window_row += (uint64_t)(s->seq.tree->n - n_drafted);
    e->stats.n_window_row_kept += (uint64_t)(n_accepted - n_kept);
    eng_draft_commit(e->drafting, &s->seq, v, n_new, n_accepted, finish != ENG_RUNNING);
    return n_new;
}

static void count_rows(struct eng_engine *e, struct eng_session *s)
{
    e->stats.n_prompt_token += (uint64_t)kn_max(0, kn_min(s->seq.n_prompt - s->seq.n_kv, s->seq.n_row));
    eng_schedule_served(s, s->seq.n_row);
    s->seq.n_kv += s->seq.n_row;
}

/* Keeps the whole blocks of computed KV, so that other sessions may share them, and the states copied by the pass. */
static void keep_computed(struct eng_engine *e, struct eng_session *s)
{
    s->n_reached = kn_max(s->n_reached, s->seq.n_kv);
    eng_kv_keep(&e->kv, &s->seq.path, s->seq.token, s->seq.n_kv);
    eng_reuse_states_saved(s);
}

/* Ends the step of a session with a token due: one event for each new token, or one with the error. */
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
        eng_kv_trim(&e->kv, &s->seq.path, s->seq.n_token + eng_draft_n_pending(&s->seq));
    return n;
}

static int report_prompt_logprobs(struct eng_engine *e, struct eng_event *event)
{
    int n = 0;
    for (int i = 0; i < e->pass.n_prompt_logprob; i++) {
        const struct eng_prompt_logprob *t = &e->pass.prompt_logprob[i];
        struct eng_session *s = t->session;
        if (moe_rows_status(&e->pass.result, s->first_row, s->seq.n_row))
            continue; /* a row failed: settle_prompts() or settle_due() ends the session */
        event[n] = event_of(s, s->seq.token[t->at]);
        event[n].of_prompt = true;
        event[n].rank = t->known.rank;
        event[n].logprob = t->known.logprob;
        event[n].top = &e->pass.top[t->want * ENG_TOP];
        event[n++].n_top = s->n_prompt_top;
        s->n_prompt_logprob = t->at + 1;
    }
    return n;
}

/* Ends the step of the sessions that are still in prefill. */
static int settle_prompts(struct eng_engine *e, struct eng_event *event)
{
    int n_event = 0;
    for (int i = 0; i < e->schedule.n_active;) {
        struct eng_session *s = e->schedule.active[i];
        int status = s->want < 0 ? moe_rows_status(&e->pass.result, s->first_row, s->seq.n_row) : 0;
        if (status) {
            event[n_event++] = end(s, ENG_FAILED, status);
            continue; /* end() has removed it from the list */
        }
        if (s->want < 0 && s->seq.n_row) {
            count_rows(e, s);
            keep_computed(e, s);
        }
        i++;
    }
    return n_event;
}

int eng_event_room(const struct eng_engine *e)
{
    return e->assets.opt.n_session + e->assets.opt.n_parallel + e->assets.n_draft_row +
           e->assets.opt.n_prompt_logprob_row;
}

int eng_step(struct eng_engine *e, struct eng_event *event)
{
    int n_row = 0, n_want = 0, n_event = end_sessions_at_limit(e, event);
    eng_schedule(e);
    draft(e);
    e->pass.n_prompt_logprob = 0;
    e->pass.prompt_weight = 0;
    e->pass.n_drafted = 0;
    for (int i = 0; i < e->schedule.n_active; i++)
        lay_rows(e, e->schedule.active[i], &n_row, &n_want);
    if (n_row == 0)
        return n_event;
    uint64_t t0 = kn_now_ns();
    eng_draft_pass_starts(e->drafting);
    int error = moe_forward(e->assets.context,
                            &(struct moe_batch){ .row = e->pass.row,
                                                 .n_row = n_row,
                                                 .features_of_wanted = !eng_draft_stores_features(e->drafting) },
                            &e->pass.result);
    eng_draft_pass_ends(e->drafting, &e->pass.result);
    if (error)
        return error;
    uint64_t t1 = kn_now_ns();
    kn_parallel_for(e->assets.team, e->pass.n_prompt_logprob, compute_prompt_logprob, e);
    kn_parallel_for(e->assets.team, e->pass.n_due, choose_item, e);
    n_event += report_prompt_logprobs(e, event + n_event);
    n_event += settle_prompts(e, event + n_event);
    for (int i = 0; i < e->pass.n_due; i++) {
        struct eng_session *s = e->pass.due[i];
        eng_draft_verified(e->drafting, i, s->seat->verify.path, e->pass.choice_status[i] ? 0 : s->seat->verify.n_path);
        n_event += settle_due(e, s, e->pass.choice_status[i], event + n_event);
    }
    uint64_t t2 = kn_now_ns();
    eng_prefill_share_learn(&e->schedule.prefill_share, e->schedule.n_due_planned, e->pass.n_drafted,
                            (int)(e->pass.prompt_weight + 0.5), (double)(t2 - t0));
    eng_draft_learn(e->drafting, &(struct eng_pass_result){ n_row, t2 - t0, e->pass.result.experts_per_layer,
                                                            e->pass.result.may_end_early });
    e->stats.n_pass++;
    e->stats.n_row += (uint64_t)n_row;
    e->stats.experts += e->pass.result.experts_per_layer;
    e->stats.pass_ns += t1 - t0;
    e->stats.sample_ns += t2 - t1;
    return n_event;
}
