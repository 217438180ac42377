/* tests/engine/text/recipe.h - small vocabularies for the tokenizer tests, which tests then spoil one field at a time.
 *
 * recipe_bpe() and recipe_spm() fill a struct with the contents of the file; a test changes fields; recipe_open()
 * writes the GGUF file and opens a vocabulary from it. Each including test has its own copy of these static
 * functions. */
#ifndef TESTS_ENGINE_TEXT_RECIPE_H
#define TESTS_ENGINE_TEXT_RECIPE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/text/internal.h"

#define KEY "tokenizer.ggml."

enum { MAX_TOKEN = 400, MAX_MERGE = 64, MAX_SCALAR = 16 };

struct recipe {
    const char *model, *pre, *chat; /* NULL: not in the file */
    struct moe_string token[MAX_TOKEN], merge[MAX_MERGE];
    int32_t type[MAX_TOKEN];
    float score[MAX_TOKEN];
    size_t n_token, n_type, n_score, n_merge;
    struct {
        const char *key;
        int64_t value;
    } scalar[MAX_SCALAR]; /* bools as 0 and 1 */
    int n_scalar;
    const char *other; /* this array is written with a wrong type: */
    bool other_scalar; /* as a number, else as another array type */
};

static struct eng_letters letters;

static int32_t recipe_token(struct recipe *r, const char *text, int type, float score)
{
    const size_t i = r->n_token++;

    r->token[i] = (struct moe_string){ .data = text, .n = strlen(text) };
    r->type[i] = type;
    r->score[i] = score;
    r->n_type = r->n_score = r->n_token;
    return (int32_t)i;
}

static void recipe_merge(struct recipe *r, const char *text)
{
    r->merge[r->n_merge++] = (struct moe_string){ .data = text, .n = strlen(text) };
}

static void recipe_scalar(struct recipe *r, const char *key, int64_t value)
{
    for (int i = 0; i < r->n_scalar; i++)
        if (!strcmp(r->scalar[i].key, key)) {
            r->scalar[i].value = value;
            return;
        }
    r->scalar[r->n_scalar].key = key;
    r->scalar[r->n_scalar++].value = value;
}

/* Token b < 256 is byte b; then "he" 256, "ll" 257, "hell" 258, "hello" 259, " h" 260, "whole" 261, which no merge
 * produces, and special tokens from 262. */
static void recipe_bpe(struct recipe *r)
{
    static const char *const merges[] = { "h e", "l l", "he ll", "hell o", "\xC4\xA0 h" };

    *r = (struct recipe){ .model = "gpt2", .pre = "gpt-2" };
    eng_letters_init(&letters);
    for (int b = 0; b < 256; b++)
        recipe_token(r, letters.of_byte[b], ENG_TOKEN_NORMAL, 0);
    recipe_token(r, "he", ENG_TOKEN_NORMAL, 0);
    recipe_token(r, "ll", ENG_TOKEN_NORMAL, 0);
    recipe_token(r, "hell", ENG_TOKEN_NORMAL, 0);
    recipe_token(r, "hello", ENG_TOKEN_NORMAL, 0);
    recipe_token(r, "\xC4\xA0h", ENG_TOKEN_NORMAL, 0);
    recipe_token(r, "whole", ENG_TOKEN_NORMAL, 0);
    recipe_token(r, "<s>", ENG_TOKEN_CONTROL, 0); /* 262 */
    recipe_token(r, "<|im_end|>", ENG_TOKEN_CONTROL, 0);
    recipe_token(r, "<u>", ENG_TOKEN_USER, 0); /* 264 */
    recipe_token(r, "<u>v", ENG_TOKEN_USER, 0);
    recipe_token(r, "<u>vw", ENG_TOKEN_CONTROL, 0); /* 266 */
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++)
        recipe_merge(r, merges[i]);
    recipe_scalar(r, KEY "bos_token_id", 262);
    recipe_scalar(r, KEY "eos_token_id", 263);
}

/* <unk> 0, <s> 1, </s> 2, the bytes from 3, then pieces from 259. */
static inline void recipe_spm(struct recipe *r)
{
    static char bytes[256][7];
    static const struct {
        const char *text;
        float score;
    } pieces[] = {
        { "\xE2\x96\x81", -1 },
        { "h", -2 },
        { "e", -3 },
        { "l", -4 },
        { "o", -5 },
        { "he", -6 },
        { "ll", -7 },
        { "hell", -8 },
        { "\xE2\x96\x81h", -9 },
        { "\xE2\x96\x81hell", -10 },
        { "lo", -20 },
    };

    *r = (struct recipe){ .model = "llama" };
    recipe_token(r, "<unk>", ENG_TOKEN_UNKNOWN, 0);
    recipe_token(r, "<s>", ENG_TOKEN_CONTROL, 0);
    recipe_token(r, "</s>", ENG_TOKEN_CONTROL, 0);
    for (int b = 0; b < 256; b++) {
        snprintf(bytes[b], sizeof bytes[b], "<0x%02X>", b);
        recipe_token(r, bytes[b], ENG_TOKEN_BYTE, 0);
    }
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        recipe_token(r, pieces[i].text, ENG_TOKEN_NORMAL, pieces[i].score);
    recipe_token(r, "<u>", ENG_TOKEN_USER, 0); /* 270 */
}

