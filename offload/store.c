/* The expert store: experts by number, in slots.
 *
 * A slot goes empty -> reading -> raw -> ready.  Its matrices are read to where they stay, one place
 * after another, and interleaved there by whoever waits for them first; an expert that cannot be read
 * makes its slot bad until all who hold it have been told.  An expert that a pack file has is one read and
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
 *
 * One lock guards everything but the bytes: a slot's bytes are the I/O thread's while it is reading, its
 * claimer's while it is interleaved, and constant for those who hold it after. */
#include "offload/internal.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SIZE   8
#define MAX_POOL   (MAX_SIZE * KN_NODES)
#define LEAST_SLOT 2
#define N_FILL     4                            /* experts that the filler asks for at a time */
#define EVEN       2                            /* what is expected comes once in so many times, or more often */
#define EARLY_FREE 16                           /* experts read EARLY that need not have been of use, */
#define EARLY_PART 16                           /* and one part in so many of all that is read */

enum slot_state { SLOT_EMPTY, SLOT_READING, SLOT_RAW, SLOT_CLAIMED, SLOT_READY, SLOT_BAD };
enum mark { MARK_MISSING, MARK_HELD, MARK_CLAIMED, MARK_GIVEN, MARK_BACK };

struct slot {
    uint8_t *place;
    int32_t expert;                             /* -1: empty */
    enum slot_state state;
    int status;                                 /* of a bad one */
    int n_hold;
    enum off_urgency urgency;                   /* that it was read with */
    bool ahead;                                 /* read SOON or EARLY, and not asked for since */
    bool packed;                                /* comes from the pack file */
    uint64_t check[OFF_MATRICES];               /* of one that is being verified */
    struct off_job job[OFF_MATRICES];
};

struct victim { float wait; int32_t slot; };    /* of a choice under way */

struct pool {
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
    size_t bytes;                               /* for slots, so far */
    struct pool pool[MAX_POOL];
    struct slot *slot;                          /* [n_listed] */
    struct victim *victim;                      /* [n_listed] scratch of the choice */
    size_t scratch_bytes;
    struct off_policy *policy;
    int n_file, *fd;                            /* [n_file + 1] the model's, and last the pack file's */
    const char **path;
    char *pack_path, *heat_path;                /* or NULL */
    int pack_fd;                                /* -1: there is none */
    struct off_extent *extent;                  /* [n_expert] where the pack file has it; bytes 0: nowhere */
    bool *verified;                             /* [n_expert] its extent has been found to be good */
    bool said_damaged;
    uint64_t model_id;
    struct off_io *io;
    struct off_stats stats;
    struct off_trace *trace;                    /* or NULL */
    pthread_mutex_t lock;
    pthread_t filler;
    bool fills, filled, stop;                   /* fills: there is such a thread; filled: it is done */
};

/* ---- sizes --------------------------------------------------------------------------------------- */

static bool is_packed(const struct off_store *s, int32_t e) { return s->extent[e].bytes > 0; }

static size_t read_bytes(const struct off_store *s, int32_t e)
{
    return is_packed(s, e) ? s->extent[e].bytes : off_expert_bytes(&s->expert[e]);
}

/* Sizes of slots, ascending; past MAX_SIZE of them the largest grows. */
static void add_size(size_t *size, int *n, size_t bytes)
{
    int at = 0;
    while (at < *n && size[at] < bytes)
        at++;
    if (at < *n && size[at] == bytes)
        return;
    if (*n == MAX_SIZE) {
        if (at == MAX_SIZE)
            size[MAX_SIZE - 1] = bytes;
        return;
    }
    memmove(&size[at + 1], &size[at], (size_t)(*n - at) * sizeof *size);
    size[at] = bytes;
    ++*n;
}

/* Pools by size and node, and each expert's; pool_of: [n_expert] or NULL. */
static int make_pools(const struct off_expert *expert, int n_expert, int n_node, struct pool *pool,
                      uint8_t *pool_of)
{
    size_t size[MAX_SIZE];
    int n = 0;
    for (int e = 0; e < n_expert; e++)
        add_size(size, &n, off_slot_bytes(&expert[e]));
    for (int i = 0; i < n * n_node; i++)
        pool[i] = (struct pool){ .slot_bytes = size[i / n_node], .node = i % n_node };
    for (int e = 0, first = 0; e < n_expert; e++) {
        int at = 0;
        while (size[at] < off_slot_bytes(&expert[e]))
            at++;
        if (expert[e].group != expert[first].group)
            first = e;
        at = at * n_node + (e - first) % n_node;
        pool[at].n_expert++;
        pool[at].experts_bytes += pool[at].slot_bytes;
        if (pool_of)
            pool_of[e] = (uint8_t)at;
    }
    return n * n_node;
}

