/* Vocabularies from tokenizer.json or tiktoken.model and the files beside them. Ids equal those of the original
 * tokenizers; special tokens, chat templates and end-of-turn tokens are found; unsupported parts are refused and
 * quoted.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "engine/text/text.h"
#include "tests/faults.h"
#include "tests/moe/folder.h"

#define DATA   "tests/engine/data/"
#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---- a folder with a vocabulary only ------------------------------------------------------------ */

static char *slurp(const char *name, size_t *n)
{
    FILE *f = fopen(name, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *text = calloc(*n + 1, 1);
    assert_int_equal(fread(text, 1, *n, f), *n);
    fclose(f);
    return text;
}

static void save(const char *name, const void *data, size_t n)
{
    char full[160];
    snprintf(full, sizeof full, "%s/%s", folder, name);
    FILE *f = fopen(full, "wb");
    assert_true(f && fwrite(data, 1, n, f) == n && !fclose(f));
}

static void save_text(const char *name, const char *text) { save(name, text, strlen(text)); }

static void save_json(const char *name, const json_t *root)
{
    char *text = json_dumps(root, 0);
    save_text(name, text);
    kn_heap_free(text);
}

static json_t *original(const char *name)
{
    char full[160];
    snprintf(full, sizeof full, DATA "%s.json", name);
    json_t *root = json_load_file(full, 0, NULL);
    assert_non_null(root);
    return root;
}

static int setup(void **state)
{
    static const char header[] = "\x45\0\0\0\0\0\0\0{\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[1],"
                                 "\"data_offsets\":[0,4]}}    ....";
    int error = folder_make(state);
    save("model.safetensors", header, sizeof header - 1);
    save_text("config.json", "{\"model_type\":\"qwen2\",\"num_hidden_layers\":1,\"hidden_size\":8,"
                             "\"num_attention_heads\":1,\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":null}");
    return error;
}

static int open_vocab(struct eng_vocab **v, struct moe_file **f)
{
    int error = moe_file_open(f, folder);
    return error ? error : eng_vocab_open(v, *f);
}

/* ---- ids --------------------------------------------------------------------------------------- */

/* The same list is in data/make_json.py. */
static const char *const more[] = {
    ("e\xCC\x81te\xCC\x81 cafe\xCC\x81 \xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8 \xCD\x84"
     "a"),
    "\xE2\x84\xABngstr\xC3\xB6m \xE2\x84\xA6 \xEF\xA4\x80\xE4\xB8\xAD",
    "<|start|>a<|start|> <tool>b</tool><|end|>",
    "   <|end|>   x",
    "aaaa aaaaaaa      aaa",
};

static const char *expect_line(const struct eng_vocab *v, const char *text, size_t n, const char *line)
{
    struct eng_ids ids = { 0 };
    assert_int_equal(eng_tokenize(v, text, n, ENG_TEXT_PARSE_SPECIAL, &ids), 0);
    for (size_t i = 0; i < ids.n; i++) {
        char *end;
        if (ids.id[i] != strtol(line, &end, 10) || line == end)
            fail_msg("'%.*s': id %zu is %d, not '%.8s'", (int)n, text, i, (int)ids.id[i], line);
        line = end;
    }
    line += strspn(line, " ");
    assert_int_equal(*line, '\n');
    eng_ids_free(&ids);
    return line + 1;
}

/* Compares the texts of texts.bin, each preceded by its length. */
static const char *expect_texts(const struct eng_vocab *v, const char *texts, size_t n, const char *line)
{
    for (size_t at = 0; at < n;) {
        uint32_t len;
        memcpy(&len, texts + at, 4);
        line = expect_line(v, texts + at + 4, len, line);
        at += 4 + len;
    }
    return line;
}

/* The tokenizer.json of a name; hf-gemma is hf-pieces without a space before the text. */
static json_t *tokenizer_of(const char *name)
{
    bool gemma = !strcmp(name, "hf-gemma");
    json_t *root = original(gemma ? "hf-pieces" : name);
    if (gemma) {
        json_object_set_new(
            root, "normalizer",
            json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ", "content", "\u2581"));
        json_object_set_new(root, "pre_tokenizer",
                            json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "String", " ", "behavior",
                                      "MergedWithPrevious", "invert", 0));
    }
    return root;
}

static void ids_are_those_of_the_original(void **state)
{
    (void)state;
    static const char *const name[] = { "hf-bytes", "hf-pieces", "hf-gemma" };
    size_t n, n_line;
    char *texts = slurp(DATA "texts.bin", &n);
    for (int i = 0; i < LEN(name); i++) {
        struct eng_vocab *v;
        struct moe_file *f;
        char lines_path[160];
        json_t *root = tokenizer_of(name[i]);
        save_json("tokenizer.json", root);
        json_decref(root);
        snprintf(lines_path, sizeof lines_path, DATA "%s.ids", name[i]);
        char *lines = slurp(lines_path, &n_line);
        const char *line = lines;
        assert_int_equal(open_vocab(&v, &f), 0);
        moe_file_close(f);
        line = expect_texts(v, texts, n, line);
        for (int k = 0; k < LEN(more); k++)
            line = expect_line(v, more[k], strlen(more[k]), line);
        assert_int_equal(*line, 0);
        eng_vocab_close(v);
        free(lines);
    }
    free(texts);
}

/* hf-pre.json: published pre-tokenisers with their names in GGUF files. */
static void pre_tokenizers_have_their_names(void **state)
{
    (void)state;
    json_t *list = original("hf-pre"), *root = original("hf-bytes");
    assert_true(json_array_size(list) >= 13);
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct moe_string name = { "", 0 };
        struct moe_file *f;
        const json_t *row = json_array_get(list, i);
        const char *want = json_string_value(json_object_get(row, "name"));
        json_object_set(root, "pre_tokenizer", json_object_get(row, "pre_tokenizer"));
        save_json("tokenizer.json", root);
        assert_int_equal(moe_file_open(&f, folder), 0);
        assert_int_equal(moe_file_string(f, "tokenizer.ggml.pre", &name), 1);
        if (!moe_string_is(name, want))
            fail_msg("%zu: %.*s is not %s", i, (int)name.n, name.data, want);
        moe_file_close(f);
        json_t *step = json_array_get(json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers"), 0);
        if (strcmp(want, "deepseek-v3")) /* its first pattern leaves gaps, which must not be removed */
            continue;
        json_object_set_new(step, "behavior", json_string("Removed"));
        json_object_set_new(step, "invert", json_true());
        save_json("tokenizer.json", root);
        faults_reset();
        faults_own();
        assert_int_equal(moe_file_open(&f, folder), KN_EUNSUPPORTED);
        assert_non_null(strstr(faults.line, "pre_tokenizer is not supported"));
    }
    json_decref(list);
    json_decref(root);
}

/* ---- roles ------------------------------------------------------------------------------------- */

static struct moe_string template_of(const struct moe_file *f)
{
    struct moe_string s = { "", 0 };
    assert_true(moe_file_string(f, "tokenizer.chat_template", &s) >= 0);
    return s;
}

static void roles_and_templates_come_from_beside_it(void **state)
{
    (void)state;
    struct eng_vocab *v;
    struct moe_file *f;
    json_t *root = original("hf-bytes");
    save_json("tokenizer.json", root);
    assert_int_equal(open_vocab(&v, &f), 0);
    assert_int_equal(eng_vocab_bos(v), 1); /* from config.json */
    assert_int_equal(eng_vocab_eos(v), 2);
    assert_true(eng_vocab_adds_bos(v)); /* from its post_processor */
    assert_true(eng_vocab_is_stop(v, 2) && !eng_vocab_is_stop(v, 5));
    assert_int_equal(template_of(f).n, 0);
    assert_int_equal(eng_vocab_type(v, 701), ENG_TOKEN_CONTROL);
    assert_int_equal(eng_vocab_type(v, 703), ENG_TOKEN_USER);
    eng_vocab_close(v);
    moe_file_close(f);

    save_text("tokenizer_config.json",
              "{\"bos_token\":{\"content\":\"<|start|>\"},\"eos_token\":\"<|end|>\","
              "\"pad_token\":\"<|pad|>\",\"add_bos_token\":false,\"chat_template\":[{\"name\":\"x\",\"template\":"
              "\"X\"},{\"name\":\"default\",\"template\":\"one\"}]}");
    save_text("generation_config.json", "{\"eos_token_id\":[701,5,6,7,8],\"temperature\":0.6,\"top_k\":20,"
                                        "\"top_p\":0.95,\"min_p\":null,\"repetition_penalty\":1.05,"
                                        "\"do_sample\":false,\"max_new_tokens\":9}");
    assert_int_equal(open_vocab(&v, &f), 0);
    assert_int_equal(eng_vocab_bos(v), 700);
    assert_int_equal(eng_vocab_eos(v), 701);
    assert_int_equal(eng_vocab_pad(v), 702);
    double x = 0;
    assert_true(moe_file_float(f, "general.sampling.temp", &x) == 1 && (float)x == 0.6f);
    assert_true(moe_file_float(f, "general.sampling.top_k", &x) == 1 && x == 20);
    assert_true(moe_file_float(f, "general.sampling.top_p", &x) == 1 && (float)x == 0.95f);
    assert_true(moe_file_float(f, "general.sampling.penalty_repeat", &x) == 1 && (float)x == 1.05f);
    assert_null(moe_file_find(f, "general.sampling.min_p"));
    assert_false(eng_vocab_adds_bos(v));
    for (int id = 5; id < 9; id++)
        assert_true(eng_vocab_is_stop(v, id));
    assert_false(eng_vocab_is_stop(v, 2));
    assert_true(moe_string_is(template_of(f), "one"));
    eng_vocab_close(v);
    moe_file_close(f);

    json_object_set_new(root, "post_processor", json_null());
    save_json("tokenizer.json", root);
    save_text("tokenizer_config.json",
              "{\"bos_token\":\"<|start|>\",\"add_bos_token\":true,\"chat_template\":\"one\"}");
    assert_int_equal(open_vocab(&v, &f), 0);
    assert_true(eng_vocab_adds_bos(v)); /* add_bos_token comes before the post_processor, either way */
    eng_vocab_close(v);
    moe_file_close(f);

    save_text("chat_template.jinja", "two");
    assert_int_equal(open_vocab(&v, &f), 0);
    assert_true(moe_string_is(template_of(f), "two"));
    eng_vocab_close(v);
    moe_file_close(f);

    json_object_set_new(json_object_get(root, "model"), "ignore_merges", json_false());
    save_json("tokenizer.json", root);
    assert_int_equal(open_vocab(&v, &f), 0);
    struct eng_ids ids = { 0 };
    struct moe_string whole = eng_vocab_text(v, 556); /* 556: 256 + 300, the token without its merge */
    assert_int_equal(eng_tokenize(v, whole.data, whole.n, 0, &ids), 0);
    assert_true(ids.n > 1);
    eng_ids_free(&ids);
    eng_vocab_close(v);
    moe_file_close(f);
    json_decref(root);
}

/* ---- refusals ----------------------------------------------------------------------------------- */

/* Sets the value at a path of keys (numbers are array indices); NULL removes it. */
static void change(json_t *root, const char *where, const char *value)
{
    char copy[128], *rest = copy, *key;
    json_t *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    snprintf(copy, sizeof copy, "%s", where);
    while ((key = strsep(&rest, "/")) && rest)
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(key)) : json_object_get(root, key);
    if (json_is_array(root) && v)
        json_array_set_new(root, (size_t)atoi(key), v);
    else if (json_is_array(root))
        json_array_remove(root, (size_t)atoi(key));
    else if (v)
        json_object_set_new(root, key, v);
    else
        json_object_del(root, key);
}

