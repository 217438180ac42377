/* moe/files/header_tables.c - the metadata and tensor tables of a model file.
 *
 * Owns the memory of keys, names, strings and arrays, and the two tables of a struct moe_file: metadata by key and
 * tensors by name.  The header readers (gguf.c, safetensors.c and the hf_*.c files) add entries.  Tables grow by the
 * entries read, not by the count in the header.  Hashes are seeded at random, so a file cannot be crafted to make
 * all its names collide. */
#include "moe/files/internal.h"

#include <string.h>

#define BLOCK_BYTES ((size_t)1 << 16)

void *moe_keep(struct moe_file *f, size_t bytes)
{
    bytes = kn_align_up(bytes, 16);
    struct moe_text_chunk *b = f->text;
    if (!b || b->bytes - b->used < bytes) {
        size_t room = bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES;
        b = kn_alloc(sizeof *b + room);
        if (!b) {
            kn_fail(KN_ENOMEM, "%s: no memory for %zu bytes of its header", f->name, room);
            return NULL;
        }
        *b = (struct moe_text_chunk){ .next = f->text, .bytes = room };
        f->text = b;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    return p;
}

int moe_keep_string(struct moe_file *f, const char *s, size_t n, struct moe_string *out)
{
    char *data = moe_keep(f, n);
    if (!data)
        return KN_ENOMEM;
    if (n)
        memcpy(data, s, n);
    *out = (struct moe_string){ data, n };
    return 0;
}

/* Ensures capacity for item n (from 0); the capacity doubles. */
int moe_grow(const struct moe_file *f, void **table, size_t *room, size_t n, size_t item_bytes)
{
    if (n < *room)
        return 0;
    size_t more = *room ? *room * 2 : 64;
    void *p = kn_realloc(*table, *room * item_bytes, more * item_bytes);
    if (!p)
        return kn_fail(KN_ENOMEM, "%s: no memory for a table of %zu entries", f->name, more);
    *table = p;
    *room = more;
    return 0;
}

/* ---- names ----------------------------------------------------------------------------------- */

static uint64_t hash(uint64_t seed, struct moe_string s)
{
    uint64_t h = seed ^ s.n;
    for (size_t i = 0; i < s.n; i += 8) {
        uint64_t word = 0;
        memcpy(&word, s.data + i, s.n - i < 8 ? s.n - i : 8);
        h = kn_mix(h ^ word) + KN_GOLDEN;
    }
    return h;
}

static struct moe_string key_of(const void *table, size_t i) { return ((const struct moe_value *)table)[i].key; }

static struct moe_string tensor_of(const void *table, size_t i) { return ((const struct moe_tensor *)table)[i].name; }

/* The slot that holds the name, or the empty slot for it.  At least half of the slots are empty, so the probe ends. */
static uint32_t *index_slot(const struct moe_index *x, uint64_t seed, moe_name_of *name, const void *table,
                            struct moe_string want)
{
    for (size_t i = hash(seed, want);; i++) {
        uint32_t *slot = &x->slot[i & (x->n_slot - 1)];
        if (!*slot)
            return slot;
        struct moe_string have = name(table, *slot - 1);
        if (have.n == want.n && !memcmp(have.data, want.data, want.n))
            return slot;
    }
}

int moe_index_add(const struct moe_file *f, struct moe_index *x, moe_name_of *name, const void *table, size_t n)
{
    if (n * 2 > x->n_slot) {
        struct moe_index wide = { .n_slot = x->n_slot ? x->n_slot * 2 : 128 };
        wide.slot = kn_calloc(wide.n_slot, sizeof *wide.slot);
        if (!wide.slot)
            return kn_fail(KN_ENOMEM, "%s: no memory to index %zu names", f->name, n);
        for (size_t i = 0; i + 1 < n; i++)
            *index_slot(&wide, f->hash_seed, name, table, name(table, i)) = (uint32_t)(i + 1);
        kn_free(x->slot);
        *x = wide;
    }
    uint32_t *slot = index_slot(x, f->hash_seed, name, table, name(table, n - 1));
    if (*slot)
        return 1;
    *slot = (uint32_t)n;
    return 0;
}

size_t moe_index_find(const struct moe_file *f, const struct moe_index *x, moe_name_of *name, const void *table,
                      struct moe_string want)
{
    if (!x->n_slot)
        return SIZE_MAX;
    uint32_t found = *index_slot(x, f->hash_seed, name, table, want);
    return found ? found - 1 : SIZE_MAX;
}

/* ---- the tables ------------------------------------------------------------------------------ */

int moe_add_value(struct moe_file *f, struct moe_values *values, const struct moe_value *v)
{
    int err = moe_grow(f, (void **)&values->item, &values->room, values->n, sizeof *v);
    if (err)
        return err;
    values->item[values->n++] = *v;
    return moe_index_add(f, &values->by_key, key_of, values->item, values->n);
}

int moe_add_tensor(struct moe_file *f, const struct moe_tensor *t)
{
    struct moe_tensors *tensors = &f->tensors;
    int err = moe_grow(f, (void **)&tensors->item, &tensors->room, tensors->n, sizeof *t);
    if (err)
        return err;
    tensors->item[tensors->n++] = *t;
    return moe_index_add(f, &tensors->by_name, tensor_of, tensors->item, tensors->n);
}

const struct moe_value *moe_find_value(const struct moe_file *f, const struct moe_values *values, const char *key)
{
    struct moe_string want = { key, strlen(key) };
    size_t i = moe_index_find(f, &values->by_key, key_of, values->item, want);
    return i == SIZE_MAX ? NULL : &values->item[i];
}

const struct moe_tensor *moe_find_tensor(const struct moe_file *f, const char *name)
{
    struct moe_string want = { name, strlen(name) };
    size_t i = moe_index_find(f, &f->tensors.by_name, tensor_of, f->tensors.item, want);
    return i == SIZE_MAX ? NULL : &f->tensors.item[i];
}

/* ---- overlaps -------------------------------------------------------------------------------- */

/* Sifts entry i down in a heap of range numbers; the largest offset is on top. */
static void sink(const struct moe_range *r, uint32_t *order, size_t i, size_t n)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && r[order[child + 1]].offset > r[order[child]].offset)
            child++;
        if (r[order[i]].offset >= r[order[child]].offset)
            return;
        uint32_t swap = order[i];
        order[i] = order[child];
        order[child] = swap;
    }
}

/* Sorts range numbers by offset, with a heap sort, which no input order makes slow, then compares neighbours. */
int moe_ranges_overlap(const struct moe_file *f, const struct moe_range *r, size_t n, size_t pair[2])
{
    uint32_t *order = kn_calloc(n, sizeof *order);
    if (!order)
        return kn_fail(KN_ENOMEM, "%s: no memory to order %zu tensors", f->name, n);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t i = n / 2; i-- > 0;)
        sink(r, order, i, n);
    for (size_t end = n; end-- > 1;) {
        uint32_t swap = order[0];
        order[0] = order[end];
        order[end] = swap;
        sink(r, order, 0, end);
    }
    int found = 0;
    for (size_t i = 1; !found && i < n; i++) {
        pair[0] = order[i - 1];
        pair[1] = order[i];
        found = r[pair[0]].offset + r[pair[0]].bytes > r[pair[1]].offset;
    }
    kn_free(order);
    return found;
}