static size_t least_bytes(const struct pool *pool, int n)
{
    size_t bytes = 0;
    while (n-- > 0)
        bytes += (size_t)kn_min(LEAST_SLOT, pool[n].n_expert) * pool[n].slot_bytes;
    return bytes;
}

size_t off_store_bytes(const struct off_expert *expert, int n_expert)
{
    struct pool pool[MAX_SIZE];                 /* however many nodes there are */
    size_t bytes = 0;
    for (int i = make_pools(expert, n_expert, 1, pool, NULL); i-- > 0; )
        bytes += pool[i].experts_bytes;
    return bytes;
}

size_t off_store_least(const struct off_expert *expert, int n_expert)
{
    struct pool pool[MAX_POOL];
    struct kn_machine machine;
    kn_machine_get(&machine);
    return least_bytes(pool, make_pools(expert, n_expert, machine.n_node, pool, NULL));
}

/* Two slots for every pool, and of what is left a share that is the same for all. */
static double share_of(const struct off_store *s, size_t bytes)
{
    size_t least = least_bytes(s->pool, s->n_pool), all = off_store_bytes(s->expert, s->n_expert);
    return bytes >= all ? 1 : (double)(bytes - least) / (double)(all - least);
}

static int slots_of(const struct pool *p, double share)
{
    int first = kn_min(LEAST_SLOT, p->n_expert);
    return first + (int)(share * (p->n_expert - first));
}

static void share_slots(struct off_store *s, size_t bytes, size_t later)
{
    double now = share_of(s, bytes), most = share_of(s, later > SIZE_MAX - bytes ? SIZE_MAX : bytes + later);
    for (int i = 0; i < s->n_pool; i++) {
        struct pool *p = &s->pool[i];
        p->slot0 = s->n_listed;
        p->n_slot = slots_of(p, now);
        p->n_listed = slots_of(p, most);
        s->n_slot += p->n_slot;
        s->n_listed += p->n_listed;
    }
    s->n_empty = s->n_slot;
    s->bytes = bytes;
}

/* ---- open and close ------------------------------------------------------------------------------ */

static int order_filling(struct off_store *s);
static void *filler_main(void *arg);

static int open_pools(struct off_store *s)
{
    s->slot = kn_calloc((size_t)s->n_listed, sizeof *s->slot);
    s->victim = kn_calloc((size_t)s->n_listed, sizeof *s->victim);
    if (!s->slot || !s->victim)
        return kn_fail(KN_ENOMEM, "no memory to list %d slots", s->n_listed);
    for (int i = 0; i < s->n_pool; i++) {
        struct pool *p = &s->pool[i];
        size_t bytes = (size_t)p->n_listed * p->slot_bytes;     /* addresses: memory is what is touched */
        if (bytes && !(p->memory = kn_map(bytes, s->machine.node[p->node])))
            return kn_fail(KN_ENOMEM, "no memory for %zu MiB of experts: lower --host-mem", bytes >> 20);
        for (int k = 0; k < p->n_listed; k++) {
            struct slot *slot = &s->slot[p->slot0 + k];
            slot->place = (uint8_t *)p->memory + (size_t)k * p->slot_bytes;
            slot->expert = -1;
        }
    }
    return 0;
}

static int list_experts(struct off_store *s, const struct off_store_options *opt)
{
    size_t n = (size_t)opt->n_expert;
    s->expert = kn_calloc(n, sizeof *s->expert);
    s->slot_of = kn_calloc(n, sizeof *s->slot_of);
    s->pool_of = kn_calloc(n, sizeof *s->pool_of);
    s->spared = kn_calloc(n, sizeof *s->spared);
    s->fill = kn_calloc(n, sizeof *s->fill);
    s->extent = kn_calloc(n, sizeof *s->extent);
    s->verified = kn_calloc(n, sizeof *s->verified);
    if (!s->expert || !s->slot_of || !s->pool_of || !s->spared || !s->fill || !s->extent || !s->verified)
        return kn_fail(KN_ENOMEM, "no memory to list %d experts", opt->n_expert);
    memcpy(s->expert, opt->expert, n * sizeof *s->expert);
    s->n_expert = opt->n_expert;
    kn_machine_get(&s->machine);
    s->n_pool = make_pools(s->expert, s->n_expert, s->machine.n_node, s->pool, s->pool_of);
    for (int e = 0; e < s->n_expert; e++) {
        s->slot_of[e] = -1;
        for (int i = 0; i < OFF_MATRICES; i++) {
            const struct off_source *m = &s->expert[e].matrix[i];
            size_t scratch = m->n_out ? off_scratch_bytes(m) : 0;
            s->scratch_bytes = scratch > s->scratch_bytes ? scratch : s->scratch_bytes;
        }
    }
    return 0;
}

