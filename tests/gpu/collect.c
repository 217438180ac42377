/* Instructions that lanes of a warp execute together: shuffles, votes, matches, reductions, products of matrices. */
#include <string.h>

#include "tests/gpu/ptx.h"

#define LAUNCH_FAILED 719

static uint32_t first_lane(uint32_t mask) { return (uint32_t)__builtin_ctz(mask); }

static void set_second(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, int lane, bool value)
{
    if (i->n_list)
        ptx_set(w, r->m->list[i->list], lane, false, value ? PTX_ALL : 0, true);
}

/* One value for all lanes of mask. */
static void set_all(struct ptx_warp *w, uint32_t reg, uint32_t mask, uint32_t value)
{
    uint32_t *to = ptx_reg(w, reg);
    for (uint32_t l = 0; l < PTX_LANES; l++)
        to[l] = mask & 1u << l ? value : to[l];
    w->defined[reg] |= mask;
}

static bool shuffle(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
    const uint32_t *value = ptx_reg(w, i->src[0]), *operand = ptx_reg(w, i->src[1]), *clamp = ptx_reg(w, i->src[2]);
    uint32_t result[PTX_LANES], known = 0, inside = 0, defined = w->defined[i->src[0]];
    for (uint32_t l = 0; l < PTX_LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        uint32_t segment = clamp[l] >> 8 & 31, c = clamp[l] & 31, b = operand[l] & 31;
        uint32_t most = (l & segment) | (c & ~segment), least = l & segment, from = l;
        bool in = false;
        switch (i->sub) {
        case SHFL_up:
            from = l - b, in = (int32_t)from >= (int32_t)most;
            break;
        case SHFL_down:
            from = l + b, in = from <= most;
            break;
        case SHFL_bfly:
            from = l ^ b, in = from <= most;
            break;
        default:
            from = least | (b & ~segment), in = from <= most;
        }
        if (!in)
            from = l;
        if (!(mask >> from & 1)) {
            ptx_fail(r, w, (int)l, i, LAUNCH_FAILED, "a shuffle reads lane %u, which does not take part", from);
            return false;
        }
        result[l] = value[from];
        known |= (defined >> from & 1) << l;
        inside |= (uint32_t)in << l;
    }
    uint32_t *to = ptx_reg(w, i->dst);
    for (int l = 0; l < PTX_LANES; l++)
        if (mask >> l & 1 && i->dst)
            to[l] = result[l];
    if (i->dst)
        w->defined[i->dst] = (w->defined[i->dst] & ~mask) | (known & mask);
    if (i->n_list) {
        set_all(w, r->m->list[i->list], mask & inside, PTX_ALL);
        set_all(w, r->m->list[i->list], mask & ~inside, 0);
    }
    return true;
}

static void vote(struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
    uint32_t ballot = 0;
    for (int l = 0; l < PTX_LANES; l++)
        ballot |= (mask >> l & 1 && ptx_reg(w, i->src[0])[l] ? 1u : 0u) << l;
    bool all = ballot == mask, any = ballot != 0,
         answer = i->sub == VOTE_all   ? all
                  : i->sub == VOTE_any ? any
                                       : all || !any;
    uint32_t v = i->sub == VOTE_ballot ? ballot : answer ? PTX_ALL : 0;
    set_all(w, i->dst, mask, v);
}

static void match(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
    for (int l = 0; l < PTX_LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        uint32_t same = 0;
        for (int k = 0; k < PTX_LANES; k++)
            same |= (mask >> k & 1 &&
                             ptx_value(w, i->src[0], k, i->bytes == 8) == ptx_value(w, i->src[0], l, i->bytes == 8)
                         ? 1u
                         : 0u)
                    << k;
        if (i->dst)
            ptx_set(w, i->dst, l, false, i->sub ? (same == mask ? mask : 0) : same, true);
        set_second(r, w, i, l, same == mask);
    }
}

static void reduce(struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
    const uint32_t *v = ptx_reg(w, i->src[0]);
    uint32_t sum = v[first_lane(mask)];
    for (uint32_t l = first_lane(mask) + 1; l < PTX_LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        bool less = i->is_signed ? (int32_t)v[l] < (int32_t)sum : v[l] < sum;
        switch (i->sub) {
        case ATOM_add:
            sum += v[l];
            break;
        case ATOM_and:
            sum &= v[l];
            break;
        case ATOM_or:
            sum |= v[l];
            break;
        case ATOM_xor:
            sum ^= v[l];
            break;
        case ATOM_min:
            sum = less ? v[l] : sum;
            break;
        default:
            sum = less ? sum : v[l];
        }
    }
    set_all(w, i->dst, mask, sum);
}

