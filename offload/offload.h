/* offload/offload.h - reads weights from disk, and keeps experts in memory.
 *
 * Dense weights are read once, when the model opens (off_load).  Experts live in a store.  An expert is a
 * number with one to three matrices.  The caller lists the experts that it is about to use, and the store
 * returns their addresses.  The store knows nothing of routers or tokens, only that experts belong to groups
 * (one per layer), and that groups are used in ascending order, over and over.  One use of a group is a turn.
 *
 *     off_store_open -> [ off_fetch -> (off_wait -> use)* until all are handed out -> off_release ]* -> off_store_close
 *
 * Tiers: device (experts that the caller copies there), host memory by node, disk.  Host memory has slots for as many experts as its
 * bytes allow; other experts are read on request.  Cached experts are handed out first, so that the caller
 * computes with them while others are read.  policy.c chooses the experts to evict.  At any time a ticket has slots for
 * at most a small number (the window) of experts that were read and not used yet; so a layer that needs many experts
 * does not evict as many of other layers.
 *
 * One I/O thread reads all files, with O_DIRECT and io_uring where the system allows them.  An expert is read
 * straight into its slot in file layout; the team of the waiting caller interleaves it there.
 *
 * off_fetch, off_wait and off_release may be called from several threads at once (several contexts share a
 * model); one ticket is used by one thread at a time. */
#ifndef OFFLOAD_OFFLOAD_H
#define OFFLOAD_OFFLOAD_H

#include <stdatomic.h>

#include "kernels/device.h"

/* A strided permutation of units (rows or parts of rows) in a file.  Bytes before `first` of the matrix are in order.
 * From there on, each group of n units has in the file units 0, by, 2 * by, ..., then units 1, by + 1, 2 * by + 1, ...,
 * and so on: unit i of the group is at position off_stored_index(i) in it. */
struct off_stride_permutation {
    uint64_t first;
    size_t bytes; /* of a unit */
    int n, by;    /* n 0: no permutation; else the matrix has whole groups of n, and by divides n */
};

static inline int off_stored_index(const struct off_stride_permutation *t,
                                   int meant) /* index of a unit in its group, in logical order */
{
    return meant % t->by * (t->n / t->by) + meant / t->by;
}

/* Order of codes that are separate from their scales: row by row, or by input as in struct kn_columns. */
enum off_order { OFF_BY_ROW, OFF_BY_INPUT, OFF_BY_INPUT_AWQ, OFF_BY_INPUT_LISTED };

/* Scales in a tensor separate from the codes: one for each `rows` by `values` weights, stored row by row and permuted as
 * `turn` says.  If codes are stored by input, one for each row and `values` inputs, by input too; with zero points in a
 * third tensor if the format has any (struct kn_columns). */
struct off_scales {
    int file;
    uint64_t offset;
    int bytes, rows, values; /* bytes: of one scale; 0: the codes' blocks include scales */
    enum off_order order;
    struct off_stride_permutation turn;
    int zero_file, zero_less;
    uint64_t zero_offset;
    int list_file; /* LISTED: the group of each input, in 32 bits.  Such a matrix is not placed: its reader decodes it */
    uint64_t list_offset;
};

/* A matrix in a file: rows in file layout, at any offset. */
struct off_source {
    int file; /* index into off_files */
    uint64_t offset;
    enum kn_format format;
    int n_out, n_in;
    float scale; /* factor of all weights; 1 unless the model states one (struct kn_mat) */
    struct off_stride_permutation
        turn; /* n 0: none; only of dense matrices.  With separate scales, of the codes; if these
                                         * are stored by input, `bytes` and `first` count rows */
    struct off_scales scales;
};

struct off_files { /* opened by the caller; they must outlive the store */
    int n_file;
    const int *fd;
    const char *const *path;
    struct off_mirror *mirror; /* second copy of these files, or NULL */
};

/* A second copy of the files on another drive, in dir, under the same names.  It may lack files, and a file in it may
 * be only the beginning of the original.  Ranges that both copies have are read from both drives, in proportion to
 * their speeds.  After an error of the second copy, which is logged once, all reads go to the first.  pack_path: pack
 * file of the store (off_store_options), or NULL.  Fails only with KN_ENOMEM. */
