/* A context: all memory that one thread needs to run a model, sized and allocated at open.
 *
 * The KV cache is stored by head, [layer][K, V][KV head][slot][..], so attention of one head reads one contiguous
 * array; in int8 the scales of all slots follow the codes of all slots.  With MLA there are keys only,
 * [layer][slot][d_key].  Behind the KV cache are the features by slot, if the context stores any, then the recurrent
 * states.  Three arenas hold the buffers that a pass writes.  lay_out() assigns their addresses; the same code over arenas
 * without memory computes their sizes. */
#include "moe/pass/pass.h"

#include <string.h>

/* Bytes per row of activation codes, for rows of up to n_in values.  n_in need not be a multiple of the block, because
 * several layers use the memory: DeepSeek-V2-Lite's dense layer has rows of 10944 values in blocks of 32, the shared
 * experts of its other layers rows of 2816 values in blocks of 256. */
static size_t code_stride(enum kn_act kind, int n_in)
{
    return kn_act_bytes(kind, (int)kn_align_up((size_t)n_in, KN_GROUP));
}

static const struct kn_device *device_of(const struct moe_model *m, const struct moe_context_options *opt)
{
    return opt->device ? opt->device : m->device;
}

/* Takes vectors that have an image; returns the device's address. */
static void *take_shared(const struct moe_context *c, struct moe_arenas *a, size_t n, size_t size)
{
    void *image = kn_arena_take(&a->shared, n, size);
    return image ? moe_at(c, image) : NULL;
}

/* Takes vectors of which the host may read and write an image (shared), or of the device alone. */
static void *take_vectors(const struct moe_context *c, struct moe_arenas *a, bool shared, size_t n, size_t size)
{
    return shared ? take_shared(c, a, n, size) : kn_arena_take(&a->device, n, size);
}

static void take_acts(const struct moe_context *c, struct moe_arenas *a, bool shared, struct kn_acts *out,
                      unsigned kinds, int n_row, int n_in)
{
    out->stride = kn_align_up((size_t)n_in, 16);
    out->x = take_vectors(c, a, shared, (size_t)n_row * out->stride, sizeof(float));
    for (int kind = KN_ACT_F32 + 1; kind < KN_ACT_COUNT; kind++)
        if (kinds & 1u << kind) {
            out->code_stride[kind] = code_stride(kind, n_in);
            out->code[kind] = take_vectors(c, a, shared, (size_t)n_row, out->code_stride[kind]);
        }
    out->code[KN_ACT_F32] = out->x;
    out->code_stride[KN_ACT_F32] = out->stride * sizeof(float);
}

struct kinds {
    unsigned norm, att, act, wide, router, low, query, mixed;
};

/* The kinds of activation codes, as bits, that any layer reads from each buffer: c->norm, c->att, c->act, c->wide; for
 * the router alone (guess.norm); latent.low, latent.query and latent.mixed. */
static struct kinds kinds_of(const struct moe_model *m)
{
    struct kinds k = { .norm = kn_act_bit(&m->head) };
    for (int i = 0; i < m->desc.n_layer; i++) {
        const struct moe_layer *l = &m->layer[i];
        k.norm |= kn_act_bit(&l->k) | kn_act_bit(&l->v) | kn_act_bit(&l->q_a) | kn_act_bit(&l->kv_a) |
                  kn_act_bit(&l->gate) | kn_act_bit(&l->up) | kn_act_bit(&l->shared_gate) | kn_act_bit(&l->router) |
                  moe_delta_acts(l) | l->expert_acts;
        *(l->q_a.n_out ? &k.low : &k.norm) |= kn_act_bit(&l->q);
        k.query |= kn_act_bit(&l->k_b);
        k.mixed |= kn_act_bit(&l->v_b);
        k.att |= kn_act_bit(&l->o);
        k.router |= kn_act_bit(&l->router);
        k.act |= l->down_acts;
        k.wide |= kn_act_bit(&l->down);
    }
    return k;
}

static void lay_out_rows(struct moe_rows *out, struct kn_arena *a, size_t n)
{
    out->row = kn_arena_take(a, n, sizeof *out->row);
    out->status = kn_arena_take(a, n, sizeof *out->status);
}

