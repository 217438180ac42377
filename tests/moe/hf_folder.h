/* tests/moe/hf_folder.h - a model's folder as save_pretrained writes it, made from a golden fixture and the
 * names that tests/fixtures/folders has of it (format: ../fixtures/make_folders.py).
 *
 *     struct hf_folder h;
 *     hf_folder_read(&h, "mixtral");                        golden and names
 *     hf_folder_write(&h, folder, bf16, n_file);            config, weights in n_file files, tokenizer
 *     hf_folder_gguf(&h, file_path, bf16);                       the same model as a GGUF file
 *     hf_folder_free(&h);
 *
 * bf16: values are cut to 16 bits first; vectors of the GGUF file stay F32, as published ones do. */
#ifndef TESTS_MOE_HF_FOLDER_H
#define TESTS_MOE_HF_FOLDER_H

#include <jansson.h>
#include <sys/stat.h>

#include "tests/moe/golden.h"

#define HF_MAX_TENSOR 256

struct hf_tensor {
    char name[96], gguf[64], how[16];
    int n_head, n_key;
};

struct hf_folder {
    struct golden g;
    char *text, *config, *generation;
    struct hf_tensor tensor[HF_MAX_TENSOR];
    int n_tensor;
};

static inline char *hf_slurp(const char *file_path)
{
    FILE *f = fopen(file_path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *text = calloc(n + 1, 1);
    n = fread(text, 1, n, f);
    fclose(f);
    return text;
}

static inline void hf_save(const char *folder, const char *name, const void *data, size_t n)
{
    char file_path[512];
    snprintf(file_path, sizeof file_path, "%s/%s", folder, name);
    FILE *f = fopen(file_path, "wb");
    if (!f || (n && fwrite(data, 1, n, f) != n) || fclose(f))
        abort();
}

static inline int hf_folder_read(struct hf_folder *h, const char *name)
{
    char file_path[256];
    memset(h, 0, sizeof *h);
    snprintf(file_path, sizeof file_path, "tests/fixtures/folders/%s.txt", name);
    h->text = hf_slurp(file_path);
    if (!h->text || golden_read(&h->g, name))
        return -1;
    for (char *line = h->text, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        next += *next ? (*next = 0, 1) : 0;
        if (!strncmp(line, "config ", 7))
            h->config = line + 7;
        if (!strncmp(line, "generation ", 11))
            h->generation = line + 11;
        struct hf_tensor *t = &h->tensor[h->n_tensor];
        if (sscanf(line, "tensor %95s = %63s %15s %d %d", t->name, t->gguf, t->how, &t->n_head, &t->n_key) >= 3)
            h->n_tensor++;
    }
    return h->config && h->generation && h->n_tensor ? 0 : -1;
}

static inline void hf_folder_free(struct hf_folder *h)
{
    golden_free(&h->g);
    free(h->text);
}

/* ---- weights ---------------------------------------------------------------------------------- */

static inline const struct golden_tensor *hf_find(const struct hf_folder *h, const char *name)
{
    for (int i = 0; i < h->g.n_tensor; i++)
        if (!strcmp(h->g.tensor[i].name, name))
            return &h->g.tensor[i];
    abort();
}

/* A function of its own: if gcc 12 sees in `cut ? f(x) : x` that f clears bits, it compiles both branches as x. */
static inline float hf_cut(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return kn_bf16_to_f32((uint16_t)(bits >> 16));
}

static inline const char *hf_how(const struct hf_folder *h, const char *gguf)
{
    for (int i = 0; i < h->n_tensor; i++)
        if (!strcmp(h->tensor[i].gguf, gguf))
            return h->tensor[i].how;
    return "";
}

/* [*n] values of a GGUF tensor as the folder stores them; GGUF may hold a function of them. */
static inline float *hf_kept(const struct hf_folder *h, const struct golden_tensor *t, bool bf16, uint64_t *n)
{
    const char *how = hf_how(h, t->name);
    bool less1 = !strcmp(how, "less1"), log = !strncmp(how, "log", 3);
    float *x = golden_values(h->g.seed, t, n);
    for (uint64_t i = 0; i < *n; i++) {
        float kept = less1 ? x[i] - 1 : log ? (float)kn_log(-(double)x[i]) : x[i];
        x[i] = bf16 ? hf_cut(kept) : kept;
    }
    return x;
}

/* The values that the GGUF file gets from the stored ones. */
static inline float *hf_values(const struct hf_folder *h, const struct golden_tensor *t, bool bf16, uint64_t *n)
{
    const char *how = hf_how(h, t->name);
    bool less1 = !strcmp(how, "less1"), log = !strncmp(how, "log", 3);
    float *x = hf_kept(h, t, bf16, n);
    for (uint64_t i = 0; i < *n; i++)
        x[i] = less1 ? 1 + x[i] : log ? (float)-kn_exp(x[i]) : x[i];
    return x;
}

/* As bytes of F32, or of BF16. */
static inline uint8_t *hf_bytes(const float *x, uint64_t n, bool bf16)
{
    uint8_t *out = calloc(n + 1, sizeof *x);
    for (uint64_t i = 0; i < n; i++)
        memcpy(out + i * (bf16 ? 2 : 4), (const uint8_t *)&x[i] + (bf16 ? 2 : 0), bf16 ? 2 : 4);
    return out;
}

/* Reorders each head's rows: the even rows first, then the odd ones. */
static inline void hf_unpair(float *x, uint64_t n_row, uint64_t n_in, int n_head)
{
    uint64_t d = n_row / (uint64_t)n_head;
    float *y = calloc(n_row * n_in, sizeof *y);
    for (uint64_t r = 0; r < n_row; r++) {
        uint64_t in = r % d, to = r - in + in / 2 + in % 2 * (d / 2);
        memcpy(y + to * n_in, x + r * n_in, n_in * sizeof *x);
    }
    memcpy(x, y, n_row * n_in * sizeof *x);
    free(y);
}

/* A .safetensors file being built. */
struct hf_file {
    char *header;
    size_t n_header;
    uint8_t *data;
    size_t n, room;
};

/* dim: innermost first. */
static inline void hf_add_raw(struct hf_file *f, const char *name, const char *dtype, const void *data, size_t bytes,
                              const uint64_t *dim, int n_dim)
{
    char entry[512], shape[128] = "";
    for (int i = n_dim; i-- > 0;)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%llu", i < n_dim - 1 ? "," : "",
                 (unsigned long long)dim[i]);
    int len = snprintf(entry, sizeof entry, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                       f->n_header ? "," : "{\"__metadata__\":{\"format\":\"pt\"},", name, dtype, shape, f->n,
                       f->n + bytes);
    f->header = realloc(f->header, f->n_header + (size_t)len + 16);
    memcpy(f->header + f->n_header, entry, (size_t)len);
    f->n_header += (size_t)len;
    f->data = realloc(f->data, f->n + bytes + 1);
    memcpy(f->data + f->n, data, bytes);
    f->n += bytes;
}

