/* Synthetic models: valid files, the same bytes for the same options, standard deviations that keep a
 * deep model's activations finite, and a vocabulary with merges for its tokens.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/write/write.h"
#include "tests/faults.h"
#include "tests/moe/load.h"
#include "tests/moe/folder.h"

static struct moe_file *make(struct moe_synth_options opt, int n_thread)
{
    struct moe_file *f = NULL;
    struct kn_team *team;
    faults_reset();
    assert_int_equal(kn_team_open(&team, n_thread), 0);
    opt.team = team;
    assert_int_equal(moe_synth(path, &opt), 0);
    kn_team_close(team);
    assert_int_equal(moe_file_open(&f, path), 0);
    return f;
}

/* A hash over all bytes of the file. */
static uint64_t digest(const struct moe_file *f)
{
    const struct off_files *files = moe_file_files(f);
    uint64_t h = 0;
    size_t bytes = (size_t)kn_io()->size(files->fd[0]);
    uint8_t *data = malloc(bytes + 8);
    assert_int_equal(kn_file_read(files->fd[0], path, data, bytes, 0), 0);
    memset(data + bytes, 0, 8);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, 8);
        h = kn_mix(h ^ word) + KN_GOLDEN;
    }
    free(data);
    return h;
}

/* Recorded measurements depend on these bytes: a change of the definition must fail here. */
static void the_same_options_give_the_same_bytes(void **state)
{
    (void)state;
    struct moe_synth_options opt = { .shape = "tiny", .format = KN_Q4_K, .seed = 7 };
    uint64_t want = 0;
    for (int n = 1; n <= 3; n++) {
        struct moe_file *f = make(opt, n);
        uint64_t got = digest(f);
        assert_true(n == 1 || got == want);
        want = got;
        moe_file_close(f);
    }
    if (want != UINT64_C(0xae1463c83e59ec7c))
        fail_msg("the definition changed: digest 0x%llx", (unsigned long long)want);
    opt.seed = 8;
    struct moe_file *f = make(opt, 2);
    assert_true(digest(f) != want);
    moe_file_close(f);
    assert_true(faults_clean());
}

/* Mean and deviation of a tensor's values. */
static void measure(const struct moe_file *f, const struct moe_tensor *t, double *mean, double *deviation)
{
    enum kn_format format;
    assert_int_equal(kn_format_from_gguf(t->gguf_type, &format), 0);
    int n_in = (int)t->dim[0];
    size_t row = kn_row_bytes(format, n_in), n_row = t->bytes / row;
    uint8_t *data = malloc(t->bytes);
    float *x = malloc((size_t)n_in * sizeof *x);
    double sum = 0, square = 0, n = (double)n_row * n_in;
    assert_int_equal(kn_file_read(moe_file_files(f)->fd[0], path, data, t->bytes, t->offset), 0);
    for (size_t r = 0; r < n_row; r++) {
        kn_row_decode(format, data + r * row, n_in, x);
        for (int i = 0; i < n_in; i++) {
            sum += (double)x[i];
            square += (double)x[i] * (double)x[i];
        }
    }
    *mean = sum / n;
    *deviation = sqrt(square / n - *mean * *mean);
    free(x);
    free(data);
}

static void assert_spread(const struct moe_file *f, const char *name, const char *type, double mean, double deviation)
{
    const struct moe_tensor *t = moe_file_find_tensor(f, name);
    double got_mean, got;
    assert_non_null(t);
    assert_string_equal(moe_tensor_type(t->gguf_type)->name, type);
    measure(f, t, &got_mean, &got);
    double n = (double)(t->dim[0] * t->dim[1] * t->dim[2]);
    if (fabs(got - deviation) > 0.03 * deviation + 2 * deviation / sqrt(n) ||
        fabs(got_mean - mean) > 5 * deviation / sqrt(n) + 1e-3 * deviation)
        fail_msg("%s: mean %g deviation %g, want %g and %g", name, got_mean, got, mean, deviation);
}

