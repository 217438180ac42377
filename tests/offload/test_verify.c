/* Every read of an expert is verified: bytes damaged in the model's file, in the second copy, in the pack file or on the
 * way from the disk are read from another copy, or the expert fails; no expert is handed out with other bytes.
 * Checksums that were learnt of a file are kept between processes, and forgotten when the file is replaced.
 *
 * Its threads are those of test_store.c: not under MODE=tsan. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/store.h"
#include "tests/offload/experts.h"

static char folder[80], copy_path[2][128], heat_path[96], pack_path[96]; /* copies: of the model, of the pack file */

static struct model *open_tried(int n_layer, int per_layer, int d)
{
    struct model *m = open_model(n_layer, per_layer, d);
    const char *name = strrchr(m->path, '/') + 1;
    m->id = 7;
    snprintf(folder, sizeof folder, "%s-mirror", m->path);
    snprintf(heat_path, sizeof heat_path, "%s.heat", m->path);
    snprintf(pack_path, sizeof pack_path, "%s.pack", m->path);
    snprintf(copy_path[0], sizeof copy_path[0], "%s/%s", folder, name);
    snprintf(copy_path[1], sizeof copy_path[1], "%s/%s.pack", folder, name);
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST); /* left by a killed process of the same number */
    unlink(heat_path);
    return m;
}

static void close_tried(struct model *m)
{
    unlink(heat_path);
    unlink(pack_path);
    unlink(copy_path[0]);
    unlink(copy_path[1]);
    assert_int_equal(rmdir(folder), 0);
    close_model(m);
}

static void copy_file(const char *from, const char *to)
{
    uint8_t buf[4096];
    size_t n;
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    while ((n = fread(buf, 1, sizeof buf, in)) > 0)
        assert_int_equal(fwrite(buf, 1, n, out), n);
    assert_true(fclose(in) == 0 && fclose(out) == 0);
}

static void pack(const struct model *m)
{
    struct off_packed packed;
    assert_int_equal(off_pack(pack_path,
                              &(struct off_pack_options){ .files = { 1, &m->fd, &m->name, NULL },
                                                          .expert = m->expert,
                                                          .n_expert = m->n_expert,
                                                          .model_id = m->id,
                                                          .io = OFF_IO_PREAD,
                                                          .ops = kn_ops(KN_ISA_COUNT - 1),
                                                          .team = m->team },
                              &packed),
                     0);
}

