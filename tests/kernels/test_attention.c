/* Attention: every instruction set equals the specification bit for bit, also with spans computed apart; the slot that
 * holds a position's key and the heads computed in the same call do not change a result; the specification equals
 * softmax(q K) V.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/kernels.h"

#define N_POS      420  /* positions of most shapes, with heads of any width */
#define N_POS_LONG 4200 /* of shapes over several spans, with heads of at most D_LONG values */
#define D_LONG     72
#define N_VALUE    ((N_POS_LONG + 5) * D_LONG)
_Static_assert(N_VALUE >= (N_POS + 5) * KN_MAX_D_HEAD, "room for both");
#define N_OUT (KN_MAX_Q * KN_MAX_D_HEAD)
#define GUARD 64

static uint64_t seed;
static float q[N_OUT], out_room[N_OUT + 2 * GUARD], want_room[N_OUT + 2 * GUARD];
static float k32[N_VALUE], v32[N_VALUE]; /* [position][d_key], [position][d_value] */
static uint8_t k_store[N_VALUE * sizeof(float)], v_store[N_VALUE * sizeof(float)];
static float k_scale[N_VALUE / 4], v_scale[N_VALUE / 4]; /* of int8 */
static int32_t slots[N_POS_LONG];
static float sinks[KN_MAX_Q];

static uint64_t next(void) { return kn_mix(seed += KN_GOLDEN); }
static float uniform(void) { return (float)(int32_t)(next() >> 32) * 0x1p-31f; }

enum fill { PLAIN, SHARP, DENORMAL, HUGE_ONES, STRANGE, N_FILL };

static float draw(enum fill fill, enum kn_kv kv)
{
    static const float strange[] = { NAN, INFINITY, -INFINITY, -0.0f, 1e-7f, 65504, -65504, 0 };
    float u = uniform();
    switch (fill) {
    case SHARP:
        return next() % 23 == 0 ? 100 * u : u; /* outliers: one score dominates */
    case DENORMAL:
        return u * (kv == KN_KV_F16 ? 0x1p-15f : 0x1p-127f);
    case HUGE_ONES:
        return u * (kv == KN_KV_F16 ? 65504 : 0x1p120f);
    case STRANGE:
        return next() % 997 == 0 ? strange[next() % 8] : u;
    default:
        return u;
    }
}

/* A shape, the visible positions, and their slots: n_base positions are addressed through base. */
struct shape {
    int n_q, d_key, d_value, first, last, n_base;
    enum kn_kv kv;
    enum fill fill;
    bool sink, within; /* within: the values are the first part of the keys */
};

/* Fills q, keys and values from the seed alone, so that every slot layout gets the same numbers. */
static void make(const struct shape *s, uint64_t from)
{
    seed = from;
    for (int i = 0; i < s->n_q * s->d_key; i++)
        q[i] = draw(s->fill, KN_KV_F32);
    for (int i = 0; i < (s->last + 1) * s->d_key; i++)
        k32[i] = draw(s->fill, s->kv);
    for (int i = 0; i < (s->last + 1) * s->d_value; i++) {
        int p = i / s->d_value, d = i % s->d_value;
        v32[i] = s->within ? k32[p * s->d_key + d] : draw(s->fill, s->kv);
    }
    for (int h = 0; s->sink && h < s->n_q; h++) /* some sinks dominate, some have almost no weight */
        sinks[h] = s->fill == STRANGE && h % 3 == 1 ? draw(s->fill, s->kv) : 8 * uniform();
}

/* Puts every visible position into a slot of its own, in order or scattered. Unused slots hold NaN; positions that
 * are not visible have no slot. Scattered slots have unused slots between them. */
