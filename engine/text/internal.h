/* engine/text/internal.h - struct eng_vocab and its parts.  Only the files of engine/text include it:
 * vocab.c fills a vocabulary with the help of byte_letters.c and vocab_hash.c; pretokenize.c, bpe.c,
 * tokenize.c and detokenize.c read it.
 *
 * Token text is stored as decoded bytes: the byte letters of byte-level BPE become bytes,
 * SentencePiece's U+2581 becomes a space, and its byte tokens such as <0x41> become one byte.  So
 * merging works on plain bytes for both kinds of vocabulary, and detokenizing copies the token texts.  The texts of
 * control and unknown tokens, and of the user-defined tokens of byte-level BPE, are stored as the file spells them. */
#ifndef ENGINE_TEXT_INTERNAL_H
#define ENGINE_TEXT_INTERNAL_H

#include "engine/text/text.h"

/* ---- byte_letters.c: spellings of bytes and spaces ------------------------------------------------ */

enum { ENG_N_LETTER = 256 + 68 }; /* every code point that spells a byte is smaller than this */

struct eng_letters {
    int16_t byte_of[ENG_N_LETTER]; /* -1: not a byte letter */
    char of_byte[256][3];          /* UTF-8, terminated */
};

void eng_letters_init(struct eng_letters *l);

/* Decodes the token text s (UTF-8) into out[s.n]; returns the number of bytes written.  A character that is no byte
 * letter is copied. */
size_t eng_letters_to_bytes(const struct eng_letters *l, struct moe_string s, char *out);
size_t eng_spaces_from_marks(struct moe_string s, char *out); /* copies s, each U+2581 as ' '; returns the length */
int eng_byte_from_name(struct moe_string s);                  /* "<0x41>" to 0x41; else -1 */

/* ---- vocab_hash.c: the two hash tables ------------------------------------------------------- */

/* Hash table from token text to id.  The texts are borrowed from the caller.  All zero: an empty table. */
struct eng_words {
    struct eng_word {
        uint32_t hash;
        int32_t id;
    } * slot; /* [mask + 1]; id ENG_NO_TOKEN: free */
    size_t mask;
    const struct moe_string *text; /* [n_vocab] */
};

int eng_words_open(struct eng_words *w, const struct moe_string *text, size_t n);
void eng_words_close(struct eng_words *w);
/* Adds id under its text and returns ENG_NO_TOKEN.  If an earlier id has the same text, returns that id
 * and leaves the table unchanged. */
int32_t eng_words_add(struct eng_words *w, int32_t id);
int32_t eng_words_find(const struct eng_words *w, const char *p, size_t n);

/* Maps a pair of neighbouring tokens to the token that they merge into. */
struct eng_pairs {
    struct eng_pair {
        int32_t left, right, id;
        uint32_t rank;
    } * slot; /* left ENG_NO_TOKEN: free */
    size_t mask;
};

int eng_pairs_open(struct eng_pairs *t, size_t n);
void eng_pairs_close(struct eng_pairs *t);
void eng_pairs_add(struct eng_pairs *t, struct eng_pair pair); /* an existing pair is left as it is */
const struct eng_pair *eng_pairs_find(const struct eng_pairs *t, int32_t left, int32_t right);

/* ---- pretokenize.c --------------------------------------------------------------------------- */

struct eng_pre;   /* compiled patterns; immutable, shared by threads */
struct eng_split; /* the match state of one thread */

int eng_pre_open(struct eng_pre **out, struct moe_string name, const char *path);
void eng_pre_close(struct eng_pre *pre);
bool eng_pre_takes_whole_words(const struct eng_pre *pre); /* default of eng_vocab.whole_words */
bool eng_pre_adds_bos(const struct eng_pre *pre);          /* default of eng_vocab.add_bos */

int eng_split_open(struct eng_split **out, const struct eng_pre *pre);
void eng_split_close(struct eng_split *s);

/* Calls piece() for each piece of the text, in order; stops at the first error of piece() and returns it.  Fails with
 * KN_ELIMIT if a match exceeds a limit of PCRE2.  The text must be valid UTF-8. */
typedef int eng_piece(void *arg, const char *p, size_t n);
int eng_split_run(struct eng_split *s, const char *text, size_t n, eng_piece *piece, void *arg);

/* ---- the vocabulary -------------------------------------------------------------------------- */

enum eng_vocab_kind { ENG_VOCAB_BYTES, ENG_VOCAB_PIECES }; /* "gpt2", "llama" */

struct eng_vocab {
    enum eng_vocab_kind kind;
    int n_vocab;
    char *bytes;             /* the texts of all tokens, concatenated */
    struct moe_string *text; /* [n_vocab] texts of the tokens, in `bytes` */
    uint8_t *type;           /* [n_vocab] enum eng_token_type */
    bool *stop;              /* [n_vocab] the token ends generation */
    float *score;            /* [n_vocab], PIECES only */
    size_t max_bytes;        /* length of the longest text */

    struct eng_words words; /* the tokens of type normal, by text */
    struct eng_pairs pairs; /* BYTES only */
    struct eng_pre *pre;    /* BYTES only */
    int32_t byte_id[256];   /* the token of each byte; ENG_NO_TOKEN: the vocabulary lacks this byte */

    struct eng_special {
        struct moe_string text;
        int32_t id;
    } * special;              /* [n_special] sorted by text */
    int n_special;            /* control, user-defined and unknown tokens */
    bool begins_special[256]; /* [first byte] a special token begins with it */

    bool add_bos, add_eos, add_space;
    bool whole_words; /* BYTES: a piece that is as a whole a token becomes that token without merging */
    bool compose;     /* BYTES: normalise text to NFC before the pre-tokeniser */
    int32_t bos, eos, eot, eom, unk, pad;
};

/* ---- bpe.c ----------------------------------------------------------------------------------- */

struct eng_symbol {
    uint32_t start, len, prev, next;
    int32_t id; /* ENG_NO_TOKEN: the symbol's text is no token */
};
struct eng_candidate { /* a pair of neighbouring symbols that can merge */
    uint64_t key;      /* rank << 32 | index of the left symbol */
    uint32_t len;      /* length of both symbols together, in bytes */
};

struct eng_merge {              /* scratch memory of one thread; all zero: empty */
    struct eng_symbol *symbol;  /* [n_symbol] of a window of the piece */
    struct eng_candidate *heap; /* [n_heap] */
    struct eng_symbol *tail;    /* [n_tail] the last symbols of the window before */
    size_t n_symbol, n_heap, n_tail, cap;
    size_t window; /* symbols of a window, for tests; 0: the size that bpe.c chooses */
};

void eng_merge_free(struct eng_merge *m);
/* Appends the ids of one piece of text. */
int eng_merge_bytes(struct eng_merge *m, const struct eng_vocab *v, const char *p, size_t n, struct eng_ids *ids);
int eng_merge_pieces(struct eng_merge *m, const struct eng_vocab *v, const char *p, size_t n, struct eng_ids *ids);

#endif
