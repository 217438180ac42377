/* moe/write/collect.c - collects an importance matrix: sums of squares of the inputs of all matrices, over passes.
 *
 * A collector is a device: the host, with a queue that looks at each operation before the host's queue runs it.  So a
 * context needs no part for it.  Operations name matrices by their address; for dense weights the collector knows these
 * from the model, and an operation's experts are those of the layer that PLAN named last.  Rows are named by the
 * address of their codes; their floats are in the kn_acts that an earlier operation has filled.
 *
 * Experts have a sum for each expert, gates and ups share one.  Routers have none: they are not quantised, and prefetching
 * runs them on rows that are not theirs.
 *
 * Cost: one multiply-add for each input value of each matrix, against n_out of the product.  The sums are float32: a
 * square is added with a relative error of 2^-24, and these errors have both signs. */
#include "kernels/pass.h"
#include "moe/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACTS_MOST 32

struct dense_sums {
    const struct moe_tensor *tensor;
    const struct kn_mat *matrix;
    float *sum; /* [tensor's dim[2]][n_in] */
    uint64_t n_row;
};

struct layer_sums {  /* of a layer's experts; NULL in a dense layer */
    float *in;       /* [n_expert][d_model] inputs of gates and ups */
    float *act;      /* [n_expert][d_expert] inputs of downs */
    uint64_t *n_row; /* [n_expert] */
};

struct moe_collector {
    struct kn_device device; /* its backend is `backend` */
    struct kn_backend backend;
    const struct kn_device *host;
    const struct moe_model *model;
    struct dense_sums *dense; /* [n_dense] by the address of the weights, once these are loaded */
    int n_dense;
    bool sorted;
    struct layer_sums *layer;       /* [n_layer] */
    int planned;                    /* the layer that PLAN named last; -1: none */
    struct kn_acts acts[ACTS_MOST]; /* all that operations have filled */
    int n_acts;
};

struct watching_queue {
    struct kn_queue base;
    struct kn_queue *inner;
    struct moe_collector *collector;
};

/* ---- sums ------------------------------------------------------------------------------------ */

static void add_row(float *sum, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        sum[i] += x[i] * x[i];
}

static int by_address(const void *a, const void *b)
{
    const uint8_t *x = ((const struct dense_sums *)a)->matrix->data, *y = ((const struct dense_sums *)b)->matrix->data;
    return (x > y) - (x < y);
}

