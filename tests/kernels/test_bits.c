/* The bits are frozen: hashes of results, for fixed inputs, of every instruction set equal those in
 * tests/kernels/bits.txt.  So a change of the arithmetic cannot pass unseen, and a backend has a list to reach.
 *
 * A result is one entry of the table `results`, and one line of bits.txt: hash, name.  To add one, write its function,
 * add it to the table, and its line as the failing test prints it.  With the argument --print the program prints the
 * whole file, as the scalar specification has it.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/kernels/draw.h"

#define FILE_NAME "tests/kernels/bits.txt"
#define N         1000 /* of rows of floats: no multiple of 64 */

struct hash {
    uint64_t h;
};

static void hash_bytes(struct hash *h, const void *p, size_t n) /* FNV-1a */
{
    for (size_t i = 0; i < n; i++)
        h->h = (h->h ^ ((const uint8_t *)p)[i]) * UINT64_C(0x100000001B3);
}

static void hash_floats(struct hash *h, const float *x, size_t n) { hash_bytes(h, x, n * sizeof *x); }

static void draw_row(float *x, int n, enum inputs kind, float times)
{
    for (int i = 0; i < n; i++)
        x[i] = times * draw_input(kind, i, 1 - 2 * (i % 2));
}

/* ---- products and codes ---------------------------------------------------------------------- */

/* Nine rows, more than a tile, by 41 rows of weights; two groups of 256 and, where the format allows it, a part. */
static void hash_products(const struct kn_ops *ops, enum kn_format f, struct hash *h)
{
    enum { N_OUT = 41, N_ROW = 9, MOST = 768 };
    const struct kn_format_info *info = kn_format_info(f);
    const int n_in = info->block_values == 256 ? 768 : info->block_values >= 64 ? 640 : 544 + (info->act == KN_ACT_F32);
    const size_t row = kn_row_bytes(f, n_in), stride = kn_align_up(kn_act_bytes(info->act, n_in), 16);
    uint8_t *file = malloc(N_OUT * row), *panels = aligned_alloc(64, kn_align_up(kn_mat_bytes(f, N_OUT, n_in), 64));
    uint8_t *act = aligned_alloc(64, kn_align_up(N_ROW * stride, 64));
    float x[MOST], y[N_ROW * N_OUT];

    for (size_t at = 0; at < N_OUT * row; at += (size_t)info->block_bytes)
        fill_block(f, PLAIN, file + at);
    ops->repack(f, file, N_OUT, n_in, panels, 0, kn_ceil_div(N_OUT, KN_PANEL));
    for (int r = 0; r < N_ROW; r++) {
        draw_row(x, n_in, r % 2 ? OUTLIERS : USUAL, 1);
        ops->quantize(info->act, x, n_in, act + (size_t)r * stride);
    }
    for (int n = 1; n <= N_ROW; n += N_ROW - 1) {
        const struct kn_matmul m = {
            .w = { f, N_OUT, n_in, 1, panels }, .x = act, .x_stride = stride, .y = y, .y_stride = N_OUT, .n_row = n
        };

        ops->matmul(&m, 0, kn_ceil_div(N_OUT, KN_PANEL));
        hash_floats(h, y, (size_t)(n * N_OUT));
    }
    free(file);
    free(panels);
    free(act);
}

static void hash_codes(const struct kn_ops *ops, enum kn_act a, int n, struct hash *h)
{
    struct kn_codes codes[4];
    float x[KN_GROUP * 4];

    for (enum inputs kind = USUAL; kind < N_INPUTS; kind++) {
        draw_row(x, n, kind, 1);
        ops->quantize(a, x, n, codes);
        hash_bytes(h, codes, kn_act_bytes(a, n));
    }
}

static void codes_32(const struct kn_ops *ops, struct hash *h) { hash_codes(ops, KN_ACT_Q32, 864, h); }
static void codes_256(const struct kn_ops *ops, struct hash *h) { hash_codes(ops, KN_ACT_Q256, 1024, h); }

#define PRODUCT(name, type, values, bytes, act)                                                                        \
    static void product_##name(const struct kn_ops *ops, struct hash *h) { hash_products(ops, KN_##name, h); }
