/* moe/internal.h - what the files of moe share among themselves; nobody else includes it. */
#ifndef MOE_INTERNAL_H
#define MOE_INTERNAL_H

#include "moe/moe.h"

/* ---- model files: file.c opens and looks up, gguf.c reads one header ------------------------------ */

struct moe_index {                          /* open addressing: 0 is empty, else position + 1 */
    uint32_t *slot;
    size_t n_slot;
};

struct moe_values {
    struct moe_value *item;
    size_t n, room;
    struct moe_index by_key;
};

struct moe_tensors {
    struct moe_tensor *item;
    size_t n, room;
    struct moe_index by_name;
};

struct moe_file {
    struct off_files files;
    int *fd;                                /* [n_file]; -1: not open */
    char **path;
    struct moe_block *text;                 /* every string and array of the headers */
    struct moe_values values;               /* of the first split */
    struct moe_tensors tensors;             /* of all */
    uint64_t hash_seed;
};

struct moe_block {
    struct moe_block *next;
    size_t bytes, used;
    _Alignas(16) uint8_t data[];
};

/* Reads the header of f->path[file], open as f->fd[file]: metadata into values, tensors added to f's. */
int moe_gguf_read(struct moe_file *f, int file, struct moe_values *values);
const struct moe_value *moe_gguf_find(const struct moe_file *f, const struct moe_values *values,
                                      const char *key);
const struct moe_tensor *moe_gguf_find_tensor(const struct moe_file *f, const char *name);

/* ---- encoders: quantize.c -------------------------------------------------------------------------- */

/* One row of n_in values to a file row of kn_row_bytes(f, n_in) bytes. */
void moe_row_encode(enum kn_format f, const float *x, int n_in, void *row);

#endif
