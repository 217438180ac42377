/* tests/engine/serve/serve_client.h - a server in the test's process, and a client that can also misbehave.
 *
 * The server runs on its own thread with a small trained model and scalar kernels. They are so slow that an answer of a
 * thousand tokens is still in progress when a test disturbs it. No result depends on time, except that a read without a
 * byte for LOST_S fails. */
#ifndef TESTS_ENGINE_SERVE_SERVE_CLIENT_H
#define TESTS_ENGINE_SERVE_SERVE_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include <jansson.h>
#include <cmocka.h>

#include "engine/serve/serve.h"
#include "tests/send.h"

#define MODEL "evals/train/models/demo-draft-q8_0.gguf"
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOW_ISA (KN_ISA_COUNT - 1) /* sanitizers are slow enough */
#else
#define SLOW_ISA KN_ISA_SCALAR
#endif
#define LOST_S    120 /* seconds without a byte: the read fails */
#define MAX_REPLY (16 << 20)

struct served {
    struct eng_server *server;
    pthread_t thread;
    int port, result;
};

static inline void *serve_thread(void *arg)
{
    struct served *v = arg;
    v->result = eng_serve_run(v->server);
    return NULL;
}

static inline struct eng_serve_options serve_defaults(void)
{
    struct eng_serve_options o = { .engine = { .model = MODEL,
                                               .isa = SLOW_ISA,
                                               .n_thread = 1,
                                               .n_parallel = 2,
                                               .n_chunk = 64,
                                               .host_mem = (size_t)512 << 20 },
                                   .host = "127.0.0.1",
                                   .n_queue = 6,
                                   .max_body = 1 << 20,
                                   .max_connection = 4000,
                                   .patience_ms = 60000,
                                   .idle_ms = 60000,
                                   .ping_ms = 60000,
                                   .drain_ms = 60000,
                                   .stall_ms = 60000,
                                   .n_predict = -1,
                                   .quiet = true };
    spec_params_default(&o.sampling);
    return o;
}

/* ---- connections ----------------------------------------------------------------------------- */

static inline int connect_to(const struct served *v)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)v->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct timeval limit = { LOST_S, 0 };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static inline void send_text(int fd, const char *text) { send_bytes(fd, text, strlen(text)); }

/* headers: whole lines, each with its CRLF. */
static inline void send_request(int fd, const char *method, const char *path, const char *headers, const char *body)
{
    char head[4096];
    int n = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path, headers);
    if (body)
        n += snprintf(head + n, sizeof head - (size_t)n, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                      strlen(body));
    n += snprintf(head + n, sizeof head - (size_t)n, "\r\n");
    assert_true(n < (int)sizeof head);
    send_bytes(fd, head, (size_t)n);
    if (body)
        send_text(fd, body);
}

/* ---- answers --------------------------------------------------------------------------------- */

struct answer {
    int status;        /* 0: no answer */
    char *head, *body; /* terminated; of chunks the contents */
    size_t n_body;
};

static inline void answer_free(struct answer *a)
{
    free(a->head);
    free(a->body);
    *a = (struct answer){ 0 };
}

/* Reads byte by byte, so that the next answer stays in the socket. */
static inline bool read_line(int fd, char *line, size_t size)
{
    size_t n = 0;
    while (n + 1 < size && receive_bytes(fd, line + n, 1) == 1)
        if (line[n++] == '\n')
            break;
    line[n] = 0;
    return n > 0 && line[n - 1] == '\n';
}

static inline bool read_exactly(int fd, struct answer *a, size_t n)
{
    a->body = realloc(a->body, a->n_body + n + 1);
    assert_non_null(a->body);
    for (size_t got = 0; got < n;) {
        ssize_t k = receive_bytes(fd, a->body + a->n_body, n - got);
        if (k <= 0)
            return false;
        got += (size_t)k;
        a->n_body += (size_t)k;
        a->body[a->n_body] = 0;
    }
    return true;
}

static inline bool read_chunk(int fd, struct answer *a)
{
    char line[64];
    if (!read_line(fd, line, sizeof line))
        return false;
    size_t n = strtoul(line, NULL, 16);
    bool whole = read_exactly(fd, a, n);
    return read_line(fd, line, sizeof line) && whole && n > 0;
}

static inline bool read_head(int fd, struct answer *a)
{
    static const size_t room = 65536;
    size_t n = 0;
    a->head = calloc(1, room);
    a->body = calloc(1, 1);
    while (read_line(fd, a->head + n, room - n) && strcmp(a->head + n, "\r\n") != 0)
        n += strlen(a->head + n);
    return sscanf(a->head, "HTTP/1.%*d %d", &a->status) == 1;
}

