/* kernels/cpu/attention.tmpl.c - one row's attention over one KV head, per instruction set.
 *
 * Equal to kn_attend_scalar in cpu/reference.c bit for bit. Up to GROUP query heads that share a KV head are
 * computed together, so that a key or value is read from memory once for all of them. Keys are converted
 * to floats (staged), a tile of TILE positions at a time, and the queries of all heads use the tile; values
 * are converted while they are added to the outputs of MANY heads. Keys and values are prefetched a few at
 * a time between the arithmetic.
 *
 * Bytes and operations at d_head 128, f16, 8 heads: a position is 512 bytes and 2048 products, 128
 * fma of 16 lanes. At 12 GB/s and 3 GHz per core the bytes take 128 cycles, the products 64 and the
 * trees' sums half as much again: decode with a long context is bound by DRAM; prefill, with its keys in
 * cache, by the arithmetic.
 *
 * Registers of 16 lanes (AVX-512) or 8 (AVX2):
 *   scores   a register holds 16 (8) of a dot product's 64 accumulators; NP dot products are computed
 *            together, and their trees finished together (sum_quads), giving registers of 16 (8) scores
 *   weights  a register is 16 (8) positions of the chunk; the chunk's 64 are the 64 accumulators of the sum
 *   values   a register is 16 (8) outputs of a head; positions ascend, each weight e is broadcast */
#include "kernels/cpu/simd_int8.h"
#include "kernels/internal.h"

#include <math.h>

#define TILE  16            /* keys staged at once */
#define GROUP 16            /* heads computed together */
#define NP    KN_QUADS      /* dot products computed together */
#define PART  (KN_ACCS / 4) /* passes over the vectors of NP dot products: 4 accumulator registers per pass */

#define MOST_BLOCKS (KN_MAX_D_HEAD / KN_KV_BLOCK)

/* Codes of int8 keys and values (kernels.h, simd_int8.h). Beyond a vector's end codes are 0. */
struct codes {
    _Alignas(64) int8_t q[GROUP][KN_MAX_D_HEAD];
    float q_scale[GROUP][MOST_BLOCKS];
    int32_t q_sum[GROUP][MOST_BLOCKS];                   /* of a block's codes */
    _Alignas(64) int8_t key[KN_MAX_D_HEAD / 4][TILE][4]; /* of a tile */
    float key_scale[MOST_BLOCKS][TILE];
    _Alignas(64) int8_t value[KN_CHUNK / 4][KN_KV_BLOCK * 4]; /* of one block of the chunk's values */
    _Alignas(64) float value_scale[KN_CHUNK];                 /* 0 for positions not attended to */
    int8_t weight[GROUP][KN_CHUNK];
    float weight_scale[GROUP];
};

struct heads {
    float most[GROUP], sum[GROUP];
}; /* per head: the largest score, and the sum of exp(score - most) */

/* Rows are padded to a multiple of 64 values. A query's padding is -0 and a staged key's is +0: the product
 * is -0, which changes no accumulator, even one that is -0. */
struct work {
    const struct kn_attend *a;
    int n_q, d_pad, v_pad;                        /* heads, padded d_key and d_value */
    int lo, hi;                                   /* attended positions of this chunk: lo..hi-1, of 0..63 */
    bool first;                                   /* this is the span's first chunk */
    float *out;                                   /* [n_q][d_value] */
    const float *sink;                            /* [n_q] or NULL */
    struct heads all, so_far, chunk;              /* of all spans up to now, of this span's chunks, of this chunk */
    float keep[GROUP], take[GROUP];               /* factors of a merge: of the earlier part, of the later one */
    int32_t slot[KN_CHUNK], next[KN_CHUNK];       /* slots of this chunk's positions, of the next chunk's */
    _Alignas(64) float e[GROUP][KN_CHUNK];        /* scores, then weights */
    _Alignas(64) float key[TILE * KN_MAX_D_HEAD]; /* [TILE][d_pad] */
    _Alignas(64) float q[GROUP * KN_MAX_D_HEAD];  /* [n_q][d_pad] */
    float *total, *joined;                        /* [n_q][v_pad] outputs of this span so far, of the spans */
    _Alignas(64) float room[2][GROUP * KN_MAX_D_HEAD];
    struct codes codes;
};

