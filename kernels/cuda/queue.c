/* Runs operations on a CUDA device: each is one or a few launches on the queue's stream.
 *
 * A launch passes the operation's struct as the kernel's parameter.  The host needs only the sizes in the struct: rows,
 * heads, matrices' shapes, formats of products.  Grids cover the most that these allow, and blocks without work end at
 * once. */
#include "kernels/cuda/internal.h"

#define SPANS_BELOW                                                                                                    \
    2 /* heads of rows for each processor, below which the spans of attention are computed side by side */
#define COPY_BLOCKS     64
#define ACTIVATE_BLOCKS 4096
#define ACTIVATE_ROWS   16   /* most rows that the blocks of products activate */
#define ACTIVATE_COUNTS 8192 /* tiles of theirs: of 16 rows with 16 experts each, of 8,192 values */

typedef struct kn_cuda_queue queue;

static void failed(queue *q, unsigned error, const char *doing)
{
    int code = kn_cuda_failed(error, doing);
    q->error = q->error ? q->error : code;
}

/* After an error nothing more is launched: the device would fail again. */
static void launch(queue *q, struct CUfunc_st *kernel, struct kn_cuda_grid g, int threads, size_t shared,
                   void **parameters)
{
    if (g.x < 1 || g.y < 1 || g.z < 1 || q->error)
        return;
    failed(q,
           q->device->driver->launch(kernel, (unsigned)g.x, (unsigned)g.y, (unsigned)g.z, (unsigned)threads, 1, 1,
                                     (unsigned)shared, q->stream, parameters, NULL),
           "launching a kernel");
}

/* LAUNCH(q, kernel, grid, threads, parameter ..): the parameters are variables of the types that the kernel has. */
#define LAUNCH(q, kernel, grid, threads, ...) launch(q, kernel, grid, threads, 0, (void *[]){ __VA_ARGS__ })

void kn_cuda_launch(queue *q, struct CUfunc_st *kernel, struct kn_cuda_grid g, int threads, void **parameters)
{
    launch(q, kernel, g, threads, 0, parameters);
}

static struct CUfunc_st *kernel_of(const queue *q, enum kn_cuda_kernel k) { return q->device->kernel[k]; }

/* A kernel with one block for each of n rows. */
static void launch_rows(queue *q, enum kn_cuda_kernel k, int n, const void *op)
{
    LAUNCH(q, kernel_of(q, k), ((struct kn_cuda_grid){ n, 1, 1 }), KN_CUDA_ROW_THREADS, (void *)(uintptr_t)op);
}

/* ---- operations on rows ------------------------------------------------------------------------------------- */

static void add_code(queue *q, const struct kn_op_code *o)
{
    const int per_block = KN_CUDA_ROW_THREADS / 32;
    long records = (long)o->n * kn_ceil_div(o->n_in, KN_GROUP);
    struct kn_cuda_grid g = { (int)((records + per_block - 1) / per_block), 1, 1 };
    if (o->kinds & ~(1u << KN_ACT_F32))
        LAUNCH(q, kernel_of(q, KN_CUDA_code), g, KN_CUDA_ROW_THREADS, (void *)(uintptr_t)o);
}

static void add_embed(queue *q, const struct kn_op_embed *o)
{
    kn_assert(!o->w.n_out || kn_cuda_has_format(o->w.format));
    launch_rows(q, KN_CUDA_embed, o->rows.n, o);
}

static void add_add_norm_code(queue *q, const struct kn_op_add_norm_code *o)
{
    kn_assert(!o->y || !o->row);
    launch_rows(q, KN_CUDA_add_norm_code, o->n, o);
}

static void add_keep_features(queue *q, const struct kn_op_keep_features *o)
{
    launch_rows(q, KN_CUDA_keep_features, o->rows.n, o);
}

static void add_scale(queue *q, const struct kn_op_scale *o)
{
    size_t n = (size_t)o->n * (size_t)o->d;
    float *x = o->x, by = o->by, cap = o->cap;
    const float *bias = o->bias;
    int d = o->d;
    struct kn_cuda_grid g = { (int)((n + KN_CUDA_ROW_THREADS - 1) / KN_CUDA_ROW_THREADS), 1, 1 };
    LAUNCH(q, kernel_of(q, KN_CUDA_scale), g, KN_CUDA_ROW_THREADS, &x, &by, &cap, &n, &bias, &d);
}

