/* Ollama's API (engine/api/ollama.c, write_ollama.c) and llama-server's /completion (write_llama.c): a body says the same
 * as the body of OpenAI's API that it stands for, a stream has the text of the whole answer, and refusals have Ollama's
 * form.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/api/replies.h"

#define CHAT     ENG_API_OLLAMA_CHAT
#define GENERATE ENG_API_OLLAMA_GENERATE

/* ---- requests -------------------------------------------------------------------------------- */

static void assert_same_params(const struct eng_api_request *a, const struct eng_api_request *b)
{
    const struct spec_params *s = &a->sampling, *t = &b->sampling;
    assert_int_equal(a->stream, b->stream);
    assert_int_equal(a->n_predict, b->n_predict);
    assert_int_equal(a->n_stop, b->n_stop);
    for (int i = 0; i < a->n_stop; i++)
        assert_string_equal(a->stop[i], b->stop[i]);
    assert_true(s->temperature == t->temperature && s->top_k == t->top_k && s->top_p == t->top_p &&
                s->min_p == t->min_p && s->typical_p == t->typical_p && s->repetition == t->repetition &&
                s->presence == t->presence && s->frequency == t->frequency && s->repeat_last == t->repeat_last &&
                s->seed == t->seed);
    assert_int_equal(a->grammar != NULL, b->grammar != NULL);
    assert_int_equal(a->tools != NULL, b->tools != NULL);
    assert_int_equal(a->logprobs, b->logprobs);
    assert_int_equal(a->thinks, b->thinks);
}

/* Asserts that two bodies give the same prompt and the same parameters. */
static void same(enum eng_api api, const char *body, enum eng_api as, const char *openai)
{
    struct eng_api_request *a = ask_of(api, body), *b = ask_of(as, openai);
    assert_int_equal(a->form, api);
    assert_int_equal(a->api, as);
    assert_int_equal(a->n_prompt, 1);
    if (a->prompt[0].n != b->prompt[0].n)
        print_error("%s\n%s\n", body, openai);
    assert_int_equal(a->prompt[0].n, b->prompt[0].n);
    assert_memory_equal(a->prompt[0].id, b->prompt[0].id, a->prompt[0].n * sizeof *a->prompt[0].id);
    assert_same_params(a, b);
    eng_api_request_close(a);
    eng_api_request_close(b);
}

#define OPENAI_TOOL        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"
#define CALLED(id, name)   "{" id "\"function\": {\"name\": \"" name "\", \"arguments\": {\"x\": 1}}}"
#define CALLS(calls)       "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" calls "]}"
#define RESULT(of, text)   "{\"role\": \"tool\", " of "\"content\": \"" text "\"}"
#define ID(id)             "\"id\": \"" id "\", "
#define OF_NAME(name)      "\"tool_name\": \"" name "\", "
#define OF_ID(id)          "\"tool_call_id\": \"" id "\", "
#define TALK(call, result) "{\"messages\": [" USER ", " CALLS(call) ", " result "], \"stream\": true, " OPENAI_TOOL "}"

