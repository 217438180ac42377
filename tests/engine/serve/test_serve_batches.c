/* /v1/files and /v1/batches over real sockets.  The server is a child process, so that it can be killed; the parent has no
 * other thread when it starts one.
 *
 * The server is killed in a forked child, which ThreadSanitizer does not support: not under MODE=tsan. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "engine/cli/cli.h"
#include "tests/engine/serve/serve_client.h"
#include "tests/scratch.h"

#define KEY_A   "Authorization: Bearer key-a\r\n"
#define KEY_B   "x-api-key: key-b\r\n"
#define N_LINE  40
#define N_TOKEN 40

static char folder[64], files[96], keys[96];
static struct served v;
static pid_t child;
static bool one_slow_seat; /* of the next server: one seat, slow passes, a long context */

static void save(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fputs(text, f) < 0 || fclose(f), 0);
}

static char *slurp(const char *path)
{
    char *text = calloc(1, MAX_REPLY);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, MAX_REPLY - 1, f) < MAX_REPLY - 1);
    fclose(f);
    return text;
}

static void drop_line(enum kn_level level, const char *line) { (void)level, (void)line; }

static void start_server(uint64_t most)
{
    int ends[2];
    if (child > 0) { /* a test has failed */
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct eng_serve_options o = serve_defaults();
        o.engine.isa = KN_ISA_COUNT - 1;
        o.engine.n_ctx = 256;
        if (one_slow_seat) {
            o.engine.isa = SLOW_ISA;
            o.engine.n_ctx = 2048;
            o.engine.n_parallel = 1;
        }
        o.api_key_file = keys;
        o.files = files;
        o.files_most = most;
        o.signals = true;
        kn_log_set(drop_line, KN_LOG_ERROR);
        if (eng_serve_open(&v.server, &o))
            _exit(3);
        int port = eng_serve_port(v.server);
        if (write(ends[1], &port, sizeof port) != sizeof port)
            _exit(4);
        int error = eng_serve_run(v.server);
        eng_serve_close(v.server);
        _exit(error ? 5 : 0);
    }
    assert_int_equal(read(ends[0], &v.port, sizeof v.port), sizeof v.port);
    close(ends[0]);
    close(ends[1]);
    while (ask_status(&v, "GET", "/health", "", NULL) != 200)
        usleep(1000);
}