static void add_pack(queue *q, const struct kn_op_pack *o)
{
    for (int i = 0; i < o->n_array; i++) {
        struct kn_pack a = o->array[i];
        const int32_t *row = o->row;
        int n = o->n;
        struct kn_cuda_grid g = { kn_ceil_div(a.d, KN_CUDA_ROW_THREADS), 1, 1 };
        LAUNCH(q, kernel_of(q, KN_CUDA_pack), g, KN_CUDA_ROW_THREADS, &row, &n, &a.x, &a.d);
    }
}

static void add_join(queue *q, const struct kn_op_join *o)
{
    kn_assert(kn_cuda_has_format(o->embed.format));
    launch_rows(q, KN_CUDA_join, o->rows.n, o);
}

static void add_fuse(queue *q, const struct kn_op_fuse *o) { launch_rows(q, KN_CUDA_fuse, o->rows.n, o); }

static void add_pair(queue *q, const struct kn_op_pair *o)
{
    kn_assert(kn_cuda_has_format(o->embed.format));
    launch_rows(q, KN_CUDA_pair, o->rows.n, o);
}

static void add_spread(queue *q, const struct kn_op_spread *o) { launch_rows(q, KN_CUDA_spread, o->n, o); }

static void add_copy(queue *q, const struct kn_op_copy *o)
{
    const int most = 65535; /* of a grid's y */
    uintptr_t to = (uintptr_t)o->to, from = (uintptr_t)o->from;
    size_t unit = (to | from | o->bytes | (o->n > 1 ? o->stride : 0)) % 16 ? 1 : 16;
    size_t blocks = (o->bytes / unit + KN_CUDA_ROW_THREADS - 1) / KN_CUDA_ROW_THREADS;
    if (!o->bytes)
        return;
    if (from && to < from + o->bytes && from < to + o->bytes) {
        LAUNCH(q, kernel_of(q, KN_CUDA_copy_overlapping), ((struct kn_cuda_grid){ o->n, 1, 1 }), KN_CUDA_ROW_THREADS,
               (void *)(uintptr_t)o);
        return;
    }
    for (int i = 0; i < o->n; i += most) {
        struct kn_op_copy part = *o;
        part.to += (size_t)i * o->stride;
        part.from = part.from ? part.from + (size_t)i * o->stride : NULL;
        struct kn_cuda_grid g = { blocks < COPY_BLOCKS ? (int)blocks : COPY_BLOCKS, kn_min(most, o->n - i), 1 };
        LAUNCH(q, kernel_of(q, unit == 16 ? KN_CUDA_copy_16 : KN_CUDA_copy_1), g, KN_CUDA_ROW_THREADS, &part);
    }
}

/* Under a condition a kernel copies: the host's end is pinned memory, which kernels can read and write. */
static void transfer_when(queue *q, const struct kn_op_transfer *o)
{
    size_t unit = ((uintptr_t)o->to | (uintptr_t)o->from | o->bytes) % 16 ? 1 : 16;
    size_t blocks = (o->bytes / unit + KN_CUDA_ROW_THREADS - 1) / KN_CUDA_ROW_THREADS;
    struct kn_cuda_grid g = { blocks < COPY_BLOCKS ? (int)blocks : COPY_BLOCKS, 1, 1 };
    LAUNCH(q, kernel_of(q, unit == 16 ? KN_CUDA_transfer_16 : KN_CUDA_transfer_1), g, KN_CUDA_ROW_THREADS,
           (void *)(uintptr_t)o);
}

static void add_transfer(queue *q, const struct kn_op_transfer *o)
{
    if (o->when) {
        transfer_when(q, o);
        return;
    }
    if (o->bytes && !q->error)
        failed(q, kn_cuda_transfer(q, o), "copying between the host and the device");
}

static void add_signal(queue *q, const struct kn_op_signal *o)
{
    if (!q->error)
        failed(q, q->device->driver->stream_write(q->stream, (kn_cuda_address)(uintptr_t)o->word, o->value, 0),
               "writing a word");
}

static void add_await(queue *q, const struct kn_op_await *o)
{
    if (!q->error)
        failed(q,
               q->device->driver->stream_await(q->stream, (kn_cuda_address)(uintptr_t)o->word, o->value,
                                               KN_CUDA_NOT_BELOW),
               "waiting for a word");
}

/* ---- products ------------------------------------------------------------------------------------------------ */

struct kn_cuda_grid kn_cuda_panel_grid(int n_out, int n_in, int y, int z)
{
    return (struct kn_cuda_grid){ kn_ceil_div(kn_ceil_div(n_out, KN_PANEL), kn_cuda_panels(n_in)), y, z };
}

