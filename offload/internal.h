/* offload/internal.h - declarations shared by the files of offload/; no other folder includes it.
 *
 *     store.h     the expert store: store.c, share.c, slots.c, tickets.c, fill.c
 *     policy.c    the choice of experts to evict
 *     heat.c      usage statistics and checksums of experts, saved between runs
 *     watch.c     identity of the model's files, and whether they change while in use
 *     trace.c     recordings of fetches, and the fewest reads that they need
 *     pack.c      pack files: experts in a separate file, in slot layout; packer.c writes them
 *     load.c      off_load: reads all dense weights, once
 *     place.c     layout of a matrix in memory, from the read to its use
 *     mirror.c    a second copy of the files: finds and checks it
 *     io.c        the I/O thread: queues jobs by urgency, reports ended jobs
 *     reader.c    cuts a job into transfers: choice of drive, alignment, short reads, retries, deadlines
 *     ring.c, pread.c  carry out transfers by io_uring, or by threads with pread */
#ifndef OFFLOAD_INTERNAL_H
#define OFFLOAD_INTERNAL_H

#include "offload/offload.h"

#define OFF_MAX_FILES 1024
#define OFF_PAGE      ((size_t)4096)

/* ---- places: place.c --------------------------------------------------------------------------------
 *
 * A matrix is read to its final place.  Its file bytes are at place + offset % OFF_PAGE, as O_DIRECT needs,
 * and are then interleaved in place, panel by panel through a scratch panel.  16 file rows and a panel have
 * the same size, so a panel never overwrites rows that are not yet interleaved.  If the scales are separate,
 * panels are longer than the codes: the place then begins with a gap for the difference, the scales are read
 * to the gap, and the codes behind it. */

/* Interleaves a matrix in its place, on the calling thread.  scratch: off_scratch_bytes(s, 1). */
void off_interleave(const struct kn_ops *ops, const struct off_source *s, void *place, void *scratch);

/* The same with the whole team, for one large matrix; scratch: off_scratch_bytes(s, team size) per thread. */
void off_interleave_team(const struct off_hands *hands, const struct off_source *s, void *place);

/* Undoes the strided permutation of a matrix; call before interleaving. */
void off_turn_team(const struct off_hands *hands, const struct off_source *s, void *place);

size_t off_expert_bytes(const struct off_expert *e); /* bytes in the model's files */
size_t off_slot_bytes(const struct off_expert *e);   /* off_place_bytes() of all its matrices */

/* ---- transfers: ring.c, pread.c ---------------------------------------------------------------------
 *
 * A mover carries out transfers: reads from files to memory, up to `depth` at a time; it has no retries and no
 * priorities.  Only one thread (the I/O thread) may use it, except for wake(). */

struct off_transfer {
    int fd;
    int file; /* for a ring, in place of fd: index into the fd[] of off_ring_open */
    uint8_t *to;
    size_t bytes;
    uint64_t offset;
    int64_t result;            /* set by the mover: bytes read, or -errno */
    struct off_transfer *next; /* list link, of the mover from push to pull, else of the reader */
};

struct off_mover;
struct off_mover_ops {
    const char *name;
    void (*close)(struct off_mover *m);                        /* call with nothing under way */
    void (*push)(struct off_mover *m, struct off_transfer *t); /* at most depth under way */
    /* Waits for the end of a transfer, for a wake, or for wait_ns (0: does not wait); returns the ended transfers,
     * linked, or NULL. */
    struct off_transfer *(*pull)(struct off_mover *m, uint64_t wait_ns);
    void (*wake)(struct off_mover *m); /* any thread: the current or next pull returns */
};
struct off_mover { /* first member of every mover */
    const struct off_mover_ops *ops;
    int depth;
    int error; /* 0, or -errno when the mover is dead (and has logged this): it does nothing more,
                * and transfers that were pushed and not pulled belong to the reader again */
};

/* off_ring_open logs no error: it returns -errno, and sets *why to a possible cause in words, or "".  The ring can read
 * fd[] and no other file.  off_pread_open returns 0 or KN_ENOMEM. */
int off_ring_open(struct off_mover **out, int depth, const int *fd, int n_fd, const char **why);
int off_pread_open(struct off_mover **out, int depth);

/* ---- a second copy: mirror.c -------------------------------------------------------------------------
 *
 * Any thread may call these.  file: index among the store's files, the pack file last. */

