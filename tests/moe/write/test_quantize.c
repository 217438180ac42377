/* Quantizing a model's file: the output has the requested formats, the reported errors are those of
 * the written bytes, the bytes do not depend on the thread count, and an unfinished file never
 * appears.
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
#include "tests/moe/change.h"
#include "tests/faults.h"
#include "tests/moe/folder.h"

#define MOST_TENSOR 64
#ifdef __SANITIZE_ADDRESS__ /* test_encode runs every format's encoder on every instruction set there */
#define FORMAT_STEP 3
#define THREAD_STEP 3
#else
#define FORMAT_STEP 1
#define THREAD_STEP 1
#endif

static char from[128], to[128];
static struct moe_quantized done[MOST_TENSOR];

static struct kn_team *team_of(int n)
{
    struct kn_team *team;
    assert_int_equal(kn_team_open(&team, n), 0);
    return team;
}

static struct moe_quantize_options all_in(enum kn_format f)
{
    struct moe_quantize_options opt = { .ops = kn_ops(KN_ISA_COUNT - 1) };
    for (int i = 0; i < MOE_PART_COUNT; i++)
        opt.format[i] = f;
    return opt;
}

/* Makes `from`, a model of a shape: F16 except for synth's Q8_0 tensors, then all F32. */
static void make_source(const char *shape)
{
    struct moe_synth_options so = { .shape = shape, .n_layer = 1, .n_vocab = 400, .format = KN_F16, .seed = 3 };
    struct moe_quantize_options opt = all_in(KN_F32);
    struct moe_file *f;
    kn_log_set(NULL, KN_LOG_ERROR);
    snprintf(from, sizeof from, "%s/from.gguf", folder);
    snprintf(to, sizeof to, "%s/to.gguf", folder);
    so.team = opt.team = team_of(2);
    opt.requantize = true;
    assert_int_equal(moe_synth(path, &so), 0);
    assert_int_equal(moe_file_open(&f, path), 0);
    assert_int_equal(moe_quantize(from, f, &opt, done), 0);
    moe_file_close(f);
    kn_team_close(so.team);
    remove(path);
}

static int quantize_file(const char *source, struct moe_quantize_options opt, int n_thread)
{
    struct moe_file *f = NULL;
    int err = kn_team_open(&opt.team, n_thread);
    if (!err)
        err = moe_file_open(&f, source);
    if (!err) {
        assert_true(moe_file_tensor_count(f) <= MOST_TENSOR);
        err = moe_quantize(to, f, &opt, done);
    }
    moe_file_close(f);
    kn_team_close(opt.team);
    return err;
}

static bool exists(const char *name) { return access(name, F_OK) == 0; }

static int count_in_folder(void)
{
    char command[160];
    int n = -1;
    snprintf(command, sizeof command, "ls '%s' | wc -l", folder);
    FILE *f = popen(command, "r");
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

/* ---- the output ------------------------------------------------------------------------------ */

static float *values_of(const struct moe_file *f, const struct moe_tensor *t, size_t *n)
{
    enum kn_format format;
    const struct off_files *files = moe_file_files(f);
    assert_int_equal(kn_format_from_gguf(t->gguf_type, &format), 0);
    *n = t->dim[0] * t->dim[1] * t->dim[2];
    uint8_t *raw = malloc(t->bytes);
    float *x = malloc(*n * sizeof *x);
    assert_int_equal(kn_file_read(files->fd[t->file], files->path[t->file], raw, t->bytes, t->offset), 0);
    kn_row_decode(format, raw, (int)*n, x);
    free(raw);
    char name[80];
    snprintf(name, sizeof name, "%.*s.scale", (int)(t->name.n - strlen(".weight")), t->name.data);
    const struct moe_tensor *scale = moe_file_find_tensor(f, name);
    float *factor = scale ? malloc(scale->bytes) : NULL;
    if (scale)
        assert_int_equal(moe_file_read(f, scale, 0, factor, scale->bytes), 0);
    for (size_t i = 0; i < *n && scale; i++)
        x[i] *= factor[i / (*n / scale->dim[0])];
    free(factor);
    return x;
}

static void assert_same_value(const struct moe_value *a, const struct moe_value *b)
{
    assert_non_null(b);
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->item, b->item);
    assert_int_equal(a->n, b->n);
    if (a->item != MOE_STRING) {
        assert_memory_equal(a->data, b->data, a->n * change_bytes[a->item]);
        return;
    }
    const struct moe_string *x = a->data, *y = b->data;
    for (size_t i = 0; i < a->n; i++) {
        assert_int_equal(x[i].n, y[i].n);
        assert_memory_equal(x[i].data, y[i].data, x[i].n);
    }
}