/* Moves the products from `at` on that suit the first of them to one launch's list: those of its format, and like it of
 * one row of activations or of several. */
static struct kn_op_products take_alike(const struct kn_op_products *o, int at, bool taken[KN_PRODUCTS])
{
    struct kn_op_products alike = { .n = 0 };
    const struct kn_matmul *first = &o->product[at].mul;
    for (int i = at; i < o->n; i++) {
        const struct kn_matmul *m = &o->product[i].mul;
        if (taken[i] || m->w.format != first->w.format || (m->n_row > 1) != (first->n_row > 1))
            continue;
        taken[i] = true;
        if (m->n_row > 0)
            alike.product[alike.n++] = o->product[i];
    }
    return alike;
}

static void add_products(queue *q, const struct kn_op_products *o)
{
    bool taken[KN_PRODUCTS] = { false };
    for (int at = 0; at < o->n; at++) {
        if (taken[at])
            continue;
        struct kn_op_products alike = take_alike(o, at, taken);
        const struct kn_matmul *first = &o->product[at].mul;
        int several = first->n_row > 1;
        struct kn_cuda_grid g = { 0, 0, alike.n };
        kn_assert(kn_cuda_has_format(first->w.format));
        for (int i = 0; i < alike.n; i++) {
            const struct kn_matmul *m = &alike.product[i].mul;
            g.x = kn_max(g.x, kn_cuda_panel_grid(m->w.n_out, m->w.n_in, 1, 1).x);
            g.y = kn_max(g.y, kn_ceil_div(m->n_row, several ? KN_CUDA_ROWS : 1));
        }
        LAUNCH(q, q->device->product[first->w.format][several], g, KN_CUDA_SLOTS * 4, &alike);
    }
}

/* A launch for each format that groups have, or may have (groups.cu). */
static void launch_groups(queue *q, struct kn_cuda_grid g, unsigned formats, struct kn_cuda_group_product p)
{
    p.admitted = formats ? formats & q->device->formats : q->device->formats;
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        if (p.admitted >> f & 1)
            LAUNCH(q, q->device->group[f], g, KN_CUDA_SLOTS * 4, &p);
}

/* Of few rows the blocks of products compute the activation, too.  Many rows need more blocks. */
static void add_gate_up(queue *q, const struct kn_op_gate_up *o)
{
    int n_out = o->interleaved ? 2 * o->d_act : o->d_act, n_tile = kn_ceil_div(o->d_act, KN_GROUP);
    bool at_once = o->n_row <= ACTIVATE_ROWS && (size_t)o->n_group * (size_t)n_tile <= q->n_count;
    if (o->n_group < 1)
        return;
    launch_groups(q, kn_cuda_panel_grid(n_out, o->d_in, o->interleaved ? 1 : 2, o->n_group), o->formats,
                  (struct kn_cuda_group_product){ .group = o->group,
                                                  .x = o->x,
                                                  .x_row = o->row,
                                                  .y_row = o->pair,
                                                  .y = o->gate,
                                                  .up = o->up,
                                                  .then = *o,
                                                  .count = at_once ? q->count : NULL,
                                                  .n_tile = n_tile });
    if (!at_once)
        LAUNCH(q, kernel_of(q, KN_CUDA_activate),
               ((struct kn_cuda_grid){ kn_min(o->n_pair, kn_max(1, ACTIVATE_BLOCKS / o->n_group)), o->n_group, 1 }),
               KN_CUDA_ROW_THREADS, (void *)(uintptr_t)o);
}

