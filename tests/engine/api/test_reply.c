/* Tokens to answers (engine/api/reply.c). A stream and a whole body say the same; every event is valid JSON and UTF-8;
 * the events of each dialect come in the order that its clients require. Also: stop strings, logprobs, failures.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/api/replies.h"
#include "tests/faults.h"

/* ---- parsing the output ---------------------------------------------------------------------- */

/* The next event's JSON, NULL at the end. Checks that the event's name is its type. */
static json_t *next_event(const char **at)
{
    static const char done[] = "data: [DONE]\n\n";
    char name[100] = "";
    if (!**at)
        return NULL;
    if (!strcmp(*at, done)) {
        *at += strlen(done);
        return NULL;
    }
    if (!strncmp(*at, "event: ", 7)) {
        const char *end = strchr(*at, '\n');
        snprintf(name, sizeof name, "%.*s", (int)(end - *at - 7), *at + 7);
        *at = end + 1;
    }
    assert_true(!strncmp(*at, "data: ", 6));
    const char *end = strstr(*at, "\n\n");
    assert_non_null(end);
    json_error_t e;
    json_t *event = json_loadb(*at + 6, (size_t)(end - *at - 6), JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!event)
        print_error("%s: %.*s\n", e.text, (int)(end - *at), *at);
    assert_non_null(event);
    if (*name)
        assert_string_equal(name, json_string_value(json_object_get(event, "type")));
    *at = end + 2;
    return event;
}

struct heard {
    char text[1 << 16], thoughts[1 << 16], calls[1 << 16], finish[64];
};

static void add(char *to, const json_t *text)
{
    if (json_is_string(text)) {
        assert_true(strlen(to) + json_string_length(text) < 1 << 16);
        strcat(to, json_string_value(text));
    }
}

static const json_t *get(const json_t *v, const char *path)
{
    char name[64];
    while (v && *path) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        v = *name >= '0' && *name <= '9' ? json_array_get(v, (size_t)atoi(name)) : json_object_get(v, name);
        path += n + (path[n] == '.');
    }
    return v;
}

static void hear_calls(struct heard *h, const json_t *calls, const char *name, const char *arguments)
{
    const json_t *c;
    size_t i;
    json_array_foreach((json_t *)calls, i, c)
    {
        if (get(c, name)) {
            strcat(h->calls, "|");
            add(h->calls, get(c, name));
        }
        add(h->calls, get(c, arguments));
    }
}

static void hear_finish(struct heard *h, const json_t *finish)
{
    if (json_is_string(finish))
        snprintf(h->finish, sizeof h->finish, "%s", json_string_value(finish));
}

static void hear_chat(struct heard *h, const json_t *v, const char *message)
{
    char path[64];
    const char *const names[] = { "content", "reasoning", "tool_calls" };
    const json_t *part[3];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "choices.0.%s.%s", message, names[i]);
        part[i] = get(v, path);
    }
    add(h->text, part[0]);
    add(h->thoughts, part[1]);
    hear_calls(h, part[2], "function.name", "function.arguments");
    hear_finish(h, get(v, "choices.0.finish_reason"));
}

static void hear_message_event(struct heard *h, const json_t *v)
{
    const char *type = json_string_value(get(v, "type"));
    if (!strcmp(type, "content_block_start") && get(v, "content_block.name")) {
        strcat(h->calls, "|");
        add(h->calls, get(v, "content_block.name"));
    }
    add(h->text, get(v, "delta.text"));
    add(h->thoughts, get(v, "delta.thinking"));
    add(h->calls, get(v, "delta.partial_json"));
    hear_finish(h, get(v, "delta.stop_reason"));
}

static void hear_message(struct heard *h, const json_t *v)
{
    const json_t *block;
    size_t i;
    json_array_foreach((json_t *)get(v, "content"), i, block)
    {
        add(h->text, get(block, "text"));
        add(h->thoughts, get(block, "thinking"));
        if (get(block, "name")) {
            char *input = json_dumps(get(block, "input"), JSON_COMPACT);
            strcat(h->calls, "|");
            add(h->calls, get(block, "name"));
            strcat(h->calls, input);
            free(input);
        }
    }
    hear_finish(h, get(v, "stop_reason"));
}

static void hear_response(struct heard *h, const json_t *v)
{
    const json_t *item;
    size_t i;
    json_array_foreach((json_t *)get(v, "output"), i, item)
    {
        const char *type = json_string_value(get(item, "type"));
        add(!strcmp(type, "message") ? h->text : h->thoughts, get(item, "content.0.text"));
        if (!strcmp(type, "function_call")) {
            strcat(h->calls, "|");
            add(h->calls, get(item, "name"));
            add(h->calls, get(item, "arguments"));
        }
    }
    hear_finish(h, get(v, "status"));
}

