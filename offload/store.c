/* The expert store as a whole: opening, closing, queries. */
#include "offload/store.h"

#include <string.h>

static int open_pools(struct off_store *s)
{
    s->slot = kn_calloc((size_t)s->n_listed, sizeof *s->slot);
    s->victim = kn_calloc((size_t)s->n_listed, sizeof *s->victim);
    if (!s->slot || !s->victim)
        return kn_fail(KN_ENOMEM, "no memory to list %d slots", s->n_listed);
    for (int i = 0; i < s->n_pool; i++) {
        struct off_pool *p = &s->pool[i];
        size_t bytes = (size_t)p->n_listed * p->slot_bytes; /* address space; memory is allocated on touch */
        if (bytes && !(p->memory = kn_map(bytes, s->machine.node[p->node])))
            return kn_fail(KN_ENOMEM, "no memory for %zu MiB of experts: lower --host-mem", bytes >> 20);
        for (int k = 0; k < p->n_listed; k++) {
            struct off_slot *slot = &s->slot[p->slot0 + k];
            slot->place = (uint8_t *)p->memory + (size_t)k * p->slot_bytes;
            slot->expert = -1;
        }
    }
    return 0;
}

static int list_experts(struct off_store *s, const struct off_store_options *opt)
{
    size_t n = (size_t)opt->n_expert;
    s->expert = kn_calloc(n, sizeof *s->expert);
    s->slot_of = kn_calloc(n, sizeof *s->slot_of);
    s->pool_of = kn_calloc(n, sizeof *s->pool_of);
    s->spared = kn_calloc(n, sizeof *s->spared);
    s->fill = kn_calloc(n, sizeof *s->fill);
    s->extent = kn_calloc(n, sizeof *s->extent);
    s->check = kn_calloc(n, sizeof *s->check);
    s->known = kn_calloc(n, sizeof *s->known);
    s->copy_of = kn_calloc(n, sizeof *s->copy_of);
    if (!s->expert || !s->slot_of || !s->pool_of || !s->spared || !s->fill || !s->extent || !s->check || !s->known ||
        !s->copy_of)
        return kn_fail(KN_ENOMEM, "no memory to list %d experts", opt->n_expert);
    memcpy(s->expert, opt->expert, n * sizeof *s->expert);
    s->n_expert = opt->n_expert;
    s->n_filed = opt->n_expert - opt->n_beside;
    kn_machine_get(&s->machine);
    s->n_pool = off_share_pools(s->expert, s->n_expert, s->machine.n_node, s->pool, s->pool_of);
    for (int e = 0; e < s->n_expert; e++) {
        s->slot_of[e] = -1;
        for (int i = 0; i < OFF_MATRICES; i++) {
            const struct off_source *m = &s->expert[e].matrix[i];
            size_t scratch = m->n_out ? off_scratch_bytes(m, 1) : 0;
            s->scratch_bytes = scratch > s->scratch_bytes ? scratch : s->scratch_bytes;
        }
    }
    return 0;
}

/* Lists the model's files, then its pack file if it has a usable one, which is opened here. */
static int list_files(struct off_store *s, const struct off_store_options *opt)
{
    size_t n = (size_t)opt->files.n_file;
    s->fd = kn_calloc(n + 1, sizeof *s->fd);
    s->path = kn_calloc(n + 1, sizeof *s->path);
    s->pack_path = opt->pack_path ? kn_strdup(opt->pack_path) : NULL;
    if (!s->fd || !s->path || (opt->pack_path && !s->pack_path))
        return kn_fail(KN_ENOMEM, "no memory to list %zu files", n);
    memcpy(s->fd, opt->files.fd, n * sizeof *s->fd);
    memcpy(s->path, opt->files.path, n * sizeof *s->path);
    int error = s->pack_path ? off_pack_open(&s->pack_fd, s->pack_path, opt->model_id, s->expert, s->n_filed, s->extent)
                             : 0;
    s->fd[n] = s->pack_fd;
    s->path[n] = s->pack_path;
    s->n_file = (int)n;
    s->mirror = opt->files.mirror;
    s->stats.n_packed = s->pack_fd < 0 ? 0 : (uint64_t)s->n_filed;
    for (int e = 0; s->pack_fd >= 0 && e < s->n_filed; e++) {
        s->check[e] = s->extent[e].check;
        s->known[e] = OFF_KNOWN_PACKED;
    }
    return error ? error : off_watch_open(&s->watch, &opt->files);
}

static void close_heat(struct off_heat *h)
{
    kn_free(h->id);
    kn_free(h->share);
    kn_free(h->check);
}

/* Arrays for reading or writing the heat file, with the identity of the model's files.  False: no memory. */
static bool open_heat(struct off_store *s, struct off_heat *h)
{
    *h = (struct off_heat){ .model_id = s->model_id, .n_expert = s->n_filed, .n_file = s->n_file };
    h->id = kn_calloc((size_t)s->n_file, sizeof *h->id);
    h->share = kn_calloc((size_t)s->n_filed, sizeof *h->share);
    h->check = kn_calloc((size_t)s->n_filed, sizeof *h->check);
    if (!h->id || !h->share || !h->check) {
        close_heat(h);
        return false;
    }
    for (int i = 0; i < s->n_file; i++)
        off_watch_id(s->watch, i, &h->id[i]);
    return true;
}

