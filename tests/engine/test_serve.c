/* The server, over real sockets: who is answered and who is refused, who is cut and who is not
 * harmed by it. */
#include <errno.h>

#include "engine/serve/metrics.h"
#include "tests/engine/serve_client.h"
#include <jansson.h>
#include <sys/un.h>

#define CHAT "/v1/chat/completions"

/* `make soak` asks for more. */
#ifndef N_MALFORMED
#define N_MALFORMED 400
#define N_IDLE 200
#define N_SLOW 40
#define N_CANCELLED 30
#endif

/* ---- an engine that can be frozen: its thread looks at the clock in every pass --------------- */

static atomic_bool frozen;
static pthread_t main_thread;
static struct served served, stalled;

static uint64_t clock_that_freezes(void)
{
    pthread_t me = pthread_self();
    while (atomic_load(&frozen) && !pthread_equal(me, main_thread) &&
           !pthread_equal(me, stalled.thread))
        usleep(1000);
    return kn_io_system.now_ns();
}

/* About as many tokens as this; the same seed, the same text. */
static const char *chat(int n, int seed, bool stream)
{
    static char body[8][400];
    static int next;
    char *b = body[next++ % 8];
    snprintf(
        b, sizeof body[0],
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me of %d apples.\"}],\"max_tokens\":"
        "%d,\"seed\":%d,\"ignore_eos\":true%s}",
        seed, n, seed, stream ? ",\"stream\":true" : "");
    return b;
}

static char *content(const struct answer *a)
{
    json_t *root = json_loads(a->body, 0, NULL);
    json_t *text = json_object_get(
        json_object_get(json_array_get(json_object_get(root, "choices"), 0), "message"), "content");
    assert_non_null(text);
    char *copy = strdup(json_string_value(text));
    json_decref(root);
    return copy;
}

static char *text_of(const struct served *v, int n, int seed)
{
    struct answer a = ask(v, "POST", CHAT, "", chat(n, seed, false));
    assert_int_equal(a.status, 200);
    char *text = content(&a);
    answer_free(&a);
    return text;
}

