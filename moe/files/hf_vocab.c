/* moe/files/hf_vocab.c - converts tokenizer.json and related files to the vocabulary metadata of a GGUF file.
 *
 * Input: tokenizer.json (tokens, merges, pre-tokeniser) or tiktoken.model; tokenizer_config.json (roles of tokens, chat
 * template); chat_template.jinja (overrides that template); generation_config.json (end-of-turn tokens).  Output:
 * metadata under tokenizer.*, which engine/text/vocab.c reads and checks like that of a GGUF file.
 *
 * Two kinds are supported: byte-level BPE, and SentencePiece BPE over characters with a byte fallback.  For the latter
 * merges are replaced by scores, as in GGUF.  Two checks make that exact: merges are in the order of the ids of the
 * tokens that they make, and every two tokens that join to a third have a merge; so a score that falls with the id
 * gives the same result.  An unknown normalizer, post_processor or token property is refused and shown. */
#include "moe/files/hf_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY           "tokenizer.ggml."
#define FILE_MOST     ((size_t)256 << 20) /* the largest published file is near 30 MiB */
#define CONFIG_MOST   ((size_t)16 << 20)
#define VOCAB_MOST    (1 << 24)
#define TEMPLATE_MOST ((size_t)4 << 20)
#define STOP_MOST     64

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE }; /* numbers of enum eng_token_type */

struct loader {
    struct moe_folder *d;
    char path[4096];                         /* of tokenizer.json or tiktoken.model, for messages */
    json_t *tokenizer, *config, *generation; /* config and generation are NULL if their file is absent */
    const json_t *model, *vocab, *added;
    struct moe_string *token; /* [n] */
    int32_t *type;            /* [n] */
    size_t n;
    bool pieces;        /* SentencePiece BPE, else byte-level BPE */
    const char *cut_as; /* pre-tokeniser name, of tiktoken.model; or NULL */
    bool add_bos, add_eos;
};

static int corrupt(const struct loader *l, const char *what)
{
    return kn_fail(KN_ECORRUPT, "%s: %s: %s", l->path, kn_error_text(KN_ECORRUPT), what);
}

/* Refuses an unsupported setting and shows its JSON. */
static int unknown(const struct loader *l, const char *what, const json_t *seen)
{
    char *whole = json_dumps(seen, JSON_COMPACT | JSON_ENCODE_ANY), shown[300] = "";
    if (whole)
        moe_string_show((struct moe_string){ whole, strlen(whole) }, shown, sizeof shown);
    kn_heap_free(whole);
    return kn_fail(KN_EUNSUPPORTED, "%s: this %s is not supported: %s", l->path, what, shown);
}

static bool is(const json_t *v, const char *text) { return json_is_string(v) && !strcmp(json_string_value(v), text); }

static bool has_type(const json_t *v, const char *type) { return is(json_object_get(v, "type"), type); }

/* ---- tokens ------------------------------------------------------------------------------------- */

static bool is_id(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < VOCAB_MOST;
}

/* Sets l->n to the highest id plus 1.  Ids may have gaps, but not many. */
static int count_tokens(struct loader *l)
{
    size_t most = 0, n = json_object_size(l->vocab) + json_array_size(l->added);
    const char *text;
    json_t *id;
    json_object_foreach((json_t *)l->vocab, text, id)
    {
        if (!is_id(id))
            return corrupt(l, "a token's id in model.vocab is no valid number");
        most = (size_t)json_integer_value(id) > most ? (size_t)json_integer_value(id) : most;
    }
    for (size_t i = 0; i < json_array_size(l->added); i++) {
        id = json_object_get(json_array_get(l->added, i), "id");
        if (!is_id(id))
            return corrupt(l, "a token's id in added_tokens is no valid number");
        most = (size_t)json_integer_value(id) > most ? (size_t)json_integer_value(id) : most;
    }
    if (!n || most > 2 * n + 4096)
        return corrupt(l, "its token ids are far larger than its number of tokens");
    l->n = most + 1;
    l->token = kn_calloc(l->n, sizeof *l->token);
    l->type = kn_calloc(l->n, sizeof *l->type);
    return l->token && l->type ? 0 : kn_fail(KN_ENOMEM, "%s: no memory for %zu tokens", l->path, l->n);
}

