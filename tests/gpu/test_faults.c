/* Each kind of fault is found in a kernel that has it, and nothing is found in the kernel without.
 *
 * The device is a thread of its own; the interpreter has no other: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/gpu/kernels.h"

typedef uint32_t u32;

static const char *program;
enum { N = 100, THREADS = 64 };

/* Launches two blocks of 64 threads. in has N values; out has N, of which the last is 0, the others undefined. */
static int launch(void *module, const char *kernel, int wrong)
{
    u32 in[N], zero = 0;
    for (u32 i = 0; i < N; i++)
        in[i] = i * 77 + 3;
    int n = N;
    uint64_t d_in = gpu_put(in, sizeof in), d_out = gpu_put(NULL, sizeof in);
    assert_int_equal(cuMemcpyHtoD_v2(d_out + 4 * (N - 1), &zero, 4), 0);
    int error = gpu_run(module, kernel, 2, THREADS, (void *[]){ &d_in, &d_out, &n, &wrong });
    spillway_gpu_forget_error();
    cuMemFree_v2(d_in);
    cuMemFree_v2(d_out);
    return error;
}

static const struct {
    const char *kernel;
    int error; /* a CUresult */
    const char *text;
} faults[] = {
    { "bounds", 700, "out of bounds: byte 400 of an allocation of 400 bytes" },
    { "bounds_below", 700, "out of bounds: 4 bytes before an allocation of 400 bytes" },
    { "alignment", 716, "misaligned load of 4 bytes" },
    { "vector_alignment", 716, "misaligned load of 16 bytes" },
    { "shared_bounds", 700, "256 bytes of shared memory: out of bounds" },
    { "local_bounds", 700, "of local memory: out of bounds" },
    { "undefined_global", 700, "an undefined value is stored in global memory" },
    { "undefined_shared", 719, "depends on an undefined value" },
    { "shared_race", 719, "of shared memory at" },
    { "shared_race_read", 719, "of another thread of this block" },
    { "warp_race", 719, "race: load of shared memory" },
    { "block_race", 719, "race: store of device memory" },
    { "block_race_read", 719, "of another block of this launch" },
    { "last_block", 719, "unordered with a write of another block of this launch" },
    { "barrier", 719, "wait at different barriers" },
    { "lost_lanes", 719, "which does not take part" },
    { "stuck", 719, "wait for others that never come" },
    { "early_copy", 700, "an undefined value is stored in global memory" },
    { "trapped", 719, "the kernel gives up" },
};

static void faults_are_found(void **state)
{
    (void)state;
    for (int kept = 0; kept < 2; kept++) {
        void *module = gpu_module(program, "faults", kept);
        assert_true(module || !kept);
        for (size_t i = 0; i < sizeof faults / sizeof *faults && module; i++)
            for (unsigned seed = 0; seed < 5; seed++) {
                char text[1000];
                spillway_gpu_seed(seed);
                int right = launch(module, faults[i].kernel, 0);
                if (right)
                    fail_msg("%s is right, but: %d", faults[i].kernel, right);
                int error = launch(module, faults[i].kernel, 1);
                snprintf(text, sizeof text, "%s", spillway_gpu_last_error());
                if (error != faults[i].error || !strstr(text, faults[i].text))
                    fail_msg("%s, seed %u: error %d, \"%s\"", faults[i].kernel, seed, error, text);
            }
        cuModuleUnload(module);
    }
    spillway_gpu_seed(0);
}