/* The model's files, and behind them its pack file, when there is one. */
static int list_files(struct off_store *s, const struct off_store_options *opt)
{
    size_t n = (size_t)opt->files.n_file;
    s->fd = kn_calloc(n + 1, sizeof *s->fd);
    s->path = kn_calloc(n + 1, sizeof *s->path);
    s->pack_path = opt->pack_path ? kn_strdup(opt->pack_path) : NULL;
    if (!s->fd || !s->path || (opt->pack_path && !s->pack_path))
        return kn_fail(KN_ENOMEM, "no memory to list %zu files", n);
    memcpy(s->fd, opt->files.fd, n * sizeof *s->fd);
    memcpy(s->path, opt->files.path, n * sizeof *s->path);
    int error = s->pack_path ? off_pack_open(&s->pack_fd, s->pack_path, opt->model_id, s->expert,
                                             s->n_expert, s->extent) : 0;
    s->fd[n] = s->pack_fd;
    s->path[n] = s->pack_path;
    s->n_file = (int)n;
    s->stats.n_packed = s->pack_fd < 0 ? 0 : (uint64_t)s->n_expert;
    return error;
}

/* What the last run learnt of these experts, so that this one begins warm. */
static int recall(struct off_store *s, const struct off_store_options *opt)
{
    s->model_id = opt->model_id;
    s->heat_path = opt->heat_path ? kn_strdup(opt->heat_path) : NULL;
    float *share = kn_calloc((size_t)s->n_expert, sizeof *share);
    if (!share || (opt->heat_path && !s->heat_path)) {
        kn_free(share);
        return kn_fail(KN_ENOMEM, "no memory to recall %d experts", s->n_expert);
    }
    if (s->heat_path && off_heat_read(s->heat_path, s->model_id, share, s->n_expert))
        for (int32_t e = 0; e < s->n_expert; e++)
            off_policy_set_share(s->policy, e, share[e]);
    kn_free(share);
    return 0;
}

static void remember(struct off_store *s)
{
    float *share = s->heat_path && s->stats.hits + s->stats.misses
                 ? kn_calloc((size_t)s->n_expert, sizeof *share) : NULL;
    if (!share)
        return;
    for (int32_t e = 0; e < s->n_expert; e++)
        share[e] = off_policy_share(s->policy, e);
    off_heat_write(s->heat_path, s->model_id, share, s->n_expert);
    kn_free(share);
}

int off_store_open(struct off_store **out, const struct off_store_options *opt)
{
    size_t least = off_store_least(opt->expert, opt->n_expert);
    size_t bytes = opt->slot_bytes ? opt->slot_bytes : SIZE_MAX;
    if (bytes < least)
        return kn_fail(KN_ELIMIT, "the least that experts can do with is %zu MiB, %zu MiB are left: raise "
                       "--host-mem", (least + (1 << 20) - 1) >> 20, bytes >> 20);
    struct off_store *s = kn_calloc(1, sizeof *s);
    if (!s)
        return kn_fail(KN_ENOMEM, "no memory for the expert store");
    pthread_mutex_init(&s->lock, NULL);
    s->pack_fd = -1;
    int error = list_experts(s, opt);
    if (error || (error = list_files(s, opt)))
        goto fail;
    share_slots(s, bytes, opt->later_bytes);
    if ((error = open_pools(s)) || (error = off_policy_open(&s->policy, s->expert, s->n_expert)) ||
        (error = recall(s, opt)) || (error = order_filling(s)) ||
        (error = off_io_open(&s->io, &(struct off_files){ s->n_file + (s->pack_fd >= 0), s->fd, s->path },
                             &(struct off_io_options){ .kind = opt->io })))
        goto fail;
    if (pthread_create(&s->filler, NULL, filler_main, s) != 0) {
        error = kn_fail(KN_ENOMEM, "cannot start a thread to fill slots with");
        goto fail;
    }
    s->fills = true;
    *out = s;
    return 0;
fail:
    off_store_close(s);
    return error;
}

void off_store_close(struct off_store *s)
{
    if (!s)
        return;
    if (s->fills) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_mutex_unlock(&s->lock);
        off_io_nudge(s->io);
        pthread_join(s->filler, NULL);
    }
    remember(s);
    off_io_close(s->io);
    off_policy_close(s->policy);
    kn_file_close(s->pack_fd);
    kn_free(s->heat_path);
    kn_free(s->pack_path);
    for (int i = 0; i < s->n_pool; i++)
        kn_unmap(s->pool[i].memory, (size_t)s->pool[i].n_listed * s->pool[i].slot_bytes);
    pthread_mutex_destroy(&s->lock);
    kn_free(s->victim);
    kn_free(s->slot);
    kn_free(s->path);
    kn_free(s->fd);
    kn_free(s->verified);
    kn_free(s->extent);
    kn_free(s->fill);
    kn_free(s->spared);
    kn_free(s->pool_of);
    kn_free(s->slot_of);
    kn_free(s->expert);
    kn_free(s);
}

