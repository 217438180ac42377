/* engine/plan/fit_file.h - the cost model that `fit` measured, in a file: NAME=NUMBER lines, and drafter=NAME for the
 * drafter that was measured.  Internal to engine. */
#ifndef ENGINE_FIT_FILE_H
#define ENGINE_FIT_FILE_H

#include "moe/moe.h"
#include "speculative/fit.h"

/* Checks, before minutes of measuring, that the file can be written. An existing file is not changed, no new one is
 * left. */
int eng_fit_check(const char *path);
int eng_fit_write(const char *path, const char *model, const struct spec_fit *fit, const char *drafter);

#define ENG_FIT_NAME 160 /* bytes of a drafter's name: eng_draft_name() */

struct eng_fitted {
    struct spec_cost_model cost;
    char drafter[ENG_FIT_NAME]; /* the drafter of draft_ns and draft_row_ns; empty: none was measured */
};

/* Refuses an incomplete file, or one for a model with another number of experts. */
int eng_fit_read(const char *path, const struct moe_shape *shape, struct eng_fitted *out);

#endif
