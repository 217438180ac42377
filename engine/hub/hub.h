/* engine/hub/hub.h - models by name: those on this machine, downloads from the Hugging Face hub, and removal.
 *
 * A name is ORG/NAME[@REVISION][:WHICH].  REVISION is a branch, a tag or a commit ("main" if left out); WHICH is a
 * quantisation such as Q4_K_M in any case, the name of a file, or "safetensors".  A name of Ollama is NAME[:TAG].
 *
 * Three stores are searched, in this order:
 *
 *     hub        the cache that all tools of the hub share: models--ORG--NAME with blobs/ (files named by their hash),
 *                snapshots/COMMIT/ (links with the file names of one commit) and refs/ (branch or tag to commit)
 *     ollama     manifests/HOST/ORG/NAME/TAG, which name files blobs/sha256-HASH
 *     lmstudio   ORG/NAME/FILE.gguf
 *
 * Only pull sends requests, and only pull and remove write: into the hub's cache.  All calls are for one thread. */
#ifndef ENGINE_HUB_HUB_H
#define ENGINE_HUB_HUB_H

#include <stdatomic.h>

#include "engine/base/base.h"

#define ENG_HUB_NAME_BYTES  512
#define ENG_HUB_LABEL_BYTES 64

/* Where the stores are; the command line fills it from the environment.  Strings are not owned. */
struct eng_hub_places {
    const char *cache;        /* folder with models--ORG--NAME */
    const char *token;        /* access token of the hub, or NULL */
    const char *token_file;   /* file with one, read if token is NULL and the file exists */
    const char *endpoint;     /* https://huggingface.co, or a mirror; http is allowed only if it begins with http: */
    const char *ca_file;      /* certificates instead of the system's, or NULL */
    const char *ollama[2];    /* folders with manifests/ and blobs/; NULL: none */
    const char *lm_studio[2]; /* folders with ORG/NAME; NULL: none */
    bool offline;             /* no request is sent */
};

enum eng_hub_store { ENG_HUB_CACHE, ENG_HUB_OLLAMA, ENG_HUB_LM_STUDIO };

/* "hub", "ollama", "lmstudio" */
const char *eng_hub_store_name(enum eng_hub_store store);

/* A model on this machine that is complete. */
struct eng_hub_model {
    enum eng_hub_store store;
    char name[ENG_HUB_NAME_BYTES];   /* finds this model again */
    char label[ENG_HUB_LABEL_BYTES]; /* quantisation as the file name says, "safetensors", or "" */
    char path[ENG_PATH_BYTES];       /* file, first file of a split model, or folder */
    uint64_t bytes;
    int n_file;
};

/* True if text can name a model of the hub: ORG/NAME..., and it is no name of a file (.gguf). */
bool eng_hub_is_name(const char *text);

/* Finds a model by name.  If the name fits several, prefers as pull does, and logs which.  Returns KN_ENOENT without a
 * message if there is none, KN_EINVAL with a message if WHICH fits several files. */
int eng_hub_find(struct eng_hub_model *out, const struct eng_hub_places *places, const char *text);

/* All models, by store and name.  The caller frees *out with kn_free(). */
int eng_hub_list(struct eng_hub_model **out, int *n, const struct eng_hub_places *places);

struct eng_hub_pull_options {
    struct off_progress *progress; /* of the bytes that have to be downloaded; may be NULL */
    const atomic_bool *stop;       /* may be NULL; when true: the part is kept, KN_ECANCELLED */
    bool says_progress;            /* log a line at each tenth: there is no bar */
    int second_ms;                 /* length of a second of waiting before another try; tests shorten it */
};

/* Downloads the missing files of a model, verifies each file by its published hash, and puts it into the hub's cache. 
 * A download that was cut short goes on where it ended.  *out is the model afterwards. */
int eng_hub_pull(struct eng_hub_model *out, const struct eng_hub_places *places, const char *text,
                 const struct eng_hub_pull_options *options);

/* The files that a removal would delete: links in snapshots, blobs that no other link names, and files written beside
 * the model.  With WHICH those of one quantisation, else the whole revision. */
struct eng_hub_removal;
int eng_hub_removal_open(struct eng_hub_removal **out, const struct eng_hub_places *places, const char *text);
void eng_hub_removal_close(struct eng_hub_removal *r);
const char *eng_hub_removal_name(const struct eng_hub_removal *r);
uint64_t eng_hub_removal_bytes(const struct eng_hub_removal *r); /* that the removal frees */
int eng_hub_removal_count(const struct eng_hub_removal *r);      /* files of the model */
int eng_hub_remove(struct eng_hub_removal *r);

#endif
