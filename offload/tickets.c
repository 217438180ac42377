/* Tickets: fetch, wait, release; experts that come back from a device. */
#include "offload/store.h"

#include <math.h>

#define EVEN       2  /* a prefetched expert counts as used with probability 1 / EVEN */
#define EARLY_FREE 16 /* experts; with EARLY_PART the limit of unused EARLY reads, see min_idle_turns */
#define EARLY_PART 16

enum mark { MARK_MISSING, MARK_HELD, MARK_GIVEN, MARK_BACK };

static void place(struct off_store *s, struct off_ticket *t, int i)
{
    t->n_missing--;
    t->mark[i] = MARK_BACK;
    if (t->urgency == OFF_NOW) {
        off_slot_hold(s, &s->slot[s->slot_of[t->expert[i]]]);
        t->mark[i] = MARK_HELD;
    }
}

/* The number of experts that the window still lets the ticket read.  A NOW ticket counts its own passing experts only,
 * so that it never waits for prefetches; a SOON ticket counts those of all tickets.  For EARLY the window sets no
 * limit, because min_idle_turns limits the bytes. */
static int window_left(const struct off_store *s, const struct off_ticket *t)
{
    int n = 0;
    if (t->urgency != OFF_NOW)
        return t->urgency == OFF_SOON ? s->window - s->n_passing : t->n;
    for (int i = 0; i < t->n; i++)
        n += (t->mark[i] == MARK_HELD || t->mark[i] == MARK_GIVEN) && s->slot[s->slot_of[t->expert[i]]].passing;
    return s->window - n;
}

/* Assigns slots to the ticket's missing experts and starts their reads, as far as the window allows and slots with an
 * off_policy_wait of at least `least` can be evicted. */
static void place_missing(struct off_store *s, struct off_ticket *t, float least)
{
    for (int i = 0; t->n_missing && i < t->n; i++) /* another ticket may have started the read */
        if (t->mark[i] == MARK_MISSING && s->slot_of[t->expert[i]] >= 0)
            place(s, t, i);
    int left = t->n_missing ? window_left(s, t) : 0;
    for (int pool = 0; pool < s->n_pool && left > 0; pool++) {
        int want = 0;
        for (int i = 0; i < t->n; i++)
            want += t->mark[i] == MARK_MISSING && s->pool_of[t->expert[i]] == pool;
        int n = want ? off_slot_victims(s, &s->pool[pool], kn_min(want, left), least) : 0;
        left -= n;
        for (int i = 0; i < t->n && n > 0; i++)
            if (t->mark[i] == MARK_MISSING && s->pool_of[t->expert[i]] == pool) {
                off_slot_read(s, &s->slot[s->victim[--n].slot], t->expert[i], t->urgency);
                place(s, t, i);
            }
    }
}

/* The smallest off_policy_wait of a slot that this fetch of `expert` and others of its group may evict.  NOW: any slot.
 * A prefetched expert is assumed to be used with probability 1 / EVEN at its group's next turn.  So its own
 * off_policy_wait is EVEN * off_policy_ahead, and it evicts no expert with a smaller one.  EARLY bytes not used are
 * limited to the EARLY bytes used, plus 1/EARLY_PART of all bytes read, plus EARLY_FREE experts; above the limit an
 * EARLY fetch gets no slot. */
static float min_idle_turns(const struct off_store *s, int32_t expert, enum off_urgency urgency)
{
    const struct off_stats *t = &s->stats;
    uint64_t free = t->read_bytes / EARLY_PART + EARLY_FREE * off_slot_bytes_read(s, expert);
    if (urgency == OFF_NOW)
        return -1;
    if (urgency == OFF_EARLY && t->early_bytes > 2 * t->early_used_bytes + free)
        return HUGE_VALF;
    return EVEN * (float)off_policy_ahead(s->policy, expert);
}

/* Assigns slots that can be evicted now to the missing experts of SOON tickets, unless a thread waits for slots. */
static void place_soon(struct off_store *s)
{
    for (struct off_ticket *t = s->soon; t && !s->n_starved; t = t->next)
        if (t->n_missing)
            place_missing(s, t, min_idle_turns(s, t->expert[0], OFF_SOON));
}

