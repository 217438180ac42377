/* engine/text/vocab.c - loads a vocabulary from a model file's metadata.
 *
 * In: the values under tokenizer.ggml.*.  Out: an immutable struct eng_vocab.  All values are
 * checked here, once: counts against each other, ids against the vocabulary, texts for UTF-8 and
 * length, merges against the tokens they name.  So the tokenizer needs no checks and cannot read
 * outside its tables.  Errors name file, field and reason.
 *
 * Order: kind; tokens with their types; end-of-turn tokens by name; texts; merges or scores; the
 * tokens with a role (BOS, EOS ...); the table of special tokens. */
#include "engine/base/base.h"
#include "engine/text/internal.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_VOCAB = 1 << 24,    /* the largest published is under 2^19 */
    MAX_TOKEN_BYTES = 4096, /* the longest published is under 2^10 */
};

#define KEY "tokenizer.ggml."

struct loader {
    const struct moe_file *file;
    const char *path;
    struct eng_vocab *v;
    const struct moe_string *token; /* [n_vocab] as the file spells them */
    struct eng_words names;         /* hash table over token[] */
    struct eng_letters letters;
    bool has_merges; /* of a vocabulary of pieces: merges in place of scores */
};

static int no_memory(const struct loader *l) { return kn_fail(KN_ENOMEM, "%s: no memory for the vocabulary", l->path); }

/* Finds a required array with at least n items. */
static int find_array(const struct loader *l, const char *key, size_t n, const struct moe_value **out)
{
    const struct moe_value *value = moe_file_find(l->file, key);

    if (!value)
        return kn_fail(KN_ECORRUPT, "%s: %s: missing", l->path, key);
    if (value->type != MOE_ARRAY)
        return kn_fail(KN_ECORRUPT, "%s: %s: not an array", l->path, key);
    if (value->n < n)
        return kn_fail(KN_ECORRUPT, "%s: %s: %zu entries for %zu tokens", l->path, key, value->n, n);
    *out = value;
    return 0;
}

static bool is_integer(enum moe_type type) { return type <= MOE_I32 || type == MOE_U64 || type == MOE_I64; }

static int load_kind(struct loader *l)
{
    struct moe_string s;
    const int found = moe_file_string(l->file, KEY "model", &s);

    if (found < 0)
        return found;
    if (!found)
        return kn_fail(KN_ECORRUPT, "%s: " KEY "model: missing", l->path);
    if (moe_string_is(s, "gpt2")) {
        l->v->kind = ENG_VOCAB_BYTES;
    } else if (moe_string_is(s, "llama")) {
        l->v->kind = ENG_VOCAB_PIECES;
    } else if (moe_string_is(s, "gemma4")) {
        l->v->kind = ENG_VOCAB_PIECES;
        l->has_merges = true;
    } else {
        return kn_fail(KN_EUNSUPPORTED,
                       "%s: " KEY "model: tokenizer '%.*s' is not supported; gpt2 (byte-level BPE) and "
                       "llama and gemma4 (SentencePiece's BPE) are",
                       l->path, (int)(s.n < 64 ? s.n : 64), s.data);
    }
    return 0;
}

static bool is_utf8(struct moe_string s)
{
    bool cut;
    int bad;

    for (size_t i = 0, len; i < s.n; i += len) {
        len = (size_t)eng_utf8_next(s.data + i, s.n - i, &bad, &cut);
        if (!len)
            return false;
    }
    return true;
}

/* Checks one token's text, and adds it to l->names to find duplicates; only a token of type "unused" may have an empty
 * text. */
