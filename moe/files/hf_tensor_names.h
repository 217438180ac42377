/* moe/files/hf_tensor_names.h - conversion of a folder's tensors to GGUF tensors.  For hf_tensor_names.c, which maps
 * the names, and hf_convert.c, which converts, only. */
#ifndef MOE_HF_TENSORS_H
#define MOE_HF_TENSORS_H

#include "moe/files/hf_folder.h"

#define MOE_HF_SHOWN 128 /* bytes of a name in a message or a buffer */

/* The part of a stored tensor that becomes a GGUF tensor, and its conversion. */
enum moe_hf_take {
    AS_IT_IS,
    ROTATED,    /* Q or K matrix; a head's rows may be stored in halves */
    ONE_EXPERT, /* one expert's matrix, to be one of a stack */
    STACK,      /* a whole stack of experts */
    GATES,
    UPS, /* first or second half of the rows of every expert of a stack */
    EVEN,
    ODD, /* every other value: gate or up biases of each expert */
    BLOCKS,
    EVEN_BLOCKS,
    ODD_BLOCKS, /* MXFP4 with scales in another tensor: all, even or odd rows */
    TRANSPOSED, /* a stack stored input-major: unquantised gpt-oss; refused */
    MIX_ROWS,
    VALUE_ROWS,
    HEAD_ROWS,     /* value heads reordered: rows behind key rows, rows, one row a head */
    VALUE_COLUMNS, /* value heads reordered: columns */
    DECAYS,        /* -exp of the stored values */
    NOTHING        /* the tensor is skipped */
};

/* State of the conversion, which takes the stored tensors one by one. */
struct moe_hf_mapper {
    struct moe_folder *d;
    const struct moe_stored *t; /* the current stored tensor */
    struct moe_tensor whole;    /* t as a GGUF tensor, codes and scales together */
    struct off_scales scales;   /* scales of t stored apart; bytes 0: none */
    size_t n_slab, *n_left;     /* expert positions allocated; [room] experts a stack still lacks */
    int n_aside;                /* skipped tensors of the vision part */
    int n_ahead;                /* MTP layers stored under "mtp." */
    size_t room;                /* upper limit of the number of tensors */
};

/* Adds the current tensor, converted by `how`, under this GGUF name.  expert: its expert's number, for ONE_EXPERT. */
int moe_hf_take_as(struct moe_hf_mapper *m, enum moe_hf_take how, const char *name, int expert);

/* Adds t under this name. */
int moe_hf_put(struct moe_hf_mapper *m, struct moe_tensor *t, const char *name);

/* After the last tensor: fails if an expert of a stack is missing. */
int moe_hf_check_stacks(const struct moe_hf_mapper *m);

#endif
