/* Measures the rates used for performance bounds: reading memory, and multiplying int8 codes, with
 * nothing else in the loop.
 *
 * The read uses four streams, with prefetch: with one stream a core has only about half of its possible
 * cache misses outstanding (11 against 18 GB/s on one core of an Emerald Rapids). The streams take turns line by line: in
 * turns of a page they were 8 to 20 % slower on two cores of a Zen 4. */
#include "kernels/internal.h"
#include "kernels/cpu/simd.h"

#define STREAMS 4
#define AHEAD   1024

void KN_FN(kn_probe_read)(const void *p, size_t bytes)
{
    size_t part = bytes / STREAMS;
    vi sum = vi_zero();
    for (size_t i = 0; i < part; i += 64)
        for (int s = 0; s < STREAMS; s++) {
            const uint8_t *at = (const uint8_t *)p + (size_t)s * part + i;
            _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
            for (size_t j = 0; j < 64; j += sizeof(vi))
                sum = vi_xor(sum, vi_load(at + j));
        }
    __asm__ volatile("" : : "v"(sum));
}

/* Twelve independent chains hide the instruction's latency; unrolled, so that they stay in registers. */
void KN_FN(kn_probe_mac)(long n)
{
    vi chain[12], x = vi_zero();
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        chain[i] = x;
    for (long k = 0; k < n; k += 12 * KN_LANES * 4) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) {
            chain[i] = dot_codes(chain[i], x, x, 15);
            __asm__ volatile("" : "+v"(chain[i]));
        }
    }
}
