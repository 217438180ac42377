/* The worker team.
 *
 * A job is one kn_parallel_for(): (fn, arg, n).  Its items are cut into one run (range of items) per thread.  A
 * thread claims the items of its own run in order, then helps other threads with theirs, first on its own node.
 * So one core works on neighbours in memory, hardware prefetch works across items, and no thread waits long at
 * the end.  Workers spin for a short time between jobs, because a forward pass has some hundred jobs, each a
 * millisecond or less after the one before; then they sleep on a futex, so that an idle server uses no CPU.
 *
 *   serial    written by the caller (release), read by workers (acquire): a change is a new job
 *   next      next unclaimed item of a run; every thread does fetch_add
 *   running   workers still inside the job; the last one's decrement (release) pairs with the caller's
 *             acquire load, which makes the workers' results visible to the caller
 *   sleepers  workers that may be in futex_wait; seq_cst like serial, so that no wake-up is lost */
#include "kernels/internal.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define SPIN_PAUSE() __builtin_ia32_pause()
#else
#define SPIN_PAUSE() ((void)0)
#endif

#define HURRY_SLICE_NS 100000 /* the shortest slice the kernel accepts */
#define GIVE_WAY       10     /* nice levels */
#define SPIN_NS        200000 /* a worker spins so long before it sleeps: longer than gaps between jobs of a pass */

struct worker {
    struct kn_team *team;
    pthread_t thread;
    int index;
    bool pinned;
    cpu_set_t cpus;
};

struct run {
    _Alignas(64) atomic_int next;
    int end;
};

struct kn_team {
    int n_thread, n_started;
    int n_node, node[KN_NODES]; /* node[k]: argument for kn_map */
    int first[KN_NODES + 1];    /* first thread of each node; a node may have no threads */
    size_t bytes;
    struct worker *worker; /* [n_thread - 1] */
    kn_task *fn;           /* the job: written before serial */
    void *arg;
    bool quit;
    _Alignas(64) atomic_uint serial;
    _Alignas(64) atomic_int running;
    _Alignas(64) atomic_int sleepers;
    struct run run[]; /* [n_thread] */
};

static void futex(atomic_uint *word, int op, unsigned value)
{
    syscall(SYS_futex, (uint32_t *)word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* The kernel (EEVDF) runs threads that request a shorter time slice sooner.  With the default slice this thread
 * would wait some 3 ms until a computing thread has used up its slice. */
void kn_thread_hurry(void)
{
    struct { /* kernel layout; the kernel's and libc's headers conflict */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } a = { .size = sizeof a };
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) == 0 && a.policy == SCHED_OTHER) {
        a.runtime_ns = HURRY_SLICE_NS;
        (void)syscall(SYS_sched_setattr, 0, &a, 0);
    }
}

/* Ten nice levels: a tenth of the CPU time when both threads want all of it. */
void kn_thread_give_way(void)
{
    errno = 0;
    int now = getpriority(PRIO_PROCESS, 0); /* Linux: of this thread, not the process */
    if (!errno)
        (void)setpriority(PRIO_PROCESS, 0, now + GIVE_WAY < 19 ? now + GIVE_WAY : 19);
}

static void work(struct kn_team *t, int thread)
{
    int k = kn_team_node(t, thread), first = t->first[k], end = t->first[k + 1];
    int n_near = end - first, n_far = t->n_thread - n_near;
    for (int i = 0; i < t->n_thread; i++) {
        int at = thread - first + i;
        struct run *r = &t->run[i < n_near ? first + at % n_near : (end + at % n_far) % t->n_thread];
        int item;
        while ((item = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed)) < r->end)
            t->fn(t->arg, item, thread);
    }
}

