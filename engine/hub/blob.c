/* engine/hub/blob.c - one file of a model: downloaded, continued, verified.
 *
 * The part is blobs/ID.incomplete, written from the front only, as the hub's own client names and writes it: each can
 * continue the other's part, under the same lock.  The hash is computed while bytes arrive; for a part that is already
 * there it is computed by reading it.  Only a file with the published hash gets its name, ID: the sha256 of a large
 * file, the git blob id (sha1 of "blob SIZE", NUL, bytes) of a small one. */
#include "engine/hub/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES   ((size_t)1 << 20)
#define WINDOW_BYTES ((uint64_t)32 << 20)

#define EVP_CALLS(X) X(MD_CTX_new) X(MD_CTX_free) X(DigestInit_ex) X(DigestUpdate) X(DigestFinal_ex) X(sha256) X(sha1)

static struct {
#define FIELD(name) __typeof__(&EVP_##name) name;
    EVP_CALLS(FIELD)
#undef FIELD
} evp; /* all NULL until load_library() */

static int load_library(void)
{
    static const char *const file[] = { "libcrypto.so.3", NULL };
#define CALL(name) { "EVP_" #name, &evp.name },
    static const struct hub_call call[] = { EVP_CALLS(CALL) };
#undef CALL
    return hub_library_load("OpenSSL", "libssl3", file, call, (int)(sizeof call / sizeof *call));
}

struct download {
    const struct hub_blob *blob;
    char path[ENG_PATH_BYTES], part[ENG_PATH_BYTES];
    int fd;
    EVP_MD_CTX *hash;
    uint64_t at; /* bytes in the part, all of them hashed */
};

static bool blob_path(char *out, const char *folder, const struct hub_file *file, const char *end)
{
    return hub_path(out, "%s/blobs/%s%s", folder, file->id, end);
}

static bool has_blob(const char *path, uint64_t bytes)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == bytes;
}

uint64_t hub_blob_missing(const char *folder, const struct hub_file *file)
{
    char path[ENG_PATH_BYTES];
    struct stat st;
    if (blob_path(path, folder, file, "") && has_blob(path, file->bytes))
        return 0;
    if (!blob_path(path, folder, file, ".incomplete") || lstat(path, &st) < 0 || !S_ISREG(st.st_mode) ||
        (uint64_t)st.st_size > file->bytes)
        return file->bytes;
    return file->bytes - (uint64_t)st.st_size;
}

/* ---- the hash ------------------------------------------------------------------------------------ */

static int hash_begin(struct download *d)
{
    const struct hub_file *file = d->blob->file;
    char head[32];
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)file->bytes) + 1;
    int error = evp.sha1 ? 0 : load_library();
    if (error)
        return error;
    if (!d->hash)
        d->hash = evp.MD_CTX_new();
    if (!d->hash || !evp.DigestInit_ex(d->hash, file->large ? evp.sha256() : evp.sha1(), NULL) ||
        (!file->large && !evp.DigestUpdate(d->hash, head, (size_t)n)))
        return kn_fail(KN_ENOMEM, "%s: no memory to compute its hash", file->path);
    return 0;
}

static bool hash_is_published(struct download *d, char *text)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    text[0] = 0;
    if (!evp.DigestFinal_ex(d->hash, digest, &n))
        return false;
    for (unsigned i = 0; i < n && 2 * i + 2 < HUB_ID_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return !strcmp(text, d->blob->file->id);
}

/* Hashes the part that is already there, or drops it if it is too long to be one. */
static int take_up_part(struct download *d)
{
    const struct hub_file *file = d->blob->file;
    int64_t size = kn_io()->size(d->fd);
    int error = hash_begin(d);
    if (error)
        return error;
    if (size < 0)
        return kn_fail_size(d->part);
    if ((uint64_t)size > file->bytes && kn_io()->resize(d->fd, size = 0) < 0)
        return kn_fail(KN_EIO, "%s: %s", d->part, strerror(errno));
    uint8_t *buffer = size > 0 ? kn_alloc(READ_BYTES) : NULL;
    if (size > 0 && !buffer)
        return kn_fail(KN_ENOMEM, "%s: no memory to read the part of it", file->path);
    while (!error && d->at < (uint64_t)size && !hub_is_stopped(d->blob->client)) {
        uint64_t left = (uint64_t)size - d->at;
        size_t n = left < READ_BYTES ? (size_t)left : READ_BYTES;
        error = kn_file_read(d->fd, d->part, buffer, n, d->at);
        if (!error && !evp.DigestUpdate(d->hash, buffer, n))
            error = kn_fail(KN_ENOMEM, "%s: its hash cannot be computed", file->path);
        d->at += n;
    }
    kn_free(buffer);
    return error ? error : hub_is_stopped(d->blob->client) ? KN_ECANCELLED : 0;
}

/* ---- the download ---------------------------------------------------------------------------------- */

/* Starts to write the last whole window to the disk, and waits for the one before: so the progress is that of the disk,
 * too, and the last sync is short.  A hint: errors show up at that sync. */
