/* The disk rate (engine/plan/disk_rate.c) with simulated files and clock, and the format of doctor's report.
 *
 * Threads are tested where they work: not under MODE=tsan. */
#include "engine/cli/cli.h"
#include "engine/plan/disk_rate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define MIB (1 << 20)

static void unheard(enum kn_level level, const char *line)
{
    (void)level;
    (void)line;
}

/* ---- simulated file: size, read errors and clock set by the test --------------------------------- */

static int64_t file_bytes;
static int read_error; /* errno; -1: short */
static uint64_t clock_ns;
static uint64_t read_once; /* bit per MiB */
static size_t piece;       /* bytes of the last read */

static int64_t fake_size(int fd)
{
    (void)fd;
    return file_bytes;
}

static ssize_t fake_pread(int fd, void *buffer, size_t bytes, int64_t offset)
{
    (void)fd;
    assert_true(offset >= 0 && offset + (int64_t)bytes <= file_bytes && offset % (int64_t)bytes == 0);
    assert_int_equal((uintptr_t)buffer % 4096, 0);
    if (read_error > 0) {
        errno = read_error;
        return -1;
    }
    __atomic_fetch_or(&read_once, UINT64_C(1) << offset / MIB, __ATOMIC_RELAXED);
    __atomic_store_n(&piece, bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&clock_ns, bytes * 10000000 / MIB, __ATOMIC_RELAXED); /* 1 MiB in 10 ms */
    return read_error < 0 ? (ssize_t)bytes / 2 : (ssize_t)bytes;
}

static uint64_t fake_now(void) { return __atomic_load_n(&clock_ns, __ATOMIC_RELAXED); }

static int rate_with(int64_t bytes, int error, int depth, size_t room, double *rate)
{
    struct kn_io io = kn_io_system;
    io.size = fake_size;
    io.pread = fake_pread;
    io.now_ns = fake_now;
    file_bytes = bytes;
    read_error = error;
    read_once = 0;
    kn_io_set(&io);
    kn_log_set(unheard, KN_LOG_ERROR);
    int e = eng_disk_rate("file", 99, depth, room, rate);
    kn_log_set(NULL, KN_LOG_INFO);
    kn_io_set(NULL);
    return e;
}

static void rates(void **state)
{
    (void)state;
    double rate = 0;
    assert_int_equal(rate_with(20 * MIB + 5, 0, 1, ENG_DISK_BYTES, &rate), 0);
    assert_true(rate > 104857599 && rate < 104857601); /* 1 MiB in 10 ms */
    assert_int_equal(read_once, (1 << 20) - 1);        /* each whole MiB, without the rest */
    rate = 0;
    assert_int_equal(rate_with(7 * MIB, 0, 16, ENG_DISK_BYTES, &rate), 0);
    assert_true(rate > 104857599 && rate < 104857601); /* all reads share the clock */
    assert_int_equal(piece, MIB);
    assert_int_equal(rate_with(20 * MIB, 0, 16, 4 * MIB, &rate), 0); /* a budget with less memory */
    assert_true(rate > 104857599 && rate < 104857601);
    assert_int_equal(piece, MIB / 4);
    assert_true(eng_disk_room(0) == ENG_DISK_BYTES && eng_disk_room((size_t)4 << 30) == ENG_DISK_BYTES);
    assert_int_equal(eng_disk_room(40 * MIB), 10 * MIB);
}

/* The second drive is twice as fast. */
static int open_of_two(const char *p, int flags, int mode)
{
    (void)flags;
    (void)mode;
    return strstr(p, "second") ? 99 : 98;
}

static int close_of_two(int fd) { return fd < 0; }
static int64_t size_of_two(int fd) { return fd == 99 ? file_bytes : 40 * MIB; }

static ssize_t read_of_two(int fd, void *buffer, size_t bytes, int64_t offset)
{
    (void)buffer;
    (void)offset;
    __atomic_fetch_add(&clock_ns, fd == 99 ? 5000000 : 10000000, __ATOMIC_RELAXED);
    return (ssize_t)bytes;
}

static double rate_of_two(const char *mirror, int64_t bytes)
{
    struct kn_io io = kn_io_system;
    double rate = 0;
    io.open = open_of_two;
    io.close = close_of_two;
    io.size = size_of_two;
    io.pread = read_of_two;
    io.now_ns = fake_now;
    file_bytes = bytes;
    kn_io_set(&io);
    assert_int_equal(eng_disk_measure("first/model.gguf", mirror, ENG_DISK_BYTES, &rate), 0);
    kn_io_set(NULL);
    return rate / 104857600;
}

/* Two copies of equal size give the sum of the rates. A smaller second copy counts only for the bytes that both drives
 * read at the same time. */