/* ---- what is where (all under the lock from here on) ------------------------------------------------ */

static void view_of(const struct off_store *s, const struct slot *slot, struct off_view *view)
{
    uint8_t *place = slot->place;
    *view = (struct off_view){ .tier = OFF_HOST, .node = s->pool[s->pool_of[slot->expert]].node };
    for (int i = 0; i < OFF_MATRICES; i++) {
        const struct off_source *m = &s->expert[slot->expert].matrix[i];
        if (!m->n_out)
            continue;
        view->matrix[i] = (struct kn_mat){ m->format, m->n_out, m->n_in,
                                           slot->packed ? place : off_place_panels(m, place) };
        place += slot->packed ? off_panel_bytes(m) : off_place_bytes(m);
    }
}

static void post_reads(struct off_store *s, struct slot *slot, enum off_urgency urgency)
{
    const struct off_extent *x = &s->extent[slot->expert];
    uint8_t *place = slot->place;
    slot->state = SLOT_READING;
    slot->packed = is_packed(s, slot->expert);
    memset(slot->job, 0, sizeof slot->job);
    if (slot->packed)
        slot->job[0] = (struct off_job){ .file = s->n_file, .offset = x->offset, .bytes = x->bytes, .to = place };
    for (int i = 0; i < OFF_MATRICES && !slot->packed; i++) {
        const struct off_source *m = &s->expert[slot->expert].matrix[i];
        slot->job[i] = (struct off_job){ .file = m->file, .offset = m->offset, .bytes = off_file_bytes(m),
                                         .to = place };
        place += off_place_bytes(m);
    }
    for (int i = 0; i < OFF_MATRICES; i++) {
        slot->job[i].urgency = urgency;
        if (slot->job[i].bytes)
            off_io_post(s->io, &slot->job[i]);
    }
    s->stats.reads++;
    s->stats.read_bytes += read_bytes(s, slot->expert);
}

/* What the pack file has of this one is of no use: the model's own file has it too. */
static void read_unpacked(struct off_store *s, struct slot *slot)
{
    if (!s->said_damaged)
        kn_say(KN_LOG_WARN, "%s is damaged, at expert %d for one: what is damaged is read from the model's own "
               "file; spillway pack writes it anew", s->pack_path, (int)slot->expert);
    s->said_damaged = true;
    s->extent[slot->expert].bytes = 0;
    s->stats.n_packed--;
    post_reads(s, slot, slot->n_hold ? OFF_NOW : slot->urgency);
}

/* A slot that has been read is raw, or ready if nothing is left to do, or bad. */
static void settle(struct off_store *s, struct slot *slot)
{
    if (slot->state != SLOT_READING)
        return;
    int status = 0;
    for (int i = 0; i < OFF_MATRICES; i++) {
        if (!slot->job[i].bytes)
            continue;
        if (atomic_load_explicit(&slot->job[i].state, memory_order_acquire) != OFF_JOB_DONE)
            return;
        if (slot->job[i].status)
            status = slot->job[i].status;
    }
    if (status && slot->packed) {
        read_unpacked(s, slot);
        return;
    }
    slot->state = status ? SLOT_BAD : slot->packed && s->verified[slot->expert] ? SLOT_READY : SLOT_RAW;
    slot->status = status;
}

static bool is_late(const struct slot *slot)
{
    bool late = false;
    for (int i = 0; i < OFF_MATRICES; i++)
        late |= slot->state == SLOT_READING && slot->job[i].bytes && atomic_load(&slot->job[i].late);
    return late;
}

static void empty_slot(struct off_store *s, struct slot *slot)
{
    if (slot->ahead)
        s->stats.wasted_bytes += read_bytes(s, slot->expert);
    if (slot->ahead && slot->urgency == OFF_EARLY)
        s->stats.early_wasted_bytes += read_bytes(s, slot->expert);
    s->slot_of[slot->expert] = -1;
    slot->expert = -1;
    slot->state = SLOT_EMPTY;
    slot->ahead = false;
    s->n_empty++;
}

static void start_reading(struct off_store *s, struct slot *slot, int32_t expert, enum off_urgency urgency)
{
    if (slot->expert >= 0)
        empty_slot(s, slot);
    slot->expert = expert;
    slot->urgency = urgency;
    slot->ahead = urgency == OFF_SOON || urgency == OFF_EARLY;
    s->slot_of[expert] = (int32_t)(slot - s->slot);
    s->n_empty--;
    post_reads(s, slot, urgency);
    s->stats.soon_reads += slot->ahead;
    s->stats.early_bytes += urgency == OFF_EARLY ? read_bytes(s, expert) : 0;
}

