/* offload/store.h - what the files of the expert store share; nobody else includes it.
 *
 *     store.c     opening, closing, questions
 *     share.c     how many slots there are, of which size and on which node
 *     slots.c     what is in a slot, how it gets there, and which one makes room
 *     tickets.c   fetch, wait, release: who asks for what, and what is handed out
 *     fill.c      empty slots are filled while nothing else is to be done, and their memory is made before
 *
 * A slot goes empty -> reading -> raw -> ready.  Its matrices are read to where they stay, one place
 * after another, and interleaved there by whoever waits for them first; an expert that cannot be read
 * makes its slot bad until all who hold it have been told; who asked only after that read was begun has it read
 * once more, for all of them, for now it may succeed.  An expert that a pack file has is one read and
 * comes interleaved; who waits for it the first time verifies it, and if it is damaged, or could not be
 * read, its slot is read once more from the model's own file, as it is from then on.  Slots of one size on
 * one node form a pool, so that layers in larger formats do not make all slots large; every pool gets the
 * same share of its experts.
 *
 * Nodes take turns at the experts of a group, so that whatever a group uses is near to as many processors
 * as can be.  An expert is always on the same node and on no other.
 *
 *   a ticket  notes how far each of its experts is: MISSING has no slot yet, HELD has one (and is not
 *             given yet), GIVEN is in use, BACK is done with.  Missing experts get slots as soon as some
 *             are free: at once, or when what was handed out comes back.  So two slots are enough.
 *   to hold   is to keep an expert from being evicted.  What is read ahead is not held, only spared:
 *             whoever needs room now and finds no other takes it, so that nothing can wait for ever.
 *   filling   while slots are empty, a thread of its own asks for the likeliest experts, behind all else.
 *   touching  the system clears memory when it is first touched.  Threads of their own do that before a read
 *             would, which costs the I/O thread as long as the read itself, or longer.
 *
 * One lock guards everything but the bytes: a slot's bytes are the I/O thread's while it is reading, its
 * claimer's while it is interleaved, and constant for those who hold it after. */
#ifndef OFFLOAD_STORE_H
#define OFFLOAD_STORE_H

#include <pthread.h>

#include "offload/internal.h"

#define OFF_SLOT_SIZES 8
#define OFF_TOUCHERS   4
#define OFF_MAX_POOL   (OFF_SLOT_SIZES * KN_NODES)

enum slot_state { SLOT_EMPTY, SLOT_READING, SLOT_RAW, SLOT_CLAIMED, SLOT_READY, SLOT_BAD };

struct off_slot {
    uint8_t *place;
    int32_t expert;                             /* -1: empty */
    enum slot_state state;
    int status;                                 /* of a bad one */
    int n_hold;
    enum off_urgency urgency;                   /* that it was read with */
    bool ahead;                                 /* read SOON or EARLY, and not asked for since */
    bool in_doubt;                              /* and may still be given up as if it had never been */
    bool packed;                                /* comes from the pack file */
    bool joined;                                /* held by somebody who came while it was being read */
    uint64_t check[OFF_MATRICES];               /* of one that is being verified */
    struct off_job job[OFF_JOBS];
};

struct off_victim { float wait; int32_t slot; };    /* of a choice under way */

struct off_pool {
    size_t slot_bytes, experts_bytes;
    int node, n_expert, slot0, n_slot, n_listed;        /* listed: with those that may come */
    void *memory;                               /* NULL without slots */
};

struct off_store {
    struct off_expert *expert;                  /* [n_expert] */
    int32_t *slot_of;                           /* [n_expert] or -1 */
    uint8_t *pool_of;                           /* [n_expert] */
    struct kn_machine machine;                  /* its nodes */
    uint16_t *spared;                           /* [n_expert] SOON tickets that name it */
    int32_t *fill;                              /* [n_expert] in which order empty slots are filled */
    int n_expert, n_pool, n_slot, n_listed, n_empty, n_starved;
    int n_filed;                                /* experts that pack and heat file are of: the first */
    size_t bytes;                               /* for slots, so far */
    struct off_pool pool[OFF_MAX_POOL];
    struct off_slot *slot;                      /* [n_listed] */
    struct off_victim *victim;                  /* [n_listed] scratch of the choice */
    size_t scratch_bytes;
    struct off_policy *policy;
    struct off_ticket *soon;                    /* SOON, some of which had no slot yet */
    int n_file, *fd;                            /* [n_file + 1] the model's, and last the pack file's */
    const char **path;
    struct off_mirror *mirror;                  /* of these, the caller's, or NULL */
    char *pack_path, *heat_path;                /* or NULL */
    int pack_fd;                                /* -1: there is none */
    struct off_extent *extent;                  /* [n_expert] where the pack file has it; bytes 0: nowhere */
    bool *verified;                             /* [n_expert] its extent has been found to be good */
    bool said_damaged;
    uint64_t model_id;
    struct off_io *io;
    struct off_stats stats, doubt;              /* doubt: what of the counts may be taken back */
    struct off_trace *trace;                    /* or NULL */
    pthread_mutex_t lock;
    pthread_t filler;
    bool fills, filled, stop;                   /* fills: there is such a thread; filled: it is done */
    pthread_t toucher[OFF_TOUCHERS];
    int n_toucher;
    int touch_pool, touch_slot;                 /* whose memory is made next */
};

/* ---- share.c --------------------------------------------------------------------------------------- */

/* Pools by size and node, and each expert's; returns how many.  pool_of: [n_expert] or NULL. */
int  off_share_pools(const struct off_expert *expert, int n_expert, int n_node,
                     struct off_pool *pool /* [OFF_MAX_POOL] */, uint8_t *pool_of);

/* Each pool's slots: so many bytes for all of them now, and what may be added later. */
void off_share_slots(struct off_store *s, size_t bytes, size_t later);

/* ---- slots.c: with the lock ------------------------------------------------------------------------ */

size_t off_slot_bytes_read(const struct off_store *s, int32_t expert);  /* of files, to bring it */
void off_slot_view(const struct off_store *s, const struct off_slot *slot, struct off_view *view);
void off_slot_read(struct off_store *s, struct off_slot *slot, int32_t expert, enum off_urgency urgency);
void off_slot_read_unpacked(struct off_store *s, struct off_slot *slot);
void off_slot_read_first(struct off_store *s, struct off_slot *slot);   /* again, without the second copy */
void off_slot_cancel(struct off_store *s, struct off_slot *slot);       /* as far as it was not begun */
void off_slot_settle(struct off_store *s, struct off_slot *slot);       /* sees whether its reads have ended */
bool off_slot_begun(const struct off_slot *slot);                       /* one that is being read */
bool off_slot_late(const struct off_slot *slot);                        /* the same */
void off_slot_hold(struct off_store *s, struct off_slot *slot);
void off_slot_join(struct off_store *s, struct off_slot *slot);         /* the same, of one that others asked for */
void off_slot_drop(struct off_store *s, struct off_slot *slot);         /* what was held */

/* Up to n slots of a pool that may be taken, those that will be needed last, to s->victim; none that is
 * expected before `least` turns.  Returns how many. */
int off_slot_victims(struct off_store *s, const struct off_pool *p, int n, float least);

/* ---- fill.c ---------------------------------------------------------------------------------------- */

int   off_fill_order(struct off_store *s);
void *off_fill_main(void *store);               /* the filler's thread */
void *off_touch_main(void *store);              /* a toucher's */

#endif