/* The same pieces as files of gemma4 have them: merges in place of scores. */
static inline void recipe_gemma4(struct recipe *r)
{
    static const char *const merges[] = { "h e", "l l", "he ll", "\xE2\x96\x81 h", "\xE2\x96\x81 hell", "l o" };

    recipe_spm(r);
    r->model = "gemma4";
    for (size_t i = 0; i < r->n_score; i++)
        r->score[i] = -1000;
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++)
        recipe_merge(r, merges[i]);
}

static bool is_flag(const char *key) { return strstr(key, "add_") || strstr(key, "remove_"); }

static void put_array(struct moe_writer *w, const struct recipe *r, const char *key, enum moe_type item,
                      const void *data, size_t n)
{
    static const struct moe_string strings[MAX_TOKEN];
    static const int32_t numbers[MAX_TOKEN];

    if (!n)
        return;
    if (!r->other || strcmp(r->other, key))
        moe_writer_array(w, key, item, data, n);
    else if (r->other_scalar)
        moe_writer_value(w, key, MOE_I32, numbers);
    else if (item == MOE_STRING)
        moe_writer_array(w, key, MOE_I32, numbers, n);
    else
        moe_writer_array(w, key, MOE_STRING, strings, n);
}

static void recipe_write(const struct recipe *r, const char *path)
{
    struct moe_writer *w;

    assert_int_equal(moe_writer_open(&w, path), 0);
    moe_writer_string(w, "general.architecture", "none", 4);
    if (r->model)
        moe_writer_string(w, KEY "model", r->model, strlen(r->model));
    if (r->pre)
        moe_writer_string(w, KEY "pre", r->pre, strlen(r->pre));
    if (r->chat)
        moe_writer_string(w, "tokenizer.chat_template", r->chat, strlen(r->chat));
    put_array(w, r, KEY "tokens", MOE_STRING, r->token, r->n_token);
    put_array(w, r, KEY "token_type", MOE_I32, r->type, r->n_type);
    put_array(w, r, KEY "scores", MOE_F32, r->score, r->n_score);
    put_array(w, r, KEY "merges", MOE_STRING, r->merge, r->n_merge);
    for (int i = 0; i < r->n_scalar; i++) {
        const uint32_t value = (uint32_t)r->scalar[i].value;
        const bool flag = value;

        if (is_flag(r->scalar[i].key))
            moe_writer_value(w, r->scalar[i].key, MOE_BOOL, &flag);
        else
            moe_writer_value(w, r->scalar[i].key, MOE_U32, &value);
    }
    assert_int_equal(moe_writer_header(w), 0);
    assert_int_equal(moe_writer_finish(w), 0);
    moe_writer_close(w);
}

static inline int vocab_from(struct eng_vocab **out, const char *path)
{
    struct moe_file *file;
    int err = moe_file_open(&file, path);

    if (err)
        return err;
    err = eng_vocab_open(out, file);
    moe_file_close(file);
    return err;
}

static inline int recipe_open(const struct recipe *r, struct eng_vocab **out)
{
    char path[64];
    int err;

    snprintf(path, sizeof path, "/tmp/spillway-vocab-%d.gguf", (int)getpid());
    recipe_write(r, path);
    err = vocab_from(out, path);
    unlink(path);
    return err;
}

/* Ids as "1 2 3", in the caller's buffer. */
static const char *ids_text(const struct eng_ids *ids, char *out, size_t bytes)
{
    size_t n = 0;

    out[0] = 0;
    for (size_t i = 0; i < ids->n && n + 16 < bytes; i++)
        n += (size_t)snprintf(out + n, bytes - n, i ? " %d" : "%d", (int)ids->id[i]);
    return out;
}

static inline void expect_ids(const struct eng_vocab *v, const char *text, unsigned flags, const char *want)
{
    struct eng_ids ids = { 0 };
    char got[4096];

    assert_int_equal(eng_tokenize(v, text, strlen(text), flags, &ids), 0);
    assert_string_equal(ids_text(&ids, got, sizeof got), want);
    eng_ids_free(&ids);
}

#endif
