/* engine/cli/cmd_doctor.c - spillway doctor: checks the machine for the engine and suggests fixes.
 *
 * Each finding is one line, or with --json one object: the name of the check, the result and, for a problem, the
 * command that fixes it.  The command changes no setting of the machine.  The disk is measured by reading the file of
 * -m, or without -m an unnamed temporary file in the current folder.  With --mirror a second disk is measured by the
 * model's copy in that folder, or without -m by a temporary file there. */
#include "engine/base/base.h"
#include "engine/cli/cli.h"
#include "engine/cli/text_width.h"
#include "engine/plan/disk_rate.h"
#include "engine/engine.h"
#include "engine/plan/host_rate.h"
#include "engine/plan/link_rate.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TRIAL_BYTES    ((size_t)256 << 20) /* of the temporary file */
#define ENOUGH_MEMLOCK ((rlim_t)1 << 30)   /* read buffers that io_uring registers */
#define SLOW_DISK      1e9                 /* bytes/s: below this rate streaming experts is too slow to use */

/* ---- findings ---------------------------------------------------------------------------------- */

enum state { GOOD, NOTE, BAD }; /* NOTE: works, but could be faster */

struct report {
    bool json;
    int n_bad;
};

static void print_json_string(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            putchar('\\');
        if ((unsigned char)*s >= 0x20)
            putchar(*s);
    }
    putchar('"');
}

/* unit: JSON key of the measured `number`; NULL: there is none.  fix: the suggested command, or NULL. */
struct finding {
    const char *what;
    enum state state;
    const char *text, *unit;
    double number;
    const char *fix;
};

static void say(struct report *r, struct finding f)
{
    static const char *const name[] = { "ok", "note", "bad" };
    r->n_bad += f.state == BAD;
    if (!r->json) {
        int at = printf("%-5s %-10s ", name[f.state], f.what);
        eng_print_wrapped(stdout, at, at, f.text);
        if (f.fix) {
            at = printf("%-16s -> ", "");
            eng_print_wrapped(stdout, at, at, f.fix);
        }
        fflush(stdout);
        return;
    }
    printf("{\"what\":\"%s\",\"state\":\"%s\",\"text\":", f.what, name[f.state]);
    print_json_string(f.text);
    if (f.unit)
        printf(",\"%s\":%.0f", f.unit, f.number);
    if (f.fix) {
        printf(",\"fix\":");
        print_json_string(f.fix);
    }
    printf("}\n");
}

/* Reads the first line of a file of /proc or /sys, without its newline; false if it cannot be read. */
static bool read_line(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(out, (int)size, f);
    if (f)
        fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = 0;
    return ok;
}

static bool read_number(const char *path, long long *out)
{
    char line[64];
    return read_line(path, line, sizeof line) && sscanf(line, "%lld", out) == 1;
}

/* ---- processor --------------------------------------------------------------------------------- */

static void check_isa(struct report *r)
{
    char text[256], missing[128] = "";
    enum kn_isa best = kn_isa_best();
#if defined(__x86_64__)
#define FEATURE(name)                                                                                                  \
    {                                                                                                                  \
#name, __builtin_cpu_supports(#name)                                                                           \
    }
    const struct {
        const char *name;
        bool there;
    } feature[] = {
        FEATURE(avx2),     FEATURE(fma),      FEATURE(bmi2),       FEATURE(avx512f),    FEATURE(avx512bw),
        FEATURE(avx512vl), FEATURE(avx512dq), FEATURE(avx512vnni), FEATURE(avx512vbmi), FEATURE(gfni),
    };
#undef FEATURE
    for (size_t i = 0; i < sizeof feature / sizeof *feature; i++)
        if (!feature[i].there)
            snprintf(missing + strlen(missing), sizeof missing - strlen(missing), " %s", feature[i].name);
#endif
    snprintf(text, sizeof text, "%s is used%s%s", kn_isa_name(best), missing[0] ? "; missing:" : "", missing);
    say(r, (struct finding){ "isa",
                             best == KN_ISA_SCALAR   ? BAD
                             : best >= KN_ISA_AVX512 ? GOOD
                                                     : NOTE,
                             text,
                             .fix = best == KN_ISA_SCALAR
                                        ? "scalar code is ten times slower: use a processor with AVX2; in a "
                                          "virtual machine pass the host's CPU model through"
                                        : NULL });
}

/* The CPU quota of the cgroup in CPUs, or 0 for no limit. */
static double cpu_quota(void)
{
    char line[64];
    double quota, period;
    if (read_line("/sys/fs/cgroup/cpu.max", line, sizeof line) && sscanf(line, "%lf %lf", &quota, &period) == 2 &&
        period > 0)
        return quota / period;
    return 0;
}

