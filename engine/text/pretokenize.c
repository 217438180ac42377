/* engine/text/pretokenize.c - splits text into the pieces within which byte-level BPE merges.
 *
 * In: the pre-tokeniser's name in the model file; then text.  Out: pieces in order, through a
 * callback.  A pre-tokeniser is one to six patterns.  The first splits the text into its matches and
 * the gaps between them.  The next pattern splits each match and each gap as a text of its own, and so on.
 *
 * The patterns are those of the published tokenizer.json files, with two differences that do not
 * change results.  White space is spelt out (WS), because PCRE2's \s also matches U+180E, which is not
 * white space since Unicode 6.3.  And deepseek-llm's pattern for blanks at the end of the text starts only at the
 * first of several blanks, because trying it at every blank would take quadratic time.
 * PCRE2 10.42 implements Unicode 14: letters added later count as symbols.  Matching has explicit
 * limits; a text that exceeds one is refused. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "engine/text/internal.h"

/* clang-format off */
#define WS "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}" \
           "\\x{202F}\\x{205F}\\x{3000}"
#define BLANKS     "[" WS "]+(?![^" WS "])|[" WS "]+"
#define LINE_ENDS  "[" WS "]*[\\r\\n]+|"
#define SUFFIX     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define WORD       "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define SIGNS      " ?[^" WS "\\p{L}\\p{N}]+"

#define GPT2       "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SIGNS "|" BLANKS
#define LLAMA3     SUFFIX WORD "\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" LINE_ENDS BLANKS
#define QWEN2      SUFFIX WORD "\\p{N}|" SIGNS "[\\r\\n]*|" LINE_ENDS BLANKS
/* A new piece begins where a lower-case letter is followed by an upper-case one; contractions stay with their word. */
#define LARGE      "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define SMALL      "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define BEFORE     "[^\\r\\n\\p{L}\\p{N}]?"
#define AFTER      "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
#define GPT4O      BEFORE "[" LARGE "]*[" SMALL "]+" AFTER BEFORE "[" LARGE "]+[" SMALL "]*" AFTER \
                   "\\p{N}{1,3}|" SIGNS "[\\r\\n/]*|" LINE_ENDS BLANKS
/* As GPT4O, but contractions do not stay with their word, and each digit is a piece. */
#define TEKKEN     BEFORE "[" LARGE "]*[" SMALL "]+|" BEFORE "[" LARGE "]+[" SMALL "]*|\\p{N}|" \
                   SIGNS "[\\r\\n/]*|" LINE_ENDS BLANKS
/* Words as in gpt-4o, except that runs of Chinese characters are pieces of their own.  A character class
 * cannot exclude a script, hence the lookahead in NO_HAN.  A repeated group uses memory for every
 * character it can backtrack over, so all repetitions are possessive.  Instead of backtracking,
 * "LARGE*, then SMALL+" is written as two cases.  Either a character that is in SMALL only (\p{Ll}) follows LARGE*,
 * and then SMALL*; or there is no such character, and the match ends with the last character that is in both. */
#define HAN        "\\p{sc:Han}"
#define NO_HAN(x)  "(?:(?!" HAN ")[" x "])"
#define KIMI_K2    HAN "+|" \
                   BEFORE "(?:" NO_HAN(LARGE) "*+\\p{Ll}" NO_HAN(SMALL) "*+|" \
                   "(?:[\\p{Lu}\\p{Lt}]*+" NO_HAN("\\p{Lm}\\p{Lo}\\p{M}") "++)++)" AFTER \
                   BEFORE NO_HAN(LARGE) "++" NO_HAN(SMALL) "*+" AFTER \
                   "\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" LINE_ENDS BLANKS
/* Combining marks belong to words. */
#define QWEN35     SUFFIX BEFORE "[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" \
                   LINE_ENDS BLANKS