static void a_body_is_read_as_openais(void **state)
{
    (void)state;
    same(CHAT, "{\"model\": \"small\", \"messages\": [" USER "]}", ENG_API_CHAT,
         "{\"messages\": [" USER "], \"stream\": true}");
    same(CHAT, "{\"messages\": [" USER "], \"stream\": false, \"keep_alive\": \"5m\"}", ENG_API_CHAT,
         "{\"messages\": [" USER "]}");
    same(
        CHAT,
        "{\"messages\": [" USER "], \"options\": {\"temperature\": 0.5, \"top_k\": 7, \"top_p\": 0.8, \"min_p\": 0.1, "
        "\"typical_p\": 0.9, \"seed\": 12, \"repeat_penalty\": 1.2, \"repeat_last_n\": 33, \"presence_penalty\": 0.3, "
        "\"frequency_penalty\": 0.4, \"stop\": [\"x\", \"y\"], \"num_predict\": 5, \"num_ctx\": 99999, \"num_gpu\": 3, "
        "\"mirostat\": 0}}",
        ENG_API_CHAT,
        "{\"messages\": [" USER "], \"stream\": true, \"temperature\": 0.5, \"top_k\": 7, \"top_p\": 0.8, "
        "\"min_p\": 0.1, \"typical_p\": 0.9, \"seed\": 12, \"repeat_penalty\": 1.2, \"repeat_last_n\": 33, "
        "\"presence_penalty\": 0.3, \"frequency_penalty\": 0.4, \"stop\": [\"x\", \"y\"], \"max_tokens\": 5}");
    for (int n = -2; n <= 0; n++) { /* no limit */
        char body[200];
        snprintf(body, sizeof body, "{\"messages\": [" USER "], \"options\": {\"num_predict\": %d}}", n);
        same(CHAT, body, ENG_API_CHAT, "{\"messages\": [" USER "], \"stream\": true, \"max_tokens\": -1}");
    }
    same(CHAT, "{\"messages\": [" USER "], \"format\": \"json\", \"logprobs\": true, \"top_logprobs\": 2}",
         ENG_API_CHAT,
         "{\"messages\": [" USER "], \"stream\": true, \"response_format\": {\"type\": \"json_object\"}, "
         "\"logprobs\": true, \"top_logprobs\": 2}");
    same(CHAT, "{\"messages\": [" USER "], \"format\": {\"type\": \"object\"}}", ENG_API_CHAT,
         "{\"messages\": [" USER "], \"stream\": true, \"response_format\": {\"type\": \"json_schema\", "
         "\"json_schema\": {\"name\": \"a\", \"schema\": {\"type\": \"object\"}}}}");
    same(CHAT, "{\"messages\": [" USER "], \"think\": true}", ENG_API_CHAT,
         "{\"messages\": [" USER "], \"stream\": true, \"chat_template_kwargs\": {\"enable_thinking\": true}}");
    same(CHAT, "{\"messages\": [" USER "], \"think\": false}", ENG_API_CHAT,
         "{\"messages\": [" USER "], \"stream\": true}");
    same(CHAT, "{\"messages\": [" USER "], \"think\": \"low\"}", ENG_API_CHAT,
         "{\"messages\": [" USER "], \"stream\": true, \"reasoning_effort\": \"low\"}");
    same(GENERATE, "{\"prompt\": \"hello\", \"system\": \"be brief\"}", ENG_API_CHAT,
         "{\"messages\": [{\"role\": \"system\", \"content\": \"be brief\"}, " USER "], \"stream\": true}");
    same(GENERATE, "{\"prompt\": \"hello\", \"suffix\": \"\", \"context\": [], \"template\": null}", ENG_API_CHAT,
         "{\"messages\": [" USER "], \"stream\": true}");
    same(GENERATE, "{\"prompt\": \"<s>hello\", \"raw\": true}", ENG_API_COMPLETIONS,
         "{\"prompt\": \"<s>hello\", \"stream\": true, \"max_tokens\": -1}");
    same(ENG_API_LLAMA, "{\"prompt\": \"hello\"}", ENG_API_COMPLETIONS, "{\"prompt\": \"hello\", \"max_tokens\": -1}");
}

static void results_find_their_calls(void **state)
{
    (void)state;
    same(CHAT,
         "{\"messages\": [" USER ", {\"role\": \"assistant\", \"thinking\": \"hm\", \"content\": \"so\"}, " USER "]}",
         ENG_API_CHAT,
         "{\"messages\": [" USER
         ", {\"role\": \"assistant\", \"reasoning_content\": \"hm\", \"content\": \"so\"}, " USER
         "], \"stream\": true}");
    same(CHAT, TALK(CALLED("", "f"), RESULT(OF_NAME("f"), "1")), ENG_API_CHAT,
         TALK(CALLED(ID("call00001"), "f"), RESULT(OF_ID("call00001"), "1")));
    /* results in another order than the calls; the second one without a name */
    same(CHAT, TALK(CALLED("", "f") ", " CALLED("", "g"), RESULT(OF_NAME("g"), "1") ", " RESULT("", "2")), ENG_API_CHAT,
         TALK(CALLED(ID("call00001"), "f") ", " CALLED(ID("call00002"), "g"),
              RESULT(OF_ID("call00002"), "1") ", " RESULT(OF_ID("call00001"), "2")));
    /* two calls of one tool: the first result is of the first call */
    same(CHAT, TALK(CALLED("", "f") ", " CALLED("", "f"), RESULT(OF_NAME("f"), "1") ", " RESULT(OF_NAME("f"), "2")),
         ENG_API_CHAT,
         TALK(CALLED(ID("call00001"), "f") ", " CALLED(ID("call00002"), "f"),
              RESULT(OF_ID("call00001"), "1") ", " RESULT(OF_ID("call00002"), "2")));
    /* ids that the client sends are kept */
    same(CHAT, TALK(CALLED(ID("mine"), "f"), RESULT(OF_ID("mine"), "1")), ENG_API_CHAT,
         TALK(CALLED(ID("mine"), "f"), RESULT(OF_ID("mine"), "1")));
}

