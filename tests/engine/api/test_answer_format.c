/* Response formats (engine/api/answer_format.c): schemas that a grammar cannot hold get a 400 that says why.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/api/setup.h"

#define FORMAT(schema)                                                                                                 \
    "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"a\", \"schema\": " schema "}}"

/* The whole message of a refusal; "": accepted, with a grammar. */
static const char *why_not(const char *members)
{
    static struct eng_refusal why;
    struct eng_api_request *ask = NULL;
    char *body = with(ENG_API_CHAT, members);
    memset(&why, 0, sizeof why);
    if (eng_api_request_parse(&ask, ENG_API_CHAT, body, strlen(body), &fake.setup, &fake_arrival, &why)) {
        assert_int_equal(why.status, 400);
        return why.message;
    }
    assert_non_null(ask->grammar);
    eng_api_request_close(ask);
    return "";
}

static void expect_why(const char *members, const char *part)
{
    const char *why = why_not(members);
    if (*part ? !strstr(why, part) : *why != 0)
        fail_msg("%s: '%s', not '%s'", members, why, part);
}

/* A vocabulary like SmolLM2's: no token for 0xF1. */
static void bytes_without_a_token(void **state)
{
    (void)state;
    fake.vocab->type[0xf1] = ENG_TOKEN_UNUSED;
    gr_tokens_close(fake.tokens);
    assert_int_equal(gr_tokens_open(&fake.tokens, fake.vocab, 1 << 20), 0);
    fake.setup.gr_tokens = fake.tokens;
    expect_why(FORMAT("{\"enum\": [\"\\ud8c0\\udc00\"]}"), "(byte 0xf1)");
    expect_why(FORMAT("{\"enum\": [\"\\ud8c0\\udc00\", \"x\"]}"), "");
    expect_why(FORMAT("{\"type\": \"string\"}"), "");
    expect_why("\"response_format\": {\"type\": \"json_object\"}", "");
    expect_why(TOOL("") ", \"tool_choice\": \"required\"", "");
}

static void one_of_and_fixed_values(void **state)
{
    (void)state;
    expect_why(FORMAT("{\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"string\"}]}"), "");
    expect_why(FORMAT("{\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"number\"}]}"),
               "schemas 1 and 2 of a \"oneOf\" may accept the same value");
    expect_why(FORMAT("{\"enum\": [\"a\\u0000b\"]}"), "");
    expect_why(FORMAT("{\"type\": \"string\", \"pattern\": \"a\\u0000b\"}"), "U+0000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_without_a_token, fake_open, fake_close),
        cmocka_unit_test_setup_teardown(one_of_and_fixed_values, fake_open, fake_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
