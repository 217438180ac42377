/* The server over real sockets: answers, refusals and limits; clients that disconnect, send or read slowly or send
 * garbage, and the answers of other clients beside them; API keys; an engine that stops moving. */
#include <errno.h>

#include "engine/serve/metrics.h"
#include "tests/engine/serve/exposition.h"
#include "tests/engine/serve/serve_client.h"

/* `make soak` sets larger numbers. */
#ifndef N_MALFORMED
#define N_MALFORMED 400
#define N_IDLE      200
#define N_SLOW      40
#define N_CANCELLED 30
#endif

/* ---- an engine that can be frozen: its thread reads this clock in every pass ----------------- */

static atomic_bool frozen;
static atomic_uint_fast64_t skipped_ns; /* simulates suspend of the machine */
static pthread_t main_thread;
static struct served served, stalled;

static uint64_t clock_that_freezes(void)
{
    pthread_t me = pthread_self();
    while (atomic_load(&frozen) && !pthread_equal(me, main_thread) && !pthread_equal(me, stalled.thread))
        usleep(1000);
    return kn_io_system.now_ns() + atomic_load(&skipped_ns);
}

static atomic_int n_logged_401;

static void listen_to_log(enum kn_level level, const char *line)
{
    (void)level;
    atomic_fetch_add(&n_logged_401, strstr(line, ": 401; ") != NULL);
}

