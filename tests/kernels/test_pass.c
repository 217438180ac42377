/* Operations on rows, of attention and of draft heads, and copies (pass_case.h). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/kernels/pass_case.h"

/* ---- rows ------------------------------------------------------------------------------------------------------- */

PLAIN(embed)
{
    for (int i = 0; i < o->rows.n; i++) {
        if (o->w.n_out)
            kn_mat_row(&o->w, o->rows.row[i].token, o->x + i * o->w.n_in);
        for (int k = 0; o->w.n_out && k < o->w.n_in; k++)
            o->x[i * o->w.n_in + k] *= o->w_scale;
        for (int k = 0; k < o->n_pair; k++) {
            double s, c;
            kn_sincos((float)o->rows.row[i].position * o->freq[k], &s, &c);
            o->rotation[i * o->n_pair + k][0] = (float)c * o->scale;
            o->rotation[i * o->n_pair + k][1] = (float)s * o->scale;
        }
    }
}

static void case_embed(void)
{
    for (int with = 0; with < 2; with++) {
        used = 0;
        CASE(EMBED, embed, rows_of_batch(), with ? matrix(KN_Q8_0, 19, D) : (struct kn_mat){ .n_out = 0 }, 1.75f,
             floats(N_ROW * D), floats(7), rotations(7), 7, 1.25f);
    }
}

/* y: the norm of x[n], with a bias the layer norm. */
static void plain_norm(const float *x, const float *w, const float *bias, float eps, int n, float *y)
{
    if (bias)
        scalar->center(x, n, y);
    scalar->rms_norm(bias ? y : x, w, eps, n, y);
    for (int k = 0; bias && k < n; k++)
        y[k] += bias[k];
}

PLAIN(add_norm_code)
{
    for (int i = 0; i < o->n; i++) {
        float *x = o->x + (o->row ? o->row[i] : i) * o->d;
        for (int k = 0; o->y && o->bias && k < o->d; k++)
            o->y[i * o->d + k] += o->bias[k];
        if (o->y && o->y_norm)
            scalar->rms_norm(o->y + i * o->d, o->y_norm, o->eps, o->d, o->y + i * o->d);
        for (int k = 0; o->y && k < o->d; k++)
            x[k] = fmaf(o->y_scale, o->y[i * o->d + k], x[k]);
        if (!o->weight)
            continue;
        plain_norm(x, o->weight, o->norm_bias, o->eps, o->d, o->out.x + (size_t)i * o->out.stride);
        code_row(&o->out, o->kinds, o->d, i);
    }
}

static void case_add_norm_code(void)
{
    for (int i = 0; i < 24; i++) {
        used = 0;
        bool adds = i & 1, bias = i & 2, norm = i & 4;
        CASE(ADD_NORM_CODE, add_norm_code, floats(N_ROW * D), adds ? floats(N_ROW * D) : NULL, bias ? floats(D) : NULL,
             i & 8 ? floats(D) : NULL, i & 8 ? 0.3f : 1, norm ? floats(D) : NULL, 1e-5f, adds ? NULL : LIST(4, 0, 2),
             adds ? N_ROW : 3, N_ROW, D, acts(N_ROW, D, 16, Q32), Q32, i & 16 ? floats(D) : NULL);
    }
}

PLAIN(code)
{
    for (int i = 0; i < o->n; i++)
        code_row(&o->acts, o->kinds, o->n_in, i);
}

static void case_code(void) { CASE(CODE, code, acts(N_ROW, 256, 8, Q32 | 1u << KN_ACT_Q256), Q32 | 4u, N_ROW, 256); }

PLAIN(keep_features)
{
    for (int i = 0; i < o->rows.n; i++) {
        if (o->rows.status[i])
            continue;
        float *to = o->scratch.x + (size_t)i * o->scratch.stride;
        const float *x = o->x + i * o->features.n;
        memcpy(to, x, (size_t)o->features.n * sizeof *to);
        if (o->weight)
            plain_norm(x, o->weight, o->norm_bias, o->eps, o->features.n, to);
        else if (o->features.kv == KN_KV_F16)
            for (int k = 0; k < o->features.n; k++)
                to[k] = fminf(fmaxf(to[k], -65504), 65504);
        scalar->kv_store(o->features.kv, to, o->features.n,
                         o->features.base + (size_t)o->rows.row[i].slot * o->features.slot_bytes, NULL);
    }
}

