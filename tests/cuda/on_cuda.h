/* tests/cuda/on_cuda.h - the cases of tests/kernels/pass_case.h on a CUDA device: included before a file of cases.
 *
 * The device is a real one, or that of the interpreter of PTX (tests/gpu) where the machine has none (CUDA_INTERPRETER,
 * its path, comes from the Makefile); without both the cases are skipped. */
#ifndef TESTS_CUDA_ON_CUDA_H
#define TESTS_CUDA_ON_CUDA_H

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/cuda/internal.h"

static struct kn_device *cuda;

/* Opens device 0 with kernels of all formats; says why if there is none. */
static inline bool cuda_open(void)
{
    if (!cuda && kn_device_built()) {
        if (access(CUDA_INTERPRETER, R_OK) == 0 && access("/dev/nvidiactl", R_OK) != 0)
            kn_cuda_driver_from(CUDA_INTERPRETER);
        if (kn_cuda_open(&cuda, 0))
            cuda = NULL;
        for (int f = 0; cuda && f < KN_FORMAT_COUNT; f++)
            if (kn_cuda_has_format((enum kn_format)f))
                kn_cuda_admit(cuda, (enum kn_format)f);
    }
    if (!cuda)
        printf("skipped: tests of CUDA need %s\n", kn_device_built() ? "a device or the interpreter of PTX" : "nvcc");
    return cuda;
}

/* Is the device that of the interpreter?  Then it is told to run nothing before it is waited for. */
static inline bool is_interpreted(void)
{
    void *library = dlopen(CUDA_INTERPRETER, RTLD_NOW | RTLD_NOLOAD), *f = NULL;
    void (*idle)(unsigned ms) = NULL;
    if (library)
        f = dlsym(library, "spillway_gpu_idle");
    memcpy(&idle, &f, sizeof f);
    if (idle)
        idle(1u << 30);
    return idle;
}

static inline struct kn_queue *cuda_queue(int max_pos, int n_head, int d_value)
{
    struct kn_queue *queue;
    struct kn_queue_options opt = { .device = cuda,
                                    .max_row = 64,
                                    .max_pos = max_pos,
                                    .n_head = n_head,
                                    .n_kv = 1,
                                    .d_value = d_value,
                                    .max_product = 64 };
    assert_int_equal(kn_queue_open(&queue, &opt), 0);
    return queue;
}

/* Memory of cases: registered host memory, which has one address for host and device. */
static uint8_t *cuda_memory;
static size_t cuda_memory_bytes;

/* Runs op.  While it is added the host cannot read the memory of cases: it needs only the operation's struct. */
static inline void cuda_run(const struct kn_op *op)
{
    struct kn_queue *queue = cuda_queue(4096, 40, 40);
    bool hide = cuda_memory && is_interpreted();
    assert_int_equal(hide ? mprotect(cuda_memory, cuda_memory_bytes, PROT_NONE) : 0, 0);
    kn_queue_add(queue, op);
    assert_int_equal(hide ? mprotect(cuda_memory, cuda_memory_bytes, PROT_READ | PROT_WRITE) : 0, 0);
    assert_int_equal(kn_queue_wait(queue), 0);
    kn_queue_close(queue);
}

/* ---- in place of the host's in pass_case.h ------------------------------------------------------------------ */

#define PASS_WAYS 1

static inline const char *run_way(const struct kn_op *op, int way)
{
    (void)way;
    cuda_run(op);
    return "on the CUDA device";
}

static inline bool pass_has(enum kn_op_kind kind) { return cuda && kind < KN_OP_COUNT; }

static inline uint8_t *memory_open(size_t bytes)
{
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    cuda_memory_bytes = bytes;
    if (!cuda_open())
        return p;
    cuda_memory = p;
    return kn_cuda_driver(NULL)->host_register(p, bytes, KN_CUDA_MAPPED) ? NULL : p;
}

static inline void memory_close(uint8_t *p)
{
    if (cuda)
        kn_cuda_driver(NULL)->host_unregister(p);
    munmap(p, cuda_memory_bytes);
    kn_cuda_close(cuda);
    cuda = NULL;
}

#endif
