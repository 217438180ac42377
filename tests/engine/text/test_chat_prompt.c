/* Conversations to prompt tokens. Text written by the template may contain special tokens; text of a message never
 * becomes one. Also: models without a template.
 *
 * One thread: not under MODE=tsan. */
#include <dirent.h>

#include "engine/base/base.h"
#include "engine/text/chat_prompt.h"
#include "tests/engine/text/recipe.h"

static struct eng_vocab *vocab;
static struct eng_chat *chat;
static char said[1024];

static void listen(enum kn_level level, const char *line)
{
    (void)level;
    snprintf(said, sizeof said, "%s", line);
}

static int open_recipe(const struct recipe *r)
{
    struct moe_file *file;
    char path[64];
    snprintf(path, sizeof path, "/tmp/spillway-chat-%d.gguf", (int)getpid());
    recipe_write(r, path);
    said[0] = 0;
    kn_log_set(listen, KN_LOG_INFO);
    assert_int_equal(moe_file_open(&file, path), 0);
    unlink(path);
    assert_int_equal(eng_vocab_open(&vocab, file), 0);
    assert_int_equal(eng_chat_exists(file, NULL), r->chat != NULL);
    int error = eng_chat_open(&chat, file, vocab, "m.gguf");
    moe_file_close(file);
    return error;
}

static void close_recipe(void)
{
    eng_chat_close(chat);
    eng_vocab_close(vocab);
    chat = NULL;
    kn_log_set(NULL, KN_LOG_INFO);
}

static void renders(const char *request, const char *want)
{
    struct eng_template_error e;
    json_t *v = json_loads(request, 0, NULL);
    char *text;
    size_t n;
    assert_non_null(v);
    assert_int_equal(eng_chat_render(chat, v, &text, &n, &e), 0);
    assert_string_equal(text, want);
    kn_free(text);
    json_decref(v);
}

/* The prompt's tokens, decoded again: control tokens as [id], everything else as text. */
static void tokens(const char *request, const char *want)
{
    struct eng_template_error e;
    struct eng_ids ids = { 0 };
    char got[4096];
    size_t n = 0;
    json_t *v = json_loads(request, 0, NULL);
    assert_non_null(v);
    assert_int_equal(eng_chat_tokens(chat, v, &ids, &e), 0);
    for (size_t i = 0; i < ids.n; i++) {
        struct moe_string s = eng_vocab_text(vocab, ids.id[i]);
        if (eng_vocab_type(vocab, ids.id[i]) == ENG_TOKEN_CONTROL)
            n += (size_t)snprintf(got + n, sizeof got - n, "[%d]", (int)ids.id[i]);
        else
            n += (size_t)snprintf(got + n, sizeof got - n, "%.*s", (int)s.n, s.data);
    }
    assert_string_equal(got, want);
    eng_ids_free(&ids);
    json_decref(v);
}

#define TEMPLATE                                                                                                       \
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}{{ "                      \
    "eos_token }}"

static void the_models_template_and_tokens_are_used(void **state)
{
    struct recipe r;
    (void)state;
    recipe_bpe(&r);
    r.chat = TEMPLATE;
    assert_int_equal(open_recipe(&r), 0);
    assert_string_equal(said, "");
    renders("{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}", "<s>user:hello<|im_end|><|im_end|>");
    renders("{\"messages\": [], \"bos_token\": \"B\", \"eos_token\": null}", "BNone");
    tokens("{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}", "[262]user:hello[263][263]");
    close_recipe();
}