static int check_token(struct loader *l, int32_t id)
{
    const struct moe_string s = l->token[id];

    if (!s.n && l->v->type[id] != ENG_TOKEN_UNUSED)
        return kn_fail(KN_ECORRUPT, "%s: " KEY "tokens: token %d is empty", l->path, id);
    if (s.n > MAX_TOKEN_BYTES)
        return kn_fail(KN_ECORRUPT, "%s: " KEY "tokens: token %d has %zu bytes, more than %d", l->path, id, s.n,
                       MAX_TOKEN_BYTES);
    if (!is_utf8(s))
        return kn_fail(KN_ECORRUPT, "%s: " KEY "tokens: token %d is not UTF-8", l->path, id);
    if (s.n && eng_words_add(&l->names, id) != ENG_NO_TOKEN)
        return kn_fail(KN_ECORRUPT, "%s: " KEY "tokens: token %d is a duplicate", l->path, id);
    return 0;
}

static int load_tokens(struct loader *l)
{
    const struct moe_value *tokens, *types = NULL;
    struct eng_vocab *v = l->v;
    int err;

    err = find_array(l, KEY "tokens", 1, &tokens);
    if (err)
        return err;
    if (tokens->item != MOE_STRING)
        return kn_fail(KN_ECORRUPT, "%s: " KEY "tokens: not an array of strings", l->path);
    if (tokens->n > MAX_VOCAB)
        return kn_fail(KN_ELIMIT, "%s: " KEY "tokens: %zu tokens, more than %d", l->path, tokens->n, MAX_VOCAB);
    v->n_vocab = (int)tokens->n;
    l->token = tokens->data;
    if (moe_file_find(l->file, KEY "token_type")) {
        err = find_array(l, KEY "token_type", tokens->n, &types);
        if (err)
            return err;
        if (!is_integer(types->item))
            return kn_fail(KN_ECORRUPT, "%s: " KEY "token_type: not an array of integers", l->path);
    }
    v->type = kn_alloc(tokens->n);
    v->stop = kn_calloc(tokens->n, sizeof *v->stop);
    if (!v->type || !v->stop)
        return no_memory(l);
    err = eng_words_open(&l->names, l->token, tokens->n);
    for (int32_t id = 0; id < v->n_vocab && !err; id++) {
        const int64_t type = types ? moe_value_int(types, (size_t)id) : ENG_TOKEN_NORMAL;

        if (type < 0 || type > ENG_TOKEN_BYTE)
            return kn_fail(KN_ECORRUPT, "%s: " KEY "token_type: token %d has type %lld", l->path, id, (long long)type);
        v->type[id] = (uint8_t)(type ? type : ENG_TOKEN_NORMAL); /* 0: unspecified */
        err = check_token(l, id);
    }
    return err;
}

/* End-of-turn tokens that files often do not list as eot or eom.  A name that is `sure` does not occur in
 * plain text by chance: the token is a stop token whatever its type is, and a normal type becomes control.
 * A name that is not `sure` (`</s>` is also HTML) is a stop token only if its type is not normal. */
static const struct {
    const char *name;
    bool sure;
} stop_names[] = {
    { "<|im_end|>", true },
    { "<|eot_id|>", true },
    { "<|eom_id|>", true },
    { "<|end|>", true },
    { "<|endoftext|>", true },
    { "<|end_of_text|>", true },
    { "<|return|>", true },
    { "<|call|>", true },
    { "<|EOT|>", true },
    { "<end_of_turn>", true },
    { "<turn|>", true },
    { "<|tool_response>", true }, /* Gemma 4 writes it behind its calls */
    { "<end_of_utterance>", true },
    { "<\xEF\xBD\x9C"
      "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
      true },
    { "</s>", false },
    { "<EOT>", false },
    { "[EOT]", false },
    { "[EOS]", false },
    { "<eos>", false },
};

static int32_t find_name(const struct loader *l, const char *name)
{
    return eng_words_find(&l->names, name, strlen(name));
}

