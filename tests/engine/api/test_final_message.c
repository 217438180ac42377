/* The end of a conversation's prompt (engine/api/final_message.c): a last message of the assistant is continued, in every
 * dialect and as the members of vLLM say; the reasoning and the grammar go on where the message stands.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/api/setup.h"
#include "tests/engine/text/accepts.h"

static const char *rendered(enum eng_api api, const char *body)
{
    static char out[4096];
    struct eng_refusal why;
    char *text = NULL;
    size_t n;
    if (eng_api_request_render(api, body, strlen(body), &fake.setup, &text, &n, &why)) {
        snprintf(out, sizeof out, "%d %s", why.status, why.param);
        return out;
    }
    snprintf(out, sizeof out, "%.*s", (int)n, text);
    kn_free(text);
    return out;
}

#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define CHAT(last, more) "{\"messages\": [" USER ", " last "]" more "}"
#define ITEM(text, more) "{\"type\": \"message\", \"role\": \"assistant\", \"content\": \"" text "\"" more "}"
#define OPENED           "<|im_end|>\n<s>assistant\n"
#define FIRST            "<s>user\nhello<|im_end|>\n<s>"

static void a_last_message_of_the_assistant_is_continued(void **state)
{
    static const struct {
        enum eng_api api;
        const char *body, *want;
    } cases[] = {
        { ENG_API_CHAT, CHAT(SAYS("assistant", "Sure: "), ""), FIRST "assistant\nSure: " },
        { ENG_API_CHAT, CHAT(SAYS("assistant", ""), ""), FIRST "assistant\n" },
        { ENG_API_CHAT, CHAT(SAYS("user", "b"), ""), FIRST "user\nb" OPENED },
        { ENG_API_CHAT, CHAT(SAYS("assistant", "a"), ", \"add_generation_prompt\": true"),
          FIRST "assistant\na" OPENED },
        { ENG_API_CHAT, CHAT(SAYS("assistant", "a"), ", \"add_generation_prompt\": false"),
          FIRST "assistant\na<|im_end|>\n" },
        { ENG_API_CHAT, CHAT(SAYS("user", "b"), ", \"add_generation_prompt\": false"), FIRST "user\nb<|im_end|>\n" },
        { ENG_API_CHAT, CHAT(SAYS("assistant", "a"), ", \"continue_final_message\": false"),
          FIRST "assistant\na" OPENED },
        { ENG_API_CHAT, CHAT(SAYS("assistant", "a"), ", \"continue_final_message\": true"), FIRST "assistant\na" },
        { ENG_API_CHAT,
          CHAT(SAYS("assistant", "a"), ", \"add_generation_prompt\": false, \"continue_final_message\": true"),
          FIRST "assistant\na" },
        { ENG_API_CHAT, CHAT(SAYS("user", "b"), ", \"continue_final_message\": true"), FIRST "user\nb" },
        { ENG_API_CHAT,
          CHAT(SAYS("assistant", "a"), ", \"add_generation_prompt\": true, \"continue_final_message\": true"),
          "400 continue_final_message" },
        { ENG_API_CHAT, CHAT(SAYS("assistant", "a"), ", \"continue_final_message\": 1"), "400 continue_final_message" },
        { ENG_API_CHAT, CHAT(SAYS("assistant", "a"), ", \"add_generation_prompt\": \"no\""),
          "400 add_generation_prompt" },
        { ENG_API_CHAT,
          CHAT("{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": [{\"function\": {\"name\": \"f\"}}]}",
               ", \"continue_final_message\": true"),
          "400 continue_final_message" },
        { ENG_API_CHAT, CHAT("{\"role\": \"assistant\", \"reasoning_content\": \"so\", \"content\": \"a\"}", ""),
          FIRST "assistant\n<think>so</think>a" },
        { ENG_API_CHAT, CHAT("{\"role\": \"assistant\", \"reasoning_content\": \"so\"}", ""),
          FIRST "assistant\n<think>so" },
        { ENG_API_MESSAGES, CHAT(SAYS("assistant", "{\\\"a\\\":"), ""), FIRST "assistant\n{\"a\":" },
        { ENG_API_MESSAGES, CHAT("{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]}", ""),
          FIRST "assistant\na" },
        { ENG_API_MESSAGES, CHAT(SAYS("assistant", "a "), ""), "400 messages" },
        { ENG_API_MESSAGES, CHAT(SAYS("assistant", "a\\n"), ""), "400 messages" },
        { ENG_API_MESSAGES, CHAT(SAYS("assistant", "a "), ""), "400 messages" },
        { ENG_API_RESPONSES, "{\"input\": [" USER ", " ITEM("a", "") "]}", FIRST "assistant\na" OPENED },
        { ENG_API_RESPONSES, "{\"input\": [" USER ", " ITEM("a", ", \"status\": \"completed\"") "]}",
          FIRST "assistant\na" OPENED },
        { ENG_API_RESPONSES, "{\"input\": [" USER ", " ITEM("a", ", \"status\": \"incomplete\"") "]}",
          FIRST "assistant\na" },
        { ENG_API_RESPONSES, "{\"input\": [" USER ", " ITEM("a", ", \"status\": \"in_progress\"") "]}",
          FIRST "assistant\na" },
    };
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        assert_string_equal(rendered(cases[i].api, cases[i].body), cases[i].want);
}

/* The tokens of a prompt are those of its text, without an end of turn. */
static void the_prompts_tokens_end_there_too(void **state)
{
    struct eng_api_request *ask = ask_of(ENG_API_CHAT, CHAT(SAYS("assistant", "a<|im_end|>b<"), ""));
    const struct eng_ids *ids = &ask->prompt[0];
    (void)state;
    assert_true(ids->n > 13);
    assert_int_equal(ids->id[ids->n - 1], '<');
    assert_int_equal(ids->id[ids->n - 2], 'b');
    assert_int_equal(ids->id[ids->n - 3], '>'); /* text of a message, not the control token */
    eng_api_request_close(ask);
}

