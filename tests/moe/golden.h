/* tests/moe/golden.h - reads a fixture of tests/fixtures/golden (its format: ../fixtures/make_golden.py) and
 * writes the model that it describes as a GGUF file. */
#ifndef TESTS_MOE_GOLDEN_H
#define TESTS_MOE_GOLDEN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moe/moe.h"

#define GOLDEN_INDEX      16
#define GOLDEN_PROJ       8
#define GOLDEN_MAX_TENSOR 128

struct golden_row {
    double most, logit[GOLDEN_INDEX], proj[GOLDEN_PROJ];
    int argmax;
};

struct golden_tensor {
    char name[64], kind[8];
    uint64_t dim[4];
    int n_dim;
    float scale;
    float *data;
};

struct golden {
    uint64_t seed;
    int n_vocab, n_tok, n_row, n_tensor;
    int32_t *token;
    int index[GOLDEN_INDEX];
    struct golden_row *row;
    struct golden_tensor tensor[GOLDEN_MAX_TENSOR];
    char *text; /* the file's text; meta lines are parsed when written */
    char *meta[128];
    int n_meta;
    bool fuse_gate_up; /* golden_write() puts each expert's ups below its gates, in one tensor */
};

static inline char *golden_word(char **s)
{
    char *word = *s;
    size_t n = strcspn(word, " \n");
    *s = word + n + (word[n] != 0);
    word[n] = 0;
    return word;
}

static inline void golden_parse_tensor(struct golden *g, char *s)
{
    struct golden_tensor *t = &g->tensor[g->n_tensor++];
    snprintf(t->name, sizeof t->name, "%s", golden_word(&s));
    char *word;
    while ((word = golden_word(&s))[0] >= '0' && word[0] <= '9')
        t->dim[t->n_dim++] = strtoull(word, NULL, 10);
    snprintf(t->kind, sizeof t->kind, "%s", word);
    if (strcmp(t->kind, "data") != 0) {
        t->scale = strtof(golden_word(&s), NULL);
        return;
    }
    t->data = calloc(t->dim[0], sizeof *t->data);
    for (uint64_t i = 0; i < t->dim[0]; i++)
        t->data[i] = strtof(golden_word(&s), NULL);
}

static inline void golden_parse_row(struct golden_row *r, char *s)
{
    r->most = strtod(golden_word(&s), NULL);
    r->argmax = atoi(golden_word(&s));
    for (int i = 0; i < GOLDEN_INDEX; i++)
        r->logit[i] = strtod(golden_word(&s), NULL);
    for (int i = 0; i < GOLDEN_PROJ; i++)
        r->proj[i] = strtod(golden_word(&s), NULL);
}

static inline void golden_parse_line(struct golden *g, char *s)
{
    char *what = golden_word(&s);
    if (!strcmp(what, "seed"))
        g->seed = strtoull(golden_word(&s), NULL, 16);
    else if (!strcmp(what, "meta"))
        g->meta[g->n_meta++] = s;
    else if (!strcmp(what, "tensor"))
        golden_parse_tensor(g, s);
    else if (!strcmp(what, "n_vocab"))
        g->n_vocab = atoi(s);
    else if (!strcmp(what, "n_tok"))
        g->n_tok = atoi(s);
    else if (!strcmp(what, "row")) {
        golden_word(&s);
        golden_parse_row(&g->row[g->n_row++], s);
    } else if (!strcmp(what, "vocab_index"))
        for (int i = 0; i < GOLDEN_INDEX; i++)
            g->index[i] = atoi(golden_word(&s));
    else if (!strcmp(what, "tokens")) {
        g->token = calloc((size_t)g->n_tok, sizeof *g->token);
        g->row = calloc((size_t)g->n_tok, sizeof *g->row);
        for (int i = 0; i < g->n_tok; i++)
            g->token[i] = atoi(golden_word(&s));
    }
}