static void lay_out_choices(struct moe_context *c, struct moe_choices *out, struct moe_arenas *a, size_t n_row)
{
    size_t n_expert = (size_t)c->model->desc.n_expert;
    out->logit = kn_arena_take(&a->device, n_row * n_expert, sizeof(float));
    out->rank = kn_arena_take(&a->device, n_row * n_expert, sizeof(float));
}

static void lay_out_guess(struct moe_context *c, struct moe_arenas *a, unsigned kinds)
{
    const struct moe_desc *d = &c->model->desc;
    struct moe_guess *g = &c->guess;
    int n_row = moe_guess_rows(d, c->opt.max_row);
    g->expert = kn_arena_take(&a->shared, (size_t)d->n_expert, sizeof(int32_t));
    g->mark = kn_arena_take(&a->host, (size_t)d->n_expert, sizeof(uint8_t));
    g->sum = kn_arena_take(&a->device, (size_t)d->n_expert, sizeof(float));
    g->seen = kn_arena_take(&a->host, (MOE_FAR + 1) * MOE_SIGHTS * (size_t)d->n_expert, sizeof(bool));
    g->n_listed = kn_arena_take(&a->shared, 1, sizeof *g->n_listed);
    lay_out_choices(c, &g->choices, a, (size_t)n_row);
    g->choices.id = kn_arena_take(&a->device, (size_t)(n_row * d->n_used), sizeof(int32_t));
    g->choices.weight = kn_arena_take(&a->device, (size_t)(n_row * d->n_used), sizeof(float));
    take_acts(c, a, false, &g->norm, kinds, n_row, d->d_model);
}

static void lay_out_recall(struct moe_context *c, struct kn_arena *a)
{
    const struct moe_desc *d = &c->model->desc;
    struct moe_recall *r = &c->recall;
    size_t n = (size_t)c->opt.n_recall, n_layer = (size_t)d->n_layer, n_expert = (size_t)d->n_expert;
    size_t n_used = (size_t)d->n_used;
    r->n_entry = c->opt.n_recall;
    r->token = kn_arena_take(a, n, sizeof(int32_t));
    r->id = kn_arena_take(a, n * n_layer * n_used, sizeof(uint16_t));
    r->hit_rate = kn_arena_take(a, n_layer * n_used, sizeof *r->hit_rate);
    r->proved = kn_arena_take(a, n_layer * MOE_CHANCES, sizeof *r->proved);
    r->asked = kn_arena_take(a, n_layer * n_expert, sizeof(uint8_t));
    r->absent = kn_arena_take(a, n_expert, sizeof(int32_t));
    r->known = kn_arena_take(a, (size_t)c->opt.max_row, sizeof(bool));
    r->ticket = kn_arena_take(a, n_layer, sizeof *r->ticket);
    r->expert = kn_arena_take(a, n_layer * n_expert, sizeof(int32_t));
    r->mark = kn_arena_take(a, n_layer * n_expert, sizeof(uint8_t));
    r->unused = kn_arena_take(a, n_expert, sizeof(float));
}

static void lay_out_plan(struct moe_context *c, struct moe_arenas *a, size_t n_row)
{
    const struct moe_desc *d = &c->model->desc;
    size_t n_expert = (size_t)d->n_expert;
    bool own_memory = device_of(c->model, &c->opt)->backend->own_memory;
    lay_out_choices(c, &c->route, a, n_row);
    moe_listings_lay_out(c, a, own_memory);
    c->shared_weight = kn_arena_take(&a->device, d->d_shared ? n_row : 0, sizeof(float));
    c->shared_out = kn_arena_take(&a->device, d->d_shared ? n_row * (size_t)d->d_model : 0, sizeof(float));
    if (own_memory) {
        c->shared_gate = kn_arena_take(&a->device, n_row * (size_t)d->d_shared, sizeof(float));
        c->shared_up = kn_arena_take(&a->device, n_row * (size_t)d->d_shared, sizeof(float));
    }
    c->mark = kn_arena_take(&a->host, n_expert, sizeof(uint8_t));
    moe_present_lay_out(c, a);
    c->arrived = kn_arena_take(&a->host, n_expert, sizeof(int32_t));
    c->arrived_status = kn_arena_take(&a->host, n_expert, sizeof(int));
    c->view = kn_arena_take(&a->host, n_expert, sizeof *c->view);
    c->group = kn_arena_take(&a->host, n_expert, sizeof *c->group);
    c->hands = (struct off_hands){ .ops = c->model->ops,
                                   .team = c->opt.team,
                                   .scratch_bytes = kn_align_up(c->model->scratch_bytes, 64) };
    c->hands.scratch = kn_arena_take(&a->host, (size_t)kn_team_size(c->opt.team), c->hands.scratch_bytes);
}

