/* moe/pass/memory.c - pieces of a context's memory that pass between the host and a device with memory of its own.
 *
 * On the host there is one memory, and these functions copy nothing. */
#include "moe/pass/pass.h"

#include <string.h>

static bool is_apart(const struct moe_context *c) { return c->shared.base != c->shared.image; }

struct kn_acts moe_acts_image(const struct moe_context *c, const struct kn_acts *a)
{
    struct kn_acts image = *a;
    image.x = moe_image(c, a->x);
    for (int kind = 0; kind < KN_ACT_COUNT; kind++)
        if (a->code[kind])
            image.code[kind] = moe_image(c, a->code[kind]);
    return image;
}

static void copy(struct kn_queue *q, void *to, const void *from, size_t bytes)
{
    if (bytes)
        kn_enqueue(q, TRANSFER, transfer, .to = to, .from = from, .bytes = bytes);
}

void moe_upload(struct moe_context *c, const void *host, size_t bytes)
{
    if (is_apart(c))
        copy(c->queue, moe_at(c, host), host, bytes);
}

void moe_upload_beside(struct moe_context *c, const void *host, size_t bytes)
{
    if (is_apart(c))
        copy(c->copies, moe_at(c, host), host, bytes);
}

void moe_download(struct moe_context *c, const void *host, size_t bytes)
{
    if (is_apart(c))
        copy(c->queue, (void *)(uintptr_t)host, moe_at(c, host), bytes);
}

static int wait_for(struct moe_context *c, struct kn_queue *q)
{
    int error = kn_queue_wait(q);
    c->error = c->error ? c->error : error;
    return c->error;
}

int moe_wait(struct moe_context *c)
{
    moe_experts_see_all(c);
    moe_listings_end(c);
    return wait_for(c, c->queue);
}

int moe_wait_copies(struct moe_context *c) { return wait_for(c, c->copies); }

int moe_context_error(const struct moe_context *c) { return c->error; }

const void *moe_read(struct moe_context *c, const void *at, size_t bytes)
{
    kn_assert(bytes <= (size_t)c->model->desc.d_model * sizeof(float));
    if (!is_apart(c))
        return at;
    copy(c->queue, c->landing, at, bytes);
    moe_wait(c);
    return c->landing;
}

/* Copies n slots to the batch's tables; returns their address on the device. */
static const int32_t *append(struct moe_context *c, const int32_t *slot, int n)
{
    struct moe_tables *t = &c->tables;
    size_t first = t->n_used;
    kn_assert(first + (size_t)n <= t->n);
    memcpy(t->slot + first, slot, (size_t)n * sizeof *slot);
    t->n_used += (size_t)n;
    return moe_at(c, t->slot + first);
}

const int32_t *moe_base_table(struct moe_context *c, const int32_t *base, int n)
{
    struct moe_tables *t = &c->tables;
    if (!is_apart(c) || n <= 0)
        return base;
    if (base != t->base || n > t->n_base) {
        t->base = base;
        t->n_base = n;
        t->base_at = append(c, base, n);
    }
    return t->base_at;
}

const int32_t *moe_tail_table(struct moe_context *c, const int32_t *tail, int n)
{
    return is_apart(c) && n > 0 ? append(c, tail, n) : tail;
}
