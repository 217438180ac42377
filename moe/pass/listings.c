/* Listings: the experts of a layer, as the device lists them and the host reads them.
 *
 * A listing is one span of shared memory: which experts the layer's rows chose, for which rows, which of them the device
 * lacks, and the experts predicted for the next layer.  On a device with memory of its own it comes to the host in one copy.
 *
 * The host need not see it before it adds later operations.  The device marks the layer's experts that it has (kn_op_group), computes
 * them, and awaits the word `done`; then come the sum and the next layers.  If it has all experts of the layer it writes
 * `done` itself.  Else the host, which follows by the word `ready`, computes or copies the missing experts, by a queue beside
 * (moe_context.beside), which ends with `done`:
 *
 *     device   route, list, copy the listing, ready = t, resident experts, await done >= t, sum, next layer ..
 *     host     .. await ready >= t: missing experts to the host's cores or to the device; outputs up, done = t
 *
 * Words count listings, one for each layer with experts.  The host adds at most MOE_AHEAD layers that it has not seen, and
 * goes ahead only if they have few operations: when a stream has about a thousand, the driver holds up the caller, and
 * never returns if the stream awaits a word of this caller.
 *
 * Changes.  Experts of the device change, and so do their slots and the table by which the device finds them, by operations
 * of the queue beside, added when the device has listed the layer, and will await `done`; so each layer sees all changes of
 * the layers before and none of later ones, as the host does.  Slots that the layer's resident experts have are not taken.
 *
 * While a queue awaits, no thread may open or close memory of the device, or pin memory of the host: drivers may wait for all
 * queues before they do so, and hold up the host's part.  Contexts are opened and closed between passes.  Passes that begin
 * while memory is being pinned do not go ahead (kn_awaits_begin).
 *
 * If the device fails, the host's await returns its error, and the pass fails.  `done` then gets the number of the last
 * listing, so that no queue is left waiting.  But operations added before may still write it, with smaller numbers.  So
 * `done` is several words, which the listings use in turn: as many as may be written then, those of listings that the host
 * has not seen and of the last one that it has.  Thus none falls below a number that is awaited. */
#include "moe/pass/pass.h"

#define MOST_QUEUED 800 /* operations of a stream, at most, that await the host */

static size_t span_ints(const struct moe_desc *d, size_t n_row)
{
    return 4 + 4 * (size_t)d->n_expert + 7 * n_row * (size_t)d->n_used;
}

void moe_listings_lay_out(struct moe_context *c, struct moe_arenas *a, bool own_memory)
{
    struct moe_listings *q = &c->listings;
    q->n = own_memory ? MOE_AHEAD : 1;
    for (int i = 0; i < q->n; i++)
        q->listing[i].at = kn_arena_take(&a->shared, span_ints(&c->model->desc, (size_t)c->opt.max_row),
                                         sizeof(int32_t));
    uint32_t *word = kn_arena_take(&a->shared, 1 + MOE_DONES, sizeof *word);
    q->ready = word;
    q->done = word ? word + 1 : NULL;
}

uint32_t *moe_listing_done(const struct moe_context *c, uint32_t number)
{
    return c->listings.done + number % MOE_DONES;
}

/* No queue is left waiting for the listings so far. */
static void complete_all(struct moe_listings *q)
{
    for (int i = 0; q->done && i < MOE_DONES; i++) /* models without experts have no words */
        __atomic_store_n(q->done + i, q->number, __ATOMIC_RELEASE);
}

/* Operations of a layer, by a high estimate. */
static int most_launches(const struct moe_context *c)
{
    int rounds = c->latent.max_row ? kn_ceil_div(c->n_row, c->latent.max_row) : 0;
    return 64 + 6 * rounds;
}

void moe_listings_begin(struct moe_context *c)
{
    complete_all(&c->listings); /* passes that do not go ahead may not have written the words */
    /* Predictions for several layers are compared layer by layer. */
    c->listings.ahead = c->beside && !c->guess.sight && !moe_device_lists(c) &&
                        (MOE_AHEAD + 1) * most_launches(c) < MOST_QUEUED && kn_awaits_begin();
    c->copies = c->listings.ahead ? c->beside : c->queue;
}

static int32_t *take(int32_t **at, int n)
{
    int32_t *p = *at;
    *at += n;
    return p;
}

