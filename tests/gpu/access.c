/* Loads, stores and atomics of a warp.  Every lane's address is checked: the space, the bounds, the alignment; whether
 * the bytes hold a value follows them into the registers. */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/memory.h"
#include "tests/gpu/ptx.h"

#define ILLEGAL_ADDRESS 700
#define MISALIGNED      716
#define LAUNCH_FAILED   719

struct places {
    uint8_t *at[PTX_LANES];
    uint8_t *defined[PTX_LANES]; /* bytes, one for each of shared and local memory; NULL: device memory or always */
    uint64_t address[PTX_LANES]; /* of device memory and of shared memory */
    uint8_t space[PTX_LANES];
    bool all_device; /* the lanes' bytes lie side by side in device memory */
    bool all_defined;
};
enum { SPACE_HOST = 100, MOST_NEAR = 2048 /* bytes that one check may cover */ };

static const char *const access_names[] = { [OP_ld] = "load", [OP_st] = "store", [OP_atom] = "atomic" };

static bool locate_lane(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, int l, uint64_t address,
                        uint32_t size, struct places *p)
{
    uint32_t space = i->space;
    const char *reason = NULL;
    if (space == PTX_GENERIC) {
        uint64_t window = address & PTX_WINDOW_MASK;
        space = window == PTX_WINDOW_SHARED  ? PTX_SHARED
                : window == PTX_WINDOW_LOCAL ? PTX_LOCAL
                : window == PTX_WINDOW_PARAM ? PTX_PARAM
                                             : PTX_GLOBAL;
        if (space != PTX_GLOBAL)
            address &= ~PTX_WINDOW_MASK;
    }
    uint64_t room = space == PTX_SHARED  ? r->launch->shared_bytes
                    : space == PTX_LOCAL ? r->launch->f->local_bytes
                                         : r->launch->f->param_bytes;
    if (space == PTX_SHARED)
        address &= 0xffffffff;
    if (address % size) {
        ptx_fail(r, w, l, i, MISALIGNED, "misaligned %s of %u bytes at %#llx", access_names[i->op], size,
                 (unsigned long long)address);
        return false;
    }
    p->defined[l] = NULL;
    p->address[l] = address;
    p->space[l] = (uint8_t)space;
    if (space == PTX_GLOBAL) {
        if (!gpu_is_device(address)) {
            p->space[l] = SPACE_HOST;
            if (!gpu_host_has(address, size))
                reason = gpu_check(address, size);
        } else if (!gpu_state_all(address, size, 0))
            reason = gpu_check(address, size);
        if (reason) {
            ptx_fail(r, w, l, i, ILLEGAL_ADDRESS, "%s of %u bytes at %#llx: %s", access_names[i->op], size,
                     (unsigned long long)address, reason);
            return false;
        }
        p->at[l] = (uint8_t *)(uintptr_t)address;
        return true;
    }
    if (address + size > room || address + size < address) {
        static const char *const names[] = {
            [PTX_SHARED] = "shared", [PTX_LOCAL] = "local", [PTX_PARAM] = "parameter"
        };
        ptx_fail(r, w, l, i, ILLEGAL_ADDRESS, "%s of %u bytes at byte %lld of %llu bytes of %s memory: out of bounds",
                 access_names[i->op], size, (long long)address, (unsigned long long)room, names[space]);
        return false;
    }
    if (space == PTX_SHARED) {
        p->at[l] = r->shared + address;
        p->defined[l] = r->shared_defined + address;
    } else if (space == PTX_LOCAL) {
        p->at[l] = w->local + (size_t)l * room + address;
        p->defined[l] = w->local_defined + (size_t)l * room + address;
    } else
        p->at[l] = (uint8_t *)(uintptr_t)(r->launch->param + address);
    return true;
}

static bool is_defined(const struct places *p, int l, uint32_t offset, uint32_t bytes)
{
    return p->space[l] == PTX_GLOBAL ? gpu_state_all(p->address[l] + offset, bytes, 4)
           : p->defined[l]           ? !memchr(p->defined[l] + offset, 0, bytes)
                                     : true;
}

/* Are the bytes of all lanes, from the lowest address to the highest, in memory of one kind that they may use?  Then
 * one check is enough for all lanes. */
