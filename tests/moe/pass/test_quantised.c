/* Quantised models against a plain forward pass in double over the same weights (tests/moe/plain.h),
 * and decoded blocks against the gguf package (tests/fixtures/quantised).
 *
 * Models are synthetic and encoded again here: synth gives all sub-blocks of a block nearly the same scale,
 * and in Q4_K a min equal to the scale, so a mix-up of the two would go undetected.
 *
 * Two comparisons, each the relative root mean square of a row's logits:
 *
 *   coded   The plain pass uses the engine's own int8 codes. Only float32 rounding is left, about
 *           1e-7, so a wrong scale, min or bit of any format is detected. A value on the edge of two codes
 *           may be rounded to the other one in some rows; their error stays within that of the codes.
 *           Later rows are affected too, so after an early such row another sequence is tried.
 *   exact   The error of 8-bit activations. A code is off by up to half a step, uniformly: step / sqrt(12),
 *           step = largest / 127. So a product has a relative error e = crest / (127 sqrt(12)), where
 *           crest = largest / rms of a block: about 2.1 for 32 normal values (e = 4.8e-3) and 2.8 for
 *           256 (6.4e-3). The head's e counts in full. A layer's halves add 0.15 of the residual
 *           each (moe/write/synth.c): attention with the errors of v and o, about 2 e; an FFN with those
 *           of gate, up and down, with a larger crest in the input, about 3 e.
 *
 * A close choice between experts may differ, so one row in four may be worse.
 *
 * One thread: not under MODE=tsan.
 *
 * test_matmul.c, test_encode.c and test_quantize.c run its code: not under MODE=asan. */
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/moe.h"
#include "tests/moe/load.h"
#include "tests/moe/plain.h"

#define N_TOK     16
#define MOST_SAME (N_TOK * 3 / 4 - 1) /* index in the sorted errors: three rows in four are no worse */
#define N_TEXT    4                   /* sequences tried until no early row has a code rounded otherwise */
#define N_VOCAB   400
#define N_LAYER   3
#define RESIDUAL  0.15
#define ROUNDING  1e-5 /* float32 over three layers, with a margin */
#define FEW_CODES 1e-3 /* one or two codes rounded otherwise */
#define REROUTED  0.3  /* one or two experts' share of a layer */

/* ---- decoded blocks --------------------------------------------------------------------------- */

static uint8_t hex_byte(const char *s)
{
    char digits[3] = { s[0], s[1], 0 };
    return (uint8_t)strtol(digits, NULL, 16);
}

static void blocks_decode_as_elsewhere(void **state)
{
    (void)state;
    static char line[8192];
    int seen[KN_FORMAT_COUNT] = { 0 };
    FILE *f = fopen("tests/fixtures/quantised/blocks.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *name = strtok(line, " "), *hex = strtok(NULL, " "), *word;
        enum kn_format format;
        uint8_t raw[256];
        float got[256];
        assert_int_equal(kn_format_find(name, &format), 0);
        const struct kn_format_info *info = kn_format_info(format);
        assert_int_equal(strlen(hex), 2 * (size_t)info->block_bytes);
        for (int i = 0; i < info->block_bytes; i++)
            raw[i] = hex_byte(hex + 2 * i);
        kn_row_decode(format, raw, info->block_values, got);
        for (int i = 0; i < info->block_values; i++) {
            word = strtok(NULL, " \n");
            assert_non_null(word);
            double want = strtod(word, NULL); /* the last rounding may differ, but for the grids' */
            if (!(fabs((double)got[i] - want) <= (format >= KN_IQ2_XXS ? 0 : 0x1p-22) * fabs(want)))
                fail_msg("%s: value %d of a block is %a, want %a", name, i, (double)got[i], want);
        }
        seen[format]++;
    }
    fclose(f);
    for (int i = KN_F16; i < KN_GGUF_FORMAT_COUNT; i++)
        assert_int_equal(seen[i], 4);
}

