/* engine/store/batches.c - batches and their states.
 *
 *     validating -> in_progress -> finalizing -> completed, or expired
 *         any that has not ended -> failed;  the first two -> cancelling -> cancelled
 *
 * A state is on disk before anything follows from it.  The outputs are files of the folder from the first line on; the
 * batch's end gives them records. */
#include <string.h>
#include <time.h>

#include "engine/store/internal.h"

/* ---- the index: under the lock ----------------------------------------------------------------- */

static struct eng_store_batch *find(struct eng_store *s, const char *id)
{
    int i = store_find((void *const *)s->batch, s->n_batch, id);
    return i < 0 ? NULL : s->batch[i];
}

static int save(struct eng_store *s, const struct eng_store_batch *b)
{
    struct eng_bytes record = { 0 };
    store_write_batch(&record, b, true);
    int error = store_save(s, b->id, &record);
    eng_bytes_free(&record);
    return error;
}

static void copy(struct eng_store_batch *out, const struct eng_store_batch *b)
{
    *out = *b;
    out->metadata = NULL;
}

/* Forgets the oldest batch that has ended; its files stay.  False: none has. */
static bool forget_oldest(struct eng_store *s)
{
    char path[ENG_PATH_BYTES];
    for (int i = 0; i < s->n_batch; i++) {
        struct eng_store_batch *b = s->batch[i];
        if (b->state < ENG_BATCH_COMPLETED)
            continue;
        store_record_path(s, b->id, path);
        kn_io()->unlink(path);
        kn_free(b->metadata);
        kn_free(b);
        memmove(s->batch + i, s->batch + i + 1, (size_t)(s->n_batch - i - 1) * sizeof *s->batch);
        s->n_batch--;
        return true;
    }
    return false;
}

/* ---- for requests ------------------------------------------------------------------------------ */

static int create(struct eng_store *s, struct eng_store_batch *b)
{
    const struct eng_store_file *input = store_file(s, b->input);
    if (!input || input->key != b->key || input->is_output)
        return KN_ENOENT;
    if (s->n_batch == ENG_STORE_BATCHES && !forget_oldest(s))
        return KN_ELIMIT;
    struct eng_store_batch *kept = kn_calloc(1, sizeof *kept);
    char *metadata = b->metadata ? kn_strdup(b->metadata) : NULL;
    if (!kept || (b->metadata && !metadata)) {
        kn_free(kept);
        return kn_fail(KN_ENOMEM, "no memory for one more batch");
    }
    store_new_id(s, STORE_FILE, b->output);
    store_new_id(s, STORE_FILE, b->errors);
    store_new_id(s, STORE_BATCH, b->id);
    *kept = *b;
    kept->metadata = metadata;
    int error = save(s, kept);
    if (error) {
        kn_free(metadata);
        kn_free(kept);
        return error;
    }
    s->batch[s->n_batch++] = kept; /* its id is the greatest */
    return 0;
}

int eng_store_batch_create(struct eng_store *s, struct eng_store_batch *b, int64_t now_s, int64_t window_s)
{
    b->state = ENG_BATCH_VALIDATING;
    b->created_s = now_s;
    b->expires_s = now_s + window_s;
    pthread_mutex_lock(&s->lock);
    int error = create(s, b);
    pthread_mutex_unlock(&s->lock);
    return error;
}

int eng_store_batch_write(struct eng_store *s, uint64_t key, const char *id, struct eng_bytes *out)
{
    pthread_mutex_lock(&s->lock);
    const struct eng_store_batch *b = find(s, id);
    b = b && b->key == key ? b : NULL;
    if (b && out)
        store_write_batch(out, b, false);
    pthread_mutex_unlock(&s->lock);
    return b ? 0 : KN_ENOENT;
}

/* Enters a state: written to disk first, then in the index. */
static int enter(struct eng_store *s, struct eng_store_batch *b, enum eng_batch_state state, int64_t now_s)
{
    struct eng_store_batch next = *b;
    next.state = state;
    if (!next.at_s[state])
        next.at_s[state] = now_s;
    int error = save(s, &next);
    if (!error)
        *b = next;
    return error;
}

