/* evals/attention.c - the speed of one core's attention, per instruction set and shape.
 *
 * Two cases: prefill (512 rows over their own past, keys in the cache) and decode with a long past
 * (one row, every key read once from memory: several sequences are cycled through). Shapes
 * with values shorter than keys are latent attention's: the value is a part of the key,
 * and a position has one vector. Beside each figure stands its bound, measured in the same run: the
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
    int n_seq, seq;
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
    return (size_t)(s->d_key + (is_latent(s) ? 0 : s->d_value)) * (s->kv == KN_KV_F16 ? 2 : 4);
}

/* Computes rows first..last over the past of one sequence; returns floating point operations. */
static double rows(struct work *w, int first, int last, int seq)
{
    static float q[KN_MAX_Q * KN_MAX_D_HEAD], out[KN_MAX_Q * KN_MAX_D_HEAD];
    const struct shape *s = w->shape;
    for (int i = 0; i < s->n_q * s->d_key; i++)
        q[i] = (float)(i % 17 - 8) * 0.05f;

    size_t bytes = position_bytes(s) * (size_t)s->positions;
    struct kn_attend a = { .q = q,
                           .out = out,
                           .base = w->slots,
                           .tail = w->slots,
                           .k = w->room + (size_t)seq * bytes,
                           .n_q = s->n_q,
                           .d_key = s->d_key,
                           .d_value = s->d_value,
                           .k_step = s->d_key,
                           .kv = s->kv,
                           .scale = 0.1f };
    a.v_step = is_latent(s) ? s->d_key : s->d_value;
    a.v = is_latent(s) ? a.k : (const uint8_t *)a.k + bytes / 2;
    double pairs = 0;
    for (a.last = first; a.last <= last; a.last++) {
        w->ops->attend(&a);
        pairs += a.last + 1;
    }
    return pairs * s->n_q * (s->d_key + s->d_value) * 2;
}

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
    { KN_KV_F16, 8, 128, 128, 512 }, { KN_KV_F16, 4, 128, 128, 512 },  { KN_KV_F16, 1, 128, 128, 512 },
    { KN_KV_F32, 8, 128, 128, 512 }, { KN_KV_F16, 8, 64, 64, 512 },    { KN_KV_F16, 16, 256, 256, 512 },
    { KN_KV_F16, 4, 80, 80, 512 },   { KN_KV_F16, 16, 576, 512, 512 }, { KN_KV_F16, 4, 576, 512, 512 },
};
static const struct shape decodes[] = {
    { KN_KV_F16, 8, 128, 128, 32768 },  { KN_KV_F16, 4, 128, 128, 32768 }, { KN_KV_F16, 1, 128, 128, 32768 },
    { KN_KV_F32, 4, 128, 128, 32768 },  { KN_KV_F16, 8, 64, 64, 32768 },   { KN_KV_F16, 8, 128, 128, 1024 },
    { KN_KV_F16, 16, 576, 512, 32768 }, { KN_KV_F16, 8, 576, 512, 32768 }, { KN_KV_F16, 4, 576, 512, 32768 },
};
#define LENGTH(table) (sizeof table / sizeof table[0])

static void report(struct work *w, const char *what, pass_fn *pass, double peak, double gbps)
{
    const struct shape *s = w->shape;
    w->n_seq = (int)(w->room_bytes / (position_bytes(s) * (size_t)s->positions));
    double gflops = best_per_ns(pass, w), flops = 2.0 * s->n_q * (s->d_key + s->d_value);
    double read = pass == decode ? gflops / flops * (double)position_bytes(s) : 0;
    printf("%s,%s,%d,%d,%d,%d,%s,%.1f,%.2f,%.1f,%.2f\n", kn_isa_name(w->ops->isa), s->kv == KN_KV_F16 ? "f16" : "f32",
           s->n_q, s->d_key, s->d_value, s->positions, what, gflops, gflops / peak, read, read / gbps);
    fflush(stdout);
}

int main(void)
{
    struct work w = { .room_bytes = (size_t)1 << 30, .n_seq = 1 };
    int32_t *slots = kn_alloc(32768 * sizeof *slots);
    w.room = kn_map(w.room_bytes, -1);
    if (!w.room || !slots)
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
    }
    kn_free(slots);
    kn_unmap(w.room, w.room_bytes);
    return 0;
}