static void what_is_not_known_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *where, *value;
        int code;
        const char *says;
    } kind[] = {
        { "hf-bytes", "normalizer", "{\"type\":\"Lowercase\"}", KN_EUNSUPPORTED,
          "normalizer is not supported: {\"type\":\"Lower" },
        { "hf-bytes", "pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\w+|x\"", KN_EUNSUPPORTED, "w+|x" },
        { "hf-bytes", "pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", KN_EUNSUPPORTED,
          "pre_tokenizer is not" },
        { "hf-bytes", "pre_tokenizer/pretokenizers/0/invert", "true", KN_EUNSUPPORTED, "pre_tokenizer is not" },
        { "hf-bytes", "pre_tokenizer/pretokenizers/1/add_prefix_space", "true", KN_EUNSUPPORTED,
          "pre_tokenizer is not" },
        { "hf-bytes", "pre_tokenizer", "{\"type\":\"Whitespace\"}", KN_EUNSUPPORTED, "Whitespace" },
        { "hf-bytes", "post_processor", "{\"type\":\"BertProcessing\"}", KN_EUNSUPPORTED, "BertProcessing" },
        { "hf-bytes", "post_processor/single/1", "{\"SpecialToken\":{\"id\":\"x\"}}", KN_EUNSUPPORTED,
          "post_processor" },
        { "hf-bytes", "added_tokens/0/lstrip", "true", KN_EUNSUPPORTED, "added token is not supported: {\"id\":700" },
        { "hf-bytes", "added_tokens/0/id", "-1", KN_ECORRUPT, "added_tokens" },
        { "hf-bytes", "added_tokens/0/id", "16777216", KN_ECORRUPT, "added_tokens" },
        { "hf-bytes", "added_tokens/0/id", "1000000", KN_ECORRUPT, "far larger" },
        { "hf-bytes", "added_tokens/0/id", "5", KN_ECORRUPT, "same id" },
        { "hf-bytes", "added_tokens/0/content", "\"\"", KN_ECORRUPT, "no content" },
        { "hf-bytes", "model/type", "\"Unigram\"", KN_EUNSUPPORTED, "not BPE" },
        { "hf-bytes", "model/dropout", "0.1", KN_EUNSUPPORTED, "dropout is not supported: 0.1" },
        { "hf-bytes", "model/vocab", "[]", KN_ECORRUPT, "vocab and merges" },
        { "hf-bytes", "model/vocab/a", "\"x\"", KN_ECORRUPT, "model.vocab" },
        { "hf-bytes", "model/vocab/a", "5", KN_ECORRUPT, "same id" },
        { "hf-bytes", "model/merges", "{}", KN_ECORRUPT, "vocab and merges" },
        { "hf-bytes", "model/merges/1", "\"ab\"", KN_ECORRUPT, "no pair" },
        { "hf-bytes", "model/merges/1", "[\"a\"]", KN_ECORRUPT, "no pair" },
        { "hf-bytes", "model/merges/1", "[\"a\",\"zzzz\"]", KN_ECORRUPT, "merge 1" },
        { "hf-pieces", "normalizer", "null", KN_EUNSUPPORTED, "normalizer is not supported: null" },
        { "hf-pieces", "normalizer/normalizers/0/prepend", "\"_\"", KN_EUNSUPPORTED, "normalizer" },
        { "hf-pieces", "pre_tokenizer", "{\"type\":\"Metaspace\"}", KN_EUNSUPPORTED, "Metaspace" },
        { "hf-pieces", "model/merges/0", "[\"t\",\"h\"]", KN_EUNSUPPORTED, "not in the order" },
        { "hf-pieces", "model/merges/0", "[\"t\",\"zzzz\"]", KN_ECORRUPT, "no token" },
        { "hf-pieces", "model/merges/1", "[\"\u2581\",\"a\"]", KN_ECORRUPT, "a merge occurs twice" },
        { "hf-pieces", "model/merges/4", NULL, KN_EUNSUPPORTED,
          "1 pairs of its tokens join to a token but are no merges" },
        { "hf-pieces", "model/merges/392", NULL, KN_EUNSUPPORTED, "1 pairs of its tokens" },
        { "hf-pieces", "model/vocab/\u2603\u2603", "600", KN_EUNSUPPORTED, "pairs of its tokens" },
        { "hf-pieces", "model/vocab/t\u2603", "600", KN_EUNSUPPORTED, "pairs of its tokens" },
    };
    for (int i = 0; i < LEN(kind); i++) {
        struct eng_vocab *v = NULL;
        struct moe_file *f = NULL;
        json_t *root = original(kind[i].name);
        change(root, kind[i].where, kind[i].value);
        save_json("tokenizer.json", root);
        json_decref(root);
        faults_reset();
        faults_own();
        int got = open_vocab(&v, &f);
        eng_vocab_close(v);
        moe_file_close(f);
        if (got != kind[i].code || faults.n_line != 1 || !strstr(faults.line, kind[i].says) || !faults_clean())
            fail_msg("%s %s: got %d, want %d; %d lines: %s", kind[i].where, kind[i].value, got, kind[i].code,
                     faults.n_line, faults.line);
        faults_off();
    }
    save_text("tokenizer.json", "{\"model\":");
    struct moe_file *f = NULL;
    assert_int_equal(moe_file_open(&f, folder), KN_ECORRUPT);
    save_text("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:");
    faults_reset();
    faults_own();
    assert_int_equal(moe_file_open(&f, folder), KN_EUNSUPPORTED);
    assert_non_null(strstr(faults.line, "tokenizer.json: not supported: this is git-lfs's note"));
    faults_off();
}

