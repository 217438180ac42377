/* The host names that a server answers for. */
#include <ifaddrs.h>
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/serve/host_names.h"
#include "tests/faults.h"

static bool has(const char *listen, const char *allowed, const char *host)
{
    struct eng_host_names *h;
    assert_int_equal(eng_host_names_open(&h, listen, allowed), 0);
    bool found = eng_host_names_has(h, host);
    eng_host_names_close(h);
    return found;
}

static void test_names(void **state)
{
    static const struct {
        const char *listen, *allowed, *host;
        bool has;
    } table[] = {
        { "127.0.0.1", NULL, NULL, true },
        { "127.0.0.1", NULL, "", false },
        { "127.0.0.1", NULL, ":8080", false },
        { "127.0.0.1", NULL, "localhost", true },
        { "127.0.0.1", NULL, "LocalHost:8080", true },
        { "127.0.0.1", NULL, "localhost.", true },
        { "127.0.0.1", NULL, "app.localhost:1", true },
        { "127.0.0.1", NULL, ".localhost", false },
        { "127.0.0.1", NULL, "xlocalhost", false },
        { "127.0.0.1", NULL, "localhost.evil.example", false },
        { "127.0.0.1", NULL, "evil.example", false },
        { "127.0.0.1", NULL, "127.0.0.1:8080", true },
        { "127.0.0.1", NULL, "127.9.9.9", true },
        { "127.0.0.1", NULL, "127.0.0.1.evil.example", false },
        { "127.0.0.1", NULL, "127.1", false },
        { "127.0.0.1", NULL, "0x7f000001", false },
        { "127.0.0.1", NULL, "[::1]:8080", true },
        { "127.0.0.1", NULL, "[::ffff:127.0.0.1]", true },
        { "127.0.0.1", NULL, "192.0.2.1", false },
        { "127.0.0.1", NULL, "[2001:db8::1]", false },
        { "127.0.0.1", NULL, "0.0.0.0", false },
        { "0.0.0.0", NULL, "0.0.0.0:8080", true },
        { "server.lan", NULL, "Server.LAN:8080", true },
        { "server.lan", NULL, "other.lan", false },
        { "127.0.0.1", "llm.example.com", "llm.example.com", true },
        { "127.0.0.1", "llm.example.com", "LLM.example.com.:443", true },
        { "127.0.0.1", "llm.example.com", "example.com", false },
        { "127.0.0.1", "llm.example.com", "x.llm.example.com", false },
        { "127.0.0.1", "a.example,b.example", "b.example", true },
        { "127.0.0.1", "192.0.2.1", "192.0.2.1:80", true },
        { "127.0.0.1", "[2001:db8::1]", "[2001:DB8:0::1]:80", true },
        { "127.0.0.1", "2001:db8::1", "[2001:db8::1]", true },
        { "127.0.0.1", "a.example,*", "evil.example", true },
        { "127.0.0.1", "*", "", true },
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (has(table[i].listen, table[i].allowed, table[i].host) != table[i].has)
            fail_msg("row %zu: --host %s, --allowed-host %s, Host: %s", i, table[i].listen, table[i].allowed,
                     table[i].host);
}

static void test_machine(void **state)
{
    char name[256] = "", text[300];
    struct ifaddrs *all;
    (void)state;
    assert_int_equal(gethostname(name, sizeof name - 1), 0);
    assert_true(has("0.0.0.0", NULL, name));
    snprintf(text, sizeof text, "%s:8080", name);
    assert_true(has("0.0.0.0", NULL, text));
    snprintf(text, sizeof text, "%.*s.local", (int)strcspn(name, "."), name);
    assert_true(has("0.0.0.0", NULL, text));
    snprintf(text, sizeof text, "%s.evil.example", name);
    assert_false(has("0.0.0.0", NULL, text));
    snprintf(text, sizeof text, "x%s", name);
    assert_false(has("0.0.0.0", NULL, text));
    assert_int_equal(getifaddrs(&all), 0);
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET)
            continue;
        assert_non_null(inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr, text, sizeof text));
        assert_true(has("0.0.0.0", NULL, text));
    }
    freeifaddrs(all);
}

static void test_refused(void **state)
{
    static const char *const wrong[] = { "",    "a,,b",     "http://a", "a:80",     "a/b",
                                         "a b", "a,b:80,c", "[a]",      "[::1]:80", "u@a" };
    struct eng_host_names *h = NULL;
    (void)state;
    faults.most = KN_LOG_ERROR;
    faults_listen();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(eng_host_names_open(&h, "127.0.0.1", wrong[i]), KN_EINVAL);
        assert_non_null(strstr(faults.last, "--allowed-host takes"));
    }
    assert_null(h);
    faults_listen_off();
    eng_host_names_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
