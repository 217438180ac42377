/* Connections without an engine: the table of rules over real sockets, limits of size and time, and clients that do not
 * read.  The server runs on a thread of its own. */
#include <event2/event.h>
#include <stdatomic.h>

#include "engine/serve/http.h"
#include "tests/engine/serve/http_rules.h"
#include "tests/engine/serve/serve_client.h"

#define BIG           ((size_t)1 << 20) /* bytes of the answer to /big */
#define MOST_ALL      (4 * BIG)
#define MOST_RECEIVED (1 << 20)
#define WIDE_BODY     ((size_t)1 << 20)
#define WIDE_RECEIVED (4 * (WIDE_BODY + RULES_MAX_HEADER))

/* wide: with large bodies; hasty: the same with a short limit of time */
static struct eng_http *http, *wide, *hasty;
static struct event_base *base;
static struct served served, broad, quick; /* the clients' side of http, wide and hasty */
static atomic_bool stop, is_full;
static atomic_int n_big, n_gone, n_held, n_second, n_wide;
static atomic_size_t most_unsent, now_unsent;
static atomic_uint_fast64_t n_cut, n_cut_wide;
static char *big;

static void look(void)
{
    size_t n = eng_http_unsent(http);
    if (n > atomic_load(&most_unsent))
        atomic_store(&most_unsent, n);
    atomic_store(&now_unsent, n);
    atomic_store(&n_cut, eng_http_n_cut(http));
    atomic_store(&n_cut_wide, eng_http_n_cut(wide));
    atomic_store(&n_wide, eng_http_connections(wide));
}

static int n_sent_piece;
static void send_piece(struct eng_exchange *x);

/* Answers with the request's body.  /same answers a body that is big with "the same".  /big has a large answer, /stream a stream of two such, and /hold none. */
static void on_request(void *arg, struct eng_exchange *x)
{
    const char *path = eng_http_path(x);
    size_t n, room;
    (void)arg;
    if (!strcmp(path, "/hold")) {
        atomic_fetch_add(&n_held, 1);
        return;
    }
    atomic_fetch_add(&n_second, !strcmp(path, "/second"));
    if (!strcmp(path, "/big")) {
        atomic_fetch_add(&n_big, 1);
        eng_http_answer(x, 200, "text/plain", big, BIG);
    } else if (!strcmp(path, "/pieces")) {
        n_sent_piece = 0;
        eng_http_begin(x, 200, "text/plain");
        send_piece(x);
    } else if (!strcmp(path, "/query")) {
        eng_http_answer(x, 200, "text/plain", eng_http_query(x), strlen(eng_http_query(x)));
    } else if (!strcmp(path, "/stream")) {
        eng_http_begin(x, 200, "text/event-stream");
        eng_http_chunk(x, big, BIG / 2);
        eng_http_end(x, big, BIG / 2);
    } else {
        char *body = eng_http_body(x, &n, &room);
        bool same = !strcmp(path, "/same") && n == WIDE_BODY && !memcmp(body, big, n) && room == n + 1;
        eng_http_answer(x, 200, "text/plain", same ? "the same" : body, same ? 8 : n);
        kn_free(body);
    }
    look();
}

/* ---- bodies that are read while they arrive, and an answer that is sent piece by piece ---------- */

#define MOST_STREAM ((size_t)4 << 20)
#define N_PIECE     40

static size_t streams(void *arg, const struct eng_exchange *x)
{
    (void)arg;
    return strncmp(eng_http_path(x), "/stream/", 8) ? 0 : MOST_STREAM;
}

static struct eng_exchange *later; /* its body is read by the timer */
static size_t n_read;              /* of the body that is read now */
static bool read_right;

/* Reads the bytes that have come, and answers at the end of the body: whether it is the beginning of `big`, repeated. */
static void read_body(struct eng_exchange *x)
{
    char piece[1000], text[64];
    enum eng_http_fault fault;
    for (size_t n; (n = eng_http_read(x, piece, sizeof piece, &fault)) > 0; n_read += n)
        for (size_t i = 0; i < n; i++)
            read_right = read_right && piece[i] == big[(n_read + i) % BIG];
    if (fault) {
        eng_http_answer_fault(x, fault);
    } else if (eng_http_has_ended(x)) {
        later = later == x ? NULL : later;
        snprintf(text, sizeof text, "%zu %s of %zu", n_read, read_right ? "right" : "wrong", eng_http_body_bytes(x));
        eng_http_answer(x, 200, "text/plain", text, strlen(text));
    }
}

