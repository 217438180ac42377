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

static bool is_real; /* a GPU, or the interpreter */

static int make_models(void **state)
{
    char path[4096];
    if (make_place(state))
        return -1;
    snprintf(path, sizeof path, "%.*s/tests/gpu", (int)(strrchr(program, '/') - program), program);
    is_real = access("/dev/nvidiactl", R_OK) == 0;
    if (!is_real)
        setenv("LD_LIBRARY_PATH", path, 1);
    device_name = "cuda";
    setenv("XDG_CACHE_HOME", in_place("cache"), 1);
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
    if (is_real)
        skip();
    does(RUN "-m m.gguf --device cuda", NULL); /* the device's self-test is kept */
    fails("cuMemAlloc_v2:3", RUN "-m m.gguf --device cuda", "CUDA: opening a queue: out of memory");
    fails("cuMemAlloc_v2:4", RUN "-m m.gguf --device cuda", "CUDA: taking memory: out of memory");
    fails("cuMemHostAlloc:4", RUN "-m m.gguf --device cuda", "CUDA: taking memory: out of memory");
    fails("cuStreamCreate:3", RUN "-m m.gguf --device cuda", "CUDA: opening a queue");
    fails("cuLaunchKernel:200:719", RUN "-m m.gguf --device cuda", "CUDA: launching a kernel");
    fails("cuStreamSynchronize:7:719", RUN "-m m.gguf --device cuda", "CUDA: waiting for the device");
    fails("cuModuleLoadData:2:209", RUN "-m m.gguf --device cuda", "no code for this GPU");
}

/* doctor compares the device with the host, whatever was kept. */
static void doctor_tests_the_device(void **state)
{
    (void)state;
    needs_device();
    if (is_real)
        skip();
    does(RUN "-m m.gguf --device cuda", NULL);
    setenv("SPILLWAY_GPU_FAIL", "cuLaunchKernel:1:719", 1);
    int status = given("doctor -m m.gguf --threads 1", NULL);
    unsetenv("SPILLWAY_GPU_FAIL");
    assert_int_equal(status, 1);
    assert_non_null(strstr(printed, "cuda:0 cannot be used"));
}

/* The driver may refuse to pin memory, or the buffer for other memory: the answers are the same. */
static void memory_that_cannot_be_pinned(void **state)
{
    static char kept[sizeof printed];
    (void)state;
    needs_device();
    if (is_real)
        skip();
    does(RUN "-m m.gguf --device cuda --device-mem 20M", NULL); /* for a part of the experts */
    memcpy(kept, printed, sizeof kept);
    static const char *const call[] = { "cuMemHostRegister_v2:1", "cuMemHostAlloc:2", "cuMemHostAlloc:3" };
    for (int i = 0; i < 3; i++) {
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

static void says(const char *words, const char *line)
{
    does(words, NULL);
    if (!strstr(said, line))
        fail_msg("spillway %s: says %s", words, said);
}

/* The flags of llama.cpp are wishes; one line says how each is followed. */
static void wishes_are_understood(void **state)
{
    (void)state;
    says("run -m m.gguf --raw -p Once -n 2 --temp 0 -ngl 0 --device cuda",
         "-ngl 0: everything is computed on the host");
    says("run -m m.gguf --raw -p Once -n 2 --temp 0 --cpu-moe", "--cpu-moe changes nothing: without --device");
    says("run -m m.gguf --raw -p Once -n 2 --temp 0 --n-cpu-moe 1", "--n-cpu-moe 1 changes nothing: without --device");
    says("run -m m.gguf --raw -p Once -n 2 --temp 0 --device host -ngl all", "-ngl all is not used: --device host");
    assert_int_equal(given("run -m m.gguf -p Once -ngl some", NULL), 2);
    assert_non_null(strstr(said, "-ngl some is no number of layers"));
    needs_device();
    assert_int_equal(given("imatrix m.gguf --text nothing.txt -o i.gguf -ngl 99", NULL), 2);
    assert_non_null(strstr(said, "-ngl 99 is not used: imatrix computes on the host"));
    says("run -m m.gguf --raw -p Once -n 2 --temp 0 -ngl 99", "go to --device cuda");
    says("run -m m.gguf --raw -p Once -n 2 --temp 0 --device cuda --cpu-moe", "all experts stay on the host");
    does("plan -m m.gguf --device cuda --cpu-moe --json", NULL);
    assert_non_null(strstr(printed, "\"device_expert_bytes\":0,\"n_device_resident\":0,"));
    does("plan -m m.gguf --device cuda --n-cpu-moe 1 --json", NULL);
    assert_null(strstr(printed, "\"n_device_resident\":0,"));
    does("eval -m m.gguf --ids 1,2,3,4,5,6,7,8,9 --logits host", NULL);
    does("eval -m m.gguf --ids 1,2,3,4,5,6,7,8,9 --logits device --device cuda --chunk 4 --n-cpu-moe 1", NULL);
    assert_true(same_files("host", "device"));
    assert_true(is_real || is_there("cache/spillway/PTX-interpreter.gpu")); /* the kept self-test, and its folders */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_is_not_there_is_said), cmocka_unit_test(wishes_are_understood),
        cmocka_unit_test(answers_are_those_of_the_host),      cmocka_unit_test(logits_are_those_of_the_host),
        cmocka_unit_test(a_batch_is_that_of_the_host),        cmocka_unit_test(the_budget_is_kept),
        cmocka_unit_test(a_device_that_fails_is_said),        cmocka_unit_test(doctor_tests_the_device),
        cmocka_unit_test(memory_that_cannot_be_pinned),       cmocka_unit_test(bench_has_the_link),
        cmocka_unit_test(several_workers_are_the_hosts),
    };
    return cmocka_run_group_tests(tests, make_models, remove_place);
}
