/* engine/text/tokenize.c - text to ids: special tokens, plain text, BOS and EOS.
 *
 * In: text and a vocabulary.  Out: ids appended to the caller's list.  The text is first split at
 * special tokens, from left to right, the longest one at each place.  The plain text between them
 * goes through the pre-tokeniser and its pieces to byte-level BPE, or whole to SentencePiece BPE.
 * For SentencePiece a space is added at the start and after every special token, if the file asks
 * for it.  For byte-level BPE, a run of bytes that are not UTF-8 skips the pre-tokeniser and is one piece. */
#include <string.h>
#include <utf8proc.h>

#include "engine/base/base.h"
#include "engine/text/internal.h"

struct work {
    const struct eng_vocab *v;
    struct eng_ids *ids;
    struct eng_split *split;
    struct eng_merge merge;
    char *spaced; /* [spaced_bytes] scratch: text with the added space, for SentencePiece */
    size_t spaced_bytes;
    bool part; /* of a longer text: no space is added, and nothing composed */
};

/* The longest special token at p[n], or ENG_NO_TOKEN.  Narrows the range of candidates in the
 * sorted table with each byte.  With parse false, only user-defined tokens are considered. */
static int32_t special_at(const struct eng_vocab *v, const char *p, size_t n, bool parse)
{
    int low = 0, high = v->n_special;
    int32_t found = ENG_NO_TOKEN;

    for (size_t depth = 0; low < high; depth++) {
        const struct eng_special *s = &v->special[low];
        int left = low, right = high;

        /* The entry that ends here sorts before the longer ones. */
        for (; low < high && s->text.n == depth; s++, low++)
            if (parse || v->type[s->id] == ENG_TOKEN_USER)
                found = s->id;
        if (depth == n)
            break;
        for (left = low; left < right;) {
            const int mid = left + (right - left) / 2;

            if ((uint8_t)v->special[mid].text.data[depth] < (uint8_t)p[depth])
                left = mid + 1;
            else
                right = mid;
        }
        low = left;
        for (right = high; left < right;) {
            const int mid = left + (right - left) / 2;

            if ((uint8_t)v->special[mid].text.data[depth] <= (uint8_t)p[depth])
                left = mid + 1;
            else
                right = mid;
        }
        high = left;
    }
    return found;
}

int32_t eng_vocab_find_special(const struct eng_vocab *v, const char *text, size_t n_bytes)
{
    const int32_t id = special_at(v, text, n_bytes, true);

    return id != ENG_NO_TOKEN && v->text[id].n == n_bytes ? id : ENG_NO_TOKEN;
}

static int piece_of_bytes(void *arg, const char *p, size_t n)
{
    struct work *w = arg;

    return eng_merge_bytes(&w->merge, w->v, p, n, w->ids);
}

/* Sets *composed to the NFC form of a text, *n_out bytes, which the caller frees; NULL: utf8proc refuses the text.  As
 * utf8proc_map, but with memory of kn_alloc, which is limited. */
static int compose(const char *p, size_t n, char **composed, size_t *n_out)
{
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    const utf8proc_uint8_t *text = (const utf8proc_uint8_t *)p;
    utf8proc_ssize_t len = utf8proc_decompose(text, (utf8proc_ssize_t)n, NULL, 0, options);
    utf8proc_int32_t *code;

    *composed = NULL;
    if (len == UTF8PROC_ERROR_INVALIDUTF8)
        return 0;
    code = len < 0 ? NULL : kn_alloc(((size_t)len + 1) * sizeof *code);
    if (!code)
        return kn_fail(KN_ENOMEM, "no memory for %zu bytes of text", n);
    len = utf8proc_decompose(text, (utf8proc_ssize_t)n, code, len, options);
    if (len >= 0)
        len = utf8proc_reencode(code, len, options);
    kn_assert(len >= 0);
    *composed = (char *)code;
    *n_out = (size_t)len;
    return 0;
}

/* Tokenizes text that is valid UTF-8: composes it to NFC if the vocabulary asks for it, then splits it.  Text that
 * utf8proc refuses is not composed. */
static int plain_utf8(struct work *w, const char *p, size_t n)
{
    char *composed = NULL;
    bool ascii = true;
    size_t len = 0;
    int err = 0;

    for (size_t i = 0; i < n && ascii; i++)
        ascii = (uint8_t)p[i] < 0x80;
    if (!ascii && w->v->compose && !w->part)
        err = compose(p, n, &composed, &len);
    if (!err)
        err = eng_split_run(w->split, composed ? composed : p, composed ? len : n, piece_of_bytes, w);
    kn_free(composed);
    return err;
}

