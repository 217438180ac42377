/* engine/hub/remove.c - removal of one model from the hub's cache.
 *
 * Open finds the links that will go and the blobs that no other link of the repository names; remove deletes them.  If
 * no other snapshot is left, the repository's whole folder goes, with parts of downloads.  The stores of other tools
 * are not touched. */
#include "engine/hub/internal.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct eng_hub_removal {
    char name[ENG_HUB_NAME_BYTES], folder[ENG_PATH_BYTES], snapshot[ENG_PATH_BYTES], commit[HUB_COMMIT_BYTES];
    struct hub_name parsed;
    struct hub_files files;                /* of the snapshot; id: the blob, or "" for a file that is no link to one */
    bool *goes;                            /* [files.n] */
    char (*kept)[HUB_ID_BYTES];            /* blobs that other links name */
    int n_kept, cap_kept, n_other, n_file; /* n_other: other snapshots */
    uint64_t bytes;
    bool all, whole; /* all: each file of the snapshot goes; whole: the repository's folder goes */
};

/* ---- references to blobs ----------------------------------------------------------------------------- */

/* The id of the blob that snapshot/file links to; false: it is no such link. */
static bool blob_of(char *id, const char *snapshot, const char *file)
{
    char path[ENG_PATH_BYTES], target[ENG_PATH_BYTES];
    if (!hub_path(path, "%s/%s", snapshot, file))
        return false;
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    const char *slash = strrchr(target, '/');
    size_t k = slash ? strlen(slash + 1) : 0;
    if (k == 0 || k >= HUB_ID_BYTES || slash - target < 5 || strncmp(slash - 5, "blobs", 5) != 0 ||
        !hub_is_part(slash + 1, k))
        return false;
    memcpy(id, slash + 1, k + 1);
    return true;
}

static int keep_blob(struct eng_hub_removal *r, const char *id)
{
    if (r->n_kept == r->cap_kept) {
        int cap = r->cap_kept ? 2 * r->cap_kept : 64;
        void *grown = kn_realloc(r->kept, (size_t)r->cap_kept * sizeof *r->kept, (size_t)cap * sizeof *r->kept);
        if (!grown)
            return kn_fail(KN_ENOMEM, "no memory for the list of files");
        r->kept = grown;
        r->cap_kept = cap;
    }
    snprintf(r->kept[r->n_kept++], HUB_ID_BYTES, "%s", id);
    return 0;
}

static bool is_kept(const struct eng_hub_removal *r, const char *id)
{
    for (int i = 0; i < r->n_kept; i++)
        if (!strcmp(r->kept[i], id))
            return true;
    return false;
}

static int keep_of_other(void *user, const char *commit)
{
    struct eng_hub_removal *r = user;
    struct hub_files files = { 0 };
    char path[ENG_PATH_BYTES], id[HUB_ID_BYTES];
    if (!strcmp(commit, r->commit) || !hub_path(path, "%s/snapshots/%s", r->folder, commit))
        return 0;
    r->n_other++;
    int error = hub_files_scan(&files, path);
    for (int i = 0; i < files.n && !error; i++)
        if (blob_of(id, path, files.file[i].path))
            error = keep_blob(r, id);
    hub_files_free(&files);
    return error;
}

/* ---- the files to remove --------------------------------------------------------------------------------------- */

/* True for a file that this program writes beside the model file: MODEL.gguf.heat, MODEL.gguf.fit, MODEL.experts. */
static bool is_side_file(const char *path, const char *model)
{
    char side[ENG_PATH_BYTES];
    return (eng_heat_path(side, model) && !strcmp(side, path)) || (eng_fit_path(side, model) && !strcmp(side, path)) ||
           (eng_pack_path(side, model) == 0 && !strcmp(side, path));
}

static int mark_variant(struct eng_hub_removal *r)
{
    struct hub_variant *v;
    char all[600];
    int n, error = hub_variants_find(&v, &n, &r->files);
    if (error)
        return error;
    int chosen = hub_variant_choose(v, n, &r->files, r->parsed.which);
    hub_variants_text(all, sizeof all, v, n, &r->files, -1);
    if (chosen < 0)
        error = kn_fail(KN_ENOENT, "%s: %s %s in the cache; it has %s", r->parsed.repo,
                        chosen == -1 ? "no" : "more than one", r->parsed.which, n ? all : "no models");
    for (int i = 0; i < r->files.n && !error; i++) {
        const char *path = r->files.file[i].path;
        r->goes[i] = r->files.file[i].variant == chosen || is_side_file(path, r->files.file[v[chosen].first].path);
        r->n_file += r->files.file[i].variant == chosen;
    }
    kn_free(v);
    return error;
}

