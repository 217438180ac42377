/* Runs a launch: block after block, in each block warp after warp until it waits or ends.
 *
 * A warp is a set of groups of lanes.  A group runs until it reaches the instruction of another group, passes it,
 * diverges, waits or ends; then the group with the lowest instruction is next, or any if the launch has a seed.  Groups
 * at the same instruction are joined. */
#include <immintrin.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/memory.h"
#include "tests/gpu/ptx.h"

#define LAUNCH_FAILED 719
#define STEP_LIMIT    (1ull << 34) /* instructions of warps in a launch */

static uint64_t all_thread_steps;

uint64_t ptx_thread_instructions(void) { return all_thread_steps; }

uint64_t ptx_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

void ptx_set(struct ptx_warp *w, uint32_t reg, int lane, bool wide, uint64_t value, bool is_defined)
{
    if (wide)
        ((uint64_t *)(void *)ptx_reg(w, reg))[lane] = value;
    else
        ptx_reg(w, reg)[lane] = (uint32_t)value;
    w->defined[reg] = (w->defined[reg] & ~(1u << lane)) | (uint32_t)is_defined << lane;
}

void ptx_fail(struct ptx_run *r, const struct ptx_warp *w, int lane, const struct ptx_insn *i, int code,
              const char *format, ...)
{
    char text[400];
    va_list list;
    if (r->failed)
        return;
    r->failed = true;
    r->error_code = code;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    const uint32_t *b = r->launch->block;
    uint32_t t = w ? w->number * PTX_LANES + (uint32_t)lane : 0;
    const char *line = i && i->line && i->line <= r->m->n_line ? r->m->line[i->line - 1] : "";
    line += strspn(line, " \t");
    snprintf(r->error, r->error_room, "%s: %s; thread (%u, %u, %u) of block (%u, %u, %u); PTX line %u: %s",
             r->launch->f->name, text, t % b[0], t / b[0] % b[1], t / b[0] / b[1], r->cta[0], r->cta[1], r->cta[2],
             i ? i->line : 0, line);
}

/* ---- lanes -------------------------------------------------------------------------------------------- */

static inline uint32_t mask_of(const uint32_t *pred)
{
    uint32_t m = 0;
    for (int k = 0; k < 4; k++)
        m |= (uint32_t)_mm256_movemask_ps(_mm256_load_ps((const float *)(const void *)(pred + 8 * k))) << 8 * k;
    return m;
}

/* The lanes of mask from `from`, the others as they were. */
static inline void blend32(uint32_t *to, const uint32_t *from, uint32_t mask)
{
    for (uint32_t l = 0; l < PTX_LANES; l++)
        to[l] = mask & 1u << l ? from[l] : to[l];
}
static inline void blend64(uint64_t *to, const uint64_t *from, uint32_t mask)
{
    for (uint32_t l = 0; l < PTX_LANES; l++)
        to[l] = mask & 1u << l ? from[l] : to[l];
}

static void arithmetic(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
    uint32_t a = w->defined[i->src[0]], b = w->defined[i->src[1]], c = w->defined[i->src[2]];
    uint32_t known = a & b & c & w->defined[i->src[3]];
    if (i->op == OP_selp32 || i->op == OP_selp64 || i->op == OP_selp16) {
        uint32_t first = mask_of(ptx_reg(w, i->src[2]));
        known = c & ((first & a) | (~first & b));
    }
    w->defined[i->dst] = (w->defined[i->dst] & ~mask) | (known & mask);
    if (mask == PTX_ALL) {
        ptx_arithmetic(r, w, i, mask, ptx_reg(w, i->dst));
        return;
    }
    _Alignas(64) uint64_t result[PTX_LANES];
    ptx_arithmetic(r, w, i, mask, result);
    if (i->width == 8)
        blend64((uint64_t *)(void *)ptx_reg(w, i->dst), result, mask);
    else
        blend32(ptx_reg(w, i->dst), (const uint32_t *)(const void *)result, mask);
}