static void write_back(const struct download *d, size_t n)
{
    uint64_t end = d->at / WINDOW_BYTES * WINDOW_BYTES;
    if (d->at - end >= n || end == 0)
        return;
    if (end > WINDOW_BYTES)
        (void)sync_file_range(d->fd, (off_t)(end - 2 * WINDOW_BYTES), (off_t)WINDOW_BYTES,
                              SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    (void)sync_file_range(d->fd, (off_t)(end - WINDOW_BYTES), (off_t)WINDOW_BYTES, SYNC_FILE_RANGE_WRITE);
}

/* A sink.  at is 0 again if the server does not know ranges: then the part begins again. */
static int take_bytes(void *user, uint64_t at, const char *p, size_t n)
{
    struct download *d = user;
    const struct hub_file *file = d->blob->file;
    int error = 0;
    if (at != d->at) {
        kn_assert(at == 0);
        d->at = 0;
        if (kn_io()->resize(d->fd, 0) < 0)
            return kn_fail(KN_EIO, "%s: %s", d->part, strerror(errno));
        error = hash_begin(d);
    }
    if (!error && n > file->bytes - d->at)
        return kn_fail(KN_ECORRUPT, "%s: the server sends more than the %llu bytes that it has published", file->path,
                       (unsigned long long)file->bytes);
    if (!error)
        error = kn_file_write(d->fd, d->part, p, n, d->at);
    if (!error && !evp.DigestUpdate(d->hash, p, n))
        error = kn_fail(KN_ENOMEM, "%s: its hash cannot be computed", file->path);
    if (error)
        return error;
    d->at += n;
    write_back(d, n);
    hub_count_bytes(d->blob->client, n);
    return 0;
}

/* Requests the rest until the part is whole; a try that has brought bytes starts the count of failures again. */
static int fetch_rest(struct download *d)
{
    const struct hub_blob *b = d->blob;
    struct hub_reply reply;
    int n_failed = 0;
    while (d->at < b->file->bytes) {
        uint64_t before = d->at;
        int result = hub_request(b->client, b->url, d->at, take_bytes, d, &reply);
        if (d->at > before)
            n_failed = 0;
        if (result == 0 && d->at == b->file->bytes)
            return 0;
        if (result == 0 && (reply.status == 200 || reply.status == 206)) { /* a whole answer, and yet too short */
            snprintf(b->client->reason, sizeof b->client->reason, "the answer ends %llu bytes too early",
                     (unsigned long long)(b->file->bytes - d->at));
            result = HUB_CUT;
        }
        if (result < 0)
            return result;
        if (!hub_is_passing(result, &reply))
            return hub_fail_status(b->client, b->name, &reply);
        if ((result = hub_wait(b->client, b->file->path, &n_failed, result, &reply)))
            return result;
    }
    return 0;
}

static int finish(struct download *d)
{
    char text[HUB_ID_BYTES];
    const struct hub_file *file = d->blob->file;
    if (hash_is_published(d, text))
        return kn_file_publish(d->fd, d->part, d->path);
    kn_io()->unlink(d->part);
    return kn_fail(KN_ECORRUPT,
                   "%s: the received bytes have the %s %.12s..., published is %.12s...: the file was removed; pull "
                   "it again",
                   file->path, file->large ? "sha256" : "git blob id", text, file->id);
}

static int download(struct download *d)
{
    const struct hub_file *file = d->blob->file;
    char have[32], whole[32];
    int error = kn_file_open(&d->fd, d->part, O_RDWR | O_CREAT | O_NOFOLLOW);
    if (error || (error = take_up_part(d)))
        return error;
    eng_size_text(have, sizeof have, (double)d->at);
    eng_size_text(whole, sizeof whole, (double)file->bytes);
    if (d->at > 0)
        kn_say(KN_LOG_INFO, "%s: continuing after %s of %s", file->path, have, whole);
    error = fetch_rest(d);
    return error ? error : finish(d);
}

int hub_blob_get(const struct hub_blob *b)
{
    struct download d = { .blob = b, .fd = -1 };
    struct stat st;
    int lock = -1;
    if (!blob_path(d.path, b->folder, b->file, "") || !blob_path(d.part, b->folder, b->file, ".incomplete"))
        return kn_fail(KN_ELIMIT, "%s: the path is too long", b->folder);
    if (has_blob(d.path, b->file->bytes))
        return 0;
    int error = hub_cache_lock(&lock, b->client->places, b->name->repo, b->file->id, b->client->options->stop);
    if (!error && !has_blob(d.path, b->file->bytes)) {
        if (lstat(d.path, &st) == 0) { /* damaged: it has not the published size */
            kn_say(KN_LOG_WARN, "%s: the file in the cache has the wrong size; it is downloaded again", b->file->path);
            kn_io()->unlink(d.path);
        }
        error = download(&d);
    }
    if (d.hash)
        evp.MD_CTX_free(d.hash);
    kn_file_close(d.fd);
    hub_cache_unlock(lock);
    return error;
}