static int setup(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    kn_log_set(listen_to_log, KN_LOG_INFO);
    serve_start(&served, &o);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    serve_end(&served);
    return 0;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void test_streamed_is_whole(void **state)
{
    (void)state;
    struct answer a = ask(&served, "POST", CHAT, "", chat(60, 5, true));
    char *whole = text_of(&served, 60, 5), joined[4096] = "";
    assert_non_null(strcasestr(a.head, "text/event-stream"));
    for (char *line = strtok(a.body, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *event = strncmp(line, "data: {", 7) ? NULL : json_loads(line + 6, 0, NULL);
        const char *piece = json_string_value(
            json_object_get(json_object_get(json_array_get(json_object_get(event, "choices"), 0), "delta"), "content"));
        strcat(joined, piece ? piece : "");
        json_decref(event);
    }
    assert_string_equal(joined, whole);
    assert_true(strlen(whole) > 50);
    free(whole);
    answer_free(&a);
}

/* With HTTP/1.0, as some proxies speak it, the end of the connection ends the answer. */
static void test_streamed_to_the_old(void **state)
{
    (void)state;
    const char *body = chat(40, 5, true);
    char head[200], text[65536];
    int fd = connect_to(&served);
    size_t n_text = 0;
    ssize_t n;
    snprintf(head, sizeof head,
             "POST " CHAT " HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    send_text(fd, head);
    send_text(fd, body);
    while ((n = recv(fd, text + n_text, sizeof text - 1 - n_text, 0)) > 0)
        n_text += (size_t)n;
    assert_int_equal(n, 0);
    text[n_text] = 0;
    assert_non_null(strstr(text, "data: [DONE]"));
    close(fd);
}

static void fingerprint_of(const char *model, enum kn_kv kv, int n_thread, char *out)
{
    struct eng_engine *e;
    assert_int_equal(eng_describe(&e, &(struct eng_options){ .model = model,
                                                             .kv = kv,
                                                             .n_thread = n_thread,
                                                             .n_parallel = n_thread,
                                                             .host_mem = (size_t)512 << 20 }),
                     0);
    assert_int_equal(eng_fingerprint(e, 0, out), 0);
    eng_close(e);
}

/* The fingerprint changes with the settings that change an answer's bytes, and with no others. Whole answers and
 * streams contain it. */
static void test_fingerprint(void **state)
{
    (void)state;
    char mine[ENG_FINGERPRINT_BYTES], other[ENG_FINGERPRINT_BYTES], said[128];
    fingerprint_of(MODEL, KN_KV_F16, 1, mine);
    fingerprint_of(MODEL, KN_KV_F16, 2, other);
    assert_string_equal(mine, other);
    fingerprint_of(MODEL, KN_KV_F32, 1, other);
    assert_string_not_equal(mine, other);
    fingerprint_of("evals/train/models/demo-target-q8_0.gguf", KN_KV_F16, 1, other);
    assert_string_not_equal(mine, other);
    snprintf(said, sizeof said, "\"system_fingerprint\":\"%s\"", mine);
    for (int stream = 0; stream < 2; stream++) {
        struct answer a = ask(&served, "POST", CHAT, "", chat(3, 1, stream));
        assert_non_null(strstr(a.body, said));
        answer_free(&a);
    }
}

static json_t *logprobs_of(json_t *choice, const char *name)
{
    return json_object_get(json_object_get(choice, "logprobs"), name);
}

/* An echoed prompt is listed token by token before the answer; vLLM's prompt_logprobs have the same numbers. */
static void test_prompt_is_told(void **state)
{
    (void)state;
    json_t *c = choice_of(&served, "{\"prompt\":[1,5,9,33,75,309,12],\"max_tokens\":2,\"ignore_eos\":true,\"seed\":3,"
                                   "\"echo\":true,\"logprobs\":1,\"prompt_logprobs\":0}");
    json_t *said = logprobs_of(c, "token_logprobs"), *likely = logprobs_of(c, "top_logprobs");
    assert_int_equal(json_array_size(logprobs_of(c, "tokens")), 9);
    assert_int_equal(json_array_size(logprobs_of(c, "text_offset")), 9);
    assert_true(json_is_null(json_array_get(said, 0)) && json_is_null(json_array_get(likely, 0)));
    json_t *given = json_object_get(c, "prompt_logprobs");
    assert_int_equal(json_array_size(given), 7);
    assert_true(json_is_null(json_array_get(given, 0)));
    for (size_t i = 1; i < 9; i++) {
        double x = json_number_value(json_array_get(said, i));
        json_t *one = json_object_iter_value(json_object_iter(json_array_get(given, i)));
        assert_true(x < 0 && json_object_size(json_array_get(likely, i)) >= 1);
        assert_true(i >= 7 || json_number_value(json_object_get(one, "logprob")) == x);
        assert_true(i >= 7 || json_integer_value(json_object_get(one, "rank")) >= 1);
    }
    size_t n_text = json_string_length(json_object_get(c, "text"));
    assert_true((size_t)json_integer_value(json_array_get(logprobs_of(c, "text_offset"), 8)) < n_text);
    json_decref(c);

    c = choice_of(&served, "{\"prompt\":\"Once upon a time\",\"max_tokens\":0,\"echo\":true}"); /* the prompt alone */
    assert_string_equal(json_string_value(json_object_get(c, "text")), "Once upon a time");
    assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "length");
    json_decref(c);
    struct answer a = ask(&served, "POST", CHAT, "",
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
                          "\"max_tokens\":1,\"prompt_logprobs\":2}");
    assert_non_null(strstr(a.body, "],\"prompt_logprobs\":[null,{\""));
    answer_free(&a);
}

static void test_content_type_and_origin(void **state)
{
    (void)state;
    int fd = connect_to(&served);
    send_text(
        fd,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
    struct answer a = read_answer(fd);
    assert_int_equal(a.status, 415);
    answer_free(&a);
    close(fd);
    assert_int_equal(ask_status(&served, "GET", "/v1/models", "Origin: http://evil.example\r\n", NULL), 403);
    assert_int_equal(ask_status(&served, "GET", "/v1/models", "Origin: http://localhost.evil\r\n", NULL), 403);
    assert_int_equal(ask_status(&served, "GET", "/v1/models", "Origin: http://localhost:3000\r\n", NULL), 200);
    assert_int_equal(ask_status(&served, "GET", "/v1/models", "Origin: http://127.0.0.1\r\n", NULL), 200);
}

/* Bytes of the next request that arrive during an answer are handled after it. */
static void test_pipelined(void **state)
{
    (void)state;
    int fd = connect_to(&served);
    send_request(fd, "POST", CHAT, "", chat(30, 1, false));
    send_request(fd, "GET", "/version", "", NULL);
    send_request(fd, "POST", CHAT, "", chat(100, 2, true));
    usleep(50000);
    send_request(fd, "GET", "/health", "", NULL);
    static const char *const has[] = { "chat.completion", "version", "[DONE]", "ok" };
    for (int i = 0; i < 4; i++) {
        struct answer a = read_answer(fd);
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body, has[i]));
        answer_free(&a);
    }
    close(fd);
}

static void test_metrics(void **state)
{
    static const char *const family[] = { "e2e_request_latency_seconds_bucket",
                                          "prompt_tokens_total",
                                          "generation_tokens_total",
                                          "inter_token_latency_seconds_bucket",
                                          "num_requests_running",
                                          "num_requests_waiting",
                                          "time_to_first_token_seconds_bucket",
                                          "kv_cache_usage_perc",
                                          "request_prompt_tokens_bucket",
                                          "request_generation_tokens_bucket",
                                          "request_success_total",
                                          "request_queue_time_seconds_sum",
                                          "request_prefill_time_seconds_sum",
                                          "request_decode_time_seconds_sum",
                                          "request_max_num_generation_tokens_bucket" };
    (void)state;
    static const char *const each[] = { "e2e_request_latency_seconds", "time_to_first_token_seconds",
                                        "request_queue_time_seconds",  "request_prefill_time_seconds",
                                        "request_decode_time_seconds", "request_prompt_tokens",
                                        "request_generation_tokens",   "request_max_num_generation_tokens" };
    double before = metric(&served, "", "vllm:generation_tokens_total{"), counted[8];
    char name[120];
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "vllm:%s_count{", each[i]);
        counted[i] = metric(&served, "", name);
    }
    free(text_of(&served, 25, 1));
    assert_true(metric(&served, "", "vllm:generation_tokens_total{") == before + 25);
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "vllm:%s_count{", each[i]);
        assert_true(metric(&served, "", name) == counted[i] + 1);
    }
    struct answer a = ask(&served, "GET", "/metrics", "", NULL);
    for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
        char line[120];
        snprintf(line, sizeof line, "\nvllm:%s{model_name=\"demo-draft-q8_0\",engine=\"0\"", family[i]);
        if (!strstr(a.body, line))
            fail_msg("no %s", line);
    }
    free(expo_well(a.body));
    answer_free(&a);
}