/* The sums of the dense matrix at this address; NULL: there is none. */
static struct dense_sums *find_dense(struct moe_collector *c, const void *data)
{
    int low = 0, high = c->n_dense;
    if (!c->sorted)
        qsort(c->dense, (size_t)c->n_dense, sizeof *c->dense, by_address);
    c->sorted = true;
    while (low < high) {
        int mid = (low + high) / 2;
        const uint8_t *at = c->dense[mid].matrix->data;
        if (at == data)
            return &c->dense[mid];
        if (at < (const uint8_t *)data)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static void remember(struct moe_collector *c, const struct kn_acts *a)
{
    for (int i = 0; i < c->n_acts; i++)
        if (c->acts[i].x == a->x) {
            c->acts[i] = *a;
            return;
        }
    kn_assert(c->n_acts < ACTS_MOST);
    c->acts[c->n_acts++] = *a;
}

/* The floats of a row of codes of this kind: those of the kn_acts that begin at or last before them. */
static const float *floats_of(const struct moe_collector *c, const void *code, enum kn_act kind)
{
    const struct kn_acts *best = NULL;
    for (int i = 0; i < c->n_acts; i++) {
        const uint8_t *at = c->acts[i].code[kind];
        if (at && at <= (const uint8_t *)code && (!best || at > (const uint8_t *)best->code[kind]))
            best = &c->acts[i];
    }
    kn_assert(best);
    size_t offset = (size_t)((const uint8_t *)code - (const uint8_t *)best->code[kind]);
    kn_assert(offset % best->code_stride[kind] == 0);
    return best->x + offset / best->code_stride[kind] * best->stride;
}

static void add_product(struct moe_collector *c, const struct kn_product *p)
{
    const struct kn_matmul *m = &p->mul;
    struct dense_sums *s = find_dense(c, m->w.data);
    enum kn_act kind = kn_format_info(m->w.format)->act;
    if (!s)
        return;
    for (int part = 0; part < p->n_stack; part++) {
        float *sum = s->sum + (s->tensor->dim[2] > 1 ? (size_t)part * (size_t)m->w.n_in : 0);
        for (int i = 0; i < m->n_row; i++) {
            const uint8_t *code = (const uint8_t *)m->x + (size_t)(m->x_row ? m->x_row[i] : i) * m->x_stride;
            add_row(sum, floats_of(c, code + (size_t)part * (p->n_stack > 1 ? p->x_part : 0), kind), m->w.n_in);
        }
    }
    s->n_row += (uint64_t)m->n_row;
}

/* Adds the rows that a group reads; list: of the operation, NULL: part i has row i. */
static void add_group(float *sum, const struct kn_group *g, const struct kn_acts *x, const int32_t *list, int n_in)
{
    for (int i = g->first; i < g->first + g->n; i++)
        add_row(sum, x->x + (size_t)(list ? list[i] : i) * x->stride, n_in);
}

static bool add_dense_group(struct moe_collector *c, const struct kn_mat *w, const struct kn_group *g,
                            const struct kn_acts *x, const int32_t *list)
{
    struct dense_sums *s = w->n_out ? find_dense(c, w->data) : NULL;
    if (s) {
        add_group(s->sum, g, x, list, w->n_in);
        s->n_row += (uint64_t)g->n;
    }
    return s != NULL;
}

static void add_gate_up(struct moe_collector *c, const struct kn_op_gate_up *o)
{
    for (int i = 0; i < o->n_group; i++) {
        const struct kn_group *g = &o->group[i];
        if (add_dense_group(c, &g->gate, g, &o->x, o->row)) {
            add_dense_group(c, &g->up, g, &o->x, o->row);
            continue;
        }
        const struct layer_sums *l = &c->layer[c->planned];
        add_group(l->in + (size_t)g->bias * (size_t)o->d_in, g, &o->x, o->row, o->d_in);
        l->n_row[g->bias] += (uint64_t)g->n;
    }
}

static void add_down(struct moe_collector *c, const struct kn_op_down *o)
{
    for (int i = 0; i < o->n_group; i++) {
        const struct kn_group *g = &o->group[i];
        if (!add_dense_group(c, &g->down, g, &o->act, o->pair))
            add_group(c->layer[c->planned].act + (size_t)g->bias * (size_t)o->d_act, g, &o->act, o->pair, o->d_act);
    }
}

/* ---- the queue ------------------------------------------------------------------------------- */

/* Looks at an operation that is about to run: all earlier ones have run. */
static void look_at(struct moe_collector *c, const struct kn_op *op)
{
    const struct moe_desc *d = &c->model->desc;
    switch (op->kind) {
    case KN_OP_ADD_NORM_CODE:
        remember(c, &op->add_norm_code.out);
        break;
    case KN_OP_CODE:
        remember(c, &op->code.acts);
        break;
    case KN_OP_ATTEND:
        remember(c, &op->attend.out);
        break;
    case KN_OP_LATENT_KEEP:
        remember(c, &op->latent_keep.low);
        break;
    case KN_OP_LATENT_PLACE:
        remember(c, &op->latent_place.plain);
        break;
    case KN_OP_PRODUCTS:
        for (int i = 0; i < op->products.n; i++)
            add_product(c, &op->products.product[i]);
        break;
    case KN_OP_PLAN:
        c->planned = moe_next_sparse(d, -1);
        for (int n = op->plan.expert0 / d->n_expert; n > 0; n--)
            c->planned = moe_next_sparse(d, c->planned);
        break;
    case KN_OP_GATE_UP:
        add_gate_up(c, &op->gate_up);
        break;
    case KN_OP_DOWN:
        add_down(c, &op->down);
        break;
    default:
        break;
    }
}

static void queue_add(struct kn_queue *queue, const struct kn_op *op)
{
    struct watching_queue *q = (struct watching_queue *)queue;
    look_at(q->collector, op);
    kn_queue_add(q->inner, op);
}

static struct moe_collector *collector_of(const struct kn_queue_options *opt)
{
    return (struct moe_collector *)(uintptr_t)opt->device; /* device is its first member */
}

static struct kn_bytes queue_bytes(const struct kn_queue_options *opt)
{
    struct kn_queue_options inner = *opt;
    inner.device = collector_of(opt)->host;
    struct kn_bytes n = kn_queue_bytes(&inner);
    n.host += sizeof(struct watching_queue);
    return n;
}

static int queue_open(struct kn_queue **out, const struct kn_queue_options *opt)
{
    struct moe_collector *c = collector_of(opt);
    struct kn_queue_options inner = *opt;
    struct watching_queue *q = kn_calloc(1, sizeof *q);
    if (!q)
        return kn_fail(KN_ENOMEM, "no memory for a queue");
    inner.device = c->host;
    *q = (struct watching_queue){ .base.backend = &c->backend, .collector = c };
    int error = kn_queue_open(&q->inner, &inner);
    if (error)
        kn_free(q);
    else
        *out = &q->base;
    return error;
}

static void queue_close(struct kn_queue *queue)
{
    kn_queue_close(((struct watching_queue *)queue)->inner);
    kn_free(queue);
}

static void queue_set_team(struct kn_queue *queue, struct kn_team *team)
{
    kn_queue_set_team(((struct watching_queue *)queue)->inner, team);
}

static int queue_wait(struct kn_queue *queue) { return kn_queue_wait(((struct watching_queue *)queue)->inner); }

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_router(const struct moe_tensor *t)
{
    static const char part[] = ".ffn_gate_inp";
    return memmem(t->name.data, t->name.n, part, sizeof part - 1) != NULL;
}

static int list_dense(struct moe_collector *c)
{
    const struct moe_model *m = c->model;
    c->dense = kn_calloc((size_t)m->n_dense + 1, sizeof *c->dense);
    for (int i = 0; c->dense && i < m->n_dense; i++) {
        const struct moe_dense *p = &m->dense[i];
        if (!p->matrix || p->row0 || is_router(p->tensor)) /* the matrices of one tensor have the same inputs */
            continue;
        struct dense_sums *s = &c->dense[c->n_dense++];
        s->tensor = p->tensor;
        s->matrix = p->matrix;
        if (!(s->sum = kn_calloc((size_t)(p->tensor->dim[0] * p->tensor->dim[2]), sizeof *s->sum)))
            return KN_ENOMEM;
    }
    return c->dense ? 0 : KN_ENOMEM;
}

static int list_layers(struct moe_collector *c)
{
    const struct moe_desc *d = &c->model->desc;
    size_t n = (size_t)d->n_expert;
    c->layer = kn_calloc((size_t)d->n_layer, sizeof *c->layer);
    for (int i = moe_next_sparse(d, -1); c->layer && i < d->n_layer; i = moe_next_sparse(d, i)) {
        struct layer_sums *l = &c->layer[i];
        l->in = kn_calloc(n * (size_t)d->d_model, sizeof *l->in);
        l->act = kn_calloc(n * (size_t)d->d_expert, sizeof *l->act);
        l->n_row = kn_calloc(n, sizeof *l->n_row);
        if (!l->in || !l->act || !l->n_row)
            return KN_ENOMEM;
    }
    return c->layer ? 0 : KN_ENOMEM;
}

int moe_collector_open(struct moe_collector **out, const struct moe_model *m)
{
    struct moe_collector *c = kn_calloc(1, sizeof *c);
    if (!c)
        return kn_fail(KN_ENOMEM, "no memory for sums of inputs");
    kn_assert(!m->device->backend->own_memory && !m->desc.head);
    c->model = m;
    c->host = m->device;
    c->planned = -1;
    c->backend = *c->host->backend;
    c->backend.close = NULL;
    c->backend.queue_bytes = queue_bytes;
    c->backend.queue_open = queue_open;
    c->backend.queue_close = queue_close;
    c->backend.queue_set_team = queue_set_team;
    c->backend.queue_add = queue_add;
    c->backend.queue_wait = queue_wait;
    c->device.backend = &c->backend;
    if (list_dense(c) || list_layers(c)) {
        moe_collector_close(c);
        return kn_fail(KN_ENOMEM, "no memory for sums of the inputs of all matrices");
    }
    *out = c;
    return 0;
}

void moe_collector_close(struct moe_collector *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_dense; i++)
        kn_free(c->dense[i].sum);
    for (int i = 0; c->layer && i < c->model->desc.n_layer; i++) {
        kn_free(c->layer[i].in);
        kn_free(c->layer[i].act);
        kn_free(c->layer[i].n_row);
    }
    kn_free(c->dense);
    kn_free(c->layer);
    kn_free(c);
}

const struct kn_device *moe_collector_device(struct moe_collector *c) { return &c->device; }

/* ---- the file -------------------------------------------------------------------------------- */

struct entry {
    char name[128];
    const float *sum; /* [n_matrix][n_in] */
    uint64_t n_in, n_matrix, n_count;
    const uint64_t *n_row; /* [n_count] n_matrix of them, or one for all */
};

static bool has_rows(const struct entry *e)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < e->n_count; i++)
        n += e->n_row[i];
    return n > 0;
}

