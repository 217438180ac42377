/* engine/draft/medusa.h - the network of Medusa heads: published folders, and files with the same tensors (medusa.c). */
#ifndef ENGINE_DRAFT_MEDUSA_H
#define ENGINE_DRAFT_MEDUSA_H

#include "moe/moe.h"

#define ENG_MEDUSA_HEADS  8 /* most heads: depth of a draft */
#define ENG_MEDUSA_LAYERS 8 /* most residual blocks of a head */

struct eng_medusa;

/* Reads names, shapes and types of the file's tensors, or refuses it. Weights are read by load. */
int eng_medusa_open(struct eng_medusa **out, struct moe_file *file, const struct kn_ops *ops);
void eng_medusa_close(struct eng_medusa *m); /* not the file */
int eng_medusa_load(struct eng_medusa *m, struct kn_team *team, enum off_io_kind io, int most_row);
void eng_medusa_unload(struct eng_medusa *m); /* frees the memory that load took, also after load failed */

struct eng_medusa_bytes { /* that load takes; pass: the weights of one head */
    size_t weights, pass, buffers;
};
struct eng_medusa_bytes eng_medusa_bytes(const struct eng_medusa *m, struct kn_team *team, int most_row);

struct eng_medusa_shape {
    int n_head, n_layer, d_model, n_vocab;
};
struct eng_medusa_shape eng_medusa_shape(const struct eng_medusa *m);

float *eng_medusa_feature(struct eng_medusa *m, int row); /* [d_model] input of the row, for the caller to fill */
/* Computes a head for rows 0 .. n - 1. Its logits are valid until the next call. */
void eng_medusa_compute(struct eng_medusa *m, struct kn_team *team, int head, int n);
const float *eng_medusa_logits(const struct eng_medusa *m, int row); /* [n_vocab] */

#endif