/* ---- rows ----------------------------------------------------------------------------------- */

/* The slots of the chunk's attended positions; 0 for other positions, which may have no slot. */
static void find_slots(const struct kn_attend *a, int base, int32_t slot[KN_CHUNK])
{
    int lo = kn_max(0, a->first - base), hi = kn_max(lo, kn_min(KN_CHUNK, a->last + 1 - base));
    int split = kn_max(lo, kn_min(hi, a->n_base - base));
    memset(slot, 0, KN_CHUNK * sizeof *slot);
    if (lo < split)
        memcpy(slot + lo, a->base + (base + lo), (size_t)(split - lo) * sizeof *slot);
    if (split < hi)
        memcpy(slot + split, a->tail + (base + split - a->n_base), (size_t)(hi - split) * sizeof *slot);
}

KN_INLINE size_t key_at(const struct work *w, int32_t slot) { return (size_t)slot * (size_t)w->a->k_step; }

KN_INLINE size_t value_at(const struct work *w, int32_t slot) { return (size_t)slot * (size_t)w->a->v_step; }

/* Prefetches n values of `value` bytes from index `at`. Callers put a few calls between arithmetic, because many at once
 * would stall. */
KN_INLINE void ask(const void *rows, size_t at, int n, int value)
{
    const char *p = (const char *)rows + at * (size_t)value;
    for (int i = 0; i < n * value; i += 64)
        _mm_prefetch(p + i, _MM_HINT_T0);
}

/* Loads up to a register of a row, from value i on; n: values left. */
KN_INLINE vf load_kv(const void *rows, size_t i, int n, enum kn_kv kv)
{
    const uint16_t *half = (const uint16_t *)rows + i;
    if (kv == KN_KV_F32)
        return load_some((const float *)rows + i, n);
    if (n >= KN_LANES)
        return vf_load_f16(half);
    uint16_t some[KN_LANES] = { 0 };
    memcpy(some, half, (size_t)n * sizeof *half);
    return vf_load_f16(some);
}

/* Stages keys lo..hi-1 of one tile in w->key; row 0 is the tile's first position, attended to or not. */
KN_INLINE void stage_keys(struct work *w, int lo, int hi, enum kn_kv kv)
{
    const void *k = w->a->k;
    int d_key = w->a->d_key, d_pad = w->d_pad;
    float *to = w->key + lo % TILE * d_pad;
    for (int p = lo; p < hi; p++, to += d_pad) {
        size_t at = key_at(w, w->slot[p]);
        int d = 0;
        for (; d + 64 <= d_key; d += 64)
            for (int i = d; i < d + 64; i += KN_LANES)
                vf_store(to + i, load_kv(k, at + (size_t)i, KN_LANES, kv));
        for (; d < d_key; d += KN_LANES)
            vf_store(to + d, load_kv(k, at + (size_t)d, d_key - d, kv));
    }
}

/* ---- scores --------------------------------------------------------------------------------- */

/* NP dot products: q with rows 0, 4, 8 ... of d_pad values, counted from `row`. Each is summed down to 4 lanes; the
 * result has these quads side by side. */
KN_INLINE vf dot_quads(const float *q, const float *row, int d_pad)
{
    vf dot[NP];
    for (int part = 0; part < PART; part++) {
        vf acc[NP][4];
        for (int k = 0; k < NP; k++)
            for (int j = 0; j < 4; j++)
                acc[k][j] = vf_zero();
        for (int d = part * KN_LANES; d < d_pad; d += 64) {
            for (int j = 0; j < 4; j++) {
                int at = d + j * PART * KN_LANES;
                vf v = vf_load(q + at);
                for (int k = 0; k < NP; k++)
                    acc[k][j] = vf_fma(v, vf_load(row + 4 * k * d_pad + at), acc[k][j]);
            }
        }
        for (int k = 0; k < NP; k++) {
            vf sum = vf_add(vf_add(acc[k][0], acc[k][2]), vf_add(acc[k][1], acc[k][3]));
            dot[k] = part == 0 ? sum : vf_add(dot[k], sum);
        }
    }
    return fold_to_quads(dot);
}