static inline int golden_read(struct golden *g, const char *name)
{
    char file_path[256];
    snprintf(file_path, sizeof file_path, "tests/fixtures/golden/%s.txt", name);
    FILE *f = fopen(file_path, "rb");
    if (!f)
        return -1;
    memset(g, 0, sizeof *g);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    g->text = calloc(n + 1, 1);
    n = fread(g->text, 1, n, f);
    fclose(f);
    for (char *line = g->text; *line;) {
        char *end = line + strcspn(line, "\n"), *next = end + (*end != 0);
        *end = 0;
        if (line[0] != '#')
            golden_parse_line(g, line);
        line = next;
    }
    return g->n_row == g->n_tok && g->n_tok ? 0 : -1;
}

static inline void golden_free(struct golden *g)
{
    for (int i = 0; i < g->n_tensor; i++)
        free(g->tensor[i].data);
    free(g->token);
    free(g->row);
    free(g->text);
}

static inline int golden_sign(int v, int j) { return kn_mix(((uint64_t)j << 32) + (uint64_t)v) & 1 ? -1 : 1; }

/* The largest difference to a fixture row, divided by the row's largest logit. */
static inline double golden_apart(const struct golden *g, const struct golden_row *r, const float *logits)
{
    double worst = 0;
    for (int i = 0; i < GOLDEN_INDEX; i++)
        worst = fmax(worst, fabs(logits[g->index[i]] - r->logit[i]) / r->most);
    for (int j = 0; j < GOLDEN_PROJ; j++) {
        double sum = 0;
        for (int v = 0; v < g->n_vocab; v++)
            sum += golden_sign(v, j) * (double)logits[v];
        worst = fmax(worst, fabs(sum / sqrt(g->n_vocab) - r->proj[j]) / r->most);
    }
    return worst;
}

/* ---- the model file ------------------------------------------------------------------------------- */

static inline size_t golden_unescape(char *s)
{
    char *out = s, *begin = s;
    for (; *s; s++)
        if (*s == '%') {
            char hex[3] = { s[1], s[2], 0 };
            *out++ = (char)strtol(hex, NULL, 16);
            s += 2;
        } else {
            *out++ = *s;
        }
    return (size_t)(out - begin);
}

static inline int golden_write_meta(struct moe_writer *w, char *s)
{
    char *key = golden_word(&s), *type = golden_word(&s);
    if (!strcmp(type, "str"))
        return moe_writer_string(w, key, s, golden_unescape(s));
    if (!strcmp(type, "u32")) {
        uint32_t v = (uint32_t)strtoul(s, NULL, 10);
        return moe_writer_value(w, key, MOE_U32, &v);
    }
    if (!strcmp(type, "f32")) {
        float v = strtof(s, NULL);
        return moe_writer_value(w, key, MOE_F32, &v);
    }
    if (!strcmp(type, "bool")) {
        uint8_t v = (uint8_t)atoi(s);
        return moe_writer_value(w, key, MOE_BOOL, &v);
    }
    size_t n = strtoull(golden_word(&s), NULL, 10);
    struct moe_string *strings = calloc(n + 1, sizeof *strings);
    int32_t *ints = calloc(n + 1, sizeof *ints);
    for (size_t i = 0; i < n; i++) {
        char *word = golden_word(&s);
        ints[i] = atoi(word);
        strings[i].n = golden_unescape(word);
        strings[i].data = word;
    }
    int error = !strcmp(type, "arr_str") ? moe_writer_array(w, key, MOE_STRING, strings, n)
                                         : moe_writer_array(w, key, MOE_I32, ints, n);
    free(strings);
    free(ints);
    return error;
}

static inline uint64_t golden_hash(uint64_t seed, const char *name)
{
    uint64_t h = UINT64_C(14695981039346656037);
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * UINT64_C(1099511628211);
    return kn_mix(seed ^ h);
}

/* A tensor's [*n] values; the caller frees them. */
static inline float *golden_values(uint64_t seed, const struct golden_tensor *t, uint64_t *n)
{
    uint64_t h = golden_hash(seed, t->name);
    *n = 1;
    for (int i = 0; i < t->n_dim; i++)
        *n *= t->dim[i];
    float *x = calloc(*n, sizeof *x);
    for (uint64_t i = 0; i < *n; i++) {
        float u = (float)((int64_t)(kn_mix(h + i * KN_GOLDEN) >> 40) - 8388608) * 0x1p-23f;
        x[i] = t->data ? t->data[i] : !strcmp(t->kind, "norm") ? 1.0f + t->scale * u : t->scale * u;
    }
    return x;
}

