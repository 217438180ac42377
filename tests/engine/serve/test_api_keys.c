/* The key file: keys with labels and limits, and each mistake in it; accounts, which outlive the file; their tokens per
 * minute, by a clock that the test sets.
 *
 * One thread: not under MODE=tsan. */
#include "engine/serve/accounts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define SECOND 1000000000ull

static char said[512], path[] = "/tmp/spillway-keys-XXXXXX";

static void listen(enum kn_level level, const char *line)
{
    (void)level;
    snprintf(said, sizeof said, "%s", line);
}

static int set_up(void **state)
{
    (void)state;
    kn_log_set(listen, KN_LOG_INFO);
    int file = mkstemp(path);
    close(file);
    return file < 0;
}

static int tear_down(void **state)
{
    (void)state;
    kn_log_set(NULL, KN_LOG_INFO);
    return unlink(path);
}

static int read_keys(struct eng_api_keys **k, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    said[0] = 0;
    return eng_api_keys_open(k, path);
}

static struct eng_api_keys *keys_of(const char *text)
{
    struct eng_api_keys *k;
    if (read_keys(&k, text))
        fail_msg("%s: %s", text, said);
    return k;
}

static void lines_have_rules(void **state)
{
    (void)state;
    struct eng_api_keys *k = keys_of("# the team\n"
                                     "sk-a label=alice requests=4 tokens-per-minute=60000\n"
                                     "\n"
                                     "  sk-b\t tokens-per-minute=5   label=bob.b@example-1_2\r\n"
                                     "sk-c\n"
                                     "label=alice\n" /* a key that looks like a rule */
                                     "sk-d only=metrics\n"
                                     "sk-e label=alice\n");
    static const struct eng_key_rules want[] = {
        { .label = "alice", .most_requests = 4, .tokens_per_minute = 60000 },
        { .label = "bob.b@example-1_2", .tokens_per_minute = 5 },
        { .label = "key-3" },
        { .label = "key-4" },
        { .label = "key-5", .only_metrics = true },
        { .label = "alice", .most_requests = 4, .tokens_per_minute = 60000 },
    };
    assert_int_equal(eng_api_keys_count(k), 6);
    for (int i = 0; i < 6; i++) {
        const struct eng_key_rules *r = eng_api_keys_rules(k, i);
        assert_string_equal(r->label, want[i].label);
        assert_int_equal(r->most_requests, want[i].most_requests);
        assert_int_equal(r->tokens_per_minute, want[i].tokens_per_minute);
        assert_int_equal(r->only_metrics, want[i].only_metrics);
    }
    assert_int_equal(eng_api_keys_find(k, "sk-b"), 1);
    assert_int_equal(eng_api_keys_find(k, "label=alice"), 3);
    assert_int_equal(eng_api_keys_find(k, "sk-b label=bob"), -1);
    assert_true(eng_api_keys_has_scraper(k));
    eng_api_keys_close(k);
    k = keys_of("sk-a\n");
    assert_false(eng_api_keys_has_scraper(k));
    eng_api_keys_close(k);
    assert_false(eng_api_keys_has_scraper(NULL));
}

/* The message names the line, and never a word of it: the word may be a part of a key. */
static void mistakes_are_named_without_the_key(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } bad[] = {
        { "sk-a\nsk-secret word\n", ":2: behind a key stand" },
        { "sk-secret label\n", ":1: behind a key stand" },
        { "sk-secret requests=0\n", "with N from 1" },
        { "sk-secret requests=-1\n", "with N from 1" },
        { "sk-secret requests=4x\n", "with N from 1" },
        { "sk-secret requests=\n", "with N from 1" },
        { "sk-secret tokens-per-minute=9999999999\n", "with N from 1" },
        { "sk-secret only=status\n", "only=metrics" },
        { "sk-secret label=\n", ":1: a label has 1 to 63" },
        { "sk-secret label=a\"b\n", ":1: a label has 1 to 63" },
        { "sk-secret label=key-7\n", "is not key-NUMBER" },
        { "sk-secret label=a123456789012345678901234567890123456789012345678901234567890123\n", "a label has 1 to 63" },
        { "sk-a label=x requests=1\nsk-secret label=x requests=2\n", ":2: label x has other limits" },
        { "sk-a label=x\nsk-secret label=x requests=2\n", ":2: label x has no limits" },
        { "sk-a\n\x80secret\n", ":2: a key must be printable" },
        { "# nothing\n", "the file has no keys" },
    };
    struct eng_api_keys *k;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_not_equal(read_keys(&k, bad[i].text), 0);
        if (!strstr(said, bad[i].part) || strstr(said, "secret") || strstr(said, "word"))
            fail_msg("%s: %s", bad[i].text, said);
    }
}

