/* engine/hub/internal.h - types and functions that the files of the room share.
 *
 *     name.c       names of models, and which names from a server are safe as file names
 *     files.c      lists of files: one folder's, or one that the server sent
 *     variants.c   the models in a list of files: quantisations, splits, folders of safetensors; the choice of one
 *     cache.c      the layout of the hub's cache: folders, references, links, locks
 *     find.c       models in the hub's cache and LM Studio's folders; the list of all stores
 *     ollama.c     models that Ollama keeps
 *     library.c    libraries that are loaded by the first download
 *     client.c     requests to the hub: tokens, redirects, tries
 *     replies.c    JSON replies to lists of files
 *     blob.c       one file: download, continue, verify
 *     pull.c       one model
 *     remove.c     removal of one model from the hub's cache */
#ifndef ENGINE_HUB_INTERNAL_H
#define ENGINE_HUB_INTERNAL_H

#include "engine/base/bytes.h"
#include "engine/hub/hub.h"
#include "offload/offload.h"

#define HUB_COMMIT_BYTES 41   /* 40 hexadecimal digits, terminated */
#define HUB_ID_BYTES     65   /* a sha256 or a git blob id as text */
#define HUB_FILE_BYTES   1024 /* the longest name of a file in a repository */
#define HUB_MOST_FILES   100000

/* ---- name.c -------------------------------------------------------------------------------------- */

struct hub_name {
    char repo[200], revision[128], which[256]; /* revision, which: "" if left out */
};