static int put_token(struct loader *l, size_t id, const char *text, size_t n, int type)
{
    struct moe_string *s = &l->token[id];
    if (l->type[id] && (s->n != n || memcmp(s->data, text, n)))
        return corrupt(l, "two tokens have the same id");
    int err = l->type[id] ? 0 : moe_keep_string(l->d->f, text, n, s);
    l->type[id] = type;
    return err;
}

static bool is_byte(const char *s, size_t n) { return n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>'; }

static int read_vocab(struct loader *l)
{
    const char *text;
    size_t n;
    json_t *id;
    json_object_keylen_foreach((json_t *)l->vocab, text, n, id)
    {
        int type = l->pieces && is_byte(text, n) ? BYTE : NORMAL;
        int err = put_token(l, (size_t)json_integer_value(id), text, n, type);
        if (err)
            return err;
    }
    return 0;
}

/* Special tokens of gemma4 that are text of an answer, around its thoughts and calls; GGUF files have them as
 * user-defined tokens, too. */
static bool is_visible(const struct loader *l, const char *text)
{
    static const char *const visible[] = { "<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
                                           "<|tool_response>", "<tool_response|>", "<|\"|>" };
    for (size_t i = 0; !strcmp(l->d->family->arch, "gemma4") && i < sizeof visible / sizeof *visible; i++)
        if (!strcmp(text, visible[i]))
            return true;
    return false;
}

/* Added tokens: matched verbatim in the text, before the pre-tokeniser. */
static int read_added(struct loader *l)
{
    static const char *const refused[] = { "single_word", "lstrip", "rstrip" };
    const json_t *unk = json_object_get(l->model, "unk_token");
    for (size_t i = 0; i < json_array_size(l->added); i++) {
        const json_t *t = json_array_get(l->added, i), *text = json_object_get(t, "content");
        bool special = json_is_true(json_object_get(t, "special")) &&
                       !(json_is_string(text) && is_visible(l, json_string_value(text)));
        for (size_t k = 0; k < 3; k++)
            if (json_is_true(json_object_get(t, refused[k])))
                return unknown(l, "added token", t);
        if (l->pieces && !json_is_true(json_object_get(t, "special")) && json_is_true(json_object_get(t, "normalized")))
            return unknown(l, "added token", t);
        if (!json_string_length(text))
            return corrupt(l, "an added token has no content");
        bool is_unk = l->pieces && is(unk, json_string_value(text));
        int err = put_token(l, (size_t)json_integer_value(json_object_get(t, "id")), json_string_value(text),
                            json_string_length(text),
                            is_unk    ? UNKNOWN
                            : special ? CONTROL
                                      : USER);
        if (err)
            return err;
    }
    return 0;
}

static int fill_gaps(struct loader *l)
{
    for (size_t id = 0; id < l->n; id++) {
        char name[32];
        if (l->type[id])
            continue;
        int n = snprintf(name, sizeof name, "[PAD%zu]", id), err = put_token(l, id, name, (size_t)n, UNUSED);
        if (err)
            return err;
        l->type[id] = UNUSED;
    }
    return 0;
}

/* ---- merges ------------------------------------------------------------------------------------- */

/* A merge is "left right" or ["left", "right"]. */
static int merge_parts(const struct loader *l, const json_t *m, struct moe_string *left, struct moe_string *right)
{
    const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
    const char *text = json_string_value(m), *space = text ? strchr(text, ' ') : NULL;
    if (space) {
        size_t n = json_string_length(m), head = (size_t)(space - text);
        *left = (struct moe_string){ text, head };
        *right = (struct moe_string){ space + 1, n - head - 1 };
    } else if (json_is_string(a) && json_is_string(b) && json_array_size(m) == 2) {
        *left = (struct moe_string){ json_string_value(a), json_string_length(a) };
        *right = (struct moe_string){ json_string_value(b), json_string_length(b) };
    } else {
        return corrupt(l, "a merge is no pair of tokens");
    }
    return 0;
}

static int join(const struct loader *l, const struct moe_string *left, const struct moe_string *right,
                const char *between, struct moe_string *out)
{
    size_t gap = strlen(between), n = left->n + gap + right->n;
    char *s = moe_keep(l->d->f, n);
    if (!s)
        return KN_ENOMEM;
    memcpy(s, left->data, left->n);
    memcpy(s + left->n, between, gap);
    memcpy(s + left->n + gap, right->data, right->n);
    *out = (struct moe_string){ s, n };
    return 0;
}

static int put_merges(struct loader *l, const json_t *merges)
{
    size_t n = json_array_size(merges);
    struct moe_string *out = kn_calloc(n + 1, sizeof *out);
    int err = out ? 0 : kn_fail(KN_ENOMEM, "%s: no memory for %zu merges", l->path, n);
    for (size_t i = 0; i < n && !err; i++) {
        struct moe_string left, right;
        err = merge_parts(l, json_array_get(merges, i), &left, &right);
        if (!err)
            err = join(l, &left, &right, " ", &out[i]);
    }
    if (!err)
        moe_put_array(l->d, KEY "merges", MOE_STRING, out, n);
    kn_free(out);
    return err ? err : l->d->err;
}

#define TOKEN_MOST 1024 /* bytes of a token made by a merge */

/* The id of the normal token with this text; -1: no token has this text; -2: the token is not of type NORMAL. */
static json_int_t plain_id(const struct loader *l, const char *s, size_t n)
{
    const json_t *id = json_object_getn(l->vocab, s, n);
    if (!id)
        return -1;
    return l->type[json_integer_value(id)] == NORMAL ? json_integer_value(id) : -2;
}

/* Checks that merges are in the order of the ids of the tokens that they make, so that the best merge is the one with
 * the lowest id, and that no merge occurs twice (same token, split at the same byte).  *n: number of merges of normal
 * tokens into a normal token; only these can occur in text. */
static int check_order(const struct loader *l, const json_t *merges, size_t *n)
{
    json_int_t last = -1;
    uint8_t parted[TOKEN_MOST];
    *n = 0;
    for (size_t i = 0; i < json_array_size(merges); i++) {
        struct moe_string left, right;
        char made[TOKEN_MOST];
        int err = merge_parts(l, json_array_get(merges, i), &left, &right);
        if (err)
            return err;
        if (left.n + right.n > sizeof made || !left.n || !right.n)
            return corrupt(l, "a merge has an empty part, or makes a token of over 1024 bytes");
        memcpy(made, left.data, left.n);
        memcpy(made + left.n, right.data, right.n);
        const json_t *id = json_object_getn(l->vocab, made, left.n + right.n);
        if (!id)
            return corrupt(l, "the result of a merge is no token");
        if (json_integer_value(id) < last)
            return kn_fail(KN_EUNSUPPORTED,
                           "%s: its merges are not in the order of the tokens that they make, which "
                           "is not supported for SentencePiece",
                           l->path);
        if (json_integer_value(id) != last)
            memset(parted, 0, sizeof parted);
        last = json_integer_value(id);
        if (parted[left.n])
            return corrupt(l, "a merge occurs twice");
        parted[left.n] = 1;
        *n += l->type[last] == NORMAL && plain_id(l, left.data, left.n) >= 0 && plain_id(l, right.data, right.n) >= 0;
    }
    return 0;
}

static bool is_inside(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
} /* a byte of a UTF-8 character, not its first */

/* True for a symbol that can be merged in a text: a normal token, or a single character without a token. */
static bool is_symbol(const struct loader *l, const char *s, size_t n)
{
    size_t one = 1;
    json_int_t id = plain_id(l, s, n);
    while (one < n && is_inside(s[one]))
        one++;
    return id >= 0 || (id == -1 && one == n);
}

/* With scores any two neighbours that join to a token are merged.  So every way to split a normal token into two
 * symbols must be a merge: fails if the number of ways differs from n_merge, the result of check_order(). */
static int check_parts(const struct loader *l, size_t n_merge)
{
    size_t n = 0;
    for (size_t id = 0; id < l->n; id++) {
        const struct moe_string *t = &l->token[id];
        if (l->type[id] != NORMAL)
            continue;
        if (t->n > TOKEN_MOST)
            return kn_fail(KN_EUNSUPPORTED, "%s: a token of over %d bytes is not supported for SentencePiece", l->path,
                           TOKEN_MOST);
        for (size_t at = 1; at < t->n; at++)
            n += !is_inside(t->data[at]) && is_symbol(l, t->data, at) && is_symbol(l, t->data + at, t->n - at);
    }
    if (n == n_merge)
        return 0;
    return kn_fail(KN_EUNSUPPORTED,
                   "%s: %zu pairs of its tokens join to a token but are no merges, which is not "
                   "supported for SentencePiece: text would be tokenised differently",
                   l->path, n - n_merge);
}

static int put_scores(struct loader *l)
{
    float *score = kn_calloc(l->n, sizeof *score);
    if (!score)
        return kn_fail(KN_ENOMEM, "%s: no memory for %zu scores", l->path, l->n);
    for (size_t id = 0; id < l->n; id++)
        score[id] = l->type[id] == NORMAL ? -(float)id : 0;
    moe_put_array(l->d, KEY "scores", MOE_F32, score, l->n);
    kn_free(score);
    return l->d->err;
}

/* ---- normalizers -------------------------------------------------------------------------------- */

/* SentencePiece: a space becomes U+2581. */
static bool is_replace(const json_t *n)
{
    return has_type(n, "Replace") && is(json_object_get(json_object_get(n, "pattern"), "String"), " ") &&
           is(json_object_get(n, "content"), "\xe2\x96\x81");
}

/* The same, and one is put before every piece of text. */
static bool is_prepend_replace(const json_t *n)
{
    const json_t *list = json_object_get(n, "normalizers"), *a = json_array_get(list, 0);
    return has_type(n, "Sequence") && json_array_size(list) == 2 && has_type(a, "Prepend") &&
           is(json_object_get(a, "prepend"), "\xe2\x96\x81") && is_replace(json_array_get(list, 1));
}

/* A split at spaces, of which the normalizer leaves none. */
static bool is_split_at_spaces(const json_t *pre)
{
    return has_type(pre, "Split") && is(json_object_get(json_object_get(pre, "pattern"), "String"), " ");
}

static bool is_nothing(const json_t *n)
{
    return !n || json_is_null(n) || (has_type(n, "Sequence") && !json_array_size(json_object_get(n, "normalizers")));
}

static int read_pieces(struct loader *l)
{
    const json_t *normalizer = json_object_get(l->tokenizer, "normalizer");
    const json_t *pre = json_object_get(l->tokenizer, "pre_tokenizer");
    if (!json_is_true(json_object_get(l->model, "byte_fallback")))
        return corrupt(l, "its model does not set byte_fallback");
    bool prepends = is_prepend_replace(normalizer);
    if (!prepends && !is_replace(normalizer))
        return unknown(l, "normalizer", normalizer);
    if (pre && !json_is_null(pre) && !is_split_at_spaces(pre))
        return unknown(l, "pre_tokenizer", pre);
    moe_put_string(l->d, KEY "model", "llama", 5);
    moe_put_bool(l->d, KEY "add_space_prefix", prepends);
    size_t n_merge;
    int err = check_order(l, json_object_get(l->model, "merges"), &n_merge);
    if (!err)
        err = check_parts(l, n_merge);
    return err ? err : put_scores(l);
}

static int read_bytes(struct loader *l)
{
    const json_t *normalizer = json_object_get(l->tokenizer, "normalizer");
    bool nfc = has_type(normalizer, "NFC");
    if (!nfc && !is_nothing(normalizer))
        return unknown(l, "normalizer", normalizer);
    const char *pre = l->cut_as ? l->cut_as : moe_hf_pre(json_object_get(l->tokenizer, "pre_tokenizer"), l->path);
    if (!pre)
        return KN_EUNSUPPORTED;
    moe_put_string(l->d, KEY "model", "gpt2", 4);
    moe_put_string(l->d, KEY "pre", pre, strlen(pre));
    moe_put_bool(l->d, KEY "ignore_merges", json_is_true(json_object_get(l->model, "ignore_merges")));
    if (nfc)
        moe_put_string(l->d, KEY "normalizer", "nfc", 3);
    return put_merges(l, json_object_get(l->model, "merges"));
}

/* Reads the post_processor's template: it may put BOS before a text and EOS after it, one of them or neither. */
static int read_template(struct loader *l, const json_t *processor)
{
    const json_t *single = json_object_get(processor, "single");
    bool text = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        bool token = json_object_get(item, "SpecialToken") != NULL, *adds = text ? &l->add_eos : &l->add_bos;
        if ((token && *adds) || (!token && (text || !json_object_get(item, "Sequence"))))
            return unknown(l, "post_processor", processor);
        if (token)
            *adds = true;
        else
            text = true;
    }
    return text ? 0 : unknown(l, "post_processor", processor);
}