static void on_body(void *arg, struct eng_exchange *x)
{
    (void)arg;
    if (!strcmp(eng_http_path(x), "/stream/refused")) {
        eng_http_answer(x, 403, "text/plain", "no", 2);
        return;
    }
    if (!eng_http_user(x)) {
        eng_http_set_user(x, big);
        n_read = 0;
        read_right = true;
    }
    if (!strcmp(eng_http_path(x), "/stream/later"))
        later = x;
    else
        read_body(x);
}

static void send_piece(struct eng_exchange *x)
{
    while (n_sent_piece < N_PIECE && eng_http_is_sent(x))
        eng_http_chunk(x, big + n_sent_piece++ * 20000, 20000);
    if (n_sent_piece == N_PIECE)
        eng_http_end(x, NULL, 0);
}

static void on_sent(void *arg, struct eng_exchange *x)
{
    (void)arg;
    if (!strcmp(eng_http_path(x), "/pieces"))
        send_piece(x);
}

static bool has_room(void *arg, size_t n)
{
    (void)arg;
    return n < WIDE_BODY / 2 || !atomic_load(&is_full);
}

static void on_gone(void *arg, struct eng_exchange *x)
{
    (void)arg;
    later = later == x ? NULL : later;
    atomic_fetch_add(&n_gone, 1);
}

static void on_timer(evutil_socket_t fd, short events, void *arg)
{
    (void)fd, (void)events, (void)arg;
    look();
    if (later)
        read_body(later);
    if (atomic_load(&stop))
        event_base_loopbreak(base);
}

static void *run(void *arg)
{
    (void)arg;
    event_base_dispatch(base);
    return NULL;
}

static struct event *timer;

static int setup(void **state)
{
    const struct timeval often = { 0, 5000 };
    (void)state;
    kn_log_set(NULL, KN_LOG_ERROR);
    base = event_base_new();
    timer = event_new(base, -1, EV_PERSIST, on_timer, NULL);
    event_add(timer, &often);
    big = malloc(BIG);
    for (size_t i = 0; i < BIG; i++)
        big[i] = (char)('a' + i % 23);
    struct eng_http_options o = { .host = "127.0.0.1",
                                  .allowed_host = "a",
                                  .max_header = RULES_MAX_HEADER,
                                  .max_body = RULES_MAX_BODY,
                                  .max_received = MOST_RECEIVED,
                                  .max_unsent = MOST_ALL,
                                  .max_unsent_all = MOST_ALL,
                                  .max_connection = 400,
                                  .patience_ms = 60000,
                                  .idle_ms = 60000,
                                  .tick_ms = 10,
                                  .streams = streams,
                                  .on_body = on_body,
                                  .on_sent = on_sent,
                                  .on_request = on_request,
                                  .on_gone = on_gone };
    if (eng_http_open(&http, base, &o))
        return -1;
    o.max_body = WIDE_BODY;
    o.max_received = WIDE_RECEIVED;
    o.tick_ms = 50; /* a client counts as stalled after 10 ticks: not one that only waits for a core */
    o.has_room = has_room;
    if (eng_http_open(&wide, base, &o))
        return -1;
    o.patience_ms = 300;
    if (eng_http_open(&hasty, base, &o))
        return -1;
    broad.port = eng_http_port(wide);
    quick.port = eng_http_port(hasty);
    served.port = eng_http_port(http);
    return pthread_create(&served.thread, NULL, run, NULL);
}

static int teardown(void **state)
{
    (void)state;
    atomic_store(&stop, true);
    pthread_join(served.thread, NULL);
    eng_http_close(http);
    eng_http_close(wide);
    eng_http_close(hasty);
    event_free(timer);
    event_base_free(base);
    free(big);
    return 0;
}

/* Connects with a small receive buffer. */
static int connect_small(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)served.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* The answer's status; then either the connection is closed without another byte, or it takes another request.
 * in_pieces: the head may have come before its body, then 100 may precede the answer. */
