/* offload/offload.h - where weights live, and how they get here.
 *
 * Two things come from disk.  Dense weights are read once, when the model opens.  Experts live in a
 * store: an expert is a number, with one to three matrices; the caller says which experts it is about to
 * use and the store answers with addresses.  It knows nothing of routers, tokens or layers.
 *
 *     off_store_open -> [ off_fetch -> off_wait until all are there -> use -> off_release ]* -> close
 *
 * Tiers: device, host memory by node, disk.  Today every expert is read into host memory when the store
 * opens; the calls are those of a store that streams, so that their users need not change.
 *
 * Files are read with O_DIRECT where the file system allows it, in large aligned pieces, by a few
 * threads of their own, while the team repacks what has arrived into the interleaved layout.
 *
 * fetch, wait and release may be called from several threads at once (several contexts share a model). */
#ifndef OFFLOAD_OFFLOAD_H
#define OFFLOAD_OFFLOAD_H

#include <stdatomic.h>

#include "kernels/kernels.h"

/* A matrix in a file: rows in file layout, at a multiple of 8 as GGUF has them. */
struct off_source {
    int file;                                   /* index into off_files */
    uint64_t offset;
    enum kn_format format;
    int n_out, n_in;
};

struct off_files {                              /* opened by the caller, who outlives the store */
    int n_file;
    const int *fd;
    const char *const *path;
};

/* Bytes brought so far, for a progress bar in another thread. */
struct off_progress { atomic_uint_fast64_t done_bytes, total_bytes; };

/* Reads n matrices and interleaves each into its own memory (64-byte aligned, kn_mat_bytes()). */
struct off_load { struct off_source source; void *panels; };

int off_load(const struct off_files *files, const struct off_load *loads, int n,
             const struct kn_ops *ops, struct kn_team *team, struct off_progress *progress);

/* ---- the expert store -------------------------------------------------------------------------- */

struct off_store;                               /* owns slots */

#define OFF_MATRICES 3                          /* gate, up, down */

struct off_expert { struct off_source matrix[OFF_MATRICES]; };

struct off_store_options {
    struct off_files files;
    const struct off_expert *expert;            /* [n_expert]; copied */
    int n_expert;
    size_t host_bytes;                          /* 0: as much as it takes */
    const struct kn_ops *ops;
    struct kn_team *team;                       /* used during open only */
    struct off_progress *progress;              /* may be NULL */
};

enum off_urgency { OFF_NOW, OFF_SOON };         /* OFF_SOON may be dropped */
enum off_tier { OFF_DISK, OFF_HOST, OFF_DEVICE };

/* Read-only; valid until its release. */
struct off_view { struct kn_mat matrix[OFF_MATRICES]; enum off_tier tier; int node; };

/* What one fetch asked for.  Caller's memory; the arrays outlive the ticket. */
struct off_ticket {
    const int32_t *expert;                      /* [n] distinct */
    int n, n_given;                             /* n_given views have been handed out */
};

struct off_stats { uint64_t hits, reads, read_bytes, stall_ns; };

int    off_store_open(struct off_store **out, const struct off_store_options *opt);
void   off_store_close(struct off_store *s);    /* NULL and half-open stores are fine */
size_t off_store_bytes(const struct off_expert *expert, int n_expert);

/* Starts bringing n distinct experts in; they stay until released. */
int off_fetch(struct off_store *s, const int32_t *expert, int n, enum off_urgency urgency,
              struct off_ticket *out);

/* Waits until at least one more expert can be used, and hands out all that can, in order of arrival:
 * index[i] says which of the ticket's experts view[i] is.  Returns how many; 0 when all were given; an
 * expert that could not be read is handed out with status[i] < 0. */
int off_wait(struct off_store *s, struct off_ticket *t, int32_t *index, struct off_view *view,
             int *status);

void off_release(struct off_store *s, struct off_ticket *t);
void off_stats_get(const struct off_store *s, struct off_stats *out);

#endif
