/* Decodes instructions that use memory, wait at barriers or join the lanes of a warp. */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/parse.h"

/* ---- memory ------------------------------------------------------------------------------------------- */

static enum ptx_space take_space(struct ptx_opcode *c)
{
    ptx_modifier(c, "cta"); /* of shared::cta, split at its colons below */
    return ptx_modifier(c, "global") || ptx_modifier(c, "const")         ? PTX_GLOBAL
           : ptx_modifier(c, "shared") || ptx_modifier(c, "shared::cta") ? PTX_SHARED
           : ptx_modifier(c, "local")                                    ? PTX_LOCAL
           : ptx_modifier(c, "param")                                    ? PTX_PARAM
                                                                         : PTX_GENERIC;
}

/* Hints of caches, which change no value, and orders among threads. */
static uint8_t take_order(struct ptx_opcode *c)
{
    static const char *const hints[] = { "ca",
                                         "cg",
                                         "cs",
                                         "lu",
                                         "cv",
                                         "wb",
                                         "wt",
                                         "nc",
                                         "weak",
                                         "L1::no_allocate",
                                         "L1::evict_first",
                                         "L1::evict_last",
                                         "L1::evict_normal",
                                         "L1::evict_unchanged",
                                         "L2::evict_first",
                                         "L2::evict_last",
                                         "L2::evict_normal",
                                         "L2::64B",
                                         "L2::128B",
                                         "L2::256B" };
    static const char *const orders[] = { "volatile", "relaxed", "acquire", "release", "acq_rel" };
    static const char *const scopes[] = { "cta", "gpu", "sys", "cluster" };
    int which;
    while (ptx_modifier_of(c, hints, sizeof hints / sizeof *hints, &which))
        ;
    uint8_t order = 0;
    if (ptx_modifier_of(c, orders, 5, &which))
        order = which >= 3 ? ORDER_relaxed | ORDER_release : ORDER_relaxed;
    ptx_modifier_of(c, scopes, 4, &which);
    return order;
}

/* Sets space, src[0] and imm of i; the registers it needs are made before. */
struct address {
    uint32_t reg;
    enum ptx_space space;
    int64_t offset;
};

static struct address take_address(struct ptx_parser *p, const struct ptx_operand *o, enum ptx_space space)
{
    struct address a = { 0, space, o->value };
    if (o->kind != OPERAND_ADDRESS)
        ptx_error(p, "an address is expected");
    if (o->name && o->name->kind != NAME_REG) {
        struct ptx_operand without = *o;
        without.value = 0;
        a.reg = ptx_name_reg(p, &without, true);
        if (space == PTX_PARAM && o->name->kind == NAME_LOCAL)
            a.space = PTX_LOCAL;
        if (space == PTX_GENERIC)
            a.space = o->name->kind == NAME_SHARED || o->name->kind == NAME_DYNAMIC ? PTX_SHARED
                      : o->name->kind == NAME_LOCAL                                 ? PTX_LOCAL
                      : o->name->kind == NAME_PARAM                                 ? PTX_PARAM
                                                                                    : PTX_GLOBAL;
    } else if (o->kind == OPERAND_ADDRESS && (o->reg || o->wide)) {
        struct ptx_operand reg = *o;
        reg.kind = OPERAND_REG;
        a.reg = ptx_operand_reg(p, &reg, true);
        if (space == PTX_PARAM && !p->f->is_kernel)
            a.space = PTX_LOCAL; /* where a function's parameters are */
    } else
        ptx_error(p, "'%.100s' is not known", o->word);
    return a;
}

