/* tests/emulated/late.h - a device that runs operations late: on the host, in order, but only when the queue is waited
 * for, or in part at a random moment before.  It finds callers that depend on the host's queue, which runs every
 * operation at once:
 *
 *   - the memory that an operation reads must be the same when it runs as when it was added, unless an operation before
 *     it in the queue writes there: the caller may write or free it only after a wait;
 *   - the memory that an operation writes is filled with 0xee when it is added, where no operation in the queue touches
 *     it: a caller that reads a result before a wait finds no result.
 *
 *     struct late_device d = late_device(isa, seed);     options.device = &d.base
 *     ...                                                late_found(): the first finding, or NULL
 *
 * late_device_apart() makes a device that also has memory of its own, as a GPU has.  The caller cannot read or write it
 * (the process faults), and all that operations name must lie in it but for the host's end of a TRANSFER.  New memory of
 * the device is 0, and so is the host's image: a piece that was not copied is missed.  The device must stay where it is
 * while it has memory.  It pins memory of the host, or refuses to (late_pins); a transfer must not have a part of a pinned
 * range.
 *
 * Its queues may await words, while which no memory may be pinned.  A queue runs no operation behind an AWAIT whose word has not got its value; a host that waits then for
 * the queue would wait for ever, which is found.
 *
 * Queues.  Any number, of any number of contexts and threads.  When the host waits for a queue, operations of all queues run, in
 * an order of late_order that events allow.  Every operation's reads and writes, and those that the host tells of
 * (late_host_touch, tests/emulated/host.h), are checked by vector clocks (clocks.h), whatever the order of this run was: two
 * accesses of the same bytes, one of them a write, must be ordered by a queue, a word, or the host's waiting.
 * Copies.  A copy reads its source when it runs, and the host finds nothing at its target before it has waited: the bytes are held
 * back until then.  The source must stay as it was when the copy was added until the host has waited, not only until it ran.
 * Faults.  late_faults: an allocation, or an operation, with a number fails.  An operation that fails ends the device: nothing runs
 * any more, words are not written, and each wait returns KN_EIO.
 *
 * kn_op_fields() names the memory that an operation reads and writes. */
#ifndef TESTS_EMULATED_LATE_H
#define TESTS_EMULATED_LATE_H

#include "tests/emulated/late_memory.h"

/* ---- the queue ------------------------------------------------------------------------------------------------ */

static void late_note(void *arg, const char *field, enum kn_access access, const void *at, size_t bytes)
{
    struct late_op *o = arg;
    if (o->n_piece == o->room)
        o->piece = realloc(o->piece, sizeof *o->piece * (size_t)(o->room = 2 * o->room + 64));
    o->piece[o->n_piece++] = (struct late_piece){ field, access, (uint8_t *)(uintptr_t)at, bytes, false, 0 };
}

struct late_check {
    const struct late_device *device;
    const struct kn_op *op;
};

/* Checks that a piece lies in the device's memory; of a transfer, one of its two ends. */
static void late_check_place(void *arg, const char *field, enum kn_access access, const void *at, size_t bytes)
{
    const struct late_check *c = arg;
    (void)access;
    if (c->op->kind == KN_OP_TRANSFER && strcmp(field, "when")) {
        if (!late_is_ours(c->device, c->op->transfer.from, bytes) ==
            !late_is_ours(c->device, c->op->transfer.to, bytes))
            late_find(c->op, field, "is not one end in the device's memory");
    } else if (!late_is_ours(c->device, at, bytes) && strcmp(field, "done")) { /* words are the host's */
        late_find(c->op, field, "is not in the device's memory");
    }
}

static bool late_reads(const struct late_piece *p) { return p->access == KN_READS || p->access == KN_CHANGES; }

static bool late_is_blocked(const struct late_op *o)
{
    return o->op.kind == KN_OP_AWAIT && !kn_word_reached(o->op.await.word, o->op.await.value);
}

/* ---- copies that the host has not waited for ------------------------------------------------------------------- */

static bool late_meets(const struct late_copy *c, const uint8_t *at, size_t bytes)
{
    return c->at < at + bytes && at < c->at + c->bytes;
}