/* The scores of the positions of tile number `tile` (0..3), for all heads. Meanwhile prefetches values of the chunk,
 * those of positions tile, tile + 4, tile + 8 ..., divided among the heads: positions 4 apart keep more memory channels
 * busy than neighbouring ones (evals/attention: 13 instead of 10 GB/s with one head). Values that are a part of their
 * keys are in cache already. */
KN_INLINE void score_rows(struct work *w, int tile, int d_pad)
{
    vf scale = vf_set1(w->a->scale);
    bool own_values = w->a->v != w->a->k;
    int value = (int)kn_kv_value_bytes(w->a->kv);
    for (int h = 0; h < w->n_q; h++) {
        const float *q = w->q + h * d_pad;
        for (int p = tile + 4 * h; own_values && p < KN_CHUNK; p += 4 * w->n_q)
            ask(w->a->v, value_at(w, w->slot[p]), w->a->d_value, value);
        for (int p = 0; p < TILE; p += KN_LANES) {
            vf quad[4];
            for (int k = 0; k < 4; k++)
                quad[k] = dot_quads(q, w->key + (p + k) * d_pad, d_pad);
            vf_store(&w->e[h][tile * TILE + p], vf_mul(scale, sum_quads(quad)));
        }
    }
}

/* score_rows() with d_pad as a compile-time constant for the usual widths, so that dot products are unrolled. */
static void score_tile(struct work *w, int tile)
{
    switch (w->d_pad) {
    case 64:
        score_rows(w, tile, 64);
        break;
    case 128:
        score_rows(w, tile, 128);
        break;
    default:
        score_rows(w, tile, w->d_pad);
        break;
    }
}

/* Turns scores of attended positions into weights relative to their maximum, other positions into +0. Before
 * exp, a position not attended to gets the score of one that is: this does not change the maximum, and
 * avoids the slow underflow of exp(-inf). */
static void weigh(struct work *w)
{
    vm seen[KN_ACCS];
    for (int j = 0; j < KN_ACCS; j++)
        seen[j] = lanes_between(w->lo - j * KN_LANES, w->hi - j * KN_LANES);

    for (int h = 0; h < w->n_q; h++) {
        float *e = w->e[h];
        vf first = vf_set1(e[w->lo]), most = vf_set1(-HUGE_VALF), x[KN_ACCS];
        for (int j = 0; j < KN_ACCS; j++) {
            x[j] = vf_select(seen[j], vf_load(e + j * KN_LANES), first);
            most = vf_max(x[j], most);
        }
        w->chunk.most[h] = vf_largest(most);
        most = vf_set1(w->chunk.most[h]);
        for (int j = 0; j < KN_ACCS; j++) {
            x[j] = vf_select(seen[j], vf_exp(vf_sub(x[j], most)), vf_zero());
            vf_store(e + j * KN_LANES, x[j]);
        }
        w->chunk.sum[h] = sum_accumulators(x);
    }
}

/* Merges the maximums and sums of `next` into `to`; sets keep and take, the factors for the outputs. */
static void merge_heads(struct work *w, struct heads *to, const struct heads *next, bool first)
{
    if (first) {
        *to = *next;
        return;
    }
    for (int h = 0; h < GROUP; h += KN_LANES) {
        vf old = vf_load(to->most + h), new = vf_load(next->most + h);
        vf most = vf_max(new, old);
        vf keep = vf_exp(vf_sub(old, most)), take = vf_exp(vf_sub(new, most));
        vf sum = vf_fma(vf_load(next->sum + h), take, vf_mul(vf_load(to->sum + h), keep));
        vf_store(to->most + h, most);
        vf_store(to->sum + h, sum);
        vf_store(w->keep + h, keep);
        vf_store(w->take + h, take);
    }
}

