/* engine/hub/cache.c - the layout of the hub's cache, which all tools of the hub share.
 *
 *     CACHE/models--ORG--NAME/refs/main                the commit of a branch or tag, as text
 *     CACHE/models--ORG--NAME/snapshots/COMMIT/FILE    a relative link to the blob
 *     CACHE/models--ORG--NAME/blobs/ID                 the bytes; ID is their sha256 or git blob id
 *     CACHE/models--ORG--NAME/blobs/ID.incomplete      the part that has been downloaded
 *     CACHE/.locks/models--ORG--NAME/ID.lock           flock of the process that downloads it
 *
 * Names in these paths come from users and servers; they are checked where they are parsed (name.c).  The folders that
 * are created here are never links, so nothing is written outside the cache. */
#include "engine/hub/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOCK_WAIT_NS 200000000 /* between two tries for a lock that another process has */
#define LEAST_COMMIT 7         /* digits of an abbreviated commit */

bool hub_cache_folder(char *out, const struct eng_hub_places *p, const char *repo)
{
    const char *slash = strchr(repo, '/');
    return p->cache && slash && hub_path(out, "%s/models--%.*s--%s", p->cache, (int)(slash - repo), repo, slash + 1);
}

static int skip_dots(const struct dirent *entry) { return entry->d_name[0] != '.'; }

