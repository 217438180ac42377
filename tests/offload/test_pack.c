/* Pack files: they hold every expert in the layout of a slot; the bytes do not depend on the writer or on
 * interruptions; a store gives the same experts with a pack file as without, however it is damaged; and
 * a pack file of another model or an incomplete one is refused with the reason.
 *
 * Its threads are those of test_store.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <signal.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "offload/internal.h"
#include "tests/offload/experts.h"

#define ID 0x1234567890abcdefu

static char pack_path[80], part_path[96];
static struct off_packed packed;

static struct model *open_packed(int n_layer, int per_layer, int d)
{
    struct model *m = open_model(n_layer, per_layer, d);
    snprintf(pack_path, sizeof pack_path, "%s.pack", m->path);
    snprintf(part_path, sizeof part_path, "%s.part", pack_path);
    unlink(pack_path);
    unlink(part_path);
    m->id = ID;
    m->pack = pack_path;
    return m;
}

static void close_packed(struct model *m)
{
    unlink(pack_path);
    unlink(part_path);
    close_model(m);
}

static struct off_pack_options options(const struct model *m)
{
    return (struct off_pack_options){ .files = { .n_file = 1, .fd = &m->fd, .path = &m->name },
                                      .expert = m->expert,
                                      .n_expert = m->n_expert,
                                      .model_id = m->id,
                                      .io = OFF_IO_PREAD,
                                      .ops = kn_ops(KN_ISA_COUNT - 1),
                                      .team = m->team };
}

static int pack(const struct model *m, size_t group_bytes)
{
    struct off_pack_options o = options(m);
    o.group_bytes = group_bytes;
    return off_pack(pack_path, &o, &packed);
}

static bool is_there(const char *path) { return access(path, F_OK) == 0; }

static uint8_t *read_file(const char *path, size_t *n)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    uint8_t *data = malloc((size_t)st.st_size + 1);
    assert_int_equal(read(fd, data, (size_t)st.st_size), st.st_size);
    close(fd);
    *n = (size_t)st.st_size;
    return data;
}

static void write_file(const char *path, const void *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0 && write(fd, data, n) == (ssize_t)n && close(fd) == 0);
}

static bool is_file(const char *path, const uint8_t *want, size_t n)
{
    size_t is_n;
    uint8_t *is = read_file(path, &is_n);
    bool same = is_n == n && !memcmp(is, want, n);
    free(is);
    return same;
}

static struct off_stats stats_of(struct off_store *s)
{
    struct off_stats stats;
    off_stats_get(s, &stats);
    return stats;
}

/* Fetches every expert of every layer, `rounds` times, from a store of `bytes` bytes. Returns the number of experts
 * that are still read from the pack file at the end. */
static int ask_for_all(const struct model *m, size_t bytes, int rounds)
{
    struct off_store *s;
    assert_int_equal(open_store(&s, m, bytes), 0);
    struct asker *a = open_asker(s, m);
    for (int round = 0; round < rounds * (m->n_expert / m->per_layer); round++) {
        choose_some(a, round % (m->n_expert / m->per_layer), 1);
        ask(a, 0);
    }
    assert_int_equal(a->n_wrong + a->n_failed, 0);
    int n = (int)stats_of(s).n_packed;
    close_asker(a);
    off_store_close(s);
    return n;
}

/* ---- checksums ------------------------------------------------------------------------------------ */

