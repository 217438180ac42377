/* Messages, tools and answer formats of a request. The three chat dialects render the same prompt; templates get
 * arguments and reasoning in the form they read; tools and formats become the right grammar; bad schemas are refused.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/api/setup.h"
#include "tests/engine/text/accepts.h"

/* ---- conversations --------------------------------------------------------------------------- */

static void renders(enum eng_api api, const char *body, const char *want)
{
    struct eng_refusal why;
    char *text = NULL;
    size_t n;
    if (eng_api_request_render(api, body, strlen(body), &fake.setup, &text, &n, &why))
        print_error("%s: %s\n", why.param, why.message);
    assert_non_null(text);
    assert_string_equal(text, want);
    kn_free(text);
}

#define CALLED                                                                                                         \
    "<s>user\nhi<|im_end|>\n<s>assistant\n<think>why</think>ok<tool_call>{\"name\": "                                  \
    "\"f\", \"arguments\": {\"x\": [1, 2.5]}}</tool_call><|im_end|>\n<s>tool\n"                                        \
    "21[f id1]<|im_end|>\n<s>assistant\n"

static void three_dialects_are_one_conversation(void **state)
{
    (void)state;
    renders(ENG_API_CHAT,
            "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", "
            "\"content\": \"ok\", \"reasoning_content\": \"why\", \"tool_calls\": [{\"id\": \"id1\", "
            "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
            "\"{\\\"x\\\": [1, 2.5]}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"id1\", "
            "\"content\": \"21\"}]}",
            CALLED);
    renders(ENG_API_RESPONSES,
            "{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": "
            "\"hi\"}]}, {\"type\": \"reasoning\", \"id\": \"rs_1\", \"summary\": [], \"content\": "
            "[{\"type\": \"reasoning_text\", \"text\": \"why\"}]}, {\"type\": \"message\", \"role\": "
            "\"assistant\", \"content\": [{\"type\": \"output_text\", \"text\": \"ok\"}]}, "
            "{\"type\": \"function_call\", \"call_id\": \"id1\", \"name\": \"f\", \"arguments\": "
            "\"{\\\"x\\\": [1, 2.5]}\"}, {\"type\": \"function_call_output\", \"call_id\": \"id1\", "
            "\"output\": \"21\"}]}",
            CALLED);
    renders(ENG_API_MESSAGES,
            "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", "
            "\"content\": [{\"type\": \"thinking\", \"thinking\": \"why\", \"signature\": \"\"}, "
            "{\"type\": \"text\", \"text\": \"ok\"}, {\"type\": \"tool_use\", \"id\": \"id1\", "
            "\"name\": \"f\", \"input\": {\"x\": [1, 2.5]}}]}, {\"role\": \"user\", \"content\": "
            "[{\"type\": \"tool_result\", \"tool_use_id\": \"id1\", \"content\": [{\"type\": "
            "\"text\", \"text\": \"21\"}]}]}]}",
            CALLED);
    renders(ENG_API_CHAT,
            "{\"messages\": [{\"role\": \"developer\", \"content\": [{\"type\": "
            "\"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}, "
            "{\"role\": \"assistant\", \"content\": null}]}",
            "<s>system\na\nb<|im_end|>\n<s>assistant\n");
    renders(ENG_API_RESPONSES, "{\"instructions\": \"s\", \"input\": \"u\"}",
            "<s>system\ns<|im_end|>\n<s>user\nu<|im_end|>\n<s>assistant\n");
    renders(ENG_API_MESSAGES,
            "{\"system\": [{\"type\": \"text\", \"text\": \"s\", "
            "\"cache_control\": {\"type\": \"ephemeral\"}}], \"messages\": ["
            "{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"user\", "
            "\"content\": \"v\"}]}",
            "<s>system\ns<|im_end|>\n<s>user\nu\nv<|im_end|>\n<s>assistant\n");
}