/* ---- groups ------------------------------------------------------------------------------------------- */

static void add_group(struct ptx_warp *w, uint32_t pc, uint32_t mask)
{
    w->group[w->n_group++] = (struct ptx_group){ .pc = pc, .mask = mask };
}

static void remove_group(struct ptx_warp *w, int g) { w->group[g] = w->group[--w->n_group]; }

/* Joins groups at one instruction, and finds the group that runs next, until limit: that at the lowest instruction, or
 * now and then, if the launch has a seed, another.  -1 if all wait. */
static int next_group(struct ptx_run *r, struct ptx_warp *w, uint32_t *limit)
{
    for (int a = 0; a < w->n_group; a++)
        for (int b = w->n_group - 1; b > a; b--)
            if (w->group[a].pc == w->group[b].pc && w->group[a].waits != WAITS_BARRIER &&
                w->group[b].waits != WAITS_BARRIER) {
                w->group[a].mask |= w->group[b].mask;
                w->group[a].waits = RUNS;
                remove_group(w, b);
            }
    int best = -1;
    bool any = r->launch->seed && w->n_group > 1 && ptx_random(&r->random) % 4 == 0;
    for (int g = 0; g < w->n_group; g++)
        if (w->group[g].waits == RUNS &&
            (best < 0 || (any ? ptx_random(&r->random) & 1 : w->group[g].pc < w->group[best].pc)))
            best = g;
    *limit = UINT32_MAX;
    for (int g = 0; g < w->n_group && best >= 0; g++)
        if (g != best && w->group[g].waits != WAITS_BARRIER && w->group[g].pc > w->group[best].pc &&
            w->group[g].pc < *limit)
            *limit = w->group[g].pc;
    return best;
}

/* ---- calls -------------------------------------------------------------------------------------------- */

static void copy_local(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
    size_t room = r->launch->f->local_bytes;
    for (uint32_t k = 0; k < i->n_list; k++) {
        const uint32_t *c = r->m->list + i->list + 3 * k;
        for (size_t l = 0; l < PTX_LANES; l++)
            if (mask >> l & 1) {
                memcpy(w->local + l * room + c[1], w->local + l * room + c[0], c[2]);
                memcpy(w->local_defined + l * room + c[1], w->local_defined + l * room + c[0], c[2]);
            }
    }
}

static bool call(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t pc, uint32_t mask)
{
    const struct ptx_function *f = r->m->function[i->imm];
    uint32_t inside = mask & w->defined[i->src[0]];
    if (!f->has_body || inside) {
        ptx_fail(r, w, __builtin_ctz(mask), i, LAUNCH_FAILED,
                 inside ? "recursion in %s" : "calls %s, which this module does not have", f->name);
        return false;
    }
    copy_local(r, w, i, mask);
    for (int l = 0; l < PTX_LANES; l++)
        if (mask >> l & 1)
            ptx_set(w, i->src[0], l, false, pc + 1, true);
    return true;
}

/* ---- one warp ----------------------------------------------------------------------------------------- */

enum outcome { GOES_ON, STOPS, FAILED };

/* The group leaves its instruction for up to 32 others: lanes of mask go to to[lane], the others to the next. */
static void scatter(struct ptx_warp *w, int g, uint32_t mask, const uint32_t *to)
{
    uint32_t pc = w->group[g].pc, rest = w->group[g].mask & ~mask;
    remove_group(w, g);
    if (rest)
        add_group(w, pc + 1, rest);
    while (mask) {
        uint32_t target = to[__builtin_ctz(mask)], same = 0;
        for (int l = 0; l < PTX_LANES; l++)
            same |= (mask >> l & 1 && to[l] == target ? 1u : 0u) << l;
        add_group(w, target, same);
        mask &= ~same;
    }
}

static void jump(struct ptx_warp *w, int g, uint32_t mask, uint32_t target, enum outcome *out)
{
    if (mask == w->group[g].mask) {
        w->group[g].pc = target;
        return;
    }
    w->group[g].mask &= ~mask;
    w->group[g].pc++;
    add_group(w, target, mask);
    *out = STOPS;
}