int eng_store_batch_cancel(struct eng_store *s, uint64_t key, const char *id, int64_t now_s, struct eng_bytes *out)
{
    pthread_mutex_lock(&s->lock);
    struct eng_store_batch *b = find(s, id);
    int error = !b || b->key != key ? KN_ENOENT : 0;
    if (!error && b->state != ENG_BATCH_CANCELLING)
        error = b->state >= ENG_BATCH_FINALIZING ? KN_EINVAL : enter(s, b, ENG_BATCH_CANCELLING, now_s);
    if (!error && out)
        store_write_batch(out, b, false);
    pthread_mutex_unlock(&s->lock);
    return error;
}

int eng_store_batches_write(struct eng_store *s, uint64_t key, const struct eng_store_page *page, struct eng_bytes *out)
{
    pthread_mutex_lock(&s->lock);
    int error = store_write_list(s, key, page, false, out);
    pthread_mutex_unlock(&s->lock);
    return error;
}

/* ---- for the thread that works on batches ------------------------------------------------------ */

bool eng_store_batch_next(struct eng_store *s, const char *after, struct eng_store_batch *out)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_batch && !found; i++) {
        found = s->batch[i]->state < ENG_BATCH_COMPLETED && strcmp(s->batch[i]->id, after) > 0;
        if (found)
            copy(out, s->batch[i]);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

bool eng_store_batch_get(struct eng_store *s, const char *id, struct eng_store_batch *out)
{
    pthread_mutex_lock(&s->lock);
    const struct eng_store_batch *b = find(s, id);
    if (b)
        copy(out, b);
    pthread_mutex_unlock(&s->lock);
    return b != NULL;
}

int eng_store_batch_enter(struct eng_store *s, const char *id, enum eng_batch_state state, int64_t now_s)
{
    pthread_mutex_lock(&s->lock);
    struct eng_store_batch *b = find(s, id);
    int error = !b                                 ? KN_ENOENT
                : b->state == ENG_BATCH_CANCELLING ? KN_ECANCELLED
                : b->state == state                ? 0
                                                   : enter(s, b, state, now_s);
    pthread_mutex_unlock(&s->lock);
    return error;
}

void eng_store_batch_tell(struct eng_store *s, const struct eng_store_batch *news)
{
    pthread_mutex_lock(&s->lock);
    struct eng_store_batch *b = find(s, news->id);
    if (b) {
        s->used_bytes = s->used_bytes - b->output_bytes + news->output_bytes;
        b->output_bytes = news->output_bytes;
        b->total = news->total;
        b->completed = news->completed;
        b->failed = news->failed;
        memcpy(b->fault_code, news->fault_code, sizeof b->fault_code);
        memcpy(b->fault, news->fault, sizeof b->fault);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Makes the output a file of the store, or removes it if it is empty or not there.  *has: it is a file now. */
static int keep_output(struct eng_store *s, const struct eng_store_batch *b, const char *id, const char *what,
                       int64_t now_s, bool *has)
{
    char path[ENG_PATH_BYTES];
    int64_t bytes = store_size(s, id);
    struct eng_store_file f = {
        .key = b->key, .bytes = bytes > 0 ? (uint64_t)bytes : 0, .created_s = now_s, .is_output = true
    };
    strcpy(f.id, id);
    snprintf(f.name, sizeof f.name, "%s_%s.jsonl", b->id, what);
    *has = bytes > 0;
    if (*has) {
        bool is_new = !store_file(s, id);
        int error = store_save_file(s, &f);
        if (!error && (error = store_add_file(s, &f)))
            kn_fail(error, "%s: no place for %s: delete files of this server", s->folder, f.name);
        s->used_bytes += !error && is_new ? f.bytes : 0;
        return error;
    }
    eng_store_path(s, id, path);
    if (bytes == 0)
        kn_io()->unlink(path);
    return 0;
}

int eng_store_batch_end(struct eng_store *s, const char *id, enum eng_batch_state state, int64_t now_s)
{
    pthread_mutex_lock(&s->lock);
    struct eng_store_batch *b = find(s, id);
    int error = b ? keep_output(s, b, b->output, "output", now_s, &b->has_output) : KN_ENOENT;
    if (!error)
        error = keep_output(s, b, b->errors, "error", now_s, &b->has_errors);
    if (!error) {
        s->used_bytes -= b->output_bytes;
        b->output_bytes = 0;
        error = enter(s, b, state, now_s);
    }
    pthread_mutex_unlock(&s->lock);
    return error;
}