static void case_keep_features(void)
{
    for (int i = 0; i < 8; i++) {
        used = 0;
        struct kn_features f = features(40);
        f.kv = i & 1 ? KN_KV_F16 : KN_KV_F32;
        float *x = floats(N_ROW * 40);
        x[5] = 1e6f;
        x[6] = -1e6f;
        CASE(KEEP_FEATURES, keep_features, rows_of_batch(), x, i & 2 ? floats(40) : NULL, 1e-6f, acts(N_ROW, 40, 8, 0),
             f, i & 4 ? floats(40) : NULL);
    }
}

PLAIN(products)
{
    for (int i = 0; i < o->n; i++)
        multiply(&o->product[i]);
}

static void case_products(void)
{
    struct kn_acts x = acts(N_ROW, D, 16, Q32), part = acts(N_ROW * 3, 32, 0, Q32);
    struct kn_mat a = matrix(KN_Q8_0, 37, D), b = matrix(KN_F32, 5, D), c = matrix(KN_Q8_0, 3 * 48, 32);
    struct kn_product first = kn_product(&x, &a, floats(N_ROW * 37), N_ROW);
    struct kn_product second = kn_product(&x, &b, floats(4 * 9), 3), third = kn_product(&part, &c, floats(700), 4);
    second.mul.x_row = LIST(4, 1, 2);
    second.mul.y_row = LIST(0, 3, 2);
    second.mul.y_stride = 9;
    second.node = 1;
    third.n_stack = 3;
    third.x_part = third.mul.x_stride;
    third.mul.x_stride *= 3;
    third.y_part = 53;
    third.mul.y_stride = 170;
    struct kn_product none = kn_product(&x, &a, NULL, 0);
    CASE(PRODUCTS, products, { first, second, third, none }, 4);
}

PLAIN(scale)
{
    for (int i = 0; i < o->n * o->d; i++)
        o->x[i] = o->x[i] * o->by + (o->bias ? o->bias[i % o->d] : 0);
    if (o->cap > 0)
        scalar->cap(o->x, o->cap, o->n * o->d);
}

static void case_scale(void)
{
    for (int i = 0; i < 8; i++) { /* of several pieces; of one */
        int d = i & 1 ? D : 9000;
        used = 0;
        CASE(SCALE, scale, floats(N_ROW * d), i & 1 ? 0.7f : 1, N_ROW, d, i & 4 ? floats(d) : NULL, i & 2 ? 0.3f : 0);
    }
}

PLAIN(pack)
{
    for (int k = 0; k < o->n_array; k++)
        for (int i = 0; i < o->n * o->array[k].d; i++) {
            int d = o->array[k].d;
            o->array[k].x[i] = o->array[k].x[o->row[i / d] * d + i % d];
        }
}

static void case_pack(void)
{
    for (int big = 0; big < 2; big++) { /* by one thread, by the team */
        int d = big ? 30000 : D;
        used = 0;
        CASE(PACK, pack, LIST(0, 2, 4), 3, N_ROW, { { floats(N_ROW * d), d }, { floats(N_ROW * 7), 7 } }, 2);
    }
}

/* x to the slot of a head's keys or values. */
static void plain_put(const struct kn_cache *c, bool key, int head, int slot, const float *x, int n)
{
    int step = key ? c->k_step : c->v_step, one = c->kv == KN_KV_F32 ? 4 : c->kv == KN_KV_F16 ? 2 : 1;
    size_t next = (size_t)head * (key ? c->k_head : c->v_head);
    uint8_t *scale = (uint8_t *)(key ? c->k_scale : c->v_scale);
    scalar->kv_store(c->kv, x, n, (key ? c->k : c->v) + next + slot * step * one,
                     scale ? (float *)(scale + next) + slot * ((step + 63) / 64) : NULL);
}

