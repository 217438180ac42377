/* Latent attention (MLA): files with K and V matrices joined or separate, in any format, give the same
 * logits; invalid combinations are refused; for every failing call while joined matrices are split, the
 * result is one error; copied slots equal the originals; and heads may have values of a different length
 * from their keys.
 *
 * Files are a synthetic model, rewritten with some tensors replaced.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "moe/model/model.h"
#include "tests/faults.h"
#include "tests/moe/load.h"
#include "tests/moe/folder.h"

#define N_VOCAB 300
#define N_TOK   40
#define LEN(a)  ((int)(sizeof(a) / sizeof *(a)))

static struct kn_team *team;
static struct moe_file *latent, *plain; /* tiny-deepseek2 with two layers, tiny-dense with one */
static char source_path[2][96];
static const struct kn_ops *ops;
static enum off_io_kind io;

/* ---- files ------------------------------------------------------------------------------------------- */

/* How a copy differs. apart: K and V separate, with the values of the joined matrix in `format`. */
struct variant {
    bool whole, apart, flat, spare;
    enum kn_format format;
    int d_value;     /* of the plain model; other heads are zero-padded to it */
    const char *key; /* left out, or set to `number` */
    double number;
    enum moe_type type;
};

static float *read_floats(const struct moe_file *f, const char *name, size_t *n)
{
    const struct moe_tensor *t = moe_file_find_tensor(f, name);
    const struct off_files *files = moe_file_files(f);
    enum kn_format format;
    assert_non_null(t);
    assert_int_equal(kn_format_from_gguf(t->gguf_type, &format), 0);
    *n = (size_t)(t->dim[0] * t->dim[1] * t->dim[2]);
    uint8_t *raw = malloc(t->bytes);
    float *x = malloc(*n * sizeof *x);
    assert_int_equal(kn_file_read(files->fd[t->file], files->path[t->file], raw, t->bytes, t->offset), 0);
    kn_row_decode(format, raw, (int)*n, x);
    free(raw);
    return x;
}

/* A tensor to write: its bytes are held until the header is written. */
struct tensor {
    char name[64];
    enum kn_format format;
    uint64_t dim[3];
    int n_dim;
    void *data;
    size_t bytes;
};
static struct tensor tensors[96];
static int n_tensor;

static struct tensor *add(const char *name, enum kn_format f, uint64_t n_in, uint64_t n_out, uint64_t n_mat)
{
    struct tensor *t = &tensors[n_tensor++];
    *t = (struct tensor){ .format = f, .dim = { n_in, n_out, n_mat }, .n_dim = n_mat ? 3 : 2 };
    snprintf(t->name, sizeof t->name, "%s", name);
    t->bytes = kn_row_bytes(f, (int)n_in) * n_out * (n_mat ? n_mat : 1);
    t->data = calloc(1, t->bytes);
    return t;
}

static void put(struct tensor *t, size_t first, const float *x, size_t n)
{
    const struct kn_format_info *info = kn_format_info(t->format);
    size_t values = (size_t)info->block_values;
    ops->encode(t->format, x, NULL, n, (uint8_t *)t->data + first / values * (size_t)info->block_bytes);
}