/* The host may know of the i-th: the source was to stay as it was, and the target gets its bytes. */
static void late_end_copy(struct late_device *d, int i)
{
    struct late_copy c = d->copy[i];
    memmove(d->copy + i, d->copy + i + 1, (size_t)(--d->n_copy - i) * sizeof *d->copy);
    if (d->faults.dead) /* neither is known to be done */
        ;
    else if (c.held)
        memcpy(c.at, c.held, c.bytes);
    else if (XXH3_64bits(c.at, c.bytes) != c.hash && !*late_message)
        snprintf(late_message, sizeof late_message, "transfer: from was changed before the host has waited for it");
    free(c.held);
}

/* Ends the copies that the host has waited for. */
static void late_end_copies(struct late_device *d)
{
    for (int i = 0; i < d->n_copy;)
        if (clock_has(&d->clock, d->copy[i].queue, d->copy[i].step))
            late_end_copy(d, i);
        else
            i++;
}

static void late_end_copies_of(struct late_device *d, const uint8_t *at, size_t bytes)
{
    for (int i = 0; i < d->n_copy;)
        if (late_meets(&d->copy[i], at, bytes))
            late_end_copy(d, i);
        else
            i++;
}

static void late_begin_copy(struct late_queue *q, struct late_copy c)
{
    struct late_device *d = q->device;
    c.queue = q->actor;
    c.step = q->clock.at[q->actor];
    if (d->n_copy == d->copy_room)
        d->copy = realloc(d->copy, (size_t)(d->copy_room = 2 * d->copy_room + 64) * sizeof *d->copy);
    d->copy[d->n_copy++] = c;
}

/* The end of a transfer in the host's memory; NULL: there is none. */
static uint8_t *late_host_end(const struct late_device *d, const struct kn_op *op, bool *is_target)
{
    const struct kn_op_transfer *t = &op->transfer;
    *is_target = !late_is_ours(d, t->to, t->bytes);
    bool is_source = !late_is_ours(d, t->from, t->bytes);
    return op->kind != KN_OP_TRANSFER || !(*is_target || is_source) ? NULL
           : *is_target                                             ? t->to
                                                                    : (uint8_t *)(uintptr_t)t->from;
}

/* After a transfer has run: bytes for a target are held back; a source must stay. */
static void late_hold(struct late_queue *q, const struct late_op *o)
{
    bool is_target;
    uint8_t *at = late_host_end(q->device, &o->op, &is_target);
    size_t bytes = o->op.transfer.bytes;
    if (!at)
        return;
    if (!is_target) {
        if (o->piece[0].checked)
            late_begin_copy(q, (struct late_copy){ .at = at, .bytes = bytes, .hash = o->piece[0].hash });
        return;
    }
    struct late_copy c = { .at = at, .bytes = bytes, .held = malloc(bytes) };
    memcpy(c.held, at, bytes);
    memset(at, 0xee, bytes);
    late_begin_copy(q, c);
}

/* ---- words ------------------------------------------------------------------------------------------------------ */

static struct late_word *late_word_of(struct late_device *d, const uint32_t *word)
{
    for (int i = 0; i < d->n_word; i++)
        if (d->word[i]->word == word)
            return d->word[i];
    d->word = realloc(d->word, (size_t)(d->n_word + 1) * sizeof *d->word);
    struct late_word *w = calloc(1, sizeof *w);
    w->word = word;
    return d->word[d->n_word++] = w;
}

static void late_signal(struct late_queue *q, const uint32_t *word, uint32_t value)
{
    struct late_word *w = late_word_of(q->device, word);
    w->signal[w->n++ % LATE_SIGNALS] = (struct late_signal){ value, q->clock };
}

/* The clock learns from a word that has reached the value: all that was known to be done when the first operation wrote so much.  From a
 * word of the host it learns nothing. */
