/* A folder as written by the transformers package is served, and runs batches, like the GGUF file of the same weights:
 * the same prompt from the folder's chat template, and the same answers. */
#include "tests/engine/serve/serve_client.h"

#include <stddef.h>

#include "engine/cli/cli.h"
#include "tests/moe/hf_folder.h"
#include "tests/moe/folder.h"

#define TEMPLATE                                                                                                       \
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}"                                        \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
#define ASK(...)                                                                                                       \
    "{\"messages\":[{\"role\":\"system\",\"content\":\" Be brief. \"},{\"role\":\"user\",\"content\":"                 \
    "\"Name a river.\"}]," __VA_ARGS__ "\"max_tokens\":24,\"seed\":7,\"ignore_eos\":true}"

static char model[80]; /* the folder; path is the GGUF file */

static int setup(void **state)
{
    struct hf_folder h;
    char line[256];
    int error = folder_make(state);
    snprintf(model, sizeof model, "%s/model", folder);
    kn_log_set(NULL, KN_LOG_WARN);
    if (error || hf_folder_read(&h, "qwen3moe_norm"))
        return -1;
    hf_folder_write(&h, model, false, 2);
    hf_save(model, "chat_template.jinja", TEMPLATE, strlen(TEMPLATE));
    snprintf(line, sizeof line, "tokenizer.chat_template str ");
    for (const char *t = TEMPLATE; *t; t++) /* % is the escape character of this text format */
        snprintf(line + strlen(line), 4, *t == '%' ? "%%25" : "%c", *t);
    h.g.meta[h.g.n_meta++] = line;
    error = hf_folder_gguf(&h, path, false);
    h.g.n_meta--;
    hf_folder_free(&h);
    return error;
}

/* One member of an answer's body; ids and times are left out. */
static char *body_of(const struct served *v, const char *route, const char *body, const char *member)
{
    struct answer a = ask(v, "POST", route, "", body);
    assert_int_equal(a.status, 200);
    json_t *root = json_loads(a.body, JSON_ALLOW_NUL, NULL); /* output bytes are random */
    char *text = json_dumps(json_object_get(root, member), JSON_SORT_KEYS | JSON_ENCODE_ANY);
    assert_non_null(text);
    json_decref(root);
    answer_free(&a);
    return text;
}

/* The choices of all events of a stream. */
static char *streamed(const struct served *v)
{
    struct answer a = ask(v, "POST", CHAT, "", ASK("\"stream\":true,"));
    json_t *all = json_array();
    assert_int_equal(a.status, 200);
    for (char *at = a.body, *end; (at = strstr(at, "data: {")) && (end = strstr(at, "\n\n")); at = end) {
        json_t *event = json_loadb(at + 6, (size_t)(end - at) - 6, JSON_ALLOW_NUL, NULL);
        json_array_append(all, json_object_get(event, "choices"));
        json_decref(event);
    }
    assert_true(json_array_size(all) > 1);
    char *text = json_dumps(all, JSON_SORT_KEYS);
    json_decref(all);
    answer_free(&a);
    return text;
}

struct said {
    char *prompt, *ids, *whole, *stream, *text;
};

static struct said serve(const char *name)
{
    struct served v;
    struct eng_serve_options o = serve_defaults();
    o.engine.model = name;
    serve_start(&v, &o);
    while (ask_status(&v, "GET", "/ready", "", NULL) != 200)
        usleep(1000);
    const char *plain = "{\"prompt\":\"a river\",\"max_tokens\":24,\"seed\":3}";
    struct said s = { body_of(&v, "/apply-template", ASK(""), "prompt"), body_of(&v, "/tokenize", ASK(""), "tokens"),
                      body_of(&v, CHAT, ASK(""), "choices"), streamed(&v),
                      body_of(&v, "/v1/completions", plain, "choices") };
    serve_end(&v);
    return s;
}

static void a_folder_is_served_as_its_gguf(void **state)
{
    (void)state;
    struct said a = serve(path), b = serve(model);
    assert_string_equal(b.prompt, "\"<system>Be brief.\\n<user>Name a river.\\n<assistant>\"");
    char **x = &a.prompt, **y = &b.prompt;
    for (size_t i = 0; i < sizeof a / sizeof *x; i++) {
        assert_string_equal(x[i], y[i]);
        free(x[i]);
        free(y[i]);
    }
}

/* The answers of a batch by custom_id. */
static char *batch(const char *name, const char *out)
{
    static char kept[4][160];
    static struct eng_config config;
    char *argv[] = { "-m", strcpy(kept[0], name), kept[1], "-o",         kept[2], "-t",
                     "1",  "--parallel",          "2",     "--ctx-size", "256",   "--quiet" };
    snprintf(kept[1], sizeof kept[1], "%s/in.jsonl", folder);
    snprintf(kept[2], sizeof kept[2], "%s/%s", folder, out);
    assert_int_equal(eng_config_parse(&config, ENG_batch, sizeof argv / sizeof *argv, argv), 0);
    assert_int_equal(eng_cmd_batch(&config), 0);
    char *lines = hf_slurp(kept[2]), *line, *left = lines;
    json_t *all = json_object();
    while ((line = strsep(&left, "\n")) && line[0]) {
        json_t *root = json_loads(line, JSON_ALLOW_NUL, NULL), *body;
        body = json_object_get(json_object_get(root, "response"), "body");
        json_object_set(all, json_string_value(json_object_get(root, "custom_id")), json_object_get(body, "choices"));
        json_decref(root);
    }
    assert_int_equal(json_object_size(all), 3);
    char *text = json_dumps(all, JSON_SORT_KEYS);
    json_decref(all);
    free(lines);
    return text;
}

static void and_does_its_batches(void **state)
{
    (void)state;
    char lines[2048] = "";
    for (int i = 0; i < 3; i++)
        snprintf(lines + strlen(lines), 600,
                 "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":%s}\n", i,
                 i == 1 ? ASK("\"n\":2,") : ASK("\"temperature\":0,"));
    hf_save(folder, "in.jsonl", lines, strlen(lines));
    char *a = batch(path, "a.jsonl"), *b = batch(model, "b.jsonl");
    assert_string_equal(a, b);
    free(a);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_is_served_as_its_gguf),
        cmocka_unit_test(and_does_its_batches),
    };
    return cmocka_run_group_tests(tests, setup, folder_remove);
}
