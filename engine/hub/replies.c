/* engine/hub/replies.c - the hub's JSON replies, as a commit and a list of files.
 *
 * A server may send anything: names that could leave the cache, ids that are none, and negative sizes are refused. */
#include "kernels/json.h"
#include "engine/hub/internal.h"

#include <string.h>

static json_t *load(const char *repo, const char *text, size_t n)
{
    json_error_t error;
    json_t *v = kn_json_load(text, n, JSON_REJECT_DUPLICATES, &error);
    if (!v)
        kn_fail(KN_ECORRUPT, "%s: the server's reply is no JSON (line %d: %s)", repo, error.line, error.text);
    return v;
}

int hub_reply_commit(char *out, const char *repo, const char *text, size_t n)
{
    json_t *v = load(repo, text, n);
    if (!v)
        return KN_ECORRUPT;
    const char *sha = json_string_value(json_object_get(v, "sha"));
    bool good = sha && hub_is_hex(sha, HUB_COMMIT_BYTES - 1);
    if (good)
        memcpy(out, sha, HUB_COMMIT_BYTES);
    json_decref(v);
    return good ? 0 : kn_fail(KN_ECORRUPT, "%s: the server's reply names no commit (sha)", repo);
}

static bool take_size(const json_t *v, uint64_t *out)
{
    json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
    *out = n < 0 ? 0 : (uint64_t)n;
    return n >= 0;
}

/* {"type":"file","path":"a.gguf","size":1,"oid":"<git>","lfs":{"oid":"<sha256>","size":1}} */
static int take_entry(struct hub_files *f, const char *repo, const json_t *entry)
{
    const char *type = json_string_value(json_object_get(entry, "type"));
    const json_t *name = json_object_get(entry, "path"), *lfs = json_object_get(entry, "lfs");
    const char *path = json_string_value(name);
    bool large = json_is_object(lfs);
    const char *id = json_string_value(json_object_get(large ? lfs : entry, "oid"));
    uint64_t bytes;
    if (type && strcmp(type, "file") != 0)
        return 0;
    if (!path || strlen(path) != json_string_length(name) || !hub_is_safe_file(path))
        return kn_fail(KN_ECORRUPT, "%s: the server names a file '%.80s', which is refused: it could leave the cache",
                       repo, path ? path : "");
    if (!id || !hub_is_hex(id, large ? 64 : 40) || !take_size(json_object_get(large ? lfs : entry, "size"), &bytes))
        return kn_fail(KN_ECORRUPT, "%s: the server's reply has no hash or size of %s", repo, path);
    int error = hub_files_add(f, path, bytes);
    if (!error) {
        f->file[f->n - 1].large = large;
        memcpy(f->file[f->n - 1].id, id, strlen(id) + 1);
    }
    return error;
}

int hub_reply_tree(struct hub_files *f, const char *repo, const char *text, size_t n)
{
    json_t *v = load(repo, text, n), *entry;
    size_t i;
    if (!v)
        return KN_ECORRUPT;
    int error = json_is_array(v) ? 0 : kn_fail(KN_ECORRUPT, "%s: the server's reply is no list of files", repo);
    json_array_foreach(v, i, entry) if (!error) error = take_entry(f, repo, entry);
    json_decref(v);
    return error;
}