bool hub_name_parse(struct hub_name *out, const char *text);
bool hub_is_hex(const char *s, size_t n);  /* exactly n lower-case hexadecimal digits */
bool hub_is_part(const char *s, size_t n); /* [A-Za-z0-9._-], not "." or "..": one part of a name */
bool hub_is_safe_file(const char *path);   /* a relative path without "..", and no special characters */
/* Joins into out [ENG_PATH_BYTES]; false: too long. */
bool hub_path(char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- files.c ------------------------------------------------------------------------------------- */

struct hub_file {
    char *path; /* relative to the repository or folder */
    uint64_t bytes;
    char id[HUB_ID_BYTES]; /* of a server's list: sha256 of a large file, git blob id of a small one */
    bool large;
    int variant; /* set by hub_variants_find(); -1: none */
};

struct hub_files { /* all zero: empty */
    struct hub_file *file;
    int n, cap;
};

int hub_files_add(struct hub_files *f, const char *path, uint64_t bytes); /* the new file is the last */
void hub_files_sort(struct hub_files *f);
void hub_files_free(struct hub_files *f);
/* Adds the files below folder; a link to a file counts as the file, links to folders are left out.  No message if there
 * is no folder. */
int hub_files_scan(struct hub_files *f, const char *folder);

/* ---- variants.c ---------------------------------------------------------------------------------- */

struct hub_variant {
    char label[ENG_HUB_LABEL_BYTES]; /* upper case; "safetensors": a folder; "": the name has no quantisation */
    int first, n_file, n_split;      /* file index of its first file; n_split 0: not split */
    uint64_t bytes;
    bool is_folder, complete;
};

/* *out: freed with kn_free().  Sets file[].variant. */
int hub_variants_find(struct hub_variant **out, int *n, struct hub_files *f);
/* The index of the variant that `which` names, or of the usual one for "".  -1: none; -2: several. */
int hub_variant_choose(const struct hub_variant *v, int n, const struct hub_files *f, const char *which);
/* Lists the variants as "Q4_K_M (18.6 GB), Q8_0 (32 GB)"; `except` is left out. */
void hub_variants_text(char *out, size_t size, const struct hub_variant *v, int n, const struct hub_files *f,
                       int except);
const char *hub_variant_name(const struct hub_variant *v, const struct hub_files *f); /* label, or the file's name */

/* ---- cache.c ------------------------------------------------------------------------------------- */

bool hub_cache_folder(char *out, const struct eng_hub_places *p, const char *repo); /* models--ORG--NAME */
/* The commit that a revision of the cache names; false: none.  revision: "" is main; a commit may be abbreviated. */
bool hub_cache_commit(char *out /* [HUB_COMMIT_BYTES] */, const char *folder, const char *revision);
int hub_cache_save_ref(const char *folder, const char *revision, const char *commit);
/* Creates the folders of path; below its first n_base bytes none may be a link. */
int hub_make_folders(const char *path, size_t n_base);
/* Makes snapshots/COMMIT/FILE a relative link to blobs/ID. */
int hub_cache_link(const char *folder, const char *commit, const char *file, const char *id);
/* Takes the lock of a blob, as the hub's own client does; waits for another process.  *fd -1: it has no locks. */
int hub_cache_lock(int *fd, const struct eng_hub_places *p, const char *repo, const char *id, const atomic_bool *stop);
void hub_cache_unlock(int fd);

typedef int hub_each(void *user, const char *name);                 /* not 0: ends the walk, which returns it */
int hub_each_entry(const char *folder, hub_each *each, void *user); /* sorted, without names that begin with a dot */

/* ---- find.c, ollama.c ------------------------------------------------------------------------------- */

struct hub_found { /* a growing list */
    struct eng_hub_model *model;
    int n, cap;
};
int hub_found_add(struct hub_found *f, const struct eng_hub_model *m);
/* The model `which` of a folder: a snapshot, or one of LM Studio.  name: of the model, without WHICH.  KN_ENOENT
 * without a message: it is not complete there. */
int hub_find_in(struct eng_hub_model *out, enum eng_hub_store store, const char *folder, const char *name,
                const char *which);
int hub_ollama_find(struct eng_hub_model *out, const char *store, const char *text);
int hub_ollama_list(struct hub_found *f, const char *store);

/* ---- library.c ----------------------------------------------------------------------------------- */

/* Libraries that only downloads need are not linked: with the libraries below them, they take some MB and tens of
 * milliseconds, which no other command should pay. */
struct hub_call {
    const char *name;
    void *at; /* the pointer to this function */
};
/* Loads the first of the libraries `file` (terminated by NULL) that is installed, and sets the n pointers of call. */
int hub_library_load(const char *what, const char *package, const char *const *file, const struct hub_call *call,
                     int n);

/* ---- client.c ------------------------------------------------------------------------------------ */

#define HUB_CUT 1 /* the connection failed: another try may help */

struct hub_client {
    const struct eng_hub_places *places;
    const struct eng_hub_pull_options *options;
    void *curl, *header;
    char reason[256]; /* of the last HUB_CUT */
    bool reached;     /* the server has answered once */
    struct {          /* bytes to download, bytes downloaded, tenths that were reported */
        uint64_t total, done, begin_ns;
        int n_tenth;
    } count;
};

struct hub_reply {
    long status;
    int64_t range_from, wait_s;
    char code[48], text[200]; /* X-Error-Code; the beginning of an error's body */
    char next[2048];          /* address of the list's next page, or "" */
};

/* Takes n bytes of the body that belong at offset `at`; KN_E* ends the transfer. */
typedef int hub_sink(void *user, uint64_t at, const char *p, size_t n);

int hub_client_open(struct hub_client *c, const struct eng_hub_places *p, const struct eng_hub_pull_options *o);
void hub_client_close(struct hub_client *c);
bool hub_is_stopped(const struct hub_client *c);
/* One GET of `from` to the end.  0: the server has answered, with any status; only the body of 200 and 206 reaches the
 * sink.  HUB_CUT, KN_ECANCELLED, or the sink's error. */
int hub_request(struct hub_client *c, const char *url, uint64_t from, hub_sink *sink, void *user, struct hub_reply *r);
/* After a request that failed in a way that another try may mend: waits and returns 0.  Gives up with a message after
 * several; counts them in *n_failed. */
int hub_wait(struct hub_client *c, const char *name, int *n_failed, int result, const struct hub_reply *r);
bool hub_is_passing(int result, const struct hub_reply *r); /* such a way: cut, busy, or 429 */
int hub_fail_status(const struct hub_client *c, const struct hub_name *name, const struct hub_reply *r);
/* Appends s to url, with % for all bytes but letters, digits, "-._~" and, if slash, "/". */
bool hub_url_add(char *url, size_t size, const char *s, bool slash);

/* ---- replies.c ----------------------------------------------------------------------------------- */

/* The commit that the reply of api/models/ORG/NAME/revision/REVISION names. */
int hub_reply_commit(char *out /* [HUB_COMMIT_BYTES] */, const char *repo, const char *text, size_t n);
/* Adds the files of one page of api/models/ORG/NAME/tree/COMMIT.  Unsafe names are refused. */
int hub_reply_tree(struct hub_files *f, const char *repo, const char *text, size_t n);

/* ---- blob.c -------------------------------------------------------------------------------------- */

struct hub_blob {
    struct hub_client *client;
    const struct hub_name *name;
    const char *folder, *url;
    const struct hub_file *file;
};

/* The bytes of the file that have still to be downloaded. */
uint64_t hub_blob_missing(const char *folder, const struct hub_file *file);
int hub_blob_get(const struct hub_blob *b);

/* ---- pull.c -------------------------------------------------------------------------------------- */

void hub_count_bytes(struct hub_client *c, uint64_t n); /* advances the progress */

#endif
