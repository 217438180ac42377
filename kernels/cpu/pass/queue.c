/* The host as a device: its memory, its queues, and the function of each operation that is added. */
#include "kernels/cpu/pass/host.h"

#include <string.h>

/* ---- memory -------------------------------------------------------------------------------------------------- */

static int memory_open(struct kn_memory *m, bool image)
{
    struct kn_arena a;
    int error = kn_arena_open(&a, m->bytes, -1);
    if (!error)
        m->base = a.base;
    if (image)
        m->image = m->base;
    return error;
}

static void memory_close(struct kn_memory *m) { kn_unmap(m->base, m->bytes); }

static int memory_write(struct kn_memory *m, size_t at, const void *from, size_t bytes)
{
    memcpy(m->base + at, from, bytes);
    return 0;
}

/* ---- queues -------------------------------------------------------------------------------------------------- */

static const struct kn_ops *ops_of(const struct kn_queue_options *opt)
{
    const struct kn_host_device *d = (const struct kn_host_device *)opt->device;
    return d->ops ? d->ops : kn_ops(d->isa);
}

/* Takes the queue and its scratch from the arena. */
static struct kn_host_queue *lay_out(struct kn_arena *a, const struct kn_queue_options *opt)
{
    size_t n = (size_t)opt->max_product;
    struct kn_host_queue *q = kn_arena_take(a, 1, sizeof *q), none, *out = q ? q : &none;
    out->product = kn_arena_take(a, n, sizeof *out->product);
    out->piece = kn_arena_take(a, kn_host_piece_room(opt->team, opt->max_product), sizeof *out->piece);
    out->item0 = kn_arena_take(a, n + 1, sizeof *out->item0);
    kn_host_spans_lay_out(&out->spans, a, opt);
    out->work = kn_arena_take(a, (size_t)kn_team_size(opt->team) * opt->max_state_floats, sizeof(float));
    return q;
}

static struct kn_bytes queue_bytes(const struct kn_queue_options *opt)
{
    struct kn_arena count = { 0 };
    lay_out(&count, opt);
    return (struct kn_bytes){ .host = count.used };
}

static int queue_open(struct kn_queue **out, const struct kn_queue_options *opt)
{
    struct kn_arena arena;
    kn_assert(opt->team && opt->max_product >= KN_PRODUCTS);
    int error = kn_arena_open(&arena, queue_bytes(opt).host, -1);
    if (error)
        return error;
    struct kn_host_queue *q = lay_out(&arena, opt);
    q->base.backend = &kn_host_backend;
    q->ops = ops_of(opt);
    q->team = opt->team;
    q->arena = arena;
    q->max_product = opt->max_product;
    q->max_state_floats = opt->max_state_floats;
    *out = &q->base;
    return 0;
}

static void queue_close(struct kn_queue *queue)
{
    struct kn_arena arena = ((struct kn_host_queue *)queue)->arena; /* which holds the queue itself */
    kn_arena_close(&arena);
}

static void queue_set_team(struct kn_queue *queue, struct kn_team *team)
{
    ((struct kn_host_queue *)queue)->team = team;
}

static void queue_add(struct kn_queue *queue, const struct kn_op *op)
{
    struct kn_host_queue *q = (struct kn_host_queue *)queue;
    switch (op->kind) {
#define KN_RUN(KIND, name)                                                                                             \
    case KN_OP_##KIND:                                                                                                 \
        kn_host_##name(q, &op->name);                                                                                  \
        return;
        KN_OPS(KN_RUN)
#undef KN_RUN
    case KN_OP_COUNT:
        break;
    }
    kn_assert(!"an operation of pass.h");
}

static int queue_wait(struct kn_queue *q)
{
    (void)q;
    return 0;
}

const struct kn_backend kn_host_backend = {
    .name = "host",
    .memory_open = memory_open,
    .memory_close = memory_close,
    .memory_write = memory_write,
    .queue_bytes = queue_bytes,
    .queue_open = queue_open,
    .queue_close = queue_close,
    .queue_set_team = queue_set_team,
    .queue_add = queue_add,
    .queue_wait = queue_wait,
};

const struct kn_device *kn_host_device(enum kn_isa most)
{
    static const struct kn_host_device devices[KN_ISA_COUNT] = {
        [KN_ISA_SCALAR] = { { &kn_host_backend }, KN_ISA_SCALAR, NULL },
        [KN_ISA_AVX2] = { { &kn_host_backend }, KN_ISA_AVX2, NULL },
        [KN_ISA_AVX512] = { { &kn_host_backend }, KN_ISA_AVX512, NULL },
        [KN_ISA_VBMI] = { { &kn_host_backend }, KN_ISA_VBMI, NULL },
    };
    return &devices[kn_ops(most)->isa].base;
}
