/* The server over real sockets: answers in full, of routes and of requests whose bytes matter to a client. */
#include "tests/engine/serve/serve_client.h"

static struct served served;

static int setup(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    o.engine.isa = KN_ISA_COUNT - 1;
    o.allowed_host = "llm.example.com";
    o.max_body = 6 << 20;
    kn_log_set(NULL, KN_LOG_ERROR);
    serve_start(&served, &o);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    serve_end(&served);
    return 0;
}

static void test_routes(void **state)
{
    /* clang-format off */
    static const struct { const char *method, *path, *body; int status; const char *has; } table[] = {
        { "GET", "/health", NULL, 200, "ok" },
        { "HEAD", "/health", NULL, 200, "" },
        { "GET", "/ready", NULL, 200, "ok" },
        { "GET", "/version", NULL, 200, "version" },
        { "GET", "/", NULL, 200, "<!doctype html>" },
        { "GET", "/v1/models", NULL, 200, "demo-draft-q8_0" },
        { "GET", "/models", NULL, 200, "demo-draft-q8_0" },
        { "POST", "/chat/completions", "{\"messages\":7}", 400, "messages" },
        { "GET", "/v1/models/demo-draft-q8_0", NULL, 200, "demo-draft-q8_0" },
        { "GET", "/v1/models/other", NULL, 404, "model_not_found" },
        { "GET", "/status", NULL, 200, "\"state\":\"serving\"" },
        { "GET", "/nothing", NULL, 404, "not_found_error" },
        { "POST", CHAT "/chat/completions", "{}", 404, "; use /chat/completions, or correct the base URL" },
        { "POST", "/api" CHAT, "{}", 404, "; use " CHAT },
        { "POST", CHAT "/", "{}", 404, "; use " CHAT },
        { "GET", CHAT "/chatcmpl-1", NULL, 404, "not_found_error" },
        { "GET", "/v1/chat/completions", NULL, 405, "POST" },
        { "POST", "/v1/embeddings", "{}", 404, "only generates text" },
        { "GET", "/v1/files", NULL, 404, "start the server with --files DIR" },
        { "POST", "/v1/batches", "{}", 404, "start the server with --files DIR" },
        { "GET", "/v1/files/file-0/content", NULL, 404, "start the server with --files DIR" },
        { "GET", "/v1/health", NULL, 200, "ok" },
        { "GET", "/ping", NULL, 200, "ok" },
        { "GET", "/props", NULL, 200, "\"total_slots\":2" },
        { "GET", "/slots", NULL, 200, "\"is_processing\":false" },
        { "GET", "/tokenizer_info", NULL, 200, "\"eos_token\":\"<|im_end|>\"" },
        { "GET", "/api/version", NULL, 200, "version" },
        { "GET", "/api/tags", NULL, 200, "\"models\":[{\"name\":\"demo-draft-q8_0\"" },
        { "GET", "/api/ps", NULL, 200, "\"context_length\":" },
        { "POST", "/api/show", "{\"model\":\"demo-draft-q8_0:latest\"}", 200, "\"capabilities\":[\"completion\",\"tools\"]" },
        { "POST", "/api/show", "{\"name\":\"other\"}", 404, "{\"error\":\"model 'other' not found" },
        { "POST", "/api/show", "{}", 400, "'model' is missing" },
        { "POST", "/api/pull", "{}", 404, "{\"error\":\"/api/pull is not offered" },
        { "GET", "/api/nothing", NULL, 404, "{\"error\":\"no such path" },
        { "GET", "/v1/messages/x", NULL, 404, "{\"type\":\"error\"" },
        { "POST", "/api/chat", "{\"messages\":[]}", 200, "\"done_reason\":\"load\"" },
        { "POST", "/api/chat", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"options\":{\"num_predict\":2}}", 200,
          "\"done_reason\":\"length\"" },
        { "POST", "/api/generate", "{\"prompt\":\"Hi\",\"stream\":false,\"options\":{\"num_predict\":2}}", 200,
          "\"eval_count\":2" },
        { "POST", "/completion", "{\"prompt\":\"One\",\"n_predict\":2}", 200, "\"stop_type\":\"limit\"" },
        { "POST", "/tokenize", "{\"prompt\":\"Hello\"}", 200, "\"count\":" },
        { "POST", "/tokenize", "{\"content\":\"Hello\",\"with_pieces\":true}", 200, "\"piece\":" },
        { "POST", "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", 200, "\"tokens\":[1," },
        { "POST", "/tokenize", "{}", 400, "prompt" },
        { "POST", "/tokenize", "[", 400, "not JSON" },
        { "POST", "/detokenize", "{\"tokens\":[75,309]}", 200, "\"content\":" },
        { "POST", "/detokenize", "{\"tokens\":[-1]}", 400, "tokens[0]" },
        { "POST", "/detokenize", "{\"tokens\":7}", 400, "tokens" },
        { "POST", "/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", 200, "im_start" },
        { "POST", "/v1/messages/count_tokens", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", 200,
          "{\"input_tokens\":" },
        { "POST", "/v1/completions", "{\"prompt\":\"One\",\"max_tokens\":2}", 200, "text_completion" },
        { "POST", "/v1/completions", "{\"prompt\":3}", 400, "prompt" },
        { "POST", CHAT, "{\"model\":\"other\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", 404,
          "model_not_found" },
        { "POST", CHAT, "{\"n\":64,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", 400, "n" },
    };
    /* clang-format on */
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct answer a = ask(&served, table[i].method, table[i].path, "", table[i].body);
        if (a.status != table[i].status || !strstr(a.body, table[i].has))
            fail_msg("%s %s: %d %s", table[i].method, table[i].path, a.status, a.body);
        assert_non_null(strcasestr(a.head, "x-request-id: "));
        answer_free(&a);
    }
}