static void load_stops(struct loader *l)
{
    struct eng_vocab *v = l->v;
    /* In a vocabulary with <|return|>, <|return|> ends a turn and <|end|> only ends a message of the turn. */
    const int32_t not_a_stop = find_name(l, "<|return|>") < 0 ? ENG_NO_TOKEN : find_name(l, "<|end|>");

    for (size_t i = 0; i < sizeof stop_names / sizeof *stop_names; i++) {
        const int32_t id = find_name(l, stop_names[i].name);

        if (id == ENG_NO_TOKEN)
            continue;
        if (v->type[id] == ENG_TOKEN_NORMAL && !stop_names[i].sure)
            continue;
        if (v->type[id] == ENG_TOKEN_NORMAL)
            v->type[id] = ENG_TOKEN_CONTROL;
        v->stop[id] = id != not_a_stop;
    }
}

static int load_text(struct loader *l, int32_t id, char *out, size_t *n)
{
    const struct moe_string s = l->token[id];
    const bool literal = l->v->type[id] == ENG_TOKEN_CONTROL || l->v->type[id] == ENG_TOKEN_UNKNOWN;

    if (l->v->kind == ENG_VOCAB_BYTES && !literal && l->v->type[id] != ENG_TOKEN_USER) {
        *n = eng_letters_to_bytes(&l->letters, s, out);
    } else if (l->v->kind == ENG_VOCAB_PIECES && l->v->type[id] == ENG_TOKEN_BYTE) {
        const int byte = eng_byte_from_name(s);

        if (byte < 0)
            return kn_fail(KN_ECORRUPT, "%s: " KEY "tokens: byte token %d is not <0x00> to <0xFF>", l->path, id);
        l->v->byte_id[byte] = id;
        *out = (char)byte;
        *n = 1;
    } else if (l->v->kind == ENG_VOCAB_PIECES && !literal) {
        *n = eng_spaces_from_marks(s, out);
    } else {
        memcpy(out, s.data, s.n);
        *n = s.n;
    }
    return 0;
}

static int load_texts(struct loader *l)
{
    struct eng_vocab *v = l->v;
    const size_t n = (size_t)v->n_vocab;
    size_t total = 0, used = 0;
    int err;

    for (size_t i = 0; i < n; i++)
        if (!kn_add(total, l->token[i].n, &total))
            return no_memory(l);
    v->bytes = kn_alloc(total + 1);
    v->text = kn_calloc(n, sizeof *v->text);
    if (!v->bytes || !v->text)
        return no_memory(l);
    for (int b = 0; b < 256; b++)
        v->byte_id[b] = ENG_NO_TOKEN;
    for (int32_t id = 0; id < v->n_vocab; id++) {
        size_t len = 0;

        err = load_text(l, id, v->bytes + used, &len);
        if (err)
            return err;
        v->text[id] = (struct moe_string){ .data = v->bytes + used, .n = len };
        used += len;
        if (len > v->max_bytes)
            v->max_bytes = len;
    }
    err = eng_words_open(&v->words, v->text, n);
    for (int32_t id = 0; id < v->n_vocab && !err; id++)
        if (v->type[id] == ENG_TOKEN_NORMAL)
            eng_words_add(&v->words, id);
    if (err || v->kind == ENG_VOCAB_PIECES)
        return err;
    for (int b = 0; b < 256; b++) {
        const int32_t id = find_name(l, l->letters.of_byte[b]);

        if (id != ENG_NO_TOKEN && v->type[id] == ENG_TOKEN_NORMAL)
            v->byte_id[b] = id;
    }
    return 0;
}

