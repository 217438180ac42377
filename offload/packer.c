/* Writes a pack file; a later call continues where an interrupted one stopped.
 *
 * Input: a model's experts in its files.  Output: the file of pack.c.  Experts are packed in batches: while the
 * team interleaves and writes one batch, the I/O thread reads the next into the other half of the memory.
 *
 *   first, a batch's extents are written and synced to the disk;
 *   then its entries are written: if this is interrupted, the checksum of a partly written entry is wrong.
 *
 * So the part file always holds the experts before its first invalid entry, however the last call ended.  When
 * all entries are valid the file is complete, and is renamed.
 *
 * Cost: every byte is read and written once; a disk that does both at 1 GB/s needs two seconds for 1 GB, and
 * the team interleaves as much in a fraction of a second, while the disk reads. */
#include "offload/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define GROUP_BYTES ((size_t)64 << 20)
#define MOST        1024 /* experts per batch */

struct half { /* half of the memory, with a batch ("group" in names) that is being read or written */
    uint8_t *memory;
    int first, n;        /* its experts: first .. first + n - 1 */
    struct off_job *job; /* [MOST][OFF_JOBS] */
};

struct packer {
    const struct off_pack_options *opt;
    const char *path;
    char *part; /* file name until the file is complete */
    int fd;
    bool owned; /* this process holds the lock on the part file */
    struct off_pack_head head;
    struct off_pack_entry *table; /* [n_expert] */
    int n_before, n_done;         /* experts packed: by earlier calls, in all */
    uint64_t at;                  /* offset of the next extent */
    struct off_io *io;
    struct half half[2];
    size_t group_bytes, scratch_bytes;
    uint8_t *scratch;              /* [team][scratch_bytes] */
    uint64_t (*sum)[OFF_MATRICES]; /* [MOST] checksums of the current batch */
};

/* ---- the part file ----------------------------------------------------------------------------------- */

/* Sets n_done and n_before to the number of valid entries of the part file, 0 if it does not belong to this model, and
 * `at` to the offset of the next extent.  Returns 0 or KN_E*. */
static int count_done(struct packer *p)
{
    struct off_pack_head head;
    uint64_t first;
    off_pack_count(&p->head, p->opt->expert, p->table,
                   &first); /* the table is still empty: this only sets first, where extents begin */
    p->at = first;
    if (kn_io()->size(p->fd) < (int64_t)first)
        return 0;
    int error = kn_file_read(p->fd, p->part, &head, sizeof head, 0);
    if (error || memcmp(&head, &p->head, sizeof head))
        return error;
    error = kn_file_read(p->fd, p->part, p->table, (size_t)p->opt->n_expert * sizeof *p->table, sizeof head);
    if (error)
        return error;
    p->n_done = p->n_before = off_pack_count(&p->head, p->opt->expert, p->table, &p->at);
    return 0;
}

