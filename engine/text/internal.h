/* engine/text/internal.h - what a vocabulary is made of.  For the files behind text.h only: vocab.c fills
 * it, letters.c and lookup.c help, and pretokenize.c, merge.c, tokenize.c and detokenize.c read it.
 *
 * Token text is kept as the bytes it stands for: byte letters of byte-level BPE are turned back
 * into bytes, SentencePiece's U+2581 into a space, <0x41> into one byte.  So both kinds of
 * vocabulary merge over plain bytes of text, and decoding is copying. */
#ifndef ENGINE_VOCAB_H
#define ENGINE_VOCAB_H

#include "engine/text/text.h"

/* ---- letters.c: spellings ---------------------------------------------------------------------- */

enum { ENG_N_LETTER = 256 + 68 };   /* code points that stand for a byte lie below this */

struct eng_letters {
    int16_t byte_of[ENG_N_LETTER];  /* -1: not a byte letter */
    char of_byte[256][3];           /* UTF-8, terminated */
};

void eng_letters_init(struct eng_letters *l);

/* The text a token stands for, into out[s.n]; returns its length.  s is UTF-8. */
size_t eng_letters_to_bytes(const struct eng_letters *l, struct moe_string s, char *out);
size_t eng_spaces_from_marks(struct moe_string s, char *out);   /* any bytes will do */
int eng_byte_from_name(struct moe_string s);                    /* <0x41>, or -1 */

/* ---- lookup.c: the two hash tables
   -------------------------------------------------------------- */

/* Text to id; the texts themselves stay where they are.  All zero: empty, finds nothing. */
struct eng_words {
    struct eng_word { uint32_t hash; int32_t id; } *slot;   /* [mask + 1]; ENG_NO_TOKEN: free */
    size_t mask;
    const struct moe_string *text;                              /* [n_vocab] */
};

int  eng_words_open(struct eng_words *w, const struct moe_string *text, size_t n);
void eng_words_close(struct eng_words *w);
/* The id that has this text already, or ENG_NO_TOKEN when `id` was put in. */
int32_t eng_words_add(struct eng_words *w, int32_t id);
int32_t eng_words_find(const struct eng_words *w, const char *p, size_t n);

/* Two neighbouring tokens to what they merge into. */
struct eng_pairs {
    struct eng_pair { int32_t left, right, id; uint32_t rank; } *slot; /* ENG_NO_TOKEN: free */
    size_t mask;
};

int  eng_pairs_open(struct eng_pairs *t, size_t n);
void eng_pairs_close(struct eng_pairs *t);
void eng_pairs_add(struct eng_pairs *t, struct eng_pair pair);  /* of equals the first stays */
const struct eng_pair *eng_pairs_find(const struct eng_pairs *t, int32_t left, int32_t right);

/* ---- pretokenize.c
   ------------------------------------------------------------------------------ */

struct eng_pre;                     /* compiled patterns; shared by threads */
struct eng_split;                   /* one thread's match state */

int  eng_pre_open(struct eng_pre **out, struct moe_string name, const char *path);
void eng_pre_close(struct eng_pre *pre);
bool eng_pre_takes_whole_words(const struct eng_pre *pre);      /* a token needs no merges */
bool eng_pre_adds_bos(const struct eng_pre *pre);               /* unless the file says otherwise */

int  eng_split_open(struct eng_split **out, const struct eng_pre *pre);
void eng_split_close(struct eng_split *s);

/* Calls piece() for every piece of the text, in order.  The text is UTF-8. */
typedef int eng_piece(void *arg, const char *p, size_t n);
int eng_split_run(struct eng_split *s, const char *text, size_t n, eng_piece *piece, void *arg);

/* ---- the vocabulary
   ----------------------------------------------------------------------------- */

enum eng_vocab_kind { ENG_VOCAB_BYTES, ENG_VOCAB_PIECES };      /* "gpt2", "llama" */

struct eng_vocab {
    enum eng_vocab_kind kind;
    int n_vocab;
    char *bytes;                    /* every token's text, end to end */
    struct moe_string *text;        /* [n_vocab] views of bytes */
    uint8_t *type;                  /* [n_vocab] enum eng_token_type */
    bool *stop;                     /* [n_vocab] */
    float *score;                   /* [n_vocab], PIECES only */
    size_t max_bytes;               /* the longest text */

    struct eng_words words;         /* what plain text may become */
    struct eng_pairs pairs;         /* BYTES only */
    struct eng_pre *pre;            /* BYTES only */
    int32_t byte_id[256];           /* ENG_NO_TOKEN: the vocabulary lacks this byte */

    struct eng_special { struct moe_string text; int32_t id; } *special;   /* [n_special] by text */
    int n_special;                  /* control, user-defined and unknown tokens */
    bool begins_special[256];       /* by first byte */

    bool add_bos, add_eos, add_space;
    bool whole_words;               /* BYTES: a word that is a token needs no merges */
    bool compose;                   /* BYTES: text is put into NFC before it is cut */
    int32_t bos, eos, eot, eom, unk, pad;
};

/* ---- merge.c
   ------------------------------------------------------------------------------------ */

struct eng_symbol { uint32_t start, len, prev, next; int32_t id; }; /* ENG_NO_TOKEN: none yet */
struct eng_candidate { uint64_t key; uint32_t len; };

struct eng_merge {                  /* scratch of one call; all zero: empty */
    struct eng_symbol *symbol;      /* [n_symbol] */
    struct eng_candidate *heap;     /* [n_heap] */
    size_t n_symbol, n_heap, cap;
};

void eng_merge_free(struct eng_merge *m);
/* Appends the ids of one piece of text. */
int eng_merge_bytes(struct eng_merge *m, const struct eng_vocab *v, const char *p, size_t n,
                    struct eng_ids *ids);
int eng_merge_pieces(struct eng_merge *m, const struct eng_vocab *v, const char *p, size_t n,
                     struct eng_ids *ids);

#endif
