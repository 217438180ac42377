/* What the machine has: instruction sets, usable processors, nodes, memory under a cgroup's limit. */
#include "kernels/core.h"

#include <fcntl.h>
#include <numa.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kn_isa kn_isa_best(void)
{
#if defined(__x86_64__)
    /* f16c is older than avx2, and clang 14 cannot ask for it */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi2"))
        return KN_ISA_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni"))
        return KN_ISA_AVX512;
    return KN_ISA_AVX2;
#else
    return KN_ISA_SCALAR;
#endif
}

const char *kn_isa_name(enum kn_isa isa)
{
    static const char *const name[KN_ISA_COUNT] = { "scalar", "avx2", "avx512" };
    return name[isa];
}

/* A small file of the kernel's: its first number, or `otherwise` ("max", absent, unreadable). */
static size_t read_number(const char *path, size_t otherwise)
{
    char text[64];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return otherwise;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return otherwise;
    text[n] = 0;
    char *end;
    unsigned long long v = strtoull(text, &end, 10);
    return end == text ? otherwise : (size_t)v;
}

/* Room under the limits of this process's cgroup (v2) and all above it. */
static size_t cgroup_room(size_t *limit)
{
    char line[512] = "", path[640];
    size_t room = SIZE_MAX;
    *limit = SIZE_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return room;
    while (fgets(line, sizeof line, f) && strncmp(line, "0::", 3) != 0)
        line[0] = 0;
    fclose(f);
    if (!line[0])
        return room;
    line[strcspn(line, "\n")] = 0;
    for (char *group = line + 3; ; *strrchr(group, '/') = 0) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
        size_t most = read_number(path, SIZE_MAX);
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
        size_t now = read_number(path, 0);
        if (most < *limit)
            *limit = most;
        if (most != SIZE_MAX && (most > now ? most - now : 0) < room)
            room = most > now ? most - now : 0;
        if (!strrchr(group, '/'))
            return room;
    }
}

static size_t available_bytes(size_t otherwise)
{
    char line[256];
    unsigned long long kib;
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return otherwise;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            otherwise = (size_t)kib << 10;
    fclose(f);
    return otherwise;
}

void kn_machine_get(struct kn_machine *out)
{
    cpu_set_t cpus;
    int n_cpu = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    size_t limit, room = cgroup_room(&limit);
    size_t total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t available = available_bytes(total);
    *out = (struct kn_machine){
        .n_cpu = kn_max(n_cpu, 1),
        .n_node = numa_available() < 0 ? 1 : numa_max_node() + 1,
        .memory_bytes = limit < total ? limit : total,
        .available_bytes = room < available ? room : available,
    };
}
