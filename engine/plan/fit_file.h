/* engine/plan/fit_file.h - what `fit` found, in a file: NAME=NUMBER a line, and drafter=NAME where its passes were measured.
 * Internal to engine. */
#ifndef ENGINE_FIT_FILE_H
#define ENGINE_FIT_FILE_H

#include "moe/moe.h"
#include "speculative/fit.h"

/* Can such a file be written, before minutes of measuring?  What is there stays as it is, and nothing new is left. */
int eng_fit_check(const char *path);
int eng_fit_write(const char *path, const char *model, const struct spec_fit *fit, const char *drafter);

#define ENG_FIT_NAME 160                         /* bytes of a drafter's name: eng_draft_name() */

struct eng_fitted {
    struct spec_cost_model cost;
    char drafter[ENG_FIT_NAME];                 /* whose draft_ns and draft_row_ns those are; empty: nobody's */
};

/* Refuses what is incomplete, or of a model with other experts. */
int eng_fit_read(const char *path, const struct moe_shape *shape, struct eng_fitted *out);

#endif