static int setup(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
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

/* ---- answers --------------------------------------------------------------------------------- */

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
        { "GET", "/v1/chat/completions", NULL, 405, "POST" },
        { "POST", "/v1/embeddings", "{}", 501, "not_supported" },
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

static void test_streamed_is_whole(void **state)
{
    (void)state;
    struct answer a = ask(&served, "POST", CHAT, "", chat(60, 5, true));
    char *whole = text_of(&served, 60, 5), joined[4096] = "";
    assert_non_null(strcasestr(a.head, "text/event-stream"));
    for (char *line = strtok(a.body, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *event = strncmp(line, "data: {", 7) ? NULL : json_loads(line + 6, 0, NULL);
        const char *piece = json_string_value(json_object_get(
            json_object_get(json_array_get(json_object_get(event, "choices"), 0), "delta"),
            "content"));
        strcat(joined, piece ? piece : "");
        json_decref(event);
    }
    assert_string_equal(joined, whole);
    assert_true(strlen(whole) > 50);
    free(whole);
    answer_free(&a);
}

static void test_content_type_and_origin(void **state)
{
    (void)state;
    int fd = connect_to(&served);
    send_text(
        fd,
        "POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
    struct answer a = read_answer(fd);
    assert_int_equal(a.status, 415);
    answer_free(&a);
    close(fd);
    assert_int_equal(
        ask_status(&served, "GET", "/v1/models", "Origin: http://evil.example\r\n", NULL), 403);
    assert_int_equal(
        ask_status(&served, "GET", "/v1/models", "Origin: http://localhost.evil\r\n", NULL), 403);
    assert_int_equal(
        ask_status(&served, "GET", "/v1/models", "Origin: http://localhost:3000\r\n", NULL), 200);
    assert_int_equal(ask_status(&served, "GET", "/v1/models", "Origin: http://127.0.0.1\r\n", NULL),
                     200);
}

/* Bytes of the next request that come while one is answered wait for their turn. */
static void test_pipelined(void **state)
{
    (void)state;
    int fd = connect_to(&served);
    send_request(fd, "POST", CHAT, "", chat(30, 1, false));
    send_request(fd, "GET", "/version", "", NULL);
    send_request(fd, "POST", CHAT, "", chat(100, 2, true));
    usleep(50000);
    send_request(fd, "GET", "/health", "", NULL);
    static const char *const has[] = {"chat.completion", "version", "[DONE]", "ok"};
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
    static const char *const family[] = {"e2e_request_latency_seconds_bucket",
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
                                         "request_max_num_generation_tokens_bucket"};
    (void)state;
    static const char *const each[] = {
        "e2e_request_latency_seconds", "time_to_first_token_seconds",
        "request_queue_time_seconds",  "request_prefill_time_seconds",
        "request_decode_time_seconds", "request_prompt_tokens",
        "request_generation_tokens",   "request_max_num_generation_tokens"};
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
        snprintf(line, sizeof line, "\nvllm:%s{model_name=\"demo-draft-q8_0\",engine=\"0\"",
                 family[i]);
        if (!strstr(a.body, line))
            fail_msg("no %s", line);
    }
    for (char *line = strtok(a.body, "\n"); line; line = strtok(NULL, "\n")) {
        const char *value = strrchr(line, ' ');
        char *end = NULL;
        if (line[0] == '#')
            continue;
        assert_non_null(value);
        strtod(value, &end);
        assert_true(end > value + 1 && !*end);
    }
    answer_free(&a);
}

/* A bucket holds what is at most its bound; beyond the last there is one more. */
static void test_histogram(void **state)
{
    (void)state;
    static const char *const wanted[] = {"bucket{%s,le=\"0.01\"} 1\n", "bucket{%s,le=\"0.025\"} 2\n",
                                         "bucket{%s,le=\"80\"} 2\n", "bucket{%s,le=\"+Inf\"} 3\n",
                                         "count{%s} 3\n"};
    struct eng_metrics m = {0};
    struct eng_bytes out = {0};
    struct eng_hub_view v = {0};
    eng_metrics_add(&m, ENG_HIST_GAP, 0.01);
    eng_metrics_add(&m, ENG_HIST_GAP, 0.011);
    eng_metrics_add(&m, ENG_HIST_GAP, 1e6);
    eng_metrics_write(&m, &(struct eng_gauges){.model = "a\"b\\c"}, &v, &out);
    eng_bytes_add(&out, "", 1);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char line[200] = "vllm:inter_token_latency_seconds_";
        snprintf(line + strlen(line), sizeof line - strlen(line), wanted[i],
                 "model_name=\"a\\\"b\\\\c\",engine=\"0\"");
        if (!strstr(out.data, line))
            fail_msg("no %s", line);
    }
    eng_bytes_free(&out);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void test_limits(void **state)
{
    (void)state;
    enum { N = 2500000 };
    char *big = malloc(N + 1);
    memset(big, ' ', N);
    big[N] = 0;
    struct answer a =
        ask(&served, "POST", CHAT, "", big); /* beyond what evhttp takes: its own words */
    assert_int_equal(a.status, 413);
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

/* ---- who leaves ------------------------------------------------------------------------------ */

static int ended(const struct served *v, const char *how)
{
    char line[200];
    snprintf(line, sizeof line,
             "vllm:request_success_total{model_name=\"demo-draft-q8_0\",engine=\"0\","
             "finished_reason=\"%s\"",
             how);
    return (int)metric(v, "", line);
}

static void wait_running(const struct served *v, int n)
{
    while (metric(v, "", "vllm:num_requests_running{") < n)
        usleep(1000);
}

/* While decoding, reading a prompt, waiting in the queue; streamed or not. */
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

/* Others' leaving changes no byte. */
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

/* Many who leave, then one who stays. */
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
    assert_non_null(strcasestr(a.head, "Retry-After: "));
    answer_free(&a);
    for (int i = 0; i < 2; i++)
        close(fd[i]);
    wait_ended(&v, "abort", 2);
    free(text_of(&v, 5, 1));
    serve_end(&v);
}

/* ---- who is slow ----------------------------------------------------------------------------- */

static void test_slow(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    o.patience_ms = o.idle_ms = 300;
    serve_start(&v, &o);
    int idle = connect_to(&v), half = connect_to(&v), body = connect_to(&v), drip = connect_to(&v);
    send_text(half, "POST /v1/completions HTTP/1.1\r\nHost: ");
    send_text(body, "POST /v1/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{");
    char c = 0;
    send_text(drip, "GET /health HTTP/1.1\r\nX: ");
    while (recv(drip, &c, 1, MSG_DONTWAIT) != 0 && errno != ECONNRESET) { /* a byte now and then */
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

/* Asks for much and reads nothing. */
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
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)v.port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
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

/* Bodies that never end, until there would be too much of them to keep. */
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
        send_text(fd[i], "POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
        send_text(fd[i], body);
    }
    while (metric(&served, "", "spillway_cut_total{") <= cut)
        usleep(1000);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    free(body);
    free(text_of(&served, 5, 1));
}

/* Many that dawdle with a request harm nobody who does not. */
static void test_many_slow(void **state)
{
    (void)state;
    static int fd[N_SLOW];
    for (int i = 0; i < N_SLOW; i++) {
        fd[i] = connect_to(&served);
        send_text(fd[i], i % 2 ? "POST /v1/completions HTTP/1.1\r\nContent-Length: 99\r\n\r\n{"
                               : "GET /hea");
    }
    for (int i = 0; i < N_SLOW; i += 5) {
        free(text_of(&served, 3, i));
        send_text(fd[i], "a");
    }
    for (int i = 0; i < N_SLOW; i++)
        close(fd[i]);
}

/* More wait in the kernel until there is room. */
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

/* A stream that waits shows signs of life, and then its end must be an event. */
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
    atomic_store(&frozen, false);
    close(first), close(second);
    serve_join(&stalled);
}

/* Work, and an engine that does not move. */
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
    assert_true(metric(&stalled, "", "vllm:num_requests_running{") == 1); /* for it moves again */
    close(fd);
    serve_end(&stalled);
}

