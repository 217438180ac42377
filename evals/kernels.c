/* evals/kernels.c - how fast weights are read, multiplied and repacked, beside the machine's
 * bounds.
 *
 * Prints CSV. In the same run: the plain read rate of memory and the arithmetic peaks, so that
 * every figure has its bound beside it. Weights are 1 GiB in huge pages, well above the last-level
 * cache, as a row of matrices of 1024 x 2048; one matrix is one item of work. A figure
 * is an item's work over the median of the items' processor time, times the threads: the rate of the
 * cores, independent of other processes on the machine.
 *
 * kernels [FORMATS] [ISA] [ROWS]    a selection instead of all ("all"), as in: kernels q4_k,f16 avx512 1,4,16
 *                                   ISA "best": the fastest of this machine; with ROWS, repacking is left out
 * kernels share [FORMATS] [ISA] [ROWS]
 *                                   the share of the read rate of memory that products reach with all threads: each round
 *                                   reads before and after; geometric mean and 95 % interval of the rounds' ratios */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "evals/measure.h"

#define WEIGHT_BYTES   ((size_t)1 << 30)
#define N_IN           2048
#define N_OUT          1024 /* weights are a row of matrices of this size */
#define N_PANEL        (N_OUT / KN_PANEL)
#define MOST_ROWS      96
#define REPEAT         3
#define MOST_ITEMS     4096
#define MAX_ROW_COUNTS 16

static volatile float sink;

static void line(const char *what, const char *format, const char *isa, int rows, int threads, double bytes_per_s,
                 double mac_per_s)
{
    printf("%s,%s,%s,%d,%d,%.2f,%.1f\n", what, format, isa, rows, threads, bytes_per_s * 1e-9, mac_per_s * 1e-9);
    fflush(stdout);
}

struct timed {
    kn_task *fn;
    void *arg;
    double *seconds;
};

static double thread_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void timed_item(void *arg, int item, int thread)
{
    const struct timed *t = arg;
    double start = thread_seconds();

    t->fn(t->arg, item, thread);
    t->seconds[item] = thread_seconds() - start;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Items a second of the team at the median item's time; the items are done `repeat` times. */
static double items_per_s_of(struct kn_team *team, int n, kn_task *fn, void *arg, int repeat)
{
    static double seconds[REPEAT * MOST_ITEMS];

    kn_assert(n <= MOST_ITEMS && repeat <= REPEAT);
    for (int i = 0; i < repeat; i++) {
        struct timed t = { fn, arg, seconds + (size_t)i * (size_t)n };
        kn_parallel_for(team, n, timed_item, &t);
    }
    qsort(seconds, (size_t)(repeat * n), sizeof *seconds, by_size);
    return kn_team_size(team) / seconds[repeat * n / 2];
}

static double items_per_s(struct kn_team *team, int n, kn_task *fn, void *arg)
{
    return items_per_s_of(team, n, fn, arg, REPEAT);
}

/* ---- bounds of the machine ------------------------------------------------------------------- */

#define READ_ITEM ((size_t)1 << 20)

__attribute__((target("avx2"))) static void read_item(void *arg, int item, int thread)
{
    const __m256i *p = (const void *)((const uint8_t *)arg + (size_t)item * READ_ITEM);
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;

    (void)thread;
    for (size_t i = 0; i < READ_ITEM / sizeof *p; i += 4) {
        a = _mm256_xor_si256(a, _mm256_load_si256(p + i));
        b = _mm256_xor_si256(b, _mm256_load_si256(p + i + 1));
        c = _mm256_xor_si256(c, _mm256_load_si256(p + i + 2));
        d = _mm256_xor_si256(d, _mm256_load_si256(p + i + 3));
    }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    sink = (float)_mm256_extract_epi32(a, 3);
}

PEAK(dot_avx2, "avx2", __m256i, _mm256_setzero_si256(), _mm256_maddubs_epi16(x, v[i]))
PEAK(dot_avx512, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(v[i], x, x))

#define PEAK_STEPS 4000000
struct peak {
    const char *what;
    enum kn_isa isa;
    void (*run)(long n);
    int mac;
};

static void peak_item(void *arg, int item, int thread)
{
    const struct peak *p = arg;

    (void)item, (void)thread;
    p->run(PEAK_STEPS);
}

static void machine(struct kn_team *team, uint8_t *weights)
{
    static struct peak peaks[] = {
        { "fma_peak", KN_ISA_AVX2, fma_avx2, 8 },
        { "fma_peak", KN_ISA_AVX512, fma_avx512, 16 },
        { "dot_peak", KN_ISA_AVX2, dot_avx2, 32 },
        { "dot_peak", KN_ISA_AVX512, dot_avx512, 64 },
    };
    int n = kn_team_size(team);

    line("read", "", "", 0, n, READ_ITEM * items_per_s(team, (int)(WEIGHT_BYTES / READ_ITEM), read_item, weights), 0);
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
        double mac = (double)PEAK_STEPS * CHAINS * peaks[i].mac;

        if (peaks[i].isa <= kn_isa_best())
            line(peaks[i].what, "", kn_isa_name(peaks[i].isa), 0, n, 0,
                 mac * items_per_s(team, 4 * n, peak_item, &peaks[i]));
    }
}

