/* engine/text/text.h - tokenizer and detokenizer.  Internal to engine.
 *
 *     eng_vocab    the vocabulary of a model file: everything under tokenizer.ggml.*, checked at open.
 *                  Immutable after open: any number of threads may tokenize with one at once.
 *     eng_ids      a growing list of token ids, owned by the caller.
 *     eng_decoder  a plain struct in the caller's memory that turns a stream of ids into text.  It
 *                  allocates nothing, so it may run inside an engine step.
 *
 * Two kinds of vocabulary are supported: byte-level BPE ("gpt2": a named pre-tokeniser, merges by
 * rank) and SentencePiece BPE ("llama": merges by score, byte tokens for characters without a
 * piece).  Every other kind, and every pre-tokeniser that is not in the table of pretokenize.c, is
 * refused, and the log names it: with a guessed pattern the tokens would differ from the model's
 * training although the text looks nearly right.
 *
 * Text is bytes, and need not be UTF-8.  A byte without any token is dropped by byte-level BPE; in SentencePiece,
 * a character of which a byte has no token becomes the unknown token.
 * Functions that can fail return 0 or a negative KN_E* code, and log the reason. */
#ifndef ENGINE_TEXT_TEXT_H
#define ENGINE_TEXT_TEXT_H

#include "moe/moe.h"

/* ---- vocabulary ------------------------------------------------------------------------------ */

/* The values of tokenizer.ggml.token_type. */
enum eng_token_type {
    ENG_TOKEN_NORMAL = 1,
    ENG_TOKEN_UNKNOWN,
    ENG_TOKEN_CONTROL,
    ENG_TOKEN_USER,
    ENG_TOKEN_UNUSED,
    ENG_TOKEN_BYTE
};

enum { ENG_NO_TOKEN = -1 };

struct eng_vocab;

/* Logs `<file>: <field>: <reason>` on failure.  The vocabulary copies all it needs: the file may be
 * closed afterwards. */
int eng_vocab_open(struct eng_vocab **out, const struct moe_file *f);
void eng_vocab_close(struct eng_vocab *v);

int eng_vocab_size(const struct eng_vocab *v);
bool eng_vocab_adds_bos(const struct eng_vocab *v);
int32_t eng_vocab_bos(const struct eng_vocab *v); /* bos, eos, pad: ENG_NO_TOKEN if the file has none */
int32_t eng_vocab_eos(const struct eng_vocab *v);
int32_t eng_vocab_pad(const struct eng_vocab *v);

/* The bytes that the token decodes to, owned by the vocabulary.  Asserts that id is in [0, n_vocab). */
struct moe_string eng_vocab_text(const struct eng_vocab *v, int32_t id);
enum eng_token_type eng_vocab_type(const struct eng_vocab *v, int32_t id);

/* The control, user-defined or unknown token with exactly this text, or ENG_NO_TOKEN. */
int32_t eng_vocab_find_special(const struct eng_vocab *v, const char *text, size_t n_bytes);

/* True for tokens that end generation: eos, eot, eom and stop_token_ids of the file, and common
 * end-of-turn tokens found by their text (the list is in vocab.c). */
bool eng_vocab_is_stop(const struct eng_vocab *v, int32_t id);

/* ---- text to ids ----------------------------------------------------------------------------- */

enum {
    ENG_TEXT_ADD_BOS = 1,       /* add BOS at the start and EOS at the end, where the file says so */
    ENG_TEXT_PARSE_SPECIAL = 2, /* the text of a control token, or of an unknown token, becomes that token */
};

/* A point that tokenizing reaches each time that it has read ENG_CHECKPOINT_BYTES more of text, some 10 ms of work: the
 * caller may run something more urgent there, or end the work.  Several texts may share one checkpoint. */
#define ENG_CHECKPOINT_BYTES 32768
struct eng_checkpoint {
    int (*reach)(void *arg); /* 0: go on; else the error that tokenizing ends with */
    void *arg;
    size_t n_bytes; /* read since it was last reached */
};

struct eng_ids { /* all zero: empty */
    int32_t *id; /* [n] */
    size_t n, cap;
    size_t most; /* a push beyond this many fails with KN_ELIMIT, logs nothing and sets `full`; 0: no limit */
    bool full;
    struct eng_checkpoint *checkpoint; /* or NULL */
};

int eng_ids_push(struct eng_ids *ids, int32_t id);
void eng_ids_free(struct eng_ids *ids);