static int read_processor(struct loader *l, const json_t *p, int depth)
{
    const json_t *list = json_object_get(p, "processors");
    int err = 0;
    if (!p || json_is_null(p) || has_type(p, "ByteLevel"))
        return 0;
    if (has_type(p, "TemplateProcessing"))
        return read_template(l, p);
    if (!has_type(p, "Sequence") || depth)
        return unknown(l, "post_processor", p);
    for (size_t i = 0; i < json_array_size(list) && !err; i++)
        err = read_processor(l, json_array_get(list, i), depth + 1);
    return err;
}

/* ---- roles -------------------------------------------------------------------------------------- */

/* The text of the token that tokenizer_config.json gives under key, as a string or as an object with "content". */
static const json_t *role_text(const struct loader *l, const char *key)
{
    const json_t *v = json_object_get(l->config, key);
    return json_is_object(v) ? json_object_get(v, "content") : v;
}

static int64_t find_id(const struct loader *l, const json_t *text)
{
    for (size_t i = 0; json_is_string(text) && i < json_array_size(l->added); i++) {
        const json_t *t = json_array_get(l->added, i), *content = json_object_get(t, "content");
        if (json_equal(content, text))
            return json_integer_value(json_object_get(t, "id"));
    }
    const json_t *id = NULL;
    if (json_is_string(text))
        id = json_object_getn(l->vocab, json_string_value(text), json_string_length(text));
    return id ? json_integer_value(id) : -1;
}

