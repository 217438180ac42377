/* engine/plan/link_rate.c - the rate of copies to a device: in pieces of an expert's size, as passes copy them. And the rate of
 * copies within a device's memory, in an area above its caches. */
#include "engine/plan/link_rate.h"
#include "engine/plan/host_rate.h"
#include "kernels/pass.h"

#define PIECE_BYTES ((size_t)2 << 20)
#define N_PASS      3                   /* at least, */
#define ENOUGH_NS   50000000            /* and until this much time has passed */
#define AREA_BYTES  ((size_t)512 << 20) /* of the device, and below this rate a small part of it: */
#define SLOW_BPS    20e9                /* no device with such a cache is so slow, and an interpreted one is slower */

/* Bytes per second of the fastest pass; 0: the device has failed. */
static double best_Bps(struct kn_queue *queue, const struct kn_memory *there, const uint8_t *area)
{
    double best = 0;
    uint64_t start = kn_now_ns(), began = start;
    for (int i = 0; i < N_PASS || began - start < ENOUGH_NS; i++) {
        for (size_t at = 0; at < ENG_LINK_BYTES; at += PIECE_BYTES)
            kn_enqueue(queue, TRANSFER, transfer, .to = there->base + at, .from = area + at, .bytes = PIECE_BYTES);
        if (kn_queue_wait(queue))
            return 0;
        uint64_t now = kn_now_ns();
        double Bps = (double)ENG_LINK_BYTES * 1e9 / (double)(now - began);
        best = Bps > best ? Bps : best;
        began = now;
    }
    return best;
}

int eng_link_rate_measure(struct eng_link_rate *out, const struct kn_device *device, struct kn_team *team)
{
    struct kn_memory there = { .base = NULL };
    struct kn_queue *queue = NULL;
    *out = (struct eng_link_rate){ .refused = "this kind of device pins none" };
    uint8_t *area = eng_rate_area(team, ENG_LINK_BYTES);
    int error = area ? kn_memory_open(&there, device, ENG_LINK_BYTES, false) : KN_ENOMEM;
    if (!error && (error = eng_rate_queue(&queue, device, team, true)) == 0) {
        out->other_Bps = best_Bps(queue, &there, area);
        if (kn_device_pins(device) && kn_host_pin(device, area, ENG_LINK_BYTES, &out->refused) == 0) {
            out->refused = NULL;
            out->pinned_Bps = best_Bps(queue, &there, area);
            kn_host_unpin(device, area);
        }
        error = kn_queue_wait(queue);
    }
    kn_queue_close(queue);
    kn_memory_close(&there);
    if (area)
        kn_unmap(area, ENG_LINK_BYTES);
    return error;
}

/* Reads and writes count: copying moves each byte twice. */
static double copy_Bps(struct kn_queue *queue, const struct kn_memory *area, size_t bytes)
{
    double best = 0;
    for (int i = 0; i < N_PASS; i++) {
        uint64_t began = kn_now_ns();
        kn_enqueue(queue, COPY, copy, .to = area->base + bytes / 2, .from = area->base, .bytes = bytes / 2, .n = 1);
        if (kn_queue_wait(queue))
            return 0;
        double Bps = (double)bytes * 1e9 / (double)(kn_now_ns() - began);
        best = Bps > best ? Bps : best;
    }
    return best;
}

int eng_device_rate_measure(double *Bps, const struct kn_device *device, struct kn_team *team)
{
    struct kn_memory area = { .base = NULL };
    struct kn_queue *queue = NULL;
    size_t most = kn_device_free_bytes(device) / 2 / PIECE_BYTES * PIECE_BYTES;
    most = most < AREA_BYTES ? most : AREA_BYTES;
    if (most < PIECE_BYTES)
        return kn_fail(KN_ENOMEM, "the device has no memory to measure its rate in");
    int error = kn_memory_open(&area, device, most, false);
    if (!error && (error = eng_rate_queue(&queue, device, team, true)) == 0) {
        *Bps = copy_Bps(queue, &area, PIECE_BYTES);
        if (*Bps > SLOW_BPS)
            *Bps = copy_Bps(queue, &area, most);
        error = kn_queue_wait(queue);
    }
    kn_queue_close(queue);
    kn_memory_close(&area);
    return error;
}