/* The lanes that an instruction for several lanes names in its mask; false: not all of them are here yet. */
static bool take_part(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask, uint32_t *members)
{
    static const uint8_t mask_at[OP_COUNT] = { [OP_shfl] = 3, [OP_vote] = 1, [OP_match] = 1, [OP_redux] = 1 };
    bool all = i->op == OP_ldmatrix || i->op == OP_mma;
    uint32_t first = (uint32_t)__builtin_ctz(mask), reg = i->src[mask_at[i->op]];
    *members = all ? PTX_ALL : ptx_reg(w, reg)[first];
    uint32_t undefined = all ? 0 : mask & ~w->defined[reg];
    if (undefined || !(*members >> first & 1)) {
        ptx_fail(r, w, (int)first, i, LAUNCH_FAILED,
                 undefined ? "the mask of lanes is undefined" : "the mask of lanes %#x lacks the lane itself",
                 *members);
        return false;
    }
    if (all && w->live != PTX_ALL) {
        ptx_fail(r, w, (int)first, i, LAUNCH_FAILED, "needs 32 lanes, but some have ended");
        return false;
    }
    return true;
}

static enum outcome together(struct ptx_run *r, struct ptx_warp *w, int g, const struct ptx_insn *i, uint32_t mask)
{
    uint32_t members, pc = w->group[g].pc;
    if (!take_part(r, w, i, mask, &members))
        return FAILED;
    members &= w->live;
    if (members & ~mask) {
        uint32_t rest = w->group[g].mask & ~mask;
        if (rest) { /* the guard sends some lanes past */
            w->group[g].mask = mask;
            add_group(w, pc + 1, rest);
        }
        w->group[g].waits = WAITS_LANES;
        return STOPS;
    }
    if (!ptx_collective(r, w, i, mask & members))
        return FAILED;
    if (mask & ~members) { /* lanes with another mask */
        uint32_t past = w->group[g].mask & (~mask | members);
        w->group[g].mask = mask & ~members;
        add_group(w, pc + 1, past);
        return STOPS;
    }
    if (i->op == OP_warp_sync)
        w->knows[w->number] = w->epoch++;
    w->group[g].pc++;
    return GOES_ON;
}

/* Barriers with a number of threads count whole warps, also those with fewer threads. */
static uint32_t threads_of(const struct ptx_warp *w, uint32_t mask)
{
    return mask == w->live ? PTX_LANES : (uint32_t)__builtin_popcount(mask);
}

static void raise(uint32_t *to, uint32_t least) { *to = *to < least ? least : *to; }

static enum outcome barrier(struct ptx_run *r, struct ptx_warp *w, int g, const struct ptx_insn *i, uint32_t mask)
{
    uint32_t first = (uint32_t)__builtin_ctz(mask);
    if (mask & ~(w->defined[i->src[0]] & w->defined[i->src[1]] & w->defined[i->src[2]])) {
        ptx_fail(r, w, (int)first, i, LAUNCH_FAILED, "an operand of a barrier is an undefined value");
        return FAILED;
    }
    uint32_t number = ptx_reg(w, i->src[0])[first], threads = ptx_reg(w, i->src[1])[first];
    if (number > 15 || threads % PTX_LANES || threads > r->n_warp * PTX_LANES) {
        ptx_fail(r, w, (int)first, i, LAUNCH_FAILED, "barrier %u for %u threads is not possible", number, threads);
        return FAILED;
    }
    if (mask != w->group[g].mask) {
        uint32_t rest = w->group[g].mask & ~mask;
        w->group[g].mask = mask;
        add_group(w, w->group[g].pc + 1, rest);
    }
    w->group[g].barrier = (uint8_t)number;
    w->group[g].expected = threads;
    if (i->sub >= BARRIER_popc) {
        uint32_t yes = mask & mask_of(ptx_reg(w, i->src[2]));
        r->true_at[number] += (uint32_t)__builtin_popcount(yes);
        r->false_at[number] += (uint32_t)__builtin_popcount(mask & ~yes);
    }
    if (i->sub == BARRIER_arrive) {
        r->arrived[number] += threads_of(w, mask);
        for (uint32_t k = 0; k < r->n_warp; k++)
            raise(r->arrived_knows + number * r->n_warp + k, k == w->number ? w->epoch : w->knows[k]);
        w->knows[w->number] = w->epoch++;
        w->group[g].pc++;
        return STOPS;
    }
    w->group[g].waits = WAITS_BARRIER;
    return STOPS;
}

