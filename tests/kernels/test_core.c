/* Errors, memory, file reads through replaceable system calls, machine, threads. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/internal.h"
#include "tests/nodes.h"

static char last_line[1024];
static void keep_line(enum kn_level level, const char *line)
{
    (void)level;
    strncpy(last_line, line, sizeof last_line - 1);
}

static void errors_have_texts_and_are_said_once(void **state)
{
    (void)state;
    kn_log_set(keep_line, KN_LOG_INFO);
    assert_int_equal(kn_fail(KN_ESHORT, "%s: field\n%d", "file", 7), KN_ESHORT);
    assert_string_equal(last_line, "file: field?7");
    assert_string_equal(kn_error_text(KN_ESHORT), "file is shorter than its header says");
    assert_string_equal(kn_error_text(0), "no error");
    kn_say(KN_LOG_DEBUG, "unheard");
    assert_string_equal(last_line, "file: field?7");
    kn_log_set(NULL, KN_LOG_INFO);
}

static void sizes_are_checked(void **state)
{
    (void)state;
    size_t out = 5;
    assert_true(kn_mul(1u << 20, 1u << 20, &out));
    assert_false(kn_mul(SIZE_MAX / 2, 3, &out));
    assert_false(kn_add(SIZE_MAX, 1, &out));
    assert_null(kn_calloc(SIZE_MAX / 2, 3));
    assert_int_equal(kn_align_up(65, 64), 128);
}

static void arenas_count_before_they_own(void **state)
{
    (void)state;
    struct kn_arena count = { 0 }, a;
    assert_null(kn_arena_take(&count, 3, 100));
    assert_null(kn_arena_take(&count, 1, 1));
    assert_int_equal(count.used, 320 + 64);
    assert_int_equal(kn_arena_open(&a, count.used, -1), 0);
    uint8_t *p = kn_arena_take(&a, 3, 100), *q = kn_arena_take(&a, 1, 1);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_ptr_equal(q, p + 320);
    assert_int_equal(p[299], 0);
    kn_arena_close(&a);
}

/* A pread that fails with EINTR, then returns one byte at a time. */
static int interruptions;
static ssize_t stutter(int fd, void *buf, size_t n, int64_t at)
{
    if (interruptions++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return pread(fd, buf, n > 1 ? 1 : n, at);
}
static ssize_t broken(int fd, void *buf, size_t n, int64_t at)
{
    (void)fd, (void)buf, (void)n, (void)at;
    errno = EIO;
    return -1;
}

static void reading_survives_interruptions_and_names_what_is_missing(void **state)
{
    (void)state;
    char path[] = "/tmp/spillway-core-XXXXXX", got[8] = "";
    int fd = mkstemp(path), other;
    kn_log_set(keep_line, KN_LOG_INFO);
    assert_int_equal(kn_file_write(fd, path, "abcdef", 6, 0), 0);
    struct kn_io io = kn_io_system;
    io.pread = stutter;
    kn_io_set(&io);
    assert_int_equal(kn_file_read(fd, path, got, 6, 0), 0);
    assert_string_equal(got, "abcdef");
    assert_int_equal(kn_file_read(fd, path, got, 6, 4), KN_ESHORT);
    assert_non_null(strstr(last_line, path));
    io.pread = broken;
    assert_int_equal(kn_file_read(fd, path, got, 6, 0), KN_EIO);
    assert_non_null(strstr(last_line, strerror(EIO)));
    kn_io_set(NULL);
    assert_int_equal(kn_file_open(&other, "/nonexistent/x", O_RDONLY), KN_ENOENT);
    kn_log_set(NULL, KN_LOG_INFO);
    close(fd);
    unlink(path);
}

struct tally {
    atomic_int count[1000];
    atomic_int threads;
};
static void count_item(void *arg, int item, int thread)
{
    struct tally *t = arg;
    atomic_fetch_add(&t->count[item], 1);
    atomic_fetch_or(&t->threads, 1 << thread);
}

static size_t n_dropped;
static void note_drop(void *p, size_t bytes)
{
    n_dropped += bytes;
    kn_io_system.drop(p, bytes);
}

/* Pages that are only in part inside the range keep their bytes; the others are zero at their next use. */
static void whole_pages_are_dropped(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *p = kn_map(4 * page, -1);
    assert_non_null(p);
    struct kn_io io = kn_io_system;
    io.drop = note_drop;
    kn_io_set(&io);
    memset(p, 1, 4 * page);
    kn_map_drop(p + 1, page);
    kn_map_drop(p + 1, 1);
    assert_int_equal(n_dropped, 0);
    kn_map_drop(p + 1, 3 * page);
    for (size_t i = 0; i < 4 * page; i++)
        assert_int_equal(p[i], i < page || i >= 3 * page);
    kn_map_drop(p, 4 * page);
    for (size_t i = 0; i < 4 * page; i++)
        assert_int_equal(p[i], 0);
    kn_io_set(NULL);
    kn_unmap(p, 4 * page);
}

static void every_item_runs_once(void **state)
{
    (void)state;
    for (int n_thread = 1; n_thread <= 5; n_thread++) {
        struct kn_team *team;
        assert_int_equal(kn_team_open(&team, n_thread), 0);
        assert_int_equal(kn_team_size(team), n_thread);
        static struct tally t;
        memset(&t, 0, sizeof t);
        for (int round = 0; round < 50; round++) {
            if (round == 25)
                usleep(2000); /* long enough that workers sleep and must be woken */
            kn_parallel_for(team, round * 20, count_item, &t);
        }
        for (int i = 0; i < 1000; i++)
            assert_int_equal(atomic_load(&t.count[i]), 49 - i / 20);
        assert_true(atomic_load(&t.threads) < 1 << n_thread);
        kn_team_close(team);
    }
    kn_team_close(NULL);
}

static void the_machine_is_known(void **state)
{
    (void)state;
    struct kn_machine m;
    kn_machine_get(&m);
    assert_true(m.n_cpu >= 1 && m.n_node >= 1);
    assert_true(m.available_bytes <= m.memory_bytes && m.memory_bytes > 0);
    assert_string_equal(kn_isa_name(KN_ISA_AVX2), "avx2");
    assert_true(kn_isa_best() < KN_ISA_COUNT);
}

/* ---- nodes --------------------------------------------------------------------------------------- */

static void nodes_are_those_of_our_processors(void **state)
{
    (void)state;
    struct kn_machine m;
    struct kn_cpus cpus;
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    nodes_set(2);
    kn_machine_get(&m);
    kn_cpus_get(&cpus);
    assert_int_equal(m.n_node, kn_min(2, m.n_cpu));
    assert_int_equal(m.n_cpu, CPU_COUNT(&all));
    for (int k = 0; k < m.n_node; k++)
        for (int i = cpus.first[k]; i < cpus.first[k + 1]; i++) {
            assert_true(CPU_ISSET(cpus.cpu[i], &all));
            assert_int_equal(m.node[k], NODES_NAME(cpus.cpu[i] % 2));
            assert_true(i == cpus.first[k] || cpus.cpu[i] > cpus.cpu[i - 1]);
        }
    assert_int_equal(cpus.first[m.n_node], m.n_cpu);
    nodes_set(CPU_SETSIZE); /* every processor is a node */
    kn_cpus_get(&cpus);
    assert_int_equal(cpus.n_node, kn_min(CPU_COUNT(&all), KN_NODES));
    assert_int_equal(cpus.first[cpus.n_node], CPU_COUNT(&all));
    nodes_set(1);
}

/* Each of n threads takes one item and waits for the others, so each thread runs exactly one item. */
struct meeting {
    atomic_int begun, thread[64];
    int n;
};
static void meet(void *arg, int item, int thread)
{
    struct meeting *m = arg;
    atomic_store(&m->thread[item], thread);
    atomic_fetch_add(&m->begun, 1);
    while (atomic_load(&m->begun) < m->n)
        sched_yield();
}

static void items_go_to_the_threads_of_their_node(void **state)
{
    (void)state;
    nodes_set(2);
    for (int n_thread = 1; n_thread <= 7; n_thread++) {
        struct kn_team *team;
        assert_int_equal(kn_team_open(&team, n_thread), 0);
        int n_node = kn_team_nodes(team), cut[KN_NODES + 1];
        struct meeting m = { .n = n_thread };
        for (int i = 1; i < n_thread; i++)
            assert_true(kn_team_node(team, i) >= kn_team_node(team, i - 1));
        assert_int_equal(kn_team_node(team, 0), 0);
        assert_int_equal(kn_team_node(team, n_thread - 1), kn_min(n_thread, n_node) - 1);
        for (int k = 0; k <= KN_NODES; k++)
            cut[k] = kn_team_cut(team, n_thread, kn_min(k, n_node));
        kn_parallel_on(team, cut, meet, &m);
        for (int i = 0; i < n_thread; i++)
            assert_int_equal(atomic_load(&m.thread[i]), i);
        memset(&m, 0, sizeof m);
        m.n = n_thread;
        kn_parallel_for(team, n_thread, meet, &m);
        for (int i = 0; i < n_thread; i++)
            assert_int_equal(atomic_load(&m.thread[i]), i);
        kn_team_close(team);
    }
    nodes_set(1);
}

/* Two threads on each of two nodes, two items each. Threads 0 and 2 stay in their first item until all items have
 * begun, so threads 1 and 3 must take the second items of their own nodes. */
static void wait_for_help(void *arg, int item, int thread)
{
    struct meeting *m = arg;
    atomic_store(&m->thread[item], thread);
    int begun = atomic_fetch_add(&m->begun, 1) + 1;
    bool stays = item % 4 < 2; /* an item of thread 0 or 2, on either thread of its node */
    while ((stays && begun < 8) || begun < 4) {
        sched_yield();
        begun = atomic_load(&m->begun);
    }
}

static void help_goes_to_the_own_node_first(void **state)
{
    (void)state;
    struct kn_team *team;
    nodes_set(2);
    assert_int_equal(kn_team_open(&team, 4), 0);
    if (kn_team_nodes(team) == 2) /* the machine has two processors */
        for (int round = 0; round < 200; round++) {
            struct meeting m = { 0 };
            int cut[KN_NODES + 1] = { 0, 4 };
            for (int k = 2; k <= KN_NODES; k++)
                cut[k] = 8;
            kn_parallel_on(team, cut, wait_for_help, &m);
            for (int i = 0; i < 8; i++)
                assert_int_equal(atomic_load(&m.thread[i]) / 2, i / 4);
        }
    kn_team_close(team);
    nodes_set(1);
}

/* For every placement of items and threads each item runs once; other nodes run the items of a node without threads. */
static void items_anywhere_run_once(void **state)
{
    (void)state;
    static const int cuts[][3] = { { 0, 0, 40 }, { 0, 40, 40 }, { 0, 1, 2 }, { 0, 0, 0 }, { 0, 7, 40 }, { 0, 0, 1 } };
    nodes_set(2);
    for (int n_thread = 1; n_thread <= 5; n_thread++) {
        struct kn_team *team;
        assert_int_equal(kn_team_open(&team, n_thread), 0);
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            static struct tally t;
            int cut[KN_NODES + 1];
            for (int k = 0; k <= KN_NODES; k++) /* includes nodes that the team does not have */
                cut[k] = k < 2 ? cuts[i][k] : k < 4 ? cuts[i][2] : cuts[i][2] + 3;
            memset(&t, 0, sizeof t);
            kn_parallel_on(team, cut, count_item, &t);
            for (int item = 0; item < 50; item++)
                assert_int_equal(atomic_load(&t.count[item]), item < cut[KN_NODES]);
        }
        kn_team_close(team);
    }
    nodes_set(1);
}