#define SEED       SUFFIX WORD "\\p{N}|" SIGNS "|" LINE_ENDS BLANKS
#define BAILING    "'(?i:[sdmt]|ll|ve|re)|" WORD "\\p{N}|" SIGNS "[\\r\\n]*|[" WS "]*[\\r\\n]|" BLANKS
#define DEEPSEEK3  "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|" \
                   " ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINE_ENDS BLANKS
#define KANA_HAN   "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+"
#define CJK        "[\\x{800}-\\x{9FA5}\\x{AC00}-\\x{D7FF}]+"

/* The letters that deepseek-llm lists one by one, and its punctuation. */
#define DEEPSEEK_LETTERS \
    "\\x{41}-\\x{5A}\\x{61}-\\x{7A}\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}" \
    "\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}" \
    "\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}" \
    "\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}" \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}" \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}" \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}" \
    "\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}" \
    "\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}" \
    "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}" \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}" \
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}" \
    "\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}" \
    "\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}" \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}" \
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}" \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}" \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
#define DEEPSEEK_SIGNS \
    "!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}"

enum { MAX_STAGE = 6 };

struct rule {
    const char *pattern[MAX_STAGE];                     /* one per splitting stage; NULL after the last */
    int bytes_from;                                     /* stages from this index on match bytes, not UTF-8; 0: none */
    bool whole_words, adds_bos;
};

static const struct rule rule_gpt2 = { .pattern = { GPT2 } };
static const struct rule rule_llama3 = { { LLAMA3 }, .whole_words = true, .adds_bos = true };
static const struct rule rule_glm4 = { .pattern = { LLAMA3 } };
static const struct rule rule_gpt4o = { .pattern = { GPT4O } };
static const struct rule rule_qwen2 = { .pattern = { QWEN2 } };
static const struct rule rule_starcoder = { .pattern = { "\\p{N}", GPT2 } };
/* Falcon's original splits digits after it has replaced bytes by byte letters.  The letters U+00B2, U+00B3,
 * U+00B9 and U+00BC to U+00BE are digits for Unicode, so here these bytes count as digits. */
static const struct rule rule_falcon = {
    .pattern = { "[\\p{P}$+<=>^~|`]+", GPT2, "[0-9\\xB2\\xB3\\xB9\\xBC-\\xBE]+", "[0-9]{3}" },
    .bytes_from = 2,
};
static const struct rule rule_default = {
    .pattern = { "[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9]{3}" },
};
static const struct rule rule_deepseek_llm = {
    .pattern = { "[\\r\\n]", "[" WS "]?[" DEEPSEEK_LETTERS "]+", "[" WS "]?[" DEEPSEEK_SIGNS "]+",
                 "(?<![" WS "])[" WS "]++\\z", CJK, "\\p{N}" },
};
static const struct rule rule_deepseek_coder = {
    .pattern = { "[\\r\\n]", "[" WS "]?\\p{L}+", "[" WS "]?\\p{P}+", CJK, "\\p{N}" },
};
static const struct rule rule_deepseek3 = { .pattern = { "\\p{N}{1,3}", KANA_HAN, DEEPSEEK3 } };
static const struct rule rule_tekken = { { TEKKEN }, .whole_words = true, .adds_bos = true };
static const struct rule rule_kimi_k2 = { { KIMI_K2 }, .whole_words = true };
static const struct rule rule_qwen35 = { .pattern = { QWEN35 } };
static const struct rule rule_seed = { .pattern = { SEED } };
static const struct rule rule_bailing = { .pattern = { BAILING } };

