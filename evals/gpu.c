/* evals/gpu.c - how fast a CUDA device multiplies weights and attends, beside its own rate of copying.
 *
 * Prints CSV.  The weights are in device memory, well above its caches, as matrices of one shape; a figure is the time
 * of all of them, launched one after the other, over several turns of which the best counts.  The bound in the same run
 * is the rate at which the device copies its memory, reads and writes counted.  Weights and activations are all zeros:
 * the time does not depend on them, and tests compare the results (tests/cuda).
 *
 * Lines "launch": us of one of many launches with nearly nothing to do: "host", to add it; "device", from one to the next.
 * While a pass is added faster than it runs, the host's part is hidden.  Graphs of passes could gain at most, for each
 * launch, the excess of "device" over a graph's 1 to 1.5 us.
 *
 * gpu [DEVICE] [MIB]    MIB: of weights, 1024 if not given; formats of which they hold no matrix are left out */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/internal.h"

#define TURNS 5
#define N_OUT 16384 /* so that a launch reads tens of MB: launches cost about 2 us each */
#define N_IN  2048

static const struct kn_cuda_driver *driver;
static struct kn_queue *queue;

static void *room(size_t bytes)
{
    kn_cuda_address at = 0;
    if (driver->memory_alloc(&at, bytes) || driver->fill(at, 0, bytes, NULL) || driver->context_wait()) {
        fprintf(stderr, "gpu: no room for %zu bytes of device memory\n", bytes);
        exit(1);
    }
    return (void *)(uintptr_t)at;
}

/* Seconds of the fastest turn, in each of which add() adds its operations to the queue. */
static double best_seconds(void (*add)(const void *arg), const void *arg)
{
    double best = 1e9;
    for (int i = 0; i < TURNS; i++) {
        uint64_t begin = kn_now_ns();
        add(arg);
        if (kn_queue_wait(queue))
            exit(1);
        double s = (double)(kn_now_ns() - begin) * 1e-9;
        best = s < best ? s : best;
    }
    return best;
}

static void line(const char *what, const char *format, int rows, double seconds, double bytes, double bound)
{
    printf("%s,%s,%d,%.1f,%.1f,%.3f\n", what, format, rows, seconds * 1e6, bytes / seconds * 1e-9,
           bytes / seconds / bound);
    fflush(stdout);
}

/* ---- copies ----------------------------------------------------------------------------------------------------- */

static void add_copy(const void *arg) { kn_queue_add(queue, arg); }