static void every_bit_and_every_length_counts(void **state)
{
    (void)state;
    uint8_t data[200] = { 0 };
    uint64_t seen[201];
    for (size_t n = 0; n <= sizeof data; n++) { /* zeros of different lengths give different sums */
        seen[n] = off_check(data, n);
        for (size_t i = 0; i < n; i++)
            assert_true(seen[i] != seen[n]);
    }
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)kn_mix(i);
    for (size_t n = 0; n <= sizeof data; n++) {
        uint64_t was = off_check(data, n);
        for (size_t bit = 0; bit < 8 * n; bit++) {
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_true(off_check(data, n) != was);
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
    for (size_t i = 0; i + 64 < sizeof data; i++) { /* flips the highest bit of two words in one lane */
        uint64_t was = off_check(data, sizeof data);
        data[i] ^= 0x80;
        data[i + 64] ^= 0x80;
        assert_true(off_check(data, sizeof data) != was);
    }
    uint8_t shifted[201];
    memcpy(shifted + 1, data, sizeof data); /* the sum does not depend on alignment */
    for (size_t i = 0; i + 64 < sizeof data; i++) {
        data[i] ^= 0x80;
        data[i + 64] ^= 0x80;
    }
    memcpy(shifted + 1, data, sizeof data);
    assert_true(off_check(shifted + 1, sizeof data) == off_check(data, sizeof data));
}

/* Checksums of fixed data: existing pack files contain them. */
static void the_checksum_stays_what_it_is(void **state)
{
    (void)state;
    uint8_t data[1000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * i + 3);
    assert_int_equal(OFF_PACK_VERSION, 2);
    assert_true(off_check(data, sizeof data) == UINT64_C(0xe9d8247325c6ce4f));
}

/* ---- contents ------------------------------------------------------------------------------------------- */

static void it_holds_experts_as_slots_do(void **state)
{
    (void)state;
    struct model *m = open_packed(6, 5, 27);
    assert_int_equal(pack(m, 0), 0);
    assert_true(packed.n_expert == m->n_expert && packed.n_before == 0 && !is_there(part_path));
    size_t n;
    uint8_t *file = read_file(pack_path, &n);
    assert_int_equal(packed.file_bytes, n);
    const struct off_pack_entry *table = (const void *)(file + sizeof(struct off_pack_head));
    uint64_t at = kn_align_up(48 + 72 * (size_t)m->n_expert, 4096);
    for (int e = 0; e < m->n_expert; e++) {
        assert_int_equal(table[e].offset, at);
        for (int i = 0; i < OFF_MATRICES; i++) {
            const struct off_source *s = &m->expert[e].matrix[i];
            size_t bytes = s->n_out ? kn_mat_bytes(s->format, s->n_out, s->n_in) : 0;
            void *want = calloc(1, bytes + 4096);
            if (s->n_out)
                kn_ops(KN_ISA_SCALAR)
                    ->repack(s->format, m->data + s->offset, s->n_out, s->n_in, want, 0,
                             kn_ceil_div(s->n_out, KN_PANEL));
            assert_memory_equal(file + at, want, kn_align_up(bytes, 4096)); /* zeros to the page's end */
            at += kn_align_up(bytes, 4096);
            free(want);
        }
        assert_int_equal(table[e].offset + table[e].bytes, at);
    }
    assert_int_equal(at, n);
    free(file);
    close_packed(m);
}

/* The bytes do not depend on thread count, groups or the kind of reader. */
static void it_is_the_same_whoever_writes_it(void **state)
{
    (void)state;
    struct model *m = open_packed(4, 6, 33);
    struct off_pack_options o = options(m);
    assert_int_equal(pack(m, 0), 0);
    size_t n;
    uint8_t *file = read_file(pack_path, &n);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(kn_team_open(&o.team, 1 + i), 0);
        o.group_bytes = (size_t)1 << (10 + 2 * i);
        o.io = i % 2 ? OFF_IO_AUTO : OFF_IO_PREAD;
        o.ops = kn_ops((enum kn_isa)(i % KN_ISA_COUNT));
        assert_int_equal(off_pack(pack_path, &o, &packed), 0);
        assert_true(is_file(pack_path, file, n));
        kn_team_close(o.team);
    }
    free(file);
    close_packed(m);
}

/* ---- a store with a pack file ------------------------------------------------------------------------- */

/* The model's own file is overwritten with random bytes, so right bytes can only come from the pack file. */
static void a_store_reads_from_it_whatever_the_room(void **state)
{
    (void)state;
    struct model *m = open_packed(6, 7, 30);
    assert_int_equal(pack(m, 0), 0);
    uint8_t *nonsense = calloc(1, m->n);
    write_file(m->path, nonsense, m->n);
    for (int room = 0; room <= 4; room++)
        assert_int_equal(ask_for_all(m, least(m) + (all(m) - least(m)) * (size_t)room / 4, 5), m->n_expert);
    free(nonsense);
    close_packed(m);
}

