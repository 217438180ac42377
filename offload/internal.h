/* offload/internal.h - what the files of offload/ share; nobody else includes it.
 *
 *     store.h     the expert store: which expert is where, and who waits for it; store.c, share.c, slots.c,
 *                 tickets.c, fill.c
 *     policy.c    which one goes when room is needed
 *     heat.c      what was learnt for that, from one run to the next
 *     trace.c     what was asked for, and how little of it had to be read
 *     pack.c      experts in a file of their own, as slots hold them; packer.c writes it
 *     load.c      dense weights: everything, once
 *     place.c     how a matrix lies in memory while it lands and after
 *     mirror.c    a second copy of the files: whether it is one
 *     io.c        the I/O thread: jobs in by urgency, out when they have ended
 *     reader.c    a job as transfers: from which drive, alignment, short reads, retries, deadlines
 *     ring.c, pread.c  transfers by io_uring, or by threads with pread where there is none */
#ifndef OFFLOAD_INTERNAL_H
#define OFFLOAD_INTERNAL_H

#include "offload/offload.h"

#define OFF_MAX_FILES 1024
#define OFF_PAGE      ((size_t)4096)

/* ---- places: place.c --------------------------------------------------------------------------------
 *
 * A matrix is read to where it stays.  Its bytes land at place + offset % OFF_PAGE, as O_DIRECT wants it,
 * and are then interleaved where they lie, panel by panel through a scratch panel: file rows and panels
 * of 16 rows take the same bytes, so a panel never reaches into rows that are still to come.  Scales that
 * lie apart land in front of their codes, in the room that panels will take with them. */

/* One thread's work; scratch is its own. */
void off_interleave(const struct kn_ops *ops, const struct off_source *s, void *place, void *scratch);

/* The same by the whole team, when one matrix is large. */
void off_interleave_team(const struct off_hands *hands, const struct off_source *s, void *place);

/* Puts rows that have been read into the order in which they are meant, before that. */
void off_turn_team(const struct off_hands *hands, const struct off_source *s, void *place);

size_t off_expert_bytes(const struct off_expert *e);    /* as it lies in its files */
size_t off_slot_bytes(const struct off_expert *e);      /* the places of all its matrices */

/* ---- transfers: ring.c, pread.c ---------------------------------------------------------------------
 *
 * A mover moves bytes from files to memory, as many transfers at a time as its depth says, and knows
 * nothing else.  One thread uses it, but for wake(). */

struct off_transfer {
    int fd;
    int file;                                   /* its index among those the mover was opened with */
    uint8_t *to;
    size_t bytes;
    uint64_t offset;
    int64_t result;                             /* bytes, or -errno */
    struct off_transfer *next;                  /* whoever holds it */
};

struct off_mover;
struct off_mover_ops {
    const char *name;
    void (*close)(struct off_mover *m);         /* nothing is under way */
    void (*push)(struct off_mover *m, struct off_transfer *t);          /* at most depth at a time */
    /* Waits for a transfer to end, for a wake or for the time (ns; 0: does not wait); returns those that
     * have ended, linked, or NULL. */
    struct off_transfer *(*pull)(struct off_mover *m, uint64_t wait_ns);
    void (*wake)(struct off_mover *m);          /* any thread: the pull under way or the next returns */
};
struct off_mover {                              /* what every mover begins with */
    const struct off_mover_ops *ops;
    int depth;
    int error;                                  /* -errno once it has died, which was said: nothing is under way any
                                                 * more, and what was pushed and not pulled is the reader's again */
};

/* The ring says nothing when it cannot be had: it returns -errno, and what that may come from in *why.
 * It can read fd[] and nothing else. */
int off_ring_open(struct off_mover **out, int depth, const int *fd, int n_fd, const char **why);
int off_pread_open(struct off_mover **out, int depth);

/* ---- a second copy: mirror.c ------------------------------------------------------------------------- */

int         off_mirror_fd(const struct off_mirror *m, int file);        /* -1: there is none */
const char *off_mirror_path(const struct off_mirror *m, int file);
uint64_t    off_mirror_bytes(const struct off_mirror *m, int file);     /* so many of the file's first bytes */
bool        off_mirror_lives(const struct off_mirror *m);               /* any thread, from here on */
void        off_mirror_drop(struct off_mirror *m, int file, const char *why);
void        off_mirror_count(struct off_mirror *m, size_t bytes);       /* that were read from it */
uint64_t    off_mirror_read(const struct off_mirror *m);                /* all of them; NULL: none */

