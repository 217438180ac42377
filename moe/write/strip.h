/* moe/write/strip.h - rows of a stack that is stored by input (strip.c). */
#ifndef MOE_WRITE_STRIP_H
#define MOE_WRITE_STRIP_H

#include "moe/files/files.h"

#define MOE_STRIP_BYTES ((size_t)128 << 20)

struct moe_strip {
    const struct moe_tensor
        *t;              /* a tensor of which moe_file_is_by_input() is true; set by the caller, as the next two */
    size_t one;          /* bytes of a value */
    size_t most;         /* bytes of data; at least a row is read */
    uint64_t row, n_row; /* rows of the tensor that are in data */
    uint8_t *data;       /* [n_row][dim[0]] */
};

/* Copies `bytes` from value `at` of the tensor on.  It reads from the file with all threads of the team if they are not in
 * the strip. */
int moe_strip_read(struct moe_strip *s, const struct moe_file *f, struct kn_team *team, uint64_t at, uint8_t *out,
                   size_t bytes);
void moe_strip_free(struct moe_strip *s);

#endif