/* K and V of one layer: the joined matrix, and its two parts with the same values. */
static void add_halves(const struct variant *v, int layer, const struct moe_desc *d)
{
    char name[64];
    size_t n, d_plain = (size_t)(d->d_head - d->n_rot), d_latent = (size_t)d->d_latent, d_value = (size_t)d->d_value;
    size_t n_head = (size_t)d->n_head, d_both = d_plain + d_value;
    snprintf(name, sizeof name, "blk.%d.attn_k_b.weight", layer);
    float *k = read_floats(latent, name, &n);
    snprintf(name, sizeof name, "blk.%d.attn_v_b.weight", layer);
    float *w = read_floats(latent, name, &n), *line = malloc(d_latent * sizeof *line);
    snprintf(name, sizeof name, "blk.%d.attn_kv_b.weight", layer);
    struct tensor *both = add(name, v->format, d_latent, n_head * d_both, 0);
    for (size_t h = 0; h < n_head; h++)
        for (size_t i = 0; i < d_both; i++) {
            for (size_t j = 0; j < d_latent; j++)
                line[j] = i < d_plain ? k[(h * d_latent + j) * d_plain + i]
                                      : w[(h * d_value + i - d_plain) * d_latent + j];
            put(both, (h * d_both + i) * d_latent, line, d_latent);
        }
    if (!v->whole) {
        bool turns = kn_format_info(v->format)->block_values == 1;
        size_t row = kn_row_bytes(v->format, d->d_latent);
        uint64_t out = v->flat ? d_latent * n_head : d_latent;
        snprintf(name, sizeof name, "blk.%d.attn_k_b.weight", layer);
        struct tensor *keys = add(name, turns ? v->format : KN_F32, d_plain, out, v->flat ? 0 : n_head);
        snprintf(name, sizeof name, "blk.%d.attn_v_b.weight", layer);
        out = v->flat ? d_value * n_head : d_value;
        struct tensor *values = add(name, v->format, d_latent, out, v->flat ? 0 : n_head);
        for (size_t h = 0; h < n_head; h++) {
            memcpy((uint8_t *)values->data + h * d_value * row, (uint8_t *)both->data + (h * d_both + d_plain) * row,
                   d_value * row);
            for (size_t i = 0; i < d_plain; i++) {
                kn_row_decode(v->format, (uint8_t *)both->data + (h * d_both + i) * row, d->d_latent, line);
                for (size_t j = 0; j < d_latent; j++)
                    put(keys, (h * d_latent + j) * d_plain + i, &line[j], 1);
            }
        }
        if (!v->spare) { /* both stand third from the end */
            free(both->data);
            *both = tensors[--n_tensor];
        }
    }
    free(k);
    free(w);
    free(line);
}

/* attn_v and attn_output for values of length d_value; elements from 24 on are zero. */
static void add_long_values(const struct variant *v, const struct moe_desc *d)
{
    size_t n, d_model = (size_t)d->d_model, d_head = (size_t)d->d_head, wide = (size_t)v->d_value, own = 24;
    float *value = read_floats(plain, "blk.0.attn_v.weight", &n);
    float *out = read_floats(plain, "blk.0.attn_output.weight", &n);
    struct tensor *t = add("blk.0.attn_v.weight", KN_F32, d_model, (size_t)d->n_kv * wide, 0);
    for (size_t h = 0; h < (size_t)d->n_kv; h++)
        put(t, h * wide * d_model, value + h * d_head * d_model, own * d_model);
    t = add("blk.0.attn_output.weight", KN_F32, (size_t)d->n_head * wide, d_model, 0);
    for (size_t row = 0; row < d_model; row++)
        for (size_t h = 0; h < (size_t)d->n_head; h++)
            put(t, (row * (size_t)d->n_head + h) * wide, out + (row * (size_t)d->n_head + h) * d_head, own);
    free(value);
    free(out);
}

static void add_as_it_is(const struct moe_file *f, const struct moe_tensor *t)
{
    const struct off_files *files = moe_file_files(f);
    struct tensor *to = &tensors[n_tensor++];
    *to = (struct tensor){ .n_dim = t->n_dim, .dim = { t->dim[0], t->dim[1], t->dim[2] }, .bytes = t->bytes };
    snprintf(to->name, sizeof to->name, "%.*s", (int)t->name.n, t->name.data);
    assert_int_equal(kn_format_from_gguf(t->gguf_type, &to->format), 0);
    to->data = malloc(t->bytes);
    assert_int_equal(kn_file_read(files->fd[t->file], files->path[t->file], to->data, t->bytes, t->offset), 0);
}

static bool ends_with(struct moe_string s, const char *end)
{
    size_t n = strlen(end);
    return s.n >= n && !memcmp(s.data + s.n - n, end, n);
}

static void write_values(struct moe_writer *w, const struct moe_file *f, const struct variant *v)
{
    for (size_t i = 0; i < moe_file_value_count(f); i++) {
        const struct moe_value *x = moe_file_value(f, i);
        if (!(v->key && moe_string_is(x->key, v->key)) && !(v->d_value && ends_with(x->key, "value_length")))
            assert_int_equal(moe_writer_copy(w, x), 0);
    }
    uint32_t u32 = (uint32_t)v->number, width = (uint32_t)v->d_value;
    float f32 = (float)v->number;
    if (v->key && v->type == MOE_U32)
        assert_int_equal(moe_writer_value(w, v->key, MOE_U32, &u32), 0);
    if (v->key && v->type == MOE_F32)
        assert_int_equal(moe_writer_value(w, v->key, MOE_F32, &f32), 0);
    if (v->d_value)
        assert_int_equal(moe_writer_value(w, "qwen3.attention.value_length", MOE_U32, &width), 0);
}

