/* moe/pass/slot_pools.c - the slots for experts in the memory of a device: pools by size.
 *
 * Files mix formats: in half of the layers of a Q4_K_M file the down matrices are Q6_K, the others Q4_K.  Slots of the largest
 * expert's size would leave a part of most slots unused.  So the experts of each size have slots of this size, a pool.  Slots are
 * dealt out one by one, to the pool in which the smallest share of the experts can stay, as long as the memory has room for one.
 * A model with experts of one size has one pool.
 *
 * The slots of a pool are of two kinds: the first n for experts that stay, the others for experts that are copied for one
 * layer, the window.  The window is a part of the pool, since the two kinds exchange slots (residents.c).  A pool with
 * slots for all of its experts, or with only one, has no window.  If experts of the first layers may not stay (n_host_layer) a pool
 * has at most a slot for each of the others and a window: also for experts of a size that only the first layers have. */
#include "moe/pass/pass.h"

#include <math.h>

#define LEAST_SLOT  2  /* of a pool, if its experts are as many, before the others get more: one to stay and a window */
#define WINDOW_PART 8  /* a window is at most this part of a pool */
#define WINDOW_IDLE 64 /* passes without need of more, after which it has so few again */

int32_t moe_first_resident(const struct moe_model *m, int n_host_layer)
{
    int32_t first = 0;
    for (int i = 0; i < kn_min(n_host_layer, m->desc.n_layer); i++)
        if (m->layer[i].router.n_out)
            first = m->layer[i].expert0 + m->desc.n_expert;
    return first;
}

int moe_slot_pool_window(const struct moe_slot_pool *p, int most)
{
    int n = kn_min(kn_max(p->n_slot / WINDOW_PART, 1), most), others = p->n_slot - p->n_may;
    return kn_max(p->n_slot < p->n_expert ? kn_min(kn_min(n, p->n_slot / 2), p->n_layer_expert) : 0, others);
}

/* ---- how many slots each pool has ------------------------------------------------------------------------------- */

/* Lists pools without slots.  Returns their number; 0 if no expert may stay. */
static int list_pools(const struct moe_model *m, int32_t first, struct moe_slot_pool *pool)
{
    const struct off_sizes *sizes = &m->resident_sizes;
    for (int i = 0; i < sizes->n; i++)
        pool[i] = (struct moe_slot_pool){ .slot_bytes = sizes->bytes[i], .n_layer_expert = m->desc.n_expert };
    if (first >= m->shape.n_expert_total)
        return 0;
    for (int32_t e = 0; sizes->n && e < m->shape.n_expert_total; e++) {
        struct moe_slot_pool *p = &pool[m->resident_size_of[e]];
        p->n_expert++;
        p->n_may += e >= first;
    }
    for (int i = 0; i < sizes->n; i++)
        pool[i].n_most = kn_min(pool[i].n_expert, pool[i].n_may + kn_min(MOE_WINDOW_LEAST, m->desc.n_expert));
    return sizes->n;
}

static int n_staying(const struct moe_slot_pool *p) { return p->n_slot - moe_slot_pool_window(p, MOE_WINDOW_LEAST); }

/* Whether pool a gets a slot before pool b: the smallest share of the experts that may stay, or of a window where none may. */
static bool comes_first(const struct moe_slot_pool *a, const struct moe_slot_pool *b)
{
    bool few = a->n_slot < LEAST_SLOT;
    if (few != (b->n_slot < LEAST_SLOT))
        return few;
    int64_t n_a = a->n_may ? n_staying(a) : a->n_slot, of_a = a->n_may ? a->n_may : a->n_most;
    int64_t n_b = b->n_may ? n_staying(b) : b->n_slot, of_b = b->n_may ? b->n_may : b->n_most;
    return n_a * of_b < n_b * of_a;
}

static size_t least_bytes(const struct moe_slot_pool *pool, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += pool[i].n_most ? pool[i].slot_bytes : 0;
    return bytes;
}

/* The pool that gets the next slot; NULL: no pool lacks one that fits. */
static struct moe_slot_pool *next_pool(struct moe_slot_pool *pool, int n, size_t left)
{
    struct moe_slot_pool *next = NULL;
    for (int i = 0; i < n; i++)
        if (pool[i].n_slot < pool[i].n_most && pool[i].slot_bytes <= left && (!next || comes_first(&pool[i], next)))
            next = &pool[i];
    return next;
}

/* Deals out slots.  Returns their bytes; with just so many every step has the same outcome. */
static size_t deal_slots(struct moe_slot_pool *pool, int n, size_t bytes)
{
    size_t left = bytes;
    if (bytes < least_bytes(pool, n))
        return 0;
    for (struct moe_slot_pool *next; (next = next_pool(pool, n, left)) != NULL; left -= next->slot_bytes)
        next->n_slot++;
    return bytes - left;
}

void moe_device_slots(const struct moe_model *m, const struct moe_context_options *opt, struct moe_device_slots *out)
{
    struct moe_slot_pool pool[OFF_SLOT_SIZES];
    int n = list_pools(m, moe_first_resident(m, opt->n_host_layer), pool);
    *out = (struct moe_device_slots){ .least = least_bytes(pool, n),
                                      .bytes = deal_slots(pool, n, opt->resident_bytes) };
    for (int i = 0; i < n; i++) {
        out->n_expert += pool[i].n_may;
        out->expert_bytes += (size_t)pool[i].n_most * pool[i].slot_bytes;
        out->n_slot += pool[i].n_slot;
        out->n_stay += n_staying(&pool[i]);
    }
}

void moe_slot_pools_share(struct moe_residents *r, const struct moe_model *m, const struct moe_context_options *opt)
{
    r->first = moe_first_resident(m, opt->n_host_layer);
    r->n_pool = list_pools(m, r->first, r->pool);
    deal_slots(r->pool, r->n_pool, opt->resident_bytes);
    r->n_slot = 0;
    for (int i = 0; i < r->n_pool; i++) {
        struct moe_slot_pool *p = &r->pool[i];
        p->first = r->n_slot;
        p->n_window = moe_slot_pool_window(p, MOE_WINDOW_LEAST);
        p->n = p->n_slot - p->n_window;
        r->n_slot += p->n_slot;
        r->has_window |= p->n_window > 0;
    }
}

/* ---- a pool's window, and its coldest expert -------------------------------------------------------------------- */

void moe_slot_pool_shrink_window(struct moe_residents *r, struct moe_slot_pool *p, int n_layer)
{
    int least = moe_slot_pool_window(p, MOE_WINDOW_LEAST);
    uint32_t idle = r->turn - p->window_turn;
    if (p->n_window <= least || idle / WINDOW_IDLE < (uint32_t)n_layer)
        return;
    p->n += p->n_window - least;
    p->n_window = least;
}

/* The expert is looked for once in a turn, and again when it has been taken. */
int moe_slot_pool_coldest(struct moe_residents *r, struct moe_slot_pool *p)
{
    int best = -1;
    float least = HUGE_VALF;
    if (p->cold_turn == r->turn)
        return p->cold;
    for (int i = p->first; i < p->first + p->n_filled; i++) {
        float heat = r->heat[r->slot[i].expert];
        least = heat < least ? heat : least;
        if (r->slot[i].turn != r->turn && (best < 0 || heat < r->heat[r->slot[best].expert]))
            best = i;
    }
    p->least_heat = least;
    p->cold_turn = r->turn;
    p->cold = best;
    return best;
}
