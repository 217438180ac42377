/* offload/store.h - declarations shared by the files of the expert store; no other file includes it.
 *
 *     store.c     opening, closing, queries
 *     share.c     the number of slots per size and node
 *     slots.c     states of a slot, its reads, the choice of slots to evict
 *     verify.c    checksums of the experts that were read, and the choice of another copy
 *     tickets.c   fetch, wait, release; experts that come back from a device
 *     fill.c      threads that fill empty slots in idle time and allocate their memory; the first then watches files
 *     pin.c       a thread that pins the memory of slots for a device
 *
 * A slot goes empty -> reading -> raw -> claimed -> ready.  The matrices of an expert are read into the slot one
 * behind the other (raw); the first thread that waits for the expert claims the slot, interleaves them in place, and
 * verifies the checksum.
 * If an expert cannot be read, its slot is bad until every ticket that holds it has received the error.  If another
 * fetch joined while the failing read was under way, the expert is read once more for all of them, because the
 * second read may succeed.
 *
 * An expert in a pack file is one read and already interleaved, so it is only verified.  If it is damaged or unreadable,
 * this expert is read from the model's own files from then on.
 *
 * Slots of one size on one node form a pool, so that layers in larger formats do not make all slots large.  Every
 * pool has slots for the same share of its experts.  The experts of a group are spread over the nodes in turn, so
 * that a group's experts are near as many processors as possible.  An expert always uses the same node.
 *
 *   ticket    marks the state of each of its experts (enum mark in tickets.c): MISSING has no slot yet, HELD has a
 *             slot and is not handed out yet, GIVEN is in use, BACK is finished.  Missing experts get slots as soon
 *             as slots can be evicted: at once, or when handed-out experts come back.  So two slots per pool suffice.
 *   hold      a NOW ticket holds its experts: their slots cannot be evicted.  The experts of a SOON or EARLY ticket
 *             are only spared until its release: they are evicted if a NOW fetch finds no other slot, so that the NOW
 *             fetch never waits forever.
 *   elsewhere an expert that the caller has on a device is the first to be evicted.  If it loses its place there and has no slot,
 *             it comes back to one of an expert that is elsewhere, at best that of the one that took its place.
 *   window    an expert is passing from its read until the end of its first use.  A NOW ticket gets slots for at most
 *             `window` passing experts; its next ones are read when these have been used.  Otherwise a layer that uses
 *             nearly all of its experts would take a slot for each one at once, and evict as many of other layers.
 *   filling   while slots are empty, one thread reads the most probable experts, at the lowest priority.
 *   touching  the kernel clears memory at the first touch, which costs the I/O thread at least as long as the read
 *             itself.  Other threads touch slots in advance.
 *   pinning   a device copies pinned memory by itself.  A slot is pinned after it was touched, in pieces of several slots of a
 *             pool; the first slots of a pool are pinned.  It stays pinned until the store closes, with any expert; off_store_shrink
 *             does not take it away.
 *
 * One lock guards everything except slot contents.  The contents belong to the I/O thread while the slot is
 * reading and to the claiming thread while it is claimed; after that they are constant until eviction. */
#ifndef OFFLOAD_STORE_H
#define OFFLOAD_STORE_H

#include <pthread.h>

#include "offload/internal.h"

#define OFF_TOUCHERS 4
#define OFF_MAX_POOL (OFF_SLOT_SIZES * KN_NODES)

/* Knowledge of the checksum of an expert in the model's own files: none; from the pack file; learnt from a read that
 * used both copies; learnt or confirmed by a read of the first copy alone. */
enum off_known { OFF_KNOWN_NOT, OFF_KNOWN_PACKED, OFF_KNOWN_MIXED, OFF_KNOWN_OWN };

enum slot_state { SLOT_EMPTY, SLOT_READING, SLOT_RAW, SLOT_CLAIMED, SLOT_READY, SLOT_BAD };