static void decode_access(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                          struct ptx_guard g)
{
    bool is_load = c->part[0][0] == 'l';
    int vector = ptx_modifier(c, "v2") ? 2 : ptx_modifier(c, "v4") ? 4 : ptx_modifier(c, "v8") ? 8 : 1;
    enum ptx_space space = take_space(c);
    uint8_t order = take_order(c);
    struct ptx_type t;
    if (ptx_modifier(c, "mmio") || !ptx_take_type(c, &t) || t.kind == KIND_PRED || t.bytes > 8)
        ptx_unknown(p, c);
    ptx_all_used(p, c);
    const struct ptx_operand *data = o + (is_load ? 0 : 1), *item = data->kind == OPERAND_LIST ? data->item : data;
    if (n != 2 || (data->kind == OPERAND_LIST ? data->n_item : 1) != vector)
        ptx_error(p, "'%.100s' has other operands", c->text);
    struct address a = take_address(p, o + (is_load ? 1 : 0), space);
    uint32_t reg[8];
    bool wide = t.bytes == 8;
    for (int k = 0; k < vector; k++)
        wide |= item[k].kind == OPERAND_REG && item[k].wide;
    for (int k = 0; k < vector; k++) {
        if (item[k].kind == OPERAND_SINK)
            reg[k] = ptx_new_reg(p, wide);
        else if (is_load && (item[k].kind != OPERAND_REG || item[k].wide != wide))
            ptx_error(p, "'%.100s' loads to other registers", c->text);
        else
            reg[k] = ptx_operand_reg(p, item + k, wide);
    }
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, is_load ? OP_ld : OP_st), g);
    i->src[0] = a.reg;
    i->space = (uint8_t)a.space;
    i->imm = a.offset;
    i->bytes = (uint8_t)t.bytes;
    i->is_signed = t.kind == KIND_SIGNED;
    i->is_sync = order;
    i->wide = wide;
    i->n_list = (uint8_t)vector;
    for (int k = 0; k < vector; k++) {
        uint32_t at = ptx_list_add(p, reg[k]);
        i->list = k ? i->list : at;
    }
}

static void decode_atom(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                        struct ptx_guard g)
{
    static const char *const names[ATOM_COUNT] = {
        "add", "and", "or", "xor", "exch", "cas", "min", "max", "inc", "dec"
    };
    bool is_atom = c->part[0][0] == 'a';
    int which;
    enum ptx_space space = take_space(c);
    uint8_t order = take_order(c);
    struct ptx_type t;
    bool pair = false;
    ptx_modifier(c, "noftz");
    if (!ptx_modifier_of(c, names, ATOM_COUNT, &which))
        ptx_unknown(p, c);
    if ((pair = ptx_modifier(c, "f16x2")))
        t = (struct ptx_type){ KIND_FLOAT, 4 };
    else if ((pair = ptx_modifier(c, "bf16x2")))
        t = (struct ptx_type){ KIND_BFLOAT, 4 };
    else if (!ptx_take_type(c, &t) || t.bytes > 8 || t.kind == KIND_PRED)
        ptx_unknown(p, c);
    if (pair && which != ATOM_add)
        ptx_unknown(p, c);
    ptx_all_used(p, c);
    if (n != (is_atom ? 1 : 0) + 2 + (which == ATOM_cas))
        ptx_error(p, "'%.100s' has other operands", c->text);
    const struct ptx_operand *rest = o + is_atom;
    bool wide = t.bytes == 8;
    struct address a = take_address(p, rest, space);
    uint32_t value = ptx_operand_reg(p, rest + 1, wide),
             other = which == ATOM_cas ? ptx_operand_reg(p, rest + 2, wide) : 0;
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_atom), g);
    i->space = (uint8_t)a.space;
    i->src[0] = a.reg;
    i->imm = a.offset;
    i->src[1] = value;
    i->src[2] = other;
    i->dst = is_atom && o->kind == OPERAND_REG ? o->reg : 0;
    i->sub = (uint8_t)which;
    i->bytes = (uint8_t)t.bytes;
    i->kind = (uint8_t)t.kind;
    i->addend = pair;
    i->is_sync = order;
    i->wide = wide;
}

static void decode_cp_async(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                            struct ptx_guard g)
{
    struct ptx_insn *i;
    if (!ptx_modifier(c, "async"))
        ptx_unknown(p, c);
    if (ptx_modifier(c, "commit_group")) {
        ptx_all_used(p, c);
        ptx_guarded(ptx_emit(p, OP_cp_commit), g);
        return;
    }
    if (ptx_modifier(c, "wait_group") || ptx_modifier(c, "wait_all")) {
        ptx_all_used(p, c);
        i = ptx_guarded(ptx_emit(p, OP_cp_wait), g);
        i->imm = n ? o->value : -1;
        return;
    }
    take_order(c);
    if (!(ptx_modifier(c, "shared") || ptx_modifier(c, "shared::cta")) || !ptx_modifier(c, "global") || n < 3)
        ptx_unknown(p, c);
    ptx_all_used(p, c);
    struct address to = take_address(p, o, PTX_SHARED), from = take_address(p, o + 1, PTX_GLOBAL);
    uint32_t size = ptx_operand_reg(p, o + (n > 3 ? 3 : 2), false);
    i = ptx_guarded(ptx_emit(p, OP_cp_async), g);
    i->src[0] = to.reg;
    i->src[1] = from.reg;
    i->src[2] = size;
    i->imm = to.offset;
    i->addend = from.offset;
    i->bytes = (uint8_t)o[2].value;
}