PLAIN(finish_qkv)
{
    int n_q = o->n_head * o->d_head, n_k = o->n_kv * o->d_head, n_v = o->n_kv * o->d_value;
    for (int i = 0; i < o->rows.n; i++) {
        float *all[] = { o->q + i * n_q, o->k + i * n_k, o->v + i * n_v };
        const float *bias[] = { o->q_bias, o->k_bias, o->v_bias }, *norm[] = { o->q_norm, o->k_norm, NULL };
        int n[] = { n_q, n_k, n_v };
        if (o->rows.status[i])
            continue;
        for (int k = 0; o->q_gate && k < n_q; k++)
            all[0][k] = o->q_gate[(i * o->n_head + k / o->d_head) * 2 * o->d_head + k % o->d_head];
        for (int t = 0; t < 3; t++)
            for (int k = 0; bias[t] && k < n[t]; k++)
                all[t][k] += bias[t][k];
        for (int k = 0; o->v_is_k && k < n_v; k++)
            all[2][k] = all[1][k];
        for (int h = 0; o->v_norm && h < o->n_kv; h++)
            scalar->rms_norm(all[2] + h * o->d_value, o->v_norm, o->eps, o->d_value, all[2] + h * o->d_value);
        for (int t = 0; t < 3; t++) {
            int one = o->norm_all ? n[t] : o->d_head;
            for (int k = 0; norm[t] && !o->late_norm && k < n[t]; k += one)
                scalar->rms_norm(all[t] + k, norm[t], o->eps, one, all[t] + k);
            for (int k = 0; o->clamp > 0 && k < n[t]; k++)
                all[t][k] = fminf(fmaxf(all[t][k], -o->clamp), o->clamp);
            if (t < 2 && o->rotation)
                scalar->rope(all[t], n[t] / o->d_head, o->d_head, o->n_rot, o->rotation + i * (o->n_rot / 2), o->rope);
            for (int k = 0; norm[t] && o->late_norm && k < n[t]; k += one)
                scalar->rms_norm(all[t] + k, norm[t], o->eps, one, all[t] + k);
        }
        for (int k = 0; o->scale_q && k < n_q; k++)
            all[0][k] *= o->rows.row[i].q_scale;
        for (int k = 0; o->v_scale > 0 && k < n_v; k++)
            all[2][k] *= o->v_scale;
        for (int h = 0; h < o->n_kv; h++) {
            plain_put(&o->cache, true, h, o->rows.row[i].slot, all[1] + h * o->d_head, o->d_head);
            plain_put(&o->cache, false, h, o->rows.row[i].slot, all[2] + h * o->d_value, o->d_value);
        }
    }
}

static void case_finish_qkv(void)
{
    for (int i = 0; i < 24; i++) {
        int n_head = 4, n_kv = 2, d = 24, dv = i % 2 ? 20 : 24;
        used = 0;
        bool all = i % 4 == 1;
        struct kn_cache kv = in_format(cache(n_kv, d, dv, false), (enum kn_kv)(i / 4 % KN_KV_COUNT));
        CASE(FINISH_QKV, finish_qkv, rows_of_batch(), n_head, n_kv, d, dv, 10, floats(N_ROW * n_head * d),
             floats(N_ROW * n_kv * d), floats(N_ROW * n_kv * dv), i & 2 ? floats(N_ROW * 2 * n_head * d) : NULL,
             i & 1 ? floats(n_head * d) : NULL, i & 1 ? floats(n_kv * d) : NULL, i & 1 ? floats(n_kv * dv) : NULL,
             i % 3 ? floats(all ? n_head * d : d) : NULL, i % 3 ? floats(all ? n_kv * d : d) : NULL, all, i & 16, 1e-6f,
             i & 8 ? 0.5f : 0, i % 5 ? (const float(*)[2])rotations(5) : NULL, i & 1 ? KN_ROPE_PAIRS : KN_ROPE_HALVES,
             kv, i % 7 > 3, d == dv && i % 8 > 3, i % 5 > 2 ? floats(dv) : NULL, i % 6 > 3 ? 0.7f : 0);
    }
}

static const float *head_scale(const float *scale, size_t bytes) { return scale ? scale + bytes / 4 : NULL; }

