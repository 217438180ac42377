/* tests/engine/api/setup.h - the model as the API presents it (struct eng_api_setup), over a hand-made vocabulary, and
 * requests to it.
 *
 * The vocabulary has a token for every byte, so that each character beyond ASCII arrives in pieces. The template uses
 * Hermes tool calls, starts reasoning with enable_thinking, and renders all of its input. */
#ifndef TESTS_ENGINE_API_FAKE_H
#define TESTS_ENGINE_API_FAKE_H

#include "engine/api/reply.h"
#include "tests/engine/text/recipe.h"

#define FAKE_TEMPLATE                                                                                                  \
    "{% for m in messages %}<s>{{ m.role }}\n"                                                                         \
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"                                  \
    "{{ m.content }}"                                                                                                  \
    "{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", "                               \
    "\"arguments\": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}"                                      \
    "{% if m.tool_call_id %}[{{ m.name }} {{ m.tool_call_id }}]{% endif %}<|im_end|>\n"                                \
    "{% endfor %}"                                                                                                     \
    "{% if tools %}{{ tools | tojson }}{% endif %}"                                                                    \
    "{% if reasoning_effort %}({{ reasoning_effort }}){% endif %}"                                                     \
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"                                                          \
    "{% if enable_thinking %}<think>\n{% endif %}"

enum { FAKE_HELLO = 259, FAKE_BOS = 262, FAKE_END = 263, FAKE_CTX = 4096 };

static struct {
    struct eng_api_setup setup;
    struct eng_vocab *vocab;
    struct eng_chat *chat;
    struct eng_tool_format format;
    struct gr_tokens *tokens;
} fake;

static const char *const fake_models[] = { "small", "small:latest" };
static const struct eng_arrival fake_arrival = { .id = "abc123", .created_s = 1700000000, .seed = 42 };

static inline void fake_open_with(const char *template)
{
    struct recipe r;
    struct moe_file *file;
    char path[64];
    snprintf(path, sizeof path, "/tmp/spillway-setup-%d.gguf", (int)getpid());
    recipe_bpe(&r);
    r.chat = template;
    recipe_write(&r, path);
    assert_int_equal(moe_file_open(&file, path), 0);
    unlink(path);
    assert_int_equal(eng_vocab_open(&fake.vocab, file), 0);
    assert_int_equal(eng_chat_open(&fake.chat, file, fake.vocab, "m.gguf"), 0);
    assert_int_equal(gr_tokens_open(&fake.tokens, fake.vocab, 1 << 20), 0);
    fake.setup = (struct eng_api_setup){ .vocab = fake.vocab,
                                         .chat = fake.chat,
                                         .gr_tokens = fake.tokens,
                                         .model = fake_models,
                                         .n_model = 2,
                                         .fingerprint = "fp_1",
                                         .n_ctx = FAKE_CTX,
                                         .n_predict = -1 };
    spec_params_default(&fake.setup.sampling);
    eng_api_setup_from_template(&fake.setup, &fake.format);
    moe_file_close(file);
}

static inline int fake_open(void **state)
{
    (void)state;
    fake_open_with(FAKE_TEMPLATE);
    return 0;
}

static inline int fake_close(void **state)
{
    (void)state;
    gr_tokens_close(fake.tokens);
    eng_chat_close(fake.chat);
    eng_vocab_close(fake.vocab);
    return 0;
}

static inline struct eng_api_request *ask_of(enum eng_api api, const char *body)
{
    struct eng_api_request *ask = NULL;
    struct eng_refusal why;
    int error = eng_api_request_parse(&ask, api, body, strlen(body), &fake.setup, &fake_arrival, &why);
    if (error)
        print_error("%s\n%s: %s\n", body, why.param, why.message);
    assert_int_equal(error, 0);
    return ask;
}

/* ---- requests, and their refusals --------------------------------------------------------------- */

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))
#define USER   "{\"role\": \"user\", \"content\": \"hello\"}"

static const char *const path_of[] = { "completions", "chat",        "responses",      "messages",
                                       "llama",       "ollama chat", "ollama generate" };

/* A valid request with further members. */
static inline char *with(enum eng_api api, const char *members)
{
    static char body[1 << 16];
    static const char *const base[] = {
        "\"prompt\": \"hello\"",
        "\"messages\": [" USER "]",
        "\"input\": \"hello\"",
        "\"messages\": [" USER "], \"max_tokens\": 9",
    };
    const char *first = base[api];
    if (api == ENG_API_MESSAGES && strstr(members, "\"max_tokens\""))
        first = base[ENG_API_CHAT];
    snprintf(body, sizeof body, "{%s%s%s}", first, *members ? ", " : "", members);
    return body;
}

/* A body passed as parsed JSON gets the same result. */
static inline void assert_same_of_json(enum eng_api api, const char *body, size_t n, const struct eng_refusal *want)
{
    struct eng_api_request *ask = NULL;
    struct eng_refusal why;
    json_t *root = json_loadb(body, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (json_is_object(root)) {
        int error = eng_api_request_parse_json(&ask, api, root, &fake.setup, &fake_arrival, &why);
        assert_true(!error == !want->status && !error == (ask != NULL));
        assert_int_equal(why.status, want->status);
        assert_string_equal(why.message, want->message);
        assert_string_equal(why.param, want->param);
        eng_api_request_close(ask);
    }
    json_decref(root);
}

/* Parses a body. Returns the refusal as "status param"; "" if accepted. */
static inline const char *said_n(enum eng_api api, const char *body, size_t n)
{
    static char text[256];
    struct eng_api_request *ask = NULL;
    struct eng_refusal why = { 0 };
    int error = eng_api_request_parse(&ask, api, body, n, &fake.setup, &fake_arrival, &why);
    assert_same_of_json(api, body, n, &why);
    if (!error) {
        assert_int_equal(why.status, 0);
        eng_api_request_close(ask);
        return "";
    }
    assert_null(ask);
    assert_true(why.status >= 400 && why.message[0] && why.type);
    assert_null(strchr(why.message, '\n'));
    snprintf(text, sizeof text, "%d %s", why.status, why.param);
    return text;
}

static inline const char *said(enum eng_api api, const char *body) { return said_n(api, body, strlen(body)); }

static inline void expect(enum eng_api api, const char *body, const char *want)
{
    const char *got = said(api, body);
    if (strcmp(got, want) != 0)
        print_error("%s: %.300s\n", path_of[api], body);
    assert_string_equal(got, want);
}

#define TOOL(rest) "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"" rest "}}]"

#endif
