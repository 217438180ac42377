/* The end of the server: running answers finish, or end with an error at a second stop or after the drain time. Also: a
 * stop while the model loads, and servers that cannot start. */
#include "tests/engine/serve/serve_client.h"
#include "tests/faults.h"
#include <limits.h>
#include <stdatomic.h>
#include <sys/un.h>

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

/* A second stop, or the end of the drain time: clients of running requests get an error. */
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
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct eng_serve_options o = serve_defaults();
    struct served v;
    char name[64], line[256];
    snprintf(name, sizeof name, "@spillway-test-%d", getpid());
    memcpy(a.sun_path, name, strlen(name));
    a.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct timeval limit = { LOST_S, 0 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(
        bind(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))), 0);
    o.notify_socket = name;
    o.watchdog_us = 1000;
    serve_start(&v, &o);
    static const char *const wanted[] = { "READY=1", "WATCHDOG=1" };
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

/* ---- a stop while loading -------------------------------------------------------------------- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int n_read, n_may = INT_MAX; /* reads begun; reads that may proceed */

static ssize_t gated_pread(int fd, void *buf, size_t bytes, int64_t offset)
{
    pthread_mutex_lock(&gate);
    int mine = n_read++;
    pthread_cond_broadcast(&moved);
    while (mine >= n_may)
        pthread_cond_wait(&moved, &gate);
    pthread_mutex_unlock(&gate);
    return kn_io_system.pread(fd, buf, bytes, offset);
}

static void let_read(int n)
{
    pthread_mutex_lock(&gate);
    n_may = n;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&gate);
}

/* Weights not yet read are not read, and all memory is freed. */
static void test_stop_while_loading(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    o.engine.io = OFF_IO_PREAD;
    n_read = 0;
    serve_start(&v, &o);
    serve_end(&v);
    const int all = n_read, half = all / 2;
    assert_true(all > 20);
    n_read = 0;
    let_read(half);
    assert_int_equal(eng_serve_open(&v.server, &o), 0);
    v.port = eng_serve_port(v.server);
    assert_int_equal(pthread_create(&v.thread, NULL, serve_thread, &v), 0);
    assert_int_equal(ask_status(&v, "GET", "/health", "", NULL), 503);
    pthread_mutex_lock(&gate);
    while (n_read <= half)
        pthread_cond_wait(&moved, &gate);
    pthread_mutex_unlock(&gate);
    eng_serve_stop(v.server);
    pthread_join(v.thread, NULL); /* the server has stopped; reads still wait */
    let_read(INT_MAX);
    eng_serve_close(v.server);
    assert_int_equal(v.result, 0);
    assert_true(n_read < all);
}

static atomic_int n_listening;

static void count_listening(enum kn_level level, const char *line)
{
    (void)level;
    atomic_fetch_add(&n_listening, !strncmp(line, "listening on http://127.0.0.1:", 30));
}

/* The server says that it listens when it can answer, so not before the model is loaded. */
static void test_no_model(void **state)
{
    (void)state;
    kn_log_set(count_listening, KN_LOG_INFO);
    struct eng_serve_options o = serve_defaults();
    struct served v;
    o.engine.model = "/nonexistent.gguf";
    assert_int_equal(eng_serve_open(&v.server, &o), 0);
    assert_true(eng_serve_run(v.server) < 0);
    eng_serve_close(v.server);
    assert_int_equal(atomic_load(&n_listening), 0);
    o.engine.model = MODEL;
    serve_start(&v, &o);
    assert_int_equal(atomic_load(&n_listening), 1);
    serve_end(&v);
    kn_log_set(NULL, KN_LOG_INFO);
}

/* An address that cannot be used or is not allowed is refused before the model loads. */
static void test_no_place(void **state)
{
    (void)state;
    struct eng_server *s = NULL, *first;
    struct eng_serve_options o = serve_defaults();
    faults.most = KN_LOG_ERROR;
    faults_listen();
    o.host = "0.0.0.0";
    assert_int_equal(eng_serve_open(&s, &o), KN_EINVAL);
    assert_non_null(strstr(faults.last, "is reachable by other machines"));
    o.host = "127.0.0.1";
    assert_int_equal(eng_serve_open(&first, &o), 0);
    o.port = eng_serve_port(first);
    assert_int_equal(eng_serve_open(&s, &o), KN_EINVAL);
    assert_non_null(strstr(faults.last, "choose another port, or stop the process that uses it"));
    eng_serve_close(first);
    o.port = 0;
    o.api_key_file = "/dev/null";
    assert_int_equal(eng_serve_open(&s, &o), KN_EINVAL);
    assert_non_null(strstr(faults.last, "the file has no keys"));
    o.api_key_file = NULL;
    o.host = "192.0.2.1"; /* an address reserved for documentation */
    assert_int_equal(eng_serve_open(&s, &o), KN_EINVAL);
    assert_non_null(strstr(faults.last, "choose another host: an address of this machine"));
    assert_null(s);
    faults_listen_off();
}

/* With any_model an unknown name is answered by the model, under its own name. */
static void test_any_model(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    struct served v;
    o.any_model = true;
    serve_start(&v, &o);
    struct answer a = ask(&v, "POST", "/v1/completions", "",
                          "{\"model\":\"gpt-4o\",\"prompt\":\"One\",\"max_tokens\":2}");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\"model\":\"demo-draft-q8_0\""));
    answer_free(&a);
    assert_int_equal(ask_status(&v, "POST", "/api/show", "", "{\"model\":\"other\"}"), 200);
    assert_int_equal(ask_status(&v, "POST", "/api/show", "", "{}"), 400);
    serve_end(&v);
}

int main(void)
{
    struct kn_io io = kn_io_system;
    io.pread = gated_pread;
    kn_io_set(&io);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drain),           cmocka_unit_test(test_stop_at_once),
        cmocka_unit_test(test_manager_is_told), cmocka_unit_test(test_stop_while_loading),
        cmocka_unit_test(test_no_model),        cmocka_unit_test(test_no_place),
        cmocka_unit_test(test_any_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