/* ---- tiktoken.model ------------------------------------------------------------------------------ */

#define KIMI_CLASS                                                                                                     \
    "\"tokenizer_class\":\"TikTokenTokenizer\","                                                                       \
    "\"auto_map\":{\"AutoTokenizer\":[\"tokenization_kimi.TikTokenTokenizer\",null]}"

/* As published: named special tokens with ids after the last rank, n. */
static void save_kimi_config(int n)
{
    char text[700];
    snprintf(text, sizeof text,
             "{" KIMI_CLASS ",\"bos_token\":\"[BOS]\",\"eos_token\":\"[EOS]\","
             "\"added_tokens_decoder\":{\"%d\":{\"content\":\"[BOS]\",\"special\":true},"
             "\"%d\":{\"content\":\"[EOS]\",\"special\":true},"
             "\"%d\":{\"content\":\"<|im_end|>\",\"special\":true,\"lstrip\":false},\"%d\":{\"content\":"
             "\"<|tool_calls_section_begin|>\",\"special\":false},\"%d\":{\"content\":\"[UNK]\"}}}",
             n, n + 1, n + 2, n + 9, n + 22);
    save_text("tokenizer_config.json", text);
}

static void only_tiktoken(const char *text, size_t n)
{
    char full[160];
    static const char *const gone[] = { "tokenizer.json", "generation_config.json", "chat_template.jinja" };
    for (int i = 0; i < LEN(gone); i++) {
        snprintf(full, sizeof full, "%s/%s", folder, gone[i]);
        unlink(full);
    }
    save("tiktoken.model", text, n);
}

