/* moe/write/synth_vocab.c - a byte-level BPE vocabulary for models with random weights.
 *
 * Output: the tokenizer's arrays, a function of n_vocab and the seed: the 256 bytes, then merged tokens, then three
 * control tokens.  Every merge joins two existing tokens into a new one.  A merged token is a run of up to eight
 * letters, alternating consonants and vowels, with or without a space before it.  No pre-tokeniser splits such a run,
 * so every token can occur in encoded text, and generated text is pronounceable. */
#include "moe/write/write.h"

#include <string.h>

#define LETTERS_MOST 8
#define TEXT_BYTES   16 /* size of a token's text: up to 8 letters and 2 bytes for a space, zero-padded */
#define N_CONTROL    3

static const char *const control[N_CONTROL] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };

static const char chat_template[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

struct token {
    char text[TEXT_BYTES];
    uint8_t n, n_letter; /* number of bytes; of letters: 0 for a byte that merges do not use, and for the space */
    bool spaced;
};

struct vocab {
    struct token *token;      /* [n], bytes first */
    int *word;                /* [n_word] tokens that merges may use */
    uint32_t *slot;           /* [n_slot] texts by hash; 0 is empty, else token + 1 */
    char *merges;             /* every merge, as "left right" */
    struct moe_string *merge; /* [n - 256] */
    size_t merge_bytes;
    uint32_t n_slot;
    int n, n_word, n_space; /* n_space: the token of the space itself */
};

/* ---- bytes as characters --------------------------------------------------------------------- */

static void add_byte(struct vocab *v, int byte)
{
    struct token *t = &v->token[v->n];
    moe_byte_letter(byte, t->text);
    t->n = (uint8_t)strlen(t->text);
    if (byte == ' ')
        v->n_space = v->n;
    if (byte >= 'a' && byte <= 'z') {
        t->n_letter = 1;
        v->word[v->n_word++] = v->n;
    }
    v->n++;
}

/* Adds the 256 byte tokens in the order of GPT-2's vocabulary: printable bytes, which are spelled as themselves, then
 * the others. */
static void add_bytes(struct vocab *v)
{
    char letter[3];
    for (int other = 0; other < 2; other++)
        for (int b = 0; b < 256; b++)
            if ((moe_byte_letter(b, letter) > 255) == other)
                add_byte(v, b);
}

/* ---- merges ---------------------------------------------------------------------------------- */

static bool is_vowel(char c) { return memchr("aeiou", c, 5) != NULL; }

static uint32_t *find(struct vocab *v, const struct token *t)
{
    uint64_t words[2];
    memcpy(words, t->text, sizeof words); /* texts are padded with zeros */
    for (uint64_t i = kn_mix(kn_mix(words[0] + KN_GOLDEN) ^ words[1]);; i++) {
        uint32_t *slot = &v->slot[i & (v->n_slot - 1)];
        if (!*slot || !memcmp(v->token[*slot - 1].text, t->text, TEXT_BYTES))
            return slot;
    }
}

/* Adds the merge of a and b, and the token that it makes.  Does nothing and returns false if consonants and vowels of
 * the result do not alternate, if it has more than LETTERS_MOST letters, if b has a space, or if the token exists. */
static bool join(struct vocab *v, const struct token *a, const struct token *b)
{
    struct token t = *a;
    bool space = a == &v->token[v->n_space];
    if (a->n_letter + b->n_letter > LETTERS_MOST || b->spaced)
        return false;
    if (!space && is_vowel(a->text[a->n - 1]) == is_vowel(b->text[0]))
        return false;
    memcpy(t.text + t.n, b->text, b->n);
    t.n = (uint8_t)(a->n + b->n);
    t.n_letter = (uint8_t)(a->n_letter + b->n_letter);
    t.spaced = space || a->spaced;
    uint32_t *slot = find(v, &t);
    if (*slot)
        return false;

    char *merge = v->merges + v->merge_bytes;
    memcpy(merge, a->text, a->n);
    merge[a->n] = ' ';
    memcpy(merge + a->n + 1, b->text, b->n);
    v->merge[v->n - 256] = (struct moe_string){ merge, a->n + 1u + b->n };
    v->merge_bytes += a->n + 1u + b->n;

    *slot = (uint32_t)v->n + 1;
    v->token[v->n] = t;
    v->word[v->n_word++] = v->n++;
    return true;
}

/* Makes merges until there are n tokens.  One attempt in eight puts a space before a word.  The others join any word
 * with one of the first 538 words, which are shorter. */
static int make_merges(struct vocab *v, const char *pre, int n, uint64_t seed)
{
    uint64_t give_up = UINT64_C(1000) * (uint64_t)n;
    for (uint64_t i = 0; v->n < n; i++) {
        if (i == give_up)
            return kn_fail(KN_ELIMIT, "synth: no vocabulary of %d tokens can be made (%s)", n, pre);
        uint64_t r = kn_mix(seed + KN_GOLDEN * (i + 1));
        const struct token *left = &v->token[v->word[(r >> 8 & 0xffffff) % (unsigned)v->n_word]];
        unsigned old = (unsigned)kn_min(v->n_word, 26 + 512);
        const struct token *right = &v->token[v->word[(r >> 32) % old]];
        if (r % 8 == 0) {
            right = left;
            left = &v->token[v->n_space];
        }
        join(v, left, right);
    }
    return 0;
}

/* ---- into the file --------------------------------------------------------------------------- */

static int write_vocab(struct moe_writer *w, const struct vocab *v, const char *pre, struct moe_string *text,
                       int32_t *type)
{
    int n_vocab = v->n + N_CONTROL;
    for (int i = 0; i < v->n; i++) {
        text[i] = (struct moe_string){ v->token[i].text, v->token[i].n };
        type[i] = 1; /* normal */
    }
    for (int i = 0; i < N_CONTROL; i++) {
        text[v->n + i] = (struct moe_string){ control[i], strlen(control[i]) };
        type[v->n + i] = 3; /* control */
    }
    uint32_t text_end = (uint32_t)v->n, turn_end = (uint32_t)v->n + 2;
    bool add_bos = false;
    moe_writer_string(w, "tokenizer.ggml.model", "gpt2", 4);
    moe_writer_string(w, "tokenizer.ggml.pre", pre, strlen(pre));
    moe_writer_array(w, "tokenizer.ggml.tokens", MOE_STRING, text, (size_t)n_vocab);
    moe_writer_array(w, "tokenizer.ggml.token_type", MOE_I32, type, (size_t)n_vocab);
    moe_writer_array(w, "tokenizer.ggml.merges", MOE_STRING, v->merge, (size_t)(v->n - 256));
    moe_writer_value(w, "tokenizer.ggml.bos_token_id", MOE_U32, &text_end);
    moe_writer_value(w, "tokenizer.ggml.eos_token_id", MOE_U32, &turn_end);
    moe_writer_value(w, "tokenizer.ggml.padding_token_id", MOE_U32, &text_end);
    moe_writer_value(w, "tokenizer.ggml.add_bos_token", MOE_BOOL, &add_bos);
    return moe_writer_string(w, "tokenizer.chat_template", chat_template, sizeof chat_template - 1);
}

int moe_synth_vocab(struct moe_writer *w, const char *pre, int n_vocab, uint64_t seed)
{
    kn_assert(n_vocab >= MOE_SYNTH_VOCAB_LEAST);
    size_t n = (size_t)n_vocab;
    struct vocab v = { .n_slot = 1024 };
    while (v.n_slot < 2 * n)
        v.n_slot *= 2;
    v.token = kn_calloc(n, sizeof *v.token);
    v.word = kn_calloc(n, sizeof *v.word);
    v.slot = kn_calloc(v.n_slot, sizeof *v.slot);
    v.merges = kn_calloc(n, TEXT_BYTES);
    v.merge = kn_calloc(n, sizeof *v.merge);
    struct moe_string *text = kn_calloc(n, sizeof *text);
    int32_t *type = kn_calloc(n, sizeof *type);
    int err = 0;
    if (!v.token || !v.word || !v.slot || !v.merges || !v.merge || !text || !type)
        err = kn_fail(KN_ENOMEM, "synth: no memory for a vocabulary of %d tokens", n_vocab);
    if (!err) {
        add_bytes(&v);
        err = make_merges(&v, pre, n_vocab - N_CONTROL, seed);
    }
    if (!err)
        err = write_vocab(w, &v, pre, text, type);
    kn_free(v.token);
    kn_free(v.word);
    kn_free(v.slot);
    kn_free(v.merges);
    kn_free(v.merge);
    kn_free(text);
    kn_free(type);
    return err;
}
