/* Request bodies (engine/api/request.c): accepted members and ranges, and refusals with status and member name. No body
 * can do more than be refused, however deep, long or random. Accepted requests reach the engine with all their
 * parameters.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/api/setup.h"
#include "tests/faults.h"

/* ---- numbers --------------------------------------------------------------------------------- */

enum {
    C = 1 << ENG_API_COMPLETIONS,
    H = 1 << ENG_API_CHAT,
    R = 1 << ENG_API_RESPONSES,
    M = 1 << ENG_API_MESSAGES,
    ALL = C | H | R | M
};

static void every_number_is_in_its_range(void **state)
{
    static const struct {
        int apis;
        const char *name;
        double least, most;
        bool whole;
    } fields[] = {
        { C | H | M, "max_tokens", 1, INT32_MAX, true },
        { H, "max_completion_tokens", 1, INT32_MAX, true },
        { R, "max_output_tokens", 1, INT32_MAX, true },
        { C | H, "n", 1, 64, true },
        { ALL, "top_k", -1, INT32_MAX, true },
        { ALL, "repeat_last_n", -1, INT32_MAX, true },
        { ALL, "priority", -1000, 1000, true },
        { C, "logprobs", 0, 20, true },
        { R, "top_logprobs", 0, 20, true },
        { ALL, "seed", -0x1p63, 0x1p63, true },
        { C | H | R, "temperature", 0, 100, false },
        { M, "temperature", 0, 1, false },
        { ALL, "top_p", 0, 1, false },
        { ALL, "min_p", 0, 1, false },
        { ALL, "presence_penalty", -2, 2, false },
        { ALL, "frequency_penalty", -2, 2, false },
        { ALL, "repetition_penalty", 0.01, 100, false },
    };
    static const struct {
        const char *text;
        double x;
        bool number;
    } values[] = {
        { "-1", -1, true },
        { "0", 0, true },
        { "1", 1, true },
        { "20", 20, true },
        { "21", 21, true },
        { "64", 64, true },
        { "65", 65, true },
        { "-2147483648", -0x1p31, true },
        { "2147483647", INT32_MAX, true },
        { "2147483648", 0x1p31, true },
        { "9007199254740993", 0x1p53, true },
        { "9223372036854775807", 0x1p63, true },
        { "-9223372036854775808", -0x1p63, true },
        { "1e308", 1e308, true },
        { "-1e308", -1e308, true },
        { "1.0", 1, true },
        { "0.5", 0.5, true },
        { "1e-9", 1e-9, true },
        { "\"1\"", 0, false },
        { "{}", 0, false },
        { "[1]", 0, false },
        { "{\"a\": {}}", 0, false },
        { "true", 0, false },
    };
    (void)state;
    for (int f = 0; f < LEN(fields); f++)
        for (int api = 0; api < 4; api++)
            for (int v = 0; fields[f].apis >> api & 1 && v < LEN(values); v++) {
                char member[128], want[64] = "";
                double x = values[v].x;
                bool whole = !strpbrk(values[v].text, ".e") || strcmp(values[v].text, "1.0") == 0;
                snprintf(member, sizeof member, "\"%s\": %s", fields[f].name, values[v].text);
                bool no_limit = x == -1 && api != ENG_API_MESSAGES && !strncmp(fields[f].name, "max_", 4);
                if (no_limit)
                    x = 1;
                if (!values[v].number || x < fields[f].least || x > fields[f].most || (fields[f].whole && !whole))
                    snprintf(want, sizeof want, "400 %s", fields[f].name);
                expect((enum eng_api)api, with((enum eng_api)api, member), want);
                snprintf(member, sizeof member, "\"%s\": null", fields[f].name);
                if (strcmp(fields[f].name, "max_tokens") != 0)
                    expect((enum eng_api)api, with((enum eng_api)api, member), "");
            }
    /* numbers beyond JSON */
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"seed\": 9223372036854775808"), "400 ");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"temperature\": 1e999"), "400 ");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"temperature\": NaN"), "400 ");
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        enum eng_api api;
        const char *members, *want;
    } cases[] = {
        { ENG_API_CHAT, "\"model\": \"small:latest\"", "" },
        { ENG_API_CHAT, "\"model\": \"gpt-5\"", "404 model" },
        { ENG_API_CHAT, "\"model\": 5", "400 model" },
        { ENG_API_CHAT, "\"stream\": \"yes\"", "400 stream" },
        { ENG_API_CHAT, "\"stream\": true, \"stream_options\": {\"include_usage\": true}", "" },
        { ENG_API_CHAT, "\"stream\": true, \"stream_options\": {\"include_usage\": 1}",
          "400 stream_options.include_usage" },
        { ENG_API_CHAT, "\"stream_options\": {}", "400 stream_options" },
        { ENG_API_CHAT, "\"stop\": \"\"", "400 stop" },
        { ENG_API_CHAT, "\"stop\": [\"a\", \"\"]", "400 stop" },
        { ENG_API_CHAT, "\"stop\": [\"a\", 1]", "400 stop" },
        { ENG_API_CHAT, "\"stop\": \"a\\u0000b\"", "400 stop" },
        { ENG_API_CHAT, "\"stop\": {}", "400 stop" },
        { ENG_API_CHAT, "\"stop\": []", "" },
        { ENG_API_MESSAGES, "\"stop_sequences\": [\"x\"]", "" },
        { ENG_API_MESSAGES, "\"stop_sequences\": [1]", "400 stop_sequences" },
        { ENG_API_CHAT, "\"stop_token_ids\": [263, 267]", "400 stop_token_ids" },
        { ENG_API_CHAT, "\"stop_token_ids\": [-1]", "400 stop_token_ids" },
        { ENG_API_CHAT, "\"logit_bias\": {\"5\": 100, \"266\": -100}", "" },
        { ENG_API_CHAT, "\"logit_bias\": {\"267\": 1}", "400 logit_bias.267" },
        { ENG_API_CHAT, "\"logit_bias\": {\"-1\": 1}", "400 logit_bias.-1" },
        { ENG_API_CHAT, "\"logit_bias\": {\"99999999999999999999\": 1}", "400 logit_bias.99999999999999999999" },
        { ENG_API_CHAT, "\"logit_bias\": {\"\": 1}", "400 logit_bias" },
        { ENG_API_CHAT, "\"logit_bias\": {\"5\": 101}", "400 logit_bias.5" },
        { ENG_API_CHAT, "\"logit_bias\": {\"5\": \"1\"}", "400 logit_bias.5" },
        { ENG_API_CHAT, "\"logit_bias\": {\"5\": null}", "400 logit_bias.5" },
        { ENG_API_CHAT, "\"logit_bias\": []", "" },
        { ENG_API_CHAT, "\"logit_bias\": [[5, 1.5], [6, false], [\"he\", -2]]", "" },
        { ENG_API_CHAT, "\"logit_bias\": {\"hello\": -1, \"5\": false}", "" },
        { ENG_API_CHAT, "\"logit_bias\": [[267, 1]]", "400 logit_bias" },
        { ENG_API_CHAT, "\"logit_bias\": [[5, true]]", "400 logit_bias" },
        { ENG_API_CHAT, "\"logit_bias\": [[5, 101]]", "400 logit_bias" },
        { ENG_API_CHAT, "\"logit_bias\": [[5]]", "400 logit_bias" },
        { ENG_API_CHAT, "\"logit_bias\": [5]", "400 logit_bias" },
        { ENG_API_CHAT, "\"logit_bias\": 5", "400 logit_bias" },
        { ENG_API_CHAT, "\"logprobs\": 1", "400 logprobs" },
        { ENG_API_CHAT, "\"top_logprobs\": 2", "400 top_logprobs" },
        { ENG_API_CHAT, "\"logprobs\": true, \"top_logprobs\": 20", "" },
        { ENG_API_CHAT, "\"logprobs\": true, \"top_logprobs\": 21", "400 top_logprobs" },
        { ENG_API_COMPLETIONS, "\"logprobs\": true", "400 logprobs" },
        { ENG_API_COMPLETIONS, "\"logprobs\": 2, \"echo\": true, \"max_tokens\": 0", "" },
        { ENG_API_COMPLETIONS, "\"logprobs\": 2, \"echo\": true, \"stream\": true", "400 logprobs" },
        { ENG_API_COMPLETIONS, "\"logprobs\": 2, \"max_tokens\": 0", "400 max_tokens" },
        { ENG_API_CHAT, "\"prompt_logprobs\": 20", "" },
        { ENG_API_CHAT, "\"prompt_logprobs\": 21", "400 prompt_logprobs" },
        { ENG_API_CHAT, "\"prompt_logprobs\": 0, \"stream\": true", "400 prompt_logprobs" },
        { ENG_API_COMPLETIONS, "\"suffix\": \"x\"", "400 suffix" },
        { ENG_API_COMPLETIONS, "\"suffix\": \"\"", "" },
        { ENG_API_COMPLETIONS, "\"best_of\": 2, \"n\": 2", "" },
        { ENG_API_COMPLETIONS, "\"best_of\": 3, \"n\": 2", "400 best_of" },
        { ENG_API_CHAT, "\"min_tokens\": 5", "" },
        { ENG_API_CHAT, "\"min_tokens\": 5, \"max_tokens\": 4", "400 min_tokens" },
        { ENG_API_CHAT, "\"min_tokens\": 5, \"response_format\": {\"type\": \"json_object\"}", "400 min_tokens" },
        { ENG_API_CHAT, "\"min_tokens\": 5, \"ignore_eos\": true", "" },
        { ENG_API_CHAT, "\"chat_template\": \"{{ 1 }}\"", "400 chat_template" },
        { ENG_API_CHAT, "\"chat_template_kwargs\": {\"enable_thinking\": true}", "" },
        { ENG_API_CHAT, "\"chat_template_kwargs\": {\"tokenize\": true}", "400 chat_template_kwargs.tokenize" },
        { ENG_API_CHAT, "\"chat_template_kwargs\": {\"messages\": []}", "400 chat_template_kwargs.messages" },
        { ENG_API_CHAT, "\"chat_template_kwargs\": {\"thinking\": []}", "400 chat_template_kwargs.thinking" },
        { ENG_API_CHAT,
          "\"chat_template_kwargs\": {\"thinking\": \"0123456789012345678901234567890"
          "12345678901234567890123456789012345678901234567890\"}",
          "400 chat_template_kwargs.thinking" },
        { ENG_API_CHAT, "\"chat_template_kwargs\": []", "400 chat_template_kwargs" },
        { ENG_API_CHAT, "\"reasoning_effort\": \"low\"", "" },
        { ENG_API_CHAT, "\"reasoning_effort\": \"huge\"", "400 reasoning_effort" },
        { ENG_API_RESPONSES, "\"reasoning\": {\"effort\": 3}", "400 reasoning.effort" },
        { ENG_API_RESPONSES, "\"previous_response_id\": \"resp_1\"", "400 previous_response_id" },
        { ENG_API_RESPONSES, "\"background\": true", "400 background" },
        { ENG_API_RESPONSES, "\"background\": false, \"store\": true, \"truncation\": \"auto\"", "" },
        { ENG_API_MESSAGES, "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 1024}", "" },
        { ENG_API_MESSAGES, "\"thinking\": {\"type\": \"on\"}", "400 thinking.type" },
        { ENG_API_CHAT, "\"functions\": [{}]", "400 functions" },
        { ENG_API_CHAT, "\"user\": 7", "400 user" },
        { ENG_API_CHAT,
          "\"metadata\": {\"a\": 1}, \"store\": 1, \"service_tier\": [], "
          "\"what\": {\"ever\": [null]}",
          "" },
    };
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        expect(cases[i].api, with(cases[i].api, cases[i].members), cases[i].want);
}