int off_mirror_fd(const struct off_mirror *m, int file); /* -1: no copy of this file */
const char *off_mirror_path(const struct off_mirror *m, int file);
uint64_t off_mirror_bytes(const struct off_mirror *m, int file);       /* length of the copy */
bool off_mirror_lives(const struct off_mirror *m);                     /* false: none, or dropped */
void off_mirror_drop(struct off_mirror *m, int file, const char *why); /* drops all copies; logs why */
void off_mirror_count(struct off_mirror *m, size_t bytes);             /* adds bytes read from the copy */
uint64_t off_mirror_read(const struct off_mirror *m);                  /* total read from the copy; m may be NULL */

/* ---- jobs: io.c -------------------------------------------------------------------------------------
 *
 * A job reads a range of a file to memory.  Jobs are served by urgency: NOW, SOON, EARLY, IDLE; within one
 * urgency in the order of posting.  Only a few MiB of each urgency are under way at any moment, so that a
 * NOW job never waits long for jobs of lower urgency. */

/* The copies that a job may read: any, only the first, or the second (mirror.c).  The last means the first where the
 * second has ended, or has not all bytes of the job. */
enum off_copy { OFF_COPY_ANY, OFF_COPY_FIRST, OFF_COPY_SECOND };

enum off_job_state { OFF_JOB_IDLE, OFF_JOB_QUEUED, OFF_JOB_READING, OFF_JOB_DONE };

struct off_job { /* in the caller's memory; the caller must not change it until it is DONE */
    int file;
    uint64_t offset;
    size_t bytes;
    uint8_t *to; /* page-aligned, with space for whole pages */
    enum off_urgency urgency;
    enum off_copy copy;

    atomic_int state; /* DONE is stored (release) after status and the data at `to` */
    atomic_bool late; /* past its deadline: the caller may stop waiting, but its memory stays in use until DONE */
    int status;       /* 0 or a KN_E*, already logged */

    struct off_job *next; /* from here on: for io.c and reader.c */
    size_t begun;         /* bytes of the aligned range handed to transfers */
    int n_under_way;      /* transfers */
    bool plain;           /* some transfers used the page cache */
    bool mirrored;        /* some transfers read the second copy */
    uint64_t deadline_ns; /* for the end of its next transfer */
};

struct off_io;
struct off_io_options {
    enum off_io_kind kind;
    int depth;               /* transfers at a time; 0: the default */
    struct off_mover *mover; /* NULL, or the mover to use (in tests); the reader closes it */
};

int off_io_open(struct off_io **out, const struct off_files *files, const struct off_io_options *opt);
void off_io_close(struct off_io *io); /* waits for transfers; queued jobs become DONE with KN_ECANCELLED */
void off_io_post(struct off_io *io, struct off_job *job);
bool off_io_cancel(struct off_io *io, struct off_job *job);     /* true: it was queued, and is IDLE now */
void off_io_raise(struct off_io *io, struct off_job *job);      /* urgency NOW for bytes not handed to transfers yet */
int off_io_await(struct off_io *io, const struct off_job *job); /* waits until DONE; returns status */

/* Each ended job, late job and nudge is an event; off_io_events returns their number so far.  off_io_wait waits until
 * the number exceeds `seen`, and returns it. */
uint64_t off_io_events(struct off_io *io);
uint64_t off_io_wait(struct off_io *io, uint64_t seen);
void off_io_nudge(struct off_io *io);

const char *off_io_name(struct off_io *io); /* "io_uring", or "pread", also when a ring has died and was replaced */

/* ---- an expert as jobs: place.c ----------------------------------------------------------------------- */

/* Fills in the jobs that read a matrix to its place: its rows (or codes), its separate scales and its zero points, at
 * job[0], job[step] and job[2 * step]; bytes is 0 where the matrix has no such part.  Does not post them. */
#define OFF_PARTS 3
void off_place_jobs(const struct off_source *s, void *place, struct off_job *job, int step);

#define OFF_JOBS (OFF_PARTS * OFF_MATRICES) /* per expert: rows of each matrix, scales of each, zero points of each */

/* The place of matrix i of an expert with these jobs; s is this matrix.  Its scales' job reads to the start of the
 * place; without separate scales its rows' job does. */
