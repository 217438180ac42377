/* A server for a team: turns of keys at reading, limits of a label, the key for metrics, the counters of each key, and the log, in which no key, no
 * prompt and no answer stands.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/serve/exposition.h"
#include "tests/engine/serve/serve_client.h"

#include "engine/base/base.h"
#include "engine/serve/internal.h"

#include <fcntl.h>
#include <poll.h>

#define ALICE     "Authorization: Bearer sk-alice-secret\r\n"
#define BOB       "x-api-key: sk-bob-secret\r\n"
#define CAROL     "x-api-key: sk-carol-secret\r\n"
#define LONG_TEXT ((size_t)3 << 20)
#define SCRAPE    "Authorization: Bearer sk-scrape-secret\r\n"

static const char with_scraper[] = "sk-alice-secret label=alice requests=2\n"
                                   "sk-alice-secret-2 label=alice\n"
                                   "sk-bob-secret label=bob tokens-per-minute=1\n"
                                   "sk-carol-secret\n"
                                   "sk-scrape-secret label=prometheus only=metrics\n";
static char key_file[] = "/tmp/spillway-keys-XXXXXX", log_file[] = "/tmp/spillway-log-XXXXXX";
static struct served served;

static void write_keys(const char *text)
{
    FILE *f = fopen(key_file, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static int set_up(void **state)
{
    (void)state;
    close(mkstemp(key_file));
    close(mkstemp(log_file));
    write_keys(with_scraper);
    struct eng_serve_options o = serve_defaults();
    o.api_key_file = key_file;
    o.max_body = LONG_TEXT + 1000;
    serve_start(&served, &o);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    serve_end(&served);
    unlink(key_file);
    unlink(log_file);
    return 0;
}

static double of_key(const char *name, const char *label)
{
    char line[200];
    snprintf(line, sizeof line, "\nspillway_key_%s{model_name=\"demo-draft-q8_0\",engine=\"0\",key=\"%s\"", name,
             label);
    return metric(&served, SCRAPE, line);
}

/* ---- turns at reading ------------------------------------------------------------------------------ */

/* Sends a request to count the tokens of n blanks, without its last byte. */
static int send_blanks(const char *key, size_t n)
{
    static const char begin[] = "{\"prompt\": \"", end[] = "\"";
    char head[300], *blanks = malloc(n);
    int fd = connect_to(&served);
    assert_non_null(blanks);
    memset(blanks, ' ', n);
    snprintf(head, sizeof head, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n", key,
             strlen(begin) + n + strlen(end) + 1);
    send_text(fd, head);
    send_text(fd, begin);
    send_bytes(fd, blanks, n);
    send_text(fd, end);
    free(blanks);
    return fd;
}

/* A text of one key is tokenized before a longer one of another that came before it. */
static void a_shorter_text_passes_a_long_one(void **state)
{
    int first = send_blanks(ALICE, LONG_TEXT), second = send_blanks(CAROL, 300000);
    (void)state;
    send_text(first, "}");
    while (__atomic_load_n(&served.server->n_call, __ATOMIC_RELAXED) == 0)
        usleep(1000);
    send_text(second, "}");
    struct pollfd p[] = { { .fd = first, .events = POLLIN }, { .fd = second, .events = POLLIN } };
    assert_int_equal(poll(p, 2, LOST_S * 1000), 1);
    assert_true(p[1].revents);
    for (int i = 0; i < 2; i++) {
        struct answer a = read_answer(i ? first : second);
        assert_int_equal(a.status, 200);
        answer_free(&a);
        close(i ? first : second);
    }
}

/* ---- limits ---------------------------------------------------------------------------------------- */

static void is_refused(const char *key, const char *body, int status, const char *part)
{
    struct answer a = ask(&served, "POST", CHAT, key, body);
    if (a.status != status || !strstr(a.body, part))
        fail_msg("%s: %d %s", key, a.status, a.body);
    assert_int_equal(strcasestr(a.head, "Retry-After: ") != NULL, status == 429);
    answer_free(&a);
}

