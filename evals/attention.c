/* evals/attention.c - the speed of one core's attention, per instruction set and shape.
 *
 * Two cases: prefill (512 rows over their own past, keys in the cache) and decode with a long past
 * (one row, every key read once from memory: several sequences are cycled through). Shapes
 * with values shorter than keys are latent attention's: the value is a part of the key,
 * and a position has one vector. A third case decodes one sequence with several KV heads on all threads: with a head
 * as a work item (rows), and with a span of a head as one (spans). Beside each figure stands its bound, measured in the same run: the
 * rate of independent fmas on registers, and of reading memory. Prints CSV. */
#include "evals/measure.h"

#include <stdio.h>

struct shape {
    enum kn_kv kv;
    int n_q, d_key, d_value, positions;
};

struct work {
    const struct kn_ops *ops;
    const struct shape *shape;
    uint8_t *room; /* keys and values of n_seq sequences */
    size_t room_bytes;
    const int32_t *slots;
    int n_seq, seq, n_kv;
};

static double read_memory(void *arg)
{
    struct work *w = arg;
    w->ops->probe_read(w->room, w->room_bytes);
    return (double)w->room_bytes;
}

static bool is_latent(const struct shape *s) { return s->d_value < s->d_key; }

/* Bytes of one position, keys and values. */
static size_t position_bytes(const struct shape *s)
{
    return kn_kv_bytes(s->kv, s->d_key) + (is_latent(s) ? 0 : kn_kv_bytes(s->kv, s->d_value));
}

/* Attention over the past of one sequence, without first and last. Scales of int8 follow the codes of all positions. */
static struct kn_attend past(const struct work *w, int seq)
{
    static float q[KN_MAX_Q * KN_MAX_D_HEAD], out[KN_MAX_Q * KN_MAX_D_HEAD];
    const struct shape *s = w->shape;
    if (q[1] == 0)
        for (int i = 0; i < KN_MAX_Q * KN_MAX_D_HEAD; i++)
            q[i] = (float)(i % 17 - 8) * 0.05f;

    size_t n = (size_t)s->positions;
    const uint8_t *k = w->room + (size_t)seq * position_bytes(s) * n, *v = k + kn_kv_bytes(s->kv, s->d_key) * n;
    struct kn_attend a = { .q = q,
                           .out = out,
                           .base = w->slots,
                           .tail = w->slots,
                           .k = k,
                           .v = v,
                           .k_scale = (const float *)(const void *)(k + n * (size_t)s->d_key),
                           .v_scale = (const float *)(const void *)(v + n * (size_t)s->d_value),
                           .n_q = s->n_q,
                           .d_key = s->d_key,
                           .d_value = s->d_value,
                           .k_step = s->d_key,
                           .v_step = s->d_value,
                           .kv = s->kv,
                           .scale = 0.1f };
    if (is_latent(s)) {
        a.v = a.k;
        a.v_step = s->d_key;
        a.v_scale = a.k_scale;
    }
    return a;
}

/* Computes rows first..last over the past of one sequence; returns floating point operations. */
static double rows(struct work *w, int first, int last, int seq)
{
    const struct shape *s = w->shape;
    struct kn_attend a = past(w, seq);
    double pairs = 0;
    for (a.last = first; a.last <= last; a.last++) {
        w->ops->attend(&a);
        pairs += a.last + 1;
    }
    return pairs * s->n_q * (s->d_key + s->d_value) * 2;
}

/* ---- one row, several KV heads, all threads ---------------------------------------------------- */

#define MOST_KV    8
#define MOST_SPANS 32

struct shared_row {
    struct work *w;
    int n_kv, seq;
    float out[MOST_KV][KN_MAX_Q * KN_MAX_D_HEAD];
    float part[MOST_KV][MOST_SPANS * 16 * (KN_MAX_D_HEAD + 2)];
    atomic_int n_left[MOST_KV];
};
static struct shared_row shared_row;
static struct kn_team *team;

static struct kn_attend head_of(const struct shared_row *r, int head)
{
    struct kn_attend a = past(r->w, (r->seq + head) % r->w->n_seq);
    a.last = r->w->shape->positions - 1;
    a.out = shared_row.out[head];
    return a;
}

static void do_row(void *arg, int item, int thread)
{
    const struct shared_row *r = arg;
    struct kn_attend a = head_of(r, item);
    (void)thread;
    r->w->ops->attend(&a);
}

static void do_span(void *arg, int item, int thread)
{
    struct shared_row *r = arg;
    int n_span = kn_ceil_div(r->w->shape->positions, KN_SPAN), head = item / n_span, nth = item % n_span;
    struct kn_attend row = head_of(r, head), a = row;
    (void)thread;
    a.first = nth * KN_SPAN;
    a.last = kn_min(row.last, a.first + KN_SPAN - 1);
    r->w->ops->attend_span(&a, r->part[head] + (size_t)nth * kn_part_floats(a.n_q, a.d_value));
    if (atomic_fetch_sub(&r->n_left[head], 1) == 1)
        r->w->ops->attend_join(&row, r->part[head], n_span);
}

static double decode_shared(struct work *w, bool spans)
{
    struct shared_row *r = &shared_row;
    const struct shape *s = w->shape;
    int n_span = kn_ceil_div(s->positions, KN_SPAN);
    r->w = w;
    r->n_kv = w->n_kv;
    r->seq = w->seq = (w->seq + r->n_kv) % w->n_seq;
    for (int h = 0; h < r->n_kv; h++)
        atomic_store(&r->n_left[h], n_span);
    kn_parallel_for(team, spans ? r->n_kv * n_span : r->n_kv, spans ? do_span : do_row, r);
    return (double)s->positions * r->n_kv * s->n_q * (s->d_key + s->d_value) * 2;
}