/* Divides the span for the rows of this layer.  First comes the part that the host always reads. */
static void lay_out_span(const struct moe_context *c, struct moe_listing *g)
{
    const struct moe_desc *d = &c->model->desc;
    int n_expert = d->n_expert, n_pair = c->n_row * d->n_used;
    int32_t *at = g->at;
    g->plan.n_expert = take(&at, 1);
    g->n_absent = take(&at, 1);
    g->n_guessed = take(&at, 1);
    g->plan.expert = take(&at, n_expert);
    g->plan.first = take(&at, n_expert + 1);
    g->guessed = take(&at, n_expert);
    g->plan.row = take(&at, n_pair);
    g->plan.pair = take(&at, n_pair);
    g->out = take(&at, n_pair);
    g->out_weight = d->scaled_input ? (float *)take(&at, n_pair) : NULL;
    g->n_read = (size_t)(at - g->at);
    g->id = take(&at, n_pair);
    if (c->recall.learns)
        g->n_read = (size_t)(at - g->at);
    g->weight = (float *)take(&at, n_pair);
    if (c->present.only)
        g->n_read = (size_t)(at - g->at);
    g->place = take(&at, n_pair);
    g->plan.fill = take(&at, n_expert);
}

void moe_listing_use(struct moe_context *c, const struct moe_listing *g)
{
    c->plan = g->plan;
    c->route.id = moe_at(c, g->id);
    c->route.weight = moe_at(c, g->weight);
    c->residents.out = g->out;
    c->residents.place = g->place;
    c->residents.weight = g->out_weight;
}

struct moe_listing *moe_listing_begin(struct moe_context *c, int layer)
{
    struct moe_listings *q = &c->listings;
    while (!c->error && (int)(q->number - q->seen) >= q->n)
        moe_experts_see(c);
    if (c->error)
        return NULL;
    struct moe_listing *g = &q->listing[++q->number % (uint32_t)q->n];
    g->layer = layer;
    g->number = q->number;
    lay_out_span(c, g);
    moe_listing_use(c, g);
    return g;
}

/* Adds the operations that complete a listing of a device with memory of its own, and bring it to the host: with the codes
 * of the rows, if experts are missing. */
void moe_listing_send(struct moe_context *c, struct moe_listing *g)
{
    const struct moe_layer *l = &c->model->layer[g->layer];
    const struct kn_acts norm = moe_acts_image(c, &c->norm);
    moe_residents_mark(c, g);
    moe_guess_next(c, g);
    moe_download(c, g->at, g->n_read * sizeof *g->at);
    for (int kind = 0; kind < KN_ACT_COUNT; kind++)
        if (l->expert_acts & 1u << kind)
            kn_enqueue(c->queue, TRANSFER, transfer, .to = norm.code[kind], .from = c->norm.code[kind],
                       .bytes = (size_t)c->n_row * norm.code_stride[kind], .when = moe_at(c, g->n_absent));
    if (c->listings.ahead)
        kn_enqueue(c->queue, SIGNAL, signal, .word = c->listings.ready, .value = g->number);
}

/* Later operations of the pass run when the layer's experts are computed. */
void moe_listing_await(struct moe_context *c, const struct moe_listing *g)
{
    kn_enqueue(c->queue, AWAIT, await, .word = moe_listing_done(c, g->number), .value = g->number);
}

/* Waits for the oldest listing that the host has not seen, and takes it into use; NULL: the device has failed. */
const struct moe_listing *moe_listing_see(struct moe_context *c)
{
    struct moe_listings *q = &c->listings;
    const struct moe_listing *g = &q->listing[++q->seen % (uint32_t)q->n];
    int error = q->ahead ? kn_queue_await(c->queue, q->ready, g->number) : moe_wait(c);
    c->error = c->error ? c->error : error;
    if (c->error) {
        q->seen--; /* moe_listings_drop() counts it */
        return NULL;
    }
    moe_listing_use(c, g);
    return g;
}

/* Ends the listings that the host will not see, and all that waits for them. */
void moe_listings_drop(struct moe_context *c)
{
    struct moe_listings *q = &c->listings;
    while (q->seen != q->number)
        moe_prefetch_release(c, q->listing[++q->seen % (uint32_t)q->n].layer);
    complete_all(q);
}

/* If the queue beside has failed, `done` is not written. */
void moe_listings_end(struct moe_context *c)
{
    struct moe_listings *q = &c->listings;
    int error = q->ahead && !c->error ? kn_queue_await(c->queue, moe_listing_done(c, q->number), q->number) : 0;
    c->error = c->error ? c->error : error;
    if (c->error)
        moe_listings_drop(c);
}

void moe_listings_leave(struct moe_context *c)
{
    if (c->listings.ahead)
        kn_awaits_end();
    c->listings.ahead = false;
}

bool moe_listing_is_there(const struct moe_context *c)
{
    const struct moe_listings *q = &c->listings;
    return q->seen != q->number && kn_word_reached(q->ready, q->seen + 1);
}
