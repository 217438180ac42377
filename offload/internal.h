/* offload/internal.h - declarations shared by the files of offload/; no other folder includes it.
 *
 *     store.h     the expert store: store.c, share.c, slots.c, tickets.c, fill.c
 *     policy.c    the choice of experts to evict
 *     heat.c      usage statistics of experts, saved between runs
 *     trace.c     recordings of fetches, and the fewest reads that they need
 *     pack.c      pack files: experts in a separate file, in slot layout; packer.c writes them
 *     load.c      reads all dense weights, once
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
 * the same size, so a panel never overwrites rows that are not yet read.  Separate scales are read to memory
 * in front of the codes, which panels will use too, since panels are larger than codes. */

/* Runs on one thread; scratch belongs to it. */
void off_interleave(const struct kn_ops *ops, const struct off_source *s, void *place, void *scratch);

/* The same with the whole team, for one large matrix. */
void off_interleave_team(const struct off_hands *hands, const struct off_source *s, void *place);

/* Undoes the strided permutation of a matrix's rows; call before interleaving. */
void off_turn_team(const struct off_hands *hands, const struct off_source *s, void *place);

size_t off_expert_bytes(const struct off_expert *e); /* bytes in the files */
size_t off_slot_bytes(const struct off_expert *e);   /* places of all its matrices */

/* ---- transfers: ring.c, pread.c ---------------------------------------------------------------------
 *
 * A mover reads from files to memory, up to `depth` transfers at a time; it has no retries and no priorities.
 * Only one thread may use it, except for wake(). */

struct off_transfer {
    int fd;
    int file; /* index among the files given to off_ring_open */
    uint8_t *to;
    size_t bytes;
    uint64_t offset;
    int64_t result;            /* bytes, or -errno */
    struct off_transfer *next; /* link for the current owner */
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
    int error; /* -errno once it has died, which was logged: nothing is under way,
                                                 * and transfers pushed but not pulled belong to the reader again */
};

/* off_ring_open logs nothing: it returns -errno, and sets *why to a possible cause.  The ring can read fd[] and no
 * other file. */
int off_ring_open(struct off_mover **out, int depth, const int *fd, int n_fd, const char **why);
int off_pread_open(struct off_mover **out, int depth);

/* ---- a second copy: mirror.c ------------------------------------------------------------------------- */

int off_mirror_fd(const struct off_mirror *m, int file); /* -1: no copy of this file */
const char *off_mirror_path(const struct off_mirror *m, int file);
uint64_t off_mirror_bytes(const struct off_mirror *m, int file);       /* length of the copy */
bool off_mirror_lives(const struct off_mirror *m);                     /* false: dropped; any thread, as below */
void off_mirror_drop(struct off_mirror *m, int file, const char *why); /* drops all copies; logs why */
void off_mirror_count(struct off_mirror *m, size_t bytes);             /* adds bytes read from the copy */
uint64_t off_mirror_read(const struct off_mirror *m);                  /* total read from the copy; m may be NULL */

/* ---- jobs: io.c -------------------------------------------------------------------------------------
 *
 * A job reads a range of a file to memory.  Jobs are served by urgency: NOW, SOON, EARLY, IDLE; within one
 * urgency in the order of posting.  Only a few MiB of the lower urgencies are under way at any moment, so
 * that a NOW job never waits long. */

enum off_job_state { OFF_JOB_IDLE, OFF_JOB_QUEUED, OFF_JOB_READING, OFF_JOB_DONE };

struct off_job { /* caller's memory, unchanged until it is DONE */
    int file;
    uint64_t offset;
    size_t bytes;
    uint8_t *to; /* page-aligned, with space for whole pages */
    enum off_urgency urgency;

    atomic_int state; /* DONE is stored (release) after status and bytes */
    atomic_bool late; /* past its deadline: may be given up, but its memory is in use */
    int status;       /* 0 or a KN_E*, already logged */

    struct off_job *next; /* from here on: for io.c and reader.c */
    size_t begun;         /* bytes of the aligned range handed to transfers */
    int n_under_way;      /* transfers */
    bool plain;           /* some transfers used the page cache */
    bool mirrored;        /* some transfers read the second copy */
    uint64_t deadline_ns; /* for the next answer of the disk */
};

struct off_io;
struct off_io_options {
    enum off_io_kind kind;
    int depth;               /* transfers at a time; 0: the default */
    struct off_mover *mover; /* tests: use this one; owned */
};

int off_io_open(struct off_io **out, const struct off_files *files, const struct off_io_options *opt);
void off_io_close(struct off_io *io); /* waits for transfers, drops queued jobs */
void off_io_post(struct off_io *io, struct off_job *job);
bool off_io_cancel(struct off_io *io, struct off_job *job);     /* true: not begun, now IDLE */
void off_io_raise(struct off_io *io, struct off_job *job);      /* sets urgency NOW */
int off_io_await(struct off_io *io, const struct off_job *job); /* waits until DONE; returns status */

/* Each ended job, late job and nudge is an event.  off_io_wait returns the count once it exceeds `seen`. */
uint64_t off_io_events(struct off_io *io);
uint64_t off_io_wait(struct off_io *io, uint64_t seen);
void off_io_nudge(struct off_io *io);

const char *off_io_name(struct off_io *io); /* "io_uring", "pread"; a ring that dies becomes "pread" */

