/* tests/emulated/trace.h - operations of passes, recorded with their inputs and the hashes of their outputs, and run again
 * one by one on another device.
 *
 *     struct trace_device d;
 *     trace_open(&d, isa, path)          a device that is the host and writes each operation of its queues to the file
 *     trace_close(&d)                    false: the file is not whole
 *     trace_replay(path, &options)       runs the operations of a file; counts and reports those with other outputs
 *
 * Each operation gets its recorded inputs, so that one wrong operation makes no other wrong.  The memory of the recorded
 * process is mapped at the same addresses, because operations, rows and lists of experts hold addresses: a replay is a
 * process of its own; if its own memory lies there by chance, it says so and can be run again.  A device with memory
 * of its own must be able to read that of the host at its addresses, as CUDA devices do with registered memory.
 *
 * The file: struct trace_head, then records, each a struct trace_record with its bytes after it.  A piece of memory is
 * recorded when it differs from the replaying process's memory, of which the recorder has a copy (struct trace_page):
 * zeros at first, later recorded inputs and outputs.  Scratch is set to zeros after each
 * operation on both sides.  Only the same build can replay a file. */
#ifndef TESTS_EMULATED_TRACE_H
#define TESTS_EMULATED_TRACE_H

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL /* without the library */
#include <xxhash.h>

#include "kernels/pass.h"

#define TRACE_MAGIC "spillway operations 1"
#define TRACE_PAGE  4096
#define TRACE_TABLE (1 << 20) /* pages that a recorder's table has room for */

enum trace_kind { TRACE_QUEUE, TRACE_BYTES, TRACE_OP };

struct trace_head {
    char magic[32];
    uint64_t op_bytes, n_kind;
};

/* A queue: struct kn_queue_options.  Bytes: those at address `at`.  An operation: struct kn_op, then its fields. */
struct trace_record {
    uint32_t kind, queue;
    uint64_t at, bytes; /* bytes: behind this record */
};

struct trace_field {
    char name[32];
    uint32_t access, unused; /* enum kn_access */
    uint64_t at, bytes, hash;
};

struct trace_fields {
    struct trace_field *field;
    size_t n, room;
};

static void trace_note(void *arg, const char *name, enum kn_access access, const void *at, size_t bytes)
{
    struct trace_fields *f = arg;
    if (f->n == f->room)
        f->field = realloc(f->field, (f->room = 2 * f->room + 64) * sizeof *f->field);
    struct trace_field *x = &f->field[f->n++];
    *x = (struct trace_field){ .access = access, .at = (uintptr_t)at, .bytes = bytes };
    snprintf(x->name, sizeof x->name, "%s", name);
}

static uint8_t *trace_at(const struct trace_field *f) { return (uint8_t *)(uintptr_t)f->at; }

static bool trace_is_output(const struct trace_field *f) { return f->access == KN_WRITES || f->access == KN_CHANGES; }

static bool trace_is_input(const struct trace_field *f) { return f->access == KN_READS || f->access == KN_CHANGES; }

/* ---- recording ------------------------------------------------------------------------------------------------- */

struct trace_page {
    uintptr_t number;
    uint8_t byte[TRACE_PAGE];
};

struct trace_device {
    struct kn_device base;
    const struct kn_device *host;
    FILE *out;
    bool failed;
    struct trace_page **table; /* [TRACE_TABLE], found by address */
    int n_queue;
    pthread_mutex_t mutex;
    struct trace_fields fields;
};

struct trace_queue {
    struct kn_queue base;
    struct kn_queue *host;
    struct trace_device *device;
    uint32_t number;
};

static struct trace_page *trace_page_of(struct trace_device *d, uintptr_t number)
{
    size_t i = kn_mix(number) % TRACE_TABLE, n = 0;
    while (d->table[i] && d->table[i]->number != number) {
        kn_assert(++n < TRACE_TABLE);
        i = (i + 1) % TRACE_TABLE;
    }
    if (!d->table[i]) {
        d->table[i] = calloc(1, sizeof **d->table);
        d->table[i]->number = number;
    }
    return d->table[i];
}

