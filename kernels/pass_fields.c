/* The memory that each operation of pass.h reads and writes, field by field.
 *
 * One function for each operation lists its fields in the order of the struct.  Rows with gaps between them are listed
 * row by row, so that no byte is named that the operation leaves alone.  Scratch of a backend's own is not listed. */
#include "kernels/pass.h"

struct fields {
    kn_field_visit *visit;
    void *arg;
};

static void field(const struct fields *f, const char *name, enum kn_access access, const void *at, size_t bytes)
{
    if (at && bytes)
        f->visit(f->arg, name, access, at, bytes);
}

/* n values from a pointer of the operation, if it is not NULL. */
#define FIELD(access, member, n) field(f, #member, access, o->member, (size_t)(n) * sizeof *o->member)

/* n rows of `bytes` each, `stride` bytes apart. */
static void rows(const struct fields *f, const char *name, enum kn_access access, const void *at, size_t stride, int n,
                 size_t bytes)
{
    if (stride == bytes) {
        field(f, name, access, at, (size_t)kn_max(n, 0) * bytes);
        return;
    }
    for (int i = 0; at && i < n; i++)
        field(f, name, access, (const uint8_t *)at + (size_t)i * stride, bytes);
}

static void row_floats(const struct fields *f, const char *name, enum kn_access access, const float *x, size_t stride,
                       int n, int d)
{
    rows(f, name, access, x, stride * sizeof *x, n, (size_t)d * sizeof *x);
}

/* Rows of acts from row `first` on: floats of d values, and codes of these kinds. */
static void acts(const struct fields *f, const char *name, enum kn_access floats, enum kn_access codes,
                 const struct kn_acts *a, unsigned kinds, int first, int n, int d)
{
    row_floats(f, name, floats, a->x ? a->x + (size_t)first * a->stride : NULL, a->stride, n, d);
    for (int kind = KN_ACT_F32 + 1; kind < KN_ACT_COUNT; kind++)
        if (kinds & 1u << kind)
            rows(f, name, codes, (uint8_t *)a->code[kind] + (size_t)first * a->code_stride[kind], a->code_stride[kind],
                 n, kn_act_bytes(kind, d));
}

/* Row number of part i of an operation's list; NULL: i. */
static size_t listed(const int32_t *list, int i) { return (size_t)(list ? list[i] : i); }

static void descriptor(const struct fields *f, const struct kn_rows *r)
{
    field(f, "rows.row", KN_READS, r->row, (size_t)r->n * sizeof *r->row);
    field(f, "rows.status", KN_READS, r->status, (size_t)r->n * sizeof *r->status);
}

static void paths(const struct fields *f, const struct kn_rows *r)
{
    for (int i = 0; i < r->n; i++) {
        const struct kn_row *row = &r->row[i];
        int n = row->position + 1, n_base = kn_min(n, row->n_base);
        field(f, "rows.row.base", KN_READS, row->base, (size_t)n_base * sizeof *row->base);
        field(f, "rows.row.tail", KN_READS, row->tail, (size_t)(n - n_base) * sizeof *row->tail);
    }
}

