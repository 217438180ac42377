/* tests/cuda/on_cuda.h - the cases of tests/kernels/pass_case.h on a CUDA device: included before a file of cases.
 *
 * The device is a real one, or that of the interpreter of PTX (tests/gpu) where the machine has none (CUDA_INTERPRETER,
 * its path, comes from the Makefile); without both the cases are skipped.  A case's memory is pinned host memory, which has one address for host and device. */
#ifndef TESTS_CUDA_ON_CUDA_H
#define TESTS_CUDA_ON_CUDA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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

static inline void cuda_run(const struct kn_op *op)
{
    struct kn_queue *queue = cuda_queue(4096, 40, 40);
    kn_queue_add(queue, op);
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
    void *p = NULL;
    if (!cuda_open())
        return calloc(1, bytes);
    return kn_cuda_driver(NULL)->pinned_alloc(&p, bytes, KN_CUDA_MAPPED) ? NULL : p;
}

static inline void memory_close(uint8_t *p)
{
    if (!cuda) {
        free(p);
        return;
    }
    kn_cuda_driver(NULL)->pinned_free(p);
    kn_cuda_close(cuda);
    cuda = NULL;
}

#endif