static void assert_same_metadata(const struct moe_file *a, const struct moe_file *b, int64_t file_type)
{
    int64_t type = -1, version = -1;
    for (size_t i = 0; i < moe_file_value_count(a); i++) {
        const struct moe_value *v = moe_file_value(a, i);
        char key[96];
        snprintf(key, sizeof key, "%.*s", (int)v->key.n, v->key.data);
        if (strcmp(key, "general.file_type"))
            assert_same_value(v, moe_file_find(b, key));
    }
    assert_int_equal(moe_file_value_count(a), moe_file_value_count(b));
    assert_int_equal(moe_file_int(b, "general.file_type", 0, 99, &type), 1);
    assert_int_equal(moe_file_int(b, "general.quantization_version", 0, 99, &version), 1);
    assert_int_equal(type, file_type);
    assert_int_equal(version, 2);
}

/* Formats as requested, shapes unchanged, and the reported error is the measured one. */
static void assert_tensors(const struct moe_file *a, const struct moe_file *b)
{
    size_t n_scale = 0;
    for (size_t i = moe_file_tensor_count(a); i < moe_file_tensor_count(b); i++, n_scale++)
        assert_true(memmem(moe_file_tensor(b, i)->name.data, moe_file_tensor(b, i)->name.n, ".scale", 6));
    for (size_t i = 0; i < moe_file_tensor_count(a); i++)
        n_scale -= done[i].to == KN_NVFP4;
    assert_int_equal(n_scale, 0);
    for (size_t i = 0; i < moe_file_tensor_count(a); i++) {
        const struct moe_tensor *s = moe_file_tensor(a, i), *t = moe_file_tensor(b, i);
        size_t n, m;
        float *x = values_of(a, s, &n), *y = values_of(b, t, &m);
        double error = 0, square = 0;
        for (size_t k = 0; k < n; k++) {
            error += ((double)x[k] - (double)y[k]) * ((double)x[k] - (double)y[k]);
            square += (double)x[k] * (double)x[k];
        }
        assert_int_equal(n, m);
        assert_int_equal(n, done[i].n_value);
        assert_int_equal(s->name.n, t->name.n);
        assert_memory_equal(s->name.data, t->name.data, t->name.n);
        assert_memory_equal(s->dim, t->dim, sizeof s->dim);
        assert_int_equal(t->gguf_type, kn_format_info(done[i].to)->gguf_type);
        assert_int_equal(t->bytes, done[i].bytes);
        if (fabs(error - done[i].error) > 1e-6 * error || fabs(square - done[i].square) > 1e-9 * square)
            fail_msg("tensor %zu: error %g of %g, told %g of %g", i, error, square, done[i].error, done[i].square);
        free(x);
        free(y);
    }
}

static void assert_format(const struct moe_file *f, const char *name, const char *type)
{
    const struct moe_tensor *t = moe_file_find_tensor(f, name);
    assert_non_null(t);
    if (strcmp(moe_tensor_type(t->gguf_type)->name, type))
        fail_msg("%s is %s, not %s", name, moe_tensor_type(t->gguf_type)->name, type);
}