/* Writes the variant to `path`. */
static void write_variant(const struct moe_file *f, const struct variant *v)
{
    struct moe_writer *w;
    struct moe_desc d;
    int layer = 0;
    n_tensor = 0;
    assert_int_equal(moe_desc_read(&d, f), 0);
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        bool halves = v->whole || v->apart || v->flat;
        if (halves && ends_with(t->name, ".attn_k_b.weight"))
            add_halves(v, layer++, &d);
        else if (v->d_value && ends_with(t->name, ".attn_v.weight"))
            add_long_values(v, &d);
        else if (!(halves && ends_with(t->name, ".attn_v_b.weight")) &&
                 !(v->d_value && ends_with(t->name, ".attn_output.weight")))
            add_as_it_is(f, t);
    }
    assert_int_equal(moe_writer_open(&w, path), 0);
    write_values(w, f, v);
    for (int i = 0; i < n_tensor; i++)
        assert_int_equal(moe_writer_tensor(w, tensors[i].name, tensors[i].format, tensors[i].n_dim, tensors[i].dim), 0);
    assert_int_equal(moe_writer_header(w), 0);
    for (int i = 0; i < n_tensor; i++) {
        assert_int_equal(moe_writer_data(w, tensors[i].data, tensors[i].bytes), 0);
        free(tensors[i].data);
    }
    assert_int_equal(moe_writer_finish(w), 0);
    moe_writer_close(w);
}

/* ---- running ----------------------------------------------------------------------------------------- */

struct opened {
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
};

static void close_all(struct opened *o)
{
    moe_context_close(o->context);
    moe_model_close(o->model);
    moe_file_close(o->file);
    *o = (struct opened){ 0 };
}

static enum kn_kv kv = KN_KV_F16; /* of contexts */

static int open_all(struct opened *o, const char *name)
{
    struct moe_context_options co = {
        .max_row = N_TOK, .max_want = 1, .n_slot = 2 * N_TOK, .max_pos = N_TOK, .kv = kv, .team = team
    };
    int error;
    *o = (struct opened){ 0 };
    if ((error = moe_file_open(&o->file, name)) || (error = load_model(&o->model, o->file, KN_ISA_COUNT - 1, team, io)))
        return error;
    return moe_context_open(&o->context, o->model, &co);
}