/* ---- products -------------------------------------------------------------------------------- */

struct bench {
    const struct kn_ops *ops;
    struct kn_matmul m;
    uint8_t *weights;
    const uint8_t *file;
    size_t mat_bytes;
};

static void product_item(void *arg, int item, int thread)
{
    const struct bench *b = arg;
    struct kn_matmul m = b->m;

    m.w.data = b->weights + (size_t)item * b->mat_bytes;
    m.y += (size_t)thread * MOST_ROWS * N_OUT;
    b->ops->matmul(&m, 0, N_PANEL);
}

static void repack_item(void *arg, int item, int thread)
{
    const struct bench *b = arg;
    size_t at = (size_t)item * b->mat_bytes;

    (void)thread;
    b->ops->repack(b->m.w.format, b->file + at, N_OUT, N_IN, b->weights + at, 0, N_PANEL);
}

/* Random bits are valid codes; scales and floats are set to ordinary numbers. */
static void fill_weights(enum kn_format f, uint8_t *p, size_t bytes)
{
    size_t block = (size_t)kn_format_info(f)->block_bytes * KN_PANEL;

    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t u = kn_mix(i * KN_GOLDEN);

        if (f == KN_F32 || f == KN_BF16)
            u = (u & UINT64_C(0x80FF80FF80FF80FF)) | UINT64_C(0x3F003F003F003F00);
        else if (f == KN_F16)
            u = (u & UINT64_C(0x83FF83FF83FF83FF)) | UINT64_C(0x3800380038003800);
        memcpy(p + 8 * i, &u, sizeof u);
    }
    for (size_t at = 0; kn_format_info(f)->block_values > 1 && at + block <= bytes; at += block) {
        static const bool two[KN_FORMAT_COUNT] = {
            [KN_Q4_K] = true, [KN_Q5_K] = true, [KN_Q2_K] = true, [KN_Q4_1] = true, [KN_Q5_1] = true, [KN_FP8] = true
        };
        uint16_t scale[32];

        for (int i = 0; i < 32; i++)
            scale[i] = (uint16_t)(0x1800 + (at + (size_t)i * 7) % 0x400);
        if (f == KN_MXFP4)
            memset(p + at, 118 + (int)(at / block % 4), KN_PANEL);
        else if (f == KN_NVFP4)
            memset(p + at, 48 + (int)(at / block % 4), 2 * KN_PANEL), memset(p + at + block / 2, 50, 2 * KN_PANEL);
        else
            memcpy(p + at, scale, two[f] ? 64 : 32);
    }
}

static bool skipped(const char *only, enum kn_isa isa)
{
    if (only && strcasecmp(only, "best") == 0)
        return isa != kn_isa_best();
    return only && strcasecmp(only, kn_isa_name(isa)) != 0;
}

struct row_counts {
    int n, row[MAX_ROW_COUNTS];
};