/* A bucket counts values up to its bound; the last bucket, +Inf, counts all. */
static void test_histogram(void **state)
{
    (void)state;
    static const char *const wanted[] = { "bucket{%s,le=\"0.01\"} 1\n", "bucket{%s,le=\"0.025\"} 2\n",
                                          "bucket{%s,le=\"80\"} 2\n", "bucket{%s,le=\"+Inf\"} 3\n", "count{%s} 3\n" };
    struct eng_metrics m = { 0 };
    struct eng_bytes out = { 0 };
    struct eng_thread_report v = { 0 };
    eng_metrics_add(&m, ENG_HIST_GAP, 0.01);
    eng_metrics_add(&m, ENG_HIST_GAP, 0.011);
    eng_metrics_add(&m, ENG_HIST_GAP, 1e6);
    eng_metrics_write(&m, &(struct eng_gauges){ .model = "a\"b\\c" }, &v, &out);
    eng_bytes_add(&out, "", 1);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char line[200] = "vllm:inter_token_latency_seconds_";
        snprintf(line + strlen(line), sizeof line - strlen(line), wanted[i], "model_name=\"a\\\"b\\\\c\",engine=\"0\"");
        if (!strstr(out.data, line))
            fail_msg("no %s", line);
    }
    free(expo_well(out.data));
    eng_bytes_free(&out);
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* The body has OpenAI's error format. */
static void assert_refusal(const struct answer *a)
{
    json_t *root = json_loads(a->body, 0, NULL);
    if (!json_string_value(json_object_get(json_object_get(root, "error"), "message")) ||
        !strcasestr(a->head, "Content-Type: application/json"))
        fail_msg("%s%s", a->head, a->body);
    json_decref(root);
}

#define REFUSED "spillway_http_responses_total{model_name=\"demo-draft-q8_0\",engine=\"0\",code=\"4xx\""