static int plain_first(const struct kn_op_attend *o, const struct kn_row *r)
{
    int first = o->window && !o->chunked ? kn_max(0, r->position + 1 - o->window) : 0;
    while (o->chunked && first + o->window <= r->position)
        first += o->window;
    return kn_max(first, r->first);
}

PLAIN(attend)
{
    for (int i = 0; i < o->rows.n; i++) {
        for (int h = 0; h < o->n_head && !o->rows.status[i]; h++) {
            const struct kn_row *r = &o->rows.row[i];
            size_t head = (size_t)(h / (o->n_head / o->n_kv)), at = (size_t)(i * o->n_head + h);
            float *out = o->by_head ? o->out.x + at * o->out.stride
                                    : o->out.x + (size_t)i * o->out.stride + (size_t)(h * o->d_value);
            scalar->attend(&(struct kn_attend){ .q = o->q + at * (size_t)o->d_key,
                                                .out = out,
                                                .k = o->cache.k + head * o->cache.k_head,
                                                .v = o->cache.v + head * o->cache.v_head,
                                                .k_step = o->cache.k_step,
                                                .v_step = o->cache.v_step,
                                                .k_scale = head_scale(o->cache.k_scale, head * o->cache.k_head),
                                                .v_scale = head_scale(o->cache.v_scale, head * o->cache.v_head),
                                                .base = r->base,
                                                .tail = r->tail,
                                                .n_base = r->n_base,
                                                .first = plain_first(o, r),
                                                .last = r->position,
                                                .n_q = 1,
                                                .d_key = o->d_key,
                                                .d_value = o->d_value,
                                                .kv = o->cache.kv,
                                                .scale = o->scale,
                                                .sink = o->sink ? o->sink + h : NULL });
            if (o->q_gate)
                scalar->gate(out, o->q_gate + at * 2 * (size_t)o->d_key + o->d_key, o->d_value);
            if (o->by_head)
                code_row(&o->out, o->kinds, o->d_value, (int)at);
        }
        if (!o->by_head)
            code_row(&o->out, o->kinds, o->n_head * o->d_value, i);
    }
}

/* One row at a position beyond two spans, which two or three threads share out. */
static struct kn_rows long_row(void)
{
    int n = 2 * KN_SPAN + 70;
    struct kn_row *row = take(sizeof *row);
    int *status = take(sizeof *status);
    int32_t *base = take((size_t)n * sizeof *base);
    for (int i = 0; i < n; i++)
        base[i] = random_below(N_SLOT);
    *status = 0;
    *row = (struct kn_row){ .position = n - 1, .slot = base[n - 1], .base = base, .n_base = n };
    return (struct kn_rows){ row, status, 1 };
}

/* The same rows, each of which reads from some position on. */
static struct kn_rows begin_late(struct kn_rows rows)
{
    for (int i = 0; i < rows.n; i++)
        ((struct kn_row *)rows.row)[i].first = random_below(rows.row[i].position + 1);
    return rows;
}

/* A cache with a key and a value in each slot of n_kv heads. */
static struct kn_cache full_cache(enum kn_kv kv, int n_kv, int d_key, int d_value, bool latent)
{
    struct kn_cache c = in_format(cache(n_kv, d_key, d_value, latent), kv);
    float x[64];
    for (int i = 0; i < n_kv * N_SLOT; i++)
        for (int value = 0; value < 2 - latent; value++) {
            for (int k = 0; k < 64; k++)
                x[k] = random_float();
            plain_put(&c, !value, i / N_SLOT, i % N_SLOT, x, value ? d_value : d_key);
        }
    return c;
}