static void end_server(int signal)
{
    int status;
    kill(child, signal);
    assert_int_equal(waitpid(child, &status, 0), child);
    child = 0;
    assert_true(signal == SIGKILL ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Uploads text; returns the id, or fails unless the status is the expected one. */
static char *upload(const char *key, const char *purpose, const char *text, int status)
{
    size_t n = strlen(text);
    char *body = malloc(n + 1000), head[500], *id = NULL;
    int n_body = sprintf(body,
                         "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n%s\r\n--XX\r\n"
                         "Content-Disposition: form-data; name=\"file\"; filename=\"../in.jsonl\"\r\n"
                         "Content-Type: application/octet-stream\r\n\r\n%s\r\n--XX--\r\n",
                         purpose, text);
    int fd = connect_to(&v);
    snprintf(head, sizeof head,
             "POST /v1/files HTTP/1.1\r\nHost: localhost\r\n%sContent-Type: multipart/form-data; boundary=XX\r\n"
             "Content-Length: %d\r\n\r\n",
             key, n_body);
    send_text(fd, head);
    send_bytes(fd, body, (size_t)n_body);
    struct answer a = read_answer(fd);
    close(fd);
    if (a.status != status)
        fail_msg("%d %s", a.status, a.body);
    json_t *o = json_loads(a.body, 0, NULL);
    if (status == 200)
        id = strdup(json_string_value(json_object_get(o, "id")));
    json_decref(o);
    answer_free(&a);
    free(body);
    return id;
}

/* The answer as JSON, owned by the caller; fails unless the status is the expected one. */
static json_t *call(const char *key, const char *method, const char *path, const char *body, int status)
{
    struct answer a = ask(&v, method, path, key, body);
    if (a.status != status)
        fail_msg("%s %s: %d %s", method, path, a.status, a.body);
    json_t *o = json_loads(a.body, 0, NULL);
    assert_non_null(o);
    answer_free(&a);
    return o;
}

static const char *text_at(const json_t *o, const char *name) { return json_string_value(json_object_get(o, name)); }

static int count_at(const json_t *o, const char *name)
{
    return (int)json_integer_value(json_object_get(json_object_get(o, "request_counts"), name));
}

static char *create(const char *input)
{
    char body[300];
    snprintf(body, sizeof body,
             "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/chat/completions\",\"completion_window\":\"24h\"}", input);
    json_t *o = call(KEY_A, "POST", "/v1/batches", body, 200);
    char *id = strdup(text_at(o, "id"));
    json_decref(o);
    return id;
}

static json_t *retrieve(const char *id)
{
    char path[100];
    snprintf(path, sizeof path, "/v1/batches/%s", id);
    return call(KEY_A, "GET", path, NULL, 200);
}

/* Waits until the batch has this status. */
static json_t *wait_status(const char *id, const char *status)
{
    for (;;) {
        json_t *o = retrieve(id);
        if (!strcmp(text_at(o, "status"), status))
            return o;
        if (json_is_integer(json_object_get(o, "completed_at")) || json_is_integer(json_object_get(o, "failed_at")))
            fail_msg("%s", json_dumps(o, 0));
        json_decref(o);
        usleep(3000);
    }
}

static char *content_of(const char *id)
{
    char path[100];
    snprintf(path, sizeof path, "/v1/files/%s/content", id);
    struct answer a = ask(&v, "GET", path, KEY_A, NULL);
    assert_int_equal(a.status, 200);
    char *text = strdup(a.body);
    answer_free(&a);
    return text;
}

/* Lines about i apples; every 7th asks for a stop string that soon comes, every 11th is refused. */
static char *make_lines(int n, int n_token)
{
    char *text = calloc(1, (size_t)n * 400 + 1), *p = text;
    for (int i = 0; i < n; i++)
        p += sprintf(
            p,
            "{\"custom_id\":\"r%d\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":"
            "[{\"role\":\"user\",\"content\":\"Tell me of %d apples.\"}],\"max_tokens\":%d,\"ignore_eos\":true%s%s}}\n",
            i, i, i % 11 == 3 ? -7 : n_token, i % 7 == 1 ? ",\"stop\":\"e\"" : "", i % 5 == 2 ? ",\"n\":2" : "");
    return text;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The lines in the order of their texts; frees text. */
static char *sorted(char *text)
{
    char *line[1000], *out = calloc(1, strlen(text) + 1);
    int n = 0;
    for (char *at = strtok(text, "\n"); at; at = strtok(NULL, "\n"))
        line[n++] = at;
    qsort(line, (size_t)n, sizeof *line, by_text);
    for (int i = 0; i < n; i++)
        strcat(strcat(out, line[i]), "\n");
    free(text);
    return out;
}

static int n_lines(const char *text)
{
    int n = 0;
    for (; (text = strchr(text, '\n')); text++)
        n++;
    return n;
}

/* `spillway batch` on the file that the server has kept, in a process of its own. */
static void run_command(const char *input, const char *out)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        static struct eng_config config;
        char in[200];
        char *argv[] = { "-m", MODEL,        in,  "-o",         strdup(out), "-t",
                         "1",  "--parallel", "2", "--ctx-size", "256",       "--quiet" };
        snprintf(in, sizeof in, "%s/%s", files, input);
        kn_log_set(drop_line, KN_LOG_ERROR);
        if (eng_config_parse(&config, ENG_batch, sizeof argv / sizeof *argv, argv))
            _exit(9);
        _exit(eng_cmd_batch(&config));
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1); /* 1: some lines are refused */
}

/* The text of an interactive request equals that of the batch's line. */
static void assert_as_interactive(const char *outputs, int line)
{
    char id[40], body[400];
    snprintf(id, sizeof id, "\"custom_id\":\"r%d\"", line);
    const char *at = strstr(outputs, id);
    assert_non_null(at);
    while (at > outputs && at[-1] != '\n')
        at--;
    json_t *o = json_loadb(at, strcspn(at, "\n"), 0, NULL),
           *answer = json_object_get(json_object_get(o, "response"), "body");
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me of %d apples.\"}],\"max_tokens\":%d,"
             "\"ignore_eos\":true,\"seed\":%lld}",
             line, N_TOKEN, json_integer_value(json_object_get(answer, "seed")));
    json_t *same = call(KEY_A, "POST", CHAT, body, 200);
    assert_true(json_equal(json_object_get(answer, "choices"), json_object_get(same, "choices")));
    json_decref(o);
    json_decref(same);
}