/* The i-th id if v is a list of ids, or the one id if v is a number and i is 0; -1 after the last. */
static int64_t nth_id(const json_t *v, size_t i)
{
    const json_t *id = json_is_array(v) ? json_array_get(v, i) : i ? NULL : v;
    return is_id(id) ? json_integer_value(id) : -1;
}

static void put_role(struct loader *l, const char *text_key, const char *id_key, const char *key, int64_t *out)
{
    int64_t id = find_id(l, role_text(l, text_key));
    if (id < 0)
        id = nth_id(json_object_get(l->d->config, id_key), 0);
    if (id >= 0 && (size_t)id < l->n)
        moe_put_u32(l->d, key, (uint32_t)id);
    *out = id;
}

/* End-of-turn tokens: from generation_config.json, or else from config.json. */
static void put_stops(struct loader *l)
{
    const json_t *said = json_object_get(l->generation, "eos_token_id");
    int32_t stop[STOP_MOST];
    size_t n = 0;
    if (!said || json_is_null(said))
        said = json_object_get(l->d->config, "eos_token_id");
    for (int64_t id; n < STOP_MOST && (id = nth_id(said, n)) >= 0; n++)
        stop[n] = (int32_t)id;
    if (n)
        moe_put_array(l->d, KEY "stop_token_ids", MOE_I32, stop, n);
}