/* ---- jobs: io.c -------------------------------------------------------------------------------------
 *
 * A job is a range of a file on its way to memory.  Those that are needed now go before those that will
 * be needed soon, these before those that fill idle time; within a rank in the order they were posted.
 * Only a little of the later ranks is under way at any moment, so that what is needed now never waits
 * long. */

enum off_job_state { OFF_JOB_IDLE, OFF_JOB_QUEUED, OFF_JOB_READING, OFF_JOB_DONE };

struct off_job {                                /* caller's memory, left alone until it is done */
    int file;
    uint64_t offset;
    size_t bytes;
    uint8_t *to;                                /* page-aligned, room for whole pages */
    enum off_urgency urgency;

    atomic_int state;                           /* DONE (release) after status and the bytes */
    atomic_bool late;                           /* past its deadline: may be given up, not its memory */
    int status;                                 /* 0 or a KN_E*, which has been said */

    struct off_job *next;                       /* from here on: io's and reader's */
    size_t begun;                               /* bytes of the aligned range that were handed out */
    int n_under_way;                            /* transfers */
    bool plain;                                 /* some went through the page cache */
    bool mirrored;                              /* some came from the second copy */
    uint64_t deadline_ns;                       /* for the next sign of life */
};

struct off_io;
struct off_io_options {
    enum off_io_kind kind;
    int depth;                                  /* transfers at a time; 0: the usual */
    struct off_mover *mover;                    /* tests: use this one; owned */
};

int  off_io_open(struct off_io **out, const struct off_files *files, const struct off_io_options *opt);
void off_io_close(struct off_io *io);           /* waits for what is under way, drops the rest */
void off_io_post(struct off_io *io, struct off_job *job);
bool off_io_cancel(struct off_io *io, struct off_job *job);     /* true: it was not begun, and is IDLE */
void off_io_raise(struct off_io *io, struct off_job *job);      /* now needed NOW */
int  off_io_await(struct off_io *io, const struct off_job *job);        /* until it is done: its status */

/* Every end, lateness and nudge is an event.  Wait returns once there have been more than `seen`. */
uint64_t off_io_events(struct off_io *io);
uint64_t off_io_wait(struct off_io *io, uint64_t seen);
void     off_io_nudge(struct off_io *io);

const char *off_io_name(struct off_io *io);             /* "io_uring", "pread"; the one may become the other */

/* ---- an expert as jobs: place.c ----------------------------------------------------------------------- */

/* The reads that bring a matrix to its place: of its rows, or codes, and of scales apart, else of nothing. */
void off_place_jobs(const struct off_source *s, void *place, struct off_job *rows, struct off_job *scales);

#define OFF_JOBS (2 * OFF_MATRICES)             /* of an expert: rows of each matrix, then scales of each */

/* The place of matrix i, which these bring. */
static inline uint8_t *off_place_of(const struct off_source *s, const struct off_job job[OFF_JOBS], int i)
{
    return job[s->scales.bytes ? OFF_MATRICES + i : i].to;
}

/* ---- reading: reader.c, for io.c ----------------------------------------------------------------------
 *
 * Used by the I/O thread alone, but for wake(); push() with the queue locked. */

struct off_reader;
int  off_reader_open(struct off_reader **out, const struct off_files *files,
                     const struct off_io_options *opt);
void off_reader_close(struct off_reader *r);    /* nothing is under way */
bool off_reader_idle(const struct off_reader *r);       /* nothing is under way */
bool off_reader_room(const struct off_reader *r, enum off_urgency u);   /* for one more transfer */
extern const size_t off_reader_most[OFF_URGENCIES];     /* bytes under way of each rank, and one transfer */
bool off_reader_push(struct off_reader *r, struct off_job *job);        /* true: all of it is handed out */
struct off_job *off_reader_pull(struct off_reader *r, int *n_late);     /* waits; jobs that ended, linked */
struct off_job *off_reader_mend(struct off_reader *r);  /* if its mover has died; the same; with the queue locked */
void off_reader_wake(struct off_reader *r);     /* any thread */
size_t off_reader_span(const struct off_job *job);      /* bytes of the aligned range */
const char *off_reader_name(const struct off_reader *r);

/* ---- policy: policy.c ------------------------------------------------------------------------------- */

/* Who goes when room is needed?  Groups are used in ascending order and round again; how likely each
 * expert is to be used in its group's next turn is learnt from what is seen.  Pure: no clock, no I/O. */