/* A batch is killed again and again and goes on: no line is lost, none is answered twice, and the lines have the bytes of
 * `spillway batch`.  Another key sees nothing of it. */
static void killed_it_goes_on(void **state)
{
    (void)state;
    char *lines = make_lines(N_LINE, N_TOKEN), path[200], out[128];
    start_server(1 << 20);
    char *input = upload(KEY_A, "batch", lines, 200), *id = create(input);
    for (int run = 0; run < 4; run++) {
        json_t *o;
        while (o = retrieve(id), count_at(o, "completed") < 3 * (run + 1)) {
            json_decref(o);
            usleep(1000);
        }
        json_decref(o);
        end_server(run == 2 ? SIGTERM : SIGKILL);
        start_server(1 << 20);
    }
    json_t *o = wait_status(id, "completed");
    assert_true(count_at(o, "total") == N_LINE && count_at(o, "failed") == 4 && count_at(o, "completed") == 36);
    char *outputs = content_of(text_at(o, "output_file_id")), *errors = content_of(text_at(o, "error_file_id"));
    assert_int_equal(n_lines(outputs), 36);
    assert_int_equal(n_lines(errors), 4);
    assert_as_interactive(outputs, 0);
    assert_as_interactive(outputs, 39);

    const char *foreign[] = { id, input, text_at(o, "output_file_id") };
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "/v1/%s/%s", i ? "files" : "batches", foreign[i]);
        json_decref(call(KEY_B, "GET", path, NULL, 404));
        snprintf(path, sizeof path, i ? "/v1/files/%s/content" : "/v1/batches/%s/cancel", foreign[i]);
        json_decref(call(KEY_B, i ? "GET" : "POST", path, NULL, 404));
    }
    json_t *list = call(KEY_B, "GET", "/v1/files", NULL, 200);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 0);
    json_decref(list);
    list = call(KEY_A, "GET", "/v1/files?purpose=batch_output&limit=1", NULL, 200);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 1);
    assert_true(json_is_true(json_object_get(list, "has_more")));
    json_decref(list);
    end_server(SIGTERM);

    snprintf(out, sizeof out, "%s/out", folder);
    run_command(input, out);
    char *want = sorted(slurp(out)), *have = sorted(outputs);
    assert_string_equal(have, want);
    free(want);
    strcat(out, ".errors");
    char *want_errors = sorted(slurp(out)), *have_errors = sorted(errors);
    assert_string_equal(have_errors, want_errors);
    free(want_errors);
    free(have_errors);
    free(have);
    json_decref(o);
    free(input);
    free(id);
    free(lines);
}