static enum outcome leave(struct ptx_warp *w, int g, uint32_t mask)
{
    w->live &= ~mask;
    w->group[g].mask &= ~mask;
    w->group[g].pc++;
    if (!w->group[g].mask)
        remove_group(w, g);
    return STOPS;
}

static enum outcome branch_indexed(struct ptx_run *r, struct ptx_warp *w, int g, const struct ptx_insn *i,
                                   uint32_t mask)
{
    uint32_t to[PTX_LANES] = { 0 }, undefined = mask & ~w->defined[i->src[0]];
    for (int l = 0; l < PTX_LANES; l++) {
        uint32_t index = ptx_reg(w, i->src[0])[l];
        if (!(mask >> l & 1))
            continue;
        if (undefined || index >= (uint64_t)i->imm) {
            ptx_fail(r, w, l, i, LAUNCH_FAILED, undefined ? "an undefined index" : "index %u is no target", index);
            return FAILED;
        }
        to[l] = r->m->list[i->list + index];
    }
    scatter(w, g, mask, to);
    return STOPS;
}

/* Instructions that are no arithmetic. */
static enum outcome control(struct ptx_run *r, struct ptx_warp *w, int g, const struct ptx_insn *i, uint32_t mask)
{
    enum outcome out = GOES_ON;
    switch (i->op) {
    case OP_bra:
        jump(w, g, mask, (uint32_t)i->imm, &out);
        return out;
    case OP_ld:
    case OP_st:
    case OP_atom:
        out = ptx_access(r, w, i, mask) ? GOES_ON : FAILED;
        break;
    case OP_cp_async:
        out = ptx_cp_async(r, w, i, mask) ? GOES_ON : FAILED;
        break;
    case OP_cp_commit:
        w->copy_group++;
        break;
    case OP_cp_wait:
        out = ptx_cp_wait(r, w, i, mask) ? GOES_ON : FAILED;
        break;
    case OP_brx:
        return branch_indexed(r, w, g, i, mask);
    case OP_call:
        if (!call(r, w, i, w->group[g].pc, mask))
            return FAILED;
        jump(w, g, mask, r->m->function[i->imm]->entry, &out);
        return out;
    case OP_return_value:
        copy_local(r, w, i, mask);
        break;
    case OP_ret: {
        uint32_t to[PTX_LANES];
        memcpy(to, ptx_reg(w, i->src[0]), sizeof to);
        w->defined[i->src[0]] &= ~mask;
        scatter(w, g, mask, to);
        return STOPS;
    }
    case OP_exit:
        return leave(w, g, mask);
    case OP_trap:
        ptx_fail(r, w, __builtin_ctz(mask), i, LAUNCH_FAILED, "the kernel gives up");
        return FAILED;
    case OP_bar:
        return barrier(r, w, g, i, mask);
    case OP_nop:
        break;
    case OP_fence:
        gpu_touch_fence(&r->actor);
        break;
    case OP_sleep:
        nanosleep(&(struct timespec){ .tv_nsec = 1000 }, NULL);
        break;
    default:
        return together(r, w, g, i, mask);
    }
    w->group[g].pc++;
    return out;
}