struct off_policy;
int  off_policy_open(struct off_policy **out, const struct off_expert *expert, int n_expert);   /* by group */
void off_policy_close(struct off_policy *p);
void off_policy_use(struct off_policy *p, const int32_t *expert, int n);    /* one turn of their group */

/* For how many turns (of any group) a slot would be taken, for each read that this is expected to save:
 * the one with the largest goes first. */
float off_policy_wait(const struct off_policy *p, int32_t expert);

/* How many turns from now its group's is. */
int off_policy_ahead(const struct off_policy *p, int32_t expert);

/* Its share of its group's last turns, 0..1. */
float off_policy_heat(const struct off_policy *p, int32_t expert);

/* Its share of all turns, 0..1, for what is kept between runs. */
float off_policy_share(const struct off_policy *p, int32_t expert);
void  off_policy_set_share(struct off_policy *p, int32_t expert, float share);

/* ---- recordings: trace.c ------------------------------------------------------------------------------ */

void off_trace_add(struct off_trace *t, const int32_t *expert, int n);

/* The misses of an optimal cache of n_slot slots for the experts that count. */
int off_trace_least(const struct off_trace *t, const bool *counts /* [n_expert] */, int n_expert, int n_slot,
                    uint64_t *misses);

/* ---- pack files: pack.c --------------------------------------------------------------------------------
 *
 * A head, a table and an extent for each expert.  The head says whose experts they are and how many; an
 * entry of the table says where one is, what it is made of, and its checksum.  Both are sealed by
 * checksums of their own, an entry with the head's in it, so that none can be another file's.
 *
 *     0         head
 *     48        entries, one after another
 *     a page    extents: each begins with a page, and so does every matrix in it */

#define OFF_PACK_VERSION 1                      /* of the file, and of how matrices are interleaved in it */

struct off_pack_head {                          /* little-endian, like all of it */
    char magic[8];
    uint32_t version, page_bytes;
    uint64_t model_id, file_bytes;
    uint32_t n_expert, n_matrix;
    uint64_t check;                             /* of what stands before it */
};
_Static_assert(sizeof(struct off_pack_head) == 48, "as it lies in the file");

struct off_pack_entry {
    uint64_t offset, bytes, check;              /* of the extent */
    struct { uint32_t gguf_type, n_out, n_in; } matrix[OFF_MATRICES];
    uint32_t zero;
    uint64_t seal;                              /* of what stands before it, and the head's check */
};
_Static_assert(sizeof(struct off_pack_entry) == 72, "as it lies in the file");

/* A change within one 64-bit word is always seen. */
uint64_t off_check(const void *data, size_t bytes);

/* An expert's is that of its matrices' checksums, so that matrices can be verified side by side. */
uint64_t off_check_expert(const uint64_t matrix[OFF_MATRICES]);

size_t off_panel_bytes(const struct off_source *s);     /* of a matrix in an extent: whole pages */

/* What a head and an entry must be, byte for byte; offset: where the expert's extent is. */
void off_pack_head(struct off_pack_head *out, uint64_t model_id, const struct off_expert *expert, int n_expert);
void off_pack_entry(struct off_pack_entry *out, const struct off_pack_head *head, const struct off_expert *e,
                    uint64_t offset, uint64_t check);

/* How many entries from the first on are as they must be, and where the extent of the next one is. */
int off_pack_count(const struct off_pack_head *head, const struct off_expert *expert,
                   const struct off_pack_entry *table /* [n_expert] */, uint64_t *next);

struct off_extent { uint64_t offset; size_t bytes; uint64_t check; };   /* bytes 0: not to be used */

/* Says nothing: whatever cannot be read is said as one thing, by the caller. */
bool off_read_all(int fd, void *to, size_t bytes, uint64_t offset);

/* Opens a model's pack file.  *fd -1: there is none, or it is not fit for use, which was said.  Fails only
 * for want of memory. */
int off_pack_open(int *fd, const char *path, uint64_t model_id, const struct off_expert *expert, int n_expert,
                  struct off_extent *extent /* [n_expert] */);

/* ---- what was learnt, between runs: heat.c ---------------------------------------------------------- */

bool off_heat_read(const char *path, uint64_t model_id, float *share /* [n] */, int n);  /* false: none */
void off_heat_write(const char *path, uint64_t model_id, const float *share, int n);

#endif
