/* Batch jobs. Every line is answered exactly once, with the same bytes as alone: with any other lines in the file,
 * after kills and stops at any time, and after a failure of any system call. Also: bad lines, /metrics, and the
 * command.
 *
 * The model is tiny and random; lines are completions and chats with one choice or several. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/cli/batch_metrics.h"
#include "engine/text/chat_prompt.h"
#include "engine/cli/cli.h"
#include "engine/internal.h"
#include "moe/moe.h"
#include "tests/engine/serve/exposition.h"
#include "tests/faults.h"
#include "tests/power.h"
#include "tests/send.h"
#include "tests/scratch.h"

#define N_LINE 24
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOW 1 /* fewer rounds */
#else
#define SLOW 0
#endif
#define N_CTX 256

static char folder[64], model[96], in[96], out[96], errors[96];

static int set_up(void **state)
{
    struct kn_team *team;
    (void)state;
    if (!scratch_make(folder, sizeof folder, "batch") || kn_team_open(&team, 1))
        return -1;
    snprintf(model, sizeof model, "%s/model.gguf", folder);
    snprintf(in, sizeof in, "%s/in", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(errors, sizeof errors, "%s/errors", folder);
    int error = moe_synth(
        model, &(struct moe_synth_options){
                   .shape = "tiny", .n_layer = 2, .n_vocab = 300, .format = KN_Q4_K, .seed = 3, .team = team });
    kn_team_close(team);
    return error;
}

static int tear_down(void **state)
{
    char heat[128];
    (void)state;
    snprintf(heat, sizeof heat, "%s.heat", model);
    unlink(heat);
    unlink(model);
    return rmdir(folder);
}

/* ---- files ------------------------------------------------------------------------------------- */

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

struct file {
    char *text, *line[512];
    size_t bytes;
    int n;
};

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The lines, sorted: their order in the file is not specified. */
static struct file get(const char *path)
{
    struct file f = { 0 };
    FILE *stream = fopen(path, "r");
    assert_non_null(stream);
    f.text = calloc(1, 1 << 20);
    f.bytes = fread(f.text, 1, (1 << 20) - 1, stream);
    fclose(stream);
    assert_true(f.bytes == 0 || f.text[f.bytes - 1] == '\n');
    for (char *p = strtok(f.text, "\n"); p; p = strtok(NULL, "\n"))
        f.line[f.n++] = p;
    qsort(f.line, (size_t)f.n, sizeof *f.line, by_text);
    return f;
}

static void assert_same_lines(const struct file *a, const struct file *b)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        assert_string_equal(a->line[i], b->line[i]);
}

static void forget(void)
{
    unlink(out);
    unlink(errors);
}

/* Requests of several kinds. The file and its date are always the same. */
static void put_requests(void)
{
    FILE *f = fopen(in, "w");
    assert_non_null(f);
    for (int i = 0; i < N_LINE; i++) {
        fprintf(f, "{\"custom_id\":\"id-%d\",\"method\":\"POST\",", i);
        if (i % 3 == 0)
            fprintf(f,
                    "\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":"
                    "\"number %d\"}],\"max_tokens\":%d,\"stream\":true}}\n",
                    i, 1 + i % 11);
        else
            fprintf(f, "\"url\":\"/v1/completions\",\"body\":{\"prompt\":%s,\"max_tokens\":%d,\"n\":%d%s}}\n",
                    i % 7 ? "\"some words to go on from\"" : "[\"one\",\"and two\"]", 1 + i % 13, i % 5 == 4 ? 5 : 1,
                    i % 4 == 1 ? ",\"seed\":7" : "");
    }
    assert_int_equal(fclose(f), 0);
    struct timespec when[2] = { { .tv_sec = 1700000000 }, { .tv_sec = 1700000000 } };
    assert_int_equal(utimensat(AT_FDCWD, in, when, 0), 0);
}

/* ---- jobs -------------------------------------------------------------------------------------- */

