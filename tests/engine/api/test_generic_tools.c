/* Tools with chat templates that do not express them (engine/api/generic_tools.c): a text lists the tools, calls have a
 * generic form, and earlier calls and results become texts. No tool is ever dropped silently.
 *
 * One thread: not under MODE=tsan. */
#include <dirent.h>

#include "engine/base/base.h"
#include "tests/engine/api/setup.h"
#include "tests/engine/text/accepts.h"

#define PLAIN     "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
#define NO_SYSTEM "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" PLAIN

static char *rendered(const char *body)
{
    struct eng_refusal why;
    char *text = NULL;
    size_t n;
    if (eng_api_request_render(ENG_API_CHAT, body, strlen(body), &fake.setup, &text, &n, &why))
        fail_msg("%s: %s", why.param, why.message);
    return text;
}

static void assert_has(const char *body, const char *const *part)
{
    char *text = rendered(body);
    const char *at = text;
    for (; *part; part++)
        if (!(at = strstr(at, *part)))
            fail_msg("no '%s' in %s", *part, text);
        else
            at += strlen(*part);
    kn_free(text);
}
#define HAS(body, ...) assert_has(body, (const char *const[]){ __VA_ARGS__, NULL })

#define SHOWN "{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}\n"
#define TOOL1 TOOL(", \"parameters\": {\"type\": \"object\"}")

static void a_text_lists_the_tools(void **state)
{
    (void)state;
    fake_open_with(PLAIN);
    HAS("{\"messages\": [" USER "], " TOOL1 "}", "[system] You can call tools.", SHOWN,
        "<tool_call>\n{\"name\": \"tool name\"", "</tool_call>", "answer in plain text.\n[user] hello\n");
    HAS("{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, " USER "], " TOOL1 "}",
        "[system] Be brief.\n\nYou can call tools.", "answer in plain text.\n[user] hello\n");
    HAS("{\"messages\": [" USER "], \"parallel_tool_calls\": false, \"tool_choice\": \"required\", " TOOL1 "}",
        "Write only one call. Now call a tool.\n[user] hello\n");
    HAS("{\"messages\": [" USER "], \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f\"}}, " TOOL1
        "}",
        "Now call the tool f.\n[user] hello\n");
    char *text = rendered("{\"messages\": [" USER "], \"tool_choice\": \"none\", " TOOL1 "}");
    assert_string_equal(text, "[user] hello\n");
    kn_free(text);
    fake_close(NULL);
    fake_open_with(NO_SYSTEM);
    assert_true(fake.setup.no_system);
    HAS("{\"messages\": [" USER "], " TOOL1 "}", "[user] You can call tools.", SHOWN,
        "answer in plain text.\n\nhello\n");
    fake_close(NULL);
}

#define CALL(name, arguments)                                                                                          \
    "{\"id\": \"c1\", \"type\": \"function\", \"function\": {\"name\": \"" name "\", \"arguments\": \"" arguments "\"}}"
#define RESULT(text) "{\"role\": \"tool\", \"tool_call_id\": \"c1\", \"content\": \"" text "\"}"

