/* engine/serve/process.c - numbers of this process from /proc/self and getrlimit. */
#include "engine/serve/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* The text of a small file of /proc; false: it is not there. */
static bool read_proc(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, size - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

size_t eng_memory_used(void)
{
    unsigned long long size, resident, shared;
    char text[256];
    if (!read_proc("/proc/self/statm", text, sizeof text) ||
        sscanf(text, "%llu %llu %llu", &size, &resident, &shared) != 3 || shared > resident)
        return 0;
    return (size_t)(resident - shared) * (size_t)sysconf(_SC_PAGESIZE);
}

static void put(struct eng_bytes *out, const char *name, const char *type, const char *help, double value)
{
    eng_bytes_format(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, value);
}

static void put_files(struct eng_bytes *out)
{
    struct rlimit files;
    DIR *folder = opendir("/proc/self/fd");
    int n = -3; /* "." and "..", and the folder itself */
    while (folder && readdir(folder))
        n++;
    if (folder) {
        closedir(folder);
        put(out, "process_open_fds", "gauge", "open file descriptors", n);
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY)
        put(out, "process_max_fds", "gauge", "limit of open file descriptors", (double)files.rlim_cur);
}

/* The second since 1970 at which the process started: ticks since the start of the system are on the clock that also
 * counts while it sleeps. */
static double start_s(unsigned long long ticks)
{
    struct timespec now, up;
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &up);
    return (double)(now.tv_sec - up.tv_sec) + (double)(now.tv_nsec - up.tv_nsec) * 1e-9 +
           (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

void eng_process_metrics(struct eng_bytes *out)
{
    unsigned long long user, system, start, size;
    long threads, pages;
    char text[1024];
    const char *at;
    if (read_proc("/proc/self/stat", text, sizeof text) && (at = strrchr(text, ')')) &&
        sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %ld %*d %llu %llu %ld",
               &user, &system, &threads, &start, &size, &pages) == 6) {
        put(out, "process_cpu_seconds_total", "counter", "processor time, of programs and of the kernel for them",
            (double)(user + system) / (double)sysconf(_SC_CLK_TCK));
        put(out, "process_start_time_seconds", "gauge", "start of the process, in seconds since 1970", start_s(start));
        put(out, "process_resident_memory_bytes", "gauge", "memory in use, with pages of files",
            (double)pages * (double)sysconf(_SC_PAGESIZE));
        put(out, "process_virtual_memory_bytes", "gauge", "address space", (double)size);
        put(out, "process_threads", "gauge", "threads", (double)threads);
    }
    put_files(out);
}