static void lay_out_latent(struct moe_context *c, struct moe_arenas *a, const struct kinds *kinds)
{
    const struct moe_desc *d = &c->model->desc;
    struct moe_latent *l = &c->latent;
    l->max_row = moe_latent_rows(d, c->opt.max_row);
    int n = l->max_row * d->n_head;
    if (d->d_query_latent)
        take_acts(c, a, false, &l->low, kinds->low, c->opt.max_row, d->d_query_latent);
    take_acts(c, a, false, &l->query, kinds->query, n, d->d_head - d->n_rot);
    take_acts(c, a, false, &l->mixed, kinds->mixed, n, d->d_latent);
    l->absorbed = kn_arena_take(&a->device, (size_t)n * (size_t)d->d_key, sizeof(float));
}

/* Memory of a head's first rows, and of EAGLE-3's results. */
static void lay_out_head(struct moe_context *c, struct moe_arenas *a, const struct kinds *kinds)
{
    const struct moe_desc *d = &c->model->desc;
    size_t n_want = (size_t)c->opt.max_want;
    take_acts(c, a, false, &c->join, d->head == MOE_HEAD_EAGLE3 ? kinds->norm : kn_act_bit(&c->model->fc),
              c->opt.max_row, 2 * d->d_model);
    if (d->head != MOE_HEAD_EAGLE3)
        return;
    take_acts(c, a, false, &c->inner, kn_act_bit(&c->model->fc), c->opt.max_row, d->reads.n_inner * d->d_model);
    if (!d->norm_last)
        c->thought = kn_arena_take(&a->device, n_want * (size_t)d->d_model, sizeof(float));
    c->guessed = kn_arena_take(&a->device, c->model->guess ? n_want * (size_t)d->n_guess : 0, sizeof(float));
}

/* The largest sizes of any layer: floats of a row's queries, keys, values, and output of attention. */
struct widths {
    int q, k, v, out;
};

static struct widths widths_of(const struct moe_desc *d)
{
    struct widths w = { 0 };
    for (int i = 0; i < d->n_layer; i++) {
        struct moe_heads h = moe_heads(d, i), slot = moe_slot_heads(d, i);
        w.q = kn_max(w.q, d->n_head * h.d_head);
        w.k = kn_max(w.k, slot.n_kv * slot.d_head);
        w.v = kn_max(w.v, slot.n_kv * slot.d_value);
        w.out = kn_max(w.out, d->n_head * h.d_value);
    }
    return w;
}

