/* moe/write/quantize.c - writes a model file with its weights in other formats.
 *
 * Input: an open model file and a format for each part of the model.  Output: a GGUF file with the same metadata and
 * the same tensors in the same order, and the rounding error of each tensor.
 *
 * Tensors that need precision are written in F32: vectors, biases and routers (rounding a router would send tokens to
 * other experts).  A matrix that belongs to no known part keeps its format.
 *
 * A tensor is cut into grains of whole blocks.  One thread reads, decodes, encodes and measures a grain.  A few grains
 * per thread are processed at once and then written in order.  So memory is a few MiB per thread for any model size,
 * and neither the bytes nor the order of any sum depends on the number of threads.  Stacks stored by input take 128 MiB
 * more (strip.c).
 *
 * The scales of NVFP4's blocks have few exponents.  So a matrix written in it is divided by a factor with which its largest
 * value gets the largest scale, and the factors become tensors of their own at the end of the file (X.scale of X.weight):
 * such a matrix is read twice.
 *
 * With an importance matrix (importance.c) the encoders minimise the squared error weighted by column. */
#include "moe/files/files.h"
#include "moe/write/strip.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define GRAIN      (1 << 16) /* values: whole blocks of every format */
#define PER_THREAD 4         /* grains per thread in the buffer: all are converted, then all are written */
#define RUN        256       /* values that distance() decodes at a time; divides GRAIN */
#define NAME_MOST  256

struct job {
    const struct moe_file *file;
    const struct moe_quantize_options *opt;
    struct moe_writer *writer;
    struct moe_quantized *done; /* [n_tensor] */
    size_t n_tensor;
    struct factors { /* of the matrices of a tensor; n 0: none */
        size_t n;
        float *x;
    } * factors; /* [n_tensor] */
    struct moe_fallbacks fallbacks;
    size_t n_weighted, n_unweighted; /* quantised matrices with an importance, and without */
    size_t first_unweighted;
};

struct grain {
    int err;
    double square, error;
};

struct piece { /* the grains processed at once, all of one tensor */
    const struct job *job;
    const struct moe_tensor *t;
    const struct moe_quantized *q;
    const struct factors *factors;
    _Atomic uint32_t *largest; /* [factors->n] bits of the largest magnitude of each matrix */
    float *importance;         /* [dim[3], dim[2], dim[0]] of the tensor; NULL: all values count the same */
    uint64_t first;            /* number in the tensor of the first grain's first value */
    struct grain *grain;       /* [n_room] */
    uint8_t *out;              /* encoded grains, one directly behind the other; memory for n_room of GRAIN * 4 bytes */
    uint8_t *raw;              /* [n_thread][GRAIN * 4] a grain as read */
    struct moe_strip strip;    /* of a tensor stored by input */
    uint8_t *stored;           /* [n_room][GRAIN * 4] the grains of such a tensor */
    float *x;                  /* [n_thread][GRAIN] a grain's values */
    float *weight;             /* [n_thread][GRAIN] the weights of their errors */
    int n_thread, n_room;
    atomic_bool failed; /* a grain failed: threads skip the remaining ones */
};

static size_t bytes_of(enum kn_format f, uint64_t n_value)
{
    const struct kn_format_info *info = kn_format_info(f);
    return (size_t)(n_value / (uint64_t)info->block_values * (uint64_t)info->block_bytes);
}

/* ---- which format ---------------------------------------------------------------------------- */

static bool contains(const struct moe_tensor *t, const char *part)
{
    return memmem(t->name.data, t->name.n, part, strlen(part)) != NULL;
}

/* True for a list of token ids (EAGLE-3's d2t), which is copied. */
static bool is_list(const struct moe_tensor *t) { return t->gguf_type == MOE_TENSOR_I64 && t->n_dim == 1; }

/* True for divisors of RoPE's frequencies: no weights, and up to 1e30, beside which no error of weights would show. */
static bool is_divisor(const struct moe_tensor *t) { return t->n_dim == 1 && contains(t, "rope_f"); }