static size_t list_entries(const struct moe_collector *c, struct entry *out)
{
    static const char *const part[] = { "gate", "up", "down" };
    const struct moe_desc *d = &c->model->desc;
    size_t n = 0;
    for (int i = 0; i < c->n_dense; i++) {
        const struct dense_sums *s = &c->dense[i];
        struct entry *e = &out[n];
        *e = (struct entry){
            .sum = s->sum, .n_in = s->tensor->dim[0], .n_matrix = s->tensor->dim[2], .n_count = 1, .n_row = &s->n_row
        };
        snprintf(e->name, sizeof e->name, "%.*s", (int)s->tensor->name.n, s->tensor->name.data);
        n += has_rows(e);
    }
    for (int i = moe_next_sparse(d, -1); i < d->n_layer; i = moe_next_sparse(d, i)) {
        const struct layer_sums *l = &c->layer[i];
        uint64_t n_expert = (uint64_t)d->n_expert;
        char fused[64];
        snprintf(fused, sizeof fused, "blk.%d.ffn_gate_up_exps.weight", i);
        bool is_fused = moe_file_find_tensor(c->model->file, fused) != NULL;
        for (int k = 0; k < 3; k++) {
            if (is_fused && k == 1)
                continue; /* in the entry of the gates */
            struct entry *e = &out[n];
            *e = (struct entry){ .sum = k < 2 ? l->in : l->act,
                                 .n_in = (uint64_t)(k < 2 ? d->d_model : d->d_expert),
                                 .n_matrix = n_expert,
                                 .n_count = n_expert,
                                 .n_row = l->n_row };
            snprintf(e->name, sizeof e->name, "blk.%d.ffn_%s_exps.weight", i, is_fused && !k ? "gate_up" : part[k]);
            n += has_rows(e);
        }
    }
    return n;
}

