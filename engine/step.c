/* One step: choose who advances, lay out rows, one forward pass, choose tokens, commit.
 *
 * Sessions with a token due go first, one row each; what is left of the pass is filled with prompts, in
 * turn, so that a long prompt neither waits for ever nor keeps the others waiting. */
#include "engine/internal.h"

#include <string.h>

/* ---- lay out ------------------------------------------------------------------------------------- */

/* Rows for the session's next n tokens; logits are wanted when they reach the end. */
static void lay_rows(struct eng_engine *e, struct eng_session *s, int n, int *n_row, int *n_want)
{
    s->first_row = *n_row;
    s->n_row = n;
    s->want = s->n_kv + n == s->n_token ? (*n_want)++ : -1;
    if (s->want >= 0)
        e->due[s->want] = s;
    for (int i = 0; i < n; i++) {
        int p = s->n_kv + i;
        e->row[(*n_row)++] = (struct moe_row){
            .token = s->token[p], .position = p, .want_logits = s->want >= 0 && i == n - 1,
            .base = s->slot, .n_base = s->n_slot };
    }
}

static int emit_end(struct eng_session *s, enum eng_finish finish, int status, struct eng_event *event)
{
    s->finish = finish;
    *event = (struct eng_event){ s, ENG_NO_TOKEN, 0, finish, status };
    return 1;
}

/* KV that ended sessions keep in case they go on is there for those that run. */
static int reserve(struct eng_engine *e, struct eng_session *s, int n)
{
    int status = eng_kv_reserve(&e->kv, s->slot, &s->n_slot, n);
    for (int i = 0; status && i < e->opt.n_parallel; i++) {
        struct eng_session *ended = &e->session[i];
        if (eng_session_runs(ended) || ended->n_slot == 0)
            continue;
        eng_kv_release(&e->kv, ended->slot, &ended->n_slot, 0);
        ended->n_kv = 0;
        status = eng_kv_reserve(&e->kv, s->slot, &s->n_slot, n);
    }
    return status;
}

/* Sessions take what room is left; one that finds no KV ends, alone, as does one with no token to add. */
static int lay_out(struct eng_engine *e, int *n_row, int *n_want, struct eng_event *event)
{
    int n_event = 0, n_session = e->opt.n_parallel, started = -1;
    *n_row = *n_want = 0;
    for (int i = 0; i < n_session; i++) {
        struct eng_session *s = &e->session[i];
        s->n_row = 0;
        if (eng_session_runs(s) && s->n_token >= s->n_most)
            n_event += emit_end(s, ENG_LENGTH, 0, &event[n_event]);
    }
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n_session; i++) {
            struct eng_session *s = &e->session[(e->next_prefill + i) % n_session];
            int n = s->n_token - s->n_kv;
            if (!eng_session_runs(s) || (n == 1) != (pass == 0))
                continue;
            n = kn_min(n, e->opt.n_chunk - *n_row);
            if (n <= 0)
                continue;
            int status = reserve(e, s, s->n_kv + n);
            if (status) {
                kn_say(KN_LOG_WARN, "a session ends at %d tokens: no KV memory is left: raise --kv-mem",
                       s->n_kv);
                n_event += emit_end(s, ENG_FAILED, status, &event[n_event]);
                continue;
            }
            if (pass == 1 && started < 0)
                started = (e->next_prefill + i) % n_session;
            lay_rows(e, s, n, n_row, n_want);
        }
    if (started >= 0)
        e->next_prefill = (started + 1) % n_session;
    return n_event;
}

/* ---- choose ---------------------------------------------------------------------------------------- */

static void choose_item(void *arg, int item, int thread)
{
    struct eng_engine *e = arg;
    const struct eng_session *s = e->due[item];
    const float *logits = e->logits + (size_t)item * (size_t)moe_model_shape(e->model)->n_vocab;
    e->choice_status[item] = spec_sample(e->sampler[thread], &s->sampling, logits, s->token,
                                         s->n_token, s->n_token, &e->choice[item]);
}

static struct eng_event commit(struct eng_engine *e, struct eng_session *s, const struct spec_choice *c)
{
    s->token[s->n_token++] = c->token;
    if (eng_vocab_is_stop(e->vocab, c->token))
        s->finish = ENG_STOP;
    else if (s->n_token >= s->n_most)
        s->finish = ENG_LENGTH;
    e->stats.n_token++;
    return (struct eng_event){ s, c->token, c->logprob, s->finish, 0 };
}

static int first_bad_row(const struct eng_session *s, const int *status)
{
    for (int i = s->first_row; i < s->first_row + s->n_row; i++)
        if (status[i])
            return status[i];
    return 0;
}

static int settle(struct eng_engine *e, const struct moe_result *r, struct eng_event *event)
{
    int n_event = 0;
    for (int i = 0; i < e->opt.n_parallel; i++) {
        struct eng_session *s = &e->session[i];
        if (!s->n_row)
            continue;
        int status = first_bad_row(s, r->status);
        if (!status && s->want >= 0)
            status = e->choice_status[s->want];
        if (status) {
            n_event += emit_end(s, ENG_FAILED, status, &event[n_event]);
            continue;
        }
        e->stats.n_prompt_token += (uint64_t)kn_max(0, kn_min(s->n_prompt - s->n_kv, s->n_row));
        s->n_kv += s->n_row;
        if (s->want >= 0)
            event[n_event++] = commit(e, s, &e->choice[s->want]);
    }
    return n_event;
}

int eng_step(struct eng_engine *e, struct eng_event *event)
{
    int n_row, n_want, n_event = lay_out(e, &n_row, &n_want, event);
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
    n_event += settle(e, &result, event + n_event);
    e->stats.n_pass++;
    e->stats.experts += result.experts_per_layer;
    e->stats.pass_ns += t1 - t0;
    e->stats.sample_ns += kn_now_ns() - t1;
    return n_event;
}

void eng_stats_get(const struct eng_engine *e, struct eng_stats *out) { *out = e->stats; }