struct off_mirror;
int off_mirror_open(struct off_mirror **out, const char *dir, const struct off_files *files, const char *pack_path);
void off_mirror_close(struct off_mirror *m); /* after all readers have closed; NULL is allowed */

/* Bytes read so far, for another thread to watch.  That thread may set stop: off_load then ends with KN_ECANCELLED and
 * logs nothing; off_pack ignores it (see off_pack_options).  off_pack sets total_bytes, off_load does not. */
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
    uint8_t *scratch; /* [team size][scratch_bytes] */
    size_t
        scratch_bytes; /* at least off_scratch_bytes() of each matrix; its n_thread: off_load team size, off_wait 1 */
};

/* A matrix to load.  place: page-aligned memory of off_place_bytes(); the matrix is read to it and interleaved
 * there. */
struct off_load {
    struct off_source source;
    void *place;
};

size_t off_file_bytes(const struct off_source *s);                  /* bytes in the files */
size_t off_place_bytes(const struct off_source *s);                 /* memory: whole pages, for any file offset */
size_t off_scratch_bytes(const struct off_source *s, int n_thread); /* per thread, if n_thread share the matrix */
void *off_place_panels(const struct off_source *s, void *place);    /* address of the panels */

/* Reads n matrices in the order of the files, and interleaves them; returns when all are done, or at the first error.  progress may be NULL. */
int off_load(const struct off_files *files, enum off_io_kind kind, const struct off_load *loads, int n,
             const struct off_hands *hands, struct off_progress *progress);

/* ---- the expert store -------------------------------------------------------------------------- */

/* Sizes of slots, ascending.  With more sizes than that, the largest of them is for all larger experts, and one between two sizes
 * uses the larger. */
#define OFF_SLOT_SIZES 8
struct off_sizes {
    int n;
    size_t bytes[OFF_SLOT_SIZES];
};
void off_sizes_add(struct off_sizes *s, size_t bytes);
/* Index of the size for an expert of so many bytes, which were added. */
int off_sizes_find(const struct off_sizes *s, size_t bytes);

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
    int n_beside;       /* the last n_beside experts (of MTP layers) are not in the heat and pack files */
    size_t slot_bytes;  /* memory for slots; at least off_store_least(); 0: for all experts */
    size_t later_bytes; /* most memory that the store can have beyond slot_bytes, by off_store_grow */
    enum off_io_kind io;
    const char *heat_path; /* usage statistics and checksums, loaded at open, saved at close; NULL: none */
    const char *pack_path; /* pack file to read experts from; NULL or no such file: from `files` */
    uint64_t model_id;     /* a heat or pack file of another model is not used */
};

/* Priority of a fetch.  NOW: the caller will wait for the experts.  SOON: prefetch; read only while no NOW read is
 * waiting, and may be evicted before use.  EARLY: prefetch for later turns, at lower priority, and only while enough of
 * the bytes read EARLY turn out to be used.  IDLE: only for the store itself, which fills empty slots. */
enum off_urgency { OFF_NOW, OFF_SOON, OFF_EARLY, OFF_IDLE, OFF_URGENCIES };
enum off_tier { OFF_DISK, OFF_HOST, OFF_DEVICE };

/* Addresses of an expert's matrices; read-only; valid until the next off_wait on the ticket, or its release. */
struct off_view {
    struct kn_mat matrix[OFF_MATRICES];
    enum off_tier tier;
    int node;
};

/* One fetch.  The caller owns the ticket, expert[] and mark[], and must not change them until the release. */
struct off_ticket {
    const int32_t *expert;     /* [n] distinct, of one group */
    uint8_t *mark;             /* [n] state of each expert, written by the store */
    int n, n_given, n_missing; /* experts: all, handed out so far, still without a slot */
    enum off_urgency urgency;
    struct off_ticket *next; /* list link of the store */
};