struct job {
    struct eng_batch *batch;
    struct eng_batch_run *run;
    struct eng_engine *engine;
    struct eng_chat *chat;
    struct eng_api_setup setup;
    struct eng_tool_format format;
    struct eng_batch_counts counts;
};

static void open_engine(struct job *j, int n_parallel)
{
    static const char *const name = "tiny";
    assert_int_equal(eng_open(&j->engine, &(struct eng_options){ .model = model,
                                                                 .isa = KN_ISA_COUNT - 1,
                                                                 .n_ctx = N_CTX,
                                                                 .n_parallel = n_parallel,
                                                                 .n_thread = 1,
                                                                 .max_prefill_slowdown = 1e9,
                                                                 .grammar_bytes = 1 << 20 }),
                     0);
    assert_int_equal(eng_chat_open(&j->chat, eng_file(j->engine), eng_vocab(j->engine), model), 0);
    j->setup = (struct eng_api_setup){ .vocab = eng_vocab(j->engine),
                                       .chat = j->chat,
                                       .gr_tokens = eng_grammar_tokens(j->engine),
                                       .model = &name,
                                       .n_model = 1,
                                       .any_model = true,
                                       .n_ctx = N_CTX,
                                       .n_predict = -1 };
    eng_api_setup_from_template(&j->setup, &j->format);
    spec_params_default(&j->setup.sampling);
}

static void close_engine(struct job *j)
{
    eng_chat_close(j->chat);
    eng_close(j->engine);
}

/* Runs at most n_step steps (-1: all), then settles as a stopped program does. Returns the last result of
 * eng_batch_run_step, or an error of open or settle. */
static int go(struct job *j, int n_step, bool retry_failed)
{
    j->batch = NULL;
    j->run = NULL;
    int kept, got = eng_batch_open(
                  &j->batch,
                  &(struct eng_batch_options){
                      .in = in, .out = out, .errors = errors, .retry_failed = retry_failed, .gather_ns = 2000000 });
    if (!got)
        got = eng_batch_run_open(&j->run, j->batch, j->engine, &j->setup, j->engine->assets.opt.n_parallel);
    if (!got)
        for (got = 1; got == 1 && n_step != 0; n_step--)
            got = eng_batch_run_step(j->run);
    if (j->batch) {
        if ((kept = eng_batch_settle(j->batch)))
            got = kept;
        eng_batch_counts(j->batch, &j->counts);
    }
    eng_batch_run_close(j->run);
    eng_batch_close(j->batch);
    return got;
}

/* The output of a job that runs without a fault. */
static void whole_job(struct file *answers, struct file *failures)
{
    struct job j;
    forget();
    open_engine(&j, 4);
    assert_int_equal(go(&j, -1, false), 0);
    close_engine(&j);
    *answers = get(out);
    *failures = get(errors);
    forget();
}

static void free_files(struct file *a, struct file *b)
{
    free(a->text);
    free(b->text);
}

/* ---- the same bytes for any batch size --------------------------------------------------------- */

static void lines_have_their_bytes_in_any_company(void **state)
{
    static const int parallel[] = { 3, 1, 16 };
    struct file want, none;
    struct job j;
    (void)state;
    put_requests();
    whole_job(&want, &none);
    assert_int_equal(want.n, N_LINE);
    assert_int_equal(none.n, 0);
    for (int i = 0; i < N_LINE; i++) {
        json_t *told = json_loads(want.line[i], JSON_ALLOW_NUL, NULL); /* output bytes are random */
        const json_t *response = json_object_get(told, "response");
        const json_t *body = json_object_get(response, "body");
        assert_int_equal(json_integer_value(json_object_get(response, "status_code")), 200);
        assert_true(json_array_size(json_object_get(body, "choices")) > 0);
        assert_int_equal(json_integer_value(json_object_get(body, "created")), 1700000000);
        json_decref(told);
    }
    for (int i = 0; i < (SLOW ? 1 : 3); i++) {
        open_engine(&j, parallel[i]);
        assert_int_equal(go(&j, -1, false), 0);
        close_engine(&j);
        struct file have = get(out);
        assert_same_lines(&have, &want);
        assert_int_equal(j.counts.done, N_LINE);
        assert_true(j.counts.n_token > N_LINE);
        free(have.text);
        forget();
    }
    free_files(&want, &none);
}