static struct eng_account *account(const struct eng_accounts *a, int key) { return a->account[a->of_key[key]]; }

static void accounts_go_on_when_the_file_changes(void **state)
{
    (void)state;
    struct eng_accounts a = { 0 };
    struct eng_api_keys *k = keys_of("sk-a label=alice requests=1\nsk-b label=bob\nsk-c label=alice\n");
    assert_int_equal(eng_accounts_take(&a, k), 0);
    assert_int_equal(a.n, 2);
    assert_int_equal(a.n_label, 2);
    struct eng_account *alice = account(&a, 0);
    assert_ptr_equal(alice, account(&a, 2));
    assert_string_equal(account(&a, 1)->rules.label, "bob");
    alice->n_request = 7;
    alice->n_running = 1;
    assert_false(eng_account_has_room(alice, 1));
    assert_true(eng_account_has_room(account(&a, 1), 1000));
    assert_true(eng_account_has_room(NULL, 1000));
    eng_api_keys_close(k);

    k = keys_of("sk-x label=xavier\nsk-new label=alice requests=3\n"); /* another key of alice, on another line */
    assert_int_equal(eng_accounts_take(&a, k), 0);
    assert_int_equal(a.n, 3); /* bob's counters stay */
    assert_int_equal(a.n_label, 2);
    assert_ptr_equal(account(&a, 1), alice);
    assert_true(alice->n_request == 7);
    assert_true(eng_account_has_room(alice, 2) && !eng_account_has_room(alice, 3));
    eng_api_keys_close(k);
    eng_accounts_close(&a);
}

static void many_labels(void **state)
{
    (void)state;
    static char text[10000 * 24];
    size_t n = 0;
    for (int i = 0; i < 10000; i++)
        n += (size_t)sprintf(text + n, "k%d label=user%d\n", i, i / 2);
    struct eng_accounts a = { 0 };
    struct eng_api_keys *k = keys_of(text);
    assert_int_equal(eng_accounts_take(&a, k), 0);
    assert_int_equal(a.n, 5000);
    for (int i = 0; i < 10000; i++)
        assert_int_equal(a.of_key[i], i / 2);
    eng_api_keys_close(k);
    eng_accounts_close(&a);
}

/* 600 tokens a minute: a bucket of 600 that gets 10 a second. */
static void tokens_per_minute(void **state)
{
    (void)state;
    struct eng_accounts a = { 0 };
    struct eng_api_keys *k = keys_of("sk-a label=alice tokens-per-minute=600\nsk-b\n");
    assert_int_equal(eng_accounts_take(&a, k), 0);
    struct eng_account *alice = account(&a, 0);
    uint64_t now = alice->filled_ns;
    assert_int_equal(eng_account_wait_s(alice, now), 0);
    eng_account_spend(alice, 599);
    assert_int_equal(eng_account_wait_s(alice, now), 0);
    eng_account_spend(alice, 101); /* 100 in debt: 10 s, and the first token after */
    assert_int_equal(eng_account_wait_s(alice, now), 11);
    assert_int_equal(eng_account_wait_s(alice, now + 9 * SECOND), 2);
    assert_int_equal(eng_account_wait_s(alice, now + 10 * SECOND + 1000), 0);
    assert_int_equal(eng_account_wait_s(alice, now + 3600 * SECOND), 0);
    assert_true(alice->tokens_left == 600); /* no more than a minute is saved */
    eng_account_spend(account(&a, 1), 1 << 30);
    assert_int_equal(eng_account_wait_s(account(&a, 1), now), 0);
    assert_int_equal(eng_account_wait_s(NULL, now), 0);
    eng_account_spend(NULL, 5);
    eng_api_keys_close(k);

    eng_account_spend(alice, 300);
    k = keys_of("sk-a label=alice tokens-per-minute=1200\n"); /* the bucket stays half full */
    assert_int_equal(eng_accounts_take(&a, k), 0);
    assert_true(alice->tokens_left == 600);
    eng_api_keys_close(k);
    eng_accounts_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_have_rules),
        cmocka_unit_test(mistakes_are_named_without_the_key),
        cmocka_unit_test(accounts_go_on_when_the_file_changes),
        cmocka_unit_test(many_labels),
        cmocka_unit_test(tokens_per_minute),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
