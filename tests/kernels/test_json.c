/* JSON: kn_json_load() returns the value and the error of json_loadb().  Whichever allocation fails, it fails for memory, and
 * jansson neither writes beyond its memory nor ends the program.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include <malloc.h>

#include "kernels/json.h"
#include "tests/faults.h"

#define ROOM 700

/* ---- texts --------------------------------------------------------------------------------------------- */

static uint64_t random_state = 3;
static int random_below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

static char *put(char *p, const char *s) { return p + strlen(strcpy(p, s)); }

/* A string of at least n bytes in the text. */
static char *put_string(char *p, int n)
{
    static const char *const piece[] = { "a",
                                         "b",
                                         "c",
                                         " ",
                                         ",",
                                         "]",
                                         "\\\"",
                                         "\\\\",
                                         "\\n",
                                         "\\u00e9",
                                         "\xc3\xa9",
                                         "\xe2\x82\xac",
                                         "\xf0\x9f\x98\x80",
                                         "\\ud83d\\ude00" };
    const char *end = p + n;
    *p++ = '"';
    while (p < end)
        p = put(p, piece[random_below(random_below(3) ? 4 : 14)]);
    *p++ = '"';
    return p;
}

/* A number of n digits. */
static char *put_number(char *p, int n)
{
    n = n % 200 + 1; /* else it may be too big */
    int point = random_below(3) || n < 3 ? n : random_below(n - 2) + 1;
    *p++ = '1';
    for (int i = 1; i < n; i++) {
        *p++ = (char)('0' + random_below(10));
        if (i == point)
            *p++ = '.';
    }
    return n > 18 && point >= n ? put(p, "e2") : p;
}

static char *put_value(char *p, int n)
{
    static const char *const plain[] = { "true", "false", "null", "{}", "[[]]", "7", "\"\"" };
    int kind = random_below(5);
    return kind == 0 ? put(p, plain[random_below(7)]) : kind == 1 ? put_number(p, n) : put_string(p, n);
}

/* An array of values of up to `longest` bytes, some in an object, some with white space around them. */
static size_t make_text(char *text, int longest)
{
    char *p = put(text, "[");
    for (int i = 0, n = 1 + random_below(4); i < n; i++) {
        bool in_object = !random_below(4);
        p = put(p, i ? "," : "");
        p = put(p, random_below(3) ? "" : " \n");
        if (in_object)
            p = put(put_string(put(p, "{"), 1 + random_below(longest)), ":");
        p = put_value(p, 1 + random_below(longest));
        p = put(p, in_object ? "}" : "");
        p = put(p, random_below(3) ? "" : "\t");
    }
    return (size_t)(put(p, "]") - text);
}

/* ---- memory with guards behind it ------------------------------------------------------------------------ */

#define GUARD 32

static size_t *size_at_end(void *p) { return (size_t *)(void *)((char *)p + malloc_usable_size(p) - sizeof(size_t)); }

static void *guarded_alloc(size_t bytes)
{
    char *p = faults_alloc(kn_align_up(bytes, 8) + GUARD);
    if (!p)
        return NULL;
    memset(p + bytes, 0xA5, malloc_usable_size(p) - bytes);
    *size_at_end(p) = bytes;
    return p;
}

static void guarded_free(void *p)
{
    for (uint8_t *at = p ? (uint8_t *)p + *size_at_end(p) : NULL; p && at < (uint8_t *)size_at_end(p); at++)
        if (*at != 0xA5)
            fail_msg("a byte was written behind a block of %zu bytes", *size_at_end(p));
    faults_free(p);
}

static void guard(long nth, enum fault_way way)
{
    static struct kn_io io;
    faults_at(FAULT_ALLOC, nth, way, ENOMEM);
    io = *kn_io();
    io.alloc = guarded_alloc;
    io.free = guarded_free;
    kn_io_set(&io);
}

/* ---- tests ----------------------------------------------------------------------------------------------- */

static void same_error(const char *text, const json_error_t *a, const json_error_t *b)
{
    if (a->line != b->line || a->column != b->column || a->position != b->position || strcmp(a->text, b->text))
        fail_msg("%s: line %d, %d, %d: %s; wanted line %d, %d, %d: %s", text, a->line, a->column, a->position, a->text,
                 b->line, b->column, b->position, b->text);
}

/* Also of text that is damaged: a byte is replaced, or the end is missing. */
static void it_gives_what_jansson_gives(void **state)
{
    (void)state;
    static char text[16 * ROOM];
    int n_valid = 0;
    for (int i = 0; i < 20000; i++) {
        size_t n = make_text(text, 1 + random_below(i % 2 ? 40 : ROOM));
        if (i % 3 == 1)
            text[random_below((int)n)] = "\"\\,]}u1.e\n\xc3"[random_below(11)];
        if (i % 7 == 1)
            n = (size_t)random_below((int)n);
        json_error_t got, wanted;
        json_t *a = kn_json_load(text, n, JSON_ALLOW_NUL, &got), *b = json_loadb(text, n, JSON_ALLOW_NUL, &wanted);
        if (!a != !b || (a && !json_equal(a, b)))
            fail_msg("%.*s: another value", (int)n, text);
        if (!a)
            same_error(text, &got, &wanted);
        n_valid += a != NULL;
        json_decref(a);
        json_decref(b);
    }
    assert_in_range(n_valid, 10000, 19000);
}

/* Tokens of each length around those at which jansson's buffer grows. */
static void whichever_allocation_fails(void **state)
{
    (void)state;
    static char text[16 * ROOM];
    long n_failed = 0;
    for (int i = 0; i < 1500; i++) {
        size_t n = make_text(text, i % 4 ? 20 + i % 24 : i % 160 + 1);
        faults_off();
        json_t *wanted = kn_json_load(text, n, 0, NULL);
        assert_non_null(wanted);
        for (int lasting = 0; lasting < 2; lasting++)
            for (long nth = 1;; nth++) {
                json_error_t e;
                guard(nth, lasting ? FAULT_LASTS : FAULT_ERROR);
                json_t *got = kn_json_load(text, n, 0, &e);
                assert_true(faults.struck ? !got && kn_json_lacks_memory(&e) : json_equal(got, wanted));
                json_decref(got);
                assert_true(faults_clean());
                if (!faults.struck)
                    break;
                n_failed++;
            }
        faults_off();
        json_decref(wanted);
    }
    assert_true(n_failed > 10000);
}

/* Also for text that is no JSON, which ends in a token of any length. */
static void whichever_allocation_fails_in_damaged_text(void **state)
{
    (void)state;
    static char text[16 * ROOM];
    for (int i = 0; i < 1500; i++) {
        size_t n = make_text(text, 20 + i % 24);
        text[random_below((int)n)] = "\"\\,]}u1.e\n\xc3"[random_below(11)];
        for (long nth = 1;; nth++) {
            guard(nth, i % 2 ? FAULT_LASTS : FAULT_ERROR);
            json_t *got = kn_json_load(text, n, 0, NULL);
            assert_true(!faults.struck || !got);
            json_decref(got);
            assert_true(faults_clean());
            if (!faults.struck)
                break;
        }
        faults_off();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_gives_what_jansson_gives),
        cmocka_unit_test(whichever_allocation_fails),
        cmocka_unit_test(whichever_allocation_fails_in_damaged_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
