/* engine/store/store.c - opening the folder: lock, scan, removal of the remains of unfinished uploads.
 *
 * An id is its prefix and 24 hexadecimal digits: 13 of the time in microseconds, never the same twice, and 11 random
 * ones.  So ids ordered by their digits are ordered by time, and the order of names is that of creation. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/store/internal.h"

#define N_DIGIT 24

void store_new_id(struct eng_store *s, const char *prefix, char *out)
{
    struct timespec now;
    uint64_t random = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    s->last_us = us > s->last_us ? us : s->last_us + 1;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = kn_mix(s->last_us);
    snprintf(out, ENG_STORE_ID_BYTES, "%s%013llx%011llx", prefix, (unsigned long long)(s->last_us & 0xfffffffffffff),
             (unsigned long long)(random & 0xfffffffffff));
}

bool store_is_id(const char *prefix, const char *id, size_t n)
{
    size_t n_prefix = strlen(prefix);
    return n == n_prefix + N_DIGIT && !memcmp(id, prefix, n_prefix) &&
           strspn(id + n_prefix, "0123456789abcdef") >= N_DIGIT;
}

void eng_store_path(const struct eng_store *s, const char *id, char *out)
{
    snprintf(out, ENG_PATH_BYTES, "%s/%s", s->folder, id);
}

void store_record_path(const struct eng_store *s, const char *id, char *out)
{
    snprintf(out, ENG_PATH_BYTES, "%s/%s.json", s->folder, id);
}

int store_save(const struct eng_store *s, const char *id, const struct eng_bytes *record)
{
    char path[ENG_PATH_BYTES];
    store_record_path(s, id, path);
    return record->failed ? kn_fail(KN_ENOMEM, "%s: no memory to write it", path)
                          : kn_file_save(path, 0600, record->data, record->n);
}

int64_t store_size(const struct eng_store *s, const char *id)
{
    char path[ENG_PATH_BYTES];
    eng_store_path(s, id, path);
    int fd = kn_io()->open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    int64_t n = fd < 0 ? -1 : kn_io()->size(fd);
    kn_file_close(fd);
    return n;
}

int store_find(void *const *object, int n, const char *id)
{
    int from = 0, to = n;
    while (from < to) {
        int middle = from + (to - from) / 2, order = strcmp(object[middle], id);
        if (order == 0)
            return middle;
        if (order < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return -1 - from;
}

static int refuse_folder(const char *path)
{
    return kn_fail(KN_EIO, "%s: %s: --files needs a folder that can be read and written", path, strerror(errno));
}

/* ---- scan -------------------------------------------------------------------------------------- */

/* Loads the record in the folder's file of this name, if it is one. */
static int load_record(struct eng_store *s, const char *name)
{
    char path[ENG_PATH_BYTES], id[ENG_STORE_ID_BYTES], *text = NULL;
    size_t n = 0, n_id = strlen(name) - strlen(".json");
    bool is_file = store_is_id(STORE_FILE, name, n_id), is_whole = false;
    snprintf(id, sizeof id, "%.*s", (int)n_id, name);
    store_record_path(s, id, path);
    int error = eng_read_file(path, &text, &n);
    if (!error && is_file) {
        struct eng_store_file f;
        if ((is_whole = store_read_file(text, n, id, &f)))
            error = store_add_file(s, &f);
    } else if (!error) {
        struct eng_store_batch *b = kn_calloc(1, sizeof *b);
        is_whole = b && store_read_batch(text, n, id, b);
        if (is_whole && s->n_batch < ENG_STORE_BATCHES) {
            s->batch[s->n_batch++] = b;
        } else {
            kn_free(b ? b->metadata : NULL);
            kn_free(b);
            error = is_whole ? KN_ELIMIT : 0;
        }
    }
    kn_free(text);
    if (error == KN_ENOMEM)
        return error;
    if (error || !is_whole) {
        s->keeps_all = true;
        kn_say(KN_LOG_WARN, "%s: not a record that can be read: it is left as it is, and its %s is not offered", path,
               is_file ? "file" : "batch");
    }
    return 0;
}

/* Calls load_record for each record (remove: false), or removes the remains of unfinished uploads: part files, and bytes
 * without a record. */
