/* Transfers by io_uring.
 *
 * One ring, used by the thread that opened it.  The ring is restricted before it is enabled: it can only
 * read, and only the files given to it, so it cannot bypass a sandbox.  The ring always polls an eventfd, so
 * that the thread can wait in the kernel for completions and other threads can wake it.
 *
 * A transfer, or the poll, is
 *   pushed     in the submission ring, which has space for depth transfers; submitted in the next pull
 *   inside     owned by the kernel; each gives one completion, for which there is always space
 *
 * The ring is dead when the kernel refuses submissions with a permanent error: it is closed then, and the kernel
 * releases the transfers inside some time later.  A pipe shows when: the ring holds one end as a file, and the
 * kernel closes a ring's files last, so the other end (end_fd) hangs up.  Only then is the mover's error set, and
 * the transfers belong to the reader again.
 *
 * Cost: one system call submits all pushed transfers and waits for the first completion. */
#include "offload/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define RETRY_NS 1000000 /* pause after a temporary refusal */
#define TRIES    10      /* retries of the first submission */
#define PATIENCE 1000    /* temporary refusals in a row after which the ring is given up: 1 s */

struct ring {
    struct off_mover mover;
    struct io_uring uring;
    int wake_fd, wake_file; /* the eventfd, and its index among the ring's files */
    bool armed;             /* the eventfd's poll is pushed or inside */
    int end_fd;             /* the pipe's end that the ring does not hold */
    int n_refused;          /* temporary refusals in a row */
    int error;              /* -errno if the ring is dead, else 0 */
    bool lost;              /* a transfer was pushed to the dead ring */
};

static void ring_push(struct off_mover *m, struct off_transfer *t)
{
    struct ring *r = (struct ring *)m;
    if (r->error) {
        r->lost = true;
        return;
    }
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
    kn_assert(sqe);
    io_uring_prep_read(sqe, t->file, t->to, (unsigned)t->bytes, t->offset);
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(sqe, t);
}

static void arm(struct ring *r)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
    kn_assert(sqe);
    io_uring_prep_poll_add(sqe, r->wake_file, POLLIN);
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(sqe, NULL);
    r->armed = true;
}

static void clear_wake(struct ring *r)
{
    uint64_t count;
    (void)!read(r->wake_fd, &count, sizeof count);
}

static struct off_transfer *collect(struct ring *r)
{
    struct off_transfer *ended = NULL;
    struct io_uring_cqe *cqe;
    unsigned head, n = 0;
    io_uring_for_each_cqe(&r->uring, head, cqe)
    {
        struct off_transfer *t = io_uring_cqe_get_data(cqe);
        n++;
        if (!t) {
            clear_wake(r);
            r->armed = false;
            continue;
        }
        t->result = cqe->res;
        t->next = ended;
        ended = t;
    }
    io_uring_cq_advance(&r->uring, n);
    return ended;
}

/* ring_pull for a dead ring: waits for a wake, for wait_ns, or until the pipe hangs up; sets the mover's error once the
 * pipe has hung up.  If the error was set already and a transfer was pushed since, does not wait.  Returns NULL. */
static struct off_transfer *wait_for_end(struct ring *r, uint64_t wait_ns)
{
    struct pollfd fd[] = { { r->wake_fd, POLLIN, 0 }, { r->end_fd, 0, 0 } };
    bool dead = r->mover.error, at_once = dead && r->lost;
    struct timespec wait = { (time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u) };
    if (!at_once)
        ppoll(fd, dead ? 1 : 2, wait_ns == UINT64_MAX ? NULL : &wait, NULL);
    if (fd[0].revents)
        clear_wake(r);
    if (fd[1].revents & POLLHUP)
        r->mover.error = r->error;
    r->lost = false;
    return NULL;
}

static void give_up(struct ring *r, int error)
{
    kn_say(KN_LOG_WARN,
           "io_uring has failed: %s; from now on reading with %d pread threads, which uses more "
           "processor time",
           strerror(-error), r->mover.depth);
    io_uring_queue_exit(&r->uring);
    r->error = error;
}

/* Submits the pushed transfers and waits.  If the kernel refuses the submission, transfers stay pushed and it has not
 * waited: after EINTR, EAGAIN, EBUSY or ENOMEM, which are temporary, pauses RETRY_NS, and the next pull tries again. */