static void describe(struct moe_writer *w, const struct entry *e)
{
    char name[160];
    snprintf(name, sizeof name, "%s.in_sum2", e->name);
    moe_writer_tensor(w, name, KN_F32, 2, (uint64_t[4]){ e->n_in, e->n_matrix, 1, 1 });
    snprintf(name, sizeof name, "%s.counts", e->name);
    moe_writer_tensor(w, name, KN_F32, 2, (uint64_t[4]){ 1, e->n_count, 1, 1 });
}

static int write_entries(struct moe_writer *w, const struct entry *entry, size_t n, const struct moe_calibration *text)
{
    struct moe_string name = { text->text, strlen(text->text) };
    uint32_t n_chunk = (uint32_t)text->n_chunk, chunk_tokens = (uint32_t)text->chunk_tokens;
    moe_writer_string(w, "general.type", "imatrix", 7);
    moe_writer_array(w, "imatrix.datasets", MOE_STRING, &name, 1);
    moe_writer_value(w, "imatrix.chunk_count", MOE_U32, &n_chunk);
    moe_writer_value(w, "imatrix.chunk_size", MOE_U32, &chunk_tokens);
    for (size_t i = 0; i < n; i++)
        describe(w, &entry[i]);
    moe_writer_header(w);
    for (size_t i = 0; i < n; i++) {
        moe_writer_data(w, entry[i].sum, (size_t)(entry[i].n_in * entry[i].n_matrix) * sizeof(float));
        for (uint64_t k = 0; k < entry[i].n_count; k++)
            moe_writer_data(w, &(float){ (float)entry[i].n_row[k] }, sizeof(float));
    }
    return moe_writer_finish(w);
}

int moe_collector_write(struct moe_collector *c, const char *path, const struct moe_calibration *text,
                        struct moe_collected *out)
{
    struct moe_writer *w = NULL;
    const struct moe_desc *d = &c->model->desc;
    struct entry *entry = kn_calloc((size_t)(c->n_dense + 3 * d->n_layer), sizeof *entry);
    if (!entry)
        return kn_fail(KN_ENOMEM, "%s: no memory for a list of matrices", path);
    *out = (struct moe_collected){ .n_matrix = list_entries(c, entry) };
    for (int i = 0; i < d->n_layer; i++)
        for (int e = 0; c->layer[i].n_row && e < d->n_expert; e++) {
            out->n_expert++;
            out->n_reached += c->layer[i].n_row[e] > 0;
        }
    int err = moe_writer_open(&w, path);
    if (!err)
        err = write_entries(w, entry, out->n_matrix, text);
    moe_writer_close(w);
    kn_free(entry);
    return err;
}