/* The space of a file or link itself, not of the file that a link names. */
static uint64_t own_bytes(const char *folder, const char *inner, const char *name)
{
    char path[ENG_PATH_BYTES];
    struct stat st;
    return hub_path(path, "%s/%s%s", folder, inner, name) && lstat(path, &st) == 0 && S_ISREG(st.st_mode)
               ? (uint64_t)st.st_size
               : 0;
}

static int count_part(void *user, const char *name)
{
    struct eng_hub_removal *r = user;
    r->bytes += own_bytes(r->folder, "blobs/", name);
    return 0;
}

static bool is_first_link(const struct eng_hub_removal *r, int i)
{
    for (int k = 0; k < i; k++)
        if (r->goes[k] && !strcmp(r->files.file[k].id, r->files.file[i].id))
            return false;
    return true;
}

static int measure(struct eng_hub_removal *r)
{
    char path[ENG_PATH_BYTES];
    int error = 0;
    for (int i = 0; i < r->files.n && !error; i++)
        if (!r->goes[i] && r->files.file[i].id[0])
            error = keep_blob(r, r->files.file[i].id);
    for (int i = 0; i < r->files.n && !error; i++) {
        const char *id = r->files.file[i].id;
        if (r->goes[i] && !id[0])
            r->bytes += own_bytes(r->snapshot, "", r->files.file[i].path);
        else if (r->goes[i] && !r->whole && !is_kept(r, id) && is_first_link(r, i))
            r->bytes += own_bytes(r->folder, "blobs/", id);
    }
    if (!error && r->whole && hub_path(path, "%s/blobs", r->folder))
        error = hub_each_entry(path, count_part, r);
    return error;
}

static int fail_elsewhere(const struct eng_hub_places *p, const char *text)
{
    struct eng_hub_model m;
    if (eng_hub_find(&m, p, text))
        return kn_fail(KN_ENOENT, "%s is not in the hub's cache; spillway list shows the models here", text);
    if (m.store == ENG_HUB_OLLAMA)
        return kn_fail(KN_EINVAL, "%s is in Ollama's store: remove it with ollama rm %s", text, m.name);
    return kn_fail(KN_EINVAL, "%s is in the folder of LM Studio: remove it there, or delete %s", text, m.path);
}

static int keep_only(void *user, const char *commit)
{
    struct eng_hub_removal *r = user;
    if (hub_is_hex(commit, HUB_COMMIT_BYTES - 1)) {
        memcpy(r->commit, commit, HUB_COMMIT_BYTES);
        r->n_other++;
    }
    return 0;
}

/* The commit that the name means: of its revision, of main, or of the only snapshot. */
static bool find_commit(struct eng_hub_removal *r)
{
    char path[ENG_PATH_BYTES];
    if (hub_cache_commit(r->commit, r->folder, r->parsed.revision))
        return true;
    if (r->parsed.revision[0] || !hub_path(path, "%s/snapshots", r->folder))
        return false;
    hub_each_entry(path, keep_only, r);
    bool one = r->n_other == 1;
    r->n_other = 0;
    return one;
}

static int is_part(void *user, const char *name)
{
    (void)user;
    return strstr(name, ".incomplete") != NULL;
}

/* True if a download of the repository has begun: of another quantisation, maybe. */
static bool has_parts(const struct eng_hub_removal *r)
{
    char path[ENG_PATH_BYTES];
    return !hub_path(path, "%s/blobs", r->folder) || hub_each_entry(path, is_part, NULL);
}

