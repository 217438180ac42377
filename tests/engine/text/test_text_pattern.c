/* Texts that match a regular expression as a whole (gr_pattern).
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/text/grammar/grammar.h"
#include "tests/engine/text/accepts.h"

static int compile(struct gr_grammar **g, const char *pattern, char *why)
{
    struct gr_builder *b;
    assert_int_equal(gr_builder_open(&b), 0);
    int error = gr_compile(g, b, gr_pattern(b, pattern, GR_END), NULL);
    strcpy(why, gr_builder_why(b));
    gr_builder_close(b);
    return error;
}

static void a_text_matches_as_a_whole(void **state)
{
    static const struct {
        const char *pattern, *valid[4], *invalid[5];
    } cases[] = {
        { "a+", { "a", "aaa" }, { "", "ab", "ba", "A" } },
        { "yes|no", { "yes", "no" }, { "yesno", "y", "yes " } },
        { "^yes|no$", { "yes", "no" }, { "yesno", "yes!" } },
        { "\\w+@\\w+\\.com\\n", { "a@b.com\n" }, { "a@b.com", " a@b.com\n" } },
        { "\"[^\"\\\\]*\"", { "\"\"", "\"a b\"" }, { "\"\\\"\"", "a" } },
        { "(\\d{3}-){2}\\d{4}", { "123-456-7890" }, { "123-456-789", "123-456-78901" } },
        { "[\xC3\xA4-\xC3\xBC]\xE2\x82\xAC.",
          { "\xC3\xA9\xE2\x82\xACx", "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80" },
          { "e\xE2\x82\xACx", "\xC3\xA9\xE2\x82\xAC", "\xC3\xA9\xE2\x82\xAC\xED\xA0\x80" } },
        { "", { "" }, { "a" } },
        { "a?", { "", "a" }, { "aa" } },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gr_grammar *g;
        char why[256];
        if (compile(&g, cases[i].pattern, why))
            fail_msg("%s: %s", cases[i].pattern, why);
        for (int k = 0; k < 4 && cases[i].valid[k]; k++)
            if (!accepts(g, cases[i].valid[k]))
                fail_msg("%s refuses %s", cases[i].pattern, cases[i].valid[k]);
        for (int k = 0; k < 5 && cases[i].invalid[k]; k++)
            if (accepts(g, cases[i].invalid[k]))
                fail_msg("%s takes %s", cases[i].pattern, cases[i].invalid[k]);
        gr_close(g);
    }
}

static void bad_patterns_are_refused(void **state)
{
    static const char *const bad[] = { "a)|(b", "(", "[a", "*", "(?=a)a", "a{2000}", "\\", "(?P<n>a)", "[^\\x00-\\U]" };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct gr_grammar *g = NULL;
        char why[256];
        assert_true(compile(&g, bad[i], why) < 0);
        assert_null(g);
        assert_non_null(strstr(why, "the pattern '"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_matches_as_a_whole),
        cmocka_unit_test(bad_patterns_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
