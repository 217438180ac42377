/* --device cuda as users give it: the same answers as on the host, a budget that holds, and one clear line where the
 * device fails.
 *
 * The program runs on a GPU if there is one, else on the interpreter of PTX (tests/gpu), which it finds as the driver's
 * library.  A build without nvcc refuses the device, and the interpreter needs AVX2; else the other tests are skipped.
 *
 * The interpreter is slow under sanitizers: not under MODE=tsan, not under MODE=asan.  test_serve_device has a device's
 * threads, tests/cuda the rest of its code. */
#include "tests/engine/cli/device_cases.h"

#include "kernels/kernels.h"

static int make_models(void **state)
{
    char path[4096];
    if (make_place(state))
        return -1;
    snprintf(path, sizeof path, "%.*s/tests/gpu", (int)(strrchr(program, '/') - program), program);
    if (access("/dev/nvidiactl", R_OK) != 0)
        setenv("LD_LIBRARY_PATH", path, 1);
    device_name = "cuda";
    there = kn_device_built() && kn_isa_best() != KN_ISA_SCALAR; /* the interpreter needs AVX2 */
    make_files();
    return 0;
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
    fails("cuMemHostAlloc:3", RUN "-m m.gguf --device cuda", "CUDA: taking memory: out of memory");
    fails("cuStreamCreate:1", RUN "-m m.gguf --device cuda", "CUDA: opening a queue");
    fails("cuLaunchKernel:200:719", RUN "-m m.gguf --device cuda", "CUDA: launching a kernel");
    fails("cuStreamSynchronize:68:719", RUN "-m m.gguf --device cuda", "CUDA: waiting for the device");
    fails("cuModuleLoadData:2:209", RUN "-m m.gguf --device cuda", "no code for this GPU");
}

/* The driver may refuse to pin memory, or the buffer for other memory: the answers are the same. */
#define BUFFER_CALL "cuMemHostAlloc:2"
static void memory_that_cannot_be_pinned(void **state)
{
    static char kept[sizeof printed];
    (void)state;
    needs_device();
    if (access("/dev/nvidiactl", R_OK) == 0)
        skip();
    does(RUN "-m m.gguf --device cuda --device-mem 20M", NULL); /* for a part of the experts */
    memcpy(kept, printed, sizeof kept);
    static const char *const call[] = { "cuMemHostRegister_v2:1", BUFFER_CALL };
    for (int i = 0; i < 2; i++) {
        setenv("SPILLWAY_GPU_FAIL", call[i], 1);
        does(RUN "-m m.gguf --device cuda --device-mem 20M", NULL);
        unsetenv("SPILLWAY_GPU_FAIL");
        assert_string_equal(printed, kept);
    }
}

/* bench measures the link, and counts the bytes that cross it. */
static void bench_has_the_link(void **state)
{
    (void)state;
    needs_device();
    does("bench -m m.gguf --device cuda --device-mem 16M --batch 1 --prompt 3 --gen 2 --warmup 1 --json --threads 2",
         NULL);
    const char *link = strstr(printed, "\"link_Bps\":"), *copied = strstr(printed, "\"copied_bytes\":");
    assert_true(link && atof(link + 11) > 0);
    assert_true(copied && atof(copied + 15) > 0);
    does("bench -m m.gguf --batch 1 --prompt 3 --gen 2 --warmup 1 --json --threads 2", NULL);
    assert_non_null(strstr(printed, "\"link_Bps\":0,\"copied_bytes\":0,"));
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
        cmocka_unit_test(memory_that_cannot_be_pinned),
        cmocka_unit_test(bench_has_the_link),
        cmocka_unit_test(several_workers_are_the_hosts),
    };
    return cmocka_run_group_tests(tests, make_models, remove_place);
}
