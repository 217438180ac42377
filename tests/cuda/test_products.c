/* Products and embeddings on a CUDA device in every format, by memcmp with the host's scalar functions: weights of
 * random bits, short last groups, 1 to 17 rows with and without lists, and matrices whose last panel is padded.  This
 * is not under MODE=tsan: one thread. */
#include <math.h>

#include "kernels/internal.h"
#include "tests/cuda/on_cuda.h"

/* Each array of a case is an allocation of its own, so that the interpreter finds an access beyond its end. */
#define ARRAYS 16
static void *array[ARRAYS];
static int n_array;
static uint64_t random_state;
static const struct kn_ops *scalar;

static uint64_t random_bits(void) { return kn_mix(random_state += KN_GOLDEN); }
static int random_below(int n) { return (int)(random_bits() % (uint64_t)n); }
static float random_float(void) { return (float)(int64_t)(random_bits() >> 40) / 8388608.0f - 1.0f; }

static void *take(size_t bytes)
{
    assert_true(n_array < ARRAYS);
    assert_int_equal(kn_cuda_driver(NULL)->pinned_alloc(&array[n_array], bytes, KN_CUDA_MAPPED), 0);
    return array[n_array++];
}

static void free_arrays(void)
{
    while (n_array)
        kn_cuda_driver(NULL)->pinned_free(array[--n_array]);
}

/* ---- weights -------------------------------------------------------------------------------------------------- */

static void put_half(uint8_t *at) { memcpy(at, &(uint16_t){ kn_f32_to_f16(random_float() * 0.01f) }, 2); }

/* Where a block's halves are: its scale, its minimum; -1: none. */
static void place_of_halves(enum kn_format f, int at[2])
{
    at[0] = f == KN_IQ1_M ? -1 : f == KN_Q6_K ? 208 : f == KN_Q2_K ? 80 : f == KN_Q3_K ? 108 : 0;
    at[1] = f == KN_Q4_K || f == KN_Q5_K || f == KN_Q4_1 || f == KN_Q5_1 ? 2 : f == KN_Q2_K ? 82 : -1;
}

/* Random bits, with scales that are small and finite. */
static void fill_block(enum kn_format f, uint8_t *block)
{
    int bytes = kn_format_info(f)->block_bytes, at[2];
    for (int i = 0; i < bytes; i++)
        block[i] = (uint8_t)random_bits();
    switch (f) {
    case KN_F32:
        memcpy(block, &(float){ random_float() }, 4);
        return;
    case KN_F16:
        memcpy(block, &(uint16_t){ kn_f32_to_f16(random_float()) }, 2);
        return;
    case KN_BF16:
        memcpy(block, &(uint16_t){ kn_f32_to_bf16(random_float()) }, 2);
        return;
    case KN_INT4:
        memcpy(block, &(uint16_t){ kn_f32_to_bf16(random_float() * 0.01f) }, 2);
        return;
    case KN_MXFP4:
        block[0] = (uint8_t)random_below(random_below(8) ? 130 : 3); /* also 2^-128, which is denormal */
        return;
    case KN_NVFP4:
        for (int i = 0; i < 4; i++)
            block[i] = (uint8_t)(random_below(4) ? 40 + random_below(32)
                                                 : (int)(random_bits() & 255)); /* also denormal, 0x7F */
        return;
    case KN_UINT4:
        put_half(block);
        block[2] = (uint8_t)random_below(17);
        return;
    case KN_FP8:
        memcpy(block, &(float){ random_float() * 0.01f }, 4);
        for (int i = 4; i < bytes; i++)
            block[i] = (block[i] & 0x7F) == 0x7F ? 0 : block[i]; /* no NaN */
        return;
    default:
        place_of_halves(f, at);
        for (int i = 0; i < 2; i++)
            if (at[i] >= 0)
                put_half(block + at[i]);
        for (int i = 0; f == KN_IQ1_M && i < 4; i++) /* 0x2xxx: four bits in each of four numbers */
            block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (i < 3 ? random_bits() << 4 : 0x20));
    }
}

static struct kn_mat matrix(enum kn_format f, int n_out, int n_in)
{
    size_t row = kn_row_bytes(f, n_in), block = (size_t)kn_format_info(f)->block_bytes;
    uint8_t *rows = malloc(row * (size_t)n_out);
    void *panels = take(kn_mat_bytes(f, n_out, n_in));
    for (size_t at = 0; at < row * (size_t)n_out; at += block)
        fill_block(f, rows + at);
    scalar->repack(f, rows, n_out, n_in, panels, 0, kn_ceil_div(n_out, KN_PANEL));
    free(rows);
    return (struct kn_mat){ f, n_out, n_in, 0.75f, panels };
}

/* ---- products ------------------------------------------------------------------------------------------------- */

