/* Sessions: one sequence each, its tokens, its KV, what it was asked for. */
#include "engine/internal.h"

#include <string.h>

int eng_session_open(struct eng_session **out, struct eng_engine *e)
{
    for (int i = 0; i < e->opt.n_parallel; i++) {
        struct eng_session *s = &e->session[i];
        if (s->open)
            continue;
        s->open = true;
        s->finish = ENG_STOP;
        s->n_token = s->n_kv = s->n_cached = 0;
        *out = s;
        return 0;
    }
    return kn_fail(KN_ELIMIT, "all %d sessions are taken: raise --parallel", e->opt.n_parallel);
}

void eng_session_close(struct eng_session *s)
{
    if (!s || !s->open)
        return;
    eng_kv_release(&s->engine->kv, s->slot, &s->n_slot, 0);
    s->open = false;
    s->finish = ENG_STOP;
}

static int check(const struct eng_session *s, const struct eng_request *r)
{
    int n_vocab = moe_model_shape(s->engine->model)->n_vocab;
    if (r->n_token < 1)
        return kn_fail(KN_EINVAL, "an empty prompt");
    if (r->n_token > s->engine->opt.n_ctx)
        return kn_fail(KN_ELIMIT, "the prompt has %d tokens and the context %d: raise --ctx-size",
                       r->n_token, s->engine->opt.n_ctx);
    for (int i = 0; i < r->n_token; i++)
        if (r->token[i] < 0 || r->token[i] >= n_vocab)
            return kn_fail(KN_EINVAL, "token id %d; the vocabulary has 0 to %d", r->token[i], n_vocab - 1);
    if (r->sampling.n_bias > ENG_REQUEST_BIAS)
        return kn_fail(KN_ELIMIT, "%d biased tokens; at most %d are possible", r->sampling.n_bias,
                       ENG_REQUEST_BIAS);
    return spec_params_check(&r->sampling, eng_vocab_size(s->engine->vocab));
}

/* To ignore the end is to forbid every token that would be one. */
static void set_sampling(struct eng_session *s, const struct eng_request *r)
{
    s->sampling = r->sampling;
    s->sampling.bias = s->bias;
    for (int i = 0; i < r->sampling.n_bias; i++)
        s->bias[i] = r->sampling.bias[i];
    for (int i = 0; r->ignore_eos && i < s->engine->n_stop; i++)
        s->bias[s->sampling.n_bias++] = (struct spec_bias){ s->engine->stop[i], -__builtin_inff() };
}

int eng_session_start(struct eng_session *s, const struct eng_request *r)
{
    struct eng_engine *e = s->engine;
    int error = check(s, r);
    if (error)
        return error;
    int same = 0;
    while (same < s->n_kv && same < r->n_token && s->token[same] == r->token[same])
        same++;
    same = kn_min(same, r->n_token - 1);        /* the last one is computed again: its logits are due */
    eng_kv_release(&e->kv, s->slot, &s->n_slot, same);
    memcpy(s->token, r->token, (size_t)r->n_token * sizeof *s->token);
    s->n_kv = s->n_cached = same;
    s->n_token = s->n_prompt = r->n_token;
    s->n_most = r->n_predict < 0 || r->n_predict > e->opt.n_ctx - r->n_token
                    ? e->opt.n_ctx : r->n_token + r->n_predict;
    set_sampling(s, r);
    s->finish = ENG_RUNNING;
    return 0;
}

bool eng_session_runs(const struct eng_session *s) { return s->open && s->finish == ENG_RUNNING; }

void eng_session_stop(struct eng_session *s)
{
    if (s->finish == ENG_RUNNING)
        s->finish = ENG_STOP;
}

int eng_session_cached(const struct eng_session *s) { return s->n_cached; }

const int32_t *eng_session_tokens(const struct eng_session *s, int *n)
{
    *n = s->n_token;
    return s->token;
}