/* The checksum that an earlier process learnt of an expert in the model's own files.  If the pack file has another one,
 * its bytes are not the model's. */
static void recall_check(struct off_store *s, int32_t expert, uint64_t check)
{
    if (s->extent[expert].bytes && s->extent[expert].check != check)
        off_expert_unpack(s, expert);
    s->check[expert] = check;
    s->known[expert] = OFF_KNOWN_OWN;
}

/* Loads statistics and checksums of earlier runs of the program.  The filler starts with the experts most likely to be
 * used. */
static int recall(struct off_store *s, const struct off_store_options *opt)
{
    struct off_heat h;
    s->model_id = opt->model_id;
    if (!opt->heat_path)
        return 0;
    s->heat_path = kn_strdup(opt->heat_path);
    if (!s->heat_path || !open_heat(s, &h))
        return kn_fail(KN_ENOMEM, "no memory to load the statistics of %d experts", s->n_filed);
    bool found = off_heat_read(s->heat_path, &h), checks = false;
    for (int32_t e = 0; found && e < s->n_filed; e++) {
        off_policy_set_share(s->policy, e, h.share[e]);
        checks |= h.check[e] != 0;
        if (h.check[e])
            recall_check(s, e, h.check[e]);
    }
    for (int i = 0; checks && i < s->n_file; i++)
        off_watch_compare(s->watch, i, &h.id[i]);
    close_heat(&h);
    return 0;
}

static void remember(struct off_store *s)
{
    struct off_heat h;
    if (!s->heat_path || !(s->stats.hits + s->stats.misses) || !open_heat(s, &h))
        return;
    for (int32_t e = 0; e < s->n_filed; e++) {
        h.share[e] = off_policy_share(s->policy, e);
        h.check[e] = s->known[e] == OFF_KNOWN_OWN ? s->check[e] : 0;
    }
    off_heat_write(s->heat_path, &h);
    close_heat(&h);
}

int off_store_open(struct off_store **out, const struct off_store_options *opt)
{
    size_t least = off_store_least(opt->expert, opt->n_expert);
    size_t bytes = opt->slot_bytes ? opt->slot_bytes : SIZE_MAX;
    if (bytes < least)
        return kn_fail(KN_ELIMIT,
                       "experts need at least %zu MiB, and %zu MiB are left: raise "
                       "--host-mem",
                       (least + (1 << 20) - 1) >> 20, bytes >> 20);
    struct off_store *s = kn_calloc(1, sizeof *s);
    if (!s)
        return kn_fail(KN_ENOMEM, "no memory for the expert store");
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->ending, &clock);
    pthread_condattr_destroy(&clock);
    pthread_cond_init(&s->pinnable, NULL);
    pthread_mutex_init(&s->lock, NULL);
    s->pack_fd = -1;
    int error = list_experts(s, opt);
    if (error || (error = list_files(s, opt)))
        goto fail;
    off_share_slots(s, bytes, opt->later_bytes);
    if ((error = open_pools(s)) || (error = off_policy_open(&s->policy, s->expert, s->n_expert)) ||
        (error = recall(s, opt)) || (error = off_fill_order(s)) ||
        (error = off_io_open(&s->io, &(struct off_files){ s->n_file + (s->pack_fd >= 0), s->fd, s->path, s->mirror },
                             &(struct off_io_options){ .kind = opt->io })))
        goto fail;
    if (pthread_create(&s->filler, NULL, off_fill_main, s) != 0) {
        error = kn_fail(KN_ENOMEM, "cannot start the thread that fills slots");
        goto fail;
    }
    s->fills = true;
    while (s->n_toucher < kn_min(OFF_TOUCHERS, s->machine.n_cpu) && /* with fewer threads only speed is lost */
           pthread_create(&s->toucher[s->n_toucher], NULL, off_touch_main, s) == 0)
        s->n_toucher++;
    *out = s;
    return 0;
fail:
    off_store_close(s);
    return error;
}

void off_store_close(struct off_store *s)
{
    if (!s)
        return;
    if (s->fills) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_broadcast(&s->ending);
        pthread_cond_broadcast(&s->pinnable);
        pthread_mutex_unlock(&s->lock);
        off_io_nudge(s->io);
        pthread_join(s->filler, NULL);
        while (s->n_toucher > 0)
            pthread_join(s->toucher[--s->n_toucher], NULL);
    }
    remember(s);
    off_io_close(s->io);
    off_pin_close(s);
    off_watch_close(s->watch);
    off_policy_close(s->policy);
    kn_file_close(s->pack_fd);
    kn_free(s->heat_path);
    kn_free(s->pack_path);
    for (int i = 0; i < s->n_pool; i++)
        kn_unmap(s->pool[i].memory, (size_t)s->pool[i].n_listed * s->pool[i].slot_bytes);
    pthread_cond_destroy(&s->pinnable);
    pthread_cond_destroy(&s->ending);
    pthread_mutex_destroy(&s->lock);
    kn_free(s->victim);
    kn_free(s->slot);
    kn_free(s->path);
    kn_free(s->fd);
    kn_free(s->copy_of);
    kn_free(s->known);
    kn_free(s->check);
    kn_free(s->extent);
    kn_free(s->fill);
    kn_free(s->spared);
    kn_free(s->pool_of);
    kn_free(s->slot_of);
    kn_free(s->expert);
    kn_free(s);
}