static int scan(struct eng_store *s, bool removes)
{
    static const char part[] = ".spillway.part";
    char path[ENG_PATH_BYTES + 300];
    DIR *dir = opendir(s->folder);
    int error = 0;
    if (!dir)
        return refuse_folder(s->folder);
    for (struct dirent *e; !error && (e = readdir(dir));) {
        const char *name = e->d_name, *dot = strchr(name, '.');
        size_t n_id = dot ? (size_t)(dot - name) : strlen(name);
        bool is_file = store_is_id(STORE_FILE, name, n_id);
        if (!is_file && !store_is_id(STORE_BATCH, name, n_id))
            continue;
        char id[ENG_STORE_ID_BYTES];
        snprintf(id, sizeof id, "%.*s", (int)n_id, name);
        bool is_left = (dot && strlen(dot) >= sizeof part - 1 &&
                        !strcmp(name + strlen(name) - (sizeof part - 1), part)) ||
                       (!dot && is_file && !store_file(s, id));
        for (int i = 0; i < s->n_batch && is_left && !dot; i++) /* an output that still grows */
            is_left = s->batch[i]->state >= ENG_BATCH_COMPLETED ||
                      (strcmp(id, s->batch[i]->output) != 0 && strcmp(id, s->batch[i]->errors) != 0);
        snprintf(path, sizeof path, "%s/%s", s->folder, name);
        if (!removes && dot && !strcmp(dot, ".json"))
            error = load_record(s, name);
        else if (removes && is_left)
            kn_io()->unlink(path);
    }
    closedir(dir);
    return error;
}

static int by_id(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Removes a file from the index if its bytes are missing, and sums up the others. */
static void check_sizes(struct eng_store *s)
{
    int n = 0;
    for (int i = 0; i < s->n_file; i++) {
        struct eng_store_file *f = s->file[i];
        int64_t bytes = store_size(s, f->id);
        if (bytes < 0 || (uint64_t)bytes != f->bytes) {
            kn_say(KN_LOG_WARN, "%s/%s: it has not the %llu bytes of its record: the file is not offered", s->folder,
                   f->id, (unsigned long long)f->bytes);
            s->keeps_all = true;
            kn_free(f);
            continue;
        }
        s->used_bytes += f->bytes;
        s->file[n++] = f;
    }
    s->n_file = n;
    for (int i = 0; i < s->n_batch; i++) {
        struct eng_store_batch *b = s->batch[i];
        if (b->state >= ENG_BATCH_COMPLETED)
            continue;
        for (int j = 0; j < 2; j++) { /* a kill may have come between the end of an output and that of its batch */
            const char *id = j ? b->errors : b->output;
            int64_t bytes = store_find((void *const *)s->file, s->n_file, id) >= 0 ? 0 : store_size(s, id);
            b->output_bytes += bytes > 0 ? (uint64_t)bytes : 0;
        }
        s->used_bytes += b->output_bytes;
    }
}

/* ---- open and close ---------------------------------------------------------------------------- */

static int lock_folder(struct eng_store *s)
{
    char path[ENG_PATH_BYTES];
    if (mkdir(s->folder, 0700) < 0 && errno != EEXIST)
        return refuse_folder(s->folder);
    snprintf(path, sizeof path, "%s/lock", s->folder);
    int fd = kn_io()->open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return refuse_folder(path);
    s->lock_fd = fd;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return kn_fail(KN_EINVAL, "%s: another server uses this folder: give each server its own with --files",
                       s->folder);
    return 0;
}

int eng_store_open(struct eng_store **out, const char *folder, uint64_t most_bytes)
{
    struct eng_store *s = kn_calloc(1, sizeof *s);
    if (!s)
        return kn_fail(KN_ENOMEM, "no memory for the files of %s", folder);
    s->lock_fd = -1;
    s->most_bytes = most_bytes;
    pthread_mutex_init(&s->lock, NULL);
    s->file = kn_calloc(ENG_STORE_FILES, sizeof *s->file);
    s->batch = kn_calloc(ENG_STORE_BATCHES, sizeof *s->batch);
    int error = 0;
    if (!s->file || !s->batch)
        error = kn_fail(KN_ENOMEM, "no memory for the files of %s", folder);
    else if (snprintf(s->folder, sizeof s->folder, "%s", folder) >= (int)sizeof s->folder)
        error = kn_fail(KN_EINVAL, "--files: the name of the folder is too long");
    if (!error && !(error = lock_folder(s)) && !(error = scan(s, false))) {
        qsort(s->batch, (size_t)s->n_batch, sizeof *s->batch, by_id);
        check_sizes(s);
        error = s->keeps_all ? 0 : scan(s, true);
    }
    if (error) {
        eng_store_close(s);
        return error;
    }
    kn_say(KN_LOG_INFO, "%s: %d files with %llu bytes, %d batches", s->folder, s->n_file,
           (unsigned long long)s->used_bytes, s->n_batch);
    *out = s;
    return 0;
}

void eng_store_close(struct eng_store *s)
{
    if (!s)
        return;
    kn_file_close(s->lock_fd);
    for (int i = 0; s->file && i < s->n_file; i++)
        kn_free(s->file[i]);
    for (int i = 0; s->batch && i < s->n_batch; i++) {
        kn_free(s->batch[i]->metadata);
        kn_free(s->batch[i]);
    }
    pthread_mutex_destroy(&s->lock);
    kn_free(s->file);
    kn_free(s->batch);
    kn_free(s);
}

uint64_t eng_store_used_bytes(struct eng_store *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->used_bytes;
    pthread_mutex_unlock(&s->lock);
    return n;
}

bool eng_store_has_room(struct eng_store *s) { return eng_store_used_bytes(s) < s->most_bytes; }