static inline void hf_add(struct hf_file *f, const char *name, const float *x, const uint64_t *dim, int n_dim,
                          bool bf16)
{
    uint64_t n = 1;
    for (int i = 0; i < n_dim; i++)
        n *= dim[i];
    uint8_t *data = hf_bytes(x, n, bf16);
    hf_add_raw(f, name, bf16 ? "BF16" : "F32", data, n * (bf16 ? 2 : 4), dim, n_dim);
    free(data);
}

static inline void hf_close(struct hf_file *f, const char *folder, const char *name)
{
    char file_path[512];
    f->header[f->n_header++] = '}';
    while (f->n_header % 8)
        f->header[f->n_header++] = ' ';
    uint64_t n = f->n_header;
    snprintf(file_path, sizeof file_path, "%s/%s", folder, name);
    FILE *out = fopen(file_path, "wb");
    if (!out || fwrite(&n, sizeof n, 1, out) != 1 || fwrite(f->header, 1, n, out) != n ||
        fwrite(f->data, 1, f->n, out) != f->n || fclose(out))
        abort();
    free(f->header);
    free(f->data);
    *f = (struct hf_file){ 0 };
}

/* The i-th of all tensors goes to file i % n_file. */
struct hf_files {
    struct hf_file file[4];
    char name[4][64];
    int n_file, next;
    json_t *map;
};

static inline void hf_put(struct hf_files *f, const char *name, const float *x, const uint64_t *dim, int n_dim,
                          bool bf16)
{
    int at = f->next++ % f->n_file;
    hf_add(&f->file[at], name, x, dim, n_dim, bf16);
    json_object_set_new(f->map, name, json_string(f->name[at]));
}

