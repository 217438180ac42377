/* Errors, memory, files through the seam, machine, threads. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/core.h"

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
    assert_string_equal(kn_error_text(KN_ESHORT), "file is shorter than it says");
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

/* pread that fails with EINTR, then delivers one byte at a time. */
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

struct tally { atomic_int count[1000]; atomic_int threads; };
static void count_item(void *arg, int item, int thread)
{
    struct tally *t = arg;
    atomic_fetch_add(&t->count[item], 1);
    atomic_fetch_or(&t->threads, 1 << thread);
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
                usleep(2000);                       /* workers are asleep by now: they must wake up */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_have_texts_and_are_said_once),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(arenas_count_before_they_own),
        cmocka_unit_test(reading_survives_interruptions_and_names_what_is_missing),
        cmocka_unit_test(every_item_runs_once),
        cmocka_unit_test(the_machine_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