void off_store_forget(struct off_store *s, int32_t first, int n)
{
    pthread_mutex_lock(&s->lock);
    for (int32_t e = first; e < first + n; e++)
        off_policy_set_share(s->policy, e, 0);
    pthread_mutex_unlock(&s->lock);
}

void off_store_shares(struct off_store *s, int32_t first, int n, float *out)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++)
        out[i] = off_policy_share(s->policy, first + i);
    pthread_mutex_unlock(&s->lock);
}

/* ---- queries ------------------------------------------------------------------------------------------ */

bool off_store_is_whole(struct off_store *s)
{
    pthread_mutex_lock(&s->lock);
    bool whole = s->n_slot == s->n_expert && s->n_empty == 0;
    pthread_mutex_unlock(&s->lock);
    return whole;
}

int off_store_absent(struct off_store *s, const int32_t *expert, int n, int32_t *out)
{
    int n_out = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        int32_t at = s->slot_of[expert[i]];
        if (at < 0 || (s->slot[at].state == SLOT_READING && !off_slot_begun(&s->slot[at])))
            out[n_out++] = expert[i];
    }
    pthread_mutex_unlock(&s->lock);
    return n_out;
}

void off_store_present(struct off_store *s, int32_t first, int n, bool *there)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        int32_t at = s->slot_of[first + i];
        if (at >= 0)
            off_slot_settle(s, &s->slot[at]);
        there[i] = off_slot_is_there(s, first + i);
    }
    pthread_mutex_unlock(&s->lock);
}

const char *off_store_io(const struct off_store *s) { return off_io_name(s->io); }

void off_stats_get(struct off_store *s, struct off_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->reads -= s->doubt.reads;
    out->read_bytes -= s->doubt.read_bytes;
    out->soon_reads -= s->doubt.soon_reads;
    out->early_bytes -= s->doubt.early_bytes;
    out->mirror_bytes = off_mirror_read(s->mirror);
    out->n_slot = (uint64_t)s->n_slot;
    out->n_expert = (uint64_t)s->n_expert;
    out->n_empty = (uint64_t)s->n_empty;
    out->filling = !s->filled;
    for (int i = 0; i < s->n_pool; i++) {
        out->slot_bytes += (uint64_t)s->pool[i].n_slot * s->pool[i].slot_bytes;
        out->pinned_bytes += (uint64_t)s->pool[i].n_pinned * s->pool[i].slot_bytes;
    }
    out->pin_refused = s->pin_refused;
    out->pinning = s->pin_device && !s->pin_refused && out->pinned_bytes < out->slot_bytes;
    out->changed = s->damaged || off_watch_changed(s->watch);
    pthread_mutex_unlock(&s->lock);
}

void off_store_look(struct off_store *s, struct off_spot *out)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_listed; i++)
        off_slot_settle(s, &s->slot[i]);
    for (int32_t e = 0; e < s->n_expert; e++) {
        bool coming = s->slot_of[e] >= 0 && s->slot[s->slot_of[e]].state == SLOT_READING;
        out[e] = (struct off_spot){ s->expert[e].group, off_slot_is_there(s, e) ? OFF_HOST : OFF_DISK, coming,
                                    off_policy_heat(s->policy, e) };
    }
    pthread_mutex_unlock(&s->lock);
}

void off_store_record(struct off_store *s, struct off_trace *t)
{
    pthread_mutex_lock(&s->lock);
    s->trace = t;
    pthread_mutex_unlock(&s->lock);
}

int off_store_least_read(struct off_store *s, const struct off_trace *t, struct off_least *out)
{
    bool *counts = kn_calloc((size_t)s->n_expert, sizeof *counts);
    int error = counts ? 0 : kn_fail(KN_ENOMEM, "no memory to count %d experts", s->n_expert);
    *out = (struct off_least){ 0 };
    for (int pool = 0; pool < s->n_pool && !error; pool++) {
        uint64_t misses = 0, by_share = 0, each = 0;
        for (int e = 0; e < s->n_expert; e++) {
            counts[e] = s->pool_of[e] == pool;
            if (counts[e])
                each = off_slot_bytes_read(s, e);
        }
        pthread_mutex_lock(&s->lock);
        int n_slot = s->pool[pool].n_slot;
        pthread_mutex_unlock(&s->lock);
        error = off_trace_least(t, counts, s->n_expert, n_slot, &misses);
        if (!error)
            error = off_trace_by_share(t, s->expert, counts, s->n_expert, n_slot, &by_share);
        out->optimal_bytes += misses * each;
        out->by_share_bytes += by_share * each;
    }
    kn_free(counts);
    return error;
}