static inline int hf_config_int(const struct hf_folder *h, const char *key)
{
    json_t *config = json_loads(h->config, 0, NULL), *text = json_object_get(config, "text_config");
    int n = (int)json_integer_value(json_object_get(text ? text : config, key));
    json_decref(config);
    return n;
}

/* Reorders the last units from "value head i of all key heads, for each i" to "all value heads of one key head". */
static inline void hf_group(const struct hf_folder *h, float *x, uint64_t n, uint64_t unit, int n_key)
{
    uint64_t n_value = (uint64_t)hf_config_int(h, "linear_num_value_heads"), ratio = n_value / (uint64_t)n_key;
    float *last = x + n - n_value * unit, *was = malloc(n_value * unit * sizeof *x);
    memcpy(was, last, n_value * unit * sizeof *x);
    for (uint64_t i = 0; i < n_value; i++)
        memcpy(last + (i % (uint64_t)n_key * ratio + i / (uint64_t)n_key) * unit, was + i * unit, unit * sizeof *x);
    free(was);
}

/* Puts K and V of each head in one matrix: the keys transposed, the values after them. */
static inline void hf_put_kvb(const struct hf_folder *h, struct hf_files *f, const struct hf_tensor *t, const float *k,
                              bool bf16)
{
    char name[64];
    int layer = 0;
    uint64_t n;
    sscanf(t->gguf, "blk.%d.", &layer);
    snprintf(name, sizeof name, "blk.%d.attn_v_b.weight", layer);
    const struct golden_tensor *kt = hf_find(h, t->gguf), *vt = hf_find(h, name);
    uint64_t d_plain = kt->dim[0], d_latent = kt->dim[1], n_head = kt->dim[2], d_value = vt->dim[1];
    uint64_t one = (d_plain + d_value) * d_latent, dim[2] = { d_latent, n_head * (d_plain + d_value) };
    float *v = hf_values(h, vt, bf16, &n), *both = malloc(n_head * one * sizeof *both);
    for (uint64_t i = 0; i < n_head; i++) {
        for (uint64_t r = 0; r < d_plain; r++)
            for (uint64_t c = 0; c < d_latent; c++)
                both[i * one + r * d_latent + c] = k[(i * d_latent + c) * d_plain + r];
        memcpy(both + i * one + d_plain * d_latent, v + i * d_value * d_latent, d_value * d_latent * sizeof *v);
    }
    hf_put(f, t->name, both, dim, 2, bf16);
    free(v);
    free(both);
}

/* Puts queries, keys, values and gates, grouped by key head. */
static inline void hf_put_mixed(const struct hf_folder *h, struct hf_files *f, const struct hf_tensor *t,
                                const float *mix, bool bf16)
{
    char name[64];
    int layer = 0;
    uint64_t n, n_key = (uint64_t)hf_config_int(h, "linear_num_key_heads");
    sscanf(t->gguf, "blk.%d.", &layer);
    snprintf(name, sizeof name, "blk.%d.attn_gate.weight", layer);
    const struct golden_tensor *mt = hf_find(h, t->gguf), *zt = hf_find(h, name);
    uint64_t n_in = mt->dim[0], value = zt->dim[1], key = (mt->dim[1] - value) / 2,
             dim[2] = { n_in, mt->dim[1] + value };
    float *z = hf_values(h, zt, bf16, &n), *all = malloc(dim[1] * n_in * sizeof *all), *to = all;
    for (uint64_t i = 0; i < n_key; i++) {
        const float *from[4] = { mix, mix + key * n_in, mix + 2 * key * n_in, z };
        for (int k = 0; k < 4; k++) {
            uint64_t part = (k < 2 ? key : value) / n_key * n_in;
            memcpy(to, from[k] + i * part, part * sizeof *to);
            to += part;
        }
    }
    hf_put(f, t->name, all, dim, 2, bf16);
    free(z);
    free(all);
}

/* Puts matrices [n][n_out][n_in] as [n][n_in][n_out]; dim is that of x. */
static inline void hf_put_inputs(struct hf_files *f, const char *name, const float *x, const uint64_t dim[3], bool bf16)
{
    uint64_t n_in = dim[0], n_out = dim[1];
    float *turned = malloc(n_in * n_out * dim[2] * sizeof *turned);
    for (uint64_t e = 0; e < dim[2]; e++)
        for (uint64_t o = 0; o < n_out; o++)
            for (uint64_t k = 0; k < n_in; k++)
                turned[(e * n_in + k) * n_out + o] = x[(e * n_out + o) * n_in + k];
    hf_put(f, name, turned, (uint64_t[3]){ n_out, n_in, dim[2] }, 3, bf16);
    free(turned);
}