static void check_cpus(struct report *r, const struct kn_machine *m)
{
    char text[128], fix[128], governor[64];
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    double quota = cpu_quota();
    snprintf(text, sizeof text, "%d of %ld CPUs are available", m->n_cpu, online);
    say(r, (struct finding){ "cpus", GOOD, text, .unit = "n", .number = m->n_cpu });
    if (quota > 0 && quota < m->n_cpu) {
        snprintf(text, sizeof text, "the container has a quota of %.1f CPUs", quota);
        snprintf(fix, sizeof fix, "use --threads %d: with more, throttled threads make the others wait",
                 kn_max(1, (int)quota));
        say(r, (struct finding){ "cpu quota", BAD, text, .fix = fix });
    }
    if (read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor, sizeof governor) &&
        !strcmp(governor, "powersave"))
        say(r, (struct finding){ "governor", NOTE, "the CPU frequency governor is powersave",
                                 .fix = "sudo cpupower frequency-set -g performance" });
}

static void check_nodes(struct report *r, const struct kn_machine *m)
{
    char text[128], list[64] = "0";
    long long balancing = 0;
    bool moves = m->n_node > 1 && read_number("/proc/sys/kernel/numa_balancing", &balancing) && balancing;
    read_line("/sys/devices/system/node/has_memory", list, sizeof list);
    bool refused = m->node[0] < 0 && list[strcspn(list, ",-")];
    if (refused)
        snprintf(text, sizeof text, "nodes %s have memory, but placing memory on a node is refused", list);
    else
        snprintf(text, sizeof text, "%d NUMA node%s%s", m->n_node, m->n_node > 1 ? "s" : "",
                 moves ? ", and the kernel moves pages between them" : "");
    say(r, (struct finding){ "numa", moves || refused ? NOTE : GOOD, text, "n", m->n_node,
                             moves     ? "sudo sysctl kernel.numa_balancing=0"
                             : refused ? "a seccomp filter or a cpuset forbids it: use docker run --cap-add SYS_NICE"
                                       : NULL });
}

/* ---- memory ------------------------------------------------------------------------------------ */

static void check_memory(struct report *r, const struct kn_machine *m)
{
    char text[160];
    size_t physical = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    int n = snprintf(text, sizeof text, "%.1f GiB free of %.1f", (double)m->available_bytes / 0x1p30,
                     (double)physical / 0x1p30);
    if (m->memory_bytes < physical)
        snprintf(text + n, sizeof text - (size_t)n, ", the container is limited to %.1f",
                 (double)m->memory_bytes / 0x1p30);
    say(r, (struct finding){ "memory", GOOD, text, .unit = "bytes", .number = (double)m->available_bytes });
}

static void check_huge_pages(struct report *r)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    char line[128], text[160];
    if (!read_line(path, line, sizeof line)) {
        say(r, (struct finding){ "huge pages", NOTE, "this kernel has no transparent huge pages", .fix = NULL });
        return;
    }
    bool never = strstr(line, "[never]") != NULL;
    snprintf(text, sizeof text, "transparent huge pages: %s", line);
    say(r, (struct finding){ "huge pages", never ? NOTE : GOOD, text,
                             .fix = never ? "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
                                          : NULL });
}

static void check_memlock(struct report *r)
{
    char text[128];
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    bool little = limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < ENOUGH_MEMLOCK && geteuid() != 0;
    if (limit.rlim_cur == RLIM_INFINITY)
        snprintf(text, sizeof text, "locked memory is unlimited");
    else
        snprintf(text, sizeof text, "at most %.0f MiB of memory can be locked", (double)limit.rlim_cur / 0x1p20);
    say(r, (struct finding){ "memlock", little ? NOTE : GOOD, text, "bytes", (double)limit.rlim_cur,
                             little ? "ulimit -l 1048576; for a service LimitMEMLOCK=1G; for a user a memlock line in "
                                      "/etc/security/limits.conf"
                                    : NULL });
}

/* Measures the memory rate of each NUMA node alone: a slower node has fewer or slower memory modules than the
 * others. */
static void check_node_rates(struct report *r)
{
    struct kn_machine m;
    struct eng_rates rates;
    char text[128];
    kn_machine_get(&m);
    for (int k = 0; m.n_node > 1 && k < m.n_node; k++) {
        if (eng_host_rate_measure_node(&rates, kn_ops(KN_ISA_COUNT - 1), k) != 0)
            return;
        snprintf(text, sizeof text, "%.1f GB/s from node %d by its own CPUs", rates.dram_Bps * 1e-9, m.node[k]);
        say(r, (struct finding){ "dram node", GOOD, text, .unit = "Bps", .number = rates.dram_Bps });
    }
}