static void decode_barrier(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                           struct ptx_guard g)
{
    static const char *const reductions[] = { "popc", "or", "and" };
    bool aligned = c->part[0][3] == 0 || ptx_modifier(c, "aligned"), warp = ptx_modifier(c, "warp");
    int kind = BARRIER_sync, which;
    ptx_modifier(c, "cta");
    if (ptx_modifier(c, "arrive"))
        kind = BARRIER_arrive;
    else if (ptx_modifier(c, "red") && ptx_modifier_of(c, reductions, 3, &which) && n >= 3 &&
             (ptx_modifier(c, "u32") || ptx_modifier(c, "pred")))
        kind = BARRIER_popc + which;
    else if (!ptx_modifier(c, "sync"))
        ptx_unknown(p, c);
    ptx_all_used(p, c);
    bool reduces = kind >= BARRIER_popc;
    const struct ptx_operand *in = o + reduces;
    int n_in = n - 2 * reduces;
    uint32_t a = n_in > 0 ? ptx_operand_reg(p, in, false) : 0, b = n_in > 1 ? ptx_operand_reg(p, in + 1, false) : 0;
    uint32_t pred = reduces ? ptx_pred_reg(p, o + n - 1) : 0;
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, warp ? OP_warp_sync : OP_bar), g);
    i->src[0] = a;
    i->src[1] = b;
    i->src[2] = pred;
    i->dst = reduces ? o->reg : 0;
    i->sub = (uint8_t)kind;
    i->imm = aligned;
}

/* ---- lanes together ------------------------------------------------------------------------------------- */

static void set_second(struct ptx_parser *p, struct ptx_insn *i, uint32_t second)
{
    i->n_list = second != 0;
    uint32_t insn = (uint32_t)(i - p->m->code), at = ptx_list_add(p, second);
    p->m->code[insn].list = at;
}

static void decode_lanes(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                         struct ptx_guard g)
{
    static const char *const shfl[] = { "up", "down", "bfly", "idx" }, *const vote[] = { "all", "any", "uni",
                                                                                         "ballot" };
    static const char *const redux[ATOM_COUNT] = { "add", "and", "or", "xor", "-", "-", "min", "max", "-", "-" };
    enum ptx_op op;
    struct ptx_type t = { KIND_BITS, 4 };
    int which = 0, sources = n - 1;
    uint32_t source[4] = { 0 };
    if (!ptx_modifier(c, "sync"))
        ptx_unknown(p, c);
    if (!strcmp(c->part[0], "shfl") && ptx_modifier_of(c, shfl, 4, &which) && sources == 4)
        op = OP_shfl;
    else if (!strcmp(c->part[0], "vote") && ptx_modifier_of(c, vote, 4, &which) && sources == 2)
        op = OP_vote;
    else if (!strcmp(c->part[0], "match") && sources == 2 &&
             ((which = ptx_modifier(c, "all")) || ptx_modifier(c, "any")))
        op = OP_match;
    else if (!strcmp(c->part[0], "redux") && ptx_modifier_of(c, redux, ATOM_COUNT, &which) && sources == 2)
        op = OP_redux;
    else if (!strcmp(c->part[0], "elect") && sources == 1)
        op = OP_elect;
    else
        ptx_unknown(p, c);
    if (op != OP_elect && !ptx_take_type(c, &t))
        ptx_unknown(p, c);
    ptx_all_used(p, c);
    for (int k = 0; k < sources; k++)
        source[k] = op == OP_vote && !k ? ptx_pred_reg(p, o + 1) : ptx_operand_reg(p, o + 1 + k, !k && t.bytes == 8);
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, op), g);
    memcpy(i->src, source, sizeof source);
    i->dst = o->kind == OPERAND_REG ? o->reg : 0;
    i->sub = (uint8_t)which;
    i->bytes = (uint8_t)t.bytes;
    i->is_signed = t.kind == KIND_SIGNED;
    set_second(p, i, o->second);
}

