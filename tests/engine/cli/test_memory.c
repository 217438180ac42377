/* The memory limit as the kernel counts it: the program runs in a child at the least --host-mem that it accepts and at
 * a few larger ones, and the child's peak of resident memory (ru_maxrss) is at most --host-mem.
 *
 * A model whose experts do not all fit fills its whole budget, and at the least budget most of it is the fixed part: a
 * part that is counted too small shows as a peak above the budget. Resident memory includes pages of the program and
 * its libraries that a cgroup charges to the first process that read them, so it is the larger figure for small models;
 * tests/budget.sh measures a cgroup's peak, by hand. Sanitizer builds use memory that is not in the budget: skipped. */
#include "tests/engine/cli/program.h"

#include <sys/resource.h>

#define MIB        ((long)1 << 20)
#define MOST_TRIES 16

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

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
    return fclose(f);
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

#define WITHIN(name, words)                                                                                            \
    {                                                                                                                  \
        "stays_within_its_budget " name, stays_within_its_budget, NULL, NULL, words                                    \
    }
#define SMALL "--ctx-size 512 --chunk 64 --quiet "

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
    };
    return cmocka_run_group_tests(tests, make_models, remove_place);
}