/* ---- values --------------------------------------------------------------------------------- */

#define MOST_HEADS 8
#define MOST_REGS  4

/* Merges the chunk's sums of weight * value into w->total, the span's: for heads h0 .. h0 + n_head - 1, n_reg registers
 * of outputs from d on, the last register with n_last values. kv and the counts are compile-time constants, so that the
 * sums of the whole chunk stay in registers. The call for the first heads also prefetches the same part of the next
 * chunk's keys. */
KN_INLINE void add_values(struct work *w, int h0, int d, enum kn_kv kv, int n_head, int n_reg, int n_last)
{
    const float *e = w->e[h0]; /* [n_head][KN_CHUNK] */
    const int value = (int)kn_kv_value_bytes(kv);
    vf acc[MOST_HEADS][MOST_REGS], v[MOST_REGS];
    for (int h = 0; h < n_head; h++)
        for (int j = 0; j < n_reg; j++)
            acc[h][j] = vf_zero();

    for (int p = w->lo; p < w->hi; p++) {
        size_t at = value_at(w, w->slot[p]) + (size_t)d;
        if (h0 == 0) {
            size_t next = key_at(w, w->next[p]);
            ask(w->a->k, next + (size_t)d, n_reg * KN_LANES, value);
            if (d == 0)
                ask(w->a->k, next + (size_t)w->a->d_value, w->a->d_key - w->a->d_value, value);
        }
        for (int j = 0; j < n_reg; j++) {
            int n = j + 1 < n_reg ? KN_LANES : n_last;
            v[j] = load_kv(w->a->v, at + (size_t)(j * KN_LANES), n, kv);
        }
        for (int h = 0; h < n_head; h++)
            for (int j = 0; j < n_reg; j++)
                acc[h][j] = vf_fma(vf_set1(e[h * KN_CHUNK + p]), v[j], acc[h][j]);
    }
    for (int h = 0; h < n_head; h++) {
        vf keep = vf_set1(w->keep[h0 + h]), take = vf_set1(w->take[h0 + h]);
        for (int j = 0; j < n_reg; j++) {
            float *total = w->total + (h0 + h) * w->v_pad + d + j * KN_LANES;
            if (!w->first)
                acc[h][j] = vf_fma(acc[h][j], take, vf_mul(vf_load(total), keep));
            vf_store(total, acc[h][j]);
        }
    }
}

KN_INLINE void add_heads(struct work *w, int h, enum kn_kv kv, int n_head, int n_reg)
{
    int d = 0, d_value = w->a->d_value, step = n_reg * KN_LANES;
    for (; d + step <= d_value; d += step)
        add_values(w, h, d, kv, n_head, n_reg, KN_LANES);
    for (; d + KN_LANES <= d_value; d += KN_LANES)
        add_values(w, h, d, kv, n_head, 1, KN_LANES);
    if (d < d_value)
        add_values(w, h, d, kv, n_head, 1, d_value - d);
}

#if KN_LANES == 16
#define MANY 8 /* times 2 registers: half of all registers */
#else
#define MANY 4
#endif

KN_INLINE void add_all_values(struct work *w, enum kn_kv kv)
{
    int h = 0;
    for (; h + MANY <= w->n_q; h += MANY)
        add_heads(w, h, kv, MANY, 2);
    for (; h + 4 <= w->n_q; h += 4)
        add_heads(w, h, kv, 4, 2);
    for (; h < w->n_q; h++)
        add_heads(w, h, kv, 1, 4);
}

/* ---- int8 ----------------------------------------------------------------------------------- */

static void code_query(struct work *w, int h, const float *q)
{
    struct codes *c = &w->codes;
    for (int b = 0; b < kn_kv_blocks(w->a->d_key); b++) {
        int8_t *code = c->q[h] + b * KN_KV_BLOCK;
        int sum = 0;
        c->q_scale[h][b] = code_some(q + b * KN_KV_BLOCK, w->a->d_key - b * KN_KV_BLOCK, code);
        for (int i = 0; i < KN_KV_BLOCK; i++)
            sum += code[i];
        c->q_sum[h][b] = sum;
    }
}