/* Runs group g until the scheduler must choose again. */
static bool run_group(struct ptx_run *r, struct ptx_warp *w, int g, uint32_t limit)
{
    const struct ptx_insn *code = r->m->code;
    uint32_t active = w->group[g].mask, pc = w->group[g].pc, lanes = (uint32_t)__builtin_popcount(active);
    for (; pc < limit; r->steps++, r->thread_steps += lanes) {
        const struct ptx_insn *i = code + pc;
        uint32_t mask = active;
        if (i->guard) {
            uint32_t undefined = active & ~w->defined[i->guard];
            if (undefined) {
                w->group[g].pc = pc;
                ptx_fail(r, w, __builtin_ctz(undefined), i, LAUNCH_FAILED, "depends on an undefined value");
                return false;
            }
            mask &= i->negated ? ~mask_of(ptx_reg(w, i->guard)) : mask_of(ptx_reg(w, i->guard));
            if (!mask) {
                pc++;
                continue;
            }
        }
        if (i->op < OP_ARITHMETIC_END) {
            arithmetic(r, w, i, mask);
            pc++;
            continue;
        }
        w->group[g].pc = pc;
        enum outcome out = control(r, w, g, i, mask);
        if (out == FAILED)
            return false;
        if (out == STOPS)
            return true;
        pc = w->group[g].pc;
        if (r->steps > STEP_LIMIT) {
            ptx_fail(r, w, __builtin_ctz(active), i, LAUNCH_FAILED, "the launch does not end");
            return false;
        }
    }
    w->group[g].pc = pc;
    return true;
}

/* Runs the warp until each of its groups waits or has ended. False: the launch failed. */
static bool run_warp(struct ptx_run *r, struct ptx_warp *w, bool *progress)
{
    uint32_t limit;
    for (int g; (g = next_group(r, w, &limit)) >= 0;) {
        *progress = true;
        if (!run_group(r, w, g, limit))
            return false;
    }
    return true;
}

#define MOST_WARPS 32 /* of a block */

/* ---- shared memory: last accesses, kept from block to block and launch to launch ----------------------- */

static struct gpu_shared_word *shared_words;
static uint32_t shared_room, last_epoch; /* epochs grow, so that accesses of earlier blocks are older than all */

static struct gpu_shared_word *take_shared_words(uint32_t bytes)
{
    if (bytes / 4 + 4 > shared_room || last_epoch > UINT32_MAX / 2) {
        shared_room = bytes / 4 + 4;
        free(shared_words);
        shared_words = calloc(shared_room, sizeof *shared_words);
        last_epoch = 0;
        if (!shared_words)
            abort();
    }
    return shared_words;
}

static void end_block(const struct ptx_run *r)
{
    for (uint32_t k = 0; k < r->n_warp; k++)
        if (r->warp[k].epoch > last_epoch)
            last_epoch = r->warp[k].epoch;
}

/* ---- one block ---------------------------------------------------------------------------------------- */

static void start_block(struct ptx_run *r)
{
    const struct ptx_launch *l = r->launch;
    const struct ptx_function *f = l->f;
    memset(r->arrived, 0, sizeof r->arrived);
    memset(r->true_at, 0, sizeof r->true_at);
    memset(r->false_at, 0, sizeof r->false_at);
    memset(r->arrived_knows, 0, 16 * r->n_warp * sizeof *r->arrived_knows);
    r->actor.block = r->cta_number;
    r->actor.fenced = false;
    r->actor.sees = 0;
    if (l->shared_bytes) {
        memset(r->shared, 0xab, l->shared_bytes);
        memset(r->shared_defined, 0, l->shared_bytes);
    }
    for (uint32_t k = 0; k < r->n_warp; k++) {
        struct ptx_warp *w = r->warp + k;
        uint32_t left = r->n_thread - k * PTX_LANES;
        w->live = left >= PTX_LANES ? PTX_ALL : (1u << left) - 1;
        w->n_group = 0;
        w->n_copy = w->copy_group = 0;
        w->epoch = last_epoch + 1;                /* all accesses of earlier blocks came before */
        for (uint32_t j = 0; j < MOST_WARPS; j++) /* an earlier block may have had more warps */
            w->knows[j] = last_epoch;
        add_group(w, f->entry, w->live);
        memcpy(w->defined, r->first_defined, f->n_reg * sizeof *w->defined);
        if (f->local_bytes)
            memset(w->local_defined, 0, (size_t)f->local_bytes * PTX_LANES);
        for (uint32_t c = 0; c < f->n_constant; c++)
            if (f->constant[c].special >= SPECIAL_PER_BLOCK)
                for (int lane = 0; lane < PTX_LANES; lane++)
                    ptx_set(w, f->constant[c].reg, lane, f->constant[c].wide,
                            r->cta[f->constant[c].special - SPECIAL_PER_BLOCK], true);
    }
}

