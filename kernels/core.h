/* kernels/core.h - base services: errors, log, checked sizes, memory, files, clock, machine, threads.
 *
 * Every other file in the tree may use this header; it includes no other header of the tree.
 *
 * Errors.   A call returns 0 (or a count) or a negative KN_E*.  The function that knows the detail logs
 *           one message with kn_fail(), in words a user can act on; its callers only return the code.
 * The seam. Memory, files and clock are reached through one table of functions, struct kn_io.  A test
 *           replaces the table to make the n-th call fail, for each n.  kn_io_set() is called once, before
 *           threads start.
 * Memory.   kn_alloc() is for small objects, kn_map() for large ones (huge pages, bound to a node).
 *           Both are allowed only while something is being opened: between kn_alloc_forbid(true) and
 *           (false), an allocation on the calling thread is a bug and traps.
 * Threads.  A team is the calling thread and pinned workers.  kn_parallel_for() gives each thread a range
 *           of neighbouring items; threads that finish early help the others.  So a result must not
 *           depend on the thread that ran an item.
 * Nodes.    NUMA nodes are numbered from 0.  A node counts only if it has memory, and processors that this
 *           process may use.  A team's threads are ordered by node.  On a machine with one node, node
 *           arguments have no effect. */
#ifndef KERNELS_CORE_H
#define KERNELS_CORE_H

#ifndef __cplusplus
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- errors and log ---------------------------------------------------------------------------- */

#define KN_ERRORS(X)                                                                                                   \
    X(KN_EINVAL, -1, "bad request or option")                                                                          \
    X(KN_ENOMEM, -2, "out of memory")                                                                                  \
    X(KN_EIO, -3, "reading or writing failed")                                                                         \
    X(KN_ENOENT, -4, "no such file")                                                                                   \
    X(KN_ESHORT, -5, "file is shorter than its header says")                                                           \
    X(KN_ECORRUPT, -6, "file is corrupt")                                                                              \
    X(KN_EUNSUPPORTED, -7, "not supported")                                                                            \
    X(KN_ELIMIT, -8, "over a limit")                                                                                   \
    X(KN_ENODEV, -9, "no such device")                                                                                 \
    X(KN_ECANCELLED, -10, "cancelled")

enum kn_error {
#define KN_ENUM(name, value, text) name = value,
    KN_ERRORS(KN_ENUM)
#undef KN_ENUM
};

enum kn_level { KN_LOG_ERROR, KN_LOG_WARN, KN_LOG_INFO, KN_LOG_DEBUG };

const char *kn_error_text(int code);

/* kn_say() passes one line, without a newline, to the sink if its level is at most `most`; control characters in it
 * become '?'.  The default sink (kn_log_set with NULL) writes to stderr. */
typedef void kn_log_sink(enum kn_level level, const char *line);
void kn_log_set(kn_log_sink *sink, enum kn_level most);
void kn_say(enum kn_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Logs the error and returns code, for `return kn_fail(KN_ECORRUPT, ...)`. */
int kn_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* For bugs of this program only, never for files, devices or users; stays on in release. */
#define kn_assert(cond) ((cond) ? (void)0 : kn_assert_failed(__FILE__, __LINE__, #cond))
__attribute__((noreturn)) void kn_assert_failed(const char *file, int line, const char *cond);

/* An inline function that CUDA kernels call, too. */
#ifdef __CUDACC__
#define KN_SHARED static __host__ __device__ __forceinline__
#else
#define KN_SHARED static inline
#endif

/* ---- sizes ------------------------------------------------------------------------------------- */

/* Checked arithmetic for every size that comes from a file or a request: false on overflow. */
static inline bool kn_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool kn_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

KN_SHARED size_t kn_align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static inline int kn_ceil_div(int a, int b) { return (a + b - 1) / b; }
static inline int kn_min(int a, int b) { return a < b ? a : b; }
static inline int kn_max(int a, int b) { return a > b ? a : b; }

/* The project's only counter hash (splitmix64's output function): sampling noise, synthetic weights, tests. */
static inline uint64_t kn_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}
#define KN_GOLDEN UINT64_C(0x9E3779B97F4A7C15)