static void threads_ask_at_once(void **state)
{
    (void)state;
    struct model *m = open_packed(3, 8, 10);
    assert_int_equal(pack(m, 0), 0);
    size_t n;
    uint8_t *file = read_file(pack_path, &n);
    for (int damaged = 0; damaged < 2; damaged++) {
        for (int room = 0; room < 3; room++)
            ask_from_threads(m, least(m) + (all(m) - least(m)) * (size_t)room / 2);
        for (size_t at = (size_t)n / 3; at < n; at += 3 * 4096)
            file[at] ^= 1;
        write_file(pack_path, file, n);
        kn_log_set(faults_line, KN_LOG_INFO);
    }
    kn_log_set(NULL, KN_LOG_INFO);
    free(file);
    close_packed(m);
}

/* Damaged in place after all experts were read and verified: they are verified at the next read, too. */
static void an_expert_is_verified_at_each_read(void **state)
{
    (void)state;
    struct model *m = open_packed(3, 4, 21);
    struct off_store *s;
    assert_int_equal(pack(m, 0), 0);
    size_t n;
    uint8_t *file = read_file(pack_path, &n);
    const struct off_pack_entry *table = (const void *)(file + sizeof(struct off_pack_head));
    faults_reset();
    assert_int_equal(open_store(&s, m, least(m)), 0);
    struct asker *a = open_asker(s, m);
    for (int round = 0; round < 9; round++) {
        choose_some(a, round % 3, 1);
        ask(a, 0);
    }
    assert_int_equal(stats_of(s).n_packed, m->n_expert);
    assert_int_equal(stats_of(s).damaged_reads, 0);
    for (int e = 0; e < m->n_expert; e++)
        file[table[e].offset] ^= 1;
    int fd = open(pack_path, O_WRONLY);
    assert_true(pwrite(fd, file, n, 0) == (ssize_t)n && close(fd) == 0);
    for (int round = 0; round < 9; round++) {
        choose_some(a, round % 3, 1);
        ask(a, 0);
    }
    assert_int_equal(a->n_wrong + a->n_failed, 0);
    assert_int_equal(stats_of(s).n_packed, 0);
    assert_int_equal(stats_of(s).damaged_reads, 2 * m->n_expert); /* each was read once more */
    assert_int_equal(faults.n_line, 1);
    close_asker(a);
    off_store_close(s);
    assert_true(faults_clean());
    faults_off();
    free(file);
    close_packed(m);
}

/* One damaged byte of any matrix: that expert is read from the model's file, the others are not; one message. */
static void what_is_damaged_comes_from_the_model(void **state)
{
    (void)state;
    struct model *m = open_packed(3, 4, 21);
    assert_int_equal(pack(m, 0), 0);
    size_t n;
    uint8_t *file = read_file(pack_path, &n);
    const struct off_pack_entry *table = (const void *)(file + sizeof(struct off_pack_head));
    for (int e = 0; e < m->n_expert; e++)
        for (int i = 0; i < OFF_MATRICES; i++) {
            const struct off_source *s = &m->expert[e].matrix[i];
            size_t at = table[e].offset, bytes = s->n_out ? kn_mat_bytes(s->format, s->n_out, s->n_in) : 1;
            for (int k = 0; k < i; k++)
                at += off_panel_bytes(&m->expert[e].matrix[k]);
            at += (size_t)random_below((int)bytes);
            file[at] ^= (uint8_t)(s->n_out > 0);
            write_file(pack_path, file, n);
            faults_reset();
            assert_int_equal(ask_for_all(m, least(m), 3), m->n_expert - (s->n_out > 0));
            assert_int_equal(faults.n_line, s->n_out > 0);
            assert_true(!s->n_out || (strstr(faults.line, pack_path) && strstr(faults.line, "spillway pack")));
            assert_true(faults_clean());
            file[at] ^= (uint8_t)(s->n_out > 0);
        }
    for (size_t at = table[0].offset; at < n; at += 4096) /* all experts damaged: still one message */
        file[at] ^= 0x10;
    write_file(pack_path, file, n);
    faults_reset();
    assert_int_equal(ask_for_all(m, least(m), 3), 0);
    assert_int_equal(faults.n_line, 1);
    faults_off();
    free(file);
    close_packed(m);
}

