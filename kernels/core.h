/* kernels/core.h - the machine under everything: errors, log, sizes, memory, files, clock, threads.
 *
 * Every other file in the tree may use this one; it uses nothing of the tree.
 *
 * Errors.   A call returns 0 (or a count) or a negative KN_E*.  The place that knows the detail says it
 *           once, with kn_fail(), in words a user can act on; callers pass the code on.
 * The seam. Memory, files and clock are reached through one table, struct kn_io.  A test replaces it to
 *           make the n-th call fail, for all n.  It is set once, before any thread is started.
 * Memory.   kn_alloc() for what is small, kn_map() for what is large (huge pages, bound to a node).
 *           Both only while something is being opened: between kn_alloc_forbid(true) and (false), on
 *           the calling thread, an allocation is a broken invariant and traps.
 * Threads.  A team is the calling thread and n-1 pinned workers.  kn_parallel_for() gives each a run of
 *           neighbouring items and lets those who are done help the others, so nothing computed may
 *           depend on who ran an item.
 * Nodes.    Memory is near to some processors and far from others.  Nodes are counted from 0, only those
 *           that have memory and processors of ours; a team's threads are in their order.  Most machines
 *           have one, and all of this is then as if it were not there. */
#ifndef KERNELS_CORE_H
#define KERNELS_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- errors and log ---------------------------------------------------------------------------- */

#define KN_ERRORS(X)                                                  \
    X(KN_EINVAL,       -1,  "bad request or option")                  \
    X(KN_ENOMEM,       -2,  "out of memory")                          \
    X(KN_EIO,          -3,  "reading or writing failed")              \
    X(KN_ENOENT,       -4,  "no such file")                           \
    X(KN_ESHORT,       -5,  "file is shorter than it says")           \
    X(KN_ECORRUPT,     -6,  "file is corrupt")                        \
    X(KN_EUNSUPPORTED, -7,  "not supported")                          \
    X(KN_ELIMIT,       -8,  "over a limit")                           \
    X(KN_ENODEV,       -9,  "no such device")                         \
    X(KN_ECANCELLED,   -10, "cancelled")

enum kn_error {
#define KN_ENUM(name, value, text) name = value,
    KN_ERRORS(KN_ENUM)
#undef KN_ENUM
};

enum kn_level { KN_LOG_ERROR, KN_LOG_WARN, KN_LOG_INFO, KN_LOG_DEBUG };

const char *kn_error_text(int code);

/* One line to the sink; the sink adds the newline.  The default sink writes to stderr. */
typedef void kn_log_sink(enum kn_level level, const char *line);
void kn_log_set(kn_log_sink *sink, enum kn_level most);
void kn_say(enum kn_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Says what went wrong and returns code, for `return kn_fail(KN_ECORRUPT, ...)`. */
int kn_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* For our own broken invariants only; stays on in release. */
#define kn_assert(cond) ((cond) ? (void)0 : kn_assert_failed(__FILE__, __LINE__, #cond))
__attribute__((noreturn)) void kn_assert_failed(const char *file, int line, const char *cond);

/* ---- sizes ------------------------------------------------------------------------------------- */

/* Checked arithmetic for every size that comes from a file or a request: false on overflow. */
static inline bool kn_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool kn_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

static inline size_t kn_align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static inline int    kn_ceil_div(int a, int b)        { return (a + b - 1) / b; }
static inline int    kn_min(int a, int b)             { return a < b ? a : b; }
static inline int    kn_max(int a, int b)             { return a > b ? a : b; }

/* The one counter hash (splitmix64's output function): sampling noise, synthetic weights, tests. */
static inline uint64_t kn_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}
#define KN_GOLDEN UINT64_C(0x9E3779B97F4A7C15)

/* ---- the seam ---------------------------------------------------------------------------------- */

/* Which file a descriptor is of; direct_align: what O_DIRECT asks of memory and offsets, 0 where nobody says. */
struct kn_stat { uint64_t device, inode; uint32_t direct_align; };

/* Everything that can fail for reasons outside the program.  Results follow the system calls' habit:
 * -1 (or NULL) with errno set. */
struct kn_io {
    void   *(*alloc)(size_t bytes);                         /* like malloc */
    void    (*free)(void *p);
    void   *(*map)(size_t bytes, int node);                 /* zeroed, page-aligned; node -1: any */
    void    (*unmap)(void *p, size_t bytes);
    void    (*bind)(void *p, size_t bytes, int node);       /* untouched whole pages: a wish, never fails */
    void    (*cpu_nodes)(int *node, int n_cpu);             /* of each CPU the nearest with memory, or all -1 */
    int     (*open)(const char *path, int flags, int mode);
    int     (*close)(int fd);
    int64_t (*size)(int fd);                                /* regular files and block devices */
    int     (*stat)(int fd, struct kn_stat *out);
    int64_t (*room)(int fd);                                /* bytes that may still be written where it is */
    ssize_t (*pread)(int fd, void *buf, size_t bytes, int64_t offset);
    ssize_t (*pwrite)(int fd, const void *buf, size_t bytes, int64_t offset);
    int     (*forget)(int fd, int64_t offset, int64_t bytes);   /* what the page cache has of it: a wish */
    int     (*sync)(int fd);
    int     (*resize)(int fd, int64_t bytes);               /* cuts a file, or adds zeros */
    int     (*rename)(const char *from, const char *to);
    int     (*unlink)(const char *path);
    uint64_t (*now_ns)(void);                               /* monotonic */
    void    (*touch)(void *p, size_t bytes);                /* whole pages are made now, or kept: a wish */
    void    (*sparse)(void *p, size_t bytes);               /* pages will be small: a wish */
};