static bool locate_near(const struct ptx_run *r, const struct ptx_insn *i, uint32_t mask, uint32_t size,
                        const uint64_t *base, struct places *p)
{
    uint64_t first = base[__builtin_ctz(mask)] + (uint64_t)i->imm, low = first, high = first, bits = 0, differs = 0;
    uint64_t narrow = i->space == PTX_SHARED ? 0xffffffff : ~0ull;
    for (uint64_t l = 0; l < PTX_LANES; l++) {
        uint64_t at = mask >> l & 1 ? (base[l] + (uint64_t)i->imm) & narrow : first & narrow;
        p->address[l] = at;
        low = at < low ? at : low;
        high = at > high ? at : high;
        bits |= at;
        differs |= at - first - l * size;
    }
    uint64_t range = high - low + size;
    bool shared = i->space == PTX_SHARED, param = i->space == PTX_PARAM;
    bool device = !shared && !param && gpu_is_device(low);
    if (bits % size || range > MOST_NEAR || i->space == PTX_LOCAL)
        return false;
    if (shared || param ? high + size > (shared ? r->launch->shared_bytes : r->launch->f->param_bytes)
                        : !(device ? gpu_state_all(low, range, 0) : gpu_host_has(low, range)))
        return false;
    const uint8_t *start = shared ? r->shared : param ? r->launch->param : NULL;
    for (int l = 0; l < PTX_LANES; l++) {
        p->at[l] = start ? (uint8_t *)(uintptr_t)start + p->address[l] : (uint8_t *)(uintptr_t)p->address[l];
        p->defined[l] = shared ? r->shared_defined + p->address[l] : NULL;
        p->space[l] = shared ? PTX_SHARED : param ? PTX_PARAM : device ? PTX_GLOBAL : SPACE_HOST;
    }
    p->all_device = device && mask == PTX_ALL && !differs;
    p->all_defined = shared ? !memchr(r->shared_defined + low, 0, range) : device ? gpu_state_all(low, range, 4) : true;
    return true;
}

static bool locate(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask, uint32_t size,
                   struct places *p)
{
    const uint64_t *base = (const uint64_t *)(const void *)ptx_reg(w, i->src[0]);
    uint32_t undefined = mask & ~w->defined[i->src[0]];
    if (undefined) {
        ptx_fail(r, w, __builtin_ctz(undefined), i, ILLEGAL_ADDRESS, "the address of this %s is an undefined value",
                 access_names[i->op]);
        return false;
    }
    if (locate_near(r, i, mask, size, base, p))
        return true;
    p->all_device = false;
    p->all_defined = true;
    for (int l = 0; l < PTX_LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        if (!locate_lane(r, w, i, l, base[l] + (uint64_t)i->imm, size, p))
            return false;
        p->all_defined = p->all_defined && is_defined(p, l, 0, size);
    }
    return true;
}

static void define(const struct places *p, int l, uint32_t offset, uint32_t bytes, bool on)
{
    if (p->defined[l])
        memset(p->defined[l] + offset, on, bytes);
    else if (p->space[l] == PTX_GLOBAL)
        gpu_define(p->address[l] + offset, bytes, on);
}

static inline uint64_t load_value(const uint8_t *at, uint32_t bytes, bool is_signed)
{
    uint64_t v = 0;
    switch (bytes) {
    case 1:
        return is_signed ? (uint64_t)(int64_t)(int8_t)*at : *at;
    case 2:
        memcpy(&v, at, 2);
        return is_signed ? (uint64_t)(int64_t)(int16_t)v : v;
    case 4:
        memcpy(&v, at, 4);
        return is_signed ? (uint64_t)(int64_t)(int32_t)v : v;
    default:
        memcpy(&v, at, 8);
        return v;
    }
}

static void load(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask, const struct places *p)
{
    for (uint32_t k = 0; k < i->n_list; k++) {
        uint32_t reg = r->m->list[i->list + k], offset = k * i->bytes, bad = 0;
        uint32_t *to = ptx_reg(w, reg);
        uint64_t *to64 = (uint64_t *)(void *)to;
        if (p->all_device && i->n_list == 1 && i->bytes == 4 && !i->wide)
            memcpy(to, p->at[0], 4 * PTX_LANES);
        else if (mask == PTX_ALL && !i->wide && i->bytes == 4)
            for (int l = 0; l < PTX_LANES; l++)
                memcpy(to + l, p->at[l] + offset, 4);
        else
            for (int l = 0; l < PTX_LANES; l++) {
                if (!(mask >> l & 1))
                    continue;
                uint64_t v = load_value(p->at[l] + offset, i->bytes, i->is_signed);
                if (i->wide)
                    to64[l] = v;
                else
                    to[l] = (uint32_t)v;
            }
        for (int l = 0; l < PTX_LANES && !p->all_defined; l++)
            if (mask >> l & 1 && !is_defined(p, l, offset, i->bytes))
                bad |= 1u << l;
        w->defined[reg] = (w->defined[reg] | mask) & ~bad;
    }
}