static void products(struct kn_team *const team[2], struct bench *b, const char *isa_only,
                     const struct row_counts *rows)
{
    int n_mat = (int)(WEIGHT_BYTES / b->mat_bytes);

    fill_weights(b->m.w.format, b->weights, (size_t)n_mat * b->mat_bytes);
    for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++) {
        b->ops = kn_ops(isa);
        for (int i = 0; i < rows->n && !skipped(isa_only, isa); i++) {
            b->m.n_row = rows->row[i];
            for (int t = rows->row[i] > 2; t < 2; t++) {
                double rate = items_per_s(team[t], n_mat, product_item, b);
                line("matmul", kn_format_info(b->m.w.format)->name, kn_isa_name(isa), rows->row[i],
                     kn_team_size(team[t]), rate * (double)b->mat_bytes, rate * N_OUT * N_IN * rows->row[i]);
            }
        }
    }
}

#define SHARE_BYTES  ((size_t)256 << 20)
#define SHARE_ROUNDS 7

static double read_rate(struct kn_team *team, uint8_t *weights)
{
    return READ_ITEM * items_per_s_of(team, (int)(SHARE_BYTES / READ_ITEM), read_item, weights, 1);
}

static void share(struct kn_team *team, const struct bench *b, enum kn_isa isa)
{
    const double student = 2.447; /* 97.5 % of SHARE_ROUNDS - 1 degrees of freedom */
    double sum = 0, squares = 0, rates = 0, before = read_rate(team, b->weights);

    for (int i = 0; i < SHARE_ROUNDS; i++) {
        double rate = (double)b->mat_bytes *
                      items_per_s_of(team, (int)(SHARE_BYTES / b->mat_bytes), product_item, (void *)b, 1);
        double after = read_rate(team, b->weights), ratio = log(2 * rate / (before + after));

        sum += ratio;
        squares += ratio * ratio;
        rates += rate;
        before = after;
    }
    double mean = sum / SHARE_ROUNDS, variance = (squares - sum * mean) / (SHARE_ROUNDS - 1);
    double half = student * sqrt(fmax(variance, 0) / SHARE_ROUNDS);
    printf("%s,%s,%d,%d,%.2f,%.3f,%.3f,%.3f\n", kn_format_info(b->m.w.format)->name, kn_isa_name(isa), b->m.n_row,
           kn_team_size(team), rates / SHARE_ROUNDS * 1e-9, exp(mean), exp(mean - half), exp(mean + half));
    fflush(stdout);
}

static void shares(struct kn_team *team, struct bench *b, const char *isa_only, const struct row_counts *rows)
{
    fill_weights(b->m.w.format, b->weights, SHARE_BYTES);
    for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++) {
        b->ops = kn_ops(isa);
        for (int i = 0; i < rows->n && !skipped(isa_only, isa); i++) {
            b->m.n_row = rows->row[i];
            share(team, b, isa);
        }
    }
}

static void repacks(struct kn_team *const team[2], struct bench *b, const char *isa_only)
{
    int n_mat = (int)(WEIGHT_BYTES / 2 / b->mat_bytes);

    b->file = b->weights + WEIGHT_BYTES / 2;
    for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++) {
        b->ops = kn_ops(isa);
        for (int t = 0; t < 2 && !skipped(isa_only, isa); t++) {
            double rate = items_per_s(team[t], n_mat, repack_item, b);
            line("repack", kn_format_info(b->m.w.format)->name, kn_isa_name(isa), 0, kn_team_size(team[t]),
                 rate * (double)b->mat_bytes, 0);
        }
    }
}

enum figures { PRODUCTS, PRODUCTS_AND_REPACKS, SHARES };

static void format_figures(struct kn_team *const team[2], enum kn_format f, struct bench *b, const float *x,
                           uint8_t *act, const char *isa_only, const struct row_counts *rows, enum figures figures)
{
    enum kn_act kind = kn_format_info(f)->act;
    size_t stride = kn_act_bytes(kind, N_IN);

    for (int r = 0; r < MOST_ROWS; r++)
        kn_ops(KN_ISA_SCALAR)->quantize(kind, x + (size_t)r * N_IN, N_IN, act + (size_t)r * stride);
    b->mat_bytes = kn_mat_bytes(f, N_OUT, N_IN);
    b->m.w = (struct kn_mat){ f, N_OUT, N_IN, 1, NULL };
    b->m.x = act;
    b->m.x_stride = stride;
    if (figures == SHARES)
        shares(team[1], b, isa_only, rows);
    else
        products(team, b, isa_only, rows);
    if (figures == PRODUCTS_AND_REPACKS)
        repacks(team, b, isa_only);
}