static void tools_reach_the_template_in_one_form(void **state)
{
#define TOLD                                                                                                           \
    "<s>user\nhello<|im_end|>\n[{\"type\": \"function\", \"function\": {\"name\": \"f\", "                             \
    "\"description\": \"d\", \"parameters\": {\"type\": \"object\"}}}]<s>assistant\n"
    (void)state;
    renders(ENG_API_CHAT,
            with(ENG_API_CHAT, "\"tools\": [{\"type\": \"function\", \"function\": "
                               "{\"name\": \"f\", \"description\": \"d\", \"strict\": true, "
                               "\"parameters\": {\"type\": "
                               "\"object\"}}}]"),
            TOLD);
    renders(ENG_API_RESPONSES,
            with(ENG_API_RESPONSES, "\"tools\": [{\"type\": \"function\", "
                                    "\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}}, "
                                    "{\"type\": \"web_search\"}]"),
            TOLD);
    renders(ENG_API_MESSAGES,
            with(ENG_API_MESSAGES, "\"tools\": [{\"name\": \"f\", "
                                   "\"description\": \"d\", \"input_schema\": {\"type\": \"object\"}}]"),
            TOLD);
    renders(ENG_API_MESSAGES,
            with(ENG_API_MESSAGES, "\"tools\": [{\"name\": \"f\", "
                                   "\"input_schema\": {}}]"),
            "<s>user\nhello<|im_end|>\n[{\"type\": \"function\", "
            "\"function\": {\"name\": \"f\", \"parameters\": {}}}]<s>assistant\n");
    renders(ENG_API_CHAT,
            with(ENG_API_CHAT, "\"tool_choice\": \"none\", \"tools\": [{\"type\": "
                               "\"function\", \"function\": {\"name\": \"f\"}}]"),
            "<s>user\nhello<|im_end|>\n<s>assistant\n");
    renders(ENG_API_CHAT, with(ENG_API_CHAT, "\"reasoning_effort\": \"high\""),
            "<s>user\nhello<|im_end|>\n(high)<s>assistant\n<think>\n");
    renders(ENG_API_CHAT, with(ENG_API_CHAT, "\"reasoning_effort\": \"none\""),
            "<s>user\nhello<|im_end|>\n<s>assistant\n");
    renders(ENG_API_MESSAGES, with(ENG_API_MESSAGES, "\"thinking\": {\"type\": \"enabled\"}"),
            "<s>user\nhello<|im_end|>\n<s>assistant\n<think>\n");
    struct eng_api_request *ask = ask_of(ENG_API_MESSAGES,
                                         with(ENG_API_MESSAGES, "\"thinking\": {\"type\": \"enabled\"}"));
    assert_true(ask->thinks);
    eng_api_request_close(ask);
}

static void messages_that_cannot_be_read_are_refused(void **state)
{
    static const struct {
        enum eng_api api;
        const char *messages, *want;
    } cases[] = {
        { ENG_API_CHAT, "[]", "400 messages" },
        { ENG_API_CHAT, "\"hi\"", "400 messages" },
        { ENG_API_CHAT, "[\"hi\"]", "400 messages[0]" },
        { ENG_API_CHAT, "[null]", "400 messages[0]" },
        { ENG_API_CHAT, "[{}]", "400 messages[0].role" },
        { ENG_API_CHAT, "[" USER ", {\"role\": \"boss\", \"content\": \"\"}]", "400 messages[1].role" },
        { ENG_API_CHAT, "[{\"role\": \"user\"}]", "400 messages[0].content" },
        { ENG_API_CHAT, "[{\"role\": \"user\", \"content\": \"\"}]", "" },
        { ENG_API_CHAT, "[{\"role\": \"user\", \"content\": []}]", "" },
        { ENG_API_CHAT, "[{\"role\": \"user\", \"content\": 5}]", "400 messages[0].content" },
        { ENG_API_CHAT, "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]",
          "400 messages[0].content[0].type" },
        { ENG_API_CHAT, "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]",
          "400 messages[0].content[0].text" },
        { ENG_API_CHAT, "[{\"role\": \"user\", \"content\": [\"x\"]}]", "400 messages[0].content[0]" },
        { ENG_API_CHAT, "[{\"role\": \"assistant\", \"tool_calls\": [{}]}]",
          "400 messages[0].tool_calls[0].function.name" },
        { ENG_API_CHAT,
          "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": "
          "\"f\", \"arguments\": 5}}]}]",
          "400 messages[0].tool_calls[0].function.arguments" },
        { ENG_API_CHAT,
          "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": "
          "\"f\", \"arguments\": \"not JSON\"}}]}]",
          "" },
        { ENG_API_MESSAGES, "[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]",
          "400 messages[0].content[0].type" },
        { ENG_API_MESSAGES, "[{\"role\": \"user\", \"content\": [{\"type\": \"tool_use\"}]}]",
          "400 messages[0].content[0].type" },
        { ENG_API_MESSAGES, "[{\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\"}]}]",
          "400 messages[0].content[0].id" },
        { ENG_API_MESSAGES, "[{\"role\": \"user\", \"content\": [{\"type\": \"tool_result\"}]}]",
          "400 messages[0].content[0].tool_use_id" },
        { ENG_API_MESSAGES, "[{\"role\": \"system\", \"content\": \"s\"}]", "" },
        { ENG_API_MESSAGES, "[{\"role\": \"system\", \"content\": [{\"type\": \"tool_use\"}]}]",
          "400 messages[0].content[0].type" },
        { ENG_API_MESSAGES, "[{\"role\": \"tool\", \"content\": \"s\"}]", "400 messages[0].role" },
        { ENG_API_MESSAGES, "[{\"role\": \"user\"}]", "400 messages[0].content" },
        { ENG_API_RESPONSES, "[]", "400 input" },
        { ENG_API_RESPONSES, "7", "400 input" },
        { ENG_API_RESPONSES, "[{\"type\": \"web_search_call\"}]", "400 input[0].type" },
        { ENG_API_RESPONSES, "[{\"type\": \"item_reference\", \"id\": \"x\"}]", "400 input[0].type" },
        { ENG_API_RESPONSES, "[{\"type\": \"function_call\"}]", "400 input[0].call_id" },
        { ENG_API_RESPONSES, "[{\"type\": \"function_call_output\", \"call_id\": \"a\"}]", "400 input[0].output" },
    };
    char body[1000];
    (void)state;
    for (int i = 0; i < LEN(cases); i++) {
        snprintf(body, sizeof body, "{\"max_tokens\": 5, \"%s\": %s}",
                 cases[i].api == ENG_API_RESPONSES ? "input" : "messages", cases[i].messages);
        expect(cases[i].api, body, cases[i].want);
    }
}

