/* Words in pinned memory, by which a stream tells the host how far it has come, and waits for it.
 *
 * The front end of the GPU polls an awaited word: no kernel runs and no processor of it is held.  Some systems, as WSL2,
 * may lack these operations of streams, or run one stream after the other; so both are tried when the device is opened. */
#include <sched.h>
#include <time.h>

#include "kernels/cuda/internal.h"

#define SPINS    200               /* reads of a word between two questions to the driver */
#define AWAKE_NS UINT64_C(2000000) /* a host that has waited so long sleeps between questions, */
#define SLEEP_NS 20000
#define TRY_NS   UINT64_C(1000000000) /* at most, for the trial when the device is opened */

bool kn_cuda_can_await(const struct kn_device *d) { return ((const struct kn_cuda_device *)d)->can_await; }

static void doze(void) { nanosleep(&(struct timespec){ .tv_nsec = SLEEP_NS }, NULL); }

/* The first stream awaits the word, and the second, added later, writes it, as in passes.  If it does not within a second, the
 * two share a channel: the host writes the word, so that nothing hangs. */
static unsigned try_word(struct kn_cuda_device *d, struct CUstream_st *stream[2], uint32_t *word)
{
    const struct kn_cuda_driver *f = d->driver;
    kn_cuda_address at = (kn_cuda_address)(uintptr_t)word;
    uint64_t since = kn_now_ns();
    *word = 0;
    bool can = f->stream_await(stream[0], at, 1, KN_CUDA_NOT_BELOW) == 0 && f->stream_write(stream[1], at, 1, 0) == 0;
    while (can && f->stream_query(stream[1]) == KN_CUDA_NOT_READY && kn_now_ns() - since < TRY_NS)
        doze();
    can = can && kn_word_reached(word, 1);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    unsigned failed = f->stream_wait(stream[0]);
    failed = failed ? failed : f->stream_wait(stream[1]);
    d->can_await = can && !failed;
    return failed;
}

int kn_cuda_try_await(struct kn_cuda_device *d)
{
    struct CUstream_st *stream[2] = { NULL, NULL };
    void *word = NULL;
    unsigned failed = 0;
    for (int i = 0; !failed && i < 2; i++)
        failed = d->driver->stream_create(&stream[i], KN_CUDA_NON_BLOCKING);
    failed = failed ? failed : d->driver->pinned_alloc(&word, sizeof(uint32_t), KN_CUDA_MAPPED);
    failed = failed ? failed : try_word(d, stream, word);
    if (word)
        d->driver->pinned_free(word);
    for (int i = 0; i < 2; i++)
        if (stream[i])
            d->driver->stream_destroy(stream[i]);
    return kn_cuda_failed(failed, "trying two streams");
}

/* A lost device writes nothing: its error ends the wait. */
int kn_cuda_await(struct kn_queue *base, const uint32_t *word, uint32_t value)
{
    struct kn_cuda_queue *q = (struct kn_cuda_queue *)base;
    uint64_t since = kn_now_ns();
    q->device->driver->context_use(q->device->context);
    kn_cuda_launch_held(q);
    if (q->beside)
        kn_cuda_launch_held(q->beside);
    while (!q->error && !(q->beside && q->beside->error)) {
        for (int i = 0; i < SPINS; i++)
            if (kn_word_reached(word, value))
                return 0;
        unsigned state = q->device->driver->stream_query(q->stream);
        if (state == KN_CUDA_NOT_READY && kn_now_ns() - since > AWAKE_NS)
            doze();
        else if (state && state != KN_CUDA_NOT_READY)
            q->error = kn_cuda_failed(state, "waiting for the device");
        else if (!state && !kn_word_reached(word, value))
            q->error = kn_fail(KN_EIO, "CUDA: the device has ended without its signal");
    }
    return q->error ? q->error : q->beside->error;
}
