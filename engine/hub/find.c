/* engine/hub/find.c - models on this machine: by name, and all of them.
 *
 * A snapshot of the hub's cache and a folder of LM Studio are both a folder with model files, so one function finds the
 * models of both.  Models with missing files are left out. */
#include "engine/hub/internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const char *eng_hub_store_name(enum eng_hub_store store)
{
    static const char *const name[] = { "hub", "ollama", "lmstudio" };
    return name[store];
}

int hub_found_add(struct hub_found *f, const struct eng_hub_model *m)
{
    if (f->n == f->cap) {
        int cap = f->cap ? 2 * f->cap : 16;
        struct eng_hub_model *grown = kn_realloc(f->model, (size_t)f->cap * sizeof *f->model,
                                                 (size_t)cap * sizeof *f->model);
        if (!grown)
            return kn_fail(KN_ENOMEM, "no memory for the list of models");
        f->model = grown;
        f->cap = cap;
    }
    f->model[f->n++] = *m;
    return 0;
}

/* ---- one folder ------------------------------------------------------------------------------------ */

struct folder {
    enum eng_hub_store store;
    const char *path, *name;
    struct hub_files files;
    struct hub_variant *variant;
    int n; /* complete ones, in front */
};

static int open_folder(struct folder *f, enum eng_hub_store store, const char *path, const char *name)
{
    int n_all;
    *f = (struct folder){ .store = store, .path = path, .name = name };
    int error = hub_files_scan(&f->files, path);
    if (!error)
        error = hub_variants_find(&f->variant, &n_all, &f->files);
    for (int i = 0; !error && i < n_all; i++)
        if (f->variant[i].complete)
            f->variant[f->n++] = f->variant[i];
    return error;
}

static void close_folder(struct folder *f)
{
    hub_files_free(&f->files);
    kn_free(f->variant);
}

/* Describes the i-th model; its name ends in the WHICH that finds it again. */
static int take_model(struct eng_hub_model *out, const struct folder *f, int i)
{
    const struct hub_variant *v = &f->variant[i];
    const char *file = f->files.file[v->first].path, *which = v->label;
    *out = (struct eng_hub_model){ .store = f->store, .bytes = v->bytes, .n_file = v->n_file };
    if (!which[0] || hub_variant_choose(f->variant, f->n, &f->files, which) != i)
        which = file;
    bool alone = v->is_folder && f->n == 1;
    int n = snprintf(out->name, sizeof out->name, "%s%s%s", f->name, alone ? "" : ":", alone ? "" : which);
    snprintf(out->label, sizeof out->label, "%s", v->label);
    bool fits = v->is_folder ? hub_path(out->path, "%s", f->path) : hub_path(out->path, "%s/%s", f->path, file);
    return fits && n < (int)sizeof out->name ? 0 : kn_fail(KN_ELIMIT, "%s: the name is too long", file);
}

/* Takes the model `which` of an open folder. */
static int choose(struct eng_hub_model *out, const struct folder *f, const char *which)
{
    char others[600];
    int i = hub_variant_choose(f->variant, f->n, &f->files, which);
    if (i == -1)
        return KN_ENOENT;
    hub_variants_text(others, sizeof others, f->variant, f->n, &f->files, i);
    if (i < 0)
        return kn_fail(KN_EINVAL, "%s: several files are %s; give the name of a file in its place: %s", f->name, which,
                       others);
    int error = take_model(out, f, i);
    if (!error && !which[0] && f->n > 1)
        kn_say(KN_LOG_INFO, "%s: taking %s; also here: %s", f->name, hub_variant_name(&f->variant[i], &f->files),
               others);
    return error;
}

int hub_find_in(struct eng_hub_model *out, enum eng_hub_store store, const char *path, const char *name,
                const char *which)
{
    struct folder f;
    int error = open_folder(&f, store, path, name);
    if (!error)
        error = choose(out, &f, which);
    close_folder(&f);
    return error;
}