static void refusals_name_the_member(void **state)
{
    static const struct {
        enum eng_api api;
        const char *body, *want;
    } cases[] = {
        { CHAT, "{\"messages\": 7}", "400 messages" },
        { CHAT, "{\"messages\": [7]}", "400 messages[0]" },
        { CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"images\": [\"b\"]}]}",
          "400 messages[0].images" },
        { CHAT, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [7]}]}", "400 messages[0].tool_calls[0]" },
        { CHAT, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": 7}]}", "400 messages[0].tool_calls" },
        { CHAT, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": 7}}]}]}",
          "400 messages[0].tool_calls[0].function.name" },
        { CHAT, "{\"messages\": [" USER "], \"model\": \"other\"}", "404 model" },
        { CHAT, "{\"messages\": [" USER "], \"model\": 7}", "400 model" },
        { CHAT, "{\"messages\": [" USER "], \"model\": \"small:latest:latest\"}", "" }, /* of the name small:latest */
        { CHAT, "{\"messages\": [" USER "], \"stream\": 1}", "400 stream" },
        { CHAT, "{\"messages\": [" USER "], \"options\": 1}", "400 options" },
        { CHAT, "{\"messages\": [" USER "], \"options\": {\"num_predict\": \"x\"}}", "400 options.num_predict" },
        { CHAT, "{\"messages\": [" USER "], \"options\": {\"temperature\": \"x\"}}", "400 temperature" },
        { CHAT, "{\"messages\": [" USER "], \"options\": {\"mirostat\": 2}}", "400 mirostat" },
        { CHAT, "{\"messages\": [" USER "], \"format\": \"yaml\"}", "400 format" },
        { CHAT, "{\"messages\": [" USER "], \"think\": 7}", "400 think" },
        { CHAT, "{\"messages\": [" USER "], \"think\": \"much\"}", "400 think" },
        { GENERATE, "{\"prompt\": 7}", "400 prompt" },
        { GENERATE, "{\"prompt\": \"a\", \"suffix\": \"b\"}", "400 suffix" },
        { GENERATE, "{\"prompt\": \"a\", \"images\": [\"b\"]}", "400 images" },
        { GENERATE, "{\"prompt\": \"a\", \"template\": \"b\"}", "400 template" },
        { GENERATE, "{\"prompt\": \"a\", \"context\": [1]}", "400 context" },
        { GENERATE, "{\"prompt\": \"a\", \"raw\": 1}", "400 raw" },
        { ENG_API_LLAMA, "{}", "400 prompt" },
    };
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        expect(cases[i].api, cases[i].body, cases[i].want);
}

static void an_error_is_one_member(void **state)
{
    struct eng_refusal why;
    struct eng_bytes out = { 0 };
    (void)state;
    eng_refuse(&why, 404, "model_not_found", "model", "no \"x\" here");
    eng_refusal_write(&out, &why, GENERATE);
    eng_bytes_add(&out, "", 1);
    assert_string_equal(out.data, "{\"error\":\"no \\\"x\\\" here\"}");
    eng_bytes_free(&out);
}