static struct kn_attend lay_out(const struct shape *s, bool scattered, float *out)
{
    const int n_pos = s->last < N_POS ? N_POS : N_POS_LONG;
    size_t value = kn_kv_value_bytes(s->kv);
    int most = n_pos == N_POS ? KN_MAX_D_HEAD : D_LONG;
    int gap = scattered && s->d_key <= most - 8 && s->d_value <= most - 8 ? 8 : 0;
    int k_step = s->d_key + gap, v_step = s->within ? k_step : s->d_value + gap / 2;
    memset(k_store, 0xff, sizeof k_store);
    memset(v_store, 0xff, sizeof v_store);
    memset(k_scale, 0xff, sizeof k_scale);
    memset(v_scale, 0xff, sizeof v_scale);
    for (int i = 0; i < n_pos; i++)
        slots[i] = i;
    for (int i = n_pos - 1; scattered && i > 0; i--) {
        int j = (int)(next() % (uint64_t)(i + 1));
        int32_t t = slots[i];
        slots[i] = slots[j];
        slots[j] = t;
    }
    for (int p = 0; p < n_pos; p++) {
        if (p < s->first || p > s->last)
            slots[p] = INT32_MIN;
        if (slots[p] < 0)
            continue;
        size_t k_at = (size_t)slots[p] * (size_t)k_step * value;
        size_t v_at = (size_t)slots[p] * (size_t)v_step * value;
        kn_ops(KN_ISA_SCALAR)
            ->kv_store(s->kv, k32 + p * s->d_key, s->d_key, k_store + k_at, k_scale + slots[p] * kn_kv_blocks(k_step));
        kn_ops(KN_ISA_SCALAR)
            ->kv_store(s->kv, v32 + p * s->d_value, s->d_value, v_store + v_at,
                       v_scale + slots[p] * kn_kv_blocks(v_step));
    }
    return (struct kn_attend){
        .q = q,
        .out = out,
        .k = k_store,
        .v = s->within ? k_store : v_store,
        .k_step = k_step,
        .v_step = v_step,
        .k_scale = k_scale,
        .v_scale = s->within ? k_scale : v_scale,
        .base = slots,
        .tail = slots + s->n_base,
        .n_base = s->n_base,
        .first = s->first,
        .last = s->last,
        .n_q = s->n_q,
        .d_key = s->d_key,
        .d_value = s->d_value,
        .kv = s->kv,
        .scale = 1 / sqrtf((float)s->d_key),
        .sink = s->sink ? sinks : NULL,
    };
}

static void run(enum kn_isa isa, const struct shape *s, bool scattered, float *room)
{
    memset(room, 0x5a, sizeof out_room);
    struct kn_attend a = lay_out(s, scattered, room + GUARD);
    kn_ops(isa)->attend(&a);
}

/* Compares the whole output and its guards: equal bits, or both NaN. */
static void assert_same(const struct shape *s, const char *what)
{
    for (int i = 0; i < N_OUT + 2 * GUARD; i++) {
        float x = want_room[i], y = out_room[i];
        if (memcmp(&x, &y, sizeof x) == 0 || (isnan(x) && isnan(y)))
            continue;
        fail_msg("%s: n_q %d d_key %d d_value %d positions %d..%d base %d kv %d fill %d: [%d] is %a, "
                 "not %a",
                 what, s->n_q, s->d_key, s->d_value, s->first, s->last, s->n_base, s->kv, s->fill, i - GUARD, (double)y,
                 (double)x);
    }
}

static const int heads[] = { 1, 2, 3, 4, 5, 8, 12, 16, 17, 40 };
static const int widths[] = { 1, 2, 7, 8, 15, 16, 24, 40, 63, 64, 65, 80, 96, 128, 192, 256, 320, 512 };
static const int ranges[][2] = { { 0, 0 },   { 0, 1 },     { 0, 15 },   { 0, 16 },   { 3, 17 },  { 0, 62 },
                                 { 0, 63 },  { 0, 64 },    { 63, 64 },  { 5, 130 },  { 60, 70 }, { 100, 100 },
                                 { 0, 200 }, { 127, 319 }, { 64, 127 }, { 79, 419 }, { 0, 419 } };
#define LENGTH(table) ((int)(sizeof table / sizeof table[0]))

static void each_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    int n = 0;
    for (int w = 0; w < LENGTH(widths); w++)
        for (int r = 0; r < LENGTH(ranges); r++)
            for (int fill = 0; fill < N_FILL; fill++) {
                if ((w + r + fill) % (widths[w] > 128 ? 4 : 2))
                    continue; /* a subset, to limit the run time */
                int n_q = heads[n++ % (widths[w] > 64 ? 6 : LENGTH(heads))];
                struct shape s = {
                    .n_q = n_q,
                    .d_key = widths[w],
                    .d_value = widths[w],
                    .first = ranges[r][0],
                    .last = ranges[r][1],
                    .n_base = (n * 37) % (ranges[r][1] + 2),
                    .kv = (enum kn_kv)(n % KN_KV_COUNT),
                    .fill = (enum fill)fill,
                    .sink = n % 4 < 2,
                };
                make(&s, (uint64_t)n);
                run(KN_ISA_SCALAR, &s, false, want_room);
                for (int isa = KN_ISA_AVX2; isa <= KN_ISA_AVX512; isa++) {
                    run((enum kn_isa)isa, &s, true, out_room);
                    assert_same(&s, kn_isa_name((enum kn_isa)isa));
                }
            }
}

