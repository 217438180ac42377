/* engine/draft/medusa.c - the network of Medusa heads (Cai et al., "Medusa: Simple LLM inference acceleration framework with
 * multiple decoding heads").
 *
 * A head reads the target's feature of a token, its hidden state behind the final norm, and gives logits of the token
 * 2 + head places further on:
 *
 *     x = x + SiLU(W x + b)     for each of its residual blocks
 *     logits = V x
 *
 * Tensors have the names of the published files: of head h, block l, "h.l.linear.weight" [d][d] and "h.l.linear.bias" [d];
 * its output matrix is "h.L.weight" [n_vocab][d], where L is the number of blocks. Matrices stay in their format, and are
 * computed by the target's kernels, so a draft has the same bits on every machine. */
#include "engine/draft/medusa.h"

#include <stdio.h>
#include <string.h>

#define PANEL       16 /* rows of a panel (formats.h) */
#define TASK_PANELS 8  /* panels that one item of work computes */
#define NAME_BYTES  64
#define MAX_WIDTH   65536
#define MAX_VOCAB   (1 << 21)

struct matrix {
    const struct moe_tensor *tensor;
    struct kn_mat mat;
};

struct eng_medusa {
    struct moe_file *file;
    const struct kn_ops *ops;
    struct eng_medusa_shape shape;
    struct matrix block[ENG_MEDUSA_HEADS][ENG_MEDUSA_LAYERS];
    const struct moe_tensor *bias_tensor[ENG_MEDUSA_HEADS][ENG_MEDUSA_LAYERS];
    struct matrix output[ENG_MEDUSA_HEADS];
    struct kn_arena arena;
    float *bias[ENG_MEDUSA_HEADS][ENG_MEDUSA_LAYERS]; /* [d_model] */
    float *one;                                       /* [d_model] ones: SiLU is SwiGLU with them */
    float *feature, *x, *y;                           /* [most_row][d_model] */
    float *logits;                                    /* [most_row][n_vocab] */
    char *act;                                        /* [most_row][act_bytes] a matrix's activations */
    size_t act_bytes;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

static int refuse(const struct eng_medusa *m, const char *name, const char *why)
{
    return kn_fail(KN_EINVAL, "%s: %s: %s", moe_file_path(m->file), name, why);
}

/* The tensor "head.layer<suffix>"; n_out 0: not known yet. */
static int find(const struct eng_medusa *m, int head, int layer, const char *suffix, uint64_t n_in, uint64_t n_out,
                const struct moe_tensor **out)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%d.%d%s", head, layer, suffix);
    const struct moe_tensor *t = moe_file_find_tensor(m->file, name);
    if (!t)
        return refuse(m, name, "there is no such tensor: a folder of Medusa heads has one for each head and block");
    if (t->dim[0] != n_in || t->dim[1] != n_out || t->dim[2] != 1 || !t->bytes)
        return refuse(m, name, "its shape is another than that of the heads before it");
    *out = t;
    return 0;
}

static int find_matrix(const struct eng_medusa *m, int head, int layer, const char *suffix, int n_out,
                       struct matrix *out)
{
    int d = m->shape.d_model, error = find(m, head, layer, suffix, (uint64_t)d, (uint64_t)n_out, &out->tensor);
    if (error)
        return error;
    out->mat = (struct kn_mat){ .n_out = n_out, .n_in = d, .scale = 1 };
    if (kn_format_from_gguf(out->tensor->gguf_type, &out->mat.format) || !kn_mat_bytes(out->mat.format, n_out, d))
        return refuse(m, suffix, "its matrices are of a type that cannot be computed: F32, F16, BF16 can");
    return 0;
}

static int find_head(struct eng_medusa *m, int head)
{
    int error = 0, d = m->shape.d_model, n_layer = m->shape.n_layer;
    for (int l = 0; l < n_layer && !error; l++)
        if (!(error = find_matrix(m, head, l, ".linear.weight", d, &m->block[head][l])))
            error = find(m, head, l, ".linear.bias", (uint64_t)d, 1, &m->bias_tensor[head][l]);
    return error ? error : find_matrix(m, head, n_layer, ".weight", m->shape.n_vocab, &m->output[head]);
}