/* Answers that run or wait count, of all keys of the label; those of other labels go on. */
static void requests_at_once(void **state)
{
    (void)state;
    int fd = connect_to(&served);
    send_request(fd, "POST", CHAT, ALICE, chat(1900, 1, true));
    while (of_key("answers_running", "alice") < 1)
        usleep(1000);
    static const char two[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":2,\"n\":2}";
    static const char three[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":2,\"n\":3}";
    double refused = of_key("refused_total", "alice");
    is_refused("x-api-key: sk-alice-secret-2\r\n", two, 429, "this API key has 1 of 2 answers running; retry in 1 s");
    is_refused(ALICE, three, 400, "may have 2 answers at once, and the request asks for 3");
    assert_true(of_key("refused_total", "alice") == refused + 2);
    assert_int_equal(ask_status(&served, "POST", CHAT, ALICE, chat(2, 2, false)), 200);
    assert_int_equal(ask_status(&served, "POST", CHAT, CAROL, two), 200);
    close(fd);
    while (of_key("answers_running", "alice") > 0)
        usleep(1000);
    assert_int_equal(ask_status(&served, "POST", CHAT, ALICE, two), 200);
}

/* The bucket of one token is spent by the prompt of the first request, before its answer begins; the debt takes minutes. */
static void tokens_per_minute(void **state)
{
    (void)state;
    int fd[2];
    for (int i = 0; i < 2; i++) { /* the server's places are taken, so bob's request waits */
        fd[i] = connect_to(&served);
        send_request(fd[i], "POST", CHAT, CAROL, chat(1900, i, true));
    }
    while (of_key("answers_running", "key-4") < 2)
        usleep(1000);
    int waiting = connect_to(&served);
    send_request(waiting, "POST", CHAT, BOB, chat(20, 1, false));
    while (of_key("answers_running", "bob") < 1)
        usleep(1000);
    is_refused(BOB, chat(20, 1, false), 429, "has used its 1 tokens per minute");
    for (int i = 0; i < 2; i++)
        close(fd[i]);
    struct answer first = read_answer(waiting);
    assert_int_equal(first.status, 200);
    answer_free(&first);
    close(waiting);
    struct answer a = ask(&served, "POST", CHAT, BOB, chat(20, 1, false));
    assert_int_equal(a.status, 429);
    assert_non_null(strstr(a.body, "has used its 1 tokens per minute; retry in "));
    assert_non_null(strstr(a.body, "rate_limit_exceeded"));
    assert_true(atoi(strcasestr(a.head, "Retry-After: ") + 13) > 600);
    answer_free(&a);
    assert_int_equal(ask_status(&served, "GET", "/v1/models", BOB, NULL), 200);
    assert_true(of_key("generation_tokens_total", "bob") == 20);
    assert_true(of_key("requests_total", "bob") == 1);
}

/* ---- metrics --------------------------------------------------------------------------------------- */

static void a_key_for_metrics_reads_nothing_else(void **state)
{
    (void)state;
    static const char *const path[] = { "/v1/models", "/status", "/slots", "/ready", "/nothing" };
    for (size_t i = 0; i < sizeof path / sizeof *path; i++)
        assert_int_equal(ask_status(&served, "GET", path[i], SCRAPE, NULL), 403);
    assert_int_equal(ask_status(&served, "POST", CHAT, SCRAPE, chat(2, 1, false)), 403);
    assert_int_equal(ask_status(&served, "GET", "/metrics", SCRAPE, NULL), 200);
    assert_int_equal(ask_status(&served, "GET", "/metrics", ALICE, NULL), 403);
    double unauthorized = metric(&served, SCRAPE, "\nspillway_unauthorized_total{");
    assert_int_equal(ask_status(&served, "GET", "/metrics", "", NULL), 401);
    assert_true(metric(&served, SCRAPE, "\nspillway_unauthorized_total{") == unauthorized + 1);

    write_keys("sk-alice-secret label=alice requests=2\n"); /* without such a key, all keys read the metrics */
    eng_serve_reload(served.server);
    while (ask_status(&served, "GET", "/metrics", ALICE, NULL) != 200)
        usleep(1000);
    assert_int_equal(ask_status(&served, "GET", "/metrics", SCRAPE, NULL), 401);
    write_keys(with_scraper);
    eng_serve_reload(served.server);
    while (ask_status(&served, "GET", "/metrics", SCRAPE, NULL) != 200)
        usleep(1000);
}

static void keys_are_counted(void **state)
{
    (void)state;
    static const char again[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Count the keys, and then count them again, "
        "please.\"}],\"max_tokens\":7,\"ignore_eos\":true}";
    double requests, prompt, answer, cached;
    assert_int_equal(ask_status(&served, "POST", CHAT, CAROL, again), 200);
    requests = of_key("requests_total", "key-4");
    prompt = of_key("prompt_tokens_total", "key-4");
    answer = of_key("generation_tokens_total", "key-4");
    cached = of_key("cached_tokens_total", "key-4");
    struct answer a = ask(&served, "POST", CHAT, CAROL, again);
    assert_int_equal(a.status, 200);
    json_t *root = json_loads(a.body, 0, NULL), *usage = json_object_get(root, "usage");
    double n_prompt = json_number_value(json_object_get(usage, "prompt_tokens"));
    double n_cached = json_number_value(
        json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    assert_true(n_prompt > 0 && n_cached > 0);
    assert_true(of_key("requests_total", "key-4") == requests + 1);
    assert_true(of_key("prompt_tokens_total", "key-4") == prompt + n_prompt);
    assert_true(of_key("generation_tokens_total", "key-4") == answer + 7);
    assert_true(of_key("cached_tokens_total", "key-4") == cached + n_cached);
    json_decref(root);
    answer_free(&a);
    a = ask(&served, "GET", "/metrics", SCRAPE, NULL);
    free(expo_well(a.body));
    assert_null(strstr(a.body, "secret"));
    static const char *const others[] = { "\nprocess_cpu_seconds_total ",
                                          "\nprocess_start_time_seconds ",
                                          "\nprocess_resident_memory_bytes ",
                                          "\nprocess_open_fds ",
                                          "\nprocess_max_fds ",
                                          "\nprocess_threads ",
                                          "\nspillway_build_info{" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_non_null(strstr(a.body, others[i]));
    double start = strtod(strstr(a.body, "\nprocess_start_time_seconds ") + 28, NULL), now = (double)time(NULL);
    assert_true(start > now - 24 * 3600 && start < now + 2);
    double threads = strtod(strstr(a.body, "\nprocess_threads ") + 17, NULL);
    assert_true(threads >= 4 && threads < 100);
    double resident = strtod(strstr(a.body, "\nprocess_resident_memory_bytes ") + 31, NULL);
    assert_true(resident > 1e6 && resident < 1e10);
    answer_free(&a);
}

/* /metrics has each metric that the dashboard and the alerts name.  Those of drafts are printed with --draft only. */
static void configs_name_metrics_that_exist(void **state)
{
    (void)state;
    static const char *const file[] = { "configs/grafana.json", "configs/alerts.yml" };
    static const char *const begins[] = { "vllm:", "spillway_", "process_" };
    struct answer a = ask(&served, "GET", "/metrics", SCRAPE, NULL);
    for (size_t i = 0; i < 2; i++) {
        char *text;
        size_t n;
        int n_named = 0;
        assert_int_equal(eng_read_file(file[i], &text, &n), 0);
        char *copy = strndup(text, n);
        kn_free(text);
        for (size_t b = 0; b < 3; b++)
            for (const char *p = copy; (p = strstr(p, begins[b])); p++) {
                char type[160];
                size_t length = strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789_:");
                bool whole = p == copy || !isalnum((unsigned char)p[-1]);
                if (!whole || length <= strlen(begins[b]) || !strncmp(p, "vllm:spec_", 10) ||
                    !strncmp(p, "spillway_draft_", 15))
                    continue;
                if (!strncmp(p + length - 7, "_bucket", 7))
                    length -= 7;
                snprintf(type, sizeof type, "\n# TYPE %.*s ", (int)length, p);
                if (!strstr(a.body, type))
                    fail_msg("%s names %.*s, which /metrics has not", file[i], (int)length, p);
                n_named++;
            }
        assert_true(n_named > 10);
        free(copy);
    }
    answer_free(&a);
}

/* ---- the log --------------------------------------------------------------------------------------- */

/* The log of these requests in this form; the caller frees it. */
static char *log_of(kn_log_sink *form)
{
    static const char *const body[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"my prompt\"}],\"max_tokens\":5,\"ignore_eos\":true}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"my prompt\" my prompt",
        "{\"messages\":[{\"role\":\"my prompt\",\"content\":\"my prompt\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"my prompt\"}],\"model\":\"my prompt\"}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"my prompt\"}],\"my prompt\":1,\"n\":\"my prompt\"}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"my prompt\"}],\"stop\":[\"my prompt\",\"\"]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"my "
        "prompt\"}}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
        "\"name\":\"x\",\"schema\":{\"type\":\"my prompt\",\"not\":{}}}}}",
        "my prompt",
    };
    int file = open(log_file, O_RDWR | O_TRUNC), kept = dup(STDERR_FILENO);
    fflush(stderr);
    dup2(file, STDERR_FILENO);
    kn_log_set(form, KN_LOG_DEBUG);
    for (size_t i = 0; i < sizeof body / sizeof *body; i++)
        ask_status(&served, "POST", CHAT, CAROL "X-Request-Id: mine-7\r\n", body[i]);
    ask_status(&served, "POST", CHAT, "Authorization: Bearer my-wrong-secret\r\n", body[0]);
    ask_status(&served, "GET", "/v1/unknown?key=my-query-secret", CAROL, NULL);
    kn_log_set(NULL, KN_LOG_WARN);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    static char text[1 << 16];
    ssize_t n = pread(file, text, sizeof text - 1, 0);
    close(file);
    text[n > 0 ? n : 0] = 0;
    return strdup(text);
}

static void the_log_has_numbers_and_no_text(void **state)
{
    (void)state;
    for (int json = 0; json < 2; json++) {
        char *text = log_of(json ? eng_log_json : eng_log_text);
        if (strstr(text, "secret") || strstr(text, "my prompt"))
            fail_msg("%s", text);
        int n_line = 0, n_answered = 0;
        for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, n_line++) {
            *end = 0;
            if (!json) {
                n_answered += strstr(line, " info mine-7 key-4 POST " CHAT " from 127.0.0.1: 200; ") != NULL &&
                              strstr(line, " cached; waited ") && strstr(line, "; 5 tokens in ");
                continue;
            }
            json_t *root = json_loads(line, 0, NULL);
            if (!root)
                fail_msg("%s", line);
            if (!strcmp(json_string_value(json_object_get(root, "message")), "answered")) {
                n_answered++;
                assert_string_equal(json_string_value(json_object_get(root, "id")), "mine-7");
                assert_string_equal(json_string_value(json_object_get(root, "key")), "key-4");
                assert_string_equal(json_string_value(json_object_get(root, "path")), CHAT);
                assert_string_equal(json_string_value(json_object_get(root, "level")), "info");
                assert_int_equal(json_integer_value(json_object_get(root, "status")), 200);
                assert_int_equal(json_integer_value(json_object_get(root, "tokens")), 5);
                assert_true(json_integer_value(json_object_get(root, "prompt_tokens")) > 5);
                assert_true(json_real_value(json_object_get(root, "duration_s")) > 0);
            }
            json_decref(root);
        }
        if (n_line != 11 || n_answered != 1)
            fail_msg("%d lines, %d answered", n_line, n_answered);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shorter_text_passes_a_long_one),
        cmocka_unit_test(requests_at_once),
        cmocka_unit_test(tokens_per_minute),
        cmocka_unit_test(a_key_for_metrics_reads_nothing_else),
        cmocka_unit_test(keys_are_counted),
        cmocka_unit_test(configs_name_metrics_that_exist),
        cmocka_unit_test(the_log_has_numbers_and_no_text),
    };
    kn_log_set(NULL, KN_LOG_WARN);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
