/* Slots: contents and states, reads, and the choice of slots to evict. */
#include "offload/store.h"

#include <string.h>

static bool is_packed(const struct off_store *s, int32_t e) { return s->extent[e].bytes > 0; }

size_t off_slot_bytes_read(const struct off_store *s, int32_t e)
{
    return is_packed(s, e) ? s->extent[e].bytes : off_expert_bytes(&s->expert[e]);
}

void off_slot_view(const struct off_store *s, const struct off_slot *slot, struct off_view *view)
{
    uint8_t *place = slot->place;
    *view = (struct off_view){ .tier = OFF_HOST, .node = s->pool[s->pool_of[slot->expert]].node };
    for (int i = 0; i < OFF_MATRICES; i++) {
        const struct off_source *m = &s->expert[slot->expert].matrix[i];
        if (!m->n_out)
            continue;
        view->matrix[i] = (struct kn_mat){ m->format, m->n_out, m->n_in, m->scale,
                                           slot->packed ? place : off_place_panels(m, place) };
        place += slot->packed ? off_panel_bytes(m) : off_place_bytes(m);
    }
}

static void post_reads(struct off_store *s, struct off_slot *slot, enum off_urgency urgency)
{
    const struct off_extent *x = &s->extent[slot->expert];
    uint8_t *place = slot->place;
    slot->state = SLOT_READING;
    slot->joined = false;
    slot->packed = is_packed(s, slot->expert);
    memset(slot->job, 0, sizeof slot->job);
    if (slot->packed)
        slot->job[0] = (struct off_job){ .file = s->n_file, .offset = x->offset, .bytes = x->bytes, .to = place };
    for (int i = 0; i < OFF_MATRICES && !slot->packed; i++) {
        const struct off_source *m = &s->expert[slot->expert].matrix[i];
        off_place_jobs(m, place, &slot->job[i], OFF_MATRICES);
        place += off_place_bytes(m);
    }
    for (int i = 0; i < OFF_JOBS; i++) {
        slot->job[i].urgency = urgency;
        slot->job[i].copy = slot->copy;
        if (slot->job[i].bytes)
            off_io_post(s->io, &slot->job[i]);
    }
    s->stats.reads++;
    s->stats.read_bytes += off_slot_bytes_read(s, slot->expert);
}

/* The reads of an expert for a fetch, of which nothing is wrong yet. */
static void begin_reads(struct off_store *s, struct off_slot *slot, enum off_urgency urgency)
{
    slot->copy = s->copy_of[slot->expert];
    slot->wrong = 0;
    slot->wrong_mirrored = false;
    post_reads(s, slot, urgency);
}

void off_slot_read_again(struct off_store *s, struct off_slot *slot, enum off_copy copy)
{
    slot->copy = copy;
    post_reads(s, slot, slot->n_hold ? OFF_NOW : slot->urgency);
}

void off_expert_unpack(struct off_store *s, int32_t expert)
{
    if (!s->said_damaged)
        kn_say(KN_LOG_WARN,
               "%s is damaged (expert %d, perhaps others): damaged experts are read from the model's own "
               "file; spillway pack writes a new one",
               s->pack_path, (int)expert);
    s->said_damaged = true;
    s->extent[expert].bytes = 0;
    s->copy_of[expert] = OFF_COPY_ANY;
    s->stats.n_packed--;
}

void off_slot_read_unpacked(struct off_store *s, struct off_slot *slot)
{
    off_expert_unpack(s, slot->expert);
    begin_reads(s, slot, slot->n_hold ? OFF_NOW : slot->urgency);
}

/* Adds the counts of a slot's prefetch to s->doubt, or with doubt false subtracts them.  They are there until the
 * prefetch has been read, cancelled or fetched NOW. */
static void count_doubt(struct off_store *s, struct off_slot *slot, bool doubt)
{
    uint64_t one = doubt ? 1 : -(uint64_t)1, bytes = one * off_slot_bytes_read(s, slot->expert);
    slot->prefetch_cancellable = doubt;
    s->doubt.reads += one;
    s->doubt.read_bytes += bytes;
    s->doubt.soon_reads += one;
    s->doubt.early_bytes += slot->urgency == OFF_EARLY ? bytes : 0;
}

static void end_doubt(struct off_store *s, struct off_slot *slot)
{
    if (slot->prefetch_cancellable)
        count_doubt(s, slot, false);
}