/* The first head's output matrix gives the widths. */
static int read_shape(struct eng_medusa *m)
{
    char name[NAME_BYTES];
    int64_t n_head = 0, n_layer = 0;
    int has_heads = moe_file_int(m->file, "medusa.head_count", 1, ENG_MEDUSA_HEADS, &n_head);
    int has_layers = moe_file_int(m->file, "medusa.block_count", 0, ENG_MEDUSA_LAYERS, &n_layer);
    if (has_heads < 0 || has_layers < 0)
        return has_heads < 0 ? has_heads : has_layers;
    if (!has_heads || !has_layers)
        return kn_fail(KN_EINVAL, "%s: these are no Medusa heads: name a folder with config.json and %s",
                       moe_file_path(m->file), "medusa_lm_head.safetensors");
    snprintf(name, sizeof name, "0.%d.weight", (int)n_layer);
    const struct moe_tensor *t = moe_file_find_tensor(m->file, name);
    if (!t || t->dim[0] < 1 || t->dim[0] > MAX_WIDTH || t->dim[1] < 1 || t->dim[1] > MAX_VOCAB)
        return refuse(m, name, "there is no output matrix of this name");
    m->shape = (struct eng_medusa_shape){ (int)n_head, (int)n_layer, (int)t->dim[0], (int)t->dim[1] };
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

void eng_medusa_close(struct eng_medusa *m)
{
    if (!m)
        return;
    kn_arena_close(&m->arena);
    kn_free(m);
}

struct eng_medusa_shape eng_medusa_shape(const struct eng_medusa *m) { return m->shape; }

/* ---- memory and weights ---------------------------------------------------------------------------------- */

static void take_matrix(struct kn_arena *a, struct kn_mat *w)
{
    size_t bytes = kn_mat_bytes(w->format, w->n_out, w->n_in);
    w->data = kn_arena_take(a, (bytes + 63) / 64, 64);
}

/* Raises *act_bytes to those of a row of w's activations. */
static void widen(size_t *act_bytes, const struct kn_mat *w)
{
    size_t bytes = kn_align_up(kn_act_bytes(kn_format_info(w->format)->act, w->n_in), 64);
    *act_bytes = bytes > *act_bytes ? bytes : *act_bytes;
}

/* Allocates from a; an arena without memory only counts the bytes. */
static void take(struct eng_medusa *m, struct kn_arena *a, int most_row)
{
    size_t d = (size_t)m->shape.d_model, n = (size_t)most_row;
    m->act_bytes = 0;
    for (int h = 0; h < m->shape.n_head; h++) {
        for (int l = 0; l < m->shape.n_layer; l++) {
            take_matrix(a, &m->block[h][l].mat);
            m->bias[h][l] = kn_arena_take(a, d, sizeof(float));
            widen(&m->act_bytes, &m->block[h][l].mat);
        }
        take_matrix(a, &m->output[h].mat);
        widen(&m->act_bytes, &m->output[h].mat);
    }
    m->one = kn_arena_take(a, d, sizeof *m->one);
    m->feature = kn_arena_take(a, n * d, sizeof *m->feature);
    m->x = kn_arena_take(a, n * d, sizeof *m->x);
    m->y = kn_arena_take(a, n * d, sizeof *m->y);
    m->logits = kn_arena_take(a, n * (size_t)m->shape.n_vocab, sizeof *m->logits);
    m->act = kn_arena_take(a, n * m->act_bytes / 64, 64);
}

size_t eng_medusa_bytes(const struct eng_medusa *m, int most_row)
{
    struct eng_medusa counts = *m;
    struct kn_arena counted = { 0 };
    take(&counts, &counted, most_row);
    return counted.used;
}

struct repack {
    const struct eng_medusa *m;
    const struct kn_mat *w;
    const void *rows;
};

static int n_task(const struct kn_mat *w) { return (w->n_out + PANEL * TASK_PANELS - 1) / (PANEL * TASK_PANELS); }
static int last_panel(const struct kn_mat *w, int task)
{
    return kn_min((task + 1) * TASK_PANELS, (w->n_out + PANEL - 1) / PANEL);
}

static void repack_item(void *arg, int item, int thread)
{
    const struct repack *r = arg;
    (void)thread;
    r->m->ops->repack(r->w->format, r->rows, r->w->n_out, r->w->n_in, (void *)(uintptr_t)r->w->data, item * TASK_PANELS,
                      last_panel(r->w, item));
}

static int load_matrix(const struct eng_medusa *m, struct kn_team *team, const struct matrix *x)
{
    void *rows = kn_alloc((size_t)x->tensor->bytes);
    int error = rows ? moe_file_read(m->file, x->tensor, 0, rows, (size_t)x->tensor->bytes)
                     : kn_fail(KN_ENOMEM, "no memory for Medusa heads");
    if (!error)
        kn_parallel_for(team, n_task(&x->mat), repack_item, &(struct repack){ m, &x->mat, rows });
    kn_free(rows);
    return error;
}

static int load_bias(const struct eng_medusa *m, const struct moe_tensor *t, float *out)
{
    enum kn_format f;
    void *row = kn_alloc((size_t)t->bytes);
    int error = row ? moe_file_read(m->file, t, 0, row, (size_t)t->bytes) : kn_fail(KN_ENOMEM, "no memory for a bias");
    if (!error && (kn_format_from_gguf(t->gguf_type, &f) || kn_row_bytes(f, m->shape.d_model) != t->bytes))
        error = refuse(m, "a bias", "its type is not F32, F16 or BF16");
    if (!error)
        kn_row_decode(f, row, m->shape.d_model, out);
    kn_free(row);
    return error;
}

int eng_medusa_load(struct eng_medusa *m, struct kn_team *team, int most_row)
{
    size_t bytes = eng_medusa_bytes(m, most_row);
    int error = kn_arena_open(&m->arena, bytes, -1);
    if (error)
        return kn_fail(KN_ENOMEM, "no memory for Medusa heads of %zu MiB", bytes >> 20);
    take(m, &m->arena, most_row);
    for (int i = 0; i < m->shape.d_model; i++)
        m->one[i] = 1;
    for (int h = 0; h < m->shape.n_head && !error; h++) {
        for (int l = 0; l < m->shape.n_layer && !error; l++)
            if (!(error = load_matrix(m, team, &m->block[h][l])))
                error = load_bias(m, m->bias_tensor[h][l], m->bias[h][l]);
        if (!error)
            error = load_matrix(m, team, &m->output[h]);
    }
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
            for (size_t k = 0; k < d; k++)
                y[k] += m->bias[head][l][k];
            m->ops->swiglu(y, m->one, (int)d, y);
            for (size_t k = 0; k < d; k++)
                x[k] += y[k];
        }
    }
    multiply(m, team, &m->output[head].mat, n, m->logits);
}
