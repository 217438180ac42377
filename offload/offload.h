/* offload/offload.h - reads weights from disk, and keeps experts in memory.
 *
 * Dense weights are read once, when the model opens (off_load).  Experts live in a store.  An expert is a
 * number with one to three matrices.  The caller lists the experts that it is about to use, and the store
 * returns their addresses.  The store knows nothing of routers or tokens, only that experts belong to groups
 * (one per layer), and that groups are used in turn, over and over.
 *
 *     off_store_open -> [ off_fetch -> (off_wait -> use)* until all are handed out -> off_release ]* -> close
 *
 * Tiers: device, host memory by node, disk.  The store has slots for as many experts as its bytes allow, at
 * least two; other experts are read on request.  Cached experts are handed out first, so that the caller
 * computes with them while others are read.  policy.c chooses the experts to evict.
 *
 * One I/O thread reads all files, with O_DIRECT and io_uring where the system allows them.  An expert is read
 * straight into its slot in file layout; the team of the waiting caller interleaves it there.
 *
 * fetch, wait and release may be called from several threads at once (several contexts share a model); one
 * ticket is used by one thread at a time. */
#ifndef OFFLOAD_OFFLOAD_H
#define OFFLOAD_OFFLOAD_H

#include <stdatomic.h>

#include "kernels/kernels.h"

/* A strided permutation of units (rows or parts of rows) in a file.  From byte `first` of the matrix on, each group of
 * n units holds logical units 0, by, 2 by .. first, then 1, by + 1, ..: unit i is at position off_stored_index(i). */
struct off_stride_permutation {
    uint64_t first;
    size_t bytes; /* of a unit */
    int n, by;    /* n 0: no permutation; else whole groups of n; by divides n */
};

static inline int off_stored_index(const struct off_stride_permutation *t,
                                   int meant) /* position of a logical unit in its group */
{
    return meant % t->by * (t->n / t->by) + meant / t->by;
}

/* Scales in a tensor separate from the codes: one for each `rows` by `values` weights, row by row.  by_input: one for
 * each row and `values` inputs, stored by input, as the codes then are too (kn_join_columns). */
struct off_scales {
    int file;
    uint64_t offset;
    int bytes, rows, values; /* bytes: of one scale; 0: the codes' blocks include scales */
    bool by_input;
};

/* A matrix in a file: rows in file layout, at any offset. */
struct off_source {
    int file; /* index into off_files */
    uint64_t offset;
    enum kn_format format;
    int n_out, n_in;
    struct off_stride_permutation turn; /* only for dense matrices without separate scales */
    struct off_scales scales;
};

struct off_files { /* opened by the caller; they must outlive the store */
    int n_file;
    const int *fd;
    const char *const *path;
    struct off_mirror *mirror; /* second copy of these files, or NULL */
};

/* A second copy of the files on another drive, in dir, under the same names.  It may lack files, and a file may be
 * only the beginning of the original.  Ranges in both copies are read from both drives, in proportion to their speeds.
 * Errors of the copy are logged once and cost only speed.  pack_path: as for the store.  Fails only with KN_ENOMEM. */
struct off_mirror;
int off_mirror_open(struct off_mirror **out, const char *dir, const struct off_files *files, const char *pack_path);
void off_mirror_close(struct off_mirror *m); /* after all readers have closed; NULL is allowed */

/* Bytes read so far, for another thread to watch.  That thread may set stop: off_load then ends with KN_ECANCELLED and
 * logs nothing.  total_bytes is set by off_pack, but not by off_load. */
struct off_progress {
    atomic_uint_fast64_t done_bytes, total_bytes;
    atomic_bool stop;
};

/* System interface for reading; AUTO: io_uring if the system allows it. */
enum off_io_kind { OFF_IO_AUTO, OFF_IO_URING, OFF_IO_PREAD };