static void the_reasoning_goes_on_where_it_stands(void **state)
{
    static const struct {
        const char *last;
        bool thinks;
        bool in_text;
    } cases[] = {
        { SAYS("assistant", "a"), false, true },
        { SAYS("assistant", " a"), false, true },
        { SAYS("assistant", "<think>why"), true, false },
        { SAYS("assistant", "<think>why</think>\\n\\nso"), false, true },
        { SAYS("assistant", "<think>why</think>"), false, false },
        { "{\"role\": \"assistant\", \"reasoning_content\": \"why\"}", true, false },
        { "{\"role\": \"assistant\", \"reasoning_content\": \"why\", \"content\": \"so\"}", false, true },
    };
    (void)state;
    for (int i = 0; i < LEN(cases); i++) {
        char body[400];
        snprintf(body, sizeof body, "{\"messages\": [" USER ", %s], \"reasoning_effort\": \"high\"}", cases[i].last);
        struct eng_api_request *ask = ask_of(ENG_API_CHAT, body);
        assert_true(ask->continues);
        assert_int_equal(ask->thinks, cases[i].thinks);
        assert_int_equal(ask->in_text, cases[i].in_text);
        eng_api_request_close(ask);
    }
    struct eng_api_request *ask = ask_of(ENG_API_CHAT,
                                         CHAT(SAYS("user", "<think>why"), ", \"continue_final_message\": true"));
    assert_true(ask->continues && !ask->thinks);
    eng_api_request_close(ask);
    ask = ask_of(ENG_API_CHAT, with(ENG_API_CHAT, "\"reasoning_effort\": \"high\""));
    assert_true(ask->thinks && !ask->continues);
    eng_api_request_close(ask);
}

/* ---- grammars --------------------------------------------------------------------------------- */

#define OBJECT ", \"response_format\": {\"type\": \"json_object\"}"

