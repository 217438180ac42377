/* The page and its data. The page has a policy that allows its own files and nothing else; they are compressed, confirmed
 * by tag, and shipped with their licences; its scripts parse. The status lists every expert, the memory split and running
 * requests. evals/page/check.py drives the page in a browser. */
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

static struct answer get(const char *path, const char *headers)
{
    struct answer a = ask(&served, "GET", path, headers, NULL);
    if (a.status != 200 && a.status != 304)
        fail_msg("GET %s: %d", path, a.status);
    return a;
}

/* A copy of a header's value. */
static char *header(const struct answer *a, const char *name)
{
    char mark[64];
    snprintf(mark, sizeof mark, "\n%s: ", name);
    const char *at = strstr(a->head, mark);
    return at ? strndup(at + strlen(mark), strcspn(at + strlen(mark), "\r")) : NULL;
}

static void assert_has(const struct answer *a, const char *name, const char *value)
{
    char *found = header(a, name);
    if (!found || !strstr(found, value))
        fail_msg("%s: %s, without %s", name, found ? found : "none", value);
    free(found);
}

/* The page may load and ask its own server only, and no script or style within the document runs. */
static void test_policy(void **state)
{
    static const char *const parts[] = { "default-src 'none'",     "script-src 'self'",
                                         "style-src 'self'",       "font-src 'self'",
                                         "connect-src 'self'",     "img-src data:",
                                         "frame-ancestors 'none'", "base-uri 'none'",
                                         "form-action 'none'",     "require-trusted-types-for 'script'",
                                         "trusted-types 'none'" };
    (void)state;
    struct answer a = get("/", "");
    char *policy = header(&a, "Content-Security-Policy");
    assert_non_null(policy);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_non_null(strstr(policy, parts[i]));
    assert_null(strstr(policy, "unsafe"));
    assert_null(strstr(policy, "*"));
    assert_null(strstr(policy, "http"));
    assert_has(&a, "X-Content-Type-Options", "nosniff");
    assert_has(&a, "Content-Type", "text/html; charset=utf-8");
    free(policy);
    answer_free(&a);
}

static void assert_without(const char *file, const char *text, const char *const *none, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(text, none[i]))
            fail_msg("%s has '%s'", file, none[i]);
}

/* The page's own files make no markup of text and name no other server; each file that they name is sent. */
static void test_whole_in_itself(void **state)
{
    static const char *const files[] = { "/", "/page/page.js", "/page/page.css" };
    static const char *const none[] = { "://",
                                        "@import",
                                        "innerHTML",
                                        "outerHTML",
                                        "insertAdjacent",
                                        "eval(",
                                        "new Function",
                                        " style=\"",
                                        "document.write",
                                        " onclick=\"",
                                        " onload=\"",
                                        "javascript:",
                                        "<style",
                                        "setAttribute(\"on",
                                        "srcdoc",
                                        "DOMParser",
                                        "createContextualFragment" };
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct answer a = get(files[i], "");
        assert_true(a.n_body > 5000 && a.n_body < 100 * 1024);
        assert_int_equal(strlen(a.body), a.n_body);
        assert_without(files[i], a.body, none, sizeof none / sizeof *none);
        answer_free(&a);
    }
    struct answer page = get("/", "");
    int n = 0;
    for (const char *at = page.body; (at = strstr(at, "\"page/")); at++, n++) {
        char path[64];
        snprintf(path, sizeof path, "/%.*s", (int)strcspn(at + 1, "\""), at + 1);
        struct answer a = get(path, "");
        answer_free(&a);
    }
    assert_int_equal(n, 4); /* style, two scripts, notices */
    for (const char *at = page.body; (at = strstr(at, "<script")); at++)
        assert_memory_equal(at, "<script src=\"page/", 18);
    answer_free(&page);
    struct answer css = get("/page/page.css", "");
    n = 0;
    for (const char *at = css.body; (at = strstr(at, "url(")); at += 4) {
        char path[80];
        assert_memory_equal(at, "url(fonts/", 10);
        snprintf(path, sizeof path, "/page/%.*s", (int)strcspn(at + 4, ")"), at + 4);
        if (!strstr(path, ".woff2")) /* older browsers' formats: the browser takes the first that it knows */
            continue;
        struct answer a = get(path, "");
        assert_has(&a, "Content-Type", "font/woff2");
        assert_memory_equal(a.body, "wOF2", 4);
        answer_free(&a);
        n++;
    }
    print_message("%d fonts\n", n);
    answer_free(&css);
    assert_int_equal(ask_status(&served, "GET", "/page/none.js", "", NULL), 404);
    assert_int_equal(ask_status(&served, "GET", "/page/../page.js", "", NULL), 404);
    assert_int_equal(ask_status(&served, "POST", "/page/page.js", "", "{}"), 405);
}

static void write_file(char *path, const char *bytes, size_t n, int n_suffix)
{
    int fd = mkstemps(path, n_suffix);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
}

