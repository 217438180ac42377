/* Decodes instructions: arithmetic by the table of operations.h, moves, conversions, branches and calls. */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/parse.h"

/* ---- arithmetic: the table of operations.h ----------------------------------------------------------- */

enum { BYTES_none = 0, BYTES_pred = 1, BYTES_u8 = 2, BYTES_s8 = 2, BYTES_u16 = 2, BYTES_s16 = 2, BYTES_f16 = 2 };
enum { BYTES_bf16 = 2, BYTES_u32 = 4, BYTES_s32 = 4, BYTES_f32 = 4, BYTES_u64 = 8, BYTES_s64 = 8, BYTES_f64 = 8 };
enum { SIGNED_none, SIGNED_pred = 0, SIGNED_u8 = 0, SIGNED_s8 = 1, SIGNED_u16 = 0, SIGNED_s16 = 1, SIGNED_f16 = 0 };
enum { SIGNED_bf16, SIGNED_u32 = 0, SIGNED_s32 = 1, SIGNED_f32 = 0, SIGNED_u64 = 0, SIGNED_s64 = 0, SIGNED_f64 = 0 };

static const struct row {
    const char *text;
    uint8_t to, source[3], is_signed;
} rows[] = {
#define X(name, text, D, A, B, C, expression)                                                                          \
    [OP_##name] = { text, BYTES_##D, { BYTES_##A, BYTES_##B, BYTES_##C }, SIGNED_##D },
    PTX_ARITHMETIC(X)
#undef X
};
enum { N_ROW = sizeof rows / sizeof *rows };

/* The operation whose text has this opcode among its words, or -1. A hash of all words is made at the first call. */
static int find_row(const char *opcode)
{
    enum { SIZE = 8192 };
    static struct {
        const char *word;
        size_t n;
        int op;
    } table[SIZE];
    static bool made;
    size_t n;
    for (int op = 0; !made && op < N_ROW; op++)
        for (const char *at = rows[op].text; *at; at += n + (at[n] == ' ')) {
            n = strcspn(at, " ");
            uint32_t h = 5381;
            for (size_t i = 0; i < n; i++)
                h = h * 33 + (unsigned char)at[i];
            while (table[h % SIZE].word)
                h++;
            table[h % SIZE].word = at;
            table[h % SIZE].n = n;
            table[h % SIZE].op = op;
        }
    made = true;
    uint32_t h = 5381;
    for (const char *s = opcode; *s; s++)
        h = h * 33 + (unsigned char)*s;
    for (n = strlen(opcode); table[h % SIZE].word; h++)
        if (table[h % SIZE].n == n && !memcmp(table[h % SIZE].word, opcode, n))
            return table[h % SIZE].op;
    return -1;
}

static struct ptx_insn *emit_row(struct ptx_parser *p, int op, uint32_t dst, uint32_t a, uint32_t b, uint32_t c)
{
    struct ptx_insn *i = ptx_emit(p, (enum ptx_op)op);
    i->dst = dst;
    i->width = rows[op].to == 8 ? 8 : 4;
    i->src[0] = a;
    i->src[1] = b;
    i->src[2] = c;
    return i;
}

static void decode_row(struct ptx_parser *p, int op, const struct ptx_operand *o, int n, struct ptx_guard g)
{
    const struct row *r = rows + op;
    uint32_t source[3] = { 0 };
    int wanted = 1 + (r->source[0] > 0) + (r->source[1] > 0) + (r->source[2] > 0);
    if (n != wanted)
        ptx_error(p, "%d operands in place of %d", n, wanted);
    for (int k = 0; k < 3 && r->source[k]; k++)
        source[k] = r->source[k] == 1 ? ptx_pred_reg(p, o + 1 + k) : ptx_operand_reg(p, o + 1 + k, r->source[k] == 8);
    if (o->kind != OPERAND_REG)
        ptx_error(p, "the result is no register");
    bool widen = o->wide && r->to != 8;
    if (r->to == 8 && !o->wide)
        ptx_error(p, "the result has 64 bits, its register 32");
    uint32_t dst = widen ? ptx_new_reg(p, false) : o->reg;
    ptx_guarded(emit_row(p, op, dst, source[0], source[1], source[2]), g);
    if (widen)
        ptx_guarded(emit_row(p, r->is_signed ? OP_extend_s32 : OP_extend_u32, o->reg, dst, 0, 0), g);
}

/* setp.CMP[.BOOL].TYPE p[|q], a, b[, c]; q is true where the comparison is false. */
static void decode_setp(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                        struct ptx_guard g)
{
    static const char *const bools[] = { "and", "or", "xor" };
    static const enum ptx_op ops[] = { OP_and_pred, OP_or_pred, OP_xor_pred };
    int which = -1;
    ptx_modifier_of(c, bools, 3, &which);
    char text[96] = "setp";
    for (int i = 1; i < c->n; i++)
        if (!c->used[i]) {
            strcat(text, ".");
            strncat(text, c->part[i], 15);
        }
    int op = find_row(text);
    if (op < 0 || n != (which < 0 ? 3 : 4))
        ptx_unknown(p, c);
    uint32_t a = ptx_operand_reg(p, o + 1, rows[op].source[0] == 8),
             b = ptx_operand_reg(p, o + 2, rows[op].source[1] == 8);
    bool plain = which < 0 && !o->second && o->kind == OPERAND_REG;
    uint32_t first = plain ? o->reg : ptx_new_reg(p, false), third = which < 0 ? 0 : ptx_pred_reg(p, o + 3);
    ptx_guarded(emit_row(p, op, first, a, b, 0), g);
    for (int side = 0; side < 2 && !plain; side++) {
        uint32_t dst = side ? o->second : o->kind == OPERAND_REG ? o->reg : 0, from = first;
        if (!dst)
            continue;
        if (side) {
            from = ptx_new_reg(p, false);
            ptx_guarded(emit_row(p, OP_not_pred, from, first, 0, 0), g);
        }
        ptx_guarded(emit_row(p, which < 0 ? OP_mov_pred : ops[which], dst, from, third, 0), g);
    }
}

/* set.CMP.D.TYPE: 1 or all bits where setp gives true, 0 elsewhere. */
static void decode_set(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                       struct ptx_guard g)
{
    static const char *const types[] = { "f32", "f16", "bf16", "u32", "s32", "b32" };
    static const uint32_t values[] = { 0x3f800000, 0x3c00, 0x3f80, PTX_ALL, PTX_ALL, PTX_ALL };
    char text[96] = "setp";
    int which;
    if (n != 3 || c->n != 4)
        ptx_unknown(p, c);
    snprintf(text, sizeof text, "setp.%.20s.%.20s", c->part[1], c->part[3]);
    int op = find_row(text);
    for (which = 0; which < 6 && strcmp(c->part[2], types[which]);)
        which++;
    if (op < 0 || which == 6)
        ptx_unknown(p, c);
    uint32_t a = ptx_operand_reg(p, o + 1, rows[op].source[0] == 8);
    uint32_t b = ptx_operand_reg(p, o + 2, rows[op].source[1] == 8), pred = ptx_new_reg(p, false);
    uint32_t yes = ptx_constant_reg(p, values[which], false), no = ptx_constant_reg(p, 0, false);
    ptx_guarded(emit_row(p, op, pred, a, b, 0), g);
    ptx_guarded(emit_row(p, OP_selp32, o->reg, yes, no, pred), g);
}

/* mov between a register and its parts. */
static bool decode_parts(struct ptx_parser *p, const struct ptx_operand *o, int n, struct ptx_guard g)
{
    if (n != 2 || (o[0].kind != OPERAND_LIST) == (o[1].kind != OPERAND_LIST))
        return false;
    bool unpack = o[0].kind == OPERAND_LIST;
    const struct ptx_operand *parts = unpack ? o : o + 1, *whole = unpack ? o + 1 : o;
    uint32_t half[2] = { 0 }, w = whole->reg;
    if (unpack && whole->kind != OPERAND_REG)
        w = ptx_operand_reg(p, whole, parts->item[0].wide || parts->n_item == 4);
    if (parts->n_item == 4) { /* 4 x 16 bits */
        for (int k = 0; k < 2; k++) {
            half[k] = ptx_new_reg(p, false);
            if (unpack)
                ptx_guarded(emit_row(p, k ? OP_high_32 : OP_low_32, half[k], w, 0, 0), g);
            for (int j = 0; unpack && j < 2; j++)
                if (parts->item[k * 2 + j].kind == OPERAND_REG)
                    ptx_guarded(emit_row(p, j ? OP_high_16 : OP_low_16, parts->item[k * 2 + j].reg, half[k], 0, 0), g);
            if (!unpack) {
                uint32_t low = ptx_operand_reg(p, parts->item + k * 2, false);
                uint32_t high = ptx_operand_reg(p, parts->item + k * 2 + 1, false);
                ptx_guarded(emit_row(p, OP_pack_2x16, half[k], low, high, 0), g);
            }
        }
        if (!unpack)
            ptx_guarded(emit_row(p, OP_pack_2x32, w, half[0], half[1], 0), g);
        return true;
    }
    if (parts->n_item != 2)
        return false;
    bool wide = whole->kind == OPERAND_REG && whole->wide;
    if (unpack) {
        for (int k = 0; k < 2; k++)
            if (parts->item[k].kind == OPERAND_REG)
                ptx_guarded(emit_row(p, wide ? (k ? OP_high_32 : OP_low_32) : (k ? OP_high_16 : OP_low_16),
                                     parts->item[k].reg, w, 0, 0),
                            g);
        return true;
    }
    for (int k = 0; k < 2; k++)
        half[k] = ptx_operand_reg(p, parts->item + k, false);
    ptx_guarded(emit_row(p, wide ? OP_pack_2x32 : OP_pack_2x16, w, half[0], half[1], 0), g);
    return true;
}

static void decode_mov(struct ptx_parser *p, struct ptx_opcode *c, struct ptx_operand *o, int n, struct ptx_guard g)
{
    if (decode_parts(p, o, n, g))
        return;
    if (n == 2 && o[1].kind == OPERAND_NAME &&
        (!strncmp(o[1].word, "%clock", 6) || !strncmp(o[1].word, "%globaltimer", 12))) {
        struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_clock), g);
        i->dst = o->reg;
        i->width = o->wide ? 8 : 4;
        return;
    }
    int op = find_row(c->text);
    if (op < 0)
        ptx_unknown(p, c);
    decode_row(p, op, o, n, g);
}