/* Bytes that are no HTTP request get the same error format. */
static void test_no_request(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
    } table[] = {
        { "nonsense\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\nno colon\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", 400 },
        { "BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 501 },
    };
    double before = metric(&served, "", REFUSED);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int fd = connect_to(&served);
        send_text(fd, table[i].text);
        struct answer a = read_answer(fd);
        if (a.status != table[i].status)
            fail_msg("%d for %s%s", a.status, table[i].text, a.body);
        assert_refusal(&a);
        read_to_end(fd);
        answer_free(&a);
        close(fd);
    }
    int fd = connect_to(&served), n = 300000;
    char *big = malloc((size_t)n + 1);
    memset(big, 'a', (size_t)n);
    big[n] = 0;
    send_text(fd, "GET /health HTTP/1.1\r\nX-Long: ");
    (void)!send(fd, big, (size_t)n, MSG_NOSIGNAL);
    struct answer a = read_answer(fd);
    assert_int_equal(a.status, 431);
    assert_refusal(&a);
    answer_free(&a);
    close(fd);
    free(big);
    assert_true(metric(&served, "", REFUSED) == before + 4);
}

static void test_limits(void **state)
{
    (void)state;
    enum { N = 2500000 };
    char *big = malloc(N + 1);
    memset(big, ' ', N);
    big[N] = 0;
    struct answer a = ask(&served, "POST", CHAT, "", big); /* refused by its length alone */
    assert_int_equal(a.status, 413);
    assert_refusal(&a);
    answer_free(&a);
    big[1500000] = 0;
    a = ask(&served, "POST", CHAT, "", big);
    assert_int_equal(a.status, 413);
    assert_non_null(strstr(a.body, "--max-body"));
    answer_free(&a);
    memset(big, 'a', 40000);
    big[40000] = 0;
    int fd = connect_to(&served);
    send_text(fd, "GET /health HTTP/1.1\r\nX-Long: ");
    send_text(fd, big);
    send_text(fd, "\r\n\r\n");
    a = read_answer(fd);
    assert_int_equal(a.status, 431);
    answer_free(&a);
    close(fd);
    free(big);
}

static void test_endless_headers(void **state)
{
    (void)state;
    int fd = connect_to(&served);
    send_text(fd, "GET /health HTTP/1.1\r\n");
    for (int i = 0; i < 100000; i++)
        send_text(fd, "X-More: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n");
    read_to_end(fd);
    close(fd);
    assert_int_equal(ask_status(&served, "GET", "/health", "", NULL), 200);
}

/* ---- clients that disconnect ----------------------------------------------------------------- */

static int ended(const struct served *v, const char *how)
{
    char line[200];
    snprintf(line, sizeof line,
             "vllm:request_success_total{model_name=\"demo-draft-q8_0\",engine=\"0\","
             "finished_reason=\"%s\"",
             how);
    return (int)metric(v, "", line);
}

/* Disconnects while decoding, in prefill and in the queue; with and without a stream. */
static void test_disconnect(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    o.engine.n_parallel = 1;
    serve_start(&v, &o);
    char *prompt = malloc(20000);
    int n = snprintf(prompt, 20000, "{\"max_tokens\":2,\"prompt\":\"");
    for (int i = 0; i < 1500; i++)
        n += snprintf(prompt + n, 20000 - (size_t)n, "%d ", i % 10);
    snprintf(prompt + n, 20000 - (size_t)n, "\"}");
    for (int stream = 0; stream < 2; stream++) {
        int abort = ended(&v, "abort"), whole = ended(&v, "length");
        int decoding = connect_to(&v);
        send_request(decoding, "POST", CHAT, "", chat(1900, 1, stream));
        wait_running(&v, 1);
        int waiting = connect_to(&v);
        send_request(waiting, "POST", CHAT, "", chat(1900, 2, stream));
        while (metric(&v, "", "vllm:num_requests_waiting{") < 1)
            usleep(1000);
        close(waiting);
        wait_ended(&v, "abort", abort + 1);
        close(decoding);
        wait_ended(&v, "abort", abort + 2);
        int reading = connect_to(&v);
        send_request(reading, "POST", "/v1/completions", "", prompt);
        wait_running(&v, 1);
        close(reading);
        wait_ended(&v, "abort", abort + 3);
        assert_int_equal(ended(&v, "length"), whole);
    }
    free(text_of(&v, 5, 1));
    free(prompt);
    serve_end(&v);
}

