/* tests/moe/plain.h - a plain forward pass in double, the reference for the engine's.
 *
 * Input: a model file (arch llama, qwen3 or qwen3moe, no rope scaling) and a sequence's tokens.
 * Output: logits. Weights are decoded by kn_row_decode; every other number is a double,
 * every sum is one loop, exp, cos and pow are the library's. It shares nothing else with the engine.
 *
 * With `coded` it makes the one rounding of the engine's definition: a product with a quantised
 * matrix reads its input as int8 codes, with a scale for each 32 (Q8_0) or 256 (k-quants) values. */
#ifndef TESTS_MOE_PLAIN_H
#define TESTS_MOE_PLAIN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moe/moe.h"

#define PLAIN_MAX_TENSOR 64

struct plain_tensor {
    char name[64];
    enum kn_format format;
    int n_in, n_out, n_mat;
    float *x;
};

struct plain {
    struct plain_tensor tensor[PLAIN_MAX_TENSOR];
    int n_tensor, n_layer, d_model, n_head, n_kv, d_head, n_vocab, n_expert, n_used;
    double eps, rope_base;
    bool pairs; /* rotates neighbours, not halves */
    bool coded;
};

/* ---- the file ---------------------------------------------------------------------------------- */

static inline double plain_number(const struct moe_file *f, const char *arch, const char *key)
{
    char full[96];
    double x = 0;
    int64_t i;
    snprintf(full, sizeof full, "%s.%s", arch, key);
    const struct moe_value *v = moe_file_find(f, full);
    if (v && v->type == MOE_F32)
        moe_file_float(f, full, &x);
    else if (v && moe_file_int(f, full, 0, INT32_MAX, &i) == 1)
        x = (double)i;
    return x;
}

static inline int plain_read(struct plain_tensor *to, const struct moe_file *f, const struct moe_tensor *t)
{
    const struct off_files *files = moe_file_files(f);
    snprintf(to->name, sizeof to->name, "%.*s", (int)t->name.n, t->name.data);
    if (kn_format_from_gguf(t->gguf_type, &to->format))
        return -1;
    to->n_in = (int)t->dim[0];
    to->n_out = (int)t->dim[1];
    to->n_mat = (int)t->dim[2];
    size_t n_row = (size_t)to->n_out * (size_t)to->n_mat;
    size_t bytes = kn_row_bytes(to->format, to->n_in);
    uint8_t *raw = malloc(t->bytes);
    to->x = malloc(n_row * (size_t)to->n_in * sizeof *to->x);
    int error = kn_file_read(files->fd[t->file], files->path[t->file], raw, t->bytes, t->offset);
    for (size_t r = 0; r < n_row && !error; r++)
        kn_row_decode(to->format, raw + r * bytes, to->n_in, to->x + r * (size_t)to->n_in);
    free(raw);
    return error;
}

static inline int plain_open(struct plain *p, const struct moe_file *f)
{
    struct moe_string name;
    char arch[32];
    *p = (struct plain){ 0 };
    if (moe_file_string(f, "general.architecture", &name) != 1 || moe_file_tensor_count(f) > PLAIN_MAX_TENSOR)
        return -1;
    snprintf(arch, sizeof arch, "%.*s", (int)name.n, name.data);
    p->pairs = !strcmp(arch, "llama");
    p->n_layer = (int)plain_number(f, arch, "block_count");
    p->d_model = (int)plain_number(f, arch, "embedding_length");
    p->n_head = (int)plain_number(f, arch, "attention.head_count");
    p->n_kv = (int)plain_number(f, arch, "attention.head_count_kv");
    p->d_head = (int)plain_number(f, arch, "attention.key_length");
    p->n_vocab = (int)plain_number(f, arch, "vocab_size");
    p->n_expert = (int)plain_number(f, arch, "expert_count");
    p->n_used = (int)plain_number(f, arch, "expert_used_count");
    p->eps = plain_number(f, arch, "attention.layer_norm_rms_epsilon");
    p->rope_base = plain_number(f, arch, "rope.freq_base");
    for (size_t i = 0; i < moe_file_tensor_count(f); i++)
        if (plain_read(&p->tensor[p->n_tensor++], f, moe_file_tensor(f, i)))
            return -1;
    return 0;
}

static inline void plain_close(struct plain *p)
{
    for (int i = 0; i < p->n_tensor; i++)
        free(p->tensor[i].x);
}