/* The file is truncated while the store uses it: the missing part is read from the model's file. */
static void what_cannot_be_read_comes_from_the_model(void **state)
{
    (void)state;
    struct model *m = open_packed(3, 4, 21);
    struct off_store *s;
    assert_int_equal(pack(m, 0), 0);
    faults_reset();
    assert_int_equal(open_store(&s, m, least(m)), 0);
    assert_int_equal(truncate(pack_path, 4096), 0);
    struct asker *a = open_asker(s, m);
    for (int round = 0; round < 9; round++) {
        choose_some(a, round % 3, 1);
        ask(a, 0);
    }
    assert_int_equal(a->n_wrong + a->n_failed, 0);
    assert_true(stats_of(s).n_packed < (uint64_t)m->n_expert && faults.n_line > 0);
    close_asker(a);
    off_store_close(s);
    assert_true(faults_clean());
    faults_off();
    close_packed(m);
}

static void whatever_fails_in_a_store_nothing_is_left(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error;
    } ways[] = {
        { FAULT_ALLOC, FAULT_ERROR, ENOMEM }, { FAULT_MAP, FAULT_ERROR, ENOMEM }, { FAULT_OPEN, FAULT_ERROR, EMFILE },
        { FAULT_SIZE, FAULT_ERROR, EIO },     { FAULT_READ, FAULT_ERROR, EIO },   { FAULT_READ, FAULT_SHORT, 0 },
        { FAULT_READ, FAULT_EMPTY, 0 },
    };
    struct model *m = open_packed(2, 3, 20);
    struct asker *a = open_asker(NULL, m);
    assert_int_equal(pack(m, 0), 0);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        bool struck = true;
        for (long n = 1; struck; n++) {
            struct off_store *s = NULL;
            faults_at(ways[i].kind, n, ways[i].way, ways[i].error);
            int got = open_store(&s, m, least(m));
            a->s = s;
            a->n_failed = 0;
            for (int layer = 0; !got && layer < 2; layer++) {
                choose_some(a, layer, 1);
                ask(a, 0);
            }
            assert_int_equal(a->n_wrong, 0);
            assert_true(!a->n_failed || faults.n_line);
            struck = faults.struck;
            off_store_close(s);
            if ((got && (!struck || faults.n_line != 1)) || !faults_clean())
                fail_msg("way %zu, call %ld: %d, %d lines (%s), %s", i, n, got, faults.n_line, faults.line,
                         faults_clean() ? "clean" : "something is left");
        }
    }
    faults_off();
    close_asker(a);
    close_packed(m);
}

/* ---- files that are not used ----------------------------------------------------------------------- */

/* Opens the file as this model's: refused with one message that contains `why`, or (NULL) used without a message. */
static void check_refused(const struct model *m, const char *why)
{
    static struct off_extent extent[MAX_EXPERT];
    int fd = -2;
    faults_reset();
    assert_int_equal(off_pack_open(&fd, pack_path, m->id, m->expert, m->n_expert, extent), 0);
    if (!why) {
        assert_true(fd >= 0 && faults.n_line == 0);
        kn_file_close(fd);
    } else if (fd != -1 || faults.n_line != 1 || !strstr(faults.line, why) || !strstr(faults.line, pack_path) ||
               !strstr(faults.line, "spillway pack"))
        fail_msg("'%s' is wanted: fd %d, %d lines: %s", why, fd, faults.n_line, faults.line);
    assert_true(faults_clean());
    faults_off();
}

/* Writes the file with a changed head and a valid checksum. */
static void write_head(const uint8_t *file, size_t n, const struct off_pack_head *head)
{
    struct off_pack_head sealed = *head;
    uint8_t *changed = memcpy(malloc(n), file, n);
    sealed.check = off_check(&sealed, offsetof(struct off_pack_head, check));
    memcpy(changed, &sealed, sizeof sealed);
    write_file(pack_path, changed, n);
    free(changed);
}