/* ---- conversions and directed rounding ---------------------------------------------------------------- */

static void decode_cvt(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                       struct ptx_guard g)
{
    static const char *const modes[] = { "rn", "rz", "rm", "rp" }, *const integral[] = { "rni", "rzi", "rmi", "rpi" };
    int op = find_row(c->text), mode = 0;
    if (op >= 0) {
        decode_row(p, op, o, n, g);
        return;
    }
    struct ptx_conversion v = { 0 };
    struct ptx_type to, from;
    if (ptx_modifier_of(c, integral, 4, &mode))
        v.integral = 1;
    else
        ptx_modifier_of(c, modes, 4, &mode);
    v.rounding = (uint8_t)mode;
    v.saturate = ptx_modifier(c, "sat");
    if (!ptx_take_type(c, &to) || !ptx_take_type(c, &from) || n != 2 || o->kind != OPERAND_REG)
        ptx_unknown(p, c);
    ptx_all_used(p, c);
    v.to_kind = (uint8_t)to.kind;
    v.to_bytes = (uint8_t)to.bytes;
    v.from_kind = (uint8_t)from.kind;
    v.from_bytes = (uint8_t)from.bytes;
    uint32_t a = ptx_operand_reg(p, o + 1, from.bytes == 8);
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_convert), g);
    i->dst = o->reg;
    i->width = o->wide ? 8 : 4;
    i->src[0] = a;
    i->wide = from.bytes == 8;
    memcpy(&i->imm, &v, sizeof v);
}