/* Runs tokens first.. of a fixed sequence, at the given slots; returns the logits of the last one. */
static void run(struct opened *o, const int32_t *slot, int first, int n, float *logits /* [N_VOCAB] */)
{
    struct moe_row row[N_TOK];
    struct moe_result result;
    for (int i = 0; i < n; i++)
        row[i] = (struct moe_row){ .token = (first + i) * 37 % N_VOCAB,
                                   .position = first + i,
                                   .want_logits = i == n - 1,
                                   .base = slot,
                                   .n_base = N_TOK };
    assert_int_equal(moe_forward(o->context, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
    assert_int_equal(moe_rows_status(&result, 0, n), 0);
    memcpy(logits, result.logits, N_VOCAB * sizeof *logits);
}

static void logits_of(const char *name, float *logits)
{
    struct opened o;
    int32_t slot[N_TOK];
    for (int i = 0; i < N_TOK; i++)
        slot[i] = (i * 7 + 3) % N_TOK;
    assert_int_equal(open_all(&o, name), 0);
    assert_int_equal(o.model->matrices.used + o.model->vectors.used, o.model->shape.dense_bytes);
    run(&o, slot, 0, N_TOK, logits);
    close_all(&o);
}

static void assert_lively(const float *logits)
{
    float least = HUGE_VALF, most = -HUGE_VALF;
    for (int i = 0; i < N_VOCAB; i++) {
        assert_true(isfinite(logits[i]));
        least = logits[i] < least ? logits[i] : least;
        most = logits[i] > most ? logits[i] : most;
    }
    assert_true(most - least > 0.5f);
}

static int setup(void **state)
{
    static const char *const shape[] = { "tiny-deepseek2", "tiny-dense" };
    struct moe_file **const file[] = { &latent, &plain };
    kn_log_set(NULL, KN_LOG_WARN);
    if (folder_make(state) || kn_team_open(&team, 2))
        return -1;
    ops = kn_ops(KN_ISA_COUNT - 1);
    for (int i = 0; i < 2; i++) {
        snprintf(source_path[i], sizeof source_path[i], "%s/%s.gguf", folder, shape[i]);
        if (moe_synth(source_path[i], &(struct moe_synth_options){ .shape = shape[i],
                                                                   .n_layer = 2 - i,
                                                                   .n_vocab = N_VOCAB,
                                                                   .format = KN_Q8_0,
                                                                   .seed = 8,
                                                                   .team = team }) ||
            moe_file_open(file[i], source_path[i]))
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    moe_file_close(latent);
    moe_file_close(plain);
    kn_team_close(team);
    return folder_remove(state);
}

/* ---- joined and separate matrices -------------------------------------------------------------------- */

static void halves_in_one_or_apart_are_the_same(void **state)
{
    (void)state;
    static const enum kn_format format[] = { KN_F32, KN_F16, KN_BF16, KN_Q8_0 };
    float apart[N_VOCAB], got[N_VOCAB];
    for (int i = 0; i < LEN(format); i++) {
        write_variant(latent, &(struct variant){ .apart = true, .format = format[i] });
        logits_of(path, apart);
        assert_lively(apart);
        write_variant(latent, &(struct variant){ .whole = true, .format = format[i] });
        logits_of(path, got);
        assert_memory_equal(got, apart, sizeof got);
        write_variant(latent, &(struct variant){ .flat = true, .format = format[i] });
        logits_of(path, got);
        assert_memory_equal(got, apart, sizeof got);
    }
    write_variant(latent, &(struct variant){ .apart = true, .spare = true, .format = KN_Q8_0 });
    logits_of(path, got);
    assert_memory_equal(got, apart, sizeof got);
}

static char said[512];

static void keep_line(enum kn_level level, const char *line)
{
    if (level == KN_LOG_INFO)
        snprintf(said, sizeof said, "%s", line);
}

/* Splitting quantised keys needs them transposed in a wider format: the size is reported before weights are read. */
static void what_is_widened_is_said(void **state)
{
    (void)state;
    struct moe_file *f;
    struct moe_model *m;
    struct moe_desc d;
    struct off_progress p = { 0 };
    assert_int_equal(moe_desc_read(&d, latent), 0);
    write_variant(latent, &(struct variant){ .whole = true, .format = KN_Q8_0 });
    kn_log_set(keep_line, KN_LOG_INFO);
    assert_int_equal(moe_file_open(&f, path), 0);
    assert_int_equal(moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 }), 0);
    kn_log_set(NULL, KN_LOG_WARN);
    assert_true(strstr(said, path) && strstr(said, "as F32"));
    size_t widened = 2 * (size_t)d.n_head * (size_t)d.d_latent * (size_t)(d.d_head - d.n_rot) * sizeof(float);
    assert_int_equal(moe_model_shape(m)->widened_bytes, widened);
    assert_true(moe_model_shape(m)->pass_bytes > widened);
    assert_int_equal(moe_model_load(m, &(struct moe_load_options){ .team = team, .progress = &p }), 0);
    assert_true(p.done_bytes > 0 && p.done_bytes == p.total_bytes);
    moe_model_close(m);
    moe_file_close(f);
}

static void whatever_fails_it_is_said_once(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error;
    } ways[] = {
        { FAULT_ALLOC, FAULT_ERROR, ENOMEM },
        { FAULT_MAP, FAULT_ERROR, ENOMEM },
        { FAULT_READ, FAULT_LASTS, EIO },
    };
    float want[N_VOCAB], got[N_VOCAB];
    write_variant(latent, &(struct variant){ .whole = true, .format = KN_F16 });
    logits_of(path, want);
    io = OFF_IO_PREAD;
    int n_error = 0;
    for (int i = 0; i < LEN(ways); i++) {
        bool struck = true;
        for (long n = 1; struck; n++) {
            struct opened o;
            faults_at(ways[i].kind, n, ways[i].way, ways[i].error);
            int error = open_all(&o, path);
            close_all(&o);
            struck = faults.struck;
            if ((error && !struck) || !faults_clean())
                fail_msg("way %d, call %ld: %d, %s", i, n, error, faults_clean() ? "clean" : "something is left");
            n_error += error != 0;
        }
    }
    faults_off();
    io = OFF_IO_AUTO;
    assert_true(n_error > 20);
    logits_of(path, got);
    assert_memory_equal(got, want, sizeof got);
}