static void what_is_not_this_model_s_is_not_used(void **state)
{
    (void)state;
    struct model *m = open_packed(2, 3, 20);
    struct off_pack_head head, h;
    int fd = -2;
    faults_reset();
    assert_int_equal(off_pack_open(&fd, pack_path, m->id, m->expert, m->n_expert, NULL), 0);
    assert_true(fd == -1 && faults.n_line == 0); /* no file: no message */
    assert_int_equal(pack(m, 0), 0);
    check_refused(m, NULL);
    size_t n;
    uint8_t *file = read_file(pack_path, &n);
    memcpy(&head, file, sizeof head);

    m->id++;
    check_refused(m, "another model");
    m->id--;
    m->n_expert--;
    check_refused(m, "another model");
    m->n_expert++;
    m->expert[4].matrix[1].n_in += 256; /* with the right id the shape is still checked */
    check_refused(m, "another model");
    m->expert[4].matrix[1].n_in -= 256;
    m->expert[4].matrix[1].n_out--; /* the same panels */
    check_refused(m, "table");
    m->expert[4].matrix[1].n_out++;

    h = head;
    h.version = OFF_PACK_VERSION + 1;
    write_head(file, n, &h);
    check_refused(m, "another version");
    h.version = 0;
    write_head(file, n, &h);
    check_refused(m, "another version");
    h = head;
    h.page_bytes = 512;
    write_head(file, n, &h);
    check_refused(m, "another model");
    h = head;
    h.file_bytes += 4096;
    write_head(file, n, &h);
    check_refused(m, "another model");

    for (size_t cut = 0; cut < n; cut = cut * 3 + 1) {
        write_file(pack_path, file, n - cut);
        check_refused(m, cut ? "cut short" : NULL);
        write_file(pack_path, file, cut);
        check_refused(m, "cut short");
    }
    assert_int_equal(truncate(pack_path, (off_t)n + 1), 0);
    check_refused(m, "cut short");
    write_file(pack_path, m->data, m->n);
    check_refused(m, "no pack file");
    unlink(pack_path);
    assert_int_equal(mkdir(pack_path, 0700), 0);
    check_refused(m, "cannot be read");
    rmdir(pack_path);
    free(file);
    close_packed(m);
}

static void no_byte_of_head_or_table_can_be_another(void **state)
{
    (void)state;
    struct model *m = open_packed(2, 3, 20);
    assert_int_equal(pack(m, 0), 0);
    size_t n, end = sizeof(struct off_pack_head) + (size_t)m->n_expert * sizeof(struct off_pack_entry);
    uint8_t *file = read_file(pack_path, &n);
    for (size_t i = 0; i < end; i++) {
        uint8_t was = file[i];
        file[i] ^= (uint8_t)(1 + i % 255);
        write_file(pack_path, file, n);
        check_refused(m, i < 8 ? "no pack file" : i < 12 ? "version" : i < 48 ? "head is damaged" : "table");
        file[i] = was;
    }
    uint8_t entry[72]; /* complete extents, at wrong offsets */
    memcpy(entry, file + 48, 72);
    memmove(file + 48, file + 48 + 72, 72);
    memcpy(file + 48 + 72, entry, 72);
    write_file(pack_path, file, n);
    check_refused(m, "table");
    free(file);

    assert_int_equal(pack(m, 0), 0); /* another model's pack file, of the same shape */
    file = read_file(pack_path, &n);
    memcpy(entry, file + 48, 72);
    free(file);
    m->id++;
    assert_int_equal(pack(m, 0), 0);
    file = read_file(pack_path, &n);
    memcpy(file + 48, entry, 72);
    write_file(pack_path, file, n);
    check_refused(m, "table");
    free(file);
    close_packed(m);
}

/* ---- resuming ------------------------------------------------------------------------------------------- */

struct shared {
    long n, at;
    int sealed;
}; /* writes: count, number to die at; experts sealed by then */
static struct shared *shared;
static uint64_t first_extent;