/* As with llama-server and vLLM, the form is that of the continuation alone. */
static void a_form_holds_the_continuation(void **state)
{
    static const char call[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    struct eng_api_request *ask = ask_of(ENG_API_CHAT, CHAT(SAYS("assistant", "So: "), OBJECT));
    (void)state;
    assert_true(accepts(ask->grammar, "{\"a\": 1}"));
    assert_false(accepts(ask->grammar, "<think>a</think>{}")); /* reasoning cannot begin in the text */
    eng_api_request_close(ask);
    ask = ask_of(ENG_API_CHAT, CHAT(SAYS("assistant", ""), OBJECT));
    assert_true(accepts(ask->grammar, "<think>a</think>{}") && accepts(ask->grammar, "{}"));
    eng_api_request_close(ask);
    ask = ask_of(ENG_API_CHAT, CHAT(SAYS("assistant", "<think>why"), OBJECT));
    assert_true(accepts(ask->grammar, " so</think>{}"));
    assert_false(accepts(ask->grammar, "{}"));
    eng_api_request_close(ask);
    ask = ask_of(ENG_API_CHAT, CHAT(SAYS("assistant", "So: "), ", \"tool_choice\": \"required\", " TOOL("")));
    assert_true(accepts(ask->grammar, call));
    assert_false(accepts(ask->grammar, "a"));
    eng_api_request_close(ask);
    expect(ENG_API_MESSAGES,
           CHAT(SAYS("assistant", "So:"), ", \"max_tokens\": 9, \"output_config\": {\"format\": {\"type\": "
                                          "\"json_schema\", \"schema\": {}}}"),
           "400 output_config.format.schema");
}

/* gpt-oss: the text stands inside a message of the final channel, or of the channel of reasoning. */
static void messages_in_channels_go_on(void **state)
{
    struct eng_api_request *ask;
    (void)state;
    fake_close(NULL);
    fake_open_with("{% for m in messages %}<|start|>{{ m.role }}{% if m.thinking %}<|channel|>analysis<|message|>{{ "
                   "m.thinking }}<|end|>{% endif %}<|channel|>final<|message|>{{ m.content }}<|end|>{% endfor %}");
    ask = ask_of(ENG_API_CHAT, CHAT(SAYS("assistant", "So: "), OBJECT));
    assert_true(accepts(ask->grammar, "{\"a\": 1}"));
    assert_false(accepts(ask->grammar, "<|channel|>final<|message|>{\"a\": 1}"));
    assert_false(ask->thinks);
    eng_api_request_close(ask);
    ask = ask_of(ENG_API_CHAT, CHAT("{\"role\": \"assistant\", \"reasoning\": \"why\"}", OBJECT));
    assert_true(accepts(ask->grammar, " so<|end|><|start|>assistant<|channel|>final<|message|>{\"a\": 1}"));
    assert_false(accepts(ask->grammar, "{}"));
    assert_true(ask->thinks);
    eng_api_request_close(ask);
    expect(ENG_API_CHAT, CHAT(SAYS("assistant", "a"), ", \"tool_choice\": \"required\", " TOOL("")), "400 tools");
    fake_close(NULL);
    fake_open(NULL);
}

/* A template that trims texts, writes them twice, or does not write the last one. */
static void templates_that_change_the_text(void **state)
{
    (void)state;
    fake_close(NULL);
    fake_open_with("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}");
    assert_string_equal(rendered(ENG_API_CHAT, CHAT(SAYS("assistant", " a "), "")), "[hello][a ");
    fake_close(NULL);
    fake_open_with("{{ messages[-1].content }};{% for m in messages %}[{{ m.content }}]{% endfor %}");
    assert_string_equal(rendered(ENG_API_CHAT, CHAT(SAYS("assistant", "a"), "")), "a;[hello][a");
    fake_close(NULL);
    fake_open_with("{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% endfor %}");
    assert_string_equal(rendered(ENG_API_CHAT, CHAT(SAYS("assistant", "a"), "")), "400 messages");
    fake_close(NULL);
    fake_open(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_last_message_of_the_assistant_is_continued),
        cmocka_unit_test(the_prompts_tokens_end_there_too),
        cmocka_unit_test(the_reasoning_goes_on_where_it_stands),
        cmocka_unit_test(a_form_holds_the_continuation),
        cmocka_unit_test(messages_in_channels_go_on),
        cmocka_unit_test(templates_that_change_the_text),
    };
    return cmocka_run_group_tests(tests, fake_open, fake_close);
}