/* An interactive request takes the seat of a batch's answer, which goes on after it. */
static void interactive_requests_go_first(void **state)
{
    (void)state;
    char *lines = make_lines(1, 1900), path[200];
    one_slow_seat = true;
    start_server(1 << 20);
    one_slow_seat = false;
    char *input = upload(KEY_A, "batch", lines, 200), *id = create(input);
    while (metric(&v, KEY_A, "vllm:num_requests_running{") < 1)
        usleep(1000);
    for (int i = 1; i <= 3; i++) {
        json_decref(call(i % 2 ? KEY_A : KEY_B, "POST", CHAT, chat(10, i, false), 200));
        assert_true(metric(&v, KEY_A, "vllm:num_preemptions_total{") >= 1);
    }
    json_t *o = retrieve(id);
    assert_string_equal(text_at(o, "status"), "in_progress");
    assert_int_equal(count_at(o, "completed"), 0);
    json_decref(o);
    snprintf(path, sizeof path, "/v1/batches/%s/cancel", id);
    json_decref(call(KEY_A, "POST", path, NULL, 200));
    json_decref(wait_status(id, "cancelled"));
    end_server(SIGTERM);
    free(input);
    free(id);
    free(lines);
}

static void cancelled_it_keeps_its_answers(void **state)
{
    (void)state;
    char *lines = make_lines(N_LINE, 200), path[200];
    start_server(1 << 20);
    char *input = upload(KEY_A, "batch", lines, 200), *id = create(input);
    json_t *o;
    while (o = retrieve(id), count_at(o, "completed") < 2) {
        json_decref(o);
        usleep(1000);
    }
    json_decref(o);
    snprintf(path, sizeof path, "/v1/files/%s", input);
    json_decref(call(KEY_A, "DELETE", path, NULL, 400)); /* the batch reads it */
    snprintf(path, sizeof path, "/v1/batches/%s/cancel", id);
    json_decref(call(KEY_A, "POST", path, NULL, 200));
    o = wait_status(id, "cancelled");
    assert_true(json_is_integer(json_object_get(o, "cancelling_at")));
    char *outputs = content_of(text_at(o, "output_file_id"));
    assert_int_equal(n_lines(outputs), count_at(o, "completed"));
    assert_true(count_at(o, "completed") >= 2 && count_at(o, "completed") < N_LINE);
    json_decref(call(KEY_A, "POST", path, NULL, 400));
    snprintf(path, sizeof path, "/v1/files/%s", input);
    json_decref(call(KEY_A, "DELETE", path, NULL, 200));
    json_decref(call(KEY_A, "GET", path, NULL, 404));
    json_decref(o);
    free(outputs);
    free(input);
    free(id);
    free(lines);
    end_server(SIGTERM);
}

