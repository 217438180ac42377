/* The opcode of an instruction, whose modifiers must each be used by the operation, and its operands: registers,
 * immediates, names, addresses, lists. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/parse.h"

/* ---- the opcode: words between points, each used at most once --------------------------------------- */

void ptx_split_opcode(struct ptx_parser *p, struct ptx_opcode *o)
{
    memset(o, 0, sizeof *o);
    strcpy(o->text, p->word);
    const char *at = o->text;
    while (at && o->n < 24) {
        size_t n = strcspn(at, ".");
        if (n >= sizeof o->part[0])
            ptx_error(p, "instruction '%.100s' is not known", o->text);
        memcpy(o->part[o->n++], at, n);
        at = at[n] ? at + n + 1 : NULL;
    }
    o->used[0] = true;
}

bool ptx_modifier(struct ptx_opcode *o, const char *word)
{
    for (int i = 1; i < o->n; i++)
        if (!o->used[i] && !strcmp(o->part[i], word))
            return o->used[i] = true;
    return false;
}

bool ptx_modifier_of(struct ptx_opcode *o, const char *const *words, int n, int *which)
{
    for (int i = 0; i < n; i++)
        if (ptx_modifier(o, words[i])) {
            *which = i;
            return true;
        }
    return false;
}

/* The next unused part that is a type. */
bool ptx_take_type(struct ptx_opcode *o, struct ptx_type *t)
{
    for (int i = 1; i < o->n; i++) {
        const char *s = o->part[i];
        if (o->used[i])
            continue;
        if (!strcmp(s, "pred"))
            *t = (struct ptx_type){ KIND_PRED, 4 };
        else if (!strcmp(s, "bf16"))
            *t = (struct ptx_type){ KIND_BFLOAT, 2 };
        else if (s[0] && strchr("busf", s[0]) && isdigit((unsigned char)s[1]) && !strchr(s, 'x') && atoi(s + 1) >= 8)
            *t = (struct ptx_type){ s[0] == 'b'   ? KIND_BITS
                                    : s[0] == 'u' ? KIND_UNSIGNED
                                    : s[0] == 's' ? KIND_SIGNED
                                                  : KIND_FLOAT,
                                    atoi(s + 1) / 8 };
        else
            continue;
        return o->used[i] = true;
    }
    return false;
}

_Noreturn void ptx_unknown(struct ptx_parser *p, const struct ptx_opcode *o)
{
    ptx_error(p, "instruction '%.150s' is not known", o->text);
}

void ptx_all_used(struct ptx_parser *p, const struct ptx_opcode *o)
{
    for (int i = 0; i < o->n; i++)
        if (!o->used[i])
            ptx_error(p, "instruction '%.100s' is not known: '.%s'", o->text, o->part[i]);
}

