/* engine/serve/model_routes.c - the model as clients of other servers see it: OpenAI's list of models, llama-server's
 * /props and /slots, vLLM's /tokenizer_info. */
#include <string.h>

#include "engine/serve/internal.h"

/* ---- the list of models ---------------------------------------------------------------------- */

static void write_model(struct eng_server *s, const char *name, struct eng_bytes *out)
{
    eng_bytes_text(out, "{\"id\":");
    eng_bytes_quote(out, name, strlen(name));
    eng_bytes_format(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"spillway\"", (long long)s->started_s);
    if (s->state == SRV_SERVING)
        eng_bytes_format(out, ",\"max_model_len\":%d", s->setup.n_ctx);
    eng_bytes_text(out, "}");
}

void srv_models(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = { 0 };
    eng_bytes_text(&out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < s->setup.n_model; i++) {
        eng_bytes_text(&out, i ? "," : "");
        write_model(s, s->alias[i], &out);
    }
    eng_bytes_text(&out, "]}");
    srv_answer_json(s, x, &out);
}

void srv_model(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = { 0 };
    struct eng_refusal why;
    const char *name = eng_http_path(x) + sizeof "/v1/models/" - 1;
    for (int i = 0; i < s->setup.n_model; i++) {
        if (strcmp(name, s->alias[i]) != 0)
            continue;
        write_model(s, name, &out);
        srv_answer_json(s, x, &out);
        return;
    }
    char shown[128];
    moe_string_show((struct moe_string){ name, strlen(name) }, shown, sizeof shown);
    eng_refuse(&why, 404, "model_not_found", "model", "the model '%s' does not exist; this server has %s", shown,
               s->alias[0]);
    srv_answer_refusal(s, x, ENG_API_CHAT, &why);
}

/* ---- the open model -------------------------------------------------------------------------- */

bool srv_has_model(struct eng_server *s, struct eng_exchange *x, enum eng_api form)
{
    struct eng_refusal why;
    if (s->state == SRV_SERVING || s->state == SRV_DRAINING)
        return true;
    eng_refuse(&why, 503, s->state == SRV_LOADING ? "loading" : NULL, "", "%s", srv_not_ready(s));
    srv_answer_refusal(s, x, form, &why);
    return false;
}

/* Writes ,"NAME": and the text of a token; null if the vocabulary has no such token. */
static void write_token(struct eng_bytes *out, const char *name, const struct eng_vocab *v, int32_t token)
{
    struct moe_string text = token == ENG_NO_TOKEN ? (struct moe_string){ 0 } : eng_vocab_text(v, token);
    eng_bytes_format(out, ",\"%s\":", name);
    if (token == ENG_NO_TOKEN)
        eng_bytes_text(out, "null");
    else
        eng_bytes_quote(out, text.data, text.n);
}

static void write_template(struct eng_server *s, struct eng_bytes *out)
{
    struct moe_string text = s->setup.chat ? eng_chat_text(s->setup.chat) : (struct moe_string){ 0 };
    eng_bytes_text(out, ",\"chat_template\":");
    if (s->setup.chat)
        eng_bytes_quote(out, text.data, text.n);
    else
        eng_bytes_text(out, "null");
}

void srv_tokenizer_info(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = { 0 };
    const struct eng_vocab *v = s->setup.vocab;
    if (!srv_has_model(s, x, ENG_API_CHAT))
        return;
    eng_bytes_format(&out, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"model_max_length\":%d,\"vocab_size\":%d",
                     s->setup.n_ctx, eng_vocab_size(v));
    eng_bytes_format(&out, ",\"add_bos_token\":%s", eng_vocab_adds_bos(v) ? "true" : "false");
    write_token(&out, "bos_token", v, eng_vocab_bos(v));
    write_token(&out, "eos_token", v, eng_vocab_eos(v));
    write_token(&out, "pad_token", v, eng_vocab_pad(v));
    write_template(s, &out);
    eng_bytes_text(&out, "}");
    srv_answer_json(s, x, &out);
}

void srv_props(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = { 0 };
    const struct eng_vocab *v = s->setup.vocab;
    if (!srv_has_model(s, x, ENG_API_CHAT))
        return;
    eng_bytes_format(&out, "{\"default_generation_settings\":{\"n_ctx\":%d,\"params\":", s->setup.n_ctx);
    eng_write_settings(&out, &s->setup.sampling, s->setup.n_predict);
    eng_bytes_format(&out, "},\"total_slots\":%d,\"model_alias\":", s->opt.engine.n_parallel);
    eng_bytes_quote(&out, s->alias[0], strlen(s->alias[0]));
    eng_bytes_format(
        &out, ",\"modalities\":{\"vision\":false,\"audio\":false},\"build_info\":\"spillway %s\",\"is_sleeping\":false",
        eng_version_text);
    write_token(&out, "bos_token", v, eng_vocab_bos(v));
    write_token(&out, "eos_token", v, eng_vocab_eos(v));
    write_template(s, &out);
    eng_bytes_text(&out, "}");
    srv_answer_json(s, x, &out);
}

/* A slot is one of the n_parallel answers that may be computed at once: the running ones come first, then the idle. */
void srv_slots(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = { 0 };
    int n = 0, most = s->opt.engine.n_parallel;
    if (!srv_has_model(s, x, ENG_API_CHAT))
        return;
    for (const struct srv_call *c = s->calls; c; c = c->next)
        for (int i = 0; i < c->n_choice && n < most; i++) {
            const struct srv_choice *o = &c->choice[i];
            if (!o->lent || !o->begun_ns)
                continue;
            eng_bytes_format(&out,
                             "%s{\"id\":%d,\"n_ctx\":%d,\"is_processing\":true,\"request\":\"%s\",\"prompt_tokens\":%d,"
                             "\"next_token\":{\"n_decoded\":%d}}",
                             n ? "," : "[", n, s->setup.n_ctx, c->names.id, o->job.request.n_token,
                             c->reply ? eng_reply_tokens(c->reply, i) : 0);
            n++;
        }
    for (; n < most; n++)
        eng_bytes_format(&out, "%s{\"id\":%d,\"n_ctx\":%d,\"is_processing\":false}", n ? "," : "[", n, s->setup.n_ctx);
    eng_bytes_text(&out, "]");
    srv_answer_json(s, x, &out);
}