/* ---- the seam ---------------------------------------------------------------------------------- */

/* device, inode: identity of a file.  direct_align: alignment in bytes that O_DIRECT needs of memory and
 * offsets; 0: the system does not report one.  mtime_ns, ctime_ns: the last change of its contents, and of contents or
 * inode. */
struct kn_stat {
    uint64_t device, inode;
    uint32_t direct_align;
    int64_t mtime_ns, ctime_ns;
};

/* Every call that can fail for reasons outside the program.  Results are as for system calls: -1 (or NULL)
 * with errno set.  "hint": the system may ignore it, and the call reports no failure. */
struct kn_io {
    void *(*alloc)(size_t bytes); /* like malloc; memory of alloc and realloc is malloc's */
    void *(*realloc)(void *p, size_t bytes);
    void (*free)(void *p);
    void *(*map)(size_t bytes, int node); /* zeroed, page-aligned; node -1: any */
    void (*unmap)(void *p, size_t bytes);
    void (*bind)(void *p, size_t bytes, int node); /* whole pages that are still untouched: hint */
    void (*cpu_nodes)(int *node, int n_cpu);       /* per CPU: the nearest node with memory; all -1: one node */
    int (*open)(const char *path, int flags, int mode);
    int (*close)(int fd);
    int64_t (*size)(int fd); /* regular files and block devices */
    int (*stat)(int fd, struct kn_stat *out);
    int64_t (*room)(int fd); /* free bytes on the file's file system */
    ssize_t (*pread)(int fd, void *buf, size_t bytes, int64_t offset);
    ssize_t (*pwrite)(int fd, const void *buf, size_t bytes, int64_t offset);
    int (*forget)(int fd, int64_t offset, int64_t bytes); /* drops the range from the page cache: hint */
    int (*sync)(int fd);
    int (*resize)(int fd, int64_t bytes); /* truncates, or extends with zeros */
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    uint64_t (*now_ns)(void);              /* monotonic */
    void (*touch)(void *p, size_t bytes);  /* allocates the pages now, p page-aligned; contents stay: hint */
    void (*sparse)(void *p, size_t bytes); /* use small pages: hint */
    void (*drop)(void *p, size_t bytes);   /* frees whole pages until the next touch; contents are lost: hint */
};

extern const struct kn_io kn_io_system;
void kn_io_set(const struct kn_io *io); /* NULL: kn_io_system */
const struct kn_io *kn_io(void);

/* ---- memory ------------------------------------------------------------------------------------ */

void *kn_alloc(size_t bytes);                              /* NULL when out of memory; bytes 0 is allowed */
void *kn_calloc(size_t n, size_t bytes);                   /* zeroed, n * bytes checked */
void *kn_realloc(void *p, size_t old_bytes, size_t bytes); /* if it returns NULL, p is unchanged */
char *kn_strdup(const char *s);
void kn_free(void *p);
void kn_alloc_forbid(bool forbid); /* for the calling thread */
size_t kn_alloc_failures(void);    /* allocations of the calling thread so far that returned NULL */
size_t kn_alloc_bytes(void);       /* bytes that malloc has taken from the system */

/* The limit for memory of requests.  kn_alloc(), kn_heap_alloc() and JSON (kernels/json.h) count the bytes in use.  While a thread has a guard,
 * its allocations return NULL if they would leave less than keep bytes of the room that kn_heap_limit() has set, or once
 * *stop is true.  Other allocations count, and are never refused. */