static double measure_copy(uint8_t *weights, size_t bytes)
{
    struct kn_op op = { .kind = KN_OP_COPY,
                        .copy = { .to = weights, .from = weights + bytes / 2, .bytes = bytes / 2, .n = 1 } };
    double s = best_seconds(add_copy, &op);
    line("copy", "", 1, s, (double)bytes, (double)bytes / s);
    return (double)bytes / s;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

struct product_case {
    uint8_t *weights;
    size_t mat_bytes;
    int n_mat;
    struct kn_op op;
};

static void add_products(const void *arg)
{
    const struct product_case *c = arg;
    struct kn_op op = c->op;
    for (int i = 0; i < c->n_mat; i++) {
        op.products.product[0].mul.w.data = c->weights + (size_t)i * c->mat_bytes;
        kn_queue_add(queue, &op);
    }
}

static void measure_products(uint8_t *weights, size_t bytes, double bound)
{
    static const int rows[] = { 1, 4, 16 };
    void *x = room(16 * N_IN * sizeof(float));
    float *y = room(16 * N_OUT * sizeof *y);
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        for (int i = 0; i < 3 && kn_cuda_has_format((enum kn_format)f); i++) {
            enum kn_format format = (enum kn_format)f;
            const struct kn_format_info *info = kn_format_info(format);
            struct product_case c = { weights, kn_mat_bytes(format, N_OUT, N_IN), 0, { .kind = KN_OP_PRODUCTS } };
            struct kn_matmul m = { .w = { format, N_OUT, N_IN, 1, weights },
                                   .x = x,
                                   .x_stride = kn_act_bytes(info->act, N_IN),
                                   .y = y,
                                   .y_stride = N_OUT,
                                   .n_row = rows[i] };
            c.n_mat = (int)(bytes / c.mat_bytes);
            if (!c.n_mat)
                continue;
            c.op.products = (struct kn_op_products){ .product = { { .mul = m, .node = -1, .n_stack = 1 } }, .n = 1 };
            line("product", info->name, rows[i], best_seconds(add_products, &c), (double)c.n_mat * (double)c.mat_bytes,
                 bound);
        }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* One row of 32 query heads over 4 KV heads of 128, as qwen3-30b-a3b has; slots in order. */
static void measure_attention(int n_pos, double bound)
{
    enum { HEADS = 32, N_KV = 4, DIM = 128 };
    size_t head_bytes = (size_t)n_pos * DIM * sizeof(uint16_t);
    int32_t *list = malloc((size_t)n_pos * sizeof *list), *slots = room((size_t)n_pos * sizeof *slots);
    struct kn_row host = { .position = n_pos - 1, .base = slots, .n_base = n_pos }, *row = room(sizeof *row);
    for (int i = 0; i < n_pos; i++)
        list[i] = i;
    driver->copy((kn_cuda_address)(uintptr_t)slots, (kn_cuda_address)(uintptr_t)list, (size_t)n_pos * sizeof *list,
                 NULL);
    driver->copy((kn_cuda_address)(uintptr_t)row, (kn_cuda_address)(uintptr_t)&host, sizeof host, NULL);
    driver->context_wait();
    struct kn_op op = { .kind = KN_OP_ATTEND,
                        .attend = { .rows = { row, room(sizeof(int)), 1 },
                                    .n_head = HEADS,
                                    .n_kv = N_KV,
                                    .d_key = DIM,
                                    .d_value = DIM,
                                    .q = room(HEADS * DIM * sizeof(float)),
                                    .scale = 0.1f,
                                    .cache = { .kv = KN_KV_F16,
                                               .k = room(N_KV * head_bytes),
                                               .v = room(N_KV * head_bytes),
                                               .k_head = head_bytes,
                                               .v_head = head_bytes,
                                               .k_step = DIM,
                                               .v_step = DIM,
                                               .n_slot = n_pos },
                                    .out = { .x = room(HEADS * DIM * sizeof(float)), .stride = HEADS * DIM } } };
    line("attention", "f16", n_pos, best_seconds(add_copy, &op), 2.0 * N_KV * (double)head_bytes, bound);
    free(list);
}

/* Few enough that the stream takes them all without waiting. */
#define N_LAUNCH 400

static void measure_launches(uint8_t *memory)
{
    struct kn_op op = { .kind = KN_OP_SCALE, .scale = { .x = (float *)(void *)memory, .by = 1, .n = 1, .d = 256 } };
    double least[2] = { 1e9, 1e9 };
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t begin = kn_now_ns(), added;
        for (int i = 0; i < N_LAUNCH; i++)
            kn_queue_add(queue, &op);
        added = kn_now_ns();
        if (kn_queue_wait(queue))
            exit(1);
        double all = (double)(kn_now_ns() - begin), host = (double)(added - begin);
        least[0] = host < least[0] ? host : least[0];
        least[1] = all < least[1] ? all : least[1];
    }
    printf("launch,host,1,%.2f,,\nlaunch,device,1,%.2f,,\n", least[0] / N_LAUNCH * 1e-3, least[1] / N_LAUNCH * 1e-3);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct kn_device *device;
    struct kn_device_info info;
    int number = argc > 1 ? atoi(argv[1]) : 0;
    size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 1024) << 20;
    const int n_pos = bytes >= (size_t)256 << 20 ? 32768 : 2048;
    if (kn_cuda_open(&device, number) || kn_device_get(number, &info))
        return 2;
    if (kn_cuda_self_test(device))
        return 1;
    driver = kn_cuda_driver(NULL);
    struct kn_queue_options opt = {
        .device = device, .max_row = 1, .max_pos = n_pos, .n_head = 32, .n_kv = 4, .d_value = 128
    };
    if (kn_queue_open(&queue, &opt))
        return 1;
    printf("# %s, compute %d.%d\nwhat,format,rows,us,GBps,of_copy\n", info.name, info.compute_major,
           info.compute_minor);
    uint8_t *weights = room(bytes);
    measure_launches(weights);
    double bound = measure_copy(weights, bytes);
    measure_products(weights, bytes, bound);
    for (int n = 1024; n <= n_pos; n *= n < 2048 ? 2 : 16)
        measure_attention(n, bound);
    kn_queue_close(queue);
    kn_cuda_close(device);
    return 0;
}