/* Waits, spinning first and then asleep, until serial differs from `seen`; returns serial. */
static unsigned await_job(struct kn_team *t, unsigned seen)
{
    uint64_t began = kn_io_system.now_ns();
    for (unsigned spin = 1;; spin++) {
        unsigned now = atomic_load_explicit(&t->serial, memory_order_acquire);
        if (now != seen)
            return now;
        SPIN_PAUSE();
        if (spin % 64 == 0 && kn_io_system.now_ns() - began > SPIN_NS)
            break;
    }
    for (;;) {
        atomic_fetch_add(&t->sleepers, 1);
        if (atomic_load(&t->serial) == seen)
            futex(&t->serial, FUTEX_WAIT, seen);
        atomic_fetch_sub(&t->sleepers, 1);
        unsigned now = atomic_load_explicit(&t->serial, memory_order_acquire);
        if (now != seen)
            return now;
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct kn_team *t = w->team;
    if (w->pinned)
        pthread_setaffinity_np(pthread_self(), sizeof w->cpus, &w->cpus);
    for (unsigned seen = 0;;) {
        seen = await_job(t, seen);
        if (t->quit)
            return NULL;
        work(t, w->index);
        atomic_fetch_sub_explicit(&t->running, 1, memory_order_release);
    }
}

static void publish(struct kn_team *t)
{
    atomic_fetch_add(&t->serial, 1);
    if (atomic_load(&t->sleepers))
        futex(&t->serial, FUTEX_WAKE, INT32_MAX);
}

static int part(int n, int i, int of) { return (int)((int64_t)n * i / of); }

/* Cuts items item0..item1-1 into runs for threads thread0..thread1-1. */
static void deal(struct kn_team *t, int thread0, int thread1, int item0, int item1)
{
    int n = item1 - item0, n_thread = thread1 - thread0;
    for (int i = 0; i < n_thread; i++) {
        atomic_store_explicit(&t->run[thread0 + i].next, item0 + part(n, i, n_thread), memory_order_relaxed);
        t->run[thread0 + i].end = item0 + part(n, i + 1, n_thread);
    }
}

/* Runs a job whose items deal() has cut, with all threads; returns when all items are done. */
static void run_job(struct kn_team *t, kn_task *fn, void *arg)
{
    t->fn = fn;
    t->arg = arg;
    atomic_store_explicit(&t->running, t->n_thread - 1, memory_order_relaxed);
    publish(t);
    work(t, 0);
    for (unsigned spin = 1; atomic_load_explicit(&t->running, memory_order_acquire) != 0; spin++) {
        SPIN_PAUSE();
        if (spin % 4096 == 0)
            sched_yield(); /* more threads than processors: let a worker run */
    }
}

/* With at most one item or one thread: runs all items on the calling thread and returns true; wakes no worker. */
static bool run_alone(struct kn_team *t, int n, kn_task *fn, void *arg)
{
    if (n > 1 && t->n_thread > 1)
        return false;
    for (int i = 0; i < n; i++)
        fn(arg, i, 0);
    return true;
}

void kn_parallel_for(struct kn_team *t, int n, kn_task *fn, void *arg)
{
    if (run_alone(t, n, fn, arg))
        return;
    deal(t, 0, t->n_thread, 0, n);
    run_job(t, fn, arg);
}

void kn_parallel_on(struct kn_team *t, const int cut[KN_NODES + 1], kn_task *fn, void *arg)
{
    int n = cut[KN_NODES], item = 0;
    if (run_alone(t, n, fn, arg))
        return;
    for (int k = 0; k < t->n_node;
         k++) { /* items of a node without threads go to the next node with threads, or to the last one */
        if (t->first[k] == t->first[k + 1])
            continue;
        int end = t->first[k + 1] == t->n_thread ? n : cut[k + 1];
        deal(t, t->first[k], t->first[k + 1], item, end);
        item = end;
    }
    run_job(t, fn, arg);
}

/* ---- nodes ------------------------------------------------------------------------------------------- */

int kn_team_nodes(const struct kn_team *t) { return t->n_node; }

int kn_team_node(const struct kn_team *t, int thread)
{
    int k = 0;
    while (t->first[k + 1] <= thread)
        k++;
    return k;
}

int kn_team_cut(const struct kn_team *t, int n, int node) { return part(n, t->first[node], t->n_thread); }

void kn_team_bind(const struct kn_team *t, void *p, int n, size_t bytes)
{
    for (int k = 0; k < t->n_node; k++) {
        int begin = kn_team_cut(t, n, k), end = kn_team_cut(t, n, k + 1);
        kn_map_bind((uint8_t *)p + (size_t)begin * bytes, (size_t)(end - begin) * bytes, t->node[k]);
    }
}

/* ---- open and close ------------------------------------------------------------------------------------ */

/* Each node gets a share of threads proportional to its processors, rounded so that the caller is on the
 * first node. */
static void spread(struct kn_team *t, const struct kn_cpus *cpus)
{
    int n_cpu = cpus->first[cpus->n_node];
    t->n_node = cpus->n_node;
    memcpy(t->node, cpus->node, sizeof t->node);
    for (int k = 0; k <= t->n_node; k++)
        t->first[k] = (int)(((int64_t)t->n_thread * cpus->first[k] + n_cpu - 1) / n_cpu);
}

/* Chooses the processors of a worker: one, if each thread can have one; else those of its node, if there are several
 * nodes; else any (it is not pinned). */
static void pin(struct worker *w, const struct kn_cpus *cpus)
{
    const struct kn_team *t = w->team;
    int k = kn_team_node(t, w->index), n_cpu = cpus->first[cpus->n_node];
    int begin = cpus->first[k], end = cpus->first[k + 1];
    if (t->n_thread <= n_cpu) {
        begin += w->index - t->first[k];
        end = begin + 1;
    }
    CPU_ZERO(&w->cpus);
    for (int i = begin; i < end; i++)
        if (cpus->cpu[i] >= 0)
            CPU_SET(cpus->cpu[i], &w->cpus);
    w->pinned = CPU_COUNT(&w->cpus) > 0 && (t->n_thread <= n_cpu || t->n_node > 1);
}

int kn_team_open(struct kn_team **out, int n_thread)
{
    struct kn_cpus cpus;
    kn_cpus_get(&cpus);
    if (n_thread <= 0)
        n_thread = cpus.first[cpus.n_node];
    /* mapped, because the counters need cache lines of their own */
    size_t bytes = sizeof(struct kn_team) + (size_t)n_thread * sizeof(struct run);
    struct kn_team *t = kn_map(bytes, -1);
    if (!t)
        return kn_fail(KN_ENOMEM, "no memory for %d threads", n_thread);
    t->n_thread = n_thread;
    t->bytes = bytes;
    spread(t, &cpus);
    t->worker = kn_calloc((size_t)n_thread, sizeof *t->worker);
    if (!t->worker) {
        kn_team_close(t);
        return kn_fail(KN_ENOMEM, "no memory for %d threads", n_thread);
    }
    for (int i = 0; i < n_thread - 1; i++) {
        struct worker *w = &t->worker[i];
        *w = (struct worker){ .team = t, .index = i + 1 };
        pin(w, &cpus); /* the caller is not pinned; if workers get one processor each, they leave it the first one */
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            kn_team_close(t);
            return kn_fail(KN_ENOMEM, "cannot start thread %d of %d: lower --threads", i + 2, n_thread);
        }
        t->n_started++;
    }
    *out = t;
    return 0;
}

void kn_team_close(struct kn_team *t)
{
    if (!t)
        return;
    t->quit = true;
    publish(t);
    for (int i = 0; i < t->n_started; i++)
        pthread_join(t->worker[i].thread, NULL);
    kn_free(t->worker);
    kn_unmap(t, t->bytes);
}

int kn_team_size(const struct kn_team *t) { return t->n_thread; }
