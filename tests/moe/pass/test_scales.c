/* A tensor X.scale is a factor of the weights in X.weight: with all matrices less by powers of two, and these as scales,
 * the logits have the same bits, with every instruction set; a scale for each expert.  Bad scales are refused.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/moe/folders.h"
#include "tests/moe/folder.h"

#define N_VOCAB 300
#ifdef __SANITIZE_ADDRESS__
#define FIRST_ISA kn_isa_best() /* the memory is the same for all */
#else
#define FIRST_ISA KN_ISA_SCALAR
#endif

static char plain[80], scaled[80];
static struct kn_team *team;
static const struct golden tokens = { .n_vocab = N_VOCAB, .token = (int32_t[N_TOK]){ 5, 9, 33, 120 } };

static int setup(void **state)
{
    int error = folder_make(state);
    snprintf(plain, sizeof plain, "%s/plain.gguf", folder);
    snprintf(scaled, sizeof scaled, "%s/scaled.gguf", folder);
    return error ? error : kn_team_open(&team, 2);
}

static int teardown(void **state)
{
    kn_team_close(team);
    return folder_remove(state);
}

/* A model of which all matrices are F32. */
static void make_plain(const char *shape)
{
    struct moe_synth_options so = {
        .shape = shape, .n_layer = 2, .n_vocab = N_VOCAB, .format = KN_F32, .seed = 8, .team = team
    };
    struct moe_quantize_options opt = { .requantize = true, .ops = kn_ops(KN_ISA_COUNT - 1), .team = team };
    struct moe_file *f;
    assert_int_equal(moe_synth(path, &so), 0);
    assert_int_equal(moe_file_open(&f, path), 0);
    struct moe_quantized *done = calloc(moe_file_tensor_count(f), sizeof *done);
    assert_int_equal(moe_quantize(plain, f, &opt, done), 0); /* format 0 is F32 */
    free(done);
    moe_file_close(f);
}

/* Writes the model at `plain` again with attn_k_b, transposed, and attn_v_b of each layer in one attn_kv_b. */
static void join_latent(void)
{
    struct moe_file *f;
    struct moe_writer *w;
    assert_int_equal(moe_file_open(&f, plain), 0);
    assert_int_equal(moe_writer_open(&w, path), 0);
    for (size_t i = 0; i < moe_file_value_count(f); i++)
        assert_int_equal(moe_writer_copy(w, moe_file_value(f, i)), 0);
    for (int data = 0; data < 2; data++) {
        for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
            const struct moe_tensor *t = moe_file_tensor(f, i), *v = t;
            char name[80];
            snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.data);
            char *k_b = strstr(name, "attn_k_b"), *v_b = strstr(name, "attn_v_b");
            if (v_b)
                continue;
            if (k_b)
                memcpy(k_b + 5, "v", 1);
            if (k_b && !(v = moe_file_find_tensor(f, name)))
                fail_msg("no %s", name);
            if (k_b)
                strcpy(k_b, "attn_kv_b.weight");
            uint64_t plain_rows = t->dim[0], d_latent = t->dim[1], n_head = t->dim[2], n_value = v->dim[1];
            uint64_t n = t->dim[0] * t->dim[1] * t->dim[2], dim[2] = { d_latent, n_head * (plain_rows + n_value) };
            float *x = calloc(n, sizeof *x), *y = calloc(n_head * n_value * d_latent + n, sizeof *y), *to = y;
            float *value = calloc(v->bytes, 1);
            assert_int_equal(moe_file_read(f, t, 0, x, n * sizeof *x), 0);
            assert_int_equal(moe_file_read(f, v, 0, value, v->bytes), 0);
            for (uint64_t h = 0; h < n_head && k_b; h++) {
                for (uint64_t r = 0; r < plain_rows; r++)
                    for (uint64_t c = 0; c < d_latent; c++)
                        *to++ = x[(h * d_latent + c) * plain_rows + r];
                memcpy(to, value + h * n_value * d_latent, n_value * d_latent * sizeof *to);
                to += n_value * d_latent;
            }
            if (!data)
                assert_int_equal(moe_writer_tensor(w, name, KN_F32, k_b ? 2 : t->n_dim, k_b ? dim : t->dim), 0);
            else
                assert_int_equal(moe_writer_data(w, k_b ? y : x, (k_b ? dim[0] * dim[1] : n) * sizeof *x), 0);
            free(x);
            free(y);
            free(value);
        }
        if (!data)
            assert_int_equal(moe_writer_header(w), 0);
    }
    assert_int_equal(moe_writer_finish(w), 0);
    moe_writer_close(w);
    moe_file_close(f);
    assert_int_equal(rename(path, plain), 0);
}

static bool is_scaled(const struct moe_tensor *t)
{
    return t->n_dim > 1 && !memmem(t->name.data, t->name.n, ".bias", 5) &&
           !memmem(t->name.data, t->name.n, "conv1d", 6);
}