static void set_passing(struct off_store *s, struct off_slot *slot, bool passing)
{
    s->n_passing += passing - slot->passing;
    slot->passing = passing;
}

void off_slot_end_passing(struct off_store *s, struct off_slot *slot) { set_passing(s, slot, false); }

void off_slot_empty(struct off_store *s, struct off_slot *slot)
{
    kn_assert(!slot->prefetch_cancellable);
    if (slot->ahead)
        s->stats.wasted_bytes += off_slot_bytes_read(s, slot->expert);
    if (slot->ahead && slot->urgency == OFF_EARLY)
        s->stats.early_wasted_bytes += off_slot_bytes_read(s, slot->expert);
    s->slot_of[slot->expert] = -1;
    slot->expert = -1;
    slot->state = SLOT_EMPTY;
    slot->ahead = false;
    set_passing(s, slot, false);
    s->n_empty++;
}

/* If all jobs of a slot have ended: makes it raw.  After an error: reads it from the model's files if it was packed, reads
 * it again if another fetch joined, else makes it bad if tickets hold it and must get the error, else empty. */
void off_slot_settle(struct off_store *s, struct off_slot *slot)
{
    if (slot->state != SLOT_READING)
        return;
    int status = 0;
    for (int i = 0; i < OFF_JOBS; i++) {
        if (!slot->job[i].bytes)
            continue;
        if (atomic_load_explicit(&slot->job[i].state, memory_order_acquire) != OFF_JOB_DONE)
            return;
        if (slot->job[i].status)
            status = slot->job[i].status;
    }
    end_doubt(s, slot);
    slot->status = status;
    if (!slot->touched) {
        slot->touched = true;
        pthread_cond_signal(&s->pinnable);
    }
    if (!status)
        slot->state = SLOT_RAW;
    else if (slot->packed)
        off_slot_read_unpacked(s, slot);
    else if (slot->joined)
        begin_reads(s, slot, OFF_NOW);
    else if (slot->n_hold)
        slot->state = SLOT_BAD;
    else
        off_slot_empty(s, slot);
}

bool off_slot_is_used(const struct off_slot *slot)
{
    return slot->n_hold || slot->state == SLOT_READING || slot->state == SLOT_CLAIMED;
}

bool off_slot_late(const struct off_slot *slot)
{
    bool late = false;
    for (int i = 0; i < OFF_JOBS; i++)
        late |= slot->state == SLOT_READING && slot->job[i].bytes && atomic_load(&slot->job[i].late);
    return late;
}

void off_slot_read(struct off_store *s, struct off_slot *slot, int32_t expert, enum off_urgency urgency)
{
    if (slot->expert >= 0)
        off_slot_empty(s, slot);
    slot->expert = expert;
    slot->urgency = urgency;
    slot->ahead = urgency == OFF_SOON || urgency == OFF_EARLY;
    set_passing(s, slot, urgency == OFF_NOW || urgency == OFF_SOON);
    s->slot_of[expert] = (int32_t)(slot - s->slot);
    s->n_empty--;
    begin_reads(s, slot, urgency);
    s->stats.soon_reads += slot->ahead;
    s->stats.early_bytes += urgency == OFF_EARLY ? off_slot_bytes_read(s, expert) : 0;
    if (slot->ahead)
        count_doubt(s, slot, true);
}

void off_slot_take(struct off_store *s, struct off_slot *slot, int32_t expert)
{
    if (slot->expert >= 0)
        off_slot_empty(s, slot);
    s->n_empty--;
    slot->expert = expert;
    slot->state = SLOT_CLAIMED;
    slot->packed = true; /* matrices one behind the other, without the gaps of a read */
    slot->wrong = 0;
    s->slot_of[expert] = (int32_t)(slot - s->slot);
}

void off_slot_taken(struct off_store *s, struct off_slot *slot, bool done)
{
    kn_assert(slot->state == SLOT_CLAIMED);
    slot->status = 0;
    slot->state = SLOT_READY;
    if (!done && slot->n_hold) /* the device has failed, and not the file */
        begin_reads(s, slot, OFF_NOW);
    else if (!done)
        off_slot_empty(s, slot);
}

