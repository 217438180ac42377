/* moe/files/hf_tensor_names.h - how a folder's tensors come to be those of a GGUF file.  For hf_tensors.c, which says what
 * becomes what, and hf_take.c, which does it, alone. */
#ifndef MOE_HF_TENSORS_H
#define MOE_HF_TENSORS_H

#include "moe/files/hf_folder.h"

#define MOE_HF_SHOWN 128                        /* bytes of a name */

/* What of a tensor is taken. */
enum moe_hf_take {
    AS_IT_IS,
    ROTATED,                                    /* a matrix with rows of heads, which may lie in halves */
    ONE_EXPERT,                                 /* a matrix of a stack */
    STACK,                                      /* all of a stack */
    GATES, UPS,                                 /* the first, or the second, half of each of a stack's rows */
    EVEN, ODD,                                  /* of each expert's biases */
    BLOCKS, EVEN_BLOCKS, ODD_BLOCKS,            /* MXFP4, whose scales are a tensor of their own: all rows, or those */
    TRANSPOSED,                                 /* a stack with inputs first: gpt-oss before it is packed */
    MIX_ROWS, VALUE_ROWS, HEAD_ROWS,            /* with value heads in another order: behind keys, alone, a row each */
    VALUE_COLUMNS,                              /* the same of inputs */
    DECAYS,                                     /* of which the file has the logarithms */
    NOTHING
};

/* What is kept while they are gone through, one by one. */
struct moe_hf_mapper {
    struct moe_folder *d;
    const struct moe_stored *t;                 /* the one at hand */
    struct moe_tensor whole;                    /* as it is meant: with its scales, if it has any */
    struct off_scales scales;                   /* bytes 0: none */
    size_t n_slab, *n_left;                     /* places handed out; [room] of a stack, still to come */
    int n_aside;                                /* tensors of what is no part of the language model */
    int n_ahead;                                /* layers that guess ahead */
    size_t room;                                /* tensors that there can be at most */
};

/* The tensor at hand, or the part of it that `how` says, under this name; expert: whose it is, if it is one's. */
int moe_hf_take_as(struct moe_hf_mapper *m, enum moe_hf_take how, const char *name, int expert);

/* t under this name, as it is. */
int moe_hf_put(struct moe_hf_mapper *m, struct moe_tensor *t, const char *name);

/* When all have been taken: is each stack whole? */
int moe_hf_check_stacks(const struct moe_hf_mapper *m);

#endif