static void drop_hold(struct off_store *s, struct slot *slot)
{
    kn_assert(slot->n_hold > 0);
    if (--slot->n_hold == 0 && slot->state == SLOT_BAD)
        empty_slot(s, slot);
}

/* Takes back what has not been begun.  The last matrix first: jobs of one rank begin in order, so when
 * the last has begun they all have. */
static void cancel_reading(struct off_store *s, struct slot *slot)
{
    int i = OFF_MATRICES;
    while (i-- > 0)
        if (slot->job[i].bytes && !off_io_cancel(s->io, &slot->job[i]))
            break;
    if (i < 0) {
        kn_assert(slot->n_hold == 0);
        s->stats.reads--;
        s->stats.read_bytes -= read_bytes(s, slot->expert);
        s->stats.soon_reads--;
        s->stats.early_bytes -= slot->urgency == OFF_EARLY ? read_bytes(s, slot->expert) : 0;
        slot->ahead = false;
        empty_slot(s, slot);
        return;
    }
    while (++i < OFF_MATRICES)
        if (slot->job[i].bytes)
            off_io_post(s->io, &slot->job[i]);
}

/* ---- making room --------------------------------------------------------------------------------- */

static void sift(struct victim *heap, int n, int at)
{
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1].wait < heap[child].wait)
            child++;
        if (heap[at].wait <= heap[child].wait)
            return;
        struct victim t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
    }
}

/* Up to n slots of a pool that may be taken, those that will be needed last; none that is expected
 * before `least` turns. */
static int find_victims(struct off_store *s, const struct pool *p, int n, float least)
{
    struct victim *heap = s->victim;            /* the least of those found so far on top */
    int found = 0;
    for (int i = p->slot0; i < p->slot0 + p->n_slot && n > 0; i++) {
        struct slot *slot = &s->slot[i];
        float wait;
        settle(s, slot);
        if (slot->n_hold || slot->state == SLOT_READING || slot->state == SLOT_CLAIMED)
            continue;
        if (slot->state == SLOT_EMPTY || slot->state == SLOT_BAD)
            wait = 1e30f;
        else if (s->spared[slot->expert])
            wait = 0;
        else
            wait = off_policy_wait(s->policy, slot->expert);
        if (wait < least || (found == n && wait <= heap[0].wait))
            continue;
        if (found < n) {
            int at = found++;
            for (; at > 0 && heap[(at - 1) / 2].wait > wait; at = (at - 1) / 2)
                heap[at] = heap[(at - 1) / 2];
            heap[at] = (struct victim){ wait, i };
        } else {
            heap[0] = (struct victim){ wait, i };
            sift(heap, found, 0);
        }
    }
    return found;
}

/* Its matrices are begun in order, the first first. */
static bool is_begun(const struct slot *slot)
{
    return atomic_load_explicit(&slot->job[0].state, memory_order_relaxed) != OFF_JOB_QUEUED;
}

/* What was read EARLY is asked for.  If it was not even begun it was not early. */
static void count_early(struct off_store *s, const struct slot *slot)
{
    if (slot->state == SLOT_READING && !is_begun(slot))
        s->stats.early_bytes -= read_bytes(s, slot->expert);
    else
        s->stats.early_used_bytes += read_bytes(s, slot->expert);
}

/* Somebody needs it now: what was being read ahead of need is so no longer, and nobody else may drop it. */
static void hold(struct off_store *s, struct slot *slot)
{
    if (slot->ahead && slot->urgency == OFF_EARLY)
        count_early(s, slot);
    for (int i = 0; slot->state == SLOT_READING && i < OFF_MATRICES; i++)
        if (slot->job[i].bytes)
            off_io_raise(s->io, &slot->job[i]);
    s->stats.soon_hits += slot->ahead;
    slot->ahead = false;
    slot->n_hold++;
}

static void place(struct off_store *s, struct off_ticket *t, int i)
{
    t->n_missing--;
    t->mark[i] = MARK_BACK;
    if (t->urgency == OFF_NOW) {
        hold(s, &s->slot[s->slot_of[t->expert[i]]]);
        t->mark[i] = MARK_HELD;
    }
}

/* Slots for the ticket's missing experts, as far as there are any. */
static void place_missing(struct off_store *s, struct off_ticket *t, float least)
{
    for (int i = 0; t->n_missing && i < t->n; i++)      /* another ticket may have brought one meanwhile */
        if (t->mark[i] == MARK_MISSING && s->slot_of[t->expert[i]] >= 0)
            place(s, t, i);
    for (int pool = 0; pool < s->n_pool && t->n_missing; pool++) {
        int want = 0;
        for (int i = 0; i < t->n; i++)
            want += t->mark[i] == MARK_MISSING && s->pool_of[t->expert[i]] == pool;
        int n = want ? find_victims(s, &s->pool[pool], want, least) : 0;
        for (int i = 0; i < t->n && n > 0; i++)
            if (t->mark[i] == MARK_MISSING && s->pool_of[t->expert[i]] == pool) {
                start_reading(s, &s->slot[s->victim[--n].slot], t->expert[i], t->urgency);
                place(s, t, i);
            }
    }
}