/* ---- bad lines --------------------------------------------------------------------------------- */

static void bad_lines_stop_nothing_and_are_told_once(void **state)
{
    static const char good[] = "\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\","
                               "\"max_tokens\":3}}\n";
    static const struct {
        const char *id, *code;
        int status;
    } want[] = { /* sorted by custom_id, code */
                 { NULL, "invalid_json_line", 0 },
                 { NULL, "invalid_json_line", 0 },
                 { NULL, "missing_custom_id", 0 },
                 { "a", "duplicate_custom_id", 0 },
                 { "a", "duplicate_custom_id", 0 },
                 { "long", NULL, 400 },
                 { "type", NULL, 400 },
                 { "url", "invalid_url", 0 }
    };
    char text[16384], words[4096];
    struct job j;
    (void)state;
    memset(words, 'x', sizeof words - 1);
    words[sizeof words - 1] = 0;
    snprintf(text, sizeof text,
             "{\"custom_id\":\"a\",%s{\"custom_id\"\nnothing\n\n{%s{\"custom_id\":\"a\",%s"
             "{\"custom_id\":\"b\",%s{\"custom_id\":\"long\",\"method\":\"POST\",\"url\":\"/v1/completions\","
             "\"body\":{\"prompt\":\"%s\"}}\n{\"custom_id\":\"type\",\"method\":\"POST\",\"url\":"
             "\"/v1/completions\",\"body\":{\"prompt\":\"a\",\"max_tokens\":\"many\"}}\n"
             "{\"custom_id\":\"url\",\"method\":\"POST\",\"url\":\"/v1/nothing\",\"body\":{}}\n"
             "{\"custom_id\":\"a\",%s{\"custom_id\":\"last\",%s",
             good, good, good, good, words, good, good);
    text[strlen(text) - 1] = 0; /* the last line may lack its newline */
    put(in, text);
    for (int again = 0; again < 3; again++) { /* the second run changes nothing; the third retries */
        open_engine(&j, 2);
        assert_int_equal(go(&j, -1, again == 2), 0);
        close_engine(&j);
        struct file answers = get(out), failures = get(errors);
        assert_int_equal(answers.n, 3);
        assert_int_equal(failures.n, 8);
        assert_int_equal(j.counts.total, 11);
        assert_int_equal(j.counts.done, again == 0 ? 11 : again == 1 ? 0 : 8);
        assert_int_equal(j.counts.before, 11 - (int)j.counts.done);
        assert_int_equal(j.counts.failed + j.counts.failed_before, 8);
        bool found[8] = { false };
        for (int i = 0; i < failures.n; i++) {
            json_t *told = json_loads(failures.line[i], 0, NULL);
            const char *id = json_string_value(json_object_get(told, "custom_id"));
            const char *code = json_string_value(json_object_get(json_object_get(told, "error"), "code"));
            const json_t *response = json_object_get(told, "response");
            int status = (int)json_integer_value(json_object_get(response, "status_code")), k = 0;
            while (k < 8 &&
                   (found[k] || status != want[k].status || !id != !want[k].id || (id && strcmp(id, want[k].id)) ||
                    !code != !want[k].code || (code && strcmp(code, want[k].code))))
                k++;
            if (k == 8)
                fail_msg("not expected: %s", failures.line[i]);
            found[k] = true;
            if (status)
                assert_non_null(json_object_get(json_object_get(response, "body"), "error"));
            json_decref(told);
        }
        free_files(&answers, &failures);
    }
    open_engine(&j, 2); /* a line that fails at run time also counts as failed */
    j.setup.n_ctx = 4 * sizeof words;
    assert_int_equal(go(&j, -1, true), 0);
    close_engine(&j);
    struct file answers = get(out), failures = get(errors);
    assert_int_equal(answers.n, 3);
    assert_int_equal(failures.n, 8);
    int n_503 = 0;
    for (int i = 0; i < failures.n; i++)
        n_503 += strstr(failures.line[i], "\"custom_id\":\"long\",\"response\":{\"status_code\":503,") != NULL;
    assert_int_equal(n_503, 1);
    free_files(&answers, &failures);
    forget();
}

