/* Devices by name: the host, those of CUDA, and those that a test offers. */
#include "kernels/device.h"
#include "kernels/cuda/cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void kn_device_keep_tests(const char *folder) { kn_cuda_keep_tests(folder); }

/* A GPU is compared with the host before it computes anything. */
static int open_cuda(struct kn_device **out, int number)
{
    struct kn_device *d;
    int error = kn_cuda_open(&d, number);
    if (!error && (error = kn_cuda_admit_device(d)) != 0)
        kn_cuda_close(d);
    if (!error)
        *out = d;
    return error;
}

static struct kn_device_kind kinds[3] = { { "cuda", open_cuda } };
static int n_kind = 1;

void kn_device_offer(const char *name, int (*open)(struct kn_device **out, int number))
{
    kn_assert(n_kind < (int)(sizeof kinds / sizeof *kinds));
    kinds[n_kind++] = (struct kn_device_kind){ name, open };
}

/* "name" or "name:number": whether text names this kind, and its number, by default 0. */
static bool names(const char *text, const char *name, int *number)
{
    size_t n = strlen(name);
    char *end;
    *number = 0;
    if (strncmp(text, name, n) != 0 || (text[n] && text[n] != ':'))
        return false;
    if (text[n]) {
        long l = strtol(text + n + 1, &end, 10);
        if (text[n + 1] < '0' || text[n + 1] > '9' || *end || l > 99)
            return false;
        *number = (int)l;
    }
    return true;
}

int kn_device_open(const struct kn_device **out, const char *name, enum kn_isa isa)
{
    struct kn_device *d;
    int number, error;
    if (!name || strcmp(name, "host") == 0) {
        *out = kn_host_device(isa);
        return 0;
    }
    for (int i = 0; i < n_kind; i++)
        if (names(name, kinds[i].name, &number)) {
            if ((error = kinds[i].open(&d, number)) == 0)
                *out = d;
            return error;
        }
    return kn_fail(KN_EINVAL, "there is no device '%s': host, cuda or cuda:NUMBER", name);
}

void kn_device_close(const struct kn_device *d)
{
    if (d && d->backend->close)
        d->backend->close((struct kn_device *)(uintptr_t)d);
}

/* ---- calls that may wait for all queues, and queues that await ----------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t none_awaits = PTHREAD_COND_INITIALIZER;
static int n_await, n_pin; /* callers that await; threads that pin, open or close, or wait to */
static _Thread_local bool awaits_here;

bool kn_awaits_begin(void)
{
    pthread_mutex_lock(&lock);
    bool may = n_pin == 0;
    n_await += may;
    awaits_here |= may;
    pthread_mutex_unlock(&lock);
    return may;
}

void kn_awaits_end(void)
{
    pthread_mutex_lock(&lock);
    awaits_here = false;
    if (--n_await == 0)
        pthread_cond_broadcast(&none_awaits);
    pthread_mutex_unlock(&lock);
}

static void begin_to_pin(void)
{
    kn_assert(!awaits_here); /* it would wait for itself */
    pthread_mutex_lock(&lock);
    n_pin++;
    while (n_await)
        pthread_cond_wait(&none_awaits, &lock);
    pthread_mutex_unlock(&lock);
}

static void end_to_pin(void)
{
    pthread_mutex_lock(&lock);
    n_pin--;
    pthread_mutex_unlock(&lock);
}

int kn_host_pin(const struct kn_device *d, void *at, size_t bytes, const char **why)
{
    begin_to_pin();
    int error = d->backend->host_pin(d, at, bytes, why);
    end_to_pin();
    return error;
}

void kn_host_unpin(const struct kn_device *d, void *at)
{
    begin_to_pin();
    d->backend->host_unpin(d, at);
    end_to_pin();
}

/* Other backends have no queues that await the host. */
static void begin_to_change(const struct kn_backend *b)
{
    if (b->can_await)
        begin_to_pin();
}

static void end_to_change(const struct kn_backend *b)
{
    if (b->can_await)
        end_to_pin();
}

int kn_memory_open(struct kn_memory *m, const struct kn_device *d, size_t bytes, bool image)
{
    *m = (struct kn_memory){ .device = d, .bytes = bytes };
    begin_to_change(d->backend);
    int error = d->backend->memory_open(m, image);
    end_to_change(d->backend);
    return error;
}

void kn_memory_close(struct kn_memory *m)
{
    if (m->base) {
        const struct kn_backend *b = m->device->backend;
        begin_to_change(b);
        b->memory_close(m);
        end_to_change(b);
    }
    *m = (struct kn_memory){ .base = NULL };
}

int kn_queue_open(struct kn_queue **out, const struct kn_queue_options *opt)
{
    const struct kn_backend *b = opt->device->backend;
    begin_to_change(b);
    int error = b->queue_open(out, opt);
    end_to_change(b);
    return error;
}

void kn_queue_close(struct kn_queue *q)
{
    if (!q)
        return;
    const struct kn_backend *b = q->backend;
    begin_to_change(b);
    b->queue_close(q);
    end_to_change(b);
}