KN_INLINE __m128i load_16_codes(const int8_t *p, int n)
{
    int8_t some[16] = { 0 };
    if (n >= 16)
        return _mm_loadu_si128((const __m128i *)p);
    memcpy(some, p, (size_t)n);
    return _mm_loadu_si128((const __m128i *)some);
}

/* Stages the tile's keys; those of positions not attended to are the keys of slot 0. */
static void stage_coded_keys(struct work *w, int tile)
{
    struct codes *c = &w->codes;
    const struct kn_attend *a = w->a;
    int n_block = kn_kv_blocks(a->d_key), stride = kn_kv_blocks(a->k_step);
    for (int g = 0; g < TILE; g += KN_LANES) {
        const int32_t *slot = w->slot + tile * TILE + g;
        for (int l = 0; l < KN_LANES; l++)
            for (int b = 0; b < n_block; b++)
                c->key_scale[b][g + l] = a->k_scale[(size_t)slot[l] * (size_t)stride + (size_t)b];
        for (int d = 0; d < a->d_key; d += 16) {
            __m128i row[KN_LANES];
            vi four[4];
            for (int l = 0; l < KN_LANES; l++)
                row[l] = load_16_codes((const int8_t *)a->k + key_at(w, slot[l]) + d, a->d_key - d);
            transpose_keys(row, four);
            for (int i = 0; i < 4; i++)
                vi_store(c->key[d / 4 + i][g], signed_codes(four[i]));
        }
    }
}

/* Scores of KN_LANES positions of a tile, from position g on, for n heads from h0 on. */
KN_INLINE void score_codes(struct work *w, int tile, int g, int h0, int n)
{
    const struct codes *c = &w->codes;
    int d_key = w->a->d_key;
    vf x[4];
    for (int h = 0; h < n; h++)
        x[h] = vf_zero();
    for (int b = 0; b < kn_kv_blocks(d_key); b++) {
        int n_quad = kn_min(KN_KV_BLOCK, d_key - b * KN_KV_BLOCK + 3) / 4;
        vi acc[4];
        for (int h = 0; h < n; h++)
            acc[h] = signed_start(vi_set1(c->q_sum[h0 + h][b] & 0xFFFF));
        for (int i = b * 16; i < b * 16 + n_quad; i++) {
            vi key = vi_load(c->key[i][g]);
            for (int h = 0; h < n; h++)
                acc[h] = signed_dot(acc[h], key, vi_spread(c->q[h0 + h] + 4 * i));
        }
        vf scale = vf_load(c->key_scale[b] + g);
        for (int h = 0; h < n; h++)
            x[h] = vf_fma(vf_from_int(acc[h]), vf_mul(vf_set1(c->q_scale[h0 + h][b]), scale), x[h]);
    }
    for (int h = 0; h < n; h++)
        vf_store(&w->e[h0 + h][tile * TILE + g], vf_mul(vf_set1(w->a->scale), x[h]));
}

/* As score_rows(): also prefetches values. */
static void score_coded_tile(struct work *w, int tile)
{
    const struct kn_attend *a = w->a;
    int stride = kn_kv_blocks(a->v_step);
    for (int p = tile; a->v != a->k && p < KN_CHUNK; p += 4) {
        ask(a->v, value_at(w, w->slot[p]), a->d_value, 1);
        _mm_prefetch((const char *)(a->v_scale + (size_t)w->slot[p] * (size_t)stride), _MM_HINT_T0);
    }
    for (int g = 0; g < TILE; g += KN_LANES) {
        int h = 0;
        for (; h + 4 <= w->n_q; h += 4)
            score_codes(w, tile, g, h, 4);
        for (; h < w->n_q; h++)
            score_codes(w, tile, g, h, 1);
    }
}