KN_FORMATS(PRODUCT)
#undef PRODUCT

/* ---- rows of floats -------------------------------------------------------------------------- */

static void norm(const struct kn_ops *ops, struct hash *h)
{
    float x[N], w[N], y[N];

    draw_row(x, N, OUTLIERS, 3);
    draw_row(w, N, USUAL, 1);
    ops->rms_norm(x, w, 1e-6f, N, y);
    hash_floats(h, y, N);
}

static void softmax(const struct kn_ops *ops, struct hash *h)
{
    float x[N];

    draw_row(x, N, USUAL, 30);
    ops->softmax(x, N);
    hash_floats(h, x, N);
}

static void activations(const struct kn_ops *ops, struct hash *h)
{
    float gate[N], up[N], y[N];

    draw_row(gate, N, OUTLIERS, 5);
    draw_row(up, N, USUAL, 9);
    ops->swiglu(gate, up, N, y);
    hash_floats(h, y, N);
    ops->swiglu_clamped(gate, up, 1.702f, 7, N, y);
    hash_floats(h, y, N);
    ops->gate(y, gate, N);
    hash_floats(h, y, N);
}

static void caps(const struct kn_ops *ops, struct hash *h)
{
    float x[N];

    draw_row(x, N, OUTLIERS, 3);
    ops->cap(x, 0.5f, N);
    hash_floats(h, x, N);
}

static void sums(const struct kn_ops *ops, struct hash *h)
{
    float x[N], y[N];

    draw_row(x, N, OUTLIERS, 1);
    draw_row(y, N, USUAL, 1);
    ops->add(x, y, N);
    ops->add_scaled(x, 0.3f, y, N);
    hash_floats(h, x, N);
}

static void rotation(const struct kn_ops *ops, struct hash *h)
{
    enum { D = 40, HEADS = 3 };
    float x[HEADS * D], turn[D / 2][2];

    for (int i = 0; i < D / 2; i++) {
        double s, c;

        kn_sincos(1234 * kn_pow(10000, -2.0 * i / D), &s, &c);
        turn[i][0] = (float)c;
        turn[i][1] = (float)s;
    }
    for (enum kn_rope kind = KN_ROPE_HALVES; kind <= KN_ROPE_PAIRS; kind++) {
        draw_row(x, HEADS * D, USUAL, 2);
        ops->rope(x, HEADS, D, D - 8, turn, kind);
        hash_floats(h, x, HEADS * D);
    }
}

static void convolution(const struct kn_ops *ops, struct hash *h)
{
    enum { TAPS = 4 };
    float x[TAPS][N], w[TAPS * N], y[N];
    const float *tap[TAPS];

    for (int j = 0; j < TAPS; j++) {
        draw_row(x[j], N, USUAL, 2);
        tap[j] = x[j];
    }
    draw_row(w, TAPS * N, USUAL, 1);
    ops->conv(tap, w, TAPS, N, y);
    hash_floats(h, y, N);
}

static void delta_rule(const struct kn_ops *ops, struct hash *h)
{
    enum { KEY = 36, VALUE = 50, ROWS = 3 };
    float q[ROWS][KEY], k[ROWS][KEY], v[ROWS][VALUE], out[ROWS][VALUE];
    float *state = calloc(kn_delta_floats(KEY, VALUE), sizeof *state);
    struct kn_delta_row row[ROWS];

    for (int r = 0; r < ROWS; r++) {
        draw_row(q[r], KEY, USUAL, 0.3f);
        draw_row(k[r], KEY, USUAL, 0.3f);
        draw_row(v[r], VALUE, USUAL, 1);
        row[r] = (struct kn_delta_row){ q[r], k[r], v[r], 0.9f, 0.4f, out[r] };
    }
    ops->delta(&(struct kn_delta){ state, row, ROWS, KEY, VALUE });
    hash_floats(h, out[0], ROWS * VALUE);
    hash_floats(h, state, kn_delta_floats(KEY, VALUE));
    free(state);
}

