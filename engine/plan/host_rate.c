/* engine/plan/host_rate.c - the machine's rates: bytes read from memory, and int8 multiply-adds, per second, by all
 * threads at once.
 *
 * The best of several short passes counts: on a shared machine the least disturbed pass is nearest to the hardware's
 * rate, and an upper bound should be too high rather than too low. The passes take a quarter of a second or more, since
 * the rate of a virtual machine can fall to a half for that long. */
#include "engine/plan/host_rate.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "kernels/pass.h"

#define AREA_BYTES ((size_t)512 << 20) /* largest area */
#define AREA_LEAST ((size_t)4 << 20)   /* smallest area: one pass takes a tenth of a millisecond */
#define PIECE      ((size_t)256 << 10)
#define N_PASS     4          /* at least, */
#define ENOUGH_NS  250000000  /* and until this much time has passed */
#define MACS       100000000L /* of each thread in a pass over the largest area; in proportion for a smaller one */

struct probe {
    const struct kn_ops *ops;
    const uint8_t *area;
    long macs;
};

static void read_piece(void *arg, int item, int thread)
{
    (void)thread;
    const struct probe *p = arg;
    p->ops->probe_read(p->area + (size_t)item * PIECE, PIECE);
}

static void run_macs(void *arg, int item, int thread)
{
    (void)item, (void)thread;
    const struct probe *p = arg;
    p->ops->probe_mac(p->macs);
}

/* The shortest time in s of parallel regions of n items. */
static double best_s(struct kn_team *team, int n, kn_task *fn, void *arg)
{
    double best = 1e30;
    uint64_t start = kn_now_ns(), began = start;
    for (int i = 0; i < N_PASS || began - start < ENOUGH_NS; i++) {
        kn_parallel_for(team, n, fn, arg);
        uint64_t now = kn_now_ns();
        double s = (double)(now - began) / 1e9;
        best = s < best ? s : best;
        began = now;
    }
    return best;
}

uint8_t *eng_rate_area(struct kn_team *team, size_t bytes)
{
    uint8_t *area = kn_map(bytes, -1);
    if (!area) {
        kn_fail(KN_ENOMEM, "no memory to measure with");
        return NULL;
    }
    kn_team_bind(team, area, bytes / PIECE, PIECE);
    for (size_t i = 0; i < bytes; i += 4096)
        area[i] = 1; /* else all pages would be the same zero page */
    return area;
}

int eng_rate_queue(struct kn_queue **out, const struct kn_device *device, struct kn_team *team, bool stages)
{
    return kn_queue_open(out, &(struct kn_queue_options){ .device = device,
                                                          .team = team,
                                                          .max_row = 1,
                                                          .max_pos = 1,
                                                          .n_head = 1,
                                                          .n_kv = 1,
                                                          .d_value = 1,
                                                          .max_product = KN_PRODUCTS,
                                                          .stages = stages });
}

int eng_host_rate_measure(struct eng_rates *out, const struct kn_ops *ops, struct kn_team *team, size_t bytes)
{
    bytes = !bytes || bytes > AREA_BYTES ? AREA_BYTES : bytes < AREA_LEAST ? AREA_LEAST : kn_align_up(bytes, PIECE);
    uint8_t *area = eng_rate_area(team, bytes);
    if (!area)
        return KN_ENOMEM;
    struct probe p = { ops, area, (long)((double)MACS * (double)bytes / (double)AREA_BYTES) };
    out->dram_Bps = (double)bytes / best_s(team, (int)(bytes / PIECE), read_piece, &p);
    out->mac_ps = (double)p.macs * kn_team_size(team) / best_s(team, kn_team_size(team), run_macs, &p);
    kn_unmap(area, bytes);
    return 0;
}

/* ---- one node ------------------------------------------------------------------------------------------ */

struct errand {
    struct eng_rates *out;
    const struct kn_ops *ops;
    int node, error;
};

static void *measure_there(void *arg)
{
    struct errand *e = arg;
    struct kn_team *team;
    if ((e->error = kn_machine_stay(e->node)) || (e->error = kn_team_open(&team, 0)))
        return NULL;
    e->error = eng_host_rate_measure(e->out, e->ops, team, 0);
    kn_team_close(team);
    return NULL;
}

/* Starts a thread to bind to the node, since binding the caller's thread would outlast the measurement. */
int eng_host_rate_measure_node(struct eng_rates *out, const struct kn_ops *ops, int node)
{
    pthread_t thread;
    struct errand e = { out, ops, node, 0 };
    if (pthread_create(&thread, NULL, measure_there, &e) != 0)
        return kn_fail(KN_ENOMEM, "cannot start a thread to measure with");
    pthread_join(thread, NULL);
    return e.error;
}

void eng_processor_name(char *out, size_t size)
{
    static const char key[] = "model name";
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    out[0] = 0;
    while (f && !out[0] && fgets(line, sizeof line, f)) {
        const char *value = strncmp(line, key, sizeof key - 1) ? NULL : strchr(line, ':');
        if (value)
            snprintf(out, size, "%.*s", (int)strcspn(value + 1, "\n"), value + 1);
    }
    if (f)
        fclose(f);
}