/* has_body: false for the answer to a HEAD request. */
static inline struct answer read_answer_with(int fd, bool has_body)
{
    struct answer a = { 0 };
    const char *length;
    if (!read_head(fd, &a) || !has_body)
        return a;
    if (strcasestr(a.head, "Transfer-Encoding: chunked"))
        while (read_chunk(fd, &a))
            ;
    else if ((length = strcasestr(a.head, "Content-Length:")))
        (void)read_exactly(fd, &a, strtoul(length + 15, NULL, 10));
    return a;
}

static inline struct answer read_answer(int fd) { return read_answer_with(fd, true); }

static inline struct answer ask(const struct served *v, const char *method, const char *path, const char *headers,
                                const char *body)
{
    int fd = connect_to(v);
    send_request(fd, method, path, headers, body);
    struct answer a = read_answer_with(fd, strcmp(method, "HEAD") != 0);
    close(fd);
    return a;
}

static inline int ask_status(const struct served *v, const char *method, const char *path, const char *headers,
                             const char *body)
{
    struct answer a = ask(v, method, path, headers, body);
    int status = a.status;
    answer_free(&a);
    return status;
}

/* Waits until the connection is closed; discards all bytes. */
static inline void read_to_end(int fd)
{
    char buffer[4096];
    ssize_t n;
    while ((n = receive_bytes(fd, buffer, sizeof buffer)) > 0)
        ;
    assert_true(n == 0 || errno == ECONNRESET);
}

/* ---- the server ------------------------------------------------------------------------------ */

static inline void serve_start(struct served *v, const struct eng_serve_options *o)
{
    assert_int_equal(eng_serve_open(&v->server, o), 0);
    v->port = eng_serve_port(v->server);
    assert_int_equal(pthread_create(&v->thread, NULL, serve_thread, v), 0);
    while (ask_status(v, "GET", "/health", "", NULL) != 200)
        usleep(1000);
}

static inline void serve_join(struct served *v)
{
    pthread_join(v->thread, NULL);
    assert_int_equal(v->result, 0);
    eng_serve_close(v->server);
}

static inline void serve_end(struct served *v)
{
    eng_serve_stop(v->server);
    eng_serve_stop(v->server);
    serve_join(v);
}

/* The value of the first line of /metrics with this prefix. */
static inline double metric(const struct served *v, const char *key, const char *line)
{
    struct answer a = ask(v, "GET", "/metrics", key, NULL);
    assert_int_equal(a.status, 200);
    const char *p = strstr(a.body, line);
    assert_non_null(p);
    p = strstr(p, "} ");
    double x = strtod(p + 2, NULL);
    answer_free(&a);
    return x;
}

/* Waits until n requests have ended with this finish reason. */
static inline void wait_ended(const struct served *v, const char *how, int n)
{
    char line[200];
    snprintf(line, sizeof line,
             "vllm:request_success_total{model_name=\"demo-draft-q8_0\",engine=\"0\","
             "finished_reason=\"%s\"",
             how);
    while (metric(v, "", line) < n)
        usleep(2000);
    assert_true(metric(v, "", line) == n);
}

/* ---- chats ---------------------------------------------------------------------------------------- */

#define CHAT "/v1/chat/completions"

/* A request for n tokens. The same n and seed give the same answer. */
static inline const char *chat(int n, int seed, bool stream)
{
    static char body[8][400];
    static int next;
    char *b = body[next++ % 8];
    snprintf(b, sizeof body[0],
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me of %d apples.\"}],\"max_tokens\":"
             "%d,\"seed\":%d,\"ignore_eos\":true%s}",
             seed, n, seed, stream ? ",\"stream\":true" : "");
    return b;
}

static inline char *content(const struct answer *a)
{
    json_t *root = json_loads(a->body, 0, NULL);
    json_t *text = json_object_get(json_object_get(json_array_get(json_object_get(root, "choices"), 0), "message"),
                                   "content");
    assert_non_null(text);
    char *copy = strdup(json_string_value(text));
    json_decref(root);
    return copy;
}

static inline char *text_of(const struct served *v, int n, int seed)
{
    struct answer a = ask(v, "POST", CHAT, "", chat(n, seed, false));
    assert_int_equal(a.status, 200);
    char *text = content(&a);
    answer_free(&a);
    return text;
}

static inline void wait_running(const struct served *v, int n)
{
    while (metric(v, "", "vllm:num_requests_running{") < n)
        usleep(1000);
}

/* The first choice of a completion; the caller owns the reference. */
static inline json_t *choice_of(const struct served *v, const char *body)
{
    struct answer a = ask(v, "POST", "/v1/completions", "", body);
    if (a.status != 200)
        fail_msg("%d %s", a.status, a.body);
    json_t *root = json_loads(a.body, 0, NULL);
    json_t *choice = json_incref(json_array_get(json_object_get(root, "choices"), 0));
    assert_non_null(choice);
    json_decref(root);
    answer_free(&a);
    return choice;
}

#endif
