/* engine/draft/beside.c - a thread of lower priority that works for drafters while the target's pass runs: it extends
 * the chains of --dsi (overlap.c), then reads prompts (prompts.c).
 *
 * It uses the time that the pass leaves: waits for the disk, and idle cores. The pass never waits for it but at its own
 * end, until the drafter's pass under way is over. */
#include "engine/draft/internal.h"

#include <pthread.h>

enum state { IDLE, WORKING, END };

struct eng_beside {
    struct eng_drafting *drafting;
    struct kn_team *team;          /* opened by the thread: its workers inherit its low priority */
    struct spec_sampler **sampler; /* [threads] */
    int n_sampler;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    enum state state; /* guarded by the lock, as open and error */
    bool open;        /* the thread has tried to open the team; error: the result */
    int error;
    atomic_bool stop; /* the pass is done */
};

/* ---- the thread ---------------------------------------------------------------------------------------- */

static void *thread_main(void *arg)
{
    struct eng_beside *b = arg;
    kn_thread_give_way();
    int error = kn_team_open(&b->team, kn_ceil_div(kn_team_size(b->drafting->host.team), 2));
    pthread_mutex_lock(&b->lock);
    b->error = error;
    b->open = true;
    pthread_cond_broadcast(&b->wake);
    while (b->state != END) {
        if (b->state == IDLE) {
            pthread_cond_wait(&b->wake, &b->lock);
            continue;
        }
        pthread_mutex_unlock(&b->lock);
        struct eng_beside_tools tools = { b->team, b->sampler, &b->stop };
        eng_overlap_run(b->drafting, &tools);
        eng_prompts_run(b->drafting, &tools);
        pthread_mutex_lock(&b->lock);
        b->state = IDLE;
        pthread_cond_broadcast(&b->wake);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* ---- open, close --------------------------------------------------------------------------------------- */

static int open_samplers(struct eng_beside *b)
{
    int n = kn_team_size(b->drafting->host.team), error = 0;
    b->sampler = kn_calloc((size_t)n, sizeof *b->sampler);
    if (!b->sampler)
        return kn_fail(KN_ENOMEM, "no memory for drafters beside passes");
    for (; b->n_sampler < n && !error; b->n_sampler += !error)
        error = spec_sampler_open(&b->sampler[b->n_sampler], eng_vocab_size(b->drafting->host.vocab));
    return error;
}

static int start_thread(struct eng_beside *b)
{
    if (pthread_create(&b->thread, NULL, thread_main, b))
        return kn_fail(KN_ENOMEM, "cannot start the thread of drafters beside passes");
    b->started = true;
    pthread_mutex_lock(&b->lock);
    while (!b->open)
        pthread_cond_wait(&b->wake, &b->lock);
    int error = b->error;
    pthread_mutex_unlock(&b->lock);
    return error;
}

int eng_beside_open(struct eng_drafting *g)
{
    struct eng_beside *b = g->beside = kn_calloc(1, sizeof *b);
    if (!b)
        return kn_fail(KN_ENOMEM, "no memory for drafters beside passes");
    b->drafting = g;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->wake, NULL);
    int error = open_samplers(b);
    return error ? error : start_thread(b);
}

void eng_beside_close(struct eng_drafting *g)
{
    struct eng_beside *b = g->beside;
    if (!b)
        return;
    if (b->started) {
        pthread_mutex_lock(&b->lock);
        b->state = END;
        pthread_cond_broadcast(&b->wake);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->thread, NULL);
    }
    while (b->n_sampler > 0)
        spec_sampler_close(b->sampler[--b->n_sampler]);
    kn_team_close(b->team);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->wake);
    kn_free(b->sampler);
    kn_free(b);
    g->beside = NULL;
}

/* ---- a pass -------------------------------------------------------------------------------------------- */

void eng_beside_start(struct eng_drafting *g)
{
    struct eng_beside *b = g->beside;
    atomic_store(&b->stop, false);
    pthread_mutex_lock(&b->lock);
    b->state = WORKING;
    pthread_cond_broadcast(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

uint64_t eng_beside_wait(struct eng_drafting *g)
{
    struct eng_beside *b = g->beside;
    uint64_t start = kn_now_ns();
    if (!b)
        return 0;
    atomic_store(&b->stop, true);
    pthread_mutex_lock(&b->lock);
    while (b->state == WORKING)
        pthread_cond_wait(&b->wake, &b->lock);
    pthread_mutex_unlock(&b->lock);
    return kn_now_ns() - start;
}