static void lay_out(struct moe_context *c, struct moe_arenas *a)
{
    const struct moe_desc *d = &c->model->desc;
    struct widths most = widths_of(d);
    struct kinds kinds = kinds_of(c->model);
    size_t n_row = (size_t)c->opt.max_row, n_want = (size_t)c->opt.max_want;
    int n_pair = c->opt.max_row * d->n_used, d_wide = kn_max(d->d_ff, d->d_shared);
    size_t n_pair_act = (size_t)n_pair * (size_t)d->d_expert, n_wide_act = n_row * (size_t)d_wide;
    size_t n_act = n_pair_act > n_wide_act ? n_pair_act : n_wide_act;
    bool experts = d->n_expert > 0; /* the host computes them: their inputs and outputs have an image */
    c->x = kn_arena_take(&a->device, n_row * (size_t)d->d_model, sizeof(float));
    if (d->head)
        lay_out_head(c, a, &kinds);
    take_acts(c, a, experts, &c->norm, kinds.norm, c->opt.max_row, d->d_model);
    if (d->n_expert && d->shared == MOE_SHARED_APART)
        take_acts(c, a, false, &c->apart, kinds.norm, c->opt.max_row, d->d_model);
    take_acts(c, a, false, &c->att, kinds.att, c->opt.max_row, kn_max(most.out, moe_d_state_value(d)));
    take_acts(c, a, experts, &c->act, kinds.act, n_pair, d->d_expert);
    take_acts(c, a, false, &c->wide, kinds.wide, d_wide ? c->opt.max_row : 0, d_wide);
    c->q = kn_arena_take(&a->device, n_row * (size_t)most.q, sizeof(float));
    c->k = kn_arena_take(&a->device, n_row * (size_t)most.k, sizeof(float));
    c->v = kn_arena_take(&a->device, moe_is_latent(d) ? 0 : n_row * (size_t)most.v, sizeof(float));
    if (d->out_gate)
        c->q_gate = kn_arena_take(&a->device, n_row * (size_t)(2 * d->n_head * d->d_head), sizeof(float));
    if (moe_is_latent(d))
        lay_out_latent(c, a, &kinds);
    c->rotation = kn_arena_take(&a->device, n_row * (size_t)moe_n_pair(d), sizeof *c->rotation);
    c->gate = take_vectors(c, a, experts, 2 * kn_align_up(n_act, 16), sizeof(float));
    c->up = c->gate ? c->gate + kn_align_up(n_act, 16) : NULL;
    c->y = take_vectors(c, a, experts, (size_t)kn_max(n_pair, c->opt.max_row) * (size_t)d->d_model, sizeof(float));
    c->layer_at = kn_arena_take(&a->host, (size_t)d->n_layer, sizeof *c->layer_at);
    c->sheet.bytes = moe_sheet_bytes(c);
    c->sheet.at = kn_arena_take(&a->shared, c->sheet.bytes, sizeof(uint8_t));
    lay_out_rows(&c->want, &a->shared, n_want);
    c->logits = take_shared(c, a, n_want * (size_t)d->n_vocab, sizeof(float));
    if (device_of(c->model, &c->opt)->backend->own_memory)
        c->landing = kn_arena_take(&a->shared, MOE_LANDINGS * (size_t)d->d_model, sizeof(float));
    if (d->delta_period)
        moe_states_lay_out(c, a);
    if (d->n_expert) {
        lay_out_plan(c, a, n_row);
        moe_residents_lay_out(c, a);
        lay_out_guess(c, a, kinds.router);
        if (c->opt.n_recall)
            lay_out_recall(c, &a->host);
    }
}

size_t moe_kv_slot_bytes(const struct moe_model *m, enum kn_kv kv)
{
    const struct moe_desc *d = &m->desc;
    size_t bytes = 0;
    for (int i = 0; i < d->n_layer; i++) {
        struct moe_heads h = moe_slot_heads(d, i);
        size_t kept = kn_kv_bytes(kv, h.d_head) + (moe_is_latent(d) ? 0 : kn_kv_bytes(kv, h.d_value));
        bytes += moe_is_delta(d, i) ? 0 : (size_t)h.n_kv * kept;
    }
    return bytes;
}

size_t moe_feature_bytes(const struct moe_model *m, enum kn_kv kv, const struct moe_features *f)
{
    return (size_t)(f->last + f->n_inner) * (size_t)m->desc.d_model * kn_kv_value_bytes(moe_feature_format(kv));
}

/* Bytes of the array of one KV head in one layer, with d values in every slot, without its scales.  Rounded up so that
 * the next array starts at a cache line. */
static size_t number_bytes(const struct moe_context_options *opt, int d)
{
    return kn_align_up((size_t)opt->n_slot * (size_t)d * kn_kv_value_bytes(opt->kv), 64);
}

static size_t scale_bytes(enum kn_kv kv, int d) /* of one slot */
{
    return kn_kv_bytes(kv, d) - (size_t)d * kn_kv_value_bytes(kv);
}

static size_t array_bytes(const struct moe_context_options *opt, int d)
{
    return number_bytes(opt, d) + kn_align_up((size_t)opt->n_slot * scale_bytes(opt->kv, d), 64);
}

/* Of one KV head; 0: values lie in the keys. */
static size_t value_bytes(const struct moe_model *m, const struct moe_context_options *opt, const struct moe_heads *h)
{
    return moe_is_latent(&m->desc) ? 0 : array_bytes(opt, h->d_value);
}

