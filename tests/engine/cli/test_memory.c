/* The memory limit as the kernel counts it: the program runs in a child at the least --host-mem that it accepts and at
 * a few larger ones, and the child's peak of resident memory (ru_maxrss) is at most --host-mem.
 *
 * A model whose experts do not all fit fills its whole budget, and at the least budget most of it is the fixed part: a
 * part that is counted too small shows as a peak above the budget. Resident memory includes pages of the program and
 * its libraries that a cgroup charges to the first process that read them, so it is the larger figure for small models;
 * tests/budget.sh measures a cgroup's peak, by hand. Sanitizer builds use memory that is not in the budget: skipped.
 *
 * The largest input: every command that reads texts gets one of 8 MB without a break, and every route of the server gets
 * bodies of the largest size, some of which take 100 times their size as JSON. Each must end with an answer or a refusal,
 * within the budget. The environment variable BUDGETS ("80 120 200 300 600") runs this with other budgets, by hand. */
#include "tests/engine/cli/program.h"

#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "tests/send.h"

#define MIB        ((long)1 << 20)
#define MOST_TRIES 16

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

static void make_long_files(void);

static int make_models(void **state)
{
    char model[4096], draft[4096];
    if (!realpath("evals/train/models/demo-target-q8_0.gguf", model) ||
        !realpath("evals/train/models/demo-draft-q8_0.gguf", draft) || make_place(state))
        return -1;
    if (symlink(model, in_place("demo.gguf")) || symlink(draft, in_place("draft.gguf")))
        return -1;
    does("synth --shape tiny -o moe.gguf --quiet", NULL);
    does("synth --shape tiny-qwen3next -o recurrent.gguf --quiet", NULL);
    does("synth --shape tiny-deepseek2 -o latent.gguf --quiet", NULL);
    FILE *f = fopen(in_place("in.jsonl"), "w");
    for (int i = 0; i < 12; i++)
        fprintf(
            f,
            "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"max_tokens\":24,"
            "\"messages\":[{\"role\":\"user\",\"content\":\"How many eggs are in %d dozen?\"}]%s}}\n",
            i, i, i % 3 ? "" : ",\"response_format\":{\"type\":\"json_object\"}");
    if (fclose(f))
        return -1;
    make_long_files();
    return 0;
}

/* Runs the program with a budget of `mib` MiB; returns its status and sets its peak of resident memory. */
static int run_within(const char *words, int mib, long *peak_bytes)
{
    char all[1024];
    struct rusage used;
    int status;
    FILE *to = tmpfile(), *says = tmpfile();
    assert_true(to && says);
    snprintf(all, sizeof all, "%s --host-mem %dM", words, mib);
    (void)unlink(in_place("out.jsonl"));
    pid_t pid = start(all, -1, fileno(to), fileno(says));
    while (wait4(pid, &status, 0, &used) < 0)
        assert_int_equal(errno, EINTR);
    n_printed = take_text(to, printed, sizeof printed);
    n_said = take_text(says, said, sizeof said);
    *peak_bytes = used.ru_maxrss * 1024;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The least budget that the program accepts. Each refusal names a larger one. */
static int least_budget(const char *words)
{
    int mib = 1, suggested;
    long peak;
    for (int i = 0; i < MOST_TRIES; i++) {
        if (run_within(words, mib, &peak) == 0)
            return mib;
        const char *advice = strstr(said, "--host-mem to ");
        if (!advice || sscanf(advice, "--host-mem to %dM", &suggested) != 1 || suggested <= mib)
            fail_msg("spillway %s --host-mem %dM: %s", words, mib, said);
        mib = suggested;
    }
    fail_msg("spillway %s: refuses %d MiB, which the last refusal suggests", words, mib);
    return 0;
}

static void stays_within_its_budget(void **state)
{
    static const int more[] = { 0, 2, 6, 16 }; /* MiB above the least budget */
    const char *words = *state;
    if (SANITIZED) {
        print_message("skipped: a sanitizer's own memory is not in --host-mem\n");
        skip();
    }
    int least = least_budget(words);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        long peak;
        int mib = least + more[i];
        if (run_within(words, mib, &peak) != 0)
            fail_msg("spillway %s --host-mem %dM: %s", words, mib, said);
        print_message("spillway %s --host-mem %dM: peak %.1f MiB\n", words, mib, (double)peak / MIB);
        if (peak > mib * MIB)
            fail_msg("spillway %s --host-mem %dM: the process took %.1f MiB", words, mib, (double)peak / MIB);
    }
}

