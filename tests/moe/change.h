/* tests/moe/change.h - a copy of a model file with one thing changed, right or wrong.
 *
 *     change_write(f, &(struct change){ .drop = "blk.0.attn_q.weight" }, path);
 *     change_write(f, &(struct change){ .key = "llama.block_count", .type = MOE_U32 }, path);
 *
 * Everything else is copied byte for byte. A changed tensor that is larger than the original also gets the bytes
 * that follow the original in its file. */
#ifndef TESTS_MOE_CHANGE_H
#define TESTS_MOE_CHANGE_H

#include <math.h>

#include "tests/moe/gguf_bytes.h"

struct change {
    const char *drop; /* a key or tensor to leave out */
    const char *key;  /* a key to add or replace */
    uint32_t type, item;
    double number;
    const char *text;
    uint64_t n_item;    /* length of an array of equal numbers or strings */
    const char *tensor; /* the tensor to change in one of these ways */
    const char *rename;
    int gguf_type;      /* 0: unchanged */
    uint64_t dim[4];    /* dim[0] 0: unchanged */
    const char *add;    /* name of a tensor [32] of zeros to add */
    bool split_experts; /* writes one tensor per expert */
};

static const size_t change_bytes[MOE_TYPE_COUNT] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

static inline bool change_is(struct moe_string s, const char *text) { return text && moe_string_is(s, text); }

static inline void change_put_string(struct gguf *g, struct moe_string s)
{
    gguf_u64(g, s.n);
    gguf_bytes(g, s.data, s.n);
}

static inline void change_put_value(struct gguf *g, const struct moe_value *v)
{
    enum moe_type item = v->type == MOE_ARRAY ? v->item : v->type;
    change_put_string(g, v->key);
    gguf_u32(g, v->type);
    if (v->type == MOE_ARRAY) {
        gguf_u32(g, v->item);
        gguf_u64(g, v->n);
    }
    if (item != MOE_STRING)
        gguf_bytes(g, v->data, v->n * change_bytes[item]);
    for (size_t i = 0; item == MOE_STRING && i < v->n; i++)
        change_put_string(g, ((const struct moe_string *)v->data)[i]);
}

static inline void change_put_scalar(struct gguf *g, uint32_t type, double x, const char *text)
{
    int64_t i = isfinite(x) ? (int64_t)x : 0;
    if (type == MOE_STRING)
        gguf_string(g, text);
    else if (type == MOE_F32)
        gguf_f32(g, (float)x);
    else if (type == MOE_F64)
        gguf_bytes(g, &x, sizeof x);
    else
        gguf_bytes(g, &i, change_bytes[type]);
}

static inline void change_put(struct gguf *g, const struct change *c)
{
    gguf_key(g, c->key, c->type);
    if (c->type == MOE_ARRAY) {
        gguf_u32(g, c->item);
        gguf_u64(g, c->n_item);
    }
    for (uint64_t i = 0; i < (c->type == MOE_ARRAY ? c->n_item : 1); i++)
        change_put_scalar(g, c->type == MOE_ARRAY ? c->item : c->type, c->number, c->text);
}

struct change_placed {
    struct moe_tensor t;
    char name[96];
    uint64_t offset;
};

/* Gives t the changed type and shape, and the byte count that follows from them. */
static inline void change_shape(const struct change *c, struct moe_tensor *t)
{
    if (change_is(t->name, c->tensor) && c->gguf_type)
        t->gguf_type = (uint32_t)c->gguf_type;
    if (change_is(t->name, c->tensor) && c->dim[0])
        for (t->n_dim = 0; t->n_dim < 4 && c->dim[t->n_dim]; t->n_dim++)
            t->dim[t->n_dim] = c->dim[t->n_dim];
    const struct moe_tensor_type *type = moe_tensor_type(t->gguf_type);
    t->bytes = t->dim[0] / (uint64_t)type->block_values * (uint64_t)type->block_bytes;
    for (int k = 1; k < t->n_dim; k++)
        t->bytes *= t->dim[k];
}

/* Lists the tensors of the copy; t.offset is the offset of their bytes in the original. */
static inline int change_list(const struct moe_file *f, const struct change *c, struct change_placed *to)
{
    int n = 0;
    uint64_t offset = 0;
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        struct moe_tensor t = *moe_file_tensor(f, i);
        char name[96];
        if (change_is(t.name, c->drop))
            continue;
        change_shape(c, &t);
        snprintf(name, sizeof name, "%.*s", (int)t.name.n, t.name.data);
        char *stacked = c->split_experts ? strstr(name, "_exps") : NULL;
        int n_part = stacked ? (int)t.dim[2] : 1;
        t.n_dim = stacked ? 2 : t.n_dim;
        t.bytes /= (uint64_t)n_part;
        for (int e = 0; e < n_part; e++, n++) {
            bool renamed = c->rename && change_is(t.name, c->tensor);
            to[n] = (struct change_placed){ .t = t, .offset = offset };
            to[n].t.offset += (uint64_t)e * t.bytes;
            offset += kn_align_up(t.bytes, 32);
            snprintf(to[n].name, sizeof to[n].name, "%s", renamed ? c->rename : name);
            if (stacked)
                snprintf(to[n].name + (stacked - name), 32, ".%d.weight", e);
        }
    }
    if (c->add) {
        to[n].t = (struct moe_tensor){ .n_dim = 1, .dim = { 32, 1, 1, 1 }, .bytes = 128 };
        to[n].offset = offset;
        snprintf(to[n++].name, sizeof to->name, "%s", c->add);
    }
    return n;
}

static inline void change_write(const struct moe_file *f, const struct change *c, const char *path)
{
    static struct change_placed placed[400];
    struct gguf g = { 0 };
    int n_tensor = change_list(f, c, placed), n_copied = n_tensor - (c->add != NULL);
    uint64_t n_value = c->key != NULL;
    for (size_t i = 0; i < moe_file_value_count(f); i++)
        n_value += !change_is(moe_file_value(f, i)->key, c->drop) && !change_is(moe_file_value(f, i)->key, c->key);
    gguf_header(&g, 3, (uint64_t)n_tensor, n_value);
    for (size_t i = 0; i < moe_file_value_count(f); i++)
        if (!change_is(moe_file_value(f, i)->key, c->drop) && !change_is(moe_file_value(f, i)->key, c->key))
            change_put_value(&g, moe_file_value(f, i));
    if (c->key)
        change_put(&g, c);
    for (int i = 0; i < n_tensor; i++)
        gguf_tensor(&g, placed[i].name, (uint32_t)placed[i].t.n_dim, placed[i].t.dim, placed[i].t.gguf_type,
                    placed[i].offset);
    gguf_data(&g, 0);
    for (int i = 0; i < n_tensor; i++) {
        const struct moe_tensor *t = &placed[i].t;
        uint8_t *data = calloc(t->bytes + 1, 1);
        if (i < n_copied && pread(moe_file_files(f)->fd[0], data, t->bytes, (off_t)t->offset) < 0)
            abort();
        gguf_bytes(&g, data, t->bytes);
        gguf_data(&g, 0);
        free(data);
    }
    gguf_save(&g, path);
    gguf_free(&g);
}

#endif