/* Clients load a model by an empty request, and unload it with keep_alive 0. */
static void an_empty_request_is_answered(void **state)
{
    static const struct {
        enum eng_api api;
        const char *body, *has;
    } cases[] = {
        { CHAT, "{\"model\": \"small\"}",
          "\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,\"done_reason\":\"load\"}" },
        { CHAT, "{\"messages\": [], \"keep_alive\": -1}", "\"done_reason\":\"load\"}" },
        { CHAT, "{\"messages\": [], \"keep_alive\": 0}", "\"done_reason\":\"unload\"}" },
        { GENERATE, "{\"model\": \"small\"}", "\"response\":\"\",\"done\":true,\"done_reason\":\"load\"}" },
        { GENERATE, "{\"prompt\": \"\"}", "\"done_reason\":\"load\"}" },
    };
    (void)state;
    for (int i = 0; i < LEN(cases); i++) {
        struct eng_api_request *ask = ask_of(cases[i].api, cases[i].body);
        struct eng_bytes out = { 0 };
        assert_int_equal(eng_api_request_choices(ask), 0);
        eng_reply_nothing(&out, ask);
        eng_bytes_add(&out, "", 1);
        assert_non_null(strstr(out.data, "{\"model\":\"small\",\"created_at\":\"2023-11-14T22:13:20Z\","));
        assert_non_null(strstr(out.data, cases[i].has));
        eng_bytes_free(&out);
        eng_api_request_close(ask);
    }
    expect(CHAT, "{\"model\": \"other\"}", "404 model");
}

/* ---- answers --------------------------------------------------------------------------------- */

struct told {
    char text[4096], thoughts[4096], calls[4096], reason[64];
    int n_done;
};

static void add(char *to, const json_t *text)
{
    if (json_is_string(text))
        strcat(to, json_string_value(text));
}

static void hear_object(struct told *t, enum eng_api api, const json_t *v)
{
    const json_t *message = api == CHAT ? json_object_get(v, "message") : v, *call;
    size_t i;
    assert_string_equal(json_string_value(json_object_get(v, "model")), "small");
    add(t->text, json_object_get(message, api == CHAT ? "content" : "response"));
    add(t->thoughts, json_object_get(message, "thinking"));
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        const json_t *function = json_object_get(call, "function");
        char *arguments = json_dumps(json_object_get(function, "arguments"), JSON_COMPACT);
        strcat(t->calls, "|");
        add(t->calls, json_object_get(function, "name"));
        strcat(t->calls, arguments);
        free(arguments);
    }
    if (!json_is_true(json_object_get(v, "done")))
        return;
    t->n_done++;
    add(t->reason, json_object_get(v, "done_reason"));
    assert_int_equal(json_integer_value(json_object_get(v, "seed")), 42);
    assert_true(json_integer_value(json_object_get(v, "prompt_eval_count")) > 0);
    assert_true(json_integer_value(json_object_get(v, "total_duration")) >=
                json_integer_value(json_object_get(v, "eval_duration")));
}

