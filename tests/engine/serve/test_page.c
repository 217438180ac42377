/* The status page and its data. The page has a policy that allows its own parts and nothing else; it is small, loads no
 * other file, and its script parses. The status lists every expert, the memory split and running requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <jansson.h>
#include <cmocka.h>

#include "tests/engine/serve/serve_client.h"

#include <fcntl.h>

#define TARGET  "evals/train/models/demo-target-q8_0.gguf"
#define N_LAYER 6
#define N_EACH  16 /* experts per layer */

static struct served served;

static int setup(void **state)
{
    (void)state;
    struct eng_serve_options o = serve_defaults();
    o.engine.model = TARGET;
    o.engine.isa = KN_ISA_COUNT - 1;
    o.engine.measures_disk = true;
    kn_log_set(NULL, KN_LOG_ERROR);
    serve_start(&served, &o);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    serve_end(&served);
    return 0;
}

/* ---- the page -------------------------------------------------------------------------------- */

/* A copy of the 32 hex digits after `mark`. */
static char *nonce_behind(const char *text, const char *mark)
{
    const char *at = strstr(text, mark);
    assert_non_null(at);
    at += strlen(mark);
    assert_int_equal(strspn(at, "0123456789abcdef"), 32);
    return strndup(at, 32);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

static void test_policy(void **state)
{
    (void)state;
    char *before = NULL;
    for (int i = 0; i < 2; i++) {
        struct answer a = ask(&served, "GET", "/", "", NULL);
        assert_int_equal(a.status, 200);
        char *policy = strstr(a.head, "Content-Security-Policy: ");
        assert_non_null(policy);
        policy[strcspn(policy, "\r")] = 0;
        assert_non_null(strstr(policy, "default-src 'none'"));
        assert_non_null(strstr(policy, "frame-ancestors 'none'"));
        assert_non_null(strstr(policy, "base-uri 'none'"));
        assert_non_null(strstr(policy, "form-action 'none'"));
        assert_non_null(strstr(policy, "require-trusted-types-for 'script'"));
        assert_null(strstr(policy, "unsafe"));
        char *nonce = nonce_behind(policy, "script-src 'nonce-"), own[48];
        char *style = nonce_behind(policy, "style-src 'nonce-");
        assert_string_equal(nonce, style);
        snprintf(own, sizeof own, " nonce=\"%s\">", nonce);
        assert_int_equal(count(a.body, "<script"), 1);
        assert_int_equal(count(a.body, "<style"), 1);
        assert_int_equal(count(a.body, own), 2);
        assert_null(strstr(a.body, "@NONCE@"));
        if (before)
            assert_string_not_equal(before, nonce); /* a new nonce for each answer */
        free(before);
        free(style);
        before = nonce;
        answer_free(&a);
    }
    free(before);
}

static void test_whole_in_itself(void **state)
{
    static const char *const none[] = { "://",        " src=",      "url(",           "@import",
                                        "innerHTML",  "outerHTML",  "insertAdjacent", "eval(",
                                        "Function(",  " style=\"",  "document.write", " onclick=\"",
                                        " onload=\"", "javascript:" };
    (void)state;
    struct answer a = ask(&served, "GET", "/", "", NULL);
    assert_non_null(strstr(a.head, "Content-Type: text/html; charset=utf-8\r\n"));
    assert_non_null(strstr(a.head, "X-Content-Type-Options: nosniff\r\n"));
    assert_true(a.n_body > 10000 && a.n_body < 100 * 1024);
    assert_int_equal(strlen(a.body), a.n_body);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (strstr(a.body, none[i]))
            fail_msg("the page has '%s'", none[i]);
    answer_free(&a);
}

static void test_script_parses(void **state)
{
    (void)state;
    if (system("command -v node >/dev/null 2>&1") != 0) {
        print_message("skipped: nothing here parses the page's script (apt install nodejs)\n");
        skip();
    }
    char path[] = "/tmp/spillway-page-XXXXXX.js", command[100];
    struct answer a = ask(&served, "GET", "/", "", NULL);
    char *script = strchr(strstr(a.body, "<script"), '\n'), *end = strstr(script, "</script>");
    int fd = mkstemps(path, 3);
    assert_int_equal(write(fd, script, (size_t)(end - script)), end - script);
    close(fd);
    snprintf(command, sizeof command, "node --check %s", path);
    int status = system(command);
    unlink(path);
    answer_free(&a);
    assert_int_equal(status, 0);
}

/* ---- the status ------------------------------------------------------------------------------ */

static json_t *status_now(void)
{
    struct answer a = ask(&served, "GET", "/status", "", NULL);
    json_t *root = json_loads(a.body, 0, NULL);
    assert_int_equal(a.status, 200);
    assert_non_null(root);
    answer_free(&a);
    return root;
}

static const json_t *at(const json_t *root, const char *a, const char *b)
{
    const json_t *v = json_object_get(root, a);
    v = b ? json_object_get(v, b) : v;
    assert_non_null(v);
    return v;
}

static void test_every_expert(void **state)
{
    (void)state;
    json_t *s = status_now();
    assert_string_equal(json_string_value(at(s, "draft", "explain")), ""); /* no step yet */
    json_decref(s);
    assert_int_equal(ask_status(&served, "POST", "/v1/completions", "", "{\"prompt\":\"One day\",\"max_tokens\":20}"),
                     200);
    s = status_now();
    const char *tier = json_string_value(at(s, "experts", "tier"));
    const char *heat = json_string_value(at(s, "experts", "heat"));
    const json_t *layers = at(s, "experts", "layers");
    assert_int_equal(json_array_size(layers), N_LAYER);
    for (size_t i = 0; i < N_LAYER; i++) {
        const json_t *layer = json_array_get(layers, i);
        assert_int_equal(json_integer_value(json_array_get(layer, 0)), i);
        assert_int_equal(json_integer_value(json_array_get(layer, 1)), N_EACH);
        /* a token uses two experts of each layer */
        int n_hot = 0, n_here = 0;
        for (int e = 0; e < N_EACH; e++) {
            n_hot += heat[i * N_EACH + (size_t)e] != '0';
            n_here += tier[i * N_EACH + (size_t)e] == 'h';
        }
        assert_true(n_hot >= 2 && n_here >= 2);
    }
    assert_int_equal(strlen(tier), N_LAYER * N_EACH);
    assert_int_equal(strlen(heat), N_LAYER * N_EACH);
    assert_int_equal(strspn(tier, ".rhd"), N_LAYER * N_EACH);
    assert_memory_equal(json_string_value(at(s, "draft", "explain")), "draft: ", 7);
    json_decref(s);
}

static void test_memory_adds_up(void **state)
{
    (void)state;
    json_t *s = status_now();
    const json_t *split = at(s, "memory", "split"), *part;
    const char *name;
    json_int_t sum = 0;
    json_object_foreach((json_t *)(uintptr_t)split, name, part) sum += json_integer_value(part);
    assert_int_equal(sum, json_integer_value(at(s, "memory", "budget_bytes")));
    assert_int_equal(sum, (json_int_t)512 << 20);
    int fd = open(TARGET, O_RDONLY | O_DIRECT); /* else the disk cannot be measured */
    assert_int_equal(json_integer_value(at(s, "rate", "disk_limit_Bps")) > 0, fd >= 0);
    if (fd >= 0)
        close(fd);
    json_decref(s);
}

/* A running request is listed with its numbers and without its text. */
static void test_calls(void **state)
{
    (void)state;
    int fd = connect_to(&served);
    send_request(fd, "POST", "/v1/completions", "",
                 "{\"prompt\":\"Once upon a secret\",\"max_tokens\":1900,\"ignore_eos\":true,\"stream\":true}");
    json_int_t tokens = 0;
    while (tokens < 5) {
        json_t *s = status_now();
        const json_t *calls = at(s, "calls", NULL), *c = json_array_get(calls, 0);
        assert_true(json_array_size(calls) <= 1);
        if (c) {
            tokens = json_integer_value(json_object_get(c, "tokens"));
            assert_true(json_integer_value(json_object_get(c, "prompt_tokens")) >= 3);
            assert_int_equal(strlen(json_string_value(json_object_get(c, "id"))), 16);
            assert_int_equal(json_object_size(c), 5);
        }
        json_decref(s);
        usleep(1000);
    }
    close(fd);
    for (size_t n = 1; n;) {
        json_t *s = status_now();
        n = json_array_size(at(s, "calls", NULL));
        json_decref(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy),         cmocka_unit_test(test_whole_in_itself),
        cmocka_unit_test(test_script_parses),  cmocka_unit_test(test_every_expert),
        cmocka_unit_test(test_memory_adds_up), cmocka_unit_test(test_calls),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