/* ---- keys ------------------------------------------------------------------------------------ */

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
    static const char *const wrong[] = {"",
                                        "Authorization: Bearer first-kez\r\n",
                                        "x-api-key: first-ke\r\n",
                                        "Authorization: Bearer first-keyy\r\n",
                                        "Authorization: Basic first-key\r\n",
                                        "x-api-key: \r\n",
                                        "Authorization: Bearer # note\r\n",
                                        "Authorization: Bearer\r\n"};
    static const char *const right[] = {"Authorization: Bearer first-key\r\n",
                                        "x-api-key: second-key\r\n",
                                        "authorization: bearer second-key\r\n"};
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
    static const bool found[] = {false, false, true}; /* what another key asked is not shared */
    for (size_t k = 0; k < sizeof right / sizeof *right; k++) {
        struct answer a = ask(&v, "POST", CHAT, right[k], chat(3, 1, false));
        assert_int_equal(a.status, 200);
        assert_int_equal(!strstr(a.body, "\"cached_tokens\":0"), found[k]);
        answer_free(&a);
    }
    assert_int_equal(ask_status(&v, "GET", "/health", "", NULL), 200);
    assert_int_equal(ask_status(&v, "GET", "/", "", NULL), 200);
    serve_end(&v);
    unlink(path);
}

static void test_open_to_others(void **state)
{
    (void)state;
    struct eng_server *s = NULL;
    struct eng_serve_options o = serve_defaults();
    o.host = "0.0.0.0";
    assert_int_equal(eng_serve_open(&s, &o), KN_EINVAL);
    o.host = "127.0.0.1";
    o.port = served.port;
    assert_int_equal(eng_serve_open(&s, &o), KN_EINVAL); /* taken */
    o.port = 0;
    o.api_key_file = "/dev/null";
    assert_int_equal(eng_serve_open(&s, &o), KN_EINVAL); /* no key in it */
    assert_null(s);
}