static void hear_response_event(struct heard *h, const json_t *v, struct heard *last)
{
    const char *type = json_string_value(get(v, "type"));
    if (!strcmp(type, "response.output_text.delta"))
        add(h->text, get(v, "delta"));
    if (!strcmp(type, "response.reasoning_text.delta"))
        add(h->thoughts, get(v, "delta"));
    if (!strcmp(type, "response.function_call_arguments.delta"))
        add(h->calls, get(v, "delta"));
    if (!strcmp(type, "response.output_item.added") && get(v, "item.name")) {
        strcat(h->calls, "|");
        add(h->calls, get(v, "item.name"));
    }
    if (!strcmp(type, "response.completed") || !strcmp(type, "response.incomplete")) {
        hear_response(last, get(v, "response"));
        hear_finish(h, get(v, "response.status"));
    }
}

static void hear(enum eng_api api, bool stream, const struct said *s, struct heard *h)
{
    static struct heard last;
    const char *at = s->data;
    json_t *v;
    memset(h, 0, sizeof *h);
    memset(&last, 0, sizeof last);
    if (!stream) {
        assert_non_null(v = json_loads(s->data, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL));
        if (api == ENG_API_CHAT)
            hear_chat(h, v, "message");
        else if (api == ENG_API_MESSAGES)
            hear_message(h, v);
        else if (api == ENG_API_RESPONSES)
            hear_response(h, v);
        else
            add(h->text, get(v, "choices.0.text")), hear_finish(h, get(v, "choices.0.finish_reason"));
        json_decref(v);
        return;
    }
    while ((v = next_event(&at))) {
        if (api == ENG_API_CHAT)
            hear_chat(h, v, "delta");
        else if (api == ENG_API_MESSAGES)
            hear_message_event(h, v);
        else if (api == ENG_API_RESPONSES)
            hear_response_event(h, v, &last);
        else
            add(h->text, get(v, "choices.0.text")), hear_finish(h, get(v, "choices.0.finish_reason"));
        json_decref(v);
    }
    assert_true(!*at);
    if (api == ENG_API_RESPONSES)
        assert_memory_equal(h, &last, sizeof last);
}

/* ---- streams and bodies say the same --------------------------------------------------------- */

#define TOOLS "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"

static const char *body_of(enum eng_api api, bool stream, const char *more)
{
    static char body[4096];
    static const char *const base[] = {
        "\"prompt\": \"hello\", \"max_tokens\": 99",
        "\"messages\": [" USER "], \"tools\": " TOOLS,
        "\"input\": \"hello\", \"tools\": [{\"type\": \"function\", \"name\": \"f\"}]",
        "\"messages\": [" USER "], \"max_tokens\": 9, \"tools\": [{\"name\": \"f\", "
        "\"input_schema\": {}}]",
    };
    snprintf(body, sizeof body, "{%s, \"stream\": %s%s%s}", base[api], stream ? "true" : "false", *more ? ", " : "",
             more);
    return body;
}

#define CALL                                                                                                           \
    "<tool_call>\n{\"name\": \"f\", \"arguments\": "                                                                   \
    "{\"x\":\"\xC3\xA9\xF0\x9F\x98\x80\"}}\n</tool_call>"

static void a_stream_says_what_the_body_says(void **state)
{
    static const struct {
        const char *text, *shown, *thoughts, *calls;
    } cases[] = {
        { "hello", "hello", "", "" },
        { "", "", "", "" },
        { "caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80!", "caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80!", "", "" },
        { "bad \xC3( \xF0\x9F\x98 \xFF end\xE2\x82", "bad \xEF\xBF\xBD( \xEF\xBF\xBD \xEF\xBF\xBD end\xEF\xBF\xBD", "",
          "" },
        { "\"quoted\" \\ back\tand\nline\x01\x7F", "\"quoted\" \\ back\tand\nline\x01\x7F", "", "" },
        { "a<s>b", "ab", "", "" },
        { "<think>why \xC3\xA9</think>so", "so", "why \xC3\xA9", "" },
        { "yes " CALL, "yes", "", "|f{\"x\":\"\xC3\xA9\xF0\x9F\x98\x80\"}" },
        { CALL "\n" CALL, "", "", "|f{\"x\":\"\xC3\xA9\xF0\x9F\x98\x80\"}|f{\"x\":\"\xC3\xA9\xF0\x9F\x98\x80\"}" },
        { "<think>hm</think>" CALL, "", "hm", "|f{\"x\":\"\xC3\xA9\xF0\x9F\x98\x80\"}" },
        { "<tool_call>no call</tool_call>", "<tool_call>no call</tool_call>", "", "" },
    };
    static struct said s[2];
    static struct heard h[2];
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        for (int api = 0; api < 4; api++)
            for (enum eng_finish end = ENG_STOP; end <= ENG_LENGTH; end++) {
                for (int stream = 0; stream < 2; stream++) {
                    answer((enum eng_api)api, body_of((enum eng_api)api, stream, ""), cases[i].text,
                           strlen(cases[i].text), end, &s[stream]);
                    hear((enum eng_api)api, stream, &s[stream], &h[stream]);
                    assert_int_equal(s[stream].status, 200);
                    assert_string_equal(s[stream].type, stream ? "text/event-stream" : "application/json");
                }
                assert_memory_equal(&h[0], &h[1], sizeof h[0]);
                if (api != ENG_API_COMPLETIONS) {
                    assert_string_equal(h[0].text, cases[i].shown);
                    assert_string_equal(h[0].thoughts, cases[i].thoughts);
                    assert_string_equal(h[0].calls, cases[i].calls);
                } else if (!*cases[i].thoughts && !*cases[i].calls) {
                    assert_string_equal(h[0].text, cases[i].shown);
                }
            }
}

