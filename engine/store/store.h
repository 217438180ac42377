/* engine/store/store.h - uploaded files and batches in a folder on disk, for /v1/files and /v1/batches.
 *
 *     eng_store_open -> files and batches, from any thread -> eng_store_close
 *
 * The folder holds for each file its bytes, file-ID, and a record, file-ID.json; and for each batch a record, batch_ID.json.
 * Records are the API's objects with a few more members.  Everything is written beside and renamed, synced before a call
 * returns, and a file counts from its record on: a kill or a power cut leaves whole files and whole records.  The
 * remains of an unfinished upload are removed at the next start.  A record that cannot be read is reported and left as it is, and
 * then nothing is removed.
 *
 * Names on disk are made of the store's own ids.  A client's name of a file is only kept in its record.  Each file and batch
 * belongs to a key (eng_api_keys_id; 0: a server without keys); for other keys it does not exist.
 *
 * `most_bytes` limits the bytes of all files.  A batch's outputs count while they grow; a batch waits while the limit is
 * reached (eng_store_has_room), but the answers in progress are still written.
 *
 * One lock protects the index; small records are written under it, so callers may wait for the disk. */
#ifndef ENGINE_STORE_STORE_H
#define ENGINE_STORE_STORE_H

#include "engine/base/bytes.h"

#define ENG_STORE_ID_BYTES  40   /* of an id, with a NUL */
#define ENG_STORE_FILE_NAME 256  /* bytes of a client's name of a file, with a NUL */
#define ENG_STORE_FILES     8192 /* most files */
#define ENG_STORE_BATCHES   1024 /* most batches: for a new one the oldest that has ended is forgotten */
#define ENG_STORE_ENDPOINT  32

struct eng_store;

int eng_store_open(struct eng_store **out, const char *folder, uint64_t most_bytes);
void eng_store_close(struct eng_store *s);
bool eng_store_has_room(struct eng_store *s); /* used bytes are below the limit */
uint64_t eng_store_used_bytes(struct eng_store *s);
/* Removes files after their expires_s, except those that a batch still needs. */
void eng_store_remove_expired(struct eng_store *s, int64_t now_s);

/* A page of a list: at most `limit` objects after the object with the id `after` (""; NULL: from the first), the newest
 * first unless `ascending`. */
struct eng_store_page {
    const char *after;
    int limit;
    bool ascending;
    const char *purpose; /* of files; NULL: any */
};

/* ---- files ------------------------------------------------------------------------------------- */

struct eng_store_file {
    char id[ENG_STORE_ID_BYTES], name[ENG_STORE_FILE_NAME];
    uint64_t key, bytes;
    int64_t created_s, expires_s; /* expires_s 0: never */
    bool is_output;               /* purpose batch_output, else batch */
};

struct eng_store_upload { /* { .file = { .fd = -1 } }: closed */
    struct eng_store *store;
    struct kn_new_file file;
    struct eng_store_file record; /* commit completes it; the caller sets key, name and expires_s before */
    bool holds_place;             /* one of ENG_STORE_FILES */
};

/* KN_ELIMIT: too many files.  The errors of these are logged, with their reason. */
int eng_store_upload_open(struct eng_store_upload *u, struct eng_store *s);
/* KN_ELIMIT, not logged: the limit of bytes is reached. */
int eng_store_upload_write(struct eng_store_upload *u, const char *data, size_t n);
int eng_store_upload_commit(struct eng_store_upload *u); /* after 0 the file is on disk, and in the store */
void eng_store_upload_close(struct eng_store_upload *u); /* without a commit the bytes are removed */

int eng_store_file_get(struct eng_store *s, uint64_t key, const char *id, struct eng_store_file *out); /* KN_ENOENT */
/* KN_ENOENT; KN_EINVAL: an unfinished batch reads it, and *batch is its id; KN_EIO, logged. */
int eng_store_file_delete(struct eng_store *s, uint64_t key, const char *id, char *batch /* [ENG_STORE_ID_BYTES] */);
/* The caller closes *fd.  The bytes stay readable if the file is deleted meanwhile. */
int eng_store_file_open(struct eng_store *s, uint64_t key, const char *id, int *fd, struct eng_store_file *out);
void eng_store_file_write(struct eng_bytes *out, const struct eng_store_file *f); /* the API's object */
/* Writes the API's list.  KN_ENOENT: there is no object `after`. */
int eng_store_files_write(struct eng_store *s, uint64_t key, const struct eng_store_page *page, struct eng_bytes *out);

