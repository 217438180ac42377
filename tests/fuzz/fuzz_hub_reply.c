/* The input is a reply of the hub, read as a commit and as a list of files, and a name that a user types.  A file of
 * the list has a name that stays in the cache and a hash; its models are files of the list; a name has safe parts. */
#include "engine/hub/internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void drop_line(enum kn_level level, const char *line)
{
    (void)level;
    (void)line;
}

static void check_files(struct hub_files *f)
{
    struct hub_variant *v;
    char text[64];
    int n;
    for (int i = 0; i < f->n; i++) {
        const char *path = f->file[i].path;
        if (path[0] == '/' || strstr(path, "/../") || !strncmp(path, "../", 3) || !hub_is_safe_file(path) ||
            !hub_is_hex(f->file[i].id, f->file[i].large ? 64 : 40))
            abort();
    }
    hub_files_sort(f);
    if (hub_variants_find(&v, &n, f))
        abort();
    for (int i = 0; i < n; i++)
        if (v[i].first < 0 || v[i].first >= f->n || f->file[v[i].first].variant != i || v[i].n_file < 1)
            abort();
    int chosen = hub_variant_choose(v, n, f, "");
    if ((chosen < 0) != (n == 0) || chosen >= n)
        abort();
    (void)hub_variant_choose(v, n, f, "q4_k_m");
    hub_variants_text(text, sizeof text, v, n, f, chosen);
    kn_free(v);
}

static void check_name(const char *text)
{
    struct hub_name name;
    if (!hub_name_parse(&name, text))
        return;
    const char *slash = strchr(name.repo, '/');
    if (!slash || strchr(slash + 1, '/') || strstr(name.repo, "..") || strstr(name.revision, "..") ||
        name.revision[0] == '/' || (name.which[0] && !hub_is_safe_file(name.which)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct hub_files files = { 0 };
    char commit[HUB_COMMIT_BYTES], *text = malloc(n + 1);
    memcpy(text, data, n);
    text[n] = 0;
    kn_log_set(drop_line, KN_LOG_ERROR);
    if (!hub_reply_commit(commit, "o/n", text, n) && !hub_is_hex(commit, HUB_COMMIT_BYTES - 1))
        abort();
    (void)hub_reply_tree(&files, "o/n", text, n);
    check_files(&files);
    hub_files_free(&files);
    check_name(text);
    free(text);
    return 0;
}
