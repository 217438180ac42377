/* The server over real sockets: answers in full, of routes and of requests whose bytes matter to a client. */
#include "tests/engine/serve/serve_client.h"

static struct served served;

static int setup(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    o.engine.isa = KN_ISA_COUNT - 1;
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

static json_t *choice_of(const char *body)
{
    struct answer a = ask(&served, "POST", "/v1/completions", "", body);
    if (a.status != 200)
        fail_msg("%d %s", a.status, a.body);
    json_t *root = json_loads(a.body, 0, NULL);
    json_t *choice = json_incref(json_array_get(json_object_get(root, "choices"), 0));
    assert_non_null(choice);
    json_decref(root);
    answer_free(&a);
    return choice;
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
    json_t *one = choice_of("{\"prompt\":\"Once\",\"max_tokens\":12,\"ignore_eos\":true,\"seed\":5,\"temperature\":1}");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_equal_prompts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