/* The fragments of m16n8k16 and m16n8k32 for bytes: lane l has, in register v of a, row l / 4 + 8 (v % 2) and columns
 * 4 (l % 4) + 16 (v / 2) on; of b, column l / 4 and rows 4 (l % 4) + 16 v on; of c and d, row l / 4 + 8 (v / 2) and
 * column 2 (l % 4) + v % 2. */
static bool multiply(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i)
{
    enum { ROWS = 16, COLUMNS = 8, DEPTH = 32 };
    int32_t a[ROWS][DEPTH], b[COLUMNS][DEPTH], d[ROWS][COLUMNS];
    int depth = (int)i->imm, n_a = depth / 8, n_b = depth / 16;
    const uint32_t *list = r->m->list + i->list, *in_a = list + 4, *in_b = in_a + n_a, *in_c = in_b + n_b;
    uint32_t known = PTX_ALL;
    for (int k = 4; k < i->n_list; k++)
        known &= w->defined[list[k]];
    for (int v = 0; v < n_a; v++)
        for (int l = 0; l < PTX_LANES; l++)
            for (int j = 0; j < 4; j++) {
                uint32_t byte = ptx_reg(w, in_a[v])[l] >> 8 * j;
                a[l / 4 + v % 2 * 8][l % 4 * 4 + v / 2 * 16 + j] = i->sub & 1 ? (int8_t)byte : (uint8_t)byte;
            }
    for (int v = 0; v < n_b; v++)
        for (int l = 0; l < PTX_LANES; l++)
            for (int j = 0; j < 4; j++) {
                uint32_t byte = ptx_reg(w, in_b[v])[l] >> 8 * j;
                b[l / 4][l % 4 * 4 + v * 16 + j] = i->sub & 2 ? (int8_t)byte : (uint8_t)byte;
            }
    for (int v = 0; v < 4; v++)
        for (int l = 0; l < PTX_LANES; l++)
            d[l / 4 + v / 2 * 8][l % 4 * 2 + v % 2] = (int32_t)ptx_reg(w, in_c[v])[l];
    for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < COLUMNS; n++) {
            int32_t sum = 0;
            for (int k = 0; k < depth; k++)
                sum += a[m][k] * b[n][k];
            d[m][n] = (int32_t)((uint32_t)d[m][n] + (uint32_t)sum);
        }
    for (int v = 0; v < 4; v++) {
        for (int l = 0; l < PTX_LANES; l++)
            ptx_reg(w, list[v])[l] = (uint32_t)d[l / 4 + v / 2 * 8][l % 4 * 2 + v % 2];
        w->defined[list[v]] = known == PTX_ALL ? PTX_ALL : 0;
    }
    return true;
}

bool ptx_collective(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
    uint32_t undefined = 0;
    for (int k = i->op == OP_shfl ? 1 : i->op == OP_ldmatrix ? 4 : 0; k < 4; k++) /* a shuffle moves undefined values */
        undefined |= mask & ~w->defined[i->src[k]];
    if (undefined) {
        ptx_fail(r, w, (int)first_lane(undefined), i, LAUNCH_FAILED, "lanes exchange an undefined value");
        return false;
    }
    switch (i->op) {
    case OP_shfl:
        return shuffle(r, w, i, mask);
    case OP_vote:
        vote(w, i, mask);
        return true;
    case OP_match:
        match(r, w, i, mask);
        return true;
    case OP_redux:
        reduce(w, i, mask);
        return true;
    case OP_ldmatrix:
        return ptx_ldmatrix(r, w, i);
    case OP_mma:
        return multiply(r, w, i);
    case OP_elect:
        for (int l = 0; l < PTX_LANES; l++)
            if (mask >> l & 1) {
                if (i->dst)
                    ptx_set(w, i->dst, l, false, first_lane(mask), true);
                set_second(r, w, i, l, (uint32_t)l == first_lane(mask));
            }
        return true;
    default:
        return true; /* OP_warp_sync */
    }
}