/* Disconnects of other clients change no byte. */
static void test_cancel_some(void **state)
{
    enum { N = 6 };
    (void)state;
    char *alone[N];
    int fd[N];
    for (int i = 0; i < N; i++)
        alone[i] = text_of(&served, 30, i + 1);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            fd[i] = connect_to(&served);
            send_request(fd[i], "POST", CHAT, "", chat(30, i + 1, false));
        }
        for (int i = round % 2; i < N; i += 2) {
            usleep(20000);
            close(fd[i]);
        }
        for (int i = 1 - round % 2; i < N; i += 2) {
            struct answer a = read_answer(fd[i]);
            assert_int_equal(a.status, 200);
            char *text = content(&a);
            assert_string_equal(text, alone[i]);
            free(text);
            answer_free(&a);
            close(fd[i]);
        }
    }
    for (int i = 0; i < N; i++)
        free(alone[i]);
}

/* Many disconnects, then one whole answer. */
static void test_many_cancelled(void **state)
{
    (void)state;
    int fd[6], abort = ended(&served, "abort"), sent = 0;
    char *alone = text_of(&served, 20, 7);
    while (sent < N_CANCELLED) {
        for (int i = 0; i < 6; i++, sent++) {
            fd[i] = connect_to(&served);
            send_request(fd[i], "POST", CHAT, "", chat(1900, i, i % 2));
        }
        wait_running(&served, 1);
        for (int i = 0; i < 6; i++)
            close(fd[i]);
        while (metric(&served, "", "spillway_requests{") > 0)
            usleep(1000);
    }
    assert_true(ended(&served, "abort") > abort);
    char *text = text_of(&served, 20, 7);
    assert_string_equal(text, alone);
    free(text);
    free(alone);
}

static void test_full(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    int fd[2];
    o.engine.n_parallel = 1;
    o.n_queue = 1;
    serve_start(&v, &o);
    for (int i = 0; i < 2; i++) {
        fd[i] = connect_to(&v);
        send_request(fd[i], "POST", CHAT, "", chat(1900, i, true));
    }
    wait_running(&v, 1);
    while (metric(&v, "", "vllm:num_requests_waiting{") < 1)
        usleep(1000);
    struct answer a = ask(&v, "POST", CHAT, "", chat(5, 1, false));
    assert_int_equal(a.status, 429);
    int wait = atoi(strcasestr(a.head, "Retry-After: ") + 13);
    char said[64];
    snprintf(said, sizeof said, "queue full (1 waiting); retry in %d s", wait);
    assert_true(wait >= 1 && wait <= 60);
    assert_non_null(strstr(a.body, said));
    answer_free(&a);
    for (int i = 0; i < 2; i++)
        close(fd[i]);
    wait_ended(&v, "abort", 2);
    free(text_of(&v, 5, 1));
    serve_end(&v);
}

/* ---- slow clients ---------------------------------------------------------------------------- */

