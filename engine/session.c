/* engine/session.c - sessions: one sequence each, with its tokens, KV path and request. */
#include "engine/internal.h"

#include <string.h>

int eng_session_open(struct eng_session **out, struct eng_engine *e)
{
    for (int i = 0; i < e->assets.opt.n_session; i++) {
        struct eng_session *s = &e->schedule.session[i];
        if (s->open)
            continue;
        s->open = true;
        s->finish = ENG_STOP;
        s->seq.n_token = s->n_cached = 0;
        *out = s;
        return 0;
    }
    return kn_fail(KN_ELIMIT, "all %d sessions are in use: raise --parallel", e->assets.opt.n_session);
}

void eng_session_close(struct eng_session *s)
{
    if (!s || !s->open)
        return;
    eng_session_stop(s);
    s->open = false;
}

int eng_request_check(const struct eng_engine *e, const struct eng_request *r)
{
    /* the target has rows for ids beyond the vocabulary, as padding; a drafter may lack them */
    int n_vocab = eng_draft_count(e->drafting) ? eng_vocab_size(e->assets.vocab)
                                               : moe_model_shape(e->assets.model)->n_vocab;
    if (r->n_token < 1)
        return kn_fail(KN_EINVAL, "an empty prompt");
    if (r->n_token > e->assets.opt.n_ctx)
        return kn_fail(KN_ELIMIT, "the prompt has %d tokens and the context %d: %s", r->n_token, e->assets.opt.n_ctx,
                       e->assets.opt.n_ctx < moe_model_shape(e->assets.model)->n_ctx_train
                           ? "raise --ctx-size"
                           : "the model was trained on no longer ones");
    for (int i = 0; i < r->n_token; i++)
        if (r->token[i] < 0 || r->token[i] >= n_vocab)
            return kn_fail(KN_EINVAL, "token id %d; the vocabulary has 0 to %d", r->token[i], n_vocab - 1);
    for (int i = 0; i < r->n_reference; i++)
        if (r->reference[i] < 0 || r->reference[i] >= n_vocab)
            return kn_fail(KN_EINVAL, "token id %d in the prediction; the vocabulary has 0 to %d", r->reference[i],
                           n_vocab - 1);
    if (r->sampling.n_bias > ENG_REQUEST_BIAS)
        return kn_fail(KN_ELIMIT, "%d biased tokens; at most %d are possible", r->sampling.n_bias, ENG_REQUEST_BIAS);
    if (r->n_top < 0 || r->n_top > ENG_TOP)
        return kn_fail(KN_EINVAL, "%d most likely tokens for each token; 0 to %d are possible", r->n_top, ENG_TOP);
    if (r->wants_prompt_logprobs &&
        (r->n_prompt_top < 0 || r->n_prompt_top > ENG_TOP || !e->assets.opt.n_prompt_logprob_row))
        return kn_fail(KN_EUNSUPPORTED,
                       "logprobs of the prompt with %d most likely tokens; 0 to %d are possible, "
                       "and %d rows of a pass are set aside for them",
                       r->n_prompt_top, ENG_TOP, e->assets.opt.n_prompt_logprob_row);
    if (r->grammar && !e->assets.tokens)
        return kn_fail(KN_EUNSUPPORTED, "the request has a grammar, and the engine was opened without grammars");
    return spec_params_check(&r->sampling, eng_vocab_size(e->assets.vocab));
}

/* ignore_eos forbids all stop tokens, but not for a request with a grammar: when the text is complete, the grammar
 * allows only stop tokens. */
void eng_request_sampling(const struct eng_engine *e, const struct eng_request *r, struct spec_params *out,
                          struct spec_bias *bias)
{
    *out = r->sampling;
    out->bias = bias;
    for (int i = 0; i < r->sampling.n_bias; i++)
        bias[i] = r->sampling.bias[i];
    for (int i = 0; r->ignore_eos && !r->grammar && i < e->assets.n_stop; i++)
        bias[out->n_bias++] = (struct spec_bias){ e->assets.stop[i], -__builtin_inff() };
}

int eng_session_start(struct eng_session *s, const struct eng_request *r)
{
    struct eng_engine *e = s->engine;
    int error = eng_request_check(e, r);
    if (error)
        return error;
    eng_session_stop(s);
    memmove(s->seq.token, r->token, (size_t)r->n_token * sizeof *s->seq.token);
    s->seq.n_token = s->seq.n_prompt = r->n_token;
    s->seq.n_max = r->n_predict < 0 || r->n_predict > e->assets.opt.n_ctx - r->n_token ? e->assets.opt.n_ctx
                                                                                       : r->n_token + r->n_predict;
    s->seq.n_kv = s->n_reached = s->n_cached = 0;
    s->priority = r->priority;
    s->owner = r->owner;
    s->choice = r->choice;
    s->seq.path = (struct eng_path){ .salt = r->salt };
    s->n_top = r->n_top;
    s->wants_prompt_logprobs = r->wants_prompt_logprobs;
    s->n_prompt_top = r->n_prompt_top;
    s->n_prompt_logprob = 1;
    s->seq.oracle = NULL;
    s->seq.n_oracle = 0;
    s->seq.reference = r->reference;
    s->seq.n_reference = r->n_reference;
    s->seq.limits = r->drafts;
    s->grammar = r->grammar;
    if (s->grammar)
        gr_start(s->grammar, s->grammar_state);
    eng_request_sampling(e, r, &s->sampling, s->bias);
    s->finish = ENG_RUNNING;
    e->stats.n_cache_asked += (uint64_t)r->n_token;
    eng_schedule_enter(s, r->user);
    return 0;
}

bool eng_session_runs(const struct eng_session *s) { return eng_session_is_running(s); }
bool eng_session_waits(const struct eng_session *s) { return eng_session_is_waiting(s); }

void eng_session_stop(struct eng_session *s)
{
    if (s->finish == ENG_RUNNING)
        eng_session_end(s, ENG_STOP);
}

void eng_session_end(struct eng_session *s, enum eng_finish finish)
{
    s->finish = finish;
    eng_schedule_leave(s);
}

void eng_session_set_oracle(struct eng_session *s, const int32_t *token, int n)
{
    s->seq.oracle = token;
    s->seq.n_oracle = n;
}

int eng_session_cached(const struct eng_session *s) { return s->n_cached; }
int eng_session_computed(const struct eng_session *s) { return s->seq.n_kv; }

const int32_t *eng_session_tokens(const struct eng_session *s, int *n)
{
    *n = s->seq.n_token;
    return s->seq.token;
}
