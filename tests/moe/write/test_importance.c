/* Importance matrices: both forms of llama.cpp are read and weight the errors of quantize; files that do not fit are refused;
 * a collector's sums are those of the rows that each matrix read.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/moe.h"
#include "tests/faults.h"
#include "tests/moe/folder.h"

#define N_TOK  40
#define ROWS   7 /* of a batch */
#define N_LIST 128

static char from[128], to[128], matrix_path[128];
static struct moe_quantized done[N_LIST];

static void make_model(const char *shape, int n_layer, enum kn_format f)
{
    struct moe_synth_options opt = { .shape = shape, .n_layer = n_layer, .n_vocab = 400, .format = f, .seed = 3 };
    kn_log_set(NULL, KN_LOG_ERROR);
    snprintf(from, sizeof from, "%s/from.gguf", folder);
    snprintf(to, sizeof to, "%s/to.gguf", folder);
    snprintf(matrix_path, sizeof matrix_path, "%s/imatrix", folder);
    assert_int_equal(kn_team_open(&opt.team, 1), 0);
    assert_int_equal(moe_synth(from, &opt), 0);
    kn_team_close(opt.team);
}

/* ---- files ----------------------------------------------------------------------------------- */

struct entry {
    const char *name;
    int n_in, n_matrix;
};

/* The sum of a column: columns differ by up to 8, and each matrix has its own. */
static float sum_at(int matrix, int column) { return (float)(1 << (column * 5 + matrix * 3) % 4); }

static void write_gguf(const char *type, const struct entry *e, int n)
{
    struct moe_writer *w;
    char name[128];
    remove(matrix_path);
    assert_int_equal(moe_writer_open(&w, matrix_path), 0);
    moe_writer_string(w, "general.type", type, strlen(type));
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.in_sum2", e[i].name);
        moe_writer_tensor(w, name, KN_F32, 2, (uint64_t[4]){ (uint64_t)e[i].n_in, (uint64_t)e[i].n_matrix, 1, 1 });
        snprintf(name, sizeof name, "%s.counts", e[i].name);
        moe_writer_tensor(w, name, KN_F32, 2, (uint64_t[4]){ 1, (uint64_t)e[i].n_matrix, 1, 1 });
    }
    moe_writer_header(w);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < e[i].n_in * e[i].n_matrix; k++)
            moe_writer_data(w, &(float){ sum_at(k / e[i].n_in, k % e[i].n_in) }, sizeof(float));
        for (int k = 0; k < e[i].n_matrix; k++)
            moe_writer_data(w, &(float){ 5 }, sizeof(float));
    }
    assert_int_equal(moe_writer_finish(w), 0);
    moe_writer_close(w);
}

static void write_dat(const struct entry *e, int n)
{
    FILE *f = fopen(matrix_path, "wb");
    fwrite(&n, 4, 1, f);
    for (int i = 0; i < n; i++) {
        int length = (int)strlen(e[i].name), calls = 3, n_value = e[i].n_in * e[i].n_matrix;
        fwrite(&length, 4, 1, f);
        fwrite(e[i].name, 1, (size_t)length, f);
        fwrite(&calls, 4, 1, f);
        fwrite(&n_value, 4, 1, f);
        for (int k = 0; k < n_value; k++)
            fwrite(&(float){ 3 * sum_at(k / e[i].n_in, k % e[i].n_in) }, 4, 1, f);
    }
    fwrite((int[2]){ 9, 0 }, 4, 2, f); /* number of chunks, an empty name */
    fclose(f);
}

static const struct entry some[] = { { "blk.0.attn_q.weight", 256, 1 }, { "blk.1.ffn_up_exps.weight", 256, 12 } };