/* ---- fetch, wait, release --------------------------------------------------------------------------- */

/* For how many turns a slot must be of no use to anybody else.  What is only expected must not displace what is
 * needed before it, nor what is as likely; and what was read EARLY and has been of no use is never more than what
 * has, and a small part of all that is read. */
static float least_wait(const struct off_store *s, int32_t expert, enum off_urgency urgency)
{
    const struct off_stats *t = &s->stats;
    uint64_t free = t->read_bytes / EARLY_PART + EARLY_FREE * read_bytes(s, expert);
    if (urgency == OFF_NOW)
        return -1;
    if (urgency == OFF_EARLY && t->early_bytes > 2 * t->early_used_bytes + free)
        return HUGE_VALF;
    return EVEN * (float)off_policy_ahead(s->policy, expert);
}

void off_fetch(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, enum off_urgency urgency,
               struct off_ticket *out)
{
    *out = (struct off_ticket){ .expert = expert, .mark = mark, .n = n, .urgency = urgency };
    pthread_mutex_lock(&s->lock);
    if (urgency == OFF_NOW)
        off_policy_use(s->policy, expert, n);
    if (urgency == OFF_NOW && s->trace)
        off_trace_add(s->trace, expert, n);
    for (int i = 0; i < n; i++) {
        kn_assert(expert[i] >= 0 && expert[i] < s->n_expert);
        int32_t slot = s->slot_of[expert[i]];
        if (urgency != OFF_NOW)
            s->spared[expert[i]]++;
        if (slot < 0) {
            mark[i] = MARK_MISSING;
            out->n_missing++;
            s->stats.misses += urgency == OFF_NOW;
        } else if (urgency == OFF_NOW) {
            settle(s, &s->slot[slot]);
            *(s->slot[slot].state == SLOT_READING ? &s->stats.misses : &s->stats.hits) += 1;
            hold(s, &s->slot[slot]);
            mark[i] = MARK_HELD;
        } else {
            mark[i] = MARK_BACK;
        }
    }
    if (n)
        place_missing(s, out, least_wait(s, expert[0], urgency));
    pthread_mutex_unlock(&s->lock);
}

static void take_back(struct off_store *s, struct off_ticket *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->mark[i] == MARK_GIVEN) {
            drop_hold(s, &s->slot[s->slot_of[t->expert[i]]]);
            t->mark[i] = MARK_BACK;
        }
    if (s->n_starved)
        off_io_nudge(s->io);
}

/* Hands out all that is ready or has failed. */
static int give(struct off_store *s, struct off_ticket *t, int32_t *index, struct off_view *view, int *status)
{
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        struct slot *slot = t->mark[i] == MARK_HELD ? &s->slot[s->slot_of[t->expert[i]]] : NULL;
        if (!slot)
            continue;
        settle(s, slot);
        bool late = is_late(slot);
        if (slot->state != SLOT_READY && slot->state != SLOT_BAD && !late)
            continue;
        status[n] = late ? KN_EIO : slot->state == SLOT_BAD ? slot->status : 0;
        if (status[n]) {                        /* nothing to use: it is back at once */
            view[n] = (struct off_view){ 0 };
            t->mark[i] = MARK_BACK;
            drop_hold(s, slot);
        } else {
            view_of(s, slot, &view[n]);
            t->mark[i] = MARK_GIVEN;
        }
        index[n++] = i;
        t->n_given++;
    }
    return n;
}

/* What has landed for this ticket is this caller's to interleave or verify, node by node; cut: of their
 * matrices. */
static int claim(struct off_store *s, struct off_ticket *t, int32_t *index, int cut[KN_NODES + 1])
{
    int n = 0;
    for (int node = 0; node <= KN_NODES; node++) {
        cut[node] = n * OFF_MATRICES;
        for (int i = 0; node < s->machine.n_node && i < t->n; i++) {
            struct slot *slot = t->mark[i] == MARK_HELD ? &s->slot[s->slot_of[t->expert[i]]] : NULL;
            if (slot && slot->state == SLOT_RAW && s->pool[s->pool_of[t->expert[i]]].node == node) {
                slot->state = SLOT_CLAIMED;
                index[n++] = i;
            }
        }
    }
    return n;
}

struct claimed {
    struct off_store *s;
    const struct off_ticket *ticket;
    const int32_t *index;
    const struct off_hands *hands;
};