static bool same_place(struct ptx_run *r, const struct ptx_warp *w, uint32_t number)
{
    uint32_t pc = UINT32_MAX;
    for (int g = 0; g < w->n_group; g++) {
        if (w->group[g].waits != WAITS_BARRIER || w->group[g].barrier != number)
            continue;
        if (pc != UINT32_MAX && pc != w->group[g].pc && r->m->code[pc].imm) {
            ptx_fail(r, w, __builtin_ctz(w->group[g].mask), r->m->code + w->group[g].pc, LAUNCH_FAILED,
                     "lanes of one warp wait at different barriers");
            return false;
        }
        pc = w->group[g].pc;
    }
    return true;
}

static bool waits_at(const struct ptx_warp *w, int g, uint32_t number)
{
    return w->group[g].waits == WAITS_BARRIER && w->group[g].barrier == number;
}

/* The result of a barrier that reduces predicates. */
static void set_reduced(struct ptx_run *r, struct ptx_warp *w, const struct ptx_group *g, uint32_t number)
{
    const struct ptx_insn *i = r->m->code + g->pc;
    uint32_t v = i->sub == BARRIER_popc ? r->true_at[number]
                 : i->sub == BARRIER_or ? (r->true_at[number] ? PTX_ALL : 0)
                                        : (r->false_at[number] ? 0 : PTX_ALL);
    for (int l = 0; l < PTX_LANES && i->sub >= BARRIER_popc; l++)
        if (g->mask >> l & 1)
            ptx_set(w, i->dst, l, false, v, true);
}

/* The warps that wait go on; the accesses of each come before those of all. */
static bool open_barrier(struct ptx_run *r, uint32_t number)
{
    uint32_t *all = r->arrived_knows + number * r->n_warp;
    for (uint32_t k = 0; k < r->n_warp; k++) {
        struct ptx_warp *w = r->warp + k;
        bool here = false;
        if (!same_place(r, w, number))
            return false;
        for (int g = 0; g < w->n_group; g++)
            here |= waits_at(w, g, number);
        for (uint32_t j = 0; j < r->n_warp && here; j++)
            raise(all + j, j == k ? w->epoch : w->knows[j]);
    }
    for (uint32_t k = 0; k < r->n_warp; k++) {
        struct ptx_warp *w = r->warp + k;
        bool here = false;
        for (int g = 0; g < w->n_group; g++)
            if (waits_at(w, g, number)) {
                set_reduced(r, w, w->group + g, number);
                w->group[g].waits = RUNS;
                w->group[g].pc++;
                here = true;
            }
        if (here) {
            memcpy(w->knows, all, r->n_warp * sizeof *all);
            w->epoch++;
        }
    }
    return true;
}

