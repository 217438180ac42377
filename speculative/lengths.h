/* speculative/lengths.h - predicts the accepted length of a draft from the model's last hidden state.
 *
 * SpecInfer's scheduler: a network of three layers reads the target's last feature and predicts the number of accepted
 * tokens of a draft for 15 combinations of width and depth.  evals/lengths trains one network for a model and a drafter
 * on recorded drafts.  The controller uses the prediction in place of the average of the drafter's last drafts, and
 * corrects it by the accepted tokens (control.h, spec_control_set_survival).
 *
 * The caller owns the network's weights and the scratch memory of a prediction.  No state: any thread. */
#ifndef SPECULATIVE_LENGTHS_H
#define SPECULATIVE_LENGTHS_H

#define SPEC_LENGTH_WIDTHS 3 /* 1, 2, 4 nodes on each level */
#define SPEC_LENGTH_DEPTHS 5 /* 1, 2, 4, 8, 16 levels */
#define SPEC_LENGTHS       (SPEC_LENGTH_WIDTHS * SPEC_LENGTH_DEPTHS)
#define SPEC_LENGTH_LAYERS 3

struct spec_lengths {
    int n_in, n_hidden;                      /* in -> hidden -> hidden -> SPEC_LENGTHS */
    const float *weight[SPEC_LENGTH_LAYERS]; /* [inputs][outputs] */
    const float *bias[SPEC_LENGTH_LAYERS];   /* [outputs] */
};

/* Width and depth of combination i, 0 <= i < SPEC_LENGTHS; its draft has width times depth nodes. */
int spec_length_width(int i);
int spec_length_depth(int i);

/* room: scratch [2 * n_hidden].  out: mean accepted tokens, each between 0 and its depth. */
void spec_lengths_predict(const struct spec_lengths *l, const float *feature /* [n_in] */, float *room,
                          double *out /* [SPEC_LENGTH_WIDTHS][SPEC_LENGTH_DEPTHS] */);

/* Survival by depth, from the predicted lengths of one width: non-increasing, geometric between two of the five
 * depths, with sums up to these depths that equal the lengths. */
void spec_lengths_survival(const double *length /* [SPEC_LENGTH_DEPTHS] */, double *out /* [SPEC_DEPTHS] */);

#endif
