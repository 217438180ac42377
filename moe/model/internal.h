/* moe/model/internal.h - the steps of opening and loading a model, for the files of moe/model only.
 *
 *     family_table.c     the families (family.h)
 *     families.c         metadata to a struct moe_desc
 *     rotation.c         the angles of a position's rotation
 *     bind.c             the tensors that a description asks for, found in the file
 *     latent_weights.c   the matrices K_h and V_h, from files that have both in one
 *     load.c             dense weights, placed and read
 *     model.c            open, load, close: the order of these */
#ifndef MOE_MODEL_INTERNAL_H
#define MOE_MODEL_INTERNAL_H

#include "moe/model/model.h"

/* families.c: describes the first MTP layer of the target as a draft head: one layer like the target's last layer. */
void moe_desc_ahead(struct moe_desc *d, const struct moe_desc *target);

/* rotation.c: freq[i] is the angle by which pair i of a head's rotated values turns per position, divided by extra[i]
 * unless extra is NULL.  Behind it are the angles of layers with a window, if these have their own. */
int moe_rope_freq(const struct moe_desc *d, const float *extra, float *freq /* [moe_n_pair(d)] */);

/* bind.c: finds the tensors of m->desc in m->file and fills m->layer, dense and expert.  No weight is read. */
int moe_bind(struct moe_model *m);
enum kn_format moe_format_of(const struct moe_tensor *t);
struct off_source moe_source_of(const struct moe_tensor *t, int e, int n_out, int n_in); /* position of matrix e of t */
struct off_source moe_source_rows(const struct moe_tensor *t, int row0, int n_out, int n_in); /* of n_out rows of t */
bool moe_is_of_blocks(struct moe_string name, int first, int n_block); /* starts with "blk.<first .. + n_block - 1>." */

/* load.c: bytes of a tensor in the file, or of the rows of a matrix in it. */
uint64_t moe_dense_bytes(const struct moe_dense *p);

/* load.c, in the order of calls.  moe_place_dense() takes memory for all dense weights from the model's arenas and sets
 * their addresses; over arenas without memory it only counts bytes.  load: [n_dense], filled with the matrices to read; or
 * NULL.  Returns the number of matrices. */
int moe_place_dense(struct moe_model *m, struct off_load *load);
int moe_load_dense(struct moe_model *m, const struct moe_load_options *opt);
int moe_read_expert_scales(struct moe_model *m); /* into m->expert */
int moe_convert_vectors(struct moe_model *m);    /* taps and angles; called once all vectors are read */
int moe_move_dense(struct moe_model *m);         /* to the device, if it has memory of its own */

/* load.c: reads n matrices to their places, in file order: sorts load by file and offset. */
int moe_read_matrices(struct moe_model *m, struct off_load *load, int n, const struct moe_load_options *opt);
struct off_files moe_files_of(const struct moe_model *m); /* the model's files with their mirror */

/* latent_weights.c: reads and splits every tensor of m->dense that has halves. */
int moe_latent_load(struct moe_model *m, const struct moe_load_options *opt);

#endif