static void write_form(int form, const struct entry *e, int n)
{
    if (form)
        write_dat(e, n);
    else
        write_gguf("imatrix", e, n);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void both_forms_are_read(void **state)
{
    (void)state;
    struct moe_file *f;
    make_model("tiny", 2, KN_F16);
    assert_int_equal(moe_file_open(&f, from), 0);
    for (int form = 0; form < 2; form++) {
        struct moe_importance *m;
        write_form(form, some, 2);
        assert_int_equal(moe_importance_open(&m, matrix_path), 0);
        assert_int_equal(moe_importance_check(m, moe_file_find_tensor(f, "blk.0.attn_k.weight")), 0);
        for (int i = 0; i < 2; i++) {
            static float w[256 * 12];
            const struct moe_tensor *t = moe_file_find_tensor(f, some[i].name);
            assert_int_equal(moe_importance_check(m, t), 1);
            assert_int_equal(moe_importance_read(m, t, w), 0);
            for (int k = 0; k < 256 * some[i].n_matrix; k++) /* the mean of 1, 2, 4, 8 is 15 / 4 */
                assert_true(fabsf(w[k] - sum_at(k / 256, k % 256) / 3.75f) < 1e-6f);
        }
        moe_importance_close(m);
    }
    moe_file_close(f);
}

static struct moe_quantize_options all_in(enum kn_format f)
{
    struct moe_quantize_options opt = { .ops = kn_ops(KN_ISA_COUNT - 1), .requantize = true };
    for (int i = 0; i < MOE_PART_COUNT; i++)
        opt.format[i] = f;
    return opt;
}

static int quantize_model(enum kn_format format, const char *importance)
{
    struct moe_quantize_options opt = all_in(format);
    struct moe_importance *m = NULL;
    struct moe_file *f;
    int err = importance ? moe_importance_open(&m, importance) : 0;
    if (err)
        return err;
    opt.importance = m;
    assert_int_equal(kn_team_open(&opt.team, 2), 0);
    assert_int_equal(moe_file_open(&f, from), 0);
    assert_true(moe_file_tensor_count(f) <= N_LIST);
    err = moe_quantize(to, f, &opt, done);
    moe_file_close(f);
    moe_importance_close(m);
    kn_team_close(opt.team);
    return err;
}

/* The squared error of tensor `name` in `to`, each column weighted by its sum. */
static double weighted_error(const char *name)
{
    struct moe_file *a, *b;
    double error = 0;
    assert_int_equal(moe_file_open(&a, from), 0);
    assert_int_equal(moe_file_open(&b, to), 0);
    const struct moe_tensor *s = moe_file_find_tensor(a, name), *t = moe_file_find_tensor(b, name);
    int n_in = (int)t->dim[0], n_out = (int)t->dim[1];
    enum kn_format was, is;
    kn_format_from_gguf(s->gguf_type, &was);
    kn_format_from_gguf(t->gguf_type, &is);
    for (int r = 0; r < n_out * (int)t->dim[2]; r++) {
        static uint8_t row[4096];
        static float x[1024], y[1024];
        size_t n = kn_row_bytes(was, n_in), m = kn_row_bytes(is, n_in);
        assert_int_equal(moe_file_read(a, s, (uint64_t)r * n, row, n), 0);
        kn_row_decode(was, row, n_in, x);
        assert_int_equal(moe_file_read(b, t, (uint64_t)r * m, row, m), 0);
        kn_row_decode(is, row, n_in, y);
        for (int k = 0; k < n_in; k++)
            error += (double)sum_at(r / n_out, k) * (double)(x[k] - y[k]) * (double)(x[k] - y[k]);
    }
    moe_file_close(a);
    moe_file_close(b);
    return error;
}

/* Weighted errors fall, in a stack for each matrix by its own weights; matrices without an entry do not change. */
static void quantize_weights_errors(void **state)
{
    (void)state;
    static const enum kn_format formats[] = { KN_Q4_K, KN_Q2_K,   KN_Q3_K,   KN_Q6_K,
                                              KN_Q4_0, KN_IQ4_XS, KN_IQ2_XS, KN_IQ3_S };
    make_model("tiny", 2, KN_F16);
    write_form(0, some, 2);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        double before[2], other;
        assert_int_equal(quantize_model(formats[i], NULL), 0);
        for (int k = 0; k < 2; k++)
            before[k] = weighted_error(some[k].name);
        other = weighted_error("blk.0.attn_output.weight");
        faults_reset();
        assert_int_equal(quantize_model(formats[i], matrix_path), 0);
        assert_non_null(
            strstr(faults.line, "matrices, 'token_embd.weight' the first: in these all columns count the same"));
        faults_off();
        for (int k = 0; k < 2; k++)
            if (!(weighted_error(some[k].name) < 0.97 * before[k]))
                fail_msg("%s, %s: weighted error %g, without weights %g", kn_format_info(formats[i])->name,
                         some[k].name, weighted_error(some[k].name), before[k]);
        assert_true(!(weighted_error("blk.0.attn_output.weight") > other) &&
                    !(weighted_error("blk.0.attn_output.weight") < other));
    }
}

/* Refused, with this text and without an output file. */
static void refuses(const char *text)
{
    remove(to);
    faults_reset();
    assert_true(quantize_model(KN_Q4_K, matrix_path) < 0);
    if (!strstr(faults.line, text))
        fail_msg("'%s' does not say '%s'", faults.line, text);
    assert_int_equal(faults.n_line, 1);
    assert_int_not_equal(access(to, F_OK), 0);
    faults_off();
}