static void a_persons_text_is_never_a_control_token(void **state)
{
    struct recipe r;
    (void)state;
    recipe_bpe(&r);
    r.chat = TEMPLATE;
    assert_int_equal(open_recipe(&r), 0);
    tokens("{\"messages\": [{\"role\": \"u\", \"content\": \"a<|im_end|>b<s>\"}]}", "[262]u:a<|im_end|>b<s>[263][263]");
    tokens("{\"messages\": [{\"role\": \"u\", \"content\": \"<u>v<u>vw\"}]}", "[262]u:<u>v<u>vw[263][263]");
    tokens("{\"messages\": [{\"role\": \"u\", \"content\": \"\\ufdd0<s>\\ufdd1\"}]}",
           "[262]u:\xEF\xB7\x90<s>\xEF\xB7\x91[263][263]");
    close_recipe();
    /* a marker that is complete only after rendering stays text */
    r.chat = "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages[0].content }}im_end|>";
    assert_int_equal(open_recipe(&r), 0);
    tokens("{\"messages\": [{\"content\": \"<|\"}, {\"content\": \"im_end|>\"}]}", "<|im_end|><|im_end|>");
    tokens("{\"messages\": [{\"content\": \"<\"}, {\"content\": \"s>\"}]}", "<s><im_end|>");
    close_recipe();
    /* a marker that the template builds from a role is a special token */
    r.chat = "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{% endfor %}";
    assert_int_equal(open_recipe(&r), 0);
    tokens("{\"messages\": [{\"role\": \"im_end\"}]}", "[263]");
    close_recipe();
}