static void late_learn(struct late_device *d, struct clock *c, const uint32_t *word, uint32_t value)
{
    const struct late_word *w = late_word_of(d, word);
    for (int i = kn_max(0, w->n - LATE_SIGNALS); i < w->n; i++) {
        const struct late_signal *s = &w->signal[i % LATE_SIGNALS];
        if ((int32_t)(s->value - value) >= 0) {
            clock_join(c, &s->clock);
            return;
        }
    }
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

struct late_access {
    struct late_queue *queue;
    const struct kn_op *op;
};

static void late_check_order(void *arg, const char *field, enum kn_access access, const void *at, size_t bytes)
{
    const struct late_access *a = arg;
    if (!clock_access(&a->queue->device->touched, at, bytes, access != KN_READS, a->queue->actor, &a->queue->clock,
                      true))
        late_find(a->op, field, "is touched by the host or another queue, and no event is between");
}

/* On a device with memory of its own, before an operation runs. */
static void late_check(struct late_queue *q, struct late_op *o)
{
    struct late_device *d = q->device;
    bool is_target;
    clock_join(&q->clock, &o->added);
    q->clock.at[q->actor]++;
    if (o->op.kind == KN_OP_AWAIT)
        late_learn(d, &q->clock, o->op.await.word, o->op.await.value);
    kn_op_fields(&o->op, late_check_place, &(struct late_check){ d, &o->op });
    kn_op_fields(&o->op, late_check_order, &(struct late_access){ q, &o->op });
    uint8_t *at = late_host_end(d, &o->op, &is_target);
    if (at)
        late_end_copies_of(d, at, o->op.transfer.bytes);
}

static void late_run_one(struct late_queue *q, struct late_op *o)
{
    const struct kn_op *op = &o->op;
    bool apart = late_is_apart(q->device), lists = op->kind == KN_OP_GROUP && op->group.out && op->group.done;
    if (apart)
        late_check(q, o);
    for (int k = 0; k < o->n_piece; k++)
        if (o->piece[k].checked && XXH3_64bits(o->piece[k].at, o->piece[k].bytes) != o->piece[k].hash)
            late_find(op, o->piece[k].field, "was changed after the operation was added, before it ran");
    late_check_pins(q->device, op);
    uint32_t was = lists ? __atomic_load_n(op->group.done, __ATOMIC_RELAXED) : 0;
    kn_queue_add(q->host, op);
    kn_queue_wait(q->host);
    if (op->kind == KN_OP_SIGNAL)
        late_signal(q, op->signal.word, op->signal.value);
    if (lists && __atomic_load_n(op->group.done, __ATOMIC_RELAXED) != was)
        late_signal(q, op->group.done, op->group.turn);
    if (apart)
        late_hold(q, o);
}

/* Ends the first operation that waits, which has run or never will. */
static void late_end(struct late_queue *q, struct late_op *o)
{
    if (o->op.kind == KN_OP_AWAIT)
        __atomic_fetch_sub(&q->device->n_await, 1, __ATOMIC_RELAXED);
    o->n_piece = 0;
    q->n_run++;
}

/* Runs the first operations that wait, at most `most`; of a device that has failed none: all end. */
static void late_run(struct late_queue *q, uint32_t most)
{
    struct late_device *d = q->device;
    uint32_t n = 0;
    late_access(d, true);
    for (; n < most && !d->faults.dead && !late_is_blocked(&q->waiting[n]); n++) {
        if (++d->faults.n_op == d->faults.op_at) {
            d->faults.dead = true;
            kn_fail(KN_EIO, "the emulated device has failed");
            break;
        }
        late_run_one(q, &q->waiting[n]);
        late_end(q, &q->waiting[n]);
    }
    late_access(d, false);
    while (d->faults.dead && q->n_run < q->n_added)
        late_end(q, &q->waiting[n++]);
    for (uint32_t i = n; i < n + q->n_added - q->n_run; i++) { /* the rest moves up; each keeps its array of pieces */
        struct late_op moved = q->waiting[i - n];
        q->waiting[i - n] = q->waiting[i];
        q->waiting[i] = moved;
    }
}

static uint32_t late_below(struct late_device *d, uint32_t n) { return (uint32_t)(kn_mix(d->random += KN_GOLDEN) % n); }

static uint32_t late_n(const struct late_queue *q) { return q->n_added - q->n_run; }

/* Runs operations of queues other than q, from a random one on: of its group, or of others.  With `all` as many as there are, else
 * some of one queue.  False: none can run. */
static bool late_run_others(struct late_queue *q, bool group, bool all)
{
    struct late_device *d = q->device;
    int from = (int)late_below(d, CLOCK_ACTORS);
    bool ran = false;
    for (int i = 0; i < CLOCK_ACTORS && (all || !ran); i++) {
        struct late_queue *other = d->queue[(from + i) % CLOCK_ACTORS];
        if (!other || other == q || (other->group == q->group) != group || !late_n(other))
            continue;
        uint32_t before = other->n_run;
        late_run(other, all ? late_n(other) : 1 + late_below(d, late_n(other)));
        ran |= other->n_run != before;
    }
    return ran;
}

static bool late_run_some(struct late_queue *q, uint32_t most)
{
    uint32_t before = q->n_run;
    if (late_n(q))
        late_run(q, most);
    return q->n_run != before;
}

/* Runs some operations of a queue, or of others.  False: none of its group can run. */
static bool late_step(struct late_queue *q)
{
    struct late_device *d = q->device;
    uint32_t n = late_n(q);
    if (d->order == LATE_LAST) /* one at a time; others only if they are needed */
        return late_run_some(q, 1) || late_run_others(q, true, false);
    if (d->order == LATE_OTHERS) {
        late_run_others(q, false, true);
        bool ran = late_run_others(q, true, true);
        return late_run_some(q, 1) || ran;
    }
    if (d->order == LATE_FIRST) {
        bool ran = late_run_some(q, n);
        return late_run_others(q, true, true) || ran;
    }
    if (late_below(d, 8) == 0)
        late_run_others(q, false, false);
    if (late_below(d, 2) == 0 && late_run_others(q, true, false))
        return true;
    return late_run_some(q, n ? 1 + late_below(d, n) : 0) || late_run_others(q, true, false);
}

/* After an operation was added.  To open and close the device's memory takes longer than most operations, so it is not done for each. */
static void late_run_early(struct late_queue *q, enum kn_op_kind kind)
{
    struct late_device *d = q->device;
    bool ends = kind == KN_OP_TRANSFER || kind == KN_OP_SIGNAL;
    if (d->order == LATE_FIRST && (ends || !late_is_apart(d)))
        late_step(q);
    else if (d->order == LATE_RANDOM && late_below(d, late_is_apart(d) ? 12 : 4) == 0)
        late_run(q, late_below(d, late_n(q) + 1));
    else if (d->order == LATE_RANDOM && late_below(d, 24) == 0)
        late_run_others(q, late_below(d, 2), false);
}

/* Whether an operation of any queue that has not run, or a copy that the host has not waited for, writes some of the piece, or with
 * `any` reads it: on a device with memory of its own. */
static bool late_is_pending(struct late_device *d, const struct late_piece *p, bool any)
{
    for (int i = 0; i < d->n_copy; i++)
        if ((any || d->copy[i].held) && late_meets(&d->copy[i], p->at, p->bytes))
            return true;
    for (int i = 1; i < CLOCK_ACTORS; i++)
        for (uint32_t k = 0; d->queue[i] && k < late_n(d->queue[i]); k++) {
            const struct late_op *o = &d->queue[i]->waiting[k];
            for (int n = 0; n < o->n_piece; n++)
                if ((any || o->piece[n].access != KN_READS) && o->piece[n].at < p->at + p->bytes &&
                    p->at < o->piece[n].at + o->piece[n].bytes)
                    return true;
        }
    return false;
}

/* Notes the pieces of an operation in memory of the host: a source gets a hash; a target is filled, if nothing waits to touch it. */
static void late_note_apart(struct late_queue *q, struct late_op *o)
{
    struct late_device *d = q->device;
    bool is_target;
    uint8_t *at = late_host_end(d, &o->op, &is_target);
    o->added = d->clock;
    d->clock.at[0]++;
    if (!at)
        return;
    const struct kn_op_transfer *t = &o->op.transfer;
    struct late_piece p = {
        is_target ? "to" : "from", !is_target ? KN_READS : t->when ? KN_CHANGES : KN_WRITES, at, t->bytes, false, 0
    };
    clock_watch(&d->touched, at, t->bytes);
    bool pending = late_is_pending(d, &p, is_target);
    p.checked = !is_target && !pending;
    if (p.checked)
        p.hash = XXH3_64bits(at, t->bytes);
    if (p.access == KN_WRITES && !pending)
        memset(at, 0xee, t->bytes);
    late_note(o, p.field, p.access, at, t->bytes);
    o->piece[0] = p;
}

/* The same on a device without memory of its own: of all that the operation touches. */
static void late_note_all(struct late_queue *q, struct late_op *o, uint32_t number)
{
    kn_op_fields(&o->op, late_note, o);
    for (int i = 0; i < o->n_piece; i++) {
        struct late_piece *p = &o->piece[i];
        p->checked = late_reads(p) && !late_is_touched(q, p, false);
        if (p->checked)
            p->hash = XXH3_64bits(p->at, p->bytes);
    }
    for (int i = 0; i < o->n_piece; i++) /* inputs of the operation itself are not filled */
        if (late_reads(&o->piece[i]))
            late_mark(q, &o->piece[i], number);
    for (int i = 0; i < o->n_piece; i++)
        if (!late_reads(&o->piece[i]) && !late_is_touched(q, &o->piece[i], true))
            memset(o->piece[i].at, 0xee, o->piece[i].bytes);
    for (int i = 0; i < o->n_piece; i++)
        if (!late_reads(&o->piece[i]))
            late_mark(q, &o->piece[i], number);
}

static void late_add(struct kn_queue *queue, const struct kn_op *op)
{
    struct late_queue *q = (struct late_queue *)queue;
    pthread_mutex_lock(&q->device->turn);
    int n = (int)late_n(q);
    if (n == q->room) {
        q->waiting = realloc(q->waiting, sizeof *q->waiting * (size_t)(q->room = 2 * q->room + 16));
        memset(q->waiting + n, 0, sizeof *q->waiting * (size_t)(q->room - n));
    }
    struct late_op *o = &q->waiting[n];
    o->op = *op;
    if (op->kind == KN_OP_AWAIT)
        __atomic_fetch_add(&q->device->n_await, 1, __ATOMIC_RELAXED);
    if (late_is_apart(q->device))
        late_note_apart(q, o);
    else
        late_note_all(q, o, q->n_added + 1);
    q->n_added++;
    late_run_early(q, op->kind);
    pthread_mutex_unlock(&q->device->turn);
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

static int late_error;                /* set by a test: the device has failed */
static int late_n_wait, late_n_await; /* waits of all queues: for all operations, and for words */

static int late_state(struct late_device *d) { return d->faults.dead ? KN_EIO : late_error; }

static int late_wait(struct kn_queue *queue)
{
    struct late_queue *q = (struct late_queue *)queue;
    struct late_device *d = q->device;
    int error = 0;
    pthread_mutex_lock(&d->turn);
    late_n_wait++;
    late_access(d, true); /* once, not for each operation */
    while (!error && late_n(q))
        if (!late_step(q)) {
            late_find(&q->waiting[0].op, "the operation", "waits for the host, which waits for it");
            error = KN_EIO;
        }
    late_access(d, false);
    if (!error && !d->faults.dead) {
        clock_join(&d->clock, &q->clock);
        late_end_copies(d);
    }
    error = error ? error : late_state(d);
    pthread_mutex_unlock(&d->turn);
    return error;
}

static bool late_can_await(const struct kn_device *d) { return late_is_apart((const struct late_device *)d); }

static int late_await(struct kn_queue *queue, const uint32_t *word, uint32_t value)
{
    struct late_queue *q = (struct late_queue *)queue;
    struct late_device *d = q->device;
    int error = 0;
    pthread_mutex_lock(&d->turn);
    late_n_await++;
    late_access(d, true);
    while (!error && !late_state(d) && !kn_word_reached(word, value))
        if (!late_step(q)) {
            snprintf(late_message, sizeof late_message, "the host waits for a word that no operation writes");
            error = KN_EIO;
        }
    late_access(d, false);
    if (!error && !late_state(d)) {
        late_learn(d, &d->clock, word, value);
        late_end_copies(d);
    }
    error = error ? error : late_state(d);
    pthread_mutex_unlock(&d->turn);
    return error;
}

static struct kn_queue_options late_host_options(const struct kn_queue_options *opt)
{
    struct kn_queue_options host = *opt;
    host.device = ((const struct late_device *)opt->device)->host;
    return host;
}

static struct kn_bytes late_bytes(const struct kn_queue_options *opt)
{
    struct kn_queue_options host = late_host_options(opt);
    return kn_queue_bytes(&host);
}

static int late_open(struct kn_queue **out, const struct kn_queue_options *opt)
{
    struct late_device *d = (struct late_device *)(uintptr_t)opt->device;
    struct kn_queue_options options = late_host_options(opt);
    struct kn_queue *host;
    int actor = 1, error = late_open_fails(d) ? KN_ENOMEM : options.device->backend->queue_open(&host, &options);
    if (error)
        return error;
    pthread_mutex_lock(&d->turn);
    while (d->queue[actor])
        kn_assert(++actor < CLOCK_ACTORS);
    if (!d->team && kn_team_open(&d->team, 1))
        abort();
    kn_queue_set_team(host, d->team);
    struct late_queue *q = calloc(1, sizeof *q);
    *q = (struct late_queue){ .base.backend = opt->device->backend,
                              .host = host,
                              .device = d,
                              .actor = actor,
                              .group = opt->beside ? ((struct late_queue *)opt->beside)->group : actor,
                              .clock = d->clock,
                              .table = late_is_apart(d) ? NULL : calloc(LATE_TABLE, sizeof *q->table) };
    d->queue[actor] = q;
    pthread_mutex_unlock(&d->turn);
    *out = &q->base;
    return 0;
}

static void late_close(struct kn_queue *queue)
{
    struct late_queue *q = (struct late_queue *)queue;
    struct late_device *d = q->device;
    pthread_mutex_lock(&d->turn);
    if (d->faults.dead)
        late_run(q, 0);
    if (late_n(q))
        late_find(&q->waiting[0].op, "the operation", "had not run when its queue was closed");
    clock_join(&d->clock, &q->clock);
    late_end_copies(d);
    d->queue[q->actor] = NULL;
    q->host->backend->queue_close(q->host);
    for (int i = 0; i < q->room; i++)
        free(q->waiting[i].piece);
    for (int i = 0; q->table && i < LATE_TABLE; i++)
        free(q->table[i]);
    free(q->waiting);
    free(q->table);
    free(q);
    late_free(d);
    pthread_mutex_unlock(&d->turn);
}

static void late_set_team(struct kn_queue *queue, struct kn_team *team)
{
    struct late_queue *q = (struct late_queue *)queue;
    (void)team; /* the device's own runs the operations */
    if (q->n_added > q->n_run)
        late_find(&q->waiting[0].op, "the operation", "had not run when the team was changed");
}

static int late_memory_open(struct kn_memory *m, bool image)
{
    return ((const struct late_device *)m->device)->host->backend->memory_open(m, image);
}

static void late_memory_close(struct kn_memory *m)
{
    ((const struct late_device *)m->device)->host->backend->memory_close(m);
}

static int late_memory_write(struct kn_memory *m, size_t at, const void *from, size_t bytes)
{
    return ((const struct late_device *)m->device)->host->backend->memory_write(m, at, from, bytes);
}

#define LATE_QUEUE                                                                                                     \
    .queue_bytes = late_bytes, .queue_open = late_open, .queue_close = late_close, .queue_set_team = late_set_team,    \
    .queue_add = late_add, .queue_wait = late_wait, .can_await = late_can_await, .queue_await = late_await

static inline struct late_device late_device(enum kn_isa isa, uint64_t seed)
{
    static const struct kn_backend backend = { .name = "late",
                                               .memory_open = late_memory_open,
                                               .memory_close = late_memory_close,
                                               .memory_write = late_memory_write,
                                               LATE_QUEUE };
    return (struct late_device){ .base.backend = &backend,
                                 .host = kn_host_device(isa),
                                 .random = seed,
                                 .mutex = PTHREAD_MUTEX_INITIALIZER,
                                 .turn = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
                                 .clock.at[0] = 1 };
}

static inline struct late_device late_device_apart(enum kn_isa isa, uint64_t seed)
{
    static const struct kn_backend backend = { .name = "late",
                                               .own_memory = true,
                                               .memory_free = late_apart_free,
                                               .memory_open = late_apart_open,
                                               .memory_close = late_apart_close,
                                               .memory_write = late_apart_write,
                                               .host_pin = late_host_pin,
                                               .host_unpin = late_host_unpin,
                                               LATE_QUEUE };
    struct late_device d = late_device(isa, seed);
    d.base.backend = &backend;
    return d;
}

#endif