/* Some templates concatenate the arguments as a string, others render them as JSON. */
static void arguments_are_what_the_template_takes(void **state)
{
    static const char body[] = "{\"messages\": [" USER ", {\"role\": \"assistant\", \"tool_calls\": "
                               "[{\"function\": {\"name\": \"f\", \"arguments\": "
                               "\"{\\\"a\\\":  1}\"}}]}]}";
#define LOOP(what)                                                                                                     \
    "{# <tool_call> arguments #}{% for m in messages %}{% for c in m.tool_calls or [] %}" what                         \
    "{% endfor %}{% endfor %}"
    static const struct {
        const char *template, *want;
    } cases[] = {
        { LOOP("{{ c.function.arguments | tojson }}"), "{\"a\": 1}" },
        { LOOP("{{ '<' + c.function.arguments + '>' }}"), "<{\"a\":  1}>" },
        { LOOP("{{ c.function.arguments }}"), "{\"a\":  1}" },
    };
    (void)state;
    for (int i = 0; i < LEN(cases); i++) {
        fake_close(NULL);
        fake_open_with(cases[i].template);
        renders(ENG_API_CHAT, body, cases[i].want);
    }
    renders(ENG_API_MESSAGES,
            "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": [{\"type\": "
            "\"tool_use\", \"id\": \"1\", \"name\": \"f\", \"input\": {\"a\": 1}}]}]}",
            "{\"a\":1}");
    fake_close(NULL);
    fake_open(NULL);
}

/* gpt-oss names reasoning `thinking`, and accepts either this or content. */
static void thoughts_go_by_the_templates_name(void **state)
{
    (void)state;
    fake_close(NULL);
    fake_open_with("{# <|channel|><|message|> #}{% for m in messages %}{{ m.thinking }}/{{ m.content "
                   "}};{% endfor %}");
    renders(ENG_API_CHAT,
            "{\"messages\": [" USER ", {\"role\": \"assistant\", \"reasoning\": \"why\"}, {\"role\": "
            "\"assistant\", \"reasoning\": \"why\", \"content\": \"so\"}]}",
            "/hello;why/;/so");
    fake_close(NULL);
    fake_open(NULL);
}

static void a_template_may_refuse(void **state)
{
    (void)state;
    fake_close(NULL);
    fake_open_with("{{ raise_exception('first line\nno ' + messages[0].content) }}");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, ""), "400 messages");
    fake_close(NULL);
    fake_open_with("{% for i in range(1000000000) %}x{% endfor %}");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, ""), "400 messages");
    fake_close(NULL);
    fake_open(NULL);
    struct eng_chat *chat = (struct eng_chat *)fake.setup.chat;
    fake.setup.chat = NULL;
    expect(ENG_API_CHAT, with(ENG_API_CHAT, ""), "400 messages");
    expect(ENG_API_COMPLETIONS, with(ENG_API_COMPLETIONS, ""), "");
    fake.setup.chat = chat;
}

