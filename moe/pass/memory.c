/* moe/pass/memory.c - pieces of a context's memory that pass between the host and a device with memory of its own.
 *
 * On the host there is one memory, and these functions copy nothing. */
#include "moe/pass/pass.h"

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

static void copy(struct moe_context *c, void *to, const void *from, size_t bytes)
{
    if (bytes)
        kn_enqueue(c->queue, TRANSFER, transfer, .to = to, .from = from, .bytes = bytes);
}

void moe_upload(struct moe_context *c, const void *host, size_t bytes)
{
    if (is_apart(c))
        copy(c, moe_at(c, host), host, bytes);
}

void moe_download(struct moe_context *c, const void *host, size_t bytes)
{
    if (is_apart(c))
        copy(c, (void *)(uintptr_t)host, moe_at(c, host), bytes);
}

const void *moe_read(struct moe_context *c, const void *at, size_t bytes)
{
    kn_assert(bytes <= (size_t)c->model->desc.d_model * sizeof(float));
    if (!is_apart(c))
        return at;
    copy(c, c->landing, at, bytes);
    kn_queue_wait(c->queue);
    return c->landing;
}

const int32_t *moe_slot_table(struct moe_context *c, const int32_t *slot, int n)
{
    struct moe_tables *t = &c->tables;
    if (!is_apart(c) || !n)
        return slot;
    int n_same = slot == t->from ? t->n_from : 0;
    size_t first = t->n_used - (size_t)n_same;
    kn_assert(t->n_used + (size_t)kn_max(0, n - n_same) <= t->n);
    for (int i = n_same; i < n; i++)
        t->slot[t->n_used++] = slot[i];
    t->from = slot;
    t->n_from = kn_max(n, n_same);
    return (const int32_t *)moe_at(c, t->slot) + first;
}
