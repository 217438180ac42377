/* engine/api/sampling.c - reads the parameters of a request under the names of each dialect: sampling, end of the
 * answer, logprobs and stream, priority and user. */
#include "engine/api/internal.h"

#include <string.h>

void eng_parse_no_memory(struct eng_parse *p)
{
    if (!eng_refused(p->why))
        eng_refuse(p->why, 500, NULL, NULL, "no memory for the request");
}

/* ---- sampling -------------------------------------------------------------------------------- */

static void read_sampling(struct eng_parse *p, const struct eng_arrival *arrival)
{
    struct spec_params *s = &p->ask->sampling;
    const struct {
        const char *name;
        float *to;
        double least, most;
    } numbers[] = {
        { "temperature", &s->temperature, 0, p->ask->api == ENG_API_MESSAGES ? 1 : 2 },
        { "top_p", &s->top_p, 0, 1 },
        { "min_p", &s->min_p, 0, 1 },
        { "repetition_penalty", &s->repetition, 0.01, 100 },
        { "presence_penalty", &s->presence, -2, 2 },
        { "frequency_penalty", &s->frequency, -2, 2 },
    };
    int64_t n;
    double x;
    *s = p->setup->sampling;
    s->bias = NULL;
    s->n_bias = 0;
    s->mask = NULL;
    s->choice = 0;
    s->seed = arrival->seed & ((UINT64_C(1) << 53) - 1); /* below 2^53: exact as a double, so in any client's JSON */
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (eng_field_number(&p->body, numbers[i].name, numbers[i].least, numbers[i].most, &x))
            *numbers[i].to = (float)x;
    if (eng_field_int(&p->body, "top_k", -1, INT32_MAX, &n))
        s->top_k = n < 0 ? 0 : (int)n;
    if (eng_field_int(&p->body, "repeat_last_n", -1, INT32_MAX, &n))
        s->repeat_last = (int)n;
    if (eng_field_int(&p->body, "seed", INT64_MIN, INT64_MAX, &n)) {
        s->seed = (uint64_t)n;
        p->ask->seed_given = true;
    }
}

/* The token id that a key of logit_bias gives in decimal digits; ENG_NO_TOKEN if the key is not a valid id. */
static int32_t token_of(const struct eng_parse *p, const char *key)
{
    int64_t id = 0;
    size_t n = strlen(key);
    if (!n || n > 9)
        return ENG_NO_TOKEN;
    for (; *key; key++) {
        if (*key < '0' || *key > '9')
            return ENG_NO_TOKEN;
        id = id * 10 + (*key - '0');
    }
    return id < eng_vocab_size(p->setup->vocab) ? (int32_t)id : ENG_NO_TOKEN;
}

static void read_bias(struct eng_parse *p)
{
    struct eng_fields f = eng_field_object(&p->body, "logit_bias");
    size_t n = json_object_size(f.object);
    const char *key;
    json_t *value;
    struct spec_bias *bias;
    if (n > ENG_API_MAX_BIASES) {
        eng_field_refuse(&p->body, "logit_bias", "has %zu tokens; the limit is %d", n, ENG_API_MAX_BIASES);
        return;
    }
    if (!n)
        return;
    if (!(bias = kn_calloc(n, sizeof *bias))) {
        eng_parse_no_memory(p);
        return;
    }
    p->ask->sampling.bias = bias;
    json_object_foreach(f.object, key, value)
    {
        int32_t token = token_of(p, key);
        double add;
        if (token == ENG_NO_TOKEN)
            eng_field_refuse(&f, key, "is not a token id: ids are 0 to %d", eng_vocab_size(p->setup->vocab) - 1);
        if (!eng_field_number(&f, key, -100, 100, &add)) {
            if (json_is_null(value))
                eng_field_refuse(&f, key, "must be a number from -100 to 100");
            return;
        }
        bias[p->ask->sampling.n_bias++] = (struct spec_bias){ token, (float)add };
    }
}

/* ---- end of the answer ----------------------------------------------------------------------- */

static void add_stop(struct eng_parse *p, const char *name, const json_t *text)
{
    size_t n = json_string_length(text);
    if (!json_is_string(text))
        eng_field_refuse(&p->body, name, "must be a string or a list of strings");
    else if (n < 1 || n > ENG_STOP_BYTES || strlen(json_string_value(text)) != n)
        eng_field_refuse(&p->body, name, "has a string of %zu bytes; strings must have 1 to %d bytes, without NUL", n,
                         ENG_STOP_BYTES);
    else
        p->ask->stop[p->ask->n_stop++] = json_string_value(text);
}

static void read_stop(struct eng_parse *p)
{
    const char *name = p->ask->api == ENG_API_MESSAGES ? "stop_sequences" : "stop";
    json_t *value = eng_field(&p->body, name), *item;
    size_t i;
    if (json_is_string(value)) {
        add_stop(p, name, value);
    } else if ((value = eng_field_array(&p->body, name, ENG_API_MAX_STOPS))) {
        json_array_foreach(value, i, item) add_stop(p, name, item);
    }
    value = eng_field_array(&p->body, "stop_token_ids", ENG_API_MAX_STOPS);
    json_array_foreach(value, i, item)
    {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= eng_vocab_size(p->setup->vocab)) {
            eng_field_refuse(&p->body, "stop_token_ids", "must contain token ids from 0 to %d",
                             eng_vocab_size(p->setup->vocab) - 1);
            return;
        }
        p->ask->stop_token[p->ask->n_stop_token++] = (int32_t)id;
    }
    eng_field_bool(&p->body, "ignore_eos", &p->ask->ignore_eos);
}

/* Reads the limit of generated tokens.  Of the two names in chat max_completion_tokens counts if both are present; the
 * older max_tokens is checked too.  count: the request only counts its prompt, so no limit is required. */