/* A merge is "left right": left, right and their concatenation must be tokens. */
static int find_merge(const struct loader *l, uint32_t rank, struct moe_string s, struct eng_pair *out)
{
    char joint[MAX_TOKEN_BYTES];
    const char *space = s.n > 2 ? memchr(s.data + 1, ' ', s.n - 2) : NULL;
    struct eng_pair pair = { .rank = rank, .id = ENG_NO_TOKEN };

    if (space && s.n - 1 <= sizeof joint) {
        const size_t n_left = (size_t)(space - s.data), n_right = s.n - n_left - 1;

        memcpy(joint, s.data, n_left);
        memcpy(joint + n_left, space + 1, n_right);
        pair.left = eng_words_find(&l->names, s.data, n_left);
        pair.right = eng_words_find(&l->names, space + 1, n_right);
        pair.id = eng_words_find(&l->names, joint, n_left + n_right);
    }
    if (pair.id == ENG_NO_TOKEN || pair.left == ENG_NO_TOKEN || pair.right == ENG_NO_TOKEN)
        return kn_fail(KN_ECORRUPT,
                       "%s: " KEY "merges: merge %u, '%.*s', does not join two tokens "
                       "into a third",
                       l->path, rank, (int)(s.n < 64 ? s.n : 64), s.data);
    *out = pair;
    return 0;
}

static int load_merge(struct loader *l, uint32_t rank, struct moe_string s)
{
    struct eng_pair pair;
    int err = find_merge(l, rank, s, &pair);
    if (!err)
        eng_pairs_add(&l->v->pairs, pair);
    return err;
}

/* Loads whole_words from the key ignore_merges (if absent, the pre-tokeniser's value) and compose from the
 * key normalizer. */
static int load_habits(struct loader *l)
{
    struct moe_string normalizer = { .data = "", .n = 0 };
    int found;

    l->v->whole_words = eng_pre_takes_whole_words(l->v->pre);
    if ((found = moe_file_bool(l->file, KEY "ignore_merges", &l->v->whole_words)) < 0 ||
        (found = moe_file_string(l->file, KEY "normalizer", &normalizer)) < 0)
        return found;
    l->v->compose = moe_string_is(normalizer, "nfc");
    if (normalizer.n && !l->v->compose)
        return kn_fail(KN_EUNSUPPORTED, "%s: " KEY "normalizer: '%.*s' is not supported", l->path,
                       (int)(normalizer.n < 64 ? normalizer.n : 64), normalizer.data);
    return 0;
}

static int load_merges(struct loader *l)
{
    struct moe_string pre = { .data = "default", .n = 7 };
    const struct moe_value *merges;
    int err;

    err = moe_file_string(l->file, KEY "pre", &pre);
    if (err >= 0)
        err = eng_pre_open(&l->v->pre, pre, l->path);
    if (!err)
        err = load_habits(l);
    if (!err)
        err = find_array(l, KEY "merges", 0, &merges);
    if (err)
        return err;
    if (merges->item != MOE_STRING)
        return kn_fail(KN_ECORRUPT, "%s: " KEY "merges: not an array of strings", l->path);
    if (merges->n > 4 * (size_t)MAX_VOCAB)
        return kn_fail(KN_ELIMIT, "%s: " KEY "merges: %zu merges are too many", l->path, merges->n);
    err = eng_pairs_open(&l->v->pairs, merges->n);
    for (size_t i = 0; i < merges->n && !err; i++)
        err = load_merge(l, (uint32_t)i, ((const struct moe_string *)merges->data)[i]);
    return err;
}

static bool is_normal(const struct loader *l, int32_t id)
{
    return id != ENG_NO_TOKEN && l->v->type[id] == ENG_TOKEN_NORMAL;
}

static size_t char_bytes(struct moe_string s)
{
    bool cut;
    int code;
    return (size_t)eng_utf8_next(s.data, s.n, &code, &cut);
}

/* The number of ways to split a token in two symbols that can be merged: normal tokens, or characters without one. */
static size_t count_splits(const struct loader *l, struct moe_string s)
{
    size_t n = 0;
    for (size_t at = char_bytes(s); at < s.n; at += char_bytes((struct moe_string){ s.data + at, s.n - at })) {
        const struct moe_string part[2] = { { s.data, at }, { s.data + at, s.n - at } };
        int n_symbol = 0;
        for (int i = 0; i < 2; i++) {
            const int32_t id = eng_words_find(&l->names, part[i].data, part[i].n);
            n_symbol += is_normal(l, id) || (id == ENG_NO_TOKEN && char_bytes(part[i]) == part[i].n);
        }
        n += n_symbol == 2;
    }
    return n;
}