/* ---- batches ----------------------------------------------------------------------------------- */

#define ENG_BATCH_STATES(X)                                                                                            \
    X(VALIDATING, "validating")                                                                                        \
    X(IN_PROGRESS, "in_progress")                                                                                      \
    X(FINALIZING, "finalizing")                                                                                        \
    X(CANCELLING, "cancelling")                                                                                        \
    X(COMPLETED, "completed")                                                                                          \
    X(FAILED, "failed")                                                                                                \
    X(EXPIRED, "expired")                                                                                              \
    X(CANCELLED, "cancelled")

enum eng_batch_state { /* from COMPLETED on: ended */
#define ENG_ENUM(name, text) ENG_BATCH_##name,
                       ENG_BATCH_STATES(ENG_ENUM)
#undef ENG_ENUM
                           ENG_BATCH_STATE_COUNT
};

struct eng_store_batch {
    char id[ENG_STORE_ID_BYTES], input[ENG_STORE_ID_BYTES];
    char output[ENG_STORE_ID_BYTES], errors[ENG_STORE_ID_BYTES]; /* files of the store once the batch has ended */
    bool has_output, has_errors;                                 /* it has ended, and the file has lines */
    char endpoint[ENG_STORE_ENDPOINT], window[16];
    uint64_t key;
    enum eng_batch_state state;
    int64_t created_s, expires_s, at_s[ENG_BATCH_STATE_COUNT]; /* at_s: when it entered the state; 0: it has not */
    uint64_t total, completed, failed;                         /* lines */
    uint64_t output_bytes;                                     /* of both outputs, while it runs */
    char fault_code[32], fault[200];                           /* why it failed, or why it waits now; "": neither */
    char *metadata;                                            /* JSON text, owned by the store's record; NULL: none */
};

/* Sets id, state, created_s and expires_s (from now_s and window_s) of *b and keeps it; key, input, endpoint, window and
 * metadata are given.  KN_ENOENT: this key has no such input; KN_ELIMIT: too many unfinished batches; KN_EIO, logged. */
int eng_store_batch_create(struct eng_store *s, struct eng_store_batch *b, int64_t now_s, int64_t window_s);
/* Both write the API's object to *out (NULL: do not).  Cancel: KN_EINVAL if the batch has ended or is finalizing. */
int eng_store_batch_write(struct eng_store *s, uint64_t key, const char *id, struct eng_bytes *out);
int eng_store_batch_cancel(struct eng_store *s, uint64_t key, const char *id, int64_t now_s, struct eng_bytes *out);
int eng_store_batches_write(struct eng_store *s, uint64_t key, const struct eng_store_page *page,
                            struct eng_bytes *out);

/* For the thread that works on batches.  Copies have no metadata. */

/* The oldest batch that has not ended, among those with an id greater than `after` ("": all).  False: none. */
bool eng_store_batch_next(struct eng_store *s, const char *after, struct eng_store_batch *out);
bool eng_store_batch_get(struct eng_store *s, const char *id, struct eng_store_batch *out);
/* Enters a state and writes the record.  KN_ECANCELLED: the batch is being cancelled, and only CANCELLED may follow. */
int eng_store_batch_enter(struct eng_store *s, const char *id, enum eng_batch_state state, int64_t now_s);
/* Sets counts, output_bytes and fault, in memory. */
void eng_store_batch_tell(struct eng_store *s, const struct eng_store_batch *b);
/* Ends the batch: outputs with lines become files of its key, empty ones are removed, and the state is entered.  May be
 * repeated after a kill. */
int eng_store_batch_end(struct eng_store *s, const char *id, enum eng_batch_state state, int64_t now_s);
/* Writes the path of a file of the store to out, [ENG_PATH_BYTES]. */
void eng_store_path(const struct eng_store *s, const char *id, char *out);

#endif