/* Scale e of tensor i: from 1/16 to 8. */
static float scale_of(size_t i, uint64_t e) { return ldexpf(1, (int)((3 * i + 5 * e) % 8) - 4); }

/* Writes the model with all its matrices divided by their scales; `other`: the first value of all scales instead. */
static void make_scaled(const float *other, int n_more)
{
    struct moe_file *f;
    struct moe_writer *w;
    assert_int_equal(moe_file_open(&f, plain), 0);
    assert_int_equal(moe_writer_open(&w, scaled), 0);
    for (size_t i = 0; i < moe_file_value_count(f); i++)
        assert_int_equal(moe_writer_copy(w, moe_file_value(f, i)), 0);
    for (int data = 0; data < 2; data++) {
        for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
            const struct moe_tensor *t = moe_file_tensor(f, i);
            char name[80];
            bool stack = memmem(t->name.data, t->name.n, "_exps", 5);
            uint64_t n_mat = stack ? t->dim[2] : 1, n = t->dim[0] * t->dim[1] * t->dim[2],
                     n_scale = n_mat + (uint64_t)n_more;
            float *x = calloc(n, sizeof *x), *scale = calloc(n_scale, sizeof *scale);
            assert_int_equal(moe_file_read(f, t, 0, x, n * sizeof *x), 0);
            for (uint64_t k = 0; k < n && is_scaled(t); k++)
                x[k] /= scale_of(i, k / (n / n_mat));
            for (uint64_t e = 0; e < n_mat; e++)
                scale[e] = e == 0 && other ? *other : scale_of(i, e);
            snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.data);
            if (data)
                assert_int_equal(moe_writer_data(w, x, n * sizeof *x), 0);
            else
                assert_int_equal(moe_writer_tensor(w, name, KN_F32, t->n_dim, t->dim), 0);
            snprintf(name, sizeof name, "%.*s.scale", (int)(t->name.n - strlen(".weight")), t->name.data);
            if (is_scaled(t) && data)
                assert_int_equal(moe_writer_data(w, scale, n_scale * sizeof *scale), 0);
            else if (is_scaled(t))
                assert_int_equal(moe_writer_tensor(w, name, KN_F32, 1, &n_scale), 0);
            free(x);
            free(scale);
        }
        if (!data)
            assert_int_equal(moe_writer_header(w), 0);
    }
    assert_int_equal(moe_writer_finish(w), 0);
    moe_writer_close(w);
    moe_file_close(f);
}

static void scales_are_factors_of_the_weights(void **state)
{
    const char *shape = *state;
    bool joined = !strcmp(shape, "tiny-lite");
    make_plain(shape);
    if (joined)
        join_latent();
    make_scaled(NULL, 0);
    for (enum kn_isa isa = FIRST_ISA; isa <= kn_isa_best(); isa++) {
        float *want = logits_by(&tokens, plain, (struct run){ .isa = isa });
        float *got = logits_by(&tokens, scaled, (struct run){ .isa = isa, .least = true });
        for (int i = 0; i < 4 * N_VOCAB; i++)
            assert_true(isfinite(want[i]));
        assert_memory_equal(got, want, 4 * N_VOCAB * sizeof *want);
        free(want);
        free(got);
    }
}

static char said[1024];
static void keep_message(enum kn_level level, const char *line)
{
    if (level == KN_LOG_ERROR)
        snprintf(said, sizeof said, "%s", line);
}

static void bad_scales_are_refused(void **state)
{
    (void)state;
    kn_log_set(keep_message, KN_LOG_ERROR);
    struct moe_file *f;
    struct moe_model *m;
    make_plain("tiny");
    for (int more = 0; more < 2; more++) {
        make_scaled(&(float){ more ? 1.0f : NAN }, more);
        *said = 0;
        assert_int_equal(moe_file_open(&f, scaled), 0);
        int error = moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 });
        if (!error) {
            error = moe_model_load(m, &(struct moe_load_options){ .team = team });
            moe_model_close(m);
        }
        assert_int_equal(error, KN_ECORRUPT);
        assert_non_null(strstr(said, more ? "shape" : "is not finite"));
        moe_file_close(f);
    }
    kn_log_set(NULL, KN_LOG_INFO);
}

#define SHAPE(name)                                                                                                    \
    {                                                                                                                  \
        name, scales_are_factors_of_the_weights, NULL, NULL, name                                                      \
    }
int main(void)
{
    struct CMUnitTest tests[] = {
        SHAPE("tiny"),
        SHAPE("tiny-phi3"),
        SHAPE("tiny-qwen2moe"),
        SHAPE("tiny-qwen35moe"),
        SHAPE("tiny-deepseek2"),
        SHAPE("tiny-lite"),
        cmocka_unit_test(bad_scales_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