static void claimed_item(void *arg, int item, int thread)
{
    const struct claimed *j = arg;
    int32_t e = j->ticket->expert[j->index[item / OFF_MATRICES]];
    int matrix = item % OFF_MATRICES;
    struct slot *slot = &j->s->slot[j->s->slot_of[e]];
    const struct off_source *m = &j->s->expert[e].matrix[matrix];
    struct off_view view;
    slot->check[matrix] = 0;
    if (m->n_out && slot->packed) {
        view_of(j->s, slot, &view);
        slot->check[matrix] = off_check(view.matrix[matrix].data, kn_mat_bytes(m->format, m->n_out, m->n_in));
    } else if (m->n_out)
        off_interleave(j->hands->ops, m, slot->job[matrix].to,
                       j->hands->scratch + (size_t)thread * j->hands->scratch_bytes);
}

/* It is as it must be, or is read again. */
static void end_claim(struct off_store *s, struct slot *slot)
{
    bool good = !slot->packed || off_check_expert(slot->check) == s->extent[slot->expert].check;
    s->verified[slot->expert] |= good && slot->packed;
    if (good)
        slot->state = SLOT_READY;
    else
        read_unpacked(s, slot);
}

int off_wait(struct off_store *s, struct off_ticket *t, const struct off_hands *hands, int32_t *index,
             struct off_view *view, int *status)
{
    int n = 0, cut[KN_NODES + 1];
    kn_assert(t->urgency == OFF_NOW && hands->scratch_bytes >= s->scratch_bytes);
    pthread_mutex_lock(&s->lock);
    take_back(s, t);
    while (t->n_given < t->n) {
        uint64_t seen = off_io_events(s->io);
        place_missing(s, t, -1);
        if ((n = give(s, t, index, view, status)) > 0)
            break;
        int n_claimed = claim(s, t, index, cut);
        bool starved = !n_claimed && t->n_missing;
        s->n_starved += starved;
        pthread_mutex_unlock(&s->lock);
        uint64_t began = kn_now_ns();
        if (n_claimed) {
            struct claimed job = { s, t, index, hands };
            kn_parallel_on(hands->team, cut, claimed_item, &job);
        } else {
            off_io_wait(s->io, seen);
        }
        uint64_t ns = kn_now_ns() - began;
        pthread_mutex_lock(&s->lock);
        s->n_starved -= starved;
        *(n_claimed ? &s->stats.repack_ns : &s->stats.stall_ns) += ns;
        for (int i = 0; i < n_claimed; i++)
            end_claim(s, &s->slot[s->slot_of[t->expert[index[i]]]]);
        if (n_claimed)                          /* others may be waiting for it */
            off_io_nudge(s->io);
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

void off_release(struct off_store *s, struct off_ticket *t)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < t->n; i++) {
        int32_t e = t->expert[i], at = s->slot_of[e];
        if (t->mark[i] == MARK_HELD)            /* given up: nobody will ask for it */
            t->mark[i] = MARK_GIVEN;
        if (t->urgency == OFF_NOW || --s->spared[e] || at < 0 || !s->slot[at].ahead)
            continue;
        settle(s, &s->slot[at]);
        if (s->slot[at].state == SLOT_READING)
            cancel_reading(s, &s->slot[at]);
    }
    take_back(s, t);
    pthread_mutex_unlock(&s->lock);
    *t = (struct off_ticket){ 0 };
}

/* ---- filling ----------------------------------------------------------------------------------------- */

struct rank { float share; int in_group; int32_t expert; };