static bool store(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask,
                  const struct places *p)
{
    for (uint32_t k = 0; k < i->n_list; k++) {
        uint32_t reg = r->m->list[i->list + k], offset = k * i->bytes;
        uint32_t undefined = mask & ~w->defined[reg];
        for (int l = 0; l < PTX_LANES; l++) {
            if (!(mask >> l & 1))
                continue;
            uint64_t v = ptx_value(w, reg, l, i->wide);
            bool bad = undefined >> l & 1;
            if (bad && (p->space[l] == PTX_GLOBAL || p->space[l] == SPACE_HOST)) {
                ptx_fail(r, w, l, i, ILLEGAL_ADDRESS, "an undefined value is stored in global memory");
                return false;
            }
            memcpy(p->at[l] + offset, &v, i->bytes);
            if (p->defined[l])
                memset(p->defined[l] + offset, !bad, i->bytes);
            else if (p->space[l] == PTX_GLOBAL && !p->all_defined)
                gpu_define(p->address[l] + offset, i->bytes, true);
        }
    }
    return true;
}

/* ---- atomics ------------------------------------------------------------------------------------------ */

static uint16_t add_halves(uint16_t a, uint16_t b, enum ptx_type_kind kind)
{
    float sum = kind == KIND_FLOAT ? ptx_half_to_float(a) + ptx_half_to_float(b)
                                   : float_of((uint32_t)a << 16) + float_of((uint32_t)b << 16);
    return ptx_to_half(sum, kind, ROUND_nearest);
}

static uint64_t add_floats(uint64_t a, uint64_t b, const struct ptx_insn *i)
{
    enum ptx_type_kind kind = (enum ptx_type_kind)i->kind;
    if (i->bytes == 8) {
        double x = double_of(a) + double_of(b);
        return x != x ? 0x7fffffffffffffffull : bits_of_double(x);
    }
    if (i->addend)
        return add_halves((uint16_t)a, (uint16_t)b, kind) |
               (uint32_t)add_halves((uint16_t)(a >> 16), (uint16_t)(b >> 16), kind) << 16;
    if (i->bytes == 2)
        return add_halves((uint16_t)a, (uint16_t)b, kind);
    float sum = float_of((uint32_t)a) + float_of((uint32_t)b);
    return sum != sum ? 0x7fffffff : bits_of(sum);
}

/* The new value of the memory. */
static uint64_t combine(const struct ptx_insn *i, uint64_t old, uint64_t b, uint64_t c)
{
    int unused = 64 - 8 * i->bytes;
    bool is_signed = i->kind == KIND_SIGNED;
    int64_t so = (int64_t)(old << unused) >> unused, sb = (int64_t)(b << unused) >> unused;
    bool less = is_signed ? so < sb : old < b;
    switch (i->sub) {
    case ATOM_add:
        return i->kind == KIND_FLOAT || i->kind == KIND_BFLOAT ? add_floats(old, b, i) : old + b;
    case ATOM_and:
        return old & b;
    case ATOM_or:
        return old | b;
    case ATOM_xor:
        return old ^ b;
    case ATOM_exch:
        return b;
    case ATOM_cas:
        return old == b ? c : old;
    case ATOM_min:
        return less ? old : b;
    case ATOM_max:
        return less ? b : old;
    case ATOM_inc:
        return old >= b ? 0 : old + 1;
    default:
        return old == 0 || old > b ? b : old - 1;
    }
}

/* The lanes come one after another, from a random one on if the launch has a seed. */
static bool atomic(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask,
                   const struct places *p)
{
    uint64_t keep = i->bytes == 8 ? ~0ull : (1ull << 8 * i->bytes) - 1;
    uint32_t undefined = mask & ~(w->defined[i->src[1]] & w->defined[i->src[2]]);
    int first = r->launch->seed ? (int)(ptx_random(&r->random) % PTX_LANES) : 0;
    for (int k = 0; k < PTX_LANES; k++) {
        int l = (first + k) % PTX_LANES;
        if (!(mask >> l & 1))
            continue;
        bool known = is_defined(p, l, 0, i->bytes);
        if (undefined >> l & 1 || (!known && i->sub != ATOM_exch)) {
            ptx_fail(r, w, l, i, ILLEGAL_ADDRESS, "an atomic uses an undefined value");
            return false;
        }
        uint64_t old = load_value(p->at[l], i->bytes, false);
        uint64_t b = ptx_value(w, i->src[1], l, i->wide) & keep, c = ptx_value(w, i->src[2], l, i->wide) & keep;
        uint64_t v = combine(i, old, b, c) & keep;
        memcpy(p->at[l], &v, i->bytes);
        define(p, l, 0, i->bytes, true);
        if (i->dst)
            ptx_set(w, i->dst, l, i->wide, old, known);
    }
    return true;
}