/* ---- stopped and killed ------------------------------------------------------------------------ */

static void stopped_after_any_step_it_goes_on(void **state)
{
    struct file want, none;
    struct job j;
    (void)state;
    put_requests();
    whole_job(&want, &none);
    open_engine(&j, 3);
    for (int n_step = SLOW ? 5 : 0; n_step < 40; n_step = 2 * n_step + 1) {
        int got = 1;
        for (int run = 0; got == 1; run++) {
            assert_true(run < 400);
            got = go(&j, n_step + run, false); /* one step more per run, so that the job ends */
            struct file half = get(out);
            assert_int_equal(half.n, j.counts.before + j.counts.done);
            free(half.text);
        }
        assert_int_equal(got, 0);
        struct file have = get(out);
        assert_same_lines(&have, &want);
        free(have.text);
        forget();
    }
    close_engine(&j);
    free_files(&want, &none);
}

static void killed_at_any_moment_it_goes_on(void **state)
{
    struct file want, none;
    uint64_t random = 5;
    int n_kill = 0;
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: killing a child that forked with threads is not for ThreadSanitizer\n");
    skip();
#endif
    put_requests();
    whole_job(&want, &none);
    for (int round = 0; round < (SLOW ? 1 : 3); round++) {
        double most_us = 20000; /* time until the kill: grows, so that the job ends on any machine */
        for (int run = 0, status = -1; status != 0; run++, most_us *= 1.1) {
            assert_true(run < 200);
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) {
                struct job j;
                open_engine(&j, 4);
                _exit(go(&j, -1, false) == 0 ? 0 : 1);
            }
            usleep((unsigned)((double)(kn_mix(++random) % 1000) / 1000 * most_us));
            kill(child, SIGKILL);
            assert_int_equal(waitpid(child, &status, 0), child);
            n_kill += WIFSIGNALED(status);
            assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        }
        struct file have = get(out);
        assert_same_lines(&have, &want);
        free(have.text);
        forget();
    }
    assert_true(n_kill > 0);
    free_files(&want, &none);
}

/* ---- power cuts -------------------------------------------------------------------------------- */

/* One job with power cuts; returns their number.  The outputs are in a folder of their own, since the files of the model
 * are not written. */
static int job_with_power_cuts(struct job *j, const char *own, uint64_t seed)
{
    int n_cut = 0, got = 1;
    power_on(own, kn_mix(seed));
    for (int run = 0; got; run++) {
        assert_true(run < 100);
        power_cut_at(run < 8 ? 1 + (long)power_random(8) : 0);
        faults.n_line = 0;
        got = go(j, run < 8 ? 4 + (int)power_random(20) : -1, false);
        if (power.cut) {
            power_back();
            n_cut++;
            got = 1;
        } else if (got < 0) {
            assert_int_equal(got, KN_EINVAL);
            assert_non_null(strstr(faults.last, ": not a line of a batch's output"));
            if (!power_sed(faults.last))
                unlink(strstr(faults.last, errors) ? errors : out);
            power_forget();
        }
    }
    power_back();
    power_off();
    return n_cut;
}

static void after_power_cuts_it_goes_on(void **state)
{
    struct file want, none;
    struct job j;
    char own[80];
    int n_cut = 0, n_seed = SLOW ? 2 : 12;
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: calls are replaced while the engine's threads run, under ThreadSanitizer\n");
    skip();
#endif
    put_requests();
    whole_job(&want, &none);
    snprintf(own, sizeof own, "%s/cuts", folder);
    assert_int_equal(mkdir(own, 0700), 0);
    snprintf(out, sizeof out, "%s/out", own);
    snprintf(errors, sizeof errors, "%s/errors", own);
    open_engine(&j, 4);
    faults_listen();
    for (int seed = 0; seed < n_seed; seed++) {
        n_cut += job_with_power_cuts(&j, own, (uint64_t)seed);
        struct file have = get(out), failures = get(errors);
        assert_same_lines(&have, &want);
        assert_int_equal(failures.n, 0);
        free_files(&have, &failures);
        forget();
    }
    faults_listen_off();
    close_engine(&j);
    assert_true(n_cut >= n_seed);
    assert_int_equal(rmdir(own), 0);
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(errors, sizeof errors, "%s/errors", folder);
    free_files(&want, &none);
}

