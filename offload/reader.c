/* Cuts jobs into transfers: whole pages, short reads, retries, deadlines.
 *
 * A job's range is widened to whole pages and cut into transfers, which a mover (ring.c, pread.c) carries out.
 * Each ended transfer is judged here.  A job is done when all its transfers have ended.  By a transfer's result:
 *
 *   all bytes, or up to the job's last byte   good: the last page may reach past the end of the file
 *   fewer bytes           reads the missing ones, with O_DIRECT from a page's start; if not even one page was
 *                         read, through the page cache
 *   0                     the file ends too early: the job fails without a retry
 *   EINTR, EAGAIN         retried, AGAIN times at most
 *   EINVAL, O_DIRECT      not supported by the file system: this file is read through the page cache from here on
 *   any other error       retried RETRIES times; then this job fails, and no other
 *   the ring dies         pread threads carry out all transfers from here on, first those under way
 *   no result             when none of a job's transfers has ended for STALL_NS, the job is marked late and this
 *                         is logged; its memory stays in use until they end.  If the process itself was stopped
 *                         or frozen, the time starts again, because the delay says nothing about the disk
 *   error of the second copy   the same rules, but no job fails: the copy is dropped and the first is read
 *
 * With two copies, each transfer goes to the drive that will finish it first, by the bytes under way on each
 * drive and the rate measured while it was busy.  So each drive contributes in proportion to its rate, and a
 * drive that is a dozen times slower contributes nothing.
 *
 * Data read through the page cache is dropped from it afterwards: the engine caches experts itself. */
#include "offload/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define TRANSFER_BYTES ((size_t)1 << 20)
#define DEPTH          20
#define MAX_DEPTH      256
#define AGAIN          100
#define RETRIES        2
#define STALL_NS       30000000000u
#define STOOD_NS       5000000000u  /* a pull returns so long after its timeout: the process was stopped */
#define LATELY         (64e6)       /* when a drive's bytes exceed this, its bytes and ns are halved */
#define REPEAT_NS      60000000000u /* the same error of the same file is logged again after this time */

struct transfer {
    struct off_transfer mover; /* first: the mover's part */
    struct off_job *job;       /* NULL: free */
    int drive;                 /* FIRST or SECOND */
    enum off_urgency urgency;  /* of the job at the push; off_reader.under_way counts `bytes` under it */
    size_t bytes;              /* at the push; mover.bytes are those still to read */
    int n_again, n_retry;
};

enum { FIRST, SECOND, N_COPY };

struct copy {
    int fd, direct; /* direct: fd with O_DIRECT, or -1 */
    const char *path;
    bool plain;     /* use fd, not direct */
    uint64_t bytes; /* readable bytes */
};

struct file {
    struct copy copy[N_COPY];
    int64_t bytes; /* at open; -1: unknown */
    int said;      /* errno of the last error logged, and when it was logged */
    uint64_t said_ns;
};

struct drive {
    size_t under_way;
    double bytes, ns;  /* rate: bytes read recently, and the time in which the drive was busy with them */
    uint64_t since_ns; /* when a transfer last ended on the drive, or last began on the idle drive */
};

struct off_reader {
    struct off_files files;
    struct drive drive[N_COPY];
    struct file *file; /* [n_file] */
    struct off_mover *mover;
    struct transfer *transfer, *free; /* [depth] */
    int depth, n_under_way;
    uint64_t looked_ns; /* when pull last returned */
    bool said_plain;
    size_t under_way[OFF_URGENCIES]; /* bytes */
};

/* ---- logging errors ------------------------------------------------------------------------------ */

/* True if the error (an errno) should be logged: it is not the last one logged for this file, or REPEAT_NS have
 * passed.  A failing disk affects many jobs. */
static bool is_news(struct off_reader *r, int file, int trouble)
{
    struct file *f = &r->file[file];
    uint64_t now = kn_now_ns();
    if (f->said == trouble && now - f->said_ns < REPEAT_NS)
        return false;
    f->said = trouble;
    f->said_ns = now;
    return true;
}

static int fail_read(struct off_reader *r, const struct off_job *job, int error)
{
    if (is_news(r, job->file, error))
        kn_fail(KN_EIO, "%s: reading %zu bytes at %llu: %s", r->files.path[job->file], job->bytes,
                (unsigned long long)job->offset, strerror(error));
    return KN_EIO;
}

