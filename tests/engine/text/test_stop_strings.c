/* Stop strings. The released text depends on the text alone, not on the pieces it is fed in; the filter holds back only
 * bytes that may still become a stop string.
 *
 * The model in this test searches the whole text so far: the occurrence that ends first wins, and of several that end
 * together the longest.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/text/text.h"
#include "tests/faults.h"

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

struct model {
    size_t shown;
    bool hit;
};

/* Number of bytes of text[0..n) that may be released while more text may follow. */
static struct model search(const char *const *stop, int n_stop, const char *text, size_t n)
{
    size_t shown = n;
    for (size_t end = 1; end <= n; end++)
        for (size_t at = 0; at < end; at++)
            for (int i = 0; i < n_stop; i++)
                if (strlen(stop[i]) == end - at && !memcmp(text + at, stop[i], end - at))
                    return (struct model){ at, true };
    for (size_t at = n; at-- > 0;)
        for (int i = 0; i < n_stop; i++)
            if (strlen(stop[i]) > n - at && !memcmp(text + at, stop[i], n - at))
                shown = at;
    return (struct model){ shown, false };
}

/* Feeds the text, cut after byte i where bit i of `cut` is set. After every piece the released bytes equal the
 * model's. */
static void check_cut(const char *const *stop, int n_stop, const char *text, size_t n, unsigned cut)
{
    struct eng_stop s;
    char shown[2 * ENG_STOP_BYTES] = "", out[2 * ENG_STOP_BYTES];
    size_t n_shown = 0;
    struct model want = { 0 };
    assert_int_equal(eng_stop_init(&s, stop, n_stop), 0);
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && !(cut >> (to - 1) & 1); to++)
            ;
        memset(out, '#', sizeof out);
        size_t got = eng_stop_feed(&s, text + from, to - from, out);
        assert_int_equal(out[to - from + ENG_STOP_BYTES], '#');
        memcpy(shown + n_shown, out, got);
        n_shown += got;
        if (!want.hit)
            want = search(stop, n_stop, text, to);
        if (n_shown != want.shown || memcmp(shown, text, n_shown) || s.hit != want.hit)
            fail_msg("'%.*s' cut %x: after %zu bytes '%.*s' is shown, not %zu bytes%s", (int)n, text, cut, to,
                     (int)n_shown, shown, want.shown, want.hit ? ", a hit" : "");
    }
    size_t rest = eng_stop_finish(&s, out);
    assert_int_equal(rest, want.hit ? 0 : n - n_shown);
    assert_memory_equal(out, text + n_shown, rest);
    assert_int_equal(eng_stop_finish(&s, out), 0);
}

static void check_all_cuts(const char *const *stop, int n_stop, const char *text)
{
    size_t n = strlen(text);
    assert_in_range(n, 1, 16);
    for (unsigned cut = 0; cut < 1u << (n - 1); cut++)
        check_cut(stop, n_stop, text, n, cut);
}
#define ALL_CUTS(text, ...)                                                                                            \
    check_all_cuts((const char *const[]){ __VA_ARGS__ }, LEN(((const char *const[]){ __VA_ARGS__ })), text)

static void every_cut_shows_the_same(void **state)
{
    (void)state;
    ALL_CUTS("say END now", "END");
    ALL_CUTS("ENENEND", "END"); /* prefixes that do not complete */
    ALL_CUTS("aabaabaac", "aabaac");
    ALL_CUTS("no stop at E", "END");  /* a prefix at the very end */
    ALL_CUTS("xabcdy", "abcd", "bc"); /* the inner one ends first */
    ALL_CUTS("xabcdy", "bc", "abcd");
    ALL_CUTS("xabcy", "abc", "bc"); /* both end together: the longer wins */
    ALL_CUTS("xabcy", "bc", "abc");
    ALL_CUTS("xaby", "a", "ab"); /* one is a prefix of the other */
    ALL_CUTS("xaby", "ab", "a");
    ALL_CUTS("xabz", "abcd", "bcd", "bz");
    ALL_CUTS("END", "END");
    ALL_CUTS("aaaa", "aaa");
    ALL_CUTS("\xc3\xa9t\xc3\xa9", "\xc3\xa9t", "t\xc3\xa9");
}