/* Head counts 1 to 64 with every kind of values. Heads are computed in groups of 16, and within a group 8, 4 or 1 at
 * a time. The positions span three chunks, so partial sums are merged. */
static void heads_1_to_64(void **state)
{
    (void)state;
    for (int i = 0; i < KN_MAX_Q * N_FILL * KN_KV_COUNT; i++) {
        struct shape s = { .n_q = 1 + i / (N_FILL * KN_KV_COUNT),
                           .d_key = 24,
                           .d_value = 37,
                           .first = 7,
                           .last = 130,
                           .n_base = i % 140,
                           .kv = (enum kn_kv)(i % KN_KV_COUNT),
                           .fill = (enum fill)(i / KN_KV_COUNT % N_FILL),
                           .sink = i % 3 == 0 };
        make(&s, (uint64_t)i);
        run(KN_ISA_SCALAR, &s, false, want_room);
        for (int isa = KN_ISA_AVX2; isa <= KN_ISA_AVX512; isa++) {
            run((enum kn_isa)isa, &s, true, out_room);
            assert_same(&s, kn_isa_name((enum kn_isa)isa));
        }
    }
}

/* d_key and d_value differ; and values that are the first part of their keys. */
static void values_have_a_length_of_their_own(void **state)
{
    (void)state;
    static const struct {
        int d_key, d_value;
        bool within;
    } pairs[] = {
        { 24, 40, false }, { 192, 128, false }, { 8, 72, false }, { 65, 1, false },   { 17, 16, true },
        { 40, 24, true },  { 96, 96, true },    { 80, 64, true }, { 576, 512, true },
    };
    for (int i = 0; i < 4 * LENGTH(pairs); i++) {
        struct shape s = { .n_q = heads[i % 9],
                           .d_key = pairs[i / 4].d_key,
                           .d_value = pairs[i / 4].d_value,
                           .within = pairs[i / 4].within,
                           .first = i % 5,
                           .last = 20 + 57 * (i % 3),
                           .n_base = 7 * (i % 11),
                           .kv = (enum kn_kv)(i % KN_KV_COUNT),
                           .fill = (enum fill)(i % N_FILL),
                           .sink = i % 2 };
        make(&s, (uint64_t)i);
        run(KN_ISA_SCALAR, &s, false, want_room);
        for (int isa = 0; isa <= KN_ISA_AVX512; isa++) {
            run((enum kn_isa)isa, &s, true, out_room);
            assert_same(&s, kn_isa_name((enum kn_isa)isa));
        }
    }
}