/* Appends the tokens of the text to ids; ids->n is unchanged on failure.  User-defined tokens are
 * recognised with and without PARSE_SPECIAL.  Worst-case time is O(n log n) in n_bytes.  Memory beside ids does not grow
 * with the text, except the added space and NFC of vocabularies that ask for them.  With ids->most set, a text that has
 * more tokens by its length alone (eng_least_tokens) is refused before it is tokenized. */
int eng_tokenize(const struct eng_vocab *v, const char *text, size_t n_bytes, unsigned flags, struct eng_ids *ids);

/* A lower bound of the number of tokens of a text: its bytes over the most bytes of text that one token can stand for,
 * which are the longest token's bytes, times 3 for SentencePiece and 4 for NFC.  Bytes without a token are not counted.
 * 0 if there is no such bound: the vocabulary lacks tokens for some bytes, and SentencePiece or NFC applies. */
size_t eng_least_tokens(const struct eng_vocab *v, struct moe_string text);

/* Fences are byte offsets in a text.  eng_tokenize_fenced works as eng_tokenize, but does not recognise
 * a special token that begins before a fence and ends after it. */
struct eng_fences {
    const size_t *at; /* [n] byte offsets, ascending */
    size_t n;
};
int eng_tokenize_fenced(const struct eng_vocab *v, struct moe_string text, unsigned flags,
                        const struct eng_fences *fences, struct eng_ids *ids);

/* Cuts short texts again and again, without allocating: parts of a longer text, which may begin and end anywhere.  No
 * space is added at their start, and they are not composed to NFC. */
struct eng_recutter;
int eng_recutter_open(struct eng_recutter **out, const struct eng_vocab *v, size_t most_bytes);
void eng_recutter_close(struct eng_recutter *r);
/* Sets *ids to the text's tokens; they are valid until the next call.  Returns their number, or an error. */
int eng_recut(struct eng_recutter *r, struct moe_string text, unsigned flags, const int32_t **ids);

/* ---- ids to text ----------------------------------------------------------------------------- */

enum {
    ENG_DECODE_SKIP_SPECIAL = 1, /* control and unknown tokens give no text */
    ENG_DECODE_RAW = 2,          /* no check for UTF-8: the bytes of the tokens are written unchanged */
    ENG_DECODE_CONTINUE = 4,     /* the ids continue an earlier sequence: keep a space at the start */
};

struct eng_decoder {
    const struct eng_vocab *vocab;
    unsigned flags;
    int n_pending;
    char pending[4]; /* [n_pending] first bytes of an incomplete character */
    bool at_start;   /* SentencePiece: drop a space if it comes next, because the tokenizer added it */
};

void eng_decoder_init(struct eng_decoder *d, const struct eng_vocab *v, unsigned flags);

/* The capacity in bytes that `out` of eng_decoder_feed and eng_decoder_finish needs. */
size_t eng_decoder_room(const struct eng_vocab *v);

/* Writes the text that this id completes to out and returns its number of bytes, 0 if none.  Without RAW the text is
 * whole UTF-8 characters, and invalid bytes become U+FFFD, one for each maximal beginning of a
 * character (the Unicode standard's recommended practice). */
size_t eng_decoder_feed(struct eng_decoder *d, int32_t id, char *out);

/* To be called after the last id.  Writes one U+FFFD if bytes are pending; returns the number of bytes. */
size_t eng_decoder_finish(struct eng_decoder *d, char *out);

/* ---- stop strings ------------------------------------------------------------------------------ */

/* A filter that passes on text up to the first stop string, which it removes.  The end of the text so
 * far is held back while it may be the beginning of a stop string. */
#define ENG_STOP_BYTES 256
struct eng_stop {
    const char *const *text; /* [n] borrowed, each of 1 .. ENG_STOP_BYTES bytes */
    int n;
    bool hit;  /* a stop string was found: all further text is dropped */
    int which; /* if hit: index in `text` of the stop string found */
    size_t n_held;
    char held[ENG_STOP_BYTES]; /* [n_held] */
};

int eng_stop_init(struct eng_stop *s, const char *const *text, int n);
/* Reads n more bytes of text.  Writes the text that cannot belong to a stop string any more to out, of
 * n + ENG_STOP_BYTES bytes, and returns its length. */
size_t eng_stop_feed(struct eng_stop *s, const char *bytes, size_t n, char *out);
/* At the end of the text: writes the held bytes to out, unless a stop string was found; returns their number. */
size_t eng_stop_finish(struct eng_stop *s, char *out);

#endif
