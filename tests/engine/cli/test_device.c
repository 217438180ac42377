/* --device cuda as users give it: the same answers as on the host, a budget that holds, and one clear line where the
 * device fails.
 *
 * The program runs on a GPU if there is one, else on the interpreter of PTX (tests/gpu), which it finds as the driver's
 * library.  A build without nvcc refuses the device, and the interpreter needs AVX2; else the other tests are skipped.
 *
 * The interpreter is slow under sanitizers: not under MODE=tsan, not under MODE=asan.  test_serve_device has a device's
 * threads, tests/cuda the rest of its code. */
#include "tests/engine/cli/program.h"

#include "kernels/kernels.h"

#define RUN "run --raw --seed 7 --quiet --temp 1 --top-k 0 --top-p 1 --min-p 0 -p Once -n 12 --threads 2 "

static bool there; /* a device, real or interpreted */

static int make_models(void **state)
{
    char path[4096];
    if (make_place(state))
        return -1;
    snprintf(path, sizeof path, "%.*s/tests/gpu", (int)(strrchr(program, '/') - program), program);
    if (access("/dev/nvidiactl", R_OK) != 0)
        setenv("LD_LIBRARY_PATH", path, 1);
    there = kn_device_built() && kn_isa_best() != KN_ISA_SCALAR; /* the interpreter needs AVX2 */
    does("synth --shape tiny -o m.gguf", NULL);
    does("synth --shape tiny-qwen3next -o delta.gguf", NULL);
    does("synth --shape tiny-glm4moe --ahead -o mtp.gguf", NULL);
    does("synth --shape tiny-dense -o dense.gguf", NULL);
    return 0;
}

static void needs_device(void)
{
    if (!there)
        skip();
}

/* The words' output on the host, and then on the device. */
static void says_as_the_host(const char *words)
{
    static char kept[sizeof printed];
    char with[1024];
    does(words, NULL);
    size_t n = n_printed;
    assert_true(n > 0);
    memcpy(kept, printed, n);
    snprintf(with, sizeof with, "%s --device cuda", words);
    does(with, NULL);
    if (n_printed != n || memcmp(printed, kept, n))
        fail_msg("spillway %s: says\n%sand not\n%s", with, printed, kept);
}

static void answers_are_those_of_the_host(void **state)
{
    (void)state;
    needs_device();
    says_as_the_host(RUN "-m m.gguf");
    says_as_the_host(RUN "-m dense.gguf --kv int8");
    says_as_the_host(RUN "-m delta.gguf");
    says_as_the_host(RUN "-m m.gguf --draft ngram --gamma 3");
    says_as_the_host(RUN "-m m.gguf --draft model:dense.gguf --gamma 2");
    says_as_the_host(RUN "-m mtp.gguf --draft mtp --gamma 2");
}

static void logits_are_those_of_the_host(void **state)
{
    (void)state;
    needs_device();
    does("eval -m m.gguf --ids 1,2,3,4,5,6,7,8,9 --logits host", NULL);
    does("eval -m m.gguf --ids 1,2,3,4,5,6,7,8,9 --logits device --device cuda:0 --chunk 4", NULL);
    assert_true(same_files("host", "device"));
}

static void a_batch_is_that_of_the_host(void **state)
{
    (void)state;
    needs_device();
    char line[512], all[4096] = "";
    for (int i = 0; i < 4; i++) {
        snprintf(line, sizeof line,
                 "{\"custom_id\": \"%d\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": "
                 "\"Once %d\", \"max_tokens\": 6, \"seed\": %d}}\n",
                 i, i, i);
        strcat(all, line);
    }
    write_text("in.jsonl", all);
    does("batch -m m.gguf in.jsonl -o host.jsonl --parallel 3 --quiet", NULL);
    does("batch -m m.gguf in.jsonl -o device.jsonl --parallel 2 --quiet --device cuda", NULL);
    size_t n, m;
    char *host = read_bytes("host.jsonl", &n), *device = read_bytes("device.jsonl", &m);
    for (int i = 0; i < 4; i++) { /* the lines' order and their ids may differ */
        char text[2][256];
        snprintf(line, sizeof line, "\"custom_id\":\"%d\"", i);
        for (int k = 0; k < 2; k++) {
            const char *at = strstr(k ? device : host, line);
            assert_non_null(at);
            const char *from = strstr(at, "\"text\":");
            assert_non_null(from);
            snprintf(text[k], sizeof text[k], "%.*s", (int)strcspn(from + 8, "\""), from + 8);
        }
        assert_string_equal(text[0], text[1]);
    }
    free(host);
    free(device);
}