/* ---- tools and answer formats ---------------------------------------------------------------- */

static void tools_and_formats_are_checked(void **state)
{
    static const struct {
        enum eng_api api;
        const char *members, *want;
        bool grammar;
    } cases[] = {
        { ENG_API_CHAT, TOOL(""), "", true },
        { ENG_API_CHAT, TOOL("") ", \"tool_choice\": \"required\"", "", true },
        { ENG_API_CHAT, TOOL("") ", \"tool_choice\": \"none\"", "", false },
        { ENG_API_CHAT, TOOL("") ", \"tool_choice\": \"always\"", "400 tool_choice", false },
        { ENG_API_CHAT,
          TOOL("") ", \"tool_choice\": {\"type\": \"function\", \"function\": "
                   "{\"name\": \"f\"}}",
          "", true },
        { ENG_API_CHAT,
          TOOL("") ", \"tool_choice\": {\"type\": \"function\", \"function\": "
                   "{\"name\": \"g\"}}",
          "400 tool_choice", false },
        { ENG_API_CHAT, TOOL("") ", \"tool_choice\": {\"type\": \"function\"}", "400 tool_choice.function.name",
          false },
        { ENG_API_CHAT, "\"tool_choice\": \"required\"", "400 tool_choice", false },
        { ENG_API_CHAT, "\"tool_choice\": \"none\"", "", false },
        { ENG_API_CHAT, "\"tools\": []", "", false },
        { ENG_API_CHAT, "\"tools\": {}", "400 tools", false },
        { ENG_API_CHAT, "\"tools\": [1]", "400 tools[0]", false },
        { ENG_API_CHAT, "\"tools\": [{\"type\": \"retrieval\"}]", "400 tools[0].type", false },
        { ENG_API_CHAT, "\"tools\": [{\"type\": \"function\"}]", "400 tools[0].function", false },
        { ENG_API_CHAT, "\"tools\": [{\"type\": \"function\", \"function\": {}}]", "400 tools[0].function.name",
          false },
        { ENG_API_CHAT, "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a b\"}}]",
          "400 tools[0].function.name", false },
        { ENG_API_CHAT,
          "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}, {\"type\": "
          "\"function\", \"function\": {\"name\": \"f\"}}]",
          "400 tools[1].function.name", false },
        { ENG_API_CHAT, TOOL(", \"parameters\": 5"), "400 tools[0].function.parameters", false },
        /* unsupported schemas: refused with strict, else without a grammar */
        { ENG_API_CHAT,
          TOOL(", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": "
               "{\"not\": {}}}}"),
          "", false },
        { ENG_API_CHAT,
          TOOL(", \"strict\": true, \"parameters\": {\"type\": \"object\", "
               "\"properties\": {\"a\": {\"not\": {}}}}"),
          "400 tools", false },
        { ENG_API_CHAT,
          TOOL(", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": "
               "{\"not\": {}}}}") ", \"tool_choice\": \"required\"",
          "400 tools", false },
        { ENG_API_MESSAGES,
          "\"tools\": [{\"name\": \"f\", \"input_schema\": {}}], \"tool_choice\": "
          "{\"type\": \"any\", \"disable_parallel_tool_use\": true}",
          "", true },
        { ENG_API_MESSAGES,
          "\"tools\": [{\"name\": \"f\", \"input_schema\": {}}], \"tool_choice\": "
          "{\"type\": \"tool\", \"name\": \"g\"}",
          "400 tool_choice", false },
        { ENG_API_RESPONSES,
          "\"tools\": [{\"type\": \"function\", \"name\": \"f\"}], "
          "\"tool_choice\": {\"type\": \"function\", \"name\": \"f\"}",
          "", true },
        { ENG_API_CHAT, "\"response_format\": {\"type\": \"text\"}", "", false },
        { ENG_API_CHAT, "\"response_format\": {\"type\": \"json_object\"}", "", true },
        { ENG_API_COMPLETIONS, "\"response_format\": {\"type\": \"json_object\"}", "", true },
        { ENG_API_CHAT, "\"response_format\": {\"type\": \"sound\"}", "400 response_format.type", false },
        { ENG_API_CHAT, "\"response_format\": {}", "400 response_format.type", false },
        { ENG_API_CHAT, "\"response_format\": \"json\"", "400 response_format", false },
        { ENG_API_CHAT, "\"response_format\": {\"type\": \"json_schema\"}", "400 response_format.json_schema", false },
        { ENG_API_CHAT,
          "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": "
          "{\"name\": \"n\"}}",
          "400 response_format.json_schema.schema", false },
        { ENG_API_CHAT,
          "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": "
          "{\"name\": \"n\", \"schema\": {\"type\": \"integer\"}}}",
          "", true },
        { ENG_API_CHAT,
          "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": "
          "{\"schema\": {\"type\": 5}}}",
          "400 response_format.json_schema.schema", false },
        { ENG_API_RESPONSES,
          "\"text\": {\"format\": {\"type\": \"json_schema\", \"name\": \"n\", "
          "\"schema\": {\"type\": \"object\"}}}",
          "", true },
        { ENG_API_RESPONSES, "\"text\": {\"format\": {\"type\": \"json_schema\", \"name\": \"n\"}}",
          "400 text.format.schema", false },
        { ENG_API_MESSAGES,
          "\"output_config\": {\"format\": {\"type\": \"json_schema\", \"schema\": "
          "{\"type\": \"object\"}}}",
          "", true },
        { ENG_API_CHAT, TOOL("") ", \"response_format\": {\"type\": \"json_object\"}", "", true },
    };
    (void)state;
    for (int i = 0; i < LEN(cases); i++) {
        char *body = with(cases[i].api, cases[i].members);
        expect(cases[i].api, body, cases[i].want);
        if (*cases[i].want)
            continue;
        struct eng_api_request *ask = ask_of(cases[i].api, body);
        if (!ask->grammar != !cases[i].grammar)
            print_error("%s\n", body);
        assert_int_equal(ask->grammar != NULL, cases[i].grammar);
        eng_api_request_close(ask);
    }
}