/* Every point of every grid. */
static void grids_are_those_of_elsewhere(void **state)
{
    (void)state;
    static char line[1 << 14];
    int n_grid = 0;
    FILE *f = fopen("tests/fixtures/quantised/grids.txt", "r");
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); n_grid++) {
        char *name = strtok(line, " "), *hex = strtok(NULL, " "), *want = strtok(NULL, " \n");
        enum kn_format format;
        uint64_t hash = UINT64_C(0xCBF29CE484222325);
        assert_int_equal(kn_format_find(name, &format), 0);
        size_t n = (size_t)kn_format_info(format)->block_bytes, n_block = strlen(hex) / 2 / n;
        assert_int_equal(strlen(hex), 2 * n * n_block);
        for (size_t b = 0; b < n_block; b++) {
            uint8_t raw[128], bytes[256 * sizeof(float)];
            float x[256];
            for (size_t i = 0; i < n; i++)
                raw[i] = hex_byte(hex + 2 * (b * n + i));
            kn_row_decode(format, raw, 256, x);
            memcpy(bytes, x, sizeof bytes);
            for (size_t i = 0; i < sizeof bytes; i++)
                hash = (hash ^ bytes[i]) * UINT64_C(0x100000001B3);
        }
        if (hash != strtoull(want, NULL, 16))
            fail_msg("%s: the values' hash is %016llx, not %s", name, (unsigned long long)hash, want);
    }
    fclose(f);
    assert_int_equal(n_grid, 7);
}

/* ---- models ------------------------------------------------------------------------------------ */

struct kind {
    const char *name;
    enum kn_format ffn, dense; /* dense: attention, embedding, head */
    enum kn_format up, down;   /* of FFNs and experts; F32: as ffn */
};

/* Rows that are not whole blocks use the fallback format of published files. */
static enum kn_format fit(enum kn_format f, int n_in)
{
    while (!kn_row_bytes(f, n_in))
        f = f == KN_Q6_K                             ? KN_Q8_0
            : f == KN_Q4_K                           ? KN_Q5_0
            : f == KN_Q5_K                           ? KN_Q5_1
            : kn_format_info(f)->block_values == 256 ? KN_IQ4_NL
                                                     : KN_F16;
    return f;
}

static enum kn_format target(const struct kind *k, const struct plain_tensor *t)
{
    if (t->n_out == 1 || strstr(t->name, "ffn_gate_inp"))
        return t->format;
    enum kn_format f = !strstr(t->name, ".ffn_")  ? k->dense
                       : strstr(t->name, "_up")   ? k->up
                       : strstr(t->name, "_down") ? k->down
                                                  : k->ffn;
    return fit(f ? f : k->ffn, t->n_in);
}

/* Gives each 16 values a size and a mean of their own, so that sub-blocks have different scales; the magnitude
 * stays about the same. */
static void vary(float *x, int n_in, uint64_t row)
{
    float rms = 0;
    for (int i = 0; i < n_in; i++)
        rms += x[i] * x[i] / (float)n_in;
    rms = sqrtf(rms);
    for (int i = 0; i < n_in; i++) {
        uint64_t h = kn_mix(row * KN_GOLDEN + (uint64_t)(i / 16));
        float size = 0.2f + (float)(h >> 40) * 0x1p-24f, mean = (float)(int8_t)h / 128 * 0.6f * rms;
        x[i] = x[i] * size + mean;
    }
}

static int write_tensor(struct moe_writer *w, const struct kind *k, const struct plain_tensor *t)
{
    enum kn_format f = target(k, t);
    size_t bytes = kn_row_bytes(f, t->n_in), n_row = (size_t)(t->n_out * t->n_mat);
    uint8_t *row = malloc(bytes);
    int error = 0;
    for (size_t r = 0; r < n_row && !error; r++) {
        float *x = t->x + r * (size_t)t->n_in;
        if (t->n_out > 1)
            vary(x, t->n_in, r);
        kn_ops(KN_ISA_COUNT - 1)->encode(f, x, NULL, (size_t)t->n_in, row);
        error = moe_writer_data(w, row, bytes);
    }
    free(row);
    return error;
}

static void copy_value(struct moe_writer *w, const struct moe_value *v)
{
    char key[128];
    const struct moe_string *s = v->data;
    snprintf(key, sizeof key, "%.*s", (int)v->key.n, v->key.data);
    if (v->type == MOE_ARRAY)
        moe_writer_array(w, key, v->item, v->data, v->n);
    else if (v->type == MOE_STRING)
        moe_writer_string(w, key, s->data, s->n);
    else
        moe_writer_value(w, key, v->type, v->data);
}

/* Writes the model of file f with the weights p, in the formats of k. */
static int encode_anew(const char *path, const struct kind *k, const struct moe_file *f, const struct plain *p)
{
    struct moe_writer *w;
    int error = moe_writer_open(&w, path);
    for (size_t i = 0; i < moe_file_value_count(f) && !error; i++)
        copy_value(w, moe_file_value(f, i));
    for (int i = 0; i < p->n_tensor && !error; i++) {
        const struct moe_tensor *t = moe_file_tensor(f, (size_t)i);
        error = moe_writer_tensor(w, p->tensor[i].name, target(k, &p->tensor[i]), t->n_dim, t->dim);
    }
    if (!error)
        error = moe_writer_header(w);
    for (int i = 0; i < p->n_tensor && !error; i++)
        error = write_tensor(w, k, &p->tensor[i]);
    if (!error)
        error = moe_writer_finish(w);
    moe_writer_close(w);
    return error;
}