static void check_rule(const struct rule *r, int fd, bool in_pieces)
{
    struct answer a = read_answer(fd);
    char c;
    if (in_pieces && a.status == 100 && r->status == 200) {
        answer_free(&a);
        a = read_answer(fd);
    }
    if (a.status != r->status)
        fail_msg("RFC %s, %s: %d %s", r->section, r->rule, a.status, a.body);
    if (a.status == 200)
        assert_string_equal(a.body, r->body ? r->body : "");
    bool closes = a.status != 200 || r->closes;
    assert_int_equal(closes, strcasestr(a.head, "Connection: close") != NULL);
    answer_free(&a);
    if (closes) {
        ssize_t n = receive_bytes(fd, &c, 1);
        if (n != 0)
            fail_msg("RFC %s, %s: the connection is open", r->section, r->rule);
        return;
    }
    send_text(fd, "GET /next HTTP/1.1\r\n" H "\r\n");
    a = read_answer(fd);
    assert_int_equal(a.status, 200);
    answer_free(&a);
}

static void test_rules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (int at_once = 0; at_once < 2; at_once++) {
            const struct rule *r = &rules[i];
            size_t n = r->n ? r->n : strlen(r->bytes);
            int fd = connect_to(&served);
            for (size_t at = 0; at < n; at += at_once ? n : 1)
                send_bytes(fd, r->bytes + at, at_once ? n : 1);
            check_rule(r, fd, !at_once);
            close(fd);
        }
    assert_int_equal(atomic_load(&n_second), 0);
}

/* Requests on one connection are answered in order, at once or after another; an answer of any kind leaves the
 * connection ready for the next. */
static void test_in_order(void **state)
{
    static const char *const body[] = { "one", "", "two", "three" };
    (void)state;
    int fd = connect_to(&served);
    send_text(fd, POST "Content-Length: 3\r\n\r\none" GET "\r\n" CHUNKED "1;x\r\nt\r\n2\r\nwo\r\n0\r\nA: b\r\n\r\n");
    send_text(fd, "POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nthree");
    for (int i = 0; i < 4; i++) {
        struct answer a = read_answer(fd);
        assert_int_equal(a.status, 200);
        assert_string_equal(a.body, body[i]);
        assert_int_equal(strcasestr(a.head, "Connection: keep-alive") != NULL, i == 3);
        assert_non_null(strcasestr(a.head, "\r\nDate: "));
        answer_free(&a);
    }
    close(fd);
}

static void test_continue(void **state)
{
    (void)state;
    for (int chunked = 0; chunked < 2; chunked++) {
        char line[64];
        int fd = connect_to(&served);
        send_text(fd, POST "Expect: 100-continue\r\n");
        send_text(fd, chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "Content-Length: 2\r\n\r\n");
        assert_true(read_line(fd, line, sizeof line));
        assert_string_equal(line, "HTTP/1.1 100 Continue\r\n");
        assert_true(read_line(fd, line, sizeof line));
        send_text(fd, chunked ? "2\r\n{}\r\n0\r\n\r\n" : "{}");
        struct answer a = read_answer(fd);
        assert_int_equal(a.status, 200);
        assert_string_equal(a.body, "{}");
        answer_free(&a);
        close(fd);
    }
    int fd = connect_to(&served); /* nothing to wait for */
    send_text(fd, GET "Expect: 100-continue\r\n\r\n");
    struct answer a = read_answer(fd);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fd);
}

/* A request that does not arrive in time gets 408, whichever part is missing. */
static void test_slow(void **state)
{
    static const char *const part[] = { "G", "GET / HTTP/1.1\r\nHost", POST "Content-Length: 2\r\n\r\n{",
                                        CHUNKED "2\r\n", CHUNKED "2\r\n{}\r\n0\r\nA" };
    enum { N = sizeof part / sizeof *part };
    int fd[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        fd[i] = connect_to(&quick);
        send_text(fd[i], part[i]);
    }
    for (int i = 0; i < N; i++) {
        struct answer a = read_answer(fd[i]);
        assert_int_equal(a.status, 408);
        answer_free(&a);
        read_to_end(fd[i]);
        close(fd[i]);
    }
}

/* A refused request is answered also while the client goes on sending its body. */
static void test_refused_while_sending(void **state)
{
    enum { N = 4 << 20 };
    (void)state;
    char *body = calloc(1, N);
    int fd = connect_to(&served);
    send_text(fd, POST "Content-Length: 4194304\r\n\r\n");
    send_bytes(fd, body, N);
    struct answer a = read_answer(fd);
    assert_int_equal(a.status, 413);
    answer_free(&a);
    read_to_end(fd);
    close(fd);
    free(body);
}