/* The fields before n_slot, mirror_bytes and damaged_reads are counters that only rise: a prefetch is counted once it can
 * no longer be cancelled.  The other fields are the present state. */
struct off_stats {
    uint64_t hits, misses;          /* experts fetched NOW: cached; not cached, or still being read */
    uint64_t read_bytes, reads;     /* reads of experts from files: bytes, number of experts */
    uint64_t soon_reads, soon_hits; /* experts prefetched, SOON or EARLY; of these, fetched NOW before eviction */
    uint64_t wasted_bytes;          /* prefetched, SOON or EARLY, and evicted unused */
    uint64_t early_bytes, early_used_bytes, early_wasted_bytes; /* of EARLY prefetches: read, used, evicted unused */
    uint64_t stall_ns, repack_ns; /* time in off_wait: waiting for reads; interleaving and verifying */
    uint64_t n_slot, n_empty, n_expert;
    uint64_t mirror_bytes;  /* bytes of all reads that came from the second copy */
    uint64_t damaged_reads; /* reads of experts with a wrong checksum */
    uint64_t n_packed;      /* experts that are read from the pack file, whether or not they were read already */
    bool filling;           /* the filler still fills empty slots */
    uint64_t slot_bytes, pinned_bytes; /* memory of the slots; of it, pinned for a device (off_store_pin) */
    bool pinning, pin_refused;         /* more will be pinned; the device has refused to pin more */
    bool changed; /* size or bytes of the model's files are not those at the open, or at the first read */
};

/* A recording of NOW fetches: for each fetch the number of its experts, then their numbers.  The caller owns item. */
struct off_trace {
    int32_t *item;
    size_t n, room;
    bool full;
}; /* item: [room], n of them used; full: a fetch did not fit and was left out */

int off_store_open(struct off_store **out, const struct off_store_options *opt);
void off_store_close(struct off_store *s);                             /* NULL and half-open stores are allowed */
size_t off_store_bytes(const struct off_expert *expert, int n_expert); /* slot memory for all experts */
size_t off_store_least(const struct off_expert *expert, int n_expert); /* smallest slot memory that works */
bool off_store_is_whole(struct off_store *s); /* each expert has a slot of its own, filled or being filled */
/* Adds memory for slots, which are empty.  Beyond later_bytes of off_store_options, no slots are added.  This and off_store_shrink:
 * one thread at a time. */
void off_store_grow(struct off_store *s, size_t bytes);
/* Takes back `bytes` of memory that off_store_grow added.  The experts in these slots are evicted, and their memory goes back to
 * the system.  False, and no slot is taken away, if one of them is in use: call it again later.  Reads in progress end soon, and
 * prefetches that have not begun are cancelled.  It stays false once one of the slots is pinned for a device. */
bool off_store_shrink(struct off_store *s, size_t bytes);
/* Pins the memory of slots for a device that copies experts from there, in the background, as far as the device allows; one
 * line says how much that was.  The first call counts; the device must outlive the store. */
void off_store_pin(struct off_store *s, const struct kn_device *device);
/* How often experts first .. first + n - 1 were used: the share of about the last 256 turns of their groups, also of earlier runs
 * that the heat file knows; 0: never, or nothing is known. */
void off_store_shares(struct off_store *s, int32_t first, int n, float *out /* [n] */);
/* Experts first .. first + n - 1 will not be used again: they are rated as almost never used, so are evicted early. */
void off_store_forget(struct off_store *s, int32_t first, int n);
const char *off_store_io(const struct off_store *s); /* "io_uring", "pread" */

/* Requests n distinct experts of one group, and starts reads of those that are not cached, as far as the window allows
 * and slots can be evicted; does not wait.  NOW: this is the group's turn.  expert and mark, [n], stay in use until the
 * release. */
void off_fetch(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, enum off_urgency urgency,
               struct off_ticket *out);

/* The same with urgency NOW, for the first n of n_used experts.  The caller has the others elsewhere, on a device: they count
 * as used in this turn, so the heat file rates them as hot, and need no slot: a slot that still has one of them is the first
 * to be evicted. */