/* The same for random bytes with markers and stop strings, in all four dialects. */
/* A limit ends the answer within a call: no markup is content, and the reason is the length. */
static void a_call_that_is_cut_leaves_no_markup(void **state)
{
    static const struct {
        const char *text, *shown, *calls;
    } cases[] = {
        { "cut <tool_call>{\"na", "cut", "" },
        { "cut <tool_c", "cut", "" },
        { "cut <tool_call>", "cut", "" },
        { "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"a", "", "|f{\"x\": \"a" },
        { CALL "<tool_call>{\"na", "", "|f{\"x\":\"\xC3\xA9\xF0\x9F\x98\x80\"}" },
    };
    static const char *const reason[] = { "", "\"length\"", "\"max_output_tokens\"", "\"max_tokens\"" };
    static struct said s;
    static struct heard h;
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        for (int api = 1; api < 4; api++)
            for (int stream = 0; stream < 2; stream++) {
                answer((enum eng_api)api, body_of((enum eng_api)api, stream, ""), cases[i].text, strlen(cases[i].text),
                       ENG_LENGTH, &s);
                hear((enum eng_api)api, stream, &s, &h);
                assert_string_equal(h.text, cases[i].shown);
                bool whole = !strcmp(h.calls, cases[i].calls);
                assert_true(whole || (api == ENG_API_MESSAGES && !strcmp(h.calls, "|f{}"))); /* input is an object */
                assert_non_null(strstr(s.data, reason[api]));
            }
}

static void so_it_is_for_any_text(void **state)
{
    static const char *const pieces[] = {
        "<think>", "</think>", "<tool_call>",      "</tool_call>", "{\"name\": \"f\", \"arguments\": {}}",
        "hello",   "<s>",      "\xF0\x9F\x98\x80", "EN",           "END",
        "\n",      "a"
    };
    static struct said s[2];
    static struct heard h[2];
    uint64_t seed = 1;
    (void)state;
    for (int round = 0; round < 100; round++) {
        char text[400];
        size_t n = 0;
        while (n < 200) {
            uint64_t x = kn_mix(seed += KN_GOLDEN);
            const char *piece = pieces[x % LEN(pieces)];
            if (x >> 60 < 4 && (x >> 8 & 0xFF)) {
                text[n++] = (char)(x >> 8);
            } else {
                memcpy(text + n, piece, strlen(piece));
                n += strlen(piece);
            }
        }
        for (int api = 0; api < 4; api++) {
            const char *stop = api == ENG_API_MESSAGES ? "\"stop_sequences\": [\"END\"]"
                                                       : "\"stop\": [\"END\", \"a\\na\"]";
            for (int stream = 0; stream < 2; stream++) {
                answer((enum eng_api)api, body_of((enum eng_api)api, stream, stop), text, n, ENG_STOP, &s[stream]);
                hear((enum eng_api)api, stream, &s[stream], &h[stream]);
            }
            if (api == ENG_API_MESSAGES) /* the body has {} for a broken call's input */
                memset(h[0].calls, 0, sizeof h[0].calls), memset(h[1].calls, 0, sizeof h[1].calls);
            assert_memory_equal(&h[0], &h[1], sizeof h[0]);
            assert_null(strstr(h[0].text, "END"));
        }
    }
}

/* ---- expected outputs ------------------------------------------------------------------------ */

static void golden(enum eng_api api, const char *body, const char *text, enum eng_finish end, const char *want)
{
    static struct said s;
    answer(api, body, text, strlen(text), end, &s);
    assert_string_equal(s.data, want);
}

#define HEAD                                                                                                           \
    "\"id\":\"chatcmpl-abc123\",\"created\":1700000000,\"model\":\"small\",\"system_"                                  \
    "fingerprint\":\"fp_1\""
#define CHUNK(seed, delta, end)                                                                                        \
    "data: {\"object\":\"chat.completion.chunk\"," HEAD seed ",\"choices\":[{\"index\":0,\"delta\":{" delta            \
    "},\"logprobs\":null,\"finish_reason\":" end "}],\"usage\":null}\n\n"
#define USAGE(prompt, answer, total, thoughts)                                                                         \
    "\"usage\":{\"prompt_tokens\":" prompt ",\"completion_tokens\":" answer ",\"total_tokens\":" total                 \
    ",\"prompt_tokens_details\":{\"cached_tokens\":1},\"completion_tokens_details\":{"                                 \
    "\"reasoning_tokens\":" thoughts "}}"

static void chat_events(void **state)
{
    const char *body = "{\"messages\": [" USER "], \"stream\": true, \"stream_options\": "
                       "{\"include_usage\": true}}";
    (void)state;
    golden(ENG_API_CHAT, body, "hello\xC3\xA9", ENG_STOP,
           CHUNK(",\"seed\":42", "\"role\":\"assistant\",\"content\":\"\"", "null")
               CHUNK("", "\"content\":\"hello\"", "null") CHUNK("", "\"content\":\"\xC3\xA9\"", "null")
                   CHUNK("", "", "\"stop\"") "data: {\"object\":\"chat.completion.chunk\"," HEAD
                                             ",\"choices\":[]," USAGE("20", "4", "24", "0") "}\n\n"
                                                                                            "data: [DONE]\n\n");
    body = "{\"messages\": [" USER "]}";
    golden(ENG_API_CHAT, body, "<think>hello</think>hello", ENG_LENGTH,
           "{\"object\":\"chat.completion\"," HEAD ",\"seed\":42,\"choices\":[{\"index\":0,\"message\":{"
           "\"role\":\"assistant\",\"content\":\"hello\",\"refusal\":null,\"reasoning\":\"hello\","
           "\"reasoning_content\":\"hello\"},\"logprobs\":null,\"finish_reason\":\"length\"}]," USAGE("20", "17", "37",
                                                                                                      "9") "}");
}

static void completion_events(void **state)
{
#define TEXT(seed, text, end)                                                                                          \
    "data: "                                                                                                           \
    "{\"object\":\"text_completion\",\"id\":\"cmpl-abc123\",\"created\":1700000000,\"model\":"                         \
    "\"small\","                                                                                                       \
    "\"system_fingerprint\":\"fp_1\"" seed ",\"choices\":[{\"index\":0,\"text\":\"" text "\",\"logprobs\":"            \
    "null,\"finish_reason\":" end "}]}\n\n"
    (void)state;
    golden(ENG_API_COMPLETIONS, body_of(ENG_API_COMPLETIONS, true, "\"echo\": true"), "hello!", ENG_LENGTH,
           TEXT(",\"seed\":42", "hello", "null") TEXT("", "hello", "null") TEXT("", "!", "null")
               TEXT("", "", "\"length\"") "data: [DONE]\n\n");
}

static void message_events(void **state)
{
#define EVENT(type, rest) "event: " type "\ndata: {\"type\":\"" type "\"" rest "}\n\n"
    (void)state;
    golden(
        ENG_API_MESSAGES, body_of(ENG_API_MESSAGES, true, "\"stop_sequences\": [\"x\", \"!!\"]"),
        "<think>h</think>hello<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", ENG_STOP,
        EVENT("message_start", ",\"message\":{\"id\":\"msg_abc123\",\"type\":\"message\",\"role\":"
                               "\"assistant\",\"model\":\"small\",\"content\":[],\"stop_reason\":null,"
                               "\"stop_sequence\":null,\"usage\":{\"input_tokens\":86,"
                               "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":1,\"output_tokens\":0}}")
            EVENT("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"thinking\","
                                         "\"signature\":\"\",\"thinking\":\"\"}")
                EVENT("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"thinking_delta\","
                                             "\"thinking\":\"h\"}") EVENT("content_block_stop", ",\"index\":0")
                    EVENT("content_block_start", ",\"index\":1,\"content_block\":{\"type\":\"text\",\"text\":\"\"}")
                        EVENT("content_block_delta",
                              ",\"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":\"hello\"}")
                            EVENT("content_block_stop", ",\"index\":1") EVENT(
                                "content_block_start", ",\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":"
                                                       "\"fCph3pBrD\",\"name\":\"f\",\"input\":{}}")
                                EVENT("content_block_delta", ",\"index\":2,\"delta\":{\"type\":\"input_json_delta\","
                                                             "\"partial_json\":\"{\"}")
                                    EVENT("content_block_delta",
                                          ",\"index\":2,\"delta\":{\"type\":\"input_json_delta\","
                                          "\"partial_json\":\"}\"}") EVENT("content_block_stop", ",\"index\":2")
                                        EVENT("message_delta", ",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_"
                                                               "sequence\":null},"
                                                               "\"usage\":{\"input_tokens\":86,\"cache_creation_"
                                                               "input_tokens\":0,"
                                                               "\"cache_read_input_tokens\":1,\"output_tokens\":68}")
                                            EVENT("message_stop", ""));
}

static void response_events(void **state)
{
    static const char *const want[] = {
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    };
    static struct said s;
    const char *text = "<think>h</think>hello<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    const char *at = s.data;
    json_t *v;
    int n = 0;
    (void)state;
    answer(ENG_API_RESPONSES, body_of(ENG_API_RESPONSES, true, ""), text, strlen(text), ENG_STOP, &s);
    for (; (v = next_event(&at)); n++) {
        assert_true(n < LEN(want));
        assert_string_equal(json_string_value(get(v, "type")), want[n]);
        assert_int_equal(json_integer_value(get(v, "sequence_number")), n);
        if (n == LEN(want) - 1) {
            assert_string_equal(json_string_value(get(v, "response.output.1.id")), "msg_abc123_1");
            assert_int_equal(json_integer_value(get(v, "response.usage.output_tokens")), 68);
        }
        json_decref(v);
    }
    assert_int_equal(n, LEN(want));
}

/* ---- stop strings ---------------------------------------------------------------------------- */

/* With include_stop_str_in_output the stop string is the end of the text; min_tokens tokens come before any end. */
static void text_may_end_with_its_stop_string(void **state)
{
    static const struct {
        const char *members, *text, *shown;
    } cases[] = {
        { "\"stop\": [\"STOP\"], \"include_stop_str_in_output\": true", "one STOP two", "one STOP" },
        { "\"stop\": [\"STOP\"], \"include_stop_str_in_output\": true", "one STO", "one STO" },
        { "\"stop\": [\"STOP\"], \"include_stop_str_in_output\": false", "one STOP two", "one " },
        { "\"stop\": [\"x\"], \"min_tokens\": 4", "xaxbxc", "xaxb" },
        { "\"stop\": [\"x\"], \"min_tokens\": 5", "xaxbxc", "xaxb" },
        { "\"stop\": [\"x\"], \"min_tokens\": 6", "xaxbxcx", "xaxbxc" },
    };
    static struct said s;
    static struct heard h;
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        for (int stream = 0; stream < 2; stream++) {
            answer(ENG_API_COMPLETIONS, body_of(ENG_API_COMPLETIONS, stream, cases[i].members), cases[i].text,
                   strlen(cases[i].text), ENG_STOP, &s);
            hear(ENG_API_COMPLETIONS, stream, &s, &h);
            assert_string_equal(h.text, cases[i].shown);
            assert_string_equal(h.finish, "stop");
        }
}

static void text_ends_before_a_stop_string(void **state)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        { "one STOP two", "one " },
        { "STOP", "" },
        { "one STO", "one STO" },
        { "one STOhello", "one STOhello" },
        { "\xF0\x9F\x98\x80STOP", "\xF0\x9F\x98\x80" },
        { "<think>STOP</think>a STOP b", "a " },
        { "a ST<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"STOP\"}}</tool_call>", "a ST" },
    };
    static struct said s;
    static struct heard h;
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        for (int stream = 0; stream < 2; stream++) {
            answer(ENG_API_CHAT, body_of(ENG_API_CHAT, stream, "\"stop\": [\"never\", \"STOP\"]"), cases[i].text,
                   strlen(cases[i].text), ENG_STOP, &s);
            hear(ENG_API_CHAT, stream, &s, &h);
            assert_string_equal(h.text, cases[i].shown);
            assert_string_equal(h.finish, strstr(cases[i].text, "_call") ? "tool_calls" : "stop");
        }
    answer(ENG_API_MESSAGES, body_of(ENG_API_MESSAGES, false, "\"stop_sequences\": [\"x\", \"!!\"]"), "hello!!x", 8,
           ENG_STOP, &s);
    json_t *v = json_loads(s.data, 0, NULL);
    assert_string_equal(json_string_value(get(v, "stop_reason")), "stop_sequence");
    assert_string_equal(json_string_value(get(v, "stop_sequence")), "!!");
    json_decref(v);
}