struct off_slot {
    uint8_t *place;
    int32_t expert; /* -1: empty */
    enum slot_state state;
    int status; /* KN_E* of a bad slot */
    int n_hold;
    enum off_urgency urgency;     /* of the fetch that started its read */
    bool ahead;                   /* prefetched (SOON or EARLY), not fetched NOW since */
    bool prefetch_cancellable;    /* its read can still be cancelled; it is counted in `doubt` too */
    bool packed;                  /* read from the pack file */
    bool joined;                  /* another NOW fetch asked for the expert while it was being read */
    enum off_copy copy;           /* of its reads */
    uint8_t wrong;                /* one bit for each off_copy: such a read had wrong bytes */
    bool wrong_mirrored;          /* a read with wrong bytes used the second copy */
    bool passing;                 /* read for a NOW or SOON ticket, its first use has not ended: counts in the window */
    uint64_t check[OFF_MATRICES]; /* the matrices' checksums, computed while verifying */
    struct off_job job[OFF_JOBS];
    bool touched, touching; /* its memory was touched, or read to; a thread of fill.c touches it now */
    bool pins;              /* it is the first of a piece that was pinned */
};

struct off_victim {
    float wait;
    int32_t slot;
}; /* a slot that may be evicted; wait: its off_policy_wait */

struct off_pool {
    size_t slot_bytes, experts_bytes;
    int node, n_expert, slot0, n_slot, n_listed; /* n_listed: n_slot is never more */
    void *memory;                                /* of n_listed slots; NULL if there are none */
    int n_pinned, n_pinning;                     /* of its slots, the first; those behind them that are being pinned */
};

struct off_store {
    struct off_expert *expert; /* [n_expert] */
    int32_t *slot_of;          /* [n_expert] index of the expert's slot, or -1 */
    uint8_t *pool_of;          /* [n_expert] */
    struct kn_machine machine; /* for its nodes */
    uint16_t *spared;          /* [n_expert] number of tickets other than NOW that list it */
    int32_t *fill;             /* [n_expert] the order in which the filler reads experts */
    int n_expert, n_pool, n_slot, n_listed, n_empty, n_starved; /* n_starved: threads in off_wait that wait for slots */
    int window, n_passing; /* limit of passing experts (tickets.c, window_left); passing experts of all tickets */
    int n_filed;           /* experts in the pack and heat files: the first n_filed */
    size_t bytes, grown;   /* memory for slots: at the open; added by off_store_grow and not taken back since */
    struct off_pool pool[OFF_MAX_POOL];
    struct off_slot *slot;     /* [n_listed] */
    struct off_victim *victim; /* [n_listed] scratch of off_slot_victims */
    size_t scratch_bytes;
    struct off_policy *policy;
    struct off_ticket *soon; /* list of the SOON tickets that did not get a slot for each expert at once */
    int n_file, *fd;         /* [n_file + 1] the model's files, then the pack file */
    const char **path;
    struct off_mirror *mirror;                    /* the caller's; or NULL */
    char *pack_path, *heat_path;                  /* or NULL */
    int pack_fd;                                  /* -1: no pack file */
    struct off_extent *extent;                    /* [n_expert] place in the pack file; bytes 0: none */
    uint64_t *check;                              /* [n_expert] checksum in the model's own files */
    uint8_t *known, *copy_of;                     /* [n_expert] enum off_known; enum off_copy: the one to read */
    bool said_damaged, said_first, said_unstable; /* pack file, first copy, reads that differ */
    bool damaged;                                 /* an expert in the model's own files is damaged; this was logged */
    struct off_watch *watch;
    uint64_t model_id;
    struct off_io *io;
    struct off_stats stats, doubt; /* doubt: the part of stats that comes from reads that can still be cancelled */
    struct off_trace *trace;       /* or NULL */
    pthread_mutex_t lock;
    pthread_cond_t ending; /* stop is set */
    pthread_t filler;
    bool fills, filled, stop; /* the filler was started; it is finished; its thread and the touchers must end */
    pthread_t toucher[OFF_TOUCHERS];
    int n_toucher;
    int touch_pool, touch_slot;         /* the next slot to touch, in pool touch_pool */
    const struct kn_device *pin_device; /* slots are pinned for it; NULL: for none */
    pthread_cond_t pinnable;            /* a slot was touched or read to, slots were added, or stop is set */
    pthread_t pinner;
    size_t piece_bytes; /* most that the pinner asks for at a time */
    bool pin_refused;   /* the device has refused one slot */
};