/* The n-th write is cut in half, and then the process dies. */
static ssize_t write_and_die(int fd, const void *data, size_t bytes, int64_t at)
{
    if (++shared->n == shared->at) {
        ssize_t half = kn_io_system.pwrite(fd, data, bytes / 2, at);
        raise(SIGKILL);
        return half;
    }
    if (at > 0 && (uint64_t)at < first_extent)
        shared->sealed += (int)(bytes / sizeof(struct off_pack_entry));
    return kn_io_system.pwrite(fd, data, bytes, at);
}

static bool pack_and_die(const struct model *m, long at)
{
    *shared = (struct shared){ .at = at };
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        static struct kn_io io;
        struct off_pack_options o = options(m);
        io = kn_io_system;
        io.pwrite = write_and_die;
        kn_io_set(&io);
        _exit(kn_team_open(&o.team, 2) || off_pack(pack_path, &o, &packed) ? 1 : 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static void killed_at_any_write_it_goes_on(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    printf("skipped: a pack that is killed dies in a child, which ThreadSanitizer has no threads for\n");
    skip();
#endif
    struct model *m = open_packed(2, 4, 20);
    size_t n, group = off_slot_bytes(&m->expert[0]) * 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(pack(m, group), 0);
    uint8_t *file = read_file(pack_path, &n);
    first_extent = ((const struct off_pack_entry *)(const void *)(file + 48))->offset;
    int most = 0;
    for (long at = 1;; at++) {
        unlink(pack_path);
        if (!pack_and_die(m, at))
            break;
        assert_true(is_there(part_path) && !is_there(pack_path));
        assert_int_equal(pack(m, group), 0);
        if (packed.n_before < shared->sealed)
            fail_msg("write %ld: %d experts were on the disk, %d were kept", at, shared->sealed, packed.n_before);
        assert_true(is_file(pack_path, file, n) && !is_there(part_path));
        most = kn_max(most, packed.n_before);
    }
    assert_true(most > 0 && most < m->n_expert);
    munmap(shared, sizeof *shared);
    free(file);
    close_packed(m);
}

static int n_early; /* entries written before their extents were synced */
static bool unsynced;

static ssize_t write_in_order(int fd, const void *data, size_t bytes, int64_t at)
{
    if ((uint64_t)at >= first_extent)
        unsynced = true;
    else if (at > 0)
        n_early += unsynced;
    return kn_io_system.pwrite(fd, data, bytes, at);
}

static int sync_in_order(int fd)
{
    unsynced = false;
    return kn_io_system.sync(fd);
}

static void what_counts_as_done_is_on_the_disk(void **state)
{
    (void)state;
    static struct kn_io io;
    struct model *m = open_packed(2, 4, 20);
    io = kn_io_system;
    io.pwrite = write_in_order;
    io.sync = sync_in_order;
    kn_io_set(&io);
    first_extent = kn_align_up(48 + 72 * (size_t)m->n_expert, 4096);
    assert_int_equal(pack(m, off_slot_bytes(&m->expert[0])), 0);
    assert_true(n_early == 0 && !unsynced);
    kn_io_set(NULL);
    close_packed(m);
}

static void whatever_fails_it_goes_on(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    printf("skipped: packing through all faults says nothing new of threads and takes minutes here\n");
    skip();
#endif
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error;
    } ways[] = {
        { FAULT_ALLOC, FAULT_ERROR, ENOMEM }, { FAULT_MAP, FAULT_ERROR, ENOMEM },
        { FAULT_OPEN, FAULT_ERROR, EMFILE },  { FAULT_READ, FAULT_ERROR, EIO },
        { FAULT_READ, FAULT_LASTS, EIO },     { FAULT_READ, FAULT_EMPTY, 0 },
        { FAULT_READ, FAULT_SHORT, 0 },       { FAULT_WRITE, FAULT_ERROR, ENOSPC },
        { FAULT_WRITE, FAULT_LASTS, EIO },    { FAULT_SYNC, FAULT_ERROR, EIO },
        { FAULT_RENAME, FAULT_ERROR, EIO },   { FAULT_SIZE, FAULT_ERROR, EIO },
        { FAULT_STAT, FAULT_ERROR, EIO },     { FAULT_RESIZE, FAULT_ERROR, ENOSPC },
        { FAULT_FORGET, FAULT_ERROR, EIO },
    };
    struct model *m = open_packed(2, 3, 20);
    size_t n, group = off_slot_bytes(&m->expert[0]);
    assert_int_equal(pack(m, group), 0);
    uint8_t *file = read_file(pack_path, &n);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        bool struck = true;
        int n_failed = 0, most = 0;
        for (long call = 1; struck; call++) {
            unlink(pack_path);
            unlink(part_path);
            faults_at(ways[i].kind, call, ways[i].way, ways[i].error);
            int got = pack(m, group);
            struck = faults.struck;
            if ((got && (!struck || faults.n_line != 1)) || !faults_clean() || !got != is_there(pack_path))
                fail_msg("way %zu, call %ld: %d, %d lines (%s), %s", i, call, got, faults.n_line, faults.line,
                         faults_clean() ? "clean" : "something is left");
            n_failed += got != 0;
            faults_off();
            bool kept = is_there(part_path);
            assert_int_equal(pack(m, group), 0);
            assert_true(got || packed.n_before == 0);
            assert_int_equal(kept, packed.n_before > 0); /* a part file without any expert is deleted */
            assert_true(is_file(pack_path, file, n) && !is_there(part_path));
            most = kn_max(most, packed.n_before);
        }
        if (ways[i].kind == FAULT_WRITE || ways[i].kind == FAULT_SYNC)
            assert_true(n_failed > m->n_expert && most >= m->n_expert - 1);
        static const bool may_do_without[FAULT_KINDS] = {
            [FAULT_OPEN] = true, [FAULT_READ] = true,   [FAULT_SIZE] = true,
            [FAULT_STAT] = true, [FAULT_FORGET] = true, [FAULT_RESIZE] = true,
        };
        assert_true(n_failed > 0 || may_do_without[ways[i].kind]);
    }
    free(file);
    close_packed(m);
}

