/* moe/files/internal.h - the tables behind a struct moe_file, and the calls with which readers fill them.
 *
 *     file.c            opens a path: a GGUF file and its splits, or a folder; finds values and tensors
 *     file_bytes.c      the table of open files, and the bytes of tensors
 *     file_values.c     metadata as checked numbers and strings
 *     gguf.c            reads the header of one GGUF file into the tables
 *     header_tables.c   the tables: metadata by key, tensors by name, and the memory of their strings
 *     tensor_types.c    names and sizes of tensor types
 *     lacking.c         known families that are not supported
 *     strings.c         strings compared, and made fit for messages
 *     hf_folder.c, safetensors.c, hf_*.c    read a folder into the same tables (hf_folder.h)
 *
 * moe_file_open() calls moe_gguf_read(); if that returns 1, the path is a folder, and moe_folder_open() reads it.  Both
 * add their files with the calls of file_bytes.c and their entries with moe_add_value() and moe_add_tensor(). */
#ifndef MOE_FILES_INTERNAL_H
#define MOE_FILES_INTERNAL_H

#include "moe/files/files.h"

struct moe_index { /* open addressing: 0 is empty, else position + 1 */
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
    char *name; /* the path as given: of a file or of a folder */
    struct off_files files;
    int *fd; /* [n_file]; -1: not open */
    char **path;
    struct moe_text_chunk *text; /* memory of every string and array of the headers */
    struct moe_values values;    /* of the first split */
    struct moe_tensors tensors;  /* of all splits */
    uint64_t header_bytes;       /* bytes read to fill the tables */
    uint64_t hash_seed;          /* random; for by_key and by_name */
};

struct moe_text_chunk { /* one chunk of the memory in moe_file.text */
    struct moe_text_chunk *next;
    size_t bytes, used;
    _Alignas(16) uint8_t data[];
};

/* The first bytes of the pointer file that git keeps in place of a large file until git-lfs fetches it. */
#define MOE_LFS      "version https://git-lfs."
#define MOE_LFS_SAID "this is git-lfs's note of which file belongs here; git lfs pull fetches it"

/* gguf.c: reads the header of f->path[file], open as f->fd[file]: metadata into values, tensors into f->tensors.
 * Returns 1, without a message, if it is a folder. */
int moe_gguf_read(struct moe_file *f, int file, struct moe_values *values);

int moe_folder_open(struct moe_file *f); /* hf_folder.c: f->name is a folder */

/* file_bytes.c: the table of open files.  moe_file_reserve() enlarges it to n entries; moe_file_open_nth() opens path
 * as entry `file`; moe_file_add() appends an entry, opens path there and returns its number in *file. */
int moe_file_reserve(struct moe_file *f, int n);
int moe_file_open_nth(struct moe_file *f, int file, const char *path);
int moe_file_add(struct moe_file *f, const char *path, int *file);

/* header_tables.c: memory that lasts until moe_file_close(); a failure has been reported.  moe_grow() enlarges a table
 * of *room items so that it holds item n. */
void *moe_keep(struct moe_file *f, size_t bytes);
int moe_keep_string(struct moe_file *f, const char *s, size_t n, struct moe_string *out);
int moe_grow(const struct moe_file *f, void **table, size_t *room, size_t n, size_t item_bytes);

/* An index over the names of a table.  moe_index_add() enters the table's item n - 1 and returns 1 if its name exists
 * already; moe_index_find() returns the item's number, or SIZE_MAX if the name is absent. */
typedef struct moe_string moe_name_of(const void *table, size_t i);
int moe_index_add(const struct moe_file *f, struct moe_index *x, moe_name_of *name, const void *table, size_t n);
size_t moe_index_find(const struct moe_file *f, const struct moe_index *x, moe_name_of *name, const void *table,
                      struct moe_string want);

/* Add an entry.  Return 1 if its key or name exists already: callers then refuse the file. */
int moe_add_value(struct moe_file *f, struct moe_values *values, const struct moe_value *v);
int moe_add_tensor(struct moe_file *f, const struct moe_tensor *t);
const struct moe_value *moe_find_value(const struct moe_file *f, const struct moe_values *values, const char *key);
const struct moe_tensor *moe_find_tensor(const struct moe_file *f, const char *name);

/* moe_ranges_overlap() returns 1 if two of the n ranges overlap, with their numbers in pair. */
struct moe_range {
    uint64_t offset, bytes;
};
int moe_ranges_overlap(const struct moe_file *f, const struct moe_range *r, size_t n, size_t pair[2]);

#endif
