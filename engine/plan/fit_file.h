/* engine/plan/fit_file.h - a fitted cost model in a file: NAME=NUMBER lines, format=NUMBER, model=ID, setup=ID, and for each
 * measured drafter drafter=NS ROW_NS ACCEPT NAME.  Internal to engine. */
#ifndef ENGINE_PLAN_FIT_FILE_H
#define ENGINE_PLAN_FIT_FILE_H

#include "moe/moe.h"
#include "speculative/fit.h"

#define ENG_FIT_NAME     160 /* bytes of a drafter's name: eng_draft_name() */
#define ENG_FIT_DRAFTERS 8
#define ENG_FIT_MISSES   100 /* largest miss_ratio */

struct eng_fitted {
    struct spec_cost_model cost; /* its disk_ns, draft_ns and draft_row_ns are not used */
    double miss_ratio;           /* experts read from disk over those that an evenly used cache would miss */
    double copy_share;           /* share of the distinct experts that a pass copies to the device */
    double error;                /* mean |predicted / measured - 1| of the measured passes */
    double n_pass;               /* passes measured */
    uint64_t setup;              /* hash of the machine and the options that matter; 0: not said */
    struct eng_fitted_drafter {
        char name[ENG_FIT_NAME];
        double ns, row_ns; /* of a draft pass: fixed, and times phi(sequences) */
        double accept;     /* acceptance rate of its first tokens; 0: not known */
    } drafter[ENG_FIT_DRAFTERS];
    int n_drafter;
};

/* Checks that eng_fit_write() could write the file; `fit` calls it before minutes of measuring. Refuses an existing
 * file that is not empty and that `fit` did not write. Changes and leaves no file. */
int eng_fit_check(const char *path);
/* model, model_id: name and moe_file_id() of the model that was measured. */
int eng_fit_write(const char *path, const char *model, uint64_t model_id, const struct eng_fitted *fit);
/* The same for the file beside a model: a failure is logged at debug level only. */
void eng_fit_keep(const char *path, const char *model, uint64_t model_id, const struct eng_fitted *fit);

/* Reads a fit file. Refuses (KN_EINVAL) a file of a later format, with missing, unknown or impossible values, or for
 * another model. Files of formats 1 and 2 have no times of contexts and copies: 0. A file of format 1 has no model: it is
 * read, which is logged, and its model is known by the number of experts only. */
int eng_fit_read(const char *path, const struct moe_shape *shape, uint64_t model_id, struct eng_fitted *out);
/* The same for the file beside a model, which must be of this setup, or of none (from `fit -o`). False: there is none, or
 * it is not used, and a line of the log says why. */
bool eng_fit_read_kept(const char *path, const struct moe_shape *shape, uint64_t model_id, uint64_t setup,
                       struct eng_fitted *out);

#endif