/* Opens the barriers at which all expected threads have arrived. */
static bool open_barriers(struct ptx_run *r, bool *progress)
{
    uint32_t live = 0;
    for (uint32_t k = 0; k < r->n_warp; k++)
        live += (uint32_t)__builtin_popcount(r->warp[k].live);
    for (uint32_t number = 0; number < 16; number++) {
        uint32_t here = r->arrived[number], expected = 0;
        bool waits = false;
        for (uint32_t k = 0; k < r->n_warp; k++) {
            const struct ptx_warp *w = r->warp + k;
            uint32_t mask = 0, threads = 0;
            for (int g = 0; g < w->n_group; g++)
                if (waits_at(w, g, number)) {
                    mask |= w->group[g].mask;
                    threads = w->group[g].expected;
                }
            if (!mask)
                continue;
            here += threads ? threads_of(w, mask) : (uint32_t)__builtin_popcount(mask);
            expected = threads ? threads : live;
            waits = true;
        }
        if (!waits || here < expected)
            continue;
        if (!open_barrier(r, number))
            return false;
        r->arrived[number] = r->true_at[number] = r->false_at[number] = 0;
        *progress = true;
    }
    return true;
}

static void say_stuck(struct ptx_run *r)
{
    for (uint32_t k = 0; k < r->n_warp; k++) {
        const struct ptx_warp *w = r->warp + k;
        for (int g = 0; g < w->n_group; g++)
            ptx_fail(r, w, __builtin_ctz(w->group[g].mask), r->m->code + w->group[g].pc, LAUNCH_FAILED,
                     "lanes %#x wait for others that never come", w->group[g].mask);
    }
}

static bool run_block(struct ptx_run *r)
{
    start_block(r);
    for (;;) {
        bool progress = false, live = false;
        uint32_t first = r->launch->seed ? (uint32_t)(ptx_random(&r->random) % r->n_warp) : 0;
        bool back = r->launch->seed && ptx_random(&r->random) & 1;
        for (uint32_t k = 0; k < r->n_warp; k++) {
            uint32_t n = (first + (back ? r->n_warp - k : k)) % r->n_warp;
            if (!run_warp(r, r->warp + n, &progress))
                return false;
        }
        for (uint32_t k = 0; k < r->n_warp; k++)
            live |= r->warp[k].live != 0;
        if (!live)
            return true;
        if (!open_barriers(r, &progress))
            return false;
        if (!progress) {
            say_stuck(r);
            return false;
        }
    }
}

/* ---- a launch ----------------------------------------------------------------------------------------- */

static uint64_t special_value(const struct ptx_launch *l, const struct ptx_constant *c, uint32_t warp, uint32_t lane)
{
    uint32_t t = warp * PTX_LANES + lane, threads = l->block[0] * l->block[1] * l->block[2];
    switch (c->special) {
    case SPECIAL_value:
        return c->value;
    case SPECIAL_dynamic_shared:
        return (l->f->shared_bytes + 15u) / 16 * 16 + c->value;
    case SPECIAL_tid_x:
        return t % l->block[0];
    case SPECIAL_tid_y:
        return t / l->block[0] % l->block[1];
    case SPECIAL_tid_z:
        return t / l->block[0] / l->block[1];
    case SPECIAL_laneid:
        return lane;
    case SPECIAL_warpid:
        return warp;
    case SPECIAL_lanemask_eq:
        return 1u << lane;
    case SPECIAL_lanemask_le:
        return (2u << lane) - 1;
    case SPECIAL_lanemask_lt:
        return (1u << lane) - 1;
    case SPECIAL_lanemask_ge:
        return ~((1u << lane) - 1);
    case SPECIAL_lanemask_gt:
        return ~((2u << lane) - 1);
    case SPECIAL_ntid_x:
        return l->block[0];
    case SPECIAL_ntid_y:
        return l->block[1];
    case SPECIAL_ntid_z:
        return l->block[2];
    case SPECIAL_nctaid_x:
        return l->grid[0];
    case SPECIAL_nctaid_y:
        return l->grid[1];
    case SPECIAL_nctaid_z:
        return l->grid[2];
    case SPECIAL_nwarpid:
        return (threads + PTX_LANES - 1) / PTX_LANES;
    case SPECIAL_dynamic_smem_size:
        return l->dynamic_shared;
    case SPECIAL_total_smem_size:
        return l->shared_bytes;
    case SPECIAL_nsmid:
        return 1;
    default:
        return 0;
    }
}