static int32_t *list(int n, int below, bool distinct)
{
    int32_t *x = take((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = distinct ? (int32_t)((i * 5 + 3) % below) : random_below(below);
    return x;
}

static void compare(enum kn_format f, int n_out, int n_in, int n_row, bool lists)
{
    enum kn_act act = kn_format_info(f)->act;
    size_t x_bytes = kn_align_up(kn_act_bytes(act, n_in), 16) + 16, y_stride = (size_t)n_out + 3;
    const int n_from = 19, n_to = 23; /* rows of the arrays, of which lists choose some */
    struct kn_matmul m = { .w = matrix(f, n_out, n_in), .x_stride = x_bytes, .y_stride = y_stride, .n_row = n_row };
    uint8_t *x = take((size_t)n_from * x_bytes);
    float *values = malloc((size_t)n_in * sizeof *values), *plain = malloc((size_t)n_to * y_stride * sizeof *plain);
    for (int i = 0; i < n_from; i++) {
        for (int k = 0; k < n_in; k++)
            values[k] = random_float();
        scalar->quantize(act, values, n_in, x + (size_t)i * x_bytes);
    }
    m.x = x;
    m.x_row = lists ? list(n_row, n_from, false) : NULL;
    m.y_row = lists ? list(n_row, n_to, true) : NULL;
    m.y = take((size_t)n_to * y_stride * sizeof *m.y);
    memset(m.y, 0x3c, (size_t)n_to * y_stride * sizeof *m.y);
    memset(plain, 0x3c, (size_t)n_to * y_stride * sizeof *plain);
    cuda_run(&(struct kn_op){ .kind = KN_OP_PRODUCTS,
                              .products = { .product = { { .mul = m, .node = -1, .n_stack = 1 } }, .n = 1 } });
    const float *y = m.y;
    m.y = plain;
    kn_matmul_scalar(&m, 0, kn_ceil_div(n_out, KN_PANEL));
    if (memcmp(y, plain, (size_t)n_to * y_stride * sizeof *y))
        fail_msg("%s: %d rows of %d x %d%s differ", kn_format_info(f)->name, n_row, n_out, n_in,
                 lists ? ", by lists," : "");
    free(values);
    free(plain);
    free_arrays();
}

static void products_equal_the_hosts(void **state)
{
    (void)state;
    /* in blocks: less than a group, several groups and a short one, more groups than a block of threads has slots */
    static const int n_blocks[3][3] = {
        [KN_ACT_F32] = { 37, 600, 8400 }, [KN_ACT_Q32] = { 1, 19, 273 }, [KN_ACT_Q256] = { 1, 3, 35 }
    };
    static const int rows[] = { 1, 2, 4, 5, 17 }, outs[] = { 41, 16, 1 };
    if (!cuda)
        skip();
    for (int f = 0; f < KN_FORMAT_COUNT; f++) {
        if (!kn_cuda_has_format((enum kn_format)f))
            continue;
        const struct kn_format_info *info = kn_format_info((enum kn_format)f);
        random_state = (uint64_t)f;
        for (int size = 0; size < 3; size++) {
            int n_in = n_blocks[info->act][size] * (f == KN_FP8 ? 1 : info->block_values);
            n_in = f == KN_FP8 ? kn_max(1, n_in / 128) * 128 : n_in;
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                if (size < 2 || rows[i] == 1 || rows[i] == 5)
                    compare((enum kn_format)f, outs[(size_t)size == 2 ? 1 : (i + (size_t)size) % 3], n_in, rows[i],
                            i % 2);
        }
    }
}

/* ---- embeddings ----------------------------------------------------------------------------------------------- */

static void embeddings_equal_the_hosts(void **state)
{
    (void)state;
    enum { N_VOCAB = 37, N_IN = 512, N = 20 };
    if (!cuda)
        skip();
    for (int f = 0; f < KN_FORMAT_COUNT; f++) {
        float plain[N_IN];
        if (!kn_cuda_has_format((enum kn_format)f))
            continue;
        random_state = 100 + (uint64_t)f;
        struct kn_op_embed o = { .w = matrix((enum kn_format)f, N_VOCAB, N_IN), .w_scale = 1.75f };
        struct kn_row *row = take(N * sizeof *row);
        int *status = take(N * sizeof *status);
        for (int i = 0; i < N; i++) {
            row[i] = (struct kn_row){ .token = random_below(N_VOCAB) };
            status[i] = 0;
        }
        o.rows = (struct kn_rows){ row, status, N };
        o.x = take(N * N_IN * sizeof *o.x);
        cuda_run(&(struct kn_op){ .kind = KN_OP_EMBED, .embed = o });
        for (int i = 0; i < N; i++) {
            kn_mat_row(&o.w, row[i].token, plain);
            for (int k = 0; k < N_IN; k++)
                plain[k] *= o.w_scale;
            if (memcmp(plain, o.x + i * N_IN, sizeof plain))
                fail_msg("%s: row %d differs", kn_format_info((enum kn_format)f)->name, row[i].token);
        }
        free_arrays();
    }
}

static char said[400];
static void keep_line(enum kn_level level, const char *line)
{
    (void)level;
    snprintf(said, sizeof said, "%s", line);
}

/* Zeros in place of the grid of IQ2_XXS, or the grid. */
static void fill_grids(struct kn_cuda_device *d, bool wrong)
{
    kn_cuda_address at;
    size_t bytes;
    for (int i = 0; i < KN_CUDA_IMAGES; i++)
        if (d->driver->module_global(&at, &bytes, d->module[i], "kn_cuda_grids") == 0) {
            at += offsetof(struct kn_cuda_grids, iq2_xxs);
            if (wrong)
                d->driver->fill(at, 0, sizeof kn_grid_iq2_xxs, NULL);
            else
                d->driver->copy(at, (kn_cuda_address)(uintptr_t)kn_grid_iq2_xxs, sizeof kn_grid_iq2_xxs, NULL);
        }
    assert_int_equal(d->driver->context_wait(), 0);
}

static int n_launch;
static unsigned (*true_launch)(struct CUfunc_st *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               struct CUstream_st *, void **, void **);
static unsigned counted_launch(struct CUfunc_st *f, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b,
                               unsigned c, unsigned shared, struct CUstream_st *s, void **parameters, void **extra)
{
    n_launch++;
    return true_launch(f, x, y, z, a, b, c, shared, s, parameters, extra);
}

static void count_launches(struct kn_cuda_device *d, bool on)
{
    static struct kn_cuda_driver counted;
    static const struct kn_cuda_driver *plain;
    if (on) {
        plain = d->driver;
        counted = *plain;
        true_launch = plain->launch;
        counted.launch = counted_launch;
    }
    d->driver = on ? &counted : plain;
}

/* The only file in the folder becomes that of another driver. */
static void break_file(const char *folder)
{
    char line[300];
    snprintf(line, sizeof line, "sed -i 's/CUDA 1/CUDA 2/' %s/*.gpu", folder);
    assert_int_equal(system(line), 0);
}

static void the_device_passes_its_self_test(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* slow, and a_result_is_kept runs it twice */
#endif
    if (!cuda)
        skip();
    assert_int_equal(kn_cuda_self_test(cuda), 0);
}

/* The device gets wrong grids of IQ2_XXS: it loses this format alone.  A second start takes the kept result, and launches
 * nothing; one with a broken file, or of another driver, tests again. */
static void a_result_is_kept(void **state)
{
    char folder[] = "/tmp/spillway-gpu-XXXXXX", line[200];
    const unsigned bit = 1u << KN_IQ2_XXS;
    (void)state;
    if (!cuda || !is_interpreted())
        skip();
    struct kn_cuda_device *d = (struct kn_cuda_device *)cuda;
    unsigned formats = d->formats;
    assert_non_null(mkdtemp(folder));
    kn_cuda_keep_tests(folder);
    kn_log_set(keep_line, KN_LOG_WARN);
    fill_grids(d, true);
    for (int start = 0; start < 4; start++) {
        *said = 0;
        d->differing = 0;
        if (start == 1) { /* the grids are right, but the kept result counts */
            fill_grids(d, false);
            n_launch = 0;
            count_launches(d, true);
        }
        if (start == 2)
            break_file(folder);
        assert_int_equal(kn_cuda_admit_device(cuda), 0);
        assert_int_equal(d->differing, start < 2 ? bit : 0);
        assert_int_equal(strstr(said, "IQ2_XXS") != NULL, start < 2);
        assert_int_equal(n_launch > 0, start == 2);
        n_launch = 0;
        if (start < 2) {
            assert_int_equal(kn_cuda_admit(cuda, KN_IQ2_XXS), KN_EUNSUPPORTED);
            assert_false(kn_device_has_format(cuda, KN_IQ2_XXS));
            assert_int_equal(kn_cuda_admit(cuda, KN_IQ2_XS), 0);
        }
    }
    count_launches(d, false);
    kn_log_set(NULL, KN_LOG_WARN);
    kn_cuda_keep_tests(NULL);
    d->formats = formats;
    snprintf(line, sizeof line, "rm -r %s", folder);
    assert_int_equal(system(line), 0);
}

static int open_all(void **state)
{
    (void)state;
    scalar = kn_ops(KN_ISA_SCALAR);
    cuda_open();
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    kn_cuda_close(cuda);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(products_equal_the_hosts),
                                        cmocka_unit_test(embeddings_equal_the_hosts),
                                        cmocka_unit_test(the_device_passes_its_self_test),
                                        cmocka_unit_test(a_result_is_kept) };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