void off_slot_drop(struct off_store *s, struct off_slot *slot)
{
    kn_assert(slot->n_hold > 0);
    if (--slot->n_hold > 0)
        return;
    set_passing(s, slot, false);
    if (slot->state == SLOT_BAD)
        off_slot_empty(s, slot);
}

/* Cancels all jobs of a prefetch and empties the slot, if no job has begun.  Tries the last job first: jobs of one
 * urgency begin in order, so if the last has begun they all have.  Jobs cancelled before one that has begun are posted
 * again. */
void off_slot_cancel(struct off_store *s, struct off_slot *slot)
{
    int i = OFF_JOBS;
    if (!slot->prefetch_cancellable)
        return;
    while (i-- > 0)
        if (slot->job[i].bytes && !off_io_cancel(s->io, &slot->job[i]))
            break;
    if (i < 0) {
        kn_assert(slot->n_hold == 0);
        end_doubt(s, slot);
        s->stats.reads--;
        s->stats.read_bytes -= off_slot_bytes_read(s, slot->expert);
        s->stats.soon_reads--;
        s->stats.early_bytes -= slot->urgency == OFF_EARLY ? off_slot_bytes_read(s, slot->expert) : 0;
        slot->ahead = false;
        off_slot_empty(s, slot);
        return;
    }
    while (++i < OFF_JOBS)
        if (slot->job[i].bytes)
            off_io_post(s->io, &slot->job[i]);
}

/* Jobs of a slot begin in order, so the state of job[0] is enough. */
bool off_slot_begun(const struct off_slot *slot)
{
    return atomic_load_explicit(&slot->job[0].state, memory_order_relaxed) != OFF_JOB_QUEUED;
}

/* For a slot prefetched EARLY that is now fetched NOW: counts its bytes as used.  If its read has not begun,
 * the prefetch saved no time: subtracts the bytes from early_bytes instead. */
static void count_early(struct off_store *s, const struct off_slot *slot)
{
    if (slot->prefetch_cancellable && !off_slot_begun(slot))
        s->stats.early_bytes -= off_slot_bytes_read(s, slot->expert);
    else
        s->stats.early_used_bytes += off_slot_bytes_read(s, slot->expert);
}

/* Begins a hold for a NOW ticket: its reads become NOW, it is no prefetch from here on, and it cannot be evicted or
 * cancelled. */
void off_slot_hold(struct off_store *s, struct off_slot *slot)
{
    if (slot->ahead && slot->urgency == OFF_EARLY)
        count_early(s, slot);
    end_doubt(s, slot);
    for (int i = 0; slot->state == SLOT_READING && i < OFF_JOBS; i++)
        if (slot->job[i].bytes)
            off_io_raise(s->io, &slot->job[i]);
    s->stats.soon_hits += slot->ahead;
    slot->ahead = false;
    slot->n_hold++;
}

void off_slot_join(struct off_store *s, struct off_slot *slot)
{
    if (slot->state == SLOT_BAD)
        begin_reads(s, slot, OFF_NOW);
    else
        slot->joined = slot->state == SLOT_READING;
    off_slot_hold(s, slot);
}

bool off_slot_is_there(const struct off_store *s, int32_t expert)
{
    enum slot_state state = s->slot_of[expert] < 0 ? SLOT_EMPTY : s->slot[s->slot_of[expert]].state;
    return state == SLOT_RAW || state == SLOT_CLAIMED || state == SLOT_READY;
}

/* ---- choice of slots to evict -------------------------------------------------------------------- */

static void sift(struct off_victim *heap, int n, int at)
{
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1].wait < heap[child].wait)
            child++;
        if (heap[at].wait <= heap[child].wait)
            return;
        struct off_victim t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
    }
}

int off_slot_victims(struct off_store *s, const struct off_pool *p, int n, float least)
{
    struct off_victim *heap = s->victim; /* min-heap by wait: the up to n best slots so far */
    int found = 0;
    for (int i = p->slot0; i < p->slot0 + p->n_slot && n > 0; i++) {
        struct off_slot *slot = &s->slot[i];
        float wait;
        off_slot_settle(s, slot);
        if (off_slot_is_used(slot))
            continue;
        if (slot->state == SLOT_EMPTY)
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
            heap[at] = (struct off_victim){ wait, i };
        } else {
            heap[0] = (struct off_victim){ wait, i };
            sift(heap, found, 0);
        }
    }
    return found;
}