/* gemma4: merges in place of scores.  The best merge is the first one listed; if merges are in the order of the tokens
 * that they make, it is the one with the lowest id, so the score is -id.  With scores any two neighbours that join to a
 * token are merged; so every way to split a normal token must be a merge. */
static int load_scores_of_merges(struct loader *l)
{
    struct eng_vocab *v = l->v;
    const struct moe_value *merges;
    size_t n_merge = 0, n_split = 0;
    int32_t last = -1;
    int err = find_array(l, KEY "merges", 0, &merges);
    if (err)
        return err;
    if (merges->item != MOE_STRING || merges->n > 4 * (size_t)MAX_VOCAB)
        return kn_fail(KN_ECORRUPT, "%s: " KEY "merges: not an array of strings, or too long", l->path);
    if (!(v->score = kn_calloc((size_t)v->n_vocab, sizeof *v->score)))
        return no_memory(l);
    for (size_t i = 0; i < merges->n; i++) {
        struct eng_pair pair;
        if ((err = find_merge(l, (uint32_t)i, ((const struct moe_string *)merges->data)[i], &pair)))
            return err;
        if (pair.id < last)
            return kn_fail(KN_EUNSUPPORTED,
                           "%s: " KEY "merges: merge %zu is not in the order of the tokens that merges make, which "
                           "is not supported for SentencePiece",
                           l->path, i);
        last = pair.id;
        n_merge += is_normal(l, pair.id) && is_normal(l, pair.left) && is_normal(l, pair.right);
    }
    for (int32_t id = 0; id < v->n_vocab; id++) {
        v->score[id] = v->type[id] == ENG_TOKEN_NORMAL ? -(float)id : 0;
        n_split += v->type[id] == ENG_TOKEN_NORMAL ? count_splits(l, l->token[id]) : 0;
    }
    if (n_split == n_merge)
        return 0;
    return kn_fail(KN_EUNSUPPORTED,
                   "%s: " KEY "merges: %zu merges, but %zu pairs of tokens join to a token: text would be tokenised "
                   "differently",
                   l->path, n_merge, n_split);
}

static int load_scores(struct loader *l)
{
    const size_t n = (size_t)l->v->n_vocab;
    const struct moe_value *scores;
    int err;

    if (l->has_merges)
        return load_scores_of_merges(l);
    err = find_array(l, KEY "scores", n, &scores);
    if (err)
        return err;
    if (scores->item != MOE_F32 && scores->item != MOE_F64)
        return kn_fail(KN_ECORRUPT, "%s: " KEY "scores: not an array of floats", l->path);
    l->v->score = kn_calloc(n, sizeof *l->v->score);
    if (!l->v->score)
        return no_memory(l);
    for (size_t i = 0; i < n; i++) {
        l->v->score[i] = (float)moe_value_float(scores, i);
        if (isnan(l->v->score[i]))
            return kn_fail(KN_ECORRUPT, "%s: " KEY "scores: token %zu has no number", l->path, i);
    }
    if (moe_file_find(l->file, KEY "precompiled_charsmap"))
        return kn_fail(KN_EUNSUPPORTED,
                       "%s: " KEY "precompiled_charsmap: text normalisation is not "
                       "supported",
                       l->path);
    return 0;
}

/* Loads the id of a token with a role.  If the key is absent, *id is unchanged; -1 and UINT32_MAX, which some
 * files store, mean no token. */
