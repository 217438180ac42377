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
    kn_enqueue(q, TRANSFER, transfer, .to = to, .from = from, .bytes = bytes);
}

void moe_upload(struct moe_context *c, const void *host, size_t bytes)
{
    if (is_apart(c) && bytes)
        copy(c->queue, moe_at(c, host), host, bytes);
}

void moe_upload_beside(struct moe_context *c, const void *host, size_t bytes)
{
    if (is_apart(c) && bytes)
        copy(c->copies, moe_at(c, host), host, bytes);
}

void moe_download(struct moe_context *c, const void *host, size_t bytes)
{
    if (is_apart(c) && bytes)
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
    if (wait_for(c, c->queue) && c->copies != c->queue)
        wait_for(c, c->copies); /* it may still write to the host's memory of experts */
    return c->error;
}

int moe_wait_copies(struct moe_context *c) { return wait_for(c, c->copies); }

int moe_context_error(const struct moe_context *c) { return c->error; }

void moe_read_several(struct moe_context *c, const void **at, int n, size_t bytes)
{
    size_t most = (size_t)c->model->desc.d_model * sizeof(float);
    kn_assert(bytes <= most && n <= MOE_LANDINGS);
    if (!is_apart(c))
        return;
    for (int i = 0; i < n; i++) {
        uint8_t *landing = c->landing + (size_t)i * most;
        copy(c->queue, landing, at[i], bytes);
        at[i] = landing;
    }
    moe_wait(c);
}

const void *moe_read(struct moe_context *c, const void *at, size_t bytes)
{
    moe_read_several(c, &at, 1, bytes);
    return at;
}

/* ---- the sheet ------------------------------------------------------------------------------------------------ */

#define DRAFT_ROOM 128 /* slots of a row's tail, at most */
#define SHEET_UNIT 16  /* bytes that arrays begin at a multiple of */
#define ARRAYS     6   /* beside slot tables */

/* On the host rows keep the caller's tables. */
size_t moe_sheet_bytes(const struct moe_context *c)
{
    const struct moe_context_options *o = &c->opt;
    size_t n_path = (size_t)(o->max_path ? o->max_path : o->max_row), n_row = (size_t)o->max_row, n_table = 0;
    bool own_memory = (o->device ? o->device : c->model->device)->backend->own_memory;
    if (own_memory)
        n_table = n_path * (size_t)o->max_pos + n_row * (DRAFT_ROOM + 2 * SHEET_UNIT / sizeof(int32_t));
    return n_row * (sizeof *c->all.row + sizeof *c->all.status) + n_row * sizeof *c->want_row +
           (size_t)c->model->desc.n_layer * sizeof *c->dense + sizeof *c->residents.n_distinct +
           (size_t)c->model->shape.n_expert_total * sizeof *c->present.rank_bias + n_table * sizeof(int32_t) +
           ARRAYS * SHEET_UNIT;
}

void *moe_sheet_take(struct moe_context *c, size_t n, size_t size)
{
    struct moe_sheet *s = &c->sheet;
    void *p = s->at + s->used;
    s->used += kn_align_up(n * size, SHEET_UNIT);
    kn_assert(s->used <= s->bytes);
    return p;
}

/* Copies n slots; returns their address on the device. */
static const int32_t *append(struct moe_context *c, const int32_t *slot, int n)
{
    int32_t *to = moe_sheet_take(c, (size_t)n, sizeof *to);
    memcpy(to, slot, (size_t)n * sizeof *slot);
    return moe_at(c, to);
}

const int32_t *moe_base_table(struct moe_context *c, const int32_t *base, int n)
{
    struct moe_sheet *s = &c->sheet;
    if (!is_apart(c) || n <= 0)
        return base;
    if (base != s->base || n > s->n_base) {
        s->base = base;
        s->n_base = n;
        s->base_at = append(c, base, n);
    }
    return s->base_at;
}

const int32_t *moe_tail_table(struct moe_context *c, const int32_t *tail, int n)
{
    return is_apart(c) && n > 0 ? append(c, tail, n) : tail;
}
