/* The inputs of a draft head's rows, and the logits of a head that predicts a part of the vocabulary. */
#include "kernels/cpu/pass/host.h"

#include <math.h>
#include <string.h>

/* Reads the feature of a slot as floats. */
static void read_feature(const struct kn_features *f, int32_t slot, float *out)
{
    kn_assert(slot >= 0 && slot < f->n_slot);
    kn_row_decode(f->kv == KN_KV_F16 ? KN_F16 : KN_F32, f->base + (size_t)slot * f->slot_bytes, f->n, out);
}

static void join_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct kn_host_job *j = arg;
    const struct kn_op_join *o = j->op;
    const struct kn_row *r = &o->rows.row[row];
    int d_model = o->embed.n_in;
    float *join = o->out.x + (size_t)row * o->out.stride;
    float *feature = join + o->token_first * d_model, *token = join + !o->token_first * d_model;
    if (r->feature)
        memcpy(feature, r->feature, (size_t)d_model * sizeof *feature);
    else
        read_feature(&o->features, r->feature_slot, feature);
    kn_mat_row(&o->embed, r->token, token);
    if (o->feature_norm)
        j->ops->rms_norm(feature, o->feature_norm, o->eps, d_model, feature);
    if (o->embed_norm)
        j->ops->rms_norm(token, o->embed_norm, o->eps, d_model, token);
    kn_host_code_row(j->ops, &o->out, o->kinds, 2 * d_model, row);
}

void kn_host_join(struct kn_host_queue *q, const struct kn_op_join *o) { kn_host_for(q, o->rows.n, join_row, o); }

static void fuse_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct kn_host_job *j = arg;
    const struct kn_op_fuse *o = j->op;
    const struct kn_row *r = &o->rows.row[row];
    float *out = o->out.x + (size_t)row * o->out.stride;
    if (r->feature)
        memset(out, 0, (size_t)o->features.n * sizeof *out);
    else
        read_feature(&o->features, r->feature_slot, out);
    for (int i = 0, n = o->n_norm ? o->features.n / o->n_norm : 0; i < o->n_norm; i++)
        j->ops->rms_norm(out + i * n, o->norm[i], o->eps, n, out + i * n);
    kn_host_code_row(j->ops, &o->out, o->kinds, o->features.n, row);
}

void kn_host_fuse(struct kn_host_queue *q, const struct kn_op_fuse *o) { kn_host_for(q, o->rows.n, fuse_row, o); }

static void pair_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct kn_host_job *j = arg;
    const struct kn_op_pair *o = j->op;
    const struct kn_row *r = &o->rows.row[row];
    int d_model = o->embed.n_in;
    float *x = o->x + (size_t)row * (size_t)d_model, *token = o->out.x + (size_t)row * o->out.stride;
    float *stream = token + d_model;
    if (r->feature)
        memcpy(x, r->feature, (size_t)d_model * sizeof *x);
    kn_mat_row(&o->embed, r->token, token);
    if (o->embed_norm)
        j->ops->rms_norm(token, o->embed_norm, o->eps, d_model, token);
    j->ops->rms_norm(x, o->x_norm, o->eps, d_model, stream);
    if (o->norm_first)
        memcpy(x, stream, (size_t)d_model * sizeof *x);
    kn_host_code_row(j->ops, &o->out, o->kinds, 2 * d_model, row);
}

void kn_host_pair(struct kn_host_queue *q, const struct kn_op_pair *o) { kn_host_for(q, o->rows.n, pair_row, o); }

static void spread_row(void *arg, int i, int thread)
{
    (void)thread;
    const struct kn_op_spread *o = arg;
    size_t d_model = (size_t)o->d_model;
    size_t row = (size_t)(o->row ? o->row[i] : i);
    if (o->out)
        memcpy(o->out + (size_t)i * d_model, o->x + row * d_model, d_model * sizeof *o->x);
    if (!o->token)
        return;
    float *logits = o->logits + (size_t)i * (size_t)o->n_vocab;
    const float *guessed = o->guessed + (size_t)i * (size_t)o->n_guess;
    for (int token = 0; token < o->n_vocab; token++)
        logits[token] = -INFINITY;
    for (int k = 0; k < o->n_guess; k++)
        logits[o->token[k]] = guessed[k];
}

void kn_host_spread(struct kn_host_queue *q, const struct kn_op_spread *o)
{
    kn_parallel_for(q->team, o->n, spread_row, (void *)o);
}