static void two_copies(void **state)
{
    (void)state;
    char folder[] = "/tmp/spillway-second-XXXXXX", file[64];
    assert_non_null(mkdtemp(folder));
    assert_true(rate_of_two(NULL, 40 * MIB) < 1.001);
    assert_true(rate_of_two(folder, 40 * MIB) < 1.001); /* no copy there */
    snprintf(file, sizeof file, "%s/model.experts", folder);
    for (int i = 0; i < 2; i++) {
        close(open(file, O_CREAT | O_WRONLY, 0600));
        double whole = rate_of_two(folder, 40 * MIB), half = rate_of_two(folder, 20 * MIB);
        double tenth = rate_of_two(folder, 4 * MIB);
        assert_true(whole > 2.999 && whole < 3.001 && half > 1.999 && half < 2.001);
        assert_true(tenth > 1.11 && tenth < 1.12);
        unlink(file);
        snprintf(file, sizeof file, "%s/model.gguf", folder);
    }
    rmdir(folder);
}

static void failures(void **state)
{
    (void)state;
    double rate = -1;
    assert_int_equal(rate_with(MIB - 1, 0, 1, ENG_DISK_BYTES, &rate), KN_ESHORT);
    assert_int_equal(rate_with(5 * MIB, EINVAL, 4, ENG_DISK_BYTES, &rate), KN_EUNSUPPORTED);
    assert_int_equal(rate_with(5 * MIB, EIO, 4, ENG_DISK_BYTES, &rate), KN_EIO);
    assert_int_equal(rate_with(5 * MIB, -1, 4, ENG_DISK_BYTES, &rate), KN_EIO);
    assert_int_equal(rate_with(5 * MIB, 0, 16, 15 * 4096, &rate), KN_ENOMEM);
    assert_true(rate == -1);
    int fd = -5;
    assert_int_equal(eng_disk_trial("/nonexistent/folder", MIB, &fd), KN_EUNSUPPORTED);
    assert_int_equal(eng_disk_trial("/proc", MIB, &fd), KN_EUNSUPPORTED);
}

/* ---- the report -------------------------------------------------------------------------------- */

/* Fails unless s is one flat JSON object of strings and numbers: {"a":"text","b":1}. */
static void check_object(const char *s)
{
    assert_int_equal(*s++, '{');
    for (bool name = true;; name = !name) {
        if (*s == '"') {
            for (s++; *s != '"'; s++) {
                assert_true((unsigned char)*s >= 0x20);
                s += *s == '\\';
            }
            s++;
        } else {
            assert_false(name);
            size_t n = strspn(s, "0123456789");
            assert_true(n > 0);
            s += n;
        }
        if (!name && *s == '}')
            break;
        assert_int_equal(*s++, name ? ':' : ',');
    }
    assert_string_equal(s, "}\n");
}

static void report_is_json(void **state)
{
    (void)state;
    static const char *const looked_at[] = { "isa",      "cpus", "numa", "memory",     "huge pages", "memlock",
                                             "io_uring", "gpu",  "dram", "arithmetic", "disk",       "mirror" };
    char line[1024], name[64], path[] = "/tmp/spillway-doctor-XXXXXX";
    int found = 0, model = mkstemp(path), kept = dup(STDOUT_FILENO);
    FILE *f = tmpfile();
    assert_int_equal(ftruncate(model, 4 * MIB), 0);
    close(model);
    char folder[] = "/tmp/spillway-doctor-copy-XXXXXX", copy[96];
    assert_non_null(mkdtemp(folder));
    snprintf(copy, sizeof copy, "%s/%s", folder, strrchr(path, '/') + 1);
    int second = open(copy, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(ftruncate(second, 4 * MIB), 0);
    close(second);
    struct eng_config config = { .json = true, .model = path, .mirror = folder };
    fflush(stdout);
    dup2(fileno(f), STDOUT_FILENO);
    int status = eng_cmd_doctor(&config);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    unlink(path);
    unlink(copy);
    rmdir(folder);

    assert_in_range(status, 0, 1);
    rewind(f);
    while (fgets(line, sizeof line, f)) {
        check_object(line);
        for (size_t i = 0; i < sizeof looked_at / sizeof *looked_at; i++) {
            snprintf(name, sizeof name, "{\"what\":\"%s\",", looked_at[i]);
            found |= !strncmp(line, name, strlen(name)) << i;
        }
    }
    fclose(f);
    assert_int_equal(found, (1 << sizeof looked_at / sizeof *looked_at) - 1);
}

static void missing_file(void **state)
{
    (void)state;
    struct eng_config config = { .json = true, .model = "/nonexistent/model.gguf" };
    kn_log_set(unheard, KN_LOG_ERROR);
    assert_int_equal(eng_cmd_doctor(&config), 2);
    kn_log_set(NULL, KN_LOG_INFO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates),          cmocka_unit_test(two_copies),   cmocka_unit_test(failures),
        cmocka_unit_test(report_is_json), cmocka_unit_test(missing_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