/* ---- the largest input -------------------------------------------------------------------------------------------- */

#define SMALL       "--ctx-size 512 --chunk 64 --quiet "
#define LONG_TEXT   8000000
#define MOST_BUDGET 16

/* Writes `head`, then the bytes of `unit` over and over, n in all, then `tail`. */
static void write_long(FILE *f, const char *head, const char *unit, size_t n, const char *tail)
{
    static char block[1 << 16];
    size_t whole = sizeof block / strlen(unit) * strlen(unit);
    for (size_t i = 0; i < whole; i++)
        block[i] = unit[i % strlen(unit)];
    fputs(head, f);
    for (size_t left = n / strlen(unit) * strlen(unit), now; left; left -= now) {
        now = left < whole ? left : whole;
        assert_int_equal(fwrite(block, 1, now, f), now);
    }
    fputs(tail, f);
}

static void make_long_files(void)
{
    static const char line[] = "{\"custom_id\":\"%s\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{"
                               "\"max_tokens\":4,\"prompt\":\"Once";
    char head[256];
    FILE *f = fopen(in_place("long.txt"), "w");
    write_long(f, "", " ", LONG_TEXT, "");
    assert_int_equal(fclose(f), 0);
    f = fopen(in_place("poison.jsonl"), "w");
    snprintf(head, sizeof head, line, "long");
    write_long(f, head, " ", LONG_TEXT, "\"}}\n");
    write_long(f, "{\"custom_id\":\"deep\",\"x\":[[]", ",[]", LONG_TEXT, "]}\n");
    for (int i = 0; i < 3; i++)
        fprintf(f,
                "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"max_tokens\":4,"
                "\"prompt\":\"Once\"}}\n",
                i);
    assert_int_equal(fclose(f), 0);
}

/* The budgets of BUDGETS, or these two. */
static int budgets(int *mib)
{
    const char *text = getenv("BUDGETS");
    int n = 0, used;
    mib[0] = 120, mib[1] = 300;
    for (; text && n < MOST_BUDGET && sscanf(text, "%d%n", &mib[n], &used) == 1; text += used)
        n++;
    return text ? n : 2;
}

static void expect_within(const char *what, int mib, long peak)
{
    print_message("%s, --host-mem %dM: peak %.1f MiB\n", what, mib, (double)peak / MIB);
    if (peak > mib * MIB)
        fail_msg("%s, --host-mem %dM: the process took %.1f MiB", what, mib, (double)peak / MIB);
}

static size_t count_lines(const char *name)
{
    size_t n, n_line = 0;
    char *text = read_bytes(name, &n);
    for (size_t i = 0; i < n; i++)
        n_line += text[i] == '\n';
    free(text);
    return n_line;
}

static void commands_end_with_the_largest_text(void **state)
{
    static const char *const commands[] = {
        "run -m demo.gguf -f long.txt -n 4 --seed 1 " SMALL, "run -m demo.gguf --raw -f long.txt -n 4 --seed 1 " SMALL,
        "eval -m demo.gguf --text long.txt --ctx-size 500000 --quiet", /* refused behind the text: else it takes a minute */
    };
    int mib[MOST_BUDGET], n = budgets(mib);
    long peak;
    (void)state;
    if (SANITIZED)
        skip();
    for (size_t k = 0; k < sizeof commands / sizeof *commands; k++)
        for (int i = 0; i < n; i++) {
            int status = run_within(commands[k], mib[i], &peak);
            if (status != 0 && status != 2)
                fail_msg("spillway %s --host-mem %dM: status %d: %s", commands[k], mib[i], status, said);
            assert_true(status == 0 || said[0]);
            expect_within(commands[k], mib[i], peak);
        }
}

