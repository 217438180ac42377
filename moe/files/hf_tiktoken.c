/* moe/files/hf_tiktoken.c - converts tiktoken.model to the content of a tokenizer.json.
 *
 * Input: tiktoken.model, in which a line has a token's bytes in base64 and its rank, which is its id; and the special
 * tokens of tokenizer_config.json.  Output: the JSON of a byte-level BPE.  Its merges are all pairs of tokens that join
 * to a third token, in the order of that token's rank.  tiktoken picks the pair with the lowest rank of the result, the
 * leftmost of equals; no text was found on which this differs (evals/tokenizer/compare_tiktoken.py searches).
 *
 * The pre-tokeniser is code published beside the file; one is supported, Kimi's. */
#include "moe/files/hf_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MOST   ((size_t)64 << 20) /* published files have about 3 MiB */
#define TOKEN_MOST  1024               /* bytes; published: 128 */
#define MERGES_MOST 64                 /* merges per token, on average; published: 2 */
#define RESERVED    256                /* ids behind the ranks, for special tokens */

static const char known_class[] = "tokenization_kimi.TikTokenTokenizer";

struct reader {
    const struct moe_folder *d;
    json_t *vocab, *merges; /* object: token spelling to rank; array of "left right" */
    char letter[256][3];    /* spelling of each byte in byte-level BPE */
    size_t n, n_merge;      /* number of tokens, with ranks 0 .. n - 1; number of merges */
};

static int fail(const struct reader *r, int code, size_t line, const char *what)
{
    return kn_fail(code, "%s: %s: %s: line %zu: %s", r->d->f->name, kn_error_text(code), MOE_HF_TIKTOKEN, line, what);
}

static int digit_of(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Decodes padded base64.  Returns the number of bytes; 0: invalid, or longer than TOKEN_MOST. */
static size_t from_base64(const char *s, size_t n, uint8_t out[TOKEN_MOST])
{
    size_t n_out = 0;
    uint32_t bits = 0;
    size_t pad = n >= 2 && s[n - 1] == '=' ? 1u + (s[n - 2] == '=') : 0;
    if (!n || n % 4 || n / 4 * 3 - pad > TOKEN_MOST)
        return 0;
    for (size_t i = 0; i < n; i++) {
        int x = i < n - pad ? digit_of(s[i]) : 0;
        if (x < 0)
            return 0;
        bits = bits << 6 | (uint32_t)x;
        for (int k = 16; i % 4 == 3 && k >= 0; k -= 8)
            if (n_out < n / 4 * 3 - pad)
                out[n_out++] = (uint8_t)(bits >> k);
    }
    return n_out;
}

static int read_line(struct reader *r, const char *line, size_t n, size_t number)
{
    uint8_t token[TOKEN_MOST];
    char spelled[2 * TOKEN_MOST + 1];
    const char *space = memchr(line, ' ', n);
    size_t n_token = space ? from_base64(line, (size_t)(space - line), token) : 0, at = 0;
    char *end = NULL;
    unsigned long rank = space ? strtoul(space + 1, &end, 10) : 0;
    if (!n_token || end == space + 1 || end != line + n)
        return fail(r, KN_ECORRUPT, number, "expected a token of at most 1024 bytes in base64, and its rank");
    if (rank != r->n)
        return fail(r, KN_EUNSUPPORTED, number, "ranks must count from 0 without gaps");
    for (size_t i = 0; i < n_token; i++)
        at += (size_t)sprintf(spelled + at, "%s", r->letter[token[i]]);
    if (json_object_getn(r->vocab, spelled, at))
        return fail(r, KN_ECORRUPT, number, "the token occurs twice");
    r->n++;
    return json_object_setn_new(r->vocab, spelled, at, json_integer((json_int_t)rank))
               ? kn_fail(KN_ENOMEM, "%s: no memory for its tokens", MOE_HF_TIKTOKEN)
               : 0;
}

/* Lines end with a newline, which the last one may lack. */
static int read_lines(struct reader *r, const char *text, size_t n)
{
    size_t number = 1;
    for (size_t at = 0; at < n; number++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - (text + at)) : n - at;
        int err = len ? read_line(r, text + at, len, number) : 0;
        if (err)
            return err;
        at += len + 1;
    }
    for (int b = 0; b < 256; b++)
        if (!json_object_get(r->vocab, r->letter[b]))
            return fail(r, KN_ECORRUPT, number, "a byte has no token");
    return 0;
}

