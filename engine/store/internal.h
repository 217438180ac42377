/* engine/store/internal.h - the index that the files of this room share.
 *
 *     store.c     opening: lock, scan of the folder, removal of the remains of unfinished uploads; ids and paths
 *     files.c     uploads and files
 *     batches.c   batches and their states
 *     objects.c   the API's objects: written, and read back from records */
#ifndef ENGINE_STORE_INTERNAL_H
#define ENGINE_STORE_INTERNAL_H

#include <pthread.h>

#include "engine/base/base.h"
#include "engine/store/store.h"

#define STORE_FILE  "file-"
#define STORE_BATCH "batch_"

struct eng_store {
    char folder[ENG_PATH_BYTES - 128];
    int lock_fd;
    uint64_t most_bytes;
    pthread_mutex_t lock;           /* protects everything below */
    struct eng_store_file **file;   /* [n_file] by id, which is by time */
    struct eng_store_batch **batch; /* [n_batch] likewise */
    int n_file, n_batch, n_upload;
    uint64_t used_bytes; /* of files, uploads and outputs */
    uint64_t last_us;    /* time in the last id */
    bool keeps_all;      /* a record could not be read: nothing is removed */
};

/* ---- store.c ----------------------------------------------------------------------------------- */

void store_new_id(struct eng_store *s, const char *prefix, char *out);
bool store_is_id(const char *prefix, const char *id, size_t n);
void store_record_path(const struct eng_store *s, const char *id, char *out);
int store_save(const struct eng_store *s, const char *id, const struct eng_bytes *record);
/* The size of the bytes of a file; -1: there is no such file. */
int64_t store_size(const struct eng_store *s, const char *id);
/* The index of the object with this id; or, if there is none, -1 - the index where it belongs.  Objects begin with their
 * id. */
int store_find(void *const *object, int n, const char *id);

/* ---- files.c ----------------------------------------------------------------------------------- */

struct eng_store_file *store_file(struct eng_store *s, const char *id);
int store_add_file(struct eng_store *s, const struct eng_store_file *f); /* to the index only */
int store_save_file(struct eng_store *s, const struct eng_store_file *f);
void store_drop_file(struct eng_store *s, struct eng_store_file *f); /* from the index and the disk */

/* ---- objects.c --------------------------------------------------------------------------------- */

void store_write_file(struct eng_bytes *out, const struct eng_store_file *f, bool as_record);
void store_write_batch(struct eng_bytes *out, const struct eng_store_batch *b, bool as_record);
/* false: not a record of this id */
bool store_read_file(const char *text, size_t n, const char *id, struct eng_store_file *out);
bool store_read_batch(const char *text, size_t n, const char *id, struct eng_store_batch *out);
/* Writes {"object":"list",...} of the objects of this key on the page.  is_file: which kind. */
int store_write_list(struct eng_store *s, uint64_t key, const struct eng_store_page *page, bool is_file,
                     struct eng_bytes *out);

#endif