/* Puts gate (x) and up of each expert, or of the one shared expert, in one tensor. */
static inline void hf_put_fused(const struct hf_folder *h, struct hf_files *f, const struct hf_tensor *t,
                                const float *x, uint64_t n, bool bf16)
{
    char name[64];
    int layer = 0;
    sscanf(t->gguf, "blk.%d.", &layer);
    snprintf(name, sizeof name, "blk.%d.ffn_up_%s", layer, strstr(t->gguf, "ffn_gate_") + sizeof "ffn_gate_" - 1);
    const struct golden_tensor *g = hf_find(h, t->gguf);
    uint64_t n_expert = g->n_dim > 2 ? g->dim[2] : 1;
    uint64_t one = g->dim[0] * g->dim[1], dim[3] = { g->dim[0], 2 * g->dim[1], n_expert };
    float *up = hf_values(h, hf_find(h, name), bf16, &n), *both = malloc(2 * n * sizeof *both);
    for (uint64_t e = 0; e < n_expert; e++) {
        memcpy(both + 2 * e * one, x + e * one, one * sizeof *x);
        memcpy(both + (2 * e + 1) * one, up + e * one, one * sizeof *x);
    }
    if (!strcmp(t->how, "fused-inputs"))
        hf_put_inputs(f, t->name, both, dim, bf16);
    else
        hf_put(f, t->name, both, dim, g->n_dim, bf16);
    free(up);
    free(both);
}

static inline void hf_put_tensor(const struct hf_folder *h, struct hf_files *f, const struct hf_tensor *t, bool bf16)
{
    const struct golden_tensor *g = hf_find(h, t->gguf);
    uint64_t n, one = g->dim[0] * (g->n_dim > 1 ? g->dim[1] : 1);
    float *x = hf_kept(h, g, bf16, &n);
    if (!strcmp(t->how, "inputs")) {
        hf_put_inputs(f, t->name, x, g->dim, bf16);
        free(x);
        return;
    }
    if (!strncmp(t->how, "fused", 5) || !strcmp(t->how, "below")) {
        hf_put_fused(h, f, t, x, n, bf16);
        free(x);
        return;
    }
    if (!strcmp(t->how, "kvb") || !strcmp(t->how, "mixed")) {
        (t->how[0] == 'k' ? hf_put_kvb : hf_put_mixed)(h, f, t, x, bf16);
        free(x);
        return;
    }
    if (t->n_key && !strcmp(t->how, "columns"))
        for (uint64_t r = 0; r < g->dim[1]; r++)
            hf_group(h, x + r * g->dim[0], g->dim[0], (uint64_t)t->n_head, t->n_key);
    else if (t->n_key)
        hf_group(h, x, n, (uint64_t)t->n_head * (g->n_dim > 1 ? g->dim[0] : 1), t->n_key);
    if (!strncmp(t->how, "taps", 4)) {
        hf_put(f, t->name, x, (uint64_t[3]){ g->dim[0], 1, g->dim[1] }, 3, bf16);
        free(x);
        return;
    }
    if (!strcmp(t->how, "heads"))
        hf_unpair(x, g->dim[1], g->dim[0], t->n_head);
    if (strcmp(t->how, "experts")) {
        hf_put(f, t->name, x, g->dim, g->n_dim, bf16);
    } else {
        const char *at = strchr(t->name, '#');
        for (uint64_t e = g->dim[2]; e-- > 0;) { /* in reverse order */
            char name[128];
            snprintf(name, sizeof name, "%.*s%llu%s", (int)(at - t->name), t->name, (unsigned long long)e, at + 1);
            hf_put(f, name, x + e * one, g->dim, 2, bf16);
        }
    }
    free(x);
}

static inline void hf_write_weights(const struct hf_folder *h, const char *folder, bool bf16, int n_file)
{
    struct hf_files f = { .n_file = n_file, .map = json_object() };
    for (int i = 0; i < n_file; i++)
        snprintf(f.name[i], sizeof f.name[i], n_file > 1 ? "model-%05d-of-%05d.safetensors" : "model.safetensors",
                 i + 1, n_file);
    for (int i = 0; i < h->n_tensor; i++)
        hf_put_tensor(h, &f, &h->tensor[i], bf16);
    for (int i = 0; i < n_file; i++)
        hf_close(&f.file[i], folder, f.name[i]);
    json_t *index = json_pack("{s:{},s:O}", "metadata", "weight_map", f.map);
    char *text = json_dumps(index, 0);
    if (n_file > 1)
        hf_save(folder, "model.safetensors.index.json", text, strlen(text));
    kn_heap_free(text);
    json_decref(index);
    json_decref(f.map);
}