/* Text held back for a stop string comes before the call that follows it. A call that is cut off has empty input. */
static void blocks_keep_their_order(void **state)
{
    static struct said s;
    const char *text = "a !" CALL "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": ";
    (void)state;
    answer(ENG_API_MESSAGES, body_of(ENG_API_MESSAGES, false, "\"stop_sequences\": [\"!!\"]"), text, strlen(text),
           ENG_LENGTH, &s);
    json_t *v = json_loads(s.data, 0, NULL);
    assert_int_equal(json_array_size(get(v, "content")), 3);
    assert_string_equal(json_string_value(get(v, "content.0.text")), "a !");
    assert_string_equal(json_string_value(get(v, "content.1.input.x")), "\xC3\xA9\xF0\x9F\x98\x80");
    assert_int_equal(json_object_size(get(v, "content.2.input")), 0);
    assert_string_equal(json_string_value(get(v, "stop_reason")), "max_tokens");
    json_decref(v);
}

/* The third call with the same name and arguments ends the answer, also between others; calls that differ do not. */
static void an_answer_that_repeats_a_call_ends(void **state)
{
#define CALL_OF(x) "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"" x "\"}}\n</tool_call>\n"
    static const struct {
        const char *text;
        bool ends;
    } cases[] = {
        { CALL_OF("a") CALL_OF("a") CALL_OF("a"), true },
        { CALL_OF("a") CALL_OF("b") CALL_OF("a") CALL_OF("b") CALL_OF("a"), true },
        { CALL_OF("a") CALL_OF("b") CALL_OF("c") CALL_OF("d"), false },
        { CALL_OF("a") CALL_OF("a") CALL_OF("aa"), false },
    };
    static struct said s;
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        for (int stream = 0; stream < 2; stream++) {
            struct eng_api_request *ask = ask_of(ENG_API_CHAT, body_of(ENG_API_CHAT, stream, ""));
            struct eng_reply *r;
            s.n = 0;
            assert_int_equal(eng_reply_open(&r, ask, &fake.setup), 0);
            assert_int_equal(feed(r, 0, cases[i].text, strlen(cases[i].text), ENG_RUNNING, &s), cases[i].ends);
            if (cases[i].ends)
                assert_string_equal(eng_reply_finish(r, 0), "tool_calls");
            eng_reply_close(r);
            eng_api_request_close(ask);
        }
}