static void forget_soon(struct off_store *s, const struct off_ticket *t)
{
    struct off_ticket **at = &s->soon;
    while (*at && *at != t)
        at = &(*at)->next;
    if (*at)
        *at = t->next;
}

/* ---- fetch, wait, release --------------------------------------------------------------------------- */

/* n_used: as in off_fetch_now. */
static void fetch(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, int n_used,
                  enum off_urgency urgency, struct off_ticket *out)
{
    bool now = urgency == OFF_NOW;
    *out = (struct off_ticket){ .expert = expert, .mark = mark, .n = n, .urgency = urgency };
    pthread_mutex_lock(&s->lock);
    if (now)
        off_policy_use(s->policy, expert, n, n_used);
    if (now && s->trace && n)
        off_trace_add(s->trace, expert, n);
    for (int i = 0; i < n; i++) {
        kn_assert(expert[i] >= 0 && expert[i] < s->n_expert);
        int32_t slot = s->slot_of[expert[i]];
        if (!now)
            s->spared[expert[i]]++;
        if (slot >= 0)
            off_slot_settle(s, &s->slot[slot]);
        if (s->slot_of[expert[i]] < 0) { /* settle may have emptied the slot of a failed read */
            mark[i] = MARK_MISSING;
            out->n_missing++;
            s->stats.misses += now;
        } else if (now) {
            off_slot_join(s, &s->slot[slot]);
            ++*(s->slot[slot].state == SLOT_READING ? &s->stats.misses : &s->stats.hits);
            mark[i] = MARK_HELD;
        } else {
            mark[i] = MARK_BACK;
        }
    }
    if (n)
        place_missing(s, out, min_idle_turns(s, expert[0], urgency));
    if (out->n_missing && urgency == OFF_SOON) {
        out->next = s->soon;
        s->soon = out;
    }
    pthread_mutex_unlock(&s->lock);
}

void off_fetch(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, enum off_urgency urgency,
               struct off_ticket *out)
{
    fetch(s, expert, mark, n, n, urgency, out);
}

void off_fetch_now(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, int n_used, struct off_ticket *out)
{
    fetch(s, expert, mark, n, n_used, OFF_NOW, out);
}

void off_fetch_draft(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, bool *held,
                     struct off_ticket *out)
{
    *out = (struct off_ticket){ .expert = expert, .mark = mark, .n = n, .urgency = OFF_NOW };
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        int32_t slot = s->slot_of[expert[i]];
        if (slot >= 0)
            off_slot_settle(s, &s->slot[slot]);
        held[i] = off_slot_is_there(s, expert[i]);
        mark[i] = held[i] ? MARK_HELD : MARK_BACK;
        out->n_given += !held[i];
        if (held[i])
            s->slot[slot].n_hold++;
    }
    pthread_mutex_unlock(&s->lock);
}

static void take_back(struct off_store *s, struct off_ticket *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->mark[i] == MARK_GIVEN) {
            off_slot_drop(s, &s->slot[s->slot_of[t->expert[i]]]);
            t->mark[i] = MARK_BACK;
        }
    if (s->n_starved)
        off_io_nudge(s->io);
}

/* Hands out held experts of the ticket that are ready or have failed: passing ones if `passing`, else those that are
 * not passing.  Appends them to index, view and status, which hold n experts, until they hold `most`; returns the new
 * number.  An expert with a late read counts as failed. */
static int give_some(struct off_store *s, struct off_ticket *t, bool passing, int n, int most, int32_t *index,
                     struct off_view *view, int *status)
{
    for (int i = 0; i < t->n && n < most; i++) {
        struct off_slot *slot = t->mark[i] == MARK_HELD ? &s->slot[s->slot_of[t->expert[i]]] : NULL;
        if (!slot || slot->passing != passing)
            continue;
        off_slot_settle(s, slot);
        bool late = off_slot_late(slot);
        if (slot->state != SLOT_READY && slot->state != SLOT_BAD && !late)
            continue;
        status[n] = late ? KN_EIO : slot->state == SLOT_BAD ? slot->status : 0;
        if (status[n]) { /* no address, so its hold ends at once */
            view[n] = (struct off_view){ 0 };
            t->mark[i] = MARK_BACK;
            off_slot_drop(s, slot);
        } else {
            off_slot_view(s, slot, &view[n]);
            t->mark[i] = MARK_GIVEN;
        }
        index[n++] = i;
        t->n_given++;
    }
    return n;
}

