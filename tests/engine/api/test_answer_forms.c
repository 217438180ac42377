/* Forms of an answer (engine/api/answer_format.c): the names of OpenAI, vLLM and llama-server for schemas, regular
 * expressions and choices become one grammar; two forms, or a form that is not supported, are refused by name.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/api/setup.h"
#include "tests/engine/text/accepts.h"

#define A_SCHEMA "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}"
#define A_TEXT   "\"{\\\"type\\\": \\\"integer\\\"}\""

static void every_name_holds_the_answer(void **state)
{
    static const struct {
        const char *members, *valid, *invalid;
    } cases[] = {
        { "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": " A_SCHEMA "}}", "{\"a\": 1}",
          "{}" },
        { "\"response_format\": {\"type\": \"json_object\", \"schema\": " A_SCHEMA "}", "{\"a\": 1}", "{}" },
        { "\"json_schema\": " A_SCHEMA, "{\"a\": 1}", "{\"a\": \"1\"}" },
        { "\"json_schema\": {}", "[1, null]", "[1, nil]" },
        { "\"guided_json\": " A_SCHEMA, "{\"a\": 1}", "{}" },
        { "\"guided_json\": " A_TEXT, "12", "\"12\"" },
        { "\"guided_regex\": \"[a-c]{2}\"", "ab", "abc" },
        { "\"guided_choice\": [\"yes\", \"no\", \"\xC3\xA9\"]", "\xC3\xA9", "yesno" },
        { "\"structured_outputs\": {\"json\": " A_SCHEMA "}", "{\"a\": 1}", "{}" },
        { "\"structured_outputs\": {\"json\": " A_TEXT "}", "12", "x" },
        { "\"structured_outputs\": {\"regex\": \"\\\\d+\"}", "12", "1x" },
        { "\"structured_outputs\": {\"choice\": [\"a\", \"ab\"]}", "ab", "b" },
        { "\"structured_outputs\": {\"json_object\": true}", "{}", "[]" },
        { "\"structured_outputs\": {\"regex\": \"a\", \"disable_fallback\": true, \"disable_any_whitespace\": false}",
          "a", "b" },
        { "\"response_format\": {\"type\": \"text\"}, \"guided_regex\": \"a\"", "a", "b" },
    };
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        for (enum eng_api api = ENG_API_COMPLETIONS; api <= ENG_API_CHAT; api++) {
            struct eng_api_request *ask = ask_of(api, with(api, cases[i].members));
            assert_non_null(ask->grammar);
            if (!accepts(ask->grammar, cases[i].valid) || accepts(ask->grammar, cases[i].invalid))
                fail_msg("%s", cases[i].members);
            eng_api_request_close(ask);
        }
    struct eng_api_request *ask = ask_of(ENG_API_CHAT, with(ENG_API_CHAT, TOOL("") ", \"guided_choice\": [\"no\"]"));
    assert_true(accepts(ask->grammar, "no"));
    assert_true(accepts(ask->grammar, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
    assert_false(accepts(ask->grammar, "yes"));
    eng_api_request_close(ask);
}

static void many_choices_are_held(void **state)
{
    static char members[1 << 15], text[40];
    size_t n = (size_t)snprintf(members, sizeof members, "\"guided_choice\": [\"\"");
    (void)state;
    for (int i = 1; i < ENG_API_MAX_CHOICE_TEXTS; i++)
        n += (size_t)snprintf(members + n, sizeof members - n, ", \"%d choice %d with text\"", i * 7 % 100, i);
    snprintf(members + n, sizeof members - n, "]");
    struct eng_api_request *ask = ask_of(ENG_API_CHAT, with(ENG_API_CHAT, members));
    for (int i = 1; i < ENG_API_MAX_CHOICE_TEXTS; i++) {
        snprintf(text, sizeof text, "%d choice %d with text", i * 7 % 100, i);
        assert_true(accepts(ask->grammar, text));
        text[strlen(text) - 1] = 0;
        assert_false(accepts(ask->grammar, text));
    }
    assert_true(accepts(ask->grammar, ""));
    eng_api_request_close(ask);
    snprintf(members + n, sizeof members - n, ", \"one too many\"]");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, members), "400 guided_choice");
}

static void forms_are_refused_by_name(void **state)
{
    static const struct {
        const char *members, *want;
    } cases[] = {
        { "\"guided_regex\": \"a\", \"guided_choice\": [\"a\"]", "400 guided_choice" },
        { "\"guided_json\": {}, \"json_schema\": {}", "400 guided_json" },
        { "\"response_format\": {\"type\": \"json_object\"}, \"guided_regex\": \"a\"", "400 guided_regex" },
        { "\"structured_outputs\": {\"regex\": \"a\", \"choice\": [\"a\"]}", "400 structured_outputs.choice" },
        { "\"structured_outputs\": {\"json\": {}, \"json_object\": true}", "400 structured_outputs.json_object" },
        { "\"structured_outputs\": {\"grammar\": \"root ::= x\"}", "400 structured_outputs.grammar" },
        { "\"structured_outputs\": {\"structural_tag\": \"x\"}", "400 structured_outputs.structural_tag" },
        { "\"structured_outputs\": {\"json\": {}, \"disable_any_whitespace\": true}",
          "400 structured_outputs.disable_any_whitespace" },
        { "\"structured_outputs\": 5", "400 structured_outputs" },
        { "\"structured_outputs\": {\"regex\": 5}", "400 structured_outputs.regex" },
        { "\"structured_outputs\": {\"regex\": \"(\"}", "400 structured_outputs.regex" },
        { "\"structured_outputs\": {}", "" },
        { "\"structured_outputs\": null", "" },
        { "\"guided_regex\": \"(a\"", "400 guided_regex" },
        { "\"guided_regex\": \"a)|(b\"", "400 guided_regex" },
        { "\"guided_regex\": [\"a\"]", "400 guided_regex" },
        { "\"guided_regex\": \"a\\u0000\"", "400 guided_regex" },
        { "\"guided_choice\": []", "400 guided_choice" },
        { "\"guided_choice\": [\"a\", 1]", "400 guided_choice" },
        { "\"guided_choice\": \"a\"", "400 guided_choice" },
        { "\"guided_json\": \"no JSON\"", "400 guided_json" },
        { "\"guided_json\": 5", "400 guided_json" },
        { "\"guided_json\": {\"type\": \"nothing\"}", "400 guided_json" },
        { "\"json_schema\": {\"not\": {}}", "400 json_schema" },
        { "\"guided_grammar\": \"root ::= x\"", "400 guided_grammar" },
        { "\"grammar\": \"root ::= x\"", "400 grammar" },
        { "\"guided_whitespace_pattern\": \" \"", "400 guided_whitespace_pattern" },
    };
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        for (enum eng_api api = ENG_API_COMPLETIONS; api <= ENG_API_CHAT; api++)
            expect(api, with(api, cases[i].members), cases[i].want);
    for (enum eng_api api = ENG_API_RESPONSES; api <= ENG_API_MESSAGES; api++) { /* they have names of their own */
        expect(api, with(api, "\"guided_regex\": \"a\""), "400 guided_regex");
        expect(api, with(api, "\"json_schema\": {\"type\": \"object\"}"), "400 json_schema");
        expect(api, with(api, "\"structured_outputs\": {\"json\": {}}"), "400 structured_outputs");
    }
    char deep[3000] = "\"guided_json\": \"";
    for (int i = 0; i < 300; i++)
        strcat(deep, "[");
    strcat(deep, "\"");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, deep), "400 guided_json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_holds_the_answer),
        cmocka_unit_test(many_choices_are_held),
        cmocka_unit_test(forms_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, fake_open, fake_close);
}