/* A finished choice is reported, so that its session can be stopped; its later events are ignored. */
static void a_reply_says_when_a_choice_is_done(void **state)
{
    static struct said s;
    struct eng_api_request *ask = ask_of(ENG_API_CHAT, "{\"messages\": [" USER "], \"n\": 2, \"stop\": \"!\", "
                                                       "\"stop_token_ids\": [120], \"stream\": true}");
    struct eng_reply *r;
    struct eng_event t;
    (void)state;
    s.n = 0;
    assert_int_equal(eng_reply_open(&r, ask, &fake.setup), 0);
    t = token(0, FAKE_HELLO);
    assert_int_equal(eng_reply_feed(r, &t), 0);
    t = token(1, 'y');
    assert_int_equal(eng_reply_feed(r, &t), 0);
    assert_null(eng_reply_finish(r, 0));
    t = token(0, '!');
    assert_int_equal(eng_reply_feed(r, &t), 1);
    assert_string_equal(eng_reply_finish(r, 0), "stop");
    take(r, &s);
    t = token(0, 'z');
    assert_int_equal(eng_reply_feed(r, &t), 1);
    t.finish = ENG_FAILED; /* the session was stopped too late */
    assert_int_equal(eng_reply_feed(r, &t), 1);
    size_t n = s.n;
    take(r, &s);
    assert_int_equal(s.n, n);
    assert_false(eng_reply_done(r));
    t = token(1, 'x');
    assert_int_equal(eng_reply_feed(r, &t), 1);
    assert_true(eng_reply_done(r));
    take(r, &s);
    assert_non_null(strstr(s.data, "data: [DONE]"));
    assert_null(strstr(s.data, "\"x\"")); /* a stop token is not part of the answer */
    assert_int_equal(eng_reply_tokens(r, 0), 2);
    assert_int_equal(eng_reply_tokens(r, 1), 2);
    eng_reply_close(r);
    eng_api_request_close(ask);
}