/* ---- faults ------------------------------------------------------------------------------------ */

/* Sanitizers try each of the first calls, which differ most, then calls further and further apart. */
static long next_call(long at) { return !SLOW || at < 4 ? at + 1 : at + at; }

/* The requests of put_requests() that differ most. */
static void put_few_requests(void)
{
    put(in,
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":[{\"role\":"
        "\"user\",\"content\":\"Hi\"}],\"max_tokens\":2,\"stop\":[\"zz\"]}}\n"
        "{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[\"one\",\"two\"],"
        "\"max_tokens\":3,\"n\":2,\"logprobs\":1}}\n"
        "{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\",\"max_tokens\":1}}\n");
}

static void any_call_may_fail(void **state)
{
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error;
    } fault[] = { { FAULT_WRITE, FAULT_ERROR, ENOSPC }, { FAULT_WRITE, FAULT_LASTS, ENOSPC },
                  { FAULT_SYNC, FAULT_ERROR, EIO },     { FAULT_READ, FAULT_ERROR, EIO },
                  { FAULT_READ, FAULT_EMPTY, 0 },       { FAULT_READ, FAULT_SHORT, 0 },
                  { FAULT_OPEN, FAULT_ERROR, EACCES },  { FAULT_SIZE, FAULT_ERROR, EIO },
                  { FAULT_RESIZE, FAULT_ERROR, EIO },   { FAULT_STAT, FAULT_ERROR, EIO },
                  { FAULT_RENAME, FAULT_ERROR, EIO },   { FAULT_MAP, FAULT_ERROR, ENOMEM },
                  { FAULT_ALLOC, FAULT_ERROR, ENOMEM } };
    struct file want, none;
    struct job j;
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: a thousand jobs with faults are not for ThreadSanitizer\n");
    skip();
#endif
    put_few_requests();
    whole_job(&want, &none);
    faults_reset();
    open_engine(&j, 4);
    for (size_t k = 0; k < sizeof fault / sizeof *fault; k++) {
        bool struck = true;
        for (long at = 1; struck; at = next_call(at)) {
            long opened = faults.n_open;
            int half = go(&j, 3, false);
            assert_int_equal(half, 1);
            struct file before = get(out);
            faults_again(fault[k].kind, at, fault[k].way, fault[k].error);
            int got = go(&j, -1, false);
            struck = faults.struck;
            faults.way = FAULT_NONE;
            if (got < 0) { /* a log line says why; counts match the file */
                assert_true(faults.n_line >= 1 && faults.line[0]);
                struct file partly = get(out);
                if (j.batch)
                    assert_int_equal(partly.n - before.n, j.counts.done - j.counts.failed);
                free(partly.text);
            }
            assert_int_equal(faults.n_open, opened);
            assert_int_equal(go(&j, -1, true), 0); /* without faults again */
            struct file have = get(out), failures = get(errors);
            assert_int_equal(failures.n, 0);
            assert_same_lines(&have, &want);
            free_files(&have, &failures);
            free(before.text);
            forget();
        }
    }
    close_engine(&j);
    assert_true(faults_clean());
    faults_off();
    free_files(&want, &none);
}

/* ---- /metrics ---------------------------------------------------------------------------------- */

