/* moe/files/hf_pretokenizer.c - the pre-tokeniser of tokenizer.json, as its name in GGUF files.
 *
 * A pre_tokenizer is written out as one line for each of its steps and compared with a table.  The table has the exact
 * lines of published pre-tokenisers and the name under which engine/text/pretokenize.c has the same patterns.  A
 * pre_tokenizer that is not in the table is refused and shown: a similar pattern would give subtly wrong tokens. */
#include "moe/files/hf_folder.h"

#include <stdlib.h>
#include <string.h>

#define STEPS_BYTES 4096
#define SHOWN       300

#define SUFFIX    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD      "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SIGNS     " ?[^\\s\\p{L}\\p{N}]+"
#define BLANKS    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LARGE_    "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define SMALL_    "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define LARGE     "[" LARGE_ "]"
#define SMALL     "[" SMALL_ "]"
#define NO_HAN(x) "[" x "&&[^\\p{Han}]]"
#define BEFORE    "[^\\r\\n\\p{L}\\p{N}]?"

static const struct {
    const char *name, *steps;
} known[] = {
    { "gpt-2", "words\n" },
    { "starcoder", "digits one by one\nwords\n" },
    { "llama-bpe", "split " SUFFIX "|" WORD "|\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" BLANKS "\nbytes\n" },
    { "qwen2", "split " SUFFIX "|" WORD "|\\p{N}|" SIGNS "[\\r\\n]*|" BLANKS "\nbytes\n" },
    { "qwen35",
      "split " SUFFIX "|" BEFORE "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" BLANKS "\nbytes\n" },
    { "gpt-4o", "split " BEFORE LARGE "*" SMALL "+" SUFFIX "?|" BEFORE LARGE "+" SMALL "*" SUFFIX "?|"
                "\\p{N}{1,3}|" SIGNS "[\\r\\n/]*|" BLANKS "\nbytes\n" },
    { "kimi-k2", "split [\\p{Han}]+|" BEFORE NO_HAN(LARGE_) "*" NO_HAN(SMALL_) "+" SUFFIX "?|" BEFORE NO_HAN(
                     LARGE_) "+" NO_HAN(SMALL_) "*" SUFFIX "?|\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" BLANKS "\nbytes\n" },
    { "tekken",
      "split " BEFORE LARGE "*" SMALL "+|" BEFORE LARGE "+" SMALL "*|\\p{N}|" SIGNS "[\\r\\n/]*|" BLANKS "\nbytes\n" },
    { "deepseek-v3", "split \\p{N}{1,3}\n"
                     "split [\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+\n"
                     "split [!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                     "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                     "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" BLANKS "\nbytes\n" },
    { "seed-coder", "split " SUFFIX "|" WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" BLANKS "\nbytes\n" },
    { "bailingmoe", "split '(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
                    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+\nbytes\n" },
};

struct steps {
    char text[STEPS_BYTES];
    size_t n;
    bool strange;
};

static void add(struct steps *s, const char *text, size_t n)
{
    if (n >= sizeof s->text - s->n)
        s->strange = true;
    else
        memcpy(s->text + s->n, text, n);
    s->n += s->strange ? 0 : n;
}

static void add_text(struct steps *s, const char *text) { add(s, text, strlen(text)); }

/* Line ends in a pattern are raw bytes in some files and \r, \n escapes in others; both become escapes. */
static void add_split(struct steps *s, const json_t *step)
{
    const json_t *pattern = json_object_get(json_object_get(step, "pattern"), "Regex");
    const char *text = json_string_value(pattern), *behavior = json_string_value(json_object_get(step, "behavior"));
    if (!text || !behavior || strcmp(behavior, "Isolated") || json_is_true(json_object_get(step, "invert"))) {
        s->strange = true;
        return;
    }
    add_text(s, "split ");
    for (size_t i = 0; i < json_string_length(pattern); i++)
        if (text[i] == '\r' || text[i] == '\n')
            add_text(s, text[i] == '\r' ? "\\r" : "\\n");
        else
            add(s, text + i, 1);
    add_text(s, "\n");
}

static void add_step(struct steps *s, const json_t *step)
{
    const char *type = json_string_value(json_object_get(step, "type"));
    if (type && !strcmp(type, "Split"))
        add_split(s, step);
    else if (type && !strcmp(type, "Digits") && json_is_true(json_object_get(step, "individual_digits")))
        add_text(s, "digits one by one\n");
    else if (type && !strcmp(type, "ByteLevel") && !json_is_true(json_object_get(step, "add_prefix_space")))
        add_text(s, json_is_false(json_object_get(step, "use_regex")) ? "bytes\n" : "words\n");
    else
        s->strange = true;
}

const char *moe_hf_pre(const json_t *pre, const char *path)
{
    struct steps s = { .n = 0 };
    const char *type = json_string_value(json_object_get(pre, "type"));
    const json_t *list = json_object_get(pre, "pretokenizers");
    if (type && !strcmp(type, "Sequence"))
        for (size_t i = 0; i < json_array_size(list); i++)
            add_step(&s, json_array_get(list, i));
    else
        add_step(&s, pre);
    s.text[s.n] = '\0';
    for (size_t i = 0; i < sizeof known / sizeof *known && !s.strange; i++)
        if (!strcmp(s.text, known[i].steps))
            return known[i].name;
    char *whole = json_dumps(pre, JSON_COMPACT | JSON_ENCODE_ANY), shown[SHOWN] = "";
    if (whole)
        moe_string_show((struct moe_string){ whole, strlen(whole) }, shown, sizeof shown);
    free(whole);
    kn_fail(KN_EUNSUPPORTED, "%s: this pre_tokenizer is not supported: %s", path, shown);
    return NULL;
}
