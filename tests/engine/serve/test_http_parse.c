/* The parser of requests by the table of rules (http_rules.h), with the bytes in one piece and in pieces of every size;
 * and every prefix and every changed byte of the table's cases, which must end in an answer within bounds.
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/serve/http_parse.h"
#include "tests/engine/serve/http_rules.h"

struct result {
    enum eng_http_fault fault;
    bool whole, keep_alive;
    char body[RULES_MAX_BODY + 1];
    size_t n_body, taken;
};

static size_t length_of(const struct rule *r) { return r->n ? r->n : strlen(r->bytes); }

/* Reads the body behind a head; at[n] are the bytes that follow it. */
static void read_body(struct result *out, const struct eng_http_head *head, const char *at, size_t n, size_t piece)
{
    struct eng_http_chunks chunks = { 0 };
    if (!head->chunked) {
        assert_true(head->n_body <= RULES_MAX_BODY);
        out->whole = n >= head->n_body;
        out->n_body = out->whole ? head->n_body : n;
        memcpy(out->body, at, out->n_body);
        out->taken += out->n_body;
        return;
    }
    for (size_t i = 0; i < n && !out->fault && !chunks.done;) {
        const char *data = NULL;
        size_t n_data, k = piece < n - i ? piece : n - i;
        size_t taken = eng_http_chunks_take(&chunks, at + i, k, RULES_MAX_BODY, RULES_MAX_HEADER, &data, &n_data,
                                            &out->fault);
        assert_true(taken <= k && n_data <= taken && out->n_body + n_data <= RULES_MAX_BODY);
        assert_true(taken > 0 || out->fault);
        if (n_data)
            memcpy(out->body + out->n_body, data, n_data);
        out->n_body += n_data;
        i += taken;
        out->taken += taken;
    }
    out->whole = chunks.done;
}

/* Reads a request in pieces of this size.  Copies are exact allocations: a sanitizer sees an access beyond them. */
static struct result read_pieces(const char *bytes, size_t n, size_t piece)
{
    struct result out = { 0 };
    struct eng_http_scan scan = { 0 };
    struct eng_http_head head;
    char *copy = malloc(n + 1);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    while (out.taken < n && !scan.done && !out.fault) {
        size_t k = piece < n - out.taken ? piece : n - out.taken;
        out.taken += eng_http_scan(&scan, copy + out.taken, k, RULES_MAX_HEADER, &out.fault);
    }
    if (!out.fault && scan.done) {
        char *text = malloc(out.taken);
        assert_non_null(text);
        memcpy(text, copy, out.taken);
        out.fault = eng_http_head_parse(&head, text, out.taken, RULES_MAX_BODY);
        out.keep_alive = head.keep_alive;
        if (!out.fault)
            assert_true(head.method && (head.path[0] == '/' || !strcmp(head.path, "*")));
        if (!out.fault)
            read_body(&out, &head, copy + out.taken, n - out.taken, piece);
        free(text);
    }
    out.body[out.n_body] = 0;
    free(copy);
    return out;
}

static void test_rules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct rule *r = &rules[i];
        int wanted = r->status == 421 ? 200 : r->status; /* the names of the server are not the parser's matter */
        for (size_t piece = 1; piece <= length_of(r); piece++) {
            struct result a = read_pieces(r->bytes, length_of(r), piece);
            int status = eng_http_fault_status(a.fault);
            if (status != wanted || (wanted == 200 && !a.whole))
                fail_msg("RFC %s, %s: %d in pieces of %zu (%s)", r->section, r->rule, status, piece,
                         eng_http_fault_text(a.fault));
            if (status != 200)
                continue;
            if (a.keep_alive == r->closes || strcmp(a.body, r->body ? r->body : "") != 0)
                fail_msg("RFC %s, %s: body '%s', keep-alive %d", r->section, r->rule, a.body, a.keep_alive);
            assert_int_equal(a.taken, length_of(r));
        }
    }
}