extern const struct kn_io kn_io_system;
void kn_io_set(const struct kn_io *io);                     /* NULL: the system's */
const struct kn_io *kn_io(void);

/* ---- memory ------------------------------------------------------------------------------------ */

void *kn_alloc(size_t bytes);                               /* NULL when there is none; never traps on 0 */
void *kn_calloc(size_t n, size_t bytes);                    /* zeroed, n * bytes checked */
void *kn_realloc(void *p, size_t old_bytes, size_t bytes);  /* NULL leaves p as it was */
char *kn_strdup(const char *s);
void  kn_free(void *p);
void  kn_alloc_forbid(bool forbid);                         /* this thread */
size_t kn_alloc_bytes(void);                                /* the process's small memory, as the system has it */

/* Large memory: zeroed, huge pages where the machine grants them, on one node (-1: any). */
void *kn_map(size_t bytes, int node);
void  kn_unmap(void *p, size_t bytes);
void  kn_map_touch(void *p, size_t bytes);                  /* whole pages: made now, or kept as they are */
void  kn_map_sparse(void *p, size_t bytes);                 /* used here and there: small pages, made when touched */
void  kn_map_bind(void *p, size_t bytes, int node);         /* pages that begin there, if still untouched */

/* An arena is one mapping handed out from the front; it is reset, never freed piecewise.  The size is
 * found by running the same code over an arena without memory: base NULL counts and hands out NULL. */
struct kn_arena { uint8_t *base; size_t bytes, used; };

int   kn_arena_open(struct kn_arena *a, size_t bytes, int node);
void  kn_arena_close(struct kn_arena *a);
void *kn_arena_take(struct kn_arena *a, size_t n, size_t size);   /* 64-byte aligned; traps when full */

/* ---- files ------------------------------------------------------------------------------------- */

/* All take EINTR and short transfers in their stride.  The message names the path. */
int  kn_file_open(int *fd, const char *path, int flags);
int  kn_file_open_read(int *fd, const char *path);          /* a pipe without a writer is not waited for */
void kn_file_close(int fd);
int  kn_file_refuse_folder(const char *path);               /* KN_EINVAL, said, when it is one */
int  kn_file_refuse_target(const char *path);               /* that too; or what a rename would replace by a file */
int  kn_file_refuse_other(const char *path, const char *magic /* [4] */, const char *what);      /* or what is there, */
                                                            /* not empty, and begins otherwise: no `what` */
int  kn_file_read(int fd, const char *path, void *buf, size_t bytes, uint64_t offset);
int  kn_file_write(int fd, const char *path, const void *buf, size_t bytes, uint64_t offset);
int  kn_fail_short(const char *path, uint64_t end, uint64_t missing);   /* KN_ESHORT, said: it ends too early */
int  kn_fail_size(const char *path);                        /* said, by errno: what is open has no size */

/* ---- clock ------------------------------------------------------------------------------------- */

uint64_t kn_now_ns(void);

/* ---- machine ----------------------------------------------------------------------------------- */

enum kn_isa { KN_ISA_SCALAR, KN_ISA_AVX2, KN_ISA_AVX512, KN_ISA_COUNT };

enum kn_isa kn_isa_best(void);                              /* what this processor can run */
const char *kn_isa_name(enum kn_isa isa);

#define KN_NODES 16                                         /* what lies beyond counts as the last */

struct kn_machine {
    int    n_cpu;                                           /* that this process may use */
    int    n_node, node[KN_NODES];                          /* node[i]: i for kn_map; -1 where there is but one */
    size_t memory_bytes, available_bytes;                   /* a cgroup's limit counts */
};
void kn_machine_get(struct kn_machine *out);
int  kn_machine_stay(int node);                             /* for good: this thread and those that it starts */

/* ---- threads ----------------------------------------------------------------------------------- */

struct kn_team;                                             /* owns the workers */

/* The calling thread does little, and what it does must be done at once: the scheduler is asked to let it in
 * before threads that compute.  Needs no privilege; where the kernel cannot (before 6.12), nothing changes. */
void kn_thread_hurry(void);

/* What the calling thread does may wait for what others do, and so may what threads do that it starts. */
void kn_thread_give_way(void);

int  kn_team_open(struct kn_team **out, int n_thread);      /* 0: one per usable CPU */
void kn_team_close(struct kn_team *t);
int  kn_team_size(const struct kn_team *t);

/* Runs fn(arg, item, thread) for item 0..n-1 and returns when all are done.  From one thread at a time.
 * thread is 0 for the caller, below kn_team_size(): an index for scratch, never for results. */
typedef void kn_task(void *arg, int item, int thread);
void kn_parallel_for(struct kn_team *t, int n, kn_task *fn, void *arg);

/* The same for items that lie on nodes: those from cut[k] to cut[k + 1] on node k, whose threads run them
 * and help each other before they help elsewhere. */
void kn_parallel_on(struct kn_team *t, const int cut[KN_NODES + 1], kn_task *fn, void *arg);

int  kn_team_nodes(const struct kn_team *t);
int  kn_team_node(const struct kn_team *t, int thread);

/* kn_parallel_for() over n items gives node k those from kn_team_cut(t, n, k) to the next node's; bind puts
 * the pages of n things of so many bytes where their items will run, if they are still untouched. */
int  kn_team_cut(const struct kn_team *t, int n, int node);
void kn_team_bind(const struct kn_team *t, void *p, int n, size_t bytes);

#endif
