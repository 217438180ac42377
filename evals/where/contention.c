/* evals/where/contention.c - how much copies and products of experts slow each other: a law for where.c, measured.
 *
 * One thread multiplies rows by Q4_K experts that lie in memory, another copies experts out of memory to a small buffer, as
 * a device that fetches them would: its reads come from memory, its writes stay in the cache.  Each alone, then both, in turns.
 * Prints CSV: rates alone in GB/s, and the rates together over those alone, for 1 and for 16 rows.
 *
 *     contention [ROUNDS] > contention.csv */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

#define N_IN         2048
#define N_OUT        1024
#define MOST_ROWS    16
#define WINDOW_NS    300000000u
#define MEMORY_BYTES ((size_t)1 << 29) /* for each thread: far more than caches hold */
#define COPY_BYTES   ((size_t)1 << 18)

struct work {
    const uint8_t *memory;
    int n_row; /* 0: copies */
    atomic_bool stop;
    double Bps;
};

static const struct kn_ops *ops;

static void *multiply(void *arg)
{
    struct work *w = arg;
    static _Alignas(64) uint8_t x[MOST_ROWS * N_IN * 2];
    static float values[N_IN], y[MOST_ROWS * N_OUT];
    size_t bytes = kn_mat_bytes(KN_Q4_K, N_OUT, N_IN), code = kn_act_bytes(kn_format_info(KN_Q4_K)->act, N_IN), at = 0;
    uint64_t since = kn_now_ns(), done = 0;
    for (int i = 0; i < N_IN; i++)
        values[i] = (float)(i % 17) - 8;
    for (int i = 0; i < w->n_row; i++)
        ops->quantize(kn_format_info(KN_Q4_K)->act, values, N_IN, x + (size_t)i * code);
    while (!atomic_load(&w->stop)) {
        struct kn_matmul m = { .w = { KN_Q4_K, N_OUT, N_IN, 1, w->memory + at },
                               .x = x,
                               .x_stride = code,
                               .y = y,
                               .y_stride = N_OUT,
                               .n_row = w->n_row };
        ops->matmul(&m, 0, N_OUT / KN_PANEL);
        done += bytes;
        at = at + 2 * bytes > MEMORY_BYTES ? 0 : at + bytes;
    }
    w->Bps = (double)done / (double)(kn_now_ns() - since) * 1e9;
    return NULL;
}

static void *copy(void *arg)
{
    struct work *w = arg;
    static uint8_t to[COPY_BYTES];
    uint64_t since = kn_now_ns(), done = 0;
    for (size_t at = 0; !atomic_load(&w->stop); at = (at + COPY_BYTES) % MEMORY_BYTES, done += COPY_BYTES) {
        memcpy(to, w->memory + at, COPY_BYTES);
        __asm__ volatile("" : : "r"(to) : "memory");
    }
    w->Bps = (double)done / (double)(kn_now_ns() - since) * 1e9;
    return NULL;
}

static void run(struct work *a, struct work *b)
{
    struct work *all[] = { a, b };
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        if (all[i]) {
            atomic_store(&all[i]->stop, false);
            pthread_create(&thread[i], NULL, all[i]->n_row ? multiply : copy, all[i]);
        }
    for (uint64_t since = kn_now_ns(); kn_now_ns() - since < WINDOW_NS;)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    for (int i = 0; i < 2; i++)
        if (all[i])
            atomic_store(&all[i]->stop, true);
    for (int i = 0; i < 2; i++)
        if (all[i])
            pthread_join(thread[i], NULL);
}

int main(int argc, char **argv)
{
    static const int rows[] = { 1, MOST_ROWS };
    int n_round = argc > 1 ? atoi(argv[1]) : 10;
    uint8_t *memory = malloc(2 * MEMORY_BYTES);
    ops = kn_ops(kn_isa_best());
    if (!memory)
        return 1;
    for (size_t i = 0; i < 2 * MEMORY_BYTES; i += 64) /* every page and line; small scales */
        memset(memory + i, (int)(i / 64 % 60), 64);
    puts("round,rows,product_GBps,copy_GBps,product_together,copy_together");
    for (int i = 0; i < n_round; i++)
        for (int k = 0; k < 2; k++) {
            struct work product = { .memory = memory, .n_row = rows[k] }, copies = { .memory = memory + MEMORY_BYTES };
            run(&product, NULL);
            run(NULL, &copies);
            double alone = product.Bps, copied = copies.Bps;
            run(&product, &copies);
            printf("%d,%d,%.2f,%.2f,%.3f,%.3f\n", i, rows[k], alone * 1e-9, copied * 1e-9, product.Bps / alone,
                   copies.Bps / copied);
            fflush(stdout);
        }
    free(memory);
    return 0;
}