static struct off_transfer *ring_pull(struct off_mover *m, uint64_t wait_ns)
{
    struct ring *r = (struct ring *)m;
    struct io_uring_cqe *first;
    if (r->error)
        return wait_for_end(r, wait_ns);
    struct __kernel_timespec wait = { (long long)(wait_ns / 1000000000u), (long long)(wait_ns % 1000000000u) };
    if (!r->armed)
        arm(r);
    int n = io_uring_submit_and_wait_timeout(&r->uring, &first, 1, wait_ns == UINT64_MAX ? NULL : &wait, NULL);
    struct off_transfer *ended = collect(r);
    bool passes = n == -EINTR || n == -EAGAIN || n == -EBUSY || n == -ENOMEM;
    if (n >= 0 || n == -ETIME || ended)
        r->n_refused = 0;
    else if (passes && ++r->n_refused < PATIENCE)
        nanosleep(&(struct timespec){ 0, RETRY_NS }, NULL);
    else
        give_up(r, n);
    return ended;
}

static void ring_wake(struct off_mover *m)
{
    (void)!write(((struct ring *)m)->wake_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
}

static void ring_close(struct off_mover *m)
{
    struct ring *r = (struct ring *)m;
    if (!r->error)
        io_uring_queue_exit(&r->uring);
    close(r->end_fd);
    close(r->wake_fd);
    kn_free(r);
}

static const struct off_mover_ops ring_ops = {
    .name = "io_uring",
    .close = ring_close,
    .push = ring_push,
    .pull = ring_pull,
    .wake = ring_wake,
};

/* ---- opening ------------------------------------------------------------------------------------- */

/* On kernels from 6.1 on, completions are processed only when this thread asks for them (DEFER_TASKRUN). */
static int init_ring(struct io_uring *u, int depth)
{
    static const unsigned flags[] = { IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0 };
    int error = -EINVAL;
    for (int i = 0; i < 2 && error == -EINVAL; i++) {
        struct io_uring_params p = { .flags = IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | flags[i],
                                     .cq_entries = 4 * (unsigned)(depth + 1) };
        error = io_uring_queue_init_params((unsigned)depth + 1, u, &p);
    }
    if (!error && !(u->features & IORING_FEAT_EXT_ARG)) { /* timeouts, from 5.11 */
        io_uring_queue_exit(u);
        error = -EINVAL;
    }
    return error;
}

static int restrict_ring(struct io_uring *u, const int *fd, int n_fd)
{
    struct io_uring_restriction only[] = {
        { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ },
        { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_POLL_ADD },
        { .opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED, .sqe_flags = IOSQE_FIXED_FILE },
        { .opcode = IORING_RESTRICTION_SQE_FLAGS_REQUIRED, .sqe_flags = IOSQE_FIXED_FILE },
    };
    int error = io_uring_register_files(u, fd, (unsigned)n_fd);
    if (!error) /* liburing 2.3 does not export its functions for these two calls */
        error = io_uring_register((unsigned)u->ring_fd, IORING_REGISTER_RESTRICTIONS, only, sizeof only / sizeof *only);
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
        return " (the limit of locked memory is low: see ulimit -l)";
    case -EINVAL:
        return " (needs Linux 5.11 or later)";
    }
    return "";
}

/* The first submission also shows whether io_uring_enter is allowed: some seccomp filters allow io_uring_setup
 * only. */
static int try_ring(struct ring *r)
{
    int error;
    arm(r);
    for (int i = 0; (error = io_uring_submit(&r->uring)) == -EINTR && i < TRIES;)
        i++;
    return error < 0 ? error : 0;
}

int off_ring_open(struct off_mover **out, int depth, const int *fd, int n_fd, const char **why)
{
    struct ring *r = kn_calloc(1, sizeof *r);
    int *all = kn_calloc((size_t)n_fd + 2, sizeof *all), end[2] = { -1, -1 }, error = -ENOMEM;
    *why = "";
    if (!r || !all)
        goto no_memory;
    r->mover = (struct off_mover){ &ring_ops, depth, 0 };
    if ((r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 || pipe2(end, O_CLOEXEC) < 0) {
        error = -errno;
        goto no_ring;
    }
    memcpy(all, fd, (size_t)n_fd * sizeof *all);
    all[r->wake_file = n_fd] = r->wake_fd;
    all[n_fd + 1] = end[1];
    if ((error = init_ring(&r->uring, depth)) != 0)
        goto no_ring;
    (void)io_uring_ring_dontfork(&r->uring);
    if ((error = restrict_ring(&r->uring, all, n_fd + 2)) != 0 || (error = try_ring(r)) != 0)
        goto no_use;
    close(end[1]); /* the ring holds it now */
    r->end_fd = end[0];
    kn_free(all);
    *out = &r->mover;
    return 0;
no_use:
    io_uring_queue_exit(&r->uring);
no_ring:
    close(end[0]);
    close(end[1]);
    close(r->wake_fd);
no_memory:
    kn_free(all);
    kn_free(r);
    *why = reason(error);
    return error;
}