static void freed_memory_is_not_used(void **state)
{
    (void)state;
    void *module = gpu_module(program, "faults", true);
    u32 in[N] = { 0 };
    int n = N, wrong = 0;
    uint64_t d_in = gpu_put(in, sizeof in), d_out = gpu_put(NULL, sizeof in);
    assert_int_equal(gpu_run(module, "bounds", 2, THREADS, (void *[]){ &d_in, &d_out, &n, &wrong }), 0);
    assert_int_equal(cuMemFree_v2(d_in), 0);
    assert_int_equal(gpu_run(module, "bounds", 2, THREADS, (void *[]){ &d_in, &d_out, &n, &wrong }), 700);
    assert_non_null(strstr(spillway_gpu_last_error(), "use of freed memory"));
    assert_int_equal(cuMemcpyDtoH_v2(in, d_out, 4), 700); /* the device is lost, as a real one would be */
    spillway_gpu_forget_error();
    assert_int_equal(cuMemFree_v2(d_in), 1);
    assert_int_equal(cuMemcpyDtoH_v2(in, d_out + sizeof in - 4, 8), 700);
    spillway_gpu_forget_error();
    cuMemFree_v2(d_out);
    cuModuleUnload(module);
}

static void memory_of_the_host_must_be_registered(void **state)
{
    (void)state;
    void *module = gpu_module(program, "faults", true), *pinned = NULL;
    static u32 pageable[N];
    int n = N, wrong = 0;
    assert_int_equal(cuMemHostAlloc(&pinned, sizeof pageable, 3), 0);
    memset(pinned, 1, sizeof pageable);
    uint64_t in = (uint64_t)(uintptr_t)pinned, out = gpu_put(NULL, sizeof pageable);
    assert_int_equal(gpu_run(module, "bounds", 2, THREADS, (void *[]){ &in, &out, &n, &wrong }), 0);
    in = (uint64_t)(uintptr_t)pageable;
    assert_int_equal(gpu_run(module, "bounds", 2, THREADS, (void *[]){ &in, &out, &n, &wrong }), 700);
    spillway_gpu_forget_error();
    assert_int_equal(cuMemFreeHost(pinned), 0);
    cuMemFree_v2(out);
    cuModuleUnload(module);
}

static void calls_fail_as_told(void **state)
{
    (void)state;
    uint64_t at = 0;
    spillway_gpu_fail_call("cuMemAlloc_v2", 2, 2);
    assert_int_equal(cuMemAlloc_v2(&at, 100), 0);
    assert_int_equal(cuMemFree_v2(at), 0);
    at = 7;
    assert_int_equal(cuMemAlloc_v2(&at, 100), 2);
    assert_int_equal(at, 7);
    assert_int_equal(cuMemAlloc_v2(&at, 100), 0);
    spillway_gpu_fail_call("*", 1, 999);
    assert_int_equal(cuMemFree_v2(at), 999);
    assert_int_equal(cuMemFree_v2(at), 0);
    spillway_gpu_fail_call("", 0, 0);
}

static void memory_is_counted(void **state)
{
    (void)state;
    size_t before, after, total;
    uint64_t at[3], other;
    assert_int_equal(cuMemGetInfo_v2(&before, &total), 0);
    for (int k = 0; k < 3; k++)
        assert_int_equal(cuMemAlloc_v2(at + k, before / 4), 0);
    assert_int_equal(cuMemAlloc_v2(&other, before / 2), 2);
    for (int k = 0; k < 20; k++) { /* freed memory is used again at last */
        assert_int_equal(cuMemFree_v2(at[k % 3]), 0);
        assert_int_equal(cuMemAlloc_v2(at + k % 3, before / 4), 0);
    }
    for (int k = 0; k < 3; k++)
        assert_int_equal(cuMemFree_v2(at[k]), 0);
    assert_int_equal(cuMemGetInfo_v2(&after, &total), 0);
    assert_int_equal(after, before);
}

#define HEAD ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .f32 %f<3>;\n"