/* Keys and values of a layer like this one. */
static size_t layer_bytes(const struct moe_model *m, const struct moe_context_options *opt, int layer)
{
    struct moe_heads h = moe_slot_heads(&m->desc, layer);
    return (size_t)h.n_kv * (array_bytes(opt, h.d_head) + value_bytes(m, opt, &h));
}

static size_t all_heads_bytes(const struct moe_model *m, const struct moe_context_options *opt)
{
    size_t bytes = 0;
    for (int i = 0; i < m->desc.n_layer; i++)
        bytes += moe_is_delta(&m->desc, i) ? 0 : layer_bytes(m, opt, i);
    return bytes;
}

/* The scales behind an array of one KV head, with d values in every slot. */
static float *scales_of(const struct moe_context *c, uint8_t *array, int d)
{
    return c->opt.kv == KN_KV_INT8 ? (float *)(void *)(array + number_bytes(&c->opt, d)) : NULL;
}

struct kn_cache moe_cache(const struct moe_context *c, int layer)
{
    struct moe_heads h = moe_slot_heads(&c->model->desc, layer);
    size_t key_bytes = array_bytes(&c->opt, h.d_head), values_bytes = value_bytes(c->model, &c->opt, &h);
    uint8_t *keys = c->kv.base + c->layer_at[layer];
    uint8_t *values = values_bytes ? keys + (size_t)h.n_kv * key_bytes : keys;
    int d_value = values_bytes ? h.d_value : h.d_head;
    return (struct kn_cache){ .kv = c->opt.kv,
                              .k = keys,
                              .v = values,
                              .k_scale = scales_of(c, keys, h.d_head),
                              .v_scale = scales_of(c, values, d_value),
                              .k_head = key_bytes,
                              .v_head = values_bytes,
                              .k_step = h.d_head,
                              .v_step = d_value,
                              .n_slot = c->opt.n_slot };
}

struct kn_features moe_last_feature(const struct moe_context *c)
{
    kn_assert(c->opt.features.last);
    return (struct kn_features){ moe_feature_format(c->opt.kv), c->feature, c->feature_bytes, c->model->desc.d_model,
                                 c->opt.n_slot };
}

struct kn_features moe_inner_features(const struct moe_context *c)
{
    const struct moe_features *f = &c->opt.features;
    enum kn_kv kv = moe_feature_format(c->opt.kv);
    size_t last = f->last ? (size_t)c->model->desc.d_model * kn_kv_value_bytes(kv) : 0;
    return (struct kn_features){ kv, c->feature + last, c->feature_bytes, f->n_inner * c->model->desc.d_model,
                                 c->opt.n_slot };
}

static size_t kv_bytes(const struct moe_model *m, const struct moe_context_options *opt)
{
    size_t features = moe_feature_bytes(m, opt->kv, &opt->features);
    return kn_align_up(all_heads_bytes(m, opt) + (size_t)opt->n_slot * features, 64);
}

/* The memory of a pass: the bytes of each arena. */
static struct moe_arenas count_arenas(const struct moe_model *m, const struct moe_context_options *opt)
{
    struct moe_context c = { .model = m, .opt = *opt };
    struct moe_arenas count = { .device = { .base = NULL } };
    lay_out(&c, &count);
    return count;
}

static struct moe_device_slots slots_of(const struct moe_model *m, const struct moe_context_options *opt)
{
    struct moe_device_slots s;
    moe_device_slots(m, opt, &s);
    return s;
}

/* The largest operation has the gates and ups of all experts of a layer. */
static struct kn_queue_options queue_options(const struct moe_model *m, const struct moe_context_options *opt,
                                             const struct kn_device *device)
{
    const struct moe_desc *d = &m->desc;
    struct moe_heads h = moe_slot_heads(d, 0);
    for (int i = 1; i < d->n_layer; i++) {
        struct moe_heads other = moe_slot_heads(d, i);
        h.n_kv = kn_min(h.n_kv, other.n_kv);
        h.d_value = kn_max(h.d_value, other.d_value);
    }
    return (struct kn_queue_options){
        .device = device,
        .team = opt->team,
        .max_row = opt->max_row,
        .max_pos = opt->max_pos,
        .n_head = d->n_head,
        .n_kv = h.n_kv,
        .d_value = h.d_value,
        .max_product = kn_max(KN_PRODUCTS, 2 * d->n_expert),
        .max_state_floats = d->delta_period ? kn_delta_floats(d->d_state_key, d->d_state_value) : 0,
        .stages = slots_of(m, opt).n_slot > 0,
    };
}