/* Memory for all warps, kept from launch to launch. */
static void *take_memory(size_t bytes)
{
    static void *memory;
    static size_t room;
    if (bytes > room) {
        free(memory);
        room = (bytes + 63) / 64 * 64;
        memory = aligned_alloc(64, room);
        if (!memory)
            abort();
    }
    return memory;
}

static void prepare(struct ptx_run *r)
{
    const struct ptx_launch *l = r->launch;
    const struct ptx_function *f = l->f;
    size_t n = r->n_warp, registers = (size_t)f->n_reg * PTX_LANES * sizeof(uint32_t);
    size_t defined = ((size_t)f->n_reg * sizeof(uint32_t) + 63) / 64 * 64, local = (size_t)f->local_bytes * PTX_LANES;
    size_t shared = ((size_t)l->shared_bytes + 63) / 64 * 64;
    size_t knows = MOST_WARPS * sizeof(uint32_t);
    uint8_t *at = take_memory(n * (registers + defined + knows + 2 * local) + defined + 2 * shared + 16 * knows);
    r->warp = calloc(n, sizeof *r->warp);
    if (!r->warp)
        abort();
    for (uint32_t k = 0; k < n; k++) {
        struct ptx_warp *w = r->warp + k;
        w->number = k;
        w->reg = (uint32_t *)(void *)at;
        memset(at, 0xde, registers);
        at += registers;
        w->defined = (uint32_t *)(void *)at;
        at += defined;
        w->knows = (uint32_t *)(void *)at;
        at += knows;
        w->local = at;
        w->local_defined = at + local;
        at += 2 * local;
        memset(w->defined, 0, defined);
        for (uint32_t c = 0; c < f->n_constant; c++)
            for (uint32_t lane = 0; lane < PTX_LANES; lane++)
                ptx_set(w, f->constant[c].reg, (int)lane, f->constant[c].wide,
                        special_value(l, f->constant + c, k, lane), true);
    }
    r->first_defined = (uint32_t *)(void *)at;
    memcpy(r->first_defined, r->warp[0].defined, defined);
    r->shared = at + defined;
    r->shared_defined = r->shared + shared;
    r->arrived_knows = (uint32_t *)(void *)(r->shared_defined + shared);
    r->shared_word = l->operation ? take_shared_words(l->shared_bytes) : NULL;
}

int ptx_launch_run(const struct ptx_launch *l, char *error, size_t error_room)
{
    struct ptx_run r = { .launch = l, .m = l->f->module, .error = error, .error_room = error_room, .random = l->seed };
    r.n_thread = l->block[0] * l->block[1] * l->block[2];
    r.n_warp = (r.n_thread + PTX_LANES - 1) / PTX_LANES;
    uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    uint64_t first = l->seed ? ptx_random(&r.random) % blocks : 0;
    bool back = l->seed && ptx_random(&r.random) & 1;
    r.actor = (struct gpu_actor){ .operation = l->operation, .before = l->before, .n_block = (uint32_t)blocks };
    r.actor.published = calloc(l->operation ? blocks : 1, sizeof *r.actor.published);
    if (!r.actor.published)
        abort();
    prepare(&r);
    for (uint64_t k = 0; k < blocks && !r.failed; k++) {
        uint64_t n = (first + (back ? blocks - k : k)) % blocks;
        r.cta[0] = (uint32_t)(n % l->grid[0]);
        r.cta[1] = (uint32_t)(n / l->grid[0] % l->grid[1]);
        r.cta[2] = (uint32_t)(n / l->grid[0] / l->grid[1]);
        r.cta_number = (uint32_t)n;
        run_block(&r);
        end_block(&r);
    }
    free(r.actor.published);
    for (uint32_t k = 0; k < r.n_warp; k++)
        free(r.warp[k].copy);
    free(r.warp);
    all_thread_steps += r.thread_steps;
    return r.failed ? r.error_code : 0;
}