static bool decode_directed(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                            struct ptx_guard g)
{
    static const char *const names[] = { "add", "sub", "mul", "fma", "div", "rcp", "sqrt" };
    static const char *const modes[] = { "rn", "rz", "rm", "rp" };
    int kind = 0, mode = 0;
    struct ptx_type t;
    while (kind < 7 && strcmp(c->part[0], names[kind]))
        kind++;
    if (kind == 7 || !ptx_modifier_of(c, modes, 4, &mode) || !ptx_take_type(c, &t) || t.kind != KIND_FLOAT ||
        t.bytes < 4)
        return false;
    ptx_all_used(p, c);
    uint32_t source[3] = { 0 };
    for (int k = 1; k < n && k < 4; k++)
        source[k - 1] = ptx_operand_reg(p, o + k, t.bytes == 8);
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_directed), g);
    i->dst = o->reg;
    i->width = (uint8_t)t.bytes;
    memcpy(i->src, source, sizeof source);
    i->imm = kind;
    i->sub = (uint8_t)mode;
    return true;
}

/* cvta[.to].SPACE.u64: adds or subtracts the window of the space. */
static void decode_cvta(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, struct ptx_guard g)
{
    bool to = ptx_modifier(c, "to");
    enum ptx_space space = ptx_modifier(c, "shared")  ? PTX_SHARED
                           : ptx_modifier(c, "local") ? PTX_LOCAL
                           : ptx_modifier(c, "param") ? PTX_PARAM
                           : ptx_modifier(c, "const") ? PTX_GLOBAL
                                                      : PTX_GENERIC;
    if (space == PTX_GENERIC && !ptx_modifier(c, "global"))
        ptx_unknown(p, c);
    uint64_t window = space == PTX_SHARED  ? PTX_WINDOW_SHARED
                      : space == PTX_LOCAL ? PTX_WINDOW_LOCAL
                      : space == PTX_PARAM ? PTX_WINDOW_PARAM
                                           : 0;
    if (!ptx_modifier(c, "u64"))
        ptx_unknown(p, c);
    ptx_all_used(p, c);
    uint32_t a = ptx_operand_reg(p, o + 1, true), b = ptx_constant_reg(p, to ? 0 - window : window, true);
    ptx_guarded(emit_row(p, window ? OP_add64 : OP_mov64, o->reg, a, window ? b : 0, 0), g);
}