/* Names found in published files.  Other names are refused. */
static const struct { const char *name; const struct rule *rule; } names[] = {
    { "gpt-2", &rule_gpt2 },                    { "gpt2", &rule_gpt2 },
    { "phi-2", &rule_gpt2 },                    { "mpt", &rule_gpt2 },
    { "olmo", &rule_gpt2 },                     { "jina-es", &rule_gpt2 },
    { "jina-de", &rule_gpt2 },                  { "jina-v2-es", &rule_gpt2 },
    { "jina-v2-de", &rule_gpt2 },               { "llama-bpe", &rule_llama3 },
    { "llama3", &rule_llama3 },                 { "llama-v3", &rule_llama3 },
    { "falcon3", &rule_llama3 },                { "pixtral", &rule_llama3 },
    { "dbrx", &rule_glm4 },                     { "smaug-bpe", &rule_glm4 },
    { "glm4", &rule_glm4 },                     { "chatglm-bpe", &rule_glm4 },
    { "qwen2", &rule_qwen2 },                   { "deepseek-r1-qwen", &rule_qwen2 },
    { "megrez", &rule_qwen2 },                  { "stablelm2", &rule_qwen2 },
    { "hunyuan", &rule_qwen2 },                 { "starcoder", &rule_starcoder },
    { "refact", &rule_starcoder },              { "command-r", &rule_starcoder },
    { "smollm", &rule_starcoder },              { "codeshell", &rule_starcoder },
    { "exaone", &rule_starcoder },              { "falcon", &rule_falcon },
    { "default", &rule_default },               { "deepseek-llm", &rule_deepseek_llm },
    { "deepseek-coder", &rule_deepseek_coder }, { "gpt-4o", &rule_gpt4o },
    { "minimax-m2", &rule_gpt4o },              { "llama4", &rule_gpt4o },
    { "kanana2", &rule_gpt4o },                 { "lfm2", &rule_llama3 },
    { "falcon-h1", &rule_llama3 },              { "midm-2.0", &rule_llama3 },
    { "glm-4", &rule_glm4 },                    { "grok-2", &rule_qwen2 },
    { "solar-open", &rule_qwen2 },              { "qwen35", &rule_qwen35 },
    { "deepseek-v3", &rule_deepseek3 },         { "hunyuan-dense", &rule_deepseek3 },
    { "joyai-llm", &rule_deepseek3 },           { "tekken", &rule_tekken },
    { "kimi-k2", &rule_kimi_k2 },               { "seed-coder", &rule_seed },
    { "seed-oss", &rule_seed },                 { "bailingmoe", &rule_bailing },
    { "bailingmoe2", &rule_bailing },           { "llada-moe", &rule_bailing },
};
/* clang-format on */

struct eng_pre {
    const struct rule *rule;
    pcre2_general_context *memory;
    pcre2_code *code[MAX_STAGE]; /* [n_stage] */
    int n_stage;
};

struct eng_split {
    const struct eng_pre *pre;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    eng_piece *piece;
    void *arg;
};

static void *pcre_alloc(size_t bytes, void *arg)
{
    (void)arg;
    return kn_alloc(bytes);
}

static void pcre_free(void *p, void *arg)
{
    (void)arg;
    kn_free(p);
}

static int compile(struct eng_pre *pre, const char *pattern, bool bytes)
{
    pcre2_compile_context *context = pcre2_compile_context_create(pre->memory);
    const uint32_t options = bytes ? 0 : PCRE2_UTF | PCRE2_UCP;
    pcre2_code *code;
    size_t at;
    int err;

    if (!context)
        return kn_fail(KN_ENOMEM, "no memory for a pre-tokeniser");
    code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &err, &at, context);
    pcre2_compile_context_free(context);
    kn_assert(code || err == PCRE2_ERROR_HEAP_FAILED);
    if (!code)
        return kn_fail(KN_ENOMEM, "no memory for a pre-tokeniser");
    /* The error is ignored: without JIT the pieces are the same, only slower. */
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    pre->code[pre->n_stage++] = code;
    return 0;
}