/* The long line and the one with deep JSON are in the errors file, the others are answered. */
static void a_batch_goes_on_behind_the_largest_line(void **state)
{
    int mib[MOST_BUDGET], n = budgets(mib);
    long peak;
    (void)state;
    if (SANITIZED)
        skip();
    for (int i = 0; i < n; i++) {
        (void)unlink(in_place("out.jsonl.errors"));
        int status = run_within("batch -m demo.gguf poison.jsonl -o out.jsonl --parallel 2 " SMALL, mib[i], &peak);
        if (status == 2 && strstr(said, "raise --host-mem")) /* a budget of BUDGETS that is too small for the file */
            continue;
        if (status != 1)
            fail_msg("batch --host-mem %dM: status %d: %s", mib[i], status, said);
        assert_int_equal(count_lines("out.jsonl"), 3);
        assert_int_equal(count_lines("out.jsonl.errors"), 2);
        expect_within("batch", mib[i], peak);
    }
}

/* ---- the server ---------------------------------------------------------------------------------------------------- */

struct long_body {
    const char *path, *head, *unit, *tail;
};

/* Texts without a break, JSON of many small values, and answers longer than their requests. */
static const struct long_body bodies[] = {
    { "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"", " ", "\"}]}" },
    { "/v1/chat/completions", "{\"x\":[[]", ",[]", "],\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}" },
    { "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}", ",{}", "]}" },
    { "/v1/completions", "{\"prompt\":\"", " ", "\"}" },
    { "/v1/completions", "{\"prompt\":[1", ",1", "]}" },
    { "/v1/responses", "{\"input\":\"", "ab", "\"}" },
    { "/v1/responses/input_tokens", "{\"input\":\"", "<", "\"}" },
    { "/v1/messages", "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"", "1", "\"}]}" },
    { "/v1/messages/count_tokens", "{\"messages\":[{\"role\":\"user\",\"content\":\"", " a", "\"}]}" },
    { "/tokenize", "{\"with_pieces\":true,\"prompt\":\"", "\\u0001", "\"}" },
    { "/detokenize", "{\"tokens\":[300", ",300", "]}" },
    { "/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"", " ", "\"}]}" },
    { "/tokenize", "{\"prompt\":{", "\"", "}}" },
};

static int connect_to(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct timeval limit = { HANG_S, 0 };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* Sends a request with a body of n bytes. */
static void send_long(int fd, const struct long_body *b, size_t n)
{
    char *bytes = NULL, head[512];
    size_t n_body;
    FILE *f = open_memstream(&bytes, &n_body);
    write_long(f, b->head, b->unit, n - strlen(b->head) - strlen(b->tail), b->tail);
    assert_int_equal(fclose(f), 0);
    int n_head = snprintf(
        head, sizeof head,
        "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n",
        b->path, n_body);
    send_bytes(fd, head, (size_t)n_head);
    send_bytes(fd, bytes, n_body);
    free(bytes);
}

/* Reads an answer to its end; its status, 0: none. */
static int read_status(int fd)
{
    char bytes[4096];
    int status = 0;
    ssize_t n = receive_bytes(fd, bytes, sizeof bytes - 1);
    if (n > 12) {
        bytes[n] = 0;
        (void)sscanf(bytes, "HTTP/1.%*d %d", &status);
    }
    while (n > 0)
        n = receive_bytes(fd, bytes, sizeof bytes);
    close(fd);
    return status;
}

/* Starts the server with further flags and waits until it is ready. */
static pid_t start_server(const char *flags, int mib, FILE *says, int *port, size_t *max_body)
{
    char words[512];
    const char *at;
    snprintf(words, sizeof words, "serve -m demo.gguf --port 0 --ctx-size 512 --chunk 64 --host-mem %dM %s", mib,
             flags);
    pid_t pid = start(words, -1, -1, fileno(says));
    for (;;) {
        n_said = (size_t)pread(fileno(says), said, sizeof said - 1, 0);
        said[n_said] = 0;
        if ((at = strstr(said, "listening on ")) && (at = strstr(at, "127.0.0.1:")) && strchr(at, '\n'))
            break;
        if (waitpid(pid, &(int){ 0 }, WNOHANG) != 0)
            fail_msg("serve --host-mem %dM: %s", mib, said);
        usleep(10000);
    }
    assert_int_equal(sscanf(at, "127.0.0.1:%d", port), 1);
    assert_non_null(at = strstr(at, "up to "));
    assert_int_equal(sscanf(at, "up to %zu KiB", max_body), 1);
    *max_body <<= 10;
    return pid;
}

/* Two connections send each body of the largest size at once. */
static void serve_within(int mib)
{
    FILE *says = tmpfile();
    struct rusage used;
    size_t max_body;
    int port, status;
    pid_t pid = start_server("--max-connections 64", mib, says, &port, &max_body);
    for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
        int fd[2];
        for (int i = 0; i < 2; i++) {
            fd[i] = connect_to(port);
            send_long(fd[i], &bodies[k], max_body);
        }
        for (int i = 0; i < 2; i++) {
            status = read_status(fd[i]);
            print_message("  %s with '%s': %d\n", bodies[k].path, bodies[k].unit, status);
            if (status < 200 || status > 503)
                fail_msg("serve --host-mem %dM: %s with '%s' has no answer", mib, bodies[k].path, bodies[k].unit);
        }
    }
    kill(pid, SIGTERM);
    while (wait4(pid, &status, 0, &used) < 0)
        assert_int_equal(errno, EINTR);
    (void)take_text(says, said, sizeof said);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("serve --host-mem %dM: status %x: %s", mib, (unsigned)status, said);
    expect_within("serve", mib, used.ru_maxrss * 1024);
}