static void values_have_the_deviations_of_a_live_model(void **state)
{
    (void)state;
    for (int i = 0; i < KN_GGUF_FORMAT_COUNT; i++) {
        const char *name = kn_format_info((enum kn_format)i)->name;
        struct moe_synth_options opt = { .shape = "tiny", .format = (enum kn_format)i };
        struct moe_file *f = make(opt, 2);
        assert_int_equal(moe_file_tensor_count(f), 3 + 3 * 12);
        assert_spread(f, "token_embd.weight", "Q8_0", 0, 1);
        assert_spread(f, "output.weight", "Q8_0", 0, 2.0 / 16);
        assert_spread(f, "blk.0.attn_q.weight", "Q8_0", 0, 1.0 / 16);
        assert_spread(f, "blk.2.attn_output.weight", "Q8_0", 0, 0.15 / sqrt(512));
        assert_spread(f, "blk.1.attn_norm.weight", "F32", 1, 0.05);
        assert_spread(f, "blk.1.attn_k_norm.weight", "F32", 1.3, 0.065);
        assert_spread(f, "blk.1.ffn_gate_inp.weight", "F32", 0, 1.5 / 16);
        assert_spread(f, "blk.1.ffn_gate_exps.weight", name, 0, 1.0 / 16);
        assert_spread(f, "blk.1.ffn_up_exps.weight", name, 0, 1.0 / 16);
        assert_spread(f, "blk.2.ffn_down_exps.weight", name, 0, 0.15 / sqrt(0.356 * 0.5) / 16);
        moe_file_close(f);
    }
    struct moe_synth_options opt = { .shape = "tiny-dense", .format = KN_Q6_K };
    struct moe_file *f = make(opt, 2);
    assert_null(moe_file_find_tensor(f, "blk.0.ffn_gate_inp.weight"));
    assert_spread(f, "blk.0.ffn_down.weight", "Q6_K", 0, 0.15 / sqrt(0.356) / sqrt(768));
    moe_file_close(f);
}

/* Rows of 192 are whole blocks of 32 but not of 256; rows of 200 of neither. */
static void formats_fall_back_and_say_so(void **state)
{
    (void)state;
    struct moe_synth_options opt = { .shape = "tiny-odd", .format = KN_Q4_K };
    faults.most = KN_LOG_INFO;
    struct moe_file *f = make(opt, 1);
    faults.most = KN_LOG_WARN;
    assert_int_equal(faults.n_line, 2); /* a line for a kind, whatever the number of layers */
    assert_non_null(strstr(faults.last, "blk.0.ffn_down_exps and 1 other tensor: rows of 200 values are no whole"));
    assert_non_null(strstr(faults.last, "F16"));
    assert_spread(f, "blk.1.ffn_gate_exps.weight", "Q5_0", 0, 1 / sqrt(192));
    assert_spread(f, "blk.1.ffn_down_exps.weight", "F16", 0, 0.15 / sqrt(0.356 * 0.75) / sqrt(200));
    moe_file_close(f);
}