/* Stages the block of values from d on, and prefetches the same block of the next chunk's keys. */
static void stage_coded_values(struct work *w, int d)
{
    struct codes *c = &w->codes;
    const struct kn_attend *a = w->a;
    size_t v_stride = (size_t)kn_kv_blocks(a->v_step), k_stride = (size_t)kn_kv_blocks(a->k_step);
    for (int p = 0; p < KN_CHUNK; p++)
        c->value_scale[p] = p < w->lo || p >= w->hi
                                ? 0.0f
                                : a->v_scale[(size_t)w->slot[p] * v_stride + (size_t)(d / KN_KV_BLOCK)];
    for (int j = w->lo / 4; 4 * j < w->hi; j++) {
        for (int at = 0; at < KN_KV_BLOCK; at += KN_REG_BYTES) {
            vi v[4], mixed[4];
            for (int i = 0; i < 4; i++)
                v[i] = vi_load_bytes((const int8_t *)a->v + value_at(w, w->slot[4 * j + i]) + d + at,
                                     a->d_value - d - at);
            mix_values(v, mixed);
            for (int r = 0; r < 4; r++)
                vi_store(c->value[j] + 4 * at + r * KN_REG_BYTES, mixed[r]);
        }
        for (int i = 4 * j; i < 4 * j + 4; i++) {
            size_t next = key_at(w, w->next[i]);
            ask(a->k, next + (size_t)d, KN_KV_BLOCK, 1);
            if (d)
                continue;
            ask(a->k, next + (size_t)a->d_value, a->d_key - a->d_value, 1);
            _mm_prefetch((const char *)(a->k_scale + (size_t)w->next[i] * k_stride), _MM_HINT_T0);
        }
    }
}

/* Merges the chunk's sums for n heads from h0 on and the staged block of values from d on. */
KN_INLINE void add_codes(struct work *w, int h0, int d, int n)
{
    const struct codes *c = &w->codes;
    for (int at = 0; at < KN_KV_BLOCK; at += KN_REG_BYTES) {
        vi acc[4][4];
        for (int h = 0; h < n; h++)
            for (int r = 0; r < 4; r++)
                acc[h][r] = vi_zero();
        for (int j = w->lo / 4; 4 * j < w->hi; j++)
            for (int r = 0; r < 4; r++) {
                vi value = vi_load(c->value[j] + 4 * at + r * KN_REG_BYTES);
                for (int h = 0; h < n; h++)
                    acc[h][r] = vi_dot_weights(acc[h][r], vi_spread(c->weight[h0 + h] + 4 * j), value);
            }
        for (int h = 0; h < n; h++) {
            vf keep = vf_set1(w->keep[h0 + h]), take = vf_set1(w->take[h0 + h]),
               scale = vf_set1(c->weight_scale[h0 + h]);
            in_order(acc[h]);
            for (int r = 0; r < 4; r++) {
                float *total = w->total + (h0 + h) * w->v_pad + d + at + r * KN_LANES;
                vf o = vf_mul(vf_from_int(acc[h][r]), scale);
                if (!w->first)
                    o = vf_fma(o, take, vf_mul(vf_load(total), keep));
                vf_store(total, o);
            }
        }
    }
}

#if KN_LANES == 16
#define MANY_CODED 4 /* times 4 registers: half of all registers */
#else
#define MANY_CODED 2
#endif

static void add_coded_values(struct work *w)
{
    struct codes *c = &w->codes;
    for (int d = 0; d < w->a->d_value; d += KN_KV_BLOCK) {
        stage_coded_values(w, d);
        for (int h = 0; h < w->n_q; h++) {
            vf t[KN_ACCS];
            for (int j = 0; j < KN_ACCS; j++)
                t[j] = vf_mul(vf_load(w->e[h] + j * KN_LANES), vf_load(c->value_scale + j * KN_LANES));
            c->weight_scale[h] = code_64(t, c->weight[h]);
        }
        int h = 0;
        for (; h + MANY_CODED <= w->n_q; h += MANY_CODED)
            add_codes(w, h, d, MANY_CODED);
        for (; h < w->n_q; h++)
            add_codes(w, h, d, 1);
    }
}

