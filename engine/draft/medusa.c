/* engine/draft/medusa.c - the network of Medusa heads (Cai et al., "Medusa: Simple LLM inference acceleration framework with
 * multiple decoding heads").
 *
 * A head reads the target's feature of a token, its hidden state behind the final norm, and gives logits of the token
 * 2 + head places further on:
 *
 *     x = x + SiLU(W x + b)     for each of its residual blocks
 *     logits = V x
 *
 * Tensors have the names of the published files (moe/files/hf_medusa.c reads other layouts to them): of head h, block l,
 * "h.l.linear.weight" [d][d] and "h.l.linear.bias" [d], if heads have biases; its output matrix is "h.L.weight" [n_vocab][d],
 * where L is the number of blocks, or "0.L.weight" for all heads. Matrices stay in their format, are read as the model's own
 * are (off_load), and are computed by the target's kernels, so a draft has the same bits on every machine. */
#include "engine/draft/medusa.h"

#include <stdio.h>
#include <string.h>

#define TASK_PANELS 8 /* panels that one item of work computes */
#define NAME_BYTES  64
#define MAX_WIDTH   65536
#define MAX_VOCAB   (1 << 21)
#define MAX_STATED  100 /* heads or blocks that a file may have */
#define MATRICES    (ENG_MEDUSA_HEADS * (ENG_MEDUSA_LAYERS + 1))

struct matrix {
    struct off_source source;
    struct kn_mat mat;
};