static void add_down(queue *q, const struct kn_op_down *o)
{
    if (o->n_group < 1)
        return;
    launch_groups(q, kn_cuda_panel_grid(o->d_out, o->d_act, 1, o->n_group), o->formats,
                  (struct kn_cuda_group_product){
                      .group = o->group, .x = o->act, .x_row = o->pair, .y_row = o->pair, .y = o->y, .down = true });
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

static void add_finish_qkv(queue *q, const struct kn_op_finish_qkv *o)
{
    launch_rows(q, KN_CUDA_finish_qkv, o->rows.n, o);
}

static void add_latent_keep(queue *q, const struct kn_op_latent_keep *o)
{
    launch_rows(q, KN_CUDA_latent_keep, o->rows.n, o);
}

static void add_latent_place(queue *q, const struct kn_op_latent_place *o)
{
    launch_rows(q, KN_CUDA_latent_place, o->rows.n * o->n_head, o);
}

/* Most spans that a row attends to. */
static int spans_of(const queue *q, const struct kn_op_attend *o)
{
    return o->window ? kn_min(q->max_span, (o->window - 1) / KN_SPAN + 2) : q->max_span;
}

/* Few heads and rows do not occupy the device: then each span is a block of its own.  The bits are the same. */
static void add_attend(queue *q, const struct kn_op_attend *o)
{
    static const enum kn_cuda_kernel attend[KN_KV_COUNT][2] = {
        [KN_KV_F16] = { KN_CUDA_attend_F16, KN_CUDA_attend_F16_wide },
        [KN_KV_F32] = { KN_CUDA_attend_F32, KN_CUDA_attend_F32_wide },
        [KN_KV_INT8] = { KN_CUDA_attend_INT8, KN_CUDA_attend_INT8_wide },
    };
    int wide = o->d_value > KN_CUDA_ATTEND_THREADS, n_span = spans_of(q, o);
    size_t heads = (size_t)o->rows.n * (size_t)o->n_head;
    bool split = n_span > 1 && heads < q->n_split && heads * (size_t)n_span * (size_t)(o->d_value + 2) <= q->n_part;
    kn_assert(q->n_split + heads <= q->n_count);
    struct kn_cuda_parts p = { split ? q->part : NULL, q->count, q->count + q->n_split };
    LAUNCH(q, kernel_of(q, attend[o->cache.kv][wide]),
           ((struct kn_cuda_grid){ o->n_head, o->rows.n, split ? n_span : 1 }), KN_CUDA_ATTEND_THREADS,
           (void *)(uintptr_t)o, &p);
}

/* ---- delta nets ---------------------------------------------------------------------------------------------- */

static void add_part(queue *q, const struct kn_op_part *o) { launch_rows(q, KN_CUDA_part, o->n, o); }
static void add_conv(queue *q, const struct kn_op_conv *o) { launch_rows(q, KN_CUDA_conv, o->flows.n_step, o); }
static void add_keep_draft(queue *q, const struct kn_op_keep_draft *o) { launch_rows(q, KN_CUDA_keep_draft, o->n, o); }

static void add_delta(queue *q, const struct kn_op_delta *o)
{
    const struct kn_net *n = &o->net;
    size_t tile_bytes = (size_t)n->d_key * KN_DELTA_TILE * sizeof(float);
    struct kn_cuda_grid tiles = { kn_ceil_div(n->d_value, KN_DELTA_TILE), n->n_value_head, o->flows.n_flow };
    kn_assert(tile_bytes <= 48 << 10); /* shared memory that every kernel may have */
    launch(q, kernel_of(q, KN_CUDA_delta), tiles, 32, tile_bytes, (void *[]){ (void *)(uintptr_t)o });
    launch_rows(q, KN_CUDA_delta_outputs, o->flows.n_step, o);
    LAUNCH(q, kernel_of(q, KN_CUDA_delta_past),
           ((struct kn_cuda_grid){ kn_ceil_div(kn_net_mix(n), KN_CUDA_ROW_THREADS), o->flows.n_flow, 1 }),
           KN_CUDA_ROW_THREADS, (void *)(uintptr_t)o);
}

/* ---- experts ------------------------------------------------------------------------------------------------- */

static void add_route(queue *q, const struct kn_op_route *o) { launch_rows(q, KN_CUDA_route, o->n, o); }
static void add_plan(queue *q, const struct kn_op_plan *o) { launch_rows(q, KN_CUDA_plan, 1, o); }
static void add_guess(queue *q, const struct kn_op_guess *o) { launch_rows(q, KN_CUDA_guess, 1, o); }
static void add_group(queue *q, const struct kn_op_group *o) { launch_rows(q, KN_CUDA_group, 1, o); }
static void add_combine(queue *q, const struct kn_op_combine *o) { launch_rows(q, KN_CUDA_combine, o->rows.n, o); }

/* ---- the backend --------------------------------------------------------------------------------------------- */

void kn_cuda_launch_op(queue *q, const struct kn_op *op)
{
    switch (op->kind) {
#define KN_ADD(KIND, name)                                                                                             \
    case KN_OP_##KIND:                                                                                                 \
        add_##name(q, &op->name);                                                                                      \
        return;
        KN_OPS(KN_ADD)
#undef KN_ADD
    case KN_OP_COUNT:
        break;
    }
    kn_assert(!"an operation of pass.h");
}

static void queue_add(struct kn_queue *base, const struct kn_op *op)
{
    queue *q = (queue *)base;
    q->device->driver->context_use(q->device->context);
    kn_cuda_add(q, op);
}

static int queue_wait(struct kn_queue *base)
{
    queue *q = (queue *)base;
    q->device->driver->context_use(q->device->context);
    kn_cuda_launch_held(q);
    unsigned error = q->device->driver->stream_wait(q->stream);
    if (error && !q->error)
        failed(q, error, "waiting for the device");
    return q->error;
}

/* The sizes of a queue's memory on the device: parts of attention, for the rows and heads that add_attend() may split, and
 * counts. */
static void size_scratch(queue *q, const struct kn_cuda_device *d, const struct kn_queue_options *opt)
{
    size_t n_span = (size_t)kn_ceil_div(opt->max_pos, KN_SPAN);
    q->n_split = n_span > 1 ? (size_t)(SPANS_BELOW * d->n_processor) : 0;
    q->n_part = q->n_split * n_span * (size_t)(opt->d_value + 2);
    size_t n_attend = q->n_split + (size_t)opt->max_row * (size_t)opt->n_head;
    q->n_count = n_attend > ACTIVATE_COUNTS ? n_attend : ACTIVATE_COUNTS;
}

static size_t scratch_bytes(const queue *q) { return q->n_part * sizeof(float) + q->n_count * sizeof(uint32_t); }

static struct kn_bytes queue_bytes(const struct kn_queue_options *opt)
{
    size_t stage = opt->stages ? KN_CUDA_STAGES * KN_CUDA_STAGE_BYTES : 0;
    queue q;
    size_scratch(&q, (const struct kn_cuda_device *)opt->device, opt);
    return (struct kn_bytes){ .host = sizeof(queue) + stage, .device = scratch_bytes(&q) };
}

static void queue_close(struct kn_queue *base)
{
    queue *q = (queue *)base;
    const struct kn_cuda_driver *d = q->device->driver;
    d->context_use(q->device->context);
    if (q->beside)
        q->beside->beside = NULL;
    if (q->stream) {
        kn_cuda_launch_held(q);
        d->stream_wait(q->stream);
        d->stream_destroy(q->stream);
    }
    kn_cuda_stage_close(q);
    if (q->scratch)
        d->memory_free(q->scratch);
    kn_free(q);
}

static int queue_open(struct kn_queue **out, const struct kn_queue_options *opt)
{
    const struct kn_cuda_device *d = (const struct kn_cuda_device *)opt->device;
    queue *q = kn_calloc(1, sizeof *q);
    if (!q)
        return KN_ENOMEM;
    q->base.backend = &kn_cuda_backend;
    q->device = d;
    q->max_span = kn_ceil_div(opt->max_pos, KN_SPAN);
    size_scratch(q, d, opt);
    q->beside = (queue *)opt->beside;
    if (q->beside)
        q->beside->beside = q;
    d->driver->context_use(d->context);
    unsigned error = d->driver->stream_create(&q->stream, KN_CUDA_NON_BLOCKING);
    error = error ? error : d->driver->memory_alloc(&q->scratch, scratch_bytes(q));
    q->part = (float *)(uintptr_t)q->scratch;
    q->count = (uint32_t *)(q->part + q->n_part);
    if (!error)
        error = d->driver->fill((kn_cuda_address)(uintptr_t)q->count, 0, q->n_count * sizeof *q->count, q->stream);
    if (error) {
        queue_close(&q->base);
        return kn_cuda_failed(error, "opening a queue");
    }
    q->stage.team = opt->team;
    if (opt->stages)
        kn_cuda_stage_open(q);
    *out = &q->base;
    return 0;
}

static void queue_set_team(struct kn_queue *q, struct kn_team *team) { ((queue *)q)->stage.team = team; }

const struct kn_backend kn_cuda_backend = {
    .name = "cuda",
    .close = kn_cuda_close,
    .own_memory = true,
    .has_format = kn_cuda_device_has_format,
    .admit = kn_cuda_admit,
    .memory_free = kn_cuda_memory_free,
    .memory_open = kn_cuda_memory_open,
    .memory_close = kn_cuda_memory_close,
    .memory_write = kn_cuda_memory_write,
    .host_pin = kn_cuda_host_pin,
    .host_unpin = kn_cuda_host_unpin,
    .queue_bytes = queue_bytes,
    .queue_open = queue_open,
    .queue_close = queue_close,
    .queue_set_team = queue_set_team,
    .queue_add = queue_add,
    .queue_wait = queue_wait,
    .can_await = kn_cuda_can_await,
    .queue_await = kn_cuda_await,
};