static void cases_of_attend(enum kn_kv kv)
{
    for (int i = 0; i < 3; i++) {
        used = 0;
        CASE(ATTEND, attend, long_row(), 4, 2, 16, 16, i ? KN_SPAN + 100 : 0, floats(4 * 16), floats(4 * 32), floats(4),
             0.3f, full_cache(kv, 2, 16, 16, false), false, acts(1, 64, 32, Q32), Q32, i > 1);
        used = 0;
        CASE(ATTEND, attend, long_row(), 20, 1, 40, 32, 0, floats(20 * 40), NULL, NULL, 0.2f,
             full_cache(kv, 1, 40, 32, true), true, acts(20, 32, 0, Q32), Q32);
    }
    for (int i = 0; i < 10; i++) {
        used = 0;
        CASE(ATTEND, attend, rows_of_batch(), 4, 2, 16, 16,
             i > 7   ? 2 + 3 * (i & 1)
             : i & 1 ? 3
                     : 0,
             floats(N_ROW * 4 * 16), i & 2 ? floats(N_ROW * 4 * 32) : NULL, i & 4 ? floats(4) : NULL, 0.3f,
             full_cache(kv, 2, 16, 16, false), false, acts(N_ROW, 64, 32, Q32), Q32, i > 7);
    }
    for (int i = 0; i < 8; i++) {
        used = 0;
        CASE(ATTEND, attend, begin_late(i & 4 ? long_row() : rows_of_batch()), 4, 2, 16, 16, i & 1 ? 3 : 0,
             floats(N_ROW * 4 * 16), i & 2 ? floats(N_ROW * 4 * 32) : NULL, NULL, 0.3f,
             full_cache(kv, 2, 16, 16, false), false, acts(N_ROW, 64, 32, Q32), Q32);
        used = 0;
        CASE(ATTEND, attend, begin_late(i & 1 ? long_row() : rows_of_batch()), 20, 1, 40, 32, 0,
             floats(N_ROW * 20 * 40), NULL, NULL, 0.2f, full_cache(kv, 1, 40, 32, true), true,
             acts(N_ROW * 20, 32, 0, Q32), Q32);
    }
    used = 0; /* latent: 37 heads share one key, whose first part is the value */
    CASE(ATTEND, attend, rows_of_batch(), 37, 1, 40, 32, 0, floats(N_ROW * 37 * 40), NULL, NULL, 0.2f,
         full_cache(kv, 1, 40, 32, true), true, acts(N_ROW * 37, 32, 0, Q32), Q32);
}

static void case_attend(void)
{
    for (int kv = 0; kv < KN_KV_COUNT; kv++)
        cases_of_attend((enum kn_kv)kv);
}

PLAIN(latent_keep)
{
    int d = o->d_latent + o->n_rot;
    for (int i = 0; i < o->rows.n; i++) {
        float *k = o->k + i * d, *low = o->low.x + (size_t)i * o->low.stride;
        if (o->rows.status[i])
            continue;
        scalar->rms_norm(k, o->k_norm, o->eps, o->d_latent, k);
        scalar->rope(k + o->d_latent, 1, o->n_rot, o->n_rot, o->rotation + i * (o->n_rot / 2), o->rope);
        plain_put(&o->cache, true, 0, o->rows.row[i].slot, k, d);
        if (!o->d_low)
            continue;
        scalar->rms_norm(low, o->low_norm, o->eps, o->d_low, low);
        code_row(&o->low, o->low_kinds, o->d_low, i);
    }
}

static void case_latent_keep(void)
{
    for (int i = 0; i < 2 * KN_KV_COUNT; i++) {
        int low = i % 2;
        used = 0;
        CASE(LATENT_KEEP, latent_keep, rows_of_batch(), 32, 8, low ? 64 : 0, floats(N_ROW * 40), floats(32),
             low ? floats(64) : NULL, 1e-6f, acts(N_ROW, 64, 16, Q32), Q32, (const float(*)[2])rotations(4),
             KN_ROPE_PAIRS, in_format(cache(1, 40, 32, true), (enum kn_kv)(i / 2)));
    }
}

PLAIN(latent_place)
{
    int d_q = o->d_plain + o->n_rot, d_key = o->d_latent + o->n_rot;
    for (int i = 0; i < o->rows.n * o->n_head; i++) {
        float *to = o->absorbed + i * d_key + o->d_latent;
        if (o->rows.status[i / o->n_head])
            continue;
        for (int k = 0; k < d_q; k++)
            *(k < o->d_plain ? &o->plain.x[(size_t)i * o->plain.stride + (size_t)k]
                             : &to[k - o->d_plain]) = o->q[i * d_q + k];
        scalar->rope(to, 1, o->n_rot, o->n_rot, o->rotation + i / o->n_head * (o->n_rot / 2), o->rope);
        for (int k = 0; o->scale_q && k < d_q; k++)
            *(k < o->d_plain ? &o->plain.x[(size_t)i * o->plain.stride + (size_t)k]
                             : &to[k - o->d_plain]) *= o->rows.row[i / o->n_head].q_scale;
        code_row(&o->plain, o->kinds, o->d_plain, i);
    }
}