static void add_list(struct ptx_parser *p, struct ptx_insn *i, const struct ptx_operand *o)
{
    uint32_t insn = (uint32_t)(i - p->m->code);
    int n = o->kind == OPERAND_LIST ? o->n_item : 1;
    const struct ptx_operand *item = o->kind == OPERAND_LIST ? o->item : o;
    for (int k = 0; k < n; k++) {
        uint32_t at = ptx_list_add(p, ptx_operand_reg(p, item + k, false));
        if (!p->m->code[insn].n_list++)
            p->m->code[insn].list = at;
    }
}

static void decode_ldmatrix(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                            struct ptx_guard g)
{
    int count = ptx_modifier(c, "x1") ? 1 : ptx_modifier(c, "x2") ? 2 : ptx_modifier(c, "x4") ? 4 : 0;
    bool trans = ptx_modifier(c, "trans");
    if (!count || n != 2 || !ptx_modifier(c, "sync") || !ptx_modifier(c, "aligned") || !ptx_modifier(c, "m8n8") ||
        !(ptx_modifier(c, "shared") || ptx_modifier(c, "shared::cta")) || !ptx_modifier(c, "b16"))
        ptx_unknown(p, c);
    ptx_all_used(p, c);
    struct address a = take_address(p, o + 1, PTX_SHARED);
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_ldmatrix), g);
    i->src[0] = a.reg;
    i->imm = a.offset;
    i->sub = trans;
    add_list(p, i, o);
    if (i->n_list != count)
        ptx_unknown(p, c);
}

/* Integer products only: the order of additions in those of floats is not specified. */
static void decode_mma(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                       struct ptx_guard g)
{
    int depth = ptx_modifier(c, "m16n8k32") ? 32 : ptx_modifier(c, "m16n8k16") ? 16 : 0;
    if (!depth || n != 4 || !ptx_modifier(c, "sync") || !ptx_modifier(c, "aligned") || !ptx_modifier(c, "row") ||
        !ptx_modifier(c, "col") || !ptx_modifier(c, "s32"))
        ptx_unknown(p, c);
    ptx_modifier(c, "satfinite") ? ptx_unknown(p, c) : (void)0;
    bool signs[2];
    for (int k = 0; k < 2; k++) {
        struct ptx_type t;
        if (!ptx_take_type(c, &t) || t.bytes != 1)
            ptx_unknown(p, c);
        signs[k] = t.kind == KIND_SIGNED;
    }
    if (!ptx_modifier(c, "s32"))
        ptx_unknown(p, c);
    ptx_all_used(p, c);
    for (int k = 1; k < 4; k++)
        for (int j = 0; j < o[k].n_item; j++)
            if (o[k].item[j].kind != OPERAND_REG)
                ptx_operand_reg(p, o[k].item + j, false); /* makes the constant before the instruction */
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_mma), g);
    i->imm = depth;
    i->sub = (uint8_t)(signs[0] | signs[1] << 1);
    for (int k = 0; k < 4; k++)
        add_list(p, i, o + k);
    if (p->m->code[p->m->n_code - 1].n_list != 4 + depth / 8 + depth / 16 + 4)
        ptx_unknown(p, c);
}

/* ---- all ------------------------------------------------------------------------------------------------- */

bool ptx_decode_memory(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                       struct ptx_guard g)
{
    static const struct {
        const char *name;
        void (*decode)(struct ptx_parser *, struct ptx_opcode *, const struct ptx_operand *, int, struct ptx_guard);
    } known[] = {
        { "ld", decode_access },   { "ldu", decode_access },      { "st", decode_access },
        { "bar", decode_barrier }, { "barrier", decode_barrier }, { "atom", decode_atom },
        { "red", decode_atom },    { "cp", decode_cp_async },     { "ldmatrix", decode_ldmatrix },
        { "mma", decode_mma },     { "shfl", decode_lanes },      { "vote", decode_lanes },
        { "match", decode_lanes }, { "redux", decode_lanes },     { "elect", decode_lanes },
    };
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (!strcmp(c->part[0], known[k].name)) {
            known[k].decode(p, c, o, n, g);
            return true;
        }
    return false;
}
