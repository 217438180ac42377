/* Pinning: one thread registers the memory of slots with a device, which then copies experts from there by itself, beside
 * the work of the host.
 *
 * A device's driver registers one range at a time, gives memory to pages that have none, and may keep others waiting for as
 * long.  So there is one thread, it pins slots that were touched, and pieces are short.  A piece is whole slots: a copy of an
 * expert never has memory of two pieces.  If the device refuses a piece, half of it is tried, down to one slot: that is the
 * limit, which no system tells in advance. */
#include "offload/store.h"

#define PIECE_BYTES ((size_t)64 << 20)

struct piece {
    struct off_pool *pool;
    int n_slot;
};

/* Slots that were touched behind the pool's pinned ones: as many as a piece has, or all that the pool has left. */
static int slots_to_pin(const struct off_store *s, const struct off_pool *p)
{
    int most = p->slot_bytes < s->piece_bytes ? (int)(s->piece_bytes / p->slot_bytes) : 1, n = 0;
    most = kn_min(most, p->n_slot - p->n_pinned);
    while (n < most && (s->slot[p->slot0 + p->n_pinned + n].touched || !s->n_toucher))
        n++;
    return n == most ? n : 0;
}

/* Waits for the next piece, with the lock.  False: the store is closing. */
static bool next_piece(struct off_store *s, struct piece *out)
{
    while (!s->stop) {
        for (int i = 0; i < s->n_pool; i++) {
            *out = (struct piece){ &s->pool[i], slots_to_pin(s, &s->pool[i]) };
            if (out->n_slot)
                return true;
        }
        pthread_cond_wait(&s->pinnable, &s->lock);
    }
    return false;
}

static void report(struct off_store *s, const char *why)
{
    struct off_stats stats;
    off_stats_get(s, &stats);
    if (!stats.pinning)
        kn_say(why ? KN_LOG_WARN : KN_LOG_INFO,
               "%llu of %llu MiB of the host's memory of experts are pinned for copies to the device%s%s%s",
               (unsigned long long)(stats.pinned_bytes >> 20), (unsigned long long)(stats.slot_bytes >> 20),
               why ? "; the driver refuses more (" : "", why ? why : "",
               why ? "), and the rest is copied through a buffer" : "");
}

/* Pins a piece, and if the device refuses, halves the pieces that follow. */
static void pin_piece(struct off_store *s, const struct piece *piece)
{
    struct off_pool *p = piece->pool;
    struct off_slot *first = &s->slot[p->slot0 + p->n_pinned];
    size_t bytes = (size_t)piece->n_slot * p->slot_bytes;
    const char *why = NULL;
    p->n_pinning = piece->n_slot;
    pthread_mutex_unlock(&s->lock);
    bool refused = kn_host_pin(s->pin_device, first->place, bytes, &why) != 0;
    pthread_mutex_lock(&s->lock);
    p->n_pinning = 0;
    if (refused) {
        s->pin_refused = piece->n_slot == 1;
        s->piece_bytes = bytes / 2;
    } else {
        first->pins = true;
        p->n_pinned += piece->n_slot;
    }
    pthread_mutex_unlock(&s->lock);
    if (!refused || s->pin_refused)
        report(s, refused ? why : NULL);
    pthread_mutex_lock(&s->lock);
}

static void *pin_main(void *arg)
{
    struct off_store *s = arg;
    struct piece piece;
    kn_thread_give_way();
    pthread_mutex_lock(&s->lock);
    while (!s->pin_refused && next_piece(s, &piece))
        pin_piece(s, &piece);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Without the thread only speed is lost. */
void off_store_pin(struct off_store *s, const struct kn_device *device)
{
    pthread_mutex_lock(&s->lock);
    if (!s->pin_device && kn_device_pins(device)) {
        s->piece_bytes = PIECE_BYTES;
        s->pin_device = device;
        if (pthread_create(&s->pinner, NULL, pin_main, s) != 0)
            s->pin_device = NULL;
    }
    pthread_mutex_unlock(&s->lock);
}

void off_pin_close(struct off_store *s)
{
    if (!s->pin_device)
        return;
    pthread_join(s->pinner, NULL);
    for (int i = 0; i < s->n_listed; i++)
        if (s->slot[i].pins)
            kn_host_unpin(s->pin_device, s->slot[i].place);
}
