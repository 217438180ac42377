/* The worker team.
 *
 * A job is (fn, arg, n).  Its items are cut into one run for each thread, who claims its own run's items
 * in order and then helps the others with theirs: neighbours in memory stay with one core, whose
 * prefetching pays across items, and no one waits for long at the end.  Workers spin for a little while
 * between jobs, because a forward pass has some hundred of them a millisecond or less apart, and then
 * sleep on a futex, so that an idle server costs nothing.
 *
 *   serial    written by the caller (release), read by workers (acquire): a new job is there
 *   next      claims of one run; fetch_add by everyone
 *   running   workers still inside the job; the last one's decrement (release) pairs with the caller's
 *             acquire load, which makes their results visible to him
 *   sleepers  how many may be in futex_wait; seq_cst with serial, so that no wake-up is lost */
#include "kernels/core.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define SPIN_PAUSE() __builtin_ia32_pause()
#else
#define SPIN_PAUSE() ((void)0)
#endif

#define HURRY_SLICE_NS 100000           /* the shortest there is: a thread with less to do goes first */
#define SPIN_NS 200000                  /* then sleep: a step's own gaps are shorter */

struct worker {
    struct kn_team *team;
    pthread_t thread;
    int index, cpu;
};

struct run {
    _Alignas(64) atomic_int next;
    int end;
};

struct kn_team {
    int n_thread, n_started;
    size_t bytes;
    struct worker *worker;              /* [n_thread - 1] */
    kn_task *fn;                        /* the job: written before serial is */
    void *arg;
    bool quit;
    _Alignas(64) atomic_uint serial;
    _Alignas(64) atomic_int running;
    _Alignas(64) atomic_int sleepers;
    struct run run[];                   /* [n_thread] */
};

static void futex(atomic_uint *word, int op, unsigned value)
{
    syscall(SYS_futex, (uint32_t *)word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* A time slice says how long a thread wants to run once it runs; asking for less, it is let in sooner.  With
 * the usual one it would wait some 3 ms for a computing thread to finish its own. */
void kn_thread_hurry(void)
{
    struct {                                    /* as the kernel has it; its header and libc's do not mix */
        uint32_t size, policy;
        uint64_t flags;
        int32_t  nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } a = { .size = sizeof a };
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) == 0 && a.policy == SCHED_OTHER) {
        a.runtime_ns = HURRY_SLICE_NS;
        (void)syscall(SYS_sched_setattr, 0, &a, 0);
    }
}

static void work(struct kn_team *t, int thread)
{
    for (int i = 0; i < t->n_thread; i++) {
        struct run *r = &t->run[(thread + i) % t->n_thread];
        int item;
        while ((item = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed)) < r->end)
            t->fn(t->arg, item, thread);
    }
}

/* Returns when serial is no longer `seen`. */
static unsigned await_job(struct kn_team *t, unsigned seen)
{
    uint64_t began = kn_io_system.now_ns();
    for (unsigned spin = 1; ; spin++) {
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
    if (w->cpu >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(w->cpu, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    }
    for (unsigned seen = 0; ; ) {
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

void kn_parallel_for(struct kn_team *t, int n, kn_task *fn, void *arg)
{
    if (n <= 1 || t->n_thread == 1) {
        for (int i = 0; i < n; i++)
            fn(arg, i, 0);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    for (int i = 0; i < t->n_thread; i++) {
        int first = (int)((int64_t)n * i / t->n_thread);
        atomic_store_explicit(&t->run[i].next, first, memory_order_relaxed);
        t->run[i].end = (int)((int64_t)n * (i + 1) / t->n_thread);
    }
    atomic_store_explicit(&t->running, t->n_thread - 1, memory_order_relaxed);
    publish(t);
    work(t, 0);
    for (unsigned spin = 1; atomic_load_explicit(&t->running, memory_order_acquire) != 0; spin++) {
        SPIN_PAUSE();
        if (spin % 4096 == 0)
            sched_yield();              /* more threads than processors: let the last one run */
    }
}

/* The i-th processor that this process may use, or -1. */
static int nth_cpu(int i)
{
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0)
        return -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus) && i-- == 0)
            return cpu;
    return -1;
}

int kn_team_open(struct kn_team **out, int n_thread)
{
    struct kn_machine machine;
    kn_machine_get(&machine);
    if (n_thread <= 0)
        n_thread = machine.n_cpu;
    /* mapped, for the counters sit on cache lines of their own */
    size_t bytes = sizeof(struct kn_team) + (size_t)n_thread * sizeof(struct run);
    struct kn_team *t = kn_map(bytes, -1);
    if (!t)
        return kn_fail(KN_ENOMEM, "no memory for %d threads", n_thread);
    t->n_thread = n_thread;
    t->bytes = bytes;
    t->worker = kn_calloc((size_t)n_thread, sizeof *t->worker);
    if (!t->worker) {
        kn_team_close(t);
        return kn_fail(KN_ENOMEM, "no memory for %d threads", n_thread);
    }
    for (int i = 0; i < n_thread - 1; i++) {
        struct worker *w = &t->worker[i];
        /* pinned only when there is a processor for each; the caller's thread stays where it is */
        int cpu = n_thread <= machine.n_cpu ? nth_cpu(i + 1) : -1;
        *w = (struct worker){ .team = t, .index = i + 1, .cpu = cpu };
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
