/* evals/tokenizer/many.c - tokenizes many texts with one vocabulary, for compare.py.
 *
 * Input: MODEL.gguf, optionally "special", and on stdin records of a 32-bit little-endian length and
 * that many bytes. Output: one line of ids for every record, separated by spaces. With "special" the
 * text of special tokens becomes these tokens. Every text is also decoded again; if the bytes differ, the
 * line ends with " !" and the number of decoded bytes, at most the text's length. */
#include <stdio.h>
#include <string.h>

#include "engine/text/text.h"

static size_t decode(const struct eng_vocab *v, const struct eng_ids *ids, char *out, char *piece, size_t room)
{
    struct eng_decoder d;
    size_t n = 0;

    eng_decoder_init(&d, v, ENG_DECODE_RAW);
    for (size_t i = 0; i < ids->n; i++) {
        const size_t len = eng_decoder_feed(&d, ids->id[i], piece);

        if (n + len > room)
            return n;
        memcpy(out + n, piece, len);
        n += len;
    }
    return n;
}

static int one(const struct eng_vocab *v, unsigned flags, const char *text, size_t n)
{
    struct eng_ids ids = { 0 };
    char *back = kn_alloc(n + 1), *piece = kn_alloc(eng_decoder_room(v));
    int err = back && piece ? eng_tokenize(v, text, n, flags, &ids) : KN_ENOMEM;

    if (!err) {
        const size_t got = decode(v, &ids, back, piece, n);

        for (size_t i = 0; i < ids.n; i++)
            printf(i ? " %d" : "%d", (int)ids.id[i]);
        if (got != n || memcmp(back, text, n))
            printf(" ! %zu", got);
        putchar('\n');
    }
    eng_ids_free(&ids);
    kn_free(back);
    kn_free(piece);
    return err;
}

int main(int argc, char **argv)
{
    const unsigned flags = argc > 2 && !strcmp(argv[2], "special") ? ENG_TEXT_PARSE_SPECIAL : 0;
    struct moe_file *file = NULL;
    struct eng_vocab *vocab = NULL;
    uint32_t n = 0;
    int err = argc > 1 ? moe_file_open(&file, argv[1]) : KN_EINVAL;

    if (!err)
        err = eng_vocab_open(&vocab, file);
    while (!err && fread(&n, sizeof n, 1, stdin) == 1) {
        char *text = kn_alloc((size_t)n + 1);

        err = text && fread(text, 1, n, stdin) == n ? one(vocab, flags, text, n) : KN_EIO;
        kn_free(text);
    }
    eng_vocab_close(vocab);
    moe_file_close(file);
    return err ? 1 : 0;
}
