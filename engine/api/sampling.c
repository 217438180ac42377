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

/* The order of the sampler's steps, as llama-server takes it: a list of names, or a text with a letter for each. */
static void read_order(struct eng_parse *p)
{
    struct spec_params *s = &p->ask->sampling;
    json_t *value = eng_field(&p->body, "samplers");
    size_t n = json_is_string(value) ? json_string_length(value) : json_array_size(value);
    if (!value)
        return;
    if (!json_is_string(value) && !json_is_array(value))
        eng_field_refuse(&p->body, "samplers", "must be a list of names, or a string of letters");
    s->has_order = true;
    s->n_order = 0;
    for (size_t i = 0; i < n && !eng_refused(p->why); i++) {
        json_t *item = json_array_get(value, i);
        char letter = json_is_string(value) ? json_string_value(value)[i] : 0;
        const char *name = item ? json_string_value(item) : (char[]){ letter, 0 };
        int step = item ? (name ? spec_step_find(name, json_string_length(item)) : -1) : spec_step_of_letter(letter);
        if (step < 0)
            eng_field_refuse(
                &p->body, "samplers",
                "has '%.20s', which is none of penalties (e), dry (d), top_n_sigma (s), top_k (k), typ_p (y), "
                "top_p (p), min_p (m), xtc (x), temperature (t)",
                name ? name : "");
        else if (!spec_order_add(s, step))
            eng_field_refuse(&p->body, "samplers", "has '%s' twice", spec_step_name((enum spec_step)step));
    }
}

static void read_sampling(struct eng_parse *p, const struct eng_arrival *arrival)
{
    struct spec_params *s = &p->ask->sampling;
    const struct {
        const char *name;
        float *to;
        double least, most;
    } numbers[] = {
        { "temperature", &s->temperature, 0, p->ask->api == ENG_API_MESSAGES ? 1 : 100 }, /* OpenAI's: 2 */
        { "top_p", &s->top_p, 0, 1 },
        { "min_p", &s->min_p, 0, 1 },
        { "typical_p", &s->typical_p, 0, 1 },
        { "top_n_sigma", &s->top_n_sigma, -1, 1000 },
        { "xtc_probability", &s->xtc_probability, 0, 1 },
        { "xtc_threshold", &s->xtc_threshold, 0, 1 },
        { "dry_multiplier", &s->dry_multiplier, 0, 100 },
        { "dry_base", &s->dry_base, 1, 100 },
        { "repeat_penalty", &s->repetition, 0.01, 100 }, /* llama-server's name of the next */
        { "repetition_penalty", &s->repetition, 0.01, 100 },
        { "presence_penalty", &s->presence, -2, 2 },
        { "frequency_penalty", &s->frequency, -2, 2 },
    };
    int64_t n;
    double x;
    *s = p->setup->sampling;
    s->bias = NULL;
    s->n_bias = 0;
    s->breaker = NULL;
    s->n_breaker = 0;
    s->mask = NULL;
    s->choice = 0;
    s->seed = arrival->seed & ((UINT64_C(1) << 53) - 1); /* below 2^53: exact as a double, so in any client's JSON */
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (eng_field_number(&p->body, numbers[i].name, numbers[i].least, numbers[i].most, &x))
            *numbers[i].to = (float)x;
    s->top_n_sigma = s->top_n_sigma > 0 ? s->top_n_sigma : 0; /* llama-server's value for off is -1 */
    if (eng_field_int(&p->body, "dry_allowed_length", 0, SPEC_DRY_LONGEST, &n))
        s->dry_allowed = (int)n;
    if (eng_field_int(&p->body, "dry_penalty_last_n", -1, INT32_MAX, &n))
        s->dry_last = (int)n;
    if (eng_field_int(&p->body, "top_k", -1, INT32_MAX, &n))
        s->top_k = n < 0 ? 0 : (int)n;
    if (eng_field_int(&p->body, "repeat_last_n", -1, INT32_MAX, &n))
        s->repeat_last = (int)n;
    read_order(p);
    if (eng_field_int(&p->body, "seed", INT64_MIN, INT64_MAX, &n) && n != -1) { /* -1, llama-server's: a random one */
        s->seed = (uint64_t)n;
        p->ask->seed_given = true;
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
    eng_field_bool(&p->body, "include_stop_str_in_output", &p->ask->shows_stop);
}

/* Reads a limit of generated tokens: at least `least`.  All APIs but messages also take -1, llama-server's value for no
 * limit. */
static bool read_limit(struct eng_parse *p, const char *name, int least, int64_t *n)
{
    if (!eng_field_int(&p->body, name, p->ask->api == ENG_API_MESSAGES ? least : -1, INT32_MAX, n))
        return false;
    if (*n >= 0 && *n < least)
        eng_field_refuse(&p->body, name, "must be -1, or at least %d", least);
    return true;
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
    int64_t n[2], limit;
    bool given[2] = { false, false }, echo = false; /* with echo, a length of 0 is allowed */
    if (api == ENG_API_COMPLETIONS)
        eng_field_bool(&p->body, "echo", &echo);
    for (int i = 0; i < 2 && names[api][i]; i++)
        given[i] = read_limit(p, names[api][i], echo ? 0 : 1, &n[i]);
    p->ask->n_predict = p->ask->form == ENG_API_COMPLETIONS ? COMPLETION : p->setup->n_predict;
    if (api != ENG_API_MESSAGES && read_limit(p, "n_predict", echo ? 0 : 1, &limit))
        p->ask->n_predict = (int)limit; /* llama-server's; the dialect's own name goes first */
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
    int64_t n = 0, probs;
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
    if (eng_field_int(f, "n_probs", 0, ENG_TOP, &probs) && probs) { /* llama-server's */
        if (ask->api != ENG_API_COMPLETIONS && ask->api != ENG_API_CHAT)
            eng_field_refuse(f, "n_probs", "is not supported here: use the API's own member");
        ask->logprobs = true;
        n = n ? n : probs;
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
    for (int i = 0; i < 2 && !user && p->ask->api != ENG_API_MESSAGES; i++)
        user = eng_field_string(&p->body, names[i]);
    if (p->ask->api == ENG_API_MESSAGES) {
        metadata = eng_field_object(&p->body, "metadata");
        user = eng_field_string(&metadata, "user_id");
    }
    p->ask->user = eng_hash(p->ask->user, json_string_value(user), json_string_length(user));
}

void eng_parse_params(struct eng_parse *p, const struct eng_arrival *arrival)
{
    read_sampling(p, arrival);
    read_stop(p);
    read_length(p, arrival->count);
    eng_parse_token_lists(p);
    read_told(p);
    read_who(p);
}