/* ---- the vocabulary, from the golden's metadata -------------------------------------------------- */

static inline json_t *hf_meta_list(const struct hf_folder *h, const char *key, const char *type)
{
    json_t *list = json_array();
    for (int i = 0; i < h->g.n_meta; i++) {
        char *copy = strdup(h->g.meta[i]), *s = copy;
        if (!strcmp(golden_word(&s), key) && !strcmp(golden_word(&s), type)) {
            size_t n = strtoull(golden_word(&s), NULL, 10);
            for (size_t k = 0; k < n; k++) {
                char *word = golden_word(&s);
                size_t len = golden_unescape(word);
                json_array_append_new(list, json_stringn(word, len));
            }
        }
        free(copy);
    }
    return list;
}

/* Byte-level, with qwen2's pretokenizer; the last two tokens are control tokens. */
static inline json_t *hf_tokenizer(const struct hf_folder *h)
{
    json_t *tokens = hf_meta_list(h, "tokenizer.ggml.tokens", "arr_str"), *vocab = json_object(), *added = json_array();
    size_t n = json_array_size(tokens);
    for (size_t i = 0; i < n; i++)
        if (i < n - 2)
            json_object_set_new(vocab, json_string_value(json_array_get(tokens, i)), json_integer((json_int_t)i));
        else
            json_array_append_new(added, json_pack("{s:I,s:O,s:b,s:b}", "id", (json_int_t)i, "content",
                                                   json_array_get(tokens, i), "special", 1, "normalized", 0));
    json_t *out = json_pack(
        "{s:o,s:n,s:{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b}]},s:n,s:{s:s,s:o,s:o,s:b}}", "added_tokens", added,
        "normalizer", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
        "\\s+(?!\\S)|\\s+",
        "behavior", "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0,
        "post_processor", "model", "type", "BPE", "vocab", vocab, "merges",
        hf_meta_list(h, "tokenizer.ggml.merges", "arr_str"), "byte_fallback", 0);
    json_decref(tokens);
    return out;
}

static inline void hf_folder_write(const struct hf_folder *h, const char *folder, bool bf16, int n_file)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) || mkdir(folder, 0755))
        abort();
    hf_save(folder, "config.json", h->config, strlen(h->config));
    hf_save(folder, "generation_config.json", h->generation, strlen(h->generation));
    hf_write_weights(h, folder, bf16, n_file);
    json_t *tokenizer = hf_tokenizer(h);
    char *text = json_dumps(tokenizer, 0);
    hf_save(folder, "tokenizer.json", text, strlen(text));
    kn_heap_free(text);
    json_decref(tokenizer);
}

/* Consumes the golden's meta lines: call it once, after the folder is written. */
static inline int hf_folder_gguf(struct hf_folder *h, const char *file_path, bool bf16)
{
    struct moe_writer *w;
    int error = moe_writer_open(&w, file_path);
    for (int i = 0; i < h->g.n_meta && !error; i++)
        error = golden_write_meta(w, h->g.meta[i]);
    for (int i = 0; i < h->g.n_tensor && !error; i++) {
        const struct golden_tensor *t = &h->g.tensor[i];
        error = moe_writer_tensor(w, t->name, bf16 && t->n_dim > 1 ? KN_BF16 : KN_F32, t->n_dim, t->dim);
    }
    if (!error)
        error = moe_writer_header(w);
    for (int i = 0; i < h->g.n_tensor && !error; i++) {
        const struct golden_tensor *t = &h->g.tensor[i];
        uint64_t n;
        bool narrow = bf16 && t->n_dim > 1;
        bool stored = strcmp(t->kind, "data") || *hf_how(h, t->name); /* not computed from config.json */
        float *x = hf_values(h, t, bf16 && stored, &n);
        uint8_t *bytes = hf_bytes(x, n, narrow);
        error = moe_writer_data(w, bytes, n * (narrow ? 2 : 4));
        free(bytes);
        free(x);
    }
    if (!error)
        error = moe_writer_finish(w);
    moe_writer_close(w);
    return error;
}

#endif