static void bad_values_are_refused(void)
{
    static const float bad[] = { -1, NAN, INFINITY };
    for (int i = 0; i < 3; i++) {
        static float w[256];
        struct moe_importance *m;
        struct moe_file *model;
        write_form(1, some, 2);
        FILE *f = fopen(matrix_path, "r+b");
        fseek(f, 4 + 4 + (long)strlen(some[0].name) + 8 + 12, SEEK_SET);
        fwrite(&bad[i], 4, 1, f);
        fclose(f);
        assert_int_equal(moe_importance_open(&m, matrix_path), 0);
        assert_int_equal(moe_file_open(&model, from), 0);
        faults_reset();
        assert_int_equal(moe_importance_read(m, moe_file_find_tensor(model, some[0].name), w), KN_ECORRUPT);
        assert_non_null(
            strstr(faults.line, "entry 'blk.0.attn_q.weight' has negative sums or sums that are not finite"));
        faults_off();
        moe_file_close(model);
        moe_importance_close(m);
    }
}

static void files_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct entry narrow = { "blk.0.attn_q.weight", 128, 2 }, few = { "blk.1.ffn_up_exps.weight", 256, 4 },
                              unknown = { "blk.0.attn_x.weight", 256, 1 };
    make_model("tiny", 2, KN_F16);
    for (int form = 0; form < 2; form++) {
        write_form(form, &few, 1);
        refuses("entry 'blk.1.ffn_up_exps.weight' has 1024 values, the model's matrix has 256 columns in 12 matrices");
        write_form(form, &unknown, 1);
        refuses("has no entry for 'token_embd.weight' or any other matrix");
    }
    write_form(0, &narrow, 1);
    refuses("entry 'blk.0.attn_q.weight' has 256 values, the model's matrix has 256 columns in 1 matrices");
    write_gguf("model", some, 2);
    refuses("no importance matrix: its general.type is not imatrix");
    write_form(0, NULL, 0);
    refuses("has no entries");
    write_form(1, some, 2);
    assert_int_equal(truncate(matrix_path, 1500), 0);
    refuses("entry 1 goes on after the end of the file");
    FILE *f = fopen(matrix_path, "wb");
    fputs("plain text", f);
    fclose(f);
    refuses("is no valid number of entries");
    bad_values_are_refused();
}

/* ---- collecting ------------------------------------------------------------------------------ */