static double decode_rows(void *arg) { return decode_shared(arg, false); }
static double decode_spans(void *arg) { return decode_shared(arg, true); }

/* ---- cases ------------------------------------------------------------------------------------- */

static double prefill(void *arg)
{
    struct work *w = arg;
    return rows(w, 0, w->shape->positions - 1, 0);
}

static double decode(void *arg)
{
    struct work *w = arg;
    w->seq = (w->seq + 1) % w->n_seq;
    return rows(w, w->shape->positions - 1, w->shape->positions - 1, w->seq);
}

static const struct shape prefills[] = {
    { KN_KV_F16, 8, 128, 128, 512 },   { KN_KV_F16, 4, 128, 128, 512 },  { KN_KV_F16, 1, 128, 128, 512 },
    { KN_KV_F32, 8, 128, 128, 512 },   { KN_KV_F16, 8, 64, 64, 512 },    { KN_KV_F16, 16, 256, 256, 512 },
    { KN_KV_F16, 4, 80, 80, 512 },     { KN_KV_F16, 16, 576, 512, 512 }, { KN_KV_F16, 4, 576, 512, 512 },
    { KN_KV_INT8, 8, 128, 128, 512 },  { KN_KV_INT8, 1, 128, 128, 512 }, { KN_KV_INT8, 8, 64, 64, 512 },
    { KN_KV_INT8, 16, 576, 512, 512 },
};
static const struct shape decodes[] = {
    { KN_KV_F16, 8, 128, 128, 32768 },   { KN_KV_F16, 4, 128, 128, 32768 },  { KN_KV_F16, 1, 128, 128, 32768 },
    { KN_KV_F32, 4, 128, 128, 32768 },   { KN_KV_F16, 8, 64, 64, 32768 },    { KN_KV_F16, 8, 128, 128, 1024 },
    { KN_KV_F16, 16, 576, 512, 32768 },  { KN_KV_F16, 8, 576, 512, 32768 },  { KN_KV_F16, 4, 576, 512, 32768 },
    { KN_KV_INT8, 8, 128, 128, 32768 },  { KN_KV_INT8, 1, 128, 128, 32768 }, { KN_KV_INT8, 8, 64, 64, 32768 },
    { KN_KV_INT8, 16, 576, 512, 32768 },
};
static const struct {
    int n_kv;
    struct shape shape;
} shareds[] = {
    { 1, { KN_KV_F16, 8, 128, 128, 4096 } },  { 1, { KN_KV_F16, 8, 128, 128, 16384 } },
    { 1, { KN_KV_F16, 8, 128, 128, 32768 } }, { 3, { KN_KV_F16, 3, 64, 64, 4096 } },
    { 3, { KN_KV_F16, 3, 64, 64, 16384 } },   { 3, { KN_KV_F16, 3, 64, 64, 32768 } },
    { 8, { KN_KV_F16, 4, 128, 128, 32768 } },
};
#define LENGTH(table) (sizeof table / sizeof table[0])

static const char *const kv_name[] = { [KN_KV_F16] = "f16", [KN_KV_F32] = "f32", [KN_KV_INT8] = "int8" };

static void report(struct work *w, const char *what, pass_fn *pass, double peak, double gbps)
{
    const struct shape *s = w->shape;
    w->n_seq = (int)(w->room_bytes / (position_bytes(s) * (size_t)s->positions));
    double gflops = best_per_ns(pass, w), flops = 2.0 * s->n_q * (s->d_key + s->d_value);
    double read = pass != prefill ? gflops / flops * (double)position_bytes(s) : 0;
    printf("%s,%s,%d,%d,%d,%d,%s,%.1f,%.2f,%.1f,%.2f\n", kn_isa_name(w->ops->isa), kv_name[s->kv], s->n_q, s->d_key,
           s->d_value, s->positions, what, gflops, gflops / peak, read, read / gbps);
    fflush(stdout);
}

int main(void)
{
    struct work w = { .room_bytes = (size_t)1 << 30, .n_seq = 1 };
    int32_t *slots = kn_alloc(32768 * sizeof *slots);
    w.room = kn_map(w.room_bytes, -1);
    if (!w.room || !slots || kn_team_open(&team, 0))
        return 1;
    uint16_t *half = (uint16_t *)w.room;
    for (size_t i = 0; i < w.room_bytes / 2; i++)
        half[i] = (uint16_t)(0x2c00 + i % 1021);
    for (int i = 0; i < 32768; i++)
        slots[i] = i;
    w.slots = slots;

    printf("isa,kv,n_q,d_key,d_value,positions,what,gflops,of_fma,GBps,of_dram\n");
    for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++) {
        w.ops = kn_ops(isa);
        double peak = 2 * best_per_ns(fma_pass, &isa);
        double gbps = best_per_ns(read_memory, &w);
        for (size_t i = 0; i < LENGTH(prefills); i++) {
            w.shape = &prefills[i];
            report(&w, "prefill", prefill, peak, gbps);
        }
        for (size_t i = 0; i < LENGTH(decodes); i++) {
            w.shape = &decodes[i];
            report(&w, "decode", decode, peak, gbps);
        }
        for (size_t i = 0; i < LENGTH(shareds); i++) {
            char what[48];
            w.shape = &shareds[i].shape;
            w.n_kv = shareds[i].n_kv;
            snprintf(what, sizeof what, "%d heads by rows", w.n_kv);
            report(&w, what, decode_rows, peak, gbps);
            snprintf(what, sizeof what, "%d heads by spans", w.n_kv);
            report(&w, what, decode_spans, peak, gbps);
        }
    }
    kn_team_close(team);
    kn_free(slots);
    kn_unmap(w.room, w.room_bytes);
    return 0;
}
