/* The scalar probes, for processors without a SIMD table. */
#include "kernels/internal.h"

void kn_probe_read_scalar(const void *p, size_t bytes)
{
    const uint64_t *word = p;
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / sizeof *word; i++)
        sum ^= word[i];
    __asm__ volatile("" : : "r"(sum));
}

void kn_probe_mac_scalar(long n)
{
    int32_t chain[8] = { 0 }, x = 1;
    for (long k = 0; k < n; k += 8)
        for (int i = 0; i < 8; i++) {
            chain[i] += x * x;
            __asm__ volatile("" : "+r"(chain[i]), "+r"(x));
        }
}
