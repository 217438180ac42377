/* engine/plan/fit_file.h - the cost model that `fit` measured, in a file: NAME=NUMBER lines, format=NUMBER, model=ID, and
 * drafter=NAME for the drafter that was measured.  Internal to engine. */
#ifndef ENGINE_PLAN_FIT_FILE_H
#define ENGINE_PLAN_FIT_FILE_H

#include "moe/moe.h"
#include "speculative/fit.h"

/* Checks that eng_fit_write() could write the file; `fit` calls it before minutes of measuring. Refuses an existing
 * file that is not empty and that `fit` did not write. Changes and leaves no file. */
int eng_fit_check(const char *path);
/* model, model_id: name and moe_file_id() of the model that was measured. */
int eng_fit_write(const char *path, const char *model, uint64_t model_id, const struct spec_fit *fit,
                  const char *drafter);

#define ENG_FIT_NAME 160 /* bytes of a drafter's name: eng_draft_name() */

struct eng_fitted {
    struct spec_cost_model cost;
    char drafter[ENG_FIT_NAME]; /* its times are cost.draft_ns and draft_row_ns; "": no drafter was measured */
};

/* Reads a fit file. Refuses (KN_EINVAL) a file of another format, with missing, unknown or impossible values, or for
 * another model. A file of format 1 has neither format nor model: it is read, which is logged, and its model is known by
 * the number of experts only. */
int eng_fit_read(const char *path, const struct moe_shape *shape, uint64_t model_id, struct eng_fitted *out);

#endif