/* ---- races --------------------------------------------------------------------------------------------- */

/* Does the store of a lane change a byte? */
static bool changes(const struct ptx_run *r, const struct ptx_warp *w, const struct ptx_insn *i, int l,
                    const uint8_t *at)
{
    for (uint32_t k = 0; i->op == OP_st && k < i->n_list; k++) {
        uint64_t v = ptx_value(w, r->m->list[i->list + k], l, i->wide);
        if (memcmp(at + k * i->bytes, &v, i->bytes))
            return true;
    }
    return i->op != OP_st || !i->n_list;
}

static bool touch_lane(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, int l, uint32_t size,
                       enum gpu_use use, const struct places *p)
{
    const char *with;
    uint32_t thread = w->number * PTX_LANES + (uint32_t)l;
    for (int change = 1; change >= 0; change--) {
        bool race = p->space[l] == PTX_GLOBAL
                        ? gpu_touch(&r->actor, p->address[l], size, use, change, &with)
                        : p->space[l] == PTX_SHARED && gpu_touch_shared(r->shared_word, (uint32_t)p->address[l], size,
                                                                        use, change, thread, w->epoch, w->knows, &with);
        if (!race)
            return true;
        if (changes(r, w, i, l, p->at[l]))
            break;
    }
    ptx_fail(r, w, l, i, LAUNCH_FAILED, "race: %s of %s memory at %#llx, unordered with %s", access_names[i->op],
             p->space[l] == PTX_GLOBAL ? "device" : "shared", (unsigned long long)p->address[l], with);
    return false;
}

/* Device memory has no shadow for single threads, so equal addresses are one read. */
static bool same_place(const struct places *p, int l)
{
    return p->space[l] == PTX_GLOBAL && p->space[l - 1] == PTX_GLOBAL && p->address[l] == p->address[l - 1];
}

/* Whole words of shared memory without a sign of a race; false: touch_lane() must look. */
static inline bool touch_words(struct ptx_run *r, const struct ptx_warp *w, uint32_t at, uint32_t size, int l,
                               enum gpu_use use)
{
    uint32_t thread = w->number * PTX_LANES + (uint32_t)l;
    if (size % 4)
        return false;
    for (uint32_t k = 0; k < size; k += 4)
        if (!gpu_touch_shared_fast(r->shared_word + (at + k) / 4, use, thread, w->epoch, w->knows))
            return false;
    return true;
}

/* Records the accesses of the lanes. False: one of them is a race. */
static bool touch(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask, uint32_t size,
                  const struct places *p)
{
    const char *with;
    enum gpu_use use = i->op == OP_ld ? GPU_READ : i->op == OP_st ? GPU_WRITE : GPU_ATOMIC;
    if (!r->shared_word || i->space == PTX_PARAM || i->space == PTX_LOCAL)
        return true;
    if (i->is_sync && use != GPU_ATOMIC) {
        if (i->is_sync & ORDER_release)
            gpu_touch_fence(&r->actor);
        gpu_touch_atomic(&r->actor);
        return true;
    }
    if (p->all_device && !gpu_touch(&r->actor, p->address[0], (uint64_t)size * PTX_LANES, use, true, &with))
        return true;
    bool global = false;
    for (int l = 0; l < PTX_LANES; l++) {
        if (!(mask >> l & 1) || (l && use == GPU_READ && mask >> (l - 1) & 1 && same_place(p, l)))
            continue;
        if (p->space[l] == PTX_SHARED && touch_words(r, w, (uint32_t)p->address[l], size, l, use))
            continue;
        if (!touch_lane(r, w, i, l, size, use, p))
            return false;
        global |= p->space[l] == PTX_GLOBAL;
    }
    if (use == GPU_ATOMIC && global) {
        if (i->is_sync & ORDER_release)
            gpu_touch_fence(&r->actor);
        gpu_touch_atomic(&r->actor);
    }
    return true;
}

bool ptx_access(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
    struct places p;
    uint32_t size = i->op == OP_atom ? i->bytes : (uint32_t)i->bytes * i->n_list;
    if (!locate(r, w, i, mask, size, &p) || !touch(r, w, i, mask, size, &p))
        return false;
    if (i->op == OP_ld) {
        load(r, w, i, mask, &p);
        return true;
    }
    return i->op == OP_st ? store(r, w, i, mask, &p) : atomic(r, w, i, mask, &p);
}