/* Changes a byte in the middle of the first matrix of an expert, in place, in the model's file or a copy of it. */
static void damage(const struct model *m, const char *path, int expert)
{
    const struct off_source *s = &m->expert[expert].matrix[0];
    off_t at = (off_t)(s->offset + off_file_bytes(s) / 2);
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x40;
    assert_true(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
}

/* The same in a pack file. */
static void damage_pack(const char *path, int expert)
{
    struct off_pack_entry entry;
    int fd = open(path, O_RDWR);
    uint8_t byte;
    off_t at = (off_t)(sizeof(struct off_pack_head) + (size_t)expert * sizeof entry);
    assert_true(fd >= 0 && pread(fd, &entry, sizeof entry, at) == sizeof entry);
    at = (off_t)entry.offset + 100;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_true(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
}

/* ---- a client ------------------------------------------------------------------------------------------ */

struct tried {
    struct off_mirror *mirror;
    struct off_store *s;
    struct asker *a;
};

static void open_mirror(struct tried *t, const struct model *m)
{
    struct off_files files = { 1, &m->fd, &m->name, NULL };
    assert_int_equal(off_mirror_open(&t->mirror, folder, &files, m->pack), 0);
}

static void open_tried_store(struct tried *t, const struct model *m, bool heat)
{
    struct off_files files = { 1, &m->fd, &m->name, t->mirror };
    assert_int_equal(off_store_open(&t->s, &(struct off_store_options){ .files = files,
                                                                        .expert = m->expert,
                                                                        .n_expert = m->n_expert,
                                                                        .slot_bytes = least(m),
                                                                        .io = OFF_IO_PREAD,
                                                                        .heat_path = heat ? heat_path : NULL,
                                                                        .pack_path = m->pack,
                                                                        .model_id = m->id }),
                     0);
    t->a = open_asker(t->s, m);
}

static void open_all(struct tried *t, const struct model *m, bool heat, bool mirror)
{
    *t = (struct tried){ 0 };
    if (mirror)
        open_mirror(t, m);
    open_tried_store(t, m, heat);
}

static void close_all(struct tried *t)
{
    close_asker(t->a);
    off_store_close(t->s);
    off_mirror_close(t->mirror);
}

static struct off_stats stats_of(const struct tried *t)
{
    struct off_stats stats;
    off_stats_get(t->s, &stats);
    return stats;
}

/* Fetches all experts of the first n layers, `rounds` times. */
static void ask_layers(struct tried *t, int n, int rounds)
{
    for (int i = 0; i < n * rounds; i++) {
        choose_some(t->a, i % n, 1);
        ask(t->a, 0);
    }
}

/* Fetches all experts twice; returns the number that failed. */
static int ask_all(struct tried *t)
{
    t->a->n_failed = 0;
    ask_layers(t, t->a->m->n_expert / t->a->m->per_layer, 2);
    return t->a->n_failed;
}

/* Fetches all experts at least 6 times, and then until a damaged one was read if there are any. Which drive a read uses
 * depends on their times, so damage of one copy may never be met. Returns the number of failures. */
static int ask_until_damage(struct tried *t, bool damaged)
{
    int failed = 0;
    for (int i = 0; i < 3 || (damaged && i < 100 && !stats_of(t).damaged_reads); i++)
        failed += ask_all(t);
    return failed;
}

static void check_line(const char *a, const char *b)
{
    if (faults.n_line != 1 || !strstr(faults.line, a) || !strstr(faults.line, b))
        fail_msg("'%s', '%s' wanted: %d lines: %s; %s", a, b, faults.n_line, faults.line, faults.last);
    faults_listen();
}

/* One process: learns the checksums of all experts and keeps them. */
static void learn_all(const struct model *m)
{
    struct tried t;
    open_all(&t, m, true, false);
    assert_int_equal(ask_all(&t) + t.a->n_wrong, 0);
    close_all(&t);
}

/* The checksums in the heat file of the last process. */
static void read_checks(const struct model *m, uint64_t check[MAX_EXPERT])
{
    static float share[MAX_EXPERT];
    struct off_watch *w;
    struct off_file_id id;
    struct off_heat h = { m->id, m->n_expert, 1, &id, share, check };
    assert_int_equal(off_watch_open(&w, &(struct off_files){ 1, &m->fd, &m->name, NULL }), 0);
    off_watch_id(w, 0, &id);
    assert_true(off_heat_read(heat_path, &h));
    off_watch_close(w);
}

/* ---- the model's file ------------------------------------------------------------------------------------ */

/* Overwritten while in use: an expert has the bytes of before or fails, also one that was not read before. */
static void overwritten_in_place_it_gives_no_other_bytes(void **state)
{
    (void)state;
    struct model *m = open_tried(3, 6, 21);
    struct tried t;
    open_all(&t, m, true, false);
    faults_listen();
    ask_layers(&t, 1, 1);
    int fd = open(m->path, O_WRONLY);
    for (size_t i = 0; i < m->n; i++)
        m->data[i] = (uint8_t)~m->data[i];
    assert_true(pwrite(fd, m->data, m->n, 0) == (ssize_t)m->n && close(fd) == 0);
    assert_true(ask_all(&t) > 0);
    assert_int_equal(t.a->n_wrong, 0);
    assert_true(stats_of(&t).changed);
    check_line(m->path, "overwritten while in use");
    close_all(&t);

    for (int e = 0; e < m->n_expert; e++) /* the next process takes the file as it is */
        for (int i = 0; i < OFF_MATRICES; i++)
            free(m->want[e][i]);
    memset(m->want, 0, sizeof m->want);
    make_wanted(m);
    learn_all(m);
    assert_int_equal(faults.n_line, 0);
    faults_listen_off();
    close_tried(m);
}

/* It is also noticed while nothing is read, and so is another size. */
static void a_change_is_seen_without_a_read(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct model *m = open_tried(1, 2, 21);
        struct tried t;
        open_all(&t, m, false, false);
        faults_listen();
        ask_layers(&t, 1, 1);
        assert_false(stats_of(&t).changed);
        if (way)
            assert_int_equal(truncate(m->path, (off_t)m->n - 1), 0);
        else
            for (int e = 0; e < 2; e++)
                damage(m, m->path, e);
        int fd = open(m->path, O_WRONLY); /* the first page is always compared */
        assert_true(way || pwrite(fd, "?", 1, 0) == 1);
        close(fd);
        while (!stats_of(&t).changed)
            usleep(1000);
        check_line(m->path, way ? "bytes now" : "overwritten");
        close_all(&t);
        faults_listen_off();
        close_tried(m);
    }
}

/* New times with the same bytes change nothing, in this process and in the next. */
static void other_times_alone_are_no_change(void **state)
{
    (void)state;
    struct model *m = open_tried(3, 6, 21);
    struct tried t;
    char link_path[80];
    snprintf(link_path, sizeof link_path, "%s-link", m->path);
    for (int way = 0; way < 3; way++) {
        open_all(&t, m, true, false);
        faults_listen();
        ask_layers(&t, 1, 1);
        if (way == 0)
            assert_int_equal(chmod(m->path, 0640), 0);
        else if (way == 1)
            assert_true(link(m->path, link_path) == 0 && unlink(link_path) == 0);
        else
            assert_int_equal(utimensat(AT_FDCWD, m->path, NULL, 0), 0);
        assert_int_equal(ask_all(&t) + t.a->n_wrong, 0);
        assert_false(stats_of(&t).changed);
        assert_int_equal(stats_of(&t).damaged_reads, 0);
        close_all(&t);
        assert_int_equal(faults.n_line, 0);
        faults_listen_off();
    }
    close_tried(m);
}

/* A byte changes between two processes and the time of change of the contents does not, as with a failing disk: that
 * expert fails in the second process, and no other.  With a new time the file counts as replaced. */
static void damage_between_processes_is_seen(void **state)
{
    (void)state;
    struct model *m = open_tried(3, 6, 21);
    struct tried t;
    struct stat st;
    learn_all(m);
    assert_int_equal(stat(m->path, &st), 0);
    damage(m, m->path, 7);
    assert_int_equal(utimensat(AT_FDCWD, m->path, (struct timespec[]){ st.st_atim, st.st_mtim }, 0), 0);
    open_all(&t, m, true, false);
    faults_listen();
    assert_int_equal(ask_all(&t), 2); /* in each of two rounds */
    assert_int_equal(t.a->n_wrong, 0);
    assert_true(stats_of(&t).changed && stats_of(&t).damaged_reads == 4);
    check_line("expert 7", "was written since");
    close_all(&t);

    assert_int_equal(utimensat(AT_FDCWD, m->path, NULL, 0), 0);
    open_all(&t, m, true, false);
    assert_int_equal(ask_all(&t), 0);
    assert_int_equal(t.a->n_wrong, 2); /* expert 7, as it is in the file now */
    assert_false(stats_of(&t).changed);
    assert_int_equal(faults.n_line, 0);
    close_all(&t);
    faults_listen_off();
    close_tried(m);
}

/* ---- reads that change bytes ------------------------------------------------------------------------------- */

static atomic_int n_flip; /* this many of the next reads of more than a page get another middle byte */
static ssize_t flip_pread(int fd, void *buf, size_t bytes, int64_t at)
{
    ssize_t n = kn_io_system.pread(fd, buf, bytes, at);
    if (n > 2 * (ssize_t)OFF_PAGE && atomic_load(&n_flip) > 0 && atomic_fetch_sub(&n_flip, 1) > 0)
        ((uint8_t *)buf)[n / 2] ^= 0x10;
    return n;
}

static void set_flips(void)
{
    static struct kn_io io;
    io = kn_io_system;
    io.pread = flip_pread;
    kn_io_set(&io);
    n_flip = 0;
}

/* A read that is wrong once is repeated; with the file's times unchanged, one that stays wrong is the disk's fault. */
static void a_wrong_read_is_repeated(void **state)
{
    (void)state;
    struct model *m = open_tried(3, 6, 200);
    struct tried t;
    set_flips();
    for (int packed = 0; packed < 2; packed++) {
        if (packed) {
            pack(m);
            m->pack = pack_path;
        }
        learn_all(m);
        open_all(&t, m, true, false);
        wait_until_filled(t.s);
        faults_listen();
        n_flip = 1;
        assert_int_equal(ask_all(&t) + t.a->n_wrong, 0);
        assert_true(n_flip <= 0); /* threads may both count */
        assert_int_equal(stats_of(&t).damaged_reads, 1);
        assert_false(stats_of(&t).changed);
        check_line(packed ? pack_path : m->path, "not reliable");
        n_flip = 100000000;
        assert_true(ask_all(&t) > 0);
        assert_int_equal(t.a->n_wrong, 0);
        assert_true(stats_of(&t).changed);
        if (packed)
            assert_true(faults.n_line == 2 && strstr(faults.line, "spillway pack"));
        assert_true(strstr(faults.last, m->path) && strstr(faults.last, "may be failing"));
        n_flip = 0;
        assert_int_equal(ask_all(&t) + t.a->n_wrong, 0); /* it is tried again each time */
        close_all(&t);
    }
    kn_io_set(NULL);
    faults_listen_off();
    close_tried(m);
}

/* ---- two copies, and the pack file --------------------------------------------------------------------------- */

/* Damage of the model's file, its copy, or both, made while they are in use.  With a checksum that an earlier process
 * learnt from the first copy, either copy replaces the other. */
static void one_copy_stands_in_for_the_other(void **state)
{
    (void)state;
    for (int way = 1; way < 4; way++) { /* bits: the first, the second */
        struct model *m = open_tried(2, 4, 700);
        struct tried t;
        copy_file(m->path, copy_path[0]);
        learn_all(m);
        open_all(&t, m, true, true);
        faults_listen();
        assert_int_equal(ask_all(&t), 0);
        for (int e = 0; e < m->n_expert; e++) {
            if (way & 1)
                damage(m, m->path, e);
            if (way & 2)
                damage(m, copy_path[0], e);
        }
        int failed = ask_until_damage(&t, (way & 3) != 0);
        assert_int_equal(t.a->n_wrong, 0);
        assert_true(way == 3 ? failed > 0 : failed == 0);
        bool met = stats_of(&t).damaged_reads > 0;
        assert_true(met || way != 3);
        assert_true(stats_of(&t).changed ? way != 2 : way != 3);
        if (way == 2 && met)
            check_line(copy_path[0], "from the first copy");
        else if (way == 1 && met) { /* the watch may see the change as well */
            assert_true(strstr(faults.line, copy_path[0]) || strstr(faults.last, copy_path[0]));
            for (int i = 0; i < 10; i++) /* the damage of an expert is met once */
                assert_int_equal(ask_all(&t), 0);
            assert_true(stats_of(&t).damaged_reads <= 2 * (uint64_t)m->n_expert);
        }
        close_all(&t);
        faults_listen_off();
        close_tried(m);
    }
}

/* The same for a pack file; damaged in both copies, the experts are read from the model's file, and that is verified by
 * the pack file's checksums. */
static void a_damaged_pack_file_is_replaced(void **state)
{
    (void)state;
    for (int way = 1; way < 8; way++) { /* bits: the first, the second, the model's own file */
        struct model *m = open_tried(2, 4, 700);
        struct tried t;
        pack(m);
        copy_file(pack_path, copy_path[1]);
        m->pack = pack_path;
        open_all(&t, m, false, true);
        faults_listen();
        assert_int_equal(ask_all(&t), 0);
        for (int e = 0; e < m->n_expert; e++) {
            if (way & 1)
                damage_pack(pack_path, e);
            if (way & 2)
                damage_pack(copy_path[1], e);
            if (way & 4)
                damage(m, m->path, e);
        }
        int failed = ask_until_damage(&t, (way & 3) != 0);
        assert_int_equal(t.a->n_wrong, 0);
        assert_true(way == 7 ? failed > 0 : failed == 0);
        bool met = stats_of(&t).damaged_reads > 0;
        assert_true((way & 3) == 3 ? met : way & 3 || !met);
        assert_true((stats_of(&t).n_packed < (uint64_t)m->n_expert) == ((way & 3) == 3));
        if (way == 1 && met)
            check_line(pack_path, copy_path[1]);
        else if (way == 2 && met)
            check_line(copy_path[1], "from the first copy");
        else if (way == 3)
            check_line(pack_path, "spillway pack");
        close_all(&t);
        faults_listen_off();
        close_tried(m);
    }
}

/* Fetches others until the expert is evicted. */
static void evict(struct tried *t, int expert)
{
    int n_layer = t->a->m->n_expert / t->a->m->per_layer;
    for (int i = 0; t->s->slot_of[expert] >= 0; i++) {
        assert_true(i < 10000);
        choose_some(t->a, i % n_layer, 1);
        for (int k = t->a->n - 1; k >= 0; k--)
            if (t->a->expert[k] == expert)
                t->a->expert[k] = t->a->expert[--t->a->n];
        ask(t->a, 0);
    }
}

/* Fetches an expert alone after it was evicted, reading the given copy first.  Returns whether it came. */
static bool read_from(struct tried *t, int expert, enum off_copy copy, int flips)
{
    int failed = t->a->n_failed;
    evict(t, expert);
    n_flip = flips;
    t->s->copy_of[expert] = (uint8_t)copy;
    t->a->expert[0] = expert;
    t->a->n = 1;
    ask(t->a, 0);
    return t->a->n_failed == failed;
}

/* The same for the first read of the process, from which the checksum is learnt. */
static bool learn_from(struct tried *t, int expert, enum off_copy copy)
{
    wait_until_filled(t->s);
    (void)read_from(t, expert, copy, 0); /* whatever the filler has read is evicted then */
    t->s->known[expert] = OFF_KNOWN_NOT;
    return read_from(t, expert, copy, 0);
}

static bool is_said(const char *text) { return strstr(faults.line, text) || strstr(faults.last, text); }

static bool is_kept(const struct model *m, int expert)
{
    static uint64_t check[MAX_EXPERT];
    read_checks(m, check);
    return check[expert] != 0;
}

/* One copy is damaged before the first read, which is believed, and that read used the second copy.  When the copies are
 * seen to differ, it is not known which is right: the expert fails, again and again, neither copy is blamed, and no
 * checksum is kept. */
static void copies_that_differ_are_not_chosen_from(void **state)
{
    (void)state;
    for (int way = 0; way < 4;
         way++) { /* bits: the second copy is damaged; a failing read of it meets the difference */
        struct model *m = open_tried(2, 4, 700);
        struct tried t = { 0 };
        const int e = 5;
        copy_file(m->path, copy_path[0]);
        open_mirror(&t, m);
        damage(m, way & 1 ? copy_path[0] : m->path, e);
        faults_listen();
        set_flips();
        open_tried_store(&t, m, true);
        assert_true(learn_from(&t, e, OFF_COPY_SECOND));
        assert_int_equal(t.s->known[e], OFF_KNOWN_MIXED);
        int n_wrong = t.a->n_wrong;
        if (way & 2)
            assert_false(read_from(&t, e, OFF_COPY_SECOND, 1));
        else
            assert_false(read_from(&t, e, OFF_COPY_FIRST, 0));
        check_line("expert 5", "other bytes than before");
        assert_false(read_from(&t, e, (enum off_copy)t.s->copy_of[e], 0));
        assert_int_equal(t.a->n_wrong - n_wrong + faults.n_line, 0);
        assert_true(off_mirror_lives(t.mirror) && stats_of(&t).changed);
        close_all(&t);
        assert_false(is_kept(m, e));
        kn_io_set(NULL);
        faults_listen_off();
        close_tried(m);
    }
}

/* A checksum that was learnt from the second copy counts as the model's once the first copy has it, too, and one that was
 * learnt from the first copy does at once.  From then on the copy with other bytes is the damaged one. */
static void a_confirmed_checksum_tells_which_copy_is_damaged(void **state)
{
    (void)state;
    for (int confirmed = 0; confirmed < 2; confirmed++) {
        struct model *m = open_tried(2, 4, 700);
        struct tried t = { 0 };
        struct stat st;
        const int e = 5;
        copy_file(m->path, copy_path[0]);
        assert_int_equal(stat(m->path, &st), 0);
        open_all(&t, m, true, true);
        faults_listen();
        assert_true(learn_from(&t, e, confirmed ? OFF_COPY_SECOND : OFF_COPY_FIRST));
        assert_true(!confirmed || read_from(&t, e, OFF_COPY_FIRST, 0));
        assert_int_equal(t.s->known[e], OFF_KNOWN_OWN);
        damage(m, confirmed ? m->path : copy_path[0], e);
        assert_true(read_from(&t, e, confirmed ? OFF_COPY_FIRST : OFF_COPY_SECOND, 0));
        assert_true(is_said(confirmed ? "damaged experts are read from" : "from the first copy"));
        assert_int_equal(off_mirror_lives(t.mirror), confirmed);
        assert_int_equal(t.a->n_wrong + t.a->n_failed, 0);
        close_all(&t);
        assert_int_equal(utimensat(AT_FDCWD, m->path, (struct timespec[]){ st.st_atim, st.st_mtim }, 0), 0);
        assert_true(is_kept(m, e));
        faults_listen_off();
        close_tried(m);
    }
}

/* ---- kept checksums -------------------------------------------------------------------------------------------- */

/* Checksums do not depend on the instruction set, and are the pack file's. */
static void checksums_are_the_same_for_all(void **state)
{
    (void)state;
    static uint64_t check[2][MAX_EXPERT];
    struct model *m = open_tried(6, 4, 33);
    struct off_pack_entry entry;
    pack(m);
    for (int isa = 0; isa < KN_ISA_COUNT; isa++) {
        struct tried t;
        unlink(heat_path);
        open_all(&t, m, true, false);
        t.a->hands.ops = kn_ops((enum kn_isa)isa);
        assert_int_equal(ask_all(&t) + t.a->n_wrong, 0);
        close_all(&t);
        read_checks(m, check[isa > 0]);
        if (isa)
            assert_memory_equal(check[1], check[0], (size_t)m->n_expert * sizeof check[0][0]);
    }
    FILE *f = fopen(pack_path, "rb");
    assert_true(f && fseek(f, sizeof(struct off_pack_head), SEEK_SET) == 0);
    for (int e = 0; e < m->n_expert; e++)
        assert_true(fread(&entry, sizeof entry, 1, f) == 1 && entry.check == check[0][e] && entry.check);
    fclose(f);
    close_tried(m);
}

/* A pack file made from damaged bytes is valid in itself; the checksum learnt from the model's file tells. */
static void a_pack_file_of_damaged_bytes_is_not_used(void **state)
{
    (void)state;
    struct model *m = open_tried(3, 4, 21);
    struct tried t;
    learn_all(m);
    set_flips();
    n_flip = 1;
    pack(m);
    n_flip = 0;
    kn_io_set(NULL);
    m->pack = pack_path;
    faults_listen();
    open_all(&t, m, true, false);
    assert_int_equal(stats_of(&t).n_packed, m->n_expert - 1);
    assert_int_equal(ask_all(&t) + t.a->n_wrong, 0);
    check_line(pack_path, "spillway pack");
    close_all(&t);
    faults_listen_off();
    close_tried(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overwritten_in_place_it_gives_no_other_bytes),
        cmocka_unit_test(a_change_is_seen_without_a_read),
        cmocka_unit_test(other_times_alone_are_no_change),
        cmocka_unit_test(damage_between_processes_is_seen),
        cmocka_unit_test(a_wrong_read_is_repeated),
        cmocka_unit_test(one_copy_stands_in_for_the_other),
        cmocka_unit_test(a_damaged_pack_file_is_replaced),
        cmocka_unit_test(copies_that_differ_are_not_chosen_from),
        cmocka_unit_test(a_confirmed_checksum_tells_which_copy_is_damaged),
        cmocka_unit_test(checksums_are_the_same_for_all),
        cmocka_unit_test(a_pack_file_of_damaged_bytes_is_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