/* ---- log probabilities ----------------------------------------------------------------------- */

/* The tokens of the logprobs, joined, are the text of the answer; so are their bytes. */
static void tokens_are_told_with_their_text(void **state)
{
    static const struct {
        const char *text, *tokens;
    } cases[] = {
        { "hello \xC3\xA9!", "hello \xEF\xBF\xBD\xEF\xBF\xBD!" },
        { "<think>why</think>\n\nhello", "hello" },
        { "a <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "a" },
        { "one STOP two", "one " },
        { "x<tool_call>none", "x<tool_call>none" },
        { "a<s>b", "ab" },
        { "<think></think>hello", "hello" },
        { "<think>0123456789012345678901234567890123456789012345678901234567890123456789</"
          "think>hello",
          "hello" },
        { "<think>a</think>hello <think", "hello <think" },
        { "a \n STOP", "a \n " },
    };
    static struct said s;
    (void)state;
    for (int i = 0; i < LEN(cases); i++)
        for (int stream = 0; stream < 2; stream++) {
            char tokens[256] = "";
            const char *at = s.data;
            json_t *v, *e;
            size_t k;
            answer(ENG_API_CHAT,
                   body_of(ENG_API_CHAT, stream, "\"stop\": \"STOP\", \"logprobs\": true, \"top_logprobs\": 3"),
                   cases[i].text, strlen(cases[i].text), ENG_STOP, &s);
            while ((v = stream ? next_event(&at) : at == s.data ? json_loads(at, 0, NULL) : NULL)) {
                at += !stream;
                if (!json_is_string(get(v, "choices.0.finish_reason"))) /* clients expect an array here */
                    assert_true(json_is_array(get(v, "choices.0.logprobs.content")));
                json_array_foreach((json_t *)get(v, "choices.0.logprobs.content"), k, e)
                {
                    add(tokens, get(e, "token"));
                    assert_true(json_real_value(get(e, "logprob")) == -0.5);
                    assert_int_equal(json_array_size(get(e, "top_logprobs")), 3);
                    assert_true(json_number_value(get(e, "top_logprobs.2.logprob")) == -9999);
                    assert_int_equal(json_integer_value(get(e, "top_logprobs.2.bytes.0")), 0xC3);
                }
                json_decref(v);
            }
            assert_string_equal(tokens, cases[i].tokens);
        }
}

static void join_tokens(char *out, const json_t *list)
{
    json_t *e;
    size_t i;
    *out = 0;
    json_array_foreach((json_t *)list, i, e) add(out, get(e, "token"));
}

/* Each item has the logprobs of its own text: in the stream, in its last events and in the body. */
static void responses_tell_them_by_item(void **state)
{
    const char *text = "one" CALL "two", *at;
    static struct said s;
    char tokens[256], all[256] = "";
    json_t *v, *last = NULL;
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        answer(ENG_API_RESPONSES, body_of(ENG_API_RESPONSES, stream, "\"top_logprobs\": 3"), text, strlen(text),
               ENG_LENGTH, &s);
        for (at = s.data; stream && (v = next_event(&at)); json_decref(v)) {
            const char *type = json_string_value(get(v, "type"));
            if (!strcmp(type, "response.output_text.delta")) {
                join_tokens(tokens, get(v, "logprobs"));
                strcat(all, tokens);
            } else if (get(v, "text")) {
                join_tokens(tokens, get(v, "logprobs"));
                assert_string_equal(tokens, json_string_value(get(v, "text")));
            } else if (!strcmp(type, "response.incomplete")) {
                last = json_deep_copy(get(v, "response"));
            }
        }
        v = stream ? last : json_loads(s.data, 0, NULL);
        join_tokens(tokens, get(v, "output.0.content.0.logprobs"));
        assert_string_equal(tokens, "one");
        join_tokens(tokens, get(v, "output.2.content.0.logprobs"));
        assert_string_equal(tokens, "two");
        assert_string_equal(json_string_value(get(v, "status")), "incomplete");
        assert_string_equal(json_string_value(get(v, "output.0.status")), "completed");
        assert_string_equal(json_string_value(get(v, "output.2.status")), "incomplete");
        assert_string_equal(json_string_value(get(v, "incomplete_details.reason")), "max_output_tokens");
        json_decref(v);
    }
    assert_string_equal(all, "onetwo");
}