/* ---- cp.async ------------------------------------------------------------------------------------------ */

/* Remembers a copy.  Until it is waited for, its bytes of shared memory are undefined. */
bool ptx_cp_async(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
    struct ptx_insn to = *i, from = *i;
    struct places p;
    to.op = OP_st; /* of no registers: its bytes come later */
    to.n_list = 0;
    to.space = PTX_SHARED;
    from.op = OP_ld;
    from.space = PTX_GLOBAL;
    from.src[0] = i->src[1];
    from.imm = i->addend;
    if (w->n_copy == w->copy_room) {
        w->copy_room = w->copy_room ? w->copy_room * 2 : 16;
        w->copy = realloc(w->copy, w->copy_room * sizeof *w->copy);
        if (!w->copy)
            abort();
    }
    struct ptx_copy *c = w->copy + w->n_copy;
    c->mask = mask;
    c->group = w->copy_group;
    c->bytes = i->bytes;
    if (!locate(r, w, &to, mask, i->bytes, &p) || !touch(r, w, &to, mask, i->bytes, &p))
        return false;
    for (int l = 0; l < PTX_LANES; l++)
        if (mask >> l & 1) {
            c->to[l] = (uint32_t)p.address[l];
            memset(p.defined[l], 0, i->bytes);
            uint32_t n = ptx_reg(w, i->src[2])[l];
            c->n[l] = n < i->bytes ? n : i->bytes;
        }
    uint32_t reads = 0;
    for (int l = 0; l < PTX_LANES; l++)
        reads |= (mask >> l & 1 && c->n[l] ? 1u : 0u) << l;
    if (reads && (!locate(r, w, &from, reads, i->bytes, &p) || !touch(r, w, &from, reads, i->bytes, &p)))
        return false;
    for (int l = 0; l < PTX_LANES; l++)
        if (reads >> l & 1)
            c->from[l] = p.address[l];
    w->n_copy++;
    return true;
}

/* Ends the copies of all groups but the newest. */
bool ptx_cp_wait(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
    uint32_t kept = 0;
    struct ptx_insn to = *i;
    to.op = OP_st;
    to.n_list = 0;
    for (uint32_t k = 0; k < w->n_copy; k++) {
        struct ptx_copy *c = w->copy + k;
        struct places p;
        bool stays = i->imm >= 0 && c->group + (uint32_t)i->imm >= w->copy_group;
        for (int l = 0; l < PTX_LANES && !stays; l++)
            if (c->mask & mask & 1u << l) {
                uint8_t *at = r->shared + c->to[l], *defined = r->shared_defined + c->to[l];
                p.space[l] = PTX_SHARED;
                p.address[l] = c->to[l];
                if (r->shared_word && !touch_lane(r, w, &to, l, c->bytes, GPU_WRITE, &p))
                    return false;
                memset(at, 0, c->bytes);
                memset(defined, 1, c->bytes);
                memcpy(at, (const void *)(uintptr_t)c->from[l], c->n[l]);
                for (uint32_t b = 0; b < c->n[l] && gpu_is_device(c->from[l]); b++)
                    defined[b] = gpu_state_all(c->from[l] + b, 1, 4);
                c->mask &= ~(1u << l);
            }
        if (c->mask)
            w->copy[kept++] = *c;
    }
    w->n_copy = kept;
    return true;
}

/* ---- ldmatrix ------------------------------------------------------------------------------------------ */

/* Lane 8m + k has the address of row k of matrix m; lane l gets columns 2 (l % 4) and the next of row l / 4. */
bool ptx_ldmatrix(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i)
{
    struct ptx_insn row = *i;
    struct places p;
    row.op = OP_ld;
    row.space = PTX_SHARED;
    uint32_t used = i->n_list == 4 ? PTX_ALL : (1u << 8 * i->n_list) - 1;
    if (!locate(r, w, &row, used, 16, &p) || !touch(r, w, &row, used, 16, &p))
        return false;
    for (int m = 0; m < i->n_list; m++)
        for (int l = 0; l < PTX_LANES; l++) {
            uint16_t half[2];
            bool known = true;
            for (int k = 0; k < 2; k++) {
                int line = i->sub ? l % 4 * 2 + k : l / 4, column = i->sub ? l / 4 : l % 4 * 2 + k;
                int lane = 8 * m + line;
                memcpy(half + k, p.at[lane] + 2 * column, 2);
                known &= !memchr(p.defined[lane] + 2 * column, 0, 2);
            }
            ptx_set(w, r->m->list[i->list + (uint32_t)m], l, false, half[0] | (uint32_t)half[1] << 16, known);
        }
    return true;
}