static int open_removal(struct eng_hub_removal *r, const struct eng_hub_places *p, const char *text)
{
    char path[ENG_PATH_BYTES];
    snprintf(r->name, sizeof r->name, "%s", text);
    if (!hub_name_parse(&r->parsed, text) || !hub_cache_folder(r->folder, p, r->parsed.repo) || !find_commit(r) ||
        !hub_path(r->snapshot, "%s/snapshots/%s", r->folder, r->commit) || access(r->snapshot, F_OK) < 0)
        return fail_elsewhere(p, text);
    int error = hub_files_scan(&r->files, r->snapshot);
    if (!error && !(r->goes = kn_calloc((size_t)r->files.n + 1, sizeof *r->goes)))
        error = kn_fail(KN_ENOMEM, "no memory for the list of files");
    for (int i = 0; i < r->files.n && !error; i++) {
        r->goes[i] = !r->parsed.which[0];
        if (!blob_of(r->files.file[i].id, r->snapshot, r->files.file[i].path))
            r->files.file[i].id[0] = 0;
    }
    if (!error && r->parsed.which[0])
        error = mark_variant(r);
    else
        r->n_file = r->files.n;
    if (!error && hub_path(path, "%s/snapshots", r->folder))
        error = hub_each_entry(path, keep_of_other, r);
    r->all = true;
    for (int i = 0; i < r->files.n; i++)
        r->all = r->all && r->goes[i];
    r->whole = r->all && r->n_other == 0 && (!r->parsed.which[0] || !has_parts(r));
    return error ? error : measure(r);
}

int eng_hub_removal_open(struct eng_hub_removal **out, const struct eng_hub_places *places, const char *text)
{
    struct eng_hub_removal *r = kn_calloc(1, sizeof *r);
    if (!r)
        return kn_fail(KN_ENOMEM, "no memory for the list of files");
    int error = open_removal(r, places, text);
    if (error)
        eng_hub_removal_close(r);
    else
        *out = r;
    return error;
}

void eng_hub_removal_close(struct eng_hub_removal *r)
{
    if (!r)
        return;
    hub_files_free(&r->files);
    kn_free(r->goes);
    kn_free(r->kept);
    kn_free(r);
}

const char *eng_hub_removal_name(const struct eng_hub_removal *r) { return r->name; }
uint64_t eng_hub_removal_bytes(const struct eng_hub_removal *r) { return r->bytes; }
int eng_hub_removal_count(const struct eng_hub_removal *r) { return r->n_file; }

/* ---- removal ------------------------------------------------------------------------------------------ */

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static int remove_tree(const char *path)
{
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT)
        return 0;
    return kn_fail(KN_EIO, "%s: cannot be removed: %s", path, strerror(errno));
}

static int remove_file(const char *path)
{
    if (kn_io()->unlink(path) == 0 || errno == ENOENT)
        return 0;
    return kn_fail(KN_EIO, "%s: cannot be removed: %s", path, strerror(errno));
}

static int remove_ref(void *user, const char *name)
{
    struct eng_hub_removal *r = user;
    char path[ENG_PATH_BYTES], commit[HUB_COMMIT_BYTES];
    if (hub_cache_commit(commit, r->folder, name) && !strcmp(commit, r->commit) &&
        hub_path(path, "%s/refs/%s", r->folder, name))
        return remove_file(path);
    return 0;
}

/* The link goes before the blob: a reader never finds a link to nothing. */
static int remove_marked(struct eng_hub_removal *r)
{
    char path[ENG_PATH_BYTES];
    int error = 0;
    for (int i = 0; i < r->files.n && !error; i++) {
        const struct hub_file *file = &r->files.file[i];
        if (!r->goes[i] || !hub_path(path, "%s/%s", r->snapshot, file->path))
            continue;
        error = remove_file(path);
        for (char *slash = strrchr(path, '/'); slash > path + strlen(r->snapshot); slash = strrchr(path, '/')) {
            *slash = 0;
            if (rmdir(path) < 0)
                break;
        }
        if (!error && file->id[0] && !is_kept(r, file->id) && hub_path(path, "%s/blobs/%s", r->folder, file->id))
            error = remove_file(path);
    }
    return error;
}

int eng_hub_remove(struct eng_hub_removal *r)
{
    char path[ENG_PATH_BYTES];
    if (r->whole)
        return remove_tree(r->folder);
    int error = remove_marked(r);
    if (error || !r->all)
        return error;
    if (hub_path(path, "%s/refs", r->folder))
        error = hub_each_entry(path, remove_ref, r);
    return error ? error : remove_tree(r->snapshot);
}