/* True if the experts run in a queue of their own: they lie in the host's memory, and the device cannot read it. */
static bool has_host_queue(const struct moe_model *m, const struct kn_device *device)
{
    return m->desc.n_expert && device->backend->own_memory;
}

/* True if the host may follow the device: it writes words that the device awaits. */
static bool has_queue_beside(const struct moe_model *m, const struct kn_device *device)
{
    return has_host_queue(m, device) && kn_device_can_await(device);
}

/* The queue beside runs experts and copies only. */
static struct kn_queue_options beside_options(const struct kn_queue_options *opt, struct kn_queue *queue)
{
    struct kn_queue_options beside = *opt;
    beside.beside = queue;
    beside.max_pos = 1;
    beside.max_state_floats = 0;
    return beside;
}

struct kn_bytes moe_context_bytes(const struct moe_model *m, const struct moe_context_options *opt)
{
    const struct kn_device *device = device_of(m, opt);
    struct kn_queue_options queue = queue_options(m, opt, device);
    struct kn_queue_options host = queue_options(m, opt, kn_host_device(m->ops->isa));
    struct moe_arenas a = count_arenas(m, opt);
    struct kn_bytes n = kn_queue_bytes(&queue);
    size_t bytes = a.device.used + kv_bytes(m, opt) + moe_states_bytes(m, opt) + slots_of(m, opt).bytes;
    n.host += a.host.used + a.shared.used;
    if (has_host_queue(m, device))
        n.host += kn_queue_bytes(&host).host;
    if (has_queue_beside(m, device)) {
        struct kn_queue_options beside = beside_options(&queue, NULL);
        struct kn_bytes more = kn_queue_bytes(&beside);
        n.host += more.host;
        n.device += more.device;
    }
    if (device->backend->own_memory)
        n.device += bytes + a.shared.used;
    else
        n.host += bytes;
    return n;
}

static int open_queues(struct moe_context *c)
{
    const struct moe_model *m = c->model;
    const struct kn_device *device = device_of(m, &c->opt);
    struct kn_queue_options queue = queue_options(m, &c->opt, device);
    struct kn_queue_options host = queue_options(m, &c->opt, kn_host_device(m->ops->isa));
    int error = kn_queue_open(&c->queue, &queue);
    c->copies = c->queue;
    if (error || !has_host_queue(m, device)) {
        c->host_queue = c->queue;
        return error;
    }
    if (has_queue_beside(m, device)) {
        struct kn_queue_options beside = beside_options(&queue, c->queue);
        error = kn_queue_open(&c->beside, &beside);
    }
    return error ? error : kn_queue_open(&c->host_queue, &host);
}

static int open_memory(struct moe_context *c)
{
    const struct moe_model *m = c->model;
    const struct kn_device *device = device_of(m, &c->opt);
    struct moe_arenas a = count_arenas(m, &c->opt);
    size_t kv = kv_bytes(m, &c->opt);
    int error = kn_memory_open(&c->device, device, a.device.used, false);
    if (error || (error = kn_memory_open(&c->shared, device, a.shared.used, true)) ||
        (error = kn_memory_open(&c->kv, device, kv + moe_states_bytes(m, &c->opt), false)) ||
        (error = kn_arena_open(&c->host, a.host.used, -1)))
        return error;
    /* The slots of a short sequence are spread over all arrays, a few pages in each: only used pages take memory. */
    if (!device->backend->own_memory)
        kn_map_sparse(c->kv.base, kv);
    a.device = (struct kn_arena){ .base = c->device.base, .bytes = c->device.bytes };
    a.shared = (struct kn_arena){ .base = c->shared.image, .bytes = c->shared.bytes };
    a.host = c->host;
    lay_out(c, &a);
    size_t at = 0;
    for (int i = 0; i < m->desc.n_layer; i++) {
        c->layer_at[i] = at;
        at += moe_is_delta(&m->desc, i) ? 0 : layer_bytes(m, &c->opt, i);
    }
    error = moe_residents_open(c);
    return !error && m->desc.delta_period ? moe_states_place(c, c->kv.base + kv) : error;
}

