/* engine/text/detokenize.c - streaming detokenizer: ids to text, in whole characters.
 *
 * In: ids, one at a time.  Out: bytes into the caller's buffer.  A token may end inside a
 * character, so up to three bytes stay pending in the decoder until a later token completes or
 * invalidates them.  Invalid bytes become U+FFFD, one for each maximal beginning of a character, as
 * the Unicode standard recommends and browsers do.  With SentencePiece the tokenizer adds a space
 * before the text and after special tokens; the decoder removes the space at the same places. */
#include <string.h>

#include "engine/base/base.h"
#include "engine/text/internal.h"

static const char replacement[] = "\xEF\xBF\xBD";

void eng_decoder_init(struct eng_decoder *d, const struct eng_vocab *v, unsigned flags)
{
    *d = (struct eng_decoder){ .vocab = v, .flags = flags };
    d->at_start = v->add_space && !(flags & ENG_DECODE_CONTINUE);
}

size_t eng_decoder_room(const struct eng_vocab *v)
{
    return 3 * (v->max_bytes + 3); /* each byte, also the 3 pending ones, may become U+FFFD */
}

/* Adds one byte and writes the characters that it completes; returns the bytes written. */
static size_t take(struct eng_decoder *d, char byte, char *out)
{
    size_t n = 0;

    d->pending[d->n_pending++] = byte;
    while (d->n_pending) {
        bool cut;
        int bad, len = eng_utf8_next(d->pending, (size_t)d->n_pending, &bad, &cut);

        if (!len && cut)
            break;
        memcpy(out + n, len ? d->pending : replacement, len ? (size_t)len : 3);
        n += len ? (size_t)len : 3;
        if (!len)
            len = bad;
        d->n_pending -= len;
        memmove(d->pending, d->pending + len, (size_t)d->n_pending);
    }
    return n;
}

size_t eng_decoder_feed(struct eng_decoder *d, int32_t id, char *out)
{
    const struct eng_vocab *v = d->vocab;
    struct moe_string s = eng_vocab_text(v, id);
    const bool special = v->type[id] >= ENG_TOKEN_UNKNOWN && v->type[id] <= ENG_TOKEN_USER;
    size_t n = 0;

    if (d->at_start && !special && s.n && s.data[0] == ' ') {
        s.data++;
        s.n--;
    }
    d->at_start = special && v->add_space;
    if (d->flags & ENG_DECODE_SKIP_SPECIAL && special && v->type[id] != ENG_TOKEN_USER)
        return 0;
    if (d->flags & ENG_DECODE_RAW) {
        memcpy(out, s.data, s.n);
        return s.n;
    }
    for (size_t i = 0; i < s.n; i++)
        n += take(d, s.data[i], out + n);
    return n;
}

size_t eng_decoder_finish(struct eng_decoder *d, char *out)
{
    const size_t n = d->n_pending ? 3 : 0;

    memcpy(out, replacement, n);
    d->n_pending = 0;
    return n;
}