static void case_latent_place(void)
{
    for (int scale_q = 0; scale_q < 2; scale_q++) {
        used = 0;
        CASE(LATENT_PLACE, latent_place, rows_of_batch(), 3, 32, 8, 48, floats(N_ROW * 3 * 40), floats(N_ROW * 3 * 56),
             (const float(*)[2])rotations(4), KN_ROPE_HALVES, acts(N_ROW * 3, 32, 16, Q32), Q32, scale_q);
    }
}

/* ---- draft heads ----------------------------------------------------------------------------------------------------- */

static void plain_feature(const struct kn_row *r, const struct kn_features *f, int n, float *to)
{
    if (r->feature)
        memcpy(to, r->feature, (size_t)n * sizeof *to);
    else
        memcpy(to, f->base + (size_t)r->feature_slot * f->slot_bytes, (size_t)n * sizeof *to);
}

PLAIN(join)
{
    int d = o->embed.n_in;
    for (int i = 0; i < o->rows.n; i++) {
        float *out = o->out.x + (size_t)i * o->out.stride, *a = o->token_first ? out + d : out,
              *b = out + d - (a - out);
        plain_feature(&o->rows.row[i], &o->features, d, a);
        kn_mat_row(&o->embed, o->rows.row[i].token, b);
        if (o->feature_norm)
            scalar->rms_norm(a, o->feature_norm, o->eps, d, a);
        if (o->embed_norm)
            scalar->rms_norm(b, o->embed_norm, o->eps, d, b);
        code_row(&o->out, o->kinds, 2 * d, i);
    }
}

static void case_join(void)
{
    for (int i = 0; i < 4; i++) {
        used = 0;
        CASE(JOIN, join, rows_of_batch(), matrix(KN_Q8_0, 19, D), features(D), i & 1, i & 2 ? floats(D) : NULL,
             i & 1 ? floats(D) : NULL, 1e-6f, acts(N_ROW, 2 * D, 16, Q32), Q32);
    }
}

PLAIN(fuse)
{
    for (int i = 0; i < o->rows.n; i++) {
        float *out = o->out.x + (size_t)i * o->out.stride;
        const struct kn_row r = { .feature_slot = o->rows.row[i].feature_slot };
        plain_feature(&r, &o->features, o->features.n, out);
        if (o->rows.row[i].feature)
            memset(out, 0, (size_t)o->features.n * sizeof *out);
        for (int k = 0; k < o->n_norm; k++) {
            int n = o->features.n / o->n_norm;
            scalar->rms_norm(out + k * n, o->norm[k], o->eps, n, out + k * n);
        }
        code_row(&o->out, o->kinds, o->features.n, i);
    }
}

static void case_fuse(void)
{
    for (int n_norm = 0; n_norm <= KN_MAX_FUSED; n_norm++) {
        used = 0;
        CASE(FUSE, fuse, rows_of_batch(), features(96), acts(N_ROW, 96, 16, Q32), Q32, n_norm,
             { n_norm ? floats(96) : NULL, n_norm > 1 ? floats(48) : NULL, n_norm > 2 ? floats(32) : NULL }, 1e-6f);
    }
}

PLAIN(pair)
{
    int d = o->embed.n_in;
    for (int i = 0; i < o->rows.n; i++) {
        float *out = o->out.x + (size_t)i * o->out.stride, *x = o->x + i * d;
        if (o->rows.row[i].feature)
            memcpy(x, o->rows.row[i].feature, (size_t)d * sizeof *x);
        kn_mat_row(&o->embed, o->rows.row[i].token, out);
        if (o->embed_norm)
            scalar->rms_norm(out, o->embed_norm, o->eps, d, out);
        scalar->rms_norm(x, o->x_norm, o->eps, d, out + d);
        if (o->norm_first)
            memcpy(x, out + d, (size_t)d * sizeof *x);
        code_row(&o->out, o->kinds, 2 * d, i);
    }
}

