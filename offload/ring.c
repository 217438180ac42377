/* Transfers by io_uring.
 *
 * One ring, used by the thread that opened it.  It can read, and only the files it was given: what it may do
 * is restricted before it is enabled, so that it is no way around what a sandbox allows.  The thread sleeps
 * in poll() on the ring and on an eventfd, which wakes it from other threads; so no wait is without an end,
 * and none is for a completion that was never submitted.
 *
 *   pushed     in the submission ring, which holds depth of them; submitted when the thread pulls
 *   inside     the kernel's; each gives one completion, for which there is always room
 *
 * Cost: two system calls for a transfer of a MiB when the disk is the slower one, fewer when it is not. */
#include "offload/internal.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RETRY_NS 1000000                /* when the kernel takes nothing */
#define TRIES    10

struct ring {
    struct off_mover mover;
    struct io_uring uring;
    int wake_fd;
};

static void ring_push(struct off_mover *m, struct off_transfer *t)
{
    struct ring *r = (struct ring *)m;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
    kn_assert(sqe);
    io_uring_prep_read(sqe, t->file, t->to, (unsigned)t->bytes, t->offset);
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(sqe, t);
}

/* All of what was pushed, and what has completed comes into sight.  Otherwise -errno: EINTR, EAGAIN, EBUSY;
 * what is left stays pushed, and the next pull tries again. */
static int submit(struct ring *r)
{
    int n;
    do {
        n = io_uring_submit_and_get_events(&r->uring);
    } while (n > 0 && io_uring_sq_ready(&r->uring) > 0);
    return n < 0 ? n : io_uring_sq_ready(&r->uring) ? -EAGAIN : 0;
}

static struct off_transfer *collect(struct ring *r)
{
    struct off_transfer *ended = NULL;
    struct io_uring_cqe *cqe;
    unsigned head, n = 0;
    io_uring_for_each_cqe(&r->uring, head, cqe) {
        struct off_transfer *t = io_uring_cqe_get_data(cqe);
        t->result = cqe->res;
        t->next = ended;
        ended = t;
        n++;
    }
    io_uring_cq_advance(&r->uring, n);
    return ended;
}

/* Without waiting, then after one. */
static struct off_transfer *ring_pull(struct off_mover *m, uint64_t wait_ns)
{
    struct ring *r = (struct ring *)m;
    int left = submit(r);
    struct off_transfer *ended = collect(r);
    if (ended || wait_ns == 0)
        return ended;
    if (left && wait_ns > RETRY_NS)
        wait_ns = RETRY_NS;
    struct pollfd fds[2] = { { .fd = r->uring.ring_fd, .events = POLLIN },
                             { .fd = r->wake_fd, .events = POLLIN } };
    struct timespec wait = { (time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u) };
    uint64_t count;
    if (ppoll(fds, 2, wait_ns == UINT64_MAX ? NULL : &wait, NULL) > 0 && fds[1].revents)
        (void)!read(r->wake_fd, &count, sizeof count);
    submit(r);
    return collect(r);
}

static void ring_wake(struct off_mover *m)
{
    (void)!write(((struct ring *)m)->wake_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
}

static void ring_close(struct off_mover *m)
{
    struct ring *r = (struct ring *)m;
    io_uring_queue_exit(&r->uring);
    close(r->wake_fd);
    kn_free(r);
}

static const struct off_mover_ops ring_ops = {
    .name = "io_uring", .close = ring_close, .push = ring_push, .pull = ring_pull, .wake = ring_wake,
};

/* ---- opening ------------------------------------------------------------------------------------- */

/* Completions are worked off when we ask for them, where the kernel knows that (6.1). */
static int init_ring(struct io_uring *u, int depth)
{
    static const unsigned flags[] = { IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0 };
    int error = -EINVAL;
    for (int i = 0; i < 2 && error == -EINVAL; i++) {
        struct io_uring_params p = { .flags = IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | flags[i],
                                     .cq_entries = 4 * (unsigned)depth };
        error = io_uring_queue_init_params((unsigned)depth, u, &p);
    }
    return error;
}

static int restrict_ring(struct io_uring *u, const int *fd, int n_fd)
{
    struct io_uring_restriction only[] = {
        { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ },
        { .opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED, .sqe_flags = IOSQE_FIXED_FILE },
        { .opcode = IORING_RESTRICTION_SQE_FLAGS_REQUIRED, .sqe_flags = IOSQE_FIXED_FILE },
    };
    int error = io_uring_register_files(u, fd, (unsigned)n_fd);
    if (!error)                                 /* liburing 2.3 forgets to export its names for these two */
        error = io_uring_register((unsigned)u->ring_fd, IORING_REGISTER_RESTRICTIONS, only, 3);
    if (!error)
        error = io_uring_register((unsigned)u->ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
    return error;
}

static const char *reason(int error)
{
    switch (error) {
    case -EPERM:
    case -EACCES:
        return " (a container's seccomp profile, or sysctl kernel.io_uring_disabled)";
    case -ENOSYS:
        return " (an old kernel, or a seccomp profile)";
    case -ENOMEM:
        return " (little memory may be locked: see ulimit -l)";
    case -EINVAL:
        return " (the kernel's is too old: 5.10 or later)";
    }
    return "";
}

int off_ring_open(struct off_mover **out, int depth, const int *fd, int n_fd, const char **why)
{
    struct ring *r = kn_calloc(1, sizeof *r);
    int error = -ENOMEM;
    *why = "";
    if (!r)
        return error;
    r->mover = (struct off_mover){ &ring_ops, depth };
    if ((r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        error = -errno;
        goto no_wake;
    }
    if ((error = init_ring(&r->uring, depth)) != 0)
        goto no_ring;
    (void)io_uring_ring_dontfork(&r->uring);
    error = restrict_ring(&r->uring, fd, n_fd);
    for (int i = 0; i < TRIES && (!error || error == -EINTR); i++)      /* may it be entered, too? */
        if ((error = submit(r)) == 0)
            break;
    if (error)
        goto no_use;
    *out = &r->mover;
    return 0;
no_use:
    io_uring_queue_exit(&r->uring);
no_ring:
    close(r->wake_fd);
no_wake:
    kn_free(r);
    *why = reason(error);
    return error;
}