static bool is_wide(const struct moe_tensor *t)
{
    return t->n_dim == 1 || contains(t, "_norm.") || contains(t, ".bias") || contains(t, ".ffn_gate_inp");
}

static enum moe_part part_of(const struct moe_tensor *t)
{
    if (moe_string_is(t->name, "token_embd.weight"))
        return MOE_EMBEDDING;
    if (moe_string_is(t->name, "output.weight"))
        return MOE_HEAD;
    if (moe_tensor_is_expert(t))
        return MOE_EXPERTS;
    if (contains(t, ".ssm_in.") || contains(t, ".ssm_out."))
        return MOE_ATTENTION;
    return contains(t, ".ffn_") ? MOE_FFN : contains(t, ".attn_") ? MOE_ATTENTION : MOE_PART_COUNT;
}

static bool is_quantised(enum kn_format f) { return kn_format_info(f)->block_values > 1; }

/* The format with more bits per value. */
static enum kn_format wider(enum kn_format a, enum kn_format b)
{
    return bytes_of(a, GRAIN) >= bytes_of(b, GRAIN) ? a : b;
}

/* Whether a matrix of NVFP4 can have a factor of its own: a tensor beside it.  gemma4 has one there for its own purpose, and a stack
 * whose matrices lie in two dimensions does not show their number. */
static bool can_have_factor(const struct job *j, const struct moe_tensor *t)
{
    char name[NAME_MOST];
    int head = (int)t->name.n - (int)strlen(".weight");
    if (head < 1 || t->name.n >= NAME_MOST || memcmp(t->name.data + head, ".weight", strlen(".weight")))
        return false;
    snprintf(name, sizeof name, "%.*s.scale", head, t->name.data);
    bool stack = contains(t, "_exps.weight");
    return !moe_file_find_tensor(j->file, name) && (stack ? t->dim[2] > 1 : !moe_tensor_is_expert(t));
}

static enum kn_format wanted(struct job *j, const struct moe_tensor *t, enum kn_format from, const char *shown)
{
    const enum kn_format *format = j->opt->format;
    if (is_wide(t))
        return KN_F32;
    enum moe_part part = part_of(t);
    if (part == MOE_PART_COUNT) /* no known part: keeps its format, or F32 if GGUF lacks the format */
        return from < KN_GGUF_FORMAT_COUNT ? from : KN_F32;
    enum kn_format f = format[part];
    if (part == MOE_EMBEDDING && !moe_file_find_tensor(j->file, "output.weight"))
        f = wider(f, format[MOE_HEAD]);
    if (f == KN_NVFP4 && from != KN_NVFP4 && !can_have_factor(j, t))
        f = KN_IQ4_NL;
    return moe_format_fit(&j->fallbacks, shown, f, t->dim[0]);
}

/* True if an importance matrix changes the tensor that is written. */
static bool is_weighted(const struct moe_quantized *q) { return q->n_value && is_quantised(q->to) && q->from != q->to; }

static int plan_importance(struct job *j, size_t i)
{
    if (!j->opt->importance || !is_weighted(&j->done[i]))
        return 0;
    int found = moe_importance_check(j->opt->importance, moe_file_tensor(j->file, i));
    if (!found && !j->n_unweighted++)
        j->first_unweighted = i;
    j->n_weighted += found > 0;
    return found < 0 ? found : 0;
}

/* An importance matrix that names no matrix of the model is a mistake; llama.cpp's have no entry for the embedding and
 * the output matrix. */
static int check_importance(const struct job *j)
{
    char shown[NAME_MOST];
    if (!j->n_unweighted)
        return 0;
    moe_string_show(moe_file_tensor(j->file, j->first_unweighted)->name, shown, sizeof shown);
    if (!j->n_weighted)
        return kn_fail(
            KN_EINVAL,
            "%s: the importance matrix has no entry for '%s' or any other matrix to be quantised: it was made "
            "from another model",
            moe_file_path(j->file), shown);
    kn_say(KN_LOG_WARN,
           "%s: the importance matrix lacks %zu of %zu matrices, '%s' %s: in these all columns count the same",
           moe_file_path(j->file), j->n_unweighted, j->n_unweighted + j->n_weighted, shown,
           j->n_unweighted > 1 ? "the first" : "alone");
    return 0;
}