static inline const struct plain_tensor *plain_find(const struct plain *p, int layer, const char *what)
{
    char name[64];
    if (layer < 0)
        snprintf(name, sizeof name, "%s.weight", what);
    else
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, what);
    for (int i = 0; i < p->n_tensor; i++)
        if (!strcmp(p->tensor[i].name, name))
            return &p->tensor[i];
    return NULL;
}

/* ---- pieces ------------------------------------------------------------------------------------ */

/* Decodes the int8 codes of x; a code is rounded in float32, as in the engine. */
static inline void plain_code(const double *x, int n, int block, double *out)
{
    for (int b = 0; b < n; b += block) {
        float most = 0;
        for (int i = b; i < b + block; i++)
            most = fmaxf(most, fabsf((float)x[i]));
        for (int i = b; i < b + block; i++)
            out[i] = most > 0 ? (double)(most / 127) * rint((double)((float)x[i] * (127 / most))) : 0;
    }
}

/* y[n_out] = matrix `mat` of tensor t times x[n_in] */
static inline void plain_product(const struct plain *p, const struct plain_tensor *t, int mat, const double *x,
                                 double *y)
{
    enum kn_act act = kn_format_info(t->format)->act;
    double *codes = malloc((size_t)t->n_in * sizeof *codes);
    if (p->coded && act != KN_ACT_F32) {
        plain_code(x, t->n_in, act == KN_ACT_Q32 ? 32 : 256, codes);
        x = codes;
    }
    for (int r = 0; r < t->n_out; r++) {
        const float *w = t->x + ((size_t)mat * (size_t)t->n_out + (size_t)r) * (size_t)t->n_in;
        double sum = 0;
        for (int k = 0; k < t->n_in; k++)
            sum += (double)w[k] * x[k];
        y[r] = sum;
    }
    free(codes);
}

static inline void plain_norm(const struct plain *p, const struct plain_tensor *w, const double *x, double *y)
{
    double sum = 0;
    for (int i = 0; i < w->n_in; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < w->n_in; i++)
        y[i] = x[i] / sqrt(sum / w->n_in + p->eps) * (double)w->x[i];
}

static inline void plain_softmax(double *x, int n)
{
    double most = x[0], sum = 0;
    for (int i = 1; i < n; i++)
        most = fmax(most, x[i]);
    for (int i = 0; i < n; i++)
        sum += x[i] = exp(x[i] - most);
    for (int i = 0; i < n; i++)
        x[i] /= sum;
}

static inline void plain_rotate(const struct plain *p, double *x, int position)
{
    int n = p->d_head / 2;
    for (int i = 0; i < n; i++) {
        double angle = position * pow(p->rope_base, -2.0 * i / p->d_head);
        double *a = p->pairs ? x + 2 * i : x + i;
        double *b = p->pairs ? a + 1 : a + n, old = *a;
        *a = old * cos(angle) - *b * sin(angle);
        *b = old * sin(angle) + *b * cos(angle);
    }
}

/* ---- layers: x is [n_tok][d_model] ------------------------------------------------------------- */

static inline void plain_heads(const struct plain *p, int layer, const char *norm, double *x, int n_head, int position)
{
    const struct plain_tensor *w = plain_find(p, layer, norm);
    for (int h = 0; h < n_head; h++) {
        if (w)
            plain_norm(p, w, x + h * p->d_head, x + h * p->d_head);
        plain_rotate(p, x + h * p->d_head, position);
    }
}

/* Query head h of the row at `position` over keys and values [n_tok][n_kv][d_head]. */
static inline void plain_attend(const struct plain *p, const double *q, const double *k, const double *v, int h,
                                int position, double *out)
{
    int head = h / (p->n_head / p->n_kv), d = p->d_head;
    double *score = malloc((size_t)(position + 1) * sizeof *score);
    for (int j = 0; j <= position; j++) {
        score[j] = 0;
        for (int i = 0; i < d; i++)
            score[j] += q[h * d + i] * k[(j * p->n_kv + head) * d + i];
        score[j] /= sqrt(d);
    }
    plain_softmax(score, position + 1);
    for (int i = 0; i < d; i++) {
        out[h * d + i] = 0;
        for (int j = 0; j <= position; j++)
            out[h * d + i] += score[j] * v[(j * p->n_kv + head) * d + i];
    }
    free(score);
}