/* ---- chunks --------------------------------------------------------------------------------- */

/* Attends to positions lo..hi-1, all of one chunk; first: the span's first. */
static void attend_chunk(struct work *w, int lo, int hi, bool first)
{
    int base = lo / KN_CHUNK * KN_CHUNK;
    enum kn_kv kv = w->a->kv;
    w->lo = lo - base;
    w->hi = hi - base;
    w->first = first;
    if (first)
        find_slots(w->a, base, w->slot);
    else
        memcpy(w->slot, w->next, sizeof w->slot);
    find_slots(w->a, base + KN_CHUNK, w->next);
    for (int p = w->lo / TILE * TILE; p < w->hi; p += TILE) {
        int from = kn_max(p, w->lo), to = kn_min(p + TILE, w->hi);
        if (kv == KN_KV_INT8) {
            stage_coded_keys(w, p / TILE);
            score_coded_tile(w, p / TILE);
            continue;
        }
        if (kv == KN_KV_F16)
            stage_keys(w, from, to, KN_KV_F16);
        else
            stage_keys(w, from, to, KN_KV_F32);
        score_tile(w, p / TILE);
    }
    weigh(w);
    merge_heads(w, &w->so_far, &w->chunk, w->first);
    if (kv == KN_KV_INT8)
        add_coded_values(w);
    else if (kv == KN_KV_F16)
        add_all_values(w, KN_KV_F16);
    else
        add_all_values(w, KN_KV_F32);
}

static void attend_span(struct work *w, int lo, int last)
{
    for (int from = lo; from <= last;) {
        int hi = kn_min(last, from / KN_CHUNK * KN_CHUNK + KN_CHUNK - 1) + 1;
        attend_chunk(w, from, hi, from == lo);
        from = hi;
    }
}

/* ---- spans, rows ---------------------------------------------------------------------------- */

/* Merges the span's part, w->so_far and w->total, into that of all spans, w->all and w->joined. */
static void join_span(struct work *w, bool first)
{
    merge_heads(w, &w->all, &w->so_far, first);
    if (first) {
        float *total = w->total;
        w->total = w->joined;
        w->joined = total;
        return;
    }
    for (int h = 0; h < w->n_q; h++) {
        vf keep = vf_set1(w->keep[h]), take = vf_set1(w->take[h]);
        const float *total = w->total + h * w->v_pad;
        float *joined = w->joined + h * w->v_pad;
        for (int d = 0; d < w->a->d_value; d += KN_LANES)
            vf_store(joined + d, vf_fma(vf_load(total + d), take, vf_mul(vf_load(joined + d), keep)));
    }
}

/* The divisor of head h's outputs, and *keep, their factor before the division. Both include the sink's score. */
static float total_sum(const struct work *w, int h, float *keep)
{
    float sum = w->all.sum[h], old = w->all.most[h];
    *keep = 1.0f;
    if (!w->sink)
        return sum;
    float most = w->sink[h] > old ? w->sink[h] : old;
    *keep = kn_expf(old - most);
    return fmaf(sum, *keep, kn_expf(w->sink[h] - most));
}

static void finish_heads(struct work *w)
{
    int d_value = w->a->d_value;
    for (int h = 0; h < w->n_q; h++) {
        float keep;
        vf sum = vf_set1(total_sum(w, h, &keep)), by = vf_set1(keep);
        const float *joined = w->joined + h * w->v_pad;
        for (int d = 0; d < d_value; d += KN_LANES)
            store_some(w->out + h * d_value + d, vf_div(vf_mul(vf_load(joined + d), by), sum), d_value - d);
    }
}