static int fail_short(struct off_reader *r, const struct off_job *job, uint64_t end)
{
    const char *path = r->files.path[job->file];
    int64_t was = r->file[job->file].bytes, is = kn_io()->size(r->files.fd[job->file]);
    if (!is_news(r, job->file, ENODATA))
        return KN_ESHORT;
    if (is >= 0 && is < was)
        return kn_fail(KN_ESHORT,
                       "%s: was cut short while in use: %lld bytes now, %lld when it was opened; "
                       "restore the file and start again",
                       path, (long long)is, (long long)was);
    return kn_fail_short(path, end, job->offset + job->bytes - end);
}

static void say_plain(struct off_reader *r, const char *path)
{
    if (!r->said_plain)
        kn_say(KN_LOG_INFO,
               "%s: no O_DIRECT (a file system without it?): reading through the page cache, "
               "which is slower",
               path);
    r->said_plain = true;
}

/* ---- transfers ----------------------------------------------------------------------------------- */

static uint64_t span_start(const struct off_job *job) { return job->offset & ~(uint64_t)(OFF_PAGE - 1); }

size_t off_reader_span(const struct off_job *job)
{
    return kn_align_up((size_t)(job->offset - span_start(job)) + job->bytes, OFF_PAGE);
}

/* ---- choice of drive -------------------------------------------------------------------------------- */

static void begin_on(struct off_reader *r, struct transfer *t, int drive)
{
    struct drive *d = &r->drive[drive];
    if (d->under_way == 0)
        d->since_ns = kn_now_ns();
    d->under_way += t->bytes;
    t->drive = drive;
    t->job->mirrored |= drive == SECOND;
}

static void leave(struct off_reader *r, struct transfer *t) { r->drive[t->drive].under_way -= t->bytes; }

static void end_on(struct off_reader *r, struct transfer *t)
{
    struct drive *d = &r->drive[t->drive];
    uint64_t now = kn_now_ns();
    d->bytes += (double)t->bytes;
    d->ns += (double)(now - d->since_ns);
    d->since_ns = now;
    if (d->bytes > LATELY) {
        d->bytes /= 2;
        d->ns /= 2;
    }
    if (t->drive == SECOND)
        off_mirror_count(r->files.mirror, t->bytes);
    leave(r, t);
}

/* ns in which the drive would read the bytes under way on it, and then `bytes` more. */
static double time_on(const struct drive *d, size_t bytes) { return (double)(d->under_way + bytes) * d->ns / d->bytes; }

static int choose_drive(const struct off_reader *r, const struct transfer *t)
{
    const struct off_job *job = t->job;
    uint64_t there = r->file[job->file].copy[SECOND].bytes;
    if (job->copy == OFF_COPY_FIRST || !off_mirror_lives(r->files.mirror))
        return FIRST;
    if (job->copy == OFF_COPY_SECOND) /* the last transfer may reach past the end of the file */
        return job->offset + job->bytes <= there ? SECOND : FIRST;
    if (t->mover.offset + t->bytes > there)
        return FIRST;
    return time_on(&r->drive[SECOND], t->bytes) < time_on(&r->drive[FIRST], t->bytes) ? SECOND : FIRST;
}

static void push(struct off_reader *r, struct transfer *t)
{
    struct off_job *job = t->job;
    const struct copy *c = &r->file[job->file].copy[t->drive];
    bool plain = job->plain || c->plain;
    job->plain = plain;
    t->mover.file = job->file + r->files.n_file * (t->drive * 2 + plain);
    t->mover.fd = plain ? c->fd : c->direct;
    r->mover->ops->push(r->mover, &t->mover);
}

/* Drops the second copy and moves the transfer to the first; the caller pushes it. */
static void fall_back(struct off_reader *r, struct transfer *t, const char *why)
{
    off_mirror_drop(r->files.mirror, t->job->file, why);
    leave(r, t);
    begin_on(r, t, FIRST);
    t->n_again = t->n_retry = 0;
}