static void pages_are_bound_where_their_items_run(void **state)
{
    (void)state;
    struct kn_team *team;
    size_t bytes = 100 * 3000;
    nodes_set(2);
    assert_int_equal(kn_team_open(&team, 2), 0);
    uint8_t *p = kn_map(bytes, -1);
    assert_int_equal(nodes_of(p, bytes), -1);
    kn_team_bind(team, p + 64, 99, 3000);
    if (kn_team_nodes(team) == 2) {
        size_t half = 64 + 49 * 3000;
        assert_int_equal(kn_team_cut(team, 99, 1), 49);
        assert_int_equal(nodes_of(p, 4096), -1); /* starts below the first item */
        assert_int_equal(nodes_of(p + 4096, half - 4096), NODES_NAME(0));
        assert_int_equal(nodes_of(p + kn_align_up(half, 4096), 99 * 3000 - 49 * 3000 - 4096), NODES_NAME(1));
    }
    kn_unmap(p, bytes);
    kn_team_close(team);
    nodes_set(1);
}

static int stayed_at;
static void *stay(void *arg)
{
    struct kn_machine m;
    stayed_at = kn_machine_stay(*(int *)arg);
    kn_machine_get(&m);
    if (m.n_node == 1 && stayed_at == 0)
        stayed_at = m.node[0];
    return NULL;
}