/* ---- what is no request ---------------------------------------------------------------------- */

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
    const char *body =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":2,\"stop\":[\"a\"]}";
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
        if (a.status >= 500 && a.status != 501)
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

/* ---- the end --------------------------------------------------------------------------------- */

static void test_drain(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    serve_start(&v, &o);
    char *alone = text_of(&v, 250, 4);
    int fd = connect_to(&v), kept = connect_to(&v);
    send_request(fd, "POST", CHAT, "", chat(250, 4, false));
    wait_running(&v, 1);
    eng_serve_stop(v.server);
    while (ask_status(&v, "GET", "/ready", "", NULL) != 503)
        usleep(1000);
    send_request(kept, "POST", CHAT, "", chat(5, 1, false));
    struct answer a = read_answer(kept);
    assert_int_equal(a.status, 503);
    assert_non_null(strcasestr(a.head, "Retry-After: "));
    answer_free(&a);
    a = read_answer(fd);
    assert_int_equal(a.status, 200);
    char *text = content(&a);
    assert_string_equal(text, alone);
    answer_free(&a);
    serve_join(&v);
    close(fd), close(kept);
    free(text);
    free(alone);
}

/* A second wish, or the end of patience: those under way are told. */
static void test_stop_at_once(void **state)
{
    (void)state;
    for (int patient = 0; patient < 2; patient++) {
        struct eng_serve_options o = serve_defaults();
        struct served v;
        o.drain_ms = patient ? 0 : 60000;
        serve_start(&v, &o);
        int fd = connect_to(&v), other = connect_to(&v);
        send_request(fd, "POST", CHAT, "", chat(1900, 4, true));
        send_request(other, "POST", CHAT, "", chat(1900, 5, false));
        wait_running(&v, 2);
        eng_serve_stop(v.server);
        if (!patient)
            eng_serve_stop(v.server);
        struct answer a = read_answer(fd), b = read_answer(other);
        assert_non_null(strstr(a.body, "shutting down"));
        assert_int_equal(b.status, 503);
        answer_free(&a);
        answer_free(&b);
        serve_join(&v);
        close(fd), close(other);
    }
}

static void test_manager_is_told(void **state)
{
    (void)state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct eng_serve_options o = serve_defaults();
    struct served v;
    char name[64], line[256];
    snprintf(name, sizeof name, "@spillway-test-%d", getpid());
    memcpy(a.sun_path, name, strlen(name));
    a.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {LOST_S, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(bind(fd, (struct sockaddr *)&a,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
                     0);
    o.notify_socket = name;
    o.watchdog_us = 1000;
    serve_start(&v, &o);
    static const char *const wanted[] = {"READY=1", "WATCHDOG=1"};
    for (int i = 0; i < 2; i++)
        do {
            ssize_t n = recv(fd, line, sizeof line - 1, 0);
            assert_true(n > 0);
            line[n] = 0;
        } while (!strstr(line, wanted[i]));
    serve_end(&v);
    do {
        ssize_t n = recv(fd, line, sizeof line - 1, 0);
        assert_true(n > 0);
        line[n] = 0;
    } while (!strstr(line, "STOPPING=1"));
    close(fd);
}

static void test_no_model(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    o.engine.model = "/nonexistent.gguf";
    assert_int_equal(eng_serve_open(&v.server, &o), 0);
    assert_true(eng_serve_run(v.server) < 0);
    eng_serve_close(v.server);
}

int main(void)
{
    struct kn_io io = kn_io_system;
    io.now_ns = clock_that_freezes;
    kn_io_set(&io);
    main_thread = pthread_self();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_streamed_is_whole),
        cmocka_unit_test(test_content_type_and_origin),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_histogram),
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
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_idle_connections),
        cmocka_unit_test(test_most_connections),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_open_to_others),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_stop_at_once),
        cmocka_unit_test(test_manager_is_told),
        cmocka_unit_test(test_no_model),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