static void completions_tell_them_in_lists(void **state)
{
    static struct said s;
    (void)state;
    answer(ENG_API_COMPLETIONS, body_of(ENG_API_COMPLETIONS, false, "\"logprobs\": 2"), "\xC3\xA9hello!", 8, ENG_STOP,
           &s);
    assert_non_null(strstr(s.data,
                           "\"logprobs\":{\"tokens\":[\"bytes:\\\\xc3\",\"bytes:\\\\xa9\",\"hello\",\"!\"],"
                           "\"token_logprobs\":[-0.5,-0.5,-0.5,-0.5],\"top_logprobs\":[{\"bytes:\\\\xc3\":-0.5,\"z\":-"
                           "1.5},"
                           "{\"bytes:\\\\xa9\":-0.5,\"z\":-1.5},{\"hello\":-0.5,\"z\":-1.5},{\"!\":-0.5,\"z\":-1.5}],"
                           "\"text_offset\":[0,0,1,6]}"));
    answer(ENG_API_COMPLETIONS, body_of(ENG_API_COMPLETIONS, true, "\"logprobs\": 0"), "hello!", 6, ENG_STOP, &s);
    assert_non_null(strstr(s.data, "\"text\":\"!\",\"logprobs\":{\"tokens\":[\"!\"],\"token_logprobs\":"
                                   "[-0.5],\"top_logprobs\":[{\"!\":-0.5}],\"text_offset\":[5]}"));
}

