/* tests/emulated/host.h - the host beside the queues of a late device (late.h): its own operations, and the end of its use of
 * experts.  A program that includes it is linked with HOST_WRAPS of the Makefile.
 *
 *     late_watched = &device;     before models and contexts are opened on it
 *     late_moves = true;          experts change places at random between passes
 *     host_evicts = true;         experts leave the host's memory during passes of a draft
 *
 * The host's queue touches memory when an operation is added.  Experts that off_wait() has handed out may be overwritten as soon
 * as it is called again for the ticket, or the ticket is released: that counts as a write of all of them by the host.
 *
 * The I/O thread, or the system for it, may write where a read goes to from the moment when the read is posted: that counts as a write
 * of all of it by the host. */
#ifndef TESTS_EMULATED_HOST_H
#define TESTS_EMULATED_HOST_H

#include "moe/pass/pass.h"
#include "offload/internal.h"
#include "tests/emulated/late.h"

static struct late_device *_Atomic late_watched; /* I/O threads read it, also those of a model without this device */

/* ---- the host's queue --------------------------------------------------------------------------------------------- */

struct host_queue {
    struct kn_queue base;
    struct kn_queue *inner;
};

static struct kn_queue *host_inner(struct kn_queue *q) { return ((struct host_queue *)q)->inner; }

static void host_note(void *arg, const char *field, enum kn_access access, const void *at, size_t bytes)
{
    const struct kn_op *op = arg;
    char what[100];
    snprintf(what, sizeof what, "%s: %s is touched", kn_op_name(op->kind), field);
    late_host_touch(late_watched, at, bytes, access != KN_READS, what);
}

static void host_add(struct kn_queue *q, const struct kn_op *op)
{
    kn_op_fields(op, host_note, (void *)(uintptr_t)op);
    kn_queue_add(host_inner(q), op);
}

static int host_wait(struct kn_queue *q) { return kn_queue_wait(host_inner(q)); }
static void host_set_team(struct kn_queue *q, struct kn_team *team) { kn_queue_set_team(host_inner(q), team); }

static void host_close(struct kn_queue *q)
{
    kn_queue_close(host_inner(q));
    free(q);
}

int __real_kn_queue_open(struct kn_queue **out, const struct kn_queue_options *opt);
int __wrap_kn_queue_open(struct kn_queue **out, const struct kn_queue_options *opt);
int __wrap_kn_queue_open(struct kn_queue **out, const struct kn_queue_options *opt)
{
    static const struct kn_backend backend = { .name = "watched host",
                                               .queue_add = host_add,
                                               .queue_wait = host_wait,
                                               .queue_set_team = host_set_team,
                                               .queue_close = host_close };
    struct kn_queue *inner;
    int error = __real_kn_queue_open(&inner, opt);
    if (error)
        return error;
    *out = inner;
    if (!late_watched || opt->device->backend->own_memory || !strcmp(opt->device->backend->name, "late"))
        return 0;
    struct host_queue *q = malloc(sizeof *q);
    *q = (struct host_queue){ { &backend }, inner };
    *out = &q->base;
    return 0;
}

/* ---- experts that the store has handed out ------------------------------------------------------------------------- */

static struct host_given {
    const struct off_ticket *ticket;
    struct kn_mat matrix;
} * host_given;
static int host_n_given, host_room;
static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;

static void host_take_back(const struct off_ticket *t)
{
    int n = 0;
    pthread_mutex_lock(&host_lock);
    for (int i = 0; i < host_n_given; i++) {
        const struct kn_mat *w = &host_given[i].matrix;
        if (host_given[i].ticket != t)
            host_given[n++] = host_given[i];
        else
            late_host_touch(late_watched, w->data, kn_mat_bytes(w->format, w->n_out, w->n_in), true,
                            "an expert is given back");
    }
    host_n_given = n;
    pthread_mutex_unlock(&host_lock);
}

static void host_give(const struct off_ticket *t, const struct kn_mat *w)
{
    pthread_mutex_lock(&host_lock);
    if (host_n_given == host_room)
        host_given = realloc(host_given, (size_t)(host_room = 2 * host_room + 64) * sizeof *host_given);
    host_given[host_n_given++] = (struct host_given){ t, *w };
    pthread_mutex_unlock(&host_lock);
}

int __real_off_wait(struct off_store *s, struct off_ticket *t, const struct off_hands *hands, int32_t *index,
                    struct off_view *view, int *status);
int __wrap_off_wait(struct off_store *s, struct off_ticket *t, const struct off_hands *hands, int32_t *index,
                    struct off_view *view, int *status);
int __wrap_off_wait(struct off_store *s, struct off_ticket *t, const struct off_hands *hands, int32_t *index,
                    struct off_view *view, int *status)
{
    if (late_watched)
        host_take_back(t);
    int n = __real_off_wait(s, t, hands, index, view, status);
    for (int i = 0; late_watched && i < n; i++)
        for (int k = 0; status[i] >= 0 && k < OFF_MATRICES; k++)
            if (view[i].matrix[k].n_out)
                host_give(t, &view[i].matrix[k]);
    return n;
}

