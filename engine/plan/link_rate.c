/* engine/plan/link_rate.c - the rate of copies to a device: in pieces of an expert's size, as passes copy them. */
#include "engine/plan/link_rate.h"
#include "engine/plan/host_rate.h"
#include "kernels/pass.h"

#define PIECE_BYTES ((size_t)2 << 20)
#define N_PASS      3        /* at least, */
#define ENOUGH_NS   50000000 /* and until this much time has passed */

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
    struct kn_queue_options opt = { .device = device,
                                    .team = team,
                                    .max_row = 1,
                                    .max_pos = 1,
                                    .n_head = 1,
                                    .n_kv = 1,
                                    .d_value = 1,
                                    .max_product = KN_PRODUCTS,
                                    .stages = true };
    struct kn_memory there = { .base = NULL };
    struct kn_queue *queue = NULL;
    *out = (struct eng_link_rate){ .refused = "this kind of device pins none" };
    uint8_t *area = eng_rate_area(team, ENG_LINK_BYTES);
    int error = area ? kn_memory_open(&there, device, ENG_LINK_BYTES, false) : KN_ENOMEM;
    if (!error && (error = kn_queue_open(&queue, &opt)) == 0) {
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
