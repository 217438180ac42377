/* Operations with one row per item: embedding, residual addition with norm and codes, features; and copies. */
#include "kernels/cpu/pass/host.h"

#include <math.h>
#include <string.h>

#define SCALE_ALONE ((size_t)16 << 10)  /* values of one item of scale */
#define COPY_ALONE  ((size_t)256 << 10) /* bytes that one thread copies about as soon as a team wakes up */

void kn_host_code_row(const struct kn_ops *ops, const struct kn_acts *a, unsigned kinds, int n_in, int row)
{
    for (int kind = KN_ACT_F32 + 1; kind < KN_ACT_COUNT; kind++)
        if (kinds & 1u << kind)
            ops->quantize(kind, a->x + (size_t)row * a->stride, n_in,
                          (uint8_t *)a->code[kind] + (size_t)row * a->code_stride[kind]);
}

/* y = the norm of x by weight; with a bias the layer norm.  y is not x. */
static void norm_row(const struct kn_ops *ops, const float *x, const float *weight, const float *bias, float eps, int n,
                     float *y)
{
    if (bias)
        ops->center(x, n, y);
    ops->rms_norm(bias ? y : x, weight, eps, n, y);
    if (bias)
        ops->add(y, bias, n);
}

static void embed_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct kn_op_embed *o = arg;
    const struct kn_row *r = &o->rows.row[row];
    float *x = o->x + (size_t)row * (size_t)o->w.n_in;
    if (o->w.n_out)
        kn_mat_row(&o->w, r->token, x);
    for (int i = 0; o->w.n_out && o->w_scale != 1 && i < o->w.n_in; i++)
        x[i] *= o->w_scale;
    float(*rotation)[2] = o->rotation + (size_t)row * (size_t)o->n_pair;
    for (int i = 0; i < o->n_pair; i++) {
        double s, co;
        kn_sincos((float)r->position * o->freq[i], &s, &co); /* the angle is a float32 */
        rotation[i][0] = (float)co * o->scale;
        rotation[i][1] = (float)s * o->scale;
    }
}

void kn_host_embed(struct kn_host_queue *q, const struct kn_op_embed *o)
{
    kn_parallel_for(q->team, o->rows.n, embed_row, (void *)o);
}

static void add_norm_code_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct kn_host_job *j = arg;
    const struct kn_op_add_norm_code *o = j->op;
    size_t d = (size_t)o->d;
    float *x = o->x + (size_t)(o->row ? o->row[item] : item) * d;
    if (o->y) {
        float *y = o->y + (size_t)item * d;
        if (o->bias)
            j->ops->add(y, o->bias, o->d);
        if (o->y_norm)
            j->ops->rms_norm(y, o->y_norm, o->eps, o->d, y);
        j->ops->add_scaled(x, o->y_scale, y, o->d);
    }
    if (!o->weight)
        return;
    norm_row(j->ops, x, o->weight, o->norm_bias, o->eps, o->d, o->out.x + (size_t)item * o->out.stride);
    kn_host_code_row(j->ops, &o->out, o->kinds, o->d, item);
}

void kn_host_add_norm_code(struct kn_host_queue *q, const struct kn_op_add_norm_code *o)
{
    kn_assert(!o->y || !o->row);
    kn_host_for(q, o->n, add_norm_code_item, o);
}

static void code_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct kn_host_job *j = arg;
    const struct kn_op_code *o = j->op;
    kn_host_code_row(j->ops, &o->acts, o->kinds, o->n_in, item);
}

void kn_host_code(struct kn_host_queue *q, const struct kn_op_code *o)
{
    if (o->kinds & ~(1u << KN_ACT_F32))
        kn_host_for(q, o->n, code_item, o);
}