static void every_format_is_written(void **state)
{
    (void)state;
    static const int64_t file_type[KN_FORMAT_COUNT] = {
        [KN_F32] = 0,    [KN_F16] = 1,      [KN_BF16] = 32,   [KN_Q8_0] = 7,    [KN_Q4_K] = 15,    [KN_Q6_K] = 18,
        [KN_MXFP4] = 38, [KN_Q4_0] = 2,     [KN_Q4_1] = 3,    [KN_Q5_0] = 8,    [KN_Q5_1] = 9,     [KN_Q5_K] = 17,
        [KN_Q2_K] = 10,  [KN_Q3_K] = 12,    [KN_IQ4_NL] = 25, [KN_IQ4_XS] = 30, [KN_IQ2_XXS] = 19, [KN_IQ2_XS] = 20,
        [KN_IQ2_S] = 28, [KN_IQ3_XXS] = 23, [KN_IQ3_S] = 26,  [KN_IQ1_S] = 24,  [KN_IQ1_M] = 31,   [KN_NVFP4] = 39,
    };
    static const double most[KN_FORMAT_COUNT] = { 0,    4e-4, 3e-3,  8e-3,  0.09, 0.022, 0.12, 0.1,
                                                  0.09, 0.05, 0.045, 0.045, 0.3,  0.18,  0.09, 0.09,
                                                  0.35, 0.31, 0.26,  0.2,   0.15, 0.7,   0.7,  0.1 };
    make_source("tiny");
    for (int i = 0; i < KN_GGUF_FORMAT_COUNT; i += FORMAT_STEP) {
        struct moe_file *a, *b;
        const char *name = kn_format_info((enum kn_format)i)->name;
        assert_int_equal(quantize_file(from, all_in((enum kn_format)i), 2), 0);
        assert_int_equal(moe_file_open(&a, from), 0);
        assert_int_equal(moe_file_open(&b, to), 0);
        assert_same_metadata(a, b, file_type[i]);
        assert_tensors(a, b);
        assert_format(b, "token_embd.weight", name);
        assert_format(b, "output.weight", name);
        assert_format(b, "blk.0.attn_k.weight", name);
        assert_format(b, "blk.0.ffn_down_exps.weight", name);
        assert_format(b, "blk.0.attn_k_norm.weight", "F32");
        assert_format(b, "blk.0.ffn_gate_inp.weight", "F32");
        for (size_t k = 0; k < moe_file_tensor_count(a); k++)
            assert_true(done[k].error <= most[done[k].to] * most[done[k].to] * done[k].square);
        moe_file_close(a);
        moe_file_close(b);
    }
}

static void every_part_has_its_own_format(void **state)
{
    (void)state;
    struct moe_quantize_options opt = all_in(KN_BF16);
    struct moe_file *f;
    make_source("tiny");
    opt.format[MOE_EXPERTS] = KN_Q4_K;
    opt.format[MOE_ATTENTION] = KN_Q8_0;
    opt.format[MOE_HEAD] = KN_Q6_K;
    opt.format[MOE_EMBEDDING] = KN_F16;
    assert_int_equal(quantize_file(from, opt, 2), 0);
    assert_int_equal(moe_file_open(&f, to), 0);
    assert_format(f, "blk.0.ffn_up_exps.weight", "Q4_K");
    assert_format(f, "blk.0.attn_output.weight", "Q8_0");
    assert_format(f, "output.weight", "Q6_K");
    assert_format(f, "token_embd.weight", "F16");
    moe_file_close(f);

    make_source("tiny-dense");
    assert_int_equal(quantize_file(from, opt, 2), 0);
    assert_int_equal(moe_file_open(&f, to), 0);
    assert_format(f, "blk.0.ffn_up.weight", "BF16");
    moe_file_close(f);
}

static void rows_that_are_no_whole_blocks_fall_back(void **state)
{
    (void)state;
    struct moe_file *f;
    make_source("tiny-odd");
    faults_reset();
    assert_int_equal(quantize_file(from, all_in(KN_Q6_K), 1), 0);
    assert_int_equal(faults.n_line, 2); /* a line for a kind: rows of 192, of 200 */
    assert_non_null(
        strstr(faults.line, "token_embd.weight and 7 other tensors: rows of 192 values are no whole blocks"));
    faults_off();
    assert_int_equal(moe_file_open(&f, to), 0);
    assert_format(f, "blk.0.ffn_up_exps.weight", "Q8_0");
    assert_format(f, "blk.0.ffn_down_exps.weight", "F16");
    moe_file_close(f);
}

