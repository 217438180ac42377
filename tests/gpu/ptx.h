/* tests/gpu/ptx.h - PTX in decoded form, and the warps that run it.
 *
 * A module is parsed once (parse.c, decode.c): every instruction becomes a struct ptx_insn whose operands are numbers
 * of registers.  Immediates, special registers and addresses of variables are registers, too, which are set when a warp
 * starts, so that an operation has one form.  A register is a row of 32 lanes of 4 bytes; one of 64 bits is two rows
 * that hold 32 lanes of 8 bytes.  Beside each register is a mask of the lanes that hold a defined value.
 *
 * A warp runs an instruction for all its active lanes at once (run.c).  Lanes at different instructions are in
 * different groups; the group with the lowest address runs first, and groups that meet become one. */
#ifndef TESTS_GPU_PTX_H
#define TESTS_GPU_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <stdio.h>

#include "tests/gpu/operations.h"
#include "tests/gpu/shadow.h"

#define PTX_LANES 32
#define PTX_ALL   0xffffffffu

/* Addresses of shared and local memory and of parameters, when they are used as generic addresses, lie in windows that
 * no host address has. */
#define PTX_WINDOW_SHARED 0x7f10000000000000ull
#define PTX_WINDOW_LOCAL  0x7f20000000000000ull
#define PTX_WINDOW_PARAM  0x7f30000000000000ull
#define PTX_WINDOW_MASK   0xfff0000000000000ull

enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_LOCAL, PTX_PARAM };

enum ptx_op {
#define X(name, text, D, A, B, C, expression) OP_##name,
    PTX_ARITHMETIC(X)
#undef X
        OP_lop3, /* imm: truth table */
    OP_bfi,      /* src: field, base, position, length */
    OP_directed, /* arithmetic with a rounding other than to nearest: imm is kind, sub the mode (convert.c) */
    OP_convert,  /* other conversions: imm is a packed struct ptx_conversion (convert.c) */
    OP_clock,
    OP_activemask,
    OP_ARITHMETIC_END,
    OP_bra = OP_ARITHMETIC_END, /* imm: target */
    OP_brx,                     /* src[0]: index; list: targets */
    OP_call,                    /* imm: target; src[0]: register for the return address; list: local offsets to copy */
    OP_return_value,            /* copies a result after a call; list as for OP_call */
    OP_ret,                     /* src[0]: register of the return address, or 0 in a kernel */
    OP_exit,
    OP_trap,
    OP_bar,       /* src: barrier, threads or 0, predicate; sub: enum below; imm: all at one instruction */
    OP_warp_sync, /* src[0]: mask */
    OP_nop,
    OP_fence,
    OP_sleep,
    OP_ld,       /* src[0]: address, imm: offset, list: destinations */
    OP_st,       /* src[0]: address, imm: offset, list: sources */
    OP_atom,     /* src[0]: address, src[1], src[2]: operands; sub: enum ptx_atom; dst may be 0; addend: two halves */
    OP_cp_async, /* src[0]: shared, src[1]: global, src[2]: bytes to read; bytes; imm, addend: offsets */
    OP_cp_commit,
    OP_cp_wait,  /* imm: groups that may remain, or -1: all, those not committed included */
    OP_shfl,     /* src: value, b, c, mask; sub: mode; list: the predicate */
    OP_vote,     /* src: predicate, mask; sub: mode */
    OP_match,    /* src: value, mask; sub: all; bytes; list: the predicate */
    OP_redux,    /* src: value, mask; sub: enum ptx_atom; is_signed */
    OP_elect,    /* src: mask; list: the predicate */
    OP_ldmatrix, /* src[0]: address; sub: transposed; list: destinations */
    OP_mma,      /* list: d, a, b, c; imm: depth (16 or 32); sub: bit 0 a signed, bit 1 b signed */
    OP_COUNT
};

enum ptx_atom {
    ATOM_add,
    ATOM_and,
    ATOM_or,
    ATOM_xor,
    ATOM_exch,
    ATOM_cas,
    ATOM_min,
    ATOM_max,
    ATOM_inc,
    ATOM_dec,
    ATOM_COUNT
};
enum ptx_type_kind { KIND_BITS, KIND_UNSIGNED, KIND_SIGNED, KIND_FLOAT, KIND_BFLOAT, KIND_PRED };
enum { BARRIER_sync, BARRIER_arrive, BARRIER_popc, BARRIER_or, BARRIER_and };
enum { SHFL_up, SHFL_down, SHFL_bfly, SHFL_idx };
enum { VOTE_all, VOTE_any, VOTE_uni, VOTE_ballot };
enum { ORDER_relaxed = 1, ORDER_release = 2 }; /* volatile and acquire are relaxed here */
enum ptx_rounding { ROUND_nearest, ROUND_zero, ROUND_down, ROUND_up };
enum { DIRECTED_add, DIRECTED_sub, DIRECTED_mul, DIRECTED_fma, DIRECTED_div, DIRECTED_rcp, DIRECTED_sqrt };