struct eng_medusa {
    struct moe_file *file;
    const struct kn_ops *ops;
    struct eng_medusa_shape shape;
    bool has_bias, shared_output;
    struct matrix block[ENG_MEDUSA_HEADS][ENG_MEDUSA_LAYERS];
    const struct moe_tensor *bias_tensor[ENG_MEDUSA_HEADS][ENG_MEDUSA_LAYERS];
    struct matrix output[ENG_MEDUSA_HEADS]; /* with shared_output the first only */
    struct kn_arena weights, buffers;
    float *bias[ENG_MEDUSA_HEADS][ENG_MEDUSA_LAYERS]; /* [d_model] */
    struct off_hands hands;                           /* for the load */
    float *one;                                       /* [d_model] ones: SiLU is SwiGLU with them */
    float *feature, *x, *y;                           /* [most_row][d_model] */
    float *logits;                                    /* [most_row][n_vocab] */
    char *act;                                        /* [most_row][act_bytes] a matrix's activations */
    size_t act_bytes;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

static int refuse(const struct eng_medusa *m, const char *name, const char *why)
{
    return kn_fail(KN_EINVAL, "%s: tensor %s: %s", moe_file_path(m->file), name, why);
}

/* The tensor "head.layer<suffix>". */
static int find(const struct eng_medusa *m, int head, int layer, const char *suffix, int n_out,
                const struct moe_tensor **out)
{
    char name[NAME_BYTES];
    uint64_t d = (uint64_t)m->shape.d_model;
    snprintf(name, sizeof name, "%d.%d%s", head, layer, suffix);
    const struct moe_tensor *t = moe_file_find_tensor(m->file, name);
    if (!t)
        return refuse(m, name, "there is none: Medusa heads have one for each head and block");
    if (t->dim[0] != d || t->dim[1] != (uint64_t)n_out || t->dim[2] != 1)
        return kn_fail(KN_EINVAL, "%s: tensor %s has %llu rows of %llu values; %d of %d are needed",
                       moe_file_path(m->file), name, (unsigned long long)t->dim[1], (unsigned long long)t->dim[0],
                       n_out, m->shape.d_model);
    enum kn_format f;
    if (kn_format_from_gguf(t->gguf_type, &f) || !kn_mat_bytes(f, n_out, m->shape.d_model) ||
        t->bytes != kn_row_bytes(f, m->shape.d_model) * (uint64_t)n_out)
        return refuse(m, name, "its type cannot be computed: F32, F16, BF16 can");
    *out = t;
    return 0;
}

static int find_matrix(const struct eng_medusa *m, int head, int layer, const char *suffix, int n_out,
                       struct matrix *out)
{
    const struct moe_tensor *t;
    int d = m->shape.d_model, error = find(m, head, layer, suffix, n_out, &t);
    if (error)
        return error;
    out->mat = (struct kn_mat){ .n_out = n_out, .n_in = d, .scale = 1 };
    kn_format_from_gguf(t->gguf_type, &out->mat.format);
    out->source = (struct off_source){
        .file = t->file, .offset = t->offset, .format = out->mat.format, .n_out = n_out, .n_in = d, .scale = 1
    };
    return 0;
}

static int find_head(struct eng_medusa *m, int head)
{
    int error = 0, d = m->shape.d_model, n_layer = m->shape.n_layer;
    for (int l = 0; l < n_layer && !error; l++) {
        error = find_matrix(m, head, l, ".linear.weight", d, &m->block[head][l]);
        if (!error && m->has_bias)
            error = find(m, head, l, ".linear.bias", 1, &m->bias_tensor[head][l]);
    }
    return error || (head && m->shared_output)
               ? error
               : find_matrix(m, head, n_layer, ".weight", m->shape.n_vocab, &m->output[head]);
}

/* The first head's output matrix gives the widths. */
static int read_shape(struct eng_medusa *m)
{
    char name[NAME_BYTES];
    int64_t n_head = 0, n_layer = 0;
    int has_heads = moe_file_int(m->file, "medusa.head_count", 1, MAX_STATED, &n_head);
    int has_layers = moe_file_int(m->file, "medusa.block_count", 0, MAX_STATED, &n_layer);
    if (has_heads < 0 || has_layers < 0)
        return has_heads < 0 ? has_heads : has_layers;
    if (!has_heads || !has_layers)
        return kn_fail(KN_EINVAL, "%s: these are no Medusa heads: name a folder with config.json and %s",
                       moe_file_path(m->file), "medusa_lm_head.safetensors");
    if (n_layer > ENG_MEDUSA_LAYERS)
        return kn_fail(KN_ELIMIT, "%s: its Medusa heads have %d blocks; at most %d are possible",
                       moe_file_path(m->file), (int)n_layer, ENG_MEDUSA_LAYERS);
    if (n_head > ENG_MEDUSA_HEADS)
        kn_say(KN_LOG_INFO, "%s: the first %d of its %d Medusa heads draft", moe_file_path(m->file), ENG_MEDUSA_HEADS,
               (int)n_head);
    if (moe_file_bool(m->file, "medusa.bias", &m->has_bias) < 0 ||
        moe_file_bool(m->file, "medusa.shared_output", &m->shared_output) < 0)
        return KN_EINVAL;
    snprintf(name, sizeof name, "0.%d.weight", (int)n_layer);
    const struct moe_tensor *t = moe_file_find_tensor(m->file, name);
    if (!t || t->dim[0] < 1 || t->dim[0] > MAX_WIDTH || t->dim[1] < 1 || t->dim[1] > MAX_VOCAB)
        return refuse(m, name, "there is no output matrix of this name");
    m->shape = (struct eng_medusa_shape){ kn_min((int)n_head, ENG_MEDUSA_HEADS), (int)n_layer, (int)t->dim[0],
                                          (int)t->dim[1] };
    return 0;
}

int eng_medusa_open(struct eng_medusa **out, struct moe_file *file, const struct kn_ops *ops)
{
    struct eng_medusa *m = kn_calloc(1, sizeof *m);
    if (!m)
        return kn_fail(KN_ENOMEM, "no memory for Medusa heads");
    m->file = file;
    m->ops = ops;
    int error = read_shape(m);
    for (int i = 0; i < m->shape.n_head && !error; i++)
        error = find_head(m, i);
    if (error) {
        eng_medusa_close(m);
        return error;
    }
    *out = m;
    return 0;
}

void eng_medusa_unload(struct eng_medusa *m)
{
    kn_arena_close(&m->weights);
    kn_arena_close(&m->buffers);
}

void eng_medusa_close(struct eng_medusa *m)
{
    if (!m)
        return;
    eng_medusa_unload(m);
    kn_free(m);
}

struct eng_medusa_shape eng_medusa_shape(const struct eng_medusa *m) { return m->shape; }

/* ---- memory and weights ---------------------------------------------------------------------------------- */

/* Raises *act_bytes to those of a row of w's activations. */
static void widen(size_t *act_bytes, const struct kn_mat *w)
{
    size_t bytes = kn_align_up(kn_act_bytes(kn_format_info(w->format)->act, w->n_in), 64);
    *act_bytes = bytes > *act_bytes ? bytes : *act_bytes;
}

/* Lists the matrices of all heads. Returns their number. */
static int list_matrices(struct eng_medusa *m, struct matrix *out[MATRICES])
{
    int n = 0;
    for (int h = 0; h < m->shape.n_head; h++) {
        for (int l = 0; l < m->shape.n_layer; l++)
            out[n++] = &m->block[h][l];
        if (!h || !m->shared_output)
            out[n++] = &m->output[h];
    }
    return n;
}

/* These take memory of an arena; one without memory only counts. Reads need memory that begins at a page: the matrices
 * come first, each in whole pages. */
static void take_weights(struct eng_medusa *m, struct kn_arena *a, struct off_load *load)
{
    struct matrix *all[MATRICES];
    int n = list_matrices(m, all);
    for (int i = 0; i < n; i++) {
        void *place = kn_arena_take(a, 1, off_place_bytes(&all[i]->source));
        if (load) {
            load[i] = (struct off_load){ all[i]->source, place };
            all[i]->mat.data = off_place_panels(&all[i]->source, place);
        }
    }
    for (int h = 0; h < m->shape.n_head; h++)
        for (int l = 0; l < m->shape.n_layer && m->has_bias; l++)
            m->bias[h][l] = kn_arena_take(a, (size_t)m->shape.d_model, sizeof(float));
}

static void take_buffers(struct eng_medusa *m, struct kn_arena *a, struct kn_team *team, int most_row)
{
    struct matrix *all[MATRICES];
    size_t d = (size_t)m->shape.d_model, n = (size_t)most_row;
    m->hands = (struct off_hands){ .ops = m->ops, .team = team };
    m->act_bytes = 0;
    for (int i = list_matrices(m, all) - 1; i >= 0; i--) {
        size_t scratch = off_scratch_bytes(&all[i]->source, kn_team_size(team));
        m->hands.scratch_bytes = scratch > m->hands.scratch_bytes ? scratch : m->hands.scratch_bytes;
        widen(&m->act_bytes, &all[i]->mat);
    }
    m->hands.scratch = kn_arena_take(a, (size_t)kn_team_size(team), m->hands.scratch_bytes);
    m->one = kn_arena_take(a, d, sizeof *m->one);
    m->feature = kn_arena_take(a, n * d, sizeof *m->feature);
    m->x = kn_arena_take(a, n * d, sizeof *m->x);
    m->y = kn_arena_take(a, n * d, sizeof *m->y);
    m->logits = kn_arena_take(a, n * (size_t)m->shape.n_vocab, sizeof *m->logits);
    m->act = kn_arena_take(a, n * m->act_bytes / 64, 64);
}

struct eng_medusa_bytes eng_medusa_bytes(const struct eng_medusa *m, struct kn_team *team, int most_row)
{
    struct eng_medusa counts = *m;
    struct kn_arena weights = { 0 }, buffers = { 0 };
    take_weights(&counts, &weights, NULL);
    take_buffers(&counts, &buffers, team, most_row);
    size_t pass = off_place_bytes(&m->output[0].source);
    for (int l = 0; l < m->shape.n_layer; l++)
        pass += off_place_bytes(&m->block[0][l].source);
    return (struct eng_medusa_bytes){ weights.used, pass, buffers.used };
}

static int load_bias(const struct eng_medusa *m, const struct moe_tensor *t, float *out)
{
    enum kn_format f;
    void *row = kn_alloc((size_t)t->bytes);
    int error = row ? moe_file_read(m->file, t, 0, row, (size_t)t->bytes) : kn_fail(KN_ENOMEM, "no memory for a bias");
    kn_format_from_gguf(t->gguf_type, &f);
    if (!error)
        kn_row_decode(f, row, m->shape.d_model, out);
    kn_free(row);
    return error;
}

int eng_medusa_load(struct eng_medusa *m, struct kn_team *team, enum off_io_kind io, int most_row)
{
    struct eng_medusa_bytes bytes = eng_medusa_bytes(m, team, most_row);
    struct matrix *all[MATRICES];
    struct off_load load[MATRICES];
    int n = list_matrices(m, all);
    if (kn_arena_open(&m->weights, bytes.weights, -1) || kn_arena_open(&m->buffers, bytes.buffers, -1))
        return kn_fail(KN_ENOMEM, "no memory for Medusa heads of %zu MiB", (bytes.weights + bytes.buffers) >> 20);
    take_weights(m, &m->weights, load);
    take_buffers(m, &m->buffers, team, most_row);
    for (int i = 0; i < m->shape.d_model; i++)
        m->one[i] = 1;
    int error = off_load(moe_file_files(m->file), io, load, n, &m->hands, NULL);
    for (int h = 0; h < m->shape.n_head; h++)
        for (int l = 0; l < m->shape.n_layer && m->has_bias && !error; l++)
            error = load_bias(m, m->bias_tensor[h][l], m->bias[h][l]);
    return error;
}

/* ---- computing --------------------------------------------------------------------------------------------- */

float *eng_medusa_feature(struct eng_medusa *m, int row) { return m->feature + (size_t)row * (size_t)m->shape.d_model; }

const float *eng_medusa_logits(const struct eng_medusa *m, int row)
{
    return m->logits + (size_t)row * (size_t)m->shape.n_vocab;
}

struct product {
    const struct eng_medusa *m;
    struct kn_matmul mul;
};

static int n_task(const struct kn_mat *w) { return kn_ceil_div(w->n_out, KN_PANEL * TASK_PANELS); }
static int last_panel(const struct kn_mat *w, int task)
{
    return kn_min((task + 1) * TASK_PANELS, kn_ceil_div(w->n_out, KN_PANEL));
}

static void product_item(void *arg, int item, int thread)
{
    const struct product *p = arg;
    (void)thread;
    p->m->ops->matmul(&p->mul, item * TASK_PANELS, last_panel(&p->mul.w, item));
}

/* y[n][n_out] = W x[n][d_model] */
static void multiply(struct eng_medusa *m, struct kn_team *team, const struct kn_mat *w, int n, float *y)
{
    enum kn_act act = kn_format_info(w->format)->act;
    for (int i = 0; i < n; i++)
        m->ops->quantize(act, m->x + (size_t)i * (size_t)w->n_in, w->n_in, m->act + (size_t)i * m->act_bytes);
    struct product p = {
        m, { .w = *w, .x = m->act, .x_stride = m->act_bytes, .y = y, .y_stride = (size_t)w->n_out, .n_row = n }
    };
    kn_parallel_for(team, n_task(w), product_item, &p);
}

void eng_medusa_compute(struct eng_medusa *m, struct kn_team *team, int head, int n)
{
    size_t d = (size_t)m->shape.d_model;
    memcpy(m->x, m->feature, (size_t)n * d * sizeof *m->x);
    for (int l = 0; l < m->shape.n_layer; l++) {
        multiply(m, team, &m->block[head][l].mat, n, m->y);
        for (int i = 0; i < n; i++) {
            float *x = m->x + (size_t)i * d, *y = m->y + (size_t)i * d;
            for (size_t k = 0; k < d && m->has_bias; k++)
                y[k] += m->bias[head][l][k];
            m->ops->swiglu(y, m->one, (int)d, y);
            for (size_t k = 0; k < d; k++)
                x[k] += y[k];
        }
    }
    multiply(m, team, &m->output[m->shared_output ? 0 : head].mat, n, m->logits);
}