bool off_reader_push(struct off_reader *r, struct off_job *job)
{
    size_t span = off_reader_span(job);
    if (job->status) { /* an earlier transfer of this job has failed */
        job->begun = span;
        return true;
    }
    size_t bytes = span - job->begun < TRANSFER_BYTES ? span - job->begun : TRANSFER_BYTES;
    struct transfer *t = r->free;
    r->free = (struct transfer *)t->mover.next;
    *t = (struct transfer){
        .mover = { .to = job->to + job->begun, .bytes = bytes, .offset = span_start(job) + job->begun },
        .job = job,
        .urgency = job->urgency,
        .bytes = bytes
    };
    begin_on(r, t, choose_drive(r, t));
    job->begun += bytes;
    if (job->n_under_way++ == 0)
        job->deadline_ns = kn_now_ns() + STALL_NS;
    r->n_under_way++;
    r->under_way[t->urgency] += bytes;
    push(r, t);
    return job->begun == span;
}

/* Shortens the transfer by n bytes that were read, with O_DIRECT by the whole pages among them.  False: by none. */
static bool advance(struct transfer *t, bool direct, size_t n)
{
    if (direct)
        n &= ~(OFF_PAGE - 1);
    t->mover.to += n;
    t->mover.bytes -= n;
    t->mover.offset += n;
    return n > 0;
}

/* Applies the rules above to a transfer that the mover has returned.  True: it was pushed again; false: it has
 * ended. */
static bool judge(struct off_reader *r, struct transfer *t)
{
    struct off_job *job = t->job;
    struct copy *c = &r->file[job->file].copy[t->drive];
    bool direct = t->mover.fd != c->fd;
    int64_t n = t->mover.result;
    uint64_t end = job->offset + job->bytes;
    if (n == (int64_t)t->mover.bytes || (n > 0 && t->mover.offset + (uint64_t)n >= end))
        return false;
    if (job->status) /* the job has failed already */
        return false;
    if (n > 0)
        job->plain |= !advance(t, direct, (size_t)n);
    else if (n == -EINVAL && direct) {
        c->plain = true;
        say_plain(r, c->path);
    } else if (n == 0 || ((n == -EINTR || n == -EAGAIN) ? t->n_again++ >= AGAIN : t->n_retry++ >= RETRIES)) {
        if (t->drive == FIRST) {
            job->status = n ? fail_read(r, job, (int)-n) : fail_short(r, job, t->mover.offset);
            return false;
        }
        fall_back(r, t, n ? strerror((int)-n) : "it has become shorter");
    }
    push(r, t);
    return true;
}

/* Frees a transfer that has ended.  Returns its job if the job has ended with this transfer, else NULL. */
static struct off_job *release(struct off_reader *r, struct transfer *t)
{
    struct off_job *job = t->job;
    end_on(r, t);
    r->under_way[t->urgency] -= t->bytes;
    r->n_under_way--;
    t->job = NULL;
    t->mover.next = (struct off_transfer *)r->free;
    r->free = t;
    job->deadline_ns = kn_now_ns() + STALL_NS;
    if (--job->n_under_way > 0 || (!job->status && job->begun < off_reader_span(job)))
        return NULL;
    for (int i = 0; i < N_COPY && job->plain; i++)
        if (i == FIRST || job->mirrored)
            (void)kn_io()->forget(r->file[job->file].copy[i].fd, (int64_t)span_start(job),
                                  (int64_t)off_reader_span(job));
    job->next = NULL;
    return job;
}

/* The job of the i-th transfer; NULL if the transfer is free or its job is already marked late. */
static struct off_job *timed(const struct off_reader *r, int i)
{
    struct off_job *job = r->transfer[i].job;
    return job && !atomic_load_explicit(&job->late, memory_order_relaxed) ? job : NULL;
}

/* ns until the next deadline, UINT64_MAX if there is none. */
static uint64_t time_left(const struct off_reader *r, uint64_t now)
{
    uint64_t left = UINT64_MAX;
    for (int i = 0; i < r->depth; i++) {
        const struct off_job *job = timed(r, i);
        uint64_t own = !job ? UINT64_MAX : job->deadline_ns > now ? job->deadline_ns - now : 0;
        left = own < left ? own : left;
    }
    return left;
}