#define FACTOR_TOP (448.0f * 6) /* the largest value of NVFP4 */

/* Matrices of t that get a factor: those of a stack of experts, or one. */
static size_t n_factor(const struct moe_tensor *t, const struct moe_quantized *q)
{
    if (q->to != KN_NVFP4 || q->from == KN_NVFP4)
        return 0;
    return contains(t, "_exps.weight") ? (size_t)t->dim[2] : 1;
}

static int plan_factors(struct job *j, size_t i)
{
    struct factors *f = &j->factors[i];
    f->n = n_factor(moe_file_tensor(j->file, i), &j->done[i]);
    f->x = f->n ? kn_calloc(f->n, sizeof *f->x) : NULL;
    return f->n && !f->x ? kn_fail(KN_ENOMEM, "quantize: no memory for %zu factors", f->n) : 0;
}

static int plan_tensor(struct job *j, size_t i)
{
    const struct moe_tensor *t = moe_file_tensor(j->file, i);
    struct moe_quantized *q = &j->done[i];
    char shown[NAME_MOST];
    moe_string_show(t->name, shown, sizeof shown);
    if (is_list(t)) {
        *q = (struct moe_quantized){ .bytes = t->bytes };
        return 0;
    }
    *q = (struct moe_quantized){ .n_value = t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3] };
    if (kn_format_from_gguf(t->gguf_type, &q->from)) {
        const struct moe_tensor_type *type = moe_tensor_type(t->gguf_type);
        return kn_fail(KN_EUNSUPPORTED, "%s: tensor '%s' has type %s (%u), which cannot be read",
                       moe_file_path(j->file), shown, type ? type->name : "unknown", t->gguf_type);
    }
    q->to = wanted(j, t, q->from, shown);
    q->bytes = bytes_of(q->to, q->n_value);
    if (is_quantised(q->from) && !j->opt->requantize)
        return kn_fail(KN_EINVAL,
                       "%s: tensor '%s' is already quantised (%s), and doing it again adds "
                       "error: use the F16, BF16 or F32 file, or pass --requantize",
                       moe_file_path(j->file), shown, kn_format_info(q->from)->name);
    int err = plan_factors(j, i);
    return err ? err : plan_importance(j, i);
}

/* ---- the header ------------------------------------------------------------------------------ */

/* The format that most of the written values have. */
static enum kn_format main_format(const struct job *j)
{
    uint64_t n[KN_FORMAT_COUNT] = { 0 };
    int most = 0;
    for (size_t i = 0; i < j->n_tensor; i++)
        n[j->done[i].to] += j->done[i].n_value;
    for (int f = 1; f < KN_FORMAT_COUNT; f++)
        most = n[f] > n[most] ? f : most;
    return (enum kn_format)most;
}

/* Copies all metadata but the keys of splits, of the alignment and of the format; the keys of the format are written
 * with their new values. */
static int write_values(const struct job *j)
{
    static const char type_key[] = "general.file_type";
    static const char version_key[] = "general.quantization_version";
    uint32_t type = moe_file_type(main_format(j)), version = MOE_QUANTIZATION_VERSION;
    int err = 0;
    for (size_t i = 0; !err && i < moe_file_value_count(j->file); i++) {
        const struct moe_value *v = moe_file_value(j->file, i);
        if (moe_string_is(v->key, type_key) || moe_string_is(v->key, version_key) ||
            moe_string_is(v->key, "general.alignment") || (v->key.n > 6 && !memcmp(v->key.data, "split.", 6)))
            continue;
        err = moe_writer_copy(j->writer, v);
    }
    if (!err)
        err = moe_writer_value(j->writer, type_key, MOE_U32, &type);
    if (!err)
        err = moe_writer_value(j->writer, version_key, MOE_U32, &version);
    return err;
}