static void open_work(struct work *w, const struct kn_attend *a)
{
    kn_assert(a->n_q <= KN_MAX_Q && a->d_key <= KN_MAX_D_HEAD && a->d_value <= KN_MAX_D_HEAD && a->first <= a->last);
    w->a = a;
    w->d_pad = (int)kn_align_up((size_t)a->d_key, 64);
    w->v_pad = (int)kn_align_up((size_t)a->d_value, 64);
    w->total = w->room[0];
    w->joined = w->room[1];
    memset(&w->chunk, 0, sizeof w->chunk); /* lanes beyond n_q */
    memset(&w->so_far, 0, sizeof w->so_far);
    memset(w->take, 0, sizeof w->take);
    memset(w->keep, 0, sizeof w->keep);
}

/* Copies the queries of the heads from h on, padded, or codes them. */
static void load_queries(struct work *w, int h)
{
    const struct kn_attend *a = w->a;
    const float *q = a->q + h * a->d_key;
    for (int i = 0; i < w->n_q; i++) {
        float *to = w->q + i * w->d_pad;
        if (a->kv == KN_KV_INT8) {
            code_query(w, i, q + i * a->d_key);
            continue;
        }
        memcpy(to, q + i * a->d_key, (size_t)a->d_key * sizeof *q);
        for (int d = a->d_key; d < w->d_pad; d++)
            to[d] = -0.0f;
    }
}

static void begin_group(struct work *w, int h)
{
    w->n_q = kn_min(GROUP, w->a->n_q - h);
    w->out = w->a->out + h * w->a->d_value;
    w->sink = w->a->sink ? w->a->sink + h : NULL;
}

void KN_FN(kn_attend)(const struct kn_attend *a)
{
    struct work w;
    open_work(&w, a);
    memset(w.key, 0, (size_t)(TILE * w.d_pad) * sizeof *w.key);
    for (int h = 0; h < a->n_q; h += GROUP) {
        begin_group(&w, h);
        load_queries(&w, h);
        for (int lo = a->first; lo <= a->last;) {
            int last = kn_min(a->last, lo / KN_SPAN * KN_SPAN + KN_SPAN - 1);
            attend_span(&w, lo, last);
            join_span(&w, lo == a->first);
            lo = last + 1;
        }
        finish_heads(&w);
    }
}

void KN_FN(kn_attend_span)(const struct kn_attend *a, float *part)
{
    kn_assert(a->first / KN_SPAN == a->last / KN_SPAN);
    struct work w;
    open_work(&w, a);
    memset(w.key, 0, (size_t)(TILE * w.d_pad) * sizeof *w.key);
    for (int h = 0; h < a->n_q; h += GROUP) {
        begin_group(&w, h);
        load_queries(&w, h);
        attend_span(&w, a->first, a->last);
        memcpy(part + h, w.so_far.most, (size_t)w.n_q * sizeof *part);
        memcpy(part + a->n_q + h, w.so_far.sum, (size_t)w.n_q * sizeof *part);
        for (int i = 0; i < w.n_q; i++)
            memcpy(part + 2 * a->n_q + (h + i) * a->d_value, w.total + i * w.v_pad, (size_t)a->d_value * sizeof *part);
    }
}

/* Reads the part of one span, for the heads from h on. */
static void load_part(struct work *w, const float *part, int h)
{
    const struct kn_attend *a = w->a;
    memcpy(w->so_far.most, part + h, (size_t)w->n_q * sizeof *part);
    memcpy(w->so_far.sum, part + a->n_q + h, (size_t)w->n_q * sizeof *part);
    for (int i = 0; i < w->n_q; i++)
        memcpy(w->total + i * w->v_pad, part + 2 * a->n_q + (h + i) * a->d_value, (size_t)a->d_value * sizeof *part);
}

void KN_FN(kn_attend_join)(const struct kn_attend *a, const float *part, int n_part)
{
    struct work w;
    open_work(&w, a);
    memset(w.room, 0, sizeof w.room); /* a register may reach beyond d_value */
    for (int h = 0; h < a->n_q; h += GROUP) {
        begin_group(&w, h);
        for (int i = 0; i < n_part; i++) {
            load_part(&w, part + (size_t)i * kn_part_floats(a->n_q, a->d_value), h);
            join_span(&w, i == 0);
        }
        finish_heads(&w);
    }
}