/* Marks jobs past their deadline as late; returns their number.  stood: the process was stopped, deadlines restart. */
static int mark_late(struct off_reader *r, uint64_t now, bool stood)
{
    int n_late = 0;
    for (int i = 0; i < r->depth; i++) {
        struct off_job *job = timed(r, i);
        if (!job)
            continue;
        if (stood)
            job->deadline_ns = now + STALL_NS;
        if (now < job->deadline_ns)
            continue;
        atomic_store_explicit(&job->late, true, memory_order_release);
        n_late++;
        if (r->transfer[i].drive == SECOND)
            off_mirror_drop(r->files.mirror, job->file, "the disk has not answered for half a minute");
        else if (is_news(r, job->file, ETIMEDOUT))
            kn_say(KN_LOG_WARN, "%s: the disk has not answered for %u s; still waiting", r->files.path[job->file],
                   (unsigned)(STALL_NS / 1000000000u));
    }
    return n_late;
}

struct off_job *off_reader_pull(struct off_reader *r, int *n_late)
{
    struct off_job *ended = NULL, **last = &ended;
    uint64_t wait_ns = time_left(r, kn_now_ns());
    struct off_transfer *next, *t = r->mover->ops->pull(r->mover, wait_ns);
    for (; t; t = next) {
        struct transfer *own = (struct transfer *)t;
        next = t->next;
        if (!judge(r, own) && (*last = release(r, own)) != NULL)
            last = &(*last)->next;
    }
    uint64_t now = kn_now_ns(), slept = now - r->looked_ns;
    r->looked_ns = now;
    *n_late = mark_late(r, now, slept > STOOD_NS && slept - STOOD_NS > wait_ns);
    return ended;
}

/* Replaces a dead mover by pread threads and pushes the transfers under way again.  If no thread can be started, these
 * transfers fail, and the next call tries again.  Returns the jobs that ended thereby, linked. */
struct off_job *off_reader_mend(struct off_reader *r)
{
    struct off_job *ended = NULL, **last = &ended;
    struct off_mover *pool;
    if (!r->mover->error)
        return NULL;
    int error = off_pread_open(&pool, r->depth);
    if (!error) {
        r->mover->ops->close(r->mover);
        r->mover = pool;
    }
    for (int i = 0; i < r->depth; i++) {
        struct transfer *t = &r->transfer[i];
        if (!t->job)
            continue;
        if (!error)
            push(r, t);
        else {
            t->job->status = error;
            if ((*last = release(r, t)) != NULL)
                last = &(*last)->next;
        }
    }
    return ended;
}

bool off_reader_idle(const struct off_reader *r) { return r->n_under_way == 0; }
void off_reader_wake(struct off_reader *r) { r->mover->ops->wake(r->mover); }
const char *off_reader_name(const struct off_reader *r) { return r->mover->ops->name; }

/* By urgency: a transfer is pushed only while fewer bytes are under way.  Fast disks need a few MiB: 4 transfers give
 * 95 % of the rate, 6 all of it, and a little more bridges the time until the I/O thread runs again.  All transfers
 * under way end at about the same time, so a higher limit would only delay the first one.  With a second copy, the
 * limits are twice these. */
const size_t off_reader_most[OFF_URGENCIES] = { (size_t)8 << 20, (size_t)6 << 20, (size_t)4 << 20, (size_t)4 << 20 };

bool off_reader_room(const struct off_reader *r, enum off_urgency u)
{
    return r->free && r->under_way[u] < off_reader_most[u] * (off_mirror_lives(r->files.mirror) ? N_COPY : 1);
}

/* ---- opening ------------------------------------------------------------------------------------- */

/* The descriptor `direct`, opened with O_DIRECT by path, is usable if a page satisfies its alignment, and if the path
 * still names the file of fd. */
static bool is_usable(int direct, int fd)
{
    struct kn_stat x, y;
    return kn_io()->stat(direct, &x) == 0 && kn_io()->stat(fd, &y) == 0 && x.device == y.device && x.inode == y.inode &&
           x.direct_align <= OFF_PAGE;
}

static void open_copy(struct off_reader *r, struct copy *c, int fd, const char *path, uint64_t bytes)
{
    *c = (struct copy){ fd, kn_io()->open(path, O_RDONLY | O_DIRECT | O_CLOEXEC, 0), path, false, bytes };
    if (c->direct >= 0 && !is_usable(c->direct, fd)) {
        kn_file_close(c->direct);
        c->direct = -1;
    }
    c->plain = c->direct < 0;
    if (c->plain)
        say_plain(r, path);
}