static int by_rank(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    if (x->share != y->share)
        return x->share > y->share ? -1 : 1;
    if (x->in_group != y->in_group)
        return x->in_group < y->in_group ? -1 : 1;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

/* The likeliest first; among equals the groups take turns, so that all get their part of few slots. */
static int order_filling(struct off_store *s)
{
    struct rank *rank = kn_calloc((size_t)s->n_expert, sizeof *rank);
    if (!rank)
        return kn_fail(KN_ENOMEM, "no memory to rank %d experts", s->n_expert);
    for (int32_t e = 0, first = 0; e < s->n_expert; e++) {
        if (s->expert[e].group != s->expert[first].group)
            first = e;
        rank[e] = (struct rank){ off_policy_share(s->policy, e), e - first, e };
    }
    qsort(rank, (size_t)s->n_expert, sizeof *rank, by_rank);
    for (int i = 0; i < s->n_expert; i++)
        s->fill[i] = rank[i].expert;
    kn_free(rank);
    return 0;
}

static struct slot *find_empty(struct off_store *s, int pool)
{
    const struct pool *p = &s->pool[pool];
    for (int i = p->slot0; i < p->slot0 + p->n_slot; i++)
        if (s->slot[i].state == SLOT_EMPTY)
            return &s->slot[i];
    return NULL;
}

/* Keeps a few experts on their way into empty slots.  Returns how many; 0: there is nothing left to do. */
static int fill_slots(struct off_store *s, int *next)
{
    int n_under_way = 0;
    for (int i = 0; i < s->n_listed; i++) {
        settle(s, &s->slot[i]);
        n_under_way += s->slot[i].state == SLOT_READING && s->slot[i].urgency == OFF_IDLE;
    }
    for (; s->n_empty > 0 && n_under_way < N_FILL && *next < s->n_expert; ++*next) {
        int32_t e = s->fill[*next];
        struct slot *slot = s->slot_of[e] < 0 ? find_empty(s, s->pool_of[e]) : NULL;
        if (slot) {
            start_reading(s, slot, e, OFF_IDLE);
            n_under_way++;
        }
    }
    return n_under_way;
}

static void *filler_main(void *arg)
{
    struct off_store *s = arg;
    int next = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        uint64_t seen = off_io_events(s->io);
        if (fill_slots(s, &next) == 0)
            break;
        pthread_mutex_unlock(&s->lock);
        off_io_wait(s->io, seen);
        pthread_mutex_lock(&s->lock);
    }
    s->filled = true;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Slots behind a pool's last become empty ones; who misses an expert takes those first. */
void off_store_grow(struct off_store *s, size_t bytes)
{
    pthread_mutex_lock(&s->lock);
    s->bytes = bytes > SIZE_MAX - s->bytes ? SIZE_MAX : s->bytes + bytes;
    double share = share_of(s, s->bytes);
    for (int i = 0; i < s->n_pool; i++) {
        struct pool *p = &s->pool[i];
        int more = kn_min(p->n_listed, slots_of(p, share)) - p->n_slot;
        p->n_slot += more;
        s->n_slot += more;
        s->n_empty += more;
    }
    pthread_mutex_unlock(&s->lock);
    off_io_nudge(s->io);
}

/* ---- questions ---------------------------------------------------------------------------------------- */

bool off_store_is_whole(struct off_store *s)
{
    pthread_mutex_lock(&s->lock);
    bool whole = s->n_slot == s->n_expert && s->n_empty == 0;
    pthread_mutex_unlock(&s->lock);
    return whole;
}

int off_store_absent(struct off_store *s, const int32_t *expert, int n, int32_t *out)
{
    int n_out = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        int32_t at = s->slot_of[expert[i]];
        if (at < 0 || (s->slot[at].state == SLOT_READING && !is_begun(&s->slot[at])))
            out[n_out++] = expert[i];
    }
    pthread_mutex_unlock(&s->lock);
    return n_out;
}

size_t off_store_scratch(const struct off_store *s) { return s->scratch_bytes; }
const char *off_store_io(const struct off_store *s) { return off_io_name(s->io); }

void off_stats_get(struct off_store *s, struct off_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->n_slot = (uint64_t)s->n_slot;
    out->n_expert = (uint64_t)s->n_expert;
    out->n_empty = (uint64_t)s->n_empty;
    out->filling = !s->filled;
    pthread_mutex_unlock(&s->lock);
}

void off_store_look(struct off_store *s, struct off_spot *out)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_listed; i++)
        settle(s, &s->slot[i]);
    for (int32_t e = 0; e < s->n_expert; e++) {
        enum slot_state state = s->slot_of[e] < 0 ? SLOT_EMPTY : s->slot[s->slot_of[e]].state;
        bool there = state == SLOT_RAW || state == SLOT_CLAIMED || state == SLOT_READY;
        out[e] = (struct off_spot){ s->expert[e].group, there ? OFF_HOST : OFF_DISK, state == SLOT_READING,
                                    off_policy_heat(s->policy, e) };
    }
    pthread_mutex_unlock(&s->lock);
}

void off_store_record(struct off_store *s, struct off_trace *t)
{
    pthread_mutex_lock(&s->lock);
    s->trace = t;
    pthread_mutex_unlock(&s->lock);
}

int off_store_least_read(struct off_store *s, const struct off_trace *t, uint64_t *bytes)
{
    bool *counts = kn_calloc((size_t)s->n_expert, sizeof *counts);
    int error = counts ? 0 : kn_fail(KN_ENOMEM, "no memory to count %d experts", s->n_expert);
    *bytes = 0;
    for (int pool = 0; pool < s->n_pool && !error; pool++) {
        uint64_t misses = 0, each = 0;
        for (int e = 0; e < s->n_expert; e++) {
            counts[e] = s->pool_of[e] == pool;
            if (counts[e])
                each = read_bytes(s, e);
        }
        pthread_mutex_lock(&s->lock);
        int n_slot = s->pool[pool].n_slot;
        pthread_mutex_unlock(&s->lock);
        error = off_trace_least(t, counts, s->n_expert, n_slot, &misses);
        *bytes += misses * each;
    }
    kn_free(counts);
    return error;
}