/* ---- an expert as jobs: place.c ----------------------------------------------------------------------- */

/* The reads that bring a matrix to its place: its rows (or codes), and its separate scales; bytes 0: no read. */
void off_place_jobs(const struct off_source *s, void *place, struct off_job *rows, struct off_job *scales);

#define OFF_JOBS (2 * OFF_MATRICES) /* per expert: rows of each matrix, then scales of each */

/* The place of matrix i that these jobs fill. */
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
bool off_reader_room(const struct off_reader *r, enum off_urgency u); /* space for one more transfer */
extern const size_t off_reader_most[OFF_URGENCIES]; /* limit of bytes under way, by urgency, plus one transfer */
bool off_reader_push(struct off_reader *r, struct off_job *job);    /* true: the whole job is handed to transfers */
struct off_job *off_reader_pull(struct off_reader *r, int *n_late); /* waits; returns ended jobs, linked */
struct off_job *off_reader_mend(struct off_reader *r); /* replaces a dead mover; returns jobs that this ended */
void off_reader_wake(struct off_reader *r);            /* any thread */
size_t off_reader_span(const struct off_job *job);     /* bytes of the aligned range */
const char *off_reader_name(const struct off_reader *r);

/* ---- policy: policy.c ------------------------------------------------------------------------------- */

/* Chooses experts to evict.  Groups are used in ascending order, cyclically; the probability that an expert is
 * used in its group's next turn is learnt from past turns.  No clock, no I/O; not thread-safe. */
struct off_policy;
int off_policy_open(struct off_policy **out, const struct off_expert *expert, int n_expert); /* sorted by group */
void off_policy_close(struct off_policy *p);
void off_policy_use(struct off_policy *p, const int32_t *expert, int n); /* records one turn of their group */

/* Expected turns (of any group) that keeping the expert occupies a slot per read saved: the expert with the largest
 * value is evicted first. */
float off_policy_wait(const struct off_policy *p, int32_t expert);

/* Turns from now to the next turn of its group, 1 .. number of groups. */
int off_policy_ahead(const struct off_policy *p, int32_t expert);

/* Share of about the last 16 turns of its group that used it, 0..1. */
float off_policy_heat(const struct off_policy *p, int32_t expert);

/* Share of its group's turns that used it, over a long time, 0..1; saved between runs. */
float off_policy_share(const struct off_policy *p, int32_t expert);
void off_policy_set_share(struct off_policy *p, int32_t expert, float share);

/* ---- recordings of fetches: trace.c ------------------------------------------------------------------- */

void off_trace_add(struct off_trace *t, const int32_t *expert, int n);

/* Misses of an optimal cache of n_slot slots, for the experts with counts[] true. */
int off_trace_least(const struct off_trace *t, const bool *counts /* [n_expert] */, int n_expert, int n_slot,
                    uint64_t *misses);

/* ---- pack files: pack.c --------------------------------------------------------------------------------
 *
 * A head, a table, and an extent for each expert.  The head has the model's id and the number of experts.  An
 * entry of the table has the place of one extent, the shapes of its matrices and its checksum.  Head and
 * entries have checksums of their own; an entry's includes the head's, so that an entry of another file is
 * detected.
 *
 *     0         head
 *     48        entries, one after another
 *     a page    extents: each begins at a page, and so does every matrix in it */

#define OFF_PACK_VERSION 1 /* of the file layout and of the interleaving of matrices */

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

/* Checksum.  A change within one 64-bit word is always detected. */
uint64_t off_check(const void *data, size_t bytes);

/* The checksum of an expert is that of its matrices' checksums, so that matrices can be verified in parallel. */
uint64_t off_check_expert(const uint64_t matrix[OFF_MATRICES]);

size_t off_panel_bytes(const struct off_source *s); /* of a matrix in an extent: whole pages */

/* Fills in head and entry as a valid file has them, byte for byte; offset: of the expert's extent. */
void off_pack_head(struct off_pack_head *out, uint64_t model_id, const struct off_expert *expert, int n_expert);
void off_pack_entry(struct off_pack_entry *out, const struct off_pack_head *head, const struct off_expert *e,
                    uint64_t offset, uint64_t check);

/* The number of leading entries that are valid; *next: the offset of the following extent. */
int off_pack_count(const struct off_pack_head *head, const struct off_expert *expert,
                   const struct off_pack_entry *table /* [n_expert] */, uint64_t *next);

struct off_extent {
    uint64_t offset;
    size_t bytes;
    uint64_t check;
}; /* bytes 0: not in the file */

/* Reads all bytes; false on any failure, which the caller logs. */
bool off_read_all(int fd, void *to, size_t bytes, uint64_t offset);

/* Opens a model's pack file.  *fd is -1 if the file does not exist or is not usable; the latter is logged.  Fails only
 * with KN_ENOMEM. */
int off_pack_open(int *fd, const char *path, uint64_t model_id, const struct off_expert *expert, int n_expert,
                  struct off_extent *extent /* [n_expert] */);

/* ---- usage statistics between runs: heat.c ---------------------------------------------------------- */

bool off_heat_read(const char *path, uint64_t model_id, float *share /* [n] */, int n); /* false: no valid file */
void off_heat_write(const char *path, uint64_t model_id, const float *share, int n);

#endif
