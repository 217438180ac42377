/* moe/files/hf_pretokenizer.c - the pre-tokeniser of tokenizer.json, as its name in GGUF files.
 *
 * A pre_tokenizer is written out as one line for each of its steps and compared with a table.  The table has the exact
 * lines of published pre-tokenisers and the name under which engine/text/pretokenize.c has the same patterns.  A
 * pre_tokenizer that is not in the table is refused and shown: a similar pattern would give subtly wrong tokens.
 *
 * A step may split the text into the matches of its pattern and the gaps ("Isolated"), or keep the matches and remove
 * the gaps ("Removed" with "invert").  If every character of any text is in a match, there are no gaps and the two are
 * the same.  That is so for all pre-tokenisers of the table with a single step of this kind. */
#include "moe/files/hf_folder.h"

#include <stdio.h>
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
#define CJK       "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

/* The letters that deepseek-llm lists one by one. */
#define DEEPSEEK_LETTERS                                                                                               \
    "\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}"         \
    "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}"     \
    "\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}"       \
    "\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}"                  \
    "\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}"                  \
    "\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}"          \
    "\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}"         \
    "\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}"          \
    "\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}"                    \
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}"          \
    "\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}"                   \
    "\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}"                  \
    "\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}"          \
    "\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
#define DEEPSEEK_SIGNS "!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}"

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
                     "split [\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+\n"
                     "split [!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                     "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                     "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" BLANKS "\nbytes\n" },
    { "deepseek-llm", "split [\\r\\n]\nsplit \\s?[A-Za-z" DEEPSEEK_LETTERS "]+\nsplit \\s?[" DEEPSEEK_SIGNS
                      "]+\nsplit \\s+$\nsplit " CJK "\ndigits one by one\nbytes\n" },
    { "deepseek-coder",
      "split [\\r\\n]\nsplit \\s?\\p{L}+\nsplit \\s?\\p{P}+\nsplit " CJK "\ndigits one by one\nbytes\n" },
    { "seed-coder", "split " SUFFIX "|" WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" BLANKS "\nbytes\n" },
    { "bailingmoe", "split '(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
                    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+\nbytes\n" },
};

struct steps {
    char text[STEPS_BYTES];
    size_t n;
    int n_split;
    bool removes_gaps; /* a step keeps only the matches of its pattern */
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

/* Length of the UTF-8 character at s and its code point; jansson has checked that the text is valid. */
static size_t take_character(const char *s, unsigned *code)
{
    unsigned char c = (unsigned char)s[0];
    size_t n = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    *code = c & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++)
        *code = *code << 6 | ((unsigned char)s[i] & 0x3f);
    return n;
}

/* Line ends in a pattern are raw bytes in some files and \r, \n escapes in others; both become escapes.  Characters
 * beyond ASCII become \x{..}. */
static void add_pattern(struct steps *s, const char *text, size_t n)
{
    for (size_t i = 0, step = 1; i < n; i += step) {
        char escape[16];
        unsigned code;
        step = 1;
        if (text[i] == '\r' || text[i] == '\n') {
            add_text(s, text[i] == '\r' ? "\\r" : "\\n");
        } else if ((unsigned char)text[i] < 0x80) {
            add(s, text + i, 1);
        } else {
            step = take_character(text + i, &code);
            snprintf(escape, sizeof escape, "\\x{%X}", code);
            add_text(s, escape);
        }
    }
}

static void add_split(struct steps *s, const json_t *step)
{
    const json_t *pattern = json_object_get(json_object_get(step, "pattern"), "Regex");
    const char *text = json_string_value(pattern), *behavior = json_string_value(json_object_get(step, "behavior"));
    bool inverted = json_is_true(json_object_get(step, "invert"));
    if (!text || !behavior || strcmp(behavior, inverted ? "Removed" : "Isolated")) {
        s->strange = true;
        return;
    }
    s->n_split++;
    s->removes_gaps |= inverted;
    add_text(s, "split ");
    add_pattern(s, text, json_string_length(pattern));
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
    s.strange |= s.removes_gaps && s.n_split > 1;
    for (size_t i = 0; i < sizeof known / sizeof *known && !s.strange; i++)
        if (!strcmp(s.text, known[i].steps))
            return known[i].name;
    char *whole = json_dumps(pre, JSON_COMPACT | JSON_ENCODE_ANY), shown[SHOWN] = "";
    if (whole)
        moe_string_show((struct moe_string){ whole, strlen(whole) }, shown, sizeof shown);
    kn_heap_free(whole);
    kn_fail(KN_EUNSUPPORTED, "%s: this pre_tokenizer is not supported: %s", path, shown);
    return NULL;
}