/* The threads that interleave matrices after reading, with scratch memory for each. */
struct off_hands {
    const struct kn_ops *ops;
    struct kn_team *team;
    uint8_t *scratch;     /* [team size][scratch_bytes] */
    size_t scratch_bytes; /* at least off_scratch_bytes() of the largest matrix */
};

/* A matrix to load.  place: page-aligned, off_place_bytes(); the matrix is read and interleaved there. */
struct off_load {
    struct off_source source;
    void *place;
};

size_t off_file_bytes(const struct off_source *s);                  /* bytes in the files */
size_t off_place_bytes(const struct off_source *s);                 /* whole pages, enough for any file offset */
size_t off_scratch_bytes(const struct off_source *s, int n_thread); /* per thread, n_thread on one matrix */
void *off_place_panels(const struct off_source *s, void *place);    /* address of the panels */

/* Reads and interleaves n matrices; returns when all are done, or at the first error.  progress may be NULL. */
int off_load(const struct off_files *files, enum off_io_kind kind, const struct off_load *loads, int n,
             const struct off_hands *hands, struct off_progress *progress);

/* ---- the expert store -------------------------------------------------------------------------- */

struct off_store; /* owns the slots, the I/O thread and the helper threads */

#define OFF_MATRICES 3 /* gate, up, down */

struct off_expert {
    struct off_source matrix[OFF_MATRICES];
    int group; /* groups are used in ascending order, cyclically */
};

struct off_store_options {
    struct off_files files;
    const struct off_expert *expert; /* [n_expert], ascending by group; copied */
    int n_expert;
    int n_beside;       /* the last n_beside experts are not in the heat and pack files */
    size_t slot_bytes;  /* memory for slots; at least off_store_least(); 0: for all experts */
    size_t later_bytes; /* memory that off_store_grow may add later */
    enum off_io_kind io;
    const char *heat_path; /* usage statistics, loaded at open, saved at close; NULL: none */
    const char *pack_path; /* pack file to read experts from; NULL or no such file: from `files` */
    uint64_t model_id;     /* both files must belong to this model */
};

/* Priority of a fetch.  NOW: the caller will wait for the experts.  SOON: prefetch; reads only while no NOW read is
 * waiting, may be evicted before use.  EARLY: prefetch for later turns, at lower priority, and only while enough of the
 * bytes read EARLY turn out to be used.  IDLE: the store fills empty slots. */
enum off_urgency { OFF_NOW, OFF_SOON, OFF_EARLY, OFF_IDLE, OFF_URGENCIES };
enum off_tier { OFF_DISK, OFF_HOST, OFF_DEVICE };

/* Addresses of an expert's matrices; read-only; valid until the ticket's next wait or its release. */
struct off_view {
    struct kn_mat matrix[OFF_MATRICES];
    enum off_tier tier;
    int node;
};

/* One fetch.  The caller owns the ticket, expert[] and mark[], and must not change them until the release. */
struct off_ticket {
    const int32_t *expert; /* [n] distinct, of one group */
    uint8_t *mark;         /* [n] state of each expert, written by the store */
    int n, n_given, n_missing;
    enum off_urgency urgency;
    struct off_ticket *next; /* list link of the store */
};

/* Counters only rise: a prefetch is counted once it can no longer be cancelled. */
struct off_stats {
    uint64_t hits, misses;          /* experts fetched NOW: cached; not cached, or still being read */
    uint64_t read_bytes, reads;     /* of files, for experts */
    uint64_t soon_reads, soon_hits; /* experts prefetched; of these, fetched NOW before eviction */
    uint64_t wasted_bytes;          /* prefetched, evicted unused */
    uint64_t early_bytes, early_used_bytes, early_wasted_bytes; /* the EARLY part: read, used, evicted unused */
    uint64_t stall_ns, repack_ns; /* waits without work to do; interleaving and verifying */
    uint64_t n_slot, n_empty, n_expert;
    uint64_t mirror_bytes; /* bytes of all reads that came from the second copy */
    uint64_t n_packed;     /* experts read from the pack file */
    bool filling;          /* the filler still fills empty slots */
};