/* Above the limit of all requests that are being received, the largest are refused, and the others are answered. */
static void test_too_much_received(void **state)
{
    enum { N = MOST_RECEIVED / RULES_MAX_HEADER + 8 }; /* headers near their limit: 8 too many */
    int fd[N], n_refused = 0;
    char filler[RULES_MAX_HEADER - 1000];
    uint64_t cut = atomic_load(&n_cut);
    (void)state;
    memset(filler, 'f', sizeof filler);
    for (int i = 0; i < N; i++) {
        fd[i] = connect_to(&served);
        send_text(fd[i], "GET / HTTP/1.1\r\n" H "A: ");
        send_bytes(fd[i], filler, sizeof filler);
    }
    while (atomic_load(&n_cut) == cut) /* else the first answers could make room for the last headers */
        usleep(1000);
    for (int i = 0; i < N; i++) {
        send_text(fd[i], "\r\n\r\n");
        struct answer a = read_answer(fd[i]);
        assert_true(a.status == 200 || a.status == 503);
        n_refused += a.status == 503;
        answer_free(&a);
        close(fd[i]);
    }
    assert_true(n_refused > 0 && n_refused < N / 2);
}

/* ---- bodies that wait for memory -------------------------------------------------------------- */

static void begin_body(int fd)
{
    char head[200];
    snprintf(head, sizeof head, "POST /same HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", WIDE_BODY);
    send_text(fd, head);
}

static void check_same(int fd)
{
    struct answer a = read_answer(fd);
    if (a.status != 200)
        fail_msg("%d %s", a.status, a.body);
    assert_string_equal(a.body, "the same");
    answer_free(&a);
}

enum { SENDERS = 12 }; /* of three times the bytes that may be received at once */
static pthread_barrier_t together;

static void *send_wide(void *arg)
{
    int fd = *(int *)arg;
    size_t n = WIDE_BODY / 16;
    begin_body(fd);
    send_bytes(fd, big, n);
    pthread_barrier_wait(&together);
    send_bytes(fd, big + n, WIDE_BODY - n);
    return NULL;
}

/* Clients that together send more than may be received wait for each other, and none is refused. */
static void test_bodies_take_turns(void **state)
{
    pthread_t thread[SENDERS];
    int fd[SENDERS];
    (void)state;
    pthread_barrier_init(&together, NULL, SENDERS);
    for (int i = 0; i < SENDERS; i++) {
        fd[i] = connect_to(&broad);
        assert_int_equal(pthread_create(&thread[i], NULL, send_wide, &fd[i]), 0);
    }
    for (int i = 0; i < SENDERS; i++)
        check_same(fd[i]);
    for (int i = 0; i < SENDERS; i++) {
        pthread_join(thread[i], NULL);
        close(fd[i]);
    }
    pthread_barrier_destroy(&together);
}

/* Clients that stop sending when they have all the memory: one is refused as soon as another needs it, and one that leaves
 * makes room, too. */
static void test_stalled_bodies(void **state)
{
    enum { N = 4 };
    int fd[N], n_refused = 0;
    uint64_t cut = atomic_load(&n_cut_wide);
    char c;
    (void)state;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            fd[i] = connect_to(&broad);
            begin_body(fd[i]);
            send_bytes(fd[i], big, WIDE_BODY - 1);
        }
        if (round)
            for (int i = 0; i < N; i++)
                close(fd[i]);
        int other = connect_to(&broad);
        pthread_barrier_init(&together, NULL, 1);
        send_wide(&other);
        check_same(other);
        close(other);
        while (!round && atomic_load(&n_cut_wide) == cut) /* the other may have been before the last of them */
            usleep(1000);
        for (int i = 0; i < N && !round; i++) {
            n_refused += recv(fd[i], &c, 1, MSG_DONTWAIT) == 1;
            close(fd[i]);
        }
        pthread_barrier_destroy(&together);
    }
    if (n_refused < 1 || n_refused >= N)
        fail_msg("%d of %d were refused", n_refused, N);
}

/* The favoured one stops sending when the others that had the rest have left.  Then less than half of the memory is taken, but
 * a body that would need more than half must not wait until the favoured one is timed out. */