static void a_format_holds_the_answer_and_lets_it_think(void **state)
{
    struct eng_api_request *ask = ask_of(ENG_API_CHAT, with(ENG_API_CHAT, "\"response_format\": {\"type\": "
                                                                          "\"json_object\"}"));
    (void)state;
    assert_true(accepts(ask->grammar, "{\"a\": 1}"));
    assert_true(accepts(ask->grammar, "<think>so</think>\n\n{\"a\": 1}"));
    assert_false(accepts(ask->grammar, "[1]"));
    assert_false(accepts(ask->grammar, "hello"));
    eng_api_request_close(ask);
    ask = ask_of(ENG_API_CHAT, with(ENG_API_CHAT, TOOL("") ", \"response_format\": {\"type\": "
                                                           "\"json_object\"}"));
    assert_true(accepts(ask->grammar, "{\"a\": 1}"));
    assert_true(accepts(ask->grammar, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n"
                                      "</tool_call>"));
    assert_false(accepts(ask->grammar, "hello"));
    eng_api_request_close(ask);
    ask = ask_of(ENG_API_CHAT, with(ENG_API_CHAT, "\"reasoning_effort\": \"high\", "
                                                  "\"response_format\": {\"type\": \"json_object\"}"));
    assert_true(accepts(ask->grammar, "so</think>\n\n{\"a\": 1}")); /* reasoning starts in the prompt */
    assert_false(accepts(ask->grammar, "{\"a\": 1}"));
    eng_api_request_close(ask);
    ask = ask_of(ENG_API_COMPLETIONS, with(ENG_API_COMPLETIONS, "\"response_format\": {\"type\": "
                                                                "\"json_object\"}"));
    assert_true(accepts(ask->grammar, "{\"a\": 1}"));
    assert_false(accepts(ask->grammar, "<think></think>{}")); /* plain text, without reasoning */
    eng_api_request_close(ask);
}