static void stopped_it_goes_on(void **state)
{
    (void)state;
    struct model *m = open_packed(2, 3, 20);
    struct off_pack_options o = options(m);
    struct off_progress progress = { 0 };
    atomic_bool stop = true;
    size_t n;
    assert_int_equal(pack(m, 0), 0);
    uint8_t *file = read_file(pack_path, &n);
    unlink(pack_path);

    o.stop = &stop;
    faults_reset();
    assert_int_equal(off_pack(pack_path, &o, &packed), KN_ECANCELLED);
    assert_true(faults.n_line == 1 && strstr(faults.line, "nothing was written"));
    assert_false(is_there(part_path));

    write_file(part_path, file, n); /* as if interrupted after n bytes */
    assert_int_equal(truncate(part_path, (off_t)n - 4096), 0);
    int fd = open(part_path, O_WRONLY);
    assert_int_equal(pwrite(fd, "?", 1, 48 + 2 * 72 + 5), 1);
    close(fd);
    faults_reset();
    assert_int_equal(off_pack(pack_path, &o, &packed), KN_ECANCELLED);
    assert_true(faults.n_line == 1 && strstr(faults.line, "has 2 of 6 experts"));
    assert_true(is_there(part_path) && faults_clean());
    stop = false;
    o.progress = &progress;
    assert_int_equal(off_pack(pack_path, &o, &packed), 0);
    assert_int_equal(packed.n_before, 2);
    size_t rest = 0;
    for (int e = 2; e < m->n_expert; e++)
        rest += off_expert_bytes(&m->expert[e]);
    assert_true(progress.done_bytes == rest && progress.total_bytes == rest);
    assert_true(is_file(pack_path, file, n));
    faults_off();
    free(file);
    close_packed(m);
}