/* ---- share.c --------------------------------------------------------------------------------------- */

/* Makes the pools by size and node, and assigns each expert to one; returns the number of pools.
 * pool_of: [n_expert] the expert's pool; or NULL. */
int off_share_pools(const struct off_expert *expert, int n_expert, int n_node,
                    struct off_pool *pool /* [OFF_MAX_POOL] */, uint8_t *pool_of);

/* At the open: sets the number of slots of each pool, for `bytes` of memory in all; and the numbers to list, for the
 * `later` bytes that off_store_grow may add. */
void off_share_slots(struct off_store *s, size_t bytes, size_t later);

/* ---- slots.c: call with the lock held --------------------------------------------------------------- */

size_t off_slot_bytes_read(const struct off_store *s, int32_t expert); /* file bytes of one read of the expert */
void off_slot_view(const struct off_store *s, const struct off_slot *slot, struct off_view *view);
/* Evicts the slot's expert, if it has one, and starts the reads of another. */
void off_slot_read(struct off_store *s, struct off_slot *slot, int32_t expert, enum off_urgency urgency);
void off_slot_read_again(struct off_store *s, struct off_slot *slot, enum off_copy copy);
/* The expert's extent in the pack file is damaged or unreadable: from now on it is read from the model's own files. */
void off_expert_unpack(struct off_store *s, int32_t expert);
void off_slot_read_unpacked(struct off_store *s, struct off_slot *slot); /* the same, and reads it there now */
void off_slot_cancel(struct off_store *s, struct off_slot *slot);        /* a prefetch whose read has not begun */
bool off_slot_is_there(const struct off_store *s, int32_t expert);       /* in memory; its slot has been settled */
void off_slot_settle(struct off_store *s, struct off_slot *slot);        /* updates its state if its reads have ended */
bool off_slot_is_used(const struct off_slot *slot);                      /* it cannot be evicted; it has been settled */
void off_slot_empty(struct off_store *s, struct off_slot *slot);         /* evicts its expert */
bool off_slot_begun(const struct off_slot *slot);                        /* slot in state READING: its read has begun */
bool off_slot_late(const struct off_slot *slot);                         /* being read, past its deadline */
void off_slot_hold(struct off_store *s, struct off_slot *slot);
void off_slot_join(struct off_store *s, struct off_slot *slot); /* hold a slot that another fetch filled */
void off_slot_drop(struct off_store *s, struct off_slot *slot); /* ends one hold */
/* Gives a slot without holds to an expert whose bytes the store's caller writes: the slot is claimed.  off_slot_taken() ends that. */
void off_slot_take(struct off_store *s, struct off_slot *slot, int32_t expert);
void off_slot_taken(struct off_store *s, struct off_slot *slot, bool done);
void off_slot_end_passing(struct off_store *s, struct off_slot *slot); /* a prefetched expert that was not used */

/* Writes to s->victim, in no order, up to n slots of a pool that may be evicted: empty ones, then those with the
 * largest off_policy_wait, and none with a wait below `least`.  The wait of a spared expert counts as 0.  Returns the
 * number of slots. */
int off_slot_victims(struct off_store *s, const struct off_pool *p, int n, float least);

/* ---- verify.c: call with the lock held -------------------------------------------------------------- */

/* For a claimed slot with `check` filled in: it is ready, being read again, or bad. */
void off_slot_verify(struct off_store *s, struct off_slot *slot);

/* ---- fill.c ---------------------------------------------------------------------------------------- */

int off_fill_order(struct off_store *s); /* sets s->fill; 0 or KN_ENOMEM */
void *off_fill_main(void *store);        /* main function of the filler thread */
void *off_touch_main(void *store);       /* main function of a touching thread */

/* ---- pin.c ----------------------------------------------------------------------------------------- */

/* Ends the thread and unpins all.  stop is set, and nothing reads or copies slots. */
void off_pin_close(struct off_store *s);

#endif
