/* moe/files/hf_tensor_names.h - conversion of a folder's tensors to GGUF tensors.  For hf_tensor_names.c, which maps
 * the names, and hf_convert.c, which converts, only. */
#ifndef MOE_FILES_HF_TENSOR_NAMES_H
#define MOE_FILES_HF_TENSOR_NAMES_H

#include "moe/files/hf_folder.h"

#define MOE_HF_SHOWN 128 /* bytes of a name in a message or a buffer */

/* How a stored tensor, or a part of it, becomes a GGUF tensor. */
enum moe_hf_take {
    AS_IT_IS,
    ROTATED,     /* Q or K matrix; a head's rows may be stored in halves */
    ONE_EXPERT,  /* one expert's matrix, to be one of a stack */
    STACK,       /* a whole stack of experts */
    GATES,       /* of a stack of gate and up matrices: the first half of every expert's rows */
    UPS,         /* the second half of these rows */
    FIRST_HALF,  /* of a gate and an up matrix one below the other: the gate's rows */
    SECOND_HALF, /* the up matrix's rows */
    EVEN,        /* of biases that alternate between gate and up: the even values */
    ODD,         /* the odd values */
    BLOCKS,      /* MXFP4 with scales in another tensor: all rows */
    EVEN_BLOCKS, /* MXFP4: even rows */
    ODD_BLOCKS,  /* MXFP4: odd rows */
    TRANSPOSED,  /* a stack stored by input, gates and ups in turns: unquantised gpt-oss; refused */
    BY_INPUT, /* a stack stored by input (llama4), which only quantize reads; its first half of outputs; its second */
    BY_INPUT_FIRST,
    BY_INPUT_SECOND,
    MIX_ROWS,      /* value heads reordered: the rows of values, which follow those of queries and keys */
    VALUE_ROWS,    /* value heads reordered: all rows are of values */
    HEAD_ROWS,     /* value heads reordered: one row or value for each head */
    VALUE_COLUMNS, /* value heads reordered: columns */
    DECAYS,        /* -exp of the stored values, value heads reordered */
    TOKENS,        /* of an EAGLE-3 head: a list of tokens, each stored less its place in the list */
    NOTHING        /* the tensor is skipped */
};

/* State of the conversion, which takes the stored tensors one by one. */
struct moe_hf_mapper {
    struct moe_folder *d;
    const struct moe_stored *t;      /* the current stored tensor */
    struct moe_tensor whole;         /* t as a GGUF tensor, codes and scales together */
    struct off_scales scales;        /* scales of t stored apart; bytes 0: none */
    const struct moe_stored *factor; /* the tensor of one scale for all of t; or NULL */
    size_t n_slab, *n_left; /* expert positions allocated; [room] experts that tensor i of the file still lacks */
    int n_aside;            /* number of skipped tensors under the family's `aside` */
    int n_ahead;            /* number of MTP layers stored under "mtp." */
    size_t room;            /* upper limit of the number of tensors */
};

/* Adds the current tensor m->t, converted by `how`, under this GGUF name.  expert: number of its expert, for
 * ONE_EXPERT; -1: not of one expert. */
int moe_hf_take_as(struct moe_hf_mapper *m, enum moe_hf_take how, const char *name, int expert);

/* Adds t to the tensors of the file, unconverted, under this name. */
int moe_hf_put(struct moe_hf_mapper *m, struct moe_tensor *t, const char *name);

/* After the last tensor: fails if an expert of a stack is missing. */
int moe_hf_check_stacks(const struct moe_hf_mapper *m);

#endif
