/* engine/plan/disk_rate.c - the read rate of a disk, by reads that share no code with those of offload/.
 *
 * In: a file. Out: bytes per second at a given number of reads in flight (depth). Each of `depth` threads has one pread
 * in flight, so the result does not depend on io_uring and can be compared with the rate that the engine reaches.
 *
 * The buffer is larger than the processor's caches, as the memory of experts is. With a buffer of a few MiB, used again
 * and again, a disk whose bytes a processor copies (a virtual disk) seems faster than it can be for experts: 3.1
 * against 2.2 GB/s on one machine, where the rate fell from one to the other just below a buffer of 64 MiB. With a
 * small memory budget the buffer is smaller, as the memory of experts is then too. */
#include "engine/plan/disk_rate.h"
#include "engine/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PIECE                ((size_t)1 << 20)
#define OS_PAGE              4096
#define READ_NS              330000000
#define WRITE_NS             1000000000
#define MAX_DEPTH            64
#define USUAL_DEPTH          16
#define BUDGET_TO_ROOM_RATIO 4 /* the buffer of a measurement is at most the memory budget over this */

struct disk {
    int fd;
    size_t piece;
    int64_t n_piece, n_place;
    uint8_t *place; /* [depth][n_place][piece] each thread reads to its own n_place pieces in turn */
    uint64_t end_ns;
    atomic_int_fast64_t next, done; /* next piece to read, pieces read */
    atomic_int n_reader;            /* threads that have started */
    atomic_int error;               /* errno */
};

static void *read_disk(void *arg)
{
    struct disk *d = arg;
    uint8_t *own = d->place + (size_t)(atomic_fetch_add(&d->n_reader, 1) * d->n_place) * d->piece;
    for (int64_t turn = 0; kn_now_ns() < d->end_ns && !atomic_load(&d->error); turn++) {
        int64_t i = atomic_fetch_add(&d->next, 1);
        ssize_t n = kn_io()->pread(d->fd, own + (size_t)(turn % d->n_place) * d->piece, d->piece,
                                   i % d->n_piece * (int64_t)d->piece);
        if (n == (ssize_t)d->piece)
            atomic_fetch_add(&d->done, 1);
        else if (n >= 0 || errno != EINTR)
            atomic_store(&d->error, n < 0 ? errno : EIO);
    }
    return NULL;
}

static int run_readers(struct disk *d, int depth)
{
    pthread_t thread[MAX_DEPTH];
    int n = 0;
    while (n < depth && pthread_create(&thread[n], NULL, read_disk, d) == 0)
        n++;
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    return n == depth ? 0 : kn_fail(KN_ENOMEM, "cannot start %d reading threads", depth);
}

size_t eng_disk_room(size_t host_mem)
{
    return host_mem && host_mem / BUDGET_TO_ROOM_RATIO < ENG_DISK_BYTES ? host_mem / BUDGET_TO_ROOM_RATIO
                                                                        : ENG_DISK_BYTES;
}

int eng_disk_rate(const char *path, int fd, int depth, size_t room, double *bytes_per_s)
{
    kn_assert(depth > 0 && depth <= MAX_DEPTH);
    int64_t bytes = kn_io()->size(fd);
    if (bytes < (int64_t)ENG_DISK_LEAST)
        return KN_ESHORT;
    size_t each = room / (size_t)depth / OS_PAGE * OS_PAGE;
    struct disk d = { .fd = fd, .piece = each < PIECE ? each : PIECE };
    if (d.piece)
        d.place = kn_map(room, -1);
    if (!d.place)
        return kn_fail(KN_ENOMEM, "no memory to read %s into", path);
    d.n_piece = bytes / (int64_t)d.piece;
    d.n_place = (int64_t)(room / d.piece) / depth;
    for (size_t i = 0; i < room; i += OS_PAGE)
        d.place[i] = 1; /* page faults now, not in the measured time */

    uint64_t start = kn_now_ns();
    d.end_ns = start + READ_NS;
    d.next = (int64_t)(kn_mix(start) % (uint64_t)d.n_piece); /* random: an earlier measurement may be in a cache */
    int e = run_readers(&d, depth);
    double seconds = (double)(kn_now_ns() - start) * 1e-9;
    kn_unmap(d.place, room);
    if (e == 0 && atomic_load(&d.error) == EINVAL)
        return KN_EUNSUPPORTED;
    if (e == 0 && atomic_load(&d.error))
        return kn_fail(KN_EIO, "%s: cannot be read: %s", path, strerror(atomic_load(&d.error)));
    if (e == 0)
        *bytes_per_s = (double)atomic_load(&d.done) * (double)d.piece / seconds;
    return e;
}