static void hear(struct told *t, enum eng_api api, bool stream, const struct said *s)
{
    memset(t, 0, sizeof *t);
    assert_string_equal(s->type, stream ? "application/x-ndjson" : "application/json");
    for (const char *at = s->data, *end; *at; at = end) {
        end = stream ? strchr(at, '\n') + 1 : at + strlen(at);
        assert_int_equal(t->n_done, 0);
        json_t *v = json_loadb(at, (size_t)(end - at), JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(v);
        hear_object(t, api, v);
        json_decref(v);
    }
    assert_int_equal(t->n_done, 1);
}

#define CALL_F "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":\"\xC3\xA9\"}}\n</tool_call>"

static void a_stream_says_what_the_body_says(void **state)
{
    static const struct {
        const char *text, *shown, *thoughts, *calls;
    } cases[] = {
        { "hello", "hello", "", "" },
        { "", "", "", "" },
        { "\"q\" \\ \xE2\x82\xAC", "\"q\" \\ \xE2\x82\xAC", "", "" },
        { "<think>why</think>so", "so", "why", "" },
        { "yes " CALL_F, "yes", "", "|f{\"x\":\"\xC3\xA9\"}" },
        { "<think>hm</think>" CALL_F CALL_F, "", "hm", "|f{\"x\":\"\xC3\xA9\"}|f{\"x\":\"\xC3\xA9\"}" },
    };
    static struct said s;
    static struct told t[2];
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        for (enum eng_finish end = ENG_STOP; end <= ENG_LENGTH; end++)
            for (int chat = 0; chat < 2; chat++) {
                if (!chat && *cases[i].calls)
                    continue; /* /api/generate has no tools */
                for (int stream = 0; stream < 2; stream++) {
                    char body[400];
                    snprintf(body, sizeof body, "{%s, \"stream\": %s}",
                             chat ? "\"messages\": [" USER "], " OPENAI_TOOL : "\"prompt\": \"hello\"",
                             stream ? "true" : "false");
                    answer(chat ? CHAT : GENERATE, body, cases[i].text, strlen(cases[i].text), end, &s);
                    hear(&t[stream], chat ? CHAT : GENERATE, stream, &s);
                }
                assert_memory_equal(&t[0], &t[1], sizeof t[0]);
                assert_string_equal(t[0].text, cases[i].shown);
                assert_string_equal(t[0].thoughts, cases[i].thoughts);
                assert_string_equal(t[0].calls, cases[i].calls);
                assert_string_equal(t[0].reason, end == ENG_LENGTH && !*cases[i].calls ? "length" : t[0].reason);
            }
}

static void an_error_ends_a_stream(void **state)
{
    static struct said s;
    (void)state;
    answer(CHAT, "{\"messages\": [" USER "]}", "ab", 2, ENG_FAILED, &s);
    const char *last = strstr(s.data, "{\"error\":\"the answer could not be completed: ");
    assert_non_null(last);
    assert_string_equal(strchr(last, '\n'), "\n");
    answer(CHAT, "{\"messages\": [" USER "], \"stream\": false}", "ab", 2, ENG_FAILED, &s);
    assert_int_equal(s.status, 500);
    assert_memory_equal(s.data, "{\"error\":\"the answer", 20);
}

static void llama_server_answers(void **state)
{
    static struct said s;
    static const struct {
        enum eng_finish end;
        const char *more, *type, *word, *content;
    } cases[] = {
        { ENG_STOP, "", "eos", "", "hello" },
        { ENG_LENGTH, "", "limit", "", "hello" },
        { ENG_RUNNING, ", \"stop\": [\"!\"]", "word", "!", "hello" },
    };
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        for (int stream = 0; stream < 2; stream++) {
            char body[200], all[64] = "";
            snprintf(body, sizeof body, "{\"prompt\": \"hello\", \"stream\": %s%s}", stream ? "true" : "false",
                     cases[i].more);
            answer(ENG_API_LLAMA, body, "hello!", cases[i].end == ENG_RUNNING ? 6 : 5, cases[i].end, &s);
            json_t *v = NULL;
            for (const char *at = s.data, *end; *at; at = end) {
                end = stream ? strstr(at, "\n\n") + 2 : at + strlen(at);
                json_decref(v);
                v = json_loadb(at + (stream ? 6 : 0), (size_t)(end - at) - (stream ? 6 : 0), 0, NULL);
                assert_non_null(v);
                add(all, json_object_get(v, "content"));
                assert_int_equal(json_is_true(json_object_get(v, "stop")), !*end);
            }
            assert_string_equal(all, cases[i].content);
            assert_string_equal(json_string_value(json_object_get(v, "stop_type")), cases[i].type);
            assert_string_equal(json_string_value(json_object_get(v, "stopping_word")), cases[i].word);
            assert_string_equal(json_string_value(json_object_get(v, "prompt")), "hello");
            assert_true(json_integer_value(json_object_get(v, "tokens_predicted")) > 0);
            assert_true(json_is_object(json_object_get(v, "timings")));
            json_t *settings = json_object_get(v, "generation_settings");
            assert_int_equal(json_integer_value(json_object_get(settings, "seed")), 42);
            json_decref(v);
        }
    answer(ENG_API_LLAMA, "{\"prompt\": [\"a\", \"b\"]}", "x", 1, ENG_STOP, &s);
    json_t *list = json_loads(s.data, 0, NULL);
    assert_int_equal(json_array_size(list), 2);
    json_decref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_is_read_as_openais),    cmocka_unit_test(results_find_their_calls),
        cmocka_unit_test(refusals_name_the_member),     cmocka_unit_test(an_error_is_one_member),
        cmocka_unit_test(an_empty_request_is_answered), cmocka_unit_test(a_stream_says_what_the_body_says),
        cmocka_unit_test(an_error_ends_a_stream),       cmocka_unit_test(llama_server_answers),
    };
    return cmocka_run_group_tests(tests, fake_open, fake_close);
}