static void the_budget_is_kept(void **state)
{
    (void)state;
    needs_device();
    assert_int_equal(given(RUN "-m m.gguf --device cuda --device-mem 1M", NULL), 2);
    const char *least = strstr(said, "--device-mem to ");
    assert_non_null(least);
    char words[512];
    snprintf(words, sizeof words, RUN "-m m.gguf --device cuda --device-mem %.*s", (int)strcspn(least + 16, " "),
             least + 16);
    does(words, NULL);
    assert_int_equal(given(RUN "-m m.gguf --device cuda --device-mem 64G", NULL), 2);
    assert_non_null(strstr(said, "MiB of free memory: set --device-mem to at most that"));
    assert_int_equal(given(RUN "-m m.gguf --device cuda --host-mem 20M", NULL), 2);
    least = strstr(said, "--host-mem to ");
    assert_non_null(least);
    snprintf(words, sizeof words, RUN "-m m.gguf --device cuda --host-mem %.*s", (int)strcspn(least + 14, ",: "),
             least + 14);
    does(words, NULL);
    does("plan -m m.gguf --device cuda --device-mem 64M --json", NULL);
    assert_non_null(strstr(printed, "\"device_mem_bytes\":67108864"));
}

/* The nth call of a function of the driver fails. */
static void fails(const char *call, const char *words, const char *says)
{
    setenv("SPILLWAY_GPU_FAIL", call, 1);
    int status = given(words, NULL);
    unsetenv("SPILLWAY_GPU_FAIL");
    if (status < 1 || status > 2 || !strstr(said, says))
        fail_msg("%s: status %d, says %s", call, status, said);
}

static void a_device_that_fails_is_said(void **state)
{
    (void)state;
    needs_device();
    if (access("/dev/nvidiactl", R_OK) == 0)
        skip();
    fails("cuMemAlloc_v2:2", RUN "-m m.gguf --device cuda", "CUDA: taking memory: out of memory");
    fails("cuMemHostAlloc:2", RUN "-m m.gguf --device cuda", "CUDA: taking memory: out of memory");
    fails("cuStreamCreate:1", RUN "-m m.gguf --device cuda", "CUDA: opening a queue");
    fails("cuLaunchKernel:200:719", RUN "-m m.gguf --device cuda", "CUDA: launching a kernel");
    fails("cuStreamSynchronize:68:719", RUN "-m m.gguf --device cuda", "CUDA: waiting for the device");
    fails("cuModuleLoadData:2:209", RUN "-m m.gguf --device cuda", "no code for this GPU");
}

static void several_workers_are_the_hosts(void **state)
{
    (void)state;
    needs_device();
    assert_int_equal(given(RUN "-m m.gguf --draft model:dense.gguf --gamma 2 --dsi 2 --device cuda", NULL), 2);
    assert_non_null(strstr(said, "--dsi with several workers runs on the host only"));
}

static void a_device_that_is_not_there_is_said(void **state)
{
    (void)state;
    assert_int_equal(given(RUN "-m m.gguf --device gpu", NULL), 2);
    assert_non_null(strstr(said, "there is no device 'gpu': host, cuda or cuda:NUMBER"));
    assert_int_equal(given(RUN "-m m.gguf --device cuda:17", NULL), 2);
    if (there || !kn_device_built())
        assert_non_null(strstr(said, there ? "there is no CUDA device 17" : "built without CUDA"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_is_not_there_is_said),
        cmocka_unit_test(answers_are_those_of_the_host),
        cmocka_unit_test(logits_are_those_of_the_host),
        cmocka_unit_test(a_batch_is_that_of_the_host),
        cmocka_unit_test(the_budget_is_kept),
        cmocka_unit_test(a_device_that_fails_is_said),
        cmocka_unit_test(several_workers_are_the_hosts),
    };
    return cmocka_run_group_tests(tests, make_models, remove_place);
}