static void check_rates(struct report *r, const struct eng_config *config)
{
    struct kn_team *team;
    struct eng_rates rates;
    char text[128];
    if (kn_team_open(&team, config->n_thread) < 0)
        return;
    if (eng_host_rate_measure(&rates, kn_ops(KN_ISA_COUNT - 1), team, 0) == 0) {
        const char *threads = kn_team_size(team) > 1 ? "threads" : "thread";
        snprintf(text, sizeof text, "%.1f GB/s read by %d %s", rates.dram_Bps * 1e-9, kn_team_size(team), threads);
        say(r, (struct finding){ "dram", GOOD, text, .unit = "Bps", .number = rates.dram_Bps });
        snprintf(text, sizeof text, "%.0f G int8 multiply-adds/s by %d %s", rates.mac_ps * 1e-9, kn_team_size(team),
                 threads);
        say(r, (struct finding){ "arithmetic", GOOD, text, .unit = "mac_ps", .number = rates.mac_ps });
    }
    kn_team_close(team);
}

/* ---- disk -------------------------------------------------------------------------------------- */

static void check_io_uring(struct report *r)
{
    struct io_uring ring;
    char text[160];
    const char *fix = NULL;
    long long disabled = 0;
    int e = io_uring_queue_init(8, &ring, 0);
    if (e == 0) {
        io_uring_queue_exit(&ring);
        say(r, (struct finding){ "io_uring", GOOD, "works", .fix = NULL });
        return;
    }
    read_number("/proc/sys/kernel/io_uring_disabled", &disabled);
    if (disabled > 0)
        fix = "sudo sysctl kernel.io_uring_disabled=0";
    else if (e == -EPERM || e == -EACCES)
        fix = "a seccomp filter forbids it: allow io_uring_setup, io_uring_enter and io_uring_register in the "
              "container's profile";
    else if (e == -ENOSYS)
        fix = "the kernel or a seccomp filter does not know io_uring: use Linux 5.6 or later";
    else if (e == -ENOMEM)
        fix = "ulimit -l 1048576: the limit of locked memory is too small";
    snprintf(text, sizeof text, "refused: %s%s; pread threads are used instead", strerror(-e),
             disabled > 0 ? " (kernel.io_uring_disabled is set)" : "");
    say(r, (struct finding){ "io_uring", NOTE, text, .fix = fix });
}

static const char no_direct[] = "this file system has no O_DIRECT";
static const char move_models[] = "put models on ext4 or xfs, on a local disk";

static void measure_depths(struct report *r, const char *what, const char *path, int fd)
{
    static const int depth[] = { 1, 4, 16 };
    char text[256] = "";
    double rate = 0;
    for (int i = 0; i < 3; i++) {
        int e = eng_disk_rate(path, fd, depth[i], ENG_DISK_BYTES, &rate);
        if (e == KN_EUNSUPPORTED)
            say(r, (struct finding){ what, BAD, no_direct, .fix = move_models });
        if (e == KN_ESHORT)
            say(r, (struct finding){ what, NOTE, "not measured: the file has less than 1 MiB",
                                     .fix = "give a larger model with -m, or no -m" });
        if (e < 0)
            return;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.2f GB/s with %d read%s at once", i ? ", " : "",
                 rate * 1e-9, depth[i], i ? "s" : "");
    }
    bool slow = rate < SLOW_DISK;
    say(r, (struct finding){
               what, slow ? NOTE : GOOD, text, "Bps", rate,
               slow ? "below 1 GB/s models load slowly; experts that do not fit in memory need a local NVMe disk"
                    : NULL });
}

/* Opens the model's file or, if model is NULL, a temporary file in the folder.  KN_EUNSUPPORTED: no O_DIRECT, or the
 * folder's file system allows no such temporary file. */
static int open_disk(const char *folder, const char *model, int *fd)
{
    if (!model)
        return eng_disk_trial(folder, TRIAL_BYTES, fd);
    *fd = kn_io()->open(model, O_RDONLY | O_DIRECT | O_CLOEXEC, 0);
    if (*fd >= 0)
        return 0;
    return errno == EINVAL ? KN_EUNSUPPORTED : kn_fail(KN_ENOENT, "%s: %s", model, strerror(errno));
}

static void check_disk(struct report *r, const char *what, const char *folder, const char *model)
{
    int fd = -1, e = open_disk(folder, model, &fd);
    if (e == KN_EUNSUPPORTED && model)
        say(r, (struct finding){ what, BAD, no_direct, .fix = move_models });
    else if (e == KN_EUNSUPPORTED)
        say(r, (struct finding){ what, NOTE, "not measured: no file can be created here", .fix = "give -m MODEL" });
    if (e < 0)
        return;
    measure_depths(r, what, model ? model : folder, fd);
    kn_file_close(fd);
}