static void test_favoured_stalls(void **state)
{
    enum { A, B, FAVOURED, SMALL, N };
    int fd[N], other;
    char head[200];
    (void)state;
    pthread_barrier_init(&together, NULL, 1);
    for (int i = 0; i < N; i++) {
        fd[i] = connect_to(&broad);
        size_t n = i == SMALL ? WIDE_BODY / 4 : WIDE_BODY;
        snprintf(head, sizeof head, "POST / HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n", n);
        send_text(fd[i], head);
        send_bytes(fd[i], big, n - 1);
        usleep(50000); /* so that the server has most likely read it before the next */
    }
    close(fd[A]), close(fd[B]);
    other = connect_to(&broad);
    send_wide(&other);
    check_same(other);
    close(other);
    close(fd[FAVOURED]), close(fd[SMALL]);
    pthread_barrier_destroy(&together);
}

/* A whole body waits until there is room for it, beside requests that need none, and is refused after the limit of time.
 * A client may leave while it waits: its connection ends then. */
static void test_whole_body_waits(void **state)
{
    int fd[3];
    (void)state;
    atomic_store(&is_full, true);
    pthread_barrier_init(&together, NULL, 1);
    for (int i = 0; i < 3; i++) {
        fd[i] = connect_to(i == 2 ? &quick : &broad);
        send_wide(&fd[i]);
    }
    struct answer a = read_answer(fd[2]);
    assert_int_equal(a.status, 503);
    answer_free(&a);
    close(fd[0]);
    assert_int_equal(ask_status(&broad, "POST", "/", "", "short"), 200);
    while (atomic_load(&n_wide) > 1) /* the limit of time would end the other one, too */
        usleep(1000);
    atomic_store(&is_full, false);
    check_same(fd[1]);
    close(fd[1]), close(fd[2]);
    pthread_barrier_destroy(&together);
}

/* on_gone for a client that leaves while its request is being answered, also with bytes of a next request, and with so many
 * that the server reads no more. */
static void test_gone(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        int fd = connect_to(&served), held = atomic_load(&n_held), gone = atomic_load(&n_gone);
        send_text(fd, "GET /hold HTTP/1.1\r\n" H "\r\n");
        if (i == 1)
            send_text(fd, GET "\r\n");
        if (i == 3)
            send_bytes(fd, big, 100000);
        while (atomic_load(&n_held) == held)
            usleep(1000);
        if (i == 2)
            shutdown(fd, SHUT_WR);
        else
            close(fd);
        while (atomic_load(&n_gone) == gone)
            usleep(1000);
        if (i == 2)
            close(fd);
    }
}

/* A client that sends many requests and reads nothing has one unsent answer. */
static void test_answers_wait(void **state)
{
    (void)state;
    int fd = connect_small(), before = atomic_load(&n_big);
    for (int i = 0; i < 40; i++)
        send_text(fd, "GET /big HTTP/1.1\r\n" H "\r\n");
    while (atomic_load(&now_unsent) == 0)
        usleep(1000);
    assert_int_equal(atomic_load(&n_big), before + 1);
    close(fd);
    fd = connect_to(&served);
    for (int i = 0; i < 3; i++)
        send_text(fd, "GET /big HTTP/1.1\r\n" H "\r\n");
    for (int i = 0; i < 3; i++) {
        struct answer a = read_answer(fd);
        assert_int_equal(a.n_body, BIG);
        assert_memory_equal(a.body, big, BIG);
        answer_free(&a);
    }
    close(fd);
}

/* The unsent bytes of all connections stay within their limit, whichever kind of answer they are; clients that do not
 * read are cut, and a client that reads gets its answer. */
static void test_unsent(void **state)
{
    enum { N = 60 };
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        int fd[N];
        uint64_t cut = atomic_load(&n_cut);
        const char *head = stream ? "GET /stream HTTP/1.1\r\n" H "\r\n" : "GET /big HTTP/1.1\r\n" H "\r\n";
        for (int i = 0; i < N; i++) {
            fd[i] = connect_small();
            send_text(fd[i], head);
        }
        int good = connect_to(&served);
        send_text(good, head);
        struct answer a = read_answer(good);
        assert_int_equal(a.n_body, BIG);
        answer_free(&a);
        while (atomic_load(&n_cut) == cut)
            usleep(1000);
        for (int i = 0; i < N; i++)
            close(fd[i]);
        close(good);
        while (atomic_load(&now_unsent) > 0)
            usleep(1000);
    }
    assert_true(atomic_load(&most_unsent) > BIG / 2);
    assert_true(atomic_load(&most_unsent) <= MOST_ALL);
}