/* Adds all pairs of tokens that join to this token, the shortest left part first. */
static int add_merges(struct reader *r, const char *token, size_t n)
{
    char pair[2 * TOKEN_MOST + 2];
    for (size_t at = 1; at < n; at++) {
        if (((unsigned char)token[at] & 0xc0) == 0x80 || !json_object_getn(r->vocab, token, at) ||
            !json_object_getn(r->vocab, token + at, n - at))
            continue;
        memcpy(pair, token, at);
        pair[at] = ' ';
        memcpy(pair + at + 1, token + at, n - at);
        if (++r->n_merge > MERGES_MOST * r->n)
            return kn_fail(KN_ELIMIT, "%s: %s: too many pairs of tokens join to another token", r->d->f->name,
                           MOE_HF_TIKTOKEN);
        if (json_array_append_new(r->merges, json_stringn(pair, n + 1)))
            return kn_fail(KN_ENOMEM, "%s: no memory for merges", MOE_HF_TIKTOKEN);
    }
    return 0;
}

/* Adds the merges of all tokens in the order of ranks, the order in which they were inserted into the JSON object. */
static int read_merges(struct reader *r)
{
    const char *token;
    size_t n;
    json_t *rank;
    json_object_keylen_foreach(r->vocab, token, n, rank)
    {
        int err = add_merges(r, token, n);
        if (err)
            return err;
    }
    return 0;
}

/* Special tokens by id.  Ids without a name get the reserved name that the original tokeniser gives them. */
static json_t *added_tokens(const struct reader *r, const json_t *config)
{
    const json_t *said = json_object_get(config, "added_tokens_decoder");
    json_t *out = json_array();
    for (size_t id = r->n; id < r->n + RESERVED; id++) {
        char number[24], name[48];
        snprintf(number, sizeof number, "%zu", id);
        snprintf(name, sizeof name, "<|reserved_token_%zu|>", id);
        const json_t *t = json_object_get(said, number);
        const char *content = json_string_value(json_object_get(t, "content"));
        json_t *token = json_pack("{s:I,s:s,s:b}", "id", (json_int_t)id, "content", content ? content : name, "special",
                                  !json_is_false(json_object_get(t, "special")));
        if (json_array_append_new(out, token)) { /* of a token that is NULL, too */
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static int check_class(const struct reader *r, const json_t *config)
{
    const json_t *map = json_object_get(json_object_get(config, "auto_map"), "AutoTokenizer");
    const json_t *name = json_is_array(map) ? json_array_get(map, 0) : map;
    char shown[128] = "";
    if (json_is_string(name) && !strcmp(json_string_value(name), known_class))
        return 0;
    if (json_is_string(name))
        moe_string_show((struct moe_string){ json_string_value(name), json_string_length(name) }, shown, sizeof shown);
    return kn_fail(KN_EUNSUPPORTED,
                   "%s: %s needs a Python tokenizer class, which is %s here (auto_map in "
                   "tokenizer_config.json is \"%s\"); %s is supported: put a tokenizer.json beside it",
                   r->d->f->name, MOE_HF_TIKTOKEN, *shown ? "another one" : "not named", shown, known_class);
}

int moe_hf_tiktoken(const struct moe_folder *d, const json_t *config, json_t **out)
{
    struct reader r = { .d = d };
    char *text;
    size_t n = 0;
    int err = moe_folder_text(d, MOE_HF_TIKTOKEN, FILE_MOST, &text, &n);
    *out = NULL;
    if (err || !text)
        return err;
    for (int b = 0; b < 256; b++)
        moe_byte_letter(b, r.letter[b]);
    r.vocab = json_object();
    r.merges = json_array();
    err = r.vocab && r.merges ? check_class(&r, config)
                              : kn_fail(KN_ENOMEM, "%s: no memory to read it", MOE_HF_TIKTOKEN);
    if (!err && !(err = read_lines(&r, text, n)) && !(err = read_merges(&r))) {
        *out = json_pack("{s:{s:s,s:O,s:O,s:b},s:o,s:s}", "model", "type", "BPE", "vocab", r.vocab, "merges", r.merges,
                         "ignore_merges", 1, "added_tokens", added_tokens(&r, config), "cut_as", "kimi-k2");
        err = *out ? 0 : kn_fail(KN_ENOMEM, "%s: no memory to read it", MOE_HF_TIKTOKEN);
    }
    json_decref(r.vocab);
    json_decref(r.merges);
    kn_free(text);
    return err;
}