/* Returns -1 if the connection is refused. */
static int connect_to(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

static void ask(int port, const char *request, char *answer, size_t room)
{
    int fd = connect_to(port);
    size_t n = 0;
    ssize_t some;
    assert_true(fd >= 0);
    send_bytes(fd, request, strlen(request));
    while ((some = receive_bytes(fd, answer + n, room - 1 - n)) > 0)
        n += (size_t)some;
    answer[n] = 0;
    close(fd);
}

static void it_can_be_watched(void **state)
{
    static char answer[65536];
    static const char *const line[] = { "HTTP/1.1 200",
                                        "\nspillway_batch_lines 24\n",
                                        "\nspillway_batch_lines_before 5\n",
                                        "\nspillway_batch_lines_done 7\n",
                                        "\nspillway_batch_lines_failed 1\n",
                                        "\nvllm:num_requests_running{model_name=\"m\",engine=\"0\"} 3\n",
                                        "\nvllm:generation_tokens_total{model_name=\"m\",engine=\"0\"} 400\n" };
    struct eng_watch *w, *second = NULL;
    (void)state;
    faults_listen();
    assert_int_equal(eng_watch_open(&w, 0, "m"), 0);
    eng_watch_tell(w, &(struct eng_thread_report){ .n_parallel = 4, .n_job = 3, .engine.n_running = 3 },
                   &(struct eng_batch_counts){ .total = 24, .before = 5, .done = 7, .failed = 1, .n_token = 400 });
    int port = eng_watch_port(w);
    ask(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", answer, sizeof answer);
    for (size_t i = 0; i < sizeof line / sizeof *line; i++)
        if (!strstr(answer, line[i]))
            fail_msg("no %s in %s", line[i], answer);
    free(expo_well(strstr(answer, "\r\n\r\n") + 4));
    ask(port, "POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}", answer, sizeof answer);
    assert_non_null(strstr(answer, " 404 "));
    assert_int_equal(eng_watch_open(&second, port, "m"), KN_EINVAL);
    assert_non_null(strstr(faults.line, "choose another port"));
    assert_null(second);
    eng_watch_close(w);
    eng_watch_close(NULL);
}

/* A client sends many requests, reads the answers so far, and closes while more are written. */
static void who_leaves_ends_no_batch(void **state)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static char many[4000 * (sizeof request - 1) + 1], answer[65536];
    struct eng_watch *w;
    (void)state;
    signal(SIGPIPE, SIG_DFL);
    for (size_t at = 0; at + 1 < sizeof many; at += sizeof request - 1)
        memcpy(many + at, request, sizeof request);
    assert_int_equal(eng_watch_open(&w, 0, "m"), 0);
    for (int i = 0; i < 20; i++) {
        int fd = connect_to(eng_watch_port(w));
        assert_true(fd >= 0 && send(fd, many, sizeof many - 1, MSG_NOSIGNAL | MSG_DONTWAIT) > 0);
        assert_true(receive_bytes(fd, answer, sizeof answer) > 0);
        while (recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0)
            ;
        close(fd);
    }
    ask(eng_watch_port(w), "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", answer,
        sizeof answer);
    assert_non_null(strstr(answer, "HTTP/1.1 200"));
    eng_watch_close(w);
}

/* ---- the command ------------------------------------------------------------------------------- */

static int command(const char *words)
{
    static char copy[1024];
    static struct eng_config config;
    char *argv[16];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    int error = eng_config_parse(&config, ENG_batch, argc, argv);
    return error ? 2 : eng_cmd_batch(&config);
}

static void the_command_says_how_it_went(void **state)
{
    char words[512], beside[128];
    (void)state;
    faults_listen();
    put_requests();
    snprintf(words, sizeof words, "-m %s %s -o %s --errors %s --parallel 4 --ctx-size 256 -t 1", model, in, out,
             errors);
    assert_int_equal(command(words), 0);
    assert_int_equal(faults.n_line, 0);
    assert_int_equal(command(words), 0); /* all lines are done already */
    struct file have = get(out);
    assert_int_equal(have.n, N_LINE);
    free(have.text);
    put(in, "{}\n");
    assert_int_equal(command(words), 1);
    assert_non_null(strstr(faults.line, "1 line failed"));
    assert_int_equal(command(words), 1); /* the line is still not answered */

    faults_listen();
    put(in, "\n\n");
    assert_int_equal(command(words), 2);
    assert_non_null(strstr(faults.line, "the file has no lines"));
    static const char *const other[] = { "\x1f\x8b\x08{}\n", "\xff\xfe{", "PK\3\4" };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) { /* one refusal, not one per apparent line */
        faults_listen();
        put(in, other[i]);
        assert_int_equal(command(words), 2);
        assert_non_null(strstr(faults.line, "a batch must be lines of plain UTF-8 text"));
    }
    put(in, "{}\n");
    faults_listen();
    snprintf(words, sizeof words, "-m %s %s -o %s --errors %s", model, in, in, errors);
    assert_int_equal(command(words), 2);
    assert_non_null(strstr(faults.line, "is both input and output"));
    faults_listen();
    snprintf(words, sizeof words, "-m %s %s/nothing -o %s", model, folder, out);
    assert_int_equal(command(words), 2);
    assert_non_null(strstr(faults.line, "No such file"));
    faults_listen();
    snprintf(words, sizeof words, "-m %s %s", model, in);
    assert_int_equal(command(words), 2);
    assert_non_null(strstr(faults.line, "-o OUT.jsonl"));
    faults_listen_off();
    snprintf(beside, sizeof beside, "%s.errors", out);
    unlink(beside);
    forget();
    unlink(in);
}