/* ---- control ------------------------------------------------------------------------------------------- */

static void take_names(struct ptx_parser *p, struct ptx_operand *o, int *n)
{
    *n = 0;
    ptx_expect(p, "(");
    while (!ptx_take(p, ")")) {
        if (*n == 64)
            ptx_error(p, "too many parameters");
        ptx_take_operand(p, o + (*n)++);
        ptx_take(p, ",");
    }
}

static void add_copies(struct ptx_parser *p, struct ptx_insn *at, const struct ptx_operand *o, int n,
                       const struct ptx_param *param, bool back)
{
    uint32_t insn = (uint32_t)(at - p->m->code);
    for (int k = 0; k < n; k++) {
        if (!o[k].name || o[k].name->kind != NAME_LOCAL)
            ptx_error(p, "parameter '%.100s' is not known", o[k].word);
        uint32_t here = (uint32_t)o[k].name->offset, there = param[k].offset;
        uint32_t first = ptx_list_add(p, back ? there : here);
        ptx_list_add(p, back ? here : there);
        ptx_list_add(p, param[k].bytes);
        if (!k)
            p->m->code[insn].list = first;
    }
    p->m->code[insn].n_list = (uint8_t)n;
}

static void decode_call(struct ptx_parser *p, struct ptx_opcode *c, struct ptx_guard g)
{
    struct ptx_operand result[64], argument[64];
    int n_result = 0, n_argument = 0;
    ptx_modifier(c, "uni");
    ptx_all_used(p, c);
    if (ptx_is(p, "(")) {
        take_names(p, result, &n_result);
        ptx_expect(p, ",");
    }
    struct ptx_function *f = ptx_find(p->m, p->word);
    if (!f)
        ptx_error(p, "calls '%.100s', which is no function of this module", p->word);
    ptx_next(p);
    if (ptx_take(p, ","))
        take_names(p, argument, &n_argument);
    ptx_expect(p, ";");
    if ((uint32_t)n_result != f->n_result || (uint32_t)n_argument != f->n_param)
        ptx_error(p, "calls '%.100s' with other parameters", f->name);
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_call), g);
    i->src[0] = f->return_reg;
    for (uint32_t k = 0; k < p->m->n_function; k++)
        if (p->m->function[k] == f)
            i->imm = k;
    add_copies(p, i, argument, n_argument, f->param + f->n_result, false);
    i = ptx_guarded(ptx_emit(p, OP_return_value), g);
    add_copies(p, i, result, n_result, f->param, true);
}

static void decode_branch(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                          struct ptx_guard g)
{
    ptx_modifier(c, "uni");
    if (!ptx_modifier(c, "idx")) {
        ptx_all_used(p, c);
        if (n != 1 || o->kind != OPERAND_NAME)
            ptx_error(p, "a label is expected");
        ptx_guarded(ptx_emit(p, OP_bra), g);
        ptx_fix_later(p, o->word, false);
        return;
    }
    ptx_all_used(p, c);
    if (n != 2 || !o[1].name || o[1].name->kind != NAME_TARGETS)
        ptx_error(p, "a list of targets is expected");
    uint32_t index = ptx_operand_reg(p, o, false);
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_brx), g);
    i->src[0] = index;
    i->imm = (int64_t)o[1].name->bytes; /* targets */
    uint32_t at = (uint32_t)(i - p->m->code);
    for (uint64_t k = 0; k < o[1].name->bytes; k++) {
        uint32_t place = ptx_list_add(p, 0);
        if (!k)
            p->m->code[at].list = place;
        ptx_fix_later(p, p->target[o[1].name->offset + k], true);
    }
}

