/* engine/api/dialect.c - functions that the writers of several dialects share: usage, texts, numbers, logprobs. */
#include "engine/api/dialect.h"
#include "kernels/json.h"

#include <string.h>

struct eng_usage eng_usage_of(const struct eng_reply *r)
{
    struct eng_usage u = { 0 };
    for (int i = 0; i < r->ask->n_prompt; i++) {
        u.prompt += (int)r->ask->prompt[i].n;
        u.cached += r->choice[i * r->ask->n_each].n_cached;
    }
    for (int i = 0; i < r->n_choice; i++) {
        u.answer += r->choice[i].n_token;
        u.thoughts += r->choice[i].n_thought;
        int copied = kn_min(r->choice[i].copy.n_copied, r->choice[i].copy.n);
        u.copied += copied;
        u.not_copied += r->choice[i].copy.n - copied;
    }
    return u;
}

void eng_write_usage(struct eng_bytes *out, const struct eng_reply *r)
{
    struct eng_usage u = eng_usage_of(r);
    eng_bytes_format(out,
                     "\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,"
                     "\"prompt_tokens_details\":{\"cached_tokens\":%d},"
                     "\"completion_tokens_details\":{\"reasoning_tokens\":%d",
                     u.prompt, u.answer, u.prompt + u.answer, u.cached, u.thoughts);
    if (r->ask->prediction.n)
        eng_bytes_format(out, ",\"accepted_prediction_tokens\":%d,\"rejected_prediction_tokens\":%d", u.copied,
                         u.not_copied);
    eng_bytes_text(out, "}}");
}

bool eng_has_part(const struct eng_choice *c, enum eng_part_kind kind)
{
    for (int i = 0; i < c->n_part; i++)
        if (c->part[i].kind == kind)
            return true;
    return false;
}

void eng_write_arguments(struct eng_bytes *out, const struct eng_part *p)
{
    json_error_t e = { 0 };
    json_t *given = eng_api_request_depth(p->text.data, p->text.n) <= ENG_API_MAX_DEPTH
                        ? kn_json_load(p->text.n ? p->text.data : "", p->text.n, JSON_ALLOW_NUL, &e)
                        : NULL;
    out->failed |= !given && kn_json_lacks_memory(&e);
    if (json_is_object(given))
        eng_bytes_add(out, p->text.data, p->text.n);
    else
        eng_bytes_text(out, "{}");
    json_decref(given);
}

void eng_write_texts(struct eng_bytes *out, const struct eng_choice *c, enum eng_part_kind kind)
{
    struct eng_bytes all = { 0 };
    for (int i = 0; i < c->n_part; i++)
        if (c->part[i].kind == kind)
            eng_bytes_add(&all, c->part[i].text.data, c->part[i].text.n);
    eng_bytes_quote(out, all.data, all.n);
    out->failed |= all.failed;
    eng_bytes_free(&all);
}

/* JSON has no infinity: -inf, the logprob of a token that cannot be sampled, is written as -9999. */
void eng_write_number(struct eng_bytes *out, double x) { eng_bytes_format(out, "%.7g", x > -9999.0 ? x : -9999.0); }

static void write_known(struct eng_bytes *out, const struct eng_vocab *v, int32_t token, float logprob, int rank)
{
    struct moe_string s = eng_vocab_text(v, token);
    eng_bytes_format(out, "\"%d\":{\"logprob\":", token);
    eng_write_number(out, logprob);
    eng_bytes_format(out, ",\"rank\":%d,\"decoded_token\":", rank);
    eng_bytes_quote(out, s.data, s.n);
    eng_bytes_text(out, "}");
}

void eng_write_given(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c)
{
    const struct eng_ids *prompt = &r->ask->prompt[c->index / r->ask->n_each];
    const struct eng_vocab *v = r->setup->vocab;
    if (r->ask->prompt_logprobs < 0)
        return;
    eng_bytes_text(out, ",\"prompt_logprobs\":[null");
    for (int i = 1; i < c->n_given; i++) {
        const struct eng_prompt_token *g = &c->given[i];
        eng_bytes_text(out, ",{");
        write_known(out, v, prompt->id[i], g->logprob, g->rank);
        for (int k = 0; k < kn_min(g->n_top, r->ask->prompt_logprobs); k++)
            if (g->top[k].token != prompt->id[i] && g->top[k].token != ENG_NO_TOKEN) {
                eng_bytes_text(out, ",");
                write_known(out, v, g->top[k].token, g->top[k].logprob, k + 1);
            }
        eng_bytes_text(out, "}");
    }
    eng_bytes_text(out, "]");
}

static void write_token(struct eng_bytes *out, const struct eng_vocab *v, int32_t token, float logprob)
{
    struct moe_string s = eng_vocab_text(v, token);
    eng_bytes_text(out, "{\"token\":");
    eng_bytes_quote(out, s.data, s.n);
    eng_bytes_text(out, ",\"logprob\":");
    eng_write_number(out, logprob);
    eng_bytes_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < s.n; i++) {
        eng_bytes_text(out, i ? "," : "");
        eng_bytes_int(out, (uint8_t)s.data[i]);
    }
    eng_bytes_text(out, "]");
}

const struct spec_top *eng_entry_top(const struct eng_reply *r, const struct eng_choice *c, int i)
{
    size_t n_top = (size_t)r->ask->n_top;
    return n_top ? c->top + (size_t)i * n_top : NULL;
}

void eng_write_entries(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c, int first,
                       int last)
{
    int n_top = r->ask->n_top;
    eng_bytes_text(out, "[");
    for (int i = first; i < last; i++) {
        const struct spec_top *top = eng_entry_top(r, c, i);
        eng_bytes_text(out, i > first ? "," : "");
        write_token(out, r->setup->vocab, c->entry[i].token, c->entry[i].logprob);
        eng_bytes_text(out, ",\"top_logprobs\":[");
        for (int k = 0; k < n_top && top[k].token != ENG_NO_TOKEN; k++) {
            eng_bytes_text(out, k ? "," : "");
            write_token(out, r->setup->vocab, top[k].token, top[k].logprob);
            eng_bytes_text(out, "}");
        }
        eng_bytes_text(out, "]}");
    }
    eng_bytes_text(out, "]");
}