static void trace_write(struct trace_device *d, const void *from, size_t bytes)
{
    d->failed |= fwrite(from, 1, bytes, d->out) != bytes;
}

/* Visits the parts of a piece of memory that lie on one page each, with their place in the recorder's copy. */
static void trace_by_page(struct trace_device *d, const struct trace_field *f,
                          void (*visit)(struct trace_device *d, uint8_t *at, uint8_t *copy, size_t n))
{
    for (uint64_t done = 0, n; done < f->bytes; done += n) {
        uintptr_t at = (uintptr_t)f->at + done, offset = at % TRACE_PAGE;
        n = TRACE_PAGE - offset < f->bytes - done ? TRACE_PAGE - offset : f->bytes - done;
        visit(d, (uint8_t *)at, trace_page_of(d, at / TRACE_PAGE)->byte + offset, n);
    }
}

/* Bytes that the replaying process has already are not written. */
static void trace_keep_input(struct trace_device *d, uint8_t *at, uint8_t *copy, size_t n)
{
    if (memcmp(at, copy, n) == 0)
        return;
    struct trace_record r = { .kind = TRACE_BYTES, .at = (uintptr_t)at, .bytes = n };
    trace_write(d, &r, sizeof r);
    trace_write(d, at, n);
    memcpy(copy, at, n);
}

static void trace_keep_output(struct trace_device *d, uint8_t *at, uint8_t *copy, size_t n)
{
    (void)d;
    memcpy(copy, at, n);
}

static void trace_keep_zeros(struct trace_device *d, uint8_t *at, uint8_t *copy, size_t n)
{
    (void)d, (void)at;
    memset(copy, 0, n);
}

static void trace_add(struct kn_queue *queue, const struct kn_op *op)
{
    struct trace_queue *q = (struct trace_queue *)queue;
    struct trace_device *d = q->device;
    struct trace_fields *f = &d->fields;
    pthread_mutex_lock(&d->mutex);
    f->n = 0;
    kn_op_fields(op, trace_note, f);
    for (size_t i = 0; i < f->n; i++)
        if (trace_is_input(&f->field[i]))
            trace_by_page(d, &f->field[i], trace_keep_input);
    kn_queue_add(q->host, op);
    kn_queue_wait(q->host);
    for (size_t i = 0; i < f->n; i++)
        if (trace_is_output(&f->field[i])) {
            f->field[i].hash = XXH3_64bits(trace_at(&f->field[i]), f->field[i].bytes);
            trace_by_page(d, &f->field[i], trace_keep_output);
        }
    for (size_t i = 0; i < f->n; i++)
        if (f->field[i].access == KN_SCRATCH)
            trace_by_page(d, &f->field[i], trace_keep_zeros);
    struct trace_record r = { .kind = TRACE_OP, .queue = q->number, .bytes = sizeof *op + f->n * sizeof *f->field };
    trace_write(d, &r, sizeof r);
    trace_write(d, op, sizeof *op);
    trace_write(d, f->field, f->n * sizeof *f->field);
    pthread_mutex_unlock(&d->mutex);
}

static struct kn_queue_options trace_host_options(const struct kn_queue_options *opt)
{
    struct kn_queue_options host = *opt;
    host.device = ((const struct trace_device *)opt->device)->host;
    return host;
}

static struct kn_bytes trace_queue_bytes(const struct kn_queue_options *opt)
{
    struct kn_queue_options host = trace_host_options(opt);
    return kn_queue_bytes(&host);
}

static int trace_queue_open(struct kn_queue **out, const struct kn_queue_options *opt)
{
    struct trace_device *d = (struct trace_device *)(uintptr_t)opt->device;
    struct kn_queue_options options = trace_host_options(opt);
    struct kn_queue *host;
    int error = kn_queue_open(&host, &options);
    if (error)
        return error;
    struct trace_queue *q = calloc(1, sizeof *q);
    pthread_mutex_lock(&d->mutex);
    *q = (struct trace_queue){
        .base.backend = opt->device->backend, .host = host, .device = d, .number = (uint32_t)d->n_queue++
    };
    struct trace_record r = { .kind = TRACE_QUEUE, .queue = q->number, .bytes = sizeof options };
    trace_write(d, &r, sizeof r);
    trace_write(d, &options, sizeof options);
    pthread_mutex_unlock(&d->mutex);
    *out = &q->base;
    return 0;
}