static void stored_values(const struct kn_ops *ops, struct hash *h)
{
    float x[N], out[N] = { 0 };

    draw_row(x, N, OUTLIERS, 1);
    for (enum kn_kv kv = KN_KV_F16; kv <= KN_KV_F32; kv++) {
        ops->kv_store(kv, x, N, out, NULL);
        hash_floats(h, out, N);
    }
}

/* ---- scalars --------------------------------------------------------------------------------- */

static void mathematics(const struct kn_ops *ops, struct hash *h)
{
    (void)ops;
    for (int i = 0; i < N; i++) {
        double u = (double)uniform(), d[5] = { kn_exp(20 * u), kn_log(1.5 + u), kn_pow(1.5 + u, 7 * u) };
        float x = kn_expf(80 * (float)u);

        kn_sincos(1e6 * u, &d[3], &d[4]);
        hash_bytes(h, d, sizeof d);
        hash_floats(h, &x, 1);
    }
}

static void choices(const struct kn_ops *ops, struct hash *h)
{
    const float value[] = { NAN, -NAN, -INFINITY, -3e38f, -1, -1e-45f, -0.0f, 0, 1e-45f, 1, 1, 3e38f, INFINITY };

    (void)ops;
    for (int32_t i = 0; i < (int32_t)(sizeof value / sizeof *value); i++) {
        uint64_t key = kn_rank_key(value[i], i);

        hash_bytes(h, &key, sizeof key);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(const struct kn_ops *ops, struct hash *h);
} results[] = {
#define PRODUCT(name, type, values, bytes, act) { "product " #name, product_##name },
    KN_FORMATS(PRODUCT)
#undef PRODUCT
        { "codes in blocks of 32", codes_32 },
    { "codes in blocks of 256", codes_256 },
    { "norm", norm },
    { "softmax", softmax },
    { "activations", activations },
    { "sums", sums },
    { "rotation", rotation },
    { "convolution", convolution },
    { "delta rule", delta_rule },
    { "stored values", stored_values },
    { "mathematics", mathematics },
    { "choices", choices },
    { "caps", caps },
};
#define N_RESULT (int)(sizeof results / sizeof *results)

/* Each result has random numbers of its own, so that a new entry changes no other. */
static void make_line(int i, const struct kn_ops *ops, char line[80])
{
    struct hash h = { UINT64_C(0xCBF29CE484222325) };

    seed = 0;
    for (const char *p = results[i].name; *p; p++)
        seed = kn_mix(seed + (uint64_t)*p);
    results[i].run(ops, &h);
    snprintf(line, 80, "%016llx  %s", (unsigned long long)h.h, results[i].name);
}

static void bits_are_those_of_the_file(void **state)
{
    static char want[N_RESULT + 1][80];
    char row[256];
    int n = 0, n_wrong = 0;
    FILE *f = fopen(FILE_NAME, "r");

    (void)state;
    assert_non_null(f);
    while (n <= N_RESULT && fgets(row, sizeof row, f))
        if (row[0] != '#')
            snprintf(want[n++], sizeof want[0], "%.*s", (int)strcspn(row, "\n"), row);
    fclose(f);
    for (int i = 0; i < N_RESULT; i++)
        for (enum kn_isa isa = KN_ISA_SCALAR; isa <= kn_isa_best(); isa++) {
            char line[80];

            make_line(i, kn_ops(isa), line);
            if (i < n && !strcmp(line, want[i]))
                continue;
            print_error("%s: %s\n", kn_isa_name(isa), line);
            n_wrong++;
        }
    if (n_wrong || n != N_RESULT)
        fail_msg("%s: %d results are not on its lines, in this order; it has %d lines, not %d", FILE_NAME, n_wrong, n,
                 N_RESULT);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(bits_are_those_of_the_file) };

    if (argc < 2 || strcmp(argv[1], "--print"))
        return cmocka_run_group_tests(tests, NULL, NULL);
    puts(
        "# Hashes of results (tests/kernels/test_bits.c).  They are frozen: no change may alter a line, only add some.");
    for (int i = 0; i < N_RESULT; i++) {
        char line[80];

        make_line(i, kn_ops(KN_ISA_SCALAR), line);
        puts(line);
    }
    return 0;
}