static void unknown_instructions_are_errors(void **state)
{
    (void)state;
    static const struct {
        const char *body, *text;
    } wrong[] = {
        { "ex2.approx.f32 %f1, %f2;", "line 7: instruction 'ex2.approx.f32' is not known" },
        { "add.rn.ftz.f32 %f1, %f2, %f2;", "line 7: instruction 'add.rn.ftz.f32' is not known" },
        { "\n\nld.global.strange.f32 %f1, [%rd1];",
          "line 9: instruction 'ld.global.strange.f32' is not known: '.strange'" },
        { "div.full.f32 %f1, %f2, %f2;", "instruction 'div.full.f32' is not known" },
        { "add.rn.f32 %f1, %f2;", "2 operands in place of 3" },
        { "add.rn.f32 %f1, %f2, %f3;", "'%f3' is not known" },
        { "bra LOST;", "label 'LOST' is not there" },
        { "mbarrier.init.shared.b64 [%f1], 1;", "is not known" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[1000];
        void *m = NULL;
        snprintf(text, sizeof text, "%s%s\nret;\n}\n", HEAD, wrong[i].body);
        assert_int_equal(cuModuleLoadData(&m, text), 218);
        if (!strstr(spillway_gpu_last_error(), wrong[i].text))
            fail_msg("%s: %s", wrong[i].body, spillway_gpu_last_error());
    }
    void *m, *f;
    assert_int_equal(cuModuleLoadData(&m, HEAD "mov.f32 %f1, 0f3F800000;\nadd.rn.f32 %f2, %f1, %f1;\nret;\n}\n"), 0);
    assert_int_equal(cuModuleGetFunction(&f, m, "k"), 0);
    assert_int_equal(cuModuleGetFunction(&f, m, "absent"), 500);
    assert_int_equal(cuModuleUnload(m), 0);
    assert_int_equal(cuModuleLoadData(&m, ".version 8.0\n.target sm_121\n.address_size 64\n"), 209);
}

/* A fat binary: a header, then entries of PTX (1) or machine code (2) for architectures. */
static size_t add_entry(uint8_t *to, uint16_t kind, uint32_t arch, const char *text)
{
    uint32_t header = 64;
    uint64_t bytes = (strlen(text) + 8) / 8 * 8;
    memset(to, 0, header + bytes);
    memcpy(to, &kind, 2);
    memcpy(to + 4, &header, 4);
    memcpy(to + 8, &bytes, 8);
    memcpy(to + 28, &arch, 4);
    memcpy(to + header, text, strlen(text));
    return header + bytes;
}

static int load_fat(uint16_t kind, uint32_t arch, void **f)
{
    static uint64_t image[1000];
    uint8_t *at = (uint8_t *)image;
    char text[400];
    void *m = NULL;
    memcpy(at, (uint8_t[]){ 0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0 }, 8);
    uint64_t bytes = add_entry(at + 16, 2, 90, "\177ELF");
    snprintf(text, sizeof text, "%sret;\n}\n", HEAD);
    bytes += add_entry(at + 16 + bytes, kind, arch, text);
    bytes += add_entry(at + 16 + bytes, 1, 120, "this is for a newer device");
    memcpy(at + 8, &bytes, 8);
    int error = cuModuleLoadData(&m, image);
    *f = NULL;
    if (!error) {
        assert_int_equal(cuModuleGetFunction(f, m, "k"), 0);
        assert_int_equal(cuModuleUnload(m), 0);
    }
    return error;
}

static void the_ptx_of_a_fat_binary_is_found(void **state)
{
    (void)state;
    void *f;
    assert_int_equal(load_fat(1, 80, &f), 0);
    assert_non_null(f);
    assert_int_equal(load_fat(1, 100, &f), 209);
    assert_int_equal(load_fat(2, 80, &f), 209);
    assert_int_equal(cuModuleLoadData(&f, "\177ELF and more"), 209);
}

int main(int argc, char **argv)
{
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_found),
        cmocka_unit_test(freed_memory_is_not_used),
        cmocka_unit_test(memory_of_the_host_must_be_registered),
        cmocka_unit_test(calls_fail_as_told),
        cmocka_unit_test(memory_is_counted),
        cmocka_unit_test(unknown_instructions_are_errors),
        cmocka_unit_test(the_ptx_of_a_fat_binary_is_found),
    };
    program = argv[0];
    if (!gpu_open(program) || gpu_is_real) {
        printf("skipped: %s\n", gpu_is_real ? "a GPU does not find faults" : "the PTX interpreter needs AVX2 and FMA");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