/* Writes a copy of the source with a change to `to`. */
static void change_source(const struct change *c)
{
    struct moe_file *f;
    assert_int_equal(moe_file_open(&f, from), 0);
    change_write(f, c, path);
    moe_file_close(f);
}

static void an_embedding_that_is_the_head_takes_the_wider_format(void **state)
{
    (void)state;
    for (int swap = 0; swap < 2; swap++) {
        struct moe_quantize_options opt = all_in(KN_Q4_K);
        struct moe_file *f;
        make_source("tiny");
        opt.format[swap ? MOE_HEAD : MOE_EMBEDDING] = KN_Q6_K;
        change_source(&(struct change){ .drop = "output.weight" });
        assert_int_equal(quantize_file(path, opt, 1), 0);
        assert_int_equal(moe_file_open(&f, to), 0);
        assert_format(f, "token_embd.weight", "Q6_K");
        moe_file_close(f);
        remove(path);
    }
}

static void unknown_matrices_and_biases_keep_their_values(void **state)
{
    (void)state;
    static const char *const names[] = { "blk.0.strange.weight", "blk.0.attn_q.bias" };
    for (int i = 0; i < 2; i++) {
        struct moe_file *f;
        make_source("tiny");
        change_source(&(struct change){ .tensor = "blk.0.attn_q.weight", .rename = names[i] });
        assert_int_equal(quantize_file(path, all_in(KN_Q4_K), 2), 0);
        assert_int_equal(moe_file_open(&f, to), 0);
        assert_format(f, names[i], "F32");
        moe_file_close(f);
        remove(path);
    }
}

/* ---- splits ---------------------------------------------------------------------------------- */

/* Writes every second tensor of the source to each of two splits. */
static void write_split(const struct moe_file *f, int no)
{
    char name[160];
    struct moe_writer *w;
    uint16_t number = (uint16_t)no, count = 2;
    int32_t total = (int32_t)moe_file_tensor_count(f);
    snprintf(name, sizeof name, "%s/s-%05d-of-00002.gguf", folder, no + 1);
    assert_int_equal(moe_writer_open(&w, name), 0);
    for (size_t i = 0; no == 0 && i < moe_file_value_count(f); i++)
        assert_int_equal(moe_writer_copy(w, moe_file_value(f, i)), 0);
    moe_writer_value(w, "split.no", MOE_U16, &number);
    moe_writer_value(w, "split.count", MOE_U16, &count);
    moe_writer_value(w, "split.tensors.count", MOE_I32, &total);
    size_t half = moe_file_tensor_count(f) / 2, n;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = no ? half : 0; i < (no ? (size_t)total : half); i++) {
            const struct moe_tensor *t = moe_file_tensor(f, i);
            snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.data);
            float *x = values_of(f, t, &n);
            assert_int_equal(
                pass ? moe_writer_data(w, x, n * sizeof *x) : moe_writer_tensor(w, name, KN_F32, t->n_dim, t->dim), 0);
            free(x);
        }
        if (!pass)
            assert_int_equal(moe_writer_header(w), 0);
    }
    assert_int_equal(moe_writer_finish(w), 0);
    moe_writer_close(w);
}

static void assert_same_file(const char *name, const uint8_t *want, size_t want_bytes)
{
    size_t bytes;
    uint8_t *got = folder_read(name, &bytes);
    assert_int_equal(bytes, want_bytes);
    assert_memory_equal(got, want, bytes);
    free(got);
}

static void splits_give_the_file_that_the_whole_gives(void **state)
{
    (void)state;
    char first[160];
    struct moe_file *f;
    size_t bytes;
    make_source("tiny");
    assert_int_equal(quantize_file(from, all_in(KN_Q4_K), 2), 0);
    uint8_t *want = folder_read(to, &bytes);
    assert_int_equal(moe_file_open(&f, from), 0);
    write_split(f, 0);
    write_split(f, 1);
    moe_file_close(f);
    snprintf(first, sizeof first, "%s/s-00001-of-00002.gguf", folder);
    assert_int_equal(quantize_file(first, all_in(KN_Q4_K), 2), 0);
    assert_same_file(to, want, bytes);
    free(want);
    remove(first);
    snprintf(first, sizeof first, "%s/s-00002-of-00002.gguf", folder);
    remove(first);
}