/* A client's request id comes back if it can be written to the log as it is; else the server's own does. */
static void test_request_ids(void **state)
{
    static const struct {
        const char *header;
        bool kept;
    } cases[] = {
        { "X-Request-Id: aB-9_.:z\r\n", true },
        { "X-Request-Id: two words\r\n", false },
        { "X-Request-Id: a\\x1b\r\n", false },
        { "X-Request-Id: 0123456789012345678901234567890123456789012345678901234567890123456789\r\n", true },
        { "X-Request-Id: 012345678901234567890123456789012345678901234567890123456789012345678901\r\n", false },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct answer a = ask(&served, "POST", "/v1/completions", cases[i].header, "{\"prompt\":7}");
        assert_int_equal(a.status, 400);
        assert_int_equal(strstr(a.head, strchr(cases[i].header, ' ')) != NULL, cases[i].kept);
        answer_free(&a);
    }
}

/* The documentation of Ollama sends JSON with curl's default type.  A page may not: browsers send such a body without
 * asking first. */
static void test_types_of_bodies(void **state)
{
    static const char form[] = "Content-Type: application/x-www-form-urlencoded\r\n";
    static const char page[] = "Content-Type: text/plain\r\nOrigin: http://localhost:9\r\n";
    (void)state;
    const struct {
        const char *path, *headers, *body;
        int status;
    } cases[] = {
        { "/api/show", form, "{\"model\":\"demo-draft-q8_0\"}", 200 },
        { "/api/chat", form, "{}", 200 },
        { "/completion", form, "{}", 400 },
        { "/api/chat", page, "{}", 415 },
        { CHAT, form, "{}", 415 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char headers[200];
        int fd = connect_to(&served);
        snprintf(headers, sizeof headers, "%sContent-Length: %zu\r\n", cases[i].headers, strlen(cases[i].body));
        send_request(fd, "POST", cases[i].path, headers, NULL);
        send_text(fd, cases[i].body);
        struct answer a = read_answer(fd);
        if (a.status != cases[i].status)
            fail_msg("%s: %d %s", cases[i].path, a.status, a.body);
        answer_free(&a);
        close(fd);
    }
}

/* On one connection: HEAD has the status and the length of GET's answer, and no body, so the next answer is whole. */
static void test_head(void **state)
{
    static const struct {
        const char *path;
        bool stays; /* the body has the same length at every request */
    } routes[] = {
        { "/health", true },          { "/ready", true },   { "/version", true },
        { "/v1/models", true },       { "/models", true },  { "/", true },
        { "/metrics", false },        { "/status", false }, { "/v1/models/demo-draft-q8_0", true },
        { "/v1/models/other", true }, { "/nothing", true }, { "/v1/chat/completions", true },
        { "/v1/embeddings", true },
    };
    (void)state;
    int fd = connect_to(&served);
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        send_request(fd, "HEAD", routes[i].path, "", NULL);
        struct answer head = read_answer_with(fd, false);
        send_request(fd, "GET", routes[i].path, "", NULL);
        struct answer get = read_answer(fd);
        const char *length = strcasestr(head.head, "Content-Length: "), *type = strcasestr(head.head, "Content-Type: ");
        assert_non_null(length);
        assert_non_null(type);
        assert_int_equal(head.status, get.status);
        assert_non_null(strcasestr(get.head, "Content-Type: "));
        assert_memory_equal(type, strcasestr(get.head, "Content-Type: "), strcspn(type, "\r") + 1);
        size_t n = strtoul(length + 16, NULL, 10);
        if (routes[i].stays && get.status != 405) /* the message of a 405 names the method */
            assert_int_equal(n, get.n_body);
        assert_true(n > 0 && get.n_body > 0);
        answer_free(&head), answer_free(&get);
    }
    send_request(fd, "HEAD", "/status/stream", "", NULL);
    send_request(fd, "GET", "/health", "", NULL);
    for (int i = 0; i < 2; i++) {
        struct answer a = read_answer_with(fd, i);
        assert_int_equal(a.status, 200);
        assert_non_null(strcasestr(a.head, i ? "Content-Type: application/json" : "Content-Type: text/event-stream"));
        answer_free(&a);
    }
    close(fd);
}