static void matrix(const struct fields *f, const char *name, const struct kn_mat *w)
{
    if (w->n_out)
        field(f, name, KN_READS, w->data, kn_mat_bytes(w->format, w->n_out, w->n_in));
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

static void embed(const struct fields *f, const struct kn_op_embed *o)
{
    descriptor(f, &o->rows);
    matrix(f, "w", &o->w);
    FIELD(KN_WRITES, x, o->w.n_out ? o->rows.n * o->w.n_in : 0);
    FIELD(KN_READS, freq, o->n_pair);
    FIELD(KN_WRITES, rotation, o->rows.n * o->n_pair);
}

static void add_norm_code(const struct fields *f, const struct kn_op_add_norm_code *o)
{
    if (o->row)
        for (int i = 0; i < o->n; i++)
            field(f, "x", KN_READS, o->x + (size_t)o->row[i] * (size_t)o->d, (size_t)o->d * sizeof *o->x);
    else
        FIELD(o->y ? KN_CHANGES : KN_READS, x, o->n * o->d);
    FIELD(KN_CHANGES, y, o->n * o->d);
    FIELD(KN_READS, bias, o->y ? o->d : 0);
    FIELD(KN_READS, y_norm, o->y ? o->d : 0);
    FIELD(KN_READS, weight, o->d);
    FIELD(KN_READS, norm_bias, o->weight ? o->d : 0);
    FIELD(KN_READS, row, o->n);
    if (o->weight)
        acts(f, "out", KN_WRITES, KN_WRITES, &o->out, o->kinds, 0, o->n, o->d);
}

static void code(const struct fields *f, const struct kn_op_code *o)
{
    acts(f, "acts", KN_READS, KN_WRITES, &o->acts, o->kinds, 0, o->n, o->n_in);
}

static void keep_features(const struct fields *f, const struct kn_op_keep_features *o)
{
    descriptor(f, &o->rows);
    FIELD(KN_READS, x, o->rows.n * o->features.n);
    FIELD(KN_READS, weight, o->features.n);
    FIELD(KN_READS, norm_bias, o->weight ? o->features.n : 0);
    row_floats(f, "scratch", KN_CHANGES, o->scratch.x, o->scratch.stride, o->rows.n, o->features.n);
    for (int i = 0; i < o->rows.n; i++)
        if (!o->rows.status[i])
            field(f, "features", KN_WRITES, o->features.base + (size_t)o->rows.row[i].slot * o->features.slot_bytes,
                  (size_t)o->features.n * kn_kv_value_bytes(o->features.kv));
}

static void product(const struct fields *f, const struct kn_product *p)
{
    const struct kn_matmul *m = &p->mul;
    int n_out = m->w.n_out / p->n_stack;
    size_t x_bytes = kn_act_bytes(kn_format_info(m->w.format)->act, m->w.n_in);
    if (m->n_row <= 0)
        return;
    matrix(f, "product.w", &m->w);
    field(f, "product.x_row", KN_READS, m->x_row, (size_t)m->n_row * sizeof *m->x_row);
    field(f, "product.y_row", KN_READS, m->y_row, (size_t)m->n_row * sizeof *m->y_row);
    for (int i = 0; i < m->n_row; i++)
        for (size_t k = 0; k < (size_t)p->n_stack; k++) {
            size_t x = (size_t)(m->x_row ? m->x_row[i] : i), y = (size_t)(m->y_row ? m->y_row[i] : i);
            size_t y_at = y * m->y_stride + (p->n_stack > 1 ? k * p->y_part : 0);
            size_t x_at = x * m->x_stride + (p->n_stack > 1 ? k * p->x_part : 0);
            field(f, "product.x", KN_READS, (const uint8_t *)m->x + x_at, x_bytes);
            field(f, "product.y", KN_WRITES, m->y + y_at, (size_t)n_out * sizeof *m->y);
        }
}

static void products(const struct fields *f, const struct kn_op_products *o)
{
    for (int i = 0; i < o->n; i++)
        product(f, &o->product[i]);
}

static void scale(const struct fields *f, const struct kn_op_scale *o)
{
    FIELD(KN_CHANGES, x, o->n * o->d);
    FIELD(KN_READS, bias, o->n > 0 ? o->d : 0);
}

static void pack(const struct fields *f, const struct kn_op_pack *o)
{
    FIELD(KN_READS, row, o->n);
    for (int k = 0; k < o->n_array; k++) {
        const struct kn_pack *a = &o->array[k];
        size_t bytes = (size_t)a->d * sizeof *a->x;
        for (int i = 0; i < o->n; i++)
            field(f, "array.x", KN_READS, a->x + (size_t)o->row[i] * (size_t)a->d, bytes);
        field(f, "array.x", KN_WRITES, a->x, (size_t)o->n * bytes);
    }
}

/* ---- attention --------------------------------------------------------------------------------------------- */

/* The keys of one slot, of d values in each of n_kv heads, or its values; with their scales. */
static void cached(const struct fields *f, enum kn_access access, const struct kn_cache *c, bool key, int32_t slot,
                   int n_kv, int d)
{
    size_t one = kn_kv_value_bytes(c->kv), step = (size_t)(key ? c->k_step : c->v_step),
           next = key ? c->k_head : c->v_head;
    const uint8_t *number = (key ? c->k : c->v) + (size_t)slot * step * one;
    const float *scale = key ? c->k_scale : c->v_scale;
    if (scale)
        scale += slot * kn_kv_blocks((int)step);
    for (size_t h = 0; h < (size_t)n_kv; h++) {
        field(f, key ? "cache.k" : "cache.v", access, number + h * next, (size_t)d * one);
        field(f, key ? "cache.k_scale" : "cache.v_scale", access, scale ? (const uint8_t *)scale + h * next : NULL,
              (size_t)kn_kv_blocks(d) * sizeof *scale);
    }
}

static void finish_qkv(const struct fields *f, const struct kn_op_finish_qkv *o)
{
    int n_q = o->n_head * o->d_head, n_k = o->n_kv * o->d_head, n_v = o->n_kv * o->d_value;
    descriptor(f, &o->rows);
    FIELD(KN_CHANGES, q, o->rows.n * n_q);
    FIELD(KN_CHANGES, k, o->rows.n * n_k);
    FIELD(KN_CHANGES, v, o->rows.n * n_v);
    FIELD(KN_READS, q_gate, o->rows.n * 2 * n_q);
    FIELD(KN_READS, q_bias, n_q);
    FIELD(KN_READS, k_bias, n_k);
    FIELD(KN_READS, v_bias, n_v);
    FIELD(KN_READS, q_norm, o->norm_all ? n_q : o->d_head);
    FIELD(KN_READS, k_norm, o->norm_all ? n_k : o->d_head);
    FIELD(KN_READS, rotation, o->rows.n * (o->n_rot / 2));
    FIELD(KN_READS, v_norm, o->d_value);
    for (int i = 0; i < o->rows.n; i++)
        if (!o->rows.status[i]) {
            cached(f, KN_WRITES, &o->cache, true, o->rows.row[i].slot, o->n_kv, o->d_head);
            cached(f, KN_WRITES, &o->cache, false, o->rows.row[i].slot, o->n_kv, o->d_value);
        }
}

static void attend_row(const struct fields *f, const struct kn_op_attend *o, int row)
{
    const struct kn_row *r = &o->rows.row[row];
    for (int p = o->window ? kn_max(0, r->position - o->window + 1) : 0; p <= r->position; p++) {
        int32_t slot = p < r->n_base ? r->base[p] : r->tail[p - r->n_base];
        cached(f, KN_READS, &o->cache, true, slot, o->n_kv, o->d_key);
        cached(f, KN_READS, &o->cache, false, slot, o->n_kv, o->d_value);
    }
    if (o->by_head)
        acts(f, "out", KN_WRITES, KN_WRITES, &o->out, o->kinds, row * o->n_head, o->n_head, o->d_value);
    else
        row_floats(f, "out", KN_WRITES, o->out.x + (size_t)row * o->out.stride, o->out.stride, 1,
                   o->n_head * o->d_value);
}

static void attend(const struct fields *f, const struct kn_op_attend *o)
{
    int n_q = o->n_head * o->d_key;
    descriptor(f, &o->rows);
    paths(f, &o->rows);
    FIELD(KN_READS, q, o->rows.n * n_q);
    FIELD(KN_READS, q_gate, o->rows.n * 2 * n_q);
    FIELD(KN_READS, sink, o->n_head);
    for (int i = 0; i < o->rows.n; i++)
        if (!o->rows.status[i])
            attend_row(f, o, i);
    if (!o->by_head) /* codes of all rows: those of a failed row come from its old values */
        acts(f, "out", KN_CHANGES, KN_WRITES, &o->out, o->kinds, 0, o->rows.n, o->n_head * o->d_value);
}

static void latent_keep(const struct fields *f, const struct kn_op_latent_keep *o)
{
    int d_key = o->d_latent + o->n_rot;
    descriptor(f, &o->rows);
    FIELD(KN_CHANGES, k, o->rows.n * d_key);
    FIELD(KN_READS, k_norm, o->d_latent);
    FIELD(KN_READS, low_norm, o->d_low);
    FIELD(KN_READS, rotation, o->rows.n * (o->n_rot / 2));
    for (int i = 0; i < o->rows.n; i++) {
        if (o->rows.status[i])
            continue;
        if (o->d_low)
            acts(f, "low", KN_CHANGES, KN_WRITES, &o->low, o->low_kinds, i, 1, o->d_low);
        cached(f, KN_WRITES, &o->cache, true, o->rows.row[i].slot, 1, d_key);
    }
}

static void latent_place(const struct fields *f, const struct kn_op_latent_place *o)
{
    int d_key = o->d_latent + o->n_rot;
    descriptor(f, &o->rows);
    FIELD(KN_READS, q, o->rows.n * o->n_head * (o->d_plain + o->n_rot));
    FIELD(KN_READS, rotation, o->rows.n * (o->n_rot / 2));
    for (int i = 0; i < o->rows.n; i++) {
        if (o->rows.status[i])
            continue;
        row_floats(f, "absorbed", KN_WRITES, o->absorbed + (size_t)(i * o->n_head) * (size_t)d_key + o->d_latent,
                   (size_t)d_key, o->n_head, o->n_rot);
        acts(f, "plain", KN_WRITES, KN_WRITES, &o->plain, o->kinds, i * o->n_head, o->n_head, o->d_plain);
    }
}

/* ---- delta nets -------------------------------------------------------------------------------------------- */

static void part(const struct fields *f, const struct kn_op_part *o)
{
    int d_mix = kn_net_mix(&o->net), d_value = o->net.n_value_head * o->net.d_value;
    FIELD(KN_READS, from, o->n * (d_mix + d_value));
    row_floats(f, "in", KN_WRITES, o->in, (size_t)kn_net_in(&o->net), o->n, d_mix);
    FIELD(KN_WRITES, z, o->n * d_value);
}

static void flows(const struct fields *f, const struct kn_flows *o)
{
    FIELD(KN_READS, step, o->n_step);
    FIELD(KN_READS, flow, o->n_flow);
    FIELD(KN_READS, status, o->n_row);
}

/* Inputs of the steps, the first n floats of each. */
static void step_inputs(const struct fields *f, const struct kn_net *net, const struct kn_flows *o, const float *in,
                        const float *kept, int n)
{
    size_t d_in = (size_t)kn_net_in(net);
    for (int i = 0; i < o->n_step; i++) {
        const struct kn_step *t = &o->step[i];
        if (t->row >= 0)
            field(f, "in", KN_READS, in + (size_t)t->row * d_in, (size_t)n * sizeof *in);
        else
            field(f, "kept", KN_READS, kept + (size_t)t->kept * d_in, (size_t)n * sizeof *kept);
    }
}

static void conv(const struct fields *f, const struct kn_op_conv *o)
{
    int d_mix = kn_net_mix(&o->net), n_rate = 2 * o->net.n_value_head;
    flows(f, &o->flows);
    step_inputs(f, &o->net, &o->flows, o->in, o->kept, d_mix + n_rate);
    for (int i = 0; i < o->flows.n_flow; i++)
        field(f, "state", KN_READS, o->state + (size_t)o->flows.flow[i].state * o->state_bytes,
              (size_t)((o->net.n_tap - 1) * d_mix) * sizeof(float));
    FIELD(KN_READS, taps, o->net.n_tap * d_mix);
    FIELD(KN_READS, decay, o->net.n_value_head);
    FIELD(KN_READS, decay_bias, o->net.n_value_head);
    FIELD(KN_READS, unit_q, o->net.d_key);
    FIELD(KN_READS, unit_k, o->net.d_key);
    for (int i = 0; i < o->flows.n_step; i++)
        if (o->flows.step[i].row < 0 || !o->flows.status[o->flows.step[i].row])
            field(f, "out", KN_WRITES, o->out + (size_t)i * (size_t)kn_net_in(&o->net),
                  (size_t)(d_mix + n_rate) * sizeof *o->out);
}

static void state(const struct fields *f, const struct kn_op_delta *o, int32_t number)
{
    const uint8_t *at = o->state + (size_t)number * o->state_bytes;
    size_t past = (size_t)(o->net.n_tap - 1) * (size_t)kn_net_mix(&o->net) * sizeof(float);
    size_t heads = (size_t)o->net.n_value_head * kn_delta_floats(o->net.d_key, o->net.d_value) * sizeof(float);
    field(f, "state", KN_CHANGES, at, past);
    field(f, "state", KN_CHANGES, at + kn_net_past_floats(&o->net) * sizeof(float), heads);
}

static void delta(const struct fields *f, const struct kn_op_delta *o)
{
    int d_value = o->net.n_value_head * o->net.d_value;
    flows(f, &o->flows);
    step_inputs(f, &o->net, &o->flows, o->in, o->kept, kn_net_mix(&o->net));
    for (int i = 0; i < o->flows.n_flow; i++)
        state(f, o, o->flows.flow[i].state);
    row_floats(f, "mixed", KN_READS, o->mixed, (size_t)kn_net_in(&o->net), o->flows.n_step,
               kn_net_mix(&o->net) + 2 * o->net.n_value_head);
    FIELD(KN_READS, out_norm, o->net.d_value);
    for (int i = 0; i < o->flows.n_step; i++) {
        const struct kn_step *t = &o->flows.step[i];
        if (t->copy_to)
            state(f, o, t->copy_to);
        if (t->row < 0 || o->flows.status[t->row])
            continue;
        field(f, "z", KN_READS, o->z + (size_t)(t->row * d_value), (size_t)d_value * sizeof *o->z);
        field(f, "out", KN_WRITES, o->out + (size_t)t->row * o->out_stride, (size_t)d_value * sizeof *o->out);
    }
}

static void keep_draft(const struct fields *f, const struct kn_op_keep_draft *o)
{
    size_t d = (size_t)o->d;
    FIELD(KN_READS, to, o->n);
    for (int i = 0; i < o->n; i++)
        if (o->to[i] >= 0) {
            field(f, "in", KN_READS, o->in + (size_t)i * d, d * sizeof *o->in);
            field(f, "kept", KN_WRITES, o->kept + (size_t)o->to[i] * d, d * sizeof *o->kept);
        }
}

/* ---- draft heads ------------------------------------------------------------------------------------------- */

/* The features with which rows begin: n floats of their own, or the target's. */
static void features(const struct fields *f, const struct kn_rows *r, const struct kn_features *from, int n)
{
    descriptor(f, r);
    for (int i = 0; i < r->n; i++) {
        const struct kn_row *row = &r->row[i];
        if (row->feature)
            field(f, "rows.row.feature", KN_READS, row->feature, (size_t)n * sizeof *row->feature);
        else if (from)
            field(f, "features", KN_READS, from->base + (size_t)row->feature_slot * from->slot_bytes,
                  (size_t)from->n * kn_kv_value_bytes(from->kv));
    }
}

static void join(const struct fields *f, const struct kn_op_join *o)
{
    features(f, &o->rows, &o->features, o->embed.n_in);
    matrix(f, "embed", &o->embed);
    FIELD(KN_READS, feature_norm, o->embed.n_in);
    FIELD(KN_READS, embed_norm, o->embed.n_in);
    acts(f, "out", KN_WRITES, KN_WRITES, &o->out, o->kinds, 0, o->rows.n, 2 * o->embed.n_in);
}

static void fuse(const struct fields *f, const struct kn_op_fuse *o)
{
    features(f, &o->rows, &o->features, 0);
    for (int i = 0; i < o->n_norm; i++)
        FIELD(KN_READS, norm[i], o->features.n / o->n_norm);
    acts(f, "out", KN_WRITES, KN_WRITES, &o->out, o->kinds, 0, o->rows.n, o->features.n);
}

static void pair(const struct fields *f, const struct kn_op_pair *o)
{
    features(f, &o->rows, NULL, o->embed.n_in);
    matrix(f, "embed", &o->embed);
    FIELD(KN_CHANGES, x, o->rows.n * o->embed.n_in);
    FIELD(KN_READS, embed_norm, o->embed.n_in);
    FIELD(KN_READS, x_norm, o->embed.n_in);
    acts(f, "out", KN_WRITES, KN_WRITES, &o->out, o->kinds, 0, o->rows.n, 2 * o->embed.n_in);
}

static void spread(const struct fields *f, const struct kn_op_spread *o)
{
    for (int i = 0; o->out && i < o->n; i++)
        field(f, "x", KN_READS, o->x + listed(o->row, i) * (size_t)o->d_model, (size_t)o->d_model * sizeof *o->x);
    FIELD(KN_READS, row, o->n);
    FIELD(KN_WRITES, out, o->n * o->d_model);
    FIELD(KN_READS, token, o->n_guess);
    FIELD(KN_READS, guessed, o->token ? o->n * o->n_guess : 0);
    FIELD(KN_WRITES, logits, o->token ? o->n * o->n_vocab : 0);
}

/* ---- experts ----------------------------------------------------------------------------------------------- */

static void route(const struct fields *f, const struct kn_op_route *o)
{
    FIELD(KN_CHANGES, logit, o->n * o->n_expert);
    bool ranks = o->select_bias || o->n_group > 1 || o->gating == KN_GATING_MIXER;
    FIELD(KN_SCRATCH, rank, ranks ? o->n * o->n_expert : 0);
    FIELD(KN_READS, bias, o->n_expert);
    FIELD(KN_READS, select_bias, o->n_expert);
    FIELD(KN_WRITES, id, o->n * o->n_used);
    FIELD(KN_WRITES, weight, o->n * o->n_used);
    FIELD(KN_READS, expert_scale, o->n_expert);
}

static void plan(const struct fields *f, const struct kn_op_plan *o)
{
    field(f, "rows.status", KN_READS, o->rows.status, (size_t)o->rows.n * sizeof *o->rows.status);
    FIELD(KN_READS, id, o->rows.n * o->n_used);
    FIELD(KN_WRITES, plan.n_expert, 1);
    FIELD(KN_CHANGES, plan.expert, o->n_expert);
    FIELD(KN_CHANGES, plan.first, o->n_expert + 1);
    FIELD(KN_CHANGES, plan.row, o->rows.n * o->n_used);
    FIELD(KN_CHANGES, plan.pair, o->rows.n * o->n_used);
    FIELD(KN_SCRATCH, plan.fill, o->n_expert);
}

static void guess(const struct fields *f, const struct kn_op_guess *o)
{
    field(f, "rows.status", KN_READS, o->rows.status, (size_t)o->rows.n * sizeof *o->rows.status);
    FIELD(KN_READS, id, o->rows.n * o->n_used);
    FIELD(KN_READS, weight, o->rows.n * o->n_used);
    FIELD(KN_SCRATCH, sum, o->n_expert);
    FIELD(KN_CHANGES, expert, o->n_expert);
    FIELD(KN_WRITES, n_listed, 1);
}

static void group(const struct fields *f, const struct kn_op_group *o)
{
    int n = o->n_group ? o->n_group : *o->plan.n_expert;
    FIELD(KN_READS, plan.n_expert, 1);
    FIELD(KN_READS, plan.expert, n);
    FIELD(KN_READS, plan.first, n + 1);
    FIELD(KN_READS, expert, o->n_expert);
    FIELD(KN_WRITES, group, o->n_group);
    FIELD(KN_CHANGES, n_sum, 1);
    if (!o->out)
        return;
    FIELD(KN_READS, plan.pair, o->n_pair);
    FIELD(KN_CHANGES, out, o->n_pair);
    FIELD(KN_CHANGES, place, o->n_pair);
    FIELD(KN_WRITES, n_absent, 1);
    FIELD(KN_READS, weight, o->n_pair);
    FIELD(KN_CHANGES, out_weight, o->n_pair);
    FIELD(KN_CHANGES, done, 1);
}

static void gate_up(const struct fields *f, const struct kn_op_gate_up *o)
{
    size_t d = (size_t)o->d_act, d_gate = o->interleaved ? 2 * d : d;
    FIELD(KN_READS, group, o->n_group);
    for (int i = 0; i < o->n_group; i++) {
        const struct kn_group *g = &o->group[i];
        unsigned kinds = kn_act_bit(&g->gate) | kn_act_bit(&g->up);
        if (!g->n) /* its matrices are not read */
            continue;
        matrix(f, "group.gate", &g->gate);
        matrix(f, "group.up", &g->up);
        field(f, "row", KN_READS, o->row ? o->row + g->first : NULL, (size_t)g->n * sizeof *o->row);
        field(f, "pair", KN_READS, o->pair ? o->pair + g->first : NULL, (size_t)g->n * sizeof *o->pair);
        field(f, "gate_bias", KN_READS, o->gate_bias ? o->gate_bias + (size_t)g->bias * d : NULL, d * sizeof(float));
        field(f, "up_bias", KN_READS, o->up_bias ? o->up_bias + (size_t)g->bias * d : NULL, d * sizeof(float));
        for (int k = g->first; k < g->first + g->n; k++) {
            size_t pair_row = listed(o->pair, k);
            acts(f, "x", KN_READS, KN_READS, &o->x, kinds, (int)listed(o->row, k), 1, o->d_in);
            field(f, "in_scale", KN_READS, o->in_scale ? o->in_scale + pair_row : NULL, sizeof *o->in_scale);
            field(f, "gate", KN_SCRATCH, o->gate + pair_row * d_gate, d_gate * sizeof *o->gate);
            field(f, "up", KN_SCRATCH, o->interleaved ? NULL : o->up + pair_row * d, d * sizeof *o->up);
            acts(f, "act", KN_WRITES, KN_WRITES, &o->act, o->kinds, (int)pair_row, 1, o->d_act);
        }
    }
}

static void down(const struct fields *f, const struct kn_op_down *o)
{
    FIELD(KN_READS, group, o->n_group);
    for (int i = 0; i < o->n_group; i++) {
        const struct kn_group *g = &o->group[i];
        if (!g->n)
            continue;
        matrix(f, "group.down", &g->down);
        field(f, "pair", KN_READS, o->pair ? o->pair + g->first : NULL, (size_t)g->n * sizeof *o->pair);
        for (int k = g->first; k < g->first + g->n; k++) {
            size_t row = listed(o->pair, k);
            acts(f, "act", KN_READS, KN_READS, &o->act, kn_act_bit(&g->down), (int)row, 1, o->d_act);
            field(f, "y", KN_WRITES, o->y + row * (size_t)o->d_out, (size_t)o->d_out * sizeof *o->y);
        }
    }
}

static void combine(const struct fields *f, const struct kn_op_combine *o)
{
    descriptor(f, &o->rows);
    FIELD(KN_READS, id, o->rows.n * o->n_used);
    FIELD(KN_READS, weight, o->rows.n * o->n_used);
    FIELD(KN_CHANGES, y, o->rows.n * o->n_used * o->d_model);
    FIELD(KN_READS, place, o->rows.n * o->n_used);
    FIELD(KN_READS, down_bias, o->n_expert * o->d_model);
    FIELD(o->shared_norm ? KN_CHANGES : KN_READS, shared, o->rows.n * o->d_model);
    FIELD(KN_READS, shared_gate, o->rows.n);
    FIELD(KN_READS, sum_norm, o->d_model);
    row_floats(f, "scratch", KN_SCRATCH, o->scratch.x, o->scratch.stride, o->rows.n, o->d_model);
    FIELD(KN_CHANGES, x, o->rows.n * o->d_model);
    FIELD(KN_READS, expert_norm, o->d_model);
    FIELD(KN_READS, shared_norm, o->shared ? o->d_model : 0);
}

/* ---- copies ------------------------------------------------------------------------------------------------ */

static void copy(const struct fields *f, const struct kn_op_copy *o)
{
    rows(f, "from", KN_READS, o->from, o->stride, o->n, o->bytes);
    rows(f, "to", KN_WRITES, o->to, o->stride, o->n, o->bytes);
}

static void transfer(const struct fields *f, const struct kn_op_transfer *o)
{
    FIELD(KN_READS, from, o->bytes);
    FIELD(o->when ? KN_CHANGES : KN_WRITES, to, o->bytes);
    FIELD(KN_READS, when, 1);
}

/* Words are no memory of operations: they order them. */
static void signal(const struct fields *f, const struct kn_op_signal *o)
{
    (void)f;
    (void)o;
}

static void await(const struct fields *f, const struct kn_op_await *o)
{
    (void)f;
    (void)o;
}

/* ---- all --------------------------------------------------------------------------------------------------- */

const char *kn_op_name(enum kn_op_kind kind)
{
    static const char *const names[] = {
#define KN_NAME(KIND, name) [KN_OP_##KIND] = #name,
        KN_OPS(KN_NAME)
#undef KN_NAME
    };
    kn_assert(kind < KN_OP_COUNT);
    return names[kind];
}

void kn_op_fields(const struct kn_op *op, kn_field_visit *visit, void *arg)
{
    struct fields f = { visit, arg };
    switch (op->kind) {
#define KN_LIST(KIND, name)                                                                                            \
    case KN_OP_##KIND:                                                                                                 \
        name(&f, &op->name);                                                                                           \
        return;
        KN_OPS(KN_LIST)
#undef KN_LIST
    case KN_OP_COUNT:
        break;
    }
    kn_assert(!"an operation of pass.h");
}
