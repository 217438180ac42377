/* engine/api/token_lists.c - the members of a request that become lists of tokens: logit_bias, bad_words,
 * allowed_token_ids, DRY's breakers, and the tokens that min_tokens forbids.
 *
 * ask->lists owns the lists, and ask->sampling points to them. */
#include "engine/api/internal.h"

#include <math.h>
#include <string.h>

enum {
    WORDS = 128,     /* items of bad_words */
    WORD_BYTES = 256 /* bytes of one */
};

static bool is_id(const struct eng_parse *p, json_t *item)
{
    return json_is_integer(item) && json_integer_value(item) >= 0 &&
           json_integer_value(item) < eng_vocab_size(p->setup->vocab);
}

/* Tokens of a text within an answer: no BOS, and no special tokens. */
static bool add_text(struct eng_parse *p, const char *text, size_t n, struct eng_ids *ids)
{
    if (eng_tokenize(p->setup->vocab, text, n, 0, ids) == 0)
        return true;
    eng_parse_no_memory(p);
    return false;
}

/* ---- logit_bias ------------------------------------------------------------------------------ */

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

static bool add_bias(struct eng_parse *p, int32_t token, double add)
{
    struct spec_params *s = &p->ask->sampling;
    if (s->n_bias == ENG_API_MAX_BIASES) {
        eng_field_refuse(&p->body, "logit_bias", "has more than %d tokens", ENG_API_MAX_BIASES);
        return false;
    }
    p->ask->lists.bias[s->n_bias++] = (struct spec_bias){ token, (float)add };
    return true;
}

/* Each token of the text gets the bias. */
static bool add_text_bias(struct eng_parse *p, const char *text, size_t n, double add)
{
    struct eng_ids ids = { 0 };
    bool ok = add_text(p, text, n, &ids);
    for (size_t i = 0; i < ids.n && ok; i++)
        ok = add_bias(p, ids.id[i], add);
    eng_ids_free(&ids);
    return ok;
}

static void read_bias_object(struct eng_parse *p)
{
    struct eng_fields f = eng_field_object(&p->body, "logit_bias");
    const char *key;
    json_t *value;
    double add;
    json_object_foreach(f.object, key, value)
    {
        int32_t token = token_of(p, key);
        bool is_text = strspn(key, "-0123456789") < strlen(key);
        if (token == ENG_NO_TOKEN && !is_text)
            eng_field_refuse(&f, key, "is not a token id: ids are 0 to %d", eng_vocab_size(p->setup->vocab) - 1);
        if (json_is_false(value))
            add = -INFINITY;
        else if (!eng_field_number(&f, key, -100, 100, &add)) {
            if (json_is_null(value))
                eng_field_refuse(&f, key, "must be a number from -100 to 100");
            return;
        }
        if (is_text ? !add_text_bias(p, key, strlen(key), add) : !add_bias(p, token, add))
            return;
    }
}

/* llama-server's form: a list of [token id or text, number or false]. */
static void read_bias_list(struct eng_parse *p, json_t *list)
{
    json_t *pair;
    size_t i;
    json_array_foreach(list, i, pair)
    {
        json_t *what = json_array_get(pair, 0), *value = json_array_get(pair, 1);
        double add = json_is_false(value) ? -INFINITY : json_number_value(value);
        bool in_range = json_is_false(value) || (json_is_number(value) && add >= -100 && add <= 100);
        if (json_array_size(pair) != 2 || !in_range || !(is_id(p, what) || json_is_string(what))) {
            eng_field_refuse(&p->body, "logit_bias",
                             "must be an object of token ids, or a list of [token id from 0 to %d or text, number from "
                             "-100 to 100 or false]",
                             eng_vocab_size(p->setup->vocab) - 1);
            return;
        }
        if (json_is_string(what) ? !add_text_bias(p, json_string_value(what), json_string_length(what), add)
                                 : !add_bias(p, (int32_t)json_integer_value(what), add))
            return;
    }
}

static void read_bias(struct eng_parse *p)
{
    json_t *value = eng_field(&p->body, "logit_bias");
    size_t n = json_object_size(value) + json_array_size(value);
    if (n > ENG_API_MAX_BIASES)
        eng_field_refuse(&p->body, "logit_bias", "has %zu tokens; the limit is %d", n, ENG_API_MAX_BIASES);
    if (n && !eng_refused(p->why) && !(p->ask->lists.bias = kn_calloc(ENG_API_MAX_BIASES, sizeof(struct spec_bias))))
        eng_parse_no_memory(p);
    p->ask->sampling.bias = p->ask->lists.bias;
    if (json_is_array(value))
        read_bias_list(p, value);
    else
        read_bias_object(p);
}

/* ---- bad_words, allowed_token_ids, min_tokens -------------------------------------------------- */

/* Adds the word's tokens, at the start of a text and after a space, as two sequences. */
static bool add_word(struct eng_parse *p, const char *word, size_t n)
{
    struct eng_token_lists *l = &p->ask->lists;
    char text[WORD_BYTES + 1] = " ";
    memcpy(text + 1, word, n);
    for (int space = 0; space < 2; space++) {
        size_t from = l->ids.n;
        if (!add_text(p, text + 1 - space, n + (size_t)space, &l->ids))
            return false;
        if (l->ids.n > from)
            l->banned[p->ask->sampling.n_banned++].n = (int)(l->ids.n - from);
    }
    return true;
}

