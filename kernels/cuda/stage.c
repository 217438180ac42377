/* kernels/cuda/stage.c - copies between the host and the device, and the buffer for memory of the host that is not pinned.
 *
 * The driver copies pinned memory beside the host's work.  Of other memory it copies up to SMALL bytes at once; for more
 * the calling thread waits and copies alone, which reaches a third of the link's rate.  Here the team copies such memory
 * to a piece of pinned memory, from which the driver goes on, while the team fills the next piece.  A piece is filled
 * again when the event behind its last copy has passed.
 *
 * Host bytes moved: two for each byte of the link, against one from pinned memory. */
#include "kernels/cuda/internal.h"

#include <string.h>

#define SMALL      ((size_t)64 << 10)
#define ITEM_BYTES ((size_t)128 << 10) /* of a thread at a time */

void kn_cuda_stage_open(struct kn_cuda_queue *q)
{
    const struct kn_cuda_driver *d = q->device->driver;
    void *at = NULL;
    if (d->pinned_alloc(&at, KN_CUDA_STAGES * KN_CUDA_STAGE_BYTES, KN_CUDA_MAPPED))
        return;
    q->stage.base = at;
    for (int i = 0; i < KN_CUDA_STAGES; i++)
        if (d->event_create(&q->stage.event[i], KN_CUDA_NO_TIMING)) {
            q->stage.event[i] = NULL;
            kn_cuda_stage_close(q);
            return;
        }
}

void kn_cuda_stage_close(struct kn_cuda_queue *q)
{
    const struct kn_cuda_driver *d = q->device->driver;
    for (int i = 0; i < KN_CUDA_STAGES; i++)
        if (q->stage.event[i])
            d->event_destroy(q->stage.event[i]);
    if (q->stage.base)
        d->pinned_free(q->stage.base);
    q->stage = (struct kn_cuda_stage){ .team = q->stage.team };
}

struct fill {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
};

static void fill_item(void *arg, int item, int thread)
{
    const struct fill *f = arg;
    size_t at = (size_t)item * ITEM_BYTES, left = f->bytes - at;
    (void)thread;
    memcpy(f->to + at, f->from + at, left < ITEM_BYTES ? left : ITEM_BYTES);
}

static void fill(struct kn_team *team, struct fill f)
{
    if (team)
        kn_parallel_for(team, (int)((f.bytes + ITEM_BYTES - 1) / ITEM_BYTES), fill_item, &f);
    else
        memcpy(f.to, f.from, f.bytes);
}

static unsigned copy(struct kn_cuda_queue *q, void *to, const void *from, size_t bytes)
{
    return q->device->driver->copy((kn_cuda_address)(uintptr_t)to, (kn_cuda_address)(uintptr_t)from, bytes, q->stream);
}

static unsigned copy_staged(struct kn_cuda_queue *q, const struct kn_op_transfer *o)
{
    const struct kn_cuda_driver *d = q->device->driver;
    struct kn_cuda_stage *s = &q->stage;
    unsigned error = 0;
    for (size_t at = 0; !error && at < o->bytes; at += KN_CUDA_STAGE_BYTES) {
        size_t left = o->bytes - at, n = left < KN_CUDA_STAGE_BYTES ? left : KN_CUDA_STAGE_BYTES;
        uint8_t *piece = s->base + (size_t)s->next * KN_CUDA_STAGE_BYTES;
        struct CUevent_st *event = s->event[s->next];
        s->next = (s->next + 1) % KN_CUDA_STAGES;
        error = d->event_wait(event);
        if (error)
            break;
        fill(s->team, (struct fill){ piece, o->from + at, n });
        error = copy(q, o->to + at, piece, n);
        error = error ? error : d->event_record(event, q->stream);
    }
    return error;
}

/* The driver knows its own memory and pinned memory of the host; an address that it does not know is other memory. */
static bool is_pageable(const struct kn_cuda_queue *q, const void *at)
{
    unsigned type = 0;
    return q->device->driver->pointer_attribute(&type, KN_CUDA_MEMORY_TYPE, (kn_cuda_address)(uintptr_t)at) ==
           KN_CUDA_INVALID_VALUE;
}

unsigned kn_cuda_transfer(struct kn_cuda_queue *q, const struct kn_op_transfer *o)
{
    if (q->stage.base && o->bytes > SMALL && is_pageable(q, o->from))
        return copy_staged(q, o);
    return copy(q, o->to, o->from, o->bytes);
}
