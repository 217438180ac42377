/* speculative/lengths.h - how much of a draft will be kept, guessed from what the model last thought of the text.
 *
 * SpecInfer's scheduler: a network of three layers takes the model's last feature and says how many tokens it expects
 * to be kept of a draft so wide and so deep, for 15 choices.  evals/lengths trains one for a model and a drafter on what
 * they did.  The controller takes its word in place of what the drafter's last drafts came to, and corrects it by what
 * becomes of it (control.h, spec_control_tell).
 *
 * The network is the caller's memory, and so is the room that a guess takes.  No state: any thread. */
#ifndef SPECULATIVE_LENGTHS_H
#define SPECULATIVE_LENGTHS_H

#define SPEC_LENGTH_WIDTHS 3                        /* 1, 2, 4 nodes for each level */
#define SPEC_LENGTH_DEPTHS 5                        /* 1, 2, 4, 8, 16 levels */
#define SPEC_LENGTHS       (SPEC_LENGTH_WIDTHS * SPEC_LENGTH_DEPTHS)
#define SPEC_LENGTH_LAYERS 3

struct spec_lengths {
    int n_in, n_hidden;                             /* in -> hidden -> hidden -> SPEC_LENGTHS */
    const float *weight[SPEC_LENGTH_LAYERS];        /* [inputs][outputs] */
    const float *bias[SPEC_LENGTH_LAYERS];          /* [outputs] */
};

/* How many tokens a choice is of: its nodes are width times depth. */
int spec_length_width(int i);
int spec_length_depth(int i);

/* room: [2 * n_hidden].  out: tokens kept on the mean, each between 0 and its depth. */
void spec_lengths_guess(const struct spec_lengths *l, const float *feature /* [n_in] */, float *room,
                        double *out /* [SPEC_LENGTH_WIDTHS][SPEC_LENGTH_DEPTHS] */);

/* The chance that a draft is kept at least so deep, of the lengths of one width: falling, and between two depths
 * geometrically so that the lengths come out. */
void spec_lengths_survival(const double *length /* [SPEC_LENGTH_DEPTHS] */, double *out /* [SPEC_DEPTHS] */);

#endif