static inline uint8_t *off_place_of(const struct off_source *s, const struct off_job job[OFF_JOBS], int i)
{
    return job[s->scales.bytes ? OFF_MATRICES + i : i].to;
}

/* ---- reading: reader.c, for io.c ----------------------------------------------------------------------
 *
 * Only the I/O thread may call these, except wake(); push() and mend() with the queue locked. */

struct off_reader;
int off_reader_open(struct off_reader **out, const struct off_files *files, const struct off_io_options *opt);
void off_reader_close(struct off_reader *r);                          /* call with nothing under way */
bool off_reader_idle(const struct off_reader *r);                     /* nothing is under way */
bool off_reader_room(const struct off_reader *r, enum off_urgency u); /* one more transfer may be pushed */
extern const size_t off_reader_most[OFF_URGENCIES]; /* bytes under way, by urgency, from which on none is pushed */
bool off_reader_push(struct off_reader *r, struct off_job *job); /* true: the whole job is handed to transfers */
/* Waits; returns the jobs that ended, linked.  *n_late: the number of jobs that have become late. */
struct off_job *off_reader_pull(struct off_reader *r, int *n_late);
struct off_job *off_reader_mend(struct off_reader *r); /* replaces a dead mover; returns jobs that this ended */
void off_reader_wake(struct off_reader *r);            /* any thread */
size_t off_reader_span(const struct off_job *job);     /* bytes of the aligned range */
const char *off_reader_name(const struct off_reader *r);

/* ---- policy: policy.c ------------------------------------------------------------------------------- */

/* Rates experts for eviction.  Groups are used in ascending order, cyclically; the probability that an expert is
 * used in its group's next turn is learnt from past turns.  No clock, no I/O; not thread-safe. */
struct off_policy;
int off_policy_open(struct off_policy **out, const struct off_expert *expert, int n_expert); /* sorted by group */
void off_policy_close(struct off_policy *p);
/* Records one turn of a group, which uses n_used experts.  All but the first n are elsewhere: until a turn in which they are
 * among the first n, they are evicted before all others. */
void off_policy_use(struct off_policy *p, const int32_t *expert, int n, int n_used);

/* The same between turns. */
void off_policy_set_elsewhere(struct off_policy *p, int32_t expert, bool elsewhere);
bool off_policy_is_elsewhere(const struct off_policy *p, int32_t expert);

/* Turns (of any group) until the next turn of the expert's group, divided by the probability that the expert is used in
 * it: the slot time that each saved read costs.  The expert with the largest value is evicted first. */
float off_policy_wait(const struct off_policy *p, int32_t expert);

/* Turns from now to the next turn of the expert's group, 1 .. number of groups. */
int off_policy_ahead(const struct off_policy *p, int32_t expert);

/* Share of about the last 16 turns of its group that used the expert, 0..1. */
float off_policy_heat(const struct off_policy *p, int32_t expert);

/* Share of about the last 256 turns of its group that used the expert, 0..1; the heat file keeps it between runs. */
float off_policy_share(const struct off_policy *p, int32_t expert);
void off_policy_set_share(struct off_policy *p, int32_t expert, float share);

/* ---- recordings of fetches: trace.c ------------------------------------------------------------------- */

void off_trace_add(struct off_trace *t, const int32_t *expert, int n);

/* *misses: those of an optimal cache of n_slot slots that serves only the experts with counts[] true.  Returns 0 or
 * KN_ENOMEM. */
int off_trace_least(const struct off_trace *t, const bool *counts /* [n_expert] */, int n_expert, int n_slot,
                    uint64_t *misses);

/* Misses of a cache of n_slot slots that knows how often each expert is used in the recording, not when. */
int off_trace_by_share(const struct off_trace *t, const struct off_expert *expert /* [n_expert] sorted by group */,
                       const bool *counts /* [n_expert] */, int n_expert, int n_slot, uint64_t *misses);

/* ---- pack files: pack.c --------------------------------------------------------------------------------
 *
 * A head, a table, and an extent for each expert.  The head has the model's id and the number of experts.  An
 * entry of the table has the place of one extent, the shapes of its matrices and its checksum.  Head and
 * entries have checksums of their own; an entry's checksum includes the head's, so that an entry of another
 * file is detected.
 *
 *     0         head
 *     48        entries, one after another
 *     a page    extents: each begins at a page, and so does every matrix in it */

#define OFF_PACK_VERSION 2 /* of the file layout, the interleaving of matrices and the checksum */