/* A case with any byte replaced by any other, and any prefix of it: the parser ends, within its bounds. */
static void test_changed(void **state)
{
    static const char other[] = "\0\t\n\r \"%+,-0:;=AZaz\\\x7f\x80\xff";
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        size_t n = length_of(&rules[i]);
        char *text = malloc(n);
        assert_non_null(text);
        for (size_t at = 0; at < n; at++) {
            (void)read_pieces(rules[i].bytes, at, at + 1);
            for (size_t k = 0; k < sizeof other - 1; k++) {
                memcpy(text, rules[i].bytes, n);
                text[at] = other[k];
                struct result a = read_pieces(text, n, n), b = read_pieces(text, n, 1);
                assert_true(a.fault == b.fault && a.taken == b.taken && a.whole == b.whole);
                assert_string_equal(a.body, b.body);
            }
        }
        free(text);
    }
}

/* The status for a head of `before`, n times `again`, and `after`. */
static int status_of(const char *before, const char *again, int n, const char *after)
{
    size_t m = strlen(again), at = strlen(before);
    char *text = malloc(at + (size_t)n * m + strlen(after) + 1);
    assert_non_null(text);
    memcpy(text, before, at);
    for (int i = 0; i < n; i++, at += m)
        memcpy(text + at, again, m);
    strcpy(text + at, after);
    int status = eng_http_fault_status(read_pieces(text, strlen(text), strlen(text)).fault);
    free(text);
    return status;
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(status_of("GET /", "a", ENG_HTTP_TARGET_BYTES - 1, " HTTP/1.1\r\n" H "\r\n"), 200);
    assert_int_equal(status_of("GET /", "a", ENG_HTTP_TARGET_BYTES, " HTTP/1.1\r\n" H "\r\n"), 414);
    assert_int_equal(status_of("GET /", "a", RULES_MAX_HEADER, ""), 414);
    assert_int_equal(status_of(GET, "A: b\r\n", ENG_HTTP_FIELDS - 1, "\r\n"), 200);
    assert_int_equal(status_of(GET, "A: b\r\n", ENG_HTTP_FIELDS, "\r\n"), 431);
    assert_int_equal(status_of(GET "A: ", "b", RULES_MAX_HEADER - (int)sizeof(GET "A: \r\n\r\n") + 1, "\r\n\r\n"), 200);
    assert_int_equal(status_of(GET "A: ", "b", RULES_MAX_HEADER - (int)sizeof(GET "A: \r\n\r\n") + 2, "\r\n\r\n"), 431);
    assert_int_equal(status_of(CHUNKED "0", ";a", RULES_MAX_HEADER / 2, "\r\n\r\n"), 200);
    assert_int_equal(status_of(CHUNKED "0", ";a", RULES_MAX_HEADER / 2 + 1, "\r\n\r\n"), 413);
    assert_int_equal(status_of(CHUNKED "0\r\n", "A:\r\n", RULES_MAX_HEADER / 4 - 1, "\r\n"), 200);
    assert_int_equal(status_of(CHUNKED "0\r\n", "A:\r\n", RULES_MAX_HEADER / 4 + 1, "\r\n"), 431);
}

static void test_head(void **state)
{
    static const char text[] =
        "POST HTTP://b:80/c/d?e=f HTTP/1.1\r\nHost: a\r\nX-One:  two\tthree \t\r\nx-one: four\r\n"
        "Expect: 100-continue\r\nContent-Length: 7\r\n\r\n";
    struct eng_http_head h;
    char *copy = strdup(text);
    (void)state;
    assert_int_equal(eng_http_head_parse(&h, copy, strlen(text), RULES_MAX_BODY), ENG_HTTP_OK);
    assert_string_equal(h.method, "POST");
    assert_string_equal(h.path, "/c/d");
    assert_string_equal(h.host, "b:80");
    assert_int_equal(h.n_field, 5);
    assert_string_equal(h.field[1].name, "X-One");
    assert_string_equal(h.field[1].value, "two\tthree");
    assert_string_equal(h.field[2].value, "four");
    assert_true(h.keep_alive && h.expects_continue && !h.old && !h.chunked);
    assert_int_equal(h.n_body, 7);
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