static void a_body_is_an_object(void **state)
{
    static const char *const bodies[] = {
        "",
        " ",
        "null",
        "7",
        "\"x\"",
        "[]",
        "[{}]",
        "{",
        "}",
        "{\"messages\": [",
        "{\"a\" 1}",
        "{} x",
        "{'messages': []}",
        "{\"a\": 1, \"a\": 2}",
        "\xFF",
        "{\"model\": \"\xC3\x28\"}",
        "{\"model\": \"\\ud800\"}",
        "{\"\\u0000\": 1}",
    };
    (void)state;
    for (int api = 0; api < 4; api++)
        for (int i = 0; i < LEN(bodies); i++)
            expect((enum eng_api)api, bodies[i], "400 ");
    expect(ENG_API_CHAT, "{}", "400 messages");
    expect(ENG_API_COMPLETIONS, "{}", "400 prompt");
    expect(ENG_API_RESPONSES, "{}", "400 input");
    expect(ENG_API_MESSAGES, "{}", "400 max_tokens");
    expect(ENG_API_MESSAGES, "{\"max_tokens\": 1}", "400 messages");
    assert_string_equal(said_n(ENG_API_CHAT, "{\0}", 3), "400 ");
}

static void depth_has_an_end(void **state)
{
    enum { DEEP = 10000 };
    static char body[3 * DEEP + 200];
    static const int depths[] = { 100, ENG_API_MAX_DEPTH - 1, ENG_API_MAX_DEPTH, 1000, DEEP };
    (void)state;
    for (int i = 0; i < LEN(depths); i++) {
        int deep = depths[i];
        size_t n = (size_t)snprintf(body, sizeof body, "{\"messages\": [" USER "], \"x\": ");
        memset(body + n, '[', (size_t)deep);
        memset(body + n + deep, ']', (size_t)deep);
        snprintf(body + n + 2 * deep, 2, "}");
        expect(ENG_API_CHAT, body, deep < ENG_API_MAX_DEPTH ? "" : "400 ");
        body[n + (size_t)deep] = 0; /* no closing brackets */
        expect(ENG_API_CHAT, body, "400 ");
    }
    assert_int_equal(eng_api_request_depth("{\"a[[\\\"[\": [{}]}", 16), 3);
    assert_int_equal(eng_api_request_depth("]]][", 4), 1);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void prompts_come_in_four_shapes(void **state)
{
    static const struct {
        const char *prompt;
        int n;
        const char *first;
    } good[] = {
        { "\"hello\"", 1, "259" },          { "\"\"", 1, "262" }, /* BOS of the vocabulary */
        { "[\"hello\", \"a\"]", 2, "259" }, { "[\"hello\"]", 1, "259" },   { "[[1, 2]]", 1, "1 2" },
        { "[1, 2, 3]", 1, "1 2 3" },        { "[[1, 2], [3]]", 2, "1 2" }, { "\"<|im_end|>a\"", 1, "263 97" },
    };
    static const char *const bad[] = { "[]",         "[[]]",         "[[1], []]",    "[\"a\", 1]",
                                       "[1, \"a\"]", "[\"a\", [1]]", "[[1], \"a\"]", "[-1]",
                                       "[267]",      "[1.5]",        "[2147483648]", "[true]",
                                       "[null]",     "[{}]",         "{}",           "7",
                                       "true",       "[[[1]]]" };
    char member[200], got[200];
    (void)state;
    for (int i = 0; i < LEN(good); i++) {
        snprintf(member, sizeof member, "{\"prompt\": %s, \"n\": 2}", good[i].prompt);
        struct eng_api_request *ask = ask_of(ENG_API_COMPLETIONS, member);
        assert_int_equal(ask->n_prompt, good[i].n);
        assert_int_equal(eng_api_request_choices(ask), 2 * good[i].n);
        assert_string_equal(ids_text(&ask->prompt[0], got, sizeof got), good[i].first);
        assert_int_equal(ask->n_predict, 16);
        eng_api_request_close(ask);
    }
    for (int i = 0; i < LEN(bad); i++) {
        snprintf(member, sizeof member, "{\"prompt\": %s}", bad[i]);
        expect(ENG_API_COMPLETIONS, member, "400 prompt");
    }
}

static void choices_go_by_prompt_and_number(void **state)
{
    struct eng_api_request *ask = ask_of(ENG_API_COMPLETIONS, "{\"prompt\": [[1], [2]], \"n\": 2}");
    struct eng_request r;
    (void)state;
    for (int i = 0; i < 4; i++) {
        eng_api_request_of_choice(ask, i, &r);
        assert_int_equal(r.token[0], 1 + i / 2);
        assert_int_equal(r.sampling.choice, i); /* equal prompts must not get equal noise */
    }
    eng_api_request_close(ask);
}

static void a_request_has_a_bounded_number_of_choices(void **state)
{
    char body[2000] = "{\"n\": 13, \"prompt\": [\"a\"";
    (void)state;
    for (int i = 0; i < 9; i++)
        strcat(body, ", \"a\"");
    strcat(body, "]}");
    expect(ENG_API_COMPLETIONS, body, "400 n"); /* 130 */
    body[7] = '2';
    expect(ENG_API_COMPLETIONS, body, ""); /* 120 */
    fake.setup.n_choice = 119;
    expect(ENG_API_COMPLETIONS, body, "400 n");
    fake.setup.n_choice = 0;
}

static void lists_are_bounded(void **state)
{
    static const struct {
        enum eng_api api;
        const char *head, *item, *tail;
        int most;
        const char *want;
    } lists[] = {
        { ENG_API_CHAT, "{\"messages\": [" USER "], \"stop\": [", "\"x\"", "]}", 16, "400 stop" },
        { ENG_API_CHAT, "{\"messages\": [" USER "], \"stop_token_ids\": [", "1", "]}", 16, "400 stop_token_ids" },
        { ENG_API_COMPLETIONS, "{\"prompt\": [", "\"x\"", "]}", 128, "400 prompt" },
    };
    static char body[1 << 20];
    (void)state;
    for (int i = 0; i < LEN(lists); i++)
        for (int n = lists[i].most; n <= lists[i].most + 1; n++) {
            strcpy(body, lists[i].head);
            char *at = body + strlen(body);
            for (int k = 0; k < n; k++)
                at += sprintf(at, "%s%s", k ? "," : "", lists[i].item);
            strcpy(at, lists[i].tail);
            expect(lists[i].api, body, n > lists[i].most ? lists[i].want : "");
        }
    for (int n = ENG_API_MAX_BIASES; n <= ENG_API_MAX_BIASES + 1; n++) {
        char *at = body + sprintf(body, "{\"messages\": [" USER "], \"logit_bias\": {");
        for (int k = 0; k < n; k++)
            at += sprintf(at, "%s\"%09d\": 1", k ? "," : "", k % 267 + k / 267 * 0);
        strcpy(at, "}}");
        expect(ENG_API_CHAT, body, "400 "); /* duplicate member */
    }
    char *at = body + sprintf(body, "{\"messages\": [" USER "], \"logit_bias\": {");
    for (int k = 0; k <= ENG_API_MAX_BIASES; k++)
        at += sprintf(at, "%s\"%d\": 1", k ? "," : "", k);
    strcpy(at, "}}");
    expect(ENG_API_CHAT, body, "400 logit_bias");
    at = body + sprintf(body, "{\"messages\": [");
    for (int k = 0; k <= ENG_API_MAX_MESSAGES; k++)
        at += sprintf(at, "%s" USER, k ? "," : "");
    strcpy(at, "]}");
    expect(ENG_API_CHAT, body, "400 messages");
}

static void a_prompt_leaves_room_for_an_answer(void **state)
{
    static char body[11 * FAKE_CTX];
    static const struct {
        int n;
        const char *want;
    } cases[] = {
        { FAKE_CTX - 1, "" },
        { FAKE_CTX, "400 prompt" },
        { FAKE_CTX + 1, "400 prompt" },
        { 10 * FAKE_CTX, "400 prompt" },
    };
    struct eng_refusal why;
    struct eng_api_request *ask;
    (void)state;
    for (int i = 0; i < LEN(cases); i++) {
        size_t n = (size_t)sprintf(body, "{\"prompt\": \"");
        memset(body + n, 'x', (size_t)cases[i].n);
        strcpy(body + n + cases[i].n, "\"}");
        expect(ENG_API_COMPLETIONS, body, cases[i].want);
    }
    assert_int_not_equal(
        eng_api_request_parse(&ask, ENG_API_COMPLETIONS, body, strlen(body), &fake.setup, &fake_arrival, &why), 0);
    assert_string_equal(why.code, "context_length_exceeded");
    assert_non_null(strstr(why.message, "maximum context length is 4096 tokens"));
    /* its tokens can still be counted */
    struct eng_arrival count = fake_arrival;
    struct eng_bytes out = { 0 };
    count.count = true;
    assert_int_equal(eng_api_request_parse(&ask, ENG_API_COMPLETIONS, body, strlen(body), &fake.setup, &count, &why),
                     0);
    eng_reply_count(&out, ask);
    eng_bytes_add(&out, "", 1);
    assert_string_equal(out.data, "{\"input_tokens\":40960}");
    eng_bytes_free(&out);
    eng_api_request_close(ask);
}

/* Each dialect stops tokenizing at twice the context, and says so; a shorter prompt gets its exact length. */
static void a_prompt_far_too_long_is_refused_early(void **state)
{
    static const struct {
        enum eng_api api;
        const char *head, *tail, *param;
    } dialects[] = {
        { ENG_API_COMPLETIONS, "{\"prompt\": \"", "\"}", "prompt" },
        { ENG_API_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"", "\"}]}", "messages" },
        { ENG_API_RESPONSES, "{\"input\": \"", "\"}", "input" },
        { ENG_API_MESSAGES, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"", "\"}]}",
          "messages" },
    };
    static char body[3 * FAKE_CTX + 256];
    struct eng_refusal why;
    struct eng_api_request *ask;
    (void)state;
    for (int i = 0; i < LEN(dialects); i++)
        for (int n = 3; n <= 5; n += 2) { /* halves of the context */
            size_t at = (size_t)sprintf(body, "%s", dialects[i].head), more = (size_t)n * FAKE_CTX / 2;
            memset(body + at, 'x', more);
            strcpy(body + at + more, dialects[i].tail);
            assert_int_not_equal(
                eng_api_request_parse(&ask, dialects[i].api, body, strlen(body), &fake.setup, &fake_arrival, &why), 0);
            assert_int_equal(why.status, 400);
            assert_string_equal(why.code, "context_length_exceeded");
            assert_string_equal(why.param, dialects[i].param);
            assert_int_equal(strstr(why.message, "has more than 8192: shorten it") != NULL, n == 5);
        }
}

/* Reading a request with a limit of memory, from none to enough: it is refused, or it is read whole, and nothing is
 * lost. */
static void any_limit_of_memory_refuses_or_reads(void **state)
{
    static const struct {
        enum eng_api api;
        const char *body;
    } requests[] = {
        { ENG_API_COMPLETIONS, "{\"prompt\": [\"Hello\", \"x\"], \"stop\": [\"a\"], \"logit_bias\": {\"3\": 1}}" },
        { ENG_API_CHAT, "{\"messages\": [" USER "], \"response_format\": {\"type\": \"json_object\"}}" },
        { ENG_API_CHAT,
          "{\"messages\": [" USER "], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
          "\"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}}}}}]}" },
        { ENG_API_RESPONSES, "{\"input\": \"Hello\", \"instructions\": \"x\"}" },
        { ENG_API_MESSAGES, "{\"max_tokens\": 1, \"system\": \"x\", \"messages\": [" USER "]}" },
    };
    (void)state;
    for (int i = 0; i < LEN(requests); i++) {
        int error = -1, n_refused = 0;
        kn_heap_limit(0);
        const size_t step = 400;
        for (size_t room = 0; error && room < (size_t)64 << 20; room += room < 40000 ? step : room / 4) {
            struct kn_heap_guard guard = { 0 };
            struct eng_api_request *ask = NULL;
            struct eng_refusal why;
            kn_heap_limit(room);
            kn_heap_guard(&guard);
            error = eng_api_request_parse(&ask, requests[i].api, requests[i].body, strlen(requests[i].body),
                                          &fake.setup, &fake_arrival, &why);
            kn_heap_guard(NULL);
            assert_true(error == 0 || guard.denied_bytes > 0);
            assert_true(error == 0 || why.status >= 400);
            n_refused += error != 0;
            if (!error)
                eng_api_request_close(ask);
            assert_true(kn_heap_room() >= room);
        }
        assert_int_equal(error, 0);
        assert_true(n_refused > 5);
    }
    kn_heap_limit(SIZE_MAX);
}

/* ---- the request to the engine --------------------------------------------------------------- */

static void a_request_reaches_the_engine_whole(void **state)
{
    struct eng_request r;
    struct eng_api_request *ask = ask_of(
        ENG_API_COMPLETIONS,
        with(ENG_API_COMPLETIONS,
             "\"n\": 3, \"max_tokens\": 7, \"temperature\": 0.5, \"top_p\": 0.25, \"top_k\": 4, "
             "\"min_p\": 0.125, \"repetition_penalty\": 2, \"presence_penalty\": -1, "
             "\"frequency_penalty\": 1.5, \"seed\": -5, \"logit_bias\": {\"3\": -100, \"4\": 1.5}, "
             "\"logprobs\": 2, \"ignore_eos\": true, \"priority\": 3, \"user\": \"u\", "
             "\"repeat_last_n\": -1, \"stop\": \"END\", \"stream\": true"));
    (void)state;
    eng_api_request_of_choice(ask, 2, &r);
    assert_int_equal(r.n_token, 1);
    assert_int_equal(r.token[0], FAKE_HELLO);
    assert_int_equal(r.n_predict, 7);
    assert_true(r.ignore_eos && ask->stream && ask->seed_given);
    assert_true(r.sampling.temperature == 0.5f && r.sampling.top_p == 0.25f);
    assert_true(r.sampling.min_p == 0.125f && r.sampling.repetition == 2);
    assert_true(r.sampling.presence == -1 && r.sampling.frequency == 1.5f);
    assert_int_equal(r.sampling.top_k, 4);
    assert_int_equal(r.sampling.repeat_last, -1);
    assert_true(r.sampling.seed == (uint64_t)-5);
    assert_int_equal(r.sampling.choice, 2);
    assert_int_equal(r.sampling.n_bias, 2);
    assert_true(r.sampling.bias[0].token == 3 && r.sampling.bias[0].add == -100);
    assert_int_equal(r.n_top, 2);
    assert_int_equal(r.priority, -3);
    assert_true(r.user != 0);
    assert_null(r.grammar);
    assert_string_equal(ask->stop[0], "END");
    assert_string_equal(ask->id, "cmpl-abc123");
    eng_api_request_close(ask);

    ask = ask_of(ENG_API_CHAT, with(ENG_API_CHAT, "\"temperature\": null, \"max_tokens\": 5, "
                                                  "\"max_completion_tokens\": 6"));
    eng_api_request_of_choice(ask, 0, &r);
    assert_int_equal(r.n_predict, 6);
    assert_true(r.sampling.temperature == 1 && r.sampling.seed == 42 && !ask->seed_given);
    assert_string_equal(ask->model, "small");
    eng_api_request_close(ask);
    struct eng_arrival late = fake_arrival;
    struct eng_refusal why;
    late.seed = UINT64_MAX; /* reported seeds fit a JSON number, < 2^53 */
    const char *body = with(ENG_API_CHAT, "");
    assert_int_equal(eng_api_request_parse(&ask, ENG_API_CHAT, body, strlen(body), &fake.setup, &late, &why), 0);
    assert_true(ask->sampling.seed < UINT64_C(1) << 53);
    eng_api_request_close(ask);
    body = with(ENG_API_CHAT, "\"max_tokens\": 1000000000000"); /* an integer, at least 1 */
    assert_int_not_equal(eng_api_request_parse(&ask, ENG_API_CHAT, body, strlen(body), &fake.setup, &late, &why), 0);
    assert_string_equal(why.message, "'max_tokens' must be an integer from -1 to 2147483647");
}

static void no_memory_is_an_answer_too(void **state)
{
    const char *body = with(ENG_API_CHAT, TOOL("") ", \"logit_bias\": {\"5\": 1}, \"stop\": \"x\"");
    struct eng_api_request *ask;
    struct eng_refusal why;
    int n = 0;
    (void)state;
    for (bool more = true; more;) {
        faults_reset();
        faults_at(FAULT_ALLOC, ++n, FAULT_ERROR, ENOMEM);
        int error = eng_api_request_parse(&ask, ENG_API_CHAT, body, strlen(body), &fake.setup, &fake_arrival, &why);
        more = faults.struck;
        if (!error)
            eng_api_request_close(ask);
        else
            assert_true(why.status >= 400 && why.message[0]);
        assert_true(error || !more || n > 0);
        assert_true(faults_clean());
    }
    faults_off();
    assert_true(n > 10);
}

static void refusals_have_two_shapes(void **state)
{
    struct eng_refusal why;
    struct eng_bytes out = { 0 };
    (void)state;
    assert_int_equal(eng_refuse(&why, 429, NULL, "", "too many \"requests\""), KN_ELIMIT);
    eng_refusal_write(&out, &why, ENG_API_CHAT);
    eng_bytes_add(&out, "", 1);
    assert_string_equal(out.data, "{\"error\":{\"message\":\"too many \\\"requests\\\"\",\"type\":"
                                  "\"rate_limit_error\",\"param\":null,\"code\":null}}");
    eng_bytes_free(&out);
    eng_refusal_write(&out, &why, ENG_API_MESSAGES);
    eng_bytes_add(&out, "", 1);
    assert_string_equal(out.data, "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\","
                                  "\"message\":\"too many \\\"requests\\\"\"}}");
    eng_bytes_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_is_in_its_range),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(a_body_is_an_object),
        cmocka_unit_test(depth_has_an_end),
        cmocka_unit_test(prompts_come_in_four_shapes),
        cmocka_unit_test(choices_go_by_prompt_and_number),
        cmocka_unit_test(a_request_has_a_bounded_number_of_choices),
        cmocka_unit_test(lists_are_bounded),
        cmocka_unit_test(a_prompt_leaves_room_for_an_answer),
        cmocka_unit_test(a_prompt_far_too_long_is_refused_early),
        cmocka_unit_test(any_limit_of_memory_refuses_or_reads),
        cmocka_unit_test(a_request_reaches_the_engine_whole),
        cmocka_unit_test(no_memory_is_an_answer_too),
        cmocka_unit_test(refusals_have_two_shapes),
    };
    return cmocka_run_group_tests(tests, fake_open, fake_close);
}