/* The lines that have no answer when the window has passed are in the errors, as expired. */
static void expired_it_says_so(void **state)
{
    (void)state;
    char *lines = make_lines(N_LINE, 200), path[200], *at;
    start_server(1 << 20);
    char *input = upload(KEY_A, "batch", lines, 200), *id = create(input);
    json_t *o;
    while (o = retrieve(id), count_at(o, "completed") < 2) {
        json_decref(o);
        usleep(1000);
    }
    json_decref(o);
    end_server(SIGTERM); /* finished answers are on disk then */
    snprintf(path, sizeof path, "%s/%s.json", files, id);
    char *record = slurp(path);
    at = strstr(record, "\"expires_at\":");
    assert_non_null(at);
    memcpy(at, "\"expires_at\":1000000000", 23);
    save(path, record);
    start_server(1 << 20);
    o = wait_status(id, "expired");
    char *outputs = content_of(text_at(o, "output_file_id")), *errors = content_of(text_at(o, "error_file_id"));
    int n_expired = 0;
    for (const char *p = errors; (p = strstr(p, "\"code\":\"batch_expired\"")); p++)
        n_expired++;
    assert_true(n_expired > 0 && n_lines(outputs) >= 2);
    assert_int_equal(n_lines(outputs) + n_lines(errors), N_LINE);
    assert_int_equal(count_at(o, "completed") + count_at(o, "failed"), N_LINE);
    json_decref(o);
    free(outputs);
    free(errors);
    free(record);
    free(input);
    free(id);
    free(lines);
    end_server(SIGTERM);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *body, *says;
    } table[] = {
        { "{}", "input_file_id" },
        { "{\"input_file_id\":\"file-0\",\"endpoint\":\"/v1/embeddings\",\"completion_window\":\"24h\"}", "endpoint" },
        { "{\"input_file_id\":\"file-0\",\"endpoint\":\"/v1/completions\",\"completion_window\":\"24\"}",
          "completion_window" },
        { "{\"input_file_id\":\"file-0\",\"endpoint\":\"/v1/completions\",\"completion_window\":\"24h\"}",
          "no such file" },
        { "{\"input_file_id\":\"file-0\",\"endpoint\":\"/v1/completions\",\"completion_window\":\"24h\",\"metadata\":7}",
          "metadata" },
    };
    start_server(1 << 20);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        json_t *o = call(KEY_A, "POST", "/v1/batches", table[i].body, 400);
        char *text = json_dumps(o, 0);
        if (!strstr(text, table[i].says))
            fail_msg("%s, not %s", text, table[i].says);
        free(text);
        json_decref(o);
    }
    assert_null(upload(KEY_A, "fine-tune", "x", 400));
    assert_null(upload("", "batch", "x", 401));
    json_decref(call(KEY_A, "GET", "/v1/files?limit=0", NULL, 400));
    json_decref(call(KEY_A, "GET", "/v1/files?after=file-0", NULL, 404));
    json_decref(call(KEY_A, "GET", "/v1/files/..%2f..%2fkeys/content", NULL, 404));
    json_decref(call(KEY_A, "PUT", "/v1/files", "{}", 405));
    char *input = upload(KEY_A, "batch", "\x1f\x8b gzip", 200), *id = create(input);
    json_t *o;
    while (o = retrieve(id), !strcmp(text_at(o, "status"), "validating")) {
        json_decref(o);
        usleep(1000);
    }
    assert_string_equal(text_at(o, "status"), "failed");
    assert_string_equal(text_at(json_array_get(json_object_get(json_object_get(o, "errors"), "data"), 0), "code"),
                        "invalid_input_file");
    json_decref(o);
    free(input);
    free(id);
    end_server(SIGTERM);
    start_server(1000); /* the files of the tests before take more */
    char *lines = make_lines(N_LINE, 10);
    assert_null(upload(KEY_A, "batch", lines, 507));
    free(lines);
    end_server(SIGTERM);
}

/* An upload is larger than the limit of a body, and than the memory for requests. */
static void large_files_pass(void **state)
{
    (void)state;
    size_t n = 30 << 20;
    char *text = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + kn_mix(i / 8) % 26);
    text[n] = 0;
    start_server(1 << 30);
    char *input = upload(KEY_A, "batch", text, 200), path[200];
    snprintf(path, sizeof path, "%s/%s", files, input);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, n);
    int fd = connect_to(&v);
    snprintf(path, sizeof path, "/v1/files/%s/content", input);
    send_request(fd, "GET", path, KEY_A, NULL);
    struct answer a = read_answer(fd);
    assert_true(a.n_body == n && !memcmp(a.body, text, n));
    answer_free(&a);
    close(fd);
    fd = connect_to(&v); /* a client that leaves in the middle leaves nothing behind */
    send_text(fd, "POST /v1/files HTTP/1.1\r\nHost: localhost\r\n" KEY_A
                  "Content-Type: multipart/form-data; boundary=XX\r\nContent-Length: 100000\r\n\r\n--XX\r\n"
                  "Content-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nxxx");
    close(fd);
    end_server(SIGTERM);
    char command[300];
    snprintf(command, sizeof command, "! ls %s | grep -q part", files);
    assert_int_equal(system(command), 0);
    free(input);
    free(text);
}

static int setup(void **state)
{
    (void)state;
    assert_true(scratch_make(folder, sizeof folder, "serve-batches"));
    snprintf(files, sizeof files, "%s/files", folder);
    snprintf(keys, sizeof keys, "%s/keys", folder);
    save(keys, "key-a\nkey-b\n");
    return 0;
}

static int teardown(void **state)
{
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_it_goes_on),
        cmocka_unit_test(cancelled_it_keeps_its_answers),
        cmocka_unit_test(interactive_requests_go_first),
        cmocka_unit_test(expired_it_says_so),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(large_files_pass),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