/* Is `name` an item of a comma-separated list? A NULL list contains every name. */
static bool is_listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    const char *comma;

    for (const char *item = list; item; item = (comma = strchr(item, ',')) ? comma + 1 : NULL)
        if (strncasecmp(item, name, n) == 0 && (item[n] == 0 || item[n] == ','))
            return true;
    return !list;
}

static bool formats_exist(const char *list)
{
    int n_item = 1, n_listed = 0;

    for (const char *p = list; *p; p++)
        n_item += *p == ',';
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        n_listed += is_listed(list, kn_format_info((enum kn_format)f)->name);
    return n_item == n_listed;
}

static bool parse_row_counts(const char *list, struct row_counts *rows)
{
    rows->n = 0;
    for (char *end = NULL; rows->n < MAX_ROW_COUNTS; list = end + 1) {
        long row = strtol(list, &end, 10);

        if (end == list || row < 1 || row > MOST_ROWS || (*end && *end != ','))
            return false;
        rows->row[rows->n++] = (int)row;
        if (!*end)
            return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    const size_t n_x = (size_t)MOST_ROWS * N_IN;
    const bool only_shares = argc > 1 && strcmp(argv[1], "share") == 0;
    const enum figures figures = only_shares ? SHARES : argc > 3 ? PRODUCTS : PRODUCTS_AND_REPACKS;

    argc -= only_shares;
    argv += only_shares;
    const char *formats = argc > 1 ? argv[1] : NULL, *isa = argc > 2 ? argv[2] : NULL;
    struct row_counts rows = { 14, { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 31, 32, 96 } };
    struct kn_team *team[2];
    float *x = kn_map(n_x * sizeof *x, -1);
    uint8_t *act = kn_map(n_x * sizeof *x, -1);
    struct bench b = { .weights = kn_map(WEIGHT_BYTES, -1), .m.y_stride = N_OUT };

    if (only_shares)
        rows = (struct row_counts){ 3, { 1, 2, 4 } };
    if (formats && strcmp(formats, "all") == 0)
        formats = NULL;
    if (formats && !formats_exist(formats)) {
        fprintf(stderr, "kernels: %s: an unknown or repeated format\n", formats);
        return 2;
    }
    if (argc > 3 && !parse_row_counts(argv[3], &rows)) {
        fprintf(stderr, "kernels: %s: at most %d numbers of rows from 1 to %d\n", argv[3], MAX_ROW_COUNTS, MOST_ROWS);
        return 2;
    }
    if (kn_team_open(&team[0], 1) || kn_team_open(&team[1], 0))
        return 2;
    b.m.y = kn_map((size_t)kn_team_size(team[1]) * MOST_ROWS * N_OUT * sizeof *b.m.y, -1);
    if (!b.weights || !act || !x || !b.m.y)
        return 2;

    memset(b.weights, 1, WEIGHT_BYTES);
    for (size_t i = 0; i < n_x; i++)
        x[i] = (float)(int32_t)(kn_mix(i * KN_GOLDEN) >> 32) * 0x1p-31f;
    if (only_shares) {
        printf("format,isa,rows,threads,GB_per_s,of_read,of_read_low,of_read_high\n");
    } else {
        printf("what,format,isa,rows,threads,GB_per_s,GMAC_per_s\n");
        machine(team[0], b.weights);
        machine(team[1], b.weights);
    }
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        if (is_listed(formats, kn_format_info((enum kn_format)f)->name))
            format_figures(team, (enum kn_format)f, &b, x, act, isa, &rows, figures);
    kn_team_close(team[0]);
    kn_team_close(team[1]);
    return 0;
}