/* The recommended sampling, as GGUF has it.  do_sample and max_new_tokens are not read: vLLM ignores the first, and
 * the length of an answer is the request's. */
static void put_sampling(struct loader *l)
{
    static const struct {
        const char *name, *key;
    } numbers[] = {
        { "temperature", "general.sampling.temp" },
        { "top_k", "general.sampling.top_k" },
        { "top_p", "general.sampling.top_p" },
        { "min_p", "general.sampling.min_p" },
        { "repetition_penalty", "general.sampling.penalty_repeat" },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *x = json_object_get(l->generation, numbers[i].name);
        if (json_is_number(x))
            moe_put_f32(l->d, numbers[i].key, json_number_value(x));
    }
}

static void put_roles(struct loader *l)
{
    const json_t *bos = json_object_get(l->config, "add_bos_token"), *eos = json_object_get(l->config, "add_eos_token");
    int64_t bos_id, eos_id, other;
    put_role(l, "bos_token", "bos_token_id", KEY "bos_token_id", &bos_id);
    put_role(l, "eos_token", "eos_token_id", KEY "eos_token_id", &eos_id);
    put_role(l, "pad_token", "pad_token_id", KEY "padding_token_id", &other);
    if (l->pieces)
        put_role(l, "unk_token", "unk_token_id", KEY "unknown_token_id", &other);
    if (json_is_boolean(bos))
        l->add_bos = json_is_true(bos);
    if (json_is_boolean(eos))
        l->add_eos = json_is_true(eos);
    moe_put_bool(l->d, KEY "add_bos_token", l->add_bos && bos_id >= 0);
    moe_put_bool(l->d, KEY "add_eos_token", l->add_eos && eos_id >= 0);
    put_stops(l);
}