static void case_pair(void)
{
    for (int i = 0; i < 2; i++) {
        used = 0;
        CASE(PAIR, pair, rows_of_batch(), matrix(KN_F32, 19, D), floats(N_ROW * D), i ? floats(D) : NULL, floats(D), i,
             1e-6f, acts(N_ROW, 2 * D, 16, Q32), Q32);
    }
}

PLAIN(spread)
{
    for (int i = 0; i < o->n; i++) {
        if (o->out)
            memcpy(o->out + i * o->d_model, o->x + (o->row ? o->row[i] : i) * o->d_model,
                   (size_t)o->d_model * sizeof(float));
        for (int t = 0; o->token && t < o->n_vocab; t++)
            o->logits[i * o->n_vocab + t] = -INFINITY;
        for (int k = 0; o->token && k < o->n_guess; k++)
            o->logits[i * o->n_vocab + o->token[k]] = o->guessed[i * o->n_guess + k];
    }
}

static void case_spread(void)
{
    for (int i = 0; i < 3; i++) {
        used = 0;
        CASE(SPREAD, spread, floats(N_ROW * D), i ? LIST(4, 0, 2) : NULL, 3, N_ROW, D, i < 2 ? floats(3 * D) : NULL,
             i ? LIST(5, 2, 11) : NULL, floats(9), floats(3 * 13), 3, 13);
    }
}

/* ---- copies ---------------------------------------------------------------------------------------------------- */

PLAIN(copy)
{
    uint8_t *piece = malloc(o->bytes);
    for (int i = 0; i < o->n; i++) {
        size_t at = (size_t)i * o->stride;
        memset(piece, 0, o->bytes);
        if (o->from)
            memcpy(piece, o->from + at, o->bytes);
        memcpy(o->to + at, piece, o->bytes);
    }
    free(piece);
}

static void case_copy(void)
{
    for (int big = 0; big < 2; big++) { /* by one thread, by the team */
        size_t stride = big ? 200000 : 500, bytes = stride - 60;
        used = 0;
        uint8_t *a = (uint8_t *)floats((int)stride), *b = (uint8_t *)floats((int)stride);
        CASE(COPY, copy, b, a, bytes, stride, 4);
        CASE(COPY, copy, b, NULL, bytes, stride, 4);
        CASE(COPY, copy, a + 40, a, bytes - 40, stride, 4); /* overlapping */
    }
}

PLAIN(transfer)
{
    for (size_t i = 0; i < o->bytes; i++)
        o->to[i] = o->from[i];
}

static void case_transfer(void)
{
    uint8_t *a = (uint8_t *)floats(500), *b = (uint8_t *)floats(500);
    CASE(TRANSFER, transfer, b + 4, a, 777);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

#define OPS(X)                                                                                                         \
    X(EMBED, embed)                                                                                                    \
    X(ADD_NORM_CODE, add_norm_code)                                                                                    \
    X(CODE, code)                                                                                                      \
    X(KEEP_FEATURES, keep_features)                                                                                    \
    X(PRODUCTS, products)                                                                                              \
    X(SCALE, scale)                                                                                                    \
    X(PACK, pack)                                                                                                      \
    X(FINISH_QKV, finish_qkv)                                                                                          \
    X(ATTEND, attend)                                                                                                  \
    X(LATENT_KEEP, latent_keep)                                                                                        \
    X(LATENT_PLACE, latent_place)                                                                                      \
    X(JOIN, join)                                                                                                      \
    X(FUSE, fuse)                                                                                                      \
    X(PAIR, pair)                                                                                                      \
    X(SPREAD, spread)                                                                                                  \
    X(COPY, copy)                                                                                                      \
    X(TRANSFER, transfer)
OPS(CASE_TEST)

int main(void)
{
    const struct CMUnitTest tests[] = { OPS(CASE_ENTRY) };
    return cmocka_run_group_tests(tests, open_memory, close_memory);
}