static int compare(const void *a, const void *b)
{
    const struct moe_string *x = a, *y = b;
    int order = memcmp(x->data, y->data, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static bool has(const struct moe_string *sorted, size_t n, struct moe_string want)
{
    return bsearch(&want, sorted, n, sizeof want, compare) != NULL;
}

static void vocabularies_are_made_by_their_merges(void **state)
{
    (void)state;
    static const int sizes[] = { MOE_SYNTH_VOCAB_LEAST, 300, 2048, 151936 };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct moe_file *f = make(
            (struct moe_synth_options){ .shape = "tiny-odd", .n_layer = 1, .n_vocab = sizes[k], .format = KN_Q8_0 }, 2);
        const struct moe_value *tokens = moe_file_find(f, "tokenizer.ggml.tokens");
        const struct moe_value *merges = moe_file_find(f, "tokenizer.ggml.merges");
        const struct moe_value *types = moe_file_find(f, "tokenizer.ggml.token_type");
        size_t n = (size_t)sizes[k];
        assert_int_equal(tokens->n, n);
        assert_int_equal(types->n, n);
        assert_int_equal(merges->n, n - 256 - 3);

        struct moe_string *sorted = malloc(n * sizeof *sorted);
        const struct moe_string *text = tokens->data, *merge = merges->data;
        memcpy(sorted, text, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, compare);
        for (size_t i = 1; i < n; i++)
            assert_int_not_equal(compare(&sorted[i - 1], &sorted[i]), 0);
        for (size_t i = 0; i < merges->n; i++) { /* the i-th merge makes token 256 + i */
            const char *space = memchr(merge[i].data, ' ', merge[i].n);
            assert_non_null(space);
            struct moe_string left = { merge[i].data, (size_t)(space - merge[i].data) };
            struct moe_string right = { space + 1, merge[i].n - left.n - 1 };
            struct moe_string made = text[256 + i];
            assert_true(has(sorted, n, left) && has(sorted, n, right));
            assert_int_equal(made.n, left.n + right.n);
            assert_memory_equal(made.data, left.data, left.n);
            assert_memory_equal(made.data + left.n, right.data, right.n);
            assert_int_equal(moe_value_int(types, 256 + i), 1);
        }
        int64_t eos = 0;
        assert_int_equal(moe_file_int(f, "tokenizer.ggml.eos_token_id", 0, sizes[k] - 1, &eos), 1);
        assert_true(moe_string_is(text[eos], "<|im_end|>"));
        assert_int_equal(moe_value_int(types, (size_t)eos), 3);
        free(sorted);
        moe_file_close(f);
    }
}

/* Of every family; the layers before it are the same as without it. */
static void a_layer_ahead_is_added_behind_all(void **state)
{
    (void)state;
    static const char *const shape[] = { "tiny", "tiny-glm4moe", "tiny-deepseek2", "tiny-qwen3next", "tiny-qwen35moe" };
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        struct moe_synth_options opt = { .shape = shape[k], .n_layer = 4, .n_vocab = 300, .format = KN_Q4_0 };
        struct moe_file *without = make(opt, 2), *with;
        struct moe_model *m, *head;
        remove(path);
        opt.ahead = true;
        with = make(opt, 2);
        for (size_t i = 0; i < moe_file_tensor_count(without); i++) {
            const struct moe_tensor *a = moe_file_tensor(without, i), *b = moe_file_tensor(with, i);
            assert_true(a->name.n == b->name.n && !memcmp(a->name.data, b->name.data, a->name.n));
            assert_int_equal(a->bytes, b->bytes);
            uint8_t *x = malloc(a->bytes), *y = malloc(a->bytes);
            assert_int_equal(moe_file_read(without, a, 0, x, a->bytes), 0);
            assert_int_equal(moe_file_read(with, b, 0, y, a->bytes), 0);
            assert_memory_equal(x, y, a->bytes);
            free(x);
            free(y);
        }
        assert_int_equal(moe_model_open(&m, with, &(struct moe_model_options){ .ahead = true }), 0);
        assert_int_equal(moe_model_open_ahead(&head, m), 0);
        assert_int_equal(moe_model_shape(m)->n_layer, 4);
        assert_int_equal(moe_model_shape(m)->n_expert_ahead, moe_model_shape(m)->n_expert);
        moe_model_close(head);
        moe_model_close(m);
        moe_file_close(with);
        moe_file_close(without);
    }
}

/* As DeepSeek-V2-Lite is published in k-quants: its dense layer falls back to blocks of 32, its shared experts do
 * not, and both use one place of the step arena. Rows together equal rows alone. */