void __real_off_release(struct off_store *s, struct off_ticket *t);
void __wrap_off_release(struct off_store *s, struct off_ticket *t);
void __wrap_off_release(struct off_store *s, struct off_ticket *t)
{
    if (late_watched)
        host_take_back(t);
    __real_off_release(s, t);
}

/* ---- reads from disk ----------------------------------------------------------------------------------------------- */

void __real_off_io_post(struct off_io *io, struct off_job *job);
void __wrap_off_io_post(struct off_io *io, struct off_job *job);
void __wrap_off_io_post(struct off_io *io, struct off_job *job)
{
    struct late_device *watched = late_watched;
    if (watched)
        late_host_touch(watched, job->to, off_reader_span(job), true, "memory is read into from disk");
    __real_off_io_post(io, job);
}

/* ---- experts that come back, or are elsewhere ---------------------------------------------------------------------- */

#define HOST_EXPERTS (1 << 14)

static bool host_elsewhere[HOST_EXPERTS];          /* as the store was told last */
static struct off_view host_brought[HOST_EXPERTS]; /* where those come back to */

void __real_off_store_elsewhere(struct off_store *s, int32_t expert, bool elsewhere);
void __wrap_off_store_elsewhere(struct off_store *s, int32_t expert, bool elsewhere);
void __wrap_off_store_elsewhere(struct off_store *s, int32_t expert, bool elsewhere)
{
    kn_assert(expert < HOST_EXPERTS);
    host_elsewhere[expert] = elsewhere;
    __real_off_store_elsewhere(s, expert, elsewhere);
}

bool __real_off_store_bring_back(struct off_store *s, struct off_ticket *t, int32_t left, int32_t expert,
                                 struct off_view *view);
bool __wrap_off_store_bring_back(struct off_store *s, struct off_ticket *t, int32_t left, int32_t expert,
                                 struct off_view *view);
bool __wrap_off_store_bring_back(struct off_store *s, struct off_ticket *t, int32_t left, int32_t expert,
                                 struct off_view *view)
{
    bool comes = __real_off_store_bring_back(s, t, left, expert, view);
    kn_assert(expert < HOST_EXPERTS);
    if (comes)
        host_brought[expert] = *view;
    return comes;
}

/* From now on anyone may read the expert, or evict it. */
void __real_off_store_brought_back(struct off_store *s, int32_t expert, bool done);
void __wrap_off_store_brought_back(struct off_store *s, int32_t expert, bool done);
void __wrap_off_store_brought_back(struct off_store *s, int32_t expert, bool done)
{
    for (int k = 0; late_watched && k < OFF_MATRICES; k++) {
        const struct kn_mat *w = &host_brought[expert].matrix[k];
        if (w->n_out)
            late_host_touch(late_watched, w->data, kn_mat_bytes(w->format, w->n_out, w->n_in), true,
                            "an expert that came back is touched");
    }
    __real_off_store_brought_back(s, expert, done);
}

/* ---- experts that the host evicts during a draft --------------------------------------------------------------------- */

static bool host_evicts;   /* before a draft's experts are held other reads may have taken their slots */
static int host_n_evicted; /* experts that a draft chose and that were evicted since the pass began */

/* Begins reads of n random experts, which are never used. */
static void host_read_others(struct off_store *s, int n)
{
    struct off_stats stats;
    off_stats_get(s, &stats);
    for (int i = 0; i < n; i++) {
        int32_t expert = (int32_t)(kn_mix(late_watched->random += KN_GOLDEN) % stats.n_expert);
        uint8_t mark;
        struct off_ticket t;
        off_fetch(s, &expert, &mark, 1, OFF_NOW, &t);
        __real_off_release(s, &t);
    }
}

void __real_off_fetch_draft(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, bool *held,
                            struct off_ticket *out);
void __wrap_off_fetch_draft(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, bool *held,
                            struct off_ticket *out);
void __wrap_off_fetch_draft(struct off_store *s, const int32_t *expert, uint8_t *mark, int n, bool *held,
                            struct off_ticket *out)
{
    if (late_watched && host_evicts)
        host_read_others(s, 3);
    __real_off_fetch_draft(s, expert, mark, n, held, out);
    for (int i = 0; i < n; i++)
        host_n_evicted += !held[i];
}

/* ---- experts that change places ------------------------------------------------------------------------------------ */

static bool late_moves; /* before each pass all experts get a heat by chance, and any number of them is copied */

void __real_moe_residents_begin(struct moe_context *c);
void __wrap_moe_residents_begin(struct moe_context *c);
void __wrap_moe_residents_begin(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    __real_moe_residents_begin(c);
    if (!late_moves || !r->n_slot || r->is_whole || c->present.only)
        return;
    r->where.plans = MOE_PLANS_RANDOM;
    for (int i = 0; i < r->n_pool; i++)
        r->pool[i].first_heat = 0;
    for (int e = 0; e < c->model->shape.n_expert_total; e++)
        r->heat[e] = (float)(kn_mix(late_watched->random += KN_GOLDEN) % 1000) * r->use;
}

/* At the end of the program. */
static inline void host_free(void)
{
    free(host_given);
    host_given = NULL;
    host_n_given = host_room = 0;
}

#endif