static void check_mirror(struct report *r, const struct eng_config *config)
{
    char copy[ENG_PATH_BYTES];
    if (config->model && !eng_disk_copy(copy, config->mirror, config->model))
        say(r, (struct finding){ "mirror", NOTE, "no copy of the model in the folder of --mirror",
                                 .fix = "copy the model's file, or its .experts file, to that folder" });
    else
        check_disk(r, "mirror", config->mirror, config->model ? copy : NULL);
}

/* ---- device ------------------------------------------------------------------------------------ */

/* Opens the device, which compares its results with the host's, and measures copies to it. */
static void check_link(struct report *r, int number, const struct eng_config *config)
{
    const struct kn_device *device = NULL;
    struct kn_team *team = NULL;
    struct eng_link_rate link;
    char name[24], text[256];
    snprintf(name, sizeof name, "cuda:%d", number);
    int error = kn_team_open(&team, config->n_thread);
    if (!error)
        error = kn_device_open(&device, name, KN_ISA_COUNT - 1);
    if (!error)
        error = eng_link_rate_measure(&link, device, team);
    if (error)
        snprintf(text, sizeof text, "%s cannot be used: %s", name, kn_error_text(error));
    else if (link.refused)
        snprintf(text, sizeof text, "%s: %.1f GB/s through a buffer; the driver pins no memory (%s)", name,
                 link.other_Bps * 1e-9, link.refused);
    else
        snprintf(text, sizeof text, "%s: %.1f GB/s from pinned memory, %.1f GB/s from other memory", name,
                 link.pinned_Bps * 1e-9, link.other_Bps * 1e-9);
    say(r, (struct finding){ "gpu link",
                             error          ? BAD
                             : link.refused ? NOTE
                                            : GOOD,
                             text, .unit = error ? NULL : "Bps",
                             .number = error          ? 0
                                       : link.refused ? link.other_Bps
                                                      : link.pinned_Bps,
                             .fix = error ? "leave --device out" : NULL });
    kn_device_close(device);
    kn_team_close(team);
}

static void check_devices(struct report *r, const struct eng_config *config)
{
    char text[192];
    int n = kn_device_count();
    if (!kn_device_built())
        say(r, (struct finding){ "gpu", NOTE, "this program is built without CUDA",
                                 .fix = "if this machine has an NVIDIA GPU, build the program with nvcc installed" });
    else if (n < 1)
        say(r, (struct finding){
                   "gpu", NOTE, kn_device_why(),
                   .fix = "nvidia-smi should list a GPU: load or renew the driver, or pass the device to the "
                          "container" });
    for (int i = 0; i < n; i++) {
        struct kn_device_info d;
        if (kn_device_get(i, &d) < 0)
            continue;
        bool fits = d.compute_major >= 8;
        int at = snprintf(text, sizeof text, "%d: %s, %.1f GiB, compute %d.%d; ", i, d.name,
                          (double)d.memory_bytes / 0x1p30, d.compute_major, d.compute_minor);
        snprintf(text + at, sizeof text - (size_t)at, fits ? "used with --device cuda:%d" : "8.0 is needed", i);
        say(r, (struct finding){ "gpu", fits ? GOOD : NOTE, text, .unit = "bytes", .number = (double)d.memory_bytes });
        if (fits)
            check_link(r, i, config);
    }
}

/* Checks that path is a readable file or folder. */
static int check_model(const char *path)
{
    int fd, error = kn_file_open_read(&fd, path);
    if (error)
        return error;
    if (kn_io()->size(fd) < 0 && errno != EISDIR)
        error = kn_fail_size(path);
    kn_file_close(fd);
    return error;
}

int eng_cmd_doctor(const struct eng_config *config)
{
    struct report r = { .json = config->json };
    struct kn_machine m;
    if (config->model && check_model(config->model))
        return 2;
    kn_device_keep_tests(NULL); /* devices are compared now */
    kn_machine_get(&m);
    check_isa(&r);
    check_cpus(&r, &m);
    check_nodes(&r, &m);
    check_memory(&r, &m);
    check_huge_pages(&r);
    check_memlock(&r);
    check_io_uring(&r);
    check_devices(&r, config);
    check_rates(&r, config);
    check_node_rates(&r);
    check_disk(&r, "disk", ".", config->model);
    if (config->mirror)
        check_mirror(&r, config);
    return r.n_bad > 0 ? 1 : 0;
}