static int describe_tensor(const struct job *j, size_t i)
{
    const struct moe_tensor *t = moe_file_tensor(j->file, i);
    char name[NAME_MOST];
    if (t->name.n >= sizeof name || memchr(t->name.data, 0, t->name.n))
        return kn_fail(KN_ELIMIT, "%s: tensor %zu has a name of %zu bytes, which is too long or has a NUL byte",
                       moe_file_path(j->file), i, t->name.n);
    memcpy(name, t->name.data, t->name.n);
    name[t->name.n] = '\0';
    if (is_list(t))
        return moe_writer_ids(j->writer, name, t->dim[0]);
    return moe_writer_tensor(j->writer, name, j->done[i].to, t->n_dim, t->dim);
}

/* The tensor with the factors of tensor i. */
static int describe_factors(const struct job *j, size_t i)
{
    const struct moe_tensor *t = moe_file_tensor(j->file, i);
    char name[NAME_MOST];
    uint64_t n = j->factors[i].n;
    if (!n)
        return 0;
    snprintf(name, sizeof name, "%.*s.scale", (int)(t->name.n - strlen(".weight")), t->name.data);
    return moe_writer_tensor(j->writer, name, KN_F32, 1, &n);
}

/* ---- weights --------------------------------------------------------------------------------- */