/* Parts of spans, computed in random order, then joined: by other instruction sets if `mixed`. */
static void run_by_spans(enum kn_isa isa, const struct shape *s, bool mixed, float *room)
{
    enum { MOST = N_POS_LONG / KN_SPAN + 1 };
    static float part[MOST * 17 * (D_LONG + 2)];
    size_t floats = kn_part_floats(s->n_q, s->d_value);
    int first = s->first / KN_SPAN, n = s->last / KN_SPAN + 1 - first, order[MOST];
    assert_true(n <= MOST && floats * (size_t)n <= sizeof part / sizeof *part);
    memset(room, 0x5a, sizeof out_room);
    memset(part, 0xff, sizeof part);
    struct kn_attend a = lay_out(s, true, room + GUARD);
    for (int i = 0; i < n; i++) {
        int j = (int)(next() % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = first + i;
    }
    for (int i = 0; i < n; i++) {
        struct kn_attend span = a;
        span.first = kn_max(a.first, order[i] * KN_SPAN);
        span.last = kn_min(a.last, order[i] * KN_SPAN + KN_SPAN - 1);
        const struct kn_ops *ops = kn_ops(mixed ? (enum kn_isa)((order[i] + 1) % KN_ISA_COUNT) : isa);
        ops->attend_span(&span, part + (size_t)(order[i] - first) * floats);
    }
    kn_ops(isa)->attend_join(&a, part, n);
}

/* Ranges around the boundaries of spans, whole and by spans. */
static void spans(void **state)
{
    (void)state;
    static const int long_ranges[][2] = { { 0, 1023 },    { 0, 1024 },    { 1023, 1024 }, { 1, 1087 },
                                          { 0, 2047 },    { 1024, 2047 }, { 500, 2048 },  { 1000, 2100 },
                                          { 2040, 3080 }, { 0, 4199 },    { 3000, 4190 }, { 100, 900 } };
    static const int pairs[][2] = { { 8, 8 }, { 64, 64 }, { 37, 24 }, { 72, 64 }, { 16, 72 }, { 65, 15 } };
    int n = 0;
    for (int r = 0; r < LENGTH(long_ranges); r++)
        for (int fill = 0; fill < N_FILL; fill++, n++) {
            const int *pair = pairs[n % LENGTH(pairs)];
            struct shape s = { .n_q = heads[n % 9],
                               .d_key = pair[0],
                               .d_value = pair[1],
                               .within = pair[1] < pair[0] && n % 2,
                               .first = long_ranges[r][0],
                               .last = long_ranges[r][1],
                               .n_base = (n * 997) % (long_ranges[r][1] + 2),
                               .kv = (enum kn_kv)(n % KN_KV_COUNT),
                               .fill = (enum fill)fill,
                               .sink = n % 3 == 0 };
            make(&s, (uint64_t)n);
            run(KN_ISA_SCALAR, &s, false, want_room);
            for (int isa = 0; isa <= KN_ISA_AVX512; isa++) {
                run((enum kn_isa)isa, &s, true, out_room);
                assert_same(&s, kn_isa_name((enum kn_isa)isa));
                run_by_spans((enum kn_isa)isa, &s, n % 2, out_room);
                assert_same(&s, "by spans");
            }
        }
}

static void the_largest_shape(void **state)
{
    (void)state;
    for (int isa = KN_ISA_AVX2; isa <= KN_ISA_AVX512; isa++) {
        struct shape s = { .n_q = KN_MAX_Q,
                           .d_key = KN_MAX_D_HEAD,
                           .d_value = KN_MAX_D_HEAD,
                           .first = 30,
                           .last = 100,
                           .n_base = 50,
                           .kv = KN_KV_F16,
                           .fill = SHARP };
        make(&s, 5);
        run(KN_ISA_SCALAR, &s, false, want_room);
        run((enum kn_isa)isa, &s, true, out_room);
        assert_same(&s, kn_isa_name((enum kn_isa)isa));
    }
}

/* Any permutation of slots and any split into base and tail gives the same result, with every instruction set. */
static void layout_changes_nothing(void **state)
{
    (void)state;
    struct shape s = { .n_q = 3, .d_key = 40, .d_value = 40, .first = 9, .last = 300, .kv = KN_KV_F16 };
    make(&s, 1);
    run(KN_ISA_SCALAR, &s, false, want_room);
    for (int isa = 0; isa <= KN_ISA_AVX512; isa++)
        for (s.n_base = 0; s.n_base <= s.last + 1; s.n_base += 43) {
            run((enum kn_isa)isa, &s, true, out_room);
            assert_same(&s, "layout");
        }
}

/* A head's result is the same alone and together with any number of other heads. */
static void company_changes_nothing(void **state)
{
    (void)state;
    for (int isa = 0; isa <= KN_ISA_AVX512; isa++) {
        struct shape s = {
            .n_q = 23, .d_key = 32, .d_value = 24, .first = 0, .last = 99, .kv = KN_KV_F16, .sink = isa != 1
        };
        make(&s, 2);
        run((enum kn_isa)isa, &s, false, want_room);
        for (int h = 0; h < s.n_q; h++) {
            struct kn_attend a = lay_out(&s, false, out_room + GUARD);
            a.q = q + h * s.d_key;
            a.n_q = 1;
            a.sink = a.sink ? a.sink + h : NULL;
            kn_ops((enum kn_isa)isa)->attend(&a);
            assert_memory_equal(a.out, want_room + GUARD + h * s.d_value, (size_t)s.d_value * sizeof(float));
        }
    }
}

/* A NaN at a position that is not visible has no effect; a NaN at a visible one makes the whole head NaN. */
static void only_seen_positions_count(void **state)
{
    (void)state;
    for (int isa = 0; isa <= KN_ISA_AVX512; isa++) {
        struct shape s = { .n_q = 2, .d_key = 64, .d_value = 64, .first = 70, .last = 75, .kv = KN_KV_F32 };
        make(&s, 3);
        run((enum kn_isa)isa, &s, false, out_room);
        for (int i = 0; i < 128; i++)
            assert_true(isfinite(out_room[GUARD + i]));
        k32[72 * 64 + 5] = NAN;
        run((enum kn_isa)isa, &s, false, out_room);
        for (int i = 0; i < 128; i++)
            assert_true(isnan(out_room[GUARD + i]));
    }
}

/* The reference is softmax(scale q K^T, sink) V without a value for the sink, in long double, of the stored values. */
static void check_formula(bool sink, bool within, int first, int last)
{
    struct shape s = { .n_q = 2,
                       .d_key = 72,
                       .d_value = 64,
                       .first = first,
                       .last = last,
                       .kv = KN_KV_F16,
                       .sink = sink,
                       .within = within };
    make(&s, 4);
    for (int i = 0; i < s.n_q * s.d_key; i++)
        q[i] *= 8;
    run(KN_ISA_SCALAR, &s, true, out_room);
    for (int h = 0; h < s.n_q; h++) {
        static long double o[KN_MAX_D_HEAD];
        long double sum = sink ? expl(sinks[h]) : 0;
        memset(o, 0, sizeof o);
        for (int p = s.first; p <= s.last; p++) {
            long double dot = 0;
            for (int d = 0; d < s.d_key; d++)
                dot += (long double)q[h * s.d_key + d] * kn_f16_to_f32(kn_f32_to_f16(k32[p * s.d_key + d]));
            long double e = expl(dot / sqrtl(s.d_key));
            sum += e;
            for (int d = 0; d < s.d_value; d++)
                o[d] += e * kn_f16_to_f32(kn_f32_to_f16(v32[p * s.d_value + d]));
        }
        for (int d = 0; d < s.d_value; d++) {
            double got = (double)out_room[GUARD + h * s.d_value + d];
            assert_true(fabs(got - (double)(o[d] / sum)) < 2e-6);
        }
    }
}

static void the_specification_is_the_formula(void **state)
{
    (void)state;
    check_formula(false, false, 11, 311);
    check_formula(true, false, 11, 311);
    check_formula(false, true, 11, 311);
    check_formula(true, false, 900, 3500);
}

/* Int8 is close to the formula on the numbers before they were coded, also where blocks and positions have very
 * different scales. */
static void int8_is_close_to_the_formula(void **state)
{
    (void)state;
    enum { D = 72, LAST = 1500 };
    struct shape s = { .n_q = 2, .d_key = D, .d_value = D, .first = 40, .last = LAST, .kv = KN_KV_INT8 };
    make(&s, 6);
    for (int i = 0; i < s.n_q * D; i++)
        q[i] *= i % D < 64 ? 4 : 0.01f;
    for (int i = 0; i < (LAST + 1) * D; i++) {
        k32[i] *= i % D < 64 ? 1 : 50;
        v32[i] *= (i % D < 64 ? 1 : 1000) * (i / D % 2 ? 1 : 0.01f);
    }
    run(KN_ISA_SCALAR, &s, true, out_room);
    for (int h = 0; h < s.n_q; h++) {
        double o[D] = { 0 }, sum = 0;
        for (int p = s.first; p <= LAST; p++) {
            double dot = 0;
            for (int d = 0; d < D; d++)
                dot += (double)q[h * D + d] * (double)k32[p * D + d];
            double e = exp(dot / sqrt(D));
            sum += e;
            for (int d = 0; d < D; d++)
                o[d] += e * (double)v32[p * D + d];
        }
        for (int d = 0; d < D; d++) {
            double got = (double)out_room[GUARD + h * D + d];
            assert_true(fabs(got - o[d] / sum) < (d < 64 ? 0.004 : 4));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_instruction_set_gives_the_same_bits),
        cmocka_unit_test(heads_1_to_64),
        cmocka_unit_test(values_have_a_length_of_their_own),
        cmocka_unit_test(spans),
        cmocka_unit_test(the_largest_shape),
        cmocka_unit_test(layout_changes_nothing),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(only_seen_positions_count),
        cmocka_unit_test(the_specification_is_the_formula),
        cmocka_unit_test(int8_is_close_to_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