/* Continues the part file of an earlier call, or starts a new one. */
static int open_part(struct packer *p)
{
    size_t bytes = strlen(p->path) + sizeof ".part";
    p->table = kn_calloc((size_t)p->opt->n_expert, sizeof *p->table);
    p->part = kn_alloc(bytes);
    if (!p->table || !p->part)
        return kn_fail(KN_ENOMEM, "no memory for the table of %s", p->path);
    snprintf(p->part, bytes, "%s.part", p->path);
    int error = kn_file_open(&p->fd, p->part, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
    if (error)
        return error;
    if (flock(p->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return kn_fail(KN_EINVAL, "%s: another spillway pack is writing it", p->part);
    p->owned = true;
    if ((error = count_done(p)) || p->n_done)
        return error;
    if (ftruncate(p->fd, 0) < 0) /* its contents are invalid, and it may be too long */
        return kn_fail(KN_EIO, "%s: cannot be emptied: %s", p->part, strerror(errno));
    return kn_file_write(p->fd, p->part, &p->head, sizeof p->head, 0);
}

static int check_room(const struct packer *p)
{
    uint64_t need = p->head.file_bytes - p->at;
    int64_t room = kn_io()->room(p->fd);
    if (room < 0 || (uint64_t)room >= need) /* room < 0: unknown; a write will fail if it is full */
        return 0;
    return kn_fail(KN_ELIMIT,
                   "%s: %.2f GB are needed and %.2f GB are free there: make room, or name a file "
                   "elsewhere with -o",
                   p->path, (double)need / 1e9, (double)room / 1e9);
}

static int sync_part(const struct packer *p)
{
    return kn_io()->sync(p->fd) < 0
               ? kn_fail(KN_EIO, "%s: it could not be synced to the disk: %s", p->part, strerror(errno))
               : 0;
}

static int finish(const struct packer *p) { return kn_file_publish(p->fd, p->part, p->path); }

/* ---- batches ----------------------------------------------------------------------------------------- */

/* Posts the reads of the batch that begins with expert `first`: as many experts as fit, at least one if any are
 * left. */
static void start_group(struct packer *p, struct half *h, int first)
{
    const struct off_pack_options *o = p->opt;
    uint8_t *place = h->memory;
    h->first = first;
    for (h->n = 0; first + h->n < o->n_expert && h->n < MOST; h->n++) {
        const struct off_expert *e = &o->expert[first + h->n];
        if (off_slot_bytes(e) > p->group_bytes - (size_t)(place - h->memory))
            return;
        for (int i = 0; i < OFF_MATRICES; i++) {
            const struct off_source *m = &e->matrix[i];
            struct off_job *job = &h->job[h->n * OFF_JOBS + i];
            off_place_jobs(m, place, job, OFF_MATRICES);
            place += off_place_bytes(m);
            for (int k = 0; k < OFF_JOBS; k += OFF_MATRICES)
                if (job[k].bytes)
                    off_io_post(p->io, job + k);
        }
    }
}

static int await_group(struct packer *p, struct half *h)
{
    for (int i = 0; i < h->n * OFF_JOBS; i++) {
        int error = h->job[i].bytes ? off_io_await(p->io, &h->job[i]) : 0;
        if (error)
            return error;
    }
    return 0;
}

struct work {
    struct packer *p;
    const struct half *h;
};

static void interleave_item(void *arg, int item, int thread)
{
    const struct work *w = arg;
    struct packer *p = w->p;
    int e = item / OFF_MATRICES, i = item % OFF_MATRICES;
    const struct off_source *m = &p->opt->expert[w->h->first + e].matrix[i];
    uint8_t *place = off_place_of(m, &w->h->job[e * OFF_JOBS], i);
    p->sum[e][i] = 0;
    if (!m->n_out)
        return;
    off_interleave(p->opt->ops, m, place, p->scratch + (size_t)thread * p->scratch_bytes);
    p->sum[e][i] = off_check(off_place_panels(m, place), kn_mat_bytes(m->format, m->n_out, m->n_in));
}

/* Writes a matrix's panels at offset `at`, then zeros up to the end of the page. */
static int write_matrix(struct packer *p, const struct off_source *m, void *place, uint64_t at)
{
    static const uint8_t zero[OFF_PAGE];
    size_t bytes = kn_mat_bytes(m->format, m->n_out, m->n_in), all = off_panel_bytes(m);
    int error = kn_file_write(p->fd, p->part, off_place_panels(m, place), bytes, at);
    return error || all == bytes ? error : kn_file_write(p->fd, p->part, zero, all - bytes, at + bytes);
}

static int write_group(struct packer *p, const struct half *h)
{
    uint64_t at = p->at;
    for (int e = 0; e < h->n; e++) {
        const struct off_expert *expert = &p->opt->expert[h->first + e];
        off_pack_entry(&p->table[h->first + e], &p->head, expert, at, off_check_expert(p->sum[e]));
        for (int i = 0; i < OFF_MATRICES; i++) {
            const struct off_source *m = &expert->matrix[i];
            int error = m->n_out ? write_matrix(p, m, off_place_of(m, &h->job[e * OFF_JOBS], i), at) : 0;
            if (error)
                return error;
            at += off_panel_bytes(m);
        }
    }
    int error = sync_part(p);
    if (error)
        return error;
    (void)kn_io()->forget(p->fd, (int64_t)p->at, (int64_t)(at - p->at));
    error = kn_file_write(p->fd, p->part, &p->table[h->first], (size_t)h->n * sizeof *p->table,
                          sizeof p->head + (uint64_t)h->first * sizeof *p->table);
    if (error)
        return error;
    p->n_done += h->n;
    p->at = at;
    return 0;
}

static int pack_group(struct packer *p, struct half *h)
{
    int error = await_group(p, h);
    if (error)
        return error;
    kn_parallel_for(p->opt->team, h->n * OFF_MATRICES, interleave_item, &(struct work){ p, h });
    if ((error = write_group(p, h)))
        return error;
    for (int e = 0; e < h->n && p->opt->progress; e++)
        atomic_fetch_add(&p->opt->progress->done_bytes, off_expert_bytes(&p->opt->expert[h->first + e]));
    return 0;
}

static int pack_groups(struct packer *p)
{
    int error = 0;
    start_group(p, &p->half[0], p->n_done);
    for (int turn = 0; !error && p->n_done < p->opt->n_expert; turn ^= 1) {
        struct half *h = &p->half[turn];
        if (p->opt->stop && atomic_load(p->opt->stop))
            return KN_ECANCELLED;
        start_group(p, &p->half[turn ^ 1], h->first + h->n);
        error = pack_group(p, h);
    }
    return error;
}

/* ---- all of it --------------------------------------------------------------------------------------- */

static int take_memory(struct packer *p)
{
    const struct off_pack_options *o = p->opt;
    p->group_bytes = o->group_bytes ? o->group_bytes : GROUP_BYTES;
    for (int e = p->n_done; e < o->n_expert; e++) {
        size_t bytes = off_slot_bytes(&o->expert[e]);
        p->group_bytes = bytes > p->group_bytes ? bytes : p->group_bytes;
        for (int i = 0; i < OFF_MATRICES; i++) {
            bytes = off_scratch_bytes(&o->expert[e].matrix[i], 1);
            p->scratch_bytes = bytes > p->scratch_bytes ? bytes : p->scratch_bytes;
        }
        if (o->progress)
            atomic_fetch_add(&o->progress->total_bytes, off_expert_bytes(&o->expert[e]));
    }
    p->sum = kn_calloc(MOST, sizeof *p->sum);
    p->scratch = kn_map((size_t)kn_team_size(o->team) * p->scratch_bytes, -1);
    bool all = p->sum && p->scratch;
    for (int i = 0; i < 2; i++) {
        p->half[i].memory = kn_map(p->group_bytes, -1);
        p->half[i].job = kn_calloc((size_t)MOST * OFF_JOBS, sizeof *p->half[i].job);
        all = all && p->half[i].memory && p->half[i].job;
    }
    return all ? 0 : kn_fail(KN_ENOMEM, "no memory for packing: %zu MiB are needed", p->group_bytes >> 19);
}

static void give_back(struct packer *p)
{
    off_io_close(p->io); /* first: the I/O thread may still read into the memory below */
    for (int i = 0; i < 2; i++) {
        kn_unmap(p->half[i].memory, p->group_bytes);
        kn_free(p->half[i].job);
    }
    kn_unmap(p->scratch, (size_t)kn_team_size(p->opt->team) * p->scratch_bytes);
    kn_free(p->sum);
    kn_free(p->table);
    kn_file_close(p->fd);
    kn_free(p->part);
}

static int pack(struct packer *p)
{
    const struct off_pack_options *o = p->opt;
    int error = kn_file_refuse_other(p->path, p->head.magic, "pack file");
    if (error || (error = open_part(p)) || (error = check_room(p)) || (error = take_memory(p)) ||
        (error = off_io_open(&p->io, &o->files, &(struct off_io_options){ .kind = o->io })) || (error = pack_groups(p)))
        return error;
    return finish(p);
}

/* After a call that failed or was stopped: logs how many experts are packed; removes a part file without experts. */
static void say_rest(struct packer *p, int error)
{
    bool stopped = error == KN_ECANCELLED;
    if (p->n_done)
        kn_say(stopped ? KN_LOG_ERROR : KN_LOG_INFO,
               "%s%s has %d of %d experts; run the same command again "
               "to continue",
               stopped ? "stopped: " : "", p->part, p->n_done, p->opt->n_expert);
    else if (stopped)
        kn_say(KN_LOG_ERROR, "stopped; nothing was written");
    if (!p->n_done && p->owned)
        kn_io()->unlink(p->part);
}

int off_pack(const char *path, const struct off_pack_options *opt, struct off_packed *out)
{
    struct packer p = { .opt = opt, .path = path, .fd = -1 };
    off_pack_head(&p.head, opt->model_id, opt->expert, opt->n_expert);
    int error = pack(&p);
    if (error)
        say_rest(&p, error);
    else
        *out = (struct off_packed){ opt->n_expert, p.n_before, p.head.file_bytes };
    give_back(&p);
    return error;
}