/* Equal prompts of one request get different answers; the first is that of a request with this prompt alone. */
static void test_equal_prompts(void **state)
{
    (void)state;
    json_t *list, *text[4] = { NULL };
    json_t *one = choice_of(&served,
                            "{\"prompt\":\"Once\",\"max_tokens\":12,\"ignore_eos\":true,\"seed\":5,\"temperature\":1}");
    struct answer a = ask(&served, "POST", "/v1/completions", "",
                          "{\"prompt\":[\"Once\",\"Once\",\"Once\",\"Once\"],\"max_tokens\":12,\"ignore_eos\":true,"
                          "\"seed\":5,\"temperature\":1}");
    assert_int_equal(a.status, 200);
    json_t *root = json_loads(a.body, 0, NULL);
    list = json_object_get(root, "choices");
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        text[i] = json_object_get(json_array_get(list, i), "text");
        for (size_t k = 0; k < i; k++)
            assert_false(json_equal(text[i], text[k]));
    }
    assert_true(json_equal(text[0], json_object_get(one, "text")));
    json_decref(one);
    json_decref(root);
    answer_free(&a);
}

/* The text at this path of a JSON answer, for example "choices 0 text"; the caller frees it. */
static char *text_at(const struct answer *a, const char *path)
{
    json_t *root = json_loads(a->body, 0, NULL), *at = root;
    char names[100], *rest;
    snprintf(names, sizeof names, "%s", path);
    for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest))
        at = json_is_array(at) ? json_array_get(at, strtoul(name, NULL, 10)) : json_object_get(at, name);
    if (a->status != 200 || !json_is_string(at))
        fail_msg("%d %s", a->status, a->body);
    char *text = strdup(json_string_value(at));
    json_decref(root);
    return text;
}

static char *post(const char *path, const char *body, const char *at)
{
    struct answer a = ask(&served, "POST", path, "", body);
    char *text = text_at(&a, at);
    answer_free(&a);
    return text;
}

/* A continued message is answered as /v1/completions answers the prompt of /apply-template, in every dialect. */
static void test_continued_message(void **state)
{
#define MESSAGES "[{\"role\":\"user\",\"content\":\"Count\"},{\"role\":\"assistant\",\"content\":\"One, two,\"%s}]"
#define DRAWN    "\"temperature\":1,\"seed\":7,\"%s\":12"
    static const struct {
        const char *path, *list, *more, *most, *at;
    } dialects[] = {
        { CHAT, "messages", "", "max_tokens", "choices 0 message content" },
        { "/v1/messages", "messages", "", "max_tokens", "content 0 text" },
        { "/v1/responses", "input", ",\"status\":\"incomplete\"", "max_output_tokens", "output 0 content 0 text" },
    };
    char body[1000], list[400];
    (void)state;
    snprintf(list, sizeof list, MESSAGES, "");
    snprintf(body, sizeof body, "{\"messages\":%s}", list);
    char *prompt = post("/apply-template", body, "prompt");
    assert_string_equal(prompt + strlen(prompt) - 9, "One, two,");
    json_t *v = json_pack("{s:s, s:i, s:i, s:i, s:b}", "prompt", prompt, "temperature", 1, "seed", 7, "max_tokens", 12,
                          "add_special_tokens", 0);
    char *text = json_dumps(v, 0), *want = post("/v1/completions", text, "choices 0 text");
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        int n = snprintf(body, sizeof body, "{\"%s\":", dialects[i].list);
        n += snprintf(body + n, sizeof body - (size_t)n, MESSAGES, dialects[i].more);
        snprintf(body + n, sizeof body - (size_t)n, "," DRAWN "}", dialects[i].most);
        char *got = post(dialects[i].path, body, dialects[i].at);
        assert_string_equal(got, want);
        free(got);
    }
    free(text), free(want), free(prompt);
    json_decref(v);
}