/* ---- the same bytes -------------------------------------------------------------------------- */

static void threads_and_instruction_sets_write_the_same(void **state)
{
    (void)state;
    struct moe_quantized want_done[MOST_TENSOR];
    struct moe_quantize_options opt = all_in(KN_Q4_K);
    size_t bytes;
    make_source("tiny");
    opt.format[MOE_ATTENTION] = KN_Q8_0;
    opt.format[MOE_HEAD] = KN_Q6_K;
    assert_int_equal(quantize_file(from, opt, 1), 0);
    uint8_t *want = folder_read(to, &bytes);
    memcpy(want_done, done, sizeof done);
    for (int isa = 0; isa < KN_ISA_COUNT; isa++)
        for (int n = 1 + isa % THREAD_STEP; n <= 3; n += THREAD_STEP) {
            opt.ops = kn_ops((enum kn_isa)isa);
            assert_int_equal(quantize_file(from, opt, n), 0);
            assert_same_file(to, want, bytes);
            assert_memory_equal(done, want_done, sizeof done);
        }
    free(want);
}

/* ---- quantised already ----------------------------------------------------------------------- */

static void quantised_weights_are_refused_unless_asked_for(void **state)
{
    (void)state;
    struct moe_quantize_options opt = all_in(KN_Q8_0);
    size_t bytes;
    make_source("tiny");
    assert_int_equal(quantize_file(from, opt, 2), 0);
    assert_int_equal(rename(to, path), 0);
    uint8_t *want = folder_read(path, &bytes);

    faults_reset();
    assert_int_equal(quantize_file(path, opt, 2), KN_EINVAL);
    assert_int_equal(faults.n_line, 1);
    assert_non_null(strstr(faults.line, "'token_embd.weight' is already quantised (Q8_0)"));
    assert_false(exists(to));
    faults_off();

    opt.requantize = true;
    assert_int_equal(quantize_file(path, opt, 2), 0); /* a tensor already in the format is copied */
    assert_same_file(to, want, bytes);
    free(want);
    for (int i = 0; i < MOE_PART_COUNT; i++)
        opt.format[i] = KN_Q4_K;
    struct moe_file *a, *b;
    assert_int_equal(quantize_file(path, opt, 2), 0);
    assert_int_equal(moe_file_open(&a, path), 0);
    assert_int_equal(moe_file_open(&b, to), 0);
    assert_format(b, "output.weight", "Q4_K");
    assert_tensors(a, b);
    moe_file_close(a);
    moe_file_close(b);
    remove(path);
}

/* ---- refusals and faults --------------------------------------------------------------------- */

/* Replaces the last value of the attention's output by x. */
static void poison(float x)
{
    struct moe_file *f;
    assert_int_equal(moe_file_open(&f, from), 0);
    const struct moe_tensor *t = moe_file_find_tensor(f, "blk.0.attn_output.weight");
    FILE *out = fopen(from, "r+b");
    assert_non_null(out);
    fseek(out, (long)(t->offset + t->bytes - sizeof x), SEEK_SET);
    assert_int_equal(fwrite(&x, sizeof x, 1, out), 1);
    fclose(out);
    moe_file_close(f);
}

static void what_cannot_be_written_is_refused(void **state)
{
    (void)state;
    static const struct {
        float x;
        enum kn_format f;
        const char *says;
    } kind[] = {
        { NAN, KN_Q4_K, "'blk.0.attn_output.weight' has values that are not finite" },
        { -INFINITY, KN_Q8_0, "'blk.0.attn_output.weight' has values that are not finite" },
        { 1e6f, KN_F16, "'blk.0.attn_output.weight' has values that are too large" },
    };
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        make_source("tiny");
        poison(kind[i].x);
        remove(to);
        faults_reset();
        assert_int_equal(quantize_file(from, all_in(kind[i].f), 2), KN_EINVAL);
        assert_int_equal(faults.n_line, 1);
        assert_non_null(strstr(faults.line, kind[i].says));
        assert_true(faults_clean());
        faults_off();
        assert_int_equal(count_in_folder(), 1);
    }
    make_source("tiny");
    change_source(&(struct change){ .tensor = "blk.0.attn_q.weight", .gguf_type = 34 });
    faults_reset();
    assert_int_equal(quantize_file(path, all_in(KN_Q8_0), 2), KN_EUNSUPPORTED);
    assert_non_null(strstr(faults.line, "'blk.0.attn_q.weight' has type TQ1_0 (34)"));
    faults_off();
    remove(path);
}