/* An answer that continues a message has no white space dropped at its start, and cannot begin to reason. */
static void a_continued_message_goes_on(void **state)
{
    static const struct {
        const char *last, *text, *has;
    } cases[] = {
        { "\"content\": \"a\"", " b", "\"content\":\" b\"" },
        { "\"content\": \"a\"", "<think>b", "\"content\":\"<think>b\"" },
        { "\"content\": \"\"", "<think>b</think>c", "\"content\":\"c\"" },
        { "\"content\": \"<think>a\"", " b</think>c", "\"reasoning_content\":\" b\"" },
        { "\"reasoning_content\": \"a\"", " b</think>c", "\"reasoning_content\":\" b\"" },
    };
    static struct said s;
    char body[400];
    (void)state;
    for (int i = 0; i < LEN(cases); i++) {
        snprintf(body, sizeof body, "{\"messages\": [" USER ", {\"role\": \"assistant\", %s}]}", cases[i].last);
        answer(ENG_API_CHAT, body, cases[i].text, strlen(cases[i].text), ENG_STOP, &s);
        if (!strstr(s.data, cases[i].has))
            fail_msg("%d: %s", i, s.data);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

static void errors_come_with_a_status_or_in_the_stream(void **state)
{
    static struct said s;
    static const char *const error[] = { "data: {\"error\":{\"message\":", "data: {\"error\":{\"message\":",
                                         "event: response.failed\n", "event: error\n" };
    (void)state;
    for (int api = 0; api < 4; api++)
        for (int stream = 0; stream < 2; stream++)
            for (int began = 0; began < 2; began++) {
                answer((enum eng_api)api, body_of((enum eng_api)api, stream, ""), "hello", began ? 5 : 0, ENG_FAILED,
                       &s);
                if (stream && began) {
                    const char *at = s.data;
                    json_t *v;
                    assert_int_equal(s.status, 200);
                    assert_non_null(strstr(s.data, error[api]));
                    while ((v = next_event(&at)))
                        json_decref(v);
                } else {
                    json_t *v = json_loads(s.data, 0, NULL);
                    assert_int_equal(s.status, 500);
                    assert_string_equal(s.type, "application/json");
                    assert_non_null(get(v, "error.message"));
                    json_decref(v);
                }
            }
    /* a stream that began before its first token */
    struct eng_api_request *ask = ask_of(ENG_API_CHAT, body_of(ENG_API_CHAT, true, ""));
    struct eng_reply *r;
    assert_int_equal(eng_reply_open(&r, ask, &fake.setup), 0);
    s.n = 0;
    eng_reply_begin(r);
    assert_true(eng_reply_began(r));
    assert_int_equal(feed(r, 0, "", 0, ENG_FAILED, &s), 1);
    assert_string_equal(eng_reply_finish(r, 0), "error");
    assert_int_equal(s.status, 200);
    assert_non_null(strstr(s.data, error[1]));
    eng_reply_close(r);
    eng_api_request_close(ask);
}

/* A reply without memory can still fail: an error event after whole events, or the body of an error. */
static void assert_failed_whole(struct eng_reply *r, enum eng_api api, bool stream, struct said *s)
{
    struct eng_refusal why;
    const char *at = s->data;
    json_t *v;
    eng_refuse(&why, 503, NULL, "", "no memory now");
    eng_reply_fail(r, &why);
    take(r, s);
    assert_non_null(strstr(s->data, "no memory now"));
    if (s->status == 503) {
        assert_non_null(v = json_loads(s->data, 0, NULL));
        json_decref(v);
        return;
    }
    assert_true(stream && s->n > 2 && !strcmp(s->data + s->n - 2, "\n\n"));
    assert_true(api != ENG_API_CHAT || strstr(s->data, "data: [DONE]\n\n"));
    while ((v = next_event(&at)))
        json_decref(v);
}

static void no_memory_fails_a_reply(enum eng_api api, bool stream, const char *members)
{
    static struct said s;
    struct eng_api_request *ask = ask_of(api, body_of(api, stream, members));
    const char *text = "<think>h</think>hello" CALL;
    int n = 0;
    for (bool more = true; more;) {
        struct eng_reply *r;
        faults_reset();
        faults_at(FAULT_ALLOC, ++n, FAULT_ERROR, ENOMEM);
        if (!eng_reply_open(&r, ask, &fake.setup)) {
            s.n = 0;
            int done = feed(r, 0, text, strlen(text), ENG_STOP, &s);
            assert_int_equal(done, faults.struck ? KN_ENOMEM : 1);
            if (done == KN_ENOMEM)
                assert_failed_whole(r, api, stream, &s);
            eng_reply_close(r);
        }
        more = faults.struck;
        assert_true(faults_clean());
    }
    faults_off();
    assert_true(n > 10);
    eng_api_request_close(ask);
}

static void no_memory_ends_a_reply(void **state)
{
    (void)state;
    no_memory_fails_a_reply(ENG_API_RESPONSES, true, "\"stop\": \"x\", \"top_logprobs\": 3");
    no_memory_fails_a_reply(ENG_API_CHAT, true, "\"logprobs\": true");
    no_memory_fails_a_reply(ENG_API_CHAT, false, "\"logprobs\": true");
    no_memory_fails_a_reply(ENG_API_MESSAGES, true, "");
}

/* Half a character before a control token is not joined with the text after the token. */
static void a_character_ends_before_a_control_token(void **state)
{
    static const enum eng_api apis[] = { ENG_API_COMPLETIONS, ENG_API_CHAT };
    static struct said s;
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct eng_api_request *ask = ask_of(apis[i], body_of(apis[i], false, ""));
        struct eng_reply *r;
        assert_int_equal(eng_reply_open(&r, ask, &fake.setup), 0);
        s.n = 0;
        assert_int_equal(feed(r, 0,
                              "a\xC3<s>\xA9"
                              "b",
                              7, ENG_STOP, &s),
                         1);
        assert_non_null(strstr(s.data, "\"a\xEF\xBF\xBD\xEF\xBF\xBD"
                                       "b\""));
        eng_reply_close(r);
        eng_api_request_close(ask);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_says_what_the_body_says),
        cmocka_unit_test(a_call_that_is_cut_leaves_no_markup),
        cmocka_unit_test(so_it_is_for_any_text),
        cmocka_unit_test(chat_events),
        cmocka_unit_test(completion_events),
        cmocka_unit_test(message_events),
        cmocka_unit_test(response_events),
        cmocka_unit_test(text_ends_before_a_stop_string),
        cmocka_unit_test(text_may_end_with_its_stop_string),
        cmocka_unit_test(blocks_keep_their_order),
        cmocka_unit_test(an_answer_that_repeats_a_call_ends),
        cmocka_unit_test(a_reply_says_when_a_choice_is_done),
        cmocka_unit_test(tokens_are_told_with_their_text),
        cmocka_unit_test(responses_tell_them_by_item),
        cmocka_unit_test(completions_tell_them_in_lists),
        cmocka_unit_test(a_continued_message_goes_on),
        cmocka_unit_test(errors_come_with_a_status_or_in_the_stream),
        cmocka_unit_test(no_memory_ends_a_reply),
        cmocka_unit_test(a_character_ends_before_a_control_token),
    };
    return cmocka_run_group_tests(tests, fake_open, fake_close);
}
