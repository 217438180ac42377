/* tests/gpu/parse.h - shared by parse.c and decode.c: the text, the names in scope, the operands of an instruction. */
#ifndef TESTS_GPU_PARSE_H
#define TESTS_GPU_PARSE_H

#include <setjmp.h>

#include "tests/gpu/ptx.h"

#define PTX_MAX_OPERANDS 8
#define PTX_MAX_WORD     512

enum ptx_name_kind {
    NAME_REG,
    NAME_LOCAL,   /* offset in local memory */
    NAME_SHARED,  /* offset in shared memory */
    NAME_DYNAMIC, /* behind all shared memory of the kernel */
    NAME_GLOBAL,  /* an address: variables of .global and .const */
    NAME_PARAM,   /* offset in the kernel's parameters */
    NAME_LABEL,   /* offset is an instruction */
    NAME_TARGETS  /* of brx.idx: offset is a place in the list of label names, bytes their number */
};
struct ptx_name {
    char *name;
    enum ptx_name_kind kind;
    bool wide, is_pred;
    uint64_t offset, bytes;
    struct ptx_name *next; /* of its bucket */
    struct ptx_name *older;
    uint32_t bucket;
};

enum ptx_operand_kind { OPERAND_REG, OPERAND_IMMEDIATE, OPERAND_NAME, OPERAND_ADDRESS, OPERAND_LIST, OPERAND_SINK };
struct ptx_operand {
    enum ptx_operand_kind kind;
    bool wide, negated, is_special, is_float32;
    uint32_t reg, second; /* second: the p of "r|p"; 0 if there is none */
    struct ptx_name *name;
    char word[128];           /* of a name that is not known, as of a function or label */
    int64_t value;            /* immediate, or offset of an address */
    struct ptx_operand *item; /* of a list */
    int n_item;
};

struct ptx_parser {
    const char *text, *at;
    uint32_t line, statement_line; /* of the token in hand, of the statement in a function (0: none) */
    char word[PTX_MAX_WORD];       /* the token in hand: a word, or one character */
    bool at_word, at_end;
    struct ptx_module *m;
    struct ptx_function *f; /* in which the text is */
    uint32_t module_regs, module_local, module_shared;
    uint32_t n_reg, n_local, n_shared; /* of the function in hand */
    struct ptx_constant *constant;     /* of the function in hand */
    uint32_t n_constant, constant_room, n_module_constant;
    struct ptx_name *newest, *bucket[1024];
    struct ptx_operand item[64]; /* of lists in the instruction in hand */
    int n_item;
    struct ptx_fixup *fixup; /* branches whose label is not known yet */
    uint32_t n_fixup, fixup_room;
    char **target; /* label names of .branchtargets */
    uint32_t n_target, target_room;
    jmp_buf failed;
    char *error;
    size_t error_room;
};

_Noreturn void ptx_error(struct ptx_parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *ptx_grow(void *array, uint32_t n, uint32_t *room, size_t size);
void ptx_next(struct ptx_parser *p);
bool ptx_is(const struct ptx_parser *p, const char *word);
bool ptx_take(struct ptx_parser *p, const char *word);
void ptx_expect(struct ptx_parser *p, const char *word);
struct ptx_name *ptx_lookup(struct ptx_parser *p, const char *word);
uint32_t ptx_new_reg(struct ptx_parser *p, bool wide);
uint32_t ptx_constant_reg(struct ptx_parser *p, uint64_t value, bool wide);
uint32_t ptx_special_reg(struct ptx_parser *p, enum ptx_special special, uint64_t value, bool wide);
struct ptx_insn *ptx_emit(struct ptx_parser *p, enum ptx_op op);
uint32_t ptx_list_add(struct ptx_parser *p, uint32_t reg);
void ptx_fix_later(struct ptx_parser *p, const char *label, bool is_function);

/* ---- operands.c: the opcode of an instruction and its operands --------------------------------------- */

struct ptx_opcode { /* words between points, each used at most once */
    char text[PTX_MAX_WORD], part[24][40];
    int n;
    bool used[24];
};
struct ptx_type {
    enum ptx_type_kind kind;
    int bytes;
};
struct ptx_guard {
    uint32_t reg;
    bool negated;
};

void ptx_split_opcode(struct ptx_parser *p, struct ptx_opcode *o);
bool ptx_modifier(struct ptx_opcode *o, const char *word);
bool ptx_modifier_of(struct ptx_opcode *o, const char *const *words, int n, int *which);
bool ptx_take_type(struct ptx_opcode *o, struct ptx_type *t); /* the next unused word that is a type */
_Noreturn void ptx_unknown(struct ptx_parser *p, const struct ptx_opcode *o);
void ptx_all_used(struct ptx_parser *p, const struct ptx_opcode *o);
void ptx_take_operand(struct ptx_parser *p, struct ptx_operand *o);
int ptx_take_operands(struct ptx_parser *p, struct ptx_operand *o);
/* The value of a name: its address in its space. */
uint32_t ptx_name_reg(struct ptx_parser *p, const struct ptx_operand *o, bool wide);
/* A register that holds the operand as lanes of 4 or 8 bytes. */
uint32_t ptx_operand_reg(struct ptx_parser *p, const struct ptx_operand *o, bool wide);
uint32_t ptx_pred_reg(struct ptx_parser *p, const struct ptx_operand *o);
struct ptx_insn *ptx_guarded(struct ptx_insn *i, struct ptx_guard g);

/* ---- decode_memory.c: instructions of memory, barriers, lanes together. False: none of these --------- */
bool ptx_decode_memory(struct ptx_parser *p, struct ptx_opcode *c, const struct ptx_operand *o, int n,
                       struct ptx_guard g);

/* Decodes one instruction: the opcode is in hand; ends behind its semicolon. */
void ptx_decode(struct ptx_parser *p, uint32_t guard, bool negated);

struct ptx_fixup {
    uint32_t insn, list; /* list: the place in ptx_module.list, or UINT32_MAX: the insn's imm */
    char *name;
    struct ptx_name *targets; /* of brx.idx */
};

#endif