/* OP_convert: from and to are kind and bytes of the types. */
struct ptx_conversion {
    uint8_t from_kind, from_bytes, to_kind, to_bytes, rounding, integral, saturate, unused;
};

struct ptx_insn {
    uint16_t op;
    uint8_t width;   /* bytes of a lane of dst: 4 or 8; 0: there is none */
    uint8_t negated; /* the guard */
    uint32_t guard;  /* a predicate, or 0: always */
    uint32_t dst, src[4];
    uint32_t list; /* the first of n_list further registers, in ptx_module.list */
    int64_t imm, addend;
    uint8_t n_list, space, bytes, sub; /* bytes: of one element in memory */
    bool is_signed, wide;              /* wide: the registers of the list have 64 bits */
    uint8_t is_sync;                   /* ORDER_*: other threads may wait for this access */
    uint8_t kind;                      /* enum ptx_type_kind of an atomic */
    uint32_t line;
};

/* A register that is set when a warp starts. */
enum ptx_special {
    SPECIAL_value,
    SPECIAL_dynamic_shared, /* value is added */
    SPECIAL_tid_x,
    SPECIAL_tid_y,
    SPECIAL_tid_z,
    SPECIAL_laneid,
    SPECIAL_warpid,
    SPECIAL_lanemask_eq,
    SPECIAL_lanemask_le,
    SPECIAL_lanemask_lt,
    SPECIAL_lanemask_ge,
    SPECIAL_lanemask_gt,
    SPECIAL_ntid_x,
    SPECIAL_ntid_y,
    SPECIAL_ntid_z,
    SPECIAL_nctaid_x,
    SPECIAL_nctaid_y,
    SPECIAL_nctaid_z,
    SPECIAL_nwarpid,
    SPECIAL_dynamic_smem_size,
    SPECIAL_total_smem_size,
    SPECIAL_smid,
    SPECIAL_nsmid,
    SPECIAL_PER_BLOCK, /* those after here differ between blocks */
    SPECIAL_ctaid_x = SPECIAL_PER_BLOCK,
    SPECIAL_ctaid_y,
    SPECIAL_ctaid_z,
    SPECIAL_COUNT
};
struct ptx_constant {
    uint32_t reg;
    uint8_t special, wide;
    uint64_t value;
};

struct ptx_param {
    uint32_t offset, bytes;
};

/* A kernel, or a function that kernels call. */
struct ptx_function {
    char *name;
    bool is_kernel, has_body;
    uint32_t entry; /* its first instruction */
    uint32_t n_param, n_result;
    struct ptx_param
        *param; /* of a kernel: in the buffer of parameters; of a function: in local memory; results first */
    uint32_t param_bytes;
    uint32_t n_reg, local_bytes, shared_bytes; /* all that a launch needs, those of the module's functions included */
    uint32_t return_reg;
    uint32_t max_threads;
    struct ptx_constant *constant;
    uint32_t n_constant;
    int max_dynamic_shared;
    struct ptx_module *module;
};

struct ptx_variable {
    char *name;
    uint64_t address, bytes;
};

struct ptx_module {
    char *text; /* for messages: instructions name their line */
    const char **line;
    uint32_t n_line;
    struct ptx_insn *code;
    uint32_t n_code, code_room;
    uint32_t *list;
    uint32_t n_list, list_room;
    struct ptx_function **function;
    uint32_t n_function;
    struct ptx_variable *variable;
    uint32_t n_variable;
};

/* NULL, with a message in error, if the text has an instruction that is not known. */
struct ptx_module *ptx_parse(const char *text, char *error, size_t error_room);
void ptx_module_free(struct ptx_module *m);
struct ptx_function *ptx_find(struct ptx_module *m, const char *name);

/* ---- a launch in progress -------------------------------------------------------------------------- */

struct ptx_group {
    uint32_t pc, mask;
    int8_t waits; /* enum below */
    uint8_t barrier;
    uint32_t expected; /* threads of the barrier */
};
enum { RUNS, WAITS_LANES, WAITS_BARRIER };