/* ---- metadata ------------------------------------------------------------------------------------------ */

#define A "deepseek2."

static void check_refused(const char *key, enum moe_type type, double number, int code, const char *says)
{
    struct opened o;
    write_variant(latent, &(struct variant){ .key = key, .type = type, .number = number });
    faults_reset();
    int got = open_all(&o, path);
    close_all(&o);
    if (got != code || (code && (!strstr(faults.line, says) || !strstr(faults.line, path))) || !faults_clean())
        fail_msg("%s %g: %d, '%s'", key, number, got, faults.line);
    faults_off();
}

static void numbers_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const char k[] = A "attention.kv_lora_rank", q[] = A "attention.q_lora_rank";
    check_refused(k, MOE_STRING, 0, KN_ECORRUPT, "kv_lora_rank is missing");
    check_refused(k, MOE_U32, 0, KN_ECORRUPT, "kv_lora_rank");
    check_refused(k, MOE_U32, 24, KN_EUNSUPPORTED, "latents of 24 values");
    check_refused(k, MOE_U32, 48, KN_ECORRUPT, "blk.0.attn_kv_a_mqa.weight");
    check_refused(k, MOE_U32, 1 << 14, KN_EUNSUPPORTED, "at most");
    check_refused(q, MOE_U32, 0, KN_ECORRUPT, "blk.0.attn_q.weight is missing");
    check_refused(q, MOE_U32, 95, KN_ECORRUPT, "blk.0.attn_q_a.weight");
    check_refused(A "attention.key_length_mla", MOE_U32, 8, KN_ECORRUPT, "rope.dimension_count");
    check_refused(A "attention.value_length_mla", MOE_U32, 20, KN_EUNSUPPORTED, "values of 20");
    check_refused(A "attention.value_length_mla", MOE_U32, 32, KN_ECORRUPT, "blk.0.attn_v_b.weight");
    check_refused(A "rope.dimension_count", MOE_STRING, 0, KN_ECORRUPT, "rope.dimension_count");
    check_refused(A "rope.dimension_count", MOE_U32, 7, KN_ECORRUPT, "rope.dimension_count is odd");
    check_refused(A "rope.dimension_count", MOE_U32, 40, KN_ECORRUPT, "rope.dimension_count");
    check_refused(A "rope.scaling.yarn_log_multiplier", MOE_F32, -1, KN_ECORRUPT, "yarn_log_multiplier");
    check_refused(A "rope.scaling.yarn_attn_factor", MOE_F32, -1, KN_ECORRUPT, "yarn_attn_factor");
    check_refused(A "expert_gating_func", MOE_U32, 3, KN_EUNSUPPORTED, "expert_gating_func 3");
    check_refused(A "expert_group_count", MOE_U32, 3, KN_ECORRUPT, "expert_group_count");
    check_refused(A "attention.head_count_kv", MOE_U32, 18, 0, ""); /* older files give the head count */
}

static struct moe_desc described(const char *key, enum moe_type type, double number)
{
    struct moe_file *f;
    struct moe_desc d;
    write_variant(latent, &(struct variant){ .key = key, .type = type, .number = number });
    assert_int_equal(moe_file_open(&f, path), 0);
    assert_int_equal(moe_desc_read(&d, f), 0);
    moe_file_close(f);
    return d;
}

static bool near(double a, double b) { return fabs(a - b) < 1e-6 * fabs(b); }