static void keep_features_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct kn_host_job *j = arg;
    const struct kn_op_keep_features *o = j->op;
    const struct kn_features *f = &o->features;
    const float *x = o->x + (size_t)row * (size_t)f->n;
    float *out = o->scratch.x + (size_t)row * o->scratch.stride, most = f->kv == KN_KV_F16 ? 65504.0f : INFINITY;
    if (o->rows.status[row])
        return;
    if (o->weight)
        norm_row(j->ops, x, o->weight, o->norm_bias, o->eps, f->n, out);
    for (int i = 0; !o->weight && i < f->n; i++)
        out[i] = x[i] > most ? most : x[i] < -most ? -most : x[i];
    j->ops->kv_store(f->kv, out, f->n, f->base + (size_t)o->rows.row[row].slot * f->slot_bytes, NULL);
}

void kn_host_keep_features(struct kn_host_queue *q, const struct kn_op_keep_features *o)
{
    kn_host_for(q, o->rows.n, keep_features_row, o);
}

/* Items are pieces of SCALE_ALONE values: the logits of one row occupy all threads. */
static void scale_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct kn_host_job *j = arg;
    const struct kn_op_scale *o = j->op;
    size_t first = (size_t)item * SCALE_ALONE, n_all = (size_t)o->n * (size_t)o->d;
    int n = (int)(n_all - first < SCALE_ALONE ? n_all - first : SCALE_ALONE);
    float *x = o->x + first;
    for (int i = 0; !o->bias && o->by != 1 && i < n; i++)
        x[i] *= o->by;
    for (int i = 0; o->bias && i < n; i++)
        x[i] = x[i] * o->by + o->bias[(first + (size_t)i) % (size_t)o->d];
    if (o->cap > 0)
        j->ops->cap(x, o->cap, n);
}

void kn_host_scale(struct kn_host_queue *q, const struct kn_op_scale *o)
{
    size_t n = (size_t)o->n * (size_t)o->d;
    kn_host_for(q, (int)((n + SCALE_ALONE - 1) / SCALE_ALONE), scale_item, o);
}

static void pack_array(void *arg, int item, int thread)
{
    (void)thread;
    const struct kn_op_pack *o = arg;
    const struct kn_pack *a = &o->array[item];
    size_t d = (size_t)a->d;
    for (int i = 0; i < o->n; i++) /* rows ascend: none is overwritten before it has moved */
        memmove(a->x + (size_t)i * d, a->x + (size_t)o->row[i] * d, d * sizeof *a->x);
}

void kn_host_pack(struct kn_host_queue *q, const struct kn_op_pack *o)
{
    size_t bytes = 0;
    for (int i = 0; i < o->n_array; i++)
        bytes += (size_t)o->n * (size_t)o->array[i].d * sizeof(float);
    if (bytes >= COPY_ALONE) {
        kn_parallel_for(q->team, o->n_array, pack_array, (void *)o);
        return;
    }
    for (int i = 0; i < o->n_array; i++)
        pack_array((void *)o, i, 0);
}

static void copy_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct kn_op_copy *o = arg;
    size_t at = (size_t)item * o->stride;
    if (o->from)
        memmove(o->to + at, o->from + at, o->bytes);
    else
        memset(o->to + at, 0, o->bytes);
}

void kn_host_copy(struct kn_host_queue *q, const struct kn_op_copy *o)
{
    if ((size_t)o->n * o->bytes >= COPY_ALONE) {
        kn_parallel_for(q->team, o->n, copy_item, (void *)o);
        return;
    }
    for (int i = 0; i < o->n; i++)
        copy_item((void *)o, i, 0);
}

/* The host's memory is its own image: nothing has to be copied between them, but any two pieces may be. */
void kn_host_transfer(struct kn_host_queue *q, const struct kn_op_transfer *o)
{
    (void)q;
    if (!o->when || *o->when)
        memmove(o->to, o->from, o->bytes);
}

void kn_host_signal(struct kn_host_queue *q, const struct kn_op_signal *o)
{
    (void)q;
    __atomic_store_n(o->word, o->value, __ATOMIC_RELEASE);
}

/* The host's queue runs at once: it cannot await. */
void kn_host_await(struct kn_host_queue *q, const struct kn_op_await *o)
{
    (void)q;
    kn_assert(kn_word_reached(o->word, o->value));
}
