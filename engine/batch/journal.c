/* engine/batch/journal.c - the two output files of a batch: answers and errors.
 *
 * Lines are appended to a buffer.  A thread writes the buffer and syncs the file about once a second, so the engine
 * thread never waits for the disk unless more than GATHER_MOST bytes are pending.  At the next start a line counts as
 * done if it is whole and in the file.  A killed batch or a full disk can leave a last line without its newline, a
 * power cut can leave zeros: such an end is cut off.  A power cut can also lose a block in front of others that it keeps,
 * since the blocks between two syncs reach the disk in any order.  The checksum of each line shows that; a file with a
 * damaged line in front of whole ones is refused, because cutting it there would discard finished answers.
 *
 * A lock on each file keeps a second batch from writing it; the system releases the lock when the process ends. */
#include "engine/base/base.h"
#include "engine/batch/batch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#define GATHER_BYTES ((size_t)1 << 20) /* if this many bytes are pending, they are written before gather_ns is over */
#define GATHER_MOST                                                                                                    \
    ((size_t)16 << 20) /* while more bytes of a file wait for the writing thread, eng_journal_add waits */

/* ---- opening ----------------------------------------------------------------------------------- */

static int open_file(struct eng_outlet_file *f, const char *path)
{
    struct stat st;
    f->path = path;
    f->made = lstat(path, &st) != 0;
    int error = kn_file_refuse_folder(path);
    if (error || (error = kn_file_open(&f->fd, path, O_RDWR | O_CREAT)))
        return error;
    if (flock(f->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return kn_fail(KN_EINVAL, "%s: another batch is writing it: wait for its end, or name another file", path);
    int64_t bytes = kn_io()->size(f->fd);
    if (bytes < 0)
        return kn_fail(KN_EINVAL, "%s: %s: name a regular file", path, strerror(errno));
    if (bytes == 0)
        kn_file_sync_folder(path); /* otherwise a power cut may remove a new file */
    f->bytes = (uint64_t)bytes;
    return 0;
}

static int sync_file(const struct eng_outlet_file *f)
{
    return kn_io()->sync(f->fd) < 0
               ? kn_fail(KN_EIO, "%s: sync failed, the last lines may not be on disk: %s", f->path, strerror(errno))
               : 0;
}

static int cut(struct eng_outlet_file *f, uint64_t bytes)
{
    if (kn_io()->resize(f->fd, (int64_t)bytes) < 0)
        return kn_fail(KN_EIO, "%s: cannot be cut to %llu bytes: %s", f->path, (unsigned long long)bytes,
                       strerror(errno));
    f->bytes = bytes;
    return sync_file(f); /* otherwise bytes that were cut off may come back among those written next */
}

static int refuse_other(const struct eng_outlet_file *f, uint64_t number)
{
    return kn_fail(KN_EINVAL, "%s:%llu: not a line of a batch's output: name another file", f->path,
                   (unsigned long long)number);
}

/* Refuses a file if its first line does not begin like a batch's output, so that no other file is cut or emptied.  A
 * power cut may leave zeros in a new file: a file of only zeros is accepted, and a file that begins with zeros if it has
 * a line of a batch's output. */
static int check_begin(const struct eng_outlet_file *f)
{
    struct eng_lines lines;
    struct eng_line line;
    int got, error = eng_lines_open(&lines, f->fd, f->path, f->bytes);
    if (error)
        return error;
    if ((got = eng_lines_next(&lines, &line)) == 1) {
        bool zeros = line.torn && !line.too_long;
        for (size_t i = 0; i < line.n && zeros; i++)
            zeros = !line.text[i];
        bool begins = zeros || eng_record_begins(&line);
        uint64_t number = line.number;
        for (bool hole = line.n && !line.text[0]; hole && !begins && (got = eng_lines_next(&lines, &line)) == 1;)
            begins = !line.torn && eng_record_begins(&line);
        got = got < 0 ? got : begins ? 0 : refuse_other(f, number);
    }
    eng_lines_close(&lines);
    return got;
}

int eng_journal_open(struct eng_journal *j, const char *answers, const char *errors)
{
    *j = (struct eng_journal){ .file = { { .fd = -1 }, { .fd = -1 } } };
    int error = open_file(&j->file[ENG_OUTLET_ANSWERS], answers);
    if (error || (error = check_begin(&j->file[ENG_OUTLET_ANSWERS])))
        return error;
    struct stat there, other; /* a second lock on the same file would fail as if another process held the first */
    if (stat(errors, &other) == 0 && fstat(j->file[0].fd, &there) == 0 && there.st_ino == other.st_ino &&
        there.st_dev == other.st_dev)
        return kn_fail(KN_EINVAL, "%s: answers and errors cannot go to one file", errors);
    error = open_file(&j->file[ENG_OUTLET_ERRORS], errors);
    return error ? error : check_begin(&j->file[ENG_OUTLET_ERRORS]);
}

void eng_journal_unmake(struct eng_journal *j)
{
    for (int i = 0; i < ENG_OUTLETS; i++)
        if (j->file[i].fd >= 0 && j->file[i].made && j->file[i].bytes == 0)
            kn_io()->unlink(j->file[i].path);
}

int eng_journal_forget(struct eng_journal *j, enum eng_outlet which) { return cut(&j->file[which], 0); }

/* ---- reading earlier output -------------------------------------------------------------------- */

/* For a long line, of which line->text is only the beginning: *whole becomes true if the checksum at its end is right,
 * or if it has no checksum. */
static int check_long(const struct eng_outlet_file *f, const struct eng_line *line, bool *whole)
{
    char piece[1 << 12], end[ENG_CHECK_BYTES];
    uint32_t want, crc = 0;
    uint64_t at = line->offset, until = line->offset + line->bytes - sizeof end;
    int error = kn_file_read(f->fd, f->path, end, sizeof end, until);
    *whole = true;
    if (error || !eng_record_checksum(end, &want))
        return error;
    for (size_t n; at < until && !error; at += n) {
        n = until - at < sizeof piece ? (size_t)(until - at) : sizeof piece;
        if (!(error = kn_file_read(f->fd, f->path, piece, n, at)))
            crc = eng_crc32(crc, piece, n);
    }
    *whole = crc == want;
    return error;
}

/* Lines that are not as they were written, in the order of the file. */
struct damage {
    uint64_t n, number[8]; /* number: of the first ones */
    bool unexplained;      /* one of them has its newline and no zeros: no power cut explains it */
};

static void add_damage(struct damage *d, const struct eng_line *line)
{
    if (d->n < sizeof d->number / sizeof *d->number)
        d->number[d->n] = line->number;
    d->n++;
    d->unexplained = d->unexplained || !(line->torn || line->too_long || memchr(line->text, 0, line->n));
}

static int refuse_damage(const struct eng_outlet_file *f, const struct damage *d)
{
    char remove[256] = "";
    uint64_t listed = d->n < sizeof d->number / sizeof *d->number ? d->n : sizeof d->number / sizeof *d->number;
    for (uint64_t i = 0; i < listed; i++)
        snprintf(remove + strlen(remove), sizeof remove - strlen(remove), "%s%llud", i ? ";" : "",
                 (unsigned long long)d->number[i]);
    return kn_fail(KN_EINVAL,
                   "%s:%llu: not a line of a batch's output, or damaged (%llu such line%s): remove %s with sed -i '%s' "
                   "and run the same command, which answers these requests again; or name another file",
                   f->path, (unsigned long long)d->number[0], (unsigned long long)d->n, d->n == 1 ? "" : "s",
                   d->n == 1 ? "it" : "them", remove);
}

/* The name in a whole line, [*n]; *n 0: the line is no record.  A line that there is no memory to read is not taken for one
 * that is no record, which would be answered again. */
static int read_name(const struct eng_outlet_file *f, const struct eng_line *line, char *name, size_t *n)
{
    size_t failures = kn_alloc_failures();
    *n = eng_record_read(line, name);
    return kn_alloc_failures() == failures
               ? 0
               : kn_fail(KN_ENOMEM, "%s: no memory to read line %llu", f->path, (unsigned long long)line->number);
}

/* Checks all lines: sets n_line to the number of whole ones and keep to their end.  Fails at damage that a whole line
 * follows, and at damage that is unexplained. */
static int check_lines(struct eng_outlet_file *f, struct eng_lines *lines)
{
    struct damage d = { 0 };
    uint64_t n_inside = 0; /* damaged lines before the last whole one */
    struct eng_line line;
    char name[ENG_CUSTOM_ID_MOST];
    size_t n = 0;
    int got, error = 0;
    f->n_line = 0;
    f->keep = 0;
    while ((got = eng_lines_next(lines, &line)) == 1) {
        bool whole = !line.torn;
        if (whole && line.too_long)
            error = check_long(f, &line, &whole);
        else if (whole)
            whole = eng_record_is_whole(&line);
        if (!error && whole)
            error = read_name(f, &line, name, &n);
        if (error)
            return error;
        if (!whole || n == 0) {
            add_damage(&d, &line);
            continue;
        }
        n_inside = d.n;
        f->n_line++;
        f->keep = line.offset + line.bytes + 1;
    }
    if (d.n == 0) /* blank lines may follow the last whole one */
        f->keep = f->bytes;
    return got < 0 ? got : n_inside || d.unexplained ? refuse_damage(f, &d) : 0;
}

int eng_journal_count(struct eng_journal *j, enum eng_outlet which)
{
    struct eng_outlet_file *f = &j->file[which];
    struct eng_lines lines;
    int error = eng_lines_open(&lines, f->fd, f->path, f->bytes);
    if (!error)
        error = check_lines(f, &lines);
    eng_lines_close(&lines);
    return error;
}

int eng_journal_read(struct eng_journal *j, enum eng_outlet which, struct eng_seen *seen)
{
    struct eng_outlet_file *f = &j->file[which];
    struct eng_lines lines;
    struct eng_line line;
    char name[ENG_CUSTOM_ID_MOST];
    size_t n;
    int got, error = eng_lines_open(&lines, f->fd, f->path, f->keep);
    if (error)
        return error;
    while ((got = eng_lines_next(&lines, &line)) == 1 && !(error = read_name(f, &line, name, &n)))
        eng_seen_done(seen, name, n);
    eng_lines_close(&lines);
    if (error)
        return error;
    if (got < 0)
        return got;
    if (f->keep == f->bytes)
        return f->bytes ? sync_file(f) : 0; /* a killed batch may not have synced lines that now count as done */
    kn_say(KN_LOG_INFO, "%s: the last line is incomplete and will be answered again", f->path);
    return cut(f, f->keep);
}

/* ---- the thread --------------------------------------------------------------------------------- */

static bool gathered(const struct eng_journal *j)
{
    size_t n = j->file[0].filling.n + j->file[1].filling.n;
    return j->closing || n >= GATHER_BYTES;
}

/* Waits for a pending line, and then until gather_ns has passed or GATHER_BYTES are pending; closing ends both
 * waits.  The caller holds the lock. */
static void wait_for_work(struct eng_journal *j)
{
    struct timespec until;
    while (!j->closing && j->file[0].filling.n + j->file[1].filling.n == 0)
        pthread_cond_wait(&j->filled, &j->lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(j->gather_ns / 1000000000);
    until.tv_nsec += (long)(j->gather_ns % 1000000000);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    while (!gathered(j) && pthread_cond_timedwait(&j->filled, &j->lock, &until) == 0)
        ;
}

static uint64_t count_lines(const struct eng_bytes *b)
{
    uint64_t n = 0;
    for (const char *p = b->data, *end = p + b->n; (p = memchr(p, '\n', (size_t)(end - p))); p++)
        n++;
    return n;
}

/* Writes f->writing to the end of the file and syncs.  After a failure the file is cut back to its old size, if
 * possible. */
static int commit(struct eng_outlet_file *f)
{
    struct eng_bytes *b = &f->writing;
    if (b->n == 0)
        return 0;
    int error = kn_file_write(f->fd, f->path, b->data, b->n, f->bytes);
    if (error || (error = sync_file(f))) {
        (void)kn_io()->resize(f->fd, (int64_t)f->bytes);
        return error;
    }
    f->bytes += b->n;
    f->n_line += count_lines(b);
    b->n = 0;
    return 0;
}

static void swap(struct eng_bytes *a, struct eng_bytes *b)
{
    struct eng_bytes held = *a;
    *a = *b;
    *b = held;
}

static void *keep_committing(void *arg)
{
    struct eng_journal *j = arg;
    pthread_mutex_lock(&j->lock);
    for (bool last = false; !last && !j->status;) {
        wait_for_work(j);
        last = j->closing;
        for (int i = 0; i < ENG_OUTLETS; i++)
            swap(&j->file[i].filling, &j->file[i].writing);
        pthread_cond_broadcast(&j->emptied);
        pthread_mutex_unlock(&j->lock);
        int status = 0;
        for (int i = 0; i < ENG_OUTLETS && !status; i++)
            status = commit(&j->file[i]);
        pthread_mutex_lock(&j->lock);
        j->status = status;
    }
    pthread_cond_broadcast(&j->emptied);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static void close_lock(struct eng_journal *j)
{
    pthread_mutex_destroy(&j->lock);
    pthread_cond_destroy(&j->filled);
    pthread_cond_destroy(&j->emptied);
}

int eng_journal_start(struct eng_journal *j, uint64_t gather_ns)
{
    pthread_condattr_t monotonic;
    j->gather_ns = gather_ns;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->filled, &monotonic);
    pthread_cond_init(&j->emptied, NULL);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&j->thread, NULL, keep_committing, j) == 0) {
        j->started = true;
        return 0;
    }
    close_lock(j);
    return kn_fail(KN_ENOMEM, "the system cannot start a thread to write %s", j->file[0].path);
}

int eng_journal_add(struct eng_journal *j, enum eng_outlet which, const struct eng_bytes *line)
{
    if (line->failed)
        return kn_fail(KN_ENOMEM, "no memory for a line of %s", j->file[which].path);
    pthread_mutex_lock(&j->lock);
    struct eng_bytes *b = &j->file[which].filling;
    while (!j->status && b->n > GATHER_MOST)
        pthread_cond_wait(&j->emptied, &j->lock);
    size_t before = b->n;
    eng_bytes_add(b, line->data, line->n);
    int status = j->status;
    if (b->failed && !status) { /* a partial line must not be written */
        b->failed = false;
        b->n = before;
        status = kn_fail(KN_ENOMEM, "no memory for a line of %s", j->file[which].path);
    }
    pthread_cond_signal(&j->filled);
    pthread_mutex_unlock(&j->lock);
    return status;
}

int eng_journal_status(struct eng_journal *j)
{
    pthread_mutex_lock(&j->lock);
    int status = j->status;
    pthread_mutex_unlock(&j->lock);
    return status;
}

int eng_journal_close(struct eng_journal *j)
{
    if (j->started) {
        pthread_mutex_lock(&j->lock);
        j->closing = true;
        pthread_cond_signal(&j->filled);
        pthread_mutex_unlock(&j->lock);
        pthread_join(j->thread, NULL);
        close_lock(j);
        j->started = false;
    }
    for (int i = 0; i < ENG_OUTLETS; i++) {
        kn_file_close(j->file[i].fd);
        j->file[i].fd = -1;
        eng_bytes_free(&j->file[i].filling);
        eng_bytes_free(&j->file[i].writing);
    }
    return j->status;
}