static void random_texts_of_two_letters(void **state)
{
    (void)state;
    uint64_t r = 5;
    for (int round = 0; round < 3000; round++) {
        char text[16], word[4][6];
        const char *stop[4];
        int n_stop = 1 + (int)(kn_mix(r += KN_GOLDEN) % 4);
        for (int i = 0; i < n_stop; i++) {
            uint64_t bits = kn_mix(r += KN_GOLDEN);
            size_t n = 1 + bits % 5;
            for (size_t k = 0; k < n; k++)
                word[i][k] = "ab"[bits >> (8 + k) & 1];
            word[i][n] = '\0';
            stop[i] = word[i];
        }
        uint64_t bits = kn_mix(r += KN_GOLDEN);
        size_t n = 1 + bits % 12;
        for (size_t k = 0; k < n; k++)
            text[k] = "abc"[(bits >> (8 + 2 * k) & 3) % 3];
        for (int i = 0; i < 20; i++)
            check_cut(stop, n_stop, text, n, (unsigned)(kn_mix(r += KN_GOLDEN) >> 40));
        check_cut(stop, n_stop, text, n, 0);
        check_cut(stop, n_stop, text, n, ~0u);
    }
}

static void limits_of_length(void **state)
{
    (void)state;
    static char longest[ENG_STOP_BYTES + 2];
    char text[2 * ENG_STOP_BYTES], out[3 * ENG_STOP_BYTES];
    struct eng_stop s = { .n = 7 };
    const char *stop[] = { longest };
    memset(longest, 'x', ENG_STOP_BYTES + 1);
    faults_reset();
    assert_int_equal(eng_stop_init(&s, stop, 1), KN_EINVAL);
    assert_int_equal(eng_stop_init(&s, (const char *const[]){ "a", "" }, 2), KN_EINVAL);
    assert_int_equal(s.n, 7); /* unchanged */
    assert_int_equal(faults.n_line, 2);
    faults_off();

    longest[ENG_STOP_BYTES] = '\0'; /* the longest allowed: all but one byte are held */
    memset(text, 'x', sizeof text);
    for (size_t cut = 0; cut <= ENG_STOP_BYTES; cut += 51) {
        assert_int_equal(eng_stop_init(&s, stop, 1), 0);
        assert_int_equal(eng_stop_feed(&s, text, cut, out), 0);
        assert_int_equal(eng_stop_feed(&s, text, ENG_STOP_BYTES - cut, out), 0);
        assert_true(s.hit);
        assert_int_equal(eng_stop_feed(&s, text, 9, out), 0);
    }
    assert_int_equal(eng_stop_init(&s, stop, 1), 0); /* bytes after a hit are not held */
    assert_int_equal(eng_stop_feed(&s, text, sizeof text, out), 0);
    assert_true(s.hit && s.n_held == 0);
    assert_int_equal(eng_stop_init(&s, stop, 1), 0);
    assert_int_equal(eng_stop_feed(&s, text, ENG_STOP_BYTES - 1, out), 0);
    assert_int_equal(eng_stop_feed(&s, "y", 1, out), ENG_STOP_BYTES);
    assert_int_equal(eng_stop_feed(&s, text, ENG_STOP_BYTES - 1, out), 0);
    assert_int_equal(eng_stop_finish(&s, out), ENG_STOP_BYTES - 1);
}

static void without_stop_strings_all_is_shown(void **state)
{
    (void)state;
    struct eng_stop s;
    char out[8 + ENG_STOP_BYTES];
    assert_int_equal(eng_stop_init(&s, NULL, 0), 0);
    assert_int_equal(eng_stop_feed(&s, "a\0b", 3, out), 3);
    assert_memory_equal(out, "a\0b", 3);
    assert_int_equal(eng_stop_feed(&s, "", 0, out), 0);
    assert_int_equal(eng_stop_finish(&s, out), 0);
    assert_false(s.hit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_shows_the_same),
        cmocka_unit_test(random_texts_of_two_letters),
        cmocka_unit_test(limits_of_length),
        cmocka_unit_test(without_stop_strings_all_is_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