int hub_each_entry(const char *folder, hub_each *each, void *user)
{
    struct dirent **entry;
    int result = 0, n = scandir(folder, &entry, skip_dots, alphasort);
    for (int i = 0; i < n; i++) {
        if (result == 0)
            result = each(user, entry[i]->d_name);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
    return result;
}

/* ---- references ---------------------------------------------------------------------------------- */

static bool read_ref(char *out, const char *folder, const char *revision)
{
    char path[ENG_PATH_BYTES];
    int fd;
    if (!hub_path(path, "%s/refs/%s", folder, revision) || (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return false;
    ssize_t n = read(fd, out, HUB_COMMIT_BYTES - 1);
    close(fd);
    out[n > 0 ? n : 0] = 0;
    return n == HUB_COMMIT_BYTES - 1 && hub_is_hex(out, HUB_COMMIT_BYTES - 1);
}

struct search {
    const char *prefix;
    char *out;
    int n;
};

static int compare_commit(void *user, const char *name)
{
    struct search *s = user;
    if (hub_is_hex(name, HUB_COMMIT_BYTES - 1) && !strncmp(name, s->prefix, strlen(s->prefix))) {
        memcpy(s->out, name, HUB_COMMIT_BYTES);
        s->n++;
    }
    return 0;
}

bool hub_cache_commit(char *out, const char *folder, const char *revision)
{
    char path[ENG_PATH_BYTES];
    size_t n = strlen(revision);
    if (read_ref(out, folder, n ? revision : "main"))
        return true;
    struct search s = { .prefix = revision, .out = out };
    if (n < LEAST_COMMIT || n >= HUB_COMMIT_BYTES || !hub_is_hex(revision, n) ||
        !hub_path(path, "%s/snapshots", folder))
        return false;
    hub_each_entry(path, compare_commit, &s);
    return s.n == 1;
}

/* ---- folders and links --------------------------------------------------------------------------- */

int hub_make_folders(const char *path, size_t n_base)
{
    char part[ENG_PATH_BYTES];
    struct stat st;
    if (!hub_path(part, "%s", path))
        return kn_fail(KN_ELIMIT, "%s: the path is too long", path);
    for (char *slash = part + 1;; slash++) {
        slash += strcspn(slash, "/");
        char end = *slash;
        *slash = 0;
        int why = mkdir(part, 0777) < 0 ? errno : 0;
        if (why && access(part, F_OK) < 0)
            return kn_fail(KN_EIO, "%s: the folder cannot be created: %s", part, strerror(why));
        if (slash > part + n_base && lstat(part, &st) == 0 && !S_ISDIR(st.st_mode))
            return kn_fail(KN_EINVAL, "%s: is in the way: not a folder", part);
        if (!end)
            return 0;
        *slash = end;
    }
}

int hub_cache_save_ref(const char *folder, const char *revision, const char *commit)
{
    char path[ENG_PATH_BYTES], old[HUB_COMMIT_BYTES];
    const char *name = revision[0] ? revision : "main";
    if (!strcmp(name, commit) || (read_ref(old, folder, name) && !strcmp(old, commit)))
        return 0;
    if (!hub_path(path, "%s/refs/%s", folder, name))
        return kn_fail(KN_ELIMIT, "%s/refs: the path is too long", folder);
    char *slash = strrchr(path, '/');
    *slash = 0;
    int error = hub_make_folders(path, strlen(folder) + 1);
    *slash = '/';
    return error ? error : kn_file_save(path, 0644, commit, strlen(commit));
}

int hub_cache_link(const char *folder, const char *commit, const char *file, const char *id)
{
    char path[ENG_PATH_BYTES], target[ENG_PATH_BYTES] = "../../", old[ENG_PATH_BYTES], blob[128];
    for (const char *slash = strchr(file, '/'); slash; slash = strchr(slash + 1, '/'))
        if (strlen(target) + 4 < sizeof target)
            strcat(target, "../");
    snprintf(blob, sizeof blob, "blobs/%s", id);
    if (strlen(target) + strlen(blob) >= sizeof target || !hub_path(path, "%s/snapshots/%s/%s", folder, commit, file))
        return kn_fail(KN_ELIMIT, "%s: the path is too long", file);
    strcat(target, blob);
    char *slash = strrchr(path, '/');
    *slash = 0;
    int error = hub_make_folders(path, strlen(folder) + 1);
    *slash = '/';
    if (error)
        return error;
    ssize_t n = readlink(path, old, sizeof old - 1);
    if (n >= 0) {
        old[n] = 0;
        if (!strcmp(old, target))
            return 0;
    }
    (void)kn_io()->unlink(path); /* a link to another blob, or a copy: this blob is verified */
    if (symlink(target, path) < 0)
        return kn_fail(KN_EIO, "%s: the link cannot be created: %s", path, strerror(errno));
    kn_file_sync_folder(path);
    return 0;
}

/* ---- locks --------------------------------------------------------------------------------------- */

/* Opens and locks the file at path.  0, KN_E*, or 1: another process has the lock, or has replaced the file. */
static int try_lock(int *fd, const char *path)
{
    struct stat st;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
    if (*fd < 0)
        return kn_fail(KN_EIO, "%s: %s", path, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0 ? fstat(*fd, &st) == 0 && st.st_nlink > 0 : errno != EWOULDBLOCK)
        return 0; /* or a file system without locks */
    close(*fd);
    *fd = -1;
    return 1;
}

int hub_cache_lock(int *fd, const struct eng_hub_places *p, const char *repo, const char *id, const atomic_bool *stop)
{
    char path[ENG_PATH_BYTES];
    const char *slash = strchr(repo, '/');
    bool said = false;
    *fd = -1;
    if (!hub_path(path, "%s/.locks/models--%.*s--%s", p->cache, (int)(slash - repo), repo, slash + 1))
        return kn_fail(KN_ELIMIT, "%s: the path is too long", p->cache);
    int error = hub_make_folders(path, strlen(p->cache) + 1);
    if (error || !hub_path(path + strlen(path), "/%s.lock", id))
        return error;
    while ((error = try_lock(fd, path)) > 0) {
        if (stop && atomic_load(stop))
            return KN_ECANCELLED;
        if (!said)
            kn_say(KN_LOG_INFO, "%s: another process downloads a file of it; waiting", repo);
        said = true;
        nanosleep(&(struct timespec){ .tv_nsec = LOCK_WAIT_NS }, NULL);
    }
    return error;
}

void hub_cache_unlock(int fd)
{
    if (fd >= 0)
        close(fd); /* the file stays: another process may wait for its lock */
}