static inline int golden_write_tensor(struct moe_writer *w, uint64_t seed, const struct golden_tensor *t)
{
    uint64_t n;
    float *x = golden_values(seed, t, &n);
    int error = moe_writer_data(w, x, n * sizeof *x);
    free(x);
    return error;
}

/* The tensor is one of gates, or of ups, that golden_write() fuses. */
static inline bool golden_is_half(const struct golden *g, const struct golden_tensor *t, const char *half)
{
    return g->fuse_gate_up && strstr(t->name, half);
}

static inline int golden_name_tensor(struct moe_writer *w, const struct golden *g, const struct golden_tensor *t)
{
    char name[64];
    uint64_t dim[4] = { t->dim[0], 2 * t->dim[1], t->dim[2], t->dim[3] };
    if (golden_is_half(g, t, ".ffn_up_exps."))
        return 0;
    if (!golden_is_half(g, t, ".ffn_gate_exps."))
        return moe_writer_tensor(w, t->name, KN_F32, t->n_dim, t->dim);
    snprintf(name, sizeof name, "%.*s.ffn_gate_up_exps.weight", (int)(strstr(t->name, ".ffn") - t->name), t->name);
    return moe_writer_tensor(w, name, KN_F32, t->n_dim, dim);
}

/* t has the gates, up the ups, which are the next tensor. */
static inline int golden_write_fused(struct moe_writer *w, uint64_t seed, const struct golden_tensor *t,
                                     const struct golden_tensor *up)
{
    uint64_t n, n_expert = t->dim[2];
    float *x = golden_values(seed, t, &n), *y = golden_values(seed, up, &n);
    size_t one = n / n_expert;
    int error = 0;
    for (uint64_t e = 0; e < n_expert && !error; e++)
        if ((error = moe_writer_data(w, x + e * one, one * sizeof *x)) == 0)
            error = moe_writer_data(w, y + e * one, one * sizeof *y);
    free(x);
    free(y);
    return error;
}

/* Consumes the meta lines: once per golden_read(). */
static inline int golden_write(struct golden *g, const char *file_path)
{
    struct moe_writer *w;
    int error = moe_writer_open(&w, file_path);
    for (int i = 0; i < g->n_meta && !error; i++)
        error = golden_write_meta(w, g->meta[i]);
    for (int i = 0; i < g->n_tensor && !error; i++)
        error = golden_name_tensor(w, g, &g->tensor[i]);
    if (!error)
        error = moe_writer_header(w);
    for (int i = 0; i < g->n_tensor && !error; i++)
        if (golden_is_half(g, &g->tensor[i], ".ffn_gate_exps."))
            error = golden_write_fused(w, g->seed, &g->tensor[i], &g->tensor[i + 1]);
        else if (!golden_is_half(g, &g->tensor[i], ".ffn_up_exps."))
            error = golden_write_tensor(w, g->seed, &g->tensor[i]);
    if (!error)
        error = moe_writer_finish(w);
    moe_writer_close(w);
    return error;
}

/* Goldens of all families in which each property shows, and further ones: odd sizes, and groups of which there is one. */
#define GOLDEN_NAMES                                                                                                   \
    "llama_gqa", "llama_rope3_tied", "llama_linear", "mistral", "qwen2", "qwen3_tied", "qwen3_yarn", "mixtral",        \
        "qwen3moe_norm", "qwen3moe_nonorm", "qwen2moe", "olmoe", "olmoe_clamp", "gpt_oss", "glm4moe",                  \
        "glm4moe_groups", "minimax_m2", "deepseek2_lite", "deepseek2_groups", "deepseek3", "qwen3next",                \
        "qwen3next_odd", "qwen35moe", "gemma3", "ernie4_5_moe", "hunyuan_moe", "hy_v3", "dots1", "granitemoe",         \
        "exaone_moe", "solar_open", "smollm3", "mistral3", "phi3", "phi3_short", "bailing", "bailing2", "mistral4",    \
        "mistral_large3", "phimoe", "llama4", "llama4_128", "gemma4_moe", "gemma4_dense", "mimo_v2_flash"
#define GOLDEN_FURTHER "llama_odd", "qwen3moe_odd", "deepseek3_one_group"

#endif