/* Hands out experts as off_wait describes.  While experts of the ticket are still without a slot, at most half a window
 * at a time, passing ones first: their slots come back soon, and the disk reads the next experts meanwhile. */
static int give(struct off_store *s, struct off_ticket *t, int32_t *index, struct off_view *view, int *status)
{
    int most = t->n_missing ? (s->window + 1) / 2 : t->n;
    int n = give_some(s, t, true, 0, most, index, view, status);
    return give_some(s, t, false, n, most, index, view, status);
}

/* Claims the ticket's raw slots for this caller to interleave and verify; returns their number.  index: their positions
 * in the ticket, sorted by node; items cut[k] .. cut[k + 1] - 1 are node k's, OFF_MATRICES items per expert. */
static int claim(struct off_store *s, struct off_ticket *t, int32_t *index, int cut[KN_NODES + 1])
{
    int n = 0;
    for (int node = 0; node <= KN_NODES; node++) {
        cut[node] = n * OFF_MATRICES;
        for (int i = 0; node < s->machine.n_node && i < t->n; i++) {
            struct off_slot *slot = t->mark[i] == MARK_HELD ? &s->slot[s->slot_of[t->expert[i]]] : NULL;
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
    struct off_slot *slot = &j->s->slot[j->s->slot_of[e]];
    const struct off_source *m = &j->s->expert[e].matrix[matrix];
    struct off_view view;
    slot->check[matrix] = 0;
    if (!m->n_out)
        return;
    if (!slot->packed)
        off_interleave(j->hands->ops, m, off_place_of(m, slot->job, matrix),
                       j->hands->scratch + (size_t)thread * j->hands->scratch_bytes);
    off_slot_view(j->s, slot, &view);
    slot->check[matrix] = off_check(view.matrix[matrix].data, kn_mat_bytes(m->format, m->n_out, m->n_in));
}

/* Whether the checksum of one of n claimed experts will be learnt from this read. */
static bool learns(const struct off_store *s, const struct off_ticket *t, const int32_t *index, int n)
{
    bool learns = false;
    for (int i = 0; i < n; i++) {
        int32_t e = t->expert[index[i]];
        learns |= !s->slot[s->slot_of[e]].packed && s->known[e] == OFF_KNOWN_NOT;
    }
    return learns;
}

int off_wait(struct off_store *s, struct off_ticket *t, const struct off_hands *hands, int32_t *index,
             struct off_view *view, int *status)
{
    int n = 0, cut[KN_NODES + 1];
    kn_assert(t->urgency == OFF_NOW && hands->scratch_bytes >= s->scratch_bytes);
    pthread_mutex_lock(&s->lock);
    take_back(s, t);
    place_missing(s, t, -1);
    if (!t->n_missing)
        place_soon(s);
    while (t->n_given < t->n) {
        uint64_t seen = off_io_events(s->io);
        place_missing(s, t, -1);
        if ((n = give(s, t, index, view, status)) > 0)
            break;
        int n_claimed = claim(s, t, index, cut);
        bool looks = learns(s, t, index, n_claimed), starved = !n_claimed && t->n_missing && window_left(s, t) > 0;
        s->n_starved += starved;
        pthread_mutex_unlock(&s->lock);
        uint64_t began = kn_now_ns();
        if (n_claimed) {
            struct claimed job = { s, t, index, hands };
            kn_parallel_on(hands->team, cut, claimed_item, &job);
            if (looks) /* after the read: bytes of a file that has been overwritten are not learnt */
                off_watch_look(s->watch);
        } else {
            off_io_wait(s->io, seen);
        }
        uint64_t ns = kn_now_ns() - began;
        pthread_mutex_lock(&s->lock);
        s->n_starved -= starved;
        *(n_claimed ? &s->stats.repack_ns : &s->stats.stall_ns) += ns;
        for (int i = 0; i < n_claimed; i++)
            off_slot_verify(s, &s->slot[s->slot_of[t->expert[index[i]]]]);
        if (n_claimed) /* other tickets may wait for these experts */
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
        if (t->mark[i] == MARK_HELD) /* never handed out: take_back ends this hold too */
            t->mark[i] = MARK_GIVEN;
        if (t->urgency == OFF_NOW || --s->spared[e] || at < 0 || !s->slot[at].ahead)
            continue;
        off_slot_end_passing(s, &s->slot[at]);
        off_slot_settle(s, &s->slot[at]);
        if (s->slot[at].state == SLOT_READING)
            off_slot_cancel(s, &s->slot[at]);
    }
    take_back(s, t);
    forget_soon(s, t);
    place_soon(s);
    pthread_mutex_unlock(&s->lock);
    *t = (struct off_ticket){ 0 };
}

/* ---- experts that come back from elsewhere ---------------------------------------------------------- */

void off_store_elsewhere(struct off_store *s, int32_t expert, bool elsewhere)
{
    pthread_mutex_lock(&s->lock);
    off_policy_set_elsewhere(s->policy, expert, elsewhere);
    pthread_mutex_unlock(&s->lock);
}

/* The slot of `left` if the ticket alone uses it, which then no longer does; or NULL. */
static struct off_slot *slot_left(struct off_store *s, struct off_ticket *t, int32_t left, int pool)
{
    struct off_slot *slot = left < 0 || s->slot_of[left] < 0 ? NULL : &s->slot[s->slot_of[left]];
    if (!slot || slot->n_hold != 1 || slot->state != SLOT_READY || s->pool_of[left] != pool)
        return NULL;
    for (int i = 0; i < t->n; i++)
        if (t->expert[i] == left && t->mark[i] == MARK_GIVEN) {
            t->mark[i] = MARK_BACK;
            off_slot_drop(s, slot);
            return slot;
        }
    return NULL;
}

/* A slot that is empty, or of an expert that is elsewhere; or NULL. */
static struct off_slot *slot_to_spare(struct off_store *s, int pool)
{
    struct off_slot *slot = off_slot_victims(s, &s->pool[pool], 1, 0) ? &s->slot[s->victim[0].slot] : NULL;
    return slot && (slot->expert < 0 || off_policy_is_elsewhere(s->policy, slot->expert)) ? slot : NULL;
}

/* May a device copy to the slot?  The driver copies to memory that is not pinned while the host's thread waits; the device's
 * other queue may be awaiting this thread. */
static bool takes_copies(const struct off_store *s, const struct off_slot *slot, int pool)
{
    const struct off_pool *p = &s->pool[pool];
    return !s->pin_device || slot - s->slot < p->slot0 + p->n_pinned;
}

bool off_store_bring_back(struct off_store *s, struct off_ticket *t, int32_t left, int32_t expert,
                          struct off_view *view)
{
    struct off_slot *slot = NULL;
    int pool = s->pool_of[expert];
    pthread_mutex_lock(&s->lock);
    if (s->slot_of[expert] < 0) {
        slot = slot_left(s, t, left, pool);
        slot = slot ? slot : slot_to_spare(s, pool);
        slot = slot && takes_copies(s, slot, pool) ? slot : NULL;
    }
    if (slot) {
        off_slot_take(s, slot, expert);
        off_slot_view(s, slot, view);
    }
    pthread_mutex_unlock(&s->lock);
    return slot;
}

void off_store_brought_back(struct off_store *s, int32_t expert, bool done)
{
    pthread_mutex_lock(&s->lock);
    off_slot_taken(s, &s->slot[s->slot_of[expert]], done);
    off_io_nudge(s->io);
    pthread_mutex_unlock(&s->lock);
}