static void stopping_leaves_nothing(void **state)
{
    (void)state;
    atomic_bool stop = true;
    struct moe_quantize_options opt = all_in(KN_Q8_0);
    opt.stop = &stop;
    make_source("tiny");
    remove(to);
    faults_reset();
    assert_int_equal(quantize_file(from, opt, 2), KN_ECANCELLED);
    assert_int_equal(faults.n_line, 1);
    assert_true(faults_clean());
    faults_off();
    assert_int_equal(count_in_folder(), 1);
}

/* The n-th call fails, for all n: one error line, and the folder is unchanged. */
static void whatever_fails_nothing_appears(void **state)
{
    (void)state;
    make_source("tiny");
    long n = 0;
    do {
        remove(to); /* exists if the failed call was harmless */
        faults_at(FAULT_ANY, ++n, FAULT_ERROR, EIO);
        int err = quantize_file(from, all_in(KN_Q8_0), 1 + (int)(n % 2));
        if (err) {
            assert_int_equal(faults.n_line, 1);
            assert_false(exists(to));
            assert_int_equal(count_in_folder(), 1);
        }
        assert_true(faults_clean());
    } while (faults.struck && n < 5000);
    faults_off();
    assert_in_range(n, 50, 4999);
    assert_true(exists(to));
}

/* The same for calls that faults.h does not count. */
static void a_failing_sync_or_rename_leaves_nothing(void **state)
{
    (void)state;
    static const enum fault_kind kinds[] = { FAULT_SYNC, FAULT_RENAME };
    make_source("tiny");
    remove(to);
    for (int i = 0; i < 2; i++) {
        faults_at(kinds[i], 1, FAULT_ERROR, EIO);
        assert_int_equal(quantize_file(from, all_in(KN_Q8_0), 1), KN_EIO);
        assert_int_equal(faults.n_line, 1);
        assert_true(faults_clean());
        kn_io_set(NULL);
        kn_log_set(NULL, KN_LOG_ERROR);
        assert_int_equal(count_in_folder(), 1);
    }
}

static void progress_reaches_its_end(void **state)
{
    (void)state;
    struct off_progress progress = { 0 };
    struct moe_quantize_options opt = all_in(KN_Q4_K);
    opt.progress = &progress;
    make_source("tiny");
    assert_int_equal(quantize_file(from, opt, 2), 0);
    assert_true(atomic_load(&progress.total_bytes) > 1000000);
    assert_int_equal(atomic_load(&progress.done_bytes), atomic_load(&progress.total_bytes));
}

int main(void)
{
    faults.in_pieces = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_written),
        cmocka_unit_test(every_part_has_its_own_format),
        cmocka_unit_test(rows_that_are_no_whole_blocks_fall_back),
        cmocka_unit_test(an_embedding_that_is_the_head_takes_the_wider_format),
        cmocka_unit_test(unknown_matrices_and_biases_keep_their_values),
        cmocka_unit_test(splits_give_the_file_that_the_whole_gives),
        cmocka_unit_test(threads_and_instruction_sets_write_the_same),
        cmocka_unit_test(quantised_weights_are_refused_unless_asked_for),
        cmocka_unit_test(what_cannot_be_written_is_refused),
        cmocka_unit_test(stopping_leaves_nothing),
        cmocka_unit_test(whatever_fails_nothing_appears),
        cmocka_unit_test(a_failing_sync_or_rename_leaves_nothing),
        cmocka_unit_test(progress_reaches_its_end),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