static double figure(const char *page, const char *name)
{
    const char *at = strstr(page, name);
    return at ? strtod(at + strcspn(at, " "), NULL) : -1;
}

/* A job of 4000 lines; it is interrupted after a few. */
static void the_command_can_be_watched(void **state)
{
    static char page[65536];
    char words[512];
    struct eng_watch *w;
    int status;
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: a child with threads is not for ThreadSanitizer\n");
    skip();
#endif
    FILE *f = fopen(in, "w");
    assert_non_null(f);
    for (int i = 0; i < 4000; i++)
        fprintf(f,
                "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\","
                "\"max_tokens\":100,\"ignore_eos\":true}}\n",
                i);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(eng_watch_open(&w, 0, "m"), 0);
    int port = eng_watch_port(w);
    snprintf(words, sizeof words,
             "-m %s %s -o %s --errors %s --parallel 4 --ctx-size 256 -t 1 --quiet "
             "--metrics-port %d",
             model, in, out, errors, port);
    faults_listen();
    assert_int_equal(command(words), 2);
    assert_non_null(strstr(faults.line, "choose another port"));
    faults_listen_off();
    eng_watch_close(w);

    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        faults_listen();
        _exit(command(words));
    }
    for (int fd; figure(page, "\nspillway_batch_lines_done") < 1; usleep(1000)) {
        assert_int_equal(waitpid(child, &status, WNOHANG), 0); /* the child still runs */
        if ((fd = connect_to(port)) < 0)
            continue;
        close(fd);
        ask(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", page, sizeof page);
    }
    kill(child, SIGINT);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_true(figure(page, "\nspillway_batch_lines") == 4000 && figure(page, "\nspillway_ready") == 1);
    assert_true(figure(page, "\nvllm:generation_tokens_total") >= 100);
    assert_true(figure(page, "\nspillway_passes_total") >= 100);
    assert_true(figure(page, "\nspillway_memory_budget_bytes") > 0);
    forget();
    unlink(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_have_their_bytes_in_any_company),
        cmocka_unit_test(bad_lines_stop_nothing_and_are_told_once),
        cmocka_unit_test(stopped_after_any_step_it_goes_on),
        cmocka_unit_test(killed_at_any_moment_it_goes_on),
        cmocka_unit_test(after_power_cuts_it_goes_on),
        cmocka_unit_test(any_call_may_fail),
        cmocka_unit_test(it_can_be_watched),
        cmocka_unit_test(who_leaves_ends_no_batch),
        cmocka_unit_test(the_command_says_how_it_went),
        cmocka_unit_test(the_command_can_be_watched),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