static void earlier_calls_become_text(void **state)
{
    (void)state;
    fake_open_with(PLAIN);
    char *text = rendered(
        "{\"messages\": [" USER
        ", {\"role\": \"assistant\", \"content\": \"so\", \"tool_calls\": [" CALL("f", "{\\\"x\\\": [1, \\\"y\\\"]}") ", " CALL(
            "g", "") "]}, " RESULT("21") ", " RESULT("22") ", " USER
                                                           ", {\"role\": \"assistant\", \"content\": \"a\"}, " USER
                                                           "]}");
    assert_string_equal(text, "[user] hello\n"
                              "[assistant] so\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":[1,\"y\"]}}\n"
                              "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n"
                              "[user] <tool_response>\n21\n</tool_response>\n<tool_response>\n22\n</tool_response>\n"
                              "hello\n[assistant] a\n[user] hello\n");
    kn_free(text);
    text = rendered("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": "
                    "\"b\"}]}");
    assert_string_equal(text, "[user] a\n[user] b\n"); /* without tools nothing changes */
    kn_free(text);
    fake_close(NULL);
}

/* Feeds the text byte by byte and returns the body of the answer. */
static const char *answered(struct eng_api_request *ask, const char *text)
{
    static char body[4096];
    struct eng_reply *r;
    size_t n;
    assert_int_equal(eng_reply_open(&r, ask, &fake.setup), 0);
    for (; *text; text++)
        assert_int_equal(eng_reply_feed(r, &(struct eng_event){ .token = (uint8_t)*text }), 0);
    assert_int_equal(eng_reply_feed(r, &(struct eng_event){ .token = FAKE_END, .finish = ENG_STOP }), 1);
    const char *p = eng_reply_take(r, &n);
    snprintf(body, sizeof body, "%.*s", (int)n, p);
    eng_reply_close(r);
    return body;
}

static void generic_calls_are_held_and_read(void **state)
{
    static const char call[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    struct eng_api_request *ask;
    (void)state;
    fake_open_with(PLAIN);
    ask = ask_of(ENG_API_CHAT,
                 "{\"messages\": [" USER "], " TOOL(", \"parameters\": {\"type\": \"object\", \"properties\": "
                                                    "{\"x\": {\"type\": \"integer\"}}, \"required\": [\"x\"]}") "}");
    assert_true(accepts(ask->grammar, "Some text."));
    assert_true(accepts(ask->grammar, call));
    assert_false(accepts(ask->grammar, "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"));
    assert_false(accepts(ask->grammar, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"1\"}}\n</tool_call>"));
    const char *body = answered(ask, call);
    assert_non_null(strstr(body, "\"content\":null"));
    assert_non_null(strstr(body, "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}"));
    assert_non_null(strstr(body, "\"finish_reason\":\"tool_calls\""));
    eng_api_request_close(ask);
    fake_close(NULL);
}

static char *template_text(const char *name)
{
    char path[400], *source;
    size_t n;
    snprintf(path, sizeof path, "tests/engine/data/templates/%s", name);
    assert_int_equal(eng_read_file(path, &source, &n), 0);
    char *text = strndup(source, n);
    kn_free(source);
    return text;
}

/* Gemma 4's first template has no role tool, and takes results from the message with the calls. */
static void results_are_folded_into_their_call(void **state)
{
    (void)state;
    char *template = template_text("google-gemma-4-31B-it-interleaved.jinja");
    fake_open_with(template);
    assert_true(fake.setup.folds_results);
    HAS("{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [" CALL(
            "f", "{\\\"x\\\": [1, \\\"y\\\"]}") "]}, " RESULT("21") ", " RESULT("22") "]}",
        "<|turn>model\n<|tool_call>call:f{x:[1,<|\"|>y<|\"|>]}<tool_call|><|tool_response>response:f{value:<|\"|>21<|\"|>}"
        "<tool_response|><|tool_response>response:f{value:<|\"|>22<|\"|>}<tool_response|>");
    /* text before the calls stays before their results */
    HAS("{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"Let me see.\", \"tool_calls\": [" CALL(
            "f", "{}") "]}, " RESULT("21") "]}",
        "Let me see.<turn|>\n<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>response:f{value:"
        "<|\"|>21<|\"|>}<tool_response|>");
    HAS("{\"messages\": [" USER ", " RESULT("21") "]}", "<|turn>model\n<|tool_response>response:unknown{value:");
    fake_close(NULL);
    free(template);
}

/* Each published template lists tools itself, or its tools are listed in a text; system messages only where it has them. */
static void published_templates(void **state)
{
    static const char *const generic[] = { "Apertus",      "command-r-plus", "GigaChat", "SmolLM3", "rwkv",
                                           "firefunction", "gemma-2",        "gemma-3",  "Phi-4",   "phi-4",
                                           "functionary",  "Phi-3.5",        "granite" };
    static const char *const unlisted[] = { "DeepSeek-R1", "DeepSeek-V3.1", "deepseek-r1" };
    static const char *const no_system[] = { "firefunction", "gemma-2" };
    DIR *folder = opendir("tests/engine/data/templates");
    int n_template = 0;
    (void)state;
    assert_non_null(folder);
    for (struct dirent *d; (d = readdir(folder));) {
        bool is_generic = false, is_unlisted = false, has_none = false;
        if (!strstr(d->d_name, ".jinja"))
            continue;
        char *template = template_text(d->d_name);
        fake_open_with(template);
        for (int i = 0; i < LEN(generic); i++)
            is_generic |= strstr(d->d_name, generic[i]) != NULL;
        for (int i = 0; i < LEN(unlisted); i++)
            is_unlisted |= strstr(d->d_name, unlisted[i]) != NULL;
        for (int i = 0; i < LEN(no_system); i++)
            has_none |= strstr(d->d_name, no_system[i]) != NULL;
        if (fake.setup.generic_tools != is_generic || fake.setup.unlisted_tools != is_unlisted ||
            fake.setup.no_system != has_none)
            fail_msg("%s: generic %d, unlisted %d, no system %d", d->d_name, fake.setup.generic_tools,
                     fake.setup.unlisted_tools, fake.setup.no_system);
        if (!strstr(d->d_name, "firefunction")) /* needs variables of its own */
            HAS("{\"messages\": [" USER "], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_k7\", "
                "\"description\": \"d\", \"parameters\": {\"type\": \"object\", \"properties\": {\"x\": {\"type\": "
                "\"string\", \"description\": \"e\"}}}}}]}",
                "get_k7");
        fake_close(NULL);
        free(template);
        n_template++;
    }
    closedir(folder);
    assert_true(n_template >= 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_lists_the_tools),
        cmocka_unit_test(earlier_calls_become_text),
        cmocka_unit_test(generic_calls_are_held_and_read),
        cmocka_unit_test(results_are_folded_into_their_call),
        cmocka_unit_test(published_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
