/* The input is the bytes of a connection, in pieces of any size, which may end at any time, while answers come at once,
 * in parts, or later. The first byte selects the variant; after every piece but the last the
 * event loop runs once. At the end the connection must be closed, and all of its memory
 * released. */
#include "engine/serve/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { STREAM = 1, LATER = 2, RESET = 4, HEADERS = 8, HALF_CLOSE = 16 };

static struct event_base *base;
static struct eng_http *http;
static struct eng_exchange *held;
static unsigned mode;

static void answer(struct eng_exchange *x)
{
    static const char text[] = "{\"status\":\"ok\"}";
    if (mode & HEADERS)
        eng_http_set_header(x, "x-request-id", "0123");
    if (!(mode & STREAM)) {
        eng_http_answer(x, 200, "application/json", text, sizeof text - 1);
        return;
    }
    eng_http_begin(x, 200, "text/event-stream");
    for (int i = 0; i < 3; i++)
        eng_http_chunk(x, text, sizeof text - 1);
    eng_http_end(x, NULL, 0);
}

static void on_request(void *arg, struct eng_exchange *x)
{
    size_t n, room;
    (void)arg;
    if (!eng_http_method(x)[0] || eng_http_path(x)[0] == 0 || !eng_http_peer(x)[0])
        abort();
    (void)eng_http_header(x, "Authorization");
    char *body = eng_http_body(x, &n, &room);
    if (!body || body[n] != 0 || n > 4096 || n > room)
        abort();
    kn_free(body);
    if (mode & LATER)
        held = held ? (abort(), held) : x; /* one request at a time on a connection */
    else
        answer(x);
}

static void on_gone(void *arg, struct eng_exchange *x)
{
    (void)arg;
    if (held == x)
        held = NULL;
}

static void on_fault(void *arg, struct eng_exchange *x, enum eng_http_fault fault)
{
    (void)arg;
    if (eng_http_fault_status(fault) < 400)
        abort();
    eng_http_answer_fault(x, fault);
}

static void open_server(void)
{
    signal(SIGPIPE, SIG_IGN); /* as the server has it */
    base = event_base_new();
    kn_log_set(NULL, KN_LOG_ERROR);
    if (!base || eng_http_open(&http, base,
                               &(struct eng_http_options){ .host = "127.0.0.1",
                                                           .allowed_host = "a",
                                                           .max_header = 512,
                                                           .max_body = 4096,
                                                           .max_received = 65536,
                                                           .max_unsent = 65536,
                                                           .max_unsent_all = 65536,
                                                           .max_connection = 4,
                                                           .patience_ms = 2000,
                                                           .idle_ms = 2000,
                                                           .tick_ms = 1,
                                                           .on_request = on_request,
                                                           .on_gone = on_gone,
                                                           .on_fault = on_fault }))
        abort();
}

static void turn(void)
{
    struct eng_exchange *x = held;
    event_base_loop(base, EVLOOP_NONBLOCK);
    if (x && held == x) {
        held = NULL;
        answer(x);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char sink[4096];
    if (!base)
        open_server();
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)eng_http_port(http)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a))
        abort();
    mode = n ? data[0] : 0;
    for (size_t at = 1; at < n;) {
        size_t piece = 1 + data[at] * (size_t)(mode >> 5);
        piece = piece < n - at ? piece : n - at;
        (void)!send(fd, data + at, piece, MSG_NOSIGNAL | MSG_DONTWAIT);
        at += piece;
        turn();
    }
    struct linger at_once = { 1, 0 };
    if (mode & RESET)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (mode & HALF_CLOSE) {
        shutdown(fd, SHUT_WR);
        for (int i = 0; i < 100 && eng_http_connections(http) > 0; i++) {
            turn();
            while (recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0)
                ;
        }
    }
    close(fd);
    while (eng_http_connections(http) > 0)
        turn();
    if (held)
        abort();
    return 0;
}