/* Compressed for clients that take gzip, and the same bytes then. */
static void test_compressed(void **state)
{
    static const char *const files[] = { "/", "/page/page.js", "/page/page.css", "/page/libraries.js",
                                         "/page/notices.txt" };
    static const char *const takes[] = { "gzip", "br, gzip", "deflate,gzip;q=0.5", "GZIP ; q=1", "gzip;q=0.001" };
    static const char *const refuses[] = { "identity", "br", "gzip;q=0", "gzip; q=0.000, br", "xgzip", "gzipx" };
    char headers[100], command[200];
    size_t sum = 0;
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char plain_path[] = "/tmp/spillway-page-XXXXXX", zip_path[] = "/tmp/spillway-page-XXXXXX.gz";
        struct answer plain = get(files[i], ""), zipped = get(files[i], "Accept-Encoding: gzip, deflate, br\r\n");
        char *encoding = header(&plain, "Content-Encoding");
        assert_null(encoding);
        assert_has(&plain, "Vary", "Accept-Encoding");
        assert_has(&zipped, "Content-Encoding", "gzip");
        write_file(plain_path, plain.body ? plain.body : "", plain.n_body, 0);
        write_file(zip_path, zipped.body, zipped.n_body, 3);
        snprintf(command, sizeof command, "gzip -dc %s | cmp - %s", zip_path, plain_path);
        assert_int_equal(system(command), 0);
        unlink(plain_path);
        unlink(zip_path);
        sum += zipped.n_body;
        answer_free(&plain);
        answer_free(&zipped);
    }
    print_message("compressed: %zu bytes\n", sum);
    assert_true(sum < 300 * 1024);
    for (size_t i = 0; i < sizeof takes / sizeof *takes; i++) {
        snprintf(headers, sizeof headers, "Accept-Encoding: %s\r\n", takes[i]);
        struct answer a = get("/", headers);
        assert_has(&a, "Content-Encoding", "gzip");
        answer_free(&a);
    }
    for (size_t i = 0; i < sizeof refuses / sizeof *refuses; i++) {
        snprintf(headers, sizeof headers, "Accept-Encoding: %s\r\n", refuses[i]);
        struct answer a = get("/", headers);
        char *encoding = header(&a, "Content-Encoding");
        assert_null(encoding);
        answer_free(&a);
    }
}

/* A browser's copy is confirmed by its tag, without a body. */
static void test_cached(void **state)
{
    static const char *const files[] = { "/", "/page/page.js", "/page/libraries.js" };
    char headers[200];
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct answer plain = get(files[i], ""), zipped = get(files[i], "Accept-Encoding: gzip\r\n");
        char *tag = header(&plain, "ETag"), *zip_tag = header(&zipped, "ETag");
        assert_has(&plain, "Cache-Control", "no-cache");
        assert_string_not_equal(tag, zip_tag);
        snprintf(headers, sizeof headers, "If-None-Match: \"x\", W/%s\r\n", tag);
        struct answer known = get(files[i], headers);
        assert_int_equal(known.status, 304);
        assert_int_equal(known.n_body, 0);
        char *length = header(&known, "Content-Length");
        assert_null(length);
        assert_has(&known, "ETag", tag);
        answer_free(&known);
        snprintf(headers, sizeof headers, "If-None-Match: %s\r\nAccept-Encoding: gzip\r\n", zip_tag);
        known = get(files[i], headers);
        assert_int_equal(known.status, 304);
        answer_free(&known);
        snprintf(headers, sizeof headers, "If-None-Match: %.*s-old\"\r\n", (int)strlen(tag) - 1, tag);
        known = get(files[i], headers);
        assert_int_equal(known.status, 200);
        answer_free(&known);
        assert_int_equal(ask_status(&served, "HEAD", files[i], "", NULL), 200);
        free(tag);
        free(zip_tag);
        answer_free(&plain);
        answer_free(&zipped);
    }
}

/* The licence of each library that is sent is sent, too. */
static void test_notices(void **state)
{
    static const struct {
        const char *in_library, *in_notices;
    } kept[] = {
        { "markdown-it 8", "======== markdown-it ========" },
        { "registerLanguage(\"python\"", "======== highlight.js ========" },
        { "KaTeX parse error", "======== KaTeX and its fonts ========" },
    };
    (void)state;
    struct answer libraries = get("/page/libraries.js", ""), notices = get("/page/notices.txt", "");
    int n = 0;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        bool is_sent = libraries.body && strstr(libraries.body, kept[i].in_library);
        assert_int_equal(strstr(notices.body, kept[i].in_notices) != NULL, is_sent);
        n += is_sent;
    }
    if (libraries.n_body > 1)
        assert_true(n > 0);
    else
        assert_non_null(strstr(notices.body, "contains no libraries"));
    answer_free(&libraries);
    answer_free(&notices);
}

static void test_scripts_parse(void **state)
{
    static const char *const files[] = { "/page/page.js", "/page/libraries.js" };
    (void)state;
    if (system("command -v node >/dev/null 2>&1") != 0) {
        print_message("skipped: nothing here parses the page's scripts (apt install nodejs)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[] = "/tmp/spillway-page-XXXXXX.js", command[100];
        struct answer a = get(files[i], "");
        write_file(path, a.body ? a.body : "", a.n_body, 3);
        snprintf(command, sizeof command, "node --check %s", path);
        int status = system(command);
        unlink(path);
        answer_free(&a);
        assert_int_equal(status, 0);
    }
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
        cmocka_unit_test(test_policy),       cmocka_unit_test(test_whole_in_itself),
        cmocka_unit_test(test_compressed),   cmocka_unit_test(test_cached),
        cmocka_unit_test(test_notices),      cmocka_unit_test(test_scripts_parse),
        cmocka_unit_test(test_every_expert), cmocka_unit_test(test_memory_adds_up),
        cmocka_unit_test(test_calls),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