#ifndef __cplusplus /* nvcc has no C atomics */
struct kn_heap_guard {
    size_t keep;
    const atomic_bool *stop; /* or NULL */
    size_t denied_bytes;     /* held_bytes and the allocation that returned NULL, at the first such; 0: none */
    int64_t held_bytes;      /* allocated less freed by this thread while it has the guard */
};
#endif
struct kn_heap_guard;
void kn_heap_limit(size_t room);             /* bytes beyond those in use now; SIZE_MAX: no limit */
size_t kn_heap_room(void);                   /* bytes left of it */
void kn_heap_guard(struct kn_heap_guard *g); /* for the calling thread; NULL: ends it */
void kn_heap_trim(void);                     /* returns freed memory to the system */
void *kn_heap_alloc(size_t bytes);           /* these three are for libraries that take functions like malloc's */
void *kn_heap_realloc(void *p, size_t bytes);
void kn_heap_free(void *p);

/* Large memory: zeroed, huge pages where the machine grants them.  node: pages come from it while it has free memory;
 * -1: from any.  NULL when out of memory. */
void *kn_map(size_t bytes, int node);
void kn_unmap(void *p, size_t bytes);
void kn_map_touch(void *p, size_t bytes);  /* allocates the pages now, p page-aligned; contents stay */
void kn_map_sparse(void *p, size_t bytes); /* for sparse use: small pages, allocated on first touch */
void kn_map_drop(void *p, size_t bytes);   /* frees the whole pages inside until the next touch; contents are lost */
void kn_map_bind(void *p, size_t bytes, int node); /* puts pages that begin in the range on node, if still untouched */

/* An arena is one mapping, handed out from the front.  It is reset as a whole; pieces are never freed.  To
 * find its size, run the same code over an arena with base NULL: it counts bytes and hands out NULL. */
struct kn_arena {
    uint8_t *base;
    size_t bytes, used;
};

int kn_arena_open(struct kn_arena *a, size_t bytes, int node);
void kn_arena_close(struct kn_arena *a);
void *kn_arena_take(struct kn_arena *a, size_t n, size_t size); /* 64-byte aligned; traps when full */

/* ---- files ------------------------------------------------------------------------------------- */

/* Reads and writes retry after EINTR and short transfers.  Messages name the path. */
int kn_file_open(int *fd, const char *path, int flags); /* flags of open(2); KN_ENOENT or KN_EIO */
int kn_file_open_read(int *fd, const char *path);       /* opening a pipe does not wait for a writer */
void kn_file_close(int fd);

/* Checks before a file is written to path: 0, or KN_EINVAL with a message.  _folder refuses a folder.  _target also
 * refuses a link, a device and a pipe, because a rename would replace it.  _other also refuses a file that is neither
 * empty nor begins with magic; its last argument names the expected kind of file in the message. */
int kn_file_refuse_folder(const char *path);
int kn_file_refuse_target(const char *path);
int kn_file_refuse_other(const char *path, const char *magic /* [4] */, const char *what);

int kn_file_read(int fd, const char *path, void *buf, size_t bytes, uint64_t offset);
int kn_file_write(int fd, const char *path, const void *buf, size_t bytes, uint64_t offset);

/* A file that appears under its name only when it is complete: it is written as path.spillway.part, then synced and
 * renamed.  The part file is locked: a second process that writes the same path is refused, and a part file that a
 * killed process has left is replaced.  Messages name path.  Close removes the part file unless commit or replace
 * succeeded; a struct { .fd = -1 } may be closed too. */