static inline void plain_attention(const struct plain *p, int layer, double *x, int n_tok)
{
    int n_q = p->n_head * p->d_head, n_kv = p->n_kv * p->d_head, n = p->d_model;
    double *norm = malloc((size_t)n * sizeof *norm);
    double *q = malloc((size_t)(2 * n_q) * sizeof *q), *out = q + n_q;
    double *k = malloc((size_t)(2 * n_tok * n_kv) * sizeof *k), *v = k + n_tok * n_kv;
    for (int t = 0; t < n_tok; t++) { /* a row attends to earlier rows and itself */
        plain_norm(p, plain_find(p, layer, "attn_norm"), x + t * n, norm);
        plain_product(p, plain_find(p, layer, "attn_q"), 0, norm, q);
        plain_product(p, plain_find(p, layer, "attn_k"), 0, norm, k + t * n_kv);
        plain_product(p, plain_find(p, layer, "attn_v"), 0, norm, v + t * n_kv);
        plain_heads(p, layer, "attn_q_norm", q, p->n_head, t);
        plain_heads(p, layer, "attn_k_norm", k + t * n_kv, p->n_kv, t);
        for (int h = 0; h < p->n_head; h++)
            plain_attend(p, q, k, v, h, t, out);
        plain_product(p, plain_find(p, layer, "attn_output"), 0, out, norm);
        for (int i = 0; i < n; i++)
            x[t * n + i] += norm[i];
    }
    free(norm);
    free(q);
    free(k);
}

/* x += weight * down(silu(gate(in)) * up(in)); kind "" or "_exps" */
static inline void plain_network(const struct plain *p, int layer, const char *kind, int mat, double weight,
                                 const double *in, double *x)
{
    char name[3][32];
    static const char *const part[3] = { "gate", "up", "down" };
    for (int i = 0; i < 3; i++)
        snprintf(name[i], sizeof name[i], "ffn_%s%s", part[i], kind);
    const struct plain_tensor *down = plain_find(p, layer, name[2]);
    int d_ff = down->n_in;
    double *gate = malloc((size_t)(2 * d_ff + p->d_model) * sizeof *gate);
    double *up = gate + d_ff, *y = up + d_ff;
    plain_product(p, plain_find(p, layer, name[0]), mat, in, gate);
    plain_product(p, plain_find(p, layer, name[1]), mat, in, up);
    for (int i = 0; i < d_ff; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    plain_product(p, down, mat, gate, y);
    for (int i = 0; i < p->d_model; i++)
        x[i] += weight * y[i];
    free(gate);
}

/* The n_used most likely experts, their probabilities normalised to sum to 1. */
static inline void plain_experts(const struct plain *p, int layer, const double *in, double *x)
{
    double *prob = malloc((size_t)p->n_expert * sizeof *prob), weight[16], sum = 0;
    int chosen[16];
    plain_product(p, plain_find(p, layer, "ffn_gate_inp"), 0, in, prob);
    plain_softmax(prob, p->n_expert);
    for (int i = 0; i < p->n_used; i++) {
        chosen[i] = 0;
        for (int e = 1; e < p->n_expert; e++)
            if (prob[e] > prob[chosen[i]])
                chosen[i] = e;
        sum += weight[i] = prob[chosen[i]];
        prob[chosen[i]] = -1;
    }
    for (int i = 0; i < p->n_used; i++)
        plain_network(p, layer, "_exps", chosen[i], weight[i] / sum, in, x);
    free(prob);
}

/* logits [n_tok][n_vocab] */
static inline void plain_logits(const struct plain *p, const int32_t *token, int n_tok, double *logits)
{
    int n = p->d_model;
    double *x = malloc((size_t)((n_tok + 1) * n) * sizeof *x), *norm = x + n_tok * n;
    const struct plain_tensor *embed = plain_find(p, -1, "token_embd");
    for (int i = 0; i < n_tok * n; i++)
        x[i] = (double)embed->x[(size_t)token[i / n] * (size_t)n + (size_t)(i % n)];
    for (int layer = 0; layer < p->n_layer; layer++) {
        plain_attention(p, layer, x, n_tok);
        for (int t = 0; t < n_tok; t++) {
            plain_norm(p, plain_find(p, layer, "ffn_norm"), x + t * n, norm);
            if (p->n_expert)
                plain_experts(p, layer, norm, x + t * n);
            else
                plain_network(p, layer, "", 0, 1, norm, x + t * n);
        }
    }
    for (int t = 0; t < n_tok; t++) {
        plain_norm(p, plain_find(p, -1, "output_norm"), x + t * n, norm);
        plain_product(p, plain_find(p, -1, "output"), 0, norm, logits + t * p->n_vocab);
    }
    free(x);
}

#endif