/* Byte-level BPE: stretches of valid UTF-8 go through the pre-tokeniser; each stretch of other bytes between
 * them is one piece. */
static int plain_bytes(struct work *w, const char *p, size_t n)
{
    size_t at = 0;
    bool cut;
    int err = 0, bad;

    while (at < n && !err) {
        size_t end = at, len;

        while (end < n && (len = (size_t)eng_utf8_next(p + end, n - end, &bad, &cut)))
            end += len;
        if (end > at)
            err = plain_utf8(w, p + at, end - at);
        at = end;
        while (end < n && !eng_utf8_next(p + end, n - end, &bad, &cut))
            end++;
        if (end > at && !err)
            err = piece_of_bytes(w, p + at, end - at);
        at = end;
    }
    return err;
}

/* SentencePiece BPE.  U+2581 in the text becomes a space, since SentencePiece does not distinguish the two. */
static int plain_pieces(struct work *w, const char *p, size_t n)
{
    size_t room, used = 0;

    if (!kn_add(n, 1, &room))
        return kn_fail(KN_ELIMIT, "text too long to tokenize");
    if (room > w->spaced_bytes) {
        kn_free(w->spaced);
        w->spaced_bytes = 0;
        w->spaced = kn_alloc(room);
        if (!w->spaced)
            return kn_fail(KN_ENOMEM, "no memory for %zu bytes of text", room);
        w->spaced_bytes = room;
    }
    if (w->v->add_space && !w->part)
        w->spaced[used++] = ' ';
    used += eng_spaces_from_marks((struct moe_string){ .data = p, .n = n }, w->spaced + used);
    return eng_merge_pieces(&w->merge, w->v, w->spaced, used, w->ids);
}

static int plain(struct work *w, const char *p, size_t n)
{
    if (!n)
        return 0;
    return w->v->kind == ENG_VOCAB_BYTES ? plain_bytes(w, p, n) : plain_pieces(w, p, n);
}

/* True if a fence lies strictly between begin and end.  *next is an index in fences->at and moves to the first
 * fence after begin; calls come with ascending begin. */
static bool is_fenced(const struct eng_fences *fences, size_t *next, size_t begin, size_t end)
{
    while (*next < fences->n && fences->at[*next] <= begin)
        ++*next;
    return *next < fences->n && fences->at[*next] < end;
}

static int tokenize(struct work *w, const char *text, size_t n, unsigned flags, const struct eng_fences *fences)
{
    const struct eng_vocab *v = w->v;
    const bool parse = flags & ENG_TEXT_PARSE_SPECIAL;
    size_t from = 0, at = 0, fence = 0; /* start of the pending plain text; current offset; index of next fence */
    int err = 0;

    if (flags & ENG_TEXT_ADD_BOS && v->add_bos)
        err = eng_ids_push(w->ids, v->bos);
    while (at < n && !err) {
        const int32_t id = v->begins_special[(uint8_t)text[at]] ? special_at(v, text + at, n - at, parse)
                                                                : ENG_NO_TOKEN;

        if (id == ENG_NO_TOKEN || is_fenced(fences, &fence, at, at + v->text[id].n)) {
            at++;
            continue;
        }
        err = plain(w, text + from, at - from);
        if (!err)
            err = eng_ids_push(w->ids, id);
        from = at += v->text[id].n;
    }
    if (!err)
        err = plain(w, text + from, n - from);
    if (!err && flags & ENG_TEXT_ADD_BOS && v->add_eos)
        err = eng_ids_push(w->ids, v->eos);
    return err;
}

/* Bytes of text that one byte of a token can stand for, at most: U+2581 (3 bytes) becomes a space in SentencePiece, and
 * NFC makes at most 3 bytes one (Hangul; 4 to be safe). */
#define BYTES_PER_PIECE_BYTE    3
#define BYTES_PER_COMPOSED_BYTE 4

