/* `spillway simulate`: consistent rows, the same for any number of threads, and messages for mistakes.
 *
 * One thread: not under MODE=tsan. */
#include "engine/cli/cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/engine/cli/printed.h"

static char said[4096];

static void hear(enum kn_level level, const char *line)
{
    (void)level;
    snprintf(said, sizeof said, "%s", line);
}

static int simulate(const char *arguments)
{
    said[0] = 0;
    return print_command(ENG_simulate, eng_cmd_simulate, arguments);
}

/* Column `name` of row `row`; the first row is 1. */
static double value(int row, const char *name)
{
    const char *line = printed, *cell = printed;
    int column = 0;
    size_t n = strlen(name);
    for (; strncmp(cell, name, n) != 0 || (cell[n] != ',' && cell[n] != '\n'); column++) {
        cell = strpbrk(cell, ",\n");
        assert_true(cell && *cell == ',');
        cell++;
    }
    for (; row > 0; row--)
        line = strchr(line, '\n') + 1;
    for (; column > 0; column--)
        line = strchr(line, ',') + 1;
    return atof(line);
}

static int count_rows(void)
{
    int n = -1;
    for (const char *c = printed; *c; c++)
        n += *c == '\n';
    return n;
}

static void a_setting(void **state)
{
    (void)state;
    assert_int_equal(simulate("dsi --target-ms 20 --draft-ms 2 --acceptance 0.7 --lookahead 2-4,8 --tokens 40 "
                              "--repeats 200 --sp 3"),
                     0);
    assert_int_equal(count_rows(), 4);
    for (int i = 1; i <= 4; i++) {
        assert_int_equal(value(i, "lookahead"), i < 4 ? i + 1 : 8);
        assert_int_equal(value(i, "servers"), i == 1 ? 5 : i == 2 ? 4 : i == 3 ? 3 : 2);
        assert_true(value(i, "plain_ms") == 800);
        assert_true(value(i, "dsi_ms") < value(i, "si_ms") && value(i, "si_ms") < 800);
        assert_true((value(i, "dsi_offline_ms") > 0) == (i >= 3));   /* three targets suffice */
        assert_true(value(i, "dsi_passes") > value(i, "si_passes")); /* the price: more passes */
    }
}

/* The first token: SI's waits for a block, DSI's does not; with the time to read the prompt. */
static void first_tokens(void **state)
{
    (void)state;
    assert_int_equal(
        simulate("dsi --target-ms 20 --draft-ms 2 --acceptance 0.7 --lookahead 4 --tokens 40 --repeats 50"), 0);
    double plain = value(1, "plain_ms"), si = value(1, "si_ms");
    assert_true(value(1, "plain_first_ms") == 20 && value(1, "dsi_first_ms") == 20 && value(1, "si_first_ms") == 28);
    assert_int_equal(simulate("dsi --target-ms 20 --draft-ms 2 --acceptance 0.7 --lookahead 4 --tokens 40 --repeats 50 "
                              "--target-prefill-ms 100 --draft-prefill-ms 10"),
                     0);
    assert_true(value(1, "plain_first_ms") == 120 && value(1, "dsi_first_ms") == 120 && value(1, "si_first_ms") == 138);
    assert_true(value(1, "plain_ms") == plain + 100 && value(1, "si_ms") > si + 109.99 &&
                value(1, "si_ms") < si + 110.01);
    assert_true(value(1, "bound_ms") == 0 && value(1, "si_offline_ms") == 0 && value(1, "dsi_offline_ms") == 0);
}

/* Seven targets that share one memory bandwidth are slower than plain decoding. */
static void one_memory(void **state)
{
    (void)state;
    assert_int_equal(simulate("dsi --acceptance 0.7 --lookahead 2 --repeats 50 --contention 1"), 0);
    assert_true(value(1, "contention") == 1);
    assert_true(value(1, "dsi_ms") > value(1, "plain_ms"));
    assert_int_equal(simulate("dsi --acceptance 0.7 --lookahead 2 --repeats 50 --contention 0"), 0);
    assert_true(value(1, "dsi_ms") < value(1, "si_ms"));
}

static void the_table(void **state)
{
    (void)state;
    assert_int_equal(simulate("dsi --preset table --repeats 200"), 0);
    assert_int_equal(count_rows(), 10);
    for (int i = 1; i <= 10; i++) {
        assert_true(value(i, "offline") > 1.1 && value(i, "offline") < 1.35);
        assert_true(value(i, "offline_error") > 0 && value(i, "offline_error") < 0.01);
        assert_true(value(i, "event") > value(i, "offline")); /* the formulas hide less latency */
        assert_true(value(i, "published") > value(i, "event"));
    }
}

static void the_grid(void **state)
{
    static char once[sizeof printed];
    (void)state;
    assert_int_equal(simulate("dsi --preset grid --tokens 12 --repeats 1 --lookahead 1-5 --threads 1"), 0);
    assert_int_equal(count_rows(), 100 * 101);
    memcpy(once, printed, sizeof once);
    for (int i = 1; i <= 10100; i += 97) {
        assert_true(value(i, "plain_over_dsi") >= 1);
        assert_true(value(i, "si_over_dsi_at_si_lookahead") > 0.8);
    }
    assert_int_equal(simulate("dsi --preset grid --tokens 12 --repeats 1 --lookahead 1-5 --threads 3"), 0);
    assert_string_equal(printed, once);
    /* SI limited to the lookahead that DSI's targets allow is not faster than SI with a free choice */
    assert_int_equal(simulate("dsi --preset grid --tokens 10 --repeats 1 --lookahead 1-20 --method offline"), 0);
    double fair = value(20 * 100 + 1, "si_over_dsi");
    assert_int_equal(simulate("dsi --preset grid --tokens 10 --repeats 1 --lookahead 1-20 --method offline "
                              "--authors"),
                     0);
    assert_true(value(20 * 100 + 1, "si_over_dsi") > fair);
}

static void mistakes_are_told(void **state)
{
    static const struct {
        const char *arguments, *says;
    } cases[] = {
        { "", "simulate needs dsi" },
        { "dsy", "use dsi or moesd" },
        { "dsi --preset heat", "table or grid, not 'heat'" },
        { "dsi --preset table --draft-prefill-ms 5", "do not go with --preset" },
        { "dsi --preset grid --target-prefill-ms 5", "do not go with --preset" },
        { "dsi --method online", "event or offline, not 'online'" },
        { "dsi --lookahead 0", "not '0'" },
        { "dsi --lookahead 1,", "not '1,'" },
        { "dsi --lookahead 5-2", "not '5-2'" },
        { "dsi --lookahead 1-1001", "not '1-1001'" },
        { "dsi --lookahead 1-600,1-600", "at most 1000 numbers" },
        { "dsi --lookahead 1-x", "not '1-x'" },
        { "dsi --tokens 1000000 --repeats 1000000", "too many at once" },
        { "dsi --acceptance 1.5", "a number from 0 to 1" },
        { "dsi --sp 0", "a whole number from 1" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int e = simulate(cases[i].arguments);
        assert_true(e < 0 || e == 2);
        if (!strstr(said, cases[i].says))
            fail_msg("%s: said '%s'", cases[i].arguments, said);
        assert_string_equal(printed, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_setting), cmocka_unit_test(first_tokens), cmocka_unit_test(one_memory),
        cmocka_unit_test(the_table), cmocka_unit_test(the_grid),     cmocka_unit_test(mistakes_are_told),
    };
    unsetenv("SPILLWAY_CONFIG");
    kn_log_set(hear, KN_LOG_INFO);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