static int load_id(const struct loader *l, const char *key, int32_t *id)
{
    int64_t value = 0;
    const int found = moe_file_int(l->file, key, INT32_MIN, UINT32_MAX, &value);

    if (found <= 0)
        return found;
    if (value == -1 || value == UINT32_MAX) {
        *id = ENG_NO_TOKEN;
    } else if (value < 0 || value >= l->v->n_vocab) {
        return kn_fail(KN_ECORRUPT, "%s: %s: %lld is not an id of the %d tokens", l->path, key, (long long)value,
                       l->v->n_vocab);
    } else {
        *id = (int32_t)value;
    }
    return 0;
}

/* Sets the values that apply where the file has no key.  SentencePiece: ids 0, 1 and 2 are unknown, BOS and EOS if
 * their types fit; BOS and a space are added to a text.  Byte-level BPE: the pre-tokeniser says whether BOS is added.
 * All other roles have no token. */
static void default_roles(struct eng_vocab *v)
{
    v->bos = v->eos = v->eot = v->eom = v->unk = v->pad = ENG_NO_TOKEN;
    if (v->kind == ENG_VOCAB_BYTES) {
        v->add_bos = eng_pre_adds_bos(v->pre);
        return;
    }
    v->add_bos = v->add_space = true;
    if (v->type[0] == ENG_TOKEN_UNKNOWN)
        v->unk = 0;
    if (v->n_vocab > 1 && v->type[1] == ENG_TOKEN_CONTROL)
        v->bos = 1;
    if (v->n_vocab > 2 && v->type[2] == ENG_TOKEN_CONTROL)
        v->eos = 2;
}

/* Adds the file's stop_token_ids. */
static int load_more_stops(struct loader *l)
{
    const struct moe_value *ids = moe_file_find(l->file, KEY "stop_token_ids");

    if (ids && (ids->type != MOE_ARRAY || !is_integer(ids->item)))
        return kn_fail(KN_ECORRUPT, "%s: " KEY "stop_token_ids: not an array of integers", l->path);
    for (size_t i = 0; ids && i < ids->n; i++) {
        const int64_t id = moe_value_int(ids, i);

        if (id < 0 || id >= l->v->n_vocab)
            return kn_fail(KN_ECORRUPT, "%s: " KEY "stop_token_ids: %lld is not an id of the %d tokens", l->path,
                           (long long)id, l->v->n_vocab);
        l->v->stop[id] = true;
    }
    return 0;
}

static int load_roles(struct loader *l)
{
    struct eng_vocab *v = l->v;
    const struct {
        const char *key;
        int32_t *id;
    } ids[] = {
        { KEY "bos_token_id", &v->bos }, { KEY "eos_token_id", &v->eos },     { KEY "eot_token_id", &v->eot },
        { KEY "eom_token_id", &v->eom }, { KEY "unknown_token_id", &v->unk }, { KEY "padding_token_id", &v->pad },
    };
    bool add_sep = false, squeeze = false, asked = false;
    const struct {
        const char *key;
        bool *flag;
    } flags[] = {
        { KEY "add_eos_token", &v->add_eos },
        { KEY "add_space_prefix", &v->add_space },
        { KEY "add_sep_token", &add_sep },
        { KEY "remove_extra_whitespaces", &squeeze },
    };
    int found;

    default_roles(v);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if ((found = load_id(l, ids[i].key, ids[i].id)) < 0)
            return found;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if ((found = moe_file_bool(l->file, flags[i].key, flags[i].flag)) < 0)
            return found;
    if ((found = moe_file_bool(l->file, KEY "add_bos_token", &v->add_bos)) < 0)
        return found;
    asked = found;
    if (add_sep || squeeze)
        return kn_fail(KN_EUNSUPPORTED, "%s: %s: true is not supported", l->path,
                       add_sep ? KEY "add_sep_token" : KEY "remove_extra_whitespaces");
    if (v->add_bos && asked && v->bos == ENG_NO_TOKEN)
        return kn_fail(KN_ECORRUPT, "%s: " KEY "add_bos_token: true without a bos token", l->path);
    if (v->add_eos && v->eos == ENG_NO_TOKEN)
        return kn_fail(KN_ECORRUPT, "%s: " KEY "add_eos_token: true without an eos token", l->path);
    v->add_bos = v->add_bos && v->bos != ENG_NO_TOKEN;
    for (size_t i = 1; i < 4; i++)
        if (*ids[i].id != ENG_NO_TOKEN)
            v->stop[*ids[i].id] = true;
    return load_more_stops(l);
}