/* gpt-oss writes its answer in a separate channel. A model without tool calls can still have an answer format. */
static void a_format_fits_the_models_way(void **state)
{
    static const char body[] = "{\"messages\": [" USER "], \"response_format\": {\"type\": "
                               "\"json_object\"}, " TOOL("") "}";
    struct eng_api_request *ask;
    (void)state;
    fake_close(NULL);
    fake_open_with("<|channel|><|message|>{{ messages[0].content }}{{ tools }}");
    ask = ask_of(ENG_API_CHAT, body);
    assert_true(accepts(ask->grammar, "<|channel|>final<|message|>{\"a\": 1}"));
    assert_true(accepts(ask->grammar, "<|channel|>analysis<|message|>so<|end|><|start|>assistant"
                                      "<|channel|>final <|constrain|>json<|message|>{}"));
    assert_true(accepts(ask->grammar, "<|channel|>commentary to=functions.f json<|message|>{}"));
    assert_false(accepts(ask->grammar, "<|channel|>final<|message|>so"));
    assert_false(accepts(ask->grammar, "{}"));
    eng_api_request_close(ask);
    fake_close(NULL);
    fake_open_with("{{ messages[0].content }}");
    ask = ask_of(ENG_API_CHAT, body);
    assert_true(accepts(ask->grammar, "{\"a\": 1}"));
    assert_false(accepts(ask->grammar, "so"));
    eng_api_request_close(ask);
    ask = ask_of(ENG_API_CHAT, with(ENG_API_CHAT, TOOL("") ", \"tool_choice\": \"required\"")); /* the generic form */
    assert_true(accepts(ask->grammar, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
    assert_false(accepts(ask->grammar, "so"));
    eng_api_request_close(ask);
    fake_close(NULL);
    fake_open(NULL);
}

/* Schemas known to crash or hang servers: each ends soon, refused or not. */
static void no_schema_does_harm(void **state)
{
    static const char *const schemas[] = {
        "{\"$ref\": \"#\"}",
        "{\"$ref\": \"#/a\", \"a\": {\"$ref\": \"#/b\"}, \"b\": {\"$ref\": \"#/a\"}}",
        "{\"type\": \"string\", \"pattern\": \"(a+)+b\"}",
        "{\"type\": \"string\", \"pattern\": \"[\"}",
        "{\"type\": \"string\", \"pattern\": \"a{1000000000}\"}",
        "{\"type\": \"array\", \"minItems\": 1000000000}",
        "{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}",
        "{\"type\": \"nothing\"}",
        "{\"enum\": []}",
        "{\"type\": [\"object\", \"nothing\"]}",
        "{\"minLength\": -1, \"type\": \"string\"}",
        "{\"allOf\": [false]}",
        "{\"properties\": 5}",
        "{\"pattern\": 5, \"type\": \"string\"}",
        "{\"type\": 5, \"pattern\": [\"x\"]}",
    };
    char body[1000];
    (void)state;
    for (int i = 0; i < LEN(schemas); i++) {
        const char *got;
        snprintf(body, sizeof body,
                 "{\"messages\": [" USER "], \"response_format\": {\"type\": "
                 "\"json_schema\", \"json_schema\": {\"schema\": %s}}}",
                 schemas[i]);
        got = said(ENG_API_CHAT, body);
        assert_true(!*got || !strncmp(got, "400 ", 4));
        snprintf(body, sizeof body,
                 "{\"messages\": [" USER "], \"tool_choice\": \"required\", "
                 "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
                 "%s}}]}",
                 schemas[i]);
        got = said(ENG_API_CHAT, body);
        assert_true(!*got || !strncmp(got, "400 ", 4));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_dialects_are_one_conversation),
        cmocka_unit_test(tools_reach_the_template_in_one_form),
        cmocka_unit_test(messages_that_cannot_be_read_are_refused),
        cmocka_unit_test(arguments_are_what_the_template_takes),
        cmocka_unit_test(thoughts_go_by_the_templates_name),
        cmocka_unit_test(a_template_may_refuse),
        cmocka_unit_test(tools_and_formats_are_checked),
        cmocka_unit_test(a_format_holds_the_answer_and_lets_it_think),
        cmocka_unit_test(a_format_fits_the_models_way),
        cmocka_unit_test(no_schema_does_harm),
    };
    return cmocka_run_group_tests(tests, fake_open, fake_close);
}