/* ---- operands --------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum ptx_special special;
} specials[] = {
    { "%tid.x", SPECIAL_tid_x },
    { "%tid.y", SPECIAL_tid_y },
    { "%tid.z", SPECIAL_tid_z },
    { "%ntid.x", SPECIAL_ntid_x },
    { "%ntid.y", SPECIAL_ntid_y },
    { "%ntid.z", SPECIAL_ntid_z },
    { "%ctaid.x", SPECIAL_ctaid_x },
    { "%ctaid.y", SPECIAL_ctaid_y },
    { "%ctaid.z", SPECIAL_ctaid_z },
    { "%nctaid.x", SPECIAL_nctaid_x },
    { "%nctaid.y", SPECIAL_nctaid_y },
    { "%nctaid.z", SPECIAL_nctaid_z },
    { "%laneid", SPECIAL_laneid },
    { "%warpid", SPECIAL_warpid },
    { "%nwarpid", SPECIAL_nwarpid },
    { "%lanemask_eq", SPECIAL_lanemask_eq },
    { "%lanemask_le", SPECIAL_lanemask_le },
    { "%lanemask_lt", SPECIAL_lanemask_lt },
    { "%lanemask_ge", SPECIAL_lanemask_ge },
    { "%lanemask_gt", SPECIAL_lanemask_gt },
    { "%dynamic_smem_size", SPECIAL_dynamic_smem_size },
    { "%total_smem_size", SPECIAL_total_smem_size },
    { "%smid", SPECIAL_smid },
    { "%nsmid", SPECIAL_nsmid },
};

static bool is_number(const struct ptx_parser *p) { return isdigit((unsigned char)p->word[0]) || ptx_is(p, "-"); }

static int64_t take_integer(struct ptx_parser *p, bool *is_float32)
{
    bool negative = ptx_take(p, "-");
    char kind = p->word[0] == '0' ? (char)tolower((unsigned char)p->word[1]) : 0;
    if (!isdigit((unsigned char)p->word[0]))
        ptx_error(p, "a number is expected before '%.100s'", p->word);
    uint64_t v = kind == 'f' || kind == 'd' ? strtoull(p->word + 2, NULL, 16) : strtoull(p->word, NULL, 0);
    *is_float32 = kind == 'f';
    ptx_next(p);
    return (int64_t)(negative ? 0 - v : v);
}

static void take_list(struct ptx_parser *p, struct ptx_operand *o)
{
    o->kind = OPERAND_LIST;
    o->item = p->item + p->n_item;
    do {
        if (p->n_item == sizeof p->item / sizeof *p->item)
            ptx_error(p, "too many operands");
        p->n_item++;
        ptx_take_operand(p, o->item + o->n_item++);
    } while (ptx_take(p, ","));
    ptx_expect(p, "}");
}

static void take_word(struct ptx_parser *p, struct ptx_operand *o)
{
    struct ptx_name *n = ptx_lookup(p, p->word);
    if (n && n->kind == NAME_REG) {
        o->kind = OPERAND_REG;
        o->reg = (uint32_t)n->offset;
        o->wide = n->wide;
        ptx_next(p);
        return;
    }
    for (size_t i = 0; i < sizeof specials / sizeof *specials && p->word[0] == '%'; i++)
        if (ptx_is(p, specials[i].name)) {
            o->kind = OPERAND_REG;
            o->reg = ptx_special_reg(p, specials[i].special, 0, false);
            ptx_next(p);
            return;
        }
    o->kind = ptx_is(p, "WARP_SZ") ? OPERAND_IMMEDIATE : OPERAND_NAME;
    o->value = ptx_is(p, "WARP_SZ") ? PTX_LANES : 0;
    o->name = n;
    snprintf(o->word, sizeof o->word, "%.127s", p->word);
    ptx_next(p);
}

void ptx_take_operand(struct ptx_parser *p, struct ptx_operand *o)
{
    memset(o, 0, sizeof *o);
    if (ptx_take(p, "{")) {
        take_list(p, o);
        return;
    }
    if (ptx_take(p, "[")) {
        if (is_number(p)) {
            o->value = take_integer(p, &o->is_float32);
            o->reg = ptx_constant_reg(p, 0, true);
            o->wide = true;
        } else
            take_word(p, o);
        o->kind = OPERAND_ADDRESS;
        if (ptx_take(p, "+"))
            o->value += take_integer(p, &o->is_float32);
        else if (ptx_is(p, "-"))
            o->value += take_integer(p, &o->is_float32);
        ptx_expect(p, "]");
        return;
    }
    if (ptx_is(p, "_")) {
        ptx_next(p);
        o->kind = OPERAND_SINK;
        return;
    }
    o->negated = ptx_take(p, "!");
    if (is_number(p)) {
        o->kind = OPERAND_IMMEDIATE;
        o->value = take_integer(p, &o->is_float32);
    } else
        take_word(p, o);
    if (ptx_take(p, "+"))
        o->value += take_integer(p, &o->is_float32);
    if (ptx_take(p, "|")) {
        struct ptx_operand second;
        ptx_take_operand(p, &second);
        o->second = second.reg;
    }
}

int ptx_take_operands(struct ptx_parser *p, struct ptx_operand *o)
{
    int n = 0;
    while (!ptx_is(p, ";")) {
        if (n == PTX_MAX_OPERANDS)
            ptx_error(p, "too many operands");
        ptx_take_operand(p, o + n++);
        if (!ptx_take(p, ","))
            break;
    }
    ptx_expect(p, ";");
    return n;
}

/* The value of a name: its address in its space, or a generic one. */
uint32_t ptx_name_reg(struct ptx_parser *p, const struct ptx_operand *o, bool wide)
{
    const struct ptx_name *n = o->name;
    uint64_t offset = n ? n->offset + (uint64_t)o->value : 0;
    if (!n || n->kind == NAME_LABEL || n->kind == NAME_TARGETS)
        ptx_error(p, "'%.100s' is not known", o->word);
    return ptx_special_reg(p, n->kind == NAME_DYNAMIC ? SPECIAL_dynamic_shared : SPECIAL_value, offset, wide);
}

/* A register that holds the operand as lanes of 4 or 8 bytes. */
uint32_t ptx_operand_reg(struct ptx_parser *p, const struct ptx_operand *o, bool wide)
{
    struct ptx_insn *i;
    if (o->kind == OPERAND_IMMEDIATE)
        return ptx_constant_reg(p, wide ? (uint64_t)o->value : (uint32_t)o->value, wide);
    if (o->kind == OPERAND_NAME)
        return ptx_name_reg(p, o, wide);
    if (o->kind != OPERAND_REG)
        ptx_error(p, "an operand is not a register or number");
    uint32_t reg = o->reg;
    if (o->wide != wide) { /* a register may be wider than the type that is read */
        reg = ptx_new_reg(p, wide);
        i = ptx_emit(p, wide ? OP_extend_u32 : OP_low_32);
        i->dst = reg;
        i->width = wide ? 8 : 4;
        i->src[0] = o->reg;
    }
    if (o->negated) {
        i = ptx_emit(p, OP_not_pred);
        i->src[0] = reg;
        reg = i->dst = ptx_new_reg(p, false);
        i->width = 4;
    }
    return reg;
}

uint32_t ptx_pred_reg(struct ptx_parser *p, const struct ptx_operand *o)
{
    if (o->kind != OPERAND_IMMEDIATE)
        return ptx_operand_reg(p, o, false);
    return ptx_constant_reg(p, (o->value != 0) != o->negated ? PTX_ALL : 0, false);
}

struct ptx_insn *ptx_guarded(struct ptx_insn *i, struct ptx_guard g)
{
    i->guard = g.reg;
    i->negated = g.negated;
    return i;
}