static int count_lines(const char *text)
{
    int n = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        n++;
    return n;
}

/* Includes tokens that several pairs of tokens produce. */
static void ranks_are_merges(void **state)
{
    (void)state;
    size_t n, n_file, n_line, n_more;
    char *file = slurp(DATA "kimi.tiktoken", &n_file), *texts = slurp(DATA "texts.bin", &n);
    char *lines = slurp(DATA "kimi-tiktoken.ids", &n_line), *own = slurp(DATA "kimi-tiktoken.texts", &n_more);
    const char *line = lines;
    int n_rank = count_lines(file);
    struct eng_vocab *v;
    struct moe_file *f;
    only_tiktoken(file, n_file);
    save_kimi_config(n_rank);
    assert_int_equal(open_vocab(&v, &f), 0);
    moe_file_close(f);
    line = expect_texts(v, texts, n, line);
    for (char *at = own, *end; (end = strchr(at, '\n')); at = end + 1)
        line = expect_line(v, at, (size_t)(end - at), line);
    assert_int_equal(*line, 0);
    assert_int_equal(eng_vocab_size(v), n_rank + 256);
    assert_true(eng_vocab_bos(v) == n_rank && eng_vocab_eos(v) == n_rank + 1 && !eng_vocab_adds_bos(v));
    assert_true(eng_vocab_is_stop(v, n_rank + 1) && eng_vocab_is_stop(v, n_rank + 2));
    assert_int_equal(eng_vocab_type(v, n_rank + 9), ENG_TOKEN_USER);
    assert_int_equal(eng_vocab_type(v, n_rank + 200), ENG_TOKEN_CONTROL);
    eng_vocab_close(v);
    free(file);
    free(texts);
    free(lines);
    free(own);
}