static int list_in(struct hub_found *found, enum eng_hub_store store, const char *path, const char *name)
{
    struct folder f;
    struct eng_hub_model m;
    int error = open_folder(&f, store, path, name);
    for (int i = 0; i < f.n && !error; i++)
        if (!(error = take_model(&m, &f, i)))
            error = hub_found_add(found, &m);
    close_folder(&f);
    return error;
}

/* ---- the hub's cache ------------------------------------------------------------------------------- */

struct newest {
    const struct hub_name *name;
    const char *folder;
    char commit[HUB_COMMIT_BYTES];
    int64_t changed_s;
};

static bool snapshot_path(char *out, const char *folder, const char *commit)
{
    return hub_path(out, "%s/snapshots/%s", folder, commit);
}

/* Keeps the snapshot that changed last among those that have the model. */
static int compare_snapshot(void *user, const char *commit)
{
    struct newest *s = user;
    struct folder f;
    struct stat st;
    char path[ENG_PATH_BYTES];
    if (!hub_is_hex(commit, HUB_COMMIT_BYTES - 1) || !snapshot_path(path, s->folder, commit) || stat(path, &st) < 0 ||
        (s->commit[0] && (int64_t)st.st_mtime <= s->changed_s))
        return 0;
    int error = open_folder(&f, ENG_HUB_CACHE, path, s->name->repo);
    if (!error && hub_variant_choose(f.variant, f.n, &f.files, s->name->which) != -1) {
        memcpy(s->commit, commit, HUB_COMMIT_BYTES);
        s->changed_s = st.st_mtime;
    }
    close_folder(&f);
    return error;
}

/* Without a revision, a snapshot of another commit than that of main is good enough: pull gets the newest. */
static int find_in_cache(struct eng_hub_model *out, const struct eng_hub_places *p, const struct hub_name *name)
{
    char folder[ENG_PATH_BYTES], path[ENG_PATH_BYTES], shown[ENG_HUB_NAME_BYTES];
    struct newest s = { .name = name, .folder = folder };
    int error = KN_ENOENT;
    if (!hub_cache_folder(folder, p, name->repo))
        return KN_ENOENT;
    snprintf(shown, sizeof shown, "%s%s%s", name->repo, name->revision[0] ? "@" : "", name->revision);
    if (hub_cache_commit(s.commit, folder, name->revision) && snapshot_path(path, folder, s.commit))
        error = hub_find_in(out, ENG_HUB_CACHE, path, shown, name->which);
    if (error != KN_ENOENT || name->revision[0] || !hub_path(path, "%s/snapshots", folder))
        return error;
    s.commit[0] = 0;
    int walked = hub_each_entry(path, compare_snapshot, &s);
    if (walked || !s.commit[0] || !snapshot_path(path, folder, s.commit))
        return walked ? walked : KN_ENOENT;
    return hub_find_in(out, ENG_HUB_CACHE, path, shown, name->which);
}

struct walk { /* through the folders of a store */
    struct hub_found *found;
    char folder[ENG_PATH_BYTES], repo[ENG_HUB_NAME_BYTES], main[HUB_COMMIT_BYTES];
    const char *commit, *root;
    char ref[64];
};

static int compare_ref(void *user, const char *name)
{
    struct walk *w = user;
    char commit[HUB_COMMIT_BYTES];
    if (hub_cache_commit(commit, w->folder, name) && !strcmp(commit, w->commit) && strlen(name) < sizeof w->ref)
        snprintf(w->ref, sizeof w->ref, "%s", name);
    return 0;
}

static int list_snapshot(void *user, const char *commit)
{
    struct walk *w = user;
    char path[ENG_PATH_BYTES], refs[ENG_PATH_BYTES], name[ENG_HUB_NAME_BYTES];
    if (!hub_is_hex(commit, HUB_COMMIT_BYTES - 1) || !snapshot_path(path, w->folder, commit) ||
        !hub_path(refs, "%s/refs", w->folder))
        return 0;
    snprintf(w->ref, sizeof w->ref, "%.12s", commit);
    w->commit = commit;
    hub_each_entry(refs, compare_ref, w);
    bool is_main = !strcmp(w->main, commit);
    int n = snprintf(name, sizeof name, "%s%s%s", w->repo, is_main ? "" : "@", is_main ? "" : w->ref);
    return n < (int)sizeof name ? list_in(w->found, ENG_HUB_CACHE, path, name) : 0;
}

