/* engine/cli/cmd_tokenize.c - `spillway tokenize`: converts all of stdin to token ids on one line, or back.
 *
 * In: a model file of any architecture with a tokenizer, and stdin: text, or with --decode ids separated by commas or
 * white space.  Out: ids separated by commas, or text, on stdout.  With --special BOS and EOS are added where the file
 * asks for it, control tokens in the text are parsed, and --decode writes their text.  Without --special, control
 * tokens in the text are plain text, and --decode leaves them out.  Nothing is written unless all of the input is
 * valid. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/cli/cli.h"
#include "engine/text/text.h"

struct text {
    char *data;
    size_t n, cap;
};

/* Makes space for n more bytes. */
static int text_grow(struct text *t, size_t n)
{
    size_t least, cap;
    char *grown;

    if (!kn_add(t->n, n, &least))
        return kn_fail(KN_ELIMIT, "stdin: too long");
    if (least <= t->cap)
        return 0;
    if (!kn_add(least, least / 2, &cap))
        return kn_fail(KN_ELIMIT, "stdin: too long");
    grown = kn_realloc(t->data, t->cap, cap);
    if (!grown)
        return kn_fail(KN_ENOMEM, "no memory for %zu bytes of text", cap);
    t->data = grown;
    t->cap = cap;
    return 0;
}

static int read_all(FILE *in, struct text *t)
{
    size_t got;
    int err;

    do {
        err = text_grow(t, 1 << 16);
        if (err)
            return err;
        got = fread(t->data + t->n, 1, 1 << 16, in);
        t->n += got;
    } while (got);
    return ferror(in) ? kn_fail(KN_EIO, "stdin: reading failed") : 0;
}

static int parse_ids(const struct eng_vocab *v, const struct text *t, struct eng_ids *ids)
{
    size_t i = 0;
    int err = 0;

    while (!err) {
        int64_t id = 0;
        size_t first;

        while (i < t->n && (isspace((uint8_t)t->data[i]) || t->data[i] == ','))
            i++;
        if (i == t->n)
            return 0;
        for (first = i; i < t->n && isdigit((uint8_t)t->data[i]) && id < INT32_MAX; i++)
            id = 10 * id + (t->data[i] - '0');
        if (i == first)
            return kn_fail(KN_EINVAL, "stdin: byte %zu is not part of a token id", i);
        if (id >= eng_vocab_size(v))
            return kn_fail(KN_EINVAL, "stdin: id %lld is not among the %d tokens", (long long)id, eng_vocab_size(v));
        err = eng_ids_push(ids, (int32_t)id);
    }
    return err;
}

static int encode(const struct eng_vocab *v, bool special, const struct text *in, FILE *out)
{
    const unsigned flags = special ? ENG_TEXT_ADD_BOS | ENG_TEXT_PARSE_SPECIAL : 0;
    struct eng_ids ids = { 0 };
    const int err = eng_tokenize(v, in->data, in->n, flags, &ids);

    for (size_t i = 0; i < ids.n && !err; i++)
        fprintf(out, i ? ",%d" : "%d", (int)ids.id[i]);
    if (!err)
        fputc('\n', out);
    eng_ids_free(&ids);
    return err;
}

static int decode(const struct eng_vocab *v, bool special, const struct text *in, FILE *out)
{
    char *piece = kn_alloc(eng_decoder_room(v));
    struct eng_ids ids = { 0 };
    struct eng_decoder d;
    int err = piece ? parse_ids(v, in, &ids) : kn_fail(KN_ENOMEM, "no memory for text");

    eng_decoder_init(&d, v, ENG_DECODE_RAW | (special ? 0 : ENG_DECODE_SKIP_SPECIAL));
    for (size_t i = 0; i < ids.n && !err; i++)
        fwrite(piece, 1, eng_decoder_feed(&d, ids.id[i], piece), out);
    eng_ids_free(&ids);
    kn_free(piece);
    return err;
}

int eng_cmd_tokenize(const struct eng_config *config)
{
    struct moe_file *file = NULL;
    struct eng_vocab *vocab = NULL;
    struct text text = { 0 };
    int err = config->model ? 0 : kn_fail(KN_EINVAL, "tokenize: -m MODEL is missing");

    if (!err)
        err = moe_file_open(&file, config->model);
    if (!err)
        err = eng_vocab_open(&vocab, file);
    if (!err)
        err = read_all(stdin, &text);
    if (!err)
        err = config->decode ? decode(vocab, config->special, &text, stdout)
                             : encode(vocab, config->special, &text, stdout);
    if (!err && (fflush(stdout) || ferror(stdout)))
        err = kn_fail(KN_EIO, "stdout: writing failed");
    kn_free(text.data);
    eng_vocab_close(vocab);
    moe_file_close(file);
    return !err ? 0 : err == KN_EIO || err == KN_ENOMEM ? 1 : 2;
}