static void trace_queue_close(struct kn_queue *queue)
{
    struct trace_queue *q = (struct trace_queue *)queue;
    kn_queue_close(q->host);
    free(q);
}

static void trace_set_team(struct kn_queue *queue, struct kn_team *team)
{
    kn_queue_set_team(((struct trace_queue *)queue)->host, team);
}

static int trace_wait(struct kn_queue *queue) { return kn_queue_wait(((struct trace_queue *)queue)->host); }

static const struct kn_backend *trace_host(const struct kn_memory *m)
{
    return ((const struct trace_device *)m->device)->host->backend;
}

static int trace_memory_open(struct kn_memory *m, bool image) { return trace_host(m)->memory_open(m, image); }
static void trace_memory_close(struct kn_memory *m) { trace_host(m)->memory_close(m); }
static int trace_memory_write(struct kn_memory *m, size_t at, const void *from, size_t bytes)
{
    return trace_host(m)->memory_write(m, at, from, bytes);
}

/* The device must stay where it is while it is used. */
static inline bool trace_open(struct trace_device *d, enum kn_isa isa, const char *path)
{
    static const struct kn_backend backend = { .name = "trace",
                                               .memory_open = trace_memory_open,
                                               .memory_close = trace_memory_close,
                                               .memory_write = trace_memory_write,
                                               .queue_bytes = trace_queue_bytes,
                                               .queue_open = trace_queue_open,
                                               .queue_close = trace_queue_close,
                                               .queue_set_team = trace_set_team,
                                               .queue_add = trace_add,
                                               .queue_wait = trace_wait };
    struct trace_head head = { TRACE_MAGIC, sizeof(struct kn_op), KN_OP_COUNT };
    *d = (struct trace_device){ .base.backend = &backend,
                                .host = kn_host_device(isa),
                                .out = fopen(path, "wb"),
                                .table = calloc(TRACE_TABLE, sizeof *d->table),
                                .mutex = PTHREAD_MUTEX_INITIALIZER };
    if (!d->out)
        return false;
    trace_write(d, &head, sizeof head);
    return !d->failed;
}

static inline bool trace_close(struct trace_device *d)
{
    for (int i = 0; i < TRACE_TABLE; i++)
        free(d->table[i]);
    free(d->table);
    free(d->fields.field);
    d->failed |= fclose(d->out) != 0;
    return !d->failed;
}

/* ---- replay ------------------------------------------------------------------------------------------------------ */

struct trace_options {
    const struct kn_device *device;
    int (*share)(void *at, size_t bytes); /* lets the device read memory of the host; NULL: it can */
    FILE *out;                            /* gets a line for each of the first operations that differ */
    int most_lines;
};

struct trace_result {
    const char *error; /* the file cannot be replayed; NULL: it was */
    int n_op, n_wrong;
};

struct trace_range {
    uintptr_t first, last; /* pages; last is the one behind */
};

#define TRACE_QUEUES 16
struct trace_replay {
    const struct trace_options *opt;
    uint8_t *file;
    size_t bytes;
    struct trace_range *range;
    size_t n_range, room;
    struct kn_team *team;
    struct kn_queue *host[TRACE_QUEUES], *device[TRACE_QUEUES];
    struct trace_result result;
};

/* The record at offset *at, which moves to the next one; NULL: the end, or a file that was cut off. */
static const struct trace_record *trace_next(const struct trace_replay *t, size_t *at)
{
    struct trace_record r;
    const uint8_t *p = t->file + *at;
    if (t->bytes - *at < sizeof r)
        return NULL;
    memcpy(&r, p, sizeof r);
    if (r.bytes > t->bytes - *at - sizeof r)
        return NULL;
    *at += sizeof r + r.bytes;
    return (const struct trace_record *)(const void *)p;
}

