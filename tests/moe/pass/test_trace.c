/* The operations of passes, recorded and run again: on the host none differs, on a device that computes one kind of
 * operation wrong just those are named, and a damaged file is refused.  A replay is a process of its own: this program
 * with arguments.  Not under MODE=tsan, not under MODE=asan: a sanitizer has memory of its own where the recorded process had
 * its heap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/wait.h>

#include "tests/emulated/trace.h"
#include "tests/moe/golden.h"
#include "tests/moe/load.h"

static char file_path[64], trace_path[64], said_path[64];

/* ---- a device that is the host, but for one kind of operation ---------------------------------------------------- */

static enum kn_op_kind wrong_kind;

/* Combines give one float that is a little too large. */
static void wrong_add(struct kn_queue *q, const struct kn_op *op)
{
    kn_host_device(KN_ISA_SCALAR)->backend->queue_add(q, op);
    if (op->kind == wrong_kind)
        ((uint8_t *)op->combine.x)[4] ^= 1;
}

static struct kn_backend wrong_backend;

static int wrong_open(struct kn_queue **out, const struct kn_queue_options *opt)
{
    struct kn_queue_options host = *opt;
    host.device = kn_host_device(KN_ISA_SCALAR);
    int error = kn_queue_open(out, &host);
    if (!error)
        (*out)->backend = &wrong_backend;
    return error;
}

/* The program in a replay: prints how many operations ran, and how many of them had other outputs. */
static int replay(const char *path, const char *kind)
{
    wrong_backend = *kn_host_device(KN_ISA_SCALAR)->backend;
    wrong_backend.queue_open = wrong_open;
    wrong_backend.queue_add = wrong_add;
    wrong_kind = strcmp(kind, "combine") == 0 ? KN_OP_COMBINE : KN_OP_COUNT;
    const struct kn_device device = { &wrong_backend };
    struct trace_options opt = { .device = &device, .out = stdout, .most_lines = 1 };
    struct trace_result r = trace_replay(path, &opt);
    printf("%s %d %d\n", r.error ? r.error : "ran", r.n_op, r.n_wrong);
    return 0;
}

/* Runs a replay in a process of its own; again if its memory lies at a recorded address.  said gets its last line. */
static void run_replay(const char *kind, char said[200])
{
    char line[200];
    do {
        pid_t pid = fork();
        if (pid == 0) {
            if (freopen(said_path, "w", stdout))
                execl("/proc/self/exe", "test_trace", trace_path, kind, (char *)NULL);
            _exit(1);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        FILE *f = fopen(said_path, "r");
        assert_non_null(f);
        *said = 0;
        while (fgets(line, sizeof line, f)) {
            bool is_report = strncmp(line, "operation ", 10) == 0;
            if (is_report)
                assert_non_null(strstr(line, ", combine: byte 4 of x is "));
            else
                strcpy(said, line);
        }
        fclose(f);
    } while (strncmp(said, "this process has memory", 23) == 0);
}

/* ---- recording --------------------------------------------------------------------------------------------------- */

static void record(const char *name)
{
    enum { N = 9, PROMPT = 7 };
    struct trace_device device;
    struct golden g;
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *c;
    int32_t slot[N];
    assert_int_equal(golden_read(&g, name), 0);
    assert_int_equal(golden_write(&g, file_path), 0);
    assert_int_equal(kn_team_open(&team, 2), 0);
    assert_int_equal(moe_file_open(&file, file_path), 0);
    assert_true(trace_open(&device, KN_ISA_COUNT - 1, trace_path));
    struct moe_model_options mo = { .isa = KN_ISA_COUNT - 1, .device = &device.base };
    assert_int_equal(moe_model_open(&model, file, &mo), 0);
    assert_int_equal(moe_model_load(model, &(struct moe_load_options){ .team = team }), 0);
    struct moe_context_options co = { .max_row = PROMPT, .max_want = 1, .n_slot = N, .max_pos = N, .team = team };
    assert_int_equal(moe_context_open(&c, model, &co), 0);
    for (int i = 0; i < N; i++)
        slot[i] = N - 1 - i;
    for (int done = 0, n; done < N; done += n) {
        struct moe_row row[PROMPT];
        struct moe_result result;
        n = done ? 1 : PROMPT;
        for (int i = 0; i < n; i++)
            row[i] = (struct moe_row){
                .token = g.token[done + i], .position = done + i, .want_logits = i == n - 1, .base = slot, .n_base = N
            };
        assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
        assert_int_equal(moe_rows_status(&result, 0, n), 0);
    }
    moe_context_close(c);
    moe_model_close(model);
    assert_true(trace_close(&device));
    moe_file_close(file);
    kn_team_close(team);
    golden_free(&g);
    unlink(file_path);
}

static void replays(void **state)
{
    char said[200];
    int n_op, n_wrong, n_again;
    record(*state);
    run_replay("none", said);
    assert_int_equal(sscanf(said, "ran %d %d", &n_op, &n_wrong), 2);
    assert_true(n_op > 3 * 20);
    assert_int_equal(n_wrong, 0);
    run_replay("combine", said);
    assert_int_equal(sscanf(said, "ran %d %d", &n_again, &n_wrong), 2);
    assert_int_equal(n_again, n_op);
    assert_true(n_wrong >= 3 && n_wrong < n_op / 5); /* one in each layer of three passes */
    unlink(trace_path);
}

static void damaged_files_are_refused(void **state)
{
    char said[200];
    FILE *f;
    (void)state;
    run_replay("none", said);
    assert_string_equal(said, "the file cannot be opened 0 0\n");
    record("llama_gqa");
    assert_int_equal(truncate(trace_path, 100000), 0);
    run_replay("none", said);
    assert_string_equal(said, "the file is cut off 0 0\n");
    assert_non_null(f = fopen(trace_path, "r+"));
    assert_int_equal(fputc('S', f), 'S');
    assert_int_equal(fclose(f), 0);
    run_replay("none", said);
    assert_string_equal(said, "the file is not of this build's operations 0 0\n");
    unlink(trace_path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        { "qwen3moe_norm", replays, NULL, NULL, (void *)(uintptr_t) "qwen3moe_norm" },
        { "qwen3next", replays, NULL, NULL, (void *)(uintptr_t) "qwen3next" },
        { "deepseek2_lite", replays, NULL, NULL, (void *)(uintptr_t) "deepseek2_lite" },
        cmocka_unit_test(damaged_files_are_refused),
    };
    if (argc == 3)
        return replay(argv[1], argv[2]);
    snprintf(file_path, sizeof file_path, "/tmp/spillway-trace-%d.gguf", getpid());
    snprintf(trace_path, sizeof trace_path, "/tmp/spillway-trace-%d.trace", getpid());
    snprintf(said_path, sizeof said_path, "/tmp/spillway-trace-%d.txt", getpid());
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(said_path);
    return n_failed;
}
