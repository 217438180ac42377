/* moe/model/internal.h - the steps of opening and loading a model, for the files of this room.
 *
 *     families.c         metadata to a struct moe_desc
 *     bind.c             the tensors that a description asks for, found in the file
 *     latent_weights.c   the matrices K_h and V_h, from files that have both in one
 *     load.c             dense weights, placed and read
 *     model.c            open, load, close: the order of these */
#ifndef MOE_MODEL_INTERNAL_H
#define MOE_MODEL_INTERNAL_H

#include "moe/model/model.h"

/* A tensor that the load reads, and the address that it sets: of a matrix, or of a vector, or of k_b and v_b of the
 * layer `halves`, where the tensor has both (k, v: their memory). */
struct moe_dense {
    const struct moe_tensor *tensor;
    struct kn_mat *matrix;
    float **vector;
    struct moe_layer *halves;
    uint8_t *k, *v;
};

/* families.c: the description of the first MTP layer of the target, as a head: one layer with the shape of its last. */
void moe_desc_ahead(struct moe_desc *d, const struct moe_desc *target);

/* families.c: the angle by which pair i of a head's rotated values turns per position; extra[i], unless NULL, divides
 * it. */
int moe_rope_freq(const struct moe_desc *d, const float *extra, float *freq /* [n_rot / 2] */);

/* bind.c: finds the tensors of m->desc in m->file and fills m->layer, dense and expert.  No weight is read. */
int moe_bind(struct moe_model *m);
enum kn_format moe_format_of(const struct moe_tensor *t);
struct off_source moe_source_of(const struct moe_tensor *t, int e, int n_out, int n_in); /* matrix e of t, or 0 */
bool moe_is_of_blocks(struct moe_string name, int first, int n_block); /* "blk.<i>.", i from first on */

/* load.c, in the order of calls.  place_dense: addresses in a for all dense weights; over an arena without memory it
 * counts.  load: [n_dense], filled with the matrices, or NULL.  Returns the number of matrices. */
int moe_place_dense(struct moe_model *m, struct kn_arena *a, struct off_load *load);
int moe_load_dense(struct moe_model *m, const struct moe_load_options *opt);
int moe_convert_vectors(struct moe_model *m); /* taps and angles, once all vectors are read */

/* load.c: reads n matrices to their places, in file order.  load is sorted by that. */
int moe_read_matrices(struct moe_model *m, struct off_load *load, int n, const struct moe_load_options *opt);
struct off_files moe_files_of(const struct moe_model *m); /* the model's files with their mirror */

/* latent_weights.c: reads and splits every tensor of m->dense that has halves. */
int moe_latent_load(struct moe_model *m, const struct moe_load_options *opt);

#endif