struct ptx_copy { /* one cp.async of one warp */
    uint32_t mask, group;
    uint8_t bytes;
    uint32_t to[PTX_LANES], n[PTX_LANES];
    uint64_t from[PTX_LANES];
};

struct ptx_warp {
    uint32_t *reg;     /* [n_reg, 32] */
    uint32_t *defined; /* [n_reg] lanes with a defined value */
    uint32_t number, live;
    struct ptx_group group[PTX_LANES];
    int n_group;
    uint8_t *local, *local_defined; /* [32, local_bytes] */
    struct ptx_copy *copy;
    uint32_t n_copy, copy_room, copy_group;
    uint32_t epoch;  /* of shared memory: raised when the lanes synchronise */
    uint32_t *knows; /* [n_warp] the epoch of each warp whose accesses came before */
};

struct ptx_launch {
    struct ptx_function *f;
    uint32_t grid[3], block[3];
    const uint8_t *param; /* [f->param_bytes] */
    uint32_t dynamic_shared;
    uint32_t shared_bytes; /* of the kernel and dynamic */
    uint64_t seed;         /* 0: blocks and warps in their order */
    uint32_t operation;    /* for the shadow of device memory; 0: races are not looked for */
    const struct gpu_clock *before;
};

struct ptx_run {
    const struct ptx_launch *launch;
    struct ptx_module *m;
    struct ptx_warp *warp;
    uint32_t n_warp, n_thread;
    uint32_t cta[3], cta_number;
    uint8_t *shared, *shared_defined;
    uint32_t *first_defined;             /* [n_reg] when a warp starts */
    uint32_t arrived[16];                /* threads that bar.arrive has counted */
    uint32_t true_at[16], false_at[16];  /* threads at a barrier that reduces predicates */
    struct gpu_shared_word *shared_word; /* [shared_bytes / 4] NULL: races are not looked for */
    uint32_t *arrived_knows;             /* [16, n_warp] epochs of warps that have arrived at a barrier */
    struct gpu_actor actor;
    uint64_t steps, thread_steps, random;
    bool failed;
    char *error; /* [error_room] */
    size_t error_room;
    int error_code; /* a CUresult */
};

/* Runs a launch to its end.  0, or a CUresult with a message. */
int ptx_launch_run(const struct ptx_launch *l, char *error, size_t error_room);
uint64_t ptx_thread_instructions(void); /* since the library was loaded */

/* Says once why a launch failed, with the thread and the line of PTX. */
void ptx_fail(struct ptx_run *r, const struct ptx_warp *w, int lane, const struct ptx_insn *i, int code,
              const char *format, ...) __attribute__((format(printf, 6, 7)));

static inline uint32_t *ptx_reg(const struct ptx_warp *w, uint32_t reg) { return w->reg + (size_t)reg * PTX_LANES; }
static inline uint64_t ptx_value(const struct ptx_warp *w, uint32_t reg, int lane, bool wide)
{
    return wide ? ((const uint64_t *)(const void *)ptx_reg(w, reg))[lane] : ptx_reg(w, reg)[lane];
}
void ptx_set(struct ptx_warp *w, uint32_t reg, int lane, bool wide, uint64_t value, bool is_defined);
uint64_t ptx_random(uint64_t *state);

/* One instruction for the lanes of mask.  False: the launch failed. */
void ptx_arithmetic(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask, void *to);
bool ptx_access(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask);
bool ptx_cp_async(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask);
bool ptx_cp_wait(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask);
bool ptx_ldmatrix(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i);
bool ptx_collective(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask);

/* convert.c */
uint64_t ptx_convert(struct ptx_conversion c, uint64_t bits);
uint64_t ptx_directed(int kind, int rounding, int bytes, uint64_t a, uint64_t b, uint64_t c);
uint16_t ptx_to_half(double x, enum ptx_type_kind kind, enum ptx_rounding rounding);
uint16_t fma_f16_bits(uint16_t a, uint16_t b, uint16_t c);
uint16_t fma_bf16_bits(uint16_t a, uint16_t b, uint16_t c);
float ptx_half_to_float(uint16_t bits);

/* ---- floats and their bits ----------------------------------------------------------------------------- */

static inline float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}
static inline double double_of(uint64_t bits)
{
    double f;
    memcpy(&f, &bits, 8);
    return f;
}
static inline uint64_t bits_of_double(double f)
{
    uint64_t bits;
    memcpy(&bits, &f, 8);
    return bits;
}

#endif