void off_fetch_now(struct off_store *s, const int32_t *expert /* [n_used] */, uint8_t *mark, int n, int n_used,
                   struct off_ticket *out);

/* The same for rows of a draft: those of the experts that are in memory; none is read, and off_wait() does not hand out the
 * others.  It is no turn: nothing counts as used, hit or missed, so that eviction, the heat file and the hit rate are those of the
 * passes that count.  held[i]: expert[i] is in memory. */
void off_fetch_draft(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, bool *held /* [n] */,
                     struct off_ticket *out);

/* The caller has the expert elsewhere from now on, or no longer: between turns. */
void off_store_elsewhere(struct off_store *s, int32_t expert, bool elsewhere);

/* An expert that the caller has elsewhere, and gives up there, comes back to memory: the caller writes its matrices to
 * view->matrix and then calls off_store_brought_back(); until then a fetch of the expert waits.  The expert takes the slot of
 * expert `left`, which the ticket has been handed and no longer has, unless another ticket uses that slot; or a slot that is empty
 * or has another expert that is elsewhere.  left -1: none.  False: the store has the expert, or no such slot of its size that a
 * device may copy to. */
bool off_store_bring_back(struct off_store *s, struct off_ticket *t, int32_t left, int32_t expert,
                          struct off_view *view);
/* done false: its bytes are not there; it is read for tickets that wait for it. */
void off_store_brought_back(struct off_store *s, int32_t expert, bool done);

/* Waits until at least one more expert of the ticket is usable, and hands out usable ones: view[i] has the addresses of
 * expert t->expert[index[i]].  A cached expert is usable at once.  Addresses from the previous call become invalid.
 * While some of the ticket's experts have no slot yet, at most half a window of experts (store.h) is handed out at a
 * time, so that slots come back while others are computed.  Returns the number of experts, 0 when all have been handed
 * out.  An expert that could not be read has status[i] < 0 and no address.  The ticket must be NOW; index, view,
 * status: [n]. */
int off_wait(struct off_store *s, struct off_ticket *t, const struct off_hands *hands, int32_t *index,
             struct off_view *view, int *status);

void off_release(struct off_store *s, struct off_ticket *t); /* also cancels its prefetches that have not begun */

/* Writes to out those of the n experts that are neither cached nor being read, and returns their number.  An expert
 * whose read is queued but has not begun is among them.  out: [n], may be `expert` itself. */
int off_store_absent(struct off_store *s, const int32_t *expert, int n, int32_t *out);

/* Sets there[i] to whether expert first + i is in memory: a fetch of it would not wait for the disk. */
void off_store_present(struct off_store *s, int32_t first, int n, bool *there);

/* off_store_record: adds every later NOW fetch to t, until called with NULL; t->full is set when t has no space left.
 * off_store_least_read: bytes that two caches with this store's slots would have read for the fetches in t: an optimal
 * one (Belady), and the best without foresight, which knows how often each expert is used in t and not when; 0 or
 * KN_ENOMEM. */
void off_store_record(struct off_store *s, struct off_trace *t);
struct off_least {
    uint64_t optimal_bytes, by_share_bytes;
};
int off_store_least_read(struct off_store *s, const struct off_trace *t, struct off_least *out);

void off_stats_get(struct off_store *s, struct off_stats *out);

/* State of an expert, for displays.  coming: its read is queued or under way.  heat: share of about the last 16 turns
 * of its group that used it. */
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
 * another.  So an expert is one read and needs no work but to verify its checksum.  off_pack writes
 * the file as path.part, one batch of experts at a time; a batch counts once it is on the disk.  After an
 * interruption the next call continues with the first missing batch.  The complete file is renamed to path. */

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
    const atomic_bool *stop;       /* may be NULL; when true: off_pack ends after the current batch (KN_ECANCELLED) */
};

struct off_packed {
    int n_expert, n_before;
    uint64_t file_bytes;
}; /* experts in the file, and how many of them earlier calls packed */

int off_pack(const char *path, const struct off_pack_options *opt, struct off_packed *out);

#endif