static void open_files(struct off_reader *r)
{
    const struct off_mirror *m = r->files.mirror;
    for (int i = 0; i < r->files.n_file; i++) {
        struct file *f = &r->file[i];
        f->bytes = kn_io()->size(r->files.fd[i]);
        open_copy(r, &f->copy[FIRST], r->files.fd[i], r->files.path[i], UINT64_MAX);
        f->copy[SECOND] = (struct copy){ .fd = -1, .direct = -1 };
        if (off_mirror_fd(m, i) >= 0)
            open_copy(r, &f->copy[SECOND], off_mirror_fd(m, i), off_mirror_path(m, i), off_mirror_bytes(m, i));
    }
    for (int i = 0; i < N_COPY; i++) /* 1 GB/s each, until measured */
        r->drive[i] = (struct drive){ .bytes = 1e6, .ns = 1e6 };
}

/* Opens a ring with these files, in the order that push() assumes: for each copy all descriptors with O_DIRECT, then
 * all without. */
static int open_ring(struct off_reader *r, int depth, const char **why)
{
    int n = r->files.n_file;
    int *fd = kn_calloc((size_t)n * 2 * N_COPY, sizeof *fd);
    if (!fd)
        return -ENOMEM;
    for (int i = 0; i < n * N_COPY; i++) {
        const struct copy *c = &r->file[i % n].copy[i / n];
        fd[i / n * 2 * n + i % n] = c->direct;
        fd[i / n * 2 * n + n + i % n] = c->fd;
    }
    int error = off_ring_open(&r->mover, depth, fd, 2 * N_COPY * n, why);
    kn_free(fd);
    return error;
}

static int open_mover(struct off_reader *r, enum off_io_kind kind, int depth)
{
    static atomic_flag said = ATOMIC_FLAG_INIT; /* logged once: the cause is the same for all readers */
    const char *why = "";
    int error = kind == OFF_IO_PREAD ? 0 : open_ring(r, depth, &why);
    if (r->mover)
        return 0;
    if (kind == OFF_IO_URING)
        return kn_fail(KN_EUNSUPPORTED, "io_uring is not available: %s%s; --io auto reads with threads instead",
                       strerror(-error), why);
    if (error && !atomic_flag_test_and_set(&said))
        kn_say(KN_LOG_WARN,
               "io_uring is not available: %s%s; reading with %d pread threads instead, which "
               "uses more processor time (--io pread does the same without this warning)",
               strerror(-error), why, depth);
    return off_pread_open(&r->mover, depth);
}

int off_reader_open(struct off_reader **out, const struct off_files *files, const struct off_io_options *opt)
{
    struct off_reader *r = kn_calloc(1, sizeof *r);
    int depth = opt->depth ? kn_min(opt->depth, MAX_DEPTH) : DEPTH * (files->mirror ? N_COPY : 1), error = KN_ENOMEM;
    if (!r) {
        if (opt->mover)
            opt->mover->ops->close(opt->mover);
        return kn_fail(KN_ENOMEM, "no memory for reading");
    }
    r->mover = opt->mover;
    r->files = *files;
    r->file = kn_calloc((size_t)files->n_file, sizeof *r->file);
    if (!r->file) {
        r->files.n_file = 0;
        kn_fail(error, "no memory to read %d files", files->n_file);
        goto fail;
    }
    open_files(r);
    if (!r->mover && (error = open_mover(r, opt->kind, depth)) != 0)
        goto fail;
    r->depth = r->mover->depth;
    r->transfer = kn_calloc((size_t)r->depth, sizeof *r->transfer);
    if (!r->transfer) {
        error = kn_fail(KN_ENOMEM, "no memory for %d reads at a time", r->depth);
        goto fail;
    }
    for (int i = 0; i < r->depth; i++) {
        r->transfer[i].mover.next = (struct off_transfer *)r->free;
        r->free = &r->transfer[i];
    }
    *out = r;
    return 0;
fail:
    off_reader_close(r);
    return error;
}

void off_reader_close(struct off_reader *r)
{
    if (!r)
        return;
    if (r->mover)
        r->mover->ops->close(r->mover);
    for (int i = 0; i < r->files.n_file * N_COPY; i++)
        kn_file_close(r->file[i / N_COPY].copy[i % N_COPY].direct);
    kn_free(r->transfer);
    kn_free(r->file);
    kn_free(r);
}
