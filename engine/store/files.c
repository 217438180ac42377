/* engine/store/files.c - uploads and files. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

#include "engine/store/internal.h"

/* ---- the index: under the lock ----------------------------------------------------------------- */

struct eng_store_file *store_file(struct eng_store *s, const char *id)
{
    int i = store_find((void *const *)s->file, s->n_file, id);
    return i < 0 ? NULL : s->file[i];
}

static struct eng_store_file *find_of_key(struct eng_store *s, uint64_t key, const char *id)
{
    struct eng_store_file *f = store_file(s, id);
    return f && f->key == key ? f : NULL;
}

int store_add_file(struct eng_store *s, const struct eng_store_file *f)
{
    int i = store_find((void *const *)s->file, s->n_file, f->id);
    if (i >= 0) {
        *s->file[i] = *f;
        return 0;
    }
    if (s->n_file == ENG_STORE_FILES)
        return KN_ELIMIT;
    struct eng_store_file *copy = kn_alloc(sizeof *copy);
    if (!copy)
        return KN_ENOMEM;
    *copy = *f;
    i = -1 - i;
    memmove(s->file + i + 1, s->file + i, (size_t)(s->n_file - i) * sizeof *s->file);
    s->file[i] = copy;
    s->n_file++;
    return 0;
}

int store_save_file(struct eng_store *s, const struct eng_store_file *f)
{
    struct eng_bytes record = { 0 };
    store_write_file(&record, f, true);
    int error = store_save(s, f->id, &record);
    eng_bytes_free(&record);
    return error;
}

/* The record is removed first: bytes without a record count as an unfinished upload. */
void store_drop_file(struct eng_store *s, struct eng_store_file *f)
{
    char path[ENG_PATH_BYTES];
    int i = store_find((void *const *)s->file, s->n_file, f->id);
    store_record_path(s, f->id, path);
    kn_io()->unlink(path);
    kn_file_sync_folder(path);
    eng_store_path(s, f->id, path);
    kn_io()->unlink(path);
    s->used_bytes -= f->bytes;
    memmove(s->file + i, s->file + i + 1, (size_t)(s->n_file - i - 1) * sizeof *s->file);
    s->n_file--;
    kn_free(f);
}

/* ---- uploads ----------------------------------------------------------------------------------- */

int eng_store_upload_open(struct eng_store_upload *u, struct eng_store *s)
{
    char path[ENG_PATH_BYTES];
    *u = (struct eng_store_upload){ .store = s, .file = { .fd = -1 } };
    pthread_mutex_lock(&s->lock);
    bool full = s->n_file + s->n_upload >= ENG_STORE_FILES;
    s->n_upload += !full;
    store_new_id(s, STORE_FILE, u->record.id);
    pthread_mutex_unlock(&s->lock);
    if (full)
        return KN_ELIMIT;
    u->holds_place = true;
    u->record.created_s = (int64_t)time(NULL);
    eng_store_path(s, u->record.id, path);
    int error = kn_new_file_open(&u->file, path, 0600);
    if (error)
        eng_store_upload_close(u);
    return error;
}

int eng_store_upload_write(struct eng_store_upload *u, const char *data, size_t n)
{
    struct eng_store *s = u->store;
    pthread_mutex_lock(&s->lock);
    bool fits = n <= s->most_bytes && s->used_bytes <= s->most_bytes - n;
    s->used_bytes += fits ? n : 0;
    pthread_mutex_unlock(&s->lock);
    if (!fits)
        return KN_ELIMIT;
    uint64_t at = u->record.bytes;
    u->record.bytes += n;
    return kn_file_write(u->file.fd, u->file.path, data, n, at);
}

int eng_store_upload_commit(struct eng_store_upload *u)
{
    struct eng_store *s = u->store;
    char path[ENG_PATH_BYTES];
    int error = kn_new_file_commit(&u->file);
    if (error)
        return error;
    pthread_mutex_lock(&s->lock);
    error = store_save_file(s, &u->record);
    if (!error && (error = store_add_file(s, &u->record)))
        kn_fail(error, "%s: no memory for one more file", s->folder);
    if (!error) {
        u->record.bytes = 0; /* they are the file's now */
    } else {
        eng_store_path(s, u->record.id, path);
        kn_io()->unlink(path);
        store_record_path(s, u->record.id, path);
        kn_io()->unlink(path);
    }
    pthread_mutex_unlock(&s->lock);
    return error;
}

void eng_store_upload_close(struct eng_store_upload *u)
{
    struct eng_store *s = u->store;
    kn_new_file_close(&u->file);
    if (!s || !u->holds_place)
        return;
    pthread_mutex_lock(&s->lock);
    s->n_upload--;
    s->used_bytes -= u->record.bytes;
    pthread_mutex_unlock(&s->lock);
    u->holds_place = false;
}

/* ---- files ------------------------------------------------------------------------------------- */

int eng_store_file_get(struct eng_store *s, uint64_t key, const char *id, struct eng_store_file *out)
{
    pthread_mutex_lock(&s->lock);
    const struct eng_store_file *f = find_of_key(s, key, id);
    if (f)
        *out = *f;
    pthread_mutex_unlock(&s->lock);
    return f ? 0 : KN_ENOENT;
}

/* The unfinished batch that reads the file, or NULL. */
static const struct eng_store_batch *reader_of(const struct eng_store *s, const struct eng_store_file *f)
{
    for (int i = 0; i < s->n_batch; i++)
        if (s->batch[i]->state < ENG_BATCH_COMPLETED && !strcmp(s->batch[i]->input, f->id))
            return s->batch[i];
    return NULL;
}

int eng_store_file_delete(struct eng_store *s, uint64_t key, const char *id, char *batch)
{
    pthread_mutex_lock(&s->lock);
    struct eng_store_file *f = find_of_key(s, key, id);
    const struct eng_store_batch *b = f ? reader_of(s, f) : NULL;
    if (b)
        strcpy(batch, b->id);
    else if (f)
        store_drop_file(s, f);
    pthread_mutex_unlock(&s->lock);
    return b ? KN_EINVAL : f ? 0 : KN_ENOENT;
}

void eng_store_remove_expired(struct eng_store *s, int64_t now_s)
{
    pthread_mutex_lock(&s->lock);
    for (int i = s->n_file - 1; i >= 0; i--) {
        struct eng_store_file *f = s->file[i];
        if (f->expires_s && f->expires_s <= now_s && !reader_of(s, f))
            store_drop_file(s, f);
    }
    pthread_mutex_unlock(&s->lock);
}

int eng_store_file_open(struct eng_store *s, uint64_t key, const char *id, int *fd, struct eng_store_file *out)
{
    char path[ENG_PATH_BYTES];
    int error = eng_store_file_get(s, key, id, out);
    if (error)
        return error;
    eng_store_path(s, out->id, path);
    return kn_file_open(fd, path, O_RDONLY | O_NOFOLLOW);
}

void eng_store_file_write(struct eng_bytes *out, const struct eng_store_file *f) { store_write_file(out, f, false); }

int eng_store_files_write(struct eng_store *s, uint64_t key, const struct eng_store_page *page, struct eng_bytes *out)
{
    pthread_mutex_lock(&s->lock);
    int error = store_write_list(s, key, page, true, out);
    pthread_mutex_unlock(&s->lock);
    return error;
}
