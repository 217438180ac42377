/* offload/offload.h - where weights live, and how they get here.
 *
 * Two things come from disk.  Dense weights are read once, when the model opens.  Experts live in a
 * store: an expert is a number, with one to three matrices; the caller says which experts it is about to
 * use and the store answers with addresses.  It knows nothing of routers or tokens; all it is told is
 * that experts come in groups (a layer's) which are used in turn, over and over.
 *
 *     off_store_open -> [ off_fetch -> (off_wait -> use)* until all were there -> off_release ]* -> close
 *
 * Tiers: device, host memory by node, disk.  The store has slots for as many experts as its bytes allow,
 * two at least; the rest are read when asked for.  What is there is handed out first, so that it is
 * computed while the rest arrives; who goes to make room is policy.c's to say.
 *
 * One I/O thread reads, with O_DIRECT where the file system allows it, by io_uring where the system
 * allows that.  Bytes land where they stay, as they are in the file, and the waiting caller's team
 * interleaves them.
 *
 * fetch, wait and release may be called from several threads at once (several contexts share a model). */
#ifndef OFFLOAD_OFFLOAD_H
#define OFFLOAD_OFFLOAD_H

#include <stdatomic.h>

#include "kernels/kernels.h"

/* Units of bytes, rows or parts of rows, that lie in another order than they are meant.  From byte `first`
 * of a matrix on, of each n of them first those meant 0th, by-th, 2 by-th .. lie, then the 1st, (by + 1)-th .. */
struct off_turn {
    uint64_t first;
    size_t bytes;                               /* of a unit */
    int n, by;                                  /* n 0: they are in order; else whole n, and by divides n */
};

static inline int off_turned(const struct off_turn *t, int meant)      /* where of the n it lies */
{
    return meant % t->by * (t->n / t->by) + meant / t->by;
}

/* Scales that lie apart from a matrix's codes: one for each so many rows by values, row by row.  Or, for each row and
 * so many values, with their inputs first, as then the codes do too (kn_join_columns). */
struct off_scales {
    int file;
    uint64_t offset;
    int bytes, rows, values;                    /* bytes: of one; 0: they are with the codes */
    bool by_input;
};

/* A matrix in a file: rows in file layout, anywhere. */
struct off_source {
    int file;                                   /* index into off_files */
    uint64_t offset;
    enum kn_format format;
    int n_out, n_in;
    struct off_turn turn;                       /* not of experts' matrices, nor of one with scales apart */
    struct off_scales scales;
};

struct off_files {                              /* opened by the caller, who outlives the store */
    int n_file;
    const int *fd;
    const char *const *path;
    struct off_mirror *mirror;                  /* of these, or NULL */
};

/* A second copy of the files on another drive, in dir, by the same names: all of them or some, whole or cut short.
 * What both have is read from both, as much from each as it gives; nothing depends on it, and what is wrong with it is
 * said once.  pack_path: as the store's.  Fails only for want of memory. */
struct off_mirror;
int  off_mirror_open(struct off_mirror **out, const char *dir, const struct off_files *files, const char *pack_path);
void off_mirror_close(struct off_mirror *m);    /* after all who read; NULL is fine */

/* Bytes brought so far, for who watches in another thread, and may say that it is enough: what is under way
 * then ends with KN_ECANCELLED, and nothing is said. */
struct off_progress { atomic_uint_fast64_t done_bytes, total_bytes; atomic_bool stop; };

/* How files are read. */
enum off_io_kind { OFF_IO_AUTO, OFF_IO_URING, OFF_IO_PREAD };

/* Who interleaves what has landed: a team, and scratch for each of its threads. */
struct off_hands {
    const struct kn_ops *ops;
    struct kn_team *team;
    uint8_t *scratch;                           /* [team size][scratch_bytes] */
    size_t scratch_bytes;                       /* off_scratch_bytes() of the largest, or more */
};

/* A matrix is read to its place and interleaved there: off_place_bytes() at a whole page. */
struct off_load { struct off_source source; void *place; };

size_t off_file_bytes(const struct off_source *s);      /* as it lies in files */
size_t off_place_bytes(const struct off_source *s);     /* whole pages, enough for any offset */
size_t off_scratch_bytes(const struct off_source *s, int n_thread);     /* of each of so many, at one matrix */
void  *off_place_panels(const struct off_source *s, void *place);       /* where the matrix will be */

int off_load(const struct off_files *files, enum off_io_kind kind, const struct off_load *loads, int n,
             const struct off_hands *hands, struct off_progress *progress);

/* ---- the expert store -------------------------------------------------------------------------- */

struct off_store;                               /* owns slots */

#define OFF_MATRICES 3                          /* gate, up, down */

struct off_expert {
    struct off_source matrix[OFF_MATRICES];
    int group;                                  /* groups are used in ascending order and round again */
};

struct off_store_options {
    struct off_files files;
    const struct off_expert *expert;            /* [n_expert]; copied */
    int n_expert;
    int n_beside;                               /* the last so many are not in the two files below */
    size_t slot_bytes;                          /* for slots; at least off_store_least(), 0: for all */
    size_t later_bytes;                         /* that off_store_grow may add */
    enum off_io_kind io;
    const char *heat_path;                      /* what is learnt is kept there; NULL: nowhere */
    const char *pack_path;                      /* experts are read from there; NULL or no such file: as listed */
    uint64_t model_id;                          /* whose both are */
};

