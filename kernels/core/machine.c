/* Properties of the machine: instruction sets, usable processors, nodes, memory within the cgroups' limits. */
#include "kernels/internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kn_isa kn_isa_best(void)
{
#if defined(__x86_64__)
    /* AVX2 implies f16c here: every processor with avx2 has it, and clang 14 has no name for it */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
        return KN_ISA_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni") ? KN_ISA_VBMI : KN_ISA_AVX512;
    return KN_ISA_AVX2;
#else
    return KN_ISA_SCALAR;
#endif
}

const char *kn_isa_name(enum kn_isa isa)
{
    static const char *const name[KN_ISA_COUNT] = { "scalar", "avx2", "avx512", "avx512vbmi" };
    return name[isa];
}

/* ---- memory under a cgroup's limits ------------------------------------------------------------ */

/* The number after `key` in a small kernel file; key "": the first number.  Returns `otherwise` when there is
 * none ("max", absent, unreadable). */
static size_t read_number(const char *path, const char *key, size_t otherwise)
{
    char line[128];
    size_t n = strlen(key);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        char *end, *at = line + n;
        if (strncmp(line, key, n) != 0 || (n && *at != ' '))
            continue;
        unsigned long long v = strtoull(at, &end, 10);
        if (end != at)
            otherwise = (size_t)v;
        break;
    }
    if (f)
        fclose(f);
    return otherwise;
}

/* cgroup v1 and v2 differ in names only. */
struct hierarchy {
    const char *controller, *folder, *limit, *usage, *cache;
};
static const struct hierarchy v1 = { "memory", "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_inactive_file" };
static const struct hierarchy v2 = { "", "", "memory.max", "memory.current", "inactive_file" };

/* Lowers *room to the fewest free bytes under the limits of a group and of its ancestors, and *limit to the lowest
 * limit. Inactive page cache of a group counts as free: the kernel reclaims it first. */
static void visit_groups(const struct hierarchy *h, const char *mount, char *group, size_t *limit, size_t *room)
{
    char path[1200];
    for (;;) {
        int n = snprintf(path, 1100, "%s%s%s/", mount, h->folder, group);
        if (n < 1100) {
            strcpy(path + n, h->limit);
            size_t most = read_number(path, "", SIZE_MAX);
            strcpy(path + n, h->usage);
            size_t used = read_number(path, "", 0);
            strcpy(path + n, "memory.stat");
            size_t cache = read_number(path, h->cache, 0);
            used -= cache < used ? cache : used;
            size_t left = most > used ? most - used : 0;
            if (most < *limit)
                *limit = most;
            if (most != SIZE_MAX && left < *room)
                *room = left;
        }
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

/* The path in a line of /proc/self/cgroup, if the line is that of the controller, else NULL.  The line is
 * number:controllers:path; that of cgroup v2 has number 0 and names no controllers, so its controller is "". */
static char *group_path(char *line, const char *controller)
{
    char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
    if (!path)
        return NULL;
    *path++ = 0;
    path[strcspn(path, "\n")] = 0;
    if (!*controller)
        return names[1] ? NULL : path;
    for (char *rest = names + 1, *name; (name = strsep(&rest, ","));)
        if (!strcmp(name, controller))
            return path;
    return NULL;
}

size_t kn_cgroup_room(const char *groups, const char *mount, size_t *limit)
{
    char line[1024], copy[1024];
    size_t room = SIZE_MAX;
    *limit = SIZE_MAX;
    FILE *f = fopen(groups, "re");
    while (f && fgets(line, sizeof line, f)) {
        const struct hierarchy *const both[] = { &v1, &v2 };
        for (int i = 0; i < 2; i++) {
            char *group = group_path(strcpy(copy, line), both[i]->controller);
            if (group)
                visit_groups(both[i], mount, group, limit, &room);
        }
    }
    if (f)
        fclose(f);
    return room;
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

/* ---- processors, and their nodes ------------------------------------------------------------------ */

void kn_cpus_get(struct kn_cpus *out)
{
    int node_of[CPU_SETSIZE], n = 0;
    cpu_set_t may;
    *out = (struct kn_cpus){ .n_node = 1, .node = { -1 }, .first = { 0, 1 }, .cpu = { -1 } };
    if (sched_getaffinity(0, sizeof may, &may) != 0)
        return;
    kn_io()->cpu_nodes(node_of, CPU_SETSIZE);
    for (int k = 0, last = INT_MIN; n < CPU_COUNT(&may); k++) {
        int next = INT_MAX; /* nodes in ascending order; the last entry has all the rest */
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &may) && node_of[cpu] > last && node_of[cpu] < next)
                next = node_of[cpu];
        out->node[k] = last = next;
        out->first[k] = n;
        out->n_node = k + 1;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &may) && (k == KN_NODES - 1 ? node_of[cpu] >= next : node_of[cpu] == next))
                out->cpu[n++] = cpu;
        out->first[k + 1] = n;
    }
}

int kn_machine_stay(int node)
{
    struct kn_cpus cpus;
    cpu_set_t set;
    kn_cpus_get(&cpus);
    kn_assert(node >= 0 && node < cpus.n_node);
    CPU_ZERO(&set);
    for (int i = cpus.first[node]; i < cpus.first[node + 1]; i++)
        if (cpus.cpu[i] >= 0)
            CPU_SET(cpus.cpu[i], &set);
    if (cpus.n_node > 1 && sched_setaffinity(0, sizeof set, &set) != 0)
        return kn_fail(KN_ENODEV, "cannot bind threads to the processors of node %d: %s", node, strerror(errno));
    return 0;
}

void kn_machine_get(struct kn_machine *out)
{
    struct kn_cpus cpus;
    kn_cpus_get(&cpus);
    size_t limit, room = kn_cgroup_room("/proc/self/cgroup", "/sys/fs/cgroup", &limit);
    size_t total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t available = available_bytes(total);
    *out = (struct kn_machine){
        .n_cpu = cpus.first[cpus.n_node],
        .n_node = cpus.n_node,
        .memory_bytes = limit < total ? limit : total,
        .available_bytes = room < available ? room : available,
    };
    memcpy(out->node, cpus.node, sizeof out->node);
}