int eng_pre_open(struct eng_pre **out, struct moe_string name, const char *path)
{
    const struct rule *rule = NULL;
    struct eng_pre *pre;
    int err = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (moe_string_is(name, names[i].name))
            rule = names[i].rule;
    if (!rule)
        return kn_fail(KN_EUNSUPPORTED,
                       "%s: tokenizer.ggml.pre: pre-tokeniser '%.*s' is not supported: its pattern for "
                       "splitting text is unknown",
                       path, (int)(name.n < 64 ? name.n : 64), name.data);
    pre = kn_calloc(1, sizeof *pre);
    if (!pre)
        return kn_fail(KN_ENOMEM, "no memory for a pre-tokeniser");
    pre->rule = rule;
    pre->memory = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (!pre->memory)
        err = kn_fail(KN_ENOMEM, "no memory for a pre-tokeniser");
    for (int i = 0; i < MAX_STAGE && rule->pattern[i] && !err; i++)
        err = compile(pre, rule->pattern[i], rule->bytes_from && i >= rule->bytes_from);
    if (err) {
        eng_pre_close(pre);
        return err;
    }
    *out = pre;
    return 0;
}

void eng_pre_close(struct eng_pre *pre)
{
    if (!pre)
        return;
    for (int i = 0; i < pre->n_stage; i++)
        pcre2_code_free(pre->code[i]);
    pcre2_general_context_free(pre->memory);
    kn_free(pre);
}

bool eng_pre_takes_whole_words(const struct eng_pre *pre) { return pre->rule->whole_words; }

bool eng_pre_adds_bos(const struct eng_pre *pre) { return pre->rule->adds_bos; }

int eng_split_open(struct eng_split **out, const struct eng_pre *pre)
{
    struct eng_split *s = kn_calloc(1, sizeof *s);

    if (!s)
        return kn_fail(KN_ENOMEM, "no memory to tokenize");
    s->pre = pre;
    s->match = pcre2_match_data_create(1, pre->memory);
    s->limits = pcre2_match_context_create(pre->memory);
    if (!s->match || !s->limits) {
        eng_split_close(s);
        return kn_fail(KN_ENOMEM, "no memory to tokenize");
    }
    *out = s;
    return 0;
}

void eng_split_close(struct eng_split *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->limits);
    kn_free(s);
}

static int match_failed(int rc)
{
    if (rc == PCRE2_ERROR_NOMEMORY)
        return kn_fail(KN_ENOMEM, "no memory to tokenize");
    return kn_fail(KN_ELIMIT, "splitting the text into words exceeds the limits of the pattern");
}

/* Splits p[0..n) with the patterns from `stage` on.  Recursion depth: at most MAX_STAGE. */
static int cut(struct eng_split *s, int stage, const char *p, size_t n)
{
    const size_t *found = pcre2_get_ovector_pointer(s->match);
    size_t at = 0;

    if (stage == s->pre->n_stage)
        return s->piece(s->arg, p, n);
    while (at < n) {
        const int rc = pcre2_match(s->pre->code[stage], (PCRE2_SPTR)p, n, at, PCRE2_NO_UTF_CHECK, s->match, s->limits);
        const size_t from = rc > 0 ? found[0] : n, to = rc > 0 ? found[1] : n;
        int err = 0;

        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
            return match_failed(rc);
        kn_assert(rc < 0 || (to > from && from >= at));
        if (from > at)
            err = cut(s, stage + 1, p + at, from - at);
        if (to > from && !err)
            err = cut(s, stage + 1, p + from, to - from);
        if (err)
            return err;
        at = to;
    }
    return 0;
}

/* Sets PCRE2's limits far above the need of a text of n bytes: a match backtracks over a sequence of blanks
 * only once. */
int eng_split_run(struct eng_split *s, const char *text, size_t n, eng_piece *piece, void *arg)
{
    pcre2_set_match_limit(s->limits, n < 100000000 ? 1000000 + 16 * (uint32_t)n : UINT32_MAX);
    pcre2_set_depth_limit(s->limits, 1000);
    pcre2_set_heap_limit(s->limits, 64 << 10); /* KiB */
    s->piece = piece;
    s->arg = arg;
    return cut(s, 0, text, n);
}