/* Runs N_TOK tokens in batches of n_row, and writes the importance matrix. */
static void collect(int n_row, struct moe_collected *out)
{
    struct kn_team *team;
    struct moe_file *f;
    struct moe_model *m;
    struct moe_collector *c;
    struct moe_context *context;
    static int32_t slot[N_TOK];
    assert_int_equal(kn_team_open(&team, 1), 0);
    assert_int_equal(moe_file_open(&f, from), 0);
    assert_int_equal(moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 }), 0);
    assert_int_equal(moe_collector_open(&c, m), 0);
    assert_int_equal(moe_model_load(m, &(struct moe_load_options){ .team = team, .io = OFF_IO_PREAD }), 0);
    assert_int_equal(moe_context_open(&context, m,
                                      &(struct moe_context_options){ .max_row = n_row,
                                                                     .max_want = n_row,
                                                                     .n_slot = N_TOK,
                                                                     .max_pos = N_TOK,
                                                                     .team = team,
                                                                     .device = moe_collector_device(c) }),
                     0);
    for (int at = 0; at < N_TOK; at += n_row) {
        struct moe_row row[N_TOK];
        struct moe_result result;
        int n = kn_min(n_row, N_TOK - at);
        for (int i = 0; i < n; i++) {
            slot[at + i] = at + i;
            row[i] = (struct moe_row){
                .token = (at + i) * 7 % 400, .position = at + i, .want_logits = true, .base = slot, .n_base = N_TOK
            };
        }
        assert_int_equal(moe_forward(context, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
        assert_int_equal(moe_rows_status(&result, 0, n), 0);
    }
    remove(matrix_path);
    assert_int_equal(moe_collector_write(c, matrix_path, &(struct moe_calibration){ "text", 1, N_TOK }, out), 0);
    moe_context_close(context);
    moe_collector_close(c);
    moe_model_close(m);
    moe_file_close(f);
    kn_team_close(team);
}

static float *read_floats(const struct moe_file *f, const char *name, size_t n)
{
    const struct moe_tensor *t = moe_file_find_tensor(f, name);
    float *x = calloc(n, sizeof *x);
    if (!t)
        fail_msg("%s is missing", name);
    assert_int_equal(t->bytes, n * sizeof *x);
    assert_int_equal(moe_file_read(f, t, 0, x, t->bytes), 0);
    return x;
}

/* A row that leaves a norm has a mean square of 1 before the norm's weights.  So the sums of each matrix that reads norms,
 * divided by the squares of the weights, add up to the number of rows times their length. */
static double check_norm(const struct moe_file *model, const struct moe_file *f, const char *name, const char *norm,
                         int n_matrix)
{
    char key[128];
    size_t n_in = (size_t)moe_file_find_tensor(model, norm)->dim[0], n = (size_t)n_matrix;
    snprintf(key, sizeof key, "%s.in_sum2", name);
    float *sum = read_floats(f, key, n_in * n), *weight = read_floats(model, norm, n_in);
    snprintf(key, sizeof key, "%s.counts", name);
    float *count = read_floats(f, key, n);
    double all = 0;
    for (size_t i = 0; i < n; i++, all += (double)count[i - 1]) {
        double total = 0, want = (double)count[i] * (double)n_in;
        for (size_t k = 0; k < n_in; k++)
            total += (double)sum[i * n_in + k] / ((double)weight[k] * (double)weight[k]);
        if (!(fabs(total - want) <= 1e-3 * want))
            fail_msg("%s, matrix %d: sums of %g, want %g", name, (int)i, total, want);
    }
    free(sum);
    free(weight);
    free(count);
    return all;
}

#ifdef __SANITIZE_ADDRESS__
#define FIRST_FORMAT 1 /* Q8_0 alone: BF16 takes the same way */
#else
#define FIRST_FORMAT 0
#endif

static void sums_are_those_of_the_rows(void **state)
{
    (void)state;
    static const struct {
        const char *shape;
        const struct {
            const char *name, *norm;
            int n_matrix, n_row;
        } check[6];
    } cases[] = {
        { "tiny",
          { { "blk.0.attn_q.weight", "blk.0.attn_norm.weight", 1, N_TOK },
            { "blk.1.attn_v.weight", "blk.1.attn_norm.weight", 1, N_TOK },
            { "blk.1.ffn_gate_exps.weight", "blk.1.ffn_norm.weight", 12, 3 * N_TOK },
            { "blk.0.ffn_up_exps.weight", "blk.0.ffn_norm.weight", 12, 3 * N_TOK },
            { "output.weight", "output_norm.weight", 1, N_TOK } } },
        { "tiny-dense",
          { { "blk.1.attn_k.weight", "blk.1.attn_norm.weight", 1, N_TOK },
            { "blk.1.ffn_up.weight", "blk.1.ffn_norm.weight", 1, N_TOK } } },
        { "tiny-deepseek2", { { "blk.2.attn_kv_a_mqa.weight", "blk.2.attn_norm.weight", 1, N_TOK } } },
        { "tiny-qwen3next", { { "blk.0.attn_qkv.weight", "blk.0.attn_norm.weight", 1, N_TOK } } },
        { "tiny-phi3",
          { { "blk.1.attn_qkv.weight", "blk.1.attn_norm.weight", 1, N_TOK },
            { "blk.1.ffn_up.weight", "blk.1.ffn_norm.weight", 1, N_TOK } } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int q8 = FIRST_FORMAT; q8 < 2; q8++) {
            char *first = NULL; /* the matrix of other batches: the same bytes */
            size_t n_first = 0;
            make_model(cases[i].shape, 4, q8 ? KN_Q8_0 : KN_BF16);
            for (int n_row = ROWS; n_row <= N_TOK; n_row += N_TOK - ROWS) {
                struct moe_file *model, *f;
                struct moe_collected result;
                collect(n_row, &result);
                size_t n;
                char *bytes = (char *)folder_read(matrix_path, &n);
                if (first) {
                    assert_int_equal(n, n_first);
                    assert_memory_equal(bytes, first, n);
                }
                free(first);
                first = bytes;
                n_first = n;
                assert_int_equal(moe_file_open(&model, from), 0);
                assert_int_equal(moe_file_open(&f, matrix_path), 0);
                for (int k = 0; k < 6 && cases[i].check[k].name; k++)
                    assert_int_equal(check_norm(model, f, cases[i].check[k].name, cases[i].check[k].norm,
                                                cases[i].check[k].n_matrix),
                                     cases[i].check[k].n_row);
                assert_int_equal(result.n_matrix, moe_file_tensor_count(f) / 2);
                for (size_t k = 0; k < moe_file_tensor_count(f); k++)
                    assert_false(
                        memmem(moe_file_tensor(f, k)->name.data, moe_file_tensor(f, k)->name.n, "gate_inp", 8));
                moe_file_close(f);
                moe_file_close(model);
            }
            free(first);
            assert_int_equal(quantize_model(KN_Q4_K, matrix_path), 0);
        }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_are_read),
        cmocka_unit_test(quantize_weights_errors),
        cmocka_unit_test(files_that_do_not_fit_are_refused),
        cmocka_unit_test(sums_are_those_of_the_rows),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