int moe_context_open(struct moe_context **out, const struct moe_model *m, const struct moe_context_options *opt)
{
    kn_assert(opt->max_row > 0 && opt->max_want > 0 && opt->n_slot > 0 && opt->team);
    kn_assert(!m->target == !opt->target && (!opt->target || opt->target->feature));
    kn_assert(!opt->device || opt->device == m->device ||
              (!opt->device->backend->own_memory && !m->device->backend->own_memory));
    struct moe_context *c = kn_calloc(1, sizeof *c);
    if (!c)
        return kn_fail(KN_ENOMEM, "no memory for a context");
    *c = (struct moe_context){ .model = m, .opt = *opt };
    int error = open_queues(c);
    if (error || (error = open_memory(c))) {
        moe_context_close(c);
        return error;
    }
    moe_recall_init(c);
    c->feature_bytes = moe_feature_bytes(m, opt->kv, &opt->features);
    c->feature = c->feature_bytes ? c->kv.base + all_heads_bytes(m, opt) : NULL;
    *out = c;
    return 0;
}

void moe_context_set_team(struct moe_context *c, struct kn_team *team)
{
    kn_assert(kn_team_size(team) <= kn_team_size(c->opt.team) && kn_team_nodes(team) <= kn_team_nodes(c->opt.team));
    c->hands.team = team;
    kn_queue_set_team(c->queue, team);
    if (c->host_queue != c->queue)
        kn_queue_set_team(c->host_queue, team);
    if (c->beside)
        kn_queue_set_team(c->beside, team);
}

struct slot_copy {
    int32_t from, to;
    int n;
};

/* Copies slots of n arrays, each `next` bytes after the one before. */
static void copy_slots(struct moe_context *c, const struct slot_copy *s, void *array, size_t slot_bytes, size_t next,
                       int n)
{
    uint8_t *at = array;
    kn_enqueue(c->queue, COPY, copy, .to = at + (size_t)s->to * slot_bytes, .from = at + (size_t)s->from * slot_bytes,
               .bytes = (size_t)s->n * slot_bytes, .stride = next, .n = n);
}

/* Copies slots of the keys of all KV heads in one layer, or of the values. */
static void copy_heads(struct moe_context *c, const struct slot_copy *s, const struct kn_cache *kv, bool value,
                       int n_kv)
{
    int d = value ? kv->v_step : kv->k_step;
    size_t next = value ? kv->v_head : kv->k_head;
    copy_slots(c, s, value ? kv->v : kv->k, (size_t)d * kn_kv_value_bytes(c->opt.kv), next, n_kv);
    if (value ? kv->v_scale : kv->k_scale)
        copy_slots(c, s, value ? kv->v_scale : kv->k_scale, scale_bytes(c->opt.kv, d), next, n_kv);
}

void moe_context_copy_slots(struct moe_context *c, int32_t from, int32_t to, int n)
{
    const struct moe_desc *d = &c->model->desc;
    struct slot_copy s = { from, to, n };
    kn_assert(n >= 0 && from >= 0 && to >= 0 && from + n <= c->opt.n_slot && to + n <= c->opt.n_slot);
    for (int layer = 0; layer < d->n_layer; layer++) {
        struct kn_cache kv = moe_cache(c, layer);
        if (moe_is_delta(d, layer))
            continue;
        int n_kv = moe_slot_heads(d, layer).n_kv;
        copy_heads(c, &s, &kv, false, n_kv);
        if (kv.v != kv.k)
            copy_heads(c, &s, &kv, true, n_kv);
    }
    if (c->feature)
        copy_slots(c, &s, c->feature, c->feature_bytes, 0, 1);
    moe_wait(c);
}

void moe_context_close(struct moe_context *c)
{
    if (!c)
        return;
    if (c->recall.ticket)
        moe_context_expect(c, NULL, 0);
    if (c->host_queue != c->queue)
        kn_queue_close(c->host_queue);
    kn_queue_close(c->beside);
    kn_queue_close(c->queue);
    moe_residents_close(c);
    kn_memory_close(&c->kv);
    kn_memory_close(&c->shared);
    kn_memory_close(&c->device);
    if (c->host.base)
        kn_arena_close(&c->host);
    kn_free(c);
}