/* A recording of fetches: for each turn the number of its experts, then their numbers. */
struct off_trace {
    int32_t *item;
    size_t n, room;
    bool full;
}; /* item: [room]; full: turns were lost */

int off_store_open(struct off_store **out, const struct off_store_options *opt);
void off_store_close(struct off_store *s);                             /* NULL and half-open stores are allowed */
size_t off_store_bytes(const struct off_expert *expert, int n_expert); /* slot memory for all experts */
size_t off_store_least(const struct off_expert *expert, int n_expert); /* smallest slot memory that works */
bool off_store_is_whole(struct off_store *s); /* each expert has a slot of its own, filled or being filled */
/* Adds memory for slots; all additions together are at most later_bytes. */
void off_store_grow(struct off_store *s, size_t bytes);
/* Experts first .. first + n - 1, of one group, will not be used again: they are evicted first. */
void off_store_forget(struct off_store *s, int32_t first, int n);
const char *off_store_io(const struct off_store *s); /* "io_uring", "pread" */

/* Requests n distinct experts of one group, and starts reads of those that are not cached; does not wait.  NOW: this is
 * the group's turn.  expert and mark, [n], stay in use until the release. */
void off_fetch(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, enum off_urgency urgency,
               struct off_ticket *out);

/* Waits until at least one more expert of the ticket is usable, and hands out all usable ones, cached ones first:
 * view[i] has the addresses of expert t->expert[index[i]].  Addresses from the previous call become invalid.  Returns
 * the number of experts, 0 when all have been handed out.  An expert that could not be read has status[i] < 0 and no
 * address.  The ticket must be NOW; index, view, status: [n]. */
int off_wait(struct off_store *s, struct off_ticket *t, const struct off_hands *hands, int32_t *index,
             struct off_view *view, int *status);

void off_release(struct off_store *s, struct off_ticket *t); /* also cancels its reads not begun */

/* Writes to out the experts of the list that are neither cached nor being read, and returns their number; out: [n],
 * may be the list itself. */
int off_store_absent(struct off_store *s, const int32_t *expert, int n, int32_t *out);

/* off_store_record: adds every later NOW fetch to t, until called with NULL; t->full is set when t has no space left.
 * off_store_least_read: bytes that an optimal (Belady) cache of this size would have read for the recording. */
void off_store_record(struct off_store *s, struct off_trace *t);
int off_store_least_read(struct off_store *s, const struct off_trace *t, uint64_t *bytes);

void off_stats_get(struct off_store *s, struct off_stats *out);

/* State of an expert, for displays.  coming: it is being read.  heat: share of about the last 16 turns of its group
 * that used it. */
struct off_spot {
    int32_t group;
    enum off_tier tier;
    bool coming;
    float heat;
};

/* A snapshot of all experts at one moment: [n_expert].  Holds the store's lock while copying. */
void off_store_look(struct off_store *s, struct off_spot *out);

/* ---- pack files ----------------------------------------------------------------------------------
 *
 * A file beside the model that holds its experts as slots do: interleaved, the matrices of each expert one after
 * another.  So an expert is one read, and only its checksum is verified, once.  The file is written as path.part,
 * one batch of experts at a time; a batch counts once it is on the disk.  After an interruption the next call
 * continues with the first missing batch.  A complete file is renamed to path. */

struct off_pack_options {
    struct off_files files;
    const struct off_expert *expert; /* [n_expert] */
    int n_expert;
    uint64_t model_id;
    enum off_io_kind io;
    const struct kn_ops *ops;
    struct kn_team *team;
    size_t group_bytes;            /* memory per batch, used twice; 0: the default */
    struct off_progress *progress; /* may be NULL */
    const atomic_bool *stop;       /* may be NULL; set to true: stops after the current batch */
};

struct off_packed {
    int n_expert, n_before;
    uint64_t file_bytes;
}; /* n_before: packed by earlier calls */

int off_pack(const char *path, const struct off_pack_options *opt, struct off_packed *out);

#endif