static void a_part_of_another_model_is_none(void **state)
{
    (void)state;
    struct model *m = open_packed(2, 3, 20);
    size_t n;
    assert_int_equal(pack(m, 0), 0);
    uint8_t *file = read_file(pack_path, &n), *longer = calloc(1, n + 9999);
    memcpy(longer, file, n);
    write_file(part_path, longer, n + 9999);
    m->id++;
    assert_int_equal(pack(m, 0), 0);
    assert_int_equal(packed.n_before, 0);
    check_refused(m, NULL); /* extended to its full length */
    m->id--;
    file[13] ^= 1; /* the right file except for its head */
    write_file(part_path, file, n);
    assert_int_equal(pack(m, 0), 0);
    check_refused(m, NULL);
    m->id++;
    check_refused(m, "another model");
    m->id--;

    int fd = open(part_path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0); /* another process is writing */
    faults_reset();
    assert_int_equal(pack(m, 0), KN_EINVAL);
    assert_true(faults.n_line == 1 && strstr(faults.line, "another spillway pack"));
    assert_true(is_there(part_path) && faults_clean());
    faults_off();
    close(fd);
    free(longer);
    free(file);
    close_packed(m);
}

static int64_t room;
static int64_t tell_room(int fd)
{
    (void)fd;
    return room;
}

static void without_room_it_does_not_begin(void **state)
{
    (void)state;
    static struct kn_io io;
    struct model *m = open_packed(2, 3, 20);
    assert_int_equal(pack(m, 0), 0);
    size_t n, whole = packed.file_bytes;
    uint8_t *file = read_file(pack_path, &n);
    const struct off_pack_entry *table = (const void *)(file + 48);
    unlink(pack_path);
    faults_reset();
    io = *kn_io();
    io.room = tell_room;
    kn_io_set(&io);
    room = (int64_t)(whole - table[0].offset) - 1;
    assert_int_equal(pack(m, 0), KN_ELIMIT);
    char need[32];
    snprintf(need, sizeof need, "%.2f GB are needed", (double)(whole - table[0].offset) / 1e9);
    assert_true(faults.n_line == 1 && strstr(faults.line, need) && strstr(faults.line, "make room"));
    assert_true(!is_there(part_path) && faults_clean());
    room++;
    assert_int_equal(pack(m, 0), 0);

    unlink(pack_path);
    room = (int64_t)(whole - table[4].offset); /* just enough for the experts still missing */
    write_file(part_path, file, table[4].offset);
    int fd = open(part_path, O_WRONLY);
    assert_int_equal(pwrite(fd, "?", 1, 48 + 4 * 72), 1);
    close(fd);
    room--;
    assert_int_equal(pack(m, 0), KN_ELIMIT);
    assert_true(is_there(part_path));
    room++;
    assert_int_equal(pack(m, 0), 0);
    assert_int_equal(packed.n_before, 4);
    unlink(pack_path);
    room = -1; /* free space unknown */
    assert_int_equal(pack(m, 0), 0);
    faults_off();
    free(file);
    close_packed(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_and_every_length_counts),
        cmocka_unit_test(the_checksum_stays_what_it_is),
        cmocka_unit_test(it_holds_experts_as_slots_do),
        cmocka_unit_test(it_is_the_same_whoever_writes_it),
        cmocka_unit_test(a_store_reads_from_it_whatever_the_room),
        cmocka_unit_test(threads_ask_at_once),
        cmocka_unit_test(an_expert_is_verified_at_each_read),
        cmocka_unit_test(what_is_damaged_comes_from_the_model),
        cmocka_unit_test(what_cannot_be_read_comes_from_the_model),
        cmocka_unit_test(whatever_fails_in_a_store_nothing_is_left),
        cmocka_unit_test(what_is_not_this_model_s_is_not_used),
        cmocka_unit_test(no_byte_of_head_or_table_can_be_another),
        cmocka_unit_test(killed_at_any_write_it_goes_on),
        cmocka_unit_test(what_counts_as_done_is_on_the_disk),
        cmocka_unit_test(whatever_fails_it_goes_on),
        cmocka_unit_test(stopped_it_goes_on),
        cmocka_unit_test(a_part_of_another_model_is_none),
        cmocka_unit_test(without_room_it_does_not_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