/* ---- runs -------------------------------------------------------------------------------------- */

struct subject {
    const char *shape;
    const struct kind *kind;
    struct moe_file *file;
    struct plain plain;
    int32_t token[N_TOK];
    double *engine, *exact, *coded; /* [N_TOK][n_vocab] */
};

static int open_subject(struct subject *s, struct kn_team *team)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/spillway-quantised-%d.gguf", getpid());
    struct moe_synth_options so = {
        .shape = s->shape, .n_layer = N_LAYER, .n_vocab = N_VOCAB, .format = KN_F16, .seed = 9, .team = team
    };
    int error = moe_synth(path, &so);
    for (int turn = 0; turn < 2 && !error; turn++) {
        if ((error = moe_file_open(&s->file, path)) || (error = plain_open(&s->plain, s->file)) || turn)
            break;
        error = encode_anew(path, s->kind, s->file, &s->plain);
        plain_close(&s->plain);
        moe_file_close(s->file);
    }
    unlink(path);
    if (error)
        return error;
    size_t n = (size_t)(N_TOK * s->plain.n_vocab);
    s->engine = calloc(3 * n, sizeof *s->engine);
    s->exact = s->engine + n;
    s->coded = s->exact + n;
    return s->engine ? 0 : -1;
}

static void close_subject(struct subject *s)
{
    plain_close(&s->plain);
    moe_file_close(s->file);
    free(s->engine);
}

static void draw_tokens(struct subject *s, uint64_t text)
{
    for (uint64_t i = 1; i <= N_TOK; i++)
        s->token[i - 1] = (int32_t)(kn_mix((text * N_TOK + i) * KN_GOLDEN) % (uint64_t)s->plain.n_vocab);
}

static void run_engine(struct subject *s, struct kn_team *team)
{
    struct moe_model *model = NULL;
    struct moe_context *context;
    struct moe_context_options co = {
        .max_row = N_TOK, .max_want = N_TOK, .n_slot = N_TOK, .max_pos = N_TOK, .kv = KN_KV_F32, .team = team
    };
    struct moe_row row[N_TOK];
    struct moe_result result;
    int32_t slot[N_TOK];
    assert_int_equal(load_model(&model, s->file, KN_ISA_COUNT - 1, team, OFF_IO_AUTO), 0);
    assert_int_equal(moe_context_open(&context, model, &co), 0);
    for (int i = 0; i < N_TOK; i++) {
        slot[i] = i;
        row[i] = (struct moe_row){
            .token = s->token[i], .position = i, .want_logits = true, .base = slot, .n_base = N_TOK
        };
    }
    assert_int_equal(moe_forward(context, &(struct moe_batch){ .row = row, .n_row = N_TOK }, &result), 0);
    for (int i = 0; i < N_TOK * s->plain.n_vocab; i++)
        s->engine[i] = (double)result.logits[i];
    moe_context_close(context);
    moe_model_close(model);
}

/* ---- comparing --------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Errors of got's rows relative to want's, ascending. */
static void distances(const struct subject *s, const double *want, const double *got, double out[N_TOK])
{
    int n = s->plain.n_vocab;
    for (int t = 0; t < N_TOK; t++) {
        double difference = 0, size = 0;
        for (int i = t * n; i < (t + 1) * n; i++) {
            difference += (got[i] - want[i]) * (got[i] - want[i]);
            size += want[i] * want[i];
        }
        out[t] = sqrt(difference / size);
        assert_true(isfinite(out[t]));
    }
    qsort(out, N_TOK, sizeof *out, by_size);
}

/* e of a product with the matrix, as defined in the header of this file. */
static double code_error(const struct plain_tensor *t)
{
    static const double crest[KN_ACT_COUNT] = { [KN_ACT_Q32] = 2.1, [KN_ACT_Q256] = 2.8 };
    return crest[kn_format_info(t->format)->act] / (127 * sqrt(12));
}

static double expected(const struct plain *p)
{
    double head = code_error(plain_find(p, -1, "output"));
    double attention = RESIDUAL * 2 * code_error(plain_find(p, 0, "attn_v"));
    double network = RESIDUAL * 3 * code_error(plain_find(p, 0, p->n_expert ? "ffn_up_exps" : "ffn_up"));
    return sqrt(head * head + N_LAYER * (attention * attention + network * network));
}

