/* engine/text/text.h - text to tokens and back.  Internal to engine.
 *
 *     eng_vocab    a model file's vocabulary: everything under tokenizer.ggml.*, checked once.
 *                  Immutable after open, so any number of threads may tokenize with it at once.
 *     eng_ids      a growing list of token ids, the caller's.
 *     eng_decoder  a plain struct in the caller's memory that turns ids into text as they come; it
 *                  takes no memory, so it may run inside a step.
 *
 * Two kinds of vocabulary: byte-level BPE ("gpt2": a pre-tokeniser by name, merges by rank) and
 * SentencePiece BPE ("llama": merges by score, bytes for what has no piece).  Anything else, and
 * any pre-tokeniser not in the table of pretokenize.c, is refused by name: a guess gives wrong
 * text that looks nearly right.
 *
 * Text is bytes.  What is not UTF-8 passes through as single bytes if the vocabulary has them. */
#ifndef ENGINE_TEXT_H
#define ENGINE_TEXT_H

#include "moe/moe.h"

/* ---- vocabulary
   -------------------------------------------------------------------------------- */

/* Numbered as in the file. */
enum eng_token_type {
    ENG_TOKEN_NORMAL = 1, ENG_TOKEN_UNKNOWN, ENG_TOKEN_CONTROL, ENG_TOKEN_USER, ENG_TOKEN_UNUSED,
    ENG_TOKEN_BYTE
};

enum { ENG_NO_TOKEN = -1 };

struct eng_vocab;

/* Says `<file>: <field>: <reason>` when it fails.  The file may be closed afterwards. */
int  eng_vocab_open(struct eng_vocab **out, const struct moe_file *f);
void eng_vocab_close(struct eng_vocab *v);

int  eng_vocab_size(const struct eng_vocab *v);
bool eng_vocab_adds_bos(const struct eng_vocab *v);
int32_t eng_vocab_bos(const struct eng_vocab *v);       /* these three may be ENG_NO_TOKEN */
int32_t eng_vocab_eos(const struct eng_vocab *v);
int32_t eng_vocab_pad(const struct eng_vocab *v);

/* The text a token stands for, as bytes; id is within the vocabulary. */
struct moe_string eng_vocab_text(const struct eng_vocab *v, int32_t id);
enum eng_token_type eng_vocab_type(const struct eng_vocab *v, int32_t id);

/* The control or user-defined token whose text this is, or ENG_NO_TOKEN. */
int32_t eng_vocab_find_special(const struct eng_vocab *v, const char *text, size_t n_bytes);

/* Does generation end here?  eos, eot and eom as the file names them, and the end-of-turn tokens
 * that files forget to name, by their text (the list is in vocab.c). */
bool eng_vocab_is_stop(const struct eng_vocab *v, int32_t id);

/* ---- text to ids
   ------------------------------------------------------------------------------- */

enum {
    ENG_TEXT_ADD_BOS = 1,           /* BOS before, EOS after: each only if the file asks for it */
    ENG_TEXT_PARSE_SPECIAL = 2,     /* the text of a control token is that token, not plain text */
};

struct eng_ids {                    /* all zero: empty */
    int32_t *id;                    /* [n] */
    size_t n, cap;
};

int  eng_ids_push(struct eng_ids *ids, int32_t id);
void eng_ids_free(struct eng_ids *ids);

/* Appends; ids->n is unchanged on failure.  User-defined tokens are found with and without
 * PARSE_SPECIAL.  Time grows as n log n at worst, whatever the text. */
int eng_tokenize(const struct eng_vocab *v, const char *text, size_t n_bytes, unsigned flags,
                 struct eng_ids *ids);

/* The same, but that no special token spans any of these places of the text. */
struct eng_fences { const size_t *at; size_t n; };      /* [n] byte offsets, ascending */
int eng_tokenize_fenced(const struct eng_vocab *v, struct moe_string text, unsigned flags,
                        const struct eng_fences *fences, struct eng_ids *ids);

/* ---- ids to text
   ------------------------------------------------------------------------------- */

enum {
    ENG_DECODE_SKIP_SPECIAL = 1,    /* control tokens give no text */
    ENG_DECODE_RAW = 2,             /* bytes as they are: the exact inverse of eng_tokenize */
    ENG_DECODE_CONTINUE = 4,        /* the ids go on from others: the first space is text */
};

struct eng_decoder {
    const struct eng_vocab *vocab;
    unsigned flags;
    int n_pending;
    char pending[4];                /* [n_pending] the beginning of a character */
    bool at_start;                  /* the next space is the one that the tokenizer put there */
};

void eng_decoder_init(struct eng_decoder *d, const struct eng_vocab *v, unsigned flags);

/* The most bytes that one call gives. */
size_t eng_decoder_room(const struct eng_vocab *v);

/* Writes what became certain with this id, always whole characters unless RAW, and returns the
 * number of bytes.  What cannot become UTF-8 is U+FFFD, once for every maximal beginning of a
 * character. */
size_t eng_decoder_feed(struct eng_decoder *d, int32_t id, char *out);

/* After the last id: the pending bytes, as one U+FFFD. */
size_t eng_decoder_finish(struct eng_decoder *d, char *out);

/* ---- stop strings ------------------------------------------------------------------------------ */

/* Watches text go by and ends it before the first stop string, holding back what may begin one. */
#define ENG_STOP_BYTES 256
struct eng_stop {
    const char *const *text;                    /* [n], each of 1 .. ENG_STOP_BYTES bytes */
    int n;
    bool hit;
    int which;                                  /* hit: the string that did it */
    size_t n_held;
    char held[ENG_STOP_BYTES];
};

int  eng_stop_init(struct eng_stop *s, const char *const *text, int n);
/* Takes n bytes, writes what may be shown to out (room for n + ENG_STOP_BYTES), returns its length. */
size_t eng_stop_feed(struct eng_stop *s, const char *bytes, size_t n, char *out);
size_t eng_stop_finish(struct eng_stop *s, char *out);

#endif