static double square_of(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

/* Sum of squared differences between values and their decoded blocks. */
static double distance(enum kn_format f, const float *x, size_t n, const uint8_t *blocks)
{
    float y[RUN];
    double sum = 0;
    for (size_t at = 0; at < n; at += RUN) {
        size_t part = n - at < RUN ? n - at : RUN;
        kn_row_decode(f, blocks + bytes_of(f, at), (int)part, y);
        for (size_t i = 0; i < part; i++)
            y[i] = x[at + i] - y[i];
        sum += square_of(y, part);
    }
    return sum;
}

/* Weights of n values of the tensor from value `at` on: those of their columns. */
static void lay_weights(const struct piece *p, uint64_t at, size_t n, float *out)
{
    uint64_t n_in = p->t->dim[0], per_matrix = n_in * p->t->dim[1];
    for (size_t done = 0, part; done < n; done += part) {
        uint64_t value = at + done, column = value % n_in;
        part = n - done < n_in - column ? n - done : (size_t)(n_in - column);
        memcpy(out + done, p->importance + value / per_matrix * n_in + column, part * sizeof *out);
    }
}

/* Values of the tensor from value `at` on, at most n, that have one factor; *factor: its number. */
static size_t of_one_factor(const struct piece *p, uint64_t at, size_t n, size_t *factor)
{
    uint64_t per = p->factors->n > 1 ? p->t->dim[0] * p->t->dim[1] : p->q->n_value, left = per - at % per;
    *factor = (size_t)(at / per);
    return left < n ? (size_t)left : n;
}

/* Raises *to to the bits of x, which is not negative; such floats are in the order of their bits. */
static void raise_to(_Atomic uint32_t *to, float x)
{
    uint32_t bits, was = atomic_load(to);
    memcpy(&bits, &x, sizeof bits);
    while (bits > was && !atomic_compare_exchange_weak(to, &was, bits))
        ;
}

/* Reads the grains of the piece, if the tensor is stored by input: all threads read its strips. */
static int prepare_grains(struct piece *p, int n_grain)
{
    const size_t room = (size_t)p->n_room * GRAIN * sizeof(float);
    uint64_t left = p->q->n_value - p->first, n = (uint64_t)n_grain * GRAIN;
    if (!moe_file_is_by_input(p->t))
        return 0;
    if (!p->stored && !(p->stored = kn_alloc(room)))
        return kn_fail(KN_ENOMEM, "quantize: no memory for %zu bytes of grains", room);
    p->strip.t = p->t;
    p->strip.one = bytes_of(p->q->from, 1);
    p->strip.most = MOE_STRIP_BYTES;
    return moe_strip_read(&p->strip, p->job->file, p->job->opt->team, p->first, p->stored,
                          bytes_of(p->q->from, left < n ? left : n));
}

static int read_grain(const struct piece *p, uint64_t at, size_t n, uint8_t *raw)
{
    const size_t bytes = bytes_of(p->q->from, n);
    if (!moe_file_is_by_input(p->t))
        return moe_file_read(p->job->file, p->t, bytes_of(p->q->from, at), raw, bytes);
    memcpy(raw, p->stored + bytes_of(p->q->from, at - p->first), bytes);
    return 0;
}

/* Finds the largest magnitudes in a grain. */
static void measure_grain(void *arg, int item, int thread)
{
    struct piece *p = arg;
    uint64_t at = p->first + (uint64_t)item * GRAIN, left = p->q->n_value - at;
    size_t n = left < GRAIN ? (size_t)left : GRAIN, number;
    uint8_t *raw = p->raw + (size_t)thread * GRAIN * sizeof(float);
    float *x = p->x + (size_t)thread * GRAIN;
    p->grain[item] = (struct grain){ .err = read_grain(p, at, n, raw) };
    if (p->grain[item].err)
        return;
    kn_row_decode(p->q->from, raw, (int)n, x);
    for (size_t i = 0, part; i < n; i += part) {
        float most = 0;
        part = of_one_factor(p, at + i, n - i, &number);
        for (size_t k = i; k < i + part; k++)
            most = fabsf(x[k]) > most ? fabsf(x[k]) : most;
        raise_to(&p->largest[number], most);
    }
}

/* Encodes a grain, divided by its factors; returns the squared error. */
static double encode_scaled(const struct piece *p, uint64_t at, float *x, const float *weight, size_t n, uint8_t *out)
{
    double error = 0;
    size_t number;
    for (size_t i = 0, part; i < n; i += part) {
        part = of_one_factor(p, at + i, n - i, &number);
        float factor = p->factors->x[number];
        for (size_t k = i; k < i + part; k++)
            x[k] /= factor;
        uint8_t *blocks = out + bytes_of(p->q->to, i);
        p->job->opt->ops->encode(p->q->to, x + i, weight ? weight + i : NULL, part, blocks);
        error += distance(p->q->to, x + i, part, blocks) * (double)factor * (double)factor;
    }
    return error;
}

static void convert_grain(void *arg, int item, int thread)
{
    struct piece *p = arg;
    const struct moe_quantized *q = p->q;
    uint64_t at = p->first + (uint64_t)item * GRAIN, left = q->n_value - at;
    size_t n = left < GRAIN ? (size_t)left : GRAIN, raw_bytes = bytes_of(q->from, n);
    uint8_t *out = p->out + (size_t)item * bytes_of(q->to, GRAIN);
    uint8_t *raw = q->from == q->to ? out : p->raw + (size_t)thread * GRAIN * sizeof(float);
    float *x = p->x + (size_t)thread * GRAIN;

    p->grain[item] = (struct grain){ 0 };
    if (atomic_load(&p->failed))
        return;
    int err = read_grain(p, at, n, raw);
    if (err) {
        p->grain[item].err = err;
        atomic_store(&p->failed, true);
        return;
    }
    kn_row_decode(q->from, raw, (int)n, x);
    p->grain[item].square = is_divisor(p->t) ? 0 : square_of(x, n);
    if (q->from != q->to) {
        float *weight = p->importance ? p->weight + (size_t)thread * GRAIN : NULL;
        if (weight)
            lay_weights(p, at, n, weight);
        if (p->factors->n) {
            p->grain[item].error = encode_scaled(p, at, x, weight, n, out);
        } else {
            p->job->opt->ops->encode(q->to, x, weight, n, out);
            p->grain[item].error = distance(q->to, x, n, out);
        }
    }
    if (p->job->opt->progress)
        atomic_fetch_add(&p->job->opt->progress->done_bytes, raw_bytes);
}

static int write_piece(struct piece *p, struct moe_quantized *q, int n_grain)
{
    uint64_t left = q->n_value - p->first, n = (uint64_t)n_grain * GRAIN;
    for (int i = 0; i < n_grain; i++) {
        if (p->grain[i].err)
            return p->grain[i].err;
        q->square += p->grain[i].square;
        q->error += p->grain[i].error;
    }
    return moe_writer_data(p->job->writer, p->out, bytes_of(q->to, left < n ? left : n));
}

/* A sum that is not finite shows that a value is not finite, or that one overflows the format. */
static int check_sums(const struct piece *p)
{
    char shown[NAME_MOST];
    moe_string_show(p->t->name, shown, sizeof shown);
    if (p->q->from == p->q->to || (isfinite(p->q->square) && isfinite(p->q->error)))
        return 0;
    const char *what = isfinite(p->q->square) ? "are too large for its format: keep it in BF16 or F32"
                                              : "are not finite";
    return kn_fail(KN_EINVAL, "%s: tensor '%s' has values that %s", moe_file_path(p->job->file), shown, what);
}

static int copy_list(const struct piece *p, const struct moe_tensor *t)
{
    size_t room = (size_t)GRAIN * sizeof(float);
    int err = 0;
    for (uint64_t at = 0; at < t->bytes && !err; at += room) {
        size_t n = t->bytes - at < room ? (size_t)(t->bytes - at) : room;
        err = moe_file_read(p->job->file, t, at, p->raw, n);
        if (!err)
            err = moe_writer_data(p->job->writer, p->raw, n);
    }
    return err;
}

static int read_importance(struct piece *p)
{
    const struct moe_importance *m = p->job->opt->importance;
    if (!m || !is_weighted(p->q) || moe_importance_check(m, p->t) <= 0)
        return 0;
    size_t n = (size_t)(p->t->dim[0] * p->t->dim[2] * p->t->dim[3]);
    p->importance = kn_alloc(n * sizeof *p->importance);
    return p->importance ? moe_importance_read(m, p->t, p->importance)
                         : kn_fail(KN_ENOMEM, "quantize: no memory for %zu columns' importance", n);
}

static int grains_from(struct piece *p)
{
    uint64_t n = (p->q->n_value - p->first + GRAIN - 1) / GRAIN;
    return n < (uint64_t)p->n_room ? (int)n : p->n_room;
}

/* Sets the factors of the tensor's matrices from their largest magnitudes. */
static int find_factors(struct piece *p)
{
    int err = 0;
    p->largest = kn_calloc(p->factors->n + 1, sizeof *p->largest);
    if (!p->largest)
        return kn_fail(KN_ENOMEM, "quantize: no memory for %zu factors", p->factors->n);
    for (p->first = 0; !err && p->factors->n && p->first < p->q->n_value; p->first += (uint64_t)p->n_room * GRAIN) {
        int n_grain = grains_from(p);
        if ((err = prepare_grains(p, n_grain)))
            break;
        kn_parallel_for(p->job->opt->team, n_grain, measure_grain, p);
        for (int i = 0; i < n_grain && !err; i++)
            err = p->grain[i].err;
    }
    for (size_t i = 0; i < p->factors->n; i++) {
        uint32_t bits = atomic_load(&p->largest[i]);
        float most;
        memcpy(&most, &bits, sizeof most);
        float factor = most / FACTOR_TOP;
        p->factors->x[i] = factor > 0x1p-120f && isfinite(factor) ? factor : 1;
    }
    kn_free(p->largest);
    return err;
}

static int write_tensor(struct piece *p, size_t i)
{
    const struct job *j = p->job;
    if (is_list(moe_file_tensor(j->file, i)))
        return copy_list(p, moe_file_tensor(j->file, i));
    struct moe_quantized *q = &j->done[i];
    p->t = moe_file_tensor(j->file, i);
    p->q = q;
    p->factors = &j->factors[i];
    int err = read_importance(p);
    if (!err)
        err = find_factors(p);
    for (p->first = 0; !err && p->first < q->n_value; p->first += (uint64_t)p->n_room * GRAIN) {
        int n_grain = grains_from(p);
        err = prepare_grains(p, n_grain);
        if (err)
            break;
        kn_parallel_for(j->opt->team, n_grain, convert_grain, p);
        err = write_piece(p, q, n_grain);
        if (!err && j->opt->stop && atomic_load(j->opt->stop))
            err = kn_fail(KN_ECANCELLED, "quantize: stopped; nothing was written");
    }
    kn_free(p->importance);
    p->importance = NULL;
    moe_strip_free(&p->strip);
    return err ? err : check_sums(p);
}

static int write_tensors(struct job *j)
{
    int n_thread = kn_team_size(j->opt->team), n_room = n_thread * PER_THREAD, err = 0;
    size_t grain = (size_t)GRAIN * sizeof(float);
    size_t bytes = (size_t)(3 * n_thread + n_room) * grain;
    struct piece p = { .job = j, .n_thread = n_thread, .n_room = n_room };
    uint8_t *memory = kn_map(bytes, -1);
    p.grain = kn_calloc((size_t)n_room, sizeof *p.grain);
    if (!memory || !p.grain)
        err = kn_fail(KN_ENOMEM, "quantize: no memory for %zu MiB of buffers", bytes >> 20);
    if (!err) {
        p.x = (float *)memory;
        p.weight = p.x + (size_t)n_thread * GRAIN;
        p.raw = memory + (size_t)(2 * n_thread) * grain;
        p.out = p.raw + (size_t)n_thread * grain;
    }
    for (size_t i = 0; !err && i < j->n_tensor; i++)
        err = write_tensor(&p, i);
    for (size_t i = 0; !err && i < j->n_tensor; i++)
        if (j->factors[i].n)
            err = moe_writer_data(j->writer, j->factors[i].x, j->factors[i].n * sizeof(float));
    kn_free(p.grain);
    kn_free(p.stored);
    if (memory)
        kn_unmap(memory, bytes);
    return err;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int write_file(struct job *j)
{
    uint64_t total = 0;
    int err = write_values(j);
    for (size_t i = 0; !err && i < j->n_tensor; i++) {
        err = describe_tensor(j, i);
        total += bytes_of(j->done[i].from, j->done[i].n_value);
    }
    for (size_t i = 0; !err && i < j->n_tensor; i++)
        err = describe_factors(j, i);
    if (j->opt->progress)
        atomic_store(&j->opt->progress->total_bytes, total);
    if (!err)
        err = moe_writer_header(j->writer);
    if (!err)
        err = write_tensors(j);
    return err ? err : moe_writer_finish(j->writer);
}

int moe_quantize(const char *path, const struct moe_file *f, const struct moe_quantize_options *opt,
                 struct moe_quantized *done)
{
    struct job j = { .file = f, .opt = opt, .done = done, .n_tensor = moe_file_tensor_count(f) };
    j.factors = kn_calloc(j.n_tensor + 1, sizeof *j.factors);
    int err = j.factors ? 0 : kn_fail(KN_ENOMEM, "quantize: no memory for %zu tensors", j.n_tensor);
    for (size_t i = 0; !err && i < j.n_tensor; i++)
        err = plan_tensor(&j, i);
    moe_fallbacks_log(&j.fallbacks);
    if (!err)
        err = check_importance(&j);
    if (!err)
        err = moe_writer_open(&j.writer, path);
    if (!err)
        err = write_file(&j);
    moe_writer_close(j.writer);
    for (size_t i = 0; j.factors && i < j.n_tensor; i++)
        kn_free(j.factors[i].x);
    kn_free(j.factors);
    return err;
}