static void the_server_answers_the_largest_bodies(void **state)
{
    int mib[MOST_BUDGET], n = budgets(mib);
    (void)state;
    if (SANITIZED)
        skip();
    for (int i = 0; i < n; i++)
        serve_within(mib[i]);
}

/* plan says the smallest budget of a server, and the server's refusal of any smaller one names the same: the memory for
 * requests grows with the budget. */
static void the_smallest_budget_of_a_server_is_said(void **state)
{
    static const char flags[] = "demo.gguf --ctx-size 512 --chunk 64";
    char words[256];
    long peak, bytes = 0;
    (void)state;
    snprintf(words, sizeof words, "plan %s --disk-rate 1G --dram-rate 10G --json --host-mem 200M", flags);
    does(words, NULL);
    const char *at = strstr(printed, "\"serve_least_bytes\":");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"serve_least_bytes\":%ld", &bytes), 1);
    int least = (int)((bytes + MIB - 1) / MIB), refused[] = { 1, 40, least - 4 };
    snprintf(words, sizeof words, "serve %s --port 0", flags);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int named = 0;
        assert_int_equal(run_within(words, refused[i], &peak), 2);
        at = strstr(said, "raise --host-mem to ");
        if (!at || sscanf(at, "raise --host-mem to %dM", &named) != 1 || named < least - 1 || named > least + 2)
            fail_msg("plan says %d MiB, serve --host-mem %dM: %s", least, refused[i], said);
    }
    FILE *says = tmpfile();
    size_t max_body;
    int port, status;
    pid_t pid = start_server("", least + 2, says, &port, &max_body); /* a few pages differ between runs */
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fclose(says);
}

#define WITHIN(name, words)                                                                                            \
    {                                                                                                                  \
        "stays_within_its_budget " name, stays_within_its_budget, NULL, NULL, words                                    \
    }
int main(void)
{
    const struct CMUnitTest tests[] = {
        WITHIN("run", "run -m demo.gguf -p Once -n 64 --seed 1 " SMALL),
        WITHIN("run, chunks of 512", "run -m demo.gguf -p Once -n 64 --seed 1 --quiet"),
        WITHIN("run, draft model", "run -m demo.gguf -p Once -n 64 --seed 1 --draft model:draft.gguf " SMALL),
        WITHIN(
            "bench",
            "bench -m demo.gguf --batch 4 --prompt 64 --gen 16 --warmup 0 --rounds 1 --kv-mem 4M --chunk 64 --quiet"),
        WITHIN("batch", "batch -m demo.gguf in.jsonl -o out.jsonl --parallel 4 " SMALL),
        WITHIN("all experts fit", "run -m moe.gguf -p Once -n 64 --seed 1 " SMALL),
        WITHIN("recurrent", "run -m recurrent.gguf -p Once -n 64 --seed 1 " SMALL),
        WITHIN("latent attention", "run -m latent.gguf -p Once -n 64 --seed 1 " SMALL),
        cmocka_unit_test(commands_end_with_the_largest_text),
        cmocka_unit_test(a_batch_goes_on_behind_the_largest_line),
        cmocka_unit_test(the_server_answers_the_largest_bodies),
        cmocka_unit_test(the_smallest_budget_of_a_server_is_said),
    };
    return cmocka_run_group_tests(tests, make_models, remove_place);
}