static void test_slow(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    o.patience_ms = o.idle_ms = 300;
    serve_start(&v, &o);
    int idle = connect_to(&v), half = connect_to(&v), body = connect_to(&v), drip = connect_to(&v);
    send_text(half, "POST /v1/completions HTTP/1.1\r\nHost: ");
    send_text(body, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{");
    char c = 0;
    send_text(drip, "GET /health HTTP/1.1\r\nX: ");
    while (recv(drip, &c, 1, MSG_DONTWAIT) != 0 && errno != ECONNRESET) { /* one byte at a time */
        send_text(drip, "a");
        usleep(50000);
    }
    read_to_end(half);
    read_to_end(body);
    read_to_end(idle);
    close(half), close(body), close(idle), close(drip);
    assert_true(metric(&v, "", "spillway_cut_total{") >= 3);
    serve_end(&v);
}

/* After a suspend of the machine, no connection is closed for the time that passed. */
static void test_sleep(void **state)
{
    (void)state;
    int idle = connect_to(&served), half = connect_to(&served);
    send_request(idle, "GET", "/health", "", NULL);
    struct answer a = read_answer(idle);
    answer_free(&a);
    send_text(half, "GET /health HT");
    while (metric(&served, "", "spillway_connections{") < 3)
        usleep(1000);
    double cut = metric(&served, "", "spillway_cut_total{");
    atomic_fetch_add(&skipped_ns, UINT64_C(3600000000000));
    for (int i = 0; i < 3; i++) {
        usleep(110000); /* one tick of the server's timer */
        assert_int_equal(ask_status(&served, "GET", "/health", "", NULL), 200);
    }
    send_request(idle, "GET", "/health", "", NULL);
    send_text(half, "TP/1.1\r\nHost: localhost\r\n\r\n");
    for (int i = 0; i < 2; i++) {
        a = read_answer(i ? half : idle);
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
    assert_true(metric(&served, "", "spillway_cut_total{") == cut);
    close(idle), close(half);
}

/* A client that requests a long answer and reads nothing is closed. */
static void test_slow_reader(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    o.patience_ms = 300;
    o.engine.isa = KN_ISA_COUNT - 1;
    serve_start(&v, &o);
    for (int stream = 0; stream < 2; stream++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;
        struct sockaddr_in a = { .sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)v.port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        char body[256];
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
        snprintf(body, sizeof body,
                 "{\"prompt\":\"x\",\"ignore_eos\":true,\"max_tokens\":2000,\"logprobs\":20,"
                 "\"n\":4,\"stream\":%s}",
                 stream ? "true" : "false");
        send_request(fd, "POST", "/v1/completions", "", body);
        while (metric(&v, "", "spillway_cut_total{") < 1 + stream)
            usleep(10000);
        free(text_of(&v, 5, 1));
        close(fd);
    }
    serve_end(&v);
}

static void test_idle_connections(void **state)
{
    enum { N = N_IDLE };
    (void)state;
    int fd[N];
    for (int i = 0; i < N; i++)
        fd[i] = connect_to(&served);
    char *text = text_of(&served, 20, 3);
    for (int i = 0; i < N; i += 50) {
        send_request(fd[i], "GET", "/health", "", NULL);
        struct answer a = read_answer(fd[i]);
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
    for (int i = 0; i < N; i++)
        close(fd[i]);
    while (metric(&served, "", "spillway_connections{") > 2)
        usleep(2000);
    free(text);
}

/* Bodies that never end, until they exceed the memory for bodies. */
static void test_many_bodies(void **state)
{
    enum { N = 8, BYTES = 900000 };
    (void)state;
    int fd[N];
    char *body = malloc(BYTES + 1);
    memset(body, ' ', BYTES);
    body[BYTES] = 0;
    double cut = metric(&served, "", "spillway_cut_total{");
    for (int i = 0; i < N; i++) {
        fd[i] = connect_to(&served);
        send_text(fd[i], "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
        send_text(fd[i], body);
    }
    while (metric(&served, "", "spillway_cut_total{") <= cut)
        usleep(1000);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    free(body);
    free(text_of(&served, 5, 1));
}

/* Many clients with slow requests do not delay others. */
static void test_many_slow(void **state)
{
    (void)state;
    static int fd[N_SLOW];
    for (int i = 0; i < N_SLOW; i++) {
        fd[i] = connect_to(&served);
        send_text(fd[i], i % 2 ? "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
                               : "GET /hea");
    }
    for (int i = 0; i < N_SLOW; i += 5) {
        free(text_of(&served, 3, i));
        send_text(fd[i], "a");
    }
    for (int i = 0; i < N_SLOW; i++)
        close(fd[i]);
}

/* Connections above the limit wait in the kernel until one closes. */
static void test_most_connections(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    o.max_connection = 3;
    serve_start(&v, &o);
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = connect_to(&v);
        send_text(fd[i], "GET");
    }
    usleep(100000);
    int late = connect_to(&v);
    send_request(late, "GET", "/health", "", NULL);
    char c;
    usleep(100000);
    assert_int_equal(recv(late, &c, 1, MSG_DONTWAIT), -1);
    close(fd[0]);
    struct answer a = read_answer(late);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(late), close(fd[1]), close(fd[2]);
    serve_end(&v);
}

/* A waiting stream gets comments as keep-alive; its end is an error event. */
static void test_signs_of_life(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    char line[200];
    o.ping_ms = 200;
    o.engine.n_parallel = 1;
    serve_start(&stalled, &o);
    int first = connect_to(&stalled), second = connect_to(&stalled);
    send_request(first, "POST", CHAT, "", chat(1900, 1, false));
    wait_running(&stalled, 1);
    send_request(second, "POST", CHAT, "", chat(1900, 1, true));
    while (metric(&stalled, "", "vllm:num_requests_waiting{") < 1)
        usleep(1000);
    atomic_store(&frozen, true);
    do
        assert_true(read_line(second, line, sizeof line));
    while (line[0] != ':');
    eng_serve_stop(stalled.server);
    eng_serve_stop(stalled.server);
    while (read_line(second, line, sizeof line) && !strstr(line, "shutting down"))
        ;
    assert_non_null(strstr(line, "data: {"));
    while (read_line(second, line, sizeof line) && !strstr(line, "data: [DONE]"))
        ;
    assert_string_equal(line, "data: [DONE]\n");
    atomic_store(&frozen, false);
    close(first), close(second);
    serve_join(&stalled);
}

/* Work is due, but the engine does not move. */
static void test_stall(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    o.stall_ms = 200;
    serve_start(&stalled, &o);
    int fd = connect_to(&stalled);
    send_request(fd, "POST", CHAT, "", chat(1900, 1, true));
    wait_running(&stalled, 1);
    atomic_store(&frozen, true);
    while (ask_status(&stalled, "GET", "/ready", "", NULL) != 503)
        usleep(10000);
    assert_int_equal(ask_status(&stalled, "GET", "/health", "", NULL), 200);
    atomic_store(&frozen, false);
    while (ask_status(&stalled, "GET", "/ready", "", NULL) != 200)
        usleep(10000);
    assert_true(metric(&stalled, "", "vllm:num_requests_running{") == 1); /* the engine moves again */
    close(fd);
    serve_end(&stalled);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void write_keys(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

/* Every route except the open ones needs a key. Keys may change while the server runs. */
static void test_keys(void **state)
{
    /* clang-format off */
    static const struct { const char *method, *path, *body; } all[] = {
        { "POST", CHAT, "{}" }, { "POST", "/v1/completions", "{}" }, { "POST", "/v1/responses", "{}" },
        { "POST", "/v1/responses/input_tokens", "{}" }, { "POST", "/v1/messages", "{}" },
        { "POST", "/v1/messages/count_tokens", "{}" }, { "GET", "/v1/models", NULL },
        { "GET", "/v1/models/x", NULL }, { "POST", "/tokenize", "{}" }, { "POST", "/detokenize", "{}" },
        { "POST", "/apply-template", "{}" }, { "GET", "/ready", NULL }, { "GET", "/metrics", NULL },
        { "GET", "/version", NULL }, { "GET", "/status", NULL }, { "GET", "/status/stream", NULL },
        { "GET", "/nothing", NULL }, { "DELETE", CHAT, NULL }, { "POST", "/v1/embeddings", "{}" } };
    /* clang-format on */
    static const char *const wrong[] = { "",
                                         "Authorization: Bearer first-kez\r\n",
                                         "x-api-key: first-ke\r\n",
                                         "Authorization: Bearer first-keyy\r\n",
                                         "Authorization: Basic first-key\r\n",
                                         "x-api-key: \r\n",
                                         "Authorization: Bearer # note\r\n",
                                         "Authorization: Bearer\r\n" };
    static const char *const right[] = { "Authorization: Bearer first-key\r\n", "x-api-key: second-key\r\n",
                                         "authorization: bearer second-key\r\n" };
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    char path[] = "/tmp/spillway-keys-XXXXXX";
    int file = mkstemp(path);
    static const char text[] = "# note\nfirst-key\n\n   second-key  \r\n#third-key";
    assert_int_equal(write(file, text, sizeof text - 1), sizeof text - 1);
    close(file);
    o.api_key_file = path;
    o.host = "0.0.0.0";
    serve_start(&v, &o);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            struct answer a = ask(&v, all[i].method, all[i].path, wrong[k], all[i].body);
            if (a.status != 401 || !strstr(a.body, "error"))
                fail_msg("%s %s with '%s': %d", all[i].method, all[i].path, wrong[k], a.status);
            answer_free(&a);
        }
    static const bool found[] = { false, false, true }; /* no cache hit from another key's request */
    for (size_t k = 0; k < sizeof right / sizeof *right; k++) {
        struct answer a = ask(&v, "POST", CHAT, right[k], chat(3, 1, false));
        assert_int_equal(a.status, 200);
        assert_int_equal(!strstr(a.body, "\"cached_tokens\":0"), found[k]);
        answer_free(&a);
    }
    assert_int_equal(ask_status(&v, "GET", "/health", "", NULL), 200);
    assert_int_equal(ask_status(&v, "GET", "/", "", NULL), 200);

    write_keys(path, "second-key\nthird-key\n");
    eng_serve_reload(v.server);
    while (ask_status(&v, "GET", "/ready", "x-api-key: third-key\r\n", NULL) != 200)
        usleep(1000);
    assert_int_equal(ask_status(&v, "GET", "/ready", "x-api-key: first-key\r\n", NULL), 401);
    assert_true(atomic_load(&n_logged_401) > 0);
    struct answer a = ask(&v, "POST", CHAT, right[1], chat(3, 1, false));
    assert_null(strstr(a.body, "\"cached_tokens\":0")); /* the key is on another line, but keeps its cache */
    answer_free(&a);
    write_keys(path, "not a key\n");
    eng_serve_reload(v.server);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ask_status(&v, "GET", "/ready", "x-api-key: third-key\r\n", NULL), 200);
    serve_end(&v);
    unlink(path);
}

/* ---- random bytes ---------------------------------------------------------------------------- */

static void spoil(char *p, size_t *n, uint64_t *random)
{
    uint64_t r = kn_mix(*random += KN_GOLDEN);
    for (int k = 0; k < 1 + (int)(r % 4) && *n > 1; k++) {
        uint64_t s = kn_mix(*random += KN_GOLDEN);
        size_t at = (s >> 8) % *n;
        switch (s % 5) {
        case 0:
            p[at] = (char)(s >> 40);
            break;
        case 1:
            p[at] ^= (char)(1 << (s >> 40) % 8);
            break;
        case 2:
            memmove(p + at, p + at + 1, *n - at - 1), --*n;
            break;
        case 3:
            p[at] = "\r\n:{}[]\",0-\\\0 "[(s >> 40) % 14];
            break;
        case 4:
            *n = at + 1;
            break;
        }
    }
}

static void test_malformed(void **state)
{
    (void)state;
    char good[1024], bad[1024];
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":2,\"stop\":[\"a\"]}";
    int n = snprintf(good, sizeof good,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                     CHAT, strlen(body), body);
    uint64_t random = 1;
    char *golden = text_of(&served, 10, 9);
    for (int i = 0; i < N_MALFORMED; i++) {
        size_t n_bad = (size_t)n;
        memcpy(bad, good, (size_t)n);
        spoil(bad, &n_bad, &random);
        int fd = connect_to(&served);
        send_bytes(fd, bad, n_bad);
        shutdown(fd, SHUT_WR);
        struct answer a = read_answer(fd);
        if (a.status >= 500 && a.status != 501 && a.status != 505)
            fail_msg("%d: %s", a.status, a.body);
        answer_free(&a);
        close(fd);
        if (i % 1000 == 399) {
            char *after = text_of(&served, 10, 9);
            assert_string_equal(after, golden);
            free(after);
        }
    }
    free(golden);
}

int main(void)
{
    struct kn_io io = kn_io_system;
    io.now_ns = clock_that_freezes;
    kn_io_set(&io);
    main_thread = pthread_self();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streamed_is_whole),
        cmocka_unit_test(test_streamed_to_the_old),
        cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_prompt_is_told),
        cmocka_unit_test(test_content_type_and_origin),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_no_request),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_endless_headers),
        cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_cancel_some),
        cmocka_unit_test(test_many_cancelled),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_many_bodies),
        cmocka_unit_test(test_many_slow),
        cmocka_unit_test(test_signs_of_life),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_sleep),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_idle_connections),
        cmocka_unit_test(test_most_connections),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_malformed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