/* NOW: somebody will wait.  SOON: read when nothing is needed now; may be dropped.  EARLY: the same behind it, and
 * as long as what was read so is of use. */
enum off_urgency { OFF_NOW, OFF_SOON, OFF_EARLY, OFF_IDLE, OFF_URGENCIES };
enum off_tier { OFF_DISK, OFF_HOST, OFF_DEVICE };

/* Read-only; valid until the ticket's next wait or its release. */
struct off_view { struct kn_mat matrix[OFF_MATRICES]; enum off_tier tier; int node; };

/* What one fetch asked for.  Caller's memory; so is expert[], which outlives the ticket. */
struct off_ticket {
    const int32_t *expert;                      /* [n] distinct, of one group */
    uint8_t *mark;                              /* [n] the store's notes */
    int n, n_given, n_missing;
    enum off_urgency urgency;
    struct off_ticket *next;                    /* the store's */
};

/* Counts only rise: what is read ahead is counted once it can no longer be given up. */
struct off_stats {
    uint64_t hits, misses;                      /* experts asked for NOW: there already, or not */
    uint64_t read_bytes, reads;                 /* of files, for experts */
    uint64_t soon_reads, soon_hits;             /* read ahead, and of these asked for before they went */
    uint64_t wasted_bytes;                      /* read ahead and gone unused */
    uint64_t early_bytes, early_used_bytes, early_wasted_bytes;     /* what of all this was EARLY: read, used, gone */
    uint64_t stall_ns, repack_ns;               /* waiting with nothing to compute; interleaving, verifying */
    uint64_t n_slot, n_empty, n_expert;
    uint64_t mirror_bytes;                      /* of all that was read, from the second copy */
    uint64_t n_packed;                          /* experts that are read from the pack file */
    bool filling;                               /* empty slots are being filled */
};

/* What was asked for, while it is recorded: the number of experts of a turn, then which, and so on. */
struct off_trace { int32_t *item; size_t n, room; bool full; };         /* item: [room], the caller's */

int    off_store_open(struct off_store **out, const struct off_store_options *opt);
void   off_store_close(struct off_store *s);    /* NULL and half-open stores are fine */
size_t off_store_bytes(const struct off_expert *expert, int n_expert);  /* slots for all of them */
size_t off_store_least(const struct off_expert *expert, int n_expert);  /* the least that works */
bool   off_store_is_whole(struct off_store *s);         /* every expert is there or on its way, to stay */
/* So much more memory is theirs from now on, in all no more than later_bytes. */
void   off_store_grow(struct off_store *s, size_t bytes);
/* Nobody will ask for these experts, of one group, any more: their slots go first. */
void   off_store_forget(struct off_store *s, int32_t first, int n);
const char *off_store_io(const struct off_store *s);    /* "io_uring", "pread" */

/* Starts bringing n distinct experts of one group in.  NOW: this is the group's turn.  mark: [n] of the
 * caller's, untouched until the release. */
void off_fetch(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, enum off_urgency urgency,
               struct off_ticket *out);

/* Waits until at least one more expert can be used, and hands out all that can, those first that were
 * there: index[i] says which of the ticket's experts view[i] is.  What was handed out before is taken
 * back.  Returns how many; 0 when all were given; an expert that could not be read is handed out with
 * status[i] < 0. */
int off_wait(struct off_store *s, struct off_ticket *t, const struct off_hands *hands, int32_t *index,
             struct off_view *view, int *status);

void off_release(struct off_store *s, struct off_ticket *t);    /* also drops what has not been begun */

/* Those of the list that would have to be read: neither here nor on their way.  Returns how many; out: [n], may
 * be the list itself. */
int off_store_absent(struct off_store *s, const int32_t *expert, int n, int32_t *out);

/* Records every fetch NOW from here on, until NULL; full is set when there was no room for one.  Least: the
 * bytes that a cache of this size would have read for it had it known the future. */
void off_store_record(struct off_store *s, struct off_trace *t);
int  off_store_least_read(struct off_store *s, const struct off_trace *t, uint64_t *bytes);

void off_stats_get(struct off_store *s, struct off_stats *out);

/* An expert, for who wants to see where they all are.  heat: the share of its group's last turns, 16 or
 * so, that used it. */
struct off_spot { int32_t group; enum off_tier tier; bool coming; float heat; };    /* coming: being read */

/* All of them as they are at one moment: [n_expert].  It takes as long as copying them does. */
void off_store_look(struct off_store *s, struct off_spot *out);

/* ---- pack files ----------------------------------------------------------------------------------
 *
 * A file beside the model that holds its experts as slots do: interleaved, the matrices of each one after
 * another, so that an expert is one read and nothing is left to do but to verify its checksum, once.  It
 * grows under another name, path.part, one group of experts after another, each on the disk before it
 * counts; whatever ends it, the next call goes on from there. */

struct off_pack_options {
    struct off_files files;
    const struct off_expert *expert;            /* [n_expert] */
    int n_expert;
    uint64_t model_id;
    enum off_io_kind io;
    const struct kn_ops *ops;
    struct kn_team *team;
    size_t group_bytes;                         /* of memory; it takes two; 0: the usual */
    struct off_progress *progress;              /* may be NULL */
    const atomic_bool *stop;                    /* may be NULL; once true, it ends after the group at hand */
};

struct off_packed { int n_expert, n_before; uint64_t file_bytes; };     /* n_before: done by earlier calls */

int off_pack(const char *path, const struct off_pack_options *opt, struct off_packed *out);

#endif