static void a_thread_can_keep_to_a_node(void **state)
{
    (void)state;
    struct kn_machine m;
    pthread_t thread;
    nodes_set(2);
    kn_machine_get(&m);
    for (int k = 0; m.n_node == 2 && k < 2; k++) {
        assert_int_equal(pthread_create(&thread, NULL, stay, &k), 0);
        pthread_join(thread, NULL);
        assert_int_equal(stayed_at, m.node[k]);
    }
    nodes_set(1);
}

/* A fake /sys/fs/cgroup with the layouts of other machines: one-line files in a temporary folder. */
static char mount[64];

static void put_file(const char *name, const char *text)
{
    char at[256];
    snprintf(at, sizeof at, "%s/%s", mount, name);
    for (char *slash = at + strlen(mount) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(at, 0700);
        *slash = '/';
    }
    FILE *f = fopen(at, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static size_t room_of(const char *groups, size_t *limit)
{
    char at[128];
    put_file("groups", groups);
    snprintf(at, sizeof at, "%s/groups", mount);
    return kn_cgroup_room(at, mount, limit);
}

static void limits_of_all_groups_count(void **state)
{
    (void)state;
    size_t limit;
    strcpy(mount, "/tmp/spillway-cgroup-XXXXXX");
    assert_non_null(mkdtemp(mount));
    put_file("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    put_file("memory/a/b/memory.usage_in_bytes", "100\n");
    put_file("memory/a/memory.limit_in_bytes", "5000\n");
    put_file("memory/a/memory.usage_in_bytes", "2000\n");
    put_file("memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file_x 2\ntotal_inactive_file 700\n");
    put_file("memory/memory.limit_in_bytes", "6000\n");
    put_file("u/v/memory.max", "4000\n");
    put_file("u/v/memory.current", "1500\n");
    put_file("u/v/memory.stat", "anon 5\ninactive_file 300\n");
    put_file("u/memory.max", "max\n");
    put_file("full/memory.max", "100\n");
    put_file("full/memory.current", "150\n");

    static const struct {
        const char *groups;
        size_t room, limit;
    } tries[] = {
        { "4:memory:/a/b\n", 3700, 5000 }, /* the parent's limit, less its reclaimable cache */
        { "5:cpu,memory:/a\n1:name=x:/u/v\n", 3700, 5000 },
        { "4:memory:/\n", 6000, 6000 },
        { "4:memory:/not/seen/here\n", 6000, 6000 }, /* inside a container: the own group is the root of the mount */
        { "0::/u/v\n", 2800, 4000 },
        { "0::/u\n", SIZE_MAX, SIZE_MAX },
        { "4:memory:/a\n0::/u/v\n", 2800, 4000 }, /* cgroup v1 and v2 at once */
        { "4:memoryless:/a\n0:x:/u/v\nnonsense\n", SIZE_MAX, SIZE_MAX },
        { "0::/full\n", 0, 100 },
        { "", SIZE_MAX, SIZE_MAX },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        size_t room = room_of(tries[i].groups, &limit);
        if (room != tries[i].room || limit != tries[i].limit)
            fail_msg("%zu: room %zu, limit %zu", i, room, limit);
    }
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", mount);
    assert_int_equal(system(command), 0);
    assert_int_equal(kn_cgroup_room("/nowhere", mount, &limit), SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_have_texts_and_are_said_once),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(arenas_count_before_they_own),
        cmocka_unit_test(reading_survives_interruptions_and_names_what_is_missing),
        cmocka_unit_test(whole_pages_are_dropped),
        cmocka_unit_test(every_item_runs_once),
        cmocka_unit_test(the_machine_is_known),
        cmocka_unit_test(nodes_are_those_of_our_processors),
        cmocka_unit_test(items_go_to_the_threads_of_their_node),
        cmocka_unit_test(help_goes_to_the_own_node_first),
        cmocka_unit_test(items_anywhere_run_once),
        cmocka_unit_test(pages_are_bound_where_their_items_run),
        cmocka_unit_test(a_thread_can_keep_to_a_node),
        cmocka_unit_test(limits_of_all_groups_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