struct off_pack_head { /* the whole file is little-endian */
    char magic[8];
    uint32_t version, page_bytes;
    uint64_t model_id, file_bytes;
    uint32_t n_expert, n_matrix;
    uint64_t check; /* checksum of the fields before it */
};
_Static_assert(sizeof(struct off_pack_head) == 48, "as it lies in the file");

struct off_pack_entry {
    uint64_t offset, bytes, check; /* of the extent */
    struct {
        uint32_t gguf_type, n_out, n_in;
    } matrix[OFF_MATRICES];
    uint32_t zero;
    uint64_t seal; /* checksum of the fields before it, xor the head's check */
};
_Static_assert(sizeof(struct off_pack_entry) == 72, "as it lies in the file");

/* Checksum: XXH3 of 64 bits. */
uint64_t off_check(const void *data, size_t bytes);

/* The checksum of an expert is that of its matrices' checksums, so that matrices can be verified in parallel. */
uint64_t off_check_expert(const uint64_t matrix[OFF_MATRICES]);

size_t off_panel_bytes(const struct off_source *s); /* of a matrix in an extent: whole pages */

/* Fills in head and entry as a valid file has them, byte for byte.  offset, check: of the expert's extent. */
void off_pack_head(struct off_pack_head *out, uint64_t model_id, const struct off_expert *expert, int n_expert);
void off_pack_entry(struct off_pack_entry *out, const struct off_pack_head *head, const struct off_expert *e,
                    uint64_t offset, uint64_t check);

/* The number of valid entries before the first invalid one; *next: the offset of the extent behind theirs. */
int off_pack_count(const struct off_pack_head *head, const struct off_expert *expert,
                   const struct off_pack_entry *table /* [n_expert] */, uint64_t *next);

struct off_extent {
    uint64_t offset;
    size_t bytes;
    uint64_t check;
}; /* bytes 0: not in the file */

/* Reads all bytes; false on an error or the end of the file, which the caller logs. */
bool off_read_all(int fd, void *to, size_t bytes, uint64_t offset);

/* Opens a model's pack file.  *fd is -1 if the file does not exist or is not usable; the latter is logged.  Fails only
 * with KN_ENOMEM. */
int off_pack_open(int *fd, const char *path, uint64_t model_id, const struct off_expert *expert, int n_expert,
                  struct off_extent *extent /* [n_expert] */);

/* ---- the model's files while in use: watch.c --------------------------------------------------------- */

struct off_file_id { /* of a file's contents, as far as the system tells; bytes 0: unknown */
    uint64_t bytes;
    int64_t mtime_ns, ctime_ns;
};
_Static_assert(sizeof(struct off_file_id) == 24, "as it lies in the heat file");

/* Any thread may call these.  off_watch_open fails only with KN_ENOMEM.  off_watch_look: true if size or bytes of a file
 * have changed since it was opened, now or at an earlier look; logs this once.  off_watch_compare: `last` is the
 * identity at the end of an earlier process.  off_watch_written: the file's times have changed since the open, or since
 * `last`. */
struct off_watch;
int off_watch_open(struct off_watch **out, const struct off_files *files);
void off_watch_close(struct off_watch *w);
bool off_watch_look(struct off_watch *w);
bool off_watch_changed(const struct off_watch *w); /* the result of the last look */
void off_watch_id(struct off_watch *w, int file, struct off_file_id *out);
void off_watch_compare(struct off_watch *w, int file, const struct off_file_id *last);
bool off_watch_written(struct off_watch *w, int file);

/* ---- statistics and checksums between runs: heat.c --------------------------------------------------- */

struct off_heat {
    uint64_t model_id;
    int n_expert, n_file;
    struct off_file_id *id; /* [n_file] of the model's files; off_heat_read replaces it by that in the heat file */
    float *share;           /* [n_expert] share of its group's turns that used the expert */
    uint64_t *check;        /* [n_expert] off_check_expert of the expert in the model's own files; 0: unknown */
};

/* off_heat_read: false if there is no file, or if the file is not valid; the latter is logged.  The checksums are all 0
 * if the file has an older format or another layout of experts (OFF_PACK_VERSION), or if one of the model's files has
 * another size or modification time than the heat file says. */
bool off_heat_read(const char *path, struct off_heat *h);
void off_heat_write(const char *path, const struct off_heat *h);

#endif