struct kn_new_file {
    int fd;
    bool optional; /* the program can do without the file: failures are logged at debug level */
    char *path, *part;
};
int kn_new_file_open(struct kn_new_file *f, const char *path, int mode); /* mode: such as 0644; the umask applies */
int kn_new_file_try(struct kn_new_file *f, const char *path, int mode);  /* the same for an optional file */
int kn_new_file_commit(struct kn_new_file *f);  /* after 0 a power cut does not remove or damage the file */
int kn_new_file_replace(struct kn_new_file *f); /* does not sync: a power cut may leave an empty or damaged file */
void kn_new_file_close(struct kn_new_file *f);
int kn_file_save(const char *path, int mode, const void *data, size_t bytes); /* open, write, commit, close */
/* The same for an optional file: open by try, write, replace, close. */
void kn_file_save_optional(const char *path, int mode, const void *data, size_t bytes);
int kn_file_publish(int fd, const char *part, const char *path); /* syncs part, renames it to path, syncs the folder */
void kn_file_sync_folder(const char *path); /* syncs path's folder: a new or renamed file survives a power cut */
int kn_fail_short(const char *path, uint64_t end, uint64_t missing); /* logs a truncated file; returns KN_ESHORT */
int kn_fail_size(const char *path); /* after a failed size(): logs the cause from errno; returns KN_EINVAL or KN_EIO */

/* ---- clock ------------------------------------------------------------------------------------- */

uint64_t kn_now_ns(void);

/* ---- machine ----------------------------------------------------------------------------------- */

enum kn_isa { KN_ISA_SCALAR, KN_ISA_AVX2, KN_ISA_AVX512, KN_ISA_VBMI, KN_ISA_COUNT }; /* VBMI: with GFNI, products */

enum kn_isa kn_isa_best(void); /* the best set that this processor can run */
const char *kn_isa_name(enum kn_isa isa);

#define KN_NODES 16 /* any further nodes count as the last */

struct kn_machine {
    int n_cpu;                            /* CPUs that this process may use */
    int n_node, node[KN_NODES];           /* node[i]: argument for kn_map; -1 if there is one node */
    size_t memory_bytes, available_bytes; /* both within the cgroup's limits */
};
void kn_machine_get(struct kn_machine *out);
/* Binds this thread, and threads that it starts later, to the CPUs of a node for good.  node: 0 .. n_node - 1, not
 * node[i]; with one node nothing changes.  Returns 0 or KN_ENODEV. */
int kn_machine_stay(int node);

/* ---- threads ----------------------------------------------------------------------------------- */

struct kn_team; /* owns the workers */

/* Low scheduling latency for the calling thread: asks the kernel for a short time slice, so that the thread is
 * scheduled before threads that compute.  For threads that need little CPU time.  Needs no privilege; has no effect on
 * kernels older than 6.12. */
void kn_thread_hurry(void);

/* Lower scheduling priority (nice) for the calling thread and the threads that it starts. */
void kn_thread_give_way(void);

int kn_team_open(struct kn_team **out, int n_thread); /* n_thread 0: one thread per usable CPU */
void kn_team_close(struct kn_team *t);
int kn_team_size(const struct kn_team *t);

/* Runs fn(arg, item, thread) for item 0..n-1 and returns when all are done.  One call at a time per team.
 * thread is 0 for the caller and below kn_team_size(): an index for scratch memory, never for results. */
typedef void kn_task(void *arg, int item, int thread);
void kn_parallel_for(struct kn_team *t, int n, kn_task *fn, void *arg);

/* The same for items that lie on nodes: items cut[k] to cut[k + 1] - 1 lie on node k.  The threads of node k
 * run them, and help each other before they help other nodes. */
void kn_parallel_on(struct kn_team *t, const int cut[KN_NODES + 1], kn_task *fn, void *arg);

int kn_team_nodes(const struct kn_team *t);            /* number of nodes */
int kn_team_node(const struct kn_team *t, int thread); /* the thread's node, 0 .. kn_team_nodes() - 1 */

/* kn_parallel_for() over n items gives node k the items kn_team_cut(t, n, k) .. kn_team_cut(t, n, k + 1) - 1.
 * kn_team_bind() puts an array of n items of `bytes` each on the nodes that run these items; only pages that are
 * still untouched are placed. */
int kn_team_cut(const struct kn_team *t, int n, int node);
void kn_team_bind(const struct kn_team *t, void *p, int n, size_t bytes);

#endif