/* Defaults of keys that are left out. Yarn by 8: ln 8 = 2.0794415; heads of 40. */
static void what_is_left_out_is_known(void **state)
{
    (void)state;
    static const char multiplier[] = A "rope.scaling.yarn_log_multiplier";
    struct moe_desc d = described(A "expert_gating_func", MOE_STRING, 0); /* inferred from the selection bias */
    assert_true(d.gating == MOE_GATING_SIGMOID && d.select_bias && d.group_best == 2);
    d = described(A "expert_gating_func", MOE_U32, 1);
    assert_true(d.gating == MOE_GATING_SOFTMAX && d.select_bias && d.group_best == 1);
    d = described(multiplier, MOE_F32, 0.1);
    assert_true(near(d.scaling_attn, 1) && near(d.attend_scale, pow(1.20794415, 2) / sqrt(40)));
    d = described(multiplier, MOE_F32, 0.05);
    assert_true(near(d.scaling_attn, 1) && near(d.attend_scale, pow(1.103972077, 2) / sqrt(40)));
    d = described(multiplier, MOE_STRING, 0);
    assert_true(near(d.scaling_attn, 1.20794415) && near(d.attend_scale, 1 / sqrt(40)));
    d = described(A "rope.scaling.yarn_attn_factor", MOE_F32, 1.3);
    assert_true(near(d.scaling_attn, 1.3) && near(d.attend_scale, pow(1.20794415, 2) / sqrt(40)));
    d = described(A "rope.scaling.attn_factor", MOE_F32, 1.3);
    assert_true(near(d.scaling_attn, 1.3));
    assert_true(d.n_kv == 1 && d.d_key == 40 && d.d_kept == 32);
}

/* ---- slots --------------------------------------------------------------------------------------------- */

/* A sequence continues from copies of its slots, some overlapping the originals, with the same logits. */
static void copied_slots_are_as_good(void **state)
{
    (void)state;
    struct opened o;
    int32_t slot[N_TOK];
    float want[N_VOCAB], got[N_VOCAB];
    for (int which = 0; which < 2 * KN_KV_COUNT; which++) {
        kv = (enum kn_kv)(which / 2);
        assert_int_equal(open_all(&o, source_path[which % 2]), 0);
        for (int i = 0; i < N_TOK; i++)
            slot[i] = i;
        run(&o, slot, 0, N_TOK - 1, got);
        run(&o, slot, N_TOK - 1, 1, want);
        moe_context_copy_slots(o.context, 0, N_TOK + 5, 20);
        moe_context_copy_slots(o.context, 20, 15, N_TOK - 21);
        for (int i = 0; i < N_TOK; i++)
            slot[i] = i < 20 ? N_TOK + 5 + i : i < N_TOK - 1 ? i - 5 : 2 * N_TOK - 1;
        run(&o, slot, N_TOK - 1, 1, got);
        assert_memory_equal(got, want, sizeof got);
        close_all(&o);
    }
    kv = KN_KV_F16;
}

/* A latent slot holds one vector; heads with keys and values of their own would need eighteen. */
static void a_slot_keeps_latents_alone(void **state)
{
    (void)state;
    struct moe_model *m;
    assert_int_equal(moe_model_open(&m, latent, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 }), 0);
    assert_int_equal(moe_kv_slot_bytes(m, KN_KV_F16), 2 * (32 + 8) * 2);
    assert_int_equal(moe_kv_slot_bytes(m, KN_KV_F32), 2 * (32 + 8) * 4);
    assert_int_equal(moe_kv_slot_bytes(m, KN_KV_INT8), 2 * (32 + 8 + 4)); /* one scale */
    assert_true(moe_model_shape(m)->position_macs == 2 * 18 * (40 + 32));
    assert_int_equal(moe_model_shape(m)->n_moe_layer, 1);
    moe_model_close(m);
}

/* ---- ordinary heads with values of another length ------------------------------------------------------ */

static void values_may_be_shorter_or_longer_than_keys(void **state)
{
    (void)state;
    static const int wide[] = { 64, 24, 80 }; /* 64 is the keys' length */
    float want[N_VOCAB], got[N_VOCAB];
    for (int i = 0; i < LEN(wide); i++) {
        write_variant(plain, &(struct variant){ .d_value = wide[i] });
        logits_of(path, i ? got : want);
        assert_lively(want);
        if (i)
            assert_memory_equal(got, want, sizeof got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_in_one_or_apart_are_the_same),
        cmocka_unit_test(what_is_widened_is_said),
        cmocka_unit_test(whatever_fails_it_is_said_once),
        cmocka_unit_test(numbers_that_do_not_fit_are_refused),
        cmocka_unit_test(what_is_left_out_is_known),
        cmocka_unit_test(copied_slots_are_as_good),
        cmocka_unit_test(a_slot_keeps_latents_alone),
        cmocka_unit_test(values_may_be_shorter_or_longer_than_keys),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