static void a_rank_file_that_is_wrong_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *line, *config;
        int code;
        const char *says;
    } kind[] = {
        { "eA= 300", NULL, KN_ECORRUPT, "line 257: expected a token of at most 1024 bytes in base64" },
        { "e*== 256", NULL, KN_ECORRUPT, "line 257: expected a token" },
        { "eHl6 256x", NULL, KN_ECORRUPT, "line 257: expected a token" },
        { "eHl6", NULL, KN_ECORRUPT, "line 257: expected a token" },
        { "eHl6 257", NULL, KN_EUNSUPPORTED, "line 257: ranks must count from 0" },
        { "eA== 256", NULL, KN_ECORRUPT, "line 257: the token occurs twice" },
        { NULL, "{" KIMI_CLASS "}", KN_ECORRUPT, "a byte has no token" },
        { "eHl6 256", "{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_x.Y\",null]}}", KN_EUNSUPPORTED,
          "is \"tokenization_x.Y\"); tokenization_kimi.TikTokenTokenizer is supported" },
        { "eHl6 256", "{}", KN_EUNSUPPORTED, "not named here" },
        { "eHl6 256", "{" KIMI_CLASS ",\"added_tokens_decoder\":{\"257\":{\"content\":\"\"}}}", KN_ECORRUPT,
          "/tiktoken.model: " },
    };
    size_t n_file;
    char *file = slurp(DATA "kimi.tiktoken", &n_file), *end = file;
    for (int i = 0; i < 255; i++)
        end = strchr(end, '\n') + 1;
    size_t n_most = (size_t)(end - file), n_bytes = n_most + (size_t)(strchr(end, '\n') + 1 - end);
    for (int i = 0; i < LEN(kind); i++) {
        char text[8192];
        struct eng_vocab *v = NULL;
        struct moe_file *f = NULL;
        size_t n = kind[i].line ? n_bytes : n_most;
        assert_true(n + 100 < sizeof text);
        memcpy(text, file, n);
        n += (size_t)sprintf(text + n, "%s\n", kind[i].line ? kind[i].line : "");
        only_tiktoken(text, n);
        save_text("tokenizer_config.json", kind[i].config ? kind[i].config : "{" KIMI_CLASS "}");
        faults_reset();
        faults_own();
        int got = open_vocab(&v, &f);
        eng_vocab_close(v);
        moe_file_close(f);
        if (got != kind[i].code || faults.n_line != 1 || !strstr(faults.line, kind[i].says) || !faults_clean())
            fail_msg("%s: got %d, want %d; %d lines: %s", kind[i].line, got, kind[i].code, faults.n_line, faults.line);
        faults_off();
    }
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_original),
        cmocka_unit_test(pre_tokenizers_have_their_names),
        cmocka_unit_test(roles_and_templates_come_from_beside_it),
        cmocka_unit_test(what_is_not_known_is_refused),
        cmocka_unit_test(ranks_are_merges),
        cmocka_unit_test(a_rank_file_that_is_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, folder_remove);
}