/* A template from a file of its own replaces the model's. */
static void a_template_of_a_file(void **state)
{
    struct recipe r;
    char path[64];
    (void)state;
    recipe_bpe(&r);
    r.chat = TEMPLATE;
    assert_int_equal(open_recipe(&r), 0);
    eng_chat_close(chat);
    chat = NULL;
    snprintf(path, sizeof path, "/tmp/spillway-chat-%d.jinja", (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("<{{ messages[0].content }}>", f);
    fclose(f);
    assert_int_equal(eng_chat_open_template(&chat, vocab, path), 0);
    renders("{\"messages\": [{\"content\": \"x\"}]}", "<x>");
    assert_int_equal(eng_chat_text(chat).n, strlen("<{{ messages[0].content }}>"));
    eng_chat_close(chat);
    chat = NULL;
    f = fopen(path, "w");
    fputs("a\n{% if %}", f);
    fclose(f);
    assert_int_equal(eng_chat_open_template(&chat, vocab, path), KN_EINVAL);
    assert_non_null(strstr(said, ".jinja: line 2: "));
    unlink(path);
    assert_int_equal(eng_chat_open_template(&chat, vocab, path), KN_ENOENT);
    close_recipe();
}

static void without_a_template_the_marks_decide(void **state)
{
    struct recipe r;
    (void)state;
    recipe_bpe(&r);
    recipe_token(&r, "<|im_start|>", ENG_TOKEN_CONTROL, 0);
    assert_int_equal(open_recipe(&r), 0);
    assert_string_equal(
        said, "m.gguf: the model has no chat template; using the <|im_start|> format, chosen by its vocabulary");
    renders("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"add_generation_prompt\": "
            "true}",
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
    close_recipe();
    recipe_spm(&r);
    recipe_scalar(&r, KEY "add_bos_token", 1);
    recipe_scalar(&r, KEY "bos_token_id", 1);
    assert_int_equal(open_recipe(&r), 0);
    renders("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", "
            "\"content\": \"y\"}, "
            "{\"role\": \"user\", \"content\": \"z\"}]}",
            "<s>[INST] x [/INST]y</s>[INST] z [/INST]");
    close_recipe();
    recipe_bpe(&r);
    assert_int_equal(open_recipe(&r), KN_EUNSUPPORTED);
    assert_non_null(strstr(said, "the model has no chat template, and"));
    close_recipe();
}

static void a_bad_template_is_refused_when_it_is_opened(void **state)
{
    struct recipe r;
    (void)state;
    recipe_bpe(&r);
    r.chat = "\n{% if %}";
    assert_int_equal(open_recipe(&r), KN_EINVAL);
    assert_non_null(strstr(said, "m.gguf: tokenizer.chat_template: line 2: "));
    close_recipe();
}

/* The prompt ends with the text that is to be continued, whatever the template does with it. */
static void a_continued_message_is_cut_behind_its_text(void **state)
{
    struct eng_template_error e;
    struct recipe r;
    char *text;
    size_t n;
    (void)state;
    recipe_bpe(&r);
    r.chat = "{% for m in messages %}[{{ m.content | trim }}{% if loop.last %}+{{ m.thoughts }}{% endif %}]{% endfor %}"
             "{{ continue_final_message is defined }}";
    assert_int_equal(open_recipe(&r), 0);
#define LAST(more) "{\"messages\": [{\"content\": \"a\"}, {\"content\": \" b \", \"thoughts\": \"c\"}]" more "}"
    renders(LAST(""), "[a][b+c]False");
    renders(LAST(", \"continue_final_message\": null"), "[a][b+c]False");
    renders(LAST(", \"continue_final_message\": false"), "[a][b+c]False");
    renders(LAST(", \"continue_final_message\": true"), "[a][b ");
    renders(LAST(", \"continue_final_message\": \"content\""), "[a][b ");
    renders(LAST(", \"continue_final_message\": \"thoughts\""), "[a][b+c");
    tokens(LAST(", \"continue_final_message\": true"), "[a][b ");
    static const char *const wrong[] = { LAST(", \"continue_final_message\": \"other\""),
                                         "{\"messages\": [], \"continue_final_message\": true}",
                                         "{\"continue_final_message\": true}",
                                         "{\"messages\": [{\"content\": [1]}], \"continue_final_message\": true}" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_t *v = json_loads(wrong[i], 0, NULL);
        assert_non_null(v);
        assert_int_equal(eng_chat_render(chat, v, &text, &n, &e), KN_EINVAL);
        json_decref(v);
    }
    close_recipe();
}

/* The same with published templates. */
static void published_templates_let_a_message_be_continued(void **state)
{
    DIR *folder = opendir("tests/engine/data/templates");
    struct recipe r;
    int n_template = 0;
    (void)state;
    assert_non_null(folder);
    for (struct dirent *d; (d = readdir(folder));) {
        static const char said_last[] = "Sure,  here";
        struct eng_template_error e;
        char path[400], *source, *text;
        size_t n_source, n;
        if (!strstr(d->d_name, ".jinja") || strstr(d->d_name, "firefunction")) /* that one needs more variables */
            continue;
        snprintf(path, sizeof path, "tests/engine/data/templates/%s", d->d_name);
        assert_int_equal(eng_read_file(path, &source, &n_source), 0);
        char *template = strndup(source, n_source);
        recipe_bpe(&r);
        r.chat = template;
        assert_int_equal(open_recipe(&r), 0);
        json_t *v = json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:b, s:s}", "messages", "role", "user", "content", "hello",
                              "role", "assistant", "content", said_last, "add_generation_prompt", 0,
                              "continue_final_message", "content");
        int error = eng_chat_render(chat, v, &text, &n, &e);
        if (error)
            fail_msg("%s: %s", d->d_name, e.text);
        if (n < sizeof said_last || strcmp(text + n - sizeof said_last + 1, said_last) != 0)
            fail_msg("%s: %s", d->d_name, text);
        n_template++;
        kn_free(text);
        json_decref(v);
        kn_free(source);
        free(template);
        close_recipe();
    }
    closedir(folder);
    assert_true(n_template >= 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_models_template_and_tokens_are_used),
        cmocka_unit_test(a_persons_text_is_never_a_control_token),
        cmocka_unit_test(a_template_of_a_file),
        cmocka_unit_test(without_a_template_the_marks_decide),
        cmocka_unit_test(a_continued_message_is_cut_behind_its_text),
        cmocka_unit_test(published_templates_let_a_message_be_continued),
        cmocka_unit_test(a_bad_template_is_refused_when_it_is_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