static int measure_one(const char *path, size_t room, double *bytes_per_s, int64_t *bytes)
{
    int fd = kn_io()->open(path, O_RDONLY | O_DIRECT | O_CLOEXEC, 0);
    if (fd < 0 && errno != EINVAL)
        return kn_fail(KN_EIO, "%s: %s", path, strerror(errno));
    int e = fd < 0 ? KN_EUNSUPPORTED : eng_disk_rate(path, fd, USUAL_DEPTH, room, bytes_per_s);
    *bytes = fd < 0 ? 0 : kn_io()->size(fd);
    kn_file_close(fd);
    return e == KN_ESHORT ? KN_EUNSUPPORTED : e;
}

bool eng_disk_copy(char *out, const char *folder, const char *path)
{
    char pack[ENG_PATH_BYTES] = "";
    const char *of[] = { path, pack };
    (void)eng_pack_path(pack, path);
    for (int i = 0; i < 2; i++) {
        const char *slash = strrchr(of[i], '/');
        int n = snprintf(out, ENG_PATH_BYTES, "%s/%s", folder, slash ? slash + 1 : of[i]);
        if (of[i][0] && n < ENG_PATH_BYTES && access(out, R_OK) == 0)
            return true;
    }
    return false;
}

/* With a copy: experts are read from both at once, in shares that finish together, so the rates add up. But a copy that
 * is incomplete serves at most the share of the bytes that it has. */
int eng_disk_measure(const char *path, const char *mirror, size_t room, double *bytes_per_s)
{
    char copy[ENG_PATH_BYTES];
    double rate;
    int64_t whole, part;
    int e = measure_one(path, room, bytes_per_s, &whole);
    if (e || !mirror || !eng_disk_copy(copy, mirror, path) || measure_one(copy, room, &rate, &part))
        return e;
    double share = rate / (rate + *bytes_per_s), there = (double)part / (double)whole;
    *bytes_per_s /= 1 - (share < there ? share : there);
    return 0;
}

int eng_disk_measure_model(const struct off_files *files, const char *mirror, size_t room, double *bytes_per_s)
{
    int largest = 0;
    for (int i = 1; i < files->n_file; i++)
        if (kn_io()->size(files->fd[i]) > kn_io()->size(files->fd[largest]))
            largest = i;
    return eng_disk_measure(files->path[largest], mirror, room, bytes_per_s);
}

int eng_disk_measure_once(const struct off_files *files, const char *mirror, size_t room, double *bytes_per_s)
{
    if (*bytes_per_s > 0 || room < ENG_DISK_LEAST)
        return 0;
    int error = eng_disk_measure_model(files, mirror, room < ENG_DISK_BYTES ? room : ENG_DISK_BYTES, bytes_per_s);
    return error == KN_ENOMEM ? error : 0;
}

/* Fills p[n] with bytes that no disk can compress or deduplicate. */
static void fill_noise(uint64_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = kn_mix(seed + KN_GOLDEN * i);
}

int eng_disk_trial(const char *folder, size_t bytes, int *fd)
{
    *fd = kn_io()->open(folder, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (*fd < 0)
        return KN_EUNSUPPORTED;
    uint64_t *noise = kn_map(PIECE, -1);
    uint64_t start = kn_now_ns();
    size_t done = 0;
    int e = noise ? 0 : kn_fail(KN_ENOMEM, "no memory to write a trial file from");
    while (e == 0 && done < bytes && kn_now_ns() - start < WRITE_NS) {
        fill_noise(noise, PIECE / sizeof *noise, start + done);
        e = kn_file_write(*fd, folder, noise, PIECE, done);
        done += PIECE;
    }
    if (noise)
        kn_unmap(noise, PIECE);
    if (e == 0 && kn_io()->sync(*fd) < 0)
        e = kn_fail(KN_EIO, "%s: cannot write a trial file: %s", folder, strerror(errno));
    if (e < 0) {
        kn_file_close(*fd);
        *fd = -1;
    }
    return e;
}
