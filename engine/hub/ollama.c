/* engine/hub/ollama.c - models that Ollama keeps.
 *
 * A manifest, manifests/HOST/ORG/NAME/TAG, is JSON with layers; the layer with the type of a model names the file
 * blobs/sha256-HASH, which is a GGUF file.  Names without a host are registry.ollama.ai's, without an organisation
 * "library"; names of the hub are under hf.co. */
#include "kernels/json.h"
#include "engine/hub/internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_MANIFEST (1 << 20)
#define REGISTRY      "registry.ollama.ai"
#define HUB_HOST      "hf.co"

/* Sets the path and size of the model that a manifest names.  False: it is none, or the blob is missing. */
static bool take_layers(struct eng_hub_model *out, const char *store, const json_t *manifest)
{
    const json_t *layer;
    size_t i;
    json_array_foreach(json_object_get(manifest, "layers"), i, layer)
    {
        const char *type = json_string_value(json_object_get(layer, "mediaType"));
        const char *digest = json_string_value(json_object_get(layer, "digest"));
        struct stat st;
        if (!type || strcmp(type, "application/vnd.ollama.image.model") != 0 || !digest ||
            strncmp(digest, "sha256:", 7) != 0 || !hub_is_hex(digest + 7, 64))
            continue;
        if (!hub_path(out->path, "%s/blobs/sha256-%s", store, digest + 7) || stat(out->path, &st) < 0 ||
            !S_ISREG(st.st_mode))
            return false;
        out->bytes = (uint64_t)st.st_size;
        out->n_file = 1;
        return true;
    }
    return false;
}

static bool read_manifest(struct eng_hub_model *out, const char *store, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    int fd = kn_io()->open(path, 0, 0);
    int64_t size = fd < 0 ? -1 : kn_io()->size(fd);
    bool found = false;
    if (size > 0 && size <= MOST_MANIFEST && eng_read_all(fd, path, &text, &n) == 0) {
        json_t *manifest = kn_json_load(text, n, 0, NULL);
        *out = (struct eng_hub_model){ .store = ENG_HUB_OLLAMA };
        found = manifest && take_layers(out, store, manifest);
        json_decref(manifest);
    }
    kn_free(text);
    kn_file_close(fd);
    return found;
}

static int find_at(struct eng_hub_model *out, const char *store, const char *host, const char *org, const char *name,
                   const char *tag)
{
    char path[ENG_PATH_BYTES];
    const char *part[] = { org, name, tag };
    for (int i = 0; i < 3; i++)
        if (!hub_is_part(part[i], strlen(part[i])))
            return KN_ENOENT;
    if (!hub_path(path, "%s/manifests/%s/%s/%s/%s", store, host, org, name, tag) || !read_manifest(out, store, path))
        return KN_ENOENT;
    bool library = !strcmp(host, REGISTRY) && !strcmp(org, "library"), hub = !strcmp(host, HUB_HOST);
    int n = snprintf(out->name, sizeof out->name, "%s%s%s%s%s:%s", hub ? HUB_HOST : "", hub ? "/" : "",
                     library ? "" : org, library ? "" : "/", name, tag);
    return n < (int)sizeof out->name ? 0 : KN_ENOENT;
}

int hub_ollama_find(struct eng_hub_model *out, const char *store, const char *text)
{
    char org[128] = "library", name[128], tag[128] = "latest";
    const char *s = strncmp(text, HUB_HOST "/", sizeof HUB_HOST) ? text : text + sizeof HUB_HOST;
    const char *slash = strchr(s, '/'), *rest = slash ? slash + 1 : s;
    size_t n = strcspn(rest, ":");
    if ((slash && (size_t)(slash - s) >= sizeof org) || n >= sizeof name || (rest[n] && strlen(rest + n) > sizeof tag))
        return KN_ENOENT;
    if (slash)
        snprintf(org, sizeof org, "%.*s", (int)(slash - s), s);
    snprintf(name, sizeof name, "%.*s", (int)n, rest);
    if (rest[n])
        snprintf(tag, sizeof tag, "%s", rest + n + 1);
    int error = slash ? find_at(out, store, HUB_HOST, org, name, tag) : KN_ENOENT;
    return error == KN_ENOENT ? find_at(out, store, REGISTRY, org, name, tag) : error;
}

/* ---- the list -------------------------------------------------------------------------------------- */

struct walk { /* manifests/HOST/ORG/NAME/TAG: one part for each depth */
    struct hub_found *found;
    const char *store, *part[4];
    int depth;
};

static int step_into(void *user, const char *entry)
{
    struct walk *w = user;
    struct eng_hub_model m;
    char path[ENG_PATH_BYTES];
    int error = 0;
    w->part[w->depth] = entry;
    if (w->depth == 3)
        return find_at(&m, w->store, w->part[0], w->part[1], w->part[2], entry) ? 0 : hub_found_add(w->found, &m);
    if (w->depth == 0 && strcmp(entry, REGISTRY) != 0 && strcmp(entry, HUB_HOST) != 0)
        return 0;
    w->depth++;
    const char *const *p = w->part;
    if (w->depth == 1   ? hub_path(path, "%s/manifests/%s", w->store, p[0])
        : w->depth == 2 ? hub_path(path, "%s/manifests/%s/%s", w->store, p[0], p[1])
                        : hub_path(path, "%s/manifests/%s/%s/%s", w->store, p[0], p[1], p[2]))
        error = hub_each_entry(path, step_into, w);
    w->depth--;
    return error;
}

int hub_ollama_list(struct hub_found *f, const char *store)
{
    struct walk w = { .found = f, .store = store };
    char path[ENG_PATH_BYTES];
    return hub_path(path, "%s/manifests", store) ? hub_each_entry(path, step_into, &w) : 0;
}