/* The model's template has no tools: the generic form makes a call, and a limit within it leaves no content. */
static void test_tools_without_a_template(void **state)
{
    (void)state;
    for (int n = 1; n <= 400; n += n < 8 ? 1 : 56) {
        char body[1000];
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"Go\"}],\"temperature\":0,\"max_tokens\":%d,"
                 "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"go\"}},\"tools\":[{\"type\":"
                 "\"function\",\"function\":{\"name\":\"go\",\"parameters\":{\"type\":\"object\",\"properties\":"
                 "{\"to\":{\"type\":\"string\",\"enum\":[\"east\",\"west\"]}},\"required\":[\"to\"]}}}]}",
                 n);
        struct answer a = ask(&served, "POST", CHAT, "", body);
        char *why = text_at(&a, "choices 0 finish_reason");
        bool whole = !strcmp(why, "tool_calls"), one = n == 1; /* a single < may be text */
        if (!whole && strcmp(why, "length") != 0)
            fail_msg("%s", a.body);
        if (!one && !strstr(a.body, "\"content\":null") && !strstr(a.body, "\"content\":\"\""))
            fail_msg("%d: %s", n, a.body);
        assert_true(n < 400 || whole);
        if (whole) {
            char *call = text_at(&a, "choices 0 message tool_calls 0 function arguments");
            json_t *v = json_loads(call, 0, NULL);
            assert_non_null(json_object_get(v, "to"));
            json_decref(v);
            free(call);
        }
        free(why);
        answer_free(&a);
    }
}

/* ---- other hosts, and answers that are not read ------------------------------------------------- */

static struct answer ask_as(const char *host, const char *method, const char *path)
{
    char text[300];
    int fd = connect_to(&served);
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 2\r\n\r\n{}", method, path, host);
    send_text(fd, text);
    struct answer a = read_answer(fd);
    close(fd);
    return a;
}

/* A name that resolves to this machine, but is not one of its names, reads nothing. */
static void test_foreign_host(void **state)
{
    static const char *const paths[] = { "/", "/health", "/status", "/metrics", "/v1/models", "/nothing" };
    static const char *const ours[] = { "localhost", "127.0.0.1:8080", "[::1]", "llm.example.com",
                                        "LLM.example.com:443" };
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct answer a = ask_as("evil.example:80", "GET", paths[i]);
        assert_int_equal(a.status, 421);
        assert_non_null(strstr(a.body, "'evil.example:80'"));
        assert_non_null(strstr(a.body, "--allowed-host"));
        assert_non_null(strcasestr(a.head, "x-request-id: "));
        answer_free(&a);
    }
    struct answer a = ask_as("evil.example", "POST", CHAT);
    assert_int_equal(a.status, 421);
    answer_free(&a);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        a = ask_as(ours[i], "GET", "/status");
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
}

/* A body for /detokenize: n times a token of 33 bytes.  The answer has its text twice. */
static char *many_tokens(int n)
{
    char *body = malloc((size_t)n * 5 + 20);
    assert_non_null(body);
    size_t at = (size_t)sprintf(body, "{\"tokens\":[1854");
    for (int i = 1; i < n; i++, at += 5)
        memcpy(body + at, ",1854", 5);
    strcpy(body + at, "]}");
    return body;
}

static void test_answer_too_long(void **state)
{
    (void)state;
    char *body = many_tokens(380000);
    struct answer a = ask(&served, "POST", "/detokenize", "", body);
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.body, "longer than 16777216 bytes"));
    answer_free(&a);
    free(body);
}

/* Two answers of 13 MB that are not read: new requests are refused until their bytes are taken. */
static void test_answers_not_read(void **state)
{
    int fd[2];
    (void)state;
    char *body = many_tokens(200000);
    for (int i = 0; i < 2; i++) {
        fd[i] = connect_to(&served);
        send_request(fd[i], "POST", "/detokenize", "", body);
    }
    while (metric(&served, "", "spillway_unsent_bytes{") < 20e6)
        usleep(1000);
    struct answer a = ask(&served, "POST", CHAT, "", chat(2, 1, false));
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "do not read"));
    assert_non_null(strcasestr(a.head, "Retry-After: "));
    answer_free(&a);
    assert_int_equal(ask_status(&served, "GET", "/health", "", NULL), 200);
    a = read_answer(fd[0]);
    assert_int_equal(a.status, 200);
    assert_true(a.n_body > 13000000);
    answer_free(&a);
    assert_int_equal(ask_status(&served, "POST", CHAT, "", chat(2, 1, false)), 200);
    close(fd[0]), close(fd[1]);
    while (metric(&served, "", "spillway_unsent_bytes{") > 0)
        usleep(1000);
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_request_ids),
        cmocka_unit_test(test_types_of_bodies),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_equal_prompts),
        cmocka_unit_test(test_continued_message),
        cmocka_unit_test(test_tools_without_a_template),
        cmocka_unit_test(test_foreign_host),
        cmocka_unit_test(test_answer_too_long),
        cmocka_unit_test(test_answers_not_read),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