static void read_bad_words(struct eng_parse *p)
{
    struct spec_params *s = &p->ask->sampling;
    struct eng_token_lists *l = &p->ask->lists;
    json_t *list = eng_field_array(&p->body, "bad_words", WORDS), *item;
    size_t i;
    if (json_array_size(list) && !(l->banned = kn_calloc(2 * WORDS, sizeof *l->banned)))
        eng_parse_no_memory(p);
    json_array_foreach(list, i, item)
    {
        const char *word = json_string_value(item);
        size_t n = json_string_length(item), skip = word && *word == ' ' && n > 1;
        if (!word || n < 1 || n > WORD_BYTES)
            eng_field_refuse(&p->body, "bad_words", "must contain strings of 1 to %d bytes", WORD_BYTES);
        if (eng_refused(p->why) || !add_word(p, word + skip, n - skip))
            return;
    }
    const int32_t *at = l->ids.id;
    for (int k = 0; k < s->n_banned; k++) {
        l->banned[k].token = at;
        at += l->banned[k].n;
    }
    s->banned = l->banned;
}

static void read_allowed(struct eng_parse *p)
{
    struct eng_token_lists *l = &p->ask->lists;
    int n_vocab = eng_vocab_size(p->setup->vocab);
    json_t *list = eng_field_array(&p->body, "allowed_token_ids", (size_t)n_vocab), *item;
    size_t i;
    if (!list)
        return;
    if (!json_array_size(list))
        eng_field_refuse(&p->body, "allowed_token_ids", "is empty: no token could follow");
    else if (!(l->allowed = kn_calloc(spec_mask_words(n_vocab), sizeof *l->allowed)))
        eng_parse_no_memory(p);
    json_array_foreach(list, i, item)
    {
        if (!is_id(p, item))
            eng_field_refuse(&p->body, "allowed_token_ids", "must contain token ids from 0 to %d", n_vocab - 1);
        if (eng_refused(p->why))
            return;
        spec_mask_allow(l->allowed, (int32_t)json_integer_value(item));
    }
    p->ask->sampling.allowed = l->allowed;
}

/* The tokens that end an answer: the model's and the request's. */
static void read_min_tokens(struct eng_parse *p)
{
    struct eng_api_request *ask = p->ask;
    int n_vocab = eng_vocab_size(p->setup->vocab), count = ask->n_stop_token;
    int64_t n = 0;
    if (!eng_field_int(&p->body, "min_tokens", 0, INT32_MAX, &n) || !n)
        return;
    if (ask->n_predict >= 0 && n > ask->n_predict) {
        eng_field_refuse(&p->body, "min_tokens", "is more than the %d tokens that the answer may have", ask->n_predict);
        return;
    }
    for (int32_t t = 0; t < n_vocab; t++)
        count += eng_vocab_is_stop(p->setup->vocab, t);
    if (!(ask->lists.late = kn_calloc((size_t)count, sizeof *ask->lists.late))) {
        eng_parse_no_memory(p);
        return;
    }
    memcpy(ask->lists.late, ask->stop_token, (size_t)ask->n_stop_token * sizeof *ask->stop_token);
    count = ask->n_stop_token;
    for (int32_t t = 0; t < n_vocab; t++)
        if (eng_vocab_is_stop(p->setup->vocab, t))
            ask->lists.late[count++] = t;
    ask->min_tokens = (int)n;
    ask->sampling.late = ask->lists.late;
    ask->sampling.n_late = count;
}

/* ---- DRY --------------------------------------------------------------------------------------- */

static void read_breakers(struct eng_parse *p)
{
    struct spec_params *s = &p->ask->sampling;
    json_t *list = eng_field_array(&p->body, "dry_sequence_breakers", ENG_BREAKERS_MOST), *item;
    struct moe_string text[ENG_BREAKERS_MOST];
    size_t i;
    json_array_foreach(list, i, item)
    {
        text[i] = (struct moe_string){ json_string_value(item), json_string_length(item) };
        if (!text[i].n || text[i].n > ENG_BREAKER_BYTES)
            eng_field_refuse(&p->body, "dry_sequence_breakers", "must contain strings of 1 to %d bytes",
                             ENG_BREAKER_BYTES);
    }
    if (eng_refused(p->why) || s->dry_multiplier == 0)
        return;
    int error = eng_breakers_make(&p->ask->lists.breakers, p->setup->vocab, list ? text : p->setup->breaker,
                                  list ? (int)json_array_size(list) : p->setup->n_breaker);
    if (error == KN_ELIMIT)
        eng_field_refuse(&p->body, "dry_sequence_breakers", "need more than %d sets of tokens: give fewer or shorter",
                         ENG_BREAKER_SETS);
    else if (error)
        eng_parse_no_memory(p);
    s->breaker = p->ask->lists.breakers.list;
    s->n_breaker = p->ask->lists.breakers.n;
}

void eng_parse_token_lists(struct eng_parse *p)
{
    read_bias(p);
    read_bad_words(p);
    read_allowed(p);
    read_min_tokens(p);
    read_breakers(p);
}

void eng_token_lists_free(struct eng_token_lists *l)
{
    kn_free(l->bias);
    kn_free(l->banned);
    kn_free(l->allowed);
    kn_free(l->late);
    eng_ids_free(&l->ids);
    eng_breakers_free(&l->breakers);
}