size_t eng_least_tokens(const struct eng_vocab *v, struct moe_string text)
{
    size_t n = 0, most = v->max_bytes;
    bool lacks = false, ascii = true;

    for (int b = 0; b < 256; b++)
        lacks |= v->byte_id[b] == ENG_NO_TOKEN;
    for (size_t i = 0; i < text.n; i++) {
        ascii &= (uint8_t)text.data[i] < 0x80;
        n += v->byte_id[(uint8_t)text.data[i]] != ENG_NO_TOKEN;
    }
    if (v->kind == ENG_VOCAB_PIECES)
        most *= BYTES_PER_PIECE_BYTE;
    else if (v->compose && !ascii)
        most *= BYTES_PER_COMPOSED_BYTE;
    /* unknown characters in a row may be one token in SentencePiece, and NFC may make bytes that have no token */
    if (!most || (lacks && (v->kind == ENG_VOCAB_PIECES || (v->compose && !ascii))))
        return 0;
    return (n + most - 1) / most;
}

int eng_tokenize_fenced(const struct eng_vocab *v, struct moe_string text, unsigned flags,
                        const struct eng_fences *fences, struct eng_ids *ids)
{
    struct work w = { .v = v, .ids = ids };
    const size_t n_before = ids->n;
    int err = 0;

    ids->full = false;
    if (ids->most && ids->n + eng_least_tokens(v, text) > ids->most) {
        ids->full = true;
        return KN_ELIMIT;
    }
    if (v->kind == ENG_VOCAB_BYTES)
        err = eng_split_open(&w.split, v->pre);
    if (!err)
        err = tokenize(&w, text.data, text.n, flags, fences);
    if (err)
        ids->n = n_before;
    eng_split_close(w.split);
    eng_merge_free(&w.merge);
    kn_free(w.spaced);
    return err;
}

int eng_tokenize(const struct eng_vocab *v, const char *text, size_t n_bytes, unsigned flags, struct eng_ids *ids)
{
    static const struct eng_fences none;

    return eng_tokenize_fenced(v, (struct moe_string){ .data = text, .n = n_bytes }, flags, &none, ids);
}

/* ---- parts of a text, without allocating ----------------------------------------------------------- */

struct eng_recutter {
    struct work w;
    struct eng_ids ids;
    size_t most;
};

/* Cuts the longest text once, as one piece: this takes all scratch memory. */
static int take_memory(struct eng_recutter *r)
{
    size_t bytes;
    const int32_t *ids;
    char *text;

    if (!kn_add(r->most, 2, &r->ids.cap) || !kn_mul(r->ids.cap, sizeof *r->ids.id, &bytes))
        return kn_fail(KN_ELIMIT, "a text of %zu bytes is too long to tokenize", r->most);
    r->ids.id = kn_alloc(bytes);
    text = kn_alloc(r->most);
    if (!r->ids.id || !text) {
        kn_free(text);
        return kn_fail(KN_ENOMEM, "no memory to tokenize %zu bytes", r->most);
    }
    memset(text, 'a', r->most);
    bytes = r->most;
    const int n = eng_recut(r, (struct moe_string){ .data = text, .n = bytes }, 0, &ids);
    kn_free(text);
    return n < 0 ? n : 0;
}

int eng_recutter_open(struct eng_recutter **out, const struct eng_vocab *v, size_t most_bytes)
{
    struct eng_recutter *r = kn_calloc(1, sizeof *r);
    int err = r ? 0 : kn_fail(KN_ENOMEM, "no memory to tokenize");

    if (!err) {
        r->w = (struct work){ .v = v, .ids = &r->ids, .part = true };
        r->most = most_bytes;
        if (v->kind == ENG_VOCAB_BYTES)
            err = eng_split_open(&r->w.split, v->pre);
    }
    if (!err)
        err = take_memory(r);
    if (err) {
        eng_recutter_close(r);
        return err;
    }
    *out = r;
    return 0;
}

void eng_recutter_close(struct eng_recutter *r)
{
    if (!r)
        return;
    eng_ids_free(&r->ids);
    eng_split_close(r->w.split);
    eng_merge_free(&r->w.merge);
    kn_free(r->w.spaced);
    kn_free(r);
}

int eng_recut(struct eng_recutter *r, struct moe_string text, unsigned flags, const int32_t **ids)
{
    static const struct eng_fences none;

    kn_assert(text.n <= r->most);
    r->ids.n = 0;
    const int err = tokenize(&r->w, text.data, text.n, flags, &none);
    *ids = r->ids.id;
    return err ? err : (int)r->ids.n;
}