static int list_repository(void *user, const char *entry)
{
    struct walk *w = user;
    char path[ENG_PATH_BYTES];
    const char *org = entry + sizeof "models--" - 1, *dashes = strstr(org, "--");
    if (strncmp(entry, "models--", sizeof "models--" - 1) != 0 || !dashes ||
        snprintf(w->repo, sizeof w->repo, "%.*s/%s", (int)(dashes - org), org, dashes + 2) >= (int)sizeof w->repo ||
        !hub_path(w->folder, "%s/%s", w->root, entry) || !hub_path(path, "%s/snapshots", w->folder))
        return 0;
    if (!hub_cache_commit(w->main, w->folder, ""))
        w->main[0] = 0;
    return hub_each_entry(path, list_snapshot, w);
}

/* ---- LM Studio ------------------------------------------------------------------------------------- */

static int find_in_lm_studio(struct eng_hub_model *out, const char *root, const struct hub_name *name)
{
    char path[ENG_PATH_BYTES];
    if (!root || name->revision[0] || !hub_path(path, "%s/%s", root, name->repo))
        return KN_ENOENT;
    return hub_find_in(out, ENG_HUB_LM_STUDIO, path, name->repo, name->which);
}

static int list_lm_model(void *user, const char *entry)
{
    struct walk *w = user;
    char path[ENG_PATH_BYTES], name[ENG_HUB_NAME_BYTES];
    if (!hub_path(path, "%s/%s", w->folder, entry) ||
        snprintf(name, sizeof name, "%s/%s", w->repo, entry) >= (int)sizeof name || !eng_hub_is_name(name))
        return 0;
    return list_in(w->found, ENG_HUB_LM_STUDIO, path, name);
}

static int list_lm_org(void *user, const char *entry)
{
    struct walk *w = user;
    if (!hub_path(w->folder, "%s/%s", w->root, entry) ||
        snprintf(w->repo, sizeof w->repo, "%s", entry) >= (int)sizeof w->repo)
        return 0;
    return hub_each_entry(w->folder, list_lm_model, w);
}

/* ---- all stores ------------------------------------------------------------------------------------- */

int eng_hub_find(struct eng_hub_model *out, const struct eng_hub_places *p, const char *text)
{
    struct hub_name name;
    bool is_name = hub_name_parse(&name, text);
    int error = is_name ? find_in_cache(out, p, &name) : KN_ENOENT;
    for (int i = 0; i < 2 && error == KN_ENOENT; i++)
        error = p->ollama[i] ? hub_ollama_find(out, p->ollama[i], text) : KN_ENOENT;
    for (int i = 0; i < 2 && error == KN_ENOENT && is_name; i++)
        error = find_in_lm_studio(out, p->lm_studio[i], &name);
    return error;
}

int eng_hub_list(struct eng_hub_model **out, int *n, const struct eng_hub_places *p)
{
    struct hub_found found = { 0 };
    struct walk w = { .found = &found, .root = p->cache };
    int error = p->cache ? hub_each_entry(p->cache, list_repository, &w) : 0;
    for (int i = 0; i < 2 && !error; i++)
        error = p->ollama[i] ? hub_ollama_list(&found, p->ollama[i]) : 0;
    for (int i = 0; i < 2 && !error; i++)
        if ((w.root = p->lm_studio[i]))
            error = hub_each_entry(w.root, list_lm_org, &w);
    if (error)
        kn_free(found.model);
    *out = error ? NULL : found.model;
    *n = error ? 0 : found.n;
    return error;
}