static void trace_add_range(struct trace_replay *t, uint64_t at, uint64_t bytes)
{
    struct trace_range r = { (uintptr_t)at / TRACE_PAGE, ((uintptr_t)at + bytes + TRACE_PAGE - 1) / TRACE_PAGE };
    if (t->n_range && t->range[t->n_range - 1].first <= r.first && r.last <= t->range[t->n_range - 1].last)
        return;
    if (t->n_range == t->room)
        t->range = realloc(t->range, (t->room = 2 * t->room + 1024) * sizeof *t->range);
    t->range[t->n_range++] = r;
}

static int trace_compare(const void *a, const void *b)
{
    const struct trace_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Maps the memory that the records name, as zeros. */
static const char *trace_map(struct trace_replay *t)
{
    size_t at = sizeof(struct trace_head), n = 0;
    for (const struct trace_record *r; (r = trace_next(t, &at));) {
        const struct trace_field *f = (const void *)((const uint8_t *)(r + 1) + sizeof(struct kn_op));
        if (r->kind == TRACE_BYTES)
            trace_add_range(t, r->at, r->bytes);
        for (size_t i = 0; r->kind == TRACE_OP && i < (r->bytes - sizeof(struct kn_op)) / sizeof *f; i++)
            trace_add_range(t, f[i].at, f[i].bytes);
    }
    if (at != t->bytes)
        return "the file is cut off";
    qsort(t->range, t->n_range, sizeof *t->range, trace_compare);
    for (size_t i = 0; i < t->n_range; i++)
        if (n && t->range[i].first <= t->range[n - 1].last)
            t->range[n - 1].last = t->range[i].last > t->range[n - 1].last ? t->range[i].last : t->range[n - 1].last;
        else
            t->range[n++] = t->range[i];
    t->n_range = n;
    for (size_t i = 0; i < n; i++) {
        void *p = (void *)(t->range[i].first * TRACE_PAGE);
        size_t bytes = (t->range[i].last - t->range[i].first) * TRACE_PAGE;
        if (mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != p)
            return "this process has memory of its own at a recorded address: run it again";
        if (t->opt->share && t->opt->share(p, bytes))
            return "the device cannot read memory of the host";
    }
    return NULL;
}

static const char *trace_queue(struct trace_replay *t, const struct trace_record *r)
{
    struct kn_queue_options opt;
    kn_assert(r->bytes == sizeof opt && r->queue < TRACE_QUEUES);
    memcpy(&opt, r + 1, sizeof opt);
    opt.team = t->team;
    opt.device = kn_host_device(KN_ISA_SCALAR);
    if (kn_queue_open(&t->host[r->queue], &opt))
        return "no queue of the host";
    opt.device = t->opt->device;
    return kn_queue_open(&t->device[r->queue], &opt) ? "no queue of the device" : NULL;
}

/* Copies the outputs of an operation, one after the other, to bytes, or with `back` from there. */
static void trace_copy(const struct trace_field *f, size_t n, uint8_t *bytes, bool back)
{
    for (size_t i = 0; i < n; i++) {
        if (!trace_is_output(&f[i]))
            continue;
        memcpy(back ? trace_at(&f[i]) : bytes, back ? bytes : trace_at(&f[i]), f[i].bytes);
        bytes += f[i].bytes;
    }
}

/* Says where the first output of the operation differs.  got: the device's outputs; those of the host's scalar functions
 * are in their places. */
static void trace_report(struct trace_replay *t, const struct kn_op *op, const struct trace_field *f, size_t n,
                         const uint8_t *got)
{
    const struct trace_field *end = f + n;
    size_t at = 0;
    uint32_t x[2] = { 0 };
    float y[2];
    for (; f < end; f++) {
        if (!trace_is_output(f))
            continue;
        if (memcmp(got, trace_at(f), f->bytes) != 0)
            break;
        got += f->bytes;
    }
    if (f == end) {
        fprintf(t->opt->out, "operation %d, %s: the recorded outputs are not those of the host's scalar functions\n",
                t->result.n_op, kn_op_name(op->kind));
        return;
    }
    while (got[at] == trace_at(f)[at])
        at++;
    at -= at % 4;
    for (int i = 0; i < 2; i++)
        memcpy(&x[i], (i ? got : trace_at(f)) + at, f->bytes - at < 4 ? f->bytes - at : 4);
    memcpy(y, x, sizeof y);
    fprintf(t->opt->out, "operation %d, %s: byte %zu of %s is 0x%08x (%g), not 0x%08x (%g)\n", t->result.n_op,
            kn_op_name(op->kind), at, f->name, x[1], (double)y[1], x[0], (double)y[0]);
}

/* Runs an operation on the device.  If its outputs are not the recorded ones, the host's scalar functions compute them
 * again, for the report and for the operations after it. */
static const char *trace_run(struct trace_replay *t, const struct trace_record *r)
{
    struct kn_op op;
    const struct trace_field *f = (const void *)((const uint8_t *)(r + 1) + sizeof op);
    size_t n = (r->bytes - sizeof op) / sizeof *f, bytes = 1;
    bool wrong = false;
    memcpy(&op, r + 1, sizeof op);
    for (size_t i = 0; i < n; i++)
        bytes += trace_is_output(&f[i]) ? f[i].bytes : 0;
    uint8_t *before = malloc(bytes), *got = malloc(bytes);
    trace_copy(f, n, before, false);
    kn_queue_add(t->device[r->queue], &op);
    const char *error = kn_queue_wait(t->device[r->queue]) ? "the device failed" : NULL;
    for (size_t i = 0; i < n; i++)
        wrong |= trace_is_output(&f[i]) && XXH3_64bits(trace_at(&f[i]), f[i].bytes) != f[i].hash;
    if (wrong && !error) {
        trace_copy(f, n, got, false);
        trace_copy(f, n, before, true);
        kn_queue_add(t->host[r->queue], &op);
        kn_queue_wait(t->host[r->queue]);
        if (t->result.n_wrong++ < t->opt->most_lines)
            trace_report(t, &op, f, n, got);
    }
    for (size_t i = 0; i < n; i++)
        if (f[i].access == KN_SCRATCH)
            memset(trace_at(&f[i]), 0, f[i].bytes);
    free(before);
    free(got);
    t->result.n_op++;
    return error;
}

static const char *trace_read(struct trace_replay *t, const char *path)
{
    struct trace_head head;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return "the file cannot be opened";
    t->bytes = fstat(fd, &st) ? 0 : (size_t)st.st_size;
    t->file = mmap(NULL, t->bytes ? t->bytes : 1, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (t->file == MAP_FAILED || t->bytes < sizeof head)
        return "the file cannot be read";
    memcpy(&head, t->file, sizeof head);
    if (memcmp(head.magic, TRACE_MAGIC, sizeof TRACE_MAGIC) || head.op_bytes != sizeof(struct kn_op) ||
        head.n_kind != KN_OP_COUNT)
        return "the file is not of this build's operations";
    return NULL;
}

static inline struct trace_result trace_replay(const char *path, const struct trace_options *opt)
{
    struct trace_replay t = { .opt = opt };
    size_t at = sizeof(struct trace_head);
    t.result.error = trace_read(&t, path);
    if (!t.result.error)
        t.result.error = trace_map(&t);
    if (!t.result.error && kn_team_open(&t.team, 1))
        t.result.error = "no thread";
    for (const struct trace_record *r; !t.result.error && (r = trace_next(&t, &at));) {
        if (r->kind == TRACE_QUEUE)
            t.result.error = trace_queue(&t, r);
        else if (r->kind == TRACE_BYTES)
            memcpy((void *)(uintptr_t)r->at, r + 1, r->bytes);
        else
            t.result.error = trace_run(&t, r);
    }
    for (int i = 0; i < TRACE_QUEUES; i++) {
        kn_queue_close(t.device[i]);
        kn_queue_close(t.host[i]);
    }
    kn_team_close(t.team);
    free(t.range);
    return t.result; /* the mapped memory and the file stay: the process ends soon */
}

#endif
