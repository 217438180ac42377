/* One step: who advances, rows laid out, one forward pass, choices, commit. */
#include "engine/internal.h"

#include <string.h>

/* ---- lay out ------------------------------------------------------------------------------------- */

/* Rows for the session's next tokens; logits are wanted when they reach the end. */
static void lay_rows(struct eng_engine *e, struct eng_session *s, int *n_row, int *n_want)
{
    s->first_row = *n_row;
    s->want = s->n_kv + s->n_row == s->n_token ? (*n_want)++ : -1;
    if (s->want >= 0)
        e->due[s->want] = s;
    for (int i = 0; i < s->n_row; i++) {
        int p = s->n_kv + i;
        e->row[(*n_row)++] = (struct moe_row){
            .token = s->token[p], .position = p, .want_logits = s->want >= 0 && i == s->n_row - 1,
            .base = s->path.slot, .n_base = s->path.n_slot };
    }
}

static struct eng_event end(struct eng_session *s, enum eng_finish finish, int status)
{
    eng_session_end(s, finish);
    return (struct eng_event){ .session = s, .token = ENG_NO_TOKEN, .finish = finish, .status = status };
}

/* What has no token to add ends without one. */
static int end_the_full(struct eng_engine *e, struct eng_event *event)
{
    int n_event = 0;
    for (int i = 0; i < e->opt.n_session; i++) {
        struct eng_session *s = &e->session[i];
        if (eng_session_runs(s) && s->n_token >= s->n_most)
            event[n_event++] = end(s, ENG_LENGTH, 0);
    }
    return n_event;
}

/* ---- choose ---------------------------------------------------------------------------------------- */

static void choose_item(void *arg, int item, int thread)
{
    struct eng_engine *e = arg;
    struct eng_session *s = e->due[item];
    const struct eng_chooser *c = &e->chooser[thread];
    const float *logits = e->logits + (size_t)item * (size_t)moe_model_shape(e->model)->n_vocab;
    struct spec_params sampling = s->sampling;
    if (s->grammar) {
        gr_mask(s->grammar, s->grammar_state, e->tokens, c->scratch, c->mask);
        sampling.mask = c->mask;
    }
    e->choice_status[item] = spec_sample(c->sampler, &sampling, logits, s->token, s->n_token, s->n_token,
                                         &e->choice[item]);
    if (s->n_top && !e->choice_status[item])
        spec_top(c->sampler, logits, s->n_top, &e->top[item * ENG_TOP]);
}

/* ---- commit ---------------------------------------------------------------------------------------- */

static struct eng_event commit(struct eng_engine *e, struct eng_session *s)
{
    const struct spec_choice *c = &e->choice[s->want];
    struct eng_event event = { .session = s, .token = c->token, .logprob = c->logprob,
                               .top = &e->top[s->want * ENG_TOP], .n_top = s->n_top };
    s->token[s->n_token++] = c->token;
    if (s->grammar)
        gr_advance_token(s->grammar, s->grammar_state, e->tokens, c->token);
    if (eng_vocab_is_stop(e->vocab, c->token))
        event.finish = ENG_STOP;
    else if (s->n_token >= s->n_most)
        event.finish = ENG_LENGTH;
    if (event.finish != ENG_RUNNING)
        eng_session_end(s, event.finish);
    e->stats.n_token++;
    return event;
}

static int status_of(const struct eng_engine *e, const struct eng_session *s, const int *row_status)
{
    for (int i = s->first_row; i < s->first_row + s->n_row; i++)
        if (row_status[i])
            return row_status[i];
    return s->want >= 0 ? e->choice_status[s->want] : 0;
}

static int settle(struct eng_engine *e, const int *row_status, struct eng_event *event)
{
    int n_event = 0;
    for (int i = 0; i < e->n_active;) {
        struct eng_session *s = e->active[i];
        int status = s->n_row ? status_of(e, s, row_status) : 0;
        if (status) {
            event[n_event++] = end(s, ENG_FAILED, status);
        } else if (s->n_row) {
            e->stats.n_prompt_token += (uint64_t)kn_max(0, kn_min(s->n_prompt - s->n_kv, s->n_row));
            s->n_kv += s->n_row;
            s->n_reached = kn_max(s->n_reached, s->n_kv);
            eng_kv_keep(&e->kv, &s->path, s->token, s->n_kv);
            eng_schedule_served(s, s->n_row);
            if (s->want >= 0)
                event[n_event++] = commit(e, s);
        }
        i += i < e->n_active && e->active[i] == s;      /* who ended has left the list */
    }
    return n_event;
}

int eng_event_room(const struct eng_engine *e) { return e->opt.n_session + e->opt.n_parallel; }

int eng_step(struct eng_engine *e, struct eng_event *event)
{
    int n_row = 0, n_want = 0, n_event = end_the_full(e, event);
    eng_schedule(e);
    for (int i = 0; i < e->n_active; i++)
        lay_rows(e, e->active[i], &n_row, &n_want);
    if (n_row == 0)
        return n_event;
    struct moe_batch batch = { e->row, n_row };
    struct moe_result result;
    uint64_t t0 = kn_now_ns();
    int error = moe_forward(e->context, &batch, &result);
    if (error)
        return error;
    uint64_t t1 = kn_now_ns();
    e->logits = result.logits;
    kn_parallel_for(e->team, n_want, choose_item, e);
    n_event += settle(e, result.status, event + n_event);
    uint64_t t2 = kn_now_ns();
    eng_pace_learn(&e->pace, n_want, n_row - n_want, (double)(t2 - t0));
    e->stats.n_pass++;
    e->stats.n_row += (uint64_t)n_row;
    e->stats.experts += result.experts_per_layer;
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