/* ---- all ------------------------------------------------------------------------------------------------- */

static bool decode_plain(struct ptx_parser *p, struct ptx_opcode *c, struct ptx_guard g)
{
    static const struct {
        const char *name;
        enum ptx_op op;
    } plain[] = { { "ret", OP_ret },         { "exit", OP_exit },    { "trap", OP_trap },
                  { "brkpt", OP_trap },      { "membar", OP_fence }, { "fence", OP_fence },
                  { "nanosleep", OP_sleep }, { "prefetch", OP_nop }, { "prefetchu", OP_nop } };
    for (size_t k = 0; k < sizeof plain / sizeof *plain; k++)
        if (!strcmp(c->part[0], plain[k].name)) {
            static const char *const kinds[] = { "gl",  "sys", "cta",    "gpu", "acq_rel", "sc",     "uni",
                                                 "u32", "L1",  "global", "L2",  "acquire", "release" };
            int which;
            while (ptx_modifier_of(c, kinds, sizeof kinds / sizeof *kinds, &which))
                ;
            ptx_all_used(p, c);
            struct ptx_insn *i = ptx_guarded(ptx_emit(p, plain[k].op), g);
            if (i->op == OP_ret) {
                i->op = p->f->is_kernel ? OP_exit : OP_ret;
                i->src[0] = p->f->return_reg;
            }
            return true;
        }
    return false;
}

static void decode_lop3(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                        struct ptx_guard g)
{
    if (strcmp(c->text, "lop3.b32") || n != 5)
        ptx_unknown(p, c);
    uint32_t source[3];
    for (int k = 0; k < 3; k++)
        source[k] = ptx_operand_reg(p, o + 1 + k, false);
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_lop3), g);
    i->dst = o->reg;
    i->width = 4;
    memcpy(i->src, source, sizeof source);
    i->imm = o[4].value;
}

static void decode_bfi(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                       struct ptx_guard g)
{
    bool wide = ptx_modifier(c, "b64");
    if ((!wide && !ptx_modifier(c, "b32")) || n != 5)
        ptx_unknown(p, c);
    ptx_all_used(p, c);
    uint32_t source[4];
    for (int k = 0; k < 4; k++)
        source[k] = ptx_operand_reg(p, o + 1 + k, wide && k < 2);
    struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_bfi), g);
    i->dst = o->reg;
    i->width = wide ? 8 : 4;
    memcpy(i->src, source, sizeof source);
}

void ptx_decode(struct ptx_parser *p, uint32_t guard_reg, bool negated)
{
    struct ptx_opcode c;
    struct ptx_operand o[PTX_MAX_OPERANDS];
    struct ptx_guard g = { guard_reg, negated };
    uint32_t line = p->line, first = p->m->n_code;
    ptx_split_opcode(p, &c);
    ptx_next(p);
    const char *name = c.part[0];
    if (!strcmp(name, "call"))
        decode_call(p, &c, g);
    else {
        int n = ptx_take_operands(p, o), op;
        if (!strcmp(name, "mov"))
            decode_mov(p, &c, o, n, g);
        else if (!strcmp(name, "setp"))
            decode_setp(p, &c, o, n, g);
        else if (!strcmp(name, "set"))
            decode_set(p, &c, o, n, g);
        else if (!strcmp(name, "cvt"))
            decode_cvt(p, &c, o, n, g);
        else if ((op = find_row(c.text)) >= 0)
            decode_row(p, op, o, n, g);
        else if (!strcmp(name, "bra") || !strcmp(name, "brx"))
            decode_branch(p, &c, o, n, g);
        else if (!strcmp(name, "cvta") && n == 2)
            decode_cvta(p, &c, o, g);
        else if (!strcmp(name, "lop3"))
            decode_lop3(p, &c, o, n, g);
        else if (!strcmp(name, "bfi"))
            decode_bfi(p, &c, o, n, g);
        else if (!strcmp(c.text, "activemask.b32")) {
            struct ptx_insn *i = ptx_guarded(ptx_emit(p, OP_activemask), g);
            i->dst = o->reg;
            i->width = 4;
        } else if (!ptx_decode_memory(p, &c, o, n, g) && !decode_directed(p, &c, o, n, g) && !decode_plain(p, &c, g))
            ptx_unknown(p, &c);
    }
    for (uint32_t k = first; k < p->m->n_code; k++)
        p->m->code[k].line = line;
}