static void read_length(struct eng_parse *p, bool count)
{
    static const char *const names[][2] = {
        [ENG_API_COMPLETIONS] = { "max_tokens", NULL },
        [ENG_API_CHAT] = { "max_completion_tokens", "max_tokens" },
        [ENG_API_RESPONSES] = { "max_output_tokens", NULL },
        [ENG_API_MESSAGES] = { "max_tokens", NULL },
    };
    enum { COMPLETION = 16 }; /* default of OpenAI's completions API */
    enum eng_api api = p->ask->api;
    int64_t n[2];
    bool given[2] = { false, false }, echo = false; /* with echo, a length of 0 is allowed */
    if (api == ENG_API_COMPLETIONS)
        eng_field_bool(&p->body, "echo", &echo);
    for (int i = 0; i < 2 && names[api][i]; i++)
        given[i] = eng_field_int(&p->body, names[api][i], echo ? 0 : 1, INT32_MAX, &n[i]);
    p->ask->n_predict = api == ENG_API_COMPLETIONS ? COMPLETION : p->setup->n_predict;
    if (given[0] || given[1])
        p->ask->n_predict = (int)n[given[0] ? 0 : 1];
    else if (api == ENG_API_MESSAGES && !count)
        eng_field_refuse(&p->body, "max_tokens", "is missing");
}

/* ---- contents of the answer ------------------------------------------------------------------ */

static void read_logprobs(struct eng_parse *p)
{
    struct eng_api_request *ask = p->ask;
    struct eng_fields *f = &p->body;
    int64_t n = 0;
    if (ask->api == ENG_API_COMPLETIONS) {
        ask->logprobs = eng_field_int(f, "logprobs", 0, ENG_TOP, &n);
    } else if (ask->api == ENG_API_CHAT) {
        eng_field_bool(f, "logprobs", &ask->logprobs);
        if (eng_field_int(f, "top_logprobs", 0, ENG_TOP, &n) && n && !ask->logprobs)
            eng_field_refuse(f, "top_logprobs", "needs 'logprobs' to be true");
    } else if (ask->api == ENG_API_RESPONSES) {
        json_t *include = eng_field_array(f, "include", 64), *item;
        size_t i;
        json_array_foreach(include, i, item)
            ask->logprobs |= json_is_string(item) && !strcmp(json_string_value(item), "message.output_text.logprobs");
        ask->logprobs |= eng_field_int(f, "top_logprobs", 0, ENG_TOP, &n) && n;
    }
    ask->n_top = (int)n;
}

static void read_prompt_logprobs(struct eng_parse *p, bool openai)
{
    struct eng_api_request *ask = p->ask;
    int64_t n = -1;
    if (openai)
        eng_field_int(&p->body, "prompt_logprobs", 0, ENG_TOP, &n);
    ask->prompt_logprobs = (int)n;
    ask->wants_prompt_logprobs = n >= 0 || (ask->echo && ask->logprobs);
    if (ask->wants_prompt_logprobs && ask->stream)
        eng_field_refuse(&p->body, n >= 0 ? "prompt_logprobs" : "logprobs",
                         "of a prompt are not supported with 'stream'");
    if (ask->wants_prompt_logprobs && ask->n_each > 1) /* every choice would report the prompt's logprobs again */
        eng_field_refuse(&p->body, "n", "must be 1 if log-probabilities of the prompt are requested");
}

static void read_told(struct eng_parse *p)
{
    struct eng_fields options = eng_field_object(&p->body, "stream_options");
    int64_t n = 1;
    bool skip = true;
    bool openai = p->ask->api == ENG_API_COMPLETIONS || p->ask->api == ENG_API_CHAT;
    eng_field_bool(&p->body, "stream", &p->ask->stream);
    eng_field_bool(&options, "include_usage", &p->ask->include_usage);
    if (options.object && openai && !p->ask->stream)
        eng_field_refuse(&p->body, "stream_options", "needs 'stream' to be true");
    if (openai)
        eng_field_int(&p->body, "n", 1, ENG_API_MAX_EACH, &n);
    p->ask->n_each = (int)n;
    if (p->ask->api == ENG_API_COMPLETIONS && eng_field_bool(&p->body, "skip_special_tokens", &skip))
        p->ask->shows_special = !skip;
    read_logprobs(p);
    if (p->ask->api == ENG_API_COMPLETIONS)
        eng_field_bool(&p->body, "echo", &p->ask->echo);
    read_prompt_logprobs(p, openai);
}

/* Reads priority and user.  Priority is negated: in a request a lower one goes first, in the engine a higher one. */
static void read_who(struct eng_parse *p)
{
    static const char *const names[] = { "user", "safety_identifier" };
    struct eng_fields metadata = { .why = p->why };
    json_t *user = NULL;
    int64_t n = 0;
    eng_field_int(&p->body, "priority", -1000, 1000, &n);
    p->ask->priority = (int)-n;
    for (int i = 0; i < 2 && !user; i++)
        user = eng_field_string(&p->body, names[i]);
    if (p->ask->api == ENG_API_MESSAGES) {
        metadata = eng_field_object(&p->body, "metadata");
        user = eng_field_string(&metadata, "user_id");
    }
    for (size_t i = 0; i < json_string_length(user); i++)
        p->ask->user = kn_mix(p->ask->user + KN_GOLDEN + (uint8_t)json_string_value(user)[i]);
}

void eng_parse_params(struct eng_parse *p, const struct eng_arrival *arrival)
{
    read_sampling(p, arrival);
    read_bias(p);
    read_stop(p);
    read_length(p, arrival->count);
    read_told(p);
    read_who(p);
}