static int compare_special(const void *a, const void *b)
{
    const struct moe_string s = ((const struct eng_special *)a)->text;
    const struct moe_string t = ((const struct eng_special *)b)->text;
    const int order = memcmp(s.data, t.data, s.n < t.n ? s.n : t.n);

    return order ? order : (s.n > t.n) - (s.n < t.n);
}

/* Makes the table of special tokens, sorted by text for special_at in tokenize.c. */
static int load_specials(struct loader *l)
{
    struct eng_vocab *v = l->v;

    v->special = kn_calloc((size_t)v->n_vocab, sizeof *v->special);
    if (!v->special)
        return no_memory(l);
    for (int32_t id = 0; id < v->n_vocab; id++) {
        const struct moe_string s = v->text[id];

        if (v->type[id] < ENG_TOKEN_UNKNOWN || v->type[id] > ENG_TOKEN_USER || !s.n)
            continue;
        v->special[v->n_special++] = (struct eng_special){ .text = s, .id = id };
        v->begins_special[(uint8_t)s.data[0]] = true;
    }
    if (v->n_special)
        qsort(v->special, (size_t)v->n_special, sizeof *v->special, compare_special);
    return 0;
}

int eng_vocab_open(struct eng_vocab **out, const struct moe_file *f)
{
    struct loader l = { .file = f, .path = moe_file_path(f) };
    int err;

    l.v = kn_calloc(1, sizeof *l.v);
    if (!l.v)
        return no_memory(&l);
    eng_letters_init(&l.letters);
    err = load_kind(&l);
    if (!err)
        err = load_tokens(&l);
    if (!err)
        load_stops(&l);
    if (!err)
        err = load_texts(&l);
    if (!err)
        err = l.v->kind == ENG_VOCAB_BYTES ? load_merges(&l) : load_scores(&l);
    if (!err)
        err = load_roles(&l);
    if (!err)
        err = load_specials(&l);
    eng_words_close(&l.names);
    if (err) {
        eng_vocab_close(l.v);
        return err;
    }
    *out = l.v;
    return 0;
}

void eng_vocab_close(struct eng_vocab *v)
{
    if (!v)
        return;
    eng_pre_close(v->pre);
    eng_pairs_close(&v->pairs);
    eng_words_close(&v->words);
    kn_free(v->special);
    kn_free(v->score);
    kn_free(v->stop);
    kn_free(v->type);
    kn_free(v->text);
    kn_free(v->bytes);
    kn_free(v);
}

int eng_vocab_size(const struct eng_vocab *v) { return v->n_vocab; }

bool eng_vocab_adds_bos(const struct eng_vocab *v) { return v->add_bos; }

int32_t eng_vocab_bos(const struct eng_vocab *v) { return v->bos; }

int32_t eng_vocab_eos(const struct eng_vocab *v) { return v->eos; }

int32_t eng_vocab_pad(const struct eng_vocab *v) { return v->pad; }

struct moe_string eng_vocab_text(const struct eng_vocab *v, int32_t id)
{
    kn_assert(id >= 0 && id < v->n_vocab);
    return v->text[id];
}

enum eng_token_type eng_vocab_type(const struct eng_vocab *v, int32_t id)
{
    kn_assert(id >= 0 && id < v->n_vocab);
    return (enum eng_token_type)v->type[id];
}

bool eng_vocab_is_stop(const struct eng_vocab *v, int32_t id) { return id >= 0 && id < v->n_vocab && v->stop[id]; }