/* ---- the chat template -------------------------------------------------------------------------- */

static int put_template(struct loader *l)
{
    const json_t *in_config = json_object_get(l->config, "chat_template");
    char *text;
    size_t n;
    int err = moe_folder_text(l->d, "chat_template.jinja", TEMPLATE_MOST, &text, &n);
    if (err)
        return err;
    for (size_t i = 0; i < json_array_size(in_config); i++) /* several templates, by name */
        if (is(json_object_get(json_array_get(in_config, i), "name"), "default")) {
            in_config = json_object_get(json_array_get(in_config, i), "template");
            break;
        }
    if (text)
        moe_put_string(l->d, "tokenizer.chat_template", text, n);
    else if (json_is_string(in_config))
        moe_put_string(l->d, "tokenizer.chat_template", json_string_value(in_config), json_string_length(in_config));
    kn_free(text);
    return l->d->err;
}

/* ---- all of it ---------------------------------------------------------------------------------- */

/* Refuses BPE settings that would change the result of merges. */
static int check_model(const struct loader *l)
{
    static const char *const empty[] = { "dropout", "continuing_subword_prefix", "end_of_word_suffix" };
    if (!has_type(l->model, "BPE"))
        return kn_fail(KN_EUNSUPPORTED, "%s: its model is not BPE; only BPE is supported", l->path);
    if (!json_is_object(l->vocab) || !json_is_array(json_object_get(l->model, "merges")))
        return corrupt(l, "its model has no vocab and merges");
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        const json_t *v = json_object_get(l->model, empty[i]);
        if (v && !json_is_null(v) && !is(v, ""))
            return unknown(l, empty[i], v);
    }
    return 0;
}

static int read_files(struct loader *l)
{
    static const char name[] = "tokenizer.json";
    int err = moe_folder_path(l->d, name, l->path, sizeof l->path);
    if (!err)
        err = moe_folder_json(l->d, name, FILE_MOST, &l->tokenizer);
    if (!err)
        err = moe_folder_json(l->d, "tokenizer_config.json", CONFIG_MOST, &l->config);
    if (!err && !l->tokenizer) {
        err = moe_hf_tiktoken(l->d, l->config, &l->tokenizer);
        l->cut_as = json_string_value(json_object_get(l->tokenizer, "cut_as"));
        if (l->tokenizer)
            err = moe_folder_path(l->d, MOE_HF_TIKTOKEN, l->path, sizeof l->path);
    }
    if (!err && !l->tokenizer)
        err = kn_fail(KN_ENOENT,
                      "%s: no such file; the transformers package writes it: "
                      "AutoTokenizer.from_pretrained(..).save_pretrained(..)",
                      l->path);
    return err ? err : moe_folder_json(l->d, "generation_config.json", CONFIG_MOST, &l->generation);
}

static int load(struct loader *l)
{
    int err = read_files(l);
    if (err)
        return err;
    l->model = json_object_get(l->tokenizer, "model");
    l->vocab = json_object_get(l->model, "vocab");
    l->added = json_object_get(l->tokenizer, "added_tokens");
    l->pieces = json_is_true(json_object_get(l->model, "byte_fallback"));
    if ((err = check_model(l)) || (err = count_tokens(l)) || (err = read_vocab(l)) || (err = read_added(l)) ||
        (err = fill_gaps(l)) || (err = read_processor(l, json_object_get(l->tokenizer, "post_processor"), 0)))
        return err;
    moe_put_array(l->d, KEY "tokens", MOE_STRING, l->token, l->n);
    moe_put_array(l->d, KEY "token_type", MOE_I32, l->type, l->n);
    err = l->pieces ? read_pieces(l) : read_bytes(l);
    if (err)
        return err;
    put_roles(l);
    put_sampling(l);
    return l->d->err ? l->d->err : put_template(l);
}

int moe_hf_vocab(struct moe_folder *d)
{
    struct loader l = { .d = d };
    int err = load(&l);
    json_decref(l.tokenizer);
    json_decref(l.config);
    json_decref(l.generation);
    kn_free(l.token);
    kn_free(l.type);
    return err;
}