static void check(const char *shape, const struct kind *kind)
{
    struct subject s = { .shape = shape, .kind = kind };
    struct kn_team *team;
    double cost[N_TOK], rest[N_TOK];
    assert_int_equal(kn_team_open(&team, 1), 0);
    assert_int_equal(open_subject(&s, team), 0);
    for (uint64_t text = 0; text < N_TEXT; text++) {
        draw_tokens(&s, text);
        run_engine(&s, team);
        s.plain.coded = false;
        plain_logits(&s.plain, s.token, N_TOK, s.exact);
        s.plain.coded = true;
        plain_logits(&s.plain, s.token, N_TOK, s.coded);
        distances(&s, s.exact, s.engine, cost);
        distances(&s, s.coded, s.engine, rest);
        if (rest[N_TOK / 2] < ROUNDING && rest[MOST_SAME] < FEW_CODES)
            break;
    }
    double want = expected(&s.plain);
    print_message("%-10s  exact %.1e (expected %.1e, worst row %.1e)  coded %.1e (worst row %.1e)\n", shape,
                  cost[N_TOK / 2], want, cost[N_TOK - 1], rest[N_TOK / 2], rest[N_TOK - 1]);
    assert_true(rest[N_TOK / 2] < ROUNDING && rest[MOST_SAME] < FEW_CODES);
    assert_true(cost[N_TOK / 2] >= 0.5 * want && cost[N_TOK / 2] < 1.3 * want + ROUNDING);
    assert_true(cost[MOST_SAME] < 1.6 * want + ROUNDING);
    assert_true(cost[N_TOK - 1] < REROUTED && rest[N_TOK - 1] < REROUTED);
    close_subject(&s);
    kn_team_close(team);
}

static void logits_are_those_of_the_weights(void **state)
{
    static const char *const shape[] = { "tiny", "tiny-dense", "tiny-odd" };
    kn_log_set(NULL, KN_LOG_ERROR); /* hides the messages about fallback formats */
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        check(shape[i], *state);
}

int main(void)
{
    static struct kind kind[] = {
        { "F16", .ffn = KN_F16, .dense = KN_F16 },
        { "BF16", .ffn = KN_BF16, .dense = KN_BF16 },
        { "Q8_0", .ffn = KN_Q8_0, .dense = KN_Q8_0 },
        { "Q4_K", .ffn = KN_Q4_K, .dense = KN_Q4_K },
        { "Q6_K", .ffn = KN_Q6_K, .dense = KN_Q6_K },
        { "Q4_K with Q8_0", .ffn = KN_Q4_K, .dense = KN_Q8_0 },
        { "Q5_K", .ffn = KN_Q5_K, .dense = KN_Q5_K },
        { "IQ4_XS", .ffn = KN_IQ4_XS, .dense = KN_IQ4_XS },
        { "Q3_K with Q4_1", .ffn = KN_Q3_K, .dense = KN_Q4_1 },
        { "Q2_K with Q4_0", .ffn = KN_Q2_K, .dense = KN_Q4_0 },
        { "IQ2_XXS with IQ3_XXS", .ffn = KN_IQ2_XXS, .dense = KN_IQ3_XXS },
        { "IQ2_XS with IQ3_S", .ffn = KN_IQ2_XS, .dense = KN_IQ3_S },
        { "gate IQ2_S, up IQ3_S, down IQ4_NL", .ffn = KN_IQ2_S, .dense = KN_Q6_K, .up = KN_IQ3_S, .down = KN_IQ4_NL },
        { "NVFP4", .ffn = KN_NVFP4, .dense = KN_NVFP4 },
        { "IQ1_S with IQ1_M", .ffn = KN_IQ1_S, .dense = KN_IQ1_M },
        { "gate IQ3_XXS, up Q4_K, down IQ2_S", .ffn = KN_IQ3_XXS, .dense = KN_IQ2_S, .up = KN_Q4_K, .down = KN_IQ2_S },
    };
    enum { N_KIND = sizeof kind / sizeof *kind };
    struct CMUnitTest tests[2 + N_KIND] = { cmocka_unit_test(blocks_decode_as_elsewhere),
                                            cmocka_unit_test(grids_are_those_of_elsewhere) };
    for (int i = 0; i < N_KIND; i++)
        tests[2 + i] = (struct CMUnitTest){ kind[i].name, logits_are_those_of_the_weights, NULL, NULL, &kind[i] };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