/* The head of a request and n bytes of its body, chunked or not; the answer is read by the caller. */
static int send_body(const char *path, size_t n, bool chunked, const char *headers)
{
    char head[300];
    int fd = connect_to(&served);
    snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: a\r\n%s%s", path, headers,
             chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "");
    send_text(fd, head);
    if (!chunked) {
        snprintf(head, sizeof head, "Content-Length: %zu\r\n\r\n", n);
        send_text(fd, head);
    }
    for (size_t at = 0, k; at < n; at += k) {
        k = n - at < 50000 ? n - at : 50000;
        k = k < BIG - at % BIG ? k : BIG - at % BIG;
        snprintf(head, sizeof head, "%zx\r\n", k);
        if (chunked)
            send_text(fd, head);
        send_bytes(fd, big + at % BIG, k);
        if (chunked)
            send_text(fd, "\r\n");
    }
    if (chunked)
        send_text(fd, "0\r\n\r\n");
    return fd;
}

static void assert_answer(int fd, int status, const char *text)
{
    struct answer a = read_answer(fd);
    if (a.status != status || !strstr(a.body, text))
        fail_msg("%d %s, not %d %s", a.status, a.body, status, text);
    answer_free(&a);
}

/* A body that is larger than the memory for requests is read while it arrives, at the caller's pace, and the connection
 * takes the next request. */
static void test_body_in_pieces(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        bool chunked;
        size_t n;
        const char *answer;
    } table[] = {
        { "/stream/now", false, 3000000, "3000000 right of 3000000" },
        { "/stream/now", true, 3000000, "3000000 right of 0" },
        { "/stream/later", false, 3000000, "3000000 right of 3000000" },
        { "/stream/later", true, 1500000, "1500000 right of 0" },
        { "/stream/now", false, 0, "0 right of 0" },
        { "/stream/now", true, 0, "0 right of 0" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int fd = send_body(table[i].path, table[i].n, table[i].chunked, "");
        assert_answer(fd, 200, table[i].answer);
        send_text(fd, "GET /query?a=b&c HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_answer(fd, 200, "a=b&c");
        close(fd);
    }
}

static void test_body_in_pieces_is_refused(void **state)
{
    (void)state;
    int fd = send_body("/stream/refused", 200000, false, ""); /* the answer comes before the end of the body */
    struct answer refused = read_answer(fd);
    assert_true(refused.status == 403 && strcasestr(refused.head, "Connection: close"));
    answer_free(&refused);
    read_to_end(fd);
    close(fd);
    fd = connect_to(&served);
    send_text(fd, "POST /stream/now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nx\r\n");
    assert_answer(fd, 400, "");
    read_to_end(fd);
    close(fd);
    fd = connect_to(&served);
    send_text(fd, "POST /stream/now HTTP/1.1\r\nHost: a\r\nContent-Length: 4194305\r\n\r\n");
    assert_answer(fd, 413, "");
    close(fd);
    fd = connect_to(&served);
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4194304\r\n\r\n");
    assert_answer(fd, 413, "");
    close(fd);
    fd = connect_to(&served);
    send_text(fd, "POST /stream/now HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    assert_answer(fd, 100, "");
    send_bytes(fd, big, 3);
    assert_answer(fd, 200, "3 right of 3");
    close(fd);
    int n = atomic_load(&n_gone);
    fd = connect_to(&served);
    send_text(fd, "POST /stream/now HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\nabc");
    close(fd);
    while (atomic_load(&n_gone) == n)
        usleep(1000);
}

/* An answer whose pieces are made as the client takes them. */
static void test_answer_in_pieces(void **state)
{
    (void)state;
    struct answer a = ask(&served, "GET", "/pieces", "", NULL);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.n_body, 20000 * N_PIECE);
    assert_memory_equal(a.body, big, a.n_body);
    answer_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_refused_while_sending),
        cmocka_unit_test(test_too_much_received),
        cmocka_unit_test(test_bodies_take_turns),
        cmocka_unit_test(test_stalled_bodies),
        cmocka_unit_test(test_favoured_stalls),
        cmocka_unit_test(test_whole_body_waits),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_answers_wait),
        cmocka_unit_test(test_unsent),
        cmocka_unit_test(test_body_in_pieces),
        cmocka_unit_test(test_body_in_pieces_is_refused),
        cmocka_unit_test(test_answer_in_pieces),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