static void layers_may_be_of_different_widths(void **state)
{
    (void)state;
    static const enum kn_format format[] = { KN_Q4_K, KN_Q5_K, KN_Q6_K, KN_Q2_K };
    for (int k = 0; k < 4; k++) {
        struct moe_file *f = make((struct moe_synth_options){ .shape = "tiny-lite", .format = format[k] }, 2);
        moe_file_close(f);
        faults_off(); /* from here on calls are not counted */
        assert_int_equal(moe_file_open(&f, path), 0);
        struct moe_model *m = NULL;
        struct moe_context *c;
        struct kn_team *team;
        struct moe_row row[5];
        struct moe_result result;
        static const int32_t slot[5] = { 0, 1, 2, 3, 4 };
        assert_int_equal(kn_team_open(&team, 1), 0);
        assert_int_equal(load_model(&m, f, KN_ISA_COUNT - 1, team, OFF_IO_PREAD), 0);
        struct moe_context_options co = {
            .max_row = 5, .max_want = 5, .n_slot = 5, .max_pos = 5, .kv = KN_KV_F32, .team = team
        };
        assert_int_equal(moe_context_open(&c, m, &co), 0);
        int n_vocab = moe_model_shape(m)->n_vocab;
        float *all = malloc(5 * (size_t)n_vocab * sizeof *all);
        for (int i = 0; i < 5; i++)
            row[i] = (struct moe_row){ .token = 30 + i, .position = i, .want_logits = true, .base = slot, .n_base = 5 };
        assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = 5 }, &result), 0);
        memcpy(all, result.logits, 5 * (size_t)n_vocab * sizeof *all);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = &row[i], .n_row = 1 }, &result), 0);
            assert_memory_equal(result.logits, all + i * n_vocab, (size_t)n_vocab * sizeof *all);
            assert_true(isfinite(all[i * n_vocab]));
        }
        free(all);
        moe_context_close(c);
        moe_model_close(m);
        moe_file_close(f);
        kn_team_close(team);
        remove(path);
    }
}

static void impossible_options_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct moe_synth_options opt;
        const char *says;
    } kind[] = {
        { { .shape = "qwen9" }, "'qwen9'; there are qwen3-30b-a3b, " },
        { { .shape = "tiny", .n_layer = -1 }, "-1 layers" },
        { { .shape = "tiny", .n_layer = 1001 }, "1001 layers" },
        { { .shape = "tiny", .n_vocab = 258 }, "258 tokens" },
        { { .shape = "tiny", .n_vocab = (1 << 20) + 1 }, "1048577 tokens" },
    };
    remove(path);
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        faults_reset();
        assert_int_equal(moe_synth(path, &kind[i].opt), KN_EINVAL);
        assert_int_equal(faults.n_line, 1);
        assert_non_null(strstr(faults.line, kind[i].says));
        assert_true(faults_clean());
        assert_int_equal(access(path, F_OK), -1);
    }
}

static void a_stopped_one_leaves_nothing(void **state)
{
    (void)state;
    static const atomic_bool stop = true;
    struct moe_synth_options opt = { .shape = "tiny", .format = KN_Q4_K, .stop = &stop };
    struct kn_team *team;
    remove(path);
    faults_reset();
    assert_int_equal(kn_team_open(&team, 1), 0);
    opt.team = team;
    assert_int_equal(moe_synth(path, &opt), KN_ECANCELLED);
    kn_team_close(team);
    assert_int_equal(faults.n_line, 1);
    assert_true(faults_clean());
    assert_int_equal(rmdir(folder), 0); /* empty: not even a part file */
    assert_int_equal(mkdir(folder, 0700), 0);
}

int main(void)
{
    faults.in_pieces = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_one_leaves_nothing),
        cmocka_unit_test(the_same_options_give_the_same_bytes),
        cmocka_unit_test(values_have_the_deviations_of_a_live_model),
        cmocka_unit_test(formats_fall_back_and_say_so),
        cmocka_unit_test(vocabularies_are_made_by_their_merges),
        cmocka_unit_test(a_layer_ahead_is_added_behind_all),
        cmocka_unit_test(layers_may_be_of_different_widths),
        cmocka_unit_test(impossible_options_are_refused),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
