/* The load generator's reader of event streams (evals/load/call.h): an answer is read correctly for every way to cut it
 * into pieces, and with any characters in its text. */
#include "evals/load/call.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static int n_gap;

static void on_gap(struct call *c, uint64_t gap_ns) { n_gap += c->n_event > 0 && gap_ns < UINT64_MAX; }

/* Receives the answer over a socket pair, `piece` bytes at a time. */
static struct call answered(const char *answer, size_t piece)
{
    int ends[2];
    size_t n = strlen(answer);
    bool over = false;
    struct call c = { .n_token = -1, .n_prompt = -1, .on_gap = on_gap };
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    c.fd = ends[0];
    c.n_out = 4;
    assert_non_null(c.out = strdup("POST"));
    n_gap = 0;
    for (size_t at = 0; at < n && !over; at += piece) {
        size_t some = n - at < piece ? n - at : piece;
        assert_int_equal(send(ends[1], answer + at, some, MSG_NOSIGNAL), some);
        over = call_io(&c);
    }
    char asked[8];
    assert_int_equal(recv(ends[1], asked, sizeof asked, 0), 4);
    close(ends[1]);
    assert_true(over || call_io(&c));
    call_close(&c);
    return c;
}

#define EVENT(text) "data: {\"choices\":[{\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define HEAD        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
#define DONE        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n"

static void any_text_is_counted(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 600; piece += 7) {
        struct call c = answered(HEAD EVENT("a") EVENT("\\u0000") EVENT("\xc3\xa9\\ud83d\\ude00") DONE, piece);
        assert_string_equal(c.error, "");
        assert_int_equal(c.n_event, 3);
        assert_int_equal(n_gap, 2);
        assert_int_equal(c.n_token, 3);
        assert_int_equal(c.n_prompt, 7);
    }
}

static void chunks_cut_lines_anywhere(void **state)
{
    (void)state;
    char answer[1024] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    const char *body = EVENT("a") ": on its way\n\n" EVENT("b") DONE;
    for (size_t at = 0, n = strlen(body); at < n; at += 13) {
        size_t some = n - at < 13 ? n - at : 13, used = strlen(answer);
        snprintf(answer + used, sizeof answer - used, "%zx\r\n%.*s\r\n", some, (int)some, body + at);
    }
    strcat(answer, "0\r\n\r\n");
    for (size_t piece = 1; piece < 600; piece += 7) {
        struct call c = answered(answer, piece);
        assert_string_equal(c.error, "");
        assert_int_equal(c.n_event, 2);
        assert_int_equal(c.n_token, 3);
    }
}

static void what_fails_says_why(void **state)
{
    (void)state;
    struct {
        const char *answer, *error;
    } cases[] = {
        { HEAD EVENT("a"), "the stream ended before [DONE]" },
        { HEAD "data: {\"choices\n\n", "an event that is no JSON" },
        { HEAD EVENT("a") "data: {\"error\":{\"message\":\"no more\"}}\n\ndata: [DONE]\n\n", "no more" },
        { "HTTP/1.1 429 Too Many Requests\r\n\r\n{\"error\":1}", "{\"error\":1}" },
        { "HTTP/1.1 503 Busy\r\n\r\n", "HTTP status 503" },
        { "hello\r\n", "an answer that is no HTTP" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(answered(cases[i].answer, 5).error, cases[i].error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_text_is_counted),
        cmocka_unit_test(chunks_cut_lines_anywhere),
        cmocka_unit_test(what_fails_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
